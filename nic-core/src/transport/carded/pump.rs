//! What is to be done next: posting at card and transport, retiring, cancelling.

use super::*;

impl CardTransport {
    /// Posts what can be posted, at the card and at the transport.
    pub(super) fn pump(&mut self, conn: ConnId, data: &mut Datapath<'_>) -> bool {
        self.open(conn);
        let mut moved = false;
        while self.pump_send(conn, data) {
            moved = true;
        }
        while self.pump_receive(conn, data) {
            moved = true;
        }
        moved |= self.pull(conn);
        moved |= self.run_out(conn);
        self.retire(conn);
        self.follow(conn);
        moved
    }

    /// Posts the next part of a send. `false`: there is none, or it has to wait.
    pub(super) fn pump_send(&mut self, conn: ConnId, data: &mut Datapath<'_>) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let in_card = link.sends.ops.iter().any(|op| op.moved < op.posted);
        let next = link.sends.ops.iter_mut();
        let next = next.filter(|op| !op.in_software && op.end.is_none());
        let Some(op) = next.into_iter().find(|op| op.posted < op.payload.len()) else {
            return false;
        };
        if let (Some(slot), Payload::Memory(buffer), false) =
            (link.slot, op.payload, link.is_dead || op.faults >= FAULTS)
        {
            let mut card = self.card.lock();
            if link.sends.pieces.len() >= card.sizes().operations {
                return false;
            }
            let at = op.posted;
            let len = (buffer.len - at).min(PIECE);
            if let Some(mapped) = map(&mut card, data, &buffer, at, len) {
                card.post(slot, Side::Send, mapped.va, len, false);
                card.counts.sends += u64::from(at == 0);
                op.posted += len;
                link.sends.pieces.push_back(Piece::new(mapped, len, false));
                return true;
            }
        }
        if in_card {
            return false;
        }
        let payload = rest(&op.payload, op.posted);
        let (token, by, push) = (op.token, op.by, op.push);
        op.in_software = true;
        op.below += 1;
        op.moved = op.payload.len();
        op.posted = op.moved;
        self.card.lock().counts.in_software += 1;
        let own = self.token(conn, Below::Whole(Side::Send, token));
        let work = SendWork {
            token: own,
            by,
            payload,
            push,
        };
        self.inner.post(conn, Work::Send(work));
        true
    }

    /// Posts the next part of a receive. `false`: there is none, or it has to wait.
    pub(super) fn pump_receive(&mut self, conn: ConnId, data: &mut Datapath<'_>) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let ops = &mut link.receives.ops;
        let next = ops
            .iter()
            .position(|op| op.end.is_none() && (op.in_software || op.posted < op.payload.len()));
        let Some(at) = next else { return false };
        let op = &mut ops[at];
        let Payload::Memory(buffer) = op.payload else {
            return false;
        };
        // Those behind one that the software executes wait for its end; one that takes what comes
        // is one part.
        if op.in_software || (op.some && op.posted > 0) {
            return false;
        }
        if let (Some(slot), false) = (link.slot, link.is_dead || op.faults >= FAULTS) {
            let mut card = self.card.lock();
            if link.receives.pieces.len() >= card.sizes().operations {
                return false;
            }
            let from = op.posted;
            let len = (buffer.len - from).min(PIECE);
            if let Some(mapped) = map(&mut card, data, &buffer, from, len) {
                card.post(slot, Side::Receive, mapped.va, len, op.some);
                op.posted += len;
                let piece = Piece::new(mapped, len, op.some);
                link.receives.pieces.push_back(piece);
                return true;
            }
        }
        if at > 0 || !link.receives.pieces.is_empty() || link.pull.is_some() {
            return false;
        }
        self.card.lock().counts.in_software += 1;
        self.receive_in_software(conn, &buffer, data);
        true
    }

    /// The software executes the rest of the first receive, with the bytes that were taken for it
    /// before.
    pub(super) fn receive_in_software(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        data: &mut Datapath<'_>,
    ) {
        // The bytes go past the card's engine, too.
        if self.is_counted(conn) {
            let unseen = self.unseen(conn);
            data.continue_in_software(conn, &unseen);
        }
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let (kept, ops) = (&mut link.kept, &mut link.receives.ops);
        let Some(op) = ops.front_mut() else { return };
        op.in_software = true;
        if !kept.is_empty() {
            let n = kept.len().min((op.payload.len() - op.moved) as usize);
            let bytes: Vec<u8> = kept.iter().take(n).copied().collect();
            match data.dma.write(buffer, op.moved.into(), &bytes) {
                Ok(()) => {
                    kept.drain(..n);
                    link.again -= link.again.min(n);
                    op.moved += n as u32;
                    op.posted = op.moved;
                    if op.some || op.moved == op.payload.len() {
                        op.end = Some((Status::Ok, 0));
                        return;
                    }
                }
                Err(fault) => {
                    op.end = Some(fault.status());
                    return;
                }
            }
        }
        op.posted = op.moved;
        op.below += 1;
        let (token, by, some) = (op.token, op.by, op.some);
        let Payload::Memory(buffer) = rest(&op.payload, op.moved) else {
            return;
        };
        let own = self.token(conn, Below::Whole(Side::Receive, token));
        let work = RecvWork {
            token: own,
            by,
            buffer,
            some,
        };
        self.inner.post(conn, Work::Receive(work));
    }

