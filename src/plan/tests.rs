use super::*;
use crate::config::Folders;
use crate::error::{Error, ExitCode};
use crate::run::ModelFacts;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// sha256 of tests/data/models/tiny-pd-1.3m-Q8_0.gguf, which has recorded answers.
const TINY_SHA256: &str = "3685765d32f9a03671233a34bd8050c8f075481024cc58f767e8f69112285c5d";

fn model(name: &str, sha256: &str, parameters: u64, context_tokens: Option<u32>) -> ModelFile {
    ModelFile {
        path: PathBuf::from(name),
        files: vec![PathBuf::from(name)],
        facts: ModelFacts {
            name: name.into(),
            sha256: vec![sha256.into()],
            file_bytes: parameters * 17 / 16,
            weight_bytes: parameters * 17 / 16,
            architecture: "llama".into(),
            parameters,
            weight_type: "Q8_0".into(),
        },
        context_tokens,
    }
}

fn tiny() -> ModelFile {
    model("tiny-pd-1.3m-Q8_0.gguf", TINY_SHA256, 1_311_744, Some(512))
}

fn unknown(context_tokens: Option<u32>) -> ModelFile {
    model("new.gguf", &"0".repeat(64), 134_515_008, context_tokens)
}

struct Shelf {
    inventory: Inventory,
    catalogue: Catalogue,
}

