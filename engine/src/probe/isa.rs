//! Instruction-set extensions that matter to the kernels, under the names that people use for them.

use super::tree::{Tree, fields};
use std::collections::BTreeSet;

/// `(name in /proc/cpuinfo, our name)` for Arm, 32 and 64 bits.
const ARM: &[(&str, &str)] = &[
    ("neon", "neon"),
    ("asimd", "neon"),
    ("asimdhp", "fp16"),
    ("asimddp", "dotprod"),
    ("i8mm", "i8mm"),
    ("bf16", "bf16"),
    ("sve", "sve"),
    ("sve2", "sve2"),
    ("sme", "sme"),
    ("sme2", "sme2"),
    ("vfpv4", "vfpv4"),
];

/// The same for x86; the kernel's spelling differs from Rust's only by underscores.
const X86: &[(&str, &str)] = &[
    ("sse4_2", "sse4.2"),
    ("avx", "avx"),
    ("avx2", "avx2"),
    ("fma", "fma"),
    ("f16c", "f16c"),
    ("avx_vnni", "avxvnni"),
    ("avx512f", "avx512f"),
    ("avx512bw", "avx512bw"),
    ("avx512vl", "avx512vl"),
    ("avx512_vnni", "avx512vnni"),
    ("avx512_bf16", "avx512bf16"),
    ("amx_int8", "amx-int8"),
];

/// Extensions of RISC-V that come after the single letters.
const RISCV: &[&str] = &["zvfh", "zfh", "zba", "zbb", "zvbb"];

/// The extensions that every core has, sorted. On the running device the processor itself is asked where Rust can do
/// so; everywhere else `/proc/cpuinfo` of the tree is read.
pub(super) fn extensions(tree: &Tree) -> Vec<String> {
    let running = if tree.is_device() { running() } else { Vec::new() };
    let mut names = match running.is_empty() {
        false => running.into_iter().map(str::to_owned).collect(),
        true => from_cpuinfo(&tree.lines("proc/cpuinfo").unwrap_or_default()),
    };
    names.sort();
    names.dedup();
    names
}

#[cfg(target_arch = "x86_64")]
fn running() -> Vec<&'static str> {
    let mut names = Vec::new();
    macro_rules! ask {
        ($($feature:tt)*) => { $(if std::arch::is_x86_feature_detected!($feature) { names.push($feature) })* };
    }
    ask!("sse4.2" "avx" "avx2" "fma" "f16c" "avxvnni" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avx512bf16");
    names
}

#[cfg(target_arch = "aarch64")]
fn running() -> Vec<&'static str> {
    let mut names = Vec::new();
    macro_rules! ask {
        ($($feature:tt)*) => { $(if std::arch::is_aarch64_feature_detected!($feature) { names.push($feature) })* };
    }
    ask!("neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2");
    names
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn running() -> Vec<&'static str> {
    Vec::new()
}

/// Extensions that all processors of a `/proc/cpuinfo` have in common: one core without dotprod rules it out.
fn from_cpuinfo(cpuinfo: &str) -> Vec<String> {
    let mut common: Option<BTreeSet<String>> = None;
    for (key, value) in fields(cpuinfo) {
        let has = |word: &str| value.split_ascii_whitespace().any(|w| w == word);
        let known = |table: &[(&str, &str)]| -> BTreeSet<String> {
            table.iter().filter(|(word, _)| has(word)).map(|(_, name)| (*name).to_owned()).collect()
        };
        let of_core = match key {
            "Features" => known(ARM),
            "flags" => known(X86),
            "isa" => riscv(value),
            _ => continue,
        };
        common = Some(match common {
            None => of_core,
            Some(before) => before.intersection(&of_core).cloned().collect(),
        });
    }
    common.unwrap_or_default().into_iter().collect()
}

/// `rv64imafdcv_zicsr_zfh` and its like.
fn riscv(isa: &str) -> BTreeSet<String> {
    let mut parts = isa.split('_');
    let letters = parts.next().unwrap_or("").trim_start_matches("rv64").trim_start_matches("rv32");
    let mut names: BTreeSet<String> = parts.filter(|p| RISCV.contains(p)).map(str::to_owned).collect();
    if letters.contains('v') {
        names.insert("v".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_counts_only_when_every_core_has_it() {
        let two = "processor : 0\nFeatures : fp asimd asimddp i8mm\n\nprocessor : 1\nFeatures : fp asimd asimddp\n";
        assert_eq!(from_cpuinfo(two), ["dotprod", "neon"]);
        assert_eq!(from_cpuinfo("Features : half thumb neon vfpv4"), ["neon", "vfpv4"]);
        assert_eq!(
            from_cpuinfo("flags\t\t: fpu sse4_2 avx2 f16c avx512_vnni"),
            ["avx2", "avx512vnni", "f16c", "sse4.2"]
        );
        assert_eq!(from_cpuinfo("isa : rv64imafdcv_zicsr_zfh_zbb"), ["v", "zbb", "zfh"]);
        assert_eq!(from_cpuinfo("isa : rv64imafdc_zicsr_zvfoo"), Vec::<String>::new());
        assert!(from_cpuinfo("\0\u{fffd}::::").is_empty());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_running_processor_says_the_same_as_its_cpuinfo() {
        let tree = Tree::new("/");
        let asked = extensions(&tree);
        let read = from_cpuinfo(&tree.lines("proc/cpuinfo").unwrap());
        let amx_apart: Vec<String> = read.into_iter().filter(|n| n != "amx-int8").collect();
        assert_eq!(asked, amx_apart);
    }
}
