//! Sockets of the C API: each call is one small kernel of `kernels/sockets.cu`, on the context's
//! stream (FpgaNIC §A.1.3).
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringbell::abi::{GpuVa, QueueId, Status};
use ringbell::parts::cuda_kernels::{GpuBuffer, KernelArg, Launch, LaunchError, Stream};
use ringbell::parts::nic_core::HostQueue;

use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::host;
use crate::nic::{OpenNic, NICS};
use crate::pointer::{text, OptionalOut, Out};
use crate::request::{self, Work};
use crate::stream::STREAMS;
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
    owner: usize,
    /// Held by the running operation.
    turn: Mutex<Turn>,
    queue: HostQueue,
    stream: Stream,
    default_timeout_us: u32,
    silent_grace_us: u32,
    /// Last: everything above uses it.
    nic: Arc<OpenNic>,
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
    limit: Duration,
    /// Its queue must outlive the kernel.
    _context: Arc<Context>,
}

impl Transfer {
    /// The bytes moved, or `None` while it goes on.
    pub(super) fn test(&self) -> Result<Option<u64>, Failure> {
        let Some(end) = self.launch.poll() else {
            return Ok(None);
        };
        end.map_err(|e| Failure::kernel(&e))?;
        match &self.cell {
            Some(cell) => read(cell, &mut 0).map(|done| Some(done.bytes)),
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
fn read(cell: &GpuBuffer, bytes: &mut u64) -> Result<Done, Failure> {
    let mut raw = [0_u8; RESULT];
    cell.read(0, &mut raw).map_err(|e| Failure::host(&e))?;
    let result: GpuResult = zerocopy::transmute!(raw);
    *bytes = result.bytes;
    match result.status().unwrap_or(Status::NicSilent) {
        Status::Ok => Ok(Done {
            session: result.session,
            bytes: result.bytes,
        }),
        status => Err(Failure::status(status, result.bytes, result.detail)),
    }
}

/// Result of a kernel.
struct Done {
    session: u32,
    bytes: u64,
}

static CONTEXTS: Table<Context> = Table::new("context (rb_context)");

/// The queue of a context, and its NIC.
pub(super) fn queue_of(context: usize) -> Result<(Arc<OpenNic>, QueueId), Failure> {
    let context = CONTEXTS.get(context)?;
    Ok((context.nic.clone(), context.queue.id()))
}

/// Takes the contexts of a NIC that is being closed.
pub(super) fn take_contexts_of(nic: usize) -> Vec<Arc<Context>> {
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
        read(cell, bytes)
    }

    /// Runs a handshake kernel.
    fn command(
        &self,
        kernel: &str,
        middle: &[KernelArg],
        timeout_us: u32,
    ) -> Result<Done, Failure> {
        self.run(kernel, middle, timeout_us, 1, &mut 0)
    }

    /// Starts a transfer kernel on `stream`, else on the context's own.
    fn start(
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
            _context: context.clone(),
        })
    }

    /// Runs a transfer kernel.
    fn transfer(
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

/// # Safety
/// `sock` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_socket_open(context: *mut c_void, sock: *mut u32, timeout_us: u32) -> i32 {
    entry("rb_socket_open", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(sock, "`sock`")? };
        let context = CONTEXTS.get(context.addr())?;
        out.set(context.command("rb_socket", &[], timeout_us)?.session);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_socket_listen(
    context: *mut c_void,
    sock: u32,
    port: u16,
    backlog: u32,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_listen", || {
        let context = CONTEXTS.get(context.addr())?;
        if backlog > u32::from(u16::MAX) {
            return Err(Failure::argument(format!(
                "a backlog of {backlog} connections is more than 65,535"
            )));
        }
        let args = [sock.into(), u32::from(port).into(), backlog.into()];
        context.command("rb_listen", &args, timeout_us).map(|_| ())
    })
}