fn shelf() -> Shelf {
    let folders = Folders::under(Path::new("/nonexistent/project"));
    Shelf { inventory: Inventory::load(&folders).unwrap(), catalogue: Catalogue::load(&folders).unwrap() }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

fn resolve(
    shelf: &Shelf,
    scenarios: &[&str],
    candidate: &ModelFile,
    baseline: Option<&ModelFile>,
    overrides: Overrides,
) -> Result<Plan> {
    Plan::resolve(&Request {
        inventory: &shelf.inventory,
        catalogue: &shelf.catalogue,
        devices: &names(&["local"]),
        scenarios: &names(scenarios),
        candidate,
        baseline,
        overrides,
        engines: &[],
    })
}

fn usage(outcome: Result<Plan>) -> Error {
    let error = outcome.expect_err("this is refused");
    assert_eq!(error.exit(), ExitCode::Usage, "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    error
}

#[test]
fn a_comparison_reads_like_this() {
    let (old, new) = (tiny(), unknown(Some(2048)));
    let plan = resolve(&shelf(), &["smoke", "latency", "cold-start"], &new, Some(&old), Overrides::default()).unwrap();
    insta::assert_snapshot!(plan.to_string());
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["devices"][0]["cells"][41]["scenario"], "cold-start");
    assert_eq!(json["artefacts"][1]["sha256"][0], "0".repeat(64));
}

#[test]
fn a_run_without_a_baseline_reads_like_this() {
    let overrides = Overrides { repetitions: Some(3), threads: Some(4), ..Overrides::default() };
    let plan = resolve(&shelf(), &["smoke"], &tiny(), None, overrides).unwrap();
    insta::assert_snapshot!(plan.to_string());
}

#[test]
fn pairs_run_abba_baab_with_one_seed_and_one_configuration_for_both_arms() {
    let (old, new) = (tiny(), unknown(None));
    let overrides = Overrides { pairs: Some(4), ..Overrides::default() };
    let plan = resolve(&shelf(), &["smoke", "cold-start"], &new, Some(&old), overrides).unwrap();
    let cells = &plan.devices[0].cells;
    assert_eq!(cells.len(), 16);
    assert!(cells.iter().enumerate().all(|(i, c)| c.cell as usize == i));
    for scenario in ["smoke", "cold-start"] {
        let order: String = cells
            .iter()
            .filter(|c| c.scenario == scenario)
            .map(|c| if c.arm == Arm::Baseline { 'A' } else { 'B' })
            .collect();
        assert_eq!(order, "ABBABAAB");
    }
    for two in cells.chunks(2) {
        assert_eq!((two[0].slot, two[1].slot), (0, 1));
        assert_eq!((two[0].pair, two[0].seed, &two[0].config), (two[1].pair, two[1].seed, &two[1].config));
        assert_ne!(two[0].arm, two[1].arm);
    }
    assert_ne!(cells[0].seed, cells[2].seed, "another pair has other prompts");
}

#[test]
fn golden_answers_are_those_of_each_arms_own_model() {
    let (old, new) = (tiny(), unknown(None));
    let plan = resolve(&shelf(), &["smoke"], &new, Some(&old), Overrides::default()).unwrap();
    for cell in &plan.devices[0].cells {
        let cases = cell.steps.iter().find_map(|s| match s {
            Step::Golden { cases } => Some(cases.len()),
            _ => None,
        });
        assert_eq!(cases, Some(if cell.arm == Arm::Baseline { 4 } else { 0 }));
    }
    assert!(plan.notes.iter().any(|n| n.contains("no golden tokens recorded for this model (new.gguf)")));
}

#[test]
fn both_arms_get_the_context_of_the_smaller_model_and_what_does_not_fit_is_left_out_with_a_note() {
    let (old, new) = (tiny(), unknown(Some(8192)));
    let plan = resolve(&shelf(), &["latency"], &new, Some(&old), Overrides::default()).unwrap();
    assert!(plan.devices[0].cells.iter().all(|c| c.config.context_tokens == 512));
    let left = |n: u32| {
        plan.scenarios[0].steps.iter().any(|s| matches!(s, Step::Prefill { prompt_tokens, .. } if *prompt_tokens == n))
    };
    assert!(left(128) && left(512) && !left(2048));
    assert!(plan.notes.iter().any(|n| n.contains("`prefill 2048 tokens` left out")), "{:?}", plan.notes);
    let overrides = Overrides { context_tokens: Some(256), ..Overrides::default() };
    let plan = resolve(&shelf(), &["latency"], &new, None, overrides).unwrap();
    assert!(plan.scenarios[0].steps.iter().all(|s| crate::scenario::tokens_needed(s) <= 256));
}

#[test]
fn a_context_beyond_the_models_is_refused_when_it_was_typed() {
    let overrides = Overrides { context_tokens: Some(513), ..Overrides::default() };
    let error = usage(resolve(&shelf(), &["latency"], &tiny(), None, overrides));
    assert!(error.what().contains("513 tokens is beyond the 512"), "{error}");
}

#[test]
fn a_scenario_of_which_nothing_fits_is_refused() {
    let small = model("small.gguf", &"1".repeat(64), 1000, Some(16));
    let error = usage(resolve(&shelf(), &["latency"], &small, None, Overrides::default()));
    assert!(error.what().contains("no step of scenario `latency` fits into a context of 16 tokens"), "{error}");
}

#[test]
fn every_fault_of_a_request_is_said_before_anything_is_touched() {
    let shelf = shelf();
    let error = usage(Plan::resolve(&Request {
        inventory: &shelf.inventory,
        catalogue: &shelf.catalogue,
        devices: &names(&["locl", "local", "local"]),
        scenarios: &names(&["latancy", "smoke", "smoke"]),
        candidate: &tiny(),
        baseline: None,
        overrides: Overrides { pairs: Some(0), threads: Some(5000), ..Overrides::default() },
        engines: &[],
    }));
    let text = error.to_string();
    for part in [
        "0 pairs are asked for, outside 1 to 1000",
        "5000 threads are asked for, outside 0 to 1024",
        "pairs are asked for without a baseline",
        "unknown device `locl`",
        "device `local` is asked for twice",
        "unknown scenario `latancy`",
        "scenario `smoke` is asked for twice",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn an_unknown_scenario_gets_the_nearest_name() {
    let error = usage(resolve(&shelf(), &["latancy"], &tiny(), None, Overrides::default()));
    assert_eq!(error.hint_text(), Some("did you mean `latency`?"));
}

#[test]
fn a_request_for_nothing_is_refused() {
    let error = usage(resolve(&shelf(), &[], &tiny(), None, Overrides::default()));
    assert_eq!(error.what(), "no scenario is asked for");
}

#[test]
fn no_device_named_stands_for_every_registered_one() {
    let shelf = shelf();
    let candidate = tiny();
    let scenarios = names(&["smoke"]);
    let mut request = Request {
        inventory: &shelf.inventory,
        catalogue: &shelf.catalogue,
        devices: &[],
        scenarios: &scenarios,
        candidate: &candidate,
        baseline: None,
        overrides: Overrides::default(),
        engines: &[],
    };
    let facts = Plan::resolve(&request).unwrap().device_facts();
    assert_eq!((facts[0].device.as_str(), facts[0].transport.as_str()), ("local", "local"));
    let empty = Inventory::default();
    request.inventory = &empty;
    assert_eq!(usage(Plan::resolve(&request)).what(), "no device is registered");
}

#[test]
fn a_model_beyond_the_memory_that_the_inventory_states_is_refused_at_its_file() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("devices")).unwrap();
    std::fs::write(root.path().join("devices/local.toml"), "memory-mb = 64\n[transport.local]\n").unwrap();
    let folders = Folders::under(root.path());
    let shelf = Shelf { inventory: Inventory::load(&folders).unwrap(), catalogue: Catalogue::load(&folders).unwrap() };
    let error = usage(resolve(&shelf, &["smoke"], &unknown(None), None, Overrides::default()));
    assert!(error.what().contains("has 136 MiB, device `local` has 64 MiB"), "{error}");
    assert!(error.to_string().contains("devices/local.toml"), "{error}");
    assert!(resolve(&shelf, &["smoke"], &tiny(), None, Overrides::default()).is_ok());
}

#[test]
fn a_plan_that_would_outgrow_the_device_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("scenarios/golden");
    std::fs::create_dir_all(&folder).unwrap();
    let ids = vec!["7"; 200].join(", ");
    let mut text = format!("[[model]]\nname = \"new\"\nsha256 = [\"{}\"]\n", "0".repeat(64));
    for case in 0..25 {
        text += &format!("[[case]]\nname = \"c{case}\"\nprompt = \"p\"\nprompt-ids = [1]\ngenerated-ids = [{ids}]\n");
    }
    std::fs::write(folder.join("new.toml"), text).unwrap();
    let folders = Folders::under(root.path());
    let shelf = Shelf { inventory: Inventory::load(&folders).unwrap(), catalogue: Catalogue::load(&folders).unwrap() };
    let ask = |n| {
        resolve(&shelf, &["smoke"], &unknown(None), None, Overrides { repetitions: Some(n), ..Overrides::default() })
    };
    assert!(ask(800).is_ok());
    assert!(usage(ask(1000)).what().contains("5000000 ids of recorded answers, more than 4194304"));
}

