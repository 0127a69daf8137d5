//! How the verbs that run a model set the engine up: the same flags, warnings and proofs for all of them.

use super::args::{Args, Flag};
use super::progress::Progress;
use crate::error::{EngineError, Result};
use crate::model::{Model, Session};
use crate::pool::Pool;
use crate::protocol::{CpuClusters, CpuList, EngineConfig, KvPolicy, KvType, Repack};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// The model.
pub const MODEL: Flag = Flag { names: &["-m", "--model"], value: Some("FILE"), help: "model (GGUF)" };
/// Worker threads for single tokens.
pub const THREADS: Flag = Flag {
    names: &["-t", "--threads"],
    value: Some("N"),
    help: "worker threads; 0 takes the cores named, else the performance cores (0)",
};
/// Worker threads for prompts.
const THREADS_BATCH: Flag = Flag {
    names: &["-tb", "--threads-batch"],
    value: Some("N"),
    help: "worker threads for prompts; 0 takes as many as -t (0)",
};
/// Cores by number.
const CPUS: Flag =
    Flag { names: &["--cpus"], value: Some("LIST"), help: "pin worker i to the i-th of these cores, as in 4-7,0" };
/// Cores by speed.
const CPU_CLUSTERS: Flag =
    Flag { names: &["--cpu-clusters"], value: Some("WHICH"), help: "pin workers to big, mid, little or all cores" };
/// What of the past is kept.
const KV_POLICY: Flag = Flag {
    names: &["--kv-policy"],
    value: Some("POLICY"),
    help: "positions kept and seen: full, window:N (the last N) or sink:S+N (also the first S) (full)",
};
/// Lock the model.
const MLOCK: Flag =
    Flag { names: &["--mlock"], value: None, help: "lock the model in memory; warns where the system refuses" };
/// Read instead of map.
const NO_MMAP: Flag =
    Flag { names: &["--no-mmap"], value: None, help: "read the model into memory instead of mapping it" };

/// Rearrange weights.
const REPACK: Flag = Flag {
    names: &["--repack"],
    value: Some("WHEN"),
    help: "rearrange weights at load for speed, into memory as large as the file: auto, on or off (auto)",
};

/// No hash of the model.
pub const NO_MODEL_HASH: Flag =
    Flag { names: &["--no-model-hash"], value: None, help: "do not hash the model, which takes a second a gigabyte" };

/// How the engine is set up, but for the number of threads and the types of the cache, of which some verbs take several.
pub const ENGINE: &[Flag] = &[THREADS_BATCH, CPUS, CPU_CLUSTERS, KV_POLICY, NO_MMAP, MLOCK, REPACK];
/// How one session's keys and values are kept.
pub const CACHE_TYPES: &[Flag] = &[
    Flag { names: &["-ctk", "--cache-type-k"], value: Some("TYPE"), help: "cached keys: f16, q8_0 or q4_0 (f16)" },
    Flag { names: &["-ctv", "--cache-type-v"], value: Some("TYPE"), help: "cached values: f16, q8_0 or q4_0 (f16)" },
];

/// The configuration of a verb with one session: the flags of this module. Threads and cores that do not fit are refused
/// before a model is read.
pub fn one_config(args: &Args) -> Result<EngineConfig> {
    let config = EngineConfig { threads: args.number("--threads", 0)?, ..config(args)? };
    Pool::decode_threads_of(&config)?;
    Ok(config.with_kv_types(args.word("-ctk", KvType::F16)?, args.word("-ctv", KvType::F16)?))
}

/// What the flags of [`ENGINE`] say.
pub fn config(args: &Args) -> Result<EngineConfig> {
    Ok(EngineConfig {
        threads_batch: args.number("--threads-batch", 0)?,
        cpus: word::<CpuList>(args, "--cpus")?.unwrap_or_default(),
        cpu_clusters: word::<CpuClusters>(args, "--cpu-clusters")?,
        mmap: !args.has("--no-mmap"),
        mlock: args.has("--mlock"),
        kv_policy: args.word("--kv-policy", KvPolicy::Full)?,
        repack: word::<Repack>(args, "--repack")?.unwrap_or_default(),
        ..EngineConfig::default()
    })
}

/// Opens the model as `config` asks for; what was not granted is told on stderr.
pub fn open(path: &Path, config: &EngineConfig) -> Result<Arc<Model>> {
    let progress = Progress::new("reading the model");
    let model = Model::for_config(path, config, &|done| progress.tell(done))?;
    progress.end();
    if let Some(warning) = model.lock_warning() {
        crate::talk::talk!("warning: {warning}");
    }
    Ok(Arc::new(model))
}

/// A session on the model; a worker that is not where it was to be is told of on stderr.
pub fn session(model: &Arc<Model>, config: &EngineConfig) -> Result<Session> {
    let session = Session::new(Arc::clone(model), config)?;
    for fault in session.affinity_faults() {
        crate::talk::talk!("warning: {fault}: what is measured is INVALID (affinity-differs)");
    }
    Ok(session)
}

fn word<T: FromStr<Err = String>>(args: &Args, flag: &str) -> Result<Option<T>> {
    let parse = |text: &str| text.parse().map_err(|why| EngineError::usage(format!("flag `{flag}`: {why}")));
    args.get(flag).map(parse).transpose()
}
