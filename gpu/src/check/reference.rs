//! A second model of happens-before, for tests: every event is kept with the set of those that
//! happened before it, and each pair of accesses is compared. Random programs run on it and on the
//! trace.
//!
//! It follows the memory consistency model (§8) from its words, and says where the trace knows
//! less:
//!
//! - a fence of a thread in front of a barrier counts for the strong stores of all threads behind
//!   it;
//! - of a byte the trace remembers the last write, and two reads since, of which a strong one does
//!   not take the place of a weak one: a race with another access may be missed.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::trace::{BlockTrace, Trace};
use super::watch::Watch;
use crate::code::Shape;
use crate::hooks::Checks;
use crate::hooks::How;
use crate::lower::Program;
use crate::module::{MemoryOrder, Scope};

/// First byte of GPU memory, and of shared memory.
const GLOBAL: u64 = 0x100_0000;
const SHARED: u64 = 0x1_0000;

/// Threads of a block, of which [`ACTIVE`] access memory: three warps, the last of which has one.
const THREADS: usize = 65;
const ACTIVE: [usize; 5] = [0, 1, 32, 33, 64];
const BLOCKS: usize = 2;

/// Events of a program, at most the bits of a set of them.
const EVENTS: usize = 120;

type Set = u128;

#[derive(Clone, Copy)]
enum Event {
    Access {
        at: u64,
        how: How,
    },
    Fence(Scope),
    /// Threads of a block by their numbers; whether they are all.
    Meet {
        here: [bool; THREADS],
        all: bool,
    },
}

/// Which event, of which thread of which block.
#[derive(Clone, Copy)]
struct Step {
    block: usize,
    thread: usize,
    event: Event,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { block, thread, .. } = self;
        write!(f, "block {block}, thread {thread}: ")?;
        match self.event {
            Event::Access { at, how } => {
                let (what, bytes) = (how.describe(), how.bytes());
                write!(f, "{what} of {bytes} bytes at {at:#x}")?;
                if how.is_strong() {
                    let (acquires, releases) = (how.acquires(), how.releases());
                    let scope = how.scope();
                    write!(f, ", acquire {acquires}, release {releases}, {scope:?}")?;
                }
                Ok(())
            }
            Event::Fence(scope) => write!(f, "a fence, {scope:?}"),
            Event::Meet { all: true, .. } => write!(f, "a barrier of all"),
            Event::Meet { here, .. } => {
                let here: Vec<usize> = (0..THREADS).filter(|i| here[*i]).collect();
                write!(
                    f,
                    "a barrier of {} threads: {:?}",
                    here.len(),
                    &here[..here.len().min(3)]
                )
            }
        }
    }
}

/// What a release has given with a word: to whom, and what happened before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Given {
    block: usize,
    wide: bool,
    past: Set,
}

#[derive(Debug, Clone, Default)]
struct Thread {
    past: Set,
    fences: BTreeSet<Given>,
    /// What its strong reads have seen.
    seen: BTreeSet<Given>,
}

/// A word's last write, and what those give that it continues.
#[derive(Debug, Clone, Default)]
struct Chain {
    writer: Option<(usize, bool)>,
    given: BTreeSet<Given>,
}

#[derive(Default)]
struct Reference {
    threads: Vec<Thread>,
    steps: Vec<Step>,
    chains: HashMap<u64, Chain>,
}

/// What the reference says of an access.
#[derive(Debug, PartialEq)]
enum Verdict {
    Ordered,
    /// With an access that the trace remembers for certain.
    Races,
    /// With another.
    MayBeMissed,
}

fn wide(scope: Scope) -> bool {
    scope != Scope::Block
}

/// Memory of a step: two blocks have different shared memory.
fn memory(step: &Step, at: u64) -> u64 {
    match at < GLOBAL {
        true => at + (step.block as u64 + 1) * 0x1000_0000,
        false => at,
    }
}

