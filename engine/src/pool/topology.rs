//! Which cores this process may use, and which of them are fast.

use std::fs;
use std::sync::OnceLock;

/// Cores slower than this share of the fastest one's `cpu_capacity` are no performance cores.
const CAPACITY_SHARE_MIN: f64 = 0.6;
/// The same by highest clock, where the kernel gives no capacity; clocks differ less than speeds do.
const CLOCK_SHARE_MIN: f64 = 0.8;

/// Cores this process may run on, fastest first (equal ones by number), as they were before the first pool pinned a
/// thread: a pinned thread hands its mask down, and a second pool must not mistake that for the process's own.
pub fn allowed_cores() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| order_by_speed(super::affinity::current_mask(), &core_speed))
}

/// How many of `cores` are performance cores: the big cluster by capacity, else by clock, else all of them. At least 1.
pub fn performance_core_count(cores: &[usize]) -> usize {
    count_fast(cores, &core_speed)
}

/// A core's speed as the kernel states it, with the share of the fastest that still counts as fast.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed {
    value: f64,
    share_min: f64,
}

fn order_by_speed(mut cores: Vec<usize>, speed: &dyn Fn(usize) -> Option<Speed>) -> Vec<usize> {
    cores.sort_unstable();
    let value = |core: &usize| speed(*core).map_or(0.0, |s| s.value);
    // a stable sort keeps equal cores in the order of their numbers
    cores.sort_by(|a, b| value(b).total_cmp(&value(a)));
    cores
}

fn count_fast(cores: &[usize], speed: &dyn Fn(usize) -> Option<Speed>) -> usize {
    let speeds: Option<Vec<Speed>> = cores.iter().map(|&core| speed(core)).collect();
    let fast = speeds.map_or(cores.len(), |speeds| {
        let fastest = speeds.iter().map(|s| s.value).fold(0.0, f64::max);
        speeds.iter().filter(|s| s.value >= s.share_min * fastest).count()
    });
    fast.max(1)
}

fn core_speed(core: usize) -> Option<Speed> {
    let read = |file: &str| -> Option<f64> {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/{file}")).ok()?.trim().parse().ok()
    };
    read("cpu_capacity")
        .map(|value| Speed { value, share_min: CAPACITY_SHARE_MIN })
        .or_else(|| read("cpufreq/cpuinfo_max_freq").map(|value| Speed { value, share_min: CLOCK_SHARE_MIN }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacities(of: &'static [f64]) -> impl Fn(usize) -> Option<Speed> {
        move |core| of.get(core).map(|&value| Speed { value, share_min: CAPACITY_SHARE_MIN })
    }

    // field report E2: as many threads as cores halve the speed where half of them are small
    #[test]
    fn the_little_cluster_of_an_rk3588_is_left_out_by_default() {
        let speed = capacities(&[530.0, 530.0, 530.0, 530.0, 1024.0, 1024.0, 1024.0, 1024.0]);
        let cores = order_by_speed((0..8).collect(), &speed);
        assert_eq!(cores, [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(count_fast(&cores, &speed), 4);
    }

    #[test]
    fn only_cores_of_the_mask_count() {
        let speed = capacities(&[530.0, 530.0, 530.0, 530.0, 1024.0, 1024.0, 1024.0, 1024.0]);
        let cores = order_by_speed(vec![0, 1, 4], &speed);
        assert_eq!(cores, [4, 0, 1]);
        assert_eq!(count_fast(&cores, &speed), 1);
    }

    #[test]
    fn cores_of_unknown_speed_are_all_used() {
        let cores = order_by_speed(vec![1, 0], &|_| None);
        assert_eq!(cores, [0, 1]);
        assert_eq!(count_fast(&cores, &|_| None), 2);
    }
}
