//! Communication management: how connections begin and end (IBTA vol. 1 §12.9, annex A11).
//!
//! ```text
//! requester            listener
//!   REQ ─────────────────▶        queue pair, first number, window, features
//!       ◀───────────────── REP    the same; both queue pairs can send from here on
//!   RTU ─────────────────▶
//!  DREQ ─────────────────▶ DREP   either side, at the end
//! ```
//!
//! REQ, REP and DREQ are sent until they are answered, or until their deadline.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::config::RdmaConfig;
use super::conn::{Conn, Ways, Wire};
use super::datagram::{send_datagram, SOURCE_PORT};
use super::stream::{Ends, Fin};
use super::terms::{ControlMessage, Terms};
use super::{one_sided, RdmaTransport};
use crate::network::{Network, Protocol};
use crate::transport::carried::Carried;
use crate::transport::carrier::Carrier;
use crate::transport::connections::Connection;
use crate::transport::life::{Ask, Phase};
use crate::transport::TransportEvent;
use crate::types::NicTime;
use ringbell_net::wire::roce::cm::{Endpoint, Message, Reason, Request};
use ringbell_net::wire::roce::Qpn;
use ringbell_roce::qp::{BadTransition, Change, PaceConfig, RtrAttributes, RtsAttributes};

/// How long an acknowledgement of short messages waits for answers of the program, with one of
/// which it leaves in one system call.
const ACK_DELAY: Duration = Duration::from_micros(30);
/// Fewest packets in flight that a window allows.
const WINDOW_PACKETS: u32 = 8;
/// Most packets that are kept when others before them are missing: as many as a report has bits.
const EARLY_MAX: u32 = 4_096;

/// Code of the largest standard MTU that is no larger (§12.6.5): 1 to 5 for 256 to 4,096.
fn mtu_code(payload: u32) -> u8 {
    (1..=5)
        .rev()
        .find(|code| 128 << code <= payload)
        .unwrap_or(1)
}

impl RdmaTransport {
    /// Acts on the messages that came in. Returns whether there were any.
    pub(super) fn read_management(&mut self, now: NicTime, net: &mut Network) -> bool {
        let any = !self.control.is_empty();
        while let Some(control) = self.control.pop_front() {
            let (from, transaction) = (control.from, control.transaction);
            let has_one_socket = control.is_from_datagrams();
            let source = net.sender(from.port, control.address);
            let answer = match control.message {
                Message::Request(r) => self.requested(now, net, (source, &control), &r),
                Message::Reply { to, from } => self.replied(now, net, source, to, &from),
                Message::Ready { to, from } => {
                    if let Some(index) = self.named(to, source, |c| c.names.peer == from) {
                        self.sessions.established(index);
                    }
                    None
                }
                Message::Reject { to, reason, .. } => {
                    self.rejected(source, to, reason);
                    None
                }
                Message::Disconnect {
                    to,
                    from,
                    qpn,
                    in_order,
                } => {
                    let is_it = |c: &Conn| c.names.peer == from && c.key() == qpn;
                    if let Some(index) = self.named(to, source, is_it) {
                        self.disconnected(index, in_order);
                    }
                    // Of a connection that is gone, too: its answer was lost.
                    Some(Message::Disconnected { to: from, from: to })
                }
                Message::Disconnected { to, from } => {
                    if let Some(index) = self.named(to, source, |c| c.names.peer == from) {
                        self.confirmed(index);
                    }
                    None
                }
            };
            if let Some(answer) = answer {
                // A lost answer is asked for again.
                let mut flow = net.answer_flow(from.port, SOURCE_PORT, control.address);
                if has_one_socket {
                    // Also where we do not know the sender, which then learns that.
                    flow.to = control.address;
                }
                send_datagram(net, now, from, &flow, &answer.emit(transaction));
            }
        }
        any
    }

