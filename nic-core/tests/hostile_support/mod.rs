//! A NIC with hostile peers, whose actions an input of bytes decides. Shared by
//! `collective_fuzz.rs` and the fuzz target `fabric`.
//!
//! The NIC is rank 1 of three in one communicator and rank 1 of two in another; the other ranks,
//! and unknown peers, are streams that an input plays: frames with fields near to those of a
//! correct peer, raw bytes, ends of streams, operations that the transport holds, and operations of
//! the NIC's own between them. For every input:
//!
//! - nothing panics, and no byte outside of the destinations changes;
//! - every operation ends within its deadline;
//! - communicators can be freed, all NIC memory comes back, and a communicator without the hostile
//!   peers still works.
#![allow(dead_code, unreachable_pub)] // Each user takes a part of it.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};

use ringbell_gtlb::testing::{GpuView, HostMemory, Layout};
use ringbell_gtlb::Access;
use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind as K, CollectiveSpec, DataType, Descriptor, GpuVa, Lkey, Opcode,
    ReduceOp, Rkey, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus, CommunicatorConfig};
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::transport::{
    Caps, Close, ConnState, Payload, RecvWork, SendWork, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{CommId, ConnId, ListenerId, NicTime, WorkToken};
use ringbell_nic_core::{HostQueue, Nic, NicConfig, ProgressMode, QueueConfig};

/// Where the NIC's GPU memory begins, and how much there is.
pub const BASE: GpuVa = GpuVa(0x7_0000_0000);
const MEMORY: u64 = 256 << 10;
/// Sources are below, destinations from here on, and nothing may be written from `GUARD` on.
pub const OUT: u64 = 64 << 10;
const GUARD: u64 = 192 << 10;
const PORT: u16 = 7117;
/// Of every operation that is posted.
const DEADLINE_US: u32 = 50_000;
const MS: u64 = 1_000_000;

pub fn address(host: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), PORT)
}

/// One stream of the NIC's, as the other end plays it.
#[derive(Debug, Default)]
struct Stream {
    open: bool,
    /// Bytes that the NIC has not read.
    inbox: VecDeque<u8>,
    recvs: VecDeque<(RecvWork, u64)>,
    /// Receives that the peer may write, and how many of them it has written.
    exposed: VecDeque<RecvWork>,
    written: usize,
    /// Sends that the peer does not take yet.
    held: VecDeque<SendWork>,
    holds: bool,
    fin: bool,
    fin_seen: bool,
}

#[derive(Debug, Default)]
pub struct Wire {
    streams: Vec<Stream>,
    events: VecDeque<TransportEvent>,
    /// Hashes of the settings that the NIC has sent, by communicator.
    hashes: Vec<(u64, u64)>,
    /// Numbers of the receives that the NIC has named to senders.
    pub cleared: Vec<u32>,
}

impl Wire {
    fn retire(&mut self, i: usize, status: Status) {
        let s = &mut self.streams[i];
        let conn = ConnId(i as u32);
        let sends = s.held.drain(..).map(|w| TransportEvent::SendDone {
            conn,
            token: w.token,
            status,
            bytes: 0,
            detail: 0,
        });
        self.events.extend(sends);
        let recvs = s
            .recvs
            .drain(..)
            .map(|(w, bytes)| TransportEvent::RecvDone {
                conn,
                token: w.token,
                status,
                bytes,
                detail: 0,
            });
        self.events.extend(recvs);
        let s = &mut self.streams[i];
        let exposed = s.exposed.drain(..).map(|w| TransportEvent::RecvDone {
            conn,
            token: w.token,
            status,
            bytes: 0,
            detail: 0,
        });
        self.events.extend(exposed);
    }

    fn reset(&mut self, i: usize) {
        if !self.streams[i].open {
            return;
        }
        self.streams[i].open = false;
        let conn = ConnId(i as u32);
        self.events.push_back(TransportEvent::Reset { conn });
        self.retire(i, Status::ConnectionReset);
    }

