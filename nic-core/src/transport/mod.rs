//! Transports: how the bytes of a session reach the peer.
//!
//! A transport is sans-I/O (in the manner of smoltcp and quinn-proto): commands go in, [`step`] is
//! told the time and moves what can be moved, [`poll_event`] says what happened. Deadlines belong to
//! the command layer above, which calls [`cancel`]; frames belong to the ports below.
//!
//! Two implementations: `local` copies straight out of the sender's memory between NICs of one host
//! and one user, `tcp` is smoltcp behind our own demultiplexer. Sessions are byte streams: no
//! message boundaries, and flow control is the window that receiving opens, so that an ordinary TCP
//! peer works.
//!
//! [`step`]: Transport::step
//! [`poll_event`]: Transport::poll_event
//! [`cancel`]: Transport::cancel

pub mod local;
pub mod tcp;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::engine::Direction;
pub use crate::engine::{Delivered, EngineFailed};
use ringbell_gtlb::{BusError, BusSpan, Export, Fault, Loan, NotReached};
use ringbell_nic_abi::{GpuVa, InlineSend, Status, INLINE_MAX};

/// NIC time: nanoseconds since the NIC was made. Given as an argument, never read from a clock here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NicTime(pub u64);

impl NicTime {
    /// This time plus a duration, saturating.
    pub fn plus(self, d: Duration) -> NicTime {
        NicTime(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// A connection inside one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A listening port inside one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The command layer's name for a posted send or receive; returned when it retires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkToken(pub u64);

/// A range of GPU memory that was checked against its region and pinned by the command layer.
///
/// `region` is the MMU's handle of the pinned region; a transport only hands it back to
/// [`DmaAccess`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Pinned region.
    pub region: u32,
    /// First byte.
    pub va: GpuVa,
    /// Bytes.
    pub len: u32,
}

/// What a send carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Bytes that came inside the descriptor.
    Inline {
        /// Valid up to `len`.
        bytes: [u8; INLINE_MAX],
        /// Bytes.
        len: u8,
    },
    /// Bytes in GPU memory; the buffer must not be reused before the send retires.
    Memory(Buffer),
}

impl Payload {
    /// Length in bytes.
    pub const fn len(&self) -> u32 {
        match self {
            Payload::Inline { len, .. } => *len as u32,
            Payload::Memory(b) => b.len,
        }
    }
    /// Whether there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whose operation a work is: engines are attached to queues and communicators as well as to streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mover(u32);

impl Mover {
    /// The NIC's own: nobody watches it.
    pub const NIC: Mover = Mover(u32::MAX);
    /// Bits above all numbers of queues (at most 512) and of communicators.
    const COMMUNICATOR: u32 = 1 << 31;
    const OPERANDS: u32 = 1 << 30;

    /// A descriptor of a queue.
    pub const fn queue(queue: u32) -> Mover {
        Mover(queue & !(Mover::COMMUNICATOR | Mover::OPERANDS))
    }

    /// A message of the communicator in a slot of the NIC.
    pub(crate) const fn communicator(slot: u32) -> Mover {
        Mover(slot | Mover::COMMUNICATOR)
    }

    /// What the operations of that communicator take in and give out: no transport moves it.
    pub(crate) const fn operands(slot: u32) -> Mover {
        Mover(slot | Mover::OPERANDS)
    }

    /// What operations take in or give out, not what messages carry.
    pub(crate) const fn is_operands(self) -> bool {
        self.0 & (Mover::COMMUNICATOR | Mover::OPERANDS) == Mover::OPERANDS
    }

