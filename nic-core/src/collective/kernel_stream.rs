//! The NIC's end of a kernel's stream: the ring of `nic-abi/src/kernel_stream.rs`.
//!
//! The kernel owns one index and the NIC the other; each publishes its own with Release and reads
//! the other's with Acquire. The kernel's index is checked against the size of the ring, so a
//! hostile kernel corrupts its own operation and nothing else.

use ringbell_gtlb::Fault;
use ringbell_nic_abi::kernel_stream::{state_of, DATA_AT, HEAD_AT, STATE_AT, TAIL_AT};
use ringbell_nic_abi::{GpuVa, Status, StreamRef};

use crate::dma::Dma;
use crate::link::{Io, Pieces};
use crate::types::Buffer;

/// The status and its detail when a stream cannot proceed.
pub(crate) type Refusal = (Status, u64);

/// A stream as operand: pinned, not yet the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamSide {
    pub(crate) region: u32,
    pub(crate) stream: StreamRef,
}

/// Kernels' streams that stand for source and destination, where there are any.
pub(crate) type Rings = Option<Box<[Option<StreamSide>; 2]>>;

impl StreamSide {
    fn word_at(&self, offset: u64) -> Buffer {
        Buffer {
            region: self.region,
            va: GpuVa(self.stream.va.0 + offset),
            len: 8,
        }
    }

    fn load(&self, dma: &mut Dma<'_>, offset: u64) -> Result<u64, Refusal> {
        let word = dma
            .load_word(&self.word_at(offset))
            .map_err(|f| f.status())?;
        // Memory behind a copy engine cannot be polled: reported once, when the stream is opened.
        word.ok_or((Status::InvalidArgument, self.stream.va.0))
    }

    fn store(&self, dma: &mut Dma<'_>, offset: u64, value: u64) -> Result<(), Fault> {
        dma.store_word(&self.word_at(offset), value)
    }

    /// Notifies the kernel that the operation has failed.
    pub(crate) fn fail(&self, dma: &mut Dma<'_>, status: Status, detail: u64) {
        if let Err(fault) = self.store(dma, STATE_AT, state_of(status, detail)) {
            tracing::debug!(?fault, "a stream was gone before its failure was told");
        }
    }
}

/// Which way a stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A kernel pushes, the NIC takes.
    FromKernel,
    /// The NIC pushes, a kernel pops.
    ToKernel,
}

/// A stream that an operation works on.
#[derive(Debug)]
pub(crate) struct StreamEnd {
    side: StreamSide,
    way: Way,
    /// Our index: bytes ever taken, or pushed.
    own: u64,
    /// The kernel's index when it was last read.
    seen: u64,
}

impl StreamEnd {
    /// Takes a stream over where the operation before has left it.
    ///
    /// # Errors
    /// BAD_STATE when that one failed; a fault of the memory.
    pub(crate) fn open(
        dma: &mut Dma<'_>,
        side: StreamSide,
        way: Way,
    ) -> Result<StreamEnd, Refusal> {
        if side.load(dma, STATE_AT)? != 0 {
            return Err((Status::BadState, side.stream.va.0));
        }
        let (head, tail) = (side.load(dma, HEAD_AT)?, side.load(dma, TAIL_AT)?);
        let (own, seen) = match way {
            Way::FromKernel => (tail, head),
            Way::ToKernel => (head, tail),
        };
        let end = StreamEnd {
            side,
            way,
            own,
            seen,
        };
        end.filled()?;
        Ok(end)
    }

    fn kernels_index(&self) -> u64 {
        match self.way {
            Way::FromKernel => HEAD_AT,
            Way::ToKernel => TAIL_AT,
        }
    }

    /// Bytes in the ring, by what is known.
    fn filled(&self) -> Result<u64, Refusal> {
        let n = match self.way {
            Way::FromKernel => self.seen.wrapping_sub(self.own),
            Way::ToKernel => self.own.wrapping_sub(self.seen),
        };
        let stream = self.side.stream;
        if n > stream.capacity() {
            // The kernel has written an index that no pusher or taker can reach.
            return Err((Status::InvalidArgument, stream.va.0 + self.kernels_index()));
        }
        Ok(n)
    }

