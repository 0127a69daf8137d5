//! `farmhand lease`, used by several processes, and what a run does about it.

mod agent;

use agent::*;
use farmgate_engine::protocol::ExitCause;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};

fn lease(workdir: &Path, words: &[&str]) -> (i32, Value, String) {
    let output = farmhand().arg("lease").args(words).arg("--workdir").arg(workdir).output().unwrap();
    let said = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), said, stderr(&output))
}

fn acquire(workdir: &Path, owner: &str, ttl_ms: &str) -> (i32, Value, String) {
    lease(workdir, &["acquire", "--owner", owner, "--ttl-ms", ttl_ms])
}

#[test]
fn of_many_processes_that_ask_at_once_one_is_granted_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |i: usize| -> Child {
        let mut command = farmhand();
        command.args(["lease", "acquire", "--ttl-ms", "600000", "--owner", &format!("lab-{i}"), "--workdir"]);
        command.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let asked: Vec<Child> = (0..12).map(ask).collect();
    let answers: Vec<_> = asked.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let granted: Vec<Value> = answers
        .iter()
        .filter(|a| a.status.code() == Some(0))
        .map(|a| serde_json::from_slice(&a.stdout).unwrap())
        .collect();
    assert_eq!(granted.len(), 1);
    for refused in answers.iter().filter(|a| a.status.code() != Some(0)) {
        assert_eq!(refused.status.code(), Some(6));
        let holder: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!((&holder["owner"], &holder["token"]), (&granted[0]["owner"], &granted[0]["token"]));
        assert!(stderr(refused).contains("is held by"), "{}", stderr(refused));
    }
}

#[test]
fn processes_that_take_turns_never_get_the_same_token() {
    let folder = tempfile::tempdir().unwrap();
    let turns = |i: usize| {
        let folder = folder.path().to_owned();
        std::thread::spawn(move || {
            let mut tokens = Vec::new();
            while tokens.len() < 5 {
                let (code, said, _) = acquire(&folder, &format!("lab-{i}"), "60000");
                if code == 0 {
                    let token = said["token"].as_u64().unwrap();
                    tokens.push(token);
                    assert_eq!(lease(&folder, &["release", "--token", &token.to_string()]).0, 0);
                }
            }
            tokens
        })
    };
    let threads: Vec<_> = (0..3).map(turns).collect();
    let mut tokens: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=15).collect::<Vec<u64>>());
}

#[test]
fn a_lease_runs_out_by_itself_and_can_be_renewed_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (_, first, _) = acquire(folder.path(), "crashed", "80");
    wait("end of the lease", || lease(folder.path(), &["show"]).1.is_null());
    let (code, second, _) = acquire(folder.path(), "next", "1000");
    assert_eq!((code, second["token"].as_u64()), (0, Some(first["token"].as_u64().unwrap() + 1)));
    let token = second["token"].to_string();
    let (code, renewed, _) = lease(folder.path(), &["renew", "--token", &token, "--ttl-ms", "500000"]);
    assert_eq!(code, 0);
    assert!(renewed["expires_in_ms"].as_u64().unwrap() > 400_000);
    let (code, shown, _) = lease(folder.path(), &["show"]);
    assert_eq!((code, &shown["owner"]), (0, &Value::from("next")));
    let (code, _, said) = lease(folder.path(), &["renew", "--token", &first["token"].to_string()]);
    assert_eq!(code, 6);
    assert!(said.contains("stale"), "{said}");
}

#[test]
fn what_is_typed_wrong_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(lease(folder.path(), &["acquire"]).0, 2);
    assert_eq!(lease(folder.path(), &["renew"]).0, 2);
    assert_eq!(lease(folder.path(), &["steal"]).0, 2);
    assert_eq!(acquire(folder.path(), &"x".repeat(1000), "1000").0, 2);
    assert_eq!(acquire(&folder.path().join("none"), "a", "1000").0, 5);
}

#[test]
fn a_run_needs_the_newest_token() {
    let mut fenced = plan(vec![short(0)]);
    let desk = Desk::new(&fenced);
    acquire(desk.folder.path(), "old", "1");
    std::thread::sleep(std::time::Duration::from_millis(10));
    let (_, new, _) = acquire(desk.folder.path(), "new", "60000");
    fenced.lease_token = Some(1);
    desk.put_plan(&fenced);
    let refused = desk.run();
    assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
    assert!(!desk.path("journal").exists());
    fenced.lease_token = new["token"].as_u64();
    desk.put_plan(&fenced);
    assert_eq!(desk.run().status.code(), Some(0));
}

#[test]
fn a_run_ends_when_somebody_else_was_granted_the_device() {
    let mut fenced = plan(vec![endless(0)]);
    fenced.lease_token = Some(1);
    let desk = Desk::new(&fenced);
    acquire(desk.folder.path(), "old", "300");
    let mut running = desk.start();
    desk.wait_for_proof();
    let child = child_of(running.pid());
    wait("the old lease to run out", || acquire(desk.folder.path(), "new", "60000").0 == 0);
    assert_eq!(running.wait().code(), Some(6));
    assert!(!is_alive(child));
    assert_eq!(desk.ends()[0].2, ExitCause::Interrupted);
    assert_eq!(desk.interrupted(), Some(true));
}
