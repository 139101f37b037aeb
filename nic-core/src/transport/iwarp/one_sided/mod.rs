//! One-sided operations of a connection, in both directions.
//!
//! ```text
//! put          note ─▶ Writes                  ◀─ note: how it has ended
//! get          Read request                    ◀─ Read response, or a note: why not
//! fetch-add,
//! swap         atomic request (RFC 7306)       ◀─ atomic response, or a note
//! ```
//!
//! TCP keeps the order, so the target executes operations and answers them in the order in which
//! they were posted; an answer is that of the oldest. The bytes of a get may be read after what
//! follows it, as RDMAP allows (RFC 5040 §5.5).
//!
//! **Notes.** RDMAP tells the target nothing of a Write, and a wrong access ends the connection. So
//! a note announces a put: the target checks all of it, and drops the Writes of one that it
//! refuses. A signal is in the note, because only the target knows where its word lies; it is set
//! behind the last byte.
//!
//! **Limits.** Reads and atomic operations that are under way at once are agreed on at the start-up
//! (RFC 6581), and those of all kinds are bounded here.
//!
//! **Copies.** Puts of 16 KiB and more leave from their memory, and arrive in theirs. Bytes of a
//! get are copied once at the target: the memory may be written while they wait for the kernel, and
//! the CRC is that of what leaves.

mod asking;
mod limits;
mod serving;

pub(super) use asking::{Asking, Next};
pub(super) use limits::READS;
pub(super) use serving::{Answer, Request, Serving};

/// Both directions.
#[derive(Debug, Default)]
pub(super) struct OneSided {
    pub(super) asking: Asking,
    pub(super) serving: Serving,
}
