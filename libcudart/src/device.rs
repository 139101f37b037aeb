//! Devices: which one a thread uses, what it is, and its context.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::driver::{self, Code, Handle};
use crate::error::{call, check, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE};
use crate::{lock, put};

thread_local! {
    /// The device of this thread.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    /// The device whose context is current in this thread.
    static BOUND: Cell<c_int> = const { Cell::new(-1) };
}

/// Contexts that are held, by their devices.
static CONTEXTS: Mutex<Option<HashMap<c_int, usize>>> = Mutex::new(None);

pub(crate) fn current() -> c_int {
    DEVICE.get()
}

/// Before a call of the driver: the context of the thread's device is current.
pub(crate) fn ready() -> Result<(), Code> {
    let device = current();
    if BOUND.get() == device {
        return Ok(());
    }
    let mut all = lock(&CONTEXTS);
    let known = all.get_or_insert_with(HashMap::new);
    let context = match known.get(&device) {
        Some(context) => *context,
        None => {
            check(driver::init(0))?;
            let (mut handle, mut context) = (0, std::ptr::null_mut());
            check(driver::device_get(&mut handle, device))?;
            check(driver::retain(&mut context, handle))?;
            known.insert(device, context as usize);
            context as usize
        }
    };
    check(driver::set_current(context as Handle))?;
    BOUND.set(device);
    Ok(())
}

fn count() -> Result<c_int, Code> {
    check(driver::init(0))?;
    let mut n = 0;
    check(driver::device_count(&mut n))?;
    Ok(n)
}

fn attribute(attribute: c_int, device: c_int) -> Result<c_int, Code> {
    let mut value = 0;
    check(driver::device_attribute(&mut value, attribute, device))?;
    Ok(value)
}

