//! Tests of both transports over memory of the GPU, by each way that the NIC reaches it: the same
//! rules as over memory of the host. Under `RINGBELL_NIC=rtl` payloads and descriptors pass
//! simulated hardware (feature `rtl`).
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::test_gpu;
use crate::transport_rules;

use crate::driven;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use driven::{Driven, BASE};
use ringbell_cuda_kernels::{Gpu, GpuBuffer};
use ringbell_gtlb::{Access, PageTable};
use ringbell_nic_abi::{Descriptor, GpuVa, Opcode};
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::{
    HostQueue, LocalConfig, Nic, NicBuilder, NicConfig, ProgressMode, QueueConfig,
};
use transport_rules::Subject;

/// As much as the rules use.
const BYTES: u64 = 8 << 20;

/// Memory of a GPU.
enum Memory {
    Own(GpuBuffer),
    #[cfg(feature = "cuda")]
    Adopted(Adopted),
}

#[cfg(feature = "cuda")]
type Adopted = ringbell_cuda_kernels::cuda::AdoptedSlice<u8>;

impl Memory {
    fn va(&self) -> GpuVa {
        match self {
            Memory::Own(b) => b.va(),
            #[cfg(feature = "cuda")]
            Memory::Adopted(a) => a.memory().va(),
        }
    }

    fn table(&self, gpu: &Gpu) -> PageTable {
        match self {
            Memory::Own(b) => gpu.page_table(b.va(), BYTES).expect("allocated"),
            #[cfg(feature = "cuda")]
            Memory::Adopted(a) => a.memory().page_table(),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        match self {
            Memory::Own(b) => b.write(offset, bytes).expect("inside"),
            #[cfg(feature = "cuda")]
            Memory::Adopted(a) => a.memory().write(offset, bytes).expect("inside"),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Memory::Own(b) => b.read(offset, into).expect("inside"),
            #[cfg(feature = "cuda")]
            Memory::Adopted(a) => a.memory().read(offset, into).expect("inside"),
        }
    }
}

/// Puts simulated hardware behind a NIC where the environment asks for it.
#[cfg(feature = "rtl")]
fn with_hardware(nic: NicBuilder) -> NicBuilder {
    use ringbell_hw_sim::card::Card;
    match std::env::var("RINGBELL_NIC").as_deref() {
        Ok("rtl") => nic.card(Box::new(|bus| Box::new(Card::new(bus, 200)))),
        _ => nic,
    }
}

#[cfg(not(feature = "rtl"))]
fn with_hardware(nic: NicBuilder) -> NicBuilder {
    nic
}

/// A NIC beside a GPU, stepped by the test.
struct GpuHost {
    // Before the memory that they use.
    queue: HostQueue,
    nic: Nic,
    memory: Memory,
    _gpu: Gpu,
}

impl GpuHost {
    fn new(
        n: u8,
        (gpu, memory): (Gpu, Memory),
        add: impl FnOnce(NicBuilder) -> NicBuilder,
    ) -> Self {
        let config = NicConfig {
            ip: [10, 0, 0, n].into(),
            progress: ProgressMode::Manual,
            ..NicConfig::default()
        };
        let nic = with_hardware(add(Nic::builder(config, gpu.memory()))).build();
        let nic = nic.expect("a NIC");
        let pd = nic.alloc_pd().expect("a domain");
        let queue = nic.create_queue(pd, QueueConfig::default());
        nic.map(&memory.table(&gpu)).expect("pages");
        nic.register(pd, memory.va(), BYTES, Access::LOCAL)
            .expect("a region");
        GpuHost {
            queue: queue.expect("a queue"),
            nic,
            memory,
            _gpu: gpu,
        }
    }
}

impl Driven for GpuHost {
    fn nic(&self) -> &Nic {
        &self.nic
    }

    fn queue(&self) -> &HostQueue {
        &self.queue
    }

    fn post(&self, d: &Descriptor) -> u32 {
        let mut d = *d;
        if matches!(d.opcode, Opcode::Send | Opcode::Recv) && d.local_va.0 >= BASE.0 {
            d.local_va.0 += self.memory.va().0.wrapping_sub(BASE.0);
        }
        self.queue.try_post(&d).expect("room in the queue")
    }

    fn poke(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// A way to memory of the GPU; `None` where the GPU has no way different from the first.
type Way = fn() -> Option<(Gpu, Memory)>;

fn device() -> Option<(Gpu, Memory)> {
    let gpu = test_gpu::gpu();
    let memory = Memory::Own(gpu.alloc(BYTES).expect("room"));
    Some((gpu, memory))
}

fn pinned() -> Option<(Gpu, Memory)> {
    if !test_gpu::on_cuda() {
        return None;
    }
    let gpu = test_gpu::gpu();
    let memory = Memory::Own(gpu.alloc_pinned(BYTES).expect("room"));
    Some((gpu, memory))
}

#[cfg(feature = "cuda")]
fn adopted() -> Option<(Gpu, Memory)> {
    use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
    if !test_gpu::on_cuda() {
        return None;
    }
    let gpu = CudaGpu::open(CudaConfig::default()).expect("the GPU of CUDA");
    let stream = gpu.context().default_stream();
    let slice = stream.clone_htod(&vec![0_u8; BYTES as usize]);
    let adopted = gpu.adopt_slice(slice.expect("room")).expect("its own");
    Some((gpu.into(), Memory::Adopted(adopted)))
}

#[cfg(not(feature = "cuda"))]
fn adopted() -> Option<(Gpu, Memory)> {
    None
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn local(way: Way) -> Option<Subject<GpuHost>> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // Short: names of sockets are.
    let folder = std::env::temp_dir().join(format!("rb-gpu-{}-{number}", std::process::id()));
    let config = LocalConfig {
        directory: Some(folder.clone()),
        ..LocalConfig::default()
    };
    let host = |n| Some(GpuHost::new(n, way()?, |nic| nic.local(config.clone())));
    Some(Subject {
        hosts: [host(1)?, host(2)?],
        keep: Box::new(Folder(folder)),
    })
}

fn tcp(way: Way) -> Option<Subject<GpuHost>> {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("a switch");
    let host = |n: u8| {
        let port = switch.port(usize::from(n) - 1).expect("a port");
        let net = Network::new([10, 0, 0, n].into(), 24, vec![Box::new(port)], &[]);
        let net = net.expect("a host's address");
        let tcp = TcpTransport::new(&net, TcpConfig::default()).expect("a transport");
        Some(GpuHost::new(n, way()?, |nic| {
            nic.transport(Box::new(tcp)).network(net)
        }))
    };
    Some(Subject {
        hosts: [host(1)?, host(2)?],
        keep: Box::new(()),
    })
}

fn local_device() -> Option<Subject<GpuHost>> {
    local(device)
}

fn tcp_device() -> Option<Subject<GpuHost>> {
    tcp(device)
}

fn local_pinned() -> Option<Subject<GpuHost>> {
    local(pinned)
}

fn tcp_pinned() -> Option<Subject<GpuHost>> {
    tcp(pinned)
}

fn local_adopted() -> Option<Subject<GpuHost>> {
    local(adopted)
}

fn tcp_adopted() -> Option<Subject<GpuHost>> {
    tcp(adopted)
}

conformance! {
    local_from_and_to_the_gpu => super::local_device,
    tcp_from_and_to_the_gpu => super::tcp_device,
    local_from_and_to_pinned_memory => super::local_pinned,
    tcp_from_and_to_pinned_memory => super::tcp_pinned,
    local_from_and_to_memory_of_others => super::local_adopted,
    tcp_from_and_to_memory_of_others => super::tcp_adopted,
}
