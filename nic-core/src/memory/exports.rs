//! Exports of host memory to local peers, who map it and copy from it.
//!
//! Peers are notified when memory is allocated, and asked to release it before it is freed.
//! [`Sharer`] is the transports' part.

use ringbell_gtlb::Export;

/// Export of this NIC's memory to peers, and its withdrawal. A transport whose peers reach none has
/// nothing to do.
pub trait Sharer {
    /// Lets peers map host memory, from now on and under a number that is never used again; a peer
    /// that cannot gets copies.
    ///
    /// # Errors
    /// What the system refused; then no peer was notified.
    fn share(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()> {
        let _ = (id, memory);
        Ok(())
    }

    /// Takes shared memory back: no new reference names it, and peers are asked to unmap it.
    fn withdraw(&mut self, id: u64) {
        let _ = id;
    }

    /// Peers that have not confirmed to have unmapped withdrawn memory. Those that are gone do not
    /// count.
    fn holders(&self, id: u64) -> usize {
        let _ = id;
        0
    }
}

/// Peers that still hold memory which was withdrawn.
pub(crate) fn holders<S: Sharer + ?Sized>(id: u64, sharers: &[Box<S>]) -> usize {
    sharers.iter().map(|s| s.holders(id)).sum()
}

/// The numbers that name this NIC's host memory towards peers.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    last: u64,
}

impl Exports {
    /// Lets local peers map memory that a file holds. Returns the number that names it from now on.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn share<S: Sharer + ?Sized>(
        &mut self,
        memory: &Export<'_>,
        sharers: &mut [Box<S>],
    ) -> std::io::Result<u64> {
        self.last += 1;
        let id = self.last;
        sharers.iter_mut().try_for_each(|s| s.share(id, memory))?;
        Ok(id)
    }
}
