//! Kernels' streams as operands: pushed at one rank, popped at another, with no buffer between.
//! The kernel is played by the test, so that every index is where the test wants it.

use crate::collective_support;

use collective_support::{Call, Ring, Rng, Wire, World};
use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG};
use ringbell_nic_abi::kernel_stream::{HEAD_AT, STATE_AT, TAIL_AT};
use ringbell_nic_abi::{CollectiveKind as K, Completion, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus};

fn settings(stream_bytes: u64) -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        stream_bytes,
        ..CollectiveSettings::default()
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

fn send(count: u64, to: u32) -> Call {
    Call::new(K::StreamSend, count)
        .of(DataType::U8, ReduceOp::Sum)
        .root(to)
        .tag(3)
}

fn recv(count: u64, from: u32) -> Call {
    Call::new(K::StreamRecv, count)
        .of(DataType::U8, ReduceOp::Sum)
        .root(from)
        .tag(3)
}

/// What of the state word is the status.
fn state(w: &World, ring: &Ring) -> u64 {
    ring.get(w, STATE_AT) & 0xff
}

/// Kernels push `data` and pop as much in pieces of any size, until both operations have completed.
fn play(
    w: &mut World,
    from: (&Ring, &[u8]),
    to: &Ring,
    tickets: [(usize, u32); 2],
    rng: &mut Rng,
) -> (Vec<u8>, Vec<Completion>) {
    let (mut pushed, mut got) = (0, Vec::new());
    let mut done: [Option<Completion>; 2] = [None; 2];
    let end = w.now + 60_000_000_000;
    while done.iter().any(Option::is_none) || got.len() < from.1.len() {
        if rng.next().is_multiple_of(2) {
            let n = (rng.next() % 90) as usize;
            let rest = &from.1[pushed..];
            pushed += from.0.push(w, &rest[..n.min(rest.len())]);
        }
        if rng.next().is_multiple_of(2) {
            got.extend(to.pop(w, (rng.next() % 90) as usize));
        }
        w.step();
        for (slot, (rank, ticket)) in done.iter_mut().zip(tickets) {
            if slot.is_none() {
                *slot = w.host(rank).queue.poll(ticket);
            }
        }
        assert!(
            w.now < end,
            "hung: {pushed} pushed, {} popped, {done:?}",
            got.len()
        );
    }
    (got, done.into_iter().flatten().collect())
}

#[test]
fn eight_elements_go_from_one_kernel_to_another() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 8192, 6, 0));
    let word = |c: Call| c.of(DataType::U32, ReduceOp::Sum);
    let s = w.post(0, &word(send(8, 1)).of_ring(&a));
    let r = w.post(1, &word(recv(8, 0)).to_ring(&b));
    let data = bytes(1, 32);
    assert_eq!(a.push(&w, &data), 32);
    for c in w.settle(&[(0, s), (1, r)]) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 32), "{c:?}");
    }
    assert_eq!((a.level(&w), b.level(&w)), (0, 32));
    assert_eq!(b.pop(&w, 99), data);
}

#[test]
fn streams_of_every_length_arrive_whole_past_every_wrap() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Lossy(3, 5)] {
        // Messages in one eager buffer, and such that are announced first.
        for stream_bytes in [32u64, 1024] {
            let mut w = World::new(2, wire, &settings(stream_bytes));
            let mut rng = Rng(stream_bytes);
            let log2 = stream_bytes.trailing_zeros().max(6);
            let starts = [0, (1 << 32) - 37, u64::MAX - 100];
            for (i, len) in [0usize, 1, 7, 63, 64, 65, 1023, 5001]
                .into_iter()
                .enumerate()
            {
                let start = starts[i % 3];
                let a = Ring::new(&w, 0, 4096, log2 + (i % 2) as u32, start);
                let b = Ring::new(&w, 1, 64 << 10, log2, start.wrapping_mul(3));
                let data = bytes(len as u64, len);
                let s = w.post(0, &send(len as u64, 1).of_ring(&a));
                let r = w.post(1, &recv(len as u64, 0).to_ring(&b));
                let (got, done) = play(&mut w, (&a, &data), &b, [(0, s), (1, r)], &mut rng);
                assert!(
                    done.iter()
                        .all(|c| c.status == Status::Ok && c.bytes == len as u64),
                    "{wire:?}, {len}: {done:?}"
                );
                assert_eq!(got, data, "{wire:?}, {stream_bytes}, {len}");
                assert_eq!(a.get(&w, TAIL_AT), start.wrapping_add(len as u64));
                assert_eq!((state(&w, &a), state(&w, &b)), (0, 0));
            }
        }
    }
}

