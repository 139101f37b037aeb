//! One node: a whole NIC over RDMA, its memory and one queue.

use std::fmt::Display;
use std::net::SocketAddrV4;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::testing::{each_part, HostMemory, Layout};
use ringbell_gtlb::{Access, BusError, DmaMemory, MemoryRegion, PageTable, PAGE_BYTES};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Descriptor, GpuVa, Lkey, Opcode, PdId, Rkey,
};
use ringbell_nic_core::collective::CommunicatorConfig;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::Port;
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{HostQueue, Nic, NicConfig, ProgressMode, QueueConfig};

use crate::network::{ip, mac};
use crate::pattern::{repeat, Pattern, PERIOD};
use crate::repeating::RepeatingMemory;
use crate::{Cluster, Failure, Kept};

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
    store: Store,
    table: PageTable,
}

/// How its bytes are kept.
enum Store {
    Whole(Arc<HostMemory>),
    Once(Arc<RepeatingMemory>),
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

/// Lets a NIC reach some of its memory.
fn reach(
    nic: &Nic,
    pd: PdId,
    rank: usize,
    table: &PageTable,
    (base, bytes): (GpuVa, u64),
    access: Access,
) -> Result<MemoryRegion, Failure> {
    let made = made(rank);
    nic.map(table).map_err(|e| made(&e))?;
    nic.register(pd, base, bytes, access).map_err(|e| made(&e))
}

impl Node {
    /// A rank, whose NIC reaches nothing of its memory yet but what it is given for partial
    /// results.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        memory: Arc<dyn DmaMemory>,
        scratch: Option<&PageTable>,
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
            udp_ports: cluster.reaction.udp_ports,
            ..RdmaConfig::default()
        };
        let rdma = RdmaTransport::new(&net, rdma).map_err(|e| made(&e))?;
        let nic = Nic::builder(config, memory);
        let nic = nic.transport(Box::new(rdma)).network(net).build();
        let nic = nic.map_err(|e| made(&e))?;
        let pd = nic.alloc_pd().map_err(|e| made(&e))?;
        let queue = nic.create_queue(pd, QueueConfig::default());
        let queue = queue.map_err(|e| made(&e))?;
        if let Some(table) = scratch {
            let range = (table.base, table.pages.len() as u64 * PAGE_BYTES);
            let region = reach(&nic, pd, rank, table, range, Access::LOCAL)?;
            let given = nic.give_scratch(pd, region.lkey, range);
            given.map_err(|e| made(&e))?;
        }
        let comm = CommunicatorConfig {
            ctx: 7,
            rank: rank as u32,
            peers: (0..cluster.ranks).map(address).collect(),
            settings: cluster.settings.clone(),
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
        reach(&self.nic, self.pd, rank, table, (base, bytes), access)
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

impl Store {
    fn new(rank: usize, kept: Kept, bytes: u64) -> Result<Store, Failure> {
        Ok(match kept {
            Kept::Once => Store::Once(Arc::new(RepeatingMemory::new(bytes))),
            Kept::Whole => {
                let memory = HostMemory::unshared(bytes).map_err(|e| made(rank)(&e))?;
                Store::Whole(Arc::new(memory))
            }
        })
    }

    fn dma(&self) -> (Arc<dyn DmaMemory>, u64) {
        match self {
            Store::Whole(m) => (m.clone(), m.bus()),
            Store::Once(m) => (m.clone(), m.bus()),
        }
    }

    fn read(&self, bus: u64, into: &mut [u8]) -> Result<(), BusError> {
        match self {
            Store::Whole(m) => m.peek(bus, into),
            Store::Once(m) => m.peek(bus, into),
        }
    }

    fn write(&self, bus: u64, from: &[u8]) -> Result<(), BusError> {
        match self {
            Store::Whole(m) => m.poke(bus, from),
            Store::Once(m) => m.poke(bus, from),
        }
    }

    /// Writes so many bytes of a pattern, which has begun `start` bytes before.
    fn fill(&self, bus: u64, len: u64, pattern: &Pattern, start: usize) -> Result<(), BusError> {
        match self {
            Store::Once(m) => m.fill(bus, len, pattern, start),
            Store::Whole(m) => {
                let mut bytes = vec![0; len as usize];
                repeat(pattern, start, &mut bytes);
                m.poke(bus, &bytes)
            }
        }
    }
}

/// Why no access of a mapped byte fails.
const MAPPED: &str = "the table holds pages of this memory only";

impl Memory {
    /// A rank with so much memory.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        kept: Kept,
        bytes: u64,
    ) -> Result<(Node, Memory), Failure> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // Partial results repeat as operands do.
        let own = match kept {
            Kept::Once => cluster.settings.scratch_bytes,
            Kept::Whole => 0,
        };
        let store = Store::new(rank, kept, bytes + own)?;
        let (dma, bus) = store.dma();
        let table = Layout::Mixed(rank as u64 + 3).table(BASE, bus, bytes);
        let scratch = Layout::Contiguous.table(Memory::va(bytes), bus + bytes, own);
        let scratch = (own > 0).then_some(&scratch);
        let node = Node::new(rank, cluster, port, dma, scratch)?;
        node.register(rank, &table, (BASE, bytes), Access::LOCAL)?;
        Ok((node, Memory { store, table }))
    }

    /// The address of a byte.
    pub(crate) fn va(at: u64) -> GpuVa {
        GpuVa(BASE.0 + at)
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        each_part(&self.table, Memory::va(at), bytes.len(), |bus, part| {
            self.store.write(bus, &bytes[part]).expect(MAPPED);
        });
    }

    pub(crate) fn read(&self, at: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        each_part(&self.table, Memory::va(at), out.len(), |bus, part| {
            self.store.read(bus, &mut out[part]).expect(MAPPED);
        });
        out
    }

    /// Fills bytes with a pattern.
    fn fill(&self, at: u64, bytes: u64, pattern: &Pattern) {
        each_part(&self.table, Memory::va(at), bytes as usize, |bus, part| {
            let filled = self.store.fill(bus, part.len() as u64, pattern, part.start);
            filled.expect(MAPPED);
        });
    }
}

impl Operands {
    /// A rank with operands of at most this many bytes, and their memory.
    pub(crate) fn new(
        rank: usize,
        cluster: &Cluster,
        port: Box<dyn Port>,
        kept: Kept,
        most: u64,
    ) -> Result<(Node, Operands), Failure> {
        let half = half(most);
        let (node, memory) = Memory::new(rank, cluster, port, kept, 2 * half)?;
        Ok((node, Operands { memory, half }))
    }

    /// Fills the source with a pattern, and clears the destination.
    pub(crate) fn fill(&self, pattern: &Pattern, [source, result]: [u64; 2]) {
        self.memory.fill(0, source, pattern);
        self.memory.fill(self.half, result, &[0xff; PERIOD]);
    }

    /// Adds something to an element of the source.
    #[cfg(test)]
    pub(crate) fn spoil(&self, at: u64, more: f32) {
        let element = self.memory.read(at, 4).try_into().expect("four bytes");
        let element = f32::from_le_bytes(element) + more;
        self.memory.write(at, &element.to_le_bytes());
    }

    /// Bytes of the destination.
    pub(crate) fn result(&self, bytes: Range<u64>) -> Vec<u8> {
        self.memory
            .read(self.half + bytes.start, bytes.end - bytes.start)
    }
}

fn half(most: u64) -> u64 {
    most.next_multiple_of(PAGE)
}

/// Where the destination of operands of at most so many bytes is.
pub(crate) fn destination(most: u64) -> GpuVa {
    Memory::va(half(most))
}
