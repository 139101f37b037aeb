//! The NIC's end of a card: what its queues and transports share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_abi::bar::{doorbell_offset, Reg};
use ringbell_nic_abi::{DataType, ReduceOp, WorkQueueEntry};

use super::bus::Grants;
use super::gtlb::{Gtlb, Mapped};
use super::{
    Card, CardBlocksError, CardCounts, Control, Counted, Cycles, Ended, Event, Fetched, Io,
    RingEvent, Sizes,
};
use crate::memory::nic_memory::HOST_BUS;

/// Most cycles until a card has taken or given what it can at once.
const PATIENCE: u64 = 1 << 20;
/// log2 of the numbers of a connection's operations.
const TAG_BITS: u32 = 10;

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Sends.
    Send,
    /// Receives.
    Receive,
}

/// What has happened on a connection, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnEvent {
    /// Bytes for the transport, and how many more were announced and do not come.
    Sent(Vec<u8>, u32),
    /// The next receive waits for bytes.
    Want,
    /// An operation has ended.
    End(Side, Ended),
    /// An address has faulted: the side waits to be flushed.
    Fault(Side, u64),
}

#[derive(Debug, Default)]
struct Conn {
    taken: bool,
    next_tag: u16,
    events: VecDeque<ConnEvent>,
}

/// The use of the card's engine. The card has one.
#[derive(Debug, Default)]
pub(super) struct EngineUse {
    pub(super) taken: bool,
    /// The connection whose bytes it sees; none when that has ended.
    pub(super) conn: Option<u16>,
    /// What it had counted at that time.
    pub(super) left: Option<Counted>,
    /// A result that has come.
    pub(super) result: Option<Counted>,
}

/// The use of the card's block for rings. The card has one.
#[derive(Debug, Default)]
pub(super) struct RingUse {
    /// Number of the communicator whose operation has it.
    pub(super) owner: Option<u32>,
    pub(super) events: VecDeque<RingEvent>,
}

impl RingUse {
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }
}

/// The type by which the hardware reduces: the sum of unsigned numbers has the bits of the signed
/// ones'.
pub(super) fn hardware_type(dtype: DataType, op: ReduceOp) -> DataType {
    match (dtype, op) {
        (DataType::U32, ReduceOp::Sum) => DataType::I32,
        _ => dtype,
    }
}

