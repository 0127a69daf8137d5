//! The keys of `[transport.…]`: how a device is reached.

use crate::config::{self, Checker};
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// How a device is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportConfig {
    /// The machine that farmgate runs on.
    Local(LocalConfig),
    /// A machine with an ssh server.
    Ssh(SshConfig),
    /// A phone or tablet behind adb.
    Adb(AdbConfig),
    /// A simulated device.
    Sim(SimConfig),
}

impl TransportConfig {
    /// `local`, `ssh`, `adb` or `sim`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Ssh(_) => "ssh",
            Self::Adb(_) => "adb",
            Self::Sim(_) => "sim",
        }
    }
}

impl std::fmt::Display for TransportConfig {
    /// `local`, `ssh HOST` or `adb SERIAL`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(_) | Self::Sim(_) => f.write_str(self.kind()),
            Self::Ssh(ssh) => write!(f, "{} {}", self.kind(), ssh.host),
            Self::Adb(adb) => write!(f, "{} {}", self.kind(), adb.serial),
        }
    }
}

/// Keys of `[transport.local]`: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LocalConfig {}

/// Keys of `[transport.ssh]`. What is absent is taken from `~/.ssh/config`, then from ssh's own defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SshConfig {
    /// Host name, address or alias of `~/.ssh/config`.
    pub host: String,
    /// TCP port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Login.
    #[serde(default)]
    pub user: Option<String>,
    /// Private key, as typed; `~/` is not expanded here.
    #[serde(default)]
    pub identity_file: Option<String>,
    /// Host keys that are trusted, as typed; `~/` is not expanded here.
    #[serde(default)]
    pub known_hosts_file: Option<String>,
    /// Budget for connecting and logging in, milliseconds.
    #[serde(default = "connect_timeout_ms_default")]
    pub connect_timeout_ms: u64,
}

/// Keys of `[transport.adb]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AdbConfig {
    /// Serial as `adb devices` shows it, or `HOST:PORT` of a device on the network.
    pub serial: String,
    /// The adb client; found through `PATH` when it has no slash.
    #[serde(default = "adb_program_default")]
    pub program: String,
    /// TCP port of the adb server on this machine; `None` means `ANDROID_ADB_SERVER_PORT`, then 5037.
    #[serde(default)]
    pub server_port: Option<u16>,
    /// Budget for reaching the device, milliseconds.
    #[serde(default = "connect_timeout_ms_default")]
    pub connect_timeout_ms: u64,
}

/// Keys of `[transport.sim]`: this machine behind a link that is a script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SimConfig {
    /// What every call costs, milliseconds of virtual time.
    pub latency_ms: u64,
    /// Speed of the link, bytes a second of virtual time; 0 is without limit.
    pub link_bytes_per_s: u64,
    /// Folder whose `sys` and `proc` are the device's, as typed; without it they are this machine's.
    pub root: Option<String>,
    /// What goes wrong.
    #[serde(rename = "fault")]
    pub faults: Vec<SimFault>,
}

/// What goes wrong on a simulated link. Calls are counted from 1, those alone whose text holds `matching`: `push REMOTE`,
/// `pull REMOTE`, `read REMOTE`, or `exec` and the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum SimFault {
    /// The link is lost in the middle of a call.
    LinkLost {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The call.
        at_call: u32,
        /// Bytes that cross before.
        after_bytes: u64,
    },
    /// Calls find the device offline.
    Offline {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The first one.
        from_call: u32,
        /// How many.
        calls: u32,
    },
    /// A call has no end before its deadline.
    Hang {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The call.
        at_call: u32,
    },
    /// A command's status is another one than its own.
    LyingStatus {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The call.
        at_call: u32,
        /// What it says.
        status: i32,
    },
    /// A command or a file says something that is no answer.
    Garbage {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The call.
        at_call: u32,
    },
    /// The wall clock is set to another time; it stays so.
    ClockJump {
        /// Calls that count.
        #[serde(default)]
        matching: String,
        /// The call before which it happens.
        at_call: u32,
        /// By how much, milliseconds.
        jump_ms: i64,
    },
    /// The medium is full.
    DiskFull {
        /// Bytes that can be pushed before.
        after_bytes: u64,
    },
}

impl SimFault {
    /// What a call's text must hold to be counted.
    pub fn matching(&self) -> &str {
        match self {
            Self::LinkLost { matching, .. }
            | Self::Offline { matching, .. }
            | Self::Hang { matching, .. }
            | Self::LyingStatus { matching, .. }
            | Self::Garbage { matching, .. }
            | Self::ClockJump { matching, .. } => matching,
            Self::DiskFull { .. } => "",
        }
    }
}

impl SshConfig {
    /// A host with all else as ssh has it.
    pub fn to(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            port: None,
            user: None,
            identity_file: None,
            known_hosts_file: None,
            connect_timeout_ms: connect_timeout_ms_default(),
        }
    }
}

impl AdbConfig {
    /// A serial, with the machine's own client and server.
    pub fn to(serial: &str) -> Self {
        Self {
            serial: serial.to_owned(),
            program: adb_program_default(),
            server_port: None,
            connect_timeout_ms: connect_timeout_ms_default(),
        }
    }
}

fn adb_program_default() -> String {
    "adb".to_owned()
}

fn connect_timeout_ms_default() -> u64 {
    10_000
}

/// Checks what can be checked without reaching the device.
pub(super) fn check(check: &mut Checker<'_>, transport: &Spanned<TransportConfig>) {
    let span = transport.span();
    let (texts, port, connect_timeout_ms) = match transport.get_ref() {
        TransportConfig::Local(_) | TransportConfig::Sim(_) => return,
        TransportConfig::Ssh(ssh) => {
            let texts = vec![
                ("host", Some(&ssh.host)),
                ("user", ssh.user.as_ref()),
                ("identity-file", ssh.identity_file.as_ref()),
                ("known-hosts-file", ssh.known_hosts_file.as_ref()),
            ];
            (texts, ("port", ssh.port, "ssh servers listen on 22"), ssh.connect_timeout_ms)
        }
        TransportConfig::Adb(adb) => {
            let texts = vec![("serial", Some(&adb.serial)), ("program", Some(&adb.program))];
            (texts, ("server-port", adb.server_port, "adb servers listen on 5037"), adb.connect_timeout_ms)
        }
    };
    let kind = transport.get_ref().kind();
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let spaced = matches!(key, "host" | "user" | "serial") && text.contains(char::is_whitespace);
        if text.trim().is_empty() || text.chars().any(char::is_control) || spaced || text.starts_with('-') {
            check.fault(
                span.clone(),
                format!("`{key}` of this {kind} transport cannot be `{}`", config::printable(text)),
                format!("give `{key}` a text that is not empty, does not begin with - and has no control characters"),
            );
        }
    }
    let (key, port, usual) = port;
    if port == Some(0) {
        check.fault(
            span.clone(),
            format!("`{key}` of this {kind} transport is 0"),
            format!("{usual} unless set otherwise"),
        );
    }
    check.within(span, "connect-timeout-ms", &connect_timeout_ms, 100..=600_000);
}
