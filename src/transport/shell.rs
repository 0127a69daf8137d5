//! What is said to a POSIX shell on the far side of a link, and what comes back.
//!
//! Arguments are quoted one by one, so nothing in them is ever read as shell. The command runs between two markers that
//! carry a random word: the first gives its process group, so that it can be killed there; the last gives its exit
//! status, so that a link which ends early can never look like success. Whatever login scripts print comes before the
//! first marker and is dropped.

use crate::error::{Error, Result};
use farmgate_engine::protocol::CALL_MARK;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::Path;

/// Reads `$3` bytes of `$1` from byte `$2` (counted from 1).
pub(super) const READ_FROM: &str = r#"if [ ! -e "$1" ]; then echo "no such file" >&2; exit 1; fi
tail -c "+$2" < "$1" | head -c "$3""#;

/// Reads all of `$1`.
pub(super) const READ_WHOLE: &str = r#"cat < "$1""#;

/// Receives a file on stdin, or the rest of one: `$1` temporary name, `$2` size, `$3` mode, `$4` name, `$5` bytes that are
/// there already. What came is kept when it is too short, so that the rest can follow.
pub(super) const RECEIVE: &str = r#"umask 077
[ "$5" -gt 0 ] || rm -f -- "$1"
if cat >> "$1" && n=$(wc -c < "$1"); then
  if [ "$n" -lt "$2" ]; then echo "got $n bytes of $2" >&2; exit 1; fi
  if [ "$n" -gt "$2" ]; then echo "got $n bytes of $2" >&2; false; fi &&
    chmod "$3" "$1" && mv -f -- "$1" "$4" && exit 0
fi
rm -f -- "$1"
exit 1"#;

