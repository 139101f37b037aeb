//! Lines of one-sided operations: requests, their bytes, and answers.
//!
//! Word 0 is as in every [`Packet`](super::super::packet::Packet), with three more bits: the last
//! line of its operation, and the signal of a put. A put longer than [`PUT_INLINE`] bytes is one
//! line for each run of the initiator's memory; the target copies it out of there. A get longer
//! than [`GET_INLINE`] bytes is granted: the target names the runs of its memory, and the initiator
//! copies them and reports them as taken.

use ringbell_nic_abi::{GpuVa, Rkey};

use super::super::packet::{head, INLINE, ONE_SIDED_FIRST, ONE_SIDED_LAST, SPANS};
use crate::transport::Signal;

/// Bytes of a put inside its line.
pub(super) const PUT_INLINE: usize = 32;
/// Most bytes of a get that is answered inside lines.
pub(super) const GET_INLINE: u32 = 3 * INLINE as u32;

/// Kinds of lines, behind those of a stream: a put with its bytes and one of bytes in memory, other
/// requests, and answers.
const PUT: u8 = ONE_SIDED_FIRST;
const PUT_AT: u8 = 10;
const GET: u8 = 11;
const ATOMIC: u8 = 12;
const ANSWER: u8 = 13;
const DATA: u8 = 14;
const GRANT: u8 = 15;
const TAKEN: u8 = ONE_SIDED_LAST;

const LAST: u64 = 1 << 48;
const SIGNAL: u64 = 1 << 49;
const SET: u64 = 1 << 50;
/// Bits of word 0 that are always zero, apart from the lap bit.
const RESERVED: u64 = 0x7ff8 << 48;

