//! One-sided operations of iWARP against a peer of the test's own: what is served and refused, what
//! ends the connection, limits, and connections that are cut.

use crate::iwarp_support::*;
use crate::transport_support::random;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};
use ringbell_nic_core::transport::{
    Close, Payload, RemoteOp, RemoteWork, Signal, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, ConnId, WorkToken};
use ringbell_nic_core::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_nic_core::wire::iwarp::mpa::Startup;
use ringbell_nic_core::wire::iwarp::rdmap::{
    atomic_response, parse_atomic_response, Atomic, AtomicRequest, ReadRequest,
};
use ringbell_nic_core::wire::iwarp::session::{Credit, Kind, MESSAGE_BYTES};
use ringbell_nic_core::wire::iwarp::terminate::Reason;

const PD: PdId = PdId(3);
const KEY: u32 = 0x1234;
const LOCKED: u32 = 0x1235;
const BYTES: usize = 100_000;
/// Reads and atomic operations that a NIC serves at once, as its start-up frame says.
const READS: u32 = 16;

/// A NIC, a peer that may name its memory, and that memory.
fn served(mapped: bool) -> (Nic, Peer, ConnId, Buffer) {
    let mut nic = Nic::new();
    nic.side.dma.mapped = mapped;
    let memory = nic.side.dma.region(random(1, BYTES));
    let locked = Access {
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
        ..Access::REMOTE
    };
    nic.side.dma.keys.insert(KEY, (PD, memory, Access::REMOTE));
    nic.side.dma.keys.insert(LOCKED, (PD, memory, locked));
    let (peer, conn) = nic.peer();
    nic.side.transport.grant(conn, PD);
    (nic, peer, conn, memory)
}

/// A note that announces a put, with a signal that adds 5 to a word if one is named.
fn announced(peer: &mut Peer, key: u32, va: u64, len: u32, signal: Option<u32>) -> Vec<u8> {
    let mut note = vec![1, 0, u8::from(signal.is_some()), 0];
    note.extend(signal.unwrap_or(0).to_be_bytes());
    note.extend(key.to_be_bytes());
    note.extend(len.to_be_bytes());
    note.extend(va.to_be_bytes());
    note.extend(if signal.is_some() { 5_u64 } else { 0 }.to_be_bytes());
    peer.message(Kind::Ask, Credit::default(), &note)
}

/// A unit of a put's bytes.
fn write(key: u32, va: u64, bytes: &[u8], last: bool) -> Vec<u8> {
    let place = Place::Tagged {
        stag: key,
        offset: va,
    };
    let header = Header {
        opcode: Opcode::Write,
        last,
        place,
    };
    unit_of(&header, bytes)
}

fn read_unit(message: u32, key: u32, va: u64, len: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink: 77,
        sink_offset: 1000,
        len,
        source: key,
        source_offset: va,
    };
    unit_of(
        &Header::whole(Opcode::ReadRequest, message),
        &request.emit(),
    )
}

fn atomic_unit(message: u32, key: u32, va: u64, operation: Atomic) -> Vec<u8> {
    let request = AtomicRequest {
        identifier: 9,
        stag: key,
        offset: va,
        operation,
    };
    let header = Header::whole(Opcode::AtomicRequest, message);
    unit_of(&header, &request.emit())
}

/// The next note with which the NIC has answered: status and detail.
fn answered(nic: &mut Nic, peer: &mut Peer) -> (Status, u64) {
    nic.until(|_| {
        peer.hear();
        let is_answer = |(h, p): &(Header, Vec<u8>)| h.opcode == Opcode::Send && p[0] == 6;
        let at = peer.units.iter().position(is_answer)?;
        let note = peer.units.remove(at).1.split_off(MESSAGE_BYTES);
        assert_eq!((note.len(), note[0]), (32, 3));
        let detail = u64::from_be_bytes(note[24..].try_into().expect("8 bytes"));
        Some((Status::from_code(note[1]).expect("a status"), detail))
    })
}

/// The next unit of this kind from the NIC.
fn next_of(nic: &mut Nic, peer: &mut Peer, opcode: Opcode) -> (Header, Vec<u8>) {
    nic.until(|_| {
        peer.hear();
        let at = peer.units.iter().position(|(h, _)| h.opcode == opcode)?;
        Some(peer.units.remove(at))
    })
}

