//! The only thing the runner says. Durable events are the run's journal; passing ones are for the eye.

use crate::run::{Manifest, RunState};
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{DevicePlan, Fingerprint, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Event {
    /// The run begins. Durable, and the first.
    RunStarted {
        /// What is known before the first cell.
        manifest: Box<Manifest>,
    },
    /// A run that had no end, or an early one, is gone on with. Durable.
    RunResumed {
        /// Wall clock of that moment, RFC 3339.
        at: String,
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

/// A run as its journal leaves it.
#[derive(Debug)]
pub struct Course {
    /// What was known before its first cell.
    pub manifest: Manifest,
    /// Devices that were reached, by name.
    pub devices: BTreeMap<String, DeviceCourse>,
    /// How far it came.
    pub state: RunState,
}

/// One device's part of it.
#[derive(Debug, Clone, Default)]
pub struct DeviceCourse {
    /// What the probe found, and sha256 of the engine there.
    pub opened: Option<(Fingerprint, String)>,
    /// The plan that it was given last.
    pub plan: Option<DevicePlan>,
    /// Number of the next record of its journal.
    pub seq_next: u64,
    /// Cells that have come to an end.
    pub cells_ended: u32,
    /// Its journal says that the plan came to its end.
    pub is_at_end: bool,
    /// It came to the end of its plan, and nothing more is to be done.
    pub is_finished: bool,
}

impl Course {
    /// A run that has just begun.
    pub fn new(manifest: Manifest) -> Self {
        Self { manifest, devices: BTreeMap::new(), state: RunState::Unfinished }
    }

    /// Takes in its next event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::RunStarted { .. } | Event::Progress { .. } => {}
            Event::RunResumed { .. } => self.state = RunState::Unfinished,
            Event::RunEnded { state } => self.state = state,
            Event::DeviceOpened { device, fingerprint, engine_sha256, .. } => {
                self.of(device).opened = Some((*fingerprint, engine_sha256));
            }
            Event::DevicePlanned { device, plan } => self.of(device).plan = Some(*plan),
            // one that was interrupted has ended as well
            Event::DeviceFinished { device } => {
                let part = self.of(device);
                part.is_finished = part.is_at_end;
            }
            // it gets another chance
            Event::DeviceFailed { .. } => {}
            Event::DeviceRecord { device, framed } => {
                let part = self.of(device);
                part.seq_next = framed.seq + 1;
                part.is_at_end = matches!(framed.record, Record::JournalEnd { interrupted: false });
                if let Record::CellEnd { cell, .. } = framed.record {
                    part.cells_ended = part.cells_ended.max(cell + 1);
                }
            }
        }
    }

    fn of(&mut self, device: String) -> &mut DeviceCourse {
        self.devices.entry(device).or_default()
    }
}

/// What a device is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Connecting and probing.
    Connecting,
    /// Waiting for somebody else to give the device back.
    Waiting {
        /// Who holds it, as the device says.
        owner: String,
        /// How much longer that is waited for, milliseconds.
        left_ms: u64,
    },
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
