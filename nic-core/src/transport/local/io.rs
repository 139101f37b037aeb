//! Context for moving the bytes of a connection: its link, memory, and the transport's events.
//!
//! The stages of both directions share it and its result types.

use std::collections::VecDeque;

use super::link::Link;
use super::rendezvous::ExportInfo;
use super::stage_room::Rooms;
use crate::config::StagingConfig;
use crate::datapath::{Datapath, Sent};
use crate::dma::StageRoom;
use crate::engine::EngineFailed;
use crate::memory::nic_memory::{HOST_BUS, NIC_BUS};
use crate::transport::TransportEvent;

/// How filling receives ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// No bytes or no receives left.
    Done,
    /// The step's budget is used up.
    Budget,
    /// Memory has not taken what was written before.
    Later,
    /// The peer broke the protocol or revoked its buffer, or an engine has failed: the stream ends.
    Broken,
}

/// What receiving needs besides the connection.
pub(super) struct In<'a, 'd> {
    pub(super) link: &'a Link,
    pub(super) data: &'a mut Datapath<'d>,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
    pub(super) budget: &'a mut u64,
    pub(super) moved: bool,
}

/// What emitting needs besides the connection.
pub(super) struct Out<'a, 'd> {
    pub(super) link: &'a mut Link,
    pub(super) data: &'a mut Datapath<'d>,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
    /// The part of our memory that the peer has mapped.
    pub(super) exports: &'a [ExportInfo],
    pub(super) staging: StagingConfig,
    pub(super) rooms: &'a mut Rooms,
    pub(super) moved: bool,
}

impl Out<'_, '_> {
    /// Gives back room in NIC memory.
    pub(super) fn give(&mut self, room: StageRoom) {
        if let Some(dma) = self.data.dma.peers() {
            dma.stage_give(room);
        }
    }
}

/// How far the next packet of the first unsent send got.
pub(super) enum Progress {
    /// It has left.
    On,
    /// There is none.
    Idle,
    /// The peer must answer first: its window is closed, or it takes what was announced.
    Wait,
    /// No room in the ring, or a read is pending.
    Again,
    /// The send has faulted and retired. `true`: some of it had left, so the stream ends.
    Fault(bool),
    /// The engine that changes the stream has failed.
    Failed(EngineFailed),
}

impl From<Sent> for Progress {
    fn from(sent: Sent) -> Progress {
        match sent {
            Sent::Bytes(0) => Progress::Idle,
            Sent::Bytes(_) => Progress::On,
            Sent::Pending => Progress::Again,
            Sent::Fault(done) => Progress::Fault(done > 0),
            Sent::Failed(failed) => Progress::Failed(failed),
        }
    }
}

/// Whether a span lies in the peer's NIC memory, where the peer may wait for the room.
pub(super) fn is_staged(bus: u64) -> bool {
    (NIC_BUS..HOST_BUS).contains(&bus)
}
