//! Functions of the library below, found by name when they are first called.
#![allow(unsafe_code)] // Asks the dynamic loader.

use std::ffi::{c_int, c_void, CStr, CString};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::trace::say;

/// A function of the library below.
pub(crate) struct Symbol {
    name: &'static str,
    at: AtomicPtr<c_void>,
}

impl Symbol {
    /// `name` ends with a zero byte.
    pub(crate) const fn new(name: &'static str) -> Symbol {
        Symbol {
            name,
            at: AtomicPtr::new(null_mut()),
        }
    }

    /// Its address. The process ends where the library lacks it: there is nothing else that could
    /// answer the call.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.find();
        if found.is_null() {
            say(format_args!(
                "the program's MPI library has no {}; run the program without `ringbell mpi`",
                self.name.trim_end_matches('\0')
            ));
            std::process::abort();
        }
        found
    }

    /// Its address; null where the library lacks it.
    pub(crate) fn find(&self) -> *mut c_void {
        // Relaxed: the address is all there is.
        let known = self.at.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let name = CStr::from_bytes_with_nul(self.name.as_bytes());
        let found = name.map_or(null_mut(), |name| match name.to_bytes() {
            // Not all functions of Fortran have a second name.
            n if n.starts_with(b"mpi_") => find_next(name),
            _ => find(name),
        });
        self.at.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls a function of the library below: `below!("PMPI_Barrier", fn(Handle) -> c_int)(comm)`.
macro_rules! below {
    ($name:expr, fn($($of:ty),* $(,)?) $(-> $result:ty)?) => {{
        static SYMBOL: $crate::below::Symbol = $crate::below::Symbol::new(concat!($name, "\0"));
        #[allow(unused_unsafe)] // Inside the caller's block.
        // SAFETY: the function of this name has this signature in MPI's standard; handles are given
        // as words, which callers of C's int and of pointers pass alike.
        let function = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($of),*) $(-> $result)?>(SYMBOL.get())
        };
        function
    }};
}
pub(crate) use below;

/// The address of a symbol that this library does not have: among what the program is linked with,
/// else in a library that it has loaded for itself, as Python's modules are. Null when there is
/// none.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // From the program on: an object of Open MPI can be in the program itself, which has a copy of
    // the library's. SAFETY: the name ends with zero.
    let linked = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !linked.is_null() {
        return linked;
    }
    in_objects(name)
}

/// The address of a symbol that this library has too: the one behind it.
pub(crate) fn find_next(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with zero.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if next.is_null() {
        return in_objects(name);
    }
    next
}

/// The address of a symbol in a library that the program has loaded for itself.
fn in_objects(name: &CStr) -> *mut c_void {
    let own = file_of(in_objects as *mut c_void);
    for object in objects() {
        // SAFETY: opens what is loaded already, so that nothing of it runs.
        unsafe {
            let handle = libc::dlopen(object.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                continue;
            }
            let at = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            if !at.is_null() && file_of(at) != own {
                return at;
            }
        }
    }
    null_mut()
}

/// File of the object that has this address.
pub(crate) fn file_of(at: *mut c_void) -> String {
    // SAFETY: a structure of pointers, which the call fills.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if at.is_null() || libc::dladdr(at, &raw mut info) == 0 || info.dli_fname.is_null() {
            return String::new();
        }
        CStr::from_ptr(info.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

/// Files of the loaded objects.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader gives a name, or null, and passes our list on.
        unsafe {
            let name = (*info).dlpi_name;
            if !name.is_null() && *name != 0 {
                (*names.cast::<Vec<CString>>()).push(CStr::from_ptr(name).to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `note` has the list for the time of the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}
