//! `SOCKET`, `LISTEN`, `ACCEPT`, `CONNECT`, `SHUTDOWN`, `CLOSE` and `ABORT`.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::{Descriptor, Flags, Opcode, PdId, SessionId, Status};

use super::env::Env;
use super::refusal::{Answer, Refusal};
use super::streams::{forget_engines, Streams};
use crate::session::{slot_of, Incoming, Listening, State, Stream};
use crate::transport::order::Order;
use crate::transport::Close;
use crate::types::{NicTime, WorkToken};

/// Backlog when the descriptor gives none.
const DEFAULT_BACKLOG: usize = 16;

/// An address as completions and events carry it: ip << 16 | port.
pub(super) fn address_word(a: SocketAddrV4) -> u64 {
    u64::from(u32::from(*a.ip())) << 16 | u64::from(a.port())
}

/// The address that a `CONNECT` names.
fn remote_of(d: &Descriptor) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(d.operand as u32), d.imm as u16)
}

impl Streams {
    pub(super) fn socket(&mut self, pd: PdId) -> Answer {
        match self.sessions.open(pd) {
            Some(id) => Ok((0, id.0.into())),
            None => Err((Status::NoResources, self.sessions.limit())),
        }
    }

    pub(super) fn listen(&mut self, pd: PdId, d: &Descriptor) -> Answer {
        let id = d.session;
        self.idle(pd, id)?;
        let port = d.imm as u16;
        if port == 0 {
            return Err((Status::BadDescriptor, 4));
        }
        let backlog = match (d.imm >> 16) as usize {
            0 => DEFAULT_BACKLOG,
            n => n,
        };
        let mut listeners = Vec::new();
        for (i, transport) in self.transports.iter_mut().enumerate() {
            match transport.listen(port, backlog) {
                Ok(l) => listeners.push((i, l)),
                Err(status) => {
                    for (i, l) in listeners {
                        self.transports[i].unlisten(l);
                    }
                    return Err((status, port.into()));
                }
            }
        }
        if listeners.is_empty() {
            return Err((Status::Unsupported, d.opcode.code().into()));
        }
        let slot = slot_of(id);
        self.listeners.extend(listeners.iter().map(|l| (*l, slot)));
        let local = SocketAddrV4::new(self.network.ip(), port);
        if let Some(session) = self.sessions.at(slot) {
            session.local = Some(local);
            session.why = "listens on every transport";
            session.state = State::Listening(Listening {
                listeners,
                backlog,
                ..Listening::default()
            });
        }
        tracing::info!(session = id.0, %local, "listening");
        Ok((0, 0))
    }

    /// Checks that a session of this domain has no state yet.
    fn idle(&mut self, pd: PdId, id: SessionId) -> Result<(), Refusal> {
        match self.sessions.get(id, pd).map(|s| &s.state) {
            None => Err((Status::BadSession, id.0.into())),
            Some(State::Idle) => Ok(()),
            Some(_) => Err((Status::BadState, id.0.into())),
        }
    }

    /// Whether an `ACCEPT` or a `CONNECT` may begin.
    pub(super) fn may_begin(&mut self, pd: PdId, d: &Descriptor) -> Result<(), Refusal> {
        let id = d.session;
        if d.opcode == Opcode::Accept {
            return match self.sessions.get(id, pd).map(|s| &s.state) {
                None => Err((Status::BadSession, id.0.into())),
                Some(State::Listening(_)) => Ok(()),
                Some(_) => Err((Status::BadState, id.0.into())),
            };
        }
        self.idle(pd, id)?;
        match remote_of(d).port() {
            0 => Err((Status::BadDescriptor, 4)),
            _ => Ok(()),
        }
    }

    pub(super) fn accept(&mut self, slot: u32, token: WorkToken) {
        if let Some(State::Listening(l)) = self.sessions.at(slot).map(|s| &mut s.state) {
            l.accepts.push_back(token);
        }
        self.match_accepts(slot);
    }

    /// Pairs waiting connections with waiting `ACCEPT`s of a listener.
    pub(super) fn match_accepts(&mut self, slot: u32) {
        loop {
            let Some(session) = self.sessions.at(slot) else {
                return;
            };
            let pd = session.pd;
            let State::Listening(l) = &mut session.state else {
                return;
            };
            if l.pending.is_empty() || l.accepts.is_empty() {
                return;
            }
            let (Some(incoming), Some(token)) = (l.pending.pop_front(), l.accepts.pop_front())
            else {
                return;
            };
            let Some(id) = self.sessions.open(pd) else {
                if let Some(State::Listening(l)) = self.sessions.at(slot).map(|s| &mut s.state) {
                    l.pending.push_front(incoming);
                }
                self.end(token, Status::NoResources, 0, self.sessions.limit());
                continue;
            };
            self.adopt(id, incoming, "accepted; the peer chose the transport");
            let from = address_word(incoming.peer);
            self.end(token, Status::Ok, from, id.0.into());
        }
    }

