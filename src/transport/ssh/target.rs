//! Where an ssh transport leads to: the device's file, then `~/.ssh/config`, then ssh's own defaults.

use crate::device::SshConfig;
use crate::error::{Error, Result};
use crate::transport::ssh_config::{self, HostSettings, expand_home};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The value of `connect-timeout-ms` that a device file has when it does not say one.
const CONNECT_TIMEOUT_MS_DEFAULT: u64 = 10_000;

/// What the lab host's account contributes: read from the process by default, made up by tests.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The home folder, for `~/`, the default keys and known hosts.
    pub home: PathBuf,
    /// The ssh configuration; it may be missing.
    pub config_file: PathBuf,
    /// The socket of the ssh agent, when there is one.
    pub agent_socket: Option<PathBuf>,
    /// The login when nothing names another.
    pub user: String,
}

impl Surroundings {
    /// Those of this process: `HOME`, `USER`, `SSH_AUTH_SOCK`.
    pub fn of_process() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let home = var("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|u| !u.is_empty());
        Self {
            config_file: home.join(".ssh/config"),
            home,
            agent_socket: var("SSH_AUTH_SOCK").map(PathBuf::from),
            user: user.unwrap_or_else(|| "root".to_owned()),
        }
    }
}

/// Everything that is needed to connect.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) host_name: String,
    pub(super) port: u16,
    pub(super) user: String,
    /// Name under which the host key is looked up.
    pub(super) key_name: String,
    /// Private keys to try; `true` when somebody named the file, so that its absence is worth a word.
    pub(super) identity_files: Vec<(PathBuf, bool)>,
    pub(super) identities_only: bool,
    pub(super) known_hosts_files: Vec<PathBuf>,
    pub(super) agent_socket: Option<PathBuf>,
    pub(super) connect_timeout: Duration,
}

impl Target {
    /// Puts together what the device's file and the ssh configuration say.
    pub(super) fn resolve(config: &SshConfig, around: &Surroundings) -> Result<Self> {
        let settings = ssh_config::settings_of(&config.host, &around.config_file, &around.home)?;
        if let Some(proxy) = settings.proxy.as_deref().filter(|p| !p.eq_ignore_ascii_case("none")) {
            return Err(Error::usage(format!(
                "host `{}` is reached through a proxy (`{}`), which is not supported yet",
                config.host,
                proxy.escape_debug()
            ))
            .in_file(&around.config_file)
            .hint("forward a port with `ssh -L 2222:DEVICE:22 PROXY` and register 127.0.0.1 with port = 2222"));
        }
        let host_name = settings.host_name.as_deref().unwrap_or("%h").replace("%h", &config.host).replace("%%", "%");
        let port = config.port.or(settings.port).unwrap_or(22);
        let user = config.user.clone().or_else(|| settings.user.clone()).unwrap_or_else(|| around.user.clone());
        let expand = |path: &str| expand_path(path, &around.home, &host_name, port, &user);
        let known_hosts_files = match (&config.known_hosts_file, &settings.known_hosts_files) {
            (Some(file), _) => vec![expand(file)],
            (None, Some(files)) => files.iter().map(|f| expand(f)).collect(),
            (None, None) => ["known_hosts", "known_hosts2"].map(|f| around.home.join(".ssh").join(f)).to_vec(),
        };
        let timeout_ms = match settings.connect_timeout_s {
            Some(s) if config.connect_timeout_ms == CONNECT_TIMEOUT_MS_DEFAULT => s.clamp(1, 600) * 1_000,
            _ => config.connect_timeout_ms,
        };
        Ok(Self {
            identity_files: identity_files(config, &settings, &around.home, &expand),
            identities_only: settings.identities_only.unwrap_or(false),
            key_name: settings.host_key_alias.clone().unwrap_or_else(|| host_name.clone()),
            agent_socket: around.agent_socket.clone(),
            connect_timeout: Duration::from_millis(timeout_ms),
            host_name,
            port,
            user,
            known_hosts_files,
        })
    }

    /// As messages name it.
    pub(super) fn describe(&self) -> String {
        format!("ssh {}@{}:{}", self.user, self.host_name, self.port)
    }

