//! Streams of the C API: kernels and collectives one after the other, without a wait of the host.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringbell::parts::cuda_kernels::{Graph, Launch, LaunchError, Stream};

use crate::context::Transfer;
use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::kernel::{self, Arg};
use crate::nic::NICS;
use crate::pointer::Out;
use ringbell::comm::Enqueued;
use ringbell::{Communicator, Operation};

/// Wait of `rb_stream_synchronize` with a time-out of 0.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// State of an `rb_stream`.
pub(super) struct OpenStream {
    owner: usize,
    pub(super) stream: Stream,
    /// Operations whose results were not read yet.
    queued: Mutex<Vec<Enqueued>>,
    /// Transfers of sockets whose results were not read yet.
    transfers: Mutex<Vec<Transfer>>,
    /// Operations captured so far.
    captured: Mutex<Vec<Enqueued>>,
    /// The last launch here of each graph, until the stream is synchronised: launches of one graph
    /// end in order.
    replays: Mutex<Vec<(Launch, Arc<OpenGraph>)>>,
    /// The first failure since the last `rb_stream_synchronize`.
    failed: Arc<Mutex<Option<Failure>>>,
}

/// State of an `rb_graph`.
pub(super) struct OpenGraph {
    pub(super) owner: usize,
    graph: Graph,
    /// Its operations, whose results show how replays have ended.
    operations: Vec<Enqueued>,
}

pub(super) static STREAMS: Table<OpenStream> = Table::new("stream (rb_stream)");

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks can panic half-way through a change.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep_first(failed: &Mutex<Option<Failure>>, failure: Failure) {
    lock(failed).get_or_insert(failure);
}

/// An error of a capture: mostly the caller's order of calls.
fn refused(e: &LaunchError) -> Failure {
    match e {
        LaunchError::Capture { .. } => Failure::argument(e.to_string()),
        _ => Failure::kernel(e),
    }
}

/// Takes the streams of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<OpenStream>> {
    STREAMS.remove_where(|s| s.owner == nic)
}

impl OpenStream {
    /// Queues one operation; its result is kept for `rb_stream_synchronize`.
    pub(super) fn enqueue(&self, comm: &Communicator, o: &Operation) -> Result<(), Failure> {
        let enqueued = comm
            .enqueue(o, &self.stream)
            .map_err(|e| Failure::collective(&e))?;
        if self.stream.is_capturing() {
            lock(&self.captured).push(enqueued);
            return Ok(());
        }
        let mut queued = lock(&self.queued);
        // Operations that have ended need not be kept until the stream is synchronised.
        let ended: Vec<Enqueued> = queued.extract_if(.., |q| q.has_ended()).collect();
        queued.push(enqueued);
        drop(queued);
        self.look_at(ended);
        Ok(())
    }

    /// Queues operations that belong together.
    pub(super) fn enqueue_group(
        &self,
        group: Vec<(Communicator, Operation)>,
    ) -> Result<(), Failure> {
        let failed = self.failed.clone();
        let then = move |r| {
            if let Err(e) = r {
                keep_first(&failed, Failure::collective(&e));
            }
        };
        Communicator::enqueue_group(group, &self.stream, then).map_err(|e| Failure::collective(&e))
    }

    pub(super) fn begin_capture(&self) -> Result<(), Failure> {
        self.stream.begin_capture().map_err(|e| refused(&e))
    }

    pub(super) fn end_capture(&self) -> Result<OpenGraph, Failure> {
        // Also when the capture has failed: its operations are dropped with it.
        let operations = std::mem::take(&mut *lock(&self.captured));
        let graph = self.stream.end_capture().map_err(|e| refused(&e))?;
        Ok(OpenGraph {
            owner: self.owner,
            graph,
            operations,
        })
    }

    /// Launches a graph; `rb_stream_synchronize` reports how its operations end.
    pub(super) fn replay(&self, graph: Arc<OpenGraph>) -> Result<(), Failure> {
        let mut replays = lock(&self.replays);
        let launch = graph.graph.launch(&self.stream);
        let launch = launch.map_err(|e| refused(&e))?;
        replays.retain(|(_, other)| !Arc::ptr_eq(other, &graph));
        replays.push((launch, graph));
        Ok(())
    }

