//! Engines for other processors, built by the real binary and run under qemu's user emulation.
//!
//! What is needed, or these tests skip: a way to build for the target (such as the compiler of
//! `tools/foreign-toolchain.sh`, in `$FARMGATE_FOREIGN` or `.cache/foreign`, and Debian's cross linkers), and
//! `qemu-user-static`. All builds share one folder below `target`, and nothing is optimised, for the sake of time.

use assert_cmd::Command;
use farmgate::target::Architecture;
use farmgate::toolchain::{Source, Surroundings, build_from, from_folder, host_architecture};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {why}");
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The results of all builds here, kept from one run of the tests to the next.
fn results() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cross")
}

fn foreign() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/foreign");
    std::env::var_os("FARMGATE_FOREIGN").map_or_else(own, PathBuf::from)
}

fn build(target: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farmgate"))
        .args(["engine", "build", "--target", target, "--results"])
        .arg(results())
        .env("FARMGATE_FOREIGN", foreign())
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .timeout(Duration::from_secs(1200))
        .output()
        .unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Alignments of all loaded segments of a 64-bit ELF, and whether it names a loader: read here once more, apart from the
/// code under test.
fn segments(elf: &[u8]) -> (Vec<u64>, bool) {
    let number = |at: usize, bytes: usize| elf[at..at + bytes].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    assert_eq!(elf[4], 2, "64 bits");
    let headers: Vec<usize> = (0..number(56, 2)).map(|i| (number(32, 8) + i * number(54, 2)) as usize).collect();
    let loaded = headers.iter().filter(|at| number(**at, 4) == 1).map(|at| number(at + 48, 8)).collect();
    (loaded, headers.iter().any(|at| number(*at, 4) == 3))
}

/// Builds for a processor, once and not again, and runs the outcome.
fn is_built_once_and_runs(test: &str, architecture: Architecture, emulator: &str) {
    if !on_path(emulator) {
        return skip(test, &format!("{emulator} is not installed"));
    }
    let first = build(architecture.name());
    let (stdout, stderr) = said(&first);
    if !first.status.success() && stderr.contains("nothing on this machine can build") {
        return skip(test, &format!("no toolchain for {architecture}: {stderr}"));
    }
    assert!(first.status.success(), "{stderr}");
    let path = PathBuf::from(stdout.trim_end());
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("farmhand-") && stdout.lines().count() == 1, "{stdout}");
    let target = name["farmhand-".len()..].rsplit_once('-').unwrap().0;
    assert_eq!(Architecture::of_target(target), Some(architecture), "{name}");

    // a target of the other C library means the same engine
    for again in [architecture.musl(), architecture.gnu()] {
        let (stdout_again, stderr) = said(&build(again));
        assert_eq!(stderr, format!("engine for {architecture}: up to date\n"));
        assert_eq!(stdout_again, stdout);
    }

    let folder = tempfile::tempdir().unwrap();
    fs::copy(&path, folder.path().join(&name)).unwrap();
    let taken = from_folder(folder.path(), architecture.musl()).unwrap();
    assert_eq!(taken.warning, None);
    assert_eq!(taken.sha256[..12], name[name.len() - 12..]);
    if architecture != Architecture::Armv7 {
        let (alignments, names_loader) = segments(&fs::read(&path).unwrap());
        assert!(alignments.len() > 1 && alignments.iter().all(|a| *a >= 16 << 10), "{alignments:?}");
        assert!(!names_loader);
    }

    let run = |arguments: &[&str]| {
        let output =
            Command::new(emulator).arg(&path).args(arguments).timeout(Duration::from_secs(60)).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        said(&output).0
    };
    assert_eq!(run(&["--version"]), format!("farmhand {}\n", env!("CARGO_PKG_VERSION")));
    assert!(run(&["hash", path.to_str().unwrap()]).contains(&taken.sha256));
}

#[test]
fn an_engine_for_64_bit_arm_is_built_once_and_runs() {
    let test = "an_engine_for_64_bit_arm_is_built_once_and_runs";
    is_built_once_and_runs(test, Architecture::Aarch64, "qemu-aarch64-static");
}

#[test]
fn an_engine_for_32_bit_arm_is_built_once_and_runs() {
    let test = "an_engine_for_32_bit_arm_is_built_once_and_runs";
    is_built_once_and_runs(test, Architecture::Armv7, "qemu-arm-static");
}

