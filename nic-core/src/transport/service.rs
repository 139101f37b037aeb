//! The service of a carrier: a transport whose connections are all served alike.

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::{InlineSend, PdId, Status};

use super::carried::Carried;
use super::carrier::Carrier;
use super::connections::{index_of, Connection};
use super::life::Phase;
use super::sessions::BLOCKED;
use super::{Caps, Close, ConnState, PacketTransport, Transport, TransportEvent};
use super::{RecvWork, Then, Work};
use crate::datapath::{Datapath, ReceivePath};
use crate::engine::Direction;
use crate::network::{Network, Packet, Refused, Resolved};
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};
use ringbell_net::port::Places;

impl<T: Carrier> Transport for T {
    fn caps(&self) -> Caps {
        Caps {
            protocol: Some(T::PROTOCOL),
            exposes: T::EXPOSES,
            ..Caps::streams(T::NAME)
        }
    }

    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        self.sessions().listeners.listen(port, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.sessions().listeners.unlisten(listener);
        for index in self.sessions().table.half_open(listener) {
            self.reject(index);
        }
    }

    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        let addresses = self.sessions().addresses(remote)?;
        let conn = self.dial(addresses).ok_or(Status::NoResources)?;
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.life_mut().deadline = Some(deadline);
        }
        s.mark(index_of(conn));
        // No packet wakes the NIC for it.
        s.turns.no_later(now);
        Ok(conn)
    }

    fn post(&mut self, conn: ConnId, work: Work) {
        let s = self.sessions();
        match work {
            Work::Send(work) => s.post_send(conn, work, |_| {}),
            Work::Write(work, to) if T::EXPOSES.is_some() => {
                let token = work.token;
                s.post_send(conn, work, |c| c.write_to(token, to));
            }
            Work::Receive(work) => s.post_recv(conn, work),
            Work::Remote(work) if T::ONE_SIDED => s.post_remote(conn, work),
            Work::Write(..) | Work::Remote(_) => s.events.push_back(work.unsupported(conn)),
        }
    }

    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        let s = self.sessions();
        let c = s.table.by_id(conn);
        let was_sent = c.is_some_and(|c| c.send_now(payload));
        if was_sent {
            s.mark(index_of(conn));
        }
        was_sent
    }

    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        let s = self.sessions();
        // What has ended before is reported before.
        let is_it = |e: &TransportEvent| matches!(e, TransportEvent::RecvDone { conn: c, .. } if *c == conn);
        if s.events.iter().any(is_it) {
            return None;
        }
        let c = s.table.by_id(conn)?;
        let life = c.life();
        let is_next = life.recvs.is_empty() && !life.recvs.holds();
        if life.phase != Phase::Open || !is_next || data.on_path(conn, Direction::Receive) {
            return None;
        }
        let n = ReceivePath::receive_now(&mut c.receiving().0, buffer, some, data.dma)?;
        if c.must_announce() {
            s.mark(index_of(conn));
        }
        Some(n)
    }

    fn expose(&mut self, conn: ConnId, work: &RecvWork, in_use: bool) -> Option<u32> {
        let s = self.sessions();
        let c = s.table.by_id(conn)?;
        if c.life().phase != Phase::Open || work.buffer.len == 0 {
            return None;
        }
        let key = c.expose(work, in_use, &mut s.numbers)?;
        if c.addressed().is_some() {
            // The packets that come next may go straight there.
            s.streaming = Some(index_of(conn));
        }
        Some(key)
    }

    fn grant(&mut self, conn: ConnId, pd: PdId) {
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.grant(pd);
            // What the peer has asked for before is done now.
            s.mark(index_of(conn));
        }
    }

    fn is_quiet(&self) -> bool {
        self.parts().is_quiet() && !self.has_control() && !self.look()
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let s = self.sessions();
        s.table.by_id(conn)?.cancel(token, &mut s.events)
    }

    fn watch(&mut self, conn: ConnId) {
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.life_mut().watched = true;
            s.mark(index_of(conn));
        }
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        let s = self.sessions();
        let Some(c) = s.table.by_id(conn) else {
            return;
        };
        if how == Close::Now {
            c.fail_all((Status::Aborted, 0), &mut s.events);
            return self.reject(index_of(conn));
        }
        c.end_stream();
        if how == Close::Sending {
            return s.mark(index_of(conn));
        }
        c.stop_receiving(&mut s.events);
        match c.life().phase {
            Phase::Open if !c.is_over() => {
                c.life_mut().phase = Phase::Closing;
                s.mark(index_of(conn));
            }
            Phase::Closing => {}
            _ => {
                // Never established, reset, or over: there is nothing to wait for.
                c.fail_all((Status::NotConnected, 0), &mut s.events);
                s.events.push_back(TransportEvent::Closed { conn });
                self.reject(index_of(conn));
            }
        }
    }

    fn end(&mut self) {
        self.close_orphans();
    }

    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        self.sessions().table.release_hops(net, T::PROTOCOL);
        let mut moved = self.read_control(now, net);
        let s = self.sessions();
        s.expire(now);
        let ready = s.turns.begin();
        if !s.send_again(now, net) {
            s.turns.no_later(now.plus(BLOCKED));
        }
        for _ in 0..ready {
            let Some(index) = self.sessions().turns.next_ready() else {
                break;
            };
            if let Some(c) = self.sessions().table.at(index) {
                c.life_mut().queued = false;
                moved |= self.serve(index, now, net, data);
            }
        }
        self.send_answers(now, net);
        net.flush(now);
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        let s = self.sessions();
        s.listeners.poll(&mut s.events)
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.parts().turns.next_timer()
    }

    fn conn_state(&self, conn: ConnId) -> Option<ConnState> {
        let c = self.parts().table.get_by_id(conn)?;
        let life = c.life();
        Some(ConnState {
            undelivered: c.undelivered(),
            reset: life.end(c.reset_detail()),
            ..ConnState::between(life.local, life.peer)
        })
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        Some(self)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds()
    }
}

