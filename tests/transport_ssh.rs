//! ssh against a real server and against things that only look like one: who is let in, and how each failure is told.

mod lab;

use farmgate::device::SshConfig;
use farmgate::error::{Error, ExitCode};
use farmgate::transport::{SshTransport, Surroundings, Transport};
use lab::Sshd;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// The server, or a loud skip.
macro_rules! sshd {
    ($test:literal, $start:expr) => {
        match $start {
            Some(sshd) => sshd,
            None => return lab::skip($test, "sshd is not installed"),
        }
    };
}

fn refused(config: &SshConfig, around: &Surroundings) -> Error {
    let error = SshTransport::connect(config, around).err().expect("this is refused");
    assert!(error.hint_text().is_some(), "{error}");
    error
}

/// An account with nothing, for servers that are none.
fn nobody() -> (tempfile::TempDir, Surroundings) {
    let home = tempfile::tempdir().unwrap();
    let around = Surroundings {
        home: home.path().to_owned(),
        config_file: home.path().join("config"),
        agent_socket: None,
        user: "nobody".into(),
    };
    (home, around)
}

fn to(host: &str, port: u16, connect_timeout_ms: u64) -> SshConfig {
    SshConfig {
        host: host.into(),
        port: Some(port),
        user: None,
        identity_file: None,
        known_hosts_file: None,
        connect_timeout_ms,
    }
}

#[test]
fn an_unknown_host_key_is_refused_with_its_fingerprint() {
    let sshd = sshd!("an_unknown_host_key", Sshd::start());
    std::fs::remove_file(sshd.known_hosts()).unwrap();
    let error = refused(&sshd.config(), &sshd.around());
    let listed =
        Command::new("ssh-keygen").arg("-lf").arg(sshd.folder.path().join("host_ed25519.pub")).output().unwrap();
    let fingerprint = String::from_utf8(listed.stdout).unwrap().split(' ').nth(1).unwrap().to_owned();
    assert!(error.what().contains("is not known") && error.what().contains(&fingerprint), "{error}");
    assert!(error.hint_text().unwrap().contains("ssh-keyscan"), "{error}");
    assert!(!sshd.known_hosts().exists(), "nothing is accepted silently");
}

#[test]
fn a_changed_host_key_is_another_error_than_an_unknown_one() {
    let sshd = sshd!("a_changed_host_key", Sshd::start());
    let other = lab::make_key(sshd.folder.path(), "other", "ed25519", "");
    let public = std::fs::read_to_string(other.with_extension("pub")).unwrap();
    std::fs::write(sshd.known_hosts(), format!("[127.0.0.1]:{} {public}", sshd.port)).unwrap();
    let error = refused(&sshd.config(), &sshd.around());
    assert!(error.what().contains("CHANGED"), "{error}");
    let hint = error.hint_text().unwrap();
    assert!(hint.contains(&format!("ssh-keygen -R '[127.0.0.1]:{}'", sshd.port)), "{hint}");
    assert!(error.to_string().contains("known_hosts"), "{error}");
}

#[test]
fn a_hashed_entry_is_found() {
    let sshd = sshd!("a_hashed_entry", Sshd::start());
    let hashed = Command::new("ssh-keygen").arg("-Hf").arg(sshd.known_hosts()).output().unwrap();
    assert!(hashed.status.success());
    assert!(std::fs::read_to_string(sshd.known_hosts()).unwrap().starts_with("|1|"));
    sshd.connect();
}

#[test]
fn a_host_that_is_known_by_a_key_of_another_type_shows_that_one() {
    let sshd = sshd!("another_type", Sshd::start_with("", &["ed25519", "ecdsa", "rsa"]));
    for kind in ["rsa", "ecdsa", "ed25519"] {
        sshd.know_host(kind);
        let mut transport = sshd.connect();
        assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0, "{kind}");
    }
}

#[test]
fn a_revoked_host_key_is_refused() {
    let sshd = sshd!("a_revoked_host_key", Sshd::start());
    let mut known = std::fs::read_to_string(sshd.known_hosts()).unwrap();
    known.push_str(&format!("@revoked * {}\n", sshd.host_key("ed25519")));
    std::fs::write(sshd.known_hosts(), known).unwrap();
    assert!(refused(&sshd.config(), &sshd.around()).what().contains("revoked"));
}

