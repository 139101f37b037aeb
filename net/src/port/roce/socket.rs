//! System calls of a port of datagrams: many packets in one, gathered from where they lie.
#![allow(unsafe_code)] // sendmmsg(2), recvmmsg(2), setsockopt(2): the wrappers at hand take no UDP_SEGMENT, or one slice for a packet.

use std::io;
use std::mem::{size_of, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use ringbell_gtlb::copy::copy;

/// Most messages of one system call.
pub(super) const MESSAGES: usize = 8;
/// Most pieces of a message (`UIO_MAXIOV`).
pub(super) const PIECES_MAX: usize = 1024;
/// Room for the control messages of one message, aligned as they are.
type Control = [u64; 8];

/// Pieces of the messages of one call.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<libc::iovec>);

// SAFETY: the addresses are used only by the call for which they were gathered; `clear` comes
// before the next one.
unsafe impl Send for Pieces {}

impl Pieces {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a piece of the message that began at `first`; one that continues the piece before it
    /// becomes one with it.
    #[inline]
    pub(super) fn add(&mut self, first: usize, at: *const u8, len: usize) {
        match self.0[first..].last_mut() {
            Some(last)
                if last.iov_base.wrapping_byte_add(last.iov_len).cast_const() == at.cast() =>
            {
                last.iov_len += len;
            }
            _ => self.0.push(libc::iovec {
                iov_base: at.cast_mut().cast(),
                iov_len: len,
            }),
        }
    }

    /// Copies the first bytes of the pieces to `to`.
    ///
    /// # Safety
    /// They are mapped and readable, and do not overlap with `to`.
    pub(super) unsafe fn copy_to(&self, mut to: &mut [u8]) {
        for piece in &self.0 {
            let (now, rest) = to.split_at_mut(piece.iov_len.min(to.len()));
            // SAFETY: the caller's contract.
            unsafe { copy(now.as_mut_ptr(), piece.iov_base.cast(), now.len()) };
            to = rest;
        }
    }
}

/// A message to be sent: one packet, or several that the kernel cuts.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) pieces: Range<usize>,
    pub(super) packets: usize,
    pub(super) bytes: usize,
    /// Bytes of each packet but the last.
    pub(super) segment: usize,
}

/// A message that was received: packets of one sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// Without the interface of a link-local address: the socket has one.
    pub(super) from: SocketAddr,
    pub(super) len: usize,
    /// Bytes of each packet but the last.
    pub(super) segment: usize,
    pub(super) ecn: u8,
}

/// No sender.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Received {
    pub(super) const NONE: Received = Received {
        from: NOWHERE,
        len: 0,
        segment: 0,
        ecn: 0,
    };
}

fn set(socket: RawFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value lives as long as the call, and is as long as said.
    let result = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Not to be fragmented, ECN bits and errors reported: level, name and value of each option.
const IPV4_OPTIONS: [(i32, i32, i32); 3] = [
    (
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_DO,
    ),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
    (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
];
const IPV6_OPTIONS: [(i32, i32, i32); 3] = [
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_PMTUDISC_DO,
    ),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
];

/// Sets the socket up: not to be fragmented, ECN and errors reported, received datagrams joined,
/// buffers of so many bytes. Returns how many packets one message may hold.
pub(super) fn set_up(socket: &UdpSocket, is_ipv6: bool, buffer: usize) -> io::Result<usize> {
    socket.set_nonblocking(true)?;
    let fd = socket.as_raw_fd();
    let options = if is_ipv6 { IPV6_OPTIONS } else { IPV4_OPTIONS };
    for (level, name, value) in options {
        set(fd, level, name, value)?;
    }
    // Best effort, each: an older kernel joins nothing, and its limit of buffers may be lower. Only
    // a privileged process may exceed it.
    let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    let bytes = buffer as libc::c_int;
    for (forced, plain) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        if set(fd, libc::SOL_SOCKET, forced, bytes).is_err() {
            let _ = set(fd, libc::SOL_SOCKET, plain, bytes);
        }
    }
    // The kernel knows segmentation if it takes a size; 0 turns it off again until a message asks
    // for it.
    let segments = set(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 1_472)
        .and_then(|()| set(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0));
    Ok(if segments.is_ok() { 64 } else { 1 })
}

