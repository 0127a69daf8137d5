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

#[test]
fn threads_and_cores_that_do_not_fit_are_refused_before_anything_is_measured() {
    for (words, why) in [
        (&["-t", "1,999"][..], "999 threads are more than"),
        (&["-t", "1,2", "--cpus", "0"], "2 threads do not fit 1 cores"),
        (&["-tb", "300"], "300 threads are more than"),
        (&["--cpus", "0", "--cpu-clusters", "big"], "both asked for"),
        (&["--kv-policy", "window:0"], "a window of 0 positions"),
        (&["-ctk", "f16,q4_0", "--kv-policy", "window:0"], "a window of 0 positions"),
    ] {
        let out = bench(words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{words:?}: {said}");
        assert!(said.contains(why) && said.contains("\nhint: "), "{words:?}: {said}");
    }
    // threads are no matter of the model, so they are refused without looking at it
    for words in [["generate", "-p"], ["bench", "-p"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farmhand"));
        let out = command.args(words).args(["5", "-m", "/nowhere.gguf", "-t", "999"]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("999 threads are more than"), "{words:?}: {said}");
    }
}

#[test]
fn a_test_beyond_any_context_is_refused_at_once_and_one_beyond_the_training_is_told_of() {
    let begun = std::time::Instant::now();
    for words in [
        &["-d", "1000000000"][..],
        &["-d", "0,4294967295"],
        &["-p", "4294967295"],
        &["-p", "0", "-n", "1000000000"],
        &["-d", "1000000000", "--kv-policy", "window:64"],
        &["--kv-policy", "window:4294967295"],
    ] {
        let out = bench(words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(matches!(out.status.code(), Some(2 | 5)) && out.stdout.is_empty(), "{words:?}: {said}");
        assert!(
            said.contains("Q8_0.gguf, ") && said.contains(" tokens ") && said.contains("\nhint: "),
            "{words:?}: {said}"
        );
    }
    // generous: a billion tokens would take hours
    assert!(begun.elapsed().as_secs() < 30);
    let out = bench(&["-d", "1000"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("was trained for 512 tokens and is measured with up to 1004"), "{said}");
}

#[test]
fn decodes_have_their_mbu_where_a_roofline_of_their_threads_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("roofline.json");
    let farmhand = || Command::new(env!("CARGO_BIN_EXE_farmhand"));
    let words = ["roofline", "-t", "1", "-r", "1", "--buffer-mib", "8", "-o", "json"];
    let measured = farmhand().args(words).output().unwrap();
    let mut roofline: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    // a ceiling that is known: 1000 GB/s for both kinds of pages
    for kind in ["read_huge_pages_gb_per_s", "read_base_pages_gb_per_s"] {
        roofline["points"][0][kind]["median"] = 1000.0.into();
    }
    std::fs::write(&path, roofline.to_string()).unwrap();
    let with =
        |words: &[&str]| bench(&[&["-n", "8", "-d", "16", "--roofline", path.to_str().unwrap()], words].concat());
    let rows: serde_json::Value = serde_json::from_slice(&with(&["-o", "json"]).stdout).unwrap();
    let (prompt, decode) = (&rows[0], &rows[1]);
    assert!(prompt.get("mbu").is_none(), "{prompt}");
    let (mbu, speed) = (decode["mbu"].as_f64().unwrap(), decode["avg_ts"].as_f64().unwrap());
    let bytes_per_token = mbu * 1000e9 / speed;
    // every weight but the embedding is read, then keys and values of 20 positions
    let weights = decode["model_size"].as_f64().unwrap();
    assert!((0.5 * weights..1.2 * weights).contains(&bytes_per_token), "{bytes_per_token} of {weights}");

    let out = with(&[]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(column(&text, "mbu").len(), 2, "{text}");
    assert!(column(&text, "mbu")[0].is_empty() && !column(&text, "mbu")[1].is_empty(), "{text}");
    let text = String::from_utf8(with(&["-o", "csv"]).stdout).unwrap();
    let ends: Vec<&str> = text.lines().take(3).map(|line| line.rsplit(',').next().unwrap()).collect();
    assert_eq!(ends[..2], ["mbu", "\"\""], "{text}");
    assert!(ends[2].trim_matches('"').parse::<f64>().is_ok(), "{text}");

    // more than memory gives is not believed, unless a cache could have given it
    roofline["points"][0]["read_huge_pages_gb_per_s"]["median"] = 1e-6.into();
    roofline["points"][0]["read_base_pages_gb_per_s"]["median"] = 1e-6.into();
    roofline["last_level_cache_bytes"] = 1.into();
    std::fs::write(&path, roofline.to_string()).unwrap();
    let out = with(&["-o", "json"]);
    assert_eq!(out.status.code(), Some(3), "{}", String::from_utf8_lossy(&out.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(rows[1]["invalid"], serde_json::json!(["mbu-above-one"]));

    // no point of so many threads, or one of other cores: said, and no figure
    roofline["points"][0]["affinity"] = serde_json::json!(["4095"]);
    std::fs::write(&path, roofline.to_string()).unwrap();
    for (words, why) in [(&["-t", "2"][..], "says nothing of 2 threads"), (&[], "was measured on cores 4095")] {
        let out = with(&[words, &["-o", "json"]].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(why), "{said}");
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
        assert!(rows.iter().any(|row| row["n_gen"] == 8 && row.get("mbu").is_none()), "{rows:?}");
    }
    let plain = bench(&["-n", "2", "-o", "csv"]);
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("mbu"));
}
