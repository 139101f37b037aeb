//! A card behind the NIC: hardware, simulated or real, that does a part of its work.
//!
//! The NIC keeps its command layer, sessions, deadlines and transports. With a card, these pass it:
//!
//! - **descriptors**: the card fetches, checks and decodes entries when a doorbell rings, and
//!   writes completion lines (`queue`);
//! - **payloads** of posted sends and receives: the card moves them between memory and the streams
//!   of a transport (`transport/carded/`);
//! - **translation**: both find memory through the card's GTLB, which is programmed by its
//!   registers (`gtlb`);
//! - **an engine** of the card sees the received payloads of one connection (`engine`);
//! - **programs of rings**: the card executes the steps of a collective between neighbours
//!   (`ring`).
//!
//! [`Card`] is what the hardware side implements, and [`Bus`] is what it sees of memory. [`Shared`]
//! is the NIC's end.

mod blocks;
mod bus;
mod engine;
mod gtlb;
mod ring;
mod shared;

pub use blocks::CardBlocksError;
pub(crate) use bus::{Grants, MemoryBus, Stage};
pub(crate) use gtlb::Mapped;
pub(crate) use ring::{reduces, RingLease};
pub(crate) use shared::{ConnEvent, Shared, SharedCard, Side};

use ringbell_nic_abi::{DataType, ReduceOp, WorkQueueEntry};

/// Bytes of a line, and of a beat.
pub const LINE: usize = 64;
/// The card's clock, by which its cycles are shown as time.
pub const CLOCK_HZ: u64 = 250_000_000;

/// Memory behind PCIe, by bus address. Lines are aligned to 64 bytes.
pub trait Bus: Send {
    /// Reads a line.
    fn read(&mut self, addr: u64, line: &mut [u8; LINE]);
    /// Writes the bytes of a line whose bits in `strobe` are set.
    fn write(&mut self, addr: u64, line: &[u8; LINE], strobe: u64);
    /// Writes words 0 to 3 of a completion line, word 0 last, after everything written before.
    fn complete(&mut self, addr: u64, words: [u64; 4]);
}

/// A descriptor that the card has fetched: it is to be completed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Number of the queue.
    pub queue: u32,
    /// Its ticket.
    pub ticket: u32,
    /// The entry, with bit 63 of its words restored.
    pub entry: WorkQueueEntry,
    /// The word at fault of a malformed one.
    pub bad: Option<u8>,
}

/// A send or receive of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// It sends.
    pub send: bool,
    /// The connection.
    pub conn: u16,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u32,
    /// A receive that ends with its first segment.
    pub some: bool,
    /// Returned when it ends.
    pub tag: u16,
}

/// How a send or receive has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All of it, or of a receive with `some` these bytes.
    Done(u32),
    /// It was flushed after so many bytes.
    Flushed(u32),
    /// No such connection, no slot, or no bytes.
    Refused,
}

/// What to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Operations are taken from now on.
    Open = 0,
    /// They are refused.
    Close = 1,
    /// All sends end.
    FlushSends = 2,
    /// All receives end.
    FlushReceives = 3,
}

/// What happens at the card beside the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A descriptor was fetched.
    Fetched(Fetched),
    /// An operation has ended.
    End {
        /// It was a send.
        send: bool,
        /// Its number.
        tag: u16,
        /// How.
        ended: Ended,
    },
    /// An address has faulted; that side of the connection waits to be flushed.
    Fault {
        /// Of a send.
        send: bool,
        /// The connection.
        conn: u16,
        /// The address.
        va: u64,
    },
    /// Bytes of a connection for the transport.
    Sent {
        /// The connection.
        conn: u16,
        /// How many were announced, and paid for with credit.
        len: u32,
        /// In order; fewer than announced when an address has faulted.
        bytes: Vec<u8>,
    },
    /// The card has room for bytes of a connection.
    Want {
        /// The connection.
        conn: u16,
        /// How many.
        len: u32,
        /// One segment is enough.
        some: bool,
    },
    /// A register that is not the GTLB's was written.
    Register {
        /// Its index.
        index: u32,
        /// The value.
        value: u32,
    },
    /// The engine on the path of received payloads was read out.
    Counted(Counted),
}

/// What an engine of the card has counted since it was attached or last read out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The engine's result in the format of its block in hw/rtl.
    pub result: Vec<u8>,
    /// The first bytes of an item that has not come whole: they are not counted.
    pub rest: Vec<u8>,
    /// The engine has stalled or given no end, and was cut off: there is no result.
    pub failed: bool,
}

/// A step, as the block takes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingStep {
    /// An operand is the next message of the previous rank.
    pub receives: bool,
    /// The value goes to the next rank.
    pub sends: bool,
    /// An operand lies in memory, at this address of the card.
    pub read: Option<u64>,
    /// The value goes to memory, at this address of the card.
    pub write: Option<u64>,
    /// Bytes of the value.
    pub bytes: u32,
}

/// The block of a card that executes programs of rings.
pub trait Ring {
    /// Most steps of one start; at least 1.
    fn most_steps(&self) -> usize;
    /// Starts steps. Those before have ended, and a bad end was cleared.
    fn start(&mut self, steps: &[RingStep], dtype: DataType, op: ReduceOp);
    /// The next message of the previous rank.
    fn give(&mut self, message: Vec<u8>);
    /// Messages that were given and not taken whole.
    fn backlog(&self) -> usize;
    /// The NIC has room for so many more messages to the next rank. The block stops where it has
    /// none.
    fn grant(&mut self, messages: u32);
    /// The oldest event that was not taken.
    fn event(&mut self) -> Option<RingEvent>;
    /// Ends what is under way, if anything is: memory is not touched any more. Messages and room
    /// are forgotten.
    fn clear(&mut self);
}

