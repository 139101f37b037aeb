//! Engines at a communicator: they process its operations' sources, results and messages.

use ringbell_nic_abi::EngineId;
use ringbell_nic_core::engine::{EngineUseError, Place};
use ringbell_onc_engines::stream::StreamEngine;

use super::Communicator;

impl Communicator {
    /// Attaches an engine at this rank: from now on it sees the source of each operation, its
    /// result, or the messages of all operations, as [`Place`] says. `item` is the bytes of an
    /// item, so that items of different operations or peers are never mixed; 1 where that does not
    /// matter.
    ///
    /// Read its result with [`Nic::engine_result`](crate::Nic::engine_result) after any operation,
    /// and end it with [`Nic::detach_engine`](crate::Nic::detach_engine). Other ranks need not do
    /// the same.
    ///
    /// ```
    /// use ringbell::engines::{checksum, read_result, Place};
    /// use ringbell::{CommOptions, Communicator, Nic, ReduceOp};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nic = Nic::builder().ip("10.9.8.9/24").open()?;
    /// let comm = Communicator::init_all(&[nic.clone()], &CommOptions::default())?.remove(0);
    /// let id = comm.attach_engine(Place::Output, Box::new(checksum::ChecksumEngine::new()), 1)?;
    /// let x = nic.alloc::<u32>(1)?;
    /// x.write(0, &[7])?;
    /// comm.all_reduce::<u32>(&x, &x, 1, ReduceOp::Sum)?;
    /// let result = nic.detach_engine(id)?;
    /// let seen: checksum::Checksum = read_result(&result.bytes).expect("16 bytes");
    /// assert_eq!(seen.bytes, 4);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`EngineUseError`]: an engine is attached there already, or the engine would change the data.
    pub fn attach_engine(
        &self,
        place: Place,
        engine: Box<dyn StreamEngine>,
        item: usize,
    ) -> Result<EngineId, EngineUseError> {
        let (nic, id) = (self.nic(), self.inner.id);
        nic.backend()
            .attach_communicator_engine(nic.pd(), id, place, engine, item)
    }

    /// As [`attach_engine`](Communicator::attach_engine) for messages, with an engine for each
    /// peer; read the results with [`engine_result_of_rank`](crate::Nic::engine_result_of_rank).
    ///
    /// # Errors
    /// As [`attach_engine`](Communicator::attach_engine).
    pub fn attach_engines(
        &self,
        place: Place,
        make: impl Fn() -> Box<dyn StreamEngine> + Send + 'static,
    ) -> Result<EngineId, EngineUseError> {
        let (nic, id) = (self.nic(), self.inner.id);
        nic.backend()
            .attach_communicator_engines(nic.pd(), id, place, Box::new(make))
    }
}
