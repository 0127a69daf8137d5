//! Every mistake in a file that users edit: one clear error with place and hint, exit code 2.

use farmgate::config::{Document, Folders};
use farmgate::device::{Device, Inventory, TransportConfig};
use farmgate::error::{Error, ExitCode, Place};
use farmgate::policy::Policy;
use farmgate::scenario::{Catalogue, Scenario};
use proptest::prelude::*;
use std::path::Path;

/// The error as shown, which must be a usage error and carry a place.
fn shown<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    let error = outcome.expect_err("this is refused");
    assert_eq!(error.exit(), ExitCode::Usage, "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    error.to_string()
}

fn device(text: &str) -> Result<Device, Error> {
    Device::from_document(&Document::new("devices/phone.toml", text))
}

fn scenario(text: &str) -> Result<Scenario, Error> {
    Scenario::from_document(&Document::new("scenarios/mine.toml", text))
}

fn policy(text: &str) -> Result<Policy, Error> {
    Policy::from_document(&Document::new("scenarios/policies/mine.toml", text), &["smoke", "latency"])
}

/// A scenario that is right, with `steps` after its load.
fn scenario_with(steps: &str) -> Result<Scenario, Error> {
    scenario(&format!(
        "summary = \"s\"\nrepetitions = 1\npairs = 1\ntimeout-s = 9\ncontext-tokens = 512\n[[step]]\nload = {{}}\n{steps}"
    ))
}

/// A project folder with these files.
fn project(files: &[(&str, &str)]) -> (tempfile::TempDir, Folders) {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    let folders = Folders::under(root.path());
    (root, folders)
}

#[test]
fn what_a_device_needs_to_be_fit_is_read_from_its_file_and_checked() {
    let fit = device(
        "telemetry-period-ms = 250\nlink-loss-max-s = 900\n[ready]\ntemperature-margin-c = 5\nidle-temperature-c = 31.5\n\
         thermal-status = true\ncool-down-timeout-s = 90\n[transport.local]\n",
    )
    .expect("this is right");
    assert_eq!((fit.telemetry_period_ms, fit.link_loss_max_s), (250, 900));
    assert_eq!((fit.ready.cool_down_timeout_ms, fit.ready.poll_period_ms), (90_000, 1_000));
    assert_eq!(fit.ready.idle_temperature_c.map(|c| c.get()), Some(31.5));
    assert!(fit.ready.thermal_status && !fit.ready.is_off());
    let plain = device("[transport.local]").expect("this is right");
    assert!(plain.ready.is_off() && plain.telemetry_period_ms == 1000);
    for (line, part) in [
        ("temperature-max = 40", "did you mean `temperature-max-c`"),
        ("clock-ratio-min = 80", "3:19"),
        ("battery-percent-min = 101", "3:23"),
        ("idle-temperature-c = 31", "asks nothing without `temperature-margin-c`"),
        ("cool-down-timeout-s = 0", "3:23"),
    ] {
        let told = shown(device(&format!("[transport.local]\n[ready]\n{line}\n")));
        assert!(told.contains(part), "{line}: {told}");
    }
    let silent = shown(device("telemetry-period-ms = 0\n[ready]\nthermal-status = true\n[transport.local]\n"));
    assert!(silent.contains("telemetry"), "{silent}");
}

#[test]
fn a_device_that_is_right_loads_with_all_its_keys() {
    let phone = device(
        "labels = [\"phone\", \"arm64\"]\ntier = \"high\"\nshare-percent = 12.5\nmemory-mb = 8192\nworkdir = \"/var/tmp/f\"\n\
         target = \"aarch64-unknown-linux-musl\"\nremarks = \"shelf 3\"\n[transport.ssh]\nhost = \"h\"\nport = 2222\n",
    )
    .expect("this is right");
    assert_eq!(phone.name, "phone");
    let TransportConfig::Ssh(ssh) = &phone.transport else { panic!("{phone:?}") };
    assert_eq!((ssh.port, ssh.connect_timeout_ms), (Some(2222), 10_000));
    let phone = device("[transport.adb]\nserial = \"10.0.0.9:5555\"").expect("this is right");
    let TransportConfig::Adb(adb) = &phone.transport else { panic!("{phone:?}") };
    assert_eq!((adb.program.as_str(), adb.server_port, adb.connect_timeout_ms), ("adb", None, 10_000));
    assert_eq!(phone.transport.to_string(), "adb 10.0.0.9:5555");
}

