use super::*;
use crate::kernels::vector::attention::narrow;
use crate::kv_cache::{CacheOptions, KvCache, KvPolicy, LayerWidths};
use crate::protocol::KvType;

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

/// A cache of one layer, and beside it what was written, as a plain list: of every head (positions, dim).
struct Pair {
    cache: KvCache,
    widths: LayerWidths,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Pair {
    fn new(widths: LayerWidths, options: &CacheOptions, context: usize, batch_max: usize) -> Self {
        let cache = KvCache::new(&[widths], options, context, batch_max).unwrap();
        Self { cache, widths, keys: vec![Vec::new(); widths.kv_heads], values: vec![Vec::new(); widths.kv_heads] }
    }

    /// Writes noise for `tokens` more positions.
    fn write(&mut self, tokens: usize) {
        let first = self.cache.depth();
        self.cache.grow(tokens);
        let layer = self.cache.layer(0);
        for kv_head in 0..self.widths.kv_heads {
            for position in first..first + tokens {
                let seed = (position * self.widths.kv_heads + kv_head) as u32;
                for (place, written, seed) in
                    [(layer.keys, &mut self.keys, 2 * seed), (layer.values, &mut self.values, 2 * seed + 1)]
                {
                    let row = &mut layer.bytes[place.bytes_of(kv_head, position..position + 1)];
                    narrow(Isa::Scalar, place.kv_type(), &noise(place.dim(), seed), row);
                    let at = written[kv_head].len();
                    written[kv_head].resize(at + place.dim(), 0.0);
                    let rows = place.rows(layer.bytes, kv_head, position..position + 1);
                    widen(Isa::Scalar, rows, &mut written[kv_head][at..]);
                }
            }
        }
    }

    /// The definition, over all that was ever written, in double precision; `seen` says which positions a token at a
    /// position sees.
    fn reference(
        &self,
        (heads, factor, cap): (usize, f32, Option<f32>),
        queries: &[f32],
        first: usize,
        seen: impl Fn(usize, usize) -> bool,
    ) -> Vec<f32> {
        let LayerWidths { kv_heads, key_dim, value_dim, .. } = self.widths;
        let mut out = Vec::new();
        for (i, query) in queries.chunks_exact(key_dim).enumerate() {
            let (token, kv) = (first + i / heads, i % heads / (heads / kv_heads));
            let score = |key: &[f32]| {
                let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let score = dot * f64::from(factor);
                cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let keys = self.keys[kv].chunks_exact(key_dim).enumerate();
            let scores: Vec<(usize, f64)> =
                keys.filter(|(p, _)| *p <= token && seen(token, *p)).map(|(p, key)| (p, score(key))).collect();
            let largest = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.1));
            let total: f64 = scores.iter().map(|s| (s.1 - largest).exp()).sum();
            for d in 0..value_dim {
                let value = |p: usize| f64::from(self.values[kv][p * value_dim + d]);
                let mixed: f64 = scores.iter().map(|(p, s)| (s - largest).exp() / total * value(*p)).sum();
                out.push(mixed as f32);
            }
        }
        out
    }

    /// Attention of the last `tokens` positions, against the definition.
    fn compare(
        &mut self,
        (heads, factor, cap): (usize, f32, Option<f32>),
        tokens: usize,
        within: f32,
        seen: impl Fn(usize, usize) -> bool,
        what: &str,
    ) {
        let LayerWidths { kv_heads, key_dim, value_dim, .. } = self.widths;
        let first = self.cache.depth() - tokens;
        let queries = noise(tokens * heads * key_dim, 3);
        let real = self.reference((heads, factor, cap), &queries, first, seen);
        for (isa, threads) in [(Isa::Scalar, 1), (Isa::detect(), 2)] {
            let layer = self.cache.layer(0);
            let attention = Attention { scale: factor, cap, ..Attention::over(&layer, isa, (heads, kv_heads), first) };
            let pool = Pool::new(threads).unwrap();
            let mut scratch = AttentionScratch::new(threads, heads, heads / kv_heads, key_dim, value_dim);
            let mut out = vec![0.0; tokens * heads * value_dim];
            attention.run(&pool, &mut scratch, &queries, &mut out);
            for (at, (ours, real)) in out.iter().zip(&real).enumerate() {
                assert!((ours - real).abs() < within, "{what} {isa:?} element {at}: {ours} against {real}");
            }
        }
    }
}

fn options(key_type: KvType, value_type: KvType, policy: KvPolicy) -> CacheOptions {
    CacheOptions { key_type, value_type, policy }
}

