//! Everything of a forward pass that is not a matrix product with weights: norms, activations, rotation, exponentials.
//!
//! Each function is written once, as loops that a compiler can vectorise, and compiled twice: for any processor (the
//! specification) and with fused multiply-add, for AVX2 or for NEON. The two differ in the rounding of multiply-adds only.

use super::Isa;

/// Lanes of a reduction: partial sums that a vector unit keeps side by side, four 8-lane registers.
const LANES: usize = 32;

/// Makes `pub fn name(isa, ...)` from `name_body::<FMA>(...)`, compiled for each instruction set.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $name:ident = $body:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        pub fn $name(isa: Isa, $($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if isa.has_avx2() {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn wide($($arg: $type),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                // SAFETY: such a value is only made where avx2, fma and f16c have been detected.
                return unsafe { wide($($arg),*) };
            }
            // every 64-bit Arm has fused multiply-add, in vectors too
            #[cfg(target_arch = "aarch64")]
            if isa != Isa::Scalar {
                return $body::<true>($($arg),*);
            }
            let _ = isa;
            $body::<false>($($arg),*)
        }
    };
}

// below the macro, which it uses too
pub mod attention;

/// `a * b + c`, in one rounding where the processor has it (without it, the exact form is a slow library call).
#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

for_each_isa! {
    /// `out = x / sqrt(mean(x²) + eps) * weight`, all of one length.
    rms_norm = rms_norm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32])
}

#[inline(always)]
fn rms_norm_body<const FMA: bool>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = rms_scale_body::<FMA>(x, eps);
    scale_each_body::<FMA>(x, scale, weight, out);
}

for_each_isa! {
    /// The factor of [`rms_norm`]: `1 / sqrt(mean(x²) + eps)`.
    rms_scale = rms_scale_body(x: &[f32], eps: f32) -> f32
}

#[inline(always)]
fn rms_scale_body<const FMA: bool>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot_body::<FMA>(x, x) / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    /// `out = x * factor * weight`, element by element, all of one length.
    scale_each = scale_each_body(x: &[f32], factor: f32, weight: &[f32], out: &mut [f32])
}

#[inline(always)]
fn scale_each_body<const FMA: bool>(x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
    for ((o, &v), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * factor * w;
    }
}

for_each_isa! {
    /// [`rms_norm`] onto itself, as for the norms of query and key heads.
    rms_norm_in_place = rms_norm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32)
}

#[inline(always)]
fn rms_norm_in_place_body<const FMA: bool>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = rms_scale_body::<FMA>(x, eps);
    for (v, &w) in x.iter_mut().zip(weight) {
        *v *= scale * w;
    }
}

for_each_isa! {
    /// The dot product of two vectors of one length.
    dot = dot_body(a: &[f32], b: &[f32]) -> f32
}

#[inline(always)]
fn dot_body<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(&x, &y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] = multiply_add::<FMA>(x[i], y[i], lanes[i]);
        }
    }
    sum_of_lanes(lanes) + rest
}

/// Pairwise, so that the rounding of a long sum does not depend on its order of arrival.
#[inline(always)]
fn sum_of_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

for_each_isa! {
    /// `x += y`, of one length.
    add = add_body(x: &mut [f32], y: &[f32])
}

#[inline(always)]
fn add_body<const FMA: bool>(x: &mut [f32], y: &[f32]) {
    for (a, &b) in x.iter_mut().zip(y) {
        *a += b;
    }
}

for_each_isa! {
    /// `x *= factor`.
    scale = scale_body(x: &mut [f32], factor: f32)
}

#[inline(always)]
fn scale_body<const FMA: bool>(x: &mut [f32], factor: f32) {
    for a in x {
        *a *= factor;
    }
}

for_each_isa! {
    /// `gate = silu(gate) * up`, the feed-forward gate of llama and qwen.
    silu_mul = silu_mul_body(gate: &mut [f32], up: &[f32])
}

#[inline(always)]
fn silu_mul_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp::<FMA>(-*g)) * u;
    }
}

for_each_isa! {
    /// `gate = gelu(gate) * up` with the tanh form of GELU, the feed-forward gate of gemma.
    gelu_mul = gelu_mul_body(gate: &mut [f32], up: &[f32])
}

