//! Queue pairs on host memory, by the face that programs have.
#![allow(clippy::disallowed_methods)] // Waits for packets of a real socket.

use crate::ends;

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use ends::{attributes, compare_with_model, pair, pattern, End, BYTES, LONG, RTS};
use ringbell_gtlb::testing::Rng;
use ringbell_net::port::mem::MemSwitch;
use ringbell_net::port::Checksums;
use ringbell_net::NicTime;
use ringbell_roce::verbs::{
    Access, Completion, Context, ContextConfig, Local, MemoryRegion, Modify, QpAttributes,
    ReceiveRequest, Remote, Request, Rights, Rtr, Rts, SendFlags, SendRequest, State, Status,
    VerbsError, WorkKind,
};

#[test]
fn a_port_of_frames_is_refused() {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("numbers in range");
    let port = switch.port(0).expect("a free port");
    let config = ContextConfig::default();
    let refused = Context::over(Box::new(port), &config, || NicTime(0)).err();
    let text = refused.expect("it carries no datagrams").to_string();
    assert!(
        text.contains("mem 0 of 2") && text.contains("roce:127.0.0.1"),
        "{text}"
    );
}

#[test]
fn every_operation_moves_its_bytes() {
    let standard = ContextConfig {
        icrc: true,
        payload_kib: 4,
        ..ContextConfig::default()
    };
    let configs = [(standard, 1024), (ContextConfig::default(), 4096)];
    for (config, mtu) in configs.into_iter().chain(ipv6().map(|c| (c, 4096))) {
        let [a, b] = pair(&config, mtu);
        let data = pattern(1, 300_001);
        a.memory.write(0, &data);
        b.receive(40, 0, 400_000);
        a.send(1, Request::Send(Some(0xdead_beef)), 0, 300_001);
        let got = b.next();
        assert_eq!(
            (got.id, got.status, got.len),
            (40, Status::Success, 300_001)
        );
        assert_eq!(
            (got.kind, got.immediate),
            (WorkKind::Receive, Some(0xdead_beef))
        );
        assert_eq!(a.next().id, 1);
        assert!(b.bytes(0, data.len()) == data);

        a.send(2, Request::Write(b.remote(500_000), None), 3, 100_000);
        assert_eq!((a.next().kind, a.cq.users()), (WorkKind::Write, 2));
        assert!(b.bytes(500_000, 100_000) == data[3..100_003]);

        b.receive(41, 0, 0);
        a.send(3, Request::Write(b.remote(0), Some(5)), 1, 5_000);
        let got = b.next();
        assert_eq!((got.kind, got.len), (WorkKind::ReceiveWrite, 5_000));
        assert_eq!((got.immediate, a.next().id), (Some(5), 3));
        assert!(b.bytes(0, 5_000) == data[1..5_001]);

        a.send(4, Request::Read(b.remote(500_001)), 600_000, 70_001);
        assert_eq!(a.next().kind, WorkKind::Read);
        assert!(a.bytes(600_000, 70_001) == data[4..70_005]);

        b.memory.write(800_000, &41_u64.to_ne_bytes());
        a.send(5, Request::FetchAdd(b.remote(800_000), 1), 800_000, 8);
        assert_eq!(a.next().kind, WorkKind::FetchAdd);
        assert_eq!(a.bytes(800_000, 8), 41_u64.to_ne_bytes());
        for found in [42_u64, 9] {
            a.send(
                6,
                Request::CompareSwap(b.remote(800_000), 42, 9),
                800_000,
                8,
            );
            assert_eq!(a.next().kind, WorkKind::CompareSwap);
            assert_eq!(a.bytes(800_000, 8), found.to_ne_bytes());
        }
        assert_eq!(b.bytes(800_000, 8), 9_u64.to_ne_bytes());

        // Inline, in pieces; and nothing at all.
        b.receive(42, 0, 100);
        a.post(7, Request::Send(None), Local::Inline(&[b"ab", b"", b"cde"]))
            .expect("posted");
        assert_eq!((b.next().len, a.next().id), (5, 7));
        assert_eq!(b.bytes(0, 5), b"abcde");
        b.receive(43, 0, 0);
        a.send(8, Request::Send(None), 0, 0);
        assert_eq!((b.next().len, a.next().id), (0, 8));

        // A key that the peer takes back.
        let lent = b.pd.alloc(64, Access::REMOTE).expect("memory");
        b.receive(44, 0, 8);
        a.send(9, Request::SendInvalidate(lent.rkey()), 0, 8);
        let got = b.next();
        assert_eq!(
            (got.invalidated, a.next().status),
            (Some(lent.rkey()), Status::Success)
        );
        let at = Remote {
            address: lent.address(),
            key: lent.rkey(),
        };
        a.send(10, Request::Write(at, None), 0, 8);
        assert_eq!(a.next().status, Status::RemoteAccess);
        assert_eq!(a.qp.state(), State::Err);
    }
}

