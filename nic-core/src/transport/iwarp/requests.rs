//! How connections begin.
//!
//! ```text
//! initiator                         responder
//!   TCP connect ───────────────────▶  accepted, not a session yet
//!   MPA request: NICs, ports ──────▶  listener? room?
//!           ◀───────────────────────  MPA reply: window, or why not
//!   Write of no bytes ─────────────▶  reported as established; it may send from here on
//! ```
//!
//! A connection that does not ask within its deadline is closed, and so is the oldest of too many.
//! One that asks while the backlog is full waits for room.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use ringbell_nic_abi::Status;
use rustix::io::Errno;

use super::arrival::Arrival;
use super::conn::{Conn, Startup};
use super::one_sided::READS;
use super::outgoing::Payload;
use super::{
    socket, IwarpConfig, IwarpTransport, ACCEPT_AGAIN, ARRIVALS_MAX, OF_ARRIVAL, STARTUP, WINDOWS,
};
use crate::datapath::Datapath;
use crate::network::{Link, Network, Protocol};
use crate::transport::carrier::Carrier;
use crate::transport::crc::Icrc;
use crate::transport::life::Phase;
use crate::types::NicTime;
use ringbell_net::port::MacAddr;
use ringbell_net::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_net::wire::iwarp::mpa::{self, Ready, Role, STARTUP_BYTES};
use ringbell_net::wire::iwarp::session::{Answer, Request};

/// The outcome of a look at an arrival.
enum Fate {
    /// It has not asked, or waits for room in the backlog.
    Waits,
    /// It has ended, or has sent something else.
    Dropped,
    Refused(Answer),
    /// It is a session.
    Taken,
}

/// What an initiator does first.
const FIRST: Ready = Ready {
    peer_to_peer: true,
    by_send: false,
    by_write: true,
    by_read: false,
};

/// Reads a start-up frame of a role, and not a byte behind it. `Ok(false)`: it is not all there.
fn read_frame(socket: &OwnedFd, role: Role, frame: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let whole = mpa::Startup::length(role, frame).map_err(wrong)?;
        let want = whole.unwrap_or(STARTUP_BYTES);
        let have = frame.len();
        if have == want {
            return Ok(true);
        }
        frame.resize(want, 0);
        let got = socket::receive_into(socket, &mut frame[have..]);
        frame.truncate(have + got.as_ref().copied().unwrap_or(0));
        match got {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Why the kernel could not connect, for users.
fn status_of(e: &io::Error) -> Status {
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::TIMEDOUT) => Status::TimedOut,
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => Status::ConnectionRefused,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
            Status::NoResources
        }
        _ => Status::HostUnreachable,
    }
}

impl IwarpTransport {
    /// Continues an outgoing connection whose peer has a route. Returns whether anything moved.
    pub(super) fn dial_on(&mut self, index: usize, link: Link, net: &Network) -> bool {
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let flow = net.flow(link.port, 0, *c.life.peer.ip());
        let mut from = flow.from;
        from.set_port(0);
        let made = socket::connect(from, flow.to).and_then(|socket| {
            socket::set_up(&socket, self.config.give_up)?;
            self.poller.add(&socket, c.token())?;
            Ok(socket)
        });
        match made {
            Ok(socket) => {
                c.socket = Some(socket);
                c.incoming.has_crc = asks_for_crc(&self.config, flow.to);
                // What was noted before was of the number's last connection.
                (c.input, c.output) = (false, false);
                c.life.phase = Phase::Requesting;
            }
            Err(e) => self.fail_connect(index, status_of(&e), None),
        }
        true
    }

    /// Continues the start-up of an outgoing connection. Returns whether anything moved.
    pub(super) fn start_up(&mut self, index: usize, data: &mut Datapath<'_>) -> bool {
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let Some(socket) = &c.socket else {
            return false;
        };
        let failed = match &mut c.startup {
            Startup::Connecting if c.output => match socket::connected(socket) {
                Ok(()) => {
                    let request = Request {
                        from: *c.life.local.ip(),
                        to: *c.life.peer.ip(),
                        source_port: c.life.local.port(),
                        port: c.life.peer.port(),
                        window: c.session.rx.ring.capacity() as u32,
                    };
                    let startup = ours(Role::Initiator, c.incoming.has_crc);
                    let frame = frame(startup, &request.emit());
                    c.outgoing.add_bytes(&frame);
                    c.startup = Startup::Requested(Vec::new());
                    // It leaves with the first service of the open socket.
                    c.outgoing.blocked = false;
                    let flushed = c.outgoing.flush(socket, data.dma);
                    flushed.is_err().then_some(Status::ConnectionRefused)
                }
                Err(e) => Some(status_of(&e.into())),
            },
            Startup::Requested(answer) if c.input => {
                match read_frame(socket, Role::Responder, answer) {
                    Ok(false) => {
                        c.input = false;
                        None
                    }
                    Ok(true) => {
                        let answer = std::mem::take(answer);
                        return self.answered(index, &answer);
                    }
                    Err(e) => {
                        tracing::debug!(peer = %c.life.peer, %e, "no answer to a request");
                        Some(Status::ConnectionRefused)
                    }
                }
            }
            _ => return false,
        };
        if let Some(status) = failed {
            self.fail_connect(index, status, None);
        }
        true
    }

