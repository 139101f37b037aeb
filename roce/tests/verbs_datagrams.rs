//! Datagram queue pairs, by the face that programs have, and what foreign sockets send to them.
#![allow(clippy::disallowed_methods)] // Waits for packets of real sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ringbell_gtlb::testing::Rng;
use ringbell_net::wire::roce::icrc::{icrc, Flow};
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Bth, Deth, Extended, Psn, Qpn, Reth};
use ringbell_net::wire::udp::UNFRAGMENTED;
use ringbell_nic_abi::RoceOpcode;
use ringbell_roce::verbs::{
    sender, Access, AddressHandle, Completion, CompletionQueue, Context, ContextConfig,
    Destination, Gid, Local, MemoryRegion, Modify, ProtectionDomain, QpAttributes, QpLimits,
    QueuePair, ReceiveRequest, Remote, Request, Rights, SendFlags, SendRequest, Service, Sge,
    State, Status, VerbsError, WorkKind, DATAGRAM_MAX, GRH_BYTES,
};

const LONG: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;
const KEY: u32 = 0x1234_5678;
/// Where receives begin in the memory.
const INTO: u64 = 1 << 19;

struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

fn attributes(cq: &CompletionQueue) -> QpAttributes<'_> {
    QpAttributes {
        service: Service::Datagram,
        send_cq: cq,
        receive_cq: cq,
        shared: None,
        limits: QpLimits::default(),
        signal_all: true,
    }
}

fn to_rts(qp: &QueuePair) {
    qp.modify(Modify::InitDatagram(KEY)).expect("INIT");
    qp.modify(Modify::RtrDatagram).expect("RTR");
    qp.modify(Modify::RtsDatagram(0xff_fffe)).expect("RTS");
}

impl End {
    fn new() -> End {
        End::at(Ipv4Addr::LOCALHOST.into()).expect("a socket")
    }

    /// `None`, visibly: this machine has no such address.
    fn at(address: IpAddr) -> Option<End> {
        End::with(&ContextConfig {
            address,
            ..ContextConfig::default()
        })
    }

    /// As above.
    fn with(config: &ContextConfig) -> Option<End> {
        let context = Context::open(config);
        let context = context.inspect_err(|e| eprintln!("SKIPPED: {e}")).ok()?;
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(512, None).expect("a queue");
        let qp = pd.create_qp(&attributes(&cq)).expect("a queue pair");
        let memory = pd.alloc(BYTES, Access::REMOTE).expect("memory");
        to_rts(&qp);
        Some(End {
            context,
            pd,
            cq,
            qp,
            memory,
        })
    }

    fn to(&self, other: &End) -> AddressHandle {
        self.pd.create_ah(other.context.gid()).expect("a context")
    }

    fn next(&self) -> Completion {
        let until = Instant::now() + LONG;
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out).expect("no overrun") == 0 {
            assert!(Instant::now() < until, "no completion within {LONG:?}");
        }
        out[0]
    }

    /// Waits until so many packets were dropped; none has completed anything.
    fn drops(&self, count: u64) {
        let until = Instant::now() + LONG;
        while self.context.ignored() < count {
            assert_eq!(
                self.cq.poll(&mut [Completion::EMPTY]).expect("no overrun"),
                0
            );
            assert!(Instant::now() < until, "{} dropped", self.context.ignored());
        }
        assert_eq!(self.context.ignored(), count);
    }

    fn post(
        &self,
        request: Request,
        local: Local<'_>,
        (handle, number, key): (&AddressHandle, u32, u32),
    ) -> Result<(), VerbsError> {
        let request = SendRequest {
            id: 1,
            request,
            local,
            flags: SendFlags::default(),
        };
        let to = Destination {
            handle,
            number,
            key,
        };
        self.qp.post_send_to(&request, &to)
    }

    fn receive(&self, id: u64, len: u32) {
        let local = [self.memory.piece(INTO, len)];
        let receive = ReceiveRequest { id, local: &local };
        self.qp.post_receive(&receive).expect("posted");
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset as usize, &mut bytes);
        bytes
    }

    fn header(&self) -> [u8; GRH_BYTES] {
        self.bytes(INTO, GRH_BYTES).try_into().expect("as long")
    }
}

