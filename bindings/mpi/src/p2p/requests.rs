//! Calls that wait for requests, test, start, cancel and free them.
//!
//! Our requests are the library's below, so its functions answer. A call that waits becomes one
//! that tests, again and again, so that our messages move meanwhile. A persistent request is
//! replaced by what it stands for.
#![allow(unsafe_code)] // The program's arrays.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::operation::{self, Op};
use super::persistent::Kind;
use super::{messages, Messages};
use crate::abi::Handle;
use crate::below::below;
use crate::layer::{Beside as _, Layer};

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

    /// Handles of the requests as the library below has them.
    fn handles(&mut self, layer: &Layer, count: usize) -> Vec<Handle> {
        let at = self.as_mut_ptr();
        // SAFETY: elements of the array.
        let handles = (0..count).map(|i| unsafe { layer.tables.read(at, i) });
        handles.collect()
    }

    /// Gives the program what has become of its requests; a persistent one that has ended is
    /// inactive.
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

/// Where a call tells of the requests that it ends.
#[derive(Debug, Clone, Copy)]
enum Ends {
    /// One request, whose error it returns.
    One,
    /// All of its requests, each in a status.
    All(Statuses),
    /// So many of these indices, each in a status.
    Some(*const c_int, *const c_int, Statuses),
}

/// Tests until a test says that it is enough.
///
/// # Safety
/// `at` has `count` requests.
unsafe fn until(
    call: &'static str,
    (at, count): (Requests, c_int),
    again: bool,
    ends: Ends,
    mut test: impl FnMut(Requests) -> (c_int, bool),
) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = messages()?;
    let count = usize::try_from(count).ok()?;
    if count > 0 && at.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    let mut given = unsafe { Given::new(layer, messages, at, count) };
    let before = match ends {
        Ends::One => Vec::new(),
        // A request that has ended has no handle any more.
        Ends::All(_) | Ends::Some(..) => given.handles(layer, count),
    };
    let mut tries = 0_u32;
    loop {
        messages.progress(layer);
        let ((code, enough), failed) = operation::observed(|| test(given.as_mut_ptr()));
        if code != 0 || enough || !again {
            given.give_back(layer, messages);
            if failed.is_empty() {
                return Some(code);
            }
            let call = Failing {
                layer,
                messages,
                call,
            };
            return Some(match ends {
                Ends::One => call.one(&failed[0]),
                // SAFETY: the test has filled the program's arrays.
                _ => unsafe { call.several(&failed, &before, ends, code) },
            });
        }
        tries += 1;
        // The library's own messages may be among what is waited for, so not for long.
        if tries.is_multiple_of(64) {
            messages.lock().wait(std::time::Duration::from_micros(50));
        }
    }
}

/// A call that has ended requests with a fault (MPI 4.1 §3.7.3, §3.7.5, §9.3).
struct Failing {
    layer: &'static Layer,
    messages: &'static Messages,
    call: &'static str,
}

impl Failing {
    /// Where an operation's error goes.
    fn comm(&self, op: &Op) -> Handle {
        let of = op.requested();
        let of = of.filter(|of| {
            let context = self.messages.contexts.get(of.comm);
            context.is_some_and(|c| c.id == of.context)
        });
        // The program has freed the communicator, and its error handler with it.
        of.map_or(self.layer.tables.world, |of| of.comm)
    }

    fn one(&self, op: &Op) -> c_int {
        op.code(self.layer, self.comm(op), self.call)
    }

    /// Writes the errors to the statuses, and asks each communicator's error handler with the first
    /// error of it. `before` are the requests, `code` is of the library below.
    ///
    /// # Safety
    /// The arrays of `ends` are the program's, filled by the call.
    unsafe fn several(
        &self,
        failed: &[Arc<Op>],
        before: &[Handle],
        ends: Ends,
        code: c_int,
    ) -> c_int {
        let tables = &self.layer.tables;
        let index = |op: &Op| {
            let handle = tables.handle(op.requested()?.handle);
            before.iter().position(|h| *h == handle)
        };
        let mut failed: Vec<_> = failed.iter().filter_map(|f| Some((index(f)?, f))).collect();
        failed.sort_by_key(|(index, _)| *index);
        failed.dedup_by_key(|(index, _)| *index);
        let (indices, statuses) = match ends {
            Ends::One => return code,
            Ends::All(statuses) => ((0..before.len()).collect::<Vec<_>>(), statuses),
            Ends::Some(ended, indices, statuses) => {
                // SAFETY: the caller's contract; the number is undefined where no request was
                // active, and then none has failed.
                let all = (0..unsafe { *ended }).map(|i| unsafe { *indices.add(i as usize) });
                (all.map(|i| i as usize).collect(), statuses)
            }
        };
        let is_own = code == tables.in_status();
        for (place, index) in indices.iter().enumerate() {
            let found = failed.iter().find(|(i, _)| i == index);
            if tables.ignores(statuses.cast()) || found.is_none() && is_own {
                continue;
            }
            let error = found.map_or(0, |(_, op)| op.fault(self.layer, self.call));
            // SAFETY: the caller's contract.
            unsafe { tables.write_error(statuses, place, error) };
        }
        let mut told = Vec::new();
        for (_, op) in failed {
            let comm = self.comm(op);
            if !told.contains(&comm) {
                told.push(comm);
                self.one(op);
            }
        }
        match code {
            0 => tables.in_status(),
            code => code,
        }
    }
}

/// `MPI_Wait` and, without `again`, `MPI_Test`.
pub(super) fn one(
    call: &'static str,
    request: Requests,
    flag: *mut c_int,
    status: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: the program's request; the signature of MPI's standard.
    unsafe {
        until(call, (request, 1), again, Ends::One, |r| {
            let test = below!("PMPI_Test", fn(Requests, *mut c_int, Statuses) -> c_int);
            let code = test(r, flag, status);
            (code, *flag != 0)
        })
    }
}

pub(super) fn all(
    call: &'static str,
    count: c_int,
    requests: Requests,
    flag: *mut c_int,
    statuses: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: as `one`.
    unsafe {
        until(call, (requests, count), again, Ends::All(statuses), |r| {
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
    call: &'static str,
    count: c_int,
    requests: Requests,
    index: *mut c_int,
    flag: *mut c_int,
    status: Statuses,
    again: bool,
) -> Option<c_int> {
    // SAFETY: as `one`.
    unsafe {
        until(call, (requests, count), again, Ends::One, |r| {
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
    call: &'static str,
    count: c_int,
    requests: Requests,
    ended: *mut c_int,
    indices: *mut c_int,
    statuses: Statuses,
    again: bool,
) -> Option<c_int> {
    let ends = Ends::Some(ended, indices, statuses);
    // SAFETY: as `one`.
    unsafe {
        until(call, (requests, count), again, ends, |r| {
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
    let messages = messages()?;
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
    let messages = messages()?;
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
    let messages = messages()?;
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
    let messages = messages()?;
    // SAFETY: the program's request.
    let handle = unsafe { layer.tables.read(request, 0) };
    let p = messages.persistents.get(handle)?;
    let op = Arc::new(Op::default());
    let active = layer.tables.handle(op.start((p.comm, p.context.id)));
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
    messages()?;
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
