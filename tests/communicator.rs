//! Tests of communicators through the SDK: ranks as threads, a NIC and a GPU each.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;

use std::time::Duration;

use communicators::{each, options, queues, ranks, PATIENCE};
use ringbell::abi::Status;
use ringbell::comm::{CollectiveKind, HostRanks};
use ringbell::nic::{NicConfig, NIC_VARIABLE};
use ringbell::{
    Algorithm, CollectiveError, CommOptions, Communicator, DeviceBuffer, Nic, Operation, ReduceOp,
};

const SHORT: Duration = Duration::from_millis(300);

fn put(b: &DeviceBuffer, offset: u64, values: &[i32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    b.write(offset, &bytes).expect("it fits");
}

fn get(b: &DeviceBuffer, offset: u64, count: u64) -> Vec<i32> {
    let mut bytes = vec![0; count as usize * 4];
    b.read(offset, &mut bytes).expect("it fits");
    let words = bytes.chunks_exact(4);
    words
        .map(|w| i32::from_ne_bytes(w.try_into().expect("four")))
        .collect()
}

/// Element `i` of a rank's data: each rank's and each place's own.
fn value(rank: u32, i: u64) -> i32 {
    (rank as i32 + 1) * 1_000_003 + i as i32 * 7919
}

fn data(rank: u32, count: u64) -> Vec<i32> {
    (0..count).map(|i| value(rank, i)).collect()
}

fn sum(ranks: u32, i: u64) -> i32 {
    (0..ranks).fold(0, |s: i32, r| s.wrapping_add(value(r, i)))
}

#[test]
fn every_operation_equals_a_serial_model_with_offsets_and_odd_counts() {
    let r = ranks("all", 3);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let (me, n) = (c.rank(), c.size());
        let buf = |bytes| c.nic().alloc::<u8>(bytes).expect("memory");
        for count in [0_u64, 1, 2, 5, 1023] {
            let all = count * u64::from(n);
            // An odd offset of whole elements, so that interior addresses are used.
            let (src, dst) = (buf(all * 4 + 64), buf(all * 4 + 64));
            let fresh = || {
                put(&src, 20, &data(me, all));
                put(&dst, 12, &vec![-1; all as usize]);
            };
            let (s, d) = (src.slice(20..), dst.slice(12..));
            fresh();
            c.all_reduce::<i32>(s, d, count, ReduceOp::Sum)
                .expect("all-reduce");
            let want: Vec<i32> = (0..count).map(|i| sum(n, i)).collect();
            assert_eq!(get(&dst, 12, count), want);
            fresh();
            c.all_reduce::<i32>(s, s, count, ReduceOp::Sum)
                .expect("in place");
            assert_eq!(get(&src, 20, count), want);
            fresh();
            c.reduce_scatter::<i32>(s, d, count, ReduceOp::Max)
                .expect("reduce-scatter");
            let want: Vec<i32> = (0..count)
                .map(|i| value(n - 1, u64::from(me) * count + i))
                .collect();
            assert_eq!(get(&dst, 12, count), want);
            fresh();
            c.all_gather::<i32>(s, d, count).expect("all-gather");
            let want: Vec<i32> = (0..n).flat_map(|q| data(q, count)).collect();
            assert_eq!(get(&dst, 12, all), want);
            for root in 0..n {
                fresh();
                c.broadcast::<i32>(s, d, count, root).expect("broadcast");
                assert_eq!(get(&dst, 12, count), data(root, count));
                fresh();
                c.reduce::<i32>(s, d, count, ReduceOp::Sum, root)
                    .expect("reduce");
                if me == root {
                    assert_eq!(
                        get(&dst, 12, count),
                        (0..count).map(|i| sum(n, i)).collect::<Vec<_>>()
                    );
                }
                fresh();
                c.scatter::<i32>(s, d, count, root).expect("scatter");
                let at = u64::from(me) * count;
                assert_eq!(
                    get(&dst, 12, count),
                    data(root, all)[at as usize..(at + count) as usize]
                );
                fresh();
                c.gather::<i32>(s, d, count, root).expect("gather");
                if me == root {
                    let want: Vec<i32> = (0..n).flat_map(|q| data(q, count)).collect();
                    assert_eq!(get(&dst, 12, all), want);
                }
            }
            fresh();
            c.all_to_all::<i32>(s, d, count).expect("all-to-all");
            let at = (u64::from(me) * count) as usize;
            let want: Vec<i32> = (0..n)
                .flat_map(|q| data(q, all)[at..at + count as usize].to_vec())
                .collect();
            assert_eq!(get(&dst, 12, all), want);
            c.barrier().expect("barrier");
        }
    });
}

