//! The verdict and the rules.

use super::Context;
use crate::gate::{Judgement, Outcome, RuleOutcome, Severity, Verdict};
use crate::report::text;
use crate::report::view::{CountView, RuleView, VerdictView};

/// Rules shown on a page, at most.
const RULES_MAX: usize = 5_000;

/// Every outcome, worst first.
const OUTCOMES: [Outcome; 5] = [Outcome::Fail, Outcome::Infra, Outcome::Invalid, Outcome::Inconclusive, Outcome::Pass];

/// Position of an outcome, the worst first.
pub fn rank(outcome: Outcome) -> usize {
    OUTCOMES.iter().position(|o| *o == outcome).unwrap_or(0)
}

/// `PASS`, `FAIL`, `INVALID`, `INCONCLUSIVE` or `INFRA`.
pub fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "PASS",
        Outcome::Fail => "FAIL",
        Outcome::Invalid => "INVALID",
        Outcome::Inconclusive => "INCONCLUSIVE",
        Outcome::Infra => "INFRA",
    }
}

/// CSS class of an outcome.
pub fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail => "fail",
        Outcome::Invalid => "invalid",
        Outcome::Inconclusive => "inconclusive",
        Outcome::Infra => "infra",
    }
}

/// Whether the estimate is a ratio of candidate to baseline.
pub fn is_comparison(outcome: &RuleOutcome) -> bool {
    outcome.is_comparison
}

/// The verdict, or that there is none.
pub fn verdict(judgement: Option<&Judgement>) -> VerdictView {
    let Some(judgement) = judgement else {
        return VerdictView {
            word: "NO VERDICT",
            class: "none",
            sentence: "no gate policy was applied to this run: the figures are measurements, not a judgement".into(),
            policy: String::new(),
            exit_code: None,
            counts: Vec::new(),
            informing: 0,
        };
    };
    let (word_shown, class_shown) = match judgement.verdict {
        Verdict::Go => ("GO", "pass"),
        Verdict::NoGo => ("NO-GO", "fail"),
        Verdict::Inconclusive => ("INCONCLUSIVE", "inconclusive"),
    };
    let critical = || judgement.outcomes.iter().filter(|o| o.severity == Severity::Critical);
    let count = |outcome: &Outcome| CountView {
        word: word(*outcome),
        class: class(*outcome),
        count: critical().filter(|o| o.outcome == *outcome).count(),
    };
    VerdictView {
        word: word_shown,
        class: class_shown,
        sentence: text::clean_sentence(&judgement.sentence),
        policy: text::clean(&judgement.policy),
        exit_code: Some(judgement.exit as u8),
        counts: OUTCOMES.iter().map(count).filter(|c| c.count > 0).collect(),
        informing: judgement.outcomes.len() - critical().count(),
    }
}

/// The rules in the judgement's order, bounded.
pub fn rules(context: &mut Context, judgement: Option<&Judgement>) -> Vec<RuleView> {
    let Some(judgement) = judgement else { return Vec::new() };
    if judgement.outcomes.len() > RULES_MAX {
        context.cuts.push(format!(
            "{} of {} rule outcomes are shown, worst first; all are in report.json",
            RULES_MAX,
            judgement.outcomes.len()
        ));
    }
    judgement.outcomes.iter().take(RULES_MAX).map(|outcome| rule(context, outcome)).collect()
}

fn rule(context: &Context, outcome: &RuleOutcome) -> RuleView {
    let unit = text::unit_of(&outcome.metric);
    let show = |value: f64| match is_comparison(outcome) {
        true => text::change(value),
        false => text::quantity(value, unit),
    };
    let bounds = |low: f64, high: f64| match is_comparison(outcome) || text::is_unitless(unit) {
        true => format!("{} to {}", show(low), show(high)),
        false => format!("{} to {} {unit}", text::number(low), text::number(high)),
    };
    let estimate = outcome.estimate.as_ref();
    RuleView {
        rule: text::clean(&outcome.rule),
        device: text::clean(&outcome.device),
        device_id: context.device_id(&outcome.device),
        scenario: text::clean(&outcome.scenario),
        metric: text::clean(&outcome.metric),
        critical: outcome.severity == Severity::Critical,
        outcome: word(outcome.outcome),
        class: class(outcome.outcome),
        demand: text::clean_sentence(&outcome.demand),
        found: estimate.map(|e| show(e.point)).unwrap_or_default(),
        interval: estimate
            .map(|e| format!("{} ({:.0} %)", bounds(e.low, e.high), e.confidence * 100.0))
            .unwrap_or_default(),
        n: estimate.map_or(0, |e| e.n),
        method: estimate.map(|e| text::clean_sentence(&e.method)).unwrap_or_default(),
        sentence: text::clean_sentence(&outcome.sentence),
        why: text::as_sentence(&text::clean_sentence(why(outcome))),
    }
}

/// The outcome's sentence without the words that stand in the table beside it.
fn why(outcome: &RuleOutcome) -> &str {
    let named = format!("{} in {}", outcome.metric, outcome.scenario);
    let Some(rest) = outcome.sentence.strip_prefix(&named) else { return &outcome.sentence };
    let asked = format!(", {}", outcome.demand);
    let rest = rest.strip_prefix(&asked).unwrap_or(rest);
    rest.strip_prefix(": ").unwrap_or(&outcome.sentence)
}
