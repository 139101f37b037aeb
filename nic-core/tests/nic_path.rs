//! The whole path: descriptors in, bytes across the `local` transport, completions out.

use crate::nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Descriptor, Opcode, Status};

#[test]
fn one_message_between_two_nics() {
    let dir = TempDir::new();
    let (a, b) = (
        Host::new(&Setup::new(&dir, 1)),
        Host::new(&Setup::new(&dir, 2)),
    );
    let hosts = [&a, &b];
    let nop = call(&hosts, 0, &Descriptor::new(Opcode::Nop));
    assert_eq!(nop.status, Status::Ok);
    let (s, r) = connected(&hosts, 0, 1, 7);
    a.poke(0, b"12345678");
    let tr = b.post(&recv(r, 4096, 8));
    let ts = a.post(&send(s, 0, 8));
    let done = settle(&hosts, &[(1, tr), (0, ts)]);
    assert_eq!((done[0].status, done[0].bytes), (Status::Ok, 8));
    assert_eq!((done[1].status, done[1].bytes), (Status::Ok, 8));
    assert_eq!(b.peek(4096, 8), b"12345678");
    assert_eq!(call(&hosts, 0, &close(s)).status, Status::Ok);
    let end = call(&hosts, 1, &recv(r, 0, 8));
    assert_eq!((end.status, end.bytes), (Status::EndOfStream, 0));
    assert_eq!(call(&hosts, 1, &close(r)).status, Status::Ok);
    for h in hosts {
        let c = h.nic.counters();
        assert_eq!(c.accepted, c.retired);
    }
}

#[test]
fn every_size_arrives_intact_in_both_orders() {
    let dir = TempDir::new();
    let (a, b) = (
        Host::new(&Setup::new(&dir, 1)),
        Host::new(&Setup::new(&dir, 2)),
    );
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let mut rng = Rng::new(11);
    let sizes = [
        1u32, 7, 8, 39, 40, 41, 119, 120, 121, 4096, 65535, 65536, 65537, 300_001, 3_000_000,
    ];
    for len in sizes {
        for recv_first in [true, false] {
            let from = rng.below(100_000);
            let to = rng.below(100_000);
            let data = rng.bytes(len as usize);
            a.poke(from, &data);
            let (ts, tr);
            if recv_first {
                tr = b.post(&recv(r, to, len));
                quiesce(&hosts);
                ts = a.post(&send(s, from, len));
            } else {
                ts = a.post(&send(s, from, len));
                quiesce(&hosts);
                tr = b.post(&recv(r, to, len));
            }
            let done = settle(&hosts, &[(0, ts), (1, tr)]);
            for c in done {
                assert_eq!((c.status, c.bytes), (Status::Ok, len.into()), "{len}");
            }
            assert!(b.peek(to, len as usize) == data, "bytes differ at {len}");
        }
    }
}
