//! What sessions of our NICs put into start-up frames and Sends.
//!
//! A session is a TCP connection of its own. The request names NICs and ports, as the connection
//! request of `rdma` does. Each Send has this header and then bytes of the stream:
//!
//! ```text
//! kind (1)  flags (1)  zero (2)  key (4)  bytes received (8)  bytes given to the program (8)
//! ```
//!
//! Bytes for a receive that the peer has exposed go by Writes, whose STag is its key and whose
//! offset counts from its first byte. A message with the key follows them.
//!
//! A one-sided put is a note (which region, address, bytes, and signal) and Writes, whose STag is
//! the region's key and whose offset is the address; a note answers it. Gets and atomic operations
//! are RDMAP's requests and responses; a note in place of a response says why the operation was
//! refused. A note has 32 bytes, as those of `rdma` have:
//!
//! ```text
//! kind (1)  need (1)  flags (1)  zero (1)  index (4)  key (4)  length (4)  address (8)  value (8)
//! kind (1)  status (1)  zero (22)  detail (8)
//! ```

use std::net::Ipv4Addr;

use super::{u16_at, u32_at, u64_at};

/// Bytes of the header of a message.
pub const MESSAGE_BYTES: usize = 24;
/// Bytes of a note behind the header.
pub const NOTE_BYTES: usize = 32;
/// Bytes of a request, and of an answer.
pub const REQUEST_BYTES: usize = 24;
/// See [`REQUEST_BYTES`].
pub const ANSWER_BYTES: usize = 12;

const MAGIC: &[u8; 4] = b"RBiw";
const VERSION: u8 = 1;
/// The sender has the receiver's last byte.
const HAS_END: u8 = 1;

/// Why bytes are no message of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no message of a session between NICs of this kind and version")]
pub struct Invalid;

/// What the initiator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The NIC that asks.
    pub from: Ipv4Addr,
    /// The NIC that is asked.
    pub to: Ipv4Addr,
    /// The port of the asking session, which only names it.
    pub source_port: u16,
    /// The port that is asked for.
    pub port: u16,
    /// Bytes that the asking NIC holds before its program receives them.
    pub window: u32,
}

impl Request {
    /// Its bytes.
    pub fn emit(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(MAGIC);
        out[4] = VERSION;
        out[8..12].copy_from_slice(&self.from.octets());
        out[12..16].copy_from_slice(&self.to.octets());
        out[16..18].copy_from_slice(&self.source_port.to_be_bytes());
        out[18..20].copy_from_slice(&self.port.to_be_bytes());
        out[20..].copy_from_slice(&self.window.to_be_bytes());
        out
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Invalid`]: another length, name, version, or a reserved byte that is not 0.
    pub fn parse(b: &[u8]) -> Result<Request, Invalid> {
        let is_it = b.len() == REQUEST_BYTES && &b[..4] == MAGIC && b[4] == VERSION;
        if !is_it || b[5..8] != [0; 3] {
            return Err(Invalid);
        }
        Ok(Request {
            from: u32_at(b, 8).into(),
            to: u32_at(b, 12).into(),
            source_port: u16_at(b, 16),
            port: u16_at(b, 18),
            window: u32_at(b, 20),
        })
    }
}

/// What the responder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It accepts, and holds so many bytes before its program receives them.
    Accepted {
        /// Those bytes.
        window: u32,
    },
    /// Nothing listens at the port.
    NoListener,
    /// It has no room, or does not know the NIC that asks.
    NoRoom,
}

impl Answer {
    /// Its bytes.
    pub fn emit(self) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        out[..4].copy_from_slice(MAGIC);
        out[4] = VERSION;
        let (kind, window) = match self {
            Answer::Accepted { window } => (0, window),
            Answer::NoListener => (1, 0),
            Answer::NoRoom => (2, 0),
        };
        out[5] = kind;
        out[8..].copy_from_slice(&window.to_be_bytes());
        out
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Invalid`], as for a request.
    pub fn parse(b: &[u8]) -> Result<Answer, Invalid> {
        let is_it = b.len() == ANSWER_BYTES && &b[..4] == MAGIC && b[4] == VERSION;
        if !is_it || b[6..8] != [0; 2] {
            return Err(Invalid);
        }
        match (b[5], u32_at(b, 8)) {
            (0, window) => Ok(Answer::Accepted { window }),
            (1, 0) => Ok(Answer::NoListener),
            (2, 0) => Ok(Answer::NoRoom),
            _ => Err(Invalid),
        }
    }
}

/// What a Send is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of the stream.
    Data = 1,
    /// What the sender has received, and nothing else.
    Credit = 2,
    /// The sender's direction has ended.
    End = 3,
    /// The receive of the key was written as a whole.
    Written = 4,
    /// A note announces a put.
    Ask = 5,
    /// A note says how a one-sided operation of the receiver has ended.
    Answer = 6,
}

/// What an end has got so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// Bytes of the peer's stream that it has.
    pub got: u64,
    /// Those that its program has.
    pub taken: u64,
    /// It has the peer's End, too.
    pub has_end: bool,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// The receive that was written; else 0.
    pub key: u32,
    /// What its sender has got.
    pub credit: Credit,
}

impl Message {
    /// Its bytes.
    pub fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = [0; MESSAGE_BYTES];
        out[0] = self.kind as u8;
        out[1] = if self.credit.has_end { HAS_END } else { 0 };
        out[4..8].copy_from_slice(&self.key.to_be_bytes());
        out[8..16].copy_from_slice(&self.credit.got.to_be_bytes());
        out[16..].copy_from_slice(&self.credit.taken.to_be_bytes());
        out
    }

    /// Reads the header of a message of `len` bytes, itself included.
    ///
    /// # Errors
    /// [`Invalid`]: an unknown kind or flag, a reserved byte that is not 0, a key without need or
    /// none where one is needed, more taken than received, or bytes behind a message that has none.
    pub fn parse(b: &[u8], len: usize) -> Result<Message, Invalid> {
        if b.len() < MESSAGE_BYTES || len < MESSAGE_BYTES || b[2..4] != [0; 2] || b[1] > HAS_END {
            return Err(Invalid);
        }
        let kind = match (b[0], len - MESSAGE_BYTES) {
            (1, 1..) => Kind::Data,
            (2, 0) => Kind::Credit,
            (3, 0) => Kind::End,
            (4, 0) => Kind::Written,
            (5, NOTE_BYTES) => Kind::Ask,
            (6, NOTE_BYTES) => Kind::Answer,
            _ => return Err(Invalid),
        };
        let key = u32_at(b, 4);
        let credit = Credit {
            got: u64_at(b, 8),
            taken: u64_at(b, 16),
            has_end: b[1] == HAS_END,
        };
        let has_key = (key != 0) == (kind == Kind::Written);
        match credit.taken <= credit.got && has_key {
            true => Ok(Message { kind, key, credit }),
            false => Err(Invalid),
        }
    }
}