#[test]
fn every_mistake_in_a_device_file_is_shown_at_its_place_with_a_hint() {
    let table: &[(&str, &str, &str)] = &[
        ("[transport.shh]\nhost = \"h\"", "unknown word `shh`\n  --> devices/phone.toml:1:12", "did you mean `ssh`?"),
        ("[transport.ssh]\nhosst = \"h\"", "unknown key `hosst`\n  --> devices/phone.toml:2:1", "did you mean `host`?"),
        ("[transport.ssh]\nport = 22", "missing key `host`\n  --> devices/phone.toml:1:1", "add `host`"),
        ("[transport.ssh]\nhost = 7", "wrong type: integer `7`", "devices/phone.toml:2:8"),
        ("[transport.ssh]\nhost = \"h\"\nport = 70000", "value out of range: integer `70000`", "phone.toml:3:8"),
        ("[transport.ssh]\nhost = \"\"", "`host` of this ssh transport", "phone.toml:1:"),
        ("[transport.ssh]\nhost = \"-oProxyCommand=x\"", "`host` of this ssh transport", "phone.toml:1:"),
        (
            "[transport.adb]\nserail = \"x\"",
            "unknown key `serail`\n  --> devices/phone.toml:2:1",
            "did you mean `serial`?",
        ),
        ("[transport.adb]\nprogram = \"adb\"", "missing key `serial`\n  --> devices/phone.toml:1:1", "add `serial`"),
        ("[transport.adb]\nserial = \"-s\"", "`serial` of this adb transport cannot be `-s`", "phone.toml:1:"),
        ("[transport.adb]\nserial = \"a b\"", "`serial` of this adb transport cannot be `a b`", "phone.toml:1:"),
        ("[transport.adb]\nserial = \"a\"\nprogram = \"\"", "`program` of this adb transport", "phone.toml:1:"),
        (
            "[transport.adb]\nserial = \"a\"\nserver-port = 0",
            "`server-port` of this adb transport is 0",
            "phone.toml:1:",
        ),
        ("[transport.adb]\nserial = \"a\"\nserver-port = \"x\"", "wrong type: text \"x\"", "phone.toml:3:15"),
        ("[transport.adb]\nserial = \"a\"\nconnect-timeout-ms = 5", "`connect-timeout-ms` is 5", "phone.toml:1:"),
        ("[transport.abd]\nserial = \"a\"", "unknown word `abd`\n  --> devices/phone.toml:1:12", "did you mean `adb`?"),
        ("[transport.local]\nhost = \"h\"", "unknown key `host`", "phone.toml:2:1"),
        ("[transport.local]\n[transport.ssh]\nhost = \"h\"", "exactly one kind", "phone.toml:"),
        ("label = [\"a\"]\n[transport.local]", "unknown key `label`\n  --> devices/phone.toml:1:1", "`labels`?"),
        ("labels = [\"a\", \"B C\"]\n[transport.local]", "`B C` is not a label", "phone.toml:1:16"),
        ("labels = [\"a\", \"a\"]\n[transport.local]", "label `a` is there twice", "phone.toml:1:16"),
        ("labels = \"a\"\n[transport.local]", "wrong type: text \"a\"", "phone.toml:1:10"),
        ("name = \"My Phone\"\n[transport.local]", "`My Phone` is not a name for a device", "phone.toml:1:8"),
        ("share-percent = nan\n[transport.local]", "`share-percent` is NaN, outside 0 to 100", "phone.toml:1:17"),
        ("share-percent = inf\n[transport.local]", "`share-percent` is inf, outside 0 to 100", "phone.toml:1:17"),
        ("share-percent = -1.0\n[transport.local]", "`share-percent` is -1, outside 0 to 100", "phone.toml:1:17"),
        ("memory-mb = 0\n[transport.local]", "`memory-mb` is 0, outside 1 to 1073741824", "phone.toml:1:13"),
        ("workdir = \"../x\"\n[transport.local]", "leads upwards", "phone.toml:1:11"),
        ("target = \"arm\"\n[transport.local]", "`arm` is not a Rust target", "phone.toml:1:10"),
        ("remarks = \"a\\nb\"\n[transport.local]", "`remarks` is not one line of text", "phone.toml:1:11"),
        ("labels = []", "missing key `transport`", "phone.toml:1:1"),
        ("", "missing key `transport`", "phone.toml:1:1"),
    ];
    for (text, what, also) in table {
        let shown = shown(device(text));
        assert!(shown.contains(what) && shown.contains(also), "{text:?} gave\n{shown}");
    }
}

