//! One suite for every transport: what a `Transport` promises, against the real thing.

mod lab;

use farmgate::device::SimConfig;
use farmgate::process::OUTPUT_BYTES_MAX;
use farmgate::transport::{LocalTransport, SimTransport, Transport};
use lab::Sshd;
use lab::device::{AdbServer, shared};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// Skips loudly when something is not there.
macro_rules! or_skip {
    ($there:expr, $test:expr) => {
        match $there {
            Ok(there) => there,
            Err(why) => return lab::skip($test, &why),
        }
    };
}

/// Runs every fact over each way to reach this machine and to reach an emulated device.
macro_rules! facts {
    ($($name:ident)*) => {
        facts! { local by on_this_machine: $($name)* }
        facts! { sim by on_a_simulated_device: $($name)* }
        facts! { ssh by over_ssh: $($name)* }
        facts! { ssh_without_sftp by over_ssh_without_sftp: $($name)* }
        facts! { ssh_device by over_ssh_to_a_device: $($name)* }
        facts! { adb by over_adb: $($name)* }
        facts! { older_adb by over_older_adb: $($name)* }
    };
    ($way:ident by $reach:ident: $($name:ident)*) => {
        mod $way {
            $(#[test] fn $name() {
                super::$reach(concat!(stringify!($way), "::", stringify!($name)), super::$name);
            })*
        }
    };
}

/// What a fact is shown: a transport, and where the root folder of its far side lies on this machine.
type Fact = fn(&mut dyn Transport, &Path);

fn on_this_machine(_: &str, fact: Fact) {
    fact(&mut LocalTransport::new(), Path::new("/"));
}

fn on_a_simulated_device(_: &str, fact: Fact) {
    // a link with a speed, so that the books of virtual time are kept
    let config = SimConfig { latency_ms: 2, link_bytes_per_s: 50 << 20, ..SimConfig::default() };
    fact(&mut SimTransport::connect("sim", &config), Path::new("/"));
}

fn over_ssh(test: &str, fact: Fact) {
    let sshd = or_skip!(Sshd::start().ok_or("sshd is not installed"), test);
    fact(&mut sshd.connect(), Path::new("/"));
}

fn over_ssh_without_sftp(test: &str, fact: Fact) {
    let sshd = or_skip!(Sshd::start_with("", &["ed25519"]).ok_or("sshd is not installed"), test);
    fact(&mut sshd.connect(), Path::new("/"));
}

fn over_ssh_to_a_device(test: &str, fact: Fact) {
    let device = or_skip!(shared("arm64", "cortex-a76"), test);
    fact(&mut device.connect_ssh(), &device.root());
}

fn over_adb(test: &str, fact: Fact) {
    let device = or_skip!(shared("arm64", "cortex-a76"), test);
    let server = or_skip!(AdbServer::start(), test);
    fact(&mut server.connect(&device), &device.root());
}

/// The adb of Debian 12, ten releases older than the device's.
fn over_older_adb(test: &str, fact: Fact) {
    let device = or_skip!(shared("arm64", "cortex-a76"), test);
    let older = Path::new("/usr/bin/adb");
    let server = or_skip!(older.exists().then(|| AdbServer::start_with(older)).ok_or("adb is not installed"), test);
    fact(&mut server.connect(&device), &device.root());
}

/// A folder on the far side that can be looked into from here.
struct Folder {
    here: tempfile::TempDir,
    root: PathBuf,
}

impl Folder {
    fn on(root: &Path) -> Self {
        Self { here: tempfile::tempdir_in(root.join("tmp")).unwrap(), root: root.to_owned() }
    }
    /// Where it lies on this machine.
    fn path(&self) -> &Path {
        self.here.path()
    }
    /// What the far side calls a file in it.
    fn remote(&self, name: &str) -> String {
        let inside = self.here.path().strip_prefix(&self.root).unwrap();
        Path::new("/").join(inside).join(name).to_str().unwrap().to_owned()
    }
}

facts! {
    exit_statuses_come_back_as_they_are
    a_death_by_signal_is_told_from_a_failure
    stdout_and_stderr_come_back_apart_and_binary
    arguments_arrive_unchanged
    large_output_is_cut_at_the_bound_and_the_status_still_known
    a_flood_on_stderr_does_not_block_stdout
    the_deadline_ends_a_sleeping_command_on_the_device_too
    an_endless_flood_ends_at_the_deadline
    a_pushed_file_arrives_whole_with_its_mode_and_progress
    an_empty_file_can_be_pushed
    a_push_replaces_what_was_there_and_what_was_left_half_done
    a_push_into_a_folder_that_is_missing_says_so
    a_push_into_a_folder_that_cannot_be_written_says_so
    a_pulled_file_arrives_whole_and_one_too_large_not_at_all
    a_growing_file_is_read_on_from_an_offset
    a_missing_file_is_a_clear_error
    strange_file_names_are_file_names
    stdin_of_a_command_is_empty
}

