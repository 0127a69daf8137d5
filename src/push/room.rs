//! Room in the store of a device: free space with a margin, a quota, and who gives way.

use super::{ASK, Item};
use crate::error::{Error, Result};
use crate::transport::Transport;

/// Space that stays free on the device, in bytes.
pub const SPARE_BYTES: u64 = 64 << 20;
/// Most files of a store that are looked at.
const FILES_MAX: usize = 10_000;

/// Makes folder `$1`, removes leftovers of `$2` but what was copied last, and prints the free space.
const PREPARE: &str = r#"umask 077
mkdir -p -- "$1" && rm -f -- "$2" && df -Pk -- "$1""#;

/// Prints size and name of each settled file in store `$1`, the one that was not used for longest first. Its stamp is
/// touched whenever it is used.
const LIST: &str = r#"cd -- "$1" || exit 1
ls -tr -- *.stamp */*.stamp 2>/dev/null | while IFS= read -r s; do
  f=${s%.stamp}; [ -f "$f" ] && echo "$(wc -c < "$f" | tr -d ' ') $f"
done
exit 0"#;

/// Removes the files named in store `$1`, and what belongs to them.
const REMOVE: &str = r#"cd -- "$1" && shift || exit 1
for f do rm -f -- "$f.stamp" "$f" "$f.new" "$f.new.part" || exit 1; done
exit 0"#;

/// What limits a store.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room<'a> {
    /// The store's folder; without it nothing gives way.
    pub store: Option<&'a str>,
    /// Most bytes that all its files may have; without it the medium alone limits them.
    pub quota_bytes: Option<u64>,
    /// Files that the lease holds, as absolute paths: they never give way.
    pub held: &'a [String],
}

/// A file of the store.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    name: String,
    bytes: u64,
}

/// Makes sure of the room for an item, of whose folder `free_bytes` are free: files that were not used for longest give way.
///
/// # Errors
/// INFRA: there is too little even then, and nothing has been copied. Usage: the item is larger than the quota.
pub(super) fn make(
    transport: &mut dyn Transport,
    folder: &str,
    free_bytes: u64,
    item: &Item<'_>,
    room: &Room<'_>,
) -> Result<()> {
    if let Some(quota) = room.quota_bytes.filter(|quota| item.bytes > *quota) {
        return Err(Error::usage(format!(
            "the file has {} MiB, more than the {} MiB that `store-quota-mb` allows on the device",
            item.bytes.div_ceil(1 << 20),
            quota >> 20
        ))
        .in_file(item.local)
        .hint("raise `store-quota-mb` in the device's file"));
    }
    let wanted = item.bytes.saturating_add(SPARE_BYTES);
    let mut free_bytes = free_bytes;
    if let Some(store) = room.store {
        let kept = if free_bytes < wanted || room.quota_bytes.is_some() { list(transport, store)? } else { Vec::new() };
        let leaving = who_leaves(&kept, store, wanted.saturating_sub(free_bytes), item.bytes, room);
        if !leaving.is_empty() {
            log::info!("{} files leave the store of {}", leaving.len(), transport.describe());
            let mut argv = vec!["sh", "-c", REMOVE, "sh", store];
            argv.extend(leaving.iter().map(|kept| kept.name.as_str()));
            transport.exec(&argv, ASK)?;
            free_bytes = free_bytes.saturating_add(leaving.iter().map(|kept| kept.bytes).sum());
        }
    }
    if free_bytes >= wanted {
        return Ok(());
    }
    Err(Error::infra(format!(
        "{} MiB are free in {folder} on the device; {} MiB are needed and {} MiB have to stay free",
        free_bytes >> 20,
        item.bytes.div_ceil(1 << 20),
        SPARE_BYTES >> 20
    ))
    .hint("free space there, or name a folder on a larger filesystem with `workdir` in the device's file"))
}

/// The files that give way, oldest first, until so many bytes are won and the quota holds.
fn who_leaves<'a>(kept: &'a [Kept], store: &str, win_bytes: u64, new_bytes: u64, room: &Room<'_>) -> Vec<&'a Kept> {
    let total: u64 = kept.iter().map(|kept| kept.bytes).fold(new_bytes, u64::saturating_add);
    let over = room.quota_bytes.map_or(0, |quota| total.saturating_sub(quota));
    let mut to_win = win_bytes.max(over);
    let mut leaving = Vec::new();
    for file in kept.iter().filter(|file| !room.held.iter().any(|held| *held == format!("{store}/{}", file.name))) {
        if to_win == 0 {
            break;
        }
        to_win = to_win.saturating_sub(file.bytes);
        leaving.push(file);
    }
    leaving
}

fn list(transport: &mut dyn Transport, store: &str) -> Result<Vec<Kept>> {
    let output = transport.exec(&["sh", "-c", LIST, "sh", store], ASK)?;
    Ok(kept_in(&String::from_utf8_lossy(&output.stdout)))
}

/// `size name` lines. Names become paths below the store, so that any that would lead elsewhere is left alone.
fn kept_in(text: &str) -> Vec<Kept> {
    let is_inside =
        |name: &str| !name.starts_with(['/', '-']) && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let one = |line: &str| {
        let (bytes, name) = line.split_once(' ')?;
        is_inside(name).then(|| Some(Kept { name: name.to_owned(), bytes: bytes.parse().ok()? }))?
    };
    text.lines().take(FILES_MAX).filter_map(one).collect()
}

/// Makes the folder and gives the free space in bytes; unlimited when the device cannot say.
pub(super) fn prepare(transport: &mut dyn Transport, folder: &str, new: &str) -> Result<u64> {
    let output = transport.exec(&["sh", "-c", PREPARE, "sh", folder, new], ASK)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read_from_any_df() {
        let gnu = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda 1000 400 600 40% /a b\n";
        assert_eq!(free_bytes(gnu), Some(600 * 1024));
        assert_eq!(free_bytes("x y z 1 2 77 5% /mnt/100% x"), Some(77 * 1024));
        for nothing in ["", "df: no such file", "5%", "a 5%"] {
            assert_eq!(free_bytes(nothing), None, "{nothing}");
        }
    }

    fn kept(names: &[(&str, u64)]) -> Vec<Kept> {
        names.iter().map(|(name, bytes)| Kept { name: (*name).into(), bytes: *bytes }).collect()
    }

    fn leaving(room: &Room<'_>, win_bytes: u64, new_bytes: u64) -> Vec<String> {
        let all = kept(&[("old", 10), ("held", 20), ("set/one", 30), ("new", 40)]);
        who_leaves(&all, "/w/store", win_bytes, new_bytes, room).iter().map(|kept| kept.name.clone()).collect()
    }

    #[test]
    fn the_longest_unused_give_way_and_never_what_the_lease_holds() {
        let held = ["/w/store/held".to_owned()];
        let room = Room { store: Some("/w/store"), quota_bytes: None, held: &held };
        assert!(leaving(&room, 0, 5).is_empty());
        assert_eq!(leaving(&room, 10, 5), ["old"]);
        assert_eq!(leaving(&room, 11, 5), ["old", "set/one"]);
        assert_eq!(leaving(&room, 1_000, 5), ["old", "set/one", "new"]);
        let room = Room { quota_bytes: Some(100), ..room };
        assert_eq!(leaving(&room, 0, 5), ["old"], "105 of 100");
        assert_eq!(leaving(&room, 0, 50), ["old", "set/one", "new"], "150 of 100");
    }

    #[test]
    fn a_name_that_leads_out_of_the_store_is_left_alone() {
        let said = "10 a\n20 ../b\n30 /etc/c\n40 s/d e\nx f\n50 -rf\n60 s//g\n\n70 ./h\n";
        assert_eq!(kept_in(said), kept(&[("a", 10), ("s/d e", 40)]));
    }
}
