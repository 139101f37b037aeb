//! Engines attached to a communicator (ACCL+ §4, unary plug-ins), which see its operations' inputs
//! and outputs.
//!
//! | place | what passes | when |
//! |---|---|---|
//! | [`Place::Input`] | the source of each operation, element by element | before the operation begins |
//! | [`Place::Output`] | its result, likewise | after it, before it completes |
//! | [`Place::Sent`], [`Place::Received`] | the payload of every message, in its order on the way to a peer | as it passes |
//!
//! Programs read their source and store their result in any order, several times, or in peers'
//! memory. So an engine at input or output gets the memory itself, in order and once, by one pass
//! of reads. Where a kernel's stream stands for the memory, it gets each window as it comes or
//! goes. Messages pass engines where bytes of sessions do (`engine/`). An operation whose messages
//! an engine must see does not take the direct path, which has none, on any rank.
//!
//! Results pass in the order in which their operations were posted. An operation that fails has
//! passed its source but never its result.

use ringbell_gtlb::Fault;
use ringbell_nic_abi::{EngineId, PdId};

use super::combine::locate;
use super::{Rings, Side, StreamSide, Task};
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Direction, Engines, Place, PIECE};
use crate::link::{Io, Pieces};
use crate::types::{Buffer, Owner};

/// Bytes of one buffer piece.
const RUN: u64 = 1 << 30;

/// Engines that get the source and the result of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) input: Option<EngineId>,
    pub(crate) output: Option<EngineId>,
}

/// The bytes of an operation that engines get, and the progress.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) seen: Seen,
    pub(super) source: Pieces,
    pub(super) result: Pieces,
    pub(super) taken: u64,
    pub(super) given: u64,
}

/// An engine that is shown something of one operation, and stays the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Viewer {
    by: Owner,
    direction: Direction,
    engine: EngineId,
    /// Its operation, so that items of different ones are not mixed.
    op: u32,
}

impl Viewer {
    pub(super) fn new(slot: u32, place: Place, engine: EngineId, op: u32) -> Viewer {
        let (by, direction) = place.at(slot);
        Viewer {
            by,
            direction,
            engine,
            op,
        }
    }

    /// Passes memory from `done` on, at most `most` bytes. Returns whether there is no more.
    pub(super) fn show(
        &self,
        io: &mut Io<'_>,
        memory: &Pieces,
        done: &mut u64,
        most: u64,
    ) -> Result<bool, Fault> {
        let mut piece = [0; PIECE];
        let total = memory.len();
        let end = done.saturating_add(most).min(total);
        while *done < end {
            let Some((buffer, at)) = locate(memory, *done) else {
                break;
            };
            // Detached or replaced: no engine is attached for this operation.
            if io.engines.watcher(self.by, self.direction) != Some(self.engine) {
                io.dma.forget_reads(buffer.region);
                *done = total;
                break;
            }
            let left = (end - *done).min(u64::from(buffer.len) - at);
            let n = left.min(PIECE as u64) as usize;
            // Copied: kernels and peers may write it while the engine looks.
            if io.dma().read(&buffer, at, &mut piece[..n])? == ReadStatus::Pending {
                return Ok(false);
            }
            io.engines
                .see(self.by, self.direction, self.op, &piece[..n]);
            *done += n as u64;
        }
        Ok(*done == total)
    }

    /// The operation has shown all it has: an item that it has begun is cut.
    pub(super) fn end(&self, io: &mut Io<'_>) {
        if io.engines.watcher(self.by, self.direction) == Some(self.engine) {
            io.engines.end_operation(self.by, self.direction, self.op);
        }
    }
}

fn pieces(side: Side, bytes: u64) -> Pieces {
    let mut out = Pieces::default();
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(RUN);
        out.push(Buffer {
            region: side.region,
            va: ringbell_nic_abi::GpuVa(side.va + at),
            len: n as u32,
        });
        at += n;
    }
    out
}

impl Tap {
    /// What engines see of a task; `None` when they see nothing.
    #[inline]
    pub(super) fn of(task: &Task, rings: &Rings, seen: Seen) -> Option<Box<Tap>> {
        match (seen.input, seen.output) {
            (None, None) => None,
            _ => Tap::seeing(task, &rings.as_deref().copied().unwrap_or_default(), seen),
        }
    }

    fn seeing(task: &Task, streams: &[Option<StreamSide>; 2], seen: Seen) -> Option<Box<Tap>> {
        let none = Pieces::default;
        let (source, result) = match task {
            Task::Send { pieces, .. } => (pieces.clone(), none()),
            Task::Recv { pieces, .. } => (none(), pieces.clone()),
            Task::Local(c) => (
                c.sources.last().map_or_else(none, |s| s.0.clone()),
                c.results.first().map_or_else(none, |r| r.0.clone()),
            ),
            Task::Program(p) => {
                let of = |i: usize, side: Side| match streams[i] {
                    Some(_) => none(),
                    None => pieces(side, p.sides[i]),
                };
                (of(0, p.input), of(1, p.output))
            }
            Task::Nop | Task::Channel(_) => return None,
        };
        Some(Box::new(Tap {
            seen,
            source,
            result,
            taken: 0,
            given: 0,
        }))
    }

    /// Whether an engine is to see the result.
    pub(super) fn shows_result(&self) -> bool {
        self.seen.output.is_some() && self.result.len() > 0
    }

    /// The engines that get the windows of kernels' streams.
    pub(super) fn viewers(
        &self,
        slot: u32,
        op: u32,
        streams: &[Option<StreamSide>; 2],
    ) -> [Option<Viewer>; 2] {
        let of = |i: usize, place, engine: Option<EngineId>| {
            streams[i]?;
            Some(Viewer::new(slot, place, engine?, op))
        };
        [
            of(0, Place::Input, self.seen.input),
            of(1, Place::Output, self.seen.output),
        ]
    }
}

/// Whether an engine sees the messages of a communicator.
#[inline]
pub(super) fn shows_messages(engines: &Engines, slot: u32) -> bool {
    if !engines.is_watching() {
        return false;
    }
    let watched = |place: Place| {
        let (by, direction) = place.at(slot);
        engines.is_watched(by, direction)
    };
    watched(Place::Sent) || watched(Place::Received)
}

/// Which engines see the operations that a queue of a domain posts now.
#[inline]
pub(crate) fn seen(engines: &Engines, slot: u32, pd: PdId) -> Seen {
    let of = |place: Place| {
        let (by, direction) = place.at(slot);
        let id = engines.watcher(by, direction)?;
        // An engine must not see the bytes of another tenant's operations.
        (engines.about(id)?.0 == pd).then_some(id)
    };
    match engines.is_watching() {
        false => Seen::default(),
        true => Seen {
            input: of(Place::Input),
            output: of(Place::Output),
        },
    }
}
