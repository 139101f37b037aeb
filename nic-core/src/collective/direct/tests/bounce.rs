//! Operations on memory that peers cannot map: through windows in NIC memory.

use super::*;
use crate::collective::direct::bounce::window_bytes;

const HIDDEN: Access = Access {
    exported: false,
    writable: true,
};
const READ_ONLY: Access = Access {
    exported: true,
    writable: false,
};
const OUT: u64 = VA + (1 << 21);

#[test]
fn every_collective_gives_the_same_bits_through_windows() {
    for n in [1, 2, 3, 7] {
        let mut cases = Vec::new();
        for kind in COLLECTIVES.into_iter().filter(|k| *k != K::Barrier) {
            // One element more than the record takes, and several slices with an odd rest.
            for count in [EAGER / 4 + 1, 40_003] {
                let root = if kind.has_root() { n - 1 } else { 0 };
                let p = params(kind, DataType::F32, ReduceOp::Sum, root, count);
                cases.push((p, false, HIDDEN));
            }
        }
        for (dtype, count) in [(DataType::F16, 100_001), (DataType::F64, 30_011)] {
            let p = params(K::AllReduce, dtype, ReduceOp::Prod, 0, count);
            // In place, results that may not be written by peers too.
            cases.extend([(p, true, HIDDEN), (p, true, READ_ONLY)]);
        }
        check(n, cases, |s| s.bounced);
    }
}

#[test]
fn a_last_slice_of_fewer_elements_than_chunks_keeps_its_place() {
    for n in [2, 3, 5] {
        // Elements of each chunk in a slice, and in all slices but the last.
        let each = window_bytes(n) / (4 * u64::from(n));
        let cases = (1..u64::from(n)).map(|rest| {
            let count = each * u64::from(n) + rest;
            let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, count);
            (p, rest % 2 == 0, HIDDEN)
        });
        check(n, cases.collect(), |s| s.bounced);
    }
}

#[test]
fn operations_with_and_without_hidden_memory_mix() {
    ranks(3, 1, |me| {
        for i in 0..120u64 {
            let count = [3, 100, 20_000 + i, 5_000][i as usize % 4];
            let p = params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, count);
            let value = (u64::from(me.rank) + 1) * (i + 1);
            let data: Vec<u8> = (0..count).flat_map(|e| (value + e).to_le_bytes()).collect();
            me.gpu.write(VA, &data);
            let hidden = i % 5 == u64::from(me.rank);
            let grants = if hidden { HIDDEN } else { ALL };
            let outcome = me.run(p, (VA, count * 8), (OUT, count * 8), grants);
            assert_eq!(outcome, Outcome::Done);
            let want: Vec<u8> = (0..count)
                .flat_map(|e| (6 * (i + 1) + 3 * e).to_le_bytes())
                .collect();
            assert!(me.gpu.read(OUT, count * 8) == want, "operation {i}");
        }
        let s = me.comms[0].stats();
        assert_eq!((s.eager, s.push + s.bounced, s.fallback), (60, 60, 0));
        assert!(s.bounced >= 30, "{s:?}");
    });
}

#[test]
fn operations_through_windows_posted_ahead_on_two_communicators() {
    ranks(2, 2, |me| {
        let (posts, count) = (6u64, 40_000u64);
        let place = |comm: u64, i: u64| VA + comm * (1 << 21) + i * 320_000;
        for i in 0..posts {
            for comm in 0..2u64 {
                let v = (me.rank + 1) * (i as u32 + 1) + comm as u32;
                let data: Vec<u8> = (0..count).flat_map(|_| v.to_le_bytes()).collect();
                let at = place(comm, i);
                me.gpu.write(at, &data);
                let p = params(K::AllReduce, DataType::U32, ReduceOp::Sum, 0, count);
                let [input, output] = [(); 2].map(|()| me.gpu.pages(at, count * 4, HIDDEN));
                post(&mut me.comms[comm as usize], i, p, input, output);
            }
        }
        let mut done = [0, 0];
        let deadline = Instant::now() + PATIENCE;
        while done != [posts; 2] {
            assert!(Instant::now() < deadline, "{done:?}");
            for c in [me.rank as usize % 2, 1 - me.rank as usize % 2] {
                let mut out = Vec::new();
                me.step(c, &mut out);
                assert!(out.iter().all(|e| e.outcome == Outcome::Done));
                done[c] += out.len() as u64;
            }
            std::thread::yield_now();
        }
        for comm in 0..2u64 {
            for i in 0..posts {
                let want = 3 * (i as u32 + 1) + 2 * comm as u32;
                let want: Vec<u8> = (0..count).flat_map(|_| want.to_le_bytes()).collect();
                assert!(me.gpu.read(place(comm, i), count * 4) == want, "{comm} {i}");
            }
        }
    });
}

#[test]
fn without_nic_memory_for_windows_all_ranks_use_messages() {
    let outcomes = ranks(3, 1, |me| {
        let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 5000);
        let buffers = ((VA, p.count * 4), (OUT, p.count * 4));
        let taken = (me.rank == 1).then(|| {
            let free = me.nic_memory.len() - me.nic_memory.used();
            let all = (0..64).rev().map(|i| free * (i + 1) / 64);
            all.filter_map(|n| me.nic_memory.alloc(n / 64 * 64))
                .collect::<Vec<_>>()
        });
        let first = me.run(p, buffers.0, buffers.1, HIDDEN);
        let taken = taken.into_iter().flatten();
        taken.for_each(|b| me.nic_memory.free(b));
        (first, me.run(p, buffers.0, buffers.1, HIDDEN))
    });
    assert_eq!(outcomes, vec![(Outcome::Fallback, Outcome::Done); 3]);
}

#[test]
fn a_rank_that_fails_or_aborts_between_slices_ends_the_others() {
    for aborts in [false, true] {
        for after in 1..4 {
            let outcomes = ranks(3, 1, move |me| {
                let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 500_000);
                let bytes = p.count * 4;
                let pages = |at| me.gpu.pages(at, bytes, HIDDEN);
                let (input, output) = (pages(VA), pages(OUT));
                post(&mut me.comms[0], 1, p, input, output);
                if me.rank != 1 {
                    return Some(me.finish(0));
                }
                let mut out = Vec::new();
                for _ in 0..after {
                    me.step(0, &mut out);
                    std::thread::yield_now();
                }
                if !aborts {
                    me.world.windows[1].gone.store(true, Ordering::Relaxed);
                    return None;
                }
                let now = me.now();
                me.comms[0].abort(now);
                assert_eq!(me.finish(0), Outcome::Aborted);
                // From here on the buffer is the user's.
                me.gpu.write(OUT, &vec![0x5a; bytes as usize]);
                std::thread::sleep(Duration::from_millis(2));
                assert!(me.gpu.read(OUT, bytes) == vec![0x5a; bytes as usize]);
                None
            });
            for o in outcomes.into_iter().flatten() {
                let ends = matches!(o, Outcome::PeerFailed { .. } | Outcome::PeerAborted { .. });
                assert!(ends, "{o:?} after {after} steps");
            }
        }
    }
}
