//! The engine binary for a target: built from the bundled source, or taken from a folder; checked before it is used.

use crate::error::{Error, Result};
use crate::process::{Job, Output};
use farmgate_engine::hash::{sha256_file, sha256_hex};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Budget of one build; the slowest hosts that were met needed ten minutes.
const BUILD: Duration = Duration::from_secs(45 * 60);
/// The largest binary that is taken for an engine, in bytes.
const ARTEFACT_BYTES_MAX: u64 = 512 << 20;
/// Most source files and bytes that are read to see whether anything changed.
const SOURCE_FILES_MAX: usize = 2_000;

/// An engine binary that can be pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact {
    /// Where it is on the lab host.
    pub path: PathBuf,
    /// The Rust target it is for.
    pub target: String,
    /// Its sha256, lower-case hex.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

/// The Rust target of this machine: the one that farmgate itself was built for.
pub fn host_target() -> &'static str {
    farmgate_engine::probe::TARGET
}

/// Builds the engine for this machine, static where that links, and keeps it as
/// `results/artefacts/farmhand-TARGET-SHA12`. When neither source nor compiler has changed since, nothing is built.
/// `progress` gets what there is to say, line by line.
///
/// # Errors
/// Usage when there is no source or no cargo; INFRA when the build fails, with the compiler's last words.
pub fn build_native(results: &Path, progress: &mut dyn FnMut(&str)) -> Result<Artefact> {
    build(Path::new(env!("CARGO_MANIFEST_DIR")), results, progress)
}

fn build(source: &Path, results: &Path, progress: &mut dyn FnMut(&str)) -> Result<Artefact> {
    let target = host_target();
    if !source.join("engine/Cargo.toml").is_file() {
        return Err(Error::usage("the engine's source is not on this machine").in_file(&source.join("engine")).hint(
            format!("pass `--artefacts DIR` with a `farmhand-{target}` in it, or run farmgate from a checkout"),
        ));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = results.join("artefacts");
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("cannot make the folder", &folder, &e))?;
    let state = state_of(source, &cargo)?;
    let record = folder.join(format!("farmhand-{target}.json"));
    if let Some(artefact) = recorded(&record, &folder, target, &state) {
        progress(&format!("engine for {target} is up to date"));
        return Ok(artefact);
    }
    let make = Make { source, cargo: &cargo, target, target_dir: folder.join("build") };
    progress(&format!("building the engine for {target}"));
    let mut output = make.run(true, progress)?;
    if !output.is_success() && looks_like_linking(&output) {
        progress("static linking failed; linking dynamically");
        output = make.run(false, progress)?;
    }
    if !output.is_success() {
        return Err(Error::infra(format!("the engine does not build: {}", first_error(&output)))
            .in_file(&source.join("engine"))
            .hint("run `cargo build --release -p farmgate-engine` there to see everything the compiler says"));
    }
    let artefact = keep(&make.binary(), &folder, target)?;
    if head_of(&artefact.path).is_ok_and(|head| wants_loader(&head)) {
        progress("warning: the engine is not static; it runs only where this machine's C library is");
    }
    write_record(&record, &artefact, state)?;
    Ok(artefact)
}

/// One call of cargo.
struct Make<'a> {
    source: &'a Path,
    cargo: &'a std::ffi::OsStr,
    target: &'a str,
    target_dir: PathBuf,
}

impl Make<'_> {
    fn run(&self, is_static: bool, progress: &mut dyn FnMut(&str)) -> Result<Output> {
        let target_dir = std::path::absolute(&self.target_dir)
            .map_err(|e| Error::io("cannot find the folder", &self.target_dir, &e))?;
        let mut show = |line: &str| {
            if ["Compiling", "Finished", "Downloaded", "error", "warning: unused"]
                .iter()
                .any(|w| line.trim().starts_with(w))
            {
                progress(line.trim());
            }
        };
        let flags = if is_static { "-Ctarget-feature=+crt-static" } else { "" };
        let job = Job::new(self.cargo, BUILD)
            .args(["build", "--release", "--package", "farmgate-engine", "--bin", "farmhand", "--target", self.target])
            .args(["--manifest-path".as_ref(), self.source.join("Cargo.toml").as_os_str()])
            .args(["--target-dir".as_ref(), target_dir.as_os_str()])
            // wins over RUSTFLAGS and over what any configuration file says
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            // line tables would make what is pushed five times as large
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .on_stderr(&mut show);
        let output = job.run()?;
        if output.status == 127 {
            return Err(Error::usage("cargo was not found, and the engine has to be built")
                .hint("install Rust from https://rustup.rs, or pass `--artefacts DIR` with a prebuilt farmhand"));
        }
        Ok(output)
    }

    fn binary(&self) -> PathBuf {
        self.target_dir.join(self.target).join("release/farmhand")
    }
}