    fn new_stream(&mut self) -> usize {
        self.streams.push(Stream {
            open: true,
            ..Stream::default()
        });
        self.streams.len() - 1
    }

    /// A peer connects.
    pub fn call(&mut self, from: u8) -> usize {
        let i = self.new_stream();
        self.events.push_back(TransportEvent::Incoming {
            listener: ListenerId(0),
            conn: ConnId(i as u32),
            peer: SocketAddrV4::new(*address(from).ip(), 50_000),
        });
        i
    }
}

/// A transport of the played streams.
#[derive(Debug, Clone, Default)]
pub struct Played(Arc<Mutex<Wire>>);

impl Played {
    pub fn with<R>(&self, f: impl FnOnce(&mut Wire) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn post_send(&mut self, conn: ConnId, work: SendWork) {
        self.with(|w| {
            if let Payload::Inline { bytes, .. } = &work.payload {
                let word =
                    |i: usize| (0..8).fold(0, |a, b| a | u64::from(bytes[i * 8 + b]) << (b * 8));
                match bytes[0] {
                    2 => w.hashes.push((word(1), word(4) & 0xffff_ffff)),
                    5 => w.cleared.push((word(0) >> 32) as u32),
                    _ => {}
                }
            }
            let s = &mut w.streams[conn.0 as usize];
            if s.holds && s.open {
                return s.held.push_back(work);
            }
            let (status, bytes) = match s.open {
                true => (Status::Ok, work.payload.len().into()),
                false => (Status::ConnectionReset, 0),
            };
            w.events.push_back(TransportEvent::SendDone {
                conn,
                token: work.token,
                status,
                bytes,
                detail: 0,
            });
        });
    }
    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        self.with(|w| {
            let s = &mut w.streams[conn.0 as usize];
            s.recvs.push_back((work, 0));
            if !s.open {
                w.retire(conn.0 as usize, Status::ConnectionReset);
            }
        });
    }
}

