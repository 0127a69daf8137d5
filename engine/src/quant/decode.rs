//! From stored blocks to numbers, one function a type.

use crate::gguf::TensorType;
use half::{bf16, f16};

/// Decodes one row: `bytes` holds whole blocks of `tensor_type`, `out` one number for each element.
///
/// # Panics
/// When `bytes` does not hold exactly the blocks of `out.len()` elements.
pub fn dequantise_row(tensor_type: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(tensor_type.row_bytes(out.len()), Some(bytes.len()), "a row of whole blocks is required");
    let blocks = bytes.chunks_exact(tensor_type.block_bytes()).zip(out.chunks_exact_mut(tensor_type.block_elements()));
    for (block, out) in blocks {
        match tensor_type {
            TensorType::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            TensorType::F16 => out[0] = half_at(block, 0),
            TensorType::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            TensorType::Q4_0 => q4_0(block, out),
            TensorType::Q4_1 => q4_1(block, out),
            TensorType::Q5_0 => q5_0(block, out),
            TensorType::Q5_1 => q5_1(block, out),
            TensorType::Q8_0 => q8_0(block, out),
            TensorType::Q2K => q2_k(block, out),
            TensorType::Q3K => q3_k(block, out),
            TensorType::Q4K => q4_k(block, out),
            TensorType::Q5K => q5_k(block, out),
            TensorType::Q6K => q6_k(block, out),
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (j, byte) in block[2..].iter().enumerate() {
        out[j] = (f32::from(byte & 15) - 8.0) * scale;
        out[j + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (j, byte) in block[4..].iter().enumerate() {
        out[j] = f32::from(byte & 15) * scale + min;
        out[j + 16] = f32::from(byte >> 4) * scale + min;
    }
}

/// The fifth bits of a Q5 block, one a bit, element 0 lowest.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let (scale, high) = (half_at(block, 0), fifth_bits(block, 2));
    for (j, byte) in block[6..].iter().enumerate() {
        let (low, upper) =
            (byte & 15 | (((high >> j) & 1) << 4) as u8, byte >> 4 | (((high >> (j + 16)) & 1) << 4) as u8);
        out[j] = (f32::from(low) - 16.0) * scale;
        out[j + 16] = (f32::from(upper) - 16.0) * scale;
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, min, high) = (half_at(block, 0), half_at(block, 2), fifth_bits(block, 4));
    for (j, byte) in block[8..].iter().enumerate() {
        let (low, upper) =
            (byte & 15 | (((high >> j) & 1) << 4) as u8, byte >> 4 | (((high >> (j + 16)) & 1) << 4) as u8);
        out[j] = f32::from(low) * scale + min;
        out[j + 16] = f32::from(upper) * scale + min;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (x, byte) in out.iter_mut().zip(&block[2..]) {
        *x = f32::from(*byte as i8) * scale;
    }
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        // groups come in pairs that share 32 bytes, four pairs of 2-bit planes for each 128 elements
        let (part, plane, side) = (group / 8, group % 8 / 2, group % 2);
        let bytes = &codes[part * 32 + side * 16..][..16];
        let (d, m) = (scale * f32::from(scales[group] & 15), min * f32::from(scales[group] >> 4));
        for (x, byte) in out.iter_mut().zip(bytes) {
            *x = d * f32::from(byte >> (2 * plane) & 3) - m;
        }
    }
}

/// The 16 scales of 6 bits of a Q3_K block, offset 32: low nibbles in the first 8 bytes, high pairs in the last 4.
pub(crate) fn q3_k_scales(packed: &[u8]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let (mask, codes) = (&block[..32], &block[32..96]);
    let scales = q3_k_scales(&block[96..108]);
    let scale = half_at(block, 108);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let (part, plane, side) = (group / 8, group % 8 / 2, group % 2);
        let bytes = &codes[part * 32 + side * 16..][..16];
        let d = scale * f32::from(scales[group]);
        for (l, (x, byte)) in out.iter_mut().zip(bytes).enumerate() {
            let set = mask[side * 16 + l] >> (part * 4 + plane) & 1 != 0;
            *x = d * (f32::from(byte >> (2 * plane) & 3) - if set { 0.0 } else { 4.0 });
        }
    }
}

/// Scale and minimum of 6 bits of group `j` (0 to 7) in the 12 packed bytes of Q4_K and Q5_K.
pub fn scale_min_6bit(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (packed, codes) = (&block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min_6bit(packed, group);
        let (d, m) = (scale * f32::from(s), min * f32::from(m));
        for (x, byte) in out.iter_mut().zip(&codes[group / 2 * 32..][..32]) {
            *x = d * f32::from(byte >> (4 * (group % 2)) & 15) - m;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (packed, high, codes) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min_6bit(packed, group);
        let (d, m) = (scale * f32::from(s), min * f32::from(m));
        let bytes = codes[group / 2 * 32..][..32].iter().zip(high);
        for (x, (byte, high)) in out.iter_mut().zip(bytes) {
            *x = d * f32::from(byte >> (4 * (group % 2)) & 15 | (high >> group & 1) << 4) - m;
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half_at(block, 208);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        // 128 elements share 64 bytes of low nibbles and 32 of high pairs: rows 0 and 1 are low nibbles, 2 and 3 high ones
        let (part, row, side) = (group / 8, group % 8 / 2, group % 2);
        let lows = &low[part * 64 + row % 2 * 32 + side * 16..][..16];
        let highs = &high[part * 32 + side * 16..][..16];
        let d = scale * f32::from(scales[group] as i8);
        for (x, (l, h)) in out.iter_mut().zip(lows.iter().zip(highs)) {
            let code = l >> (4 * (row / 2)) & 15 | (h >> (2 * row) & 3) << 4;
            *x = d * (f32::from(code) - 32.0);
        }
    }
}