fn address(gid: Gid) -> SocketAddr {
    gid.endpoint().expect("a context's").0
}

#[test]
fn messages_of_ipv6_arrive_behind_the_whole_header_and_can_be_answered() {
    let ip = Ipv6Addr::LOCALHOST;
    let (Some(a), Some(b)) = (End::at(ip.into()), End::at(ip.into())) else {
        return;
    };
    let there = a.to(&b);
    b.receive(7, (GRH_BYTES + 99) as u32);
    let bytes = [0x77; 99];
    let to = (&there, b.qp.number(), KEY);
    a.post(Request::Send(None), Local::Inline(&[&bytes]), to)
        .expect("posted");
    assert_eq!((b.next().id, a.next().id), (7, 1));
    let header = b.header();
    // Base and datagram header, padding and CRC besides.
    let len = 8 + 12 + 8 + 99 + 1 + 4;
    assert_eq!(header[..8], [0x60, 0, 0, 0, 0, len, 17, 64]);
    // As both programs know them, with what the contexts can beside the standard.
    for (at, end) in [(8, &a), (24, &b)] {
        assert_eq!(header[at..at + 16], end.context.gid().0);
    }
    assert_eq!(b.bytes(INTO + GRH_BYTES as u64, 99), bytes);
    let back = sender(&header).expect("a's address");
    assert_eq!(back, a.context.gid());
    let handle = b.pd.create_ah(back).expect("a context");
    a.receive(9, GRH_BYTES as u32);
    let to = (&handle, a.qp.number(), KEY);
    b.post(Request::Send(None), Local::Inline(&[]), to)
        .expect("posted");
    assert_eq!(a.next().id, 9);
}

#[test]
fn messages_arrive_behind_the_networks_header_and_can_be_answered() {
    let [a, b] = [End::new(), End::new()];
    let there = a.to(&b);
    assert_eq!(there.longest(), DATAGRAM_MAX);
    let to = (&there, b.qp.number(), KEY);
    let mut rng = Rng::new(17);
    for (i, len) in [0, 1, 2, 3, 4, 5, 255, 1024, 4093, 4096]
        .into_iter()
        .enumerate()
    {
        let bytes = rng.bytes(len);
        a.memory.write(3, &bytes);
        b.receive(i as u64, (GRH_BYTES + len) as u32);
        let immediate = (i % 2 == 1).then_some(i as u32);
        let cut = (len / 3) as u32;
        let pieces = [
            a.memory.piece(3, cut),
            a.memory.piece(3 + u64::from(cut), len as u32 - cut),
        ];
        let parts = [&bytes[..len.min(200)]];
        let local = match i % 3 == 0 && len <= 200 {
            true => Local::Inline(&parts),
            false => Local::Registered(&pieces),
        };
        a.post(Request::Send(immediate), local, to).expect("posted");
        assert_eq!(
            (a.next().status, a.qp.state()),
            (Status::Success, State::Rts)
        );
        let c = b.next();
        assert_eq!(
            (c.id, c.status, c.kind),
            (i as u64, Status::Success, WorkKind::Receive)
        );
        assert_eq!(c.len as usize, GRH_BYTES + len);
        assert_eq!((c.immediate, c.source), (immediate, Some(a.qp.number())));
        assert_eq!(b.bytes(INTO + GRH_BYTES as u64, len), bytes, "{len} bytes");
        let header = b.header();
        let whole = 8 + 12 + 8 + 4 * usize::from(immediate.is_some()) + len.next_multiple_of(4) + 4;
        assert_eq!((header[0], header[6]), (0x60, 17), "GIDs, UDP");
        assert_eq!(
            usize::from(u16::from_be_bytes([header[4], header[5]])),
            whole
        );
        // UCX looks there for its own, as `ibv_query_gid` gave it.
        assert_eq!(header[8..24], a.context.gid().0);
        assert_eq!(header[24..], b.context.gid().0);
    }
    // The answer goes where the header says.
    let back = sender(&b.header()).expect("a context of ours");
    assert_eq!(back, a.context.gid());
    let back = b.pd.create_ah(back).expect("a context");
    a.receive(9, 64);
    let to = (&back, a.qp.number(), KEY | 1 << 31);
    let refused = b.post(Request::Send(None), Local::Inline(&[b"to you"]), to);
    refused.expect("with the highest bit the key is the sender's own, which is the same");
    assert_eq!((b.next().status, a.next().len), (Status::Success, 46));
    assert_eq!(a.bytes(INTO + 40, 6), b"to you");
    assert_eq!((a.context.ignored(), b.context.ignored()), (0, 0));
}