#[test]
fn elements_of_eight_bytes_and_odd_counts_need_no_alignment_of_the_ring() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    // An operation on bytes before leaves the indices where no f64 is aligned.
    let (a, b) = (Ring::new(&w, 0, 4096, 7, 3), Ring::new(&w, 1, 4096, 6, 61));
    let data = bytes(8, 8 * 131);
    let s = w.post(
        0,
        &send(131, 1).of(DataType::F64, ReduceOp::Sum).of_ring(&a),
    );
    let r = w.post(
        1,
        &recv(131, 0).of(DataType::F64, ReduceOp::Sum).to_ring(&b),
    );
    let (got, done) = play(&mut w, (&a, &data), &b, [(0, s), (1, r)], &mut Rng(9));
    assert!(done
        .iter()
        .all(|c| c.status == Status::Ok && c.bytes == 8 * 131));
    assert_eq!(got, data);
}

#[test]
fn a_channel_within_one_rank_carries_streams_of_every_length() {
    let mut rng = Rng(21);
    for n in 0..60u64 {
        let mut w = World::new(1 + n as usize % 2, Wire::Local, &settings(64));
        let rank = n as usize % w.ranks();
        let me = rank as u32;
        let (a, b) = (
            Ring::new(&w, rank, 4096, 7, 0),
            Ring::new(&w, rank, 8192, 6, 0),
        );
        let count = match n {
            0..=3 => [1, 63, 64, 65][n as usize],
            _ => 1 + rng.next() % 3000,
        };
        let data = bytes(n, count as usize);
        let (send, recv) = (send(count, me).of_ring(&a), recv(count, me).to_ring(&b));
        // Either may be first.
        let (s, r) = if n % 3 == 0 {
            let r = w.post(rank, &recv);
            (w.post(rank, &send), r)
        } else {
            (w.post(rank, &send), w.post(rank, &recv))
        };
        let tickets = [(rank, s), (rank, r)];
        let (got, done) = play(&mut w, (&a, &data), &b, tickets, &mut rng);
        assert!(got == data, "{n}: {count} bytes");
        for c in done {
            assert_eq!((c.status, c.bytes), (Status::Ok, count), "{n}");
        }
    }
}

#[test]
fn a_channel_within_one_rank_may_end_in_memory() {
    let mut w = World::new(1, Wire::Local, &settings(64));
    let a = Ring::new(&w, 0, 4096, 6, 0);
    let data = bytes(5, 500);
    w.host(0).poke(20_000, &data);
    // From memory, through a ring, to memory.
    let there = Ring::new(&w, 0, 8192, 6, 0);
    let s = w.post(0, &send(500, 0).tag(4).at(20_000, 0));
    let r = w.post(0, &recv(500, 0).tag(4).to_ring(&there));
    let again = w.post(0, &send(500, 0).tag(5).of_ring(&a));
    let end = w.post(0, &recv(500, 0).tag(5).at(0, 30_000));
    let (mut moved, limit) = (Vec::new(), w.now + 60_000_000_000);
    while moved.len() < 500 || a.level(&w) > 0 {
        let room = 64 - a.level(&w) as usize;
        let part = there.pop(&w, room.min(7));
        assert_eq!(a.push(&w, &part), part.len());
        moved.extend(part);
        w.step();
        assert!(w.now < limit, "hung after {} bytes", moved.len());
    }
    for c in w.settle(&[(0, s), (0, r), (0, again), (0, end)]) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 500));
    }
    assert_eq!(w.host(0).peek(30_000, 500), data);
}

