//! One connection: its socket, the operations posted on it, and the events reported about it.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use smoltcp::socket::tcp::State;

use super::key::Key;
use super::smoltcp_gaps::socket::{is_synchronized, peer_has_closed, TcpSocket};
use super::TcpConfig;
use crate::datapath::{ReceivePath, RecvWork, SendPath};
use crate::transport::connections::Connection;
use crate::transport::TransportEvent;
use crate::types::{ConnId, ListenerId, NicTime};

/// A peer is not given up before it was sent so much without an answer: smoltcp backs off to a minute,
/// and a bad cable may lose a few in a row (RFC 9293 §3.8.3 counts attempts, too).
const ATTEMPTS_MIN: u32 = 5;

/// Phase of a connection as reported to the layer above. smoltcp keeps TCP's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the neighbour's hardware address.
    Resolving,
    /// The SYN is out.
    Connecting,
    /// A SYN came in for this listener; the handshake is not over.
    Incoming(ListenerId),
    /// Reported as established.
    Open,
    /// Reported as reset; the id stays until it is closed.
    Dead,
    /// `close` was called and not yet answered.
    Closing,
    /// The id was given back; TCP still has segments to send or TIME-WAIT to keep (FIN, RST).
    Orphan,
}

/// Timers of a connection: when to poll it without a segment, and since when its peer owes an answer.
#[derive(Debug, Default)]
pub(super) struct Timing {
    /// A segment came in since the last service.
    pub(super) heard: bool,
    /// Since when the peer owes an answer.
    pub(super) unanswered: Option<NicTime>,
    /// How often something was sent since then.
    pub(super) attempts: u32,
    /// End of an attempt to connect, or of an orphan.
    pub(super) deadline: Option<NicTime>,
    /// When TCP wants to be called next.
    pub(super) timer: Option<NicTime>,
}

impl Timing {
    /// The peer has answered, or is not waited for any more.
    pub(super) fn answered(&mut self) {
        (self.unanswered, self.attempts) = (None, 0);
    }

    /// Something was sent that must be answered.
    pub(super) fn asked(&mut self, now: NicTime) {
        self.unanswered = self.unanswered.or(Some(now));
        self.attempts += 1;
    }

    /// When the peer counts as gone.
    pub(super) fn gone_at(&self, config: &TcpConfig) -> Option<NicTime> {
        let since = self.unanswered.filter(|_| self.attempts >= ATTEMPTS_MIN)?;
        Some(since.plus(config.user_timeout?))
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) key: Key,
    pub(super) phase: Phase,
    pub(super) tcp: TcpSocket,
    /// The hop towards the peer; `None` before the first step.
    pub(super) hop: Option<usize>,
    pub(super) sends: SendPath,
    pub(super) recvs: ReceivePath,
    /// A FIN is to follow the sends.
    pub(super) fin_wanted: bool,
    /// The socket has been closed for sending.
    pub(super) fin_given: bool,
    /// `PeerClosed` was reported.
    pub(super) peer_closed: bool,
    /// TCP state at the end of the last service.
    pub(super) last_state: State,
    /// The last service ended before all that could be moved was moved.
    pub(super) paused: bool,
    pub(super) timing: Timing,
}

impl Connection for Conn {
    type Key = Key;

    fn id(&self) -> ConnId {
        self.id
    }

    fn key(&self) -> Key {
        self.key
    }

    fn hop(&self) -> Option<usize> {
        self.hop
    }

    fn listener(&self) -> Option<ListenerId> {
        match self.phase {
            Phase::Incoming(listener) => Some(listener),
            _ => None,
        }
    }

    fn is_orphan(&self) -> bool {
        self.phase == Phase::Orphan
    }
}

impl Conn {
    pub(super) fn new(
        id: ConnId,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        phase: Phase,
        config: &TcpConfig,
    ) -> Conn {
        Conn {
            id,
            key: Key::of(peer, local.port()),
            phase,
            tcp: TcpSocket::new(local, peer, config),
            hop: None,
            sends: SendPath::new(id),
            recvs: ReceivePath::new(id),
            fin_wanted: false,
            fin_given: false,
            peer_closed: false,
            last_state: State::Closed,
            paused: false,
            timing: Timing::default(),
        }
    }

    /// Whether a receive that is posted now finds anything: bytes, an end, or its own length of none.
    pub(super) fn has_news_for(&self, work: &RecvWork) -> bool {
        let socket = self.tcp.tcp();
        self.phase != Phase::Open
            || work.buffer.len == 0
            || self.recvs.holds()
            || self.peer_closed
            || socket.recv_queue() > 0
            || !is_synchronized(socket.state())
            || peer_has_closed(socket.state())
    }

    /// Whether a closed connection has ended in order: both sides have sent their last byte, and unless a reset ended it,
    /// both have acknowledged it.
    pub(super) fn ended_in_order(&self) -> bool {
        match self.last_state {
            State::LastAck | State::Closing => !self.tcp.reset,
            State::TimeWait => true,
            _ => false,
        }
    }

    /// Reports that the peer has sent its last byte, once and before receives end for it. Returns whether it was now.
    pub(super) fn note_peers_end(&mut self, events: &mut VecDeque<TransportEvent>) -> bool {
        let state = self.tcp.state();
        let in_order = state == State::Closed && self.ended_in_order();
        if self.peer_closed || !(in_order || peer_has_closed(state)) {
            return false;
        }
        self.peer_closed = true;
        events.push_back(TransportEvent::PeerClosed { conn: self.id });
        true
    }

    /// Whether what TCP sends now must be answered: data, FIN or a keep-alive probe.
    pub(super) fn expects_answer(&self, config: &TcpConfig) -> bool {
        let socket = self.tcp.tcp();
        let fin = matches!(
            socket.state(),
            State::FinWait1 | State::Closing | State::LastAck
        );
        fin || socket.send_queue() > 0 || self.tcp.probes.every(config).is_some()
    }

    /// When this connection must be polled although no segment comes.
    pub(super) fn wake_at(&self, config: &TcpConfig) -> Option<NicTime> {
        let timers = [
            self.timing.timer,
            self.timing.deadline,
            self.timing.gone_at(config),
            self.tcp.restart_at,
            self.tcp.probes.at,
            self.tcp.probes.gone_at(),
        ];
        timers.into_iter().flatten().min()
    }
}
