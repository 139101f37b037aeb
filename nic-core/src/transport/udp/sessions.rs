//! How sessions begin, and messages to senders that have none.
//!
//! ```text
//! requester             listener
//!   Connect ──────────────▶       tag, first number, terms
//!           ◀────────────── Accept
//!   any message ──────────▶       reported as established
//! ```
//!
//! Requests and their answers are sent until the peer is heard, or until their deadline. A refusal and a reset are sent once.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::conn::{Ask, Conn, Phase};
use super::{waiter, UdpTransport, PAYLOAD_MIN, WINDOWS};
use crate::network::{Datagrams, Link, Network, Protocol};
use crate::port::Batch;
use crate::transport::connections::index_of;
use crate::transport::TransportEvent;
use crate::types::NicTime;
use crate::wire::accl::{End, Kind, Signature, Terms, ACCL_UDP_PORT, SIGNATURE_BYTES};
use crate::wire::roce::icrc::Flow;

/// A request whose answer is not confirmed after this long is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Peers that may fill a socket's receive buffer at once, and messages that each has room for at least.
const PEERS: usize = 4;
const MESSAGES: usize = 8;
/// What the kernel adds to each packet that waits in a socket.
const OVERHEAD: usize = 768 + SIGNATURE_BYTES;

/// How long a session waits for room in the port before it tries again.
pub(super) const BLOCKED: Duration = Duration::from_micros(10);
/// Requests and answers that wait for a step, each; a flood beyond is dropped, as if the wire had lost it.
pub(super) const LETTERS_MAX: usize = 256;
pub(super) const HOW: Datagrams = Datagrams {
    ecn: 0,
    // No CRC of ours covers the identification of IPv4.
    segmented: true,
};

/// A request for a session.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) from: Link,
    pub(super) address: SocketAddr,
    pub(super) signature: Signature,
    pub(super) ports: (u16, u16),
    pub(super) terms: Terms,
}

/// A message that is sent once, for no session of ours.
#[derive(Debug)]
pub(super) struct Answer {
    to: Place,
    signature: Signature,
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// To the peer of a session, by its hop.
    Hop(usize, Flow),
    /// To the sender of a packet.
    Sender(Link, SocketAddr),
}

impl Answer {
    /// Tells the peer of a session that it ends, and which messages were missing if that is why. `None`: the peer knows nothing of it.
    pub(super) fn goodbye(c: &Conn) -> Option<Answer> {
        let hop = c.hop.filter(|_| c.far.end != End::default())?;
        Some(Answer {
            to: Place::Hop(hop, c.far.flow),
            signature: c.signed(0, Kind::Reset(c.gap())),
        })
    }
}

/// Sends one message. `false`: there was no room.
fn send(now: NicTime, net: &mut Network, to: Link, flow: &Flow, signature: &Signature) -> bool {
    let mut batch = Batch::new();
    signature.emit(batch.room(SIGNATURE_BYTES));
    batch.end();
    net.send(now, to, flow, &HOW, &batch, 0) == 1
}

/// The same addresses with the UDP port of ACCL, where the port does not have its own.
fn by_accl(net: &Network, port: usize, mut flow: Flow) -> Flow {
    if net.ports()[port].frames().is_some() {
        flow.to.set_port(ACCL_UDP_PORT);
    }
    flow
}

impl UdpTransport {
    /// What we take over a port from a peer.
    fn terms(&self, net: &mut Network, port: usize, peer: Ipv4Addr) -> Terms {
        let carried = net.payload_to(port, peer).saturating_sub(SIGNATURE_BYTES);
        let (mut payload, mut buffers) = (
            carried.min(self.config.payload_max),
            usize::from(self.config.buffers),
        );
        if let Some(bytes) = net.receive_buffer(port) {
            let share = bytes / PEERS;
            let most = (share / MESSAGES).saturating_sub(OVERHEAD);
            payload = payload.min(most.max(PAYLOAD_MIN));
            buffers = buffers.min(share / (payload + OVERHEAD)).max(2);
        }
        // At most 64 MiB, an MTU, and what the setting can hold.
        Terms {
            window: self.config.rx_buffer.next_power_of_two() as u32,
            payload: payload as u32,
            buffers: buffers as u16,
        }
    }