impl Transport for Played {
    fn caps(&self) -> Caps {
        Caps {
            // Every other connection.
            exposes: self.with(|w| w.streams.len().is_multiple_of(2).then_some(64)),
            ..Caps::streams("played")
        }
    }
    fn listen(&mut self, _: u16, _: usize) -> Result<ListenerId, Status> {
        Ok(ListenerId(0))
    }
    fn unlisten(&mut self, _: ListenerId) {}
    fn connect(&mut self, _: NicTime, _: SocketAddrV4, _: NicTime) -> Result<ConnId, Status> {
        self.with(|w| {
            let conn = ConnId(w.new_stream() as u32);
            w.events.push_back(TransportEvent::Connected { conn });
            Ok(conn)
        })
    }
    fn post(&mut self, conn: ConnId, work: Work) {
        match work {
            Work::Send(work) | Work::Write(work, _) => self.post_send(conn, work),
            Work::Receive(work) => self.post_recv(conn, work),
            Work::Remote(work) => unreachable!("no test has {work:?}"),
        }
    }
    fn expose(&mut self, conn: ConnId, work: &RecvWork, _: bool) -> Option<u32> {
        self.with(|w| {
            let s = &mut w.streams[conn.0 as usize];
            if s.open {
                s.exposed.push_back(*work);
            }
            s.open.then_some(7)
        })
    }
    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        self.with(|w| {
            let s = &mut w.streams[conn.0 as usize];
            if let Some(i) = s.exposed.iter().position(|r| r.token == token) {
                s.exposed.remove(i);
                return Some(0);
            }
            if let Some(i) = s.held.iter().position(|h| h.token == token) {
                s.held.remove(i);
                return Some(0);
            }
            let i = s.recvs.iter().position(|(r, _)| r.token == token)?;
            s.recvs.remove(i).map(|(_, done)| done)
        })
    }
    fn close(&mut self, conn: ConnId, how: Close) {
        let ends = match how {
            Close::Sending => return,
            Close::Gracefully => Status::NotConnected,
            Close::Now => Status::Aborted,
        };
        self.with(|w| {
            w.streams[conn.0 as usize].open = false;
            w.retire(conn.0 as usize, ends);
            if how == Close::Gracefully {
                w.events.push_back(TransportEvent::Closed { conn });
            }
        });
    }
    fn step(&mut self, _: NicTime, _: &mut Network, data: &mut Datapath<'_>) -> bool {
        self.with(|w| {
            let mut moved = false;
            for i in 0..w.streams.len() {
                let s = &mut w.streams[i];
                let conn = ConnId(i as u32);
                while let (true, Some((r, done))) = (s.open, s.recvs.front_mut()) {
                    let want = u64::from(r.buffer.len) - *done;
                    let n = s.inbox.len().min(want as usize);
                    if n == 0 {
                        break;
                    }
                    moved = true;
                    let bytes: Vec<u8> = s.inbox.drain(..n).collect();
                    let status = match data.dma.write(&r.buffer, *done, &bytes) {
                        Ok(()) => Status::Ok,
                        Err(fault) => fault.status().0,
                    };
                    *done += n as u64;
                    if status != Status::Ok || *done == u64::from(r.buffer.len) {
                        let (token, bytes) = (r.token, *done);
                        s.recvs.pop_front();
                        w.events.push_back(TransportEvent::RecvDone {
                            conn,
                            token,
                            status,
                            bytes,
                            detail: 0,
                        });
                    }
                }
                let s = &mut w.streams[i];
                while s.open && s.written > 0 {
                    s.written -= 1;
                    let Some(r) = s.exposed.pop_front() else {
                        continue;
                    };
                    moved = true;
                    let bytes = vec![0x5a; r.buffer.len as usize];
                    let written = data.dma.write(&r.buffer, 0, &bytes);
                    w.events.push_back(TransportEvent::RecvDone {
                        conn,
                        token: r.token,
                        status: written.map_or_else(|fault| fault.status().0, |()| Status::Ok),
                        bytes: r.buffer.len.into(),
                        detail: 0,
                    });
                }
                let s = &mut w.streams[i];
                if s.open && s.fin && s.inbox.is_empty() {
                    if !s.fin_seen {
                        s.fin_seen = true;
                        moved = true;
                        w.events.push_back(TransportEvent::PeerClosed { conn });
                    }
                    for (r, bytes) in s.recvs.drain(..) {
                        moved = true;
                        w.events.push_back(TransportEvent::RecvDone {
                            conn,
                            token: r.token,
                            status: Status::EndOfStream,
                            bytes,
                            detail: 0,
                        });
                    }
                }
            }
            moved
        })
    }
    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.with(|w| w.events.pop_front())
    }
    fn next_timer(&self) -> Option<NicTime> {
        None
    }
    fn conn_state(&self, _: ConnId) -> Option<ConnState> {
        Some(ConnState::between(address(2), address(1)))
    }
}

/// The bytes that decide; zeros when they are used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((b, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *b
    }
    fn word(&mut self) -> u64 {
        (0..8).fold(0, |w, i| w | u64::from(self.byte()) << (i * 8))
    }
    /// A number that is small as a rule, and at some limit now and then.
    fn number(&mut self) -> u64 {
        let b = self.byte();
        match b {
            0..=199 => u64::from(b) % 8,
            200..=219 => u64::from(self.byte()),
            220..=229 => (1 << 18) | (u64::from(self.byte()) % 8),
            230..=239 => (2 << 18) | (u64::from(self.byte()) % 8),
            240..=244 => u64::from(u32::MAX) - u64::from(self.byte()),
            245..=249 => 1 << (self.byte() % 64),
            _ => self.word(),
        }
    }
}

/// A head, as `nic-core/src/message/head.rs` has it.
pub fn header(kind: u8, from: u16, a: u32, words: [u64; 4]) -> Vec<u8> {
    let head = u64::from(kind) | 3 << 8 | u64::from(from) << 16 | u64::from(a) << 32;
    std::iter::once(head)
        .chain(words)
        .flat_map(u64::to_le_bytes)
        .collect()
}

