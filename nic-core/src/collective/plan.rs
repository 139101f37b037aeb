//! Plans: one rank's programs by shape, with the data that the executor would otherwise compute for
//! every segment.
//!
//! A user's programs are proved when they are loaded. A generated one is made for this rank alone:
//! its [family](program::Family) says what it must know of the others'.

use std::sync::Arc;

use onc::program::{
    self, Family, HostRanks, InPlace, Limits, Operand, Order, Place, Program, Target,
};
use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_onc_engines as onc;
use rustc_hash::FxHashMap;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No generator.
    #[error(transparent)]
    Generate(#[from] program::GenerateError),
    /// The programs are wrong.
    #[error(transparent)]
    Check(#[from] program::CheckError),
    /// More messages between two ranks than tags can distinguish.
    #[error("{messages} messages between two ranks on one channel; at most {MAX_MESSAGES}")]
    Messages {
        /// How many.
        messages: u32,
    },
    /// A user program that does not reduce in the order of the ranks.
    #[error("the program for {kind:?} does not reduce in the order of the ranks, which the setting `deterministic` asks for: write one that claims `order rank`")]
    NotStrict {
        /// The collective.
        kind: CollectiveKind,
    },
    /// A user program for this shape was not loaded.
    #[error("no program for {kind:?} is loaded; load it first")]
    NotLoaded {
        /// The collective.
        kind: CollectiveKind,
    },
}

/// Messages of one segment from one rank to another on one channel.
pub(crate) const MAX_MESSAGES: u32 = 1 << 13;
/// Receive slots of an instance beyond what its largest step needs, so that receives are posted
/// ahead.
const TEMPS_AHEAD: u32 = 4;

/// A message that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetRecv {
    pub(crate) from: u32,
    pub(crate) channel: u8,
    /// How many came before it from that rank on that channel.
    pub(crate) index: u32,
}

/// Where an operand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Local(Place),
    Net(NetRecv),
}

/// A message that a step sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetSend {
    pub(crate) to: u32,
    pub(crate) channel: u8,
    pub(crate) index: u32,
}

/// A step, resolved.
#[derive(Debug, Clone)]
pub(crate) struct PlanStep {
    pub(crate) sources: Box<[Source]>,
    /// Local results.
    pub(crate) stores: Box<[Place]>,
    pub(crate) sends: Box<[NetSend]>,
    /// Memory that the messages leave from.
    pub(crate) home: Option<Place>,
    /// Any place of the step: it defines how many elements the value has.
    pub(crate) shape: Option<Place>,
    pub(crate) chunks: u32,
    /// A message of a single operand goes straight to the first local result.
    pub(crate) lands: bool,
    /// No earlier step from this one on uses the memory where the message arrives.
    pub(crate) free_after: u32,
    /// Earlier steps whose messages leave from that memory.
    pub(crate) senders: Box<[u32]>,
}

impl PlanStep {
    /// Whether it does nothing but send memory to one rank, and the memory of which.
    fn sends_only(&self) -> Option<Place> {
        match (&self.sources[..], &self.stores[..], &self.sends[..]) {
            ([Source::Local(_)], [], [_]) => self.home,
            _ => None,
        }
    }
}

/// A program that may run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Without its steps: those below stand for them.
    pub(crate) program: Program,
    pub(crate) steps: Vec<PlanStep>,
    /// Identifies the programs of all ranks.
    pub(crate) hash: u32,
    /// Source and destination may coincide as `Program::in_place` says.
    pub(crate) in_place_safe: bool,
    pub(crate) slots: Slots,
    /// Slots of the rank that needs most, as messages are and converted: segments must be cut
    /// alike.
    most_slots: [u32; 2],
}

/// The shape of a program: it does not depend on the count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Collective.
    pub kind: CollectiveKind,
    /// Algorithm, never `AUTO`.
    pub algo: Algorithm,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// Root, where there is one.
    pub root: u32,
    /// Whether source and destination are the same memory.
    pub in_place: bool,
    /// Where something is reduced.
    pub order: Order,
    /// Which ranks share a host, for programs that depend on it; else 0.
    pub host_ranks: HostRanks,
}

/// What the plan of one rank takes, for tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanSize {
    /// Steps.
    pub steps: usize,
    /// Bytes of memory that the NIC keeps for it.
    pub bytes: usize,
}

