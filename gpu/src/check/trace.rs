//! `racecheck` and `initcheck`: each access, fence and barrier of checked code, in the order in
//! which they are executed.
//!
//! Two accesses of the same bytes race if one is a write, neither happened before the other, and
//! they are not both strong with scopes that include each other (§8.6, §8.9). Steps of checked
//! blocks are executed one after the other, and the lock of the trace is held in each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::clock::{join, join_some, meet, Actor, Clock, Known, MOST_BLOCKS};
use super::operations::{Message, Operation, Operations};
use super::shadow::{Access, Cell, Mark, Pages, Parts, WORD};
use super::watch::{thread, Watch};
use super::written::Written;
use crate::hooks::Checks;
use crate::hooks::How;
use crate::module::Scope;

const RACE: &str = "racecheck";
const INIT: &str = "initcheck";

/// What releases have left at a word.
#[derive(Debug, Default)]
struct Left {
    /// By the threads of a block, for them.
    near: BTreeMap<u32, Arc<Known>>,
    /// For all.
    far: Arc<Known>,
}

/// A launch that was begun since no kernel ran.
#[derive(Debug)]
struct Run {
    watch: Arc<Watch>,
    began: u64,
    ended: Option<u64>,
    /// What all its threads know from the begin.
    known: Arc<Known>,
}

/// The past of one GPU's memory.
#[derive(Debug)]
pub(crate) struct Trace {
    checks: Checks,
    base: u64,
    bytes: u64,
    written: Written,
    pages: Pages,
    parts: Parts,
    left: HashMap<u64, Left>,
    runs: Vec<Run>,
    /// Launch and index of each block; block 0 is none.
    blocks: Vec<(u32, [u32; 3])>,
    running: u32,
    /// Begins and ends of launches are numbered.
    time: u64,
    /// The host's programs and the NIC as one: what they do among themselves is not looked at.
    host: Clock,
    /// What the host lets others see, and whether it has done something since.
    host_known: Arc<Known>,
    host_acted: bool,
    operations: Operations,
}

/// Bytes of a completion line.
const LINE: u64 = 64;

/// Whose an access is that no kernel makes: in place of a site.
pub(super) const BY_HOST: u32 = 0;
pub(super) const BY_NIC: u32 = 1;

/// The past of a block: its threads, and its shared memory.
#[derive(Debug, Default)]
pub(crate) struct BlockTrace {
    pub(crate) number: u32,
    clocks: Vec<Clock>,
    /// What all threads of its launch know from the begin.
    base: Arc<Known>,
    cells: Vec<Cell>,
    parts: Parts,
    written: Written,
    left: HashMap<u64, Left>,
    /// The host's address of shared memory, and its bytes.
    shared: (u64, u64),
}

/// Where an access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Shared,
    Global,
    /// Of the host.
    Exposed,
}

impl Trace {
    pub(super) fn new(checks: Checks, base: u64, bytes: u64) -> Trace {
        Trace {
            checks,
            base,
            bytes,
            written: Written::new(if checks.initialised { bytes } else { 0 }),
            pages: Pages::new(base, if checks.races { bytes } else { 0 }),
            parts: Parts::default(),
            left: HashMap::new(),
            runs: Vec::new(),
            blocks: vec![(u32::MAX, [0; 3])],
            running: 0,
            time: 0,
            host: Clock::new(),
            host_known: Arc::default(),
            host_acted: false,
            operations: Operations::default(),
        }
    }

    /// Memory is allocated anew: none of it was written.
    pub(super) fn allocated(&mut self, address: u64, bytes: u64) {
        if self.checks.initialised {
            self.written.set(address - self.base, bytes, false);
        }
    }

