//! Markdown, JUnit, CSV, JSON and the terminal's table: snapshots, and what must hold whatever a device says.

mod report_fixtures;

use farmgate::error::ExitCode;
use farmgate::gate::{Judgement, Verdict};
use farmgate::report::terminal::summary;
use farmgate::report::{Report, Templates, render, write_all};
use report_fixtures as fixtures;
use std::collections::BTreeMap;

fn shipped() -> Templates {
    Templates::shipped().unwrap()
}

#[test]
fn markdown_of_a_comparison() {
    let (run, judgement) = fixtures::comparison();
    insta::assert_snapshot!(render::markdown(&shipped(), &Report::build(&run, Some(&judgement))).unwrap());
}

#[test]
fn markdown_of_trouble() {
    let (run, judgement) = fixtures::trouble();
    insta::assert_snapshot!(render::markdown(&shipped(), &Report::build(&run, Some(&judgement))).unwrap());
}

#[test]
fn junit_of_a_comparison() {
    let (run, judgement) = fixtures::comparison();
    insta::assert_snapshot!(render::junit(&shipped(), &Report::build(&run, Some(&judgement))).unwrap());
}

#[test]
fn junit_of_trouble() {
    let (run, judgement) = fixtures::trouble();
    insta::assert_snapshot!(render::junit(&shipped(), &Report::build(&run, Some(&judgement))).unwrap());
}

#[test]
fn junit_of_a_run_that_was_stopped() {
    insta::assert_snapshot!(render::junit(&shipped(), &Report::build(&fixtures::interrupted(), None)).unwrap());
}

#[test]
fn summary_of_a_comparison() {
    let (run, judgement) = fixtures::comparison();
    insta::assert_snapshot!(summary(&run, &judgement));
}

#[test]
fn summary_of_trouble() {
    let (run, judgement) = fixtures::trouble();
    insta::assert_snapshot!(summary(&run, &judgement));
}

#[test]
fn summary_of_a_run_that_was_stopped() {
    let (_, judgement) = fixtures::comparison();
    let judgement = Judgement { verdict: Verdict::Inconclusive, outcomes: vec![], ..judgement };
    insta::assert_snapshot!(summary(&fixtures::interrupted(), &judgement));
}

#[test]
fn csv_of_a_run_that_was_stopped() {
    insta::assert_snapshot!(render::csv(&fixtures::interrupted()).unwrap());
}

#[test]
fn json_of_an_empty_run() {
    let value: serde_json::Value = serde_json::from_str(&render::json(&fixtures::empty(), None).unwrap()).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&value).unwrap());
}

#[test]
fn the_summary_fits_80_columns_and_carries_no_escape() {
    let (comparison, judged) = fixtures::comparison();
    let (trouble, troubled) = fixtures::trouble();
    let (large, many) = fixtures::large(30);
    for (run, judgement) in [(&comparison, &judged), (&trouble, &troubled), (&large, &many)] {
        let text = summary(run, judgement);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.lines().count() < 200, "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }
}

#[test]
fn csv_carries_every_sample_of_every_attempt() {
    let (run, _) = fixtures::trouble();
    let planned: usize = run.devices.iter().flat_map(|d| &d.cells).map(|c| c.samples.len()).sum();
    let text = render::csv(&run).unwrap();
    assert_eq!(text.lines().count(), planned + 1);
    assert_eq!(
        text.lines().next().unwrap(),
        "run,device,scenario,arm,pair,slot,cell,attempt,step,repetition,metric,unit,value,validity,reason,counts"
    );
    let counted = text.lines().filter(|l| l.ends_with(",yes")).count();
    // cells 1, 3, 4, 5 and 6 do not count, and one sample of cell 2 has no value
    assert_eq!(counted, planned - 5 * 15 - 1);
}

#[test]
fn json_is_versioned_carries_every_sample_and_has_no_number_that_is_not_finite() {
    let (run, judgement) = fixtures::trouble();
    let text = render::json(&run, Some(&judgement)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema-version"], 1);
    assert_eq!(value["exit-code"], 5);
    assert_eq!(value["run"]["devices"][1]["cells"][1]["samples"].as_array().unwrap().len(), 15);
    // the infinite bound is written as unbounded, not as a number that no reader takes
    assert!(value["judgement"]["outcomes"][2]["estimate"]["high"].is_null());
    assert!(!text.contains("NaN") && !text.contains("inf,") && !text.contains("Infinity"));
}

/// Walks the file as XML 1.0 demands: tags closed in turn, attributes quoted, no bare ampersand, no forbidden character.
fn assert_xml(text: &str) {
    let allowed =
        |c: char| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(allowed), "a character that XML forbids");
    for rest in text.split('&').skip(1) {
        let entity = rest.split(';').next().unwrap();
        assert!(["amp", "lt", "gt", "quot", "apos"].contains(&entity) || entity.starts_with('#'), "&{entity}");
    }
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1).filter(|p| !p.starts_with('?')) {
        let (tag, content) = piece.split_once('>').expect("a tag ends");
        assert!(!content.contains("]]>"), "]]> in text");
        let word = tag.trim_matches('/').split_whitespace().next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(word));
        } else if !tag.ends_with('/') {
            open.push(word);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn junit_is_xml_whatever_a_device_says_and_its_counts_are_true() {
    let (comparison, judged) = fixtures::comparison();
    let (trouble, troubled) = fixtures::trouble();
    for (run, judgement) in [(&comparison, Some(&judged)), (&trouble, Some(&troubled)), (&fixtures::empty(), None)] {
        let text = render::junit(&shipped(), &Report::build(run, judgement)).unwrap();
        assert_xml(&text);
        let head = text.lines().find(|l| l.starts_with("<testsuites")).unwrap();
        for (attribute, element) in
            [("tests", "<testcase "), ("failures", "<failure "), ("errors", "<error "), ("skipped", "<skipped ")]
        {
            let count = text.matches(element).count();
            assert!(head.contains(&format!("{attribute}=\"{count}\"")), "{attribute} is not {count}: {head}");
        }
    }
}

#[test]
fn outcomes_become_the_junit_elements_that_ci_systems_know() {
    let (run, judgement) = fixtures::comparison();
    let text = render::junit(&shipped(), &Report::build(&run, Some(&judgement))).unwrap();
    let of = |name: &str| text.matches(name).count();
    assert_eq!((of("<failure "), of("<error "), of("<skipped "), of("<testcase ")), (1, 0, 1, 7));
    let (run, judgement) = fixtures::trouble();
    let text = render::junit(&shipped(), &Report::build(&run, Some(&judgement))).unwrap();
    // the rule that found no data, and the device itself
    assert_eq!(text.matches("<error type=\"INFRA\"").count(), 2);
    assert_eq!(text.matches("<skipped message=\"INVALID: ").count(), 1);
}

#[test]
fn markdown_of_a_thousand_rules_fits_a_comment_and_says_what_was_cut() {
    let (run, judgement) = fixtures::large(60);
    let text = render::markdown(&shipped(), &Report::build(&run, Some(&judgement))).unwrap();
    assert!(text.len() <= render::MARKDOWN_BYTES_MAX, "{} bytes", text.len());
    assert!(text.contains("more rule outcomes were cut here"), "{text}");
    assert!(text.contains("more series were cut here"), "{text}");
}

#[test]
fn markdown_tables_keep_their_columns_whatever_a_device_says() {
    let (run, judgement) = fixtures::trouble();
    let text = render::markdown(&shipped(), &Report::build(&run, Some(&judgement))).unwrap();
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut expected = None;
    for line in text.lines() {
        match (line.starts_with('|'), expected) {
            (true, None) => expected = Some(columns(line)),
            (true, Some(count)) => assert_eq!(columns(line), count, "{line}"),
            (false, _) => expected = None,
        }
    }
    assert!(!text.contains("<script>alert(1)</script>|`"), "a name came through as it was");
}

#[test]
fn same_run_same_bytes() {
    let (run, judgement) = fixtures::trouble();
    let all = || {
        let report = Report::build(&run, Some(&judgement));
        [render::html(&shipped(), &report).unwrap(), render::markdown(&shipped(), &report).unwrap()]
    };
    assert_eq!(all(), all());
}

#[test]
fn all_files_are_written_whole_and_leave_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("deep/report");
    let (run, judgement) = fixtures::comparison();
    for _ in 0..2 {
        let paths = write_all(&target, &run, Some(&judgement), &shipped()).unwrap();
        let names: Vec<_> = paths.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["report.html", "report.md", "junit.xml", "samples.csv", "report.json"]);
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 5);
    }
}

