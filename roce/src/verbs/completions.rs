//! Completion queues, and the channels that tell sleeping programs of them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::types::{Completion, Status};

/// Where programs sleep for completions: a descriptor that is readable while there are events.
#[derive(Debug)]
pub(super) struct Channel {
    event: OwnedFd,
    /// The queues' own names of the events, oldest first.
    waiting: Mutex<VecDeque<u64>>,
}

impl Channel {
    pub(super) fn new() -> std::io::Result<Channel> {
        // Each reading takes one event, and waits for it unless the program asks otherwise.
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Channel {
            event: rustix::event::eventfd(0, flags)?,
            waiting: Mutex::default(),
        })
    }

    fn raise(&self, name: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(name);
        // It fails only with 2^64 - 2 events unread.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// The next event; waits if the descriptor does.
    pub(super) fn next(&self) -> std::io::Result<u64> {
        loop {
            let mut count = [0; 8];
            rustix::io::retry_on_intr(|| rustix::io::read(&self.event, &mut count))?;
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // A queue that was destroyed has taken its events back.
            if let Some(name) = waiting.pop_front() {
                return Ok(name);
            }
        }
    }

    pub(super) fn forget(&self, name: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|n| *n != name);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Which completion raises the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    No,
    /// A solicited one, or one that has failed.
    Solicited,
    Any,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    entries: VecDeque<Completion>,
    pub(super) limit: u32,
    overrun: bool,
    pub(super) armed: Armed,
    pub(super) channel: Option<(Arc<Channel>, u64)>,
}

impl Cq {
    pub(super) fn new(limit: u32, channel: Option<(Arc<Channel>, u64)>) -> Cq {
        Cq {
            entries: VecDeque::new(),
            limit,
            overrun: false,
            armed: Armed::No,
            channel,
        }
    }

    /// Adds an entry. Without room it is lost, and the queue says so from then on (IBTA vol. 1
    /// §11.6.3.1).
    pub(super) fn push(&mut self, c: Completion, solicited: bool) {
        if self.entries.len() >= self.limit as usize {
            self.overrun = true;
        } else {
            self.entries.push_back(c);
        }
        let raises = match self.armed {
            Armed::No => false,
            Armed::Solicited => solicited || c.status != Status::Success || self.overrun,
            Armed::Any => true,
        };
        if let (true, Some((channel, name))) = (raises, &self.channel) {
            self.armed = Armed::No;
            channel.raise(*name);
        }
    }

    /// Takes entries, oldest first. `None`: there are none left, and some were lost.
    pub(super) fn take(&mut self, out: &mut [Completion]) -> Option<usize> {
        let n = out.len().min(self.entries.len());
        for (to, from) in out.iter_mut().zip(self.entries.drain(..n)) {
            *to = from;
        }
        (n > 0 || !self.overrun).then_some(n)
    }

    /// Forgets what a queue pair has completed.
    pub(super) fn forget(&mut self, queue_pair: u32) {
        self.entries.retain(|c| c.queue_pair != queue_pair);
    }

    /// Changes how many entries it can hold. `false`: more are waiting.
    pub(super) fn resize(&mut self, limit: u32) -> bool {
        let fits = self.entries.len() <= limit as usize;
        if fits {
            self.limit = limit;
        }
        fits
    }
}
