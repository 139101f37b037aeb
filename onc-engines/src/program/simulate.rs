//! A reference executor: the programs of all ranks on data in memory, in one thread.
//!
//! A slow and simple model against which tests hold real executors. A seed draws which rank runs
//! next, and when a message leaves the sender's memory: at once, or as late as the moment it is
//! taken. So a program that depends on timing fails.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::{Layout, Operand, Place, Program, Step, Target};

/// Why a simulation cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// Not one source for each rank, or of the wrong length.
    #[error("rank {rank}'s source has {has} elements, the program wants {wanted}")]
    Source {
        /// Whose.
        rank: usize,
        /// Given.
        has: usize,
        /// Wanted.
        wanted: usize,
    },
    /// More elements than memory.
    #[error("{elements} elements are more than this machine's memory has addresses for")]
    TooLarge {
        /// Of one rank.
        elements: u64,
    },
    /// All ranks wait. The checker refuses such programs.
    #[error("rank {rank} waits in step {step} for ever")]
    Stuck {
        /// A rank that waits.
        rank: usize,
        /// Its step.
        step: usize,
    },
    /// A read of memory that was not written, or of a message of another length. The checker
    /// refuses such programs.
    #[error("rank {rank}, step {step}: the value is missing or of the wrong length")]
    Value {
        /// Whose.
        rank: usize,
        /// Its step.
        step: usize,
    },
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<T> {
    /// Each rank's destination; `None` for an element that was never written.
    pub outputs: Vec<Vec<Option<T>>>,
    /// Steps that ran.
    pub steps: usize,
    /// Messages that were taken.
    pub messages: usize,
}

/// Runs the programs of all ranks.
///
/// `count` is the elements of a block, `sources` has every rank's source buffer (`input_chunks`
/// chunks of it), `reduce` is the operation. With `in_place` source and destination share memory
/// where [`Program::in_place`] says so. The programs should have passed [`check`](super::check());
/// others end with an error, or with wrong data.
///
/// # Errors
/// Sources that do not fit, or a program that the checker would have refused.
pub fn simulate<T: Clone>(
    programs: &[Program],
    count: u64,
    sources: &[Vec<T>],
    in_place: bool,
    reduce: impl Fn(&T, &T) -> T,
    seed: u64,
) -> Result<Outcome<T>, SimulateError> {
    let mut ranks = Vec::with_capacity(programs.len());
    for (rank, program) in programs.iter().enumerate() {
        let source = sources.get(rank).map_or(&[][..], Vec::as_slice);
        ranks.push(SimulatedRank::new(program, count, source, in_place)?);
    }
    let mut world = Simulation {
        programs,
        ranks,
        channels: BTreeMap::new(),
        draw: Draw(seed ^ 0x9e37_79b9_7f4a_7c15),
        outcome: Outcome {
            outputs: Vec::new(),
            steps: 0,
            messages: 0,
        },
    };
    world.run(&reduce)?;
    let output = |r: &SimulatedRank<T>| r.memory[r.output.clone()].to_vec();
    world.outcome.outputs = world.ranks.iter().map(output).collect();
    Ok(world.outcome)
}

/// A stream of numbers from a seed (xorshift64*).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let x = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(x) * n as u128) >> 64) as usize
    }
}

/// A message: still in the sender's memory, or out of it.
enum Message<T> {
    At(usize, Range<usize>),
    Out(Vec<Option<T>>),
}

struct SimulatedRank<T> {
    step: usize,
    layout: Layout,
    memory: Vec<Option<T>>,
    input: Range<usize>,
    output: Range<usize>,
    scratch: Range<usize>,
    popped: u32,
    pushed: u32,
}

impl<T: Clone> SimulatedRank<T> {
    fn new(
        program: &Program,
        count: u64,
        source: &[T],
        in_place: bool,
    ) -> Result<SimulatedRank<T>, SimulateError> {
        let layout = Layout {
            count,
            block_chunks: program.block_chunks,
        };
        let elements = |chunks: u32| {
            let elements = layout.chunk(chunks).start;
            usize::try_from(elements).map_err(|_| SimulateError::TooLarge { elements })
        };
        let (inputs, outputs) = (
            elements(program.input_chunks)?,
            elements(program.output_chunks)?,
        );
        if source.len() != inputs {
            return Err(SimulateError::Source {
                rank: program.rank as usize,
                has: source.len(),
                wanted: inputs,
            });
        }
        // In place one buffer begins inside of the other.
        let (input, output) = match program.in_place().filter(|_| in_place) {
            Some((i, o)) => (elements(o)?, elements(i)?),
            None => (0, inputs),
        };
        let end = (input + inputs).max(output + outputs);
        let scratch = elements(program.scratch_chunks)?;
        let mut memory = vec![None; end + scratch];
        for (place, value) in memory[input..].iter_mut().zip(source) {
            *place = Some(value.clone());
        }
        Ok(SimulatedRank {
            step: 0,
            layout,
            memory,
            input: input..input + inputs,
            output: output..output + outputs,
            scratch: end..end + scratch,
            popped: 0,
            pushed: 0,
        })
    }

    /// The elements of a place.
    fn range(&self, place: Place) -> Range<usize> {
        let base = match place {
            Place::Input(_) => self.input.start,
            Place::Output(_) => self.output.start,
            Place::Scratch(_) => self.scratch.start,
        };
        let chunks = place.chunks();
        // Fits: the whole memory was allocated.
        let (first, end) = (
            self.layout.chunk(chunks.first).start as usize,
            self.layout.chunk(chunks.end()).start as usize,
        );
        base + first..base + end
    }
}

