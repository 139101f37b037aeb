//! Execution traces of Chakra: files that its own tools have written, and what is refused.
//!
//! `chakra/step.*.et` was written by Chakra's `et_def_pb2` and `encodeMessage`
//! (github.com/mlcommons/chakra, 21585d8): a step of a job of four ranks. The others are those of
//! its `generator.py` for two ranks and 65,536 bytes.

use std::path::Path;

use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::CollectiveKind;
use ringbell_sim::goal::{Need, Schedule, Work};
use ringbell_sim::{run_goal, Cluster, GoalPlan, GoalReport, GoalTrouble, Profile};

fn files(name: &str, ranks: usize) -> Vec<(String, Vec<u8>)> {
    let file = |rank| {
        let name = format!("{name}.{rank}.et");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chakra");
        let bytes = std::fs::read(path.join(&name)).expect("it is there");
        (name, bytes)
    };
    (0..ranks).map(file).collect()
}

fn schedule(name: &str, ranks: usize) -> Schedule {
    Schedule::from_chakra(&files(name, ranks)).expect(name)
}

fn run(schedule: Schedule) -> GoalReport {
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster::new(schedule.ranks().len(), profile);
    run_goal(&GoalPlan::new(schedule, cluster)).expect("it runs")
}

/// The report of a schedule that ends well, with right bytes.
fn well(schedule: Schedule) -> GoalReport {
    let report = run(schedule);
    assert_eq!((&report.trouble, report.wrong), (&None, 0), "{report:?}");
    report
}

#[test]
fn a_step_is_the_same_as_by_hand() {
    let step = schedule("step", 4);
    let rank = |r: usize| {
        format!(
            "rank {r} {{\nlaunch: calc 3000\nforward: calc {}000 cpu 1\nforward requires launch\n\
             out: send 200000b to {} tag 5 cpu 255\nout requires forward\n\
             in: recv 200000b from {} tag 5 cpu 255\nin requires launch\n\
             backward: calc 60000 cpu 1\nbackward requires in\nbackward requires forward\n\
             call: calc 2000\ncall requires launch\n\
             coll: coll all_reduce 1000004b cpu 255\ncoll requires backward\ncoll requires call\n\
             other: calc 90000 cpu 2\nother requires forward\n\
             end: coll barrier 0b cpu 255\nend requires coll\n}}\n",
            40 + r,
            (r + 1) % 4,
            (r + 3) % 4
        )
    };
    let text: String = (0..4).map(rank).collect();
    let by_hand = Schedule::parse("hand", &format!("num_ranks 4\n{text}")).expect("right");
    let shape = |s: &Schedule| -> Vec<(Work, Vec<Need>)> {
        let ops = s.ranks().iter().flatten();
        let sorted = |mut needs: Vec<Need>| {
            needs.sort_by_key(|n| n.op);
            needs
        };
        ops.map(|op| (op.work, sorted(op.needs.clone()))).collect()
    };
    assert_eq!(shape(&step), shape(&by_hand));
    let report = well(step);
    assert_eq!((report.messages, report.collectives), (4, 8));
    let again = well(by_hand);
    assert_eq!(
        (report.time_ns, report.counts.hash),
        (again.time_ns, again.counts.hash)
    );
    // The slowest rank computes 3 + 43 us, its message takes 20 or more, then 60, then the sum:
    // 1.5 MB each way at 12.5 GB/s.
    assert!(
        (230_000..330_000).contains(&report.time_ns),
        "{}",
        report.time_ns
    );
}

#[test]
fn communication_does_not_wait_for_a_stream() {
    // 500 us of a stream, and beside it a message without dependencies, of the same stream.
    let send: &[(&str, i64)] = &[("comm_dst", 1), ("comm_size", 8)];
    let receive: &[(&str, i64)] = &[("comm_src", 0), ("comm_size", 8)];
    let both = [
        (
            "a".into(),
            file(&[(1, 4, &[], 500, &[]), (3, 5, &[], 0, send)]),
        ),
        (
            "b".into(),
            file(&[(1, 4, &[], 500, &[]), (3, 6, &[], 0, receive)]),
        ),
    ];
    let report = well(Schedule::from_chakra(&both).expect("right"));
    assert!(report.deliveries[0].took_ns < 5_000, "{report:?}");
    assert!(report.deliveries[0].begin_ns < 5_000, "{report:?}");
    assert_eq!(report.ends_ns, [500_000; 2]);
}

