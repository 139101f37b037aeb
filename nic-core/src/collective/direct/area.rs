//! The area of a rank in its NIC memory, which the other ranks write.
//!
//! | bytes | what |
//! |---|---|
//! | `s * 128` | of rank s: line 0 its flags *done*, *filled* and *passed* and where its windows are, line 1 its *busy* flag |
//! | `n * 128` | the owner's *revoked* flag; the owner alone stores here |
//! | `n * 128 + 64` | arrivals: how many records came in each slot, then how many done flags (8 words) |
//! | then `(s * 4 + q mod 4) * slot` | record of rank s for operation q: a line, and room for the input |
//!
//! Arrivals are counted among more than [`FEW`] ranks only. They show the rank that stores the last
//! record of an operation that the owner can proceed: it alone wakes the owner. They never prove
//! that a record is there.
//!
//! After a rank has freed its communicator, a peer without that notice may still store a record. So
//! areas are never used for anything else ([`AreaPool`]), sequence numbers of records begin at one
//! of 2^32 places, and those of flags carry the communicator's *epoch* in their upper 16 bits:
//! records and flags of another communicator count as absent.
#![allow(unsafe_code)] // Views of NIC memory that peers write, as atomics and raw bytes.

use std::collections::VecDeque;

use super::pages::Pages;
use super::record::{Shape, INLINE_BYTES, WORDS};
use super::sync::{AtomicU64, Ordering};
use crate::collective::params::fold;
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};
use crate::transport::PeerWindow;
use ringbell_gtlb::copy;

/// Operations whose records are out at once.
pub(super) const WINDOW: u64 = 2;
/// Records of a rank that exist at once: twice the window (see the module text of `direct`).
pub(super) const DEPTH: u64 = 2 * WINDOW;
/// Two cache lines, which the CPU fetches as a pair.
pub(super) const PAIR: usize = 128;
const LINE: usize = 64;
/// Areas of one size that wait before the oldest is used again.
const POOLED: usize = 16;
/// Ranks up to which every record wakes its reader, and arrivals are not counted.
const FEW: usize = 8;

/// Offset of the address of a rank's windows.
const WINDOWS_AT: usize = 24;

/// The peers' memory, by rank.
pub(crate) trait Peers {
    /// The memory of a rank; `None` when it is gone.
    fn window(&self, rank: u32) -> Option<&dyn PeerWindow>;
}

/// Numbers of a rank that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    /// The last operation whose part it has ended.
    Done,
    /// Windows that it has filled.
    Filled,
    /// Slices whose steps it has run.
    Passed,
}

impl Flag {
    #[inline]
    fn of(self, rank: u32) -> usize {
        rank as usize * PAIR + self as usize * 8
    }
}

/// Offsets, the same on all ranks.
#[derive(Debug, Clone, Copy)]
struct Layout {
    ranks: usize,
    /// Bytes of a record with the room for its input.
    slot: usize,
    /// Bytes of the longest input.
    eager: usize,
    /// Where the records begin.
    records: usize,
    bytes: usize,
}

impl Layout {
    fn new(ranks: usize, eager: usize) -> Layout {
        let slot = PAIR.max((LINE + eager).next_multiple_of(PAIR));
        let records = (ranks + 1) * PAIR;
        Layout {
            ranks,
            slot,
            eager,
            records,
            bytes: records + ranks * DEPTH as usize * slot,
        }
    }
    fn revoked(&self) -> usize {
        self.ranks * PAIR
    }
    /// Where the arrivals of an operation's records are counted, or those of its done flags.
    fn arrivals(&self, seq: u64, done: bool) -> usize {
        let word = seq % DEPTH + if done { DEPTH } else { 0 };
        self.ranks * PAIR + LINE + word as usize * 8
    }
    #[inline]
    fn record(&self, from: u32, seq: u64) -> usize {
        let i = from as usize * DEPTH as usize + (seq % DEPTH) as usize;
        self.records + i * self.slot
    }
}

/// Sequence numbers as the areas of one communicator hold them.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// Of flags: the upper 16 bits.
    epoch: u64,
    /// Of records: the number of operation 0.
    first: u32,
}

impl Numbers {
    /// In the upper half of a record's control word.
    #[inline]
    fn of_record(self, seq: u64) -> u32 {
        self.first.wrapping_add(seq as u32)
    }

    /// In a done flag.
    #[inline]
    fn of_flag(self, seq: u64) -> u64 {
        self.epoch | seq
    }
}

/// Where an eager input of `len` bytes lies in its slot.
fn input_at(len: usize) -> usize {
    if len as u64 <= INLINE_BYTES {
        LINE - INLINE_BYTES as usize
    } else {
        LINE
    }
}

/// Areas of communicators that are gone, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct AreaPool {
    free: VecDeque<Block>,
}

