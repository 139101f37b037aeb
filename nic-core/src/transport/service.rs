//! The service of a carrier: a transport whose connections are all served alike.

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::{InlineSend, PdId, Status};

use super::carried::Carried;
use super::carrier::Carrier;
use super::connections::{index_of, Connection};
use super::life::Phase;
use super::sessions::BLOCKED;
use super::{PacketTransport, RecvWork, RemoteWork, SendWork, Target, Transport, TransportEvent};
use crate::datapath::{Datapath, ReceivePath};
use crate::engine::Direction;
use crate::network::{Network, Packet, Protocol, Refused, Resolved};
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};
use ringbell_net::port::Places;

impl<T: Carrier> Transport for T {
    fn name(&self) -> &'static str {
        T::NAME
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

    fn post_send(&mut self, conn: ConnId, work: SendWork) {
        self.sessions().post_send(conn, work, |_| {});
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

    fn post_write(&mut self, conn: ConnId, work: SendWork, to: Target) {
        let token = work.token;
        self.sessions()
            .post_send(conn, work, |c| c.write_to(token, to));
    }

    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let s = self.sessions();
        let refused = match s.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.refuses_receives() {
                Some(why) => why,
                None => {
                    c.life_mut().recvs.post(work);
                    return s.mark(index_of(conn));
                }
            },
        };
        s.events
            .push_back(TransportEvent::recv_refused(conn, work.token, refused));
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

    fn exposes(&self) -> Option<u64> {
        T::EXPOSES
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

    fn expects_places(&self) -> bool {
        self.parts().streaming.is_some()
    }

    fn post_remote(&mut self, conn: ConnId, work: RemoteWork) -> Result<(), Status> {
        if !T::ONE_SIDED {
            return Err(Status::Unsupported);
        }
        let s = self.sessions();
        let (status, detail) = match s.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.refuses_sends() {
                Some(why) => why,
                None => {
                    c.post_remote(work);
                    s.mark(index_of(conn));
                    return Ok(());
                }
            },
        };
        s.events.push_back(TransportEvent::RemoteDone {
            conn,
            token: work.token,
            status,
            bytes: 0,
            detail,
        });
        Ok(())
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

    fn undelivered(&self, conn: ConnId) -> u64 {
        let c = self.parts().table.get_by_id(conn);
        c.map_or(0, |c| c.undelivered())
    }

    fn watch(&mut self, conn: ConnId) {
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.life_mut().watched = true;
            s.mark(index_of(conn));
        }
    }

    fn shutdown(&mut self, conn: ConnId) {
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.end_stream();
            s.mark(index_of(conn));
        }
    }

    fn close(&mut self, conn: ConnId) {
        let s = self.sessions();
        let Some(c) = s.table.by_id(conn) else {
            return;
        };
        c.end_stream();
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

    fn abort(&mut self, conn: ConnId) {
        let s = self.sessions();
        if let Some(c) = s.table.by_id(conn) {
            c.fail_all((Status::Aborted, 0), &mut s.events);
            self.reject(index_of(conn));
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

    fn reset_status(&self, conn: ConnId) -> (Status, u64) {
        let c = self.parts().table.get_by_id(conn);
        let reset = (Status::ConnectionReset, 0);
        c.map_or(reset, |c| c.life().end(c.reset_detail()))
    }

    fn endpoints(&self, conn: ConnId) -> Option<(SocketAddrV4, SocketAddrV4)> {
        let life = self.parts().table.get_by_id(conn)?.life();
        Some((life.local, life.peer))
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        Some(self)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds()
    }
}

impl<T: Carrier> PacketTransport for T {
    fn protocol(&self) -> Protocol {
        T::PROTOCOL
    }

    fn expect(&mut self, places: &mut Places, data: &mut Datapath<'_>) {
        let s = self.sessions();
        if let Some(c) = s.streaming.and_then(|index| s.table.at(index)) {
            c.expect(places, data);
        }
    }

    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> bool {
        self.take(now, packet, data);
        // The next step sends what follows.
        false
    }

    fn wants_step(&mut self) -> bool {
        std::mem::take(&mut self.sessions().turns.wants_step)
    }

    fn answer(&mut self, _: NicTime, _: &mut Network) {}

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
