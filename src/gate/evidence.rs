//! What one series of one device offers for judgement, and what speaks against believing it.

use super::{Estimate, Outcome, say};
use crate::metric::MetricKind;
use crate::run::{CellData, DeviceData, Observation, Series};
use crate::stats::Interval;
use farmgate_engine::protocol::{Arm, ExitCause, ReasonCode};
use std::collections::{BTreeMap, BTreeSet};

/// One demand of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Demand {
    /// `at-least`.
    AtLeast(f64),
    /// `at-most`.
    AtMost(f64),
    /// `regression-percent-max`.
    Regression(f64),
    /// `required` without any limit.
    Present,
}

/// What a demand came to; the rule's names are added by the judge.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub outcome: Outcome,
    pub sentence: String,
    pub estimate: Option<Estimate>,
    pub limit: Option<f64>,
}

impl Finding {
    pub fn new(outcome: Outcome, sentence: impl Into<String>) -> Self {
        Self { outcome, sentence: sentence.into(), estimate: None, limit: None }
    }

    pub fn with(mut self, interval: &Interval, limit: f64) -> Self {
        self.estimate = Some(Estimate {
            point: interval.point.get(),
            low: interval.low.get(),
            high: interval.high.get(),
            confidence: interval.confidence,
            n: interval.n,
            method: interval.method.to_owned(),
        });
        self.limit = Some(limit);
        self
    }
}

/// One series with the cells it comes from.
pub(super) struct Evidence<'a> {
    pub device: &'a DeviceData,
    pub kind: &'static MetricKind,
    pub series: &'a Series,
}

impl<'a> Evidence<'a> {
    /// Cells of the series' scenario on this device.
    pub fn cells(&self) -> impl Iterator<Item = &'a CellData> {
        let key = &self.series.key;
        self.device.cells.iter().filter(|c| c.scenario == key.scenario && c.config == key.config)
    }

    pub fn arm_cells(&self, arm: Arm) -> Vec<&'a CellData> {
        self.cells().filter(|c| c.arm == arm).collect()
    }

    /// `decode-tps@0 in latency`.
    pub fn name(&self) -> String {
        format!("{} in {}", self.series.key.metric, self.series.key.scenario)
    }

    /// `decode-tps@0 in latency, at least 5 token/s`: what the sentence of a demand begins with.
    pub fn asked(&self, demand_text: &str) -> String {
        format!("{}, {demand_text}", self.name())
    }

    /// Baseline and candidate have the same model, engine and configuration.
    pub fn is_same_against_same(&self) -> bool {
        let identity = |arm| -> BTreeSet<String> {
            let of = |c: &&CellData| {
                let engine = c.proof.as_ref().map(|p| p.engine_sha256.as_str());
                format!("{:?} {:?} {:?}", c.model_sha256, c.config, engine.or(self.device.engine_sha256.as_deref()))
            };
            self.arm_cells(arm).iter().map(of).collect()
        };
        let baseline = identity(Arm::Baseline);
        baseline.len() == 1 && baseline == identity(Arm::Candidate)
    }

    /// Cells that proved to have run something else than was planned, as a sentence; `None` when all ran what they should.
    pub fn contradiction(&self) -> Option<String> {
        let mut found = Vec::new();
        for arm in [Arm::Baseline, Arm::Candidate] {
            let (mut model, mut engine) = (0, 0);
            for cell in self.arm_cells(arm) {
                let Some(proof) = &cell.proof else { continue };
                model += usize::from(proof.model_sha256 != cell.model_sha256);
                engine += usize::from(self.device.engine_sha256.as_ref().is_some_and(|e| *e != proof.engine_sha256));
            }
            if model > 0 {
                found.push(format!(
                    "{} of the {} opened another model than planned",
                    say::count(model, "cell"),
                    arm.as_str()
                ));
            }
            if engine > 0 {
                found.push(format!(
                    "{} of the {} ran another engine than was pushed",
                    say::count(engine, "cell"),
                    arm.as_str()
                ));
            }
        }
        (!found.is_empty()).then(|| found.join(", "))
    }

    /// Observations of the candidate that were lost to the product itself rather than to its surroundings.
    pub fn product_losses(&self) -> BTreeMap<ReasonCode, usize> {
        let mut lost = losses(&self.series.candidate);
        lost.retain(|code, _| is_product(*code));
        lost
    }

    /// Why nothing of the candidate can be used. `baseline_too`: a comparison, in which a baseline that died as well
    /// says that the candidate is not to blame.
    pub fn nothing_usable(&self, baseline_too: bool) -> Finding {
        let candidate = &self.series.candidate;
        if candidate.is_empty() {
            return Finding::new(
                Outcome::Inconclusive,
                format!("{}: the run planned no cell for the candidate", self.name()),
            );
        }
        let lost = losses(candidate);
        let told = format!(
            "{}: none of {} can be used ({})",
            self.name(),
            say::count(candidate.len(), "observation"),
            say::reasons(&lost)
        );
        if lost.keys().all(|r| *r == ReasonCode::Interrupted) {
            return Finding::new(Outcome::Inconclusive, format!("{told}; let the run come to its end"));
        }
        let cells = self.arm_cells(Arm::Candidate);
        let baseline_died = baseline_too && all_crashed(&self.arm_cells(Arm::Baseline)).is_some();
        match all_crashed(&cells) {
            Some(how) if !baseline_died => {
                Finding::new(Outcome::Fail, format!("{told}; every cell of the candidate ended with {how}"))
            }
            _ => Finding::new(Outcome::Invalid, format!("{told}; measure again when the cause is gone")),
        }
    }
}

