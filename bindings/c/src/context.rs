//! Contexts of sockets in the C API: a queue, and a stream on which each call is one small kernel
//! of `kernels/sockets.cu` (FpgaNIC §A.1.3).
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringbell::abi::{GpuVa, QueueId, Status};
use ringbell::parts::cuda_kernels::{GpuBuffer, KernelArg, Launch, LaunchError, Stream};
use ringbell::parts::nic_core::HostQueue;

use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::nic::{OpenNic, NICS};
use crate::pointer::Out;
use ringbell::GpuResult;

/// Bytes of `gpu_result`.
const RESULT: usize = 24;
/// Most bytes that one descriptor of the device header moves; longer transfers have one time-out
/// for each piece (`MAX_PIECE`).
const PIECE: u64 = 0xffff_0000;

/// Pieces of a transfer.
fn pieces(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE).max(1)
}

/// State of an `rb_context`.
pub(super) struct Context {
    pub(super) owner: usize,
    /// Held by the running operation.
    turn: Mutex<Turn>,
    queue: HostQueue,
    stream: Stream,
    default_timeout_us: u32,
    silent_grace_us: u32,
    /// Last: everything above uses it.
    pub(super) nic: Arc<OpenNic>,
}

struct Turn {
    /// The running kernel's `gpu_result`; `None` after a kernel was given up, which may still write
    /// to it.
    cell: Option<GpuBuffer>,
}

/// A transfer whose kernel may still run.
pub(super) struct Transfer {
    launch: Launch,
    /// The kernel's `gpu_result`; `None` after the end.
    cell: Option<GpuBuffer>,
    /// Longest time that its kernel may take.
    pub(super) limit: Duration,
    /// Its queue must outlive the kernel.
    context: Arc<Context>,
}

impl Transfer {
    /// The bytes moved, or `None` while it goes on.
    pub(super) fn test(&self) -> Result<Option<u64>, Failure> {
        let Some(end) = self.launch.poll() else {
            return Ok(None);
        };
        end.map_err(|e| Failure::kernel(&e))?;
        match &self.cell {
            Some(cell) => read(&self.context.nic, cell, &mut 0).map(|done| Some(done.bytes)),
            None => Ok(None),
        }
    }

    /// Waits, at most `limit` or as long as its kernel may take.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Result<u64, Failure> {
        match self.launch.wait(limit.unwrap_or(self.limit)) {
            Ok(()) => {}
            Err(e @ LaunchError::TimedOut { .. }) => {
                return Err(Failure::in_progress(e.to_string()))
            }
            Err(e) => return Err(Failure::kernel(&e)),
        }
        let moved = self.test()?;
        moved.ok_or_else(|| {
            Failure::in_progress("the kernel has ended, and its result is not there yet")
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.launch.poll().is_some()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The kernel will write its result: the memory must never get another owner.
            std::mem::forget(self.cell.take());
        }
    }
}

/// What a kernel has written to its cell. `bytes` is set also when it has failed.
fn read(nic: &OpenNic, cell: &GpuBuffer, bytes: &mut u64) -> Result<Done, Failure> {
    let mut raw = [0_u8; RESULT];
    cell.read(0, &mut raw).map_err(|e| Failure::host(&e))?;
    let result: GpuResult = zerocopy::transmute!(raw);
    *bytes = result.bytes;
    match result.status().unwrap_or(Status::NicSilent) {
        Status::Ok => Ok(Done {
            session: result.session,
            bytes: result.bytes,
        }),
        status => {
            let (bytes, detail) = (result.bytes, result.detail);
            let missing = nic.nic.missing_wires(status, detail);
            Err(Failure::status(status, bytes, detail).because(missing))
        }
    }
}

/// Result of a kernel.
pub(super) struct Done {
    pub(super) session: u32,
    pub(super) bytes: u64,
}

pub(super) static CONTEXTS: Table<Context> = Table::new("context (rb_context)");

/// The queue of a context, and its NIC.
pub(super) fn queue_of(context: usize) -> Result<(Arc<OpenNic>, QueueId), Failure> {
    let context = CONTEXTS.get(context)?;
    Ok((context.nic.clone(), context.queue.id()))
}

/// Takes the contexts of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<Context>> {
    CONTEXTS.remove_where(|c| c.owner == nic)
}

impl Context {
    fn timeout(&self, timeout_us: u32) -> u32 {
        match timeout_us {
            0 => self.default_timeout_us,
            us => us,
        }
    }

