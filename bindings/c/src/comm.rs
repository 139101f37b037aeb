//! Communicators of the C API: making, splitting, shrinking, growing and freeing them.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void, CStr};
use std::sync::PoisonError;
use std::time::Duration;

use ringbell::parts::cuda_kernels::KernelArg;

use crate::comm_config::{options, Config};
use crate::communicator::{OpenComm, COMMS};
use crate::failure::{entry, Failure};
use crate::group;
use crate::nic::NICS;
use crate::pointer::{optional_text, text, Out};
use ringbell::comm::CommStatus;
use ringbell::{CollectiveError, Communicator, Job, UniqueId};

/// Bytes of `rb_unique_id`.
const ID_BYTES: usize = 128;
/// `RB_SPLIT_NOCOLOR`
const NO_COLOUR: u32 = u32::MAX;
/// Bytes of `rb_comm`.
const HANDLE_BYTES: usize = 112;

/// `rb_unique_id`: the text and a terminating zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueIdText {
    text: [c_char; ID_BYTES],
}

/// `rb_job`.
#[repr(C)]
#[derive(Clone, Copy)]
struct JobInfo {
    rank: u32,
    ranks: u32,
    local_rank: u32,
    reserved: u32,
    launcher: [c_char; 16],
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    // The last byte stays zero.
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// # Safety
/// `id` is null or may be read.
pub(super) unsafe fn unique_id(id: *const UniqueIdText) -> Result<UniqueId, Failure> {
    if id.is_null() {
        return Err(Failure::argument("`id` is a null pointer"));
    }
    // SAFETY: not null, and by the caller's contract readable.
    let id = unsafe { id.read_unaligned() };
    let bytes = id.text.map(|c| c as u8);
    let text = CStr::from_bytes_until_nul(&bytes)
        .ok()
        .and_then(|t| t.to_str().ok())
        .ok_or_else(|| Failure::argument("`id` is no text; pass on what rb_get_unique_id gave"))?;
    text.parse()
        .map_err(|e: ringbell::job::UniqueIdError| Failure::argument(e.to_string()))
}

/// # Safety
/// `id` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_get_unique_id(id: *mut UniqueIdText) -> i32 {
    entry("rb_get_unique_id", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(id, "`id`")? };
        let id = UniqueId::create().map_err(|e| Failure::job(&e))?;
        out.set(UniqueIdText {
            text: chars(&id.to_string()),
        });
        Ok(())
    })
}

/// # Safety
/// `bind` is null or a zero-terminated string, `id` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_get_unique_id_at(bind: *const c_char, id: *mut UniqueIdText) -> i32 {
    entry("rb_get_unique_id_at", || {
        // SAFETY: by this function's contract.
        let (out, bind) = unsafe { (Out::new(id, "`id`")?, text(bind, "`bind`")?) };
        let bind = bind.parse().map_err(|_| {
            Failure::argument(format!(
                "`{bind}` is no address with a port; write A.B.C.D:PORT, port 0 for a free one"
            ))
        })?;
        let id = UniqueId::create_at(bind).map_err(|e| Failure::job(&e))?;
        out.set(UniqueIdText {
            text: chars(&id.to_string()),
        });
        Ok(())
    })
}

/// # Safety
/// `job` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_job_from_env(job: *mut c_void) -> i32 {
    entry("rb_job_from_env", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(job.cast::<JobInfo>(), "`job`")? };
        let job = Job::from_env().map_err(|e| Failure::job(&e))?;
        out.set(JobInfo {
            rank: job.rank(),
            ranks: job.size(),
            local_rank: job.local_rank().unwrap_or(u32::MAX),
            reserved: 0,
            launcher: chars(&job.source().to_string()),
        });
        Ok(())
    })
}

/// # Safety
/// `comm`, `id` and `config` are null or valid, as `ringbell_comm.h` says; in a group `comm` stays
/// so until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_init_rank(
    comm: *mut *mut c_void,
    nic: *mut c_void,
    ranks: u32,
    id: *const UniqueIdText,
    rank: u32,
    config: *const Config,
) -> i32 {
    group::entry("rb_comm_init_rank", || {
        // SAFETY: by this function's contract.
        let (out, id, options) = unsafe {
            let out = Out::new(comm, "`comm`")?;
            out.set(std::ptr::null_mut());
            (out, unique_id(id)?, options(config)?)
        };
        let owner = nic.addr();
        let nic = NICS.get(owner)?;
        group::make(out, move || {
            let comm = Communicator::init(&nic.nic, &id, ranks, rank, &options);
            let comm = comm.map_err(|e| Failure::collective(&e))?;
            Ok(COMMS.insert(OpenComm::new(owner, comm)))
        })
    })
}

