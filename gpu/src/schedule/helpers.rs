//! Functions of the host that compiled code calls.
#![allow(unsafe_code)] // Compiled code passes its own thread.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::print;
use crate::context::{mark, why, Surroundings, Thread, BUDGET};
use crate::hooks::{marked, How};
use crate::module::Scope;
use crate::number::float;

/// # Safety
/// `t` is the running thread, inside a step.
#[inline(always)]
unsafe fn surroundings<'a>(t: *const Thread) -> &'a Surroundings<'a> {
    // SAFETY: a step sets the pointer for as long as it runs.
    unsafe { &*(*(*t).block).surroundings.cast() }
}

/// An access that is not in GPU memory: 1 if the thread may go on.
///
/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn check(t: *mut Thread, address: u64, bytes: u32, site: u32) -> u32 {
    // SAFETY: the caller's contract; the block outlives its threads.
    unsafe {
        let n = u64::from(bytes & 0xff);
        let block = &*(*t).block;
        let aligned = address & (n - 1) == 0;
        if aligned && block.allowed.known(address, n) {
            return 1;
        }
        let inside = |base: u64, len: u64| {
            let offset = address.wrapping_sub(base);
            offset <= len && len - offset >= n
        };
        let shared = inside(block.shared as u64, block.shared_bytes);
        let local = inside((*t).local as u64, u64::from(block.local_bytes));
        let parameter =
            bytes >> 31 == 0 && inside(block.parameters as u64, u64::from(block.parameter_bytes));
        // Of checked code, a gap between variables is no memory.
        let (space, at) = match (shared, local) {
            (true, _) => (mark::SHARED, address - block.shared as u64),
            (_, true) => (mark::LOCAL, address - (*t).local as u64),
            _ => (0, 0),
        };
        if space != 0 && !block.maps[0].is_null() {
            return check_allocated(t, at, bytes | space, site);
        }
        let other = || block.allowed.ask(surroundings(t).memory, address, n as u32);
        if aligned && (shared || local || parameter || other()) {
            return 1;
        }
        refused(t, address, bytes, site);
        0
    }
}

/// In checked code, an access of which not all is known to be allocated: 1 if it is. `at` is an
/// offset in its memory.
///
/// # Safety
/// `t` is the running thread, and the access is inside of its memory.
pub(crate) unsafe extern "C" fn check_allocated(
    t: *mut Thread,
    at: u64,
    bytes: u32,
    site: u32,
) -> u32 {
    // SAFETY: the caller's contract; a map has a byte for each 8 bytes of its memory.
    unsafe {
        let (n, block) = (u64::from(bytes & 0xff), &*(*t).block);
        let (map, base) = match bytes & mark::SPACE {
            mark::SHARED => (1, 0),
            mark::LOCAL => (2, 0),
            _ => (0, (*t).memory),
        };
        if at.is_multiple_of(n) && marked(block.maps[map], at, n) {
            return 1;
        }
        refused(t, base + at, bytes, site);
        0
    }
}

/// In traced code, an access that is allowed, at an address of the host. Accesses of local memory
/// and parameters are not those of others.
///
/// # Safety
/// `t` is the running thread, inside a step.
pub(crate) unsafe extern "C" fn touched(t: *mut Thread, at: u64, how: u32, site: u32) {
    // SAFETY: the caller's contract; a step of traced code sets both pointers and holds the trace.
    unsafe {
        let block = &*(*t).block;
        let trace = surroundings(t).trace;
        if trace.is_null() {
            return;
        }
        let (trace, own, number) = (&mut *trace, &mut *block.trace, (*t).number);
        let how = How::unpack(how);
        if trace.passes(own, (number, site), at, how) {
            return;
        }
        let inside = |base: u64, len: u32| at.wrapping_sub(base) < u64::from(len);
        let of_thread = inside((*t).local as u64, block.local_bytes)
            || inside(block.parameters as u64, block.parameter_bytes);
        if !of_thread {
            trace.access(own, number, at, how, site);
        }
    }
}

