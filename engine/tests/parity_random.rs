//! Random weights: every architecture and weight type gives the recorded logits.
//!
//! Random weights amplify rounding: one activation code that falls on the other side of a half moves logits by 0.1, and
//! the recording's own logits are off by 0.1 to 0.2 from what its weights say. So each file is also run with its weights
//! widened to F32, which rounds no activations: ours must be as near to that as the recording is, and as near to the
//! recording as that allows.

mod parity;

use farmgate_engine::kernels::Isa;
use farmgate_engine::model::Logits;
use parity::*;

/// What a logit may be off by if rounding does not explain more.
fn tolerance(file: &str) -> f32 {
    let exact = ["F32", "F16", "BF16"].iter().any(|t| file.ends_with(&format!("-{t}.gguf")));
    if exact { 0.01 } else { 0.05 }
}

/// Ours may be this much further from what the weights say than the recording is, in the mean over all logits.
const RMS_ALLOWANCE: f32 = 1.25;
/// Two roundings that have nothing to do with each other may err in opposite directions.
const MAX_ALLOWANCE: f32 = 2.0;
/// The recording itself must be this near to what the weights say (logits spread by 2): a type that is decoded wrongly
/// is off by more than 1.
const RECORDING_OFF_MAX: f32 = 0.25;

#[test]
fn random_models_give_the_recorded_logits() {
    let answers = known_answers("random_models.json");
    let folder = tempfile::tempdir().unwrap();
    let (mut failures, mut files) = (Vec::new(), 0);
    for (file, case) in answers.as_object().unwrap() {
        // the large ones were recorded without their logits, and all their steps are ties
        if case["first_logits"].is_null() {
            continue;
        }
        let Some(path) = find_model("random_models_give_the_recorded_logits", file) else { continue };
        files += 1;
        let (prompt, generated) = (ids(&case["prompt_ids"]), ids(&case["generated_ids"]));
        let recorded = floats(&case["first_logits"]);
        let exact = open(&widened(&path, folder.path()), Some(Isa::Scalar), 64)
            .forward(&prompt, Logits::Last)
            .unwrap()
            .to_vec();
        let (recording_off, at) = largest_difference(&recorded, &exact);
        assert!(recording_off < RECORDING_OFF_MAX, "{file}: the weights say {} for logit {at}", exact[at]);

        for form in forms() {
            let what = format!("{file} {}", form_name(form));
            let allowed = tolerance(file).max(MAX_ALLOWANCE * recording_off);
            let mut session = open_with(&path, form, 64);
            let steps = steps(&case["steps"]);
            let (ours, _) = teacher_force(&mut session, &what, &prompt, &generated, &steps, 2.0 * allowed);
            let (worst, at) = largest_difference(&ours, &recorded);
            let spread = [rms_difference(&ours, &exact), rms_difference(&recorded, &exact)];
            eprintln!(
                "{what}: off the recording by {worst:.4} of {allowed:.4}; off the weights by {:.4} rms, the recording by {:.4}",
                spread[0], spread[1]
            );
            if worst > allowed {
                failures.push(format!("{what}: logit {at} is off by {worst}, allowed {allowed}"));
            }
            if spread[0] > RMS_ALLOWANCE * spread[1] {
                failures.push(format!("{what}: {} rms off its weights, the recording only {}", spread[0], spread[1]));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(files >= 15, "only {files} of the committed models were found");
}

#[test]
fn one_token_at_a_time_gives_the_logits_of_the_whole_prompt() {
    let answers = known_answers("random_models.json");
    let folder = tempfile::tempdir().unwrap();
    for file in ["tiny-llama-Q8_0.gguf", "tiny-qwen3-Q8_0.gguf", "tiny-gemma3-Q8_0.gguf"] {
        let Some(path) = find_model("one_token_at_a_time_gives_the_logits_of_the_whole_prompt", file) else { continue };
        let path = widened(&path, folder.path());
        let prompt = ids(&answers[file]["prompt_ids"]);
        for form in forms() {
            let mut session = open_with(&path, form, 64);
            let whole = session.forward(&prompt, Logits::Last).unwrap().to_vec();
            session.clear();
            let mut last = Vec::new();
            for id in &prompt {
                last = session.forward(&[*id], Logits::Last).unwrap().to_vec();
            }
            // keys and values are rounded to half precision, and may fall on the other side of a half
            let (worst, at) = largest_difference(&last, &whole);
            assert!(worst < 3e-3, "{file} {}: logit {at} is off by {worst}", form_name(form));
        }
    }
}
