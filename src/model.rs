//! A model as the lab host finds it: the GGUF file or split set, checked, hashed, and described.

use crate::error::{Error, ExitCode, Place, Result, nearest};
use crate::run::ModelFacts;
use farmgate_engine::gguf::{Gguf, LoadMode, TensorType};
use farmgate_engine::hash::sha256_file_with;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A model that can be pushed and opened.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    /// The file, or the first file of the set.
    pub path: PathBuf,
    /// All files of the set, in order.
    pub files: Vec<PathBuf>,
    /// What it is; `facts.sha256` goes with `files`.
    pub facts: ModelFacts,
    /// Longest context that the model was trained for, in tokens, when it says so.
    pub context_tokens: Option<u32>,
}

impl ModelFile {
    /// Checks and hashes a model. `progress` is told the bytes hashed so far and the bytes in all.
    ///
    /// # Errors
    /// Usage error: there is no such file, it cannot be read, or it is no complete GGUF model.
    pub fn open(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        look_at(path)?;
        let model = Gguf::open(path, LoadMode::Map).map_err(|e| refused(path, e))?;
        let files = model.files().to_vec();
        let total_bytes = model.file_bytes();
        let mut done_bytes = 0;
        let mut sha256 = Vec::with_capacity(files.len());
        for file in &files {
            let mut of_file = 0;
            let hash = sha256_file_with(file, &mut |bytes| {
                of_file = bytes;
                progress(done_bytes + bytes, total_bytes);
            });
            sha256.push(hash.map_err(|e| refused(file, e))?);
            done_bytes += of_file;
        }
        if done_bytes != total_bytes {
            return Err(Error::usage(format!(
                "the file changed from {total_bytes} to {done_bytes} bytes while it was read"
            ))
            .in_file(path)
            .hint("wait until the copy or download is complete"));
        }
        let path = files.first().map_or(path, PathBuf::as_path).to_owned();
        let facts = facts_of(&path, &model, sha256)?;
        let context_tokens = context_of(&path, &model, &facts.architecture)?;
        Ok(Self { path, files, facts, context_tokens })
    }
}

fn facts_of(path: &Path, model: &Gguf, sha256: Vec<String>) -> Result<ModelFacts> {
    let architecture =
        model.metadata().str("general.architecture").map_err(|e| refused(path, e))?.ok_or_else(|| {
            Error::usage("the model has no `general.architecture`")
                .in_file(path)
                .hint("this GGUF file holds no language model; convert the model again")
        })?;
    if model.tensors().is_empty() {
        return Err(Error::usage("the model has no tensors")
            .in_file(path)
            .hint("this may be a vocabulary-only file; name the file with the weights"));
    }
    Ok(ModelFacts {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        sha256,
        file_bytes: model.file_bytes(),
        weight_bytes: model.weight_bytes(),
        architecture: architecture.to_owned(),
        parameters: model.parameters(),
        weight_type: model.main_type().map_or("", TensorType::name).to_owned(),
    })
}

fn context_of(path: &Path, model: &Gguf, architecture: &str) -> Result<Option<u32>> {
    model.metadata().u32(&format!("{architecture}.context_length")).map_err(|e| refused(path, e))
}

/// What can be said of a file before its structure is read; the hints know how models go missing.
fn look_at(path: &Path) -> Result<()> {
    let facts = std::fs::metadata(path).map_err(|e| cannot_open(path, &e))?;
    let refuse = |what: &str, hint: String| Err(Error::usage(what).in_file(path).hint(hint));
    if facts.is_dir() {
        let hint = match gguf_files(path).first() {
            Some(name) => format!("name the file in it, for instance {}", path.join(name).display()),
            None => "name a .gguf file; there is none in this folder".to_owned(),
        };
        return refuse("this is a folder, not a model file", hint);
    }
    if !facts.is_file() {
        return refuse("this is not an ordinary file", "name a .gguf file".to_owned());
    }
    let mut head = [0u8; 64];
    let mut length = 0;
    let mut file = std::fs::File::open(path).map_err(|e| cannot_open(path, &e))?;
    while length < head.len() {
        match file.read(&mut head[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(cannot_open(path, &e)),
        }
    }
    match &head[..length] {
        [] => refuse("the model file is empty", "the download or copy failed; fetch it again".to_owned()),
        head if head.starts_with(b"GGUF") => Ok(()),
        head => refuse("the file is not a GGUF model", not_gguf_hint(head).to_owned()),
    }
}

fn not_gguf_hint(head: &[u8]) -> &'static str {
    let holds = |word: &[u8]| head.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
    if head.starts_with(b"version https://git-lfs") {
        "this is a Git LFS pointer; `git lfs pull` fetches the file itself"
    } else if holds(b"<html") || holds(b"<!doctype") {
        "this is a web page; the download address was that of the page, not of the file"
    } else if head.starts_with(b"PK\x03\x04") || head.starts_with(b"\x1f\x8b") {
        "this is an archive; unpack it, or convert the checkpoint to GGUF"
    } else if head.get(8) == Some(&b'{') {
        "this looks like safetensors; convert it to GGUF first"
    } else {
        "GGUF files begin with the letters GGUF; convert the model, or fetch it again"
    }
}

