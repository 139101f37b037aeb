//! Several NICs in one thread and virtual time: the ranks of a communicator.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

#[path = "../nic_support/mod.rs"]
pub mod nic;

use std::cell::RefCell;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use nic::BASE;
use nic::{Host, IwarpPorts, Setup, TempDir};
use ringbell_gtlb::testing::Layout as PageLayout;
use ringbell_gtlb::Access;
use ringbell_nic_abi::kernel_stream::{DATA_AT, HEAD_AT, STATE_AT, TAIL_AT};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Completion, DataType, Descriptor, GpuVa, Lkey,
    Opcode, ReduceOp, Rkey, Status, WireType,
};
use ringbell_nic_core::collective::{
    CollectiveSettings, CommStatus, CommunicatorConfig, HostRanks,
};
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::udp::UdpConfig;
use ringbell_nic_core::types::{CommId, NicTime};
use ringbell_nic_core::{HostBuffer, NicBuilder, NicConfig};

/// What carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Local,
    Tcp,
    /// TCP over a wire that loses this share of the frames, in percent.
    Lossy(u8, u64),
    /// TCP that notices silent peers, over a wire that loses and reorders this share of the frames.
    Probed(u8, u64),
    Rdma,
    /// RDMA over a wire that loses this share of the frames, in percent.
    LossyRdma(u8, u64),
    Udp,
    /// UDP over a wire that loses this share of the frames, in percent: collectives end by an
    /// error.
    LossyUdp(u8, u64),
    /// iWARP over the kernel's TCP, whose time is real.
    Iwarp,
}

pub const FABRIC_PORT: u16 = 7117;

/// No communicator has all its links.
pub fn lazy() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 512,
        eager_buffers: 2,
        scratch_bytes: 64 << 10,
        linked_ranks: 1,
        connect_timeout: Duration::from_millis(200),
        ..CollectiveSettings::default()
    }
}

/// A small generator (SplitMix64).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What a port has carried, in the format of pcapng.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<u8>>>);

impl Trace {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Write for Trace {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The frames that the switch takes, what peers may do, and limits of the NICs.
#[derive(Debug, Clone, Copy)]
pub struct Ether {
    pub mtu: usize,
    pub checksums: Checksums,
    pub access: Access,
    /// Bytes of a session that may be on the way; `None`: the default of each transport.
    pub window: Option<usize>,
    /// Most sessions of a NIC.
    pub sessions: usize,
    /// Memory whose operations end late, by this seed and the rank.
    pub slow: Option<u64>,
    /// No two pages of memory are neighbours on the bus.
    pub scattered: bool,
}

impl Default for Ether {
    fn default() -> Ether {
        Ether {
            mtu: 9000,
            checksums: Checksums::Omitted,
            access: Access {
                remote_write: true,
                ..Access::LOCAL
            },
            window: None,
            sessions: NicConfig::default().max_sessions,
            slow: None,
            scattered: false,
        }
    }
}

/// The ranks.
pub struct World {
    pub hosts: Vec<Option<Host>>,
    pub comms: Vec<CommId>,
    pub now: u64,
    site: Site,
}

/// Where the ranks' NICs are made.
struct Site {
    dir: TempDir,
    switch: Option<MemSwitch>,
    wire: Wire,
    memory: u64,
    ether: Ether,
}

pub fn address(rank: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8 + 1), FABRIC_PORT)
}