impl<T: Carrier> PacketTransport for T {
    fn expects_places(&self) -> bool {
        self.parts().streaming.is_some()
    }

    fn expect(&mut self, places: &mut Places, data: &mut Datapath<'_>) {
        let s = self.sessions();
        if let Some(c) = s.streaming.and_then(|index| s.table.at(index)) {
            c.expect(places, data);
        }
    }

    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> Then {
        self.take(now, packet, data);
        // What follows is sent by the next step.
        match std::mem::take(&mut self.sessions().turns.wants_step) {
            true => Then::Step,
            false => Then::Next,
        }
    }

    fn resolved(&mut self, index: usize, outcome: Resolved) {
        match outcome {
            Resolved::Known => self.sessions().mark(index),
            Resolved::Failed => self.fail_connect(index, Status::HostUnreachable, None),
        }
    }

    fn refused(&mut self, _: NicTime, by: Refused, net: &Network) {
        let s = self.sessions();
        let (mut broken, mut unheard, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for (index, c) in s.table.iter() {
            let link = c.life().hop.and_then(|hop| net.link(hop));
            let is_it = match by {
                Refused::Link(by) | Refused::NoWay(by) => link == Some(by),
                Refused::Peer { port, peer } => {
                    link.is_some_and(|l| l.port == port) && T::address(c, net) == peer
                }
            };
            let phase = c.life().phase;
            if matches!(by, Refused::NoWay(_)) {
                if is_it {
                    lost.push(index);
                }
                continue;
            }
            if is_it && phase == Phase::Requesting {
                unheard.push(index);
            }
            if is_it && phase.is_up() {
                c.life_mut().refused += 1;
                broken.push(index);
            }
        }
        for index in broken {
            s.mark(index);
        }
        for index in unheard {
            self.fail_connect(index, Status::ConnectionRefused, None);
        }
        for index in lost {
            self.lose(index);
        }
    }
}
