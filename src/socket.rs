//! Sockets of host threads: byte streams between registered memory of this NIC and a peer's.
//!
//! A host thread connects, sends and receives as a kernel does, by the same descriptors. The bytes
//! go from and to memory of the GPU, the host or the NIC without a copy through the program. Every
//! call has a deadline ([`Socket::set_timeout`]). A kernel takes a connection over by its number
//! ([`Socket::session`]).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringbell_nic_abi::{Completion, Descriptor, EngineId, Flags, Opcode, SessionId, Status};
use ringbell_nic_core::engine::{Direction, EngineUseError, Return};
use ringbell_nic_core::{HostQueue, NicError, SessionInfo, WaitError};
use ringbell_onc_engines::stream::StreamEngine;

use crate::memory::MemoryError;
use crate::{HostBuffer, Nic, Span};

/// Most bytes of one descriptor; longer calls are split. A multiple of every page.
pub(crate) const PIECE: u64 = 1 << 31;
/// Longest wait for the completion of a close.
const CLOSE: Duration = Duration::from_secs(1);

/// A call on a [`Socket`] or [`Listener`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The NIC refused the operation, or it ended early.
    #[error("{operation}{}: {}{}{}", of(.peer), explain(.operation, *.status, *.detail), also(why.as_deref()), moved(*.bytes))]
    Failed {
        /// The call: `connect`, `send`, ...
        operation: &'static str,
        /// The peer, where it is known.
        peer: Option<SocketAddr>,
        /// How it ended.
        status: Status,
        /// Bytes that were moved before the error.
        bytes: u64,
        /// The status's detail.
        detail: u64,
        /// Which wires are missing on every way to the peer, when the NIC's port knows.
        why: Option<String>,
    },
    /// The text is no address with a port, or the NIC cannot reach one of its kind.
    #[error("`{text}` is no address with a port that this NIC reaches, such as 10.0.0.2:7000 or [fd00::2]:7000: {why}")]
    Address {
        /// As given.
        text: String,
        /// The error in it.
        why: String,
    },
    /// The NIC has no queue left.
    #[error("no queue for sockets")]
    Queue(#[from] NicError),
    /// The NIC did not take or end the operation.
    #[error("{operation}{}: the NIC did not complete it", of(.peer))]
    Wait {
        /// The call.
        operation: &'static str,
        /// The peer, where it is known.
        peer: Option<SocketAddr>,
        /// The cause.
        #[source]
        source: WaitError,
    },
    /// A kernel left no result ([`GpuResult`](crate::GpuResult)).
    #[error("{operation}: the kernel wrote no result; wait for its launch, and check that it reaches its last line")]
    NoResult {
        /// The call that the result was to tell of.
        operation: &'static str,
    },
    /// No memory for an adapter.
    #[error("no memory for the buffer")]
    Memory(#[from] MemoryError),
}

fn of(peer: &Option<SocketAddr>) -> String {
    peer.map_or(String::new(), |p| format!(" {p}"))
}

/// The status in words, with what operation and detail add.
fn explain(operation: &str, status: Status, detail: u64) -> String {
    match (status, operation) {
        (Status::InvalidArgument, "fetch-add" | "compare-swap") => format!(
            "the address {detail:#x} is no multiple of 8; an atomic takes an aligned 64-bit word"
        ),
        _ => status.with_detail(detail).to_string(),
    }
}

/// The NIC's addition to a message.
pub(crate) fn also(why: Option<&str>) -> String {
    why.map_or_else(String::new, |w| format!(" ({w})"))
}

fn moved(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        n => format!(" ({n} bytes were moved)"),
    }
}

impl SessionError {
    /// The NIC's status of the operation, where there is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            SessionError::Failed { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The status's detail: an address at fault, a limit.
    pub fn detail(&self) -> Option<u64> {
        match self {
            SessionError::Failed { detail, .. } => Some(*detail),
            _ => None,
        }
    }
}

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> io::Error {
        use io::ErrorKind as K;
        let kind = match error.status() {
            Some(Status::TimedOut | Status::NicSilent) => K::TimedOut,
            Some(Status::ConnectionRefused) => K::ConnectionRefused,
            Some(Status::HostUnreachable) => K::HostUnreachable,
            Some(Status::ConnectionReset | Status::EngineFailed) => K::ConnectionReset,
            Some(Status::NotConnected | Status::BadSession) => K::NotConnected,
            Some(Status::AddressInUse) => K::AddrInUse,
            Some(Status::Aborted | Status::ShuttingDown) => K::ConnectionAborted,
            _ => K::Other,
        };
        io::Error::new(kind, error)
    }
}