#[test]
fn every_mistake_in_a_scenario_is_shown_at_its_place_with_a_hint() {
    let table: &[(&str, &str, &str)] = &[
        ("[[step]]\nprefil = {}", "unknown word `prefil`\n  --> scenarios/mine.toml:9:1", "did you mean `prefill`?"),
        ("[[step]]\nprefill = { tokens = 3 }", "unknown key `tokens`", "mine.toml:9:13"),
        ("[[step]]\nprefill = {}", "missing key `prompt-tokens`", "mine.toml:9:"),
        ("[[step]]\nprefill = { prompt-tokens = \"many\" }", "wrong type: text \"many\"", "mine.toml:9:29"),
        ("[[step]]\nprefill = 3", "wrong type: integer `3`, expected a table", "mine.toml:9:11"),
        ("[[step]]\nprefill = { prompt-tokens = 0 }", "`prompt-tokens` is 0, outside 1 to 1048576", "mine.toml:8:1"),
        (
            "[[step]]\nprefill = { prompt-tokens = 9, repetitions = 0 }",
            "`repetitions` is 0, outside 1 to",
            "mine.toml:8:",
        ),
        ("[[step]]\nprefill = { prompt-tokens = -5 }", "value out of range: integer `-5`", "mine.toml:9:29"),
        ("[[step]]\nprefill = { prompt-tokens = 4000000000 }", "4000000000, outside 1 to 1048576", "mine.toml:8:"),
        ("[[step]]\nprefill = { prompt-tokens = 99999999999999999999 }", "value out of range", "mine.toml:9:29"),
        (
            "[[step]]\nprefill = { prompt-tokens = 513 }",
            "this `prefill` step needs 513 tokens",
            "raise `context-tokens`",
        ),
        ("[[step]]\ndecode = { decode-tokens = 1 }", "`decode-tokens` is 1, outside 2 to 65536", "mine.toml:8:"),
        ("[[step]]\ndecode = { decode-tokens = 3, at-depth = 511 }", "needs 513 tokens", "mine.toml:8:"),
        ("[[step]]\nload = {}", "a second `load` step", "mine.toml:8:"),
        ("[[step]]", "exactly one kind", "mine.toml:8:"),
        ("[[step]]\ngolden = {}\nload = {}", "exactly one kind", "mine.toml:"),
        ("[[step]]\nanswer = { label = \"7\", prompt-tokens = 1, decode-tokens = 2 }", "not a label", "mine.toml:8:"),
        (
            "[[step]]\nprefill = { prompt-tokens = 9 }\n[[step]]\nprefill = { prompt-tokens = 9 }",
            "two steps would fill the series `prefill-tps@9`",
            "mine.toml:10:1",
        ),
        (
            "[[step]]\ngolden = { cases = [{ name = \"a\", prompt = \"b\", prompt-ids = [1], generated-ids = [1] }] }",
            "recorded answers do not belong into a scenario",
            "mine.toml:8:",
        ),
    ];
    for (steps, what, also) in table {
        let shown = shown(scenario_with(steps));
        assert!(shown.contains(what) && shown.contains(also), "{steps:?} gave\n{shown}");
    }
}

