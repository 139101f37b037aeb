//! The device's file. Programs look for `/dev/infiniband/ringbell0` before they use the device, as
//! UCX does; nothing is ever read from it.
//!
//! `stat` and `access` of that path say that a character device is there, which the user may read
//! and write. Any other path goes to the next library.
#![allow(unsafe_code)] // C: pointers of the program, and functions found by name.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::refusal::set_errno;

const FILE: &CStr = c"/dev/infiniband/ringbell0";
/// A character device, read and written by all.
const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// A function of the libraries behind ours.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        let found = AtomicPtr::new(std::ptr::null_mut());
        Next { name, found }
    }

    /// Null: there is none.
    fn find(&self) -> *mut c_void {
        // The same address is found each time, so a race does no harm.
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a name that ends with zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Whether a path is the device's file.
unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: the caller's string.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == FILE
}

/// Fills in what a program may ask of the file.
unsafe fn describe(to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's variable, for which zeros are valid.
    unsafe {
        to.write_bytes(0, 1);
        (*to).st_mode = MODE;
        (*to).st_nlink = 1;
    }
    0
}

type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type VersionedStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;

/// Refuses a call that no other library has.
fn absent() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// Calls another library's `stat`.
unsafe fn pass_on(next: &Next, path: *const c_char, to: *mut libc::stat) -> c_int {
    let found = next.find();
    if found.is_null() {
        return absent();
    }
    // SAFETY: `stat` and `stat64` have this type, with the same structure, on machines of 64 bits.
    unsafe { std::mem::transmute::<*mut c_void, Stat>(found)(path, to) }
}

/// `stat`.
#[no_mangle]
unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    static NEXT: Next = Next::new(c"stat");
    // SAFETY: the caller's string and variable.
    unsafe {
        match is_ours(path) {
            true => describe(to),
            false => pass_on(&NEXT, path, to),
        }
    }
}

/// `stat64`, which is the same on machines of 64 bits.
#[no_mangle]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    static NEXT: Next = Next::new(c"stat64");
    // SAFETY: as above.
    unsafe {
        match is_ours(path) {
            true => describe(to),
            false => pass_on(&NEXT, path, to),
        }
    }
}

/// `__xstat`: `stat` of programs that were built with a glibc before 2.33.
#[no_mangle]
unsafe extern "C" fn __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    static NEXT: Next = Next::new(c"__xstat");
    // SAFETY: as above.
    if unsafe { is_ours(path) } {
        // SAFETY: as above.
        return unsafe { describe(to) };
    }
    let found = NEXT.find();
    if found.is_null() {
        return absent();
    }
    // SAFETY: the function has this type.
    unsafe { std::mem::transmute::<*mut c_void, VersionedStat>(found)(version, path, to) }
}

/// `access`.
#[no_mangle]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    static NEXT: Next = Next::new(c"access");
    // SAFETY: the caller's string.
    if unsafe { is_ours(path) } {
        if mode & libc::X_OK != 0 {
            set_errno(libc::EACCES);
            return -1;
        }
        return 0;
    }
    let found = NEXT.find();
    if found.is_null() {
        return absent();
    }
    // SAFETY: the function has this type.
    unsafe { std::mem::transmute::<*mut c_void, Access>(found)(path, mode) }
}
