//! [`Layer`]: the state of a process between the program's `MPI_Init` and `MPI_Finalize`.
#![allow(unsafe_code)] // Calls the library below.
#![allow(clippy::disallowed_methods)] // Reads the host's identity.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ringbell::job::variables as v;
use ringbell::{CommOptions, Communicator, Job, Nic, UniqueId};

use crate::abi::{Handle, Tables};
use crate::below::below;
use crate::group::{size_and_rank, world_ranks, Group};
use crate::memory::Memories;
use crate::trace::{self, say};

/// Longest wait of an operation, unless `RINGBELL_MPI_TIMEOUT` says otherwise: about the longest
/// that a descriptor holds.
const TIMEOUT: Duration = Duration::from_secs(70 * 60);

/// Longest wait for the other ranks at the end.
const FINISH: Duration = Duration::from_secs(30);

/// Memory of the emulated GPU, which programs of MPI do not use.
const GPU_MEMORY: u64 = 16 << 20;

/// Room for a job's id as text.
const ID: usize = 128;

/// The state of a process.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) tables: Tables,
    nic: Nic,
    world: Mutex<Option<Communicator>>,
    groups: RwLock<HashMap<Handle, Arc<Group>>>,
    /// Key of the attribute whose callback says that a communicator was freed.
    key: c_int,
    rank: u32,
    tags: AtomicU64,
    ended: AtomicBool,
    pub(crate) memories: Memories,
    /// A communicator of the library below for all ranks, on which there are no messages.
    silent: Handle,
    /// Messages between two ranks, when they are taken.
    messages: Option<&'static dyn Beside>,
}

/// What moves messages between two ranks, beside collectives.
pub(crate) trait Beside: std::fmt::Debug + Sync {
    /// Starts to move them while the program is inside the library below.
    fn start(&'static self, layer: &'static Layer);
    /// Whether messages on this communicator are taken.
    fn knows(&self, comm: Handle) -> bool;
    /// Lets go of a communicator that the program has freed.
    fn forget(&self, comm: Handle);
    /// Moves what can move, and tells the program of what has ended.
    fn progress(&self, layer: &Layer);
    /// Ends with the program, within `patience`.
    fn end(&self, layer: &Layer, patience: Duration);
}

/// Makes that, where all ranks ask for it. All of them call it.
pub(crate) type Make = fn(&Tables, &Nic, &Communicator) -> Option<&'static dyn Beside>;

static LAYER: OnceLock<Layer> = OnceLock::new();
static STARTED: AtomicBool = AtomicBool::new(false);

