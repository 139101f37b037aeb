//! [`Nic`]: a NIC and the GPU beside it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(feature = "cuda")]
use ringbell_cuda_kernels::cuda::CudaGpu;
use ringbell_cuda_kernels::{Gpu, GpuBuffer};
use ringbell_gtlb::Access;
use ringbell_mesh::Control;
use ringbell_nic_abi::{Event, PdId, Status};
use ringbell_nic_core::network::PortInfo;
use ringbell_nic_core::{
    Counters, HostQueue, NicError, NotDelivered, ProgressMode, QueueConfig, SessionInfo,
};

use crate::backend::Backend;
use crate::buffer::{AllocError, Allocation, DeviceBuffer, Plain};
use crate::debug::print_events;
use crate::machine;
use crate::nic_kind::NicKind;
use crate::open_error::OpenError;
use crate::options::NicOptions;
use crate::routes;
#[cfg(feature = "cuda")]
use crate::shared_pages::SharedPages;
use crate::spec::{Cidr, PortSpec, TransportSpec};

/// Calls on sockets that may wait at the same time.
const SOCKET_QUEUE: u32 = 1024;

/// A NIC with its GPU. Clones share it; dropping the last one ends every session.
#[derive(Debug, Clone)]
pub struct Nic {
    gpu: Gpu,
    #[cfg(feature = "cuda")]
    cuda: Option<CudaGpu>,
    #[cfg(feature = "cuda")]
    shared_pages: Arc<SharedPages>,
    backend: Arc<dyn Backend>,
    kind: NicKind,
    pd: PdId,
    queue: QueueConfig,
    ip: Cidr,
    port: PortSpec,
    transport: TransportSpec,
    progress: ProgressMode,
    /// The queue of host threads' sockets, made with the first of them.
    sockets: Arc<OnceLock<HostQueue>>,
    /// Of port `mesh`.
    routes: Option<Control>,
}

impl Nic {
    /// Opens a NIC beside a GPU.
    pub(crate) fn with(
        options: NicOptions,
        kind: NicKind,
        open: impl Fn(&NicOptions, &Gpu) -> Result<Arc<dyn Backend>, OpenError>,
    ) -> Result<Nic, OpenError> {
        print_events()?;
        // For communicators: it needs a descriptor, and later there may be none.
        let _ = machine::host();
        let chosen = options.gpu_choice.open(&options.gpu)?;
        if let Some(why) = &chosen.instead_of {
            tracing::info!(%why, "the emulated GPU is used");
        }
        let gpu = chosen.gpu;
        tracing::info!("{}", gpu.describe());
        let backend = open(&options, &gpu)?;
        let pd = backend.alloc_pd()?;
        let nic = Nic {
            gpu,
            #[cfg(feature = "cuda")]
            cuda: chosen.cuda,
            #[cfg(feature = "cuda")]
            shared_pages: Arc::default(),
            backend,
            kind,
            pd,
            queue: options.queue,
            ip: options.ip,
            port: options.port,
            transport: options.transport,
            progress: options.progress,
            sockets: Arc::default(),
            routes: options.mesh.control.get().cloned(),
        };
        tracing::info!("{}", nic.describe());
        Ok(nic)
    }

    /// Ends the NIC now, for all its clones: waiting operations retire with `SHUTTING_DOWN`, open
    /// sessions are reset, and what was sent on closed or half-closed ones is delivered if it can
    /// be. Dropping the last one does the same, and only logs undelivered data.
    ///
    /// # Errors
    /// [`NotDelivered`]: data that was reported as sent and has not arrived within `limits.linger`.
    pub fn close(&self) -> Result<(), NotDelivered> {
        self.backend.close()
    }

    /// The GPU, to launch kernels on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The CUDA GPU, when it is a real one: to adopt memory that other code allocated.
    #[cfg(feature = "cuda")]
    pub fn cuda(&self) -> Option<&CudaGpu> {
        self.cuda.as_ref()
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn shared_pages(&self) -> &Arc<SharedPages> {
        &self.shared_pages
    }

    /// The control path below: calls that no method here offers.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// What implements it.
    pub fn kind(&self) -> NicKind {
        self.kind
    }

    /// Settings, transports, counters, and per session its transport and the reason, as text.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Counters of commands and DMA since it was opened.
    pub fn counters(&self) -> Counters {
        self.backend.counters()
    }

    /// The oldest unread event: faults of the wire, of peers and of kernels.
    pub fn poll_event(&self) -> Option<Event> {
        self.backend.poll_event()
    }

    /// Every port, by number, with its MTU and what went through it.
    pub fn ports(&self) -> Vec<PortInfo> {
        self.backend.ports()
    }

    /// Which wires of a mesh are missing on every way to the peer of an operation that has ended
    /// with this status and detail. `None`: it was not `HOST_UNREACHABLE`, or no port knows. Errors
    /// of host threads have it in their text; what kernels report
    /// ([`GpuResult`](crate::GpuResult)) has no room for it.
    pub fn missing_wires(&self, status: Status, detail: u64) -> Option<String> {
        // IP address << 16 | port, by the contract.
        let peer = Ipv4Addr::from((detail >> 16) as u32);
        let is_meant = status == Status::HostUnreachable;
        is_meant.then(|| self.backend.no_way(peer)).flatten()
    }

    /// Every open session, of host threads and of kernels.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.backend.sessions()
    }