#[test]
fn a_context_with_the_standards_gid_writes_the_header_of_ipv4() {
    // One context of an address can have the port: another test may have the usual one.
    let ip = Ipv4Addr::new(127, 91, 0, 7);
    let standard = |port| ContextConfig {
        address: ip.into(),
        port,
        ..ContextConfig::default()
    };
    let (Some(a), Some(b)) = (End::with(&standard(0)), End::with(&standard(4791))) else {
        return;
    };
    assert_eq!(
        b.context.gid().0[..12],
        [[0; 10].as_slice(), &[0xff; 2]].concat()
    );
    b.receive(7, (GRH_BYTES + 5) as u32);
    let there = a.to(&b);
    let to = (&there, b.qp.number(), KEY);
    a.post(Request::Send(None), Local::Inline(&[b"hello"]), to)
        .expect("posted");
    assert_eq!((b.next().id, a.next().id), (7, 1));
    let header = b.header();
    let header_of_ipv4 = &header[20..];
    assert_eq!(
        (header_of_ipv4[0], header_of_ipv4[9]),
        (0x45, 17),
        "IPv4, UDP"
    );
    // IPv4, UDP, base and datagram header, the message, padding and CRC.
    assert_eq!(header_of_ipv4[2..4], [0, 20 + 8 + 12 + 8 + 5 + 3 + 4]);
    assert_eq!(header_of_ipv4[12..16], ip.octets());
    assert_eq!(header_of_ipv4[16..20], ip.octets());
    let sum: u32 = header_of_ipv4
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum");
    // To a GID without a port nothing beside the standard is said: the address alone is known.
    let back = sender(&header).expect("a's address");
    assert_eq!(address(back), address(a.context.gid()));
    assert_ne!(back, a.context.gid());
}

#[test]
fn what_no_receive_waits_for_is_dropped() {
    let [a, b] = [End::new(), End::new()];
    let there = a.to(&b);
    let send = |number, key, len: u32| {
        let pieces = [a.memory.piece(0, len)];
        let local = Local::Registered(&pieces);
        a.post(Request::Send(None), local, (&there, number, key))
            .expect("posted");
        assert_eq!(
            a.next().status,
            Status::Success,
            "the sender learns nothing"
        );
    };
    let number = b.qp.number();
    send(number, KEY, 8);
    b.drops(1); // No receive.
    b.receive(1, 47);
    send(number, KEY, 8);
    b.drops(2); // A receive that is too short by one byte.
    send(number, KEY ^ 1, 7);
    b.drops(3);
    send(number ^ 1, KEY, 7);
    b.drops(4);
    send(number, KEY, 7);
    let c = b.next();
    assert_eq!((c.id, c.len), (1, 47), "the receive has waited");
    assert_eq!(b.qp.counters().ignored, 3, "those that named it");
    // Not before RTR, and not after ERR.
    b.qp.modify(Modify::Reset).expect("RESET");
    b.qp.modify(Modify::InitDatagram(KEY)).expect("INIT");
    b.receive(2, 100);
    send(number, KEY, 8);
    b.drops(5);
    b.qp.modify(Modify::RtrDatagram).expect("RTR");
    send(number, KEY, 8);
    assert_eq!(b.next().id, 2);
    b.receive(3, 100);
    b.qp.modify(Modify::Err).expect("ERR");
    assert_eq!(
        (b.next().status, b.qp.state()),
        (Status::Flushed, State::Err)
    );
    send(number, KEY, 8);
    b.drops(6);
    // Another key from now on.
    b.qp.modify(Modify::Reset).expect("RESET");
    to_rts(&b.qp);
    b.qp.set_key(77);
    b.receive(4, 100);
    send(number, KEY, 8);
    b.drops(7);
    send(number, 77, 8);
    assert_eq!(b.next().id, 4);
}

