//! Host memory that peers map while links are up: told, withdrawn and confirmed over the Unix socket.
//!
//! GPU and NIC memory are exported whole, in the hello. Host memory comes and goes, a memfd for each
//! buffer, so it travels in notes: `Share` with the descriptor, `Withdraw`, and `Released` when the
//! peer has unmapped it. An export is known by its number, which its owner never gives twice, and by
//! the link that it came over; never by a descriptor's number, nor by an address, both of which are
//! used again.
//!
//! A note is sent before any reference to its memory enters the ring, so a receiver that meets an
//! address it does not know looks at the socket once and then knows (or never will).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use ringbell_gtlb::loan::TOKEN_BYTES;
use ringbell_gtlb::{Export, Loan, NotReached};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::link::LinkState;
use super::loans::Loans;
use super::rendezvous::ExportInfo;
use super::{LocalTransport, MAX_SHARED};
use crate::board::HOST_BUS;
use crate::descriptors;
use crate::shmem::Mapping;

const MAGIC: u32 = 0x4e42_5221;
const BYTES: usize = 40;
/// An offer has a token behind it.
const LONGEST: usize = BYTES + TOKEN_BYTES;

/// What one side tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Few, and short-lived.
pub(super) enum Note {
    /// Not sent: there is nothing to say yet.
    Nothing,
    /// Borrow this if you can.
    Lend { id: u64, loan: Loan },
    /// It is borrowed, or mapped: refer to it.
    Reached { id: u64 },
    /// It cannot be borrowed: do not refer to it.
    Unreached { id: u64, why: NotReached },
    /// Map this; its descriptor comes along.
    Share { id: u64, info: ExportInfo },
    /// Unmap it and say so.
    Withdraw { id: u64 },
    /// It is unmapped here, or could not be mapped: do not refer to it.
    Released { id: u64 },
}

impl Note {
    fn id(self) -> u64 {
        match self {
            Note::Nothing => 0,
            Note::Share { id, .. }
            | Note::Lend { id, .. }
            | Note::Reached { id }
            | Note::Unreached { id, .. }
            | Note::Withdraw { id }
            | Note::Released { id } => id,
        }
    }

    fn encode(self) -> Vec<u8> {
        let none = ExportInfo::default();
        let (kind, info) = match self {
            Note::Nothing => (0_u32, none),
            Note::Share { info, .. } => (1, info),
            Note::Withdraw { .. } => (2, none),
            Note::Released { .. } => (3, none),
            Note::Lend { loan, .. } => {
                let (file_offset, bus, len) = (loan.key, loan.bus, loan.len);
                let info = ExportInfo {
                    file_offset,
                    bus,
                    len,
                };
                (4, info)
            }
            Note::Reached { .. } => (5, none),
            Note::Unreached { why, .. } => {
                let len = why.code();
                (6, ExportInfo { len, ..none })
            }
        };
        let mut b = Vec::with_capacity(LONGEST);
        b.extend(MAGIC.to_le_bytes());
        b.extend(kind.to_le_bytes());
        for word in [self.id(), info.file_offset, info.bus, info.len] {
            b.extend(word.to_le_bytes());
        }
        if let Note::Lend { loan, .. } = self {
            b.extend(loan.token);
        }
        b
    }

    fn decode(b: &[u8]) -> Option<Note> {
        let (b, token) = b.split_at_checked(BYTES)?;
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[at..at + 8]);
            u64::from_le_bytes(w)
        };
        let (head, id) = (word(0), word(8));
        let kind = head >> 32;
        if head as u32 != MAGIC || token.is_empty() == (kind == 4) {
            return None;
        }
        Some(match kind {
            1 => Note::Share {
                id,
                info: ExportInfo {
                    file_offset: word(16),
                    bus: word(24),
                    len: word(32),
                },
            },
            2 => Note::Withdraw { id },
            3 => Note::Released { id },
            4 => Note::Lend {
                id,
                loan: Loan {
                    key: word(16),
                    bus: word(24),
                    len: word(32),
                    token: token.try_into().ok()?,
                },
            },
            5 => Note::Reached { id },
            6 => Note::Unreached {
                id,
                why: NotReached::from_code(word(32))?,
            },
            _ => return None,
        })
    }
}

/// Host memory of this NIC that peers may map.
#[derive(Debug)]
pub(super) struct HostExport {
    info: ExportInfo,
    fd: OwnedFd,
}