impl Site {
    /// The NIC of a rank. Of two lives at one address each has numbers of its own.
    fn host(
        &self,
        r: usize,
        life: u64,
        streams: Option<&mut IwarpPorts>,
        make: impl Fn(usize, NicBuilder) -> NicBuilder,
        at_port: impl Fn(usize, Box<dyn Port>) -> Box<dyn Port>,
    ) -> Host {
        let (wire, ether) = (self.wire, &self.ether);
        let seed = life << 32 | r as u64;
        let mut setup = Setup::new(&self.dir, r as u8 + 1);
        setup.memory_bytes = self.memory;
        // The direct path may store to peers' memory.
        setup.access = ether.access;
        setup.nic.max_sessions = ether.sessions;
        setup.slow = ether.slow.map(|seed| seed ^ r as u64);
        if let Some(window) = ether.window {
            setup.local.inline_window = window / 4;
            setup.local.early_window = window;
        }
        setup.layout = match ether.scattered {
            true => PageLayout::Scattered(r as u64 + 3),
            false => PageLayout::Mixed(r as u64 + 3),
        };
        if let Some(streams) = streams {
            return Host::with(&setup, |nic| make(r, streams.next(&setup, nic, true)));
        }
        let Some(sw) = &self.switch else {
            return Host::with(&setup, |nic| make(r, nic.local(setup.local.clone())));
        };
        let port = sw.port(r).expect("port");
        let mut config = TcpConfig {
            seed,
            rto_min: Duration::from_millis(20),
            ..TcpConfig::default()
        };
        if matches!(wire, Wire::Probed(..)) {
            config.keep_alive = Some(Duration::from_millis(20));
            config.user_timeout = Some(Duration::from_millis(100));
        }
        if let Some(window) = ether.window {
            (config.rx_buffer, config.tx_buffer) = (window, window);
        }
        let port: Box<dyn Port> = match wire {
            Wire::Lossy(percent, seed)
            | Wire::Probed(percent, seed)
            | Wire::LossyRdma(percent, seed)
            | Wire::LossyUdp(percent, seed) => {
                let share = f64::from(percent) / 100.0;
                let reorder = matches!(wire, Wire::Probed(..));
                let faults = Faults {
                    loss: share,
                    reorder: if reorder { share } else { 0.0 },
                    reorder_by: Duration::from_micros(20),
                    seed: seed + r as u64,
                    ..Faults::default()
                };
                Box::new(Impair::new(Box::new(port), faults).expect("faults"))
            }
            _ => Box::new(port),
        };
        let port = at_port(r, port);
        if matches!(wire, Wire::Rdma | Wire::LossyRdma(..)) {
            let mut config = RdmaConfig {
                seed,
                timeout: Duration::from_millis(1),
                ..RdmaConfig::default()
            };
            if let Some(window) = ether.window {
                (config.rx_buffer, config.tx_buffer) = (window, window);
                config.window = window;
            }
            return Host::with(&setup, |nic| {
                make(r, nic::with_rdma(&setup, nic, port, config))
            });
        }
        if matches!(wire, Wire::Udp | Wire::LossyUdp(..)) {
            let mut config = UdpConfig {
                seed,
                first: Some(u32::MAX - 20),
                ..UdpConfig::default()
            };
            config.rx_buffer = ether.window.unwrap_or(config.rx_buffer);
            return Host::with(&setup, |nic| {
                make(r, nic::with_udp(&setup, nic, port, config))
            });
        }
        Host::with(&setup, |nic| {
            make(r, nic::with_tcp(&setup, nic, port, config))
        })
    }
}

impl World {
    pub fn new(ranks: usize, wire: Wire, settings: &CollectiveSettings) -> World {
        let mut w = World::unjoined(ranks, wire, 16 << 20);
        w.comms = w.communicator(7, &(0..ranks).collect::<Vec<_>>(), settings);
        w
    }

    /// Ranks that have met; `None` when their communicator ended before.
    pub fn joined(ranks: usize, wire: Wire, settings: &CollectiveSettings) -> Option<World> {
        let mut w = World::unjoined(ranks, wire, 16 << 20);
        let members: Vec<_> = (0..ranks).collect();
        w.comms = w.begin_communicator(7, &members, settings);
        let status = |w: &World, r: usize| w.host(r).nic.communicator_status(w.comms[r]);
        let is_over = |s| matches!(s, Some(CommStatus::Ready | CommStatus::Aborted { .. }));
        w.until("end of the meeting", 40_000_000_000, |w| {
            (0..ranks).all(|r| is_over(status(w, r).ok()))
        });
        (0..ranks)
            .all(|r| matches!(status(&w, r), Ok(CommStatus::Ready)))
            .then_some(w)
    }

    /// NICs without a communicator.
    pub fn unjoined(ranks: usize, wire: Wire, memory: u64) -> World {
        World::with(ranks, wire, memory, |_, nic| nic)
    }