#[test]
fn messages_find_their_receives_by_rank_and_tag_and_a_group_cannot_block_itself() {
    let r = ranks("messages", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let (me, other) = (c.rank(), 1 - c.rank());
        let b = c.nic().alloc::<u8>(1 << 20).expect("memory");
        put(&b, 0, &data(me, 100_000));
        // Both send first: only a group makes that safe for long messages.
        let done = Communicator::group(&[
            (c, Operation::send::<i32>(&b, 100_000, other, 5)),
            (
                c,
                Operation::recv::<i32>(b.slice(400_000..), 120_000, None, Some(5)),
            ),
        ])
        .expect("both are exchanged");
        assert_eq!(done[1].bytes, 400_000);
        assert_eq!(get(&b, 400_000, 100_000), data(other, 100_000));
        if me == 0 {
            c.send::<i32>(&b, 3, 1, 70).expect("sent");
            c.send::<i32>(b.slice(12..), 3, 1, 71).expect("sent");
        } else {
            let second = Operation::recv::<i32>(b.slice(800_000..), 3, Some(0), Some(71));
            let first = Operation::recv::<i32>(b.slice(800_012..), 3, Some(0), None);
            c.run(&second).expect("by its tag");
            c.run(&first).expect("the one that is left");
            assert_eq!(get(&b, 800_000, 3), data(0, 6)[3..]);
            assert_eq!(get(&b, 800_012, 3), data(0, 3));
        }
    });
}

#[test]
fn requests_are_chained_in_the_nic_tested_and_waited_for() {
    let r = ranks("requests", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let (a, b) = (
            c.nic().alloc::<u8>(4096).expect("memory"),
            c.nic().alloc::<u8>(4096).expect("memory"),
        );
        put(&a, 0, &data(c.rank(), 1000));
        put(&b, 0, &[5; 1000]);
        // b += a; then the sum of b over the ranks; then a copy of it: one chain without a wait
        // between.
        let combine = c
            .post(&Operation::combine::<i32>(&a, &b, 1000, ReduceOp::Sum))
            .expect("posted");
        let reduce = c
            .post(&Operation::all_reduce::<i32>(&b, &b, 1000, ReduceOp::Sum).after(&[&combine]))
            .expect("posted");
        let mut copy = c
            .post(&Operation::copy::<i32>(&b, &a, 1000).after(&[&combine, &reduce]))
            .expect("posted");
        let start = std::time::Instant::now();
        while copy.test().expect("no failure").is_none() {
            assert!(start.elapsed() < PATIENCE, "it never ends");
        }
        let want: Vec<i32> = (0..1000).map(|i| sum(2, i).wrapping_add(10)).collect();
        assert_eq!(get(&a, 0, 1000), want);
        combine.wait().expect("had ended");
        reduce.wait().expect("had ended");
        // Dropped requests free their slots: more of them than the queue has slots.
        for _ in 0..300 {
            drop(c.post(&Operation::nop()).expect("posted"));
        }
        c.barrier().expect("goes on");
    });
}

#[test]
fn streams_run_collectives_between_kernels_in_order() {
    let r = ranks("streams", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let b = c.nic().alloc::<u8>(4096).expect("memory");
        put(&b, 0, &data(c.rank(), 1000));
        let stream = c.nic().gpu().stream();
        let double = Operation::combine::<i32>(&b, &b, 1000, ReduceOp::Sum);
        let sum_up = Operation::all_reduce::<i32>(&b, &b, 1000, ReduceOp::Sum);
        let first = c.enqueue(&double, &stream);
        let second = c.enqueue(&sum_up, &stream);
        let steps = [first, second, c.enqueue(&sum_up, &stream)];
        for s in steps {
            s.expect("queued").wait(PATIENCE).expect("in order");
        }
        let want: Vec<i32> = (0..1000).map(|i| sum(2, i).wrapping_mul(4)).collect();
        assert_eq!(get(&b, 0, 1000), want);
    });
}