#[derive(Debug)]
struct Mapped {
    id: u64,
    len: u64,
    map: Mapping,
}

/// What a link has shared, in both directions.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Ours that the peer was told of: bus address to length and number.
    told: BTreeMap<u64, (u64, u64)>,
    /// Ours that the peer has mapped: it has said so.
    confirmed: BTreeSet<u64>,
    /// Ours that the peer may still have mapped although they were withdrawn.
    leaving: Vec<u64>,
    /// What could not be sent yet.
    notes: VecDeque<Note>,
    /// The peer's, by bus address.
    mapped: BTreeMap<u64, Mapped>,
    /// Memory that no CPU maps, of both.
    pub(super) loans: Loans,
}

impl Shared {
    /// Whether the peer was told of the memory at this bus address.
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

    /// Whether notes wait for room in the socket.
    pub(super) fn is_waiting(&self) -> bool {
        !self.notes.is_empty()
    }

    fn queue_share(&mut self, id: u64, info: ExportInfo) {
        if self.told.len() + self.notes.len() < MAX_SHARED {
            self.notes.push_back(Note::Share { id, info });
        }
    }

    pub(super) fn queue_lend(&mut self, id: u64, loan: Loan) {
        if self.told.len() + self.notes.len() < MAX_SHARED {
            self.notes.push_back(Note::Lend { id, loan });
        }
    }

    /// Says these too.
    pub(super) fn queue(&mut self, notes: Vec<Note>) {
        self.notes.extend(notes);
    }

    fn queue_withdraw(&mut self, id: u64) {
        // Not told yet: never will be.
        self.notes.retain(
            |n| !matches!(n, Note::Share { id: i, .. } | Note::Lend { id: i, .. } if *i == id),
        );
        if self.loans.take_back(id) {
            self.leaving.push(id);
            self.notes.push_back(Note::Withdraw { id });
        }
        let was_told = self.told.iter().find(|(_, (_, i))| *i == id);
        if let Some(bus) = was_told.map(|(bus, _)| *bus) {
            self.told.remove(&bus);
            self.confirmed.remove(&id);
            self.leaving.push(id);
            self.notes.push_back(Note::Withdraw { id });
        }
    }