    /// The queue, when it is one's.
    pub(crate) const fn as_queue(self) -> Option<u32> {
        if self.0 & (Mover::COMMUNICATOR | Mover::OPERANDS) == 0 {
            Some(self.0)
        } else {
            None
        }
    }
}

/// A send handed to a transport. Sends of one connection leave, and retire, in order.
#[derive(Debug, Clone, Copy)]
pub struct SendWork {
    /// Returned when it retires.
    pub token: WorkToken,
    /// Whose it is.
    pub by: Mover,
    /// The bytes.
    pub payload: Payload,
    /// Nothing follows soon.
    pub push: bool,
}

/// A receive handed to a transport. Receives of one connection are filled, and retire, in order.
#[derive(Debug, Clone, Copy)]
pub struct RecvWork {
    /// Returned when it retires.
    pub token: WorkToken,
    /// Whose it is.
    pub by: Mover,
    /// Where the bytes go.
    pub buffer: Buffer,
    /// Retire with the first bytes instead of waiting for all of `buffer.len`.
    pub some: bool,
}

/// What happened in a transport. Each posted work yields exactly one `SendDone` or `RecvDone`,
/// unless it was taken back with [`Transport::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportEvent {
    /// An outgoing connection is established.
    Connected {
        /// Which.
        conn: ConnId,
    },
    /// An outgoing connection failed; the id is free again.
    ConnectFailed {
        /// Which.
        conn: ConnId,
        /// `ConnectionRefused`, `HostUnreachable`, `TimedOut` or `NoResources`.
        status: Status,
    },
    /// A peer has connected to a listener; the connection is established and may already hold bytes.
    Incoming {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        conn: ConnId,
        /// The peer's address.
        peer: SocketAddrV4,
    },
    /// A send retired.
    SendDone {
        /// The connection.
        conn: ConnId,
        /// The work.
        token: WorkToken,
        /// `Ok`, or why not all bytes went.
        status: Status,
        /// Bytes that the peer's NIC has taken.
        bytes: u64,
        /// Detail word of the completion.
        detail: u64,
    },
    /// A receive retired.
    RecvDone {
        /// The connection.
        conn: ConnId,
        /// The work.
        token: WorkToken,
        /// `Ok`, `EndOfStream`, `ConnectionReset`, or a memory fault.
        status: Status,
        /// Bytes written to the buffer.
        bytes: u64,
        /// Detail word of the completion.
        detail: u64,
    },
    /// The peer has closed its sending side (seen once, when the FIN arrived).
    PeerClosed {
        /// Which.
        conn: ConnId,
    },
    /// The peer reset the connection or is gone. Posted works retire with `ConnectionReset`; the id
    /// stays until [`Transport::close`] or [`Transport::abort`].
    Reset {
        /// Which.
        conn: ConnId,
    },
    /// A closed connection has ended in order; the id is free again.
    Closed {
        /// Which.
        conn: ConnId,
    },
}

/// Whether a DMA read has its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReadStatus {
    /// `dst` is filled.
    Done,
    /// The memory is asynchronous: repeat the identical call in a later step.
    Pending,
}

/// Whether bytes of a peer's memory are on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Landing {
    /// No room for another operation: try again in a later step.
    Busy,
    /// The first `len` of them are.
    Started {
        /// Names them.
        ticket: u64,
        /// Bytes, at least one.
        len: u64,
    },
}

/// Whether they have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Landed {
    /// In place.
    Done,
    /// Ask again.
    Pending,
    /// Nobody has asked for too long, and they were forgotten.
    Lost,
}

/// The same for bytes that were fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Fetched {
    /// Here they are.
    Bytes(Vec<u8>),
    /// Ask again.
    Pending,
    /// As [`Landed::Lost`].
    Lost,
}

/// Why bytes of a peer's memory do not land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLanded {
    /// The buffer's fault.
    Fault(Fault),
    /// The peer's memory, or the device.
    Bus(BusError),
}

impl From<Fault> for NotLanded {
    fn from(fault: Fault) -> NotLanded {
        NotLanded::Fault(fault)
    }
}

impl From<BusError> for NotLanded {
    fn from(e: BusError) -> NotLanded {
        NotLanded::Bus(e)
    }
}