impl Reference {
    fn new() -> Reference {
        Reference {
            threads: vec![Thread::default(); BLOCKS * THREADS],
            ..Reference::default()
        }
    }

    fn step(&mut self, step: Step) -> Verdict {
        let (n, me) = (self.steps.len(), step.block * THREADS + step.thread);
        let bit = 1 << n;
        let mut verdict = Verdict::Ordered;
        match step.event {
            Event::Fence(scope) => {
                let of = Given {
                    block: step.block,
                    wide: wide(scope),
                    past: 0,
                };
                let seen = self.threads[me].seen.clone();
                let t = &mut self.threads[me];
                // Release and acquire are for each other's threads, by both scopes.
                for g in seen.iter().filter(|g| agree(**g, of)) {
                    t.past |= g.past;
                }
                t.past |= bit;
                let past = t.past;
                t.fences.insert(Given { past, ..of });
            }
            Event::Meet { here, all } => {
                let those = (0..THREADS).filter(|i| all || here[*i]);
                let those: Vec<usize> = those.map(|i| step.block * THREADS + i).collect();
                let past = those.iter().fold(bit, |p, t| p | self.threads[*t].past);
                let fences = those.iter().flat_map(|t| self.threads[*t].fences.clone());
                let fences: BTreeSet<Given> = fences.collect();
                for t in those {
                    self.threads[t].past = past;
                    self.threads[t].fences = fences.clone();
                }
            }
            Event::Access { at, how } => {
                let (thread, chains) = self.learn(step, at, how);
                verdict = self.compare(step, at, how, thread.past);
                self.leave(step, how, thread, chains);
            }
        }
        self.steps.push(step);
        verdict
    }

    /// What would be said of a step.
    fn verdict(&self, step: Step) -> Verdict {
        match step.event {
            Event::Access { at, how } => {
                let (thread, _) = self.learn(step, at, how);
                self.compare(step, at, how, thread.past)
            }
            _ => Verdict::Ordered,
        }
    }

    /// What an access learns of others: its thread's state then, and what its words had.
    fn learn(&self, step: Step, at: u64, how: How) -> (Thread, Vec<(u64, Chain)>) {
        let (block, wide) = (step.block, wide(how.scope()));
        let own = Given {
            block,
            wide,
            past: 0,
        };
        let mut thread = self.threads[block * THREADS + step.thread].clone();
        let words = (at / 4..(at + how.bytes()).div_ceil(4)).map(|w| memory(&step, w * 4));
        let chains = words.map(|word| {
            let mut chain = self.chains.get(&word).cloned().unwrap_or_default();
            // Observation goes on over writes of scopes that include the next thread.
            let reaches = |(b, w): (usize, bool)| b == block || w && wide;
            if !chain.writer.is_some_and(reaches) {
                chain.given.clear();
            }
            if how.is_strong() && (!how.is_store() || how.is_atomic()) {
                for g in &chain.given {
                    if how.acquires() && agree(*g, own) {
                        thread.past |= g.past;
                    }
                    thread.seen.insert(*g);
                }
            }
            (word, chain)
        });
        let chains = chains.collect();
        thread.past |= 1 << self.steps.len();
        (thread, chains)
    }

    /// What an access leaves for others.
    fn leave(&mut self, step: Step, how: How, thread: Thread, chains: Vec<(u64, Chain)>) {
        let (block, wide) = (step.block, wide(how.scope()));
        for (word, mut chain) in chains.into_iter().filter(|_| how.is_store()) {
            if !how.is_strong() {
                self.chains.remove(&word);
                continue;
            }
            if !how.is_atomic() {
                chain.given.clear();
            }
            chain.given.extend(&thread.fences);
            if how.releases() {
                let past = thread.past;
                chain.given.insert(Given { block, wide, past });
            }
            chain.writer = Some((block, wide));
            self.chains.insert(word, chain);
        }
        self.threads[block * THREADS + step.thread] = thread;
    }