#[test]
fn ends_of_one_rank_that_disagree_get_a_mismatch_and_one_alone_its_deadline() {
    let mut w = World::new(1, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 7, 0), Ring::new(&w, 0, 8192, 6, 0));
    let alone = w.post(0, &send(40, 0).of_ring(&a).within(1000));
    a.push(&w, &[1; 40]);
    let c = w.settle(&[(0, alone)])[0];
    assert_eq!(c.status, Status::TimedOut, "{c:?}");
    // No receive has met the message: it is taken back, and the communicator works on.
    let a = Ring::new(&w, 0, 12_288, 7, 0);
    let s = w.post(0, &send(40, 0).of_ring(&a));
    let r = w.post(0, &recv(41, 0).to_ring(&b));
    a.push(&w, &[1; 40]);
    for c in w.settle(&[(0, s), (0, r)]) {
        assert_eq!((c.status, c.detail), (Status::Mismatch, 0), "{c:?}");
    }
}

#[test]
fn a_byte_is_copied_once_from_ring_to_ring() {
    // In one message that is announced, and in many that are not.
    for stream_bytes in [4096u64, 128] {
        let mut w = World::new(2, Wire::Local, &settings(stream_bytes));
        let (a, b) = (Ring::new(&w, 0, 4096, 12, 0), Ring::new(&w, 1, 8192, 12, 0));
        let data = bytes(2, 4096);
        let copied = |w: &World| [0, 1].map(|r| w.host(r).nic.counters().copied_bytes);
        let r = w.post(1, &recv(4096, 0).to_ring(&b));
        for _ in 0..100 {
            w.step();
        }
        let before = copied(&w);
        let s = w.post(0, &send(4096, 1).of_ring(&a));
        let mut pushed = 0;
        while pushed < data.len() {
            // The receive of the next message is posted before it leaves.
            let n = (data.len() - pushed).min(stream_bytes as usize);
            pushed += a.push(&w, &data[pushed..pushed + n]);
            w.until("what was pushed", 1_000_000_000, |w| {
                b.level(w) == pushed as u64
            });
            for _ in 0..10 {
                w.step();
            }
        }
        w.settle(&[(0, s), (1, r)]);
        assert_eq!(b.pop(&w, 9999), data);
        let after = copied(&w);
        let own = [0, 1].map(|r: usize| after[r] - before[r]);
        // Beside headers of 40 bytes: announcement and payload, or each message's own.
        let headers = if stream_bytes == 4096 { 2 } else { 32 };
        assert_eq!(
            own[1],
            4096 + headers * 40,
            "{stream_bytes}: the receiver copies, once"
        );
        assert_eq!(own[0] % 40, 0, "{stream_bytes}: the sender copies none");
    }
}

#[test]
fn a_stream_is_sent_to_memory_and_received_from_it() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &settings(128));
        let len = 3001usize;
        let data = bytes(7, len);
        // From a kernel to memory.
        let a = Ring::new(&w, 0, 4096, 8, 0);
        let s = w.post(0, &send(len as u64, 1).of_ring(&a));
        let r = w.post(1, &recv(len as u64, 0).at(0, 1 << 20));
        let mut pushed = 0;
        while pushed < len {
            pushed += a.push(&w, &data[pushed..]);
            w.step();
        }
        w.settle(&[(0, s), (1, r)]);
        assert_eq!(w.host(1).peek(1 << 20, len), data);
        // And from memory to a kernel.
        let b = Ring::new(&w, 0, 8192, 7, 0);
        let s = w.post(1, &send(len as u64, 0).at(1 << 20, 0));
        let r = w.post(0, &recv(len as u64, 1).to_ring(&b));
        let mut got = Vec::new();
        while got.len() < len {
            w.step();
            got.extend(b.pop(&w, 17));
        }
        w.settle(&[(1, s), (0, r)]);
        assert_eq!(got, data);
    }
}

#[test]
fn a_single_element_does_not_wait_for_more() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 4096, 6, 0));
    let s = w.post(0, &send(100, 1).of_ring(&a));
    let r = w.post(1, &recv(100, 0).to_ring(&b));
    for i in 0..100u8 {
        assert_eq!(a.push(&w, &[i]), 1);
        // The kernels answer each other: the next element depends on this one.
        w.until("the element", 1_000_000_000, |w| b.level(w) == 1);
        assert_eq!(b.pop(&w, 9), [i]);
    }
    for c in w.settle(&[(0, s), (1, r)]) {
        assert_eq!(c.status, Status::Ok);
    }
}

