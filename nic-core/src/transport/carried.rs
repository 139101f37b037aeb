//! The connection of a carrier: what a protocol says of one, so that all are served alike.

use std::collections::VecDeque;

use ringbell_nic_abi::{InlineSend, PdId, Status};

use super::connections::Connection;
use super::life::Ask;
use super::ring::Waiting;
use super::{RecvWork, RemoteWork, Target, TransportEvent};
use crate::datapath::{Datapath, Filled, ReceivePath};
use crate::engine::EngineFailed;
use crate::network::{Datagrams, Link, Network};
use crate::types::{NicTime, WorkToken};
use ringbell_net::port::{Batch, Places};
use ringbell_net::random::Numbers;
use ringbell_net::wire::roce::icrc::Flow;

/// How packets of a connection travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addressed {
    pub(super) flow: Flow,
    pub(super) how: Datagrams,
    /// Bytes of the longest packet behind the UDP header.
    pub(super) longest: usize,
}

/// A connection of a [`Carrier`](super::carrier::Carrier).
pub(super) trait Carried: Connection {
    /// By what the peer names its end, beside its address.
    type End: Copy + Ord;
    /// What is sent until it is answered.
    type Message: Copy;

    /// The peer's end.
    fn end_of_peer(&self) -> Self::End;
    /// What is asked of the peer.
    fn ask(&mut self) -> &mut Option<Ask<Self::Message>>;
    /// Sends a message that is asked. `false`: there is no room.
    fn say(&self, message: &Self::Message, now: NicTime, to: Link, net: &mut Network) -> bool;

    /// How its packets travel; `None` while it sends none.
    fn addressed(&self) -> Option<Addressed>;
    /// Whether packets were sent again, and the peer has acknowledged none since.
    fn is_repeating(&self) -> bool {
        false
    }
    /// Looks for what is to be sent, before packets are made, `most` of them at once.
    fn prepare(&mut self, most: usize, data: &mut Datapath<'_>);
    /// Adds the next packet to a batch. `false`: there is none. The batch may refer to memory of
    /// the connection, so this frees none and writes to none that an earlier packet has.
    ///
    /// # Errors
    /// The engine on the path has failed.
    fn append(
        &mut self,
        now: NicTime,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed>;

    /// The bytes that wait for receives, and the receives.
    fn receiving(&mut self) -> (Waiting<'_>, &mut ReceivePath);
    /// The engine that has failed on the path of arriving bytes.
    fn failed(&mut self) -> &mut Option<EngineFailed>;
    /// Whether so much was received that the peer must hear of it.
    fn must_announce(&self) -> bool;

    /// Says where the payloads of the next packets go, when they are whole, in order, and long
    /// enough.
    fn expect(&self, _places: &mut Places, _data: &mut Datapath<'_>) {}

    /// Sends a small payload at once. `false`: nothing happened.
    fn send_now(&mut self, _payload: &InlineSend) -> bool {
        false
    }
    /// The bytes of the send that is posted next go to a receive of the peer.
    fn write_to(&mut self, _send: WorkToken, _to: Target) {}
    /// Posts a receive that the peer fills by a message of its own. Returns its key.
    fn expose(&mut self, _work: &RecvWork, _in_use: bool, _numbers: &mut Numbers) -> Option<u32> {
        None
    }
    /// Queues a one-sided operation.
    fn post_remote(&mut self, _work: RemoteWork) {}
    /// Lets the peer's one-sided operations reach regions of a domain.
    fn grant(&mut self, _pd: PdId) {}

    /// Cancels a posted operation; see [`Transport::cancel`](super::Transport::cancel).
    fn cancel(&mut self, token: WorkToken, events: &mut VecDeque<TransportEvent>) -> Option<u64>;
    /// Bytes of sends that have retired and that the peer has not confirmed to have.
    fn undelivered(&self) -> u64;
    /// Why it was reset: the detail of operations that come after it.
    fn reset_detail(&self) -> u64 {
        0
    }

    /// Why it takes no sends, if so.
    fn refuses_sends(&self) -> Option<(Status, u64)>;
    /// Why it takes no receives, if so.
    fn refuses_receives(&self) -> Option<(Status, u64)>;
    /// The end of our direction follows the posted sends.
    fn end_stream(&mut self);
    /// The program receives no more: its receives retire.
    fn stop_receiving(&mut self, events: &mut VecDeque<TransportEvent>);
    /// Whether the peer has ended the connection.
    fn is_over(&self) -> bool;
    /// Retires every operation with this status.
    fn fail_all(&mut self, status: (Status, u64), events: &mut VecDeque<TransportEvent>);

    /// When it must be served although no packet comes.
    fn wake_at(&self) -> Option<NicTime>;
    /// Whether something is left that can be done at once.
    fn has_more(&mut self) -> bool;
    /// Bytes of memory that it keeps for more than is under way.
    fn spare(&self) -> usize {
        0
    }
    /// Gives them back: nothing has moved for a while.
    fn shrink(&mut self) {}

    /// Fills posted receives from what waits for them. Returns whether anything moved.
    fn pump_recvs(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let life = self.life();
        if life.recvs.is_empty() && !life.peer_closed {
            return false;
        }
        let (mut waiting, recvs) = self.receiving();
        let (moved, end) = recvs.fill(&mut waiting, data, events);
        if let Filled::Failed(failed) = end {
            *self.failed() = Some(failed);
        }
        moved
    }
}
