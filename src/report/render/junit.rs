//! JUnit XML: FAIL is a failure, INFRA an error, INVALID and INCONCLUSIVE are skipped with their reason.

use super::Templates;
use crate::error::Result;
use crate::report::Report;
use crate::report::view::{DeviceView, RuleView};
use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;

/// One device's test cases.
#[derive(Serialize)]
struct Suite<'a> {
    name: &'a str,
    cases: Vec<Case<'a>>,
    failures: usize,
    errors: usize,
    skipped: usize,
}

/// One test case.
#[derive(Serialize)]
struct Case<'a> {
    name: String,
    /// `passed`, `failure`, `error` or `skipped`.
    kind: &'static str,
    outcome: &'a str,
    sentence: &'a str,
}

/// Renders the JUnit file: one suite a device, and one for the run when it has no judgement or no end.
pub fn junit(templates: &Templates, report: &Report) -> Result<String> {
    let mut suites: Vec<Suite> = report.devices.iter().map(|d| device(report, d)).collect();
    let elsewhere: Vec<&RuleView> = report.rules.iter().filter(|r| r.device_id.is_empty()).collect();
    let mut run: Vec<Case> = elsewhere.into_iter().map(rule).collect();
    if report.verdict.exit_code.is_none() {
        run.push(skipped("policy", "NO VERDICT", &report.verdict.sentence));
    }
    if !report.run.state_note.is_empty() {
        run.push(skipped("end of the run", report.run.state, &report.run.state_note));
    }
    if !run.is_empty() {
        suites.insert(0, suite("run", run));
    }
    suites.retain(|s| !s.cases.is_empty());
    let sum = |of: fn(&Suite) -> usize| suites.iter().map(of).sum::<usize>();
    let totals = context! {
        tests => sum(|s| s.cases.len()), failures => sum(|s| s.failures),
        errors => sum(|s| s.errors), skipped => sum(|s| s.skipped),
    };
    templates.render("junit.xml.j2", context! { report => Serde(report), totals, suites => Serde(&suites) })
}

fn device<'a>(report: &'a Report, device: &'a DeviceView) -> Suite<'a> {
    let mut cases: Vec<Case> = report.rules.iter().filter(|r| r.device_id == device.id).map(rule).collect();
    if !device.failure.is_empty() {
        cases.push(Case { name: "device".into(), kind: "error", outcome: "INFRA", sentence: &device.failure });
    }
    suite(&device.name, cases)
}

fn rule(rule: &RuleView) -> Case<'_> {
    let kind = match (rule.outcome, rule.critical) {
        ("PASS", _) => "passed",
        ("FAIL", true) => "failure",
        ("INFRA", true) => "error",
        // what only informs never blocks, neither here nor in the verdict
        _ => "skipped",
    };
    let words = [rule.rule.as_str(), &rule.scenario, &rule.metric];
    let name = words.iter().filter(|w| !w.is_empty()).copied().collect::<Vec<_>>().join(" / ");
    Case { name, kind, outcome: rule.outcome, sentence: &rule.sentence }
}

fn skipped<'a>(name: &str, outcome: &'a str, sentence: &'a str) -> Case<'a> {
    Case { name: name.to_owned(), kind: "skipped", outcome, sentence }
}

fn suite<'a>(name: &'a str, cases: Vec<Case<'a>>) -> Suite<'a> {
    let count = |kind| cases.iter().filter(|c| c.kind == kind).count();
    let (failures, errors, skipped) = (count("failure"), count("error"), count("skipped"));
    Suite { name, cases, failures, errors, skipped }
}