#[test]
fn splitting_orders_by_key_and_leaves_out_ranks_without_a_colour() {
    let r = ranks("split", 4);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let me = c.rank();
        let colour = [Some(7), Some(3), Some(7), None][me as usize];
        let part = c.split(colour, -(me as i32)).expect("all call it");
        let Some(part) = part else {
            assert_eq!(me, 3);
            return;
        };
        assert_eq!(part.size(), if colour == Some(7) { 2 } else { 1 });
        if colour == Some(7) {
            assert_eq!(
                part.job_ranks(),
                [2, 0],
                "the larger rank has the smaller key"
            );
            assert_eq!(part.rank(), u32::from(me == 0));
        }
        let x = part.nic().alloc::<u8>(4).expect("memory");
        put(&x, 0, &[10 + me as i32]);
        part.all_reduce::<i32>(&x, &x, 1, ReduceOp::Sum)
            .expect("within the part");
        assert_eq!(get(&x, 0, 1), [if colour == Some(7) { 22 } else { 11 }]);
        // Parent and part at once, in different orders of their own.
        let y = part.nic().alloc::<u8>(4).expect("memory");
        put(&y, 0, &[1]);
        part.all_reduce::<i32>(&y, &y, 1, ReduceOp::Sum)
            .expect("again");
    });
    let sums = each(&comms, |c| {
        let x = c.nic().alloc::<u8>(4).expect("memory");
        put(&x, 0, &[c.rank() as i32 + 1]);
        c.all_reduce::<i32>(&x, &x, 1, ReduceOp::Prod)
            .expect("the whole still works");
        get(&x, 0, 1)[0]
    });
    assert_eq!(sums, [24; 4]);
}

/// Makes communicators of each rank's in turn, and uses each; then the NICs have all of it back.
fn in_turn(
    name: &str,
    (times, aborts): (u32, bool),
    make: impl Fn(&Communicator, u32) -> Communicator + Sync,
) {
    let r = ranks(name, 2);
    let first = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&first, |c| {
        let x = c.nic().alloc::<u32>(1).expect("memory");
        let mut made: Option<Communicator> = None;
        for i in 0..times {
            let comm = make(made.as_ref().unwrap_or(c), i);
            x.write(0, &[i + comm.rank()]).expect("fits");
            match comm.all_reduce::<u32>(&x, &x, 1, ReduceOp::Sum) {
                Ok(()) => assert_eq!(x.to_vec().expect("a copy"), [2 * i + 1]),
                // A rank that has its result shrinks, and so aborts what is left.
                Err(CollectiveError::Failed { status, .. })
                    if aborts && status == Status::CommAborted => {}
                Err(e) => panic!("{i}: {e}"),
            }
            made = Some(comm);
        }
        drop(made);
        // The communicator's own, and one that may still close.
        assert!(queues(c.nic()) <= 2, "{} queues", queues(c.nic()));
    });
}

/// More than a NIC has queues, and than the queues' numbers could wrap unnoticed. Hardware that is
/// simulated has 64, and sets each up in thousands of cycles.
fn many() -> u32 {
    match std::env::var(NIC_VARIABLE).as_deref() {
        Ok("rtl") => 70,
        _ => 10_000,
    }
}

#[test]
fn a_nic_has_queues_for_ten_thousand_divided_communicators_in_turn() {
    let of_parent = |c: &Communicator| c.split(Some(0), 0).expect("both come").expect("a colour");
    in_turn("many-split", (many(), false), |c, _| of_parent(c));
}

#[test]
fn a_nic_has_queues_for_ten_thousand_groups_in_turn() {
    let group = |c: &Communicator, i: u32| c.create_group(&[0, 1], i.into()).expect("both come");
    in_turn("many-group", (many(), false), group);
}

#[test]
fn a_nic_has_queues_for_ten_thousand_shrunk_communicators_in_turn() {
    in_turn("many-shrink", (many(), true), |c, _| {
        c.shrink(PATIENCE).expect("both are left")
    });
}

