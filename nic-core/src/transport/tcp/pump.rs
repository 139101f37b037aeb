//! Moves bytes between the posted works and a connection's socket.
//!
//! One copy each way: `DmaAccess::read` fills the socket's transmit buffer, `DmaAccess::write` is
//! given its receive buffer. A send retires when its last byte is in the transmit buffer, because
//! from then on the NIC does not read the GPU's memory again.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::conn::{Conn, Sending};
use crate::transport::{DmaAccess, Payload, ReadStatus, TransportEvent};

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

    fn recv_done(&mut self, status: Status, detail: u64, events: &mut VecDeque<TransportEvent>) {
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

    /// Fills posted receives from the socket. Returns whether anything moved.
    pub(super) fn pump_recvs(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let mut moved = false;
        while let Some(r) = self.recvs.front_mut() {
            let want = (r.work.buffer.len - r.done) as usize;
            if want == 0 {
                self.recv_done(Status::Ok, 0, events);
                moved = true;
                continue;
            }
            let (buffer, offset, some) = (r.work.buffer, u64::from(r.done), r.work.some);
            let socket = self.sockets.iter_mut().next();
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
                let n = bytes.len().min(want);
                match dma.write(&buffer, offset, &bytes[..n]) {
                    Ok(()) => (n, Ok(n)),
                    // The bytes stay in the socket: they belong to the stream, not to this buffer.
                    Err(fault) => (0, Err(fault)),
                }
            });
            match result {
                Ok(Ok(n)) => {
                    // n <= want <= u32::MAX
                    r.done += n as u32;
                    self.taken += n as u64;
                    moved = true;
                }
                Ok(Err(fault)) => {
                    let (status, detail) = fault.status();
                    self.recv_done(status, detail, events);
                    moved = true;
                }
                // Not established yet.
                Err(_) => return moved,
            }
        }
        moved
    }

    /// Moves posted sends into the socket. Returns whether anything moved.
    pub(super) fn pump_sends(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let mut moved = false;
        while let Some(s) = self.sends.front_mut() {
            let total = s.work.payload.len();
            if s.done < total {
                let socket = self.sockets.iter_mut().next();
                let Some((_, smoltcp::socket::Socket::Tcp(socket))) = socket else {
                    return moved;
                };
                let left = (total - s.done) as usize;
                let (done, pending) = (s.done, s.pending);
                let payload = &s.work.payload;
                let result = socket.send(|room| {
                    let n = room.len().min(left);
                    // A pending read is repeated unchanged; meanwhile room can only have grown.
                    let n = pending.map_or(n, |p| p.min(n));
                    match payload {
                        Payload::Inline { bytes, .. } => {
                            let from = done as usize;
                            room[..n].copy_from_slice(&bytes[from..from + n]);
                            (n, Filled::Bytes(n))
                        }
                        Payload::Memory(_) if n == 0 => (0, Filled::Bytes(0)),
                        Payload::Memory(buffer) => {
                            match dma.read(buffer, u64::from(done), &mut room[..n]) {
                                Ok(ReadStatus::Done) => (n, Filled::Bytes(n)),
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