    /// Each access before is compared.
    fn compare(&self, step: Step, at: u64, how: How, past: Set) -> Verdict {
        let mut verdict = Verdict::Ordered;
        for byte in (0..how.bytes()).map(|k| memory(&step, at) + k) {
            let steps = self.steps.iter().enumerate().rev();
            let accesses = steps.filter_map(|(i, other)| match other.event {
                Event::Access { at, how } => {
                    let first = memory(other, at);
                    let here = (first..first + how.bytes()).contains(&byte);
                    here.then_some((i, other, how))
                }
                _ => None,
            });
            // Since the last write: whether there were reads, and weak ones.
            let (mut written, mut read, mut weak) = (false, false, false);
            let mut maybe = false;
            for (i, other, theirs) in accesses {
                let last = match (theirs.is_store(), theirs.is_strong()) {
                    (true, _) => !written,
                    (false, false) => !written && !weak,
                    (false, true) => !written && !read,
                };
                let conflict = how.is_store() || theirs.is_store();
                let same = (other.block, other.thread) == (step.block, step.thread);
                let strong = how.is_strong() && theirs.is_strong();
                let agree = other.block == step.block || wide(how.scope()) && wide(theirs.scope());
                let races = conflict && !same && past >> i & 1 == 0 && !(strong && agree);
                if races && last && (theirs.is_store() || !theirs.is_strong()) {
                    return Verdict::Races;
                }
                if races {
                    verdict = Verdict::MayBeMissed;
                    maybe |= last;
                }
                // A strong read is not remembered in the place of a weak one.
                weak |= !written && !theirs.is_store() && !theirs.is_strong();
                read |= !theirs.is_store();
                written |= theirs.is_store();
            }
            if maybe && !weak {
                return Verdict::Races;
            }
        }
        verdict
    }
}

/// Whether a release and an acquire have scopes that include each other's thread.
fn agree(a: Given, b: Given) -> bool {
    a.block == b.block || a.wide && b.wide
}

/// The trace under test, with two blocks of one launch.
struct Traced {
    trace: Trace,
    blocks: Vec<BlockTrace>,
    watch: Arc<Watch>,
}