/// Makes the plan of one rank's generated program, as a NIC does for the first operation of a
/// shape, and says what it takes.
///
/// # Errors
/// [`PlanError`]: there is no such program, or the executor cannot run it.
pub fn plan_size(shape: Shape) -> Result<PlanSize, PlanError> {
    generated(&shape).map(|plan| PlanSize {
        steps: plan.steps.len(),
        bytes: plan.bytes(),
    })
}

/// Plans by shape, and the programs that users have loaded.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    plans: FxHashMap<Shape, Arc<Plan>>,
    /// The one used last: most operations repeat the one before.
    last: Option<(Shape, Arc<Plan>)>,
    user: FxHashMap<(CollectiveKind, u32, u32), Vec<Program>>,
}

/// Plans kept; a program that roots vary makes one for each root.
const KEPT: usize = 1024;

impl Plans {
    /// The plan of a shape.
    pub(crate) fn of(&mut self, shape: &Shape) -> Result<Arc<Plan>, PlanError> {
        if let Some((_, p)) = self.last.as_ref().filter(|l| l.0 == *shape) {
            return Ok(p.clone());
        }
        let plan = self.find(shape)?;
        self.last = Some((shape.clone(), plan.clone()));
        Ok(plan)
    }

    fn find(&mut self, shape: &Shape) -> Result<Arc<Plan>, PlanError> {
        if let Some(p) = self.plans.get(shape) {
            return Ok(p.clone());
        }
        let plan = Arc::new(match shape.algo {
            Algorithm::User => self.loaded(shape)?,
            _ => generated(shape)?,
        });
        if self.plans.len() >= KEPT {
            self.plans.clear();
        }
        self.plans.insert(shape.clone(), plan.clone());
        Ok(plan)
    }

    fn loaded(&self, shape: &Shape) -> Result<Plan, PlanError> {
        let kind = shape.kind;
        let key = (kind, shape.ranks, shape.root);
        let programs = self.user.get(&key).ok_or(PlanError::NotLoaded { kind })?;
        let proof = program::check(programs, &Limits::default())?;
        if shape.order == Order::Rank && !matches!(proof.order, Order::Rank | Order::None) {
            return Err(PlanError::NotStrict { kind });
        }
        let mut most = Most::new(proof.held);
        programs.iter().for_each(|p| most.add(p));
        let all = Whole {
            held: proof.held,
            in_place_safe: matches!(proof.in_place, InPlace::Safe),
            hash: proof.hash,
            most,
        };
        Plan::new(programs[shape.rank as usize].clone(), &all, shape)
    }

    /// Loads a user's programs, one per rank, after proving them.
    pub(crate) fn load(&mut self, programs: Vec<Program>) -> Result<(), program::CheckError> {
        let limits = Limits {
            // The executor runs messages and own memory; `DIRECT` runs generated programs only.
            peers: false,
            ..Limits::default()
        };
        program::check(&programs, &limits)?;
        let Some(first) = programs.first() else {
            return Ok(());
        };
        let key = (first.kind, first.ranks, first.root);
        self.last = None;
        self.plans
            .retain(|s, _| s.algo != Algorithm::User || (s.kind, s.ranks, s.root) != key);
        self.user.insert(key, programs);
        Ok(())
    }
}

/// The plan of a generated program.
fn generated(shape: &Shape) -> Result<Plan, PlanError> {
    let Shape {
        kind, algo, ranks, ..
    } = *shape;
    let family = Family::new(shape.order, kind, algo, ranks, shape.root)?
        .on_hosts(shape.host_ranks.clone())?;
    let held = family.held();
    let mut most = Most::new(held);
    // One after the other: all together are several times as long as the plan.
    family.check_heaviest(&Limits::default(), |p| most.add(p))?;
    let all = Whole {
        held,
        in_place_safe: family.has_in_place(),
        hash: family.hash(),
        most,
    };
    Plan::new(family.program(shape.rank)?, &all, shape)
}

/// What a rank must know of the programs of all.
struct Whole {
    /// Values that leave at once.
    held: u32,
    /// Source and destination may coincide.
    in_place_safe: bool,
    /// Identifies them.
    hash: u64,
    /// What the rank needs that needs most.
    most: Most,
}

