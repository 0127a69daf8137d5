//! One ssh connection: from a name to an authenticated session, and every call on it under a deadline.
//!
//! The session never blocks: each call is tried, and while the other side has nothing to say this module waits on the
//! socket with `poll`, no longer than the deadline. A peer that hangs, a cable that is pulled and a link that is half
//! open all end there. The socket is shut down as soon as a link is given up, so that nothing libssh2 still wants to
//! send when its handles are dropped can block.

use super::target::Target;
use super::{auth, host_key};
use crate::error::{Error, Result};
use crate::transport::Deadline;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Upper bound of what libssh2 does by itself while handles are dropped, milliseconds.
const DROP_TIMEOUT_MS: u32 = 2_000;
/// How often the deadline is looked at while waiting.
const TICK: Duration = Duration::from_millis(200);

/// libssh2's error codes that are told apart here.
pub(super) const FILE: i32 = -16;
pub(super) const AUTHENTICATION_FAILED: i32 = -18;
const EAGAIN: i32 = -37;
const BANNER_RECV: i32 = -2;
const KEX_FAILURE: i32 = -5;
const KEY_EXCHANGE_FAILURE: i32 = -8;
/// The socket is gone: SOCKET_NONE, BANNER_SEND, SOCKET_SEND, SOCKET_DISCONNECT, SOCKET_RECV, BAD_SOCKET.
const LOST: [i32; 6] = [-1, -3, -7, -13, -43, -45];

/// Why a call on a link did not succeed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The deadline passed.
    Deadline,
    /// The connection is gone.
    Lost(String),
    /// The server said no, or libssh2 did; the connection stands.
    Refused(ssh2::Error),
}

/// libssh2's code of an error, 0 for one of sftp.
pub(super) fn code_of(error: &ssh2::Error) -> i32 {
    match error.code() {
        ssh2::ErrorCode::Session(code) => code,
        ssh2::ErrorCode::SFTP(_) => 0,
    }
}

/// An authenticated connection.
pub(super) struct Link {
    session: ssh2::Session,
    tcp: TcpStream,
}

impl Link {
    /// Connects, checks the host key, and logs in.
    pub(super) fn connect(target: &Target, deadline: &Deadline) -> Result<Self> {
        let mut link = Self::greet(target, deadline, None)?;
        if let host_key::Verdict::OtherTypes(types) = host_key::check(&link.session, target)? {
            // the server has keys of several types and showed one that was never recorded: ask for those that were
            link = Self::greet(target, deadline, Some(&types))?;
            if let host_key::Verdict::OtherTypes(_) = host_key::check(&link.session, target)? {
                return Err(host_key::changed(&link.session, target));
            }
        }
        auth::log_in(&link, target, deadline)?;
        Ok(link)
    }

    /// TCP and key exchange.
    fn greet(target: &Target, deadline: &Deadline, host_key_types: Option<&str>) -> Result<Self> {
        let tcp = dial(target, deadline)?;
        let bug = |e: ssh2::Error| Error::infra(format!("cannot set up an ssh session: {e}"));
        let session = ssh2::Session::new().map_err(bug)?;
        if let Some(types) = host_key_types {
            session.method_pref(ssh2::MethodType::HostKey, types).map_err(bug)?;
        }
        session.set_timeout(DROP_TIMEOUT_MS);
        let mut link = Self { session, tcp };
        let socket = link.tcp.try_clone().map_err(|e| Error::infra(format!("cannot set up an ssh session: {e}")))?;
        link.session.set_tcp_stream(socket);
        link.session.set_blocking(false);
        let mut session = link.session.clone();
        link.drive(deadline, || session.handshake()).map_err(|fault| link.not_greeted(target, deadline, fault))?;
        Ok(link)
    }

    fn not_greeted(&self, target: &Target, deadline: &Deadline, fault: Fault) -> Error {
        let name = target.describe();
        let banner = self.session.banner_bytes().unwrap_or_default();
        let greeted = banner.starts_with(b"SSH-");
        let port_hint = format!("check that an ssh server listens on port {} of {}", target.port, target.host_name);
        match fault {
            Fault::Deadline if greeted => {
                Error::infra(format!("{name} stopped answering during the key exchange, after {} ms", ms(deadline)))
                    .hint("the device may be overloaded or the network may drop large packets (MTU)")
            }
            Fault::Deadline => {
                Error::infra(format!("{name} took the connection but sent no ssh greeting within {} ms", ms(deadline)))
                    .hint(format!("the device may hang; {port_hint}"))
            }
            Fault::Lost(_) if !greeted && banner.is_empty() => {
                Error::infra(format!("{name} closed the connection without an ssh greeting")).hint(port_hint)
            }
            Fault::Lost(_) if !greeted => not_ssh(&name, port_hint),
            Fault::Refused(e) if code_of(&e) == BANNER_RECV => not_ssh(&name, port_hint),
            Fault::Refused(e) if [KEX_FAILURE, KEY_EXCHANGE_FAILURE].contains(&code_of(&e)) => {
                Error::infra(format!("no common algorithm with the ssh server of {name}: {e}"))
                    .hint("the server may be too old or too strict; `ssh -v` shows what it offers")
            }
            Fault::Lost(what) => Error::infra(format!("{name} broke off the key exchange: {what}"))
                .hint("the server's own log says why; it may refuse this host or have too many logins at once"),
            Fault::Refused(e) => Error::infra(format!("the ssh handshake with {name} failed: {e}")).hint(port_hint),
        }
    }