    /// The answer to a request is there.
    fn answered(&mut self, index: usize, frame: &[u8]) -> bool {
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let read = mpa::Startup::parse(Role::Responder, frame).ok();
        let read = read.and_then(|(startup, b)| Some((startup, Answer::parse(b).ok()?)));
        let answer = read.is_some().then_some(0);
        let status = match read {
            Some((startup, Answer::Accepted { window }))
                if !startup.rejected && WINDOWS.contains(&(window as usize)) =>
            {
                c.session.tx.window = window;
                c.session.one_sided.asking.limit = READS.min(startup.inbound_reads);
                c.incoming.has_crc |= startup.crc;
                c.startup = Startup::Done;
                if startup.ready.peer_to_peer {
                    let place = Place::Tagged { stag: 0, offset: 0 };
                    let ready = Header {
                        opcode: Opcode::Write,
                        last: true,
                        place,
                    };
                    c.add(&ready, Payload::Bytes(&[]));
                }
                self.sessions.connected(index);
                return true;
            }
            Some((_, Answer::NoRoom)) => Status::NoResources,
            _ => Status::ConnectionRefused,
        };
        self.fail_connect(index, status, answer);
        true
    }

    /// Takes connections that have come in, and their requests. Returns whether there were any.
    pub(super) fn take_arrivals(&mut self, now: NicTime, net: &mut Network) -> bool {
        let mut any = false;
        for at in 0..self.listeners.len() {
            any |= self.accept(at, now);
        }
        for slot in 0..self.arrivals.len() {
            let Some(mut arrival) = self.arrivals[slot].take() else {
                continue;
            };
            match self.hear(&mut arrival, now, net) {
                Fate::Waits if arrival.deadline > now => self.arrivals[slot] = Some(arrival),
                Fate::Waits | Fate::Dropped => {
                    tracing::debug!(from = %arrival.from, "a connection has not asked for a session");
                }
                Fate::Refused(answer) => {
                    any = true;
                    let startup = mpa::Startup {
                        rejected: true,
                        ..ours(Role::Responder, asks_for_crc(&self.config, arrival.from))
                    };
                    let frame = frame(startup, &answer.emit());
                    // A new connection takes so few bytes at once.
                    let _ = arrival
                        .socket
                        .map(|socket| rustix::io::write(&socket, &frame));
                }
                Fate::Taken => any = true,
            }
        }
        while matches!(self.arrivals.last(), Some(None)) {
            self.arrivals.pop();
        }
        any
    }

