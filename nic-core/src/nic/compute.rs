//! The control path of engines and communicators.

use std::sync::atomic::AtomicUsize;
use std::sync::Arc;

use ringbell_nic_abi::{EngineId, PdId, QueueId, SessionId};
use ringbell_onc_engines::program::Program;
use ringbell_onc_engines::stream::StreamEngine;

use super::inbox::Inbox;
use super::Nic;
use crate::collective::{
    CancelError, CommError, CommInfo, CommStatus, CommunicatorConfig, ProgramError, ProgramProgress,
};
use crate::command::{On, Window};
use crate::engine::{
    Direction, EngineInfo, EngineUseError, Outcome, Place, Return, Sharing, MAX_ENGINES,
};
use crate::types::CommId;

/// State of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineResult {
    /// The result, in the engine's own format.
    pub bytes: Vec<u8>,
    /// Bytes of an item that the end of a stream has cut off; they count for nothing.
    pub cut: Option<usize>,
}

impl EngineResult {
    fn of(id: EngineId, outcome: Outcome) -> Result<EngineResult, EngineUseError> {
        match outcome {
            Outcome::Result(bytes, cut) => Ok(EngineResult { bytes, cut }),
            Outcome::Failed => Err(EngineUseError::Failed { id }),
        }
    }
}

impl Nic {
    /// Puts an engine on the path of an established stream, from the next byte on that passes.
    ///
    /// Lengths are those at this NIC's memory. Behind an engine that changes what arrives, a
    /// receive of `len` bytes waits for `len` bytes behind the engine. In front of one that changes
    /// what leaves, a send of `len` bytes completes with `len` when all that the engine has made of
    /// them is on its way, be that more, less or nothing; what the engine keeps for the end of the
    /// stream leaves when the session is shut down or closed. When an engine that changes the
    /// stream panics or fails, the stream ends: operations on it with `ENGINE_FAILED`, the peer's
    /// with `CONNECTION_RESET`. A tap that fails is bypassed.
    ///
    /// # Errors
    /// [`EngineUseError`]: no stream, or another engine is there already.
    pub fn attach_engine(
        &self,
        session: SessionId,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
    ) -> Result<EngineId, EngineUseError> {
        let on = On::Session((session, None), direction, 1);
        self.core(|c| c.engine_places().put_new(None, engine, on))
    }

    /// Makes a place for an engine, on no path yet, for streams of a protection domain to
    /// [share](Nic::share_engine).
    ///
    /// # Errors
    /// [`EngineUseError::TooMany`].
    pub fn add_engine(
        &self,
        pd: PdId,
        engine: Box<dyn StreamEngine>,
    ) -> Result<EngineId, EngineUseError> {
        let too_many = EngineUseError::TooMany { limit: MAX_ENGINES };
        self.core(|c| c.memory.engines.add(pd, engine).ok_or(too_many))
    }

    /// Puts a tap on the path of one more stream: all its streams are counted into one state.
    /// `item` is the bytes of an item: items of different streams are never mixed. 1 where that
    /// does not matter.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such engine or stream, different protection domains, or not a tap.
    pub fn share_engine(
        &self,
        id: EngineId,
        session: SessionId,
        direction: Direction,
        item: usize,
    ) -> Result<(), EngineUseError> {
        let on = On::Session((session, None), direction, item);
        self.core(|c| c.engine_places().put(id, on))
    }

    /// Puts a tap on a queue, from the next byte on that one of its operations moves: it sees what
    /// its descriptors receive, or send, on any session, and what was posted before. It stands
    /// between memory and the engine that a session may have itself: it sees the bytes of the
    /// operations' buffers, those that completions count. All sessions are counted into one state;
    /// `item` is the bytes of an item, so that items of different sessions are never mixed (1 where
    /// that does not matter).
    ///
    /// When the queue is given back the engine stays, and can be queried.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such queue, another engine is there already, or an engine that changes streams, with
    /// which the lengths of the operations would have no meaning.
    pub fn attach_queue_engine(
        &self,
        queue: QueueId,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
        item: usize,
    ) -> Result<EngineId, EngineUseError> {
        let how = Sharing::Items(item.max(1));
        let on = On::Queue(queue, direction, how);
        self.core(|c| c.engine_places().put_new(None, engine, on))
    }