#[test]
fn a_kernel_that_does_not_pop_stops_the_one_that_pushes() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &settings(64));
        let (a, b) = (Ring::new(&w, 0, 4096, 7, 0), Ring::new(&w, 1, 4096, 6, 0));
        let data = bytes(4, 40_000);
        let s = w.post(0, &send(40_000, 1).of_ring(&a));
        let r = w.post(1, &recv(40_000, 0).to_ring(&b));
        let (mut pushed, mut idle) = (0, 0);
        while idle < 3000 {
            let n = a.push(&w, &data[pushed..]);
            pushed += n;
            idle = if w.step() || n > 0 { 0 } else { idle + 1 };
        }
        // Both rings, and the receive buffers between.
        assert!(pushed <= 128 + 64 + 2 * 256, "{wire:?}: {pushed}");
        let mut got = Vec::new();
        while got.len() < data.len() {
            pushed += a.push(&w, &data[pushed..]);
            got.extend(b.pop(&w, 64));
            w.step();
        }
        assert_eq!(got, data);
        w.settle(&[(0, s), (1, r)]);
    }
}

#[test]
fn operations_on_one_stream_follow_each_other_and_tags_keep_streams_apart() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 8, 0), Ring::new(&w, 1, 4096, 8, 0));
    let (x, y) = (Ring::new(&w, 0, 8192, 8, 0), Ring::new(&w, 1, 8192, 8, 0));
    // Two on one pair of streams, and one under another tag that is posted between.
    let s1 = w.post(0, &send(100, 1).of_ring(&a));
    let s2 = w.post(0, &send(50, 1).of_ring(&a));
    let other = w.post(0, &send(30, 1).tag(4).of_ring(&x));
    let r_other = w.post(1, &recv(30, 0).tag(4).to_ring(&y));
    let r1 = w.post(1, &recv(100, 0).to_ring(&b));
    let r2 = w.post(1, &recv(50, 0).to_ring(&b));
    let (data, more) = (bytes(1, 150), bytes(2, 30));
    a.push(&w, &data);
    x.push(&w, &more);
    // A message of the same tag is not taken for a part of a stream, by ANY or otherwise.
    let one = Call::new(K::Send, 5)
        .of(DataType::U8, ReduceOp::Sum)
        .tag(3)
        .root(1);
    w.host(0).poke(0, b"hello");
    let m = w.post(0, &one.at(0, 0));
    let any = Call::new(K::Recv, 5).of(DataType::U8, ReduceOp::Sum);
    let n = w.post(1, &any.root(ANY_RANK).tag(ANY_TAG).at(0, 1 << 20));
    let all = [
        (0, s1),
        (0, s2),
        (0, other),
        (1, r_other),
        (1, r1),
        (1, r2),
        (0, m),
        (1, n),
    ];
    for c in w.settle(&all) {
        assert_eq!(c.status, Status::Ok, "{c:?}");
    }
    assert_eq!(b.pop(&w, 999), data);
    assert_eq!(y.pop(&w, 999), more);
    assert_eq!(w.host(1).peek(1 << 20, 5), b"hello");
}

#[test]
fn a_kernel_that_pushes_too_little_gets_its_deadline_and_so_does_the_peer() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 4096, 6, 0));
    // Nothing was pushed: only this operation ends.
    let s = w.post(0, &send(100, 1).of_ring(&a).within(2000));
    let c = w.settle(&[(0, s)])[0];
    assert_eq!(c.status, Status::TimedOut);
    assert_eq!(state(&w, &a), Status::TimedOut as u64);
    // The stream is of no use until its owner has reset it.
    let again = w.post(0, &send(1, 1).of_ring(&a).within(2000));
    assert_eq!(w.settle(&[(0, again)])[0].status, Status::BadState);
    a.reset(&w, 0);
    // Some was: the peer, which has it, is notified too.
    let s = w.post(0, &send(100, 1).of_ring(&a).within(2000));
    let r = w.post(1, &recv(100, 0).to_ring(&b));
    a.push(&w, &bytes(1, 30));
    let done = w.settle(&[(0, s), (1, r)]);
    assert_eq!(done[0].status, Status::TimedOut);
    assert_eq!((done[1].status, done[1].detail), (Status::CommAborted, 0));
    assert_eq!(state(&w, &a), Status::TimedOut as u64);
    assert_eq!(state(&w, &b), Status::CommAborted as u64);
    // And what comes to a communicator that has ended wakes its kernel at once.
    b.reset(&w, 0);
    let r = w.post(1, &recv(100, 0).to_ring(&b));
    assert_eq!(w.settle(&[(1, r)])[0].status, Status::CommAborted);
    assert_eq!(state(&w, &b), Status::CommAborted as u64);
}

