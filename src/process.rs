//! Local commands under a deadline: the only module that spawns.
//!
//! Every command gets a process group of its own, nothing on stdin unless it is fed, and bounds on what is kept of its
//! output. At the deadline the whole group is killed, so that a compiler's or a shell's children do not stay behind.

mod feed;

use crate::error::{Error, Result};
use feed::Feed;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How many bytes of each output stream are kept unless asked otherwise.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// How long output may lag behind the end of its process: something that it left behind may hold the pipe open.
const DRAIN: Duration = Duration::from_millis(200);
/// How often a child with silent pipes is looked at.
const TICK: Duration = Duration::from_millis(20);

/// How a command ended and what it said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit status, 0 to 255; `128 + n` when signal `n` ended it, 127 when the program is missing, 126 when it cannot be
    /// executed, all as shells say it.
    pub status: i32,
    /// The first bytes of stdout.
    pub stdout: Vec<u8>,
    /// The first bytes of stderr.
    pub stderr: Vec<u8>,
    /// Bytes of both streams that did not fit and were dropped.
    pub dropped_bytes: u64,
}

impl Output {
    /// Whether it ended with status 0.
    pub fn is_success(&self) -> bool {
        self.status == 0
    }
    /// The signal that ended it, when the status says so.
    pub fn signal(&self) -> Option<i32> {
        (129..=192).contains(&self.status).then(|| self.status - 128)
    }
    /// The last 400 bytes of stderr (of stdout when stderr is empty) in one escaped line, for messages.
    pub fn last_words(&self) -> String {
        let said = if self.stderr.trim_ascii().is_empty() { &self.stdout } else { &self.stderr };
        let tail = farmgate_engine::text::escaped_tail(said.trim_ascii(), 400);
        tail.split('\n').map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
    }
    /// How it ended, in words, for instance `status 3: no such file`.
    pub fn ending(&self) -> String {
        let how = match self.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("status {}", self.status),
        };
        let words = self.last_words();
        if words.is_empty() { how } else { format!("{how}: {words}") }
    }
}

/// A command that is not running yet.
pub struct Job<'a> {
    command: Command,
    shown: String,
    deadline: Duration,
    output_bytes_max: usize,
    on_stderr: Option<&'a mut dyn FnMut(&str)>,
    on_stdout: Option<Take<'a>>,
    feed: Option<Feed<'a>>,
}

/// What stdout is handed to, piece by piece.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

