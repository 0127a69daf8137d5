//! What protects the device against heat and a weak supply, and whether it is at work.

use crate::protocol::Cooling;
use crate::tree::Tree;

/// Cooling devices beyond this number are not read.
const DEVICES_MAX: usize = 64;
const PI_FLAGS: &str = "sys/devices/platform/soc/soc:firmware/get_throttled";

#[derive(Debug)]
pub(super) struct CoolingDevices {
    found: Vec<Found>,
}

#[derive(Debug)]
struct Found {
    kind: String,
    path: String,
    state_max: Option<u64>,
}

impl CoolingDevices {
    pub(super) fn find(tree: &Tree) -> Self {
        let names = tree.names("sys/class/thermal");
        let found = names.iter().filter(|n| n.starts_with("cooling_device")).take(DEVICES_MAX).filter_map(|name| {
            let folder = format!("sys/class/thermal/{name}");
            Some(Found {
                kind: tree.word(&format!("{folder}/type"))?,
                state_max: tree.number(&format!("{folder}/max_state")),
                path: format!("{folder}/cur_state"),
            })
        });
        Self { found: found.collect() }
    }

    /// Whether one of them slows processors or memory when it is at work.
    pub(super) fn any_slows(&self) -> bool {
        let cooling = |found: &Found| Cooling { device: found.kind.clone(), state: 0, state_max: None };
        self.found.iter().any(|found| cooling(found).slows())
    }

    /// Those at work. Of several of one type the one that is furthest counts.
    pub(super) fn at_work(&self, tree: &Tree) -> Vec<Cooling> {
        let mut at_work: Vec<Cooling> = Vec::new();
        for device in &self.found {
            // an idle powerclamp says -1
            let Some(state) = tree.number::<u64>(&device.path).filter(|state| *state > 0) else { continue };
            match at_work.iter_mut().find(|c| c.device == device.kind) {
                Some(other) if state > other.state => (other.state, other.state_max) = (state, device.state_max),
                Some(_) => {}
                None => {
                    at_work.push(Cooling { device: device.kind.clone(), state, state_max: device.state_max });
                }
            }
        }
        at_work
    }
}

/// The firmware's flags on a Raspberry Pi: hexadecimal digits, with or without `0x`.
pub(super) fn throttle_flags(tree: &Tree) -> Option<u32> {
    let word = tree.word(PI_FLAGS)?;
    u32::from_str_radix(word.trim_start_matches("0x"), 16).ok()
}
