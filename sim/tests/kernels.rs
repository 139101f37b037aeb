//! Kernels on simulated ranks: results, order, faults and hangs, each the same by the same seed.

use ringbell_routes::generate::generate;
use ringbell_sim::{
    run_kernel, run_kernel_watched, Breaks, Cluster, Contents, Failure, Fault, KernelPlan,
    KernelReport, LaunchShape, Profile, Slow, Trouble, Watch, DEFAULT_ARGUMENTS,
};
use serde_json::Value;

use crate::bytes::Bytes;

const RING: &str = include_str!("../../examples/30_simulated_kernel/ring.ptx");

fn plan(kernel: &str, ranks: usize) -> KernelPlan {
    let profile = Profile::by_name("ideal").expect("it is built in");
    KernelPlan {
        file: "ring.ptx".into(),
        text: RING.into(),
        kernel: Some(kernel.into()),
        shape: LaunchShape::new(1, 1),
        arguments: DEFAULT_ARGUMENTS.to_vec(),
        buffer_bytes: 12_012,
        contents: Contents::Seed,
        block_queues: 0,
        cluster: Cluster::new(ranks, profile),
        within_ns: 60_000_000_000,
    }
}

fn run(plan: &KernelPlan) -> KernelReport {
    run_kernel(plan).expect("it runs")
}

#[test]
fn a_kernel_finds_right_what_ranks_send_and_add() {
    for (ranks, threads, seed) in [(2, 1, 0), (3, 33, 1), (8, 64, 2), (5, 257, 3)] {
        let mut plan = plan("ring", ranks);
        plan.shape = LaunchShape::new(1, threads);
        plan.cluster.seed = seed;
        let report = run(&plan);
        assert_eq!(report.trouble, None, "{ranks} ranks, {threads} threads");
        let mut said: Vec<_> = report.printed.clone();
        said.sort();
        let line = |rank| (rank, "1001 values are right".to_owned());
        assert_eq!(said, (0..ranks).map(line).collect::<Vec<_>>());
    }
}

#[test]
fn a_run_of_a_kernel_repeats_by_its_seed_with_loss_and_a_slow_rank() {
    let of_seed = |seed| {
        let mut plan = plan("ring", 4);
        plan.shape = LaunchShape::new(1, 96);
        plan.cluster.loss = 0.03;
        plan.cluster.slow = vec![Slow {
            rank: 1,
            factor: 3.0,
        }];
        plan.cluster.seed = seed;
        plan
    };
    let (first, again, other) = (run(&of_seed(7)), run(&of_seed(7)), run(&of_seed(8)));
    assert_eq!(first, again);
    assert_eq!((&first.trouble, &other.trouble), (&None, &None));
    assert!(first.counts.lost > 0);
    assert_ne!(first.counts.hash, other.counts.hash);
}

#[test]
fn another_seed_gives_warps_and_blocks_another_order() {
    let order = |seed| {
        let mut plan = plan("order", 2);
        plan.shape = LaunchShape::new(3, 160);
        plan.cluster.seed = seed;
        let report = run(&plan);
        assert_eq!(report.trouble, None);
        assert_eq!(report.printed.len(), 2 * 3 * 5);
        report.printed
    };
    let own = order(0);
    let of_rank: Vec<_> = own.iter().filter(|(rank, _)| *rank == 0).collect();
    let warps = |block| (0..5).map(move |w| format!("block {block} warp {w}"));
    for block in 0..3 {
        let lines = of_rank.iter().map(|(_, line)| line.clone());
        let begins = format!("block {block} ");
        let lines: Vec<_> = lines.filter(|l| l.starts_with(&begins)).collect();
        assert_eq!(lines, warps(block).collect::<Vec<_>>());
    }
    let others: Vec<_> = (1..6).map(order).collect();
    assert!(others.iter().any(|o| *o != own));
    assert_eq!(others[2], order(3));
}

#[test]
fn a_message_that_nobody_sends_ends_by_the_kernels_time_out() {
    let report = run(&plan("lost", 3));
    let Some(Trouble::Failed { rank: 0, why }) = &report.trouble else {
        panic!("{report:?}");
    };
    assert!(
        why.contains("thread (0,0,0)") && why.contains("ring.ptx:"),
        "{why}"
    );
    assert!(report.printed[0].1.contains("received.ok()"), "{report:?}");
    // 10 s of virtual time, and what a growing pause is late.
    let late = report.time_ns as f64 / 10e9;
    assert!((1.0..1.05).contains(&late), "{late}");
    assert_eq!(report, run(&plan("lost", 3)));
}

