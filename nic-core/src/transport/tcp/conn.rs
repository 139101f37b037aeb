//! One connection: its socket, the works posted on it, and what was reported about it.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

use super::demux::Key;
use super::smoltcp_gaps::acceptance::Challenges;
use super::smoltcp_gaps::clock::Clock;
use super::smoltcp_gaps::partial_ack::Recovery;
use super::TcpConfig;
use crate::transport::{RecvWork, SendWork};
use crate::types::{ConnId, ListenerId, NicTime};

/// How long an acknowledgement waits for company: time for a kernel to answer what it received.
/// RFC 9293 §3.8.6.3 allows 500 ms; a GPU answers sooner.
const ACK_DELAY: std::time::Duration = std::time::Duration::from_micros(200);

/// A peer is not given up before it was sent so much without an answer: smoltcp backs off to a minute,
/// and a bad cable may lose a few in a row (RFC 9293 §3.8.3 counts attempts, too).
const ATTEMPTS_MIN: u32 = 5;

/// Where a connection is in its life. smoltcp keeps TCP's own state; this is what the layer above
/// has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the neighbour's hardware address.
    Resolving,
    /// The SYN is out.
    Connecting,
    /// A SYN came in for this listener; the handshake is not over.
    Incoming(ListenerId),
    /// Reported as established.
    Open,
    /// Reported as reset; the id stays until it is closed.
    Dead,
    /// `close` was called and not yet answered.
    Closing,
    /// The id was given back; TCP has still something to say (FIN, RST, TIME-WAIT).
    Orphan,
}

/// A send that has not retired.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) work: SendWork,
    /// Bytes in the socket's buffer, or beyond.
    pub(super) done: u32,
    /// Length of the DMA read that memory has not answered: it must be repeated unchanged.
    pub(super) pending: Option<usize>,
}

/// A receive that has not retired.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) work: RecvWork,
    /// Bytes written to the buffer.
    pub(super) done: u32,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) key: Key,
    pub(super) local: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    pub(super) phase: Phase,
    /// A set of one: smoltcp looks at nothing else.
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) neighbor: usize,
    pub(super) sends: VecDeque<Sending>,
    pub(super) recvs: VecDeque<Receiving>,
    /// A FIN is to follow the sends.
    pub(super) fin_wanted: bool,
    /// The socket was told so.
    pub(super) fin_given: bool,
    /// `PeerClosed` was reported.
    pub(super) peer_closed: bool,
    /// TCP state at the end of the last service.
    pub(super) last_state: State,
    /// Sequence number of the peer's first byte, once we have acknowledged its SYN.
    pub(super) peer_base: Option<u32>,
    /// Sequence number of our first byte: one more than that of our SYN.
    pub(super) first: u32,
    /// Bytes put into the socket.
    pub(super) given: u64,
    /// The window that the peer has offered last, not scaled.
    pub(super) heard_window: u16,
    /// Answers to segments that somebody may have guessed.
    pub(super) challenges: Challenges,
    /// A reset has ended the socket.
    pub(super) reset: bool,
    /// Losses that are being mended.
    pub(super) recovery: Recovery,
    /// When the socket is reminded of what it has forgotten.
    pub(super) revive_at: Option<NicTime>,
    /// When an idle connection starts to send keep-alive probes.
    pub(super) keep_alive_at: Option<NicTime>,
    /// Bytes taken out of the socket.
    pub(super) taken: u64,
    /// An engine holds bytes for the next receive.
    pub(super) held: bool,
    /// Where bytes that leave lie before an engine changes them; empty without one.
    pub(super) piece: Vec<u8>,
    /// smoltcp has panicked on this socket.
    pub(super) broken: bool,
    /// The last service ended before all that could be moved was moved.
    pub(super) paused: bool,
    /// A segment came in since the last service.
    pub(super) heard: bool,
    /// Since when the peer owes an answer.
    pub(super) unanswered: Option<NicTime>,
    /// How often something was sent since then.
    pub(super) attempts: u32,
    /// End of an attempt to connect, or of an orphan.
    pub(super) deadline: Option<NicTime>,
    /// When TCP wants to be called next.
    pub(super) timer: Option<NicTime>,
}

