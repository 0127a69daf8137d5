//! A device behind an ssh server.
//!
//! Files go through the shell (`cat`), not through sftp: that is one way for servers with and without sftp, and the
//! size check, mode and rename belong to the same remote script, so a link that ends in the middle cannot leave a
//! half file in place. Reading a journal that grows uses sftp where there is one, as it starts no process on the device
//! that is being measured.

mod auth;
mod host_key;
mod link;
mod push;
mod target;

pub use target::Surroundings;

use super::shell::{READ_FROM, READ_WHOLE, Unwrapper, command_line, random_word, receive_file};
use super::{Deadline, Output, Transport};
use crate::device::SshConfig;
use crate::error::{Error, Result};
use crate::process::OUTPUT_BYTES_MAX;
use link::{Fault, Link};
use push::Input;
use ssh2::{Channel, Sftp};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;
use target::Target;

/// Budget for killing what ran past its deadline on the device.
const KILL: Duration = Duration::from_secs(3);
/// Budget for closing a channel in good order; then it is left to the server.
const CLOSE: Duration = Duration::from_secs(1);
/// Budget for finding out whether the server has sftp.
const SFTP_OPEN: Duration = Duration::from_secs(5);
/// Bytes handed to libssh2 at once.
const PIECE_BYTES: usize = 256 << 10;

/// An ssh connection to a device, made again when it was lost.
pub struct SshTransport {
    target: Target,
    link: Option<Link>,
    sftp: SftpState,
    /// Word of a push that a lost link may have left at work.
    left: Option<String>,
}

enum SftpState {
    NotAsked,
    Absent,
    Open(Sftp),
}

