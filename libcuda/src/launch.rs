//! Launches: what a driver checks before it takes one, and the kernels' parameters.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use ringbell_cuda_kernels::{Dim3, KernelArg, LaunchShape};

use crate::gpu::{sms, MOST_SHARED_BYTES, SHARED_BYTES, SHARED_BYTES_OF_SM};
use crate::module::{function, Function};
use crate::operation::{KernelCall, Operation};
use crate::stream::submit;
use crate::{
    call, ready, strict, Result, COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_VALUE, NOT_SUPPORTED,
};

/// Bytes of shared memory of a block: the kernel's own and what a launch asks for.
pub(crate) fn needs(f: &Function, dynamic: u64) -> std::result::Result<u64, Result> {
    Ok(u64::from(f.needs()?.shared_bytes) + dynamic)
}

/// Blocks of so many lanes, with so much shared memory, that a multiprocessor holds at once.
pub(crate) fn resident(lanes: u64, shared: u64) -> u64 {
    let by_lanes = (2048 / lanes.next_multiple_of(32)).min(32);
    by_lanes.min(SHARED_BYTES_OF_SM / (shared + 1024))
}

/// A launch as a program asks for it.
pub(crate) struct Request {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) cooperative: bool,
}

impl Request {
    /// The shape, if the GPU takes it.
    fn check(&self, f: &Function) -> std::result::Result<LaunchShape, Result> {
        let [gx, gy, gz] = self.grid;
        let [bx, by, bz] = self.block;
        let threads = self.block.iter().map(|n| u64::from(*n)).product::<u64>();
        let grid =
            gx > 0 && gx < 1 << 31 && (1..=65_535).contains(&gy) && (1..=65_535).contains(&gz);
        let block = (1..=1024).contains(&bx) && (1..=1024).contains(&by) && (1..=64).contains(&bz);
        if !grid || !block || threads > f.max_threads() {
            return Err(INVALID_VALUE);
        }
        let total = needs(f, self.shared.into())?;
        let most = f.most_dynamic.load(Ordering::Relaxed);
        let fits = total <= SHARED_BYTES.into() || self.shared <= most && most > SHARED_BYTES;
        if !fits || total > MOST_SHARED_BYTES.into() {
            return Err(INVALID_VALUE);
        }
        let blocks = self.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        if self.cooperative && blocks > resident(threads, total) * sms() as u64 {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let [grid, block] = [self.grid, self.block].map(|[x, y, z]| Dim3 { x, y, z });
        Ok(LaunchShape {
            grid,
            block,
            dynamic_shared: Some(self.shared),
        })
    }
}

/// CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END, of which `extra` is a list.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// The parameters: a pointer for each, or a buffer with all at their offsets.
///
/// # Safety
/// `params` has a pointer for each parameter, or `extra` is a list that names a buffer and its
/// size.
unsafe fn arguments(
    f: &Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> std::result::Result<Vec<KernelArg>, Result> {
    let copy = |from: *const u8, bytes: usize| {
        // SAFETY: a value of the parameter's size, by the caller's contract.
        KernelArg::Bytes(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec())
    };
    if extra.is_null() {
        if params.is_null() && !f.parameters.is_empty() {
            return Err(INVALID_VALUE);
        }
        let each = f.parameters.iter().enumerate().map(|(i, (bytes, _))| {
            // SAFETY: one pointer for each parameter, to a value of its size: the kernel's
            // signature.
            let at = unsafe { *params.add(i) };
            match at.is_null() {
                true => Err(INVALID_VALUE),
                false => Ok(copy(at.cast(), *bytes)),
            }
        });
        return each.collect();
    }
    if !params.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut buffer, mut size, mut i) = (std::ptr::null::<u8>(), 0, 0);
    loop {
        // SAFETY: a list of names and values, ended by 0.
        let name = unsafe { *extra.add(i) } as usize;
        match name {
            // SAFETY: as above.
            BUFFER_POINTER => buffer = unsafe { *extra.add(i + 1) }.cast_const().cast(),
            // SAFETY: as above.
            BUFFER_SIZE => size = unsafe { *(*extra.add(i + 1)).cast::<usize>() },
            0 => break,
            _ => return Err(INVALID_VALUE),
        }
        i += 2;
    }
    let end = f.parameters.iter().map(|(bytes, at)| bytes + at).max();
    if end.unwrap_or(0) > size || buffer.is_null() && size > 0 {
        return Err(INVALID_VALUE);
    }
    let each = f.parameters.iter();
    Ok(each
        .map(|(n, at)| copy(buffer.wrapping_add(*at), *n))
        .collect())
}

/// A kernel with its arguments, when the GPU takes them.
///
/// # Safety
/// As [`arguments`].
pub(crate) unsafe fn kernel_call(
    f: *mut c_void,
    request: &Request,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> std::result::Result<Operation, Result> {
    let function = function(f)?;
    let shape = request.check(&function)?;
    // SAFETY: the caller's contract.
    let args = unsafe { arguments(&function, params, extra)? };
    function.prepare()?;
    Ok(Operation::Kernel(Arc::new(KernelCall {
        function,
        shape,
        args,
    })))
}

/// # Safety
/// As [`arguments`].
unsafe fn launch(
    f: *mut c_void,
    request: &Request,
    s: *mut c_void,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> std::result::Result<(), Result> {
    ready()?;
    // SAFETY: the caller's contract.
    let call = unsafe { kernel_call(f, request, params, extra)? };
    strict::make_room(s as usize);
    submit(s, &call)
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernel(
    f: *mut c_void,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    s: *mut c_void,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let request = Request {
        grid: [gx, gy, gz],
        block: [bx, by, bz],
        shared,
        cooperative: false,
    };
    // SAFETY: the caller's arguments.
    call(|| unsafe { launch(f, &request, s, params, extra) })
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    f: *mut c_void,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    s: *mut c_void,
    params: *mut *mut c_void,
) -> Result {
    let request = Request {
        grid: [gx, gy, gz],
        block: [bx, by, bz],
        shared,
        cooperative: true,
    };
    let extra = std::ptr::null_mut();
    // SAFETY: the caller's arguments.
    call(|| unsafe { launch(f, &request, s, params, extra) })
}

/// CUlaunchConfig.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// CUlaunchAttribute: its number, and a value of 64 bytes.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchAttribute {
    id: c_int,
    _pad: [u8; 4],
    value: [u32; 16],
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    f: *mut c_void,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    call(|| {
        // SAFETY: the caller's structure, or null.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        let mut cooperative = false;
        for i in 0..config.count as usize {
            // SAFETY: as many attributes as said.
            let attribute = unsafe { &*config.attributes.add(i) };
            match (attribute.id, attribute.value) {
                (2, v) => cooperative = v[0] != 0,
                // A cluster is one block here.
                (4, [1, 1, 1, ..]) => {}
                (4, _) => return Err(NOT_SUPPORTED),
                // Caches, the schedulers' policies, priorities, domains of memory: nothing here
                // depends on them. Nor does a kernel begin before the one in front of it has ended.
                _ => {}
            }
        }
        let request = Request {
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            cooperative,
        };
        // SAFETY: the caller's arguments.
        unsafe { launch(f, &request, config.stream, params, extra) }
    })
}

/// Copies by descriptors of tensors are not emulated.
#[no_mangle]
pub unsafe extern "C" fn cuTensorMapEncodeTiled() -> Result {
    NOT_SUPPORTED
}