#[test]
fn what_chakras_generator_writes_runs() {
    let kinds = [
        ("ALL_REDUCE", CollectiveKind::AllReduce, 65_536),
        // The bytes of a rank, which nccl-tests counts twice.
        ("ALL_GATHER", CollectiveKind::AllGather, 131_072),
        ("REDUCE_SCATTER", CollectiveKind::ReduceScatter, 65_536),
        ("ALL_TO_ALL", CollectiveKind::AllToAll, 65_536),
        ("BROADCAST", CollectiveKind::Broadcast, 65_536),
        ("BARRIER", CollectiveKind::Barrier, 0),
    ];
    for (name, kind, bytes) in kinds {
        let s = schedule(name, 2);
        assert_eq!(
            s.ranks()[1][0].work,
            Work::Collective { kind, bytes },
            "{name}"
        );
        assert_eq!(well(s).collectives, 2, "{name}");
    }
    let times = |name| well(schedule(name, 2)).ends_ns;
    assert_eq!(times("two_comp_nodes_dependent"), [10_000; 2]);
    assert_eq!(times("two_comp_nodes_independent"), [10_000; 2]);
    assert_eq!(times("one_metadata_node_all_types"), [0; 2]);
}

#[test]
fn what_is_not_simulated_is_named() {
    for (name, part) in [
        (
            "one_remote_mem_load_node",
            "MEM_LOAD_NODE: remote memory is not simulated",
        ),
        ("one_comm_send_node", "COMM_SEND_NODE has no `comm_dst`"),
    ] {
        let error = Schedule::from_chakra(&files(name, 2)).expect_err(name);
        assert!(error.to_string().contains(part), "{error}");
    }
    // A rank without the all-reduce of the others: a group of some of them.
    let mut mixed = files("ALL_REDUCE", 2);
    mixed.extend(files("two_comp_nodes_dependent", 1));
    let error = Schedule::from_chakra(&mixed).expect_err("a group");
    assert!(
        error
            .what
            .contains("0 collectives of the process group ``, where rank 0 has 1"),
        "{error}"
    );
    // Ranks that differ in what they sum.
    let mut mixed = files("ALL_REDUCE", 1);
    mixed.extend(files("BROADCAST", 2).split_off(1));
    let report = run(Schedule::from_chakra(&mixed).expect("it is read"));
    assert!(
        matches!(report.trouble, Some(GoalTrouble::Failed(_))),
        "{report:?}"
    );
}

#[test]
fn a_collective_that_a_rank_never_begins_is_named() {
    let text = "num_ranks 3\nrank 0 {\na: coll all_reduce 8b\nb: coll all_reduce 8b\nb requires a\n}\n\
        rank 1 {\na: coll all_reduce 8b\n}\nrank 2 {\na: coll all_reduce 8b\nb: recv 8b from 1\nc: coll all_reduce 8b\nc requires b\n}\n";
    let report = run(Schedule::parse("short", text).expect("right"));
    let Some(GoalTrouble::Stuck {
        waiting, behind, ..
    }) = &report.trouble
    else {
        panic!("{report:?}");
    };
    let whys: Vec<_> = waiting.iter().map(|o| (o.rank, o.why.as_str())).collect();
    let why = "rank 1 has begun 1 collectives, this is the next";
    assert_eq!(whys, [(0, why), (2, "rank 1 has no send left for it")]);
    assert_eq!((*behind, report.collectives), (1, 3));
}

