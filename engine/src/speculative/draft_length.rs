//! How many tokens the draft should propose: as many as pay by what was accepted lately, none when none pay.
//!
//! What pays depends on the machine: where decoding waits for memory, a token more in the target's pass is almost free;
//! where it waits for arithmetic, it costs nearly a pass. So costs are measured. The clock decides about lengths alone,
//! and lengths about speed alone: tokens never depend on it.

use super::DRAFT_TOKENS_MAX;
use crate::error::{EngineError, Result};

/// What earlier passes still count for after one more.
const MEMORY: f64 = 0.9;
/// Before anything is known, as if 9 of 10 proposals were accepted, with the weight of 2 of them: hopeful, since a draft
/// that is never asked is never known.
const PRIOR_ACCEPTED: f64 = 1.8;
const PRIOR_TRIED: f64 = 2.0;
/// Most tokens to propose in the pass after a sleep: a cheap question.
const WOKEN_TOKENS_MAX: usize = 2;
/// Passes without the draft after it did not pay; doubled each time that it still does not.
const SLEEP_PASSES_MIN: u32 = 8;
const SLEEP_PASSES_MAX: u32 = 64;

/// How a draft is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftOptions {
    /// Tokens to propose at least; 0 lets the draft sleep when it does not pay.
    pub tokens_min: usize,
    /// Tokens to propose at most, 1 to [`DRAFT_TOKENS_MAX`].
    pub tokens_max: usize,
    /// What proposals cost.
    pub cost: DraftCost,
}

/// What proposals cost, in passes of the target over one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DraftCost {
    /// As the clock says, pass by pass.
    Measured,
    /// As given here; the same acceptances then give the same lengths.
    Given {
        /// One token of the draft.
        draft: f64,
        /// One more token in a pass of the target.
        check: f64,
    },
}

/// How long a pass took.
#[derive(Debug, Clone, Copy)]
pub struct PassTimes {
    /// One token of the draft, seconds; `None` when no proposal was timed by itself.
    pub draft_token_s: Option<f64>,
    /// The target's pass over all tokens, seconds.
    pub target_s: f64,
}

/// The running estimate.
#[derive(Debug, Clone)]
pub struct DraftLength {
    options: DraftOptions,
    /// Proposals accepted, and tried (up to the first rejected one), the recent ones weighing more.
    accepted: f64,
    tried: f64,
    asleep_passes: u32,
    sleep_passes: u32,
    /// Measured: a pass over one token, a token of the draft, one more token in a pass.
    single_s: Option<f64>,
    draft_s: Option<f64>,
    check_s: Option<f64>,
}

/// Follows a time downwards at once and upwards slowly: what disturbs a measurement only ever makes it longer.
fn follow(estimate: &mut Option<f64>, seconds: f64) {
    const RISE: f64 = 0.1;
    *estimate = Some(match *estimate {
        Some(old) if seconds > old => old + RISE * (seconds - old).min(old),
        _ => seconds,
    });
}

impl DraftLength {
    /// A usage error for lengths or a cost that make no sense.
    pub fn new(options: DraftOptions) -> Result<Self> {
        let DraftOptions { tokens_min, tokens_max, cost } = options;
        if tokens_max == 0 || tokens_max > DRAFT_TOKENS_MAX || tokens_min > tokens_max {
            return Err(EngineError::usage(format!("a draft of {tokens_min} to {tokens_max} tokens makes no sense"))
                .hint(format!("at least 1 and at most {DRAFT_TOKENS_MAX} tokens, the least not above the most")));
        }
        if let DraftCost::Given { draft, check } = cost
            && !(draft.is_finite() && check.is_finite() && draft >= 0.0 && check >= 0.0)
        {
            return Err(EngineError::usage(format!("a draft's cost of {draft} and {check} makes no sense")));
        }
        Ok(Self {
            options,
            accepted: PRIOR_ACCEPTED,
            tried: PRIOR_TRIED,
            asleep_passes: 0,
            sleep_passes: SLEEP_PASSES_MIN,
            single_s: None,
            draft_s: None,
            check_s: None,
        })
    }

