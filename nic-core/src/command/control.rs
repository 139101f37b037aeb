//! `SOCKET`, `LISTEN`, `ACCEPT`, `CONNECT`, `SHUTDOWN`, `CLOSE` and `ABORT`.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::{Descriptor, Flags, PdId, SessionId, Status};

use super::{Core, Lingering};
use crate::permit::Permit;
use crate::session::{Incoming, Listening, State, Stream};
use crate::types::WorkToken;

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

impl Core {
    pub(super) fn socket(&mut self, permit: Permit, pd: PdId) {
        match self.sessions.open(pd) {
            Some(id) => self.finish(permit, Status::Ok, 0, id.0.into()),
            None => {
                let limit = self.config.max_sessions as u64;
                self.finish(permit, Status::NoResources, 0, limit);
            }
        }
    }

    pub(super) fn listen(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = d.session;
        let Some(session) = self.sessions.get(id, pd) else {
            return self.finish(permit, Status::BadSession, 0, id.0.into());
        };
        if !matches!(session.state, State::Idle) {
            return self.finish(permit, Status::BadState, 0, id.0.into());
        }
        let port = d.imm as u16;
        if port == 0 {
            return self.finish(permit, Status::BadDescriptor, 0, 4);
        }
        let backlog = match (d.imm >> 16) as usize {
            0 => DEFAULT_BACKLOG,
            n => n,
        };
        let mut listeners = Vec::new();
        for i in 0..self.streams.transports.len() {
            match self.streams.transports[i].listen(port, backlog) {
                Ok(l) => listeners.push((i, l)),
                Err(status) => {
                    for (i, l) in listeners {
                        self.streams.transports[i].unlisten(l);
                    }
                    return self.finish(permit, status, 0, port.into());
                }
            }
        }
        if listeners.is_empty() {
            return self.finish(permit, Status::Unsupported, 0, permit_opcode(d));
        }
        let slot = Core::slot(id);
        for l in &listeners {
            self.streams.listeners.insert(*l, slot);
        }
        let local = SocketAddrV4::new(self.config.ip, port);
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
        self.finish(permit, Status::Ok, 0, 0);
    }

