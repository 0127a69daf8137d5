//! The engine on processors that this machine is not: built for them, and run under qemu's user emulation.
//!
//! What is needed, or these tests skip: the compiler that `tools/foreign-toolchain.sh` unpacks, in `$FARMGATE_FOREIGN` or
//! in `.cache/foreign` of the workspace; Debian's cross linkers; `qemu-user-static`. Emulated speed means nothing, so
//! nothing here looks at a clock.

mod parity;

use parity::{find_model, ids, known_answers};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A processor to build for.
struct Foreign {
    target: &'static str,
    linker: &'static str,
    emulator: &'static str,
}

const AARCH64: Foreign =
    Foreign { target: "aarch64-unknown-linux-gnu", linker: "aarch64-linux-gnu-gcc", emulator: "qemu-aarch64-static" };
const ARMV7: Foreign =
    Foreign { target: "armv7-unknown-linux-gnueabihf", linker: "arm-linux-gnueabihf-gcc", emulator: "qemu-arm-static" };
const RISCV64: Foreign =
    Foreign { target: "riscv64gc-unknown-linux-gnu", linker: "riscv64-linux-gnu-gcc", emulator: "qemu-riscv64-static" };

/// Emulated processors, and what the engine must choose on each.
const CPUS: [(&str, &str); 3] = [("cortex-a53", "neon"), ("cortex-a76", "dotprod"), ("max", "i8mm")];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The folder of the foreign compiler, if all is here that `foreign` needs; says so when not.
fn toolchain(test: &str, foreign: &Foreign) -> Option<PathBuf> {
    let folder = std::env::var_os("FARMGATE_FOREIGN").map_or_else(|| workspace().join(".cache/foreign"), PathBuf::from);
    let missing = if !folder.join("complete").is_file() {
        format!("no compiler in {}: tools/foreign-toolchain.sh makes one", folder.display())
    } else if let Some(program) = [foreign.linker, foreign.emulator].into_iter().find(|p| !on_path(p)) {
        format!("{program} is not installed")
    } else {
        return folder.canonicalize().ok();
    };
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
    None
}

/// Builds with `arguments` and returns the programs that cargo says it made, by target name.
fn build(folder: &Path, foreign: &Foreign, arguments: &[&str]) -> Vec<(String, PathBuf)> {
    let flags = format!("-C linker={} -C target-feature=+crt-static", foreign.linker);
    let output = Command::new(folder.join("usr/bin/cargo"))
        .args(arguments)
        .args(["--package", "farmgate-engine", "--locked", "--message-format", "json", "--target", foreign.target])
        .current_dir(workspace())
        .env("RUSTC", folder.join("usr/bin/rustc"))
        .env("LD_LIBRARY_PATH", folder.join("usr/lib"))
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", &flags)
        .env("CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_RUSTFLAGS", &flags)
        .env("CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_RUSTFLAGS", &flags)
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTUP_TOOLCHAIN")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let rendered = |line| serde_json::from_str::<Value>(line).ok()?["message"]["rendered"].as_str().map(str::to_owned);
    let faults = || lines.lines().filter_map(rendered).collect::<String>();
    assert!(output.status.success(), "building for {} failed\n{}", foreign.target, faults());
    lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter_map(program_of).collect()
}

/// Name and path of the program that a message of cargo speaks of.
fn program_of(message: Value) -> Option<(String, PathBuf)> {
    Some((message["target"]["name"].as_str()?.to_owned(), message["executable"].as_str()?.into()))
}

fn named(programs: &[(String, PathBuf)], name: &str) -> PathBuf {
    let found = programs.iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("{name} was not built: {programs:?}")).1.clone()
}

