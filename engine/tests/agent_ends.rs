//! How cells and runs end when something goes wrong: each way has its own name in the journal.

mod agent;

use agent::*;
use farmgate_engine::protocol::{ExitCause, ReasonCode, Record};

// field report E7: an instruction that the processor does not have
#[test]
fn a_child_that_crashes_is_named_by_its_signal_and_tried_again() {
    let mut with_retry = plan(vec![endless(0)]);
    with_retry.retries_max = 1;
    let desk = Desk::new(&with_retry);
    let mut running = desk.start();
    for attempt in 0..2 {
        wait("proof of the attempt", || {
            desk.records().iter().filter(|r| matches!(r, Record::Proof { .. })).count() == attempt + 1
        });
        // not SIGSEGV: the first one is swallowed by the handler that Rust has for stack overflows
        signal(child_of(running.pid()), libc::SIGILL);
        wait("end of the attempt", || desk.ends().len() == attempt + 1);
    }
    assert_eq!(running.wait().code(), Some(0), "a crash is a finding, not a failure of the run");
    let crash = || ExitCause::Crash { signal: "SIGILL".into() };
    assert_eq!(desk.ends(), [(0, 0, crash(), vec![ReasonCode::CellDied]), (0, 1, crash(), vec![ReasonCode::CellDied])]);
    assert_eq!(desk.interrupted(), Some(false));
}

#[test]
fn a_kill_from_outside_is_not_blamed_on_anybody() {
    let desk = Desk::new(&plan(vec![endless(0), short(1)]));
    let mut running = desk.start();
    desk.wait_for_proof();
    signal(child_of(running.pid()), libc::SIGKILL);
    assert_eq!(running.wait().code(), Some(0));
    let ends = desk.ends();
    assert_eq!(ends[0].2, ExitCause::Killed { by: "unknown".into() });
    assert_eq!(ends[1].2, ExitCause::Done, "the next cell runs");
}

#[test]
fn a_cell_that_runs_past_its_budget_is_ended() {
    let mut slow = endless(0);
    slow.cell_timeout_ms = 150;
    let desk = Desk::new(&plan(vec![slow]));
    desk.run();
    let timeout = ExitCause::Timeout { phase: "cell".into(), budget_ms: 150 };
    assert_eq!(desk.ends(), [(0, 0, timeout, vec![ReasonCode::Timeout])]);
}

#[test]
fn a_load_that_runs_past_its_budget_is_ended() {
    let mut slow = endless(0);
    slow.load_timeout_ms = 1;
    let desk = Desk::new(&plan(vec![slow]));
    desk.run();
    let timeout = ExitCause::Timeout { phase: "load".into(), budget_ms: 1 };
    assert_eq!(desk.ends(), [(0, 0, timeout, vec![ReasonCode::Timeout])]);
    assert!(!desk.records().iter().any(|r| matches!(r, Record::Proof { .. })));
}

#[test]
fn a_run_that_is_asked_to_stop_ends_its_child_and_its_journal() {
    for asked_by in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let desk = Desk::new(&plan(vec![endless(0), short(1)]));
        let mut running = desk.start();
        desk.wait_for_proof();
        let child = child_of(running.pid());
        signal(running.pid(), asked_by);
        assert_eq!(running.wait().code(), Some(130));
        assert!(!is_alive(child));
        assert_eq!(desk.ends(), [(0, 0, ExitCause::Interrupted, vec![ReasonCode::Interrupted])]);
        assert_eq!(desk.interrupted(), Some(true));
        assert!(!desk.path("pid").exists());
    }
}

#[test]
fn an_interrupted_run_goes_on_where_it_ended() {
    let desk = Desk::new(&plan(vec![short(0), endless(1)]));
    let mut running = desk.start();
    desk.wait_for("start of the second cell", |r| matches!(r, Record::Proof { cell: 1, .. }));
    signal(running.pid(), libc::SIGTERM);
    running.wait();
    desk.put_plan(&plan(vec![short(0), short(1)]));
    assert_eq!(desk.run().status.code(), Some(0));
    let ends: Vec<(u32, u32)> = desk.ends().iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(ends, [(0, 0), (1, 0), (1, 1)]);
    let times: Vec<u64> = desk.framed().iter().map(|framed| framed.time_us).collect();
    assert!(times.is_sorted(), "time goes on over the restart");
}

#[test]
fn a_child_dies_with_its_supervisor_and_the_run_can_be_continued() {
    let desk = Desk::new(&plan(vec![endless(0)]));
    let mut running = desk.start();
    desk.wait_for_proof();
    let child = child_of(running.pid());
    signal(running.pid(), libc::SIGKILL);
    running.wait();
    wait("end of the orphan", || !is_alive(child));
    assert_eq!(desk.interrupted(), None, "nobody could write the end");
    desk.put_plan(&plan(vec![short(0)]));
    assert_eq!(desk.run().status.code(), Some(0), "the pid file of the dead farmhand is no obstacle");
    assert_eq!(desk.ends(), [(0, 1, ExitCause::Done, vec![])]);
}

/// A memory cgroup with a small limit; removed at the end.
struct SmallMemory {
    folder: std::path::PathBuf,
}

impl SmallMemory {
    /// `None` where this machine lets us make none.
    fn make(bytes: u64) -> Option<Self> {
        let name = format!("farmgate-test-{}", std::process::id());
        let v1 = std::path::Path::new("/sys/fs/cgroup/memory");
        let v2 = std::path::Path::new("/sys/fs/cgroup");
        let (base, limit) =
            if v1.join("cgroup.procs").exists() { (v1, "memory.limit_in_bytes") } else { (v2, "memory.max") };
        let folder = base.join(name);
        std::fs::create_dir(&folder).ok()?;
        let made = Self { folder };
        std::fs::write(made.folder.join(limit), bytes.to_string()).ok()?;
        // without swap the limit is met at once; not every kernel has the knob
        let _ = std::fs::write(made.folder.join("memory.swappiness"), "0");
        let _ = std::fs::write(made.folder.join("memory.swap.max"), "0");
        Some(made)
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_child_that_the_kernel_kills_for_memory_is_named_so() {
    let Some(group) = SmallMemory::make(24 << 20) else {
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!(
                "SKIP a_child_that_the_kernel_kills_for_memory_is_named_so: no memory cgroup can be made here\n"
            ),
        );
        return;
    };
    // the KV cache of a long prompt does not fit the limit
    let steps = vec![LOAD, farmgate_engine::protocol::Step::Prefill { prompt_tokens: 60_000, repetitions: 1 }];
    let mut hungry = cell(0, steps);
    hungry.config.context_tokens = 65_536;
    let desk = Desk::new(&plan(vec![hungry]));
    let command = desk.command();
    let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.folder.display());
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    let ends = desk.ends();
    assert_eq!(ends.len(), 1, "{}", stderr(&output));
    assert_eq!(ends[0].2, ExitCause::Killed { by: "oom-kernel".into() });
    assert_eq!(ends[0].3, [ReasonCode::CellDied]);
    let resident: Vec<u64> = desk
        .records()
        .iter()
        .filter_map(|r| if let Record::Telemetry(t) = r { t.memory.rss_bytes } else { None })
        .collect();
    assert!(resident.iter().any(|bytes| *bytes > 4 << 20), "memory up to the kill is kept: {resident:?}");
}
