//! The engine's source: that of the checkout which this farmgate was built from, or else the copy that every farmgate
//! carries, unpacked into the user's cache.

use crate::error::{Error, Result};
use farmgate_engine::hash::{sha256_file, sha256_hex};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Made by `build.rs`, which says what is in it.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/engine-source"));
const FIRST_LINE: &[u8] = b"farmgate-source 1\n";
/// Cargo leaves out of it what the engine does not need, so that it differs from what was packed.
const LOCK_FILE: &str = "Cargo.lock";
/// Most source files that are read to see whether anything changed.
const FILES_MAX: usize = 2_000;

/// Source that cargo can build, on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    root: PathBuf,
    /// Hash of the packed source; a checkout has none, since its files change.
    packed_sha256: Option<String>,
}

impl Source {
    /// The checkout's when there is one, else the carried one.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn find() -> Result<Self> {
        let own = Self::checkout(Path::new(env!("CARGO_MANIFEST_DIR")));
        own.map_or_else(|| Self::carried(&cache_folder()?), Ok)
    }

    /// A checkout at `root`, if one is there.
    pub fn checkout(root: &Path) -> Option<Self> {
        let is_there = root.join("engine/Cargo.toml").is_file() && root.join("Cargo.toml").is_file();
        is_there.then(|| Self { root: root.to_owned(), packed_sha256: None })
    }

    /// The source that this farmgate carries, below `cache` in a folder named by its content. What is there already and
    /// whole is used as it is.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn carried(cache: &Path) -> Result<Self> {
        let sha256 = sha256_hex(PACKED);
        let root = cache.join(format!("engine-source-{}", &sha256[..12]));
        let files = entries(PACKED).ok_or_else(|| Error::bug("the carried source of the engine is damaged"))?;
        if !is_whole(&root, &files) {
            unpack(&files, &root, cache)?;
        }
        Ok(Self { root, packed_sha256: Some(sha256) })
    }

    /// The folder of the workspace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it was carried rather than found in a checkout.
    pub fn is_carried(&self) -> bool {
        self.packed_sha256.is_some()
    }

    /// A text that changes when the source does.
    ///
    /// # Errors
    /// The files cannot be read, or are more than an engine has.
    pub fn state(&self) -> Result<String> {
        match &self.packed_sha256 {
            Some(sha256) => Ok(format!("packed {sha256}\n")),
            None => state_of_files(&self.root),
        }
    }
}

/// A hash for every file that decides what comes out of a build: sources and versions of dependencies.
fn state_of_files(root: &Path) -> Result<String> {
    let mut files = vec![root.join("Cargo.toml"), root.join(LOCK_FILE)];
    let mut todo = vec![root.join("engine")];
    while let Some(folder) = todo.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| Error::io("cannot read the folder", &folder, &e))?;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let built_from = !["target", "tests", "benches", "examples", "fuzz"].iter().any(|n| name == *n);
            if path.is_dir() && built_from {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs" || e == "toml" || e == "txt") {
                files.push(path);
            }
        }
        if files.len() > FILES_MAX {
            return Err(Error::usage(format!("more than {FILES_MAX} files in the engine's source"))
                .in_file(&root.join("engine")));
        }
    }
    files.sort();
    let mut text = String::new();
    for file in files.iter().filter(|f| f.is_file()) {
        text.push_str(&format!("{} {}\n", file.display(), sha256_file(file)?));
    }
    Ok(text)
}

/// farmgate's folder in the user's cache.
fn cache_folder() -> Result<PathBuf> {
    let absolute = |key| std::env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|folder| folder.join("farmgate")).ok_or_else(|| {
        Error::usage("there is no folder to unpack the engine's source into: neither XDG_CACHE_HOME nor HOME is set")
            .hint("set XDG_CACHE_HOME to a folder, or pass `--artefacts DIR` with prebuilt engines")
    })
}

/// Path and content of every packed file; `None` when the pack is damaged.
fn entries(packed: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    let mut rest = packed.strip_prefix(FIRST_LINE)?;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let line_end = rest.iter().position(|&b| b == b'\n')?;
        let (bytes, path) = std::str::from_utf8(&rest[..line_end]).ok()?.split_once(' ')?;
        let bytes: usize = bytes.parse().ok()?;
        rest = &rest[line_end + 1..];
        let is_inside = !path.is_empty() && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
        if !is_inside || bytes > rest.len() {
            return None;
        }
        let (content, after) = rest.split_at(bytes);
        out.push((path, content));
        rest = after;
    }
    Some(out)
}

