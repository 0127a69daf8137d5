//! `vpdpbusd` for processors that lack it, so that the tests run the kernels made of it on every one with AVX2.
//!
//! Where the instruction is not there it raises SIGILL. The handler decodes it, does its work on the registers that the
//! kernel saved in the signal's frame, and steps over it; when the handler returns, the kernel puts the registers back. Only
//! what the kernels are made of is decoded: 32 bytes, three registers of the first sixteen, no mask.

use super::Isa;
use std::sync::Once;

/// All that the processor has, and what can be emulated on it.
pub fn available() -> Vec<Isa> {
    let mut all = Isa::available();
    if all.contains(&Isa::Avx2) {
        for isa in [Isa::AvxVnni, Isa::Avx512Vnni] {
            if !all.contains(&isa) {
                static HANDLER: Once = Once::new();
                HANDLER.call_once(install);
                all.push(isa);
            }
        }
    }
    all
}

fn install() {
    // SAFETY: the action is filled in before it is used, and the handler touches its arguments alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0, "a handler for SIGILL");
    }
}

/// Registers of an instruction, by number: sums, codes, activations.
#[derive(Debug, PartialEq, Eq)]
struct Operands {
    sums: usize,
    codes: usize,
    acts: usize,
    bytes: usize,
}

/// What `vpdpbusd ymm, ymm, ymm` at the start of `code` works on, in either encoding.
fn decode(code: [u8; 6]) -> Option<Operands> {
    const REGISTERS: u8 = 0b1100_0000;
    // in both, the bits that extend register numbers are stored inverted
    match code {
        // VEX.256.66.0F38.W0 50 /r
        [0xc4, map, w_vvvv_l_pp, 0x50, modrm, _]
            if map & 0b101_1111 == 0b100_0010 && w_vvvv_l_pp & 0b1000_0111 == 0b101 && modrm >= REGISTERS =>
        {
            Some(Operands { bytes: 5, ..registers(map, w_vvvv_l_pp, modrm) })
        }
        // EVEX.256.66.0F38.W0 50 /r: registers above 15 have bits of their own, which stay unused
        [0x62, map, w_vvvv_1_pp, 0b0010_1000, 0x50, modrm]
            if map & 0b101_1111 == 0b101_0010 && w_vvvv_1_pp & 0b1000_0111 == 0b101 && modrm >= REGISTERS =>
        {
            Some(Operands { bytes: 6, ..registers(map, w_vvvv_1_pp, modrm) })
        }
        _ => None,
    }
}

fn registers(map: u8, vvvv: u8, modrm: u8) -> Operands {
    let extend = |bit: u8| usize::from(!map >> bit & 1) << 3;
    Operands {
        sums: usize::from(modrm >> 3 & 7) | extend(7),
        codes: usize::from(!vvvv >> 3 & 15),
        acts: usize::from(modrm & 7) | extend(5),
        bytes: 0,
    }
}

/// What the instruction does to one lane.
fn four_products(sum: i32, codes: [u8; 4], acts: [u8; 4]) -> i32 {
    codes.iter().zip(acts).fold(sum, |sum, (code, act)| sum.wrapping_add(i32::from(*code) * i32::from(act as i8)))
}

/// The saved registers of 32 bytes: lower halves where FXSAVE has them, upper ones in their own part of the XSAVE area.
struct Saved {
    area: *mut u8,
    upper: usize,
}

/// Where the lower halves begin in the area.
const LOWER_AT: usize = 160;
/// Where the area says which of its parts hold something; a part that does not is all zeros.
const PRESENT_AT: usize = 512;
/// Bits of that: lower halves, upper halves.
const PARTS: [u64; 2] = [1 << 1, 1 << 2];

impl Saved {
    /// # Safety
    /// `area` is the XSAVE area of a signal's frame, which the handler alone uses.
    unsafe fn new(area: *mut u8) -> Self {
        // leaf 0xd, sub-leaf 2: where the upper halves are
        let saved = Self { area, upper: std::arch::x86_64::__cpuid_count(0xd, 2).ebx as usize };
        // SAFETY: all of this lies within the area, by the caller's promise.
        unsafe {
            let present = area.add(PRESENT_AT).cast::<u64>();
            for (part, at) in PARTS.into_iter().zip([LOWER_AT, saved.upper]) {
                if present.read_unaligned() & part == 0 {
                    area.add(at).write_bytes(0, 16 * 16);
                    present.write_unaligned(present.read_unaligned() | part);
                }
            }
        }
        saved
    }

    fn half(&self, register: usize, half: usize) -> *mut [[u8; 4]; 4] {
        self.area.wrapping_add([LOWER_AT, self.upper][half] + 16 * register).cast()
    }
}

/// # Safety
/// The kernel calls it, with the frame of the signal.
unsafe extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a frame of this type; the faulting instruction is readable, and so is what follows it in a
    // kernel, which is never the last thing in its page.
    unsafe {
        let context = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let at = &mut context.gregs[libc::REG_RIP as usize];
        let Some(operands) = decode((*at as *const [u8; 6]).read_unaligned()) else {
            // not ours: it faults again, without a handler
            libc::signal(libc::SIGILL, libc::SIG_DFL);
            return;
        };
        let saved = Saved::new(context.fpregs.cast());
        for half in 0..2 {
            let sums = saved.half(operands.sums, half);
            let codes = saved.half(operands.codes, half).read_unaligned();
            let acts = saved.half(operands.acts, half).read_unaligned();
            let before = sums.read_unaligned();
            sums.write_unaligned(std::array::from_fn(|lane| {
                four_products(i32::from_le_bytes(before[lane]), codes[lane], acts[lane]).to_le_bytes()
            }));
        }
        *at += operands.bytes as i64;
    }
}

#[test]
fn both_encodings_are_told_apart_from_all_else() {
    // what the assembler makes of `{vex} vpdpbusd ymm1, ymm10, ymm15` and `{evex} vpdpbusd ymm9, ymm2, ymm4`
    let (vex, evex) = ([0xc4, 0xc2, 0x2d, 0x50, 0xcf, 0], [0x62, 0x72, 0x6d, 0x28, 0x50, 0xcc]);
    assert_eq!(decode(vex), Some(Operands { sums: 1, codes: 10, acts: 15, bytes: 5 }));
    assert_eq!(decode(evex), Some(Operands { sums: 9, codes: 2, acts: 4, bytes: 6 }));
    for byte in 0..5 {
        for bit in 0..8 {
            let flip = |mut code: [u8; 6]| {
                code[byte] ^= 1 << bit;
                decode(code)
            };
            // a bit that only names other registers still decodes, as those
            assert_ne!(flip(vex), decode(vex), "vex, byte {byte} bit {bit}");
            assert_ne!(flip(evex), decode(evex), "evex, byte {byte} bit {bit}");
        }
    }
}
