//! Files on a device, named by their content: what is there already, and proves to be what its name says, is not pushed.
//!
//! A file counts as present when its size fits and it either has not changed since it was last verified (a stamp beside
//! it holds its inode and times) or is hashed again and found equal. A new one is copied beside its place, where a copy that
//! was cut off goes on, hashed *on the device* and only then renamed, so a name in the store never stands for half a file.
//! Files that were not used for longest give way when there is no room (`room`).

mod room;

pub use room::Room;

use crate::agent::Farmhand;
use crate::error::{Error, Result};
use crate::transport::Transport;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// Budget of a small question.
const ASK: Duration = Duration::from_secs(30);
/// The slowest link and the slowest medium that are waited for.
const LINK_BYTES_PER_S_MIN: u64 = 256 << 10;
const HASH_BYTES_PER_S_MIN: u64 = 10 << 20;

/// Prints what identifies a version of file `$1` (size first) and the stamp beside it; nothing when it is missing.
const LOOK: &str = r#"[ -f "$1" ] || exit 0
stat -c '%s|%i|%y|%z' -- "$1" 2>/dev/null || echo "$(wc -c < "$1" | tr -d ' ')|"
cat -- "$1.stamp" 2>/dev/null && touch -c -- "$1.stamp" 2>/dev/null
exit 0"#;

/// Renames verified file `$1` to `$2` (unless they are one) and stamps it with hash `$3`.
const SETTLE: &str = r#"umask 077
if [ "$1" != "$2" ]; then mv -f -- "$1" "$2" || exit 1; fi
rm -f -- "$2.stamp" "$1.part"
s=$(stat -c '%s|%i|%y|%z' -- "$2" 2>/dev/null) && printf '%s|%s\n' "$s" "$3" > "$2.stamp"
exit 0"#;

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
    room: &Room<'_>,
    say: &mut dyn FnMut(Doing),
) -> Result<bool> {
    if is_present(transport, hasher, item, say)? {
        return Ok(false);
    }
    let new = format!("{}.new", item.remote);
    let folder = item.remote.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let free_bytes = room::prepare(transport, folder, &new)?;
    let is_linked = transport.link(item.local, &new)?;
    let mut arrived = String::new();
    for goes_on in [true, false] {
        if !is_linked {
            room::make(transport, folder, free_bytes, item, room)?;
            copy(transport, item, &new, goes_on, say)?;
        }
        say(Doing::Verifying);
        arrived = hash_on_device(transport, hasher, &new, item.bytes)?;
        if arrived == item.sha256 {
            settle(transport, &new, item)?;
            return Ok(true);
        }
        // what an earlier copy had left may have been of another file, or damaged: once more from the beginning
        let _ = transport.exec(&["rm", "-f", "--", &new], ASK);
        if is_linked {
            break;
        }
    }
    Err(Error::infra(format!("what arrived has sha256 {arrived}, not {}", item.sha256))
        .in_file(item.local)
        .hint("the file may have changed on this machine meanwhile; else suspect the device's medium or the link"))
}

fn copy(
    transport: &mut dyn Transport,
    item: &Item<'_>,
    new: &str,
    goes_on: bool,
    say: &mut dyn FnMut(Doing),
) -> Result<()> {
    let mut progress = |done| say(Doing::Copying(done));
    let budget = copy_budget(item.bytes);
    match goes_on {
        true => transport.push_on(item.local, new, item.mode, budget, &mut progress),
        false => transport.push(item.local, new, item.mode, budget, &mut progress),
    }
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
            ensure(&mut LocalTransport::new(), Hasher::Itself, &item, &Room::default(), &mut |d| done.push(d))
                .map(|moved| (moved, done))
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
        let error =
            ensure(&mut LocalTransport::new(), Hasher::Itself, &item, &Room::default(), &mut |_| {}).unwrap_err();
        assert!(error.what().contains("MiB are free") && error.hint_text().is_some(), "{error}");
    }
}