    /// As [`attach_queue_engine`](Nic::attach_queue_engine) with a state for each session: `make`
    /// gives an engine for each that the queue's operations use.
    /// [`engine_result_of`](Nic::engine_result_of) asks for one; after the end of a session it can
    /// still be asked, until another session gets its slot. `make` runs inside the NIC: it must not
    /// block, nor call the NIC.
    ///
    /// # Errors
    /// As there.
    pub fn attach_queue_engines(
        &self,
        queue: QueueId,
        direction: Direction,
        make: impl Fn() -> Box<dyn StreamEngine> + Send + 'static,
    ) -> Result<EngineId, EngineUseError> {
        let pattern = make();
        let how = Sharing::Nothing(Box::new(move || Some(make())));
        let on = On::Queue(queue, direction, how);
        self.core(|c| c.engine_places().put_new(None, pattern, on))
    }

    /// Puts a tap that is somewhere already on a queue as well. Where a session that it is on
    /// itself is used by that queue, a byte still enters once.
    ///
    /// # Errors
    /// As [`attach_queue_engine`](Nic::attach_queue_engine); no such engine, or of another
    /// protection domain.
    pub fn share_queue_engine(
        &self,
        id: EngineId,
        queue: QueueId,
        direction: Direction,
        item: usize,
    ) -> Result<(), EngineUseError> {
        let how = Sharing::Items(item.max(1));
        let on = On::Queue(queue, direction, how);
        self.core(|c| c.engine_places().put(id, on))
    }

    /// Puts a tap at a communicator: it sees what the operations take in or give out that the NIC
    /// takes from queues of `pd` from now on, or the messages of all operations from the next byte
    /// on; [`Place`] says which. All is counted into one state; `item` is the bytes of an item, so
    /// that those of different operations or peers are never mixed (1 where that does not matter).
    /// For one operation alone, attach before it is posted and detach when it has completed.
    ///
    /// Operations read their source and store their result in any order; the engine gets memory in
    /// address order, once, by a pass of reads before the operation begins or completes. While an
    /// engine is attached to messages, no operation of the communicator takes the direct path, on
    /// any rank. When the communicator is freed the engine stays, and can be queried.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such communicator, another engine is there already, or an engine that changes what
    /// passes (on the way to peers, the wire type of an operation does).
    pub fn attach_communicator_engine(
        &self,
        pd: PdId,
        comm: CommId,
        place: Place,
        engine: Box<dyn StreamEngine>,
        item: usize,
    ) -> Result<EngineId, EngineUseError> {
        let how = Sharing::Items(item.max(1));
        let on = On::Communicator(comm, place, how);
        self.core(|c| c.engine_places().put_new(Some(pd), engine, on))
    }

    /// As [`attach_communicator_engine`](Nic::attach_communicator_engine) for messages, with a
    /// state for each peer: [`engine_result_of_rank`](Nic::engine_result_of_rank) asks for one.
    ///
    /// # Errors
    /// As there; [`EngineUseError::OneStream`] for [`Place::Input`] and [`Place::Output`].
    pub fn attach_communicator_engines(
        &self,
        pd: PdId,
        comm: CommId,
        place: Place,
        make: impl Fn() -> Box<dyn StreamEngine> + Send + 'static,
    ) -> Result<EngineId, EngineUseError> {
        let pattern = make();
        let how = Sharing::Nothing(Box::new(move || Some(make())));
        let on = On::Communicator(comm, place, how);
        self.core(|c| c.engine_places().put_new(Some(pd), pattern, on))
    }

    /// Puts a tap that is somewhere already at a communicator as well.
    ///
    /// # Errors
    /// As [`attach_communicator_engine`](Nic::attach_communicator_engine); no such engine.
    pub fn share_communicator_engine(
        &self,
        id: EngineId,
        comm: CommId,
        place: Place,
        item: usize,
    ) -> Result<(), EngineUseError> {
        let how = Sharing::Items(item.max(1));
        let on = On::Communicator(comm, place, how);
        self.core(|c| c.engine_places().put(id, on))
    }

    /// The result so far for one peer of an engine that has a [state for
    /// each](Nic::attach_communicator_engines).
    ///
    /// # Errors
    /// [`EngineUseError::Unknown`], [`EngineUseError::NoRank`], [`EngineUseError::Failed`].
    pub fn engine_result_of_rank(
        &self,
        id: EngineId,
        rank: u32,
    ) -> Result<EngineResult, EngineUseError> {
        let label = SessionId(rank);
        self.engine_result_of(id, label).map_err(|e| match e {
            EngineUseError::NotSeen { id, .. } => EngineUseError::NoRank { id, rank },
            other => other,
        })
    }

