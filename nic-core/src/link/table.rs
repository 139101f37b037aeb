//! The links of a NIC: made, dialled, found by their streams, and cut.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

use super::hello::{self, Hello};
use super::restless::Restless;
use super::stream::{LinkState, Rx};
use super::{Dest, Io, Link, Outgoing, Pieces, EXPOSED_TOKEN, HEAD, LINK_TOKEN};
use crate::memory::nic_memory::{Block, NicMemory};
use crate::transport::order::{is_for_another, Order};
use crate::transport::{Close, Payload, RecvWork, SendWork, TransportEvent, Work};
use crate::types::{ConnId, ListenerId, NicTime, Owner, WorkToken};

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Time that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Connections that may wait to be taken.
const BACKLOG: usize = 1024;
/// Most links, those of peers that have not said who they are included.
const MAX_LINKS: usize = 4096;
/// How long an unknown peer may take to identify itself. Among many more ranks than cores it has no
/// turn for seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the buffer for dropped payload.
pub(crate) const SINK: u32 = 64 << 10;

/// Where this NIC is dialled, once it is.
#[derive(Debug, Default)]
struct Served {
    port: Option<u16>,
    /// On each transport.
    listeners: Vec<(usize, ListenerId)>,
}

/// What an event of a transport means.
#[derive(Debug)]
pub(crate) enum LinkEvent<K> {
    /// Nothing, or it was dealt with.
    Nothing,
    /// Messages flow on a link.
    Up(usize),
    /// A message has left.
    Left(K),
    /// A head has come.
    Head(usize),
    /// A payload has come.
    Payload(Dest),
    /// A link has ended, and is to be cut.
    Ended(usize),
}

/// A head that has come.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// One of the layer above.
    Head([u8; HEAD]),
    /// The peer of the link is known now. Another link that claimed to be that one's is to be cut.
    Up {
        /// The other.
        cut: Option<usize>,
    },
    /// A NIC wants to be dialled at this address. The connection has carried all that it was for,
    /// and is to be cut.
    Asked(SocketAddrV4),
    /// One that a correct peer does not send: the link is to be cut.
    Wrong,
}

/// What a link needs from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Queued messages are to be handed over.
    Pump,
    /// Its peer has not said in time who it is: it is to be cut.
    Cut,
    /// It is down, and may be dialled.
    Dial,
}

/// Why a NIC cannot be dialled at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenError {
    /// It is dialled at this one already.
    At(u16),
    /// A transport refuses.
    Transport(Status),
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Links<K> {
    ip: Ipv4Addr,
    served: Served,
    all: Vec<Link<K>>,
    /// Those that may need something from a step.
    restless: Restless,
    by_conn: FxHashMap<(usize, ConnId), usize>,
    by_peer: FxHashMap<SocketAddrV4, usize>,
    next_token: u64,
    /// Destination of bytes that are dropped.
    sink: Option<Block>,
    /// Links whose next head came with the bytes before it.
    heads: Vec<usize>,
    /// Transports have been given messages, or room for payloads, since it was last asked.
    has_posted: bool,
}

impl<K: Copy + PartialEq> Links<K> {
    pub(crate) fn new(ip: Ipv4Addr) -> Links<K> {
        Links {
            ip,
            served: Served::default(),
            all: Vec::new(),
            restless: Restless::default(),
            by_conn: FxHashMap::default(),
            by_peer: FxHashMap::default(),
            next_token: 0,
            sink: None,
            heads: Vec::new(),
            has_posted: false,
        }
    }

