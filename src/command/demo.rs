//! `farmgate demo`: the whole way on this machine, with nothing but the embedded defaults.

use super::Done;
use super::run::{Campaign, open_model};
use crate::cli::{DemoArgs, RunArgs};
use crate::config::Folders;
use crate::error::{Error, ExitCode, Result};
use crate::report::terminal;
use farmgate_engine::synth;
use std::fs;
use std::path::{Path, PathBuf};

/// The small trained model of the tests: 1.3 M parameters, real English and Chinese, known answers.
const TRAINED_MODEL: &[u8] = include_bytes!("../../tests/data/models/tiny-pd-1.3m-Q8_0.gguf");
/// Pairs of the latency comparison: one more than the fewest that an exact test at 5 % can decide with.
const PAIRS: u32 = 6;

/// Context of that comparison, tokens.
const CONTEXT_TOKENS: u32 = 1024;

/// `farmgate demo`: smoke on a trained model, then latency on a 135M shape against itself.
pub fn demo(folders: &Folders, args: &DemoArgs) -> Result<Done> {
    let folder = folders.results.join("demo");
    fs::create_dir_all(&folder).map_err(|e| Error::io("cannot make the demo's folder", &folder, &e))?;
    let trained = trained_model(&folder)?;
    let shape = synthetic_model(&folder)?;
    terminal::note("1 of 2: smoke on a small trained model, whose answers are known");
    let smoke = one(folders, args, "smoke", &trained, None, None)?;
    terminal::note("2 of 2: latency on a 135M shape, candidate and baseline alike, in ABBA pairs");
    let latency = one(folders, args, "latency", &shape, Some(&shape), Some(args.pairs.unwrap_or(PAIRS)))?;
    Ok(Done { stdout: format!("{}\n{}", smoke.stdout, latency.stdout), exit: worse(smoke.exit, latency.exit) })
}

fn one(
    folders: &Folders,
    args: &DemoArgs,
    scenario: &str,
    model: &Path,
    baseline: Option<&Path>,
    pairs: Option<u32>,
) -> Result<Done> {
    let request = RunArgs {
        scenarios: vec![scenario.to_owned()],
        model: Some(model.to_owned()),
        baseline_model: baseline.map(Path::to_owned),
        device: vec!["local".to_owned()],
        labels: None,
        pairs,
        repetitions: None,
        threads: None,
        // without the prefill of 2048 tokens the demo stays well under three minutes
        context_tokens: pairs.map(|_| CONTEXT_TOKENS),
        policy: None,
        artefacts: args.artefacts.clone(),
        resume: None,
        wait: None,
        dry_run: false,
        json: false,
    };
    let campaign = Campaign::prepare(folders, &request, open_model(model)?, baseline.map(open_model).transpose()?)?;
    let policy = format!("demo-{scenario}");
    let finished = campaign.carry_out(folders, args.artefacts.as_deref(), Some(&policy))?;
    Ok(Done { stdout: finished.text(folders), exit: finished.judgement.exit })
}

/// GO only when both are; otherwise the graver of the two, NO-GO gravest.
fn worse(a: ExitCode, b: ExitCode) -> ExitCode {
    let gravity = [ExitCode::NoGo, ExitCode::Infra, ExitCode::Invalid, ExitCode::Inconclusive];
    gravity.into_iter().find(|exit| a == *exit || b == *exit).unwrap_or(ExitCode::Go)
}

fn trained_model(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("tiny-pd-1.3m-Q8_0.gguf");
    let fault = |e: &std::io::Error| Error::io("cannot write the demo's model", &path, e);
    let file = tempfile::NamedTempFile::new_in(folder).map_err(|e| fault(&e))?;
    fs::write(file.path(), TRAINED_MODEL).map_err(|e| fault(&e))?;
    file.persist(&path).map_err(|e| fault(&e.error))?;
    Ok(path)
}

fn synthetic_model(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("synthetic-135m-q4_0.gguf");
    terminal::note("making a 135M shape with noise for weights");
    synth::write(&synth::Shape::parse("smollm2-135m")?, "q4_0", 1, &path)?;
    Ok(path)
}
