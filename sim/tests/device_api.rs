//! Kernels on simulated ranks that use windows, streams and queues for blocks: those of the
//! examples, as they are, held to serial programs.

use ringbell_sim::{
    run_kernel, Cluster, Contents, Failure, KernelArgument, KernelPlan, KernelReport, LaunchShape,
    Profile, Trouble,
};

const HALO: &str = include_str!("../../examples/16_halo_exchange/halo.ptx");
const STORE: &str = include_str!("../../examples/17_key_value_store/store.ptx");
const PRODUCE: &str = include_str!("../../examples/11_kernel_stream/produce.ptx");
const BLOCKS: &str = include_str!("../../tests/communicators/blocks.ptx");

/// Bytes of a `gpu_result`, whose first word is 0 when all went well.
const RESULT: u64 = 24;
/// Longest wait of these kernels.
const TIMEOUT_US: u32 = 10_000_000;

/// A kernel with arguments as on the command line.
fn plan(text: &str, kernel: &str, ranks: usize, arguments: &str) -> KernelPlan {
    let profile = Profile::by_name("ideal").expect("it is built in");
    let arguments = arguments.split_whitespace();
    KernelPlan {
        file: "kernels.ptx".into(),
        text: text.into(),
        kernel: Some(kernel.into()),
        shape: LaunchShape::new(1, 1),
        arguments: arguments.map(|a| a.parse().expect("a word")).collect(),
        buffer_bytes: 64 << 10,
        contents: Contents::Zeros,
        block_queues: 0,
        cluster: Cluster::new(ranks, profile),
        within_ns: 60_000_000_000,
    }
}