impl Layer {
    /// The layer, while there is one.
    pub(crate) fn get() -> Option<&'static Layer> {
        // Relaxed: the program orders its calls and MPI_Finalize.
        LAYER.get().filter(|l| !l.ended.load(Ordering::Relaxed))
    }

    /// Own rank in `MPI_COMM_WORLD`.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Its NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Opens the NIC, when the program has initialised the library below. Every rank calls it.
    pub(crate) fn start(messages: Make) {
        // Relaxed: MPI is initialised once, by one thread.
        if STARTED.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(tables) = Tables::load() else {
            return;
        };
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the signatures of MPI's standard.
        unsafe {
            below!("PMPI_Comm_rank", fn(Handle, *mut c_int) -> c_int)(tables.world, &raw mut rank);
            below!("PMPI_Comm_size", fn(Handle, *mut c_int) -> c_int)(tables.world, &raw mut size);
        }
        if size < 2 {
            if trace::traces() {
                say("MPI_COMM_WORLD has one rank: nothing is taken");
            }
            return;
        }
        match Layer::open(tables, rank as u32, size as u32, messages) {
            Ok(layer) => {
                if trace::traces() && rank == 0 {
                    let abi = layer.tables.abi;
                    say(format_args!("{size} ranks, library below: {abi:?}"));
                }
                let _ = LAYER.set(layer);
                if let Some((layer, messages)) = Layer::get().and_then(|l| Some((l, l.messages?))) {
                    messages.start(layer);
                }
            }
            Err(why) => {
                say(format_args!("rank {rank}: all calls are handed on: {why}"));
            }
        }
    }

    fn open(tables: Tables, rank: u32, size: u32, messages: Make) -> Result<Layer, String> {
        let told = |e: &dyn std::error::Error| {
            let causes = std::iter::successors(Some(e), |e| e.source());
            causes
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(": ")
        };
        let far = on_several_hosts(&tables, size);
        let id = exchange_id(&tables, rank, far)?;
        let given = [
            (v::RANK, rank.to_string()),
            (v::SIZE, size.to_string()),
            (v::ID, id),
        ];
        let find = |name: &str| match given.iter().find(|g| g.0 == name) {
            Some(given) => Some(given.1.clone()),
            None => match std::env::var(name) {
                Ok(set) if [v::TRANSPORT, v::PORT, v::SWITCH, v::WIRES].contains(&name) => {
                    Some(set)
                }
                _ if name == v::PORT && far => Some("roce".into()),
                _ => None,
            },
        };
        let opened = Job::from_variables(&find)
            .map_err(|e| told(&e))
            .and_then(|job| {
                let builder = Nic::builder().job(&job).gpu_memory(GPU_MEMORY);
                Ok((builder.open().map_err(|e| told(&e))?, job))
            });
        if !agreed(&tables, tables.world, opened.is_ok()) {
            let why = "another rank has no NIC".to_string();
            return Err(opened.err().unwrap_or(why));
        }
        let (nic, job) = opened?;
        let options = CommOptions {
            timeout: timeout(),
            ..CommOptions::default()
        };
        let world = Communicator::from_job(&nic, &job, &options).map_err(|e| told(&e));
        if !agreed(&tables, tables.world, world.is_ok()) {
            let why = "another rank has no communicator".to_string();
            return Err(world.err().unwrap_or(why));
        }
        let world = world?;
        let messages = messages(&tables, &nic, &world);
        let group = Group::new(Ok(world.clone()), rank, (0..size).collect());
        let (mut key, mut silent): (c_int, Handle) = (0, 0);
        // SAFETY: the signature of MPI's standard.
        unsafe {
            below!("PMPI_Comm_dup", fn(Handle, *mut Handle) -> c_int)(
                tables.world,
                &raw mut silent,
            );
        }
        // SAFETY: the signature of MPI's standard, and the callbacks have those of an attribute's.
        unsafe {
            type Copy = extern "C" fn(
                Handle,
                c_int,
                *mut c_void,
                *mut c_void,
                *mut c_void,
                *mut c_int,
            ) -> c_int;
            type Delete = extern "C" fn(Handle, c_int, *mut c_void, *mut c_void) -> c_int;
            type Create = unsafe extern "C" fn(Copy, Delete, *mut c_int, *mut c_void) -> c_int;
            let create: Create = below!(
                "PMPI_Comm_create_keyval",
                fn(Copy, Delete, *mut c_int, *mut c_void) -> c_int
            );
            create(not_copied, freed, &raw mut key, std::ptr::null_mut());
        }
        let groups = HashMap::from([(tables.world, Arc::new(group))]);
        Ok(Layer {
            tables,
            nic,
            world: Mutex::new(Some(world)),
            groups: RwLock::new(groups),
            key,
            rank,
            tags: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            memories: Memories::default(),
            silent,
            messages,
        })
    }

    /// The communicator of all ranks.
    pub(crate) fn world(&self) -> Option<Communicator> {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.clone()
    }

    /// A number that no other rank and no other call gives.
    pub(crate) fn next_tag(&self) -> u64 {
        // Relaxed: it only counts.
        let number = self.tags.fetch_add(1, Ordering::Relaxed);
        u64::from(self.rank) << 32 | (number + 1)
    }

    /// The group of a communicator.
    pub(crate) fn group(&self, comm: Handle) -> Arc<Group> {
        let comm = self.tables.handle(comm);
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&comm) {
            return group.clone();
        }
        // Not under the lock: it waits for other ranks, and another thread may wait for another
        // communicator's.
        drop(groups);
        let group = Arc::new(learn(self, comm));
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        groups.insert(comm, group.clone());
        drop(groups);
        // A second attribute of the same key would end the first, as if the communicator were
        // freed.
        if !self.messages.is_some_and(|m| m.knows(comm)) {
            self.tell_when_freed(comm);
        }
        group
    }

    /// Moves messages between two ranks, where they are taken.
    pub(crate) fn progress(&self) {
        if let Some(messages) = self.messages {
            messages.progress(self);
        }
    }

    /// Has [`Layer::forget`] called when the program frees a communicator.
    pub(crate) fn tell_when_freed(&self, comm: Handle) {
        // SAFETY: the signature of MPI's standard.
        unsafe {
            below!(
                "PMPI_Comm_set_attr",
                fn(Handle, c_int, *mut c_void) -> c_int
            )(comm, self.key, std::ptr::null_mut());
        }
    }

    /// Lets go of a communicator.
    pub(crate) fn forget(&self, comm: Handle) {
        let comm = self.tables.handle(comm);
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let gone = groups.remove(&comm);
        drop(groups);
        drop(gone);
        if let Some(messages) = self.messages {
            messages.forget(comm);
        }
    }

    /// Closes the NIC, before the program finalizes the library below.
    pub(crate) fn end() {
        let Some(layer) = Layer::get() else {
            return;
        };
        if let Some(messages) = layer.messages {
            messages.end(layer, timeout());
        }
        // Relaxed: MPI is finalized by one thread, when no other calls it.
        layer.ended.store(true, Ordering::Relaxed);
        if trace::traces() && layer.rank == 0 {
            for line in trace::summary() {
                say(line);
            }
        }
        let mut groups = layer.groups.write().unwrap_or_else(PoisonError::into_inner);
        let groups = std::mem::take(&mut *groups);
        drop(groups);
        let mut world = layer.world.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(world) = world.take() {
            // A rank that has ended is not waited for, and the program is over.
            let _ = world.finish(FINISH);
        }
        let _ = layer.nic.close();
        let mut silent = layer.silent;
        // SAFETY: the signature of MPI's standard. All ranks are here.
        unsafe { below!("PMPI_Comm_free", fn(*mut Handle) -> c_int)(&raw mut silent) };
    }

    /// Lets the library below move its own messages, which another rank may need before it comes to
    /// the collective that this one waits in.
    pub(crate) fn progress_below(&self) {
        let (mut flag, mut status) = (0, [0_u8; 64]);
        let any = self.tables.any();
        // On a communicator of its own, without messages: a probe that finds one makes no progress.
        // Neither does MPICH in one on MPI_COMM_SELF. SAFETY: the signature of MPI's standard; a
        // status has 24 bytes in Open MPI, 20 in MPICH and 32 in the standard.
        unsafe {
            type Probe = unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, *mut u8) -> c_int;
            let probe: Probe = below!(
                "PMPI_Iprobe",
                fn(c_int, c_int, Handle, *mut c_int, *mut u8) -> c_int
            );
            probe(
                any.0,
                any.1,
                self.silent,
                &raw mut flag,
                status.as_mut_ptr(),
            );
        }
    }
}

