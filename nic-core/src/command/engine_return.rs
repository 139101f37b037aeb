//! `op_return`: an engine's output goes back over the session of its stream, without a kernel
//! (FpgaNIC §3.5): the NIC as a stand-alone accelerator.
//!
//! The NIC receives into a piece of its own memory and sends from there; while a piece waits to be sent, no
//! other is received, so that a slow reader closes the writer's window.

use std::collections::HashMap;

use ringbell_nic_abi::{EngineId, GpuVa, Lkey, PdId, SessionId, Status};

use super::Core;
use crate::engine::{Direction, EngineUseError, Outcome, Return};
use crate::memory::nic_memory::{Block, NIC_VA};
use crate::session::State;
use crate::transport::{Payload, RecvWork, SendWork, TransportEvent};
use crate::types::{Buffer, ConnId, Owner, WorkToken};

/// Marks our own operations; tokens of descriptors stay below.
const RETURN_TOKEN: u64 = 1 << 62;
/// Bytes that are received, and sent, at once.
const BUFFER: u32 = 64 << 10;

/// A session whose stream the NIC itself receives.
#[derive(Debug)]
struct Returning {
    t: usize,
    conn: ConnId,
    engine: EngineId,
    what: Return,
    pd: PdId,
    lkey: Lkey,
    block: Block,
    /// The stream has ended: `rest` is the last that is sent.
    ended: bool,
    rest: Vec<u8>,
    rest_from: usize,
}

/// All such sessions.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// By the operation that is posted for each.
    by_work: HashMap<WorkToken, Returning>,
    last: u64,
}

impl Returns {
    fn token(&mut self) -> WorkToken {
        self.last += 1;
        WorkToken(RETURN_TOKEN | self.last)
    }
}

impl Core {
    /// Starts to receive the stream of a session, and to answer. An engine must be on its path.
    pub(crate) fn start_return(
        &mut self,
        session: SessionId,
        what: Return,
    ) -> Result<(), EngineUseError> {
        let no_stream = EngineUseError::NoStream { session };
        let Some((stream, _)) = self.stream_for_engine(session, None) else {
            return Err(no_stream);
        };
        let key = (stream.transport, stream.conn, Direction::Receive);
        let engine = self.memory.dma.engines.on(key).ok_or(no_stream)?;
        let full = || EngineUseError::NoMemory { bytes: BUFFER };
        let (pd, lkey, block) = self.memory.own_region(BUFFER.into()).ok_or_else(full)?;
        self.return_next(Returning {
            t: stream.transport,
            conn: stream.conn,
            engine,
            what,
            pd,
            lkey,
            block,
            ended: false,
            rest: Vec::new(),
            rest_from: 0,
        });
        Ok(())
    }

    /// Receives more, or sends the last.
    fn return_next(&mut self, mut r: Returning) {
        let buffer = |len| Buffer {
            region: r.lkey.0,
            va: GpuVa(NIC_VA + r.block.at),
            len,
        };
        let token = self.returns.token();
        if !r.ended {
            let work = RecvWork {
                token,
                by: Owner::NIC,
                buffer: buffer(BUFFER),
                some: true,
            };
            self.streams.transports[r.t].post_recv(r.conn, work);
        } else {
            let left = &r.rest[r.rest_from..];
            if left.is_empty() {
                return self.end_return(r, true);
            }
            let n = left.len().min(BUFFER as usize);
            self.memory.dma.nic_memory.write(r.block.at, &left[..n]);
            let payload = Payload::Memory(buffer(n as u32));
            r.rest_from += n;
            self.return_send(token, &r, payload);
        }
        self.returns.by_work.insert(token, r);
    }

    fn return_send(&mut self, token: WorkToken, r: &Returning, payload: Payload) {
        let work = SendWork {
            token,
            by: Owner::NIC,
            payload,
            push: true,
        };
        self.streams.transports[r.t].post_send(r.conn, work);
    }

    /// Whether an event ends one of our operations; if so it was processed.
    pub(super) fn is_of_return(&mut self, event: &TransportEvent) -> bool {
        let (token, status, received) = match *event {
            TransportEvent::SendDone { token, status, .. } => (token, status, None),
            TransportEvent::RecvDone {
                token,
                status,
                bytes,
                ..
            } => (token, status, Some(bytes)),
            _ => return false,
        };
        if self.returns.by_work.is_empty() {
            return false;
        }
        let Some(mut r) = self.returns.by_work.remove(&token) else {
            return false;
        };
        let fine = matches!(status, Status::Ok | Status::EndOfStream);
        if !fine {
            tracing::warn!(engine = %r.engine, %status, "the NIC no longer answers");
            self.end_return(r, false);
            return true;
        }
        if status == Status::EndOfStream {
            r.ended = true;
            if r.what == Return::Result {
                match self.memory.dma.engines.result(r.engine) {
                    Some(Outcome::Result(bytes, _)) => r.rest = bytes,
                    // An empty answer would look like a result.
                    Some(Outcome::Failed) => {
                        tracing::warn!(engine = %r.engine, "it has failed: the stream is reset in place of an answer");
                        self.break_stream(r.t, r.conn);
                        self.end_return(r, false);
                        return true;
                    }
                    None => {}
                }
            }
        }
        match received {
            Some(bytes) if bytes > 0 && r.what == Return::Stream => {
                let token = self.returns.token();
                let payload = Payload::Memory(Buffer {
                    region: r.lkey.0,
                    va: GpuVa(NIC_VA + r.block.at),
                    // What was received into the buffer fits it.
                    len: bytes as u32,
                });
                self.return_send(token, &r, payload);
                self.returns.by_work.insert(token, r);
            }
            _ => self.return_next(r),
        }
        true
    }

    /// Frees the resources of an answer; after an orderly end also half-closes the stream.
    fn end_return(&mut self, r: Returning, in_order: bool) {
        if in_order {
            self.streams.transports[r.t].shutdown(r.conn);
            if let Some(&slot) = self.streams.conns.get(&(r.t, r.conn)) {
                if let Some(State::Stream(s)) = self.sessions.at(slot).map(|s| &mut s.state) {
                    s.shut = true;
                }
            }
        }
        if !self.memory.free_own_region(r.pd, r.lkey, r.block) {
            tracing::error!(engine = %r.engine, "NIC memory is kept from reuse");
        }
    }
}
