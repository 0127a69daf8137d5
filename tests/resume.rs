//! Runs that farmgate did not bring to their end, and that are gone on with.

mod lab;

use assert_cmd::Command;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// Cells of the runs here.
const CELLS: usize = 8;

/// A project with this machine as device, whose work folder lies in the project too, and a scenario of about a second.
struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let workdir = folder.path().join("device");
        write("devices/local.toml", &format!("workdir = \"{}\"\n[transport.local]\n", workdir.display()));
        write("scenarios/steady.toml", STEADY);
        write("policy.toml", POLICY);
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn farmgate(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farmgate"));
        command.current_dir(self.path()).args(args).timeout(Duration::from_secs(300)).output().unwrap()
    }

    /// Starts the run, and waits until so many cells have ended.
    fn start(&self, ended: usize) -> Child {
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_farmgate"))
            .current_dir(self.path())
            .args(["run", "steady", "--policy", "policy.toml", "--model", &model(), "--artefacts"])
            .arg(artefacts())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.journal().is_none_or(|(_, text)| text.matches("cell-end").count() < ended) {
            assert!(Instant::now() < deadline, "the run did not begin to measure");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// The run's journal on the lab host.
    fn journal(&self) -> Option<(PathBuf, String)> {
        let runs = std::fs::read_dir(self.path().join("results")).ok()?;
        runs.flatten().find_map(|run| {
            let path = run.path().join("journal.jsonl");
            std::fs::read_to_string(&path).ok().map(|text| (path, text))
        })
    }

    fn run_name(&self) -> String {
        let (path, _) = self.journal().unwrap();
        path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// The run's folder on the device.
    fn on_device(&self) -> PathBuf {
        self.path().join("device/runs").join(self.run_name()).join("local")
    }

    fn farmhand_pid(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.on_device().join("pid")).ok()?;
        let identity: Value = serde_json::from_str(&text).ok()?;
        i32::try_from(identity["pid"].as_i64()?).ok()
    }

    fn resume(&self, more: &[&str]) -> Output {
        let name = self.run_name();
        let artefacts = artefacts();
        let mut args = vec!["run", "--resume", &name, "--artefacts", artefacts.to_str().unwrap()];
        args.extend(more);
        self.farmgate(&args)
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&self.farmgate(&["report", "--format", "json"]).stdout).unwrap()
    }

    /// The run is whole: every cell once, valid, and the report says that it was gone on with.
    fn is_whole(&self, out: &Output) {
        let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{said}");
        assert!(text(&out.stdout).starts_with("GO"), "{said}");
        assert!(said.contains(&format!("complete, {CELLS} of {CELLS} cells valid")), "{said}");
        assert!(said.contains("was gone on with at "), "{said}");
        let report = self.report();
        assert_eq!(report["run"]["state"], "complete");
        assert_eq!(report["run"]["resumed"].as_array().map(Vec::len), Some(1));
        let cells = report["run"]["devices"][0]["cells"].as_array().unwrap();
        assert_eq!(cells.len(), CELLS);
        for cell in cells {
            let counted = |metric: &str| {
                let last = cell["attempts"].as_u64().unwrap() - 1;
                let samples = cell["samples"].as_array().unwrap().iter();
                samples.filter(|s| s["metric"] == metric && s["attempt"] == last).count()
            };
            assert_eq!((cell["exit"].as_str(), counted("decode-tps@0")), (Some("done"), 100), "{cell}");
        }
        // what the journal says, an index made from it says as well
        std::fs::remove_file(self.path().join("results/index.sqlite")).unwrap();
        assert!(self.farmgate(&["store", "rebuild"]).status.success());
        assert_eq!(report, self.report());
    }

    fn started_cells(&self) -> usize {
        std::fs::read_to_string(self.on_device().join("journal.jsonl")).unwrap().matches("cell-start").count()
    }
}

