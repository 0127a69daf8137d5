//! Logging in: by agent, then by key file; never by password.

use super::host_key::from_base64;
use super::link::{AUTHENTICATION_FAILED, FILE, Fault, Link, code_of, within};
use super::target::Target;
use crate::error::{Error, Result};
use crate::transport::Deadline;
use std::path::Path;

/// Most keys of an agent that are shown to a server; servers break off after six by default, but may allow more.
const AGENT_KEYS_MAX: usize = 32;

/// Proves who we are. What was tried is told when nothing was accepted.
pub(super) fn log_in(link: &Link, target: &Target, deadline: &Deadline) -> Result<()> {
    let mut tried = Vec::new();
    let methods = link.drive(deadline, || link.session().auth_methods(&target.user).map(str::to_owned));
    match methods {
        _ if link.session().authenticated() => return Ok(()),
        Ok(methods) if !methods.split(',').any(|m| m == "publickey") => {
            return Err(Error::infra(format!(
                "{} takes no keys, only: {}",
                target.describe(),
                farmgate_engine::text::escaped(methods.as_bytes(), 200)
            ))
            .hint("farmgate never uses passwords: set `PubkeyAuthentication yes` on the device"));
        }
        Ok(_) => {}
        Err(Fault::Refused(_)) => {}
        Err(fault) => return Err(broken(target, deadline, &fault, &tried)),
    }
    if by_agent(link, target, deadline, &mut tried)? {
        return Ok(());
    }
    for (file, named) in &target.identity_files {
        if by_file(link, target, deadline, file, *named, &mut tried)? {
            return Ok(());
        }
    }
    if tried.is_empty() {
        tried.push("no agent and no key file was found".to_owned());
    }
    let user = &target.user;
    Err(Error::infra(format!("{} accepted no key; tried: {}", target.describe(), tried.join("; "))).hint(format!(
        "`ssh-copy-id -p {} {user}@{}` installs a key; or name another with `identity-file` or `user`",
        target.port, target.host_name
    )))
}

fn broken(target: &Target, deadline: &Deadline, fault: &Fault, tried: &[String]) -> Error {
    let after = if tried.is_empty() { String::new() } else { format!("; tried: {}", tried.join("; ")) };
    match fault {
        Fault::Deadline => Error::infra(format!(
            "{} did not finish the login within {} ms{after}",
            target.describe(),
            deadline.budget_ms()
        ))
        .hint("the device may hang or be overloaded; `connect-timeout-ms` sets the budget"),
        Fault::Lost(what) => Error::infra(format!("{} broke off the login: {what}{after}", target.describe()))
            .hint("with many keys in the agent a server gives up: set `IdentitiesOnly yes` and `IdentityFile`"),
        Fault::Refused(e) => Error::infra(format!("the login at {} failed: {e}{after}", target.describe())),
    }
}

/// Every key of the agent; with `IdentitiesOnly` those whose public half lies beside a named key file.
fn by_agent(link: &Link, target: &Target, deadline: &Deadline, tried: &mut Vec<String>) -> Result<bool> {
    let Some(socket) = target.agent_socket.clone() else { return Ok(false) };
    let wanted: Option<Vec<Vec<u8>>> =
        target.identities_only.then(|| target.identity_files.iter().filter_map(|(f, _)| public_half(f)).collect());
    // the agent may ask its user, and libssh2 would wait for that for ever
    let (session, user) = (link.session().clone(), target.user.clone());
    let asked = within(deadline, move || ask_agent(&session, &socket, &user, wanted.as_deref()));
    match asked {
        Some(Ok(AgentSays::LoggedIn)) => Ok(true),
        Some(Ok(AgentSays::NoKeyFits(count))) => {
            tried.push(format!("{count} keys of the agent"));
            Ok(false)
        }
        Some(Err(e)) => {
            tried.push(format!("the agent (it does not answer: {})", e.message()));
            Ok(false)
        }
        None => {
            link.cut();
            Err(Error::infra(format!(
                "the ssh agent did not log in at {} within {} ms",
                target.describe(),
                deadline.budget_ms()
            ))
            .hint("it may wait for a confirmation; name a key file with `identity-file` and unset SSH_AUTH_SOCK"))
        }
    }
}

enum AgentSays {
    LoggedIn,
    NoKeyFits(usize),
}

/// Runs in a thread of its own; waits by sleeping, since the socket belongs to the caller.
fn ask_agent(
    session: &ssh2::Session,
    socket: &Path,
    user: &str,
    wanted: Option<&[Vec<u8>]>,
) -> std::result::Result<AgentSays, ssh2::Error> {
    let patient = |call: &mut dyn FnMut() -> std::result::Result<(), ssh2::Error>| loop {
        match call() {
            Err(e) if code_of(&e) == -37 => std::thread::sleep(std::time::Duration::from_millis(2)),
            outcome => return outcome,
        }
    };
    let mut agent = session.agent()?;
    agent.set_identity_path(socket)?;
    agent.connect()?;
    patient(&mut || agent.list_identities())?;
    let mut count = 0;
    for identity in agent.identities()?.iter().take(AGENT_KEYS_MAX) {
        if wanted.is_some_and(|w| !w.iter().any(|blob| blob == identity.blob())) {
            continue;
        }
        count += 1;
        if patient(&mut || agent.userauth(user, identity)).is_ok() {
            return Ok(AgentSays::LoggedIn);
        }
    }
    Ok(AgentSays::NoKeyFits(count))
}

fn public_half(key: &Path) -> Option<Vec<u8>> {
    let mut name = key.as_os_str().to_owned();
    name.push(".pub");
    from_base64(std::fs::read_to_string(name).ok()?.split_whitespace().nth(1)?)
}

fn by_file(
    link: &Link,
    target: &Target,
    deadline: &Deadline,
    file: &Path,
    named: bool,
    tried: &mut Vec<String>,
) -> Result<bool> {
    let shown = file.display();
    match std::fs::read_to_string(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !named => return Ok(false),
        Err(e) => {
            tried.push(format!("{shown} ({})", if named { e.to_string() } else { format!("cannot be read: {e}") }));
            return Ok(false);
        }
        Ok(text) if is_encrypted(&text) => {
            tried.push(format!("{shown} (has a passphrase: add it to the agent with `ssh-add {shown}`)"));
            return Ok(false);
        }
        Ok(_) => {}
    }
    match link.drive(deadline, || link.session().userauth_pubkey_file(&target.user, None, file, None)) {
        Ok(()) => Ok(true),
        Err(Fault::Refused(e)) => {
            tried.push(match code_of(&e) {
                AUTHENTICATION_FAILED | -19 => format!("{shown} (not accepted)"),
                FILE => format!("{shown} (is no private key that can be read)"),
                _ => format!("{shown} ({})", e.message()),
            });
            Ok(false)
        }
        Err(fault) => Err(broken(target, deadline, &fault, tried)),
    }
}

/// Whether a private key needs a passphrase: OpenSSH's own format names its cipher in the first bytes, PEM in a header.
fn is_encrypted(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    match lines.next() {
        Some("-----BEGIN OPENSSH PRIVATE KEY-----") => {
            let body = from_base64(lines.next().unwrap_or_default()).unwrap_or_default();
            !body.starts_with(b"openssh-key-v1\0\0\0\0\x04none")
        }
        _ => text.contains("ENCRYPTED"),
    }
}
