//! The interface that has an address: what its packets carry.
#![allow(unsafe_code)] // getifaddrs(3) and ioctl(2).

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of an entry of the list.
///
/// # Safety
/// Null, or an address as long as its family says.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's contract; the list may be aligned for less.
    unsafe {
        match c_int_of((*at).sa_family) {
            libc::AF_INET => {
                let at = at.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(at.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let at = at.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(at.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

fn c_int_of(family: libc::sa_family_t) -> libc::c_int {
    family.into()
}

/// Largest IP packet of the interface that has this address; of a link-local one, of the interface
/// with number `scope`. `None`: there is no such interface.
pub(crate) fn mtu(of: IpAddr, scope: u32) -> Option<usize> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the variable is ours.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let (mut next, mut found) = (list, None);
    // SAFETY: entries of the list, which lives until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above; the name ends with zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: as above.
        if unsafe { address(entry.ifa_addr) } != Some(of) {
            continue;
        }
        // SAFETY: as above.
        if scope == 0 || unsafe { libc::if_nametoindex(name.as_ptr()) } == scope {
            found = mtu_by_name(name);
            break;
        }
    }
    // SAFETY: the list of above, which is not used any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

fn mtu_by_name(name: &CStr) -> Option<usize> {
    // SAFETY: no pointer is involved.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is ours, and the call fills in its number.
    let mtu = unsafe {
        let code = libc::ioctl(socket, libc::SIOCGIFMTU, &raw mut request);
        libc::close(socket);
        (code == 0).then_some(request.ifr_ifru.ifru_mtu)
    };
    usize::try_from(mtu?).ok()
}