#[test]
fn random_operations_end_as_a_model_says() {
    let standard = ContextConfig {
        icrc: true,
        ..ContextConfig::default()
    };
    for (seed, mtu) in [(1, 256), (2, 1024), (3, 2048)] {
        compare_with_model(seed, 400, &pair(&standard, mtu));
    }
    compare_with_model(4, 400, &pair(&ContextConfig::default(), 4096));
    if let Some(config) = ipv6() {
        compare_with_model(5, 400, &pair(&config, 4096));
        let standard = ContextConfig {
            icrc: true,
            ..config
        };
        compare_with_model(6, 400, &pair(&standard, 1024));
    }
}

/// At `::1`. `None`, visibly, where there is no IPv6.
fn ipv6() -> Option<ContextConfig> {
    let config = ContextConfig {
        address: Ipv6Addr::LOCALHOST.into(),
        ..ContextConfig::default()
    };
    let context = Context::open(&config);
    context
        .map(|_| config)
        .inspect_err(|e| eprintln!("SKIPPED: no IPv6 here: {e}"))
        .ok()
}

/// What becomes of one request of `a` whose peer is `b`; the connection is new.
fn outcome(request: impl Fn(&End) -> Request, len: u32) -> (Status, Vec<u8>) {
    let [a, b] = pair(&ContextConfig::default(), 1024);
    b.memory.write(0, &[0x55; BYTES]);
    a.send(1, request(&b), 0, len);
    let status = a.next().status;
    if status != Status::Success {
        assert_eq!(a.qp.state(), State::Err);
        // What is posted from now on is flushed.
        a.send(2, Request::Send(None), 0, 1);
        assert_eq!(a.next().status, Status::Flushed);
    }
    (status, b.bytes(0, BYTES))
}

#[test]
fn bounds_rights_and_keys_are_checked_to_the_byte() {
    let untouched = |(status, bytes): (Status, Vec<u8>), what: &str| {
        assert_eq!(status, Status::RemoteAccess, "{what}");
        assert!(bytes == [0x55; BYTES], "{what} has written");
    };
    let end = BYTES as u64;
    for len in [1_u32, 8, 1024, 3000] {
        let at = |offset: i64| {
            move |b: &End| Remote {
                address: b.memory.address().wrapping_add_signed(offset),
                key: b.memory.rkey(),
            }
        };
        let last = end as i64 - i64::from(len);
        for (offset, inside) in [
            (0, true),
            (last, true),
            (-1, false),
            (last + 1, false),
            (end as i64, false),
            (i64::MIN, false),
        ] {
            let write = outcome(|b| Request::Write(at(offset)(b), None), len);
            let read = outcome(|b| Request::Read(at(offset)(b)), len);
            if inside {
                assert_eq!((write.0, read.0), (Status::Success, Status::Success));
                let from = offset as usize;
                assert!(write.1[from..from + len as usize].iter().all(|x| *x == 0));
                assert_eq!(write.1.iter().filter(|x| **x == 0).count(), len as usize);
            } else {
                untouched(write, "a write out of bounds");
                untouched(read, "a read out of bounds");
            }
        }
    }
    let mut rng = Rng::new(11);
    for n in 0..16 {
        let guess = rng.below(1 << 32) as u32;
        let forged = |b: &End| Remote {
            address: b.memory.address(),
            // Neighbours of the right key, and any.
            key: if n < 4 {
                b.memory.rkey() ^ 1 << (8 * n)
            } else {
                guess
            },
        };
        untouched(
            outcome(|b| Request::Write(forged(b), None), 64),
            "a forged key",
        );
        untouched(
            outcome(|b| Request::FetchAdd(forged(b), 1), 8),
            "a forged key",
        );
    }
    let word = |offset| move |b: &End| Request::FetchAdd(b.remote(offset), 1);
    assert_eq!(outcome(word(end - 8), 8).0, Status::Success);
    assert_eq!(
        outcome(word(end - 4), 8).0,
        Status::RemoteInvalidRequest,
        "not aligned"
    );
    untouched(outcome(word(end), 8), "an atomic operation out of bounds");
}