    /// The result so far of one stream of an engine that has a [state for
    /// each](Nic::attach_queue_engines).
    ///
    /// # Errors
    /// [`EngineUseError::Unknown`], [`EngineUseError::NotSeen`], [`EngineUseError::Failed`].
    pub fn engine_result_of(
        &self,
        id: EngineId,
        session: SessionId,
    ) -> Result<EngineResult, EngineUseError> {
        self.core(|c| {
            if c.memory.engines.about(id).is_none() {
                return Err(EngineUseError::Unknown { id });
            }
            let outcome = c.memory.engines.result_of(id, session.0);
            EngineResult::of(id, outcome.ok_or(EngineUseError::NotSeen { id, session })?)
        })
    }

    /// `op_return`: the NIC receives the stream of a session by itself, through the engine on its
    /// path, and sends back the engine's output, then half-closes. No other operation may receive
    /// on the session; it is closed as any other.
    ///
    /// # Errors
    /// [`EngineUseError`]: no stream, no engine on its path, or no NIC memory.
    pub fn return_engine(&self, session: SessionId, what: Return) -> Result<(), EngineUseError> {
        self.core(|c| c.start_return(session, what))?;
        self.inner.progress.kick();
        Ok(())
    }

    /// The result so far.
    ///
    /// # Errors
    /// [`EngineUseError::Unknown`]; [`EngineUseError::Failed`]; [`EngineUseError::Apart`] when each
    /// stream has a state of its own.
    pub fn engine_result(&self, id: EngineId) -> Result<EngineResult, EngineUseError> {
        if self.core(|c| c.memory.engines.is_apart(id)) {
            return Err(EngineUseError::Apart { id });
        }
        let outcome = self.core(|c| c.memory.engines.result(id));
        EngineResult::of(id, outcome.ok_or(EngineUseError::Unknown { id })?)
    }

    /// Takes an engine off every path, from the next byte on, and ends it. What has left it is
    /// still delivered (at a sender: in front of the next send, or the end); an item of which only
    /// the beginning has passed is cut off. Returns its last result (that of no stream, when each
    /// has a state of its own).
    ///
    /// # Errors
    /// [`EngineUseError::Unknown`]; [`EngineUseError::Failed`] when it has no result: it is
    /// detached all the same, and a stream that it changed does not go on without it.
    pub fn detach_engine(&self, id: EngineId) -> Result<EngineResult, EngineUseError> {
        let removed = self.core(|c| c.memory.engines.remove(id));
        EngineResult::of(id, removed.ok_or(EngineUseError::Unknown { id })?)
    }

    /// Lets kernels attach engines of a kind: `make` gets the kernel's parameter, and refuses it
    /// with `None`. It runs inside the NIC: it must not block, nor call the NIC.
    ///
    /// # Errors
    /// [`EngineUseError::Kind`]: the number is taken, or 0.
    pub fn register_engine_kind(
        &self,
        kind: u16,
        make: impl Fn(u64) -> Option<Box<dyn StreamEngine>> + Send + 'static,
    ) -> Result<(), EngineUseError> {
        let added = self.core(|c| c.memory.engines.add_kind(kind, Box::new(make)));
        added.then_some(()).ok_or(EngineUseError::Kind { kind })
    }

    /// Every engine of the NIC, with its paths and speed.
    pub fn engines(&self) -> Vec<EngineInfo> {
        self.core(|c| c.memory.engines.infos())
    }

    /// Makes a communicator with this NIC as one rank. Returns at once: the ranks find each other
    /// while the NIC is stepped, and operations may be posted meanwhile; ask
    /// [`communicator_status`](Nic::communicator_status).
    ///
    /// # Errors
    /// [`CommError`]: settings, addresses, a number in use, or NIC memory that is short.
    pub fn create_communicator(&self, config: &CommunicatorConfig) -> Result<CommId, CommError> {
        let ip = self.inner.config.ip;
        let id = self.core(|c| {
            let id = c.collectives(|x, io| x.create(io, ip, config));
            c.time.is_wanted = true;
            id
        })?;
        // Ranks on other hosts do not share our cores; the policy finds out.
        self.inner.progress.policy.expect(config.peers.len());
        self.inner.progress.kick();
        Ok(id)
    }

