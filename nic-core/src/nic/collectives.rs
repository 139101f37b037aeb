//! Communicators through the control path.

use ringbell_nic_abi::QueueId;
use ringbell_onc_engines::program::Program;

use super::Nic;
use crate::collective::{
    CancelError, CommError, CommInfo, CommStatus, CommunicatorConfig, ProgramError,
};
use crate::types::CommId;

impl Nic {
    /// Makes a communicator, of which this NIC is one rank. Returns at once: the ranks find each other
    /// while the NIC is stepped, and operations may be posted meanwhile; ask
    /// [`communicator_status`](Nic::communicator_status).
    ///
    /// # Errors
    /// [`CommError`]: settings, addresses, a number in use, or NIC memory that is short.
    pub fn create_communicator(&self, config: &CommunicatorConfig) -> Result<CommId, CommError> {
        let ip = self.inner.config.ip;
        let id = self.core(|c| {
            let id = c.collectives(|x, io| x.create(io, ip, config));
            c.wants_clock = true;
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
        self.core(|c| c.collectives.ids())
    }

    /// Ends a communicator on all its ranks: everything under way there retires with `COMM_ABORTED`.
    /// It is still to be freed.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn abort_communicator(&self, id: CommId) -> Result<(), CommError> {
        self.core(|c| c.collectives(|x, io| x.abort(io, id)))?;
        self.inner.progress.kick();
        Ok(())
    }

    /// Frees a communicator and its NIC memory. Its id is refused from now on. When nothing is under
    /// way the other ranks may end what they have begun; otherwise it is aborted.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn free_communicator(&self, id: CommId) -> Result<(), CommError> {
        self.core(|c| c.collectives(|x, io| x.free(io, id)))?;
        self.inner.progress.kick();
        Ok(())
    }

    /// Operations of a communicator that have not ended, from every queue; a queue in which the NIC has not
    /// looked at everything counts as one more.
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

    /// What a communicator is doing, and with what.
    ///
    /// # Errors
    /// [`CommError::Unknown`].
    pub fn communicator_info(&self, id: CommId) -> Result<CommInfo, CommError> {
        self.core(|c| {
            let transports = &c.transports;
            let name = |t: usize| transports.get(t).map_or("-", |t| t.name());
            c.collectives.info(id, &name)
        })
    }

    /// Cancels a collective operation on which no other rank counts yet: a message that has met no
    /// partner, or one that waits for what it comes `after`. Its ticket retires with `CANCELLED`, and
    /// its buffer is the caller's at once.
    ///
    /// # Errors
    /// [`CancelError`]: it has ended, or it has begun and goes on.
    pub fn cancel(&self, queue: QueueId, ticket: u32) -> Result<(), CancelError> {
        self.core(|c| c.cancel_collective(queue.0, ticket))
    }

    /// Loads a user's own program: one for each rank of a communicator, in order. It is proved first,
    /// and then run by operations of its kind, rank count and root that ask for `Algorithm::User`.
    ///
    /// # Errors
    /// [`ProgramError`] names the rank and the step at fault; nothing was changed.
    pub fn load_program(&self, programs: Vec<Program>) -> Result<(), ProgramError> {
        self.core(|c| c.collectives.plans.load(programs))
            .map_err(ProgramError)
    }
}
