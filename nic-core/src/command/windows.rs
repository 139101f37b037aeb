//! Windows: memory that every rank of a communicator has allocated together, so that a kernel names
//! a peer's by rank and offset.

use ringbell_nic_abi::{Descriptor, GpuVa, PdId, Rkey, Status, WindowPart};
use rustc_hash::FxHashMap;

use super::dialled::{link_to, Dialled};
use super::refusal::Refusal;
use super::streams::Conn;
use crate::collective::{Collectives, CommError};
use crate::types::CommId;

/// A rank's memory of a window, as its peers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMemory {
    /// First byte at the rank.
    pub va: GpuVa,
    /// Key of its region.
    pub rkey: Rkey,
}

/// A window, as it is made on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Whose queues may use it.
    pub pd: PdId,
    /// Bytes at every rank.
    pub bytes: u64,
    /// The memory of each rank.
    pub ranks: Vec<RankMemory>,
}

/// Where an operation with `SYMMETRIC` goes.
pub(super) struct Place {
    pub(super) to: To,
    pub(super) rkey: Rkey,
    pub(super) va: GpuVa,
}

/// Whose memory it is.
pub(super) enum To {
    /// This rank's own.
    Own,
    /// That of the peer of a connection.
    Peer(Conn),
    /// That of a rank which is to be dialled first.
    Dialled(CommId, u32),
}

/// The windows of all communicators, by communicator and number.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    all: FxHashMap<(CommId, u16), Window>,
    /// The last number of each communicator: none is used twice, so that a freed window's is
    /// refused.
    last: FxHashMap<CommId, u16>,
    /// Operations on ranks that are dialled.
    pub(super) dialled: Dialled,
}

impl Windows {
    /// Adds a window of a communicator; every rank gets the same number when all add theirs in the
    /// same order.
    pub(crate) fn add(
        &mut self,
        collectives: &Collectives,
        id: CommId,
        window: Window,
    ) -> Result<u16, CommError> {
        let slot = collectives
            .table
            .find(id.0)
            .ok_or(CommError::Unknown { id })?;
        let (_, ranks) = collectives.table.shape_of(slot);
        if window.ranks.len() != ranks as usize {
            let given = window.ranks.len();
            return Err(CommError::WindowRanks { given, ranks });
        }
        let last = self.last.entry(id).or_default();
        *last = last
            .checked_add(1)
            .ok_or(CommError::TooManyWindows { id })?;
        self.all.insert((id, *last), window);
        Ok(*last)
    }

    /// Removes a window. `false`: there is none.
    pub(crate) fn remove(&mut self, id: CommId, number: u16) -> bool {
        self.all.remove(&(id, number)).is_some()
    }

    /// A communicator is freed.
    pub(crate) fn forget(&mut self, id: CommId) {
        self.all.retain(|(comm, _), _| *comm != id);
        self.last.remove(&id);
    }

    /// The place that a descriptor names. `len`: bytes of the operation there.
    pub(super) fn place(
        &self,
        collectives: &Collectives,
        pd: PdId,
        d: &Descriptor,
        len: u64,
    ) -> Result<Place, Refusal> {
        let id = CommId(d.session.0);
        let unknown = (Status::BadCommunicator, d.session.0.into());
        let slot = collectives.table.find(id.0).ok_or(unknown)?;
        if let Some(end) = collectives.table.ended(slot) {
            return Err(end);
        }
        let part = WindowPart::of(d.rkey);
        let window = self.all.get(&(id, part.window)).filter(|w| w.pd == pd);
        let window = window.ok_or((Status::BadKey, d.rkey.0.into()))?;
        let rank = u32::from(part.rank);
        let memory = window.ranks.get(rank as usize);
        let memory = memory.ok_or((Status::InvalidArgument, rank.into()))?;
        let end = d.remote_va.0.checked_add(len);
        if end.is_none_or(|end| end > window.bytes) {
            return Err((Status::OutOfBounds, window.bytes));
        }
        let to = match collectives.table.shape_of(slot).0 == rank {
            true => To::Own,
            false => match link_to(collectives, slot, rank)? {
                // Those that wait go first.
                Some(conn) if !self.dialled.has(id, rank) => To::Peer(conn),
                _ => To::Dialled(id, rank),
            },
        };
        Ok(Place {
            to,
            rkey: memory.rkey,
            va: GpuVa(memory.va.0.saturating_add(d.remote_va.0)),
        })
    }
}