#[test]
fn regions_of_other_domains_without_rights_or_gone_are_refused() {
    let [a, b] = pair(&ContextConfig::default(), 1024);
    let other = b.context.alloc_pd().expect("a domain");
    let foreign = other.alloc(64, Access::REMOTE).expect("memory");
    let readable = Access {
        remote_read: true,
        ..Access::LOCAL_READ
    };
    let read_only = b.pd.alloc(64, readable).expect("memory");
    let gone = b.pd.alloc(64, Access::REMOTE).expect("memory");
    let at = |m: &MemoryRegion| Remote {
        address: m.address(),
        key: m.rkey(),
    };
    let remotes = [at(&foreign), at(&read_only), at(&gone)];
    drop(gone);
    a.send(1, Request::Read(at(&read_only)), 0, 64);
    assert_eq!(a.next().status, Status::Success);
    for remote in remotes {
        a.send(2, Request::Write(remote, None), 0, 8);
        assert_eq!(a.next().status, Status::RemoteAccess);
        // Both ends begin anew.
        for qp in [&a.qp, &b.qp] {
            qp.modify(Modify::Reset).expect("RESET");
        }
        a.connect(&b, 1024, RTS);
        b.connect(&a, 1024, RTS);
    }
    // The queue pair lacks the right, the region has it.
    b.qp.set_rights(Rights {
        write: false,
        ..Rights::ALL
    });
    a.send(3, Request::Write(b.remote(0), None), 0, 8);
    assert_eq!(a.next().status, Status::RemoteAccess);
}

#[test]
fn faults_of_local_memory_end_at_the_right_side() {
    // A key that is none, 0, and of memory that is not that long.
    for (len, key) in [(8, Some(77)), (8, Some(0)), (BYTES as u32 + 1, None)] {
        let [a, _b] = pair(&ContextConfig::default(), 1024);
        let mut piece = a.memory.piece(0, len);
        piece.lkey = key.unwrap_or(piece.lkey);
        a.post(1, Request::Send(None), Local::Registered(&[piece]))
            .expect("posted");
        assert_eq!(a.next().status, Status::LocalProtection);
    }
    // A message that is longer than its receive.
    let [a, b] = pair(&ContextConfig::default(), 1024);
    b.receive(1, 0, 2_999);
    b.receive(2, 0, 10);
    a.send(1, Request::Send(None), 0, 3_000);
    assert_eq!(b.next().status, Status::LocalLength);
    assert_eq!(a.next().status, Status::RemoteInvalidRequest);
    assert_eq!(
        (b.next().status, b.qp.state()),
        (Status::Flushed, State::Err)
    );
    // A receive into memory that nothing may write.
    let [a, b] = pair(&ContextConfig::default(), 1024);
    let constant = b.pd.alloc(64, Access::LOCAL_READ).expect("memory");
    let local = [constant.piece(0, 64)];
    b.qp.post_receive(&ReceiveRequest {
        id: 1,
        local: &local,
    })
    .expect("posted");
    a.send(1, Request::Send(None), 0, 64);
    assert_eq!(
        (b.next().status, a.next().status),
        (Status::LocalProtection, Status::RemoteOperation)
    );
}