/// In traced code, a fence: for the block, or not 0 for all.
///
/// # Safety
/// As `touched`.
pub(crate) unsafe extern "C" fn fenced(t: *mut Thread, wide: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        let block = &*(*t).block;
        if !block.trace.is_null() {
            let scope = if wide == 0 { Scope::Block } else { Scope::Gpu };
            (*block.trace).fence((*t).number, scope);
        }
    }
}

/// Notes a refused access.
///
/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn refused(t: *mut Thread, address: u64, bytes: u32, site: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        (*t).address = address;
        (*t).bytes = bytes;
        (*t).site = site;
    }
}

/// At a spent budget of a loop without ordered loads and atomics: whether the launch is to end.
///
/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn renew(t: *mut Thread) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        (*t).budget = BUDGET;
        let stop = surroundings(t).stop.load(Ordering::Relaxed);
        if stop != 0 {
            (*t).why = why::STOPPED;
        }
        stop
    }
}

/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn now(t: *mut Thread) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { surroundings(t).clock.now_ns() }
}

/// `bar.arrive` (§9.7.13.1).
///
/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn barrier_arrive(t: *mut Thread, id: u32, count: u32) {
    // SAFETY: the caller's contract; the block outlives its threads.
    let block = unsafe { &*(*t).block };
    let [arrived, of] = &block.arrived[id as usize & 15];
    block.arrivals.store(1, Ordering::Relaxed);
    arrived.fetch_add(1, Ordering::Relaxed);
    of.store(count, Ordering::Relaxed);
}

/// `barrier.cluster.arrive` (§9.7.13.3).
///
/// # Safety
/// `t` is the running thread.
pub(crate) unsafe extern "C" fn cluster_arrive(t: *mut Thread) {
    // SAFETY: the caller's contract; the block outlives its threads.
    unsafe {
        let [arrived, number] = &(*(*t).block).cluster;
        arrived.fetch_add(1, Ordering::Relaxed);
        (*t).cluster = number.load(Ordering::Relaxed);
    }
}

macro_rules! add_float {
    ($name:ident, $float:ty, $atomic:ty) => {
        /// # Safety
        /// `at` was checked: aligned, and in memory that is accessed atomically.
        pub(crate) unsafe extern "C" fn $name(at: u64, v: $float) -> $float {
            // SAFETY: the caller's contract.
            let word = unsafe { <$atomic>::from_ptr(at as *mut _) };
            let add = |old| Some((<$float>::from_bits(old) + v).to_bits());
            let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
            <$float>::from_bits(old.unwrap_or_else(|old| old))
        }
    };
}
add_float!(add_f32, f32, AtomicU32);
add_float!(add_f64, f64, AtomicU64);

macro_rules! add_half {
    ($name:ident, $bits:ty, $atomic:ty) => {
        /// `atom.add.noftz` of a half or a pair, by a packed [`Task`](crate::number::Task).
        ///
        /// # Safety
        /// As `add_f32`.
        pub(crate) unsafe extern "C" fn $name(at: u64, v: u32, task: u32) -> u32 {
            // SAFETY: the caller's contract.
            let word = unsafe { <$atomic>::from_ptr(at as *mut _) };
            let add = |old: $bits| Some(float(task, u64::from(old), u64::from(v), 0) as $bits);
            let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
            u32::from(old.unwrap_or_else(|old| old))
        }
    };
}
add_half!(add_half, u16, AtomicU16);
add_half!(add_halves, u32, AtomicU32);

/// `atom.inc` (§9.7.13.5).
///
/// # Safety
/// As `add_f32`.
pub(crate) unsafe extern "C" fn increment(at: u64, most: u32) -> u32 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
    let next = |old| Some(if old >= most { 0 } else { old + 1 });
    let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    old.unwrap_or_else(|old| old)
}

