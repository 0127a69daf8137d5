use super::attention::*;
use super::*;
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

fn halves(len: usize, seed: u32) -> Vec<f16> {
    noise(len, seed).into_iter().map(f16::from_f32).collect()
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
            let (mut a, mut b) = (vec![f16::ZERO; len], vec![f16::ZERO; len]);
            narrow(isa, &x, &mut a);
            narrow(Isa::Scalar, &x, &mut b);
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn one_token_attention_agrees_with_the_specification(
        heads in 1usize..9, positions in 0usize..70, dim in prop::sample::select(vec![8usize, 16, 24, 40, 64, 80, 128]),
        spare in 0usize..5, seed: u32,
    ) {
        let stride = positions + spare;
        let (q, cache) = (noise(heads * dim, seed), halves(positions * dim, seed ^ 1));
        for isa in others() {
            let (mut ours, mut spec) = (vec![0.0; heads * stride], vec![0.0; heads * stride]);
            score_keys(isa, &q, &cache, dim, &mut ours, stride);
            score_keys(Isa::Scalar, &q, &cache, dim, &mut spec, stride);
            close(&ours, &spec, 1e-5);
            let (mut a, mut b) = (q.clone(), q.clone());
            gather_values(isa, &spec, stride, &cache, dim, &mut a);
            gather_values(Isa::Scalar, &spec, stride, &cache, dim, &mut b);
            close(&a, &b, 1e-5);
        }
    }

    #[test]
    fn tiles_and_products_agree_with_the_specification(
        m in 1usize..20, k in 1usize..70, n in 1usize..70, positions in 0usize..=TILE_KEYS,
        dim in prop::sample::select(vec![5usize, 8, 24, 64]), seed: u32,
    ) {
        let (a, b, c) = (noise(m * (k + 1), seed), noise(k * (n + 3), seed ^ 1), noise(m * (n + 2), seed ^ 2));
        let keys = halves(positions * dim, seed ^ 3);
        for isa in others() {
            let (mut ours, mut spec) = (c.clone(), c.clone());
            for (isa, out) in [(isa, &mut ours), (Isa::Scalar, &mut spec)] {
                let (a, b) = (Rows { data: &a, stride: k + 1 }, Rows { data: &b, stride: n + 3 });
                multiply_accumulate(isa, (m, k, n), a, b, out, n + 2);
            }
            close(&ours, &spec, 1e-5);
            let (mut ours, mut spec) = (vec![7.0; dim * TILE_KEYS], vec![7.0; dim * TILE_KEYS]);
            widen_transposed(isa, &keys, dim, &mut ours);
            widen_transposed(Isa::Scalar, &keys, dim, &mut spec);
            prop_assert_eq!(ours, spec);
            let (mut ours, mut spec) = (vec![0.0; keys.len()], vec![0.0; keys.len()]);
            widen(isa, &keys, &mut ours);
            widen(Isa::Scalar, &keys, &mut spec);
            prop_assert_eq!(ours, spec);
        }
    }
}