#[test]
fn a_scenario_must_have_steps_begin_with_load_and_state_sane_numbers() {
    let head = "summary = \"s\"\nrepetitions = 1\npairs = 1\ntimeout-s = 9\n";
    let table: &[(String, &str, &str)] = &[
        (head.into(), "this scenario has no steps", "mine.toml:1:1"),
        (format!("{head}[[step]]\ngolden = {{}}"), "the first step is `golden`, not `load`", "mine.toml:5:1"),
        (head.replace("repetitions = 1", "repetitions = 0"), "`repetitions` is 0, outside 1 to 1000", "mine.toml:2:15"),
        (head.replace("pairs = 1", "pairs = 100000"), "`pairs` is 100000, outside 1 to 1000", "mine.toml:3:9"),
        (head.replace("timeout-s = 9", "timeout-s = 0"), "`timeout-s` is 0, outside 1 to 86400", "mine.toml:4:13"),
        (head.replace("timeout-s = 9", "timeout = 9"), "unknown key `timeout`", "mine.toml:4:1"),
        (head.replace("pairs = 1", "pairs = 1.5"), "wrong type: number `1.5`", "mine.toml:3:9"),
        (format!("threads = 5000\n{head}"), "`threads` is 5000, outside 0 to 1024", "mine.toml:1:11"),
        (format!("kv-type = \"q3\"\n{head}"), "unknown word `q3`", "mine.toml:1:11"),
        (format!("seed = -1\n{head}"), "value out of range: integer `-1`", "mine.toml:1:8"),
        (format!("name = \"../x\"\n{head}"), "`../x` is not a name for a scenario", "mine.toml:1:8"),
        (format!("question = \"\"\n{head}"), "`question` is not one line of text", "mine.toml:1:12"),
        (head.replace("summary = \"s\"\n", ""), "missing key `summary`", "mine.toml:1:1"),
    ];
    for (text, what, also) in table {
        let shown = shown(scenario(text));
        assert!(shown.contains(what) && shown.contains(also), "{text:?} gave\n{shown}");
    }
}

#[test]
fn every_mistake_in_a_policy_is_shown_at_the_line_of_its_rule_with_a_hint() {
    let good = "[[rule]]\nname = \"first\"\nmetric = \"decode-tps\"\nseverity = \"critical\"\nat-least = 1\n[[rule]]\nname = \"r\"\n";
    let table: &[(&str, &str, &str)] = &[
        ("metric = \"decode-tsp\"\nseverity = \"inform\"\nat-least = 1", "decode-tsp", "mine.toml:8:10"),
        (
            "metric = \"decode-tsp\"\nseverity = \"inform\"\nat-least = 1",
            "did you mean `decode-tps`?",
            "mine.toml:8:10",
        ),
        ("metric = \"ttft-ms@\"\nseverity = \"inform\"\nat-most = 1", "no qualifier", "mine.toml:8:10"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"", "rule `r` demands nothing", "mine.toml:6:1"),
        ("severity = \"inform\"\nat-least = 1", "missing key `metric`", "mine.toml:6:1"),
        ("metric = \"ttft-ms\"\nseverity = \"fatal\"\nat-least = 1", "unknown word `fatal`", "mine.toml:9:12"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"\nat-lest = 1", "did you mean `at-least`?", "mine.toml:10:1"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"\nat-least = nan", "`at-least` is NaN", "mine.toml:10:12"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = inf", "`at-most` is inf", "mine.toml:10:11"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = -1", "`at-most` is -1", "mine.toml:10:11"),
        ("metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = \"9\"", "wrong type: text \"9\"", "mine.toml:10:11"),
        (
            "metric = \"ttft-ms\"\nseverity = \"inform\"\nat-least = 9\nat-most = 8.5",
            "`at-least` 9 is above `at-most` 8.5",
            "mine.toml:10:12",
        ),
        (
            "metric = \"decode-tps\"\nseverity = \"inform\"\nregression-percent-max = 100",
            "`regression-percent-max` is 100, outside 0 to 99",
            "mine.toml:10:26",
        ),
        (
            "metric = \"ttft-ms\"\nseverity = \"inform\"\nregression-percent-max = -3",
            "`regression-percent-max` is -3, outside 0 to 1000",
            "mine.toml:10:26",
        ),
        (
            "metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = 1\nscenario = \"smok\"",
            "`smok`",
            "did you mean `smoke`?",
        ),
        (
            "metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = 1\ndevices = \"a & (\"",
            "label expression",
            "mine.toml:11:11",
        ),
    ];
    for (rule, what, also) in table {
        let shown = shown(policy(&format!("{good}{rule}")));
        assert!(shown.contains(what) && shown.contains(also), "{rule:?} gave\n{shown}");
    }
    assert!(shown(policy(&good.replace("\"r\"", "\"first\""))).contains("missing key `metric`"));
    let twice = format!("{good}metric = \"ttft-ms\"\nseverity = \"inform\"\nat-most = 1").replace("\"r\"", "\"first\"");
    let twice = shown(policy(&twice));
    assert!(twice.contains("rule `first` is there twice") && twice.contains("mine.toml:7:8"), "{twice}");
    assert!(shown(policy("")).contains("this policy has no rules"));
}

