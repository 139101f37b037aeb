//! The memory of one message: one buffer as a rule, several when its chunks do not adjoin.

use crate::types::Buffer;

/// Buffers that together make a message, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pieces {
    first: Option<Buffer>,
    rest: Vec<Buffer>,
}

impl Pieces {
    /// A message of one buffer.
    pub(crate) fn one(buffer: Buffer) -> Pieces {
        let mut p = Pieces::default();
        p.push(buffer);
        p
    }

    /// Adds a buffer at the end; one that adjoins the last is joined to it.
    pub(crate) fn push(&mut self, b: Buffer) {
        if b.len == 0 {
            return;
        }
        let last = self.rest.last_mut().or(self.first.as_mut());
        match last {
            Some(l)
                if l.region == b.region
                    && l.va.0 + u64::from(l.len) == b.va.0
                    && l.len.checked_add(b.len).is_some() =>
            {
                l.len += b.len;
            }
            Some(_) => self.rest.push(b),
            None => self.first = Some(b),
        }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(|b| u64::from(b.len)).sum()
    }

    /// The buffers; none is empty.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Buffer> {
        self.first.iter().chain(&self.rest)
    }

    /// The buffer, if there is only one.
    pub(crate) fn single(&self) -> Option<Buffer> {
        self.first.filter(|_| self.rest.is_empty())
    }

    /// Whether this is the very memory of another.
    pub(crate) fn is_at(&self, other: &Pieces) -> bool {
        self.first == other.first && self.rest == other.rest
    }

    /// The first `len` bytes.
    pub(crate) fn prefix(&self, len: u64) -> Pieces {
        let mut left = len;
        let mut out = Pieces::default();
        for b in self.iter() {
            let n = u64::from(b.len).min(left);
            left -= n;
            out.push(Buffer {
                len: n as u32,
                ..*b
            });
        }
        out
    }
}
