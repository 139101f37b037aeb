//! Receives that a peer writes by WRITEs with immediate data: content, order, keys, and peers that
//! break the rules.

use crate::transport_support;

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::{
    Close, Payload, RecvWork, SendWork, Target, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, ConnId, Owner, WorkToken};
use transport_support::rdma::{Pair, Side};
use transport_support::{random, wire, MINUTE};

fn expose(side: &mut Side, conn: ConnId, token: u64, buffer: Buffer) -> u32 {
    let work = RecvWork {
        token: WorkToken(token),
        by: Owner::NIC,
        buffer,
        some: false,
    };
    side.transport
        .expose(conn, &work, false)
        .expect("an open connection")
}

fn write(side: &mut Side, conn: ConnId, token: u64, buffer: Buffer, to: Target) {
    let work = SendWork {
        token: WorkToken(token),
        by: Owner::NIC,
        payload: Payload::Memory(buffer),
        push: true,
    };
    side.transport.post(conn, Work::Write(work, to));
}

fn whole(key: u32) -> Target {
    Target {
        key,
        offset: 0,
        last: true,
    }
}

/// Bytes of the stream before and behind a written message arrive before and behind it, on good
/// wires and bad ones, with memory that is mapped and memory that is not.
#[test]
fn written_messages_arrive_once_and_in_order_with_the_stream() {
    let rates = [0.0, 0.0, 0.02, 0.05];
    for (seed, loss) in (0..).zip(rates) {
        for len in [1, 4_096, 16_384, 61_440, 300_001] {
            let (a, b) = wire(4_096 + 90, Checksums::Software);
            let impair = |port: Box<dyn Port>, seed| -> Box<dyn Port> {
                let faults = Faults {
                    loss,
                    duplicate: loss,
                    seed,
                    ..Faults::default()
                };
                Box::new(Impair::new(port, faults).unwrap()) // probabilities
            };
            let mut p = Pair::new((impair(a, seed), impair(b, seed + 9)), seed);
            (p.a.dma.mapped, p.b.dma.mapped) = (seed % 2 == 0, seed % 2 == 0);
            let (a, b) = p.connect(7000);
            let stream = random(seed, 3_000);
            let (src, dst) = (
                p.a.dma.region(stream.clone()),
                p.b.dma.region(vec![0; 3_000]),
            );
            let part = |buffer: Buffer, at: u64, len: u32| Buffer {
                va: ringbell_nic_abi::GpuVa(buffer.va.0 + at),
                len,
                ..buffer
            };
            let data: Vec<_> = (0..3).map(|i| random(seed + i, len)).collect();
            let from: Vec<_> = data.iter().map(|d| p.a.dma.region(d.clone())).collect();
            let into: Vec<_> = data.iter().map(|_| p.b.dma.region(vec![0; len])).collect();
            let keys: Vec<_> = (10..)
                .zip(&into)
                .map(|(token, buffer)| expose(&mut p.b, b, token, *buffer))
                .collect();
            p.b.recv(b, 1, part(dst, 0, 1_000), false);
            p.a.send(a, 100, part(src, 0, 1_000));
            // Not in the order in which they were exposed; the last message in two parts.
            write(&mut p.a, a, 101, from[1], whole(keys[1]));
            write(&mut p.a, a, 102, from[0], whole(keys[0]));
            p.a.send(a, 103, part(src, 1_000, 2_000));
            let half = len as u32 / 2;
            let to = Target {
                last: false,
                ..whole(keys[2])
            };
            if half > 0 {
                write(&mut p.a, a, 104, part(from[2], 0, half), to);
            }
            let rest = part(from[2], half.into(), len as u32 - half);
            let to = Target {
                offset: half,
                ..whole(keys[2])
            };
            write(&mut p.a, a, 105, rest, to);
            let mut order = Vec::new();
            let mut posted = false;
            p.until(MINUTE, |p| {
                while let Some(e) = p.b.events.pop_front() {
                    if let TransportEvent::RecvDone { token, status, .. } = e {
                        assert_eq!(status, Status::Ok);
                        order.push(token.0);
                    }
                }
                if order.contains(&1) && !std::mem::replace(&mut posted, true) {
                    p.b.recv(b, 2, part(dst, 1_000, 2_000), false);
                }
                (order.len() == 5).then_some(())
            });
            assert_eq!(order[..3], [1, 11, 10], "{seed} {len}");
            p.until(MINUTE, |p| p.a.sent(105));
            assert_eq!(p.b.dma.bytes(dst), stream);
            for (data, into) in data.iter().zip(&into) {
                assert!(p.b.dma.bytes(*into) == *data, "{seed} {len}");
            }
        }
    }
}

