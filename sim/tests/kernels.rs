//! Kernels on simulated ranks: results, order, faults and hangs, each the same by the same seed.

use ringbell_sim::{
    run_kernel, Failure, KernelPlan, KernelReport, LaunchShape, NetworkPlan, Profile, Slow, Trouble,
};

const RING: &str = include_str!("../../examples/30_simulated_kernel/ring.ptx");

fn plan(kernel: &str, ranks: usize) -> KernelPlan {
    KernelPlan {
        file: "ring.ptx".into(),
        text: RING.into(),
        kernel: Some(kernel.into()),
        shape: LaunchShape::new(1, 1),
        buffer_bytes: 12_012,
        ranks,
        profile: Profile::by_name("ideal").expect("it is built in"),
        network: NetworkPlan::default(),
        loss: 0.0,
        seed: 0,
        slow: Vec::new(),
        within_ns: 60_000_000_000,
    }
}

fn run(plan: &KernelPlan) -> KernelReport {
    run_kernel(plan).expect("it runs")
}

#[test]
fn a_kernel_finds_right_what_ranks_send_and_add() {
    for (ranks, threads, seed) in [(2, 1, 0), (3, 33, 1), (8, 64, 2), (5, 257, 3)] {
        let report = run(&KernelPlan {
            shape: LaunchShape::new(1, threads),
            seed,
            ..plan("ring", ranks)
        });
        assert_eq!(report.trouble, None, "{ranks} ranks, {threads} threads");
        let mut said: Vec<_> = report.printed.clone();
        said.sort();
        let line = |rank| (rank, "1001 values are right".to_owned());
        assert_eq!(said, (0..ranks).map(line).collect::<Vec<_>>());
    }
}

#[test]
fn a_run_of_a_kernel_repeats_by_its_seed_with_loss_and_a_slow_rank() {
    let of_seed = |seed| KernelPlan {
        shape: LaunchShape::new(1, 96),
        loss: 0.03,
        slow: vec![Slow {
            rank: 1,
            factor: 3.0,
        }],
        seed,
        ..plan("ring", 4)
    };
    let (first, again, other) = (run(&of_seed(7)), run(&of_seed(7)), run(&of_seed(8)));
    assert_eq!(first, again);
    assert_eq!((&first.trouble, &other.trouble), (&None, &None));
    assert!(first.lost > 0);
    assert_ne!(first.hash, other.hash);
}

#[test]
fn another_seed_gives_warps_and_blocks_another_order() {
    let order = |seed| {
        let shape = LaunchShape::new(3, 160);
        let plan = plan("order", 2);
        let report = run(&KernelPlan {
            shape,
            seed,
            ..plan
        });
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

#[test]
fn what_is_no_kernel_of_the_convention_is_refused() {
    let refused = |plan: KernelPlan| run_kernel(&plan).expect_err("it is refused").to_string();
    let halo = include_str!("../../examples/16_halo_exchange/halo.ptx");
    let other = refused(KernelPlan {
        text: halo.into(),
        ..plan("halo", 2)
    });
    assert!(other.contains("takes 8 arguments, not 3"), "{other}");
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
