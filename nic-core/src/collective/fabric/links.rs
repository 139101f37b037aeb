//! Streams to peers: connection set-up, headers and payloads that arrive, and loss of a link.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

use super::frame::HEADER;
use super::link::{Dest, Link, LinkState, Rx, TxFrame, TxKey, EXPOSED_TOKEN};
use super::{Frame, Io, Pieces, FABRIC_TOKEN};
use crate::collective::settings::CommError;
use crate::memory::nic_memory::{Block, NicMemory};
use crate::transport::{why_chosen, RecvWork, TransportEvent};
use crate::types::{ConnId, ListenerId, NicTime, Owner, WorkToken};

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Time that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Connections that may wait for the fabric.
const BACKLOG: usize = 1024;
/// Most links: peers of all communicators, and unauthenticated peers.
const MAX_LINKS: usize = 4096;
/// How long an unknown peer may take to identify itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the buffer for dropped payload.
pub(super) const SINK: u32 = 64 << 10;

/// Where this NIC serves collectives, once it does.
#[derive(Debug, Default)]
struct Served {
    port: Option<u16>,
    /// On each transport.
    listeners: Vec<(usize, ListenerId)>,
}

/// What an event of a transport means for the fabric.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Nothing, or it was dealt with.
    Nothing,
    /// Frames flow on a link.
    Up(usize),
    /// A frame has left.
    Left(TxKey),
    /// A header has come.
    Header(usize),
    /// A payload has come.
    Payload(Dest),
    /// A link has ended, and is to be cut.
    Ended(usize),
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Links {
    ip: Ipv4Addr,
    served: Served,
    pub(super) all: Vec<Link>,
    by_conn: FxHashMap<(usize, ConnId), usize>,
    pub(super) by_peer: FxHashMap<SocketAddrV4, usize>,
    next_token: u64,
    /// Destination of bytes that are dropped.
    sink: Option<Block>,
    /// Links whose next header came with the bytes before it.
    headers: Vec<usize>,
    /// Transports have been given messages, or room for payloads, since it was last asked.
    pub(super) has_posted: bool,
}

impl Links {
    pub(super) fn new(ip: Ipv4Addr) -> Links {
        Links {
            ip,
            served: Served::default(),
            all: Vec::new(),
            by_conn: FxHashMap::default(),
            by_peer: FxHashMap::default(),
            next_token: 0,
            sink: None,
            headers: Vec::new(),
            has_posted: false,
        }
    }

