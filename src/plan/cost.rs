//! How long a cell takes at most (its budgets) and about (the estimate), from the model's size alone.

use crate::run::ModelFacts;
use crate::scenario::TIMEOUT_S_MAX;
use farmgate_engine::protocol::Step;

/// What the estimates assume; [`TYPICAL`] in words.
pub const ASSUMPTION: &str = "assumes 8 GB/s of weights read, 40 GFLOP/s in prefill and 1 s of overhead a cell; build, push, \
                              cool-down and retries come on top";

/// Speed of a device, as far as it decides how long a cell takes.
struct Pace {
    /// Weights read while decoding, bytes a second.
    read_bytes_per_s: f64,
    /// Arithmetic while prefilling, floating-point operations a second.
    flop_per_s: f64,
    /// Reading the model from storage, bytes a second; hashing included.
    load_bytes_per_s: f64,
}

/// A present-day phone or laptop.
const TYPICAL: Pace = Pace { read_bytes_per_s: 8e9, flop_per_s: 40e9, load_bytes_per_s: 1e9 };
/// Slower than anything that is worth measuring: a budget must end a cell that hangs, never one that is slow.
const CONSERVATIVE: Pace = Pace { read_bytes_per_s: 0.3e9, flop_per_s: 2e9, load_bytes_per_s: 20e6 };

/// Time that is allowed for a load whatever the model's size, milliseconds.
const LOAD_BASE_MS: u64 = 30_000;
/// Process start and end, in the estimate, seconds.
const CELL_OVERHEAD_S: f64 = 1.0;

/// Budget for opening the model, milliseconds.
pub(super) fn load_timeout_ms(model: &ModelFacts) -> u64 {
    capped_ms(LOAD_BASE_MS as f64 + 1000.0 * model.file_bytes as f64 / CONSERVATIVE.load_bytes_per_s)
}

/// Budget for a cell after the load, milliseconds: the scenario's own plus what the slowest device needs.
pub(super) fn cell_timeout_ms(timeout_s: u64, model: &ModelFacts, steps: &[Step]) -> u64 {
    capped_ms(1000.0 * (timeout_s as f64 + work_s(&CONSERVATIVE, model, steps)))
}

/// Estimate of a whole cell, seconds.
pub(super) fn cell_estimate_s(model: &ModelFacts, steps: &[Step]) -> f64 {
    CELL_OVERHEAD_S + model.file_bytes as f64 / TYPICAL.load_bytes_per_s + work_s(&TYPICAL, model, steps)
}

fn work_s(pace: &Pace, model: &ModelFacts, steps: &[Step]) -> f64 {
    let (prefilled, decoded) = steps.iter().map(tokens).fold((0.0, 0.0), |sum, (p, d)| (sum.0 + p, sum.1 + d));
    // a multiplication and an addition for each parameter and token
    prefilled * 2.0 * model.parameters as f64 / pace.flop_per_s
        + decoded * model.weight_bytes as f64 / pace.read_bytes_per_s
}

/// Tokens prefilled and tokens decoded by a step.
fn tokens(step: &Step) -> (f64, f64) {
    let float = |n: u32| f64::from(n);
    match step {
        Step::Load { .. } => (0.0, 0.0),
        Step::WarmUp { prompt_tokens, decode_tokens } | Step::Answer { prompt_tokens, decode_tokens, .. } => {
            (float(*prompt_tokens), float(*decode_tokens))
        }
        Step::Prefill { prompt_tokens, repetitions } => {
            (float(*prompt_tokens) * float(*repetitions), float(*repetitions))
        }
        Step::Decode { decode_tokens, at_depth, repetitions } => {
            (float(*at_depth) * float(*repetitions), float(*decode_tokens) * float(*repetitions))
        }
        Step::Golden { cases } => cases.iter().fold((0.0, 0.0), |sum, case| {
            (sum.0 + case.prompt_ids.len() as f64, sum.1 + case.generated_ids.len() as f64)
        }),
    }
}

