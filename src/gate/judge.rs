//! Every rule on every device, then the verdict.

use super::absolute::{self, Limit};
use super::observed::{Observed, crashes};
use super::{Estimate, Judgement, Outcome, Rule, RuleOutcome, Severity, Verdict, comparison};
use crate::error::ExitCode;
use crate::metric::{self, MetricKind};
use crate::run::{DeviceData, RunData, RunState, Series};
use farmgate_engine::protocol::Arm;

/// Applies the rules to a run.
///
/// A critical rule passes only when the bound of its interval shows it: missing data, too little data, a run that did not
/// come to its end or a device that failed never give GO.
pub fn judge(policy_name: &str, rules: &[Rule], run: &RunData) -> Judgement {
    let all_series = run.series();
    let mut outcomes = Vec::new();
    for rule in rules {
        let chosen = run.devices.iter().filter(|d| rule.devices.as_ref().is_none_or(|e| e.matches(&d.facts.labels)));
        let before = outcomes.len();
        for device in chosen {
            apply(rule, device, &all_series, run, &mut outcomes);
        }
        if outcomes.len() == before {
            outcomes.push(no_device(rule));
        }
    }
    outcomes.sort_by_key(|o| (o.severity != Severity::Critical, gravity(o.outcome)));
    let (verdict, exit, sentence) = verdict(&outcomes, run);
    Judgement { policy: policy_name.to_owned(), verdict, sentence, outcomes, exit }
}

/// Worst first.
fn gravity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Fail => 0,
        Outcome::Infra => 1,
        Outcome::Invalid => 2,
        Outcome::Inconclusive => 3,
        Outcome::Pass => 4,
    }
}

fn no_device(rule: &Rule) -> RuleOutcome {
    let expression = rule.devices.as_ref().map_or("", |e| e.as_str());
    outcome_of(rule, "", "", (Outcome::Inconclusive, format!("no device of this run matches `{expression}`"), None))
}

fn outcome_of(
    rule: &Rule,
    device: &str,
    scenario: &str,
    (outcome, sentence, estimate): (Outcome, String, Option<Estimate>),
) -> RuleOutcome {
    RuleOutcome {
        rule: rule.name.clone(),
        device: device.to_owned(),
        scenario: scenario.to_owned(),
        metric: rule.metric.clone(),
        severity: rule.severity,
        demand: all_demands(rule),
        outcome,
        sentence,
        estimate,
        limit: None,
        is_comparison: false,
    }
}

/// Every limit of a rule in words; `a value` when it only asks for data.
fn all_demands(rule: &Rule) -> String {
    let Some(kind) = metric::find(&rule.metric) else { return "a known metric".to_owned() };
    let mut demands: Vec<String> = Limit::of(rule).into_iter().map(|limit| limit.demand(kind)).collect();
    demands.extend(rule.regression_percent_max.map(comparison::demand));
    if demands.is_empty() { "a valid value".to_owned() } else { demands.join(", ") }
}

fn apply(rule: &Rule, device: &DeviceData, all: &[Series], run: &RunData, out: &mut Vec<RuleOutcome>) {
    let name = &device.facts.device;
    let matches = |series: &&Series| {
        let metric = &series.key.metric;
        let same = if metric::qualifier(&rule.metric).is_some() {
            *metric == rule.metric
        } else {
            metric::base(metric) == rule.metric
        };
        series.key.device == *name && same && rule.scenario.as_ref().is_none_or(|s| *s == series.key.scenario)
    };
    let found: Vec<&Series> = all.iter().filter(matches).collect();
    let Some(kind) = metric::find(&rule.metric) else {
        out.push(outcome_of(rule, name, "", (Outcome::Inconclusive, format!("`{}` is no metric", rule.metric), None)));
        return;
    };
    if found.is_empty() {
        let scenario = rule.scenario.as_deref().unwrap_or("");
        out.push(outcome_of(rule, name, scenario, without_data(rule, device, run)));
    }
    for series in found {
        apply_to_series(rule, kind, device, series, run, out);
    }
}

/// The outcome of a rule for which a device has no sample at all.
fn without_data(rule: &Rule, device: &DeviceData, run: &RunData) -> (Outcome, String, Option<Estimate>) {
    if let Some(reason) = &device.failure {
        return (Outcome::Infra, format!("the device failed: {}", reason.escape_debug()), None);
    }
    if let Some(crash) = crashes(device, rule.scenario.as_deref(), Arm::Candidate) {
        return (Outcome::Fail, crash, None);
    }
    if let Some(scenario) = rule.scenario.as_ref().filter(|s| !run.manifest.scenarios.contains(s)) {
        let sentence = format!("scenario `{scenario}` was not part of this run; run it and judge again");
        return (Outcome::Inconclusive, sentence, None);
    }
    let sentence = format!("no sample of `{}` was measured; missing data does not pass", rule.metric);
    let hint = if metric::base(&rule.metric) == "golden-match-ratio" {
        "; no golden tokens are recorded for this model (scenarios/README.md says how to record them)"
    } else {
        ""
    };
    (Outcome::Inconclusive, sentence + hint, None)
}

