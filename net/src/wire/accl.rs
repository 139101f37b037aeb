//! Signature of ACCL's messages over UDP (ACCL §III-D, ACCL+ §4.2.2), and what sessions need beside
//! it.
//!
//! A message is one packet. Its first word of 512 bits is the signature; numbers have their low
//! byte first. ACCL leaves everything behind the first 32 bytes zero. We put there what a session
//! over unreliable packets needs.
//!
//! ```text
//!  0 count (4)   tag (4)    source (4)    sequence number (4)
//! 16 stream (4)  destination (2) type (1) host (1)   address (8)
//! 32 zero (4)    tag of answers (4)       two words of the type (8)
//! 48 ports (4)   buffers (2)  version (2) zero (4)   CRC-32C (4)
//! ```
//!
//! ACCL's `source` and `destination` are our sessions at either end, its `tag` is drawn at random
//! by the receiver. Stream, host and address are 0: messages go to memory, and wait in buffers
//! there. The CRC covers the packet but for its own bytes.

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UDP port of ACCL's first rank by default; ours for all sessions.
pub const ACCL_UDP_PORT: u16 = 5_500;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

const VERSION: u16 = 1;
const CRC_AT: usize = 60;

/// `EGR_MSG` of ACCL: a message of the eager protocol.
const EAGER: u8 = 0;
// Types that ACCL does not have.
const END: u8 = 0x80;
const PROBE: u8 = 0x81;
const CREDIT: u8 = 0x82;
const CONNECT: u8 = 0x83;
const ACCEPT: u8 = 0x84;
const REFUSE: u8 = 0x85;
const RESET: u8 = 0x86;

/// The signature as it lies in a packet.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SignatureView {
    count: U32,
    tag: U32,
    source: U32,
    sequence: U32,
    stream: U32,
    destination: U16,
    kind: u8,
    host: u8,
    address: U64,
    zero: U32,
    reply_tag: U32,
    words: [U32; 2],
    port: U16,
    source_port: U16,
    buffers: U16,
    version: U16,
    reserved: U32,
    crc: U32,
}

/// Why bytes are no message. A fault of the peer or the wire: counted, never an error of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Shorter than a signature, or another payload than it says.
    #[error("too short, or not as long as its signature says")]
    Length,
    /// The CRC is not that of the packet.
    #[error("wrong CRC")]
    Crc,
    /// A type or a version that this NIC does not know.
    #[error("unknown type of message")]
    Kind,
}

/// One end of a session, as messages to it name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct End {
    /// Its number at that NIC.
    pub session: u16,
    /// Drawn at random by that NIC.
    pub tag: u32,
}

/// What an end takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// Bytes that it holds before its program receives them.
    pub window: u32,
    /// Most bytes of a message.
    pub payload: u32,
    /// Messages that may be under way to it.
    pub buffers: u16,
}

/// What an end has got so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// Sequence number of the message that it expects next.
    pub next: u32,
    /// Bytes given to its program, modulo 2^32.
    pub taken: u32,
}

/// Messages that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gap {
    /// Sequence number of the first one.
    pub expected: u32,
    /// Sequence number of what came instead.
    pub got: u32,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of the session; counts in the sequence.
    Data(Credit),
    /// No byte follows; counts in the sequence.
    End(Credit),
    /// A question for credit. Its sequence number is that of the next message.
    Probe(Credit),
    /// Credit alone.
    Credit(Credit),
    /// A request for a session with the listener of a port. Its sequence number is that of the
    /// first message.
    Connect {
        /// The listener's.
        port: u16,
        /// What the requester calls its own.
        source_port: u16,
        /// Of the sender.
        terms: Terms,
    },
    /// The answer to it, likewise.
    Accept(Terms),
    /// No session: nothing listens there, or there is no room.
    Refuse {
        /// Nothing listens.
        no_listener: bool,
    },
    /// The session has ended; which messages were missing, if that is why.
    Reset(Option<Gap>),
}