#[test]
fn a_wait_without_end_is_told_by_rank_thread_and_word() {
    let report = run(&plan("hangs", 3));
    let Some(Trouble::Hung { waits, .. }) = &report.trouble else {
        panic!("{report:?}");
    };
    let [(0, text)] = &waits[..] else {
        panic!("{waits:?}");
    };
    assert!(text.contains("block (0,0,0): thread 0 loops at"), "{text}");
    assert!(text.contains("until they are no longer 12012"), "{text}");
}

#[test]
fn a_deadline_within_a_wait_tells_of_the_nics_operation() {
    let report = run(&KernelPlan {
        within_ns: 2_000_000,
        ..plan("lost", 2)
    });
    let Some(Trouble::Hung {
        is_over: false,
        waits,
    }) = &report.trouble
    else {
        panic!("{report:?}");
    };
    assert!(
        waits[0]
            .1
            .contains("its NIC has not ended 1 of its operations"),
        "{waits:?}"
    );
}

/// Kernels that add up until a rank dies, and what breaks meanwhile.
fn outlives(ranks: usize, faults: &[(Breaks, u64)]) -> KernelPlan {
    let faults = faults.iter();
    let mut plan = plan("outlives", ranks);
    plan.cluster.faults = faults.map(|&(what, at_ns)| Fault { at_ns, what }).collect();
    plan
}

/// The rank that each rank named as dead, if it said something.
fn named(report: &KernelReport, ranks: usize) -> Vec<Option<usize>> {
    let mut named = vec![None; ranks];
    for (rank, line) in &report.printed {
        let dead = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        assert_eq!(named[*rank].replace(dead.expect(line)), None, "{line}");
    }
    named
}

#[test]
fn kernels_outlive_a_rank_and_learn_its_number() {
    for (ranks, dead, at_ns) in [(3, 1, 40_000), (5, 0, 77_777), (2, 1, 0), (7, 6, 1)] {
        let plan = outlives(ranks, &[(Breaks::Rank(dead), at_ns)]);
        let report = run(&plan);
        assert_eq!(report.trouble, None, "{ranks} ranks");
        assert_eq!(report.broken, plan.cluster.faults, "{ranks} ranks");
        let wanted = (0..ranks).map(|rank| (rank != dead).then_some(dead));
        assert_eq!(named(&report, ranks), wanted.collect::<Vec<_>>());
        let first = report
            .printed
            .iter()
            .all(|(_, l)| l.ends_with("before sum 0"));
        assert_eq!(first, at_ns < 2, "{report:?}");
        assert_eq!(run(&plan), report);
    }
}

#[test]
fn a_kernel_goes_on_when_all_other_ranks_are_dead() {
    let dead = [(0, 60_000), (2, 0), (3, 30_000)].map(|(r, at)| (Breaks::Rank(r), at));
    let report = run(&outlives(4, &dead));
    assert_eq!(report.trouble, None);
    // In the order of time.
    let broken: Vec<_> = report.broken.iter().map(|f| f.at_ns).collect();
    assert_eq!(broken, [0, 30_000, 60_000]);
    let named = named(&report, 4);
    assert_eq!((named[0], named[2], named[3]), (None, None, None));
    assert!(named[1].is_some_and(|dead| dead != 1), "{named:?}");

    // Without any the run is over.
    let all = [0, 1, 2].map(|rank| (Breaks::Rank(rank), 5_000));
    let report = run(&outlives(3, &all));
    assert_eq!((&report.trouble, report.broken.len()), (&None, 3));
    assert_eq!((report.printed.len(), report.time_ns), (0, 5_000));
}

/// Addresses of memory are the process's own: another test may have taken one meanwhile.
fn without_addresses(mut report: KernelReport) -> KernelReport {
    if let Some(Trouble::Hung { waits, .. }) = &mut report.trouble {
        for (_, text) in waits {
            let words = text.split(' ').filter(|word| !word.starts_with("0x7"));
            *text = words.collect::<Vec<_>>().join(" ");
        }
    }
    report
}