impl<'a> Job<'a> {
    /// A job for `program`, found through `PATH` when it has no slash, with a deadline counted from its start.
    pub fn new(program: impl AsRef<OsStr>, deadline: Duration) -> Self {
        let program = program.as_ref();
        Self {
            command: Command::new(program),
            shown: Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned(),
            deadline,
            output_bytes_max: OUTPUT_BYTES_MAX,
            on_stderr: None,
            on_stdout: None,
            feed: None,
        }
    }
    /// Adds arguments, passed as they are: no shell is involved.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }
    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }
    /// Runs it in `folder`.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }
    /// Keeps at most this many bytes of each stream.
    #[must_use]
    pub fn keep(mut self, output_bytes_max: usize) -> Self {
        self.output_bytes_max = output_bytes_max;
        self
    }
    /// Shows every line of stderr, at most 1000 bytes of it and escaped, while the job runs.
    #[must_use]
    pub fn on_stderr(mut self, show: &'a mut dyn FnMut(&str)) -> Self {
        self.on_stderr = Some(show);
        self
    }
    /// Hands stdout to `take` piece by piece instead of keeping it; an error of `take` ends the job.
    #[must_use]
    pub fn on_stdout(mut self, take: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> Self {
        self.on_stdout = Some(take);
        self
    }
    /// Feeds stdin from `source` to its end; `progress` is told the bytes that were taken so far. A program that takes no
    /// more of them is not kept from its end.
    #[must_use]
    pub fn stdin(mut self, source: &'a mut dyn Read, progress: &'a mut dyn FnMut(u64)) -> Self {
        self.feed = Some(Feed::new(source, progress));
        self
    }

    /// Runs it to its end. A program that is missing or cannot be executed is an [`Output`] with status 127 or 126.
    ///
    /// # Errors
    /// INFRA when the deadline passed, what is fed cannot be read (the process group has been killed then) or the system
    /// gave no process; whatever the taker of stdout says.
    pub fn run(mut self) -> Result<Output> {
        let stdin = if self.feed.is_some() { Stdio::piped() } else { Stdio::null() };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        let mut child = match self.command.spawn() {
            Ok(child) => Running(child),
            Err(e) => return self.not_started(&e),
        };
        let mut streams = [Stream::default(), Stream::default()];
        streams[0].source = child.0.stdout.take().map(|s| Box::new(s) as Box<dyn Source>);
        streams[1].source = child.0.stderr.take().map(|s| Box::new(s) as Box<dyn Source>);
        for stream in &streams {
            set_nonblocking(stream.fd()).map_err(|e| self.fault("cannot read the output of", &e))?;
        }
        if let (Some(feed), Some(pipe)) = (&mut self.feed, child.0.stdin.take()) {
            set_nonblocking(pipe.as_raw_fd())
                .map_err(|e| Error::infra(format!("cannot feed `{}`: {e}", self.shown)))?;
            feed.open(pipe);
        }
        let mut ended: Option<(std::process::ExitStatus, Instant)> = None;
        loop {
            let left = self.deadline.saturating_sub(started.elapsed());
            if left.is_zero() && ended.is_none() {
                return Err(Error::infra(format!(
                    "`{}` did not end within {} ms and was killed",
                    self.shown,
                    self.deadline.as_millis()
                )));
            }
            wait_ready([streams[0].fd(), streams[1].fd()], self.feed.as_ref().map_or(-1, Feed::fd), left.min(TICK));
            if let Some(feed) = &mut self.feed {
                feed.send()?;
            }
            let [out, err] = &mut streams;
            out.drain(self.output_bytes_max, None, &mut self.on_stdout)?;
            err.drain(self.output_bytes_max, self.on_stderr.as_deref_mut(), &mut None)?;
            if ended.is_none() {
                let status = child.0.try_wait().map_err(|e| self.fault("cannot wait for", &e))?;
                ended = status.map(|s| (s, Instant::now()));
            }
            if let Some((status, at)) = ended
                && (streams.iter().all(|s| s.source.is_none()) || at.elapsed() > DRAIN)
            {
                let [out, err] = streams;
                return Ok(Output {
                    status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                    dropped_bytes: out.dropped_bytes + err.dropped_bytes,
                    stdout: out.kept,
                    stderr: err.kept,
                });
            }
        }
    }

    fn fault(&self, doing: &str, e: &std::io::Error) -> Error {
        Error::infra(format!("{doing} `{}`: {e}", self.shown))
    }

    fn not_started(&self, e: &std::io::Error) -> Result<Output> {
        let status = match (e.kind(), e.raw_os_error()) {
            (ErrorKind::NotFound, _) => 127,
            (ErrorKind::PermissionDenied, _) | (_, Some(libc::ENOEXEC | libc::EISDIR)) => 126,
            _ => return Err(self.fault("cannot start", e).hint("the machine may be short of memory or processes")),
        };
        let stderr = format!("{}: {e}", self.shown).into_bytes();
        Ok(Output { status, stderr, ..Output::default() })
    }
}

/// A child whose whole group is killed when it is dropped before its end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            if let Ok(group) = libc::pid_t::try_from(self.0.id()) {
                // SAFETY: kill touches no memory; the child has not been waited for, so its group still has this number
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            let _ = self.0.wait();
        }
    }
}

trait Source: Read + AsRawFd {}
impl<T: Read + AsRawFd> Source for T {}

#[derive(Default)]
struct Stream {
    source: Option<Box<dyn Source>>,
    kept: Vec<u8>,
    dropped_bytes: u64,
    line: Vec<u8>,
}

impl Stream {
    fn fd(&self) -> RawFd {
        self.source.as_ref().map_or(-1, |s| s.as_raw_fd())
    }