/// Every access that its key does not allow ends the connection, and no byte is written.
#[test]
fn writes_beside_a_receive_end_the_connection_and_touch_nothing() {
    let len = 10_000;
    type Case = (&'static str, fn(u32) -> Target, u32);
    let cases: [Case; 6] = [
        ("a wrong key", |key| whole(key ^ 1), len),
        ("a key of the same name", |key| whole(key ^ 1 << 31), len),
        ("no key", |_| whole(0), len),
        (
            "behind the first byte",
            |key| Target {
                offset: 4,
                ..whole(key)
            },
            8,
        ),
        (
            "behind the end",
            |key| Target {
                offset: 10_000,
                ..whole(key)
            },
            4,
        ),
        ("more than there is", whole, len + 1),
    ];
    for (what, to, n) in cases {
        let mut p = Pair::new(wire(4_096 + 90, Checksums::Software), 3);
        let (a, b) = p.connect(7000);
        let src = p.a.dma.region(vec![0xee; n as usize]);
        let dst = p.b.dma.region(vec![7; len as usize + 100]);
        let key = expose(&mut p.b, b, 1, Buffer { len, ..dst });
        write(&mut p.a, a, 2, src, to(key));
        p.until(MINUTE, |p| p.b.has(TransportEvent::Reset { conn: b }));
        assert_eq!(
            p.b.received(1).map(|(s, _)| s),
            Some(Status::ConnectionReset)
        );
        let bytes = p.b.dma.bytes(dst);
        // Packets of one message are checked one by one: what lies behind the receive is untouched
        // in any case.
        assert!(bytes[len as usize..].iter().all(|b| *b == 7), "{what}");
        if what != "more than there is" {
            assert!(bytes.iter().all(|b| *b == 7), "{what}");
        }
        p.until(MINUTE, |p| p.a.has(TransportEvent::Reset { conn: a }));
    }
    // Twice the same key; and an end before all bytes are there.
    let mut p = Pair::new(wire(4_096 + 90, Checksums::Software), 4);
    let (a, b) = p.connect(7000);
    let src = p.a.dma.region(vec![0xee; len as usize]);
    let dst = p.b.dma.region(vec![7; len as usize]);
    let key = expose(&mut p.b, b, 1, dst);
    let to = whole(key);
    write(&mut p.a, a, 2, src, to);
    p.until(MINUTE, |p| p.b.received(1));
    write(&mut p.a, a, 3, src, to);
    p.until(MINUTE, |p| p.b.has(TransportEvent::Reset { conn: b }));
    let mut p = Pair::new(wire(4_096 + 90, Checksums::Software), 5);
    let (a, b) = p.connect(7000);
    let src = p.a.dma.region(vec![0xee; len as usize]);
    let dst = p.b.dma.region(vec![7; len as usize]);
    let key = expose(&mut p.b, b, 1, dst);
    write(
        &mut p.a,
        a,
        2,
        Buffer {
            len: len - 4,
            ..src
        },
        whole(key),
    );
    p.until(MINUTE, |p| p.b.has(TransportEvent::Reset { conn: b }));
    assert_eq!(
        p.b.received(1).map(|(s, _)| s),
        Some(Status::ConnectionReset)
    );
}

/// What still comes for a receive that was cancelled is dropped, and everything behind it arrives.
#[test]
fn a_cancelled_receive_is_not_written_and_the_connection_goes_on() {
    for steps in [0, 1, 2, 3, 5] {
        let mut p = Pair::new(wire(4_096 + 90, Checksums::Software), 6);
        let (a, b) = p.connect(7000);
        let data = random(6, 200_000);
        let src = p.a.dma.region(data.clone());
        let first = p.b.dma.region(vec![7; data.len()]);
        let second = p.b.dma.region(vec![0; data.len()]);
        let keys = [(1, first), (2, second)].map(|(token, at)| expose(&mut p.b, b, token, at));
        assert_ne!(keys[0], keys[1]);
        for (i, key) in keys.iter().enumerate() {
            write(&mut p.a, a, 10 + i as u64, src, whole(*key));
        }
        for _ in 0..steps {
            p.tick();
        }
        let before = p.b.received(1);
        let cancelled = p.b.transport.cancel(b, WorkToken(1));
        assert_eq!(before.is_none(), cancelled.is_some(), "{steps}");
        // Its memory is gone: an access would fault.
        if cancelled.is_some() {
            p.b.dma.regions[first.region as usize] = Vec::new();
        }
        assert_eq!(p.until(MINUTE, |p| p.b.received(2)).0, Status::Ok);
        assert!(p.b.dma.bytes(second) == data);
        assert_eq!(p.b.received(1), None);
        assert_eq!(p.until(MINUTE, |p| p.a.sent(11)).0, Status::Ok);
        // The ends of a connection end the others.
        let third = p.b.dma.region(vec![0; 100]);
        expose(&mut p.b, b, 3, third);
        p.b.transport.close(b, Close::Gracefully);
        p.until(MINUTE, |p| p.a.has(TransportEvent::PeerClosed { conn: a }));
        assert_eq!(p.b.received(3), Some((Status::NotConnected, 0)));
    }
}
