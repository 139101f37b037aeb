//! Completion permits: an accepted descriptor retires exactly once.
//!
//! A [`Permit`] is minted when a descriptor is consumed, at which point the line of its slot is
//! reserved; only [`Permit::retire`] consumes it. Dropping one unfinished is a defect of the NIC:
//! it panics in builds with debug assertions and is counted in all.

use std::sync::atomic::{AtomicU64, Ordering};

use ringbell_nic_abi::{Completion, Status};

/// Permits dropped without a completion, in this process. Anything but zero is a defect.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Permits dropped without a completion since the process started.
pub fn leaked_permits() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// The duty to complete one descriptor.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit {
    /// Index of the queue.
    pub(crate) queue: u32,
    /// Ticket of the descriptor.
    pub(crate) ticket: u32,
    /// Opcode byte.
    pub(crate) opcode: u8,
    wr_id: u64,
    armed: bool,
}

impl Permit {
    /// For an entry that is being consumed.
    pub(crate) fn new(queue: u32, ticket: u32, opcode: u8, wr_id: u64) -> Permit {
        Permit {
            queue,
            ticket,
            opcode,
            wr_id,
            armed: true,
        }
    }

    /// Consumes the permit and returns the completion to publish.
    pub(crate) fn retire(mut self, status: Status, bytes: u64, detail: u64) -> Completion {
        self.armed = false;
        Completion {
            status,
            opcode: self.opcode,
            wr_id: self.wr_id,
            bytes,
            detail,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.armed {
            LEAKED.fetch_add(1, Ordering::Relaxed);
            if cfg!(debug_assertions) && !std::thread::panicking() {
                panic!(
                    "ticket {} of queue {} was dropped without a completion",
                    self.ticket, self.queue
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_panics_and_is_counted() {
        let before = leaked_permits();
        let p = Permit::new(1, 2, 6, 3);
        assert!(std::panic::catch_unwind(move || drop(p)).is_err());
        assert_eq!(leaked_permits(), before + 1);
        let c = Permit::new(1, 2, 6, 3).retire(Status::Ok, 5, 7);
        assert_eq!((c.wr_id, c.bytes, c.detail, c.opcode), (3, 5, 7, 6));
        assert_eq!(leaked_permits(), before + 1);
    }
}
