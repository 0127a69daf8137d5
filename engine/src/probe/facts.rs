//! Names, system, caches, hidden modes, battery and virtualisation.

use super::tree::{Tree, WORD_BYTES_MAX, fields};
use crate::text;
use std::collections::BTreeSet;

/// What nothing on the device says.
pub(super) const UNKNOWN: &str = "unknown";
const MODES_MAX: usize = 64;

/// SoC or CPU model: the device tree's most general `compatible`, what Qualcomm and others put under `soc0`, or what
/// `/proc/cpuinfo` says.
pub(super) fn soc(tree: &Tree, cpuinfo: &str) -> String {
    let of_cpuinfo = |wanted: &str| fields(cpuinfo).find(|(k, v)| *k == wanted && !v.is_empty()).map(|(_, v)| v);
    let part = || Some(format!("implementer {} part {}", of_cpuinfo("CPU implementer")?, of_cpuinfo("CPU part")?));
    device_tree(tree, "compatible")
        .and_then(|list| super::tree::word(list.split(|b| *b == 0).rfind(|p| !p.is_empty())?))
        .or_else(|| tree.word("sys/devices/soc0/machine"))
        .or_else(|| of_cpuinfo("Hardware").map(str::to_owned))
        .or_else(|| of_cpuinfo("model name").map(str::to_owned))
        .or_else(|| of_cpuinfo("uarch").map(str::to_owned))
        .or_else(part)
        .map_or_else(|| UNKNOWN.to_owned(), |name| text::escaped(name.as_bytes(), WORD_BYTES_MAX))
}

fn device_tree(tree: &Tree, file: &str) -> Option<Vec<u8>> {
    ["sys/firmware/devicetree/base", "proc/device-tree"].iter().find_map(|f| tree.bytes(&format!("{f}/{file}")).ok())
}

/// Board or product: device tree, Android's build properties, DMI.
pub(super) fn product(tree: &Tree) -> Option<String> {
    let dmi = || {
        let name = tree.word("sys/class/dmi/id/product_name")?;
        let vendor = tree.word("sys/class/dmi/id/sys_vendor").unwrap_or_default();
        super::tree::word(format!("{vendor} {name}").as_bytes())
    };
    device_tree(tree, "model")
        .and_then(|model| super::tree::word(&model))
        .or_else(|| build_property(tree, "ro.product.model"))
        .or_else(|| build_property(tree, "ro.product.vendor.model"))
        .or_else(dmi)
}

