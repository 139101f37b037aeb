//! gdb's interface for compilers that run inside of the program ("JIT Compilation Interface" of its
//! manual).
//!
//! gdb stops in [`__jit_debug_register_code`] and reads the descriptor. One that comes later reads
//! the list.
#![allow(unsafe_code)] // Names and memory are those that gdb looks for.
#![allow(non_upper_case_globals)] // The names are in C.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// An object file, in a list that gdb walks (`struct jit_code_entry`).
#[repr(C)]
struct Entry {
    next: AtomicPtr<Entry>,
    previous: AtomicPtr<Entry>,
    image: *const u8,
    bytes: u64,
}

/// Where the list begins, and what has changed last (`struct jit_descriptor`).
#[repr(C)]
struct Descriptor {
    version: u32,
    action: AtomicU32,
    changed: AtomicPtr<Entry>,
    first: AtomicPtr<Entry>,
}

const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

/// gdb looks for this name.
#[no_mangle]
static __jit_debug_descriptor: Descriptor = Descriptor {
    version: 1,
    action: AtomicU32::new(0),
    changed: AtomicPtr::new(null_mut()),
    first: AtomicPtr::new(null_mut()),
};

/// gdb has a breakpoint here.
#[no_mangle]
#[inline(never)]
extern "C" fn __jit_debug_register_code() {
    // What gdb reads is written before.
    std::hint::black_box(&__jit_debug_descriptor);
}

/// One thread at a time changes the list.
static LOCK: Mutex<()> = Mutex::new(());

/// An object file that gdb knows, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    /// On the heap: gdb and the list have its address.
    entry: *mut Entry,
    _image: Box<[u8]>,
}

// SAFETY: the entry is changed under the lock alone.
unsafe impl Send for Registered {}
// SAFETY: as above; a reference to it changes nothing.
unsafe impl Sync for Registered {}

/// Lets gdb know of an object file.
pub(crate) fn register(image: Box<[u8]>) -> Registered {
    let _locked = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let list = &__jit_debug_descriptor;
    let first = list.first.load(Ordering::Relaxed);
    let entry = Box::into_raw(Box::new(Entry {
        next: AtomicPtr::new(first),
        previous: AtomicPtr::new(null_mut()),
        image: image.as_ptr(),
        bytes: image.len() as u64,
    }));
    // SAFETY: entries of the list live until they leave it, which happens under the lock.
    if let Some(first) = unsafe { first.as_ref() } {
        first.previous.store(entry, Ordering::Relaxed);
    }
    list.first.store(entry, Ordering::Relaxed);
    tell(entry, REGISTER);
    Registered {
        entry,
        _image: image,
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _locked = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made by `register`, and freed below alone.
        let entry = unsafe { &*self.entry };
        let next = entry.next.load(Ordering::Relaxed);
        let previous = entry.previous.load(Ordering::Relaxed);
        // SAFETY: its neighbours are in the list, as above.
        match unsafe { previous.as_ref() } {
            Some(p) => p.next.store(next, Ordering::Relaxed),
            None => __jit_debug_descriptor.first.store(next, Ordering::Relaxed),
        }
        // SAFETY: as above.
        if let Some(n) = unsafe { next.as_ref() } {
            n.previous.store(previous, Ordering::Relaxed);
        }
        tell(self.entry, UNREGISTER);
        // SAFETY: made of a box, and out of the list.
        drop(unsafe { Box::from_raw(self.entry) });
    }
}

/// Lets gdb read what has changed.
fn tell(entry: *mut Entry, action: u32) {
    let list = &__jit_debug_descriptor;
    list.changed.store(entry, Ordering::Relaxed);
    list.action.store(action, Ordering::Relaxed);
    __jit_debug_register_code();
    list.changed.store(null_mut(), Ordering::Relaxed);
    list.action.store(0, Ordering::Relaxed);
}
