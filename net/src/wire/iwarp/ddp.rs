//! Headers of DDP and RDMAP: where a unit's payload goes, and which message it is of.
//!
//! ```text
//! tagged    control (2)  STag (4)  offset (8)
//! untagged  control (2)  word of RDMAP (4)  queue (4)  message (4)  offset (4)
//!
//! control   T L - - - - DV(2)   RV(2) - - opcode(4)
//! ```

use super::{u32_at, u64_at};

/// Bytes of a tagged header.
pub const TAGGED_BYTES: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_BYTES: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const RESERVED: u8 = 0x3c;
/// Version 1 of both protocols, by RFC 5041 §4.1 and RFC 5040 §4.1.
const DDP_VERSION: u8 = 1;
const RDMAP_VERSION: u8 = 0x40;
const RDMAP_RESERVED: u8 = 0x30;

/// Messages of RDMAP (RFC 5040 §4.1, RFC 7306 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Tagged bytes for memory of the receiver.
    Write = 0,
    /// Asks for bytes of the receiver's memory.
    ReadRequest = 1,
    /// The bytes that were asked for.
    ReadResponse = 2,
    /// A message for a receive.
    Send = 3,
    /// Why the connection ends.
    Terminate = 7,
    /// An operation on a word.
    AtomicRequest = 10,
    /// Its value before.
    AtomicResponse = 11,
}

impl Opcode {
    const fn of(number: u8) -> Option<Opcode> {
        Some(match number {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            7 => Opcode::Terminate,
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            _ => return None,
        })
    }

    /// Whether its units are tagged.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// The queue of its messages, where it is untagged (RFC 5040 §5.1, RFC 7306 §4.4).
    pub const fn queue(self) -> u32 {
        match self {
            Opcode::ReadRequest | Opcode::AtomicRequest => 1,
            Opcode::Terminate => 2,
            Opcode::AtomicResponse => 3,
            Opcode::Write | Opcode::ReadResponse | Opcode::Send => 0,
        }
    }
}

/// Where the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Into memory that the receiver has named.
    Tagged {
        /// Its name.
        stag: u32,
        /// Address of the first byte there.
        offset: u64,
    },
    /// To a message of a queue.
    Untagged {
        /// Number of the message, from 1 on.
        message: u32,
        /// Position of the first byte in it.
        offset: u32,
    },
}

/// The header of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What message it is of.
    pub opcode: Opcode,
    /// The message ends with it.
    pub last: bool,
    /// Where its payload goes.
    pub place: Place,
}

/// Why bytes are no header, each as the Terminate message names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The unit ends before its header does.
    #[error("a unit is shorter than its header")]
    Short,
    /// Another version of DDP, or a reserved bit.
    #[error("the unit is not of version 1 of DDP")]
    DdpVersion,
    /// Another version of RDMAP, or a reserved bit.
    #[error("the message is not of version 1 of RDMAP")]
    RdmapVersion,
    /// An opcode that this NIC does not know, or in a unit of the other kind.
    #[error("opcode {0} is unknown, or in a unit of the wrong kind")]
    Opcode(u8),
    /// A queue that the opcode does not have.
    #[error("a message of opcode {opcode} in queue {queue}")]
    Queue {
        /// As it came.
        opcode: u8,
        /// As it came.
        queue: u32,
    },
}

impl Header {
    /// A unit that is a whole untagged message.
    pub const fn whole(opcode: Opcode, message: u32) -> Header {
        Header {
            opcode,
            last: true,
            place: Place::Untagged { message, offset: 0 },
        }
    }

    /// Its bytes.
    pub const fn bytes(&self) -> usize {
        match self.place {
            Place::Tagged { .. } => TAGGED_BYTES,
            Place::Untagged { .. } => UNTAGGED_BYTES,
        }
    }

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let last = if self.last { LAST } else { 0 };
        let rdmap = RDMAP_VERSION | self.opcode as u8;
        match self.place {
            Place::Tagged { stag, offset } => {
                out.extend([TAGGED | last | DDP_VERSION, rdmap]);
                out.extend(stag.to_be_bytes());
                out.extend(offset.to_be_bytes());
            }
            Place::Untagged { message, offset } => {
                out.extend([last | DDP_VERSION, rdmap]);
                out.extend([0; 4]);
                out.extend(self.opcode.queue().to_be_bytes());
                out.extend(message.to_be_bytes());
                out.extend(offset.to_be_bytes());
            }
        }
    }

    /// Bytes of the header that begins with this byte.
    pub const fn length(first: u8) -> usize {
        match first & TAGGED {
            0 => UNTAGGED_BYTES,
            _ => TAGGED_BYTES,
        }
    }

    /// Reads the header at the front of a unit.
    ///
    /// # Errors
    /// [`Invalid`] names the field.
    pub fn parse(unit: &[u8]) -> Result<Header, Invalid> {
        let length = unit.first().map_or(UNTAGGED_BYTES, |b| Header::length(*b));
        let b = unit.get(..length).ok_or(Invalid::Short)?;
        if b[0] & !(TAGGED | LAST) != DDP_VERSION {
            debug_assert!(b[0] & RESERVED != 0 || b[0] & 3 != DDP_VERSION);
            return Err(Invalid::DdpVersion);
        }
        if b[1] & (0xc0 | RDMAP_RESERVED) != RDMAP_VERSION {
            return Err(Invalid::RdmapVersion);
        }
        let number = b[1] & 0x0f;
        let is_tagged = b[0] & TAGGED != 0;
        let opcode = Opcode::of(number).filter(|o| o.is_tagged() == is_tagged);
        let opcode = opcode.ok_or(Invalid::Opcode(number))?;
        let place = match is_tagged {
            true => Place::Tagged {
                stag: u32_at(b, 2),
                offset: u64_at(b, 6),
            },
            false => {
                let queue = u32_at(b, 6);
                if queue != opcode.queue() {
                    let opcode = number;
                    return Err(Invalid::Queue { opcode, queue });
                }
                Place::Untagged {
                    message: u32_at(b, 10),
                    offset: u32_at(b, 14),
                }
            }
        };
        Ok(Header {
            opcode,
            last: b[0] & LAST != 0,
            place,
        })
    }
}