#[test]
fn lines_of_known_hosts_that_make_no_sense_do_not_hide_the_others() {
    let sshd = sshd!("odd_lines", Sshd::start());
    let known = std::fs::read_to_string(sshd.known_hosts()).unwrap();
    let odd = format!("# comment\n\nnonsense\nhost ssh-new-type\n@cert-authority *.lab ssh-rsa AAAA\n{known}");
    std::fs::write(sshd.known_hosts(), odd).unwrap();
    sshd.connect();
}

#[test]
fn without_an_accepted_key_the_error_lists_what_was_tried() {
    let sshd = sshd!("no_accepted_key", Sshd::start());
    let stranger = lab::make_key(sshd.folder.path(), "stranger", "ed25519", "");
    let locked = lab::make_key(sshd.folder.path(), "locked", "ed25519", "secret");
    let junk = sshd.folder.path().join("junk");
    std::fs::write(&junk, "no key at all").unwrap();
    let text = format!(
        "IdentityFile {}\nIdentityFile {}\nIdentityFile {}\nIdentityFile /no/such/key\n",
        stranger.display(),
        locked.display(),
        junk.display()
    );
    std::fs::write(sshd.folder.path().join("ssh_config"), text).unwrap();
    let config = SshConfig { identity_file: None, ..sshd.config() };
    let error = refused(&config, &sshd.around());
    assert!(error.what().contains("accepted no key"), "{error}");
    for part in
        ["stranger (not accepted)", "locked (has a passphrase", "ssh-add", "junk (", "/no/such/key (No such file"]
    {
        assert!(error.what().contains(part), "{part} is not in: {error}");
    }
    assert!(error.hint_text().unwrap().contains("ssh-copy-id"), "{error}");
    let none = refused(&config, &Surroundings { config_file: "/none".into(), ..sshd.around() });
    assert!(none.what().contains("no agent and no key file was found"), "{none}");
}

#[test]
fn keys_of_all_usual_types_and_the_default_names_work() {
    let sshd = sshd!("key_types", Sshd::start());
    let home = sshd.folder.path();
    std::fs::create_dir(home.join(".ssh")).unwrap();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let file = lab::make_key(&home.join(".ssh"), &format!("id_{kind}"), kind, "");
        std::fs::copy(file.with_extension("pub"), home.join("authorized")).unwrap();
        let config = SshConfig { identity_file: None, ..sshd.config() };
        let mut transport = SshTransport::connect(&config, &sshd.around()).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0);
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn an_agent_is_asked_first_and_a_key_with_a_passphrase_works_through_it() {
    let sshd = sshd!("agent", Sshd::start());
    let socket = sshd.folder.path().join("agent");
    let mut agent =
        Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(std::process::Stdio::null()).spawn().unwrap();
    assert!(lab::eventually(|| socket.exists()));
    let key = sshd.folder.path().join("client");
    let added = Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket).status().unwrap();
    assert!(added.success());
    let around = Surroundings { agent_socket: Some(socket), ..sshd.around() };
    let config = SshConfig { identity_file: Some("/no/such/key".into()), ..sshd.config() };
    let outcome = SshTransport::connect(&config, &around);
    // with IdentitiesOnly, a key of the agent counts only when its public half is named
    std::fs::write(sshd.folder.path().join("ssh_config"), "IdentitiesOnly yes\n").unwrap();
    let stranger = SshTransport::connect(&config, &around);
    let named = SshTransport::connect(&sshd.config(), &around);
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(outcome.is_ok(), "{}", outcome.err().unwrap());
    assert!(stranger.err().unwrap().what().contains("0 keys of the agent"));
    assert!(named.is_ok());
}

#[test]
fn an_agent_that_never_answers_ends_at_the_deadline() {
    let sshd = sshd!("silent_agent", Sshd::start());
    let socket = sshd.folder.path().join("agent");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let around = Surroundings { agent_socket: Some(socket), ..sshd.around() };
    let started = Instant::now();
    let error = refused(&SshConfig { connect_timeout_ms: 800, ..sshd.config() }, &around);
    assert!(started.elapsed() < Duration::from_secs(4));
    assert!(error.what().contains("agent"), "{error}");
}

