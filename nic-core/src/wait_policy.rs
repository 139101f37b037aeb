//! The spin limit of a waiter before it yields its core, learnt from the effect of its yields.
//!
//! A thread that waits for another on its own core must yield at once: nothing can arrive before.
//! A thread with a core of its own should spin: a yield costs as much as several messages take. The
//! kernel shows which case holds, because it counts for every thread how often it lost its core: a
//! yield that found no other thread to run is not counted. (The time of a yield is no measure: on
//! some virtual machines one that does nothing takes longer than a message round trip on others.)
#![allow(unsafe_code)] // One call of getrusage(2).
#![allow(clippy::disallowed_methods)] // The edge: a yield is timed to notice a CPU hog.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Idle rounds before a waiter yields, on a core of its own.
const SPIN_ALONE: u32 = 1500;
/// The same on a shared core, where what is waited for cannot happen before the yield.
const SPIN_SHARED: u32 = 0;
/// The same where more waiters than cores work together and the others seem to be elsewhere: they
/// move, and a long spin keeps the one that comes here from the core for as long.
const SPIN_CROWDED: u32 = 100;
/// A yield longer than this means that a CPU hog shares the core: parking at once, without a spin
/// before, gets it back sooner, because the kernel prefers threads that have used little of it.
const HOG: Duration = Duration::from_micros(50);
/// The same when more waiters than cores are known to work together: a yield then takes as long as
/// a neighbour's piece of work, and only a whole time slice is a hog's.
const HOG_CROWDED: Duration = Duration::from_millis(1);
/// Time of one waiter's turn. A yield on a core that n waiters share takes up to n turns without a
/// hog.
const PIECE: Duration = Duration::from_micros(100);
/// Waiters of one core whose turns together stay below a millisecond.
const FEW: u32 = 8;
/// One yield of so many is timed.
const TIMED_EVERY: u32 = 4;
/// Waits after which a detected hog is forgotten: at first, and at most. Each is a park, some 50 µs
/// more than a spin where there is none any more; to detect one that is still there takes a time
/// slice. The memory doubles with each hog that comes soon after the last.
const HOG_MEMORY: (u32, u32) = (32, 1024);
/// Timed yields without a hog after which the memory is as at first.
const HOG_GONE: u32 = 16;
/// Yields between two questions while the core is thought to be ours, and how many of them must
/// have lost it to think otherwise. Few: each cost a whole spin.
const WINDOW_ALONE: (u32, u64) = (4, 3);
/// Yields between two questions on a shared core. None of them lost it: it is ours.
const WINDOW_SHARED: u32 = 64;