impl AreaPool {
    /// A used area of that size, once so many are pooled that its last user is long gone.
    fn take(&mut self, len: u64) -> Option<Block> {
        let of_size = |b: &&Block| b.len == len;
        if self.free.iter().filter(of_size).count() < POOLED {
            return None;
        }
        let i = self.free.iter().position(|b| b.len == len)?;
        self.free.remove(i)
    }

    /// Bytes of NIC memory that it keeps.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.free.iter().map(|b| b.len).sum()
    }
}

/// The own area.
#[derive(Debug)]
pub(super) struct Area {
    numbers: Numbers,
    layout: Layout,
    block: Block,
    base: *mut u8,
}

// SAFETY: an address range of NIC memory, accessed through atomics and raw copies only.
unsafe impl Send for Area {}

impl Area {
    pub(super) fn new(
        nic_memory: &mut NicMemory,
        pool: &mut AreaPool,
        ctx: u64,
        ranks: u32,
        eager_bytes: u64,
    ) -> Option<Area> {
        let eager = usize::try_from(eager_bytes).ok()?;
        let layout = Layout::new(ranks as usize, eager);
        let len = (layout.bytes as u64).next_multiple_of(PAIR as u64);
        let block = pool.take(len).or_else(|| nic_memory.alloc(len))?;
        let base = nic_memory.at_bus(NIC_BUS + block.at, layout.bytes as u64)?;
        // An earlier user's bytes must not look like records.
        // SAFETY: the block is ours, and used through raw stores and atomics only.
        unsafe { base.write_bytes(0, layout.bytes) };
        Some(Area {
            numbers: Numbers {
                // Never 0, as fresh memory has it.
                epoch: (ctx ^ ctx >> 16 ^ ctx >> 32 ^ ctx >> 48 | 1) << 48,
                first: fold([ctx]),
            },
            layout,
            block,
            base,
        })
    }

    pub(super) fn bus(&self) -> u64 {
        NIC_BUS + self.block.at
    }

    pub(super) fn bytes(&self) -> u64 {
        self.block.len
    }

    /// The area will not be used any more here.
    pub(super) fn give_back(self, pool: &mut AreaPool) {
        pool.free.push_back(self.block);
    }

    pub(super) fn eager_bytes(&self) -> u64 {
        self.layout.eager as u64
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: offsets come from `Layout`, inside the block and aligned to 8; NIC memory is
        // mapped as long as the communicator lives, and the words are accessed atomically.
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    pub(super) fn revoked(&self) -> &AtomicU64 {
        self.word(self.layout.revoked())
    }

    /// Whether that rank is writing this rank's memory.
    pub(super) fn busy(&self, from: u32) -> &AtomicU64 {
        self.word(from as usize * PAIR + LINE)
    }

    /// Whether that rank has ended its part of the operation.
    #[inline]
    pub(super) fn is_done(&self, from: u32, seq: u64) -> bool {
        self.has(from, Flag::Done, seq)
    }

    /// Whether that rank's flag has come to a number.
    #[inline]
    pub(super) fn has(&self, from: u32, flag: Flag, number: u64) -> bool {
        // Acquire: pairs with the Release in `Remote::set`.
        let word = self.word(flag.of(from)).load(Ordering::Acquire);
        word >= self.numbers.of_flag(number) && word >> 48 == self.numbers.epoch >> 48
    }

    /// Where that rank's windows are, once it has filled one.
    pub(super) fn windows_of(&self, from: u32) -> u64 {
        // Relaxed: its flag, whose Acquire came before, was stored later.
        self.word(from as usize * PAIR + WINDOWS_AT)
            .load(Ordering::Relaxed)
    }

    /// The shape in that rank's record of the operation, once it is there.
    #[inline]
    pub(super) fn shape(&self, from: u32, seq: u64) -> Option<Shape> {
        // Acquire: pairs with the Release in `Remote::publish`.
        let word = self
            .word(self.layout.record(from, seq))
            .load(Ordering::Acquire);
        let is = (word >> 32) as u32 == self.numbers.of_record(seq) && word as u32 != 0;
        is.then_some(Shape(word as u32))
    }

    /// Whether it is worth looking for the records of an operation. Among few ranks it always is.
    #[inline]
    pub(super) fn may_have_all(&self, seq: u64) -> bool {
        let Layout { ranks, .. } = self.layout;
        // A slot is used by every fourth operation, which the others' records complete.
        let complete = ((seq - 1) / DEPTH + 1) * (ranks as u64 - 1);
        // Relaxed: only whether to look.
        let arrivals = || self.word(self.layout.arrivals(seq, false));
        ranks <= FEW || arrivals().load(Ordering::Relaxed) >= complete
    }

    /// Word `i` of that rank's record, once [`Area::shape`] has found it.
    #[inline]
    pub(super) fn record_word(&self, from: u32, seq: u64, i: usize) -> u64 {
        debug_assert!(i < WORDS);
        let at = self.layout.record(from, seq) + i * 8;
        self.word(at).load(Ordering::Relaxed)
    }

    /// The input of `len` bytes that came with that rank's record.
    #[inline]
    pub(super) fn input(&self, from: u32, seq: u64, len: usize) -> *const u8 {
        debug_assert!(len <= self.layout.eager);
        // SAFETY: inside the slot.
        unsafe { self.base.add(self.layout.record(from, seq) + input_at(len)) }
    }

    /// The area of a peer that lies at `bus`; `None` when the peer is gone or does not export it.
    #[inline]
    pub(super) fn of_peer<'p>(&self, window: &'p dyn PeerWindow, bus: u64) -> Option<Remote<'p>> {
        debug_assert!(bus.is_multiple_of(PAIR as u64));
        let base = window.at(bus, self.layout.bytes as u64)?;
        Some(Remote {
            numbers: self.numbers,
            layout: self.layout,
            base,
            _window: std::marker::PhantomData,
        })
    }
}

