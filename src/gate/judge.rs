//! Every rule on every device it chooses, on every series it matches.

use super::evidence::{Demand, Evidence, Finding, all_crashed, losses};
use super::{Judgement, Outcome, Rule, RuleOutcome, Severity, absolute, compare, say, verdict, worst};
use crate::metric::{self, Direction, MetricKind};
use crate::run::{CellData, DeviceData, DeviceFacts, Observation, RunData, Series};
use farmgate_engine::protocol::Arm;

/// Stands for the device where a rule that requires data found none to apply to.
const NO_DEVICE: &str = "-";

/// Judges a run by a policy. Pure and repeatable: the same run and rules give the same judgement, byte for byte.
pub fn judge(policy_name: &str, rules: &[Rule], run: &RunData) -> Judgement {
    let series = run.series();
    let mut outcomes = Vec::new();
    for rule in rules {
        let chosen = |d: &&DeviceData| rule.devices.as_ref().is_none_or(|e| e.matches(&d.facts.labels));
        let devices: Vec<&DeviceData> = run.devices.iter().filter(chosen).collect();
        // a label that is mistyped must not take a critical rule away unnoticed
        if devices.is_empty() && (rule.required || rule.severity == Severity::Critical) {
            let what = Finding::new(Outcome::Inconclusive, "no device of this run is chosen by the rule's labels");
            outcomes.push(outcome(rule, NO_DEVICE, None, &required(rule), what));
        }
        for device in devices {
            outcomes.extend(on_device(rule, device, &series, run));
        }
    }
    for device in &run.devices {
        let promised = promises(&device.facts);
        // what was not measured is the policy's to demand
        let is_measured = |rule: &&Rule| series.iter().any(|s| s.key.device == device.facts.device && matches(rule, s));
        for rule in promised.iter().filter(is_measured) {
            outcomes.extend(on_device(rule, device, &series, run));
        }
    }
    verdict::decide(policy_name, outcomes, run.state)
}

/// The constraint sheet of a device as rules.
fn promises(facts: &DeviceFacts) -> Vec<Rule> {
    let sheet = &facts.constraints;
    let limits = [
        ("peak-rss-mb", None, sheet.memory_mb_max),
        ("decode-tps", sheet.decode_tps_min, None),
        ("ttft-ms", None, sheet.first_token_ms_max),
        ("power-w", None, sheet.power_w_max),
        ("temperature-max-c", None, sheet.temperature_c_max),
    ];
    let rule = |(metric, at_least, at_most): (&str, Option<f64>, Option<f64>)| Rule {
        name: format!("promised-{metric}"),
        metric: metric.to_owned(),
        scenario: None,
        devices: None,
        severity: Severity::Critical,
        at_least,
        at_most,
        regression_percent_max: None,
        required: false,
    };
    limits.into_iter().filter(|(_, low, high)| low.is_some() || high.is_some()).map(rule).collect()
}

fn on_device(rule: &Rule, device: &DeviceData, series: &[Series], run: &RunData) -> Vec<RuleOutcome> {
    let name = &device.facts.device;
    let matching: Vec<&Series> = series.iter().filter(|s| s.key.device == *name && matches(rule, s)).collect();
    let counts = rule.required || rule.severity == Severity::Critical;
    if matching.is_empty() && !counts {
        return Vec::new();
    }
    let kind = metric::find(&rule.metric);
    let demands = demands(rule, kind);
    if let Some(why) = &device.failure {
        let infra = || {
            Finding::new(Outcome::Infra, format!("device or link failed: {}", why.lines().next().unwrap_or_default()))
        };
        if matching.is_empty() {
            return vec![outcome(rule, name, None, &all_demands(&demands), infra())];
        }
        let each = |s: &&Series| outcome(rule, name, Some(s), &all_demands(&demands), infra());
        return matching.iter().map(each).collect();
    }
    let Some(kind) = kind else {
        let what = Finding::new(Outcome::Inconclusive, format!("`{}` is no metric of this farmgate", rule.metric));
        return vec![outcome(rule, name, None, &all_demands(&demands), what)];
    };
    if matching.is_empty() {
        return vec![outcome(rule, name, None, &all_demands(&demands), nothing_matches(rule, device, run))];
    }
    let mut out = Vec::new();
    for series in matching {
        for (demand, text) in &demands {
            let finding = one(&Evidence { device, kind, series }, *demand, text);
            let is_comparison = matches!(demand, Demand::Regression(_));
            out.push(RuleOutcome { is_comparison, ..outcome(rule, name, Some(series), text, finding) });
        }
    }
    out
}

/// One demand on one series.
fn one(evidence: &Evidence<'_>, demand: Demand, text: &str) -> Finding {
    if let Some(what) = evidence.contradiction() {
        return Finding::new(
            Outcome::Invalid,
            format!("{}: what ran is not what was planned: {what}", evidence.name()),
        );
    }
    if evidence.kind.worst_counts {
        return worst::judge(evidence, demand, text);
    }
    match demand {
        Demand::Regression(percent) => {
            let key = &evidence.series.key;
            compare::judge(evidence, percent, text, &[&key.device, &key.scenario, &key.metric])
        }
        _ => absolute::judge(evidence, demand, text),
    }
}