#[test]
fn puts_gets_and_atomics_are_served_in_place_and_copied() {
    for mapped in [true, false] {
        let (mut nic, mut peer, _, memory) = served(mapped);
        let bytes = random(2, 70_000);
        let note = announced(&mut peer, KEY, 8_001, 70_000, Some(2));
        peer.write(&note);
        peer.write(&write(KEY, 8_001, &bytes[..60_000], false));
        peer.write(&write(KEY, 68_001, &bytes[60_000..], true));
        let before = u64::from_le_bytes(nic.side.dma.bytes(memory)[16..24].try_into().expect("8"));
        assert_eq!(answered(&mut nic, &mut peer), (Status::Ok, 0));
        let now = nic.side.dma.bytes(memory);
        assert!(now[8_001..78_001] == bytes);
        assert_eq!(now[16..24], before.wrapping_add(5).to_le_bytes());

        peer.write(&read_unit(1, KEY, 8_001, 70_000));
        let mut got = Vec::new();
        while got.len() < 70_000 {
            let (header, part) = next_of(&mut nic, &mut peer, Opcode::ReadResponse);
            let place = Place::Tagged {
                stag: 77,
                offset: 1000 + got.len() as u64,
            };
            got.extend(part);
            assert_eq!((header.place, header.last), (place, got.len() == 70_000));
        }
        assert!(got == bytes);

        let swap = Atomic::CompareSwap {
            compare: before.wrapping_add(5),
            swap: 1,
        };
        for (message, operation, want) in [
            (2, swap, before.wrapping_add(5)),
            (3, Atomic::FetchAdd(u64::MAX), 1),
            (4, Atomic::FetchAdd(3), 0),
        ] {
            peer.write(&atomic_unit(message, KEY, 16, operation));
            let (header, response) = next_of(&mut nic, &mut peer, Opcode::AtomicResponse);
            assert_eq!(header, Header::whole(Opcode::AtomicResponse, message - 1));
            assert_eq!(parse_atomic_response(&response), Some((9, want)));
        }
        assert_eq!(nic.side.dma.bytes(memory)[16..24], 3_u64.to_le_bytes());
        assert_eq!(nic.side.transport.connections(), 1);
    }
}

#[test]
fn what_is_refused_is_answered_by_name_and_touches_nothing() {
    let (mut nic, mut peer, _, memory) = served(true);
    let before = nic.side.dma.bytes(memory).to_vec();
    let end = BYTES as u64;
    let puts = [
        (KEY ^ 1 << 9, 0, None, (Status::BadKey, 0x1034)),
        (LOCKED, 8, None, (Status::AccessDenied, 8)),
        (KEY, end - 1, None, (Status::OutOfBounds, end)),
        (KEY, u64::MAX, None, (Status::OutOfBounds, end)),
        // The word of its signal is not there.
        (KEY, 0, Some(BYTES as u32 / 8), (Status::OutOfBounds, end)),
    ];
    for (key, va, signal, want) in puts {
        let note = announced(&mut peer, key, va, 40_000, signal);
        peer.write(&note);
        peer.write(&write(key, va, &[7; 20_000], false));
        peer.write(&write(key, va.wrapping_add(20_000), &[7; 20_000], true));
        assert_eq!(answered(&mut nic, &mut peer), want);
    }
    let reads = [
        (KEY ^ 1 << 9, 0, (Status::BadKey, 0x1034)),
        (LOCKED, 8, (Status::AccessDenied, 8)),
        (KEY, end - 7, (Status::OutOfBounds, end)),
    ];
    let mut message = 0;
    for (key, va, want) in reads {
        message += 1;
        peer.write(&read_unit(message, key, va, 8));
        assert_eq!(answered(&mut nic, &mut peer), want);
        message += 1;
        peer.write(&atomic_unit(message, key, va, Atomic::FetchAdd(1)));
        assert_eq!(answered(&mut nic, &mut peer), want);
    }
    for odd in 1..8 {
        message += 1;
        peer.write(&atomic_unit(message, KEY, 8 + odd, Atomic::FetchAdd(1)));
        let want = (Status::InvalidArgument, 8 + odd);
        assert_eq!(answered(&mut nic, &mut peer), want);
    }
    // A mask that selects a part of the word.
    message += 1;
    let header = Header::whole(Opcode::AtomicRequest, message);
    let whole = AtomicRequest {
        identifier: 1,
        stag: KEY,
        offset: 8,
        operation: Atomic::FetchAdd(1),
    };
    let mut request = whole.emit();
    request[35] = 0x80;
    peer.write(&unit_of(&header, &request));
    assert_eq!(answered(&mut nic, &mut peer).0, Status::Unsupported);
    assert!(nic.side.dma.bytes(memory) == before);
    peer.write(&read_unit(message + 1, KEY, 0, 8));
    let (_, got) = next_of(&mut nic, &mut peer, Opcode::ReadResponse);
    assert!(got == before[..8]);
}