    /// A launch begins; what has happened up to now happened before it, but for launches that run.
    pub(super) fn begin(&mut self, watch: &Arc<Watch>) -> u32 {
        if self.running == 0 {
            self.pages.forget();
            self.parts.clear();
            self.left.clear();
            self.runs.clear();
            self.blocks.truncate(1);
            // The next blocks have the numbers of those that have ended.
            if let Some(known) = &mut self.host.others {
                Arc::make_mut(known).forget_kernels();
            }
            Arc::make_mut(&mut self.host_known).forget_kernels();
            self.operations.forget_kernels();
        }
        self.running += 1;
        self.time += 1;
        let known = self.host_releases();
        self.runs.push(Run {
            watch: watch.clone(),
            began: self.time,
            ended: None,
            known,
        });
        self.runs.len() as u32 - 1
    }

    pub(super) fn end(&mut self, run: u32) {
        self.time += 1;
        self.running -= 1;
        self.runs[run as usize].ended = Some(self.time);
    }

    /// A block of a launch begins, with shared memory at this address of the host.
    pub(crate) fn begin_block(
        &mut self,
        block: &mut BlockTrace,
        run: u32,
        index: [u32; 3],
        threads: usize,
        shared: (u64, u64),
    ) {
        // Too many blocks share the last number, so that they count as ordered, which hides races
        // and makes none up.
        if self.blocks.len() < MOST_BLOCKS as usize {
            self.blocks.push((run, index));
        }
        block.number = self.blocks.len() as u32 - 1;
        block.base = self.runs[run as usize].known.clone();
        block.clocks.clear();
        block.clocks.resize_with(threads, Clock::new);
        block.left.clear();
        block.parts.clear();
        block.shared = shared;
        if self.checks.races {
            let words = shared.1.div_ceil(WORD) as usize;
            block.cells.clear();
            block.cells.resize(words, Cell::default());
        }
        if self.checks.initialised {
            block.written = Written::new(shared.1);
        }
    }

    /// An access by a thread of a block, of GPU memory or of the block's: whether it was plain that
    /// nothing is wrong.
    #[inline(always)]
    pub(crate) fn passes(
        &mut self,
        block: &mut BlockTrace,
        (number, site): (u32, u32),
        at: u64,
        how: How,
    ) -> bool {
        let bytes = how.bytes();
        // A part of 64 bytes, as accesses of powers of two are.
        if at % 64 + bytes > 64 {
            return false;
        }
        let offset = at.wrapping_sub(block.shared.0);
        let shared = offset < block.shared.1;
        let first = if shared {
            offset
        } else {
            at.wrapping_sub(self.base)
        };
        if !shared && first >= self.bytes {
            return false;
        }
        if self.checks.initialised {
            let written = if shared {
                &block.written
            } else {
                &self.written
            };
            if !written.has(first, bytes) {
                return false;
            }
        }
        if !self.checks.races {
            return true;
        }
        let clock = &block.clocks[number as usize];
        if how.is_strong() && (how.releases() || clock.fenced.iter().any(Option::is_some)) {
            return false;
        }
        let known = clock.block;
        let mark = Mark::new(Actor::new(block.number, number), clock.now, site, how);
        let (word, begin) = (first / WORD, first % WORD);
        if begin + bytes <= WORD {
            let part = (begin, begin + bytes);
            return self.passes_word(block, (shared, word), part, mark, known);
        }
        self.passes_words(block, (shared, first), mark, known)
    }

    /// The same of bytes of one word.
    #[inline(always)]
    fn passes_word(
        &mut self,
        block: &mut BlockTrace,
        (shared, word): (bool, u64),
        part: (u64, u64),
        mark: Mark,
        known: u32,
    ) -> bool {
        if shared {
            let cell = &mut block.cells[word as usize];
            return block.parts.pass(cell, part, mark, known);
        }
        let cell = self.pages.cell(self.base + word * WORD);
        self.parts.pass(cell, part, mark, known)
    }

    /// The same of more than a word.
    fn passes_words(
        &mut self,
        block: &mut BlockTrace,
        (shared, first): (bool, u64),
        mark: Mark,
        known: u32,
    ) -> bool {
        words(first, mark.how().bytes())
            .all(|(word, part)| self.passes_word(block, (shared, word), part, mark, known))
    }

