//! The sending half of a connection: sends that have not retired, and what the peer has yet to take.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::stage_room::Stage;
use crate::transport::{SendWork, TransportEvent};
use crate::types::ConnId;

/// Spans of one connection that may be on the way.
pub(super) const SPAN_WINDOW: u64 = 768;

/// A send being emitted, or waiting to be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxSend {
    pub(super) work: SendWork,
    /// Bytes emitted.
    pub(super) emitted: u32,
    /// Spans emitted up to its end; it retires when they are acknowledged.
    pub(super) spans_end: u64,
    /// Whether its bytes were announced by reference.
    pub(super) by_ref: bool,
    /// Our engine's copy that must end before the peer's engine may read them out of exported memory.
    pub(super) behind: Option<u64>,
    /// Whether they go through NIC memory, and how many were read into it.
    pub(super) staged: bool,
    pub(super) started: u32,
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Tx {
    pub(super) sends: VecDeque<TxSend>,
    /// The first send that has not been emitted as a whole.
    pub(super) next_send: usize,
    pub(super) spans_sent: u64,
    pub(super) spans_acked: u64,
    pub(super) inline_sent: u64,
    pub(super) inline_acked: u64,
    /// Room in NIC memory for payloads that the peer cannot reach where they are.
    pub(super) stage: Option<Stage>,
    /// Where bytes that leave lie while an engine sees them; empty without one.
    pub(super) piece: Vec<u8>,
    pub(super) shut: bool,
    pub(super) fin_sent: bool,
}

impl Tx {
    /// Retires the sends whose bytes have been taken, in order.
    #[inline]
    pub(super) fn retire(&mut self, conn: ConnId, events: &mut VecDeque<TransportEvent>) -> bool {
        let mut any = false;
        while self.next_send > 0 {
            let Some(s) = self.sends.front() else { break };
            if s.by_ref && s.spans_end > self.spans_acked {
                break;
            }
            events.push_back(TransportEvent::SendDone {
                conn,
                token: s.work.token,
                status: Status::Ok,
                bytes: s.work.payload.len().into(),
                detail: 0,
            });
            self.sends.pop_front();
            self.next_send -= 1;
            any = true;
        }
        any
    }

    /// Retires all sends with a failure: status and detail.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.retire(conn, events);
        for s in self.sends.drain(..) {
            events.push_back(TransportEvent::SendDone {
                conn,
                token: s.work.token,
                status,
                bytes: if s.by_ref { 0 } else { s.emitted.into() },
                detail,
            });
        }
        self.next_send = 0;
    }

    /// Whether sends that were announced by reference are not acknowledged.
    pub(super) fn has_refs_out(&self) -> bool {
        self.spans_sent > self.spans_acked
    }
}
