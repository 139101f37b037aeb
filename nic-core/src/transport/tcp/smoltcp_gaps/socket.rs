//! One connection's smoltcp socket, with the sequence numbers that smoltcp keeps private, counted
//! from outside.
#![allow(unsafe_code)] // The memory of its buffers.

use std::net::SocketAddrV4;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

use super::challenges::Challenges;
use super::clock::Clock;
use super::probes::Probes;
use super::recovery::Recovery;
use crate::transport::tcp::memory::SocketMemory;
use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// How long an acknowledgement is delayed, so that a kernel's answer can carry it.
/// RFC 9293 §3.8.6.3 allows 500 ms; a GPU answers sooner.
const ACK_DELAY: std::time::Duration = std::time::Duration::from_micros(200);

/// See the module text.
#[derive(Debug)]
pub(in crate::transport::tcp) struct TcpSocket {
    pub(in crate::transport::tcp) local: SocketAddrV4,
    pub(in crate::transport::tcp) peer: SocketAddrV4,
    /// A set of one: smoltcp looks at nothing else.
    /// The port that its packets leave by.
    pub(in crate::transport::tcp) port: usize,
    pub(in crate::transport::tcp) sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Sequence number of the peer's first byte, once we have acknowledged its SYN.
    pub(in crate::transport::tcp) peer_base: Option<u32>,
    /// Sequence number of our first byte: one more than that of our SYN.
    pub(in crate::transport::tcp) first: u32,
    /// Bytes put into the socket.
    pub(in crate::transport::tcp) given: u64,
    /// Bytes taken out of the socket.
    pub(in crate::transport::tcp) taken: u64,
    /// The window that the peer has offered last, not scaled.
    pub(in crate::transport::tcp) heard_window: u16,
    /// Answers to segments whose numbers may have been guessed.
    pub(super) challenges: Challenges,
    /// A reset has ended the socket.
    pub(in crate::transport::tcp) reset: bool,
    /// Losses that are being recovered from.
    pub(in crate::transport::tcp) recovery: Recovery,
    /// Whether the peer is still there.
    pub(in crate::transport::tcp) probes: Probes,
    /// smoltcp has panicked on this socket.
    pub(in crate::transport::tcp) broken: bool,
    /// Memory of the socket's buffers: below `sockets`, so that it is dropped after them.
    memory: SocketMemory,
}

impl TcpSocket {
    pub(in crate::transport::tcp) fn new(
        local: SocketAddrV4,
        peer: SocketAddrV4,
        config: &TcpConfig,
    ) -> TcpSocket {
        // SAFETY: `sockets`, which gets the buffers, is dropped before `memory`.
        let (memory, received, to_send) = unsafe { SocketMemory::new(config) };
        let mut socket = Socket::new(received, to_send);
        // Messages of a GPU are whole when they are posted: waiting for more only adds latency.
        socket.set_nagle_enabled(false);
        let clock = Clock::new(config.rto_min);
        socket.set_ack_delay(Some(clock.duration(ACK_DELAY)));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        TcpSocket {
            local,
            peer,
            port: 0,
            sockets,
            handle,
            peer_base: None,
            first: 0,
            given: 0,
            taken: 0,
            heard_window: 0,
            challenges: Challenges::default(),
            reset: false,
            recovery: Recovery::default(),
            probes: Probes::default(),
            broken: false,
            memory,
        }
    }

    pub(in crate::transport::tcp) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(in crate::transport::tcp) fn tcp(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    /// Puts a closed socket in the place of a broken one.
    pub(in crate::transport::tcp) fn replace(&mut self) {
        self.sockets = SocketSet::new(Vec::with_capacity(1));
        self.handle = self.sockets.add(Socket::new(
            SocketBuffer::new(Vec::new()),
            SocketBuffer::new(Vec::new()),
        ));
        self.broken = false;
    }

    pub(in crate::transport::tcp) fn state(&self) -> State {
        self.tcp().state()
    }

    /// Bytes in the socket's buffer that the peer has not acknowledged.
    pub(in crate::transport::tcp) fn unconfirmed(&self) -> u64 {
        self.sockets.get::<Socket>(self.handle).send_queue() as u64
    }

    /// RCV.NXT, counted from outside because smoltcp keeps it private.
    pub(in crate::transport::tcp) fn next_expected(&self) -> Option<u32> {
        let socket = self.tcp();
        let fin = u32::from(peer_has_closed(socket.state()));
        let bytes = self.taken + socket.recv_queue() as u64;
        Some(self.peer_base?.wrapping_add(bytes as u32).wrapping_add(fin))
    }

    /// SND.UNA, counted from outside because smoltcp keeps it private.
    pub(in crate::transport::tcp) fn unacknowledged(&self) -> u32 {
        let socket = self.tcp();
        // Our FIN is acknowledged.
        let fin = matches!(socket.state(), State::FinWait2 | State::TimeWait);
        let acknowledged = self.given - socket.send_queue() as u64;
        self.first
            .wrapping_add(acknowledged as u32)
            .wrapping_add(u32::from(fin))
    }

    /// SND.NXT, or one less while a FIN is about to be sent.
    pub(in crate::transport::tcp) fn sent_end(&self) -> u32 {
        let closed = matches!(
            self.tcp().state(),
            State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait
        );
        let end = self.recovery.end().unwrap_or(self.first);
        end.wrapping_add(u32::from(closed))
    }

    /// A segment that ends at `end` went to the socket.
    pub(in crate::transport::tcp) fn took(&mut self, end: u32) {
        if let Some(next) = self.next_expected() {
            let window = self.tcp().recv_capacity();
            self.memory.took(end, next, window);
        }
    }

    /// When to look whether the connection rests.
    pub(in crate::transport::tcp) fn look_at(&self) -> Option<NicTime> {
        self.memory.look_at()
    }

    /// Gives the buffers' pages back once the connection rests.
    pub(in crate::transport::tcp) fn rest(&mut self, now: NicTime) {
        let next = self.next_expected();
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let empty = socket.send_queue() == 0 && socket.recv_queue() == 0;
        let passed = self.given + self.taken;
        self.memory.rest(now, passed, next, empty);
    }

    /// Discards what the peer sent. Returns whether there was anything.
    pub(in crate::transport::tcp) fn discard(&mut self) -> bool {
        let mut any = false;
        while self.socket().recv_queue() > 0 {
            match self.socket().recv(|b| (b.len(), b.len())) {
                Ok(n) if n > 0 => {
                    self.taken += n as u64;
                    any = true;
                }
                _ => break,
            }
        }
        any
    }
}

/// Whether the handshake is over.
pub(in crate::transport::tcp) fn is_synchronized(state: State) -> bool {
    !matches!(
        state,
        State::Closed | State::Listen | State::SynSent | State::SynReceived
    )
}

/// Whether the peer's FIN has arrived.
pub(in crate::transport::tcp) fn peer_has_closed(state: State) -> bool {
    matches!(
        state,
        State::CloseWait | State::LastAck | State::Closing | State::TimeWait
    )
}