    /// Longest time of a kernel: for each piece the waits for a slot, for the NIC, and for the
    /// watchdog.
    fn limit(&self, timeout_us: u32, pieces: u64) -> Duration {
        let piece = 2 * u64::from(self.timeout(timeout_us)) + u64::from(self.silent_grace_us);
        Duration::from_micros(piece.saturating_mul(pieces)) + Duration::from_secs(10)
    }

    fn launch(
        &self,
        stream: &Stream,
        kernel: &str,
        middle: &[KernelArg],
        timeout_us: u32,
        cell: &GpuBuffer,
    ) -> Result<Launch, Failure> {
        let mut args: Vec<KernelArg> = vec![self.queue.handle().into()];
        args.extend_from_slice(middle);
        args.extend([self.timeout(timeout_us).into(), cell.into()]);
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launched = unsafe { stream.launch(kernel, 1, 1, &args) };
        launched.map_err(|e| Failure::kernel(&e))
    }

    /// Runs a kernel to its end. `bytes` is its result, also when it fails.
    fn run(
        &self,
        kernel: &str,
        middle: &[KernelArg],
        timeout_us: u32,
        pieces: u64,
        bytes: &mut u64,
    ) -> Result<Done, Failure> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cell) = &turn.cell else {
            return Err(Failure::kernel_text(
                "an earlier kernel of this context never ended; destroy the context and create another",
            ));
        };
        let launch = self.launch(&self.stream, kernel, middle, timeout_us, cell)?;
        match launch.wait(self.limit(timeout_us, pieces)) {
            Ok(()) => {}
            Err(e @ LaunchError::TimedOut { .. }) => {
                // The kernel may still write its result: the cell must never get another owner.
                std::mem::forget(turn.cell.take());
                return Err(Failure::kernel(&e));
            }
            Err(e) => {
                self.stream.clear_error();
                return Err(Failure::kernel(&e));
            }
        }
        read(&self.nic, cell, bytes)
    }

    /// Runs a handshake kernel.
    pub(super) fn command(
        &self,
        kernel: &str,
        middle: &[KernelArg],
        timeout_us: u32,
    ) -> Result<Done, Failure> {
        self.run(kernel, middle, timeout_us, 1, &mut 0)
    }

    /// Starts a transfer kernel on `stream`, else on the context's own.
    pub(super) fn start(
        context: &Arc<Context>,
        stream: Option<&Stream>,
        (kernel, sock, va, bytes): (&str, u32, u64, u64),
        timeout_us: u32,
    ) -> Result<Transfer, Failure> {
        let cell = context.nic.nic.gpu().alloc(RESULT as u64);
        let cell = cell.map_err(|e| Failure::host(&e))?;
        let args = [sock.into(), GpuVa(va).into(), bytes.into()];
        let stream = stream.unwrap_or(&context.stream);
        let launch = context.launch(stream, kernel, &args, timeout_us, &cell)?;
        Ok(Transfer {
            launch,
            cell: Some(cell),
            limit: context.limit(timeout_us, pieces(bytes)),
            context: context.clone(),
        })
    }

    /// Runs a transfer kernel.
    pub(super) fn transfer(
        &self,
        kernel: &str,
        sock: u32,
        va: u64,
        bytes: u64,
        timeout_us: u32,
    ) -> (u64, Result<(), Failure>) {
        let args = [sock.into(), GpuVa(va).into(), bytes.into()];
        let mut moved = 0;
        let end = self.run(kernel, &args, timeout_us, pieces(bytes), &mut moved);
        (moved, end.map(|_| ()))
    }
}

/// # Safety
/// `context` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_context_create(nic: *mut c_void, context: *mut *mut c_void) -> i32 {
    entry("rb_context_create", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(context, "`context`")? };
        out.set(std::ptr::null_mut());
        let owner = nic.addr();
        let nic = NICS.get(owner)?;
        let queue = nic.nic.create_queue().map_err(|e| Failure::host(&e))?;
        let gpu = nic.nic.gpu();
        let cell = gpu.alloc(RESULT as u64).map_err(|e| Failure::host(&e))?;
        let handle = queue.handle();
        let made = CONTEXTS.insert(Context {
            owner,
            turn: Mutex::new(Turn { cell: Some(cell) }),
            stream: gpu.stream(),
            default_timeout_us: handle.default_timeout_us,
            silent_grace_us: handle.silent_grace_us,
            queue,
            nic,
        });
        out.set(std::ptr::without_provenance_mut(made));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_context_destroy(context: *mut c_void) -> i32 {
    entry("rb_context_destroy", || {
        if context.is_null() {
            return Ok(());
        }
        CONTEXTS.remove(context.addr()).map(drop)
    })
}