#[test]
fn an_alias_of_the_ssh_configuration_leads_to_the_device() {
    let sshd = sshd!("alias", Sshd::start());
    let folder = sshd.folder.path().display();
    let text = format!(
        "Host phone\n HostName 127.0.0.1\n Port {}\n User {}\n IdentityFile {folder}/client\n UserKnownHostsFile {folder}/known_hosts\n",
        sshd.port,
        lab::login()
    );
    std::fs::write(sshd.folder.path().join("ssh_config"), text).unwrap();
    let config = SshConfig { port: None, known_hosts_file: None, identity_file: None, ..to("phone", 1, 10_000) };
    let around = Surroundings { user: "wrong".into(), ..sshd.around() };
    let mut transport = SshTransport::connect(&config, &around).unwrap();
    assert_eq!(transport.exec(&["echo", "hi"], SOON).unwrap().stdout, b"hi\n");
}

#[test]
fn a_server_that_takes_no_keys_is_told_apart() {
    let config = "PubkeyAuthentication no\nMatch all\nPasswordAuthentication yes\n";
    let sshd = sshd!("no_pubkey", Sshd::start_with(config, &["ed25519"]));
    let error = refused(&sshd.config(), &sshd.around());
    assert!(error.what().contains("takes no keys"), "{error}\n{}", sshd.log());
    assert!(error.hint_text().unwrap().contains("never uses passwords"), "{error}");
}

#[test]
fn a_closed_port_a_wrong_name_and_a_wrong_service_each_have_their_own_message() {
    let (_home, around) = nobody();
    let closed = refused(&to("127.0.0.1", lab::free_port(), 3_000), &around);
    assert!(closed.what().contains("refused the connection"), "{closed}");
    assert_eq!(closed.exit(), ExitCode::Infra);

    let name = refused(&to("no-such-host.invalid", 22, 5_000), &around);
    assert!(name.what().contains("no-such-host.invalid"), "{name}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.write_all("HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n".repeat(50).as_bytes());
    });
    let wrong = refused(&to("127.0.0.1", port, 3_000), &around);
    server.join().unwrap();
    let known = ["not as an ssh server", "without an ssh greeting"];
    assert!(known.iter().any(|k| wrong.what().contains(k)), "{wrong}");
    assert!(wrong.hint_text().unwrap().contains(&port.to_string()), "{wrong}");
}

#[test]
fn a_listener_that_never_greets_ends_at_the_deadline() {
    let (_home, around) = nobody();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let started = Instant::now();
    let error = refused(&to("127.0.0.1", port, 700), &around);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(650) && took < Duration::from_secs(3), "took {took:?}");
    assert!(error.what().contains("no ssh greeting within 700 ms"), "{error}");
}

#[test]
fn an_address_that_nobody_has_ends_at_the_deadline() {
    let (_home, around) = nobody();
    let started = Instant::now();
    // TEST-NET-1, which is routed nowhere
    let error = refused(&to("192.0.2.1", 22, 700), &around);
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(error.what().contains("192.0.2.1"), "{error}");
}

#[test]
fn a_server_that_is_stopped_ends_every_call_at_its_deadline() {
    let sshd = sshd!("stopped", Sshd::start());
    let mut transport = sshd.connect();
    transport.exec(&["true"], SOON).unwrap();
    let file = sshd.folder.path().join("known_hosts");
    let remote = file.to_str().unwrap();
    transport.read_from(remote, 0, 10, SOON).unwrap();
    let freeze = |signal| {
        lab::signal(sshd.pid(), signal);
        sshd.sessions().into_iter().for_each(|p| lab::signal(p, signal));
    };
    freeze(libc::SIGSTOP);
    let budget = Duration::from_millis(600);
    let timed = |outcome: farmgate::error::Result<()>, started: Instant| {
        let error = outcome.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(6), "took {:?}", started.elapsed());
        assert_eq!(error.exit(), ExitCode::Infra);
        assert!(error.hint_text().is_some(), "{error}");
    };
    let started = Instant::now();
    timed(transport.read_from(remote, 0, 10, budget).map(|_| ()), started);
    let started = Instant::now();
    timed(transport.exec(&["true"], budget).map(|_| ()), started);
    let started = Instant::now();
    timed(transport.push(&file, "/tmp/never", 0o600, budget, &mut |_| {}), started);
    freeze(libc::SIGCONT);
    assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0, "it reconnects when the server is back");
}

