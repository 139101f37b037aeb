//! [`Nic`], a program's handle of a NIC, and its builder.
#![allow(clippy::disallowed_methods)] // The control path waits, with deadlines on the host's clock.

mod closing;
mod compute;
mod describe;
mod host_buffer;
mod inbox;
mod memory;
mod nic_buffer;
mod not_delivered;
mod session_info;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringbell_gtlb::{DmaMemory, Mmu, MmuConfig};
use ringbell_nic_abi::bar::{Access as RegAccess, Reg};
use ringbell_nic_abi::{Event, PdId, QueueId, Status};

use crate::bar::{self, Bar, BarError, Registers, Target};
use crate::card::{CardBlocksError, CardCounts, Grants, MakeCard, MemoryBus, SharedCard, Sizes};
use crate::command::{Core, Counters};
use crate::config::{ConfigError, LocalConfig, NicConfig, ProgressMode};
use crate::host_queue::HostQueue;
use crate::memory::nic_memory::NicMemory;
use crate::network::{Network, NetworkError, PortInfo};
use crate::progress::{Progress, ProgressStats};
use crate::queue::{Producers, QueueConfig, QueueMemory, SendQueue};
use crate::session::State;
use crate::transport::local::{LocalError, LocalTransport};
use crate::transport::Transport;
use crate::types::NicTime;
use crate::wake::WakeCell;

pub use compute::EngineResult;
pub use host_buffer::{HostBuffer, HostRegion};
pub use inbox::Inbox;
pub use nic_buffer::NicBuffer;
pub use not_delivered::NotDelivered;
pub use session_info::SessionInfo;