#[test]
fn a_peer_without_receives_is_waited_for_as_often_as_asked() {
    let [a, b] = [(); 2].map(|()| End::new(&ContextConfig::default()));
    a.connect(
        &b,
        1024,
        Rts {
            rnr_retries: 2,
            ..RTS
        },
    );
    b.connect(&a, 1024, RTS);
    a.send(1, Request::Send(None), 0, 1);
    assert_eq!(a.next().status, Status::ReceiverNotReady);
    // Without end: until a receive is there.
    let [a, b] = pair(&ContextConfig::default(), 1024);
    b.memory.write(0, &[1; 100]);
    a.send(1, Request::Send(None), 0, 100);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert_eq!(a.cq.poll(&mut [Completion::EMPTY]).expect("no overrun"), 0);
    }
    assert!(b.qp.counters().not_ready > 2);
    b.receive(2, 0, 100);
    assert_eq!((a.next().status, b.next().len), (Status::Success, 100));
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let [a, b] = [(); 2].map(|()| End::new(&ContextConfig::default()));
    // 3 tries of 4.2 ms each.
    a.connect(
        &b,
        1024,
        Rts {
            timeout: 10,
            retries: 2,
            ..RTS
        },
    );
    b.connect(&a, 1024, RTS);
    drop(b);
    let start = Instant::now();
    a.send(1, Request::Send(None), 0, 1);
    a.send(2, Request::Send(None), 0, 1);
    assert_eq!(a.next().status, Status::RetryExceeded);
    assert!(
        start.elapsed() >= Duration::from_millis(12),
        "each try has its time"
    );
    assert_eq!(
        (a.next().status, a.qp.state()),
        (Status::Flushed, State::Err)
    );
}

#[test]
fn packets_from_other_sockets_are_dropped() {
    let [a, b] = pair(&ContextConfig::default(), 1024);
    // A third context that knows number, packet number and key.
    let c = End::new(&ContextConfig::default());
    c.connect(
        &b,
        1024,
        Rts {
            timeout: 8,
            retries: 0,
            ..RTS
        },
    );
    c.send(1, Request::Write(b.remote(0), None), 0, 8);
    assert_eq!(c.next().status, Status::RetryExceeded);
    assert!(b.context.ignored() > 0);
    a.send(1, Request::Write(b.remote(0), None), 0, 8);
    assert_eq!(a.next().status, Status::Success);
}

#[test]
fn states_follow_the_table_and_work_is_refused_outside_of_them() {
    let end = End::new(&ContextConfig::default());
    let refused = end
        .qp
        .modify(Modify::Sqd)
        .expect_err("from RESET")
        .to_string();
    assert!(refused.contains("in RESET cannot go to SQD"), "{refused}");
    let piece = [end.memory.piece(0, 8)];
    let local = Local::Registered(&piece);
    assert!(matches!(
        end.post(1, Request::Send(None), local),
        Err(VerbsError::State { .. })
    ));
    end.qp
        .modify(Modify::Init(Rights::default()))
        .expect("INIT");
    assert!(matches!(
        end.post(1, Request::Send(None), local),
        Err(VerbsError::State { .. })
    ));
    end.qp.modify(Modify::Err).expect("ERR");
    let refused = end
        .qp
        .modify(Modify::Init(Rights::ALL))
        .expect_err("from ERR")
        .to_string();
    assert!(refused.contains("in ERR cannot go to INIT"), "{refused}");
    end.qp.modify(Modify::Reset).expect("RESET");
    // Attributes out of range change nothing.
    let [a, b] = pair(&ContextConfig::default(), 1024);
    assert!(matches!(
        a.qp.post_send(&SendRequest {
            id: 1,
            request: Request::Read(b.remote(0)),
            local: Local::Inline(&[b"no place for an answer"]),
            flags: SendFlags::default(),
        }),
        Err(VerbsError::Misuse(_))
    ));
    for _ in 0..a.qp.limits().sends {
        a.qp.modify(Modify::Sqd).expect("SQD");
        a.send(7, Request::Write(b.remote(0), None), 0, 8);
    }
    let full = a.post(8, Request::Send(None), Local::Inline(&[]));
    assert!(matches!(full, Err(VerbsError::Full { .. })), "{full:?}");
    assert_eq!(
        a.cq.poll(&mut [Completion::EMPTY]).expect("no overrun"),
        0,
        "drained"
    );
    a.qp.modify(Modify::Resume).expect("RTS");
    for _ in 0..a.qp.limits().sends {
        assert_eq!((a.next().id, a.qp.state()), (7, State::Rts));
    }
}

