//! Field report E26: a longer context alone changed the speed from 6.3 to 1.4 token/s, and both were one number in a table.
//! What differs in the set-up of the engine is never one series.

// shared with the truth table, which uses more of it
#[allow(dead_code)]
mod gate_fixtures;

use farmgate::run::RunData;
use farmgate_engine::protocol::{Arm, CpuClusters, EngineConfig, KvPolicy, KvType, Repack};
use gate_fixtures::*;
use proptest::prelude::*;

/// A run of two candidate cells with these set-ups.
fn two_cells(first: &EngineConfig, second: &EngineConfig) -> RunData {
    let mut cells = vec![cell(Arm::Candidate, 0, 0, SPEED, &[6.3]), cell(Arm::Candidate, 1, 0, SPEED, &[1.4])];
    cells[0].config = first.clone();
    cells[1].config = second.clone();
    run(cells)
}

/// The same with one field changed, for each field. A field that is added must be named here, or this does not compile.
fn neighbours(config: &EngineConfig) -> Vec<EngineConfig> {
    let EngineConfig {
        threads,
        threads_batch,
        cpus: _,
        cpu_clusters: _,
        context_tokens,
        kv_type,
        kv_type_v,
        kv_policy: _,
        mmap,
        mlock,
        repack: _,
    } = config.clone();
    let same = || config.clone();
    let other_type = |t: KvType| if t == KvType::Q4_0 { KvType::Q8_0 } else { KvType::Q4_0 };
    vec![
        EngineConfig { threads: threads + 1, ..same() },
        EngineConfig { threads_batch: threads_batch + 1, ..same() },
        EngineConfig { cpus: "4-7,0".parse().unwrap(), ..same() },
        EngineConfig { cpu_clusters: Some(CpuClusters::Little), ..same() },
        EngineConfig { context_tokens: context_tokens + 1, ..same() },
        EngineConfig { kv_type: other_type(kv_type), ..same() },
        EngineConfig { kv_type_v: Some(other_type(kv_type_v.unwrap_or(kv_type))), ..same() },
        EngineConfig { kv_policy: KvPolicy::Window { last_tokens: 64 }, ..same() },
        EngineConfig { mmap: !mmap, ..same() },
        EngineConfig { mlock: !mlock, ..same() },
        EngineConfig { repack: Repack::Off, ..same() },
    ]
}

proptest! {
    #[test]
    fn cells_that_differ_in_one_thing_of_their_set_up_are_never_one_series(
        threads in 0u32..9,
        context_tokens in 1u32..100_000,
        types in prop::sample::select(vec![(KvType::F16, KvType::F16), (KvType::Q8_0, KvType::F16)]),
    ) {
        let config = EngineConfig { threads, context_tokens, ..EngineConfig::default() }.with_kv_types(types.0, types.1);
        let series = two_cells(&config, &config).series();
        prop_assert_eq!(series.len(), 1);
        prop_assert_eq!(series[0].candidate.len(), 2);
        for neighbour in neighbours(&config) {
            let series = two_cells(&config, &neighbour).series();
            prop_assert_eq!(series.len(), 2, "{:?}", neighbour);
            prop_assert_ne!(&series[0].key, &series[1].key);
            let values: Vec<f64> = series.iter().map(|s| s.candidate[0].value.as_ref().unwrap().get()).collect();
            prop_assert_eq!(values, vec![6.3, 1.4]);
            prop_assert!(series.iter().all(|s| s.candidate.len() == 1));
        }
    }

    #[test]
    fn contexts_of_different_length_are_never_one_series(a in 1u32..1_000_000, b in 1u32..1_000_000) {
        let of = |context_tokens| EngineConfig { context_tokens, ..EngineConfig::default() };
        prop_assert_eq!(two_cells(&of(a), &of(b)).series().len(), if a == b { 1 } else { 2 });
    }
}
