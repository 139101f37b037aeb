//! The `local` transport: NICs of one host and one user.
//!
//! They find each other in a directory ([`rendezvous`]), share a segment with one ring of 64-byte
//! lines per direction ([`ring`], [`link`]), and speak packets of one line ([`packet`]). Small
//! payloads travel inside the line. Large ones are announced by bus address, and the *receiver's*
//! NIC copies them straight out of the sender's exported memory: one copy when a receive is
//! waiting; two when the bytes came early and were staged. Only the sender translates its
//! addresses; the receiver checks them against what the peer exports. The send retires when its
//! bytes were taken.
//!
//! They link within one network namespace only, unless both were opened with `local` by name.
//!
//! Two NICs in one process, and a NIC that connects to itself, use the same path.
//!
//! No message costs a system call. The sockets only report new and dead peers, so they are polled
//! every 200 µs at most, and when one has ended a sleep; a peer's wake descriptor is written only
//! when it sleeps.
//!
//! Payloads in memory that the peer cannot map (a real GPU's, bytes of the program's own) go
//! through NIC memory, piece by piece ([`stage`]): two copies.
//!
//! A NIC of more than eight peers is told which of them have written ([`ready`]).
//!
//! Limits. An early payload larger than what is left of `early_window` waits for its receive.

mod conn;
mod endpoint;
mod exports;
mod incoming;
mod io;
mod link;
mod links;
mod note;
mod one_sided;
mod packet;
mod ready;
mod receive;
mod rendezvous;
pub(crate) mod ring;
mod rx;
mod shared;
mod stage;
mod stage_room;
mod transmit;
mod tx;
pub(crate) use crate::sync;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::Export;
use ringbell_nic_abi::{InlineSend, PdId, Status};

use crate::config::LocalConfig;
use crate::datapath::Datapath;
use crate::memory::Sharer;
use crate::network::Network;
use crate::transport::connections::Listeners;
use crate::transport::{Caps, Close, ConnState, PeerWindow, Transport, TransportEvent, Work};
use crate::transport::{RecvWork, RemoteWork, SendWork};
use crate::types::{Buffer, ConnId, ListenerId, NicTime, Small, WorkToken};
use crate::wake::WakeCell;
use conn::{Conn, Phase, Table};
use endpoint::Endpoint;
use io::{Fill, In, Out};
use link::{Link, LinkState};
use packet::Packet;
use ready::Ready;
pub use rendezvous::LocalError;
use shared::Offers;
use stage_room::{Rooms, Stage};
use transmit::Stop;

/// Packets taken from one link in one step.
const BATCH: usize = 64;
/// Steps between two looks for bytes that wait without a receive.
const EARLY_EVERY: u32 = 16;
/// Time between two looks at the sockets.
const SOCKETS_EVERY: Duration = Duration::from_micros(200);

/// See the module text.
pub struct LocalTransport {
    config: LocalConfig,
    ip: Ipv4Addr,
    /// The endpoint where peers find this NIC.
    endpoint: Endpoint,
    offers: Offers,
    links: Vec<Option<Link>>,
    ready: Ready,
    table: Table,
    rooms: Rooms,
    /// What one-sided operations of ended connections have kept.
    left: Vec<one_sided::Held>,
    listeners: Listeners,
    next_port: u16,
    since_early: u32,
    sockets_at: NicTime,
    events: VecDeque<TransportEvent>,
    /// Links or connections that broke the protocol.
    violations: u64,
}

