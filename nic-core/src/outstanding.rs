//! Accepted descriptors that have not retired, and their deadlines.
//!
//! A slab whose entries are also links of a hashed timing wheel (4,096 buckets of 65.5 µs), so that
//! setting and clearing a deadline costs a few stores and no allocation. An operation that retires
//! before the NIC next reads its clock never enters the wheel at all.

use ringbell_gtlb::Pin;
use ringbell_nic_abi::{Opcode, SessionId, Status};

use crate::permit::Permit;
use crate::types::{ConnId, NicTime, WorkToken};

const TICK_SHIFT: u32 = 16;
const BUCKETS: usize = 4096;
/// Bucket of operations whose time-out has not been started.
const UNARMED: u32 = BUCKETS as u32;
const NIL: u32 = u32::MAX;

/// An accepted descriptor.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) permit: Permit,
    pub(crate) opcode: Opcode,
    /// Slot of its session; a closed session may have been reused, so only for counting by token.
    pub(crate) session: u32,
    /// Its session's id when it is chained (`CHAIN`).
    pub(crate) chain: Option<SessionId>,
    /// The transport's index and connection, once it was handed down.
    pub(crate) conn: Option<(usize, ConnId)>,
    pub(crate) pins: [Option<Pin>; 2],
    /// Local address, for the detail word when its region is freed.
    pub(crate) va: u64,
    /// Its received bytes travel in its completion line.
    pub(crate) scatter_to_cqe: bool,
    pub(crate) timeout_us: u32,
    /// Added to that once, after the other ranks were probed.
    pub(crate) extra_us: u32,
}

/// An operation that has ended, with its completion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    pub(crate) token: WorkToken,
    pub(crate) status: Status,
    pub(crate) bytes: u64,
    pub(crate) detail: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    work: Option<Operation>,
    deadline: NicTime,
    bucket: u32,
    prev: u32,
    next: u32,
}

/// The outstanding operations of a NIC.
#[derive(Debug)]
pub(crate) struct Outstanding {
    entries: Vec<Entry>,
    free: Vec<u32>,
    heads: Vec<u32>,
    /// A bit for each bucket that has operations.
    filled: [u64; BUCKETS / 64],
    last_tick: u64,
    armed: usize,
}

impl Outstanding {
    /// An empty set with room for `capacity` operations before it grows.
    pub(crate) fn new(capacity: usize) -> Outstanding {
        Outstanding {
            entries: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            heads: vec![NIL; BUCKETS + 1],
            filled: [0; BUCKETS / 64],
            last_tick: 0,
            armed: 0,
        }
    }

    /// Whether a token is of an operation here, or was.
    #[inline]
    pub(crate) fn is_own(token: WorkToken) -> bool {
        token.0 >> 62 == 0
    }

    /// Operations not yet retired.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds an operation; its time-out starts at the next clock reading.
    // Inlined, so that an operation is written where it stays: copying what was just written field
    // by field stalls on the store buffer.
    #[inline(always)]
    pub(crate) fn insert(&mut self, work: Operation) -> WorkToken {
        let i = match self.free.pop() {
            Some(i) => i,
            None => {
                self.entries.push(Entry {
                    generation: 0,
                    work: None,
                    deadline: NicTime(0),
                    bucket: NIL,
                    prev: NIL,
                    next: NIL,
                });
                (self.entries.len() - 1) as u32
            }
        };
        self.entries[i as usize].work = Some(work);
        self.link(i, UNARMED);
        WorkToken(u64::from(i) | u64::from(self.entries[i as usize].generation) << 32)
    }

    #[inline]
    fn index(&self, token: WorkToken) -> Option<u32> {
        let i = token.0 as u32;
        let e = self.entries.get(i as usize)?;
        (e.generation == (token.0 >> 32) as u32 && e.work.is_some()).then_some(i)
    }

    /// The work of a token, unless it has retired.
    pub(crate) fn get_mut(&mut self, token: WorkToken) -> Option<&mut Operation> {
        let i = self.index(token)?;
        self.entries[i as usize].work.as_mut()
    }

