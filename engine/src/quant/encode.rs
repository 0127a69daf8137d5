//! From numbers to stored blocks: nearest codes for scales taken from the block's extremes. A search for better scales,
//! as converters do it, is not the engine's business.

use crate::error::{EngineError, Result};
use crate::gguf::TensorType;
use half::{bf16, f16};

/// Appends the blocks of one row to `out`.
///
/// # Errors
/// The row is no whole number of blocks, or there is no encoder for the type (Q2_K, Q3_K, Q5_K).
pub fn quantise_row(tensor_type: TensorType, row: &[f32], out: &mut Vec<u8>) -> Result<()> {
    if tensor_type.row_bytes(row.len()).is_none() {
        return Err(EngineError::usage(format!(
            "a row of {} elements is no whole number of {tensor_type} blocks",
            row.len()
        )));
    }
    for block in row.chunks_exact(tensor_type.block_elements()) {
        match tensor_type {
            TensorType::F32 => out.extend(block[0].to_le_bytes()),
            TensorType::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
            TensorType::Bf16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            TensorType::Q4_0 => symmetric(block, 8, out),
            TensorType::Q5_0 => symmetric(block, 16, out),
            TensorType::Q4_1 => with_minimum(block, 15, out),
            TensorType::Q5_1 => with_minimum(block, 31, out),
            TensorType::Q8_0 => q8_0(block, out),
            TensorType::Q4K => q4_k(block, out),
            TensorType::Q6K => q6_k(block, out),
            TensorType::Q2K | TensorType::Q3K | TensorType::Q5K => {
                return Err(EngineError::usage(format!("there is no encoder for {tensor_type}"))
                    .hint("use q4_k, q6_k, q8_0, q4_0, q4_1, q5_0, q5_1, f16, bf16 or f32"));
            }
        }
    }
    Ok(())
}

fn push_half(out: &mut Vec<u8>, x: f32) -> f32 {
    let half = f16::from_f32(x);
    out.extend(half.to_le_bytes());
    half.to_f32()
}

fn code(x: f32, scale: f32, offset: f32, max: u8) -> u8 {
    if scale == 0.0 { offset as u8 } else { (x / scale + offset).round().clamp(0.0, f32::from(max)) as u8 }
}

/// Packs 32 codes of up to 5 bits: the fifth bits first (when there are any), then nibbles j and j + 16 in a byte.
fn push_codes(codes: &[u8], fifth: bool, out: &mut Vec<u8>) {
    if fifth {
        let bits = codes.iter().enumerate().fold(0u32, |bits, (j, c)| bits | u32::from(c >> 4) << j);
        out.extend(bits.to_le_bytes());
    }
    out.extend((0..16).map(|j| codes[j] & 15 | (codes[j + 16] & 15) << 4));
}

fn symmetric(block: &[f32], half_range: u8, out: &mut Vec<u8>) {
    let extreme = block.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    let scale = push_half(out, -extreme / f32::from(half_range));
    let codes: Vec<u8> = block.iter().map(|x| code(*x, scale, f32::from(half_range), 2 * half_range - 1)).collect();
    push_codes(&codes, half_range == 16, out);
}

fn with_minimum(block: &[f32], max: u8, out: &mut Vec<u8>) {
    let low = block.iter().copied().fold(f32::INFINITY, f32::min);
    let high = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = push_half(out, (high - low) / f32::from(max));
    let min = push_half(out, low);
    let codes: Vec<u8> = block.iter().map(|x| code(x - min, scale, 0.0, max)).collect();
    push_codes(&codes, max == 31, out);
}

fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let extreme = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = push_half(out, extreme / 127.0);
    out.extend(
        block.iter().map(|x| if scale == 0.0 { 0 } else { (x / scale).round().clamp(-127.0, 127.0) as i8 as u8 }),
    );
}

fn q4_k(block: &[f32], out: &mut Vec<u8>) {
    let groups: Vec<(f32, f32)> = block
        .chunks_exact(32)
        .map(|group| {
            let low = group.iter().copied().fold(0.0f32, f32::min);
            let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            ((high - low) / 15.0, -low)
        })
        .collect();
    let largest = |pick: fn(&(f32, f32)) -> f32| groups.iter().map(pick).fold(0.0f32, f32::max);
    let scale = push_half(out, largest(|g| g.0) / 63.0);
    let min = push_half(out, largest(|g| g.1) / 63.0);
    let scales: Vec<u8> = groups.iter().map(|g| code(g.0, scale, 0.0, 63)).collect();
    let mins: Vec<u8> = groups.iter().map(|g| code(g.1, min, 0.0, 63)).collect();
    out.extend((0..4).map(|j| scales[j] | scales[j + 4] >> 4 << 6));
    out.extend((0..4).map(|j| mins[j] | mins[j + 4] >> 4 << 6));
    out.extend((4..8).map(|j| scales[j] & 15 | (mins[j] & 15) << 4));
    for pair in 0..4 {
        let nibble = |group: usize, l: usize| {
            let (d, m) = (scale * f32::from(scales[group]), min * f32::from(mins[group]));
            code(block[group * 32 + l] + m, d, 0.0, 15)
        };
        out.extend((0..32).map(|l| nibble(2 * pair, l) | nibble(2 * pair + 1, l) << 4));
    }
}

fn q6_k(block: &[f32], out: &mut Vec<u8>) {
    let extremes: Vec<f32> = block
        .chunks_exact(16)
        .map(|g| g.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0) / -32.0)
        .collect();
    let largest = extremes.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    let scale = f16::from_f32(largest / -128.0);
    let d = scale.to_f32();
    let scales: Vec<i8> =
        extremes.iter().map(|e| if d == 0.0 { 0 } else { (e / d).round().clamp(-128.0, 127.0) as i8 }).collect();
    let codes: Vec<u8> =
        block.iter().enumerate().map(|(i, x)| code(*x, d * f32::from(scales[i / 16]), 32.0, 63)).collect();
    for part in codes.chunks_exact(128) {
        out.extend((0..64).map(|l| part[l] & 15 | (part[l + 64] & 15) << 4));
    }
    for part in codes.chunks_exact(128) {
        out.extend(
            (0..32).map(|l| part[l] >> 4 | part[l + 32] >> 4 << 2 | part[l + 64] >> 4 << 4 | part[l + 96] >> 4 << 6),
        );
    }
    out.extend(scales.iter().map(|s| *s as u8));
    out.extend(scale.to_le_bytes());
}
