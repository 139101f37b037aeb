//! Messages of communication management that came in, and what NICs of this kind say in them.

use std::net::{Ipv4Addr, SocketAddr};

use super::config::RdmaConfig;
use super::conn::AROUND;
use crate::network::{Link, Network};
use crate::transport::crc::Icrc;
use ringbell_net::port::Checksums;
use ringbell_net::wire::roce::cm::{Message, PRIVATE_BYTES};

/// A message that came in.
#[derive(Debug)]
pub(super) struct ControlMessage {
    pub(super) from: Link,
    /// Where it came from.
    pub(super) address: SocketAddr,
    pub(super) message: Message,
    pub(super) transaction: u64,
}

impl ControlMessage {
    /// Whether it asks for a connection from a port of datagrams, which receives by the socket that
    /// it sends by.
    pub(super) fn is_from_datagrams(&self) -> bool {
        let Message::Request(r) = &self.message else {
            return false;
        };
        Terms::read(&r.from.private).is_some_and(|terms| terms.any_identification)
    }
}

/// What a NIC of this kind says of itself in private data.
///
/// ```text
/// | "RBEL" | version | features | 0 0 | window (4) | bytes of a packet (4) |
/// features: 1 packets need no invariant CRC, 2 any identification of IPv4, 4 packets that come early are kept
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) window: u32,
    pub(super) payload: u32,
    pub(super) without_icrc: bool,
    /// The port is one of datagrams: it sees no identification of IPv4, and takes any.
    pub(super) any_identification: bool,
    pub(super) selective: bool,
}

const MAGIC: &[u8; 4] = b"RBEL";
const VERSION: u8 = 2;
const WITHOUT_ICRC: u8 = 1;
const ANY_IDENTIFICATION: u8 = 2;
const SELECTIVE: u8 = 4;

impl Terms {
    pub(super) fn bytes(&self) -> [u8; PRIVATE_BYTES] {
        let mut bytes = [0; PRIVATE_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        let set = |on, bit| if on { bit } else { 0 };
        bytes[5] = set(self.without_icrc, WITHOUT_ICRC)
            | set(self.any_identification, ANY_IDENTIFICATION)
            | set(self.selective, SELECTIVE);
        bytes[8..12].copy_from_slice(&self.window.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.payload.to_be_bytes());
        bytes
    }

    /// `None`: another kind of program, or terms that cannot be met.
    pub(super) fn read(bytes: &[u8; PRIVATE_BYTES]) -> Option<Terms> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let terms = Terms {
            window: word(8),
            payload: word(12),
            without_icrc: bytes[5] & WITHOUT_ICRC != 0,
            any_identification: bytes[5] & ANY_IDENTIFICATION != 0,
            selective: bytes[5] & SELECTIVE != 0,
        };
        let is_ours = &bytes[..4] == MAGIC && bytes[4] == VERSION;
        (is_ours && terms.window >= 4_096 && terms.payload >= 256).then_some(terms)
    }

    pub(super) fn of(
        config: &RdmaConfig,
        net: &mut Network,
        number: usize,
        peer: Ipv4Addr,
    ) -> Terms {
        let payload = net.payload_to(number, peer).saturating_sub(AROUND) & !3;
        let payload = payload.min(config.payload_max);
        let host = net.flow(number, 0, peer).to;
        let port = net.ports()[number].capabilities();
        let of_datagrams = !port.medium.has_frames();
        Terms {
            // At most 64 MiB, and an MTU.
            window: config.rx_buffer.next_power_of_two() as u32,
            payload: payload as u32,
            without_icrc: match config.icrc {
                Icrc::Auto if of_datagrams => host.ip().is_loopback(),
                Icrc::Auto => port.checksums == Checksums::Omitted,
                Icrc::Always => false,
                Icrc::Never => true,
            },
            any_identification: of_datagrams,
            selective: config.selective,
        }
    }
}
