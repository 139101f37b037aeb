//! The sending half of a connection: what the peer has yet to take.

use super::stage_room::Stage;
use crate::types::WorkToken;

/// Spans of one connection that may be on the way.
pub(super) const SPAN_WINDOW: u64 = 768;

/// How the first unsent send leaves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unsent {
    /// Which send.
    pub(super) token: Option<WorkToken>,
    /// Whether its bytes are announced by reference.
    pub(super) by_ref: bool,
    /// Whether they go through NIC memory, and how many were read into it.
    pub(super) staged: bool,
    pub(super) started: u32,
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Tx {
    pub(super) unsent: Unsent,
    pub(super) spans_sent: u64,
    pub(super) spans_acked: u64,
    pub(super) inline_sent: u64,
    pub(super) inline_acked: u64,
    /// Room in NIC memory for payloads that the peer cannot reach where they are.
    pub(super) stage: Option<Stage>,
    pub(super) shut: bool,
    pub(super) fin_sent: bool,
}

impl Tx {
    /// Whether references to a payload are not acknowledged.
    pub(super) fn has_refs_out(&self) -> bool {
        self.spans_sent > self.spans_acked
    }

    /// The first unsent send has ended, or leaves in another way: bytes read ahead are given up.
    pub(super) fn drop_unsent(&mut self) {
        self.unsent.started = 0;
        if let Some(stage) = &mut self.stage {
            stage.drop_unsent();
        }
    }
}
