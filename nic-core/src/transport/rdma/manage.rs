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

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_UDP_PORT};
use ringbell_nic_abi::{RoceOpcode, Status};

use super::conn::{Ask, Conn, Phase, Wire};
use super::qp::{BadTransition, Change, PaceConfig, RtrAttributes, RtsAttributes};
use super::stream::{Ends, Fin};
use super::{one_sided, waiter, Icrc, RdmaConfig, RdmaTransport};
use crate::network::{Datagrams, Link, Network, Protocol};
use crate::port::{Batch, Checksums};
use crate::transport::connections::{index_of, Connection};
use crate::transport::TransportEvent;
use crate::types::NicTime;
use crate::wire::roce::cm::{Endpoint, Message, Reason, Request, PRIVATE_BYTES};
use crate::wire::roce::extended::Deth;
use crate::wire::roce::icrc::Flow;
use crate::wire::roce::mad::MAD_BYTES;
use crate::wire::roce::packet::Head;
use crate::wire::roce::{Bth, Extended, Psn, Qpn, BTH_BYTES, ICRC_BYTES};
use crate::wire::udp::ECT0;

/// A reply that is not confirmed after this long is dropped.
/// The UDP source port of management in frames: one for all, since they are few.
const SOURCE_PORT: u16 = ROCE_UDP_PORT;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// Most bytes around the payload of a packet behind the UDP header: base header, the header of a WRITE and its immediate data, CRC.
pub(super) const AROUND: usize = BTH_BYTES + 20 + ICRC_BYTES;
/// How long an acknowledgement of short messages waits for answers of the program, with one of which it leaves in one system call.
const ACK_DELAY: Duration = Duration::from_micros(30);
/// Fewest packets in flight that a window allows.
const WINDOW_PACKETS: u32 = 8;
/// Most packets that are kept when others before them are missing: as many as a report has bits.
const EARLY_MAX: u32 = 4_096;

/// A message that came in.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) from: Link,
    /// Where it came from.
    pub(super) address: SocketAddr,
    pub(super) message: Message,
    pub(super) transaction: u64,
}

impl Letter {
    /// Whether it asks for a connection from a port of datagrams, which receives by the socket that it sends by.
    fn is_from_datagrams(&self) -> bool {
        let Message::Request(r) = &self.message else {
            return false;
        };
        Terms::read(&r.from.private).is_some_and(|terms| terms.any_identification)
    }
}

/// What a NIC of this kind says of itself in private data.
///
/// ```text
/// | "RBEL" | version | features | 0 0 | window (4) | bytes of a packet (4) |
/// features: 1 packets need no invariant CRC, 2 any identification of IPv4, 4 packets that come early are kept
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    window: u32,
    payload: u32,
    without_icrc: bool,
    /// The port is one of datagrams: it sees no identification of IPv4, and takes any.
    any_identification: bool,
    selective: bool,
}

const MAGIC: &[u8; 4] = b"RBEL";
const VERSION: u8 = 2;
const WITHOUT_ICRC: u8 = 1;
const ANY_IDENTIFICATION: u8 = 2;
const SELECTIVE: u8 = 4;

impl Terms {
    fn bytes(&self) -> [u8; PRIVATE_BYTES] {
        let mut bytes = [0; PRIVATE_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        let set = |on, bit| if on { bit } else { 0 };
        bytes[5] = set(self.without_icrc, WITHOUT_ICRC)
            | set(self.any_identification, ANY_IDENTIFICATION)
            | set(self.selective, SELECTIVE);
        bytes[8..12].copy_from_slice(&self.window.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.payload.to_be_bytes());
        bytes
    }

    /// `None`: another kind of program, or terms that cannot be met.
    fn read(bytes: &[u8; PRIVATE_BYTES]) -> Option<Terms> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let terms = Terms {
            window: word(8),
            payload: word(12),
            without_icrc: bytes[5] & WITHOUT_ICRC != 0,
            any_identification: bytes[5] & ANY_IDENTIFICATION != 0,
            selective: bytes[5] & SELECTIVE != 0,
        };
        let is_ours = &bytes[..4] == MAGIC && bytes[4] == VERSION;
        (is_ours && terms.window >= 4_096 && terms.payload >= 256).then_some(terms)
    }

