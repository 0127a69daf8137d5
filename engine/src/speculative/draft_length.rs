//! How many tokens the draft should propose: as many as pay by what was accepted lately, none when none pay.

use super::DRAFT_TOKENS_MAX;
use crate::error::{EngineError, Result};
use crate::model::Model;

/// What one more token in an exact batch costs, in passes of the target over one token: the weights are in the cache by
/// then, so arithmetic alone remains.
const CHECK_COST: f64 = 0.3;
/// What earlier passes still count for after one more.
const MEMORY: f64 = 0.9;
/// Before anything is known, as if 7 of 10 proposals were accepted, with the weight of 2 of them.
const PRIOR_ACCEPTED: f64 = 1.4;
const PRIOR_TRIED: f64 = 2.0;
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
    /// Time of one token of the draft, in passes of the target over one token.
    pub cost: f64,
}

impl DraftOptions {
    /// Up to `tokens_max` tokens, at the cost that the models' sizes suggest: a token takes as long as its weights take
    /// to be read.
    pub fn for_models(target: &Model, draft: &Model, tokens_min: usize, tokens_max: usize) -> Self {
        let cost = draft.weight_bytes() as f64 / target.weight_bytes().max(1) as f64;
        Self { tokens_min, tokens_max, cost }
    }
}

/// The running estimate. The same acceptances give the same lengths: no clock is read.
#[derive(Debug, Clone)]
pub struct DraftLength {
    options: DraftOptions,
    /// Proposals accepted, and tried (up to the first rejected one), the recent ones weighing more.
    accepted: f64,
    tried: f64,
    asleep_passes: u32,
    sleep_passes: u32,
}

impl DraftLength {
    /// A usage error for lengths or a cost that make no sense.
    pub fn new(options: DraftOptions) -> Result<Self> {
        let DraftOptions { tokens_min, tokens_max, cost } = options;
        if tokens_max == 0 || tokens_max > DRAFT_TOKENS_MAX || tokens_min > tokens_max {
            return Err(EngineError::usage(format!("a draft of {tokens_min} to {tokens_max} tokens makes no sense"))
                .hint(format!("at least 1 and at most {DRAFT_TOKENS_MAX} tokens, the least not above the most")));
        }
        if !cost.is_finite() || cost < 0.0 {
            return Err(EngineError::usage(format!("a draft's cost of {cost} makes no sense")));
        }
        let (accepted, tried) = (PRIOR_ACCEPTED, PRIOR_TRIED);
        Ok(Self { options, accepted, tried, asleep_passes: 0, sleep_passes: SLEEP_PASSES_MIN })
    }

    /// Tokens to propose in the next pass; 0 leaves the draft alone.
    pub fn choose(&mut self) -> usize {
        let DraftOptions { tokens_min, tokens_max, .. } = self.options;
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
        let (best, gain) = (tokens_min.max(1)..=tokens_max)
            .map(|k| (k, self.gain(k)))
            .fold((tokens_max, 0.0), |best, next| if next.1 > best.1 { next } else { best });
        if gain > 1.0 || tokens_min > 0 {
            if !woken {
                self.sleep_passes = SLEEP_PASSES_MIN;
            }
            return best;
        }
        if woken {
            return 1;
        }
        self.asleep_passes = self.sleep_passes;
        self.sleep_passes = (2 * self.sleep_passes).min(SLEEP_PASSES_MAX);
        0
    }

    /// Tokens per time with `k` proposals, over that without: each is accepted with the running ratio p, if those before
    /// it were, so 1 + p + p^2 + ... + p^k tokens come out, for 1 pass, k draft tokens and k more tokens checked.
    fn gain(&self, k: usize) -> f64 {
        let p = self.accepted / self.tried;
        let (tokens, _) = (0..=k).fold((0.0, 1.0), |(sum, power), _| (sum + power, power * p));
        tokens / (1.0 + k as f64 * (self.options.cost + CHECK_COST))
    }

    /// Takes in what became of `drafted` proposals, of which the first `accepted` were right.
    pub fn learn(&mut self, drafted: usize, accepted: usize) {
        if drafted > 0 {
            // what comes after the first wrong one was not tried
            let tried = drafted.min(accepted + 1);
            self.accepted = MEMORY * self.accepted + accepted as f64;
            self.tried = MEMORY * self.tried + tried as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(tokens_min: usize, tokens_max: usize, cost: f64) -> DraftLength {
        DraftLength::new(DraftOptions { tokens_min, tokens_max, cost }).unwrap()
    }

    /// Lengths of the next `passes` passes when each proposal is accepted or none is.
    fn lengths(length: &mut DraftLength, passes: usize, right: bool) -> Vec<usize> {
        let mut pass = || {
            let drafted = length.choose();
            length.learn(drafted, if right { drafted } else { 0 });
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
            let options = DraftOptions { tokens_min: min, tokens_max: max, cost };
            assert!(DraftLength::new(options).is_err(), "{options:?}");
        }
    }
}
