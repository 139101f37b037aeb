//! Copying of bytes between posted operations and a connection's socket.
//!
//! One copy each way: `DmaAccess::read` fills the socket's transmit buffer, `DmaAccess::write` is
//! given its receive buffer. An engine on the path sees the bytes where they lie in these buffers, behind
//! the reassembly: each once and in order, and without a copy of its own. A send retires when its last byte is in the
//! transmit buffer, because from then on the NIC does not read the GPU's memory again.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::conn::{Conn, Sending};
use super::smoltcp_gaps::socket::peer_has_closed;
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Delivered, Direction};
use crate::transport::{Payload, TransportEvent};

/// How a step into the transmit buffer went.
enum Filled {
    Bytes(usize),
    Pending(usize),
    Fault(Fault),
}

impl Conn {
    pub(super) fn send_done(&self, s: &Sending, status: Status, detail: u64) -> TransportEvent {
        TransportEvent::SendDone {
            conn: self.id,
            token: s.work.token,
            status,
            bytes: u64::from(s.done),
            detail,
        }
    }

    /// Retires every send with this status.
    pub(super) fn fail_sends(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        while let Some(s) = self.sends.pop_front() {
            events.push_back(self.send_done(&s, status, 0));
        }
    }

    pub(super) fn recv_done(
        &mut self,
        status: Status,
        detail: u64,
        events: &mut VecDeque<TransportEvent>,
    ) {
        if let Some(r) = self.recvs.pop_front() {
            events.push_back(TransportEvent::RecvDone {
                conn: self.id,
                token: r.work.token,
                status,
                bytes: u64::from(r.done),
                detail,
            });
        }
    }

    /// Retires every receive with this status.
    pub(super) fn fail_recvs(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        while !self.recvs.is_empty() {
            self.recv_done(status, 0, events);
        }
    }

    /// Fills posted receives. Returns whether anything moved.
    pub(super) fn pump_recvs(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let mut moved = self.pump_socket(dma, events);
        if !dma.on_path(self.id, Direction::Receive) {
            self.held = false;
            return moved;
        }
        let socket = self.tcp.socket();
        if peer_has_closed(socket.state()) && socket.recv_queue() == 0 {
            // What the engine has kept for the end still belongs to the stream.
            match dma.end_of_stream(self.id) {
                Ok(()) => moved |= self.pump_socket(dma, events),
                Err(failed) => {
                    self.end_by_engine(failed, events);
                    moved = true;
                }
            }
        }
        self.held = dma.held(self.id) > 0;
        moved
    }

    /// Hands bytes of the socket on until there are none, or no receives.
    fn pump_socket(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let on_path = dma.on_path(self.id, Direction::Receive);
        let conn = self.id;
        let mut moved = false;
        while let Some(r) = self.recvs.front_mut() {
            let want = (r.work.buffer.len - r.done) as usize;
            if want == 0 {
                self.recv_done(Status::Ok, 0, events);
                moved = true;
                continue;
            }
            let (buffer, offset, some) = (r.work.buffer, u64::from(r.done), r.work.some);
            let by = r.work.by;
            if on_path && dma.held(conn) > 0 {
                let d = dma.deliver(conn, by, &buffer, offset, &[], false);
                // No more than the buffer has room for.
                r.done += d.written as u32;
                if let Some(failed) = d.failed {
                    self.end_by_engine(failed, events);
                    return true;
                }
                if let Some(fault) = d.fault {
                    let (status, detail) = fault.status();
                    self.recv_done(status, detail, events);
                }
                moved = true;
                continue;
            }
            let socket = self.tcp.sockets.iter_mut().next();
            let Some((_, smoltcp::socket::Socket::Tcp(socket))) = socket else {
                return moved;
            };
            if socket.recv_queue() == 0 {
                if some && r.done > 0 {
                    self.recv_done(Status::Ok, 0, events);
                    moved = true;
                    continue;
                }
                return moved;
            }
            let result = socket.recv(|bytes| {
                if on_path {
                    let d = dma.deliver(conn, by, &buffer, offset, bytes, false);
                    return (d.taken, d);
                }
                let n = bytes.len().min(want);
                match dma.write(&buffer, offset, &bytes[..n]) {
                    Ok(()) => (n, Delivered::all(n)),
                    // The bytes stay in the socket: they belong to the stream, not to this buffer.
                    Err(fault) => (0, Delivered::fault(fault)),
                }
            });
            match result {
                Ok(d) => {
                    // written <= want <= u32::MAX
                    r.done += d.written as u32;
                    self.tcp.taken += d.taken as u64;
                    moved = true;
                    if let Some(failed) = d.failed {
                        self.end_by_engine(failed, events);
                        return true;
                    }
                    if let Some(fault) = d.fault {
                        let (status, detail) = fault.status();
                        self.recv_done(status, detail, events);
                    }
                }
                // Not established yet.
                Err(_) => return moved,
            }
        }
        moved
    }