/// Runs a program for another processor to its end and returns what it said on stdout and stderr.
fn emulate(foreign: &Foreign, cpu: Option<&str>, program: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(foreign.emulator);
    if let Some(cpu) = cpu {
        command.args(["-cpu", cpu]);
    }
    let output = command.arg(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{cpu:?} {arguments:?}: {}\n{stdout}\n{stderr}", output.status);
    (stdout, stderr)
}

/// What `--repack` may say where there are strips, and what farmhand must then say that it has.
const REPACKS: [(&str, &str); 2] = [("off", "none"), ("on", "strips-8")];
/// The same where there are none.
const NO_REPACK: [(&str, &str); 1] = [("auto", "none")];

/// Runs the recorded cases of these models through `farmhand`: every position's choice, all at once, and the text a token
/// at a time, for each of `repacks` with the same logits. `isa` must be what farmhand says it used.
fn farmhand_answers_as_recorded(
    test: &str,
    foreign: &Foreign,
    cpu: Option<&str>,
    farmhand: &Path,
    isa: &str,
    repacks: &[(&str, &str)],
) {
    let answers = known_answers("tiny-pd-1.3m.json");
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for file in ["tiny-pd-1.3m-Q4_K_M.gguf", "tiny-pd-1.3m-Q8_0.gguf", "tiny-pd-1.3m-Q4_0.gguf"] {
        let Some(model) = find_model(test, file) else { continue };
        let model = model.to_str().unwrap();
        for case in answers["files"][file]["cases"].as_array().unwrap().iter().filter(|c| !c["eog_index"].is_null()) {
            let what = format!("{} {cpu:?} {file}: {}", foreign.target, case["name"]);
            let (prompt, generated) = (ids(&case["prompt_ids"]), ids(&case["generated_ids"]));
            let list = folder.path().join("ids.json");
            std::fs::write(&list, serde_json::to_string(&[&prompt[..], &generated[..]].concat()).unwrap()).unwrap();
            let text = case["prompt"].as_str().unwrap();
            let mut first = None;
            for (repack, layout) in repacks {
                let what = format!("{what}, repack {repack}");
                let asked = ["-m", model, "-t", "2", "--repack", repack];
                let arguments = ["logits", "--top", "1", "--ids", list.to_str().unwrap()];
                let (lines, _) = emulate(foreign, cpu, farmhand, &[&arguments[..], &asked].concat());
                let chosen =
                    |line: &str| serde_json::from_str::<Value>(line).unwrap()["top"][0]["id"].as_u64().unwrap();
                let chosen: Vec<u32> = lines.lines().map(|line| chosen(line) as u32).collect();
                assert_eq!(chosen[prompt.len() - 1..chosen.len() - 1], generated, "{what}");
                assert_eq!(first.get_or_insert_with(|| lines.clone()), &lines, "{what}");

                let arguments = ["generate", "--special", "-c", "128", "-n", "64", "-p", text];
                let (said, talk) = emulate(foreign, cpu, farmhand, &[&arguments[..], &asked].concat());
                assert!(said.starts_with(case["text"].as_str().unwrap()), "{what}: {said}");
                let used = format!("{isa} kernels, repack {layout},");
                assert!(talk.contains(&used), "{what}: not {used} {talk}");
            }
            compared += 1;
        }
    }
    assert!(compared >= 12, "only {compared} cases were found");
}

#[test]
fn farmhand_answers_as_recorded_on_every_generation_of_64_bit_arm() {
    let test = "farmhand_answers_as_recorded_on_every_generation_of_64_bit_arm";
    let Some(folder) = toolchain(test, &AARCH64) else { return };
    let farmhand = named(&build(&folder, &AARCH64, &["build", "--bin", "farmhand"]), "farmhand");
    for (cpu, isa) in CPUS {
        farmhand_answers_as_recorded(test, &AARCH64, Some(cpu), &farmhand, isa, &REPACKS);
        let (probe, _) = emulate(&AARCH64, Some(cpu), &farmhand, &["probe"]);
        let found: Value = serde_json::from_str(&probe).unwrap();
        let extensions = found["isa"].as_array().unwrap();
        assert!(extensions.iter().any(|e| e == isa), "{cpu}: {extensions:?}");
        assert_eq!(extensions.iter().any(|e| e == "i8mm"), cpu == "max", "{cpu}: {extensions:?}");
    }
}

#[test]
fn kernels_agree_with_the_specification_on_every_generation_of_64_bit_arm() {
    let test = "kernels_agree_with_the_specification_on_every_generation_of_64_bit_arm";
    let Some(folder) = toolchain(test, &AARCH64) else { return };
    let tests = named(&build(&folder, &AARCH64, &["test", "--no-run", "--lib"]), "farmgate_engine");
    for (cpu, _) in CPUS {
        let (report, _) = emulate(&AARCH64, Some(cpu), &tests, &["kernels::"]);
        let passed = report.lines().find_map(|l| l.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok());
        assert!(passed.unwrap_or(0) >= 10, "{cpu}: {report}");
    }
}

#[test]
fn farmhand_answers_as_recorded_on_32_bit_arm() {
    let test = "farmhand_answers_as_recorded_on_32_bit_arm";
    let Some(folder) = toolchain(test, &ARMV7) else { return };
    let farmhand = named(&build(&folder, &ARMV7, &["build", "--bin", "farmhand"]), "farmhand");
    farmhand_answers_as_recorded(test, &ARMV7, None, &farmhand, "scalar", &NO_REPACK);
}

#[test]
fn farmhand_answers_as_recorded_on_64_bit_risc_v() {
    let test = "farmhand_answers_as_recorded_on_64_bit_risc_v";
    let Some(folder) = toolchain(test, &RISCV64) else { return };
    let farmhand = named(&build(&folder, &RISCV64, &["build", "--bin", "farmhand"]), "farmhand");
    farmhand_answers_as_recorded(test, &RISCV64, None, &farmhand, "scalar", &NO_REPACK);
}
