//! Where engines are put: on the path of a session, on a queue, or at a communicator. The bytes
//! that a queue's descriptors move pass them, on any session, or the bytes that a communicator's
//! operations take in, give out, send and receive (`collective/taps.rs`).

use ringbell_nic_abi::{EngineId, Opcode, PdId, QueueId, SessionId};
use ringbell_onc_engines::stream::StreamEngine;

use super::env::Env;
use super::streams::Streams;
use crate::collective::Collectives;
use crate::engine::{Direction, EngineUseError, Place, Sharing, MAX_ENGINES};
use crate::outstanding::Outstanding;
use crate::queue::SendQueue;
use crate::types::{CommId, Owner};

/// A place of an engine.
pub(crate) enum On {
    /// The path of a session, and the bytes of an item
    /// ([`Nic::share_engine`](crate::Nic::share_engine)). The domain is none for the host, which
    /// owns all.
    Session((SessionId, Option<PdId>), Direction, usize),
    /// A queue, from the next byte on that one of its operations moves.
    Queue(QueueId, Direction, Sharing),
    /// A communicator: for operations that are taken from a queue from now on, or messages from the
    /// next byte on.
    Communicator(CommId, Place, Sharing),
}

/// The attachment of engines: the units whose bytes they see.
pub(crate) struct EnginePlaces<'a> {
    pub(super) env: Env<'a>,
    pub(super) streams: &'a mut Streams,
    pub(super) queues: &'a [SendQueue],
    pub(super) outstanding: &'a mut Outstanding,
    pub(super) collectives: &'a mut Collectives,
}

