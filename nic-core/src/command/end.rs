//! The end of a NIC: what is abandoned at once, what is still delivered, and what was lost.

use std::collections::HashSet;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;

use super::Core;
use crate::session::State;
use crate::types::ConnId;

/// Most losses that are kept to be told; each is logged.
const LOST_MAX: usize = 1024;

/// A stream whose end the peer has not confirmed, although the program was told that all had been sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// What carried it.
    pub transport: &'static str,
    /// Own address.
    pub local: SocketAddrV4,
    /// The peer's address.
    pub peer: SocketAddrV4,
    /// Bytes that were reported as sent and that the peer has not confirmed. 0: only the end of the stream is missing.
    pub bytes: u64,
    /// Why they were given up.
    pub why: &'static str,
}

impl Core {
    /// Notes that a stream ends before the peer has everything. To be called before the transport forgets it.
    pub(super) fn note_loss(&mut self, t: usize, conn: ConnId, why: &'static str) {
        let transport = &self.transports[t];
        let Some((local, peer)) = transport.endpoints(conn) else {
            return;
        };
        let (name, bytes) = (transport.name(), transport.undelivered(conn));
        tracing::warn!(transport = name, %local, %peer, bytes, why, "a stream has ended before the peer had everything");
        if self.lost.len() < LOST_MAX {
            self.lost.push(Undelivered {
                transport: name,
                local,
                peer,
                bytes,
                why,
            });
        }
    }

    /// Begins the end: what waits retires with `SHUTTING_DOWN`, sessions that are open are reset. Those that were closed or
    /// half-closed go on to be delivered.
    pub(crate) fn begin_end(&mut self) {
        self.stopping = true;
        if self.collectives.exists() {
            self.collectives(|c, io| c.abort_all(io, Status::ShuttingDown, true));
        }
        let mut keep: HashSet<_> = self.lingering.keys().copied().collect();
        for slot in self.sessions.open_slots() {
            if let Some(State::Stream(s)) = self.sessions.at(slot).map(|s| &s.state) {
                if s.shut && !s.reset {
                    keep.insert((s.transport, s.conn));
                }
            }
        }
        self.abort_streams(Status::ShuttingDown, &keep);
    }

    /// Whether closed sessions are still being delivered.
    pub(crate) fn is_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// Ends the rest. What was reported as sent and has not arrived, since the NIC was made.
    pub(crate) fn finish_end(&mut self) -> Vec<Undelivered> {
        self.stopping = true;
        self.abort_all(Status::ShuttingDown);
        std::mem::take(&mut self.lost)
    }
}
