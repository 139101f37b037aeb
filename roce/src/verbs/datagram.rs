//! Unreliable datagrams (IBTA vol. 1 §9.8.3): each message is one packet, to any queue pair whose
//! address, number and key are known.
//!
//! A datagram that no queue pair wants is dropped without an answer: one with another key, one for
//! which no receive is posted, or one that is longer than its receive, which then stays.
//!
//! ```text
//! byte of a receive  0         8         24        40
//!                    | version | sender  | context | message     GIDs of contexts, or addresses of IPv6
//!                    | sender            | IPv4    | message     a context of IPv4 with the standard's GID
//!                    0                   20        40
//! ```
//!
//! The first 40 bytes of a receive hold the network's header (annex A17 §A17.4.5.1). A header of
//! IPv4, which is the last 20 of them, cannot name a [`Gid`] with a UDP port. A context that has
//! one writes a header of version 6 with both GIDs instead, as InfiniBand does (§8.3), since
//! programs look there for the GID that they know as theirs. The sender says in the reserved byte
//! of the datagram header what it can beside the standard, so that its GID is complete as well. The
//! kernel keeps the packet's own header, so the time to live is not the packet's.

use std::net::SocketAddr;

use ringbell_nic_abi::RoceOpcode;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr};

use super::endpoint::{Arrived, Peer, View};
use super::gid::{Features, Gid};
use super::types::{DATAGRAM_MAX, GRH_BYTES};
use crate::qp::{Client, QpCounters, State, Transmit};
use ringbell_net::port::Datagram;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Bth, Deth, Extended, Packet, Psn, BTH_BYTES};

/// Bytes of the IPv4 header at their end.
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Where a header of version 6 has its source.
pub(super) const SENDER: usize = 8;
/// A key with this bit in a request stands for the sending queue pair's own (§10.2.5).
const OWN_KEY: u32 = 1 << 31;
/// The time to live that Linux sends with by default.
const HOPS: u8 = 64;

/// A queue pair of the datagram service.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) state: State,
    pub(super) key: u32,
    pub(super) next: Psn,
    pub(super) counters: QpCounters,
}

impl Datagrams {
    pub(super) fn new() -> Datagrams {
        Datagrams {
            state: State::Reset,
            key: 0,
            next: Psn::default(),
            counters: QpCounters::default(),
        }
    }

    /// Takes a packet. `false`: it was dropped.
    pub(super) fn receive(
        &mut self,
        d: &Datagram<'_>,
        (local, own): (SocketAddr, Gid),
        packet: &Packet<'_>,
        view: &mut View<'_>,
    ) -> bool {
        view.begins(packet);
        let (deth, immediate) = match packet.extended {
            Extended::Datagram(deth) => (deth, None),
            Extended::DatagramImmediate(deth, n) => (deth, Some(n)),
            _ => return false,
        };
        if !self.state.answers() || deth.key != self.key || packet.payload.len() > DATAGRAM_MAX {
            self.counters.ignored += 1;
            return false;
        }
        let sender = Gid::new(d.from, Features::from_byte(deth.reserved));
        let header = header(d, sender, local, own);
        match view.receive_datagram(&header, packet.payload, immediate) {
            Arrived::Kept => true,
            Arrived::Dropped => {
                self.counters.ignored += 1;
                false
            }
            Arrived::Failed => {
                self.state = State::Err;
                true
            }
        }
    }

    /// Writes the next datagram to `room`, if it goes to this peer. Its request has ended then:
    /// nothing tells of its arrival.
    pub(super) fn transmit(
        &mut self,
        room: &mut [u8],
        (peer, features): (&Peer, Features),
        view: &mut View<'_>,
    ) -> Transmit {
        if self.state != State::Rts {
            return Transmit::Nothing;
        }
        let number = view.end.at.number;
        let Some((way, immediate, solicited)) = view.next_datagram().filter(|n| n.0.peer == *peer)
        else {
            return Transmit::Nothing;
        };
        let own = way.key & OWN_KEY != 0;
        let deth = Deth {
            key: if own { self.key } else { way.key },
            source: number,
            reserved: if peer.is_ours { features.to_byte() } else { 0 },
        };
        let (opcode, extended) = match immediate {
            Some(n) => (
                RoceOpcode::DatagramSendImm,
                Extended::DatagramImmediate(deth, n),
            ),
            None => (RoceOpcode::DatagramSend, Extended::Datagram(deth)),
        };
        let head = Head {
            bth: Bth {
                solicited,
                ..Bth::new(opcode, way.number, self.next)
            },
            extended,
        };
        let Some(len) = view.take_datagram(&mut room[BTH_BYTES + extended.len()..]) else {
            // Its memory cannot be read: the requests behind it do not begin (§10.3.1.6).
            self.state = State::Sqe;
            return Transmit::Nothing;
        };
        self.next = self.next.plus(1);
        Transmit::Packet(head.emit(room, len))
    }
}

/// What precedes a message in its receive, for the context `local` with GID `own`.
fn header(d: &Datagram<'_>, sender: Gid, local: SocketAddr, own: Gid) -> [u8; GRH_BYTES] {
    let mut bytes = [0; GRH_BYTES];
    let len = UDP_BYTES + d.bytes.len();
    let (SocketAddr::V4(from), SocketAddr::V4(to), false) = (d.from, local, own.is_ours()) else {
        // A datagram is no longer than 64 KiB.
        let [l0, l1] = (len as u16).to_be_bytes();
        bytes[..8].copy_from_slice(&[0x60, (d.ecn & 3) << 4, 0, 0, l0, l1, 17, HOPS]);
        bytes[SENDER..][..16].copy_from_slice(&sender.0);
        bytes[SENDER + 16..].copy_from_slice(&own.0);
        return bytes;
    };
    bytes[..sender.0.len()].copy_from_slice(&sender.0);
    let room = &mut bytes[GRH_BYTES - IPV4_BYTES..];
    let repr = Ipv4Repr {
        src_addr: *from.ip(),
        dst_addr: *to.ip(),
        next_header: IpProtocol::Udp,
        payload_len: len,
        hop_limit: HOPS,
    };
    let mut ip = Ipv4Packet::new_unchecked(room);
    repr.emit(&mut ip, &ChecksumCapabilities::ignored());
    ip.set_ecn(d.ecn);
    ip.fill_checksum();
    bytes
}