struct Simulation<'a, T> {
    programs: &'a [Program],
    ranks: Vec<SimulatedRank<T>>,
    channels: BTreeMap<(u32, u32, u8), VecDeque<Message<T>>>,
    draw: Draw,
    outcome: Outcome<T>,
}

impl<T: Clone> Simulation<'_, T> {
    fn run(&mut self, reduce: &impl Fn(&T, &T) -> T) -> Result<(), SimulateError> {
        // The ranks that may be able to go on.
        let mut ready: Vec<usize> = (0..self.ranks.len()).collect();
        while !ready.is_empty() {
            let rank = ready[self.draw.below(ready.len())];
            let index = self.ranks[rank].step;
            let runs = match self.programs[rank].steps.get(index) {
                Some(step) if self.arrived(rank, step) => {
                    self.step(rank, step, reduce)
                        .ok_or(SimulateError::Value { rank, step: index })?;
                    for target in &step.results {
                        if let Target::Net { to, .. } = target {
                            ready.push(*to as usize);
                        }
                    }
                    self.ranks[rank].step += 1;
                    self.outcome.steps += 1;
                    true
                }
                _ => false,
            };
            if !runs {
                ready.retain(|r| *r != rank);
            }
            self.some_message_leaves();
        }
        for (rank, state) in self.ranks.iter().enumerate() {
            if state.step < self.programs[rank].steps.len() {
                let step = state.step;
                return Err(SimulateError::Stuck { rank, step });
            }
        }
        Ok(())
    }

    /// Whether all messages of a step are there.
    fn arrived(&self, rank: usize, step: &Step) -> bool {
        let mut wanted: BTreeMap<(u32, u32, u8), usize> = BTreeMap::new();
        for operand in &step.operands {
            if let Operand::Net { from, channel } = *operand {
                *wanted.entry((from, rank as u32, channel)).or_default() += 1;
            }
        }
        wanted
            .iter()
            .all(|(key, n)| self.channels.get(key).is_some_and(|c| c.len() >= *n))
    }

    /// One message, drawn by chance, leaves its sender's memory.
    fn some_message_leaves(&mut self) {
        let waiting = self.channels.len();
        if waiting == 0 || self.draw.below(2) == 0 {
            return;
        }
        let nth = self.draw.below(waiting);
        if let Some(message) = self
            .channels
            .values_mut()
            .nth(nth)
            .and_then(|c| c.front_mut())
        {
            if let Message::At(rank, range) = message {
                *message = Message::Out(self.ranks[*rank].memory[range.clone()].to_vec());
            }
        }
    }

    fn step(&mut self, rank: usize, step: &Step, reduce: &impl Fn(&T, &T) -> T) -> Option<()> {
        let mut value: Option<Vec<Option<T>>> = None;
        for operand in &step.operands {
            let next = self.operand(rank, step, operand)?;
            value = Some(match value {
                None => next,
                Some(left) if left.len() == next.len() => left
                    .iter()
                    .zip(&next)
                    .map(|(a, b)| Some(reduce(a.as_ref()?, b.as_ref()?)))
                    .collect(),
                Some(_) => return None,
            });
        }
        let value = value.unwrap_or_default();
        for target in &step.results {
            let (owner, place) = match *target {
                Target::Local(place) => (rank, place),
                Target::Peer { rank, place } => (rank as usize, place),
                Target::Stream => {
                    let first = self.ranks[rank].pushed;
                    self.ranks[rank].pushed += step.chunks;
                    let count = step.chunks;
                    (rank, Place::Output(super::Chunks { first, count }))
                }
                Target::Net { .. } => continue,
            };
            let range = self.ranks[owner].range(place);
            let memory = self.ranks[owner].memory.get_mut(range)?;
            if memory.len() != value.len() {
                return None;
            }
            memory.clone_from_slice(&value);
        }
        for target in &step.results {
            if let Target::Net { to, channel } = *target {
                let message = match step.home() {
                    Some(home) => Message::At(rank, self.ranks[rank].range(home)),
                    None => Message::Out(value.clone()),
                };
                let key = (rank as u32, to, channel);
                self.channels.entry(key).or_default().push_back(message);
            }
        }
        Some(())
    }

    fn operand(&mut self, rank: usize, step: &Step, operand: &Operand) -> Option<Vec<Option<T>>> {
        let (owner, place) = match *operand {
            Operand::Local(place) => (rank, place),
            Operand::Peer { rank, place } => (rank as usize, place),
            Operand::Stream => {
                let first = self.ranks[rank].popped;
                self.ranks[rank].popped += step.chunks;
                let count = step.chunks;
                (rank, Place::Input(super::Chunks { first, count }))
            }
            Operand::Net { from, channel } => {
                let key = (from, rank as u32, channel);
                self.outcome.messages += 1;
                let message = self.channels.get_mut(&key)?.pop_front()?;
                return Some(match message {
                    Message::Out(values) => values,
                    Message::At(owner, range) => self.ranks[owner].memory[range].to_vec(),
                });
            }
        };
        let range = self.ranks[owner].range(place);
        let values = self.ranks[owner].memory.get(range)?;
        values.iter().all(Option::is_some).then(|| values.to_vec())
    }
}

#[cfg(test)]
mod tests;
