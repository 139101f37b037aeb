//! Sessions and the transports below them: connections, listeners, pending deliveries, and losses.

use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::{Flags, Opcode, PdId, SessionId, Status};
use rustc_hash::{FxHashMap, FxHashSet};

use super::env::Env;
use super::memory::Memory;
use super::refusal::Refusal;
use crate::engine::{Direction, EngineFailed, Engines};
use crate::memory::Sharer;
use crate::network::{Network, Protocol, PROTOCOLS};
use crate::outstanding::{Operation, Retired};
use crate::session::{slot_of, Sessions, State, Stream};
use crate::transport::{deliver, Close, ConnState, Takers, Transport};
use crate::types::{ConnId, ListenerId, NicTime, WorkToken};

/// Most losses that are kept to be reported; each is logged.
const LOST_MAX: usize = 1024;

/// A stream whose end the peer has not confirmed, although all bytes were reported as sent to the
/// program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// The transport that carried it.
    pub transport: &'static str,
    /// Own address.
    pub local: SocketAddrV4,
    /// The peer's address.
    pub peer: SocketAddrV4,
    /// Bytes that were reported as sent and that the peer has not confirmed. 0: only the end of the
    /// stream is missing.
    pub bytes: u64,
    /// Why they were given up.
    pub why: &'static str,
}

/// A connection: the index of its transport, and its id there.
pub(crate) type Conn = (usize, ConnId);

/// See the module text.
pub(crate) struct Streams {
    pub(crate) sessions: Sessions,
    pub(crate) transports: Vec<Box<dyn Transport>>,
    /// What carries their packets.
    pub(crate) network: Network,
    /// Payloads have left at once, and peers that sleep are to be woken.
    pub(super) is_unflushed: bool,
    /// Slots of the sessions of connections.
    pub(super) conns: FxHashMap<Conn, u32>,
    /// Likewise of listeners.
    pub(super) listeners: FxHashMap<(usize, ListenerId), u32>,
    /// Connections whose sessions are closed and which still deliver: until when.
    pub(super) lingering: FxHashMap<Conn, NicTime>,
    /// How long they may.
    pub(super) linger: Duration,
    /// Streams that were reported as sent but have not arrived.
    lost: Vec<Undelivered>,
    /// Operations that have ended and are to be retired.
    pub(super) ended: Vec<Retired>,
}

