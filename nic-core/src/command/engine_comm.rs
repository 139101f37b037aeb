//! Engines at communicators: see `collective/taps.rs` for what they see.

use ringbell_nic_abi::{EngineId, PdId};
use ringbell_onc_engines::stream::StreamEngine;

use super::Core;
use crate::engine::{EngineUseError, Place, Sharing, MAX_ENGINES};
use crate::types::CommId;

impl Core {
    /// Puts an engine at a communicator: for operations that are taken from a queue from now on, or messages from the next
    /// byte on.
    pub(crate) fn watch_communicator(
        &mut self,
        comm: CommId,
        place: Place,
        engine: EngineId,
        how: Sharing,
    ) -> Result<(), EngineUseError> {
        let Some(slot) = self.collectives.find(comm.0) else {
            return Err(EngineUseError::NoCommunicator { id: comm });
        };
        let Some((_, name, is_tap)) = self.dma.engines.about(engine) else {
            return Err(EngineUseError::Unknown { id: engine });
        };
        if !is_tap {
            let what = "operations of a communicator cannot have (messages are converted by their wire type)";
            return Err(EngineUseError::NotATap { name, what });
        }
        if self.dma.engines.is_apart(engine) {
            return Err(EngineUseError::Apart { id: engine });
        }
        let one = matches!(place, Place::Input | Place::Output);
        if one && matches!(how, Sharing::Nothing(_)) {
            return Err(EngineUseError::OneStream { place });
        }
        let (by, direction) = place.at(slot);
        if let Some(id) = self.dma.engines.watcher(by, direction) {
            return Err(EngineUseError::Taken { comm, place, id });
        }
        self.dma.engines.watch(engine, (by, comm.0), direction, how);
        self.collectives(|c, io| c.show_messages(io));
        tracing::info!(%engine, name, ?comm, ?place, "engine at the communicator");
        Ok(())
    }

    /// Makes a place for an engine of a domain and puts it at a communicator.
    pub(crate) fn watch_communicator_with(
        &mut self,
        (pd, comm, place): (PdId, CommId, Place),
        engine: Box<dyn StreamEngine>,
        how: Sharing,
    ) -> Result<EngineId, EngineUseError> {
        let added = self.dma.engines.add(pd, engine);
        let id = added.ok_or(EngineUseError::TooMany { limit: MAX_ENGINES })?;
        if let Err(e) = self.watch_communicator(comm, place, id, how) {
            self.dma.engines.remove(id);
            return Err(e);
        }
        Ok(id)
    }
}