fn looks_like_linking(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    said.contains("linking with") || said.contains("linker") || said.contains("crt-static")
}

fn first_error(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|l| l.starts_with("error")).map(|l| l.as_bytes().to_vec());
    farmgate_engine::text::escaped(&line.unwrap_or_else(|| output.ending().into_bytes()), 500)
}

/// Copies a built binary under its name by content.
fn keep(binary: &Path, folder: &Path, target: &str) -> Result<Artefact> {
    let artefact = checked(binary, target)?;
    let path = folder.join(format!("farmhand-{target}-{}", &artefact.sha256[..12]));
    let fault = |e: std::io::Error| Error::io("cannot keep the engine", &path, &e);
    let draft = tempfile::NamedTempFile::new_in(folder).map_err(fault)?;
    std::fs::copy(binary, draft.path()).map_err(fault)?;
    std::fs::set_permissions(draft.path(), std::fs::Permissions::from_mode(0o755)).map_err(fault)?;
    draft.persist(&path).map_err(|e| fault(e.error))?;
    Ok(Artefact { path, ..artefact })
}

/// What was built last, and from what.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    state: String,
    file: String,
    sha256: String,
}

/// The kept artefact, when it was made from this very state and is still whole.
fn recorded(record: &Path, folder: &Path, target: &str, state: &str) -> Option<Artefact> {
    let record: Record = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
    let is_name = record.file.starts_with("farmhand-") && !record.file.contains('/');
    if record.state != state || !is_name {
        return None;
    }
    checked(&folder.join(&record.file), target).ok().filter(|a| a.sha256 == record.sha256)
}

fn write_record(record: &Path, artefact: &Artefact, state: String) -> Result<()> {
    let file = artefact.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = serde_json::to_string(&Record { state, file, sha256: artefact.sha256.clone() })
        .map_err(|e| Error::bug(format!("cannot encode the record of a build: {e}")))?;
    std::fs::write(record, text).map_err(|e| Error::io("cannot write the record of a build", record, &e))
}

/// A hash over everything that decides what comes out of a build: sources, versions of dependencies, compiler.
fn state_of(source: &Path, cargo: &std::ffi::OsStr) -> Result<String> {
    let mut files = vec![source.join("Cargo.toml"), source.join("Cargo.lock")];
    let mut todo = vec![source.join("engine")];
    while let Some(folder) = todo.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|e| Error::io("cannot read the folder", &folder, &e))?;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let built_from = !["target", "tests", "benches", "examples"].iter().any(|n| name == *n);
            if path.is_dir() && built_from {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
                files.push(path);
            }
        }
        if files.len() > SOURCE_FILES_MAX {
            return Err(Error::usage(format!("more than {SOURCE_FILES_MAX} files in the engine's source"))
                .in_file(&source.join("engine")));
        }
    }
    files.sort();
    // rises when the way of building changes
    let mut text = String::from("recipe 1\n");
    for file in files.iter().filter(|f| f.is_file()) {
        text.push_str(&format!("{} {}\n", file.display(), sha256_file(file)?));
    }
    // cargo's own version moves together with the compiler's
    let version = Job::new(cargo, Duration::from_secs(60)).args(["-vV"]).in_folder(source).run()?;
    text.push_str(&String::from_utf8_lossy(&version.stdout));
    Ok(sha256_hex(text.as_bytes()))
}

/// Takes a prebuilt engine from a folder: `farmhand-TARGET`, one `farmhand-TARGET-SHA12`, or `farmhand`.
///
/// # Errors
/// Usage when there is none, several might be meant, or it is no executable for `target`.
pub fn from_folder(folder: &Path, target: &str) -> Result<Artefact> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Error::usage(format!("cannot read the folder of engines: {e}")).in_file(folder))?;
    let prefix = format!("farmhand-{target}");
    let is_hash = |s: &str| s.len() == 12 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    let hashed: Vec<&String> = names
        .iter()
        .filter(|n| n.strip_prefix(&prefix).and_then(|r| r.strip_prefix('-')).is_some_and(is_hash))
        .collect();
    let exact = [prefix.as_str(), "farmhand"].into_iter().find(|n| names.iter().any(|name| name == n));
    let name = match (exact, &hashed[..]) {
        (Some(name), _) if name == prefix => name,
        (_, [one]) => one.as_str(),
        (_, [_, _, ..]) => {
            return Err(Error::usage(format!("{} engines for {target} are in the folder", hashed.len()))
                .in_file(folder)
                .hint(format!("rename the one that is meant to `{prefix}`")));
        }
        (Some(name), []) => name,
        (None, []) => {
            return Err(Error::usage(format!("no engine for {target} is in the folder"))
                .in_file(folder)
                .hint(format!("put a binary named `{prefix}` there; `farmgate engine build` makes one")));
        }
    };
    checked(&folder.join(name), target)
}