impl std::fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTransport")
            .field("ip", &self.ip)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl LocalTransport {
    /// Opens the rendezvous for a NIC.
    ///
    /// # Errors
    /// [`LocalError`]: a setting, the directory, or an address that is taken.
    pub(crate) fn new(
        config: &LocalConfig,
        ip: Ipv4Addr,
        exported: &[Export<'_>],
        wake: Arc<WakeCell>,
    ) -> Result<LocalTransport, LocalError> {
        config.validate()?;
        Ok(LocalTransport {
            config: config.clone(),
            ip,
            endpoint: Endpoint::open(config, ip, exported, wake)?,
            offers: Offers::new(),
            links: Vec::new(),
            ready: Ready::new(config.max_links),
            table: Table::new(config.max_conns),
            rooms: Rooms::default(),
            left: Vec::new(),
            listeners: Listeners::default(),
            next_port: 49152,
            since_early: 0,
            sockets_at: NicTime(0),
            events: VecDeque::with_capacity(64),
            violations: 0,
        })
    }

    fn open_conn(
        &mut self,
        link: usize,
        phase: Phase,
        local: SocketAddrV4,
        peer: SocketAddrV4,
    ) -> Option<ConnId> {
        let id = self.table.open(link, phase, (local, peer))?;
        if let Some(l) = &mut self.links[link] {
            l.users += 1;
        }
        Some(id)
    }

    #[inline]
    fn conn(&mut self, id: u32) -> Option<&mut Conn> {
        self.table.get_mut(id)
    }

    fn free_conn(&mut self, id: u32) {
        let Some(mut conn) = self.table.free(id) else {
            return;
        };
        // Any bytes that the peer still copies from there were revoked, or belong to no connection
        // any more.
        let room = conn.tx.stage.take().map(Stage::into_room);
        self.rooms.spare.extend(room);
        conn.one_sided
            .end(conn.id, (Status::Aborted, 0), &mut VecDeque::new());
        self.left.append(&mut conn.one_sided.left);
        if let Some(l) = &mut self.links[conn.link] {
            l.users -= 1;
        }
    }

    fn activate(&mut self, id: u32) {
        self.table.activate(id);
    }

    /// Notifies the peer that a connection is gone, when there is room.
    fn send_rst(&mut self, link: usize, dst: u32) {
        if let Some(l) = &mut self.links[link] {
            l.push_or_queue(Packet::Rst { dst });
        }
    }

    /// Ends a connection that the peer, or a fault, has broken.
    fn reset_conn(&mut self, id: u32) {
        let mut events = std::mem::take(&mut self.events);
        let mut zombie = false;
        let mut revoke = None;
        if let Some(c) = self.table.get_mut(id) {
            match c.phase {
                Phase::Calling { .. } | Phase::Waiting => {
                    events.push_back(TransportEvent::ConnectFailed {
                        conn: c.id,
                        status: Status::HostUnreachable,
                        answer: None,
                    });
                    zombie = true;
                }
                Phase::Zombie => zombie = true,
                Phase::Answering(_) | Phase::Open => {
                    if c.has_refs_out() {
                        revoke = Some(c.link);
                    }
                    c.break_works(&mut events);
                    self.left.append(&mut c.one_sided.left);
                    c.rx.drop_segs();
                    if !std::mem::replace(&mut c.reset, true) {
                        events.push_back(TransportEvent::Reset { conn: c.id });
                    }
                    if c.closing {
                        // No operation waits for it any more.
                        events.push_back(TransportEvent::Closed { conn: c.id });
                        zombie = true;
                    }
                }
            }
        }
        self.events = events;
        // Before the buffers, and room in NIC memory, are used again: the peer may not have seen
        // the end yet.
        if let Some(l) = revoke.and_then(|i| self.links[i].as_ref()) {
            l.revoke(id);
        }
        if zombie {
            self.free_conn(id);
        }
    }

    /// Moves one connection on. Returns (moved, wants to be called again).
    fn step_conn(&mut self, id: u32, budget: &mut u64, data: &mut Datapath<'_>) -> (bool, bool) {
        let Some(mut c) = self.table.take(id) else {
            return (false, false);
        };
        let (mut moved, mut again, mut broken) = (false, false, false);
        if let Some(l) = &mut self.links[c.link] {
            (moved, again) = Self::handshake(&mut c, l, &mut self.events);
            if c.phase == Phase::Open && !c.reset {
                let mut io = In {
                    link: l,
                    data,
                    events: &mut self.events,
                    budget,
                    moved: false,
                };
                match receive::fill(&mut c, &mut io) {
                    Fill::Done => {}
                    Fill::Budget | Fill::Later => again = true,
                    Fill::Broken => broken = true,
                }
                let one_sided = !c.one_sided.is_idle();
                if one_sided {
                    match one_sided::serve(c.id, c.peer_id, &mut c.one_sided, &mut io) {
                        Fill::Done => {}
                        Fill::Budget | Fill::Later => again = true,
                        Fill::Broken => broken = true,
                    }
                }
                moved |= io.moved;
                let mut out = Out {
                    link: l,
                    data,
                    events: &mut self.events,
                    exports: &self.endpoint.exports,
                    staging: self.config.staging,
                    rooms: &mut self.rooms,
                    moved: false,
                };
                let window = self.config.inline_window as u64;
                again |= transmit::pump(&mut c, &mut out, window) == Stop::Again;
                if one_sided && !c.reset && !broken {
                    match one_sided::pump(c.id, c.peer_id, &mut c.one_sided, &mut out) {
                        Ok(more) => again |= more,
                        Err(one_sided::Broken) => broken = true,
                    }
                }
                moved |= out.moved;
                one_sided::release(&mut c.one_sided.left, data.dma);
            }
        }
        if !c.rx.segs.is_empty() && c.recvs.is_empty() && c.rx.refs_waiting > 0 && !c.waiting {
            c.waiting = true;
            self.table.waiting.push(id);
        }
        // A peer that has ended in order takes no FIN any more.
        let dead = matches!(&self.links[c.link], Some(l) if l.state == LinkState::Dead);
        let done = c.sends.is_empty() && c.one_sided.requester.is_done();
        let ended = c.closing && (c.tx.fin_sent || dead) && done;
        if ended && c.phase == Phase::Open {
            c.phase = Phase::Zombie;
            self.events.push_back(TransportEvent::Closed { conn: c.id });
            moved = true;
        }
        let gone = c.phase == Phase::Zombie && (c.peer_closed || c.reset || dead);
        let (link, peer_id) = (c.link, c.peer_id);
        let by_us = c.failed.is_some();
        self.table.put(c);
        if broken {
            self.violations += u64::from(!by_us);
            self.send_rst(link, peer_id);
            self.reset_conn(id);
        } else if gone {
            self.free_conn(id);
        }
        (moved, again)
    }

    /// Sends what establishes a connection. Returns (moved, call again).
    fn handshake(
        c: &mut Conn,
        l: &mut Link,
        events: &mut VecDeque<TransportEvent>,
    ) -> (bool, bool) {
        let (p, next) = match c.phase {
            Phase::Calling { listener_port } => (
                Packet::Connect {
                    src: c.id.0,
                    port: listener_port,
                    src_port: c.ends.0.port(),
                },
                Phase::Waiting,
            ),
            Phase::Answering(_) => (
                Packet::Accept {
                    dst: c.peer_id,
                    src: c.id.0,
                },
                Phase::Open,
            ),
            _ => return (false, false),
        };
        if l.state != LinkState::Up {
            // Called again when the link comes up.
            return (false, false);
        }
        if !l.push(&p) {
            return (false, true);
        }
        if let Phase::Answering(listener) = c.phase {
            events.push_back(TransportEvent::Incoming {
                listener,
                conn: c.id,
                peer: c.ends.1,
            });
        }
        c.phase = next;
        (true, false)
    }

    /// Moves those connections on that have something to do.
    #[inline(never)]
    fn step_active(&mut self, data: &mut Datapath<'_>) -> bool {
        let (mut moved, mut budget) = (false, receive::STEP_BYTES);
        for _ in 0..self.table.active.len() {
            let Some(id) = self.table.active.pop_front() else {
                break;
            };
            if let Some(c) = self.conn(id) {
                c.active = false;
            }
            let (any, again) = self.step_conn(id, &mut budget, data);
            moved |= any;
            if again {
                self.activate(id);
            }
        }
        moved
    }

    #[inline(never)]
    fn look_for_early(&mut self, data: &mut Datapath<'_>) -> bool {
        let mut moved = false;
        for id in std::mem::take(&mut self.table.waiting) {
            let limit = self.config.early_window;
            let Some(c) = self.table.get_mut(id) else {
                continue;
            };
            c.waiting = false;
            if !c.recvs.is_empty() || c.reset || c.phase != Phase::Open {
                continue;
            }
            let Some(l) = &self.links[c.link] else {
                continue;
            };
            let mut io = In {
                link: l,
                data,
                events: &mut self.events,
                budget: &mut 0,
                moved: false,
            };
            let ok = receive::stage_early(c, limit, &mut io);
            let staged = io.moved;
            moved |= staged;
            let (link, peer) = (c.link, c.peer_id);
            if !ok {
                self.send_rst(link, peer);
                self.reset_conn(id);
            } else if staged {
                self.activate(id);
            }
        }
        moved
    }

    /// Queues a send.
    fn post_send(&mut self, conn: ConnId, work: SendWork) {
        let done = |status| TransportEvent::send_refused(conn, work.token, (status, 0));
        match self.conn(conn.0) {
            Some(c) if c.reset || c.peer_closed => {
                self.events.push_back(done(Status::ConnectionReset));
            }
            Some(c) if c.tx.shut || c.phase == Phase::Zombie => {
                self.events.push_back(done(Status::NotConnected));
            }
            Some(c) => {
                c.sends.post(work);
                self.activate(conn.0);
            }
            None => self.events.push_back(done(Status::NotConnected)),
        }
    }

    /// Queues a receive.
    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let done = |status| TransportEvent::recv_refused(conn, work.token, (status, 0));
        match self.conn(conn.0) {
            Some(c) if c.reset => self.events.push_back(done(Status::ConnectionReset)),
            Some(c) if !c.closing && c.phase != Phase::Zombie => {
                c.recvs.post(work);
                let wants_step = !c.rx.segs.is_empty() || c.rx.peer_fin || c.recvs.holds();
                if wants_step {
                    self.activate(conn.0);
                }
            }
            _ => self.events.push_back(done(Status::NotConnected)),
        }
    }

    /// Queues a one-sided operation, or sends it at once.
    fn post_remote(&mut self, conn: ConnId, work: RemoteWork) {
        let status = match self.table.get_mut(conn.0) {
            Some(c) if c.reset || c.peer_closed => Status::ConnectionReset,
            Some(c) if c.phase == Phase::Open && !c.tx.shut => {
                let (peer, requester) = (c.peer_id, &mut c.one_sided.requester);
                let link = self.links[c.link].as_mut();
                if !link.is_some_and(|l| requester.post_now(&work, peer, l)) {
                    requester.post(work);
                    self.activate(conn.0);
                }
                return;
            }
            _ => Status::NotConnected,
        };
        self.events.push_back(TransportEvent::RemoteDone {
            conn,
            token: work.token,
            status,
            bytes: 0,
            detail: 0,
        });
    }

    /// The end of both directions follows the queued sends.
    fn end_conn(&mut self, conn: ConnId) {
        let mut events = std::mem::take(&mut self.events);
        if let Some(c) = self.conn(conn.0) {
            // A half-close that was announced is announced again as a whole one.
            c.tx.fin_sent = false;
            (c.tx.shut, c.closing) = (true, true);
            c.fail_recvs(Status::NotConnected, &mut events);
            c.rx.drop_segs();
        }
        self.events = events;
        self.activate(conn.0);
    }

    /// Resets a connection at once.
    fn abort(&mut self, conn: ConnId) {
        let mut events = std::mem::take(&mut self.events);
        let mut tell = None;
        if let Some(c) = self.conn(conn.0) {
            if c.peer_knows() {
                tell = Some((c.link, c.peer_id, c.has_refs_out()));
            }
            c.fail_sends(Status::Aborted, &mut events);
            c.fail_recvs(Status::Aborted, &mut events);
        }
        self.events = events;
        if let Some((link, peer, refs_out)) = tell {
            if refs_out {
                if let Some(l) = &self.links[link] {
                    l.revoke(conn.0);
                }
            }
            self.send_rst(link, peer);
        }
        self.free_conn(conn.0);
    }
}

