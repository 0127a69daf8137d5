//! One build of the engine: by the first way that this machine has, unless the last one made the same already.

use super::way::{Surroundings, Way, how_to_install, ways};
use super::{Artefact, Source, checked};
use crate::error::{Error, Result};
use crate::process::{Job, Output};
use crate::target::Architecture;
use farmgate_engine::hash::sha256_hex;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Budget of one build; the slowest hosts that were met needed ten minutes.
const BUILD: Duration = Duration::from_secs(45 * 60);
/// Begins each state; another number when the way of building changes.
const RECIPE: &str = "recipe 2\n";
/// What is shown of cargo's talk, by the first word of a line.
const SHOWN: [&str; 6] = ["Compiling", "Finished", "Downloaded", "Blocking", "error", "warning: unused"];

pub(super) fn make(
    source: &Source,
    architecture: Architecture,
    around: &Surroundings,
    results: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Artefact> {
    let folder = results.join("artefacts");
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("cannot make the folder", &folder, &e))?;
    let source_state = source.state()?;
    let mut reasons = Vec::new();
    for way in ways(architecture, around, source.root()) {
        let way = match way {
            Ok(way) => way,
            Err(reason) => {
                reasons.push(reason);
                continue;
            }
        };
        let state = sha256_hex([RECIPE, &source_state, &way.state()].concat().as_bytes());
        let record = folder.join(format!("farmhand-{}.json", way.target));
        if let Some(artefact) = recorded(&record, &folder, &way, architecture, &state) {
            progress("up to date");
            return Ok(artefact);
        }
        reasons.iter().for_each(|reason| progress(&format!("not taken: {reason}")));
        progress(&format!("building with {way}{}", if source.is_carried() { ", from the carried source" } else { "" }));
        let call = Call { source, way: &way, target_dir: folder.join("build") };
        let output = call.run(progress)?;
        if output.is_success() {
            let artefact = keep(&call.binary(), &folder, &way, architecture)?;
            write_record(&record, &artefact, state)?;
            return Ok(artefact);
        }
        if !looks_like_linking(&output) {
            return Err(Error::infra(format!(
                "the engine does not build for {architecture}: {}",
                first_error(&output)
            ))
            .in_file(&source.root().join("engine"))
            .hint("run `cargo build --release -p farmgate-engine` there to see everything the compiler says"));
        }
        // told as a reason beside the next way that is taken, or in the error when there is none
        reasons.push(format!("{way}: linking failed: {}", first_error(&output)));
    }
    let listed: String = reasons.iter().map(|reason| format!("  {reason}\n")).collect();
    Err(Error::usage(format!("nothing on this machine can build the engine for {architecture}"))
        .hint(format!("what was looked for:\n{listed}{}", how_to_install(architecture))))
}

/// One call of cargo.
struct Call<'a> {
    source: &'a Source,
    way: &'a Way,
    target_dir: PathBuf,
}

impl Call<'_> {
    fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Output> {
        let target_dir = std::path::absolute(&self.target_dir)
            .map_err(|e| Error::io("cannot find the folder", &self.target_dir, &e))?;
        let mut show = |line: &str| {
            let line = line.trim();
            if SHOWN.iter().any(|word| line.starts_with(word)) {
                progress(line);
            }
        };
        let mut job = Job::new(&self.way.cargo, BUILD)
            .args([self.way.subcommand, "--release", "--package", "farmgate-engine", "--bin", "farmhand"])
            .args(["--target", self.way.target])
            .args(["--target-dir".as_ref(), target_dir.as_os_str()])
            // where the settings of cargo and rustup are those of the engine, not those of the user's project
            .in_folder(self.source.root())
            // wins over RUSTFLAGS and over what any configuration file says
            .env("CARGO_ENCODED_RUSTFLAGS", self.way.flags.join("\x1f"))
            // line tables would make what is pushed five times as large
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .on_stderr(&mut show);
        for (key, value) in &self.way.environment {
            job = job.env(key, value);
        }
        let output = job.run()?;
        if output.status == 127 {
            return Err(Error::usage("cargo was not found, and the engine has to be built")
                .hint("install Rust from https://rustup.rs, or pass `--artefacts DIR` with a prebuilt farmhand"));
        }
        Ok(output)
    }

    fn binary(&self) -> PathBuf {
        self.target_dir.join(self.way.target).join("release/farmhand")
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

/// Copies a built binary under its name by content, once it is seen to be what devices need.
fn keep(binary: &Path, folder: &Path, way: &Way, architecture: Architecture) -> Result<Artefact> {
    let artefact = checked(binary, way.target, architecture)?;
    if let (true, Some(warning)) = (way.is_static, &artefact.warning) {
        return Err(Error::infra(format!("{way} made an engine that is of no use elsewhere: {warning}"))
            .in_file(binary)
            .hint("a newer compiler or linker may help; `--artefacts DIR` takes an engine that was built elsewhere"));
    }
    let path = folder.join(format!("farmhand-{}-{}", way.target, &artefact.sha256[..12]));
    let fault = |e: std::io::Error| Error::io("cannot keep the engine", &path, &e);
    let draft = tempfile::NamedTempFile::new_in(folder).map_err(fault)?;
    std::fs::copy(binary, draft.path()).map_err(fault)?;
    std::fs::set_permissions(draft.path(), std::fs::Permissions::from_mode(0o755)).map_err(fault)?;
    draft.persist(&path).map_err(|e| fault(e.error))?;
    Ok(Artefact { path, ..artefact })
}

/// What was built last for a target, and from what.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    state: String,
    file: String,
    sha256: String,
}

/// The kept artefact, when it was made from this very state and is still whole.
fn recorded(record: &Path, folder: &Path, way: &Way, architecture: Architecture, state: &str) -> Option<Artefact> {
    let record: Record = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
    let is_name = record.file.starts_with("farmhand-") && !record.file.contains('/');
    if record.state != state || !is_name {
        return None;
    }
    checked(&folder.join(&record.file), way.target, architecture).ok().filter(|a| a.sha256 == record.sha256)
}

fn write_record(record: &Path, artefact: &Artefact, state: String) -> Result<()> {
    let file = artefact.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = serde_json::to_string(&Record { state, file, sha256: artefact.sha256.clone() })
        .map_err(|e| Error::bug(format!("cannot encode the record of a build: {e}")))?;
    std::fs::write(record, text).map_err(|e| Error::io("cannot write the record of a build", record, &e))
}
