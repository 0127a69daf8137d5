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
    // so many workers are refused when the second test opens its session
    let words =
        ["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "--no-model-hash", "-o", "json", "-t", "1,999"];
    let out = farmhand().args(words).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
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