/// Memory that no CPU maps, between this NIC and a local peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLoans {
    /// The peer's address.
    pub peer: Ipv4Addr,
    /// Allocations of ours that the peer's own engine copies from.
    pub lent: usize,
    /// Allocations of the peer's that ours copies from.
    pub borrowed: usize,
    /// Ours that the peer is opening.
    pub opening: usize,
    /// Ours that are staged instead, and why.
    pub refused: Vec<NotReached>,
}

impl std::fmt::Display for PeerLoans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (peer, lent, borrowed) = (self.peer, self.lent, self.borrowed);
        write!(
            f,
            "{peer} copies from {lent} allocations of ours and we from {borrowed} of its"
        )?;
        if self.opening > 0 {
            write!(f, "; {} are opened when no kernel runs there", self.opening)?;
        }
        for why in NotReached::ALL {
            match self.refused.iter().filter(|w| **w == why).count() {
                0 => {}
                n => write!(f, "; {n} are staged, because {why}")?,
            }
        }
        Ok(())
    }
}

/// Room in NIC memory that a transport uses for payloads on their way; local peers reach it.
#[derive(Debug, PartialEq, Eq)]
pub struct StageRoom {
    /// Bus address of the first byte.
    pub(crate) bus: u64,
    /// Bytes.
    pub(crate) len: u32,
}

/// What a transport may do with GPU memory: through the GTLB, inside a pinned buffer.
pub trait DmaAccess {
    /// Reads `dst.len()` bytes at `offset` of the buffer.
    ///
    /// # Errors
    /// The [`Fault`] of the first address that has no translation.
    fn read(&mut self, buffer: &Buffer, offset: u64, dst: &mut [u8]) -> Result<ReadStatus, Fault>;

    /// Writes `src` at `offset` of the buffer. The bytes are visible no later than the completion
    /// that announces them.
    ///
    /// # Errors
    /// The [`Fault`] of the first address that has no translation; bytes before it may be written.
    fn write(&mut self, buffer: &Buffer, offset: u64, src: &[u8]) -> Result<(), Fault>;

    /// The contiguous run that starts at `offset`, cut to the buffer's end.
    ///
    /// # Errors
    /// The [`Fault`] when the address has no translation.
    fn span(&mut self, buffer: &Buffer, offset: u64) -> Result<BusSpan, Fault>;

    /// A place in the order of our writes to memory that no CPU maps, for [`DmaAccess::has_landed`].
    fn mark(&self) -> u64 {
        0
    }

    /// Whether what was written before the mark is where a peer's engine may read it.
    fn has_landed(&self, mark: u64) -> bool {
        let _ = mark;
        true
    }

    /// The CPU address of a span when the memory is directly mapped.
    fn direct(&self, span: BusSpan) -> Option<*mut u8>;

    /// Takes `len` bytes of NIC memory; `None` when there is no such piece.
    fn stage_take(&mut self, len: u32) -> Option<StageRoom> {
        let _ = len;
        None
    }

    /// Gives NIC memory back.
    fn stage_give(&mut self, room: StageRoom) {
        let _ = room;
    }

    /// Reads `len` bytes at `offset` of the buffer into a room, at bus address `to`. The ticket, never 0
    /// and used once, tells this read from others of the same bytes.
    ///
    /// # Errors
    /// As [`DmaAccess::read`].
    fn stage_fill(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        to: u64,
        len: u32,
        ticket: u64,
    ) -> Result<ReadStatus, Fault> {
        let _ = (offset, to, len, ticket);
        Err(Fault::NoTranslation { va: buffer.va })
    }

    /// Starts to move bytes of a peer's memory, borrowed here at `from`, to `offset` of the buffer: as many as are
    /// contiguous, in one go from memory to memory where it can copy by itself.
    ///
    /// # Errors
    /// [`NotLanded`]; nothing was started.
    fn land(&mut self, from: BusSpan, buffer: &Buffer, offset: u64) -> Result<Landing, NotLanded> {
        let (from, to) = (from.addr.value(), buffer.va.0.wrapping_add(offset));
        Err(NotLanded::Bus(BusError::NoCopy { from, to }))
    }

