//! One connection: its queue pairs, its stream, the operations posted on it, and its connection management.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::{RoceOpcode, Status};

use super::one_sided::{OneSided, Peer};
use super::outgoing::{is_mapped, Outgoing};
use super::qp::{QueuePair, State, Transmit};
use super::stream::{Ends, Stream, PLACED_MIN};
use super::RdmaConfig;
use crate::datapath::{place, Datapath, Filled, Payload, ReceivePath, SendPath, Sent};
use crate::dma::DmaAccess;
use crate::engine::{Direction, EngineFailed};
use crate::port::{Batch, Places};
use crate::transport::connections::Connection;
use crate::transport::ring::Waiting;
use crate::transport::TransportEvent;
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};
use crate::wire::roce::cm::Message;
use crate::wire::roce::icrc::Flow;
use crate::wire::roce::packet::Head;
use crate::wire::roce::{Bth, Extended, Psn, Qpn, Reth};
use crate::wire::udp::UNFRAGMENTED;

/// Time to the second try of a message of connection management; it doubles.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Tries to tell a peer that a connection ends.
const GOODBYES: u32 = 5;
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);
/// From here on a send leaves by reference. A shorter one is copied, and retires at once: it would wait for its acknowledgement.
const REFERRED_MIN: u32 = 24 << 10;

/// Phase of a connection as reported to the layer above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the neighbour's hardware address.
    Resolving,
    /// The request is out.
    Requesting,
    /// A request came in for this listener; the reply is out.
    Incoming(ListenerId),
    /// Reported as established.
    Open,
    /// Reported as reset; the id stays until it is closed.
    Dead,
    /// `close` was called and not yet answered.
    Closing,
    /// The id was given back; the peer has not ended its direction.
    Orphan,
    /// The id was given back, and the peer was told that the connection ends.
    Ending,
}

/// A message that is sent until it is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) message: Message,
    pub(super) next: NicTime,
    pub(super) tries: u32,
}

impl Ask {
    pub(super) fn new(message: Message, now: NicTime) -> Ask {
        Ask {
            message,
            next: now,
            tries: 0,
        }
    }

    /// It was sent often enough without an answer.
    pub(super) fn has_failed(&self, now: NicTime) -> bool {
        self.tries >= GOODBYES && self.next <= now
    }

    /// It was sent.
    pub(super) fn tried(&mut self, now: NicTime) {
        let wait = ASK_AGAIN
            .saturating_mul(1 << self.tries.min(8))
            .min(ASK_AGAIN_MAX);
        self.tries += 1;
        self.next = now.plus(wait);
    }
}

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
    /// Our packets' addresses, and those that the peer's must have, with any source port where it is 0.
    pub(super) flow: Flow,
    pub(super) from: SocketAddr,
}

impl Wire {
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
        }
    }
}

/// Probes of a connection whose end is to be noticed soon.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probes {
    pub(super) watched: bool,
    pub(super) next: Option<NicTime>,
    /// How often the peer's host has refused a packet since it last answered.
    pub(super) refused: u32,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) names: Names,
    pub(super) phase: Phase,
    pub(super) local: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    pub(super) qp: QueuePair,
    pub(super) stream: Stream,
    pub(super) sends: SendPath,
    pub(super) recvs: ReceivePath,
    pub(super) one_sided: OneSided,
    /// Way to the peer.
    pub(super) hop: Option<usize>,
    pub(super) wire: Wire,
    pub(super) ask: Option<Ask>,
    /// End of an attempt to connect, or of an orphan.
    pub(super) deadline: Option<NicTime>,
    pub(super) probes: Probes,
    /// What the last service has seen.
    pub(super) seen: Seen,
}

/// What was reported, and what is queued.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Waits to be served.
    pub(super) queued: bool,
    /// A packet of the peer has come.
    pub(super) heard: bool,
    /// `PeerClosed` was reported.
    pub(super) peer_closed: bool,
    /// Both directions have ended, and the peer has ended the connection.
    pub(super) finished: bool,
    /// The last bytes were stopped by memory that has not answered.
    pub(super) pending: bool,
    /// The queue pair of one-sided operations sends next.
    pub(super) one_sided_next: bool,
}