/// What the peer does, and the reason that it is given.
#[test]
fn other_requests_and_answers_end_the_connection() {
    type Break = fn(&mut Peer);
    let cases: [(Break, Reason); 17] = [
        // More bytes than were announced, fewer, and those of another place.
        (
            |p| {
                let note = announced(p, KEY, 0, 10, None);
                p.write(&note);
                p.write(&write(KEY, 0, &[1; 11], true));
            },
            Reason::Bounds,
        ),
        (
            |p| {
                let note = announced(p, KEY, 0, 10, None);
                p.write(&note);
                p.write(&write(KEY, 0, &[1; 9], true));
            },
            Reason::Bounds,
        ),
        (
            |p| {
                let note = announced(p, KEY, 0, 10, None);
                p.write(&note);
                p.write(&write(KEY, 1, &[1; 9], false));
            },
            Reason::Stag,
        ),
        // Another operation before a put has its bytes.
        (
            |p| {
                for _ in 0..2 {
                    let note = announced(p, KEY, 0, 10, None);
                    p.write(&note);
                }
            },
            Reason::NoBuffer,
        ),
        (
            |p| {
                let note = announced(p, KEY, 0, 10, None);
                p.write(&note);
                p.write(&read_unit(1, KEY, 0, 8));
            },
            Reason::NoBuffer,
        ),
        // More under way than the read limits allow.
        (
            |p| {
                let all = (1..=READS + 1).flat_map(|i| read_unit(i, KEY, 0, 90_000));
                let all: Vec<u8> = all.collect();
                p.write(&all);
            },
            Reason::NoBuffer,
        ),
        // Out of order, longer and shorter than a request.
        (|p| p.write(&read_unit(2, KEY, 0, 8)), Reason::Message),
        (
            |p| p.write(&atomic_unit(0, KEY, 0, Atomic::FetchAdd(1))),
            Reason::Message,
        ),
        (
            |p| {
                let header = Header::whole(Opcode::ReadRequest, 1);
                p.write(&unit_of(&header, &[0; 29]));
            },
            Reason::TooLong,
        ),
        (
            |p| {
                let header = Header::whole(Opcode::AtomicRequest, 1);
                p.write(&unit_of(&header, &[0; 51]));
            },
            Reason::Length,
        ),
        (
            |p| {
                let place = Place::Untagged {
                    message: 1,
                    offset: 4,
                };
                let whole = Header::whole(Opcode::ReadRequest, 1);
                p.write(&unit_of(&Header { place, ..whole }, &[0; 28]));
            },
            Reason::Offset,
        ),
        // Answers that nothing waits for.
        (
            |p| {
                let place = Place::Tagged { stag: 1, offset: 0 };
                let header = Header {
                    opcode: Opcode::ReadResponse,
                    last: true,
                    place,
                };
                p.write(&unit_of(&header, &[0; 8]));
            },
            Reason::Stag,
        ),
        (
            |p| {
                let header = Header::whole(Opcode::AtomicResponse, 1);
                p.write(&unit_of(&header, &atomic_response(1, 2)));
            },
            Reason::NoBuffer,
        ),
        (
            |p| {
                let mut note = [0; 32];
                note[0] = 3;
                let unit = p.message(Kind::Answer, Credit::default(), &note);
                p.write(&unit);
            },
            Reason::TooLong,
        ),
        // Notes that are none, or of the other direction, or about another access than a put.
        (
            |p| {
                let unit = p.message(Kind::Ask, Credit::default(), &[0; 32]);
                p.write(&unit);
            },
            Reason::TooLong,
        ),
        (
            |p| {
                let mut note = [0; 32];
                (note[0], note[1]) = (1, 1);
                let unit = p.message(Kind::Ask, Credit::default(), &note);
                p.write(&unit);
            },
            Reason::TooLong,
        ),
        (
            |p| {
                let unit = p.message(Kind::Ask, Credit::default(), &[1; 31]);
                p.write(&unit);
            },
            Reason::TooLong,
        ),
    ];
    for (act, reason) in cases {
        let (mut nic, mut peer, conn, _) = served(true);
        act(&mut peer);
        ends_by(&mut nic, &mut peer, conn, Some(reason));
        nic.still_serves();
    }
}

