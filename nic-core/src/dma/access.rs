//! The DMA interface of transports and collectives: [`DmaAccess`], and [`PeerDma`] for NICs of one
//! host.

use ringbell_gtlb::{BusSpan, Fault};

use super::RemoteMemory;
use crate::types::Buffer;

/// Whether a DMA read has its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReadStatus {
    /// `dst` is filled.
    Done,
    /// The memory is asynchronous: repeat the identical call in a later step.
    Pending,
}

/// Room in NIC memory that a transport uses for payloads on their way; local peers reach it.
#[derive(Debug, PartialEq, Eq)]
pub struct StageRoom {
    /// Bus address of the first byte.
    pub(crate) bus: u64,
    /// Bytes.
    pub(crate) len: u32,
}

/// Access of transports and their byte paths to memory: through the GTLB, inside a pinned buffer.
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

    /// The CPU address of a span when the memory is directly mapped.
    fn direct(&self, span: BusSpan) -> Option<*mut u8>;

    /// Whether the memory finishes every operation at once, so that no read is `Pending`.
    fn is_immediate(&self) -> bool;

    /// Counts payload bytes that were copied to or from a [`direct`](DmaAccess::direct) address
    /// (promise 5: copies are counted). `read` and `write` count their own.
    fn count_copied(&mut self, bytes: u64);

    /// Memory that NICs of one host pass to each other; `None` when there is none.
    fn peers(&mut self) -> Option<&mut dyn PeerDma>;
}

/// Passes on the address of each run of mapped bytes. Returns how many bytes there were before the
/// first that is not mapped.
pub(crate) fn each_mapped(
    dma: &mut dyn DmaAccess,
    buffer: &Buffer,
    at: u64,
    len: usize,
    mut run: impl FnMut(*mut u8, usize),
) -> usize {
    let mut done = 0;
    while done < len {
        let span = dma.span(buffer, at + done as u64).ok();
        let span = span.map(|s| s.prefix((len - done) as u64));
        let Some((bytes, n)) = span.and_then(|s| Some((dma.direct(s)?, s.len as usize))) else {
            break;
        };
        run(bytes, n);
        done += n;
    }
    done
}

/// Memory that NICs of one host pass to each other: staging rooms in NIC memory.
pub trait PeerDma {
    /// Takes `len` bytes of NIC memory; `None` when there is no such piece.
    fn stage_take(&mut self, len: u32) -> Option<StageRoom>;

    /// Frees NIC memory.
    fn stage_give(&mut self, room: StageRoom);

    /// Reads `len` bytes at `offset` of the buffer into a room, at bus address `to`. The ticket,
    /// never 0 and used once, distinguishes this read from others of the same bytes.
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
    ) -> Result<ReadStatus, Fault>;

    /// Copies bytes out of a room, from bus address `from`.
    ///
    /// # Errors
    /// The [`Fault`] when there is no such NIC memory.
    fn stage_read(&mut self, from: u64, to: &mut [u8]) -> Result<(), Fault>;
}