/// # Safety
/// `comm` and `config` are null or valid, as `ringbell_comm.h` says.
#[no_mangle]
unsafe extern "C" fn rb_comm_init_env(
    comm: *mut *mut c_void,
    nic: *mut c_void,
    config: *const Config,
) -> i32 {
    entry("rb_comm_init_env", || {
        // SAFETY: by this function's contract.
        let (out, options) = unsafe {
            let out = Out::new(comm, "`comm`")?;
            out.set(std::ptr::null_mut());
            (out, options(config)?)
        };
        let owner = nic.addr();
        let nic = NICS.get(owner)?;
        let job = Job::from_env().map_err(|e| Failure::job(&e))?;
        let comm = Communicator::from_job(&nic.nic, &job, &options);
        let comm = comm.map_err(|e| Failure::collective(&e))?;
        let handle = COMMS.insert(OpenComm::new(owner, comm));
        out.set(std::ptr::without_provenance_mut(handle));
        Ok(())
    })
}

/// # Safety
/// `comms` is null or `count` handles may be written to it, `nics` is null or holds as many, and
/// `config` is null or valid, as `ringbell_comm.h` says.
#[no_mangle]
unsafe extern "C" fn rb_comm_init_all(
    comms: *mut *mut c_void,
    nics: *const *mut c_void,
    count: u32,
    config: *const Config,
) -> i32 {
    entry("rb_comm_init_all", || {
        if count == 0 {
            return Err(Failure::argument("`count` is 0; a communicator has ranks"));
        }
        if nics.is_null() {
            return Err(Failure::argument("`nics` is a null pointer"));
        }
        // SAFETY: by this function's contract.
        let options = unsafe { options(config)? };
        let (mut outs, mut owners, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..count as usize {
            // SAFETY: inside the arrays that the caller vouches for. Null is checked by `Out` for
            // the first, and a valid array has no null element behind it.
            let (out, nic) = unsafe {
                let at = if comms.is_null() { comms } else { comms.add(i) };
                (Out::new(at, "`comms`")?, nics.add(i).read_unaligned())
            };
            out.set(std::ptr::null_mut());
            outs.push(out);
            owners.push(nic.addr());
            opened.push(NICS.get(nic.addr())?.nic.clone());
        }
        let made =
            Communicator::init_all(&opened, &options).map_err(|e| Failure::collective(&e))?;
        for ((out, owner), comm) in outs.iter().zip(owners).zip(made) {
            let handle = COMMS.insert(OpenComm::new(owner, comm));
            out.set(std::ptr::without_provenance_mut(handle));
        }
        Ok(())
    })
}

/// A communicator made of another one, or none for this rank.
///
/// # Safety
/// `newcomm` is null or may be written to, in a group until it ends.
unsafe fn of_comm(
    call: &'static str,
    comm: *mut c_void,
    newcomm: *mut *mut c_void,
    make: impl FnOnce(&Communicator) -> Result<Option<Communicator>, CollectiveError> + Send + 'static,
) -> i32 {
    group::entry(call, || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(newcomm, "`newcomm`")? };
        out.set(std::ptr::null_mut());
        let of = COMMS.get(comm.addr())?;
        group::make(out, move || {
            let made = make(&of.comm).map_err(|e| Failure::collective(&e))?;
            Ok(made.map_or(0, |comm| COMMS.insert(OpenComm::new(of.owner, comm))))
        })
    })
}

/// # Safety
/// `newcomm` is null or may be written to, in a group until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_split(
    comm: *mut c_void,
    color: u32,
    key: i32,
    newcomm: *mut *mut c_void,
) -> i32 {
    let colour = (color != NO_COLOUR).then_some(color);
    // SAFETY: by this function's contract.
    unsafe {
        of_comm("rb_comm_split", comm, newcomm, move |c| {
            c.split(colour, key)
        })
    }
}

/// # Safety
/// `newcomm` is null or may be written to, in a group until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_shrink(
    comm: *mut c_void,
    patience_us: u64,
    newcomm: *mut *mut c_void,
) -> i32 {
    let make = move |c: &Communicator| c.shrink(patience(c, patience_us)).map(Some);
    // SAFETY: by this function's contract.
    unsafe { of_comm("rb_comm_shrink", comm, newcomm, make) }
}

