//! A session with the real farmhand, on this machine and behind a real ssh server.

mod lab;

use farmgate::device::{Device, LocalConfig, TransportConfig};
use farmgate::error::{Error, ExitCode};
use farmgate::event::Phase;
use farmgate::lease::Claim;
use farmgate::model::ModelFile;
use farmgate::session::Session;
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{
    Arm, CellPlan, DevicePlan, EngineConfig, ExitCause, ModelRef, PROTOCOL_VERSION, Record, Step,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A device with a workdir of its own.
struct Bench {
    device: Device,
    folder: tempfile::TempDir,
    sshd: Option<lab::Sshd>,
}

impl Bench {
    fn new(transport: TransportConfig, sshd: Option<lab::Sshd>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut device = Device::new("bench", transport, "devices/bench.toml");
        device.workdir = Some(folder.path().join("work").display().to_string());
        Self { device, folder, sshd }
    }
    fn workdir(&self) -> PathBuf {
        self.folder.path().join("work")
    }
    fn open(&self) -> Result<Session, Error> {
        Session::open(&self.device, &lab::farmhand(), &Claim::at_once("tester"), &mut |_| {})
    }
    fn refused(&self) -> Error {
        let error = self.open().err().expect("this is refused");
        assert_eq!(error.exit(), ExitCode::Usage, "{error}");
        assert!(error.hint_text().is_some() && error.place().is_some(), "{error}");
        error
    }
}

/// Runs every fact on this machine and over ssh.
macro_rules! facts {
    ($($name:ident)*) => {
        mod local {
            $(#[test] fn $name() { super::$name(&super::local()); })*
        }
        mod ssh {
            $(#[test] fn $name() {
                match super::ssh() {
                    Some(bench) => super::$name(&bench),
                    None => super::lab::skip(concat!("session ssh::", stringify!($name)), "sshd is not installed"),
                }
            })*
        }
    };
}

facts! {
    a_plan_is_carried_out_from_open_to_close
    a_second_session_is_told_who_holds_the_device
    a_dropped_session_gives_the_device_back_and_stops_what_it_started
    the_second_push_of_a_model_moves_nothing
    a_split_model_keeps_its_names
    a_workdir_that_cannot_be_used_is_a_usage_error_of_its_own_kind
    farmhand_that_dies_is_told_with_the_end_of_its_log
    a_stopped_run_ends_in_good_order
    a_run_cannot_be_started_twice
}

fn local() -> Bench {
    Bench::new(TransportConfig::Local(LocalConfig::default()), None)
}

fn ssh() -> Option<Bench> {
    let sshd = lab::Sshd::start()?;
    let config = farmgate::device::SshConfig { user: Some(lab::login()), ..sshd.config() };
    Some(Bench::new(TransportConfig::Ssh(config), Some(sshd)))
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/tiny-llama-Q4_0.gguf")
}

fn model() -> ModelFile {
    ModelFile::open(&tiny(), &mut |_, _| {}).unwrap()
}

fn plan(session: &Session, run: &str, model: &ModelRef, cells: u32, decode_tokens: u32) -> DevicePlan {
    let cell = |cell| CellPlan {
        cell,
        scenario: "smoke".into(),
        arm: Arm::Candidate,
        pair: cell,
        slot: 0,
        model: model.clone(),
        config: EngineConfig { threads: 1, context_tokens: 128, ..EngineConfig::default() },
        steps: vec![Step::Load { cold: false }, Step::Decode { decode_tokens, at_depth: 0, repetitions: 1 }],
        seed: 1,
        load_timeout_ms: 30_000,
        cell_timeout_ms: 30_000,
        about_heat: false,
    };
    DevicePlan {
        protocol_version: PROTOCOL_VERSION,
        run: run.into(),
        device: session.device().to_owned(),
        telemetry_period_ms: 0,
        retries_max: 0,
        lease_token: Some(session.lease_token()),
        ready: farmgate_engine::protocol::ReadyCriteria::default(),
        cells: (0..cells).map(cell).collect(),
    }
}

/// Polls to the end of the journal or the first error.
fn follow(session: &mut Session) -> Result<Vec<Framed>, Error> {
    let mut all = Vec::new();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        all.extend(session.poll()?);
        session.renew()?;
        if matches!(all.last().map(|f| &f.record), Some(Record::JournalEnd { .. })) {
            return Ok(all);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no end of the journal: {all:?}");
}

fn a_plan_is_carried_out_from_open_to_close(bench: &Bench) {
    let mut phases = Vec::new();
    let artefact = lab::farmhand();
    let mut session =
        Session::open(&bench.device, &artefact, &Claim::at_once("tester"), &mut |p| phases.push(p)).unwrap();
    assert_eq!(phases[0], Phase::Connecting);
    assert_eq!(session.fingerprint().target, artefact.target);
    assert!(session.fingerprint().memory_bytes > 0);
    assert_eq!(session.engine_sha256(), artefact.sha256);
    assert!(session.clock_offset_ms().abs() < 2_000, "{}", session.clock_offset_ms());
    let mode = |path: &str| std::fs::metadata(bench.workdir().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(""), mode("store"), mode("runs")], [0o700; 3]);

    let model = model();
    let remote = session.push_model(&model, &mut |_| {}).unwrap();
    assert_eq!(remote.sha256, model.facts.sha256);
    session.start(&plan(&session, "run-1", &remote, 2, 8)).unwrap();
    let records = follow(&mut session).unwrap();
    assert!(records.iter().enumerate().all(|(i, f)| f.seq == i as u64), "each record once and in order");
    let Record::JournalStart { agent_sha256, .. } = &records[0].record else { panic!("{records:?}") };
    assert_eq!(agent_sha256, &artefact.sha256);
    let done = records.iter().filter(|f| matches!(&f.record, Record::CellEnd { exit: ExitCause::Done, .. })).count();
    assert_eq!(done, 2, "{records:?}");
    assert!(session.poll().unwrap().is_empty(), "nothing comes after the end");
    session.close().unwrap();
    bench.open().unwrap().close().unwrap();
}

fn a_second_session_is_told_who_holds_the_device(bench: &Bench) {
    let first = bench.open().unwrap();
    let error = bench.refused();
    assert!(error.what().contains("in use by `tester`") && error.what().contains(" s"), "{error}");
    first.close().unwrap();
    let second = bench.open().unwrap();
    assert!(second.lease_token() > 1, "tokens rise");
}

fn a_dropped_session_gives_the_device_back_and_stops_what_it_started(bench: &Bench) {
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model(), &mut |_| {}).unwrap();
    session.start(&plan(&session, "run-1", &remote, 2_000, 60)).unwrap();
    let pid_file = bench.workdir().join("runs/run-1/bench/pid");
    assert!(pid_file.exists());
    drop(session);
    assert!(lab::eventually(|| !pid_file.exists()), "farmhand is still at work");
    bench.open().unwrap().close().unwrap();
}