#[test]
fn requests_wait_until_the_session_is_accepted() {
    let mut nic = Nic::new();
    let memory = nic.side.dma.region(random(1, 100));
    nic.side.dma.keys.insert(KEY, (PD, memory, Access::REMOTE));
    let (mut peer, conn) = nic.peer();
    let note = announced(&mut peer, KEY, 0, 3, None);
    peer.write(&note);
    peer.write(&write(KEY, 0, b"abc", true));
    for _ in 0..100 {
        nic.step();
        peer.hear();
    }
    assert!(peer.units.is_empty() && nic.side.dma.bytes(memory)[..3] != *b"abc");
    nic.side.transport.grant(conn, PD);
    assert_eq!(answered(&mut nic, &mut peer), (Status::Ok, 0));
    assert_eq!(nic.side.dma.bytes(memory)[..3], *b"abc");
}

#[test]
fn a_region_that_goes_while_it_is_written_takes_no_more_bytes() {
    for mapped in [true, false] {
        let (mut nic, mut peer, _, memory) = served(mapped);
        let note = announced(&mut peer, KEY, 0, 60_000, Some(9_000));
        let unit = write(KEY, 0, &[7; 60_000], true);
        peer.write(&note);
        peer.write(&unit[..30_000]);
        for _ in 0..50 {
            nic.step();
        }
        nic.side.dma.keys.remove(&KEY);
        let before = nic.side.dma.bytes(memory).to_vec();
        peer.write(&unit[30_000..]);
        let want = (Status::BadKey, KEY.into());
        assert_eq!(answered(&mut nic, &mut peer), want);
        assert!(nic.side.dma.bytes(memory) == before);
    }
}

#[test]
fn a_put_that_is_cut_in_the_middle_sets_no_signal() {
    for cut in [20, 90, 100, 10_000, 40_099] {
        let (mut nic, mut peer, conn, memory) = served(true);
        let before = nic.side.dma.bytes(memory)[72_000..72_008].to_vec();
        let mut all = announced(&mut peer, KEY, 0, 40_000, Some(9_000));
        all.extend(write(KEY, 0, &[7; 40_000], true));
        peer.write(&all[..cut]);
        for _ in 0..50 {
            nic.step();
        }
        drop(peer);
        nic.until(|n| n.side.has(TransportEvent::Reset { conn }));
        assert_eq!(nic.side.dma.bytes(memory)[72_000..72_008], before, "{cut}");
        nic.side.transport.close(conn, Close::Now);
        nic.still_serves();
    }
}

/// Posts an operation on memory of the peer.
fn post(nic: &mut Nic, conn: ConnId, token: u64, op: RemoteOp) {
    let work = RemoteWork {
        token: WorkToken(token),
        rkey: Rkey(0xabc),
        va: GpuVa(0x1_0000_0000),
        op,
    };
    nic.side.transport.post(conn, Work::Remote(work));
}

/// How it has ended: status, bytes and detail.
fn ended(nic: &mut Nic, token: u64) -> Option<(Status, u64, u64)> {
    nic.side.take(|e| match *e {
        TransportEvent::RemoteDone {
            token: t,
            status,
            bytes,
            detail,
            ..
        } if t.0 == token => Some((status, bytes, detail)),
        _ => None,
    })
}

fn response(sink: u32, offset: u64, bytes: &[u8], last: bool) -> Vec<u8> {
    let place = Place::Tagged { stag: sink, offset };
    let header = Header {
        opcode: Opcode::ReadResponse,
        last,
        place,
    };
    unit_of(&header, bytes)
}

