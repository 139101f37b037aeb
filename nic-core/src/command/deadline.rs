//! Early ends of operations: time-outs, lingering connections, reset and shutdown.

use std::collections::HashSet;

use ringbell_nic_abi::{Opcode, Status};

use super::{Core, Undelivered};
use crate::session::State;
use crate::types::{ConnId, WorkToken};

impl Core {
    /// Retires what is past its deadline. Returns whether anything was.
    pub(super) fn expire(&mut self) -> bool {
        let mut expired = std::mem::take(&mut self.expired);
        self.outstanding.advance(self.time.now, &mut expired);
        let mut moved = !expired.is_empty();
        for token in expired.drain(..) {
            self.time_out(token);
        }
        self.expired = expired;
        if !self.streams.lingering.is_empty() {
            moved |= self.end_lingering();
        }
        moved
    }

    fn end_lingering(&mut self) -> bool {
        let now = self.time.now;
        let late = self
            .streams
            .lingering
            .iter()
            .filter(|(_, l)| l.deadline <= now);
        let late: Vec<_> = late.map(|(k, _)| *k).collect();
        for (t, conn) in &late {
            self.streams.lingering.remove(&(*t, *conn));
            self.streams
                .note_loss(*t, *conn, "the time of `linger` was up");
            self.forget_engines(*t, *conn, true);
            self.streams.transports[*t].abort(*conn);
        }
        !late.is_empty()
    }

    fn time_out(&mut self, token: WorkToken) {
        let Some(work) = self.outstanding.get_mut(token) else {
            return;
        };
        let (opcode, slot, conn) = (work.opcode, work.session, work.conn);
        let mut bytes = 0;
        match opcode {
            Opcode::Send | Opcode::Recv => {
                let Some((t, c)) = conn else { return };
                let Some(n) = self.streams.transports[t].cancel(c, token) else {
                    // The transport is retiring it at this moment: its event decides.
                    self.outstanding.postpone(token);
                    return;
                };
                bytes = n;
                // A stream cannot recover lost bytes. A send may have left in frames that the
                // peer has not acknowledged, so it always ends the stream; a receive only when it
                // took bytes.
                if opcode == Opcode::Send || n > 0 {
                    self.break_stream(t, c);
                }
            }
            Opcode::Accept => {
                if let Some(State::Listening(l)) = self.sessions.at(slot).map(|s| &mut s.state) {
                    l.accepts.retain(|a| *a != token);
                }
            }
            Opcode::Connect => {
                if let Some((t, c)) = conn {
                    self.streams.conns.remove(&(t, c));
                    self.streams.transports[t].abort(c);
                }
                if let Some(s) = self.sessions.at(slot) {
                    s.state = State::Idle;
                }
            }
            Opcode::Copy => bytes = self.copies.cancel(token).unwrap_or(0),
            Opcode::Collective if self.probe_peers(token) => return,
            Opcode::Collective if !self.give_up_collective(token, Status::TimedOut, 0) => {
                self.outstanding.postpone(token);
                return;
            }
            // These retire in the step that accepts them.
            _ => {}
        }
        self.report.counters.timed_out += 1;
        self.retire(token, Status::TimedOut, bytes, 0);
    }

    /// Ends the stream over a connection; its session stays until it is closed.
    pub(super) fn break_stream(&mut self, t: usize, conn: ConnId) {
        self.streams.transports[t].abort(conn);
        self.forget_engines(t, conn, true);
        self.streams.lingering.remove(&(t, conn));
        if let Some(slot) = self.streams.conns.remove(&(t, conn)) {
            if let Some(s) = self.sessions.at(slot) {
                s.state = State::Broken;
            }
        }
    }

