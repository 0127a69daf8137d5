use super::*;
use serde_json::Value;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn shipped() -> Catalogue {
    Catalogue::load(&Folders::under(Path::new("/nonexistent/project"))).expect("the built-in files load")
}

#[test]
fn the_scenarios_that_ship_load_without_a_project() {
    let catalogue = shipped();
    let names: Vec<&str> = catalogue.scenarios().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["cold-start", "latency", "smoke"]);
    let latency = catalogue.find("latency").unwrap();
    assert!(matches!(latency.steps[1], Step::WarmUp { .. }), "warm-up comes before anything that is measured");
    let prompts: Vec<u32> = latency
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Prefill { prompt_tokens, .. } => Some(*prompt_tokens),
            _ => None,
        })
        .collect();
    assert_eq!(prompts, [128, 512, 2048]);
    assert!(latency.steps.contains(&Step::Decode { decode_tokens: 128, at_depth: 0, repetitions: 1 }));
}

#[test]
fn the_recorded_answers_that_ship_are_those_of_the_parity_file_and_of_the_model_files() {
    let text = std::fs::read_to_string(format!("{ROOT}/tests/data/parity/tiny-pd-1.3m.json")).unwrap();
    let parity: Value = serde_json::from_str(&text).unwrap();
    let catalogue = shipped();
    for name in ["Q8_0", "Q4_0", "Q4_K_M", "f16"].map(|t| format!("tiny-pd-1.3m-{t}.gguf")) {
        let path = Path::new(ROOT).join("tests/data/models").join(&name);
        let sha256 = vec![farmgate_engine::hash::sha256_file(&path).unwrap()];
        let cases = catalogue.golden_cases(&sha256);
        assert_eq!(cases.len(), 4, "{name}");
        for case in cases {
            let recorded = parity["files"][&name]["cases"]
                .as_array()
                .unwrap()
                .iter()
                .find(|c| c["name"] == case.name.as_str())
                .unwrap_or_else(|| panic!("{} is in the parity file", case.name));
            assert_eq!(recorded["prompt"], case.prompt.as_str());
            assert_eq!(recorded["prompt_ids"], serde_json::json!(case.prompt_ids));
            assert_eq!(recorded["generated_ids"], serde_json::json!(case.generated_ids));
        }
    }
}

#[test]
fn a_model_without_recorded_answers_has_no_cases() {
    assert!(shipped().golden_cases(&["0".repeat(64)]).is_empty());
}

#[test]
fn the_room_a_step_needs_counts_prompt_and_answer() {
    assert_eq!(tokens_needed(&Step::Prefill { prompt_tokens: 512, repetitions: 3 }), 512);
    assert_eq!(tokens_needed(&Step::Decode { decode_tokens: 128, at_depth: 0, repetitions: 1 }), 128);
    assert_eq!(tokens_needed(&Step::Decode { decode_tokens: 128, at_depth: 256, repetitions: 1 }), 383);
    let huge = Step::WarmUp { prompt_tokens: u32::MAX, decode_tokens: u32::MAX };
    assert_eq!(tokens_needed(&huge), 2 * u64::from(u32::MAX) - 1);
}

fn scenario(keys: &str) -> Result<Scenario> {
    let text = format!(
        "summary = \"s\"\nrepetitions = 1\npairs = 5\ntimeout-s = 60\n{keys}\n[[step]]\nload = {{}}\n\n\
         [[step]]\ndecode = {{ decode-tokens = 8 }}\n"
    );
    Scenario::from_document(&Document::new("scenarios/s.toml", text))
}

#[test]
fn types_of_cached_keys_and_values_are_read_together_or_apart_and_a_policy_must_fit_the_context() {
    let types = |keys: &str| {
        let config = scenario(keys).unwrap().config;
        (config.kv_type, config.value_type(), config.kv_policy.to_string())
    };
    let full = || "full".to_owned();
    assert_eq!(types(""), (KvType::F16, KvType::F16, full()));
    assert_eq!(types("kv-type = \"q8_0\""), (KvType::Q8_0, KvType::Q8_0, full()));
    assert_eq!(types("kv-type-k = \"q8_0\""), (KvType::Q8_0, KvType::F16, full()));
    assert_eq!(types("kv-type-v = \"q4_0\""), (KvType::F16, KvType::Q4_0, full()));
    let apart = "kv-type-k = \"q8_0\"\nkv-type-v = \"q4_0\"\nkv-policy = \"sink:4+252\"";
    assert_eq!(types(apart), (KvType::Q8_0, KvType::Q4_0, "sink:4+252".to_owned()));
    for (keys, expected) in [
        (
            "kv-type = \"f16\"\nkv-type-v = \"q8_0\"",
            "`kv-type` and `kv-type-v` both name a cache type\n  --> scenarios/s.toml:6:",
        ),
        ("kv-policy = \"ring:3\"", "unknown kv policy `ring:3`"),
        (
            "context-tokens = 64\nkv-policy = \"window:65\"",
            "keeps 0 + 65 positions does not fit a context of 64\n  --> scenarios/s.toml:6:",
        ),
    ] {
        let fault = scenario(keys).unwrap_err().to_string();
        assert!(fault.contains(expected) && fault.contains("hint: "), "{keys}: {fault}");
    }
}

#[test]
fn cores_are_read_in_their_order_and_faults_point_at_their_key() {
    let read = scenario("threads-batch = 2\ncpus = \"6-7,0\"\nmlock = true").unwrap().config;
    assert_eq!((read.cpus.cpus(), read.threads, read.threads_batch, read.mlock), (&[6, 7, 0][..], 0, 2, true));
    let clusters = scenario("cpu-clusters = \"little\"").unwrap().config.cpu_clusters;
    assert_eq!(clusters, Some(CpuClusters::Little));
    for (keys, expected) in [
        (
            "cpus = \"0-3\"\ncpu-clusters = \"big\"",
            "`cpus` and `cpu-clusters` both name cores\n  --> scenarios/s.toml:6:",
        ),
        ("cpus = \"0-3\"\nthreads = 5", "5 threads do not fit the 4 cores of `cpus`\n  --> scenarios/s.toml:6:"),
        ("cpus = \"0-\"", "`0-` is neither a core below 4096"),
        ("cpu-clusters = \"prime\"", "scenarios/s.toml:5:"),
        ("threads-batch = 5000", "threads-batch"),
    ] {
        let fault = scenario(keys).unwrap_err().to_string();
        assert!(fault.contains(expected), "{keys}: {fault}");
    }
}