    /// Asks for what [`land`](DmaAccess::land) has started, in every step until it is over. Bytes that nobody asks for any
    /// more may still arrive: no later than an announcement that is published after them.
    ///
    /// # Errors
    /// The [`Fault`] of the buffer.
    fn landed(&mut self, ticket: u64) -> Result<Landed, Fault> {
        let _ = ticket;
        Ok(Landed::Lost)
    }

    /// Starts to read bytes of a peer's memory into the NIC, for what is no buffer.
    ///
    /// # Errors
    /// [`BusError`]; nothing was started.
    fn fetch(&mut self, from: BusSpan) -> Result<Landing, BusError> {
        let addr = from.addr.value();
        Err(BusError::NoCopy {
            from: addr,
            to: addr,
        })
    }

    /// Asks for what [`fetch`](DmaAccess::fetch) has started.
    fn fetched(&mut self, ticket: u64) -> Fetched {
        let _ = ticket;
        Fetched::Lost
    }

    /// Whether something is on its way out of a range of the bus that belongs to a peer.
    fn is_reading(&self, bus: u64, len: u64) -> bool {
        let _ = (bus, len);
        false
    }

    /// Whether an engine is on the path of a connection's bytes: those that arrive go through
    /// [`deliver`](DmaAccess::deliver) then, in place of any other way to memory, and those that leave
    /// through [`depart`](DmaAccess::depart).
    fn on_path(&self, conn: ConnId, direction: Direction) -> bool {
        let _ = (conn, direction);
        false
    }

    /// Bytes that an engine has made of what has arrived, for which no buffer had room.
    fn held(&self, conn: ConnId) -> usize {
        let _ = conn;
        0
    }

    /// Hands the next bytes of a stream to the engine on its path, and what leaves that to the buffer
    /// from `offset` on. With an empty `src` only what is [`held`](DmaAccess::held) moves. `by`: whose buffer
    /// it is. `streaming`: so much is posted that it will not be in the cache when it is read.
    fn deliver(
        &mut self,
        conn: ConnId,
        by: Mover,
        buffer: &Buffer,
        offset: u64,
        src: &[u8],
        streaming: bool,
    ) -> Delivered {
        let _ = (conn, by, streaming);
        match self.write(buffer, offset, src) {
            Ok(()) => Delivered::all(src.len()),
            Err(fault) => Delivered::fault(fault),
        }
    }

    /// As [`deliver`](DmaAccess::deliver) for bytes in a peer's memory, which the peer may write at any
    /// time: the engine sees what memory gets.
    fn deliver_foreign(
        &mut self,
        conn: ConnId,
        by: Mover,
        buffer: &Buffer,
        offset: u64,
        src: &Foreign<'_>,
        streaming: bool,
    ) -> Delivered {
        let _ = (conn, by, offset, src, streaming);
        Delivered::fault(Fault::NoTranslation { va: buffer.va })
    }

    /// A stream has ended, after everything that was handed over: the engine gives what it has kept.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error instead.
    fn end_of_stream(&mut self, conn: ConnId) -> Result<(), EngineFailed> {
        let _ = conn;
        Ok(())
    }

