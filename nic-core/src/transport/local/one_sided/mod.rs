//! One-sided operations of a connection: requests to the peer's NIC, and service of its requests.
//!
//! The target's NIC checks key, domain, right and bounds of every line, and copies a put straight
//! out of the initiator's memory ([`responder`]). The initiator's NIC copies a get out of the
//! target's memory, which the target keeps for it meanwhile ([`requester`]). Short puts and gets
//! travel inside lines. Bytes that the other side cannot map go through NIC memory ([`piece`]),
//! which is a second copy.

pub(super) mod line;
mod piece;
mod requester;
mod responder;

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::io::{Fill, In, Out};
use super::link::Link;
use crate::datapath::Datapath;
use crate::dma::DmaAccess;
use crate::transport::TransportEvent;
use crate::types::ConnId;
use line::OneSidedPacket;
pub(super) use piece::{Broken, Held};
use requester::Requester;
use responder::Responder;

/// Both halves of a connection. See the module text.
#[derive(Debug, Default)]
pub(super) struct OneSided {
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// What ended operations have left: regions to release, rooms to free.
    pub(super) left: Vec<Held>,
}

impl OneSided {
    /// Whether there is nothing to do without another packet or call.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.requester.is_idle() && self.responder.is_idle()
    }

    /// Whether the peer may be reading memory of ours.
    pub(super) fn has_refs_out(&self) -> bool {
        self.requester.has_refs_out() || self.responder.has_refs_out()
    }

    /// Retires the requests of this side.
    pub(super) fn fail(
        &mut self,
        conn: ConnId,
        end: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.requester.end(conn, end, events, &mut self.left);
    }

    /// Retires the requests of this side, and drops those of the peer.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        end: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.fail(conn, end, events);
        self.responder.end(&mut self.left);
    }

    /// Takes a packet of the peer. `false`: it breaks the protocol.
    pub(super) fn receive(
        &mut self,
        conn: ConnId,
        packet: OneSidedPacket,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        match packet {
            OneSidedPacket::Put { .. }
            | OneSidedPacket::Get { .. }
            | OneSidedPacket::Atomic { .. } => self.responder.request(packet),
            OneSidedPacket::Taken { spans } => self.responder.taken(spans, &mut self.left),
            OneSidedPacket::Answer { .. } => {
                self.requester.answer(conn, &packet, events, &mut self.left)
            }
            OneSidedPacket::Data { .. } | OneSidedPacket::Grant { .. } => {
                self.requester.bytes(packet)
            }
        }
    }
}

/// Takes a line that [`is_short`](line::is_short). A request is executed and answered at once,
/// unless others wait before it. `Some(false)`: the connection needs a step; `None`: the peer
/// breaks the protocol.
pub(super) fn take_short(
    (id, peer): (ConnId, u32),
    o: &mut OneSided,
    words: &[u64; 8],
    link: &mut Link,
    data: &mut Datapath<'_>,
    events: &mut VecDeque<TransportEvent>,
) -> Option<bool> {
    let is_first = o.responder.is_idle();
    if !o.receive(id, OneSidedPacket::decode(words)?, events) {
        return None;
    }
    if is_first && !o.responder.is_idle() {
        let mut io = In {
            link,
            data,
            events,
            // It has no bytes to copy out of the peer's memory.
            budget: &mut 0,
            moved: true,
        };
        responder::serve(peer, &mut o.responder, &mut io);
        if o.responder.may_tell(data.dma) {
            o.responder.tell(peer, link);
        }
    }
    let rest = o.requester.has_unsent() || !o.responder.is_idle() || !o.left.is_empty();
    Some(!rest)
}

/// Moves bytes into memory of ours: requests of the peer, and bytes that this side has asked for.
/// `peer`: its id of the connection.
pub(super) fn serve(id: ConnId, peer: u32, o: &mut OneSided, io: &mut In<'_, '_>) -> Fill {
    match requester::pull(id, peer, &mut o.requester, io) {
        Fill::Done => responder::serve(peer, &mut o.responder, io),
        other => other,
    }
}

/// Sends answers and requests, as far as there is room. `true`: to be called again.
pub(super) fn pump(
    id: ConnId,
    peer: u32,
    o: &mut OneSided,
    out: &mut Out<'_, '_>,
) -> Result<bool, Broken> {
    let answers_left = responder::pump(peer, (&mut o.responder, &mut o.left), out)?;
    Ok(requester::pump(id, peer, (&mut o.requester, &mut o.left), out)? || answers_left)
}

/// Releases what operations have left.
pub(super) fn release(left: &mut Vec<Held>, dma: &mut dyn DmaAccess) {
    for held in left.drain(..) {
        match held {
            Held::Region(region) => dma.release(region),
            Held::Room(room) => {
                if let Some(dma) = dma.peers() {
                    dma.stage_give(room);
                }
            }
        }
    }
}
