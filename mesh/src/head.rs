//! Heads of what travels on a wire.
//!
//! A *packet* carries an Ethernet frame of the layer above, from its EtherType on: source and
//! destination are nodes, so its addresses are left out. A receiver writes them over the head's
//! end, and the frame lies there without a copy. Other kinds stay on one wire.

use crc_fast::{CrcAlgorithm, Digest};
use ringbell_net::wire::{MacAddr, ETHERNET_HEADER, ETHERTYPE_IPV4};
use ringbell_routes::tables::Class;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of a wire's frames: IEEE 802's second one for local experiments.
pub(crate) const ETHERTYPE: u16 = 0x88b6;
/// Version of the format.
pub(crate) const VERSION: u8 = 3;
/// Destination of a packet that goes by its source's tree to every node with a rank.
pub(crate) const EVERYONE: u16 = u16::MAX;
/// Destination of a packet of a sum: the parent in the tree of the node that is its source, the
/// sum's root.
pub(crate) const UPWARD: u16 = u16::MAX - 1;
/// Bytes of a head.
pub(crate) const HEAD: usize = 42;
/// Where the frame of a packet begins, once its addresses stand before its EtherType.
pub(crate) const FRAME_AT: usize = HEAD - 12;
/// Bytes that a frame grows by on a wire.
pub const GROWTH: usize = FRAME_AT;

/// What a frame of a wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A frame on its way.
    Packet = 1,
    /// Credits and an acknowledgement.
    Credit = 2,
    /// Who stands at the wire's end, and by which rules.
    Hello = 3,
    /// The reason why a hello is refused, as text.
    Refuse = 4,
    /// Which wires of the network are down.
    Network = 5,
    /// What is known of tables that replace others.
    State = 6,
    /// The text of tables is wanted.
    Ask = 7,
    /// A part of it.
    Part = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        let all = [
            Kind::Packet,
            Kind::Credit,
            Kind::Hello,
            Kind::Refuse,
            Kind::Network,
            Kind::State,
            Kind::Ask,
            Kind::Part,
        ];
        all.into_iter().find(|k| *k as u8 == byte)
    }
}

/// A packet holds a frame to all: its receiver is told so.
pub(crate) const FLAG_BROADCAST: u8 = 1;
/// Packets from `ack` on are missing.
pub(crate) const FLAG_MISSING: u8 = 2;
/// Credits are to be answered by credits.
pub(crate) const FLAG_PROBE: u8 = 4;
/// A packet is of a sum, and no frame of this node's NIC.
pub(crate) const FLAG_SUM: u8 = 8;
/// Where the flags of a packet have the mark of the tables by which it goes.
pub(crate) const MARK_SHIFT: u32 = 4;

/// The head of each frame of a wire.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) to: MacAddr,
    pub(crate) from: MacAddr,
    pub(crate) ethertype: U16,
    pub(crate) kind: u8,
    /// Virtual channel of a packet.
    pub(crate) channel: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    /// Nodes that may still forward it.
    pub(crate) hops: u8,
    pub(crate) flags: u8,
    /// Incarnation of the sender's end of the wire.
    pub(crate) epoch: U32,
    /// Of a packet: its number on the wire. Of [`Kind::Network`]: the first wire of the list. Of
    /// [`Kind::Ask`] and [`Kind::Part`]: which tables.
    pub(crate) number: U32,
    /// The number of the next packet that the sender of this head expects.
    pub(crate) ack: U32,
    /// Packets of `channel` that the sender of this head can take in all.
    pub(crate) limit: U32,
    /// CRC-32C of what follows the Ethernet header, this field left out; zero on wires that cannot
    /// change a bit.
    pub(crate) check: U32,
}

impl Head {
    /// A head of this kind.
    pub(crate) fn new(kind: Kind) -> Head {
        Head {
            to: MacAddr::BROADCAST,
            from: MacAddr::default(),
            ethertype: U16::new(ETHERTYPE),
            kind: kind as u8,
            channel: 0,
            source: U16::ZERO,
            destination: U16::ZERO,
            hops: 0,
            flags: 0,
            epoch: U32::ZERO,
            number: U32::ZERO,
            ack: U32::ZERO,
            limit: U32::ZERO,
            check: U32::ZERO,
        }
    }

    /// Reads the head of a frame; `None` if it is of no wire.
    pub(crate) fn read(frame: &[u8]) -> Option<(Kind, Head)> {
        let (head, _) = Head::read_from_prefix(frame).ok()?;
        let kind = Kind::of(head.kind)?;
        (head.ethertype.get() == ETHERTYPE).then_some((kind, head))
    }

    /// The head at the start of a packet.
    ///
    /// # Panics
    /// There are less than [`HEAD`] bytes.
    #[inline]
    pub(crate) fn of(packet: &[u8]) -> Head {
        let mut head = Head::new(Kind::Packet);
        head.as_mut_bytes().copy_from_slice(&packet[..HEAD]);
        head
    }

    /// Writes it at the start of a frame.
    ///
    /// # Panics
    /// The frame is shorter than [`HEAD`].
    pub(crate) fn write(&self, frame: &mut [u8]) {
        frame[..HEAD].copy_from_slice(self.as_bytes());
    }
}

/// Writes the CRC of a whole frame into its head.
pub(crate) fn seal(frame: &mut [u8]) {
    let check = crc(frame);
    frame[HEAD - 4..HEAD].copy_from_slice(&check.to_be_bytes());
}

/// Whether the CRC of a frame is right.
pub(crate) fn is_sound(frame: &[u8]) -> bool {
    frame[HEAD - 4..HEAD] == crc(frame).to_be_bytes()
}

fn crc(frame: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&frame[ETHERNET_HEADER..HEAD - 4]);
    digest.update(&frame[HEAD..]);
    digest.finalize() as u32
}

/// The body of a hello: what both ends of a wire must agree on.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub(crate) version: u8,
    /// The sender's port.
    pub(crate) port: u8,
    /// The sender's node.
    pub(crate) node: U16,
    /// Virtual channels of a wire.
    pub(crate) channels: u8,
    /// Free slots that a packet needs to enter a ring: 1 without bubble flow control.
    pub(crate) bubble: u8,
    /// Slots of a channel.
    pub(crate) depth: U16,
    /// Largest IP packet of the mesh.
    pub(crate) mtu: U16,
    /// Nodes of the network.
    pub(crate) nodes: U16,
    /// Digest of the tables.
    pub(crate) digest: U64,
    /// The receiver's epoch, as the sender knows it; zero if it does not.
    pub(crate) heard: U32,
    /// 1: the sender's end is up, and needs no answer.
    pub(crate) up: u8,
}

/// The class of a frame: answers of RoCEv2 (its opcodes 13 to 18: read responses and
/// acknowledgements) have channels of their own.
pub(crate) fn class_of(frame: &[u8]) -> Class {
    const UDP: u8 = 17;
    const ROCE: [u8; 2] = 4791u16.to_be_bytes();
    let is = |at: usize, what: &[u8]| frame.get(at..at + what.len()) == Some(what);
    let is_roce =
        is(12, &ETHERTYPE_IPV4.to_be_bytes()) && is(14, &[0x45]) && is(23, &[UDP]) && is(36, &ROCE);
    match frame.get(42) {
        Some(opcode) if is_roce && (13..=18).contains(&(opcode & 0x1f)) => Class::Acknowledgement,
        _ => Class::Request,
    }
}
