//! Symbolic execution of all ranks.
//!
//! Ranks run in any order until they wait for a message. A rank touches its own memory only, and a
//! message's value is fixed when it is sent, so the order makes no difference; a program in which
//! it would is refused as a race, or for an overwritten message. Each rank carries a vector clock:
//! how many steps of every other rank are known to be over.

use std::collections::VecDeque;

use ringbell_nic_abi::CollectiveKind;

use super::error::{CheckError, Problem, Where};
use super::matching::Messages;
use super::memory::{PendingRead, RankMemory, Touched};
use super::value::{Algebra, Refused, Value};
use crate::program::{Chunks, Operand, Place, Program, Step, Target};

/// The values of a step, for the state table.
#[derive(Debug, Clone, Default)]
pub(in crate::program) struct Seen {
    /// First and last chunk of each operand.
    pub(in crate::program) operands: Vec<(Value, Value)>,
    /// First and last chunk of the step's value; nothing for one without payload.
    pub(in crate::program) value: Option<(Value, Value)>,
}

/// Runs all programs, verifies the destinations, and returns the values of each rank's steps.
pub(super) fn run(
    programs: &[Program],
    messages: &Messages,
    in_place: bool,
) -> Result<Vec<Vec<Seen>>, CheckError> {
    let Some(zero) = programs.first() else {
        return Ok(Vec::new());
    };
    let algebra = Algebra::new(zero);
    let memory = |p| RankMemory::new(p, &algebra, in_place);
    let mut run = SymbolicRun {
        programs,
        messages,
        memories: programs.iter().map(memory).collect(),
        algebra,
        ranks: vec![SymbolicRank::default(); programs.len()],
        in_flight: (0..messages.all.len()).map(|_| None).collect(),
        direct: programs.iter().any(Program::is_direct),
        value: Vec::new(),
        mark: 0,
        seen: vec![Vec::new(); programs.len()],
    };
    for rank in &mut run.ranks {
        rank.clock = vec![0; programs.len()];
    }
    run.all()?;
    run.results()?;
    run.barrier()?;
    Ok(run.seen)
}

/// Index in a mark: this chunk may not be written (again) by the step.
const MIXED: u32 = u32::MAX;

/// A message on its way.
#[derive(Debug)]
struct MessageInFlight {
    values: Vec<Value>,
    clock: Vec<u32>,
}

/// The state of a rank.
#[derive(Debug, Clone, Default)]
struct SymbolicRank {
    step: usize,
    sent: usize,
    received: usize,
    /// Steps of every rank that are over when this rank's present step runs.
    clock: Vec<u32>,
    popped: u32,
    pushed: Vec<Value>,
}

struct SymbolicRun<'a> {
    programs: &'a [Program],
    messages: &'a Messages,
    memories: Vec<RankMemory>,
    algebra: Algebra,
    ranks: Vec<SymbolicRank>,
    in_flight: Vec<Option<MessageInFlight>>,
    direct: bool,
    /// The present step's value, chunk by chunk.
    value: Vec<Value>,
    mark: u64,
    /// By rank and step.
    seen: Vec<Vec<Seen>>,
}

