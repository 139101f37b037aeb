//! Packets of a link: the encoding of one ring line.
//!
//! Word 0: kind (8 bits), small length (8), the receiver's connection id (32), and the ring's lap
//! bit on top. The rest depends on the kind.

use super::sync::{AtomicU64, Ordering};
use crate::types::Small;

/// Payload bytes that travel inside a line.
pub(super) const INLINE: usize = 40;
/// Bus spans that one `Ref` names.
pub(super) const SPANS: usize = 3;

/// Kinds of lines.
const CONNECT: u8 = 1;
const ACCEPT: u8 = 2;
const REFUSE: u8 = 3;
const INLINE_BYTES: u8 = 4;
const REF: u8 = 5;
const ACK: u8 = 6;
const FIN: u8 = 7;
const RST: u8 = 8;
/// Those of one-sided operations.
pub(super) const ONE_SIDED_FIRST: u8 = 9;
pub(super) const ONE_SIDED_LAST: u8 = 16;

/// A packet of a link. `dst` is the receiver's id of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// Asks the listener at `port`; `src` is the sender's id of the new connection.
    Connect { src: u32, port: u16, src_port: u16 },
    /// Answers `Connect`: established, `src` is the sender's id.
    Accept { dst: u32, src: u32 },
    /// Answers `Connect`: no.
    Refuse { dst: u32, status: u8 },
    /// Up to 40 bytes of the stream.
    Inline {
        dst: u32,
        len: u8,
        bytes: [u8; INLINE],
    },
    /// Bytes of the stream that lie in the sender's memory: bus address and length.
    Ref {
        dst: u32,
        n: u8,
        spans: [(u64, u32); SPANS],
    },
    /// Running totals of what the receiver has taken: spans, and bytes of inline payload.
    Ack { dst: u32, spans: u64, inline: u64 },
    /// No more bytes follow; `closed`: the sender will not receive any either.
    Fin { dst: u32, closed: bool },
    /// The connection is gone.
    Rst { dst: u32 },
    /// A request of a one-sided operation, or an answer to one.
    OneSided { dst: u32, words: [u64; 8] },
}

pub(super) const fn head(kind: u8, small: u64, dst: u32) -> u64 {
    kind as u64 | small << 8 | (dst as u64) << 16
}

/// The line of an `Inline` packet whose payload is words already.
#[inline]
pub(super) fn inline_line(dst: u32, len: u8, payload: &[u64; INLINE / 8]) -> [u64; 8] {
    let p = payload;
    [
        head(INLINE_BYTES, len.into(), dst),
        0,
        0,
        p[0],
        p[1],
        p[2],
        p[3],
        p[4],
    ]
}

/// Receiver and payload of a line that is an `Inline` packet in order; `None` for all others.
#[inline]
pub(super) fn inline_of(w: &[u64; 8]) -> Option<(u32, Small)> {
    let len = (w[0] >> 8) as u8;
    if w[0] as u8 != INLINE_BYTES || len as usize > INLINE {
        return None;
    }
    let words = [w[3], w[4], w[5], w[6], w[7]];
    Some(((w[0] >> 16) as u32, Small { len, words }))
}

/// The payload of a line with that header that is an `Inline` packet for `dst`; `None` for all
/// others.
#[inline(always)]
pub(super) fn inline_to(dst: u32, head_word: u64, payload: &[AtomicU64]) -> Option<Small> {
    let len = (head_word >> 8) as u8;
    if len as usize > INLINE || head_word & !(0xff << 8) != head(INLINE_BYTES, 0, dst) {
        return None;
    }
    let payload: &[AtomicU64; INLINE / 8] = payload.first_chunk()?;
    let words = std::array::from_fn(|i| payload[i].load(Ordering::Relaxed));
    Some(Small { len, words })
}

