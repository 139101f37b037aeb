//! A plain UDP socket with segmentation offload, connected: what a port of datagrams can reach at
//! best.
#![allow(unsafe_code)] // setsockopt(2): the library's sockets have no UDP_SEGMENT.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Two sockets that are connected to each other; `segment` bytes are one packet.
pub(crate) fn pair(segment: usize) -> [UdpSocket; 2] {
    let ends = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports"));
    let at = [&ends[0], &ends[1]].map(|s| s.local_addr().expect("it is bound"));
    for (s, to) in ends.iter().zip([at[1], at[0]]) {
        connect(s, to, segment);
    }
    ends
}

pub(crate) fn connect(s: &UdpSocket, to: SocketAddr, segment: usize) {
    s.connect(to).expect("loopback");
    s.set_nonblocking(true).expect("a socket");
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 32 << 20),
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 32 << 20),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 4 << 20),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 4 << 20),
        (libc::SOL_UDP, libc::UDP_GRO, 1),
        (libc::SOL_UDP, libc::UDP_SEGMENT, segment as libc::c_int),
    ] {
        let forced = matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF) && privileged();
        // Best effort for buffers; the sizes of packets are checked by what arrives.
        if !forced {
            // SAFETY: the value lives as long as the call and is as long as said.
            unsafe {
                libc::setsockopt(
                    s.as_raw_fd(),
                    level,
                    name,
                    (&raw const value).cast(),
                    size_of::<libc::c_int>() as u32,
                );
            }
        }
    }
}

/// Whether the kernel's limit of buffers may be exceeded.
fn privileged() -> bool {
    rustix::process::geteuid().is_root()
}
