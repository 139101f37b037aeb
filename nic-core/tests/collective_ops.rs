//! What surrounds the programs: messages, chains, in-place forms, types, sizes, limits, user
//! programs.

use crate::collective_support;

use collective_support::nic::{within, BASE};
use collective_support::{Call, Rng, Wire, World};
use ringbell_gtlb::Access;
use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind as K, DataType, Descriptor, Flags, GpuVa, Opcode, ReduceOp,
    SessionId, Status, WireType,
};
use ringbell_nic_core::collective::{CancelError, CollectiveSettings, CommStatus};
use ringbell_onc_engines::program::{generate_all, Layout, Target};

fn fill(w: &World, rank: usize, at: u64, len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed ^ (rank as u64) << 40);
    let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    w.host(rank).poke(at, &bytes);
    bytes
}

fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

#[test]
fn messages_of_all_sizes_meet_receives_posted_before_and_after() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &small());
        for (i, len) in [0u64, 1, 255, 256, 257, 70_001].into_iter().enumerate() {
            for early in [false, true] {
                let data = fill(&w, 1, 64, len as usize, i as u64);
                w.host(0).poke(4096, &vec![0xaa; len as usize + 1]);
                let byte = |k| {
                    Call::new(k, len)
                        .of(DataType::U8, ReduceOp::Sum)
                        .tag(i as u32)
                };
                let send = byte(K::Send).root(0).at(64, 0);
                let recv = byte(K::Recv).root(1).at(0, 4096);
                let (r, s);
                if early {
                    s = w.post(1, &send);
                    for _ in 0..200 {
                        w.step();
                    }
                    r = w.post(0, &recv);
                } else {
                    r = w.post(0, &recv);
                    s = w.post(1, &send);
                }
                let done = w.settle(&[(0, r), (1, s)]);
                assert!(
                    done.iter()
                        .all(|c| c.status == Status::Ok && c.bytes == len),
                    "{done:?}"
                );
                assert_eq!(done[0].detail, 1 << 32 | i as u64, "sender and tag");
                assert_eq!(w.host(0).peek(4096, len as usize), data);
                assert_eq!(w.host(0).peek(4096 + len, 1), [0xaa]);
            }
        }
    }
}

#[test]
fn any_takes_the_oldest_and_tags_distinguish_messages() {
    let mut w = World::new(3, Wire::Local, &small());
    let word = |k| Call::new(k, 1).of(DataType::U64, ReduceOp::Sum);
    for (rank, tag) in [(1usize, 5u32), (2, 6)] {
        w.host(rank).poke(0, &u64::from(tag).to_le_bytes());
        let t = w.post(rank, &word(K::Send).root(0).tag(tag));
        w.settle(&[(rank, t)]);
    }
    // The younger one first, by its tag; then any message.
    let by_tag = w.post(0, &word(K::Recv).root(ANY_RANK).tag(6).at(0, 64));
    let any = w.post(0, &word(K::Recv).root(ANY_RANK).tag(ANY_TAG).at(0, 128));
    let done = w.settle(&[(0, by_tag), (0, any)]);
    assert_eq!(done[0].detail, 2 << 32 | 6);
    assert_eq!(done[1].detail, 1 << 32 | 5);
    assert_eq!(w.host(0).peek(64, 8), 6u64.to_le_bytes());
    assert_eq!(w.host(0).peek(128, 8), 5u64.to_le_bytes());
}

#[test]
fn more_messages_than_buffers_push_back_and_lose_nothing() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &small());
        let n = 100u32;
        let call = |k, i: u32| {
            let c = Call::new(k, 200).of(DataType::U8, ReduceOp::Sum).tag(i % 7);
            c.at(u64::from(i) * 256, (1 << 20) + u64::from(i) * 256)
        };
        let sent: Vec<_> = (0..n)
            .map(|i| fill(&w, 0, u64::from(i) * 256, 200, i.into()))
            .collect();
        let sends: Vec<_> = (0..n)
            .map(|i| (0, w.post(0, &call(K::Send, i).root(1))))
            .collect();
        for _ in 0..2000 {
            w.step();
        }
        // Received by tag: within a tag in order, tags in another.
        let mut order: Vec<u32> = (0..n).collect();
        order.sort_by_key(|i| (6 - i % 7, *i));
        let recvs: Vec<_> = order
            .iter()
            .map(|i| (1, w.post(1, &call(K::Recv, *i).root(0))))
            .collect();
        let all: Vec<_> = sends.into_iter().chain(recvs).collect();
        for c in w.settle(&all) {
            assert_eq!((c.status, c.bytes), (Status::Ok, 200));
        }
        for (i, want) in sent.iter().enumerate() {
            assert_eq!(
                &w.host(1).peek((1 << 20) + i as u64 * 256, 200),
                want,
                "message {i}"
            );
        }
        let info = w.host(0).nic.communicator_info(w.comms[0]).expect("known");
        assert!(info.counters.without_credit > 0, "{info:?}");
    }
}

