//! The lanes of a warp by what they wait for, as masks: a step looks only at those that can run.

use crate::context::why;

/// What the lanes of a warp wait for that have not ended, a bit for each lane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lanes {
    runnable: u32,
    /// Their budget is spent.
    spent: u32,
    barrier: u32,
    cluster: u32,
    operation: u32,
    asleep: u32,
}

impl Lanes {
    /// All of these can run.
    pub(super) fn runnable(all: u32) -> Lanes {
        Lanes {
            runnable: all,
            ..Lanes::default()
        }
    }

    /// Whether a lane can run.
    pub(super) fn can_run(&self) -> bool {
        self.runnable != 0
    }

    /// Those that can run, and are to be run now.
    pub(super) fn take_runnable(&mut self) -> u32 {
        std::mem::take(&mut self.runnable)
    }

    /// Those whose budget is spent; they can run again.
    pub(super) fn take_spent(&mut self) -> u32 {
        let spent = std::mem::take(&mut self.spent);
        self.runnable |= spent;
        spent
    }

    /// Notes why a lane has returned; `false` if that ends the block.
    pub(super) fn left(&mut self, lane: usize, reason: u32) -> bool {
        let mask = match reason {
            why::RUNNABLE => &mut self.runnable,
            why::BUDGET => &mut self.spent,
            why::BARRIER => &mut self.barrier,
            why::CLUSTER => &mut self.cluster,
            why::WARP => &mut self.operation,
            why::SLEEP => &mut self.asleep,
            reason => return reason == why::DONE,
        };
        *mask |= 1 << lane;
        true
    }

    /// What these lanes waited for has come.
    pub(super) fn wake(&mut self, lanes: u32) {
        self.barrier &= !lanes;
        self.cluster &= !lanes;
        self.operation &= !lanes;
        self.asleep &= !lanes;
        self.runnable |= lanes;
    }

    pub(super) fn at_barrier(&self) -> u32 {
        self.barrier
    }

    pub(super) fn at_cluster(&self) -> u32 {
        self.cluster
    }

    /// At an operation of the warp.
    pub(super) fn at_operation(&self) -> u32 {
        self.operation
    }

    pub(super) fn asleep(&self) -> u32 {
        self.asleep
    }
}

/// The lanes of a mask, ascending.
pub(super) fn each(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        let some = mask != 0;
        mask &= mask.wrapping_sub(1);
        some.then_some(lane)
    })
}

/// The threads of a block whose lanes are in the mask that `of` takes, ascending.
pub(super) fn all(warps: &[Lanes], of: fn(&Lanes) -> u32) -> impl Iterator<Item = usize> + '_ {
    let warps = warps.iter().enumerate();
    warps.flat_map(move |(w, lanes)| each(of(lanes)).map(move |i| w * 32 + i))
}
