//! What an engine proves about itself: one way for every verb and for the cells of a run.

use crate::error::Result;
use crate::hash::sha256_file;
use crate::model::{Model, Session};
use crate::probe::TARGET;
use crate::protocol::{EngineConfig, HeldMemory, KvPolicy, KvType, SelfProof};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

/// Version and target of this binary; its sha256, which is the build's real name, stands beside it in every proof.
pub fn build() -> String {
    format!("farmhand {} {TARGET}", env!("CARGO_PKG_VERSION"))
}

/// sha256 of the binary that is running, hashed once.
pub fn engine_sha256() -> Result<String> {
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(sha256) = KNOWN.get() {
        return Ok(sha256.clone());
    }
    let sha256 = sha256_file(Path::new("/proc/self/exe"))?;
    Ok(KNOWN.get_or_init(|| sha256).clone())
}

/// What an engine says about itself once it is open.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The model's files, in order.
    pub files: Vec<PathBuf>,
    /// Instruction set in use.
    pub isa: String,
    /// How weights are rearranged: `none`, or the name of the layout.
    pub repack: String,
    /// Configuration in force.
    pub config: EngineConfig,
    /// Element type of cached values, where it is another than that of keys.
    pub kv_value_type: Option<KvType>,
    /// Workers that serve one token at a time.
    pub threads_effective: u32,
    /// Workers that serve a prompt.
    pub threads_batch_effective: u32,
    /// `Cpus_allowed_list` of each worker.
    pub affinity_effective: Vec<String>,
    /// The core that each worker was to be pinned to; empty texts where none was.
    pub affinity_wanted: Vec<String>,
    /// Where the kernel does not do what was asked for.
    pub affinity_faults: Vec<String>,
    /// Bytes of weights, as stored.
    pub weight_bytes: u64,
    /// Bytes of KV cache once all of the context is in use.
    pub kv_bytes: u64,
    /// What is held in memory.
    pub held: HeldMemory,
}

impl Facts {
    /// Of a session as it is now.
    pub fn of_session(session: &Session, config: &EngineConfig) -> Self {
        let model = session.model();
        Self {
            files: model.files().to_vec(),
            isa: session.isa().name().to_owned(),
            repack: model.repack_name().to_owned(),
            config: config.clone(),
            kv_value_type: Some(session.cached_types().1).filter(|values| *values != session.cached_types().0),
            threads_effective: session.threads_effective(),
            threads_batch_effective: session.threads_batch_effective(),
            affinity_effective: session.affinity_effective(),
            affinity_wanted: session.affinity_wanted(),
            affinity_faults: session.affinity_faults(),
            weight_bytes: model.weight_bytes(),
            kv_bytes: session.kv_bytes_max(),
            held: HeldMemory {
                mapped_bytes: model.gguf().mapped_bytes(),
                anonymous_bytes: model.gguf().anonymous_bytes(),
                locked_bytes: model.locked_bytes(),
                repack_bytes: model.repack_bytes(),
                kv_bytes: session.kv_bytes(),
                scratch_bytes: session.scratch_bytes(),
                heap_bytes: model.heap_bytes(),
            },
        }
    }

    /// The proof: these facts with hashes. `model` is none when nobody hashed it. `eviction` says how the page cache was emptied before the load.
    pub fn prove(self, model: Option<ModelHashes>, eviction: &str) -> Result<SelfProof> {
        let (model_sha256, model_hash_ms) = model.unwrap_or_default();
        Ok(SelfProof {
            build: build(),
            engine_sha256: engine_sha256()?,
            model_sha256,
            model_hash_ms,
            isa: self.isa,
            repack: self.repack,
            config: self.config,
            kv_value_type: self.kv_value_type,
            threads_effective: self.threads_effective,
            threads_batch_effective: self.threads_batch_effective,
            affinity_effective: self.affinity_effective,
            affinity_wanted: self.affinity_wanted,
            affinity_faults: self.affinity_faults,
            weight_bytes: self.weight_bytes,
            kv_bytes: self.kv_bytes,
            scratch_bytes: self.held.scratch_bytes,
            held: self.held,
            eviction: eviction.to_owned(),
            read_bandwidth_gb_per_s: None,
        })
    }
}

/// sha256 of each of a model's files, and what hashing them cost in milliseconds.
pub type ModelHashes = (Vec<String>, u64);

/// Hashes the bytes that are in use, once in a process, at the speed of sha256: about a second a gigabyte where the
/// processor has instructions for it.
pub fn hash_model(model: &Model) -> ModelHashes {
    let begun = Instant::now();
    (model.gguf().sha256(), begun.elapsed().as_millis() as u64)
}

/// A proof for people: a few lines without markup.
pub fn lines(proof: &SelfProof) -> Vec<String> {
    let model = match (proof.model_sha256.as_slice(), proof.model_hash_ms) {
        ([], _) => "model not hashed".to_owned(),
        (hashes, 0) => format!("model sha256 {}", hashes.join(" ")),
        (hashes, ms) => format!("model sha256 {} (hashed in {ms} ms)", hashes.join(" ")),
    };
    let config = &proof.config;
    let kv_types = match proof.kv_value_type {
        None => config.kv_type.as_str().to_owned(),
        Some(values) => format!("{} keys and {} values", config.kv_type.as_str(), values.as_str()),
    };
    let kv_policy = match config.kv_policy {
        KvPolicy::Full => String::new(),
        policy => format!(" ({policy})"),
    };
    let locked = match (config.mlock, proof.held.locked_bytes) {
        (false, _) => "not locked".to_owned(),
        (true, 0) => "NOT locked, though asked for".to_owned(),
        (true, bytes) => format!("{bytes} bytes locked"),
    };
    let pinned = match proof.affinity_wanted.iter().any(|core| !core.is_empty()) {
        true => format!("pinned to cores {}", proof.affinity_wanted.join(" ")),
        false => "not pinned".to_owned(),
    };
    let mut lines = vec![
        format!("{}, sha256 {}", proof.build, proof.engine_sha256),
        model,
        format!(
            "{} kernels, repack {}, kv cache {}{kv_policy}, model {}, {locked}",
            proof.isa,
            proof.repack,
            kv_types,
            if config.mmap { "mapped" } else { "read into memory" },
        ),
        format!(
            "{} threads ({} for prompts), {pinned}, the kernel allows {}",
            proof.threads_effective,
            proof.threads_batch_effective,
            proof.affinity_effective.join(" ")
        ),
    ];
    lines.extend(proof.affinity_faults.iter().map(|fault| format!("INVALID (affinity-differs): {fault}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_not_had_stands_out() {
        let facts = Facts {
            config: EngineConfig { mlock: true, ..EngineConfig::default() },
            affinity_wanted: vec!["5".into()],
            affinity_effective: vec!["0-3".into()],
            affinity_faults: vec!["worker 0 was pinned to core 5, the kernel lets it run on 0-3".into()],
            ..Facts::default()
        };
        let proof = facts.clone().prove(None, "none").unwrap();
        let text = lines(&proof).join("\n");
        for part in [
            "model not hashed",
            "NOT locked, though asked for",
            "pinned to cores 5, the kernel allows 0-3",
            "INVALID (affinity-differs): worker 0 was pinned to core 5",
            &format!("sha256 {}", sha256_file(&std::env::current_exe().unwrap()).unwrap()),
        ] {
            assert!(text.contains(part), "`{part}` is missing:\n{text}");
        }
        let hashed = facts.prove(Some((vec!["ab".into()], 7)), "none").unwrap();
        assert!(lines(&hashed).contains(&"model sha256 ab (hashed in 7 ms)".to_owned()));
    }
}
