//! Processing of a peer's packets.

use super::conn::Phase;
use super::one_sided::line::{OneSidedPacket, PutBytes};
use super::*;

impl LocalTransport {
    /// Takes packets of the links that have marks.
    #[inline(never)]
    pub(super) fn take_marked(&mut self, data: &mut Datapath<'_>) -> bool {
        let mut moved = false;
        for word in 0..self.ready.words() {
            for i in self.ready.links_to_read(word, &self.endpoint.wake) {
                if self.has_packets(i) {
                    moved |= self.take_packets(i, data);
                    if self.has_packets(i) {
                        self.ready.may_read(i);
                    }
                }
            }
        }
        moved
    }

    #[inline]
    pub(super) fn has_packets(&self, link: usize) -> bool {
        let link = self.links.get(link).and_then(Option::as_ref);
        link.is_some_and(Link::has_packets)
    }

    #[inline(never)]
    pub(super) fn take_packets(&mut self, link: usize, data: &mut Datapath<'_>) -> bool {
        let mut moved = false;
        for _ in 0..BATCH {
            let Some(l) = self.links[link].as_mut() else {
                break;
            };
            let Some(words) = l.peek() else { break };
            l.advance();
            moved = true;
            // The most frequent packet, without decoding it into a `Packet`.
            if let Some((dst, small)) = packet::inline_of(&words) {
                let bytes = small.bytes();
                self.on_inline(link, dst, &bytes[..usize::from(small.len)], data);
                continue;
            }
            if one_sided::line::is_short(&words) {
                self.on_short(link, &words, data);
                continue;
            }
            match Packet::decode(&words) {
                Some(p) => self.on_packet(link, p),
                None => {
                    self.violations += 1;
                    tracing::warn!(link, "a peer sent an undefined packet; its link is cut");
                    self.kill_link(link);
                    break;
                }
            }
        }
        moved
    }

    fn on_packet(&mut self, link: usize, p: Packet) {
        match p {
            Packet::Connect {
                src,
                port,
                src_port,
            } => self.on_connect(link, src, port, src_port),
            Packet::Ref { n, spans, .. } => {
                self.learn(link, &spans[..n as usize]);
                self.on_control(link, p);
            }
            Packet::OneSided { words, .. } => {
                match OneSidedPacket::decode(&words) {
                    Some(OneSidedPacket::Grant { n, spans }) => {
                        self.learn(link, &spans[..n as usize]);
                    }
                    Some(OneSidedPacket::Put {
                        bytes: PutBytes::At(bus),
                        len,
                        ..
                    }) => self.learn(link, &[(bus, len)]),
                    _ => {}
                }
                self.on_control(link, p);
            }
            other => self.on_control(link, other),
        }
    }

    /// A packet that needs no DMA.
    fn on_control(&mut self, link: usize, p: Packet) {
        let dst = match p {
            Packet::Inline { .. } | Packet::Connect { .. } => return,
            Packet::Ref { dst, .. }
            | Packet::Ack { dst, .. }
            | Packet::Accept { dst, .. }
            | Packet::Refuse { dst, .. }
            | Packet::Fin { dst, .. }
            | Packet::OneSided { dst, .. }
            | Packet::Rst { dst } => dst,
        };
        let mut events = std::mem::take(&mut self.events);
        let mut gone = false;
        let mut reset = false;
        let mut stray = None;
        match self.conn(dst).filter(|c| c.link == link) {
            None => {
                // An answer to a connection that was given up: the peer must not wait for it.
                if let Packet::Accept { src, .. } = p {
                    stray = Some(src);
                }
            }
            Some(c) => match p {
                Packet::Ref { n, spans, .. } => {
                    for (bus, len) in &spans[..n as usize] {
                        if c.phase == Phase::Zombie || c.reset {
                            break;
                        }
                        c.rx.refs_waiting += 1;
                        c.rx.segs.push_back(rx::Seg::Ref {
                            bus: *bus,
                            len: *len,
                        });
                    }
                    reset = u64::from(c.rx.refs_waiting) > tx::SPAN_WINDOW;
                }
                Packet::Ack { spans, inline, .. } => {
                    reset = spans > c.tx.spans_sent || inline > c.tx.inline_sent;
                    if !reset {
                        c.tx.spans_acked = c.tx.spans_acked.max(spans);
                        c.tx.inline_acked = c.tx.inline_acked.max(inline);
                        c.sends.acknowledge(c.tx.spans_acked, &mut events);
                    }
                }
                Packet::Accept { src, .. } if c.phase == Phase::Waiting => {
                    c.peer_id = src;
                    c.phase = Phase::Open;
                    events.push_back(TransportEvent::Connected { conn: c.id });
                }
                Packet::Refuse { status, .. } if c.phase == Phase::Waiting => {
                    let status = Status::from_code(status).unwrap_or(Status::ConnectionRefused);
                    events.push_back(TransportEvent::ConnectFailed {
                        conn: c.id,
                        status,
                        answer: Some(0),
                    });
                    gone = true;
                }
                Packet::Fin { closed, .. } => {
                    if !std::mem::replace(&mut c.rx.peer_fin, true) {
                        events.push_back(TransportEvent::PeerClosed { conn: c.id });
                    }
                    if closed {
                        c.peer_closed = true;
                        // No receive will take the bytes that are in flight or still to come.
                        c.fail_sends(Status::ConnectionReset, &mut events);
                    }
                    gone = c.phase == Phase::Zombie && closed;
                }
                Packet::Rst { .. } => {
                    // After an orderly end it means only that the slot is free.
                    if c.peer_closed && c.phase == Phase::Open && !c.closing {
                        c.fail_sends(Status::ConnectionReset, &mut events);
                    } else {
                        reset = true;
                    }
                }
                Packet::OneSided { words, .. } if c.phase == Phase::Open && !c.reset => {
                    let packet = OneSidedPacket::decode(&words);
                    reset = packet.is_none_or(|p| !c.one_sided.receive(c.id, p, &mut events));
                    self.violations += u64::from(reset);
                }
                _ => {}
            },
        }
        self.events = events;
        if let Some(src) = stray {
            self.send_rst(link, src);
        }
        if reset {
            self.reset_conn(dst);
        } else if gone {
            self.free_conn(dst);
        } else {
            self.activate(dst);
        }
    }

