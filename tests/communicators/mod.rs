//! NICs of several ranks in one process, for tests of communicators.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use std::path::PathBuf;
use std::time::Duration;

use ringbell::gpu::GpuChoice;
use ringbell::nic::QueueConfig;
use ringbell::{CommOptions, Communicator, Nic, Operation, ReduceOp};

/// Long enough for any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// NICs of one test, which meet in a directory of their own.
pub struct Ranks {
    pub nics: Vec<Nic>,
    directory: PathBuf,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.nics.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The GPU selected for the tests (`RINGBELL_TEST_GPU`, as in
/// cuda-kernels/tests/common/test_gpu.rs).
pub fn gpu_choice() -> GpuChoice {
    match std::env::var("RINGBELL_TEST_GPU").as_deref() {
        Ok("cuda") => GpuChoice::Cuda(0),
        _ => GpuChoice::Auto,
    }
}

pub fn ranks(name: &str, n: u8) -> Ranks {
    ranks_with(name, n, QueueConfig::default())
}

/// The same with queues of this shape.
pub fn ranks_with(name: &str, n: u8, queue: QueueConfig) -> Ranks {
    let directory = std::env::temp_dir().join(format!("rb-comm-{name}-{}", std::process::id()));
    let open = |i: u8| {
        let nic = Nic::builder().ip(format!("10.66.0.{}/24", i + 1));
        let nic = nic.gpu(gpu_choice()).gpu_memory(16 << 20);
        let nic = nic.transport("local").directory(&directory).queue(queue);
        nic.open().expect("a NIC")
    };
    Ranks {
        nics: (0..n).map(open).collect(),
        directory,
    }
}

/// Runs `f` as every rank; returns the results.
pub fn each<R: Send>(comms: &[Communicator], f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = comms.iter().map(|c| s.spawn(move || f(c))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a rank panicked"))
            .collect()
    })
}

pub fn options() -> CommOptions {
    CommOptions {
        init_timeout: PATIENCE,
        timeout: PATIENCE,
        ..CommOptions::default()
    }
}

/// Captures an all-reduce, and a send and a receive around a ring, and replays them with data that
/// differs from round to round, on any GPU.
pub fn replays(c: &Communicator) {
    let (rank, size, count) = (c.rank(), c.size(), 1021_u64);
    let value = |r: u32, round: u32, i: u64| (r + 3) * 1_000_003 + round * 97 + i as u32 * 7919;
    let bytes = |f: &dyn Fn(u64) -> u32| -> Vec<u8> {
        (0..count).flat_map(|i| f(i).to_ne_bytes()).collect()
    };
    let [src, sums, before] = [(); 3].map(|()| c.nic().alloc::<u8>(count * 4).expect("memory"));
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let stream = c.nic().gpu().stream();
    stream.begin_capture().expect("the GPU has graphs");
    let sum = Operation::all_reduce::<u32>(&src, &sums, count, ReduceOp::Sum);
    let mut queued = vec![c.enqueue(&sum, &stream).expect("captured")];
    let send = Operation::send::<u32>(&src, count, next, 5);
    let recv = Operation::recv::<u32>(&before, count, Some(previous), Some(5));
    // A kernel waits for each: the first rank sends first, the others receive first.
    let both = if rank == 0 {
        [send, recv]
    } else {
        [recv, send]
    };
    for operation in &both {
        queued.push(c.enqueue(operation, &stream).expect("captured"));
    }
    assert!(queued[0].wait(PATIENCE).is_err(), "captured, not run");
    let refused = Communicator::enqueue_group(vec![(c.clone(), sum)], &stream, |_| {});
    assert!(refused.is_err(), "the host posts a group");
    let graph = stream.end_capture().expect("kernels alone");
    for round in 0..7 {
        src.write(0, &bytes(&|i| value(rank, round, i)))
            .expect("inside");
        let replay = graph.launch(&stream).expect("queued");
        replay
            .wait(PATIENCE)
            .unwrap_or_else(|e| panic!("rank {rank}, round {round}: {e}"));
        for q in &queued {
            q.replayed()
                .unwrap_or_else(|e| panic!("rank {rank}, round {round}: {e}"));
        }
        let mut got = vec![0; count as usize * 4];
        sums.read(0, &mut got).expect("inside");
        let all = |i| (0..size).fold(0_u32, |s, r| s.wrapping_add(value(r, round, i)));
        assert!(got == bytes(&all), "rank {rank}, round {round}: sums");
        before.read(0, &mut got).expect("inside");
        let theirs = |i| value(previous, round, i);
        assert!(
            got == bytes(&theirs),
            "rank {rank}, round {round}: the ring"
        );
    }
    // The next operation of the communicator, by the host, after the replays took their tickets on
    // the GPU.
    c.all_reduce::<u32>(&src, &sums, count, ReduceOp::Sum)
        .expect("all come");
}

/// Queued and captured operations have the communicator's defaults: algorithm, wire type and
/// time-out.
pub fn defaults_in_streams(name: &str) {
    use ringbell::abi::Status;
    use ringbell::comm::{CollectiveKind, WireType};
    use ringbell::{Algorithm, CollectiveError};
    let r = ranks(name, 2);
    let defaults = CommOptions {
        algo: Algorithm::RecursiveDoubling,
        wire: WireType::Bf16,
        timeout: Duration::from_millis(400),
        ..options()
    };
    let comms = Communicator::init_all(&r.nics, &defaults).expect("all come");
    each(&comms, |c| {
        let count = 777_u64;
        let [src, queued, replayed] =
            [(); 3].map(|()| c.nic().alloc::<u8>(count * 4).expect("memory"));
        // A mantissa of 24 bits; the wire carries 8.
        let value = |i: u64| 1.0 + (c.rank() as f32 + 1.0) * (i as f32 + 0.3) / 1e4;
        let mine: Vec<u8> = (0..count).flat_map(|i| value(i).to_ne_bytes()).collect();
        src.write(0, &mine).expect("inside");
        let stream = c.nic().gpu().stream();
        let sum = |dst| Operation::all_reduce::<f32>(&src, dst, count, ReduceOp::Sum);
        let patient = |o: Operation| o.timeout(PATIENCE);
        let first = c.enqueue(&patient(sum(&queued)), &stream).expect("queued");
        first.wait(PATIENCE * 2).expect("all come");
        stream.begin_capture().expect("the GPU has graphs");
        let captured = c.enqueue(&patient(sum(&replayed)), &stream);
        let captured = captured.expect("captured");
        let graph = stream.end_capture().expect("a kernel alone");
        let replay = graph.launch(&stream).expect("it starts");
        replay.wait(PATIENCE * 2).expect("it ends");
        captured.replayed().expect("all come");
        let chosen: Vec<_> = c.info().expect("alive").chosen;
        let how = (CollectiveKind::AllReduce, Algorithm::RecursiveDoubling, 2);
        assert!(chosen.contains(&how), "{chosen:?}");
        let mut got = [vec![0; mine.len()], vec![0; mine.len()]];
        queued.read(0, &mut got[0]).expect("inside");
        replayed.read(0, &mut got[1]).expect("inside");
        assert!(got[0] == got[1]);
        let exact = |i: u64| {
            (0..2)
                .map(|r| 1.0 + (r as f32 + 1.0) * (i as f32 + 0.3) / 1e4)
                .sum()
        };
        let exact: Vec<u8> = (0..count).map(exact).flat_map(f32::to_ne_bytes).collect();
        assert!(got[0] != exact, "nothing was rounded on the wire");
        // No rank sends this; the other rank has finished all the rest.
        c.run(&patient(Operation::barrier())).expect("all come");
        let late = Operation::recv::<u8>(&src, 1, Some(1 - c.rank()), Some(9));
        let late = c.enqueue(&late, &stream).expect("queued");
        match late.wait(PATIENCE) {
            Err(CollectiveError::Failed { status, .. }) => assert!(
                matches!(status, Status::TimedOut | Status::CommAborted),
                "{status}"
            ),
            other => panic!("{other:?}"),
        }
    });
}

/// Queues of a NIC that are in use, those that close included.
pub fn queues(nic: &Nic) -> u32 {
    let register = nic
        .backend()
        .bar_read32(ringbell::abi::bar::Reg::Queues.offset());
    register.expect("a register")
}
