//! Hostile peers of communicators: for any frames, every operation ends and nothing else breaks.
//!
//! The same in each run; `RINGBELL_FUZZ_ROUNDS` makes it longer. `fuzz/` has the same as the target
//! `fabric`, guided by coverage.

use crate::hostile_support;

use hostile_support::{header, play, Play, BASE, OUT};
use ringbell_nic_abi::{
    CollectiveKind, CollectiveSpec, DataType, Descriptor, GpuVa, Lkey, Opcode, Rkey, Status,
};

#[test]
fn every_operation_ends_and_frees_its_memory_for_any_frames_of_peers() {
    let rounds = std::env::var("RINGBELL_FUZZ_ROUNDS");
    let rounds = rounds.ok().and_then(|r| r.parse().ok()).unwrap_or(300);
    for round in 0..rounds {
        let mut state: u64 = round;
        let mut next = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) as u8
        };
        let len = 64 + usize::from(next()) * 6;
        let bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        let done = std::panic::catch_unwind(|| play(&bytes));
        assert!(done.is_ok(), "round {round}: see above");
    }
}

/// Host 1 is rank 2 of one communicator; in another, rank 2 is host 3, which sends us a message.
#[test]
fn a_member_of_one_communicator_cannot_send_into_another() {
    let mut p = Play::new();
    p.join(7, &[1, 2, 3]);
    p.join(8, &[3, 2, 1]);
    p.steps(8);
    let (liar, sound) = (p.calls(1), 0);
    p.steps(8);
    p.joins(liar, 0, 7, 3);
    p.joins(liar, 2, 8, 3);
    p.joins(sound, 2, 7, 3);
    p.joins(sound, 0, 8, 3);
    p.steps(8);
    let mut spec = CollectiveSpec::new(CollectiveKind::Recv);
    spec.dtype = DataType::U8;
    let (imm, len) = spec.encode();
    let ticket = p.queue.try_post(&Descriptor {
        session: p.comms[0].session(),
        remote_va: GpuVa(BASE.0 + OUT),
        operand: 400,
        rkey: Rkey(2),
        lkey: Lkey(5),
        imm,
        len,
        timeout_us: 1_000_000,
        ..Descriptor::new(Opcode::Collective)
    });
    let ticket = ticket.expect("room");
    // Too long for a buffer: asked for, and named a receive.
    p.say(sound, &header(4, 2, 9, [7, 1 << 63 | 5, 400, 0]));
    p.steps(8);
    let recv = p.wire.with(|w| w.cleared.last().copied()).expect("cleared");
    let data = |ctx: u64, byte: u8| {
        let mut bytes = header(6, 2, recv, [ctx, 0, 400, 0]);
        bytes.extend([byte; 400]);
        bytes
    };
    p.say(liar, &data(8, 0xee));
    p.steps(8);
    assert_eq!(
        p.queue.poll(ticket),
        None,
        "taken from a host of the other communicator"
    );
    p.say(sound, &data(7, 0x5a));
    p.steps(8);
    let done = p.queue.poll(ticket).expect("ended");
    assert_eq!((done.status, done.bytes), (Status::Ok, 400));
    let mut got = [0; 400];
    p.view().read(GpuVa(BASE.0 + OUT), &mut got);
    assert_eq!(got, [0x5a; 400]);
}
