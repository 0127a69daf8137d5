//! sha256 of files and bytes, as lower-case hex: the name by which artefacts and models are known.

use crate::error::{EngineError, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// sha256 of `bytes`, as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// sha256 of a file's content, as 64 lower-case hex digits. Reads in pieces of 1 MiB.
pub fn sha256_file(path: &Path) -> Result<String> {
    sha256_file_with(path, &mut |_| {})
}

/// As [`sha256_file`], telling `progress` how many bytes have been read so far.
pub fn sha256_file_with(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String> {
    let whole = sha256_file_while(path, &mut |done| {
        progress(done);
        true
    })?;
    whole.ok_or_else(|| EngineError::new(ErrorKind::Bug, "hashing ended early").at(path.display().to_string()))
}

/// As [`sha256_file`], asking `go_on` after each piece with the number of bytes read so far; `None` when it said no.
pub fn sha256_file_while(path: &Path, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<String>> {
    let fault = |e: &std::io::Error| EngineError::io("cannot read file", e).at(path.display().to_string());
    let mut file = File::open(path).map_err(|e| fault(&e))?;
    digest_while(&mut |buffer, _| file.read(buffer), go_on).map_err(|e| fault(&e))
}

/// sha256 of what an opened file holds, wherever it has been read to.
pub fn sha256_opened(file: &File) -> std::io::Result<String> {
    use std::os::unix::fs::FileExt;
    let whole = digest_while(&mut |buffer, at| file.read_at(buffer, at), &mut |_| true)?;
    Ok(whole.expect("only a caller that says no ends it early"))
}

/// Hashes what `read` puts into a buffer for each position, until there is no more or `go_on` says no.
fn digest_while(
    read: &mut dyn FnMut(&mut [u8], u64) -> std::io::Result<usize>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> std::io::Result<Option<String>> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut done = 0u64;
    loop {
        let n = match read(&mut buffer, done) {
            Ok(0) => return Ok(Some(hex(&digest.finalize()))),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        digest.update(&buffer[..n]);
        done += n as u64;
        if !go_on(done) {
            return Ok(None);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn sha256_of_abc_is_the_published_value() {
        assert_eq!(super::sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
