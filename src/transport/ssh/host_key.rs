//! Is this the machine that it was? The host key against the known hosts; never accepted silently.

use super::target::Target;
use crate::error::{Error, Result};
use ssh2::{CheckResult, HashType, KnownHostFileKind, KnownHosts, Session};
use std::io::Read;
use std::path::Path;

/// Most bytes of a known-hosts file that are read.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// What the known hosts say of the key that the server showed.
pub(super) enum Verdict {
    /// It is the recorded one.
    Known,
    /// Keys of other types are recorded for this host; the server may have those as well. In the order in which to ask
    /// for them, as libssh2 wants it.
    OtherTypes(String),
}

/// Judges the key of a session after its handshake.
pub(super) fn check(session: &Session, target: &Target) -> Result<Verdict> {
    let (key, _) =
        session.host_key().ok_or_else(|| Error::infra(format!("{} showed no host key", target.describe())))?;
    let encoded = base64(key);
    let known = Known::read(session, target)?;
    if known.revoked.contains(&encoded) {
        return Err(Error::infra(format!("the host key of {} is marked as revoked", target.describe()))
            .in_file(target.known_hosts_file())
            .hint("give the device a new host key, and replace the entry"));
    }
    match known.keys.check_port(&target.key_name, target.port, key) {
        CheckResult::Match => Ok(Verdict::Known),
        CheckResult::NotFound => Err(unknown(session, target)),
        CheckResult::Failure => Err(Error::infra("libssh2 could not compare the host key")),
        CheckResult::Mismatch => {
            let types = known.types_of(target);
            if types.is_empty() || types.iter().any(|t| t.as_bytes() == type_of(key)) {
                return Err(changed(session, target));
            }
            Ok(Verdict::OtherTypes(as_methods(&types)))
        }
    }
}

fn unknown(session: &Session, target: &Target) -> Error {
    let file = target.known_hosts_file().display();
    Error::infra(format!("the host key of {} is not known: {}", target.describe(), fingerprint(session))).hint(format!(
        "compare the fingerprint with the device's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then \
         `ssh-keyscan -p {} {} >> {file}`",
        target.port, target.host_name
    ))
}

/// The error for a key that differs from the recorded one.
pub(super) fn changed(session: &Session, target: &Target) -> Error {
    let name = match target.port {
        22 => target.key_name.clone(),
        port => format!("[{}]:{port}", target.key_name),
    };
    let file = target.known_hosts_file().display();
    Error::infra(format!(
        "the host key of {} has CHANGED: now {}; another machine answers, or the device was set up anew",
        target.describe(),
        fingerprint(session)
    ))
    .in_file(target.known_hosts_file())
    .hint(format!(
        "only if you know why it changed: `ssh-keygen -R '{name}' -f {file}`, then `ssh-keyscan -p {} {} >> {file}`",
        target.port, target.host_name
    ))
}

fn fingerprint(session: &Session) -> String {
    let kind = session.host_key().map(|(key, _)| String::from_utf8_lossy(type_of(key)).into_owned());
    let hash = session.host_key_hash(HashType::Sha256).map(base64).unwrap_or_default();
    format!("{} SHA256:{}", kind.unwrap_or_default().escape_debug(), hash.trim_end_matches('='))
}

struct Known {
    keys: KnownHosts,
    /// Base64 of keys on `@revoked` lines, whatever host they name.
    revoked: Vec<String>,
}

impl Known {
    /// Reads all files; those that are missing hold nothing. Line by line, so that one odd line does not hide the rest.
    fn read(session: &Session, target: &Target) -> Result<Self> {
        let keys = session.known_hosts().map_err(|e| Error::infra(format!("cannot set up the known hosts: {e}")))?;
        let mut known = Self { keys, revoked: Vec::new() };
        let global = Path::new("/etc/ssh/ssh_known_hosts");
        for file in target.known_hosts_files.iter().map(|f| f.as_path()).chain([global]) {
            let mut bytes = Vec::new();
            match std::fs::File::open(file) {
                Ok(open) => open.take(FILE_BYTES_MAX).read_to_end(&mut bytes),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => Err(e),
            }
            .map_err(|e| Error::usage(format!("cannot read the known hosts: {e}")).in_file(file))?;
            for line in String::from_utf8_lossy(&bytes).lines() {
                known.take(line.trim());
            }
        }
        Ok(known)
    }

    fn take(&mut self, line: &str) {
        if line.starts_with("@revoked") {
            self.revoked.extend(line.split_whitespace().skip(3).take(1).map(str::to_owned));
        } else if !line.is_empty()
            && !line.starts_with(['#', '@'])
            && let Err(e) = self.keys.read_str(line, KnownHostFileKind::OpenSSH)
        {
            log::debug!("a line of the known hosts was passed over: {e}");
        }
    }

    /// Types of the keys that are recorded for this host. Entries may be hashed, so each key is asked for by itself.
    fn types_of(&self, target: &Target) -> Vec<String> {
        let hosts = self.keys.hosts().unwrap_or_default();
        let mut types: Vec<String> = hosts
            .iter()
            .filter_map(|h| from_base64(h.key()))
            .filter(|key| matches!(self.keys.check_port(&target.key_name, target.port, key), CheckResult::Match))
            .filter_map(|key| String::from_utf8(type_of(&key).to_vec()).ok())
            .collect();
        types.sort();
        types.dedup();
        types
    }
}

/// libssh2's names of signature methods for key types: an RSA key may sign in three ways.
fn as_methods(types: &[String]) -> String {
    let names = types.iter().map(|t| if t == "ssh-rsa" { "rsa-sha2-512,rsa-sha2-256,ssh-rsa" } else { t.as_str() });
    names.collect::<Vec<_>>().join(",")
}

/// The first field of a key blob: its type.
fn type_of(key: &[u8]) -> &[u8] {
    let Some((length, rest)) = key.split_first_chunk::<4>() else { return b"" };
    rest.get(..u32::from_be_bytes(*length) as usize).unwrap_or(b"")
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648).
pub(super) fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |g, &b| g << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

/// The inverse of [`base64`]; `None` for anything else.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut group, mut bits) = (0u32, 0u32);
    for digit in digits {
        let value = ALPHABET.iter().position(|d| d == digit)? as u32;
        group = (group << 6 | value) & 0xfff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((group >> bits) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_of_the_published_vectors() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(from_base64("Zg*="), None);
    }

    proptest! {
        #[test]
        fn base64_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(from_base64(&base64(&bytes)), Some(bytes));
        }
        #[test]
        fn the_type_of_any_blob_is_found_or_empty(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = type_of(&bytes);
        }
    }
}
