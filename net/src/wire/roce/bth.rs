//! Base transport header (IBTA vol. 1 §9.2).
//!
//! ```text
//! |    opcode     |S|M|pad| TVer  |             partition         |
//! |F|B|   rsv 6   |           destination queue pair              |
//! |A|    rsv 7    |           packet sequence number              |
//! ```

use ringbell_nic_abi::roce::ROCE_PKEY_DEFAULT;
use ringbell_nic_abi::RoceOpcode;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::invalid::Invalid;
use super::{join, Psn, Qpn};

/// Bytes of the header.
pub const BTH_BYTES: usize = 12;

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACKNOWLEDGE: u8 = 0x80;

/// The header as it lies in a packet.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BthView {
    opcode: u8,
    flags: u8,
    partition: U16,
    destination: U32,
    sequence: U32,
}

/// A valid base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Operation.
    pub opcode: RoceOpcode,
    /// The receiver is to raise an event for the message.
    pub solicited: bool,
    /// Bytes of padding behind the payload, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub partition: u16,
    /// The path that the packet took is congested (forward notification).
    pub fecn: bool,
    /// The path that the receiver sends on is congested (backward notification).
    pub becn: bool,
    /// The receiving queue pair.
    pub destination: Qpn,
    /// The receiver is to acknowledge.
    pub acknowledge: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A header without flags, of the default partition.
    pub const fn new(opcode: RoceOpcode, destination: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            pad: 0,
            partition: ROCE_PKEY_DEFAULT,
            fecn: false,
            becn: false,
            destination,
            acknowledge: false,
            psn,
        }
    }

    /// Reads the header at the start of a packet, and returns what follows it.
    ///
    /// # Errors
    /// [`Invalid`]: too short, an unknown operation, or a version other than 0 (§9.6.1.1).
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Bth, &[u8]), Invalid> {
        let (view, rest) = BthView::ref_from_prefix(packet).map_err(|_| Invalid::Length)?;
        if view.flags & VERSION != 0 {
            return Err(Invalid::Version);
        }
        let opcode = RoceOpcode::from_code(view.opcode).ok_or(Invalid::Opcode)?;
        let (destination, sequence) = (view.destination.get(), view.sequence.get());
        let [state, ..] = destination.to_be_bytes();
        let bth = Bth {
            opcode,
            solicited: view.flags & SOLICITED != 0,
            pad: view.flags >> 4 & 3,
            partition: view.partition.get(),
            fecn: state & FECN != 0,
            becn: state & BECN != 0,
            destination: Qpn::new(destination),
            acknowledge: sequence.to_be_bytes()[0] & ACKNOWLEDGE != 0,
            psn: Psn::new(sequence),
        };
        Ok((bth, rest))
    }

    /// The bytes of the header.
    #[inline]
    pub fn bytes(&self) -> [u8; BTH_BYTES] {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let state = bit(self.fecn, FECN) | bit(self.becn, BECN);
        let acknowledge = bit(self.acknowledge, ACKNOWLEDGE);
        let view = BthView {
            opcode: self.opcode.code(),
            // The path has not migrated: the state in which a connection starts (§17.2.8.1).
            flags: bit(self.solicited, SOLICITED) | MIGRATED | (self.pad & 3) << 4,
            partition: U16::new(self.partition),
            destination: U32::new(join(state, self.destination.value())),
            sequence: U32::new(join(acknowledge, self.psn.value())),
        };
        zerocopy::transmute!(view)
    }
}
