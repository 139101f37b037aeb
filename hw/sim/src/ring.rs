//! What blocks of ring collectives take and give: steps of a program, and messages between
//! neighbours.

use crate::stream::{Beat, BEAT};

/// A step, as `sequencer` takes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// An input is the next message of the previous NIC.
    pub net_in: bool,
    /// The value goes to the next NIC.
    pub net_out: bool,
    /// An input lies in GPU memory, at this address.
    pub read: Option<u64>,
    /// The value goes to GPU memory, to this address.
    pub write: Option<u64>,
    /// Bytes of the value.
    pub bytes: u32,
}

impl Step {
    /// Lines of on-card memory that keep the value.
    pub fn lines(&self) -> u32 {
        self.bytes.div_ceil(BEAT as u32).max(1)
    }
}

/// A part of a message between neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A message of so many bytes begins.
    Message(u32),
    /// Its next beat.
    Beat(Beat),
}

/// How a collective has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// All steps are done, and the GPU's memory has their values.
    Done,
    /// No progress within the deadline.
    Late,
    /// A message of another length than its step.
    Length,
    /// A type or operation that `reduce` does not have.
    Type,
    /// This address of the GPU has faulted.
    Fault(u64),
}

impl Report {
    /// The report with a status of `sequencer`, and the address beside it.
    ///
    /// # Panics
    /// At a status that the block does not have.
    pub fn new(status: u64, va: u64) -> Report {
        match status {
            0 => Report::Done,
            1 => Report::Late,
            2 => Report::Length,
            3 => Report::Type,
            4 => Report::Fault(va),
            other => panic!("status {other}"),
        }
    }
}