thread_local! {
    /// Yields since the last question, and its answer.
    static ASKED: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// What the waiters of one NIC have learnt. Threads of one process usually sit alike.
#[derive(Debug)]
pub(crate) struct WaitPolicy {
    spin: AtomicU32,
    /// Waits for which the last hog is remembered yet.
    hog: AtomicU32,
    /// For how many waits the next one will be.
    memory: AtomicU32,
    /// Timed yields without a hog since the last.
    calm: AtomicU32,
    /// Cores this process may use.
    cores: usize,
    crowded: AtomicBool,
    /// Waiters that share a core.
    share: AtomicU32,
    yields: AtomicU64,
}

impl WaitPolicy {
    /// A policy for a process that may use `cores`.
    pub(crate) fn new(cores: usize) -> WaitPolicy {
        WaitPolicy {
            spin: AtomicU32::new(if cores > 1 { SPIN_ALONE } else { SPIN_SHARED }),
            hog: AtomicU32::new(0),
            memory: AtomicU32::new(HOG_MEMORY.0),
            calm: AtomicU32::new(0),
            cores,
            crowded: AtomicBool::new(false),
            share: AtomicU32::new(1),
            yields: AtomicU64::new(0),
        }
    }

    /// Sets how many waiters of this host wait for each other. With more of them than cores,
    /// spinning is wrong from the first wait on; learning it costs every one of them its whole
    /// spins.
    pub(crate) fn expect(&self, waiters: usize) {
        if waiters > self.cores {
            let share = u32::try_from(waiters.div_ceil(self.cores)).unwrap_or(u32::MAX);
            self.share.fetch_max(share, Ordering::Relaxed);
            self.crowded.store(true, Ordering::Relaxed);
            self.spin.store(SPIN_SHARED, Ordering::Relaxed);
        }
    }

    /// Waiters that share a core.
    pub(crate) fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// How much longer than on a core of its own a thread waits for its turn: 1 unless many waiters
    /// share each core. The progress thread waits for a silent waiter that much longer, or it would
    /// step the NIC of each waiter that only waits for its turn.
    pub(crate) fn patience(&self) -> u32 {
        self.share.load(Ordering::Relaxed).div_ceil(FEW).max(1)
    }

    /// Idle rounds before a waiter yields.
    #[inline]
    pub(crate) fn spin(&self) -> u32 {
        match self.hog.load(Ordering::Relaxed) {
            0 => self.spin.load(Ordering::Relaxed),
            _ => SPIN_SHARED,
        }
    }

    /// Whether a waiter with `spin` rounds seems to have its core for itself.
    #[inline]
    pub(crate) fn is_alone(spin: u32) -> bool {
        spin > SPIN_SHARED
    }

    /// Yields so far.
    pub(crate) fn yields(&self) -> u64 {
        self.yields.load(Ordering::Relaxed)
    }

    /// Whether yielding is worth it; beside a CPU hog it is not.
    pub(crate) fn may_yield(&self) -> bool {
        let hog = self.hog.load(Ordering::Relaxed);
        if hog > 0 {
            self.hog.store(hog - 1, Ordering::Relaxed);
        }
        hog == 0
    }

    /// Yields the core once, and learns from it. Returns whether it was away for long.
    pub(crate) fn yield_now(&self) -> bool {
        let (yields, lost_before) = ASKED.get();
        // Two readings of the clock are a part of what a message takes: a hog shows in the next
        // ones.
        let timed = yields.is_multiple_of(TIMED_EVERY).then(Instant::now);
        std::thread::yield_now();
        self.yields.fetch_add(1, Ordering::Relaxed);
        let hog = match self.crowded.load(Ordering::Relaxed) {
            true => HOG_CROWDED.max(PIECE.saturating_mul(self.share.load(Ordering::Relaxed))),
            false => HOG,
        };
        let long = timed.is_some_and(|before| before.elapsed() > hog);
        if timed.is_some() {
            self.remember(long);
        }
        let yields = yields + 1;
        let alone = WaitPolicy::is_alone(self.spin.load(Ordering::Relaxed));
        let window = if alone { WINDOW_ALONE.0 } else { WINDOW_SHARED };
        if yields < window {
            ASKED.set((yields, lost_before));
            return long;
        }
        let lost = times_lost();
        ASKED.set((0, lost));
        self.learn(alone, lost.wrapping_sub(lost_before));
        long
    }

    /// Takes note of a timed yield, and of whether a hog had the core.
    fn remember(&self, hog: bool) {
        if hog {
            let waits = self.memory.load(Ordering::Relaxed);
            self.hog.store(waits, Ordering::Relaxed);
            self.memory
                .store((waits * 2).min(HOG_MEMORY.1), Ordering::Relaxed);
            self.calm.store(0, Ordering::Relaxed);
        } else if self.calm.fetch_add(1, Ordering::Relaxed) == HOG_GONE {
            self.memory.store(HOG_MEMORY.0, Ordering::Relaxed);
        }
    }

    fn learn(&self, alone: bool, lost: u64) {
        if alone && lost >= WINDOW_ALONE.1 {
            self.spin.store(SPIN_SHARED, Ordering::Relaxed);
        } else if !alone && lost == 0 {
            let spin = match (self.crowded.load(Ordering::Relaxed), self.patience()) {
                (false, _) => SPIN_ALONE,
                (true, 1) => SPIN_CROWDED,
                // Some of so many always want the core, also when they were asleep at the last
                // yields.
                (true, _) => SPIN_SHARED,
            };
            self.spin.store(spin, Ordering::Relaxed);
        }
    }
}

/// How often the calling thread lost its core although it could have run on.
fn times_lost() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills the structure it is given; all-zero is what it holds when it fails.
    let usage = unsafe {
        usage.as_mut_ptr().write_bytes(0, 1);
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_lost_at_every_yield_is_shared_and_one_never_lost_is_not() {
        let p = WaitPolicy::new(2);
        assert!(WaitPolicy::is_alone(p.spin()));
        p.learn(true, 2);
        assert!(WaitPolicy::is_alone(p.spin()), "a neighbour passing by");
        p.learn(true, 3);
        assert!(!WaitPolicy::is_alone(p.spin()));
        p.learn(false, 1);
        assert!(!WaitPolicy::is_alone(p.spin()));
        p.learn(false, 0);
        assert!(WaitPolicy::is_alone(p.spin()));
        assert!(!WaitPolicy::is_alone(WaitPolicy::new(1).spin()));
    }

    #[test]
    fn more_waiters_than_cores_yield_until_a_yield_loses_no_core() {
        let p = WaitPolicy::new(2);
        p.expect(2);
        assert!(WaitPolicy::is_alone(p.spin()));
        p.expect(3);
        assert!(!WaitPolicy::is_alone(p.spin()));
        p.learn(false, 0);
        assert_eq!(p.spin(), SPIN_CROWDED, "the others are elsewhere");
    }

    #[test]
    fn the_patience_of_waiters_grows_with_the_ranks_of_a_core() {
        let p = WaitPolicy::new(2);
        assert_eq!(p.patience(), 1);
        p.expect(16);
        assert_eq!(p.patience(), 1);
        p.expect(64);
        assert_eq!(p.patience(), 4);
        // A smaller communicator beside it changes nothing.
        p.expect(3);
        assert_eq!(p.patience(), 4);
    }

    #[test]
    fn waiters_stop_spinning_and_yielding_for_a_while_beside_a_busy_thread() {
        let p = WaitPolicy::new(2);
        p.hog.store(2, Ordering::Relaxed);
        assert_eq!(p.spin(), SPIN_SHARED);
        assert!(!p.may_yield() && !p.may_yield() && p.may_yield());
        assert_eq!(p.spin(), SPIN_ALONE);
    }

    #[test]
    fn a_hog_that_stays_is_remembered_longer_until_the_core_is_calm() {
        let p = WaitPolicy::new(2);
        let remembered = |hog: bool| {
            p.remember(hog);
            p.hog.swap(0, Ordering::Relaxed)
        };
        assert_eq!([remembered(true), remembered(false)], [32, 0]);
        assert_eq!([remembered(true), remembered(true)], [64, 128]);
        assert_eq!(
            [(); 5].map(|()| remembered(true)),
            [256, 512, 1024, 1024, 1024]
        );
        for _ in 0..=HOG_GONE {
            remembered(false);
        }
        assert_eq!(remembered(true), 32);
    }

    #[test]
    fn the_kernel_counts_yields_to_a_partner() {
        let pin = || {
            let mut all = rustix::thread::sched_getaffinity(None).expect("affinity");
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|c| all.is_set(*c));
            all.clear();
            all.set(first.expect("a core"));
            rustix::thread::sched_setaffinity(None, &all).expect("pinned");
        };
        let stop = std::sync::atomic::AtomicBool::new(false);
        let lost = std::thread::scope(|s| {
            s.spawn(|| {
                pin();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
            let mine = s.spawn(|| {
                pin();
                let before = times_lost();
                let mut yields = 0;
                // The partner may need a while to start.
                while times_lost() < before + 100 && yields < 10_000_000 {
                    std::thread::yield_now();
                    yields += 1;
                }
                times_lost() - before
            });
            let lost = mine.join().expect("no panic");
            stop.store(true, Ordering::Relaxed);
            lost
        });
        assert!(lost >= 100, "{lost}");
    }
}
