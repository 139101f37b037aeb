//! Schedules in GOAL: times by hand and by models, bytes, and what does not end well.

use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::Status;
use ringbell_routes::generate::generate;
use ringbell_sim::goal::{Need, Op, Schedule, Work};
use ringbell_sim::{
    run_goal, Breaks, Cluster, Failure, Fault, GoalPlan, GoalReport, GoalTrouble, Operation,
    Profile,
};

fn of(schedule: Schedule) -> GoalPlan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster::new(schedule.ranks().len(), profile);
    GoalPlan::new(schedule, cluster)
}

fn plan(text: &str) -> GoalPlan {
    of(Schedule::parse("test.goal", text).expect(text))
}

fn run(plan: &GoalPlan) -> GoalReport {
    run_goal(plan).expect("it runs")
}

/// The report of a plan that ends well, with right bytes.
fn well(plan: &GoalPlan) -> GoalReport {
    let report = run(plan);
    assert_eq!((&report.trouble, report.wrong), (&None, 0), "{report:?}");
    report
}

/// Ranks with these statements.
fn text(ranks: &[&str]) -> String {
    let of = |(rank, body): (usize, &&str)| format!("rank {rank} {{\n{body}\n}}\n");
    let ranks_text: String = ranks.iter().enumerate().map(of).collect();
    format!("num_ranks {}\n{ranks_text}", ranks.len())
}

#[test]
fn calculations_take_their_time_and_one_processor_at_a_time() {
    // Rank 0: 100, 200 and 300 on one processor; 250 beside them on another.
    let zero = "a: calc 100\nb: calc 200\nc: calc 300\na requires b\nd: calc 250 cpu 1";
    let one = "a: calc 10\nb: calc 20 cpu 1\nb irequires a\nc: calc 0\nc requires b";
    let report = well(&plan(&text(&[zero, one, ""])));
    assert_eq!(report.ends_ns, [600, 20, 0]);
    assert_eq!((report.time_ns, report.messages), (600, 0));
}

/// When the operations of a rank end that calculates only: a second model, which lets one begin
/// after the other by when each could.
fn ends_of(ops: &[Op]) -> u64 {
    let mut times: Vec<Option<(u64, u64)>> = vec![None; ops.len()];
    let mut free = [0; 256];
    for _ in ops {
        let could = |i: usize| {
            let needs = ops[i].needs.iter().map(|n| {
                let (begin, end) = times[n.op as usize]?;
                Some(if n.begin { begin } else { end })
            });
            let ready = needs.collect::<Option<Vec<u64>>>()?.into_iter().max();
            let ready = ready.unwrap_or(0);
            Some((ready.max(free[usize::from(ops[i].cpu)]), ready, i))
        };
        let open = (0..ops.len()).filter(|i| times[*i].is_none());
        let (begin, _, i) = open.filter_map(could).min().expect("no circle");
        let Work::Calc { ns } = ops[i].work else {
            panic!("it calculates only");
        };
        times[i] = Some((begin, begin + ns));
        free[usize::from(ops[i].cpu)] = begin + ns;
    }
    times.iter().flatten().map(|t| t.1).max().unwrap_or(0)
}

fn op(work: Work, cpu: u8, needs: Vec<Need>) -> Op {
    Op {
        label: None,
        line: 0,
        work,
        cpu,
        needs,
    }
}

#[test]
fn random_calculations_end_when_a_second_model_says() {
    for seed in 0..6 {
        let mut draws = Rng::new(seed);
        let ranks = (0..16).map(|_| {
            let cpus = 1 + draws.below(4);
            let ops = (0..draws.below(60)).map(|i| {
                let count = i.min(draws.below(4));
                let needs = (0..count).map(|_| Need {
                    op: draws.below(i) as u32,
                    begin: draws.below(3) == 0,
                });
                let needs = needs.collect();
                // Many at one time, and many that take none.
                let ns = draws.below(4) * draws.below(50);
                op(Work::Calc { ns }, draws.below(cpus) as u8, needs)
            });
            ops.collect()
        });
        let ranks: Vec<Vec<Op>> = ranks.collect();
        let wanted: Vec<u64> = ranks.iter().map(|ops| ends_of(ops)).collect();
        let report = well(&of(Schedule::new(ranks).expect("no circle")));
        assert_eq!(report.ends_ns, wanted, "seed {seed}");
    }
}