/// How often each reason stands against the observations of an arm.
pub(super) fn losses(observations: &[Observation]) -> BTreeMap<ReasonCode, usize> {
    let mut counts = BTreeMap::new();
    for reason in observations.iter().filter_map(|o| o.value.as_ref().err()).flatten() {
        *counts.entry(*reason).or_default() += 1;
    }
    counts
}

/// Whether the product, not its surroundings, lost the sample: dropping such cells would let a candidate pass by dying
/// where it is bad.
fn is_product(code: ReasonCode) -> bool {
    use ReasonCode::{CellDied, GoldenTokensDiffer, LogitsNotFinite, Timeout, TokenCountDiffers};
    matches!(code, CellDied | Timeout | LogitsNotFinite | GoldenTokensDiffer | TokenCountDiffers)
}

/// How the cells crashed, if all of them did: by a signal of their own, or out of memory as the kernel said.
pub(super) fn all_crashed(cells: &[&CellData]) -> Option<String> {
    let how: Option<BTreeSet<String>> = cells
        .iter()
        .map(|c| match &c.exit {
            Some(ExitCause::Crash { signal }) => Some(signal.clone()),
            Some(ExitCause::Killed { by }) if by.starts_with("oom-") => Some(by.clone()),
            _ => None,
        })
        .collect();
    let how = how.filter(|how| !how.is_empty())?;
    Some(how.into_iter().collect::<Vec<_>>().join(", "))
}

/// A clock never shows the same time five times over; a series that does was not measured.
pub(super) fn stands_still(kind: &MetricKind, observations: &[Observation]) -> bool {
    let measured = matches!(kind.unit, "ms" | "s" | "token/s");
    let mut values = observations.iter().filter(|o| o.value.is_ok()).flat_map(|o| &o.repetitions);
    let Some(first) = values.next() else { return false };
    measured && values.clone().count() >= 4 && values.all(|v| v == first)
}

/// Turns a PASS into INCONCLUSIVE when doubts are left, and tells them whatever the outcome is.
pub(super) fn doubt(mut finding: Finding, doubts: &[String]) -> Finding {
    if doubts.is_empty() {
        return finding;
    }
    if finding.outcome == Outcome::Pass {
        finding.outcome = Outcome::Inconclusive;
        finding.sentence.push_str("; yet it does not pass: ");
    } else {
        finding.sentence.push_str("; also: ");
    }
    finding.sentence.push_str(&doubts.join("; "));
    finding
}