    /// Removes an operation; its token is stale from then on.
    // Inlined, so that an operation is not copied on its way out.
    #[inline(always)]
    pub(crate) fn remove(&mut self, token: WorkToken) -> Option<Operation> {
        let i = self.index(token)?;
        self.unlink(i);
        let e = &mut self.entries[i as usize];
        // Bit 63 of a token is that of links, bit 62 that of the NIC's own answers.
        e.generation = e.generation.wrapping_add(1) & (u32::MAX >> 2);
        self.free.push(i);
        e.work.take()
    }

    /// Tokens of all operations.
    pub(crate) fn tokens(&self) -> Vec<WorkToken> {
        let live = self.entries.iter().enumerate();
        live.filter(|(_, e)| e.work.is_some())
            .map(|(i, e)| WorkToken(i as u64 | u64::from(e.generation) << 32))
            .collect()
    }

    #[inline]
    fn link(&mut self, i: u32, bucket: u32) {
        let head = self.heads[bucket as usize];
        let e = &mut self.entries[i as usize];
        (e.bucket, e.prev, e.next) = (bucket, NIL, head);
        if head != NIL {
            self.entries[head as usize].prev = i;
        }
        self.heads[bucket as usize] = i;
        if bucket != UNARMED {
            self.armed += 1;
            self.filled[bucket as usize / 64] |= 1 << (bucket % 64);
        }
    }

