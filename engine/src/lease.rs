//! The lease: one owner a device, across processes and hosts.
//!
//! The state is one small file in the device's workdir, changed under a lock and replaced by rename. A lease ends when
//! it is released, when its time to live has passed, or when the device has been restarted; time is `CLOCK_BOOTTIME`
//! together with the boot's name, so setting the wall clock changes nothing. Every grant has a *fencing token*, higher
//! than all before it: whoever shows an older one has lost the device, whatever it still believes.

use crate::clock;
use crate::error::{EngineError, ErrorKind, Result};
use crate::text;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest owner name, in bytes.
pub const OWNER_BYTES_MAX: usize = 200;
/// The longest time to live, in milliseconds: a day.
pub const TTL_MS_MAX: u64 = 24 * 3_600_000;

const STATE: &str = "lease.json";
const LOCK: &str = "lease.lock";
const STATE_BYTES_MAX: u64 = 64 * 1024;

/// A lease as it is shown: what `farmhand lease` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The fencing token.
    pub token: u64,
    /// Who holds it: the owner's own words, escaped.
    pub owner: String,
    /// Milliseconds until it ends unless it is renewed; 0 when it has ended.
    pub expires_in_ms: u64,
}

/// The outcome of asking for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// It is ours.
    Granted(Lease),
    /// Somebody else has it.
    HeldBy(Lease),
}

/// The leases of one workdir.
#[derive(Debug, Clone)]
pub struct LeaseFolder {
    workdir: PathBuf,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct State {
    /// The highest token ever granted.
    token: u64,
    /// The holder of that token; `None` after a release.
    holder: Option<Holder>,
    /// The lease that was last ended by somebody else than its owner: its trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    broken: Option<Broken>,
}

/// A lease that was taken from its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Broken {
    /// Its token.
    pub token: u64,
    /// Who held it.
    pub owner: String,
    /// Who ended it.
    pub by: String,
    /// Wall clock of the device then.
    pub at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Holder {
    owner: String,
    boot: String,
    ends_at_us: u64,
}

/// The moment by which leases are judged; apart so that tests can set it.
#[derive(Debug, Clone)]
struct Moment {
    boot: String,
    now_us: u64,
}

impl Moment {
    fn now() -> Self {
        Self { boot: clock::boot_id(), now_us: clock::boottime_us() }
    }

    fn left_ms(&self, holder: &Holder) -> u64 {
        if holder.boot == self.boot { holder.ends_at_us.saturating_sub(self.now_us).div_ceil(1_000) } else { 0 }
    }
}

impl LeaseFolder {
    /// The leases kept in `workdir`, which must exist for anything to be granted.
    pub fn new(workdir: impl Into<PathBuf>) -> Self {
        Self { workdir: workdir.into() }
    }

    /// Asks for the lease. It is granted when nobody holds one that is still running; the same owner name twice is two
    /// owners.
    pub fn acquire(&self, owner: &str, ttl_ms: u64) -> Result<Grant> {
        self.acquire_at(owner, ttl_ms, &Moment::now())
    }

    fn acquire_at(&self, owner: &str, ttl_ms: u64, moment: &Moment) -> Result<Grant> {
        let owner = checked_owner(owner)?;
        let ttl_ms = checked_ttl(ttl_ms)?;
        self.change(|state| {
            if let Some(holder) = &state.holder
                && moment.left_ms(holder) > 0
            {
                return Ok(Grant::HeldBy(shown(state.token, holder, moment)));
            }
            state.token = state.token.checked_add(1).ok_or_else(|| EngineError::system("no lease token is left"))?;
            let holder = Holder { owner, boot: moment.boot.clone(), ends_at_us: moment.now_us + ttl_ms * 1_000 };
            let lease = shown(state.token, &holder, moment);
            state.holder = Some(holder);
            Ok(Grant::Granted(lease))
        })
    }

