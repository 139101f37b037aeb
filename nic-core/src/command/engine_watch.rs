//! Engines on queues and communicators. The bytes that a queue's descriptors move pass them, on any session, or the
//! bytes that a communicator's operations take in, give out, send and receive (`collective/taps.rs`).

use ringbell_nic_abi::{EngineId, Opcode, PdId, QueueId};
use ringbell_onc_engines::stream::StreamEngine;

use super::Core;
use crate::engine::{Direction, EngineUseError, Place, Sharing, MAX_ENGINES};
use crate::queue::SendQueue;
use crate::types::{CommId, Owner};

impl Core {
    /// The protection domain of a queue; `None` when there is no such queue in `pd`.
    pub(super) fn queue_of(&self, queue: u32, pd: PdId) -> Option<PdId> {
        let q = self.queue_named(QueueId(queue))?;
        (q.pd == pd).then_some(pd)
    }

    /// The queue of a number; a ring of the host's own has none.
    fn queue_named(&self, queue: QueueId) -> Option<&SendQueue> {
        let q = self.queues.get(queue.0 as usize)?;
        (q.queue == queue).then_some(q)
    }

    /// Puts an engine on a queue, from the next byte on that one of its operations moves.
    pub(crate) fn watch_queue(
        &mut self,
        queue: QueueId,
        direction: Direction,
        engine: EngineId,
        how: Sharing,
    ) -> Result<(), EngineUseError> {
        let Some(q) = self.queue_named(queue) else {
            return Err(EngineUseError::NoQueue { queue });
        };
        let pd = q.pd;
        let Some((owner, name, is_tap)) = self.memory.dma.engines.about(engine) else {
            return Err(EngineUseError::Unknown { id: engine });
        };
        if owner != pd {
            return Err(EngineUseError::QueueDomain { id: engine, queue });
        }
        if !is_tap {
            let what =
                "the operations of a queue, which move bytes of several streams, cannot have";
            return Err(EngineUseError::NotATap { name, what });
        }
        if self.memory.dma.engines.is_apart(engine) {
            return Err(EngineUseError::Apart { id: engine });
        }
        let by = Owner::queue(queue.0);
        if let Some(id) = self.memory.dma.engines.watcher(by, direction) {
            return Err(EngineUseError::Watched { queue, id });
        }
        self.memory
            .dma
            .engines
            .watch(engine, (by, queue.0), direction, how);
        tracing::info!(%engine, name, %queue, ?direction, "engine on the queue");
        // Operations that were posted before.
        let opcode = match direction {
            Direction::Receive => Opcode::Recv,
            Direction::Send => Opcode::Send,
        };
        for token in self.outstanding.tokens() {
            let Some(w) = self.outstanding.get_mut(token) else {
                continue;
            };
            let posted_to = self.queues[w.permit.queue as usize].queue;
            let ours = w.opcode == opcode && posted_to == queue;
            if let (true, Some((t, conn)), slot) = (ours, w.conn, w.session) {
                let session = self.sessions.id(slot);
                self.memory
                    .dma
                    .engines
                    .show(by, (t, conn, direction), session.0);
            }
        }
        Ok(())
    }

    /// Makes a place for an engine and puts it on a queue.
    pub(crate) fn watch_queue_with(
        &mut self,
        queue: QueueId,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
        how: Sharing,
    ) -> Result<EngineId, EngineUseError> {
        let Some(q) = self.queue_named(queue) else {
            return Err(EngineUseError::NoQueue { queue });
        };
        let added = self.memory.dma.engines.add(q.pd, engine);
        let id = added.ok_or(EngineUseError::TooMany { limit: MAX_ENGINES })?;
        if let Err(e) = self.watch_queue(queue, direction, id, how) {
            self.memory.dma.engines.remove(id);
            return Err(e);
        }
        Ok(id)
    }

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
        let Some((_, name, is_tap)) = self.memory.dma.engines.about(engine) else {
            return Err(EngineUseError::Unknown { id: engine });
        };
        if !is_tap {
            let what = "operations of a communicator cannot have (messages are converted by their wire type)";
            return Err(EngineUseError::NotATap { name, what });
        }
        if self.memory.dma.engines.is_apart(engine) {
            return Err(EngineUseError::Apart { id: engine });
        }
        let one = matches!(place, Place::Input | Place::Output);
        if one && matches!(how, Sharing::Nothing(_)) {
            return Err(EngineUseError::OneStream { place });
        }
        let (by, direction) = place.at(slot);
        if let Some(id) = self.memory.dma.engines.watcher(by, direction) {
            return Err(EngineUseError::Taken { comm, place, id });
        }
        self.memory
            .dma
            .engines
            .watch(engine, (by, comm.0), direction, how);
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
        let added = self.memory.dma.engines.add(pd, engine);
        let id = added.ok_or(EngineUseError::TooMany { limit: MAX_ENGINES })?;
        if let Err(e) = self.watch_communicator(comm, place, id, how) {
            self.memory.dma.engines.remove(id);
            return Err(e);
        }
        Ok(id)
    }
}
