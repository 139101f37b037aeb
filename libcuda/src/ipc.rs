//! Memory of another process by handles, as `cuIpcGetMemHandle` and `cuIpcOpenMemHandle` have it.
//!
//! The emulated GPU's memory is a memfd, so another process of the same user can map its pages
//! through `/proc/PID/fd`. A handle names a process and a *record*, a memfd of that process that
//! tells which pages an allocation has and whether it is still there. As with the real driver, a
//! handle is the whole allocation's, the process that gave it cannot open it, an allocation that is
//! open already is opened once more at the same address, and one that is opened cannot be shared
//! on.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use ringbell_cuda_kernels::Gpu;
use ringbell_nic_abi::GpuVa;
use rustix::mm::{MapFlags, ProtFlags};

use crate::allocation::{self, PAGE};
use crate::{
    call, gpu, lock, put, ready, Result, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE,
    NOT_SUPPORTED,
};

/// CUipcMemHandle.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handle {
    bytes: [u8; 64],
}

const NAME: [u8; 4] = *b"mIPC";
/// First word of a record while its allocation is there.
const ALIVE: u64 = 0x6576_696c_6120_6d49;

/// Words of a record: ALIVE, number, offset of the first byte in its page, bytes, then for each
/// page a descriptor and the offset there: the GPU's memfd, or that of a dma-buf.
struct Record {
    file: File,
}

#[derive(Default)]
struct State {
    /// Ours, by the number of the allocation.
    given: BTreeMap<u64, Record>,
    /// Others', by process and number: address and users.
    open: BTreeMap<(u32, u64), (u64, usize)>,
}

static STATE: Mutex<State> = Mutex::new(State {
    given: BTreeMap::new(),
    open: BTreeMap::new(),
});

fn words(file: &File, count: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let word = |b: &[u8]| u64::from_ne_bytes(b.try_into().expect("eight bytes"));
    Some(bytes.chunks_exact(8).map(word).collect())
}

