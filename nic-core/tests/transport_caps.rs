//! Tests of `Transport::caps`, and of the events that end operations which a transport lacks.

use crate::transport_support;

use ringbell_nic_abi::{GpuVa, Opcode, Rkey, Status};
use ringbell_nic_core::network::Protocol;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::{
    Payload, RemoteOp, RemoteWork, SendWork, Target, TransportEvent, Work,
};
use ringbell_nic_core::types::{Owner, WorkToken};
use transport_support::{config, rdma, wire, Opened, Pair, PairOf, IP_A, IP_B, MINUTE};

fn over_tcp() -> Pair {
    let ports = wire(1500, Checksums::Software);
    Pair::with(ports, config(IP_A), config(IP_B))
}

fn over_udp() -> PairOf<UdpTransport> {
    let config = |seed| UdpConfig {
        seed,
        ..UdpConfig::default()
    };
    PairOf::with(wire(1500, Checksums::Software), config(1), config(2))
}

/// It has this name and this protocol, and a part that takes packets.
fn says<T: Opened>(p: &mut PairOf<T>, name: &str, protocol: Protocol, exposes: bool) {
    let caps = p.a.transport.caps();
    assert_eq!((caps.name, caps.protocol), (name, Some(protocol)));
    assert_eq!(caps.exposes.is_some(), exposes);
    assert!(p.a.transport.packets().is_some());
}

/// Operations that a transport does not have end as unsupported, and the stream goes on.
fn lacks_what_it_does_not_say<T: Opened>(p: &mut PairOf<T>) {
    let (a, b) = p.connect(7000);
    let send = SendWork {
        token: WorkToken(1),
        by: Owner::NIC,
        payload: Payload::Memory(p.a.dma.region(vec![1; 100])),
        push: true,
    };
    let to = Target {
        key: 7,
        offset: 0,
        last: true,
    };
    p.a.transport.post(a, Work::Write(send, to));
    let remote = RemoteWork {
        token: WorkToken(2),
        rkey: Rkey(7),
        va: GpuVa(0),
        op: RemoteOp::FetchAdd { addend: 1 },
    };
    p.a.transport.post(a, Work::Remote(remote));
    p.until(MINUTE, |p| {
        p.a.has(TransportEvent::SendDone {
            conn: a,
            token: WorkToken(1),
            status: Status::Unsupported,
            bytes: 0,
            detail: 0,
        })
    });
    p.until(MINUTE, |p| {
        p.a.has(TransportEvent::RemoteDone {
            conn: a,
            token: WorkToken(2),
            status: Status::Unsupported,
            bytes: 0,
            detail: Opcode::FetchAdd.code().into(),
        })
    });
    // The first bytes at the peer are those of the next send.
    let (from, into) = (p.a.dma.region(vec![9; 50]), p.b.dma.region(vec![0; 50]));
    p.a.send(a, 3, from);
    p.b.recv(b, 4, into, false);
    assert_eq!(p.until(MINUTE, |p| p.b.received(4)), (Status::Ok, 50));
    assert_eq!(p.b.dma.bytes(into), [9; 50]);
}

#[test]
fn transports_of_packets_say_what_they_are() {
    says(&mut over_tcp(), "tcp", Protocol::Tcp, false);
    says(&mut over_udp(), "udp", Protocol::Udp, false);
    let ports = wire(1500, Checksums::Software);
    let mut by_rdma = rdma::Pair::with(ports, rdma::config(1), rdma::config(2));
    says(&mut by_rdma, "rdma", Protocol::Roce, true);
}

#[test]
fn tcp_ends_operations_that_it_does_not_have() {
    lacks_what_it_does_not_say(&mut over_tcp());
}

#[test]
fn udp_ends_operations_that_it_does_not_have() {
    lacks_what_it_does_not_say(&mut over_udp());
}