#[test]
fn a_short_message_takes_its_two_links() {
    let zero = "a: send 8b to 1 tag 3\nb: recv 8b from 1 tag 4\nb requires a";
    let one = "a: recv 8b from 0 tag 3\nb: send 8b to 0 tag 4\nb requires a";
    let mut plan = plan(&text(&[zero, one]));
    let report = well(&plan);
    assert_eq!((report.messages, report.bytes), (2, 16));
    // There and back over two links of 1 us each; a frame of some 130 bytes leaves four times.
    assert!((4_000..4_100).contains(&report.time_ns), "{report:?}");
    assert_eq!(report.ends_ns[0], report.time_ns);

    // What the host costs adds up: two doorbells, and two completions of receives.
    plan.cluster.profile.host.doorbell_ns = 300;
    plan.cluster.profile.host.completion_ns = 50;
    // But for the frame of an acknowledgement, behind which an answer may have waited.
    let later = well(&plan).time_ns - report.time_ns;
    assert!((680..=700).contains(&later), "{later}");
}

#[test]
fn a_ring_passes_a_message_around() {
    for ranks in [2, 5, 8] {
        let body = |rank: usize| {
            let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let send = format!("s: send 64b to {next} tag 1");
            let recv = format!("r: recv 64b from {last} tag 1");
            match rank {
                0 => format!("{send}\n{recv}"),
                _ => format!("{send}\n{recv}\nc: calc 500\nc requires r\ns requires c"),
            }
        };
        let bodies: Vec<_> = (0..ranks).map(body).collect();
        let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
        let report = well(&plan(&text(&bodies)));
        let n = ranks as u64;
        let wires = 2_000 * n + 500 * (n - 1);
        let time = report.time_ns;
        assert!((wires..wires + 60 * n).contains(&time), "{ranks}: {time}");
        assert_eq!(report.messages, n);
    }
}

#[test]
fn schedules_as_schedgen_makes_them_take_their_rounds() {
    // Three messages behind each other, of two links each.
    let barrier = include_str!("goal/dissemination_8.goal");
    let report = well(&plan(barrier));
    assert_eq!((report.messages, report.bytes), (24, 24));
    let times = 6_000..6_200;
    assert!(
        report.ends_ns.iter().all(|t| times.contains(t)),
        "{report:?}"
    );

    // Frames of some 1,100 bytes leave twice, 90 ns each time; the root sends three.
    let report = well(&plan(include_str!("goal/binomial_bcast_8.goal")));
    assert_eq!((report.messages, report.bytes), (7, 7 * 1024));
    assert_eq!(report.ends_ns[0], 0);
    assert!((6_000..6_800).contains(&report.time_ns), "{report:?}");
    let of_one = report.ends_ns[1];
    assert!((2_000..2_300).contains(&of_one), "{of_one}");
}

#[test]
fn messages_to_one_rank_share_its_link() {
    let bytes = 1 << 20;
    let receives = "recv 1048576b from -1 tag -1\n".repeat(4);
    let send = "calc 7\nsend 1048576b to 0 tag 9";
    let report = well(&plan(&text(&[&receives, send, send, send, send])));
    assert_eq!(report.bytes, 4 * bytes);
    let least = 4 * bytes * 8 / 100;
    let time = report.time_ns;
    assert!((least..least * 6 / 5).contains(&time), "{time}, {least}");
}

#[test]
fn messages_before_their_receives_leave_as_soon_as_there_is_room() {
    // More than the receiver keeps; the last receives begin a millisecond later.
    let sends = "send 100b to 1\n".repeat(3_000);
    let receives: String = (0..3_000)
        .map(|i| format!("r{i}: recv 100b from 0\nr{i} requires w\n"))
        .collect();
    let report = well(&plan(&text(&[
        &sends,
        &format!("w: calc 1000000\n{receives}"),
    ])));
    assert_eq!(report.messages, 3_000);
    // At most as long again as if each had been waited for.
    let time = report.time_ns;
    assert!((1_000_000..1_200_000).contains(&time), "{time}");
}

#[test]
fn a_rank_sends_to_itself() {
    let zero = "a: send 9b to 0 tag 3\nb: recv 9b from 0 tag 3\nb requires a\n\
                send 100000b to 0\nrecv 100000b from 0";
    let report = well(&plan(&text(&[zero, ""])));
    assert_eq!((report.messages, report.time_ns), (2, 0));
}

/// Messages among ranks, each with a tag of its own; operations wait for earlier ones alone, so
/// nothing waits in a circle. Sizes are on both sides of what is copied, and some are empty.
fn random_messages(seed: u64, ranks: usize) -> Schedule {
    let mut draws = Rng::new(seed);
    let mut all: Vec<Vec<Op>> = vec![Vec::new(); ranks];
    for tag in 0..150 {
        let bytes = match draws.below(6) {
            0 => 0,
            1 => draws.below(65),
            2 => 65_535 + draws.below(3),
            3 => draws.below(300_000),
            _ => draws.below(5_000),
        };
        let (from, to) = (draws.below(ranks as u64), draws.below(ranks as u64));
        let send = Work::Send {
            to: to as u32,
            bytes,
            tag,
        };
        let recv = Work::Recv {
            from: (draws.below(4) > 0).then_some(from as u32),
            bytes: bytes + draws.below(2),
            tag: Some(tag),
        };
        let calc = Work::Calc {
            ns: draws.below(3_000),
        };
        for (rank, work) in [(from, send), (to, recv), (draws.below(ranks as u64), calc)] {
            let ops = &mut all[rank as usize];
            let count = draws.below(3).min(ops.len() as u64);
            let needs = (0..count).map(|_| Need {
                op: draws.below(ops.len() as u64) as u32,
                begin: draws.below(4) == 0,
            });
            let needs = needs.collect();
            ops.push(op(work, draws.below(2) as u8, needs));
        }
    }
    Schedule::new(all).expect("no circle")
}