    /// Has all NICs of the mesh forward by the tables of a file, as `ringbell routes NETWORK --json
    /// FILE` writes it, while they run (SMI §4.3). One NIC calls it, and the others follow: all
    /// change or none does. Packets that are on their way go on by the tables by which they were
    /// sent, on channels of their own. The other nodes have `patience` to hold the new tables.
    ///
    /// # Errors
    /// [`RoutesError`](crate::nic::RoutesError): the proof does not hold, a node refuses, or has
    /// not answered in time.
    pub fn replace_routes(
        &self,
        file: impl AsRef<Path>,
        patience: Duration,
    ) -> Result<(), routes::RoutesError> {
        let control = self.routes.as_ref().ok_or(routes::RoutesError::NoMesh)?;
        let text = routes::read(file.as_ref())?;
        routes::replace(control, text, patience, || {
            self.backend.step();
        })
    }

    /// Waits until nothing is under way, so that what was sent and closed is delivered; returns
    /// whether it was in time.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.backend.flush(timeout)
    }

    /// Who steps it when no kernel waits.
    pub fn progress(&self) -> ProgressMode {
        self.progress
    }

    /// The protection domain of its queues and memory.
    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }

    /// Its address and network.
    pub fn ip(&self) -> Cidr {
        self.ip
    }

    /// Transports that it offers and tries.
    pub fn transport(&self) -> TransportSpec {
        self.transport
    }

    /// The first port, as it was asked for; [`Nic::ports`] has all of them as they are.
    pub fn port(&self) -> &PortSpec {
        &self.port
    }

    /// Allocates GPU memory for `len` elements that kernels may send from and receive into. Its
    /// contents are undefined, as those of `cudaMalloc`: a reused block keeps its bytes.
    ///
    /// # Errors
    /// [`AllocError`]: the GPU is full, or a limit of the NIC was reached.
    pub fn alloc<T: Plain>(&self, len: u64) -> Result<DeviceBuffer<T>, AllocError> {
        self.alloc_with(len, Access::COLLECTIVE)
    }

    /// As [`Nic::alloc`], in memory of the host that a real GPU's kernels fill over the bus: for
    /// the slots of a data mover, which the NIC then reaches without the GPU's copy engine.
    ///
    /// # Errors
    /// As [`Nic::alloc`].
    pub fn alloc_pinned<T: Plain>(&self, len: u64) -> Result<DeviceBuffer<T>, AllocError> {
        let memory = self.gpu.alloc_pinned(bytes_of::<T>(len))?;
        self.own(memory, Access::COLLECTIVE)
    }

    /// As [`Nic::alloc`], with these rights.
    pub(crate) fn alloc_with<T>(
        &self,
        len: u64,
        access: Access,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        self.own(self.gpu.alloc(bytes_of::<T>(len))?, access)
    }

    fn own<T>(&self, memory: GpuBuffer, access: Access) -> Result<DeviceBuffer<T>, AllocError> {
        let pages = self.gpu.page_table(memory.va(), memory.len())?;
        let allocation = Allocation::new(&self.backend, self.pd, memory, &pages, access)?;
        Ok(DeviceBuffer::new(allocation))
    }

    /// A new queue for kernels (or host threads) to post to.
    ///
    /// # Errors
    /// [`NicError`] when the limit of queues is reached.
    pub fn create_queue(&self) -> Result<HostQueue, NicError> {
        self.backend.create_queue(self.pd, self.queue)
    }

    /// The queue of host threads' sockets. Each call holds a slot while it waits.
    pub(crate) fn socket_queue(&self) -> Result<HostQueue, NicError> {
        if let Some(queue) = self.sockets.get() {
            return Ok(queue.clone());
        }
        let config = QueueConfig {
            depth: self.queue.depth.max(SOCKET_QUEUE),
            ..self.queue
        };
        let queue = self.backend.create_queue(self.pd, config)?;
        // Another thread may have been first; its queue serves as well.
        Ok(self.sockets.get_or_init(|| queue).clone())
    }
}

/// Bytes of `len` elements; more than any GPU has when they do not fit 64 bits, so that the GPU
/// refuses.
fn bytes_of<T>(len: u64) -> u64 {
    len.saturating_mul(size_of::<T>() as u64)
}
