//! `farmgate model`: what a model file is, and models made of noise.

use super::{Done, to_json};
use crate::error::{Error, ExitCode, Result};
use crate::model::ModelFile;
use crate::report::terminal;
use farmgate_engine::synth;
use std::path::Path;

/// `farmgate model inspect`.
pub fn inspect(file: &Path, json: bool) -> Result<Done> {
    let model = terminal::hashing(file, &mut |progress| ModelFile::open(file, progress))?;
    if json {
        return Ok(Done::ok(to_json(&model.facts)?));
    }
    let facts = &model.facts;
    let mut rows = vec![
        vec!["name".to_owned(), facts.name.clone()],
        vec!["architecture".to_owned(), facts.architecture.clone()],
        vec!["parameters".to_owned(), format!("{:.1} M", facts.parameters as f64 / 1e6)],
        vec!["weights".to_owned(), format!("mostly {}, {:.1} MB", facts.weight_type, facts.weight_bytes as f64 / 1e6)],
        vec!["files".to_owned(), format!("{}, {:.1} MB", model.files.len(), facts.file_bytes as f64 / 1e6)],
    ];
    rows.extend(facts.sha256.iter().map(|hash| vec!["sha256".to_owned(), hash.clone()]));
    Ok(Done::ok(terminal::table(&["field", "value"], &rows)))
}

/// `farmgate model synth`.
pub fn synth(like: &str, quant: &str, seed: u64, output: &Path) -> Result<Done> {
    let shape = synth::Shape::parse(like)?;
    synth::write(&shape, quant, seed, output).map_err(|e| Error::from(e).with_exit(ExitCode::Usage))?;
    Ok(Done::ok(format!("{}\n", output.display())))
}
