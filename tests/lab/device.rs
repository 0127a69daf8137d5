//! Emulated devices (`device.sh`), and adb servers of our own.
//!
//! Each device has a number, which a lock file holds for as long as the process lives that started it; so devices of several
//! test programs do not meet, and one whose lock is free was left behind by a dead process and is removed.

use super::{children_of, eventually, free_port, make_key};
use farmgate::device::{AdbConfig, SshConfig};
use farmgate::transport::{AdbTransport, SshTransport, Surroundings};
use std::fs::{File, TryLockError};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Where the devices of this machine lie; one place for all processes, as their names are.
const FOLDER: &str = "/var/tmp/farmgate-lab";
const NUMBERS: u32 = 4096;

/// An emulated device, which ends with this value.
pub struct Device {
    child: Child,
    number: u32,
    folder: PathBuf,
    arch: String,
    cpu: String,
    sysfix: Option<PathBuf>,
    lab: PathBuf,
    /// Held as long as the device has its number.
    _lock: File,
}

/// What devices are made of, or why there can be none on this machine.
pub fn parts() -> Result<PathBuf, String> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PARTS.get_or_init(find_parts).clone()
}

fn find_parts() -> Result<PathBuf, String> {
    // SAFETY: geteuid touches no memory and cannot fail
    if unsafe { libc::geteuid() } != 0 {
        return Err("emulated devices need root".to_owned());
    }
    let programs = ["ip", "unshare", "ssh-keygen", "qemu-aarch64-static", "mountpoint"];
    if let Some(program) = programs.iter().find(|p| !on_path(p)) {
        return Err(format!("{program} is not installed"));
    }
    if super::sshd_program().is_none() {
        return Err("sshd is not installed".to_owned());
    }
    let trial = format!("farmgate-trial-{}", std::process::id());
    if !quietly("ip", &["netns", "add", &trial]) {
        return Err("this machine allows no network namespaces".to_owned());
    }
    let link = format!("fgt{}", std::process::id());
    let linked = quietly("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &trial]);
    quietly("ip", &["netns", "del", &trial]);
    if !linked {
        return Err("this machine allows no virtual network links".to_owned());
    }
    let cache = std::env::var_os("FARMGATE_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/farmgate-ci");
    let folder = cache.unwrap_or_else(home).join("lab");
    if !folder.join("complete").is_file() {
        let fetched = Command::new(script("fetch.sh")).arg(&folder).stdin(Stdio::null()).output();
        let fetched = fetched.map_err(|e| e.to_string())?;
        if !fetched.status.success() {
            let said = String::from_utf8_lossy(&fetched.stderr);
            return Err(format!("what devices are made of cannot be fetched: {}", said.trim().replace('\n', "; ")));
        }
    }
    Ok(folder)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(name)
}

/// Whether a program is installed.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn quietly(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A number that nobody has, and the lock that holds it. Whatever a dead process left under it is removed.
fn take_number() -> (u32, File) {
    static SWEPT: OnceLock<()> = OnceLock::new();
    std::fs::create_dir_all(FOLDER).unwrap();
    SWEPT.get_or_init(|| {
        for entry in std::fs::read_dir(FOLDER).unwrap().flatten() {
            let number = entry.file_name().to_str().and_then(|n| n.strip_suffix(".lock")?.parse().ok());
            // dropping the lock at once lets the number go
            number.map(try_number);
        }
    });
    for number in 0..NUMBERS {
        if let Some(lock) = try_number(number) {
            return (number, lock);
        }
    }
    panic!("{NUMBERS} devices are running");
}

fn try_number(number: u32) -> Option<File> {
    let lock = File::create(format!("{FOLDER}/{number}.lock")).unwrap();
    match lock.try_lock() {
        Ok(()) => {
            let folder = folder_of(number);
            if folder.exists() || Path::new(&format!("/run/netns/farmgate-{number}")).exists() {
                remove(number);
            }
            Some(lock)
        }
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(e)) => panic!("cannot lock: {e}"),
    }
}

