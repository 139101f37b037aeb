//! The wire format of iWARP: random round trips, and every byte of every frame wrong in turn.

use ringbell_gtlb::testing::Rng;
use ringbell_nic_core::wire::iwarp::ddp::{self, Header, Opcode, Place};
use ringbell_nic_core::wire::iwarp::mpa::{
    self, framed, is_crc, padding, Crc, Ready, Role, Startup, LIMIT_MAX, STARTUP_BYTES,
};
use ringbell_nic_core::wire::iwarp::rdmap::{
    atomic_response, parse_atomic_response, Atomic, AtomicRequest, ReadRequest,
};
use ringbell_nic_core::wire::iwarp::session::{
    Answer, Credit, Kind, Message, Request, ANSWER_BYTES, MESSAGE_BYTES, NOTE_BYTES, REQUEST_BYTES,
};
use ringbell_nic_core::wire::iwarp::terminate::Reason;

const OPCODES: [Opcode; 7] = [
    Opcode::Write,
    Opcode::ReadRequest,
    Opcode::ReadResponse,
    Opcode::Send,
    Opcode::Terminate,
    Opcode::AtomicRequest,
    Opcode::AtomicResponse,
];

fn coin(rng: &mut Rng) -> bool {
    rng.below(2) == 1
}

fn random_header(rng: &mut Rng) -> Header {
    let opcode = OPCODES[rng.below(7) as usize];
    let place = match opcode.is_tagged() {
        true => Place::Tagged {
            stag: rng.below(1 << 32) as u32,
            offset: rng.below(u64::MAX),
        },
        false => Place::Untagged {
            message: rng.below(1 << 32) as u32,
            offset: rng.below(1 << 32) as u32,
        },
    };
    Header {
        opcode,
        last: coin(rng),
        place,
    }
}

fn random_startup(rng: &mut Rng) -> (Startup, Vec<u8>) {
    let role = if coin(rng) {
        Role::Initiator
    } else {
        Role::Responder
    };
    let len = rng.below(509) as usize;
    let private = rng.bytes(len);
    let startup = Startup {
        role,
        crc: coin(rng),
        rejected: coin(rng) && role == Role::Responder,
        inbound_reads: rng.below(u64::from(LIMIT_MAX) + 1) as u16,
        outbound_reads: rng.below(u64::from(LIMIT_MAX) + 1) as u16,
        ready: Ready {
            peer_to_peer: coin(rng),
            by_send: coin(rng),
            by_write: coin(rng),
            by_read: coin(rng),
        },
        private: private.len(),
    };
    (startup, private)
}

