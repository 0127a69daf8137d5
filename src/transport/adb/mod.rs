//! A device behind adb: a phone at a cable, or an address on the network.
//!
//! The system's own client carries commands (`adb -s SERIAL shell`), which go between the same markers as over ssh: adb
//! ends with status 0 and no output when the cable is pulled, so only the last marker is believed. Files go through the
//! same shell, where size, mode and rename belong to one script, and go on where a lost link ended them. The server is
//! asked over its socket (`server`), and no call ever ends it: others may be using it.

mod client;
mod link;
mod server;

use super::shell::{
    KILL_LEFT, PART_BYTES, READ_FROM, READ_WHOLE, RECEIVE, Unwrapper, command_line, finding, random_word, receive_file,
};
use super::{Deadline, Output, Transport};
use crate::device::AdbConfig;
use crate::error::{Error, Result};
use crate::process::OUTPUT_BYTES_MAX;
use client::Client;
use link::Link;
use server::Server;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// Where adb servers listen unless told otherwise.
const SERVER_PORT: u16 = 5037;
/// Budget for killing what ran past its deadline on the device.
const KILL: Duration = Duration::from_secs(3);
/// Budget for a first answer of a device that is said to be there.
const PROVE: Duration = Duration::from_secs(4);
/// How often a push goes on after the link was lost.
const RESUMES_MAX: u32 = 10;
/// How many commands are remembered that a lost link may have left at work.
const LEFT_MAX: usize = 16;

/// Kills process group `$1`.
const KILL_GROUP: &str = r#"kill -KILL "-$1" 2>/dev/null || kill -KILL "$1""#;

/// A device behind adb, reached again when it was lost.
pub struct AdbTransport {
    link: Link,
    connect_timeout: Duration,
    /// Whether the device has answered since it was last doubted.
    is_proven: bool,
    /// Words of commands that may still be at work on the device.
    left: VecDeque<String>,
}

/// What runs remotely and how its streams are connected.
struct Talk<'a> {
    argv: &'a [&'a str],
    input: Option<Input<'a>>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

struct Input<'a> {
    source: &'a mut dyn Read,
    progress: &'a mut dyn FnMut(u64),
}

/// How one call of the client went.
struct Spoken {
    /// The word of its markers, which the remote shell has in its command line.
    word: String,
    pid: Option<u32>,
    ending: Ending,
}

enum Ending {
    /// The client ended; with the command's status if its last marker was seen.
    Ended(Output, Option<i32>),
    /// We ended it: the taker of stdout or the source of stdin failed.
    Ours(Error),
    /// The deadline passed, and the client was killed.
    Late,
}

/// Why a command has no status.
enum Failure {
    /// The client could not begin: nothing has happened on the device.
    NotBegun(Error),
    /// The link was lost or hangs.
    Lost(Error),
    /// Anything else.
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotBegun(error) | Failure::Lost(error) | Failure::Other(error) => error,
        }
    }
}

impl AdbTransport {
    /// Finds client, server and device, within the budget of `config`.
    ///
    /// # Errors
    /// INFRA with its own message and hint for: no client, no server, a server of another version or that hangs, a device
    /// that is absent, unauthorized, offline, silent, in another state, too old, or there more than once.
    pub fn connect(config: &AdbConfig) -> Result<Self> {
        let from_environment =
            || std::env::var("ANDROID_ADB_SERVER_PORT").ok().and_then(|port| port.trim().parse().ok());
        let port = config.server_port.or_else(from_environment).unwrap_or(SERVER_PORT);
        let client = Client::find(&config.program, port)?;
        let mut transport = Self {
            link: Link { client, server: Server::at(port), serial: config.serial.clone() },
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            is_proven: false,
            left: VecDeque::new(),
        };
        transport.open(&Deadline::after(transport.connect_timeout))?;
        Ok(transport)
    }

    /// Makes sure of the server, and of the device unless it has answered before.
    fn open(&mut self, deadline: &Deadline) -> Result<()> {
        let budget = deadline.left().unwrap_or_default().min(self.connect_timeout);
        let deadline = Deadline::after(budget);
        // looked at each time, for a server of another version can take the port at any time
        self.link.reach_server(&deadline)?;
        if self.is_proven {
            // there may not have been time for it when the device was reached anew
            self.kill_left(&deadline);
            return Ok(());
        }
        let link = &self.link;
        link.reach_device(&deadline, &mut |deadline| self.answers(&["true"], deadline, PROVE))?;
        let features = link.server.told(link.server.features(&link.serial, &deadline))?;
        if !features.iter().any(|feature| feature == "shell_v2") {
            return Err(Error::infra(format!(
                "device `{}` is too old: its shell mixes stdout with stderr",
                link.serial
            ))
            .hint("Android 7 is the oldest that works"));
        }
        self.is_proven = true;
        self.kill_left(&deadline);
        Ok(())
    }