/// A valid signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Where it goes.
    pub to: End,
    /// Where answers go.
    pub from: End,
    /// Sequence number.
    pub sequence: u32,
    /// What it is.
    pub kind: Kind,
}

impl Signature {
    /// Reads a packet, and returns its payload.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn parse(packet: &[u8]) -> Result<(Signature, &[u8]), Invalid> {
        let (view, payload) =
            SignatureView::ref_from_prefix(packet).map_err(|_| Invalid::Length)?;
        if view.count.get() as usize != payload.len() {
            return Err(Invalid::Length);
        }
        if view.crc.get() != crc(packet) {
            return Err(Invalid::Crc);
        }
        let [a, b] = view.words.map(U32::get);
        let credit = Credit { next: a, taken: b };
        let terms = Terms {
            window: a,
            payload: b,
            buffers: view.buffers.get(),
        };
        let kind = match view.kind {
            EAGER if !payload.is_empty() => Kind::Data(credit),
            END => Kind::End(credit),
            PROBE => Kind::Probe(credit),
            CREDIT => Kind::Credit(credit),
            CONNECT => Kind::Connect {
                port: view.port.get(),
                source_port: view.source_port.get(),
                terms,
            },
            ACCEPT => Kind::Accept(terms),
            REFUSE => Kind::Refuse {
                no_listener: a != 0,
            },
            RESET if a == b => Kind::Reset(None),
            RESET => Kind::Reset(Some(Gap {
                expected: a,
                got: b,
            })),
            _ => return Err(Invalid::Kind),
        };
        // Data alone have a payload, and streams are ACCL's kernels.
        let is_bare = payload.is_empty() || matches!(kind, Kind::Data(_));
        let source = u16::try_from(view.source.get()).ok();
        let (Some(source), true, VERSION, 0) =
            (source, is_bare, view.version.get(), view.stream.get())
        else {
            return Err(Invalid::Kind);
        };
        let signature = Signature {
            to: End {
                session: view.destination.get(),
                tag: view.tag.get(),
            },
            from: End {
                session: source,
                tag: view.reply_tag.get(),
            },
            sequence: view.sequence.get(),
            kind,
        };
        Ok((signature, payload))
    }

    /// Writes the signature before the payload of a packet.
    ///
    /// # Panics
    /// When the packet is shorter than [`SIGNATURE_BYTES`].
    pub fn emit(&self, packet: &mut [u8]) {
        let (mut ports, mut buffers) = ((0, 0), 0);
        let mut of = |terms: &Terms| {
            buffers = terms.buffers;
            [terms.window, terms.payload]
        };
        let (kind, words) = match &self.kind {
            Kind::Data(c) => (EAGER, [c.next, c.taken]),
            Kind::End(c) => (END, [c.next, c.taken]),
            Kind::Probe(c) => (PROBE, [c.next, c.taken]),
            Kind::Credit(c) => (CREDIT, [c.next, c.taken]),
            Kind::Connect {
                port,
                source_port,
                terms,
            } => {
                ports = (*port, *source_port);
                (CONNECT, of(terms))
            }
            Kind::Accept(terms) => (ACCEPT, of(terms)),
            Kind::Refuse { no_listener } => (REFUSE, [(*no_listener).into(), 0]),
            Kind::Reset(gap) => (RESET, gap.map_or([0, 0], |g| [g.expected, g.got])),
        };
        let view = SignatureView {
            // A packet is shorter than 64 KiB.
            count: ((packet.len() - SIGNATURE_BYTES) as u32).into(),
            tag: self.to.tag.into(),
            source: u32::from(self.from.session).into(),
            sequence: self.sequence.into(),
            stream: 0.into(),
            destination: self.to.session.into(),
            kind,
            host: 0,
            address: 0.into(),
            zero: 0.into(),
            reply_tag: self.from.tag.into(),
            words: words.map(U32::new),
            port: ports.0.into(),
            source_port: ports.1.into(),
            buffers: buffers.into(),
            version: VERSION.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        packet[..SIGNATURE_BYTES].copy_from_slice(view.as_bytes());
        let crc = crc(packet);
        packet[CRC_AT..SIGNATURE_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
}

/// CRC-32C (RFC 3720 §12.1) of a packet that has a signature.
fn crc(packet: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&packet[..CRC_AT]);
    digest.update(&packet[SIGNATURE_BYTES..]);
    // It has 32 bits.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Kind> {
        let credit = Credit {
            next: u32::MAX,
            taken: 0x0102_0304,
        };
        let terms = Terms {
            window: 1 << 18,
            payload: 1_408,
            buffers: 64,
        };
        let gap = Gap {
            expected: u32::MAX,
            got: 1,
        };
        vec![
            Kind::Data(credit),
            Kind::End(credit),
            Kind::Probe(credit),
            Kind::Credit(credit),
            Kind::Connect {
                port: 7,
                source_port: 50_000,
                terms,
            },
            Kind::Accept(terms),
            Kind::Refuse { no_listener: true },
            Kind::Refuse { no_listener: false },
            Kind::Reset(None),
            Kind::Reset(Some(gap)),
        ]
    }

    fn packet(kind: Kind) -> (Signature, Vec<u8>) {
        let signature = Signature {
            to: End {
                session: 0x0506,
                tag: 0x0708_090a,
            },
            from: End {
                session: 0x0b0c,
                tag: 0x0d0e_0f10,
            },
            sequence: 0x1112_1314,
            kind,
        };
        let payload: &[u8] = match kind {
            Kind::Data(_) => b"odd",
            _ => b"",
        };
        let mut bytes = vec![0xff; SIGNATURE_BYTES];
        bytes.extend(payload);
        signature.emit(&mut bytes);
        (signature, bytes)
    }

    #[test]
    fn every_kind_comes_back() {
        for kind in all() {
            let (signature, bytes) = packet(kind);
            let payload = &bytes[SIGNATURE_BYTES..];
            assert_eq!(Signature::parse(&bytes), Ok((signature, payload)));
        }
    }

    #[test]
    fn the_first_32_bytes_are_those_of_accl() {
        let (_, bytes) = packet(all()[0]);
        let accl = [
            3, 0, 0, 0, 0x0a, 9, 8, 7, 0x0c, 0x0b, 0, 0, 0x14, 0x13, 0x12, 0x11, 0, 0, 0, 0, 6, 5,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[..32], accl);
    }

    #[test]
    fn each_flipped_bit_and_each_other_length_is_noticed() {
        for kind in all() {
            let (_, bytes) = packet(kind);
            for bit in 0..bytes.len() * 8 {
                let mut wrong = bytes.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(Signature::parse(&wrong).is_err(), "{kind:?}, bit {bit}");
            }
            for len in 0..bytes.len() {
                assert_eq!(Signature::parse(&bytes[..len]), Err(Invalid::Length));
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Signature::parse(&longer), Err(Invalid::Length));
        }
    }

    #[test]
    fn fields_that_no_sender_of_ours_writes_are_refused() {
        // Source beyond 16 bits, a stream, unknown types, another version.
        for (at, value) in [(10, 1), (16, 1), (22, 1), (22, 0x87), (54, 2)] {
            for kind in all() {
                let (_, mut bytes) = packet(kind);
                bytes[at] = value;
                let crc = crc(&bytes);
                bytes[CRC_AT..SIGNATURE_BYTES].copy_from_slice(&crc.to_le_bytes());
                assert_eq!(Signature::parse(&bytes), Err(Invalid::Kind), "{kind:?}");
            }
        }
        // Data without bytes, and bytes with anything else.
        for (kind, to) in [(all()[1], EAGER), (all()[0], END)] {
            let (_, mut bytes) = packet(kind);
            bytes[22] = to;
            let crc = crc(&bytes);
            bytes[CRC_AT..SIGNATURE_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Signature::parse(&bytes), Err(Invalid::Kind));
        }
    }
}