#[test]
fn every_split_and_tile_follows_the_definition() {
    // (heads, kv heads, key dim, value dim, first, tokens, window, cap)
    let cases = [
        (9, 3, 64, 64, 0, 1, None, None),
        (9, 3, 64, 64, 700, 1, None, None),
        (4, 2, 64, 32, 300, 1, Some(130), Some(5.0)),
        (9, 3, 64, 64, 0, 65, None, None),
        (14, 2, 64, 64, 131, 40, None, None),
        (4, 1, 48, 24, 190, 50, Some(100), Some(5.0)),
        (2, 2, 8, 8, 3, 2, Some(1), None),
    ];
    for (i, (heads, kv_heads, key_dim, value_dim, first, tokens, window, cap)) in cases.into_iter().enumerate() {
        let widths = LayerWidths { kv_heads, key_dim, value_dim, window };
        let mut pair = Pair::new(widths, &CacheOptions::default(), first + tokens + 64, first + tokens + 64);
        // what lies past the last token must not matter, whatever it is
        pair.cache.layer(0).bytes.fill(0xff);
        pair.write(first + tokens);
        let seen = |token: usize, p: usize| token - p < window.unwrap_or(usize::MAX);
        pair.compare((heads, 0.125, cap), tokens, 2e-5, seen, &format!("case {i}"));
    }
}

#[test]
fn every_pair_of_types_follows_the_definition() {
    let widths = LayerWidths { kv_heads: 2, key_dim: 64, value_dim: 96, window: None };
    for key_type in KvType::ALL {
        for value_type in KvType::ALL {
            let mut pair = Pair::new(widths, &options(key_type, value_type, KvPolicy::Full), 400, 400);
            pair.cache.layer(0).bytes.fill(0xff);
            pair.write(333);
            // a single token's query is rounded to 8 bits when keys are codes: scores move by up to 0.02 here
            let one = if key_type == KvType::F16 { 2e-5 } else { 3e-2 };
            for (tokens, within) in [(1, one), (20, 2e-5)] {
                let what = format!("{key_type:?} {value_type:?} {tokens} tokens");
                pair.compare((6, 0.05, None), tokens, within, |_, _| true, &what);
            }
        }
    }
}

#[test]
fn a_cache_that_forgets_follows_the_masked_definition() {
    // (policy, the layer's own window, seen from the start, seen at the end)
    let cases = [
        (KvPolicy::Window { last_tokens: 100 }, None, 0, 100),
        (KvPolicy::Window { last_tokens: 64 }, Some(40), 0, 40),
        (KvPolicy::Sink { first_tokens: 4, last_tokens: 96 }, None, 4, 96),
        (KvPolicy::Sink { first_tokens: 70, last_tokens: 30 }, None, 70, 30),
        (KvPolicy::Sink { first_tokens: 4, last_tokens: 60 }, Some(50), 0, 50),
        (KvPolicy::Full, Some(33), 0, 33),
    ];
    for (policy, window, first, last) in cases {
        let widths = LayerWidths { kv_heads: 2, key_dim: 32, value_dim: 32, window };
        let context = if policy == KvPolicy::Full { 2000 } else { 128 };
        let mut pair = Pair::new(widths, &options(KvType::F16, KvType::F16, policy), context, 50);
        pair.cache.layer(0).bytes.fill(0xff);
        let bytes_max = pair.cache.bytes_max();
        for tokens in [1, 50, 13, 1, 50, 1, 37].into_iter().cycle().take(40) {
            pair.write(tokens);
            let seen = |token: usize, p: usize| p < first || token - p < last;
            let what = format!("{policy:?} {window:?} at {}", pair.cache.depth());
            pair.compare((4, 0.1, None), tokens, 2e-5, seen, &what);
        }
        assert!(pair.cache.depth() > 800);
        assert_eq!(pair.cache.bytes(), bytes_max, "{policy:?} {window:?}");
        // at most first + last + batch positions, each in whole pages, and where the batch begins in one
        let positions_max = first.next_multiple_of(64) + (last + 50).next_multiple_of(64) + 64;
        assert!(bytes_max <= (positions_max * 2 * 2 * 32 * 2) as u64, "{policy:?}: {bytes_max} bytes");
    }
}

#[test]
fn blocks_fill_whole_products_within_their_rows() {
    for group in 1..=40 {
        let rows = block_tokens(group) * group;
        assert!(rows <= BLOCK_ROWS, "{rows} rows for a group of {group}");
        assert!(rows.is_multiple_of(PRODUCT_ROWS) || group > 16, "{rows} rows for a group of {group}");
    }
    assert_eq!([1, 3, 4, 7, 97].map(block_tokens), [96, 32, 24, 12, 1]);
}
