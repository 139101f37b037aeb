//! Exports to local peers, who map or copy from them: host memory, and allocations that no CPU maps.
//!
//! Peers are notified at registration, and asked to release the memory before it is freed. [`Sharer`] is the
//! transports' part.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ringbell_gtlb::{DeregisterError, Export, ExportRecord, NotReached};
use ringbell_nic_abi::Lkey;

/// Memory that no CPU maps, between this NIC and a local peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerExports {
    /// The peer's address.
    pub peer: Ipv4Addr,
    /// Allocations of ours that the peer's own engine copies from.
    pub exported: usize,
    /// Allocations of the peer's that ours copies from.
    pub imported: usize,
    /// Ours that the peer is opening.
    pub opening: usize,
    /// Ours that are staged instead, and why.
    pub refused: Vec<NotReached>,
}

impl std::fmt::Display for PeerExports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (peer, exported, imported) = (self.peer, self.exported, self.imported);
        write!(
            f,
            "{peer} copies from {exported} allocations of ours and we from {imported} of its"
        )?;
        if self.opening > 0 {
            write!(f, "; {} are opened when no kernel runs there", self.opening)?;
        }
        for why in NotReached::ALL {
            match self.refused.iter().filter(|w| **w == why).count() {
                0 => {}
                n => write!(f, "; {n} are staged, because {why}")?,
            }
        }
        Ok(())
    }
}

/// Export of this NIC's memory to peers, and its withdrawal. A transport whose peers reach none has nothing to do.
pub trait Sharer {
    /// Lets peers map host memory, from now on and under a number that is never used again; a peer that
    /// cannot gets copies.
    ///
    /// # Errors
    /// What the system refused; then no peer was notified.
    fn share(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()> {
        let _ = (id, memory);
        Ok(())
    }

    /// Lets peers import memory that no CPU maps, under a number as for [`share`](Sharer::share). A peer that
    /// cannot gets copies.
    fn export(&mut self, id: u64, record: &ExportRecord) {
        let _ = (id, record);
    }

    /// Which memory is exported and imported, for each peer.
    fn peer_exports(&self) -> Vec<PeerExports> {
        Vec::new()
    }

    /// Takes shared or exported memory back: no new reference names it, and peers are asked to unmap it.
    fn withdraw(&mut self, id: u64) {
        let _ = id;
    }

    /// Peers that have not confirmed to have unmapped withdrawn memory. Those that are gone do not count.
    fn holders(&self, id: u64) -> usize {
        let _ = id;
        0
    }
}

/// Peers that still hold memory which was withdrawn.
pub(crate) fn holders<S: Sharer + ?Sized>(id: u64, sharers: &[Box<S>]) -> usize {
    sharers.iter().map(|s| s.holders(id)).sum()
}

/// An allocation, by the number that its memory gave it.
#[derive(Debug)]
struct Exported {
    /// Its number towards peers.
    id: u64,
    /// Regions inside.
    regions: usize,
    /// Peers were asked for it back.
    withdrawn: bool,
}

/// Allocations that no CPU maps, each exported while a region of it is registered.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    by_key: BTreeMap<u64, Exported>,
    by_region: BTreeMap<u32, u64>,
    /// Regions that are not exported, and why.
    kept: BTreeMap<u32, NotReached>,
    /// The last number that names memory of this NIC towards peers.
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

    /// A region was registered inside of what its memory exports.
    pub(crate) fn export<S: Sharer + ?Sized>(
        &mut self,
        lkey: Lkey,
        record: &ExportRecord,
        sharers: &mut [Box<S>],
    ) {
        self.by_region.insert(lkey.0, record.key);
        let last = &mut self.last;
        let exported = self.by_key.entry(record.key).or_insert_with(|| {
            *last += 1;
            Exported {
                id: *last,
                regions: 0,
                withdrawn: false,
            }
        });
        exported.regions += 1;
        // One that was asked back for a region in quarantine stays staged.
        if exported.regions == 1 {
            sharers
                .iter_mut()
                .for_each(|s| s.export(exported.id, record));
        }
    }

    /// A region was registered that cannot be exported: payloads from it are staged for peers.
    pub(crate) fn keep(&mut self, lkey: Lkey, why: NotReached) {
        self.kept.insert(lkey.0, why);
    }

    /// A region with so many operations in flight is about to be freed: withdraws its allocation from peers when it was
    /// the last one there.
    ///
    /// # Errors
    /// [`DeregisterError::Imported`] until they have given it back.
    pub(crate) fn end<S: Sharer + ?Sized>(
        &mut self,
        lkey: Lkey,
        in_flight: u32,
        sharers: &mut [Box<S>],
    ) -> Result<(), DeregisterError> {
        let Some(&key) = self.by_region.get(&lkey.0) else {
            self.kept.remove(&lkey.0);
            return Ok(());
        };
        if in_flight > 0 {
            // What is on its way still needs it.
            return Ok(());
        }
        if let Some(exported) = self.by_key.get_mut(&key) {
            if exported.regions > 1 && !exported.withdrawn {
                exported.regions -= 1;
                self.by_region.remove(&lkey.0);
                return Ok(());
            }
            let id = exported.id;
            if !std::mem::replace(&mut exported.withdrawn, true) {
                sharers.iter_mut().for_each(|s| s.withdraw(id));
            }
            let peers = holders(id, sharers);
            if peers > 0 {
                return Err(DeregisterError::Imported { lkey, peers });
            }
            exported.regions -= 1;
            if exported.regions == 0 {
                self.by_key.remove(&key);
            }
        }
        self.by_region.remove(&lkey.0);
        Ok(())
    }

    /// How many regions are staged for every peer, and why: as text for users.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (usize, NotReached)> + '_ {
        NotReached::ALL.into_iter().filter_map(|why| {
            let n = self.kept.values().filter(|w| **w == why).count();
            (n > 0).then_some((n, why))
        })
    }
}
