//! One connection: its queue pairs, its stream, the operations posted on it, and its connection
//! management.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ringbell_nic_abi::{InlineSend, PdId, RoceOpcode, Status, INLINE_MAX};

use super::config::RdmaConfig;
use super::datagram::{send_datagram, SOURCE_PORT};
use super::one_sided::{OneSided, Peer};
use super::outgoing::{is_at_hand, Outgoing};
use super::stream::{Ends, Fin, Stream, PLACED_MIN};
use super::writes::{word, NAMED};
use crate::datapath::{place, Datapath, Payload, ReceivePath, SendPath, Sent};
use crate::dma::DmaAccess;
use crate::engine::{Direction, EngineFailed};
use crate::memory::lender::Lender;
use crate::network::{Datagrams, Link, Network};
use crate::transport::carried::{Addressed, Carried};
use crate::transport::connections::Connection;
use crate::transport::life::{Ask, Life, Phase};
use crate::transport::ring::Waiting;
use crate::transport::{RecvWork, RemoteWork, Target, TransportEvent};
use crate::types::{Buffer, ConnId, NicTime, WorkToken};
use ringbell_net::port::{Batch, Places};
use ringbell_net::random::Numbers;
use ringbell_net::wire::roce::cm::Message;
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Bth, Extended, Psn, Qpn, Reth, BTH_BYTES, ICRC_BYTES};
use ringbell_net::wire::udp::{ECT0, UNFRAGMENTED};
use ringbell_roce::qp::{QueuePair, State, Transmit};

/// Most bytes around the payload of a packet behind the UDP header: base header, the header of a
/// WRITE and its immediate data, CRC.
pub(super) const AROUND: usize = BTH_BYTES + 20 + ICRC_BYTES;
/// From here on a send leaves by reference. A shorter one is copied, and retires at once: it would
/// wait for its acknowledgement.
const REFERRED_MIN: u32 = 24 << 10;

/// Numbers by which connection management names both ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// Ours; its low 24 bits are the number of our queue pair.
    pub(super) own: u32,
    /// The peer's, once it is known.
    pub(super) peer: u32,
    pub(super) peer_qpn: Qpn,
    pub(super) transaction: u64,
    /// The first number of our requests.
    pub(super) psn: Psn,
}

/// What both ends have agreed on about packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wire {
    /// Bytes of a full packet.
    pub(super) mtu: u32,
    /// Whether the CRC counts.
    pub(super) icrc: bool,
    /// The kernel may cut packets from larger ones: the peer sees no identification of IPv4.
    pub(super) segmented: bool,
    /// Our packets' addresses, and those that the peer's must have, with any source port where it
    /// is 0.
    pub(super) flow: Flow,
    pub(super) from: SocketAddr,
    pub(super) ways: Ways,
}

/// The ways by which packets of the stream leave in turn: bits of their UDP source port. A repeated
/// packet takes the next one, as the way of the lost one may be cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    pub(super) all: u16,
    next: u16,
}

impl Ways {
    pub(super) fn new(all: u16) -> Ways {
        Ways { all, next: 0 }
    }

    #[inline]
    fn take(&mut self) -> u16 {
        let way = self.next;
        let next = way + 1;
        self.next = if next == self.all { 0 } else { next };
        way
    }
}

impl Wire {
    /// What the CRC of a packet covers that leaves by this way.
    fn flow_by(&self, way: u16) -> Flow {
        let mut flow = self.flow;
        flow.from.set_port(flow.from.port() ^ way);
        flow
    }

    /// Whether a packet from there may be the peer's.
    pub(super) fn is_from(&self, address: SocketAddr) -> bool {
        let any_port = self.from.port() == 0;
        address.ip() == self.from.ip() && (any_port || address.port() == self.from.port())
    }
}