    pub(super) fn accept_op(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = d.session;
        let slot = Core::slot(id);
        let Some(session) = self.sessions.get(id, pd) else {
            return self.finish(permit, Status::BadSession, 0, id.0.into());
        };
        if !matches!(session.state, State::Listening(_)) {
            return self.finish(permit, Status::BadState, 0, id.0.into());
        }
        let work = self.operation(permit, d, slot);
        let token = self.outstanding.insert(work);
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
                let limit = self.config.max_sessions as u64;
                self.retire(token, Status::NoResources, 0, limit);
                continue;
            };
            self.adopt(id, incoming, "accepted; the peer chose the transport");
            let from = address_word(incoming.peer);
            self.retire(token, Status::Ok, from, id.0.into());
        }
    }

    /// Sets a connection as the stream of a session.
    pub(super) fn adopt(&mut self, id: SessionId, c: Incoming, why: &'static str) {
        let slot = Core::slot(id);
        let ends = self.streams.transports[c.transport].endpoints(c.conn);
        self.streams.conns.insert((c.transport, c.conn), slot);
        let name = self.streams.transports[c.transport].name();
        tracing::info!(session = id.0, transport = name, peer = %c.peer, why, "established");
        if let Some(session) = self.sessions.at(slot) {
            session.local = ends.map(|e| e.0);
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

    pub(super) fn connect(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = d.session;
        let slot = Core::slot(id);
        let Some(session) = self.sessions.get(id, pd) else {
            return self.finish(permit, Status::BadSession, 0, id.0.into());
        };
        if !matches!(session.state, State::Idle) {
            return self.finish(permit, Status::BadState, 0, id.0.into());
        }
        let remote = remote_of(d);
        if remote.port() == 0 {
            return self.finish(permit, Status::BadDescriptor, 0, 4);
        }
        session.peer = Some(remote);
        let deadline = self.deadline_of(permit.queue, d);
        let work = self.operation(permit, d, slot);
        let token = self.outstanding.insert(work);
        self.try_transports(slot, token, remote, 0, deadline, Status::HostUnreachable);
    }

    /// Tries transports in policy order from number `first`; retires the operation when none is left.
    pub(super) fn try_transports(
        &mut self,
        slot: u32,
        token: WorkToken,
        remote: SocketAddrV4,
        first: usize,
        deadline: crate::types::NicTime,
        mut last: Status,
    ) {
        for i in first..self.streams.transports.len() {
            match self.streams.transports[i].connect(self.time.now, remote, deadline) {
                Ok(conn) => {
                    self.streams.conns.insert((i, conn), slot);
                    if let Some(w) = self.outstanding.get_mut(token) {
                        w.conn = Some((i, conn));
                    }
                    if let Some(s) = self.sessions.at(slot) {
                        s.state = State::Connecting {
                            work: token,
                            transport: i,
                            conn,
                        };
                    }
                    return;
                }
                Err(status) => last = status,
            }
        }
        if let Some(s) = self.sessions.at(slot) {
            s.state = State::Idle;
        }
        self.retire(token, last, 0, address_word(remote));
    }

    pub(super) fn shutdown_op(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = d.session;
        let Some(session) = self.sessions.get(id, pd) else {
            return self.finish(permit, Status::BadSession, 0, id.0.into());
        };
        if let (true, Some((status, detail))) = (d.flags.contains(Flags::CHAIN), session.chain) {
            return self.finish(permit, status, 0, detail);
        }
        let State::Stream(s) = &mut session.state else {
            return self.finish(permit, Status::BadState, 0, id.0.into());
        };
        let (shut, transport, conn) = (s.shut || s.reset, s.transport, s.conn);
        s.shut = true;
        if !shut {
            self.streams.transports[transport].shutdown(conn);
        }
        self.finish(permit, Status::Ok, 0, 0);
    }

    pub(super) fn close_op(&mut self, permit: Permit, pd: PdId, d: &Descriptor, abort: bool) {
        let id = d.session;
        if self.sessions.get(id, pd).is_none() {
            return self.finish(permit, Status::BadSession, 0, id.0.into());
        }
        self.close_slot(Core::slot(id), abort);
        self.finish(permit, Status::Ok, 0, 0);
    }

    /// Ends a session: its id is stale afterwards. A stream that is closed, not aborted, lingers
    /// until its queued sends are delivered.
    pub(crate) fn close_slot(&mut self, slot: u32, abort: bool) {
        let Some(session) = self.sessions.close(slot) else {
            return;
        };
        match session.state {
            State::Idle | State::Broken => {}
            State::Listening(l) => {
                for (t, listener) in l.listeners {
                    self.streams.listeners.remove(&(t, listener));
                    self.streams.transports[t].unlisten(listener);
                }
                for c in l.pending {
                    self.streams.conns.remove(&(c.transport, c.conn));
                    self.streams.transports[c.transport].abort(c.conn);
                }
                for token in l.accepts {
                    self.retire(token, Status::Aborted, 0, 0);
                }
            }
            State::Connecting {
                work,
                transport,
                conn,
            } => {
                self.streams.conns.remove(&(transport, conn));
                self.streams.transports[transport].abort(conn);
                self.retire(work, Status::Aborted, 0, 0);
            }
            State::Stream(s) => {
                self.streams.conns.remove(&(s.transport, s.conn));
                self.forget_engines(s.transport, s.conn, abort || s.reset);
                if abort || s.reset {
                    self.streams.transports[s.transport].abort(s.conn);
                } else {
                    let deadline = self.time.now.plus(self.config.linger);
                    self.streams
                        .lingering
                        .insert((s.transport, s.conn), Lingering { deadline });
                    self.streams.transports[s.transport].close(s.conn);
                }
            }
        }
    }
}

fn permit_opcode(d: &Descriptor) -> u64 {
    d.opcode.code().into()
}
