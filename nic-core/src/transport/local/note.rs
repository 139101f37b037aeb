//! Notes: messages between two linked NICs, over their socket, about exported memory.

use ringbell_gtlb::export::TOKEN_BYTES;
use ringbell_gtlb::{ExportRecord, NotReached};

use super::rendezvous::ExportInfo;

const MAGIC: u32 = 0x4e42_5221;
const BYTES: usize = 40;
/// An offer has a token behind it.
pub(super) const LONGEST: usize = BYTES + TOKEN_BYTES;

/// A message from one side to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Few, and short-lived.
pub(super) enum Note {
    /// No answer yet; never sent.
    Nothing,
    /// Import this if you can.
    Export { id: u64, record: ExportRecord },
    /// It is imported, or mapped: refer to it.
    Reached { id: u64 },
    /// It cannot be imported: do not refer to it.
    Unreached { id: u64, why: NotReached },
    /// Map this; its descriptor comes along.
    Share { id: u64, info: ExportInfo },
    /// Unmap it and say so.
    Withdraw { id: u64 },
    /// It is unmapped here, or could not be mapped: do not refer to it.
    Released { id: u64 },
}

impl Note {
    pub(super) fn id(self) -> u64 {
        match self {
            Note::Nothing => 0,
            Note::Share { id, .. }
            | Note::Export { id, .. }
            | Note::Reached { id }
            | Note::Unreached { id, .. }
            | Note::Withdraw { id }
            | Note::Released { id } => id,
        }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let none = ExportInfo::default();
        let (kind, info) = match self {
            Note::Nothing => (0_u32, none),
            Note::Share { info, .. } => (1, info),
            Note::Withdraw { .. } => (2, none),
            Note::Released { .. } => (3, none),
            Note::Export { record, .. } => {
                let (file_offset, bus, len) = (record.key, record.bus, record.len);
                let info = ExportInfo {
                    file_offset,
                    bus,
                    len,
                };
                (4, info)
            }
            Note::Reached { .. } => (5, none),
            Note::Unreached { why, .. } => {
                let len = why.code();
                (6, ExportInfo { len, ..none })
            }
        };
        let mut b = Vec::with_capacity(LONGEST);
        b.extend(MAGIC.to_le_bytes());
        b.extend(kind.to_le_bytes());
        for word in [self.id(), info.file_offset, info.bus, info.len] {
            b.extend(word.to_le_bytes());
        }
        if let Note::Export { record, .. } = self {
            b.extend(record.token);
        }
        b
    }

    pub(super) fn decode(b: &[u8]) -> Option<Note> {
        let (b, token) = b.split_at_checked(BYTES)?;
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[at..at + 8]);
            u64::from_le_bytes(w)
        };
        let (head, id) = (word(0), word(8));
        let kind = head >> 32;
        if head as u32 != MAGIC || token.is_empty() == (kind == 4) {
            return None;
        }
        Some(match kind {
            1 => Note::Share {
                id,
                info: ExportInfo {
                    file_offset: word(16),
                    bus: word(24),
                    len: word(32),
                },
            },
            2 => Note::Withdraw { id },
            3 => Note::Released { id },
            4 => Note::Export {
                id,
                record: ExportRecord {
                    key: word(16),
                    bus: word(24),
                    len: word(32),
                    token: token.try_into().ok()?,
                },
            },
            5 => Note::Reached { id },
            6 => Note::Unreached {
                id,
                why: NotReached::from_code(word(32))?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::nic_memory::HOST_BUS;

    #[test]
    fn every_note_survives_its_bytes() {
        let id = u64::MAX - 3;
        for note in [
            Note::Share {
                id,
                info: ExportInfo {
                    file_offset: 0,
                    bus: HOST_BUS + (1 << 40),
                    len: 12345,
                },
            },
            Note::Withdraw { id },
            Note::Released { id },
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for junk in [
            &b""[..],
            &[0; BYTES][..],
            &[0xff; BYTES][..],
            &[0; BYTES + 1][..],
        ] {
            assert_eq!(Note::decode(junk), None);
        }
    }
}
