//! The only thing the runner says. Durable events are the run's journal; passing ones are for the eye.

use crate::run::{Manifest, RunState};
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{DevicePlan, Fingerprint, Record};
use serde::{Deserialize, Serialize};

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Event {
    /// The run begins. Durable, and the first.
    RunStarted {
        /// What is known before the first cell.
        manifest: Box<Manifest>,
    },
    /// A device was reached and probed. Durable.
    DeviceOpened {
        /// The device.
        device: String,
        /// What it is.
        fingerprint: Box<Fingerprint>,
        /// sha256 of the engine binary pushed to it.
        engine_sha256: String,
        /// Host wall clock minus device wall clock, milliseconds.
        clock_offset_ms: i64,
    },
    /// The plan that the device was given. Durable.
    DevicePlanned {
        /// The device.
        device: String,
        /// Its plan.
        plan: Box<DevicePlan>,
    },
    /// A record of the device's journal. Durable.
    DeviceRecord {
        /// The device.
        device: String,
        /// The record with its sequence number and time.
        framed: Box<Framed>,
    },
    /// The device came to the end of its plan. Durable.
    DeviceFinished {
        /// The device.
        device: String,
    },
    /// The device or its link failed; its remaining cells are lost. Durable.
    DeviceFailed {
        /// The device.
        device: String,
        /// What happened, with place and hint.
        reason: String,
    },
    /// The run ends. Durable, and the last.
    RunEnded {
        /// How far it came.
        state: RunState,
    },
    /// What a device is doing now. Passing, and so never written.
    #[serde(skip)]
    Progress {
        /// The device.
        device: String,
        /// What it does.
        phase: Phase,
    },
}

impl Event {
    /// Whether it belongs to the run's journal.
    pub fn is_durable(&self) -> bool {
        !matches!(self, Self::Progress { .. })
    }

    /// Whether losing it would lose more than a moment's telemetry, so that it must reach the disk before going on.
    pub fn must_sync(&self) -> bool {
        match self {
            Self::Progress { .. } => false,
            Self::DeviceRecord { framed, .. } => {
                matches!(framed.record, Record::CellEnd { .. } | Record::Proof { .. } | Record::JournalEnd { .. })
            }
            _ => true,
        }
    }
}

/// What a device is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Connecting and probing.
    Connecting,
    /// Copying an artefact or a model.
    Pushing {
        /// What is copied.
        what: String,
        /// Bytes done so far.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// Checking a file's hash on the device.
    Verifying {
        /// What is checked.
        what: String,
    },
    /// Measuring a cell.
    Measuring {
        /// Cells done so far.
        done_cells: u32,
        /// Cells in all.
        total_cells: u32,
        /// The cell's scenario and arm.
        what: String,
        /// Estimate of the time left for this device, milliseconds.
        left_ms: u64,
    },
    /// Nothing more to do.
    Done,
}