impl Nic {
    /// Copies within registered memory, by the NIC; both parts are equally long, and of any length.
    ///
    /// # Errors
    /// [`SessionError`]: a part is not registered, or was freed; the detail is the address at fault.
    ///
    /// # Panics
    /// When one part is longer than the other.
    pub fn copy(&self, from: impl Into<Span>, to: impl Into<Span>) -> Result<(), SessionError> {
        let (from, to) = (from.into(), to.into());
        assert_eq!(from.bytes(), to.bytes(), "the parts differ in length");
        let queue = self.socket_queue()?;
        let mut copied = 0;
        while copied < from.bytes() {
            let part = copied..(copied + PIECE).min(from.bytes());
            let d = Descriptor {
                remote_va: to.slice(part.clone()).va(),
                ..transfer(Opcode::Copy, from.slice(part.clone()))
            };
            let done = call(&queue, "copy", None, &d)?;
            if done.status != Status::Ok {
                return Err(failed("copy", None, &done, copied));
            }
            copied = part.end;
        }
        Ok(())
    }
}

/// Runs an operation and returns its completion with any status.
fn call(
    queue: &HostQueue,
    operation: &'static str,
    peer: Option<SocketAddr>,
    d: &Descriptor,
) -> Result<Completion, SessionError> {
    let done = queue.call(d);
    done.map_err(|source| SessionError::Wait {
        operation,
        peer,
        source,
    })
}

fn failed(
    operation: &'static str,
    peer: Option<SocketAddr>,
    c: &Completion,
    before: u64,
) -> SessionError {
    SessionError::Failed {
        operation,
        peer,
        status: c.status,
        bytes: before + c.bytes,
        detail: c.detail,
        why: None,
    }
}

/// A time-out as descriptors have it: 0 is the queue's default; one that does not fit becomes the
/// longest.
fn microseconds(timeout: Duration) -> u32 {
    let us = u32::try_from(timeout.as_micros());
    us.unwrap_or(u32::MAX).max(1)
}

/// State that the calls on a session share.
#[derive(Debug)]
struct Session {
    nic: Nic,
    queue: HostQueue,
    id: SessionId,
    peer: Option<SocketAddr>,
    timeout_us: AtomicU32,
}

impl Session {
    fn new(nic: &Nic) -> Result<Session, SessionError> {
        let queue = nic.socket_queue()?;
        let made = call(&queue, "socket", None, &Descriptor::new(Opcode::Socket))?;
        if made.status != Status::Ok {
            return Err(failed("socket", None, &made, 0));
        }
        Ok(Session {
            nic: nic.clone(),
            queue,
            id: SessionId(made.detail as u32),
            peer: None,
            timeout_us: AtomicU32::new(0),
        })
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout_us
            .store(microseconds(timeout), Ordering::Relaxed);
    }

    /// Runs an operation and returns its completion with any status.
    fn complete(&self, operation: &'static str, d: Descriptor) -> Result<Completion, SessionError> {
        let timeout_us = match d.timeout_us {
            0 => self.timeout_us.load(Ordering::Relaxed),
            own => own,
        };
        let d = Descriptor {
            session: self.id,
            timeout_us,
            ..d
        };
        call(&self.queue, operation, self.peer, &d)
    }

    fn failed(&self, operation: &'static str, c: &Completion, before: u64) -> SessionError {
        let mut error = failed(operation, self.peer, c, before);
        if let SessionError::Failed { why, .. } = &mut error {
            *why = self.nic.missing_wires(c.status, c.detail);
        }
        error
    }

    /// Runs an operation that must succeed.
    fn call(&self, operation: &'static str, d: Descriptor) -> Result<Completion, SessionError> {
        let done = self.complete(operation, d)?;
        match done.status {
            Status::Ok => Ok(done),
            _ => Err(self.failed(operation, &done, 0)),
        }
    }

    fn info(&self) -> Option<SessionInfo> {
        let all = self.nic.backend().sessions();
        all.into_iter().find(|s| s.id == self.id)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.set_timeout(CLOSE);
        // The peer is gone, or the NIC is closed: nothing is left to close.
        let _ = self.call("close", Descriptor::new(Opcode::Close));
    }
}