impl Transport for LocalTransport {
    fn caps(&self) -> Caps {
        Caps {
            eager_max: 8 << 10,
            ..Caps::streams("local")
        }
    }

    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        // The backlog is the command layer's: connections are reported as they come.
        self.listeners.listen(port, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.unlisten(listener);
    }

    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        let link = self.link_to(now, *remote.ip(), deadline)?;
        let local = SocketAddrV4::new(self.ip, self.next_port);
        self.next_port = self.next_port.checked_add(1).unwrap_or(49152);
        let phase = Phase::Calling {
            listener_port: remote.port(),
        };
        let id = self
            .open_conn(link, phase, local, remote)
            .ok_or(Status::NoResources)?;
        self.activate(id.0);
        Ok(id)
    }

    #[inline]
    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        let Some(c) = self.table.get_mut(conn.0) else {
            return false;
        };
        let free = c.phase == Phase::Open && c.sends.is_empty();
        if !free || c.reset || c.peer_closed || c.tx.shut {
            return false;
        }
        let on_the_way = c.tx.inline_sent - c.tx.inline_acked + u64::from(payload.len);
        let Some(link) = &mut self.links[c.link] else {
            return false;
        };
        let line = packet::inline_line(c.peer_id, payload.len, &payload.words);
        if on_the_way > link.peer_window || !link.push_line(&line) {
            return false;
        }
        c.tx.inline_sent += u64::from(payload.len);
        true
    }

    fn flush(&mut self) {
        match self.ready.by_marks() {
            true => {
                self.flush_marked(false);
            }
            false => self.links.iter_mut().flatten().for_each(Link::flush),
        }
    }

    #[inline]
    fn recv_small(&mut self, conn: ConnId, receive: &mut dyn FnMut(&Small) -> bool) -> bool {
        let quarter = self.config.inline_window as u64 / 4;
        let Some(c) = self.table.get_mut(conn.0) else {
            return false;
        };
        if !c.may_receive_now() || !c.rx.segs.is_empty() {
            return false;
        }
        let Some(link) = &mut self.links[c.link] else {
            return false;
        };
        let next = link.peek_payload();
        let Some(small) = next.and_then(|(head, words)| packet::inline_to(conn.0, head, words))
        else {
            return false;
        };
        if !receive(&small) {
            return false;
        }
        link.advance();
        c.rx.inline_taken += u64::from(small.len);
        // The window that this opens is announced in a step of its own.
        if c.rx.inline_taken - c.rx.inline_told >= quarter {
            self.activate(conn.0);
        }
        true
    }

    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        let quarter = self.config.inline_window as u64 / 4;
        let c = self.table.get_mut(conn.0)?;
        if c.rx.segs.is_empty() || !c.may_receive_now() {
            return None;
        }
        let link = self.links[c.link].as_ref()?;
        let n = receive::take_staged(c, link, buffer, some, data)?;
        // The window that this opens is announced in a step of its own.
        if c.rx.inline_taken - c.rx.inline_told >= quarter {
            self.activate(conn.0);
        }
        Some(n)
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        // One branch for four questions: each step asks them.
        let waits = self.table.active.len() | self.table.waiting.len();
        (waits | self.events.len() | self.left.len()) == 0
            && match self.ready.by_marks() {
                true => self.ready.many_are_quiet(&self.endpoint.wake),
                false => self.links.iter().flatten().all(Link::is_quiet),
            }
    }

    fn post(&mut self, conn: ConnId, work: Work) {
        match work {
            Work::Send(work) => self.post_send(conn, work),
            Work::Receive(work) => self.post_recv(conn, work),
            Work::Remote(work) => self.post_remote(conn, work),
            Work::Write(..) => self.events.push_back(work.unsupported(conn)),
        }
    }

    fn grant(&mut self, conn: ConnId, pd: PdId) {
        if let Some(c) = self.conn(conn.0) {
            c.one_sided.responder.grant(pd);
            self.activate(conn.0);
        }
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let c = self.conn(conn.0)?;
        if let Some(bytes) = c.recvs.cancel(token) {
            return Some(bytes);
        }
        if let Some(bytes) = c.one_sided.requester.cancel(token) {
            return Some(bytes);
        }
        let send = c.sends.cancel(token)?;
        if send.was_next {
            c.tx.drop_unsent();
        }
        let link = c.link;
        if let (true, Some(l)) = (send.referred, &self.links[link]) {
            l.revoke(conn.0);
        }
        Some(send.bytes)
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        match how {
            Close::Sending => {
                if let Some(c) = self.conn(conn.0) {
                    c.tx.shut = true;
                    self.activate(conn.0);
                }
            }
            Close::Gracefully => self.end_conn(conn),
            Close::Now => self.abort(conn),
        }
    }

    fn step(&mut self, now: NicTime, _: &mut Network, data: &mut Datapath<'_>) -> bool {
        let due = now >= self.sockets_at || self.endpoint.wake.take_called();
        let mut moved = false;
        if due {
            self.sockets_at = now.plus(SOCKETS_EVERY);
            moved = self.look_at_sockets(now);
        }
        if self.ready.by_marks() {
            moved |= self.take_marked(data);
        } else {
            for i in 0..self.links.len() {
                if self.has_packets(i) {
                    moved |= self.take_packets(i, data);
                }
            }
        }
        if !self.table.active.is_empty() {
            moved |= self.step_active(data);
        }
        if moved {
            self.since_early = 0;
        } else if !self.table.waiting.is_empty() {
            self.since_early += 1;
            if self.since_early >= EARLY_EVERY {
                self.since_early = 0;
                moved |= self.look_for_early(data);
            }
        }
        self.rooms.trim(data.dma);
        one_sided::release(&mut self.left, data.dma);
        if self.ready.by_marks() {
            return moved | self.flush_marked(true);
        }
        for l in self.links.iter_mut().flatten() {
            if l.has_control() {
                moved |= l.push_control();
            }
            l.flush();
        }
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    fn next_timer(&self) -> Option<NicTime> {
        let waits = !self.table.active.is_empty() || !self.table.waiting.is_empty();
        if !waits && self.ready.is_settled() {
            return None;
        }
        let notes = self.links.iter().flatten().any(|l| l.shared.is_waiting());
        let stuck = notes || waits;
        let shaking = self
            .links
            .iter()
            .flatten()
            .filter(|l| matches!(l.state, LinkState::Calling | LinkState::Called))
            .map(|l| l.deadline)
            .min();
        if stuck {
            // Waits for room in a ring or for a few idle steps; the peer's wake-up covers neither.
            return Some(self.sockets_at);
        }
        shaking
    }

    fn conn_state(&self, conn: ConnId) -> Option<ConnState> {
        let (local, peer) = self.table.get(conn.0)?.ends;
        Some(ConnState::between(local, peer))
    }

    fn peer_window(&self, conn: ConnId) -> Option<&dyn PeerWindow> {
        let c = self.table.get(conn.0)?;
        let link: &dyn PeerWindow = self.links[c.link].as_ref()?;
        Some(link)
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        Some(self)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.endpoint.epoll.as_fd()]
    }
}
