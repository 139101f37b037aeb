//! Connection matrices of htsim: what htsim's own runs give, triggers, and what is refused.
//!
//! `htsim/*.cm` are examples of htsim (github.com/Broadcom/csg-htsim, 841d9e7, with its licence
//! beside them).

use ringbell_gtlb::testing::Rng;
use ringbell_nic_core::transport::rdma::Congestion;
use ringbell_sim::goal::{Schedule, Work};
use ringbell_sim::{
    run_goal, Cluster, Delivery, GoalPlan, GoalReport, NetworkPlan, Pauses, Profile, Reaction,
};

/// Sixteen hosts at four leaves and four spines.
const LEAF_SPINE: &str = "Nodes 16\nTiers 2\nPodsize 16\nTier 0\nDownlink_speed_Gbps 100\n\
    Radix_Down 4\nRadix_Up 4\nDownlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\n\
    Radix_Down 4\nDownlink_Latency_ns 1000\n";

fn schedule(text: &str) -> Schedule {
    Schedule::parse("test.cm", text).expect(text)
}

/// A run that ends well, with right bytes.
fn well(plan: &GoalPlan) -> GoalReport {
    let report = run_goal(plan).expect("it runs");
    assert_eq!((&report.trouble, report.wrong), (&None, 0), "{report:?}");
    report
}

/// On a leaf-spine network as htsim's `main_roce` has it: packets of 4,096 bytes, inputs that pause
/// from 15 packets on until 12, and sources that heed nothing else.
fn as_main_roce(text: &str) -> GoalReport {
    let mut profile = Profile::by_name("ideal").expect("it exists");
    profile.mtu = 4096 + 60;
    profile.switches.pauses = Some(Pauses {
        pause_bytes: 15 * 4096,
        resume_bytes: 12 * 4096,
    });
    let schedule = schedule(text);
    let mut cluster = Cluster::new(schedule.ranks().len(), profile);
    let topology = ringbell_routes::file::parse("leaf-spine", LEAF_SPINE);
    cluster.network = NetworkPlan {
        topology: Some(topology.expect("a tree")),
        ..NetworkPlan::default()
    };
    cluster.reaction = Reaction {
        congestion: Congestion::Fixed,
        ..Reaction::default()
    };
    well(&GoalPlan::new(schedule, cluster))
}

/// The times of all messages, the shortest first, in microseconds.
fn times(report: &GoalReport) -> Vec<f64> {
    let mut all: Vec<u64> = report.deliveries.iter().map(|d| d.took_ns).collect();
    all.sort_unstable();
    all.iter().map(|ns| *ns as f64 / 1e3).collect()
}

fn is_near(what: &str, ours: f64, theirs: f64, share: f64) {
    let off = ours / theirs - 1.0;
    assert!(off.abs() < share, "{what}: {ours} us, htsim {theirs} us");
}

#[test]
fn flows_end_when_those_of_htsim_do() {
    // `htsim_roce -topo leaf_spine_16.topo -tm one.cm -nodes 16 -strat ecmp_host -paths 16
    // -linkspeed 100000 -mtu 4096 -q 1000`: finished at 171.758. Ours asks for a long message
    // first.
    let one = times(&as_main_roce(include_str!("htsim/one.cm")));
    is_near("one flow", one[0], 171.758, 0.04);
    // The same with incast.cm: the first at 1,117.89, the last at 2,447.44.
    let incast = times(&as_main_roce(include_str!("htsim/incast.cm")));
    assert_eq!(incast.len(), 15);
    is_near("the first of 15 flows", incast[0], 1_117.89, 0.02);
    is_near("the last of 15 flows", incast[14], 2_447.44, 0.02);
}

fn ideal(text: &str) -> GoalReport {
    let schedule = schedule(text);
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster::new(schedule.ranks().len(), profile);
    well(&GoalPlan::new(schedule, cluster))
}

/// The message of a line.
fn of_line(report: &GoalReport, line: u32) -> &Delivery {
    let mut all = report.deliveries.iter();
    all.find(|d| d.line == line).expect("it was received")
}

