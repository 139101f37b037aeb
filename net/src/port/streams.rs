//! A port of streams: where the host's TCP takes connections of transport `iwarp`.
//!
//! It carries no packets of ours. The kernel does everything up to TCP; the transport takes the
//! connections ([`Port::listener`]) and makes its own. The port gives the NIC its address on
//! the host, which peers are told as they are told that of a port of datagrams. It needs no
//! privilege, and passes NAT and firewalls as any TCP service does.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use super::roce::DATAGRAM_MTU_MAX;
use super::{Arrived, Capabilities, Checksums, Medium, Port, PortCounters, Segmentation};
use crate::NicTime;

/// A port of streams cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamsError {
    /// The address is not one of a host.
    #[error(
        "{addr} is no address of this host; name one, such as 127.0.0.1 or that of an interface"
    )]
    Address {
        /// As given.
        addr: SocketAddr,
    },
    /// The socket cannot be bound.
    #[error("cannot take connections on TCP {addr}: {source}; choose another address or port")]
    Bind {
        /// As given.
        addr: SocketAddr,
        /// As the kernel says.
        source: io::Error,
    },
}

/// A port at which the host's TCP takes connections. See the module text.
#[derive(Debug)]
pub struct StreamPort {
    listener: TcpListener,
    local: SocketAddr,
    capabilities: Capabilities,
}

impl StreamPort {
    /// Listens at an address of this host; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// [`StreamsError`] says what is wrong with the address.
    pub fn open(mut addr: SocketAddr) -> Result<StreamPort, StreamsError> {
        addr.set_ip(addr.ip().to_canonical());
        if addr.ip().is_unspecified() || addr.ip().is_multicast() {
            return Err(StreamsError::Address { addr });
        }
        let bound = TcpListener::bind(addr).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            Ok((listener, SocketAddr::new(addr.ip(), port)))
        });
        let (listener, local) = bound.map_err(|source| StreamsError::Bind { addr, source })?;
        Ok(StreamPort {
            listener,
            local,
            capabilities: Capabilities {
                medium: Medium::Udp(local),
                mtu: DATAGRAM_MTU_MAX,
                checksums: Checksums::Omitted,
                segmentation: Segmentation {
                    packets: 1,
                    bytes: DATAGRAM_MTU_MAX,
                },
                receive_buffer: Some(0),
            },
        })
    }

    /// Where connections come in.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

/// No transport of packets runs over it: what is sent is lost.
impl Port for StreamPort {
    fn describe(&self) -> String {
        format!("tcp {}", self.local)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, _: NicTime) -> Option<Arrived<'_>> {
        None
    }

    fn poll(&mut self) -> bool {
        false
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.listener.as_fd());
    }

    fn listener(&self) -> Option<&TcpListener> {
        Some(&self.listener)
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