#[test]
fn a_message_too_large_is_an_error_on_both_sides_and_the_next_works() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &small());
        for len in [100u64, 5000] {
            let call = |k, n| Call::new(k, n).of(DataType::U8, ReduceOp::Sum);
            w.host(1).poke(8 << 20, &[0x55; 64]);
            let r = w.post(1, &call(K::Recv, 50).root(0));
            for _ in 0..50 {
                w.step();
            }
            let s = w.post(0, &call(K::Send, len).root(1));
            for c in w.settle(&[(1, r), (0, s)]) {
                assert_eq!((c.status, c.detail), (Status::MessageTooLarge, len));
            }
            assert_eq!(w.host(1).peek(8 << 20, 64), [0x55; 64]);
            let s = w.post(0, &call(K::Send, len).root(1));
            let r = w.post(1, &call(K::Recv, len).root(0));
            for c in w.settle(&[(1, r), (0, s)]) {
                assert_eq!(c.status, Status::Ok);
            }
        }
    }
}

#[test]
fn chains_and_fences_keep_their_order() {
    let mut w = World::new(2, Wire::Local, &small());
    let byte = |k, n| Call::new(k, n).of(DataType::U8, ReduceOp::Sum);
    // Receive, then (after it) copy what came, then (fence) send it back.
    fill(&w, 0, 0, 32, 9);
    let sent = w.host(0).peek(0, 32);
    let r = w.post(1, &byte(K::Recv, 32).root(0).at(0, 512));
    let mut copy = byte(K::Copy, 32).at(512, 1024);
    copy.spec.after = 1;
    let c = w.post(1, &copy);
    let mut back = byte(K::Send, 32).root(0).at(1024, 0).descriptor(w.comms[1]);
    back.flags = Flags::FENCE;
    let b = w.host(1).post(&back);
    let mut nop = Call::new(K::Nop, 0);
    nop.spec.after = 1;
    let n = w.post(1, &nop);
    for _ in 0..500 {
        w.step();
    }
    for t in [r, c, b, n] {
        assert_eq!(w.host(1).queue.poll(t), None, "nothing has come yet");
    }
    let s = w.post(0, &byte(K::Send, 32).root(1).at(0, 0));
    let p = w.post(0, &byte(K::Recv, 32).root(1).at(0, 2048));
    let done = w.settle(&[(1, r), (1, c), (1, b), (1, n), (0, s), (0, p)]);
    assert!(done.iter().all(|c| c.status == Status::Ok), "{done:?}");
    assert_eq!(w.host(0).peek(2048, 32), sent);
}

#[test]
fn copy_and_combine_work_on_one_rank() {
    let mut w = World::new(1, Wire::Local, &small());
    let n = 40_000u64;
    let a = fill(&w, 0, 3, n as usize * 2, 1);
    let b = fill(&w, 0, (8 << 20) + 1, n as usize * 2, 2);
    let call = Call::new(K::Combine, n).of(DataType::I32, ReduceOp::Max);
    let half = Call {
        count: n / 2,
        ..call
    }
    .at(3, (8 << 20) + 1);
    w.run(&half);
    let got = w.host(0).peek((8 << 20) + 1, n as usize * 2);
    let word = |v: &[u8], i: usize| i32::from_le_bytes([v[i], v[i + 1], v[i + 2], v[i + 3]]);
    for i in (0..n as usize * 2).step_by(4) {
        assert_eq!(word(&got, i), word(&a, i).max(word(&b, i)), "element {i}");
    }
    let copy = Call::new(K::Copy, n)
        .of(DataType::U8, ReduceOp::Sum)
        .at(3, 4 << 20);
    w.run(&copy);
    assert_eq!(w.host(0).peek(4 << 20, n as usize), a[..n as usize]);
    // A copy onto itself is refused.
    let bad = Call::new(K::Copy, n)
        .of(DataType::U8, ReduceOp::Sum)
        .at(3, 4);
    assert_eq!(w.call(&bad)[0].status, Status::InvalidArgument);
}

