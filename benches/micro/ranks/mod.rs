//! The ranks of a communicator as NICs of this process over `local`, stepped in turn by one thread:
//! what is measured is the NICs' own work, without threads that wait.
#![allow(dead_code, unreachable_pub)] // Each bench uses a part of it.
#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

#[path = "../../../nic-core/tests/nic_support/mod.rs"]
pub mod nic;

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use nic::{over_sockets, Host, Setup, TempDir, BASE};
use ringbell_gtlb::testing::Layout;
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, DataType, Descriptor, GpuVa, Opcode, Status,
};
use ringbell_nic_core::collective::{
    CollectiveCounters, CollectiveSettings, CommStatus, CommunicatorConfig,
};
use ringbell_nic_core::types::CommId;

/// Bytes of each half of a rank's memory: sources, then results.
pub const HALF: u64 = 4 << 20;

/// The ranks.
pub struct World {
    pub hosts: Vec<Host>,
    pub comms: Vec<CommId>,
    _dir: TempDir,
}

/// What every rank's source holds at an element.
pub fn element(rank: usize, i: usize) -> f32 {
    (i % 1000) as f32 + rank as f32
}

fn setup(dir: &TempDir, rank: usize) -> Setup {
    let mut s = Setup::new(dir, rank as u8 + 1);
    s.memory_bytes = 2 * HALF;
    s.layout = Layout::Mixed(rank as u64 + 1);
    s.access.remote_write = true;
    s
}

impl World {
    /// Ranks that have met, each with sources of its own.
    pub fn new(ranks: usize) -> World {
        let dir = TempDir::new();
        let hosts = (0..ranks).map(|r| Host::new(&setup(&dir, r))).collect();
        World::of(hosts, dir)
    }

    /// Two ranks that have met by RoCEv2 over plain UDP sockets.
    pub fn over_sockets() -> World {
        let dir = TempDir::new();
        World::of(over_sockets([0, 1].map(|r| setup(&dir, r))).into(), dir)
    }

    fn of(hosts: Vec<Host>, dir: TempDir) -> World {
        let at = |h: &Host| SocketAddrV4::new(h.nic.config().ip, 7117);
        let peers: Vec<_> = hosts.iter().map(at).collect();
        let make = |(rank, h): (usize, &Host)| {
            let source: Vec<u8> = (0..HALF as usize / 4)
                .flat_map(|i| element(rank, i).to_le_bytes())
                .collect();
            h.poke(0, &source);
            let config = CommunicatorConfig {
                ctx: 1,
                rank: rank as u32,
                peers: peers.clone(),
                settings: CollectiveSettings::default(),
            };
            h.nic.create_communicator(&config).expect("communicator")
        };
        let comms: Vec<_> = hosts.iter().enumerate().map(make).collect();
        let start = Instant::now();
        let ready = |h: &Host, id: CommId| h.nic.communicator_status(id) == Ok(CommStatus::Ready);
        while !hosts.iter().zip(&comms).all(|(h, id)| ready(h, *id)) {
            for h in &hosts {
                h.nic.step();
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the ranks do not meet"
            );
        }
        World {
            hosts,
            comms,
            _dir: dir,
        }
    }

    /// Posts a collective on every rank and steps them until it has completed.
    pub fn call(&self, kind: CollectiveKind, algo: Algorithm, count: u64) {
        let mut spec = CollectiveSpec::new(kind);
        (spec.algo, spec.dtype) = (algo, DataType::F32);
        let (imm, len) = spec.encode();
        let mut open = [None; 16];
        let mut left = self.hosts.len();
        for ((h, id), slot) in self.hosts.iter().zip(&self.comms).zip(&mut open) {
            *slot = Some(h.post(&Descriptor {
                session: id.session(),
                local_va: BASE,
                remote_va: GpuVa(BASE.0 + HALF),
                operand: count,
                imm,
                len,
                ..Descriptor::new(Opcode::Collective)
            }));
        }
        while left > 0 {
            for (h, slot) in self.hosts.iter().zip(&mut open) {
                h.nic.step();
                if let Some(c) = slot.and_then(|t| h.queue.poll(t)) {
                    assert_eq!(c.status, Status::Ok, "{c:?}");
                    (*slot, left) = (None, left - 1);
                }
            }
        }
    }

    /// Program steps that all ranks have run.
    pub fn steps(&self) -> u64 {
        self.sum(|c| c.steps)
    }

    /// Operations that all ranks have run over the direct path.
    pub fn direct(&self) -> u64 {
        self.sum(|c| c.direct + c.direct_eager)
    }

    fn sum(&self, of: impl Fn(&CollectiveCounters) -> u64) -> u64 {
        let info = |(h, id): (&Host, &CommId)| h.nic.communicator_info(*id).expect("known");
        let ranks = self.hosts.iter().zip(&self.comms);
        ranks.map(|r| of(&info(r).counters)).sum()
    }

    /// Wrong elements of an all-reduce (sum) of `count`, over all ranks.
    pub fn wrong_sums(&self, count: usize) -> usize {
        let n = self.hosts.len();
        let want = |i: usize| (0..n).map(|r| element(r, i)).sum::<f32>();
        let of = |h: &Host| {
            let got = h.peek(HALF, count * 4);
            let got = got.chunks_exact(4).enumerate();
            got.filter(|(i, b)| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) != want(*i))
                .count()
        };
        self.hosts.iter().map(of).sum()
    }
}