/// The artefact at `path`, once it proves to be an executable for `target`.
fn checked(path: &Path, target: &str) -> Result<Artefact> {
    let refuse = |what: String| Error::usage(what).in_file(path).hint(format!("an engine for {target} is needed"));
    let mut file = std::fs::File::open(path).map_err(|e| refuse(format!("cannot read the engine: {e}")))?;
    let bytes = file.metadata().map_err(|e| refuse(format!("cannot read the engine: {e}")))?.len();
    if bytes > ARTEFACT_BYTES_MAX {
        return Err(refuse(format!("a file of {bytes} bytes is no engine")));
    }
    let mut head = [0u8; 20];
    file.read_exact(&mut head).map_err(|_| refuse("the file is too short for an executable".to_owned()))?;
    check_elf(&head, target).map_err(refuse)?;
    let sha256 = sha256_file(path).map_err(Error::from)?;
    Ok(Artefact { path: path.to_owned(), target: target.to_owned(), sha256, bytes })
}

/// `e_ident`, `e_type` and `e_machine` of the ELF header against what the target needs.
fn check_elf(head: &[u8; 20], target: &str) -> std::result::Result<(), String> {
    let arch = target.split('-').next().unwrap_or_default();
    let (class, machine) = match arch {
        "x86_64" => (2, 62),
        "aarch64" => (2, 183),
        "riscv64gc" | "riscv64" => (2, 243),
        "i586" | "i686" => (1, 3),
        arch if arch.starts_with("arm") || arch.starts_with("thumb") => (1, 40),
        other => return Err(format!("no engine can be checked for the architecture `{}`", other.escape_debug())),
    };
    if !head.starts_with(b"\x7fELF") {
        return Err("the file is no ELF executable".to_owned());
    }
    let is_machine = u16::from_le_bytes([head[18], head[19]]);
    let is_type = u16::from_le_bytes([head[16], head[17]]);
    if head[5] != 1 {
        return Err("the executable is for a big-endian machine".to_owned());
    }
    if (head[4], is_machine) != (class, machine) {
        let bits = if head[4] == 2 { 64 } else { 32 };
        return Err(format!("the executable is for ELF machine {is_machine} with {bits} bits, not for {arch}"));
    }
    // 2: fixed address, 3: position independent
    if !matches!(is_type, 2 | 3) {
        return Err(format!("the file is ELF of type {is_type}, not an executable"));
    }
    Ok(())
}

/// The first 4 KiB of a file, or all of it.
fn head_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    std::fs::File::open(path)?.take(4096).read_to_end(&mut head)?;
    Ok(head)
}