/// How steps of a ring have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingEnd {
    /// All are done, and memory has their values.
    Done,
    /// The block has made no progress within its deadline.
    Late,
    /// A message of another length than its step.
    Length,
    /// A type or operation that the block does not have.
    Type,
    /// This address of the card has faulted.
    Fault(u64),
}

/// What the block for rings gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingEvent {
    /// A message for the next rank.
    Sent(Vec<u8>),
    /// The steps have ended.
    Ended(RingEnd),
}

/// Counts of the block `ring`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Steps of programs that it has executed.
    pub steps: u64,
    /// Beats of its messages to the next NIC.
    pub beats: u64,
    /// Cycles in which it was at work, waits for memory included, and waits for the network not.
    pub cycles: u64,
}

/// Counts since the card was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cycles {
    /// Clock cycles.
    pub cycles: u64,
    /// Those of them in which something was under way, waiting for memory included.
    pub busy: u64,
    /// Beats of `tx_data`.
    pub tx_beats: u64,
    /// Beats of `rx_data`.
    pub rx_beats: u64,
    /// Cycles in which a beat of `rx_data` waited for the card.
    pub stalls: u64,
    /// The cycle of the last read that was asked for, of an entry or of data.
    pub last_read: u64,
    /// Descriptors fetched and consumed.
    pub fetched: u64,
    /// Completion lines written.
    pub completed: u64,
    /// Completions that had no descriptor.
    pub strays: u64,
    /// Segments that were dropped.
    pub dropped: u64,
    /// Beats of `rx_data` that have passed an engine.
    pub engine_beats: u64,
    /// Cycles in which an engine alone has held a beat up.
    pub engine_stalls: u64,
    /// Beats that the block `reduce` has reduced.
    pub reduce_beats: u64,
    /// Its cycles, beside the others.
    pub reduce_cycles: u64,
    /// Of the block `ring`.
    pub ring: RingCounts,
    /// Wall clock that the simulation of all these cycles took, in ns; 0 for a real card.
    pub simulated_ns: u64,
}

/// Sizes of a card, which the headers of its BAR state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Queues.
    pub queues: u32,
    /// Most slots of a queue, a power of two.
    pub slots: u32,
    /// Connections.
    pub conns: u16,
    /// Operations of a connection in each direction.
    pub operations: usize,
    /// Entries of the GTLB's main table, a power of two.
    pub main_entries: u32,
    /// Entries of its complementary table.
    pub complementary_entries: u32,
}

/// The hardware: `nic_top` of hw/rtl, cycle by cycle. What is posted to it waits in queues of plain
/// values until it takes them.
pub trait Card: Send {
    /// One cycle.
    fn cycle(&mut self);
    /// Whether something is under way.
    fn is_busy(&self) -> bool;
    /// Counts so far.
    fn cycles(&self) -> Cycles;
    /// The oldest event that was not taken.
    fn event(&mut self) -> Option<Event>;
    /// Makes a queue known: bus addresses of its entries and completion lines.
    fn setup_queue(&mut self, queue: u32, sq: u64, cq: u64, depth_log2: u32, first_ticket: u32);
    /// Reads a word of the BAR; `None` where the card has no register.
    fn bar_read(&mut self, offset: usize) -> Option<u32>;
    /// Writes a word of the BAR. `false`: the card refuses it.
    fn bar_write(&mut self, offset: usize, value: u32) -> bool;
    /// Opens, closes or flushes; returns when it has been done.
    fn control(&mut self, conn: u16, what: Control);
    /// Posts a send or receive.
    fn post(&mut self, io: Io);
    /// Completes a descriptor.
    fn complete(&mut self, queue: u32, ticket: u32, status: u8, bytes: u64, detail: u64);
    /// The transport has room for more bytes of a connection.
    fn credit(&mut self, conn: u16, bytes: u32);
    /// The transport has received bytes that the card has asked for, within one [`Event::Want`].
    /// `again`: they came before, and the engine on the path has seen them.
    fn receive(&mut self, conn: u16, bytes: Vec<u8>, again: bool);
    /// Received bytes that the card has not taken yet.
    fn backlog(&self) -> usize;
    /// `a op b`, element by element, by the card's adders. `None`: it does not have that type or
    /// operation.
    fn reduce(&mut self, dtype: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Option<Vec<u8>>;
    /// Its block for programs of rings, if it has one.
    fn ring(&mut self) -> Option<&mut dyn Ring>;
}

/// What has passed the card of a NIC, and what has not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardCounts {
    /// Counts of the hardware.
    pub cycles: Cycles,
    /// Sends whose bytes the card has read from memory.
    pub sends: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Receives whose bytes the card has written to memory.
    pub receives: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Sends and receives that the software has executed: inline ones, and those for which the card
    /// had no entry of the GTLB or no connection left.
    pub in_software: u64,
    /// Reductions of collectives whose operands have passed the card's adders.
    pub reductions: u64,
    /// Those that the software has done: the card does not have the type or operation.
    pub reductions_in_software: u64,
    /// Collectives whose steps the card's sequencer has executed.
    pub programs: u64,
    /// Those between neighbours whose steps the software has executed in a communicator that uses
    /// the cards: the sequencer was in use, or the card's GTLB or NIC memory had no room.
    pub programs_in_software: u64,
    /// Engines of the NIC for which the card's engine has counted.
    pub engines: u64,
    /// Entries written to the card's GTLB.
    pub entries: u64,
    /// Faults of the card's GTLB.
    pub faults: u64,
    /// Entries that the card has decoded otherwise than the software: a defect of the card.
    pub misjudged: u64,
}

/// Makes a card in front of a bus.
pub type MakeCard = Box<dyn FnOnce(Box<dyn Bus>) -> Box<dyn Card>>;
