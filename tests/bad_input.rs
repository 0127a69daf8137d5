//! Bad input with the real binary: a clear error with a hint, exit code 2, nothing touched.

mod lab;

use assert_cmd::Command;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A project folder; what a test changes in it is the bad input.
struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Self {
        let project = Self(tempfile::tempdir().unwrap());
        project.write("devices/local.toml", &project.local_device());
        project
    }

    fn local_device(&self) -> String {
        format!("workdir = \"{}\"\n[transport.local]\n", self.0.path().join("device").display())
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Runs and expects exit code 2 with these words on stderr, a hint, nothing on stdout, and nothing touched.
    fn refuses(&self, args: &[&str], words: &[&str]) {
        let artefacts = lab::farmhand().path.parent().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farmgate"));
        command.current_dir(self.0.path()).args(args).timeout(Duration::from_secs(120));
        if args[0] == "run" {
            command.arg("--artefacts").arg(artefacts);
        }
        let out = command.output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        assert!(out.stdout.is_empty(), "{args:?} printed {}", String::from_utf8_lossy(&out.stdout));
        for word in words.iter().chain(&["hint: "]) {
            assert!(error.contains(word), "{args:?}: `{word}` is missing in: {error}");
        }
        assert!(!error.contains("panicked"), "{error}");
        let runs = fs::read_dir(self.0.path().join("results")).into_iter().flatten().flatten();
        let touched: Vec<_> = runs.filter(|e| e.path().join("journal.jsonl").exists()).collect();
        assert!(touched.is_empty(), "{args:?} began a run");
    }
}

fn model() -> String {
    format!("{}/tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn toml_that_is_wrong_is_told_with_path_line_and_column() {
    let model = model();
    let run = ["run", "smoke", "--model", &model];
    Project::new()
        .write("devices/a.toml", "[transport.local]\nspeed = 3\n")
        .refuses(&run, &["devices/a.toml:2:", "speed"]);
    Project::new().write("devices/a.toml", "labels = 3\n[transport.local]\n").refuses(&run, &["devices/a.toml:1:"]);
    Project::new()
        .write(
            "scenarios/policies/default.toml",
            "[[rule]]\nname = \"a\"\nmetric = \"decode-tbs\"\nseverity = \"critical\"\nat-least = 1\n",
        )
        .refuses(&run, &["default.toml:3:", "decode-tbs", "decode-tps"]);
    Project::new()
        .write("devices/a.toml", "name = \"local\"\n[transport.local]\n")
        .refuses(&run, &["local", "devices/"]);
}

#[test]
fn unknown_names_are_told_with_the_nearest_known_one() {
    let (project, model) = (Project::new(), model());
    project.refuses(&["run", "smokes", "--model", &model], &["smokes", "did you mean `smoke`"]);
    project.refuses(&["run", "smoke", "--model", &model, "-d", "locale"], &["locale", "did you mean `local`"]);
    project.refuses(&["run", "smoke", "--model", &model, "--policy", "defaul"], &["defaul"]);
    project.refuses(&["device", "probe", "locale"], &["did you mean `local`"]);
    project.refuses(&["gate", "no-such-run"], &["no-such-run"]);
    project.refuses(&["report"], &["there is no run yet"]);
    project.refuses(&["model", "synth", "--like", "llama-9b", "-o", "x.gguf"], &["llama-9b", "llama-7b"]);
}

#[test]
fn a_model_that_cannot_be_used_says_why() {
    let project = Project::new();
    let whole = fs::read(model()).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(project.0.path().join(name), bytes).unwrap();
    write("empty.gguf", b"");
    write("text.gguf", b"this is no model at all");
    write("page.gguf", b"<!DOCTYPE html><html></html>");
    write("short.gguf", &whole[..whole.len() / 2]);
    write("header.gguf", &whole[..100]);
    for (name, word) in [
        ("missing.gguf", "no such model file"),
        ("empty.gguf", "empty"),
        ("text.gguf", "not a GGUF model"),
        ("page.gguf", "not a GGUF model"),
        ("short.gguf", "but the file has"),
        ("header.gguf", "beyond the limit"),
        (".", ""),
    ] {
        project.refuses(&["run", "smoke", "--model", name], &[word]);
        project.refuses(&["model", "inspect", name], &[word]);
    }
}

fn ssh_device(host: &str, port: u16, extra: &str) -> String {
    format!("[transport.ssh]\nhost = \"{host}\"\nport = {port}\nuser = \"nobody\"\n{extra}")
}

#[test]
fn a_device_that_cannot_be_reached_or_trusted_says_why() {
    let model = model();
    let run = ["run", "smoke", "--model", &model];
    let refused = Project::new();
    refused.write("devices/local.toml", &ssh_device("127.0.0.1", lab::free_port(), ""));
    refused.refuses(&run, &["refused"]);
    let unknown = Project::new();
    unknown.write("devices/local.toml", &ssh_device("no-such-host.invalid", 22, ""));
    unknown.refuses(&run, &["no-such-host.invalid"]);
    let Some(sshd) = lab::Sshd::start_with("", &["ed25519"]) else {
        lab::skip("a_device_that_cannot_be_reached_or_trusted_says_why", "no sshd is installed");
        return;
    };
    let strange = Project::new();
    let other = lab::make_key(strange.0.path(), "other", "ed25519", "");
    let key = fs::read_to_string(other.with_extension("pub")).unwrap();
    let known: Vec<&str> = key.split_whitespace().take(2).collect();
    strange.write("known", &format!("[127.0.0.1]:{} {}\n", sshd.port, known.join(" ")));
    let extra = format!("known-hosts-file = \"{}\"\n", strange.0.path().join("known").display());
    strange.write("devices/local.toml", &ssh_device("127.0.0.1", sshd.port, &extra));
    strange.refuses(&run, &["host key"]);
    strange.write("known", "");
    strange.refuses(&run, &["host key"]);
}

#[test]
fn a_work_folder_that_cannot_be_written_says_so() {
    let project = Project::new();
    // a file where the folder should be stops root as well, whom rights do not stop
    project.write("blocked", "");
    let workdir = project.0.path().join("blocked/device");
    project.write("devices/local.toml", &format!("workdir = \"{}\"\n[transport.local]\n", workdir.display()));
    project.refuses(&["run", "smoke", "--model", &model()], &["blocked"]);
}

#[test]
fn wrong_words_on_the_command_line_exit_with_2() {
    for args in [&["run"][..], &["run", "smoke"], &["frobnicate"], &["run", "smoke", "--model", "x", "--pairs", "many"]]
    {
        let out = Command::new(env!("CARGO_BIN_EXE_farmgate")).args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
    }
    assert!(Path::new(env!("CARGO_BIN_EXE_farmgate")).exists());
}
