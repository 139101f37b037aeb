//! Contexts, protection domains, memory regions and completion queues, as programs hold them.
#![allow(clippy::disallowed_methods)] // This is the edge: the clock is read here and passed down.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use ringbell_gtlb::Access;
use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use ringbell_nic_abi::{GpuVa, PdId};

use super::completions::{Armed, Channel, Cq};
use super::engine::{place, Engine};
use super::gid::{Features, Gid};
use super::shared::{Clock, Shared};
use super::types::{Completion, VerbsError, CQ_ENTRIES_MAX};
use memmap2::{MmapMut, MmapRaw};
use ringbell_gtlb::populate::populate;
use ringbell_net::port::roce::{RoceConfig, RoceError, RocePort};
use ringbell_net::port::{Medium, Port};
use ringbell_net::NicTime;

/// How a context is opened.
#[derive(Debug, Clone)]
pub struct ContextConfig {
    /// An address of this host. Packets carry it as their sender.
    pub address: IpAddr,
    /// The interface of a link-local address, by its number; else 0.
    pub scope: u32,
    /// UDP port; 0: a free one, which peers learn by the [`Gid`]. 4791 is the standard's, for peers
    /// that are other NICs: one context of an address can have it. The GID of an IPv6 address is
    /// the address itself and names no port, so it has port 4791, unless it is `::1` or link-local.
    pub port: u16,
    /// Largest IP packet, in bytes. `None`: what the way to each peer carries.
    pub mtu: Option<usize>,
    /// Packets to contexts of ours on this host carry an invariant CRC as well.
    pub icrc: bool,
    /// Longest payload of packets to contexts of ours, in KiB, 4 to 60; the standard's is 4.
    pub payload_kib: u8,
    /// Losses between this context and others of ours that have it are repaired selectively, and
    /// their pace follows the marks of switches. Else a loss repeats all packets behind it, as the
    /// standard has it.
    pub selective: bool,
}

impl Default for ContextConfig {
    /// A free port of 127.0.0.1, packets of up to 60 KiB without CRC over loopback, selective
    /// repeat.
    fn default() -> ContextConfig {
        ContextConfig {
            address: Ipv4Addr::LOCALHOST.into(),
            scope: 0,
            port: 0,
            mtu: None,
            icrc: false,
            payload_kib: 60,
            selective: true,
        }
    }
}

/// A context cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A payload of no such length.
    #[error("packets carry 4 to 60 KiB, not {kib} KiB")]
    Payload {
        /// As given.
        kib: u8,
    },
    /// An address whose GID names no UDP port.
    #[error("{address} has UDP port {ROCE_UDP_PORT} alone, not {port}: its GID is the address itself, which names no port; an IPv4 address, ::1 or a link-local one can have any")]
    UdpPort {
        /// As given.
        address: IpAddr,
        /// As given.
        port: u16,
    },
    /// The port cannot be opened.
    #[error(transparent)]
    Port(#[from] RoceError),
    /// A port that carries frames.
    #[error("port {port} carries Ethernet frames; a context needs one of datagrams, such as roce:127.0.0.1")]
    Frames {
        /// As it describes itself.
        port: String,
    },
    /// The system refuses a thread or a descriptor.
    #[error("the system refuses a thread or a descriptor: {0}")]
    System(#[from] std::io::Error),
    /// Tables of no such size.
    #[error(transparent)]
    Tables(#[from] ringbell_gtlb::ConfigError),
}

/// The machinery and its thread, if it has one, which ends with the last handle.
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pub(super) gid: Gid,
    pub(super) features: Features,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // It ends within a step.
            let _ = thread.join();
        }
    }
}

/// A NIC of verbs: an address, and all that is made in it. Clones are the same context; it ends
/// with the last handle of anything in it.
#[derive(Clone)]
pub struct Context {
    pub(super) owner: Arc<Owner>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("gid", &self.owner.gid)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a context: a UDP socket and a thread.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong.
    pub fn open(config: &ContextConfig) -> Result<Context, OpenError> {
        let address = config.address.to_canonical();
        let mut bind = SocketAddr::new(address, config.port);
        if !Gid::names_port(address) {
            match config.port {
                0 | ROCE_UDP_PORT => bind.set_port(ROCE_UDP_PORT),
                port => return Err(OpenError::UdpPort { address, port }),
            }
        }
        if let SocketAddr::V6(bind) = &mut bind {
            bind.set_scope_id(config.scope);
        }
        let mtu = config.mtu;
        let port = RocePort::open(&RoceConfig { bind, mtu })?;
        let start = Instant::now();
        let clock = move || NicTime(start.elapsed().as_nanos() as u64);
        let mut owner = Context::own(Box::new(port), config, Box::new(clock))?;
        let sockets = owner.shared.lock().descriptors()?;
        let shared = owner.shared.clone();
        let run = move || shared.run(&sockets);
        let thread = std::thread::Builder::new().name("ringbell-verbs".into());
        owner.thread = Some(thread.spawn(run)?);
        Ok(Context {
            owner: Arc::new(owner),
        })
    }

