//! Values that every layer shares: NIC time, ids, pinned buffers, owners of operations.

pub use ringbell_net::NicTime;
use ringbell_nic_abi::{GpuVa, SessionId, INLINE_MAX};

/// A connection inside one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A listening port inside one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The command layer's name for a posted send or receive; returned when it retires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WorkToken(pub u64);

/// A communicator of a NIC: what a `COLLECTIVE` descriptor names in its session field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl CommId {
    /// The value of the descriptor's session field.
    pub const fn session(self) -> SessionId {
        SessionId(self.0)
    }
}

/// A range of GPU memory that was checked against its region and pinned by the command layer.
///
/// `region` is the MMU's handle of the pinned region; a transport only hands it back to
/// [`DmaAccess`](crate::dma::DmaAccess).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Pinned region.
    pub region: u32,
    /// First byte.
    pub va: GpuVa,
    /// Bytes.
    pub len: u32,
}

/// A payload of up to 40 bytes at the head of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Small {
    /// Bytes.
    pub len: u8,
    /// The bytes, as they lie in memory; those beyond `len` are undefined.
    pub words: [u64; INLINE_MAX / 8],
}

impl Small {
    /// The bytes in order; those beyond `len` are undefined.
    #[inline]
    pub fn bytes(&self) -> [u8; INLINE_MAX] {
        let mut bytes = [0; INLINE_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Owner of an operation: engines are attached to queues and communicators as well as to streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u32);

impl Owner {
    /// The NIC's own: no engine watches it.
    pub const NIC: Owner = Owner(u32::MAX);
    /// Bits above all numbers of queues (at most 512) and of communicators.
    const COMMUNICATOR: u32 = 1 << 31;
    const OPERANDS: u32 = 1 << 30;

    /// A descriptor of a queue.
    pub const fn queue(queue: u32) -> Owner {
        Owner(queue & !(Owner::COMMUNICATOR | Owner::OPERANDS))
    }

    /// A message of the communicator in a slot of the NIC.
    pub(crate) const fn communicator(slot: u32) -> Owner {
        Owner(slot | Owner::COMMUNICATOR)
    }

    /// What the operations of that communicator take in and give out: no transport moves it.
    pub(crate) const fn operands(slot: u32) -> Owner {
        Owner(slot | Owner::OPERANDS)
    }

    /// What operations take in or give out, not what messages carry.
    pub(crate) const fn is_operands(self) -> bool {
        self.0 & (Owner::COMMUNICATOR | Owner::OPERANDS) == Owner::OPERANDS
    }

    /// The queue, when it is one's.
    pub(crate) const fn as_queue(self) -> Option<u32> {
        if self.0 & (Owner::COMMUNICATOR | Owner::OPERANDS) == 0 {
            Some(self.0)
        } else {
            None
        }
    }
}