/// `sendmsg` or `recvmsg` that does not wait. The C library's functions are points of cancellation,
/// which costs two locked instructions.
///
/// # Safety
/// As of the C library's.
#[inline]
unsafe fn call(number: libc::c_long, fd: RawFd, header: *mut libc::msghdr) -> io::Result<usize> {
    let (fd, flags) = (
        libc::c_long::from(fd),
        libc::c_long::from(libc::MSG_DONTWAIT),
    );
    // SAFETY: the caller's contract.
    let result = unsafe { libc::syscall(number, fd, header, flags) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Gives everything that leaves from here on these ECN bits. A control message of each would cost
/// the kernel an allocation.
pub(super) fn mark(socket: &UdpSocket, is_ipv6: bool, ecn: u8) -> io::Result<()> {
    let (level, name) = match is_ipv6 {
        false => (libc::IPPROTO_IP, libc::IP_TOS),
        true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    set(socket.as_raw_fd(), level, name, ecn.into())
}

/// Bytes that the kernel keeps of what has arrived, its own bookkeeping included.
pub(super) fn receive_buffer(socket: &UdpSocket) -> usize {
    let mut bytes: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length live as long as the call, and are as long as said.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw mut bytes).cast(),
            &raw mut len,
        );
    }
    usize::try_from(bytes).unwrap_or(0)
}