#[test]
fn ranks_that_disagree_on_the_count_get_a_mismatch() {
    for first in [0, 1] {
        let mut w = World::new(2, Wire::Local, &settings(64));
        let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 4096, 6, 0));
        a.push(&w, &bytes(1, 50));
        let post = |w: &World, rank| match rank {
            0 => w.post(0, &send(50, 1).of_ring(&a).within(5_000_000)),
            _ => w.post(1, &recv(51, 0).to_ring(&b).within(5_000_000)),
        };
        let x = post(&w, first);
        for _ in 0..100 {
            w.step();
        }
        let y = post(&w, 1 - first);
        let done = w.settle(&[(first, x), (1 - first, y)]);
        let receiver = if first == 1 { done[0] } else { done[1] };
        assert_eq!((receiver.status, receiver.detail), (Status::Mismatch, 0));
        assert_eq!(state(&w, &b), Status::Mismatch as u64);
        assert_eq!(b.level(&w), 0, "nothing of it was kept");
    }
}

#[test]
fn the_end_of_the_peer_wakes_kernels_that_send_or_receive() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        for sends in [true, false] {
            let mut w = World::new(2, wire, &settings(64));
            let a = Ring::new(&w, 0, 4096, 6, 0);
            let call = if sends {
                send(1000, 1).of_ring(&a)
            } else {
                recv(1000, 1).to_ring(&a)
            };
            let t = w.post(0, &call.within(60_000_000));
            for _ in 0..200 {
                w.step();
            }
            w.hosts[1] = None;
            let end = w.now + 60_000_000_000;
            let c = loop {
                // A kernel that pushes goes on pushing.
                if sends {
                    a.push(&w, &[7; 5]);
                }
                w.step();
                if let Some(c) = w.host(0).queue.poll(t) {
                    break c;
                }
                assert!(w.now < end, "{wire:?}, {sends}: hung");
            };
            assert_eq!(
                (c.status, c.detail),
                (Status::PeerFailed, 1),
                "{wire:?}, {sends}"
            );
            assert_eq!(a.get(&w, STATE_AT), Status::PeerFailed as u64 | 1 << 32);
        }
    }
}

/// Rank 2 leaves, and rank 0, which waits for it, ends the communicator for all.
fn fail(w: &mut World, wire: Wire) {
    let c = Ring::new(w, 0, 16384, 6, 0);
    let call = recv(64, 2).to_ring(&c).within(60_000_000);
    let t = w.post(0, &call);
    w.hosts[2] = None;
    let [end] = w.settle(&[(0, t)])[..] else {
        unreachable!("one ticket")
    };
    assert_eq!(
        (end.status, end.detail),
        (Status::PeerFailed, 2),
        "{wire:?}"
    );
}

#[test]
fn a_kernel_that_pops_nothing_is_told_that_the_sender_has_failed() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &settings(64));
        let (a, b) = (Ring::new(&w, 0, 4096, 7, 0), Ring::new(&w, 1, 4096, 6, 0));
        let data = bytes(8, 4000);
        w.post(0, &send(4000, 1).of_ring(&a).within(60_000_000));
        let t = w.post(1, &recv(4000, 0).to_ring(&b).within(60_000_000));
        let (mut pushed, mut idle) = (0, 0);
        while idle < 100 {
            let n = a.push(&w, &data[pushed..]);
            pushed += n;
            idle = if w.step() || n > 0 { 0 } else { idle + 1 };
        }
        assert_eq!(b.level(&w), 64, "{wire:?}");
        fail(&mut w, wire);
        let c = w.settle(&[(1, t)])[0];
        assert_eq!((c.status, c.detail), (Status::PeerFailed, 2), "{wire:?}");
        assert_eq!(b.get(&w, STATE_AT), Status::PeerFailed as u64 | 2 << 32);
    }
}