#[test]
fn a_kernels_life_is_in_the_timeline_and_changes_nothing() {
    let killed = [(Breaks::Rank(1), 40_000)];
    for plan in [
        plan("ring", 3),
        outlives(3, &killed),
        plan("hangs", 2),
        plan("lost", 2),
    ] {
        let name = plan.kernel.clone().expect("a name");
        let file = Bytes::default();
        let watch = Watch::default().timeline(file.clone());
        let report = run_kernel_watched(&plan, watch.capture(1, Bytes::default()));
        let report = report.expect("it runs");
        let [watched, plain] = [report.clone(), run(&plan)].map(without_addresses);
        assert_eq!(watched, plain, "{name}");
        let trace: Value = serde_json::from_slice(&file.all()).expect("JSON");
        let entries = trace["traceEvents"].as_array().expect("a list");
        let lives = entries.iter().filter(|e| {
            let title = e["name"].as_str().expect("a name");
            title == name || title.starts_with(&format!("{name}: "))
        });
        let number = |e: &Value, key: &str| e[key].as_f64().expect("a number");
        let lives: Vec<_> = lives
            .map(|e| (e["name"].as_str(), number(e, "dur")))
            .collect();
        assert_eq!(lives.len(), plan.cluster.ranks, "{lives:?}");
        let longest = lives.iter().map(|l| l.1).fold(0.0, f64::max);
        // The report has whole nanoseconds.
        let took = report.time_ns as f64 / 1e3;
        assert!(
            (longest - took).abs() < 2e-3,
            "{name}: {longest}, not {took}"
        );
        let others = lives.iter().filter(|l| l.0 != Some(&name)).map(|l| l.0);
        let wanted: &[_] = match name.as_str() {
            "outlives" => &[Some("outlives: killed")],
            "hangs" => &[Some("hangs: has not ended")],
            "lost" => &[Some("lost: failed")],
            _ => &[],
        };
        assert_eq!(others.collect::<Vec<_>>(), wanted);
        let busy = entries.iter().any(|e| e["name"] == "1 operation");
        assert_eq!(busy, name != "hangs", "{name}");
    }
}

#[test]
fn a_fault_behind_the_end_changes_nothing() {
    let late = 50_000_000_000;
    let (whole, faulty) = (outlives(3, &[]), outlives(3, &[(Breaks::Rank(1), late)]));
    let report = run(&whole);
    assert_eq!((&report.trouble, report.broken.len()), (&None, 0));
    assert!(report.printed.iter().all(|(_, line)| line == "all live"));
    assert_eq!(run(&faulty), report);
}

#[test]
fn a_cut_that_parts_the_network_parts_the_kernels() {
    let mut plan = outlives(4, &[]);
    let cluster = &mut plan.cluster;
    cluster.network.topology = Some(generate("fat-tree:2x2").expect("a network"));
    // The wires up from the leaf of ranks 0 and 1.
    for end in ["s2:2", "s2:3"] {
        let what = Breaks::Wire(cluster.network.wire_named(4, end).expect("a wire"));
        let at_ns = 50_000;
        cluster.faults.push(Fault { at_ns, what });
    }
    let report = run(&plan);
    assert_eq!((&report.trouble, report.broken.len()), (&None, 2));
    for (rank, named) in named(&report, 4).into_iter().enumerate() {
        let named = named.expect("all live");
        assert_eq!(named < 2, rank >= 2, "{rank} names {named}");
    }
}

#[test]
fn a_hang_lists_the_living_and_what_broke() {
    let of = |dead| {
        let mut plan = outlives(3, &[(Breaks::Rank(dead), 9_000)]);
        plan.kernel = Some("hangs".into());
        plan.within_ns = 1_000_000;
        run(&plan)
    };
    let report = of(2);
    let Some(Trouble::Hung { waits, .. }) = &report.trouble else {
        panic!("{report:?}");
    };
    assert_eq!((waits.len(), waits[0].0, report.broken.len()), (1, 0, 1));
    // The one that would hang has died.
    let report = of(0);
    assert_eq!((report.trouble, report.time_ns), (None, 9_000));
}

#[test]
fn what_is_no_kernel_of_the_file_is_refused() {
    let refused = |plan: KernelPlan| run_kernel(&plan).expect_err("it is refused").to_string();
    let unnamed = refused(KernelPlan {
        kernel: None,
        ..plan("", 2)
    });
    assert!(unnamed.contains("several kernels"), "{unnamed}");
    assert!(refused(plan("nope", 2)).contains("no kernel `nope`; give one of: ring"));
    let large = run_kernel(&KernelPlan {
        buffer_bytes: 16 << 30,
        ..plan("ring", 2)
    });
    assert!(matches!(large, Err(Failure::Large { .. })), "{large:?}");
}
