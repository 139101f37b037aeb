//! Points of a figure, simulated.

use anyhow::Result;
use ringbell::comm::CollectiveKind;
use ringbell::Algorithm;
use ringbell_sim::goal::{Need, Op, Schedule, Work as GoalWork};
use ringbell_sim::{Cluster, GoalPlan, Measured as Size, NetworkPlan, Plan, Profile};

use super::papers::{Figure, Point, Work};
use crate::report::Axis;
use crate::routes;
use crate::sim::fault::{self, us};
use crate::sim::refused::{has_memory, has_memory_of, problem};
use crate::{Exit, Problem};

/// By how much ours may differ before the report says why.
pub(super) const WIDE: f64 = 0.15;

/// What was measured at a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) point: Point,
    pub(super) time_ns: u64,
    /// In the unit of the figure's work.
    pub(super) value: f64,
    /// Elements or messages that arrived wrong.
    pub(super) wrong: u64,
}

impl Measured {
    /// Ours by the paper's.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.point.theirs.map(|theirs| self.value / theirs)
    }

    /// Whether it differs by more than [`WIDE`].
    pub(super) fn is_wide(&self) -> bool {
        self.ratio().is_some_and(|r| (r - 1.0).abs() > WIDE)
    }
}

impl Work {
    /// What is measured, with its unit.
    pub(super) fn quantity(self) -> &'static str {
        match self {
            Work::BusBandwidth(..) => "bus bandwidth, GB/s",
            Work::Message => "bandwidth, GB/s",
            Work::Time(..) | Work::RoundTrip => "time, us",
            Work::Latency => "half a round trip, us",
        }
    }

    /// Upwards in a picture.
    pub(super) fn axis(self) -> Axis {
        match self {
            Work::BusBandwidth(..) => Axis::BusBandwidth,
            Work::Message => Axis::Bandwidth,
            Work::Time(..) | Work::RoundTrip | Work::Latency => Axis::Time,
        }
    }
}

/// The profile of a figure's cluster.
///
/// # Errors
/// It is not built in.
pub(super) fn profile(figure: &Figure) -> Result<Profile> {
    let profile = Profile::by_name(figure.profile);
    profile.ok_or_else(|| {
        let what = format!("{} is no built-in profile", figure.profile);
        Problem::new(Exit::Failed, what, "report it: a figure names it").into()
    })
}

/// Simulates a point.
///
/// # Errors
/// It needs more memory than is free, or did not end well.
pub(super) fn measure(work: Work, point: Point, profile: &Profile) -> Result<Measured> {
    let topology = point.topology.map(routes::topology).transpose()?;
    let cluster = Cluster {
        network: NetworkPlan {
            topology,
            ..NetworkPlan::default()
        },
        ..Cluster::new(point.ranks, profile.clone())
    };
    let (time_ns, value, wrong) = match work {
        Work::BusBandwidth(kind, algo) => {
            let size = collective(kind, algo, cluster, point.bytes)?;
            (size.time_ns, size.busbw_gbs, size.wrong)
        }
        Work::Time(kind, algo) => {
            let size = collective(kind, algo, cluster, point.bytes)?;
            (size.time_ns, us(size.time_ns), size.wrong)
        }
        Work::Message => {
            let (time_ns, wrong) = messages(cluster, point, false)?;
            (time_ns, point.bytes as f64 / time_ns.max(1) as f64, wrong)
        }
        Work::RoundTrip => {
            let (time_ns, wrong) = messages(cluster, point, true)?;
            (time_ns, us(time_ns), wrong)
        }
        Work::Latency => {
            let (time_ns, wrong) = messages(cluster, point, true)?;
            (time_ns, us(time_ns) / 2.0, wrong)
        }
    };
    Ok(Measured {
        point,
        time_ns,
        value,
        wrong,
    })
}

fn collective(kind: CollectiveKind, algo: Algorithm, cluster: Cluster, bytes: u64) -> Result<Size> {
    let plan = Plan {
        algo,
        ..Plan::new(kind, cluster, bytes)
    };
    has_memory_of(&plan)?;
    let report = ringbell_sim::run(&plan).map_err(problem)?;
    match (&report.ended, report.sizes.first()) {
        (None, Some(size)) => Ok(*size),
        (Some(ended), _) => Err(fault::problem(ended).into()),
        (None, None) => Err(odd("a point of the figure has no size")),
    }
}

/// Time of a point's message from rank 0 and, where there is an answer, of one back; until both
/// ranks have ended. And how many arrived wrong.
fn messages(cluster: Cluster, point: Point, answered: bool) -> Result<(u64, u64)> {
    let Point { to, bytes, .. } = point;
    let op = |work, needs| Op {
        label: None,
        line: 0,
        work,
        cpu: 0,
        needs,
    };
    let send = |to| GoalWork::Send { to, bytes, tag: 0 };
    let recv = |from| GoalWork::Recv {
        from: Some(from),
        bytes,
        tag: Some(0),
    };
    let mut ranks = vec![Vec::new(); cluster.ranks];
    ranks[0].push(op(send(to as u32), vec![]));
    ranks[to].push(op(recv(0), vec![]));
    if answered {
        ranks[0].push(op(recv(to as u32), vec![]));
        ranks[to].push(op(
            send(0),
            vec![Need {
                op: 0,
                begin: false,
            }],
        ));
    }
    let schedule = Schedule::new(ranks).ok_or_else(|| odd("the figure's messages are wrong"))?;
    let plan = GoalPlan::new(schedule, cluster);
    let advice = "free memory, or take another figure";
    has_memory(&plan.cluster, ringbell_sim::goal_memory(&plan), advice)?;
    let report = ringbell_sim::run_goal(&plan).map_err(problem)?;
    match report.trouble {
        None => Ok((report.time_ns, report.wrong)),
        Some(_) => Err(odd("messages of the figure did not end well")),
    }
}

fn odd(what: &str) -> anyhow::Error {
    Problem::new(Exit::Failed, what, "report it with the figure's name").into()
}

#[cfg(test)]
mod tests {
    use super::super::papers::FIGURES;
    use super::*;

    /// A 256th of a size, and what one element a rank needs at least.
    fn small(point: Point) -> Point {
        Point {
            bytes: (point.bytes / 256).max(1024),
            ..point
        }
    }

    #[test]
    fn every_figure_runs_at_a_small_size() {
        for figure in FIGURES {
            let profile = profile(figure).expect("it is built in");
            for point in figure.points {
                let small = small(*point);
                let done = measure(figure.work, small, &profile).expect("it ends");
                assert_eq!(done.wrong, 0, "{}", figure.name);
                assert!(done.time_ns > 0 && done.value > 0.0, "{done:?}");
                let ratio = point.theirs.map(|t| done.value / t);
                assert_eq!(done.ratio(), ratio, "{}", figure.name);
            }
        }
    }

    #[test]
    fn a_difference_of_more_than_the_limit_is_wide_on_both_sides() {
        let at = |value: f64, theirs| Measured {
            point: Point {
                ranks: 2,
                topology: None,
                to: 1,
                bytes: 8,
                theirs,
            },
            time_ns: 1,
            value,
            wrong: 0,
        };
        for (value, wide) in [(84.0, true), (86.0, false), (114.0, false), (116.0, true)] {
            assert_eq!(at(value, Some(100.0)).is_wide(), wide, "{value}");
            assert!(!at(value, None).is_wide());
        }
    }
}
