//! Kernel TCP: sockets of connections, and bytes between them and many places at once.
#![allow(unsafe_code)] // Places in memory that has no owner here: GPU memory is never a slice.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{sockopt, AddressFamily, SocketFlags, SocketType};

/// Most places of one system call.
pub(super) const PLACES_MAX: usize = 64;
/// Until a connection is probed when it is idle, and between probes: the shortest that the kernel
/// knows.
const PROBE: Duration = Duration::from_secs(1);

/// Places of one system call, in the order of the bytes.
#[derive(Debug)]
pub(super) struct Places {
    list: Vec<libc::iovec>,
    bytes: usize,
}

// SAFETY: the addresses are used only within the call for which they were added.
unsafe impl Send for Places {}

impl Places {
    pub(super) fn new() -> Places {
        Places {
            list: Vec::with_capacity(PLACES_MAX),
            bytes: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_room(&self) -> bool {
        self.list.len() < PLACES_MAX
    }

    /// Adds a place, which the next call writes or reads.
    pub(super) fn add(&mut self, at: *mut u8, len: usize) {
        if len > 0 {
            self.list.push(libc::iovec {
                iov_base: at.cast(),
                iov_len: len,
            });
            self.bytes += len;
        }
    }

    /// The places of the first `n` bytes.
    pub(super) fn first(&self, n: usize) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        let mut left = n;
        self.list.iter().map_while(move |p| {
            let len = p.iov_len.min(left);
            left -= len;
            (len > 0).then(|| (p.iov_base.cast(), len))
        })
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: a message header of zeros has no name, no places and no control messages.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.list.as_mut_ptr();
        header.msg_iovlen = self.list.len();
        header
    }
}

/// Receives into places. 0: the peer has ended its direction.
///
/// # Safety
/// Every place is mapped and writable, and accessed by others only through raw copies.
pub(super) unsafe fn receive(socket: &OwnedFd, places: &mut Places) -> io::Result<usize> {
    let mut header = places.header();
    // SAFETY: the places are the caller's; the list lives as long as the call.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Sends from places; returns how many bytes the kernel has taken. A peer that is gone raises no
/// signal.
///
/// # Safety
/// Every place is mapped and readable.
pub(super) unsafe fn send(socket: &OwnedFd, places: &mut Places) -> io::Result<usize> {
    let header = places.header();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the places are the caller's; the list lives as long as the call.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Receives into a slice, as [`receive`].
pub(super) fn receive_into(socket: &OwnedFd, to: &mut [u8]) -> io::Result<usize> {
    let mut places = Places::new();
    places.add(to.as_mut_ptr(), to.len());
    // SAFETY: a slice of ours.
    unsafe { receive(socket, &mut places) }
}

/// Whether a call has only found nothing to do.
pub(super) fn must_wait(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// What every connection has: small messages leave at once, a peer that is gone is noticed within
/// `give_up`, both while bytes are unconfirmed and while the connection is idle.
pub(super) fn set_up(socket: &OwnedFd, give_up: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE)?;
    sockopt::set_tcp_keepintvl(socket, PROBE)?;
    let probes = give_up.as_secs().clamp(2, 100) as u32;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    let millis = u32::try_from(give_up.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)?;
    Ok(())
}

/// Has a connection inside this host sent as fast as the peer reads. Some hosts pace all
/// connections by a rate that is measured (BBR), which on the loopback is that of the scheduler.
fn unpaced(socket: &OwnedFd, from: IpAddr, to: IpAddr) {
    if from == to {
        // Every kernel has Reno, and lets everybody use it.
        let set = |name| sockopt::set_tcp_congestion(socket, name);
        let _ = set("cubic").or_else(|_| set("reno"));
    }
}

/// Starts to connect from an address of ours, at any port. The socket becomes writable when it is
/// connected or has failed.
pub(super) fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A port whose last connection has just ended serves again.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    unpaced(&socket, from.ip(), to.ip());
    rustix::net::bind(&socket, &from)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e.into()),
    }
}

/// How an attempt to connect has ended, once the socket is writable.
pub(super) fn connected(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_error(socket).and_then(|e| e)
}

/// Has the peer see a reset instead of an orderly end.
pub(super) fn reset_on_close(socket: &OwnedFd) {
    // Without it the peer sees the end of the connection in the middle of the stream: a reset, too.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// A connection that the kernel has accepted, ready for use.
pub(super) fn accepted(socket: TcpStream, give_up: Duration) -> io::Result<OwnedFd> {
    socket.set_nonblocking(true)?;
    let (from, to) = (socket.local_addr()?.ip(), socket.peer_addr()?.ip());
    let socket = OwnedFd::from(socket);
    unpaced(&socket, from, to);
    set_up(&socket, give_up)?;
    Ok(socket)
}