    /// The same, with what `make` adds to each rank's NIC.
    pub fn with(
        ranks: usize,
        wire: Wire,
        memory: u64,
        make: impl Fn(usize, NicBuilder) -> NicBuilder,
    ) -> World {
        World::over(ranks, wire, memory, make, |_, port| port)
    }

    /// NICs whose frames are recorded, each at its port.
    pub fn traced(ranks: usize, wire: Wire, memory: u64) -> (World, Vec<Trace>) {
        let traces = RefCell::new(Vec::new());
        let record = |_, port| -> Box<dyn Port> {
            let trace = Trace::default();
            traces.borrow_mut().push(trace.clone());
            Box::new(Capture::new(port, trace, Duration::ZERO).expect("a capture"))
        };
        let world = World::over(ranks, wire, memory, |_, nic| nic, record);
        (world, traces.into_inner())
    }

    /// The same, with other ports in the place of the switch's.
    pub fn over(
        ranks: usize,
        wire: Wire,
        memory: u64,
        make: impl Fn(usize, NicBuilder) -> NicBuilder,
        at_port: impl Fn(usize, Box<dyn Port>) -> Box<dyn Port>,
    ) -> World {
        World::on(ranks, wire, memory, make, at_port, Ether::default())
    }

    /// The same over another network.
    pub fn on(
        ranks: usize,
        wire: Wire,
        memory: u64,
        make: impl Fn(usize, NicBuilder) -> NicBuilder,
        at_port: impl Fn(usize, Box<dyn Port>) -> Box<dyn Port>,
        ether: Ether,
    ) -> World {
        let nics: Vec<_> = (0..ranks).map(|r| *address(r).ip()).collect();
        let at = Ipv4Addr::LOCALHOST.into();
        let mut streams = (wire == Wire::Iwarp).then(|| IwarpPorts::open(at, &nics));
        let switch = (!matches!(wire, Wire::Local | Wire::Iwarp))
            .then(|| MemSwitch::private(ranks.max(2), ether.mtu, ether.checksums).expect("switch"));
        let site = Site {
            dir: TempDir::new(),
            switch,
            wire,
            memory,
            ether,
        };
        let mut host = |r| Some(site.host(r, 0, streams.as_mut(), &make, &at_port));
        World {
            hosts: (0..ranks).map(&mut host).collect(),
            comms: Vec::new(),
            now: 0,
            site,
        }
    }

    /// A new NIC at the address of one that is gone. `life` counts those before it.
    pub fn again(
        &mut self,
        rank: usize,
        life: u64,
        make: impl Fn(usize, NicBuilder) -> NicBuilder,
        at_port: impl Fn(usize, Box<dyn Port>) -> Box<dyn Port>,
    ) {
        assert!(self.hosts[rank].is_none(), "the old one is gone");
        self.hosts[rank] = Some(self.site.host(rank, life, None, make, at_port));
    }

    /// Makes a communicator of some hosts and waits until it is ready.
    pub fn communicator(
        &mut self,
        ctx: u64,
        members: &[usize],
        settings: &CollectiveSettings,
    ) -> Vec<CommId> {
        let ids = self.begin_communicator(ctx, members, settings);
        self.until("a ready communicator", 10_000_000_000, |w| {
            let ready = |(h, id): (&usize, &CommId)| {
                let s = w.host(*h).nic.communicator_status(*id).expect("known");
                assert!(!matches!(s, CommStatus::Aborted { .. }), "{s:?}");
                s == CommStatus::Ready
            };
            members.iter().zip(&ids).all(ready)
        });
        ids
    }

    /// Settings that name no ranks of a host get hosts of two or more, where the ranks can be
    /// divided.
    pub fn begin_communicator(
        &mut self,
        ctx: u64,
        members: &[usize],
        settings: &CollectiveSettings,
    ) -> Vec<CommId> {
        let peers: Vec<_> = members.iter().map(|m| address(*m)).collect();
        let mut settings = settings.clone();
        if settings.host_ranks == HostRanks::default() {
            let ranks = members.len() as u32;
            let mut divisors = (2..ranks).filter(|m| ranks.is_multiple_of(*m));
            settings.host_ranks = divisors.next().unwrap_or(1).into();
        }
        let make = |(rank, h): (usize, &usize)| {
            let config = CommunicatorConfig {
                ctx,
                rank: rank as u32,
                peers: peers.clone(),
                settings: settings.clone(),
            };
            self.host(*h)
                .nic
                .create_communicator(&config)
                .expect("communicator")
        };
        members.iter().enumerate().map(make).collect()
    }

