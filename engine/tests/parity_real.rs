//! Real models, where they have been fetched: prompts, choices, logits and perplexity as recorded.

mod parity;

use farmgate_engine::model::Session;
use farmgate_engine::quality::{Window, perplexity};
use parity::*;
use serde_json::Value;

/// The recording engine disagrees with itself below this margin.
const MARGIN_MIN: f32 = 1.0;
/// First-step logits of the five likeliest tokens may be off by this much.
const TOP5_TOLERANCE: f32 = 0.7;
/// Perplexity may be off by this share.
const PPL_TOLERANCE: f64 = 0.01;

fn check(test: &str, answers: &str) {
    let recorded = known_answers(answers);
    let file = recorded["model_file"].as_str().unwrap();
    let Some(path) = find_model(test, file) else { return };
    let mut session = open(&path, None, 2048);
    for case in recorded["cases"].as_array().unwrap() {
        check_case(&mut session, case);
    }
    check_perplexity(&mut session, &recorded);
}

fn check_case(session: &mut Session, case: &Value) {
    let name = case["name"].as_str().unwrap();
    let (prompt, generated) = (ids(&case["prompt_ids"]), ids(&case["generated_ids"]));
    // the long case was recorded from ids alone
    if let Some(text) = case["prompt"].as_str() {
        let flag = |key: &str| case[key].as_bool().unwrap();
        let found = session.model().tokenizer().encode(text, flag("add_special"), flag("parse_special"));
        assert_eq!(found, prompt, "{name}");
    }
    let steps = steps(&case["steps_top1_top2"]);
    let (first, compared) = teacher_force(session, name, &prompt, &generated, &steps, MARGIN_MIN);
    let mut worst = 0f32;
    for top in case["top5_first"].as_array().unwrap() {
        let (id, logit) = (top["id"].as_u64().unwrap() as usize, top["logit"].as_f64().unwrap() as f32);
        let off = (first[id] - logit).abs();
        assert!(off < TOP5_TOLERANCE, "{name}: logit of {id} is {} instead of {logit}", first[id]);
        worst = worst.max(off);
    }
    eprintln!("{name}: {compared} of {} steps decided by more than {MARGIN_MIN}, top 5 within {worst}", steps.len());
    assert!(compared > 0, "{name}: nothing was compared");
}

fn check_perplexity(session: &mut Session, recorded: &Value) {
    let text = ids(&recorded["perplexity"]["ids"]);
    let part = |recording: &str, path: &[&str]| {
        let found = path.iter().fold(&recorded[recording], |value, key| &value[*key]);
        found["ppl"].as_f64()
    };
    let windows: [(&str, Window, &[&str]); 2] = [
        ("one window", Window::Whole, &["single_window"]),
        ("chunks of 512", Window::Chunks(512), &["chunked", "second_half_only"]),
    ];
    for (what, window, path) in windows {
        let found = perplexity(session, &text, window).unwrap();
        let expected = [part("perplexity", path), part("perplexity_f32_dequant", path)];
        let nearest = expected
            .into_iter()
            .flatten()
            .map(|e| found.ppl() / e - 1.0)
            .min_by(|a, b| a.abs().total_cmp(&b.abs()))
            .expect("a recorded perplexity");
        eprintln!("{what}: perplexity {} ± {}, {:+.3} %", found.ppl(), found.ppl_error(), nearest * 100.0);
        assert!(nearest.abs() < PPL_TOLERANCE, "{what}: {} against {expected:?}", found.ppl());
    }
}

#[test]
fn smollm2_135m_chooses_and_predicts_as_recorded() {
    check("smollm2_135m_chooses_and_predicts_as_recorded", "smollm2-135m-instruct-q4_1.json");
}

#[test]
fn qwen2_5_coder_0_5b_chooses_and_predicts_as_recorded() {
    check("qwen2_5_coder_0_5b_chooses_and_predicts_as_recorded", "qwen2.5-coder-0.5b-instruct-q4_k_m.json");
}
