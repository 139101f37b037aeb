//! One node: a whole NIC over RDMA, its memory and one queue.

use std::fmt::Display;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::testing::{GpuView, HostMemory, Layout};
use ringbell_gtlb::{Access, DmaMemory, MemoryRegion, PageTable};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Descriptor, GpuVa, Lkey, Opcode, PdId, Rkey,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommunicatorConfig};
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::Port;
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{HostQueue, Nic, NicConfig, ProgressMode, QueueConfig};

use crate::network::{ip, mac};
use crate::{Cluster, Failure};

const BASE: GpuVa = GpuVa(0x7_0000_0000);
/// On which the NICs serve collectives.
const SERVICE: u16 = 7117;
/// Pages of the memory, and so the unit of its length.
const PAGE: u64 = 2 << 20;

/// A node: a NIC in the communicator of all ranks.
pub(crate) struct Node {
    pub(crate) nic: Nic,
    pub(crate) pd: PdId,
    pub(crate) queue: HostQueue,
    pub(crate) comm: CommId,
}

/// Memory of a node's host.
pub(crate) struct Memory {
    memory: Arc<HostMemory>,
    layout: Layout,
}

/// The same with room for a source and a destination.
pub(crate) struct Operands {
    memory: Memory,
    half: u64,
}

fn address(rank: usize) -> SocketAddrV4 {
    SocketAddrV4::new(ip(rank), SERVICE)
}

/// Why a rank could not be made.
pub(crate) fn made(rank: usize) -> impl Fn(&dyn Display) -> Failure {
    move |e| Failure::Made {
        rank,
        why: e.to_string(),
    }
}

impl Node {
    /// A rank, whose NIC reaches nothing of its memory yet.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        memory: Arc<dyn DmaMemory>,
    ) -> Result<Node, Failure> {
        let made = made(rank);
        let config = NicConfig {
            ip: *address(rank).ip(),
            mac: mac(rank).0,
            progress: ProgressMode::Manual,
            ..NicConfig::default()
        };
        let net = Network::new(config.ip, 16, vec![port], &[]).map_err(|e| made(&e))?;
        let rdma = RdmaConfig {
            seed: cluster.seed.wrapping_add(rank as u64),
            timeout: Duration::from_micros(cluster.profile.retry_us),
            congestion: cluster.reaction.congestion_at(cluster.profile.link_gbps),
            selective: cluster.reaction.selective,
            ..RdmaConfig::default()
        };
        let rdma = RdmaTransport::new(&net, rdma).map_err(|e| made(&e))?;
        let nic = Nic::builder(config, memory);
        let nic = nic.transport(Box::new(rdma)).network(net).build();
        let nic = nic.map_err(|e| made(&e))?;
        let pd = nic.alloc_pd().map_err(|e| made(&e))?;
        let queue = nic.create_queue(pd, QueueConfig::default());
        let queue = queue.map_err(|e| made(&e))?;
        let comm = CommunicatorConfig {
            ctx: 7,
            rank: rank as u32,
            peers: (0..cluster.ranks).map(address).collect(),
            settings: CollectiveSettings {
                host_ranks: cluster.host_ranks,
                ..CollectiveSettings::default()
            },
        };
        let comm = nic.create_communicator(&comm).map_err(|e| made(&e))?;
        Ok(Node {
            nic,
            pd,
            queue,
            comm,
        })
    }

    /// Lets the NIC reach some of its memory, and peers as far as `access` says.
    pub(crate) fn register(
        &self,
        rank: usize,
        table: &PageTable,
        (base, bytes): (GpuVa, u64),
        access: Access,
    ) -> Result<MemoryRegion, Failure> {
        let made = made(rank);
        self.nic.map(table).map_err(|e| made(&e))?;
        let region = self.nic.register(self.pd, base, bytes, access);
        region.map_err(|e| made(&e))
    }

    /// Posts an operation of so many elements, from one address to another; `None` when the queue
    /// is full.
    pub(crate) fn post(
        &self,
        (kind, algo): (CollectiveKind, Algorithm),
        count: u64,
        [from, to]: [GpuVa; 2],
        timeout: Duration,
    ) -> Option<u32> {
        let mut spec = CollectiveSpec::new(kind);
        spec.algo = algo;
        let (imm, len) = spec.encode();
        self.queue.try_post(&Descriptor {
            session: self.comm.session(),
            local_va: from,
            remote_va: to,
            operand: count,
            rkey: Rkey(0),
            lkey: Lkey(0),
            imm,
            len,
            timeout_us: timeout.as_micros() as u32,
            ..Descriptor::new(Opcode::Collective)
        })
    }
}

impl Memory {
    /// A rank with so much memory.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        bytes: u64,
    ) -> Result<(Node, Memory), Failure> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let memory = HostMemory::unshared(bytes).map_err(|e| made(rank)(&e))?;
        let memory = Memory {
            memory: Arc::new(memory),
            layout: Layout::Mixed(rank as u64 + 3),
        };
        let dma = memory.memory.clone();
        let view = memory.view();
        let node = Node::new(rank, cluster, port, dma)?;
        node.register(rank, view.table(), (BASE, bytes), Access::LOCAL)?;
        drop(view);
        Ok((node, memory))
    }

    fn view(&self) -> GpuView<'_> {
        GpuView::new(&self.memory, BASE, self.layout)
    }

    /// The address of a byte.
    pub(crate) fn va(at: u64) -> GpuVa {
        GpuVa(BASE.0 + at)
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.view().write(Memory::va(at), bytes);
    }

    pub(crate) fn read(&self, at: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        self.view().read(Memory::va(at), &mut out);
        out
    }
}

impl Operands {
    /// A rank with operands of at most this many bytes, and their memory.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        most: u64,
    ) -> Result<(Node, Operands), Failure> {
        let half = half(most);
        let (node, memory) = Memory::new(rank, cluster, port, 2 * half)?;
        Ok((node, Operands { memory, half }))
    }

    /// Fills the source, and clears the destination.
    pub(crate) fn fill(&self, source: &[u8], result: u64) {
        self.memory.write(0, source);
        self.memory.write(self.half, &vec![0xff; result as usize]);
    }

    /// The destination.
    pub(crate) fn result(&self, bytes: u64) -> Vec<u8> {
        self.memory.read(self.half, bytes)
    }
}

fn half(most: u64) -> u64 {
    most.next_multiple_of(PAGE)
}

/// Where the destination of operands of at most so many bytes is.
pub(crate) fn destination(most: u64) -> GpuVa {
    Memory::va(half(most))
}
