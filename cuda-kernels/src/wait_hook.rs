//! A NIC's [`WaitHook`] between two libraries of a process: the SDK in a program, and the emulated
//! GPU's `libcuda.so.1`.
//!
//! The SDK looks for the function [`SYMBOL`] in the CUDA driver, and gives it each NIC by C types,
//! because the two may be of different builds. NVIDIA's driver has no such function. The number in
//! the name changes with the types.
//!
//! The NIC stays the SDK's: the driver holds a weak reference, and a turn says when nothing is
//! behind it any more.
#![allow(unsafe_code)] // Functions of another library.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ringbell_gtlb::{DmaMemory, WaitHook};

use crate::locks::lock;

/// The driver's function, an [`Accept`].
pub const SYMBOL: &str = "ringbell_wait_hook_1";

/// Takes a NIC.
pub type Accept = unsafe extern "C" fn(nic: OfferedNic);

/// Whether what a waiting thread waits for is there; the argument is the thread's own.
type Done = unsafe extern "C" fn(thread: *const c_void) -> bool;

/// Results of a turn: nothing moved, something did, there is no NIC any more.
const IDLE: u32 = 0;
const MOVED: u32 = 1;
const GONE: u32 = 2;

/// A NIC as C types, released when it is dropped.
#[repr(C)]
#[derive(Debug)]
pub struct OfferedNic {
    /// The argument of the functions.
    nic: *mut c_void,
    /// A turn of waiting, as [`WaitHook::turn`].
    turn: unsafe extern "C" fn(*mut c_void, idle: u32, done: Done, thread: *const c_void) -> u32,
    release: unsafe extern "C" fn(*mut c_void),
    /// Its address in words, and how many bytes that is; valid until [`Accept`] returns.
    name: *const u8,
    name_bytes: usize,
}

// SAFETY: the functions may be called by any thread; the name is read by `accept` alone.
unsafe impl Send for OfferedNic {}
// SAFETY: as for Send.
unsafe impl Sync for OfferedNic {}

impl Drop for OfferedNic {
    fn drop(&mut self) {
        // SAFETY: of `offer`; nothing uses it any more.
        unsafe { (self.release)(self.nic) }
    }
}

/// Gives a NIC to the driver whose function this is.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn offer(driver: Accept, nic: Weak<dyn WaitHook>, name: &str) {
    let offered = OfferedNic {
        nic: Box::into_raw(Box::new(nic)).cast(),
        turn,
        release,
        name: name.as_ptr(),
        name_bytes: name.len(),
    };
    // SAFETY: the functions take what `nic` is; the name lives longer than the call.
    unsafe { driver(offered) }
}

unsafe extern "C" fn turn(nic: *mut c_void, idle: u32, done: Done, thread: *const c_void) -> u32 {
    // SAFETY: of `offer`, and not released during a turn.
    let nic = unsafe { &*nic.cast::<Weak<dyn WaitHook>>() };
    match nic.upgrade() {
        // SAFETY: the caller's function with its argument, during its call.
        Some(nic) => match nic.turn(idle, &|| unsafe { done(thread) }) {
            true => MOVED,
            false => IDLE,
        },
        None => GONE,
    }
}

unsafe extern "C" fn release(nic: *mut c_void) {
    // SAFETY: of `offer`, released once.
    drop(unsafe { Box::from_raw(nic.cast::<Weak<dyn WaitHook>>()) });
}

/// NICs of other libraries that are not gone: memories hold them weakly.
static ACCEPTED: Mutex<Vec<Arc<Foreign>>> = Mutex::new(Vec::new());

/// Lets the threads that run kernels of a memory step a NIC which another library offers.
///
/// # Safety
/// `nic` is from `offer` of a library of this process, which stays loaded.
pub unsafe fn accept(nic: OfferedNic, memory: &dyn DmaMemory) {
    // SAFETY: the caller's contract.
    let name = unsafe { std::slice::from_raw_parts(nic.name, nic.name_bytes) };
    let name = String::from_utf8_lossy(name).into_owned();
    let nic = Arc::new(Foreign {
        nic,
        gone: AtomicBool::new(false),
    });
    let hook: Arc<dyn WaitHook> = nic.clone();
    memory.on_wait(Arc::downgrade(&hook), &name);
    lock(&ACCEPTED).push(nic);
}

/// A NIC of another library.
struct Foreign {
    nic: OfferedNic,
    gone: AtomicBool,
}

impl WaitHook for Foreign {
    fn turn(&self, idle: u32, done: &dyn Fn() -> bool) -> bool {
        unsafe extern "C" fn call(thread: *const c_void) -> bool {
            // SAFETY: the reference below, which lives during the turn.
            unsafe { (*thread.cast::<&dyn Fn() -> bool>())() }
        }
        let thread = (&raw const done).cast();
        // SAFETY: of `offer`, and not released before `self` is dropped.
        let result = unsafe { (self.nic.turn)(self.nic.nic, idle, call, thread) };
        if result == GONE && !self.gone.swap(true, Ordering::Relaxed) {
            lock(&ACCEPTED).retain(|n| !std::ptr::eq(&**n, self));
        }
        result == MOVED
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