impl Default for Wire {
    fn default() -> Wire {
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Wire {
            mtu: 0,
            icrc: true,
            segmented: false,
            flow: Flow {
                from: none,
                to: none,
                fragment: UNFRAGMENTED,
            },
            from: none,
            ways: Ways::new(1),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(in crate::transport) struct Conn {
    pub(super) life: Life,
    pub(super) names: Names,
    pub(super) qp: QueuePair,
    pub(super) stream: Stream,
    pub(super) one_sided: OneSided,
    pub(super) wire: Wire,
    ask: Option<Ask<Message>>,
    /// When the peer is probed next, if its end is to be noticed soon.
    pub(super) probe_at: Option<NicTime>,
    /// Both directions have ended, and the peer has ended the connection.
    pub(super) finished: bool,
    /// The queue pair of one-sided operations sends next.
    one_sided_next: bool,
}

impl Connection for Conn {
    type Key = Qpn;

    fn key(&self) -> Qpn {
        Qpn::new(self.names.own)
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Carried for Conn {
    type End = u32;
    type Message = Message;

    fn end_of_peer(&self) -> u32 {
        self.names.peer
    }

    fn ask(&mut self) -> &mut Option<Ask<Message>> {
        &mut self.ask
    }

    fn say(&self, message: &Message, now: NicTime, to: Link, net: &mut Network) -> bool {
        let datagram = message.emit(self.names.transaction);
        let flow = net.flow(to.port, SOURCE_PORT, *self.life.peer.ip());
        send_datagram(net, now, to, &flow, &datagram)
    }

    fn addressed(&self) -> Option<Addressed> {
        self.qp.state().answers().then(|| Addressed {
            flow: self.wire.flow,
            how: Datagrams {
                ecn: ECT0,
                segmented: self.wire.segmented,
            },
            longest: AROUND + self.wire.mtu as usize,
        })
    }

    fn is_repeating(&self) -> bool {
        self.qp.is_repeating() || self.one_sided.is_repeating()
    }

    fn prepare(&mut self, most: usize, data: &mut Datapath<'_>) {
        self.one_sided.post_requests();
        // The end of the stream waits for what an engine has kept, and for one-sided operations.
        let ends_now = self.stream.fin == Fin::Wanted
            && self.one_sided.is_idle()
            && self.life.sends.unsent().is_none()
            && self.life.sends.finish(data) == Ok(true);
        // What is posted stands before what comes later, as a count for which the peer waits. One
        // more than leaves now: a packet with others behind it asks for no acknowledgement.
        while self.qp.room() > 0 && self.qp.waiting() <= most {
            let Some(work) = self.stream.next_work(self.wire.mtu, ends_now) else {
                break;
            };
            let posted = self.qp.post(work);
            debug_assert!(posted, "a queue pair with room takes work");
        }
    }

    /// Of one queue pair when the other has none.
    fn append(
        &mut self,
        now: NicTime,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        // In turn, so that a busy stream does not keep the others waiting.
        self.one_sided_next ^= true;
        let first = self.one_sided_next;
        let made = [first, !first].into_iter().find(|&one_sided| {
            let made = match one_sided {
                true if self.one_sided.is_at_rest() => return false,
                true => {
                    let (qp, mut peer) = self.peer(data, events);
                    qp.append(now, batch, &mut peer)
                }
                false => {
                    let (qp, mut ends) = self.ends(data, events);
                    qp.append(now, batch, &mut ends)
                }
            };
            matches!(made, Transmit::Packet(_))
        });
        if let Some(one_sided) = made {
            // One-sided operations repeat all behind a late packet, so theirs keep one way.
            let way = if one_sided { 0 } else { self.wire.ways.take() };
            let flow = self.wire.icrc.then(|| self.wire.flow_by(way));
            batch.seal(flow.as_ref());
            batch.end_by(way);
        }
        Ok(made.is_some())
    }

    fn receiving(&mut self) -> (Waiting<'_>, &mut ReceivePath) {
        let waiting = Waiting {
            rx: &mut self.stream.rx,
            ended: self.life.peer_closed,
        };
        (waiting, &mut self.life.recvs)
    }

    fn failed(&mut self) -> &mut Option<EngineFailed> {
        &mut self.stream.failed
    }

    fn must_announce(&self) -> bool {
        self.stream.must_announce()
    }

    fn expect(&self, places: &mut Places, data: &mut Datapath<'_>) {
        let is_plain = self.life.phase == Phase::Open
            && self.wire.mtu >= PLACED_MIN
            && !data.on_path(self.life.id, Direction::Receive);
        let Some(psn) = self.qp.expects().filter(|_| is_plain) else {
            return;
        };
        let (mtu, key) = (self.wire.mtu, self.key());
        if self.life.recvs.has_begun() || self.stream.exposed.is_empty() {
            if !self.stream.takes_directly() {
                return;
            }
            let first = Head {
                bth: Bth::new(RoceOpcode::SendOnly, key, psn),
                extended: Extended::None,
            };
            places.begin(self.wire.from, first, mtu as usize);
            return self.life.recvs.places(mtu as usize, places, data.dma);
        }
        let next = self.stream.exposed.expected();
        let Some((r, buffer)) = next.and_then(|r| Some((r, r.buffer()?))) else {
            return;
        };
        let left = buffer.len - r.done;
        let length = left.min(mtu);
        let reth = Reth {
            address: r.done.into(),
            key: r.key,
            length,
        };
        let (opcode, extended) = match length == left {
            true => (
                RoceOpcode::WriteOnlyImm,
                Extended::RethImmediate(reth, word(r.key)),
            ),
            false => (RoceOpcode::WriteOnly, Extended::Reth(reth)),
        };
        // A packet with padding is copied, as a short one is.
        if length < PLACED_MIN || !length.is_multiple_of(4) {
            return;
        }
        let bth = Bth::new(opcode, key, psn);
        places.begin(self.wire.from, Head { bth, extended }, length as usize);
        // The last packet has another header.
        let most = ((left - 1) / length).max(1);
        place(&buffer, r.done, (length as usize, most), places, data.dma);
    }

    fn send_now(&mut self, payload: &InlineSend) -> bool {
        let is_open = self.life.phase == Phase::Open && self.refuses_sends().is_none();
        if !is_open || !self.life.sends.is_empty() {
            return false;
        }
        let mut bytes = [0; INLINE_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(payload.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.stream.tx.try_push(&bytes[..payload.len.into()])
    }

    fn write_to(&mut self, send: WorkToken, to: Target) {
        self.stream.writes.post(send, to);
    }

    fn expose(&mut self, work: &RecvWork, in_use: bool, numbers: &mut Numbers) -> Option<u32> {
        let draw = || numbers.draw() as u32;
        Some(self.stream.exposed.open(*work, in_use, NAMED, draw))
    }

    fn post_remote(&mut self, work: RemoteWork) {
        self.one_sided.post(work);
    }

    fn grant(&mut self, pd: PdId) {
        self.one_sided.grant(pd);
    }

    fn cancel(&mut self, token: WorkToken, events: &mut VecDeque<TransportEvent>) -> Option<u64> {
        if let Some(n) = self.one_sided.cancel(self.life.id, token, events) {
            return Some(n);
        }
        if let Some((_, n)) = self.stream.exposed.cancel(token) {
            return Some(n);
        }
        if let Some(s) = self.life.sends.cancel(token) {
            self.stream.writes.drop_target(Some(token));
            self.stream.tx.withdraw(Some(token));
            // What lies in its memory is lost to the stream.
            return Some(s.bytes.max(s.referred.into()));
        }
        self.life.recvs.cancel(token)
    }

    fn undelivered(&self) -> u64 {
        self.stream.unacknowledged()
    }

    fn refuses_sends(&self) -> Option<(Status, u64)> {
        let status = match self.life.phase {
            Phase::Dead => return Some(self.life.end(0)),
            _ if self.stream.fin != Fin::Open => Status::NotConnected,
            // The peer's end was in order, but it takes nothing any more.
            _ if self.finished => Status::ConnectionReset,
            _ => return None,
        };
        Some((status, 0))
    }

    fn refuses_receives(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Closing => Some((Status::NotConnected, 0)),
            Phase::Dead => Some(self.life.end(0)),
            _ => None,
        }
    }

    fn end_stream(&mut self) {
        self.stream.fin = self.stream.fin.max(Fin::Wanted);
    }

    fn stop_receiving(&mut self, events: &mut VecDeque<TransportEvent>) {
        let ended = (Status::NotConnected, 0);
        self.one_sided.revoke();
        self.life.recvs.fail_all(ended, events);
        self.stream.exposed.fail_all(self.life.id, ended, events);
    }

    fn is_over(&self) -> bool {
        self.finished
    }

    fn fail_all(&mut self, status: (Status, u64), events: &mut VecDeque<TransportEvent>) {
        self.stream.tx.withdraw(None);
        self.life.sends.fail_all(status, events);
        self.life.recvs.fail_all(status, events);
        self.stream.exposed.fail_all(self.life.id, status, events);
        self.stream.writes.drop_target(None);
        self.one_sided.fail_all(self.life.id, status, events);
    }

    fn wake_at(&self) -> Option<NicTime> {
        NicTime::earliest([
            self.ask.map(|a| a.next),
            self.life.deadline,
            self.qp.next_timer(),
            self.one_sided.next_timer(),
            self.probe_at,
        ])
    }

    fn has_more(&mut self) -> bool {
        self.one_sided.take_pending()
    }

    fn spare(&self) -> usize {
        self.qp.spare() + self.one_sided.spare()
    }

    fn shrink(&mut self) {
        self.qp.shrink();
        self.one_sided.shrink();
        self.stream.shrink();
        self.life.sends.shrink();
        self.life.recvs.shrink();
    }
}

impl Conn {
    pub(super) fn new(
        id: ConnId,
        names: Names,
        addresses: (SocketAddrV4, SocketAddrV4),
        phase: Phase,
        config: &RdmaConfig,
        lender: &Lender,
    ) -> Conn {
        Conn {
            life: Life::new(id, addresses, phase),
            names,
            qp: QueuePair::new(),
            stream: Stream::new(config.tx_buffer, config.rx_buffer, lender),
            one_sided: OneSided::default(),
            wire: Wire::default(),
            ask: None,
            probe_at: None,
            finished: false,
            one_sided_next: false,
        }
    }

    /// UDP source port: one for each connection, so that switches spread them (annex A17
    /// §A17.3.1.2).
    pub(super) fn source_port(&self) -> u16 {
        let mixed = self.names.own ^ self.names.peer_qpn.value();
        0xc000 | (mixed ^ mixed >> 14) as u16 & 0x3fff
    }

    /// Whether the peer has all that was sent so far, but for the end of the stream.
    pub(super) fn has_sent_all(&self) -> bool {
        self.stream.unacknowledged() == 0 && self.life.sends.is_empty() && self.one_sided.is_idle()
    }

    /// Whether nothing that the peer has sent was lost by a close.
    pub(super) fn has_lost_nothing(&self) -> bool {
        self.stream.rx.is_empty() && !self.one_sided.is_asked()
    }

    /// Tells the peer that the connection ends, and whether in order.
    pub(super) fn disconnect(&self, in_order: bool) -> Ask<Message> {
        let end = Message::Disconnect {
            to: self.names.peer,
            from: self.names.own,
            qpn: self.names.peer_qpn,
            in_order,
        };
        Ask::new(end, NicTime::default())
    }

    /// The queue pair with its client, where bytes may arrive.
    pub(super) fn ends<'a, 'd>(
        &'a mut self,
        data: &'a mut Datapath<'d>,
        events: &'a mut VecDeque<TransportEvent>,
    ) -> (&'a mut QueuePair, Ends<'a, 'd>) {
        let ends = Ends {
            conn: self.life.id,
            stream: &mut self.stream,
            recvs: Some((&mut self.life.recvs, data)),
            events,
        };
        (&mut self.qp, ends)
    }

    /// The queue pair of one-sided operations with its client.
    pub(super) fn peer<'a, 'd>(
        &'a mut self,
        data: &'a mut Datapath<'d>,
        events: &'a mut VecDeque<TransportEvent>,
    ) -> (&'a mut QueuePair, Peer<'a, 'd>) {
        self.one_sided.parts(self.life.id, Some(data), events)
    }

    /// Acts on timers of the queue pairs that have come.
    pub(super) fn expire(
        &mut self,
        now: NicTime,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let (qp, mut ends) = self.ends(data, events);
        qp.expire(now, &mut ends);
        if self.one_sided.is_at_rest() {
            return;
        }
        let (qp, mut peer) = self.peer(data, events);
        qp.expire(now, &mut peer);
    }

    /// Whether a queue pair has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.qp.state() == State::Err || self.one_sided.has_failed()
    }

    /// Ends the queue pairs.
    pub(super) fn cut(&mut self, events: &mut VecDeque<TransportEvent>) {
        let mut ends = Ends {
            conn: self.life.id,
            stream: &mut self.stream,
            recvs: None,
            events,
        };
        self.qp.fail(&mut ends);
        let (qp, mut peer) = self.one_sided.parts(self.life.id, None, events);
        qp.fail(&mut peer);
    }

    /// Retires sends that the peer has, and takes the bytes of others into the stream. Returns
    /// whether anything moved.
    ///
    /// # Errors
    /// The engine on the path has failed.
    pub(super) fn pump_sends(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let before = events.len();
        let mut moved = false;
        self.life.pending = false;
        self.life.sends.acknowledge(self.stream.tx.start(), events);
        let on_path = data.on_path(self.life.id, Direction::Send);
        if self.life.sends.unsent().is_none() && !on_path {
            return Ok(events.len() != before);
        }
        while self.stream.tx.free() > 0 {
            let next = self.life.sends.unsent();
            let next = next.map(|(w, done)| (w.token, done, w.payload.len()));
            // What an engine has made may be as long as there is room.
            let wanted = match next {
                Some((_, done, len)) if !on_path => (len - done) as usize,
                None if !on_path => break,
                _ => usize::MAX,
            };
            let tx = &mut self.stream.tx;
            let sent = match referable(self.life.id, tx, &self.life.sends, data) {
                Some(Long { n: 0, .. }) => break,
                Some(Long { token, from, at, n }) => {
                    tx.refer(token, from, at, n);
                    // Such memory answers at once.
                    let read = |dma: &mut dyn DmaAccess, at: u32, to: &mut [u8]| {
                        dma.read(&from, at.into(), to).map(|_| ())
                    };
                    self.life.sends.refer(n, tx.end(), data, events, read)
                }
                // Without memory this goes on when some of it is acknowledged.
                None => {
                    let sent = self.life.sends.fill(tx.room(wanted), data, events);
                    tx.filled(if let Sent::Bytes(n) = sent { n } else { 0 });
                    if let Sent::Bytes(0) = sent {
                        break;
                    }
                    sent
                }
            };
            match sent {
                Sent::Bytes(n) => {
                    moved = true;
                    let writes = &mut self.stream.writes;
                    if let Some((token, done, len)) = next {
                        if let Some(to) = writes.target(token) {
                            // Of one send, which has no more than 2^32 - 1.
                            let n = n as u32;
                            let is_all = done + n == len;
                            writes.add((token, to), self.stream.tx.end(), n, done, is_all);
                        }
                    }
                }
                Sent::Pending => {
                    self.life.pending = true;
                    break;
                }
                Sent::Fault(_) => {}
                Sent::Failed(failed) => return Err(failed),
            }
        }
        Ok(moved || events.len() != before)
    }
}

/// Bytes of a send that leave by reference.
struct Long {
    token: WorkToken,
    from: Buffer,
    at: u32,
    n: u32,
}

/// The next bytes to leave by reference; none of them when there is too little room. `None`: the
/// next are copied.
fn referable(
    conn: ConnId,
    tx: &Outgoing,
    sends: &SendPath,
    data: &mut Datapath<'_>,
) -> Option<Long> {
    let (work, at) = sends.unsent()?;
    let Payload::Memory(from) = work.payload else {
        return None;
    };
    let left = from.len - at;
    let is_changed = data.transforms(conn) || data.held(conn, Direction::Send) > 0;
    if left < REFERRED_MIN
        || is_changed
        || sends.pending() > 0
        || tx.capacity() < 4 * REFERRED_MIN as usize
    {
        return None;
    }
    // At most the capacity, which a count of the window can hold.
    let n = left.min(tx.free() as u32);
    let n = if n < REFERRED_MIN { 0 } else { n };
    let token = work.token;
    is_at_hand(&from, at.into(), n as usize, data.dma).then_some(Long { token, from, at, n })
}
