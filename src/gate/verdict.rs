//! From outcomes to the campaign's verdict and exit code.

use super::{Judgement, Outcome, RuleOutcome, Severity, Verdict, say};
use crate::error::ExitCode;
use crate::run::RunState;

/// At which level each rule was judged; every campaign's sentence says so.
const LEVEL: &str = "each demand judged by itself at one-sided 5 %, not corrected for their number";

/// Puts outcomes in order and decides.
pub(super) fn decide(policy: &str, mut outcomes: Vec<RuleOutcome>, state: RunState) -> Judgement {
    outcomes.sort_by_key(|o| (o.severity != Severity::Critical, weight(o.outcome)));
    let critical: Vec<&RuleOutcome> = outcomes.iter().filter(|o| o.severity == Severity::Critical).collect();
    let count = |outcome| critical.iter().filter(|o| o.outcome == outcome).count();
    let [fail, infra, invalid, inconclusive, pass] =
        [Outcome::Fail, Outcome::Infra, Outcome::Invalid, Outcome::Inconclusive, Outcome::Pass].map(count);
    let n = critical.len();
    let unfinished = match state {
        RunState::Complete => None,
        state => Some(format!(
            "the run is {}, and what is missing could have changed everything; only a complete run decides",
            state.as_str()
        )),
    };
    let worst =
        critical.first().filter(|o| o.outcome == Outcome::Fail || (unfinished.is_none() && o.outcome != Outcome::Pass));
    let first = worst.map(|o| format!("; the first: {} on {}: {}", o.rule, o.device, o.sentence)).unwrap_or_default();
    let (verdict, exit, why) = if fail > 0 {
        let unfinished = unfinished.map(|u| format!("; {u}")).unwrap_or_default();
        (Verdict::NoGo, ExitCode::NoGo, format!("{}{unfinished}", broken(fail, n)))
    } else if n == 0 {
        (
            Verdict::Inconclusive,
            ExitCode::Inconclusive,
            "no critical rule applied to this run, so nothing was decided; a policy with a critical rule for what ran \
             would decide"
                .to_owned(),
        )
    } else if let Some(unfinished) = unfinished {
        (Verdict::Inconclusive, ExitCode::Inconclusive, unfinished)
    } else if pass == n {
        (Verdict::Go, ExitCode::Go, all_met(n))
    } else {
        let exit = match () {
            () if infra == n => ExitCode::Infra,
            () if invalid == n => ExitCode::Invalid,
            () => ExitCode::Inconclusive,
        };
        let parts =
            [(pass, "met"), (inconclusive, "undecided"), (invalid, "invalid"), (infra, "lost to devices or links")];
        let counts: Vec<String> = parts.iter().filter(|(k, _)| *k > 0).map(|(k, word)| format!("{k} {word}")).collect();
        (Verdict::Inconclusive, exit, format!("of {}, {}", say::count(n, "critical demand"), counts.join(", ")))
    };
    Judgement { policy: policy.to_owned(), verdict, sentence: format!("{why}; {LEVEL}{first}"), outcomes, exit }
}

fn all_met(n: usize) -> String {
    if n == 1 { "the one critical demand is met".to_owned() } else { format!("all {n} critical demands are met") }
}

fn broken(fail: usize, n: usize) -> String {
    match (fail, n) {
        (1, 1) => "the one critical demand is broken".to_owned(),
        (1, n) => format!("1 of {n} critical demands is broken"),
        (fail, n) => format!("{fail} of {n} critical demands are broken"),
    }
}

/// Worst first.
fn weight(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Fail => 0,
        Outcome::Infra => 1,
        Outcome::Invalid => 2,
        Outcome::Inconclusive => 3,
        Outcome::Pass => 4,
    }
}
