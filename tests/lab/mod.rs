//! A lab for tests: a real ssh server on a loopback port, with keys and known hosts of its own.
#![allow(dead_code)] // each test file uses its part

pub mod device;
pub mod project;

use farmgate::device::SshConfig;
use farmgate::transport::{SshTransport, Surroundings};
use std::io::BufRead;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An ssh server that ends with this value.
pub struct Sshd {
    child: Child,
    pub port: u16,
    pub folder: tempfile::TempDir,
}

/// Says loudly that a test did not run: past the test runner, which would keep the words of a test that passes.
pub fn skip(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {why}");
}

/// Where sshd lies, if it is installed.
pub fn sshd_program() -> Option<PathBuf> {
    ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"].iter().map(PathBuf::from).find(|p| p.is_file())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a key pair `folder/name` without passphrase unless one is given.
pub fn make_key(folder: &Path, name: &str, kind: &str, passphrase: &str) -> PathBuf {
    let file = folder.join(name);
    let done = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-N", passphrase, "-C", "farmgate test", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success());
    file
}

impl Sshd {
    /// Starts a server with sftp.
    pub fn start() -> Option<Self> {
        Self::start_with("Subsystem sftp internal-sftp\n", &["ed25519"])
    }

    /// Starts a server with further lines of configuration and host keys of these types, of which the first is known.
    pub fn start_with(config: &str, host_key_types: &[&str]) -> Option<Self> {
        let program = sshd_program()?;
        // sshd refuses to start as root without it; it is made by the package's service otherwise
        let _ = std::fs::create_dir_all("/run/sshd");
        let folder = tempfile::tempdir().unwrap();
        let client_key = make_key(folder.path(), "client", "ed25519", "");
        std::fs::copy(client_key.with_extension("pub"), folder.path().join("authorized")).unwrap();
        for kind in host_key_types {
            make_key(folder.path(), &format!("host_{kind}"), kind, "");
        }
        // another process may take the port between the look and the start
        for _ in 0..5 {
            if let Some(sshd) = Self::launch(&program, folder.path(), config, host_key_types) {
                let (child, port) = sshd;
                let sshd = Self { child, port, folder };
                sshd.know_host(host_key_types[0]);
                return Some(sshd);
            }
        }
        panic!("sshd did not start: {}", std::fs::read_to_string(folder.path().join("log")).unwrap_or_default());
    }

    fn launch(program: &Path, folder: &Path, config: &str, host_key_types: &[&str]) -> Option<(Child, u16)> {
        let port = free_port();
        let at = folder.display();
        let mut text = format!(
            "Port {port}\nListenAddress 127.0.0.1\nPidFile none\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             AuthorizedKeysFile {at}/authorized\nMaxStartups 100\nLogLevel VERBOSE\n{config}"
        );
        for kind in host_key_types {
            text.push_str(&format!("HostKey {at}/host_{kind}\n"));
        }
        std::fs::write(folder.join("sshd_config"), text).unwrap();
        let mut child = Command::new(program)
            .args(["-D", "-f"])
            .arg(folder.join("sshd_config"))
            .arg("-E")
            .arg(folder.join("log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if let Ok(socket) = TcpStream::connect(("127.0.0.1", port)) {
                let mut line = String::new();
                let _ = std::io::BufReader::new(socket).read_line(&mut line);
                if line.starts_with("SSH-") && child.try_wait().unwrap().is_none() {
                    return Some((child, port));
                }
            }
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        None
    }

    /// Process id of the listening server.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Process ids of the servers of single connections.
    pub fn sessions(&self) -> Vec<i32> {
        children_of(self.pid()).into_iter().flat_map(|p| [vec![p], children_of(p)].concat()).collect()
    }

    /// Public key of the host as `type base64`.
    pub fn host_key(&self, kind: &str) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(format!("host_{kind}.pub"))).unwrap();
        text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    /// Writes known hosts with this host's key of that type alone.
    pub fn know_host(&self, kind: &str) {
        let line = format!("[127.0.0.1]:{} {}\n", self.port, self.host_key(kind));
        std::fs::write(self.known_hosts(), line).unwrap();
    }

    /// The known-hosts file that [`config`](Self::config) names.
    pub fn known_hosts(&self) -> PathBuf {
        self.folder.path().join("known_hosts")
    }

    /// How to reach the server.
    pub fn config(&self) -> SshConfig {
        SshConfig {
            host: "127.0.0.1".into(),
            port: Some(self.port),
            user: None,
            identity_file: Some(self.folder.path().join("client").display().to_string()),
            known_hosts_file: Some(self.known_hosts().display().to_string()),
            connect_timeout_ms: 10_000,
        }
    }

    /// An account without configuration, agent and keys.
    pub fn around(&self) -> Surroundings {
        Surroundings {
            home: self.folder.path().to_owned(),
            config_file: self.folder.path().join("ssh_config"),
            agent_socket: None,
            user: login(),
        }
    }

    /// A connection to it.
    pub fn connect(&self) -> SshTransport {
        SshTransport::connect(&self.config(), &self.around()).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// What the server wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let sessions = self.sessions();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in sessions {
            signal(pid, libc::SIGCONT);
            signal(pid, libc::SIGKILL);
        }
    }
}

/// The account that runs the tests.
pub fn login() -> String {
    let out = Command::new("id").arg("-un").output().unwrap().stdout;
    String::from_utf8(out).unwrap().trim().to_owned()
}

/// Sends a signal to one process.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory
    unsafe { libc::kill(pid, signal) };
}

/// Whether a process is there and no zombie.
pub fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Waits up to five seconds for something to become true.
pub fn eventually(mut what: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn children_of(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).and_then(|p| p.parse().ok());
        if parent == Some(pid) {
            found.push(child);
        }
    }
    found
}

/// The farmhand of this checkout, built once.
pub fn farmhand() -> farmgate::toolchain::Artefact {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let debug = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
        let built = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", "farmgate-engine", "--bin", "farmhand", "--target-dir"])
            .arg(debug.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "farmhand does not build");
        debug
    });
    farmgate::toolchain::from_folder(folder, farmgate::toolchain::host_target()).unwrap()
}
