//! Handling of the transports' events: completions, session states and events for the host.

use ringbell_nic_abi::{EventKind, Opcode, Status};

use super::control::address_word;
use super::Core;
use crate::outstanding::Operation;
use crate::session::{Incoming, State};
use crate::transport::{why_chosen, TransportEvent};
use crate::types::ConnId;

impl Core {
    pub(super) fn on_transport_event(&mut self, t: usize, event: TransportEvent) {
        if self.is_of_fabric(t, &event) || self.is_of_return(&event) {
            return;
        }
        match event {
            TransportEvent::SendDone {
                token,
                status,
                bytes,
                detail,
                conn,
            }
            | TransportEvent::RecvDone {
                token,
                status,
                bytes,
                detail,
                conn,
            } => {
                let Some(work) = self.outstanding.remove(token) else {
                    return;
                };
                self.count(t, conn, &work, bytes);
                self.retire_work(work, status, bytes, detail);
            }
            TransportEvent::Connected { conn } => self.on_connected(t, conn),
            TransportEvent::ConnectFailed { conn, status } => {
                self.on_connect_failed(t, conn, status);
            }
            TransportEvent::Incoming {
                listener,
                conn,
                peer,
            } => {
                let Some(&slot) = self.streams.listeners.get(&(t, listener)) else {
                    return self.streams.transports[t].abort(conn);
                };
                let id = self.sessions.id(slot);
                let Some(State::Listening(l)) = self.sessions.at(slot).map(|s| &mut s.state) else {
                    return self.streams.transports[t].abort(conn);
                };
                if l.pending.len() >= l.backlog && l.accepts.is_empty() {
                    return self.streams.transports[t].abort(conn);
                }
                l.pending.push_back(Incoming {
                    transport: t,
                    conn,
                    peer,
                    peer_closed: false,
                    reset: false,
                });
                if l.accepts.is_empty() {
                    let data = address_word(peer);
                    self.report.events.push(
                        self.time.now,
                        EventKind::ConnectionPending,
                        id.0,
                        data,
                    );
                    self.streams.conns.insert((t, conn), slot);
                } else {
                    self.match_accepts(slot);
                }
            }
            TransportEvent::PeerClosed { conn } => self.on_peer(t, conn, EventKind::PeerClosed),
            TransportEvent::Reset { conn } => self.on_peer(t, conn, EventKind::PeerReset),
            TransportEvent::Closed { conn } => {
                self.streams.lingering.remove(&(t, conn));
                self.forget_engines(t, conn, true);
            }
        }
    }

    /// Counts bytes for the session of an operation, when it is still the session of that connection.
    #[inline]
    fn count(&mut self, t: usize, conn: ConnId, work: &Operation, bytes: u64) {
        let Some(s) = self.sessions.at(work.session) else {
            return;
        };
        if matches!(&s.state, State::Stream(x) if x.transport == t && x.conn == conn) {
            match work.opcode {
                Opcode::Send => s.tx_bytes += bytes,
                _ => s.rx_bytes += bytes,
            }
        }
    }

    fn on_connected(&mut self, t: usize, conn: ConnId) {
        let Some(&slot) = self.streams.conns.get(&(t, conn)) else {
            return self.streams.transports[t].abort(conn);
        };
        let Some(s) = self.sessions.at(slot) else {
            return;
        };
        let (State::Connecting { work, .. }, Some(peer)) = (&s.state, s.peer) else {
            return;
        };
        let work = *work;
        let id = self.sessions.id(slot);
        let why = why_chosen(&self.streams.transports, t);
        let c = Incoming {
            transport: t,
            conn,
            peer,
            peer_closed: false,
            reset: false,
        };
        self.adopt(id, c, why);
        self.retire(work, Status::Ok, 0, id.0.into());
    }

    fn on_connect_failed(&mut self, t: usize, conn: ConnId, status: Status) {
        let Some(slot) = self.streams.conns.remove(&(t, conn)) else {
            return;
        };
        let Some(s) = self.sessions.at(slot) else {
            return;
        };
        let (State::Connecting { work, .. }, Some(peer)) = (&s.state, s.peer) else {
            return;
        };
        let work = *work;
        // A refusal is an answer; only "cannot get there" lets the next transport try.
        if matches!(status, Status::HostUnreachable | Status::NoResources) {
            let us = self.outstanding.get_mut(work).map_or(0, |w| {
                debug_assert_eq!(w.opcode, Opcode::Connect);
                w.timeout_us
            });
            // The operation's own deadline, which keeps running, cancels the attempt in time.
            let deadline = self
                .time
                .now
                .plus(std::time::Duration::from_micros(us.into()));
            self.try_transports(slot, work, peer, t + 1, deadline, status);
        } else {
            s.state = State::Idle;
            self.retire(work, status, 0, address_word(peer));
        }
    }

    fn on_peer(&mut self, t: usize, conn: ConnId, kind: EventKind) {
        let reset = kind == EventKind::PeerReset;
        if reset && self.streams.lingering.remove(&(t, conn)).is_some() {
            if self.streams.transports[t].undelivered(conn) > 0 {
                self.streams
                    .note_loss(t, conn, "the peer has reset the connection");
            }
            self.forget_engines(t, conn, true);
            return self.streams.transports[t].abort(conn);
        }
        let Some(&slot) = self.streams.conns.get(&(t, conn)) else {
            return;
        };
        let id = self.sessions.id(slot);
        let Some(s) = self.sessions.at(slot) else {
            return;
        };
        match &mut s.state {
            State::Stream(s) => {
                s.reset |= reset;
                s.peer_closed |= !reset;
                self.report.events.push(self.time.now, kind, id.0, 0);
            }
            State::Listening(l) => {
                // Not accepted yet: its `ACCEPT` will report it.
                let waiting = l.pending.iter_mut();
                if let Some(c) = waiting
                    .into_iter()
                    .find(|c| c.transport == t && c.conn == conn)
                {
                    c.reset |= reset;
                    c.peer_closed |= !reset;
                }
            }
            _ => {}
        }
    }
}