    /// Moves at most `share` bytes of posted sends into the socket. Returns whether anything moved.
    pub(super) fn pump_sends(
        &mut self,
        mut share: usize,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let mut moved = false;
        let conn = self.id;
        let on_path = dma.on_path(conn, Direction::Send);
        while !self.sends.is_empty() {
            if on_path && dma.transforms(conn) {
                match self.transform_front(dma, events) {
                    Ok(()) => moved = true,
                    Err(any) => return moved | any,
                }
                continue;
            }
            let Some(s) = self.sends.front_mut() else {
                break;
            };
            let total = s.work.payload.len();
            if s.done < total {
                let socket = self.tcp.sockets.iter_mut().next();
                let Some((_, smoltcp::socket::Socket::Tcp(socket))) = socket else {
                    return moved;
                };
                if share == 0 {
                    self.paused = true;
                    return moved;
                }
                // A pending read is repeated unchanged, independent of which connections wait by now.
                share = share.max(s.pending.unwrap_or(0));
                let left = share.min((total - s.done) as usize);
                let (done, pending) = (s.done, s.pending);
                let (payload, by) = (&s.work.payload, s.work.by);
                let result = socket.send(|room| {
                    let n = room.len().min(left);
                    // A pending read is repeated unchanged; meanwhile room can only have grown.
                    let n = pending.map_or(n, |p| p.min(n));
                    match payload {
                        Payload::Inline { bytes, .. } => {
                            let from = done as usize;
                            room[..n].copy_from_slice(&bytes[from..from + n]);
                            if on_path {
                                dma.tap_sent(conn, by, &room[..n]);
                            }
                            (n, Filled::Bytes(n))
                        }
                        Payload::Memory(_) if n == 0 => (0, Filled::Bytes(0)),
                        Payload::Memory(buffer) => {
                            match dma.read(buffer, u64::from(done), &mut room[..n]) {
                                Ok(ReadStatus::Done) => {
                                    if on_path {
                                        dma.tap_sent(conn, by, &room[..n]);
                                    }
                                    (n, Filled::Bytes(n))
                                }
                                Ok(ReadStatus::Pending) => (0, Filled::Pending(n)),
                                Err(fault) => (0, Filled::Fault(fault)),
                            }
                        }
                    }
                });
                match result {
                    Ok(Filled::Bytes(0)) | Err(_) => return moved,
                    Ok(Filled::Bytes(n)) => {
                        // n <= left <= u32::MAX
                        s.done += n as u32;
                        self.tcp.given += n as u64;
                        share -= n;
                        s.pending = None;
                        moved = true;
                    }
                    Ok(Filled::Pending(n)) => {
                        s.pending = Some(n);
                        return moved;
                    }
                    Ok(Filled::Fault(fault)) => {
                        let (status, detail) = fault.status();
                        if let Some(s) = self.sends.pop_front() {
                            events.push_back(self.send_done(&s, status, detail));
                        }
                        moved = true;
                        continue;
                    }
                }
            }
            if s.done == total {
                if let Some(s) = self.sends.pop_front() {
                    events.push_back(self.send_done(&s, Status::Ok, 0));
                }
                moved = true;
            }
        }
        moved
    }
}
