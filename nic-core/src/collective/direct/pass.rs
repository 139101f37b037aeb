//! The pass over memory: a plan's steps, piece by piece.
//!
//! A piece ends where any operand's page ends (pages are scattered on the bus). Every address is
//! checked against what its owner exports, piece by piece.
#![allow(unsafe_code)] // Reads and writes own and peers' memory.

use ringbell_gtlb::PAGE_BYTES;
use ringbell_onc_engines::reduce;

use super::area::{Area, Peers};
use super::bounce::{self, Slice};
use super::pages::{Pages, INLINE_PAGES};
use super::ranges::{Ranges, Run, Step};
use super::ranks::MAX_DIRECT_RANKS;
use super::record::{Place, Record};
use super::sync::{AtomicU64, Ordering};
use super::Params;

const MAX: usize = MAX_DIRECT_RANKS as usize;
/// Bytes that one step moves of an operation's output before the NIC looks at other work.
pub(super) const BATCH_BYTES: u64 = 256 << 10;
/// Operands of a step that most communicators have at most: arrays for more cost more to clear than
/// a small piece to reduce.
const FEW: usize = 8;
/// The same of most others.
const SOME: usize = 64;

/// How far the pass is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    step: usize,
    /// Bytes of the step's value that are stored.
    done: u64,
}

/// A peer's memory cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassError {
    /// Whose.
    pub(super) rank: u32,
}

/// A buffer of this rank, or its pieces in a slice.
#[derive(Debug, Clone, Copy)]
pub(super) enum Own<'a> {
    Whole(&'a Pages),
    Slice(&'a Slice<'a>),
}

impl Own<'_> {
    /// The bytes at an offset, and how many of them lie together.
    #[inline]
    fn at(self, offset: u64) -> Option<(*mut u8, u64)> {
        match self {
            Own::Whole(pages) if offset < pages.bytes() => {
                let (at, run) = pages.at(offset);
                Some((at, run as u64))
            }
            Own::Slice(slice) if offset < slice.bytes() => Some(slice.at(offset)),
            _ => None,
        }
    }
}

/// Where the peers' buffers are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Theirs<'a> {
    /// The inputs of an operation, in the own area.
    Came(&'a Area, u64),
    /// Where their records say.
    Placed(&'a [Record]),
    Windows(&'a bounce::Theirs<'a>),
}

/// One batch.
pub(super) struct Job<'a> {
    pub(super) plan: &'a Ranges,
    pub(super) params: &'a Params,
    pub(super) rank: u32,
    pub(super) input: Own<'a>,
    pub(super) output: Own<'a>,
    pub(super) theirs: Theirs<'a>,
    pub(super) peers: &'a dyn Peers,
    pub(super) streaming: bool,
}

/// Runs about `budget` bytes' worth. `true`: the pass is over.
pub(super) fn run(
    job: &Job<'_>,
    cursor: &mut Cursor,
    budget: u64,
    stats: &mut DirectStats,
) -> Result<bool, PassError> {
    let mut left = budget;
    while let Some(step) = job.plan.steps.get(cursor.step) {
        while cursor.done < step.bytes {
            if left == 0 {
                return Ok(false);
            }
            let n = piece(job, step, cursor.done)?;
            cursor.done += n;
            left = left.saturating_sub(n);
            stats.stored += n * job.plan.destinations(step).len() as u64;
        }
        count(job, step, stats);
        cursor.step += 1;
        cursor.done = 0;
    }
    Ok(true)
}

fn count(job: &Job<'_>, step: &Step, stats: &mut DirectStats) {
    if step.elements > 0 {
        let operands = job.plan.sources(step).len() as u64;
        stats.steps += 1;
        stats.reduced += step.elements * operands.saturating_sub(1);
    }
}

/// An operand of an eager operation whose own buffers lie together.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Own memory.
    Own(*mut u8),
    /// At this offset of the input that comes from a rank.
    Came(u32, usize),
}

// SAFETY: own addresses; their user has pinned the regions, and copies raw bytes only.
unsafe impl Send for At {}

/// Counts of the path; they only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DirectStats {
    /// Operations with inputs inside the records.
    pub(crate) eager: u64,
    /// Operations that stored to peers' memory.
    pub(crate) push: u64,
    /// Operations that only read it.
    pub(crate) pull: u64,
    /// Operations through windows in NIC memory.
    pub(crate) bounced: u64,
    /// Operations handed back.
    pub(crate) fallback: u64,
    /// Steps of programs run by this NIC.
    pub(crate) steps: u64,
    /// Elements that this NIC has reduced.
    pub(crate) reduced: u64,
    /// Payload bytes stored by this NIC.
    pub(crate) stored: u64,
}

