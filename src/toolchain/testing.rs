//! Executables made by hand, for tests of what is refused.

use crate::target::Architecture;

/// The smallest sound executable: one segment, the whole file, and a program header for each of `extra` (its type and the
/// tag of the one entry of the dynamic section that it points at).
pub(crate) fn executable(architecture: Architecture, alignment_bytes: u64, extra: &[(u32, u64)]) -> Vec<u8> {
    let is_64 = architecture != Architecture::Armv7;
    let machine: u16 = match architecture {
        Architecture::Armv7 => 40,
        Architecture::X86_64 => 62,
        Architecture::Aarch64 => 183,
        Architecture::Riscv64 => 243,
    };
    let (header_bytes, entry_bytes) = if is_64 { (64, 56) } else { (52, 32) };
    let headers_end = header_bytes + entry_bytes * (1 + extra.len() as u64);
    let total = headers_end + 32 * extra.len() as u64;
    let mut out = Vec::new();
    let word = |out: &mut Vec<u8>, n: u64| match is_64 {
        true => out.extend(n.to_le_bytes()),
        false => out.extend((n as u32).to_le_bytes()),
    };
    out.extend(b"\x7fELF");
    out.extend([if is_64 { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(3u16.to_le_bytes());
    out.extend(machine.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    word(&mut out, 0);
    word(&mut out, header_bytes);
    word(&mut out, 0);
    out.extend(0u32.to_le_bytes());
    for half in [header_bytes as u16, entry_bytes as u16, 1 + extra.len() as u16, 0, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    let header = |out: &mut Vec<u8>, kind: u32, offset: u64, bytes: u64, alignment: u64| {
        out.extend(kind.to_le_bytes());
        if is_64 {
            out.extend(5u32.to_le_bytes());
        }
        for n in [offset, offset, offset, bytes, bytes] {
            word(out, n);
        }
        if !is_64 {
            out.extend(5u32.to_le_bytes());
        }
        word(out, alignment);
    };
    header(&mut out, 1, 0, total, alignment_bytes);
    for (i, (kind, _)) in extra.iter().enumerate() {
        header(&mut out, *kind, headers_end + 32 * i as u64, 32, 8);
    }
    for (_, tag) in extra {
        let start = out.len();
        word(&mut out, *tag);
        word(&mut out, 1);
        out.resize(start + 32, 0);
    }
    assert_eq!(out.len() as u64, total);
    out
}