#[test]
fn an_engine_for_64_bit_risc_v_is_built_once_and_runs() {
    let test = "an_engine_for_64_bit_risc_v_is_built_once_and_runs";
    is_built_once_and_runs(test, Architecture::Riscv64, "qemu-riscv64-static");
}

/// What an installed farmgate does, which has no checkout.
#[test]
fn the_carried_source_builds_an_engine_for_this_machine() {
    let source = Source::carried(&results().join("cache")).unwrap();
    assert!(source.is_carried());
    let around = Surroundings {
        profile: vec![("CARGO_PROFILE_RELEASE_OPT_LEVEL".into(), "0".into())],
        ..Surroundings::of_process()
    };
    let mut lines = Vec::new();
    let mut make = || {
        lines.clear();
        let mut say = |line: &str| lines.push(line.to_owned());
        // of its own, so that another test's build of another source does not replace it
        let results = results().join("carried");
        (build_from(&source, host_architecture().unwrap(), &around, &results, &mut say).unwrap(), lines.clone())
    };
    let artefact = make().0;
    let output = Command::new(&artefact.path).arg("--version").output().unwrap();
    assert_eq!(said(&output).0, format!("farmhand {}\n", env!("CARGO_PKG_VERSION")));
    let (again, lines) = make();
    assert_eq!(again, artefact);
    assert!(lines.len() == 1 && lines[0].ends_with("up to date"), "{lines:?}");
}

#[test]
fn without_any_toolchain_the_error_says_what_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_farmgate"))
        .args(["engine", "build", "--target", "armv7"])
        .current_dir(empty.path())
        .env_clear()
        .env("PATH", empty.path())
        .env("HOME", empty.path())
        .output()
        .unwrap();
    let (stdout, stderr) = said(&output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(2), ""), "{stderr}");
    for part in [
        "error: nothing on this machine can build the engine for armv7\n",
        "rustc was not found",
        "cargo-zigbuild is not on PATH",
        "arm-linux-gnueabihf-gcc is not on PATH",
        "rustup target add armv7-unknown-linux-musleabihf",
        "apt-get install gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
        "`farmhand-armv7`",
    ] {
        assert!(stderr.contains(part), "{part} is missing in\n{stderr}");
    }
}

/// A project with this machine and a 64-bit Arm device that nobody can reach.
fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    fs::create_dir(project.path().join("devices")).unwrap();
    fs::write(project.path().join("devices/local.toml"), "[transport.local]\n").unwrap();
    let arm = "target = \"aarch64\"\n[transport.ssh]\nhost = \"127.0.0.1\"\nport = 1\n";
    fs::write(project.path().join("devices/arm.toml"), arm).unwrap();
    project
}

fn run_smoke(project: &Path, more: &[&str]) -> Output {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/models/tiny-pd-1.3m-Q8_0.gguf");
    Command::new(env!("CARGO_BIN_EXE_farmgate"))
        .args(["run", "smoke", "--model", model])
        .args(more)
        .current_dir(project)
        .env("PATH", project)
        .env_remove("CARGO")
        .output()
        .unwrap()
}

#[test]
fn a_missing_engine_is_told_before_any_device_is_touched() {
    let project = project();
    let engines = project.path().join("engines");
    fs::create_dir(&engines).unwrap();
    let output = run_smoke(project.path(), &["--artefacts", "engines"]);
    let (_, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no engine for aarch64 is in the folder"), "{stderr}");
    assert!(!stderr.contains("127.0.0.1"), "a device was connected to: {stderr}");
}

#[test]
fn a_dry_run_needs_no_engine_and_touches_nothing() {
    let project = project();
    let output = run_smoke(project.path(), &["--dry-run"]);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).0.contains("arm"), "{output:?}");
    assert!(!project.path().join("results").exists());
}

#[test]
fn targets_without_an_engine_are_refused_by_name() {
    let output = Command::new(env!("CARGO_BIN_EXE_farmgate"))
        .args(["engine", "build", "--target", "mips-unknown-linux-gnu"])
        .output()
        .unwrap();
    let (_, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("no engine for the target `mips-unknown-linux-gnu`"), "{stderr}");
    assert!(stderr.contains("aarch64, armv7, riscv64, x86_64"), "{stderr}");
}
