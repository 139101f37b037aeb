//! Calls that wait for requests, test, start, cancel and free them.
//!
//! Our requests are the library's below, so its functions answer. A call that waits becomes one that tests, again and again, so that our messages
//! move meanwhile. A persistent request is replaced by what it stands for.
#![allow(unsafe_code)] // The program's arrays.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::operation::Op;
use super::persistent::Kind;
use super::Messages;
use crate::abi::Handle;
use crate::below::below;
use crate::layer::Layer;

type Requests = *mut c_void;
type Statuses = *mut c_int;

/// Requests of a call, with persistent ones replaced.
struct Given {
    at: Requests,
    /// The replaced array, as words or halves of them, and which were persistent.
    replaced: Option<(Vec<Handle>, Vec<Option<Handle>>)>,
}

impl Given {
    /// # Safety
    /// The program's array has so many.
    unsafe fn new(layer: &Layer, messages: &Messages, at: Requests, count: usize) -> Given {
        let own = &messages.persistents;
        let given = Given { at, replaced: None };
        if own.is_empty() {
            return given;
        }
        // SAFETY: the caller's contract.
        let handles = (0..count).map(|i| unsafe { layer.tables.read(at, i) });
        let handles: Vec<Handle> = handles.collect();
        let found: Vec<_> = handles.iter().map(|h| own.get(*h)).collect();
        if found.iter().all(Option::is_none) {
            return given;
        }
        let mut array = vec![0; count];
        let mut persistent = vec![None; count];
        for i in 0..count {
            let meant = match &found[i] {
                Some(p) => {
                    persistent[i] = Some(handles[i]);
                    p.active.unwrap_or(layer.tables.no_request())
                }
                None => handles[i],
            };
            // SAFETY: an element of the array, which has room for words.
            unsafe { layer.tables.write(array.as_mut_ptr().cast(), i, meant) };
        }
        Given {
            at,
            replaced: Some((array, persistent)),
        }
    }

    fn as_mut_ptr(&mut self) -> Requests {
        match &mut self.replaced {
            Some((array, _)) => array.as_mut_ptr().cast(),
            None => self.at,
        }
    }

    /// Gives the program what has become of its requests; a persistent one that has ended is inactive.
    fn give_back(&self, layer: &Layer, messages: &Messages) {
        let Some((array, persistent)) = &self.replaced else {
            return;
        };
        for (i, persistent) in persistent.iter().enumerate() {
            // SAFETY: an element of both arrays.
            let now = unsafe { layer.tables.read(array.as_ptr().cast(), i) };
            match persistent {
                Some(handle) if now == layer.tables.no_request() => {
                    messages.persistents.set_active(*handle, None);
                }
                Some(_) => {}
                // SAFETY: as before.
                None => unsafe { layer.tables.write(self.at, i, now) },
            }
        }
    }
}

/// Tests until a test says that it is enough.
///
/// # Safety
/// `at` has `count` requests.
unsafe fn until(
    at: Requests,
    count: c_int,
    again: bool,
    mut test: impl FnMut(Requests) -> (c_int, bool),
) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = layer.messages.as_ref()?;
    let count = usize::try_from(count).ok()?;
    if count > 0 && at.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    let mut given = unsafe { Given::new(layer, messages, at, count) };
    let mut tries = 0_u32;
    loop {
        messages.progress(layer);
        let (code, enough) = test(given.as_mut_ptr());
        if code != 0 || enough || !again {
            given.give_back(layer, messages);
            return Some(code);
        }
        tries += 1;
        // The library's own messages may be among what is waited for, so not for long.
        if tries.is_multiple_of(64) {
            messages.lock().wait(std::time::Duration::from_micros(50));
        }
    }
}

/// `MPI_Wait` and, without `again`, `MPI_Test`.
pub(super) fn one(
    request: Requests,
    flag: *mut c_int,
    status: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: the program's request; the signature of MPI's standard.
    unsafe {
        until(request, 1, again, |r| {
            let test = below!("PMPI_Test", fn(Requests, *mut c_int, Statuses) -> c_int);
            let code = test(r, flag, status);
            (code, *flag != 0)
        })
    }
}