/// What runs remotely and how its streams are connected.
struct Talk<'a> {
    argv: &'a [&'a str],
    input: Option<Input<'a>>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl SshTransport {
    /// Connects and logs in, within the budget of `config`.
    ///
    /// # Errors
    /// INFRA with its own message and hint for: unknown name, refused, unreachable, no answer, no ssh server, unknown
    /// host key, changed host key, no accepted key. Usage for a faulty ssh configuration or a proxy in it.
    pub fn connect(config: &SshConfig, around: &Surroundings) -> Result<Self> {
        let target = Target::resolve(config, around)?;
        let mut transport = Self { target, link: None, sftp: SftpState::NotAsked, left: None };
        let budget = transport.target.connect_timeout;
        transport.open(&Deadline::after(budget))?;
        Ok(transport)
    }

    fn open(&mut self, deadline: &Deadline) -> Result<()> {
        if self.link.is_none() {
            let budget = deadline.left().unwrap_or_default().min(self.target.connect_timeout);
            self.link = Some(Link::connect(&self.target, &Deadline::after(budget))?);
        }
        Ok(())
    }

    fn give_up(&mut self) {
        if let Some(link) = &self.link {
            link.cut();
        }
        self.sftp = SftpState::NotAsked;
        self.link = None;
    }

    /// Turns a fault into an error; a link that is lost or hangs is given up, and made anew by the next call.
    fn failed(&mut self, doing: &str, deadline: &Deadline, fault: Fault) -> Error {
        let name = self.target.describe();
        match fault {
            Fault::Refused(e) => Error::infra(format!("{doing} at {name} was refused: {e}")),
            Fault::Lost(what) => {
                self.give_up();
                Error::infra(format!("the connection to {name} was lost while {doing}: {what}"))
                    .hint("check power and network of the device")
            }
            Fault::Deadline => {
                self.give_up();
                deadline.passed(&format!("{doing} at {name}")).hint("the device or the link may hang")
            }
        }
    }

    /// A channel on the connection. One that has silently died since the last call is made again once.
    fn channel(&mut self, doing: &str, deadline: &Deadline) -> Result<Channel> {
        let was_open = self.link.is_some();
        self.open(deadline)?;
        let opened = self.on_link(deadline, |s| s.channel_session());
        match opened {
            Ok(channel) => Ok(channel),
            Err(Fault::Lost(_)) if was_open => {
                self.give_up();
                self.open(deadline)?;
                self.on_link(deadline, |s| s.channel_session()).map_err(|f| self.failed(doing, deadline, f))
            }
            Err(fault) => Err(self.failed(doing, deadline, fault)),
        }
    }

    fn on_link<T>(
        &self,
        deadline: &Deadline,
        mut call: impl FnMut(&ssh2::Session) -> std::result::Result<T, ssh2::Error>,
    ) -> std::result::Result<T, Fault> {
        let link = self.link.as_ref().ok_or_else(|| Fault::Lost("not connected".to_owned()))?;
        link.drive(deadline, || call(link.session()))
    }

    /// Runs a command to its end. Stdout goes to the sink of `talk`; the output holds status and stderr.
    fn converse(&mut self, mut talk: Talk<'_>, deadline: &Deadline) -> Result<Output> {
        let word = random_word();
        let line = command_line(&word, talk.argv)?;
        let doing = format!("running `{}`", farmgate_engine::text::escaped(talk.argv[0].as_bytes(), 100));
        let mut channel = self.channel(&doing, deadline)?;
        let is_push = talk.input.is_some();
        let mut unwrapper = Unwrapper::new(&word);
        let mut output = Output::default();
        let spoken = self.speak(&mut channel, &line, &mut talk, &mut unwrapper, &mut output, deadline);
        if let Err(failure) = spoken {
            let pid = unwrapper.pid();
            let error = match failure {
                Failure::Ours(error) => {
                    self.kill(channel, pid);
                    return Err(error);
                }
                Failure::Link(Fault::Deadline) => match self.kill(channel, pid) {
                    true => deadline.passed(&doing).hint("it was killed on the device"),
                    false => self.failed(&doing, deadline, Fault::Deadline),
                },
                Failure::Link(fault) => self.failed(&doing, deadline, fault),
            };
            if self.link.is_none() && is_push {
                self.left = Some(word);
            }
            return Err(error);
        }
        let status = unwrapper.finish(talk.sink)?;
        let ending = channel.exit_status().unwrap_or(-1);
        let signal = channel.exit_signal().ok().and_then(|s| s.exit_signal);
        self.close(&mut channel);
        match status {
            Some(status) => Ok(Output { status, ..output }),
            None => {
                let how = signal.map_or(format!("status {ending}"), |s| format!("signal {}", s.escape_debug()));
                let words = output.last_words();
                Err(Error::infra(format!(
                    "{doing} at {} ended without an answer ({how}){}{words}",
                    self.target.describe(),
                    if words.is_empty() { "" } else { ": " }
                ))
                .hint("the account may have no POSIX shell, or something ended its processes"))
            }
        }
    }

    fn speak(
        &self,
        channel: &mut Channel,
        line: &str,
        talk: &mut Talk<'_>,
        unwrapper: &mut Unwrapper,
        output: &mut Output,
        deadline: &Deadline,
    ) -> std::result::Result<(), Failure> {
        let link = self.link.as_ref().ok_or_else(|| Fault::Lost("not connected".to_owned()))?;
        link.drive(deadline, || channel.exec(line))?;
        if talk.input.is_none() {
            link.drive(deadline, || channel.send_eof())?;
        }
        let mut piece = vec![0u8; 1 << 15];
        loop {
            let mut moved = false;
            if let Some(input) = &mut talk.input {
                moved |= input.send(link, channel)?;
                // nothing else may be sent before what is stuck, and reading may send window updates
                if !moved && link.is_sending() {
                    link.wait(deadline)?;
                    continue;
                }
                if input.ended {
                    link.drive(deadline, || channel.send_eof())?;
                    talk.input = None;
                }
            }
            if let Some(n @ 1..) = link.attempt(channel.read(&mut piece))? {
                unwrapper.feed(&piece[..n], &mut |bytes| (talk.sink)(bytes).map_err(Failure::Ours))?;
                moved = true;
            }
            if let Some(n @ 1..) = link.attempt(channel.stderr().read(&mut piece))? {
                let fits = n.min(OUTPUT_BYTES_MAX.saturating_sub(output.stderr.len()));
                output.stderr.extend_from_slice(&piece[..fits]);
                output.dropped_bytes += (n - fits) as u64;
                moved = true;
            }
            if channel.eof() {
                return Ok(());
            }
            // a flood of output must not hide the deadline
            if deadline.left().is_none() {
                return Err(Failure::Link(Fault::Deadline));
            }
            // what came in while stderr was read lies in libssh2 already, and the socket will not announce it again
            if !moved && channel.read_window().available == 0 {
                link.wait(deadline)?;
            }
        }
    }

    fn close(&self, channel: &mut Channel) {
        let deadline = Deadline::after(CLOSE);
        let closed = self.on_link(&deadline, |_| channel.close());
        if closed.is_ok() {
            let _ = self.on_link(&deadline, |_| channel.wait_close());
        }
    }

    /// Kills a remote process group; `false` when that could not be done, and the link is given up then.
    fn kill(&mut self, mut channel: Channel, pid: Option<u32>) -> bool {
        let deadline = Deadline::after(KILL);
        let killed = pid.is_some_and(|pid| {
            // the numbers come from the device, but as numbers they are no shell words
            let line = format!("kill -KILL -{pid} 2>/dev/null || kill -KILL {pid}");
            let run = |mut other: Channel| {
                self.on_link(&deadline, |_| other.exec(&line))?;
                self.on_link(&deadline, |_| other.send_eof())?;
                self.on_link(&deadline, |_| other.wait_eof())?;
                self.close(&mut other);
                Ok::<(), Fault>(())
            };
            self.on_link(&deadline, |s| s.channel_session()).and_then(run).is_ok()
        });
        if killed {
            self.close(&mut channel);
        } else {
            self.give_up();
        }
        killed
    }

    /// Opens sftp when the server has it; `false` when it has not.
    fn open_sftp(&mut self, deadline: &Deadline) -> Result<bool> {
        self.open(deadline)?;
        if let SftpState::NotAsked = self.sftp {
            let budget = deadline.left().unwrap_or_default().min(SFTP_OPEN);
            self.sftp = match self.on_link(&Deadline::after(budget), |s| s.sftp()) {
                Ok(sftp) => SftpState::Open(sftp),
                Err(Fault::Refused(e)) => {
                    log::debug!("{} has no sftp: {e}", self.target.describe());
                    SftpState::Absent
                }
                Err(fault) => return Err(self.failed("opening sftp", deadline, fault)),
            };
        }
        Ok(matches!(self.sftp, SftpState::Open(_)))
    }

    fn read_by_sftp(
        &self,
        remote: &str,
        offset_bytes: u64,
        bytes_max: usize,
        deadline: &Deadline,
    ) -> std::result::Result<Vec<u8>, Fault> {
        let SftpState::Open(sftp) = &self.sftp else { return Err(Fault::Lost("no sftp".to_owned())) };
        let link = self.link.as_ref().ok_or_else(|| Fault::Lost("not connected".to_owned()))?;
        let mut file = link.drive(deadline, || sftp.open(Path::new(remote)))?;
        link.attempt(file.seek(SeekFrom::Start(offset_bytes)))?;
        let mut bytes = Vec::new();
        let mut piece = vec![0u8; bytes_max.min(PIECE_BYTES)];
        while bytes.len() < bytes_max {
            let room = piece.len().min(bytes_max - bytes.len());
            match link.attempt(file.read(&mut piece[..room])) {
                Ok(Some(0)) => break,
                Ok(Some(n)) => bytes.extend_from_slice(&piece[..n]),
                Ok(None) => {
                    if let Err(fault) = link.wait(deadline) {
                        // closing the file would wait for the other side
                        link.cut();
                        return Err(fault);
                    }
                }
                Err(fault) => {
                    link.cut();
                    return Err(fault);
                }
            }
        }
        let _ = link.drive(deadline, || file.close());
        Ok(bytes)
    }

    fn read_by_shell(
        &mut self,
        remote: &str,
        offset_bytes: u64,
        bytes_max: usize,
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut sink = |piece: &[u8]| {
            bytes.extend_from_slice(&piece[..piece.len().min(bytes_max - bytes.len())]);
            Ok(())
        };
        let (from, most) = ((offset_bytes + 1).to_string(), bytes_max.to_string());
        let argv = ["sh", "-c", READ_FROM, "sh", remote, &from, &most];
        let output = self.converse(Talk { argv: &argv, input: None, sink: &mut sink }, deadline)?;
        if output.is_success() { Ok(bytes) } else { Err(self.cannot("read", remote, &output.ending())) }
    }

    fn cannot(&self, what: &str, remote: &str, why: &str) -> Error {
        let remote = farmgate_engine::text::escaped(remote.as_bytes(), 300);
        Error::infra(format!("cannot {what} {remote} at {}: {why}", self.target.describe()))
    }
}