    pub fn host(&self, rank: usize) -> &Host {
        self.hosts[rank].as_ref().expect("alive")
    }

    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// One step of every NIC; time passes when nothing moves.
    pub fn step(&mut self) -> bool {
        let now = NicTime(self.now);
        let moved = self
            .hosts
            .iter()
            .flatten()
            .fold(false, |m, h| h.nic.step_at(now) | m);
        self.now += if moved { 500 } else { 20_000 };
        moved
    }

    /// Steps until `done`, at most `limit` nanoseconds.
    pub fn until(&mut self, what: &str, limit: u64, done: impl Fn(&World) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            self.step();
            if self.now > end {
                let all = self.hosts.iter().flatten().map(|h| h.nic.describe());
                panic!("no {what} within {limit} ns:\n{}", all.collect::<String>());
            }
        }
    }

    /// Frees memory that peers have mapped. They release it when they are stepped, so another
    /// thread waits for them.
    pub fn free(&mut self, buffers: Vec<HostBuffer>) {
        std::thread::scope(|s| {
            let freeing = s.spawn(|| buffers.into_iter().try_for_each(HostBuffer::free));
            while !freeing.is_finished() {
                self.step();
            }
            freeing.join().expect("no panic").expect("the peers answer");
        });
    }

    /// Steps until all tickets have completed.
    pub fn settle(&mut self, tickets: &[(usize, u32)]) -> Vec<Completion> {
        let mut out: Vec<Option<Completion>> = vec![None; tickets.len()];
        let end = self.now + 120_000_000_000;
        while out.iter().any(Option::is_none) {
            self.step();
            for (slot, (r, t)) in out.iter_mut().zip(tickets) {
                if slot.is_none() {
                    *slot = self.host(*r).queue.poll(*t);
                }
            }
            if self.now > end {
                let infos = self.hosts.iter().enumerate().filter_map(|(r, h)| {
                    let id = self.comms.get(r)?;
                    Some(format!("{:#?}\n", h.as_ref()?.nic.communicator_info(*id)))
                });
                panic!("hung: {out:?}\n{}", infos.collect::<String>());
            }
        }
        out.into_iter().flatten().collect()
    }
}

/// A kernel's end of a stream, played by a test: one thread, no races.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    pub rank: usize,
    /// Offset in the memory of its host.
    pub at: u64,
    pub log2: u32,
}

impl Ring {
    /// An empty stream whose indices begin at `start`.
    pub fn new(w: &World, rank: usize, at: u64, log2: u32, start: u64) -> Ring {
        let r = Ring { rank, at, log2 };
        r.reset(w, start);
        r
    }

    /// As its owner does it: no failure, empty.
    pub fn reset(&self, w: &World, start: u64) {
        for (at, v) in [(HEAD_AT, start), (TAIL_AT, start), (STATE_AT, 0)] {
            self.set(w, at, v);
        }
    }

    pub fn word(&self) -> u64 {
        (BASE.0 + self.at) | u64::from(self.log2)
    }

    pub fn get(&self, w: &World, at: u64) -> u64 {
        let b = w.host(self.rank).peek(self.at + at, 8);
        u64::from_le_bytes(b.try_into().expect("8 bytes"))
    }

    pub fn set(&self, w: &World, at: u64, v: u64) {
        w.host(self.rank).poke(self.at + at, &v.to_le_bytes());
    }

    /// What is in it.
    pub fn level(&self, w: &World) -> u64 {
        self.get(w, HEAD_AT).wrapping_sub(self.get(w, TAIL_AT))
    }

