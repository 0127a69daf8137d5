//! Targets, and the processor architectures that one engine each serves.
//!
//! The engine is static, so neither the device's C library nor its loader matters: a binary for
//! `aarch64-unknown-linux-musl` serves every 64-bit Arm device with Linux below, Android too.

use std::fmt;

/// A processor architecture that the engine is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit Arm with a floating-point unit, from ARMv7 on.
    Armv7,
    /// 64-bit RISC-V with the general extensions.
    Riscv64,
    /// 64-bit x86.
    X86_64,
}

use Architecture::{Aarch64, Armv7, Riscv64, X86_64};

impl Architecture {
    /// All of them, by name.
    pub const ALL: [Self; 4] = [Aarch64, Armv7, Riscv64, X86_64];

    /// The short name.
    pub fn name(self) -> &'static str {
        match self {
            Aarch64 => "aarch64",
            Armv7 => "armv7",
            Riscv64 => "riscv64",
            X86_64 => "x86_64",
        }
    }

    /// What a short name or a target with Linux below means; `None` for everything else.
    pub fn of_target(text: &str) -> Option<Self> {
        if let Some(named) = Self::ALL.into_iter().find(|a| a.name() == text) {
            return Some(named);
        }
        let (processor, system) = text.split_once('-')?;
        // Android is `linux-android`; what runs without a system, or on another one, is not served
        if !system.split('-').any(|part| part == "linux") {
            return None;
        }
        match processor {
            "aarch64" => Some(Aarch64),
            "armv7" | "thumbv7neon" => Some(Armv7),
            "riscv64gc" | "riscv64a23" => Some(Riscv64),
            "x86_64" => Some(X86_64),
            _ => None,
        }
    }

    /// What `uname -m` of a device says. A 64-bit kernel runs 64-bit static binaries, whatever its userland is.
    pub fn of_kernel(machine: &str) -> Option<Self> {
        match machine {
            "aarch64" | "arm64" => Some(Aarch64),
            // armv8l: a 64-bit processor that shows this process a 32-bit machine
            "armv7l" | "armv8l" => Some(Armv7),
            "riscv64" => Some(Riscv64),
            "x86_64" | "amd64" => Some(X86_64),
            _ => None,
        }
    }

    /// Rust's target with musl as the C library.
    pub fn musl(self) -> &'static str {
        match self {
            Aarch64 => "aarch64-unknown-linux-musl",
            Armv7 => "armv7-unknown-linux-musleabihf",
            Riscv64 => "riscv64gc-unknown-linux-musl",
            X86_64 => "x86_64-unknown-linux-musl",
        }
    }

    /// Rust's target with the GNU C library.
    pub fn gnu(self) -> &'static str {
        match self {
            Aarch64 => "aarch64-unknown-linux-gnu",
            Armv7 => "armv7-unknown-linux-gnueabihf",
            Riscv64 => "riscv64gc-unknown-linux-gnu",
            X86_64 => "x86_64-unknown-linux-gnu",
        }
    }

    /// The short names in one line, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_any_c_library_and_android_belong_to_their_architecture() {
        for architecture in Architecture::ALL {
            for text in [architecture.name(), architecture.musl(), architecture.gnu()] {
                assert_eq!(Architecture::of_target(text), Some(architecture), "{text}");
            }
        }
        for (text, expected) in [
            ("aarch64-linux-android", Some(Aarch64)),
            ("armv7-linux-androideabi", Some(Armv7)),
            ("thumbv7neon-unknown-linux-gnueabihf", Some(Armv7)),
            ("arm-unknown-linux-gnueabihf", None),
            ("aarch64-apple-darwin", None),
            ("aarch64_be-unknown-linux-gnu", None),
            ("riscv64gc-unknown-none-elf", None),
            ("i686-unknown-linux-gnu", None),
            ("-linux", None),
            ("", None),
        ] {
            assert_eq!(Architecture::of_target(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_kernel_says_of_its_machine_is_understood() {
        assert_eq!(Architecture::of_kernel("armv8l"), Some(Armv7));
        assert_eq!(Architecture::of_kernel("aarch64"), Some(Aarch64));
        assert_eq!(Architecture::of_kernel("armv6l"), None);
        assert_eq!(Architecture::of_kernel("aarch64_be"), None);
    }
}