    /// Where this NIC serves collectives.
    fn me(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip, self.served.port.unwrap_or(0))
    }

    /// Whether this NIC connects to that address, so that there is one stream: the lower address does.
    pub(super) fn connects_to(&self, peer: SocketAddrV4) -> bool {
        self.me() < peer
    }

    /// Whether that address connects to this NIC.
    pub(super) fn connects_from(&self, peer: SocketAddrV4) -> bool {
        peer < self.me()
    }

    /// Whether there is a place for bytes that are dropped.
    pub(super) fn has_sink(&mut self, nic_memory: &mut NicMemory) -> bool {
        self.sink = self.sink.or_else(|| nic_memory.alloc(SINK.into()));
        self.sink.is_some()
    }

    /// The link to an address, which is made if this NIC is the one that connects.
    pub(super) fn to(&mut self, io: &mut Io<'_>, peer: SocketAddrV4) -> Option<usize> {
        if let Some(l) = self.by_peer.get(&peer) {
            return Some(*l);
        }
        if !self.connects_to(peer) {
            return None;
        }
        let header = io.dma.nic_memory.alloc(HEADER as u64)?;
        let state = LinkState::Down(NicTime(0));
        self.all.push(Link::new(state, Some(peer), header));
        self.by_peer.insert(peer, self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    /// Hands queued frames of a link to its transport.
    pub(super) fn pump(&mut self, io: &mut Io<'_>, link: usize, done: &mut Vec<TxKey>) -> bool {
        let l = &mut self.all[link];
        let posted = l.pump(&mut *io.transports[l.transport], &mut self.next_token, done);
        self.has_posted |= posted;
        posted
    }

    /// Serves collectives at a port of every transport.
    pub(super) fn listen(
        &mut self,
        io: &mut Io<'_>,
        port: u16,
        rank: u32,
    ) -> Result<(), CommError> {
        match self.served.port {
            Some(p) if p == port => return Ok(()),
            Some(p) => {
                return Err(CommError::Port {
                    port: p,
                    rank,
                    asked: port,
                })
            }
            None => {}
        }
        for i in 0..io.transports.len() {
            match io.transports[i].listen(port, BACKLOG) {
                Ok(l) => self.served.listeners.push((i, l)),
                Err(status) => {
                    for (i, l) in self.served.listeners.drain(..) {
                        io.transports[i].unlisten(l);
                    }
                    return Err(CommError::Listen { port, status });
                }
            }
        }
        self.served.port = Some(port);
        Ok(())
    }

    /// What arrives at the moment is dropped from here on.
    pub(super) fn divert(&mut self, io: &mut Io<'_>, link: usize) {
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
        *into = Dest::Drop;
        *surplus += rest.drain(..).map(|b| u64::from(b.len)).sum::<u64>();
        // None: the piece is full, and its event comes.
        if let Some(done) = io.transports[t].cancel(conn, WorkToken(FABRIC_TOKEN | *token)) {
            *surplus += u64::from(piece.len) - done;
            self.next_piece(io, link);
        }
    }

    /// Takes the next pieces of a payload, and waits for the first that is not here. Where it went, when it has come as a whole.
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
                    self.await_header(io, link);
                    return Some(into);
                }
            }
        };
        self.next_token += 1;
        (*token, *piece) = (self.next_token, buffer);
        let work = RecvWork {
            token: WorkToken(FABRIC_TOKEN | self.next_token),
            by: *by,
            buffer,
            some: false,
        };
        io.transports[t].post_recv(conn, work);
        // The first bytes are in the transport's buffer as a rule: they go before more come, which then take no way around.
        self.has_posted = true;
        None
    }

    fn await_header(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.all[link];
        let buffer = io.dma.nic_memory.buffer(l.header.at, HEADER as u32);
        let t = l.transport;
        if io.recv_now((t, l.conn), &buffer) {
            l.rx = Rx::Idle;
            return self.headers.push(link);
        }
        l.await_header(&mut *io.transports[t], &mut self.next_token, buffer);
    }

    /// Whether headers have come that are not processed.
    pub(super) fn has_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// The next link of them.
    pub(super) fn next_header(&mut self) -> Option<usize> {
        self.headers.pop()
    }

    /// Begins to read a payload. Where it went, when it has come as a whole: it is empty.
    pub(super) fn take_payload(
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
    pub(super) fn on_event(
        &mut self,
        io: &mut Io<'_>,
        t: usize,
        e: &TransportEvent,
    ) -> Option<LinkEvent> {
        Some(match *e {
            TransportEvent::RemoteDone { .. } => return None,
            TransportEvent::SendDone {
                conn,
                token,
                status,
                detail,
                ..
            } => {
                if token.0 & FABRIC_TOKEN == 0 {
                    return None;
                }
                let Some(&l) = self.by_conn.get(&(t, conn)) else {
                    return Some(LinkEvent::Nothing);
                };
                let link = &mut self.all[l];
                if status == Status::ConnectionReset && link.state == LinkState::Up {
                    // Nothing leaves any more, but what the peer has sent before may still be
                    // read: the receive that waits sees the end.
                    link.mute = true;
                    return Some(LinkEvent::Nothing);
                }
                match link.sent(token) {
                    Some(key) if status == Status::Ok => LinkEvent::Left(key),
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
                if token.0 & FABRIC_TOKEN == 0 {
                    return None;
                }
                match self.by_conn.get(&(t, conn)) {
                    Some(&l) if token.0 & EXPOSED_TOKEN != 0 => match status {
                        // The low half.
                        Status::Ok => LinkEvent::Payload(Dest::Recv(token.0 as u32)),
                        _ if self.all[l].state == LinkState::Up => LinkEvent::Ended(l),
                        _ => LinkEvent::Nothing,
                    },
                    Some(&l) => self.on_recv(io, l, token.0 & !FABRIC_TOKEN, status),
                    None => LinkEvent::Nothing,
                }
            }
            TransportEvent::Connected { conn } => {
                let &l = self.by_conn.get(&(t, conn))?;
                let me = self.me();
                let link = &mut self.all[l];
                link.state = LinkState::Up;
                link.proven = true;
                link.why = why_chosen(io.transports, t);
                link.exposes = io.transports[t].exposes();
                io.transports[t].watch(conn);
                let (peer, transport) = (link.peer, io.transports[t].name());
                tracing::info!(?peer, transport, why = link.why, "link of a communicator");
                link.queue(TxFrame {
                    ctx: 0,
                    by: Owner::NIC,
                    frame: Frame::Hello { from: me },
                    payload: Pieces::default(),
                    key: TxKey::None,
                    to: None,
                });
                self.await_header(io, l);
                LinkEvent::Up(l)
            }
            TransportEvent::ConnectFailed { conn, status, .. } => {
                let l = self.by_conn.remove(&(t, conn))?;
                let next = matches!(status, Status::HostUnreachable | Status::NoResources);
                self.connect(io, l, if next { t + 1 } else { io.transports.len() });
                LinkEvent::Nothing
            }
            TransportEvent::Incoming { listener, conn, .. } => {
                if !self.served.listeners.contains(&(t, listener)) {
                    return None;
                }
                let free = self
                    .all
                    .iter()
                    .position(|l| l.peer.is_none() && matches!(l.state, LinkState::Down(_)));
                let room = free.is_some() || self.all.len() < MAX_LINKS;
                let header = io.dma.nic_memory.alloc(HEADER as u64);
                let Some(header) = header.filter(|_| room) else {
                    io.transports[t].abort(conn);
                    return Some(LinkEvent::Nothing);
                };
                let mut link =
                    Link::new(LinkState::Unidentified(io.now.plus(PATIENCE)), None, header);
                (link.transport, link.conn) = (t, conn);
                link.why = "the peer chose the transport";
                link.exposes = io.transports[t].exposes();
                let l = match free {
                    Some(l) => {
                        io.dma.nic_memory.free(self.all[l].header);
                        self.all[l] = link;
                        l
                    }
                    None => {
                        self.all.push(link);
                        self.all.len() - 1
                    }
                };
                self.by_conn.insert((t, conn), l);
                self.await_header(io, l);
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

    fn on_recv(&mut self, io: &mut Io<'_>, link: usize, token: u64, status: Status) -> LinkEvent {
        let l = &mut self.all[link];
        let current = match &l.rx {
            Rx::Idle => return LinkEvent::Nothing,
            Rx::Header(x) => *x == token,
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
        LinkEvent::Header(link)
    }

    /// The frame whose header has come; `None`: it is none.
    #[inline]
    pub(super) fn header(&mut self, io: &Io<'_>, link: usize) -> Option<Frame> {
        let l = &mut self.all[link];
        let mut bytes = [0; HEADER];
        io.dma.nic_memory.read(l.header.at, &mut bytes);
        l.rx = Rx::Idle;
        let frame = Frame::decode(&bytes);
        frame
            .inspect_err(
                |error| tracing::warn!(peer = ?l.peer, %error, "a connection of the fabric is cut"),
            )
            .ok()
    }

    /// A header was processed: waits for the next, unless its payload comes first.
    pub(super) fn go_on(&mut self, io: &mut Io<'_>, link: usize) {
        let waits = self.headers.contains(&link);
        if let (Rx::Idle, LinkState::Up, false) = (&self.all[link].rx, self.all[link].state, waits)
        {
            self.await_header(io, link);
        }
    }

    /// Aborts a connection. The peer and the communicators whose messages have not left, when frames flowed on it.
    pub(super) fn cut(&mut self, io: &mut Io<'_>, link: usize) -> Option<(SocketAddrV4, Vec<u64>)> {
        let me = self.me();
        let l = &mut self.all[link];
        io.transports[l.transport].abort(l.conn);
        self.by_conn.remove(&(l.transport, l.conn));
        self.headers.retain(|h| *h != link);
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

    /// Tries the transports from number `first`; when none is left, again a little later.
    pub(super) fn connect(&mut self, io: &mut Io<'_>, link: usize, first: usize) {
        let Some(peer) = self.all[link].peer else {
            return;
        };
        for i in first..io.transports.len() {
            let deadline = io.now.plus(ATTEMPT);
            if let Ok(conn) = io.transports[i].connect(io.now, peer, deadline) {
                self.by_conn.insert((i, conn), link);
                let l = &mut self.all[link];
                (l.transport, l.conn, l.state) = (i, conn, LinkState::Connecting);
                return;
            }
        }
        self.all[link].state = LinkState::Down(io.now.plus(RETRY));
    }
}
