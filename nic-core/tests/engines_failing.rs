//! Engines that fail: a stream that one changes ends with an error at both sides, whichever side
//! has it.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Completion, Descriptor, EngineId, EventKind, Opcode, SessionId, Status};
use ringbell_nic_core::engine::{Direction, EngineUseError, Return};

/// Sends `data` in pieces and half-closes, while the other side receives. Returns what was
/// received, and the first completion that is not OK: of a receive, of a send, and of a receive at
/// the sender.
fn run_to_the_end(
    t: &Subject,
    (s, r): (SessionId, SessionId),
    data: &[u8],
) -> (Vec<u8>, Completion, Option<Completion>, Completion) {
    let hosts = &t.hosts();
    const PIECE: usize = 20_000;
    hosts[0].poke(0, data);
    let back = hosts[0].post(&recv(s, 7 << 20, 8));
    let mut sends: Vec<u32> = (0..data.len() / PIECE)
        .map(|i| hosts[0].post(&send(s, (i * PIECE) as u64, PIECE as u32)))
        .collect();
    sends.push(hosts[0].post(&shutdown(s)));
    let mut got = Vec::new();
    let end = loop {
        let c = call(hosts, 1, &recv_some(r, 4 << 20, 30_000));
        got.extend(hosts[1].peek(4 << 20, c.bytes as usize));
        if c.status != Status::Ok {
            break c;
        }
    };
    let all: Vec<_> = sends.iter().map(|ticket| (0, *ticket)).collect();
    let sent = settle(hosts, &all);
    // Bytes that arrived with an end send no status back: that is for the receiver's own bytes.
    if end.status == Status::EndOfStream {
        call(hosts, 1, &close(r));
    }
    let back = settle(hosts, &[(0, back)])[0];
    (
        got,
        end,
        sent.into_iter().find(|c| c.status != Status::Ok),
        back,
    )
}

#[test]
fn a_stream_ends_with_an_error_at_both_sides_when_its_engine_fails() {
    let ways = [
        How::After(0),
        How::After(50_000),
        How::AtTheEnd,
        How::Reported,
        How::WhenAsked,
    ];
    let sides = [(0, Direction::Send), (1, Direction::Receive)];
    for t in [local(), over("tcp", None)] {
        for (side, direction) in sides {
            for how in ways {
                let what = format!("{} {direction:?} {how:?}", t.name);
                let hosts = &t.hosts();
                let (s, r) = connected(hosts, 0, 1, 7);
                let nic = &t.hosts[side].nic;
                let id = nic
                    .attach_engine([s, r][side], direction, brittle(how))
                    .expect("attach");
                if how == How::WhenAsked {
                    let asked = nic.engine_result(id);
                    assert_eq!(asked, Err(EngineUseError::Failed { id }), "{what}");
                }
                let data = Rng::new(90).bytes(100_000);
                let (got, end, sent, back) = run_to_the_end(&t, (s, r), &data);
                assert!(data.starts_with(&got), "{what}: not what was sent");
                let expect = |at: usize| match at == side {
                    true => (Status::EngineFailed, u64::from(id.0)),
                    false => (Status::ConnectionReset, 0),
                };
                assert_eq!((end.status, end.detail), expect(1), "{what}");
                assert_eq!((back.status, back.detail), expect(0), "{what}");
                if matches!(how, How::After(n) if n < data.len() / 2) && side == 0 {
                    let sent = sent.expect("a send that failed");
                    assert_eq!((sent.status, sent.detail), expect(0), "{what}");
                }
                // Reported by its result, to the host and to kernels, and by an event.
                let failed = EngineUseError::Failed { id };
                assert_eq!(nic.engine_result(id), Err(failed.clone()), "{what}");
                assert!(nic.engines()[0].failed, "{what}");
                let ask = Descriptor {
                    operand: id.0.into(),
                    ..Descriptor::new(Opcode::EngineResult)
                };
                let asked = call(hosts, side, &ask);
                let said = (Status::EngineFailed, u64::from(id.0));
                assert_eq!((asked.status, asked.detail), said, "{what}");
                let kind = EventKind::EngineError.code();
                let mut events = std::iter::from_fn(|| nic.poll_event());
                let event = events.find(|e| e.kind == kind).expect("an event");
                assert_eq!((event.session, event.data), (id.0, u64::MAX), "{what}");
                // A detached engine leaves no stream that goes on without it.
                assert_eq!(nic.detach_engine(id), Err(failed), "{what}");
                let unknown = EngineUseError::Unknown { id };
                assert_eq!(nic.detach_engine(id), Err(unknown), "{what}");
                for (host, session) in [(0, s), (1, r)] {
                    call(hosts, host, &close(session));
                }
            }
        }
    }
}

#[test]
fn detaching_an_engine_that_has_failed_does_not_open_the_stream() {
    for t in [local(), over("tcp", None)] {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[0].nic;
        let id = nic
            .attach_engine(s, Direction::Send, brittle(How::WhenAsked))
            .expect("attach");
        assert!(nic.engine_result(id).is_err());
        assert!(nic.detach_engine(id).is_err());
        let data = Rng::new(91).bytes(100_000);
        let (got, end, sent, back) = run_to_the_end(&t, (s, r), &data);
        assert!(got.is_empty(), "{}: {} bytes", t.name, got.len());
        assert_eq!(end.status, Status::ConnectionReset, "{}", t.name);
        for c in [sent.expect("a send that failed"), back] {
            assert_eq!(c.status, Status::EngineFailed, "{}", t.name);
        }
    }
}

#[test]
fn a_closed_session_whose_engine_fails_at_the_end_resets_the_peer() {
    for t in [local(), over("tcp", None)] {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &t.hosts[0].nic;
        nic.attach_engine(s, Direction::Send, brittle(How::AtTheEnd))
            .expect("attach");
        let sent = hosts[0].post(&send(s, 0, 40));
        let closed = hosts[0].post(&close(s));
        settle(hosts, &[(0, sent), (0, closed)]);
        let end = loop {
            let c = call(hosts, 1, &recv_some(r, 4 << 20, 30_000));
            if c.status != Status::Ok {
                break c;
            }
        };
        assert_eq!(end.status, Status::ConnectionReset, "{}", t.name);
        quiesce(hosts);
        assert!(!nic.is_active(), "{}: nothing lingers", t.name);
    }
}

#[test]
fn a_failed_tap_is_bypassed_and_has_no_result() {
    for t in [local(), over("tcp", None)] {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &t.hosts[1].nic;
        let tap = Brittle {
            tap: true,
            ..*brittle(How::After(10))
        };
        let id: EngineId = nic
            .attach_engine(r, Direction::Receive, Box::new(tap))
            .expect("attach");
        let data = Rng::new(92).bytes(100_000);
        assert!(t.transfer((s, r), &data, data.len(), 4) == data);
        assert_eq!(nic.engine_result(id), Err(EngineUseError::Failed { id }));
        // A wait for the answer ends with the error.
        nic.return_engine(r, Return::Result).expect("NIC memory");
        let back = hosts[0].post(&recv(s, 0, 8));
        assert_eq!(call(hosts, 0, &shutdown(s)).status, Status::Ok);
        let back = settle(hosts, &[(0, back)])[0];
        assert_eq!(back.status, Status::ConnectionReset, "{}", t.name);
    }
}
