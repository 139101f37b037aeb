//! Carriers: what transports that send packets of their own have in common. They make connections,
//! serve those that have something to do, and end them.
//!
//! A protocol says how its messages look and what its bytes go through; see [`Carrier`] and
//! [`Carried`].

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::Status;

use super::carried::Carried;
use super::connections::Connection;
use super::life::{Ask, Phase};
use super::sessions::Sessions;
use super::turns::Sent;
use super::TransportEvent;
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::network::{Link, Network, Packet, Protocol};
use crate::types::{ConnId, NicTime};

/// Messages that wait for a step; a flood beyond is dropped, as if the wire had lost it.
pub(super) const CONTROL_MAX: usize = 256;

/// A transport that sends packets of its own: what its protocol adds to the life of connections.
pub(super) trait Carrier: Send + Sized {
    /// As users name it.
    const NAME: &'static str;
    /// Of its packets.
    const PROTOCOL: Protocol;
    /// See [`Caps::exposes`](super::Caps::exposes).
    const EXPOSES: Option<u64> = None;
    /// Whether it has one-sided operations.
    const ONE_SIDED: bool = false;
    type Conn: Carried;

    fn parts(&self) -> &Sessions<Self::Conn>;
    fn sessions(&mut self) -> &mut Sessions<Self::Conn>;
    /// Adds an outgoing connection between two addresses, local and peer. `None`: there is no room.
    fn dial(&mut self, addresses: (SocketAddrV4, SocketAddrV4)) -> Option<ConnId>;

    /// Whether a socket of its own, which is no port, has become ready. It may take a system call.
    fn look(&self) -> bool {
        false
    }
    /// See [`Transport::poll_fds`](super::Transport::poll_fds).
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// Takes a packet, which lies in the port until the call returns.
    fn take(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>);
    /// Whether messages wait for a step that belong to no connection.
    fn has_control(&self) -> bool;
    /// Acts on them. Returns whether there were any.
    fn read_control(&mut self, now: NicTime, net: &mut Network) -> bool;
    /// Sends answers that belong to no connection.
    fn send_answers(&mut self, _now: NicTime, _net: &mut Network) {}
    /// The NIC ends: peers of connections that were closed, and that wait for the peer's end, are
    /// told.
    fn close_orphans(&mut self) {}

    /// The request to the peer of a connection, to which the way is known now.
    fn request(
        &mut self,
        index: usize,
        link: Link,
        net: &mut Network,
    ) -> Option<<Self::Conn as Carried>::Message>;
    /// Where the peer receives, before anything was agreed.
    fn address(c: &Self::Conn, net: &Network) -> SocketAddr;
    /// Moves bytes between operations and what waits to be sent or received. Returns whether any
    /// moved.
    ///
    /// # Errors
    /// An engine on the path has failed.
    fn bytes(
        &mut self,
        index: usize,
        now: NicTime,
        data: &mut Datapath<'_>,
    ) -> Result<bool, EngineFailed>;
    /// Events from what has happened to the connection, after its packets were `sent`. Returns
    /// whether there were any.
    fn report(&mut self, index: usize, now: NicTime, sent: Sent) -> bool;
    /// The engine that changes this stream has failed: it ends here as by a reset, and the peer is
    /// told.
    fn end_by_engine(&mut self, index: usize, failed: EngineFailed);
    /// The peer is gone: what is posted retires, the id stays until the connection is closed.
    fn cut_off(&mut self, index: usize);
    /// No way leads to the peer any more.
    fn lose(&mut self, index: usize) {
        let Some(c) = self.sessions().table.at(index) else {
            return;
        };
        match c.life().phase {
            Phase::Resolving | Phase::Requesting => {
                self.fail_connect(index, Status::HostUnreachable, None);
            }
            Phase::Open | Phase::Closing => {
                tracing::warn!(
                    peer = %c.life().peer,
                    "no way leads to the peer any more; what is posted on the connection ends"
                );
                c.life_mut().unreachable = true;
                self.cut_off(index);
            }
            // They have deadlines, and no operation waits for them.
            Phase::Incoming(_) | Phase::Dead | Phase::Orphan | Phase::Ending => {}
        }
    }
    /// Takes the id from a connection; the peer is told that it ends.
    fn reject(&mut self, index: usize);
    /// A connection was freed.
    fn freed(&mut self, conn: &mut Self::Conn);
    /// The peer has not answered that a connection ends.
    fn unanswered(&mut self, index: usize) {
        self.free(index);
    }

