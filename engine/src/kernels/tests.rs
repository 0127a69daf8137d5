//! Every kernel agrees with the scalar specification.

use super::*;
use proptest::prelude::*;

/// All that this processor has or that can be emulated on it, which is slow: about a million instructions in ten seconds.
pub(crate) fn isas() -> Vec<Isa> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    return emulated::available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
    return Isa::available();
}

/// Random blocks with sane scales: noise everywhere, then the half-precision fields set to small numbers.
fn noise_row(tensor_type: TensorType, cols: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut bytes: Vec<u8> = (0..tensor_type.row_bytes(cols).unwrap()).map(|_| next() as u8).collect();
    let halves: &[usize] = match tensor_type {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        TensorType::F16 => &[0],
        TensorType::F32 | TensorType::Bf16 => &[],
    };
    for block in bytes.chunks_exact_mut(tensor_type.block_bytes()) {
        let x = (next() % 2000) as f32 / 1000.0 - 1.0;
        for at in halves {
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(x * 0.1).to_le_bytes());
        }
        match tensor_type {
            TensorType::F32 => block.copy_from_slice(&x.to_le_bytes()),
            TensorType::Bf16 => block.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
            _ => {}
        }
    }
    bytes
}

/// What each instruction set made of a product, from each layout.
type OfEachIsa = Vec<(Isa, Layout, Vec<f32>)>;

/// The same rows in every layout that the instruction set has for them; strips are packed in two goes.
fn layouts(isa: Isa, weights: WeightRows<'_>, rows: usize) -> Vec<(Layout, Vec<u8>)> {
    let mut all = vec![(Layout::Rows, weights.data.to_vec())];
    let bytes = |rows| strips_bytes(isa, weights.tensor_type, weights.cols, rows);
    if let Some(size) = bytes(rows) {
        let mut strips = vec![0xa5; size];
        let first = rows.min(STRIP_ROWS);
        let (head, tail) = strips.split_at_mut(bytes(first).unwrap());
        pack(isa, weights, 0..first, head);
        if rows > first {
            pack(isa, weights, first..rows, tail);
        }
        all.push((Layout::Strips, strips));
    }
    all
}

/// Products by the specification, by everything else that this processor has, and the sum of magnitudes that the bound is
/// relative to.
fn all_forms(
    tensor_type: TensorType,
    rows: usize,
    cols: usize,
    n: usize,
    x: &[f32],
    seed: u64,
) -> (Vec<f32>, OfEachIsa, Vec<f32>) {
    let data: Vec<u8> =
        (0..rows).flat_map(|r| noise_row(tensor_type, cols, seed.wrapping_add(r as u64 * 7919))).collect();
    let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
    let mut acts = Activations::new(cols, n);
    let run = |isa: Isa, weights: WeightRows<'_>, acts: &Activations| {
        let mut out = vec![f32::NAN; rows * n];
        matmul(isa, weights, 0..rows, acts, SharedOut::over(&mut out, rows));
        out
    };
    acts.fill(Isa::Scalar, activation_format(tensor_type), x, n, cols);
    let expected = run(Isa::Scalar, weights, &acts);
    let mut magnitude = vec![0.0; rows * n];
    let mut row_values = vec![0.0; cols];
    for r in 0..rows {
        crate::quant::dequantise_row(tensor_type, weights.row(r), &mut row_values);
        for c in 0..n {
            magnitude[c * rows + r] = row_values.iter().zip(&x[c * cols..]).map(|(w, x)| (w * x).abs()).sum();
        }
    }
    let mut others = Vec::new();
    let small = rows * n <= 60;
    let forms = if small { isas() } else { Isa::available() };
    for isa in forms.into_iter().filter(|isa| *isa != Isa::Scalar) {
        acts.fill(isa, activation_format(tensor_type), x, n, cols);
        for (layout, data) in layouts(isa, weights, rows) {
            others.push((isa, layout, run(isa, WeightRows { layout, data: &data, ..weights }, &acts)));
        }
    }
    (expected, others, magnitude)
}

