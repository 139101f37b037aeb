//! A connection's socket as source and destination of its byte path.
//!
//! One copy each way: posted sends fill the socket's transmit buffer, posted receives are written
//! from its receive buffer. An engine on the path sees the bytes where they lie in these buffers,
//! behind the reassembly: each once and in order, and without a copy of its own. A send retires
//! when its last byte is in the transmit buffer, because from then on the NIC does not read the
//! GPU's memory again.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::conn::Conn;
use super::smoltcp_gaps::socket::TcpSocket;
use crate::datapath::{Datapath, Filled, Run, Sent, Source};
use crate::engine::EngineFailed;
use crate::transport::life::Phase;
use crate::transport::TransportEvent;

/// The bytes that a socket has received.
struct Received<'a> {
    tcp: &'a mut TcpSocket,
    /// The end of the stream was reported.
    ended: bool,
}

impl Source for Received<'_> {
    fn next(&mut self) -> Run<'_> {
        match self.tcp.socket().peek(usize::MAX) {
            Ok(bytes) if !bytes.is_empty() => Run::Own(bytes),
            // Nothing, or not established yet.
            _ => Run::Empty,
        }
    }

    fn consume(&mut self, n: usize) {
        if self.tcp.socket().recv(|_| (n, ())).is_ok() {
            self.tcp.taken += n as u64;
        }
    }

    fn is_ended(&self) -> bool {
        self.ended && self.tcp.tcp().recv_queue() == 0
    }
}

impl Conn {
    /// Retires every operation with this status.
    pub(super) fn fail_all(
        &mut self,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.life.sends.fail_all(status, events);
        self.life.recvs.fail_all(status, events);
    }

    /// Fills posted receives. Returns whether anything moved.
    pub(super) fn pump_recvs(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let mut source = Received {
            tcp: &mut self.tcp,
            ended: self.life.peer_closed,
        };
        let (moved, end) = self.life.recvs.fill(&mut source, data, events);
        if let Filled::Failed(failed) = end {
            self.end_by_engine(failed, events);
            return true;
        }
        moved
    }

    /// Moves at most `share` bytes of posted sends into the socket. Returns whether anything moved.
    pub(super) fn pump_sends(
        &mut self,
        mut share: usize,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let before = events.len();
        let mut moved = false;
        loop {
            // A pending read is repeated unchanged, independent of which connections wait by now.
            let most = share.max(self.life.sends.pending());
            let sends = &mut self.life.sends;
            let sent = self.tcp.socket().send(|room| {
                let n = room.len().min(most);
                let sent = sends.fill(&mut room[..n], data, events);
                (if let Sent::Bytes(n) = sent { n } else { 0 }, sent)
            });
            match sent {
                Ok(Sent::Bytes(n)) if n > 0 => {
                    self.tcp.given += n as u64;
                    share -= n.min(share);
                    moved = true;
                }
                Ok(Sent::Fault(_)) => {}
                Ok(Sent::Failed(failed)) => {
                    self.end_by_engine(failed, events);
                    return true;
                }
                // No send, no room, memory has not answered, or not established yet.
                Ok(Sent::Bytes(_) | Sent::Pending) | Err(_) => break,
            }
        }
        self.life.pending = share == 0 && !self.life.sends.is_empty();
        moved | (events.len() != before)
    }

    /// The engine that changes this stream has failed: it ends here as by a reset, and the peer is
    /// sent one.
    fn end_by_engine(&mut self, failed: EngineFailed, events: &mut VecDeque<TransportEvent>) {
        self.life.sends.fail_all(failed.status(), events);
        self.life.recvs.fail_all(failed.status(), events);
        if self.life.phase == Phase::Open {
            self.life.phase = Phase::Dead;
            events.push_back(TransportEvent::Reset { conn: self.life.id });
        }
        self.tcp.socket().abort();
    }

    /// After the last send: what an engine has kept for the end leaves, too. Returns whether
    /// anything moved, and whether all has left.
    pub(super) fn finish_sends(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> (bool, bool) {
        match self.life.sends.finish(data) {
            Ok(true) => (false, true),
            Ok(false) => {
                let moved = self.pump_sends(usize::MAX, data, events);
                (moved, self.life.sends.finish(data) == Ok(true))
            }
            Err(failed) => {
                self.end_by_engine(failed, events);
                (true, false)
            }
        }
    }
}