    /// How far a communicator is.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn communicator_status(&self, id: CommId) -> Result<CommStatus, CommError> {
        self.core(|c| c.collectives.status(id))
    }

    /// Every communicator of this NIC that is not freed.
    pub fn communicators(&self) -> Vec<CommId> {
        self.core(|c| c.collectives.table.ids())
    }

    /// Ends a communicator on all its ranks: everything under way there retires with
    /// `COMM_ABORTED`. It is still to be freed.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn abort_communicator(&self, id: CommId) -> Result<(), CommError> {
        self.core(|c| c.collectives(|x, io| x.abort(io, id)))?;
        self.inner.progress.kick();
        Ok(())
    }

    /// Frees a communicator and its NIC memory. Its id is refused from now on. When nothing is
    /// under way the other ranks may end what they have begun; otherwise it is aborted.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn free_communicator(&self, id: CommId) -> Result<(), CommError> {
        self.core(|c| {
            c.windows.forget(id);
            c.collectives(|x, io| x.free(io, id))
        })?;
        self.inner.progress.kick();
        Ok(())
    }

    /// Lets the other ranks' one-sided operations reach regions of a domain, those that grant peers
    /// access: before a key of one is sent to them.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn grant_window(&self, id: CommId, pd: PdId) -> Result<(), CommError> {
        self.core(|c| {
            let unknown = CommError::Unknown { id };
            let slot = c.collectives.table.find(id.0).ok_or(unknown)?;
            c.collectives(|x, io| x.grant(io, slot, pd));
            Ok(())
        })
    }

    /// Opens an inbox for a communicator whose ranks are connected. Memory that its operations name
    /// is that of a domain.
    ///
    /// # Errors
    /// [`CommError::Unknown`]; [`CommError::TooMany`] inboxes.
    pub fn open_inbox(&self, pd: PdId, id: CommId) -> Result<Inbox, CommError> {
        let news = Arc::new(AtomicUsize::new(0));
        let number = self.core(|c| c.collectives.open_inbox(id, pd, news.clone()))?;
        let progress = self.inner.progress.clone();
        Ok(Inbox::new(number, id, news, progress))
    }

    /// Makes memory that every rank has registered a window of the communicator, for descriptors
    /// with `SYMMETRIC`. The number is the same on all ranks when they make their windows in the
    /// same order.
    ///
    /// # Errors
    /// [`CommError`]: no such communicator, a list of another length, or no number is left.
    pub fn create_window(&self, id: CommId, window: Window) -> Result<u16, CommError> {
        self.core(|c| c.windows.add(&c.collectives, id, window))
    }

    /// Frees a window: its number is refused from now on. Its memory stays registered.
    ///
    /// # Errors
    /// [`CommError::UnknownWindow`].
    pub fn free_window(&self, id: CommId, window: u16) -> Result<(), CommError> {
        let unknown = CommError::UnknownWindow { id, window };
        match self.core(|c| c.windows.remove(id, window)) {
            true => Ok(()),
            false => Err(unknown),
        }
    }

    /// Operations of a communicator that have not ended, from every queue; a queue in which the NIC
    /// has not looked at everything counts as one more.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn communicator_under_way(&self, id: CommId, queue: QueueId) -> Result<usize, CommError> {
        self.core(|c| {
            let host = c.queues.get(queue.0 as usize).map(|q| q.host as usize);
            let rings = [Some(queue.0 as usize), host].into_iter().flatten();
            let rung = rings.filter_map(|r| c.queues.get(r)).any(|q| q.is_rung());
            Ok(c.collectives.under_way(id)? + usize::from(rung))
        })
    }

    /// How far the oldest operation of a communicator is that runs a program over messages; `None`
    /// when there is none.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn program_progress(&self, id: CommId) -> Result<Option<ProgramProgress>, CommError> {
        self.core(|c| c.collectives.program_progress(id))
    }

    /// What a communicator is doing, and with what.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn communicator_info(&self, id: CommId) -> Result<CommInfo, CommError> {
        self.core(|c| {
            let transports = &c.streams.transports;
            let name = |t: usize| transports.get(t).map_or("-", |t| t.caps().name);
            c.collectives.info(id, &name)
        })
    }

    /// Cancels a collective operation on which no other rank depends yet: a message that has met no
    /// partner, or one that waits for what it comes `after`. Its ticket retires with `CANCELLED`,
    /// and its buffer is the caller's at once.
    ///
    /// # Errors
    /// [`CancelError`]: it has ended, or it has begun and goes on.
    pub fn cancel(&self, queue: QueueId, ticket: u32) -> Result<(), CancelError> {
        self.core(|c| c.cancel_collective(queue.0, ticket))
    }

    /// Loads a user's own program: one for each rank of a communicator, in order. It is proved
    /// first, and then run by operations of its kind, rank count and root that ask for
    /// `Algorithm::User`.
    ///
    /// # Errors
    /// [`ProgramError`] names the rank and the step at fault; nothing was changed.
    pub fn load_program(&self, programs: Vec<Program>) -> Result<(), ProgramError> {
        self.core(|c| c.collectives.plans.load(programs))
            .map_err(ProgramError)
    }
}
