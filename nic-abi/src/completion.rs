//! The completion line: one 64-byte line per send-queue slot.
//!
//! The completion of the descriptor with ticket `t` is written to line `t mod depth`, so its space
//! exists before the descriptor is consumed. The NIC writes words 1–3 first and
//! word 0 last with Release; a waiter that reads word 0 with Acquire and finds `ticket + 1` in its
//! high half also sees words 1–3. A line is reused only after its waiter has *released* the slot
//! (see [`crate::queue`]).
//!
//! A kernel's read of a line is a round trip over PCIe. The words that most operations need lie in
//! the first 16 bytes, which it loads at once; `HAS_DETAIL` says that word 3 must be read too.
//!
//! **Scatter to CQE** (the term of InfiniBand adapters). A copy engine takes several microseconds
//! to write a few bytes into the memory of a GPU that no CPU has mapped. So the NIC may put the
//! bytes of a small receive into words 5 to 7 of the line instead (`SCATTERED`), and their
//! destination into word 4. The waiter stores them there before its wait returns. The NIC has
//! checked the destination as for any receive.

use crate::{bit_fields, Status};

/// Bytes of one completion line, and the stride of the completion queue.
pub const COMPLETION_BYTES: usize = 64;

/// Most received bytes that a completion line carries: words 5 to 7.
pub const SCATTER_MAX: usize = 24;

bit_fields! { COMPLETION_FIELDS:
    /// Status code.
    C_STATUS = word 0 [0 +: 8] => "CQE_STATUS";
    /// Opcode of the operation, 0 when it could not be decoded.
    C_OPCODE = word 0 [8 +: 8] => "CQE_OPCODE";
    /// Ticket of the descriptor plus one, modulo 2^32: what the waiter compares.
    C_TICKET = word 0 [32 +: 32] => "CQE_TICKET";
    /// Whether word 3 is not zero.
    C_HAS_DETAIL = word 0 [16 +: 1] => "CQE_HAS_DETAIL";
    /// Whether words 4 to 7 hold the received bytes, as many as word 1 says.
    C_SCATTERED = word 0 [17 +: 1] => "CQE_SCATTERED";
    /// Bytes moved, also when the operation failed half-way.
    C_BYTES = word 1 [0 +: 64] => "CQE_BYTES";
    /// The caller's number from the descriptor.
    C_WR_ID = word 2 [0 +: 64] => "CQE_WR_ID";
    /// New session id, faulting address, or a value that depends on the status code.
    C_DETAIL = word 3 [0 +: 64] => "CQE_DETAIL";
    /// With `SCATTERED`: where the waiter stores the bytes.
    C_LINE_VA = word 4 [0 +: 64] => "CQE_LINE_VA";
    /// With `SCATTERED`: the first of three words with the bytes, little-endian.
    C_LINE_BYTES = word 5 [0 +: 64] => "CQE_LINE_BYTES";
}

/// A completion before it is written to its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// Opcode byte of the descriptor; 0 when it could not be decoded.
    pub opcode: u8,
    /// The descriptor's `wr_id`.
    pub wr_id: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// See [`Status`].
    pub detail: u64,
}

impl Completion {
    /// The four words of the line for the descriptor with `ticket`; word 0 is to be stored last.
    pub const fn encode(&self, ticket: u32) -> [u64; 4] {
        [
            C_STATUS.put(self.status as u64)
                | C_OPCODE.put(self.opcode as u64)
                | C_HAS_DETAIL.put((self.detail != 0) as u64)
                | C_TICKET.put(ticket.wrapping_add(1) as u64),
            self.bytes,
            self.wr_id,
            self.detail,
        ]
    }

    /// Decodes a line if it holds the completion of `ticket`.
    ///
    /// An unknown status code decodes as [`Status::NicSilent`]: the contract is broken, so the
    /// buffer must not be touched.
    pub fn decode(words: [u64; 4], ticket: u32) -> Option<Completion> {
        if C_TICKET.of(words[0]) as u32 != ticket.wrapping_add(1) {
            return None;
        }
        Some(Completion {
            status: Status::from_code(C_STATUS.of(words[0]) as u8).unwrap_or(Status::NicSilent),
            opcode: C_OPCODE.of(words[0]) as u8,
            bytes: words[1],
            wr_id: words[2],
            detail: words[3],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_ticket_wrap() {
        let c = Completion {
            status: Status::NotRegistered,
            opcode: 6,
            wr_id: u64::MAX,
            bytes: 7,
            detail: 1 << 63,
        };
        for ticket in [0, 1, u32::MAX - 1, u32::MAX] {
            assert_eq!(Completion::decode(c.encode(ticket), ticket), Some(c));
            assert_eq!(
                Completion::decode(c.encode(ticket), ticket.wrapping_sub(64)),
                None
            );
        }
    }
}
