//! Queue pairs on host memory, by the face that programs have.
#![allow(clippy::disallowed_methods)] // Waits for packets of a real socket.

use std::time::{Duration, Instant};

use ringbell_nic_core::verbs::{
    Access, Completion, CompletionQueue, Context, ContextConfig, Local, MemoryRegion, Modify,
    ProtectionDomain, QpAttributes, QpLimits, QueuePair, ReceiveRequest, Remote, Request, Rights,
    Rtr, Rts, SendFlags, SendRequest, State, Status, VerbsError, WorkKind,
};

const LONG: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// One end of a connection, with memory that the other may use.
struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn new(config: &ContextConfig) -> End {
        let context = Context::open(config).expect("a socket");
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(512, None).expect("a queue");
        let qp = pd.create_qp(&attributes(&cq)).expect("a queue pair");
        let memory = pd.alloc(BYTES, Access::REMOTE).expect("memory");
        End {
            context,
            pd,
            cq,
            qp,
            memory,
        }
    }

    fn connect(&self, to: &End, mtu: u32, rts: Rts) {
        self.qp.modify(Modify::Init(Rights::ALL)).expect("INIT");
        let rtr = Rtr {
            peer: to.context.gid(),
            number: to.qp.number(),
            expected: 7,
            mtu,
            resources: 16,
            rnr_timer: 1,
        };
        self.qp.modify(Modify::Rtr(rtr)).expect("RTR");
        self.qp.modify(Modify::Rts(rts)).expect("RTS");
    }

    fn next(&self) -> Completion {
        let until = Instant::now() + LONG;
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out).expect("no overrun") == 0 {
            assert!(Instant::now() < until, "no completion within {LONG:?}");
        }
        out[0]
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote {
            address: self.memory.address() + offset,
            key: self.memory.rkey(),
        }
    }

    fn send(&self, id: u64, request: Request, offset: u64, len: u32) {
        let pieces = [self.memory.piece(offset, len)];
        self.post(id, request, Local::Registered(&pieces))
            .expect("posted");
    }

    fn post(&self, id: u64, request: Request, local: Local<'_>) -> Result<(), VerbsError> {
        let flags = SendFlags {
            signaled: true,
            ..SendFlags::default()
        };
        self.qp.post_send(&SendRequest {
            id,
            request,
            local,
            flags,
        })
    }

    fn receive(&self, id: u64, offset: u64, len: u32) {
        let local = [self.memory.piece(offset, len)];
        let receive = ReceiveRequest { id, local: &local };
        self.qp.post_receive(&receive).expect("posted");
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

fn attributes(cq: &CompletionQueue) -> QpAttributes<'_> {
    QpAttributes {
        send_cq: cq,
        receive_cq: cq,
        shared: None,
        limits: QpLimits::default(),
        signal_all: false,
    }
}

const RTS: Rts = Rts {
    first: 7,
    depth: 16,
    timeout: 14,
    retries: 7,
    rnr_retries: 7,
};

fn pair(config: &ContextConfig, mtu: u32) -> [End; 2] {
    let ends = [End::new(config), End::new(config)];
    let [a, b] = &ends;
    a.connect(b, mtu, RTS);
    b.connect(a, mtu, RTS);
    ends
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + seed * 13 + i / 251) as u8)
        .collect()
}

#[test]
fn every_operation_moves_its_bytes() {
    let standard = ContextConfig {
        icrc: true,
        payload_kib: 4,
        ..ContextConfig::default()
    };
    for (config, mtu) in [(standard, 1024), (ContextConfig::default(), 4096)] {
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
