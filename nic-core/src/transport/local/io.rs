//! Context for moving the bytes of a connection: its link, memory, and the transport's events.
//!
//! The stages of both directions share it and its result types.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::conn::Conn;
use super::link::Link;
use super::rendezvous::ExportInfo;
use super::rx::RxRecv;
use super::stage_room::Rooms;
use crate::config::StagingConfig;
use crate::copy;
use crate::dma::DmaAccess;
use crate::transport::TransportEvent;

/// Receives below this size stay in the cache, however many are posted: their waiter reads them soon.
const STREAM_FROM: u32 = 256 << 10;

/// How filling receives ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// No bytes or no receives left.
    Done,
    /// The step's budget is used up.
    Budget,
    /// Bytes in memory of the peer that is not mapped here come next.
    Unmapped,
    /// The peer broke the protocol or revoked its buffer, or an engine has failed: the stream ends.
    Broken,
}

/// What receiving needs besides the connection.
pub(super) struct In<'a> {
    pub(super) link: &'a Link,
    pub(super) dma: &'a mut dyn DmaAccess,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
    pub(super) budget: &'a mut u64,
    pub(super) moved: bool,
}

/// What emitting needs besides the connection.
pub(super) struct Out<'a> {
    pub(super) link: &'a mut Link,
    pub(super) dma: &'a mut dyn DmaAccess,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
    /// The part of our memory that the peer has mapped.
    pub(super) exports: &'a [ExportInfo],
    pub(super) staging: StagingConfig,
    pub(super) rooms: &'a mut Rooms,
    pub(super) moved: bool,
}

/// How far a stage got with the first send.
pub(super) enum Progress {
    /// The send has left.
    Whole,
    /// The peer's window is closed.
    Wait,
    /// No room in the ring, or a read is pending.
    Again,
    /// The engine that changes the stream has failed.
    Failed,
}

#[inline]
pub(super) fn recv_done(c: &Conn, r: &RxRecv, status: Status, detail: u64) -> TransportEvent {
    TransportEvent::RecvDone {
        conn: c.id,
        token: r.work.token,
        status,
        bytes: r.done.into(),
        detail,
    }
}

pub(super) fn fail_front(c: &mut Conn, fault: Fault, events: &mut VecDeque<TransportEvent>) {
    if let Some(r) = c.rx.recvs.pop_front() {
        let (status, detail) = fault.status();
        events.push_back(recv_done(c, &r, status, detail));
    }
}

/// Whether to write the first receive around the cache: the posted receives show how much is written
/// before its bytes are likely to be read.
#[inline]
pub(super) fn wants_streaming(c: &Conn, len: u32) -> bool {
    if len < STREAM_FROM {
        return false;
    }
    let posted = c.rx.recvs.iter().map(|r| u64::from(r.work.buffer.len));
    posted.sum::<u64>() >= copy::streaming_bytes()
}