fn capped_ms(ms: f64) -> u64 {
    (ms.ceil() as u64).min(TIMEOUT_S_MAX * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(parameters: u64) -> ModelFacts {
        ModelFacts {
            name: "m.gguf".into(),
            sha256: vec!["0".repeat(64)],
            file_bytes: parameters / 2,
            weight_bytes: parameters / 2,
            architecture: "llama".into(),
            parameters,
            weight_type: "Q4_0".into(),
        }
    }

    #[test]
    fn the_assumption_that_is_printed_is_the_one_that_is_used() {
        assert!(ASSUMPTION.contains(&format!("{} GB/s", TYPICAL.read_bytes_per_s / 1e9)));
        assert!(ASSUMPTION.contains(&format!("{} GFLOP/s", TYPICAL.flop_per_s / 1e9)));
        assert!(ASSUMPTION.contains(&format!("{CELL_OVERHEAD_S} s of overhead")));
    }

    #[test]
    fn budgets_grow_with_the_model_and_stay_below_a_day() {
        let steps = [Step::Prefill { prompt_tokens: 2048, repetitions: 1 }];
        let (small, large) = (model(135_000_000), model(7_000_000_000));
        assert!(load_timeout_ms(&small) >= LOAD_BASE_MS);
        assert!(load_timeout_ms(&large) > load_timeout_ms(&small) + 100_000);
        assert!(cell_timeout_ms(60, &large, &steps) > cell_timeout_ms(60, &small, &steps));
        assert_eq!(cell_timeout_ms(60, &small, &[Step::Load { cold: false }]), 60_000);
        assert_eq!(cell_timeout_ms(60, &model(u64::MAX), &steps), TIMEOUT_S_MAX * 1000);
        assert_eq!(load_timeout_ms(&model(u64::MAX)), TIMEOUT_S_MAX * 1000);
    }

    // field report E1: 28 token/s with 3 threads, 0.26 with 5
    #[test]
    fn a_cell_at_a_hundredth_of_its_speed_is_ended_before_a_third_of_the_time_that_it_would_take() {
        let steps = [Step::Decode { decode_tokens: 512, at_depth: 0, repetitions: 3 }];
        for parameters in [500_000_000, 1_500_000_000, 7_000_000_000] {
            let facts = model(parameters);
            let (own_s, at_speed_s) = (60, work_s(&TYPICAL, &facts, &steps));
            let budget_s = cell_timeout_ms(own_s, &facts, &steps) as f64 / 1000.0;
            assert!(budget_s - own_s as f64 <= 100.0 * at_speed_s / 3.0, "{parameters}: {budget_s} s");
            // and twice the work gets twice the time
            let twice = [steps[0].clone(), steps[0].clone()];
            let twice_s = cell_timeout_ms(own_s, &facts, &twice) as f64 / 1000.0;
            assert!(
                (twice_s - own_s as f64 - 2.0 * (budget_s - own_s as f64)).abs() < 0.01,
                "{parameters}: {twice_s} s"
            );
        }
    }

    // field report E31
    #[test]
    fn twice_the_model_gets_twice_the_time_to_load_beyond_the_base() {
        let beyond = |parameters| load_timeout_ms(&model(parameters)) - LOAD_BASE_MS;
        assert_eq!(beyond(4_000_000_000), 100_000);
        assert_eq!(beyond(8_000_000_000), 2 * beyond(4_000_000_000));
    }

    #[test]
    fn a_budget_is_always_longer_than_the_estimate() {
        let steps = [Step::Decode { decode_tokens: 128, at_depth: 512, repetitions: 3 }];
        for parameters in [1_300_000, 135_000_000, 7_000_000_000] {
            let facts = model(parameters);
            let budget_s = (load_timeout_ms(&facts) + cell_timeout_ms(1, &facts, &steps)) as f64 / 1000.0;
            assert!(budget_s > 2.0 * cell_estimate_s(&facts, &steps), "{parameters}");
        }
    }
}
