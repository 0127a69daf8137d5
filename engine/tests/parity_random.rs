//! Random weights: every architecture and weight type gives the recorded logits.

mod parity;

use parity::*;

/// Steps with a smaller margin than this are decided by rounding: twice the tolerance of a logit, and some.
fn margin_min(tolerance: f32) -> f32 {
    (3.0 * tolerance).max(0.05)
}

/// BF16 counts with the quantised types: the recording engine rounds activations to 8 bits of mantissa before each
/// product, which alone moves its logits by 0.03; ours stay in single precision.
fn tolerance(file: &str) -> f32 {
    if file.ends_with("-F32.gguf") || file.ends_with("-F16.gguf") { 0.01 } else { 0.05 }
}

#[test]
fn random_models_give_the_recorded_logits() {
    let answers = known_answers("random_models.json");
    let mut failures = Vec::new();
    let mut compared = 0;
    for (file, case) in answers.as_object().unwrap() {
        // the large ones were recorded without their logits, and all their steps are ties
        if case["first_logits"].is_null() {
            continue;
        }
        let Some(path) = find_model("random_models_give_the_recorded_logits", file) else { continue };
        let (prompt, generated) = (ids(&case["prompt_ids"]), ids(&case["generated_ids"]));
        for isa in isas() {
            let mut session = open(&path, Some(isa), 64);
            let margin = margin_min(tolerance(file));
            let steps = steps(&case["steps"]);
            let (first, _) = teacher_force(&mut session, file, &prompt, &generated, &steps, margin);
            let (worst, at) = largest_difference(&first, &floats(&case["first_logits"]));
            eprintln!("{file} {}: largest difference {worst} at {at}", isa.name());
            if worst > tolerance(file) {
                failures.push(format!("{file} {}: logit {at} is off by {worst}", isa.name()));
            }
            compared += 1;
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(compared > 0, "no model was compared");
}

#[test]
fn one_token_at_a_time_gives_the_logits_of_the_whole_prompt() {
    let answers = known_answers("random_models.json");
    for file in ["tiny-llama-F16.gguf", "tiny-gemma3-Q8_0.gguf"] {
        let Some(path) = find_model("one_token_at_a_time_gives_the_logits_of_the_whole_prompt", file) else { continue };
        let prompt = ids(&answers[file]["prompt_ids"]);
        for isa in isas() {
            let mut session = open(&path, Some(isa), 64);
            let whole = session.forward(&prompt, farmgate_engine::model::Logits::Last).unwrap().to_vec();
            session.clear();
            let mut last = Vec::new();
            for id in &prompt {
                last = session.forward(&[*id], farmgate_engine::model::Logits::Last).unwrap().to_vec();
            }
            let (worst, at) = largest_difference(&last, &whole);
            assert!(worst < 1e-3, "{file} {}: logit {at} is off by {worst}", isa.name());
        }
    }
}