fn sh(transport: &mut dyn Transport, script: &str) -> farmgate::process::Output {
    transport.exec(&["sh", "-c", script], SOON).unwrap()
}

fn exit_statuses_come_back_as_they_are(transport: &mut dyn Transport, _: &Path) {
    for status in [0, 3, 126, 255] {
        assert_eq!(sh(transport, &format!("exit {status}")).status, status);
    }
    assert_eq!(transport.exec(&["no-such-program-anywhere"], SOON).unwrap().status, 127);
    assert_eq!(transport.exec(&["/etc/passwd"], SOON).unwrap().status, 126);
}

fn a_death_by_signal_is_told_from_a_failure(transport: &mut dyn Transport, _: &Path) {
    let output = sh(transport, "kill -9 $$");
    assert_eq!((output.status, output.signal()), (137, Some(9)));
    assert_eq!(sh(transport, "exit 1").signal(), None);
}

fn stdout_and_stderr_come_back_apart_and_binary(transport: &mut dyn Transport, _: &Path) {
    let output = sh(transport, r"printf '\000\377\n\r\001out'; printf 'err\376' >&2");
    assert_eq!(output.stdout, b"\x00\xff\n\r\x01out");
    assert_eq!(output.stderr, b"err\xfe");
}

fn arguments_arrive_unchanged(transport: &mut dyn Transport, _: &Path) {
    let hostile = [
        "a b",
        "it's",
        "'",
        "\"",
        "$HOME",
        "`id`",
        "$(id)",
        "; exit 9",
        "&& exit 9",
        "| cat",
        "*",
        "?",
        "[a-z]",
        "~",
        "a\nb",
        "tab\there",
        "\\",
        "\\n",
        "é 日本 🙂",
        "-n",
        "--",
        "",
        "#",
        "!",
        "{a,b}",
        "<",
        ">",
        "\x1b[2J",
    ];
    let mut argv = vec!["printf", "%s\\0"];
    argv.extend(hostile);
    let output = transport.exec(&argv, SOON).unwrap();
    let arrived: Vec<&[u8]> = output.stdout.split(|&b| b == 0).collect();
    for (sent, got) in hostile.iter().zip(&arrived) {
        assert_eq!(sent.as_bytes(), *got, "{}", String::from_utf8_lossy(got));
    }
    assert_eq!((arrived.len(), output.status), (hostile.len() + 1, 0));
}

fn large_output_is_cut_at_the_bound_and_the_status_still_known(transport: &mut dyn Transport, _: &Path) {
    let output = sh(transport, "head -c 5000000 /dev/zero; exit 4");
    assert_eq!((output.status, output.stdout.len()), (4, OUTPUT_BYTES_MAX));
    assert_eq!(output.dropped_bytes, 5_000_000 - OUTPUT_BYTES_MAX as u64);
}

fn a_flood_on_stderr_does_not_block_stdout(transport: &mut dyn Transport, _: &Path) {
    let output = sh(transport, "head -c 6000000 /dev/zero >&2; echo end");
    assert_eq!((output.status, &output.stdout[..]), (0, &b"end\n"[..]));
}

fn the_deadline_ends_a_sleeping_command_on_the_device_too(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let (pids, remote) = (folder.path().join("pids"), folder.remote("pids"));
    let script = "sleep 300 & echo $! $$ > \"$1\"; wait";
    let started = Instant::now();
    let deadline = Duration::from_millis(1_500);
    let error = transport.exec(&["sh", "-c", script, "sh", &remote], deadline).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(6), "took {:?}", started.elapsed());
    assert!(error.to_string().contains("1500 ms") && error.to_string().contains("killed"), "{error}");
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.split_whitespace().count(), 2);
    for pid in pids.split_whitespace() {
        assert!(lab::eventually(|| !is_running(transport, pid)), "{pid} is still running");
    }
    assert_eq!(sh(transport, "exit 5").status, 5, "the transport must stay usable");
}

/// Whether a process of the far side is there and no zombie.
fn is_running(transport: &mut dyn Transport, pid: &str) -> bool {
    let stat = sh(transport, &format!("cat /proc/{pid}/stat 2>/dev/null")).stdout;
    let stat = String::from_utf8_lossy(&stat);
    !stat.is_empty() && !stat.contains(") Z ")
}

fn an_endless_flood_ends_at_the_deadline(transport: &mut dyn Transport, _: &Path) {
    let started = Instant::now();
    let error = transport.exec(&["cat", "/dev/zero"], Duration::from_millis(800)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(6), "took {:?}", started.elapsed());
    assert!(error.what().contains("800 ms"), "{error}");
    assert_eq!(sh(transport, "exit 6").status, 6);
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 257) as u8).collect()
}

