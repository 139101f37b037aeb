//! The Terminate message: which layer ends a connection, and why (RFC 5040 §4.8, RFC 5041 §8,
//! RFC 5044 §8).
//!
//! ```text
//! layer(4) type(4) code(8)  M D R -(13)   [length of the unit (2), its DDP header (14 or 18)]
//! ```

use super::ddp::Invalid;
use super::u16_at;

/// Bytes without the unit's header.
pub const TERMINATE_BYTES: usize = 4;

/// With the unit's length and its DDP header.
const WITH_UNIT: u8 = 0xc0;

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The sender cannot go on, for a reason of its own.
    Catastrophic,
    /// Another version of RDMAP.
    RdmapVersion,
    /// An opcode that is not expected.
    Opcode,
    /// A name of memory that the receiver does not know.
    Stag,
    /// Bytes outside of the memory that is named.
    Bounds,
    /// Another version of DDP, in a tagged unit.
    TaggedVersion,
    /// A queue that is not there.
    Queue,
    /// A message for which no buffer is there: more than the credit allows.
    NoBuffer,
    /// A message out of order.
    Message,
    /// An offset out of order.
    Offset,
    /// A message that is too long for its buffer, or is none that a session has.
    TooLong,
    /// Another version of DDP, in an untagged unit.
    UntaggedVersion,
    /// The CRC is not that of the unit.
    Crc,
    /// A unit whose length its header does not allow.
    Length,
    /// One that this NIC does not send.
    Other {
        /// 0 RDMAP, 1 DDP, 2 MPA.
        layer: u8,
        /// Within the layer.
        kind: u8,
        /// Within the type.
        code: u8,
    },
}

/// Layer, type and code of each reason.
const CODES: [(Reason, [u8; 3]); 14] = [
    (Reason::Catastrophic, [0, 0, 0]),
    (Reason::RdmapVersion, [0, 2, 5]),
    (Reason::Opcode, [0, 2, 6]),
    (Reason::Stag, [1, 1, 0]),
    (Reason::Bounds, [1, 1, 1]),
    (Reason::TaggedVersion, [1, 1, 4]),
    (Reason::Queue, [1, 2, 1]),
    (Reason::NoBuffer, [1, 2, 2]),
    (Reason::Message, [1, 2, 3]),
    (Reason::Offset, [1, 2, 4]),
    (Reason::TooLong, [1, 2, 5]),
    (Reason::UntaggedVersion, [1, 2, 6]),
    (Reason::Crc, [2, 0, 2]),
    (Reason::Length, [2, 0, 3]),
];

impl Reason {
    /// Why a header ends the connection whose unit begins with `first`.
    pub fn of_header(why: Invalid, first: u8) -> Reason {
        match why {
            Invalid::Short => Reason::Length,
            Invalid::DdpVersion if first & 0x80 != 0 => Reason::TaggedVersion,
            Invalid::DdpVersion => Reason::UntaggedVersion,
            Invalid::RdmapVersion => Reason::RdmapVersion,
            Invalid::Opcode(_) => Reason::Opcode,
            Invalid::Queue { .. } => Reason::Queue,
        }
    }

    /// As a number for users: layer, type and code in the low 16 bits, and bit 16 set, so that no
    /// reason is 0.
    pub fn detail(self) -> u64 {
        let [layer, kind, code] = self.parts();
        1 << 16 | u64::from(layer) << 12 | u64::from(kind) << 8 | u64::from(code)
    }

    fn parts(self) -> [u8; 3] {
        match self {
            Reason::Other { layer, kind, code } => [layer, kind, code],
            known => CODES
                .iter()
                .find(|(reason, _)| *reason == known)
                .map_or([0; 3], |(_, parts)| *parts),
        }
    }

    /// Whether the message must have the header of the unit (RFC 5040 §4.8).
    fn names_unit(self) -> bool {
        self.parts()[0] == 1 || matches!(self, Reason::Opcode | Reason::RdmapVersion)
    }

    /// Appends the message. `unit`: the length of the unit that is the reason, and its DDP header.
    pub fn emit(self, unit: Option<(u16, &[u8])>, out: &mut Vec<u8>) {
        let [layer, kind, code] = self.parts();
        let unit = unit.filter(|_| self.names_unit());
        let head = if unit.is_some() { WITH_UNIT } else { 0 };
        out.extend([layer << 4 | kind & 0x0f, code, head, 0]);
        if let Some((length, header)) = unit {
            out.extend(length.to_be_bytes());
            out.extend_from_slice(header);
        }
    }

    /// Reads a message; `None`: it is too short.
    pub fn parse(message: &[u8]) -> Option<Reason> {
        let b = message.get(..TERMINATE_BYTES)?;
        let word = u16_at(b, 0);
        let parts = [b[0] >> 4, b[0] & 0x0f, (word & 0xff) as u8];
        let known = CODES.iter().find(|(_, p)| *p == parts);
        let [layer, kind, code] = parts;
        Some(known.map_or(Reason::Other { layer, kind, code }, |(r, _)| *r))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::Catastrophic => "the sender cannot go on",
            Reason::RdmapVersion => "another version of RDMAP",
            Reason::Opcode => "an opcode that is not expected",
            Reason::Stag => "a name of memory that is not known",
            Reason::Bounds => "bytes outside of the memory that is named",
            Reason::TaggedVersion | Reason::UntaggedVersion => "another version of DDP",
            Reason::Queue => "a queue that is not there",
            Reason::NoBuffer => "more bytes than the credit allows",
            Reason::Message => "a message out of order",
            Reason::Offset => "an offset out of order",
            Reason::TooLong => "a message that no session has",
            Reason::Crc => "a wrong CRC",
            Reason::Length => "a unit whose length its header does not allow",
            Reason::Other { layer, kind, code } => {
                return write!(f, "layer {layer}, type {kind}, code {code}")
            }
        })
    }
}
