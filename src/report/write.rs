//! Files: a project's templates are read here, reports are written here.

use super::render::{self, TEMPLATE_BYTES_MAX, TEMPLATES_MAX, Templates};
use super::view::Report;
use crate::error::{Error, ExitCode, Place, Result};
use crate::gate::Judgement;
use crate::run::RunData;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// File names of a report, in the order in which [`write_all`] returns them.
pub const FILES: [&str; 5] = ["report.html", "report.md", "junit.xml", "samples.csv", "report.json"];

impl Templates {
    /// The templates that ship, with those of a folder (`*.j2`, `*.css`) in their place. A folder that does not exist
    /// changes nothing.
    pub fn load(folder: &Path) -> Result<Self> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::shipped(),
            Err(error) => return Err(usage("reading the folder of report templates", folder, &error)),
        };
        let mut own = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(|error| usage("reading the folder of report templates", folder, &error))?.path();
            let Some(name) = path.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
            if !(name.ends_with(".j2") || name.ends_with(".css")) || name.starts_with('.') {
                continue;
            }
            if own.len() == TEMPLATES_MAX {
                return Err(Error::usage(format!("more than {TEMPLATES_MAX} report templates"))
                    .in_file(folder)
                    .hint("keep only the templates that differ from those that ship"));
            }
            own.insert(name, (path.display().to_string(), read_template(&path)?));
        }
        Self::with(own)
    }
}

fn read_template(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|error| usage("opening a report template", path, &error))?;
    let mut bytes = Vec::new();
    // one more than allowed, so that a file that is too large is seen as such and no more of it is read
    file.take(TEMPLATE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| usage("reading a report template", path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        Error::usage("the report template is not UTF-8")
            .at(Place::File { path: path.display().to_string(), line, column: 1 })
            .hint("save it as UTF-8")
    })
}

fn usage(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::io(doing, path, error).with_exit(ExitCode::Usage)
}

/// Renders all formats and writes them into `folder`, which is made when it does not exist. Every file appears whole
/// or not at all, and nothing is written unless everything renders. Returns the paths, the page first.
pub fn write_all(
    folder: &Path,
    run: &RunData,
    judgement: Option<&Judgement>,
    templates: &Templates,
) -> Result<Vec<PathBuf>> {
    let report = Report::build(run, judgement);
    let texts = [
        render::html(templates, &report)?,
        render::markdown(templates, &report)?,
        render::junit(templates, &report)?,
        render::csv(run)?,
        render::json(run, judgement)?,
    ];
    std::fs::create_dir_all(folder).map_err(|error| {
        usage("making the report's folder", folder, &error).hint("choose another folder with --output DIR")
    })?;
    FILES.iter().zip(&texts).map(|(name, text)| write_file(folder, name, text)).collect()
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let failed = |error: &std::io::Error| {
        Error::io("writing a report", &path, error).hint("check free space and the folder's permissions")
    };
    let mut file = tempfile::Builder::new().prefix(".report-").tempfile_in(folder).map_err(|e| failed(&e))?;
    file.write_all(text.as_bytes()).map_err(|e| failed(&e))?;
    // a temporary file is private; a report is as readable as any other file the user makes
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(mode).map_err(|e| failed(&e))?;
    }
    file.as_file().sync_all().map_err(|e| failed(&e))?;
    file.persist(&path).map_err(|e| failed(&e.error))?;
    Ok(path)
}
