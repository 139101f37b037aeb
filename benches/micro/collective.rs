//! Cost of the engine per step of a program, and per call.
//!
//! All ranks are NICs of this process over `local`, stepped by one thread in turn: the numbers are
//! the engine's own work, without threads that wait. Time is of a call on all ranks; throughput,
//! "elements" to Criterion, is steps of their programs, so that its inverse is the overhead per
//! step. Run with `cargo bench --profile dist -p ringbell-micro --bench collective`; instructions
//! of the same are counted by `counts.rs`.

mod ranks;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use ranks::World;
use ringbell_nic_abi::{Algorithm, CollectiveKind};

/// Collectives whose programs have few bytes to move: what is left is the engine.
const ROWS: [(CollectiveKind, Algorithm, u64); 5] = [
    (CollectiveKind::Barrier, Algorithm::RecursiveDoubling, 0),
    (CollectiveKind::AllReduce, Algorithm::Ring, 16),
    (CollectiveKind::AllReduce, Algorithm::AllGatherReduce, 16),
    (CollectiveKind::AllReduce, Algorithm::Ring, 16 << 10),
    (CollectiveKind::AllReduce, Algorithm::Ring, 1 << 20),
];

fn steps(c: &mut Criterion) {
    for ranks in [2usize, 4, 8] {
        let w = World::new(ranks);
        let mut group = c.benchmark_group(format!("{ranks} ranks"));
        for (kind, algo, count) in ROWS {
            let before = w.steps();
            w.call(kind, algo, count);
            group.throughput(Throughput::Elements(w.steps() - before));
            let id = BenchmarkId::new(format!("{kind:?} {algo:?}"), count * 4);
            group.bench_function(id, |b| b.iter(|| w.call(kind, algo, count)));
            if kind == CollectiveKind::AllReduce {
                assert_eq!(w.wrong_sums(count as usize), 0, "wrong sums");
            }
        }
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
