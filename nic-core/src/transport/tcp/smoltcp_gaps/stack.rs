//! smoltcp's interfaces as the transport uses them, one for each port: their clock, and the buffer
//! for the immediate answer.

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;
use smoltcp::wire::Ipv4Cidr;

use super::clock::Clock;
use super::guarded;
use super::initial_sequence::interface_with;
use super::socket::TcpSocket;
use crate::network::Network;
use crate::transport::tcp::device::{capabilities, Ingress, Reply};
use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// See the module text.
pub(in crate::transport::tcp) struct Stack {
    clock: Clock,
    address: Ipv4Cidr,
    /// By the port's number.
    interfaces: Vec<PortInterface>,
    /// A set without sockets: smoltcp answers what is given to it with a reset.
    no_sockets: SocketSet<'static>,
    /// The answer to the packet that was received last, if it has one.
    pub(in crate::transport::tcp) reply: Reply,
    /// Times that an assertion of smoltcp has failed.
    pub(in crate::transport::tcp) defects: u64,
}

/// smoltcp's interface for a port. Each connection that begins has an interface of its own for that
/// moment.
pub(in crate::transport::tcp) struct PortInterface {
    pub(in crate::transport::tcp) caps: DeviceCapabilities,
    pub(in crate::transport::tcp) iface: Interface,
}

impl Stack {
    pub(in crate::transport::tcp) fn new(config: &TcpConfig, net: &Network) -> Stack {
        let clock = Clock::new(config.rto_min);
        // Every host is on smoltcp's link: the network has the routes.
        let address = Ipv4Cidr::new(net.ip(), 0);
        Stack {
            clock,
            address,
            interfaces: Vec::new(),
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

    /// Makes an interface for each port, and a new one when its MTU has changed: smoltcp asks for
    /// it once.
    pub(in crate::transport::tcp) fn follow_ports(&mut self, net: &Network, now: NicTime) {
        for (n, port) in net.ports().iter().enumerate() {
            let known = self.interfaces.get(n);
            let port = port.capabilities();
            if known.is_some_and(|i| i.caps.max_transmission_unit == port.mtu) {
                continue;
            }
            let caps = capabilities(port.mtu, port.checksums);
            let iface = interface_with(0, self.address, &caps, self.clock.instant(now));
            let fresh = PortInterface { caps, iface };
            match self.interfaces.get_mut(n) {
                Some(old) => *old = fresh,
                None => self.interfaces.push(fresh),
            }
        }
    }

    /// The interface of a port.
    #[inline]
    pub(in crate::transport::tcp) fn of(&mut self, port: usize) -> &mut PortInterface {
        &mut self.interfaces[port]
    }

    /// An interface on which the next connection begins with `isn`.
    pub(in crate::transport::tcp) fn interface_with(
        &self,
        port: usize,
        isn: u32,
        now: NicTime,
    ) -> Interface {
        let caps = &self.interfaces[port].caps;
        interface_with(isn, self.address, caps, self.instant(now))
    }

    /// As [`interface_with`](Stack::interface_with), in the place of the port's own, which is
    /// returned.
    pub(super) fn replace_interface(&mut self, port: usize, isn: u32, now: NicTime) -> Interface {
        let fresh = self.interface_with(port, isn, now);
        std::mem::replace(&mut self.interfaces[port].iface, fresh)
    }

    pub(super) fn restore_interface(&mut self, port: usize, own: Interface) {
        self.interfaces[port].iface = own;
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
        let PortInterface { caps, iface } = &mut self.interfaces[s.port];
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps,
        };
        let sockets = &mut s.sockets;
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
        let own = self.replace_interface(s.port, isn, now);
        self.receive(s, now, packet);
        self.restore_interface(s.port, own);
    }

    /// Passes smoltcp a packet of no connection. Returns whether it answers, with a reset.
    pub(in crate::transport::tcp) fn refuse(
        &mut self,
        port: usize,
        now: NicTime,
        packet: &[u8],
    ) -> bool {
        let t = self.instant(now);
        let PortInterface { caps, iface } = &mut self.interfaces[port];
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps,
        };
        iface.poll_ingress_single(t, &mut device, &mut self.no_sockets);
        self.reply.len > 0
    }

    /// Lets a socket send a packet into the reply buffer. `false`: an assertion of smoltcp has
    /// failed.
    pub(super) fn poll_unheard(&mut self, s: &mut TcpSocket, now: NicTime) -> bool {
        let t = self.instant(now);
        let PortInterface { caps, iface } = &mut self.interfaces[s.port];
        let mut device = Ingress {
            packet: None,
            reply: &mut self.reply,
            caps,
        };
        let sockets = &mut s.sockets;
        guarded(|| iface.poll_egress(t, &mut device, sockets)).is_some()
    }

    /// When a socket wants to be polled.
    pub(in crate::transport::tcp) fn poll_at(
        &mut self,
        s: &TcpSocket,
        now: NicTime,
    ) -> Option<NicTime> {
        let t = self.instant(now);
        let at = self.interfaces[s.port].iface.poll_at(t, &s.sockets)?;
        Some(self.clock.nic_time(at))
    }
}
