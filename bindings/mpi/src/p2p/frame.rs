//! What travels between two ranks ahead of, or instead of, a long message: a head of fixed length,
//! and the bytes of a short message.

use super::matching::Envelope;

/// Bytes of a head.
pub(super) const HEAD: usize = 40;

/// A head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message whose bytes follow. A synchronous send waits for [`Frame::Met`] with its id; 0:
    /// none does.
    Short { of: Envelope, id: u64 },
    /// A message of so many bytes, which the sender gives after [`Frame::Clear`].
    Long { of: Envelope, id: u64, bytes: u64 },
    /// The receive for a long message is posted under this tag of Ringbell.
    Clear { id: u64, under: u32 },
    /// A receive has taken the short message of a synchronous send.
    Met { id: u64 },
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEAD] {
        let (kind, id, bytes) = match self {
            Frame::Short { id, .. } => (1, id, 0),
            Frame::Long { id, bytes, .. } => (2, id, bytes),
            Frame::Clear { id, .. } => (3, id, 0),
            Frame::Met { id } => (4, id, 0),
        };
        let (small, source, context) = match self {
            Frame::Short { of, .. } | Frame::Long { of, .. } => {
                (of.tag as u32, of.source, of.context)
            }
            Frame::Clear { under, .. } => (under, 0, 0),
            Frame::Met { .. } => (0, 0, 0),
        };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&u32::to_le_bytes(kind));
        head[4..8].copy_from_slice(&small.to_le_bytes());
        head[8..16].copy_from_slice(&u64::to_le_bytes(id));
        head[16..24].copy_from_slice(&u64::to_le_bytes(bytes));
        head[24..32].copy_from_slice(&u64::to_le_bytes(context));
        head[32..36].copy_from_slice(&u32::to_le_bytes(source));
        head
    }

    /// `None` of bytes that no rank of ours sends.
    pub(super) fn decode(from: &[u8]) -> Option<(Frame, &[u8])> {
        let (head, rest) = from.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let (small, id, bytes) = (word(4)?, long(8)?, long(16)?);
        let of = Envelope {
            context: long(24)?,
            source: word(32)?,
            tag: small as i32,
        };
        let frame = match word(0)? {
            1 => Frame::Short { of, id },
            2 => Frame::Long { of, id, bytes },
            3 => Frame::Clear { id, under: small },
            4 => Frame::Met { id },
            _ => return None,
        };
        Some((frame, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were() {
        let of = |tag| Envelope {
            context: u64::MAX - 7,
            source: u32::MAX,
            tag,
        };
        let all = [
            Frame::Short { of: of(-1), id: 3 },
            Frame::Long {
                of: of(i32::MAX),
                id: u64::MAX,
                bytes: 1 << 40,
            },
            Frame::Clear { id: 1, under: 9 },
            Frame::Met { id: 7 },
        ];
        for frame in all {
            let bytes = [&frame.encode()[..], b"rest"].concat();
            assert_eq!(Frame::decode(&bytes), Some((frame, &b"rest"[..])));
            assert_eq!(Frame::decode(&bytes[..HEAD - 1]), None);
        }
        assert_eq!(Frame::decode(&[9; HEAD]), None);
    }
}
