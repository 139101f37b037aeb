//! The checker: proves the programs of all ranks before any of them runs.
//!
//! [`check()`] takes the programs of all ranks of a communicator and either proves that together
//! they compute the collective they claim, or names the rank and the step at fault. In turn:
//!
//! 1. `form`: each step by itself: places in bounds, operands and results within the limits.
//! 2. `matching`: the k-th message from a rank to another on a channel meets the k-th receive of
//!    it.
//! 3. `run`: symbolic execution of all ranks. Values are ordered reductions of (rank, chunk), so
//!    the order that the program claims is proved with the result. Vector clocks (Fidge, Mattern)
//!    show that no write touches memory whose message may still be on its way. A step that never
//!    runs is part of a cyclic wait.
//! 4. `held`: the number of slots that an executor needs for waiting messages, so that no ranks
//!    wait for each other because their slots are full.
//!
//! Step 3 runs once with separate buffers and, where the collective has such a form, once in place.
//! All is in units of chunks: a proof holds for every count of elements. It covers one segment. An
//! executor gives each segment its own slots and begins segments in order on every rank, so that
//! the first unfinished one runs on all ranks and needs none of the others.

mod error;
mod form;
mod held;
mod limits;
mod matching;
mod memory;
mod run;
mod value;

pub use error::{CheckError, Problem};
pub use limits::Limits;
pub(super) use matching::Message;
pub(super) use run::Seen;
pub use value::Value;

use super::{Order, Program};

/// Whether source and destination may share memory as [`Program::in_place`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InPlace {
    /// Proved.
    Safe,
    /// The collective has no such form.
    None,
    /// The result would be wrong; the programs are right only with separate buffers.
    Unsafe(CheckError),
}

/// The result of [`check()`]: proved properties, and the resources of the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Ranks.
    pub ranks: u32,
    /// Steps of all ranks.
    pub steps: usize,
    /// Rounds: columns of the state table that hold an operand.
    pub rounds: u32,
    /// Messages of all ranks.
    pub messages: usize,
    /// Chunks in them.
    pub message_chunks: u64,
    /// The most messages that one rank sends.
    pub messages_per_rank: usize,
    /// High-water mark of NIC memory: one more than the highest slot that a rank uses.
    pub scratch_chunks: u32,
    /// Values that an executor must be able to hold for messages that it converts: with fewer slots
    /// ranks may wait for each other's for ever.
    pub held: u32,
    /// In place.
    pub in_place: InPlace,
    /// Order of reduction.
    pub order: Order,
    /// Identifies the programs of all ranks: the same in every process that generated or loaded the
    /// same ones.
    pub hash: u64,
}

/// Proves that `programs`, one for each rank in order, compute the collective that they claim.
///
/// # Errors
/// The fault, with its rank and step.
pub fn check(programs: &[Program], limits: &Limits) -> Result<Proof, CheckError> {
    form::check(programs, limits)?;
    let messages = matching::match_messages(programs)?;
    matching::check_put_aside(programs, &messages, limits)?;
    run::run(programs, &messages, false)?;
    let in_place = if programs.iter().any(|p| p.in_place().is_some()) {
        match run::run(programs, &messages, true) {
            Ok(_) => InPlace::Safe,
            Err(error) => InPlace::Unsafe(error),
        }
    } else {
        InPlace::None
    };
    let per_rank = |p: &Program| p.steps.iter().map(super::Step::messages).sum::<usize>();
    Ok(Proof {
        ranks: programs.len() as u32,
        steps: programs.iter().map(|p| p.steps.len()).sum(),
        rounds: programs.iter().map(Program::rounds).max().unwrap_or(0),
        messages: programs.iter().map(per_rank).sum(),
        message_chunks: programs.iter().map(Program::sent_chunks).sum(),
        messages_per_rank: programs.iter().map(per_rank).max().unwrap_or(0),
        scratch_chunks: programs.iter().map(form::scratch_used).max().unwrap_or(0),
        held: held::slots(programs, &messages),
        in_place,
        order: programs.first().map_or(Order::None, |p| p.order),
        hash: super::hash_all(programs),
    })
}

/// Checks a program by itself: places, operands and resources within the limits.
pub(super) fn check_form(program: &Program, limits: &Limits) -> Result<(), CheckError> {
    form::check_one(program, limits)
}

/// The values that each step of each rank sees, and the messages: for the state table.
///
/// # Errors
/// As [`check()`].
pub(super) fn observe(
    programs: &[Program],
    limits: &Limits,
) -> Result<(Vec<Vec<Seen>>, Vec<Message>), CheckError> {
    form::check(programs, limits)?;
    let messages = matching::match_messages(programs)?;
    let seen = run::run(programs, &messages, false)?;
    Ok((seen, messages.all))
}

#[cfg(test)]
mod mutation;
#[cfg(test)]
mod tests;
