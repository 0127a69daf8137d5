//! The files that ship, built into the binary.

use super::Document;

/// A file of the project's own `devices/` or `scenarios/`.
#[derive(Debug, Clone, Copy)]
pub struct Shipped {
    /// Path within the project.
    pub path: &'static str,
    /// Its content.
    pub text: &'static str,
}

impl Shipped {
    /// The last part of its path.
    pub fn file_name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
    /// As a document whose path tells that it is built in.
    pub fn document(&self) -> Document {
        Document::new(format!("<built in>/{}", self.path), self.text)
    }
}

macro_rules! shipped {
    ($($path:literal),+ $(,)?) => {
        &[$(Shipped { path: $path, text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $path)) }),+]
    };
}

/// The inventory of a project that has no `devices/`.
pub const DEVICES: &[Shipped] = shipped!["devices/local.toml"];

/// Scenarios.
pub const SCENARIOS: &[Shipped] =
    shipped!["scenarios/cold-start.toml", "scenarios/latency.toml", "scenarios/smoke.toml"];

/// Gate policies.
pub const POLICIES: &[Shipped] = shipped![
    "scenarios/policies/default.toml",
    "scenarios/policies/demo-latency.toml",
    "scenarios/policies/demo-smoke.toml"
];

/// Recorded answers.
pub const GOLDEN: &[Shipped] = shipped!["scenarios/golden/tiny-pd.toml"];
