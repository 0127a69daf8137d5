//! The folder on a device in which everything of farmgate's lies: found, made, and proved usable.

use crate::device::{Device, TransportConfig};
use crate::error::{Error, Result};
use crate::transport::Transport;
use std::time::Duration;

const ASK: Duration = Duration::from_secs(30);

/// The one place of an Android device where the shell's account may write and run programs.
const ADB_WORKDIR: &str = "/data/local/tmp/farmgate";

/// Makes folder `$1` and what it holds; each exit status is one thing that can be wrong. Prints owner and mode.
const PREPARE: &str = r#"umask 077
d=$1
if [ ! -e "$d" ]; then mkdir -p -- "$d" || exit 41; fi
[ -d "$d" ] || exit 42
# a name of its own: two runs may look at the folder at once
t="$d/.farmgate-probe.$$"
rm -f -- "$t" 2>/dev/null
( echo x > "$t" ) && [ -s "$t" ] || { rm -f -- "$t" 2>/dev/null; exit 43; }
rm -f -- "$t"
mkdir -p -- "$d/store" "$d/runs" && chmod 700 "$d/store" "$d/runs" || exit 43
id -u
ls -ldn -- "$d" "$d/store" "$d/runs""#;

/// The workdir of a device as an absolute path, made and writable.
pub(super) fn open(transport: &mut dyn Transport, device: &Device) -> Result<String> {
    let workdir = locate(transport, device)?;
    let output = transport.exec(&["sh", "-c", PREPARE, "sh", &workdir], ASK)?;
    let shown = farmgate_engine::text::escaped(workdir.as_bytes(), 300);
    let hint = "name another folder with `workdir` in the device's file";
    let refuse = |what: String| Err(Error::usage(what).hint(hint));
    match output.status {
        0 => {}
        41 => return refuse(format!("the workdir {shown} cannot be made: {}", output.last_words())),
        42 => return refuse(format!("the workdir {shown} is a file, not a folder")),
        43 => return refuse(format!("the workdir {shown} cannot be written: {}", output.last_words())),
        _ => return Err(Error::infra(format!("cannot prepare the workdir {shown}: {}", output.ending()))),
    }
    if let Some(fault) = fault_of_owners(&String::from_utf8_lossy(&output.stdout)) {
        return refuse(format!("the workdir {shown} is not safe: {fault}"));
    }
    Ok(workdir)
}

/// What others could do to the folders: whoever can replace a file there decides what runs on the device.
fn fault_of_owners(text: &str) -> Option<&'static str> {
    let mut lines = text.lines();
    let own = lines.next()?.trim();
    for (i, line) in lines.enumerate() {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next()?.as_bytes(), words.nth(1)?);
        let others_write = mode.get(5) == Some(&b'w') || mode.get(8) == Some(&b'w');
        let is_sticky = matches!(mode.get(9), Some(b't' | b'T'));
        if others_write && !is_sticky {
            return Some("other accounts can write there (`chmod go-w` mends it)");
        }
        // the folder itself may be a shared one, such as /tmp; what lies in it has to be ours
        if i > 0 && owner != own {
            return Some("the folders in it belong to another account");
        }
    }
    None
}

fn locate(transport: &mut dyn Transport, device: &Device) -> Result<String> {
    let asked = device.workdir.as_deref();
    if let Some(path) = asked.filter(|path| path.starts_with('/')) {
        return Ok(trimmed(path).to_owned());
    }
    if let (TransportConfig::Local(_), None) = (&device.transport, asked) {
        let cache = std::env::var("XDG_CACHE_HOME").ok().filter(|path| path.starts_with('/'));
        if let Some(cache) = cache {
            return Ok(format!("{}/farmgate/device", trimmed(&cache)));
        }
    }
    if let (TransportConfig::Sim(_), None) = (&device.transport, asked) {
        return Ok(format!("{}/.cache/farmgate/sim/{}", trimmed(&home(transport)?), device.name));
    }
    if let (TransportConfig::Adb(_), None) = (&device.transport, asked) {
        return Ok(ADB_WORKDIR.to_owned());
    }
    let home = home(transport)?;
    let inside = match (asked, &device.transport) {
        (Some(path), _) => path.strip_prefix("~/").unwrap_or(path),
        (None, TransportConfig::Local(_)) => ".cache/farmgate/device",
        (None, _) => ".farmgate",
    };
    Ok(format!("{}/{}", trimmed(&home), trimmed(inside)))
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// The home folder of the account on the device.
fn home(transport: &mut dyn Transport) -> Result<String> {
    let output = transport.exec(&["sh", "-c", "cd && pwd"], ASK)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let path = said.strip_suffix('\n').unwrap_or(&said);
    if output.is_success() && path.starts_with('/') && path.len() < 1_000 && !path.contains(char::is_control) {
        return Ok(path.to_owned());
    }
    Err(Error::usage(format!("the account on the device has no home folder: {}", output.ending()))
        .hint("give an absolute `workdir` in the device's file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_others_can_change_are_not_safe() {
        let good = "0\ndrwx------ 4 0 0 4096 x d\ndrwx------ 2 0 0 4096 x d/store\n";
        assert_eq!(fault_of_owners(good), None);
        assert_eq!(fault_of_owners("7\ndrwxrwxrwt 4 0 0 1 x /tmp\ndrwx------ 2 7 7 1 x /tmp/store\n"), None);
        assert!(fault_of_owners("7\ndrwxrwxrwt 4 0 0 1 x /tmp\ndrwx------ 2 8 8 1 x /tmp/store\n").is_some());
        assert!(fault_of_owners("0\ndrwxrwxrwx 4 0 0 1 x d\n").is_some());
    }
}
