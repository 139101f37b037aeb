//! Partial results of collectives in memory that the program has given.

use crate::collective_support::{Ether, Wire, World};
use crate::collectives::{one, small};
use crate::nic_support::BASE;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{Algorithm, CollectiveKind, GpuVa, Lkey};
use ringbell_nic_core::collective::CommError;
use ringbell_onc_engines::program::algorithms;

const MEMORY: u64 = 16 << 20;
/// Room for one communicator, behind the operands.
const GIVEN: u64 = 1 << 20;
const AT: GpuVa = GpuVa(BASE.0 + MEMORY - GIVEN);

/// Ranks whose NICs were given memory.
fn given(wire: Wire, slow: Option<u64>) -> World {
    let ether = Ether {
        slow,
        ..Ether::default()
    };
    let w = World::on(3, wire, MEMORY, |_, nic| nic, |_, port| port, ether);
    for rank in 0..3 {
        let host = w.host(rank);
        let region = host.nic.register(host.pd, AT, GIVEN, Access::LOCAL);
        let lkey = region.expect("it is mapped").lkey;
        let given = host.nic.give_scratch(host.pd, lkey, (AT, GIVEN));
        given.expect("it is registered");
    }
    w
}

#[test]
fn results_are_right_over_memory_that_is_mapped_and_that_is_slow() {
    for (wire, slow) in [
        (Wire::Tcp, None),
        (Wire::Rdma, None),
        (Wire::LossyRdma(1, 5), Some(1)),
        (Wire::Local, Some(2)),
    ] {
        let mut w = given(wire, slow);
        w.comms = w.communicator(7, &[0, 1, 2], &small());
        use CollectiveKind as K;
        for kind in [K::AllReduce, K::ReduceScatter, K::AllGather, K::Reduce] {
            let own = algorithms(kind).iter().filter(|a| **a != Algorithm::Direct);
            for algo in own {
                for count in [1, 700, 9_001] {
                    one(&mut w, kind, *algo, count, 0);
                }
            }
        }
    }
}

#[test]
fn what_is_given_has_room_for_one_communicator_after_the_other_and_nic_memory_for_more() {
    let mut w = given(Wire::Tcp, None);
    let used = |w: &World| w.host(0).nic.nic_memory().0;
    let scratch = small().scratch_bytes;
    let before = used(&w);
    let first = w.communicator(7, &[0, 1, 2], &small());
    assert!(used(&w) - before < scratch, "it is in the given memory");
    let second = w.communicator(8, &[0, 1, 2], &small());
    assert!(used(&w) - before >= scratch, "that was full");
    let full = used(&w);
    for (rank, id) in first.iter().enumerate() {
        w.host(rank).nic.free_communicator(*id).expect("known");
    }
    // Its buffers are in NIC memory.
    w.until("the end of the first", 10_000_000_000, |w| used(w) < full);
    let between = used(&w);
    w.comms = w.communicator(9, &[0, 1, 2], &small());
    assert!(used(&w) - between < scratch, "there is room again");
    one(&mut w, CollectiveKind::AllReduce, Algorithm::Ring, 5_000, 0);
    w.comms = second;
    one(&mut w, CollectiveKind::AllReduce, Algorithm::Ring, 5_000, 0);
}

#[test]
fn memory_that_may_not_be_written_is_refused() {
    let w = given(Wire::Tcp, None);
    let host = w.host(0);
    let refused = |lkey, at, len| {
        let said = host.nic.give_scratch(host.pd, lkey, (at, len));
        assert!(matches!(said, Err(CommError::Scratch { .. })), "{said:?}");
        said.map_err(|e| e.to_string()).expect_err("refused")
    };
    let region = host.nic.register(host.pd, AT, GIVEN, Access::LOCAL);
    let lkey = region.expect("it is mapped").lkey;
    assert!(refused(lkey, AT, GIVEN).contains("before"));
    let fresh = World::unjoined(1, Wire::Tcp, MEMORY);
    let host = fresh.host(0);
    let give = |lkey, len| host.nic.give_scratch(host.pd, lkey, (AT, len));
    assert!(give(Lkey(77), GIVEN).is_err());
    let read_only = Access {
        local_write: false,
        ..Access::LOCAL
    };
    let region = host.nic.register(host.pd, AT, GIVEN, read_only);
    let lkey = region.expect("it is mapped").lkey;
    assert!(give(lkey, GIVEN).is_err(), "it may not be written");
    // What was refused holds nothing.
    host.nic.deregister(lkey).expect("it is free");
    let region = host.nic.register(host.pd, AT, GIVEN, Access::LOCAL);
    let lkey = region.expect("it is mapped").lkey;
    assert!(give(lkey, GIVEN + 1).is_err(), "beyond its end");
    give(lkey, GIVEN).expect("after refusals");
}
