//! Requests for memory of the peer, and answers: Reads (RFC 5040 §4.4) and atomic operations
//! (RFC 7306 §5).
//!
//! ```text
//! Read request      sink STag (4)  sink offset (8)  bytes (4)  source STag (4)  source offset (8)
//! atomic request    operation (4)  identifier (4)  STag (4)  offset (8)
//!                   operand (8)  its mask (8)  compared (8)  its mask (8)
//! atomic response   identifier (4)  value before (8)
//! ```
//!
//! Each is the whole payload of an untagged unit. A Read response is tagged: its bytes go to the
//! sink.

use super::{u32_at, u64_at};

/// Bytes of a Read request.
pub const READ_REQUEST_BYTES: usize = 28;
/// Bytes of an atomic request.
pub const ATOMIC_REQUEST_BYTES: usize = 52;
/// Bytes of an atomic response.
pub const ATOMIC_RESPONSE_BYTES: usize = 12;

const FETCH_ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;

/// Asks for bytes of the receiver's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where they go: memory of the sender.
    pub sink: u32,
    /// Address of the first byte there.
    pub sink_offset: u64,
    /// How many.
    pub len: u32,
    /// Where they lie: memory of the receiver.
    pub source: u32,
    /// Address of the first byte there.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Its bytes.
    pub fn emit(&self) -> [u8; READ_REQUEST_BYTES] {
        let mut out = [0; READ_REQUEST_BYTES];
        out[..4].copy_from_slice(&self.sink.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..20].copy_from_slice(&self.source.to_be_bytes());
        out[20..].copy_from_slice(&self.source_offset.to_be_bytes());
        out
    }

    /// Reads it; `None`: another length.
    pub fn parse(b: &[u8]) -> Option<ReadRequest> {
        (b.len() == READ_REQUEST_BYTES).then(|| ReadRequest {
            sink: u32_at(b, 0),
            sink_offset: u64_at(b, 4),
            len: u32_at(b, 12),
            source: u32_at(b, 16),
            source_offset: u64_at(b, 20),
        })
    }
}

/// What is done to a word of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping.
    FetchAdd(u64),
    /// Stores `swap` if the word is equal to `compare`.
    CompareSwap {
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
}

/// Asks for an operation on a word of the receiver's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The response has it, too.
    pub identifier: u32,
    /// The receiver's memory.
    pub stag: u32,
    /// Address of the word there.
    pub offset: u64,
    /// What is done.
    pub operation: Atomic,
}

impl AtomicRequest {
    /// Its bytes: masks select the whole word, and what is not used is 0.
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_BYTES] {
        let (code, words) = match self.operation {
            // No bit of the mask ends a field: the sum has one of 64 bits.
            Atomic::FetchAdd(addend) => (FETCH_ADD, [addend, 0, 0, 0]),
            Atomic::CompareSwap { compare, swap } => {
                (COMPARE_SWAP, [swap, u64::MAX, compare, u64::MAX])
            }
        };
        let mut out = [0; ATOMIC_REQUEST_BYTES];
        out[..4].copy_from_slice(&code.to_be_bytes());
        out[4..8].copy_from_slice(&self.identifier.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.to_be_bytes());
        out[12..20].copy_from_slice(&self.offset.to_be_bytes());
        for (to, word) in out[20..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Reads it; `None`: another length or operation, or masks that do not select the whole word.
    pub fn parse(b: &[u8]) -> Option<AtomicRequest> {
        if b.len() != ATOMIC_REQUEST_BYTES {
            return None;
        }
        let [operand, mask, compare, compare_mask] = [20, 28, 36, 44].map(|at| u64_at(b, at));
        let operation = match (u32_at(b, 0), mask, compare_mask) {
            (FETCH_ADD, 0, _) => Atomic::FetchAdd(operand),
            (COMPARE_SWAP, u64::MAX, u64::MAX) => Atomic::CompareSwap {
                compare,
                swap: operand,
            },
            _ => return None,
        };
        Some(AtomicRequest {
            identifier: u32_at(b, 4),
            stag: u32_at(b, 8),
            offset: u64_at(b, 12),
            operation,
        })
    }
}

/// The bytes of an atomic response: the identifier of its request, and the value before.
pub fn atomic_response(identifier: u32, before: u64) -> [u8; ATOMIC_RESPONSE_BYTES] {
    let mut out = [0; ATOMIC_RESPONSE_BYTES];
    out[..4].copy_from_slice(&identifier.to_be_bytes());
    out[4..].copy_from_slice(&before.to_be_bytes());
    out
}

/// Reads an atomic response; `None`: another length.
pub fn parse_atomic_response(b: &[u8]) -> Option<(u32, u64)> {
    (b.len() == ATOMIC_RESPONSE_BYTES).then(|| (u32_at(b, 0), u64_at(b, 4)))
}