    /// The session, for calls inside [`drive`](Self::drive).
    pub(super) fn session(&self) -> &ssh2::Session {
        &self.session
    }

    /// Tries `call` until it has an answer, the link is lost or the deadline passes.
    pub(super) fn drive<T>(
        &self,
        deadline: &Deadline,
        mut call: impl FnMut() -> std::result::Result<T, ssh2::Error>,
    ) -> std::result::Result<T, Fault> {
        loop {
            match call() {
                Ok(value) => return Ok(value),
                Err(e) if code_of(&e) == EAGAIN => self.wait(deadline)?,
                Err(e) if LOST.contains(&code_of(&e)) => return Err(Fault::Lost(e.message().to_owned())),
                Err(e) => return Err(Fault::Refused(e)),
            }
        }
    }

    /// As [`drive`](Self::drive), for calls that speak `std::io`. `None`: not ready, and nothing was waited for.
    pub(super) fn attempt<T>(&self, outcome: std::io::Result<T>) -> std::result::Result<Option<T>, Fault> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(Fault::Lost(e.to_string())),
        }
    }

    /// Waits until the socket is ready for what libssh2 wants, for one tick at most.
    pub(super) fn wait(&self, deadline: &Deadline) -> std::result::Result<(), Fault> {
        use ssh2::BlockDirections as D;
        let left = deadline.left().ok_or(Fault::Deadline)?;
        let events = match self.session.block_directions() {
            D::None | D::Inbound => libc::POLLIN,
            D::Outbound => libc::POLLOUT,
            D::Both => libc::POLLIN | libc::POLLOUT,
        };
        let mut fd = libc::pollfd { fd: self.tcp.as_raw_fd(), events, revents: 0 };
        let timeout_ms = left.min(TICK).as_millis().max(1) as libc::c_int;
        // SAFETY: `fd` is one valid pollfd for the whole call, and its descriptor is open as long as `self.tcp` lives
        unsafe { libc::poll(&mut fd, 1, timeout_ms) };
        Ok(())
    }

    /// Whether bytes that libssh2 has begun to send are stuck: then nothing else may be sent before them.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.session.block_directions(), ssh2::BlockDirections::Outbound | ssh2::BlockDirections::Both)
    }

    /// Ends the connection at once: whoever still waits on it gets an error.
    pub(super) fn cut(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
    }
}

fn not_ssh(name: &str, port_hint: String) -> Error {
    Error::infra(format!("{name} answers, but not as an ssh server")).hint(port_hint)
}

fn ms(deadline: &Deadline) -> u64 {
    deadline.budget_ms()
}

/// Opens the TCP connection, trying every address of the name.
fn dial(target: &Target, deadline: &Deadline) -> Result<TcpStream> {
    let name = target.describe();
    let mut last = None;
    for address in resolve(target, deadline)? {
        let left = deadline.left().unwrap_or(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(tcp) => {
                let _ = tcp.set_nodelay(true);
                return Ok(tcp);
            }
            Err(e) => last = Some(e),
        }
    }
    let e = last.unwrap_or_else(|| std::io::Error::other("no address"));
    Err(match e.kind() {
        ErrorKind::ConnectionRefused => Error::infra(format!("{name} refused the connection")).hint(format!(
            "the machine is there, but no ssh server listens on port {}: start it, or correct `port`",
            target.port
        )),
        ErrorKind::TimedOut => Error::infra(format!("{name} did not answer within {} ms", ms(deadline)))
            .hint("check that the device is on and in this network; a firewall may drop the packets"),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            Error::infra(format!("{name} cannot be reached: {e}"))
                .hint("check cable, network and address of the device")
        }
        _ => Error::infra(format!("cannot connect to {name}: {e}")),
    })
}

fn resolve(target: &Target, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
    let (host, port) = (target.host_name.clone(), target.port);
    let look_up = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let name = &target.host_name;
    match within(deadline, look_up) {
        Some(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Some(Ok(_)) => Err(Error::infra(format!("the name `{name}` has no address"))),
        Some(Err(e)) => Err(Error::infra(format!("the name `{name}` is not known: {e}"))
            .hint("check the spelling of `host`, or give the device's address instead")),
        None => Err(Error::infra(format!("the name `{name}` was not resolved within {} ms", ms(deadline)))
            .hint("the name server does not answer; give the device's address instead")),
    }
}

/// Runs something that cannot be given a deadline in a thread of its own. When the deadline passes, `None` comes back
/// and the thread is left to end when it can.
pub(super) fn within<T: Send + 'static>(deadline: &Deadline, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(call());
    });
    receiver.recv_timeout(deadline.left()?).ok()
}
