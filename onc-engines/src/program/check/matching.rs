//! Matching of messages and receives: of one sender, receiver and channel the k-th meets the k-th.

use std::collections::{BTreeMap, VecDeque};

use super::error::{CheckError, Problem};
use super::form;
use super::limits::Limits;
use crate::program::{Operand, Program, Target};

/// A message, from the step that sends it to the step that takes it.
#[derive(Debug, Clone, Copy)]
pub(in crate::program) struct Message {
    pub(in crate::program) from: u32,
    pub(in crate::program) sent: usize,
    pub(in crate::program) to: u32,
    pub(in crate::program) taken: usize,
}

/// All messages.
#[derive(Debug)]
pub(super) struct Messages {
    /// By number.
    pub(super) all: Vec<Message>,
    /// For each rank the numbers of the messages that it sends, in the order of its steps and their
    /// results.
    pub(super) sends: Vec<Vec<usize>>,
    /// For each rank the numbers of the messages that it receives, in the order of its steps and
    /// their operands.
    pub(super) receives: Vec<Vec<usize>>,
}

/// Matches all sends and receives.
pub(super) fn match_messages(programs: &[Program]) -> Result<Messages, CheckError> {
    let mut all: Vec<Message> = Vec::new();
    let mut sends: Vec<Vec<usize>> = vec![Vec::new(); programs.len()];
    let mut waiting: BTreeMap<(u32, u32, u8), VecDeque<usize>> = BTreeMap::new();
    for p in programs {
        for (index, step) in p.steps.iter().enumerate() {
            for target in &step.results {
                if let Target::Net { to, channel } = *target {
                    let number = all.len();
                    all.push(Message {
                        from: p.rank,
                        sent: index,
                        to,
                        taken: usize::MAX,
                    });
                    sends[p.rank as usize].push(number);
                    let key = (p.rank, to, channel);
                    waiting.entry(key).or_default().push_back(number);
                }
            }
        }
    }
    let extents: Vec<_> = programs.iter().map(form::extents).collect();
    let mut receives: Vec<Vec<usize>> = vec![Vec::new(); programs.len()];
    let (mut missing, mut mismatch) = (None, None);
    for p in programs {
        for (index, step) in p.steps.iter().enumerate() {
            for operand in &step.operands {
                let Operand::Net { from, channel } = *operand else {
                    continue;
                };
                let queue = waiting.get_mut(&(from, p.rank, channel));
                let Some(number) = queue.and_then(VecDeque::pop_front) else {
                    let problem = Problem::MissingSend { from, channel };
                    missing.get_or_insert_with(|| CheckError::new(p.rank, index, problem));
                    continue;
                };
                let message = &mut all[number];
                message.taken = index;
                let sent = extents[from as usize][message.sent];
                let wanted = extents[p.rank as usize][index];
                if sent != wanted {
                    let problem = Problem::MessageLength {
                        from,
                        step: message.sent,
                        channel,
                        sent,
                        wanted,
                    };
                    mismatch.get_or_insert_with(|| CheckError::new(p.rank, index, problem));
                }
                receives[p.rank as usize].push(number);
            }
        }
    }
    // A message with a wrong address leaves one send and one receive over, and shifts those behind
    // it: the send is the cause.
    for ((_, to, channel), left) in &waiting {
        if let Some(number) = left.front() {
            let (from, sent) = (all[*number].from, all[*number].sent);
            let problem = Problem::MissingReceive {
                to: *to,
                channel: *channel,
            };
            return Err(CheckError::new(from, sent, problem));
        }
    }
    match missing.or(mismatch) {
        Some(error) => Err(error),
        None => Ok(Messages {
            all,
            sends,
            receives,
        }),
    }
}

/// Checks that no receiver must put more messages of one sender aside than it can.
///
/// The messages of a sender arrive in the order of sending on one stream, so one that is not wanted
/// yet must be put aside before a later one can be taken.
pub(super) fn check_put_aside(
    programs: &[Program],
    messages: &Messages,
    limits: &Limits,
) -> Result<(), CheckError> {
    for (rank, receives) in messages.receives.iter().enumerate() {
        let rank = rank as u32;
        let mut streams: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for number in receives {
            let from = messages.all[*number].from;
            streams.entry(from).or_default().push(*number);
        }
        for (from, wanted) in streams {
            let sent = &messages.sends[from as usize];
            let mut arriving = sent.iter().filter(|m| messages.all[**m].to == rank);
            let mut aside: Vec<usize> = Vec::new();
            for number in wanted {
                if let Some(at) = aside.iter().position(|m| *m == number) {
                    aside.remove(at);
                    continue;
                }
                aside.extend(arriving.by_ref().take_while(|m| **m != number));
                if aside.len() > limits.put_aside {
                    let problem = Problem::PutAside {
                        from,
                        ahead: aside.len(),
                        limit: limits.put_aside,
                    };
                    let step = messages.all[number].taken;
                    return Err(CheckError::new(programs[rank as usize].rank, step, problem));
                }
            }
        }
    }
    Ok(())
}