/// When ranks end at the earliest: a second model, in which messages and processors do not hinder
/// each other, and a message takes two links' delay and its bytes' time on one.
fn earliest(schedule: &Schedule) -> Vec<u64> {
    let mut begins: Vec<Vec<u64>> = schedule.ranks().iter().map(|o| vec![0; o.len()]).collect();
    let mut ends = begins.clone();
    let senders = schedule.ranks().iter().enumerate().flat_map(|(rank, ops)| {
        let ops = ops.iter().enumerate();
        ops.filter_map(move |(i, op)| match op.work {
            Work::Send { tag, bytes, .. } => Some((tag, (rank, i, bytes))),
            _ => None,
        })
    });
    let senders: std::collections::HashMap<_, _> = senders.collect();
    // Times grow until they are right.
    loop {
        let before = ends.clone();
        for (rank, ops) in schedule.ranks().iter().enumerate() {
            for (i, op) in ops.iter().enumerate() {
                let needs = op.needs.iter().map(|n| match n.begin {
                    true => begins[rank][n.op as usize],
                    false => ends[rank][n.op as usize],
                });
                let begin = needs.max().unwrap_or(0);
                begins[rank][i] = begin;
                ends[rank][i] = match op.work {
                    Work::Collective { .. } => unreachable!("none was drawn"),
                    Work::Calc { ns } => begin + ns,
                    Work::Send { .. } => begin,
                    Work::Recv { tag, .. } => {
                        let (from, of, bytes) = senders[&tag.expect("a tag")];
                        let takes = match from == rank {
                            true => 0,
                            false => 2_000 + bytes * 8 / 100,
                        };
                        begin.max(begins[from][of] + takes)
                    }
                };
            }
        }
        if ends == before {
            let last = |ends: &Vec<u64>| ends.iter().copied().max().unwrap_or(0);
            return ends.iter().map(last).collect();
        }
    }
}

#[test]
fn random_messages_arrive_whole_and_no_sooner_than_a_second_model_allows() {
    for (seed, ranks) in [(1, 2), (2, 3), (3, 5), (4, 8), (5, 8)] {
        let schedule = random_messages(seed, ranks);
        let (messages, bytes) = schedule.sent();
        let bounds = earliest(&schedule);
        let mut plan = of(schedule);
        plan.cluster.seed = seed;
        let report = well(&plan);
        assert_eq!((report.messages, report.bytes), (messages, bytes));
        for (end, bound) in report.ends_ns.iter().zip(&bounds) {
            assert!(end >= bound, "seed {seed}: {end}, {bound}");
        }
        assert_eq!(run(&plan), report, "seed {seed}");

        // Less memory for what arrives: receives wait, and get the same.
        plan.room_bytes = 100_000;
        let crowded = well(&plan);
        assert_eq!((crowded.messages, crowded.bytes), (messages, bytes));

        plan.cluster.loss = 0.02;
        plan.cluster.network.topology = Some(generate("fat-tree:2x3").expect("a network"));
        let lossy = well(&plan);
        assert_eq!((lossy.messages, lossy.bytes), (messages, bytes));
        assert!(lossy.counts.lost > 0, "{lossy:?}");
    }
}

#[test]
fn receives_wait_for_room_and_get_their_bytes() {
    let receives = "recv 200000b from -1\n".repeat(12);
    let sends = "send 200000b to 0\n".repeat(4);
    let mut plan = plan(&text(&[&receives, &sends, &sends, &sends]));
    let free = well(&plan);
    assert_eq!(free.waited, 0);
    plan.room_bytes = 0;
    let report = well(&plan);
    assert!(report.waited > 0, "{report:?}");
    assert_eq!(report.bytes, free.bytes);
}

fn stuck(report: &GoalReport) -> (u64, Vec<(usize, u32, &str)>, usize) {
    match &report.trouble {
        Some(GoalTrouble::Stuck {
            since_ns,
            waiting,
            behind,
        }) => {
            let of = |o: &'_ Operation| (o.rank, o.line);
            let waiting = waiting.iter().map(|o| (of(o).0, of(o).1, o.why.as_str()));
            (*since_ns, waiting.collect(), *behind)
        }
        _ => panic!("{report:?}"),
    }
}

