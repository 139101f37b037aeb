//! A listening port: its backlog of connections that come in, and cookies when half-open handshakes fill it.
//!
//! ```text
//! SYN ──▶ backlog has room? ──▶ a socket in SYN-RECEIVED ──(ACK)──▶ Incoming
//!               │ no, but half-open handshakes fill it
//!               └──▶ a SYN|ACK with a cookie, and nothing kept ──(ACK with the cookie)──▶ socket, Incoming
//! ```
//!
//! So a continuous flood of SYNs keeps no client out. A backlog full of connections that the program has not
//! accepted differs: SYNs then get no answer, and the peer tries again (as Linux does).

use crate::types::{ListenerId, NicTime};

/// A port that takes connections.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) backlog: usize,
    /// Handshakes under way.
    pub(super) half_open: usize,
    /// Connections whose `Incoming` was not polled.
    pub(super) ready: usize,
    /// Until when a cookie may come back.
    pub(super) cookies_until: Option<NicTime>,
}

impl Listener {
    pub(super) fn new(id: ListenerId, backlog: usize) -> Listener {
        Listener {
            id,
            backlog: backlog.max(1),
            half_open: 0,
            ready: 0,
            cookies_until: None,
        }
    }

    pub(super) fn expects_cookies(&self, now: NicTime) -> bool {
        self.cookies_until.is_some_and(|t| now <= t)
    }
}