fn a_pushed_file_arrives_whole_with_its_mode_and_progress(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let content = pattern(3_000_017);
    write(&from, &content);
    let mut seen = Vec::new();
    transport.push(&from, &folder.remote("to"), 0o750, SOON, &mut |done| seen.push(done)).unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), content);
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o7777, 0o750);
    assert!(seen.len() > 2 && seen.is_sorted() && seen.last() == Some(&3_000_017), "{seen:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

fn an_empty_file_can_be_pushed(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    write(&from, b"");
    transport.push(&from, &folder.remote("to"), 0o600, SOON, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), b"");
}

fn a_push_replaces_what_was_there_and_what_was_left_half_done(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    write(&from, b"new");
    write(&to, b"something older and longer");
    write(&folder.path().join("to.part"), &pattern(1000));
    transport.push(&from, &folder.remote("to"), 0o600, SOON, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), b"new");
}

fn a_push_into_a_folder_that_is_missing_says_so(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let from = folder.path().join("from");
    write(&from, &pattern(2_000_000));
    let error = transport.push(&from, &folder.remote("missing/to"), 0o600, SOON, &mut |_| {}).unwrap_err();
    let text = error.to_string();
    // dash has its own words for it
    assert!(text.contains("No such file or directory") || text.contains("nonexistent"), "{text}");
    assert!(text.contains("cannot write") && text.contains("missing/to"), "{text}");
    assert_eq!(sh(transport, "exit 2").status, 2);
}

fn a_push_into_a_folder_that_cannot_be_written_says_so(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let from = folder.path().join("from");
    write(&from, &pattern(2_000_000));
    // refused to root as well
    let error = transport.push(&from, "/sys/farmgate-test", 0o600, SOON, &mut |_| {}).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("Permission denied") || text.contains("Read-only file system"), "{text}");
    assert!(text.contains("cannot write") && text.contains("/sys/farmgate-test"), "{text}");
    assert_eq!(sh(transport, "exit 2").status, 2);
}

fn a_pulled_file_arrives_whole_and_one_too_large_not_at_all(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let content = pattern(1_500_003);
    write(&from, &content);
    let remote = &folder.remote("from");
    assert_eq!(transport.pull(remote, &to, 2_000_000, SOON).unwrap(), 1_500_003);
    assert_eq!(std::fs::read(&to).unwrap(), content);
    let other = folder.path().join("other");
    let error = transport.pull(remote, &other, 1_000_000, SOON).unwrap_err();
    assert!(error.what().contains("more than 1000000 bytes"), "{error}");
    assert!(!other.exists());
    assert_eq!(sh(transport, "exit 2").status, 2);
}

fn a_growing_file_is_read_on_from_an_offset(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let path = folder.path().join("journal");
    let content = pattern(700_000);
    write(&path, &content);
    let remote = &folder.remote("journal");
    assert_eq!(transport.read_from(remote, 0, 10, SOON).unwrap(), content[..10]);
    assert_eq!(transport.read_from(remote, 123_456, 400_000, SOON).unwrap(), content[123_456..523_456]);
    assert_eq!(transport.read_from(remote, 699_990, 1000, SOON).unwrap(), content[699_990..]);
    assert_eq!(transport.read_from(remote, 700_000, 1000, SOON).unwrap(), b"");
    assert_eq!(transport.read_from(remote, 900_000, 1000, SOON).unwrap(), b"");
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert_eq!(transport.read_from(remote, 700_000, 1000, SOON).unwrap(), b"more");
}

fn a_missing_file_is_a_clear_error(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let remote = folder.remote("missing");
    let read = transport.read_from(&remote, 0, 10, SOON).unwrap_err();
    let pulled = transport.pull(&remote, &folder.path().join("to"), 10, SOON).unwrap_err();
    for error in [read, pulled] {
        let text = error.to_string();
        assert!(text.contains("missing") && text.to_lowercase().contains("no such file"), "{text}");
    }
    let local = folder.path().join("nothing here");
    let error = transport.push(&local, &remote, 0o600, SOON, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("nothing here"), "{error}");
}

fn strange_file_names_are_file_names(transport: &mut dyn Transport, root: &Path) {
    let folder = Folder::on(root);
    let from = folder.path().join("from");
    write(&from, b"content");
    for name in ["a b", "it's", "$(touch pwned)", "new\nline", "-rf", "*", "日本"] {
        let to = folder.path().join(name);
        let remote = &folder.remote(name);
        transport.push(&from, remote, 0o600, SOON, &mut |_| {}).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"content", "{name}");
        assert_eq!(transport.read_from(remote, 3, 100, SOON).unwrap(), b"tent", "{name}");
        assert_eq!(transport.pull(remote, &folder.path().join("back"), 100, SOON).unwrap(), 7, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 9);
}

fn stdin_of_a_command_is_empty(transport: &mut dyn Transport, _: &Path) {
    assert_eq!(sh(transport, "wc -c").stdout.trim_ascii(), b"0");
}