    /// An access by a thread of a block.
    pub(crate) fn access(
        &mut self,
        block: &mut BlockTrace,
        number: u32,
        at: u64,
        how: How,
        site: u32,
    ) {
        let offset = at.wrapping_sub(block.shared.0);
        let memory = match () {
            () if offset < block.shared.1 => Memory::Shared,
            () if at.wrapping_sub(self.base) < self.bytes => Memory::Global,
            () => Memory::Exposed,
        };
        let own = Actor::new(block.number, number);
        if self.checks.initialised && memory != Memory::Exposed {
            let (written, first) = match memory {
                Memory::Shared => (&mut block.written, offset),
                _ => (&mut self.written, at - self.base),
            };
            let reads = !how.is_store() || how.is_atomic();
            // What was read counts as written then: it is said once, and not of what is made of it.
            let missing = written.write(first, how.bytes());
            // An atomic operation of a part of a word is made of one of the whole.
            let some = u64::from(missing) < how.bytes();
            if reads && missing > 0 && !(how.is_atomic() && some) {
                self.unwritten(own, site, (memory, first), how, missing);
            }
        }
        if !self.checks.races {
            return;
        }
        let (clock, base) = (&mut block.clocks[number as usize], &block.base);
        if memory != Memory::Shared {
            self.global(own, (clock, base), (memory, at), how, site);
            return settle(clock, how);
        }
        let mut raced = None;
        let strong = how.is_strong();
        let mark = Mark::new(own, clock.now, site, how);
        let access = Access {
            mark,
            clock,
            base,
            // Every scope has the block.
            excused: &|m: Mark| strong && m.how().is_strong(),
        };
        for (word, part) in words(offset, how.bytes()) {
            let cell = &mut block.cells[word as usize];
            raced = block.parts.touch(cell, part, &access).or(raced);
        }
        if strong || how.is_store() {
            for (word, _) in words(offset, how.bytes()) {
                let cell = &mut block.cells[word as usize];
                synchronise((clock, base), own, cell, &mut block.left, word, how);
            }
            settle(clock, how);
        }
        if let Some(with) = raced {
            self.raced(mark, with, (memory, offset));
        }
    }

    /// An access of global memory by anybody.
    fn global(
        &mut self,
        own: Actor,
        (clock, base): (&mut Clock, &Arc<Known>),
        (memory, at): (Memory, u64),
        how: How,
        site: u32,
    ) {
        let mut raced = None;
        let mark = Mark::new(own, clock.now, site, how);
        let (runs, blocks) = (&self.runs, &self.blocks);
        let access = Access {
            mark,
            clock,
            base,
            excused: &|m: Mark| excused(runs, blocks, mark, m),
        };
        for (word, part) in words(at, how.bytes()) {
            let cell = self.pages.cell(word * WORD);
            raced = self.parts.touch(cell, part, &access).or(raced);
        }
        if how.is_strong() || how.is_store() {
            for (word, _) in words(at, how.bytes()) {
                let cell = self.pages.cell(word * WORD);
                synchronise((clock, base), own, cell, &mut self.left, word, how);
            }
        }
        if memory == Memory::Exposed && how.is_strong() {
            self.through_the_host(own, (clock, base), at, how);
        }
        if let Some(with) = raced {
            self.raced(mark, with, (memory, at));
        }
    }

    /// The host and the NIC access memory of the host unseen. What a thread releases to it they
    /// know, and who acquires something of it knows what they have done: of a completion, its
    /// operation.
    fn through_the_host(
        &mut self,
        own: Actor,
        (clock, base): (&mut Clock, &Arc<Known>),
        at: u64,
        how: How,
    ) {
        if !how.is_store() || how.is_atomic() {
            if self.operations.completion(at, LINE).is_none() && self.host_acted {
                self.host_acted = false;
                self.host_known = self.host_releases();
            }
            let known = self.operations.completion(at, LINE);
            let known = known.unwrap_or(&self.host_known);
            if how.acquires() {
                clock.acquire(known, base);
            }
            join_some(&mut clock.read[1], known);
        }
        if how.is_store() && how.scope() == Scope::System {
            if how.releases() {
                self.host.acquire(&clock.peek(own, base), &Arc::default());
            }
            if let Some(known) = &clock.fenced[1] {
                self.host.acquire(known, &Arc::default());
            }
        }
    }