fn the_second_push_of_a_model_moves_nothing(bench: &Bench) {
    let mut session = bench.open().unwrap();
    let model = model();
    let first = session.push_model(&model, &mut |_| {}).unwrap();
    let mut phases = Vec::new();
    let second = session.push_model(&model, &mut |p| phases.push(p)).unwrap();
    assert_eq!((first, phases), (second.clone(), vec![]));
    // what is there is not trusted for its name
    std::fs::remove_file(&second.path).unwrap();
    std::fs::write(&second.path, "truncated").unwrap();
    session.push_model(&model, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&second.path).unwrap(), std::fs::read(tiny()).unwrap());
}

fn a_split_model_keeps_its_names(bench: &Bench) {
    let bytes = std::fs::read(tiny()).unwrap();
    let mut model = model();
    model.files =
        vec![bench.folder.path().join("m-00001-of-00002.gguf"), bench.folder.path().join("m-00002-of-00002.gguf")];
    let parts = bytes.split_at(bytes.len() / 2);
    for (file, part) in model.files.iter().zip([parts.0, parts.1]) {
        std::fs::write(file, part).unwrap();
    }
    model.facts.sha256 = model.files.iter().map(|f| farmgate_engine::hash::sha256_file(f).unwrap()).collect();
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model, &mut |_| {}).unwrap();
    assert!(remote.path.ends_with("/m-00001-of-00002.gguf"), "{}", remote.path);
    let second = Path::new(&remote.path).with_file_name("m-00002-of-00002.gguf");
    assert_eq!(std::fs::read(second).unwrap(), parts.1);
}

