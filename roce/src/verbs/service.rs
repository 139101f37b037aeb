//! The two services of queue pairs: reliable connections and unreliable datagrams.

use std::net::SocketAddr;

use super::datagram::Datagrams;
use super::endpoint::{Peer, View};
use super::gid::{Features, Gid};
use super::types::Service;
use crate::qp::{QpCounters, QueuePair, State, Transmit};
use ringbell_net::port::Datagram;
use ringbell_net::wire::roce::Packet;
use ringbell_net::wire::udp::MARKED;
use ringbell_net::NicTime;

/// What makes the packets of a queue pair, and takes them.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Most are connected.
pub(super) enum Machine {
    Connected(QueuePair),
    Datagram(Datagrams),
}

impl Machine {
    pub(super) fn new(service: Service) -> Machine {
        match service {
            Service::Connected => Machine::Connected(QueuePair::new()),
            Service::Datagram => Machine::Datagram(Datagrams::new()),
        }
    }

    pub(super) fn state(&self) -> State {
        match self {
            Machine::Connected(qp) => qp.state(),
            Machine::Datagram(d) => d.state,
        }
    }

    pub(super) fn counters(&self) -> QpCounters {
        match self {
            Machine::Connected(qp) => qp.counters(),
            Machine::Datagram(d) => d.counters,
        }
    }

    pub(super) fn next_timer(&self) -> Option<NicTime> {
        match self {
            Machine::Connected(qp) => qp.next_timer(),
            Machine::Datagram(_) => None,
        }
    }

    /// The queue pair of a connection.
    pub(super) fn connected(&mut self) -> Option<&mut QueuePair> {
        match self {
            Machine::Connected(qp) => Some(qp),
            Machine::Datagram(_) => None,
        }
    }

    /// Takes a packet. `false`: it was dropped, and nothing else has counted it.
    pub(super) fn receive(
        &mut self,
        now: NicTime,
        d: &Datagram<'_>,
        local: (SocketAddr, Gid),
        packet: &Packet<'_>,
        view: &mut View<'_>,
    ) -> bool {
        match self {
            Machine::Connected(qp) => {
                qp.receive(now, packet, view);
                if d.ecn == MARKED {
                    qp.marked(now);
                }
                true
            }
            Machine::Datagram(one) => one.receive(d, local, packet, view),
        }
    }

    /// Where the next packets go.
    pub(super) fn peer(&self, view: &View<'_>) -> Option<Peer> {
        match self {
            Machine::Connected(_) => view.end.peer,
            Machine::Datagram(_) => view.next_datagram().map(|(way, ..)| way.peer),
        }
    }

    /// Writes the next packet to this peer.
    pub(super) fn transmit(
        &mut self,
        now: NicTime,
        room: &mut [u8],
        (peer, features): (&Peer, Features),
        view: &mut View<'_>,
    ) -> Transmit {
        match self {
            Machine::Connected(qp) => qp.transmit(now, room, view),
            Machine::Datagram(d) => d.transmit(room, (peer, features), view),
        }
    }

    /// Whether there are datagrams for another peer.
    pub(super) fn has_others(&self, view: &View<'_>) -> bool {
        matches!(self, Machine::Datagram(d) if d.state == State::Rts)
            && view.next_datagram().is_some()
    }

    /// After each call: gives the queue pair what it can take now, and ends what an error has left.
    pub(super) fn settle(&mut self, view: &mut View<'_>) {
        match self.state() {
            State::Err => view.flush(),
            State::Sqe => view.flush_sends(),
            _ => {
                if let Machine::Connected(qp) = self {
                    view.end.hand(qp);
                }
            }
        }
    }
}