/// See the module text.
pub(crate) struct Shared {
    pub(super) card: Box<dyn Card>,
    sizes: Sizes,
    gtlb: Gtlb,
    grants: Grants,
    fetched: Vec<VecDeque<(u32, WorkQueueEntry)>>,
    conns: Vec<Conn>,
    /// Writes of registers that are not the GTLB's.
    writes: Vec<(u32, u32)>,
    pub(super) engine: EngineUse,
    pub(super) ring: RingUse,
    pub(crate) counts: CardCounts,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// The card of a NIC. Its lock is taken below the NIC's.
#[derive(Debug, Clone)]
pub(crate) struct SharedCard(Arc<Mutex<Shared>>);

impl SharedCard {
    /// Refuses a card whose headers are broken, or lack what a NIC needs.
    pub(crate) fn new(
        mut card: Box<dyn Card>,
        grants: Grants,
    ) -> Result<SharedCard, CardBlocksError> {
        let sizes = Sizes::of(&mut *card)?;
        Ok(SharedCard(Arc::new(Mutex::new(Shared {
            gtlb: Gtlb::new(&sizes),
            card,
            sizes,
            grants,
            fetched: vec![VecDeque::new(); sizes.queues as usize],
            conns: (0..sizes.conns).map(|_| Conn::default()).collect(),
            writes: Vec::new(),
            engine: EngineUse::default(),
            ring: RingUse::default(),
            counts: CardCounts::default(),
        }))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Counts so far.
    pub(crate) fn counts(&self) -> CardCounts {
        CardCounts {
            cycles: self.card.cycles(),
            entries: self.gtlb.written,
            ..self.counts
        }
    }

    /// Whether something is under way in the card, or has come out of it.
    pub(crate) fn is_busy(&self) -> bool {
        self.card.is_busy()
            || self.fetched.iter().any(|q| !q.is_empty())
            || self.conns.iter().any(|c| !c.events.is_empty())
            || self.ring.has_events()
    }

    /// Runs cycles while something is under way, so many at most. Returns whether it ran any.
    pub(crate) fn run(&mut self, most: u64) -> bool {
        let mut n = 0;
        while n < most && self.card.is_busy() {
            self.card.cycle();
            n += 1;
        }
        self.sort();
        n > 0
    }

    /// Runs cycles until the bytes that were received lie in memory, or can go nowhere.
    pub(crate) fn settle(&mut self) {
        self.run(PATIENCE);
    }

    /// Runs so many cycles although nothing seems to be under way: the card looks again for entries
    /// whose doorbell came first.
    pub(crate) fn look_again(&mut self, cycles: u64) {
        (0..cycles).for_each(|_| self.card.cycle());
        self.sort();
    }

    /// An address of the card has faulted.
    pub(super) fn lost(&mut self, va: u64) {
        self.counts.faults += 1;
        self.gtlb.lost(va);
    }

    /// Sorts the card's events by queue and connection.
    pub(super) fn sort(&mut self) {
        self.take_ring_events();
        while let Some(event) = self.card.event() {
            match event {
                Event::Fetched(Fetched {
                    queue,
                    ticket,
                    entry,
                    bad,
                }) => {
                    let software = entry.decode().err().map(|e| e.word());
                    if bad != software {
                        self.counts.misjudged += 1;
                        tracing::error!(
                            queue,
                            ticket,
                            ?bad,
                            ?software,
                            "the card has decoded an entry otherwise than the software does"
                        );
                    }
                    if let Some(q) = self.fetched.get_mut(queue as usize) {
                        q.push_back((ticket, entry));
                    }
                }
                Event::End { send, tag, ended } => {
                    let side = if send { Side::Send } else { Side::Receive };
                    self.put(tag >> TAG_BITS, ConnEvent::End(side, ended));
                }
                Event::Fault { send, conn, va } => {
                    self.lost(va);
                    let side = if send { Side::Send } else { Side::Receive };
                    self.put(conn, ConnEvent::Fault(side, va));
                }
                Event::Sent { conn, len, bytes } => {
                    let missing = len.saturating_sub(bytes.len() as u32);
                    self.put(conn, ConnEvent::Sent(bytes, missing));
                }
                Event::Want { conn, .. } => self.put(conn, ConnEvent::Want),
                Event::Counted(counted) => self.engine.result = Some(counted),
                Event::Register { index, value } => self.writes.push((index, value)),
            }
        }
    }

    fn put(&mut self, conn: u16, event: ConnEvent) {
        if let Some(c) = self.conns.get_mut(usize::from(conn)) {
            c.events.push_back(event);
        }
    }

    // ---------------------------------------------------------------- Queues

    /// Makes a ring known: bus addresses of its entries and completion lines, which the card may
    /// reach from now on.
    pub(crate) fn setup_queue(
        &mut self,
        queue: u32,
        (sq, cq): (u64, u64),
        depth_log2: u32,
        first_ticket: u32,
    ) {
        let grants = &mut *self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        for first in [sq, cq] {
            grants.push((first, first + (super::LINE << depth_log2) as u64));
        }
        self.card
            .setup_queue(queue, sq, cq, depth_log2, first_ticket);
    }

    /// Forgets a ring: the card reaches neither of its parts any more, and shows none of its
    /// entries.
    pub(crate) fn close_queue(&mut self, queue: u32, (sq, cq): (u64, u64)) {
        // Set up anew, a queue has neither permits nor a doorbell that names tickets.
        self.card.setup_queue(queue, 0, 0, 1, 0);
        self.sort();
        if let Some(fetched) = self.fetched.get_mut(queue as usize) {
            fetched.clear();
        }
        let grants = &mut *self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        for first in [sq, cq] {
            if let Some(i) = grants.iter().rposition(|g| g.0 == first) {
                grants.swap_remove(i);
            }
        }
    }

    /// A word of the card's BAR; `None` where it has no register.
    pub(crate) fn bar_read(&mut self, offset: usize) -> Option<u32> {
        let value = self.card.bar_read(offset);
        self.sort();
        value
    }

    /// Writes a register of the card; `false` when it refuses.
    pub(crate) fn bar_write(&mut self, reg: Reg, value: u32) -> bool {
        let taken = self.card.bar_write(reg.offset(), value);
        self.sort();
        taken
    }

    /// The writes of registers that are not the GTLB's, as they have come out of the card.
    pub(crate) fn register_writes(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.writes)
    }

    /// A doorbell was rung.
    pub(crate) fn ring(&mut self, queue: u32, value: u32) {
        self.card.bar_write(doorbell_offset(queue), value);
    }

    /// The next descriptor of a queue that the card has fetched.
    pub(crate) fn next_entry(&mut self, queue: u32) -> Option<(u32, WorkQueueEntry)> {
        self.fetched.get_mut(queue as usize)?.pop_front()
    }

    /// Completes a descriptor; returns when its line is written.
    pub(crate) fn complete(
        &mut self,
        queue: u32,
        ticket: u32,
        status: u8,
        bytes: u64,
        detail: u64,
    ) {
        let all = |c: Cycles| c.completed + c.strays;
        let before = all(self.card.cycles());
        self.card.complete(queue, ticket, status, bytes, detail);
        for _ in 0..PATIENCE {
            if all(self.card.cycles()) != before {
                return;
            }
            self.card.cycle();
        }
        tracing::error!(queue, ticket, "the card does not write a completion");
    }

    // ---------------------------------------------------------------- Connections

    /// A free connection of the card, opened.
    pub(crate) fn open(&mut self, credit: u32) -> Option<u16> {
        let conn = self.conns.iter().position(|c| !c.taken)?;
        self.conns[conn].taken = true;
        let conn = conn as u16;
        self.card.control(conn, Control::Open);
        self.card.credit(conn, credit);
        Some(conn)
    }

    /// Ends a connection, which its owner has flushed.
    pub(crate) fn close(&mut self, conn: u16) {
        self.leave_engine(conn);
        self.card.control(conn, Control::Close);
        self.sort();
        self.conns[usize::from(conn)] = Conn::default();
    }

    /// Ends the operations of a side; their ends are among the events then.
    pub(crate) fn flush(&mut self, conn: u16, side: Side) {
        self.card.control(
            conn,
            match side {
                Side::Send => Control::FlushSends,
                Side::Receive => Control::FlushReceives,
            },
        );
        self.sort();
    }

    /// The oldest event of a connection.
    pub(crate) fn event(&mut self, conn: u16) -> Option<ConnEvent> {
        self.conns[usize::from(conn)].events.pop_front()
    }

    /// The oldest event of one side of a connection.
    pub(crate) fn event_of(&mut self, conn: u16, side: Side) -> Option<ConnEvent> {
        let events = &mut self.conns[usize::from(conn)].events;
        let at = events.iter().position(|event| match event {
            ConnEvent::Sent(..) => side == Side::Send,
            ConnEvent::Want => side == Side::Receive,
            ConnEvent::End(of, _) | ConnEvent::Fault(of, _) => *of == side,
        })?;
        events.remove(at)
    }

    /// Posts an operation on mapped memory.
    pub(crate) fn post(&mut self, conn: u16, side: Side, va: u64, len: u32, some: bool) {
        let tag = &mut self.conns[usize::from(conn)].next_tag;
        *tag = (*tag + 1) & ((1 << TAG_BITS) - 1);
        let tag = conn << TAG_BITS | *tag;
        self.card.post(Io {
            send: side == Side::Send,
            conn,
            va,
            len,
            some,
            tag,
        });
    }

    /// The transport has room for more bytes.
    pub(crate) fn credit(&mut self, conn: u16, bytes: u32) {
        self.card.credit(conn, bytes);
    }

    /// The transport has received bytes for the first receive that wants some. `again`: they were
    /// given to the card before.
    pub(crate) fn receive(&mut self, conn: u16, bytes: Vec<u8>, again: bool) {
        self.card.receive(conn, bytes, again);
    }

    /// Received bytes that the card has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        self.card.backlog()
    }

    // ---------------------------------------------------------------- Reductions

    /// Reduces operands of the same length, left to right, in the card's block; `None`: it does not
    /// have that type or operation.
    pub(crate) fn reduce(
        &mut self,
        dtype: DataType,
        op: ReduceOp,
        operands: &[&[u8]],
    ) -> Option<Vec<u8>> {
        let (&first, rest) = operands.split_first()?;
        let dtype = hardware_type(dtype, op);
        let mut sum: Option<Vec<u8>> = None;
        for operand in rest {
            let before: &[u8] = sum.as_deref().unwrap_or(first);
            let Some(next) = self.card.reduce(dtype, op, before, operand) else {
                self.counts.reductions_in_software += 1;
                return None;
            };
            sum = Some(next);
        }
        self.counts.reductions += u64::from(sum.is_some());
        sum
    }

    // ---------------------------------------------------------------- Memory

    /// Fixes the GTLB's window by the first memory that is mapped.
    pub(crate) fn place(&mut self, va: u64) {
        let card = &mut self.card;
        self.gtlb
            .place(va, &mut |reg, value| card.bar_write(reg.offset(), value));
    }

    /// Enters memory into the card's GTLB; see [`Gtlb::map`].
    pub(crate) fn map(
        &mut self,
        va: u64,
        len: u32,
        bus: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Option<Mapped> {
        let card = &mut self.card;
        let write = &mut |reg: Reg, value| card.bar_write(reg.offset(), value);
        let mut mapped = self.gtlb.map(va, len, write, bus)?;
        mapped.host = bus(va).filter(|first| *first >= HOST_BUS);
        if let Some(first) = mapped.host {
            let grants = &mut *self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            grants.push((first, first + u64::from(len)));
        }
        Some(mapped)
    }

    /// An operation on memory has ended.
    pub(crate) fn unmap(&mut self, mapped: &Mapped) {
        self.gtlb.release(mapped);
        if let Some(first) = mapped.host {
            let grants = &mut *self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(i) = grants.iter().rposition(|g| g.0 == first) {
                grants.swap_remove(i);
            }
        }
    }

    /// Memory was unmapped: its entries go.
    pub(crate) fn forget(&mut self, va: u64, len: u64) {
        let card = &mut self.card;
        self.gtlb.forget(va, len, &mut |reg, value| {
            card.bar_write(reg.offset(), value)
        });
    }
}
