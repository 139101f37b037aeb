//! Requests for sessions that have come, and messages to senders that have none.

use std::net::SocketAddr;

use super::conn::Conn;
use crate::network::Link;
use ringbell_net::wire::accl::{End, Kind, Signature, Terms};
use ringbell_net::wire::roce::icrc::Flow;

/// A request for a session.
#[derive(Debug)]
pub(super) struct ControlMessage {
    pub(super) from: Link,
    pub(super) address: SocketAddr,
    pub(super) signature: Signature,
    pub(super) ports: (u16, u16),
    pub(super) terms: Terms,
}

/// A message that is sent once, for no session of ours.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: Place,
    pub(super) signature: Signature,
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// To the peer of a session, by its hop.
    Hop(usize, Flow),
    /// To the sender of a packet.
    Sender(Link, SocketAddr),
}

impl Answer {
    /// Tells the peer of a session that it ends, and which messages were missing if that is why.
    /// `None`: the peer knows nothing of it.
    pub(super) fn disconnect(c: &Conn) -> Option<Answer> {
        let hop = c.life.hop.filter(|_| c.far.end != End::default())?;
        Some(Answer {
            to: Place::Hop(hop, c.far.flow),
            signature: c.signed(0, Kind::Reset(c.gap())),
        })
    }
}