    /// Whether the kernel has moved since its index was last read.
    pub(crate) fn has_news(&self, dma: &mut Dma<'_>) -> bool {
        // A fault of the memory is reported when the operation runs.
        self.side.load(dma, self.kernels_index()) != Ok(self.seen)
    }

    /// Bytes that the NIC may take, or has room to push.
    pub(crate) fn ready(&mut self, dma: &mut Dma<'_>) -> Result<u64, Refusal> {
        self.seen = self.side.load(dma, self.kernels_index())?;
        let filled = self.filled()?;
        Ok(match self.way {
            Way::FromKernel => filled,
            Way::ToKernel => self.side.stream.capacity() - filled,
        })
    }

    /// The memory of `len` bytes that begin `skip` behind our index: two buffers where the ring
    /// wraps.
    pub(crate) fn pieces(&self, skip: u64, len: u64) -> Pieces {
        let size = self.side.stream.capacity();
        let at = self.own.wrapping_add(skip) & (size - 1);
        let first = len.min(size - at);
        let mut out = Pieces::default();
        for (at, len) in [(at, first), (0, len - first)] {
            out.push(Buffer {
                region: self.side.region,
                va: GpuVa(self.side.stream.va.0 + DATA_AT + at),
                len: len as u32,
            });
        }
        out
    }

    /// Bytes were taken, or pushed: the kernel may have their room, or them.
    pub(crate) fn advance(&mut self, dma: &mut Dma<'_>, len: u64) -> Result<(), Refusal> {
        self.own = self.own.wrapping_add(len);
        let index = match self.way {
            Way::FromKernel => TAIL_AT,
            Way::ToKernel => HEAD_AT,
        };
        self.side
            .store(dma, index, self.own)
            .map_err(|f| f.status())
    }
}

/// Takes over the streams of an operation: source and destination.
pub(super) fn open(
    io: &mut Io<'_>,
    streams: [Option<StreamSide>; 2],
) -> Result<[Option<StreamEnd>; 2], Refusal> {
    let [input, output] = streams;
    let mut of = |side: Option<StreamSide>, way| {
        side.map(|s| StreamEnd::open(&mut io.dma(), s, way))
            .transpose()
    };
    Ok([of(input, Way::FromKernel)?, of(output, Way::ToKernel)?])
}

/// The kernels' streams that operations use.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Streams in use, and by which operation.
    taken: Vec<(StreamSide, u32)>,
    /// Operations that may go on when a kernel has moved.
    pub(super) watched: Vec<u32>,
    /// Failures of which kernels are still to be notified.
    failed: Vec<(StreamSide, Status, u64)>,
}

impl Streams {
    pub(super) fn is_quiet(&self) -> bool {
        self.watched.is_empty()
    }

    /// Whether kernels are to be notified of failures.
    #[inline]
    pub(super) fn have_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Whether another operation has one of them: they are taken in the order of posting.
    pub(super) fn are_taken(&self, streams: [Option<StreamSide>; 2]) -> bool {
        let taken = |s: &StreamSide| self.taken.iter().any(|t| t.0 == *s);
        streams.iter().flatten().any(taken)
    }

    /// An operation has begun with them.
    pub(super) fn take(&mut self, id: u32, streams: [Option<StreamSide>; 2]) {
        self.taken
            .extend(streams.into_iter().flatten().map(|s| (s, id)));
    }

    /// An operation has ended.
    pub(super) fn give_back(
        &mut self,
        id: u32,
        streams: [Option<StreamSide>; 2],
        status: Status,
        detail: u64,
    ) {
        self.taken.retain(|t| t.1 != id);
        self.watched.retain(|w| *w != id);
        if status != Status::Ok {
            let failed = streams.into_iter().flatten();
            self.failed.extend(failed.map(|s| (s, status, detail)));
        }
    }

    /// Notifies kernels of failures.
    pub(crate) fn tell(&mut self, dma: &mut Dma<'_>) {
        for (side, status, detail) in self.failed.drain(..) {
            side.fail(dma, status, detail);
        }
    }

    /// It goes on when a kernel has moved.
    pub(super) fn watch(&mut self, id: u32) {
        if !self.watched.contains(&id) {
            self.watched.push(id);
        }
    }
}