/// The most slots of NIC memory that one of several ranks needs.
#[derive(Debug, Clone, Copy)]
struct Most {
    /// Values that leave at once.
    held: u32,
    /// As messages are, and converted.
    slots: [u32; 2],
}

impl Most {
    fn new(held: u32) -> Most {
        Most {
            held: at_once(held),
            slots: [0; 2],
        }
    }

    /// A rank's.
    fn add(&mut self, p: &Program) {
        let needs = Slots::of(p, self.held);
        for (most, converts) in self.slots.iter_mut().zip([false, true]) {
            let all = needs.all(converts).saturating_add(p.scratch_chunks);
            *most = all.max(*most);
        }
    }
}

/// Values that an executor holds where a program needs so many at once: one is filled while another
/// leaves, even where one would do.
fn at_once(held: u32) -> u32 {
    held.max(2)
}

/// Slots for messages that a step receives before it uses them.
fn needed(step: &program::Step) -> u32 {
    let net = step.operands.iter();
    let net = net.filter(|o| matches!(o, Operand::Net { .. })).count() as u32;
    // On the wire in another type, every message is received aside.
    net * step.chunks
}

/// Slots of NIC memory that one instance has for messages, in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Messages arrive in them.
    pub(crate) inbound: u32,
    /// Converted messages leave from them, `run` of them each: the longest that there is, so that a
    /// free place is one for every message.
    pub(crate) outbound: u32,
    pub(crate) run: u32,
}

impl Slots {
    /// `held` values leave at once.
    fn of(p: &Program, held: u32) -> Slots {
        let most = p.steps.iter().map(needed).max().unwrap_or(0);
        let total: u32 = p.steps.iter().map(needed).fold(0, u32::saturating_add);
        let sent = |s: &program::Step| if s.messages() > 0 { s.chunks } else { 0 };
        let run = p.steps.iter().map(sent).max().unwrap_or(0);
        Slots {
            inbound: total.min(most.max(1).saturating_mul(TEMPS_AHEAD)),
            outbound: run.saturating_mul(held),
            run,
        }
    }

    /// All of them, in an operation that converts messages or not.
    pub(crate) fn all(&self, converts: bool) -> u32 {
        match converts {
            true => self.inbound.saturating_add(self.outbound),
            false => self.inbound,
        }
    }
}

/// Chunk numbers in one space for all memory of a rank.
struct Spaces {
    input: u32,
    output: u32,
    scratch: u32,
}

impl Spaces {
    fn of(&self, p: Place) -> std::ops::Range<u32> {
        let (base, c) = match p {
            Place::Input(c) => (self.input, c),
            Place::Output(c) => (self.output, c),
            Place::Scratch(c) => (self.scratch, c),
        };
        base + c.first..base + c.end()
    }
}

impl Plan {
    /// How many steps from this one on send the same memory to one rank each, itself included.
    pub(crate) fn same_sends(&self, step: usize) -> usize {
        let steps = self.steps.get(step..).unwrap_or_default();
        let Some(first) = steps.first().and_then(PlanStep::sends_only) else {
            return 1;
        };
        let same = steps.iter().take_while(|s| s.sends_only() == Some(first));
        same.count()
    }