/// An eager operation, every operand checked and found beforehand: for few ranks and own buffers
/// that lie together.
#[derive(Debug)]
pub(super) struct Found {
    at: Vec<At>,
    /// What one call adds to the counts.
    stats: DirectStats,
}

impl Found {
    /// `None`: there are many operands, or buffers in several pieces.
    pub(super) fn of(plan: &Ranges, rank: u32, input: &Pages, output: &Pages) -> Option<Found> {
        let own = (input.together()?, output.together()?);
        let mut all = Found {
            at: Vec::with_capacity(plan.runs.len()),
            stats: DirectStats::default(),
        };
        for step in &plan.steps {
            let (runs, sources) = step.runs();
            if runs.len() > 2 * FEW {
                return None;
            }
            for run in &plan.runs[runs.clone()] {
                let (at, room) = match (run.rank == rank, run.output) {
                    (true, true) => (At::Own(own.1.wrapping_add(run.at as usize)), output.bytes()),
                    (true, false) => (At::Own(own.0.wrapping_add(run.at as usize)), input.bytes()),
                    (false, false) => (At::Came(run.rank, run.at as usize), plan.input_bytes),
                    (false, true) => return None,
                };
                let end = run.at.checked_add(step.bytes)?;
                if end > room {
                    return None;
                }
                all.at.push(at);
            }
            let destinations = (runs.len() - sources) as u64;
            all.stats.stored += step.bytes * destinations;
            if step.elements > 0 {
                all.stats.steps += 1;
                all.stats.reduced += step.elements * (sources as u64).saturating_sub(1);
            }
        }
        Some(all)
    }
}

/// A whole eager operation.
pub(super) fn run_found(
    found: &Found,
    plan: &Ranges,
    p: &Params,
    (area, seq): (&Area, u64),
    stats: &mut DirectStats,
) {
    let mut operands = [std::ptr::null_mut::<u8>(); 2 * FEW];
    for step in &plan.steps {
        let (runs, sources) = step.runs();
        let all = &found.at[runs];
        for (at, operand) in all.iter().zip(&mut operands) {
            *operand = match *at {
                At::Own(at) => at,
                At::Came(from, offset) => {
                    let input = area.input(from, seq, plan.input_bytes as usize);
                    input.cast_mut().wrapping_add(offset)
                }
            };
        }
        let (sources, destinations) = operands[..all.len()].split_at(sources);
        // SAFETY: `Found::of` has checked the bytes of every operand, all of them this rank's own
        // memory: pinned buffers that lie together, and slots of its area. An own destination may
        // be its source.
        unsafe {
            reduce::fused(
                p.dtype,
                p.op,
                destinations,
                as_const(sources),
                step.elements as usize,
                false,
            );
        }
    }
    stats.stored += found.stats.stored;
    stats.steps += found.stats.steps;
    stats.reduced += found.stats.reduced;
}

fn as_const(of: &[*mut u8]) -> &[*const u8] {
    // SAFETY: both pointers have one representation, and the slice is only read.
    unsafe { std::slice::from_raw_parts(of.as_ptr().cast(), of.len()) }
}

/// One piece at byte `at` of the step's value; returns how many bytes.
fn piece(job: &Job<'_>, step: &Step, at: u64) -> Result<u64, PassError> {
    let (sources, destinations) = (job.plan.sources(step), job.plan.destinations(step));
    let (runs, most) = ((sources, destinations), step.bytes - at);
    match sources.len().max(destinations.len()) {
        n if n <= FEW => piece_of::<FEW>(job, runs, at, most),
        n if n <= SOME => piece_of::<SOME>(job, runs, at, most),
        _ => piece_of::<MAX>(job, runs, at, most),
    }
}

/// The same, `most` bytes at most, with room for `N` operands of a kind.
fn piece_of<const N: usize>(
    job: &Job<'_>,
    (sources, destinations): (&[Run], &[Run]),
    at: u64,
    most: u64,
) -> Result<u64, PassError> {
    let size = job.params.dtype.bytes();
    let mut srcs = [std::ptr::null::<u8>(); N];
    let mut dsts = [std::ptr::null_mut::<u8>(); N];
    let mut run = most;
    for (s, p) in sources.iter().zip(&mut srcs) {
        let (from, n) = resolve(job, s, s.at + at, run)?;
        *p = from.cast_const();
        run = run.min(n);
    }
    for (d, p) in destinations.iter().zip(&mut dsts) {
        let (to, n) = resolve(job, d, d.at + at, run)?;
        *p = to;
        run = run.min(n);
    }
    if run < size {
        // An element lies across the end of a page.
        across(job, sources, destinations, at)?;
        return Ok(size);
    }
    let (srcs, dsts) = (&srcs[..sources.len()], &dsts[..destinations.len()]);
    let n = run / size;
    // SAFETY: `resolve` has checked `run` bytes of every operand: own memory is pinned, peers' is
    // exported and granted by their records for this operation. Places of different ranks are
    // different memory; an own destination may be its source.
    unsafe {
        reduce::fused(
            job.params.dtype,
            job.params.op,
            dsts,
            srcs,
            n as usize,
            job.streaming,
        );
    }
    Ok(n * size)
}

