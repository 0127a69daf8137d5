//! Files on a device, named by their content: what is there already, and proves to be what its name says, is not pushed.
//!
//! A file counts as present when its size fits and it either has not changed since it was last verified (a stamp beside
//! it holds its inode and times) or is hashed again and found equal. A new one is copied beside its place, hashed *on the
//! device* and only then renamed, so a name in the store never stands for half a file.

use crate::agent::Farmhand;
use crate::error::{Error, Result};
use crate::transport::Transport;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// Space that stays free on the device, in bytes.
pub const SPARE_BYTES: u64 = 64 << 20;

/// Budget of a small question.
const ASK: Duration = Duration::from_secs(30);
/// The slowest link and the slowest medium that are waited for.
const LINK_BYTES_PER_S_MIN: u64 = 256 << 10;
const HASH_BYTES_PER_S_MIN: u64 = 10 << 20;

/// Prints what identifies a version of file `$1` (size first) and the stamp beside it; nothing when it is missing.
const LOOK: &str = r#"[ -f "$1" ] || exit 0
stat -c '%s|%i|%y|%z' -- "$1" 2>/dev/null || echo "$(wc -c < "$1" | tr -d ' ')|"
cat -- "$1.stamp" 2>/dev/null
exit 0"#;

/// Renames verified file `$1` to `$2` (unless they are one) and stamps it with hash `$3`.
const SETTLE: &str = r#"umask 077
if [ "$1" != "$2" ]; then mv -f -- "$1" "$2" || exit 1; fi
rm -f -- "$2.stamp"
s=$(stat -c '%s|%i|%y|%z' -- "$2" 2>/dev/null) && printf '%s|%s\n' "$s" "$3" > "$2.stamp"
exit 0"#;

/// Makes folder `$1`, removes leftovers of `$2`, and prints the free space.
const MAKE_ROOM: &str = r#"umask 077
mkdir -p -- "$1" && rm -f -- "$2" "$2.part" && df -Pk -- "$1""#;

/// A file that has to be on the device.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Where it is on the lab host.
    pub local: &'a Path,
    /// Its sha256, lower-case hex.
    pub sha256: &'a str,
    /// Its size.
    pub bytes: u64,
    /// Where it has to be on the device: an absolute path.
    pub remote: &'a str,
    /// Its mode there, unless it becomes a hard link.
    pub mode: u32,
}

/// Who computes hashes on the device.
#[derive(Debug, Clone, Copy)]
pub enum Hasher<'a> {
    /// `farmhand`, which is there already.
    Farmhand(&'a Farmhand),
    /// `sha256sum` of the system, or else the file itself, which is a farmhand.
    Itself,
}

/// What is being done to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Copying; so many bytes are done.
    Copying(u64),
    /// Hashing on the device.
    Verifying,
}

/// The longest that [`ensure`] may take for so many bytes.
pub fn budget(bytes: u64) -> Duration {
    copy_budget(bytes) + 2 * hash_budget(bytes) + 4 * ASK
}

fn copy_budget(bytes: u64) -> Duration {
    Duration::from_secs(60 + bytes / LINK_BYTES_PER_S_MIN)
}

fn hash_budget(bytes: u64) -> Duration {
    Duration::from_secs(60 + bytes / HASH_BYTES_PER_S_MIN)
}

/// Brings one file to the device unless it is there. `true` when it was copied or linked.
///
/// # Errors
/// INFRA: not enough space (before anything is copied), the link fails, or what arrived has another hash.
pub fn ensure(
    transport: &mut dyn Transport,
    hasher: Hasher<'_>,
    item: &Item<'_>,
    say: &mut dyn FnMut(Doing),
) -> Result<bool> {
    if is_present(transport, hasher, item, say)? {
        return Ok(false);
    }
    let new = format!("{}.new", item.remote);
    let folder = item.remote.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let free_bytes = make_room(transport, folder, &new)?;
    if !transport.link(item.local, &new)? {
        if free_bytes < item.bytes.saturating_add(SPARE_BYTES) {
            return Err(Error::infra(format!(
                "{} MiB are free in {folder} on the device; {} MiB are needed and {} MiB have to stay free",
                free_bytes >> 20,
                item.bytes.div_ceil(1 << 20),
                SPARE_BYTES >> 20
            ))
            .hint("free space there, or name a folder on a larger filesystem with `workdir` in the device's file"));
        }
        let mut progress = |done| say(Doing::Copying(done));
        transport.push(item.local, &new, item.mode, copy_budget(item.bytes), &mut progress)?;
    }
    say(Doing::Verifying);
    let arrived = hash_on_device(transport, hasher, &new, item.bytes)?;
    if arrived != item.sha256 {
        let _ = transport.exec(&["rm", "-f", "--", &new], ASK);
        return Err(Error::infra(format!("what arrived has sha256 {arrived}, not {}", item.sha256))
            .in_file(item.local)
            .hint(
                "the file may have changed on this machine meanwhile; else suspect the device's medium or the link",
            ));
    }
    settle(transport, &new, item)?;
    Ok(true)
}

