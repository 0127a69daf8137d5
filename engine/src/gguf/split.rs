//! Sets of split files: `NAME-00001-of-00003.gguf` and its siblings are one model.

use super::in_file;
use super::parse::Header;
use crate::error::{EngineError, Result};
use std::path::{Path, PathBuf};

/// Most files in a set.
const FILES_MAX: u32 = 1024;

/// The files of the model at `path`, in order: of a split set all of them, whichever one is named; else just `path`.
///
/// # Errors
/// A sibling is missing, or the numbers in the name make no sense.
pub fn split_set(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((stem, number, count)) = numbers(&name) else {
        return Ok(vec![path.to_owned()]);
    };
    if count == 0 || count > FILES_MAX || number == 0 || number > count {
        return Err(in_file(
            EngineError::model(format!("file {number} of {count} is no possible part of a set")),
            path,
        )
        .hint(format!("a set has 1 to {FILES_MAX} files, numbered from 1")));
    }
    let files: Vec<PathBuf> =
        (1..=count).map(|i| path.with_file_name(format!("{stem}-{i:05}-of-{count:05}.gguf"))).collect();
    let missing: Vec<String> = files
        .iter()
        .filter(|f| !f.exists())
        .map(|f| f.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    if missing.is_empty() || missing.len() == files.len() {
        return Ok(files);
    }
    Err(in_file(EngineError::model(format!("the set of {count} files lacks {}", missing.join(", "))), path)
        .hint("put all files of the set into one folder"))
}

/// `(stem, number, count)` of a name such as `model-00002-of-00003.gguf`.
fn numbers(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(number) && digits(count)).then(|| Some((stem, number.parse().ok()?, count.parse().ok()?)))?
}

/// Checks what the files of a set say of themselves against how many there are.
pub(super) fn check(paths: &[PathBuf], headers: &[Header]) -> Result<()> {
    for (i, (path, header)) in paths.iter().zip(headers).enumerate() {
        let metadata = &header.metadata;
        let count = metadata.u64("split.count").map_err(|e| in_file(e, path))?;
        let number = metadata.u64("split.no").map_err(|e| in_file(e, path))?;
        let fault = |what: String, hint: &str| Err(in_file(EngineError::model(what), path).hint(hint));
        match count {
            Some(count) if count != paths.len() as u64 => {
                return fault(
                    format!("the file belongs to a set of {count} files, but {} were found", paths.len()),
                    "keep the names NAME-00001-of-000NN.gguf that the set was made with, all in one folder",
                );
            }
            None if paths.len() > 1 => {
                return fault(
                    "the file is named as part of a set but does not say split.count".to_owned(),
                    "split the model with a tool that writes it, or rename a whole model",
                );
            }
            _ => {}
        }
        if number.is_some_and(|n| n != i as u64) {
            return fault(
                format!("the file says it is part {} (from 0), its name says {i}", number.unwrap_or_default()),
                "the files of the set were mixed up; fetch them again",
            );
        }
    }
    let total: usize = headers.iter().map(|h| h.tensors.len()).sum();
    let stated = headers[0].metadata.u64("split.tensors.count").map_err(|e| in_file(e, &paths[0]))?;
    match stated {
        Some(stated) if stated != total as u64 => Err(in_file(
            EngineError::model(format!("the set should have {stated} tensors, its files have {total}")),
            &paths[0],
        )
        .hint("files of another set are among them; fetch the set again")),
        _ => Ok(()),
    }
}
