//! The adb client of this machine: which version it is, and a command through its `shell`.

use crate::error::{Error, Result};
use crate::process::{Job, OUTPUT_BYTES_MAX};
use crate::transport::Deadline;
use farmgate_engine::text::escaped;
use std::time::Duration;

/// Budget for asking the client its version.
const VERSION: Duration = Duration::from_secs(10);
/// Budget for starting a server.
const START: Duration = Duration::from_secs(15);

/// The program, and the server that it is to use.
#[derive(Debug, Clone)]
pub(super) struct Client {
    program: String,
    port: String,
    /// Version of the protocol with the server.
    pub(super) version: u32,
}

impl Client {
    /// Looks whether `program` is an adb client.
    ///
    /// # Errors
    /// INFRA when it is missing, cannot be executed, or is something else.
    pub(super) fn find(program: &str, port: u16) -> Result<Self> {
        let shown = escaped(program.as_bytes(), 200);
        let output = Job::new(program, VERSION).args(["version"]).run()?;
        let fault = |what: String| Err(Error::infra(what).hint(HINT));
        match output.status {
            127 => return fault(format!("the adb client `{shown}` was not found")),
            126 => return fault(format!("the adb client `{shown}` cannot be executed")),
            _ => {}
        }
        let said = String::from_utf8_lossy(&output.stdout);
        match version_in(&said) {
            Some(version) => Ok(Self { program: program.to_owned(), port: port.to_string(), version }),
            None => fault(format!("`{shown} version` does not speak as adb does: {}", output.ending())),
        }
    }

    /// Starts a server where there is none.
    pub(super) fn start_server(&self, deadline: &Deadline) -> Result<()> {
        let budget = deadline.left().unwrap_or_default().min(START);
        let output = Job::new(&self.program, budget).args(["-P", &self.port, "start-server"]).run()?;
        if output.is_success() {
            return Ok(());
        }
        Err(Error::infra(format!(
            "no adb server runs at port {} and none could be started: {}",
            self.port,
            output.ending()
        ))
        .hint("`adb start-server` in a shell shows why; `server-port` in [transport.adb] names another server"))
    }

    /// A command line for the shell of one device, its streams apart, and no terminal between that would change bytes.
    pub(super) fn shell<'a>(&self, serial: &str, line: &str, budget: Duration) -> Job<'a> {
        Job::new(&self.program, budget)
            .args(["-P", &self.port, "-s", serial, "shell", "-T", line])
            .keep(OUTPUT_BYTES_MAX)
    }

    /// The program as messages name it.
    pub(super) fn shown(&self) -> String {
        escaped(self.program.as_bytes(), 200)
    }
}

const HINT: &str = "install Android's platform-tools (on Debian `apt install adb`), or name the client with `program` in \
                    [transport.adb]";

/// `Android Debug Bridge version 1.0.41` speaks version 41.
fn version_in(said: &str) -> Option<u32> {
    let version = said.lines().next()?.strip_prefix("Android Debug Bridge version ")?;
    version.trim().rsplit('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_client_is_the_last_part_of_the_first_line() {
        assert_eq!(version_in("Android Debug Bridge version 1.0.41\nVersion 34.0.5-debian\n"), Some(41));
        for other in ["", "adb 3", "Android Debug Bridge version x", "Version 34.0.5\n1.0.41"] {
            assert_eq!(version_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_client_that_is_missing_and_one_that_is_none_say_so() {
        let missing = Client::find("/no/such/adb", 1).unwrap_err();
        assert!(missing.what().contains("was not found") && missing.hint_text().unwrap().contains("platform-tools"));
        assert!(Client::find("/etc/passwd", 1).unwrap_err().what().contains("cannot be executed"));
        assert!(Client::find("true", 1).unwrap_err().what().contains("does not speak as adb"));
    }
}