#[test]
fn too_few_pairs_for_a_verdict_are_noted_before_the_run() {
    let overrides = Overrides { pairs: Some(4), ..Overrides::default() };
    let plan = resolve(&shelf(), &["smoke"], &tiny(), Some(&tiny()), overrides).unwrap();
    assert!(plan.notes.iter().any(|n| n.contains("4 pairs cannot support a verdict")), "{:?}", plan.notes);
    assert!(plan.notes.iter().any(|n| n.contains("same model")), "{:?}", plan.notes);
}

#[test]
fn the_device_plan_has_the_models_where_the_session_put_them_and_is_read_back_as_written() {
    let (old, new) = (tiny(), unknown(None));
    let plan = resolve(&shelf(), &["smoke"], &new, Some(&old), Overrides::default()).unwrap();
    let place = |name: &str, m: &ModelFile| ModelRef { path: format!("/m/{name}"), sha256: m.facts.sha256.clone() };
    let (candidate, baseline) = (place("new", &new), place("old", &old));
    let run = RunId::parse("r1").unwrap();
    let device_plan = plan.device_plan(0, &run, &candidate, Some(&baseline), Some(7)).unwrap();
    assert!(
        device_plan
            .cells
            .iter()
            .all(|c| c.model == if c.arm == Arm::Baseline { baseline.clone() } else { candidate.clone() })
    );
    assert_eq!((device_plan.protocol_version, device_plan.lease_token), (PROTOCOL_VERSION, Some(7)));
    let json = serde_json::to_string(&device_plan).unwrap();
    assert_eq!(serde_json::from_str::<DevicePlan>(&json).unwrap(), device_plan);
    assert_eq!(plan.device_plan(1, &run, &candidate, Some(&baseline), None).unwrap_err().exit(), ExitCode::Bug);
    assert_eq!(plan.device_plan(0, &run, &candidate, None, None).unwrap_err().exit(), ExitCode::Bug);
}

proptest! {
    #[test]
    fn a_plan_is_a_function_of_its_request_and_always_within_its_limits(
        pairs in proptest::option::of(any::<u32>()),
        threads in proptest::option::of(any::<u32>()),
        context_tokens in proptest::option::of(any::<u32>()),
        parameters in 1u64..1_000_000_000_000,
        context_length in proptest::option::of(any::<u32>()),
    ) {
        let shelf = shelf();
        let overrides = Overrides { pairs, repetitions: None, threads, context_tokens };
        let new = model("new.gguf", &"0".repeat(64), parameters, context_length);
        let ask = || resolve(&shelf, &["smoke", "latency", "cold-start"], &new, Some(&tiny()), overrides);
        match (ask(), ask()) {
            (Ok(a), Ok(b)) => {
                prop_assert_eq!(&a, &b);
                prop_assert!(a.devices[0].cells.len() as u64 <= CELLS_MAX);
                prop_assert!(a.devices[0].cells.iter().all(|c| c.cell_timeout_ms <= 86_400_000 && c.load_timeout_ms > 0));
                let _ = a.to_string();
            }
            (Err(a), Err(b)) => prop_assert_eq!(a.to_string(), b.to_string()),
            _ => prop_assert!(false, "the same request was answered in two ways"),
        }
    }
}
