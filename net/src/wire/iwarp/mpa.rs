//! MPA: start-up frames and the frame around each unit (RFC 5044), and the enhanced start-up with
//! read limits (RFC 6581).
//!
//! ```text
//! start-up   key (16)  flags (1)  revision (1)  length of private data (2)  private data
//! unit       length (2)  DDP and RDMAP header, payload  padding (0 to 3)  CRC-32C (4)
//! ```
//!
//! We send no markers and ask for none. Each end says whether it wants the CRC; it is used when one
//! of them does.

use crc_fast::{CrcAlgorithm, Digest};

use super::{u16_at, u32_at};

/// Bytes of a start-up frame without its private data.
pub const STARTUP_BYTES: usize = 20;
/// Most bytes of private data (RFC 5044 §7.1).
pub const PRIVATE_MAX: usize = 512;
/// Bytes of the length before a unit.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the CRC behind a unit.
pub const CRC_BYTES: usize = 4;
/// Longest unit without its length, padding and CRC: what the length can say.
pub const UNIT_MAX: usize = u16::MAX as usize;
/// Bytes of the read limits and flags before the private data of an enhanced start-up frame.
pub const LIMITS_BYTES: usize = 4;
/// Largest read limit that a frame can say; it means that the limit is not negotiated
/// (RFC 6581 §7).
pub const LIMIT_MAX: u16 = 0x3fff;

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const RESERVED: u8 = 0x0f;
/// The revision with enhanced start-up (RFC 6581 §5).
const REVISION: u8 = 2;
/// Control flag A, and B of the same word: peer-to-peer model, and a first unit of no bytes.
const PEER_TO_PEER: u16 = 0x8000;
const BY_SEND: u16 = 0x4000;
/// Control flags C and D: the first message is a Write or a Read of no bytes.
const BY_WRITE: u16 = 0x8000;
const BY_READ: u16 = 0x4000;

/// Why bytes are no start-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// It begins otherwise.
    #[error("no MPA start-up frame: its key is another one")]
    Key,
    /// The peer wants markers, which we do not have.
    #[error("the peer asks for MPA markers, which this NIC does not send")]
    Markers,
    /// A flag that no RFC has.
    #[error("a reserved flag is set")]
    Flags,
    /// Another revision, or revision 2 without its flag.
    #[error("revision {0} of MPA, or no enhanced start-up (RFC 6581), which this NIC needs")]
    Revision(u8),
    /// More private data than a frame may have, or too little for its limits.
    #[error("{0} bytes of private data, where 4 to 512 are allowed")]
    Length(u16),
}

/// Which end a start-up frame comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one that has connected.
    Initiator,
    /// The one that has listened.
    Responder,
}

/// How the initiator shows that it is ready, so that the responder may send (RFC 6581 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// The peer-to-peer model; without it the initiator has something to send first anyway.
    pub peer_to_peer: bool,
    /// A unit of no bytes.
    pub by_send: bool,
    /// A Write of no bytes.
    pub by_write: bool,
    /// A Read of no bytes.
    pub by_read: bool,
}

/// A start-up frame without the private data behind its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Startup {
    /// Which end sends it.
    pub role: Role,
    /// The sender wants the CRC.
    pub crc: bool,
    /// The responder refuses.
    pub rejected: bool,
    /// Most Reads of the peer that the sender serves at once.
    pub inbound_reads: u16,
    /// Most Reads that the sender has under way at once.
    pub outbound_reads: u16,
    /// What the first message may be, or is to be.
    pub ready: Ready,
    /// Bytes of the private data behind the limits.
    pub private: usize,
}

impl Startup {
    /// Appends the frame and its private data, of which there must be at most
    /// [`PRIVATE_MAX`] − [`LIMITS_BYTES`] bytes.
    pub fn emit(&self, private: &[u8], out: &mut Vec<u8>) {
        let key = match self.role {
            Role::Initiator => REQUEST_KEY,
            Role::Responder => REPLY_KEY,
        };
        out.extend_from_slice(key);
        let flag = |on, bit| if on { bit } else { 0 };
        out.push(ENHANCED | flag(self.crc, CRC) | flag(self.rejected, REJECTED));
        out.push(REVISION);
        // At most 512.
        out.extend(((LIMITS_BYTES + private.len()) as u16).to_be_bytes());
        let r = self.ready;
        let word = |on: bool, bit: u16| if on { bit } else { 0 };
        let inbound = self.inbound_reads.min(LIMIT_MAX);
        let outbound = self.outbound_reads.min(LIMIT_MAX);
        let first = word(r.peer_to_peer, PEER_TO_PEER) | word(r.by_send, BY_SEND) | inbound;
        let second = word(r.by_write, BY_WRITE) | word(r.by_read, BY_READ) | outbound;
        out.extend(first.to_be_bytes());
        out.extend(second.to_be_bytes());
        out.extend_from_slice(private);
    }