/// The bytes of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum PutBytes {
    /// In the line: little-endian.
    Inline([u64; PUT_INLINE / 8]),
    /// In the initiator's memory.
    At(u64),
}

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum OneSidedPacket {
    /// `len` bytes of a put, of which `left` follow from these on.
    Put {
        va: GpuVa,
        rkey: Rkey,
        bytes: PutBytes,
        len: u32,
        left: u32,
        last: bool,
        signal: Option<Signal>,
    },
    /// Asks for `len` bytes.
    Get { va: GpuVa, rkey: Rkey, len: u32 },
    /// Updates a word: adds `operand`, or replaces it when it is equal to that.
    Atomic {
        va: GpuVa,
        rkey: Rkey,
        operand: u64,
        swap: Option<u64>,
    },
    /// Running totals: operations that have ended, and lines that were taken. Status and detail are
    /// the last operation's.
    Answer {
        status: u8,
        operations: u32,
        lines: u32,
        detail: u64,
    },
    /// The next bytes of the oldest get that lacks some.
    Data { len: u8, bytes: [u8; INLINE] },
    /// The same in the target's memory.
    Grant { n: u8, spans: [(u64, u32); SPANS] },
    /// Running total of granted spans that were copied.
    Taken { spans: u64 },
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Whether a line is a request that needs no other line, or an answer.
#[inline]
pub(in super::super) fn is_short(w: &[u64; 8]) -> bool {
    matches!(w[0] as u8, PUT | ATOMIC | ANSWER)
}

impl OneSidedPacket {
    /// The line's words, without lap bit.
    pub(in super::super) fn encode(&self, dst: u32) -> [u64; 8] {
        let mut w = [0u64; 8];
        match *self {
            OneSidedPacket::Put {
                va,
                rkey,
                bytes,
                len,
                left,
                last,
                signal,
            } => {
                let s = signal.unwrap_or(Signal {
                    index: 0,
                    value: 0,
                    set: false,
                });
                let flags = (u64::from(last) * LAST)
                    | (u64::from(signal.is_some()) * SIGNAL)
                    | (u64::from(s.set) * SET);
                (w[1], w[2], w[3]) = (va.0, pair(rkey.0, s.index), s.value);
                match bytes {
                    PutBytes::Inline(words) => {
                        w[0] = head(PUT, len.into(), dst) | flags;
                        w[4..].copy_from_slice(&words);
                    }
                    PutBytes::At(bus) => {
                        w[0] = head(PUT_AT, 0, dst) | flags;
                        (w[4], w[5]) = (bus, pair(len, left));
                    }
                }
            }
            OneSidedPacket::Get { va, rkey, len } => {
                w[0] = head(GET, 0, dst) | LAST;
                (w[1], w[2]) = (va.0, pair(rkey.0, len));
            }
            OneSidedPacket::Atomic {
                va,
                rkey,
                operand,
                swap,
            } => {
                w[0] = head(ATOMIC, swap.is_some().into(), dst) | LAST;
                (w[1], w[2], w[3]) = (va.0, rkey.0.into(), operand);
                w[4] = swap.unwrap_or(0);
            }
            OneSidedPacket::Answer {
                status,
                operations,
                lines,
                detail,
            } => {
                w[0] = head(ANSWER, status.into(), dst);
                (w[1], w[2]) = (pair(operations, lines), detail);
            }
            OneSidedPacket::Data { len, ref bytes } => {
                w[0] = head(DATA, len.into(), dst);
                for (to, from) in w[3..].iter_mut().zip(bytes.chunks_exact(8)) {
                    let mut b = [0; 8];
                    b.copy_from_slice(from);
                    *to = u64::from_ne_bytes(b);
                }
            }
            OneSidedPacket::Grant { n, ref spans } => {
                w[0] = head(GRANT, n.into(), dst);
                for (to, (bus, _)) in w[1..].iter_mut().zip(spans) {
                    *to = *bus;
                }
                (w[4], w[5]) = (pair(spans[0].1, spans[1].1), spans[2].1.into());
            }
            OneSidedPacket::Taken { spans } => {
                w[0] = head(TAKEN, 0, dst);
                w[1] = spans;
            }
        }
        w
    }

    /// The packet of a line; `None` when the peer broke the format.
    pub(in super::super) fn decode(w: &[u64; 8]) -> Option<OneSidedPacket> {
        let small = (w[0] >> 8) as u8;
        if w[0] & RESERVED != 0 {
            return None;
        }
        let (low, high) = (|i: usize| w[i] as u32, |i: usize| (w[i] >> 32) as u32);
        let (va, rkey) = (GpuVa(w[1]), Rkey(low(2)));
        Some(match w[0] as u8 {
            kind @ (PUT | PUT_AT) => {
                let signal = (w[0] & SIGNAL != 0).then_some(Signal {
                    index: high(2),
                    value: w[3],
                    set: w[0] & SET != 0,
                });
                let (bytes, len, left) = match kind {
                    PUT if small as usize > PUT_INLINE => return None,
                    PUT => {
                        let words = [w[4], w[5], w[6], w[7]];
                        (PutBytes::Inline(words), small.into(), small.into())
                    }
                    _ => (PutBytes::At(w[4]), low(5), high(5)),
                };
                let last = w[0] & LAST != 0;
                if len > left || last != (len == left) {
                    return None;
                }
                OneSidedPacket::Put {
                    va,
                    rkey,
                    bytes,
                    len,
                    left,
                    last,
                    signal,
                }
            }
            GET => OneSidedPacket::Get {
                va,
                rkey,
                len: high(2),
            },
            ATOMIC => OneSidedPacket::Atomic {
                va,
                rkey,
                operand: w[3],
                swap: (small != 0).then_some(w[4]),
            },
            ANSWER => OneSidedPacket::Answer {
                status: small,
                operations: low(1),
                lines: high(1),
                detail: w[2],
            },
            DATA if small as usize <= INLINE => {
                let mut bytes = [0; INLINE];
                for (to, from) in bytes.chunks_exact_mut(8).zip(&w[3..]) {
                    to.copy_from_slice(&from.to_ne_bytes());
                }
                OneSidedPacket::Data { len: small, bytes }
            }
            GRANT if small as usize <= SPANS => OneSidedPacket::Grant {
                n: small,
                spans: [(w[1], low(4)), (w[2], high(4)), (w[3], low(5))],
            },
            TAKEN => OneSidedPacket::Taken { spans: w[1] },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_survives_its_line() {
        let (va, rkey) = (GpuVa(u64::MAX), Rkey(u32::MAX));
        let signal = |set| {
            Some(Signal {
                index: u32::MAX,
                value: u64::MAX,
                set,
            })
        };
        let put = |bytes, len, left, signal| OneSidedPacket::Put {
            va,
            rkey,
            bytes,
            len,
            left,
            last: len == left,
            signal,
        };
        let words = [u64::MAX; PUT_INLINE / 8];
        let all = [
            put(PutBytes::Inline(words), 32, 32, signal(false)),
            put(PutBytes::Inline(words), 0, 0, signal(true)),
            put(PutBytes::At(u64::MAX), u32::MAX, u32::MAX, None),
            put(PutBytes::At(1), 5, u32::MAX, signal(true)),
            OneSidedPacket::Get {
                va,
                rkey,
                len: u32::MAX,
            },
            OneSidedPacket::Atomic {
                va,
                rkey,
                operand: u64::MAX,
                swap: None,
            },
            OneSidedPacket::Atomic {
                va,
                rkey,
                operand: 1,
                swap: Some(u64::MAX),
            },
            OneSidedPacket::Answer {
                status: 255,
                operations: u32::MAX,
                lines: 7,
                detail: u64::MAX,
            },
            OneSidedPacket::Data {
                len: 40,
                bytes: [0xff; INLINE],
            },
            OneSidedPacket::Grant {
                n: 3,
                spans: [(u64::MAX, u32::MAX), (1, 2), (3, 4)],
            },
            OneSidedPacket::Taken { spans: u64::MAX },
        ];
        for p in all {
            let w = p.encode(0xdead_beef);
            assert_eq!((w[0] >> 16) as u32, 0xdead_beef);
            assert_eq!(w[0] >> 63, 0, "the lap bit stays free");
            assert_eq!(OneSidedPacket::decode(&w), Some(p));
            for bit in 51..63 {
                let mut bad = w;
                bad[0] |= 1 << bit;
                assert_eq!(OneSidedPacket::decode(&bad), None);
            }
        }
        let lies = [
            (9, 33, 0),
            (14, 41, 0),
            (15, 4, 0),
            // Shorter than what is left and the last; longer than what is left.
            (10, 0, pair(4, 5)),
            (10, 0, pair(6, 5)),
        ];
        for (kind, small, w5) in lies {
            let w = [head(kind, small, 0) | LAST, 0, 0, 0, 0, w5, 0, 0];
            assert_eq!(OneSidedPacket::decode(&w), None, "{kind}");
        }
    }
}
