//! Sockets of the C API.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::net::IpAddr;

use ringbell::abi::Status;

use crate::context::{Context, CONTEXTS};
use crate::failure::{entry, Failure};
use crate::host;
use crate::pointer::{text, OptionalOut, Out};
use crate::request::{self, Work};
use crate::stream::STREAMS;

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
