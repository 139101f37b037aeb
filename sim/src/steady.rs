//! Steady phases of operations: when one is recognised, and when the operation ends if the rest of
//! it is as steady.
//!
//! A rank's program is watched by its steps. In a ring whose segments are all under way, and in
//! what sends many segments behind each other, one step takes as long as the one before. Four parts
//! of what a rank has done that take equally long for each step are a steady phase, if all ranks
//! have one. The rest takes as long for each step, so a run can end there and say when the whole
//! operation ends. Programs of few steps, or of steps that differ, have no such phase, and run to
//! their end.

use ringbell_nic_abi::Algorithm;
use ringbell_nic_core::collective::ProgramProgress;

/// A stream has so many times the segments that are under way at once: the last of these run alone,
/// and slower.
const STREAM: u64 = 32;
/// Fewest steps of a rank.
const FEWEST: u64 = 64;
/// Moments of a rank that are kept.
const KEPT: u64 = 512;
/// One of so many steps has run before a phase is looked for.
const EARLIEST: u64 = 8;
/// Parts of a phase that are compared, and the fewest moments of each.
const PARTS: usize = 4;
const OF_A_PART: usize = 4;
/// How much the times of a step may differ between parts.
const SPREAD: f64 = 0.005;

/// The end of an operation as its steady phase has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projection {
    /// Virtual time from the post for which the operation was simulated.
    pub simulated_ns: u64,
    /// Share of the steps of all ranks that had run then.
    pub share: f64,
    /// How much the time of a step differs between parts of the phase, at most, as a share. It is
    /// no bound of the projected time's error: the last steps of an operation may take longer or
    /// shorter.
    pub spread: f64,
}

/// Moments of a rank's program: a time in picoseconds, and how many steps had run.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    /// All steps; 0 before the program has begun.
    total: u64,
    /// Its steps are alike.
    is_even: bool,
    /// Steps at which the next moment is kept.
    next: u64,
    kept: Vec<(u64, u64)>,
}

impl Moments {
    /// Notes how far the program is.
    pub(crate) fn note(&mut self, at: u64, progress: &ProgramProgress) {
        if self.total == 0 {
            self.total = progress.steps;
            let ProgramProgress {
                algo,
                segments,
                at_once,
                steps,
                ..
            } = *progress;
            let is_ring = algo == Algorithm::Ring && segments <= at_once;
            self.is_even = steps >= FEWEST && (is_ring || segments >= STREAM * at_once);
        }
        let run = progress.steps_run;
        if self.is_even && run > 0 && run >= self.next {
            self.next = run + (self.total / KEPT).max(1);
            self.kept.push((at, run));
        }
    }

    /// The steady phase that ends before a time, if there is one.
    fn phase(&self, now: u64) -> Option<Phase> {
        let known = self.kept.partition_point(|(at, _)| *at < now);
        let known = &self.kept[..known];
        let &(at, run) = known
            .last()
            .filter(|(_, run)| *run >= self.total / EARLIEST)?;
        // The first steps fill the network.
        let steady = &known[known.partition_point(|(_, n)| *n < run / 2)..];
        let part = (steady.len() - 1) / PARTS;
        if part < OF_A_PART {
            return None;
        }
        let steady = &steady[steady.len() - 1 - part * PARTS..];
        let of_a_step = |from: usize, to: usize| {
            let (begin, end) = (steady[from], steady[to]);
            (end.0 - begin.0) as f64 / (end.1 - begin.1) as f64
        };
        let parts = (0..PARTS).map(|i| of_a_step(i * part, (i + 1) * part));
        let (least, most) = parts.fold((f64::MAX, 0.0), |(least, most), t| {
            (t.min(least), t.max(most))
        });
        let of_all = of_a_step(0, part * PARTS);
        let left = (self.total - run) as f64;
        Some(Phase {
            end: at as f64 + left * of_all,
            run,
            spread: (most - least) / of_all,
        })
    }
}

/// A rank's steady phase.
struct Phase {
    /// When its program ends, in picoseconds.
    end: f64,
    run: u64,
    spread: f64,
}

/// When an operation that was posted at a time ends, by the phases of all ranks before another; all
/// in picoseconds. `None`: some rank has none.
pub(crate) fn projected<'a>(
    ranks: impl Iterator<Item = &'a Moments>,
    posted: u64,
    now: u64,
) -> Option<(u64, Projection)> {
    let (mut end, mut spread) = (0.0_f64, 0.0_f64);
    let (mut run, mut total) = (0, 0);
    for moments in ranks {
        let phase = moments.phase(now).filter(|p| p.spread <= SPREAD)?;
        end = end.max(phase.end);
        spread = spread.max(phase.spread);
        run += phase.run;
        total += moments.total;
    }
    let projection = Projection {
        simulated_ns: (now - posted) / 1_000,
        share: run as f64 / total.max(1) as f64,
        spread,
    };
    (total > 0).then_some((end as u64, projection))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(steps: u64, time_of: impl Fn(u64) -> u64, until: u64) -> Moments {
        let kept = (1..=until).map(|n| (time_of(n), n)).collect();
        Moments {
            total: steps,
            is_even: true,
            next: 0,
            kept,
        }
    }

    #[test]
    fn steps_of_one_time_are_a_phase_and_others_are_not() {
        // The first ten take thrice as long.
        let steady = moments(400, |n| 1_000 * n + 2_000 * n.min(10), 100);
        let (end, found) = projected([&steady].into_iter(), 0, 130_000).expect("a phase");
        assert_eq!(end, 420_000);
        assert_eq!((found.simulated_ns, found.share), (130, 0.25));
        assert!(found.spread < 1e-9, "{found:?}");
        let slower = moments(400, |n| 1_000 * n + n * n, 100);
        assert_eq!(projected([&slower].into_iter(), 0, 130_000), None);
        assert_eq!(projected([&steady, &slower].into_iter(), 0, 130_000), None);
        // Too early, and what lies ahead of the time does not count.
        let early = moments(400, |n| 1_000 * n, 49);
        assert_eq!(projected([&early].into_iter(), 0, 130_000), None);
        assert_eq!(projected([&steady].into_iter(), 0, 40_000), None);
    }
}
