//! What the kernel knows about the datagrams of a socket: the MTU of a way, and which datagrams
//! were refused.
//!
//! Where no process receives on a port, the kernel of that host answers with an ICMP message. With
//! `IP_RECVERR` it waits in the socket's error queue, and the next call on the socket fails with
//! the message's error. The queue is read only then: a port whose peers all live makes no further
//! system call. A router that refuses a datagram because it is too long says so in the same way,
//! with the MTU of the next link.
#![allow(unsafe_code)] // recvmsg(2): the wrappers at hand leave out the destination. getsockopt(2): they have no IP_MTU.

use std::collections::VecDeque;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Refusals that wait to be asked for; more add no information.
const REFUSED_MAX: usize = 64;

/// Datagrams that were refused, as far as nothing has asked for them.
#[derive(Debug, Default)]
pub(super) struct Errors {
    refused: VecDeque<SocketAddr>,
    /// Destinations of datagrams that were too long, with what the way carries.
    too_long: VecDeque<(SocketAddr, usize)>,
}

impl Errors {
    /// The next peer that has refused a datagram.
    pub(super) fn next_refused(&mut self) -> Option<SocketAddr> {
        self.refused.pop_front()
    }

    /// The next peer on the way to which a datagram was too long, and the MTU of that way.
    pub(super) fn next_too_long(&mut self) -> Option<(SocketAddr, usize)> {
        self.too_long.pop_front()
    }

    /// Reads the error queue, since the socket counts as readable while there is something in it.
    /// Returns whether there was.
    pub(super) fn read(&mut self, socket: BorrowedFd<'_>) -> bool {
        let mut some = false;
        while let Some((to, why)) = next_error(socket) {
            some = true;
            match (to, why) {
                (Some(to), Refusal::NoReceiver) => self.refused.push_back(to),
                (Some(to), Refusal::TooLong(path)) => self.too_long.push_back((to, path)),
                _ => {}
            }
            self.refused.truncate(REFUSED_MAX);
            self.too_long.truncate(REFUSED_MAX);
        }
        some
    }
}

/// A message of the error queue.
enum Refusal {
    /// No process receives there.
    NoReceiver,
    /// The datagram was too long for a link of so many bytes.
    TooLong(usize),
    Other,
}

/// Whether a call has failed with an error that may be an earlier datagram's.
pub(super) fn failed<T>(result: &io::Result<T>) -> bool {
    let error = result.as_ref().err();
    error.is_some_and(|e| e.kind() != io::ErrorKind::WouldBlock)
}

/// The next message of the error queue, `None` at its end: the destination of the datagram, and why
/// it was refused.
fn next_error(socket: BorrowedFd<'_>) -> Option<(Option<SocketAddr>, Refusal)> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    // More than an extended error with its offender takes; aligned as control messages are.
    let mut control = [0u64; 64];
    // SAFETY: all-zero is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<[u64; 64]>();
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: name and control are as long as said, and live as long as the call; no payload is
    // asked for.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) } < 0 {
        return None;
    }
    let mut refusal = Refusal::Other;
    // SAFETY: the kernel has filled the control buffer and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer, as CMSG_FIRSTHDR and CMSG_NXTHDR give it.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        {
            // SAFETY: the kernel puts an extended error into such a message.
            let error = unsafe {
                let data = libc::CMSG_DATA(header).cast::<libc::sock_extended_err>();
                data.read_unaligned()
            };
            refusal = match error.ee_errno as i32 {
                libc::ECONNREFUSED => Refusal::NoReceiver,
                libc::EMSGSIZE => Refusal::TooLong(error.ee_info as usize),
                _ => Refusal::Other,
            };
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&message, header) };
    }
    // SAFETY: zeroed, then filled by the kernel.
    let to = address(unsafe { &name.assume_init() });
    Some((to, refusal))
}

/// Bytes of an IP packet from `from` to `to` that the kernel would send undivided.
pub(super) fn path_mtu(mut from: SocketAddr, mut to: SocketAddr) -> io::Result<usize> {
    from.set_port(0);
    let probe = UdpSocket::bind(from)?;
    // The port plays no part, and there is none 0.
    to.set_port(to.port().max(1));
    probe.connect(to)?;
    let (level, name) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut mtu: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are as long as said, and live as long as the call.
    let result = unsafe {
        libc::getsockopt(
            probe.as_raw_fd(),
            level,
            name,
            (&raw mut mtu).cast(),
            &raw mut len,
        )
    };
    match usize::try_from(mtu) {
        Ok(mtu) if result == 0 => Ok(mtu),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at: *const libc::sockaddr_storage = name;
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: of this family, and a `sockaddr_storage` has room for each.
            let a = unsafe { *at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some((ip, u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { *at.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some((ip, u16::from_be(a.sin6_port)).into())
        }
        _ => None,
    }
}