impl Streams {
    pub(super) fn new(
        transports: Vec<Box<dyn Transport>>,
        network: Network,
        max_sessions: usize,
        linger: Duration,
    ) -> Streams {
        Streams {
            sessions: Sessions::new(max_sessions),
            transports,
            network,
            is_unflushed: false,
            conns: FxHashMap::default(),
            listeners: FxHashMap::default(),
            lingering: FxHashMap::default(),
            linger,
            lost: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// An operation has ended.
    pub(super) fn end(&mut self, token: WorkToken, status: Status, bytes: u64, detail: u64) {
        self.ended.push(Retired {
            token,
            status,
            bytes,
            detail,
        });
    }

    /// The connection of a descriptor's session.
    #[inline]
    pub(super) fn established(
        &mut self,
        pd: PdId,
        id: SessionId,
        flags: Flags,
        engines: &Engines,
    ) -> Result<Conn, Refusal> {
        let Some(session) = self.sessions.get(id, pd) else {
            return Err((Status::BadSession, id.0.into()));
        };
        let chained = flags.contains(Flags::CHAIN);
        if let (true, Some(failed)) = (chained, session.chain) {
            return Err(failed);
        }
        let refusal = match &session.state {
            State::Stream(s) if s.reset => {
                let failed = engines.failure_on(s.transport, s.conn);
                let state = self.transports[s.transport].conn_state(s.conn);
                let reset = state.map_or(ConnState::RESET, |c| c.reset);
                failed.map_or(reset, EngineFailed::status)
            }
            State::Stream(s) => return Ok((s.transport, s.conn)),
            State::Broken => (Status::NotConnected, 0),
            _ => (Status::BadState, id.0.into()),
        };
        if chained {
            session.chain = Some(refusal);
        }
        Err(refusal)
    }

    /// Received bytes of a connection that have passed its engine in the NIC and not in the card.
    pub(super) fn unseen(&mut self, transport: usize, conn: ConnId) -> Vec<u8> {
        let transport = self.transports.get_mut(transport);
        let hardware = transport.and_then(|t| t.hardware());
        hardware.map_or(Vec::new(), |h| h.unseen(conn))
    }

    /// The parts of transports whose peers can map this NIC's memory.
    pub(crate) fn sharers(&mut self) -> impl Iterator<Item = &mut dyn Sharer> {
        self.transports.iter_mut().filter_map(|t| t.sharer())
    }

    /// The established stream of a session, with its domain. `pd` is none for the host, which owns
    /// all.
    pub(super) fn for_engine(&mut self, id: SessionId, pd: Option<PdId>) -> Option<(Stream, PdId)> {
        let session = match pd {
            Some(pd) => self.sessions.get(id, pd),
            None if self.sessions.id(slot_of(id)) == id => self.sessions.at(slot_of(id)),
            None => None,
        }?;
        match &session.state {
            State::Stream(s) if !s.reset => Some((*s, session.pd)),
            _ => None,
        }
    }

    /// The stream of a session, also of one that has failed or ended.
    pub(super) fn stream_at(&mut self, slot: u32) -> Option<&mut Stream> {
        match &mut self.sessions.at(slot)?.state {
            State::Stream(s) => Some(s),
            _ => None,
        }
    }

    /// Whether the sending side of a session has been closed.
    pub(super) fn is_shut(&mut self, id: SessionId) -> bool {
        self.stream_at(slot_of(id)).is_some_and(|s| s.shut)
    }

    /// Half-closes a stream.
    pub(super) fn end_sending(&mut self, (t, conn): Conn) {
        self.transports[t].close(conn, Close::Sending);
        let slot = self.conns.get(&(t, conn)).copied();
        if let Some(s) = slot.and_then(|slot| self.stream_at(slot)) {
            s.shut = true;
        }
    }

    /// Counts bytes for the session of an operation, when it is still the session of that
    /// connection.
    #[inline]
    pub(super) fn count(&mut self, (t, conn): Conn, work: &Operation, bytes: u64) {
        let Some(s) = self.sessions.at(work.session) else {
            return;
        };
        if matches!(&s.state, State::Stream(x) if x.transport == t && x.conn == conn) {
            match work.opcode {
                Opcode::Send | Opcode::Put => s.tx_bytes += bytes,
                Opcode::FetchAdd | Opcode::CompareSwap => {}
                _ => s.rx_bytes += bytes,
            }
        }
    }

    /// Takes a send, a receive or a one-sided operation back from its transport. The bytes that it
    /// has moved; `None`: the transport is retiring it at this moment.
    pub(super) fn withdraw(
        &mut self,
        (t, conn): Conn,
        token: WorkToken,
        opcode: Opcode,
        env: &mut Env<'_>,
    ) -> Option<u64> {
        let bytes = self.transports[t].cancel(conn, token)?;
        // A stream cannot recover lost bytes. A send may have left in frames that the
        // peer has not acknowledged, so it always ends the stream; a receive only when it
        // took bytes; a one-sided operation when the peer may still read its source.
        if opcode == Opcode::Send || bytes > 0 {
            self.break_stream((t, conn), env);
        }
        Some(bytes)
    }

    /// Ends the stream over a connection; its session stays until it is closed.
    pub(super) fn break_stream(&mut self, (t, conn): Conn, env: &mut Env<'_>) {
        self.abort((t, conn), env);
        if let Some(slot) = self.conns.remove(&(t, conn)) {
            if let Some(s) = self.sessions.at(slot) {
                s.state = State::Broken;
            }
        }
    }

    /// Ends a connection at once: its engines see no more.
    pub(super) fn abort(&mut self, (t, conn): Conn, env: &mut Env<'_>) {
        self.lingering.remove(&(t, conn));
        self.transports[t].close(conn, Close::Now);
        forget_engines(env, (t, conn), true);
    }

    /// Ends an `ACCEPT` or a `CONNECT` that waits.
    pub(super) fn give_up(&mut self, slot: u32, token: WorkToken) {
        let connecting = match self.sessions.at(slot).map(|s| &mut s.state) {
            Some(State::Listening(l)) => return l.accepts.retain(|a| *a != token),
            Some(State::Connecting {
                work,
                transport,
                conn,
                ..
            }) if *work == token => (*transport, *conn),
            _ => return,
        };
        self.drop_attempt(slot, connecting);
    }

    /// A connection attempt of a session ends.
    fn drop_attempt(&mut self, slot: u32, (t, conn): Conn) {
        self.conns.remove(&(t, conn));
        self.transports[t].close(conn, Close::Now);
        if let Some(s) = self.sessions.at(slot) {
            s.state = State::Idle;
        }
    }

    /// Gives up deliveries whose time is up. Returns whether there were any.
    pub(super) fn end_lingering(&mut self, env: &mut Env<'_>) -> bool {
        let late = self
            .lingering
            .iter()
            .filter(|(_, until)| **until <= env.now);
        let late: Vec<_> = late.map(|(k, _)| *k).collect();
        for conn in &late {
            self.note_loss(*conn, "the time of `linger` was up");
            self.abort(*conn, env);
        }
        !late.is_empty()
    }

    /// The connections that deliver the rest of a closed or half-closed stream.
    pub(super) fn delivering(&mut self) -> FxHashSet<Conn> {
        let mut all: FxHashSet<_> = self.lingering.keys().copied().collect();
        for slot in self.sessions.open_slots() {
            let stream = self.stream_at(slot).filter(|s| s.shut && !s.reset);
            all.extend(stream.map(|s| (s.transport, s.conn)));
        }
        all
    }

    /// Closes every session: in order where its connection is in `keep`. `CONNECT`s end with
    /// `status`. With `stopping`, undelivered bytes of the others are recorded.
    pub(super) fn close_all(
        &mut self,
        status: Status,
        keep: &FxHashSet<Conn>,
        stopping: bool,
        env: &mut Env<'_>,
    ) {
        for slot in self.sessions.open_slots() {
            if let Some(&State::Connecting {
                work,
                transport,
                conn,
                ..
            }) = self.sessions.at(slot).map(|s| &s.state)
            {
                self.drop_attempt(slot, (transport, conn));
                self.end(work, status, 0, 0);
            }
            let stream = self.stream_at(slot).map(|s| (s.transport, s.conn));
            let kept = stream.is_some_and(|c| keep.contains(&c));
            if let (Some((t, conn)), true) = (stream, stopping && !kept) {
                if self.undelivered((t, conn)) > 0 {
                    self.note_loss((t, conn), "its session was not closed before the NIC");
                }
            }
            self.close_slot(slot, !kept, env);
        }
        let rest: Vec<_> = self.lingering.keys().copied().collect();
        for conn in rest.into_iter().filter(|k| !keep.contains(k)) {
            if stopping {
                self.note_loss(conn, "the NIC has ended");
            }
            self.abort(conn, env);
        }
    }

    /// Whether a transport or a port may have something to do before the clock is read.
    #[inline]
    pub(super) fn poll(&mut self) -> bool {
        if self.transports.iter().any(|t| !t.is_quiet()) {
            return true;
        }
        // Packets come by ports alone, and so do those that have places.
        if !self.has_ports() {
            return false;
        }
        let mut takers = self.transports.iter_mut().filter_map(|t| t.packets());
        takers.any(|t| t.expects_places()) || self.network.poll()
    }

    /// Passes what has arrived at the ports to the transports.
    pub(super) fn deliver(&mut self, now: NicTime, memory: &mut Memory) -> bool {
        let (transports, network) = (&mut self.transports, &mut self.network);
        let mut takers: Takers<'_> = [const { None }; PROTOCOLS];
        let mut writes = 0;
        for (i, transport) in transports.iter_mut().enumerate() {
            let protocol = transport.caps().protocol;
            if let (Some(protocol), Some(taker)) = (protocol, transport.packets()) {
                // The one that writes to memory as it receives.
                if protocol == Protocol::Roce {
                    writes = i;
                }
                takers[protocol as usize] = Some(taker);
            }
        }
        memory.with_datapath(writes, |data| deliver(now, network, &mut takers, data))
    }

    /// Whether frames may arrive.
    #[inline]
    pub(super) fn has_ports(&self) -> bool {
        !self.network.ports().is_empty()
    }

    /// Bytes that were reported as sent over a connection and that the peer has not confirmed.
    pub(super) fn undelivered(&self, (t, conn): Conn) -> u64 {
        let state = self.transports[t].conn_state(conn);
        state.map_or(0, |c| c.undelivered)
    }

    /// Records that a stream ends before the peer has everything. To be called before the transport
    /// drops it.
    pub(super) fn note_loss(&mut self, (t, conn): Conn, why: &'static str) {
        let transport = &self.transports[t];
        let Some(state) = transport.conn_state(conn) else {
            return;
        };
        let (name, bytes) = (transport.caps().name, state.undelivered);
        let (local, peer) = (state.local, state.peer);
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
        transports
            .chain(self.lingering.values().copied())
            .chain(self.network.next_timer())
            .min()
    }
}

/// A connection's bytes pass no engine any more, except those queued to be sent before an orderly
/// end.
pub(super) fn forget_engines(env: &mut Env<'_>, (t, conn): Conn, at_once: bool) {
    let engines = &mut env.memory.engines;
    engines.forget((t, conn, Direction::Receive));
    if at_once {
        engines.forget((t, conn, Direction::Send));
    }
}

/// Operations that tell a transport a point in time.
pub(super) const fn needs_clock(op: Opcode) -> bool {
    matches!(
        op,
        Opcode::Connect | Opcode::Close | Opcode::Abort | Opcode::Listen
    )
}
