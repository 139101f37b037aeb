//! Faults of a simulation: when they happen, and how the ranks' operation ended.

use std::fmt::Write as _;

use ringbell_sim::{Breaks, Cluster, Ended, Failure, Fault, NetworkPlan, RankEnd, Slow};
use serde_json::{json, Value};

use crate::{Exit, Problem};

/// What breaks.
#[derive(clap::Args)]
pub(crate) struct FaultArgs {
    /// Stop a rank's NIC, and its kernel, at a time behind the first post or the kernels' begin, as
    /// 3@20us; may be given more than once
    #[arg(long, value_name = "RANK@TIME", value_parser = kill)]
    kill: Vec<Fault>,
    /// Cut a wire, named by one end or by both nodes, as s0:4@20us or n3-s0@1.5ms; may be given
    /// more than once
    #[arg(long, value_name = "LINK@TIME", value_parser = cut)]
    cut: Vec<(String, u64)>,
    /// Let a rank's link and NIC take so many times as long, as 3:4 or 0:1.5; may be given more
    /// than once
    #[arg(long, value_name = "RANK:FACTOR", value_parser = slow)]
    pub(super) slow: Vec<Slow>,
}

fn kill(text: &str) -> Result<Fault, String> {
    let parts = text.split_once('@');
    let parts = parts.and_then(|(rank, at)| Some((rank.parse().ok()?, time_ns(at)?)));
    let (rank, at_ns) = parts.ok_or("write a rank and a time in ns, us, ms or s, as 3@20us")?;
    let what = Breaks::Rank(rank);
    Ok(Fault { at_ns, what })
}

fn slow(text: &str) -> Result<Slow, String> {
    let parts = text.split_once(':');
    let parts = parts.and_then(|(rank, factor)| Some((rank.parse().ok()?, factor.parse().ok()?)));
    let (rank, factor) = parts.ok_or("write a rank and a factor of 1 or more, as 3:4")?;
    Ok(Slow { rank, factor })
}

fn cut(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('@');
    let parts = parts.and_then(|(link, at)| Some((link.to_owned(), time_ns(at)?)));
    parts.ok_or_else(|| "write a link and a time in ns, us, ms or s, as s0:4@20us".into())
}

/// A time with its unit, in nanoseconds.
pub(super) fn time_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let number: f64 = digits.parse().ok()?;
    let ns = (number * unit).round();
    // A day is longer than any run.
    (0.0..8.64e13).contains(&ns).then_some(ns as u64)
}

impl FaultArgs {
    /// All of them, by the network's wires.
    ///
    /// # Errors
    /// A wire is not there.
    pub(crate) fn faults(
        &self,
        network: &NetworkPlan,
        ranks: usize,
    ) -> Result<Vec<Fault>, Failure> {
        let mut faults = self.kill.clone();
        for (link, at_ns) in &self.cut {
            let what = Breaks::Wire(network.wire_named(ranks, link)?);
            let at_ns = *at_ns;
            faults.push(Fault { at_ns, what });
        }
        Ok(faults)
    }
}

/// Microseconds.
pub(super) fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// A fault in words.
pub(super) fn text_of_fault(cluster: &Cluster, fault: &Fault) -> String {
    let what = match fault.what {
        Breaks::Rank(rank) => format!("rank {rank} killed"),
        Breaks::Wire(wire) => format!("{} cut", cluster.network.wire_text(wire)),
    };
    format!("{what} at {:.3} us", us(fault.at_ns))
}

/// The slow ranks and the faults of a cluster in words, a line each.
pub(super) fn text_of_faults(cluster: &Cluster) -> String {
    let slow = |s: &Slow| format!("# rank {} {} times slower\n", s.rank, s.factor);
    let slow = cluster.slow.iter().map(slow);
    let faults = cluster.faults.iter();
    let faults = faults.map(|f| format!("# {}\n", text_of_fault(cluster, f)));
    slow.chain(faults).collect()
}

/// The slow ranks of a cluster.
pub(super) fn json_of_slow(cluster: &Cluster) -> Value {
    let slow = |s: &Slow| json!({ "rank": s.rank, "factor": s.factor });
    cluster.slow.iter().map(slow).collect()
}

/// Faults of a cluster: those to come, or those that have happened.
pub(super) fn json_of_faults(cluster: &Cluster, faults: &[Fault]) -> Value {
    let fault = |fault: &Fault| {
        let (key, what) = match fault.what {
            Breaks::Rank(rank) => ("rank", json!(rank)),
            Breaks::Wire(wire) => ("wire", json!(cluster.network.wire_text(wire))),
        };
        json!({ key: what, "at_us": us(fault.at_ns) })
    };
    faults.iter().map(fault).collect()
}

fn status(end: &RankEnd) -> String {
    end.status.map_or("killed".into(), |s| format!("{s:?}"))
}

/// How an operation ended, by rank.
pub(crate) fn text_of_ends(ended: &Ended) -> String {
    let head = format!(
        "# {} bytes, posted at {:.3} us, did not end well\n",
        ended.bytes,
        us(ended.posted_ns)
    );
    head + &text_of_rank_ends(&ended.ranks)
}

/// How ranks ended, a line each.
pub(crate) fn text_of_rank_ends(ends: &[RankEnd]) -> String {
    let mut out = format!(
        "#{:>5} {:>14} {:>6} {:>12}\n",
        "rank", "status", "names", "at (us)"
    );
    for (rank, end) in ends.iter().enumerate() {
        let names = end.names.map_or("-".into(), |r| r.to_string());
        let _ = writeln!(
            out,
            " {rank:>5} {:>14} {names:>6} {:>12.3}",
            status(end),
            us(end.at_ns)
        );
    }
    out
}

/// How an operation ended, by rank.
pub(crate) fn json_of_ends(ended: &Ended) -> Value {
    json!({
        "size_bytes": ended.bytes,
        "posted_us": us(ended.posted_ns),
        "ranks": json_of_rank_ends(&ended.ranks),
    })
}

/// How ranks ended.
pub(crate) fn json_of_rank_ends(ends: &[RankEnd]) -> Value {
    let of = |(rank, end): (usize, &RankEnd)| {
        json!({
            "rank": rank,
            "status": status(end),
            "names": end.names,
            "at_us": us(end.at_ns),
        })
    };
    ends.iter().enumerate().map(of).collect()
}

/// The end of the command when an operation failed.
pub(crate) fn problem(ended: &Ended) -> Problem {
    let failed = ended.ranks.iter().filter(|r| r.is_error()).count();
    let what = format!(
        "an operation of {} bytes failed on {failed} of {} ranks",
        ended.bytes,
        ended.ranks.len()
    );
    let advice = "the report lists what each rank got and whom it names";
    Problem::new(Exit::Failed, what, advice)
}
