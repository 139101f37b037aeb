//! Launches: configurations of `<<<>>>`, kernels with their arguments, attributes, occupancy.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};

use crate::device::ready;
use crate::driver::{self, Code, Handle};
use crate::error::{
    call, check, keep, INVALID_CONFIGURATION, INVALID_VALUE, MISSING_CONFIGURATION,
};
use crate::put;
use crate::registry::function;
use crate::stream::stream;

/// dim3.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// What `<<<>>>` says.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
}

thread_local! {
    /// Configurations of calls that are being made.
    static PUSHED: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// `<<<grid, block, shared, stream>>>`: 0 lets the call be made.
#[no_mangle]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
) -> c_uint {
    let pushed = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    PUSHED.with_borrow_mut(|p| p.push(pushed));
    0
}

/// The compiled stub of a kernel takes its configuration.
#[no_mangle]
pub extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut Handle,
) -> Code {
    call(|| {
        let popped = PUSHED.with_borrow_mut(Vec::pop);
        let popped = popped.ok_or(MISSING_CONFIGURATION)?;
        put(grid, popped.grid)?;
        put(block, popped.block)?;
        put(shared, popped.shared)?;
        put(stream, popped.stream)
    })
}

impl Configuration {
    /// What the runtime calls a wrong configuration, where the driver says only that a value is
    /// wrong.
    fn check(&self, f: Handle) -> Result<(), Code> {
        let mut most = 0;
        check(driver::function_attribute(&mut most, 0, f))?;
        let Dim3 { x, y, z } = self.block;
        let threads = u64::from(x) * u64::from(y) * u64::from(z);
        let grid = self.grid.x > 0
            && (1..=65_535).contains(&self.grid.y)
            && (1..=65_535).contains(&self.grid.z);
        if !grid || threads == 0 || threads > most as u64 || z > 64 {
            return Err(INVALID_CONFIGURATION);
        }
        Ok(())
    }

    fn launch(&self, f: Handle, args: *mut *mut c_void, cooperative: bool) -> Result<(), Code> {
        self.check(f)?;
        let (g, b) = (self.grid, self.block);
        let shared = c_uint::try_from(self.shared).map_err(|_| INVALID_VALUE)?;
        let s = stream(self.stream)?;
        check(match cooperative {
            true => driver::launch_cooperative(f, g.x, g.y, g.z, b.x, b.y, b.z, shared, s, args),
            false => {
                let extra = std::ptr::null_mut();
                driver::launch(f, g.x, g.y, g.z, b.x, b.y, b.z, shared, s, args, extra)
            }
        })
    }
}

#[no_mangle]
pub extern "C" fn cudaLaunchKernel(
    host: *const c_void,
    grid: Dim3,
    block: Dim3,
    args: *mut *mut c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    let c = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    call(|| c.launch(function(host)?, args, false))
}

#[no_mangle]
pub extern "C" fn cudaLaunchCooperativeKernel(
    host: *const c_void,
    grid: Dim3,
    block: Dim3,
    args: *mut *mut c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    let c = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    call(|| c.launch(function(host)?, args, true))
}

/// A kernel that `__cudaGetKernel` has given (CUDA 13).
#[no_mangle]
pub extern "C" fn __cudaLaunchKernel(
    kernel: Handle,
    grid: Dim3,
    block: Dim3,
    args: *mut *mut c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    let c = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    call(|| {
        ready()?;
        c.launch(kernel, args, false)
    })
}

/// cudaLaunchConfig_t.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