/// Whether the store has the file, and it is what its name says.
fn is_present(
    transport: &mut dyn Transport,
    hasher: Hasher<'_>,
    item: &Item<'_>,
    say: &mut dyn FnMut(Doing),
) -> Result<bool> {
    let output = transport.exec(&["sh", "-c", LOOK, "sh", item.remote], ASK)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let Some(version) = lines.next().filter(|_| output.is_success()) else { return Ok(false) };
    if version.split('|').next().and_then(|size| size.parse().ok()) != Some(item.bytes) {
        return Ok(false);
    }
    // without stat there are no times, and then nothing is taken on trust
    if version.len() > 20 && lines.next() == Some(&format!("{version}|{}", item.sha256)) {
        return Ok(true);
    }
    say(Doing::Verifying);
    // a store file that cannot be hashed, for instance a farmhand that does not run, is replaced
    if hash_on_device(transport, hasher, item.remote, item.bytes).ok().as_deref() != Some(item.sha256) {
        return Ok(false);
    }
    settle(transport, item.remote, item)?;
    Ok(true)
}

fn settle(transport: &mut dyn Transport, from: &str, item: &Item<'_>) -> Result<()> {
    let output = transport.exec(&["sh", "-c", SETTLE, "sh", from, item.remote, item.sha256], ASK)?;
    if output.is_success() {
        return Ok(());
    }
    Err(Error::infra(format!("cannot rename into the store on the device: {}", output.ending())))
}

/// Gives the free space in bytes; unlimited when the device cannot say.
fn make_room(transport: &mut dyn Transport, folder: &str, new: &str) -> Result<u64> {
    let output = transport.exec(&["sh", "-c", MAKE_ROOM, "sh", folder, new], ASK)?;
    match free_bytes(&String::from_utf8_lossy(&output.stdout)) {
        Some(bytes) => Ok(bytes),
        None if output.is_success() || output.stderr.windows(2).any(|w| w == b"df") => Ok(u64::MAX),
        None => Err(Error::infra(format!("cannot prepare {folder} on the device: {}", output.ending()))),
    }
}