/// `atom.dec` (§9.7.13.5).
///
/// # Safety
/// As `add_f32`.
pub(crate) unsafe extern "C" fn decrement(at: u64, most: u32) -> u32 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
    let next = |old| {
        Some(if old == 0 || old > most {
            most
        } else {
            old - 1
        })
    };
    let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    old.unwrap_or_else(|old| old)
}

pub(crate) extern "C" fn ex2(x: f32) -> f32 {
    x.exp2()
}
pub(crate) extern "C" fn lg2(x: f32) -> f32 {
    x.log2()
}
pub(crate) extern "C" fn sin(x: f32) -> f32 {
    x.sin()
}
pub(crate) extern "C" fn cos(x: f32) -> f32 {
    x.cos()
}
pub(crate) extern "C" fn tanh(x: f32) -> f32 {
    x.tanh()
}

/// What is returned where memory that is to be printed may not be read; the access is noted in the
/// thread.
pub(crate) const UNREADABLE: u64 = 1 << 32;

/// Reads what a thread may read, for functions of the system.
///
/// # Safety
/// `t` is the running thread, and `base` and `len` are GPU memory.
unsafe fn reader(
    t: *mut Thread,
    site: u32,
    (base, len): (u64, u64),
) -> impl Fn(u64, u64) -> Result<u64, u64> {
    move |at, bytes| {
        let offset = at.wrapping_sub(base);
        let inside = offset <= len && len - offset >= bytes && at.is_multiple_of(bytes);
        // SAFETY: the caller's contract; what is read was found to be allowed.
        unsafe {
            if !inside && check(t, at, bytes as u32, site) == 0 {
                return Err(at);
            }
            Ok(match bytes {
                1 => u64::from(*(at as *const u8)),
                4 => u64::from(*(at as *const u32)),
                _ => *(at as *const u64),
            })
        }
    }
}

/// `vprintf`: the number of arguments, or [`UNREADABLE`]; -1 without a format.
///
/// # Safety
/// As `reader`.
pub(crate) unsafe extern "C" fn vprintf(
    t: *mut Thread,
    format: u64,
    list: u64,
    site: u32,
    base: u64,
    len: u64,
) -> u64 {
    if format == 0 {
        return u64::from(u32::MAX);
    }
    // SAFETY: the caller's contract.
    let read = unsafe { reader(t, site, (base, len)) };
    match print::format(&read, format, list) {
        Ok((text, taken)) => {
            // SAFETY: the caller's contract.
            unsafe { (*surroundings(t).output).print(&text) };
            u64::from(taken)
        }
        Err(_) => UNREADABLE,
    }
}

/// `__assertfail`: prints what did not hold and where, as CUDA does; [`UNREADABLE`], or 0.
///
/// # Safety
/// As `reader`.
pub(crate) unsafe extern "C" fn assert_fail(
    t: *mut Thread,
    message: u64,
    file: u64,
    line: u32,
    function: u64,
    site: u32,
    base: u64,
    len: u64,
) -> u64 {
    // SAFETY: the caller's contract.
    let read = unsafe { reader(t, site, (base, len)) };
    let word = |at: u64| match at {
        0 => Ok(b"?".to_vec()),
        at => print::string(&read, at),
    };
    let words = [file, function, message].map(word);
    let [Ok(file), Ok(function), Ok(message)] = words else {
        return UNREADABLE;
    };
    let [file, function, message] =
        [file, function, message].map(|w| String::from_utf8_lossy(&w).into_owned());
    // SAFETY: the caller's contract; the block outlives its threads.
    let (block, thread) = unsafe { ((*(*t).block).ctaid, (*t).tid) };
    let text = format!(
        "{file}:{line}: {function}: block: {block:?}, thread: {thread:?} Assertion `{message}` failed.\n"
    );
    // SAFETY: the caller's contract.
    unsafe { (*surroundings(t).output).print(text.as_bytes()) };
    0
}
