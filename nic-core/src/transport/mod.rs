//! Transports: how the bytes of a session reach the peer.
//!
//! A transport is sans-I/O (in the manner of smoltcp and quinn-proto): commands go in, [`step`]
//! gets the time and moves what can be moved, [`poll_event`] returns what happened. Deadlines
//! belong to the command layer above, which calls [`cancel`]; packets belong to the network below.
//!
//! Five implementations: `local` copies straight out of the sender's memory between NICs of one
//! host and one user, `tcp` is smoltcp behind our own demultiplexer, `rdma` is RoCEv2, `udp` is
//! ACCL's UDP, without retransmission, `iwarp` is RDMA over the kernel's TCP. Sessions are byte
//! streams: no message boundaries, and flow control is the window that receiving opens, so that an
//! ordinary TCP peer works.
//!
//! [`step`]: Transport::step
//! [`poll_event`]: Transport::poll_event
//! [`cancel`]: Transport::cancel

pub(crate) mod carded;
mod carried;
mod carrier;
mod connections;
mod crc;
mod exposed;
pub mod iwarp;
mod life;
pub mod local;
mod one_sided;
pub(crate) mod order;
pub mod rdma;
mod rest;
mod ring;
mod service;
mod sessions;
pub mod tcp;
mod timers;
mod turns;
pub mod udp;

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::{InlineSend, PdId, Status};
use ringbell_onc_engines::stream::Hardware;

use crate::datapath::Datapath;
pub use crate::datapath::{Payload, RecvWork, SendWork, TransportEvent};
use crate::engine::Counter;
use crate::memory::Sharer;
use crate::network::{Network, Packet, Protocol, Received, Refused, Resolved, PROTOCOLS};
use crate::types::{Buffer, ConnId, ListenerId, NicTime, Small, WorkToken};
pub use crc::Icrc;
pub use one_sided::{RemoteOp, RemoteWork, Signal};
use ringbell_net::port::Places;

/// The memory of a peer NIC, mapped here: what it exports of GPU memory, and its NIC memory.
///
/// Only what the peer's NIC has granted may be touched: a bus address comes from a record that it
/// wrote after checking that the buffer is registered with the access in question (remote write for
/// a store), and is dead once the operation of that record has ended.
pub trait PeerWindow {
    /// Where `len` bytes at a bus address of the peer lie; `None` when it exports no such range, or
    /// is gone.
    fn at(&self, bus: u64, len: u64) -> Option<*mut u8>;

    /// Wakes the peer if it sleeps: after a store that it must look at.
    fn wake(&self);

    /// Whether the peer has mapped these bytes of this NIC's host memory, by their bus address
    /// here. `None`: it was notified but has not answered yet; its answer wakes the NIC.
    fn maps(&self, bus: u64, len: u64) -> Option<bool>;
}

/// Hardware that counts the received bytes of connections in the place of engines of the NIC.
pub trait CountsInHardware {
    /// Lets it count for a connection, from the next byte on that reaches the engine. `None`: it is
    /// in use.
    fn take_engine(&mut self, conn: ConnId, spec: Hardware) -> Option<Box<dyn Counter>>;

    /// Bytes that have reached the engine of a connection and not the hardware that counts for it.
    /// They do not reach that any more.
    fn unseen(&mut self, conn: ConnId) -> Vec<u8>;
}

/// Where the bytes of a send go, in a receive that the peer has exposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The key of the receive.
    pub key: u32,
    /// Its first byte there. The sends of a message continue each other.
    pub offset: u32,
    /// The message ends with it.
    pub last: bool,
}

/// What a transport is, and what it has beside streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// As users name it: `local`, `tcp`, `rdma`, `udp`, `iwarp`.
    pub name: &'static str,
    /// Of its packets, when it takes packets of the NIC's ports ([`Transport::packets`]).
    pub protocol: Option<Protocol>,
    /// Longest message, in bytes, for which a copy out of the receiver's buffer costs less than
    /// asking for its destination first.
    pub eager_max: u64,
    /// Longest message, in bytes, that costs less in the stream than in a receive which the peer
    /// writes ([`Transport::expose`]). `None`: there are no such receives.
    pub exposes: Option<u64>,
}

impl Caps {
    /// Streams without packets of the NIC's ports; a message of any length is sent at once.
    pub const fn streams(name: &'static str) -> Caps {
        Caps {
            name,
            protocol: None,
            eager_max: u64::MAX,
            exposes: None,
        }
    }
}

/// An operation of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// Bytes for the peer's next receive.
    Send(SendWork),
    /// Bytes for a receive that the peer has exposed. They arrive in order with those of sends.
    Write(SendWork, Target),
    /// Room for the next bytes of the stream.
    Receive(RecvWork),
    /// A one-sided operation.
    Remote(RemoteWork),
}