#[test]
fn the_policies_that_ship_load_without_a_project_and_an_unknown_one_gets_the_nearest_name() {
    let folders = Folders::under(Path::new("/nonexistent/project"));
    for name in ["default", "demo-latency", "demo-smoke"] {
        let policy = Policy::load(&folders, name).expect("built in");
        assert_eq!(policy.name, name);
        let golden = policy.rules.iter().any(|r| r.metric == "golden-match-ratio" && r.at_least == Some(1.0));
        assert_eq!(golden, name != "demo-latency");
    }
    let error = Policy::load(&folders, "defualt").unwrap_err();
    assert_eq!((error.exit(), error.hint_text()), (ExitCode::Usage, Some("did you mean `default`?")));
    let missing = shown(Policy::load(&folders, "/nonexistent/p.toml"));
    assert!(missing.contains("cannot read file") && missing.contains("/nonexistent/p.toml"), "{missing}");
}

#[test]
fn a_fault_in_any_policy_of_the_project_is_reported_whichever_is_asked_for() {
    let (_root, folders) = project(&[("scenarios/policies/other.toml", "[[rule]]\nnme = 1\n")]);
    let text = shown(Policy::load(&folders, "default"));
    assert!(text.contains("other.toml:2:1") && text.contains("did you mean `name`?"), "{text}");
}

#[test]
fn two_devices_of_one_name_are_refused_with_both_places() {
    let (_root, folders) = project(&[
        ("devices/a.toml", "[transport.local]\n"),
        ("devices/b.toml", "labels = []\nname = \"a\"\n[transport.local]\n"),
    ]);
    let error = Inventory::load(&folders).unwrap_err();
    assert_eq!(error.what(), "device `a` is registered twice");
    let Some(Place::File { path, line: 2, column: 8 }) = error.place() else { panic!("{error}") };
    assert!(path.ends_with("devices/b.toml"), "{path}");
    assert!(error.hint_text().unwrap().contains("devices/a.toml:1:1"), "{error}");
}

const SCENARIO: &str = "summary = \"s\"\nrepetitions = 1\npairs = 1\ntimeout-s = 9\n[[step]]\nload = {}\n";

#[test]
fn two_scenarios_of_one_name_are_refused_and_a_built_in_one_is_replaced_by_its_file_name_only() {
    let named = format!("name = \"twin\"\n{SCENARIO}");
    let (_root, folders) = project(&[("scenarios/twin.toml", SCENARIO), ("scenarios/zwilling.toml", &named)]);
    let error = Catalogue::load(&folders).unwrap_err();
    assert_eq!(error.what(), "scenario `twin` is there twice");
    assert!(error.to_string().contains("zwilling.toml:1:8"), "{error}");

    let named = format!("name = \"smoke\"\n{SCENARIO}");
    let (_root, folders) = project(&[("scenarios/zwilling.toml", &named)]);
    let text = shown(Catalogue::load(&folders));
    assert!(text.contains("zwilling.toml:1:8") && text.contains("name the file smoke.toml"), "{text}");

    let (_root, folders) = project(&[("scenarios/smoke.toml", SCENARIO)]);
    let catalogue = Catalogue::load(&folders).expect("this is right");
    assert_eq!(catalogue.find("smoke").unwrap().steps.len(), 1);
    assert!(catalogue.find("latency").is_ok(), "the others are still there");
}

#[test]
fn a_project_with_a_devices_folder_has_exactly_the_devices_in_it() {
    let (_root, folders) = project(&[]);
    let names = |i: &Inventory| i.devices().iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&Inventory::load(&folders).unwrap()), ["local"]);
    let (_root, folders) = project(&[("devices/rk3588.toml", "[transport.ssh]\nhost = \"rk\"\n")]);
    let inventory = Inventory::load(&folders).unwrap();
    assert_eq!(names(&inventory), ["rk3588"]);
    assert!(shown(inventory.find("local")).contains("registered are: rk3588"));
    assert!(shown(inventory.find("rk3558")).contains("did you mean `rk3588`?"));
    std::fs::remove_file(folders.devices.join("rk3588.toml")).unwrap();
    assert!(shown(Inventory::load(&folders).unwrap().find("local")).contains("registers no device"));
}

