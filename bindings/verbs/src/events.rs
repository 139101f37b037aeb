//! Asynchronous events. The NIC raises none by itself; those that the user asks for (`--event`)
//! reach every context that is open, or the one of their queue pair.
#![allow(unsafe_code)] // C: pointers of the program.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::abi::AsyncEvent;

/// Events up to this code are of a queue pair.
const OF_QP_MAX: c_int = 5;
const PORT_ACTIVE: c_int = 9;
const PORT_ERR: c_int = 10;

/// The events of a context.
#[derive(Debug)]
pub(crate) struct Events {
    /// Readable while there are some; each reading takes one.
    fd: OwnedFd,
    waiting: Mutex<VecDeque<AsyncEvent>>,
    /// Address of their context.
    context: AtomicUsize,
}

static ALL: Mutex<Vec<Weak<Events>>> = Mutex::new(Vec::new());
/// The last event of the port was an error.
static IS_DOWN: AtomicBool = AtomicBool::new(false);

/// Whether the port works, as far as events say.
pub(crate) fn is_active() -> bool {
    !IS_DOWN.load(Ordering::Relaxed)
}

/// Raises an event in the context at this address, or in every one. `element`: the port's number,
/// or the address of a queue pair.
pub(crate) fn raise(code: c_int, element: u64, to: Option<usize>) {
    match code {
        PORT_ERR => IS_DOWN.store(true, Ordering::Relaxed),
        PORT_ACTIVE => IS_DOWN.store(false, Ordering::Relaxed),
        _ => {}
    }
    for events in open() {
        // Relaxed: it is set before the program has the context, and so a queue pair.
        let of = events.context.load(Ordering::Relaxed);
        if to.is_some_and(|to| to != of) {
            continue;
        }
        let mut waiting = events.lock();
        waiting.push_back(AsyncEvent { element, code });
        let one = 1_u64;
        // SAFETY: the descriptor is ours, and the variable as long as said. It fails only with
        // 2^64 - 2 events unread.
        unsafe { libc::write(events.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// Takes back events of a queue pair that are unread: it is about to be destroyed.
pub(crate) fn forget(element: u64) {
    for events in open() {
        let of_it = |e: &AsyncEvent| e.code <= OF_QP_MAX && e.element == element;
        // Their count stays in the descriptor; see `next`.
        events.lock().retain(|e| !of_it(e));
    }
}

fn open() -> Vec<Arc<Events>> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|e| e.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Arc<Events>> {
        // SAFETY: no pointer is involved, and the result is a descriptor of ours or an error.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let events = Arc::new(Events {
            fd,
            waiting: Mutex::default(),
            context: AtomicUsize::new(0),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(&events));
        Ok(events)
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Says whose events they are.
    pub(crate) fn belong_to(&self, context: usize) {
        // Relaxed: see `raise`.
        self.context.store(context, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event. It waits, unless the program has set the descriptor not to; `None`: `errno`
    /// says why there is none.
    pub(crate) fn next(&self) -> Option<AsyncEvent> {
        loop {
            let mut count = 0_u64;
            // SAFETY: the descriptor is ours, and the variable is as long as said.
            let got = unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
            if got < 0 {
                return None;
            }
            // There may be none: one that was taken back has left its count.
            if let Some(event) = self.lock().pop_front() {
                return Some(event);
            }
        }
    }
}
