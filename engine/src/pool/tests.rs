//! Regions, panics, pinning.

use super::*;

#[test]
fn every_item_is_worked_once_whatever_the_chunk() {
    let pool = Pool::new(3).unwrap();
    for (items, chunk) in [(0, 4), (1, 1), (7, 2), (64, 64), (1000, 7), (1000, 0)] {
        let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..50 {
            pool.scatter(items, chunk, &|worker, range| {
                assert!(worker < 3);
                range.for_each(|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50), "items {items} chunk {chunk}");
    }
}

#[test]
fn a_parked_worker_comes_back() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..3 {
        thread::sleep(YIELD_FOR * 10);
        let other = AtomicBool::new(false);
        let begun = Instant::now();
        // the owner keeps the region open until the helper has been seen, or the test fails
        pool.scatter(2, 1, &|worker, _| {
            if worker == 1 {
                other.store(true, Ordering::SeqCst);
            }
            while worker == 0 && !other.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(20) {
                thread::yield_now();
            }
        });
        assert!(other.load(Ordering::SeqCst));
    }
}

#[test]
fn a_panic_in_a_worker_reaches_the_owner_and_hangs_nobody() {
    let pool = Pool::new(2).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.scatter(2, 1, &|_, _| panic!("on purpose"));
    }));
    assert!(outcome.is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn pinned_workers_report_one_core_each_and_the_owner_gets_its_mask_back() {
    let before = affinity::of_thread(affinity::thread_id()).allowed;
    let pool = Pool::new(1).unwrap();
    assert_eq!(pool.affinity(), [Topology::device().cores()[0].to_string()]);
    assert_eq!(pool.affinity(), pool.affinity_wanted());
    assert_eq!(pool.affinity_faults(), [""; 0]);
    drop(pool);
    assert_eq!(affinity::of_thread(affinity::thread_id()).allowed, before);
}

#[test]
fn no_more_threads_than_the_limit() {
    assert!(Pool::new(THREADS_MAX + 1).is_err());
    assert!(Pool::new(0).unwrap().threads() >= 1);
}

/// Which workers take part in many regions of `items` single items.
fn who_served(pool: &Pool, items: usize) -> Vec<bool> {
    let served: Vec<AtomicBool> = (0..pool.threads()).map(|_| AtomicBool::new(false)).collect();
    for _ in 0..2_000 {
        pool.scatter(items, 1, &|worker, _| served[worker].store(true, Ordering::Relaxed));
    }
    served.iter().map(|s| s.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_region_is_served_by_the_first_workers_only_and_by_more_again_later() {
    let pool = Pool::new(4).unwrap();
    for active in [1, 2, 4, 3, 1] {
        pool.set_active(active);
        let served = who_served(&pool, 16);
        assert!(served[0] && served[active..].iter().all(|s| !s), "{active} active: {served:?}");
    }
    // a worker that has been left out, and sleeps, is woken when it is wanted again
    pool.set_active(4);
    let last = AtomicBool::new(false);
    let begun = Instant::now();
    pool.scatter(4, 1, &|worker, _| {
        last.fetch_or(worker == 3, Ordering::SeqCst);
        while !last.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
    });
    assert!(last.load(Ordering::SeqCst));
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_is_moved_after_it_was_pinned_is_reported() {
    let core = Topology::device().cores()[0];
    let pool = Pool::for_config(&EngineConfig { cpus: core.to_string().parse().unwrap(), ..EngineConfig::default() });
    let pool = pool.unwrap();
    assert_eq!((pool.affinity_faults(), pool.threads()), (vec![], 1));
    // as a kernel does to a thread whose core goes offline
    let everywhere = Topology::device().cores();
    affinity::set_mask(everywhere);
    let faults = pool.affinity_faults();
    if everywhere.len() > 1 {
        assert!(faults[0].starts_with(&format!("worker 0 was pinned to core {core}, the kernel lets it run on ")));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_core_that_is_not_there_is_reported_and_no_other_one_is_passed_off_for_it() {
    let absent = crate::protocol::CPUS_MAX - 1;
    let pool = Pool::for_config(&EngineConfig { cpus: absent.to_string().parse().unwrap(), ..EngineConfig::default() });
    let pool = pool.unwrap();
    assert_eq!(pool.affinity_wanted(), [absent.to_string()]);
    let faults = pool.affinity_faults();
    assert!(faults[0].starts_with("worker 0 was pinned to core 4095, the kernel lets it run on "), "{faults:?}");
}

#[test]
fn a_mask_that_is_accepted_and_ignored_is_a_fault() {
    let found = |allowed: &str, ran_on| affinity::ThreadAffinity { allowed: allowed.to_owned(), ran_on };
    assert_eq!(affinity::fault(0, 5, &found("5", Some(5))), None);
    assert_eq!(affinity::fault(0, 5, &found("5", None)), None);
    // the mask reads back as it was before, or as asked for while the thread runs elsewhere
    assert!(affinity::fault(1, 5, &found("0-7", Some(5))).unwrap().ends_with("the kernel lets it run on 0-7"));
    assert!(affinity::fault(1, 5, &found("5", Some(2))).unwrap().ends_with("ran on core 2 all the same"));
    assert!(affinity::fault(1, 5, &found("unknown", None)).unwrap().ends_with("cannot be read back"));
}