pub struct Play {
    pub wire: Played,
    memory: Arc<HostMemory>,
    pub nic: Nic,
    pub queue: HostQueue,
    pub comms: Vec<CommId>,
    now: u64,
    /// Tickets.
    posted: Vec<u32>,
}

fn settings() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 256,
        eager_max: 128,
        eager_buffers: 2,
        scratch_bytes: 32 << 10,
        connect_timeout: std::time::Duration::from_millis(40),
        ..CollectiveSettings::default()
    }
}

impl Play {
    pub fn new() -> Play {
        let wire = Played::default();
        let memory = Arc::new(HostMemory::new(MEMORY).expect("memory"));
        let config = NicConfig {
            ip: *address(2).ip(),
            progress: ProgressMode::Manual,
            nic_memory_bytes: 1 << 20,
            ..NicConfig::default()
        };
        let nic = Nic::builder(config, memory.clone())
            .transport(Box::new(wire.clone()))
            .build()
            .expect("NIC");
        let pd = nic.alloc_pd().expect("domain");
        let queue = nic.create_queue(pd, QueueConfig::default()).expect("queue");
        let view = GpuView::new(&memory, BASE, Layout::Mixed(3));
        nic.map(view.table()).expect("map");
        nic.register(pd, BASE, MEMORY, Access::LOCAL)
            .expect("region");
        let mut p = Play {
            wire,
            memory,
            nic,
            queue,
            comms: Vec::new(),
            now: 1,
            posted: Vec::new(),
        };
        p.view().write(BASE, &[0x11; OUT as usize]);
        p.view()
            .write(GpuVa(BASE.0 + GUARD), &[0x77; (MEMORY - GUARD) as usize]);
        p.steps(1);
        p
    }