/// CUlaunchConfig.
#[repr(C)]
struct DriverConfig {
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

#[no_mangle]
pub extern "C" fn cudaLaunchKernelExC(
    config: *const LaunchConfig,
    host: *const c_void,
    args: *mut *mut c_void,
) -> Code {
    call(|| {
        // SAFETY: the caller's structure, or null.
        let c = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        let f = function(host)?;
        let plain = Configuration {
            grid: c.grid,
            block: c.block,
            shared: c.shared,
            stream: c.stream,
        };
        plain.check(f)?;
        // Attributes have the driver's numbers and layout.
        let config = DriverConfig {
            grid: c.grid,
            block: c.block,
            shared: c_uint::try_from(c.shared).map_err(|_| INVALID_VALUE)?,
            stream: stream(c.stream)?,
            attributes: c.attributes,
            count: c.count,
        };
        let at = std::ptr::from_ref(&config).cast();
        check(driver::launch_ex(at, f, args, std::ptr::null_mut()))
    })
}

#[no_mangle]
pub extern "C" fn cudaLaunchHostFunc(
    s: Handle,
    f: driver::HostFunction,
    data: *mut c_void,
) -> Code {
    call(|| {
        ready()?;
        check(driver::launch_host(stream(s)?, f, data))
    })
}

/// cudaFuncAttributes, as far as CUDA 12 fills it.
#[repr(C)]
#[derive(Debug)]
pub struct Attributes {
    shared_bytes: usize,
    const_bytes: usize,
    local_bytes: usize,
    max_threads: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    most_dynamic_shared: c_int,
    carveout: c_int,
    /// Of clusters, and reserved.
    rest: [c_int; 23],
}

#[no_mangle]
pub extern "C" fn cudaFuncGetAttributes(to: *mut Attributes, host: *const c_void) -> Code {
    call(|| {
        let f = function(host)?;
        let get = |id| {
            let mut value = 0;
            check(driver::function_attribute(&mut value, id, f)).map(|()| value)
        };
        let a = Attributes {
            max_threads: get(0)?,
            shared_bytes: get(1)?.max(0) as usize,
            const_bytes: get(2)?.max(0) as usize,
            local_bytes: get(3)?.max(0) as usize,
            registers: get(4)?,
            ptx_version: get(5)?,
            binary_version: get(6)?,
            cache_mode: get(7)?,
            most_dynamic_shared: get(8)?,
            carveout: get(9)?,
            rest: [0; 23],
        };
        put(to, a)
    })
}

/// cudaFuncAttribute has the driver's numbers.
#[no_mangle]
pub extern "C" fn cudaFuncSetAttribute(host: *const c_void, id: c_int, value: c_int) -> Code {
    call(|| check(driver::set_function_attribute(function(host)?, id, value)))
}

/// Caches have no setting here, and a kernel is checked all the same.
#[no_mangle]
pub extern "C" fn cudaFuncSetCacheConfig(host: *const c_void, _config: c_uint) -> Code {
    keep(function(host).err().unwrap_or(0))
}

#[no_mangle]
pub extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    host: *const c_void,
    threads: c_int,
    dynamic_shared: usize,
) -> Code {
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, dynamic_shared, 0)
}

#[no_mangle]
pub extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    host: *const c_void,
    threads: c_int,
    dynamic_shared: usize,
    flags: c_uint,
) -> Code {
    call(|| {
        check(driver::occupancy(
            blocks,
            function(host)?,
            threads,
            dynamic_shared,
            flags,
        ))
    })
}

/// Whether a configuration's clusters have one block, as all have here.
fn of_one_block(config: *const LaunchConfig) -> Result<bool, Code> {
    // SAFETY: the caller's structure, or null.
    let c = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
    let all = 0..c.count as usize;
    Ok(all
        .map(|i| {
            // SAFETY: as many attributes of 72 bytes as it says: the number, and the value behind 8
            // bytes.
            unsafe {
                let at = c.attributes.cast::<u32>().add(i * 18);
                (at.read(), at.add(2).cast::<[u32; 3]>().read())
            }
        })
        // CLUSTER_DIMENSION.
        .all(|(id, size)| id != 4 || size == [1, 1, 1]))
}

#[no_mangle]
pub extern "C" fn cudaOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    host: *const c_void,
    config: *const LaunchConfig,
) -> Code {
    call(|| {
        function(host)?;
        of_one_block(config)?;
        put(size, 1)
    })
}

/// How many blocks fit on the GPU; none in larger clusters.
#[no_mangle]
pub extern "C" fn cudaOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    host: *const c_void,
    config: *const LaunchConfig,
) -> Code {
    call(|| {
        let f = function(host)?;
        if !of_one_block(config)? {
            return put(clusters, 0);
        }
        // SAFETY: not null, as was checked.
        let c = unsafe { &*config };
        let threads = c
            .block
            .x
            .saturating_mul(c.block.y)
            .saturating_mul(c.block.z);
        let threads = c_int::try_from(threads).map_err(|_| INVALID_VALUE)?;
        let mut blocks = 0;
        check(driver::occupancy(&mut blocks, f, threads, c.shared, 0))?;
        let processors = crate::device::attribute(16, crate::device::current())?;
        put(clusters, blocks.saturating_mul(processors))
    })
}

// cudaFuncAttributes of CUDA 12 has so many bytes.
const _: () = assert!(size_of::<Attributes>() == 144);
