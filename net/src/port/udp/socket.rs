//! The socket of a UDP port.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use crate::port::kernel::{failed, Errors};

#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    pub(super) errors: Errors,
}

impl Socket {
    pub(super) fn new(socket: UdpSocket, buffer: usize) -> io::Result<Socket> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Best effort: the kernel's limit may be lower.
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), buffer);
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), buffer);
        // Best effort: without it a dead peer is detected by missing answers.
        let _ = state.enable_transport_errors(UdpSockRef::from(&socket));
        Ok(Socket {
            socket,
            state,
            errors: Errors::default(),
        })
    }

    /// Most datagrams in one [`Socket::send`].
    pub(super) fn most_segments(&self) -> u64 {
        self.state.max_gso_segments().max(1) as u64
    }

    /// Sends a batch.
    pub(super) fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.again(|s| s.state.try_send(UdpSockRef::from(&s.socket), transmit))
    }

    /// Sends one datagram.
    pub(super) fn send_to(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.again(|s| s.socket.send_to(datagram, to).map(drop))
    }

    /// Receives what is there.
    pub(super) fn recv(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.again(|s| s.state.recv(UdpSockRef::from(&s.socket), slices, metas))
    }

    /// A call that may fail with the error of an earlier datagram, which has nothing to do with it:
    /// once more then.
    fn again<T>(&mut self, mut call: impl FnMut(&Socket) -> io::Result<T>) -> io::Result<T> {
        let first = call(self);
        if !failed(&first) || !self.errors.read(self.socket.as_fd()) {
            return first;
        }
        let second = call(self);
        if failed(&second) {
            self.errors.read(self.socket.as_fd());
        }
        second
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