    /// Runs a command to its end, after reaching the device anew where that is needed. Stdout goes to the sink; the output
    /// holds status and stderr. A command that could not begin is tried once more.
    fn converse(
        &mut self,
        argv: &[&str],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
        deadline: &Deadline,
    ) -> Result<Output> {
        let was_proven = self.is_proven;
        self.open(deadline)?;
        match self.attempt(Talk { argv, input: None, sink: &mut *sink }, deadline) {
            Err(Failure::NotBegun(_)) if was_proven => {
                self.open(deadline)?;
                Ok(self.attempt(Talk { argv, input: None, sink }, deadline)?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Runs a command once, and sees to it that nothing of it is left at work.
    fn attempt(&mut self, talk: Talk<'_>, deadline: &Deadline) -> std::result::Result<Output, Failure> {
        let doing = format!("running `{}`", farmgate_engine::text::escaped(talk.argv[0].as_bytes(), 100));
        let Spoken { word, pid, ending } = self.speak(talk, deadline).map_err(Failure::Other)?;
        match ending {
            Ending::Ended(output, Some(status)) => Ok(Output { status, ..output }),
            Ending::Ended(output, None) => Err(self.lost(&doing, &output, pid.is_some(), word)),
            Ending::Ours(error) => {
                self.kill(pid, word);
                Err(Failure::Other(error))
            }
            Ending::Late => {
                let error = deadline.passed(&format!("{doing} at {}", self.link.describe()));
                Err(match self.kill(pid, word) {
                    true => Failure::Other(error.hint("it was killed on the device")),
                    false => Failure::Lost(error.hint("the device or the link may hang")),
                })
            }
        }
    }

    /// One call of the client.
    fn speak(&self, talk: Talk<'_>, deadline: &Deadline) -> Result<Spoken> {
        let word = random_word();
        let line = command_line(&word, talk.argv)?;
        let mut unwrapper = Unwrapper::new(&word);
        let mut take = |piece: &[u8]| unwrapper.feed(piece, talk.sink);
        let budget = deadline.left().unwrap_or_default();
        let mut job = self.link.client.shell(&self.link.serial, &line, budget).on_stdout(&mut take);
        if let Some(input) = talk.input {
            job = job.stdin(input.source, input.progress);
        }
        let outcome = job.run();
        let pid = unwrapper.pid();
        let ending = match outcome {
            Ok(output) => {
                let status = unwrapper.finish(talk.sink)?;
                Ending::Ended(output, status)
            }
            Err(_) if deadline.left().is_none() => Ending::Late,
            Err(error) => Ending::Ours(error),
        };
        Ok(Spoken { word, pid, ending })
    }

    /// Whether a short command of our own comes to its end within `budget`.
    fn answers(&self, argv: &[&str], deadline: &Deadline, budget: Duration) -> bool {
        let budget = deadline.left().unwrap_or_default().min(budget);
        let talk = Talk { argv, input: None, sink: &mut |_| Ok(()) };
        self.speak(talk, &Deadline::after(budget)).is_ok_and(|s| matches!(s.ending, Ending::Ended(_, Some(_))))
    }

    /// The error of a client that ended, with whatever status, without the last marker.
    fn lost(&mut self, doing: &str, output: &Output, has_begun: bool, word: String) -> Failure {
        self.is_proven = false;
        let (name, ending) = (self.link.describe(), output.ending());
        let error = Error::infra(format!(
            "the link to {name} was lost while {doing}: adb ended with {ending}, and the command's own end was not seen"
        ))
        .hint("check power, cable and network of the device");
        if !has_begun && is_refusal(&output.stderr) {
            return Failure::NotBegun(error);
        }
        self.remember(word);
        Failure::Lost(error)
    }

    fn remember(&mut self, word: String) {
        if self.left.len() == LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back(word);
    }

    /// Kills a remote process group; `false` when that could not be done, and the device is doubted then.
    fn kill(&mut self, pid: Option<u32>, word: String) -> bool {
        let killed = pid.is_some_and(|pid| {
            // the number comes from the device, but as a number it is no shell word
            let argv = ["sh", "-c", KILL_GROUP, "sh", &pid.to_string()];
            self.answers(&argv, &Deadline::after(KILL), KILL)
        });
        if !killed {
            self.is_proven = false;
            self.remember(word);
        }
        killed
    }

    /// Kills what lost links have left at work on the device.
    fn kill_left(&mut self, deadline: &Deadline) {
        while let Some(word) = self.left.pop_front() {
            if !self.answers(&["sh", "-c", KILL_LEFT, "sh", &finding(&word)], deadline, KILL) {
                self.left.push_front(word);
                return;
            }
        }
    }

    /// Sends what of a file is not there yet.
    fn send(
        &mut self,
        source: &mut File,
        place: &Place<'_>,
        there_bytes: u64,
        progress: &mut dyn FnMut(u64),
        deadline: &Deadline,
    ) -> std::result::Result<Output, Failure> {
        let fault = |e: std::io::Error| Failure::Other(Error::infra(format!("cannot read the file to push: {e}")));
        source.seek(SeekFrom::Start(there_bytes)).map_err(fault)?;
        let (size, there) = (place.bytes.to_string(), there_bytes.to_string());
        let argv = ["sh", "-c", RECEIVE, "sh", &place.part, &size, &place.mode, place.remote, &there];
        let mut progress = |done| progress(there_bytes + done);
        let input = Input { source, progress: &mut progress };
        self.attempt(Talk { argv: &argv, input: Some(input), sink: &mut |_| Ok(()) }, deadline)
    }

    /// Pushes a file of which `there_bytes` are there already, across losses of the link.
    fn send_whole(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        there_bytes: u64,
        deadline: &Deadline,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let fault = |e: std::io::Error| Error::io("cannot read the file to push", local, &e);
        let mut source = File::open(local).map_err(fault)?;
        let bytes = source.metadata().map_err(fault)?.len();
        let place = Place { remote, part: format!("{remote}.part"), bytes, mode: format!("{mode:o}") };
        self.open(deadline)?;
        let mut resumes = 0;
        let mut there_bytes = if there_bytes > bytes { 0 } else { there_bytes };
        loop {
            match self.send(&mut source, &place, there_bytes, progress, deadline) {
                Ok(output) if output.is_success() => return Ok(()),
                Ok(output) => return Err(self.cannot("write", remote, &output.ending())),
                Err(Failure::Lost(_) | Failure::NotBegun(_)) if resumes < RESUMES_MAX && deadline.left().is_some() => {
                    resumes += 1;
                    // reaching the device anew ends what the lost link has left there, so this size stands
                    there_bytes = self.size_of(&place.part, deadline)?.min(bytes);
                    log::info!("{}: pushing goes on at byte {there_bytes} of {bytes}", self.describe());
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Bytes of a file on the device, 0 when it is missing.
    fn size_of(&mut self, remote: &str, deadline: &Deadline) -> Result<u64> {
        let mut said = Vec::new();
        let mut sink = |piece: &[u8]| {
            said.extend_from_slice(&piece[..piece.len().min(32 - said.len().min(32))]);
            Ok(())
        };
        self.converse(&["sh", "-c", PART_BYTES, "sh", remote], &mut sink, deadline)?;
        Ok(String::from_utf8_lossy(&said).trim().parse().unwrap_or(0))
    }

    fn cannot(&self, what: &str, remote: &str, why: &str) -> Error {
        let remote = farmgate_engine::text::escaped(remote.as_bytes(), 300);
        Error::infra(format!("cannot {what} {remote} at {}: {why}", self.link.describe()))
    }
}

/// Where a pushed file goes.
struct Place<'a> {
    remote: &'a str,
    part: String,
    bytes: u64,
    mode: String,
}

/// Whether these are the client's own words for a command that it could not begin.
fn is_refusal(stderr: &[u8]) -> bool {
    ["error: device ", "adb: device ", "error: no devices", "adb: no devices"]
        .iter()
        .any(|words| stderr.trim_ascii_start().starts_with(words.as_bytes()))
}

impl Transport for AdbTransport {
    fn describe(&self) -> String {
        self.link.describe()
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
        let mut output = self.converse(argv, &mut sink, &Deadline::after(deadline))?;
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
        let there_bytes = self.size_of(&format!("{remote}.part"), &deadline)?;
        self.send_whole(local, remote, mode, there_bytes, &deadline, progress)
    }

    fn pull(&mut self, remote: &str, local: &Path, bytes_max: u64, deadline: Duration) -> Result<u64> {
        let deadline = Deadline::after(deadline);
        receive_file(local, bytes_max, &mut |sink| {
            let output = self.converse(&["sh", "-c", READ_WHOLE, "sh", remote], sink, &deadline)?;
            if output.is_success() { Ok(()) } else { Err(self.cannot("read", remote, &output.ending())) }
        })
    }

    fn read_from(&mut self, remote: &str, offset_bytes: u64, bytes_max: usize, deadline: Duration) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut sink = |piece: &[u8]| {
            bytes.extend_from_slice(&piece[..piece.len().min(bytes_max - bytes.len())]);
            Ok(())
        };
        let (from, most) = ((offset_bytes + 1).to_string(), bytes_max.to_string());
        let argv = ["sh", "-c", READ_FROM, "sh", remote, &from, &most];
        let output = self.converse(&argv, &mut sink, &Deadline::after(deadline))?;
        if output.is_success() { Ok(bytes) } else { Err(self.cannot("read", remote, &output.ending())) }
    }
}