/// # Safety
/// `id` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_get_unique_id(comm: *mut c_void, id: *mut UniqueIdText) -> i32 {
    entry("rb_comm_get_unique_id", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(id, "`id`")? };
        let id = COMMS.get(comm.addr())?.comm.job_id();
        let id = id.map_err(|e| Failure::collective(&e))?;
        out.set(UniqueIdText {
            text: chars(&id.to_string()),
        });
        Ok(())
    })
}

/// # Safety
/// `newcomm` is null or may be written to, in a group until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_grow(
    comm: *mut c_void,
    ranks: u32,
    patience_us: u64,
    newcomm: *mut *mut c_void,
) -> i32 {
    let make = move |c: &Communicator| c.grow(ranks, patience(c, patience_us)).map(Some);
    // SAFETY: by this function's contract.
    unsafe { of_comm("rb_comm_grow", comm, newcomm, make) }
}

/// # Safety
/// `comm` and `config` are null or valid, as `ringbell_comm.h` says; in a group `comm` stays so
/// until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_join(
    comm: *mut *mut c_void,
    nic: *mut c_void,
    config: *const Config,
) -> i32 {
    group::entry("rb_comm_join", || {
        // SAFETY: by this function's contract.
        let (out, options) = unsafe {
            let out = Out::new(comm, "`comm`")?;
            out.set(std::ptr::null_mut());
            (out, options(config)?)
        };
        let owner = nic.addr();
        let nic = NICS.get(owner)?;
        let member = nic
            .member
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let member = member.ok_or_else(|| {
            Failure::argument(
                "`nic` is none of rb_nic_open_new_rank, or has joined a communicator already",
            )
        })?;
        group::make(out, move || {
            let comm = Communicator::join(&nic.nic, member, &options);
            let comm = comm.map_err(|e| Failure::collective(&e))?;
            Ok(COMMS.insert(OpenComm::new(owner, comm)))
        })
    })
}

/// # Safety
/// `others` is null or holds `count` numbers; `newcomm` is null or may be written to, in a group
/// until it ends.
#[no_mangle]
unsafe extern "C" fn rb_comm_merge(
    comm: *mut c_void,
    others: *const u32,
    count: u32,
    newcomm: *mut *mut c_void,
) -> i32 {
    if others.is_null() {
        let why = || Err(Failure::argument("`others` is a null pointer"));
        return group::entry("rb_comm_merge", why);
    }
    // SAFETY: inside the array that the caller vouches for.
    let at = |i| unsafe { others.add(i).read_unaligned() };
    let others: Vec<u32> = (0..count as usize).map(at).collect();
    let make = move |c: &Communicator| c.merge(&others).map(Some);
    // SAFETY: by this function's contract.
    unsafe { of_comm("rb_comm_merge", comm, newcomm, make) }
}

fn patience(comm: &Communicator, patience_us: u64) -> Duration {
    match patience_us {
        0 => comm.options().init_timeout,
        us => Duration::from_micros(us),
    }
}

#[no_mangle]
extern "C" fn rb_comm_abort(comm: *mut c_void) -> i32 {
    entry("rb_comm_abort", || {
        COMMS.get(comm.addr())?.comm.abort();
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_comm_finalize(comm: *mut c_void, patience_us: u64) -> i32 {
    entry("rb_comm_finalize", || {
        let open = COMMS.get(comm.addr())?;
        let patience = patience(&open.comm, patience_us);
        open.comm.settle().map_err(|e| Failure::collective(&e))?;
        let finished = open.comm.clone().finish(patience);
        finished.map_err(|e| Failure::collective(&e))
    })
}

#[no_mangle]
extern "C" fn rb_comm_destroy(comm: *mut c_void) -> i32 {
    entry("rb_comm_destroy", || {
        if comm.is_null() {
            return Ok(());
        }
        let open = COMMS.get(comm.addr())?;
        // When two threads free it at once, one of them gets an error.
        let settled = open.comm.settle();
        COMMS.remove(comm.addr())?;
        settled.map_err(|e| Failure::collective(&e))
    })
}

/// # Safety
/// `count` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_count(comm: *mut c_void, count: *mut u32) -> i32 {
    entry("rb_comm_count", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(count, "`count`")? };
        out.set(COMMS.get(comm.addr())?.comm.size());
        Ok(())
    })
}