#[test]
fn collectives_of_any_order_and_size_are_right_among_messages() {
    for seed in 0..12 {
        let mut draws = Rng::new(seed);
        let ranks = 2 + draws.below(6) as usize;
        let mut text = vec![String::new(); ranks];
        for i in 0..1 + draws.below(12) {
            let kinds = [
                "all_reduce",
                "all_gather",
                "reduce_scatter",
                "broadcast",
                "reduce",
                "all_to_all",
                "barrier",
            ];
            let kind = kinds[draws.below(7) as usize];
            let most = 1 << draws.below(15);
            let bytes = 4 * ranks as u64 * (1 + draws.below(most));
            // Each behind the one before it on half of the runs, all at once on the others.
            for t in &mut text {
                *t += &format!("c{i}: coll {kind} {bytes}b\n");
                if i > 0 && seed % 2 == 0 {
                    *t += &format!("c{i} requires c{}\n", i - 1);
                }
            }
            let from = draws.below(ranks as u64) as usize;
            let to = (from + 1) % ranks;
            let size = 1 + draws.below(100_000);
            text[from] += &format!("s{i}: send {size}b to {to} tag {i}\n");
            text[to] += &format!("r{i}: recv {size}b from {from} tag {i}\n");
        }
        let of = |(rank, body): (usize, &String)| format!("rank {rank} {{\n{body}}}\n");
        let all: String = text.iter().enumerate().map(of).collect();
        let s = Schedule::parse("drawn", &format!("num_ranks {ranks}\n{all}")).expect("right");
        let again = Schedule::parse("again", &s.to_string()).expect("right");
        assert_eq!(again.to_string(), s.to_string());
        let wanted = s.ranks().iter().flatten();
        let wanted = wanted
            .filter(|op| matches!(op.work, Work::Collective { .. }))
            .count();
        let profile = Profile::by_name("ideal").expect("it exists");
        let mut plan = GoalPlan::new(s, Cluster::new(ranks, profile));
        // Room for few results at once on some runs.
        plan.room_bytes = [0, 256 << 20][usize::from(seed % 3 > 0)];
        let report = run_goal(&plan).expect("it runs");
        assert_eq!(
            (&report.trouble, report.wrong),
            (&None, 0),
            "seed {seed}: {report:?}"
        );
        assert_eq!(report.collectives, wanted as u64, "seed {seed}");
    }
}

/// A protobuf message of fields, each a number and bytes or a number.
enum Field<'f> {
    Number(u8, u64),
    Bytes(u8, &'f [u8]),
}

fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 128 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
}

fn message(fields: &[Field<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for field in fields {
        match field {
            Field::Number(tag, n) => {
                body.push(tag << 3);
                varint(*n, &mut body);
            }
            Field::Bytes(tag, bytes) => {
                body.push(tag << 3 | 2);
                varint(bytes.len() as u64, &mut body);
                body.extend(*bytes);
            }
        }
    }
    let mut out = Vec::new();
    varint(body.len() as u64, &mut out);
    out.extend(body);
    out
}

/// A node: id, type, dependencies, duration, and attributes of int64.
type Drawn<'n> = (u64, u64, &'n [u64], u64, &'n [(&'n str, i64)]);