impl Conn {
    pub(super) fn new(
        id: ConnId,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        phase: Phase,
        neighbor: usize,
        config: &TcpConfig,
    ) -> Conn {
        // A zeroed Vec of this size is fresh pages: an idle connection costs address space only.
        let mut socket = Socket::new(
            SocketBuffer::new(vec![0; config.rx_buffer]),
            SocketBuffer::new(vec![0; config.tx_buffer]),
        );
        // Messages of a GPU are whole when they are posted: waiting for more only adds latency.
        socket.set_nagle_enabled(false);
        let clock = Clock::new(config.rto_min);
        socket.set_ack_delay(Some(clock.duration(ACK_DELAY)));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Conn {
            id,
            key: Key::of(peer, local.port()),
            local,
            peer,
            phase,
            sockets,
            handle,
            neighbor,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            fin_wanted: false,
            fin_given: false,
            peer_closed: false,
            last_state: State::Closed,
            peer_base: None,
            first: 0,
            given: 0,
            heard_window: 0,
            challenges: Challenges::default(),
            reset: false,
            recovery: Recovery::default(),
            revive_at: None,
            keep_alive_at: None,
            taken: 0,
            held: false,
            piece: Vec::new(),
            broken: false,
            paused: false,
            heard: false,
            unanswered: None,
            attempts: 0,
            deadline: None,
            timer: None,
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn tcp(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    /// Puts a closed socket in the place of a broken one.
    pub(super) fn replace_socket(&mut self) {
        self.sockets = SocketSet::new(Vec::with_capacity(1));
        self.handle = self.sockets.add(Socket::new(
            SocketBuffer::new(Vec::new()),
            SocketBuffer::new(Vec::new()),
        ));
        self.broken = false;
    }

    pub(super) fn state(&self) -> State {
        self.tcp().state()
    }

    /// Bytes in the socket's buffer that the peer has not acknowledged.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.sockets.get::<Socket>(self.handle).send_queue() as u64
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.phase == Phase::Orphan
    }

    /// Whether a receive that is posted now finds anything: bytes, an end, or its own length of none.
    pub(super) fn has_news_for(&self, work: &RecvWork) -> bool {
        let socket = self.tcp();
        self.phase != Phase::Open
            || work.buffer.len == 0
            || self.held
            || self.peer_closed
            || socket.recv_queue() > 0
            || !is_synchronized(socket.state())
            || peer_has_closed(socket.state())
    }

    /// RCV.NXT. smoltcp keeps it to itself, so it is counted from outside.
    pub(super) fn next_expected(&self) -> Option<u32> {
        let socket = self.tcp();
        let fin = u32::from(peer_has_closed(socket.state()));
        let bytes = self.taken + socket.recv_queue() as u64;
        Some(self.peer_base?.wrapping_add(bytes as u32).wrapping_add(fin))
    }

    /// Whether what TCP sends now must be answered: data, FIN or a keep-alive probe.
    pub(super) fn expects_answer(&self, config: &TcpConfig) -> bool {
        let socket = self.tcp();
        let fin = matches!(
            socket.state(),
            State::FinWait1 | State::Closing | State::LastAck
        );
        fin || socket.send_queue() > 0 || config.keep_alive.is_some()
    }

    /// When the peer counts as gone.
    pub(super) fn gone_at(&self, config: &TcpConfig) -> Option<NicTime> {
        let since = self.unanswered.filter(|_| self.attempts >= ATTEMPTS_MIN)?;
        Some(since.plus(config.user_timeout?))
    }

    /// When somebody must look at this connection although no segment comes.
    pub(super) fn wake_at(&self, config: &TcpConfig) -> Option<NicTime> {
        let timers = [
            self.timer,
            self.deadline,
            self.gone_at(config),
            self.revive_at,
            self.keep_alive_at,
        ];
        timers.into_iter().flatten().min()
    }
}

/// Whether the handshake is over.
pub(super) fn is_synchronized(state: State) -> bool {
    !matches!(
        state,
        State::Closed | State::Listen | State::SynSent | State::SynReceived
    )
}

/// Whether the peer's FIN has arrived.
pub(super) fn peer_has_closed(state: State) -> bool {
    matches!(
        state,
        State::CloseWait | State::LastAck | State::Closing | State::TimeWait
    )
}
