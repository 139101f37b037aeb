//! What the card and the transport have done.

use super::*;

impl CardTransport {
    /// Acts on the card's events of a link. Returns whether there were any.
    pub(super) fn take_events(&mut self, conn: ConnId) -> bool {
        let mut any = false;
        loop {
            let Some(slot) = self.links.get(&conn).and_then(|l| l.slot) else {
                return any;
            };
            let Some(event) = self.card.lock().event(slot) else {
                return any;
            };
            any = true;
            match event {
                ConnEvent::Sent(bytes, missing) => self.sent(conn, slot, &bytes, missing),
                ConnEvent::Want => {
                    let pieces = self.links.get_mut(&conn).map(|l| &mut l.receives.pieces);
                    if let Some(p) = pieces.and_then(|p| p.iter_mut().find(|p| !p.wanted)) {
                        p.wanted = true;
                    }
                }
                ConnEvent::End(Side::Send, _) => self.end_sent(conn),
                ConnEvent::End(Side::Receive, ended) => self.end_received(conn, ended),
                ConnEvent::Fault(side, va) => self.fault(conn, side, va),
            }
        }
    }

    /// Bytes have left the card: the transport gets them.
    pub(super) fn sent(&mut self, conn: ConnId, slot: u16, bytes: &[u8], missing: u32) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if link.is_cut {
            let unused = bytes.len() as u32 + missing;
            return self.card.lock().credit(slot, unused);
        }
        link.is_cut = missing > 0;
        let (n, at) = (bytes.len() as u32, link.ring.next);
        link.ring.next = (at + n) % ROOM;
        if missing > 0 {
            self.card.lock().credit(slot, missing);
        }
        if let Some(piece) = link.sends.pieces.iter_mut().find(|p| p.done < p.len) {
            piece.done += n;
        }
        let Some(op) = link.sends.current().filter(|_| n > 0) else {
            return;
        };
        op.moved += n;
        let (token, by, push) = (op.token, op.by, op.push && op.moved == op.payload.len());
        // Around the end of the room.
        let first = n.min(ROOM - at);
        let base = u32::from(slot) * 2 * ROOM;
        self.room
            .write((base + at).into(), &bytes[..first as usize]);
        self.room.write(base.into(), &bytes[first as usize..]);
        let parts = [(at, first, push && first == n), (0, n - first, push)];
        for (at, len, push) in parts.into_iter().filter(|p| p.1 > 0) {
            let own = self.token(conn, Below::Chunk(token));
            let payload = Payload::Memory(self.buffer(base + at, len));
            if let Some(link) = self.links.get_mut(&conn) {
                link.ring.works.push_back((own.0, len, false));
                if let Some(op) = link.sends.ops.iter_mut().find(|o| o.token == token) {
                    op.below += 1;
                }
            }
            let work = SendWork {
                token: own,
                by,
                payload,
                push,
            };
            self.inner.post(conn, Work::Send(work));
        }
        let mut card = self.card.lock();
        card.counts.tx_bytes += u64::from(n);
    }

    /// A piece of a send has ended.
    pub(super) fn end_sent(&mut self, conn: ConnId) {
        let link = self.links.get_mut(&conn);
        if let Some(piece) = link.and_then(|l| l.sends.pieces.pop_front()) {
            self.card.lock().unmap(&piece.mapped);
        }
    }

    /// A piece of a receive has ended.
    pub(super) fn end_received(&mut self, conn: ConnId, ended: Ended) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let Some(piece) = link.receives.pieces.pop_front() else {
            return;
        };
        let mut card = self.card.lock();
        card.unmap(&piece.mapped);
        let n = match ended {
            Ended::Done(n) | Ended::Flushed(n) => n,
            Ended::Refused => 0,
        };
        card.counts.rx_bytes += u64::from(n);
        let Some(op) = link.receives.current() else {
            return;
        };
        op.moved += n;
        if ended == Ended::Done(n) {
            if op.moved == op.payload.len() || op.some {
                op.posted = op.moved;
                op.end = Some((Status::Ok, 0));
                card.counts.receives += 1;
            }
        } else {
            op.posted -= piece.len - n;
        }
    }

    /// An address has faulted in the card: what the card has of that side is taken back, and posted
    /// again with its entries written anew.
    pub(super) fn fault(&mut self, conn: ConnId, side: Side, va: u64) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let half = match side {
            Side::Send => &mut link.sends,
            Side::Receive => &mut link.receives,
        };
        if let Some(op) = half.current() {
            op.faults += 1;
        }
        // Bytes before the address are in memory; those behind it are written again.
        let written = half.pieces.front().map_or(0, |p| {
            let at = va.saturating_sub(p.mapped.va);
            u32::try_from(at).unwrap_or(0).min(p.done)
        });
        match side {
            Side::Send => self.take_back_sends(conn),
            Side::Receive => self.take_back_receives(conn, Some(written)),
        }
    }

    /// Takes the sends back that the card has. Bytes that have left it stay on their way.
    pub(super) fn take_back_sends(&mut self, conn: ConnId) {
        let Some(slot) = self.links.get(&conn).and_then(|l| l.slot) else {
            return;
        };
        self.card.lock().flush(slot, Side::Send);
        // Bytes come before the ends that the flush has made.
        while let Some(event) = self.next_of(slot, Side::Send) {
            match event {
                ConnEvent::Sent(bytes, missing) => self.sent(conn, slot, &bytes, missing),
                ConnEvent::End(..) => self.end_sent(conn),
                ConnEvent::Want | ConnEvent::Fault(..) => {}
            }
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.is_cut = false;
            for op in &mut link.sends.ops {
                op.posted = op.moved;
            }
        }
    }

    /// Takes the receives back that the card has. `written`: bytes of the first one's that lie in
    /// memory; without, all that it was given.
    pub(super) fn take_back_receives(&mut self, conn: ConnId, written: Option<u32>) {
        let Some(slot) = self.links.get(&conn).and_then(|l| l.slot) else {
            return;
        };
        let mut card = self.card.lock();
        // A segment that the card has not taken must not meet a later receive.
        card.settle();
        card.flush(slot, Side::Receive);
        drop(card);
        let mut kept = Vec::new();
        let mut first = true;
        while let Some(event) = self.next_of(slot, Side::Receive) {
            let ConnEvent::End(_, ended) = event else {
                continue;
            };
            let Some(link) = self.links.get_mut(&conn) else {
                return;
            };
            let flushed = matches!(ended, Ended::Flushed(_));
            let n = match (ended, written) {
                (Ended::Flushed(_), Some(written)) if first => written,
                (Ended::Flushed(_), Some(_)) => 0,
                (Ended::Done(n) | Ended::Flushed(n), _) => n,
                (Ended::Refused, _) => 0,
            };
            if let Some(piece) = link.receives.pieces.front().filter(|_| flushed) {
                kept.extend_from_slice(&piece.given[n as usize..]);
                first = false;
            }
            let ended = if flushed { Ended::Flushed(n) } else { ended };
            self.end_received(conn, ended);
        }
        if let Some(link) = self.links.get_mut(&conn) {
            for op in &mut link.receives.ops {
                op.posted = op.moved;
            }
            link.again += kept.len();
            kept.extend(link.kept.drain(..));
            link.kept.extend(kept);
        }
    }

    /// The next event of one side; those of the other go to the end.
    pub(super) fn next_of(&mut self, slot: u16, side: Side) -> Option<ConnEvent> {
        self.card.lock().event_of(slot, side)
    }

    /// Acts on the transport's events. Returns whether there were any.
    pub(super) fn take_inner(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.inner.poll_event() {
            any = true;
            match event {
                TransportEvent::SendDone {
                    token,
                    status,
                    bytes,
                    detail,
                    ..
                }
                | TransportEvent::RecvDone {
                    token,
                    status,
                    bytes,
                    detail,
                    ..
                } => self.work_done(token, status, bytes, detail),
                TransportEvent::Reset { conn } => {
                    let state = self.inner.conn_state(conn);
                    let reset = state.map_or(ConnState::RESET, |c| c.reset);
                    self.end_all(conn, [reset; 2]);
                    if let Some(link) = self.links.get_mut(&conn) {
                        link.is_dead = true;
                    }
                    self.leave_card(conn);
                    self.events.push_back(event);
                }
                TransportEvent::Closed { conn } | TransportEvent::ConnectFailed { conn, .. } => {
                    self.end_all(conn, [(Status::NotConnected, 0); 2]);
                    self.drop_link(conn);
                    self.events.push_back(event);
                }
                _ => self.events.push_back(event),
            }
        }
        any
    }

    pub(super) fn work_done(&mut self, token: WorkToken, status: Status, bytes: u64, detail: u64) {
        let Some((conn, what)) = self.works.remove(&token.0) else {
            return;
        };
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        match what {
            Below::Chunk(op) => {
                link.ring_done(token.0, &self.card);
                if let Some(op) = link.sends.ops.iter_mut().find(|o| o.token == op) {
                    op.below -= 1;
                    op.confirmed += bytes;
                    if status != Status::Ok {
                        op.end.get_or_insert((status, detail));
                    }
                }
            }
            Below::Whole(side, op) => {
                let half = match side {
                    Side::Send => &mut link.sends,
                    Side::Receive => &mut link.receives,
                };
                if let Some(op) = half.ops.iter_mut().find(|o| o.token == op) {
                    op.below -= 1;
                    op.end.get_or_insert((status, detail));
                    match side {
                        Side::Send => op.confirmed += bytes,
                        Side::Receive => op.moved += bytes as u32,
                    }
                }
            }
            Below::Pull => {
                link.pull = None;
                let slot = link.slot;
                if let Some(slot) = slot.filter(|_| bytes > 0) {
                    let at = u64::from(slot) * 2 * u64::from(ROOM) + u64::from(ROOM);
                    let bytes = self.room.read(at, bytes as usize);
                    let pieces = &mut link.receives.pieces;
                    match pieces.iter_mut().find(|p| !p.full && p.wanted) {
                        Some(piece) => {
                            piece.give(&bytes);
                            self.card.lock().receive(slot, bytes, false);
                        }
                        None => link.kept.extend(bytes),
                    }
                }
                if status != Status::Ok {
                    link.over = Some((status, detail));
                    self.is_due = true;
                }
            }
        }
        self.retire(conn);
    }

    /// Ends all receives: those that have all their bytes with success.
    pub(super) fn end_receives(&mut self, conn: ConnId, end: (Status, u64)) {
        self.settle(conn);
        self.take_back_receives(conn, None);
        if let Some(link) = self.links.get_mut(&conn) {
            for op in link.receives.ops.iter_mut().filter(|op| op.below == 0) {
                op.end.get_or_insert(end);
            }
        }
        self.retire(conn);
    }

    /// Ends all operations of a link at once: sends and receives with these statuses.
    pub(super) fn end_all(&mut self, conn: ConnId, [send, receive]: [(Status, u64); 2]) {
        self.take_back_sends(conn);
        self.end_receives(conn, receive);
        self.works.retain(|_, (c, _)| *c != conn);
        if let Some(link) = self.links.get_mut(&conn) {
            (link.pull, link.last, link.over) = (None, None, None);
            link.kept.clear();
            link.again = 0;
            link.ring.works.clear();
            for (half, end) in [(&mut link.sends, send), (&mut link.receives, receive)] {
                for op in &mut half.ops {
                    op.end.get_or_insert(end);
                    op.below = 0;
                }
            }
        }
        self.retire(conn);
        self.active.remove(&conn);
    }

    /// Runs the card until what was given to it lies in memory.
    pub(super) fn settle(&mut self, conn: ConnId) {
        self.card.lock().settle();
        self.take_events(conn);
    }

    pub(super) fn drop_link(&mut self, conn: ConnId) {
        self.leave_card(conn);
        self.links.remove(&conn);
        self.active.remove(&conn);
    }
}
