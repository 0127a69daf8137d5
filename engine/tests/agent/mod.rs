//! Plans for the real binary on a real model, and what its journals say.

#![allow(dead_code, reason = "each test binary uses its own part")]

use farmgate_engine::journal::{Entry, JournalReader};
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{
    Arm, CellPlan, DevicePlan, EngineConfig, ExitCause, ModelRef, PROTOCOL_VERSION, ReasonCode, Record, SampleRecord,
    Step,
};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for anything before it calls it hung.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The real farmhand. It starts with the signals' defaults, whatever the tests were started with: under `nohup` SIGHUP is
/// ignored, and in the background of a script SIGINT, and a program keeps what it inherits.
pub fn farmhand() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farmhand"));
    // SAFETY: signal may be called between fork and exec, and touches no memory of the parent's
    unsafe {
        command.pre_exec(|| {
            for ends in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::signal(ends, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

pub fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/tiny-pd-1.3m-Q8_0.gguf")
}

pub fn model_ref(path: &Path) -> ModelRef {
    let sha256 = farmgate_engine::hash::sha256_file(path).unwrap();
    ModelRef { path: path.display().to_string(), sha256: vec![sha256] }
}

pub fn cell(number: u32, steps: Vec<Step>) -> CellPlan {
    CellPlan {
        cell: number,
        scenario: "test".into(),
        arm: Arm::Candidate,
        pair: number,
        slot: 0,
        model: model_ref(&tiny_model()),
        config: EngineConfig { threads: 1, context_tokens: 512, ..EngineConfig::default() },
        steps,
        seed: 1,
        load_timeout_ms: 30_000,
        cell_timeout_ms: 60_000,
        about_heat: false,
    }
}

pub const LOAD: Step = Step::Load { cold: false };

/// A cell that takes a moment.
pub fn short(number: u32) -> CellPlan {
    cell(number, vec![LOAD, Step::Decode { decode_tokens: 8, at_depth: 4, repetitions: 1 }])
}

/// A cell that does not end while a test looks at it.
pub fn endless(number: u32) -> CellPlan {
    cell(number, vec![LOAD, Step::Decode { decode_tokens: 400, at_depth: 0, repetitions: 10_000 }])
}

pub fn plan(cells: Vec<CellPlan>) -> DevicePlan {
    DevicePlan {
        protocol_version: PROTOCOL_VERSION,
        run: "run-1".into(),
        device: "local".into(),
        telemetry_period_ms: 50,
        retries_max: 0,
        lease_token: None,
        ready: farmgate_engine::protocol::ReadyCriteria::default(),
        cells,
    }
}

/// A workdir with a plan in it.
pub struct Desk {
    pub folder: tempfile::TempDir,
}

impl Desk {
    pub fn new(plan: &DevicePlan) -> Self {
        let desk = Self { folder: tempfile::tempdir().unwrap() };
        desk.put_plan(plan);
        desk
    }

    pub fn put_plan(&self, plan: &DevicePlan) {
        std::fs::write(self.path("plan.json"), serde_json::to_string(plan).unwrap()).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self) -> Command {
        let mut command = farmhand();
        command.arg("run").arg("--plan").arg(self.path("plan.json")).arg("--journal").arg(self.path("journal"));
        command.arg("--pid-file").arg(self.path("pid")).stdin(Stdio::null());
        command
    }

    pub fn run(&self) -> Output {
        self.command().output().unwrap()
    }

    pub fn start(&self) -> Running {
        Running { process: self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap() }
    }

    /// The journal's records; a journal with any trouble in it fails the test.
    pub fn records(&self) -> Vec<Record> {
        self.framed().into_iter().map(|framed| framed.record).collect()
    }

    pub fn framed(&self) -> Vec<Framed> {
        let bytes = std::fs::read(self.path("journal")).unwrap_or_default();
        let entries = JournalReader::new().feed(&bytes);
        entries
            .into_iter()
            .map(|entry| match entry {
                Entry::Record(framed) => framed,
                Entry::Trouble(trouble) => panic!("{trouble}"),
            })
            .collect()
    }

    /// Waits until a record is there that `wanted` accepts.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Record) -> bool) {
        wait(what, || self.records().iter().any(&wanted));
    }

    pub fn wait_for_proof(&self) {
        self.wait_for("proof", |record| matches!(record, Record::Proof { .. }));
    }

    /// `(cell, attempt, exit, invalid)` of every end of a cell.
    pub fn ends(&self) -> Vec<(u32, u32, ExitCause, Vec<ReasonCode>)> {
        let end = |record| match record {
            Record::CellEnd { cell, attempt, exit, invalid, .. } => Some((cell, attempt, exit, invalid)),
            _ => None,
        };
        self.records().into_iter().filter_map(end).collect()
    }

    pub fn samples(&self) -> Vec<SampleRecord> {
        let sample = |record| if let Record::Sample(sample) = record { Some(sample) } else { None };
        self.records().into_iter().filter_map(sample).collect()
    }

    /// How the journal ended: whether it was interrupted, or `None` without a last record.
    pub fn interrupted(&self) -> Option<bool> {
        match self.records().last() {
            Some(Record::JournalEnd { interrupted }) => Some(*interrupted),
            _ => None,
        }
    }
}

/// A farmhand of ours that runs; killed when the test ends early.
pub struct Running {
    pub process: Child,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The exit status once it has ended.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "farmhand does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn wait(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill touches no memory; the process is one that this test started
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "cannot signal {pid}");
}

/// `(state, parent)` of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Whether the process works, rather than being gone or waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

/// The one live child of a farmhand.
pub fn child_of(parent: u32) -> u32 {
    let children: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(state, ppid)| ppid == parent && state != "Z"))
        .collect();
    assert_eq!(children.len(), 1, "children of {parent}: {children:?}");
    children[0]
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
