//! `ENGINE_ATTACH`, `ENGINE_DETACH` and `ENGINE_RESULT`.
//!
//! The layout of `imm` is in `nic-abi/src/engine.rs`.

use ringbell_gtlb::Need;
use ringbell_nic_abi::{
    Descriptor, EngineId, EngineSpec, EngineTarget, PdId, QueueId, SessionId, Status,
};

use super::engine_places::{EnginePlaces, On};
use super::memory::Memory;
use super::refusal::Answer;
use crate::dma::DmaAccess;
use crate::engine::{Direction, EngineUseError, Engines, Outcome, Place, Sharing};
use crate::types::CommId;

fn owns(engines: &Engines, pd: PdId, id: EngineId) -> bool {
    matches!(engines.about(id), Some((owner, ..)) if owner == pd)
}

impl EnginePlaces<'_> {
    /// `ENGINE_ATTACH`.
    pub(super) fn execute(&mut self, pd: PdId, d: &Descriptor) -> Answer {
        let Some(spec) = EngineSpec::decode(d.imm) else {
            return Err((Status::BadDescriptor, 4));
        };
        let direction = match spec.sending {
            false => Direction::Receive,
            true => Direction::Send,
        };
        let SessionId(target) = d.session;
        let refusal = match spec.target {
            EngineTarget::Stream if self.streams.sessions.get(d.session, pd).is_none() => {
                Some(Status::BadSession)
            }
            EngineTarget::Queue if self.queue_domain(QueueId(target)) != Some(pd) => {
                Some(Status::InvalidArgument)
            }
            EngineTarget::Communicator if self.collectives.table.find(target).is_none() => {
                Some(Status::BadCommunicator)
            }
            _ => None,
        };
        if let Some(status) = refusal {
            return Err((status, target.into()));
        }
        let (kind, item) = (spec.kind, usize::from(spec.item.max(1)));
        let engines = &self.env.memory.engines;
        let how = match spec.apart {
            false => Sharing::Items(item),
            true => engines.makes(kind, d.operand),
        };
        let on = match spec.target {
            EngineTarget::Stream => On::Session((d.session, Some(pd)), direction, item),
            EngineTarget::Queue => On::Queue(QueueId(target), direction, how),
            EngineTarget::Communicator => {
                On::Communicator(CommId(target), Place::of(direction, spec.wire), how)
            }
        };
        let attached = if kind == 0 {
            let shared = u32::try_from(d.operand).map(EngineId).ok();
            let Some(id) = shared.filter(|id| owns(engines, pd, *id)) else {
                return Err((Status::BadEngine, d.operand));
            };
            self.put(id, on).map(|()| id)
        } else {
            let Some(engine) = engines.make(kind, d.operand) else {
                return Err((Status::BadEngine, kind.into()));
            };
            self.put_new(Some(pd), engine, on)
        };
        match attached {
            Ok(id) => Ok((0, id.0.into())),
            Err(EngineUseError::TooMany { limit }) => Err((Status::NoResources, limit as u64)),
            Err(error) => {
                tracing::warn!(session = %d.session, %error, "engine not attached");
                let status = match error {
                    EngineUseError::NotATap { .. } => Status::Unsupported,
                    _ => Status::BadState,
                };
                Err((status, target.into()))
            }
        }
    }
}

/// The engine that a descriptor names.
fn engine_of(engines: &Engines, pd: PdId, d: &Descriptor) -> Result<EngineId, (Status, u64)> {
    let id = u32::try_from(d.operand).map(EngineId).ok();
    id.filter(|id| owns(engines, pd, *id))
        .ok_or((Status::BadEngine, d.operand))
}

/// `ENGINE_DETACH`.
pub(super) fn detach(engines: &mut Engines, pd: PdId, d: &Descriptor) -> Answer {
    let id = engine_of(engines, pd, d)?;
    engines.remove(id);
    Ok((0, 0))
}

/// `ENGINE_RESULT`.
pub(super) fn result(memory: &mut Memory, pd: PdId, d: &Descriptor) -> Answer {
    let engines = &mut memory.engines;
    let id = engine_of(engines, pd, d)?;
    let apart = engines.is_apart(id);
    if d.imm > 1 || apart != (d.imm == 1) {
        return Err((Status::InvalidArgument, d.imm.into()));
    }
    let got = match apart {
        false => engines.result(id),
        true => match engines.result_of(id, d.session.0) {
            None => return Err((Status::BadSession, d.session.0.into())),
            some => some,
        },
    };
    let (result, cut) = match got {
        Some(Outcome::Result(result, cut)) => (result, cut),
        Some(Outcome::Failed) => return Err((Status::EngineFailed, id.0.into())),
        None => return Err((Status::BadEngine, d.operand)),
    };
    let len = result.len() as u64;
    if len > u64::from(d.len) {
        return Err((Status::ResultTooLarge, len));
    }
    let (pin, buffer) = memory.pin(pd, d.lkey, (d.local_va, d.len), Need::Write)?;
    let written = memory.dma().write(&buffer, 0, &result);
    memory.mmu.unpin(pin);
    written.map_err(|fault| fault.status())?;
    Ok((len, cut.unwrap_or(0) as u64))
}