#[inline(always)]
fn gelu_mul_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    for (g, &u) in gate.iter_mut().zip(up) {
        let x = *g;
        let inner = SQRT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x);
        *g = 0.5 * x * (1.0 + tanh::<FMA>(inner)) * u;
    }
}

for_each_isa! {
    /// `x = cap * tanh(x / cap)`.
    soft_cap = soft_cap_body(x: &mut [f32], cap: f32)
}

#[inline(always)]
fn soft_cap_body<const FMA: bool>(x: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    for v in x {
        *v = cap * tanh::<FMA>(*v * inverse);
    }
}

for_each_isa! {
    /// The largest element; minus infinity for none.
    max = max_body(x: &[f32]) -> f32
}

#[inline(always)]
fn max_body<const FMA: bool>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder().iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    lanes.iter().fold(rest, |m, &v| if v > m { v } else { m })
}

for_each_isa! {
    /// `x = exp(x - shift)`; returns the sum. With `shift` = the maximum, the upper half of a softmax.
    exp_and_sum = exp_and_sum_body(x: &mut [f32], shift: f32) -> f32
}

#[inline(always)]
fn exp_and_sum_body<const FMA: bool>(x: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for i in 0..LANES {
            chunk[i] = exp::<FMA>(chunk[i] - shift);
            lanes[i] += chunk[i];
        }
    }
    let mut rest = 0.0;
    for v in chunks.into_remainder() {
        *v = exp::<FMA>(*v - shift);
        rest += *v;
    }
    sum_of_lanes(lanes) + rest
}

for_each_isa! {
    /// Rotates neighbouring pairs (llama): `(x[2i], x[2i+1])` by the angle of `cos[i]`, `sin[i]`.
    rotate_interleaved = rotate_interleaved_body(x: &mut [f32], cos: &[f32], sin: &[f32])
}

#[inline(always)]
fn rotate_interleaved_body<const FMA: bool>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, &c), &s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
    }
}

for_each_isa! {
    /// Rotates pairs half the vector apart (NeoX): `(x[i], x[i+n])` by the angle of `cos[i]`, `sin[i]`, n = `cos.len()`.
    rotate_halves = rotate_halves_body(x: &mut [f32], cos: &[f32], sin: &[f32])
}

#[inline(always)]
fn rotate_halves_body<const FMA: bool>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(cos.len());
    for (((l, h), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*l, *h) = (*l * c - *h * s, *l * s + *h * c);
    }
}

for_each_isa! {
    /// Whether no element is NaN or infinite.
    all_finite = all_finite_body(x: &[f32]) -> bool
}

#[inline(always)]
fn all_finite_body<const FMA: bool>(x: &[f32]) -> bool {
    // 0 * finite = 0; 0 * infinity and 0 * NaN are NaN, which no later sum takes away
    let mut lanes = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder().iter().fold(0.0, |sum, &v| sum + 0.0 * v);
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += 0.0 * chunk[i];
        }
    }
    sum_of_lanes(lanes) + rest == 0.0
}

/// Index of the largest element, the first of equals; NaN is never the largest. 0 for an empty slice.
pub fn argmax(isa: Isa, x: &[f32]) -> usize {
    let largest = max(isa, x);
    x.iter().position(|&v| v == largest).unwrap_or(0)
}

/// e^x within 2 units in the last place between -87 and 88; below, a number near 1e-38, above, near 1e38.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first with trailing zeroes, so that n * LN2_HIGH is exact
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // adding and subtracting 1.5 * 2^23 rounds to an integer, which then stands in the low mantissa bits
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = multiply_add::<FMA>(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FMA>(n, -LN2_HIGH, x);
    let r = multiply_add::<FMA>(n, -LN2_LOW, r);
    // Taylor's series to r^7 / 7! on |r| <= ln 2 / 2, by Horner's rule
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = multiply_add::<FMA>(p, r, c);
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    p * power
}

/// tanh through [`exp`]; exact at the ends, absolute error below 1e-6.
#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    1.0 - 2.0 / (exp::<FMA>(2.0 * x) + 1.0)
}

#[cfg(test)]
mod tests;
