//! `farmhand run --detach` and `farmhand stop`.

mod agent;

use agent::*;
use farmgate_engine::protocol::{ExitCause, ReasonCode};
use serde_json::Value;
use std::process::Output;

/// The detached run's process number.
fn detach(desk: &Desk) -> Result<u32, Output> {
    let output = desk.command().arg("--detach").output().unwrap();
    if output.status.code() != Some(0) {
        return Err(output);
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["journal"], desk.path("journal").display().to_string());
    // whoever reads the journal now finds its first record
    assert!(!desk.records().is_empty());
    Ok(said["pid"].as_u64().unwrap() as u32)
}

fn stop(desk: &Desk) -> (Option<i32>, Value) {
    let output = farmhand().arg("stop").arg("--pid-file").arg(desk.path("pid")).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
}

/// Ends what a failing test left.
struct Ended<'a>(&'a Desk);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        stop(self.0);
    }
}

#[test]
fn a_detached_run_goes_on_alone_and_is_stopped_in_good_order() {
    let desk = Desk::new(&plan(vec![endless(0), short(1)]));
    let _ended = Ended(&desk);
    let pid = detach(&desk).unwrap();
    assert!(is_alive(pid));
    // SAFETY: getsid touches no memory
    assert_eq!(unsafe { libc::getsid(pid as i32) }, pid as i32, "a session of its own");
    signal(pid, libc::SIGHUP);
    desk.wait_for_proof();
    let child = child_of(pid);
    let (code, said) = stop(&desk);
    assert_eq!((code, &said["was-running"], &said["pid"]), (Some(0), &true.into(), &pid.into()));
    assert!(!is_alive(pid) && !is_alive(child));
    assert_eq!(desk.ends(), [(0, 0, ExitCause::Interrupted, vec![ReasonCode::Interrupted])]);
    assert_eq!(desk.interrupted(), Some(true));
    let (code, said) = stop(&desk);
    assert_eq!((code, &said["was-running"]), (Some(0), &false.into()), "stopping what is stopped is no error");
}

#[test]
fn a_detached_run_that_is_short_ends_by_itself() {
    let desk = Desk::new(&plan(vec![short(0)]));
    let pid = detach(&desk).unwrap();
    wait("end of the run", || !is_alive(pid));
    assert_eq!(desk.interrupted(), Some(false));
    assert!(!desk.path("pid").exists());
    assert!(std::fs::read_to_string(desk.path("journal.log")).unwrap().contains("cell 0"));
}

#[test]
fn a_second_run_is_refused_while_the_first_is_at_work() {
    let desk = Desk::new(&plan(vec![endless(0)]));
    let _ended = Ended(&desk);
    detach(&desk).unwrap();
    let refused = detach(&desk).unwrap_err();
    assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("already running"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("hint:"));
    let other_pid_file = farmhand()
        .args(["run", "--plan"])
        .arg(desk.path("plan.json"))
        .arg("--journal")
        .arg(desk.path("journal"))
        .output()
        .unwrap();
    assert_eq!(other_pid_file.status.code(), Some(6), "the journal itself has one writer");
}

#[test]
fn what_a_detached_run_refuses_is_said_by_the_one_who_started_it() {
    let mut fenced = plan(vec![short(0)]);
    fenced.lease_token = Some(9);
    let desk = Desk::new(&fenced);
    let refused = detach(&desk).unwrap_err();
    assert_eq!(refused.status.code(), Some(6));
    assert!(stderr(&refused).contains("lease token 9 was never granted"), "{}", stderr(&refused));
    std::fs::write(desk.path("plan.json"), "{").unwrap();
    assert_eq!(detach(&desk).unwrap_err().status.code(), Some(2));
}

#[test]
fn stop_leaves_a_process_alone_that_only_has_the_same_number() {
    let desk = Desk::new(&plan(vec![endless(0)]));
    let mut running = desk.start();
    desk.wait_for_proof();
    let text = std::fs::read_to_string(desk.path("pid")).unwrap();
    let mut identity: Value = serde_json::from_str(&text).unwrap();
    identity["start-ticks"] = (identity["start-ticks"].as_u64().unwrap() + 1).into();
    std::fs::write(desk.path("pid"), identity.to_string()).unwrap();
    let (code, said) = stop(&desk);
    assert_eq!((code, &said["was-running"]), (Some(0), &false.into()));
    assert!(is_alive(running.pid()));
    std::fs::write(desk.path("pid"), text).unwrap();
    assert_eq!(stop(&desk).1["was-running"], true);
    assert_eq!(running.wait().code(), Some(130));
}

#[test]
fn stop_says_so_when_there_is_no_pid_file_or_a_damaged_one() {
    let desk = Desk::new(&plan(vec![short(0)]));
    assert_eq!(stop(&desk).1, serde_json::json!({ "pid": null, "was-running": false }));
    std::fs::write(desk.path("pid"), "12").unwrap();
    assert_eq!(stop(&desk).0, Some(2));
}
