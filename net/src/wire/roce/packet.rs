//! A whole RoCEv2 packet behind its UDP header.

use ringbell_nic_abi::RoceOpcode;

use super::bth::{Bth, BTH_BYTES};
use super::extended::Extended;
use super::icrc::{icrc, Flow, ICRC_BYTES};
use super::invalid::Invalid;

/// A valid packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base header.
    pub bth: Bth,
    /// Headers of the operation.
    pub extended: Extended,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads what lies behind a UDP header, without its CRC.
    ///
    /// # Errors
    /// [`Invalid`] says what is wrong.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Invalid> {
        let (bth, rest) = Bth::parse(bytes)?;
        let (extended, rest) = Extended::parse(bth.opcode, rest)?;
        // The payload and its padding fill whole words (§9.2.3).
        let len = rest.len().checked_sub(usize::from(bth.pad));
        let payload = len.and_then(|len| rest.get(..len)).ok_or(Invalid::Length)?;
        if !rest.len().is_multiple_of(4) || !may_carry(bth.opcode, payload.len()) {
            return Err(Invalid::Length);
        }
        Ok(Packet {
            bth,
            extended,
            payload,
        })
    }
}

/// Most bytes of a report of selective repeat, behind an acknowledgement.
pub const REPORT_MAX: usize = 512;

/// Whether a packet of this operation may have a payload of that length.
const fn may_carry(opcode: RoceOpcode, len: usize) -> bool {
    use RoceOpcode as Op;
    match opcode {
        // Reports of selective repeat lie behind a NAK.
        Op::Acknowledge => len <= REPORT_MAX,
        Op::AtomicAcknowledge => len == 0,
        Op::ReadRequest | Op::CompareSwap | Op::FetchAdd => len == 0,
        Op::CongestionNotification => len == 16,
        _ => true,
    }
}

/// The packet of a UDP payload, without its invariant CRC, which must be right. Without a flow it
/// is not looked at: the two NICs have agreed to leave it out, and its four bytes carry nothing.
///
/// # Errors
/// [`Invalid`] says what is wrong.
#[inline]
pub fn open<'a>(payload: &'a [u8], flow: Option<&Flow>) -> Result<&'a [u8], Invalid> {
    let (packet, sum) = payload
        .split_last_chunk::<ICRC_BYTES>()
        .ok_or(Invalid::Length)?;
    match flow.map(|f| icrc(f, packet)) {
        None => Ok(packet),
        Some(Some(right)) if right == *sum => Ok(packet),
        Some(_) => Err(Invalid::Icrc),
    }
}

/// Headers of a packet to be written, valid by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Base header; the padding is set when the packet is written.
    pub bth: Bth,
    /// Headers of the operation.
    pub extended: Extended,
}

impl Head {
    /// Bytes of the headers.
    pub const fn len(&self) -> usize {
        BTH_BYTES + self.extended.len()
    }

    /// Whether there are none: never.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers to the front of `room`, for a payload of `payload` bytes that lies or
    /// will lie behind them, and its padding. Returns the bytes of all three.
    ///
    /// # Panics
    /// When `room` is too short.
    #[inline]
    pub fn emit(&self, room: &mut [u8], payload: usize) -> usize {
        let pad = self.emit_headers(room, payload);
        let end = self.len() + payload;
        room[end..end + pad].fill(0);
        end + pad
    }

    /// Writes the headers alone. Returns the bytes of padding.
    #[inline]
    pub fn emit_headers(&self, room: &mut [u8], payload: usize) -> usize {
        let pad = payload.next_multiple_of(4) - payload;
        let bth = Bth {
            pad: pad as u8,
            ..self.bth
        };
        room[..BTH_BYTES].copy_from_slice(&bth.bytes());
        self.extended.emit(&mut room[BTH_BYTES..]);
        pad
    }
}