/// An address as the kernel takes and gives it. Both begin with the family.
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// `scope`: the interface of link-local addresses.
    #[inline]
    fn of(to: SocketAddr, scope: u32) -> Name {
        match to {
            SocketAddr::V4(to) => Name {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*to.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(to) => Name {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: to.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: to.ip().octets(),
                    },
                    sin6_scope_id: if to.ip().is_unicast_link_local() {
                        scope
                    } else {
                        0
                    },
                },
            },
        }
    }

    /// Bytes of the address of this family.
    #[inline]
    const fn len(is_ipv6: bool) -> libc::socklen_t {
        match is_ipv6 {
            false => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            true => size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    /// # Safety
    /// The kernel has written it, for a socket of one of the two families.
    #[inline]
    unsafe fn address(&self) -> SocketAddr {
        // SAFETY: both begin with the family, which says what else was written.
        unsafe {
            if libc::c_int::from(self.v4.sin_family) == libc::AF_INET {
                let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                (ip, u16::from_be(self.v4.sin_port)).into()
            } else {
                let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                SocketAddrV6::new(ip, u16::from_be(self.v6.sin6_port), 0, 0).into()
            }
        }
    }
}

/// Sends messages to one peer, at most [`MESSAGES`]; `scope` is the interface of a link-local one.
/// Returns how many were sent, 1 at least.
///
/// # Safety
/// The pieces are mapped and readable.
pub(super) unsafe fn send(
    socket: &UdpSocket,
    (to, scope): (SocketAddr, u32),
    messages: &[Message],
    pieces: &Pieces,
) -> io::Result<usize> {
    let name = &(Name::of(to, scope), Name::len(to.is_ipv6()));
    let fd = socket.as_raw_fd();
    if let [message] = messages {
        let mut control = MaybeUninit::uninit();
        let header = header_of(message, name, pieces, &mut control);
        // SAFETY: name, control and piece list live as long as the call and are as long as said;
        // the caller keeps the pieces readable.
        let sent = unsafe { call(libc::SYS_sendmsg, fd, (&raw const header).cast_mut()) };
        return sent.map(|_| 1);
    }
    let mut controls = [MaybeUninit::uninit(); MESSAGES];
    // SAFETY: all-zero is a valid `mmsghdr`.
    let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { MaybeUninit::zeroed().assume_init() };
    for ((header, control), m) in headers.iter_mut().zip(&mut controls).zip(messages) {
        header.msg_hdr = header_of(m, name, pieces, control);
    }
    let count = messages.len().min(MESSAGES) as libc::c_uint;
    // SAFETY: as above.
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The kernel's header of a message to `name`.
#[inline]
fn header_of(
    message: &Message,
    (name, name_len): &(Name, libc::socklen_t),
    pieces: &Pieces,
    control: &mut MaybeUninit<Control>,
) -> libc::msghdr {
    // SAFETY: all-zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = (&raw const *name).cast_mut().cast();
    header.msg_namelen = *name_len;
    let iovecs = &pieces.0[message.pieces.clone()];
    header.msg_iov = iovecs.as_ptr().cast_mut();
    header.msg_iovlen = iovecs.len();
    if message.packets > 1 {
        // SAFETY: arithmetic alone.
        let (len, space) = unsafe { (libc::CMSG_LEN(SEGMENT), libc::CMSG_SPACE(SEGMENT)) };
        let of = libc::cmsghdr {
            cmsg_len: len as usize,
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        };
        let at = control.write([0; 8]).as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: the room is longer than one control message, and aligned as they are.
        unsafe {
            at.write(of);
            libc::CMSG_DATA(at)
                .cast::<u16>()
                .write_unaligned(message.segment as u16);
        }
        header.msg_control = at.cast();
        header.msg_controllen = space as usize;
    }
    header
}

/// Bytes of a size of segments.
const SEGMENT: u32 = size_of::<u16>() as u32;

/// Receives messages, as many as are there and `got` has places, into rooms of `room` bytes each.
/// Returns how many there were.
pub(super) fn receive(
    socket: &UdpSocket,
    bytes: &mut [u8],
    room: usize,
    got: &mut [Received],
) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let mut rooms = bytes.chunks_exact_mut(room);
    if let [one] = got {
        let mut place = Place::new(rooms.next().unwrap_or_default());
        let mut header = place.header();
        // SAFETY: the place lives as long as the call, and its parts are as long as said.
        let len = unsafe { call(libc::SYS_recvmsg, fd, &raw mut header) }?;
        *one = place.received(&header, len);
        return Ok(1);
    }
    let mut places: [Place; MESSAGES] =
        std::array::from_fn(|_| Place::new(rooms.next().unwrap_or_default()));
    let mut headers = [(); MESSAGES].map(|()| libc::mmsghdr {
        // SAFETY: all-zero is a valid `msghdr`.
        msg_hdr: unsafe { MaybeUninit::zeroed().assume_init() },
        msg_len: 0,
    });
    for (header, place) in headers.iter_mut().zip(&mut places) {
        header.msg_hdr = place.header();
    }
    let count = got.len().min(MESSAGES) as libc::c_uint;
    let (at, flags, no_timeout) = (
        headers.as_mut_ptr(),
        libc::MSG_DONTWAIT,
        std::ptr::null_mut(),
    );
    // SAFETY: the places live as long as the call, and their parts are as long as said.
    let n = unsafe { libc::recvmmsg(fd, at, count, flags, no_timeout) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    for ((got, header), place) in got.iter_mut().zip(&headers[..n]).zip(&places) {
        *got = place.received(&header.msg_hdr, header.msg_len as usize);
    }
    Ok(n)
}

/// Receives a message into pieces.
///
/// # Safety
/// They are mapped and may be written.
pub(super) unsafe fn receive_into(socket: &UdpSocket, pieces: &Pieces) -> io::Result<Received> {
    let mut place = Place::new(&mut []);
    let mut header = place.header();
    header.msg_iov = pieces.0.as_ptr().cast_mut();
    header.msg_iovlen = pieces.0.len();
    // SAFETY: the place and the list live as long as the call and are as long as said; the pieces
    // are the caller's.
    let len = unsafe { call(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header) }?;
    Ok(place.received(&header, len))
}

/// Where the kernel puts a message and what it says about it.
struct Place {
    room: libc::iovec,
    name: MaybeUninit<Name>,
    control: MaybeUninit<Control>,
}

impl Place {
    #[inline]
    fn new(room: &mut [u8]) -> Place {
        Place {
            room: libc::iovec {
                iov_base: room.as_mut_ptr().cast(),
                iov_len: room.len(),
            },
            name: MaybeUninit::uninit(),
            control: MaybeUninit::uninit(),
        }
    }

    #[inline]
    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut self.room;
        header.msg_iovlen = 1;
        header.msg_name = self.name.as_mut_ptr().cast();
        header.msg_namelen = size_of::<Name>() as libc::socklen_t;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>();
        header
    }

    /// What the kernel has put here, when it has received `len` bytes.
    fn received(&self, header: &libc::msghdr, len: usize) -> Received {
        // SAFETY: the kernel has filled as much of it as the family has.
        let from = unsafe { (*self.name.as_ptr()).address() };
        let cut = header.msg_flags & libc::MSG_TRUNC != 0;
        let mut got = Received {
            from,
            len: if cut { 0 } else { len },
            segment: len,
            ecn: 0,
        };
        read_controls(header, &mut got);
        got
    }
}

/// Takes the size of the joined packets and the ECN bits from the control messages.
fn read_controls(header: &libc::msghdr, got: &mut Received) {
    // SAFETY: the kernel has filled the control buffer and set its length.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: a header inside the control buffer, as CMSG_FIRSTHDR and CMSG_NXTHDR give it,
        // with a value of the kind's type.
        unsafe {
            match ((*control).cmsg_level, (*control).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let bytes = libc::CMSG_DATA(control)
                        .cast::<libc::c_int>()
                        .read_unaligned();
                    got.segment = usize::try_from(bytes).unwrap_or(0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => got.ecn = libc::CMSG_DATA(control).read() & 3,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    let class = libc::CMSG_DATA(control)
                        .cast::<libc::c_int>()
                        .read_unaligned();
                    got.ecn = class as u8 & 3;
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
}