/// Learns the group of a communicator at the first collective on it. All its ranks do so
/// together, and end alike.
fn learn(layer: &Layer, comm: Handle) -> Group {
    let handed_on = |why| Group::new(Err(why), 0, Vec::new());
    let Some((size, rank)) = size_and_rank(comm) else {
        return handed_on("an intercommunicator");
    };
    if size < 2 {
        return handed_on("a communicator of one rank");
    }
    let Some(ranks) = world_ranks(&layer.tables, comm, size) else {
        return handed_on("its ranks are not all of one MPI_COMM_WORLD");
    };
    let mut tag: u64 = layer.next_tag();
    // SAFETY: the signatures of MPI's standard. The barrier waits without a limit for ranks
    // that are late, as MPI does; what follows has one.
    unsafe {
        below!(
            "PMPI_Bcast",
            fn(*mut u64, c_int, Handle, c_int, Handle) -> c_int
        )(&raw mut tag, 8, layer.tables.byte, 0, comm);
        below!("PMPI_Barrier", fn(Handle) -> c_int)(comm);
    }
    let made = layer.world().and_then(|w| {
        let made = w.create_group(&ranks, tag);
        made.map_err(|e| say(format_args!("a communicator of {size} ranks: {e}")))
            .ok()
    });
    let all = agreed(&layer.tables, comm, made.is_some());
    let made = made
        .filter(|_| all)
        .ok_or("Ringbell has no communicator for it");
    Group::new(made, rank as u32, ranks)
}

