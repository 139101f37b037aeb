//! The readiness of many sockets behind one descriptor.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::event::Timespec;

/// Events of one look.
const EVENTS: usize = 64;

/// A socket that has become ready.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    /// As it was added.
    pub(super) token: u64,
    /// It may have bytes, an end, or an error.
    pub(super) input: bool,
    /// It may take bytes, or has an error.
    pub(super) output: bool,
    /// The peer has ended its direction, or the connection.
    pub(super) ended: bool,
}

/// An epoll instance. It tells of each change once: what was ready stays so until a call on the
/// socket has found nothing.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// What the last look has found and nothing has taken.
    found: RefCell<Vec<Ready>>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            found: RefCell::new(Vec::with_capacity(EVENTS)),
        })
    }

    /// Adds a socket, and tells of what is ready on it already.
    pub(super) fn add(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(token), Poller::flags());
        Ok(epoll::add(&self.epoll, socket, data, flags)?)
    }

    /// Gives a socket another token, and tells of what is ready on it again.
    pub(super) fn rename(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(token), Poller::flags());
        Ok(epoll::modify(&self.epoll, socket, data, flags)?)
    }

    fn flags() -> epoll::EventFlags {
        use epoll::EventFlags as F;
        F::IN | F::OUT | F::RDHUP | F::ET
    }

    /// Whether a socket has become ready. A system call, unless one is known.
    pub(super) fn look(&self) -> bool {
        let mut found = self.found.borrow_mut();
        if found.is_empty() {
            let none = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let mut room = [const { MaybeUninit::uninit() }; EVENTS];
            // An interrupted look is made again soon.
            if let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&none)) {
                found.extend(events.iter().map(|e| Ready::of(*e)));
            }
        }
        !found.is_empty()
    }

    /// A socket that has become ready, of those that the last look has found.
    pub(super) fn take(&self) -> Option<Ready> {
        self.found.borrow_mut().pop()
    }
}

impl Ready {
    fn of(event: epoll::Event) -> Ready {
        use epoll::EventFlags as F;
        let flags = event.flags;
        Ready {
            token: event.data.u64(),
            input: flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR),
            output: flags.intersects(F::OUT | F::HUP | F::ERR),
            ended: flags.intersects(F::RDHUP | F::HUP | F::ERR),
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