const STEADY: &str = "summary = \"a second each\"\nrepetitions = 8\npairs = 8\ncontext-tokens = 128\ntimeout-s = 60\n\
    threads = 1\n[[step]]\nload = {}\n[[step]]\ndecode = { decode-tokens = 96, repetitions = 100 }\n";
const POLICY: &str = "summary = \"pace\"\n[[rule]]\nname = \"pace\"\nmetric = \"decode-tps\"\nseverity = \"critical\"\n\
    at-least = 1\n";

fn model() -> String {
    format!("{}/tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the engine that was built with these tests.
fn artefacts() -> PathBuf {
    lab::farmhand().path.parent().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_whose_farmgate_was_killed_measures_on_and_is_taken_up_again() {
    let project = Project::new();
    kill(project.start(1));
    // what is there cannot be judged as if it were whole
    let gate = project.farmgate(&["gate"]);
    assert_eq!(gate.status.code(), Some(3), "{}", text(&gate.stdout));
    assert!(text(&gate.stdout).contains("unfinished"), "{}", text(&gate.stdout));
    let out = project.resume(&[]);
    project.is_whole(&out);
    assert_eq!(project.started_cells(), CELLS, "no cell was measured twice");
}

#[test]
fn a_run_that_ended_while_nobody_was_there_is_fetched() {
    let project = Project::new();
    kill(project.start(1));
    let journal = project.on_device().join("journal.jsonl");
    let has_ended = || std::fs::read_to_string(&journal).unwrap().contains("journal-end");
    let deadline = Instant::now() + Duration::from_secs(120);
    while !has_ended() {
        assert!(Instant::now() < deadline, "farmhand does not come to its end alone");
        std::thread::sleep(Duration::from_millis(50));
    }
    let out = project.resume(&[]);
    project.is_whole(&out);
    assert_eq!(project.started_cells(), CELLS);
}

#[test]
fn a_run_whose_farmhand_died_as_well_is_started_again_where_it_was() {
    let project = Project::new();
    let child = project.start(2);
    let pid = project.farmhand_pid().expect("farmhand is at work");
    kill(child);
    lab::signal(pid, libc::SIGKILL);
    // what a crash leaves behind, on both sides
    let torn = |path: &Path| {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"{\"seq\":99,\"ev").unwrap();
    };
    torn(&project.journal().unwrap().0);
    torn(&project.on_device().join("journal.jsonl"));
    let out = project.resume(&[]);
    project.is_whole(&out);
    assert!(project.started_cells() <= CELLS + 1, "only the cell that was cut off is measured again");
}

#[test]
fn a_run_that_was_interrupted_is_gone_on_with() {
    let project = Project::new();
    let child = project.start(1);
    lab::signal(child.id() as i32, libc::SIGINT);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}{}", text(&out.stdout), text(&out.stderr));
    project.is_whole(&project.resume(&[]));
    let again = project.resume(&[]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("is complete: there is nothing to go on with"), "{}", text(&again.stderr));
}

#[test]
fn a_run_is_gone_on_with_once_at_a_time_and_only_as_it_began() {
    let project = Project::new();
    let child = project.start(1);
    let meanwhile = project.resume(&[]);
    assert_eq!(meanwhile.status.code(), Some(2), "{}", text(&meanwhile.stdout));
    let told = text(&meanwhile.stderr);
    assert!(told.contains("another farmgate is carrying out this run") && told.contains("hint: "), "{told}");
    kill(child);
    let other = format!("{}/tests/data/models/tiny-pd-1.3m-f16.gguf", env!("CARGO_MANIFEST_DIR"));
    let refused = project.resume(&["--model", &other]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("another one than the run began with"), "{}", text(&refused.stderr));
    let scenario = project.path().join("scenarios/steady.toml");
    std::fs::write(&scenario, STEADY.replace("96", "64")).unwrap();
    let refused = project.resume(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("would measure something else"), "{}", text(&refused.stderr));
    std::fs::write(&scenario, STEADY).unwrap();
    project.is_whole(&project.resume(&[]));
}
