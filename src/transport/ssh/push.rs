//! A file through the stdin of a remote command, across losses of the link.

use super::link::Link;
use super::{Failure, PIECE_BYTES, SshTransport, Talk};
use crate::error::{Error, Result};
use crate::transport::Deadline;
use crate::transport::shell::{KILL_LEFT, PART_BYTES, RECEIVE, finding};
use ssh2::Channel;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// How often a push goes on after the link was lost.
const RESUMES_MAX: u32 = 20;
/// Longest pause before a lost link is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// The file that goes to a command's stdin.
pub(super) struct Input<'a> {
    source: &'a mut dyn Read,
    progress: &'a mut dyn FnMut(u64),
    piece: Vec<u8>,
    at: usize,
    done_bytes: u64,
    pub(super) ended: bool,
}

impl SshTransport {
    /// Pushes a file of which `there_bytes` are there already, across losses of the link.
    pub(super) fn send_whole(
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
        let (part, size, mode) = (format!("{remote}.part"), bytes.to_string(), format!("{mode:o}"));
        let mut there_bytes = if there_bytes > bytes { 0 } else { there_bytes };
        let mut resumes = 0;
        loop {
            source.seek(SeekFrom::Start(there_bytes)).map_err(fault)?;
            let there = there_bytes.to_string();
            let argv = ["sh", "-c", RECEIVE, "sh", &part, &size, &mode, remote, &there];
            let (piece, done_bytes) = (Vec::new(), there_bytes);
            let input = Input { source: &mut source, progress, piece, at: 0, done_bytes, ended: false };
            match self.converse(Talk { argv: &argv, input: Some(input), sink: &mut |_| Ok(()) }, deadline) {
                Ok(output) if output.is_success() => return Ok(()),
                Ok(output) => return Err(self.cannot("write", remote, &output.ending())),
                // the link was given up, or else it is no matter of the link
                Err(error) if self.link.is_some() || deadline.left().is_none() => return Err(error),
                Err(error) => there_bytes = self.back_at(&part, &mut resumes, deadline).map_err(|_| error)?.min(bytes),
            }
            log::info!("{}: pushing goes on at byte {there_bytes} of {bytes}", self.target.describe());
        }
    }

    /// Reaches the device anew, and gives the bytes of a file that are there.
    fn back_at(&mut self, part: &str, resumes: &mut u32, deadline: &Deadline) -> Result<u64> {
        loop {
            *resumes += 1;
            match self.part_bytes(part, deadline) {
                Ok(bytes) => return Ok(bytes),
                Err(error) if *resumes >= RESUMES_MAX || deadline.left().is_none() => return Err(error),
                Err(_) => {
                    let pause = PAUSE_MAX.min(Duration::from_millis(250) * (1 << (*resumes).min(6)));
                    std::thread::sleep(pause.min(deadline.left().unwrap_or_default()));
                }
            }
        }
    }

    /// Bytes of a file on the device, 0 when it is missing; a push that a lost link has left at work is ended before.
    pub(super) fn part_bytes(&mut self, part: &str, deadline: &Deadline) -> Result<u64> {
        if let Some(word) = &self.left {
            let pattern = finding(word);
            let argv = ["sh", "-c", KILL_LEFT, "sh", &pattern];
            self.converse(Talk { argv: &argv, input: None, sink: &mut |_| Ok(()) }, deadline)?;
            self.left = None;
        }
        let mut said = Vec::new();
        let mut sink = |piece: &[u8]| {
            said.extend_from_slice(&piece[..piece.len().min(32 - said.len().min(32))]);
            Ok(())
        };
        let argv = ["sh", "-c", PART_BYTES, "sh", part];
        self.converse(Talk { argv: &argv, input: None, sink: &mut sink }, deadline)?;
        Ok(String::from_utf8_lossy(&said).trim().parse().unwrap_or(0))
    }
}

impl Input<'_> {
    /// Sends what the channel takes now; `true` when something moved.
    pub(super) fn send(&mut self, link: &Link, channel: &mut Channel) -> std::result::Result<bool, Failure> {
        if self.at == self.piece.len() && !self.ended {
            self.piece.resize(PIECE_BYTES, 0);
            let read = self.source.read(&mut self.piece);
            let n = read.map_err(|e| Error::infra(format!("cannot read the file to push: {e}")))?;
            self.piece.truncate(n);
            self.at = 0;
            self.ended = n == 0;
        }
        if self.ended {
            return Ok(false);
        }
        match channel.write(&self.piece[self.at..]) {
            Ok(n) => {
                self.at += n;
                self.done_bytes += n as u64;
                (self.progress)(self.done_bytes);
                Ok(n > 0)
            }
            // the far side has ended: it will say why
            Err(_) if channel.eof() => {
                self.ended = true;
                Ok(false)
            }
            outcome => Ok(link.attempt(outcome)?.is_some()),
        }
    }
}