    /// Sets the lease of `token` to run for `ttl_ms` from now. One that has run out can still be renewed, as long as
    /// nobody else was granted one since. Errors: [`ErrorKind::Lease`] when the token is stale or was released.
    pub fn renew(&self, token: u64, ttl_ms: u64) -> Result<Lease> {
        self.renew_at(token, ttl_ms, &Moment::now())
    }

    fn renew_at(&self, token: u64, ttl_ms: u64, moment: &Moment) -> Result<Lease> {
        let ttl_ms = checked_ttl(ttl_ms)?;
        self.change(|state| {
            let mut holder = current(state, token, moment)?.clone();
            holder.boot.clone_from(&moment.boot);
            holder.ends_at_us = moment.now_us + ttl_ms * 1_000;
            let lease = shown(token, &holder, moment);
            state.holder = Some(holder);
            Ok(lease)
        })
    }

    /// Gives the lease back. Errors: [`ErrorKind::Lease`] when the token is stale or was released before.
    pub fn release(&self, token: u64) -> Result<()> {
        self.change(|state| {
            current(state, token, &Moment::now())?;
            state.holder = None;
            Ok(())
        })
    }

    /// Ends the lease that runs now in its owner's stead; `None` when there is none. What the owner does from then on is
    /// refused, and says by whom it was ended.
    pub fn break_off(&self, by: &str) -> Result<Option<Broken>> {
        let by = checked_owner(by)?;
        let moment = Moment::now();
        self.change(|state| {
            let Some(holder) = state.holder.take().filter(|holder| moment.left_ms(holder) > 0) else { return Ok(None) };
            let owner = shown(state.token, &holder, &moment).owner;
            state.broken = Some(Broken { token: state.token, owner, by, at: clock::wall_clock() });
            Ok(state.broken.clone())
        })
    }

    /// The lease that runs now, if any.
    pub fn show(&self) -> Result<Option<Lease>> {
        let (state, moment) = (self.read()?, Moment::now());
        Ok(state.holder.as_ref().filter(|h| moment.left_ms(h) > 0).map(|h| shown(state.token, h, &moment)))
    }

    /// Whether `token` is still the last one granted and was not released. A lease that merely ran out passes: its owner
    /// may be behind a cut link, and as long as nobody else was granted the device, nobody is disturbed.
    pub fn check(&self, token: u64) -> Result<()> {
        let state = self.read()?;
        current(&state, token, &Moment::now()).map(|_| ())
    }

    fn place(&self) -> String {
        self.workdir.join(STATE).display().to_string()
    }

    fn fault(&self, doing: &str, e: &std::io::Error) -> EngineError {
        EngineError::io(doing, e).at(self.place()).hint("check that the workdir exists and is writable")
    }

    /// Reads the state, lets `act` change it, and replaces it, all under the lock.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let _lock = self.lock()?;
        let mut state = self.read()?;
        let answer = act(&mut state)?;
        self.write(&state)?;
        Ok(answer)
    }

    /// Waits for the lock, which is held for the few milliseconds of a change and ends with its process.
    fn lock(&self) -> Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.workdir.join(LOCK))
            .map_err(|e| self.fault("cannot open the lock of the lease", &e))?;
        loop {
            // SAFETY: the descriptor is open for as long as `file` lives; flock touches no memory
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(file);
            }
            let e = std::io::Error::last_os_error();
            if e.kind() != std::io::ErrorKind::Interrupted {
                return Err(self.fault("cannot lock the lease", &e));
            }
        }
    }

    fn read(&self) -> Result<State> {
        let mut bytes = Vec::new();
        match File::open(self.workdir.join(STATE)) {
            Ok(file) => file
                .take(STATE_BYTES_MAX)
                .read_to_end(&mut bytes)
                .map_err(|e| self.fault("cannot read the lease", &e))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(State::default()),
            Err(e) => return Err(self.fault("cannot read the lease", &e)),
        };
        serde_json::from_slice(&bytes).map_err(|e| {
            EngineError::system(format!("the lease file is damaged: {e}"))
                .at(self.place())
                .hint("when nobody is using the device, delete the file")
        })
    }

    fn write(&self, state: &State) -> Result<()> {
        let text = serde_json::to_string(state)
            .map_err(|e| EngineError::new(ErrorKind::Bug, format!("cannot encode the lease: {e}")))?;
        let draft = self.workdir.join("lease.json.new");
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&draft, self.workdir.join(STATE)));
        written.map_err(|e| self.fault("cannot write the lease", &e))
    }
}

