//! The rules of the house, held by a test: layering, sizes, who may print, spawn and speak SQL, words that are not used.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

struct Source {
    /// Path relative to the workspace, with `/`.
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below `folder`.
fn sources(folder: &str) -> Vec<Source> {
    let mut out = Vec::new();
    let mut todo = vec![root().join(folder)];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let shown = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
                out.push(Source { path: shown, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn everything() -> Vec<Source> {
    ["src", "engine/src", "engine/tests", "engine/benches", "tests", "benches"]
        .iter()
        .flat_map(|f| sources(f))
        .collect()
}

/// The code of a file without its unit tests, comments and doc comments; line numbers are kept.
fn code_lines(source: &Source) -> Vec<(usize, String)> {
    let test_file = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    let mut out = Vec::new();
    for (i, line) in source.text.lines().enumerate() {
        if test_file || line.trim_start() == "#[cfg(test)]" {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        out.push((i + 1, code.to_owned()));
    }
    out
}

fn report(title: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{title}:\n  {}", faults.join("\n  "));
}

#[test]
fn a_module_uses_only_modules_listed_above_it() {
    let mut faults = Vec::new();
    for src in ["src", "engine/src"] {
        let lib = fs::read_to_string(root().join(src).join("lib.rs")).unwrap();
        let order: HashMap<String, usize> = lib
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';').map(str::to_owned))
            .enumerate()
            .map(|(i, name)| (name, i))
            .collect();
        assert!(order.len() > 5, "no modules found in {src}/lib.rs");
        for source in sources(src) {
            let inside = source.path.strip_prefix(src).unwrap().trim_start_matches('/');
            let module = inside.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
            let Some(own) = order.get(&module) else { continue };
            for (line, code) in code_lines(&source) {
                for used in names_after_crate(&code) {
                    if order.get(&used).is_some_and(|other| other > own) {
                        faults.push(format!(
                            "{}:{line}: `{module}` uses `{used}`, which is listed below it",
                            source.path
                        ));
                    }
                }
            }
        }
    }
    report("layering", &faults);
}

/// Module names that follow `crate::` on a line, also in `crate::{a, b::c}`.
fn names_after_crate(code: &str) -> Vec<String> {
    let word = |text: &str| text.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    let mut out = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => out.extend(list.split('}').next().unwrap().split(',').map(word)),
            None => out.push(word(rest)),
        }
    }
    out
}

#[test]
fn files_stay_under_500_lines_and_kernels_under_700() {
    let faults: Vec<String> = everything()
        .iter()
        .filter_map(|source| {
            let limit = if source.path.contains("/kernels/") { 700 } else { 500 };
            let lines = source.text.lines().count();
            (lines > limit).then(|| format!("{}: {lines} lines, at most {limit}", source.path))
        })
        .collect();
    report("file length", &faults);
}

#[test]
fn functions_stay_under_70_lines() {
    let mut faults = Vec::new();
    for source in everything() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let head = line.trim_start();
            let is_fn =
                ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "unsafe fn ", "pub unsafe fn ", "const fn "]
                    .iter()
                    .any(|start| head.starts_with(start));
            // a declaration without a body ends on its line
            if !is_fn || head.ends_with(';') {
                continue;
            }
            let close = format!("{}}}", " ".repeat(indent));
            let Some(end) = lines[i..].iter().position(|l| *l == close) else { continue };
            if end > 70 {
                faults.push(format!("{}:{}: {} lines: {}", source.path, i + 1, end + 1, head));
            }
        }
    }
    report("function length", &faults);
}

/// Each rule: what may not appear in the code of `src/`, and the files that may have it all the same.
const KEPT_APART: &[(&str, &[&str], &str)] = &[
    ("Command::new(", &["src/process.rs", "src/process/"], "only `process` spawns"),
    ("rusqlite", &["src/store/"], "only `store` knows SQL"),
    ("println!(", &["src/report/terminal", "src/main.rs"], "only `report/terminal` and `main` print"),
    ("print!(", &["src/report/terminal", "src/main.rs"], "only `report/terminal` and `main` print"),
    ("dbg!(", &[], "no debugging left behind"),
];