    /// Where this NIC is dialled.
    fn me(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip, self.served.port.unwrap_or(0))
    }

    /// How many links there are; they are numbered from 0.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(crate) fn at(&self, link: usize) -> &Link<K> {
        &self.all[link]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, link: usize) -> &mut Link<K> {
        self.restless.insert(link);
        &mut self.all[link]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link<K>> {
        self.all.iter()
    }

    /// The next link from a number on that needs something. `now`: the time, if it was read for
    /// this step.
    #[inline]
    pub(crate) fn next_due(&mut self, from: usize, now: Option<NicTime>) -> Option<(usize, Due)> {
        let mut link = from;
        loop {
            link = self.restless.next(link)?;
            let due = self.due(link, now);
            if due != Due::Nothing {
                return Some((link, due));
            }
            // The others wait for a time.
            if let LinkState::Up | LinkState::Connecting = self.all[link].state {
                self.restless.remove(link);
            }
            link += 1;
        }
    }

    #[inline]
    fn due(&self, link: usize, now: Option<NicTime>) -> Due {
        let l = &self.all[link];
        let has_come = |at: NicTime| now.is_some_and(|now| at <= now);
        match l.state {
            LinkState::Up if l.has_queued() => Due::Pump,
            LinkState::Unidentified(until) if has_come(until) => Due::Cut,
            LinkState::Down(at) if has_come(at) => Due::Dial,
            _ => Due::Nothing,
        }
    }

    /// Whether messages of any link wait to be handed over.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        debug_assert!(self.has_found_all());
        self.restless.any(|l| self.all[l].has_queued())
    }

    /// Links that are down, and when each may be dialled again.
    pub(crate) fn down(&self) -> impl Iterator<Item = (usize, NicTime)> + '_ {
        let down = |l: usize| Some((l, self.all[l].is_down_until()?));
        self.restless.iter().filter_map(down)
    }

    /// Whether no link is left out that needs something; asked of NICs with few links.
    fn has_found_all(&self) -> bool {
        let ever = Some(NicTime(u64::MAX - 1));
        let needs = |l: usize| self.due(l, ever) != Due::Nothing;
        let mut left_out =
            (0..self.all.len().min(16)).filter(|l| self.restless.next(*l) != Some(*l));
        !left_out.any(needs)
    }

    /// Whether transports have been given messages, or room for payloads, since this was last
    /// asked.
    #[inline]
    pub(crate) fn take_posted(&mut self) -> bool {
        std::mem::take(&mut self.has_posted)
    }

    /// Whether this NIC dials that address, so that there is one link: the lower address does. The
    /// other asks to be dialled.
    fn dials(&self, peer: SocketAddrV4) -> bool {
        self.me() < peer
    }

    /// Whether there is a place for bytes that are dropped.
    pub(crate) fn has_sink(&mut self, nic_memory: &mut NicMemory) -> bool {
        self.sink = self.sink.or_else(|| nic_memory.alloc(SINK.into()));
        self.sink.is_some()
    }

    /// The link to an address, if messages flow on it.
    pub(crate) fn up_to(&self, peer: SocketAddrV4) -> Option<usize> {
        let link = self.by_peer.get(&peer).copied();
        link.filter(|l| self.all[*l].is_up())
    }

    /// Begins a link to an address, unless there is one. The higher address waits for the other to
    /// dial; with `asks` it asks for that.
    pub(crate) fn want(&mut self, io: &mut Io<'_>, peer: SocketAddrV4, asks: bool) {
        let dials = self.dials(peer);
        if self.by_peer.contains_key(&peer) || !(dials || asks) {
            return;
        }
        let Some(head) = io.dma.nic_memory.alloc(HEAD as u64) else {
            return;
        };
        let state = LinkState::Down(NicTime(0));
        let mut new = Link::new(state, Some(peer), head);
        new.asks = !dials;
        let link = match self.free() {
            Some(link) => {
                io.dma.nic_memory.free(self.all[link].head);
                self.all[link] = new;
                link
            }
            None => {
                self.all.push(new);
                self.all.len() - 1
            }
        };
        self.restless.insert(link);
        self.by_peer.insert(peer, link);
    }

    /// A NIC has asked to be dialled: tries it once, unless there is a link. It asks again.
    pub(crate) fn dial_back(&mut self, io: &mut Io<'_>, peer: SocketAddrV4) {
        if !self.dials(peer) {
            return;
        }
        self.want(io, peer, false);
        let link = self.by_peer.get(&peer).copied();
        if let Some(l) = link.filter(|l| self.all[*l].is_down_until().is_some()) {
            self.connect(io, l, None);
        }
    }

    /// A place whose link is gone.
    fn free(&self) -> Option<usize> {
        let is_free = |l: &Link<K>| l.peer.is_none() && matches!(l.state, LinkState::Down(_));
        self.all.iter().position(is_free)
    }

    /// Hands queued messages of a link to its transport.
    pub(crate) fn pump(&mut self, io: &mut Io<'_>, link: usize, done: &mut Vec<K>) -> bool {
        let l = &mut self.all[link];
        let posted = l.pump(&mut *io.transports[l.transport], &mut self.next_token, done);
        self.has_posted |= posted;
        posted
    }

    /// Lets peers dial this NIC, at a port of every transport.
    ///
    /// # Errors
    /// [`ListenError`]: another port, or what a transport says.
    pub(crate) fn listen(&mut self, io: &mut Io<'_>, port: u16) -> Result<(), ListenError> {
        match self.served.port {
            Some(p) if p == port => return Ok(()),
            Some(p) => return Err(ListenError::At(p)),
            None => {}
        }
        for i in 0..io.transports.len() {
            match io.transports[i].listen(port, BACKLOG) {
                Ok(l) => self.served.listeners.push((i, l)),
                Err(status) => {
                    for (i, l) in self.served.listeners.drain(..) {
                        io.transports[i].unlisten(l);
                    }
                    return Err(ListenError::Transport(status));
                }
            }
        }
        self.served.port = Some(port);
        Ok(())
    }

    /// What arrives at the moment is dropped from here on.
    pub(crate) fn divert(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.all[link];
        let (t, conn) = (l.transport, l.conn);
        let Rx::Payload {
            into,
            token,
            piece,
            rest,
            surplus,
            ..
        } = &mut l.rx
        else {
            return;
        };
        *into = Dest::Nowhere;
        *surplus += rest.drain(..).map(|b| u64::from(b.len)).sum::<u64>();
        // None: the piece is full, and its event comes.
        if let Some(done) = io.transports[t].cancel(conn, WorkToken(LINK_TOKEN | *token)) {
            *surplus += u64::from(piece.len) - done;
            self.next_piece(io, link);
        }
    }

    /// Takes the next pieces of a payload, and waits for the first that is not here. Where it went,
    /// when it has come as a whole.
    fn next_piece(&mut self, io: &mut Io<'_>, link: usize) -> Option<Dest> {
        let sink = self.sink.map_or(0, |s| s.at);
        let l = &mut self.all[link];
        let (t, conn) = (l.transport, l.conn);
        let Rx::Payload {
            into,
            token,
            piece,
            rest,
            surplus,
            by,
        } = &mut l.rx
        else {
            return None;
        };
        let buffer = loop {
            let next = rest.pop_front().or_else(|| {
                let n = (*surplus).min(SINK.into()) as u32;
                *surplus -= u64::from(n);
                (n > 0).then(|| io.dma.nic_memory.buffer(sink, n))
            });
            match next {
                Some(buffer) if io.recv_now((t, conn), &buffer) => {}
                Some(buffer) => break buffer,
                None => {
                    let into = *into;
                    self.await_head(io, link);
                    return Some(into);
                }
            }
        };
        self.next_token += 1;
        (*token, *piece) = (self.next_token, buffer);
        let work = RecvWork {
            token: WorkToken(LINK_TOKEN | self.next_token),
            by: *by,
            buffer,
            some: false,
        };
        io.transports[t].post(conn, Work::Receive(work));
        // The first bytes are in the transport's buffer as a rule: they go before more come, which
        // then take no way around.
        self.has_posted = true;
        None
    }

    fn await_head(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.all[link];
        let buffer = io.dma.nic_memory.buffer(l.head.at, HEAD as u32);
        let t = l.transport;
        if io.recv_now((t, l.conn), &buffer) {
            l.rx = Rx::Idle;
            return self.heads.push(link);
        }
        l.await_head(&mut *io.transports[t], &mut self.next_token, buffer);
    }

    /// Whether heads have come that are not processed.
    pub(crate) fn has_heads(&self) -> bool {
        !self.heads.is_empty()
    }

    /// The next link of them.
    pub(crate) fn next_head(&mut self) -> Option<usize> {
        self.heads.pop()
    }

    /// Begins to read a payload. Where it went, when it has come as a whole: it is empty.
    pub(crate) fn take_payload(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        (into, by): (Dest, Owner),
        pieces: &Pieces,
        len: u64,
    ) -> Option<Dest> {
        let taken = pieces.prefix(len);
        self.all[link].rx = Rx::Payload {
            into,
            token: 0,
            piece: io.dma.nic_memory.buffer(0, 0),
            surplus: len - taken.len(),
            by,
            rest: taken.iter().copied().collect(),
        };
        self.next_piece(io, link)
    }

    /// Processes an event; `None`: it is of no link.
    pub(crate) fn on_event(
        &mut self,
        io: &mut Io<'_>,
        t: usize,
        e: &TransportEvent,
    ) -> Option<LinkEvent<K>> {
        Some(match *e {
            TransportEvent::RemoteDone { .. } => return None,
            TransportEvent::SendDone {
                conn,
                token,
                status,
                detail,
                ..
            } => {
                if token.0 & LINK_TOKEN == 0 {
                    return None;
                }
                let Some(&l) = self.by_conn.get(&(t, conn)) else {
                    return Some(LinkEvent::Nothing);
                };
                let link = &mut self.all[l];
                let is_reset = matches!(status, Status::ConnectionReset | Status::HostUnreachable);
                if is_reset && link.state == LinkState::Up {
                    // Nothing leaves any more, but what the peer has sent before may still be
                    // read: the receive that waits sees the end.
                    link.mute = true;
                    return Some(LinkEvent::Nothing);
                }
                match link.sent(token) {
                    Some(key) if status == Status::Ok => {
                        key.map_or(LinkEvent::Nothing, LinkEvent::Left)
                    }
                    _ if status != Status::Ok && link.state == LinkState::Up => {
                        tracing::warn!(%status, detail, "a message could not leave; its link ends");
                        LinkEvent::Ended(l)
                    }
                    _ => LinkEvent::Nothing,
                }
            }
            TransportEvent::RecvDone {
                conn,
                token,
                status,
                ..
            } => {
                if token.0 & LINK_TOKEN == 0 {
                    return None;
                }
                match self.by_conn.get(&(t, conn)) {
                    Some(&l) if token.0 & EXPOSED_TOKEN != 0 => match status {
                        // The low half.
                        Status::Ok => LinkEvent::Payload(Dest::Place(token.0 & 0xffff_ffff)),
                        _ if self.all[l].state == LinkState::Up => LinkEvent::Ended(l),
                        _ => LinkEvent::Nothing,
                    },
                    Some(&l) => self.on_recv(io, l, token.0 & !LINK_TOKEN, status),
                    None => LinkEvent::Nothing,
                }
            }
            TransportEvent::Connected { conn } => {
                let &l = self.by_conn.get(&(t, conn))?;
                if self.all[l].asks {
                    self.ask(io, l);
                    return Some(LinkEvent::Nothing);
                }
                let me = self.me();
                let link = self.at_mut(l);
                link.state = LinkState::Up;
                link.proven = true;
                if let Some(peer) = link.peer {
                    link.why = Order::new(io.transports, io.net, peer).why(io.transports, t);
                }
                io.transports[t].watch(conn);
                let (peer, transport) = (link.peer, io.transports[t].caps().name);
                tracing::info!(?peer, transport, why = link.why, "a link is up");
                link.queue(Outgoing {
                    channel: 0,
                    by: Owner::NIC,
                    head: hello::encode(Hello::Link(me)),
                    payload: Pieces::default(),
                    key: None,
                    to: None,
                    outlives: true,
                });
                self.await_head(io, l);
                LinkEvent::Up(l)
            }
            TransportEvent::ConnectFailed {
                conn,
                status,
                answer,
            } => {
                let l = self.by_conn.remove(&(t, conn))?;
                if is_for_another(status, answer) {
                    self.connect(io, l, Some(t));
                } else {
                    self.at_mut(l).state = LinkState::Down(io.now.plus(RETRY));
                }
                LinkEvent::Nothing
            }
            TransportEvent::Incoming { listener, conn, .. } => {
                if !self.served.listeners.contains(&(t, listener)) {
                    return None;
                }
                let free = self.free();
                let room = free.is_some() || self.all.len() < MAX_LINKS;
                let head = io.dma.nic_memory.alloc(HEAD as u64);
                let Some(head) = head.filter(|_| room) else {
                    io.transports[t].close(conn, Close::Now);
                    return Some(LinkEvent::Nothing);
                };
                let mut link =
                    Link::new(LinkState::Unidentified(io.now.plus(PATIENCE)), None, head);
                (link.transport, link.conn) = (t, conn);
                link.why = "the peer chose the transport";
                let l = match free {
                    Some(l) => {
                        io.dma.nic_memory.free(self.all[l].head);
                        self.all[l] = link;
                        l
                    }
                    None => {
                        self.all.push(link);
                        self.all.len() - 1
                    }
                };
                self.restless.insert(l);
                self.by_conn.insert((t, conn), l);
                self.await_head(io, l);
                LinkEvent::Nothing
            }
            TransportEvent::PeerClosed { conn } | TransportEvent::Reset { conn } => {
                let &l = self.by_conn.get(&(t, conn))?;
                if matches!(e, TransportEvent::PeerClosed { .. }) {
                    // Bytes may still be on their way; the receive that waits will see the end.
                    return Some(LinkEvent::Nothing);
                }
                LinkEvent::Ended(l)
            }
            TransportEvent::Closed { conn } if self.by_conn.contains_key(&(t, conn)) => {
                LinkEvent::Nothing
            }
            TransportEvent::Closed { .. } => return None,
        })
    }

    fn on_recv(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        token: u64,
        status: Status,
    ) -> LinkEvent<K> {
        let l = &mut self.all[link];
        let current = match &l.rx {
            Rx::Idle => return LinkEvent::Nothing,
            Rx::Head(x) => *x == token,
            Rx::Payload { token: x, .. } => *x == token,
        };
        if !current {
            return LinkEvent::Nothing;
        }
        if status != Status::Ok {
            return match l.state {
                LinkState::Up | LinkState::Unidentified(_) => LinkEvent::Ended(link),
                _ => LinkEvent::Nothing,
            };
        }
        if let Rx::Payload { .. } = l.rx {
            let all = self.next_piece(io, link);
            return all.map_or(LinkEvent::Nothing, LinkEvent::Payload);
        }
        LinkEvent::Head(link)
    }

    /// The head that has come on a link.
    #[inline]
    pub(crate) fn head(&mut self, io: &mut Io<'_>, link: usize) -> Arrived {
        let l = &mut self.all[link];
        let mut bytes = [0; HEAD];
        io.dma.nic_memory.read(l.head.at, &mut bytes);
        l.rx = Rx::Idle;
        match l.state {
            LinkState::Up => Arrived::Head(bytes),
            LinkState::Unidentified(_) => self.identify(io, link, &bytes),
            _ => Arrived::Wrong,
        }
    }

    /// An unknown peer says who it is. The claim is unproven until the layer above says otherwise;
    /// until then the next peer with that address replaces it.
    fn identify(&mut self, io: &mut Io<'_>, link: usize, head: &[u8; HEAD]) -> Arrived {
        let from = match hello::decode(head) {
            // One that this NIC dials itself is another.
            Some(Hello::Link(from)) if from < self.me() => from,
            Some(Hello::Ask(from)) if self.dials(from) => return Arrived::Asked(from),
            _ => return Arrived::Wrong,
        };
        let before = self.by_peer.get(&from).copied();
        if before.is_some_and(|old| self.all[old].proven) {
            return Arrived::Wrong;
        }
        self.by_peer.insert(from, link);
        let l = self.at_mut(link);
        (l.peer, l.state) = (Some(from), LinkState::Up);
        io.transports[l.transport].watch(l.conn);
        Arrived::Up { cut: before }
    }

    /// A head was processed: waits for the next, unless its payload comes first.
    pub(crate) fn go_on(&mut self, io: &mut Io<'_>, link: usize) {
        let waits = self.heads.contains(&link);
        if let (Rx::Idle, LinkState::Up, false) = (&self.all[link].rx, self.all[link].state, waits)
        {
            self.await_head(io, link);
        }
    }

    /// Cuts a link. The peer and the channels whose messages have not left, when messages flowed on
    /// it.
    pub(crate) fn cut(&mut self, io: &mut Io<'_>, link: usize) -> Option<(SocketAddrV4, Vec<u64>)> {
        let me = self.me();
        self.restless.insert(link);
        let l = &mut self.all[link];
        io.transports[l.transport].close(l.conn, Close::Now);
        self.by_conn.remove(&(l.transport, l.conn));
        self.heads.retain(|h| *h != link);
        let was_up = l.state == LinkState::Up;
        let missed = l.unsent();
        l.reset();
        l.conn = ConnId(u32::MAX);
        l.proven = false;
        l.state = LinkState::Down(io.now.plus(RETRY));
        let peer = l.peer?;
        if me >= peer {
            // The peer connects again; the slot is free.
            l.peer = None;
            if self.by_peer.get(&peer) == Some(&link) {
                self.by_peer.remove(&peer);
            }
        }
        was_up.then_some((peer, missed))
    }

    /// Ends all links: the peers see an orderly end behind what was handed over.
    pub(crate) fn close(&mut self, io: &mut Io<'_>) {
        let up = self.all.iter_mut().filter(|l| l.state == LinkState::Up);
        for l in up {
            io.transports[l.transport].close(l.conn, Close::Gracefully);
            // The receive that ends with it is no reason to cut the connection.
            l.state = LinkState::Down(NicTime(u64::MAX));
        }
    }

    /// Asks the peer to dial this NIC, on a connection that ends with that. It is asked again until
    /// its link is there, which takes this one's place.
    fn ask(&mut self, io: &mut Io<'_>, link: usize) {
        self.next_token += 1;
        let bytes = hello::encode(Hello::Ask(self.me()));
        let work = SendWork {
            token: WorkToken(LINK_TOKEN | self.next_token),
            by: Owner::NIC,
            payload: Payload::Inline {
                bytes,
                len: HEAD as u8,
            },
            push: true,
        };
        let l = &mut self.all[link];
        let transport = &mut io.transports[l.transport];
        transport.post(l.conn, Work::Send(work));
        transport.close(l.conn, Close::Gracefully);
        self.by_conn.remove(&(l.transport, l.conn));
        l.conn = ConnId(u32::MAX);
        l.asked = l.asked.saturating_add(1);
        let wait = RETRY * (1 << l.asked.min(6));
        l.state = LinkState::Down(io.now.plus(wait));
        self.restless.insert(link);
        self.has_posted = true;
    }

    /// Tries the transports, those behind the one that has failed; when none is left, again a
    /// little later.
    pub(crate) fn connect(&mut self, io: &mut Io<'_>, link: usize, failed: Option<usize>) {
        let Some(peer) = self.all[link].peer else {
            return;
        };
        let order = Order::new(io.transports, io.net, peer);
        let mut next = order.after(failed);
        while let Some(i) = next {
            let deadline = order.until(i, io.now, io.now.plus(ATTEMPT));
            if let Ok(conn) = io.transports[i].connect(io.now, peer, deadline) {
                self.by_conn.insert((i, conn), link);
                let l = &mut self.all[link];
                (l.transport, l.conn, l.state) = (i, conn, LinkState::Connecting);
                return;
            }
            next = order.after(next);
        }
        self.at_mut(link).state = LinkState::Down(io.now.plus(RETRY));
    }
}
