//! The DMA interface of transports and collectives: [`DmaAccess`].

use ringbell_gtlb::{BusError, BusSpan, Fault};

use super::RemoteMemory;
use crate::engine::{Delivered, Direction, EngineFailed};
use crate::types::{Buffer, ConnId, Owner};

/// Whether a DMA read has its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReadStatus {
    /// `dst` is filled.
    Done,
    /// The memory is asynchronous: repeat the identical call in a later step.
    Pending,
}

/// Whether a copy out of a peer's memory has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CopyStart {
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

/// Whether it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CopyStatus {
    /// In place.
    Done,
    /// Ask again.
    Pending,
    /// It was not asked for in too many steps, and was dropped.
    Lost,
}

/// The same for bytes that are read into the NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ReadOutcome {
    /// Here they are.
    Bytes(Vec<u8>),
    /// Ask again.
    Pending,
    /// As [`CopyStatus::Lost`].
    Lost,
}

/// Why bytes of a peer's memory cannot be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyError {
    /// The buffer's fault.
    Fault(Fault),
    /// The peer's memory, or the device.
    Bus(BusError),
}

impl From<Fault> for CopyError {
    fn from(fault: Fault) -> CopyError {
        CopyError::Fault(fault)
    }
}

impl From<BusError> for CopyError {
    fn from(e: BusError) -> CopyError {
        CopyError::Bus(e)
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

/// A transport's access to GPU memory: through the GTLB, inside a pinned buffer.
pub trait DmaAccess: RemoteMemory {
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

    /// Whether bytes written before the mark have arrived, so that a peer's engine may read them.
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

    /// Frees NIC memory.
    fn stage_give(&mut self, room: StageRoom) {
        let _ = room;
    }

    /// Reads `len` bytes at `offset` of the buffer into a room, at bus address `to`. The ticket, never 0
    /// and used once, distinguishes this read from others of the same bytes.
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

    /// Starts to move bytes of a peer's memory, imported here at `from`, to `offset` of the buffer: as many as are
    /// contiguous, in one go from memory to memory where it can copy by itself.
    ///
    /// # Errors
    /// [`CopyError`]; nothing was started.
    fn start_copy(
        &mut self,
        from: BusSpan,
        buffer: &Buffer,
        offset: u64,
    ) -> Result<CopyStart, CopyError> {
        let (from, to) = (from.addr.value(), buffer.va.0.wrapping_add(offset));
        Err(CopyError::Bus(BusError::NoCopy { from, to }))
    }

    /// Polls a copy of [`start_copy`](DmaAccess::start_copy), in every step until it is over. Bytes of a copy that is no longer
    /// polled may still arrive: no later than an announcement that is published after them.
    ///
    /// # Errors
    /// The [`Fault`] of the buffer.
    fn poll_copy(&mut self, ticket: u64) -> Result<CopyStatus, Fault> {
        let _ = ticket;
        Ok(CopyStatus::Lost)
    }

    /// Starts to read bytes of a peer's memory into the NIC, for what is no buffer.
    ///
    /// # Errors
    /// [`BusError`]; nothing was started.
    fn start_read(&mut self, from: BusSpan) -> Result<CopyStart, BusError> {
        let addr = from.addr.value();
        Err(BusError::NoCopy {
            from: addr,
            to: addr,
        })
    }

    /// Polls a read of [`start_read`](DmaAccess::start_read).
    fn poll_read(&mut self, ticket: u64) -> ReadOutcome {
        let _ = ticket;
        ReadOutcome::Lost
    }

    /// Whether a copy out of a peer's range of the bus is in flight.
    fn is_reading(&self, bus: u64, len: u64) -> bool {
        let _ = (bus, len);
        false
    }

    /// Whether an engine is on the path of a connection's bytes: those that arrive go through
    /// [`deliver`](DmaAccess::deliver) then, in place of any other way to memory, and those that leave
    /// through [`tap_sent`](DmaAccess::tap_sent).
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
        by: Owner,
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
    /// time: the engine sees the bytes that memory gets.
    fn deliver_foreign(
        &mut self,
        conn: ConnId,
        by: Owner,
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
    /// [`transform`](DmaAccess::transform) then, and [`outgoing`](DmaAccess::outgoing) leaves in their place, all of
    /// it before anything else does.
    fn transforms(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Hands the next bytes that are to leave to that engine, each once.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error, and nothing more of it leaves.
    fn transform(&mut self, conn: ConnId, by: Owner, bytes: &[u8]) -> Result<(), EngineFailed> {
        let _ = (conn, by, bytes);
        Ok(())
    }

    /// Its output that has not left yet: at most that of one call of `transform`.
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

    /// Passes the engine on the path outgoing bytes, each once.
    fn tap_sent(&mut self, conn: ConnId, by: Owner, bytes: &[u8]) {
        let _ = (conn, by, bytes);
    }

    /// The same for `len` bytes of NIC memory at a bus address.
    fn tap_staged(&mut self, conn: ConnId, by: Owner, bus: u64, len: u32) {
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
