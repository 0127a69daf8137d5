//! A short fixed piece of work: a device that is cool by its sensors and still does it slower than at the start of the
//! run is held back by something that no sensor tells.

use crate::pool::pin_to;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// The best of these counts; together they last long enough, about 0.1 s, for a governor to raise the clock.
const ROUNDS: u32 = 24;
/// Multiplications in a row, each of which needs the one before.
const STEPS: u32 = 2_000_000;

/// What the kernel takes on this device.
#[derive(Debug)]
pub(super) struct Sentinel {
    /// Where it runs: a core of the fastest cluster; `None` leaves it to the system.
    core: Option<usize>,
    own_ns: Option<f64>,
}

impl Sentinel {
    pub(super) fn new(core: Option<usize>) -> Self {
        Self { core, own_ns: None }
    }

    /// Runs the kernel now; its speed as a share of the best so far, 1 the first time.
    pub(super) fn ratio(&mut self) -> Option<f64> {
        let core = self.core;
        // a thread of its own, since it is pinned
        let now_ns = thread::spawn(move || best_ns(core)).join().ok()?;
        self.take(now_ns)
    }

    fn take(&mut self, now_ns: f64) -> Option<f64> {
        if !(now_ns.is_finite() && now_ns > 0.0) {
            return None;
        }
        let own_ns = self.own_ns.map_or(now_ns, |own| own.min(now_ns));
        self.own_ns = Some(own_ns);
        Some(own_ns / now_ns)
    }
}

fn best_ns(core: Option<usize>) -> f64 {
    if let Some(core) = core {
        pin_to(&[core]);
    }
    let round = |_| {
        let begun = Instant::now();
        let mut state = black_box(1u64);
        for _ in 0..STEPS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        black_box(state);
        begun.elapsed().as_nanos() as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_the_fixed_kernel_is_told_as_a_share_of_its_best() {
        let mut sentinel = Sentinel::new(None);
        assert_eq!(sentinel.take(100.0), Some(1.0));
        assert_eq!(sentinel.take(125.0), Some(0.8));
        assert_eq!(sentinel.take(80.0), Some(1.0), "now its own speed is known better");
        assert_eq!(sentinel.take(100.0), Some(0.8));
        assert_eq!((sentinel.take(0.0), sentinel.take(f64::INFINITY)), (None, None));
    }

    #[test]
    fn the_fixed_kernel_runs_on_this_machine() {
        let ratio = Sentinel::new(None).ratio().unwrap();
        assert_eq!(ratio, 1.0);
    }
}
