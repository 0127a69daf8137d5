//! `farmgate-engine`: everything of farmgate that runs on a device.
//!
//! The order of the modules is the layering: a module may use only the modules listed above it.

// words
pub mod error;
pub mod hash;
pub mod text;
pub mod talk;
pub mod clock;
pub mod protocol;
pub mod tree;
pub mod cores;
pub mod memory;

// engine
pub mod gguf;
pub mod quant;
pub mod kernels;
pub mod profile;
pub mod pool;
pub mod roofline;
pub mod kv_cache;
pub mod tokenizer;
pub mod model;
pub mod sampler;
pub mod generate;
pub mod speculative;
pub mod quality;
pub mod synth;

// agent
pub mod probe;
pub mod telemetry;
pub mod journal;
pub mod lease;
pub mod proof;
pub mod execute;
pub mod supervise;

// ask
pub mod verb;
