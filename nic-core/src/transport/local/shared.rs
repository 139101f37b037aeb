//! Shared host memory of one link: what each side maps of the other, announced, withdrawn and
//! confirmed in notes.
//!
//! GPU and NIC memory are exported whole, in the hello. Host memory comes and goes, a memfd for
//! each buffer, so it travels in notes: `Share` with the descriptor, `Withdraw`, and `Released`
//! when the peer has unmapped it. An export is identified by its number, which its owner never
//! assigns twice, and by the link that it came over; never by a descriptor's number, nor by an
//! address, both of which are used again.
//!
//! A note is sent before any reference to its memory enters the ring. So a receiver that gets an
//! unknown address reads the socket once; an address that is still unknown then is invalid.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use super::note::Note;
use super::rendezvous::ExportInfo;
use crate::memory::nic_memory::HOST_BUS;
use crate::shmem::Mapping;

/// Most host exports of one NIC that a link announces, and most exports, so that a peer's tables
/// stay bounded. Later ones are staged.
const MAX_SHARED: usize = 4096;

/// Host memory of this NIC that peers may map.
#[derive(Debug)]
pub(super) struct HostExport {
    pub(super) info: ExportInfo,
    pub(super) fd: OwnedFd,
}

/// Exports announced to every peer, besides those in the hello, by number.
pub(super) type Offers = BTreeMap<u64, HostExport>;

#[derive(Debug)]
struct Mapped {
    id: u64,
    len: u64,
    map: Mapping,
}

/// What a link has shared, in both directions.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Ours that were announced to the peer: bus address to length and number.
    told: BTreeMap<u64, (u64, u64)>,
    /// Ours that the peer has confirmed to have mapped.
    confirmed: BTreeSet<u64>,
    /// Ours that the peer may still have mapped although they were withdrawn.
    leaving: Vec<u64>,
    /// What could not be sent yet.
    notes: VecDeque<Note>,
    /// The peer's, by bus address.
    mapped: BTreeMap<u64, Mapped>,
}

impl Shared {
    /// Whether the memory at this bus address was announced to the peer.
    pub(super) fn reaches(&self, bus: u64) -> bool {
        let below = self.told.range(..=bus).next_back();
        below.is_some_and(|(at, (len, _))| bus - at < *len)
    }

    /// Whether the peer has mapped these bytes of ours; `None`: it has not answered.
    pub(super) fn maps(&self, bus: u64, len: u64) -> Option<bool> {
        let covers = |at: u64, size: u64| {
            let from = bus.checked_sub(at).and_then(|from| from.checked_add(len));
            from.is_some_and(|end| end <= size)
        };
        let below = self.told.range(..=bus).next_back();
        if let Some((_, (_, id))) = below.filter(|(at, (size, _))| covers(**at, *size)) {
            return self.confirmed.contains(id).then_some(true);
        }
        let waits = |n: &Note| matches!(n, Note::Share { info, .. } if covers(info.bus, info.len));
        match self.notes.iter().any(waits) {
            true => None,
            false => Some(false),
        }
    }

    /// Where the peer's memory at a bus address lies here.
    pub(super) fn locate(&self, bus: u64, len: u64) -> Option<*mut u8> {
        let (at, m) = self.mapped.range(..=bus).next_back()?;
        let from = bus - at;
        if from.checked_add(len)? > m.len {
            return None;
        }
        Some(m.map.base().wrapping_add(from as usize))
    }

