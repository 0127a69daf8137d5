//! How the verbs that run a model set the engine up: the same flags for all of them.

use super::args::{Args, Flag};
use crate::error::{EngineError, Result};
use crate::model::LoadOptions;
use crate::protocol::{CpuClusters, CpuList, EngineConfig};
use std::str::FromStr;

/// Worker threads for single tokens.
pub const THREADS: Flag = Flag {
    names: &["-t", "--threads"],
    value: Some("N"),
    help: "worker threads; 0 takes the cores named, else the performance cores (0)",
};
/// Worker threads for prompts.
pub const THREADS_BATCH: Flag = Flag {
    names: &["-tb", "--threads-batch"],
    value: Some("N"),
    help: "worker threads for prompts; 0 takes as many as -t (0)",
};
/// Cores by number.
pub const CPUS: Flag =
    Flag { names: &["--cpus"], value: Some("LIST"), help: "pin worker i to the i-th of these cores, as in 4-7,0" };
/// Cores by speed.
pub const CPU_CLUSTERS: Flag =
    Flag { names: &["--cpu-clusters"], value: Some("WHICH"), help: "pin workers to big, mid, little or all cores" };
/// Lock the model.
pub const MLOCK: Flag =
    Flag { names: &["--mlock"], value: None, help: "lock the model in memory; warns where the system refuses" };
/// Read instead of map.
pub const NO_MMAP: Flag =
    Flag { names: &["--no-mmap"], value: None, help: "read the model into memory instead of mapping it" };

/// What the flags of this module say: all but the context and the cache's types.
pub fn config(args: &Args) -> Result<EngineConfig> {
    Ok(EngineConfig {
        threads: args.number("--threads", 0)?,
        threads_batch: args.number("--threads-batch", 0)?,
        cpus: word::<CpuList>(args, "--cpus")?.unwrap_or_default(),
        cpu_clusters: word::<CpuClusters>(args, "--cpu-clusters")?,
        mmap: !args.has("--no-mmap"),
        mlock: args.has("--mlock"),
        ..EngineConfig::default()
    })
}

/// How `config` wants the model opened.
pub fn load_options(config: &EngineConfig) -> LoadOptions {
    LoadOptions { mmap: config.mmap, isa: None }
}

fn word<T: FromStr<Err = String>>(args: &Args, flag: &str) -> Result<Option<T>> {
    let parse = |text: &str| text.parse().map_err(|why| EngineError::usage(format!("flag `{flag}`: {why}")));
    args.get(flag).map(parse).transpose()
}