    #[inline]
    fn unlink(&mut self, i: u32) {
        let e = &self.entries[i as usize];
        let (bucket, prev, next) = (e.bucket, e.prev, e.next);
        if prev == NIL {
            self.heads[bucket as usize] = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if bucket != UNARMED {
            self.armed -= 1;
            if (prev, next) == (NIL, NIL) {
                self.filled[bucket as usize / 64] &= !(1 << (bucket % 64));
            }
        }
    }

    /// Starts the time-outs of operations seen since the last clock reading, and collects the
    /// tokens of those that are past their deadline.
    pub(crate) fn advance(&mut self, now: NicTime, expired: &mut Vec<WorkToken>) {
        while self.heads[UNARMED as usize] != NIL {
            let i = self.heads[UNARMED as usize];
            self.unlink(i);
            let e = &mut self.entries[i as usize];
            let us = e.work.as_ref().map_or(0, |w| w.timeout_us);
            e.deadline = NicTime(now.0.saturating_add(u64::from(us) * 1000));
            // One tick late, so that a visited bucket holds only deadlines that have passed, or
            // those of a later revolution.
            let bucket = ((e.deadline.0 >> TICK_SHIFT) + 1) as usize % BUCKETS;
            self.link(i, bucket as u32);
        }
        let tick = now.0 >> TICK_SHIFT;
        if self.armed == 0 {
            self.last_tick = tick;
            return;
        }
        let first = (self.last_tick + 1).max((tick + 1).saturating_sub(BUCKETS as u64));
        for t in first..=tick {
            let mut i = self.heads[t as usize % BUCKETS];
            while i != NIL {
                let e = &self.entries[i as usize];
                if e.deadline <= now {
                    expired.push(WorkToken(u64::from(i) | u64::from(e.generation) << 32));
                }
                i = e.next;
            }
        }
        self.last_tick = self.last_tick.max(tick);
    }

    /// No operation expires before this time; `None` without operations.
    pub(crate) fn next_deadline(&self) -> Option<NicTime> {
        if self.heads[UNARMED as usize] != NIL {
            return Some(NicTime(self.last_tick << TICK_SHIFT));
        }
        if self.armed == 0 {
            return None;
        }
        let ahead = self.filled_from((self.last_tick + 1) as usize % BUCKETS);
        Some(NicTime((self.last_tick + 1 + ahead) << TICK_SHIFT))
    }

    /// How many buckets behind one is the next that has operations, of which there are some.
    fn filled_from(&self, bucket: usize) -> u64 {
        let (word, bit) = (bucket / 64, bucket % 64);
        let words = self.filled.len();
        // The bits before `bucket` come last.
        let here = self.filled[word];
        let (after, before) = (here & (u64::MAX << bit), here & !(u64::MAX << bit));
        let rest = (1..words).map(|n| self.filled[(word + n) % words]);
        let all = std::iter::once(after)
            .chain(rest)
            .chain(std::iter::once(before));
        let found = all.enumerate().find(|(_, bits)| *bits != 0);
        found.map_or(BUCKETS as u64 - 1, |(n, bits)| {
            (n * 64 + bits.trailing_zeros() as usize - bit) as u64
        })
    }

    /// Gives an operation another time-out, which starts at the next clock reading.
    pub(crate) fn rearm(&mut self, token: WorkToken, timeout_us: u32) {
        if let Some(i) = self.index(token) {
            if let Some(w) = &mut self.entries[i as usize].work {
                w.timeout_us = timeout_us;
            }
            self.unlink(i);
            self.link(i, UNARMED);
        }
    }

    /// Visits an expired operation again a little later: its transport is about to retire it.
    pub(crate) fn postpone(&mut self, token: WorkToken) {
        if let Some(i) = self.index(token) {
            self.unlink(i);
            let bucket = (self.last_tick + 2) as usize % BUCKETS;
            self.link(i, bucket as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(timeout_us: u32) -> Operation {
        Operation {
            permit: Permit::new(0, 0, 1, 0),
            opcode: Opcode::Nop,
            session: 0,
            chain: None,
            conn: None,
            pins: [None, None],
            va: 0,
            scatter_to_cqe: false,
            timeout_us,
            extra_us: 0,
        }
    }

    fn finish(outstanding: &mut Outstanding, t: WorkToken) {
        let w = outstanding.remove(t).expect("is there");
        let _ = w.permit.retire(Status::Ok, 0, 0);
    }

    #[test]
    fn each_work_expires_once_and_not_early() {
        let mut w = Outstanding::new(4);
        let mut due: Vec<(WorkToken, u64)> = [1u32, 70, 1000, 65_536, 268_435, 1_000_000, u32::MAX]
            .iter()
            .map(|us| (w.insert(work(*us)), u64::from(*us) * 1000))
            .collect();
        let (mut now, mut out) = (0u64, Vec::new());
        w.advance(NicTime(0), &mut out);
        assert!(out.is_empty());
        while !due.is_empty() {
            let next = w.next_deadline().expect("armed");
            assert!(next.0 > now, "the wheel must go on");
            now = next.0;
            w.advance(NicTime(now), &mut out);
            for t in out.drain(..) {
                let at = due.iter().position(|d| d.0 == t).expect("expires once");
                let (_, deadline) = due.remove(at);
                assert!(deadline <= now && now - deadline <= 2 << TICK_SHIFT);
                finish(&mut w, t);
            }
        }
        assert_eq!(w.len(), 0);
    }

    #[test]
    fn the_next_bucket_is_that_which_a_walk_finds() {
        let mut w = Outstanding::new(4);
        let (mut out, mut live) = (Vec::new(), Vec::new());
        let mut rng = ringbell_gtlb::testing::Rng::new(5);
        let mut now = 0;
        for _ in 0..3000 {
            match rng.bits() % 3 {
                0 => live.push(w.insert(work((rng.bits() % 400_000) as u32))),
                1 if !live.is_empty() => {
                    let at = (rng.bits() % live.len() as u64) as usize;
                    finish(&mut w, live.swap_remove(at));
                }
                _ => now += rng.bits() % (1 << (rng.bits() % 28)),
            }
            w.advance(NicTime(now), &mut out);
            for t in out.drain(..) {
                live.retain(|l| *l != t);
                finish(&mut w, t);
            }
            let walk = (1..=BUCKETS as u64)
                .find(|d| w.heads[(w.last_tick + d) as usize % BUCKETS] != NIL)
                .map(|d| NicTime((w.last_tick + d) << TICK_SHIFT));
            assert_eq!(w.next_deadline(), walk);
        }
        live.into_iter().for_each(|t| finish(&mut w, t));
    }

    #[test]
    fn a_clock_that_jumps_misses_nothing_and_tokens_go_stale() {
        let mut w = Outstanding::new(4);
        let mut out = Vec::new();
        let a = w.insert(work(10));
        w.advance(NicTime(5), &mut out);
        let b = w.insert(work(500_000));
        w.advance(NicTime(6), &mut out);
        w.advance(NicTime(10_000_000_000), &mut out);
        assert_eq!(out.len(), 2);
        finish(&mut w, a);
        let c = w.insert(work(1));
        assert_ne!(a, c);
        assert!(w.remove(a).is_none());
        finish(&mut w, b);
        finish(&mut w, c);
    }
}