fn folder_of(number: u32) -> PathBuf {
    Path::new(FOLDER).join(number.to_string())
}

fn remove(number: u32) {
    let done = Command::new(script("device.sh"))
        .args(["down", &number.to_string()])
        .arg(folder_of(number))
        .stdin(Stdio::null())
        .status();
    assert!(done.is_ok_and(|status| status.success()), "device {number} cannot be removed");
}

impl Device {
    /// Starts a device; `cpu` is one of qemu's names, `sysfix` a folder of `tests/lab`. The error says why there can be none.
    pub fn start(arch: &str, cpu: &str, sysfix: Option<&str>) -> Result<Self, String> {
        let lab = parts()?;
        let (number, lock) = take_number();
        let folder = folder_of(number);
        std::fs::create_dir_all(&folder).unwrap();
        make_key(&folder, "client", "ed25519", "");
        let sysfix = sysfix.map(script);
        let child = launch(&lab, number, arch, cpu, sysfix.as_deref());
        let device = Self { child, number, folder, arch: arch.into(), cpu: cpu.into(), sysfix, lab, _lock: lock };
        device.wait();
        Ok(device)
    }

    fn wait(&self) {
        let listens =
            |port: u16| TcpStream::connect_timeout(&(self.ip(), port).into(), Duration::from_millis(200)).is_ok();
        // its address is its own only once its link is up, which is before this file is written; until then whoever is
        // behind the default route may answer
        let has_link = || self.folder.join("sshd_config").exists();
        assert!(
            eventually(|| has_link() && listens(22) && listens(5555)),
            "device {} does not come up: {}",
            self.number,
            self.log()
        );
        let known = std::fs::read_to_string(self.folder.join("host_key.pub")).unwrap();
        std::fs::write(self.folder.join("known_hosts"), format!("{} {known}", self.ip())).unwrap();
    }

    /// Its address.
    pub fn ip(&self) -> std::net::Ipv4Addr {
        let [high, low] = [self.number / 64, self.number % 64 * 4 + 2].map(|n| u8::try_from(n).unwrap());
        std::net::Ipv4Addr::new(10, 213, high, low)
    }

    /// Its serial for adb.
    pub fn serial(&self) -> String {
        format!("{}:5555", self.ip())
    }

    /// Where its root folder lies on this machine.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Where its `/sys` lies on this machine, if it was given one: what is written there, the device sees.
    pub fn sys(&self) -> PathBuf {
        self.folder.join("sys")
    }

    /// What its servers said.
    pub fn log(&self) -> String {
        ["log", "adbd.log"].map(|f| std::fs::read_to_string(self.folder.join(f)).unwrap_or_default()).concat()
    }

    /// Pulls its cable.
    pub fn cut(&self) {
        assert!(quietly("ip", &["link", "set", &format!("fgl{}", self.number), "down"]));
    }

    /// Puts it back.
    pub fn mend(&self) {
        assert!(quietly("ip", &["link", "set", &format!("fgl{}", self.number), "up"]));
    }

    /// Takes its power and gives it back while its cable is out, so that it can tell nobody; its files stay.
    pub fn reboot(&mut self) {
        self.cut();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = launch(&self.lab, self.number, &self.arch, &self.cpu, self.sysfix.as_deref());
        self.mend();
        self.wait();
    }

    /// How to reach it over ssh.
    pub fn ssh(&self) -> SshConfig {
        let at = |name: &str| Some(self.folder.join(name).display().to_string());
        SshConfig {
            host: self.ip().to_string(),
            port: None,
            user: Some("root".into()),
            identity_file: at("client"),
            known_hosts_file: at("known_hosts"),
            connect_timeout_ms: 10_000,
        }
    }

