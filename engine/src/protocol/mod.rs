//! The words spoken between harness and device: a device plan goes in, journal records come out.
//!
//! Both are versioned. The plan is one JSON object; the journal is JSON lines, each framed with a sequence number and a
//! CRC (see [`frame`]). This module does no I/O and reads no clock.

mod cpus;
pub mod frame;
mod kv_policy;
mod plan;
mod ready;
mod record;
mod telemetry;

pub use cpus::{CPUS_MAX, CpuClusters, CpuList, Repack};
pub use kv_policy::KvPolicy;
pub use plan::{Arm, CellPlan, DevicePlan, EngineConfig, GoldenCase, KvType, ModelRef, Step};
pub use ready::ReadyCriteria;
pub use record::{
    CoreCluster, ExitCause, Fingerprint, HeldMemory, Objection, ReasonCode, Record, SampleRecord, SelfProof, Sensor,
    TokenTimes, Validity,
};
pub use telemetry::{Battery, ClusterClock, Cooling, MemoryParts, Power, Pressure, Rail, Reading, Telemetry};

/// The version of plan and journal. A reader refuses any other version.
pub const PROTOCOL_VERSION: u32 = 1;

/// The environment variable by which a shell's descendants are told apart: the harness names the call that began them,
/// and ends what a lost link left at work. A run that is detached on purpose drops it.
pub const CALL_MARK: &str = "FARMGATE_CALL";

use serde::{Deserialize, Deserializer, Serialize};

/// A finite floating-point number: NaN and infinity cannot be represented, neither in memory nor in JSON.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Finite(f64);

impl Finite {
    /// `None` for NaN and the infinities.
    pub fn new(value: f64) -> Option<Self> {
        value.is_finite().then_some(Self(value))
    }
    /// The number itself, finite by construction.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value).ok_or_else(|| serde::de::Error::custom("a finite number is required"))
    }
}