impl Nic {
    /// Listens for connections at a port of the NIC's address, on all its transports.
    ///
    /// # Errors
    /// [`SessionError`]: the port is taken, or a limit of the NIC was reached.
    pub fn listen(&self, port: u16) -> Result<Listener, SessionError> {
        self.listen_with(port, 0)
    }

    /// As [`Nic::listen`], with the number of connections that may wait to be accepted; 0 is 16.
    ///
    /// # Errors
    /// As [`Nic::listen`].
    pub fn listen_with(&self, port: u16, backlog: u16) -> Result<Listener, SessionError> {
        let session = Session::new(self)?;
        let d = Descriptor {
            imm: u32::from(port) | u32::from(backlog) << 16,
            ..Descriptor::new(Opcode::Listen)
        };
        session.call("listen", d)?;
        Ok(Listener { session, port })
    }

    /// Connects to a NIC, or to any TCP program that the port reaches:
    /// `nic.connect("10.0.0.2:7000")`. A NIC with port `roce` at an IPv6 address is reached by
    /// that, too: `nic.connect("[fd00::2]:7000")`, over RDMA. Of a name with several addresses the
    /// first of IPv4 is taken.
    ///
    /// # Errors
    /// [`SessionError`]: the text is no address, no program listens there, or it did not answer in time.
    pub fn connect(
        &self,
        to: impl ToSocketAddrs + std::fmt::Debug,
    ) -> Result<Socket, SessionError> {
        let (shown, to) = self.resolve(to)?;
        let mut session = Session::new(self)?;
        let d = Descriptor {
            operand: u32::from(*to.ip()).into(),
            imm: to.port().into(),
            ..Descriptor::new(Opcode::Connect)
        };
        session.peer = Some(shown);
        session.call("connect", d)?;
        Ok(Socket { session })
    }

    /// The short name of the NIC at an IPv6 address: an address of 240.0.0.0/8 by which this NIC's
    /// kernels and descriptors reach it, as they reach others by theirs. It means nothing to other
    /// NICs. `None`: no port of this NIC is a `roce` of IPv6, or 65,536 have names.
    ///
    /// ```
    /// use ringbell::Nic;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nic = Nic::builder().ip("10.9.9.31/24").open()?;
    /// assert_eq!(nic.short_name("fd00::2".parse()?), None, "it has no port");
    /// # Ok(()) }
    /// ```
    pub fn short_name(&self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        self.backend().short_name(ip)
    }

    /// An address as given, and as descriptors name it.
    fn resolve(
        &self,
        to: impl ToSocketAddrs + std::fmt::Debug,
    ) -> Result<(SocketAddr, SocketAddrV4), SessionError> {
        let wrong = |why: &str| SessionError::Address {
            text: format!("{to:?}").trim_matches('"').to_owned(),
            why: why.to_owned(),
        };
        let all = to.to_socket_addrs().map_err(|e| wrong(&e.to_string()))?;
        let found = all.min_by_key(|a| a.is_ipv6());
        match found.ok_or_else(|| wrong("no address"))? {
            SocketAddr::V4(a) => Ok((a.into(), a)),
            SocketAddr::V6(a) => {
                let name = self.short_name(*a.ip());
                let name = name.ok_or_else(|| {
                    wrong("an IPv6 address needs port roce at one, such as roce:[fd00::1]")
                })?;
                Ok((a.into(), SocketAddrV4::new(name, a.port())))
            }
        }
    }

    /// A peer's address for users.
    fn shown(&self, peer: SocketAddrV4) -> SocketAddr {
        let behind = self.backend().behind_short_name(*peer.ip());
        behind.map_or(peer.into(), |ip| (ip, peer.port()).into())
    }
}

/// A port at which the NIC listens. Closed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    session: Session,
    port: u16,
}