    /// Keeps the first failure among the operations of graphs whose last launch here has ended.
    fn look_at_replays(&self) {
        let mut replays = lock(&self.replays);
        let ended: Vec<_> = replays
            .extract_if(.., |(launch, _)| launch.poll().is_some())
            .collect();
        drop(replays);
        for operation in ended.iter().flat_map(|(_, graph)| &graph.operations) {
            if let Err(e) = operation.replayed() {
                keep_first(&self.failed, Failure::collective(&e));
            }
        }
    }

    /// Keeps the first failure among operations that have ended.
    fn look_at(&self, ended: Vec<Enqueued>) {
        for q in ended {
            if let Err(e) = q.wait(Duration::ZERO) {
                keep_first(&self.failed, Failure::collective(&e));
            }
        }
    }

    /// Keeps a transfer of a socket for `rb_stream_synchronize`.
    pub(super) fn keep(&self, transfer: Transfer) {
        self.look_at_transfers();
        lock(&self.transfers).push(transfer);
    }

    /// Keeps the first failure among transfers that have ended.
    fn look_at_transfers(&self) {
        let mut transfers = lock(&self.transfers);
        let ended: Vec<_> = transfers.extract_if(.., |t| t.has_ended()).collect();
        drop(transfers);
        for transfer in ended {
            if let Err(failure) = transfer.test() {
                keep_first(&self.failed, failure);
            }
        }
    }

    fn synchronize(&self, timeout: Duration) -> Result<(), Failure> {
        if self.stream.is_capturing() {
            return Err(Failure::argument(
                "the stream captures, and nothing of it runs; call rb_stream_end_capture and launch the graph",
            ));
        }
        match self.stream.synchronize(timeout) {
            Err(e @ LaunchError::TimedOut { .. }) => {
                return Err(Failure::in_progress(e.to_string()));
            }
            Err(e) => {
                // Reported once; then the stream takes work again.
                self.stream.clear_error();
                keep_first(&self.failed, Failure::kernel(&e));
            }
            Ok(()) => {}
        }
        let ended = std::mem::take(&mut *lock(&self.queued));
        // Work that another thread queued meanwhile is not awaited here.
        let (ended, running) = ended
            .into_iter()
            .partition::<Vec<_>, _>(Enqueued::has_ended);
        lock(&self.queued).extend(running);
        self.look_at(ended);
        self.look_at_replays();
        self.look_at_transfers();
        lock(&self.failed).take().map_or(Ok(()), Err)
    }
}

/// # Safety
/// `stream` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_stream_create(nic: *mut c_void, stream: *mut *mut c_void) -> i32 {
    entry("rb_stream_create", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(stream, "`stream`")? };
        out.set(std::ptr::null_mut());
        let owner = nic.addr();
        let handle = STREAMS.insert(OpenStream {
            owner,
            stream: NICS.get(owner)?.nic.gpu().stream(),
            queued: Mutex::default(),
            transfers: Mutex::default(),
            captured: Mutex::default(),
            replays: Mutex::default(),
            failed: Arc::default(),
        });
        out.set(std::ptr::without_provenance_mut(handle));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_stream_destroy(stream: *mut c_void) -> i32 {
    entry("rb_stream_destroy", || {
        if stream.is_null() {
            return Ok(());
        }
        let gone = STREAMS.remove(stream.addr())?;
        if gone.stream.is_capturing() {
            // Captured work is dropped with it.
            drop(gone.end_capture());
        }
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_stream_synchronize(stream: *mut c_void, timeout_us: u64) -> i32 {
    entry("rb_stream_synchronize", || {
        STREAMS.get(stream.addr())?.synchronize(match timeout_us {
            0 => DEFAULT_WAIT,
            us => Duration::from_micros(us),
        })
    })
}

/// # Safety
/// Every pointer is null or valid, as `ringbell.h` says: `grid` and `block` for three numbers,
/// `args` for `arg_count` structures, and the pointer in each structure for its value.
#[no_mangle]
unsafe extern "C" fn rb_stream_launch(
    stream: *mut c_void,
    kernel: *const c_char,
    grid: *const u32,
    block: *const u32,
    args: *const Arg,
    arg_count: u32,
) -> i32 {
    entry("rb_stream_launch", || {
        let stream = STREAMS.get(stream.addr())?;
        // SAFETY: by this function's contract.
        let call = unsafe { kernel::call(kernel, grid, block, args, arg_count)? };
        // Its failure is the stream's: `rb_stream_synchronize` reports it.
        // SAFETY: by this function's contract.
        let launched = unsafe {
            stream
                .stream
                .launch(&call.kernel, call.grid, call.block, &call.args)
        };
        launched.map(drop).map_err(|e| Failure::kernel(&e))
    })
}