    /// A request that is one line, or an answer. What waits behind others is left to a step of the
    /// connection.
    fn on_short(&mut self, link: usize, words: &[u64; 8], data: &mut Datapath<'_>) {
        let dst = (words[0] >> 16) as u32;
        let (c, l) = (self.table.get_mut(dst), self.links[link].as_mut());
        let is_open = |c: &&mut Conn| c.link == link && c.phase == Phase::Open && !c.reset;
        let (Some(c), Some(l)) = (c.filter(is_open), l) else {
            return self.activate(dst);
        };
        let (ids, o, closing) = ((c.id, c.peer_id), &mut c.one_sided, c.closing);
        match one_sided::take_short(ids, o, words, l, data, &mut self.events) {
            Some(true) if !closing => {}
            Some(_) => self.activate(dst),
            None => {
                self.violations += 1;
                self.reset_conn(dst);
            }
        }
    }

    #[inline]
    fn on_inline(&mut self, link: usize, dst: u32, bytes: &[u8], data: &mut Datapath<'_>) {
        let window = self.config.inline_window;
        let Some(c) = self.table.get_mut(dst) else {
            return;
        };
        if c.link != link || c.reset || c.phase == Phase::Zombie {
            return;
        }
        let Some(l) = &self.links[link] else { return };
        let mut io = In {
            link: l,
            data,
            events: &mut self.events,
            budget: &mut 0,
            moved: true,
        };
        let ok = receive::inline(c, bytes, window, &mut io);
        let mut due = c.rx.inline_taken - c.rx.inline_told >= window as u64 / 4;
        // An engine is on the path: it takes them from the staging buffer.
        due |= !c.rx.segs.is_empty() && !c.recvs.is_empty();
        if !ok {
            self.violations += 1;
            self.reset_conn(dst);
        } else if due {
            self.activate(dst);
        }
    }

    /// Reads the packets that a dead peer has left in the ring. Inline payload goes to the staging
    /// buffers.
    pub(super) fn drain_dead(&mut self, link: usize) {
        loop {
            let Some(words) = self.links[link].as_ref().and_then(Link::peek) else {
                return;
            };
            if let Some(l) = &mut self.links[link] {
                l.advance();
            }
            match Packet::decode(&words) {
                // Without DMA at hand: as if no receive were waiting.
                Some(Packet::Inline { dst, len, bytes }) => {
                    if let Some(c) = self.conn(dst).filter(|c| c.link == link) {
                        c.rx.stage(&bytes[..len as usize]);
                    }
                }
                Some(Packet::Connect { .. }) => {}
                Some(p) => self.on_control(link, p),
                None => return,
            }
        }
    }

    fn on_connect(&mut self, link: usize, src: u32, port: u16, src_port: u16) {
        let refuse = |t: &mut LocalTransport, status: Status| {
            if let Some(l) = &mut t.links[link] {
                let p = Packet::Refuse {
                    dst: src,
                    status: status.code(),
                };
                l.push_or_queue(p);
            }
        };
        let Some(listener) = self.listeners.at(port).map(|l| l.id) else {
            return refuse(self, Status::ConnectionRefused);
        };
        let Some(l) = &self.links[link] else { return };
        let peer = SocketAddrV4::new(l.peer, src_port);
        let local = SocketAddrV4::new(self.ip, port);
        match self.open_conn(link, Phase::Answering(listener), local, peer) {
            Some(id) => {
                if let Some(c) = self.conn(id.0) {
                    c.peer_id = src;
                }
                self.activate(id.0);
            }
            None => refuse(self, Status::NoResources),
        }
    }
}