/// What Table 8's order gives for an all-reduce of f32: chunk i begins at rank i.
fn ring_sum(inputs: &[Vec<f32>]) -> Vec<f32> {
    let n = inputs.len();
    let l = Layout {
        count: inputs[0].len() as u64,
        block_chunks: n as u32,
    };
    let mut out = vec![0.0; inputs[0].len()];
    for c in 0..n {
        for e in l.chunk(c as u32) {
            let at = |k: usize| inputs[(c + k) % n][e as usize];
            out[e as usize] = (1..n).fold(at(0), |a, k| a + at(k));
        }
    }
    out
}

fn floats(seed: u64, rank: usize, n: usize) -> Vec<f32> {
    let mut rng = Rng(seed * 1000 + rank as u64);
    (0..n)
        .map(|_| (rng.next() % 20_001) as f32 / 7.0 - 1400.0)
        .collect()
}

fn poke_floats(w: &World, rank: usize, at: u64, v: &[f32]) {
    let b: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
    w.host(rank).poke(at, &b);
}

#[test]
fn f32_sums_have_the_bits_of_table_8_on_every_wire_algorithm_and_segment_size() {
    let n = 65_537;
    for (wire, ranks) in [(Wire::Local, 3), (Wire::Local, 5), (Wire::Tcp, 3)] {
        for segment in [4096, 64 << 10] {
            let settings = CollectiveSettings {
                segment_bytes: segment,
                ..CollectiveSettings::default()
            };
            let mut w = World::new(ranks, wire, &settings);
            for algo in [
                Algorithm::Ring,
                Algorithm::Pairwise,
                Algorithm::AllGatherReduce,
            ] {
                for in_place in [false, true] {
                    let inputs: Vec<_> = (0..ranks).map(|r| floats(3, r, n)).collect();
                    for (r, v) in inputs.iter().enumerate() {
                        poke_floats(&w, r, 0, v);
                    }
                    let dst = if in_place { 0 } else { 4 << 20 };
                    let call = Call::new(K::AllReduce, n as u64).algo(algo).at(0, dst);
                    let done = w.call(&call);
                    if in_place && done.iter().all(|c| c.status == Status::InvalidArgument) {
                        // The checker has found it unsafe; Ring is not.
                        assert_ne!(algo, Algorithm::Ring);
                        continue;
                    }
                    let want: Vec<u8> = ring_sum(&inputs)
                        .iter()
                        .flat_map(|x| x.to_le_bytes())
                        .collect();
                    for (r, c) in done.iter().enumerate() {
                        assert_eq!(c.status, Status::Ok, "{c:?}");
                        assert!(
                            w.host(r).peek(dst, n * 4) == want,
                            "{wire:?} {algo:?} rank {r}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn in_place_forms_and_overlaps() {
    let (n, count) = (4usize, 301u64);
    let mut w = World::new(n, Wire::Local, &small());
    let block = count * 4;
    let data: Vec<_> = (0..n)
        .map(|r| fill(&w, r, 0, n * block as usize, 77))
        .collect();
    // All-gather: the source is this rank's block of the destination.
    let tickets: Vec<_> = (0..n)
        .map(|r| {
            let call = Call::new(K::AllGather, count).at(r as u64 * block, 0);
            (r, w.post(r, &call))
        })
        .collect();
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::Ok, "{c:?}");
    }
    for r in 0..n {
        let got = w.host(r).peek(0, n * block as usize);
        for (from, d) in data.iter().enumerate() {
            let part = from * block as usize..(from + 1) * block as usize;
            assert_eq!(got[part.clone()], d[part], "rank {r} block {from}");
        }
    }
    // Side by side, in either order, is no overlap.
    w.run(&Call::new(K::AllReduce, count).at(0, block));
    w.run(&Call::new(K::AllReduce, count).at(block, 0));
    // Any other overlap is refused on that rank; the others are notified.
    for (kind, src, dst) in [
        (K::AllReduce, 0, 4),
        (K::AllGather, 8, 0),
        (K::AllToAll, 0, 0),
        (K::ReduceScatter, 0, 2 * block + 4),
    ] {
        let t = w.post(0, &Call::new(kind, count).at(src, dst));
        let c = w.settle(&[(0, t)]);
        assert_eq!(c[0].status, Status::InvalidArgument, "{kind:?}");
    }
}

#[test]
fn every_type_and_reduction() {
    let mut w = World::new(3, Wire::Local, &small());
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
            let (size, n) = (dtype.bytes() as usize, 333);
            // Bytes 0 to 3: small numbers in every integer type, denormals in the floating ones.
            for r in 0..3 {
                let v: Vec<u8> = (0..n * size)
                    .map(|i| {
                        if i % size == 0 {
                            ((i / size + r) % 4) as u8
                        } else {
                            0
                        }
                    })
                    .collect();
                w.host(r).poke(0, &v);
            }
            w.run(
                &Call::new(K::AllReduce, n as u64)
                    .of(*dtype, *op)
                    .at(0, 1 << 20),
            );
            let first = w.host(0).peek(1 << 20, n * size);
            for r in 1..3 {
                assert_eq!(w.host(r).peek(1 << 20, n * size), first, "{dtype:?} {op:?}");
            }
            if dtype.is_float() && *op == ReduceOp::Prod {
                continue; // Products of denormals vanish.
            }
            for i in 0..n {
                let v: Vec<u64> = (0..3).map(|r| ((i + r) % 4) as u64).collect();
                let apply = |a: u64, b: u64| match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::And => a & b,
                    ReduceOp::Or => a | b,
                    ReduceOp::Xor => a ^ b,
                };
                let want = v.into_iter().reduce(apply).unwrap_or(0);
                let mut word = [0u8; 8];
                word[..size].copy_from_slice(&first[i * size..(i + 1) * size]);
                assert_eq!(
                    u64::from_le_bytes(word),
                    want,
                    "{dtype:?} {op:?} element {i}"
                );
            }
        }
    }
}

#[test]
fn compressed_on_the_wire_all_ranks_hold_the_same_bits_near_the_sum() {
    for (wire, error) in [(WireType::Bf16, 0.02), (WireType::F16, 0.003)] {
        for (algo, n) in [
            (Algorithm::Ring, 4),
            (Algorithm::Pairwise, 4),
            (Algorithm::RecursiveDoubling, 4),
            (Algorithm::RecursiveDoubling, 3),
            (Algorithm::RecursiveDoubling, 7),
            (Algorithm::Hierarchical, 4),
            (Algorithm::Hierarchical, 6),
        ] {
            let count = 5001usize;
            let mut w = World::new(n, Wire::Local, &small());
            let inputs: Vec<Vec<f32>> = (0..n)
                .map(|r| floats(8, r, count).iter().map(|x| x / 1000.0).collect())
                .collect();
            for (r, v) in inputs.iter().enumerate() {
                poke_floats(&w, r, 0, v);
            }
            w.run(
                &Call::new(K::AllReduce, count as u64)
                    .algo(algo)
                    .wire(wire)
                    .at(0, 1 << 20),
            );
            let exact = ring_sum(&inputs);
            let first = w.host(0).peek(1 << 20, count * 4);
            for r in 1..n {
                assert_eq!(w.host(r).peek(1 << 20, count * 4), first, "rank {r}");
            }
            let mut off = 0;
            for (i, c) in first.chunks_exact(4).enumerate() {
                let got = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                let scale: f32 = inputs.iter().map(|v| v[i].abs()).sum::<f32>() + 1e-3;
                assert!(
                    (got - exact[i]).abs() <= error * scale,
                    "{i}: {got} {}",
                    exact[i]
                );
                off += usize::from(got != exact[i]);
            }
            assert!(off > 0, "nothing was rounded: was it compressed at all?");
        }
    }
    // Only f32 is compressed.
    let mut w = World::new(2, Wire::Local, &small());
    let call = Call::new(K::AllReduce, 4)
        .of(DataType::F64, ReduceOp::Sum)
        .wire(WireType::F16);
    for c in w.call(&call) {
        assert_eq!(
            (c.status, c.detail),
            (Status::InvalidArgument, WireType::F16 as u64)
        );
    }
}

#[test]
fn bad_operations_are_refused_and_affect_no_other() {
    let mut w = World::new(2, Wire::Local, &small());
    let comm = w.comms[0];
    let one = |w: &mut World, d: &Descriptor| {
        let t = w.host(0).post(d);
        let c = w.settle(&[(0, t)]);
        (c[0].status, c[0].detail)
    };
    let ok = Call::new(K::Broadcast, 4);
    let d = Call { root: 2, ..ok }.descriptor(comm);
    assert_eq!(one(&mut w, &d), (Status::InvalidArgument, 2), "root");
    let d = Call::new(K::AllReduce, 4).of(DataType::F16, ReduceOp::Or);
    let d = d.descriptor(comm);
    assert_eq!(one(&mut w, &d), (Status::InvalidArgument, 6), "bits");
    let d = Call::new(K::Send, 4).root(7).descriptor(comm);
    assert_eq!(
        one(&mut w, &d),
        (Status::InvalidArgument, 7),
        "to a missing rank"
    );
    let d = Call::new(K::Recv, 4).root(7).descriptor(comm);
    assert_eq!(
        one(&mut w, &d),
        (Status::InvalidArgument, 7),
        "from a missing rank"
    );
    let d = ok.algo(Algorithm::Pairwise).descriptor(comm);
    assert_eq!(
        one(&mut w, &d),
        (Status::InvalidArgument, Algorithm::Pairwise as u64),
        "no such algorithm"
    );
    let d = ok.algo(Algorithm::User).descriptor(comm);
    assert_eq!(
        one(&mut w, &d).0,
        Status::InvalidArgument,
        "no program loaded"
    );
    let d = Call {
        count: u64::MAX / 4,
        ..ok
    }
    .descriptor(comm);
    assert_eq!(one(&mut w, &d).0, Status::InvalidArgument, "count");
    let mut d = ok.descriptor(comm);
    d.imm = 0xff;
    assert_eq!(one(&mut w, &d), (Status::BadDescriptor, 4), "kind");
    let mut d = ok.descriptor(comm);
    d.session = SessionId(99);
    assert_eq!(one(&mut w, &d), (Status::BadCommunicator, 99));
    let d = Call::new(K::AllReduce, 4).at(0, 15 << 20);
    let d = Call {
        count: 1 << 20,
        ..d
    }
    .descriptor(comm);
    assert_eq!(one(&mut w, &d).0, Status::OutOfBounds);
    let mut d = Call::new(K::AllReduce, 4).descriptor(comm);
    d.local_va = GpuVa(0x10_0000_0000);
    assert_eq!(one(&mut w, &d), (Status::NotRegistered, 0x10_0000_0000));
    // None of these has started: the next one works.
    w.run(&Call::new(K::AllReduce, 100).at(0, 1 << 20));
    // Memory that grants no writing.
    let h = w.host(0);
    let pd = h.nic.alloc_pd().expect("domain");
    h.nic
        .register(pd, BASE, 1 << 20, Access::LOCAL_READ)
        .expect("region");
    let q = h.nic.create_queue(pd, Default::default()).expect("queue");
    let t = q
        .try_post(&Call::new(K::AllReduce, 4).at(0, 4096).descriptor(comm))
        .expect("room");
    let mut c = None;
    while c.is_none() {
        w.step();
        c = q.poll(t);
    }
    assert_eq!(c.map(|c| c.status), Some(Status::AccessDenied));
}

#[test]
fn a_user_program_is_proved_then_run_and_a_wrong_one_is_refused() {
    let n = 3u32;
    let mut w = World::new(n as usize, Wire::Local, &small());
    // A ring that sends on another channel: right, and not one of ours.
    let mut programs = generate_all(K::AllReduce, Algorithm::Ring, n, 0).expect("generated");
    for p in &mut programs {
        p.algo = Algorithm::User;
        for s in &mut p.steps {
            for o in &mut s.operands {
                if let ringbell_onc_engines::program::Operand::Net { channel, .. } = o {
                    *channel = 3;
                }
            }
            for t in &mut s.results {
                if let Target::Net { channel, .. } = t {
                    *channel = 3;
                }
            }
        }
    }
    let mut wrong = programs.clone();
    wrong[1].steps.pop();
    let e = w
        .host(0)
        .nic
        .load_program(wrong)
        .expect_err("a step is missing");
    assert!(e.to_string().contains("rank 1"), "{e}");
    for r in 0..n as usize {
        w.host(r).nic.load_program(programs.clone()).expect("right");
    }
    let inputs: Vec<_> = (0..n as usize).map(|r| floats(4, r, 1000)).collect();
    for (r, v) in inputs.iter().enumerate() {
        poke_floats(&w, r, 0, v);
    }
    w.run(
        &Call::new(K::AllReduce, 1000)
            .algo(Algorithm::User)
            .at(0, 1 << 20),
    );
    let want: Vec<u8> = ring_sum(&inputs)
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    for r in 0..n as usize {
        assert_eq!(w.host(r).peek(1 << 20, 4000), want);
    }
}

#[test]
fn ten_thousand_calls_in_a_row_and_nic_memory_stays() {
    let mut w = World::new(3, Wire::Local, &small());
    let before = w
        .host(0)
        .nic
        .communicator_info(w.comms[0])
        .expect("known")
        .nic_memory;
    for i in 0..10_000u32 {
        for r in 0..3usize {
            w.host(r).poke(0, &(i * 7 + r as u32).to_le_bytes());
        }
        let call = Call::new(K::AllReduce, 1).of(DataType::U32, ReduceOp::Sum);
        let kind = if i % 3 == 2 {
            Call::new(K::Barrier, 0)
        } else {
            call
        };
        w.run(&kind.at(0, 64));
        if i % 3 != 2 {
            for r in 0..3 {
                assert_eq!(
                    w.host(r).peek(64, 4),
                    (i * 21 + 3).to_le_bytes(),
                    "call {i}"
                );
            }
        }
    }
    let info = w.host(0).nic.communicator_info(w.comms[0]).expect("known");
    assert_eq!(info.nic_memory, before);
    assert_eq!(info.counters.completed, 10_000);
}

#[test]
fn many_operations_at_once_and_two_communicators_interleaved() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &small());
        // The second one has its ranks in another order, and other members.
        let other = w.communicator(8, &[2, 0], &small());
        let count = 700u64;
        for r in 0..3usize {
            let v: Vec<u8> = (0..count as u32)
                .flat_map(|i| (i * 3 + r as u32).to_le_bytes())
                .collect();
            w.host(r).poke(0, &v);
        }
        let mut tickets = Vec::new();
        for k in 0..20u64 {
            let call = Call::new(K::AllReduce, count).of(DataType::U32, ReduceOp::Sum);
            let call = call.at(0, (1 << 20) + k * 4096);
            for r in 0..3 {
                tickets.push((r, w.post(r, &call)));
            }
            let gather = Call::new(K::AllGather, count).at(0, (4 << 20) + k * 8192);
            for (id, h) in other.iter().zip([2usize, 0]) {
                tickets.push((h, w.host(h).post(&gather.descriptor(*id))));
            }
        }
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok, "{c:?}");
        }
        for k in 0..20u64 {
            for i in 0..count {
                let at = (1 << 20) + k * 4096 + i * 4;
                let want = (i as u32 * 9 + 3).to_le_bytes();
                assert_eq!(w.host(1).peek(at, 4), want);
            }
            for h in [0, 2] {
                let got = w.host(h).peek((4 << 20) + k * 8192, count as usize * 8);
                assert_eq!(
                    got[..count as usize * 4],
                    w.host(2).peek(0, count as usize * 4)
                );
                assert_eq!(
                    got[count as usize * 4..],
                    w.host(0).peek(0, count as usize * 4)
                );
            }
        }
        for (id, h) in other.iter().zip([2usize, 0]) {
            w.host(h).nic.free_communicator(*id).expect("known");
            assert!(w.host(h).nic.communicator_status(*id).is_err());
        }
        w.run(&Call::new(K::Barrier, 0));
        assert_eq!(
            w.host(0).nic.communicator_status(w.comms[0]),
            Ok(CommStatus::Ready)
        );
    }
}