impl SymbolicRun<'_> {
    /// Runs every rank to its end.
    fn all(&mut self) -> Result<(), CheckError> {
        let programs = self.programs;
        let mut ready: VecDeque<usize> = (0..programs.len()).collect();
        while let Some(rank) = ready.pop_front() {
            while let Some(step) = programs[rank].steps.get(self.ranks[rank].step) {
                if !self.arrived(rank, step) {
                    break;
                }
                let index = self.ranks[rank].step;
                self.step(rank, index, step, &mut ready)
                    .map_err(|at| at.error(rank as u32, index))?;
                self.ranks[rank].step += 1;
                self.ranks[rank].clock[rank] += 1;
            }
        }
        self.cyclic_wait()
    }

    /// Whether all messages of a step are there.
    fn arrived(&self, rank: usize, step: &Step) -> bool {
        let receives = &self.messages.receives[rank][self.ranks[rank].received..];
        let wanted = step.operands.iter().filter(|o| is_net(o)).count();
        receives
            .iter()
            .take(wanted)
            .all(|m| self.in_flight[*m].is_some())
    }

    fn step(
        &mut self,
        rank: usize,
        index: usize,
        step: &Step,
        ready: &mut VecDeque<usize>,
    ) -> Result<(), At> {
        self.mark += 1;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        self.seen[rank].push(Seen::default());
        for (i, operand) in step.operands.iter().enumerate() {
            self.operand(rank, step, operand, i == 0, &mut value)?;
        }
        for target in &step.results {
            self.target(rank, index, step, target, &value)?;
        }
        if let (Some(first), Some(last)) = (value.first(), value.last()) {
            self.seen[rank][index].value = Some((*first, *last));
        }
        self.send(rank, index, step, &value, ready);
        self.value = value;
        Ok(())
    }

    /// Reads an operand, and reduces it into `value` unless it is the first.
    fn operand(
        &mut self,
        rank: usize,
        step: &Step,
        operand: &Operand,
        first: bool,
        value: &mut Vec<Value>,
    ) -> Result<(), At> {
        let mut seen: Option<(Value, Value)> = None;
        let mut add = |algebra: &mut Algebra, i: usize, next: Value| -> Result<(), At> {
            seen = Some((seen.map_or(next, |s| s.0), next));
            if first {
                value.push(next);
                return Ok(());
            }
            let a = value[i];
            value[i] = algebra.reduce(a, next).map_err(|r| refused(r, a, next))?;
            Ok(())
        };
        match *operand {
            Operand::Net { .. } => {
                let r = &mut self.ranks[rank];
                let number = self.messages.receives[rank][r.received];
                r.received += 1;
                let message = self.messages.all[number];
                // `arrived` said so.
                let Some(taken) = self.in_flight[number].take() else {
                    return Ok(());
                };
                for (ours, theirs) in r.clock.iter_mut().zip(&taken.clock) {
                    *ours = (*ours).max(*theirs);
                }
                let known = &mut r.clock[message.from as usize];
                *known = (*known).max(message.sent as u32 + 1);
                for (i, next) in taken.values.into_iter().enumerate() {
                    add(&mut self.algebra, i, next)?;
                }
            }
            Operand::Stream => {
                let from = self.ranks[rank].popped;
                self.ranks[rank].popped += step.chunks;
                for i in 0..step.chunks {
                    let next = self.algebra.source(rank as u32, from + i);
                    add(&mut self.algebra, i as usize, next)?;
                }
            }
            Operand::Local(_) | Operand::Peer { .. } => {
                let (owner, place) = memory_of(rank, operand);
                for i in 0..step.chunks {
                    let at = self.memories[owner].index(place, i);
                    let cell = &mut self.memories[owner].cells[at];
                    let other = cell.mark.0 == self.mark && cell.mark.1 != i;
                    cell.mark = (self.mark, if other { MIXED } else { i });
                    let next = cell.value;
                    if next == Value::Nothing {
                        return Err(Problem::ReadBeforeWrite {
                            place: named(rank, owner, place),
                            chunk: place.chunks().first + i,
                        }
                        .into());
                    }
                    if self.direct {
                        self.touch(rank, owner, place, i, false)?;
                    }
                    add(&mut self.algebra, i as usize, next)?;
                }
            }
        }
        if let (Some(seen), Some(step)) = (seen, self.seen[rank].last_mut()) {
            step.operands.push(seen);
        }
        Ok(())
    }

    /// Stores `value` to a result, unless that is the network.
    fn target(
        &mut self,
        rank: usize,
        index: usize,
        step: &Step,
        target: &Target,
        value: &[Value],
    ) -> Result<(), At> {
        let (owner, place) = match *target {
            Target::Local(place) => (rank, place),
            Target::Peer { rank, place } => (rank as usize, place),
            Target::Net { .. } => return Ok(()),
            Target::Stream => {
                self.ranks[rank].pushed.extend_from_slice(value);
                return Ok(());
            }
        };
        for (i, new) in (0..).zip(value) {
            let at = self.memories[owner].index(place, i);
            if self.is_copy_to_itself(rank, owner, at, step, i) {
                continue;
            }
            let mark = self.memories[owner].cells[at].mark;
            if mark.0 == self.mark && mark.1 != i {
                return Err(self.overlap(rank, owner, place, at, step));
            }
            if self.direct {
                self.touch(rank, owner, place, i, true)?;
            }
            let clock = &self.ranks[rank].clock;
            let cell = &mut self.memories[owner].cells[at];
            if let Some(pending) = cell
                .pending
                .iter()
                .find(|p| (clock[p.to as usize] as usize) <= p.taken)
            {
                return Err(Problem::OverwritesMessage {
                    place: named(rank, owner, place),
                    chunk: place.chunks().first + i,
                    sent: pending.sent,
                    to: pending.to,
                }
                .into());
            }
            cell.pending.clear();
            cell.value = *new;
            cell.writer = Some((rank as u32, index));
            // Another result of this step must lie elsewhere; an operand was read by now.
            cell.mark = (self.mark, MIXED);
        }
        Ok(())
    }

    /// Whether a step only moves a chunk onto itself, which in place is no write.
    fn is_copy_to_itself(&self, rank: usize, owner: usize, at: usize, step: &Step, i: u32) -> bool {
        let [operand] = &step.operands[..] else {
            return false;
        };
        if !matches!(operand, Operand::Local(_) | Operand::Peer { .. }) {
            return false;
        }
        let (from, place) = memory_of(rank, operand);
        from == owner && self.memories[owner].index(place, i) == at
    }

    /// The place of the step that shares cell `at` with `place`.
    fn overlap(&self, rank: usize, owner: usize, place: Place, at: usize, step: &Step) -> At {
        let operands = step.operands.iter().filter_map(|o| match o {
            Operand::Local(_) | Operand::Peer { .. } => Some(memory_of(rank, o)),
            _ => None,
        });
        let results = step.results.iter().filter_map(|t| match *t {
            Target::Local(place) => Some((rank, place)),
            Target::Peer { rank, place } => Some((rank as usize, place)),
            _ => None,
        });
        let memory = &self.memories[owner];
        let shares = |(of, other): &(usize, Place)| {
            *of == owner && (0..step.chunks).any(|i| memory.index(*other, i) == at)
        };
        let a = operands.chain(results).find(shares);
        let a = a.map_or(place, |(_, place)| place);
        Problem::Overlap {
            a: named(rank, owner, a),
            b: named(rank, owner, place),
        }
        .into()
    }

    /// Notes that `rank` touches a chunk while the ranks run unordered.
    fn touch(
        &mut self,
        rank: usize,
        owner: usize,
        place: Place,
        i: u32,
        write: bool,
    ) -> Result<(), At> {
        let at = self.memories[owner].index(place, i);
        let touched = &mut self.memories[owner].cells[at].touched;
        let me = rank as u32;
        let race = |other| {
            Problem::Race {
                place: named(rank, owner, place),
                chunk: place.chunks().first + i,
                other,
            }
            .into()
        };
        *touched = match (*touched, write) {
            (Touched::No, false) => Touched::Read(me),
            (Touched::Read(r), false) if r == me => Touched::Read(me),
            (Touched::Read(_) | Touched::ReadByMany, false) => Touched::ReadByMany,
            (Touched::Read(r), true) if r != me => return Err(race(r)),
            // One of the readers is not this rank: name the owner, who is the likeliest.
            (Touched::ReadByMany, true) => return Err(race(owner as u32)),
            (Touched::Written(r), _) if r != me => return Err(race(r)),
            (Touched::Written(_), _) | (_, true) => Touched::Written(me),
        };
        Ok(())
    }

    /// Issues the messages of a step.
    fn send(
        &mut self,
        rank: usize,
        index: usize,
        step: &Step,
        value: &[Value],
        ready: &mut VecDeque<usize>,
    ) {
        for _ in 0..step.messages() {
            let number = self.messages.sends[rank][self.ranks[rank].sent];
            self.ranks[rank].sent += 1;
            let message = self.messages.all[number];
            if let Some(home) = step.home() {
                for i in 0..step.chunks {
                    let at = self.memories[rank].index(home, i);
                    self.memories[rank].cells[at].pending.push(PendingRead {
                        to: message.to,
                        taken: message.taken,
                        sent: index,
                    });
                }
            }
            self.in_flight[number] = Some(MessageInFlight {
                values: value.to_vec(),
                clock: self.ranks[rank].clock.clone(),
            });
            ready.push_back(message.to as usize);
        }
    }

    /// Finds the ranks that wait for each other, if some are not at their end.
    fn cyclic_wait(&self) -> Result<(), CheckError> {
        let waits = |rank: usize| {
            let step = self.programs[rank].steps.get(self.ranks[rank].step)?;
            let receives = &self.messages.receives[rank][self.ranks[rank].received..];
            let wanted = step.operands.iter().filter(|o| is_net(o)).count();
            let missing = receives
                .iter()
                .take(wanted)
                .find(|m| self.in_flight[**m].is_none())?;
            Some(self.messages.all[*missing].from)
        };
        let Some(mut at) = (0..self.programs.len()).find(|r| waits(*r).is_some()) else {
            return Ok(());
        };
        // Each sender that is waited for waits itself, or it would have sent: so this comes round.
        let mut seen = vec![false; self.programs.len()];
        while !seen[at] {
            seen[at] = true;
            at = waits(at).map_or(at, |on| on as usize);
        }
        let start = at;
        let mut cycle = Vec::new();
        while let Some(on) = waits(at) {
            cycle.push((at as u32, self.ranks[at].step, on));
            at = on as usize;
            if at == start {
                break;
            }
        }
        let problem = Problem::CyclicWait { cycle };
        Err(CheckError::new(
            start as u32,
            self.ranks[start].step,
            problem,
        ))
    }

    /// Verifies every destination.
    fn results(&self) -> Result<(), CheckError> {
        for (rank, p) in self.programs.iter().enumerate() {
            let streamed = !self.ranks[rank].pushed.is_empty();
            for chunk in 0..p.output_chunks {
                let cell = self.memories[rank].output_cell(chunk);
                let (has, writer) = if streamed {
                    let pushed = self.ranks[rank].pushed.get(chunk as usize);
                    (pushed.copied().unwrap_or(Value::Nothing), None)
                } else {
                    (cell.value, cell.writer)
                };
                self.algebra.verify(p, chunk, has).map_err(|wanted| {
                    let place = Place::Output(Chunks::one(chunk));
                    let (by, step) = match writer {
                        Some((by, step)) => (by, Some(step)),
                        None => (rank as u32, None),
                    };
                    let problem = Problem::WrongResult {
                        place: named(by as usize, rank, place),
                        has,
                        wanted,
                    };
                    CheckError::new(by, step, problem)
                })?;
            }
        }
        Ok(())
    }

    /// Verifies that no rank leaves a barrier before all have come.
    fn barrier(&self) -> Result<(), CheckError> {
        let zero = &self.programs[0];
        if zero.kind != CollectiveKind::Barrier || self.direct {
            return Ok(());
        }
        for (rank, state) in self.ranks.iter().enumerate() {
            let unheard = |(q, known): &(usize, &u32)| *q != rank && **known == 0;
            if let Some((other, _)) = state.clock.iter().enumerate().find(unheard) {
                let problem = Problem::Barrier {
                    other: other as u32,
                };
                return Err(CheckError::new(rank as u32, None, problem));
            }
        }
        Ok(())
    }
}