#[test]
fn requests_that_no_datagram_can_do_are_refused() {
    let [a, b] = [End::new(), End::new()];
    let there = a.to(&b);
    let to = (&there, b.qp.number(), KEY);
    let piece = [a.memory.piece(0, 4097)];
    let refused = |r: Result<(), VerbsError>| r.expect_err("refused").to_string();
    let long = refused(a.post(Request::Send(None), Local::Registered(&piece), to));
    assert!(long.contains("4097; it can be up to 4096"), "{long}");
    let remote = Remote { address: 0, key: 0 };
    let write = Request::Write(remote, None);
    assert!(refused(a.post(write, Local::Inline(&[b"x"]), to)).contains("a datagram is a SEND"));
    let plain = SendRequest {
        id: 1,
        request: Request::Send(None),
        local: Local::Inline(&[b"x"]),
        flags: SendFlags::default(),
    };
    assert!(refused(a.qp.post_send(&plain)).contains("needs a destination"));
    let other = b.to(&a);
    let wrong = refused(a.post(
        Request::Send(None),
        Local::Inline(&[b"x"]),
        (&other, 2, KEY),
    ));
    assert!(wrong.contains("another protection domain"), "{wrong}");
    let wrong = refused(a.post(
        Request::Send(None),
        Local::Inline(&[b"x"]),
        (&there, 1 << 24, KEY),
    ));
    assert!(wrong.contains("up to 16777215"), "{wrong}");
    assert!(a.pd.create_ah(Gid([0; 16])).is_err());
    // The services do not mix.
    let connected = QpAttributes {
        service: Service::Connected,
        ..attributes(&a.cq)
    };
    let connected = a.pd.create_qp(&connected).expect("a queue pair");
    for change in [
        Modify::InitDatagram(1),
        Modify::RtrDatagram,
        Modify::RtsDatagram(1),
    ] {
        assert!(refused(connected.modify(change)).contains("other service"));
    }
    assert!(refused(a.qp.modify(Modify::Init(Rights::ALL))).contains("other service"));
    let wrong = refused(a.qp.modify(Modify::RtrDatagram));
    assert!(wrong.contains("RTS cannot go to RTR"), "{wrong}");
}

#[test]
fn faults_of_local_memory_stop_the_side_that_has_them() {
    let [a, b] = [End::new(), End::new()];
    let there = a.to(&b);
    let to = (&there, b.qp.number(), KEY);
    let good = [a.memory.piece(0, 8)];
    let bad = [Sge {
        lkey: a.memory.lkey() ^ 1,
        ..good[0]
    }];
    for _ in 0..3 {
        b.receive(7, 100);
    }
    // The send queue stops (SQE), and goes on when it is told to; receives go on all the time.
    a.post(Request::Send(None), Local::Registered(&bad), to)
        .expect("posted");
    assert_eq!(
        (a.next().status, a.qp.state()),
        (Status::LocalProtection, State::Sqe)
    );
    a.post(Request::Send(None), Local::Registered(&good), to)
        .expect("posted");
    assert_eq!(a.next().status, Status::Flushed);
    a.receive(8, 100);
    let back = b.to(&a);
    let to_a = (&back, a.qp.number(), KEY);
    b.post(Request::Send(None), Local::Inline(&[b"x"]), to_a)
        .expect("posted");
    assert_eq!((b.next().status, a.next().id), (Status::Success, 8));
    a.qp.modify(Modify::Resume).expect("RTS");
    a.post(Request::Send(None), Local::Registered(&good), to)
        .expect("posted");
    assert_eq!((a.next().status, b.next().id), (Status::Success, 7));
    // While it drains, nothing leaves.
    a.qp.modify(Modify::Sqd).expect("SQD");
    a.post(Request::Send(None), Local::Registered(&good), to)
        .expect("posted");
    assert_eq!(a.cq.poll(&mut [Completion::EMPTY]).expect("no overrun"), 0);
    a.qp.modify(Modify::Resume).expect("RTS");
    assert_eq!((a.next().status, b.next().id), (Status::Success, 7));
    // A receive whose memory cannot be written ends the queue pair.
    b.qp.modify(Modify::Reset).expect("RESET");
    to_rts(&b.qp);
    let bad = [Sge {
        lkey: b.memory.lkey() ^ 1,
        ..b.memory.piece(INTO, 100)
    }];
    let receive = ReceiveRequest { id: 9, local: &bad };
    b.qp.post_receive(&receive).expect("posted");
    b.receive(10, 100);
    a.post(Request::Send(None), Local::Registered(&good), to)
        .expect("posted");
    assert_eq!(
        (b.next().status, b.next().status),
        (Status::LocalProtection, Status::Flushed)
    );
    assert_eq!(b.qp.state(), State::Err);
}