impl Listener {
    /// Waits for a connection.
    ///
    /// # Errors
    /// [`SessionError`] with `TIMED_OUT` when none came in time; the listener stays usable.
    pub fn accept(&self) -> Result<Socket, SessionError> {
        let done = self
            .session
            .call("accept", Descriptor::new(Opcode::Accept))?;
        let peer = SocketAddrV4::new(Ipv4Addr::from((done.bytes >> 16) as u32), done.bytes as u16);
        let session = Session {
            nic: self.session.nic.clone(),
            queue: self.session.queue.clone(),
            id: SessionId(done.detail as u32),
            peer: Some(self.session.nic.shown(peer)),
            timeout_us: AtomicU32::new(self.session.timeout_us.load(Ordering::Relaxed)),
        };
        Ok(Socket { session })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The session, for `gpu_accept` in kernels.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Longest wait of [`Listener::accept`], and the initial one of the sockets that it returns. At
    /// most 71 minutes.
    pub fn set_timeout(&self, timeout: Duration) {
        self.session.set_timeout(timeout);
    }
}

/// A connection. Closed when it is dropped, behind what was sent.
#[derive(Debug)]
pub struct Socket {
    session: Session,
}

impl Socket {
    /// Sends all bytes, of any length, and returns when the memory may be used again.
    ///
    /// # Errors
    /// [`SessionError`]: the peer is gone, the memory is not registered, or it took longer than the time-out. The bytes that it
    /// reports as moved were handed to the transport.
    ///
    /// # Panics
    /// When `from` is a kernel's stream, which is for communicators.
    pub fn send(&self, from: impl Into<Span>) -> Result<(), SessionError> {
        let from = from.into();
        let mut sent = 0;
        loop {
            let len = (from.bytes() - sent).min(PIECE);
            let d = transfer(Opcode::Send, from.slice(sent..sent + len));
            let done = self.session.complete("send", d)?;
            if done.status != Status::Ok {
                return Err(self.session.failed("send", &done, sent));
            }
            sent += len;
            if sent == from.bytes() {
                return Ok(());
            }
        }
    }

    /// Receives until the memory is full or the peer has closed its side, and returns the number of
    /// bytes. Of any length.
    ///
    /// # Errors
    /// [`SessionError`]: the peer is gone, the memory is not registered, or it took longer than the time-out.
    ///
    /// # Panics
    /// When `into` is a kernel's stream.
    pub fn recv(&self, into: impl Into<Span>) -> Result<u64, SessionError> {
        self.receive(into.into(), 0)
    }

    /// As [`Socket::recv`], with a time-out of its own.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    ///
    /// # Panics
    /// As [`Socket::recv`].
    pub fn recv_within(
        &self,
        into: impl Into<Span>,
        timeout: Duration,
    ) -> Result<u64, SessionError> {
        self.receive(into.into(), microseconds(timeout))
    }

    fn receive(&self, into: Span, timeout_us: u32) -> Result<u64, SessionError> {
        let mut got = 0;
        loop {
            let len = (into.bytes() - got).min(PIECE);
            let d = Descriptor {
                timeout_us,
                ..transfer(Opcode::Recv, into.slice(got..got + len))
            };
            let done = self.session.complete("receive", d)?;
            match done.status {
                Status::Ok => got += len,
                Status::EndOfStream => return Ok(got + done.bytes),
                _ => return Err(self.session.failed("receive", &done, got)),
            }
            if got == into.bytes() {
                return Ok(got);
            }
        }
    }

    /// Receives at least one byte, and at most what the memory holds; 0 when the peer has closed
    /// its side.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    ///
    /// # Panics
    /// As [`Socket::recv`].
    pub fn recv_some(&self, into: impl Into<Span>) -> Result<u64, SessionError> {
        self.receive_some(into.into(), 0)
    }

    /// As [`Socket::recv_some`], with a time-out of its own.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    ///
    /// # Panics
    /// As [`Socket::recv`].
    pub fn recv_some_within(
        &self,
        into: impl Into<Span>,
        timeout: Duration,
    ) -> Result<u64, SessionError> {
        self.receive_some(into.into(), microseconds(timeout))
    }

    fn receive_some(&self, into: Span, timeout_us: u32) -> Result<u64, SessionError> {
        let d = Descriptor {
            timeout_us,
            flags: Flags::SOME,
            ..transfer(Opcode::Recv, into.slice(..into.bytes().min(PIECE)))
        };
        let done = self.session.complete("receive", d)?;
        match done.status {
            Status::Ok | Status::EndOfStream => Ok(done.bytes),
            _ => Err(self.session.failed("receive", &done, 0)),
        }
    }