#[test]
fn all_files_are_checked_and_all_faults_are_said_in_one_go() {
    let (_root, folders) = project(&[
        ("scenarios/a.toml", "summary = 3"),
        ("scenarios/b.toml", &SCENARIO.replace("pairs = 1", "pairs = 0")),
        ("scenarios/C.toml", SCENARIO),
        ("scenarios/golden/g.toml", "[[model]]\nname = \"m\"\nsha256 = [\"xyz\"]\n"),
    ]);
    let text = shown(Catalogue::load(&folders));
    for part in ["C.toml:1:1", "a.toml:1:11", "b.toml:3:9", "golden/g.toml:3:10", "g.toml:1:1"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn the_same_model_in_two_golden_files_is_refused() {
    let golden = format!(
        "[[model]]\nname = \"m\"\nsha256 = [\"{}\"]\n[[case]]\nname = \"c\"\nprompt = \"p\"\nprompt-ids = [1]\ngenerated-ids = [2]\n",
        "a".repeat(64)
    );
    let (_root, folders) = project(&[("scenarios/golden/g.toml", &golden), ("scenarios/golden/h.toml", &golden)]);
    let text = shown(Catalogue::load(&folders));
    assert!(text.contains("answers are recorded twice") && text.contains("h.toml:3:10"), "{text}");
}

#[test]
fn a_folder_that_is_a_file_is_a_usage_error() {
    let (root, folders) = project(&[("devices", "")]);
    assert!(shown(Inventory::load(&folders)).contains("cannot read folder"), "{}", root.path().display());
}

/// Text made of the words that these files are made of, so that many get past the syntax.
fn toml_like() -> impl Strategy<Value = String> {
    let words = [
        "[[step]]\n",
        "[transport.ssh]\n",
        "[transport.local]\n",
        "[[rule]]\n",
        "[[model]]\n",
        "[[case]]\n",
        "load = {}\n",
        "summary = \"s\"\n",
        "name = \"x\"\n",
        "host = \"\"\n",
        "pairs = 1\n",
        "repetitions = 1\n",
        "timeout-s = 1\n",
        "decode = { decode-tokens = 4294967295, at-depth = 4294967295 }\n",
        "metric = \"decode-tps@\"\n",
        "at-least = nan\n",
        "regression-percent-max = inf\n",
        "devices = \"((((\"\n",
        "sha256 = []\n",
        "severity = \"critical\"\n",
    ];
    let word = prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    proptest::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics_a_loader(text in toml_like()) {
        let _ = device(&text);
        let _ = scenario(&text);
        let _ = scenario_with(&text);
        let _ = policy(&text);
    }
    #[test]
    fn arbitrary_files_never_panic_the_inventory_or_the_catalogue(text in toml_like()) {
        let (_root, folders) = project(&[
            ("devices/a.toml", &text), ("scenarios/a.toml", &text), ("scenarios/golden/a.toml", &text),
        ]);
        let _ = Inventory::load(&folders);
        let _ = Catalogue::load(&folders);
    }
}

#[test]
fn the_projects_own_files_load() {
    let folders = Folders::under(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(Inventory::load(&folders).unwrap().find("local").is_ok());
    assert!(Catalogue::load(&folders).unwrap().find("smoke").is_ok());
}

#[test]
fn the_example_devices_and_the_example_scenario_of_the_readmes_load() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("there");
    let example = |text: &str, begin: &str| {
        let at = text.find(begin).unwrap_or_else(|| panic!("{begin} is in the text"));
        text[at..].split("```").next().expect("a first part").to_owned()
    };
    let devices = read("devices/README.md");
    for begin in ["[transport.local] ", "[transport.ssh] ", "[transport.adb] ", "labels = [\"board\""] {
        device(&example(&devices, begin)).unwrap_or_else(|e| panic!("{begin}: {e}"));
    }
    let scenarios = read("scenarios/README.md");
    scenario(&example(&scenarios, "summary = \"decode speed deep")).unwrap_or_else(|e| panic!("{e}"));
}