/// Each bit of a frame wrong in turn.
fn each_bit_wrong(frame: &[u8], mut check: impl FnMut(&[u8], usize)) {
    let mut wrong = frame.to_vec();
    for bit in 0..frame.len() * 8 {
        wrong[bit / 8] ^= 1 << (bit % 8);
        check(&wrong, bit);
        wrong[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn startup_frames_round_trip_and_say_no_more_than_they_hold() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let (startup, private) = random_startup(&mut rng);
        let mut frame = Vec::new();
        startup.emit(&private, &mut frame);
        assert_eq!(Startup::length(startup.role, &frame), Ok(Some(frame.len())));
        assert_eq!(
            Startup::parse(startup.role, &frame),
            Ok((startup, &private[..]))
        );
        for cut in 0..frame.len() {
            assert!(Startup::parse(startup.role, &frame[..cut]).is_err());
        }
        // What is read from a wrong frame is what it says, or an error.
        let mut again = Vec::new();
        each_bit_wrong(&frame[..STARTUP_BYTES + 4], |head, bit| {
            let mut wrong = head.to_vec();
            wrong.extend_from_slice(&frame[head.len()..]);
            if let Ok((read, private)) = Startup::parse(startup.role, &wrong) {
                again.clear();
                read.emit(private, &mut again);
                assert_eq!(again[..], wrong[..again.len()], "bit {bit}");
            }
        });
    }
}

#[test]
fn a_startup_frame_that_is_not_ours_is_refused_by_name() {
    let (mut startup, private) = random_startup(&mut Rng::new(2));
    (startup.role, startup.rejected) = (Role::Initiator, false);
    let mut frame = Vec::new();
    startup.emit(&private, &mut frame);
    let wrong = |at: usize, to: u8| {
        let mut wrong = frame.clone();
        wrong[at] = to;
        Startup::parse(Role::Initiator, &wrong).unwrap_err()
    };
    assert_eq!(wrong(0, b'm'), mpa::Invalid::Key);
    assert_eq!(wrong(16, frame[16] | 0x80), mpa::Invalid::Markers);
    assert_eq!(wrong(16, frame[16] | 1), mpa::Invalid::Flags);
    // A request cannot refuse.
    assert_eq!(wrong(16, frame[16] | 0x20), mpa::Invalid::Flags);
    assert_eq!(wrong(16, frame[16] & !0x10), mpa::Invalid::Revision(2));
    assert_eq!(wrong(17, 1), mpa::Invalid::Revision(1));
    assert!(matches!(wrong(18, 0xff), mpa::Invalid::Length(_)));
    assert_eq!(
        Startup::length(Role::Responder, &frame),
        Err(mpa::Invalid::Key)
    );
}

#[test]
fn headers_round_trip_and_say_no_more_than_they_hold() {
    let mut rng = Rng::new(3);
    for _ in 0..500 {
        let header = random_header(&mut rng);
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        assert_eq!(bytes.len(), header.bytes());
        assert_eq!(Header::length(bytes[0]), header.bytes());
        assert_eq!(Header::parse(&bytes), Ok(header));
        for cut in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..cut]), Err(ddp::Invalid::Short));
        }
        each_bit_wrong(&bytes, |wrong, bit| {
            let untagged = wrong[0] & 0x80 == 0;
            // RDMAP's own word, which Sends without invalidation do not use.
            if untagged && (16..48).contains(&bit) {
                return;
            }
            if let Ok(read) = Header::parse(wrong) {
                let mut again = Vec::new();
                read.emit(&mut again);
                let skip = if untagged { 6 } else { 2 };
                assert_eq!(again[..2], wrong[..2], "bit {bit}");
                assert_eq!(again[skip..], wrong[skip..again.len()], "bit {bit}");
            }
        });
    }
}

#[test]
fn messages_of_sessions_round_trip_and_no_others_are_read() {
    let mut rng = Rng::new(4);
    for _ in 0..300 {
        let request = Request {
            from: (rng.below(1 << 32) as u32).into(),
            to: (rng.below(1 << 32) as u32).into(),
            source_port: rng.below(1 << 16) as u16,
            port: rng.below(1 << 16) as u16,
            window: rng.below(1 << 32) as u32,
        };
        let bytes = request.emit();
        assert_eq!(Request::parse(&bytes), Ok(request));
        assert!(Request::parse(&bytes[..REQUEST_BYTES - 1]).is_err());
        each_bit_wrong(&bytes, |wrong, _| match Request::parse(wrong) {
            Ok(read) => assert_eq!(read.emit()[..], *wrong),
            Err(_) => assert_ne!(wrong[..8], bytes[..8]),
        });
        let answer = match rng.below(3) {
            0 => Answer::NoListener,
            1 => Answer::NoRoom,
            _ => Answer::Accepted {
                window: rng.below(1 << 32) as u32,
            },
        };
        let bytes = answer.emit();
        assert_eq!(Answer::parse(&bytes), Ok(answer));
        assert!(Answer::parse(&bytes[..ANSWER_BYTES - 1]).is_err());
        each_bit_wrong(&bytes, |wrong, _| {
            if let Ok(read) = Answer::parse(wrong) {
                assert_eq!(read.emit()[..], *wrong);
            }
        });
        let taken = rng.below(u64::MAX);
        let kinds = [
            Kind::Data,
            Kind::Credit,
            Kind::End,
            Kind::Written,
            Kind::Ask,
            Kind::Answer,
        ];
        let kind = kinds[rng.below(6) as usize];
        let message = Message {
            kind,
            key: match kind {
                Kind::Written => 1 + rng.below(u64::from(u32::MAX)) as u32,
                _ => 0,
            },
            credit: Credit {
                got: taken.saturating_add(rng.below(1 << 20)),
                taken,
                has_end: coin(&mut rng),
            },
        };
        let len = match message.kind {
            Kind::Data => MESSAGE_BYTES + 1 + rng.below(60_000) as usize,
            Kind::Ask | Kind::Answer => MESSAGE_BYTES + NOTE_BYTES,
            _ => MESSAGE_BYTES,
        };
        let bytes = message.emit();
        assert_eq!(Message::parse(&bytes, len), Ok(message));
        let other = if len == MESSAGE_BYTES { 1 } else { 0 };
        assert!(Message::parse(&bytes, MESSAGE_BYTES + other).is_err());
        each_bit_wrong(&bytes, |wrong, _| {
            if let Ok(read) = Message::parse(wrong, len) {
                assert_eq!(read.emit()[..], *wrong);
                assert!(read.credit.taken <= read.credit.got);
            }
        });
    }
}

