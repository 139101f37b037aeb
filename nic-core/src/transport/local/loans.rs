//! GPU memory that no CPU maps, lent to peers: they copy out of it by their own engines.
//!
//! An owner offers each allocation once to each peer (`Lend`). The peer borrows it, which may take long and happens beside
//! everything else; until it has said `Reached`, payloads of that memory are staged, and for good when it says
//! `Unreached` and why. `Withdraw` asks for it back, `Released` confirms: no copy is in flight then and nothing is open.
//! What belongs to a peer that is gone is given back without a word. See ADR 27.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ringbell_gtlb::{
    BusSpan, DmaMemory, ExportRecord, Import, ImportState, ImportedRange, NotReached,
};

use super::note::Note;
use super::MAX_SHARED;
use crate::dma::DmaAccess;
use crate::memory::PeerLoans;

/// Memory of the peer.
#[derive(Debug)]
struct Borrowed {
    id: u64,
    loan: ExportRecord,
    borrow: Box<dyn Import>,
    /// Once the peer was told that it is.
    reach: Option<ImportedRange>,
}

/// Memory that goes back to the peer.
#[derive(Debug)]
struct Returning {
    id: u64,
    borrow: Box<dyn Import>,
    /// Where copies may still read; none when there never was such a place.
    reading: Option<(u64, u64)>,
}

/// What a link has lent and borrowed.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Ours that the peer was asked about: number to loan.
    offered: BTreeMap<u64, ExportRecord>,
    /// Ours that the peer copies from, by bus address: bytes and number.
    lent: BTreeMap<u64, (u64, u64)>,
    /// Ours that the peer does not reach, and why.
    refused: BTreeMap<u64, NotReached>,
    /// The peer's, by bus address there.
    borrowed: BTreeMap<u64, Borrowed>,
    returning: Vec<Returning>,
}

impl Loans {
    /// Whether the peer copies `len` bytes from this bus address by itself.
    pub(super) fn reaches(&self, bus: u64, len: u64) -> bool {
        let below = self.lent.range(..=bus).next_back();
        below.is_some_and(|(at, (all, _))| (bus - at).checked_add(len).is_some_and(|n| n <= *all))
    }

    /// Where the peer's memory at a bus address is here, and whether the peer is another process.
    pub(super) fn locate(&self, bus: u64, len: u64) -> Option<(BusSpan, bool)> {
        let (_, b) = self.borrowed.range(..=bus).next_back()?;
        let span = b.reach.as_ref()?.span(bus, len)?;
        Some((span, b.borrow.is_foreign()))
    }

    /// Whether something is being opened or given back.
    pub(super) fn is_moving(&self) -> bool {
        !self.returning.is_empty() || self.borrowed.values().any(|b| b.reach.is_none())
    }

    /// An offer has left.
    pub(super) fn offer(&mut self, id: u64, loan: ExportRecord) {
        self.offered.insert(id, loan);
    }

    /// The peer copies from it, or not: our side. A number that was withdrawn meanwhile means nothing.
    pub(super) fn answered(&mut self, id: u64, answer: Result<(), NotReached>) {
        let Some(loan) = self.offered.remove(&id) else {
            return;
        };
        match answer {
            Ok(()) => {
                self.lent.insert(loan.bus, (loan.len, id));
            }
            Err(why) => {
                self.refused.insert(id, why);
            }
        }
    }

    /// Ours, to be taken back. Returns whether the peer must be asked.
    pub(super) fn take_back(&mut self, id: u64) -> bool {
        self.refused.remove(&id);
        let before = self.lent.len();
        self.lent.retain(|_, (_, i)| *i != id);
        self.offered.remove(&id).is_some() || self.lent.len() < before
    }

    /// The peer offers memory. The answer when it is known at once; `None`: it breaks the rules.
    pub(super) fn borrow(
        &mut self,
        id: u64,
        loan: ExportRecord,
        memory: &dyn DmaMemory,
    ) -> Option<Note> {
        let end = loan.bus.checked_add(loan.len).filter(|_| loan.len > 0)?;
        let below = self.borrowed.range(..end).next_back();
        if below.is_some_and(|(at, b)| at + b.loan.len > loan.bus) {
            return None;
        }
        let borrowed = match self.borrowed.len() < MAX_SHARED {
            true => memory.import_allocation(&loan),
            false => Err(NotReached::NoRoom),
        };
        let borrow = match borrowed {
            Ok(borrow) => borrow,
            Err(why) => return Some(Note::Unreached { id, why }),
        };
        let entry = Borrowed {
            id,
            loan,
            borrow,
            reach: None,
        };
        self.borrowed.insert(loan.bus, entry);
        Some(Note::Nothing)
    }

    /// The peer asks for memory back. Returns whether there was such memory; `Released` follows then.
    pub(super) fn give_back(&mut self, id: u64) -> bool {
        let Some(bus) = self.borrowed.iter().find(|(_, b)| b.id == id) else {
            return false;
        };
        let bus = *bus.0;
        if let Some(b) = self.borrowed.remove(&bus) {
            self.returning.push(b.leave());
        }
        true
    }

    /// The peer is gone: everything goes back.
    pub(super) fn give_all_back(&mut self) {
        let all = std::mem::take(&mut self.borrowed);
        self.returning
            .extend(all.into_values().map(Borrowed::leave));
    }

    /// Looks at what is being opened and what goes back; notes that are due.
    pub(super) fn advance(&mut self, dma: &dyn DmaAccess, notes: &mut Vec<Note>) {
        self.borrowed.retain(|_, b| {
            if b.reach.is_some() {
                return true;
            }
            match b.borrow.state() {
                ImportState::Opening => true,
                ImportState::Open { bus } => {
                    b.reach = Some(ImportedRange::new(&b.loan, bus));
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
            if r.reading.is_some_and(|(bus, len)| dma.is_reading(bus, len)) {
                return true;
            }
            r.borrow.close();
            let closed = r.borrow.state() == ImportState::Closed;
            if closed {
                notes.push(Note::Released { id: r.id });
            }
            !closed
        });
    }

    /// For people; nothing when nothing was lent.
    pub(super) fn summary(&self, peer: Ipv4Addr) -> Option<PeerLoans> {
        let loans = PeerLoans {
            peer,
            lent: self.lent.len(),
            borrowed: self.borrowed.values().filter(|b| b.reach.is_some()).count(),
            opening: self.offered.len(),
            refused: self.refused.values().copied().collect(),
        };
        let any = loans.lent + loans.borrowed + loans.opening + loans.refused.len();
        (any > 0).then_some(loans)
    }
}

impl Borrowed {
    fn leave(self) -> Returning {
        let place = self
            .reach
            .and_then(|r| r.span(self.loan.bus, self.loan.len));
        Returning {
            id: self.id,
            borrow: self.borrow,
            reading: place.map(|s| (s.addr.value(), s.len)),
        }
    }
}
