//! Packets that are sent together, each in pieces: bytes of the transport, and spans of memory, which only the port reads.
#![allow(unsafe_code)] // Spans of memory that has no owner here: GPU memory is never a slice.

use std::ops::Range;

use crate::copy::copy;

/// A piece of a packet.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Where it begins: an exposed address of memory, or an offset among the own bytes.
    at: usize,
    len: usize,
    is_own: bool,
}

/// A packet that has ended.
#[derive(Debug, Clone, Copy)]
struct Packet {
    /// Where its pieces end.
    pieces: usize,
    /// Bytes.
    len: usize,
}

/// Packets in the order in which they leave. It is cleared and filled again, so no packet costs an allocation.
#[derive(Debug, Default)]
pub struct Batch {
    own: Vec<u8>,
    pieces: Vec<Piece>,
    packets: Vec<Packet>,
    /// Bytes of the packet that has not ended yet.
    open: usize,
}

impl Batch {
    /// A batch without packets.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.own.clear();
        self.pieces.clear();
        self.packets.clear();
        self.open = 0;
    }

    /// Adds bytes to the packet: a header, padding, or a trailer. They are copied.
    pub fn put(&mut self, bytes: &[u8]) {
        let at = self.own.len();
        self.own.extend_from_slice(bytes);
        self.open += bytes.len();
        // The trailer of a packet and the header of the next one lie side by side, but belong to two packets.
        let first = self.packets.last().map_or(0, |p| p.pieces);
        match self.pieces[first..].last_mut() {
            Some(last) if last.is_own && last.at + last.len == at => last.len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.pieces.push(Piece {
                at,
                len: bytes.len(),
                is_own: true,
            }),
        }
    }

    /// Adds a span of memory to the packet. The memory may be written meanwhile: the packet then carries old or new bytes.
    ///
    /// # Safety
    /// The bytes stay mapped and readable until the batch is cleared.
    pub unsafe fn memory(&mut self, at: *const u8, len: usize) {
        if len > 0 {
            let at = at.expose_provenance();
            self.open += len;
            self.pieces.push(Piece {
                at,
                len,
                is_own: false,
            });
        }
    }

    /// Ends the packet. One without a byte is none.
    pub fn end(&mut self) {
        if self.open > 0 {
            let len = std::mem::take(&mut self.open);
            let pieces = self.pieces.len();
            self.packets.push(Packet { pieces, len });
        }
    }

    /// How many packets have ended.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes of a packet.
    #[inline]
    pub(crate) fn len_of(&self, packet: usize) -> usize {
        self.packets[packet].len
    }

    /// How many pieces a packet has.
    #[inline]
    pub(super) fn pieces_of(&self, packet: usize) -> usize {
        self.range(packet).len()
    }

    fn range(&self, packet: usize) -> Range<usize> {
        let first = match packet {
            0 => 0,
            _ => self.packets[packet - 1].pieces,
        };
        first..self.packets[packet].pieces
    }

    /// Address and length of each piece of a packet.
    #[inline]
    pub(super) fn spans(&self, packet: usize) -> impl Iterator<Item = (*const u8, usize)> + '_ {
        let own = self.own.as_ptr();
        self.pieces[self.range(packet)].iter().map(move |p| {
            let at = match p.is_own {
                true => own.wrapping_add(p.at),
                false => std::ptr::with_exposed_provenance(p.at),
            };
            (at, p.len)
        })
    }

    /// Copies a packet to the front of `room`. `false`: it is longer, and nothing was copied.
    pub(crate) fn copy_to(&self, packet: usize, room: &mut [u8]) -> bool {
        let len = self.len_of(packet);
        let Some(room) = room.get_mut(..len) else {
            return false;
        };
        let mut to = room.as_mut_ptr();
        for (at, len) in self.spans(packet) {
            // SAFETY: the caller of `memory` keeps the span readable, and own bytes are; the pieces of a packet are together as
            // long as the room.
            unsafe {
                copy(to, at, len);
                to = to.add(len);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of packets whose pieces are empty, short and long, with the bytes that they must have.
    fn filled(memory: &[u8]) -> (Batch, Vec<Vec<u8>>) {
        let mut batch = Batch::new();
        let mut whole = Vec::new();
        for n in 0..40 {
            let header = vec![n as u8; n % 5];
            let spans: Vec<&[u8]> = (0..n % 4).map(|i| &memory[n..n + i * n]).collect();
            batch.put(&header);
            for s in &spans {
                // SAFETY: `memory` outlives the batch.
                unsafe { batch.memory(s.as_ptr(), s.len()) };
            }
            batch.put(&[0xee; 2]);
            batch.put(&[0xdd; 2]);
            batch.end();
            whole.push(
                [&header, &spans.concat(), &vec![0xee; 2], &vec![0xdd; 2]]
                    .map(|p| p.clone())
                    .concat(),
            );
        }
        (batch, whole)
    }

    #[test]
    fn packets_are_their_pieces_in_order() {
        let memory: Vec<u8> = (0..=255).collect();
        let (mut batch, whole) = filled(&memory);
        assert_eq!(batch.len(), whole.len());
        for (n, expected) in whole.iter().enumerate() {
            let mut room = vec![0; 400];
            assert!(batch.copy_to(n, &mut room));
            assert_eq!(&room[..batch.len_of(n)], expected);
            assert!(!batch.copy_to(n, &mut room[..expected.len() - 1]));
        }
        batch.clear();
        batch.end();
        assert!(batch.is_empty(), "no packet without a byte");
    }
}