#[test]
fn a_sleeping_program_is_woken_by_solicited_completions() {
    let [a, b] = pair(&ContextConfig::default(), 1024);
    let channel = b.context.create_channel().expect("a channel");
    let cq = b
        .context
        .create_cq(64, Some((&channel, 99)))
        .expect("a queue");
    let qp = b.pd.create_qp(&attributes(&cq)).expect("a queue pair");
    let b = End { cq, qp, ..b };
    let a = End {
        qp: a.pd.create_qp(&attributes(&a.cq)).expect("a queue pair"),
        ..a
    };
    a.connect(&b, 1024, RTS);
    b.connect(&a, 1024, RTS);
    for id in 0..3 {
        b.receive(id, 0, 8);
    }
    b.cq.request_notification(true).expect("it has a channel");
    for solicited in [false, true, false] {
        let flags = SendFlags {
            solicited,
            ..SendFlags::default()
        };
        let request = SendRequest {
            id: 1,
            request: Request::Send(None),
            local: Local::Inline(&[b"12345678"]),
            flags,
        };
        a.qp.post_send(&request).expect("posted");
    }
    // Nothing polls: the thread receives. The event comes within its deadline, or this fails.
    let (sender, receiver) = std::sync::mpsc::channel();
    let waits = channel.clone();
    std::thread::spawn(move || sender.send(waits.next()));
    let event = receiver
        .recv_timeout(LONG)
        .expect("an event")
        .expect("the descriptor");
    assert_eq!(event, 99);
    for id in 0..3 {
        assert_eq!(b.next().id, id);
    }
}

#[test]
fn queue_pairs_share_receives() {
    let [a, b] = [(); 2].map(|()| End::new(&ContextConfig::default()));
    let srq = b.pd.create_srq(8, 1).expect("a queue");
    let shared = QpAttributes {
        shared: Some(&srq),
        ..attributes(&b.cq)
    };
    let made = [(); 3].map(|()| {
        let theirs = b.pd.create_qp(&shared).expect("a queue pair");
        let ours = a.pd.create_qp(&attributes(&a.cq)).expect("a queue pair");
        for (qp, peer, number) in [(&ours, &b, theirs.number()), (&theirs, &a, ours.number())] {
            qp.modify(Modify::Init(Rights::ALL)).expect("INIT");
            let rtr = Rtr {
                peer: peer.context.gid(),
                number,
                expected: 7,
                mtu: 1024,
                resources: 1,
                rnr_timer: 1,
            };
            qp.modify(Modify::Rtr(rtr)).expect("RTR");
            qp.modify(Modify::Rts(RTS)).expect("RTS");
        }
        (ours, theirs)
    });
    for id in 0..8 {
        let local = [b.memory.piece(id * 8, 8)];
        srq.post_receive(&ReceiveRequest { id, local: &local })
            .expect("posted");
    }
    let full = srq.post_receive(&ReceiveRequest { id: 9, local: &[] });
    assert!(matches!(full, Err(VerbsError::Full { .. })));
    for id in 0..8 {
        let (ours, theirs) = &made[id % 3];
        let request = SendRequest {
            id: 1,
            request: Request::Send(None),
            local: Local::Inline(&[&[id as u8; 8]]),
            flags: SendFlags::default(),
        };
        ours.post_send(&request).expect("posted");
        let got = b.next();
        assert_eq!((got.id, got.queue_pair), (id as u64, theirs.number()));
        assert_eq!(b.bytes(id * 8, 8), [id as u8; 8]);
    }
    // A queue pair that fails leaves the others their receives.
    made[0].1.modify(Modify::Err).expect("ERR");
    assert_eq!(b.cq.poll(&mut [Completion::EMPTY]).expect("no overrun"), 0);
}

#[test]
fn an_overrun_of_completions_is_told() {
    let [a, b] = pair(&ContextConfig::default(), 1024);
    let cq = a.context.create_cq(2, None).expect("a queue");
    let a = End {
        qp: a.pd.create_qp(&attributes(&cq)).expect("a queue pair"),
        cq,
        ..a
    };
    a.connect(&b, 1024, RTS);
    let b = End {
        qp: b.pd.create_qp(&attributes(&b.cq)).expect("a queue pair"),
        ..b
    };
    b.connect(&a, 1024, RTS);
    a.qp.modify(Modify::Reset).expect("RESET");
    a.connect(&b, 1024, RTS);
    for _ in 0..3 {
        a.send(1, Request::Write(b.remote(0), None), 0, 8);
    }
    let until = Instant::now() + LONG;
    let mut found = 0;
    let overrun = loop {
        assert!(Instant::now() < until, "an overrun");
        std::thread::sleep(Duration::from_millis(20));
        match a.cq.poll(&mut [Completion::EMPTY; 2]) {
            Ok(n) => found += n,
            Err(e) => break e,
        }
    };
    assert!(found >= 2 && matches!(overrun, VerbsError::Overrun { entries: 2 }));
}