#[test]
fn ranks_that_need_nothing_of_one_that_has_failed_end_as_well() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(5, wire, &settings(64));
        let (a, b) = (Ring::new(&w, 3, 4096, 7, 0), Ring::new(&w, 4, 4096, 6, 0));
        // Neither rank 0 nor rank 2 is one of these two.
        let s = w.post(3, &send(4000, 4).of_ring(&a).within(5_000_000));
        let t = w.post(4, &recv(4000, 3).to_ring(&b).within(5_000_000));
        assert_eq!(a.push(&w, &[7; 20]), 20);
        fail(&mut w, wire);
        let ends = w.settle(&[(3, s), (4, t)]);
        for (c, ring) in ends.iter().zip([&a, &b]) {
            assert_eq!((c.status, c.detail), (Status::PeerFailed, 2), "{wire:?}");
            assert_eq!(ring.get(&w, STATE_AT), Status::PeerFailed as u64 | 2 << 32);
        }
    }
}

#[test]
fn a_kernel_may_pop_all_that_has_come_from_a_sender_that_has_failed() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &settings(64));
        let (a, b) = (Ring::new(&w, 0, 4096, 8, 0), Ring::new(&w, 1, 4096, 6, 0));
        // The ring of the receiver, and one of its buffers.
        let data = bytes(9, 128);
        let s = w.post(0, &send(128, 1).of_ring(&a));
        let t = w.post(1, &recv(128, 0).to_ring(&b).within(60_000_000));
        assert_eq!(a.push(&w, &data), 128);
        assert_eq!(w.settle(&[(0, s)])[0].status, Status::Ok, "{wire:?}");
        fail(&mut w, wire);
        for _ in 0..100 {
            w.step();
        }
        assert_eq!(w.host(1).queue.poll(t), None, "{wire:?}");
        let mut got = Vec::new();
        while got.len() < data.len() {
            got.extend(b.pop(&w, 64));
            w.step();
        }
        assert_eq!(got, data, "{wire:?}");
        let c = w.settle(&[(1, t)]);
        assert_eq!(c[0].status, Status::Ok, "{wire:?}");
    }
}

#[test]
fn an_abort_wakes_every_kernel() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 4096, 6, 0));
    let s = w.post(0, &send(1000, 1).of_ring(&a));
    let r = w.post(1, &recv(1000, 0).to_ring(&b));
    a.push(&w, &[1; 60]);
    w.until("the first elements", 1_000_000_000, |w| b.level(w) > 0);
    w.host(1).nic.abort_communicator(w.comms[1]).expect("alive");
    for c in w.settle(&[(0, s), (1, r)]) {
        assert_eq!(c.status, Status::CommAborted, "{c:?}");
    }
    for (ring, id) in [(&a, w.comms[0]), (&b, w.comms[1])] {
        assert_eq!(state(&w, ring), Status::CommAborted as u64);
        let s = w
            .host(ring.rank)
            .nic
            .communicator_status(id)
            .expect("known");
        assert!(matches!(s, CommStatus::Aborted { .. }), "{s:?}");
    }
}

#[test]
fn a_hostile_kernel_breaks_its_own_operation_and_no_other() {
    let mut w = World::new(3, Wire::Local, &settings(64));
    let (a, b) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 1, 4096, 6, 0));
    // An index further ahead than the ring is long, before and while the operation runs.
    a.set(&w, HEAD_AT, 65);
    let s = w.post(0, &send(100, 1).of_ring(&a));
    let c = w.settle(&[(0, s)])[0];
    assert_eq!(
        (c.status, state(&w, &a)),
        (Status::InvalidArgument, Status::InvalidArgument as u64)
    );
    a.reset(&w, 5);
    let s = w.post(0, &send(100, 1).of_ring(&a));
    let r = w.post(1, &recv(100, 0).to_ring(&b).within(50_000));
    for _ in 0..50 {
        w.step();
    }
    a.set(&w, HEAD_AT, 4);
    let done = w.settle(&[(0, s), (1, r)]);
    assert_eq!(done[0].status, Status::InvalidArgument);
    assert_eq!(done[1].status, Status::TimedOut);
    // The others go on.
    w.host(2).poke(0, b"still here");
    let call = |k| Call::new(k, 10).of(DataType::U8, ReduceOp::Sum);
    let m = w.post(2, &call(K::Send).root(1));
    let n = w.post(1, &call(K::Recv).root(2));
    for c in w.settle(&[(2, m), (1, n)]) {
        assert_eq!(c.status, Status::Ok);
    }
}

