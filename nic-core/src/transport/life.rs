//! The life of a connection of a transport over packets, as far as all protocols have it in common.
//!
//! ```text
//! Resolving ─▶ Requesting ─▶ Open ─▶ Closing ─▶ Orphan ─▶ (Ending) ─▶ freed
//!                Incoming ───▲  └──▶ Dead
//! ```

use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::rest::Rest;
use crate::datapath::{ReceivePath, SendPath};
use crate::types::{ConnId, ListenerId, NicTime};

/// Phase of a connection as reported to the layer above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the neighbour's hardware address.
    Resolving,
    /// The request is out.
    Requesting,
    /// A request came in for this listener; the answer is out.
    Incoming(ListenerId),
    /// Reported as established.
    Open,
    /// Reported as reset; the id stays until it is closed.
    Dead,
    /// `close` was called and not yet answered.
    Closing,
    /// The id was given back; the peer has not ended its direction.
    Orphan,
    /// The id was given back, and the peer was told that the connection ends.
    Ending,
}

impl Phase {
    /// Whether the peer may be asked and answered.
    pub(super) fn is_up(self) -> bool {
        matches!(self, Phase::Open | Phase::Closing | Phase::Orphan)
    }

    /// Whether the attempt to connect is not over.
    pub(super) fn is_connecting(self) -> bool {
        matches!(self, Phase::Resolving | Phase::Requesting)
    }
}

/// What every connection has.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) id: ConnId,
    pub(super) phase: Phase,
    pub(super) local: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    /// Way to the peer.
    pub(super) hop: Option<usize>,
    /// End of an attempt to connect, or of an orphan.
    pub(super) deadline: Option<NicTime>,
    pub(super) sends: SendPath,
    pub(super) recvs: ReceivePath,
    /// Waits to be served.
    pub(super) queued: bool,
    /// A packet of the peer has come since the last service.
    pub(super) has_received: bool,
    /// `PeerClosed` was reported.
    pub(super) peer_closed: bool,
    /// The last service left something that can be moved: memory has not answered, or its share was
    /// used up.
    pub(super) pending: bool,
    /// The peer's end is to be noticed soon, although nothing is asked of it.
    pub(super) watched: bool,
    /// How often the peer's host has refused a packet since the peer last answered.
    pub(super) refused: u32,
    /// No way leads to the peer any more.
    pub(super) unreachable: bool,
    pub(super) rest: Rest,
}

impl Life {
    /// A connection between two addresses, local and peer.
    pub(super) fn new(
        id: ConnId,
        (local, peer): (SocketAddrV4, SocketAddrV4),
        phase: Phase,
    ) -> Life {
        Life {
            id,
            phase,
            local,
            peer,
            hop: None,
            deadline: None,
            sends: SendPath::new(id),
            recvs: ReceivePath::new(id),
            queued: false,
            has_received: false,
            peer_closed: false,
            pending: false,
            watched: false,
            refused: 0,
            unreachable: false,
            rest: Rest::default(),
        }
    }

    /// How what is posted ends after the connection has ended; a reset has this detail.
    pub(super) fn end(&self, detail: u64) -> (Status, u64) {
        match self.unreachable {
            true => {
                let ip = u64::from(u32::from(*self.peer.ip()));
                (
                    Status::HostUnreachable,
                    ip << 16 | u64::from(self.peer.port()),
                )
            }
            false => (Status::ConnectionReset, detail),
        }
    }

    /// The listener whose handshake is not over.
    pub(super) fn listener(&self) -> Option<ListenerId> {
        match self.phase {
            Phase::Incoming(listener) => Some(listener),
            _ => None,
        }
    }

    /// Whether the id was given back.
    pub(super) fn is_orphan(&self) -> bool {
        matches!(self.phase, Phase::Orphan | Phase::Ending)
    }
}

/// Time to the second try of a message; it doubles.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Tries to tell a peer that a connection ends.
const TRIES: u32 = 5;

/// A message that is sent until it is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<M> {
    pub(super) message: M,
    pub(super) next: NicTime,
    tries: u32,
}

impl<M> Ask<M> {
    /// A message to be sent at once.
    pub(super) fn new(message: M, now: NicTime) -> Ask<M> {
        Ask {
            message,
            next: now,
            tries: 0,
        }
    }

    /// It was sent, and is not answered.
    pub(super) fn was_sent(&self) -> bool {
        self.tries > 0
    }

    /// It was sent often enough without an answer.
    pub(super) fn has_failed(&self, now: NicTime) -> bool {
        self.tries >= TRIES && self.next <= now
    }

    /// It was sent.
    pub(super) fn tried(&mut self, now: NicTime) {
        let wait = ASK_AGAIN.saturating_mul(1 << self.tries.min(8));
        self.tries += 1;
        self.next = now.plus(wait.min(ASK_AGAIN_MAX));
    }
}