#[test]
fn flows_begin_when_they_are_to() {
    // Several of one host at one time and at others, not in their order; fractions of nanoseconds.
    let text = "# comment\nNodes 4\nConnections 5\n0->1 start 7000000 size 100\n\
        0->2 start 2.5e6 size 100000\n\n0->3 id 9 start 7000400 size 8\n3->0 start 0 size 8\n\
        0->1 start 7000000 size 8\n";
    let report = ideal(text);
    let begins = [4, 5, 7, 8, 9].map(|line| of_line(&report, line).begin_ns);
    assert_eq!(begins, [7_000, 2_500, 7_000, 0, 7_000]);
    assert_eq!(of_line(&report, 7).ends, [0, 3]);
}

#[test]
fn triggers_wait_for_the_end_at_their_own_host() {
    // A chain round a ring, as gen_allreduce.py writes it; then a barrier of two receives and a
    // send.
    let text = "Nodes 4\nConnections 7\nTriggers 4\n\
        0->1 id 1 start 0 size 90000 send_done_trigger 1\n\
        1->2 id 2 trigger 1 size 90000 send_done_trigger 2\n\
        2->3 id 3 trigger 2 size 90000 recv_done_trigger 3\n\
        3->0 id 4 trigger 3 size 90000 send_done_trigger 4\n\
        2->0 id 5 start 0 size 8 recv_done_trigger 4\n\
        0->3 id 6 start 400000000 size 8 send_done_trigger 4\n\
        0->2 id 7 trigger 4 size 8\n\
        trigger id 1 oneshot\ntrigger id 2 oneshot\ntrigger id 3 oneshot\n\
        trigger id 4 barrier count 3\n";
    let report = ideal(text);
    for line in 5..8 {
        let before = of_line(&report, line - 1);
        let end = before.begin_ns + before.took_ns;
        // Ends of messages are rounded down to nanoseconds.
        assert!(
            of_line(&report, line).begin_ns.abs_diff(end) <= 1,
            "line {line}"
        );
    }
    assert_eq!(of_line(&report, 9).begin_ns, 400_000);
    // The send is copied and has ended when it begins; the receives were earlier.
    assert_eq!(of_line(&report, 10).begin_ns, 400_000);
}

#[test]
fn what_is_triggered_does_not_wait_for_the_start_of_another() {
    let text = "Nodes 2\n1->0 start 0 size 8 recv_done_trigger 1\n0->1 start 400000000 size 8\n\
        0->1 trigger 1 size 8\ntrigger id 1 oneshot\n";
    let report = ideal(text);
    assert_eq!(of_line(&report, 3).begin_ns, 400_000);
    assert!(of_line(&report, 4).begin_ns < 5_000, "{report:?}");
}

#[test]
fn a_barrier_of_many_connections_triggers_many() {
    // As many pairs as no memory holds, if each waited for each.
    let many = 20_000;
    let before = "1->0 start 0 size 8 recv_done_trigger 1\n".repeat(many);
    let behind = "0->1 trigger 1 size 8\n".repeat(many);
    let text = format!("Nodes 2\n{before}{behind}trigger id 1 barrier count {many}\n");
    let schedule = schedule(&text);
    let needs = schedule.ranks().iter().flatten().map(|op| op.needs.len());
    assert_eq!(needs.sum::<usize>(), 2 * many);
}

#[test]
fn random_flows_are_the_messages_that_were_asked_for() {
    for seed in 0..20 {
        let mut draws = Rng::new(seed);
        let hosts = 2 + draws.below(9);
        let mut text = format!("Nodes {hosts}\n");
        let mut wanted = Vec::new();
        for line in 0..draws.below(60) as u32 {
            let from = draws.below(hosts);
            let to = (from + 1 + draws.below(hosts - 1)) % hosts;
            let bytes = 1 + draws.below(200_000);
            let start_ns = draws.below(3) * draws.below(100_000);
            text += &format!("{from}->{to} size {bytes} start {}000\n", start_ns);
            wanted.push((line + 2, [from as u32, to as u32], bytes, start_ns));
        }
        let report = ideal(&text);
        let of = |d: &Delivery| (d.line, d.ends, d.bytes, d.begin_ns);
        let mut got: Vec<_> = report.deliveries.iter().map(of).collect();
        got.sort_unstable();
        assert_eq!(got, wanted, "seed {seed}");
        // It survives the way through GOAL.
        let again = schedule(&schedule(&text).to_string());
        let works =
            |s: &Schedule| -> Vec<Work> { s.ranks().iter().flatten().map(|op| op.work).collect() };
        assert_eq!(works(&again), works(&schedule(&text)));
    }
}