/// Kernels on both ends of an operation that the NIC cannot even read are notified at once.
#[test]
fn a_descriptor_that_cannot_be_read_wakes_the_kernels_of_its_streams() {
    let mut w = World::new(2, Wire::Local, &settings(64));
    let (from, to) = (Ring::new(&w, 0, 4096, 6, 0), Ring::new(&w, 0, 8192, 6, 0));
    let call = Call::new(K::AllReduce, 100).of_ring(&from).to_ring(&to);
    let good = call.descriptor(w.comms[0]).encode(0).0;
    // A reserved bit, an unknown flag, a reserved bit of the last word, an unknown kind, no such
    // communicator.
    let spoils: [(usize, u64, Status, u64); 5] = [
        (0, 1 << 24, Status::BadDescriptor, 0),
        (0, 1 << 15, Status::BadDescriptor, 0),
        (7, 1 << 41, Status::BadDescriptor, 7),
        (4, 0xff, Status::BadDescriptor, 4),
        (0, 0xff << 48, Status::BadCommunicator, 0),
    ];
    for (word, bits, status, detail) in spoils {
        let mut words = good;
        words[word] |= bits;
        let posted = w.host(0).queue.try_post_raw(words);
        let c = w.settle(&[(0, posted.expect("a slot"))])[0];
        assert_eq!(c.status, status, "{bits:#x} in word {word}");
        if status == Status::BadDescriptor {
            assert_eq!(c.detail, detail);
        }
        for ring in [&from, &to] {
            assert_eq!(state(&w, ring), status as u64, "{bits:#x} in word {word}");
            ring.reset(&w, 0);
        }
    }
    // An invalid operation notifies no kernel, and an address where no stream can be is left alone.
    let before = w.host(0).peek(4096, 8192);
    let mut other = good;
    other[0] = (other[0] & !0xff) | 0xee;
    let mut nowhere = good;
    nowhere[0] |= 1 << 24;
    nowhere[1] = 64 << 20;
    nowhere[3] = u64::MAX;
    for words in [other, nowhere] {
        let posted = w.host(0).queue.try_post_raw(words);
        let c = w.settle(&[(0, posted.expect("a slot"))])[0];
        assert_eq!(c.status, Status::BadDescriptor);
    }
    assert_eq!(w.host(0).peek(4096, 8192), before);
}

#[test]
fn invalid_streams_are_refused_with_the_reason() {
    let mut w = World::new(2, Wire::Local, &settings(1024));
    let small = Ring::new(&w, 0, 4096, 9, 0);
    let good = Ring::new(&w, 0, 8192, 10, 0);
    let outside = Ring {
        rank: 0,
        at: (16 << 20) - 256,
        log2: 10,
    };
    let mut bare = send(1, 1).of_ring(&good);
    bare.src = 8192;
    let calls = [
        (send(1, 1).of_ring(&small), Status::NoResources, 1024),
        (send(1, 2).of_ring(&good), Status::InvalidArgument, 2),
        (
            recv(1, ANY_RANK).to_ring(&good),
            Status::InvalidArgument,
            ANY_RANK.into(),
        ),
        (
            recv(1, 1).tag(ANY_TAG).to_ring(&good),
            Status::InvalidArgument,
            ANY_TAG.into(),
        ),
        (
            send(u64::MAX, 1)
                .of(DataType::F64, ReduceOp::Sum)
                .of_ring(&good),
            Status::InvalidArgument,
            u64::MAX,
        ),
        // A ring, and nothing on any rank shows that the order is that of streams.
        (
            Call::new(K::AllReduce, 1).of_ring(&good),
            Status::InvalidArgument,
            K::AllReduce.code().into(),
        ),
    ];
    for (call, status, detail) in calls {
        let t = w.post(0, &call);
        let c = w.settle(&[(0, t)])[0];
        assert_eq!((c.status, c.detail), (status, detail), "{call:?}");
    }
    for call in [send(1, 1).of_ring(&outside), bare] {
        let t = w.post(0, &call);
        let c = w.settle(&[(0, t)])[0];
        assert!(
            matches!(c.status, Status::OutOfBounds | Status::InvalidArgument),
            "{c:?}"
        );
    }
}
