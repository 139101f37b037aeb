//! A kernel's stream: a ring in memory between one kernel and the NIC, as operand of a collective.
//!
//! It takes the place of a buffer (ACCL+ §4.1, Listing 2; SMI's channels): the kernel pushes values
//! while it computes them and the NIC takes them, or the NIC pushes and the kernel pops. A stream
//! has one direction. It lies in memory that the queue's protection domain may write, preferably in
//! host memory, because the NIC polls it.
//!
//! | bytes | what |
//! |---|---|
//! | [`HEAD_AT`] | u64: bytes ever pushed, modulo 2^64; the pusher's alone, Release after the bytes |
//! | [`TAIL_AT`] | u64: bytes ever taken; the taker's alone, Release after the bytes were read |
//! | [`STATE_AT`] | u64, the NIC's: 0, or how an operation on it failed (status, detail above) |
//! | [`DATA_AT`] | the ring; byte i of the stream is at i modulo its size |
//!
//! Zeroed memory is an empty stream. After a failure the bytes in it are lost, and every operation
//! on it is refused until its owner has zeroed the state and made head and tail equal.
//!
//! **Address word.** A descriptor names a stream by its address, a multiple of 128, with the base-2
//! logarithm of the ring's size in the low 7 bits ([`StreamRef`]).

use crate::GpuVa;

/// Offset of the count of bytes pushed.
pub const HEAD_AT: u64 = 0;
/// Offset of the count of bytes taken.
pub const TAIL_AT: u64 = 128;
/// Offset of the word that says how an operation failed.
pub const STATE_AT: u64 = 256;
/// Offset of the ring.
pub const DATA_AT: u64 = 384;
/// A stream's address is a multiple of this.
pub const ALIGN: u64 = 128;
/// Smallest ring, as a logarithm.
pub const MIN_LOG2: u32 = 6;
/// Largest ring, as a logarithm.
pub const MAX_LOG2: u32 = 30;

/// A stream as descriptors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRef {
    /// Its first byte.
    pub va: GpuVa,
    /// log2 of the bytes of its ring.
    pub log2: u32,
}

impl StreamRef {
    /// Bytes of the ring.
    pub const fn capacity(self) -> u64 {
        1 << self.log2
    }

    /// Bytes of the whole: indices, state and ring.
    pub const fn bytes(self) -> u64 {
        DATA_AT + self.capacity()
    }

    /// The address word.
    pub const fn word(self) -> u64 {
        self.va.0 | self.log2 as u64
    }

    /// Decodes an address word; `None` for a size out of range.
    pub const fn from_word(word: u64) -> Option<StreamRef> {
        let log2 = (word & (ALIGN - 1)) as u32;
        if log2 < MIN_LOG2 || log2 > MAX_LOG2 {
            return None;
        }
        Some(StreamRef {
            va: GpuVa(word & !(ALIGN - 1)),
            log2,
        })
    }
}

/// The state word of a failure: never 0, for `status` is not OK.
pub const fn state_of(status: crate::Status, detail: u64) -> u64 {
    status as u64 | (detail & 0xffff_ffff) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_word_names_one_stream_and_a_bare_address_none() {
        let s = StreamRef {
            va: GpuVa(0x7_0000_0080),
            log2: 14,
        };
        assert_eq!(StreamRef::from_word(s.word()), Some(s));
        assert_eq!(s.bytes(), DATA_AT + 16384);
        for log2 in [0, MIN_LOG2 - 1, MAX_LOG2 + 1, 127] {
            assert_eq!(StreamRef::from_word(0x1000 | u64::from(log2)), None);
        }
    }
}
