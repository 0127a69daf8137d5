//! The machine that farmgate runs on, as a device.

use super::{Deadline, Output, Transport};
use crate::error::{Error, Result};
use crate::process::Job;
use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The local machine.
#[derive(Debug, Default)]
pub struct LocalTransport {}

impl LocalTransport {
    /// Nothing has to be connected.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Transport for LocalTransport {
    fn describe(&self) -> String {
        "this machine".to_owned()
    }

    fn exec(&mut self, argv: &[&str], deadline: Duration) -> Result<Output> {
        let (program, args) = argv.split_first().ok_or_else(|| Error::bug("a command without a program"))?;
        Job::new(program, deadline).args(args).run()
    }

    fn push(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let source = File::open(local).map_err(|e| Error::io("cannot read the file to push", local, &e))?;
        let done_bytes = place(source, Path::new(remote), Some(mode), u64::MAX, deadline, progress)?;
        let is_bytes =
            std::fs::metadata(local).map_err(|e| Error::io("cannot read the file to push", local, &e))?.len();
        if done_bytes != is_bytes {
            return Err(Error::infra(format!(
                "the file changed while it was copied: {done_bytes} bytes, then {is_bytes}"
            ))
            .in_file(local));
        }
        Ok(())
    }

    fn pull(&mut self, remote: &str, local: &Path, bytes_max: u64, deadline: Duration) -> Result<u64> {
        let remote = Path::new(remote);
        let source = File::open(remote).map_err(|e| Error::io("cannot read the file to pull", remote, &e))?;
        place(source, local, None, bytes_max, deadline, &mut |_| {})
    }

    fn read_from(&mut self, remote: &str, offset_bytes: u64, bytes_max: usize, _deadline: Duration) -> Result<Vec<u8>> {
        let remote = Path::new(remote);
        let fault = |e: std::io::Error| Error::io("cannot read", remote, &e);
        let mut file = File::open(remote).map_err(fault)?;
        file.seek(SeekFrom::Start(offset_bytes)).map_err(fault)?;
        let mut bytes = Vec::new();
        file.take(bytes_max as u64).read_to_end(&mut bytes).map_err(fault)?;
        Ok(bytes)
    }

    fn link(&mut self, local: &Path, remote: &str) -> Result<bool> {
        // a link to a symbolic link would be one as well: the file itself is meant
        let Ok(local) = local.canonicalize() else { return Ok(false) };
        Ok(std::fs::hard_link(local, remote).is_ok())
    }
}

/// Writes `source` beside `to` and renames it there. Gives the bytes written.
fn place(
    mut source: File,
    to: &Path,
    mode: Option<u32>,
    bytes_max: u64,
    deadline: Duration,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let deadline = Deadline::after(deadline);
    let fault = |doing: &str, e: &std::io::Error| Error::io(doing, to, e);
    let folder = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // removed by itself unless it is renamed at the end
    let mut part = tempfile::Builder::new()
        .prefix(".farmgate-")
        .suffix(".part")
        .tempfile_in(folder)
        .map_err(|e| fault("cannot write", &e))?;
    let mut piece = vec![0u8; 1 << 20];
    let mut done_bytes = 0u64;
    loop {
        let n = source.read(&mut piece).map_err(|e| fault("cannot read the source of", &e))?;
        if n == 0 {
            break;
        }
        done_bytes += n as u64;
        if done_bytes > bytes_max {
            return Err(Error::infra(format!("the file has more than {bytes_max} bytes")).in_file(to));
        }
        part.write_all(&piece[..n]).map_err(|e| fault("cannot write", &e))?;
        progress(done_bytes);
        deadline.check("copying a file")?;
    }
    part.as_file().sync_all().map_err(|e| fault("cannot write", &e))?;
    if let Some(mode) = mode {
        let permissions = Permissions::from_mode(mode);
        part.as_file().set_permissions(permissions).map_err(|e| fault("cannot set the mode of", &e))?;
    }
    part.persist(to).map_err(|e| fault("cannot rename into place", &e.error))?;
    Ok(done_bytes)
}
