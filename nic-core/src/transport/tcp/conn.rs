//! One connection: its socket, the operations posted on it, and the events reported about it.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use smoltcp::socket::tcp::State;

use super::key::Key;
use super::smoltcp_gaps::socket::{is_synchronized, peer_has_closed, TcpSocket};
use super::TcpConfig;
use crate::datapath::RecvWork;
use crate::transport::connections::Connection;
use crate::transport::life::{Life, Phase};
use crate::transport::TransportEvent;
use crate::types::{ConnId, NicTime};

/// A peer is not given up before it was sent so much without an answer: smoltcp backs off to a
/// minute, and a bad cable may lose a few in a row (RFC 9293 §3.8.3 counts attempts, too).
const ATTEMPTS_MIN: u32 = 5;

/// Timers of a connection: when to poll it without a segment, and since when its peer owes an
/// answer.
#[derive(Debug, Default)]
pub(super) struct Timing {
    /// Since when the peer owes an answer.
    pub(super) unanswered: Option<NicTime>,
    /// How often something was sent since then.
    pub(super) attempts: u32,
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

/// One connection. smoltcp keeps TCP's own state.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) life: Life,
    pub(super) key: Key,
    pub(super) tcp: TcpSocket,
    /// A FIN is to follow the sends.
    pub(super) fin_wanted: bool,
    /// The socket has been closed for sending.
    pub(super) fin_given: bool,
    /// TCP state at the end of the last service.
    pub(super) last_state: State,
    pub(super) timing: Timing,
}

impl Connection for Conn {
    type Key = Key;

    fn key(&self) -> Key {
        self.key
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Life {
        &mut self.life
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
            life: Life::new(id, (local, peer), phase),
            key: Key::of(peer, local.port()),
            tcp: TcpSocket::new(local, peer, config),
            fin_wanted: false,
            fin_given: false,
            last_state: State::Closed,
            timing: Timing::default(),
        }
    }

    /// Whether a receive that is posted now finds anything: bytes, an end, or its own length of
    /// none.
    pub(super) fn has_news_for(&self, work: &RecvWork) -> bool {
        let socket = self.tcp.tcp();
        self.life.phase != Phase::Open
            || work.buffer.len == 0
            || self.life.recvs.holds()
            || self.life.peer_closed
            || socket.recv_queue() > 0
            || !is_synchronized(socket.state())
            || peer_has_closed(socket.state())
    }

    /// Whether a closed connection has ended in order: both sides have sent their last byte, and
    /// unless a reset ended it, both have acknowledged it.
    pub(super) fn ended_in_order(&self) -> bool {
        match self.last_state {
            State::LastAck | State::Closing => !self.tcp.reset,
            State::TimeWait => true,
            _ => false,
        }
    }

    /// Reports that the peer has sent its last byte, once and before receives end for it. Returns
    /// whether it was now.
    pub(super) fn note_peers_end(&mut self, events: &mut VecDeque<TransportEvent>) -> bool {
        let state = self.tcp.state();
        let in_order = state == State::Closed && self.ended_in_order();
        if self.life.peer_closed || !(in_order || peer_has_closed(state)) {
            return false;
        }
        self.life.peer_closed = true;
        events.push_back(TransportEvent::PeerClosed { conn: self.life.id });
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
        NicTime::earliest([
            self.timing.timer,
            self.life.deadline,
            self.timing.gone_at(config),
            self.tcp.recovery.restart_at,
            self.tcp.look_at(),
            self.tcp.probes.at,
            self.tcp.probes.gone_at(),
        ])
    }
}
