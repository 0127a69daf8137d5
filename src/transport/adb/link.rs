//! From a serial to a device that answers: server, state, connection, proof.

use super::client::Client;
use super::server::{Fault, Seen, Server};
use crate::error::{Error, Result};
use crate::transport::Deadline;
use std::time::Duration;

/// How long a device of a cable may take to be seen, for instance by a server that has just been started.
const APPEAR: Duration = Duration::from_secs(3);
/// First and longest pause between two looks at a device that is not ready.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// One device behind a server.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) server: Server,
    pub(super) serial: String,
}

/// What a look at the device says.
enum State {
    Ready,
    /// Not yet, and this error when it stays so.
    Waiting(Error),
    /// The server holds a connection that does not work.
    Stale(Error),
    /// The server has no such device.
    Absent(Error),
}

impl Link {
    /// As messages name it.
    pub(super) fn describe(&self) -> String {
        format!("adb {}", self.serial)
    }

    /// Whether the serial is an address that the server can be told to connect to.
    pub(super) fn is_address(&self) -> bool {
        let port = self.serial.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        port.is_some() && !self.serial.starts_with("usb:")
    }

    /// Makes sure of a server that the client will not end: one of its own version.
    ///
    /// # Errors
    /// INFRA when there is none and none can be started, it hangs, or it has another version.
    pub(super) fn reach_server(&self, deadline: &Deadline) -> Result<()> {
        let version = match self.server.version(deadline) {
            Err(Fault::Absent) => {
                self.client.start_server(deadline)?;
                self.server.version(deadline)
            }
            outcome => outcome,
        };
        let version = self.server.told(version)?;
        if version == self.client.version {
            return Ok(());
        }
        Err(Error::infra(format!(
            "the adb server at port {} speaks version {version}, the client `{}` version {}; using them together would end \
             the server, which others may be using",
            self.server.port(),
            self.client.shown(),
            self.client.version
        ))
        .hint("name the client that belongs to the server with `program` in [transport.adb], or another server's port with \
               `server-port`"))
    }

    /// Waits until the device is there and `proves` itself; whatever does not work is mended for this serial alone.
    ///
    /// # Errors
    /// INFRA with a message and hint of its own for each way in which a device is not ready.
    pub(super) fn reach_device(&self, deadline: &Deadline, proves: &mut dyn FnMut(&Deadline) -> bool) -> Result<()> {
        let appear = Deadline::after(APPEAR);
        let mut pause = PAUSE_MIN;
        loop {
            let last = match self.look(deadline)? {
                State::Ready if proves(deadline) => return Ok(()),
                State::Ready => self.renew(self.silent(), deadline),
                State::Waiting(error) => error,
                State::Stale(error) => self.renew(error, deadline),
                State::Absent(error) if self.is_address() => self.connect(deadline).err().unwrap_or(error),
                State::Absent(error) if appear.left().is_none() => return Err(error),
                State::Absent(error) => error,
            };
            let Some(left) = deadline.left() else { return Err(last) };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
            if deadline.left().is_none() {
                return Err(last);
            }
        }
    }

    fn look(&self, deadline: &Deadline) -> Result<State> {
        let serial = &self.serial;
        let seen = self.server.told(self.server.see(serial, deadline))?;
        Ok(match seen {
            Seen::One(state) => return self.state(&state),
            Seen::Several => {
                return Err(Error::infra(format!("several devices have the serial `{serial}`"))
                    .hint("unplug all but one; some cheap devices share a serial, their `usb:` paths in `adb devices -l` differ"));
            }
            Seen::Absent(others) => {
                let others = if others.is_empty() {
                    "it sees none".to_owned()
                } else {
                    format!("it sees {}", others.join(", "))
                };
                State::Absent(
                    Error::infra(format!("the adb server sees no device `{serial}`; {others}"))
                        .hint("check cable and power, that USB debugging is on, and `serial` against `adb devices`"),
                )
            }
        })
    }

    fn state(&self, state: &str) -> Result<State> {
        let fault = |what: &str| Error::infra(format!("device `{}` {what}", self.serial));
        Ok(match state {
            "device" => State::Ready,
            "offline" => State::Stale(
                fault("is offline")
                    .hint("it was told to reconnect, in vain; plug it in again, or switch USB debugging off and on"),
            ),
            "connecting" | "authorizing" => State::Waiting(
                fault(&format!("stays in the state `{state}`"))
                    .hint("unlock its screen, and look whether it asks to allow USB debugging"),
            ),
            "unauthorized" => return Err(fault("does not trust this machine's adb key (unauthorized)").hint(
                "unlock its screen and allow USB debugging from this computer; the key is ~/.android/adbkey.pub of the \
                 account that started the adb server",
            )),
            other if other.starts_with("no permissions") => {
                return Err(fault("is plugged in, but the adb server may not use its USB port (no permissions)").hint(
                    "add the udev rules for Android devices (on Debian `apt install android-sdk-platform-tools-common`) and \
                     plug it in again",
                ));
            }
            other => return Err(fault(&format!("is in the state `{other}`")).hint("boot it into Android")),
        })
    }

    fn silent(&self) -> Error {
        Error::infra(format!("device `{}` is connected but does not answer", self.serial))
            .hint("it may be starting or hanging, or its cable or network is down; look at its screen")
    }

    /// Drops the connection that does not work and makes a new one; gives the better of the two reasons for failing.
    fn renew(&self, why: Error, deadline: &Deadline) -> Error {
        if self.is_address() {
            // it may be gone by itself, which is as good
            let _ = self.server.ask(&format!("host:disconnect:{}", self.serial), deadline);
            return self.connect(deadline).err().unwrap_or(why);
        }
        if let Err(fault) = self.server.ask(&format!("host-serial:{}:reconnect", self.serial), deadline) {
            log::debug!("{}: {}", self.describe(), self.server.error(fault));
        }
        why
    }

    /// Tells the server to connect to an address. Failure is a text like success, and only its beginning tells them apart.
    fn connect(&self, deadline: &Deadline) -> Result<()> {
        let said = match self.server.ask(&format!("host:connect:{}", self.serial), deadline) {
            Ok(said) => said,
            Err(Fault::Strange(_)) if deadline.left().is_none() => "no answer in time".to_owned(),
            Err(fault) => return Err(self.server.error(fault)),
        };
        if said.starts_with("connected to ") || said.starts_with("already connected to ") {
            return Ok(());
        }
        let hint = if said.contains("authenticate") {
            "unlock its screen and allow debugging from this computer"
        } else {
            "check address, power and network, and that the device listens (`adb tcpip 5555`, or wireless debugging)"
        };
        Err(Error::infra(format!("the adb server cannot connect to `{}`: {said}", self.serial)).hint(hint))
    }
}