    /// Pushes what there is room for; returns how many bytes.
    pub fn push(&self, w: &World, bytes: &[u8]) -> usize {
        let (size, head) = (1u64 << self.log2, self.get(w, HEAD_AT));
        let n = bytes.len().min((size - self.level(w)) as usize);
        for (i, b) in bytes[..n].iter().enumerate() {
            let at = head.wrapping_add(i as u64) & (size - 1);
            w.host(self.rank).poke(self.at + DATA_AT + at, &[*b]);
        }
        self.set(w, HEAD_AT, head.wrapping_add(n as u64));
        n
    }

    /// Pops at most `most` bytes.
    pub fn pop(&self, w: &World, most: usize) -> Vec<u8> {
        let (size, tail) = (1u64 << self.log2, self.get(w, TAIL_AT));
        let n = most.min(self.level(w) as usize);
        let at = |i: usize| tail.wrapping_add(i as u64) & (size - 1);
        let of = |i| w.host(self.rank).peek(self.at + DATA_AT + at(i), 1)[0];
        let out = (0..n).map(of).collect();
        self.set(w, TAIL_AT, tail.wrapping_add(n as u64));
        out
    }
}

/// A collective, as posted.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub spec: CollectiveSpec,
    pub count: u64,
    pub root: u32,
    pub tag: u32,
    pub src: u64,
    pub dst: u64,
    pub timeout_us: u32,
}

impl Call {
    pub fn new(kind: CollectiveKind, count: u64) -> Call {
        Call {
            spec: CollectiveSpec::new(kind),
            count,
            root: 0,
            tag: 0,
            src: 0,
            dst: 8 << 20,
            timeout_us: 30_000_000,
        }
    }
    pub fn algo(mut self, algo: Algorithm) -> Call {
        self.spec.algo = algo;
        self
    }
    pub fn of(mut self, dtype: DataType, op: ReduceOp) -> Call {
        (self.spec.dtype, self.spec.op) = (dtype, op);
        self
    }
    pub fn wire(mut self, wire: WireType) -> Call {
        self.spec.wire = wire;
        self
    }
    pub fn root(mut self, root: u32) -> Call {
        self.root = root;
        self
    }
    pub fn tag(mut self, tag: u32) -> Call {
        self.tag = tag;
        self
    }
    pub fn at(mut self, src: u64, dst: u64) -> Call {
        (self.src, self.dst) = (src, dst);
        self
    }
    /// The source is this stream.
    pub fn of_ring(mut self, ring: &Ring) -> Call {
        (self.spec.from_stream, self.src) = (true, ring.word() - BASE.0);
        self
    }
    /// The destination is this stream.
    pub fn to_ring(mut self, ring: &Ring) -> Call {
        (self.spec.to_stream, self.dst) = (true, ring.word() - BASE.0);
        self
    }
    /// In the order of streams, for any operands of this rank.
    pub fn streamed(mut self) -> Call {
        self.spec.streamed = true;
        self
    }
    pub fn within(mut self, us: u32) -> Call {
        self.timeout_us = us;
        self
    }
    pub fn descriptor(&self, comm: CommId) -> Descriptor {
        let (imm, len) = self.spec.encode();
        Descriptor {
            session: comm.session(),
            local_va: GpuVa(BASE.0 + self.src),
            remote_va: GpuVa(BASE.0 + self.dst),
            operand: self.count,
            rkey: Rkey(self.root),
            lkey: Lkey(self.tag),
            imm,
            len,
            timeout_us: self.timeout_us,
            ..Descriptor::new(Opcode::Collective)
        }
    }
}

impl World {
    /// Posts a call on one rank.
    pub fn post(&self, rank: usize, call: &Call) -> u32 {
        self.host(rank).post(&call.descriptor(self.comms[rank]))
    }

    /// Posts a call on every rank and waits.
    pub fn call(&mut self, call: &Call) -> Vec<Completion> {
        let tickets: Vec<_> = (0..self.ranks()).map(|r| (r, self.post(r, call))).collect();
        self.settle(&tickets)
    }

    /// As [`World::call`], and all must succeed.
    pub fn run(&mut self, call: &Call) {
        for (r, c) in self.call(call).iter().enumerate() {
            assert_eq!(c.status, Status::Ok, "rank {r}: {c:?} in {call:?}");
        }
    }
}