#[test]
fn a_nic_has_queues_for_many_merged_communicators_in_turn() {
    let merged = |c: &Communicator, _| {
        let rank = c.rank();
        let alone = c.split(Some(rank), 0).expect("both come");
        let alone = alone.expect("a colour");
        alone.merge(&[1 - rank]).expect("both come")
    };
    in_turn("many-merge", (many().min(1_000), false), merged);
}

#[test]
fn a_nic_has_queues_for_ten_thousand_jobs_in_turn() {
    let r = ranks("many-jobs", 2);
    for i in 0..many() {
        let comms = Communicator::init_all(&r.nics, &options());
        let comms = comms.unwrap_or_else(|e| panic!("{i}: {e}"));
        assert_eq!(comms.len(), 2);
    }
    assert!(r.nics.iter().all(|n| queues(n) <= 1));
}

#[test]
fn a_communicator_that_is_dropped_under_its_operations_gives_its_queue_back() {
    let directory = std::env::temp_dir().join(format!("rb-comm-few-{}", std::process::id()));
    let limits = NicConfig {
        max_queues: 2,
        ..NicConfig::default()
    };
    let open = |ip: &str| {
        let nic = Nic::builder().ip(ip).limits(limits.clone());
        let nic = nic.transport("local").directory(&directory);
        nic.gpu_memory(1 << 20).open().expect("a NIC")
    };
    let nics = [open("10.66.1.1/24"), open("10.66.1.2/24")];
    for _ in 0..20 {
        let comms = Communicator::init_all(&nics, &options()).expect("all come");
        let x: DeviceBuffer<u32> = nics[0].alloc(64).expect("memory");
        // Nothing comes for the first; the second has its entry in the queue, and no thread has
        // looked.
        let receive = Operation::recv::<u32>(&x, 1, Some(1), Some(7));
        let mut waits = comms[0].post(&receive).expect("room");
        assert!(waits.test().expect("it waits").is_none());
        let seen = comms[0].post(&receive).expect("room");
        drop((waits, seen, comms));
        // Its memory is the program's again.
        drop(x);
    }
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn after_a_rank_has_ended_the_others_shrink_and_go_on() {
    let r = ranks("shrink", 4);
    let mut comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| c.barrier().expect("all there"));
    // Rank 1 ends during an operation of the others.
    let gone = comms.remove(1);
    gone.abort();
    drop(gone);
    let sums = each(&comms, |c| {
        let x = c.nic().alloc::<u8>(4).expect("memory");
        put(&x, 0, &[value(c.rank(), 0)]);
        let e = c
            .all_reduce::<i32>(&x, &x, 1, ReduceOp::Sum)
            .expect_err("rank 1 is gone");
        assert!(e.is_fatal() && e.to_string().contains("rank 1"), "{e}");
        let left = c.shrink(PATIENCE).expect("three are left");
        assert_eq!((left.size(), left.job_ranks()), (3, &[0, 2, 3][..]));
        put(&x, 0, &[value(left.rank(), 0)]);
        left.all_reduce::<i32>(&x, &x, 1, ReduceOp::Sum)
            .expect("goes on");
        get(&x, 0, 1)[0]
    });
    assert_eq!(sums, [sum(3, 0); 3]);
}