    fn new(mut program: Program, all: &Whole, shape: &Shape) -> Result<Plan, PlanError> {
        let slots = Slots::of(&program, at_once(all.held));
        let shift = program.in_place().filter(|_| shape.in_place);
        // In place, chunk `i` of one buffer is chunk `o` of the other.
        let size = program.input_chunks + program.output_chunks;
        let spaces = match shift {
            Some((i, o)) => Spaces {
                input: o,
                output: i,
                scratch: size + i + o,
            },
            None => Spaces {
                input: 0,
                output: program.input_chunks,
                scratch: size,
            },
        };
        let total = spaces.scratch + program.scratch_chunks;
        let mut touched = vec![0u32; total as usize];
        let mut senders: Vec<Vec<u32>> = vec![Vec::new(); total as usize];
        let mut sent: FxHashMap<(u32, u8), u32> = FxHashMap::default();
        let mut received: FxHashMap<(u32, u8), u32> = FxHashMap::default();
        // Each is freed as soon as its successor is made.
        let theirs = std::mem::take(&mut program.steps);
        let mut steps = Vec::with_capacity(theirs.len());
        // A stream stands for a buffer whose chunks are used in order.
        let (mut popped, mut pushed) = (0, 0);
        let next = |used: &mut u32, count: u32| {
            *used += count;
            program::Chunks {
                first: *used - count,
                count,
            }
        };
        for (k, s) in theirs.into_iter().enumerate() {
            let mut sources = Vec::with_capacity(s.operands.len());
            for o in &s.operands {
                sources.push(match *o {
                    Operand::Local(p) => Source::Local(p),
                    Operand::Net { from, channel } => {
                        let n = received.entry((from, channel)).or_insert(0);
                        *n += 1;
                        Source::Net(NetRecv {
                            from,
                            channel,
                            index: *n - 1,
                        })
                    }
                    Operand::Stream => Source::Local(Place::Input(next(&mut popped, s.chunks))),
                    // `DIRECT` programs do not run here.
                    Operand::Peer { place, .. } => Source::Local(place),
                });
            }
            let (mut stores, mut sends) = (Vec::new(), Vec::new());
            for r in &s.results {
                match *r {
                    Target::Local(p) => stores.push(p),
                    Target::Net { to, channel } => {
                        let n = sent.entry((to, channel)).or_insert(0);
                        *n += 1;
                        sends.push(NetSend {
                            to,
                            channel,
                            index: *n - 1,
                        });
                    }
                    Target::Stream => stores.push(Place::Output(next(&mut pushed, s.chunks))),
                    // `DIRECT` programs do not run here.
                    Target::Peer { .. } => {}
                }
            }
            let lands = matches!(sources[..], [Source::Net(_)]) && !stores.is_empty();
            let (mut free_after, mut blocking) = (0, Vec::new());
            if lands {
                for c in spaces.of(stores[0]) {
                    free_after = free_after.max(touched[c as usize]);
                    blocking.extend(&senders[c as usize]);
                }
                blocking.sort_unstable();
                blocking.dedup();
            }
            let home = match sources[..] {
                _ if sends.is_empty() => None,
                [Source::Local(p)] => Some(p),
                _ => stores.first().copied(),
            };
            let read = sources.iter().filter_map(|s| match s {
                Source::Local(p) => Some(*p),
                _ => None,
            });
            for p in read.chain(stores.iter().copied()) {
                for c in spaces.of(p) {
                    touched[c as usize] = k as u32 + 1;
                }
            }
            for p in &stores {
                for c in spaces.of(*p) {
                    // A step that writes here has waited for them.
                    senders[c as usize].clear();
                }
            }
            if let Some(h) = home {
                for c in spaces.of(h) {
                    senders[c as usize].push(k as u32);
                }
            }
            let local = sources.iter().find_map(|s| match s {
                Source::Local(p) => Some(*p),
                _ => None,
            });
            steps.push(PlanStep {
                shape: stores.first().copied().or(local),
                sources: sources.into(),
                stores: stores.into(),
                sends: sends.into(),
                home,
                chunks: s.chunks,
                lands,
                free_after,
                senders: blocking.into(),
            });
        }
        let messages = sent.values().chain(received.values()).copied().max();
        let messages = messages.unwrap_or(0);
        if messages > MAX_MESSAGES {
            return Err(PlanError::Messages { messages });
        }
        Ok(Plan {
            hash: super::params::fold([all.hash]),
            // The proof takes a stream for memory apart from all other.
            in_place_safe: all.in_place_safe && popped + pushed == 0,
            slots,
            most_slots: all.most.slots,
            program,
            steps,
        })
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let of_step = |s: &PlanStep| {
            size_of_val(&s.sources[..])
                + size_of_val(&s.stores[..])
                + size_of_val(&s.sends[..])
                + size_of_val(&s.senders[..])
        };
        let mine: usize = self.steps.iter().map(of_step).sum();
        size_of::<Plan>() + mine + self.steps.capacity() * size_of::<PlanStep>()
    }

    /// Slots of NIC memory of the rank that needs most.
    pub(crate) fn most_slots(&self, converts: bool) -> u32 {
        self.most_slots[usize::from(converts)]
    }
}

#[cfg(test)]
mod tests;