/// A note of the peer: how an operation of the NIC has ended.
fn because(peer: &mut Peer, status: Status, detail: u64) -> Vec<u8> {
    let mut note = [0; 32];
    (note[0], note[1]) = (3, status.code());
    note[24..].copy_from_slice(&detail.to_be_bytes());
    peer.message(Kind::Answer, Credit::default(), &note)
}

#[test]
fn answers_of_the_peer_end_operations_in_order() {
    for mapped in [true, false] {
        let (mut nic, mut peer, conn, _) = served(mapped);
        let bytes = random(4, 90_000);
        let from = nic.side.dma.region(bytes.clone());
        let into = nic.side.dma.region(vec![0; 90_000]);
        let signal = Some(Signal {
            index: 1,
            value: 2,
            set: true,
        });
        let payload = Payload::Memory(from);
        post(&mut nic, conn, 1, RemoteOp::Put { payload, signal });
        post(&mut nic, conn, 2, RemoteOp::Get { into });
        post(&mut nic, conn, 3, RemoteOp::FetchAdd { addend: 4 });
        post(&mut nic, conn, 4, RemoteOp::Get { into });
        let mut put = Vec::new();
        while put.len() < bytes.len() {
            let (header, part) = next_of(&mut nic, &mut peer, Opcode::Write);
            let place = Place::Tagged {
                stag: 0xabc,
                offset: 0x1_0000_0000 + put.len() as u64,
            };
            put.extend(part);
            assert_eq!((header.place, header.last), (place, put.len() == 90_000));
        }
        assert!(put == bytes);
        let (_, read) = next_of(&mut nic, &mut peer, Opcode::ReadRequest);
        let read = ReadRequest::parse(&read).expect("a request");
        assert_eq!((read.len, read.source), (90_000, 0xabc));
        let (_, atomic) = next_of(&mut nic, &mut peer, Opcode::AtomicRequest);
        let atomic = AtomicRequest::parse(&atomic).expect("a request");
        assert_eq!(atomic.operation, Atomic::FetchAdd(4));
        assert!(ended(&mut nic, 1).is_none());
        let done = because(&mut peer, Status::Ok, 0);
        peer.write(&done);
        peer.write(&response(read.sink, 0, &bytes[..50_000], false));
        peer.write(&response(read.sink, 50_000, &bytes[50_000..], true));
        let header = Header::whole(Opcode::AtomicResponse, 1);
        peer.write(&unit_of(&header, &atomic_response(atomic.identifier, 8)));
        let refused = because(&mut peer, Status::BadKey, 0xabc);
        peer.write(&refused);
        let end = nic.until(|n| ended(n, 4));
        assert_eq!(end, (Status::BadKey, 0, 0xabc));
        assert_eq!(ended(&mut nic, 1), Some((Status::Ok, 90_000, 0)));
        assert_eq!(ended(&mut nic, 2), Some((Status::Ok, 90_000, 0)));
        assert_eq!(ended(&mut nic, 3), Some((Status::Ok, 8, 8)));
        assert!(nic.side.dma.bytes(into) == bytes);
    }
}

#[test]
fn wrong_answers_end_the_connection_and_no_operation_well() {
    type Break = fn(&mut Peer, u32) -> Vec<u8>;
    let cases: [(Break, Reason); 8] = [
        (
            |_, sink| response(sink ^ 1, 0, &[1; 8], false),
            Reason::Stag,
        ),
        (|_, sink| response(sink, 1, &[1; 8], false), Reason::Bounds),
        (|_, sink| response(sink, 0, &[1; 101], true), Reason::Bounds),
        (|_, sink| response(sink, 0, &[1; 99], true), Reason::Bounds),
        (
            |_, sink| response(sink, 0, &[1; 100], false),
            Reason::Bounds,
        ),
        (|_, sink| response(sink, 0, &[], false), Reason::Bounds),
        (|p, _| because(p, Status::Ok, 0), Reason::TooLong),
        (
            |_, sink| {
                let header = Header::whole(Opcode::AtomicResponse, 1);
                unit_of(&header, &atomic_response(sink, 2))
            },
            Reason::NoBuffer,
        ),
    ];
    for (act, reason) in cases {
        let (mut nic, mut peer, conn, _) = served(true);
        let into = nic.side.dma.region(vec![0; 100]);
        post(&mut nic, conn, 1, RemoteOp::Get { into });
        let (_, read) = next_of(&mut nic, &mut peer, Opcode::ReadRequest);
        let read = ReadRequest::parse(&read).expect("a request");
        let unit = act(&mut peer, read.sink);
        peer.write(&unit);
        ends_by(&mut nic, &mut peer, conn, Some(reason));
        let end = ended(&mut nic, 1);
        assert_eq!(end, Some((Status::ConnectionReset, 0, reason.detail())));
        nic.still_serves();
    }
}