/// Operating system and build: Android's fingerprint, else `os-release`.
pub(super) fn os_build(tree: &Tree) -> String {
    let release = || {
        let text = tree.lines("etc/os-release").or_else(|| tree.lines("usr/lib/os-release"))?;
        let line = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
        super::tree::word(line.trim_matches(['"', '\'']).as_bytes())
    };
    build_property(tree, "ro.build.fingerprint")
        .or_else(|| build_property(tree, "ro.vendor.build.fingerprint"))
        .or_else(release)
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

fn build_property(tree: &Tree, name: &str) -> Option<String> {
    ["system/build.prop", "vendor/build.prop", "system/vendor/build.prop"].iter().find_map(|file| {
        let text = tree.lines(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        super::tree::word(value.as_bytes())
    })
}

/// Kernel release.
pub(super) fn kernel(tree: &Tree) -> String {
    let of_version = || tree.word("proc/version")?.split(' ').nth(2).map(str::to_owned);
    tree.word("proc/sys/kernel/osrelease").or_else(of_version).unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The distinct caches over all cores, smallest first, as `L2 1048576` (bytes); first-level caches as `L1d`, `L1i`.
pub(super) fn caches(tree: &Tree, cores: impl Iterator<Item = u32>) -> Vec<String> {
    let mut caches = BTreeSet::new();
    for core in cores {
        let folder = format!("sys/devices/system/cpu/cpu{core}/cache");
        for index in tree.names(&folder).iter().filter(|n| n.starts_with("index")) {
            let word = |file: &str| tree.word(&format!("{folder}/{index}/{file}"));
            let (Some(level), Some(size)) = (word("level"), word("size").and_then(|s| size_bytes(&s))) else {
                continue;
            };
            let kind = match word("type").as_deref() {
                Some("Data") => "d",
                Some("Instruction") => "i",
                _ => "",
            };
            if level.len() <= 2 && level.bytes().all(|b| b.is_ascii_digit()) {
                caches.insert((size, format!("L{level}{kind}")));
            }
        }
    }
    caches.into_iter().map(|(size, name)| format!("{name} {size}")).collect()
}

fn size_bytes(word: &str) -> Option<u64> {
    let (digits, factor) = match word.as_bytes().last()? {
        b'K' => (&word[..word.len() - 1], 1 << 10),
        b'M' => (&word[..word.len() - 1], 1 << 20),
        b'G' => (&word[..word.len() - 1], 1 << 30),
        _ => (word, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Settings that hide on a device and change every figure: memory clock, power mode, throttle flags, clock caps.
pub(super) fn power_modes(tree: &Tree, cores: &[u32]) -> Vec<(String, String)> {
    let mut modes = Vec::new();
    let mut note = |name: String, path: String| {
        if let Some(value) = tree.word(&path) {
            modes.push((text::escaped(name.as_bytes(), WORD_BYTES_MAX), value));
        }
    };
    for device in tree.names("sys/class/devfreq") {
        for file in ["governor", "min_freq", "max_freq"] {
            note(format!("devfreq {device} {file}"), format!("sys/class/devfreq/{device}/{file}"));
        }
    }
    note("jetson power mode".into(), "var/lib/nvpmodel/status".into());
    note("pi throttled".into(), "sys/devices/platform/soc/soc:firmware/get_throttled".into());
    note("platform profile".into(), "sys/firmware/acpi/platform_profile".into());
    note("no turbo".into(), "sys/devices/system/cpu/intel_pstate/no_turbo".into());
    note("boost".into(), "sys/devices/system/cpu/cpufreq/boost".into());
    note("smt".into(), "sys/devices/system/cpu/smt/control".into());
    for core in cores {
        let folder = format!("sys/devices/system/cpu/cpu{core}/cpufreq");
        let cap = tree.number::<u64>(&format!("{folder}/scaling_max_freq"));
        let top = tree.number::<u64>(&format!("{folder}/cpuinfo_max_freq"));
        if let (Some(cap), Some(top)) = (cap, top)
            && cap < top
        {
            modes.push((format!("cpu{core} clock capped at khz"), cap.to_string()));
        }
    }
    modes.truncate(MODES_MAX);
    modes
}

/// Folder of the first battery that belongs to the device itself, and not to a mouse or a pen, and tells its charge.
pub(crate) fn battery_folder(tree: &Tree) -> Option<String> {
    let names = tree.names("sys/class/power_supply").into_iter();
    names.map(|name| format!("sys/class/power_supply/{name}")).find(|folder| {
        let word = |file: &str| tree.word(&format!("{folder}/{file}"));
        word("type").as_deref() == Some("Battery")
            && word("scope").as_deref() != Some("Device")
            && percent(tree, folder).is_some()
    })
}

/// Charge of the device's battery, per cent.
pub(super) fn battery_percent(tree: &Tree) -> Option<u32> {
    percent(tree, &battery_folder(tree)?)
}

fn percent(tree: &Tree, folder: &str) -> Option<u32> {
    tree.number(&format!("{folder}/capacity")).filter(|percent| *percent <= 100)
}

/// Virtualisation, when it shows.
pub(super) fn virtualisation(tree: &Tree, cpuinfo: &str) -> Option<String> {
    let clocks = tree.word("sys/devices/system/clocksource/clocksource0/available_clocksource").unwrap_or_default();
    if clocks.contains("kvm-clock") {
        return Some("kvm".into());
    }
    if let Some(kind) = tree.word("sys/hypervisor/type") {
        return Some(kind);
    }
    let maker = tree.word("sys/class/dmi/id/sys_vendor").unwrap_or_default();
    let model = device_tree(tree, "compatible").unwrap_or_default();
    if maker == "QEMU" || model.starts_with(b"linux,dummy-virt") {
        return Some("qemu".into());
    }
    let is_guest = fields(cpuinfo).any(|(k, v)| k == "flags" && v.split(' ').any(|f| f == "hypervisor"));
    is_guest.then(|| "hypervisor".into())
}