    /// Frees a connection that has nothing left to send.
    fn free(&mut self, index: usize) {
        let s = self.sessions();
        let Some(mut c) = s.table.remove(index) else {
            return;
        };
        if let Phase::Incoming(listener) = c.life().phase {
            s.listeners.handshake_over(listener, false);
        }
        let request = (*c.life().peer.ip(), c.end_of_peer());
        if s.requests.get(&request) == Some(&index) {
            s.requests.remove(&request);
        }
        self.freed(&mut c);
    }

    /// An outgoing connection failed, by the peer's `answer` if there is one: its operations
    /// retire, its id is free.
    fn fail_connect(&mut self, index: usize, status: Status, answer: Option<u16>) {
        let s = self.sessions();
        let Some(c) = s.table.at(index) else {
            return;
        };
        if !c.life().phase.is_connecting() {
            return;
        }
        let conn = c.life().id;
        c.fail_all((status, 0), &mut s.events);
        s.events.push_back(TransportEvent::ConnectFailed {
            conn,
            status,
            answer,
        });
        self.free(index);
    }

    /// Serves a connection.
    fn serve(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let mut moved = self.handshake(index, now, net);
        let Some(c) = self.sessions().table.at(index) else {
            return moved;
        };
        let life = c.life_mut();
        if std::mem::take(&mut life.has_received) {
            if let Some(hop) = life.hop {
                net.confirm(hop, now);
            }
            self.sessions().established(index);
        }
        let bytes = self.bytes(index, now, data);
        let bytes = bytes.unwrap_or_else(|failed| {
            self.end_by_engine(index, failed);
            true
        });
        let sent = self.sessions().send(index, now, net, data);
        let (sent, packets) = sent.unwrap_or_else(|failed| {
            self.end_by_engine(index, failed);
            (Sent::All, 1)
        });
        let passed = bytes || packets > 0;
        moved |= passed;
        moved |= self.report(index, now, sent);
        self.sessions().schedule(index, now, sent, passed);
        moved
    }

    /// Continues a handshake, or abandons it.
    fn handshake(&mut self, index: usize, now: NicTime, net: &mut Network) -> bool {
        let s = self.sessions();
        let Some(c) = s.table.at(index) else {
            return false;
        };
        let late = c.life().deadline.is_some_and(|d| d <= now);
        let has_failed = c.ask().as_ref().is_some_and(|ask| ask.has_failed(now));
        match c.life().phase {
            Phase::Resolving => match s.resolve(index, now, net) {
                Ok(Some(link)) => {
                    let request = self.request(index, link, net);
                    if let Some(c) = self.sessions().table.at(index) {
                        *c.ask() = request.map(|message| Ask::new(message, now));
                        c.life_mut().phase = Phase::Requesting;
                    }
                }
                Ok(None) if !late => return false,
                found => {
                    let status = found.err().unwrap_or(Status::HostUnreachable);
                    self.fail_connect(index, status, None);
                    return true;
                }
            },
            Phase::Requesting if late => {
                self.fail_connect(index, Status::TimedOut, None);
                return true;
            }
            Phase::Incoming(_) if late => self.free(index),
            Phase::Orphan if late => self.reject(index),
            Phase::Ending | Phase::Dead if has_failed => self.unanswered(index),
            _ => {}
        }
        self.sessions().ask(index, now, net);
        false
    }
}
