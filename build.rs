//! Packs the engine's source into one file, so that an installed farmgate, which has no checkout, can build the engine for
//! its devices. `src/toolchain/source.rs` unpacks it.
//!
//! Format: the line `farmgate-source 1`, then for each file a line with its size in bytes and its path, and its bytes.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

fn main() {
    let from_cargo = |key: &str| PathBuf::from(env::var_os(key).unwrap_or_else(|| panic!("cargo sets {key}")));
    let own = from_cargo("CARGO_MANIFEST_DIR");
    // told by the engine's build script: beside this file in a checkout, elsewhere when both come from a registry
    let engine = from_cargo("DEP_FARMHAND_SOURCE");
    let packed = pack(&own, &engine).unwrap_or_else(|e| panic!("cannot pack the engine's source: {e}"));
    let out = from_cargo("OUT_DIR").join("engine-source");
    fs::write(&out, packed).unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));
    let inside = ["src", "build.rs"].map(|name| engine.join(name));
    for path in [manifest(&own), own.join("Cargo.lock"), own.join("build.rs"), manifest(&engine)].iter().chain(&inside)
    {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn pack(own: &Path, engine: &Path) -> io::Result<Vec<u8>> {
    let mut files = vec![
        ("Cargo.toml".to_owned(), sections(&manifest(own), is_of_workspace)?),
        ("Cargo.lock".to_owned(), fs::read(own.join("Cargo.lock"))?),
        ("engine/Cargo.toml".to_owned(), sections(&manifest(engine), |name| !is_for_developers(name))?),
        ("engine/build.rs".to_owned(), fs::read(engine.join("build.rs"))?),
    ];
    let mut todo = vec![engine.join("src")];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "tests" {
                todo.push(path);
            } else if path.is_file() && name != "tests.rs" {
                let inside = path.strip_prefix(engine).map_err(io::Error::other)?;
                files.push((format!("engine/{}", inside.display()), fs::read(&path)?));
            }
        }
    }
    // the same source packs to the same bytes
    files.sort();
    let mut out = b"farmgate-source 1\n".to_vec();
    for (path, bytes) in files {
        out.extend(format!("{} {path}\n", bytes.len()).into_bytes());
        out.extend(bytes);
    }
    Ok(out)
}

/// The manifest as it was written: in a package, cargo keeps it beside the one that it made of it.
fn manifest(folder: &Path) -> PathBuf {
    let original = folder.join("Cargo.toml.orig");
    if original.is_file() { original } else { folder.join("Cargo.toml") }
}

fn is_of_workspace(section: &str) -> bool {
    section == "profile.release" || section.split('.').next() == Some("workspace")
}

/// What cargo would look for files or versions for, and the build of one program does not need.
fn is_for_developers(section: &str) -> bool {
    matches!(section.split('.').next(), Some("dev-dependencies" | "bench" | "test" | "example"))
}

/// The sections of a manifest whose names (without brackets) are kept.
fn sections(manifest: &Path, is_kept: impl Fn(&str) -> bool) -> io::Result<Vec<u8>> {
    let mut out = String::new();
    let mut inside = false;
    for line in fs::read_to_string(manifest)?.lines() {
        if line.starts_with('[') {
            inside = is_kept(line.trim_matches(['[', ']']));
        }
        if inside {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out.into_bytes())
}
