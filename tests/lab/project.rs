//! A project folder with devices of its own, and the real binary in it.

use super::farmhand;
use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

/// A project folder with devices of its own.
pub struct Project {
    pub folder: tempfile::TempDir,
}

impl Project {
    /// One without a `devices/` folder.
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn with(devices: &[(&str, &str)]) -> Self {
        let project = Self::empty();
        for (name, text) in devices {
            project.write(&format!("devices/{name}.toml"), text);
        }
        project
    }

    /// A simulated device with a work folder in the project, and these further lines in its transport.
    pub fn sim(name: &str, labels: &str, rest: &str) -> String {
        format!("labels = [{labels}]\nworkdir = \"WORKDIR/{name}\"\n[transport.sim]\n{rest}\n")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.replace("WORKDIR", self.path().to_str().unwrap())).unwrap();
    }

    pub fn farmgate(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farmgate"));
        command.current_dir(self.path()).args(args).timeout(Duration::from_secs(300)).output().unwrap()
    }

    pub fn with_engine(&self, args: &[&str]) -> Output {
        let artefacts = artefacts();
        self.farmgate(&[args, &["--artefacts", artefacts.to_str().unwrap()]].concat())
    }

    pub fn smoke(&self, args: &[&str]) -> Output {
        self.with_engine(&[&["run", "smoke", "--repetitions", "2", "--model", &model()], args].concat())
    }

    pub fn report(&self) -> Value {
        serde_json::from_slice(&self.farmgate(&["report", "--format", "json"]).stdout).unwrap()
    }
}

pub fn artefacts() -> PathBuf {
    farmhand().path.parent().unwrap().to_owned()
}

pub fn model() -> String {
    format!("{}/tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