/// Stated bound: f32 rounding of a sum of this many terms, against the sum of their magnitudes, plus the offsets' part.
const BOUND: f32 = 2e-4;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_kernels_of_this_processor_agree_with_the_specification(
        blocks in 1usize..5, rows in 1usize..20, n in 1usize..20, spread in 0.01f32..100.0, seed in any::<u64>(),
    ) {
        for tensor_type in TensorType::ALL {
            // small blocks in numbers that are no multiple of eight, whose scales are handled together, and more than it
            let cols = match tensor_type.block_elements() { 1 => blocks * 37, 32 => blocks * 7 * 32, e => blocks * e };
            let mut state = seed | 1;
            let x: Vec<f32> = (0..n * cols).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * spread
            }).collect();
            let (expected, others, magnitude) = all_forms(tensor_type, rows, cols, n, &x, seed);
            for (isa, layout, got) in others {
                for ((e, g), m) in expected.iter().zip(&got).zip(&magnitude) {
                    // offsets cancel against codes, so the terms that are added are larger than the products
                    prop_assert!(
                        (e - g).abs() <= BOUND * (m * 8.0 + spread),
                        "{isa:?} {layout:?} {tensor_type} {rows}x{cols} n {n}: {e} != {g}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_range_of_rows_in_the_middle_writes_those_rows_and_no_other() {
    // more rows than one batch of unpacked ones holds, in odd numbers, with odd numbers of vectors
    let (cols, rows, range) = (256, 700, 3..698);
    for tensor_type in TensorType::ALL {
        let data: Vec<u8> = (0..rows).flat_map(|r| noise_row(tensor_type, cols, r as u64 + 5)).collect();
        let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
        for n in [1usize, 2, 3, 5, 9] {
            let x: Vec<f32> = (0..n * cols).map(|i| ((i * 29) % 101) as f32 / 50.0 - 1.0).collect();
            let mut acts = Activations::new(cols, n);
            acts.fill(Isa::detect(), activation_format(tensor_type), &x, n, cols);
            let run = |isa, weights: WeightRows<'_>, range: Range<usize>| {
                let mut out = vec![f32::NAN; rows * n];
                matmul(isa, weights, range, &acts, SharedOut::over(&mut out, rows));
                out
            };
            let slow = run(Isa::Scalar, weights, range.clone());
            for isa in if n == 5 { isas() } else { Isa::available() } {
                for (layout, data) in layouts(isa, weights, rows) {
                    // strips are taken from their first row on
                    let range = if layout == Layout::Rows { range.clone() } else { 8..range.end };
                    let found = run(isa, WeightRows { layout, data: &data, ..weights }, range.clone());
                    for (i, (f, s)) in found.iter().zip(&slow).enumerate() {
                        let inside = range.contains(&(i % rows));
                        assert_eq!(f.is_nan(), !inside, "{isa:?} {layout:?} {tensor_type} n {n} at {i}");
                        let close = (f - s).abs() <= 1e-3 * (1.0 + s.abs());
                        assert!(!inside || close, "{isa:?} {layout:?} {tensor_type} n {n} at {i}: {f} != {s}");
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    // every code at its largest and every activation at 127: the largest 16-bit sums that can occur
    for tensor_type in TensorType::ALL.into_iter().filter(|t| t.block_elements() > 1) {
        let cols = 256;
        for fill in [0x00u8, 0x7f, 0x80, 0xff] {
            let mut data = vec![fill; tensor_type.row_bytes(cols).unwrap()];
            for block in data.chunks_exact_mut(tensor_type.block_bytes()) {
                let halves: &[usize] = match tensor_type {
                    TensorType::Q2K => &[80, 82],
                    TensorType::Q3K => &[108],
                    TensorType::Q6K => &[208],
                    TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
                    _ => &[0, 2],
                };
                for at in halves {
                    block[*at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                }
            }
            for sign in [1.0f32, -1.0] {
                let x = vec![sign; cols * 5];
                let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
                for (isa, n) in isas().into_iter().flat_map(|isa| [(isa, 1), (isa, 5)]) {
                    let mut acts = Activations::new(cols, n);
                    acts.fill(isa, activation_format(tensor_type), &x[..n * cols], n, cols);
                    let mut slow = vec![0.0; n];
                    matmul(Isa::Scalar, weights, 0..1, &acts, SharedOut::over(&mut slow, 1));
                    for (layout, data) in layouts(isa, weights, 1) {
                        let mut fast = vec![0.0; n];
                        let weights = WeightRows { layout, data: &data, ..weights };
                        matmul(isa, weights, 0..1, &acts, SharedOut::over(&mut fast, 1));
                        for (f, s) in fast.iter().zip(&slow) {
                            let close = (f - s).abs() <= s.abs() * 1e-4 + 2.0;
                            assert!(close, "{isa:?} {layout:?} {tensor_type} {fill:#x} {sign} n {n}: {f} != {s}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_shows_in_the_product() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for isa in isas() {
            for tensor_type in TensorType::ALL {
                let data = noise_row(tensor_type, 256, 3);
                let mut x = vec![0.5; 256];
                x[17] = bad;
                let mut acts = Activations::new(256, 1);
                acts.fill(isa, activation_format(tensor_type), &x, 1, 256);
                let mut out = [0.0];
                let weights = WeightRows { layout: Layout::Rows, tensor_type, cols: 256, data: &data };
                matmul(isa, weights, 0..1, &acts, SharedOut::over(&mut out, 1));
                assert!(!out[0].is_finite(), "{tensor_type} {isa:?} {bad}: {}", out[0]);
            }
        }
    }
}

/// AVX2 and NEON have the same bytes for strips, which are what these numbers were made from.
#[test]
fn strips_have_the_same_bytes_on_every_instruction_set_that_has_them() {
    // FNV-1a, 64 bits, of 11 rows of noise
    let recorded: [(TensorType, u64); 10] = [
        (TensorType::Q4_0, 0x5747_38fc_7a91_e6ea),
        (TensorType::Q4_1, 0x2389_eaf7_e1d9_57be),
        (TensorType::Q5_0, 0x38f7_e3e7_82d9_4879),
        (TensorType::Q5_1, 0xc28d_4ea4_4440_b2c4),
        (TensorType::Q8_0, 0x6b8c_767d_a04f_4336),
        (TensorType::Q2K, 0xa6ef_4764_e5ac_646a),
        (TensorType::Q3K, 0xb2aa_fef0_04f5_5a45),
        (TensorType::Q4K, 0x6f2c_3a47_8d02_f226),
        (TensorType::Q5K, 0x9b86_fdd2_7854_c4f8),
        (TensorType::Q6K, 0x1f1d_c638_979a_a660),
    ];
    let (rows, cols) = (11, 512);
    for (tensor_type, expected) in recorded {
        let data: Vec<u8> = (0..rows).flat_map(|r| noise_row(tensor_type, cols, r as u64 + 3)).collect();
        let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
        for isa in Isa::available() {
            for (_, strips) in layouts(isa, weights, rows).into_iter().filter(|(layout, _)| *layout == Layout::Strips) {
                let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
                let found = strips.iter().fold(0xcbf2_9ce4_8422_2325, add);
                assert_eq!(found, expected, "{isa:?} {tensor_type}: {found:#018x}");
            }
        }
    }
}

/// Text depends neither on the processor's generation nor on the layout, nor, where that is wanted, on how many tokens are run
/// together.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn a_product_has_the_same_bits_on_every_instruction_set_in_every_layout_and_batch() {
    let (rows, n) = (11, 14);
    for tensor_type in TensorType::ALL {
        let floats = tensor_type.block_elements() == 1;
        let cols = if floats { 1094 } else { 768 };
        let data: Vec<u8> = (0..rows).flat_map(|r| noise_row(tensor_type, cols, r as u64 + 17)).collect();
        let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
        let x: Vec<f32> = (0..n * cols).map(|i| ((i * 31) % 211) as f32 / 100.0 - 1.0).collect();
        let run = |isa: Isa, weights: WeightRows<'_>, first: usize, count: usize| {
            let mut acts = Activations::new(cols, count);
            acts.want_as_alone(true);
            acts.fill(isa, activation_format(tensor_type), &x[first * cols..(first + count) * cols], count, cols);
            let mut out = vec![f32::NAN; rows * count];
            matmul(isa, weights, 0..rows, &acts, SharedOut::over(&mut out, rows));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let mut one_by_one = None;
        for isa in isas().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let layouts = layouts(isa, weights, rows);
            assert_eq!(layouts.len(), if floats { 1 } else { 2 }, "{isa:?} {tensor_type}");
            for (layout, data) in layouts {
                let weights = WeightRows { layout, data: &data, ..weights };
                for batch in [1, 2, 3, 4, 5, 9, n] {
                    let of_batch = |i: usize| run(isa, weights, i, batch.min(n - i));
                    let found: Vec<u32> = (0..n).step_by(batch).flat_map(of_batch).collect();
                    let expected = one_by_one.get_or_insert_with(|| found.clone());
                    assert_eq!(&found, expected, "{isa:?} {layout:?} {tensor_type} in batches of {batch}");
                }
            }
        }
    }
}

/// All that kernels read of `n` vectors, as bits.
fn bits_of(acts: &Activations) -> Vec<u32> {
    let mut all = Vec::new();
    for n in 0..acts.n() {
        if acts.format().is_quantised() {
            all.extend(acts.codes(n).iter().map(|c| *c as u32));
            all.extend([acts.scales(n), acts.sums_32(n)].into_iter().flatten().map(|v| v.to_bits()));
            all.extend(acts.code_sums(n).iter().map(|sum| *sum as u32));
        } else {
            all.extend(acts.floats(n).iter().map(|v| v.to_bits()));
        }
    }
    all
}

/// Vectors with what rounding must not stumble over: zeros, ties of magnitude, numbers that overflow a half-precision scale.
fn vectors_to_round(n: usize, cols: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n * cols).map(|i| ((i * 7919 + 13) % 2003) as f32 / 500.0 - 2.0).collect();
    x[..32].fill(0.0);
    x[32..64].fill(-1.5);
    (x[70], x[90]) = (7.5, -7.5);
    (x[300], x[310], x[520]) = (-9.25, 9.25, 1e9);
    x
}

#[test]
fn activations_are_rounded_alike_by_every_instruction_set_and_in_any_pieces() {
    let (n, cols) = (3, 768);
    let x = vectors_to_round(n, cols);
    for format in ActivationFormat::ALL {
        let mut specification = Activations::new(cols, n);
        specification.fill(Isa::Scalar, format, &x, n, cols);
        for isa in isas() {
            let mut acts = Activations::new(cols, n);
            acts.fill(isa, format, &x, n, cols);
            assert_eq!(bits_of(&acts), bits_of(&specification), "{isa:?} {format:?}");
            let mut pieces = Activations::new(cols, n);
            // SAFETY: one thread, which puts everything.
            let filling = unsafe { pieces.begin(isa, format, (n, cols)) };
            for at in (0..n * cols).step_by(filling.block_elements()).rev() {
                filling.put(at / cols, at % cols, &x[at..at + filling.block_elements()]);
            }
            assert_eq!(bits_of(&pieces), bits_of(&specification), "{isa:?} {format:?} in pieces");
        }
    }
}

#[test]
fn a_norm_that_is_rounded_at_once_has_the_bits_of_one_that_was_written_first() {
    let (n, cols) = (3, 768);
    let x = vectors_to_round(n, cols);
    let weight: Vec<f32> = (0..cols).map(|i| 0.5 + (i % 11) as f32 / 7.0).collect();
    for format in ActivationFormat::ALL {
        for isa in isas() {
            let mut normed = vec![0.0; n * cols];
            for (x, out) in x.chunks_exact(cols).zip(normed.chunks_exact_mut(cols)) {
                vector::rms_norm(isa, x, &weight, 1e-5, out);
            }
            let (mut apart, mut fused) = (Activations::new(cols, n), Activations::new(cols, n));
            apart.fill(isa, format, &normed, n, cols);
            // SAFETY: one thread, which puts everything.
            let filling = unsafe { fused.begin(isa, format, (n, cols)) };
            for (vector, x) in x.chunks_exact(cols).enumerate() {
                filling.put_normed(vector, x, &weight, 1e-5);
            }
            assert_eq!(bits_of(&fused), bits_of(&apart), "{isa:?} {format:?}");
        }
    }
}

#[test]
fn products_can_be_added_to_what_is_there() {
    let (cols, rows) = (256, 21);
    let x: Vec<f32> = vectors_to_round(13, cols).into_iter().map(|v| v.clamp(-10.0, 10.0)).collect();
    for tensor_type in TensorType::ALL {
        let data: Vec<u8> = (0..rows).flat_map(|r| noise_row(tensor_type, cols, 77 + r)).collect();
        let weights = WeightRows { layout: Layout::Rows, tensor_type, cols, data: &data };
        for (isa, n) in isas().into_iter().flat_map(|isa| [1, 2, 13].map(|n| (isa, n))) {
            let mut acts = Activations::new(cols, n);
            acts.fill(isa, activation_format(tensor_type), &x[..n * cols], n, cols);
            for (layout, data) in layouts(isa, weights, rows as usize) {
                let weights = WeightRows { layout, data: &data, ..weights };
                let (mut products, mut sums) = (vec![0.0; n * rows as usize], vec![0.0; n * rows as usize]);
                sums.iter_mut().enumerate().for_each(|(i, v)| *v = i as f32 - 7.0);
                matmul(isa, weights, 0..rows as usize, &acts, SharedOut::over(&mut products, rows as usize));
                matmul(isa, weights, 0..rows as usize, &acts, SharedOut::over(&mut sums, rows as usize).adding());
                for (i, (sum, product)) in sums.iter().zip(&products).enumerate() {
                    assert_eq!(*sum, i as f32 - 7.0 + product, "{isa:?} {layout:?} {tensor_type} n {n} at {i}");
                }
            }
        }
    }
}