    /// Makes a context of a port, with a clock of the caller's and without a thread: polls and
    /// posts alone step it. So a run over a bad cable ([`impair`](ringbell_net::port::impair)) in
    /// virtual time can be repeated. Address, UDP port and MTU are the port's.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong.
    pub fn over(
        port: Box<dyn Port>,
        config: &ContextConfig,
        clock: impl Fn() -> NicTime + Send + Sync + 'static,
    ) -> Result<Context, OpenError> {
        let owner = Context::own(port, config, Box::new(clock))?;
        Ok(Context {
            owner: Arc::new(owner),
        })
    }

    fn own(port: Box<dyn Port>, config: &ContextConfig, clock: Clock) -> Result<Owner, OpenError> {
        let kib = config.payload_kib;
        if !(4..=60).contains(&kib) {
            return Err(OpenError::Payload { kib });
        }
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let features = Features {
            payload_kib: kib,
            without_icrc: !config.icrc,
            selective: config.selective,
        };
        let Medium::Udp(local) = port.capabilities().medium else {
            let port = port.describe();
            return Err(OpenError::Frames { port });
        };
        let engine = Engine::new((port, local), features, u64::from_ne_bytes(seed))?;
        let gid = engine.gid();
        Ok(Owner {
            shared: Arc::new(Shared::new(engine, clock)?),
            thread: None,
            gid,
            features,
        })
    }

    /// The context's address, which programs give to their peers.
    pub fn gid(&self) -> Gid {
        self.owner.gid
    }