    /// What a note of the peer changes here. `false`: it breaks the rules.
    fn take(&mut self, note: Note, fd: Option<OwnedFd>) -> bool {
        match (note, fd) {
            (Note::Share { id, info }, Some(fd)) => self.map(id, info, fd),
            (Note::Reached { id }, None) => {
                match self.told.values().any(|(_, told)| *told == id) {
                    true => drop(self.confirmed.insert(id)),
                    false => self.loans.answered(id, Ok(())),
                }
                true
            }
            (Note::Unreached { id, why }, None) => {
                tracing::info!(id, %why, "a peer does not copy from our memory by itself; it is staged");
                self.loans.answered(id, Err(why));
                // It may cross a withdrawal, and says as much as its answer.
                self.leaving.retain(|i| *i != id);
                true
            }
            // Confirmed when it is closed.
            (Note::Withdraw { id }, None) if self.loans.give_back(id) => true,
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

impl LocalTransport {
    /// Tells every peer of new host memory.
    pub(super) fn share_host(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()> {
        let info = ExportInfo {
            file_offset: memory.file_offset,
            bus: memory.bus,
            len: memory.len,
        };
        let fd = memory.fd.try_clone_to_owned()?;
        self.host_exports.insert(id, HostExport { info, fd });
        for i in 0..self.links.len() {
            if let Some(l) = self.links[i].as_mut().filter(|l| l.state == LinkState::Up) {
                l.shared.queue_share(id, info);
                self.send_notes(i);
            }
        }
        Ok(())
    }

    /// Takes host memory back from every peer.
    pub(super) fn withdraw_host(&mut self, id: u64) {
        let lent = self.loans.remove(&id).is_some();
        if self.host_exports.remove(&id).is_none() && !lent {
            return;
        }
        for i in 0..self.links.len() {
            if let Some(l) = self.links[i].as_mut().filter(|l| l.state == LinkState::Up) {
                l.shared.queue_withdraw(id);
                self.send_notes(i);
            }
        }
    }

    /// Peers that have not confirmed a withdrawal.
    pub(super) fn holders_of(&self, id: u64) -> usize {
        let up = self.links.iter().flatten();
        up.filter(|l| l.state == LinkState::Up && l.shared.leaving.contains(&id))
            .count()
    }

    /// Tells a new peer of everything there is.
    pub(super) fn introduce(&mut self, link: usize) {
        let Some(l) = self.links[link].as_mut() else {
            return;
        };
        for (id, e) in &self.host_exports {
            l.shared.queue_share(*id, e.info);
        }
        for (id, loan) in &self.loans {
            l.shared.queue_lend(*id, *loan);
        }
        self.send_notes(link);
    }

    /// Sends the notes of a link as far as its socket takes them.
    pub(super) fn send_notes(&mut self, link: usize) {
        let Some(l) = self.links[link].as_mut() else {
            return;
        };
        while let Some(note) = l.shared.notes.front().copied() {
            let export = self.host_exports.get(&note.id());
            let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = export.map(|e| [e.fd.as_fd()]);
            if let (Note::Share { .. }, Some(fds)) = (note, &fds) {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            let bytes = note.encode();
            let iov = [IoSlice::new(&bytes)];
            match rustix::net::sendmsg(&l.socket, &iov, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => {}
                // A full socket, or too many descriptors on their way: later.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS) => return,
                // The peer is gone; the socket's end will be seen.
                Err(e) => {
                    tracing::debug!(peer = %l.peer, error = %e, "a note was not sent");
                    l.shared.notes.clear();
                    return;
                }
            }
            l.shared.notes.pop_front();
            if let Note::Share { id, info } = note {
                l.shared.told.insert(info.bus, (info.len, id));
            }
            if let Note::Lend { id, loan } = note {
                l.shared.loans.offer(id, loan);
            }
        }
    }

    /// Reads what the peer says over its socket. `false`: it is gone, or broke the rules.
    pub(super) fn read_notes(&mut self, link: usize) -> bool {
        loop {
            let Some(l) = self.links[link].as_mut() else {
                return false;
            };
            let mut bytes = [0; LONGEST + 1];
            let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got = rustix::net::recvmsg(
                &l.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let got = match got {
                Ok(got) => got,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => return false,
            };
            let mut fds = Vec::new();
            for m in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = m {
                    fds.extend(rights);
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) && fds.is_empty() {
                descriptors::note_cut();
            }
            let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
            let note = Note::decode(&bytes[..got.bytes]).filter(|_| !got.flags.intersects(cut));
            let Some(note) = note.filter(|_| fds.len() <= 1) else {
                return false;
            };
            if let (Note::Lend { id, loan }, true) = (note, fds.is_empty()) {
                match l.shared.loans.borrow(id, loan, &*self.memory) {
                    Some(Note::Nothing) => {}
                    Some(answer) => l.shared.notes.push_back(answer),
                    None => {
                        self.violations += 1;
                        tracing::warn!(peer = %l.peer, id, "memory that overlaps other memory was lent; the link is cut");
                        return false;
                    }
                }
                continue;
            }
            if !l.shared.take(note, fds.pop()) {
                self.violations += 1;
                tracing::warn!(peer = %l.peer, ?note, "a note that breaks the rules; the link is cut");
                return false;
            }
        }
        self.send_notes(link);
        true
    }

    /// Makes sure that the memory behind a reference is known: its note may still be in the socket.
    pub(super) fn learn(&mut self, link: usize, spans: &[(u64, u32)]) {
        let unknown = |(bus, len): &(u64, u32)| {
            let l = self.links[link].as_ref();
            *bus >= HOST_BUS && l.is_some_and(|l| l.resolve(*bus, u64::from(*len)).is_none())
        };
        if spans.iter().any(unknown) && !self.read_notes(link) {
            self.kill_link(link);
        }
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
    fn every_note_survives_its_bytes() {
        let id = u64::MAX - 3;
        for note in [
            Note::Share {
                id,
                info: info(1 << 40, 12345),
            },
            Note::Withdraw { id },
            Note::Released { id },
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for junk in [
            &b""[..],
            &[0; BYTES][..],
            &[0xff; BYTES][..],
            &[0; BYTES + 1][..],
        ] {
            assert_eq!(Note::decode(junk), None);
        }
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
        // Longer than its file: not mapped, and the owner is told so.
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
    fn what_was_not_told_is_not_waited_for() {
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