#[test]
fn datagrams_to_many_peers_leave_in_turn_and_fill_shared_receives() {
    let a = End::new();
    let others: Vec<_> = (0..5).map(|_| End::new()).collect();
    let handles: Vec<_> = others.iter().map(|o| a.to(o)).collect();
    for o in &others {
        for i in 0..20 {
            o.receive(i, 100);
        }
    }
    let mut posting = a.qp.begin();
    for i in 0..100_u32 {
        let to = Destination {
            handle: &handles[i as usize % 5],
            number: others[i as usize % 5].qp.number(),
            key: KEY,
        };
        let request = SendRequest {
            id: i.into(),
            request: Request::Send(Some(i)),
            local: Local::Inline(&[b"to all"]),
            flags: SendFlags::default(),
        };
        posting.send_to(&request, &to).expect("posted");
    }
    drop(posting);
    for i in 0..100 {
        assert_eq!(a.next().id, i);
    }
    for (n, o) in others.iter().enumerate() {
        for i in 0..20 {
            assert_eq!(o.next().immediate, Some(5 * i + n as u32), "in order");
        }
    }
    // One queue of receives behind two queue pairs.
    let b = &others[0];
    let shared = b.pd.create_srq(8, 1).expect("a queue");
    let with_shared = QpAttributes {
        shared: Some(&shared),
        ..attributes(&b.cq)
    };
    let qps = [0, 1].map(|_| b.pd.create_qp(&with_shared).expect("a queue pair"));
    for (i, qp) in qps.iter().enumerate() {
        to_rts(qp);
        let local = [b.memory.piece(INTO, 100)];
        let id = i as u64;
        shared
            .post_receive(&ReceiveRequest { id, local: &local })
            .expect("posted");
    }
    for (i, qp) in qps.iter().enumerate() {
        let to = (&handles[0], qp.number(), KEY);
        a.post(Request::Send(None), Local::Inline(&[b"x"]), to)
            .expect("posted");
        assert_eq!(a.next().status, Status::Success);
        let c = b.next();
        assert_eq!((c.id, c.queue_pair), (i as u64, qp.number()));
    }
}

/// A socket that sends arbitrary packets.
struct Foreign {
    socket: UdpSocket,
    flow: Flow,
}

impl Foreign {
    fn new(to: &End) -> Foreign {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let to = address(to.context.gid());
        socket.connect(to).expect("loopback");
        let from = socket.local_addr().expect("bound");
        let fragment = UNFRAGMENTED;
        Foreign {
            socket,
            flow: Flow { from, to, fragment },
        }
    }

    /// Sends a packet with its right CRC.
    fn send(&self, packet: &[u8]) {
        let sum = icrc(&self.flow, packet).unwrap_or_default();
        self.raw(&[packet, &sum].concat());
    }