    /// Packets that were dropped: malformed, or not from the peer of the queue pair that they name.
    pub fn ignored(&self) -> u64 {
        self.owner.shared.lock().tables.ignored
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Domain`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let id = self.owner.shared.lock().tables.memory.alloc_pd()?;
        let context = self.clone();
        Ok(ProtectionDomain {
            inner: Arc::new(Domain { context, id }),
        })
    }

    /// Makes a channel for completion events.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn create_channel(&self) -> Result<CompletionChannel, VerbsError> {
        let channel = Arc::new(Channel::new()?);
        Ok(CompletionChannel { channel })
    }

    /// Makes a completion queue of so many entries. `channel`: where its events go, and its name
    /// there.
    ///
    /// # Errors
    /// [`VerbsError::Range`].
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Result<CompletionQueue, VerbsError> {
        check_entries(entries)?;
        let channel = channel.map(|(c, name)| (c.channel.clone(), name));
        let mut engine = self.owner.shared.lock();
        let at = place(&mut engine.tables.cqs, Cq::new(entries, channel));
        drop(engine);
        Ok(CompletionQueue {
            inner: Arc::new(CqHandle {
                context: self.clone(),
                at,
            }),
        })
    }
}

fn check_entries(entries: u32) -> Result<(), VerbsError> {
    if (1..=CQ_ENTRIES_MAX).contains(&entries) {
        return Ok(());
    }
    Err(VerbsError::Range {
        what: "number of entries of a completion queue",
        value: entries.into(),
        limit: CQ_ENTRIES_MAX.into(),
    })
}

#[derive(Debug)]
struct Domain {
    context: Context,
    id: PdId,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Regions hold the domain, so it has none.
        let _ = self
            .context
            .owner
            .shared
            .lock()
            .tables
            .memory
            .free_pd(self.id);
    }
}

/// A protection domain: what its queue pairs reach are its regions. Clones are the same domain.
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
}

impl ProtectionDomain {
    pub(super) fn id(&self) -> PdId {
        self.inner.id
    }

    pub(super) fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(super) fn is(&self, other: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many regions, queue pairs and address handles use it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Allocates memory and registers it.
    ///
    /// # Errors
    /// [`VerbsError`]: no memory, no bytes, or rights that need local write access.
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let memory = MmapRaw::from(MmapMut::map_anon(len.max(1))?);
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        let region = self.add(at, at, len as u64, access)?;
        Ok(MemoryRegion {
            pd: self.clone(),
            region,
            memory: Some(memory),
        })
    }

    /// Registers memory of the program; peers name its bytes by addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays mapped while the region exists, and while it does, only accesses that may
    /// meet the NIC's are made: raw, volatile or atomic.
    ///
    /// # Errors
    /// [`VerbsError`]: a page that is missing or lacks a right, no bytes, or rights that need local write access.
    #[allow(unsafe_code)] // The caller keeps the memory mapped.
    pub unsafe fn register(
        &self,
        memory: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        populate(memory, len, access.local_write)?;
        let at = memory.expose_provenance() as u64;
        let region = self.add(at, iova, len as u64, access)?;
        Ok(MemoryRegion {
            pd: self.clone(),
            region,
            memory: None,
        })
    }

    fn add(
        &self,
        at: u64,
        iova: u64,
        len: u64,
        access: Access,
    ) -> Result<ringbell_gtlb::MemoryRegion, VerbsError> {
        let mut engine = self.inner.context.owner.shared.lock();
        let memory = &mut engine.tables.memory;
        Ok(memory.register_flat(self.id(), GpuVa(iova), len, access, at)?)
    }
}

/// Registered memory. When the handle goes, no queue pair touches the memory any more.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: ProtectionDomain,
    region: ringbell_gtlb::MemoryRegion,
    memory: Option<MmapRaw>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let mut engine = self.pd.inner.context.owner.shared.lock();
        let memory = &mut engine.tables.memory;
        // A peer may have invalidated it.
        if memory.begin_deregister(self.region.lkey).is_ok() {
            let _ = memory.finish_deregister(self.region.lkey);
        }
    }
}

impl MemoryRegion {
    /// Key for requests of this context.
    pub fn lkey(&self) -> u32 {
        self.region.lkey.0
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.region.rkey.0
    }

    /// First byte, as peers and requests name it.
    pub fn address(&self) -> u64 {
        self.region.va.0
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Whether it has none: never.
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// A piece of it.
    pub fn piece(&self, offset: u64, len: u32) -> super::Sge {
        super::Sge {
            address: self.address() + offset,
            len,
            lkey: self.lkey(),
        }
    }

    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        let memory = self.memory.as_ref().map(MmapRaw::as_mut_ptr);
        let base = memory
            .unwrap_or_else(|| panic!("the program has its own pointer to registered memory"));
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end as u64 <= self.len()),
            "{len} bytes from {offset} on lie outside of {} bytes",
            self.len()
        );
        base.wrapping_add(offset)
    }

    /// Copies bytes out of memory that [`ProtectionDomain::alloc`] made.
    ///
    /// # Panics
    /// Out of bounds, or of memory that was not made so.
    #[allow(unsafe_code)] // Peers may write the memory: it is never a slice.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.range(offset, to.len());
        // SAFETY: within the mapping (checked), which lives as long as the region.
        unsafe { ringbell_gtlb::copy::copy(to.as_mut_ptr(), from, to.len()) }
    }

    /// Copies bytes into memory that [`ProtectionDomain::alloc`] made.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[allow(unsafe_code)] // As above.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: as above.
        unsafe { ringbell_gtlb::copy::copy(to, bytes.as_ptr(), bytes.len()) }
    }
}

/// Where programs sleep for completions. The descriptor is readable while there are events.
#[derive(Debug, Clone)]
pub struct CompletionChannel {
    channel: Arc<Channel>,
}

impl CompletionChannel {
    /// Takes the next event: the name of its completion queue. Waits, unless the descriptor was set
    /// not to. A program that waits with a deadline polls the descriptor first.
    ///
    /// # Errors
    /// The system's.
    pub fn next(&self) -> std::io::Result<u64> {
        self.channel.next()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[derive(Debug)]
struct CqHandle {
    context: Context,
    at: usize,
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        let mut engine = self.context.owner.shared.lock();
        if let Some(cq) = engine.tables.cqs[self.at].take() {
            if let Some((channel, name)) = cq.channel {
                channel.forget(name);
            }
        }
    }
}

/// A completion queue. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    inner: Arc<CqHandle>,
}

impl CompletionQueue {
    pub(super) fn at(&self) -> usize {
        self.inner.at
    }

    pub(super) fn context(&self) -> &Context {
        &self.inner.context
    }

    /// How many queue pairs use it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Takes completions, oldest first, and returns how many. Without any, the context receives and
    /// sends once.
    ///
    /// # Errors
    /// [`VerbsError::Overrun`]: entries are lost.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, VerbsError> {
        self.inner.context.owner.shared.poll(self.inner.at, out)
    }

    /// The next completion (or the next solicited or failed one) raises an event on the queue's
    /// channel.
    ///
    /// # Errors
    /// [`VerbsError::Misuse`]: it has no channel.
    pub fn request_notification(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let shared = &self.inner.context.owner.shared;
        let mut engine = shared.lock();
        let cq = engine.tables.cq(self.inner.at);
        let cq = cq.filter(|cq| cq.channel.is_some());
        let cq = cq.ok_or(VerbsError::Misuse("the completion queue has no channel"))?;
        cq.armed = match solicited_only && cq.armed != Armed::Any {
            true => Armed::Solicited,
            false => Armed::Any,
        };
        drop(engine);
        shared.watch();
        Ok(())
    }

    /// Changes how many entries it has.
    ///
    /// # Errors
    /// [`VerbsError::Range`], and [`VerbsError::Full`] while more are waiting.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        check_entries(entries)?;
        let mut engine = self.inner.context.owner.shared.lock();
        let cq = engine.tables.cq(self.inner.at);
        match cq.is_some_and(|cq| cq.resize(entries)) {
            true => Ok(()),
            false => Err(VerbsError::Full {
                what: "completion queue",
                limit: entries,
            }),
        }
    }
}