fn matches(rule: &Rule, series: &Series) -> bool {
    let key = &series.key;
    let metric = match metric::qualifier(&rule.metric) {
        Some(_) => key.metric == rule.metric,
        None => metric::base(&key.metric) == rule.metric,
    };
    metric && rule.scenario.as_ref().is_none_or(|s| *s == key.scenario)
}

/// The demands of a rule, each with the words that reports show for it.
fn demands(rule: &Rule, kind: Option<&'static MetricKind>) -> Vec<(Demand, String)> {
    let unit = kind.map_or("", |k| k.unit);
    let limit = |words: &str, value: f64| format!("{words} {}", say::with_unit(&say::typed(value), unit).trim_end());
    let worse = match kind.map(|k| k.direction) {
        Some(Direction::HigherIsBetter) => "lower",
        Some(Direction::LowerIsBetter) => "higher",
        _ => "worse",
    };
    let mut out = Vec::new();
    out.extend(rule.at_least.map(|v| (Demand::AtLeast(v), limit("at least", v))));
    out.extend(rule.at_most.map(|v| (Demand::AtMost(v), limit("at most", v))));
    out.extend(
        rule.regression_percent_max
            .map(|p| (Demand::Regression(p), format!("at most {} % {worse} than the baseline", say::typed(p)))),
    );
    if out.is_empty() {
        out.push((Demand::Present, "data required".to_owned()));
    }
    out
}

fn all_demands(demands: &[(Demand, String)]) -> String {
    demands.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(", ")
}

fn required(rule: &Rule) -> String {
    all_demands(&demands(rule, metric::find(&rule.metric)))
}

/// No sample of the metric at all: missing data are never a pass, and the cells tell what happened.
fn nothing_matches(rule: &Rule, device: &DeviceData, run: &RunData) -> Finding {
    let inconclusive = |what: String| Finding::new(Outcome::Inconclusive, what);
    if let Some(scenario) = rule.scenario.as_ref().filter(|s| !run.manifest.scenarios.contains(s)) {
        return inconclusive(format!(
            "no {}: the scenario {scenario} is not part of this run; run it as well",
            rule.metric
        ));
    }
    let of_rule = |c: &&CellData| rule.scenario.as_ref().is_none_or(|s| *s == c.scenario);
    let cells: Vec<&CellData> = device.cells.iter().filter(of_rule).collect();
    let started: Vec<&CellData> = cells.iter().copied().filter(|c| c.attempts > 0).collect();
    if started.is_empty() {
        return inconclusive(format!("no {}: none of {} was started", rule.metric, say::count(cells.len(), "cell")));
    }
    let candidates: Vec<&CellData> = started.iter().copied().filter(|c| c.arm == Arm::Candidate).collect();
    let baselines: Vec<&CellData> = started.iter().copied().filter(|c| c.arm == Arm::Baseline).collect();
    let told = format!("no {} from {}", rule.metric, say::count(started.len(), "cell"));
    let blameless = rule.regression_percent_max.is_some() && all_crashed(&baselines).is_some();
    if let Some(how) = all_crashed(&candidates).filter(|_| !blameless) {
        return Finding::new(Outcome::Fail, format!("{told}: every cell of the candidate ended with {how}"));
    }
    // cells that ended well and measured nothing are no fault of the environment
    let ended_badly: Vec<Observation> = started
        .iter()
        .filter(|c| !matches!(c.exit, Some(farmgate_engine::protocol::ExitCause::Done)) || !c.invalid.is_empty())
        .map(|c| c.observation(&rule.metric))
        .collect();
    let lost = losses(&ended_badly);
    let interrupted = farmgate_engine::protocol::ReasonCode::Interrupted;
    if ended_badly.len() == started.len() && lost.keys().any(|r| *r != interrupted) {
        return Finding::new(Outcome::Invalid, format!("{told}: {}", say::reasons(&lost)));
    }
    let why = match (metric::find(&rule.metric).is_some_and(|k| k.worst_counts), lost.is_empty()) {
        (true, _) => "no answers are recorded for this model (scenarios/golden/)".to_owned(),
        (false, true) => "no step of its scenario yields it".to_owned(),
        (false, false) => say::reasons(&lost),
    };
    inconclusive(format!("{told}: {why}"))
}

fn outcome(rule: &Rule, device: &str, series: Option<&Series>, demand: &str, finding: Finding) -> RuleOutcome {
    let (scenario, metric) = match series {
        Some(s) => (s.key.scenario.clone(), s.key.metric.clone()),
        None => (rule.scenario.clone().unwrap_or_default(), rule.metric.clone()),
    };
    RuleOutcome {
        rule: rule.name.clone(),
        device: device.to_owned(),
        scenario,
        metric,
        severity: rule.severity,
        demand: demand.to_owned(),
        outcome: finding.outcome,
        sentence: finding.sentence,
        estimate: finding.estimate,
        limit: finding.limit,
        is_comparison: false,
    }
}