/// # Safety
/// `conn` and `peer` are null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_socket_accept(
    context: *mut c_void,
    sock: u32,
    conn: *mut u32,
    peer: *mut u64,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_accept", || {
        // SAFETY: by this function's contract.
        let (conn, peer) = unsafe { (Out::new(conn, "`conn`")?, OptionalOut::new(peer)) };
        let context = CONTEXTS.get(context.addr())?;
        let done = context.command("rb_accept", &[sock.into()], timeout_us)?;
        conn.set(done.session);
        peer.set(done.bytes);
        Ok(())
    })
}

/// # Safety
/// `ip` is null or a zero-terminated string.
#[no_mangle]
unsafe extern "C" fn rb_socket_connect(
    context: *mut c_void,
    sock: u32,
    ip: *const c_char,
    port: u16,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_connect", || {
        // SAFETY: by this function's contract.
        let ip = unsafe { text(ip, "`ip`")? };
        let context = CONTEXTS.get(context.addr())?;
        let to = match ip.parse() {
            Ok(IpAddr::V4(to)) => to,
            Ok(IpAddr::V6(to)) => context.nic.nic.short_name(to).ok_or_else(|| {
                Failure::argument(format!(
                    "`{ip}` needs a NIC with port roce at an IPv6 address, such as roce:[fd00::1]"
                ))
            })?,
            Err(_) => {
                return Err(Failure::argument(format!(
                    "`{ip}` is not an address; write A.B.C.D, or that of IPv6"
                )))
            }
        };
        let args = [sock.into(), u32::from(to).into(), u32::from(port).into()];
        context.command("rb_connect", &args, timeout_us).map(|_| ())
    })
}

#[no_mangle]
extern "C" fn rb_socket_send(
    context: *mut c_void,
    sock: u32,
    va: *const c_void,
    bytes: u64,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_send", || {
        let context = CONTEXTS.get(context.addr())?;
        let va = va.addr() as u64;
        inside(&context, va, bytes)?;
        context
            .transfer("rb_send_all", sock, va, bytes, timeout_us)
            .1
    })
}

/// Starts a transfer: behind what `stream` holds, or behind the context's calls; `request` is a
/// place for its handle.
///
/// # Safety
/// `request` is null or may be written to.
unsafe fn start(
    context: *mut c_void,
    transfer: (&str, u32, u64, u64),
    timeout_us: u32,
    stream: *mut c_void,
    request: *mut *mut c_void,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let out = unsafe { OptionalOut::new(request) };
    out.set(std::ptr::null_mut());
    if request.is_null() && stream.is_null() {
        return Err(Failure::argument(
            "`stream` and `request` are null pointers; without a stream the request alone tells the end",
        ));
    }
    let context = CONTEXTS.get(context.addr())?;
    let stream = match stream.is_null() {
        true => None,
        false => Some(STREAMS.get(stream.addr())?),
    };
    if stream.as_ref().is_some_and(|s| s.stream.is_capturing()) {
        return Err(Failure::argument(
            "the stream captures, and a socket's transfer is not replayed; end the capture first",
        ));
    }
    let on = stream.as_ref().map(|s| &s.stream);
    let started = Context::start(&context, on, transfer, timeout_us)?;
    match (request.is_null(), stream) {
        (true, Some(stream)) => stream.keep(started),
        _ => {
            let patience = started.limit;
            let work = Work::Transfer(started);
            out.set(request::insert(context.owner, patience, work));
        }
    }
    Ok(())
}

/// # Safety
/// `request` is null or may be written to; the memory stays until the transfer has ended.
#[no_mangle]
unsafe extern "C" fn rb_socket_send_async(
    context: *mut c_void,
    sock: u32,
    va: *const c_void,
    bytes: u64,
    timeout_us: u32,
    stream: *mut c_void,
    request: *mut *mut c_void,
) -> i32 {
    entry("rb_socket_send_async", || {
        let va = va.addr() as u64;
        inside(&*CONTEXTS.get(context.addr())?, va, bytes)?;
        let what = ("rb_send_all", sock, va, bytes);
        // SAFETY: by this function's contract.
        unsafe { start(context, what, timeout_us, stream, request) }
    })
}