fn is_whole(root: &Path, files: &[(&str, &[u8])]) -> bool {
    files.iter().all(|(path, content)| match fs::read(root.join(path)) {
        Ok(found) => found == *content || (*path == LOCK_FILE && !found.is_empty()),
        Err(_) => false,
    })
}

/// Writes all files beside their place and moves the folder there, so that nobody sees a part of it.
fn unpack(files: &[(&str, &[u8])], root: &Path, cache: &Path) -> Result<()> {
    let fault = |path: &Path, e: &std::io::Error| {
        Error::io("cannot unpack the engine's source", path, e)
            .hint("set XDG_CACHE_HOME to a folder that can be written, or pass `--artefacts DIR` with prebuilt engines")
    };
    fs::create_dir_all(cache).map_err(|e| fault(cache, &e))?;
    // one farmgate at a time; the system lets go of the lock when the file is closed
    let lock = cache.join("engine-source.lock");
    let lock = fs::File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(|e| fault(&lock, &e))?;
    if is_whole(root, files) {
        return Ok(());
    }
    let draft = tempfile::tempdir_in(cache).map_err(|e| fault(cache, &e))?;
    let fresh = draft.path().join("source");
    for (path, content) in files {
        let path = fresh.join(path);
        let folder = path.parent().unwrap_or(&fresh);
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, content)).map_err(|e| fault(&path, &e))?;
    }
    match fs::rename(root, draft.path().join("damaged")) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(fault(root, &e)),
        _ => {}
    }
    fs::rename(&fresh, root).map_err(|e| fault(root, &e))?;
    drop(lock);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_carried_source_is_that_of_the_checkout_and_small() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = entries(PACKED).unwrap();
        for (path, content) in &files {
            if !path.ends_with("Cargo.toml") {
                assert!(fs::read(checkout.join(path)).unwrap() == *content, "{path} is not as it is in the checkout");
            }
        }
        let has = |path: &str| files.iter().any(|(p, _)| *p == path);
        assert!(has("engine/src/main.rs") && has("engine/src/execute/passage.txt") && has("Cargo.lock"));
        assert!(!files.iter().any(|(path, _)| path.contains("tests")), "tests are not needed for a build");
        assert!(PACKED.len() < 2_000_000, "{} bytes in every farmgate", PACKED.len());
    }

    #[test]
    fn the_carried_source_is_unpacked_once_and_again_when_it_is_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let source = Source::carried(&cache.path().join("deep/farmgate")).unwrap();
        let main = source.root().join("engine/src/main.rs");
        let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let first = written(&main);
        // what cargo does to it
        fs::write(source.root().join(LOCK_FILE), "version = 4\n").unwrap();
        assert_eq!(Source::carried(&cache.path().join("deep/farmgate")).unwrap(), source);
        assert_eq!(written(&main), first, "it was unpacked twice");

        fs::write(&main, "fn main() {}").unwrap();
        fs::remove_file(source.root().join("engine/build.rs")).unwrap();
        assert_eq!(Source::carried(&cache.path().join("deep/farmgate")).unwrap(), source);
        assert!(is_whole(source.root(), &entries(PACKED).unwrap()));
        let left: Vec<_> = fs::read_dir(cache.path().join("deep/farmgate")).unwrap().collect();
        assert_eq!(left.len(), 2, "the source and the lock: {left:?}");
    }

    #[test]
    fn several_that_unpack_at_once_all_find_it_whole() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| Source::carried(cache.path()).unwrap());
            }
        });
        assert!(is_whole(Source::carried(cache.path()).unwrap().root(), &entries(PACKED).unwrap()));
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_told_with_what_to_set() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Source::carried(&file).unwrap_err();
        assert!(error.hint_text().unwrap().contains("XDG_CACHE_HOME"), "{error}");
    }

    proptest! {
        #[test]
        fn any_pack_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            entries(&bytes);
            entries(&[FIRST_LINE, &bytes].concat());
        }
        #[test]
        fn no_packed_path_leads_out_of_its_folder(path in "[a./]{0,8}") {
            let packed = [FIRST_LINE, format!("0 {path}\n").as_bytes()].concat();
            if let Some(files) = entries(&packed) {
                prop_assert!(files.iter().all(|(p, _)| !p.contains("..") || !p.split('/').any(|c| c == "..")));
                prop_assert!(!path.starts_with('/'));
            }
        }
    }
}