    fn raw(&self, bytes: &[u8]) {
        self.socket.send(bytes).expect("loopback takes it");
    }
}

fn packet(bth: Bth, extended: Extended, payload: &[u8]) -> Vec<u8> {
    let head = Head { bth, extended };
    let mut bytes = vec![0; head.len() + payload.len() + 3];
    bytes[head.len()..][..payload.len()].copy_from_slice(payload);
    let len = head.emit(&mut bytes, payload.len());
    bytes.truncate(len);
    bytes
}

#[test]
fn a_foreign_packet_is_taken_with_number_and_key_alone() {
    let b = End::new();
    b.receive(1, 5000);
    let foreign = Foreign::new(&b);
    let number = Qpn::new(b.qp.number());
    let bth = Bth::new(RoceOpcode::DatagramSend, number, Psn::new(5));
    let deth = |key| {
        Extended::Datagram(Deth {
            key,
            source: Qpn::new(9),
            reserved: 0,
        })
    };
    let good = packet(bth, deth(KEY), b"hello");
    let mut dropped = 0;
    let mut drops = |bytes: &[u8], with_crc: bool| {
        match with_crc {
            true => foreign.send(bytes),
            false => foreign.raw(bytes),
        }
        dropped += 1;
        b.drops(dropped);
    };
    // Every bit of the key; operations of the other service; another partition; a version that is
    // not there.
    for bit in 0..32 {
        drops(&packet(bth, deth(KEY ^ 1 << bit), b"hello"), true);
    }
    let reth = Reth {
        address: 0,
        key: 0,
        length: 5,
    };
    for (opcode, extended) in [
        (RoceOpcode::SendOnly, Extended::None),
        (RoceOpcode::SendFirst, Extended::None),
        (RoceOpcode::WriteOnly, Extended::Reth(reth)),
        (RoceOpcode::ReadRequest, Extended::Reth(reth)),
    ] {
        let payload: &[u8] = if opcode == RoceOpcode::ReadRequest {
            b""
        } else {
            b"hello"
        };
        drops(&packet(Bth { opcode, ..bth }, extended, payload), true);
    }
    drops(
        &packet(
            Bth {
                partition: 0x7ffe,
                ..bth
            },
            deth(KEY),
            b"hello",
        ),
        true,
    );
    let mut version = good.clone();
    version[1] |= 1;
    drops(&version, true);
    // Lengths that lie: all cuts, padding that is not there, a message that is longer than a packet
    // may be. A word less is a shorter message: nothing but the datagram's end says how long it is.
    for cut in (0..good.len()).filter(|&cut| cut != good.len() - 4) {
        drops(&good[..cut], true);
    }
    let empty = packet(bth, deth(KEY), b"");
    let mut padded = empty.clone();
    padded[1] |= 0x30;
    drops(&padded, true);
    drops(&[&good[..], b"x"].concat(), true);
    drops(&packet(bth, deth(KEY), &[1; DATAGRAM_MAX + 1]), true);
    // A wrong CRC, and none.
    drops(&[&good[..], &[0; 4]].concat(), false);
    drops(&good, false);
    // The receive has waited for this one.
    foreign.send(&good);
    let c = b.next();
    assert_eq!((c.status, c.len, c.source), (Status::Success, 45, Some(9)));
    assert_eq!(b.bytes(INTO + 40, 5), b"hello");
    assert_eq!(sender(&b.header()).map(address), Some(foreign.flow.from));
    // Every other bit flipped: dropped, or a datagram of the same length or within its padding.
    let mut rng = Rng::new(3);
    for _ in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(2) {
            bytes[rng.below(good.len() as u64) as usize] ^= 1 << rng.below(8);
        }
        b.receive(2, 5000);
        foreign.send(&bytes);
        foreign.send(&good);
        let first = b.next();
        assert_eq!(first.status, Status::Success);
        assert!((40..=48).contains(&first.len), "{first:?}");
        b.qp.modify(Modify::Reset).expect("RESET");
        to_rts(&b.qp);
    }
}