    /// The connection of our number `id` with that peer, when it is the one meant.
    fn named(
        &mut self,
        id: u32,
        source: Option<Ipv4Addr>,
        is_it: impl FnOnce(&Conn) -> bool,
    ) -> Option<usize> {
        let index = self.sessions.table.find(Qpn::new(id))?;
        let c = self.sessions.table.at(index)?;
        (c.names.own == id && Some(*c.life.peer.ip()) == source && is_it(c)).then_some(index)
    }

    /// A request for a connection. Gives an answer that refuses it.
    fn requested(
        &mut self,
        now: NicTime,
        net: &mut Network,
        (source, control): (Option<Ipv4Addr>, &ControlMessage),
        r: &Request,
    ) -> Option<Message> {
        let from = control.from;
        let known = source.and_then(|source| self.sessions.requested_before(source, r.from.id));
        if let Some(index) = known {
            // It came before: the reply was lost.
            let c = self.sessions.table.at(index)?;
            if let (Phase::Incoming(_), Some(ask)) = (c.life.phase, c.ask()) {
                ask.next = now;
                self.sessions.mark(index);
            }
            return None;
        }
        let refuse = |reason| {
            Some(Message::Reject {
                to: r.from.id,
                from: 0,
                reason,
            })
        };
        let Some(listener) = self.sessions.listeners.at(r.port) else {
            self.counters.refused += 1;
            return refuse(Reason::NoService);
        };
        let terms = Terms::read(&r.from.private);
        let is_sender = match r.source.ip() {
            IpAddr::V4(ip) => Some(ip) == source,
            IpAddr::V6(_) => r.source.ip() == control.address.ip(),
        };
        let is_meant = is_sender && net.is_own(from.port, r.destination);
        if !is_sender {
            self.counters.refused += 1;
            tracing::warn!(
                at = %control.address, named = %r.source,
                "a request for a connection by a NIC that is not known at this address is refused; name it among the port's peers"
            );
            return refuse(Reason::UnknownSender);
        }
        let (Some(theirs), true) = (terms, is_meant) else {
            self.counters.refused += 1;
            return refuse(Reason::Consumer);
        };
        if !listener.has_room() {
            // No answer: the peer tries again while the backlog drains.
            self.counters.overflowed += 1;
            return None;
        }
        let id = listener.id;
        self.sessions.table.release_hops(net, Protocol::Roce);
        let has_room = self.sessions.table.has_room();
        let source = match (source, control.address.ip()) {
            (None, IpAddr::V6(ip)) if has_room => net.hear(from.port, ip),
            _ => source,
        };
        let Some(source) = source else {
            self.counters.refused += 1;
            return refuse(Reason::NoResources);
        };
        let hop = net.hop_to(Protocol::Roce, source, Some(from), now).ok();
        let Some(hop) = hop.filter(|_| has_room) else {
            if let Some(hop) = hop {
                self.sessions.table.give_back(hop);
            }
            self.counters.refused += 1;
            return refuse(Reason::NoResources);
        };
        let names = self.names(r.from.id, r.from.qpn, Some(control.transaction));
        let addresses = (
            SocketAddrV4::new(self.sessions.ip, r.port),
            SocketAddrV4::new(source, r.source.port()),
        );
        let (config, lender) = (&self.config, self.sessions.lender.clone());
        let ours = Terms::of(config, net, from.port, source);
        self.sessions.accept(now, id, |conn| {
            let phase = Phase::Incoming(id);
            let mut c = Conn::new(conn, names, addresses, phase, config, &lender);
            c.life.hop = Some(hop);
            let started = start(&mut c, config, (&ours, &theirs), &r.from, (net, from.port));
            debug_assert!(started.is_ok(), "a fresh queue pair starts");
            let reply = Message::Reply {
                to: r.from.id,
                from: endpoint(&c, &ours),
            };
            *c.ask() = Some(Ask::new(reply, now));
            c
        });
        None
    }