    /// Acts on the requests that came in. Returns whether there were any.
    pub(super) fn read_letters(&mut self, now: NicTime, net: &mut Network) -> bool {
        let any = !self.letters.is_empty();
        while let Some(letter) = self.letters.pop_front() {
            // An IPv6 address that no NIC of ours names.
            let Some(source) = net.sender(letter.from.port, letter.address) else {
                self.counters.refused += 1;
                continue;
            };
            if let Err(no_listener) = self.requested(now, net, source, &letter) {
                self.counters.refused += 1;
                self.reply(
                    (letter.from, letter.address),
                    &letter.signature,
                    Kind::Refuse { no_listener },
                );
            }
        }
        any
    }

    /// A request for a session. An error refuses it, and says whether because nothing listens.
    fn requested(
        &mut self,
        now: NicTime,
        net: &mut Network,
        source: Ipv4Addr,
        letter: &Letter,
    ) -> Result<(), bool> {
        let end = letter.signature.from;
        let key = (source, end);
        if let Some(&index) = self.requests.get(&key) {
            // It came before: our answer is late.
            if let Some(ask) = self.table.at(index).and_then(|c| c.ask.as_mut()) {
                *ask = Ask::at(now);
                self.mark(index);
            }
            return Ok(());
        }
        let (port, source_port) = letter.ports;
        let listener = self.listeners.at(port).ok_or(true)?;
        if !are_met(&letter.terms) {
            return Err(false);
        }
        if !listener.has_room() {
            // No answer: the peer tries again while the backlog drains.
            self.counters.overflowed += 1;
            return Ok(());
        }
        let id = listener.id;
        self.table.release_hops(net, Protocol::Udp);
        if !self.table.has_room() {
            return Err(false);
        }
        let hop = net
            .hop_to(Protocol::Udp, source, Some(letter.from), now)
            .map_err(|_| false)?;
        let numbers = self.draw();
        let terms = self.terms(net, letter.from.port, source);
        let addresses = (
            SocketAddrV4::new(self.ip, port),
            SocketAddrV4::new(source, source_port),
        );
        let flow = flow_to(net, letter.from.port, source);
        let config = &self.config;
        let made = self.table.insert(|conn| {
            let mut c = Conn::new(conn, addresses, numbers, Phase::Incoming(id), config);
            c.hop = Some(hop);
            c.deadline = Some(now.plus(HANDSHAKE));
            c.ask = Some(Ask::at(now));
            c.rx.terms = terms;
            c.far.flow = flow;
            c.start(end, letter.signature.sequence, &letter.terms);
            c
        });
        if let Some(conn) = made {
            let index = index_of(conn);
            self.listeners.handshake(id);
            self.requests.insert(key, index);
            self.mark(index);
        }
        Ok(())
    }

    /// Answers the sender of a message, once.
    pub(super) fn reply(&mut self, from: (Link, SocketAddr), signature: &Signature, kind: Kind) {
        if self.answers.len() < LETTERS_MAX {
            self.answers.push_back(Answer {
                to: Place::Sender(from.0, from.1),
                signature: Signature {
                    to: signature.from,
                    from: signature.to,
                    sequence: 0,
                    kind,
                },
            });
        }
    }

    /// Sends answers; one that finds no room is lost.
    pub(super) fn send_answers(&mut self, now: NicTime, net: &mut Network) {
        while let Some(answer) = self.answers.pop_front() {
            let to = match answer.to {
                Place::Hop(hop, flow) => net.link(hop).map(|link| (link, flow)),
                Place::Sender(link, at) => {
                    let flow = net.answer_flow(link.port, ACCL_UDP_PORT, at);
                    Some((link, by_accl(net, link.port, flow)))
                }
            };
            if let Some((link, flow)) = to {
                send(now, net, link, &flow, &answer.signature);
            }
        }
    }