/// A file of nodes.
fn file(nodes: &[Drawn<'_>]) -> Vec<u8> {
    let mut out = message(&[Field::Bytes(1, b"1.0.0")]);
    for (id, kind, deps, us, attributes) in nodes {
        let attributes: Vec<Vec<u8>> = attributes
            .iter()
            .map(|(name, value)| {
                let whole = message(&[
                    Field::Bytes(1, name.as_bytes()),
                    Field::Number(9, *value as u64),
                ]);
                whole[1..].to_vec()
            })
            .collect();
        let mut fields = vec![
            Field::Number(1, *id),
            Field::Bytes(2, b"x"),
            Field::Number(3, *kind),
        ];
        fields.extend(deps.iter().map(|d| Field::Number(5, *d)));
        fields.push(Field::Number(7, *us));
        fields.extend(attributes.iter().map(|a| Field::Bytes(10, a)));
        out.extend(message(&fields));
    }
    out
}

#[test]
fn what_is_no_trace_is_refused_by_file_and_node() {
    let of = |bytes: Vec<u8>| {
        let files = [
            ("a.0.et".to_owned(), bytes),
            ("a.1.et".to_owned(), file(&[])),
        ];
        let error = Schedule::from_chakra(&files).expect_err("wrong");
        error.to_string()
    };
    let send: &[(&str, i64)] = &[("comm_dst", 1), ("comm_size", 8)];
    assert_eq!(
        well(
            Schedule::from_chakra(&[
                ("a".into(), file(&[(7, 5, &[], 0, send)])),
                (
                    "b".into(),
                    file(&[(9, 6, &[], 0, &[("comm_src", 0), ("comm_size", 8)])])
                ),
            ])
            .expect("right")
        )
        .messages,
        1
    );
    let mut cut = file(&[(1, 4, &[], 5, &[])]);
    cut.pop();
    for (bytes, wanted) in [
        (
            b"\x1f\x8b\x08".to_vec(),
            "a.0.et: compressed; run gunzip first",
        ),
        (
            b"num_ranks 2".to_vec(),
            "a.0.et: no message at byte 0, or the file ends in it",
        ),
        (
            Vec::new(),
            "a.0.et: no trace of Chakra: it does not begin with a `GlobalMetadata`",
        ),
        (
            message(&[Field::Number(1, 3)]),
            "a.0.et: no trace of Chakra",
        ),
        (cut, "a.0.et: no message at byte 8, or the file ends in it"),
        (
            file(&[(1, 9, &[], 0, &[])]),
            "a.0.et: node 1: x has type 9, expected 1 to 7",
        ),
        (
            file(&[(1, 4, &[], 0, &[]), (1, 4, &[], 0, &[])]),
            "a.0.et: node 1: this `id` is there twice",
        ),
        (
            file(&[(1, 4, &[2], 0, &[])]),
            "a.0.et: node 1: it depends on node 2, which is not there",
        ),
        (
            file(&[(1, 4, &[2], 0, &[]), (2, 4, &[1], 0, &[])]),
            "a.0.et: dependencies in a circle: ",
        ),
        (
            file(&[(1, 4, &[], u64::MAX / 1000, &[])]),
            "a.0.et: node 1: x: `duration_micros` is too long",
        ),
        (
            file(&[(1, 5, &[], 0, &[("comm_dst", 2), ("comm_size", 8)])]),
            "a.0.et: node 1: `comm_dst` is 2, expected 0 to 1",
        ),
        (
            file(&[(1, 5, &[], 0, &[("comm_dst", 1), ("comm_size", -1)])]),
            "a.0.et: node 1: `comm_size` is -1",
        ),
        (
            file(&[(1, 5, &[], 0, &[("comm_dst", 1)])]),
            "a.0.et: node 1: x has no `comm_size`",
        ),
        (
            file(&[(1, 7, &[], 0, &[("comm_type", 3), ("comm_size", 8)])]),
            "a.0.et: node 1: GATHER is not simulated",
        ),
        (
            file(&[(1, 7, &[], 0, &[("comm_type", 10)])]),
            "a.0.et: node 1: `comm_type` is 10, expected 0 to 9",
        ),
    ] {
        let said = of(bytes);
        assert!(said.starts_with(wanted), "{said}, wanted {wanted}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let whole = files("step", 1).remove(0).1;
    let mut draws = Rng::new(7);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + draws.below(3) {
            let at = draws.below(bytes.len() as u64) as usize;
            bytes[at] = draws.below(256) as u8;
        }
        bytes.truncate(1 + draws.below(2 * whole.len() as u64) as usize);
        taken += usize::from(Schedule::from_chakra(&[("x".into(), bytes)]).is_ok());
    }
    assert!(taken > 0, "some changes matter to no one");
}

#[test]
fn what_is_written_is_read_again() {
    for name in ["step", "ALL_GATHER", "BARRIER", "two_comp_nodes_dependent"] {
        let ranks = if name == "step" { 4 } else { 2 };
        let first = schedule(name, ranks);
        let files = first.to_chakra().expect(name).into_iter();
        let files: Vec<_> = files.map(|f| (name.to_owned(), f)).collect();
        let again = Schedule::from_chakra(&files).expect(name);
        let shape = |s: &Schedule| -> Vec<(Work, u8, Vec<Need>)> {
            let ops = s.ranks().iter().flatten();
            ops.map(|op| (op.work, op.cpu, op.needs.clone())).collect()
        };
        assert_eq!(shape(&again), shape(&first), "{name}");
        assert_eq!(well(again).counts.hash, well(first).counts.hash, "{name}");
    }
    for (body, what) in [
        ("calc 1500", "rank 0: calc 1500: no whole microseconds"),
        (
            "recv 8b from -1",
            "rank 0: recv 8b from -1 tag 0: a node names sender and tag",
        ),
        (
            "a: calc 0\nb: calc 0\nb irequires a",
            "rank 0: b: calc 0: it waits for a begin, and nodes wait for ends",
        ),
    ] {
        let text = format!("num_ranks 2\nrank 0 {{\n{body}\n}}\n");
        let error = Schedule::parse("a", &text)
            .expect("right")
            .to_chakra()
            .expect_err(body);
        assert_eq!(error.to_string(), what);
    }
}