fn apply_to_series(
    rule: &Rule,
    kind: &MetricKind,
    device: &DeviceData,
    series: &Series,
    run: &RunData,
    out: &mut Vec<RuleOutcome>,
) {
    let mut push =
        |demand: String, limit: Option<f64>, is_comparison: bool, answer: (Outcome, String, Option<Estimate>)| {
            let base = outcome_of(rule, &device.facts.device, &series.key.scenario, answer);
            out.push(RuleOutcome { metric: series.key.metric.clone(), demand, limit, is_comparison, ..base });
        };
    let observed = Observed::of(&series.candidate);
    let spoiled = spoiled(device, series, &observed);
    for limit in Limit::of(rule) {
        let answer = spoiled.clone().unwrap_or_else(|| absolute::judge(limit, kind, &observed));
        push(limit.demand(kind), Some(limit.value()), false, answer);
    }
    if let Some(percent) = rule.regression_percent_max {
        let limit = comparison::ratio_limit(kind, percent);
        let answer = match &spoiled {
            Some(answer) => answer.clone(),
            None => compare(percent, kind, series, run),
        };
        push(comparison::demand(percent), Some(limit), true, answer);
    }
    if Limit::of(rule).is_empty() && rule.regression_percent_max.is_none() {
        let answer = spoiled.unwrap_or_else(|| {
            let n = observed.values.len();
            (Outcome::Pass, format!("{n} valid values found{}", observed.missing_words()), None)
        });
        push("a valid value".to_owned(), None, false, answer);
    }
}

/// An answer that holds for every limit, when the candidate gave too little that may be believed.
fn spoiled(device: &DeviceData, series: &Series, observed: &Observed) -> Option<(Outcome, String, Option<Estimate>)> {
    if let Some(crash) = crashes(device, Some(&series.key.scenario), Arm::Candidate) {
        return Some((Outcome::Fail, crash, None));
    }
    if observed.values.is_empty()
        && let Some(reason) = &device.failure
    {
        return Some((Outcome::Infra, format!("the device failed: {}", reason.escape_debug()), None));
    }
    observed.is_spoiled().then(|| {
        let sentence = format!("too few values may be believed{}", observed.missing_words());
        (Outcome::Invalid, sentence, None)
    })
}

fn compare(percent: f64, kind: &MetricKind, series: &Series, run: &RunData) -> (Outcome, String, Option<Estimate>) {
    let Some(baseline) = &run.manifest.baseline else {
        let sentence = "the run has no baseline to compare with; add `--baseline-model FILE`".to_owned();
        return (Outcome::Inconclusive, sentence, None);
    };
    let (outcome, mut sentence, estimate) = comparison::judge(percent, kind, series);
    if baseline.sha256 == run.manifest.candidate.sha256 {
        sentence.push_str("; candidate and baseline are the same model, so this only shows the noise");
    }
    (outcome, sentence, estimate)
}

fn verdict(outcomes: &[RuleOutcome], run: &RunData) -> (Verdict, ExitCode, String) {
    let critical: Vec<&RuleOutcome> = outcomes.iter().filter(|o| o.severity == Severity::Critical).collect();
    let count = |class: Outcome| critical.iter().filter(|o| o.outcome == class).count();
    let (total, passed, failed) = (critical.len(), count(Outcome::Pass), count(Outcome::Fail));
    let first = |class: Outcome| critical.iter().find(|o| o.outcome == class).map(|o| worded(o)).unwrap_or_default();
    if failed > 0 {
        let sentence = format!("{failed} of {total} critical outcomes fail; {}", first(Outcome::Fail));
        return (Verdict::NoGo, ExitCode::NoGo, sentence);
    }
    if total == 0 {
        let sentence = "no critical rule applied to this run, so nothing was decided".to_owned();
        return (Verdict::Inconclusive, ExitCode::Inconclusive, sentence);
    }
    if run.state != RunState::Complete {
        let sentence = format!("the run is {}, and only a complete run can be GO", run.state.as_str());
        return (Verdict::Inconclusive, ExitCode::Inconclusive, sentence);
    }
    if passed == total {
        return (Verdict::Go, ExitCode::Go, format!("{total} of {total} critical outcomes pass"));
    }
    let left = total - passed;
    let (class, exit) = if passed == 0 && count(Outcome::Infra) == left {
        (Outcome::Infra, ExitCode::Infra)
    } else if passed == 0 && count(Outcome::Invalid) + count(Outcome::Infra) == left {
        (Outcome::Invalid, ExitCode::Invalid)
    } else {
        let class = [Outcome::Infra, Outcome::Invalid, Outcome::Inconclusive].into_iter().find(|c| count(*c) > 0);
        (class.unwrap_or(Outcome::Inconclusive), ExitCode::Inconclusive)
    };
    let sentence = format!("{left} of {total} critical outcomes are undecided; {}", first(class));
    (Verdict::Inconclusive, exit, sentence)
}

/// `decode-tps@0 on local (rule decode-speed): …`.
fn worded(outcome: &RuleOutcome) -> String {
    format!("{} on {} (rule {}): {}", outcome.metric, outcome.device, outcome.rule, outcome.sentence)
}
