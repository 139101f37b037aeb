//! [`Backend`]: what the SDK asks of a NIC.
//!
//! This is the control path. The data path does not pass here: [`Backend::create_queue`] gives a
//! [`HostQueue`] once, and what is posted to it goes straight to the queue's memory and doorbell.
#![allow(unsafe_code)] // Declares a registration of memory that lives elsewhere.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;

use ringbell_gtlb::{
    Access, DeregisterError, MapError, MemoryRegion, PageTable, PdError, RegisterError, UnmapError,
};
use ringbell_nic_abi::{EngineId, Event, GpuVa, Lkey, PdId, QueueId, SessionId};
use ringbell_nic_core::card::CardCounts;
use ringbell_nic_core::collective::{
    CancelError, CommError, CommInfo, CommStatus, CommunicatorConfig, ProgramError,
};
use ringbell_nic_core::engine::{Direction, EngineInfo, EngineUseError, Place, Return};
use ringbell_nic_core::network::PortInfo;
use ringbell_nic_core::progress::ProgressStats;
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{
    BarError, Counters, EngineResult, HostBuffer, HostQueue, HostRegion, Inbox, MemoryError,
    NicBuffer, NicError, NotDelivered, PointerInfo, QueueConfig, SessionInfo, Window,
};
use ringbell_onc_engines::program::Program;
use ringbell_onc_engines::stream::StreamEngine;

/// Makes an engine for each stream.
pub type EngineMaker = Box<dyn Fn() -> Box<dyn StreamEngine> + Send>;

/// Makes an engine for a kernel's parameter, or refuses it.
pub type EngineKind = Box<dyn Fn(u64) -> Option<Box<dyn StreamEngine>> + Send>;