#[test]
fn a_project_s_folder_replaces_one_template_and_its_mistake_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let (run, judgement) = fixtures::comparison();
    let report = Report::build(&run, Some(&judgement));
    std::fs::write(folder.path().join("report.md.j2"), "{{ report.verdict.word }} by us\n").unwrap();
    let templates = Templates::load(folder.path()).unwrap();
    assert_eq!(render::markdown(&templates, &report).unwrap(), "NO-GO by us\n");
    assert!(render::html(&templates, &report).unwrap().contains("<h1"));

    std::fs::write(folder.path().join("rules.html.j2"), "<p>\n{{ report.nothing }}</p>").unwrap();
    let templates = Templates::load(folder.path()).unwrap();
    let error = write_all(&folder.path().join("out"), &run, Some(&judgement), &templates).unwrap_err();
    assert_eq!(error.exit(), ExitCode::Usage);
    assert!(error.to_string().contains("rules.html.j2:2:"), "{error}");
    assert!(!folder.path().join("out").exists(), "something was written although a template is broken");
}

#[test]
fn a_folder_that_does_not_exist_gives_what_ships_and_one_full_of_templates_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Templates::load(&folder.path().join("none")).is_ok());
    for i in 0..40 {
        std::fs::write(folder.path().join(format!("t{i}.j2")), "x").unwrap();
    }
    assert_eq!(Templates::load(folder.path()).unwrap_err().exit(), ExitCode::Usage);
    assert!(Templates::with(BTreeMap::new()).is_ok());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    #[test]
    fn no_name_whatsoever_breaks_a_format(name in ".{0,40}", tail in proptest::collection::vec(proptest::char::any(), 0..80)) {
        let (mut run, mut judgement) = fixtures::trouble();
        let tail: String = tail.into_iter().collect();
        run.devices[1].facts.device = name.clone();
        run.devices[1].cells.truncate(5);
        run.devices[1].cells[3].stderr_tail = tail.clone();
        judgement.outcomes[1].device = name;
        judgement.outcomes[1].sentence = tail;
        let report = Report::build(&run, Some(&judgement));
        assert_xml(&render::junit(&shipped(), &report).unwrap());
        let harmless = |c: char| c == '\n' || !c.is_control();
        proptest::prop_assert!(render::markdown(&shipped(), &report).unwrap().chars().all(harmless));
        proptest::prop_assert!(render::html(&shipped(), &report).unwrap().chars().all(harmless));
        proptest::prop_assert!(summary(&run, &judgement).lines().all(|l| l.chars().count() <= 80));
        proptest::prop_assert!(csv_rows(&render::csv(&run).unwrap()).iter().all(|row| *row == 16));
    }
}

/// Columns of each record, counted as RFC 4180 says.
fn csv_rows(text: &str) -> Vec<usize> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    reader.records().map(|r| r.unwrap().len()).collect()
}
