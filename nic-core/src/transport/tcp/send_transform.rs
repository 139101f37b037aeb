//! Sends through a transforming engine: a piece goes in, and its output goes to the socket.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::conn::{Conn, Phase};
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Direction, EngineFailed, PIECE};
use crate::transport::{Payload, TransportEvent};

impl Conn {
    /// Hands what an engine has made to the socket. Returns whether anything moved, and whether all has.
    fn push_outgoing(&mut self, dma: &mut dyn DmaAccess) -> (bool, bool) {
        let conn = self.id;
        let mut moved = false;
        loop {
            let bytes = dma.outgoing(conn);
            if bytes.is_empty() {
                return (moved, true);
            }
            match self.tcp.socket().send_slice(bytes) {
                Ok(n) if n > 0 => {
                    self.tcp.given += n as u64;
                    dma.outgoing_gone(conn, n);
                }
                // No room, or not established yet.
                _ => return (moved, false),
            }
            moved = true;
        }
    }

    /// Moves the first send on. `Err`: the socket or memory must answer first; whether anything moved.
    pub(super) fn transform_front(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), bool> {
        let conn = self.id;
        let (moved, all) = self.push_outgoing(dma);
        if !all {
            return Err(moved);
        }
        let Some(s) = self.sends.front_mut() else {
            return Err(moved);
        };
        let left = (s.work.payload.len() - s.done) as usize;
        // A pending read is repeated unchanged.
        let n = s.pending.unwrap_or(PIECE).min(PIECE).min(left);
        let from = s.done as usize;
        let transformed = match &s.work.payload {
            _ if n == 0 => {
                if let Some(s) = self.sends.pop_front() {
                    events.push_back(self.send_done(&s, Status::Ok, 0));
                }
                return Ok(());
            }
            Payload::Inline { bytes, .. } => dma.transform(conn, s.work.by, &bytes[from..from + n]),
            Payload::Memory(buffer) => {
                self.piece.resize(PIECE, 0);
                match dma.read(buffer, from as u64, &mut self.piece[..n]) {
                    Ok(ReadStatus::Done) => dma.transform(conn, s.work.by, &self.piece[..n]),
                    Ok(ReadStatus::Pending) => {
                        s.pending = Some(n);
                        return Err(moved);
                    }
                    Err(fault) => {
                        let (status, detail) = fault.status();
                        if let Some(s) = self.sends.pop_front() {
                            events.push_back(self.send_done(&s, status, detail));
                        }
                        return Ok(());
                    }
                }
            }
        };
        if let Err(failed) = transformed {
            self.end_by_engine(failed, events);
            return Err(true);
        }
        // n <= left <= u32::MAX
        s.done += n as u32;
        s.pending = None;
        Ok(())
    }

    /// The engine that changes this stream has failed: it ends here as by a reset, and the peer is sent one.
    pub(super) fn end_by_engine(
        &mut self,
        failed: EngineFailed,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let (status, detail) = failed.status();
        while let Some(s) = self.sends.pop_front() {
            events.push_back(self.send_done(&s, status, detail));
        }
        while !self.recvs.is_empty() {
            self.recv_done(status, detail, events);
        }
        if self.phase == Phase::Open {
            self.phase = Phase::Dead;
            events.push_back(TransportEvent::Reset { conn: self.id });
        }
        self.tcp.socket().abort();
    }

    /// After the last send: what the engine has kept for the end still belongs to the stream. Returns whether
    /// anything moved, and whether all has left.
    pub(super) fn end_outgoing(
        &mut self,
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> (bool, bool) {
        if !dma.on_path(self.id, Direction::Send) {
            return (false, true);
        }
        if let Err(failed) = dma.end_outgoing(self.id) {
            self.end_by_engine(failed, events);
            return (true, false);
        }
        self.push_outgoing(dma)
    }
}