    /// Whether the peer may still have memory mapped that was withdrawn.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.leaving.contains(&id)
    }

    /// The next note for the peer.
    pub(super) fn next_note(&self) -> Option<Note> {
        self.notes.front().copied()
    }

    /// The next note has left.
    pub(super) fn note_sent(&mut self) {
        if let Some(Note::Share { id, info }) = self.notes.pop_front() {
            self.told.insert(info.bus, (info.len, id));
        }
    }

    /// No note will leave any more: the peer is gone.
    pub(super) fn drop_notes(&mut self) {
        self.notes.clear();
    }

    /// Whether notes wait for room in the socket.
    pub(super) fn is_waiting(&self) -> bool {
        !self.notes.is_empty()
    }

    pub(super) fn queue_share(&mut self, id: u64, info: ExportInfo) {
        if self.told.len() + self.notes.len() < MAX_SHARED {
            self.notes.push_back(Note::Share { id, info });
        }
    }

    pub(super) fn queue_withdraw(&mut self, id: u64) {
        // Not announced yet, and never will be.
        self.notes
            .retain(|n| !matches!(n, Note::Share { id: i, .. } if *i == id));
        let was_told = self.told.iter().find(|(_, (_, i))| *i == id);
        if let Some(bus) = was_told.map(|(bus, _)| *bus) {
            self.told.remove(&bus);
            self.confirmed.remove(&id);
            self.leaving.push(id);
            self.notes.push_back(Note::Withdraw { id });
        }
    }

    /// Applies a note of the peer. `false`: it breaks the protocol.
    pub(super) fn take(&mut self, note: Note, fd: Option<OwnedFd>) -> bool {
        match (note, fd) {
            (Note::Share { id, info }, Some(fd)) => self.map(id, info, fd),
            (Note::Reached { id }, None) => {
                // It may cross a withdrawal.
                if self.told.values().any(|(_, told)| *told == id) {
                    self.confirmed.insert(id);
                }
                true
            }
            (Note::Withdraw { id }, None) => {
                // Unmapped here and now: nothing of this link is being copied between two packets.
                self.mapped.retain(|_, m| m.id != id);
                self.notes.push_back(Note::Released { id });
                true
            }
            (Note::Released { id }, None) => {
                self.leaving.retain(|i| *i != id);
                self.confirmed.remove(&id);
                self.told.retain(|_, (_, i)| *i != id);
                true
            }
            _ => false,
        }
    }

    fn map(&mut self, id: u64, info: ExportInfo, fd: OwnedFd) -> bool {
        let Some(end) = info.bus.checked_add(info.len) else {
            return false;
        };
        let before = self.mapped.range(..end).next_back();
        let overlaps = before.is_some_and(|(at, m)| at + m.len > info.bus);
        if info.bus < HOST_BUS || info.len == 0 || overlaps {
            return false;
        }
        let len = usize::try_from(info.len).unwrap_or(usize::MAX);
        match Mapping::of_peer(fd, info.file_offset, len, true) {
            Ok(mut map) if self.mapped.len() < MAX_SHARED => {
                // The mapping holds the memory; thousands of descriptors would run out.
                map.forget_fd();
                let len = info.len;
                self.mapped.insert(info.bus, Mapped { id, len, map });
                self.notes.push_back(Note::Reached { id });
            }
            refused => {
                tracing::warn!(id, ?refused, "a peer's host memory is not mapped");
                self.notes.push_back(Note::Released { id });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(bus: u64, len: u64) -> ExportInfo {
        ExportInfo {
            file_offset: 0,
            bus: HOST_BUS + bus,
            len,
        }
    }

    fn memfd(len: usize) -> Option<OwnedFd> {
        let map = Mapping::memfd("t", len).expect("memfd");
        map.fd()?.try_clone_to_owned().ok()
    }

    #[test]
    fn an_address_that_is_used_again_names_the_new_memory() {
        let mut s = Shared::default();
        assert!(s.take(
            Note::Share {
                id: 1,
                info: info(4096, 8192)
            },
            memfd(8192)
        ));
        let old = s.locate(HOST_BUS + 5000, 100).expect("mapped");
        assert!(s.locate(HOST_BUS + 5000, 8192).is_none(), "past its end");
        assert!(s.locate(HOST_BUS + 4095, 1).is_none());
        assert!(s.take(Note::Withdraw { id: 1 }, None));
        assert!(s.locate(HOST_BUS + 5000, 1).is_none(), "unmapped at once");
        assert!(s.take(
            Note::Share {
                id: 2,
                info: info(4096, 4096)
            },
            memfd(4096)
        ));
        let new = s.locate(HOST_BUS + 5000, 100).expect("mapped");
        assert!(
            s.locate(HOST_BUS + 5000, 4000).is_none(),
            "the new length counts"
        );
        // A late withdrawal of the first leaves the second alone, and is confirmed again.
        assert!(s.take(Note::Withdraw { id: 1 }, None));
        assert_eq!(s.locate(HOST_BUS + 5000, 100), Some(new));
        let _ = old;
        let released = s.notes.iter().filter(|n| **n == Note::Released { id: 1 });
        assert_eq!(released.count(), 2);
    }

    #[test]
    fn notes_that_break_the_rules_are_refused() {
        let mut s = Shared::default();
        assert!(s.take(
            Note::Share {
                id: 1,
                info: info(4096, 8192)
            },
            memfd(8192)
        ));
        let bad = [
            (
                Note::Share {
                    id: 2,
                    info: info(0, 4097),
                },
                memfd(8192),
            ),
            (
                Note::Share {
                    id: 2,
                    info: info(8192, 4096),
                },
                memfd(8192),
            ),
            (
                Note::Share {
                    id: 2,
                    info: info(1 << 20, 0),
                },
                memfd(4096),
            ),
            (
                Note::Share {
                    id: 2,
                    info: info(u64::MAX / 2, u64::MAX / 2),
                },
                memfd(4096),
            ),
            (
                Note::Share {
                    id: 2,
                    info: info(1 << 20, 4096),
                },
                None,
            ),
            (Note::Withdraw { id: 1 }, memfd(4096)),
        ];
        for (note, fd) in bad {
            assert!(!s.take(note, fd), "{note:?}");
        }
        // Longer than its file: not mapped, and the owner is notified.
        assert!(s.take(
            Note::Share {
                id: 3,
                info: info(1 << 20, 1 << 20)
            },
            memfd(4096)
        ));
        assert_eq!(s.notes.back(), Some(&Note::Released { id: 3 }));
    }

    #[test]
    fn only_an_announced_share_is_waited_for() {
        let mut s = Shared::default();
        s.queue_share(1, info(0, 4096));
        s.queue_withdraw(1);
        assert!(s.notes.is_empty() && s.leaving.is_empty());
        s.told.insert(HOST_BUS, (4096, 2));
        assert!(s.reaches(HOST_BUS + 4095) && !s.reaches(HOST_BUS + 4096));
        s.queue_withdraw(2);
        assert!(!s.reaches(HOST_BUS) && s.leaving == [2]);
        assert!(s.take(Note::Released { id: 2 }, None) && s.leaving.is_empty());
    }
}