    /// Whether the engine on the path changes bytes that leave, or one has: they go through
    /// [`reshape`](DmaAccess::reshape) then, and [`outgoing`](DmaAccess::outgoing) leaves in their place, all of
    /// it before anything else does.
    fn reshapes(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Hands the next bytes that are to leave to that engine, each once.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error, and nothing more of it leaves.
    fn reshape(&mut self, conn: ConnId, by: Mover, bytes: &[u8]) -> Result<(), EngineFailed> {
        let _ = (conn, by, bytes);
        Ok(())
    }

    /// What it has made of them and has not left yet: at most what one call of `reshape` gives.
    fn outgoing(&self, conn: ConnId) -> &[u8] {
        let _ = conn;
        &[]
    }

    /// The first `n` bytes of that have left.
    fn outgoing_gone(&mut self, conn: ConnId, n: usize) {
        let _ = (conn, n);
    }

    /// Nothing more will leave: what the engine has kept for the end is outgoing. Only the first call counts.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error instead.
    fn end_outgoing(&mut self, conn: ConnId) -> Result<(), EngineFailed> {
        let _ = conn;
        Ok(())
    }

    /// Shows the engine on the path bytes that are leaving, each once.
    fn depart(&mut self, conn: ConnId, by: Mover, bytes: &[u8]) {
        let _ = (conn, by, bytes);
    }

    /// The same for `len` bytes of NIC memory at a bus address.
    fn depart_staged(&mut self, conn: ConnId, by: Mover, bus: u64, len: u32) {
        let _ = (conn, by, bus, len);
    }

    /// Counts payload bytes that a transport copied by itself (promise 5: copies are counted).
    /// `read` and `write` count their own.
    fn count_copied(&mut self, bytes: u64);
}

/// Stream bytes in memory of a peer that is mapped here.
pub struct Foreign<'a> {
    /// Mapped for `len` bytes while this lives.
    pub(crate) from: *const u8,
    pub(crate) len: usize,
    /// Whether the peer has taken them back. Asked after copying.
    pub(crate) is_revoked: &'a dyn Fn() -> bool,
}

/// The memory of a peer NIC, mapped here: what it exports of GPU memory, and its NIC memory.
///
/// Only what the peer's NIC has granted may be touched: a bus address comes from a record that it
/// wrote after checking that the buffer is registered with the access in question (remote write for
/// a store), and is dead once the operation of that record has ended.
pub trait PeerWindow {
    /// Where `len` bytes at a bus address of the peer lie; `None` when it exports no such range, or
    /// is gone.
    fn at(&self, bus: u64, len: u64) -> Option<*mut u8>;

    /// Wakes the peer if it sleeps: after a store that it must look at.
    fn wake(&self);
}

/// A stream transport. See the module text for the rules.
pub trait Transport: Send {
    /// Short name: `local`, `tcp`.
    fn name(&self) -> &'static str;

    /// Starts to listen on a port; `backlog` connections may wait between handshake and
    /// [`TransportEvent::Incoming`] being polled.
    ///
    /// # Errors
    /// `AddressInUse`, `NoResources`.
    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status>;

    /// Stops listening; connections already reported live on.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect; `Connected` or `ConnectFailed` follows, no later than `deadline`.
    ///
    /// # Errors
    /// `HostUnreachable` when this transport cannot reach that address at all, `NoResources`.
    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status>;

    /// Queues a send.
    fn post_send(&mut self, conn: ConnId, work: SendWork);