/// Why a NIC, a queue or a region could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The GTLB's sizes are wrong.
    #[error(transparent)]
    Gtlb(#[from] ringbell_gtlb::ConfigError),
    /// Ports or routes are wrong.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The `local` transport could not start.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// All queues are in use.
    #[error("all {limit} queues are in use; raise the setting `max_queues` (at most 512)")]
    TooManyQueues {
        /// The setting.
        limit: usize,
    },
    /// A card moves payloads, and the CPU does not map the GPU's memory.
    #[error("simulated hardware reaches the GPU's memory only where the CPU maps it; use the emulated GPU (RINGBELL_GPU=emulated)")]
    NotMapped,
    /// The card is not one of this contract.
    #[error("the card behind the NIC is refused: {0}")]
    Card(#[from] CardBlocksError),
    /// The card has no such queue.
    #[error("the card has {queues} queues of up to {slots} slots; use fewer, or shallower ones")]
    CardQueues {
        /// Its queues.
        queues: u32,
        /// Most slots of one.
        slots: u32,
    },
    /// The system refused memory or a descriptor.
    #[error("the system refused {what}: {source}; check `ulimit -n`, `ulimit -v` and free memory")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> NicError {
    move |source| NicError::System { what, source }
}

/// Memory that is refused is no wrong setting.
fn of_gtlb(e: ringbell_gtlb::ConfigError) -> NicError {
    match e {
        ringbell_gtlb::ConfigError::Memory { .. } => {
            system("memory for the GPU TLB")(std::io::ErrorKind::OutOfMemory.into())
        }
        e => NicError::Gtlb(e),
    }
}

/// Builder of a NIC.
pub struct NicBuilder {
    config: NicConfig,
    mmu: MmuConfig,
    memory: Arc<dyn DmaMemory>,
    local: Option<LocalConfig>,
    transports: Vec<Box<dyn Transport>>,
    network: Option<Network>,
    card: Option<MakeCard>,
}

impl std::fmt::Debug for NicBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicBuilder")
            .field("config", &self.config)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl NicBuilder {
    /// Sizes of the GTLBs.
    pub fn mmu(mut self, mmu: MmuConfig) -> NicBuilder {
        self.mmu = mmu;
        self
    }

    /// Reaches NICs of this host and user by the `local` transport, which comes first in policy
    /// order.
    pub fn local(mut self, local: LocalConfig) -> NicBuilder {
        self.local = Some(local);
        self
    }

    /// Adds a transport; the order of the calls is the policy order, after `local`.
    pub fn transport(mut self, transport: Box<dyn Transport>) -> NicBuilder {
        self.transports.push(transport);
        self
    }

    /// Gives the NIC its ports, for the transports that send packets.
    pub fn network(mut self, network: Network) -> NicBuilder {
        self.network = Some(network);
        self
    }

    /// Puts hardware behind the NIC: descriptors and payloads of its queues and transports pass it.
    pub fn card(mut self, card: MakeCard) -> NicBuilder {
        self.card = Some(card);
        self
    }

    /// Makes the NIC and starts its thread, if it has one.
    ///
    /// # Errors
    /// [`NicError`]: a setting, a size, or what the system refused.
    pub fn build(self) -> Result<Nic, NicError> {
        self.config.validate()?;
        let wake = WakeCell::new().map_err(system("a wake descriptor"))?;
        let nic_memory =
            NicMemory::new(self.config.nic_memory_bytes).map_err(system("NIC memory"))?;
        let mut transports = self.transports;
        if let Some(local) = self.local {
            local.validate_with(&self.config)?;
            let mut exports = self.memory.exports();
            exports.extend(nic_memory.export());
            let t = LocalTransport::new(&local, self.config.ip, &exports, wake.clone())?;
            transports.insert(0, Box::new(t));
        }
        let mut fds = Vec::new();
        let network = match self.network {
            Some(network) => network,
            None => Network::new(self.config.ip, 32, Vec::new(), &[])?,
        };
        if network.ip() != self.config.ip {
            let why = format!("its network is for {}", network.ip());
            return Err(ConfigError { setting: "ip", why }.into());
        }
        let (of_ports, ports_wake) = network.poll_fds();
        let transports_wake = transports.iter_mut().all(|t| match t.packets() {
            Some(_) => ports_wake,
            None => !t.poll_fds().is_empty(),
        });
        let of_transports = transports.iter().flat_map(|t| t.poll_fds());
        for fd in of_transports.chain(of_ports) {
            let fd = fd.try_clone_to_owned();
            fds.push(fd.map_err(system("a copy of a descriptor of a transport or port"))?);
        }
        let bar = Bar::new(&*self.memory).map_err(system("memory for the BAR"))?;
        let mode = self.config.progress;
        let mut core = Core::new(
            self.config.clone(),
            Mmu::new(self.mmu).map_err(of_gtlb)?,
            self.memory,
            nic_memory,
            transports,
            network,
        );
        if let Some(make) = self.card {
            let memory = core.memory.dma.memory.clone();
            let mapping = core.memory.dma.nic_memory.mapping();
            let grants = Grants::default();
            let bus = MemoryBus::new(memory, mapping, grants.clone()).ok_or(NicError::NotMapped)?;
            let hardware = SharedCard::new(make(Box::new(bus)), grants)?;
            if !core.attach(hardware) {
                let why = "it has no room for the payloads of the card's connections".into();
                let setting = "nic_memory_bytes";
                return Err(ConfigError { setting, why }.into());
            }
        }
        core.show_status_in(bar.clone());
        let progress = Arc::new(Progress::new(
            core,
            wake,
            fds,
            self.config.idle_nap,
            mode == ProgressMode::Dedicated,
            transports_wake,
        ));
        let spawn = |name: &str, body: fn(&Progress)| {
            let p = progress.clone();
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || body(&p))
                .map_err(system("a thread"))
        };
        let thread = match mode {
            ProgressMode::Waiter => Some(spawn("ringbell-progress", Progress::run_parked)?),
            ProgressMode::Dedicated => Some(spawn("ringbell-nic", Progress::dedicated)?),
            ProgressMode::Manual => None,
        };
        tracing::info!(ip = %self.config.ip, ?mode, "NIC up");
        Ok(Nic {
            inner: Arc::new(Inner {
                config: self.config,
                bar,
                progress,
                thread: Mutex::new(thread),
                ended: Mutex::new(false),
            }),
        })
    }
}

struct Inner {
    config: NicConfig,
    bar: Bar,
    progress: Arc<Progress>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The NIC was closed.
    ended: Mutex<bool>,
}

/// A NIC. Clones are handles of the same one; the last drop [closes](Nic::close) it: what waits
/// retires with `SHUTTING_DOWN`, and what was sent on sessions that were closed or half-closed is
/// delivered within [`linger`](NicConfig::linger).
#[derive(Clone)]
pub struct Nic {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nic({})", self.inner.config.ip)
    }
}

