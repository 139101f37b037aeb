//! Link set-up, authentication of peers, and link failure.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustix::event::{epoll, Timespec};

use super::endpoint::LISTENER;
use super::link::{Link, LinkState};
use super::rendezvous;
use super::{LocalTransport, Phase};
use crate::descriptors;
use crate::types::NicTime;

/// How long a peer NIC may take to answer; its progress thread does so within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl LocalTransport {
    /// The number of the next link, unless there are as many as may be.
    fn free_number(&self) -> Option<usize> {
        let free = self.links.iter().position(Option::is_none);
        let next = (self.links.len() < self.config.max_links).then_some(self.links.len());
        free.or(next)
    }

    /// Adds a link with a number that was free.
    fn add_link(&mut self, i: usize, link: Link) -> Option<()> {
        let data = epoll::EventData::new_u64(i as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.endpoint.epoll, &link.socket, data, flags).ok()?;
        if i == self.links.len() {
            self.links.push(None);
        }
        self.links[i] = Some(link);
        let all = self.ready.opened(i, &self.endpoint.wake);
        if self.ready.by_marks() {
            let from = if all { 0 } else { i };
            for (n, l) in self.links.iter_mut().enumerate().take(i + 1).skip(from) {
                if let Some(l) = l {
                    l.announcer.join(&self.ready, n);
                }
            }
        }
        Some(())
    }

    /// A link to the NIC with that address: one that is there, or a new one.
    pub(super) fn link_to(
        &mut self,
        now: NicTime,
        ip: Ipv4Addr,
        deadline: NicTime,
    ) -> Result<usize, Status> {
        let usable =
            |l: &Link| l.peer == ip && matches!(l.state, LinkState::Up | LinkState::Calling);
        if let Some(i) = self
            .links
            .iter()
            .position(|l| l.as_ref().is_some_and(usable))
        {
            return Ok(i);
        }
        let short = |status| {
            move |e| {
                descriptors::note(&e);
                status
            }
        };
        let socket = rendezvous::connect(&self.endpoint.directory, ip)
            .map_err(short(Status::HostUnreachable))?;
        let limit = deadline.min(now.plus(ANSWER_TIMEOUT));
        let number = self.free_number().ok_or(Status::NoResources)?;
        let link = Link::calling(socket, ip, limit).map_err(short(Status::NoResources))?;
        let wake = self.endpoint.wake.fds().ok_or(Status::NoResources)?;
        rendezvous::send(
            &link.socket,
            &self.endpoint.card(&self.config, self.ip, number),
            link.segment_fd(),
            wake,
            &self.endpoint.export_fds,
        )
        .map_err(|_| Status::HostUnreachable)?;
        self.add_link(number, link).ok_or(Status::NoResources)?;
        Ok(number)
    }

    /// Flushes the links that have something to send, `control` too: packets that waited for room.
    #[inline(never)]
    pub(super) fn flush_marked(&mut self, control: bool) -> bool {
        let mut moved = false;
        for word in 0..self.ready.words() {
            for i in self.ready.links_to_send(word) {
                if let Some(l) = &mut self.links[i] {
                    moved |= control && l.push_control();
                    l.flush();
                    if l.has_control() {
                        l.announcer.has_to_send();
                    }
                }
            }
        }
        moved
    }

    /// Accepts links, continues handshakes, and detects peers that are gone.
    #[inline(never)]
    pub(super) fn look_at_sockets(&mut self, now: NicTime) -> bool {
        let mut moved = false;
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 16];
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready: Vec<u64> = match epoll::wait(&self.endpoint.epoll, &mut space, Some(&zero)) {
            // No allocation while nothing is ready.
            Ok((events, _)) => events.iter().map(|e| e.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        for key in ready {
            moved = true;
            if key == LISTENER {
                self.accept_links(now);
            } else {
                self.on_socket(key as usize);
            }
        }
        for word in 0..self.ready.words() {
            for i in self.ready.links_to_settle(word) {
                moved |= self.settle(i, now);
            }
        }
        moved
    }

    /// Moves on what only time moves: a handshake that takes too long, an end, notes for a socket
    /// that was full.
    fn settle(&mut self, i: usize, now: NicTime) -> bool {
        let Some(l) = &self.links[i] else {
            return false;
        };
        match l.state {
            LinkState::Called | LinkState::Calling if l.deadline <= now => {
                tracing::warn!(peer = %l.peer, "no handshake in time; the link is dropped");
                self.kill_link(i);
                return true;
            }
            LinkState::Dead if l.users == 0 => self.links[i] = None,
            LinkState::Up => self.send_notes(i),
            LinkState::Called | LinkState::Calling | LinkState::Dead => self.ready.unsettled(i),
        }
        false
    }

    fn accept_links(&mut self, now: NicTime) {
        while let Some(socket) = rendezvous::accept(&self.endpoint.listener) {
            let deadline = now.plus(self.config.handshake_timeout);
            let Some(i) = self.free_number() else {
                continue;
            };
            if self.add_link(i, Link::called(socket, deadline)).is_some() {
                // Usually the hello is there already.
                self.on_socket(i);
            }
        }
    }

    fn on_socket(&mut self, i: usize) {
        let Some(l) = self.links.get(i).and_then(Option::as_ref) else {
            return;
        };
        match l.state {
            LinkState::Called | LinkState::Calling => self.shake(i),
            // After the handshake there are only notes about host memory, and the end.
            LinkState::Up => {
                if !self.read_notes(i) {
                    self.kill_link(i);
                }
            }
            LinkState::Dead => {}
        }
    }

    fn shake(&mut self, i: usize) {
        let secret = self.config.secret;
        let Some(l) = self.links[i].as_mut() else {
            return;
        };
        let called = l.state == LinkState::Called;
        let asked = l.peer;
        let result = match rendezvous::recv(&l.socket, &secret, called) {
            Ok(None) => return,
            Ok(Some(hello)) if !called && hello.ip != asked => {
                Err(std::io::ErrorKind::InvalidData.into())
            }
            Ok(Some(hello)) if !self.endpoint.network.reaches(hello.network) => {
                if called {
                    rendezvous::refuse(&l.socket);
                }
                tracing::info!(peer = %hello.ip, "not linked by local: it is in another network namespace");
                Err(rendezvous::elsewhere())
            }
            Ok(Some(hello)) => l.establish(hello),
            Err(e) => Err(e),
        };
        if let Err(error) = result {
            descriptors::note(&error);
            match called {
                true => tracing::debug!(%error, "refused a process that called"),
                false => tracing::info!(peer = %asked, %error, "not linked by local"),
            }
            return self.kill_link(i);
        }
        if called {
            let Some(l) = self.links[i].as_ref() else {
                return;
            };
            let sent = match self.endpoint.wake.fds() {
                Some(wake) => rendezvous::send(
                    &l.socket,
                    &self.endpoint.card(&self.config, self.ip, i),
                    None,
                    wake,
                    &self.endpoint.export_fds,
                ),
                None => Err(std::io::ErrorKind::Other.into()),
            };
            if sent.is_err() {
                return self.kill_link(i);
            }
        }
        // The peer may have written before it was mapped here.
        self.ready.may_read(i);
        self.introduce(i);
        self.for_each_user(i, |t, id| t.activate(id));
    }

    fn for_each_user(&mut self, link: usize, mut f: impl FnMut(&mut LocalTransport, u32)) {
        for id in self.table.of_link(link) {
            f(self, id);
        }
    }

    /// The peer is gone. What it has sent before an orderly end can still be received: its memory
    /// stays mapped here.
    pub(super) fn kill_link(&mut self, i: usize) {
        let Some(l) = self.links[i].as_mut() else {
            return;
        };
        if l.state == LinkState::Dead {
            return;
        }
        let _ = epoll::delete(&self.endpoint.epoll, &l.socket);
        let was_up = l.state == LinkState::Up;
        l.state = LinkState::Dead;
        self.ready.unsettled(i);
        tracing::info!(peer = %l.peer, was_up, "link down");
        if was_up {
            // The ring outlives the peer; its last packets decide between an end and a reset.
            self.drain_dead(i);
        }
        if let Some(l) = &mut self.links[i] {
            l.forget_rings();
        }
        self.for_each_user(i, |t, id| {
            let orderly = t
                .conn(id)
                .is_some_and(|c| c.rx.peer_fin && c.phase == Phase::Open && !c.closing);
            if orderly {
                let mut events = std::mem::take(&mut t.events);
                if let Some(c) = t.conn(id) {
                    c.peer_closed = true;
                    c.fail_sends(Status::ConnectionReset, &mut events);
                }
                t.events = events;
                t.activate(id);
            } else {
                t.reset_conn(id);
            }
        });
    }
}