    /// Sends a small payload at once if nothing is queued before it and the peer has room for it.
    /// `true`: it has left, there will be no event. `false`: nothing happened, queue it instead.
    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        let _ = (conn, payload);
        false
    }

    /// Queues a receive.
    fn post_recv(&mut self, conn: ConnId, work: RecvWork);

    /// Receives at once when nothing is queued before it and enough has already arrived. `Some(bytes)`:
    /// it has ended, there will be no event. `None`: the stream is as before, queue it instead.
    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        dma: &mut dyn DmaAccess,
    ) -> Option<u32> {
        let _ = (conn, buffer, some, dma);
        None
    }

    /// Whether a `step` that was told no time would find nothing to do. A cheap look, by which
    /// whoever spins avoids whole steps; `false` is always a correct answer.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Takes a posted work back. `Some(bytes)` when it was still queued: it yields no event, and
    /// after the call the transport never touches its buffer again. A send that was partly taken by
    /// the peer, or by frames in flight, makes the stream unusable: the caller aborts it.
    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64>;

    /// Bytes of sends that have retired with `OK` and that the peer has not confirmed to have.
    fn undelivered(&self, conn: ConnId) -> u64 {
        let _ = conn;
        0
    }

    /// Half-close: FIN after the queued sends.
    fn shutdown(&mut self, conn: ConnId);

    /// Closes after the queued sends; receives not yet retired retire with `NotConnected`.
    /// `Closed` follows.
    fn close(&mut self, conn: ConnId);

    /// Resets at once; works not yet retired retire with `Aborted`. The id is free after that; no
    /// `Closed` follows.
    fn abort(&mut self, conn: ConnId);

    /// Moves what can be moved. Returns whether anything was.
    fn step(&mut self, now: NicTime, dma: &mut dyn DmaAccess) -> bool;

    /// The next thing that happened.
    fn poll_event(&mut self) -> Option<TransportEvent>;

    /// When `step` must be called again although nothing arrives.
    fn next_timer(&self) -> Option<NicTime>;

    /// Addresses of local ends: `(local, peer)` of a connection, for `doctor`, events and `accept`.
    fn endpoints(&self, conn: ConnId) -> Option<(SocketAddrV4, SocketAddrV4)>;

    /// The peer's memory, when this transport maps it.
    fn peer_window(&self, conn: ConnId) -> Option<&dyn PeerWindow> {
        let _ = conn;
        None
    }

    /// Lets peers map host memory, from now on and under a number that is never used again; whoever
    /// cannot is sent copies.
    ///
    /// # Errors
    /// What the system refused; then no peer was told.
    fn share(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()> {
        let _ = (id, memory);
        Ok(())
    }

    /// Whether the peer has mapped these bytes of shared host memory, by their bus address. `None`: it was told,
    /// and has not answered yet; its answer wakes the NIC.
    fn maps_host(&self, conn: ConnId, bus: u64, len: u64) -> Option<bool> {
        let _ = (conn, bus, len);
        Some(false)
    }

    /// Lets peers borrow memory that no CPU maps, under a number as for [`share`](Transport::share). Whoever
    /// cannot is sent copies.
    fn lend(&mut self, id: u64, loan: &Loan) {
        let _ = (id, loan);
    }

    /// Which memory is lent and borrowed, for each peer.
    fn loans(&self) -> Vec<PeerLoans> {
        Vec::new()
    }

    /// Takes shared or lent memory back: no new reference names it, and peers are asked to unmap it.
    fn withdraw(&mut self, id: u64) {
        let _ = id;
    }

    /// Peers that have not confirmed to have unmapped withdrawn memory. Those that are gone do not count.
    fn holders(&self, id: u64) -> usize {
        let _ = id;
        0
    }

    /// File descriptors that become readable when `step` has something to do (a socket, a TAP
    /// device, an epoll instance): whoever parks in place of stepping polls them for input.
    ///
    /// Asked once, when the NIC takes the transport; the descriptors are duplicated then, so what
    /// they refer to must stay the same for the transport's life (a changing set goes behind one
    /// epoll descriptor). A transport over memory that needs no descriptor returns none and is
    /// stepped at [`next_timer`](Transport::next_timer) and in bounded naps.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Why a connection that we have made is carried by transport number `t`, for people.
pub(crate) fn why_chosen(transports: &[Box<dyn Transport>], t: usize) -> &'static str {
    let name = |i: usize| transports.get(i).map_or("", |t| t.name());
    match (name(t), t, transports.len()) {
        (_, _, 1) => "the only transport of this NIC",
        ("local", 0, _) => "the peer is a NIC of this host, user and network namespace; the port is not used, transport `tcp` would use it",
        (_, 0, _) => "first in policy order",
        _ if name(0) == "local" => "no NIC of this host, user and network namespace has that address",
        _ => "the transports before it cannot reach that address",
    }
}