impl Connection for Conn {
    type Key = Qpn;

    fn id(&self) -> ConnId {
        self.id
    }

    fn key(&self) -> Qpn {
        Qpn::new(self.names.own)
    }

    fn hop(&self) -> Option<usize> {
        self.hop
    }

    fn listener(&self) -> Option<ListenerId> {
        match self.phase {
            Phase::Incoming(listener) => Some(listener),
            _ => None,
        }
    }

    fn is_orphan(&self) -> bool {
        matches!(self.phase, Phase::Orphan | Phase::Ending)
    }
}

impl Conn {
    pub(super) fn new(
        id: ConnId,
        names: Names,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        phase: Phase,
        config: &RdmaConfig,
    ) -> Conn {
        Conn {
            id,
            names,
            phase,
            local,
            peer,
            qp: QueuePair::new(),
            stream: Stream::new(config.tx_buffer, config.rx_buffer),
            sends: SendPath::new(id),
            recvs: ReceivePath::new(id),
            one_sided: OneSided::default(),
            hop: None,
            wire: Wire::default(),
            ask: None,
            deadline: None,
            probes: Probes::default(),
            seen: Seen::default(),
        }
    }

    /// UDP source port: one for each connection, so that switches spread them (annex A17 §A17.3.1.2).
    pub(super) fn source_port(&self) -> u16 {
        let mixed = self.names.own ^ self.names.peer_qpn.value();
        0xc000 | (mixed ^ mixed >> 14) as u16 & 0x3fff
    }

    /// Whether the peer has all that was sent so far, but for the end of the stream.
    pub(super) fn has_sent_all(&self) -> bool {
        self.stream.unacknowledged() == 0 && self.sends.is_empty() && self.one_sided.is_idle()
    }

    /// Whether nothing that the peer has sent was lost by a close.
    pub(super) fn has_lost_nothing(&self) -> bool {
        self.stream.rx.is_empty() && !self.one_sided.is_asked()
    }