/// The methods of [`Backend`], as input of the macro `$then`. One list serves the trait, the
/// software NIC and the tests' wrapper.
macro_rules! control_path {
    ($then:ident $($target:tt)*) => {
        $then! { [$($target)*]

        /// Settings, transports, counters and sessions as text.
        fn describe() -> String;
        /// Steps it once, unless another thread is at it; whether anything moved.
        fn step() -> bool;
        /// Steps it until nothing is under way; whether it got there in time.
        fn flush(timeout: Duration) -> bool;
        /// Ends it: waiting operations retire with `SHUTTING_DOWN`, and what was sent before is
        /// delivered if it can be.
        fn close() -> Result<(), NotDelivered>;
        /// The oldest unread event.
        fn poll_event() -> Option<Event>;
        /// Counters since it was opened.
        fn counters() -> Counters;
        /// What has passed its hardware; `None` where all of it is software.
        fn card_counts() -> Option<CardCounts>;
        /// Who has stepped it, and how often.
        fn progress_stats() -> ProgressStats;
        /// Every port, by number, with its counters.
        fn ports() -> Vec<PortInfo>;
        /// Why no way leads to a NIC's address, where a port knows: a mesh's missing wires.
        fn no_way(nic: Ipv4Addr) -> Option<String>;
        /// Says at which socket of its host a NIC receives datagrams.
        fn know_host(nic: Ipv4Addr, address: SocketAddr);
        /// The short name of the NIC at an IPv6 address; `None` without a port of IPv6, or without
        /// a name left.
        fn short_name(ip: Ipv6Addr) -> Option<Ipv4Addr>;
        /// The IPv6 address behind a short name.
        fn behind_short_name(name: Ipv4Addr) -> Option<Ipv6Addr>;
        /// Every open session.
        fn sessions() -> Vec<SessionInfo>;
        /// A file that maps its BAR.
        fn bar_file() -> PathBuf;
        /// A word of its BAR.
        fn bar_read32(offset: usize) -> Result<u32, BarError>;

        /// A word of the BAR of its hardware; `None` where all of it is software, or there is no
        /// register.
        fn card_read32(offset: usize) -> Option<u32>;

        /// A new protection domain.
        fn alloc_pd() -> Result<PdId, PdError>;
        /// Puts pages of the GPU into the GTLB.
        fn map(table: &PageTable) -> Result<(), MapError>;
        /// Takes pages out of the GTLB.
        fn unmap(va: GpuVa, len: u64) -> Result<(), UnmapError>;
        /// Registers mapped memory with a domain.
        fn register(pd: PdId, va: GpuVa, len: u64, access: Access) -> Result<MemoryRegion, RegisterError>;
        /// Ends a registration; returns when no DMA uses the memory.
        fn deregister(lkey: Lkey) -> Result<(), DeregisterError>;
        /// Allocates and registers host memory.
        fn alloc_host(pd: PdId, bytes: usize, access: Access) -> Result<HostBuffer, MemoryError>;
        /// Registers bytes of the program, and owns them.
        fn adopt_host(pd: PdId, bytes: Box<[u8]>, access: Access) -> Result<HostBuffer, MemoryError>;
        /// Allocates and registers memory on the NIC.
        fn alloc_on_nic(pd: PdId, bytes: u64, access: Access) -> Result<NicBuffer, MemoryError>;
        /// The registration around an address.
        fn pointer_info(pd: PdId, va: GpuVa) -> Option<PointerInfo>;

        /// A queue whose descriptors reach the regions of a domain.
        fn create_queue(pd: PdId, config: QueueConfig) -> Result<HostQueue, NicError>;
        /// Ends a collective operation that has not completed.
        fn cancel(queue: QueueId, ticket: u32) -> Result<(), CancelError>;

        /// Puts an engine on a session's path.
        fn attach_engine(session: SessionId, direction: Direction, engine: Box<dyn StreamEngine>) -> Result<EngineId, EngineUseError>;
        /// Puts a tap on a queue, with one state for all sessions.
        fn attach_queue_engine(queue: QueueId, direction: Direction, engine: Box<dyn StreamEngine>, item: usize) -> Result<EngineId, EngineUseError>;
        /// Puts a tap on a queue, with a state for each session.
        fn attach_queue_engines(queue: QueueId, direction: Direction, make: EngineMaker) -> Result<EngineId, EngineUseError>;
        /// Puts a tap at a communicator.
        fn attach_communicator_engine(pd: PdId, comm: CommId, place: Place, engine: Box<dyn StreamEngine>, item: usize) -> Result<EngineId, EngineUseError>;
        /// Puts a tap at a communicator, with a state for each peer.
        fn attach_communicator_engines(pd: PdId, comm: CommId, place: Place, make: EngineMaker) -> Result<EngineId, EngineUseError>;
        /// Lets kernels attach engines of a kind.
        fn register_engine_kind(kind: u16, make: EngineKind) -> Result<(), EngineUseError>;
        /// Every engine.
        fn engines() -> Vec<EngineInfo>;
        /// An engine's result so far.
        fn engine_result(id: EngineId) -> Result<EngineResult, EngineUseError>;
        /// An engine's result for one session.
        fn engine_result_of(id: EngineId, session: SessionId) -> Result<EngineResult, EngineUseError>;
        /// An engine's result for one rank.
        fn engine_result_of_rank(id: EngineId, rank: u32) -> Result<EngineResult, EngineUseError>;
        /// Ends an engine, and returns its last result.
        fn detach_engine(id: EngineId) -> Result<EngineResult, EngineUseError>;
        /// Sends what an engine makes of a session's stream back to the peer.
        fn return_engine(session: SessionId, what: Return) -> Result<(), EngineUseError>;

        /// Makes a communicator with this NIC as one rank; its ranks find each other while the NIC
        /// is stepped.
        fn create_communicator(config: &CommunicatorConfig) -> Result<CommId, CommError>;
        /// Whether its ranks are connected.
        fn communicator_status(id: CommId) -> Result<CommStatus, CommError>;
        /// Its transports, algorithms, memory and counters.
        fn communicator_info(id: CommId) -> Result<CommInfo, CommError>;
        /// Operations of it that have not ended; a queue in which the NIC has not looked at
        /// everything counts as one more.
        fn communicator_under_way(id: CommId, queue: QueueId) -> Result<usize, CommError>;
        /// Ends all its operations, on every rank.
        fn abort_communicator(id: CommId) -> Result<(), CommError>;
        /// Frees it.
        fn free_communicator(id: CommId) -> Result<(), CommError>;
        /// Lets the other ranks' one-sided operations reach regions of a domain, those that grant
        /// peers access.
        fn grant_window(id: CommId, pd: PdId) -> Result<(), CommError>;
        /// Opens an inbox for messages of a host thread.
        fn open_inbox(pd: PdId, id: CommId) -> Result<Inbox, CommError>;
        /// Makes memory of all ranks a window of a communicator.
        fn create_window(id: CommId, window: Window) -> Result<u16, CommError>;
        /// Frees a window; its memory stays.
        fn free_window(id: CommId, window: u16) -> Result<(), CommError>;
        /// Loads a proven program of a user.
        fn load_program(programs: Vec<Program>) -> Result<(), ProgramError>;
        }
    };
}
macro_rules! define {
    ([] $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        /// The control path of a NIC: all that the SDK asks of one. Methods of [`Nic`](crate::Nic)
        /// and of its parts document the effects and errors in detail; `backend/conformance.rs`
        /// tests them for each implementation.
        pub trait Backend: fmt::Debug + Send + Sync {
            $($(#[$doc])* fn $name(&self, $($arg: $ty),*) $(-> $out)?;)*

            /// Registers memory of the process in place.
            ///
            /// # Errors
            /// [`MemoryError`]: a byte is registered already, or a page cannot be used.
            ///
            /// # Safety
            /// The bytes stay mapped until the region was dropped, and are shared with the NIC as
            /// with another thread.
            unsafe fn register_host(&self, pd: PdId, ptr: NonNull<u8>, bytes: usize, access: Access) -> Result<HostRegion, MemoryError>;
        }
    };
}
control_path!(define);

pub(crate) use control_path;