    /// What the host and the NIC let others see: operations that have ended are part of it.
    fn host_releases(&mut self) -> Arc<Known> {
        let mut known = self.host.release(Actor::HOST, &Known::default());
        join(&mut known, self.operations.ended());
        known
    }

    /// The NIC begins an operation.
    pub(super) fn begins(&mut self, operation: Operation) {
        if !self.checks.races {
            return;
        }
        let by = self.pages.cell(operation.entry).writer();
        let left = self.left.get(&(operation.entry / WORD));
        let known = match left.filter(|_| by.is_some()) {
            Some(left) => left.far.clone(),
            None => self.host.peek(Actor::HOST, &Known::default()),
        };
        self.operations.begins(operation, by, known);
    }

    /// The NIC is about to write the completion in this line.
    pub(super) fn ends(&mut self, line: u64) {
        let host = &self.host;
        self.operations
            .ends(line, || host.peek(Actor::HOST, &Known::default()));
        self.host_acted = true;
    }

    /// Whether an access that no kernel makes is of interest for races. Without a kernel that runs,
    /// everything is ordered.
    fn looks_at(&mut self, at: u64, bytes: u64, how: How) -> bool {
        if self.checks.initialised && how.is_store() {
            self.written.set(at - self.base, bytes, true);
        }
        self.host_acted = true;
        self.checks.races && self.running > 0
    }

    /// Bytes of GPU memory that the host reads or writes at once, or a word.
    pub(super) fn host(&mut self, at: u64, bytes: u64, how: How) {
        if self.looks_at(at, bytes, how) {
            self.by_host(at, bytes, how, BY_HOST);
        }
    }

    fn by_host(&mut self, at: u64, bytes: u64, how: How, by: u32) {
        let mut clock = std::mem::take(&mut self.host);
        self.range(Actor::HOST, &mut clock, (at, bytes), how, by);
        settle(&mut clock, how);
        self.host = clock;
    }

    /// The same by the NIC: for one of its operations, or for a peer.
    pub(super) fn nic(&mut self, at: u64, bytes: u64, how: How) {
        if !self.looks_at(at, bytes, how) {
            return;
        }
        let Some(posted) = self.operations.at(at, how.is_store()) else {
            if how.releases() {
                // Words tell kernels of what operations do that are under way.
                let fed = self.operations.fed();
                let known = Arc::make_mut(self.host.others.get_or_insert_default());
                fed.for_each(|n| known.ended(n));
            }
            return self.by_host(at, bytes, how, BY_NIC);
        };
        let mut clock = Clock {
            now: posted.stamp(),
            others: Some(posted.known.clone()),
            ..Clock::default()
        };
        if posted.operation.fed {
            if let Some(known) = &self.host.others {
                clock.acquire(known, &Arc::default());
            }
        }
        if posted.operation.message == Message::Received {
            clock.acquire(self.operations.sent(), &Arc::default());
        }
        let (own, site) = (posted.actor(), posted.site());
        // Data of an operation are no words that others wait for.
        self.range(
            own,
            &mut clock,
            (at, bytes),
            How::new(0, how.is_store()),
            site,
        );
    }

    /// An access of any length by others than kernels.
    fn range(
        &mut self,
        own: Actor,
        clock: &mut Clock,
        (at, bytes): (u64, u64),
        how: How,
        site: u32,
    ) {
        let (mut first, none) = (at, Arc::default());
        while first < at + bytes {
            let n = (WORD - first % WORD).min(at + bytes - first);
            let one = how.of_bytes(n as u32);
            self.global(own, (clock, &none), (Memory::Global, first), one, site);
            first += n;
        }
    }