    fn of(config: &RdmaConfig, net: &mut Network, number: usize, peer: Ipv4Addr) -> Terms {
        let payload = net.payload_to(number, peer).saturating_sub(AROUND) & !3;
        let payload = payload.min(config.payload_max);
        let host = net.flow(number, 0, peer).to;
        let port = &net.ports()[number];
        let of_datagrams = port.frames().is_none();
        Terms {
            // At most 64 MiB, and an MTU.
            window: config.rx_buffer.next_power_of_two() as u32,
            payload: payload as u32,
            without_icrc: match config.icrc {
                Icrc::Auto if of_datagrams => host.ip().is_loopback(),
                Icrc::Auto => port.checksums() == Checksums::Omitted,
                Icrc::Always => false,
                Icrc::Never => true,
            },
            any_identification: of_datagrams,
            selective: config.selective,
        }
    }
}

/// Code of the largest standard MTU that is no larger (§12.6.5): 1 to 5 for 256 to 4,096.
fn mtu_code(payload: u32) -> u8 {
    (1..=5)
        .rev()
        .find(|code| 128 << code <= payload)
        .unwrap_or(1)
}

/// Sends a datagram to queue pair 1 of the other end of a flow. `false`: there was no room.
fn send_datagram(
    net: &mut Network,
    now: NicTime,
    to: Link,
    flow: &Flow,
    datagram: &[u8; MAD_BYTES],
) -> bool {
    let gsi = Qpn::new(QPN_GSI);
    let head = Head {
        bth: Bth::new(RoceOpcode::DatagramSend, gsi, Psn::new(0)),
        extended: Extended::Datagram(Deth {
            key: QKEY_GSI,
            source: gsi,
            reserved: 0,
        }),
    };
    let how = Datagrams {
        ecn: ECT0,
        segmented: false,
    };
    let mut batch = Batch::new();
    let len = head.len() + MAD_BYTES;
    let room = batch.room(len);
    room[head.len()..].copy_from_slice(datagram);
    head.emit(room, MAD_BYTES);
    batch.seal(Some(flow));
    batch.end();
    net.send(now, to, flow, &how, &batch, 0) == 1
}

