//! What a command is fed on stdin, as fast as it takes it.

use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ChildStdin;

/// Bytes that are read from the source at once: what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

/// A source and the pipe that it goes into.
pub(super) struct Feed<'a> {
    source: &'a mut dyn Read,
    progress: &'a mut dyn FnMut(u64),
    pipe: Option<ChildStdin>,
    piece: Vec<u8>,
    at: usize,
    done_bytes: u64,
}

impl<'a> Feed<'a> {
    /// A feed that has no pipe yet.
    pub(super) fn new(source: &'a mut dyn Read, progress: &'a mut dyn FnMut(u64)) -> Self {
        Self { source, progress, pipe: None, piece: Vec::new(), at: 0, done_bytes: 0 }
    }

    /// Begins; the pipe must not block.
    pub(super) fn open(&mut self, pipe: ChildStdin) {
        self.pipe = Some(pipe);
    }

    /// The pipe as long as it is open, else -1.
    pub(super) fn fd(&self) -> RawFd {
        self.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Writes what the pipe takes now, at most 1 MiB so that a fast reader cannot hide the deadline; closes it at the end
    /// of the source, and when nobody reads any more.
    ///
    /// # Errors
    /// INFRA when the source cannot be read.
    pub(super) fn send(&mut self) -> Result<()> {
        for _ in 0..16 {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            if self.at == self.piece.len() {
                self.piece.resize(PIECE_BYTES, 0);
                let read = self.source.read(&mut self.piece);
                let n = read.map_err(|e| Error::infra(format!("cannot read what is to be sent: {e}")))?;
                self.piece.truncate(n);
                self.at = 0;
                if n == 0 {
                    self.pipe = None;
                    return Ok(());
                }
            }
            match pipe.write(&self.piece[self.at..]) {
                Ok(n) => {
                    self.at += n;
                    self.done_bytes += n as u64;
                    (self.progress)(self.done_bytes);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // the program has closed its end: its status will say why
                Err(_) => self.pipe = None,
            }
        }
        Ok(())
    }
}
