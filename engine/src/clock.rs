//! The clocks that farmhand reads. Durations come from monotonic clocks; the wall clock only names things.

use std::time::{SystemTime, UNIX_EPOCH};

/// `CLOCK_MONOTONIC` in microseconds: stands still while the device sleeps. Shared by all processes of one boot, so a
/// parent can hand the moment of a spawn to its child.
pub fn monotonic_us() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_BOOTTIME` in microseconds: goes on while the device sleeps. Journals and leases are timed by it, so that a
/// suspended device shows as a gap and cannot stretch a lease.
pub fn boottime_us() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// Processor time that the calling thread has used, in microseconds.
pub fn thread_cpu_us() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec that outlives the call; these clocks exist on every Linux that Rust supports, and
    // if the call failed all the same, `now` stays zero
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// The kernel's random name of this boot, or `unknown` where `/proc` does not say: monotonic times of different boots
/// cannot be compared.
pub fn boot_id() -> String {
    match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(bytes) => crate::text::escaped(bytes.trim_ascii(), 64),
        Err(_) => "unknown".to_owned(),
    }
}

/// Now by the wall clock, as RFC 3339 in UTC with seconds.
pub fn wall_clock() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as RFC 3339 in UTC. Civil date from day number, by eras of 400 years that start in March.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_have_their_known_names() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn boot_time_is_never_behind_monotonic_time() {
        let monotonic = monotonic_us();
        assert!(boottime_us() >= monotonic && monotonic > 0);
    }
}