#[no_mangle]
pub extern "C" fn cudaGetDeviceCount(to: *mut c_int) -> Code {
    call(|| {
        let n = count()?;
        put(to, n)?;
        if n == 0 {
            return Err(NO_DEVICE);
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cudaGetDevice(to: *mut c_int) -> Code {
    call(|| put(to, current()))
}

#[no_mangle]
pub extern "C" fn cudaSetDevice(device: c_int) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        DEVICE.set(device);
        ready()
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceSynchronize() -> Code {
    call(|| {
        ready()?;
        check(driver::synchronize())
    })
}

/// Waits for all work. Memory and modules stay, because other threads may use them.
#[no_mangle]
pub extern "C" fn cudaDeviceReset() -> Code {
    cudaDeviceSynchronize()
}

#[no_mangle]
pub extern "C" fn cudaSetDeviceFlags(_flags: c_uint) -> Code {
    0
}

#[no_mangle]
pub extern "C" fn cudaDriverGetVersion(to: *mut c_int) -> Code {
    call(|| check(driver::driver_version(to)))
}

/// 13.0: the newest names that it has are of this version.
#[no_mangle]
pub extern "C" fn cudaRuntimeGetVersion(to: *mut c_int) -> Code {
    call(|| put(to, 13_000))
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetAttribute(to: *mut c_int, id: c_int, device: c_int) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        put(to, attribute(id, device)?)
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceCanAccessPeer(to: *mut c_int, device: c_int, peer: c_int) -> Code {
    call(|| {
        count()?;
        check(driver::device_can_access_peer(to, device, peer))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Code {
    call(|| {
        ready()?;
        check(driver::priorities(least, greatest))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetLimit(to: *mut usize, limit: c_uint) -> Code {
    call(|| {
        ready()?;
        check(driver::get_limit(to, limit))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceSetLimit(limit: c_uint, value: usize) -> Code {
    call(|| {
        ready()?;
        check(driver::set_limit(limit, value))
    })
}

/// cudaDeviceProp of CUDA 12, as far as the driver's attributes say it; the rest is 0.
#[repr(C)]
#[derive(Debug)]
pub struct Properties {
    name: [c_char; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_mask: c_uint,
    total_global: usize,
    shared_per_block: usize,
    regs_per_block: c_int,
    warp_size: c_int,
    mem_pitch: usize,
    max_threads_per_block: c_int,
    max_threads_dim: [c_int; 3],
    max_grid_size: [c_int; 3],
    clock_rate: c_int,
    total_const: usize,
    major: c_int,
    minor: c_int,
    texture_alignment: usize,
    texture_pitch_alignment: usize,
    device_overlap: c_int,
    multiprocessors: c_int,
    kernel_timeout: c_int,
    integrated: c_int,
    can_map_host: c_int,
    compute_mode: c_int,
    /// Extents of textures and surfaces, of which there are none.
    textures: [c_int; 40],
    surface_alignment: usize,
    concurrent_kernels: c_int,
    ecc: c_int,
    pci_bus: c_int,
    pci_device: c_int,
    pci_domain: c_int,
    tcc: c_int,
    async_engines: c_int,
    unified_addressing: c_int,
    memory_clock: c_int,
    memory_bus_width: c_int,
    l2_bytes: c_int,
    persisting_l2_bytes: c_int,
    threads_per_multiprocessor: c_int,
    stream_priorities: c_int,
    global_l1: c_int,
    local_l1: c_int,
    shared_per_multiprocessor: usize,
    regs_per_multiprocessor: c_int,
    managed_memory: c_int,
    multi_gpu_board: c_int,
    multi_gpu_board_group: c_int,
    host_native_atomics: c_int,
    single_to_double: c_int,
    pageable_access: c_int,
    concurrent_managed: c_int,
    compute_preemption: c_int,
    host_pointer_of_registered: c_int,
    cooperative_launch: c_int,
    cooperative_multi_device: c_int,
    shared_per_block_optin: usize,
    pageable_page_tables: c_int,
    direct_managed: c_int,
    blocks_per_multiprocessor: c_int,
    access_policy_window: c_int,
    reserved_shared: usize,
    /// What came with CUDA 11 and later, and room for more.
    rest: [c_int; 76],
}

/// Which attribute of the driver a field is, by CUdevice_attribute.
fn fill(p: &mut Properties, device: c_int) -> Result<(), Code> {
    let get = |id| attribute(id, device);
    let bytes = |id| Ok::<usize, Code>(attribute(id, device)?.max(0) as usize);
    check(driver::device_name(p.name.as_mut_ptr(), 256, device))?;
    check(driver::device_memory(&mut p.total_global, device))?;
    p.max_threads_per_block = get(1)?;
    p.max_threads_dim = [get(2)?, get(3)?, get(4)?];
    p.max_grid_size = [get(5)?, get(6)?, get(7)?];
    p.shared_per_block = bytes(8)?;
    p.total_const = bytes(9)?;
    p.warp_size = get(10)?;
    p.mem_pitch = bytes(11)?;
    p.regs_per_block = get(12)?;
    p.clock_rate = get(13)?;
    p.texture_alignment = bytes(14)?;
    p.device_overlap = get(15)?;
    p.multiprocessors = get(16)?;
    p.kernel_timeout = get(17)?;
    p.integrated = get(18)?;
    p.can_map_host = get(19)?;
    p.compute_mode = get(20)?;
    p.concurrent_kernels = get(31)?;
    p.ecc = get(32)?;
    p.pci_bus = get(33)?;
    p.pci_device = get(34)?;
    p.memory_clock = get(36)?;
    p.memory_bus_width = get(37)?;
    p.l2_bytes = get(38)?;
    p.threads_per_multiprocessor = get(39)?;
    p.async_engines = get(40)?;
    p.unified_addressing = get(41)?;
    p.pci_domain = get(50)?;
    (p.major, p.minor) = (get(75)?, get(76)?);
    p.stream_priorities = get(78)?;
    p.shared_per_multiprocessor = bytes(81)?;
    p.regs_per_multiprocessor = get(82)?;
    p.managed_memory = get(83)?;
    p.host_native_atomics = get(86)?;
    p.pageable_access = get(88)?;
    p.concurrent_managed = get(89)?;
    p.host_pointer_of_registered = get(91)?;
    p.cooperative_launch = get(95)?;
    p.shared_per_block_optin = bytes(97)?;
    p.blocks_per_multiprocessor = get(106)?;
    p.reserved_shared = bytes(111)?;
    Ok(())
}

/// Under this name since CUDA 12. Before and after that the structure is another one, so that there is no function of
/// the plain name.
#[no_mangle]
pub extern "C" fn cudaGetDeviceProperties_v2(to: *mut c_void, device: c_int) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: integers and arrays of them, for which zeros are values.
        let mut p: Properties = unsafe { std::mem::zeroed() };
        fill(&mut p, device)?;
        // SAFETY: the caller's structure, of this size since CUDA 12.
        unsafe { to.cast::<Properties>().write(p) };
        Ok(())
    })
}

// cudaDeviceProp of CUDA 12 has so many bytes.
const _: () = assert!(size_of::<Properties>() == 1032);