fn run(plan: &KernelPlan) -> KernelReport {
    let report = run_kernel(plan).expect("it runs");
    assert_eq!(report.trouble, None);
    report
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn status(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

const COLS: usize = 18;
const SIGNAL_BYTES: usize = 64;

fn start(row: usize, col: usize) -> f32 {
    let x = (row * COLS + col) as u32;
    (x.wrapping_mul(2_654_435_761) >> 20) as f32 * 0.25
}

fn grid(rows: impl Iterator<Item = usize>) -> Vec<f32> {
    let of_row = |row| (0..COLS).map(move |col| start(row, col));
    rows.flat_map(of_row).collect()
}

/// All rows after so many steps, by one thread.
fn serial_stencil(rows: usize, steps: u32) -> Vec<f32> {
    let mut from = grid(0..rows + 2);
    for _ in 0..steps {
        let mut to = from.clone();
        for row in 1..=rows {
            for at in row * COLS + 1..(row + 1) * COLS - 1 {
                to[at] =
                    0.25 * ((from[at - COLS] + from[at + COLS]) + (from[at - 1] + from[at + 1]));
            }
        }
        from = to;
    }
    from[COLS..(rows + 1) * COLS].to_vec()
}

#[test]
fn puts_with_signals_into_windows_make_the_stencil_of_a_serial_program() {
    for (ranks, rows, steps, seed, loss) in
        [(2, 7, 9, 0, 0.0), (3, 4, 12, 5, 0.02), (6, 1, 15, 9, 0.05)]
    {
        let arguments = format!("comm window buffer {rows} {COLS} {steps} {TIMEOUT_US} zeros:24");
        let mut plan = plan(HALO, "halo", ranks, &arguments);
        plan.shape = LaunchShape::new(1, 32);
        (plan.cluster.seed, plan.cluster.loss) = (seed, loss);
        let of_rank = |rank: usize| {
            let both = grid(rank * rows..rank * rows + rows + 2).repeat(2);
            let mut bytes = vec![0; SIGNAL_BYTES];
            bytes.extend(both.into_iter().flat_map(f32::to_le_bytes));
            bytes
        };
        plan.contents = Contents::Given((0..ranks).map(of_rank).collect());
        let report = run(&plan);
        assert_eq!(report.counts.lost > 0, loss > 0.0);
        let strip = 4 * (rows + 2) * COLS;
        let last = SIGNAL_BYTES + if steps % 2 == 0 { 0 } else { strip };
        let mut got = Vec::new();
        for memory in &report.memory {
            assert_eq!(status(&memory[1], 0), 0);
            let own = &memory[0][last + 4 * COLS..][..4 * rows * COLS];
            got.extend_from_slice(own);
        }
        let wanted = serial_stencil(ranks * rows, steps);
        let wanted: Vec<u8> = wanted.into_iter().flat_map(f32::to_le_bytes).collect();
        assert!(got == wanted, "{ranks} ranks");
        assert_eq!(report, run(&plan), "the same again");
    }
}

#[test]
fn reads_and_compared_swaps_of_many_threads_keep_a_store_whole() {
    const BUCKET: usize = 64;
    const REPORT: usize = 56;
    let (buckets, keys, steps, threads) = (64_u64, 20, 12_u64, 6_u64);
    for (ranks, seed, loss) in [(2, 0, 0.0), (4, 3, 0.02)] {
        let (scratch, out) = (threads * BUCKET as u64, threads * REPORT as u64);
        let arguments =
            format!("comm window buffer zeros:{scratch} {buckets} {keys} {steps} zeros:{out}");
        let mut plan = plan(STORE, "use_store", ranks, &arguments);
        plan.shape = LaunchShape::new(2, threads as u32 / 2);
        (plan.cluster.seed, plan.cluster.loss) = (seed, loss);
        let report = run(&plan);
        let (mut done, mut puts, mut changes) = (0, 0, 0);
        for memory in &report.memory {
            for at in (0..out as usize).step_by(REPORT) {
                let of_thread = &memory[2][at..at + REPORT];
                assert_eq!(status(of_thread, 0), 0);
                let [gets, own, _, wrong] = [24, 32, 40, 48].map(|at| word(of_thread, at));
                assert_eq!(wrong, 0);
                done += gets + own;
                puts += own;
            }
            let versions = (0..buckets as usize).map(|b| word(&memory[0], b * BUCKET));
            changes += versions.map(|v| v / 2).sum::<u64>();
        }
        assert_eq!(done, ranks as u64 * threads * steps);
        assert!(puts > 0);
        assert_eq!(changes, puts, "each PUT changes one version");
    }
}

/// What `produce.cu` computes.
fn value(rank: u32, i: u64) -> f32 {
    let x = (i as u32 + 1).wrapping_mul(2_654_435_761) ^ (rank + 1).wrapping_mul(0x9e37_79b9);
    (x >> 8) as f32 * 0.000_976_562_5 - 8192.0
}

#[test]
fn streams_bring_kernels_the_sums_of_what_they_push() {
    // Of two values there is one sum, in any order.
    let digest = |count: u64| {
        let of = |i| u64::from((value(0, i) + value(1, i)).to_bits());
        (0..count).fold(0_u64, |d, i| d.wrapping_add((i + 1).wrapping_mul(of(i))))
    };
    for (count, ring, threads, seed, loss) in [
        (1_u64, "64K", 1, 0, 0.0),
        (10_007, "8K", 33, 4, 0.0),
        (5_000, "16K", 64, 7, 0.03),
    ] {
        let arguments = format!("comm stream:{ring} stream:{ring} {count} zeros:8 zeros:72");
        let mut plan = plan(PRODUCE, "produce_and_consume", 2, &arguments);
        plan.shape = LaunchShape::new(2, threads);
        (plan.cluster.seed, plan.cluster.loss) = (seed, loss);
        let report = run(&plan);
        for memory in &report.memory {
            let ends = [0, 1, 2].map(|i| status(&memory[2], i * RESULT as usize));
            assert_eq!(ends, [0; 3]);
            assert_eq!(word(&memory[1], 0), digest(count), "{count} values");
        }
    }
}

#[test]
fn blocks_exchange_messages_over_queues_of_their_own() {
    let (blocks, rounds, window) = (6_u64, 5_u32, 8_usize);
    // More blocks than queues share them; without queues they share the communicator's.
    for (queues, seed, loss) in [(0, 0, 0.0), (4, 1, 0.02), (6, 2, 0.0)] {
        let (memory, ends) = (blocks * 128, blocks * RESULT);
        let arguments =
            format!("comm next {rounds} {window} {TIMEOUT_US} zeros:{memory} zeros:4 zeros:{ends}");
        let mut plan = plan(BLOCKS, "exchange", 2, &arguments);
        plan.shape = LaunchShape::new(blocks as u32, 1);
        plan.block_queues = queues;
        (plan.cluster.seed, plan.cluster.loss) = (seed, loss);
        let report = run(&plan);
        for (rank, memory) in report.memory.iter().enumerate() {
            let peer = 1 - rank as u32;
            for b in 0..blocks as usize {
                assert_eq!(status(&memory[3], b * RESULT as usize), 0);
                // The last that has come to each place.
                for i in 0..window {
                    let got = status(&memory[1], b * 128 + 64 + 4 * i);
                    let last = (rounds - 1) * window as u32 + i as u32;
                    assert_eq!(got, (peer << 24 | (b as u32) << 16) + last);
                }
            }
            assert_eq!(status(&memory[2], 0), 0, "wrong words");
        }
    }
}

/// Why a plan is refused.
fn refusal(plan: &KernelPlan) -> String {
    match run_kernel(plan) {
        Err(Failure::Kernel(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_by_name() {
    let of = |arguments| plan(HALO, "halo", 2, arguments);
    let why = refusal(&of("comm buffer bytes"));
    assert!(
        why.contains("`halo` has 8 parameters, and 3 arguments"),
        "{why}"
    );
    // A number of 32 bits, and one that does not fit it.
    for (arguments, which) in [
        ("window comm buffer 1 2 3 4 zeros:24", "parameter 1 "),
        (
            "comm window buffer 4294967296 2 3 4 zeros:24",
            "parameter 4 ",
        ),
        (
            "comm window buffer 1 -2147483649 3 4 zeros:24",
            "parameter 5 ",
        ),
        ("comm window buffer 1 2 3 buffer zeros:24", "parameter 7 "),
        ("comm window buffer 1 2 3 4 comm", "parameter 8 "),
    ] {
        let why = refusal(&of(arguments));
        assert!(why.contains(which) && why.contains("does not fit"), "{why}");
    }
    let good = of("comm window buffer 1 2 3 4 zeros:24");
    let queues = KernelPlan {
        block_queues: 64,
        ..good.clone()
    };
    assert!(refusal(&queues).contains("at most 63 blocks"));
    let few = KernelPlan {
        contents: Contents::Given(vec![Vec::new()]),
        ..good.clone()
    };
    assert!(refusal(&few).contains("of 1 buffers are given, and there are 2 ranks"));
    let long = KernelPlan {
        contents: Contents::Given(vec![Vec::new(), vec![0; (64 << 10) + 1]]),
        ..good
    };
    let why = refusal(&long);
    assert!(why.contains("rank 1's buffer have 65537 bytes"), "{why}");
}

#[test]
fn a_stream_that_no_rank_feeds_is_told_as_a_hang() {
    // One block alone pushes, and nothing pops: its ring is full after 4 KiB.
    let arguments = "comm stream:4K stream:4K 100000 zeros:8 zeros:72";
    let mut plan = plan(PRODUCE, "produce_and_consume", 2, arguments);
    plan.within_ns = 3_000_000;
    let report = run_kernel(&plan).expect("it runs");
    let Some(Trouble::Hung { waits, .. }) = &report.trouble else {
        panic!("{report:?}");
    };
    assert_eq!(waits.len(), 2);
    for (_, text) in waits {
        assert!(text.contains("its NIC has not ended 1"), "{text}");
    }
    assert_eq!(plan.arguments[1], KernelArgument::Stream(4_096));
}