impl Nic {
    /// Starts to put a NIC together over a memory.
    pub fn builder(config: NicConfig, memory: Arc<dyn DmaMemory>) -> NicBuilder {
        NicBuilder {
            config,
            mmu: MmuConfig::default(),
            memory,
            local: None,
            transports: Vec::new(),
            network: None,
            card: None,
        }
    }

    /// The settings.
    pub fn config(&self) -> &NicConfig {
        &self.inner.config
    }

    pub(crate) fn core<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        self.inner.progress.with_core(f)
    }

    /// The cell that peers write to wake this NIC.
    #[cfg(test)]
    pub(crate) fn wake_cell(&self) -> Arc<WakeCell> {
        self.inner.progress.wake.clone()
    }

    /// Steps the NIC once unless another thread is at it. Returns whether anything moved. With
    /// [`ProgressMode::Dedicated`] that thread does all the work, and this makes room for it.
    pub fn step(&self) -> bool {
        if self.inner.progress.is_dedicated() {
            std::thread::yield_now();
            return false;
        }
        self.inner.progress.take_over();
        self.inner.progress.try_step() == Some(true)
    }

    /// Steps the NIC once at a time that the caller names, in place of the clock: virtual time.
    /// Only for a NIC that no other thread steps ([`ProgressMode::Manual`]), and always with times
    /// that do not run backwards. From then on the clock does not count: other steps are made at
    /// the last such time. Returns whether anything moved.
    pub fn step_at(&self, now: NicTime) -> bool {
        self.inner.progress.step_at(now)
    }

    /// Steps the NIC at a time, as [`step_at`](Nic::step_at), until nothing is left to do before a
    /// later time. Returns whether anything moved.
    pub fn run_at(&self, now: NicTime) -> bool {
        self.inner.progress.run_at(now)
    }

    /// When the NIC must be stepped next although nothing arrives.
    pub fn next_timer(&self) -> Option<NicTime> {
        self.core(|c| c.next_timer())
    }

    /// A new queue whose descriptors reach the regions of `pd`. It is given back when the last
    /// clone of its handle is dropped: what was posted is taken; sends of sessions get
    /// [`linger`](NicConfig::linger) to leave, and everything else that has not ended retires with
    /// `ABORTED`. The number is free for another queue when all has retired.
    ///
    /// # Errors
    /// [`NicError`]: the shape is wrong, or the limit of queues is reached; for queues that are being given back it waits for at
    /// most [`deregister_timeout`](NicConfig::deregister_timeout).
    pub fn create_queue(&self, pd: PdId, config: QueueConfig) -> Result<HostQueue, NicError> {
        config
            .check()
            .map_err(|(setting, why)| ConfigError { setting, why })?;
        let deadline = Instant::now() + self.config().deregister_timeout;
        let queue = loop {
            let (made, returned) = self.core(|c| {
                let returned = c.settle_queues();
                let made = self.make_queue(c, pd, &config);
                let again = made.is_err() && c.queues.are_closing();
                (made.map_err(|e| (e, again)), returned)
            });
            drop(returned);
            match made {
                Ok(queue) => break queue,
                Err((_, true)) if Instant::now() < deadline => {
                    if !self.step() {
                        std::thread::yield_now();
                    }
                }
                Err((error, _)) => return Err(error),
            }
        };
        self.inner
            .progress
            .has_queues
            .store(true, Ordering::Relaxed);
        self.inner.progress.kick();
        Ok(queue)
    }

    fn make_queue(
        &self,
        c: &mut Core,
        pd: PdId,
        config: &QueueConfig,
    ) -> Result<HostQueue, NicError> {
        let limit = self.inner.config.max_queues;
        let bar = self.inner.bar.clone();
        let place = c.queues.place(limit);
        let place = place.ok_or(NicError::TooManyQueues { limit })?;
        let (id, doorbell) = (QueueId(place.first), place.doorbell);
        if let Some(card) = &c.card {
            let Sizes { queues, slots, .. } = card.lock().sizes();
            if id.0 >= queues || config.depth > slots {
                return Err(NicError::CardQueues { queues, slots });
            }
        }
        let memory = c.memory.dma.memory.clone();
        let make = |producers| {
            QueueMemory::new(config, producers, bar.clone(), &*memory)
                .map(Arc::new)
                .map_err(system("memory for a queue"))
        };
        let kernels = make(Producers::Kernels { doorbell })?;
        let own = (!kernels.is_shared()).then(|| make(Producers::Host));
        let own = own.transpose()?;
        let host = id.0 + u32::from(own.is_some());
        let mut rings = Vec::new();
        for (number, memory) in (id.0..).zip(std::iter::once(&kernels).chain(&own)) {
            let mut ring = SendQueue::new(memory.clone(), pd, id, host, config);
            if let Some(card) = &c.card {
                ring.give_to(card.clone(), number);
            } else if !memory.is_shared() {
                ring.scatter = c.memory.scatter_slots(config.depth);
            }
            rings.push(ring);
        }
        c.queues.occupy(place, rings);
        let mem = own.unwrap_or_else(|| kernels.clone());
        let progress = self.inner.progress.clone();
        let hook: Weak<dyn ringbell_gtlb::WaitHook> = Arc::downgrade(&progress) as _;
        memory.on_wait(hook, &self.inner.config.ip.to_string());
        Ok(HostQueue::new(id, *config, mem, kernels, progress))
    }

    /// Ends the NIC now, for all its handles, as the last drop does. Waiting operations retire with
    /// `SHUTTING_DOWN`, as do all that are posted later; sessions that are open are reset. What was
    /// sent on sessions that were closed or half-closed is delivered, for as long as
    /// [`linger`](crate::NicConfig::linger) allows.
    ///
    /// # Errors
    /// [`NotDelivered`]: bytes reported as sent that have not arrived, in the NIC's whole life. The NIC has ended
    /// nevertheless, and a second call reports nothing.
    pub fn close(&self) -> Result<(), NotDelivered> {
        match self.inner.end() {
            lost if lost.is_empty() => Ok(()),
            streams => Err(NotDelivered { streams }),
        }
    }

    /// The oldest unread event.
    pub fn poll_event(&self) -> Option<Event> {
        self.core(|c| {
            let now = c.time.now;
            c.report.events.pop(now)
        })
    }

    /// Counters of the command and DMA layers.
    pub fn counters(&self) -> Counters {
        self.core(|c| c.counters())
    }

    /// What has passed the card; `None` without one.
    pub fn card_counts(&self) -> Option<CardCounts> {
        self.core(|c| Some(c.card.as_ref()?.lock().counts()))
    }

    /// Counts of the waiting policy.
    pub fn progress_stats(&self) -> ProgressStats {
        self.inner.progress.stats()
    }

    /// Whether operations or closed connections are still under way.
    pub fn is_active(&self) -> bool {
        self.core(|c| c.is_active())
    }

    /// Steps the NIC until nothing is under way: before a process ends, so that what was sent and
    /// closed is delivered. Returns whether it got there in time.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.is_active() {
            if Instant::now() >= deadline {
                return false;
            }
            if !self.step() {
                std::thread::yield_now();
            }
        }
        true
    }

    /// Aborts every session; every accepted descriptor retires with `ABORTED`.
    pub fn reset(&self) {
        self.core(|c| c.abort_all(Status::Aborted));
    }

    /// Every port, by number.
    pub fn ports(&self) -> Vec<PortInfo> {
        self.core(|c| c.streams.network.describe_ports())
    }

    /// Why no way leads to a NIC, by its address, where a port knows: the missing wires of a mesh.
    pub fn no_way(&self, nic: Ipv4Addr) -> Option<String> {
        self.core(|c| c.streams.network.no_way(nic))
    }

    /// Says at which socket of its host a NIC receives datagrams: [`Network::know_host`].
    pub fn know_host(&self, nic: Ipv4Addr, address: SocketAddr) {
        self.core(|c| c.streams.network.know_host(nic, address));
    }

    /// The short name of the NIC at an IPv6 address: [`Network::short_name`].
    pub fn short_name(&self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        self.core(|c| c.streams.network.short_name(ip))
    }

    /// The IPv6 address behind a short name: [`Network::behind_short_name`].
    pub fn behind_short_name(&self, name: Ipv4Addr) -> Option<Ipv6Addr> {
        self.core(|c| c.streams.network.behind_short_name(name))
    }

    /// Every open session.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.core(|c| {
            let transports = &c.streams.transports;
            let rows = c.streams.sessions.iter().map(|(id, s)| {
                let (state, t) = match &s.state {
                    State::Idle => ("idle", None),
                    State::Listening(_) => ("listening", None),
                    State::Connecting { transport, .. } => ("connecting", Some(*transport)),
                    State::Stream(x) if x.reset => ("reset", Some(x.transport)),
                    State::Stream(x) => ("established", Some(x.transport)),
                    State::Broken => ("broken", None),
                };
                SessionInfo {
                    id,
                    state,
                    transport: t.map(|t| transports[t].caps().name),
                    local: s.local.map(Into::into),
                    peer: s.peer.map(|peer| c.streams.network.shown(peer)),
                    tx_bytes: s.tx_bytes,
                    rx_bytes: s.rx_bytes,
                    why: s.why,
                }
            });
            rows.collect()
        })
    }

    /// The NIC's description as text: settings, transports, counters, and per session its transport
    /// and the reason.
    pub fn describe(&self) -> String {
        let communicators = self.communicators().into_iter();
        let facts = describe::Facts {
            config: self.config(),
            progress: self.progress_stats(),
            counters: self.counters(),
            nic_memory: self.nic_memory(),
            engines: self.engines(),
            communicators: communicators
                .filter_map(|id| self.communicator_info(id).ok())
                .collect(),
            sessions: self.sessions(),
        };
        self.core(|core| describe::describe(facts, core))
    }

    /// A name of the file that this NIC's BAR lies in, while the NIC lives: `CardBar::open` (of the
    /// crate `ringbell-card`) maps it as it maps a card's, from this process or, with the process's
    /// number in place of `self`, from another.
    pub fn bar_file(&self) -> std::path::PathBuf {
        self.inner.bar.file()
    }

    /// Reads a BAR word. Status registers are up to date.
    ///
    /// # Errors
    /// [`BarError`] when nothing is there.
    pub fn bar_read32(&self, offset: usize) -> Result<u32, BarError> {
        match bar::target(offset)? {
            Target::Reg(reg, _) => {
                if let Some(v) = self.core(|c| c.register_value(reg)) {
                    self.inner.bar.set(reg, v);
                    return Ok(v);
                }
            }
            Target::Header => {
                let word = self.core(|c| c.header_word(offset));
                return word.ok_or(BarError::NoRegister { offset });
            }
            Target::Doorbell => {}
        }
        Ok(self.inner.bar.load(offset))
    }

    /// Reads a word of the BAR of the hardware behind the NIC; `None` without hardware, or where it
    /// has no register.
    pub fn card_read32(&self, offset: usize) -> Option<u32> {
        self.core(|c| c.card.as_ref()?.lock().bar_read(offset))
    }

    /// Writes a BAR word; registers act at once.
    ///
    /// # Errors
    /// [`BarError`] names the fault; then nothing has changed.
    pub fn bar_write32(&self, offset: usize, value: u32) -> Result<(), BarError> {
        let reg = match bar::target(offset)? {
            Target::Doorbell => {
                self.inner.bar.store(offset, value);
                return Ok(());
            }
            Target::Header => return Err(BarError::Header { offset }),
            Target::Reg(reg, RegAccess::Ro) => return Err(BarError::ReadOnly { reg }),
            Target::Reg(reg, _) => reg,
        };
        match reg {
            Reg::Reset if value == 1 => self.reset(),
            Reg::Reset | Reg::MacLo | Reg::MacHi | Reg::Ipv4 => {
                return Err(BarError::BadValue {
                    reg,
                    value,
                    why: "RESET takes 1; addresses are settings of the NIC, fixed when it is made",
                })
            }
            // Plain memory, as for kernels.
            Reg::MailboxData => {}
            Reg::MailboxRing => {
                self.inner.bar.store(offset, value);
                self.core(Core::poll_mailbox);
            }
            _ => self.core(|c| c.memory.mmu.write_register(reg, value))?,
        }
        self.inner.bar.store(offset, value);
        Ok(())
    }
}

impl Registers for Nic {
    fn read_register(&self, reg: Reg) -> Result<u32, BarError> {
        self.bar_read32(reg.offset())
    }
    fn write_register(&self, reg: Reg, value: u32) -> Result<(), BarError> {
        self.bar_write32(reg.offset(), value)
    }
}