#[test]
fn a_get_that_is_cut_in_the_middle_ends_by_name() {
    for cut in [10, 30, 20_000] {
        let (mut nic, mut peer, conn, _) = served(true);
        let into = nic.side.dma.region(vec![0; 40_000]);
        post(&mut nic, conn, 1, RemoteOp::Get { into });
        let (_, read) = next_of(&mut nic, &mut peer, Opcode::ReadRequest);
        let sink = ReadRequest::parse(&read).expect("a request").sink;
        peer.write(&response(sink, 0, &[9; 40_000], true)[..cut]);
        for _ in 0..50 {
            nic.step();
        }
        drop(peer);
        let end = nic.until(|n| ended(n, 1));
        assert_eq!(end, (Status::ConnectionReset, 0, 0), "cut at {cut}");
        nic.side.transport.close(conn, Close::Now);
    }
}

#[test]
fn a_get_that_was_taken_back_is_not_written() {
    let (mut nic, mut peer, conn, _) = served(true);
    let into = nic.side.dma.region(vec![0; 40_000]);
    post(&mut nic, conn, 1, RemoteOp::Get { into });
    let (_, read) = next_of(&mut nic, &mut peer, Opcode::ReadRequest);
    let sink = ReadRequest::parse(&read).expect("a request").sink;
    let unit = response(sink, 0, &[9; 40_000], true);
    peer.write(&unit[..20_000]);
    for _ in 0..50 {
        nic.step();
    }
    assert_eq!(nic.side.transport.cancel(conn, WorkToken(1)), Some(0));
    nic.side.dma.regions[into.region as usize].fill(3);
    peer.write(&unit[20_000..]);
    post(&mut nic, conn, 2, RemoteOp::FetchAdd { addend: 1 });
    let (_, atomic) = next_of(&mut nic, &mut peer, Opcode::AtomicRequest);
    let atomic = AtomicRequest::parse(&atomic).expect("a request");
    let header = Header::whole(Opcode::AtomicResponse, 1);
    peer.write(&unit_of(&header, &atomic_response(atomic.identifier, 8)));
    assert_eq!(nic.until(|n| ended(n, 2)), (Status::Ok, 8, 8));
    assert!(nic.side.dma.bytes(into).iter().all(|b| *b == 3));
    assert!(ended(&mut nic, 1).is_none());
}

#[test]
fn read_limits_of_the_peer_are_kept() {
    for inbound_reads in [0, 3] {
        let mut nic = Nic::new();
        let (mut peer, conn) = nic.peer_with(&Startup {
            inbound_reads,
            ..startup()
        });
        for token in 0..10 {
            post(&mut nic, conn, token, RemoteOp::FetchAdd { addend: 1 });
        }
        if inbound_reads == 0 {
            for token in 0..10 {
                let end = nic.until(|n| ended(n, token));
                assert_eq!(end, (Status::Unsupported, 0, 0));
            }
            continue;
        }
        let mut answered = 0;
        while answered < 10 {
            for _ in 0..50 {
                nic.step();
                peer.hear();
            }
            let under_way = std::mem::take(&mut peer.units);
            assert!(under_way.len() == usize::from(inbound_reads).min(10 - answered as usize));
            for (_, request) in under_way {
                answered += 1;
                let request = AtomicRequest::parse(&request).expect("a request");
                let header = Header::whole(Opcode::AtomicResponse, answered);
                let response = atomic_response(request.identifier, answered.into());
                peer.write(&unit_of(&header, &response));
            }
        }
        assert_eq!(nic.until(|n| ended(n, 9)), (Status::Ok, 8, 10));
    }
}