    fn unwritten(&self, own: Actor, site: u32, at: (Memory, u64), how: How, missing: u32) {
        let Some((run, index)) = self.run_of(own) else {
            return;
        };
        let site = run.watch.site(site);
        run.watch.found(INIT, (site, None), || {
            format!(
                "{}, {}: {} of {} bytes at {}, {missing} of which were never written",
                thread(index, run.watch.thread(own.thread())),
                run.watch.describe(site),
                how.describe(),
                how.bytes(),
                place(
                    at.0,
                    at.1 + if at.0 == Memory::Global { self.base } else { 0 }
                ),
            )
        });
    }

    fn raced(&self, mark: Mark, with: Mark, (memory, at): (Memory, u64)) {
        // Between the host and a kernel it is the kernel's.
        let (first, second) = match mark.actor.is_thread() {
            true => (mark, with),
            false => (with, mark),
        };
        let Some((run, index)) = self.run_of(first.actor) else {
            return;
        };
        let site = run.watch.site(first.site());
        let other = self.run_of(second.actor);
        let other_site = other.map(|(run, _)| run.watch.site(second.site()));
        run.watch.found(RACE, (site, other_site), || {
            let by = match other {
                None => self.outside(second, &run.watch),
                Some(_) => self.by(second, &run.watch),
            };
            format!(
                "{}, {}: {} of {} bytes at {} races with {} by {by}",
                thread(index, run.watch.thread(first.actor.thread())),
                run.watch.describe(site),
                first.how().describe(),
                first.how().bytes(),
                place(memory, at),
                second.how().describe(),
            )
        });
    }

    /// Who has made an access that no kernel has, in words.
    fn outside(&self, mark: Mark, told: &Arc<Watch>) -> String {
        if mark.site() == BY_HOST {
            return "the host".to_owned();
        }
        let Some(posted) = self.operations.named(mark) else {
            return "the NIC for a peer or the host".to_owned();
        };
        let poster = match posted.by {
            Some(mark) => self.by(mark, told),
            None => "the host".to_owned(),
        };
        format!("the NIC for {}, posted by {poster}", posted.describe())
    }

    /// Thread and place of an access, and the kernel if it is not the launch that is told of.
    fn by(&self, mark: Mark, told: &Arc<Watch>) -> String {
        let Some((run, index)) = self.run_of(mark.actor) else {
            return "a kernel".to_owned();
        };
        let kernel = match Arc::ptr_eq(&run.watch, told) {
            true => String::new(),
            false => format!("kernel `{}`, ", run.watch.kernel()),
        };
        let place = run.watch.describe(run.watch.site(mark.site()));
        let number = run.watch.thread(mark.actor.thread());
        format!("{kernel}{}, {place}", thread(index, number))
    }

    fn run_of(&self, actor: Actor) -> Option<(&Run, [u32; 3])> {
        let (run, index) = self.blocks.get(actor.block() as usize)?;
        Some((self.runs.get(*run as usize)?, *index))
    }
}

impl BlockTrace {
    /// A fence of a thread (§9.7.13.4).
    pub(crate) fn fence(&mut self, number: u32, scope: Scope) {
        let own = Actor::new(self.number, number);
        let (clock, base) = (&mut self.clocks[number as usize], &self.base);
        let wide = scope != Scope::Block;
        for from in 0..=usize::from(wide) {
            if let Some(read) = clock.read[from].take() {
                clock.acquire(&read, base);
            }
        }
        let known = clock.release(own, base);
        clock.fenced[usize::from(wide)] = Some(known);
        if wide {
            clock.fenced[0] = None;
        }
    }

    /// Threads meet at a barrier or in a warp operation. `live` are the lanes of each warp that
    /// have not ended.
    pub(crate) fn meet(&mut self, here: &[usize], live: &[u32; 32], all: bool) {
        let mut lanes = [0u32; 32];
        for i in here {
            lanes[i / 32] |= 1 << (i % 32);
        }
        let whole = |w: usize| lanes[w] == live[w];
        let base = &self.base;
        meet(&mut self.clocks, self.number, here, whole, all, base);
    }
}

