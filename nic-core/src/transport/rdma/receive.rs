//! Packets that come in: to their queue pair, when they are whole and of its peer.

use std::net::{SocketAddr, SocketAddrV4};

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_PKEY_DEFAULT, ROCE_UDP_PORT};

use super::conn::Phase;
use super::manage::Letter;
use super::RdmaTransport;
use crate::datapath::Datapath;
use crate::network::{Headers, Link, Network, Packet, Protocol, Refused, Resolved};
use crate::transport::PacketTransport;
use crate::types::NicTime;
use crate::wire::frame::RoceFrame;
use crate::wire::roce::cm::Message;
use crate::wire::roce::icrc::Flow;
use crate::wire::roce::packet::open;
use crate::wire::roce::{self, Bth, Extended, Invalid};
use ringbell_nic_abi::Status;

/// Messages that wait for a step; a flood beyond is dropped, as if the wire had lost it.
const LETTERS_MAX: usize = 256;
/// Bits of a partition key that name the partition.
const PARTITION: u16 = 0x7fff;

impl RdmaTransport {
    fn flow(&self, frame: &RoceFrame) -> Flow {
        Flow {
            from: SocketAddr::V4(frame.src),
            to: SocketAddr::V4(SocketAddrV4::new(self.ip, ROCE_UDP_PORT)),
            fragment: frame.fragment,
        }
    }

    /// # Errors
    /// [`Invalid`], to be counted.
    fn take(
        &mut self,
        now: NicTime,
        from: Link,
        frame: &RoceFrame,
        bytes: &[u8],
        data: &mut Datapath<'_>,
    ) -> Result<(), Invalid> {
        // Before the CRC: whether it counts depends on the connection.
        let (bth, _) = Bth::parse(bytes)?;
        if bth.partition & PARTITION != ROCE_PKEY_DEFAULT & PARTITION {
            self.counters.foreign += 1;
            return Ok(());
        }
        if bth.destination.value() == QPN_GSI {
            let flow = self.flow(frame);
            let packet = roce::Packet::parse(open(bytes, Some(&flow))?)?;
            let Extended::Datagram(deth) = packet.extended else {
                return Err(Invalid::Opcode);
            };
            let datagram = packet.payload.try_into().map_err(|_| Invalid::Length)?;
            let message = Message::parse(datagram).filter(|_| deth.key == QKEY_GSI);
            let (message, transaction) = message.ok_or(Invalid::Opcode)?;
            if self.letters.len() < LETTERS_MAX {
                self.letters.push_back(Letter {
                    from,
                    source: *frame.src.ip(),
                    message,
                    transaction,
                });
            }
            return Ok(());
        }
        let index = self.table.find(bth.destination);
        let flow = self.flow(frame);
        let conn = index.and_then(|i| self.table.at(i));
        let Some(c) = conn.filter(|c| c.peer.ip() == frame.src.ip()) else {
            self.counters.foreign += 1;
            return Ok(());
        };
        let packet = roce::Packet::parse(open(bytes, c.icrc.then_some(&flow))?)?;
        let (qp, mut ends) = c.ends(data, &mut self.events);
        if qp.receive(now, &packet, &mut ends) {
            c.seen.heard = true;
            c.probes.refused = 0;
        }
        if let Some(index) = index {
            self.mark(index);
        }
        Ok(())
    }
}

impl PacketTransport for RdmaTransport {
    fn protocol(&self) -> Protocol {
        Protocol::Roce
    }

    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> bool {
        if let Headers::Roce(frame) = &packet.headers {
            let bytes = &packet.frame[frame.payload_at..frame.end];
            if self.take(now, packet.from, frame, bytes, data).is_err() {
                self.counters.invalid += 1;
            }
        }
        // The next step sends what follows.
        false
    }

    fn answer(&mut self, _: NicTime, _: &mut Network) {}

    fn resolved(&mut self, index: usize, outcome: Resolved) {
        match outcome {
            Resolved::Known => self.mark(index),
            Resolved::Failed => self.fail_connect(index, Status::HostUnreachable),
        }
    }

    fn refused(&mut self, _: NicTime, by: Refused, net: &Network) {
        let mut broken = Vec::new();
        for (index, c) in self.table.iter() {
            let link = c.hop.and_then(|hop| net.link(hop));
            let is_it = match by {
                Refused::Link(by) => link == Some(by),
                Refused::Peer { port, peer } => {
                    peer.ip() == c.peer.ip() && link.is_some_and(|l| l.port == port)
                }
            };
            if is_it && matches!(c.phase, Phase::Open | Phase::Closing | Phase::Orphan) {
                c.probes.refused += 1;
                broken.push(index);
            }
        }
        for index in broken {
            self.mark(index);
        }
    }
}