#[test]
fn what_is_no_matrix_is_refused_by_line_and_column() {
    let two = "Nodes 3\nConnections 2\nTriggers 1\n0->1 id 1 start 0 size 9 send_done_trigger 5\n\
        1->2 id 2 trigger 5 size 9\ntrigger id 5 oneshot\n";
    assert_eq!(ideal(two).messages, 2);
    for (line, other, place, part) in [
        ("Nodes 3", "Nodes 1", (1, 7), "from 2 to"),
        ("Nodes 3", "Nodes", (1, 1), "`nothing` behind `Nodes`"),
        (
            "Connections 2",
            "Connections 3",
            (2, 1),
            "3 connections are promised, and 2 are there",
        ),
        (
            "Triggers 1",
            "Triggers 2",
            (3, 1),
            "2 triggers are promised",
        ),
        (
            "Triggers 1",
            "Triggers 1 2",
            (3, 12),
            "expected the end of the line",
        ),
        ("0->1", "0->3", (4, 1), "two of the 3 nodes"),
        ("0->1", "0->0", (4, 1), "two of the 3 nodes"),
        ("0->1", "0-1", (4, 1), "expected a connection"),
        ("start 0", "start soon", (4, 17), "picoseconds"),
        ("start 0", "start -1", (4, 17), "picoseconds"),
        ("start 0", "", (4, 1), "either a `start` or a `trigger`"),
        (
            "start 0",
            "trigger 5 start 0",
            (4, 1),
            "either a `start` or a `trigger`",
        ),
        ("size 9 send", "size 0 send", (4, 24), "from 1 to"),
        ("size 9 send", "send", (4, 1), "no `size`"),
        ("size 9 send", "prio 1 size 9 send", (4, 19), "one priority"),
        (
            "size 9 send",
            "bytes 9 send",
            (4, 19),
            "`bytes`, expected `id`",
        ),
        (
            "trigger 5 size",
            "trigger 6 size",
            (5, 1),
            "trigger 6 is not there",
        ),
        (
            "done_trigger 5",
            "done_trigger 6",
            (4, 1),
            "trigger 6 is not there",
        ),
        ("oneshot", "multishot", (6, 14), "depends on the run"),
        ("oneshot", "barrier", (6, 1), "a `barrier` has a `count`"),
        (
            "oneshot",
            "oneshot count 2",
            (6, 1),
            "a `barrier` has a `count`",
        ),
        (
            "oneshot",
            "barrier count 2",
            (5, 1),
            "needs 2 activations, and 1",
        ),
        ("trigger id 5", "trigger", (6, 1), "has an `id`"),
        (
            "oneshot",
            "oneshot\nfailure switch_type TOR",
            (7, 1),
            "--cut cuts a wire",
        ),
        ("1->2 id 2", "2->1 id 2", (5, 1), "at nodes 0 and 1"),
        (
            "0->1 id 1 start 0",
            "0->1 id 1 trigger 5",
            (1, 1),
            "triggers in a circle: lines 4",
        ),
    ] {
        let text = two.replacen(line, other, 1);
        assert_ne!(text, two, "{line}");
        let error = Schedule::parse("test.cm", &text).expect_err(&text);
        assert!(error.what.contains(part), "{line} -> {other}: {error}");
        assert_eq!(
            (error.line, error.column),
            place,
            "{line} -> {other}: {error}"
        );
    }
}
