//! Engines on the path: attach one to a stream
//! ([`Socket::attach_engine`](crate::Socket::attach_engine)), to a queue
//! ([`Nic::attach_queue_engine`]), or to a communicator
//! ([`Communicator::attach_engine`](crate::Communicator::attach_engine)). A crate of yours adds its
//! own by implementing [`StreamEngine`].

use ringbell_nic_abi::{EngineId, QueueId, SessionId};

pub use ringbell_nic_core::engine::{Direction, EngineInfo, EngineUseError, Place, Rates, Return};
pub use ringbell_nic_core::EngineResult;
pub use ringbell_onc_engines::stream::*;

pub use crate::backend::{EngineKind, EngineMaker};

use crate::memory::Plain;
use crate::Nic;

/// The value that a result begins with, such as an [`HllSummary`](hll::HllSummary), a
/// [`Checksum`](checksum::Checksum), or a structure of an engine of yours; `None` when the result
/// is shorter.
///
/// ```
/// use ringbell::engines::{checksum, read_result, StreamEngine};
/// let mut engine = checksum::ChecksumEngine::new();
/// engine.process(b"123456789", &mut Vec::new());
/// let mut result = Vec::new();
/// engine.result(&mut result);
/// let read: checksum::Checksum = read_result(&result).expect("16 bytes");
/// assert_eq!((read.crc32c, read.bytes), (0xe306_9283, 9));
/// assert_eq!(read_result::<checksum::Checksum>(&result[1..]), None);
/// ```
pub fn read_result<T: Plain>(result: &[u8]) -> Option<T> {
    let (value, _) = T::read_from_prefix(result).ok()?;
    Some(value)
}

impl Nic {
    /// Puts an engine on the path of an established session, from the next byte on that passes: as
    /// [`Socket::attach_engine`](crate::Socket::attach_engine), for sessions of kernels.
    ///
    /// # Errors
    /// [`EngineUseError`]: no stream, or another engine is there already.
    pub fn attach_engine(
        &self,
        session: SessionId,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
    ) -> Result<EngineId, EngineUseError> {
        self.backend().attach_engine(session, direction, engine)
    }

    /// Puts a tap on a queue: from the next byte on it sees what the queue's descriptors receive,
    /// or send, on any session, in one state. `item` is the bytes of an item, so that items of
    /// different sessions are never mixed; 1 where that does not matter.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such queue, another engine is there already, or the engine would change the data.
    pub fn attach_queue_engine(
        &self,
        queue: QueueId,
        direction: Direction,
        engine: Box<dyn StreamEngine>,
        item: usize,
    ) -> Result<EngineId, EngineUseError> {
        let nic = self.backend();
        nic.attach_queue_engine(queue, direction, engine, item)
    }

    /// As [`attach_queue_engine`](Nic::attach_queue_engine) with an engine for each session, of
    /// which [`engine_result_of`](Nic::engine_result_of) asks. `make` runs inside the NIC: it must
    /// not block, nor call the NIC.
    ///
    /// # Errors
    /// As there.
    pub fn attach_queue_engines(
        &self,
        queue: QueueId,
        direction: Direction,
        make: impl Fn() -> Box<dyn StreamEngine> + Send + 'static,
    ) -> Result<EngineId, EngineUseError> {
        self.backend()
            .attach_queue_engines(queue, direction, Box::new(make))
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
        self.backend().register_engine_kind(kind, Box::new(make))
    }

    /// Every engine of the NIC, with its paths and speed.
    pub fn engines(&self) -> Vec<EngineInfo> {
        self.backend().engines()
    }

    /// The result so far, in the engine's own format; [`read_result`] reads it as a value.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such engine, it has failed, or each stream has a state of its own.
    pub fn engine_result(&self, id: EngineId) -> Result<EngineResult, EngineUseError> {
        self.backend().engine_result(id)
    }

    /// The result so far for one session, of an engine with a state for each.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such engine, it has failed, or it has not seen the session.
    pub fn engine_result_of(
        &self,
        id: EngineId,
        session: SessionId,
    ) -> Result<EngineResult, EngineUseError> {
        self.backend().engine_result_of(id, session)
    }

    /// The result so far for one rank, of engines of
    /// [`Communicator::attach_engines`](crate::Communicator::attach_engines).
    ///
    /// # Errors
    /// [`EngineUseError`]: no such engine or rank, or it has failed.
    pub fn engine_result_of_rank(
        &self,
        id: EngineId,
        rank: u32,
    ) -> Result<EngineResult, EngineUseError> {
        self.backend().engine_result_of_rank(id, rank)
    }

    /// Takes an engine off every path, from the next byte on, and returns its last result.
    ///
    /// # Errors
    /// [`EngineUseError`]: no such engine, or it has failed; then it is detached all the same.
    pub fn detach_engine(&self, id: EngineId) -> Result<EngineResult, EngineUseError> {
        self.backend().detach_engine(id)
    }
}
