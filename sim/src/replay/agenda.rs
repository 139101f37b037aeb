//! What a rank's host does next: operations that may begin, and processors that are free.
//!
//! An operation begins when all that it requires has happened and its processor is free. A
//! calculation keeps its processor for its time; sends and receives keep none. Those that may begin
//! do so in the order in which they could; of several at one moment sends are before receives, and
//! these before calculations, as LogGOPSim has it, then as in the file.
//! Times are picoseconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::goal::{Op, Work};

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for so many others.
    Waits(u32),
    /// It waits for its processor.
    Queued,
    Begun,
    Done,
}

/// The place of an operation among those that wait for a processor: when it could begin, its kind,
/// and its place in the file.
type Turn = (u64, u8, u32);

#[derive(Debug, Default)]
struct Processor {
    free_at: u64,
    waiting: BinaryHeap<Reverse<Turn>>,
}

/// What happens to an operation at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The NIC finds it.
    Posted,
    /// It has ended.
    Ended,
}

/// A rank's operations.
#[derive(Debug)]
pub(super) struct Agenda {
    states: Vec<State>,
    /// By operation: those that wait for its begin, and those that wait for its end.
    waiting: Vec<[Vec<u32>; 2]>,
    processors: BTreeMap<u8, Processor>,
    /// What is to come: its time, its number, and its operation.
    timers: BinaryHeap<Reverse<(u64, u64, u32, What)>>,
    /// How many timers there were, ever: those of one moment are taken in their order.
    timed: u64,
    /// When each operation began.
    begun: Vec<u64>,
    /// From a post until the NIC finds it.
    doorbell: u64,
    left: usize,
}

/// What came of a moment: operations that the NIC is to find now, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct Moment {
    pub(super) posts: Vec<u32>,
    pub(super) ended: Vec<u32>,
}

impl Agenda {
    /// At a time at which everything that waits for nothing may begin.
    pub(super) fn new(ops: &[Op], now: u64, doorbell: u64) -> Agenda {
        let mut agenda = Agenda {
            states: Vec::with_capacity(ops.len()),
            waiting: vec![[Vec::new(), Vec::new()]; ops.len()],
            processors: BTreeMap::new(),
            timers: BinaryHeap::new(),
            timed: 0,
            begun: vec![0; ops.len()],
            doorbell,
            left: ops.len(),
        };
        for (op, i) in ops.iter().zip(0..) {
            for need in &op.needs {
                let of = &mut agenda.waiting[need.op as usize];
                of[usize::from(!need.begin)].push(i);
            }
            agenda.states.push(State::Waits(op.needs.len() as u32));
        }
        for i in 0..ops.len() as u32 {
            if agenda.states[i as usize] == State::Waits(0) {
                agenda.queue(ops, i, now);
            }
        }
        agenda
    }

    /// How many operations have not ended.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn state(&self, op: u32) -> State {
        self.states[op as usize]
    }

    /// When an operation began.
    pub(super) fn begun(&self, op: u32) -> u64 {
        self.begun[op as usize]
    }

    /// When the host must look again.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.timers.peek().map(|t| t.0 .0)
    }

    /// An operation may begin.
    fn queue(&mut self, ops: &[Op], op: u32, now: u64) {
        self.states[op as usize] = State::Queued;
        let kind = match ops[op as usize].work {
            Work::Send { .. } | Work::Collective { .. } => 0,
            Work::Recv { .. } => 1,
            Work::Calc { .. } => 2,
        };
        let processor = self.processors.entry(ops[op as usize].cpu).or_default();
        processor.waiting.push(Reverse((now, kind, op)));
    }

    /// Something that others wait for has happened: a begin, or an end.
    fn happened(&mut self, ops: &[Op], op: u32, is_end: bool, now: u64) {
        let waiting = std::mem::take(&mut self.waiting[op as usize][usize::from(is_end)]);
        for other in waiting {
            if let State::Waits(n) = &mut self.states[other as usize] {
                *n -= 1;
                if *n == 0 {
                    self.queue(ops, other, now);
                }
            }
        }
    }

    /// The host sees at this time that an operation of the NIC has ended.
    pub(super) fn sees(&mut self, op: u32, at: u64) {
        self.timer(at, op, What::Ended);
    }

    fn timer(&mut self, at: u64, op: u32, what: What) {
        self.timed += 1;
        self.timers.push(Reverse((at, self.timed, op, what)));
    }

    /// Does what is due.
    pub(super) fn turn(&mut self, ops: &[Op], now: u64) -> Moment {
        let mut moment = Moment::default();
        loop {
            while self.next_timer().is_some_and(|at| at <= now) {
                let Some(Reverse((_, _, op, what))) = self.timers.pop() else {
                    break;
                };
                match what {
                    What::Posted => moment.posts.push(op),
                    What::Ended => {
                        self.states[op as usize] = State::Done;
                        self.left -= 1;
                        moment.ended.push(op);
                        self.happened(ops, op, true, now);
                    }
                }
            }
            if !self.begin_next(ops, now) {
                return moment;
            }
        }
    }

    /// Lets the first operation begin whose processor is free.
    fn begin_next(&mut self, ops: &[Op], now: u64) -> bool {
        let free = self.processors.values_mut().filter(|p| p.free_at <= now);
        let first = free.max_by_key(|p| p.waiting.peek().copied());
        let Some((processor, Reverse((_, _, op)))) =
            first.and_then(|p| p.waiting.pop().map(|turn| (p, turn)))
        else {
            return false;
        };
        // One that waits behind a calculation is looked at when that has ended.
        let (at, what) = match ops[op as usize].work {
            Work::Calc { ns } => {
                processor.free_at = now.saturating_add(ns.saturating_mul(1_000));
                (processor.free_at, What::Ended)
            }
            _ => (now + self.doorbell, What::Posted),
        };
        self.timer(at, op, what);
        self.states[op as usize] = State::Begun;
        self.begun[op as usize] = now;
        self.happened(ops, op, false, now);
        true
    }
}
