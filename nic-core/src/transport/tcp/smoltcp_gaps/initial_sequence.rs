//! Initial sequence numbers: chosen by the transport, handed to smoltcp through its random numbers.
//!
//! smoltcp draws them from a linear congruential generator (`random_seq_no`): an observer of a few
//! can compute the rest, and a port that is used again may begin below the numbers of its last
//! connection. RFC 9293 §3.4.1 asks for a clock and a keyed hash of the addresses, and a SYN cookie
//! *is* the number. smoltcp has no call to set one; its generator can be given the state from which
//! the wanted number follows.

use smoltcp::iface::{Config, Interface};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Cidr};

use crate::transport::tcp::device::{Ingress, Reply};

/// Multiplier and increment of smoltcp's generator (sPCG32, `src/rand.rs`).
const M: u64 = 0xbb2e_fcec_3c39_611d;
const A: u64 = 0x7590_ef39;

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each round doubles the bits
/// that are right.
const fn inverse(m: u64) -> u64 {
    let mut x = m;
    let mut round = 0;
    while round < 6 {
        x = x.wrapping_mul(2_u64.wrapping_sub(m.wrapping_mul(x)));
        round += 1;
    }
    x
}

const M_INVERSE: u64 = inverse(M);

fn previous(state: u64) -> u64 {
    state.wrapping_sub(A).wrapping_mul(M_INVERSE)
}

/// What the generator gives when it has moved to this state.
fn output(state: u64) -> u32 {
    (state >> (29 - (state >> 61))) as u32
}

/// The seed with which an interface's second number is `isn`. The first one becomes its IPv4
/// identification, drawn again when its two halves are equal.
fn seed_for(isn: u32) -> u64 {
    // The upper three bits 0: the output is bits 29 to 60. The lower ones are free.
    let states = (0..u64::MAX).map(|free| previous(u64::from(isn) << 29 | free));
    let fits = |s: &u64| output(*s) >> 16 != output(*s) & 0xffff;
    previous(states.into_iter().find(fits).unwrap_or(0))
}

/// An interface with this address whose first connection begins with `isn`.
pub(in crate::transport::tcp) fn interface_with(
    isn: u32,
    address: Ipv4Cidr,
    caps: &DeviceCapabilities,
    now: Instant,
) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed_for(isn);
    let mut reply = Reply::new();
    let mut unused = Ingress {
        packet: None,
        reply: &mut reply,
        caps,
    };
    let mut iface = Interface::new(config, &mut unused, now);
    // One of smoltcp's two places: it cannot be full.
    iface.update_ip_addrs(|addrs| addrs.extend([IpCidr::Ipv4(address)]));
    iface
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::device::capabilities;
    use ringbell_net::port::Checksums;
    use smoltcp::iface::SocketSet;
    use smoltcp::socket::tcp::{Socket, SocketBuffer};
    use smoltcp::wire::{IpAddress, Ipv4Address, TcpPacket};

    fn next(state: u64) -> u64 {
        state.wrapping_mul(M).wrapping_add(A)
    }

    #[test]
    fn the_generators_step_is_inverted() {
        for s in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!((previous(next(s)), next(previous(s))), (s, s));
        }
    }

    /// Fails when smoltcp draws its numbers in another way.
    #[test]
    fn a_connection_begins_with_the_number_that_was_asked_for() {
        let caps = capabilities(1500, Checksums::Omitted);
        let address = Ipv4Cidr::new(Ipv4Address::new(10, 0, 0, 1), 24);
        let t = Instant::from_micros(1);
        for isn in (0..1000)
            .map(|n: u32| n.wrapping_mul(0x9e37_79b9))
            .chain([0, 1, u32::MAX])
        {
            let mut iface = interface_with(isn, address, &caps, t);
            let buffer = || SocketBuffer::new(vec![0; 64]);
            let mut set = SocketSet::new(Vec::new());
            let handle = set.add(Socket::new(buffer(), buffer()));
            let remote = (IpAddress::v4(10, 0, 0, 2), 80);
            let local = (IpAddress::v4(10, 0, 0, 1), 4000);
            set.get_mut::<Socket>(handle)
                .connect(iface.context(), remote, local)
                .unwrap(); // two addresses of one network
            let mut reply = Reply::new();
            let mut device = Ingress {
                packet: None,
                reply: &mut reply,
                caps: &caps,
            };
            iface.poll_egress(t, &mut device, &mut set);
            assert!(reply.len >= 40, "no SYN was sent");
            let syn = TcpPacket::new_checked(&reply.bytes[20..reply.len]).unwrap(); // made by smoltcp
            assert_eq!(syn.seq_number().0 as u32, isn);
        }
    }
}