    /// Tokens to propose in the next pass; 0 leaves the draft alone.
    pub fn choose(&mut self) -> usize {
        let DraftOptions { tokens_min, tokens_max, cost } = self.options;
        if cost == DraftCost::Measured && self.check_s.is_none() {
            // first a pass without the draft, to compare with, then a short one with it
            let first = if self.single_s.is_none() { 0 } else { WOKEN_TOKENS_MAX };
            return first.clamp(tokens_min, tokens_max);
        }
        let woken = match self.asleep_passes {
            0 => false,
            1 => {
                // what was learnt is old: start afresh
                (self.accepted, self.tried) = (PRIOR_ACCEPTED, PRIOR_TRIED);
                self.asleep_passes = 0;
                true
            }
            _ => {
                self.asleep_passes -= 1;
                return 0;
            }
        };
        let (best, gain) = self.best();
        if woken {
            return best.min(WOKEN_TOKENS_MAX);
        }
        if gain > 1.0 || tokens_min > 0 {
            return best;
        }
        self.asleep_passes = self.sleep_passes;
        self.sleep_passes = (2 * self.sleep_passes).min(SLEEP_PASSES_MAX);
        0
    }

    /// The number of proposals that pays best, and what it pays.
    fn best(&self) -> (usize, f64) {
        let DraftOptions { tokens_min, tokens_max, .. } = self.options;
        (tokens_min.max(1)..=tokens_max)
            .map(|k| (k, self.gain(k)))
            .fold((tokens_max, 0.0), |best, next| if next.1 > best.1 { next } else { best })
    }

    /// Tokens per time with `k` proposals, over that without: each is accepted with the running ratio p, if those before
    /// it were, so 1 + p + p^2 + ... + p^k tokens come out, for 1 pass, k draft tokens and k more tokens checked.
    fn gain(&self, k: usize) -> f64 {
        let p = self.accepted / self.tried;
        let (tokens, _) = (0..=k).fold((0.0, 1.0), |(sum, power), _| (sum + power, power * p));
        tokens / (1.0 + k as f64 * self.cost())
    }

    /// One proposal and its check, in passes of the target over one token.
    fn cost(&self) -> f64 {
        match (self.options.cost, self.single_s) {
            (DraftCost::Given { draft, check }, _) => draft + check,
            (DraftCost::Measured, Some(single)) if single > 0.0 => {
                (self.draft_s.unwrap_or(0.0) + self.check_s.unwrap_or(0.0)) / single
            }
            // nothing to compare with: a clock too coarse, or a least length from the first pass on
            (DraftCost::Measured, _) => 0.0,
        }
    }