fn write_record(id: u64, va: u64, len: u64) -> Option<Record> {
    let real: &Gpu = gpu();
    let table = real.page_table(GpuVa(va), len).ok()?;
    let memory = real.memory();
    let exports = memory.exports();
    let export = exports.first()?;
    let fd = export.fd.as_raw_fd();
    let mut all = vec![ALIVE, id, va - table.base.0, len];
    for (i, bus) in table.pages.iter().enumerate() {
        let at = table.base.0 + i as u64 * PAGE;
        let (fd, offset) = match crate::dma_buf::page(at) {
            Some(exported) => exported?,
            None => (fd, bus - export.bus + export.file_offset),
        };
        all.extend([fd as u64, offset]);
    }
    let bytes: Vec<u8> = all.into_iter().flat_map(u64::to_ne_bytes).collect();
    let record = rustix::fs::memfd_create("mock-ipc", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let file = File::from(record);
    file.write_all_at(&bytes, 0).ok()?;
    Some(Record { file })
}

/// Marks the allocation as freed: it can no longer be opened.
pub(crate) fn forget(id: u64) {
    // Closing is not enough: the number of the descriptor is used again.
    if let Some(record) = lock(&STATE).given.remove(&id) {
        let _ = record.file.write_all_at(&[0; 8], 0);
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, va: u64) -> Result {
    call(|| {
        ready()?;
        if crate::faults().no_ipc {
            return Err(NOT_SUPPORTED);
        }
        let (id, len) = allocation::shareable(va).ok_or(INVALID_VALUE)?;
        let mut state = lock(&STATE);
        if let std::collections::btree_map::Entry::Vacant(e) = state.given.entry(id) {
            e.insert(write_record(id, va, len).ok_or(INVALID_VALUE)?);
        }
        let fd = state.given.get(&id).map_or(-1, |r| r.file.as_raw_fd());
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&NAME);
        bytes[4..8].copy_from_slice(&std::process::id().to_ne_bytes());
        bytes[8..12].copy_from_slice(&fd.to_ne_bytes());
        bytes[16..24].copy_from_slice(&id.to_ne_bytes());
        // SAFETY: the caller's pointer.
        unsafe { put(handle, Handle { bytes }) }
    })
}

/// Maps the pages of another process's allocation one after the other. The address of the first
/// byte, and the length.
fn map(pid: u32, record: i32, id: u64) -> Option<(u64, u64)> {
    let path = |fd: i64| format!("/proc/{pid}/fd/{fd}");
    let file = File::open(path(record.into())).ok()?;
    let head = words(&file, 4)?;
    let &[alive, found, inside, len] = &head[..] else {
        return None;
    };
    if alive != ALIVE || found != id {
        return None;
    }
    let pages = (inside + len).div_ceil(PAGE) as usize;
    let places = words(&file, 4 + 2 * pages)?.split_off(4);
    let mut files: BTreeMap<u64, OwnedFd> = BTreeMap::new();
    for place in places.chunks_exact(2) {
        if let std::collections::btree_map::Entry::Vacant(e) = files.entry(place[0]) {
            let open = File::options()
                .read(true)
                .write(true)
                .open(path(place[0] as i64));
            e.insert(open.ok()?.into());
        }
    }
    let all = pages * PAGE as usize;
    // One page more, so that the place can be aligned as memory of a GPU is.
    // SAFETY: a fresh mapping touches nothing that exists.
    let room = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            all + PAGE as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let base = (room.ok()? as u64).next_multiple_of(PAGE);
    for (i, place) in places.chunks_exact(2).enumerate() {
        let at = (base + i as u64 * PAGE) as *mut c_void;
        // SAFETY: inside the room that was just reserved.
        let mapped = unsafe {
            rustix::mm::mmap(
                at,
                PAGE as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &files[&place[0]],
                place[1],
            )
        };
        mapped.ok()?;
    }
    Some((base + inside, len))
}

#[no_mangle]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    va: *mut u64,
    handle: Handle,
    flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        let handle = handle.bytes;
        let number = |at: usize| u32::from_ne_bytes(handle[at..at + 4].try_into().expect("four"));
        let (pid, fd) = (number(4), number(8) as i32);
        let id = u64::from_ne_bytes(handle[16..24].try_into().expect("eight"));
        if handle[..4] != NAME || flags != 1 {
            return Err(INVALID_VALUE);
        }
        if pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        crate::strict::may_wait("cuIpcOpenMemHandle");
        let mut state = lock(&STATE);
        let at = match state.open.get_mut(&(pid, id)) {
            Some((at, users)) => {
                *users += 1;
                *at
            }
            None => {
                let (at, len) = map(pid, fd, id).ok_or(INVALID_HANDLE)?;
                allocation::import(at, len);
                state.open.insert((pid, id), (at, 1));
                at
            }
        };
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuIpcCloseMemHandle(va: u64) -> Result {
    call(|| {
        ready()?;
        let mut state = lock(&STATE);
        let (key, users) = state
            .open
            .iter_mut()
            .find(|(_, (at, _))| *at == va)
            .map(|(key, (_, users))| (*key, users))
            .ok_or(INVALID_VALUE)?;
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        state.open.remove(&key);
        // As the real one does: nothing that was queued before may still use the memory.
        crate::strict::wait_for_all("cuIpcCloseMemHandle");
        crate::stream::synchronize_all()?;
        let len = allocation::close(va).ok_or(INVALID_VALUE)?;
        let first = va / PAGE * PAGE;
        let bytes = (va + len - first).next_multiple_of(PAGE) as usize;
        // SAFETY: mapped by `map`, whole pages.
        let _ = unsafe { rustix::mm::munmap(first as *mut c_void, bytes) };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [c_char; 16], device: c_int) -> Result {
    let mut name = *b"mock GPU of boot";
    // Another process may be told to see another GPU.
    if crate::faults().other_gpu {
        name[0] = b'M';
    }
    call(|| match device {
        // SAFETY: the caller's pointer.
        0 => unsafe { put(uuid, name.map(|b| b as c_char)) },
        _ => Err(INVALID_VALUE),
    })
}
