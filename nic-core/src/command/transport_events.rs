//! Handling of the transports' events: session states and events for the host.

use ringbell_nic_abi::status::REASON_SHIFT;
use ringbell_nic_abi::{EventKind, Status};

use super::control::address_word;
use super::env::Env;
use super::streams::{forget_engines, Conn, Streams};
use crate::session::{Incoming, State};
use crate::transport::order::{is_for_another, Order};
use crate::transport::{Close, TransportEvent};

impl Streams {
    /// An event of a transport, except the end of an operation.
    pub(super) fn on_event(&mut self, t: usize, event: TransportEvent, env: &mut Env<'_>) {
        match event {
            TransportEvent::SendDone { .. }
            | TransportEvent::RecvDone { .. }
            | TransportEvent::RemoteDone { .. } => {}
            TransportEvent::Connected { conn } => self.on_connected((t, conn)),
            TransportEvent::ConnectFailed {
                conn,
                status,
                answer,
            } => {
                self.on_connect_failed((t, conn), (status, answer), env);
            }
            TransportEvent::Incoming {
                listener,
                conn,
                peer,
            } => {
                let Some(&slot) = self.listeners.get(&(t, listener)) else {
                    return self.transports[t].close(conn, Close::Now);
                };
                let id = self.sessions.id(slot);
                let Some(State::Listening(l)) = self.sessions.at(slot).map(|s| &mut s.state) else {
                    return self.transports[t].close(conn, Close::Now);
                };
                if l.pending.len() >= l.backlog && l.accepts.is_empty() {
                    return self.transports[t].close(conn, Close::Now);
                }
                l.pending.push_back(Incoming {
                    transport: t,
                    conn,
                    peer,
                    peer_closed: false,
                    reset: false,
                });
                if l.accepts.is_empty() {
                    env.push(EventKind::ConnectionPending, id.0, address_word(peer));
                    self.conns.insert((t, conn), slot);
                } else {
                    self.match_accepts(slot);
                }
            }
            TransportEvent::PeerClosed { conn } => {
                self.on_peer((t, conn), EventKind::PeerClosed, env);
            }
            TransportEvent::Reset { conn } => self.on_peer((t, conn), EventKind::PeerReset, env),
            TransportEvent::Closed { conn } => {
                self.lingering.remove(&(t, conn));
                forget_engines(env, (t, conn), true);
            }
        }
    }

    fn on_connected(&mut self, (t, conn): Conn) {
        let Some(&slot) = self.conns.get(&(t, conn)) else {
            return self.transports[t].close(conn, Close::Now);
        };
        let Some(s) = self.sessions.at(slot) else {
            return;
        };
        let (&State::Connecting { work, .. }, Some(peer)) = (&s.state, s.peer) else {
            return;
        };
        let id = self.sessions.id(slot);
        let order = Order::new(&self.transports, &self.network, peer);
        let why = order.why(&self.transports, t);
        let c = Incoming {
            transport: t,
            conn,
            peer,
            peer_closed: false,
            reset: false,
        };
        self.adopt(id, c, why);
        self.end(work, Status::Ok, 0, id.0.into());
    }

    fn on_connect_failed(
        &mut self,
        (t, conn): Conn,
        (status, answer): (Status, Option<u16>),
        env: &mut Env<'_>,
    ) {
        let Some(slot) = self.conns.remove(&(t, conn)) else {
            return;
        };
        let Some(s) = self.sessions.at(slot) else {
            return;
        };
        let (&State::Connecting { work, deadline, .. }, Some(peer)) = (&s.state, s.peer) else {
            return;
        };
        if is_for_another(status, answer) && env.now < deadline {
            self.try_transports(slot, work, peer, Some(t), (env.now, deadline), status);
        } else {
            s.state = State::Idle;
            let detail = u64::from(answer.unwrap_or(0)) << REASON_SHIFT | address_word(peer);
            self.end(work, status, 0, detail);
        }
    }

    fn on_peer(&mut self, (t, conn): Conn, kind: EventKind, env: &mut Env<'_>) {
        let reset = kind == EventKind::PeerReset;
        if reset && self.lingering.contains_key(&(t, conn)) {
            if self.undelivered((t, conn)) > 0 {
                self.note_loss((t, conn), "the peer has reset the connection");
            }
            return self.abort((t, conn), env);
        }
        let Some(&slot) = self.conns.get(&(t, conn)) else {
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
                let why = if reset {
                    self.transports[t].conn_state(conn).map_or(0, |c| c.reset.1)
                } else {
                    0
                };
                env.push(kind, id.0, why);
            }
            State::Listening(l) => {
                // Not accepted yet: its `ACCEPT` will report it.
                let mut waiting = l.pending.iter_mut();
                if let Some(c) = waiting.find(|c| c.transport == t && c.conn == conn) {
                    c.reset |= reset;
                    c.peer_closed |= !reset;
                }
            }
            _ => {}
        }
    }
}