    /// A reply to a request of ours. Gives its confirmation.
    fn replied(
        &mut self,
        now: NicTime,
        net: &mut Network,
        source: Option<Ipv4Addr>,
        to: u32,
        from: &Endpoint,
    ) -> Option<Message> {
        let reject = Some(Message::Reject {
            to: from.id,
            from: to,
            reason: Reason::Consumer,
        });
        let Some(index) = self.named(to, source, |_| true) else {
            return reject;
        };
        let config = &self.config;
        let c = self.sessions.table.at(index)?;
        let ready = Message::Ready {
            to: from.id,
            from: to,
        };
        if c.life.phase != Phase::Requesting {
            // The confirmation was lost.
            return (c.names.peer == from.id && c.life.phase != Phase::Ending).then_some(ready);
        }
        let (Some(theirs), Some(hop), Some(source)) =
            (Terms::read(&from.private), c.life.hop, source)
        else {
            self.fail_connect(index, Status::ConnectionRefused, Some(0));
            return reject;
        };
        let port = net.port_of(hop);
        let ours = Terms::of(config, net, port, source);
        (c.names.peer, c.names.peer_qpn) = (from.id, from.qpn);
        if start(c, config, (&ours, &theirs), from, (net, port)).is_err() {
            self.fail_connect(index, Status::ConnectionRefused, Some(0));
            return reject;
        }
        self.sessions.connected(index);
        net.confirm(hop, now);
        Some(ready)
    }

    fn rejected(&mut self, source: Option<Ipv4Addr>, to: u32, reason: Reason) {
        let Some(index) = self.named(to, source, |_| true) else {
            return;
        };
        let known = self
            .sessions
            .table
            .at(index)
            .map(|c| (c.life.phase, c.life.peer));
        match known {
            Some((Phase::Requesting, peer)) => {
                match reason {
                    Reason::UnknownSender => tracing::warn!(
                        %peer,
                        "the peer refuses the connection: it does not know this NIC by its address; name this NIC among the peers of its port"
                    ),
                    reason => tracing::debug!(%peer, ?reason, "the peer refuses the connection"),
                }
                let status = match reason {
                    Reason::NoResources => Status::NoResources,
                    Reason::Timeout => Status::TimedOut,
                    Reason::NoService | Reason::UnknownSender | Reason::Consumer => {
                        Status::ConnectionRefused
                    }
                };
                self.fail_connect(index, status, Some(reason.code()));
            }
            Some((Phase::Incoming(_), _)) => self.free(index),
            _ => {}
        }
    }

    /// The peer has ended the connection; `in_order`: after it has closed it, and without a loss.
    fn disconnected(&mut self, index: usize, in_order: bool) {
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        // It has all our bytes when it has ended after our FIN, and we have all of its bytes when
        // we have its FIN. A NIC that ends after a close does not wait for our FIN: it lacks that
        // alone.
        let has_all = c.stream.fin >= Fin::Posted || (in_order && c.has_sent_all());
        let is_over = c.stream.peer_fin && has_all;
        let conn = c.life.id;
        match c.life.phase {
            Phase::Incoming(_) | Phase::Orphan | Phase::Ending => self.free(index),
            Phase::Closing if is_over => {
                self.sessions
                    .events
                    .push_back(TransportEvent::Closed { conn });
                self.free(index);
            }
            Phase::Open if is_over => {
                c.cut(&mut self.sessions.events);
                c.finished = true;
                self.sessions.mark(index);
            }
            Phase::Open | Phase::Closing => {
                c.finished = true;
                self.broken(index);
            }
            Phase::Dead | Phase::Resolving | Phase::Requesting => {}
        }
    }

    /// The peer knows that the connection has ended.
    fn confirmed(&mut self, index: usize) {
        match self.sessions.table.at(index) {
            Some(c) if c.life.phase == Phase::Ending => self.free(index),
            Some(c) if c.life.phase == Phase::Dead => (*c.ask(), c.finished) = (None, true),
            _ => {}
        }
    }

