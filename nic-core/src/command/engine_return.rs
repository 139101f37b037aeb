//! `op_return`: an engine's output goes back over the session of its stream, without a kernel
//! (FpgaNIC §3.5): the NIC as a stand-alone accelerator.
//!
//! The NIC receives into a piece of its own memory and sends from there; while a piece waits to be
//! sent, no other is received, so that a slow reader closes the writer's window.

use ringbell_nic_abi::{EngineId, GpuVa, Lkey, PdId, SessionId, Status};
use rustc_hash::FxHashMap;

use super::env::Env;
use super::streams::Streams;
use crate::engine::{Direction, EngineUseError, Outcome, Return};
use crate::memory::nic_memory::{Block, NIC_VA};
use crate::transport::{Payload, RecvWork, SendWork, TransportEvent, Work};
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
    by_work: FxHashMap<WorkToken, Returning>,
    last: u64,
}

impl Returns {
    fn token(&mut self) -> WorkToken {
        self.last += 1;
        WorkToken(RETURN_TOKEN | self.last)
    }

    /// Starts to receive the stream of a session, and to answer. An engine must be on its path.
    pub(super) fn start(
        &mut self,
        streams: &mut Streams,
        env: &mut Env<'_>,
        session: SessionId,
        what: Return,
    ) -> Result<(), EngineUseError> {
        let no_stream = EngineUseError::NoStream { session };
        let Some((stream, _)) = streams.for_engine(session, None) else {
            return Err(no_stream);
        };
        let key = (stream.transport, stream.conn, Direction::Receive);
        let engine = env.memory.engines.on(key).ok_or(no_stream)?;
        let full = || EngineUseError::NoMemory { bytes: BUFFER };
        let (pd, lkey, block) = env.memory.own_region(BUFFER.into()).ok_or_else(full)?;
        let r = Returning {
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
        };
        self.next(streams, env, r);
        Ok(())
    }

    /// Receives more, or sends the last.
    fn next(&mut self, streams: &mut Streams, env: &mut Env<'_>, mut r: Returning) {
        let buffer = |len| Buffer {
            region: r.lkey.0,
            va: GpuVa(NIC_VA + r.block.at),
            len,
        };
        let token = self.token();
        if !r.ended {
            let work = RecvWork {
                token,
                by: Owner::NIC,
                buffer: buffer(BUFFER),
                some: true,
            };
            streams.transports[r.t].post(r.conn, Work::Receive(work));
        } else {
            let left = &r.rest[r.rest_from..];
            if left.is_empty() {
                return r.end(streams, env, true);
            }
            let n = left.len().min(BUFFER as usize);
            env.memory.dma.nic_memory.write(r.block.at, &left[..n]);
            let payload = Payload::Memory(buffer(n as u32));
            r.rest_from += n;
            r.send(streams, token, payload);
        }
        self.by_work.insert(token, r);
    }

    /// Whether an event ends one of our operations; if so it was processed.
    #[inline]
    pub(super) fn on_event(
        &mut self,
        streams: &mut Streams,
        env: &mut Env<'_>,
        event: &TransportEvent,
    ) -> bool {
        !self.by_work.is_empty() && self.on_own(streams, env, event)
    }

    fn on_own(&mut self, streams: &mut Streams, env: &mut Env<'_>, event: &TransportEvent) -> bool {
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
        let Some(mut r) = self.by_work.remove(&token) else {
            return false;
        };
        let fine = matches!(status, Status::Ok | Status::EndOfStream);
        if !fine {
            tracing::warn!(engine = %r.engine, %status, "the NIC no longer answers");
            r.end(streams, env, false);
            return true;
        }
        if status == Status::EndOfStream {
            r.ended = true;
            if r.what == Return::Result {
                match env.memory.engines.result(r.engine) {
                    Some(Outcome::Result(bytes, _)) => r.rest = bytes,
                    // An empty answer would look like a result.
                    Some(Outcome::Failed) => {
                        tracing::warn!(engine = %r.engine, "it has failed: the stream is reset in place of an answer");
                        streams.break_stream((r.t, r.conn), env);
                        r.end(streams, env, false);
                        return true;
                    }
                    None => {}
                }
            }
        }
        match received {
            Some(bytes) if bytes > 0 && r.what == Return::Stream => {
                let token = self.token();
                let payload = Payload::Memory(Buffer {
                    region: r.lkey.0,
                    va: GpuVa(NIC_VA + r.block.at),
                    // What was received into the buffer fits it.
                    len: bytes as u32,
                });
                r.send(streams, token, payload);
                self.by_work.insert(token, r);
            }
            _ => self.next(streams, env, r),
        }
        true
    }
}

impl Returning {
    fn send(&self, streams: &mut Streams, token: WorkToken, payload: Payload) {
        let work = SendWork {
            token,
            by: Owner::NIC,
            payload,
            push: true,
        };
        streams.transports[self.t].post(self.conn, Work::Send(work));
    }

    /// Frees the resources of an answer; after an orderly end also half-closes the stream.
    fn end(self, streams: &mut Streams, env: &mut Env<'_>, in_order: bool) {
        if in_order {
            streams.end_sending((self.t, self.conn));
        }
        if !env.memory.free_own_region(self.pd, self.lkey, self.block) {
            tracing::error!(engine = %self.engine, "NIC memory is kept from reuse");
        }
    }
}