    /// Sets a connection as the stream of a session.
    pub(super) fn adopt(&mut self, id: SessionId, c: Incoming, why: &'static str) {
        let slot = slot_of(id);
        let state = self.transports[c.transport].conn_state(c.conn);
        self.conns.insert((c.transport, c.conn), slot);
        let name = self.transports[c.transport].caps().name;
        tracing::info!(session = id.0, transport = name, peer = %c.peer, why, "established");
        if let Some(session) = self.sessions.at(slot) {
            self.transports[c.transport].grant(c.conn, session.pd);
            session.local = state.map(|s| s.local);
            session.peer = Some(c.peer);
            session.why = why;
            session.state = State::Stream(Stream {
                transport: c.transport,
                conn: c.conn,
                shut: false,
                reset: c.reset,
                peer_closed: c.peer_closed,
            });
        }
    }

    pub(super) fn connect(
        &mut self,
        now: NicTime,
        d: &Descriptor,
        token: WorkToken,
        deadline: NicTime,
    ) {
        let (slot, remote) = (slot_of(d.session), remote_of(d));
        if let Some(session) = self.sessions.at(slot) {
            session.peer = Some(remote);
        }
        let unreachable = Status::HostUnreachable;
        self.try_transports(slot, token, remote, None, (now, deadline), unreachable);
    }

    /// Tries transports in policy order, those behind the one that has failed; ends the operation
    /// when none is left.
    pub(super) fn try_transports(
        &mut self,
        slot: u32,
        token: WorkToken,
        remote: SocketAddrV4,
        failed: Option<usize>,
        (now, deadline): (NicTime, NicTime),
        mut last: Status,
    ) {
        let order = Order::new(&self.transports, &self.network, remote);
        let mut next = order.after(failed);
        while let Some(i) = next {
            let until = order.until(i, now, deadline);
            match self.transports[i].connect(now, remote, until) {
                Ok(conn) => {
                    self.conns.insert((i, conn), slot);
                    if let Some(s) = self.sessions.at(slot) {
                        s.state = State::Connecting {
                            work: token,
                            transport: i,
                            conn,
                            deadline,
                        };
                    }
                    return;
                }
                // What another has said before tells more.
                Err(status) if last == Status::HostUnreachable => last = status,
                Err(_) => {}
            }
            next = order.after(next);
        }
        if let Some(s) = self.sessions.at(slot) {
            s.state = State::Idle;
        }
        self.end(token, last, 0, address_word(remote));
    }

    pub(super) fn shutdown(&mut self, pd: PdId, d: &Descriptor) -> Answer {
        let id = d.session;
        let Some(session) = self.sessions.get(id, pd) else {
            return Err((Status::BadSession, id.0.into()));
        };
        if let (true, Some(failed)) = (d.flags.contains(Flags::CHAIN), session.chain) {
            return Err(failed);
        }
        let State::Stream(s) = &mut session.state else {
            return Err((Status::BadState, id.0.into()));
        };
        let (shut, transport, conn) = (s.shut || s.reset, s.transport, s.conn);
        s.shut = true;
        if !shut {
            self.transports[transport].close(conn, Close::Sending);
        }
        Ok((0, 0))
    }

    pub(super) fn close(&mut self, pd: PdId, d: &Descriptor, env: &mut Env<'_>) -> Answer {
        let id = d.session;
        if self.sessions.get(id, pd).is_none() {
            return Err((Status::BadSession, id.0.into()));
        }
        self.close_slot(slot_of(id), d.opcode == Opcode::Abort, env);
        Ok((0, 0))
    }

    /// Ends a session: its id is stale afterwards. A stream that is closed, not aborted, lingers
    /// until its queued sends are delivered.
    pub(super) fn close_slot(&mut self, slot: u32, abort: bool, env: &mut Env<'_>) {
        let Some(session) = self.sessions.close(slot) else {
            return;
        };
        match session.state {
            State::Idle | State::Broken => {}
            State::Listening(l) => {
                for (t, listener) in l.listeners {
                    self.listeners.remove(&(t, listener));
                    self.transports[t].unlisten(listener);
                }
                for c in l.pending {
                    self.conns.remove(&(c.transport, c.conn));
                    self.transports[c.transport].close(c.conn, Close::Now);
                }
                for token in l.accepts {
                    self.end(token, Status::Aborted, 0, 0);
                }
            }
            State::Connecting {
                work,
                transport,
                conn,
                ..
            } => {
                self.conns.remove(&(transport, conn));
                self.transports[transport].close(conn, Close::Now);
                self.end(work, Status::Aborted, 0, 0);
            }
            State::Stream(s) => {
                let conn = (s.transport, s.conn);
                self.conns.remove(&conn);
                if abort || s.reset {
                    self.abort(conn, env);
                } else {
                    forget_engines(env, conn, false);
                    self.lingering.insert(conn, env.now.plus(self.linger));
                    self.transports[s.transport].close(s.conn, Close::Gracefully);
                }
            }
        }
    }
}