enum Failure {
    Link(Fault),
    Ours(Error),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Link(fault)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Transport for SshTransport {
    fn describe(&self) -> String {
        self.target.describe()
    }

    fn exec(&mut self, argv: &[&str], deadline: Duration) -> Result<Output> {
        let mut stdout = Vec::new();
        let mut dropped_bytes = 0;
        let mut sink = |piece: &[u8]| {
            let fits = piece.len().min(OUTPUT_BYTES_MAX - stdout.len());
            stdout.extend_from_slice(&piece[..fits]);
            dropped_bytes += (piece.len() - fits) as u64;
            Ok(())
        };
        let talk = Talk { argv, input: None, sink: &mut sink };
        let mut output = self.converse(talk, &Deadline::after(deadline))?;
        output.dropped_bytes += dropped_bytes;
        output.stdout = stdout;
        Ok(output)
    }

    fn push(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.send_whole(local, remote, mode, 0, &Deadline::after(deadline), progress)
    }

    fn push_on(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let deadline = Deadline::after(deadline);
        let there_bytes = self.part_bytes(&format!("{remote}.part"), &deadline)?;
        self.send_whole(local, remote, mode, there_bytes, &deadline, progress)
    }

    fn pull(&mut self, remote: &str, local: &Path, bytes_max: u64, deadline: Duration) -> Result<u64> {
        let deadline = Deadline::after(deadline);
        receive_file(local, bytes_max, &mut |sink| {
            let argv = ["sh", "-c", READ_WHOLE, "sh", remote];
            let output = self.converse(Talk { argv: &argv, input: None, sink }, &deadline)?;
            if output.is_success() { Ok(()) } else { Err(self.cannot("read", remote, &output.ending())) }
        })
    }

    fn read_from(&mut self, remote: &str, offset_bytes: u64, bytes_max: usize, deadline: Duration) -> Result<Vec<u8>> {
        let deadline = Deadline::after(deadline);
        if !self.open_sftp(&deadline)? {
            return self.read_by_shell(remote, offset_bytes, bytes_max, &deadline);
        }
        match self.read_by_sftp(remote, offset_bytes, bytes_max, &deadline) {
            Ok(bytes) => Ok(bytes),
            Err(Fault::Refused(e)) => Err(self.cannot("read", remote, e.message())),
            Err(fault) => Err(self.failed("reading a file", &deadline, fault)),
        }
    }
}
