//! From logits to a token: greedy, or seeded with temperature, top-k, min-p and top-p. The same logits and seed give the
//! same token on every architecture: arithmetic is f64 with an exponential of its own, and ties go to the lowest id.

/// SplitMix64, a small generator of well mixed 64-bit numbers (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
/// number generators"). Not for secrets.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in 0..1, from the upper 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Chooses tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    seeded: Option<Seeded>,
    /// (id, logit), used again for every token.
    candidates: Vec<(u32, f32)>,
}

#[derive(Debug, Clone)]
struct Seeded {
    random: SplitMix64,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
}

impl Sampler {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { seeded: None, candidates: Vec::new() }
    }

    /// Draws from the distribution that is left after `top_k` (0: all), `min_p` (0: all) and `top_p` (1: all), at this
    /// temperature. A temperature of 0 is greedy.
    pub fn seeded(seed: u64, temperature: f32, top_k: usize, top_p: f32, min_p: f32) -> Self {
        if temperature <= 0.0 {
            return Self::greedy();
        }
        let seeded = Seeded {
            random: SplitMix64::new(seed),
            temperature: temperature.into(),
            top_k,
            top_p: top_p.into(),
            min_p: min_p.into(),
        };
        Self { seeded: Some(seeded), candidates: Vec::new() }
    }

    /// Whether it always takes the most likely token.
    pub fn is_greedy(&self) -> bool {
        self.seeded.is_none()
    }

    /// The next token for these logits. NaN is never chosen; when there is nothing else, the answer is 0.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        match &mut self.seeded {
            None => argmax(logits),
            Some(seeded) => {
                self.candidates.clear();
                self.candidates
                    .extend((0u32..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY));
                seeded.draw(&mut self.candidates)
            }
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best =
        (0u32..).zip(logits).filter(|(_, x)| !x.is_nan()).fold(None, |best: Option<(u32, f32)>, (id, &x)| match best {
            Some((_, most)) if x <= most => best,
            _ => Some((id, x)),
        });
    best.map_or(0, |(id, _)| id)
}

impl Seeded {
    fn draw(&mut self, candidates: &mut Vec<(u32, f32)>) -> u32 {
        // higher logit first, lower id first among equals; adding 0 makes both zeros the same
        let order = |a: &(u32, f32), b: &(u32, f32)| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0));
        let k = if self.top_k == 0 { candidates.len() } else { self.top_k.min(candidates.len()) };
        if k == 0 {
            return 0;
        }
        if k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, order);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(order);
        let most = f64::from(candidates[0].1);
        if most.is_infinite() {
            return candidates[0].0;
        }
        let weight = |logit: f32| exp_of_negative((f64::from(logit) - most) / self.temperature);
        let kept = candidates.iter().take_while(|(_, logit)| weight(*logit) >= self.min_p).count().max(1);
        candidates.truncate(kept);
        let total: f64 = candidates.iter().map(|(_, logit)| weight(*logit)).sum();
        let mut mass = 0.0;
        let nucleus = candidates.iter().position(|(_, logit)| {
            mass += weight(*logit);
            mass >= self.top_p * total
        });
        candidates.truncate(nucleus.map_or(candidates.len(), |last| last + 1));
        let total: f64 = candidates.iter().map(|(_, logit)| weight(*logit)).sum();
        let mut left = self.random.next_f64() * total;
        for (id, logit) in candidates.iter() {
            left -= weight(*logit);
            if left < 0.0 {
                return *id;
            }
        }
        candidates[candidates.len() - 1].0
    }
}

/// e to the power of `x` <= 0. The platforms' own functions differ in the last bit, and with them, now and then, the
/// drawn token; additions and multiplications do not.
fn exp_of_negative(x: f64) -> f64 {
    // ln 2 in two parts, the first with enough trailing zeros for an exact product with the exponent
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x < -708.0 {
        return 0.0;
    }
    let exponent = (x * std::f64::consts::LOG2_E).round();
    let rest = (x - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    // |rest| <= 0.35: 14 terms of the Taylor series leave less than 1e-17
    let series = (1..=14).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    let power_of_two = f64::from_bits(((1023 + exponent as i64) as u64) << 52);
    series * power_of_two
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_that_of_the_platform_to_fifteen_digits() {
        for i in 0..7080 {
            let x = -0.1 * f64::from(i);
            let (ours, theirs) = (exp_of_negative(x), x.exp());
            assert!((ours - theirs).abs() <= 1e-15 * theirs.max(1e-300), "{x}: {ours} {theirs}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert_eq!(exp_of_negative(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn infinities_zeros_and_nan_are_sampled_without_panic() {
        let mut sampler = Sampler::seeded(3, 0.7, 0, 0.9, 0.05);
        assert_eq!(sampler.sample(&[0.0, f32::INFINITY, f32::INFINITY]), 1);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, f32::NAN]), 0);
        assert_eq!(sampler.sample(&[]), 0);
        let mut top_one = Sampler::seeded(3, 1.0, 1, 1.0, 0.0);
        assert_eq!(top_one.sample(&[-0.0, 0.0]), 0);
        let mut odd = Sampler::seeded(3, f32::NAN, 0, f32::NAN, f32::NAN);
        assert!(odd.sample(&[1.0, 2.0]) < 2);
    }

    #[test]
    fn splitmix_gives_the_published_sequence() {
        // first outputs for seed 1234567, from the reference implementation in C
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_never_nan() {
        assert_eq!(Sampler::greedy().sample(&[f32::NAN, 1.0, 3.0, 3.0]), 2);
        assert_eq!(Sampler::greedy().sample(&[f32::NAN]), 0);
        assert_eq!(Sampler::greedy().sample(&[]), 0);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let draw = |seed| {
            let mut sampler = Sampler::seeded(seed, 1.0, 0, 1.0, 0.0);
            (0..50).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0f32, (3.0f32).ln()];
        let mut sampler = Sampler::seeded(7, 1.0, 0, 1.0, 0.0);
        let ones = (0..4000).filter(|_| sampler.sample(&logits) == 1).count();
        assert!((2850..3150).contains(&ones), "{ones} of 4000, 3000 expected");
    }

    #[test]
    fn filters_leave_only_the_likely_tokens() {
        let logits = [0.0f32, 5.0, 4.9, -3.0, f32::NAN];
        for mut sampler in [
            Sampler::seeded(1, 1.0, 2, 1.0, 0.0),
            Sampler::seeded(1, 1.0, 0, 0.9, 0.0),
            Sampler::seeded(1, 1.0, 0, 1.0, 0.5),
        ] {
            for _ in 0..200 {
                assert!([1, 2].contains(&sampler.sample(&logits)));
            }
        }
        assert_eq!(Sampler::seeded(1, 0.0, 0, 1.0, 0.0).sample(&logits), 1);
    }
}