    pub fn view(&self) -> GpuView<'_> {
        GpuView::new(&self.memory, BASE, Layout::Mixed(3))
    }

    pub fn steps(&mut self, n: u32) {
        for _ in 0..n {
            self.nic.step_at(NicTime(self.now));
            self.now += 1000;
        }
    }

    pub fn join(&mut self, ctx: u64, ranks: &[u8]) {
        let config = CommunicatorConfig {
            ctx,
            rank: 1,
            peers: ranks.iter().map(|h| address(*h)).collect(),
            settings: settings(),
        };
        let id = self.nic.create_communicator(&config);
        self.comms.push(id.expect("a number that is free"));
    }

    pub fn say(&self, stream: usize, bytes: &[u8]) {
        self.wire.with(|w| {
            let n = w.streams.len();
            if n > 0 {
                let s = &mut w.streams[stream % n];
                // A peer is held back by its window.
                if s.open && s.inbox.len() < 1 << 20 {
                    s.inbox.extend(bytes);
                }
            }
        });
    }

    /// Announces that a rank has made a communicator, as a correct peer does.
    pub fn joins(&self, stream: usize, rank: u16, ctx: u64, ranks: u64) {
        // The hash of the settings is taken from what the NIC itself has said.
        let told = self
            .wire
            .with(|w| w.hashes.iter().find(|h| h.0 == ctx).copied());
        let (_, hash) = told.expect("the NIC has joined");
        self.say(stream, &header(2, rank, 2, [ctx, ranks, 128, hash]));
    }

    /// Host `from` connects and sends its address.
    pub fn calls(&self, from: u8) -> usize {
        let stream = self.wire.with(|w| w.call(from));
        let ip = u32::from(*address(from).ip());
        self.say(stream, &header(1, 0, ip, [PORT.into(), 0, 0, 0]));
        stream
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let kinds = [
            K::AllReduce,
            K::Recv,
            K::Send,
            K::Broadcast,
            K::Barrier,
            K::AllGather,
            K::Reduce,
            K::AllToAll,
        ];
        let kind = kinds[input.byte() as usize % kinds.len()];
        let mut spec = CollectiveSpec::new(kind);
        (spec.dtype, spec.op) = (DataType::U32, ReduceOp::Sum);
        if input.byte().is_multiple_of(2) && kind == K::AllReduce {
            spec.algo = Algorithm::Ring;
        }
        let message = matches!(kind, K::Send | K::Recv);
        let b = input.byte();
        let (root, tag) = match b {
            _ if kind == K::Recv && b >= 200 => (ANY_RANK, ANY_TAG),
            _ if message => (u32::from(b % 2) * 2, u32::from(b % 4)),
            _ => (u32::from(b % 3), 0),
        };
        let (imm, len) = spec.encode();
        let comm = self.comms[usize::from(input.byte()) % self.comms.len()];
        let d = Descriptor {
            session: comm.session(),
            local_va: BASE,
            // A range that no other operation uses at the time, as long as there is room.
            remote_va: GpuVa(BASE.0 + OUT + (self.posted.len() as u64 % 16) * 8192),
            operand: [0, 1, 5, 32, 33, 200, 600][usize::from(input.byte()) % 7],
            rkey: Rkey(root),
            lkey: Lkey(tag),
            imm,
            len,
            timeout_us: DEADLINE_US,
            ..Descriptor::new(Opcode::Collective)
        };
        if let Some(ticket) = self.queue.try_post(&d) {
            self.posted.push(ticket);
        }
    }

    /// One thing that happens.
    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let stream = usize::from(input.byte());
        match what % 32 {
            // A frame, with its payload more often than not.
            0..=17 => {
                let kind = 1 + input.byte() % 16;
                let from = if what.is_multiple_of(5) {
                    input.byte() % 4
                } else {
                    (stream % 2) as u8 * 2
                };
                let a = input.number() as u32;
                let ctx = match input.byte() {
                    0..=149 => 7,
                    150..=229 => 8,
                    _ => input.number(),
                };
                let tag = match input.byte() {
                    // User messages, and those of operations (sequence, segment, index).
                    0..=99 => (1 << 63) | (input.number() % 4),
                    100..=229 => ((input.number() % 4) << 41) | (input.number() % 8),
                    _ => input.word(),
                };
                let len = match input.byte() {
                    b @ 0..=199 => u64::from(b) * 4,
                    _ => input.number(),
                };
                let mut bytes = header(
                    kind,
                    from.into(),
                    a,
                    [ctx, tag, len, input.number() << 32 | input.number()],
                );
                if matches!(kind, 3 | 6) && len < 4096 && !what.is_multiple_of(7) {
                    bytes.resize(bytes.len() + len as usize, 0x5a);
                }
                self.say(stream, &bytes);
            }
            18 => {
                let bytes: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
                self.say(stream, &bytes);
            }
            19..=23 => self.post(input),
            24 => {
                let n = u32::from(input.byte());
                self.steps(1 + n % 64);
            }
            25 => self.now += MS << (input.byte() % 4),
            26 => self.wire.with(|w| {
                let n = w.streams.len().max(1);
                if let Some(s) = w.streams.get_mut(stream % n) {
                    s.fin = true;
                }
            }),
            27 => self.wire.with(|w| {
                if !w.streams.is_empty() {
                    w.reset(stream % w.streams.len());
                }
            }),
            28 => {
                let from = if stream.is_multiple_of(2) { 1 } else { 3 };
                if self.wire.with(|w| w.streams.len() < 64) {
                    self.calls(from);
                }
            }
            29 => self.hold(stream, true),
            30 => self.hold(stream, false),
            _ => {
                let i = usize::from(input.byte());
                if let Some(ticket) = self.posted.get(i % self.posted.len().max(1)) {
                    let _ = self.nic.cancel(self.queue.id(), *ticket);
                }
            }
        }
        self.steps(u32::from(what / 32));
    }

    fn hold(&self, stream: usize, holds: bool) {
        self.wire.with(|w| {
            let n = w.streams.len().max(1);
            let i = stream % n;
            let Some(s) = w.streams.get_mut(i) else {
                return;
            };
            s.holds = holds;
            s.written += usize::from(!holds);
            if !holds {
                for work in std::mem::take(&mut s.held) {
                    let bytes = match work.payload {
                        Payload::Memory(b) => b.len.into(),
                        Payload::Inline { len, .. } => len.into(),
                    };
                    w.events.push_back(TransportEvent::SendDone {
                        conn: ConnId(i as u32),
                        token: work.token,
                        status: Status::Ok,
                        bytes,
                        detail: 0,
                    });
                }
            }
        });
    }

    /// All that was posted ends.
    pub fn end(&mut self) {
        for _ in 0..400 {
            self.steps(4);
            self.now += MS;
        }
        let done = |ticket: &u32| self.queue.poll(*ticket).is_some();
        let open = self.posted.iter().filter(|t| !done(t)).count();
        assert_eq!(
            open,
            0,
            "operations that never end:\n{}",
            self.nic.describe()
        );
        let mut guard = vec![0; (MEMORY - GUARD) as usize];
        self.view().read(GpuVa(BASE.0 + GUARD), &mut guard);
        assert!(
            guard.iter().all(|b| *b == 0x77),
            "memory that is no destination was written"
        );
        let mut sources = vec![0; OUT as usize];
        self.view().read(BASE, &mut sources);
        assert!(sources.iter().all(|b| *b == 0x11), "a source was written");
    }

    fn free(&mut self) {
        for id in std::mem::take(&mut self.comms) {
            self.nic.free_communicator(id).expect("known");
        }
        for _ in 0..400 {
            self.steps(2);
            self.now += MS;
        }
    }

    /// An operation without the others.
    fn works(&mut self) {
        let config = CommunicatorConfig {
            ctx: 1 << 40,
            rank: 0,
            peers: vec![address(2)],
            settings: CollectiveSettings {
                // All but what is always kept: what the others had has come back.
                scratch_bytes: 512 << 10,
                ..settings()
            },
        };
        let id = self
            .nic
            .create_communicator(&config)
            .expect("NIC memory is free again");
        let mut spec = CollectiveSpec::new(K::AllReduce);
        (spec.dtype, spec.op) = (DataType::U32, ReduceOp::Sum);
        let (imm, len) = spec.encode();
        let ticket = self.queue.try_post(&Descriptor {
            session: id.session(),
            local_va: BASE,
            remote_va: GpuVa(BASE.0 + OUT),
            operand: 100,
            imm,
            len,
            timeout_us: DEADLINE_US,
            ..Descriptor::new(Opcode::Collective)
        });
        let ticket = ticket.expect("room");
        self.steps(100);
        let c = self.queue.poll(ticket).expect("alone");
        assert_eq!(c.status, Status::Ok);
    }
}

/// Plays an input. `joined`: the hostile peers are members that have joined in order, and lie after
/// that.
pub fn play(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut p = Play::new();
    p.join(7, &[1, 2, 3]);
    p.join(8, &[1, 2]);
    p.steps(8);
    let sound = !input.byte().is_multiple_of(8);
    if sound {
        // Host 1 connects to us; we have connected to host 3.
        let caller = p.calls(1);
        p.steps(8);
        for (stream, rank, ctx, ranks) in [(caller, 0, 7, 3), (caller, 0, 8, 2), (0, 2, 7, 3)] {
            p.joins(stream, rank, ctx, ranks);
        }
        p.steps(8);
    }
    if sound {
        for id in &p.comms {
            let s = p.nic.communicator_status(*id).expect("known");
            assert_eq!(s, CommStatus::Ready);
        }
    }
    for _ in 0..200 {
        if input.0.is_empty() {
            break;
        }
        p.act(&mut input);
    }
    p.end();
    p.free();
    p.works();
}
