//! What travels between two ranks ahead of, or instead of, a long message: a head of fixed length, and the bytes of a short message.

/// Bytes of a head.
pub(super) const HEAD: usize = 32;

/// A head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message whose bytes follow. A synchronous send waits for [`Frame::Met`] with its id; 0: none does.
    Short { tag: i32, id: u64 },
    /// A message of so many bytes, which the sender gives after [`Frame::Clear`].
    Long { tag: i32, id: u64, bytes: u64 },
    /// The receive for a long message is posted under this tag of Ringbell.
    Clear { id: u64, under: u32 },
    /// A receive has taken the short message of a synchronous send.
    Met { id: u64 },
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEAD] {
        let (kind, small, id, bytes) = match self {
            Frame::Short { tag, id } => (1, tag as u32, id, 0),
            Frame::Long { tag, id, bytes } => (2, tag as u32, id, bytes),
            Frame::Clear { id, under } => (3, under, id, 0),
            Frame::Met { id } => (4, 0, id, 0),
        };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&u32::to_le_bytes(kind));
        head[4..8].copy_from_slice(&small.to_le_bytes());
        head[8..16].copy_from_slice(&u64::to_le_bytes(id));
        head[16..24].copy_from_slice(&u64::to_le_bytes(bytes));
        head
    }

    /// `None` of bytes that no rank of ours sends.
    pub(super) fn decode(from: &[u8]) -> Option<(Frame, &[u8])> {
        let (head, rest) = from.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let (small, id, bytes) = (word(4)?, long(8)?, long(16)?);
        let tag = small as i32;
        let frame = match word(0)? {
            1 => Frame::Short { tag, id },
            2 => Frame::Long { tag, id, bytes },
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
        let all = [
            Frame::Short { tag: -1, id: 3 },
            Frame::Long {
                tag: i32::MAX,
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