    /// Takes in what became of `drafted` proposals, of which the first `accepted` were right, and the time that it took.
    pub fn learn(&mut self, drafted: usize, accepted: usize, times: PassTimes) {
        if let Some(seconds) = times.draft_token_s {
            follow(&mut self.draft_s, seconds);
        }
        match (drafted, self.single_s) {
            (0, _) => follow(&mut self.single_s, times.target_s),
            (_, Some(single)) => follow(&mut self.check_s, (times.target_s - single).max(0.0) / drafted as f64),
            (_, None) => {}
        }
        if drafted > 0 {
            // what comes after the first wrong one was not tried
            let tried = drafted.min(accepted + 1);
            self.accepted = MEMORY * self.accepted + accepted as f64;
            self.tried = MEMORY * self.tried + tried as f64;
            if accepted == drafted && self.best().1 > 1.0 {
                self.sleep_passes = SLEEP_PASSES_MIN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(tokens_min: usize, tokens_max: usize, draft: f64) -> DraftOptions {
        DraftOptions { tokens_min, tokens_max, cost: DraftCost::Given { draft, check: 0.3 } }
    }

    fn length(tokens_min: usize, tokens_max: usize, draft: f64) -> DraftLength {
        DraftLength::new(options(tokens_min, tokens_max, draft)).unwrap()
    }

    const NO_TIME: PassTimes = PassTimes { draft_token_s: None, target_s: 0.0 };

    /// Lengths of the next `passes` passes when each proposal is accepted or none is.
    fn lengths(length: &mut DraftLength, passes: usize, right: bool) -> Vec<usize> {
        let mut pass = || {
            let drafted = length.choose();
            length.learn(drafted, if right { drafted } else { 0 }, NO_TIME);
            drafted
        };
        (0..passes).map(|_| pass()).collect()
    }

    #[test]
    fn a_good_and_cheap_draft_is_asked_for_more_up_to_the_most() {
        let mut length = length(0, 8, 0.1);
        let asked = lengths(&mut length, 40, true);
        assert!(asked[0] >= 1 && asked.windows(2).all(|w| w[0] <= w[1]), "{asked:?}");
        assert_eq!(asked[39], 8, "{asked:?}");
    }

    #[test]
    fn a_draft_that_is_always_wrong_sleeps_and_is_tried_again_ever_more_rarely() {
        let mut length = length(0, 8, 0.1);
        let asked = lengths(&mut length, 1000, false);
        assert!(asked[100..].iter().filter(|&&k| k > 0).count() < 100, "{asked:?}");
        assert!(asked[900..].iter().any(|&k| k > 0), "never tried again: {asked:?}");
        // the longest run of passes without it is the longest sleep
        let longest = asked.split(|&k| k > 0).map(<[usize]>::len).max();
        assert_eq!(longest, Some(SLEEP_PASSES_MAX as usize), "{asked:?}");
    }

    #[test]
    fn a_draft_that_becomes_right_wakes_up_again() {
        let mut length = length(0, 8, 0.1);
        lengths(&mut length, 300, false);
        let asked = lengths(&mut length, 150, true);
        assert_eq!(asked[149], 8, "{asked:?}");
    }

    #[test]
    fn a_draft_as_dear_as_the_target_is_left_alone_unless_a_least_length_is_asked_for() {
        let asked = lengths(&mut length(0, 8, 1.0), 100, true);
        assert!(asked.iter().sum::<usize>() < 20, "{asked:?}");
        assert!(lengths(&mut length(3, 8, 1.0), 100, false).iter().all(|&k| k == 3));
        assert!(lengths(&mut length(5, 5, 1.0), 100, true).iter().all(|&k| k == 5));
    }

    #[test]
    fn lengths_and_costs_that_make_no_sense_are_refused() {
        for (min, max, cost) in
            [(0, 0, 0.1), (3, 2, 0.1), (0, DRAFT_TOKENS_MAX + 1, 0.1), (0, 4, f64::NAN), (0, 4, -1.0)]
        {
            let options = options(min, max, cost);
            assert!(DraftLength::new(options).is_err(), "{options:?}");
        }
    }

    /// Lengths where the draft is always right, a pass takes 1 s, a token of the draft and one more in a pass these parts.
    fn measured(draft_s: f64, check_s: f64) -> Vec<usize> {
        let options = DraftOptions { tokens_min: 0, tokens_max: 8, cost: DraftCost::Measured };
        let mut length = DraftLength::new(options).unwrap();
        let mut pass = |i: usize| {
            let drafted = length.choose();
            // now and then something disturbs
            let slow = if i % 7 == 6 { 20.0 } else { 1.0 };
            let draft_token_s = (drafted > 0).then_some(slow * draft_s);
            let target_s = slow * (1.0 + drafted as f64 * check_s);
            length.learn(drafted, drafted, PassTimes { draft_token_s, target_s });
            drafted
        };
        (0..60).map(&mut pass).collect()
    }

    #[test]
    fn measured_costs_decide_whether_a_draft_that_is_always_right_is_asked() {
        let cheap = measured(0.1, 0.1);
        assert_eq!(cheap[0], 0, "the first pass is there to compare with: {cheap:?}");
        assert!(cheap[40..].iter().all(|&k| k == 8), "{cheap:?}");
        // 1 + 1 tokens for 1 + 0.4 + 0.85 passes: slower than without
        let dear = measured(0.4, 0.85);
        assert!(dear.iter().sum::<usize>() < 20 && dear[10..].iter().any(|&k| k > 0), "{dear:?}");
    }
}
