//! `rb_group_start` and `rb_group_end`: calls of one thread that belong together, as in NCCL.
//!
//! Between the two, calls that make communicators and calls that start operations are only
//! recorded. At the end the former all wait at once, so that one thread can be several ranks. The
//! latter are posted together, so that sends and receives cannot block each other.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use crate::communicator::OpenComm;
use crate::failure::{self, Failure};
use crate::pointer::Out;
use crate::stream::OpenStream;
use ringbell::parts::nic_core::threads;
use ringbell::{Communicator, Operation};

/// Makes a communicator, and returns its handle, or 0.
type Make = Box<dyn FnOnce() -> Result<usize, Failure> + Send>;

/// An operation that was called in a group.
struct Call {
    comm: Arc<OpenComm>,
    operation: Operation,
    /// `None`: the end of the group waits for it.
    stream: Option<Arc<OpenStream>>,
}

#[derive(Default)]
struct Group {
    depth: u32,
    makes: Vec<(Out<*mut c_void>, Make)>,
    calls: Vec<Call>,
    /// The first call that was refused: then nothing of the group is started.
    refused: Option<String>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Whether this thread is in a group.
fn is_open() -> bool {
    GROUP.with_borrow(|g| g.depth > 0)
}

/// As [`failure::entry`], for calls that may be part of a group: one that fails fails the group.
pub(super) fn entry(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    failure::entry(name, || {
        body().inspect_err(|f| {
            GROUP.with_borrow_mut(|g| {
                if g.depth > 0 {
                    g.refused.get_or_insert_with(|| format!("{name}: {f}"));
                }
            });
        })
    })
}

/// Makes a communicator now, or at the end of the group.
pub(super) fn make(
    out: Out<*mut c_void>,
    make: impl FnOnce() -> Result<usize, Failure> + Send + 'static,
) -> Result<(), Failure> {
    if is_open() {
        GROUP.with_borrow_mut(|g| g.makes.push((out, Box::new(make))));
        return Ok(());
    }
    out.set(std::ptr::without_provenance_mut(make()?));
    Ok(())
}

/// Runs an operation, or queues it on its stream, now or at the end of the group.
pub(super) fn call(
    comm: Arc<OpenComm>,
    operation: Operation,
    stream: Option<Arc<OpenStream>>,
) -> Result<(), Failure> {
    if is_open() {
        let call = Call {
            comm,
            operation,
            stream,
        };
        GROUP.with_borrow_mut(|g| g.calls.push(call));
        return Ok(());
    }
    match stream {
        Some(stream) => stream.enqueue(&comm.comm, &operation),
        None => {
            let done = comm.comm.run(&operation);
            done.map(drop).map_err(|e| Failure::collective(&e))
        }
    }
}

#[no_mangle]
extern "C" fn rb_group_start() -> i32 {
    failure::entry("rb_group_start", || {
        GROUP.with_borrow_mut(|g| g.depth += 1);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_group_end() -> i32 {
    failure::entry("rb_group_end", || {
        let group = GROUP.with_borrow_mut(|g| {
            g.depth = g.depth.checked_sub(1).ok_or_else(|| {
                Failure::argument("no group is open on this thread; call rb_group_start first")
            })?;
            Ok(match g.depth {
                0 => Some(std::mem::take(g)),
                _ => None,
            })
        })?;
        group.map_or(Ok(()), run)
    })
}

fn run(group: Group) -> Result<(), Failure> {
    if let Some(why) = group.refused {
        return Err(Failure::argument(format!(
            "nothing of the group was started, because a call of it was refused: {why}"
        )));
    }
    make_all(group.makes)?;
    let (mut blocking, mut streams) = (Vec::new(), Vec::<(Arc<OpenStream>, Vec<_>)>::new());
    for c in group.calls {
        let call = (c.comm.comm.clone(), c.operation);
        let Some(stream) = c.stream else {
            blocking.push(call);
            continue;
        };
        match streams.iter_mut().find(|(s, _)| Arc::ptr_eq(s, &stream)) {
            Some((_, calls)) => calls.push(call),
            None => streams.push((stream, vec![call])),
        }
    }
    for (stream, mut calls) in streams {
        match calls.len() {
            1 => calls
                .drain(..)
                .try_for_each(|(c, o)| stream.enqueue(&c, &o))?,
            _ => stream.enqueue_group(calls)?,
        }
    }
    let blocking: Vec<(&Communicator, Operation)> = blocking.iter().map(|(c, o)| (c, *o)).collect();
    let done = Communicator::group(&blocking);
    done.map(drop).map_err(|e| Failure::collective(&e))
}

/// Makes all communicators at once: each waits for the others.
fn make_all(makes: Vec<(Out<*mut c_void>, Make)>) -> Result<(), Failure> {
    let (outs, makes): (Vec<_>, Vec<_>) = makes.into_iter().unzip();
    let made = threads::all_or_none(makes);
    let made = made.map_err(|e| Failure::collective(&e.into()))?;
    let mut first = Ok(());
    for (out, handle) in outs.iter().zip(made) {
        match handle {
            Ok(h) => out.set(std::ptr::without_provenance_mut(h)),
            Err(e) if first.is_ok() => first = Err(e),
            Err(_) => {}
        }
    }
    first
}
