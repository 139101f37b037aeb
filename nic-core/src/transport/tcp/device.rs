//! smoltcp's view of a port, as two devices: one packet in, or packets out.
//!
//! smoltcp runs without a link layer here (`Medium::Ip`): Ethernet headers, ARP and the neighbour
//! table are ours, so that one table serves all connections.

use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::time::Instant;

use super::sequence::is_before;
use crate::network::{Link, Network};
use crate::types::NicTime;
use ringbell_net::port::Checksums;

/// Longest packet that smoltcp answers a packet with at once: headers, options, no payload.
const REPLY_ROOM: usize = 256;

/// A port's capabilities, for smoltcp.
pub(super) fn capabilities(mtu: usize, checksums: Checksums) -> DeviceCapabilities {
    let mut caps = DeviceCapabilities::default();
    caps.medium = Medium::Ip;
    caps.max_transmission_unit = mtu;
    if checksums == Checksums::Omitted {
        caps.checksum = ChecksumCapabilities::ignored();
        caps.checksum.ipv4 = Checksum::None;
        caps.checksum.tcp = Checksum::None;
    }
    caps
}

/// The answer of a socket to a packet, before it gets its Ethernet header.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) bytes: [u8; REPLY_ROOM],
    pub(super) len: usize,
}

impl Reply {
    pub(super) fn new() -> Reply {
        Reply {
            bytes: [0; REPLY_ROOM],
            len: 0,
        }
    }
}

/// One packet in; the answer goes to a buffer, because the port still holds the packet.
pub(super) struct Ingress<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) reply: &'a mut Reply,
    pub(super) caps: &'a DeviceCapabilities,
}

pub(super) struct PacketIn<'a>(&'a [u8]);
pub(super) struct ReplyOut<'a>(&'a mut Reply);

impl RxToken for PacketIn<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for ReplyOut<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // Answers carry no payload; one that does not fit is composed and dropped.
        match self.0.bytes.get_mut(..len) {
            Some(room) => {
                self.0.len = len;
                f(room)
            }
            None => f(&mut vec![0; len]),
        }
    }
}

impl Device for Ingress<'_> {
    type RxToken<'t>
        = PacketIn<'t>
    where
        Self: 't;
    type TxToken<'t>
        = ReplyOut<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(PacketIn<'_>, ReplyOut<'_>)> {
        let packet = self.packet.take()?;
        Some((PacketIn(packet), ReplyOut(self.reply)))
    }
    fn transmit(&mut self, _: Instant) -> Option<ReplyOut<'_>> {
        Some(ReplyOut(self.reply))
    }
    fn capabilities(&self) -> DeviceCapabilities {
        self.caps.clone()
    }
}

/// Packets of one connection out. smoltcp writes one packet per poll into the port's room; the
/// caller commits it after the poll.
pub(super) struct Egress<'a> {
    pub(super) net: &'a mut Network,
    pub(super) now: NicTime,
    pub(super) to: Link,
    pub(super) caps: &'a DeviceCapabilities,
    /// The port had no room.
    pub(super) blocked: bool,
    /// Bytes of the packet that was written and not committed.
    pub(super) written: usize,
    /// The first acknowledgement number sent.
    pub(super) acknowledged: Option<u32>,
    /// Bytes of all packets committed.
    pub(super) sent_bytes: usize,
    /// The farthest sequence number sent, and how many segments began before it.
    pub(super) sent_end: Option<u32>,
    pub(super) repeated: u32,
}

impl Egress<'_> {
    /// Whether the port takes a packet now.
    pub(super) fn has_room(&mut self) -> bool {
        self.net.has_room(self.now, self.to)
    }

    /// Sends what the last poll wrote. Returns whether there was anything.
    pub(super) fn commit(&mut self) -> bool {
        let len = std::mem::take(&mut self.written);
        if len > 0 {
            self.net.commit(self.now, self.to, len);
            self.sent_bytes += len;
        }
        len > 0
    }
}

pub(super) struct PacketOut<'t> {
    room: &'t mut [u8],
    written: &'t mut usize,
    acknowledged: &'t mut Option<u32>,
    sent_end: &'t mut Option<u32>,
    repeated: &'t mut u32,
}
pub(super) struct Nothing;

/// The acknowledgement number of a packet that smoltcp wrote: an IPv4 header without options, then
/// TCP (RFC 9293 §3.1).
fn acknowledgement(packet: &[u8]) -> Option<u32> {
    let tcp = packet.get(20..40)?;
    (tcp[13] & 0x10 != 0).then(|| u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]))
}

/// Where the payload of a packet that smoltcp wrote begins and ends in sequence numbers, its SYN
/// counted; `None` without either.
fn payload_of(packet: &[u8]) -> Option<(u32, u32)> {
    let tcp = packet.get(20..40)?;
    let header = 20 + usize::from(tcp[12] >> 4) * 4;
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let syn = usize::from(tcp[13] & 0x02 != 0);
    let len = packet.len().checked_sub(header)? + syn;
    // A packet is shorter than 64 KiB.
    (len > 0).then(|| (seq, seq.wrapping_add(len as u32)))
}

impl RxToken for Nothing {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&[])
    }
}

impl TxToken for PacketOut<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        match self.room.get_mut(..len) {
            Some(packet) => {
                *self.written = len;
                let r = f(packet);
                if self.acknowledged.is_none() {
                    *self.acknowledged = acknowledgement(packet);
                }
                if let Some((first, end)) = payload_of(packet) {
                    *self.repeated += u32::from(self.sent_end.is_some_and(|s| is_before(first, s)));
                    if self.sent_end.is_none_or(|s| is_before(s, end)) {
                        *self.sent_end = Some(end);
                    }
                }
                r
            }
            // A port whose MTU has just fallen loses the packet; TCP sends it again.
            None => f(&mut vec![0; len]),
        }
    }
}

impl Device for Egress<'_> {
    type RxToken<'t>
        = Nothing
    where
        Self: 't;
    type TxToken<'t>
        = PacketOut<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Nothing, PacketOut<'_>)> {
        None
    }
    fn transmit(&mut self, _: Instant) -> Option<PacketOut<'_>> {
        // What was written and not committed still lies in the room.
        let room = match self.written {
            0 => self.net.room(self.now, self.to),
            _ => None,
        };
        self.blocked = room.is_none();
        Some(PacketOut {
            room: room?,
            written: &mut self.written,
            acknowledged: &mut self.acknowledged,
            sent_end: &mut self.sent_end,
            repeated: &mut self.repeated,
        })
    }
    fn capabilities(&self) -> DeviceCapabilities {
        self.caps.clone()
    }
}