/// A peer's area, for as long as its window is borrowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote<'p> {
    numbers: Numbers,
    layout: Layout,
    base: *mut u8,
    _window: std::marker::PhantomData<&'p ()>,
}

impl<'p> Remote<'p> {
    fn word(&self, at: usize) -> &'p AtomicU64 {
        // SAFETY: the window says that the whole area is mapped, aligned to a line; the words are
        // accessed atomically.
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    pub(super) fn revoked(&self) -> &'p AtomicU64 {
        self.word(self.layout.revoked())
    }

    pub(super) fn busy(&self, me: u32) -> &'p AtomicU64 {
        self.word(me as usize * PAIR + LINE)
    }

    /// Counts an arrival. Returns whether the owner should be woken: it waits for no more of them.
    #[inline]
    fn arrive(&self, seq: u64, done: bool) -> bool {
        let Layout { ranks, .. } = self.layout;
        if ranks <= FEW {
            return true;
        }
        let word = self.word(self.layout.arrivals(seq, done));
        // AcqRel: what the others have stored before they arrived happens before the wake-up by the
        // last.
        let before = word.fetch_add(1, Ordering::AcqRel);
        before.wrapping_add(1).is_multiple_of(ranks as u64 - 1)
    }

    /// Marks rank `me`'s part of the operation as done. Returns whether the owner should be woken.
    #[inline]
    pub(super) fn done(&self, me: u32, seq: u64) -> bool {
        self.set(me, Flag::Done, seq);
        self.arrive(seq, true)
    }

    /// Sets rank `me`'s flag.
    #[inline]
    pub(super) fn set(&self, me: u32, flag: Flag, number: u64) {
        // Release: pairs with the Acquire in `Area::has`; non-temporal stores of a pass were fenced
        // at its end.
        self.word(flag.of(me))
            .store(self.numbers.of_flag(number), Ordering::Release);
    }

    /// Names rank `me`'s windows; its next flag makes them visible.
    pub(super) fn show_windows(&self, me: u32, bus: u64) {
        self.word(me as usize * PAIR + WINDOWS_AT)
            .store(bus, Ordering::Relaxed);
    }

    /// Stores words of a record from word 1 on.
    #[inline]
    pub(super) fn put_words(&self, me: u32, seq: u64, words: &[u64]) {
        let at = self.layout.record(me, seq);
        for (i, w) in words.iter().enumerate() {
            self.word(at + (1 + i) * 8).store(*w, Ordering::Relaxed);
        }
    }

    /// Stores the input of an eager operation into its record.
    #[inline]
    pub(super) fn put_input(&self, me: u32, seq: u64, input: &Pages) {
        let len = input.bytes() as usize;
        debug_assert!(len <= self.layout.eager);
        let to = self
            .base
            .wrapping_add(self.layout.record(me, seq) + input_at(len));
        if let Some(from) = input.together() {
            // SAFETY: the slot has room for the eager bytes; the input is mapped.
            return unsafe { copy::copy(to, from, len) };
        }
        let mut done = 0;
        while done < len {
            let (from, run) = input.at(done as u64);
            let n = run.min(len - done);
            // SAFETY: as above; `at` gives mapped bytes.
            unsafe { copy::copy(to.add(done), from, n) };
            done += n;
        }
    }

    /// Makes the record visible to its owner. Returns whether the owner should be woken.
    #[inline]
    pub(super) fn publish(&self, me: u32, seq: u64, shape: Shape) -> bool {
        let word = u64::from(self.numbers.of_record(seq)) << 32 | u64::from(shape.0);
        // Release: pairs with the Acquire in `Area::shape`.
        self.word(self.layout.record(me, seq))
            .store(word, Ordering::Release);
        self.arrive(seq, false)
    }
}