    /// Closes the sending side behind what was sent; receives go on.
    ///
    /// # Errors
    /// [`SessionError`]: the connection is gone.
    pub fn shutdown(&self) -> Result<(), SessionError> {
        let done = self
            .session
            .call("shutdown", Descriptor::new(Opcode::Shutdown));
        done.map(drop)
    }

    /// The session, for `gpu_send` and `gpu_recv` in kernels.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// The other end: of IPv6 where it has no other address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.session.peer
    }

    /// State, transport and bytes moved; `None` when the NIC has closed it.
    pub fn info(&self) -> Option<SessionInfo> {
        self.session.info()
    }

    /// Longest time of each call from now on; at most 71 minutes. Until it is set, the queue's
    /// default (`QueueConfig::default_timeout_us`, 10 s).
    pub fn set_timeout(&self, timeout: Duration) {
        self.session.set_timeout(timeout);
    }

    /// Attaches an engine to the bytes sent or received from here on.
    ///
    /// # Errors
    /// [`EngineUseError`]: the path has one that transforms, or a limit was reached.
    pub fn attach_engine(
        &self,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
    ) -> Result<EngineId, EngineUseError> {
        let nic = self.session.nic.backend();
        nic.attach_engine(self.session.id, direction, engine)
    }

    /// Sends the engine's result to the peer when the stream from it has ended.
    ///
    /// # Errors
    /// [`EngineUseError`]: no engine is on the receiving path.
    pub fn return_engine(&self, what: Return) -> Result<(), EngineUseError> {
        let nic = self.session.nic.backend();
        nic.return_engine(self.session.id, what)
    }

    /// A reader of the received bytes, through `capacity` bytes of registered host memory.
    ///
    /// # Errors
    /// [`SessionError::Memory`].
    pub fn reader(&self, capacity: usize) -> Result<SocketReader<'_>, SessionError> {
        Ok(SocketReader {
            socket: self,
            buffer: self.session.nic.alloc_host(capacity.max(1))?,
            held: 0..0,
        })
    }

    /// A writer that sends its bytes, through `capacity` bytes of registered host memory. Flush it,
    /// or drop it, which flushes but reports no error.
    ///
    /// # Errors
    /// [`SessionError::Memory`].
    pub fn writer(&self, capacity: usize) -> Result<SocketWriter<'_>, SessionError> {
        Ok(SocketWriter {
            socket: self,
            buffer: self.session.nic.alloc_host(capacity.max(1))?,
            held: 0,
        })
    }
}

impl Socket {
    /// Runs an operation on the session.
    pub(crate) fn call(
        &self,
        operation: &'static str,
        d: Descriptor,
    ) -> Result<Completion, SessionError> {
        self.session.call(operation, d)
    }
}

fn transfer(opcode: Opcode, part: Span) -> Descriptor {
    Descriptor {
        local_va: part.va(),
        // At most `PIECE`.
        len: part.bytes() as u32,
        ..Descriptor::new(opcode)
    }
}

/// [`io::Read`] over a [`Socket`].
#[derive(Debug)]
pub struct SocketReader<'a> {
    socket: &'a Socket,
    buffer: HostBuffer,
    /// Bytes of the buffer that were received and not read.
    held: std::ops::Range<u64>,
}

impl io::Read for SocketReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.held.is_empty() {
            self.held = 0..self.socket.recv_some(&self.buffer)?;
        }
        let n = into.len().min((self.held.end - self.held.start) as usize);
        let part = &mut into[..n];
        self.buffer
            .read(self.held.start, part)
            .map_err(io::Error::other)?;
        self.held.start += n as u64;
        Ok(n)
    }
}

/// [`io::Write`] over a [`Socket`].
#[derive(Debug)]
pub struct SocketWriter<'a> {
    socket: &'a Socket,
    buffer: HostBuffer,
    /// Bytes of the buffer that were written and not sent.
    held: u64,
}

impl io::Write for SocketWriter<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let room = self.buffer.len() - self.held;
        let n = from.len().min(room as usize);
        self.buffer
            .write(self.held, &from[..n])
            .map_err(io::Error::other)?;
        self.held += n as u64;
        if self.held == self.buffer.len() {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        if held > 0 {
            let all = Span::from(&self.buffer);
            self.socket.send(all.slice(..held))?;
        }
        Ok(())
    }
}

impl Drop for SocketWriter<'_> {
    fn drop(&mut self) {
        // As std's BufWriter: flush to get the error.
        let _ = io::Write::flush(self);
    }
}
