//! `rb_nic_open`, its forms for ranks of a job, and `rb_nic_close`.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::Duration;

use ringbell::abi::Event;

use crate::comm::{unique_id, UniqueIdText};
use crate::failure::{entry, Failure};
use crate::nic::{OpenNic, Others, NICS};
use crate::pointer::{optional_text, text, Out};
use crate::{communicator, context, graph, kernel_stream, launches, request, stream};
use ringbell::job::Member;
use ringbell::nic::{EngineThread, NicConfig, ProgressMode, QueueConfig, RoutesError};
use ringbell::{CommOptions, Job, Nic, NicBuilder, OpenError};

/// `rb_nic_config`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    size: usize,
    ip: *const c_char,
    transport: *const c_char,
    port: *const c_char,
    local_directory: *const c_char,
    gpu_memory_bytes: u64,
    default_timeout_us: u32,
    queue_depth: u32,
    linger_ms: u32,
    reserved: u32,
    gpu: *const c_char,
    progress: *const c_char,
    events: u32,
    reserved2: u32,
    engine_thread: *const c_char,
    max_queues: u32,
    node: u32,
    wires: *const c_char,
    tables: *const c_char,
    wire_grace_ms: u32,
    wire_poll: u32,
}

/// Bytes that the structure has had: without the lingering, without the GPU, without the engines'
/// thread, without the number of queues, without wires, and now.
const SIZES: [usize; 6] = [
    std::mem::offset_of!(Config, linger_ms),
    std::mem::offset_of!(Config, gpu),
    std::mem::offset_of!(Config, engine_thread),
    std::mem::offset_of!(Config, max_queues),
    std::mem::offset_of!(Config, wires),
    size_of::<Config>(),
];
/// `RB_LINGER_NONE`
const LINGER_NONE: u32 = u32::MAX;

/// # Safety
/// `config` and `nic` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_nic_open(config: *const Config, nic: *mut *mut c_void) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_nic_open", || unsafe {
        open(config, nic, || Ok((Nic::builder(), None)))
    })
}

/// # Safety
/// `config`, `id` and `nic` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_nic_open_rank(
    config: *const Config,
    id: *const UniqueIdText,
    rank: u32,
    nic: *mut *mut c_void,
) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_nic_open_rank", || unsafe {
        let id = unique_id(id)?;
        open(config, nic, || Ok((Nic::builder().rank(&id, rank), None)))
    })
}

/// # Safety
/// `config`, `id` and `nic` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_nic_open_new_rank(
    config: *const Config,
    id: *const UniqueIdText,
    patience_us: u64,
    nic: *mut *mut c_void,
) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_nic_open_new_rank", || unsafe {
        let id = unique_id(id)?;
        open(config, nic, || {
            let patience = match patience_us {
                0 => CommOptions::default().init_timeout,
                us => Duration::from_micros(us),
            };
            let member = Member::join_running(&id, patience).map_err(|e| Failure::job(&e))?;
            Ok((Nic::builder().member(&member), Some(member)))
        })
    })
}

/// # Safety
/// `config` and `nic` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_nic_open_env(config: *const Config, nic: *mut *mut c_void) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_nic_open_env", || unsafe {
        open(config, nic, || {
            let job = Job::from_env().map_err(|e| Failure::job(&e))?;
            Ok((Nic::builder().job(&job), None))
        })
    })
}

/// # Safety
/// `config` and `nic` are null or valid, as `ringbell.h` says.
unsafe fn open(
    config: *const Config,
    nic: *mut *mut c_void,
    base: impl FnOnce() -> Result<(NicBuilder, Option<Member>), Failure>,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let out = unsafe { Out::new(nic, "`nic`")? };
    out.set(std::ptr::null_mut());
    let (builder, member) = base()?;
    // SAFETY: by this function's contract.
    let nic = unsafe { configured(config, builder)? }.open();
    let nic = nic.map_err(|e| match e {
        OpenError::Setting { setting, why } if !setting.starts_with("RINGBELL_") => {
            let field = match setting {
                "wire" | "wire_list" => "wires",
                other => other,
            };
            Failure::argument(format!("config->{field}: {why}"))
        }
        e @ (OpenError::Setting { .. } | OpenError::JobSwitch { .. }) => Failure::job(&e),
        e => Failure::host(&e),
    })?;
    let handle = NICS.insert(OpenNic {
        buffers: Mutex::default(),
        others: Others::default(),
        #[cfg(feature = "cuda")]
        opened: Default::default(),
        queues: Mutex::default(),
        member: Mutex::new(member),
        nic,
    });
    out.set(std::ptr::without_provenance_mut(handle));
    Ok(())
}

