//! Operations of the NIC, from its look at an entry until the completion: whose its reads and
//! writes of GPU memory are.
//!
//! An operation happens after its entry was written, and before its completion is seen. What no
//! operation accounts for is a peer's: a put, a get, an atomic.

use std::collections::HashMap;
use std::sync::Arc;

use super::clock::{join, Actor, Known};
use super::shadow::Mark;
use crate::hooks::grouped;

/// An entry that a NIC executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The host's address of the entry.
    pub entry: u64,
    /// The host's address of its completion line.
    pub line: u64,
    /// What it does, in a noun with its article.
    pub what: &'static str,
    /// GPU memory that it reads, as first byte and length.
    pub reads: (u64, u64),
    /// GPU memory that it writes.
    pub writes: (u64, u64),
    /// Kernels may write what it reads, and read what it writes, while it is under way: it is told
    /// by words in memory.
    pub fed: bool,
    /// Which way its message goes.
    pub message: Message,
}

/// Which way the message of an operation goes. What a NIC receives counts as an answer to what it
/// has sent before: a peer that does not wait for it is not seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// To a peer.
    Sent,
    /// From a peer.
    Received,
    /// Both ways, or neither.
    Other,
}

/// Operations that have ended, and can still be named.
const REMEMBERED: usize = 1 << 14;

/// Numbers of places below this are other things: see [`super::trace::BY_NIC`].
const FIRST_SITE: u32 = 2;

/// An operation with what is known of its post.
#[derive(Debug, Clone)]
pub(super) struct Posted {
    pub(super) operation: Operation,
    number: u32,
    /// The store of its entry; none if the host has posted it.
    pub(super) by: Option<Mark>,
    /// What happened before.
    pub(super) known: Arc<Known>,
}

impl Posted {
    pub(super) fn actor(&self) -> Actor {
        Actor::operation(self.number)
    }

    pub(super) fn stamp(&self) -> u32 {
        self.number
    }

    /// In place of a site: operations that are remembered have different ones.
    pub(super) fn site(&self) -> u32 {
        FIRST_SITE + self.number % REMEMBERED as u32
    }

    /// In words, for what it does in memory.
    pub(super) fn describe(&self) -> String {
        let o = &self.operation;
        match o.reads.1.max(o.writes.1) {
            0 => o.what.to_owned(),
            n => format!("{} of {} bytes", o.what, grouped(n)),
        }
    }
}

fn has((first, bytes): (u64, u64), at: u64) -> bool {
    at.wrapping_sub(first) < bytes
}

/// Those of all NICs of a memory.
#[derive(Debug, Default)]
pub(super) struct Operations {
    under_way: Vec<Posted>,
    /// By number modulo [`REMEMBERED`].
    all: Vec<Option<Posted>>,
    last: u32,
    /// Of lines that operations have: what happened before the last completion in it.
    lines: HashMap<u64, Arc<Known>>,
    /// Operations that have ended.
    ended: Arc<Known>,
    /// What happened before what was sent.
    sent: Arc<Known>,
}

impl Operations {
    pub(super) fn begins(&mut self, operation: Operation, by: Option<Mark>, known: Arc<Known>) {
        if operation.message == Message::Sent {
            join(&mut self.sent, &known);
        }
        // An entry that was only looked at is shown again.
        self.under_way
            .retain(|p| p.operation.line != operation.line);
        // Beyond, all are one, which is known: races are missed then, and none is made up.
        self.last = self.last.saturating_add(1).min(u32::MAX - FIRST_SITE);
        let posted = Posted {
            operation,
            number: self.last,
            by,
            known,
        };
        self.lines.entry(operation.line).or_default();
        self.all.resize(REMEMBERED, None);
        let at = self.last as usize % REMEMBERED;
        self.all[at] = Some(posted.clone());
        self.under_way.push(posted);
    }

    /// The completion in a line is about to be written. `host` is what the host's programs and the
    /// NIC know besides.
    pub(super) fn ends(&mut self, line: u64, host: impl FnOnce() -> Arc<Known>) {
        let Some(i) = self.under_way.iter().position(|p| p.operation.line == line) else {
            return;
        };
        let posted = self.under_way.remove(i);
        let ended = Arc::make_mut(&mut self.ended);
        ended.ended(posted.number);
        let oldest = self.under_way.iter().map(|p| p.number).min();
        ended.all_ended(oldest.unwrap_or(self.last + 1) - 1);
        let mut known = host();
        Arc::make_mut(&mut known).ended(posted.number);
        join(&mut known, &posted.known);
        self.lines.insert(line, known);
    }

    /// What has happened before the completion in a line that contains an address, if it is one.
    pub(super) fn completion(&self, at: u64, line_bytes: u64) -> Option<&Arc<Known>> {
        self.lines.get(&(at & !(line_bytes - 1)))
    }

    /// What happened before what has been sent.
    pub(super) fn sent(&self) -> &Arc<Known> {
        &self.sent
    }

    /// No kernel runs: the numbers of their blocks are given anew.
    pub(super) fn forget_kernels(&mut self) {
        let under_way = self.under_way.iter_mut().map(|p| &mut p.known);
        for known in under_way
            .chain(self.lines.values_mut())
            .chain([&mut self.sent])
        {
            Arc::make_mut(known).forget_kernels();
        }
        self.under_way.iter_mut().for_each(|p| p.by = None);
        self.all.iter_mut().flatten().for_each(|p| p.by = None);
    }

    /// The operations that have ended.
    pub(super) fn ended(&self) -> &Arc<Known> {
        &self.ended
    }

    /// Numbers of those under way that words in memory tell of.
    pub(super) fn fed(&self) -> impl Iterator<Item = u32> + '_ {
        let fed = self.under_way.iter().filter(|p| p.operation.fed);
        fed.map(|p| p.number)
    }

    /// The oldest under way that reads or writes there.
    pub(super) fn at(&self, address: u64, store: bool) -> Option<&Posted> {
        let uses = |p: &&Posted| match store {
            true => has(p.operation.writes, address),
            false => has(p.operation.reads, address),
        };
        self.under_way.iter().find(uses)
    }

    /// Whose an access is.
    pub(super) fn named(&self, mark: Mark) -> Option<&Posted> {
        let place = mark.site().checked_sub(FIRST_SITE)? as usize;
        let posted = self.all.get(place)?.as_ref()?;
        (posted.number == mark.stamp).then_some(posted)
    }
}
