//! `ENGINE_ATTACH`, `ENGINE_DETACH` and `ENGINE_RESULT`, and the host's calls on engines.
//!
//! The layout of `imm` is in `nic-abi/src/engine.rs`; engines on queues are in `engine_queue.rs`.

use ringbell_gtlb::Need;
use ringbell_nic_abi::{
    Descriptor, EngineId, EngineSpec, EngineTarget, EventKind, PdId, QueueId, SessionId, Status,
};
use ringbell_onc_engines::stream::StreamEngine;

use super::Core;
use crate::dma::DmaAccess;
use crate::engine::{Direction, EngineUseError, Notice, Outcome, Place, Sharing, MAX_ENGINES};
use crate::permit::Permit;
use crate::session::{State, Stream};
use crate::types::{CommId, ConnId};

impl Core {
    /// The established stream of a session, with its domain. `pd` is none for the host, which owns all.
    pub(super) fn stream_for_engine(
        &mut self,
        id: SessionId,
        pd: Option<PdId>,
    ) -> Option<(Stream, PdId)> {
        let session = match pd {
            Some(pd) => self.sessions.get(id, pd),
            None if self.sessions.id(Core::slot(id)) == id => self.sessions.at(Core::slot(id)),
            None => None,
        }?;
        match &session.state {
            State::Stream(s) if !s.reset => Some((*s, session.pd)),
            _ => None,
        }
    }

    /// Puts an engine on the path of a session. `item`: see [`Nic::share_engine`](crate::Nic::share_engine).
    pub(crate) fn attach_engine(
        &mut self,
        session: SessionId,
        pd: Option<PdId>,
        direction: Direction,
        engine: EngineId,
        item: usize,
    ) -> Result<(), EngineUseError> {
        let Some((stream, pd)) = self.stream_for_engine(session, pd) else {
            return Err(EngineUseError::NoStream { session });
        };
        let Some((owner, name, is_tap)) = self.memory.dma.engines.about(engine) else {
            return Err(EngineUseError::Unknown { id: engine });
        };
        if owner != pd {
            return Err(EngineUseError::Domain {
                id: engine,
                session,
            });
        }
        if !is_tap && self.memory.dma.engines.streams_of(engine) > 0 {
            let what = "several streams cannot share";
            return Err(EngineUseError::NotATap { name, what });
        }
        if self.memory.dma.engines.is_apart(engine) {
            return Err(EngineUseError::Apart { id: engine });
        }
        let key = (stream.transport, stream.conn, direction);
        if let Some(id) = self.memory.dma.engines.on(key) {
            return Err(EngineUseError::Occupied { session, id });
        }
        self.memory.dma.engines.put(engine, key, session, item);
        tracing::info!(%engine, name, %session, ?direction, "engine on the path");
        Ok(())
    }

    /// Makes a place for an engine and puts it on a path.
    pub(crate) fn attach_new_engine(
        &mut self,
        session: SessionId,
        pd: Option<PdId>,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
    ) -> Result<EngineId, EngineUseError> {
        let Some((_, owner)) = self.stream_for_engine(session, pd) else {
            return Err(EngineUseError::NoStream { session });
        };
        let added = self.memory.dma.engines.add(owner, engine);
        let id = added.ok_or(EngineUseError::TooMany { limit: MAX_ENGINES })?;
        if let Err(e) = self.attach_engine(session, pd, direction, id, 1) {
            self.memory.dma.engines.remove(id);
            return Err(e);
        }
        Ok(id)
    }

    /// A connection's bytes pass no engine any more, except those queued to be sent before an orderly
    /// end.
    pub(super) fn forget_engines(&mut self, t: usize, conn: ConnId, at_once: bool) {
        self.memory
            .dma
            .engines
            .forget((t, conn, Direction::Receive));
        if at_once {
            self.memory.dma.engines.forget((t, conn, Direction::Send));
        }
    }

    /// Reports the state of engines to the host.
    #[inline]
    pub(super) fn tell_engine_notices(&mut self) {
        while let Some((id, notice)) = self.memory.dma.engines.poll_notice() {
            let (kind, data) = match notice {
                Notice::Slow(rate) => (EventKind::EngineSlow, rate),
                Notice::Cut(left) => (EventKind::EngineError, left),
                Notice::Failed => (EventKind::EngineError, u64::MAX),
            };
            tracing::warn!(engine = %id, ?notice, "see Nic::engines");
            match kind {
                EventKind::EngineSlow => self.report.counters.engines_slow += 1,
                _ => self.report.counters.engine_errors += 1,
            }
            self.report.events.push(self.time.now, kind, id.0, data);
        }
    }

