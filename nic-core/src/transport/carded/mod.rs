//! A transport whose payloads pass a card: the bytes of sends and receives that were posted with
//! memory.
//!
//! ```text
//! memory ─▶ card (direct, GTLB, DMA) ─▶ room in NIC memory ─▶ the transport's sends
//! memory ◀─ card ◀─ room in NIC memory ◀─ the transport's receives
//! ```
//!
//! The transport below sees sends out of the room and receives of what has come into it (`some`);
//! everything else passes unchanged. Operations of a connection keep their order in each direction,
//! whichever way each goes. Inline payloads go past the card, as do operations for which it has no
//! connection or no entry of its GTLB left; they are counted. When an address faults in the card,
//! the entry is written again, and bytes that the card had are given to it once more, not to its
//! engine; memory without a translation goes the software's way, which gives the status of the
//! contract.

mod events;
mod link;
mod pump;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::{GpuVa, PdId, Status};
use ringbell_onc_engines::stream::Hardware;

use super::{Caps, Close, ConnState, CountsInHardware, PacketTransport, Transport, Work};
use crate::card::{ConnEvent, Ended, SharedCard, Side, Stage};
use crate::datapath::{Datapath, Payload, RecvWork, SendWork, TransportEvent};
use crate::engine::Counter;
use crate::memory::Sharer;
use crate::network::Network;
use crate::types::{Buffer, ConnId, ListenerId, NicTime, Owner, WorkToken};
use link::{map, rest, Below, Link, Op, Piece};

/// Bytes that wait between card and transport, for each connection and direction: two of the card's
/// chunks.
pub(crate) const ROOM: u32 = 128 << 10;
/// Most bytes of one operation of the card. Of a receive they are kept until they lie in memory.
const PIECE: u32 = 256 << 10;
/// Faults of one operation after which the software executes it.
const FAULTS: u8 = 3;

/// See the module text.
pub(crate) struct CardTransport {
    inner: Box<dyn Transport>,
    card: SharedCard,
    room: Stage,
    /// The room as the transport names it; that of card connection `i` begins at `2 * i * ROOM`.
    place: Buffer,
    links: BTreeMap<ConnId, Link>,
    /// Those with operations.
    active: BTreeSet<ConnId>,
    works: BTreeMap<u64, (ConnId, Below)>,
    next_token: u64,
    events: VecDeque<TransportEvent>,
    /// Something was posted, or has moved, since the last step that found nothing.
    is_due: bool,
}

impl CardTransport {
    /// Puts a card before a transport. `place` has `2 * ROOM` bytes for each connection of the
    /// card.
    pub(crate) fn new(
        inner: Box<dyn Transport>,
        card: SharedCard,
        room: Stage,
        place: Buffer,
    ) -> CardTransport {
        CardTransport {
            inner,
            card,
            room,
            place,
            links: BTreeMap::new(),
            active: BTreeSet::new(),
            works: BTreeMap::new(),
            next_token: 0,
            events: VecDeque::new(),
            is_due: false,
        }
    }

    fn token(&mut self, conn: ConnId, what: Below) -> WorkToken {
        self.next_token += 1;
        self.works.insert(self.next_token, (conn, what));
        WorkToken(self.next_token)
    }

    /// A part of the room, as the transport names it.
    fn buffer(&self, at: u32, len: u32) -> Buffer {
        Buffer {
            va: GpuVa(self.place.va.0 + u64::from(at)),
            len,
            ..self.place
        }
    }

    fn link(&mut self, conn: ConnId) -> &mut Link {
        self.active.insert(conn);
        self.is_due = true;
        self.links.entry(conn).or_default()
    }

    /// Takes a connection of the card for a link that has none.
    fn open(&mut self, conn: ConnId) {
        let Some(link) = self
            .links
            .get(&conn)
            .filter(|l| l.slot.is_none() && !l.is_dead)
        else {
            return;
        };
        // Its rest is with the transport; the card begins with a new operation.
        if !link.sends.pieces.is_empty() || !link.receives.pieces.is_empty() {
            return;
        }
        let mut found = self.card.lock().open(ROOM);
        if found.is_none() {
            let idle = |(c, l): &(&ConnId, &Link)| {
                l.slot.is_some()
                    && !self.active.contains(c)
                    && l.ring.works.is_empty()
                    && !self.is_counted(**c)
            };
            let idle = self.links.iter().find(idle).map(|(c, _)| *c);
            if let Some(other) = idle {
                self.leave_card(other);
                found = self.card.lock().open(ROOM);
            }
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.slot = found;
        }
    }

    /// Whether the card's engine counts the received bytes of a connection.
    fn is_counted(&self, conn: ConnId) -> bool {
        let slot = self.links.get(&conn).and_then(|l| l.slot);
        slot.is_some_and(|slot| self.card.lock().counts_for(slot))
    }