    /// Tells the peer that the connection ends, and whether in order.
    pub(super) fn goodbye(&self, in_order: bool) -> Ask {
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
            conn: self.id,
            stream: &mut self.stream,
            recvs: Some((&mut self.recvs, data)),
            events,
        };
        (&mut self.qp, ends)
    }

    /// Says where the payloads of the next packets go, when they are whole, in order, and long enough.
    pub(super) fn expect(&self, places: &mut Places, data: &mut Datapath<'_>) {
        let is_plain = self.phase == Phase::Open
            && self.wire.mtu >= PLACED_MIN
            && !data.on_path(self.id, Direction::Receive);
        let Some(psn) = self.qp.expects().filter(|_| is_plain) else {
            return;
        };
        let (mtu, key) = (self.wire.mtu, self.key());
        if self.recvs.has_begun() || self.stream.exposed.is_empty() {
            if !self.stream.takes_directly() {
                return;
            }
            let first = Head {
                bth: Bth::new(RoceOpcode::SendOnly, key, psn),
                extended: Extended::None,
            };
            places.begin(self.wire.from, first, mtu as usize);
            return self.recvs.places(mtu as usize, places, data.dma);
        }
        let Some(e) = self.stream.exposed.expected() else {
            return;
        };
        // At most the length of the buffer.
        let done = e.at.address as u32;
        let left = e.buffer.len - done;
        let length = left.min(mtu);
        let reth = Reth {
            address: e.at.address,
            key: e.at.key,
            length,
        };
        let (opcode, extended) = match length == left {
            true => (
                RoceOpcode::WriteOnlyImm,
                Extended::RethImmediate(reth, e.word),
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
        place(&e.buffer, done, (length as usize, most), places, data.dma);
    }

    /// The queue pair of one-sided operations with its client.
    pub(super) fn peer<'a, 'd>(
        &'a mut self,
        data: &'a mut Datapath<'d>,
        events: &'a mut VecDeque<TransportEvent>,
    ) -> (&'a mut QueuePair, Peer<'a, 'd>) {
        self.one_sided.parts(self.id, Some(data), events)
    }

    /// Adds the next packet to a batch: of one queue pair when the other has none. `false`: neither has.
    pub(super) fn append(
        &mut self,
        now: NicTime,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        // In turn, so that a busy stream does not keep the others waiting.
        self.seen.one_sided_next ^= true;
        let first = self.seen.one_sided_next;
        [first, !first].into_iter().any(|one_sided| {
            let made = match one_sided {
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
        })
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
            conn: self.id,
            stream: &mut self.stream,
            recvs: None,
            events,
        };
        self.qp.fail(&mut ends);
        let (qp, mut peer) = self.one_sided.parts(self.id, None, events);
        qp.fail(&mut peer);
    }

    /// Retires every operation with this status.
    pub(super) fn fail_all(
        &mut self,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.stream.tx.withdraw(None);
        self.sends.fail_all(status, events);
        self.recvs.fail_all(status, events);
        self.stream.exposed.fail_all(self.id, status, events);
        self.stream.writes.drop_target(None);
        self.one_sided.fail_all(self.id, status, events);
    }

    /// Fills posted receives from what waits for them. Returns whether anything moved.
    pub(super) fn pump_recvs(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        if self.recvs.is_empty() && !self.seen.peer_closed {
            return false;
        }
        let mut waiting = Waiting {
            rx: &mut self.stream.rx,
            ended: self.seen.peer_closed,
        };
        let (moved, end) = self.recvs.fill(&mut waiting, data, events);
        if let Filled::Failed(failed) = end {
            self.stream.failed = Some(failed);
        }
        moved
    }

    /// Retires sends that the peer has, and takes the bytes of others into the stream. Returns whether anything moved.
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
        self.seen.pending = false;
        self.sends.acknowledge(self.stream.tx.start(), events);
        if self.sends.unsent().is_none() && !data.on_path(self.id, Direction::Send) {
            return Ok(events.len() != before);
        }
        while self.stream.tx.free() > 0 {
            let next = self.sends.unsent();
            let next = next.map(|(w, done)| (w.token, done, w.payload.len()));
            let tx = &mut self.stream.tx;
            let sent = match referable(self.id, tx, &self.sends, data) {
                Some(Long { n: 0, .. }) => break,
                Some(Long { token, from, at, n }) => {
                    tx.refer(token, from, at, n);
                    // Such memory is mapped, and mapped memory answers at once.
                    let read = |dma: &mut dyn DmaAccess, at: u32, to: &mut [u8]| {
                        dma.read(&from, at.into(), to).map(|_| ())
                    };
                    self.sends.refer(n, tx.end(), data, events, read)
                }
                None => match self.sends.fill(tx.room(), data, events) {
                    Sent::Bytes(0) => break,
                    sent => {
                        if let Sent::Bytes(n) = sent {
                            tx.filled(n);
                        }
                        sent
                    }
                },
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
                    self.seen.pending = true;
                    break;
                }
                Sent::Fault(_) => {}
                Sent::Failed(failed) => return Err(failed),
            }
        }
        Ok(moved || events.len() != before)
    }

    /// When this connection must be served although no packet comes.
    pub(super) fn wake_at(&self) -> Option<NicTime> {
        let timers = [
            self.ask.map(|a| a.next),
            self.deadline,
            self.qp.next_timer(),
            self.one_sided.next_timer(),
            self.probes.next,
        ];
        timers.into_iter().flatten().min()
    }
}

/// Bytes of a send that leave by reference.
struct Long {
    token: WorkToken,
    from: Buffer,
    at: u32,
    n: u32,
}

/// The next bytes to leave by reference; none of them when there is too little room. `None`: the next are copied.
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
    is_mapped(&from, at.into(), n as usize, data.dma).then_some(Long { token, from, at, n })
}