    pub(super) fn engine_attach(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let Some(spec) = EngineSpec::decode(d.imm) else {
            return self.finish(permit, Status::BadDescriptor, 0, 4);
        };
        let direction = match spec.sending {
            false => Direction::Receive,
            true => Direction::Send,
        };
        let session = d.session;
        match spec.target {
            EngineTarget::Stream if self.sessions.get(session, pd).is_none() => {
                return self.finish(permit, Status::BadSession, 0, session.0.into());
            }
            EngineTarget::Queue if self.queue_of(session.0, pd).is_none() => {
                return self.finish(permit, Status::InvalidArgument, 0, session.0.into());
            }
            EngineTarget::Communicator if self.collectives.find(session.0).is_none() => {
                return self.finish(permit, Status::BadCommunicator, 0, session.0.into());
            }
            _ => {}
        }
        let (kind, item) = (spec.kind, usize::from(spec.item.max(1)));
        // Everything is checked before an engine is made: every engine made is on a path.
        let id = if kind == 0 {
            let shared = u32::try_from(d.operand).map(EngineId);
            match shared.ok().filter(|id| self.owns_engine(pd, *id)) {
                None => return self.finish(permit, Status::BadEngine, 0, d.operand),
                Some(id) => Ok(id),
            }
        } else {
            match self.memory.dma.engines.make(kind, d.operand) {
                None => return self.finish(permit, Status::BadEngine, 0, kind.into()),
                Some(engine) => {
                    let limit = MAX_ENGINES;
                    let added = self.memory.dma.engines.add(pd, engine);
                    added.ok_or(EngineUseError::TooMany { limit })
                }
            }
        };
        let attached = id.and_then(|id| {
            let on = match spec.target {
                EngineTarget::Stream => self.attach_engine(session, Some(pd), direction, id, item),
                EngineTarget::Queue | EngineTarget::Communicator => {
                    let how = match spec.apart {
                        false => Sharing::Items(item),
                        true => self.memory.dma.engines.makes(kind, d.operand),
                    };
                    if spec.target == EngineTarget::Queue {
                        self.watch_queue(QueueId(session.0), direction, id, how)
                    } else {
                        let place = Place::of(direction, spec.wire);
                        self.watch_communicator(CommId(session.0), place, id, how)
                    }
                }
            };
            if on.is_err() && kind != 0 {
                self.memory.dma.engines.remove(id);
            }
            on.map(|()| id)
        });
        match attached {
            Ok(id) => self.finish(permit, Status::Ok, 0, id.0.into()),
            Err(EngineUseError::TooMany { limit }) => {
                self.finish(permit, Status::NoResources, 0, limit as u64)
            }
            Err(error) => {
                tracing::warn!(%session, %error, "engine not attached");
                let status = match error {
                    EngineUseError::NotATap { .. } => Status::Unsupported,
                    _ => Status::BadState,
                };
                self.finish(permit, status, 0, session.0.into());
            }
        }
    }

    fn owns_engine(&self, pd: PdId, id: EngineId) -> bool {
        matches!(self.memory.dma.engines.about(id), Some((owner, ..)) if owner == pd)
    }

    pub(super) fn engine_detach(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = EngineId(d.operand as u32);
        if d.operand >> 32 != 0 || !self.owns_engine(pd, id) {
            return self.finish(permit, Status::BadEngine, 0, d.operand);
        }
        self.memory.dma.engines.remove(id);
        self.finish(permit, Status::Ok, 0, 0);
    }

    pub(super) fn engine_result(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let id = EngineId(d.operand as u32);
        if d.operand >> 32 != 0 || !self.owns_engine(pd, id) {
            return self.finish(permit, Status::BadEngine, 0, d.operand);
        }
        let apart = self.memory.dma.engines.is_apart(id);
        if d.imm > 1 || apart != (d.imm == 1) {
            return self.finish(permit, Status::InvalidArgument, 0, d.imm.into());
        }
        let got = match apart {
            false => self.memory.dma.engines.result(id),
            true => match self.memory.dma.engines.result_of(id, d.session.0) {
                None => return self.finish(permit, Status::BadSession, 0, d.session.0.into()),
                some => some,
            },
        };
        let (result, cut) = match got {
            Some(Outcome::Result(result, cut)) => (result, cut),
            Some(Outcome::Failed) => {
                return self.finish(permit, Status::EngineFailed, 0, id.0.into());
            }
            None => return self.finish(permit, Status::BadEngine, 0, d.operand),
        };
        let len = result.len() as u64;
        if len > u64::from(d.len) {
            return self.finish(permit, Status::ResultTooLarge, 0, len);
        }
        let range = (d.local_va, d.len);
        let slot = u32::MAX;
        let Some((permit, pin, buffer)) = self.pin(permit, pd, d.lkey.0, range, Need::Write, slot)
        else {
            return;
        };
        let mut dma = self.memory.dma();
        let written = dma.write(&buffer, 0, &result);
        self.memory.mmu.unpin(pin);
        match written {
            Ok(()) => self.finish(permit, Status::Ok, len, cut.unwrap_or(0) as u64),
            Err(fault) => {
                let (status, detail) = fault.status();
                self.fault(slot, detail);
                self.finish(permit, status, 0, detail);
            }
        }
    }
}