impl Work {
    /// The event of its end, by a transport that does not have such operations.
    #[cold]
    pub(crate) fn unsupported(&self, conn: ConnId) -> TransportEvent {
        let why = (Status::Unsupported, 0);
        match self {
            Work::Send(work) | Work::Write(work, _) => {
                TransportEvent::send_refused(conn, work.token, why)
            }
            Work::Receive(work) => TransportEvent::recv_refused(conn, work.token, why),
            Work::Remote(work) => TransportEvent::RemoteDone {
                conn,
                token: work.token,
                status: Status::Unsupported,
                bytes: 0,
                detail: work.op.opcode().code().into(),
            },
        }
    }
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// Half-close: the end of the stream follows the queued sends. Receives go on.
    Sending,
    /// The end follows the queued sends; receives not yet retired retire with `NotConnected`.
    /// `Closed` follows.
    Gracefully,
    /// A reset at once; operations not yet retired retire with `Aborted`. The id is free after
    /// that; no `Closed` follows.
    Now,
}

/// What a transport says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnState {
    /// Own address.
    pub local: SocketAddrV4,
    /// The peer's address.
    pub peer: SocketAddrV4,
    /// Bytes of sends that have retired with `OK` and that the peer has not confirmed to have.
    pub undelivered: u64,
    /// How operations end that come after a reset: `ConnectionReset`, or `HostUnreachable` where no
    /// way leads to the peer any more, with the detail. 0: there is no more to say.
    pub reset: (Status, u64),
}

impl ConnState {
    /// Of a reset without a detail.
    pub const RESET: (Status, u64) = (Status::ConnectionReset, 0);

    /// A connection whose peer has everything at once.
    pub const fn between(local: SocketAddrV4, peer: SocketAddrV4) -> ConnState {
        ConnState {
            local,
            peer,
            undelivered: 0,
            reset: ConnState::RESET,
        }
    }
}

/// A stream transport. See the module text for the rules. The methods stand in the order in which
/// the NIC calls them.
pub trait Transport: Send {
    // The NIC is made.

    /// What it is and has.
    fn caps(&self) -> Caps;

    /// The part that takes packets of the NIC's ports, if the transport sends some. What wakes the
    /// ports wakes it.
    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        None
    }

    /// File descriptors that become readable when `step` has something to do (a socket, a TAP
    /// device, an epoll instance): a thread that parks instead of stepping polls them for input.
    ///
    /// Asked once, when the NIC takes the transport; the descriptors are duplicated then, so what
    /// they refer to must stay the same for the transport's life (a changing set goes behind one
    /// epoll descriptor). A transport over memory that needs no descriptor returns none and is
    /// stepped at [`next_timer`](Transport::next_timer) and in bounded naps.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    // A connection begins.

    /// Starts to listen on a port; `backlog` connections may wait between handshake and
    /// [`TransportEvent::Incoming`] being polled.
    ///
    /// # Errors
    /// `AddressInUse`, `NoResources`.
    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status>;

    /// Stops listening; connections already reported live on.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect; `Connected` or `ConnectFailed` follows, no later than `deadline`.
    ///
    /// # Errors
    /// `HostUnreachable` when this transport cannot reach that address at all, `NoResources`.
    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status>;

    // It is up.

    /// A connection whose id is in use.
    fn conn_state(&self, conn: ConnId) -> Option<ConnState>;

    /// Lets the peer's one-sided operations on a connection reach regions of a domain, those that
    /// grant peers access. Operations that come before wait for it.
    fn grant(&mut self, conn: ConnId, pd: PdId) {
        let _ = (conn, pd);
    }

    /// Probes the peer while the connection is idle, so that its end is noticed soon. A transport
    /// that learns of the end without probes does nothing.
    fn watch(&mut self, conn: ConnId) {
        let _ = conn;
    }

    // An operation: at once, without an event, or posted.

    /// Sends a small payload at once if nothing is queued before it and the peer has room for it.
    /// `true`: it has left with the next [`flush`](Transport::flush), there will be no event.
    /// `false`: nothing happened, queue it instead.
    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        let _ = (conn, payload);
        false
    }

    /// Wakes the peers of payloads that were sent at once. A step does that, too.
    fn flush(&mut self) {}

    /// Shows the payload that is the next to be received, when no receive is queued before it and
    /// it has arrived as a whole. `true`: it was shown, and `receive` has received it.
    fn recv_small(&mut self, conn: ConnId, receive: &mut dyn FnMut(&Small) -> bool) -> bool {
        let _ = (conn, receive);
        false
    }

    /// Receives at once when nothing is queued before it and enough has already arrived.
    /// `Some(bytes)`: it has ended, there will be no event. `None`: the stream is as before, queue
    /// it instead.
    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        let _ = (conn, buffer, some, data);
        None
    }

    /// Queues an operation; the event of its end follows. An operation that the transport does not
    /// have ends with `Unsupported`.
    fn post(&mut self, conn: ConnId, work: Work);

    /// Posts a receive that the peer fills by a message of its own, in no order with other
    /// receives. Returns the key by which the peer names it, for one message. `None`: nothing
    /// happened, because the transport has none. `in_use`: what lies there may still be sent, so
    /// nothing else may be written there before the message's own first byte, which comes when it
    /// is not needed any more.
    fn expose(&mut self, conn: ConnId, work: &RecvWork, in_use: bool) -> Option<u32> {
        let _ = (conn, work, in_use);
        None
    }

    /// Cancels a posted operation. `Some(bytes)` when it was still queued: it yields no event, and
    /// after the call the transport never touches its buffer again. A send that was partly taken by
    /// the peer, or by frames in flight, makes the stream unusable: the caller aborts it. So does a
    /// one-sided operation whose source the peer may still read: then `Some` has a number above 0.
    /// It may be executed even so.
    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64>;

    // Every step, and before a sleep.

    /// Whether a `step` without the time would find nothing to do. A cheap check, by which a
    /// spinning thread avoids whole steps; `false` is always a correct answer.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Moves what can be moved. Packets have come by [`deliver`] and leave by `net`. Returns
    /// whether anything was moved.
    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool;

    /// The next thing that happened.
    fn poll_event(&mut self) -> Option<TransportEvent>;

    /// When `step` must be called again although nothing arrives.
    fn next_timer(&self) -> Option<NicTime>;

    // The end.

    /// Ends a connection, or its sending side.
    fn close(&mut self, conn: ConnId, how: Close);

    /// The NIC ends after the next steps: peers of connections that were closed, and that still
    /// wait for the peer's end, are told.
    fn end(&mut self) {}

    // What few have.

    /// The peer's memory, when this transport maps it.
    fn peer_window(&self, conn: ConnId) -> Option<&dyn PeerWindow> {
        let _ = conn;
        None
    }

    /// The part that lets peers map this NIC's host memory, if they can.
    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        None
    }

    /// The part that counts in an engine's place, if there is such hardware.
    fn hardware(&mut self) -> Option<&mut dyn CountsInHardware> {
        None
    }
}