#[test]
fn a_connection_that_dies_in_the_middle_is_never_success() {
    let sshd = sshd!("dies", Sshd::start());
    let mut transport = sshd.connect();
    let pids = sshd.sessions();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        pids.into_iter().for_each(|p| lab::signal(p, libc::SIGKILL));
    });
    let error = transport.exec(&["sh", "-c", "echo begin; sleep 20"], SOON).unwrap_err();
    killer.join().unwrap();
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(error.what().contains("lost") || error.what().contains("without an answer"), "{error}");
    assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0, "the next call connects anew");
}

#[test]
fn a_connection_that_died_while_idle_is_made_again_unseen() {
    let sshd = sshd!("died_idle", Sshd::start());
    let mut transport = sshd.connect();
    let pids = sshd.sessions();
    pids.iter().for_each(|p| lab::signal(*p, libc::SIGKILL));
    assert!(lab::eventually(|| pids.iter().all(|p| !lab::is_running(*p))));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(transport.exec(&["echo", "back"], SOON).unwrap().stdout, b"back\n");
}

/// Cuts the link once after 5 MB, or every time the push goes on, and gives what came of it and where the file should be.
fn pushed_over_a_cut_link(sshd: &Sshd, every_time: bool) -> (tempfile::TempDir, farmgate::error::Result<()>, usize) {
    let mut transport = sshd.connect();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("from"), vec![7u8; 40 << 20]).unwrap();
    let mut cuts = 0;
    let mut at_bytes = 0;
    let to = folder.path().join("to");
    let outcome = transport.push(&folder.path().join("from"), to.to_str().unwrap(), 0o600, SOON, &mut |done| {
        if (every_time && done > at_bytes) || (cuts == 0 && done > 5 << 20) {
            at_bytes = done;
            cuts += 1;
            sshd.sessions().iter().for_each(|p| lab::signal(*p, libc::SIGKILL));
        }
    });
    (folder, outcome, cuts)
}

#[test]
fn a_push_that_is_cut_in_the_middle_goes_on_where_it_was() {
    let sshd = sshd!("push_cut", Sshd::start());
    let (folder, outcome, cuts) = pushed_over_a_cut_link(&sshd, false);
    outcome.unwrap();
    assert_eq!(cuts, 1);
    assert!(std::fs::read(folder.path().join("to")).unwrap() == vec![7u8; 40 << 20]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no part of it is left");
}

#[test]
fn a_push_that_is_cut_again_and_again_leaves_nothing_in_place() {
    let sshd = sshd!("push_cut_again", Sshd::start());
    let (folder, outcome, cuts) = pushed_over_a_cut_link(&sshd, true);
    let error = outcome.unwrap_err();
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(cuts > 1, "it went on after the first");
    std::thread::sleep(Duration::from_millis(300));
    let to = folder.path().join("to");
    assert!(!to.exists(), "a half file is in place");
    let mut transport = sshd.connect();
    transport.push(&folder.path().join("from"), to.to_str().unwrap(), 0o600, SOON, &mut |_| {}).unwrap();
    assert_eq!(std::fs::metadata(&to).unwrap().len(), 40 << 20);
}

#[test]
fn what_login_scripts_print_is_not_taken_for_output() {
    let config = "ForceCommand echo Welcome to the lab; echo noise >&2; eval \"$SSH_ORIGINAL_COMMAND\"\n";
    let sshd = sshd!("noise", Sshd::start_with(config, &["ed25519"]));
    let output = sshd.connect().exec(&["sh", "-c", "echo mine; exit 3"], SOON).unwrap();
    assert_eq!((output.status, &output.stdout[..]), (3, &b"mine\n"[..]));
}

#[test]
fn an_account_without_a_shell_is_no_success() {
    let config = "ForceCommand echo This account is currently not available.; exit 0\n";
    let sshd = sshd!("no_shell", Sshd::start_with(config, &["ed25519"]));
    let error = sshd.connect().exec(&["true"], SOON).unwrap_err();
    assert!(error.what().contains("without an answer") && error.hint_text().unwrap().contains("shell"), "{error}");
}