impl Packet {
    /// The line's words, without lap bit.
    #[inline]
    pub(super) fn encode(&self) -> [u64; 8] {
        let mut w = [0u64; 8];
        match *self {
            Packet::Connect {
                src,
                port,
                src_port,
            } => {
                w[0] = head(CONNECT, 0, 0);
                w[1] = u64::from(src) | u64::from(port) << 32 | u64::from(src_port) << 48;
            }
            Packet::Accept { dst, src } => {
                w[0] = head(ACCEPT, 0, dst);
                w[1] = src.into();
            }
            Packet::Refuse { dst, status } => w[0] = head(REFUSE, status.into(), dst),
            Packet::Inline {
                dst,
                len,
                ref bytes,
            } => {
                w[0] = head(INLINE_BYTES, len.into(), dst);
                for (i, c) in bytes.chunks_exact(8).enumerate() {
                    let mut b = [0; 8];
                    b.copy_from_slice(c);
                    w[3 + i] = u64::from_ne_bytes(b);
                }
            }
            Packet::Ref { dst, n, ref spans } => {
                w[0] = head(REF, n.into(), dst);
                for (i, (addr, _)) in spans.iter().enumerate() {
                    w[1 + i] = *addr;
                }
                w[4] = u64::from(spans[0].1) | u64::from(spans[1].1) << 32;
                w[5] = spans[2].1.into();
            }
            Packet::Ack { dst, spans, inline } => {
                w[0] = head(ACK, 0, dst);
                w[1] = spans;
                w[2] = inline;
            }
            Packet::Fin { dst, closed } => w[0] = head(FIN, closed.into(), dst),
            Packet::Rst { dst } => w[0] = head(RST, 0, dst),
            Packet::OneSided { words, .. } => w = words,
        }
        w
    }

    /// The packet of a line; `None` when the peer broke the format.
    #[inline]
    pub(super) fn decode(w: &[u64; 8]) -> Option<Packet> {
        let (small, dst) = ((w[0] >> 8) as u8, (w[0] >> 16) as u32);
        Some(match w[0] as u8 {
            CONNECT => Packet::Connect {
                src: w[1] as u32,
                port: (w[1] >> 32) as u16,
                src_port: (w[1] >> 48) as u16,
            },
            ACCEPT => Packet::Accept {
                dst,
                src: w[1] as u32,
            },
            REFUSE => Packet::Refuse { dst, status: small },
            INLINE_BYTES => {
                let (dst, small) = inline_of(w)?;
                let (len, bytes) = (small.len, small.bytes());
                Packet::Inline { dst, len, bytes }
            }
            REF => {
                let spans = [
                    (w[1], w[4] as u32),
                    (w[2], (w[4] >> 32) as u32),
                    (w[3], w[5] as u32),
                ];
                // A span without bytes would be a run that never ends.
                if spans.get(..small.into())?.iter().any(|(_, len)| *len == 0) {
                    return None;
                }
                let n = small;
                Packet::Ref { dst, n, spans }
            }
            ACK => Packet::Ack {
                dst,
                spans: w[1],
                inline: w[2],
            },
            FIN => Packet::Fin {
                dst,
                closed: small != 0,
            },
            RST => Packet::Rst { dst },
            ONE_SIDED_FIRST..=ONE_SIDED_LAST => Packet::OneSided { dst, words: *w },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_survives_its_line() {
        let dst = 0xdead_beef;
        let all = [
            Packet::Connect {
                src: u32::MAX,
                port: 65535,
                src_port: 1,
            },
            Packet::Accept { dst, src: 7 },
            Packet::Refuse { dst, status: 13 },
            Packet::Inline {
                dst,
                len: 40,
                bytes: [0xff; 40],
            },
            Packet::Ref {
                dst,
                n: 3,
                spans: [(u64::MAX, u32::MAX), (1, 2), (3, 4)],
            },
            Packet::Ack {
                dst,
                spans: u64::MAX,
                inline: 9,
            },
            Packet::Fin { dst, closed: true },
            Packet::Rst { dst },
        ];
        for p in all {
            let w = p.encode();
            assert_eq!(w[0] >> 63, 0, "the lap bit stays free");
            assert_eq!(Packet::decode(&w), Some(p));
        }
        let payload = [u64::from_ne_bytes([0xff; 8]); INLINE / 8];
        assert_eq!(inline_line(dst, 40, &payload), all[3].encode());
        for kind in [0u64, 17, 255] {
            assert_eq!(Packet::decode(&[kind; 8]), None);
        }
        assert_eq!(Packet::decode(&[head(INLINE_BYTES, 41, 0); 8]), None);
        assert_eq!(Packet::decode(&[head(REF, 4, 0); 8]), None);
        for empty in 0..SPANS {
            let mut spans = [(4096, 1); SPANS];
            spans[empty].1 = 0;
            let packet = |n| Packet::Ref { dst, n, spans };
            assert_eq!(Packet::decode(&packet(3).encode()), None);
            let before = packet(empty as u8);
            assert_eq!(Packet::decode(&before.encode()), Some(before));
        }
    }
}