fn shown(token: u64, holder: &Holder, moment: &Moment) -> Lease {
    // escaped again: the file lies where others may write
    let owner = text::escaped(holder.owner.as_bytes(), OWNER_BYTES_MAX);
    Lease { token, owner, expires_in_ms: moment.left_ms(holder) }
}

/// The holder, when `token` is the last one granted and was not released.
fn current<'a>(state: &'a State, token: u64, moment: &Moment) -> Result<&'a Holder> {
    let stale =
        |what: String| EngineError::new(ErrorKind::Lease, what).hint("acquire a new lease: `farmhand lease acquire`");
    match &state.holder {
        Some(holder) if state.token == token => Ok(holder),
        Some(holder) if token < state.token => {
            let owner = shown(state.token, holder, moment).owner;
            Err(stale(format!("lease token {token} is stale: token {} was granted to `{owner}`", state.token)))
        }
        None if state.broken.as_ref().is_some_and(|broken| broken.token == token) => {
            let by = state.broken.as_ref().map_or("", |broken| &broken.by);
            let by = text::escaped(by.as_bytes(), OWNER_BYTES_MAX);
            Err(stale(format!("the lease of token {token} was ended by `{by}`")))
        }
        None if token <= state.token => Err(stale(format!("the lease of token {token} was released or is stale"))),
        _ => Err(stale(format!("lease token {token} was never granted"))),
    }
}

fn checked_owner(owner: &str) -> Result<String> {
    let escaped = text::escaped(owner.trim().as_bytes(), usize::MAX);
    if escaped.is_empty() || escaped.len() > OWNER_BYTES_MAX {
        return Err(EngineError::usage(format!(
            "the owner of a lease is a name of 1 to {OWNER_BYTES_MAX} bytes, this one has {}",
            escaped.len()
        )));
    }
    Ok(escaped)
}

fn checked_ttl(ttl_ms: u64) -> Result<u64> {
    if (1..=TTL_MS_MAX).contains(&ttl_ms) {
        return Ok(ttl_ms);
    }
    Err(EngineError::usage(format!("the time to live of a lease is 1 to {TTL_MS_MAX} ms, not {ttl_ms}")))
}

