//! Notes: SENDs by which two NICs agree on what RoCEv2 and RDMAP have no header for. A signal names
//! its word by the region, and a refusal of theirs has one reason, or ends the connection.
//!
//! ```text
//!  0      1      2       4       8      12      16        24         32
//! | kind | need | flags | index | rkey | length | address | value     |   about memory of the receiver
//! | kind | status                                         | detail    |   an answer
//! ```

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};

use crate::dma::{DmaAccess, WordUpdate};
use crate::transport::{RemoteOp, RemoteWork, Signal};
use crate::types::Buffer;

/// Bytes of a note: fewer than the smallest packet has.
pub(in crate::transport) const NOTE_BYTES: usize = 32;

const SIGNAL: u8 = 1;
const SET: u8 = 2;

/// What an operation does to memory of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct Access {
    pub(in crate::transport) need: Need,
    pub(in crate::transport) rkey: Rkey,
    pub(in crate::transport) va: GpuVa,
    pub(in crate::transport) len: u32,
    pub(in crate::transport) signal: Option<Signal>,
}

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Note {
    /// To be checked as a whole. A signal is set at once, or, when there are bytes, behind the
    /// WRITE that ends with immediate data.
    Announce(Access),
    /// Asks why it was refused.
    Why(Access),
    /// Answers the oldest such question.
    Because(Status, u64),
}

impl Note {
    pub(in crate::transport) fn bytes(&self) -> [u8; NOTE_BYTES] {
        let mut b = [0; NOTE_BYTES];
        let (kind, access) = match self {
            Note::Announce(access) => (1, access),
            Note::Why(access) => (2, access),
            Note::Because(status, detail) => {
                (b[0], b[1]) = (3, status.code());
                b[24..].copy_from_slice(&detail.to_be_bytes());
                return b;
            }
        };
        b[0] = kind;
        b[1] = match access.need {
            Need::RemoteRead => 1,
            Need::RemoteAtomic => 2,
            _ => 0,
        };
        if let Some(s) = access.signal {
            b[2] = SIGNAL | if s.set { SET } else { 0 };
            b[4..8].copy_from_slice(&s.index.to_be_bytes());
            b[24..].copy_from_slice(&s.value.to_be_bytes());
        }
        b[8..12].copy_from_slice(&access.rkey.0.to_be_bytes());
        b[12..16].copy_from_slice(&access.len.to_be_bytes());
        b[16..24].copy_from_slice(&access.va.0.to_be_bytes());
        b
    }

    /// `None`: these bytes are no note.
    pub(in crate::transport) fn read(b: &[u8]) -> Option<Note> {
        let b: &[u8; NOTE_BYTES] = b.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        if b[0] == 3 {
            return Some(Note::Because(Status::from_code(b[1])?, long(24)));
        }
        let access = Access {
            need: match b[1] {
                0 => Need::RemoteWrite,
                1 => Need::RemoteRead,
                2 => Need::RemoteAtomic,
                _ => return None,
            },
            rkey: Rkey(word(8)),
            va: GpuVa(long(16)),
            len: word(12),
            signal: (b[2] & SIGNAL != 0).then_some(Signal {
                index: word(4),
                value: long(24),
                set: b[2] & SET != 0,
            }),
        };
        match b[0] {
            1 => Some(Note::Announce(access)),
            2 => Some(Note::Why(access)),
            _ => None,
        }
    }
}

impl Access {
    pub(in crate::transport) fn of(work: &RemoteWork) -> Access {
        let (need, len, signal) = match work.op {
            RemoteOp::Put { payload, signal } => (Need::RemoteWrite, payload.len(), signal),
            RemoteOp::Get { into } => (Need::RemoteRead, into.len, None),
            RemoteOp::FetchAdd { .. } | RemoteOp::CompareSwap { .. } => {
                (Need::RemoteAtomic, 8, None)
            }
        };
        Access {
            need,
            rkey: work.rkey,
            va: work.va,
            len,
            signal,
        }
    }

    /// Checks all of it; gives the word of its signal.
    ///
    /// # Errors
    /// Status and detail for the initiator.
    pub(in crate::transport) fn check(
        &self,
        domains: &[PdId],
        dma: &mut dyn DmaAccess,
    ) -> Result<Option<Buffer>, (Status, u64)> {
        let memory = dma.remote(domains, self.rkey, self.va, self.len, self.need);
        let memory = memory.map_err(Fault::status)?;
        let word = match self.signal {
            Some(s) => {
                let word = dma.remote_word(domains, self.rkey, self.va, s.index);
                Some(word.map_err(Fault::status)?)
            }
            None => None,
        };
        let updated = match self.need {
            Need::RemoteAtomic => Some(memory),
            _ => word,
        };
        if let Some(word) = updated {
            // Whether it is aligned, and in memory that the CPU reaches. The word is left as it is.
            dma.update_word(&word, WordUpdate::Add(0))?;
        }
        Ok(word)
    }

    /// Checks it again, and sets its signal.
    ///
    /// # Errors
    /// As [`Access::check`].
    pub(in crate::transport) fn set_signal(
        &self,
        domains: &[PdId],
        dma: &mut dyn DmaAccess,
    ) -> Result<(), (Status, u64)> {
        if let (Some(word), Some(s)) = (self.check(domains, dma)?, self.signal) {
            let update = match s.set {
                true => WordUpdate::Set(s.value),
                false => WordUpdate::Add(s.value),
            };
            dma.update_word(&word, update)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_survives_its_bytes() {
        let access = |need, signal| Access {
            need,
            rkey: Rkey(0x1234_5678),
            va: GpuVa(u64::MAX - 7),
            len: u32::MAX,
            signal,
        };
        let signal = |set| {
            Some(Signal {
                index: u32::MAX - 1,
                value: 0x0102_0304_0506_0708,
                set,
            })
        };
        let all = [
            Note::Announce(access(Need::RemoteWrite, signal(false))),
            Note::Announce(access(Need::RemoteRead, None)),
            Note::Why(access(Need::RemoteAtomic, None)),
            Note::Why(access(Need::RemoteWrite, signal(true))),
            Note::Because(Status::BadKey, u64::MAX),
        ];
        for note in all {
            let bytes = note.bytes();
            assert_eq!(Note::read(&bytes), Some(note));
            assert_eq!(Note::read(&bytes[1..]), None);
        }
        for (at, value) in [(0, 0), (0, 4), (1, 3)] {
            let mut bytes = all[0].bytes();
            bytes[at] = value;
            assert_eq!(Note::read(&bytes), None);
        }
        let mut bytes = all[4].bytes();
        bytes[1] = 255;
        assert_eq!(Note::read(&bytes), None, "no such status");
    }
}