    /// Bytes of the whole frame that begins with `head`, once that is long enough to tell.
    ///
    /// # Errors
    /// [`Invalid`] when it is no start-up frame of this role.
    pub fn length(role: Role, head: &[u8]) -> Result<Option<usize>, Invalid> {
        let key = match role {
            Role::Initiator => REQUEST_KEY,
            Role::Responder => REPLY_KEY,
        };
        let n = head.len().min(key.len());
        if head[..n] != key[..n] {
            return Err(Invalid::Key);
        }
        if head.len() < STARTUP_BYTES {
            return Ok(None);
        }
        let private = u16_at(head, 18);
        let fits = (LIMITS_BYTES..=PRIVATE_MAX).contains(&usize::from(private));
        match fits {
            true => Ok(Some(STARTUP_BYTES + usize::from(private))),
            false => Err(Invalid::Length(private)),
        }
    }

    /// Reads a whole frame of this role. Gives it with its private data behind the limits.
    ///
    /// # Errors
    /// [`Invalid`] names the field.
    pub fn parse(role: Role, frame: &[u8]) -> Result<(Startup, &[u8]), Invalid> {
        let short = Invalid::Length(frame.len().min(PRIVATE_MAX) as u16);
        let Some(length) = Startup::length(role, frame)? else {
            return Err(short);
        };
        let (flags, revision) = (frame[16], frame[17]);
        if flags & MARKERS != 0 {
            return Err(Invalid::Markers);
        }
        let is_rejected = flags & REJECTED != 0;
        if flags & RESERVED != 0 || (is_rejected && role == Role::Initiator) {
            return Err(Invalid::Flags);
        }
        if revision != REVISION || flags & ENHANCED == 0 {
            return Err(Invalid::Revision(revision));
        }
        let whole = frame.get(..length).ok_or(short)?;
        let (first, second) = (u16_at(whole, 20), u16_at(whole, 22));
        let private = &whole[STARTUP_BYTES + LIMITS_BYTES..];
        let startup = Startup {
            role,
            crc: flags & CRC != 0,
            rejected: is_rejected,
            inbound_reads: first & LIMIT_MAX,
            outbound_reads: second & LIMIT_MAX,
            ready: Ready {
                peer_to_peer: first & PEER_TO_PEER != 0,
                by_send: first & BY_SEND != 0,
                by_write: second & BY_WRITE != 0,
                by_read: second & BY_READ != 0,
            },
            private: private.len(),
        };
        Ok((startup, private))
    }
}

/// Padding behind a unit of so many bytes, so that its frame is a multiple of 4 long.
pub const fn padding(unit: usize) -> usize {
    (LENGTH_BYTES + unit).wrapping_neg() & 3
}

/// Bytes of the frame around a unit: length, padding and CRC included.
pub const fn framed(unit: usize) -> usize {
    LENGTH_BYTES + unit + padding(unit) + CRC_BYTES
}

/// The running CRC of a frame: length, unit and padding (RFC 5044 §4.4).
#[derive(Debug, Clone)]
pub struct Crc(Digest);

impl Default for Crc {
    fn default() -> Crc {
        Crc(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// What is kept while the next bytes are not there.
    pub fn state(&self) -> u64 {
        self.0.get_state()
    }

    /// Goes on from what was kept.
    pub fn resume(state: u64) -> Crc {
        let algorithm = CrcAlgorithm::Crc32Iscsi;
        Crc(Digest::new_with_init_state(algorithm, state))
    }

    /// Its digest, for bytes of memory.
    pub fn digest(&mut self) -> &mut Digest {
        &mut self.0
    }

    /// The CRC as it lies in the frame: as iSCSI has it, the low byte first.
    pub fn finish(&self) -> [u8; CRC_BYTES] {
        // A CRC of 32 bits.
        (self.0.finalize() as u32).to_le_bytes()
    }
}

/// Whether the end of a frame is its CRC.
pub fn is_crc(crc: &Crc, found: &[u8]) -> bool {
    found.len() == CRC_BYTES && u32_at(found, 0) == u32_at(&crc.finish(), 0)
}
