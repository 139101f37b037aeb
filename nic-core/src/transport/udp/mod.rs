//! UDP: streams over plain datagrams, as ACCL has them, without retransmission.
//!
//! ```text
//! network (ports, ARP) ─▶ serve (session, tag, sequence number) ─▶ conn ─▶ posted receives ─▶ memory
//!                              ▲                                            │ ring of receive buffers
//!                              └── messages ◀── posted sends ◀── memory ◀───┘
//! ```
//!
//! A message is one packet with ACCL's signature ([`wire::accl`](ringbell_net::wire::accl)). For
//! networks that lose nothing: a link, a lossless fabric, sockets of one host. Nothing is sent
//! twice but requests for sessions.
//!
//! **Loss.** Messages are numbered. One that is lost or overtaken leaves a gap, and the session
//! ends at both ends: operations retire with `CONNECTION_RESET` and the gap as detail
//! (`expected << 32 | got`), and a warning names peer and gap. A sender that hears nothing asks
//! after 10 ms with the number of its next message, so that a lost last message leaves a gap, too.
//! A copy of an earlier message is dropped. A CRC covers each message, so a damaged one is as if
//! lost.
//!
//! **Credits.** As in ACCL, a message that comes before its receive waits in a receive buffer. The
//! receiver says how many messages and bytes it takes, and its answers carry what it has got and
//! given to its program. ACCL has no credits over UDP, and loses what finds no buffer. A socket of
//! the host is shared: its buffer holds the messages of four peers that all send at once.
//!
//! **Sessions.** A request, an answer, and the first message of the requester. ACCL has none: its
//! host gives each rank a table of the others.
//!
//! **Unauthenticated senders.** A message must come from the peer's address and carry the session's
//! number and its tag, which was drawn at random. One that names no session is answered with a
//! reset to its sender, which is no longer than it. A request costs an entry of the backlog until
//! its deadline.
//!
//! **Copies.** One of ours at either end, beside the kernel's: a send is copied into its messages
//! and retires; arriving bytes go from the packet to the posted receive, or through the ring.
//!
//! **Limits.** IPv4, and NICs that the port names; 65,536 sessions, no one-sided operations, no
//! congestion control.

mod answer;
mod config;
mod conn;
mod requests;
mod serve;

use std::collections::VecDeque;

use self::answer::{Answer, ControlMessage};
use self::conn::Conn;
use super::sessions::Sessions;
use crate::network::{Network, Protocol};
use ringbell_net::wire::accl::{End, Gap};

pub use self::config::{UdpConfig, UdpConfigError};

/// Most sessions: what ACCL's `destination` can tell apart.
pub const SESSIONS_MAX: usize = 1 << 16;
/// Freed sessions whose gap is kept for a peer that has not got the reset.
const GAPS_KEPT: usize = 32;

/// What a transport counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpCounters {
    /// Messages that were malformed or had a wrong CRC.
    pub invalid: u64,
    /// Messages of no session, or from an address that is not its peer's.
    pub foreign: u64,
    /// Requests for sessions dropped because a backlog was full.
    pub overflowed: u64,
    /// Requests for sessions that were refused.
    pub refused: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Sessions that have ended because a message was missing.
    pub gaps: u64,
}

/// The UDP transport of a NIC. See the module text.
pub struct UdpTransport {
    config: UdpConfig,
    sessions: Sessions<Conn>,
    /// Requests that came in since the last step, and answers to messages of no session.
    control: VecDeque<ControlMessage>,
    answers: VecDeque<Answer>,
    /// Our ends of sessions that a gap has ended and that are freed, oldest first.
    gaps: VecDeque<(End, Gap)>,
    counters: UdpCounters,
}

impl std::fmt::Debug for UdpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpTransport")
            .field("ip", &self.sessions.ip)
            .field("connections", &self.connections())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl UdpTransport {
    /// A transport over a network: the one with which it is stepped. Its ports of datagrams carry
    /// [`Protocol::Udp`](Network::carry_by_datagrams).
    ///
    /// # Errors
    /// [`UdpConfigError`] names the setting that cannot work.
    pub fn new(net: &Network, config: UdpConfig) -> Result<UdpTransport, UdpConfigError> {
        config.check()?;
        let most = config.connections.min(SESSIONS_MAX);
        Ok(UdpTransport {
            sessions: Sessions::new(net, Protocol::Udp, (most, 0), config.seed),
            control: VecDeque::new(),
            answers: VecDeque::new(),
            gaps: VecDeque::new(),
            counters: UdpCounters::default(),
            config,
        })
    }

    /// What was counted since the transport was made.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Sessions in use, those that are ending included.
    pub fn connections(&self) -> usize {
        self.sessions.table.len()
    }

    /// A tag and a first sequence number for a new session.
    fn draw(&mut self) -> (u32, u32) {
        let drawn = self.sessions.numbers.draw();
        let first = self.config.first.unwrap_or((drawn >> 32) as u32);
        (drawn as u32, first)
    }

    /// The messages whose loss has ended a session that is freed, by our end of it.
    fn gap_of_freed(&self, end: End) -> Option<Gap> {
        let kept = self.gaps.iter().rev().find(|(of, _)| *of == end);
        kept.map(|(_, gap)| *gap)
    }
}
