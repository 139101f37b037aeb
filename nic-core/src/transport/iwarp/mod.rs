//! iWARP: sessions by RDMA over the kernel's TCP.
//!
//! ```text
//! serve (which sockets are ready) ─▶ conn ─▶ incoming: kernel ─▶ posted receives, ring
//!        poller                             └ outgoing: memory, copies ─▶ kernel
//! requests (start-up, listener)               session: credit, ends of the stream
//!                                             one_sided: memory that the peer names
//! ```
//!
//! A session is a TCP connection of its own, from any port of the asking NIC's host to the port of
//! streams of the other ([`StreamPort`](ringbell_net::port::streams::StreamPort)). Units are MPA's,
//! DDP's and RDMAP's ([`wire::iwarp`](ringbell_net::wire::iwarp)); the bytes of a session are in
//! Sends. No privilege is needed, and NAT and firewalls see TCP. A NIC behind NAT is named at the
//! address that others see.
//!
//! **Copies.** The kernel's alone for long messages: it gathers a unit from the sender's memory,
//! and scatters it to posted receives, with the next unit's header beside it. A unit has up to 64
//! KiB and takes one system call at the receiver, and at the sender several take one. Short sends
//! are copied into units, so that they retire at once.
//!
//! **Written messages.** A long message of a collective goes to a receive that the peer has
//! exposed, by Writes without credit; a Send ends it.
//!
//! **One-sided operations.** Puts are Writes, gets Reads, atomic operations those of RFC 7306; see
//! `one_sided`.
//!
//! **CRC.** On unless both ends decline. It is computed over what leaves and what has arrived, and
//! nothing is announced before it is right. Payloads are in their places before that.
//!
//! **Credit.** A receiver says how many bytes it holds before its program receives them, and always
//! reads: a program that does not receive stops its own session.
//!
//! **Ends.** A session ends by a message; the end of the connection without it is a reset. What the
//! protocol does not allow is answered with a Terminate message, and its reason is the detail of
//! operations that end by it. A peer that is silent for `give_up` while bytes are unconfirmed or a
//! session is idle counts as gone; the kernel asks.
//!
//! **Limits.** No markers; Sends of one unit.

mod arrival;
mod conn;
mod incoming;
mod one_sided;
mod outgoing;
mod poller;
mod receiver;
mod remote_units;
mod requests;
mod serve;
mod session;
mod socket;
mod units;
mod writes;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use self::arrival::Arrival;
use self::conn::Conn;
use self::poller::Poller;
use super::crc::Icrc;
use super::sessions::Sessions;
use crate::network::{Network, Protocol};
use crate::types::NicTime;

/// Largest and smallest window of a session.
const WINDOWS: std::ops::RangeInclusive<usize> = 4_096..=1 << 26;
/// Most connections that have come in and have not asked.
const ARRIVALS_MAX: usize = 256;
/// How long they have for that.
const STARTUP: Duration = Duration::from_secs(10);
/// When the kernel is asked again that could not give a connection, for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// How often a NIC without connections asks whether one has come in: each time is a system call,
/// and another transport may be at work beside it.
const IDLE_LOOK: Duration = Duration::from_micros(20);
/// Tokens of the poller: a listener's, an arrival's; a connection has its number alone.
const OF_LISTENER: u64 = 1 << 63;
const OF_ARRIVAL: u64 = 1 << 62;

/// Settings of an [`IwarpTransport`].
#[derive(Debug, Clone)]
pub struct IwarpConfig {
    /// Bytes that a session may hold before its program receives them: its window. Rounded up to a
    /// power of two.
    pub rx_buffer: usize,
    /// Most sessions, those that are ending included.
    pub connections: usize,
    /// A session whose peer answers nothing for this long is reset. While it is idle in whole
    /// seconds, 2 at least.
    pub give_up: Duration,
    /// Whether this end asks for the CRC. One end that does is enough.
    pub crc: Icrc,
    /// Key of the ports of outgoing sessions.
    pub seed: u64,
}

impl Default for IwarpConfig {
    /// 256 KiB, 4,096 sessions, 5 s without an answer, the CRC, seed 0.
    fn default() -> IwarpConfig {
        IwarpConfig {
            rx_buffer: 256 << 10,
            connections: 4_096,
            give_up: Duration::from_secs(5),
            crc: Icrc::Always,
            seed: 0,
        }
    }
}

/// An [`IwarpConfig`] or a network that cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IwarpError {
    /// The window is too small for a message, or too large.
    #[error("a buffer of transport iwarp holds 4 KiB to 64 MiB, not {bytes} bytes")]
    Buffer {
        /// As given.
        bytes: usize,
    },
    /// A port that takes no TCP connections.
    #[error("transport iwarp needs ports of streams, and {port} is none; open the NIC with port roce:ADDR[:PORT]")]
    NoStreams {
        /// The port as users see it.
        port: String,
    },
    /// The system refused a descriptor.
    #[error("cannot watch the sockets of transport iwarp: {0}")]
    System(#[from] io::Error),
}

/// A port's socket, at which connections come in.
#[derive(Debug)]
struct Listening {
    socket: TcpListener,
    /// The port's number.
    port: usize,
    /// Connections may wait.
    input: bool,
}

/// The iWARP transport of a NIC. See the module text.
pub struct IwarpTransport {
    config: IwarpConfig,
    sessions: Sessions<Conn>,
    poller: Poller,
    listeners: Vec<Listening>,
    /// Connections that have come in and are no sessions yet.
    arrivals: Vec<Option<Arrival>>,
    /// When connections are taken again that the kernel could not give.
    accept_at: Option<NicTime>,
    /// When the next look is due while there are no connections.
    look_at: NicTime,
}

impl std::fmt::Debug for IwarpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IwarpTransport")
            .field("ip", &self.sessions.ip)
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl IwarpTransport {
    /// A transport over a network: the one with which it is stepped. All its ports are
    /// [ports of streams](ringbell_net::port::streams::StreamPort).
    ///
    /// # Errors
    /// [`IwarpError`] names the setting or the port that cannot work.
    pub fn new(net: &Network, config: IwarpConfig) -> Result<IwarpTransport, IwarpError> {
        let bytes = config.rx_buffer;
        if !WINDOWS.contains(&bytes) {
            return Err(IwarpError::Buffer { bytes });
        }
        let poller = Poller::new()?;
        let mut listeners = Vec::new();
        for (number, port) in net.ports().iter().enumerate() {
            let Some(listener) = port.listener() else {
                let port = port.describe();
                return Err(IwarpError::NoStreams { port });
            };
            let socket = listener.try_clone()?;
            poller.add(&socket, OF_LISTENER | number as u64)?;
            listeners.push(Listening {
                socket,
                port: number,
                input: true,
            });
        }
        Ok(IwarpTransport {
            sessions: Sessions::new(net, Protocol::Iwarp, (config.connections, 0), config.seed),
            poller,
            listeners,
            arrivals: Vec::new(),
            accept_at: None,
            look_at: NicTime(0),
            config,
        })
    }

    /// Whether there is nothing but listeners.
    fn is_idle(&self) -> bool {
        self.connections() == 0 && self.arrivals.is_empty()
    }

    /// Sessions in use, those that are ending included.
    pub fn connections(&self) -> usize {
        self.sessions.table.len()
    }
}