/// One element, byte by byte where pages end.
#[cold]
fn across(job: &Job<'_>, sources: &[Run], destinations: &[Run], at: u64) -> Result<(), PassError> {
    let size = job.params.dtype.bytes();
    let mut values = [[0u8; 8]; MAX];
    let mut srcs = [std::ptr::null::<u8>(); MAX];
    for ((s, v), p) in sources.iter().zip(&mut values).zip(&mut srcs) {
        for b in 0..size {
            let (from, _) = resolve(job, s, s.at + at + b, 1)?;
            // SAFETY: one byte that `resolve` has checked.
            v[b as usize] = unsafe { from.read_volatile() };
        }
        *p = v.as_ptr();
    }
    let mut result = [0u8; 8];
    // SAFETY: own arrays of 8 bytes.
    unsafe {
        reduce::fused(
            job.params.dtype,
            job.params.op,
            &[result.as_mut_ptr()],
            &srcs[..sources.len()],
            1,
            false,
        );
    }
    for d in destinations {
        for b in 0..size {
            let (to, _) = resolve(job, d, d.at + at + b, 1)?;
            // SAFETY: one byte that `resolve` has checked.
            unsafe { to.write_volatile(result[b as usize]) };
        }
    }
    Ok(())
}

/// Where the bytes at an offset of a place lie, and how many of them together, `most` at most.
#[inline]
fn resolve(job: &Job<'_>, c: &Run, offset: u64, most: u64) -> Result<(*mut u8, u64), PassError> {
    if c.rank == job.rank {
        let own = if c.output { job.output } else { job.input };
        let (p, n) = own.at(offset).ok_or(PassError { rank: c.rank })?;
        return Ok((p, most.min(n)));
    }
    let found = match job.theirs {
        Theirs::Came(area, seq) => {
            let len = job.plan.input_bytes;
            let inside = !c.output && offset.saturating_add(most) <= len;
            inside.then(|| {
                let p = area.input(c.rank, seq, len as usize);
                (p.cast_mut().wrapping_add(offset as usize), most)
            })
        }
        Theirs::Placed(records) => {
            let record = &records[c.rank as usize];
            let place = if c.output {
                &record.output
            } else {
                &record.input
            };
            peer(job.peers, c.rank, place, offset, most)
        }
        Theirs::Windows(all) => in_window(job.peers, all, c, offset, most),
    };
    found.ok_or(PassError { rank: c.rank })
}

/// The same for a peer's window.
fn in_window(
    peers: &dyn Peers,
    all: &bounce::Theirs<'_>,
    c: &Run,
    offset: u64,
    most: u64,
) -> Option<(*mut u8, u64)> {
    let bus = all.at(c.rank, offset, most)?;
    Some((peers.window(c.rank)?.at(bus, most)?, most))
}

/// The same for a peer's buffer, as its record describes it.
#[inline]
fn peer(
    peers: &dyn Peers,
    rank: u32,
    place: &Place,
    offset: u64,
    most: u64,
) -> Option<(*mut u8, u64)> {
    let window = peers.window(rank)?;
    let at = u64::from(place.offset).checked_add(offset)?;
    let (page, inside) = (at / PAGE_BYTES, at % PAGE_BYTES);
    if page >= u64::from(place.pages) {
        return None;
    }
    let base = if place.pages as usize <= INLINE_PAGES {
        place.words[page as usize]
    } else {
        let entry = window.at(place.words[0].checked_add(page * 8)?, 8)?;
        if !(entry as usize).is_multiple_of(8) {
            return None;
        }
        // SAFETY: eight mapped bytes of the peer, aligned (checked). Relaxed: the table was written
        // before the record, whose Acquire load came before.
        unsafe { &*entry.cast::<AtomicU64>() }.load(Ordering::Relaxed)
    };
    let n = most.min(PAGE_BYTES - inside);
    Some((window.at(base.checked_add(inside)?, n)?, n))
}
