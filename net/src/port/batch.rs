//! Packets that are sent together, each in pieces: bytes of the transport, and spans of memory,
//! which only the port reads.
#![allow(unsafe_code)] // Spans of memory that has no owner here: GPU memory is never a slice.

use std::ops::Range;

use crc_fast::Digest;

use crate::wire::roce::icrc::{self, Flow, ICRC_BYTES};
use crate::wire::roce::BTH_BYTES;
use ringbell_gtlb::copy::copy;

/// Where a piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Among the own bytes, at an offset.
    Own,
    /// In memory that does not change before the batch is cleared.
    Kept,
    /// In memory that may be written meanwhile.
    Memory,
}

/// A piece of a packet.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Where it begins: an exposed address, or an offset among the own bytes.
    at: usize,
    len: usize,
    place: Place,
}

/// Bytes of memory that may be written meanwhile are copied so many at a time for a CRC.
const CRC_PIECE: usize = 2_048;

/// A packet that has ended.
#[derive(Debug, Clone, Copy)]
struct Packet {
    /// Where its pieces end.
    pieces: usize,
    /// Bytes; at most those of a datagram.
    len: u32,
    /// See [`Batch::end_by`].
    way: u16,
}

/// Packets in the order in which they leave. It is cleared and filled again, so no packet costs an
/// allocation.
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
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Adds so many own bytes to the packet, and returns them to be written.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let at = self.own.len();
        self.own.resize(at + len, 0);
        self.open += len;
        // The trailer of a packet and the header of the next one lie side by side, but belong to
        // two packets.
        let first = self.first_open();
        match self.pieces[first..].last_mut() {
            Some(last) if last.place == Place::Own && last.at + last.len == at => last.len += len,
            _ if len == 0 => {}
            _ => self.pieces.push(Piece {
                at,
                len,
                place: Place::Own,
            }),
        }
        &mut self.own[at..]
    }

    /// The first piece of the packet that has not ended.
    fn first_open(&self) -> usize {
        self.packets.last().map_or(0, |p| p.pieces)
    }

    /// Drops the packet that has not ended.
    pub fn cancel(&mut self) {
        self.pieces.truncate(self.first_open());
        // Its own bytes stay until the batch is cleared.
        self.open = 0;
    }

    /// Takes the last `n` own bytes from the packet again, which [`Batch::room`] has given.
    pub fn shorten(&mut self, n: usize) {
        self.own.truncate(self.own.len() - n);
        self.open -= n;
        if let Some(last) = self.pieces.last_mut() {
            last.len -= n;
        }
    }

    /// Adds a span of memory to the packet. The memory may be written meanwhile: the packet then
    /// carries old or new bytes.
    ///
    /// # Safety
    /// The bytes stay mapped and readable until the batch is cleared.
    pub unsafe fn memory(&mut self, at: *const u8, len: usize) {
        self.span(at, len, Place::Memory);
    }

    /// Adds bytes of the transport to the packet by reference.
    ///
    /// # Safety
    /// The bytes stay mapped, readable and unchanged until the batch is cleared.
    pub unsafe fn kept(&mut self, bytes: &[u8]) {
        self.span(bytes.as_ptr(), bytes.len(), Place::Kept);
    }

    fn span(&mut self, at: *const u8, len: usize, place: Place) {
        if len > 0 {
            let at = at.expose_provenance();
            self.open += len;
            self.pieces.push(Piece { at, len, place });
        }
    }

    /// Adds the invariant CRC of the packet that has not ended; zeros without a flow, or where no
    /// CRC is defined.
    pub fn seal(&mut self, flow: Option<&Flow>) {
        let sum = flow.and_then(|flow| self.icrc(flow));
        self.put(&sum.unwrap_or_default());
    }

    fn icrc(&self, flow: &Flow) -> Option<[u8; ICRC_BYTES]> {
        let (first, rest) = self.pieces[self.first_open()..].split_first()?;
        // The base header is own.
        let head = match first.place {
            Place::Own => self.own.get(first.at..first.at + first.len)?,
            _ => return None,
        };
        let (bth, extended) = head.split_first_chunk::<BTH_BYTES>()?;
        let mut digest = icrc::begin(flow, bth, self.open)?;
        digest.update(extended);
        for p in rest {
            match p.place {
                Place::Own => digest.update(&self.own[p.at..p.at + p.len]),
                Place::Kept => {
                    let at: *const u8 = std::ptr::with_exposed_provenance(p.at);
                    // SAFETY: the caller of `kept` keeps the bytes mapped and unchanged until the
                    // batch is cleared.
                    digest.update(unsafe { std::slice::from_raw_parts(at, p.len) });
                }
                Place::Memory => {
                    // SAFETY: the caller of `memory` keeps the span readable.
                    unsafe {
                        digest_memory(&mut digest, std::ptr::with_exposed_provenance(p.at), p.len);
                    }
                }
            }
        }
        Some(icrc::finish(&digest))
    }

    /// Keeps packets `from..` alone, all as own bytes: what they refer to may change from here on.
    pub fn own_from(&mut self, from: usize) {
        let mut own = Vec::new();
        let mut packets = Vec::new();
        for packet in from..self.len() {
            let way = self.way_of(packet);
            let at = own.len();
            own.resize(at + self.len_of(packet), 0);
            self.copy_to(packet, &mut own[at..]);
            packets.push((own.len() - at, way));
        }
        self.clear();
        let mut at = 0;
        for (len, way) in packets {
            self.put(&own[at..at + len]);
            self.end_by(way);
            at += len;
        }
    }

    /// Ends the packet. One without a byte is none.
    pub fn end(&mut self) {
        self.end_by(0);
    }

    /// Ends the packet as [`Batch::end`]. In a frame its UDP source port is that of its flow, with
    /// the bits of `way` inverted: networks that choose ways by ports then send it another way.
    pub fn end_by(&mut self, way: u16) {
        if self.open > 0 {
            let len = std::mem::take(&mut self.open) as u32;
            let pieces = self.pieces.len();
            self.packets.push(Packet { pieces, len, way });
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
    pub fn len_of(&self, packet: usize) -> usize {
        self.packets[packet].len as usize
    }

    /// By which way a packet leaves.
    #[inline]
    pub fn way_of(&self, packet: usize) -> u16 {
        self.packets[packet].way
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
            let at = match p.place {
                Place::Own => own.wrapping_add(p.at),
                _ => std::ptr::with_exposed_provenance(p.at),
            };
            (at, p.len)
        })
    }

    /// Copies a packet to the front of `room`. `false`: it is longer, and nothing was copied.
    pub fn copy_to(&self, packet: usize, room: &mut [u8]) -> bool {
        let len = self.len_of(packet);
        let Some(room) = room.get_mut(..len) else {
            return false;
        };
        let mut to = room.as_mut_ptr();
        for (at, len) in self.spans(packet) {
            // SAFETY: the caller of `memory` keeps the span readable, and own bytes are; the pieces
            // of a packet are together as long as the room.
            unsafe {
                copy(to, at, len);
                to = to.add(len);
            }
        }
        true
    }
}

/// Adds bytes of memory to a CRC.
///
/// # Safety
/// They are mapped and readable.
pub unsafe fn digest_memory(digest: &mut Digest, at: *const u8, len: usize) {
    let mut piece = [0; CRC_PIECE];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(CRC_PIECE);
        // SAFETY: readable (the caller's contract); the piece is as long.
        unsafe { copy(piece.as_mut_ptr(), at.wrapping_add(done), n) };
        digest.update(&piece[..n]);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of packets whose pieces are empty, short and long, with the bytes that they must
    /// have.
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
    fn packets_keep_their_ways_when_others_have_left() {
        let mut batch = Batch::new();
        for way in 0..4 {
            batch.put(&[way as u8; 9]);
            batch.end_by(way);
        }
        batch.put(&[9]);
        batch.end();
        batch.own_from(2);
        let ways: Vec<_> = (0..batch.len()).map(|n| batch.way_of(n)).collect();
        assert_eq!(ways, [2, 3, 0]);
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
