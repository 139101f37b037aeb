//! How much memory ranks need for the messages of a schedule.

use super::collectives::data_of;
use super::contents::source_bytes;
use super::report::GoalPlan;
use super::room::Room;
use crate::goal::Work;
use crate::simulation::{check_cluster, MEMORY_MOST, OF_AN_END, OF_A_RANK};
use crate::Failure;

/// The room begins at a multiple of this.
const PAGE: u64 = 4096;

/// Memory of each rank: its messages, its operand of collectives, and the room for messages that
/// come to it and results.
pub(super) struct Sizes(pub(super) Vec<[u64; 3]>);

impl Sizes {
    pub(super) fn of(plan: &GoalPlan) -> Result<Sizes, Failure> {
        check_cluster(&plan.cluster)?;
        let schedule = &plan.schedule;
        let (ranks, of_schedule) = (plan.cluster.ranks, schedule.ranks().len());
        if ranks != of_schedule {
            return Err(Failure::Schedule { ranks, of_schedule });
        }
        let mut sizes = vec![[0; 3]; ranks];
        let mut sums = vec![0_u64; sizes.len()];
        let mut most = 0;
        for (rank, ops) in schedule.ranks().iter().enumerate() {
            for op in ops {
                let (to, bytes) = match op.work {
                    Work::Send { to, bytes, .. } => {
                        sizes[rank][0] = bytes.max(sizes[rank][0]);
                        (to as usize, bytes)
                    }
                    Work::Collective { kind, bytes } => {
                        let data = data_of(kind, ranks as u64, bytes)?;
                        let [operand, result] = data.operands(rank as u64);
                        sizes[rank][1] = operand.max(sizes[rank][1]);
                        (rank, result)
                    }
                    Work::Recv { .. } | Work::Calc { .. } => continue,
                };
                most = bytes.max(most);
                sizes[to][2] = bytes.max(sizes[to][2]);
                sums[to] = sums[to].saturating_add(Room::needed(bytes));
            }
        }
        for ([source, operand, room], sum) in sizes.iter_mut().zip(sums) {
            *source = source_bytes(*source).next_multiple_of(PAGE);
            *operand = operand.next_multiple_of(PAGE);
            *room = sum.min(Room::needed(*room).max(plan.room_bytes));
        }
        let all = sizes
            .iter()
            .flatten()
            .fold(0, |a: u64, b| a.saturating_add(*b));
        match all > MEMORY_MOST {
            true => Err(Failure::large(most, MEMORY_MOST)),
            false => Ok(Sizes(sizes)),
        }
    }
}

/// Bytes of memory that a plan takes, about.
///
/// # Errors
/// [`Failure`]: the plan cannot be run.
pub fn goal_memory(plan: &GoalPlan) -> Result<u64, Failure> {
    let sizes = Sizes::of(plan)?;
    let ranks = sizes.0.len() as u64;
    let of_ranks = ranks.saturating_mul(OF_A_RANK + ranks * OF_AN_END);
    Ok(sizes
        .0
        .iter()
        .flatten()
        .sum::<u64>()
        .saturating_add(of_ranks))
}