#[test]
fn requests_for_memory_survive_their_bytes_and_no_other_length_or_mask_is_read() {
    let mut rng = Rng::new(12);
    for _ in 0..200 {
        let read = ReadRequest {
            sink: rng.bits() as u32,
            sink_offset: rng.bits(),
            len: rng.bits() as u32,
            source: rng.bits() as u32,
            source_offset: rng.bits(),
        };
        let bytes = read.emit();
        assert_eq!(ReadRequest::parse(&bytes), Some(read));
        assert_eq!(ReadRequest::parse(&bytes[1..]), None);
        let [first, second] = [rng.bits(), rng.bits()];
        for operation in [
            Atomic::FetchAdd(first),
            Atomic::CompareSwap {
                compare: first,
                swap: second,
            },
        ] {
            let atomic = AtomicRequest {
                identifier: rng.bits() as u32,
                stag: rng.bits() as u32,
                offset: rng.bits(),
                operation,
            };
            let bytes = atomic.emit();
            assert_eq!(AtomicRequest::parse(&bytes), Some(atomic));
            assert_eq!(AtomicRequest::parse(&bytes[..51]), None);
            // The operation, and a mask of a part of the word.
            for at in [0, 3, 28, 35] {
                let mut wrong = bytes;
                wrong[at] ^= 1;
                assert_eq!(AtomicRequest::parse(&wrong), None, "byte {at}");
            }
        }
        let (identifier, before) = (rng.bits() as u32, rng.bits());
        let bytes = atomic_response(identifier, before);
        assert_eq!(parse_atomic_response(&bytes), Some((identifier, before)));
        assert_eq!(parse_atomic_response(&bytes[..8]), None);
    }
}

#[test]
fn a_terminate_message_names_its_reason() {
    let reasons = [
        Reason::Catastrophic,
        Reason::RdmapVersion,
        Reason::Opcode,
        Reason::Stag,
        Reason::Bounds,
        Reason::TaggedVersion,
        Reason::Queue,
        Reason::NoBuffer,
        Reason::Message,
        Reason::Offset,
        Reason::TooLong,
        Reason::UntaggedVersion,
        Reason::Crc,
        Reason::Length,
        Reason::Other {
            layer: 15,
            kind: 15,
            code: 255,
        },
    ];
    let mut details = std::collections::BTreeSet::new();
    for reason in reasons {
        for unit in [None, Some((77, &[1_u8; 18][..]))] {
            let mut bytes = Vec::new();
            reason.emit(unit, &mut bytes);
            assert_eq!(Reason::parse(&bytes), Some(reason));
            assert!(Reason::parse(&bytes[..3]).is_none());
        }
        assert!(details.insert(reason.detail()) && reason.detail() != 0);
    }
}

/// RFC 3720 §B.4 gives the CRC of 32 bytes of each kind, in the order of the wire.
#[test]
fn the_crc_is_that_of_iscsi() {
    let ascending: Vec<u8> = (0..32).collect();
    for (bytes, crc) in [
        (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (ascending, [0x4e, 0x79, 0xdd, 0x46]),
    ] {
        let mut sum = Crc::default();
        let (first, second) = bytes.split_at(13);
        sum.update(first);
        sum.update(second);
        assert_eq!(sum.finish(), crc);
        assert!(is_crc(&sum, &crc) && !is_crc(&sum, &crc[..3]));
        each_bit_wrong(&crc, |wrong, _| assert!(!is_crc(&sum, wrong)));
    }
}

#[test]
fn frames_are_multiples_of_four_bytes() {
    for unit in 14..200 {
        assert!(padding(unit) < 4);
        assert_eq!(framed(unit) % 4, 0);
        assert!(framed(unit) - unit - 6 < 4);
    }
}