/// Words of a range, at most 128 bytes, and which of their bytes are in it.
#[inline]
fn words(at: u64, bytes: u64) -> impl Iterator<Item = (u64, (u64, u64))> {
    let end = at + bytes;
    (at / WORD..end.div_ceil(WORD)).map(move |w| {
        let first = w * WORD;
        (w, (at.max(first) - first, end.min(first + WORD) - first))
    })
}

/// What a strong access of a word learns from others, and leaves for others.
#[inline]
fn synchronise(
    (clock, base): (&mut Clock, &Arc<Known>),
    own: Actor,
    cell: &mut Cell,
    left: &mut HashMap<u64, Left>,
    word: u64,
    how: How,
) {
    if !how.is_strong() {
        // A weak store breaks a chain of releases.
        if how.is_store() && cell.synchronises() {
            left.remove(&word);
            cell.set_synchronises(false);
        }
        return;
    }
    synchronise_strong((clock, base), own, cell, left, word, how);
}

fn synchronise_strong(
    (clock, base): (&mut Clock, &Arc<Known>),
    own: Actor,
    cell: &mut Cell,
    left: &mut HashMap<u64, Left>,
    word: u64,
    how: How,
) {
    let block = own.block();
    if !cell.synchronises() && !how.releases() && clock.fenced.iter().all(Option::is_none) {
        return;
    }
    let wide = how.scope() != Scope::Block;
    if cell.synchronises() && (!how.is_store() || how.is_atomic()) {
        if let Some(l) = left.get(&word) {
            let far = Some(&l.far).filter(|_| wide);
            for (i, known) in [l.near.get(&block), far].into_iter().enumerate() {
                let Some(known) = known else { continue };
                if how.acquires() {
                    clock.acquire(known, base);
                }
                join_some(&mut clock.read[i], known);
            }
        }
    }
    if !how.is_store() {
        return;
    }
    let mut gives: [Option<Arc<Known>>; 2] = clock.fenced.clone();
    if how.releases() {
        gives[usize::from(wide)] = Some(clock.peek(own, base));
    }
    if !how.is_atomic() && cell.synchronises() {
        left.remove(&word);
        cell.set_synchronises(false);
    }
    if gives.iter().flatten().all(|known| known.is_empty()) {
        return;
    }
    let l = left.entry(word).or_default();
    let near = l.near.entry(block).or_default();
    for known in gives.iter().flatten() {
        join(near, known);
    }
    if let Some(known) = gives[1].as_ref().filter(|_| wide) {
        join(&mut l.far, known);
    }
    cell.set_synchronises(true);
}

/// After an access that releases, the thread's next ones are not part of what was released.
fn settle(clock: &mut Clock, how: How) {
    if how.releases() {
        clock.now += 1;
    }
}

/// Whether an earlier access happened before the own launch began, or both are strong with scopes
/// that include the other.
fn excused(runs: &[Run], blocks: &[(u32, [u32; 3])], own: Mark, other: Mark) -> bool {
    let run = |m: Mark| {
        let (run, _) = blocks.get(m.actor.block() as usize)?;
        runs.get(*run as usize)
    };
    if let Some(ended) = run(other).and_then(|r| r.ended) {
        let began = run(own).map_or(u64::MAX, |r| r.began);
        if ended <= began {
            return true;
        }
    }
    let need = match (own.actor.is_thread(), other.actor.is_thread()) {
        (true, true) if own.actor.block() == other.actor.block() => Scope::Block,
        (true, true) => Scope::Gpu,
        _ => Scope::System,
    };
    let reaches = |m: Mark| m.how().is_strong() && m.how().scope() as u32 >= need as u32;
    reaches(own) && reaches(other)
}

fn place(memory: Memory, at: u64) -> String {
    match memory {
        Memory::Shared => format!("{at:#x} of shared memory"),
        Memory::Global => format!("{at:#x}"),
        Memory::Exposed => format!("{at:#x} of the host's memory"),
    }
}
