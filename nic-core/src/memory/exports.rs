//! Exports of host memory to local peers, who map it and copy from it.
//!
//! Peers are notified when memory is allocated, and asked to release it before it is freed.
//! [`Sharer`] is the transports' part.

use ringbell_gtlb::Export;

/// Export of this NIC's memory to peers, and its withdrawal: the part of a transport whose peers
/// can map it.
pub trait Sharer {
    /// Lets peers map host memory, from now on and under a number that is never used again; a peer
    /// that cannot gets copies.
    ///
    /// # Errors
    /// What the system refused; then no peer was notified.
    fn share(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()>;

    /// Takes shared memory back: no new reference names it, and peers are asked to unmap it.
    fn withdraw(&mut self, id: u64);

    /// Peers that have not confirmed to have unmapped withdrawn memory. Those that are gone do not
    /// count.
    fn holders(&self, id: u64) -> usize;
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
    pub(crate) fn share<'a>(
        &mut self,
        memory: &Export<'_>,
        mut sharers: impl Iterator<Item = &'a mut dyn Sharer>,
    ) -> std::io::Result<u64> {
        self.last += 1;
        let id = self.last;
        sharers.try_for_each(|s| s.share(id, memory))?;
        Ok(id)
    }
}
