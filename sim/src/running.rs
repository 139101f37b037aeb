//! The kernels of a run, by rank: when each has a turn, and how it ends.
//!
//! A kernel runs when its NIC has moved, and computes in no time. Threads that only look at memory
//! run again when the NIC has moved; where they read the clock or sleep, also after a pause that
//! grows with the time that they wait, so that a deadline of 10 s takes some hundred turns.

use ringbell_cuda_kernels::{KernelEnd, SteppedKernel, Turn};

/// Shortest pause of threads that wait for a time, and the share of the time waited so far.
const PAUSE_NS: u64 = 100;
const PAUSE_SHARE: u64 = 32;
/// The same of threads that compute for long.
const COMPUTE_NS: u64 = 1_000;
const COMPUTE_SHARE: u64 = 256;
/// Turns at one time whose threads write: more is a loop.
const TURNS: u32 = 64;

/// How the kernels of a run have ended.
pub(crate) enum Outcome {
    /// All by themselves; what checks have found, by rank.
    Ended(Vec<(usize, String)>),
    /// One by an error.
    Failed { rank: usize, end: KernelEnd },
    /// Some not at all.
    Hung {
        /// Nothing happens any more.
        is_over: bool,
        /// What those wait for, by rank.
        waits: Vec<(usize, String)>,
    },
}

/// What a kernel's turn asks for.
pub(crate) enum Ran {
    /// Nothing, or another turn after the NIC's.
    Again,
    /// Another turn at this time, in nanoseconds.
    Later(u64),
    /// It has ended.
    Ended,
}

/// A rank's kernel.
struct Running {
    kernel: SteppedKernel,
    is_over: bool,
    /// When it is to run, in picoseconds, though its NIC has not moved.
    due: Option<u64>,
    /// It is to run now.
    wakes: bool,
    /// For no other reason than that time has passed.
    by_time: bool,
    /// Its NIC has not moved, and it has written nothing, since then, in nanoseconds.
    quiet_ns: u64,
    /// When it ran last, and how often then.
    ran: (u64, u32),
    /// When it begins, in picoseconds.
    begin: u64,
    /// Operations that its NIC has under way, and since when, in picoseconds.
    works: (usize, u64),
}

/// The kernels, by rank; none in a run of collectives.
#[derive(Default)]
pub(crate) struct Kernels {
    /// The kernel's name.
    pub(crate) name: String,
    all: Vec<Running>,
    left: usize,
    /// The first that has failed.
    pub(crate) failed: Option<(usize, KernelEnd)>,
}

impl Kernels {
    /// Adds the next rank's, which begins at a time in picoseconds.
    pub(crate) fn add(&mut self, kernel: SteppedKernel, at: u64) {
        self.left += 1;
        self.all.push(Running {
            kernel,
            is_over: false,
            due: Some(at),
            wakes: false,
            by_time: false,
            quiet_ns: at.div_ceil(1_000),
            // It has not begun.
            ran: (u64::MAX, 0),
            begin: at,
            works: (0, at),
        });
    }

    /// Ends a rank's, whose NIC has stopped. `false`: there is none, or it had ended.
    pub(crate) fn stop(&mut self, rank: usize) -> bool {
        let k = self.all.get_mut(rank).filter(|k| !k.is_over);
        let is_stopped = k.map(|k| k.is_over = true).is_some();
        self.left -= usize::from(is_stopped);
        is_stopped
    }

    pub(crate) fn is_over(&self, rank: usize) -> bool {
        self.all[rank].is_over
    }

    /// When a rank's has begun, in picoseconds, if it has.
    pub(crate) fn begun(&self, rank: usize) -> Option<u64> {
        let k = self.all.get(rank).filter(|k| k.ran.0 != u64::MAX);
        k.map(|k| k.begin)
    }

    /// Its NIC has so many operations under way from a time on, in picoseconds. Returns how many
    /// there were until then, and since when, if that is a change.
    pub(crate) fn works(&mut self, rank: usize, now: usize, at: u64) -> Option<(usize, u64)> {
        let k = self.all.get_mut(rank).filter(|k| k.works.0 != now)?;
        let before = std::mem::replace(&mut k.works, (now, at));
        (before.0 > 0).then_some(before)
    }

    /// How many have not ended.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether an event is the one that a kernel waits for; it runs then.
    pub(crate) fn is_due(&mut self, rank: usize, at: u64) -> bool {
        let Some(k) = self.all.get_mut(rank) else {
            return false;
        };
        let is_due = !k.is_over && k.due == Some(at);
        if is_due {
            (k.due, k.wakes, k.by_time) = (None, true, true);
        }
        is_due
    }

    /// Whether a kernel runs now that its NIC was stepped, and has moved or not.
    pub(crate) fn wakes(&mut self, rank: usize, moved: bool) -> bool {
        let Some(k) = self.all.get_mut(rank) else {
            return false;
        };
        let begun = k.ran.0 != u64::MAX;
        k.by_time &= !moved;
        !k.is_over && (std::mem::take(&mut k.wakes) || moved && begun)
    }

    /// Lets a rank's kernel run at a time in nanoseconds.
    pub(crate) fn turn(&mut self, rank: usize, now: u64) -> Ran {
        let k = &mut self.all[rank];
        if !std::mem::take(&mut k.by_time) {
            k.quiet_ns = now;
        }
        k.ran = match k.ran {
            (at, n) if at == now => (now, n + 1),
            _ => (now, 0),
        };
        let (least, share) = match k.kernel.turn(now) {
            Ok(Turn::Done) => {
                k.is_over = true;
                self.left -= 1;
                return Ran::Ended;
            }
            Err(end) => {
                k.is_over = true;
                self.left -= 1;
                self.failed.get_or_insert((rank, end));
                return Ran::Ended;
            }
            Ok(Turn::Published) if k.ran.1 < TURNS => {
                (k.wakes, k.quiet_ns) = (true, now);
                return Ran::Again;
            }
            Ok(Turn::Published | Turn::Runs) => (COMPUTE_NS, COMPUTE_SHARE),
            Ok(Turn::Waits { timed: true }) => (PAUSE_NS, PAUSE_SHARE),
            Ok(Turn::Waits { timed: false }) => {
                k.due = None;
                return Ran::Again;
            }
        };
        let at = now + least.max((now - k.quiet_ns) / share);
        // A turn that the NIC caused may ask for the event that is there already.
        let is_new = k.due != Some(at * 1_000);
        k.due = Some(at * 1_000);
        match is_new {
            true => Ran::Later(at),
            false => Ran::Again,
        }
    }

    /// What those wait for that have not ended, by rank.
    pub(crate) fn explain(&self) -> Vec<(usize, String)> {
        let left = self.all.iter().enumerate().filter(|(_, k)| !k.is_over);
        left.map(|(rank, k)| (rank, k.kernel.explain())).collect()
    }

    /// What checks have found, by rank.
    pub(crate) fn findings(&self) -> Vec<(usize, String)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(rank, k)| Some((rank, k.kernel.findings()?)))
            .collect()
    }
}