impl EnginePlaces<'_> {
    /// The protection domain of a queue; a ring of the host's own has no number.
    pub(super) fn queue_domain(&self, queue: QueueId) -> Option<PdId> {
        let q = self.queues.get(queue.0 as usize)?;
        (q.queue == queue).then_some(q.pd)
    }

    /// Puts an engine in its place.
    pub(crate) fn put(&mut self, engine: EngineId, on: On) -> Result<(), EngineUseError> {
        match on {
            On::Session(session, direction, item) => {
                self.put_on_session(engine, session, direction, item)
            }
            On::Queue(queue, direction, how) => self.put_on_queue(engine, queue, direction, how),
            On::Communicator(comm, place, how) => self.put_at(engine, comm, place, how),
        }
    }

    /// Makes a place for an engine and puts it there. `pd` is none for the host where a session or
    /// a queue has a domain.
    pub(crate) fn put_new(
        &mut self,
        pd: Option<PdId>,
        engine: Box<dyn StreamEngine>,
        on: On,
    ) -> Result<EngineId, EngineUseError> {
        let pd = match (pd, &on) {
            (Some(pd), _) => pd,
            (None, &On::Session((session, _), ..)) => {
                let no_stream = EngineUseError::NoStream { session };
                self.streams.for_engine(session, None).ok_or(no_stream)?.1
            }
            (None, &On::Queue(queue, ..)) => {
                let no_queue = EngineUseError::NoQueue { queue };
                self.queue_domain(queue).ok_or(no_queue)?
            }
            (None, &On::Communicator(id, ..)) => return Err(EngineUseError::NoCommunicator { id }),
        };
        let added = self.env.memory.engines.add(pd, engine);
        let id = added.ok_or(EngineUseError::TooMany { limit: MAX_ENGINES })?;
        // Every engine that was made is in a place.
        if let Err(e) = self.put(id, on) {
            self.env.memory.engines.remove(id);
            return Err(e);
        }
        Ok(id)
    }

    fn put_on_session(
        &mut self,
        engine: EngineId,
        (session, pd): (SessionId, Option<PdId>),
        direction: Direction,
        item: usize,
    ) -> Result<(), EngineUseError> {
        let Some((stream, pd)) = self.streams.for_engine(session, pd) else {
            return Err(EngineUseError::NoStream { session });
        };
        let engines = &mut self.env.memory.engines;
        let Some((owner, name, is_tap)) = engines.about(engine) else {
            return Err(EngineUseError::Unknown { id: engine });
        };
        if owner != pd {
            return Err(EngineUseError::Domain {
                id: engine,
                session,
            });
        }
        if !is_tap && engines.streams_of(engine) > 0 {
            let what = "several streams cannot share";
            return Err(EngineUseError::NotATap { name, what });
        }
        if engines.is_apart(engine) {
            return Err(EngineUseError::Apart { id: engine });
        }
        let key = (stream.transport, stream.conn, direction);
        if let Some(id) = engines.on(key) {
            return Err(EngineUseError::Occupied { session, id });
        }
        // A card counts for one stream of an engine.
        let shared = engines.path_of(engine);
        let unseen = shared.map_or(Vec::new(), |(t, conn, _)| self.streams.unseen(t, conn));
        engines.continue_in_software(engine, &unseen);
        let alone = shared.is_none() && item == 1;
        engines.put(engine, key, session, item);
        let spec = engines.could_be(engine);
        if let (Some(spec), Direction::Receive, true) = (spec, direction, alone) {
            let hardware = self.streams.transports[stream.transport].hardware();
            if let Some(counter) = hardware.and_then(|h| h.take_engine(stream.conn, spec)) {
                engines.count_in_hardware(engine, counter);
            }
        }
        tracing::info!(%engine, name, %session, ?direction, "engine on the path");
        Ok(())
    }

    fn put_on_queue(
        &mut self,
        engine: EngineId,
        queue: QueueId,
        direction: Direction,
        how: Sharing,
    ) -> Result<(), EngineUseError> {
        let Some(pd) = self.queue_domain(queue) else {
            return Err(EngineUseError::NoQueue { queue });
        };
        let what = "the operations of a queue, which move bytes of several streams, cannot have";
        let (owner, name) = self.tap(engine, what)?;
        if owner != pd {
            return Err(EngineUseError::QueueDomain { id: engine, queue });
        }
        let engines = &mut self.env.memory.engines;
        let by = Owner::queue(queue.0);
        if let Some(id) = engines.watcher(by, direction) {
            return Err(EngineUseError::Watched { queue, id });
        }
        engines.watch(engine, (by, queue.0), direction, how);
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
            if let (true, Some((t, conn))) = (ours, w.conn) {
                let session = self.streams.sessions.id(w.session);
                engines.show(by, (t, conn, direction), session.0);
            }
        }
        Ok(())
    }

    fn put_at(
        &mut self,
        engine: EngineId,
        comm: CommId,
        place: Place,
        how: Sharing,
    ) -> Result<(), EngineUseError> {
        let Some(slot) = self.collectives.table.find(comm.0) else {
            return Err(EngineUseError::NoCommunicator { id: comm });
        };
        let what =
            "operations of a communicator cannot have (messages are converted by their wire type)";
        let (_, name) = self.tap(engine, what)?;
        let one = matches!(place, Place::Input | Place::Output);
        if one && matches!(how, Sharing::Nothing(_)) {
            return Err(EngineUseError::OneStream { place });
        }
        let engines = &mut self.env.memory.engines;
        let (by, direction) = place.at(slot);
        if let Some(id) = engines.watcher(by, direction) {
            return Err(EngineUseError::Taken { comm, place, id });
        }
        engines.watch(engine, (by, comm.0), direction, how);
        self.collectives.show_messages(engines);
        tracing::info!(%engine, name, ?comm, ?place, "engine at the communicator");
        Ok(())
    }

    /// Domain and name of a tap whose streams may be mixed; `what` cannot have another engine.
    fn tap(
        &self,
        engine: EngineId,
        what: &'static str,
    ) -> Result<(PdId, &'static str), EngineUseError> {
        let engines = &self.env.memory.engines;
        match engines.about(engine) {
            None => Err(EngineUseError::Unknown { id: engine }),
            Some((_, name, false)) => Err(EngineUseError::NotATap { name, what }),
            Some(_) if engines.is_apart(engine) => Err(EngineUseError::Apart { id: engine }),
            Some((owner, name, true)) => Ok((owner, name)),
        }
    }
}