    /// The request of a connection whose way to the peer is known.
    pub(super) fn request_for(
        &mut self,
        index: usize,
        port: usize,
        net: &mut Network,
    ) -> Option<Message> {
        let c = self.sessions.table.at(index)?;
        let (local, peer) = (c.life.local, c.life.peer);
        let ours = Terms::of(&self.config, net, port, *peer.ip());
        let (source, destination) = net.ends(port, *peer.ip());
        Some(Message::Request(Request {
            from: endpoint(c, &ours),
            port: peer.port(),
            source: SocketAddr::new(source, local.port()),
            destination,
            mtu: mtu_code(ours.payload),
            // 4.096 µs × 2^13: 34 ms.
            timeout: 13,
            retries: 7,
        }))
    }
}

/// Our end of a connection, for the peer.
fn endpoint(c: &Conn, ours: &Terms) -> Endpoint {
    Endpoint {
        id: c.names.own,
        qpn: c.key(),
        psn: c.names.psn,
        responder_resources: 0,
        initiator_depth: 0,
        rnr_retries: 7,
        private: ours.bytes(),
    }
}

/// Starts the queue pair of a connection on terms that both ends meet.
///
/// # Errors
/// [`BadTransition`] when it was started before.
fn start(
    c: &mut Conn,
    config: &RdmaConfig,
    (ours, theirs): (&Terms, &Terms),
    peer: &Endpoint,
    (net, port): (&Network, usize),
) -> Result<(), BadTransition> {
    let mtu = ours.payload.min(theirs.payload);
    let flow = net.flow(port, c.source_port(), *c.life.peer.ip());
    let selective = ours.selective && theirs.selective;
    // A port of datagrams has one socket.
    let spreads = selective && !ours.any_identification;
    let ways = if spreads { config.udp_ports } else { 1 };
    c.wire = Wire {
        mtu,
        icrc: !(ours.without_icrc && theirs.without_icrc),
        segmented: theirs.any_identification,
        flow,
        from: match ours.any_identification && theirs.any_identification {
            // A port of datagrams sends and receives by one socket.
            true => flow.to,
            false => SocketAddr::new(flow.to.ip(), 0),
        },
        ways: Ways::new(ways),
    };
    c.stream.open(theirs.window);
    let window = (config.window as u32 / mtu).max(WINDOW_PACKETS);
    let changes = |to, depth: usize, resources, selective: bool| {
        [
            Change::Init,
            Change::Rtr(RtrAttributes {
                peer: to,
                expected: peer.psn,
                mtu,
                resources,
                // 1.28 ms.
                rnr_timer: 14,
                // The peer's window is of the same kind; what lies beyond is sent again.
                early: if selective { window.min(EARLY_MAX) } else { 0 },
            }),
            Change::Rts(RtsAttributes {
                first: c.names.psn,
                depth,
                retries: 7,
                rnr_retries: None,
                give_up: config.give_up,
                pace: PaceConfig {
                    window,
                    timeout_min: config.timeout,
                    timeout_max: Duration::from_secs(1),
                    congestion: config.congestion,
                },
                selective,
            }),
        ]
    };
    let stream = changes(peer.qpn, 0, 0, selective);
    let one_sided = changes(
        one_sided::number(peer.qpn),
        one_sided::DEPTH,
        one_sided::RESOURCES,
        // Early packets behind a refused one would have to be forgotten.
        false,
    );
    let mut events = std::collections::VecDeque::new();
    let mut ends = Ends {
        conn: c.life.id,
        stream: &mut c.stream,
        recvs: None,
        events: &mut events,
    };
    for change in stream {
        c.qp.modify(change, &mut ends)?;
    }
    c.qp.delay_acknowledgements(ACK_DELAY);
    if ways > 1 {
        c.qp.expect_overtaken();
    }
    let (qp, mut client) = c.one_sided.parts(c.life.id, None, &mut events);
    for change in one_sided {
        qp.modify(change, &mut client)?;
    }
    c.one_sided.start(mtu, window);
    Ok(())
}