    /// Takes what is there, at most 1 MiB at a time so that a flood cannot hide the deadline.
    fn drain(
        &mut self,
        bytes_max: usize,
        mut show: Option<&mut (dyn FnMut(&str) + '_)>,
        take: &mut Option<Take<'_>>,
    ) -> Result<()> {
        let mut piece = [0u8; 1 << 14];
        for _ in 0..64 {
            let Some(source) = &mut self.source else { break };
            match source.read(&mut piece) {
                Ok(0) => self.source = None,
                Ok(n) => match take {
                    Some(take) => take(&piece[..n])?,
                    None => self.take(&piece[..n], bytes_max, show.as_deref_mut()),
                },
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.source = None,
            }
        }
        Ok(())
    }

    fn take(&mut self, piece: &[u8], bytes_max: usize, show: Option<&mut (dyn FnMut(&str) + '_)>) {
        let fits = piece.len().min(bytes_max.saturating_sub(self.kept.len()));
        self.kept.extend_from_slice(&piece[..fits]);
        self.dropped_bytes += (piece.len() - fits) as u64;
        let Some(show) = show else { return };
        for part in piece.split_inclusive(|&b| b == b'\n') {
            let room = 1000usize.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                show(&farmgate_engine::text::escaped(self.line.trim_ascii_end(), 1000));
                self.line.clear();
            }
        }
    }
}

fn set_nonblocking(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: the caller's descriptor is open; fcntl with these commands touches no memory
    let outcome = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if outcome < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until one of `from` has something to say or `to` takes something, or for `at_most`; -1 stands for none.
fn wait_ready(from: [RawFd; 2], to: RawFd, at_most: Duration) {
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let mut fds = [entry(from[0], libc::POLLIN), entry(from[1], libc::POLLIN), entry(to, libc::POLLOUT)];
    let timeout_ms = at_most.as_millis().clamp(1, 1000) as libc::c_int;
    // SAFETY: `fds` is a valid array of three entries for the whole call; a negative descriptor is ignored by poll
    unsafe { libc::poll(fds.as_mut_ptr(), 3, timeout_ms) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Job<'_> {
        Job::new("sh", Duration::from_secs(20)).args(["-c", script])
    }

    #[test]
    fn status_and_both_streams_come_back_apart() {
        let output = sh("echo out; echo err >&2; exit 3").run().unwrap();
        assert_eq!((output.status, &output.stdout[..], &output.stderr[..]), (3, &b"out\n"[..], &b"err\n"[..]));
        assert_eq!(output.ending(), "status 3: err");
    }

    #[test]
    fn a_death_by_signal_is_128_and_its_number() {
        let output = sh("kill -9 $$").run().unwrap();
        assert_eq!((output.status, output.signal()), (137, Some(9)));
    }

    #[test]
    fn a_missing_program_is_127_and_one_that_is_no_program_126() {
        let missing = Job::new("/no/such/program", Duration::from_secs(5)).run().unwrap();
        assert_eq!(missing.status, 127);
        assert_eq!(Job::new("/etc/passwd", Duration::from_secs(5)).run().unwrap().status, 126);
    }

    #[test]
    fn the_deadline_kills_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! > '{}'; wait", pid_file.display());
        let started = Instant::now();
        let error = Job::new("sh", Duration::from_millis(300)).args(["-c", &script]).run().unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(error.what().contains("did not end within 300 ms"), "{error}");
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        assert!(gone, "the grandchild is still running");
    }

    #[test]
    fn a_flood_is_cut_at_the_bound_and_counted() {
        let output = sh("head -c 3000000 /dev/zero; printf x >&2").keep(1000).run().unwrap();
        assert_eq!((output.stdout.len(), output.dropped_bytes, &output.stderr[..]), (1000, 2_999_000, &b"x"[..]));
    }

    #[test]
    fn something_left_behind_that_holds_the_pipe_does_not_hold_the_caller() {
        let started = Instant::now();
        let output = sh("sleep 5 & echo done").run().unwrap();
        assert_eq!(output.stdout, b"done\n");
        assert!(started.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn lines_of_stderr_are_shown_escaped_while_it_runs() {
        let mut lines = Vec::new();
        let mut show = |line: &str| lines.push(line.to_owned());
        sh("printf 'one\\n\\033[2Jtwo\\nrest' >&2").on_stderr(&mut show).run().unwrap();
        assert_eq!(lines, ["one", "\\u{1b}[2Jtwo"]);
    }

    #[test]
    fn what_is_fed_arrives_whole_while_output_comes_back() {
        let content: Vec<u8> = (0..3_000_001u32).map(|i| (i / 7) as u8).collect();
        let (mut back, mut seen) = (Vec::new(), Vec::new());
        let mut take = |piece: &[u8]| {
            back.extend_from_slice(piece);
            Ok(())
        };
        let mut source = &content[..];
        let mut progress = |done| seen.push(done);
        let output = sh("cat; exit 3").on_stdout(&mut take).stdin(&mut source, &mut progress).run().unwrap();
        assert_eq!((output.status, output.stdout.len(), back == content), (3, 0, true));
        assert!(seen.is_sorted() && seen.last() == Some(&3_000_001), "{:?}", seen.last());
    }

    #[test]
    fn a_program_that_takes_no_more_ends_all_the_same() {
        let output = sh("head -c 10; exit 4").stdin(&mut std::io::repeat(b'x'), &mut |_| {}).run().unwrap();
        assert_eq!((output.status, &output.stdout[..]), (4, &b"xxxxxxxxxx"[..]));
    }

    #[test]
    fn a_taker_that_refuses_ends_the_job_with_its_own_error() {
        let mut take = |_: &[u8]| Err(Error::infra("enough"));
        let started = Instant::now();
        let error = sh("echo x; sleep 60").on_stdout(&mut take).run().unwrap_err();
        assert_eq!(error.what(), "enough");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
