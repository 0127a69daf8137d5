//! What memory gives, measured once for each set of workers that a plan's cells ask for.

use crate::protocol::{CellPlan, EngineConfig, Step};
use crate::roofline::ReadBandwidth;
use std::thread;

/// What was measured so far; `None` where it could not be, which is not tried again.
#[derive(Debug, Default)]
pub(super) struct Bandwidths {
    known: Vec<(EngineConfig, Option<ReadBandwidth>)>,
}

impl Bandwidths {
    /// What the workers of this cell read from memory at best; `None` for a cell that decodes nothing.
    pub(super) fn of(&mut self, cell: &CellPlan) -> Option<ReadBandwidth> {
        let decodes = |step: &Step| matches!(step, Step::Decode { .. } | Step::Answer { .. });
        if !cell.steps.iter().any(decodes) {
            return None;
        }
        let workers = workers(&cell.config);
        if let Some((_, known)) = self.known.iter().find(|(config, _)| *config == workers) {
            return *known;
        }
        // a thread of its own: the first worker is pinned, and the supervisor must stay free to run anywhere
        let measured = thread::scope(|scope| scope.spawn(|| ReadBandwidth::measure(&workers)).join());
        let found = match measured {
            Ok(Ok(bandwidth)) => Some(bandwidth),
            Ok(Err(error)) => {
                crate::talk::talk!("warning: memory bandwidth is not known, so there is no mbu: {}", error.what());
                None
            }
            Err(_) => None,
        };
        self.known.push((workers, found));
        found
    }
}

/// Of a configuration, what decides which workers decode.
fn workers(config: &EngineConfig) -> EngineConfig {
    EngineConfig {
        threads: config.threads,
        threads_batch: config.threads_batch,
        cpus: config.cpus.clone(),
        cpu_clusters: config.cpu_clusters,
        ..EngineConfig::default()
    }
}