pub(super) fn all(
    count: c_int,
    requests: Requests,
    flag: *mut c_int,
    statuses: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: as `one`.
    unsafe {
        until(requests, count, again, |r| {
            let test = below!(
                "PMPI_Testall",
                fn(c_int, Requests, *mut c_int, Statuses) -> c_int
            );
            let code = test(count, r, flag, statuses);
            (code, *flag != 0)
        })
    }
}

pub(super) fn any(
    count: c_int,
    requests: Requests,
    index: *mut c_int,
    flag: *mut c_int,
    status: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: as `one`.
    unsafe {
        until(requests, count, again, |r| {
            let test = below!(
                "PMPI_Testany",
                fn(c_int, Requests, *mut c_int, *mut c_int, Statuses) -> c_int
            );
            let code = test(count, r, index, flag, status);
            (code, *flag != 0)
        })
    }
}

pub(super) fn some(
    count: c_int,
    requests: Requests,
    ended: *mut c_int,
    indices: *mut c_int,
    statuses: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: as `one`.
    unsafe {
        until(requests, count, again, |r| {
            let test = below!(
                "PMPI_Testsome",
                fn(c_int, Requests, *mut c_int, *mut c_int, Statuses) -> c_int
            );
            let code = test(count, r, ended, indices, statuses);
            (code, *ended != 0)
        })
    }
}

/// `MPI_Request_get_status`, which ends nothing.
pub(super) fn look(request: Handle, flag: *mut c_int, status: Statuses) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = layer.messages.as_ref()?;
    messages.progress(layer);
    let found = messages.persistents.get(layer.tables.handle(request))?;
    let meant = found.active.unwrap_or(layer.tables.no_request());
    // SAFETY: the program's own call.
    Some(unsafe {
        below!(
            "PMPI_Request_get_status",
            fn(Handle, *mut c_int, Statuses) -> c_int
        )(meant, flag, status)
    })
}

/// `MPI_Cancel`.
pub(super) fn cancel(request: Requests) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = layer.messages.as_ref()?;
    // SAFETY: the program's request.
    let handle = unsafe { layer.tables.read(request, 0) };
    let mut meant = handle;
    if let Some(active) = messages.persistents.get(handle).and_then(|p| p.active) {
        meant = active;
    }
    // SAFETY: the program's own call.
    let code = unsafe { below!("PMPI_Cancel", fn(*mut Handle) -> c_int)(&raw mut meant) };
    messages.lock().cancel();
    messages.progress(layer);
    Some(code)
}

/// `MPI_Request_free` of a persistent request.
pub(super) fn free(request: Requests) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = layer.messages.as_ref()?;
    // SAFETY: the program's request.
    let found = messages
        .persistents
        .remove(unsafe { layer.tables.read(request, 0) })?;
    if let Some(mut active) = found.active {
        // SAFETY: a request of ours.
        unsafe { below!("PMPI_Request_free", fn(*mut Handle) -> c_int)(&raw mut active) };
    }
    // The library below frees its own.
    None
}

/// `MPI_Start`.
pub(super) fn start(request: Requests) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = layer.messages.as_ref()?;
    // SAFETY: the program's request.
    let handle = unsafe { layer.tables.read(request, 0) };
    let p = messages.persistents.get(handle)?;
    let op = Arc::new(Op::default());
    let active = layer.tables.handle(op.start());
    messages.persistents.set_active(handle, Some(active));
    let begun = match p.kind {
        Kind::Send(mode) => messages
            .send(layer, mode, p.buffer, (&p.context, p.peer, p.tag), op)
            .map(drop),
        Kind::Receive => messages.receive(layer, p.buffer, (&p.context, p.peer, p.tag), op),
    };
    // Its arguments were judged when it was made.
    drop(begun);
    Some(0)
}

/// `MPI_Startall`.
pub(super) fn start_all(count: c_int, requests: Requests) -> Option<c_int> {
    let layer = Layer::get()?;
    layer.messages.as_ref()?;
    let step = layer.tables.bytes_of_handle();
    for i in 0..usize::try_from(count).ok()? {
        let one = requests.wrapping_byte_add(i * step);
        // SAFETY: an element of the program's array; the program's own call.
        let code = unsafe {
            start(one).unwrap_or_else(|| below!("PMPI_Start", fn(Requests) -> c_int)(one))
        };
        if code != 0 {
            return Some(code);
        }
    }
    Some(0)
}
