//! How farmhand ends when it is interrupted, when a disk is full, and when there is no memory.

#![cfg(target_os = "linux")]

mod agent;

use agent::farmhand;
use farmgate_engine::synth::{Shape, write};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// How soon an interrupted process is to be gone, on a machine that has other work too; the prompts here take far longer.
const SOON: Duration = Duration::from_secs(30);

fn tiny() -> String {
    format!("{}/../tests/data/models/tiny-pd-1.3m-Q8_0.gguf", env!("CARGO_MANIFEST_DIR"))
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Sends SIGINT and waits for the end.
fn interrupt(child: &mut Child) -> ExitStatus {
    // SAFETY: the child is ours and has not been waited for, so that its number is still its own
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > SOON {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("interrupted {SOON:?} ago and still there");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupted_load_or_prompt_ends_soon_and_leaves_whole_rows_only() {
    let folder = tempfile::tempdir().unwrap();
    let (model, trace) = (folder.path().join("m.gguf"), folder.path().join("trace.json"));
    let shape = Shape::parse("layers=6,hidden=1024,ffn=4096,heads=16,vocab=2048,context=65536").unwrap();
    write(&shape, "q8_0", 1, &model).unwrap();
    // first the load and the hash, then a prompt that takes long
    for after_ms in [0, 20, 60, 150, 400, 1500] {
        let mut command = farmhand();
        command.args(["bench", "-p", "60000", "-n", "0", "-r", "1", "-o", "jsonl", "-m"]).arg(&model);
        command.arg("--profile").arg(&trace);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        let status = interrupt(&mut child);
        assert_eq!(status.signal(), Some(libc::SIGINT), "after {after_ms} ms: {status}");
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "", "after {after_ms} ms");
    }
    assert_eq!(left_in(folder.path()), ["m.gguf"], "no trace, and no part of one");

    let mut command = farmhand();
    command.args(["bench", "-p", "4,60000", "-n", "0", "-r", "1", "-o", "jsonl", "--no-model-hash", "-m"]).arg(&model);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut row = String::new();
    out.read_line(&mut row).unwrap();
    assert_eq!(interrupt(&mut child).signal(), Some(libc::SIGINT));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let row: serde_json::Value = serde_json::from_str(&row).expect("a whole row");
    assert_eq!((&row["n_prompt"], rest.as_str()), (&4.into(), ""));
}

fn left_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `command` as a process that has less of a resource.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) -> Output {
    // SAFETY: between fork and exec only calls are made that may be made there
    unsafe {
        command.pre_exec(move || {
            // a write past the limit is an error then, and not the end
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(resource, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    command.output().unwrap()
}

#[test]
fn a_trace_that_has_no_room_is_an_error_that_names_it_and_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let bench = |trace: &Path| {
        let mut command = farmhand();
        command.args(["bench", "-p", "4", "-n", "4", "-r", "1", "--no-model-hash", "-o", "json", "-m", &tiny()]);
        command.arg("--profile").arg(trace);
        command
    };
    for before in [None, Some("{\"old\": true}")] {
        before.inspect(|text| std::fs::write(&trace, text).unwrap());
        let out = limited(&mut bench(&trace), libc::RLIMIT_FSIZE, 4096);
        assert_eq!(out.status.code(), Some(5), "{}", said(&out));
        assert!(said(&out).contains("error: cannot write the trace"), "{}", said(&out));
        assert!(said(&out).contains("trace.json)") && said(&out).contains("\nhint: "), "{}", said(&out));
        assert!(said(&out).contains("roofline of "), "the tables are told all the same: {}", said(&out));
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(rows.len(), 2, "what was measured is whole");
        assert_eq!(std::fs::read_to_string(&trace).ok().as_deref(), before);
        assert!(left_in(folder.path()).iter().all(|name| name == "trace.json"), "{:?}", left_in(folder.path()));
    }
    let out = bench(Path::new("/dev/full")).output().unwrap();
    assert_eq!(out.status.code(), Some(5), "{}", said(&out));
    assert!(said(&out).contains("(/dev/full)"), "{}", said(&out));
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());

    // a link stays a link
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&trace, &link).unwrap();
    let out = bench(&link).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    assert!(link.is_symlink());
    serde_json::from_slice::<serde_json::Value>(&std::fs::read(&trace).unwrap()).expect("a whole trace");
}

#[test]
fn a_trace_into_the_file_that_stdout_goes_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows");
    let mut command = farmhand();
    command.args(["bench", "-p", "4", "-n", "0", "-r", "1", "-m", &tiny(), "--profile", "/dev/stdout"]);
    let out = command.stdout(std::fs::File::create(&rows).unwrap()).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert_eq!(std::fs::read(&rows).unwrap(), b"");
}

#[test]
fn a_process_without_memory_says_so_whatever_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    let shape = Shape::parse("layers=2,hidden=512,ffn=2048,heads=8,vocab=4096,context=4096").unwrap();
    write(&shape, "q8_0", 1, &model).unwrap();
    let mut refused = 0;
    for mib in 8..64 {
        let mut command = farmhand();
        command.args(["bench", "-p", "512", "-n", "4", "-r", "1", "-t", "2", "--no-model-hash", "-m"]).arg(&model);
        let out = limited(&mut command, libc::RLIMIT_AS, mib << 20);
        match out.status.code() {
            Some(0) => break,
            Some(2 | 5) => assert!(said(&out).contains("error: "), "{mib} MiB: {}", said(&out)),
            // the loader and Rust's start need some before any word of ours
            _ if refused == 0 && !said(&out).contains("memory allocation of") => continue,
            _ => panic!("{mib} MiB: {}: {}", out.status, said(&out)),
        }
        refused += 1;
    }
    assert!(refused > 5, "{refused}");
}