/// Whether an executable names a loader (`PT_INTERP`), and so needs the device's C library. Looks at the first 4 KiB,
/// where every linker puts the program headers.
fn wants_loader(head: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = head.get(at..at.checked_add(bytes)?)?;
        field.iter().rev().try_fold(0usize, |n, &b| n.checked_mul(256)?.checked_add(usize::from(b)))
    };
    let (offset, size, count) = match head.get(4) {
        Some(2) => (number(32, 8), number(54, 2), number(56, 2)),
        _ => (number(28, 4), number(42, 2), number(44, 2)),
    };
    let (Some(offset), Some(size), Some(count)) = (offset, size, count) else { return false };
    (0..count.min(64)).any(|i| {
        let at = i.checked_mul(size).and_then(|at| at.checked_add(offset));
        at.and_then(|at| number(at, 4)) == Some(PT_INTERP)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(class: u8, machine: u16) -> [u8; 20] {
        let mut head = [0u8; 20];
        head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        head[16] = 3;
        head[18..].copy_from_slice(&machine.to_le_bytes());
        head
    }

    #[test]
    fn an_executable_for_another_machine_is_told() {
        check_elf(&head(2, 183), "aarch64-unknown-linux-musl").unwrap();
        check_elf(&head(1, 40), "armv7-unknown-linux-gnueabihf").unwrap();
        let error = check_elf(&head(2, 62), "aarch64-unknown-linux-musl").unwrap_err();
        assert!(error.contains("machine 62"), "{error}");
        assert!(check_elf(&head(1, 183), "aarch64-unknown-linux-musl").is_err());
    }

    proptest! {
        #[test]
        fn any_twenty_bytes_are_judged_without_panic(bytes in any::<[u8; 20]>(), target in "[a-z0-9_-]{0,20}") {
            let _ = check_elf(&bytes, &target);
        }
        #[test]
        fn any_head_is_searched_for_a_loader_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            wants_loader(&bytes);
        }
    }

    #[test]
    fn a_folder_gives_the_engine_for_its_target_and_says_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        let of = |target: &str| from_folder(folder.path(), target);
        let none = of("aarch64-unknown-linux-musl").unwrap_err();
        assert!(none.hint_text().unwrap().contains("farmhand-aarch64-unknown-linux-musl"), "{none}");
        put("farmhand", &head(2, 62));
        assert_eq!(of("x86_64-unknown-linux-gnu").unwrap().bytes, 20);
        assert!(of("aarch64-unknown-linux-musl").unwrap_err().what().contains("machine 62"));
        put("farmhand-aarch64-unknown-linux-musl-0123456789ab", &head(2, 183));
        assert_eq!(of("aarch64-unknown-linux-musl").unwrap().sha256, sha256_hex(&head(2, 183)));
        put("farmhand-aarch64-unknown-linux-musl-ffffffffffff", &head(2, 183));
        assert!(of("aarch64-unknown-linux-musl").unwrap_err().what().starts_with("2 engines"));
        put("farmhand-aarch64-unknown-linux-musl", b"#!/bin/sh\nexit 0 # not ELF");
        assert!(of("aarch64-unknown-linux-musl").unwrap_err().what().contains("no ELF"));
    }

    #[test]
    fn without_the_source_a_prebuilt_engine_is_asked_for() {
        let empty = tempfile::tempdir().unwrap();
        let error = build(empty.path(), empty.path(), &mut |_| {}).unwrap_err();
        assert!(error.hint_text().unwrap().contains("--artefacts"), "{error}");
    }

    /// A crate small enough to be built in a test, laid out as ours.
    fn small_source(folder: &Path, main: &str) {
        std::fs::create_dir_all(folder.join("engine/src")).unwrap();
        std::fs::write(folder.join("Cargo.toml"), "[workspace]\nmembers = [\"engine\"]\nresolver = \"3\"\n").unwrap();
        let manifest = "[package]\nname = \"farmgate-engine\"\nversion = \"0.0.1\"\nedition = \"2024\"\n\
                        [[bin]]\nname = \"farmhand\"\npath = \"src/main.rs\"\n";
        std::fs::write(folder.join("engine/Cargo.toml"), manifest).unwrap();
        std::fs::write(folder.join("engine/src/main.rs"), main).unwrap();
        // as cargo writes it, so that it does not write it anew
        let lock = "# This file is automatically @generated by Cargo.\n# It is not intended for manual editing.\nversion = 4\n\n[[package]]\nname = \"farmgate-engine\"\nversion = \"0.0.1\"\n";
        std::fs::write(folder.join("Cargo.lock"), lock).unwrap();
    }

    #[test]
    fn the_engine_is_built_static_kept_by_hash_and_built_again_only_when_its_source_changed() {
        let (source, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        small_source(source.path(), "fn main() { println!(\"one\"); }");
        let mut said = Vec::new();
        let mut make = || {
            said.clear();
            let artefact = build(source.path(), results.path(), &mut |line| said.push(line.to_owned())).unwrap();
            (artefact, said.clone())
        };
        let (first, said) = make();
        assert!(said.iter().any(|l| l.contains("Compiling farmgate-engine")), "{said:?}");
        let name = first.path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(name, format!("farmhand-{}-{}", host_target(), &first.sha256[..12]));
        assert!(!wants_loader(&head_of(&first.path).unwrap()));
        assert!(wants_loader(&head_of(&std::env::current_exe().unwrap()).unwrap()), "tests are linked dynamically");
        let output = Job::new(&first.path, Duration::from_secs(10)).run().unwrap();
        assert_eq!(output.stdout, b"one\n");

        let (second, said) = make();
        assert_eq!((second, &said[..]), (first.clone(), &[format!("engine for {} is up to date", host_target())][..]));
        std::fs::write(&first.path, "broken").unwrap();
        assert_eq!(make().0, first, "a broken artefact is made again");
        std::fs::write(source.path().join("engine/src/main.rs"), "fn main() { println!(\"two\"); }").unwrap();
        assert_ne!(make().0.sha256, first.sha256);

        std::fs::write(source.path().join("engine/src/main.rs"), "fn main() { nonsense() }").unwrap();
        let error = build(source.path(), results.path(), &mut |_| {}).unwrap_err();
        assert!(error.what().contains("nonsense"), "{error}");
    }
}
