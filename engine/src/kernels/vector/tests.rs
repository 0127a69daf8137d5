use super::attention::*;
use super::*;
use crate::gguf::TensorType;
use crate::protocol::KvType;
use crate::quant::dequantise_row;
use half::f16;
use proptest::prelude::*;

/// The instruction sets to hold against the specification; detection alone would skip the comparison silently.
fn others() -> Vec<Isa> {
    let better: Vec<Isa> = Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar).collect();
    if better.is_empty() {
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIP comparison with the specification: this processor has nothing better than scalar\n"),
        );
    }
    better
}

fn close(a: &[f32], b: &[f32], relative: f32) {
    assert_eq!(a.len(), b.len());
    let size = a.iter().chain(b).fold(1e-6f32, |m, v| m.max(v.abs()));
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= relative * size, "element {i}: {x} against {y}");
    }
}

/// Deterministic noise in -1..1.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Rows of noise, stored.
fn stored(isa: Isa, kv_type: KvType, positions: usize, dim: usize, seed: u32) -> Vec<u8> {
    let row_bytes = kv_type.row_bytes(dim).unwrap();
    let mut data = vec![0; positions * row_bytes];
    for (row, x) in data.chunks_exact_mut(row_bytes).zip(noise(positions * dim, seed).chunks_exact(dim)) {
        narrow(isa, kv_type, x, row);
    }
    data
}

/// A type, and a dimension that it can have.
fn type_and_dim() -> impl Strategy<Value = (KvType, usize)> {
    prop_oneof![
        prop::sample::select(vec![8usize, 16, 24, 40, 64, 80, 128]).prop_map(|dim| (KvType::F16, dim)),
        (prop::sample::select(vec![KvType::Q8_0, KvType::Q4_0]), prop::sample::select(vec![32usize, 64, 96, 128, 256])),
    ]
}

#[test]
fn exp_follows_the_real_one_over_its_whole_range() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        let mut x: Vec<f32> = (0..40_000).map(|i| -86.9 + i as f32 * (173.0 / 40_000.0)).collect();
        let real: Vec<f64> = x.iter().map(|&v| f64::from(v).exp()).collect();
        exp_and_sum(isa, &mut x, 0.0);
        for (ours, real) in x.iter().zip(&real) {
            assert!((f64::from(*ours) / real - 1.0).abs() < 4e-7, "{ours} against {real}");
        }
        let mut ends = [f32::NEG_INFINITY, -200.0, 0.0, 90.0];
        exp_and_sum(isa, &mut ends, 0.0);
        assert!(ends[0] < 1e-37 && ends[1] < 1e-37 && ends[2] == 1.0 && ends[3] > 1e38);
    }
}

#[test]
fn activations_follow_their_definitions() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        let gate: Vec<f32> = (0..201).map(|i| (i as f32 - 100.0) / 8.0).collect();
        let up = noise(gate.len(), 3);
        let mut silu = gate.clone();
        silu_mul(isa, &mut silu, &up);
        let mut gelu = gate.clone();
        gelu_mul(isa, &mut gelu, &up);
        let mut capped = gate.clone();
        soft_cap(isa, &mut capped, 5.0);
        for i in 0..gate.len() {
            let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
            assert!((f64::from(silu[i]) - g / (1.0 + (-g).exp()) * u).abs() < 1e-5);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            assert!((f64::from(gelu[i]) - 0.5 * g * (1.0 + inner.tanh()) * u).abs() < 1e-5);
            assert!((f64::from(capped[i]) - 5.0 * (g / 5.0).tanh()).abs() < 1e-5);
        }
    }
}

#[test]
fn a_single_nan_or_infinity_is_noticed_wherever_it_stands() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        for len in [1, 31, 32, 33, 100] {
            let mut x = noise(len, 9);
            assert!(all_finite(isa, &x));
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let good = std::mem::replace(&mut x[at], bad);
                    assert!(!all_finite(isa, &x), "{bad} at {at} of {len}");
                    x[at] = good;
                }
            }
        }
    }
}