impl RdmaTransport {
    /// Acts on the messages that came in. Returns whether there were any.
    pub(super) fn read_letters(&mut self, now: NicTime, net: &mut Network) -> bool {
        let any = !self.letters.is_empty();
        while let Some(letter) = self.letters.pop_front() {
            let (from, transaction) = (letter.from, letter.transaction);
            let has_one_socket = letter.is_from_datagrams();
            let source = net.sender(from.port, letter.address);
            let answer = match letter.message {
                Message::Request(r) => self.requested(now, net, (source, &letter), &r),
                Message::Reply { to, from } => self.replied(now, net, source, to, &from),
                Message::Ready { to, from } => {
                    if let Some(index) = self.named(to, source, |c| c.names.peer == from) {
                        self.accept(index);
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
                let mut flow = net.answer_flow(from.port, SOURCE_PORT, letter.address);
                if has_one_socket {
                    // Also where we do not know the sender, which then learns that.
                    flow.to = letter.address;
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
        let index = self.table.find(Qpn::new(id))?;
        let c = self.table.at(index)?;
        (c.names.own == id && Some(*c.peer.ip()) == source && is_it(c)).then_some(index)
    }

    /// A request for a connection. Gives an answer that refuses it.
    fn requested(
        &mut self,
        now: NicTime,
        net: &mut Network,
        (source, letter): (Option<Ipv4Addr>, &Letter),
        r: &Request,
    ) -> Option<Message> {
        let from = letter.from;
        let known = source.and_then(|source| self.requests.get(&(source, r.from.id)));
        if let Some(&index) = known {
            // It came before: the reply was lost.
            let c = self.table.at(index)?;
            if let (Phase::Incoming(_), Some(ask)) = (c.phase, &mut c.ask) {
                ask.next = now;
                self.mark(index);
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
        let Some(listener) = self.listeners.at(r.port) else {
            self.counters.refused += 1;
            return refuse(Reason::NoService);
        };
        let terms = Terms::read(&r.from.private);
        let is_sender = match r.source.ip() {
            IpAddr::V4(ip) => Some(ip) == source,
            IpAddr::V6(_) => r.source.ip() == letter.address.ip(),
        };
        let is_meant = is_sender && net.is_own(from.port, r.destination);
        if !is_sender {
            self.counters.refused += 1;
            tracing::warn!(
                at = %letter.address, named = %r.source,
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
        self.table.release_hops(net, Protocol::Roce);
        let has_room = self.table.has_room();
        let source = match (source, letter.address.ip()) {
            (None, IpAddr::V6(ip)) if has_room => net.hear(from.port, ip),
            _ => source,
        };
        let Some(source) = source else {
            self.counters.refused += 1;
            return refuse(Reason::NoResources);
        };
        let key = (source, r.from.id);
        let hop = net.hop_to(Protocol::Roce, source, Some(from), now).ok();
        let Some(hop) = hop.filter(|_| has_room) else {
            if let Some(hop) = hop {
                net.release(hop, waiter(usize::MAX));
            }
            self.counters.refused += 1;
            return refuse(Reason::NoResources);
        };
        let names = self.names(r.from.id, r.from.qpn, Some(letter.transaction));
        let local = SocketAddrV4::new(self.ip, r.port);
        let peer = SocketAddrV4::new(source, r.source.port());
        let config = &self.config;
        let conn = self.table.insert(|conn| {
            let mut c = Conn::new(conn, names, local, peer, Phase::Incoming(id), config);
            c.hop = Some(hop);
            c.deadline = Some(now.plus(HANDSHAKE));
            c
        })?;
        let index = index_of(conn);
        let ours = Terms::of(config, net, from.port, source);
        let c = self.table.at(index)?;
        let started = start(c, config, (&ours, &theirs), &r.from, (net, from.port));
        debug_assert!(started.is_ok(), "a fresh queue pair starts");
        c.ask = Some(Ask::new(
            Message::Reply {
                to: r.from.id,
                from: endpoint(c, &ours),
            },
            now,
        ));
        self.listeners.handshake(id);
        self.requests.insert(key, index);
        self.mark(index);
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
        let c = self.table.at(index)?;
        let ready = Message::Ready {
            to: from.id,
            from: to,
        };
        if c.phase != Phase::Requesting {
            // The confirmation was lost.
            return (c.names.peer == from.id && c.phase != Phase::Ending).then_some(ready);
        }
        let (Some(theirs), Some(hop), Some(source)) = (Terms::read(&from.private), c.hop, source)
        else {
            self.fail_connect(index, Status::ConnectionRefused);
            return reject;
        };
        let port = net.port_of(hop);
        let ours = Terms::of(config, net, port, source);
        (c.names.peer, c.names.peer_qpn) = (from.id, from.qpn);
        if start(c, config, (&ours, &theirs), from, (net, port)).is_err() {
            self.fail_connect(index, Status::ConnectionRefused);
            return reject;
        }
        (c.ask, c.deadline, c.phase) = (None, None, Phase::Open);
        let conn = c.id;
        self.events.push_back(TransportEvent::Connected { conn });
        net.confirm(hop, now);
        self.mark(index);
        Some(ready)
    }

    /// The peer has confirmed our reply, or has begun to use the connection.
    pub(super) fn accept(&mut self, index: usize) {
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
        self.mark(index);
    }

    fn rejected(&mut self, source: Option<Ipv4Addr>, to: u32, reason: Reason) {
        let Some(index) = self.named(to, source, |_| true) else {
            return;
        };
        let known = self.table.at(index).map(|c| (c.phase, c.peer));
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
                self.fail_connect_for(index, status, reason.code());
            }
            Some((Phase::Incoming(listener), _)) => {
                self.listeners.handshake_over(listener, false);
                self.free(index);
            }
            _ => {}
        }
    }

    /// The peer has ended the connection; `in_order`: after it has closed it, and without a loss.
    fn disconnected(&mut self, index: usize, in_order: bool) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        // It has all our bytes when it has ended after our FIN, and we have all of its bytes when we have its FIN.
        // A NIC that ends after a close does not wait for our FIN: it lacks that alone.
        let has_all = c.stream.fin >= Fin::Posted || (in_order && c.has_sent_all());
        let is_over = c.stream.peer_fin && has_all;
        let conn = c.id;
        match c.phase {
            Phase::Incoming(listener) => {
                self.listeners.handshake_over(listener, false);
                self.free(index);
            }
            Phase::Orphan | Phase::Ending => self.free(index),
            Phase::Closing if is_over => {
                self.events.push_back(TransportEvent::Closed { conn });
                self.free(index);
            }
            Phase::Open if is_over => {
                c.cut(&mut self.events);
                c.seen.finished = true;
                self.mark(index);
            }
            Phase::Open | Phase::Closing => {
                c.seen.finished = true;
                self.broken(index);
            }
            Phase::Dead | Phase::Resolving | Phase::Requesting => {}
        }
    }

    /// The peer knows that the connection has ended.
    fn confirmed(&mut self, index: usize) {
        match self.table.at(index) {
            Some(c) if c.phase == Phase::Ending => self.free(index),
            Some(c) if c.phase == Phase::Dead => (c.ask, c.seen.finished) = (None, true),
            _ => {}
        }
    }

    /// An outgoing connection failed: its operations retire, its id is free.
    pub(super) fn fail_connect(&mut self, index: usize, status: Status) {
        self.fail_connect_for(index, status, 0);
    }

    /// The same for a reason that the peer has given.
    fn fail_connect_for(&mut self, index: usize, status: Status, reason: u16) {
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
            reason,
        });
        self.free(index);
    }

    /// Sends what a connection asks, when it is due. `false`: there is no room.
    pub(super) fn ask(&mut self, index: usize, now: NicTime, net: &mut Network) -> bool {
        let Some(c) = self.table.at(index) else {
            return true;
        };
        let (Some(link), Some(ask)) = (c.hop.and_then(|hop| net.link(hop)), &mut c.ask) else {
            return true;
        };
        if now < ask.next {
            return true;
        }
        let datagram = ask.message.emit(c.names.transaction);
        let flow = net.flow(link.port, SOURCE_PORT, *c.peer.ip());
        if !send_datagram(net, now, link, &flow, &datagram) {
            return false;
        }
        ask.tried(now);
        if let Some(hop) = c.hop {
            // The hardware address may be that of another host by now, or a wrong one.
            net.probe_stale(hop, now);
        }
        true
    }

    /// The request of a connection whose way to the peer is known.
    pub(super) fn request(&mut self, index: usize, now: NicTime, net: &mut Network) {
        let config = &self.config;
        let Some(c) = self.table.at(index) else {
            return;
        };
        let Some(hop) = c.hop else { return };
        let port = net.port_of(hop);
        let ours = Terms::of(config, net, port, *c.peer.ip());
        let (source, destination) = net.ends(port, *c.peer.ip());
        let request = Message::Request(Request {
            from: endpoint(c, &ours),
            port: c.peer.port(),
            source: SocketAddr::new(source, c.local.port()),
            destination,
            mtu: mtu_code(ours.payload),
            // 4.096 µs × 2^13: 34 ms.
            timeout: 13,
            retries: 7,
        });
        c.ask = Some(Ask::new(request, now));
        c.phase = Phase::Requesting;
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
    let flow = net.flow(port, c.source_port(), *c.peer.ip());
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
    let stream = changes(peer.qpn, 0, 0, ours.selective && theirs.selective);
    let one_sided = changes(
        one_sided::number(peer.qpn),
        one_sided::DEPTH,
        one_sided::RESOURCES,
        // Early packets behind a refused one would have to be forgotten.
        false,
    );
    let mut events = std::collections::VecDeque::new();
    let mut ends = Ends {
        conn: c.id,
        stream: &mut c.stream,
        recvs: None,
        events: &mut events,
    };
    for change in stream {
        c.qp.modify(change, &mut ends)?;
    }
    c.qp.delay_acknowledgements(ACK_DELAY);
    let (qp, mut client) = c.one_sided.parts(c.id, None, &mut events);
    for change in one_sided {
        qp.modify(change, &mut client)?;
    }
    c.one_sided.start(mtu, window);
    Ok(())
}