    /// A connection over ssh.
    pub fn connect_ssh(&self) -> SshTransport {
        let around = Surroundings {
            home: self.folder.clone(),
            config_file: self.folder.join("none"),
            agent_socket: None,
            user: "root".into(),
        };
        SshTransport::connect(&self.ssh(), &around).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }
}

fn launch(lab: &Path, number: u32, arch: &str, cpu: &str, sysfix: Option<&Path>) -> Child {
    let folder = folder_of(number);
    let log = File::create(folder.join("log")).unwrap();
    Command::new(script("device.sh"))
        .args(["run", &number.to_string(), arch, cpu])
        .arg(&folder)
        .env("BUSYBOX", lab.join(format!("busybox-{arch}")))
        .env("ADBD", lab.join("adbd"))
        .env("PUBLIC_KEY", folder.join("client.pub"))
        .env("SYSFIX", sysfix.unwrap_or(Path::new("")))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove(self.number);
    }
}

/// One device that tests of a process share while any of them uses it.
pub fn shared(arch: &'static str, cpu: &'static str) -> Result<Arc<Device>, String> {
    static SHARED: Mutex<Weak<Device>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(device) = shared.upgrade().filter(|d| (d.arch.as_str(), d.cpu.as_str()) == (arch, cpu)) {
        return Ok(device);
    }
    let device = Arc::new(Device::start(arch, cpu, None)?);
    *shared = Arc::downgrade(&device);
    Ok(device)
}

/// An adb server with a port, keys and a home of its own, which ends with this value.
pub struct AdbServer {
    child: Child,
    program: PathBuf,
    pub port: u16,
    home: tempfile::TempDir,
}

impl AdbServer {
    /// A server of the client that belongs to the devices' adbd.
    pub fn start() -> Result<Self, String> {
        Ok(Self::start_with(&parts()?.join("adb")))
    }

    /// A server of this client.
    pub fn start_with(program: &Path) -> Self {
        let home = tempfile::tempdir().unwrap();
        // another process may take the port between the look and the start
        for _ in 0..5 {
            let port = free_port();
            if let Some(child) = serve(program, port, home.path()) {
                return Self { child, program: program.to_owned(), port, home };
            }
        }
        panic!("no adb server starts: {}", std::fs::read_to_string(home.path().join("log")).unwrap_or_default());
    }

    /// Ends it and starts it again at the same port.
    pub fn restart(&mut self) {
        self.end();
        self.child = serve(&self.program, self.port, self.home.path()).expect("it starts again");
    }

    /// Ends it.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How to reach a device through it.
    pub fn config(&self, serial: &str) -> AdbConfig {
        AdbConfig {
            serial: serial.to_owned(),
            program: self.program.display().to_string(),
            server_port: Some(self.port),
            connect_timeout_ms: 15_000,
        }
    }

    /// A connection through it.
    pub fn connect(&self, device: &Device) -> AdbTransport {
        let said = || device.log() + &std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        AdbTransport::connect(&self.config(&device.serial())).unwrap_or_else(|e| panic!("{e}\n{}", said()))
    }

    /// Whether it is still the process that was started.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

fn serve(program: &Path, port: u16, home: &Path) -> Option<Child> {
    let log = File::create(home.join("log")).unwrap();
    let mut child = Command::new(program)
        .args(["-P", &port.to_string(), "nodaemon", "server"])
        .env("HOME", home)
        .env("TMPDIR", home)
        .env("ADB_MDNS", "0")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut is_there = || {
        let listens = TcpStream::connect(("127.0.0.1", port)).is_ok();
        child.try_wait().unwrap().is_some() || listens
    };
    let up = eventually(&mut is_there) && child.try_wait().unwrap().is_none();
    if !up {
        let _ = child.kill();
        let _ = child.wait();
    }
    up.then_some(child)
}

impl Drop for AdbServer {
    fn drop(&mut self) {
        let below = children_of(i32::try_from(self.child.id()).unwrap());
        self.end();
        below.into_iter().for_each(|pid| super::signal(pid, libc::SIGKILL));
    }
}
