//! What rows of `farmhand bench` tell apart, and what it looks at before it measures.

use std::process::{Command, Output};

fn bench(words: &[&str]) -> Output {
    let model = format!("{}/../tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"));
    let common = ["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "-t", "1", "--no-model-hash"];
    Command::new(env!("CARGO_BIN_EXE_farmhand")).args(common).args(words).output().unwrap()
}

/// The cells of a Markdown table's column, top to bottom.
fn column(table: &str, title: &str) -> Vec<String> {
    let mut rows = table.lines().take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let at = cells(rows.next().unwrap()).iter().position(|cell| cell == title);
    at.map_or(Vec::new(), |at| rows.skip(1).map(|row| cells(row)[at].clone()).collect())
}

#[test]
fn rows_of_several_caches_say_which_is_which() {
    let out = bench(&["-ctk", "f16,q8_0", "-ctv", "f16"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(column(&text, "cache"), ["f16", "q8_0/f16"], "{text}");
    let out = bench(&["-ctk", "q8_0", "-ctv", "q8_0", "--kv-policy", "sink:4+64"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(column(&text, "cache"), ["q8_0 sink:4+64"], "{text}");
    // llama-bench's table as it is, where there is nothing to tell
    let out = bench(&[]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!((column(&text, "cache").len(), column(&text, "test")), (0, vec!["pp4".to_owned()]), "{text}");
}

#[test]
fn rows_in_csv_say_what_of_the_past_was_kept() {
    let out = bench(&["--kv-policy", "sink:4+64", "-o", "csv"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.lines().next().unwrap().contains(",kv_policy,"), "{text}");
    assert!(text.lines().nth(1).unwrap().contains("\"f16\",\"f16\",\"sink:4+64\""), "{text}");
}

#[test]
fn a_later_model_that_is_none_is_told_before_the_first_is_measured() {
    let out = bench(&["-m", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains("Cargo.toml"), "{said}");
}

#[test]
fn every_wrong_flag_comes_with_something_to_try() {
    for words in [
        &["-n", "-3"][..],
        &["-n", "99999999999"],
        &["-r", "0"],
        &["-mmp", "2"],
        &["--cpus", "4-"],
        &["--repack", "maybe"],
        &["-ctk", "f8"],
        &["-o", "yaml"],
        &["--no-such-flag"],
        &["--paced=1"],
        &["and this"],
    ] {
        let out = bench(words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("\nhint: "), "{words:?}: {said}");
    }
}