#[test]
fn argmax_takes_the_first_of_equals_and_never_nan() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        let mut x = vec![0.0; 100];
        (x[40], x[70], x[10]) = (2.0, 2.0, f32::NAN);
        assert_eq!(argmax(isa, &x), 40);
        assert_eq!(argmax(isa, &[]), 0);
    }
}

#[test]
fn rotation_by_a_quarter_turn_swaps_the_pair() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rotate_interleaved(isa, &mut x, &cos, &sin);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rotate_halves(isa, &mut x, &cos, &sin);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0]);
    }
}

proptest! {
    #[test]
    fn norms_and_sums_agree_with_the_specification(len in 1usize..700, seed: u32) {
        let (x, w) = (noise(len, seed), noise(len, seed ^ 1));
        for isa in others() {
            let (mut ours, mut spec) = (vec![0.0; len], vec![0.0; len]);
            rms_norm(isa, &x, &w, 1e-5, &mut ours);
            rms_norm(Isa::Scalar, &x, &w, 1e-5, &mut spec);
            close(&ours, &spec, 1e-5);
            let mut own = x.clone();
            rms_norm_in_place(isa, &mut own, &w, 1e-5);
            close(&own, &spec, 1e-5);
            prop_assert_eq!(max(isa, &x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let (mut a, mut b) = (x.clone(), x.clone());
            let sums = [exp_and_sum(isa, &mut a, 1.0), exp_and_sum(Isa::Scalar, &mut b, 1.0)];
            close(&a, &b, 1e-6);
            close(&sums[..1], &sums[1..], 1e-5);
        }
    }

    #[test]
    fn storing_agrees_with_the_specification(
        (kv_type, dim) in type_and_dim(), positions in 1usize..5, seed: u32,
    ) {
        let spec = stored(Isa::Scalar, kv_type, positions, dim, seed);
        for isa in others() {
            prop_assert_eq!(&stored(isa, kv_type, positions, dim, seed), &spec);
        }
        // half a step of the block's largest element, and what rounding the scale adds
        let steps = match kv_type { KvType::F16 => 2048.0, KvType::Q8_0 => 225.0, KvType::Q4_0 => 7.9 };
        let rows = CachedRows { kv_type, dim, data: &spec };
        let mut back = vec![0.0; positions * dim];
        widen(Isa::Scalar, rows, &mut back);
        let x = noise(positions * dim, seed);
        for (x, back) in x.chunks(32).zip(back.chunks(32)) {
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (x, back) in x.iter().zip(back) {
                prop_assert!((x - back).abs() <= largest / steps, "{} became {} of {}", x, back, largest);
            }
        }
    }

    #[test]
    fn one_token_attention_agrees_with_the_specification(
        heads in 1usize..9, positions in 0usize..70, (kv_type, dim) in type_and_dim(), spare in 0usize..5, seed: u32,
    ) {
        let stride = positions + spare;
        let (q, data) = (noise(heads * dim, seed), stored(Isa::Scalar, kv_type, positions, dim, seed ^ 1));
        let cache = CachedRows { kv_type, dim, data: &data };
        let mut buffer = QueryBuffer::new(heads, dim);
        for isa in others() {
            let (mut ours, mut spec) = (vec![0.0; heads * stride], vec![0.0; heads * stride]);
            for (isa, scores) in [(isa, &mut ours), (Isa::Scalar, &mut spec)] {
                buffer.fill(isa, &q, 0.5, kv_type);
                score_keys(isa, buffer.heads(0, heads), cache, &data, scores, stride);
            }
            close(&ours, &spec, 1e-5);
            let (mut a, mut b) = (q.clone(), q.clone());
            gather_values(isa, &spec, stride, cache, &data, &mut a);
            gather_values(Isa::Scalar, &spec, stride, cache, &[], &mut b);
            close(&a, &b, 1e-5);
        }
    }

    #[test]
    fn tiles_and_products_agree_with_the_specification(
        m in 1usize..20, k in 1usize..70, n in 1usize..70, positions in 0usize..=TILE_KEYS,
        (kv_type, dim) in prop_oneof![Just((KvType::F16, 5usize)), type_and_dim()], seed: u32,
    ) {
        let (a, b, c) = (noise(m * (k + 1), seed), noise(k * (n + 3), seed ^ 1), noise(m * (n + 2), seed ^ 2));
        let data = stored(Isa::Scalar, kv_type, positions, dim, seed ^ 3);
        let keys = CachedRows { kv_type, dim, data: &data };
        for isa in others() {
            let (mut ours, mut spec) = (c.clone(), c.clone());
            for (isa, out) in [(isa, &mut ours), (Isa::Scalar, &mut spec)] {
                let (a, b) = (Rows { data: &a, stride: k + 1 }, Rows { data: &b, stride: n + 3 });
                multiply_accumulate(isa, (m, k, n), a, b, out, n + 2);
            }
            close(&ours, &spec, 1e-5);
            let (mut ours, mut spec) = (vec![7.0; dim * TILE_KEYS], vec![7.0; dim * TILE_KEYS]);
            widen_transposed(isa, keys, &mut ours);
            widen_transposed(Isa::Scalar, keys, &mut spec);
            prop_assert_eq!(ours, spec);
            let (mut ours, mut spec) = (vec![0.0; positions * dim], vec![0.0; positions * dim]);
            widen(isa, keys, &mut ours);
            widen(Isa::Scalar, keys, &mut spec);
            prop_assert_eq!(ours, spec);
        }
    }
}

#[test]
fn scores_of_coded_keys_are_those_of_what_the_codes_say() {
    let (dim, positions) = (64, 9);
    for kv_type in [KvType::Q8_0, KvType::Q4_0] {
        let data = stored(Isa::Scalar, kv_type, positions, dim, 5);
        let query: Vec<f32> = noise(dim, 6);
        let mut buffer = QueryBuffer::new(1, dim);
        buffer.fill(Isa::Scalar, &query, 1.0, kv_type);
        let mut scores = vec![0.0; positions];
        let keys = CachedRows { kv_type, dim, data: &data };
        score_keys(Isa::Scalar, buffer.heads(0, 1), keys, &[], &mut scores, positions);
        for (score, row) in scores.iter().zip(data.chunks_exact(kv_type.row_bytes(dim).unwrap())) {
            let mut key = vec![0.0; dim];
            dequantise_row(if kv_type == KvType::Q8_0 { TensorType::Q8_0 } else { TensorType::Q4_0 }, row, &mut key);
            let real: f32 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
            // the query's rounding: half of 1/127 of its largest element for each product
            assert!((score - real).abs() < 64.0 * 0.5 / 127.0 * 0.5, "{score} against {real}");
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_what_is_stored() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        for (kv_type, bad) in KvType::ALL.into_iter().flat_map(|t| [(t, f32::NAN), (t, f32::INFINITY)]) {
            let mut x = noise(64, 4);
            x[33] = bad;
            let mut row = vec![0; kv_type.row_bytes(64).unwrap()];
            narrow(isa, kv_type, &x, &mut row);
            let mut back = vec![0.0; 64];
            widen(isa, CachedRows { kv_type, dim: 64, data: &row }, &mut back);
            assert!(back[..32].iter().all(|v| v.is_finite()) && !back[33].is_finite(), "{isa:?} {kv_type:?}");
        }
    }
}

#[test]
fn halves_are_rounded_to_nearest_even() {
    for isa in others().into_iter().chain([Isa::Scalar]) {
        let x: Vec<f32> = (0..19).map(|i| 1.0 + i as f32 / 2048.0).collect();
        let mut row = vec![0; 38];
        narrow(isa, KvType::F16, &x, &mut row);
        let stored: Vec<f16> = row.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(stored, x.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>());
    }
}
