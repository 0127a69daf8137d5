//! Random numbers from a seed: the same seed gives the same verdict on every machine.

/// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that always gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0. By the high half of a product (Lemire, 2019) without rejection: the bias is
    /// below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }
}

/// A seed made from words, for instance the names of a series: FNV-1a, 64 bits.
pub fn seed_of(words: &[&str]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for word in words {
        // a byte that no text contains keeps `ab`, `c` apart from `a`, `bc`
        for byte in word.bytes().chain([0xFF]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // first outputs for seed 1234567, as given with the reference implementation in C
        let mut r = SplitMix64::new(1_234_567);
        assert_eq!([r.next_u64(), r.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_below_n_cover_the_range_and_stay_in_it() {
        let mut r = SplitMix64::new(1);
        let mut seen = [0u32; 7];
        (0..7000).for_each(|_| seen[r.below(7)] += 1);
        assert!(seen.iter().all(|c| (800..1200).contains(c)), "{seen:?}");
        assert_eq!(r.below(0), 0);
    }

    #[test]
    fn words_that_are_cut_elsewhere_give_another_seed() {
        assert_ne!(seed_of(&["ab", "c"]), seed_of(&["a", "bc"]));
    }
}