fn a_workdir_that_cannot_be_used_is_a_usage_error_of_its_own_kind(bench: &Bench) {
    let with = |workdir: String| Bench {
        device: Device { workdir: Some(workdir), ..bench.device.clone() },
        folder: tempfile::tempdir().unwrap(),
        sshd: None,
    };
    let file = bench.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = with(file.display().to_string()).refused();
    assert!(error.what().contains("is a file, not a folder"), "{error}");
    let error = with(file.join("below").display().to_string()).refused();
    assert!(error.what().contains("cannot be made"), "{error}");
    let error = with("/sys".into()).refused();
    assert!(error.what().contains("cannot be written"), "{error}");
    let open = bench.folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = with(open.display().to_string()).refused();
    assert!(error.what().contains("not safe"), "{error}");
}

fn farmhand_that_dies_is_told_with_the_end_of_its_log(bench: &Bench) {
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model(), &mut |_| {}).unwrap();
    session.start(&plan(&session, "run-1", &remote, 2_000, 60)).unwrap();
    let folder = bench.workdir().join("runs/run-1/bench");
    let identity: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("pid")).unwrap()).unwrap();
    lab::signal(identity["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    std::fs::write(folder.join("journal.jsonl.log"), "its last words\n").unwrap();
    let error = follow(&mut session).unwrap_err();
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(error.what().contains("farmhand died") && error.what().contains("its last words"), "{error}");
    assert!(!session.link_may_return());
}

fn a_stopped_run_ends_in_good_order(bench: &Bench) {
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model(), &mut |_| {}).unwrap();
    session.start(&plan(&session, "run-1", &remote, 2_000, 60)).unwrap();
    session.stop().unwrap();
    let records = follow(&mut session).unwrap();
    assert_eq!(records.last().unwrap().record, Record::JournalEnd { interrupted: true });
    session.close().unwrap();
}

fn a_run_cannot_be_started_twice(bench: &Bench) {
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model(), &mut |_| {}).unwrap();
    session.start(&plan(&session, "run-1", &remote, 1, 4)).unwrap();
    follow(&mut session).unwrap();
    session.close().unwrap();
    let mut session = bench.open().unwrap();
    let error = session.start(&plan(&session, "run-1", &remote, 1, 4)).unwrap_err();
    assert!(error.what().contains("started on this device before"), "{error}");
}

#[test]
fn a_run_goes_on_without_its_link_and_is_read_to_the_end_afterwards() {
    let Some(bench) = ssh() else { return lab::skip("a_run_goes_on", "sshd is not installed") };
    let sshd = bench.sshd.as_ref().unwrap();
    let mut session = bench.open().unwrap();
    let remote = session.push_model(&model(), &mut |_| {}).unwrap();
    session.start(&plan(&session, "run-1", &remote, 3, 16)).unwrap();
    let mut records = session.poll().unwrap();
    sshd.sessions().into_iter().for_each(|pid| lab::signal(pid, libc::SIGKILL));
    let started = Instant::now();
    while !matches!(records.last().map(|f| &f.record), Some(Record::JournalEnd { .. })) {
        match session.poll() {
            Ok(more) => records.extend(more),
            Err(error) => assert_eq!(error.exit(), ExitCode::Infra, "{error}"),
        }
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(records.iter().enumerate().all(|(i, f)| f.seq == i as u64), "nothing lost and nothing twice");
    session.close().unwrap();
}

#[test]
fn a_filesystem_without_execution_is_told() {
    let bench = local();
    let mount = bench.folder.path().join("noexec");
    std::fs::create_dir(&mount).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "noexec,size=300m,mode=700", "farmgate-test"])
        .arg(&mount)
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|s| s.success()) {
        return lab::skip("a_filesystem_without_execution_is_told", "mounting needs root");
    }
    let device = Device { workdir: Some(mount.display().to_string()), ..bench.device.clone() };
    let outcome = Session::open(&device, &lab::farmhand(), &Claim::at_once("tester"), &mut |_| {});
    let unmounted = std::process::Command::new("umount").arg(&mount).status().unwrap();
    assert!(unmounted.success());
    let error = outcome.err().expect("nothing can run there");
    assert_eq!(error.exit(), ExitCode::Usage);
    assert!(error.what().contains("does not run") && error.hint_text().unwrap().contains("noexec"), "{error}");
}
