//! Communicators with the setting `deterministic`: the same bits for any cut of a buffer, place,
//! path and algorithm.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;

use std::sync::Arc;
use std::time::Duration;

use communicators::{each, gpu_choice, options};
use ringbell::abi::Status;
use ringbell::comm::WireType;
use ringbell::job::Member;
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{Algorithm, CollectiveError, CommOptions, Communicator, Nic, Operation, ReduceOp};

const RANKS: u32 = 5;
/// Elements: several segments of the smallest size, and no multiple of anything.
const COUNT: u64 = 10_007;

/// Element i of a rank: their sums depend on the order.
fn value(rank: u32, i: u64) -> f32 {
    let seed = (u64::from(rank) << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let size = [1e-4_f32, 1.0, 3e4, 1e7][(seed >> 60) as usize % 4];
    ((seed >> 20) as u32 % 2_000_003) as f32 / 7.0 * size - size
}

/// Sums in the order of the ranks.
fn sums(first: u64, count: u64) -> Vec<u32> {
    let sum = |i| (1..RANKS).fold(value(0, i), |s, r| s + value(r, i));
    (first..first + count).map(|i| sum(i).to_bits()).collect()
}

fn bits(b: &ringbell::DeviceBuffer<f32>, count: u64) -> Vec<u32> {
    let mut all = vec![0.0; count as usize];
    b.read(0, &mut all).expect("a copy");
    all.into_iter().map(f32::to_bits).collect()
}

/// Every reducing collective, in and out of place, whole and cut into calls, by these algorithms.
fn reduces(c: &Communicator, algos: &[Algorithm], path: &str) {
    let (me, n) = (c.rank(), u64::from(RANKS));
    let memory = || c.nic().alloc::<f32>(COUNT * n).expect("memory");
    let (src, dst) = (memory(), memory());
    let fill = || {
        let all: Vec<f32> = (0..COUNT * n).map(|i| value(me, i)).collect();
        src.write(0, &all).expect("fits");
    };
    for algo in algos {
        for (in_place, cut) in [(false, COUNT), (true, COUNT), (false, 997), (true, 3)] {
            // A short cut only at the start: the bits of these elements are those of the whole.
            let calls = if cut < 10 { 4 } else { COUNT / cut };
            let what = format!("{path}, {algo:?}, in place {in_place}, {cut} elements a call");
            fill();
            let at = |b: &ringbell::DeviceBuffer<f32>, call: u64| b.slice(call * cut..);
            let to = if in_place { &src } else { &dst };
            for call in 0..calls {
                let o =
                    Operation::all_reduce::<f32>(at(&src, call), at(to, call), cut, ReduceOp::Sum);
                c.run(&o.algo(*algo)).expect("all come");
            }
            assert_eq!(
                bits(to, calls * cut),
                sums(0, calls * cut),
                "all-reduce, {what}"
            );
            fill();
            for call in 0..calls {
                let root = call as u32 % RANKS;
                let here = if me == root { to } else { &src };
                let o = Operation::reduce::<f32>(
                    at(&src, call),
                    at(here, call),
                    cut,
                    ReduceOp::Sum,
                    root,
                );
                c.run(&o.algo(*algo)).expect("all come");
                if me == root {
                    let has = &bits(to, (call + 1) * cut)[(call * cut) as usize..];
                    assert_eq!(has, sums(call * cut, cut), "reduce, {what}");
                }
            }
            if *algo == Algorithm::Flat {
                continue;
            }
            fill();
            // Rank r's block of this call are the elements from r * cut on.
            let own = u64::from(me) * cut;
            let (to, first) = if in_place { (&src, own) } else { (&dst, 0) };
            let o = Operation::reduce_scatter::<f32>(&src, to.slice(first..), cut, ReduceOp::Sum);
            c.run(&o.algo(*algo)).expect("all come");
            let has = &bits(to, first + cut)[first as usize..];
            assert_eq!(has, sums(own, cut), "reduce-scatter, {what}");
        }
    }
}

fn strict(direct: bool) -> CommOptions {
    let mut options = options();
    options.settings.deterministic = true;
    options.settings.direct = direct;
    options.settings.segment_bytes = 4 << 10;
    options
}

#[test]
fn the_bits_are_those_of_the_order_of_the_ranks_whatever_the_path() {
    use Algorithm as A;
    let r = communicators::ranks("strict", RANKS as u8);
    for direct in [true, false] {
        let comms = Communicator::init_all(&r.nics, &strict(direct)).expect("all come");
        each(&comms, |c| {
            reduces(
                c,
                &[A::Auto, A::Pairwise],
                &format!("local, direct {direct}"),
            )
        });
    }
    for (transport, network) in [("rdma", 67), ("udp", 68), ("tcp", 69)] {
        let switch = MemSwitch::private(RANKS as usize, 1500, Checksums::Software);
        let switch = Arc::new(switch.expect("a switch"));
        let open = |n: u8| {
            let nic = Nic::builder().ip(format!("10.{network}.0.{}/24", n + 1));
            let nic = nic.gpu(gpu_choice()).gpu_memory(16 << 20);
            let nic = match transport {
                "tcp" => nic.switch(switch.clone(), n.into()),
                _ => nic.port("roce:127.0.0.1:0"),
            };
            nic.transport(transport).open().expect("a NIC")
        };
        let nics: Vec<Nic> = (0..RANKS as u8).map(open).collect();
        let comms = Communicator::init_all(&nics, &strict(true)).expect("all come");
        each(&comms, |c| reduces(c, &[A::Auto], transport));
    }
}

#[test]
fn operations_that_cannot_keep_the_order_are_refused_and_other_ranks_must_ask_for_it_too() {
    let r = communicators::ranks("strict-refused", 2);
    let comms = Communicator::init_all(&r.nics, &strict(true)).expect("all come");
    each(&comms, |c| {
        let x = c.nic().alloc::<f32>(64).expect("memory");
        let sum = || Operation::all_reduce::<f32>(&x, &x, 64, ReduceOp::Sum);
        for (o, word) in [
            (sum().algo(Algorithm::Ring), "pairwise"),
            (sum().algo(Algorithm::Tree), "deterministic"),
            (
                sum().algo(Algorithm::RecursiveDoubling),
                "all-gather-reduce",
            ),
            (sum().algo(Algorithm::Hierarchical), "deterministic"),
            (sum().wire(WireType::Bf16), "wire"),
        ] {
            let e = c.run(&o).expect_err(word);
            assert_eq!(e.status(), Some(Status::InvalidArgument), "{e}");
            assert!(e.to_string().contains(word), "{e}");
        }
        // What moves data keeps every algorithm.
        let b = Operation::broadcast::<f32>(&x, &x, 64, 0).algo(Algorithm::Chain);
        c.run(&b).expect("nothing is reduced");
        c.run(&sum()).expect("works on");
    });
    drop(comms);
    // The first communicator names the setting, and so does one that a new rank joins.
    let id = ringbell::UniqueId::create().expect("a port");
    std::thread::scope(|s| {
        for (rank, nic) in (0..).zip(&r.nics) {
            s.spawn(move || {
                let mut options = strict(true);
                options.settings.deterministic = rank == 0;
                let c = Communicator::init(nic, &id, 2, rank, &options);
                differs(&c.expect_err("they differ"));
            });
        }
    });
    let id = ringbell::UniqueId::create().expect("a port");
    let old = Communicator::init(&r.nics[0], &id, 1, 0, &strict(true)).expect("alone");
    std::thread::scope(|s| {
        s.spawn(|| {
            let wait = Duration::from_secs(20);
            differs(&old.grow(2, wait).expect_err("they differ"));
        });
        let member = Member::join_running(&id, Duration::from_secs(20)).expect("it runs");
        let mut other = strict(true);
        other.settings.deterministic = false;
        differs(&Communicator::join(&r.nics[1], member, &other).expect_err("they differ"));
    });
    old.barrier().expect("goes on");
}

/// Rank 1 has not asked for the order of the ranks.
fn differs(e: &CollectiveError) {
    assert_eq!(e.status(), Some(Status::Mismatch), "{e}");
    let text = e.to_string();
    assert!(
        text.contains("rank 1") && text.contains("`deterministic` at 0"),
        "{e}"
    );
}