/// # Safety
/// As for `rb_socket_send_async`.
#[no_mangle]
unsafe extern "C" fn rb_socket_recv_async(
    context: *mut c_void,
    sock: u32,
    va: *mut c_void,
    bytes: u64,
    timeout_us: u32,
    stream: *mut c_void,
    request: *mut *mut c_void,
) -> i32 {
    entry("rb_socket_recv_async", || {
        let what = ("rb_recv_all", sock, va.addr() as u64, bytes);
        // SAFETY: by this function's contract.
        unsafe { start(context, what, timeout_us, stream, request) }
    })
}

/// Whether a kernel may read the range at all; the NIC checks its own access. Short messages travel
/// in the descriptor: the kernel itself reads them, and an invalid address would end the process
/// instead of being refused by the NIC.
fn inside(context: &Context, va: u64, bytes: u64) -> Result<(), Failure> {
    if bytes == 0 || bytes > ringbell::abi::INLINE_MAX as u64 {
        return Ok(());
    }
    match host::is_readable(&context.nic, va, bytes) {
        true => Ok(()),
        false => Err(Failure::status(Status::NotRegistered, 0, va)),
    }
}

/// # Safety
/// `received` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_socket_recv(
    context: *mut c_void,
    sock: u32,
    va: *mut c_void,
    bytes: u64,
    received: *mut u64,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_recv", || {
        // SAFETY: by this function's contract.
        let out = unsafe { OptionalOut::new(received) };
        receive("rb_recv_all", context, sock, va, bytes, &out, timeout_us)
    })
}

/// # Safety
/// `received` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_socket_recv_some(
    context: *mut c_void,
    sock: u32,
    va: *mut c_void,
    bytes: u64,
    received: *mut u64,
    timeout_us: u32,
) -> i32 {
    entry("rb_socket_recv_some", || {
        // SAFETY: by this function's contract.
        let out = unsafe { OptionalOut::new(received) };
        receive("rb_recv_some", context, sock, va, bytes, &out, timeout_us)
    })
}

fn receive(
    kernel: &str,
    context: *mut c_void,
    sock: u32,
    va: *mut c_void,
    bytes: u64,
    received: &OptionalOut<u64>,
    timeout_us: u32,
) -> Result<(), Failure> {
    received.set(0);
    let context = CONTEXTS.get(context.addr())?;
    let (moved, end) = context.transfer(kernel, sock, va.addr() as u64, bytes, timeout_us);
    received.set(moved);
    end
}

/// # Safety
/// `transport` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_socket_transport(
    context: *mut c_void,
    sock: u32,
    transport: *mut *const c_char,
) -> i32 {
    entry("rb_socket_transport", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(transport, "`transport`")? };
        let context = CONTEXTS.get(context.addr())?;
        let sessions = context.nic.nic.sessions();
        let session = sessions.iter().find(|s| s.id.0 == sock);
        let carrier = session.ok_or_else(|| {
            Failure::argument(format!(
                "no socket has the number {sock}; it was closed, perhaps"
            ))
        })?;
        out.set(match carrier.transport {
            Some("local") => c"local".as_ptr(),
            Some("tcp") => c"tcp".as_ptr(),
            Some(_) => c"other".as_ptr(),
            None => c"none".as_ptr(),
        });
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_socket_shutdown(context: *mut c_void, sock: u32, timeout_us: u32) -> i32 {
    entry("rb_socket_shutdown", || {
        let context = CONTEXTS.get(context.addr())?;
        let args = [sock.into()];
        context
            .command("rb_shutdown", &args, timeout_us)
            .map(|_| ())
    })
}

#[no_mangle]
extern "C" fn rb_socket_close(context: *mut c_void, sock: u32, timeout_us: u32) -> i32 {
    entry("rb_socket_close", || {
        let context = CONTEXTS.get(context.addr())?;
        let args = [sock.into()];
        context.command("rb_close", &args, timeout_us).map(|_| ())
    })
}