    /// Retires the operations that wait on a region being freed. Copies under way continue
    /// and keep the region pinned.
    pub(crate) fn retire_region(&mut self, region: u32) {
        for token in self.outstanding.tokens() {
            let Some(work) = self.outstanding.get_mut(token) else {
                continue;
            };
            if !work.pins.iter().flatten().any(|p| p.region == region) {
                continue;
            }
            let (opcode, conn, va) = (work.opcode, work.conn, work.va);
            let mut bytes = 0;
            if let (Some((t, c)), Opcode::Send | Opcode::Recv) = (conn, opcode) {
                let Some(n) = self.streams.transports[t].cancel(c, token) else {
                    continue;
                };
                bytes = n;
                if opcode == Opcode::Send || n > 0 {
                    self.break_stream(t, c);
                }
            }
            if opcode == Opcode::Copy {
                bytes = self.copies.cancel(token).unwrap_or(0);
            }
            if opcode == Opcode::Collective
                && !self.give_up_collective(token, Status::RegionFreed, va)
            {
                continue;
            }
            self.retire(token, Status::RegionFreed, bytes, va);
        }
    }

    /// Aborts every session and retires every operation with `status`.
    pub(crate) fn abort_all(&mut self, status: Status) {
        if self.collectives.exists() {
            let last = self.stopping;
            self.collectives(|c, io| c.abort_all(io, status, last));
        }
        self.abort_streams(status, &HashSet::new());
    }

    /// As [`abort_all`](Core::abort_all), except for collectives. Sends on streams in `keep` continue, and these
    /// streams are closed in order.
    pub(super) fn abort_streams(&mut self, status: Status, keep: &HashSet<(usize, ConnId)>) {
        let kept = |conn: Option<(usize, ConnId)>| conn.is_some_and(|c| keep.contains(&c));
        for token in self.outstanding.tokens() {
            let Some(work) = self.outstanding.get_mut(token) else {
                continue;
            };
            let (conn, opcode) = (work.conn, work.opcode);
            if opcode == Opcode::Send && kept(conn) {
                continue;
            }
            let mut bytes = 0;
            if let (Some((t, c)), Opcode::Send | Opcode::Recv) = (conn, opcode) {
                bytes = self.streams.transports[t].cancel(c, token).unwrap_or(0);
            }
            if opcode == Opcode::Copy {
                bytes = self.copies.cancel(token).unwrap_or(0);
            }
            if let Opcode::Connect = opcode {
                // Closing its session below aborts the connection and would retire it with another
                // status.
                continue;
            }
            self.retire(token, status, bytes, 0);
        }
        for slot in self.sessions.open_slots() {
            if let Some(s) = self.sessions.at(slot) {
                if let State::Connecting {
                    work,
                    transport,
                    conn,
                } = s.state
                {
                    s.state = State::Idle;
                    self.streams.conns.remove(&(transport, conn));
                    self.streams.transports[transport].abort(conn);
                    self.retire(work, status, 0, 0);
                }
            }
            let stream = self.sessions.at(slot).and_then(|s| match &s.state {
                State::Stream(s) => Some((s.transport, s.conn)),
                _ => None,
            });
            if let (Some((t, conn)), true) = (stream, self.stopping && !kept(stream)) {
                if self.streams.transports[t].undelivered(conn) > 0 {
                    self.streams
                        .note_loss(t, conn, "its session was not closed before the NIC");
                }
            }
            self.close_slot(slot, !kept(stream));
        }
        let rest: Vec<_> = self.streams.lingering.keys().copied().collect();
        for (t, conn) in rest.into_iter().filter(|k| !keep.contains(k)) {
            self.streams.lingering.remove(&(t, conn));
            if self.stopping {
                self.streams.note_loss(t, conn, "the NIC has ended");
            }
            self.forget_engines(t, conn, true);
            self.streams.transports[t].abort(conn);
        }
    }

    /// Starts the shutdown: waiting operations retire with `SHUTTING_DOWN`, open sessions are reset. Those that were closed
    /// or half-closed are still delivered.
    pub(crate) fn begin_end(&mut self) {
        self.stopping = true;
        if self.collectives.exists() {
            self.collectives(|c, io| c.abort_all(io, Status::ShuttingDown, true));
        }
        let mut keep: HashSet<_> = self.streams.lingering.keys().copied().collect();
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
        !self.streams.lingering.is_empty()
    }

    /// Ends the rest. Returns what was reported as sent but has not arrived, since the NIC was made.
    pub(crate) fn finish_end(&mut self) -> Vec<Undelivered> {
        self.stopping = true;
        self.abort_all(Status::ShuttingDown);
        self.streams.take_lost()
    }
}
