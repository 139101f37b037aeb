//! Exports of this NIC's memory: which peers were notified, and which have not released it.
//!
//! Each link keeps what it has shared ([`shared`](super::shared)); this module holds the exports
//! themselves, and sends and reads notes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use ringbell_gtlb::Export;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::link::LinkState;
use super::note::{Note, BYTES};
use super::rendezvous::ExportInfo;
use super::shared::HostExport;
use super::LocalTransport;
use crate::descriptors;
use crate::memory::nic_memory::HOST_BUS;
use crate::memory::Sharer;

impl Sharer for LocalTransport {
    fn share(&mut self, id: u64, memory: &Export<'_>) -> std::io::Result<()> {
        let info = ExportInfo {
            file_offset: memory.file_offset,
            bus: memory.bus,
            len: memory.len,
        };
        let fd = memory.fd.try_clone_to_owned()?;
        self.offers.insert(id, HostExport { info, fd });
        for i in 0..self.links.len() {
            if let Some(l) = self.links[i].as_mut().filter(|l| l.state == LinkState::Up) {
                l.shared.queue_share(id, info);
                self.send_notes(i);
            }
        }
        Ok(())
    }

    fn withdraw(&mut self, id: u64) {
        if self.offers.remove(&id).is_none() {
            return;
        }
        for i in 0..self.links.len() {
            if let Some(l) = self.links[i].as_mut().filter(|l| l.state == LinkState::Up) {
                l.shared.queue_withdraw(id);
                self.send_notes(i);
            }
        }
    }

    fn holders(&self, id: u64) -> usize {
        let up = self.links.iter().flatten();
        up.filter(|l| l.state == LinkState::Up && l.shared.holds(id))
            .count()
    }
}

impl LocalTransport {
    /// Announces all exports to a new peer.
    pub(super) fn introduce(&mut self, link: usize) {
        let Some(l) = self.links[link].as_mut() else {
            return;
        };
        for (id, e) in &self.offers {
            l.shared.queue_share(*id, e.info);
        }
        self.send_notes(link);
    }

    /// Sends the notes of a link as far as its socket takes them.
    pub(super) fn send_notes(&mut self, link: usize) {
        let Some(l) = self.links[link].as_mut() else {
            return;
        };
        while let Some(note) = l.shared.next_note() {
            let export = self.offers.get(&note.id());
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
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS) => {
                    return self.ready.unsettled(link);
                }
                // The peer is gone; the socket's end will be seen.
                Err(e) => {
                    tracing::debug!(peer = %l.peer, error = %e, "a note was not sent");
                    l.shared.drop_notes();
                    return;
                }
            }
            l.shared.note_sent();
        }
    }

    /// Reads the peer's notes from its socket. `false`: it is gone, or broke the protocol.
    pub(super) fn read_notes(&mut self, link: usize) -> bool {
        loop {
            let Some(l) = self.links[link].as_mut() else {
                return false;
            };
            let mut bytes = [0; BYTES + 1];
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
            if !l.shared.take(note, fds.pop()) {
                self.violations += 1;
                tracing::warn!(peer = %l.peer, ?note, "a note that breaks the rules; the link is cut");
                return false;
            }
        }
        self.send_notes(link);
        true
    }

    /// Ensures that the memory behind a reference is recorded: its note may still be in the socket.
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