impl Traced {
    fn new(program: &Program) -> Traced {
        let checks = Checks {
            races: true,
            ..Checks::default()
        };
        let shape = Shape {
            grid: [BLOCKS as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            dynamic_shared: 0,
        };
        let kernel = program.kernel("k").expect("compiles");
        let watch = Arc::new(Watch::new(kernel, shape, Box::new(|_| String::new())));
        let mut trace = Trace::new(checks, GLOBAL, 1 << 16);
        let run = trace.begin(&watch);
        let blocks = (0..BLOCKS as u32).map(|i| {
            let mut block = BlockTrace::default();
            trace.begin_block(&mut block, run, [i, 0, 0], THREADS, (SHARED, 64));
            block
        });
        let blocks = blocks.collect();
        Traced {
            trace,
            blocks,
            watch,
        }
    }

    /// Whether a race was told of with this step.
    fn step(&mut self, step: &Step) -> bool {
        let block = &mut self.blocks[step.block];
        let number = step.thread as u32;
        match step.event {
            Event::Fence(scope) => block.fence(number, scope),
            Event::Meet { here, all } => {
                let here: Vec<usize> = (0..THREADS).filter(|i| all || here[*i]).collect();
                let mut live = [0; 32];
                live[..3].copy_from_slice(&[u32::MAX, u32::MAX, 1]);
                block.meet(&here, &live, all);
            }
            Event::Access { at, how } => {
                if !self.trace.passes(block, (number, 0), at, how) {
                    self.trace.access(block, number, at, how, 0);
                }
            }
        }
        !self.watch.findings().is_empty()
    }
}

/// xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn step(&mut self) -> Step {
        let (block, thread) = (self.below(BLOCKS), self.one_of(&ACTIVE));
        let scope = self.one_of(&[Scope::Block, Scope::Gpu, Scope::Gpu, Scope::System]);
        let base = self.one_of(&[GLOBAL, GLOBAL, SHARED]);
        let event = match self.below(20) {
            0..=5 => {
                let bytes = self.one_of(&[1, 2, 4, 4, 4, 8]);
                let at = base + (self.below(16) as u64 / u64::from(bytes)) * u64::from(bytes);
                let how = How::new(bytes, self.below(3) == 0);
                Event::Access { at, how }
            }
            // The last words are for strong accesses mostly.
            6..=13 => {
                let at = base + 4 * self.one_of(&[0, 4, 4, 5, 5, 5]);
                let store = self.below(2) == 0;
                let order = match (self.below(3), store) {
                    (0, true) => MemoryOrder::Release,
                    (0, false) => MemoryOrder::Acquire,
                    _ => MemoryOrder::Relaxed,
                };
                let how = How::new(4, store);
                let how = match self.below(3) {
                    0 => {
                        let order = self.one_of(&[
                            MemoryOrder::Relaxed,
                            MemoryOrder::Acquire,
                            MemoryOrder::Release,
                            MemoryOrder::AcqRel,
                        ]);
                        how.ordered(order, scope).atomic()
                    }
                    _ => how.ordered(order, scope),
                };
                Event::Access { at, how }
            }
            14..=16 => Event::Fence(scope),
            17 => Event::Meet {
                here: [true; THREADS],
                all: true,
            },
            18 => {
                // A whole warp, or two of the three.
                let warps = self.one_of(&[1, 2, 4, 3, 5, 6]);
                let here = std::array::from_fn(|i| warps >> (i / 32) & 1 == 1);
                Event::Meet { here, all: false }
            }
            _ => {
                let mut here = [false; THREADS];
                for i in ACTIVE.iter().filter(|i| **i / 32 == thread / 32) {
                    here[*i] = true;
                }
                Event::Meet { here, all: false }
            }
        };
        let thread = match event {
            // The event counts for one that meets.
            Event::Meet { here, .. } => here.iter().position(|h| *h).unwrap_or(0),
            _ => thread,
        };
        Step {
            block,
            thread,
            event,
        }
    }
}

const PROGRAMS: u64 = 2000;

const KERNEL: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }";

#[test]
fn the_trace_and_the_reference_find_the_same_first_race_in_random_programs() {
    let module = crate::parse("k.ptx", KERNEL).expect("a kernel");
    let program = Program::new(module, vec![], GLOBAL, 1 << 16);
    let (mut raced, mut missed, mut late) = (0, 0, 0);
    for seed in 1..=PROGRAMS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut reference, mut traced) = (Reference::new(), Traced::new(&program));
        // Most races are left out of most programs, so that those that are there come late.
        let rare = random.one_of(&[1, 10, 100]);
        for _ in 0..1000 {
            let step = random.step();
            if reference.verdict(step) != Verdict::Ordered && random.below(rare) > 0 {
                continue;
            }
            let verdict = reference.step(step);
            let told = traced.step(&step);
            let of = || format!("seed {seed}: {:#?}", reference.steps);
            match (verdict, told) {
                (Verdict::Ordered, false) if reference.steps.len() < EVENTS => continue,
                (Verdict::Ordered, false) => {}
                (Verdict::Ordered, true) => panic!("a false alarm: {}", of()),
                (Verdict::Races, false) => panic!("a race is missed: {}", of()),
                (Verdict::MayBeMissed, false) => missed += 1,
                (_, true) => {
                    raced += 1;
                    late += u32::from(reference.steps.len() > 60);
                }
            }
            break;
        }
    }
    let counts = format!("{raced} told, {late} of them late, {missed} missed");
    assert!(
        raced > PROGRAMS / 2 && late > 20 && missed * 5 < raced,
        "{counts}"
    );
}