    /// Gives a link's connection of the card back.
    fn leave_card(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let Some(slot) = link.slot.take() else { return };
        let mut card = self.card.lock();
        for side in [Side::Send, Side::Receive] {
            card.flush(slot, side);
        }
        for half in [&mut link.sends, &mut link.receives] {
            for piece in half.pieces.drain(..) {
                card.unmap(&piece.mapped);
            }
        }
        card.close(slot);
        link.again = link.kept.len();
    }
}

impl CountsInHardware for CardTransport {
    fn take_engine(&mut self, conn: ConnId, spec: Hardware) -> Option<Box<dyn Counter>> {
        // What the transport has received already is not for it.
        self.take_inner();
        self.link(conn);
        self.open(conn);
        let link = self.links.get_mut(&conn)?;
        link.again = link.kept.len();
        let in_software = link.receives.ops.iter().any(|op| op.in_software);
        let slot = link.slot.filter(|_| !in_software)?;
        self.card.take_engine(slot, spec)
    }

    fn unseen(&mut self, conn: ConnId) -> Vec<u8> {
        self.take_inner();
        let Some(link) = self.links.get_mut(&conn) else {
            return Vec::new();
        };
        let seen = std::mem::replace(&mut link.again, link.kept.len());
        link.kept.range(seen..).copied().collect()
    }
}

impl Transport for CardTransport {
    fn caps(&self) -> Caps {
        Caps {
            // Their bytes would go past the card.
            exposes: None,
            ..self.inner.caps()
        }
    }

    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        self.inner.listen(port, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.inner.unlisten(listener);
    }

    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        self.inner.connect(now, remote, deadline)
    }

    fn post(&mut self, conn: ConnId, work: Work) {
        match work {
            Work::Send(work) => {
                let op = Op::new(work.token, work.by, work.payload, false, work.push);
                self.link(conn).sends.ops.push_back(op);
            }
            Work::Receive(work) => {
                let payload = Payload::Memory(work.buffer);
                let op = Op::new(work.token, work.by, payload, work.some, false);
                self.link(conn).receives.ops.push_back(op);
            }
            // They go past the card.
            Work::Write(..) | Work::Remote(_) => self.inner.post(conn, work),
        }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn grant(&mut self, conn: ConnId, pd: PdId) {
        self.inner.grant(conn, pd);
    }

    fn is_quiet(&self) -> bool {
        !self.is_due
            && self.events.is_empty()
            && self.inner.is_quiet()
            && (self.active.is_empty() || !self.card.lock().is_busy())
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let link = self.links.get(&conn);
        let is_send = link.is_some_and(|l| l.sends.ops.iter().any(|o| o.token == token));
        let is_receive = link.is_some_and(|l| l.receives.ops.iter().any(|o| o.token == token));
        match (is_send, is_receive) {
            (true, _) => self.cancel_send(conn, token),
            (_, true) => self.cancel_receive(conn, token),
            // A one-sided operation, or one whose event is on its way.
            _ => self.inner.cancel(conn, token),
        }
    }

    fn watch(&mut self, conn: ConnId) {
        self.inner.watch(conn);
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        match how {
            Close::Sending => {
                self.link(conn).last.get_or_insert(how);
                self.follow(conn);
            }
            Close::Gracefully => {
                self.end_receives(conn, (Status::NotConnected, 0));
                if let Some(pull) = self.links.get_mut(&conn).and_then(|l| l.pull.take()) {
                    self.works.remove(&pull);
                }
                self.link(conn).last = Some(how);
                self.follow(conn);
            }
            Close::Now => {
                self.end_all(conn, [(Status::Aborted, 0); 2]);
                self.drop_link(conn);
                self.inner.close(conn, how);
            }
        }
    }

    fn end(&mut self) {
        self.inner.end();
    }

    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        let mut moved = self.advance(data);
        moved |= self.inner.step(now, net, data);
        moved |= self.take_inner();
        moved |= self.advance(data);
        self.is_due = moved;
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        if self.events.is_empty() {
            self.take_inner();
        }
        self.events.pop_front()
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.inner.next_timer()
    }

    fn conn_state(&self, conn: ConnId) -> Option<ConnState> {
        self.inner.conn_state(conn)
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        self.inner.sharer()
    }

    fn hardware(&mut self) -> Option<&mut dyn CountsInHardware> {
        Some(self)
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        self.inner.packets()
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }
}

impl CardTransport {
    /// Moves what can be moved without the transport.
    fn advance(&mut self, data: &mut Datapath<'_>) -> bool {
        let mut moved = false;
        for conn in self.active.iter().copied().collect::<Vec<_>>() {
            moved |= self.take_events(conn);
            moved |= self.pump(conn, data);
        }
        moved
    }
}
