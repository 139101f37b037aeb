//! smoltcp's interface as the transport uses it: its clock, and the buffer for its immediate answer.

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;
use smoltcp::wire::Ipv4Cidr;

use super::clock::Clock;
use super::guarded;
use super::initial_sequence::interface_with;
use super::socket::TcpSocket;
use crate::transport::tcp::device::{Ingress, Reply};
use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// See the module text.
pub(in crate::transport::tcp) struct Stack {
    clock: Clock,
    pub(in crate::transport::tcp) caps: DeviceCapabilities,
    address: Ipv4Cidr,
    pub(in crate::transport::tcp) iface: Interface,
    /// A set without sockets: smoltcp answers what is given to it with a reset.
    no_sockets: SocketSet<'static>,
    /// The answer to the packet that was received last, if it has one.
    pub(in crate::transport::tcp) reply: Reply,
    /// Times that an assertion of smoltcp has failed.
    pub(in crate::transport::tcp) defects: u64,
}

impl Stack {
    pub(in crate::transport::tcp) fn new(config: &TcpConfig, caps: DeviceCapabilities) -> Stack {
        let clock = Clock::new(config.rto_min);
        let address = Ipv4Cidr::new(config.ip, config.prefix_len);
        // Each connection that begins has an interface of its own for that moment.
        let iface = interface_with(0, address, &caps, clock.instant(NicTime(0)));
        Stack {
            clock,
            caps,
            address,
            iface,
            no_sockets: SocketSet::new(Vec::new()),
            reply: Reply::new(),
            defects: 0,
        }
    }

    /// What smoltcp's clock shows.
    #[inline]
    pub(in crate::transport::tcp) fn instant(&self, now: NicTime) -> Instant {
        self.clock.instant(now)
    }

    /// Makes segments that fit into packets of so many bytes from now on.
    pub(in crate::transport::tcp) fn set_mtu(&mut self, mtu: usize, now: NicTime) {
        self.caps.max_transmission_unit = mtu;
        // smoltcp asks its device once, when the interface is made.
        self.iface = self.interface_with(0, now);
    }

    /// An interface on which the next connection begins with `isn`.
    pub(in crate::transport::tcp) fn interface_with(&self, isn: u32, now: NicTime) -> Interface {
        interface_with(isn, self.address, &self.caps, self.instant(now))
    }

    /// As [`interface_with`](Stack::interface_with), in the place of the stack's own, which is returned.
    pub(super) fn replace_interface(&mut self, isn: u32, now: NicTime) -> Interface {
        let fresh = self.interface_with(isn, now);
        std::mem::replace(&mut self.iface, fresh)
    }

    pub(super) fn restore_interface(&mut self, own: Interface) {
        self.iface = own;
    }

    /// Passes a packet to a socket; its answer goes to the reply buffer.
    #[inline]
    pub(in crate::transport::tcp) fn receive(
        &mut self,
        s: &mut TcpSocket,
        now: NicTime,
        packet: &[u8],
    ) {
        let t = self.instant(now);
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let (iface, sockets) = (&mut self.iface, &mut s.sockets);
        if guarded(|| iface.poll_ingress_single(t, &mut device, sockets)).is_none() {
            self.defects += 1;
            s.broken = true;
        }
    }

    /// Passes a SYN to a listening socket, which answers with the sequence number `isn`.
    pub(in crate::transport::tcp) fn receive_syn(
        &mut self,
        s: &mut TcpSocket,
        now: NicTime,
        packet: &[u8],
        isn: u32,
    ) {
        let own = self.replace_interface(isn, now);
        self.receive(s, now, packet);
        self.restore_interface(own);
    }

    /// Passes smoltcp a packet of no connection. Returns whether it answers, with a reset.
    pub(in crate::transport::tcp) fn refuse(&mut self, now: NicTime, packet: &[u8]) -> bool {
        let t = self.instant(now);
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        self.iface
            .poll_ingress_single(t, &mut device, &mut self.no_sockets);
        self.reply.len > 0
    }

    /// Lets a socket send a packet into the reply buffer. `false`: an assertion of smoltcp has failed.
    pub(super) fn poll_unheard(&mut self, s: &mut TcpSocket, now: NicTime) -> bool {
        let t = self.instant(now);
        let mut device = Ingress {
            packet: None,
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let (iface, sockets) = (&mut self.iface, &mut s.sockets);
        guarded(|| iface.poll_egress(t, &mut device, sockets)).is_some()
    }

    /// When a socket wants to be polled.
    pub(in crate::transport::tcp) fn poll_at(
        &mut self,
        s: &TcpSocket,
        now: NicTime,
    ) -> Option<NicTime> {
        let at = self.iface.poll_at(self.instant(now), &s.sockets)?;
        Some(self.clock.nic_time(at))
    }
}