#[test]
fn each_misuse_has_a_message_of_its_own() {
    let r = ranks("mistakes", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    let b = r.nics[0].alloc::<u8>(64).expect("memory");
    let small = comms[0].all_reduce::<i32>(&b, &b, 17, ReduceOp::Sum);
    let small = small.expect_err("68 bytes").to_string();
    assert!(
        small.contains("68 bytes of source") && small.contains("has 64"),
        "{small}"
    );
    // Each misuse has a message of its own.
    let any = ringbell::abi::collective::ANY_TAG;
    let sum = |wire| Operation::all_reduce::<i32>(&b, &b, 1, ReduceOp::Sum).wire(wire);
    for (operation, says) in [
        (Operation::send::<i32>(&b, 1, 9, 0), "its peer is rank 9"),
        (Operation::send::<i32>(&b, 1, 1, any), "ANY_TAG"),
        (
            Operation::broadcast::<i32>(&b, &b, 1, 2),
            "its root is rank 2",
        ),
        (sum(ringbell::comm::WireType::Bf16), "wire type"),
        (Operation::copy::<i32>(&b, b.slice(4..), 3), "overlap"),
        (
            sum(ringbell::comm::WireType::Same).timeout(Duration::from_secs(5000)),
            "71 minutes",
        ),
    ] {
        let e = comms[0].run(&operation).expect_err("a misuse").to_string();
        assert!(e.contains(says), "{says}: {e}");
    }
    let nothing = comms[0].run(&Operation::send::<i32>(&b, 1, 9, 0));
    let nothing = nothing.expect_err("no rank 9");
    assert_eq!(nothing.status(), Some(Status::InvalidArgument), "{nothing}");
    // Ranks that call another operation are named, and the error says that the communicator is
    // lost.
    let errors = each(&comms, |c| {
        let b = c.nic().alloc::<u8>(64).expect("memory");
        let op = if c.rank() == 0 {
            ReduceOp::Sum
        } else {
            ReduceOp::Max
        };
        let e = c.all_reduce::<i32>(&b, &b, 7, op).expect_err("they differ");
        (e.status(), e.to_string(), e.is_fatal())
    });
    for (status, text, fatal) in errors {
        assert_eq!(status, Some(Status::Mismatch), "{text}");
        assert!(
            fatal && text.contains("rank 1 called something else"),
            "{text}"
        );
    }
}

#[test]
fn the_rank_that_skips_a_collective_is_named_on_all_ranks() {
    let r = ranks("skipped", 3);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    let barrier = Operation::barrier().timeout(Duration::from_secs(2));
    each(&comms[..2], |c| {
        let e = c.run(&barrier).expect_err("rank 2 does not come");
        assert_eq!(e.status(), Some(Status::TimedOut), "{e}");
        let text = e.to_string();
        assert!(
            e.is_fatal() && text.contains("rank 2 had not called it"),
            "{text}"
        );
    });
    let e = comms[2].run(&barrier).expect_err("too late").to_string();
    assert!(e.contains("this rank had not called it"), "{e}");
}

#[test]
fn a_rank_that_does_not_come_is_an_error_and_not_a_hang() {
    let r = ranks("late", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    let b = r.nics[0].alloc::<u8>(64).expect("memory");
    let o = Operation::all_reduce::<i32>(&b, &b, 7, ReduceOp::Sum).timeout(SHORT);
    // A message without a partner ends alone.
    let long = r.nics[0].alloc::<u8>(16 << 10).expect("memory");
    for lonely in [
        // Longer than what is sent before its receive.
        Operation::send::<i32>(&long, 4096, 1, 3),
        Operation::recv::<i32>(&b, 7, Some(1), Some(3)),
    ] {
        let e = comms[0]
            .run(&lonely.timeout(SHORT))
            .expect_err("no partner");
        assert_eq!(e.status(), Some(Status::TimedOut), "{e}");
        let text = e.to_string();
        assert!(!e.is_fatal() && text.contains("works on"), "{text}");
        assert!(!text.contains("aborted"), "{text}");
    }
    let e = comms[0].run(&o).expect_err("rank 1 does not come");
    assert_eq!(e.status(), Some(Status::TimedOut), "{e}");
    assert!(
        e.is_fatal() && e.to_string().contains("rank 1 had not called it"),
        "{e}"
    );
    let id = ringbell::UniqueId::create().expect("a port");
    let patient = CommOptions {
        init_timeout: SHORT,
        ..options()
    };
    let e = Communicator::init(&r.nics[0], &id, 2, 0, &patient).expect_err("alone");
    assert!(
        matches!(&e, CollectiveError::Bootstrap(b) if b.to_string().contains("rank(s) 1")),
        "{e}"
    );
}

#[test]
fn info_reports_the_chosen_algorithm_and_the_peers() {
    let r = ranks("info", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    each(&comms, |c| {
        let b = c.nic().alloc::<u8>(4096).expect("memory");
        let o = Operation::all_reduce::<f32>(&b, &b, 1000, ReduceOp::Sum).algo(Algorithm::Ring);
        c.run(&o).expect("all come");
        let info = c.info().expect("it is there");
        assert!(info.nic_memory > 0);
        let peer = &info.peers[1 - c.rank() as usize];
        assert_eq!(peer.transport, Some("local"));
        assert!(info
            .chosen
            .contains(&(CollectiveKind::AllReduce, Algorithm::Ring, 1)));
    });
}

#[test]
fn hosts_are_found_or_set_and_an_all_reduce_by_them_is_refused_where_they_do_not_fit() {
    let r = ranks("hosts", 4);
    let run = |host_ranks: HostRanks, error: Option<&str>| {
        let mut o = options();
        o.settings.host_ranks = host_ranks.clone();
        let comms = Communicator::init_all(&r.nics, &o).expect("all come");
        each(&comms, |c| {
            let x = c.nic().alloc::<u8>(99 * 4).expect("memory");
            put(&x, 0, &data(c.rank(), 99));
            let call = Operation::all_reduce::<i32>(&x, &x, 99, ReduceOp::Sum);
            let end = c.run(&call.algo(Algorithm::Hierarchical));
            match error {
                Some(words) => {
                    let e = end.expect_err(words);
                    assert_eq!(e.status(), Some(Status::InvalidArgument), "{e}");
                    assert!(e.to_string().contains(words), "{e}");
                }
                None => {
                    end.expect("all come");
                    let sums: Vec<_> = (0..99).map(|i| sum(4, i)).collect();
                    assert_eq!(get(&x, 0, 99), sums);
                }
            }
        });
    };
    // All are in this process.
    run(0.into(), None);
    run(2.into(), None);
    run(HostRanks::of_sizes(&[3, 1]), None);
    run(HostRanks::of_hosts([0, 1, 0, 1]), None);
    run(3.into(), Some("4 ranks cannot be 3 on each"));
    let three = HostRanks::of_sizes(&[2, 1]);
    run(
        three,
        Some("hosts of 2,1 ranks have 3 in all, and there are 4"),
    );
}

#[test]
fn operations_that_kernels_post_in_a_stream_have_the_communicators_defaults() {
    communicators::defaults_in_streams("defaults");
}

#[test]
fn an_all_reduce_is_captured_once_and_replayed_with_other_data() {
    let r = communicators::ranks("graph", 3);
    let comms = Communicator::init_all(&r.nics, &communicators::options()).expect("all come");
    communicators::each(&comms, communicators::replays);
}

/// No rank is told where the others receive: the job's meeting tells them.
#[test]
fn ranks_over_datagrams_learn_each_others_sockets() {
    let nics: Vec<Nic> = (1..=3)
        .map(|n| {
            let nic = Nic::builder()
                .ip(format!("10.9.60.{n}/24"))
                .port("roce:127.0.0.1:0");
            let nic = nic.transport("rdma").gpu("emulated").gpu_memory(16 << 20);
            nic.open().expect("loopback has free ports")
        })
        .collect();
    let comms = Communicator::init_all(&nics, &options()).expect("all come");
    each(&comms, |comm| {
        // Below and above what leaves in one packet.
        for count in [1, 1_000, 200_001_u64] {
            let buffer = comm.nic().alloc::<i32>(count).expect("room");
            buffer.write(0, &data(comm.rank(), count)).expect("it fits");
            comm.all_reduce::<i32>(&buffer, &buffer, count, ReduceOp::Sum)
                .expect("all came");
            let got = buffer.to_vec().expect("a copy");
            assert!((0..count).all(|i| got[i as usize] == sum(3, i)), "{count}");
        }
    });
}

#[test]
fn several_udp_ports_of_a_kernels_socket_are_refused_with_what_to_do() {
    let nic = Nic::builder().ip("10.9.60.8/24").port("roce:127.0.0.1:0");
    let nic = nic.transport("rdma").rdma_udp_ports(4).gpu("emulated");
    let error = anyhow::Error::new(nic.open().expect_err("one socket"));
    let said = format!("{error:#}");
    assert!(said.contains("one UDP port, not 4"), "{said}");
    assert!(said.contains("leave udp_ports at 1"), "{said}");
}

#[test]
fn tcp_over_datagrams_is_refused_with_what_to_do() {
    let nic = Nic::builder().ip("10.9.60.9/24").port("roce:127.0.0.1:0");
    let e = nic
        .transport("tcp")
        .gpu("emulated")
        .open()
        .expect_err("no frames");
    let said = e.to_string();
    assert!(
        said.contains("transport rdma") && said.contains("port udp"),
        "{said}"
    );
}