/// Lets go of a communicator that the program has freed: the callback of the attribute that it was
/// given.
extern "C" fn freed(comm: Handle, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    if let Some(layer) = Layer::get() {
        layer.forget(comm);
    }
    0
}

/// A duplicate of a communicator has a group of its own.
extern "C" fn not_copied(
    _: Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: where MPI wants the answer.
    unsafe { *flag = 0 };
    0
}

/// The time-out of operations.
fn timeout() -> Duration {
    let set = std::env::var("RINGBELL_MPI_TIMEOUT").ok();
    let seconds = set.and_then(|s| s.parse::<f64>().ok());
    let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    duration
        .filter(|d| !d.is_zero())
        .map_or(TIMEOUT, |d| d.min(TIMEOUT))
}

/// Whether all ranks of a communicator say yes. All of them call it.
pub(crate) fn agreed(tables: &Tables, comm: Handle, yes: bool) -> bool {
    let (own, mut all) = (c_int::from(yes), 0);
    // SAFETY: the signature of MPI's standard.
    unsafe {
        type Reduce =
            unsafe extern "C" fn(*const c_int, *mut c_int, c_int, Handle, Handle, Handle) -> c_int;
        let reduce: Reduce = below!(
            "PMPI_Allreduce",
            fn(*const c_int, *mut c_int, c_int, Handle, Handle, Handle) -> c_int
        );
        reduce(
            &raw const own,
            &raw mut all,
            1,
            tables.int,
            tables.min,
            comm,
        );
    }
    all != 0
}

/// Whether the ranks are on several hosts: of each, what tells hosts apart.
fn on_several_hosts(tables: &Tables, size: u32) -> bool {
    let mut own = [0_u8; 64];
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // A network namespace has addresses of its own.
    let space = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let space = space.as_os_str().as_encoded_bytes();
    for (to, from) in own.iter_mut().zip(boot.iter().take(36).chain(space)) {
        *to = *from;
    }
    let mut all = vec![0_u8; own.len() * size as usize];
    // SAFETY: the signature of MPI's standard; the array has a block for each rank.
    unsafe {
        type Gather =
            unsafe extern "C" fn(*const u8, c_int, Handle, *mut u8, c_int, Handle, Handle) -> c_int;
        let gather: Gather = below!(
            "PMPI_Allgather",
            fn(*const u8, c_int, Handle, *mut u8, c_int, Handle, Handle) -> c_int
        );
        let (bytes, byte) = (own.len() as c_int, tables.byte);
        gather(
            own.as_ptr(),
            bytes,
            byte,
            all.as_mut_ptr(),
            bytes,
            byte,
            tables.world,
        );
    }
    all.chunks(own.len()).any(|c| c != own)
}

/// The job's id, which rank 0 makes and serves.
fn exchange_id(tables: &Tables, rank: u32, far: bool) -> Result<String, String> {
    let mut text = [0_u8; ID];
    if rank == 0 {
        let made = match far {
            false => UniqueId::create(),
            true => UniqueId::create_at(address()),
        };
        if let Ok(id) = &made {
            let id = id.to_string();
            text[..id.len()].copy_from_slice(id.as_bytes());
        }
    }
    // SAFETY: the signature of MPI's standard.
    unsafe {
        below!(
            "PMPI_Bcast",
            fn(*mut u8, c_int, Handle, c_int, Handle) -> c_int
        )(text.as_mut_ptr(), ID as c_int, tables.byte, 0, tables.world);
    }
    let len = text.iter().position(|b| *b == 0).unwrap_or(ID);
    match std::str::from_utf8(&text[..len]) {
        Ok(id) if !id.is_empty() => Ok(id.to_string()),
        _ => Err("rank 0 cannot listen for the others".into()),
    }
}

/// Where rank 0 listens for ranks of other hosts: `RINGBELL_MPI_HOST`, or the address from which
/// this host reaches others.
fn address() -> std::net::SocketAddr {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    let named = std::env::var("RINGBELL_MPI_HOST").ok();
    let named = named.and_then(|t| t.parse::<IpAddr>().ok());
    let routed = || {
        // An address of documentation: no packet is sent.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = named.or_else(routed).unwrap_or(Ipv4Addr::LOCALHOST.into());
    (ip, 0).into()
}
