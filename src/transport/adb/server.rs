//! The adb server of this machine, asked over its own socket.
//!
//! Clients end a server of another version than theirs, whoever else may be using it, and tell failure only in prose. So
//! everything that concerns the server itself is asked here, where nothing can be ended by it.

use crate::error::{Error, Result};
use crate::transport::Deadline;
use farmgate_engine::text::escaped;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Longest serial and state of a line that the server shows.
const SHOWN_BYTES_MAX: usize = 200;

/// An adb server, by its port on the loopback address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server {
    port: u16,
}

/// Why the server gave no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nobody listens there.
    Absent,
    /// Somebody listens and says nothing in time, or something that no adb server says.
    Strange(String),
    /// The server refuses, in its own words.
    Refused(String),
}

/// What the server knows of a device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No such serial; these there are.
    Absent(Vec<String>),
    /// One device, and its state.
    One(String),
    /// More than one of that serial.
    Several,
}

impl Server {
    /// The server at `port`.
    pub(super) fn at(port: u16) -> Self {
        Self { port }
    }

    /// Its port.
    pub(super) fn port(self) -> u16 {
        self.port
    }

    /// Asks for a service that answers with text.
    pub(super) fn ask(self, service: &str, deadline: &Deadline) -> std::result::Result<String, Fault> {
        let mut socket = self.open(service, deadline)?;
        let text = block(&mut socket, deadline)?;
        Ok(escaped(text.trim_ascii(), 60_000))
    }

    fn open(self, service: &str, deadline: &Deadline) -> std::result::Result<TcpStream, Fault> {
        let left = deadline.left().ok_or_else(silent)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut socket = TcpStream::connect_timeout(&address, left).map_err(|e| match e.kind() {
            ErrorKind::TimedOut => silent(),
            _ => Fault::Absent,
        })?;
        let question = format!("{:04x}{service}", service.len());
        let asked = socket.set_write_timeout(Some(left)).and_then(|()| socket.write_all(question.as_bytes()));
        asked.map_err(|e| Fault::Strange(e.to_string()))?;
        let mut word = [0u8; 4];
        fill(&mut socket, &mut word, deadline)?;
        match &word {
            b"OKAY" => Ok(socket),
            b"FAIL" => Err(Fault::Refused(escaped(&block(&mut socket, deadline)?, 300))),
            _ => Err(Fault::Strange(format!("it answers `{}`", escaped(&word, 20)))),
        }
    }

    /// The version of its protocol.
    pub(super) fn version(self, deadline: &Deadline) -> std::result::Result<u32, Fault> {
        let said = self.ask("host:version", deadline)?;
        u32::from_str_radix(&said, 16).map_err(|_| Fault::Strange("its version is no number".to_owned()))
    }

    /// How it sees the device of this serial.
    pub(super) fn see(self, serial: &str, deadline: &Deadline) -> std::result::Result<Seen, Fault> {
        self.open("host:devices", deadline)
            .and_then(|mut socket| block(&mut socket, deadline))
            .map(|list| seen_in(&String::from_utf8_lossy(&list), serial))
    }

    /// What the device's adbd can do.
    pub(super) fn features(self, serial: &str, deadline: &Deadline) -> std::result::Result<Vec<String>, Fault> {
        let said = self.ask(&format!("host-serial:{serial}:features"), deadline)?;
        Ok(said.split(',').map(str::to_owned).collect())
    }

    /// A fault as an error of its own.
    pub(super) fn error(self, fault: Fault) -> Error {
        let place = format!("127.0.0.1:{}", self.port);
        match fault {
            Fault::Absent => Error::infra(format!("no adb server answers at {place}"))
                .hint("start it with `adb start-server`, or name its port with `server-port` in [transport.adb]"),
            Fault::Strange(what) => Error::infra(format!("what listens at {place} is no working adb server: {what}"))
                .hint("another program may have the port, or the server hangs; `adb devices` in a shell shows which"),
            Fault::Refused(what) => Error::infra(format!("the adb server at {place} refuses: {what}"))
                .hint("`adb devices -l` in a shell shows what it sees"),
        }
    }