/// The settings of `config` over those in `nic`.
///
/// # Safety
/// `config` is null, or valid for as many bytes as its `size` says.
unsafe fn configured(config: *const Config, nic: NicBuilder) -> Result<NicBuilder, Failure> {
    if config.is_null() {
        return Ok(nic);
    }
    // SAFETY: `size` comes first in every version of the structure.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    // A program built against an older header has a shorter structure: its missing fields have
    // defaults.
    if !SIZES.contains(&size) {
        return Err(Failure::argument(format!(
            "config->size is {size}, not {}; zero the structure, set size = sizeof(rb_nic_config), and build against the header of this library",
            size_of::<Config>()
        )));
    }
    let mut c = MaybeUninit::<Config>::zeroed();
    // SAFETY: the caller vouches for `size` bytes, no more than the structure has. All zero is a
    // valid one: numbers and null pointers.
    let c = unsafe {
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), c.as_mut_ptr().cast(), size);
        c.assume_init()
    };
    if [c.reserved, c.reserved2] != [0; 2] {
        return Err(Failure::argument(
            "config->reserved is not 0; zero the structure first",
        ));
    }
    // SAFETY: the caller vouches for the texts.
    let (gpu, progress, engine_thread) = unsafe {
        (
            optional_text(c.gpu, "config->gpu")?,
            optional_text(c.progress, "config->progress")?,
            optional_text(c.engine_thread, "config->engine_thread")?,
        )
    };
    // SAFETY: the same.
    let (ip, transport, port, directory) = unsafe {
        (
            optional_text(c.ip, "config->ip")?,
            optional_text(c.transport, "config->transport")?,
            optional_text(c.port, "config->port")?,
            optional_text(c.local_directory, "config->local_directory")?,
        )
    };
    // SAFETY: the same.
    let (wires, tables) = unsafe {
        (
            optional_text(c.wires, "config->wires")?,
            optional_text(c.tables, "config->tables")?,
        )
    };
    // 0 asks for the default.
    let given = |n: u32| Some(n).filter(|n| *n != 0);
    let mut queue = QueueConfig::default();
    let mut limits =
        given(c.max_queues).map_or_else(NicConfig::default, |n| NicConfig::with_queues(n as usize));
    queue.default_timeout_us = given(c.default_timeout_us).unwrap_or(queue.default_timeout_us);
    queue.depth = given(c.queue_depth).unwrap_or(queue.depth);
    match c.linger_ms {
        0 => {}
        LINGER_NONE => limits.linger = Duration::ZERO,
        ms => limits.linger = Duration::from_millis(ms.into()),
    }
    limits.event_capacity = given(c.events).map_or(limits.event_capacity, |n| n as usize);
    let progress = match progress.as_deref() {
        None => None,
        Some("waiter") => Some(ProgressMode::Waiter),
        Some("dedicated") => Some(ProgressMode::Dedicated),
        Some(other) => {
            return Err(Failure::argument(format!(
                "config->progress is `{other}`; write waiter or dedicated"
            )))
        }
    };
    let engine_thread = engine_thread.map(|name| {
        EngineThread::from_name(&name).ok_or_else(|| {
            Failure::argument(format!(
                "config->engine_thread is `{name}`; write auto, off or always"
            ))
        })
    });
    let memory = Some(c.gpu_memory_bytes).filter(|bytes| *bytes != 0);
    Ok(nic
        .when(ip, NicBuilder::ip)
        .when(transport, NicBuilder::transport)
        .when(port, NicBuilder::port)
        .when(directory, NicBuilder::directory)
        .when(memory, NicBuilder::gpu_memory)
        .when(gpu, NicBuilder::gpu)
        .when(progress, NicBuilder::progress)
        .when(engine_thread.transpose()?, NicBuilder::engine_thread)
        .when(given(c.node), NicBuilder::node)
        .when(wires, |nic, text| nic.wire_list(&text))
        .when(tables, NicBuilder::tables)
        .when(given(c.wire_grace_ms), |nic, ms| {
            nic.wire_grace(Duration::from_millis(ms.into()))
        })
        .when(given(c.wire_poll), NicBuilder::wire_poll)
        .queue(queue)
        .limits(limits))
}

/// # Safety
/// `event` and `got` are null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_nic_event(nic: *mut c_void, event: *mut c_void, got: *mut i32) -> i32 {
    entry("rb_nic_event", || {
        // SAFETY: by this function's contract; `rb_event` is `Event`.
        let (event, got) = unsafe {
            (
                Out::new(event.cast::<Event>(), "`event`")?,
                Out::new(got, "`got`")?,
            )
        };
        let next = NICS.get(nic.addr())?.nic.poll_event();
        got.set(i32::from(next.is_some()));
        if let Some(next) = next {
            event.set(next);
        }
        Ok(())
    })
}

/// Time for the other nodes of a mesh to hold new tables, unless the caller gives one.
const ROUTES_PATIENCE: Duration = Duration::from_secs(10);

/// # Safety
/// `file` is null or a zero-terminated string.
#[no_mangle]
unsafe extern "C" fn rb_nic_replace_routes(
    nic: *mut c_void,
    file: *const c_char,
    timeout_us: u32,
) -> i32 {
    entry("rb_nic_replace_routes", || {
        // SAFETY: by this function's contract.
        let file = unsafe { text(file, "`file`")? };
        let patience = match timeout_us {
            0 => ROUTES_PATIENCE,
            us => Duration::from_micros(us.into()),
        };
        // A handle of its own: the wait holds up no other call.
        let nic = NICS.get(nic.addr())?.nic.clone();
        nic.replace_routes(file, patience).map_err(|e| match e {
            e @ RoutesError::NoMesh => Failure::argument(e.to_string()),
            e => Failure::host(&e),
        })
    })
}

#[no_mangle]
extern "C" fn rb_nic_close(nic: *mut c_void) -> i32 {
    entry("rb_nic_close", || {
        if nic.is_null() {
            return Ok(());
        }
        let closed = NICS.remove(nic.addr())?;
        // In the order in which they are dropped: users of the NIC before it.
        let users = (
            request::take_of(nic.addr()),
            graph::take_of(nic.addr()),
            stream::take_of(nic.addr()),
            communicator::take_of(nic.addr()),
            kernel_stream::take_of(nic.addr()),
            context::take_of(nic.addr()),
        );
        let gpu = closed.nic.gpu().clone();
        let ended = if gpu.is_running() {
            // What kernels wait for ends with SHUTTING_DOWN, and so do they.
            let ended = closed.nic.close();
            launches::keep(gpu, (users, closed));
            ended
        } else {
            drop(users);
            // Before the buffers are dropped: undelivered data is read from them.
            let ended = closed.nic.close();
            drop(closed);
            ended
        };
        launches::release();
        ended.map_err(|lost| Failure::not_delivered(&lost))
    })
}