/// The sender's NIC may be done with a message whose last packets are still on their way, when
/// nothing else goes on.
#[test]
fn a_copied_message_arrives_though_its_send_has_ended_before() {
    let profile = Profile::by_name("fpganic").expect("it exists");
    for bytes in (64..70_000).step_by(1_487) {
        for from in ["1", "-1"] {
            let sends = format!("send {bytes}b to 0 tag 3");
            let text = text(&[&format!("recv {bytes}b from {from} tag 3"), &sends]);
            let schedule = Schedule::parse("test.goal", &text).expect("it is right");
            let plan = GoalPlan::new(schedule, Cluster::new(2, profile.clone()));
            assert_eq!(well(&plan).bytes, bytes);
        }
    }
}

#[test]
fn a_receive_without_a_send_is_named() {
    let zero = "a: recv 8b from 1 tag 4\nb: calc 5\nc: calc 1\nc requires a";
    let report = run(&plan(&text(&[zero, "send 8b to 0 tag 5"])));
    let why = "rank 1 has no send left for it";
    assert_eq!(stuck(&report), (5, vec![(0, 3, why)], 1));
    let Some(GoalTrouble::Stuck { waiting, .. }) = &report.trouble else {
        panic!("{report:?}");
    };
    assert_eq!(waiting[0].text, "a: recv 8b from 1 tag 4");
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let zero = "a: recv 8b from 1\nb: send 8b to 1\nb requires a";
    let one = "a: recv 8b from 0\nb: send 8b to 0\nb requires a";
    let report = run(&plan(&text(&[zero, one])));
    let (at, waiting, behind) = stuck(&report);
    let whys = [
        "the send of rank 1, line 9, has not begun",
        "the send of rank 0, line 4, has not begun",
    ];
    assert_eq!(waiting, [(0, 3, whys[0]), (1, 8, whys[1])]);
    assert_eq!((at, behind), (0, 2));
}

#[test]
fn a_long_send_without_a_receive_is_named_and_a_short_one_is_left() {
    let report = run(&plan(&text(&["a: send 1000000b to 1", "calc 70"])));
    let why = "rank 1 has no receive left for it";
    assert_eq!(stuck(&report), (70, vec![(0, 3, why)], 0));

    let report = run(&plan(&text(&["a: send 100b to 1 tag 7", "calc 70000"])));
    let Some(GoalTrouble::Unreceived(left)) = &report.trouble else {
        panic!("{report:?}");
    };
    assert_eq!((left.len(), left[0].rank, left[0].line), (1, 0, 3));
}

#[test]
fn a_receive_shorter_than_its_message_is_named() {
    let zero = "send 10b to 1\nsend 70000b to 1 tag 1";
    let one = "recv 10b from 0\nrecv 69999b from 0 tag 1";
    let report = run(&plan(&text(&[zero, one])));
    let Some(GoalTrouble::TooLong(all)) = &report.trouble else {
        panic!("{report:?}");
    };
    assert_eq!((all.len(), all[0].rank, all[0].line), (1, 1, 8));
    assert_eq!(all[0].why, "the message of rank 0, line 4, has 70000 bytes");
    assert_eq!(report.wrong, 0);
}

#[test]
fn a_rank_that_was_killed_is_named_by_those_that_wait_for_it() {
    let sends = "a: calc 100000\nb: send 8b to 0 tag 1\nb requires a\nsend 8b to 2";
    let zero = "recv 8b from 1 tag 1\nrecv 8b from 2 tag 2";
    let two = "a: recv 8b from 1\nb: send 8b to 0 tag 2\nb requires a";
    let mut plan = plan(&text(&[zero, sends, two]));
    plan.cluster.faults = vec![Fault {
        at_ns: 50_000,
        what: Breaks::Rank(1),
    }];
    let report = run(&plan);
    let Some(GoalTrouble::Failed(ends)) = &report.trouble else {
        panic!("{report:?}");
    };
    let ends: Vec<_> = ends.iter().map(|e| (e.status, e.names)).collect();
    assert_eq!(ends[0], (Some(Status::PeerFailed), Some(1)));
    // Rank 2 had ended before.
    assert_eq!(ends[1..], [(None, None), (Some(Status::Ok), None)]);
}

#[test]
fn a_schedule_of_other_ranks_than_the_clusters_is_refused() {
    let of_schedule = 3;
    for ranks in [2, 4] {
        let mut plan = plan(&text(&["send 8b to 1", "recv 8b from 0", ""]));
        plan.cluster.ranks = ranks;
        let refused = Failure::Schedule { ranks, of_schedule };
        assert_eq!(run_goal(&plan), Err(refused));
    }
}
