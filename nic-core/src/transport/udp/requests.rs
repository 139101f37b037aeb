//! How sessions begin, and messages to senders that have none.
//!
//! ```text
//! requester             listener
//!   Connect ──────────────▶       tag, first number, terms
//!           ◀────────────── Accept
//!   any message ──────────▶       reported as established
//! ```
//!
//! Requests and their answers are sent until the peer answers, or until their deadline. A refusal
//! and a reset are sent once.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ringbell_nic_abi::Status;

use super::answer::{Answer, ControlMessage, Place};
use super::config::{PAYLOAD_MIN, WINDOWS};
use super::conn::{say, Conn};
use super::UdpTransport;
use crate::network::{Link, Network, Protocol};
use crate::transport::carried::Carried;
use crate::transport::carrier::{Carrier, CONTROL_MAX};
use crate::transport::life::{Ask, Phase};
use crate::types::NicTime;
use ringbell_net::wire::accl::{Kind, Signature, Terms, ACCL_UDP_PORT, SIGNATURE_BYTES};
use ringbell_net::wire::roce::icrc::Flow;

/// Peers that may fill a socket's receive buffer at once, and messages that each has room for at
/// least.
const PEERS: usize = 4;
const MESSAGES: usize = 8;
/// What the kernel adds to each packet that waits in a socket.
const OVERHEAD: usize = 768 + SIGNATURE_BYTES;

/// The same addresses with the UDP port of ACCL, where the port does not have its own.
fn by_accl(net: &Network, port: usize, mut flow: Flow) -> Flow {
    if net.ports()[port].capabilities().medium.has_frames() {
        flow.to.set_port(ACCL_UDP_PORT);
    }
    flow
}

impl UdpTransport {
    /// What we take over a port from a peer.
    pub(super) fn terms(&self, net: &mut Network, port: usize, peer: Ipv4Addr) -> Terms {
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
    pub(super) fn read_requests(&mut self, now: NicTime, net: &mut Network) -> bool {
        let any = !self.control.is_empty();
        while let Some(request) = self.control.pop_front() {
            // An IPv6 address that no NIC of ours names.
            let Some(source) = net.sender(request.from.port, request.address) else {
                self.counters.refused += 1;
                continue;
            };
            if let Err(no_listener) = self.requested(now, net, source, &request) {
                self.counters.refused += 1;
                self.reply(
                    (request.from, request.address),
                    &request.signature,
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
        request: &ControlMessage,
    ) -> Result<(), bool> {
        let end = request.signature.from;
        if let Some(index) = self.sessions.requested_before(source, end) {
            // It came before: our answer is late.
            if let Some(ask) = self.sessions.table.at(index).and_then(|c| c.ask().as_mut()) {
                *ask = Ask::new(ask.message, now);
                self.sessions.mark(index);
            }
            return Ok(());
        }
        let (port, source_port) = request.ports;
        let listener = self.sessions.listeners.at(port).ok_or(true)?;
        if !are_met(&request.terms) {
            return Err(false);
        }
        if !listener.has_room() {
            // No answer: the peer tries again while the backlog drains.
            self.counters.overflowed += 1;
            return Ok(());
        }
        let id = listener.id;
        self.sessions.table.release_hops(net, Protocol::Udp);
        if !self.sessions.table.has_room() {
            return Err(false);
        }
        let hop = net
            .hop_to(Protocol::Udp, source, Some(request.from), now)
            .map_err(|_| false)?;
        let numbers = self.draw();
        let terms = self.terms(net, request.from.port, source);
        let addresses = (
            SocketAddrV4::new(self.sessions.ip, port),
            SocketAddrV4::new(source, source_port),
        );
        let (config, lender) = (&self.config, self.sessions.lender.clone());
        self.sessions.accept(now, id, |conn| {
            let phase = Phase::Incoming(id);
            let mut c = Conn::new(conn, addresses, numbers, phase, config, &lender);
            c.life.hop = Some(hop);
            *c.ask() = Some(Ask::new(Kind::Accept(terms), now));
            c.rx.terms = terms;
            c.far.flow = flow_to(net, request.from.port, source);
            c.start(end, request.signature.sequence, &request.terms);
            c
        });
        Ok(())
    }

    /// Answers the sender of a message, once.
    pub(super) fn reply(&mut self, from: (Link, SocketAddr), signature: &Signature, kind: Kind) {
        if self.answers.len() < CONTROL_MAX {
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
    pub(super) fn answer_all(&mut self, now: NicTime, net: &mut Network) {
        while let Some(answer) = self.answers.pop_front() {
            let to = match answer.to {
                Place::Hop(hop, flow) => net.link(hop).map(|link| (link, flow)),
                Place::Sender(link, at) => {
                    let flow = net.answer_flow(link.port, ACCL_UDP_PORT, at);
                    Some((link, by_accl(net, link.port, flow)))
                }
            };
            if let Some((link, flow)) = to {
                say(now, net, link, &flow, &answer.signature);
            }
        }
    }

    /// The peer has answered our request.
    pub(super) fn accepted(&mut self, index: usize, signature: &Signature, terms: &Terms) {
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        if c.life.phase == Phase::Requesting {
            if !are_met(terms) {
                self.answers.extend(Answer::disconnect(c));
                return self.fail_connect(index, Status::ConnectionRefused, Some(0));
            }
            c.start(signature.from, signature.sequence, terms);
            self.sessions.connected(index);
        }
        // The peer reports the session when it hears of us; that may have been lost.
        if let Some(c) = self.sessions.table.at(index) {
            (c.life.has_received, c.rx.answer) = (true, true);
        }
        self.sessions.mark(index);
    }
}

/// Whether a peer's terms leave room for any message.
fn are_met(theirs: &Terms) -> bool {
    WINDOWS.contains(&(theirs.window as usize))
        && theirs.payload as usize >= PAYLOAD_MIN
        && theirs.buffers >= 2
}

/// The addresses of our packets to a peer. Both kinds of port send and receive by one number.
pub(super) fn flow_to(net: &Network, port: usize, peer: Ipv4Addr) -> Flow {
    by_accl(net, port, net.flow(port, ACCL_UDP_PORT, peer))
}