    /// The file to which a user would add the host's key.
    pub(super) fn known_hosts_file(&self) -> &Path {
        self.known_hosts_files.first().map_or(Path::new("~/.ssh/known_hosts"), PathBuf::as_path)
    }
}

fn identity_files(
    config: &SshConfig,
    settings: &HostSettings,
    home: &Path,
    expand: &dyn Fn(&str) -> PathBuf,
) -> Vec<(PathBuf, bool)> {
    if let Some(file) = &config.identity_file {
        return vec![(expand(file), true)];
    }
    if !settings.identity_files.is_empty() {
        return settings.identity_files.iter().map(|f| (expand(f), true)).collect();
    }
    ["id_ed25519", "id_ecdsa", "id_rsa"].map(|name| (home.join(".ssh").join(name), false)).to_vec()
}

/// `~/` and the tokens %d %h %p %r %u %% of ssh_config(5).
fn expand_path(path: &str, home: &Path, host: &str, port: u16, user: &str) -> PathBuf {
    let mut out = String::new();
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('d')) => out.push_str(&home.to_string_lossy()),
            ('%', Some('h')) => out.push_str(host),
            ('%', Some('p')) => out.push_str(&port.to_string()),
            ('%', Some('r')) => out.push_str(user),
            ('%', Some('u')) => out.push_str(&std::env::var("USER").unwrap_or_default()),
            ('%', Some('%')) => out.push('%'),
            (c, next) => out.extend([Some(c), next].into_iter().flatten()),
        }
    }
    expand_home(&out, home)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(toml: &str, ssh_config: &str) -> Result<Target> {
        let home = tempfile::tempdir().unwrap();
        let config_file = home.path().join("config");
        std::fs::write(&config_file, ssh_config).unwrap();
        let around =
            Surroundings { home: PathBuf::from("/home/lab"), config_file, agent_socket: None, user: "me".into() };
        Target::resolve(&toml::from_str(toml).unwrap(), &around)
    }

    #[test]
    fn the_device_file_wins_over_the_ssh_configuration_and_that_over_the_defaults() {
        let ssh_config = "Host pi\n HostName 10.0.0.7\n Port 2201\n User lab\n IdentityFile ~/keys/%h-%r\n UserKnownHostsFile ~/kh\n";
        let a = resolve("host = \"pi\"", ssh_config).unwrap();
        assert_eq!(a.describe(), "ssh lab@10.0.0.7:2201");
        assert_eq!(a.identity_files, [(PathBuf::from("/home/lab/keys/10.0.0.7-lab"), true)]);
        assert_eq!(a.known_hosts_files, [PathBuf::from("/home/lab/kh")]);
        let b = resolve("host = \"pi\"\nport = 22\nuser = \"root\"\nidentity-file = \"~/k\"", ssh_config).unwrap();
        assert_eq!(b.describe(), "ssh root@10.0.0.7:22");
        assert_eq!(b.identity_files, [(PathBuf::from("/home/lab/k"), true)]);
        let c = resolve("host = \"board\"", ssh_config).unwrap();
        assert_eq!(c.describe(), "ssh me@board:22");
        assert_eq!(c.identity_files[0], (PathBuf::from("/home/lab/.ssh/id_ed25519"), false));
    }

    #[test]
    fn a_proxy_is_refused_with_a_way_around_it() {
        let error = resolve("host = \"pi\"", "Host *\n ProxyJump bastion\n").unwrap_err();
        assert!(error.what().contains("not supported yet") && error.hint_text().unwrap().contains("ssh -L"));
        assert!(resolve("host = \"pi\"", "Host *\n ProxyJump none\n").is_ok());
    }

    #[test]
    fn the_connect_timeout_of_the_ssh_configuration_holds_unless_the_device_file_sets_one() {
        let of = |toml: &str| resolve(toml, "ConnectTimeout 3\n").unwrap().connect_timeout.as_millis();
        assert_eq!(of("host = \"h\""), 3_000);
        assert_eq!(of("host = \"h\"\nconnect-timeout-ms = 700"), 700);
    }
}
