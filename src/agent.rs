//! Calling `farmhand` on a device: its verbs, its JSON, and its refusals as errors of ours.

use crate::error::{Error, Result};
use crate::transport::{Output, Transport};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Exit code of `farmhand` when another owner holds the device or a stale token was shown.
pub const LEASE_REFUSED: i32 = 6;

/// `farmhand` as it lies on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Farmhand {
    path: String,
}

impl Farmhand {
    /// The binary at `path` on the device.
    pub fn at(path: impl Into<String>) -> Self {
        Self { path: path.into() }
    }

    /// Its path on the device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Proves that it runs there at all: mounted noexec, built for another machine and a missing loader show here.
    ///
    /// # Errors
    /// Usage, with a hint of its own for each of these.
    pub fn prove_runs(&self, transport: &mut dyn Transport) -> Result<()> {
        let output = transport.exec(&[&self.path, "--version"], Duration::from_secs(30))?;
        if output.is_success() && output.stdout.starts_with(b"farmhand ") {
            return Ok(());
        }
        let words = output.last_words();
        let hint = if words.contains("ermission denied") {
            "the folder's filesystem may be mounted noexec; name another folder with `workdir` in the device's file"
        } else if output.status == 127 {
            "the binary may need a loader that the device lacks; build it static"
        } else {
            "it may be built for another machine; compare `target` with what `uname -m` says on the device"
        };
        let ending = output.ending();
        Err(Error::usage(format!("farmhand does not run on the device, {} ended with {ending}", self.path)).hint(hint))
    }

    /// Calls a verb and waits for its end, whatever its status.
    ///
    /// # Errors
    /// Those of [`Transport::exec`].
    pub fn call(&self, transport: &mut dyn Transport, args: &[&str], deadline: Duration) -> Result<Output> {
        let mut argv = vec![self.path.as_str()];
        argv.extend(args);
        transport.exec(&argv, deadline)
    }

    /// Calls a verb that answers with one JSON value.
    ///
    /// # Errors
    /// Those of [`Transport::exec`]; farmhand's own refusal; INFRA when the answer cannot be read.
    pub fn ask<T: DeserializeOwned>(
        &self,
        transport: &mut dyn Transport,
        args: &[&str],
        deadline: Duration,
    ) -> Result<T> {
        let output = self.call(transport, args, deadline)?;
        if !output.is_success() {
            return Err(refusal(args, &output));
        }
        answer(args, &output)
    }
}

/// Reads a JSON answer. Its size is bounded by what a transport keeps of an output.
///
/// # Errors
/// INFRA when it is none, or another one than expected.
pub fn answer<T: DeserializeOwned>(args: &[&str], output: &Output) -> Result<T> {
    serde_json::from_slice(&output.stdout).map_err(|e| {
        let verb = args.first().copied().unwrap_or_default();
        Error::infra(format!("the answer of `farmhand {verb}` is not understood: {e}"))
            .hint("the device may be short of memory, or run another version of farmhand")
    })
}

/// What farmhand said on stderr, as an error: its message, its hint, and what its exit code means.
pub fn refusal(args: &[&str], output: &Output) -> Error {
    let said = farmgate_engine::text::escaped_tail(&output.stderr, 4_000);
    let (what, hint) = said.trim().split_once("\n\nhint: ").unwrap_or((said.trim(), ""));
    let verb = args.first().copied().unwrap_or_default();
    let error = match what.strip_prefix("error: ") {
        Some(what) => {
            let text = format!("farmhand {verb}: {}", what.replace('\n', "; "));
            match output.status {
                2 | LEASE_REFUSED => Error::usage(text),
                70 => Error::bug(text),
                _ => Error::infra(text),
            }
        }
        None => Error::infra(format!("`farmhand {verb}` ended with {}", output.ending())),
    };
    if hint.is_empty() { error } else { error.hint(hint.replace('\n', "; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ExitCode;
    use crate::transport::LocalTransport;

    fn output(status: i32, stderr: &str) -> Output {
        Output { status, stderr: stderr.into(), ..Output::default() }
    }

    #[test]
    fn a_refusal_of_farmhand_keeps_message_hint_and_meaning() {
        let error = refusal(&["run"], &output(2, "error: no such plan (p.json)\n\nhint: name one\n"));
        assert_eq!(error.what(), "farmhand run: no such plan (p.json)");
        assert_eq!((error.hint_text(), error.exit()), (Some("name one"), ExitCode::Usage));
        assert_eq!(refusal(&["run"], &output(5, "error: disk full")).exit(), ExitCode::Infra);
    }

    #[test]
    fn words_that_are_not_farmhands_are_infra_and_escaped() {
        let error = refusal(&["run"], &output(139, "\x1b[2JSegmentation fault"));
        assert_eq!(error.exit(), ExitCode::Infra);
        assert!(error.what().contains("signal 11") && error.what().contains("\\u{1b}[2J"), "{error}");
    }

    #[test]
    fn what_cannot_run_says_why_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let of = |path: &str| Farmhand::at(path).prove_runs(&mut LocalTransport::new()).unwrap_err();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "\x7fELF junk").unwrap();
        let denied = of(plain.to_str().unwrap());
        assert!(denied.hint_text().unwrap().contains("noexec"), "{denied}");
        assert_eq!(denied.exit(), ExitCode::Usage);
        assert!(of("/no/such/farmhand").hint_text().unwrap().contains("static"));
        assert!(of("/bin/false").hint_text().unwrap().contains("another machine"));
    }
}