/// Kills the processes that have what the pattern `$1` finds in their command line or, inherited from a command that was
/// begun with it, in their environment; with each its process group. See [`finding`].
pub(super) const KILL_LEFT: &str = r#"for f in $(grep -l -- "$1" /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null); do
  p=${f#/proc/}; p=${p%/*}; { kill -KILL "-$p"; kill -KILL "$p"; } 2>/dev/null
done
exit 0"#;

/// Prints the bytes of `$1`, 0 when it is missing.
pub(super) const PART_BYTES: &str = r#"wc -c < "$1" 2>/dev/null || echo 0"#;

/// The longest command line, in bytes; the kernel takes 128 KiB in one argument.
const COMMAND_BYTES_MAX: usize = 100 << 10;
/// Most bytes that login scripts may print before they are thrown away unseen.
const NOISE_BYTES_MAX: usize = 64 << 10;
/// Bytes held back until the end of the stream, as they may be the last marker.
const HELD_BYTES: usize = 64;

/// `word` quoted for a POSIX shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A word that no output holds by chance: 16 hex digits.
pub fn random_word() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// A pattern that finds `word`, but not itself: neither the script that is given it nor its grep has the word in its own
/// command line.
pub(super) fn finding(word: &str) -> String {
    let (head, last) = word.split_at(word.len().saturating_sub(1));
    format!("{head}[{last}]")
}

/// `argv` as one command line with markers of `word` around its output.
///
/// # Errors
/// A bug when an argument holds a NUL byte or all of them are too long: neither can be passed to any program.
pub fn command_line(word: &str, argv: &[&str]) -> Result<String> {
    let script =
        format!("export {CALL_MARK}={word}; echo farmgate-{word}-pid $$; \"$@\"; echo farmgate-{word}-status $?");
    let mut line = format!("exec sh -c {} sh", quoted(&script));
    for argument in argv {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    if argv.is_empty() || line.contains('\0') {
        return Err(Error::bug("a remote command is empty or holds a NUL byte"));
    }
    if line.len() > COMMAND_BYTES_MAX {
        return Err(Error::bug(format!("a remote command of {} bytes; at most {COMMAND_BYTES_MAX}", line.len())));
    }
    Ok(line)
}

/// Takes the markers out of a command's stdout, piece by piece, holding only a few bytes.
#[derive(Debug)]
pub struct Unwrapper {
    pid_mark: Vec<u8>,
    status_mark: Vec<u8>,
    pid: Option<u32>,
    held: Vec<u8>,
    noise_bytes: usize,
}

impl Unwrapper {
    /// For a command line made with the same `word`.
    pub fn new(word: &str) -> Self {
        Self {
            pid_mark: format!("farmgate-{word}-pid ").into_bytes(),
            status_mark: format!("farmgate-{word}-status ").into_bytes(),
            pid: None,
            held: Vec::new(),
            noise_bytes: 0,
        }
    }

    /// The remote process group, once it has been said.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Takes the next bytes of the stream and hands on those that the command itself wrote.
    ///
    /// # Errors
    /// INFRA when login scripts print without end.
    pub fn feed<E: From<Error>>(
        &mut self,
        piece: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.held.extend_from_slice(piece);
        if self.pid.is_none() && !self.find_start()? {
            return Ok(());
        }
        let surplus = self.held.len().saturating_sub(HELD_BYTES);
        if surplus > 0 {
            sink(&self.held[..surplus])?;
            self.held.drain(..surplus);
        }
        Ok(())
    }

    fn find_start(&mut self) -> Result<bool> {
        let mark = &self.pid_mark;
        if let Some(at) = find(&self.held, mark) {
            let rest = &self.held[at + mark.len()..];
            let Some(end) = rest.iter().position(|&b| b == b'\n') else { return Ok(false) };
            self.pid = std::str::from_utf8(&rest[..end]).ok().and_then(|t| t.trim().parse().ok());
            if self.pid.is_some() {
                self.held.drain(..at + mark.len() + end + 1);
                return Ok(true);
            }
        }
        let surplus = self.held.len().saturating_sub(mark.len() + HELD_BYTES);
        self.noise_bytes += surplus;
        self.held.drain(..surplus);
        if self.noise_bytes > NOISE_BYTES_MAX {
            return Err(Error::infra(format!("the login shell prints more than {NOISE_BYTES_MAX} bytes of its own"))
                .hint("let its start-up files print only when the session is interactive"));
        }
        Ok(false)
    }

    /// The end of the stream: hands on what was held back and gives the command's exit status; `None` when the stream
    /// ended without saying one.
    pub fn finish<E>(
        self,
        sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<i32>, E> {
        if self.pid.is_none() {
            return Ok(None);
        }
        let found = find(&self.held, &self.status_mark).and_then(|at| {
            let said = self.held[at + self.status_mark.len()..].strip_suffix(b"\n")?;
            let status: u8 = std::str::from_utf8(said).ok()?.trim().parse().ok()?;
            Some((at, i32::from(status)))
        });
        match found {
            Some((at, status)) => sink(&self.held[..at]).map(|()| Some(status)),
            None => sink(&self.held).map(|()| None),
        }
    }
}

/// Where a talk's stdout goes.
pub(super) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Writes what `talk` hands to its sink, at most `bytes_max` bytes, to `local`, which appears whole or not at all. Gives
/// the size.
pub(super) fn receive_file(local: &Path, bytes_max: u64, talk: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<u64> {
    let fault = |e: &std::io::Error| Error::io("cannot write the file that is pulled", local, e);
    let folder = local.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(folder).map_err(|e| fault(&e))?;
    let mut done_bytes = 0u64;
    talk(&mut |piece: &[u8]| {
        done_bytes += piece.len() as u64;
        if done_bytes > bytes_max {
            return Err(Error::infra(format!("the file on the device has more than {bytes_max} bytes")));
        }
        part.write_all(piece).map_err(|e| fault(&e))
    })?;
    part.persist(local).map_err(|e| fault(&e.error))?;
    Ok(done_bytes)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn unwrap_in_pieces(stream: &[u8], piece: usize) -> Result<(Option<u32>, Vec<u8>, Option<i32>)> {
        let mut unwrapper = Unwrapper::new("w");
        let mut out = Vec::new();
        let mut sink = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Ok::<(), Error>(())
        };
        for part in stream.chunks(piece) {
            unwrapper.feed(part, &mut sink)?;
        }
        let pid = unwrapper.pid();
        let status = unwrapper.finish(&mut sink)?;
        Ok((pid, out, status))
    }

    #[test]
    fn noise_of_login_scripts_and_both_markers_are_taken_out() {
        let stream = b"Welcome!\nfarmgate-w-pid 42\npayload without line feedfarmgate-w-status 3\n";
        for piece in [1, 2, 7, 1000] {
            let (pid, out, status) = unwrap_in_pieces(stream, piece).unwrap();
            assert_eq!((pid, &out[..], status), (Some(42), &b"payload without line feed"[..], Some(3)));
        }
    }

    #[test]
    fn a_stream_that_ends_before_the_last_marker_has_no_status() {
        let whole = b"farmgate-w-pid 42\nabcfarmgate-w-status 0\n";
        for cut in 0..whole.len() {
            assert_eq!(unwrap_in_pieces(&whole[..cut], 5).unwrap().2, None, "cut at {cut}");
        }
    }

    #[test]
    fn login_scripts_that_print_without_end_are_refused() {
        assert!(unwrap_in_pieces(&vec![b'x'; 1 << 20], 4096).unwrap_err().what().contains("login shell"));
    }

    proptest! {
        #[test]
        fn any_payload_in_any_pieces_comes_out_unchanged(
            payload in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..80, status in 0i32..256,
        ) {
            let mut stream = b"farmgate-w-pid 7\n".to_vec();
            stream.extend_from_slice(&payload);
            stream.extend_from_slice(format!("farmgate-w-status {status}\n").as_bytes());
            let (pid, out, said) = unwrap_in_pieces(&stream, piece).unwrap();
            prop_assert_eq!((pid, out, said), (Some(7), payload, Some(status)));
        }
    }

    #[test]
    fn any_argument_reaches_the_program_through_a_real_shell() {
        let hostile =
            ["a b", "it's", "\"", "$HOME `id` $(id)", "; rm -rf x", "*", "a\nb", "\\", "é 日本", "-n", "", "!", "~"];
        let mut argv = vec!["printf", "%s\\0"];
        argv.extend(hostile);
        let line = command_line("w", &argv).unwrap();
        let output = crate::process::Job::new("sh", Duration::from_secs(20)).args(["-c", &line]).run().unwrap();
        let (_, out, status) = unwrap_in_pieces(&output.stdout, 64).unwrap();
        let expected: Vec<u8> = hostile.iter().flat_map(|a| [a.as_bytes(), b"\0"].concat()).collect();
        assert_eq!((out, status), (expected, Some(0)));
    }

    #[test]
    fn a_nul_byte_and_a_monstrous_argument_are_refused() {
        assert!(command_line("w", &["a\0b"]).is_err());
        assert!(command_line("w", &[&"x".repeat(COMMAND_BYTES_MAX)]).is_err());
    }
}