    /// Takes connections from a listener.
    fn accept(&mut self, at: usize, now: NicTime) -> bool {
        let mut any = false;
        while self.listeners[at].input {
            let is_full = self.arrivals.iter().all(Option::is_some);
            if is_full && self.arrivals.len() < ARRIVALS_MAX {
                self.arrivals.push(None);
            }
            // A flood pushes out the oldest that has not become a session.
            let age = |a: &Option<Arrival>| a.as_ref().map(|a| a.deadline);
            let slots = self.arrivals.iter().enumerate();
            let Some((slot, _)) = slots.min_by_key(|(_, a)| age(a)) else {
                break;
            };
            let listener = &mut self.listeners[at];
            let (socket, from) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listener.input = false;
                    break;
                }
                Err(e) => {
                    tracing::debug!(%e, "a connection could not be taken");
                    self.accept_at = Some(now.plus(ACCEPT_AGAIN));
                    break;
                }
            };
            any = true;
            let port = listener.port;
            let ready = socket::accepted(socket, self.config.give_up).and_then(|socket| {
                self.poller.add(&socket, OF_ARRIVAL | slot as u64)?;
                Ok(socket)
            });
            let Ok(socket) = ready else { continue };
            self.arrivals[slot] = Some(Arrival {
                socket: Some(socket),
                port,
                from,
                deadline: now.plus(STARTUP),
                frame: Vec::new(),
                input: true,
            });
        }
        any
    }

    /// Reads the request of an arrival, and acts on it.
    fn hear(&mut self, arrival: &mut Arrival, now: NicTime, net: &mut Network) -> Fate {
        let Some(socket) = &arrival.socket else {
            return Fate::Dropped;
        };
        let news = std::mem::take(&mut arrival.input);
        if news && read_frame(socket, Role::Initiator, &mut arrival.frame).is_err() {
            return Fate::Dropped;
        }
        let frame = &arrival.frame;
        match mpa::Startup::length(Role::Initiator, frame) {
            Ok(Some(whole)) if frame.len() == whole => {}
            Ok(_) => return Fate::Waits,
            Err(_) => return Fate::Dropped,
        }
        let Ok((startup, private)) = mpa::Startup::parse(Role::Initiator, frame) else {
            return Fate::Dropped;
        };
        let Ok(request) = Request::parse(private) else {
            return Fate::Refused(Answer::NoListener);
        };
        let listener = self.sessions.listeners.at(request.port);
        let Some(listener) = listener.filter(|_| request.to == self.sessions.ip) else {
            return Fate::Refused(Answer::NoListener);
        };
        if !listener.has_room() {
            return Fate::Waits;
        }
        let id = listener.id;
        let r = startup.ready;
        let can_begin = !r.peer_to_peer || r.by_write;
        if !can_begin || !WINDOWS.contains(&(request.window as usize)) {
            return Fate::Refused(Answer::NoRoom);
        }
        self.sessions.table.release_hops(net, Protocol::Iwarp);
        let from = arrival.from.ip().to_canonical();
        let claimant = net.claimant(arrival.port, request.from, from);
        let Some(source) = claimant.filter(|_| self.sessions.table.has_room()) else {
            tracing::warn!(
                nic = %request.from, host = %from,
                "a session was refused: this NIC is not at that host, by what is known here; name it by --port roce:...,NIC=ADDR:PORT"
            );
            return Fate::Refused(Answer::NoRoom);
        };
        let link = Link {
            port: arrival.port,
            mac: MacAddr::default(),
        };
        let Ok(hop) = net.hop_to(Protocol::Iwarp, source, Some(link), now) else {
            return Fate::Refused(Answer::NoRoom);
        };
        let addresses = (
            SocketAddrV4::new(self.sessions.ip, request.port),
            SocketAddrV4::new(source, request.source_port),
        );
        let window = self.config.rx_buffer;
        let crc = startup.crc || asks_for_crc(&self.config, arrival.from);
        let lender = self.sessions.lender.clone();
        let index = self.sessions.accept(now, id, |conn| {
            let mut c = Conn::new(conn, addresses, Phase::Incoming(id), window, &lender);
            c.life.hop = Some(hop);
            c.incoming.has_crc = crc;
            c.session.tx.window = request.window;
            let window = c.session.rx.ring.capacity() as u32;
            let answer = Answer::Accepted { window };
            let reply = mpa::Startup {
                outbound_reads: READS.min(startup.inbound_reads),
                ..ours(Role::Responder, crc)
            };
            c.session.one_sided.asking.limit = reply.outbound_reads;
            let frame = self::frame(reply, &answer.emit());
            c.outgoing.add_bytes(&frame);
            c.startup = Startup::Done;
            c.input = true;
            c.socket = arrival.socket.take();
            c
        });
        let Some(c) = index.and_then(|index| self.sessions.table.at(index)) else {
            return Fate::Refused(Answer::NoRoom);
        };
        if let Some(socket) = &c.socket {
            // It is in the poller already: this needs no memory, so it does not fail.
            let renamed = self.poller.rename(socket, c.token());
            debug_assert!(renamed.is_ok(), "{renamed:?}");
        }
        Fate::Taken
    }
}

/// Whether this end asks for the CRC towards a socket: the kernel copies what goes to the loopback,
/// and reports no error of memory by it.
fn asks_for_crc(config: &IwarpConfig, peer: SocketAddr) -> bool {
    match config.crc {
        Icrc::Auto => !peer.ip().to_canonical().is_loopback(),
        Icrc::Always => true,
        Icrc::Never => false,
    }
}

/// A start-up frame of ours.
fn ours(role: Role, crc: bool) -> mpa::Startup {
    mpa::Startup {
        role,
        crc,
        rejected: false,
        inbound_reads: READS,
        outbound_reads: READS,
        ready: FIRST,
        private: 0,
    }
}

/// Its bytes, with private data.
fn frame(startup: mpa::Startup, private: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    startup.emit(private, &mut out);
    out
}