    /// [`error`](Self::error), for a result.
    pub(super) fn told<T>(self, outcome: std::result::Result<T, Fault>) -> Result<T> {
        outcome.map_err(|fault| self.error(fault))
    }
}

fn silent() -> Fault {
    Fault::Strange("it says nothing".to_owned())
}

/// Four hex digits, and as many bytes.
fn block(socket: &mut TcpStream, deadline: &Deadline) -> std::result::Result<Vec<u8>, Fault> {
    let mut digits = [0u8; 4];
    fill(socket, &mut digits, deadline)?;
    let length = std::str::from_utf8(&digits).ok().and_then(|d| u16::from_str_radix(d, 16).ok());
    let length = length.ok_or_else(|| Fault::Strange("its answer has no length".to_owned()))?;
    let mut text = vec![0u8; usize::from(length)];
    fill(socket, &mut text, deadline)?;
    Ok(text)
}

fn fill(socket: &mut TcpStream, to: &mut [u8], deadline: &Deadline) -> std::result::Result<(), Fault> {
    let mut at = 0;
    while at < to.len() {
        // a moment of zero would mean none at all
        let left = deadline.left().ok_or_else(silent)?.max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).map_err(|e| Fault::Strange(e.to_string()))?;
        match socket.read(&mut to[at..]) {
            Ok(0) => return Err(Fault::Strange("it ends in the middle of its answer".to_owned())),
            Ok(n) => at += n,
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(Fault::Strange(e.to_string())),
        }
    }
    Ok(())
}

/// Lines `SERIAL<tab>STATE`.
fn seen_in(list: &str, serial: &str) -> Seen {
    let lines = || list.lines().filter_map(|line| line.split_once('\t'));
    let mut states = lines().filter(|(name, _)| *name == serial).map(|(_, state)| state);
    match (states.next(), states.next()) {
        (None, _) => {
            Seen::Absent(lines().take(20).map(|(name, _)| escaped(name.as_bytes(), SHOWN_BYTES_MAX)).collect())
        }
        (Some(state), None) => Seen::One(escaped(state.trim().as_bytes(), SHOWN_BYTES_MAX)),
        (Some(_), Some(_)) => Seen::Several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    /// What a server that says these bytes gives for a question.
    fn answered(bytes: Vec<u8>) -> std::result::Result<String, Fault> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let speaker = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0u8; 64]);
            let _ = socket.write_all(&bytes);
        });
        let answer = Server::at(port).ask("host:version", &Deadline::after(Duration::from_secs(5)));
        speaker.join().unwrap();
        answer
    }

    #[test]
    fn answers_refusals_and_junk_are_told_apart() {
        assert_eq!(answered(b"OKAY00040029".to_vec()).unwrap(), "0029");
        assert!(matches!(answered(b"FAIL0003no!".to_vec()), Err(Fault::Refused(why)) if why == "no!"));
        for junk in [&b""[..], b"HTTP/1.1 400", b"OKAY", b"OKAYzzzz", b"OKAY00ffshort", b"FAILxxxx"] {
            assert!(matches!(answered(junk.to_vec()), Err(Fault::Strange(_))), "{junk:?}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_ends_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::at(listener.local_addr().unwrap().port());
        let started = std::time::Instant::now();
        let outcome = server.version(&Deadline::after(Duration::from_millis(300)));
        assert!(matches!(outcome, Err(Fault::Strange(_))) && started.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_serial_is_found_whole_or_not_at_all() {
        let list = "a:5555\toffline\nb\tdevice\nb2\tunauthorized\nc\tdevice\nc\tno permissions (x)\n";
        assert_eq!(seen_in(list, "b"), Seen::One("device".into()));
        assert_eq!(seen_in(list, "a:5555"), Seen::One("offline".into()));
        assert_eq!(seen_in(list, "c"), Seen::Several);
        assert_eq!(seen_in("x\tdevice\n", "a"), Seen::Absent(vec!["x".into()]));
    }

    proptest! {
        #[test]
        fn whatever_a_server_says_is_an_answer_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = answered(bytes);
        }
    }
}