/// # Safety
/// `rank` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_user_rank(comm: *mut c_void, rank: *mut u32) -> i32 {
    entry("rb_comm_user_rank", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(rank, "`rank`")? };
        out.set(COMMS.get(comm.addr())?.comm.rank());
        Ok(())
    })
}

/// `rb_comm_peer_info`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
struct PeerInfo {
    address: [c_char; 24],
    transport: [c_char; 8],
    why: [c_char; 96],
}

/// # Safety
/// `info` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_peer(comm: *mut c_void, rank: u32, info: *mut c_void) -> i32 {
    entry("rb_comm_peer", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(info.cast::<PeerInfo>(), "`info`")? };
        let comm = COMMS.get(comm.addr())?;
        let about = comm.comm.info().map_err(|e| Failure::collective(&e))?;
        let peer = about.peers.iter().find(|p| p.rank == rank);
        let peer = peer.ok_or_else(|| {
            Failure::argument(format!(
                "rank {rank} of {} ranks; ranks count from 0",
                about.ranks
            ))
        })?;
        out.set(PeerInfo {
            address: chars(&peer.address.to_string()),
            transport: chars(peer.transport.unwrap_or("none")),
            why: chars(peer.why),
        });
        Ok(())
    })
}

/// # Safety
/// `job_rank` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_job_rank(comm: *mut c_void, rank: u32, job_rank: *mut u32) -> i32 {
    entry("rb_comm_job_rank", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(job_rank, "`job_rank`")? };
        let open = COMMS.get(comm.addr())?;
        let all = open.comm.job_ranks();
        let found = all.get(rank as usize).ok_or_else(|| {
            let n = all.len();
            Failure::argument(format!("there is no rank {rank} in a communicator of {n}"))
        })?;
        out.set(*found);
        Ok(())
    })
}

/// # Safety
/// `async_error` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_get_async_error(comm: *mut c_void, async_error: *mut i32) -> i32 {
    entry("rb_comm_get_async_error", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(async_error, "`async_error`")? };
        let info = COMMS.get(comm.addr())?.comm.info();
        let info = info.map_err(|e| Failure::collective(&e))?;
        out.set(match info.status {
            CommStatus::Ready => 0,
            CommStatus::Connecting { .. } => super::failure::IN_PROGRESS,
            CommStatus::Aborted { status, .. } => i32::from(status.code()),
        });
        Ok(())
    })
}

/// # Safety
/// `rank` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_failed_rank(comm: *mut c_void, rank: *mut u32) -> i32 {
    entry("rb_comm_failed_rank", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(rank, "`rank`")? };
        let info = COMMS.get(comm.addr())?.comm.info();
        let info = info.map_err(|e| Failure::collective(&e))?;
        out.set(match info.status {
            CommStatus::Aborted { rank, .. } => rank,
            CommStatus::Ready | CommStatus::Connecting { .. } => u32::MAX,
        });
        Ok(())
    })
}

/// # Safety
/// `program` is null or a zero-terminated string.
#[no_mangle]
unsafe extern "C" fn rb_comm_load_program(comm: *mut c_void, program: *const c_char) -> i32 {
    entry("rb_comm_load_program", || {
        // SAFETY: by this function's contract.
        let program = unsafe { optional_text(program, "`program`")? };
        let program = program.ok_or_else(|| Failure::argument("`program` is a null pointer"))?;
        let loaded = COMMS.get(comm.addr())?.comm.load_program(&program);
        loaded.map_err(|e| Failure::collective(&e))
    })
}

/// # Safety
/// `handle` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_kernel_handle(comm: *mut c_void, handle: *mut c_void) -> i32 {
    entry("rb_comm_kernel_handle", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(handle.cast::<[u8; HANDLE_BYTES]>(), "`handle`")? };
        let open = COMMS.get(comm.addr())?;
        let bytes = KernelArg::from(open.comm.handle()).to_bytes();
        // A test keeps the kernel's structure and the header's equal; never write past it.
        let bytes = bytes.try_into().map_err(|b: Vec<u8>| {
            let n = b.len();
            Failure::argument(format!(
                "rb_comm of the header has {HANDLE_BYTES} bytes, a kernel's {n}"
            ))
        })?;
        out.set(bytes);
        Ok(())
    })
}