    /// Gives the card bytes that it wants, and asks the transport for more.
    pub(super) fn pull(&mut self, conn: ConnId) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let Some(slot) = link.slot.filter(|_| link.pull.is_none()) else {
            return false;
        };
        let mut given = false;
        loop {
            let pieces = &mut link.receives.pieces;
            let Some(piece) = pieces.iter_mut().find(|p| !p.full).filter(|p| p.wanted) else {
                return given;
            };
            let left = piece.len - piece.done;
            if link.kept.is_empty() {
                if link.over.is_some() {
                    return given;
                }
                if self.card.lock().backlog() > ROOM as usize {
                    return given;
                }
                let by = link.receives.current().map_or(Owner::NIC, |op| op.by);
                let at = u32::from(slot) * 2 * ROOM + ROOM;
                let buffer = self.buffer(at, left.min(ROOM));
                let token = self.token(conn, Below::Pull);
                if let Some(link) = self.links.get_mut(&conn) {
                    link.pull = Some(token.0);
                }
                let work = RecvWork {
                    token,
                    by,
                    buffer,
                    some: true,
                };
                self.inner.post(conn, Work::Receive(work));
                return true;
            }
            let again = link.again > 0;
            let most = if again { link.again } else { link.kept.len() };
            let n = most.min(left as usize);
            let bytes: Vec<u8> = link.kept.drain(..n).collect();
            link.again -= if again { n } else { 0 };
            piece.give(&bytes);
            self.card.lock().receive(slot, bytes, again);
            given = true;
        }
    }

    /// Ends the receives of a stream that is over, when its bytes are in memory. Those of which an
    /// address has faulted meanwhile are given to the card once more before.
    pub(super) fn run_out(&mut self, conn: ConnId) -> bool {
        let over = self.links.get(&conn).and_then(|l| l.over);
        let Some(end) = over else { return false };
        self.settle(conn);
        let Some(link) = self.links.get_mut(&conn).filter(|l| l.kept.is_empty()) else {
            return true;
        };
        link.over = None;
        self.end_receives(conn, end);
        true
    }

    /// Reports the operations that have ended, in their order.
    pub(super) fn retire(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        while let Some(op) = link.sends.ops.front() {
            let sent = op.confirmed == u64::from(op.len()) && op.below == 0;
            let end = match op.end {
                Some(end) if op.below == 0 => end,
                None if sent => (Status::Ok, 0),
                _ => break,
            };
            self.events.push_back(TransportEvent::SendDone {
                conn,
                token: op.token,
                status: end.0,
                bytes: op.confirmed,
                detail: end.1,
            });
            link.sends.ops.pop_front();
        }
        while let Some((op, end)) = link.receives.ops.front().and_then(|op| Some((op, op.end?))) {
            self.events.push_back(TransportEvent::RecvDone {
                conn,
                token: op.token,
                status: end.0,
                bytes: op.moved.into(),
                detail: end.1,
            });
            link.receives.ops.pop_front();
        }
    }

    /// Does what follows the queued sends, when the transport has them all; a link without
    /// operations rests.
    pub(super) fn follow(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else {
            self.active.remove(&conn);
            return;
        };
        let waits = |op: &Op| op.end.is_none() && op.moved < op.len();
        if !link.sends.ops.iter().any(waits) {
            match link.last.take() {
                Some(how) => self.inner.close(conn, how),
                None if link.sends.ops.is_empty() && link.receives.ops.is_empty() => {
                    self.active.remove(&conn);
                }
                None => {}
            }
        }
    }

    pub(super) fn cancel_receive(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        // What the transport has received belongs to the first receive.
        if let Some(pull) = self.links.get_mut(&conn).and_then(|l| l.pull) {
            match self.inner.cancel(conn, WorkToken(pull)) {
                Some(bytes) => self.work_done(WorkToken(pull), Status::Ok, bytes, 0),
                None => {
                    self.take_inner();
                }
            }
        }
        self.settle(conn);
        let link = self.links.get_mut(&conn)?;
        let op = link.receives.ops.iter().find(|o| o.token == token)?;
        if op.end.is_some() {
            return None;
        }
        if op.in_software {
            let whole = |&(c, b): &(ConnId, Below)| {
                c == conn && matches!(b, Below::Whole(Side::Receive, t) if t == token)
            };
            let own = self.works.iter().find(|(_, w)| whole(w)).map(|(t, _)| *t)?;
            let bytes = self.inner.cancel(conn, WorkToken(own))?;
            self.works.remove(&own);
            let moved = u64::from(op.moved) + bytes;
            self.forget_receive(conn, token);
            return Some(moved);
        }
        self.take_back_receives(conn, None);
        let link = self.links.get_mut(&conn)?;
        let op = link.receives.ops.iter().find(|o| o.token == token)?;
        let moved = u64::from(op.moved);
        self.forget_receive(conn, token);
        Some(moved)
    }

    pub(super) fn forget_receive(&mut self, conn: ConnId, token: WorkToken) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.receives.ops.retain(|o| o.token != token);
        }
        self.retire(conn);
    }

    pub(super) fn cancel_send(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        self.take_back_sends(conn);
        let link = self.links.get_mut(&conn)?;
        let op = link.sends.ops.iter().find(|o| o.token == token)?;
        if op.end.is_some() && op.below == 0 {
            return None;
        }
        let mut bytes = op.confirmed;
        let of_it = |(_, b): &(ConnId, Below)| matches!(b, Below::Chunk(t) | Below::Whole(Side::Send, t) if *t == token);
        let own = self.works.iter().filter(|(_, w)| w.0 == conn && of_it(w));
        let mut own: Vec<u64> = own.map(|(t, _)| *t).collect();
        own.sort_unstable();
        for own in own {
            if let Some(n) = self.inner.cancel(conn, WorkToken(own)) {
                bytes += n;
                self.works.remove(&own);
                if let Some(link) = self.links.get_mut(&conn) {
                    link.ring_done(own, &self.card);
                }
            } else {
                // Its event comes, and finds no operation.
                bytes += 1;
            }
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.sends.ops.retain(|o| o.token != token);
        }
        self.retire(conn);
        Some(bytes)
    }
}