/// What follows a packet, before the next one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next packet.
    Next,
    /// The packet asks for something beside itself: [`PacketTransport::answer`].
    Answer,
    /// The layer above sees what the packet has done: it then posts the receive into which the
    /// bytes of the next one go.
    Step,
}

/// The part of a transport that takes packets of the NIC's ports; [`deliver`] calls it.
pub trait PacketTransport {
    /// Whether the next packets may have places ([`expect`](PacketTransport::expect)): only a step
    /// says where, so a look must not receive them.
    fn expects_places(&self) -> bool {
        false
    }

    /// Says where the payloads of the next packets go, if that is known.
    fn expect(&mut self, places: &mut Places, data: &mut Datapath<'_>) {
        let _ = (places, data);
    }

    /// Takes a packet, which lies in the port until the call returns.
    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> Then;

    /// Does what the last packet asks for beside the packet itself, such as an answer to its
    /// sender.
    fn answer(&mut self, now: NicTime, net: &mut Network) {
        let _ = (now, net);
    }

    /// A connection that waited for its hop has it, or will not have it.
    fn resolved(&mut self, index: usize, outcome: Resolved);

    /// A host has refused a packet, or no way leads to it; see
    /// [`Port::next_refused`](ringbell_net::port::Port::next_refused).
    fn refused(&mut self, now: NicTime, by: Refused, net: &Network);
}

/// The transports that take packets, by their protocol.
pub type Takers<'a> = [Option<&'a mut dyn PacketTransport>; PROTOCOLS];

/// Frames taken from each port per step: enough to acknowledge many at once, few enough to serve
/// others soon.
const RX_BUDGET: usize = 128;

/// Passes what has arrived at the ports to the transports, before they are stepped. Returns whether
/// there was anything.
pub fn deliver(
    now: NicTime,
    net: &mut Network,
    takers: &mut Takers<'_>,
    data: &mut Datapath<'_>,
) -> bool {
    let mut any = false;
    for port in 0..net.ports().len() {
        for _ in 0..RX_BUDGET {
            if let Some(places) = net.places(port) {
                if let Some(taker) = &mut takers[Protocol::Roce as usize] {
                    taker.expect(places, data);
                }
            }
            let Some(received) = net.rx(port, now) else {
                break;
            };
            any = true;
            let Received::Packet(protocol, packet) = received else {
                continue;
            };
            match &mut takers[protocol as usize] {
                Some(taker) => match taker.receive(now, &packet, data) {
                    Then::Next => {}
                    Then::Answer => taker.answer(now, net),
                    Then::Step => break,
                },
                None => net.drop_unclaimed(),
            }
        }
    }
    while let Some(by) = net.next_refused() {
        for taker in takers.iter_mut().flatten() {
            taker.refused(now, by, net);
        }
    }
    if net.is_asking() {
        for (who, outcome) in net.resolve(now) {
            any = true;
            if let Some(taker) = &mut takers[who.protocol as usize] {
                taker.resolved(who.index, outcome);
            }
        }
    }
    any
}
