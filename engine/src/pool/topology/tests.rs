//! Made device trees, and the cores that requests mean on them.

use super::*;
use std::path::Path;

/// A device's `/sys` with cores of the given capacities or, where there are none, clocks in MHz.
fn device(capacities: &[u32], clocks_mhz: &[u32], online: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = |path: &str, text: String| {
        let path = folder.path().join("sys/devices/system/cpu").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let count = capacities.len().max(clocks_mhz.len());
    file("present", format!("0-{}\n", count - 1));
    file("online", format!("{online}\n"));
    for (core, capacity) in capacities.iter().enumerate() {
        file(&format!("cpu{core}/cpu_capacity"), format!("{capacity}\n"));
    }
    for (core, mhz) in clocks_mhz.iter().enumerate() {
        file(&format!("cpu{core}/cpufreq/cpuinfo_max_freq"), format!("{mhz}000\n"));
    }
    folder
}

fn topology(root: &Path, mask: impl IntoIterator<Item = usize>) -> Topology {
    Topology::new(&clusters(&Tree::new(root)), mask.into_iter().collect())
}

fn rk3588() -> tempfile::TempDir {
    device(&[530, 530, 530, 530, 1024, 1024, 1024, 1024], &[], "0-7")
}

/// Cores of the placement; the test fails when a worker has none.
fn cores(placement: &Placement) -> Vec<usize> {
    placement.cores.iter().map(|core| core.unwrap()).collect()
}

#[test]
fn an_rk3588_decodes_on_its_big_cores_by_default_and_not_on_all() {
    let folder = rk3588();
    let topology = topology(folder.path(), 0..8);
    let placement = topology.place(&EngineConfig::default()).unwrap();
    assert_eq!(cores(&placement), [4, 5, 6, 7]);
    assert_eq!((placement.decode, placement.prefill), (4, 4));
    // all of them is for those who ask
    let all = EngineConfig { cpu_clusters: Some(CpuClusters::All), ..EngineConfig::default() };
    assert_eq!(cores(&topology.place(&all).unwrap()), [4, 5, 6, 7, 0, 1, 2, 3]);
}

#[test]
fn prefill_may_have_more_workers_than_decode_and_the_first_serve_both() {
    let folder = rk3588();
    let topology = topology(folder.path(), 0..8);
    let config = EngineConfig { threads_batch: 8, ..EngineConfig::default() };
    let placement = topology.place(&config).unwrap();
    assert_eq!(cores(&placement), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!((placement.decode, placement.prefill), (4, 8));
    let fewer = EngineConfig { threads: 4, threads_batch: 2, ..EngineConfig::default() };
    let placement = topology.place(&fewer).unwrap();
    assert_eq!((placement.cores.len(), placement.decode, placement.prefill), (4, 4, 2));
}

#[test]
fn clusters_of_a_phone_with_three_kinds_of_cores() {
    // four small, three middle, one prime core
    let folder = device(&[250, 250, 250, 250, 780, 780, 780, 1024], &[], "0-7");
    let topology = topology(folder.path(), 0..8);
    let of = |which| topology.of(which).unwrap().to_vec();
    assert_eq!(of(CpuClusters::Big), [7]);
    assert_eq!(of(CpuClusters::Mid), [4, 5, 6]);
    assert_eq!(of(CpuClusters::Little), [0, 1, 2, 3]);
    assert_eq!(of(CpuClusters::All), [7, 4, 5, 6, 0, 1, 2, 3]);
    assert_eq!(cores(&topology.place(&EngineConfig::default()).unwrap()), [7, 4, 5, 6], "fast enough to help");
}

#[test]
fn clusters_by_clock_where_there_is_no_capacity() {
    let folder = device(&[], &[1800, 1800, 2400, 2400], "0-3");
    let topology = topology(folder.path(), 0..4);
    assert_eq!(topology.of(CpuClusters::Big).unwrap(), [2, 3]);
    assert_eq!(topology.of(CpuClusters::Little).unwrap(), [0, 1]);
    assert_eq!(cores(&topology.place(&EngineConfig::default()).unwrap()), [2, 3]);
}

#[test]
fn where_all_cores_are_alike_big_is_all_and_there_are_no_little_ones() {
    // single cores of some chips are rated a little higher
    for clocks in [[1200, 1200, 1200, 1200], [4900, 5000, 5000, 5100]] {
        let folder = device(&[], &clocks, "0-3");
        let topology = topology(folder.path(), 0..4);
        assert_eq!(topology.of(CpuClusters::Big).unwrap().len(), 4);
        let error = topology.of(CpuClusters::Little).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.what().starts_with("this process has no little cores; by speed they are: "), "{error}");
    }
    let unknown = Topology::new(&[], vec![1, 0]);
    assert_eq!(unknown.of(CpuClusters::Big).unwrap(), [0, 1]);
    assert_eq!(unknown.place(&EngineConfig::default()).unwrap().decode, 2);
    let board = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/sys/quad-a53");
    assert_eq!(self::topology(Path::new(board), 0..4).of(CpuClusters::Big).unwrap(), [0, 1, 2, 3]);
}

#[test]
fn cores_outside_the_mask_or_offline_are_not_chosen() {
    let folder = device(&[530, 530, 530, 530, 1024, 1024, 1024, 1024], &[], "0-5,7");
    let all = topology(folder.path(), 0..8);
    assert_eq!(cores(&all.place(&EngineConfig::default()).unwrap()), [4, 5, 7]);
    let masked = topology(folder.path(), [0, 1, 4]);
    assert_eq!(cores(&masked.place(&EngineConfig::default()).unwrap()), [4]);
    assert_eq!(masked.cores(), [4, 0, 1]);
}

#[test]
fn a_list_of_cores_is_taken_in_its_order_and_to_the_letter() {
    let folder = rk3588();
    let topology = topology(folder.path(), 0..8);
    let listed = |list: &str, threads| {
        let config = EngineConfig { cpus: list.parse().unwrap(), threads, ..EngineConfig::default() };
        topology.place(&config)
    };
    assert_eq!(cores(&listed("6-7,0", 0).unwrap()), [6, 7, 0]);
    assert_eq!(cores(&listed("6-7,0", 2).unwrap()), [6, 7]);
    // a core that is not there is no reason to take another one: the pool finds out that it cannot be had
    assert_eq!(cores(&listed("99", 0).unwrap()), [99]);
    let error = listed("4-5", 3).unwrap_err();
    assert_eq!((error.exit_code(), error.what()), (2, "3 threads do not fit 2 cores"));
    let both =
        EngineConfig { cpus: "1".parse().unwrap(), cpu_clusters: Some(CpuClusters::Big), ..EngineConfig::default() };
    assert_eq!(topology.place(&both).unwrap_err().what(), "cores 1 and clusters big are both asked for");
}

#[test]
fn more_workers_than_cores_are_not_pinned() {
    let folder = rk3588();
    let config = EngineConfig { threads: 9, ..EngineConfig::default() };
    let placement = topology(folder.path(), 0..8).place(&config).unwrap();
    assert_eq!(placement.cores, [None; 9]);
}
