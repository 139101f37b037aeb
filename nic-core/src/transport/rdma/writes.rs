//! WRITEs of a stream's connection: messages that go straight to receives whose keys the peer has
//! been given.
//!
//! They are requests of the stream's own queue pair, so they arrive in order with its bytes. A
//! WRITE is one packet, so that all packets of a message have the same headers, and the kernel can
//! put them into place. The immediate data of the last one name the receive, which ends.

use std::collections::VecDeque;

use ringbell_nic_abi::NakCode;

use crate::transport::exposed::Wrong;
use crate::transport::Target;
use crate::types::WorkToken;
use ringbell_roce::qp::{Refusal, Remote, Request, Work};

/// Bits of immediate data below their kind.
pub(super) const KIND_SHIFT: u32 = 28;
/// The kind of those that name a receive, and the bits of its key that do so.
pub(super) const WRITTEN: u32 = 2;
pub(super) const NAMED: u32 = (1 << KIND_SHIFT) - 1;

/// Immediate data that end the receive of that key.
pub(super) fn word(key: u32) -> u32 {
    WRITTEN << KIND_SHIFT | key & NAMED
}

/// Bytes of the stream's positions that leave as WRITEs.
#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Where the first goes.
    to: Target,
    /// They are the last of their message.
    is_whole: bool,
}

/// The sending side.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Posted sends that are WRITEs.
    targets: VecDeque<(WorkToken, Target)>,
    ranges: VecDeque<Range>,
    /// Bytes that WRITEs have taken: the window does not count them.
    pub(super) framed: u64,
}

impl Writes {
    /// Gives back memory for more WRITEs than there are.
    pub(super) fn shrink(&mut self) {
        self.targets.shrink_to_fit();
        self.ranges.shrink_to_fit();
    }

    /// A send was posted that goes there.
    pub(super) fn post(&mut self, token: WorkToken, to: Target) {
        self.targets.push_back((token, to));
    }

    /// A send has ended, or all have.
    pub(super) fn drop_target(&mut self, token: Option<WorkToken>) {
        self.targets
            .retain(|(t, _)| token.is_some_and(|token| *t != token));
    }

    /// Where a send goes, when it is a WRITE.
    pub(super) fn target(&self, token: WorkToken) -> Option<Target> {
        let mut all = self.targets.iter();
        all.find(|(t, _)| *t == token).map(|(_, to)| *to)
    }

    /// The `n` positions up to `end` have the bytes of a send from `done` on. `is_all`: they are
    /// its last.
    pub(super) fn add(
        &mut self,
        (token, to): (WorkToken, Target),
        end: u64,
        n: u32,
        done: u32,
        is_all: bool,
    ) {
        if is_all {
            self.drop_target(Some(token));
        }
        let start = end - u64::from(n);
        let is_whole = is_all && to.last;
        if let Some(r) = self.ranges.back_mut() {
            let reaches = u64::from(r.to.offset) + (r.end - r.start);
            let goes_on = reaches == u64::from(to.offset) + u64::from(done);
            if r.end == start && r.to.key == to.key && goes_on {
                (r.end, r.is_whole) = (end, is_whole);
                return;
            }
        }
        let to = Target {
            offset: to.offset + done,
            ..to
        };
        self.ranges.push_back(Range {
            start,
            end,
            to,
            is_whole,
        });
    }

    /// Where the next WRITE begins.
    pub(super) fn next_start(&self) -> Option<u64> {
        self.ranges.front().map(|r| r.start)
    }

    /// The WRITE of the bytes from a position on, if they are one's. `waits`: an acknowledgement
    /// will make room for more bytes.
    pub(super) fn next(&mut self, position: u64, mtu: u32, waits: bool) -> Option<Work> {
        let r = self.ranges.front().filter(|r| r.start <= position)?;
        let left = r.end - position;
        let len = left.min(mtu.into()) as u32;
        // The receiver expects full packets.
        let is_short = !r.is_whole && len < mtu;
        if len == 0 || (is_short && waits) {
            return None;
        }
        let at = Remote {
            address: u64::from(r.to.offset) + (position - r.start),
            key: r.to.key,
        };
        let ends = r.is_whole && u64::from(len) == left;
        let word = word(r.to.key);
        if ends {
            self.ranges.pop_front();
        }
        self.framed += u64::from(len);
        Some(Work {
            id: position,
            request: Request::Write(at, ends.then_some(word)),
            len,
        })
    }
}

impl From<Wrong> for Refusal {
    fn from(_: Wrong) -> Refusal {
        Refusal::Nak(NakCode::RemoteAccess)
    }
}
