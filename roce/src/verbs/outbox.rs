//! Packets of one queue pair on their way to the port.
#![allow(unsafe_code)] // A batch takes spans of memory; these are the outbox's own.

use std::net::{Ipv4Addr, SocketAddr};

use super::endpoint::Peer;
use ringbell_net::port::{Batch, Destination, Port};
use ringbell_net::wire::roce::extended::EXTENDED_MAX;
use ringbell_net::wire::roce::icrc::{icrc, Flow};
use ringbell_net::wire::roce::{BTH_BYTES, ICRC_BYTES};
use ringbell_net::wire::udp::{ECT0, UNFRAGMENTED};
use ringbell_net::NicTime;

/// Most bytes of a packet beside its payload: headers, padding, invariant CRC.
pub(super) const HEADERS_MAX: usize = BTH_BYTES + EXTENDED_MAX + 3 + ICRC_BYTES;
/// Bytes of the packets of one batch.
const ROOM: usize = 256 << 10;
/// Longest packet.
const PACKET_MAX: usize = 64 << 10;
/// Packets of one batch.
const PACKETS_MAX: usize = 64;
/// The bit of the base header that asks for an event at the receiver (IBTA vol. 1 §9.2.2).
const SOLICITED: u8 = 0x80;

/// A batch of packets to one peer, made in place.
pub(super) struct Outbox {
    batch: Batch,
    room: Box<[u8]>,
    used: usize,
    /// Packets of the batch that the port has taken.
    sent: usize,
    flow: Flow,
    to: Destination,
    with_icrc: bool,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Outbox {
            batch: Batch::new(),
            room: vec![0; ROOM].into(),
            used: 0,
            sent: 0,
            flow: Flow {
                from: nowhere,
                to: nowhere,
                fragment: UNFRAGMENTED,
            },
            to: Destination::Socket {
                to: nowhere,
                ecn: 0,
                segmented: false,
            },
            with_icrc: true,
        }
    }

    /// Begins a batch to a peer; the one before was sent.
    pub(super) fn begin(&mut self, from: SocketAddr, peer: &Peer) {
        (self.flow.from, self.flow.to) = (from, peer.at);
        self.with_icrc = peer.with_icrc;
        self.to = Destination::Socket {
            to: peer.at,
            // A peer that answers no marks must not keep a switch from dropping.
            ecn: if peer.selective { ECT0 } else { 0 },
            // A NIC that computes the CRC from the IP header needs packets that the kernel has not
            // numbered by cutting them.
            segmented: peer.is_ours,
        };
    }

    /// Room for the next packet. `None`: the batch is full.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let end = self.used + PACKET_MAX;
        if self.batch.len() >= PACKETS_MAX {
            return None;
        }
        self.room.get_mut(self.used..end)
    }

    /// Adds the packet that lies at the front of the room.
    pub(super) fn add(&mut self, len: usize, solicits: bool) {
        let packet = &mut self.room[self.used..];
        if solicits {
            packet[1] |= SOLICITED;
        }
        let sum = match self.with_icrc {
            true => icrc(&self.flow, &packet[..len]).unwrap_or_default(),
            false => [0; ICRC_BYTES],
        };
        let whole = len + ICRC_BYTES;
        packet[len..whole].copy_from_slice(&sum);
        // SAFETY: the room lives as long as the batch, and this part of it is not written before
        // the batch is cleared.
        unsafe { self.batch.memory(packet.as_ptr(), whole) };
        self.batch.end();
        self.used += whole.next_multiple_of(8);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Sends the batch. `false`: the port has no room for the rest of it now.
    pub(super) fn send(&mut self, now: NicTime, port: &mut dyn Port) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        self.sent += port.send(now, &self.to, &self.batch, self.sent);
        let is_done = self.sent == self.batch.len();
        if is_done {
            self.batch.clear();
            (self.used, self.sent) = (0, 0);
        }
        is_done
    }
}