fn cannot_open(path: &Path, source: &std::io::Error) -> Error {
    if source.kind() != std::io::ErrorKind::NotFound {
        return Error::usage(format!("cannot read the model: {source}"))
            .in_file(path)
            .hint("check the permissions of the file and of the folders above it");
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let siblings = gguf_files(folder);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let hint = match nearest(&name, siblings.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if folder.is_dir() => "name the path of a .gguf file".to_owned(),
        None => format!("there is no folder {}", folder.display()),
    };
    Error::usage("there is no such model file").in_file(path).hint(hint)
}

/// Names of the GGUF files in a folder, sorted; at most the first thousand entries are looked at.
fn gguf_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(1000).flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    names.sort();
    names
}

/// The engine's refusal of a file: a usage error, since nothing was touched.
fn refused(path: &Path, error: farmgate_engine::error::EngineError) -> Error {
    let error = Error::from(error);
    let exit = if error.exit() == ExitCode::Bug { ExitCode::Bug } else { ExitCode::Usage };
    let place = match error.place() {
        // the engine's place names the byte or the field, and mostly the file
        Some(Place::Other(text)) if text.contains(&*path.to_string_lossy()) => Place::Other(text.clone()),
        Some(place) => Place::Other(format!("{}: {place}", path.display())),
        None => Place::File { path: path.display().to_string(), line: 0, column: 0 },
    };
    let hinted = error.hint_text().is_some();
    let error = error.with_exit(exit).at(place);
    if hinted {
        error
    } else {
        error.hint("the file may be cut short or damaged; compare its size and sha256 with the source")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/models");
    const TINY: &str = "tiny-pd-1.3m-Q8_0.gguf";

    fn open(path: &Path) -> Result<ModelFile> {
        ModelFile::open(path, &mut |_, _| {})
    }

    fn refused_text(path: &Path) -> String {
        let error = open(path).expect_err("this is refused");
        assert_eq!(error.exit(), ExitCode::Usage, "{error}");
        assert!(error.hint_text().is_some(), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        error.to_string()
    }

    #[test]
    fn a_model_is_described_and_hashed_with_progress() {
        let path = Path::new(MODELS).join(TINY);
        let mut last = (0, 0);
        let model = ModelFile::open(&path, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(last, (1_411_136, 1_411_136));
        assert_eq!(model.files, [path]);
        assert_eq!(model.facts.name, TINY);
        assert_eq!(model.facts.sha256, ["3685765d32f9a03671233a34bd8050c8f075481024cc58f767e8f69112285c5d"]);
        assert_eq!((model.facts.architecture.as_str(), model.facts.weight_type.as_str()), ("llama", "Q8_0"));
        assert_eq!((model.facts.file_bytes, model.context_tokens), (1_411_136, Some(512)));
        assert!((1_250_000..1_400_000).contains(&model.facts.parameters), "{}", model.facts.parameters);
        assert!(model.facts.weight_bytes < model.facts.file_bytes);
    }

    #[test]
    fn a_missing_model_gets_the_nearest_name_in_its_folder() {
        let text = refused_text(&Path::new(MODELS).join("tiny-pd-1.3m-Q8.gguf"));
        assert!(
            text.contains("there is no such model file") && text.contains(&format!("did you mean `{TINY}`?")),
            "{text}"
        );
        assert!(refused_text(Path::new("/nonexistent/a.gguf")).contains("there is no folder /nonexistent"));
    }

    #[test]
    fn a_folder_an_empty_file_and_other_formats_are_refused_with_what_they_are() {
        assert!(refused_text(Path::new(MODELS)).contains("this is a folder"));
        let folder = tempfile::tempdir().unwrap();
        let table: &[(&[u8], &str, &str)] = &[
            (b"", "the model file is empty", "fetch it again"),
            (b"<!DOCTYPE html><html>", "not a GGUF model", "this is a web page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF model", "Git LFS pointer"),
            (b"PK\x03\x04pytorch", "not a GGUF model", "archive"),
            (b"\x40\0\0\0\0\0\0\0{\"x\":1}", "not a GGUF model", "safetensors"),
            (b"GG", "not a GGUF model", "begin with the letters GGUF"),
        ];
        for (bytes, what, hint) in table {
            let path = folder.path().join("m.gguf");
            std::fs::write(&path, bytes).unwrap();
            let text = refused_text(&path);
            assert!(text.contains(what) && text.contains(hint), "{bytes:?} gave\n{text}");
        }
        assert!(refused_text(folder.path()).contains("for instance"));
    }

    #[test]
    fn a_model_that_is_cut_short_anywhere_is_refused() {
        let whole = std::fs::read(Path::new(MODELS).join(TINY)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.gguf");
        let cuts = [4, 5, 8, 12, 23, 24, 100, 1000, 5000, whole.len() / 2, whole.len() - 1];
        for cut in cuts {
            std::fs::write(&path, &whole[..cut]).unwrap();
            refused_text(&path);
        }
    }
}
