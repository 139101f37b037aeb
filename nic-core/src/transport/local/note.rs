//! Notes: messages between two linked NICs, over their socket, about exported memory.

use super::rendezvous::ExportInfo;

const MAGIC: u32 = 0x4e42_5221;
/// Bytes of a note.
pub(super) const BYTES: usize = 40;

/// A message from one side to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Map this; its descriptor comes along.
    Share { id: u64, info: ExportInfo },
    /// It is mapped: refer to it.
    Reached { id: u64 },
    /// Unmap it and say so.
    Withdraw { id: u64 },
    /// It is unmapped here, or could not be mapped: do not refer to it.
    Released { id: u64 },
}

impl Note {
    pub(super) fn id(self) -> u64 {
        match self {
            Note::Share { id, .. }
            | Note::Reached { id }
            | Note::Withdraw { id }
            | Note::Released { id } => id,
        }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let none = ExportInfo::default();
        let (kind, info) = match self {
            Note::Share { info, .. } => (1_u32, info),
            Note::Withdraw { .. } => (2, none),
            Note::Released { .. } => (3, none),
            Note::Reached { .. } => (5, none),
        };
        let mut b = Vec::with_capacity(BYTES);
        b.extend(MAGIC.to_le_bytes());
        b.extend(kind.to_le_bytes());
        for word in [self.id(), info.file_offset, info.bus, info.len] {
            b.extend(word.to_le_bytes());
        }
        b
    }

    pub(super) fn decode(b: &[u8]) -> Option<Note> {
        let b: &[u8; BYTES] = b.try_into().ok()?;
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[at..at + 8]);
            u64::from_le_bytes(w)
        };
        let (head, id) = (word(0), word(8));
        let kind = head >> 32;
        if head as u32 != MAGIC {
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
            5 => Note::Reached { id },
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
            Note::Reached { id },
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
