//! Exports of GPU memory that no CPU maps: peers copy out of it by their own engines.
//!
//! An owner offers each allocation once to each peer (`Export`). The peer imports it, which may take long and happens beside
//! everything else. Payloads of that memory are staged until it answers `Reached`, and permanently when it answers
//! `Unreached` with a reason. `Withdraw` asks for the memory back; `Released` confirms that no copy is in flight and
//! nothing is open. Imports from a peer that is gone are released without a note. See ADR 27.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ringbell_gtlb::{
    BusSpan, DmaMemory, ExportRecord, Import, ImportState, ImportedRange, NotReached,
};

use super::note::Note;
use super::MAX_SHARED;
use crate::dma::DmaAccess;
use crate::memory::PeerExports;

/// Memory of the peer.
#[derive(Debug)]
struct Imported {
    id: u64,
    record: ExportRecord,
    import: Box<dyn Import>,
    /// Set once the peer was notified that this NIC reaches it.
    reach: Option<ImportedRange>,
}

/// Memory that goes back to the peer.
#[derive(Debug)]
struct Returning {
    id: u64,
    import: Box<dyn Import>,
    /// Where copies may still read; none when there never was such a place.
    reading: Option<(u64, u64)>,
}

/// What a link has exported and imported.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    /// Ours that the peer was asked about: number to record.
    offered: BTreeMap<u64, ExportRecord>,
    /// Ours that the peer copies from, by bus address: bytes and number.
    exported: BTreeMap<u64, (u64, u64)>,
    /// Ours that the peer does not reach, and why.
    refused: BTreeMap<u64, NotReached>,
    /// The peer's, by bus address there.
    imported: BTreeMap<u64, Imported>,
    returning: Vec<Returning>,
}

impl Allocations {
    /// Whether the peer copies `len` bytes from this bus address by itself.
    pub(super) fn reaches(&self, bus: u64, len: u64) -> bool {
        let below = self.exported.range(..=bus).next_back();
        below.is_some_and(|(at, (all, _))| (bus - at).checked_add(len).is_some_and(|n| n <= *all))
    }

    /// Where the peer's memory at a bus address is here, and whether the peer is another process.
    pub(super) fn locate(&self, bus: u64, len: u64) -> Option<(BusSpan, bool)> {
        let (_, b) = self.imported.range(..=bus).next_back()?;
        let span = b.reach.as_ref()?.span(bus, len)?;
        Some((span, b.import.is_foreign()))
    }

    /// Whether something is being opened or given back.
    pub(super) fn is_moving(&self) -> bool {
        !self.returning.is_empty() || self.imported.values().any(|b| b.reach.is_none())
    }

    /// An offer has left.
    pub(super) fn offer(&mut self, id: u64, record: ExportRecord) {
        self.offered.insert(id, record);
    }

    /// The peer's answer on our side: it copies from the memory, or not. A number that was withdrawn meanwhile is
    /// ignored.
    pub(super) fn answered(&mut self, id: u64, answer: Result<(), NotReached>) {
        let Some(record) = self.offered.remove(&id) else {
            return;
        };
        match answer {
            Ok(()) => {
                self.exported.insert(record.bus, (record.len, id));
            }
            Err(why) => {
                self.refused.insert(id, why);
            }
        }
    }

    /// Ours, to be taken back. Returns whether the peer must be asked.
    pub(super) fn take_back(&mut self, id: u64) -> bool {
        self.refused.remove(&id);
        let before = self.exported.len();
        self.exported.retain(|_, (_, i)| *i != id);
        self.offered.remove(&id).is_some() || self.exported.len() < before
    }

    /// The peer offers memory. The answer when it is known at once; `None`: it breaks the rules.
    pub(super) fn import(
        &mut self,
        id: u64,
        record: ExportRecord,
        memory: &dyn DmaMemory,
    ) -> Option<Note> {
        let end = record
            .bus
            .checked_add(record.len)
            .filter(|_| record.len > 0)?;
        let below = self.imported.range(..end).next_back();
        if below.is_some_and(|(at, b)| at + b.record.len > record.bus) {
            return None;
        }
        let imported = match self.imported.len() < MAX_SHARED {
            true => memory.import_allocation(&record),
            false => Err(NotReached::NoRoom),
        };
        let import = match imported {
            Ok(import) => import,
            Err(why) => return Some(Note::Unreached { id, why }),
        };
        let entry = Imported {
            id,
            record,
            import,
            reach: None,
        };
        self.imported.insert(record.bus, entry);
        Some(Note::Nothing)
    }

    /// The peer asks for memory back. Returns whether there was such memory; `Released` follows then.
    pub(super) fn give_back(&mut self, id: u64) -> bool {
        let Some(bus) = self.imported.iter().find(|(_, b)| b.id == id) else {
            return false;
        };
        let bus = *bus.0;
        if let Some(b) = self.imported.remove(&bus) {
            self.returning.push(b.leave());
        }
        true
    }

    /// The peer is gone: everything goes back.
    pub(super) fn give_all_back(&mut self) {
        let all = std::mem::take(&mut self.imported);
        self.returning
            .extend(all.into_values().map(Imported::leave));
    }

    /// Looks at what is being opened and what goes back; notes that are due.
    pub(super) fn advance(&mut self, dma: &mut dyn DmaAccess, notes: &mut Vec<Note>) {
        self.imported.retain(|_, b| {
            if b.reach.is_some() {
                return true;
            }
            match b.import.state() {
                ImportState::Opening => true,
                ImportState::Open { bus } => {
                    b.reach = Some(ImportedRange::new(&b.record, bus));
                    notes.push(Note::Reached { id: b.id });
                    true
                }
                ImportState::Refused(why) => {
                    notes.push(Note::Unreached { id: b.id, why });
                    false
                }
                ImportState::Closed => {
                    let why = NotReached::Stale;
                    notes.push(Note::Unreached { id: b.id, why });
                    false
                }
            }
        });
        self.returning.retain_mut(|r| {
            let mut is_read = |(bus, len)| dma.peers().is_some_and(|d| d.is_reading(bus, len));
            if r.reading.is_some_and(&mut is_read) {
                return true;
            }
            r.import.close();
            let closed = r.import.state() == ImportState::Closed;
            if closed {
                notes.push(Note::Released { id: r.id });
            }
            !closed
        });
    }

    /// Text for users; empty when nothing was exported.
    pub(super) fn summary(&self, peer: Ipv4Addr) -> Option<PeerExports> {
        let exports = PeerExports {
            peer,
            exported: self.exported.len(),
            imported: self.imported.values().filter(|b| b.reach.is_some()).count(),
            opening: self.offered.len(),
            refused: self.refused.values().copied().collect(),
        };
        let any = exports.exported + exports.imported + exports.opening + exports.refused.len();
        (any > 0).then_some(exports)
    }
}

impl Imported {
    fn leave(self) -> Returning {
        let place = self
            .reach
            .and_then(|r| r.span(self.record.bus, self.record.len));
        Returning {
            id: self.id,
            import: self.import,
            reading: place.map(|s| (s.addr.value(), s.len)),
        }
    }
}