#[test]
fn operations_posted_before_the_ranks_have_met_wait_for_them() {
    let mut w = World::unjoined(2, Wire::Tcp, 16 << 20);
    w.comms = w.begin_communicator(1, &[0, 1], &small());
    w.run(&Call::new(K::AllReduce, 100).at(0, 4096));
    let d = within(Descriptor::new(Opcode::Nop), 5);
    let t = w.host(0).post(&d);
    assert_eq!(w.settle(&[(0, t)])[0].status, Status::Ok);
}

#[test]
fn operations_that_no_rank_depends_on_can_be_cancelled() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &small());
        let byte = |k, n| Call::new(k, n).of(DataType::U8, ReduceOp::Sum);
        let cancel = |w: &World, rank: usize, t: u32| {
            let h = w.host(rank);
            h.nic.cancel(h.queue.id(), t)
        };
        // A receive, a long send, and what waits for the receive.
        let r = w.post(1, &byte(K::Recv, 5000).root(0).tag(1).at(0, 0));
        let mut after = byte(K::Copy, 8).at(0, 64);
        after.spec.after = 1;
        let a = w.post(1, &after);
        let s = w.post(0, &byte(K::Send, 5000).root(1).tag(2));
        let all = w.post(0, &Call::new(K::Barrier, 0));
        for _ in 0..300 {
            w.step();
        }
        for (rank, t) in [(1, a), (1, r), (0, s)] {
            assert_eq!(cancel(&w, rank, t), Ok(()));
            assert_eq!(w.settle(&[(rank, t)])[0].status, Status::Cancelled);
            let queue = w.host(rank).queue.id().0;
            assert_eq!(
                cancel(&w, rank, t),
                Err(CancelError::NotUnderWay { queue, ticket: t })
            );
        }
        // The other rank counts on the barrier.
        let queue = w.host(0).queue.id().0;
        assert_eq!(
            cancel(&w, 0, all),
            Err(CancelError::Begun { queue, ticket: all })
        );
        let other = w.post(1, &Call::new(K::Barrier, 0));
        for c in w.settle(&[(0, all), (1, other)]) {
            assert_eq!(c.status, Status::Ok);
        }
        // Nothing is left of what was cancelled: the same tags work.
        w.host(0).poke(0, &[3; 5000]);
        let s = w.post(0, &byte(K::Send, 5000).root(1).tag(1));
        let r = w.post(1, &byte(K::Recv, 5000).root(0).tag(1).at(0, 9000));
        for c in w.settle(&[(0, s), (1, r)]) {
            assert_eq!(c.status, Status::Ok);
        }
        assert_eq!(w.host(1).peek(9000, 5000), [3; 5000]);
    }
}

