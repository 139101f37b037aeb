//! Messages of a rank to itself.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::collective::ANY_RANK;
use ringbell_nic_abi::{CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;

fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

/// A rank may send to itself, as in NCCL and MPI: the receive first or the send first, any length,
/// any receive that takes it, over every transport.
#[test]
fn a_rank_sends_to_itself() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &small());
        for (i, len) in [0u64, 1, 40, 256, 257, 70_000, 3 << 20]
            .into_iter()
            .enumerate()
        {
            for send_first in [true, false] {
                let mut rng = Rng(len + 1);
                let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                w.host(1).poke(0, &bytes);
                w.host(1).poke(8 << 20, &vec![0; len as usize + 1]);
                let tag = 7 + i as u32;
                let send = Call::new(K::Send, len).root(1).tag(tag);
                let from = if i % 2 == 0 { 1 } else { ANY_RANK };
                let recv = Call::new(K::Recv, len + 1).root(from).tag(tag);
                let calls = if send_first {
                    [send, recv]
                } else {
                    [recv, send]
                };
                let calls = calls.map(|c| c.of(DataType::U8, ReduceOp::Sum).within(1_000_000));
                let tickets = calls.map(|c| {
                    let ticket = w.post(1, &c);
                    for _ in 0..3 {
                        w.step();
                    }
                    (1, ticket)
                });
                let ends = w.settle(&tickets);
                let at = usize::from(send_first);
                for c in &ends {
                    assert_eq!((c.status, c.bytes), (Status::Ok, len), "{len} {c:?}");
                }
                assert_eq!(ends[at].detail, 1 << 32 | u64::from(tag));
                assert!(w.host(1).peek(8 << 20, len as usize) == bytes, "{len}");
                assert_eq!(w.host(1).peek((8 << 20) + len, 1), [0]);
            }
        }
    }
}

#[test]
fn a_message_to_the_own_rank_keeps_its_order_and_ends_as_others_do() {
    let mut w = World::new(2, Wire::Local, &small());
    let send = |tag, at| {
        Call::new(K::Send, 4)
            .root(0)
            .tag(tag)
            .at(at, 0)
            .within(200_000)
    };
    let recv = |tag, at| {
        Call::new(K::Recv, 4)
            .root(0)
            .tag(tag)
            .at(0, at)
            .within(200_000)
    };
    w.host(0).poke(0, b"aaaabbbbcccc");
    // Two of one tag arrive in order, and the third waits for its own receive.
    let calls = [
        send(5, 0),
        send(6, 8),
        send(5, 4),
        recv(5, 64),
        recv(5, 68),
        recv(6, 72),
    ];
    let of_u8 = |c: Call| c.of(DataType::U8, ReduceOp::Sum);
    let tickets = calls.map(|c| (0, w.post(0, &of_u8(c))));
    for c in w.settle(&tickets) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 4));
    }
    assert_eq!(w.host(0).peek(64, 12), b"aaaabbbbcccc");
    // Too long, without a partner, and onto itself.
    let short = Call {
        count: 3,
        ..recv(9, 64)
    };
    let tickets = [send(9, 0), short].map(|c| (0, w.post(0, &of_u8(c))));
    for c in w.settle(&tickets) {
        assert_eq!((c.status, c.detail), (Status::MessageTooLarge, 4));
    }
    let ticket = w.post(0, &of_u8(send(3, 0)));
    assert_eq!(w.settle(&[(0, ticket)])[0].status, Status::TimedOut);
    let ticket = w.post(0, &of_u8(recv(3, 64)));
    let late = w.settle(&[(0, ticket)])[0];
    assert_eq!(late.status, Status::TimedOut, "the message was taken back");
    let tickets = [send(9, 0), recv(9, 2)].map(|c| (0, w.post(0, &of_u8(c))));
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::InvalidArgument, "they overlap");
    }
    w.run(&Call::new(K::Barrier, 0));
}
