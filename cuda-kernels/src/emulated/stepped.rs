//! A kernel that its caller steps: its blocks run in the caller's thread and see the caller's time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_gpu::{Clock, Output};

use super::drive::{Blocks, PtxLaunch, Round};
use super::gpu::EmulatedGpu;
use super::loaded::LoadedKernel;
use crate::launch::{ArgBlock, Failure, KernelArg, LaunchError, LaunchShape};

/// Rounds in which threads only look at memory, before a turn ends. A loop of the device header
/// reads the clock in every 32nd pass, and a thread makes at least two passes in a round.
const LOOKS: u32 = 32;

/// Rounds of a turn at most: a loop with barriers never only waits.
const ROUNDS: u32 = 4096;

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// All blocks have ended.
    Done,
    /// Threads go on at once, and some have written what others may wait for.
    Published,
    /// Threads go on by themselves; the turn has ended because it was long.
    Runs,
    /// Threads wait for memory that others write.
    Waits {
        /// Some have read the clock or sleep: time alone may let them go on.
        timed: bool,
    },
}

/// Why a kernel has ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEnd {
    /// What kind of error it was.
    pub failure: Failure,
    /// In words: block, thread, line, and what happened.
    pub reason: String,
}

/// A kernel whose blocks run in [`turn`](SteppedKernel::turn) and nowhere else.
pub struct SteppedKernel {
    launch: PtxLaunch,
    blocks: Blocks,
}

impl std::fmt::Debug for SteppedKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteppedKernel")
    }
}

/// One moment, which notes whether a kernel asked for it.
struct Moment {
    ns: u64,
    asked: AtomicBool,
}

impl Clock for Moment {
    fn now_ns(&self) -> u64 {
        // Relaxed: read by the same thread.
        self.asked.store(true, Ordering::Relaxed);
        self.ns
    }
}

impl EmulatedGpu {
    /// A launch whose blocks run when the caller steps them, one thread after the other by a seed:
    /// 0 is their own order. What the kernel prints goes to `output`.
    ///
    /// # Errors
    /// [`LaunchError`]: wrong arguments or an impossible shape, or code that cannot be compiled.
    pub fn launch_stepped(
        &self,
        kernel: &LoadedKernel,
        shape: LaunchShape,
        args: &[KernelArg],
        seed: u64,
        output: Arc<dyn Output>,
    ) -> Result<SteppedKernel, LaunchError> {
        kernel.kernel.check(&shape, args)?;
        let args = ArgBlock::new(args);
        let mut launch = PtxLaunch::of(&kernel.kernel.code, &self.memory(), shape, &args)?;
        launch.print_to(output);
        Ok(SteppedKernel {
            launch,
            blocks: Blocks::new(seed),
        })
    }
}

impl SteppedKernel {
    /// Lets all threads run at this time until they wait.
    ///
    /// # Errors
    /// [`KernelEnd`]: a thread has failed, or its block is stuck.
    pub fn turn(&mut self, now_ns: u64) -> Result<Turn, KernelEnd> {
        let moment = Moment {
            ns: now_ns,
            asked: AtomicBool::new(false),
        };
        let mut looks = 0;
        for _ in 0..ROUNDS {
            self.blocks.rotate();
            let round = self.launch.round(&mut self.blocks, &moment);
            let round = round.map_err(|e| KernelEnd {
                failure: e.failure,
                reason: e.reason,
            })?;
            match round {
                Round::Done => return Ok(Turn::Done),
                Round::Published => return Ok(Turn::Published),
                Round::Moved => looks = 0,
                Round::Waits => looks += 1,
            }
            if looks == LOOKS {
                // Sleepers have had their times compared with the clock.
                let timed = moment.asked.load(Ordering::Relaxed);
                return Ok(Turn::Waits { timed });
            }
        }
        Ok(Turn::Runs)
    }

    /// Where its threads stand and what they wait for, in lines.
    pub fn explain(&self) -> String {
        self.launch.explain_blocks(&self.blocks)
    }

    /// What checks have found, in lines. All blocks have ended.
    pub fn findings(&self) -> Option<String> {
        self.launch.findings()
    }
}