/// The lease folder that rules over a file in the workdir: the folder of `path`, or the nearest one above it that holds
/// a lease file, at most four levels up.
pub fn folder_above(path: &Path) -> LeaseFolder {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let own = path.parent().unwrap_or(Path::new("/"));
    let found = path.ancestors().skip(1).take(5).find(|folder| folder.join(STATE).is_file());
    LeaseFolder::new(found.unwrap_or(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, now_us: u64) -> Moment {
        Moment { boot: boot.into(), now_us }
    }

    fn granted(grant: Grant) -> Lease {
        match grant {
            Grant::Granted(lease) => lease,
            Grant::HeldBy(lease) => panic!("held by {lease:?}"),
        }
    }

    #[test]
    fn a_second_owner_is_told_who_holds_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        let first = granted(leases.acquire("lab-1", 60_000).unwrap());
        assert_eq!(first.token, 1);
        let Grant::HeldBy(holder) = leases.acquire("lab-2", 60_000).unwrap() else { panic!("granted twice") };
        assert_eq!((holder.token, holder.owner.as_str()), (1, "lab-1"));
        assert!(
            matches!(leases.acquire("lab-1", 60_000).unwrap(), Grant::HeldBy(_)),
            "a name is no proof of ownership"
        );
        assert_eq!(leases.show().unwrap().unwrap().owner, "lab-1");
    }

    #[test]
    fn tokens_rise_over_release_expiry_and_restart() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        let a = granted(leases.acquire("a", 60_000).unwrap());
        leases.release(a.token).unwrap();
        let b = granted(leases.acquire_at("b", 10, &moment("boot-1", 1_000_000)).unwrap());
        assert!(matches!(leases.acquire_at("c", 10, &moment("boot-1", 1_009_000)).unwrap(), Grant::HeldBy(_)));
        let c = granted(leases.acquire_at("c", 1_000, &moment("boot-1", 1_010_000)).unwrap());
        let d = granted(leases.acquire_at("d", 1_000, &moment("boot-2", 5)).unwrap());
        assert_eq!([a.token, b.token, c.token, d.token], [1, 2, 3, 4]);
    }

    #[test]
    fn a_stale_token_can_neither_renew_nor_release_nor_pass() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        let old = granted(leases.acquire_at("old", 1, &moment("gone", 0)).unwrap());
        leases.check(old.token).unwrap();
        let new = granted(leases.acquire("new", 60_000).unwrap());
        for error in [
            leases.renew(old.token, 1_000).unwrap_err(),
            leases.release(old.token).unwrap_err(),
            leases.check(old.token).unwrap_err(),
            leases.check(new.token + 1).unwrap_err(),
        ] {
            assert_eq!(error.exit_code(), 6, "{error}");
        }
        leases.renew(new.token, 1_000).unwrap();
        leases.release(new.token).unwrap();
        assert!(leases.check(new.token).is_err(), "a released lease does not pass");
        assert!(leases.show().unwrap().is_none());
    }

    #[test]
    fn a_lease_that_was_broken_off_says_by_whom() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        assert_eq!(leases.break_off("admin").unwrap(), None, "there is none");
        let lease = granted(leases.acquire("lab-1", 60_000).unwrap());
        let broken = leases.break_off("admin").unwrap().unwrap();
        assert_eq!((broken.token, broken.owner.as_str(), broken.by.as_str()), (lease.token, "lab-1", "admin"));
        let error = leases.check(lease.token).unwrap_err();
        assert!(error.what().contains("was ended by `admin`") && error.exit_code() == 6, "{error}");
        let next = granted(leases.acquire("lab-2", 60_000).unwrap());
        assert!(next.token > lease.token && leases.check(lease.token).is_err());
    }

    #[test]
    fn a_lease_that_ran_out_can_be_renewed_while_nobody_took_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        let lease = granted(leases.acquire_at("a", 10, &moment("b", 0)).unwrap());
        let renewed = leases.renew_at(lease.token, 50, &moment("b", 90_000)).unwrap();
        assert_eq!((renewed.token, renewed.expires_in_ms), (lease.token, 50));
    }

    #[test]
    fn an_owner_is_bounded_and_escaped() {
        let folder = tempfile::tempdir().unwrap();
        let leases = LeaseFolder::new(folder.path());
        assert_eq!(leases.acquire(" ", 1_000).unwrap_err().exit_code(), 2);
        assert_eq!(leases.acquire(&"x".repeat(OWNER_BYTES_MAX + 1), 1_000).unwrap_err().exit_code(), 2);
        assert_eq!(leases.acquire("a", 0).unwrap_err().exit_code(), 2);
        assert_eq!(granted(leases.acquire("a\x1b[2J", 1_000).unwrap()).owner, "a\\u{1b}[2J");
    }

    #[test]
    fn a_damaged_lease_file_grants_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(STATE), b"{\"token\":").unwrap();
        let leases = LeaseFolder::new(folder.path());
        assert!(leases.acquire("a", 1_000).unwrap_err().to_string().contains("damaged"));
        assert!(leases.check(0).is_err());
    }
}
