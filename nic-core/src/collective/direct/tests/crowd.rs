//! Tests with many ranks: wake-ups, and the effect of a lost arrival.

use super::*;

const MANY: u32 = 12;

/// Wake-ups of each rank in ten operations, whose sources have `count` numbers of 8 bytes.
fn wakes(n: u32, count: u64) -> Vec<u64> {
    let all_done = Barrier::new(n as usize);
    ranks(n, 1, move |me| {
        for _ in 0..10 {
            let p = params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, count);
            let out = (VA + (1 << 20), count * 8);
            assert_eq!(me.run(p, (VA, count * 8), out, ALL), Outcome::Done);
        }
        all_done.wait();
        let mine = &me.world.windows[me.rank as usize];
        mine.wakes.load(Ordering::Relaxed)
    })
}

#[test]
fn among_many_ranks_only_the_last_record_and_the_last_flag_wake() {
    assert_eq!(wakes(MANY, 16), [10; MANY as usize], "eager");
    assert_eq!(wakes(MANY, 2_000), [20; MANY as usize], "push");
    // Among few, each of them does.
    assert_eq!(wakes(3, 16), [20; 3]);
}

#[test]
fn an_input_travels_in_the_record_only_while_all_inputs_together_are_short() {
    let of = |bytes: u64| params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, bytes / 8);
    check(8, vec![(of(1024), false, ALL)], |s| s.eager);
    check(16, vec![(of(512), false, ALL)], |s| s.eager);
    check(16, vec![(of(1024), false, ALL)], |s| s.push);
}

#[test]
fn every_collective_on_more_ranks_than_a_word_has_bits() {
    for n in [65, 130] {
        let of = |kind, count| params(kind, DataType::F32, ReduceOp::Sum, n - 1, count);
        // Operands of 8, at most 64 and more, in records and in passes.
        let cases = |count: u64| COLLECTIVES.iter().map(move |k| (of(*k, count), false, ALL));
        let short = cases(0).chain([(of(K::AllReduce, 3), false, ALL)]);
        check(n, short.collect(), |s| s.eager);
        let long = cases(n as u64 + 1).filter(|c| c.0.kind != K::Barrier);
        check(n, long.collect(), |s| s.push);
    }
}

#[test]
fn an_operation_ends_although_a_rank_failed_between_its_record_and_its_arrival() {
    ranks(MANY, 1, |me| {
        if me.rank == 0 {
            // The first operation uses slot 1 of four.
            let arrivals = me.comms[0].address() + u64::from(MANY) * 128 + 64 + 8;
            let word = me.nic_memory.at_bus(arrivals, 8).expect("in the area");
            // SAFETY: aligned, and accessed atomically by all.
            unsafe { &*word.cast::<AtomicU64>() }.fetch_sub(1, Ordering::Relaxed);
        }
        let p = params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, 4);
        let (input, output) = ((VA, 32), (VA + (1 << 20), 32));
        assert_eq!(me.run(p, input, output, ALL), Outcome::Done);
    });
}