    /// The peer has answered our request.
    pub(super) fn accepted(&mut self, index: usize, signature: &Signature, terms: &Terms) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if c.phase == Phase::Requesting {
            if !are_met(terms) {
                self.answers.extend(Answer::goodbye(c));
                return self.fail_connect(index, Status::ConnectionRefused);
            }
            c.start(signature.from, signature.sequence, terms);
            (c.ask, c.deadline, c.phase) = (None, None, Phase::Open);
            let conn = c.id;
            self.events.push_back(TransportEvent::Connected { conn });
        }
        // The peer reports the session when it hears of us; that may have been lost.
        if let Some(c) = self.table.at(index) {
            c.seen.heard = true;
            c.rx.answer = true;
        }
        self.mark(index);
    }

    /// The peer uses the session that we have agreed to.
    pub(super) fn established(&mut self, index: usize) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let Phase::Incoming(listener) = c.phase else {
            return;
        };
        (c.ask, c.deadline, c.phase) = (None, None, Phase::Open);
        self.events.push_back(TransportEvent::Incoming {
            listener,
            conn: c.id,
            peer: c.peer,
        });
        self.listeners.handshake_over(listener, true);
    }

    /// An outgoing session failed: its operations retire, its id is free.
    pub(super) fn fail_connect(&mut self, index: usize, status: Status) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if !matches!(c.phase, Phase::Resolving | Phase::Requesting) {
            return;
        }
        let conn = c.id;
        c.fail_all((status, 0), &mut self.events);
        self.events.push_back(TransportEvent::ConnectFailed {
            conn,
            status,
            reason: 0,
        });
        self.free(index);
    }

    /// Continues a handshake, or abandons it.
    pub(super) fn handshake(&mut self, index: usize, now: NicTime, net: &mut Network) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let late = c.deadline.is_some_and(|d| d <= now);
        match c.phase {
            Phase::Resolving => return self.resolve(index, now, net, late),
            Phase::Requesting if late => {
                self.fail_connect(index, Status::TimedOut);
                return true;
            }
            Phase::Incoming(listener) if late => {
                self.listeners.handshake_over(listener, false);
                self.free(index);
            }
            Phase::Orphan if late => self.dismiss(index),
            _ => self.ask(index, now, net),
        }
        false
    }

    /// Finds the way to the peer, and asks for a session.
    fn resolve(&mut self, index: usize, now: NicTime, net: &mut Network, late: bool) -> bool {
        let Some((known, peer)) = self.table.at(index).map(|c| (c.hop, *c.peer.ip())) else {
            return false;
        };
        let hop = match known {
            Some(hop) => hop,
            None => {
                self.table.release_hops(net, Protocol::Udp);
                match net.hop_to(Protocol::Udp, peer, None, now) {
                    Ok(hop) => hop,
                    Err(status) => {
                        self.fail_connect(index, status);
                        return true;
                    }
                }
            }
        };
        let resolved = net.link(hop).is_some();
        if !resolved && known.is_none() {
            net.wait(hop, waiter(index), now);
        }
        let port = net.port_of(hop);
        let terms = self.terms(net, port, peer);
        let flow = flow_to(net, port, peer);
        let Some(c) = self.table.at(index) else {
            return false;
        };
        c.hop = Some(hop);
        if resolved {
            c.rx.terms = terms;
            c.far.flow = flow;
            c.ask = Some(Ask::at(now));
            c.phase = Phase::Requesting;
            self.ask(index, now, net);
        } else if late {
            self.fail_connect(index, Status::HostUnreachable);
            return true;
        }
        false
    }

    /// Sends a request, or the answer to one, when it is due.
    fn ask(&mut self, index: usize, now: NicTime, net: &mut Network) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let terms = c.rx.terms;
        let kind = match c.phase {
            Phase::Requesting => Kind::Connect {
                port: c.peer.port(),
                source_port: c.local.port(),
                terms,
            },
            _ => Kind::Accept(terms),
        };
        let signature = c.signed(c.tx.next, kind);
        let (Some(hop), Some(ask)) = (c.hop, c.ask.as_mut().filter(|a| a.next <= now)) else {
            return;
        };
        let Some(link) = net.link(hop) else {
            return;
        };
        if send(now, net, link, &c.far.flow, &signature) {
            ask.tried(now);
            // The hardware address may be that of another host by now, or a wrong one.
            net.probe_stale(hop, now);
        } else {
            ask.next = now.plus(BLOCKED);
        }
    }
}

/// Whether a peer's terms leave room for any message.
fn are_met(theirs: &Terms) -> bool {
    WINDOWS.contains(&(theirs.window as usize))
        && theirs.payload as usize >= PAYLOAD_MIN
        && theirs.buffers >= 2
}

/// The addresses of our packets to a peer. Both kinds of port send and receive by one number.
fn flow_to(net: &Network, port: usize, peer: Ipv4Addr) -> Flow {
    by_accl(net, port, net.flow(port, ACCL_UDP_PORT, peer))
}
