//! Wire formats that this NIC reads by itself.
//!
//! The TCP segment is parsed and emitted by smoltcp; here is only what comes before it: which
//! transport and connection a frame belongs to ([`frame`]), ARP and ICMP echo ([`control`]), the
//! VXLAN header that wraps a frame on the UDP port ([`vxlan`]), RoCEv2 ([`roce`]), ACCL's messages
//! ([`accl`]), the headers before both ([`udp`]), and iWARP ([`iwarp`]). Everything in this module
//! takes untrusted bytes: it returns an error, it never panics.

pub mod accl;
pub mod control;
pub mod frame;
pub mod iwarp;
pub mod roce;
pub mod udp;
pub mod vxlan;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_HEADER: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;

/// An Ethernet address.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// To everyone.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether it names one host: neither a group nor zero.
    pub const fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// A locally administered address made from a number: 52:42 is "RB".
    pub const fn local(n: u32) -> MacAddr {
        let b = n.to_be_bytes();
        MacAddr([0x02, 0x52, b[0], b[1], b[2], b[3]])
    }
}

impl std::fmt::Display for MacAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let b = self.0;
        write!(
            f,
            "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
            b[0], b[1], b[2], b[3], b[4], b[5]
        )
    }
}

impl std::fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Writes an Ethernet header at the start of `frame`.
///
/// # Panics
/// When `frame` is shorter than [`ETHERNET_HEADER`].
pub fn emit_ethernet(frame: &mut [u8], dst: MacAddr, src: MacAddr, ethertype: u16) {
    frame[0..6].copy_from_slice(&dst.0);
    frame[6..12].copy_from_slice(&src.0);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
}
