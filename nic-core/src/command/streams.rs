//! The transports and their connections: their sessions, pending deliveries, and losses.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use crate::network::Network;
use crate::transport::Transport;
use crate::types::{ConnId, ListenerId, NicTime};

/// A connection whose session is closed and which still delivers.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(crate) deadline: NicTime,
}

/// Most losses that are kept to be reported; each is logged.
const LOST_MAX: usize = 1024;

/// A stream whose end the peer has not confirmed, although all bytes were reported as sent to the program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// The transport that carried it.
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

/// See the module text. Connections and listeners are named by their transport's index and their id there.
pub(crate) struct Streams {
    pub(crate) transports: Vec<Box<dyn Transport>>,
    /// What carries their packets.
    pub(crate) network: Network,
    /// Slots of their sessions.
    pub(crate) conns: HashMap<(usize, ConnId), u32>,
    /// Likewise.
    pub(crate) listeners: HashMap<(usize, ListenerId), u32>,
    pub(crate) lingering: HashMap<(usize, ConnId), Lingering>,
    /// Streams that were reported as sent but have not arrived.
    lost: Vec<Undelivered>,
}

impl Streams {
    pub(super) fn new(transports: Vec<Box<dyn Transport>>, network: Network) -> Streams {
        Streams {
            transports,
            network,
            conns: HashMap::new(),
            listeners: HashMap::new(),
            lingering: HashMap::new(),
            lost: Vec::new(),
        }
    }

    /// Whether frames may arrive.
    #[inline]
    pub(super) fn has_ports(&self) -> bool {
        !self.network.ports().is_empty()
    }

    /// Records that a stream ends before the peer has everything. To be called before the transport drops it.
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

    /// The recorded losses, since the NIC was made.
    pub(super) fn take_lost(&mut self) -> Vec<Undelivered> {
        std::mem::take(&mut self.lost)
    }

    /// When a transport, or a connection that still delivers, needs a step.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        let transports = self.transports.iter().filter_map(|t| t.next_timer());
        let lingering = self.lingering.values().map(|l| l.deadline);
        transports
            .chain(lingering)
            .chain(self.network.next_timer())
            .min()
    }
}