/// Messages whose tags differ in one high bit are different messages, in either order of arrival.
#[test]
fn tags_that_differ_in_high_bits_only_are_distinguished() {
    let tags = [7u32, 7 | 1 << 8, 7 | 1 << 16, 7 | 1 << 24, 7 | 1 << 31];
    for (sends, takes) in [(K::Send, K::Recv), (K::StreamSend, K::StreamRecv)] {
        for (len, early) in [(4u64, true), (4, false), (1000, true), (1000, false)] {
            let mut w = World::new(2, Wire::Local, &small());
            let call = |kind, i: usize| {
                let at = i as u64 * 4096;
                let c = Call::new(kind, len)
                    .of(DataType::U8, ReduceOp::Sum)
                    .tag(tags[i])
                    .at(at, (8 << 20) + at);
                match kind {
                    K::StreamSend | K::StreamRecv => c.streamed(),
                    _ => c,
                }
            };
            for i in 0..tags.len() {
                w.host(1)
                    .poke(i as u64 * 4096, &vec![i as u8 + 1; len as usize]);
            }
            let send = |w: &World, t: &mut Vec<(usize, u32)>| {
                t.extend((0..tags.len()).map(|i| (1, w.post(1, &call(sends, i).root(0)))));
            };
            let take = |w: &World, t: &mut Vec<(usize, u32)>| {
                let each = (0..tags.len()).rev();
                t.extend(each.map(|i| (0, w.post(0, &call(takes, i).root(1)))));
            };
            let mut tickets = Vec::new();
            match early {
                true => send(&w, &mut tickets),
                false => take(&w, &mut tickets),
            }
            for _ in 0..200 {
                w.step();
            }
            match early {
                true => take(&w, &mut tickets),
                false => send(&w, &mut tickets),
            }
            for c in w.settle(&tickets) {
                assert_eq!(c.status, Status::Ok, "{sends:?} {len} {early}: {c:?}");
            }
            for (i, tag) in tags.iter().enumerate() {
                let got = w.host(0).peek((8 << 20) + i as u64 * 4096, len as usize);
                assert!(
                    got == vec![i as u8 + 1; len as usize],
                    "{sends:?} tag {:#x}",
                    tag
                );
            }
        }
    }
}