#[test]
fn printing_spawning_and_sql_stay_in_their_modules() {
    let mut faults = Vec::new();
    for source in sources("src") {
        for (line, code) in code_lines(&source) {
            for (what, allowed, rule) in KEPT_APART {
                if code.contains(what) && !allowed.iter().any(|start| source.path.starts_with(start)) {
                    faults.push(format!("{}:{line}: {rule}: {}", source.path, code.trim()));
                }
            }
        }
    }
    report("kept apart", &faults);
}

#[test]
fn judgements_plans_and_reports_do_no_io_and_read_no_clock() {
    let pure = ["src/stats/", "src/gate/", "src/plan.rs", "src/plan/", "src/report/", "src/metric.rs", "src/run.rs"];
    let forbidden = ["std::fs", "fs::", "Instant::now", "SystemTime", "File::", "Timestamp::now", "Zoned::now"];
    let mut faults = Vec::new();
    for source in sources("src") {
        // the terminal draws progress, so it needs a clock; write.rs is where reports meet the file system
        let apart = ["src/report/terminal", "src/report/write.rs"];
        if !pure.iter().any(|p| source.path.starts_with(p)) || apart.iter().any(|p| source.path.starts_with(p)) {
            continue;
        }
        for (line, code) in code_lines(&source) {
            for word in forbidden {
                if code.contains(word) {
                    faults.push(format!("{}:{line}: {}", source.path, code.trim()));
                }
            }
        }
    }
    report("pure modules", &faults);
}

#[test]
fn words_outside_the_vocabulary_are_not_used_as_names() {
    let unwanted = ["manager", "helper", "util", "board"];
    let mut faults = Vec::new();
    for source in everything() {
        let file = source.path.to_lowercase();
        for word in unwanted {
            if file.contains(word) {
                faults.push(format!("{}: the file's name has `{word}`", source.path));
            }
        }
        for (line, code) in code_lines(&source) {
            let mut words = code.split_whitespace().peekable();
            while let Some(keyword) = words.next() {
                if ["struct", "enum", "mod", "trait", "fn", "type"].contains(&keyword) {
                    let name = words.peek().copied().unwrap_or_default().to_lowercase();
                    if unwanted.iter().any(|w| name.contains(w)) {
                        faults.push(format!("{}:{line}: {}", source.path, code.trim()));
                    }
                }
            }
        }
    }
    report("vocabulary", &faults);
}

#[test]
fn no_test_is_switched_off() {
    let mark = format!("#[{}", "ignore");
    let faults: Vec<String> = everything().iter().filter(|s| s.text.contains(&mark)).map(|s| s.path.clone()).collect();
    report("switched-off tests", &faults);
}

#[test]
fn every_dependency_has_its_reason() {
    let mut faults = Vec::new();
    for manifest in ["Cargo.toml", "engine/Cargo.toml"] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let mut inside = false;
        let mut reasoned = false;
        for line in text.lines() {
            if line.starts_with('[') {
                inside = line == "[dependencies]" || line == "[dev-dependencies]";
                reasoned = false;
            } else if line.starts_with('#') {
                reasoned = true;
            } else if line.is_empty() {
                reasoned = false;
            } else if inside && !reasoned {
                faults.push(format!("{manifest}: {line}"));
            }
        }
    }
    report("dependencies without a reason", &faults);
}

#[test]
fn nothing_over_three_megabytes_is_kept() {
    let mut faults = Vec::new();
    let mut todo: Vec<PathBuf> =
        ["src", "engine", "devices", "scenarios", "reports", "tests", "docs"].iter().map(|f| root().join(f)).collect();
    while let Some(dir) = todo.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                todo.push(path);
            } else if path.metadata().is_ok_and(|m| m.len() > 3_000_000) {
                faults.push(path.display().to_string());
            }
        }
    }
    report("large files", &faults);
}