/// A problem in the step that runs.
struct At(Box<Problem>);

impl At {
    fn error(self, rank: u32, step: usize) -> CheckError {
        CheckError::new(rank, step, *self.0)
    }
}

impl From<Problem> for At {
    fn from(problem: Problem) -> At {
        At(Box::new(problem))
    }
}

fn refused(why: Refused, a: Value, b: Value) -> At {
    match why {
        Refused::Reduces => Problem::Reduces,
        Refused::Chunks => Problem::MixesChunks { a, b },
        Refused::Twice(contributor) => Problem::ReducedTwice { a, b, contributor },
        Refused::Order(wanted) => Problem::OutOfOrder { a, b, wanted },
    }
    .into()
}

fn is_net(operand: &Operand) -> bool {
    matches!(operand, Operand::Net { .. })
}

/// Owner and place of an operand that lies in memory.
fn memory_of(rank: usize, operand: &Operand) -> (usize, Place) {
    match *operand {
        Operand::Peer { rank, place } => (rank as usize, place),
        Operand::Local(place) => (rank, place),
        // Not in memory: an empty place, never read.
        Operand::Net { .. } | Operand::Stream => {
            (rank, Place::Scratch(Chunks { first: 0, count: 0 }))
        }
    }
}

/// A place as rank `rank` names it.
fn named(rank: usize, owner: usize, place: Place) -> Where {
    Where {
        of: (owner != rank).then_some(owner as u32),
        place,
    }
}
