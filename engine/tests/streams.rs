//! What farmhand does when its stdout or stderr takes no more, and what it lets through to a terminal.

use std::process::{Command, Output, Stdio};

fn farmhand() -> Command {
    Command::new(env!("CARGO_BIN_EXE_farmhand"))
}

fn model() -> String {
    format!("{}/../tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// Command lines that print, one for each way of printing.
fn talkative() -> Vec<Vec<String>> {
    let bench = |format: &str| {
        ["bench", "-m", &model(), "-p", "4", "-n", "2", "-r", "1", "--no-model-hash", "-o", format]
            .map(String::from)
            .to_vec()
    };
    let mut all: Vec<Vec<String>> = ["md", "csv", "json", "jsonl"].map(bench).to_vec();
    all.push(["generate", "-m", &model(), "-p", "hi", "-n", "3"].map(String::from).to_vec());
    all.push(["tokenize", "-m", &model(), "hi"].map(String::from).to_vec());
    for words in [vec!["--help"], vec!["--version"], vec!["bench", "--help"], vec!["probe"]] {
        all.push(words.into_iter().map(String::from).collect());
    }
    all
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_reader_that_has_gone_had_enough() {
    for words in talkative() {
        let mut child =
            farmhand().args(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{words:?}: {}", said(&out));
        assert!(!said(&out).contains("panicked") && !said(&out).contains("error:"), "{words:?}: {}", said(&out));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_stdout_on_a_full_disk_is_an_error_and_a_stderr_there_is_none() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for words in talkative() {
        let out = farmhand().args(&words).stdout(full()).output().unwrap();
        assert_eq!(out.status.code(), Some(5), "{words:?}: {}", said(&out));
        assert!(said(&out).contains("error: cannot write to stdout"), "{words:?}: {}", said(&out));
        let out = farmhand().args(&words).stderr(full()).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{words:?}");
        assert!(!out.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_table_that_was_begun_is_ended_when_a_later_test_cannot_be() {
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    // a header as it should be and weights that are no numbers, which shows only when they are used
    let damaged = folder.path().join("damaged.gguf");
    let mut bytes = std::fs::read(&model).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xff);
    std::fs::write(&damaged, bytes).unwrap();
    let damaged = damaged.to_str().unwrap();
    let common = ["bench", "-p", "4", "-n", "0", "-r", "1", "--no-model-hash", "-o", "json"];
    let out = farmhand().args(common).args(["-m", &model, "-m", damaged]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert!(said(&out).contains("not finite numbers") && said(&out).contains("damaged.gguf"), "{}", said(&out));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).expect("whole JSON");
    assert_eq!(rows.len(), 1);
}

#[test]
fn no_escape_sequence_reaches_the_terminal_from_a_name() {
    for words in
        [["generate", "-p", "hi", "-m", "\u{1b}[31mred.gguf"], ["tokenize", "hi", "--no-bos", "-m", "\u{9b}2J.gguf"]]
    {
        let out = farmhand().args(words).output().unwrap();
        assert_ne!(out.status.code(), Some(0));
        assert!(!said(&out).contains(['\u{1b}', '\u{9b}']), "{:?}", said(&out));
        assert!(said(&out).contains("\\u{"), "{:?}", said(&out));
    }
}

#[test]
fn a_model_whose_name_has_lines_and_bars_begins_no_line_and_no_cell() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("a\nerror: b | c \u{1b}[31m\r.gguf");
    std::fs::copy(model(), &name).unwrap();
    let name = name.to_str().unwrap();
    let (trace, flags) = (folder.path().join("t\nerror: x"), ["-p", "4", "-n", "600", "-r", "1", "-m", name, "-o"]);
    for format in ["md", "csv"] {
        let mut command = farmhand();
        command.arg("bench").args(flags).arg(format).arg("--profile").arg(&trace);
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", said(&out));
        let text = String::from_utf8(out.stdout.clone()).unwrap() + &said(&out);
        assert!(!text.contains(['\u{1b}', '\r']) && !text.contains("\nerror:"), "{text}");
        assert!(text.contains("a\\u{a}error: b "), "{text}");
        assert!(format == "csv" || text.contains("b \\| c"), "{text}");
    }
    let out = farmhand().args(["bench", "-o", "json", "-p", "4", "-n", "0", "-r", "1", "-m", name]).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(rows[0]["model_filename"], name, "data keeps the name as it is");
    for verb in ["generate", "tokenize", "warm", "bench"] {
        let mut command = farmhand();
        command.args([verb, "-m", "no\nerror: such", if verb == "generate" { "-p" } else { "--" }, "hi"]);
        let out = command.output().unwrap();
        let lines = said(&out).lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!((out.status.success(), lines), (false, 1), "{verb}: {}", said(&out));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_argument_that_is_not_utf_8_is_refused_in_readable_words() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"m\xff\x1b[2J.gguf");
    let out = farmhand().args(["bench", "-m"]).arg(name).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(said(&out).contains("not UTF-8") && said(&out).contains("\nhint: "), "{}", said(&out));
    assert!(!out.stderr.contains(&0x1b) && !out.stderr.contains(&0xff), "{}", said(&out));
}

#[test]
fn a_wrong_flag_is_told_where_the_flags_of_its_verb_are_listed() {
    let verbs = "generate bench tokenize logits perplexity warm probe roofline run exec stop lease hash";
    for verb in verbs.split(' ') {
        let out = farmhand().args([verb, "--no-such-flag"]).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{verb}: {}", said(&out));
        assert!(said(&out).contains(&format!("\nhint: `farmhand {verb} --help` ")), "{verb}: {}", said(&out));
    }
    let out = farmhand().args(["measure", "--no-such-flag"]).output().unwrap();
    assert!(said(&out).contains("\nhint: `farmhand --help` lists the verbs"), "{}", said(&out));
}

#[test]
fn shares_and_seeds_that_are_none_are_refused_at_any_temperature() {
    let model = model();
    for bad in [["--seed", "abc"], ["--top-p", "nan"], ["--top-p", "2"], ["--min-p", "-1"]] {
        for temperature in ["0", "1"] {
            let out = farmhand()
                .args(["generate", "-m", &model, "-p", "hi", "-n", "1", "--temp", temperature])
                .args(bad)
                .output()
                .unwrap();
            assert_eq!(out.status.code(), Some(2), "{bad:?} at {temperature}: {}", said(&out));
        }
    }
}
