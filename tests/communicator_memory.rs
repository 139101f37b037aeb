//! Tests of communicator calls over memory other than the GPU's, and of cancelled requests.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;

use communicators::{each, options, ranks};
use ringbell::abi::Status;
use ringbell::{
    CollectiveError, Communicator, DeviceBuffer, HostBuffer, NicBuffer, Operation, ReduceOp, Span,
};

enum Memory {
    Gpu(DeviceBuffer),
    Host(HostBuffer),
    OnNic(NicBuffer),
}

impl Memory {
    fn new(c: &Communicator, kind: &str, bytes: u64) -> Memory {
        let nic = c.nic();
        match kind {
            "host" => Memory::Host(nic.alloc_host(bytes as usize).expect("host memory")),
            "adopted" => Memory::Host(nic.adopt_host(vec![0; bytes as usize]).expect("adopted")),
            "nic" => Memory::OnNic(nic.alloc_on_nic(bytes).expect("NIC memory")),
            _ => Memory::Gpu(nic.alloc::<u8>(bytes).expect("GPU memory")),
        }
    }

    fn span(&self) -> Span {
        match self {
            Memory::Gpu(b) => b.into(),
            Memory::Host(b) => b.into(),
            Memory::OnNic(b) => b.into(),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        match self {
            Memory::Gpu(b) => b.write(at, bytes).expect("fits"),
            Memory::Host(b) => b.write(at, bytes).expect("fits"),
            Memory::OnNic(b) => b.write(at, bytes).expect("fits"),
        }
    }

    fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        match self {
            Memory::Gpu(b) => b.read(at, &mut bytes).expect("fits"),
            Memory::Host(b) => b.read(at, &mut bytes).expect("fits"),
            Memory::OnNic(b) => b.read(at, &mut bytes).expect("fits"),
        }
        bytes
    }
}

fn data(rank: u32, count: u64) -> Vec<u8> {
    let value = |i| (rank + 3) * 1_000_003 + i as u32 * 7919;
    (0..count).flat_map(|i| value(i).to_ne_bytes()).collect()
}

fn sum(ranks: u32, count: u64) -> Vec<u8> {
    let value = |r, i| (r + 3) * 1_000_003 + i as u32 * 7919;
    let of = |i| (0..ranks).fold(0u32, |s, r| s.wrapping_add(value(r, i)));
    (0..count).flat_map(|i| of(i).to_ne_bytes()).collect()
}

/// Source and destination of rank 0, then of rank 1.
const KINDS: [[&str; 4]; 6] = [
    ["host", "host", "host", "host"],
    ["adopted", "adopted", "adopted", "adopted"],
    ["nic", "nic", "nic", "nic"],
    ["host", "adopted", "gpu", "gpu"],
    ["gpu", "gpu", "adopted", "nic"],
    ["nic", "gpu", "host", "nic"],
];

#[test]
fn an_all_reduce_takes_memory_of_every_kind_and_each_rank_another() {
    let r = ranks("kinds", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("both come");
    for kinds in KINDS {
        each(&comms, |c| {
            let me = c.rank() as usize;
            // Small ones travel in records; large ones span pages and segments.
            for count in [1u64, 200, 1021, 150_001] {
                let what = format!("{kinds:?}, rank {me}, {count} elements");
                let bytes = count * 4 + 64;
                let src = Memory::new(c, kinds[me * 2], bytes);
                let dst = Memory::new(c, kinds[me * 2 + 1], bytes);
                src.write(20, &data(c.rank(), count));
                let (s, d) = (src.span().slice(20..), dst.span().slice(12..));
                c.all_reduce::<u32>(s, d, count, ReduceOp::Sum)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(dst.read(12, count * 4) == sum(2, count), "{what}");
                c.all_reduce::<u32>(s, s, count, ReduceOp::Sum)
                    .unwrap_or_else(|e| panic!("in place, {what}: {e}"));
                assert!(src.read(20, count * 4) == sum(2, count), "in place, {what}");
                assert!(src.read(0, 20) == [0; 20], "bytes before it, {what}");
            }
        });
    }
}

#[test]
fn a_request_is_cancelled_while_no_rank_depends_on_it() {
    let r = ranks("cancel", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("both come");
    let buffer = comms[0].nic().alloc::<u8>(64).expect("memory");
    let recv = Operation::recv::<u8>(&buffer, 64, Some(1), Some(5));
    let mut request = comms[0].post(&recv).expect("room");
    request.cancel().expect("no rank sends");
    let e = request.wait().expect_err("it was cancelled");
    assert_eq!(e.status(), Some(Status::Cancelled));
    assert!(!e.is_fatal());
    // A collective counts from its post on: it cannot be cancelled, and ends well.
    let mut barrier = comms[0].post(&Operation::barrier()).expect("room");
    let e = barrier.cancel().expect_err("rank 1 counts on it");
    assert!(matches!(e, CollectiveError::Cancel { .. }), "{e:?}");
    each(&comms[1..], |c| c.barrier().expect("both came"));
    barrier.wait().expect("both came");
    // The same tag works, and an operation that has ended cannot be cancelled.
    each(&comms, |c| {
        let b = c.nic().alloc::<u8>(64).expect("memory");
        if c.rank() == 1 {
            b.write(0, &[7; 64]).expect("fits");
            return c.send::<u8>(&b, 64, 0, 5).expect("sent");
        }
        let mut request = c
            .post(&Operation::recv::<u8>(&b, 64, Some(1), Some(5)))
            .expect("room");
        request
            .wait_for(std::time::Duration::from_secs(60))
            .expect("received");
        let e = request.cancel().expect_err("it has ended");
        assert!(matches!(e, CollectiveError::Cancel { .. }), "{e:?}");
        let mut got = [0; 64];
        b.read(0, &mut got).expect("fits");
        assert_eq!(got, [7; 64]);
    });
}