/// The column before the percentage in the last line of `df -Pk`: names of devices and folders may hold blanks.
fn free_bytes(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.lines().last()?.split_whitespace().collect();
    let percent =
        words.iter().rposition(|w| w.len() > 1 && w.ends_with('%') && w[..w.len() - 1].parse::<u8>().is_ok())?;
    words.get(percent.checked_sub(1)?)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn hash_on_device(transport: &mut dyn Transport, hasher: Hasher<'_>, path: &str, bytes: u64) -> Result<String> {
    #[derive(Deserialize)]
    struct Hashed {
        sha256: String,
    }
    let farmhand = match hasher {
        Hasher::Farmhand(farmhand) => farmhand.clone(),
        Hasher::Itself => {
            let output = transport.exec(&["sha256sum", "--", path], hash_budget(bytes))?;
            let word: String = String::from_utf8_lossy(&output.stdout).chars().take(64).collect();
            if output.is_success() && word.len() == 64 {
                return Ok(word);
            }
            Farmhand::at(path)
        }
    };
    let hashed: Hashed = farmhand.ask(transport, &["hash", "--", path], hash_budget(bytes))?;
    let is_hash = hashed.sha256.len() == 64 && hashed.sha256.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hash { Ok(hashed.sha256) } else { Err(Error::infra("the device answered with something that is no sha256")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::LocalTransport;
    use farmgate_engine::hash::sha256_hex;
    use std::path::PathBuf;

    struct Bench {
        folder: tempfile::TempDir,
        content: Vec<u8>,
        sha256: String,
    }

    impl Bench {
        fn new() -> Self {
            let content = b"some content".repeat(1000);
            let bench = Self { folder: tempfile::tempdir().unwrap(), sha256: sha256_hex(&content), content };
            std::fs::write(bench.local(), &bench.content).unwrap();
            bench
        }
        fn local(&self) -> PathBuf {
            self.folder.path().join("local")
        }
        fn remote(&self) -> PathBuf {
            self.folder.path().join("store").join(&self.sha256)
        }
        fn ensure(&self) -> Result<(bool, Vec<Doing>)> {
            let (local, remote) = (self.local(), self.remote());
            let item = Item {
                local: &local,
                sha256: &self.sha256,
                bytes: self.content.len() as u64,
                remote: remote.to_str().unwrap(),
                mode: 0o600,
            };
            let mut done = Vec::new();
            ensure(&mut LocalTransport::new(), Hasher::Itself, &item, &mut |d| done.push(d)).map(|moved| (moved, done))
        }
        fn files(&self) -> usize {
            std::fs::read_dir(self.folder.path().join("store")).unwrap().count()
        }
    }

    #[test]
    fn the_second_time_nothing_is_pushed_and_nothing_hashed() {
        let bench = Bench::new();
        assert!(bench.ensure().unwrap().0);
        assert_eq!(bench.ensure().unwrap(), (false, vec![]));
        assert_eq!(std::fs::read(bench.remote()).unwrap(), bench.content);
        assert_eq!(bench.files(), 2, "the file and its stamp");
    }

    #[test]
    fn a_truncated_store_file_is_replaced() {
        let bench = Bench::new();
        bench.ensure().unwrap();
        std::fs::remove_file(bench.remote()).unwrap();
        std::fs::write(bench.remote(), &bench.content[..100]).unwrap();
        assert!(bench.ensure().unwrap().0);
        assert_eq!(std::fs::read(bench.remote()).unwrap(), bench.content);
    }

    #[test]
    fn a_store_file_of_the_right_size_with_other_content_is_found_out() {
        let bench = Bench::new();
        bench.ensure().unwrap();
        std::fs::remove_file(bench.remote()).unwrap();
        std::fs::write(bench.remote(), vec![b'x'; bench.content.len()]).unwrap();
        let (moved, done) = bench.ensure().unwrap();
        assert!(moved && done.contains(&Doing::Verifying));
        assert_eq!(std::fs::read(bench.remote()).unwrap(), bench.content);
    }

    #[test]
    fn a_file_that_was_touched_but_is_right_is_verified_and_kept() {
        let bench = Bench::new();
        bench.ensure().unwrap();
        std::fs::remove_file(bench.remote()).unwrap();
        std::fs::write(bench.remote(), &bench.content).unwrap();
        assert_eq!(bench.ensure().unwrap(), (false, vec![Doing::Verifying]));
        assert_eq!(bench.ensure().unwrap(), (false, vec![]));
    }

    #[test]
    fn leftovers_of_an_earlier_push_are_replaced() {
        let bench = Bench::new();
        std::fs::create_dir(bench.folder.path().join("store")).unwrap();
        std::fs::write(format!("{}.new", bench.remote().display()), "half").unwrap();
        std::fs::write(format!("{}.new.part", bench.remote().display()), "half").unwrap();
        bench.ensure().unwrap();
        assert_eq!((std::fs::read(bench.remote()).unwrap(), bench.files()), (bench.content.clone(), 2));
    }

    #[test]
    fn a_file_that_changed_since_it_was_hashed_does_not_enter_the_store() {
        let bench = Bench::new();
        std::fs::write(bench.local(), vec![b'y'; bench.content.len()]).unwrap();
        let error = bench.ensure().unwrap_err();
        assert!(error.what().contains("what arrived has sha256"), "{error}");
        assert_eq!(bench.files(), 0);
    }

    #[test]
    fn too_little_space_is_told_before_anything_is_copied() {
        let bench = Bench::new();
        let remote = bench.remote();
        // a link needs no space, so this is a file that cannot be linked
        let item = Item {
            local: Path::new("/proc/self/status"),
            sha256: &bench.sha256,
            bytes: u64::MAX - 1,
            remote: remote.to_str().unwrap(),
            mode: 0o600,
        };
        let error = ensure(&mut LocalTransport::new(), Hasher::Itself, &item, &mut |_| {}).unwrap_err();
        assert!(error.what().contains("MiB are free") && error.hint_text().is_some(), "{error}");
    }

    #[test]
    fn free_space_is_read_from_any_df() {
        let gnu = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda 1000 400 600 40% /a b\n";
        assert_eq!(free_bytes(gnu), Some(600 * 1024));
        assert_eq!(free_bytes("x y z 1 2 77 5% /mnt/100% x"), Some(77 * 1024));
        for nothing in ["", "df: no such file", "5%", "a 5%"] {
            assert_eq!(free_bytes(nothing), None, "{nothing}");
        }
    }
}
