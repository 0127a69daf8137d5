//! `farmhand roofline` as people and scripts see it.

mod agent;

use agent::*;
use farmgate_engine::roofline::Roofline;
use serde_json::Value;

fn roofline(extra: &[&str]) -> std::process::Output {
    farmhand().args(["roofline", "-r", "1", "--buffer-mib", "4"]).args(extra).output().unwrap()
}

#[test]
fn the_table_has_a_line_for_each_number_of_threads_and_says_what_was_measured() {
    let output = roofline(&["-t", "1,2,1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + 2, "{text}");
    for unit in ["(GB/s)", "(GFLOP/s)", "(GOP/s)"] {
        assert!(lines[0].contains(unit), "{text}");
    }
    assert!(lines[2].starts_with("| 1 |") && lines[3].starts_with("| 2 |"), "{text}");
    assert!(lines.iter().all(|l| l.matches('|').count() == 6), "{text}");
    for what in ["medians of 1 rounds", "buffer 4 MiB", "\nread: ", "\nf32:  ", "\nint8: "] {
        assert!(text.contains(what), "{text}");
    }
}

#[test]
fn the_json_names_units_in_every_rate_and_the_threads_that_zero_chose() {
    let output = roofline(&["-t", "0", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let roofline: Roofline = serde_json::from_slice(&output.stdout).unwrap();
    assert!(roofline.points.len() == 1 && roofline.points[0].threads >= 1);
    assert!(!roofline.int8_instructions.is_empty() && roofline.base_page_bytes.is_power_of_two());
    let raw: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = raw["points"][0].as_object().unwrap();
    for (name, value) in point.iter().filter(|(_, value)| value.is_object()) {
        assert!(["_gb_per_s", "_gflop_per_s", "_gop_per_s"].iter().any(|unit| name.ends_with(unit)), "{name}");
        assert!(value["median"].as_f64().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for (extra, what) in [
        (["-o", "xml"], "unknown format `xml`"),
        (["-r", "0"], "0 rounds"),
        (["--buffer-mib", "0"], "a buffer of 0 bytes"),
        (["-t", "1000"], "1000 threads"),
    ] {
        let output = roofline(&extra);
        assert_eq!(output.status.code(), Some(2), "{extra:?}");
        assert!(stderr(&output).contains(what) && output.stdout.is_empty(), "{}", stderr(&output));
    }
}

#[test]
fn help_lists_it() {
    let output = farmhand().arg("help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|l| l.trim_start().starts_with("roofline ")), "{text}");
}
