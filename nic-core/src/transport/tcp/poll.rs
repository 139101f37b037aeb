//! The poll of one connection: events from TCP's state, bytes in both directions, segments out.

use std::time::Duration;

use ringbell_nic_abi::Status;
use smoltcp::iface::PollResult;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{IpAddress, IpEndpoint};

use super::device::Egress;
use super::smoltcp_gaps::guarded;
use super::smoltcp_gaps::keep_alive::mind_keep_alive;
use super::smoltcp_gaps::lost_timer;
use super::smoltcp_gaps::socket::is_synchronized;
use super::smoltcp_gaps::stack::PortInterface;
use super::{waiter, TcpTransport};
use crate::datapath::Datapath;
use crate::network::{Network, Protocol};
use crate::transport::life::Phase;
use crate::transport::TransportEvent;
use crate::types::NicTime;

/// Segments that one service may send while few connections wait.
const TX_BUDGET: usize = 128;
/// Bytes that one service may move into a socket while few connections wait: unlimited.
const UNBOUNDED: usize = usize::MAX;
/// From this many waiting connections on, each moves little at a time: its bytes under way are then
/// still in the cache when the peer acknowledges them, and its buffer's front is used again.
const CROWD: usize = 8;
/// Bytes that one service may then move: 16 KiB.
const CROWDED: usize = 16 << 10;
/// How long a connection waits for room in the port before it tries again.
const BLOCKED: Duration = Duration::from_micros(10);
/// A step ends after so many connections found no room in the port; several, because the way to one
/// peer may be full while others are free.
const BLOCKED_MAX: u32 = 4;
/// How long TCP may wait for the peer's FIN after a close (Linux: tcp_fin_timeout).
const FIN_WAIT: Duration = Duration::from_secs(60);
/// How long a reset may wait for room in the port.
const LINGER: Duration = Duration::from_secs(1);
/// Within this an acknowledgement goes out, and TIME-WAIT does not end.
const ACK_SOON: Duration = Duration::from_millis(100);
/// Time to the next poll when smoltcp asks for one "now" but sends nothing.
const RETRY: Duration = Duration::from_millis(1);

/// How the sending of segments ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// TCP has nothing more to send now.
    All,
    /// The budget was used up.
    More,
    /// The port has no room.
    Blocked,
}

/// What one service sent.
#[derive(Debug, Clone, Copy)]
struct Sending {
    sent: Sent,
    frames: u64,
    /// Segments among them were sent before, and the peer has not asked for them.
    again: bool,
}

impl TcpTransport {
    /// Serves each connection that has something to do once. Returns whether anything moved.
    pub(super) fn serve_ready(
        &mut self,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let mut moved = false;
        (self.turns.again, self.turns.blocked, self.turns.full_way) = (None, 0, None);
        for _ in 0..self.turns.ready.len() {
            let Some(index) = self.turns.ready.pop() else {
                break;
            };
            let blocked = self.turns.blocked;
            moved |= self.serve(index, now, net, data);
            // The port is full: the remaining connections keep their place, and the peer gets a
            // turn first.
            if self.turns.blocked > blocked && self.turns.blocked >= BLOCKED_MAX {
                break;
            }
        }
        // In the order in which they found no room, and hot only while their turn lasts: other
        // connections need the port, too.
        while let Some(index) = self.turns.stopped.pop() {
            self.turns.ready.resume(index);
        }
        if self.turns.ready.len() > 0 {
            self.call_again(if moved { now } else { now.plus(BLOCKED) });
        }
        moved
    }

    fn call_again(&mut self, at: NicTime) {
        self.turns.again = Some(self.turns.again.map_or(at, |a| a.min(at)));
    }

    fn serve(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        if std::mem::take(&mut c.life.has_received) {
            if let Some(hop) = c.life.hop {
                net.confirm(hop, now);
            }
            c.timing.answered();
            c.tcp.probes.answered();
        }
        if c.tcp.probes.gone_at().is_some_and(|at| at <= now) {
            c.tcp.probes.answered();
            c.tcp.broken |= is_synchronized(c.tcp.state());
        }
        if c.timing.gone_at(&self.config).is_some_and(|at| at <= now) {
            c.timing.answered();
            c.tcp.socket().abort();
        }
        if c.tcp.broken {
            self.end_broken(index);
            return true;
        }
        if c.tcp.recovery.restart_at.is_some_and(|at| at <= now) {
            c.tcp.recovery.restart_at = None;
            self.counters.restarted += 1;
            lost_timer::restart(&mut self.stack, &mut c.tcp, now);
        }
        let crowded = self.turns.ready.len() >= CROWD;
        let share = if crowded { CROWDED } else { UNBOUNDED };
        let mut moved = self.establish(index, now, net);
        let Some(c) = self.table.at(index) else {
            return moved;
        };
        c.life.pending = false;
        match c.life.phase {
            Phase::Resolving => return moved,
            Phase::Open => {
                moved |= c.note_peers_end(&mut self.events);
                moved |= c.pump_recvs(data, &mut self.events);
                // Bytes that cannot leave would only evict other connections from the cache.
                if self.turns.full_way.is_none() || self.turns.full_way != c.life.hop {
                    moved |= c.pump_sends(share, data, &mut self.events);
                }
            }
            Phase::Closing => {
                c.tcp.discard();
                moved |= c.pump_sends(share, data, &mut self.events);
            }
            Phase::Dead => moved |= c.pump_recvs(data, &mut self.events),
            Phase::Orphan | Phase::Ending => {
                // The program no longer reads, so the peer gets a reset (RFC 1122 §4.2.2.13).
                if c.tcp.discard() {
                    c.tcp.socket().abort();
                }
            }
            Phase::Requesting | Phase::Incoming(_) => {}
        }
        if c.fin_wanted && !c.fin_given && c.life.sends.is_empty() && is_synchronized(c.tcp.state())
        {
            let (any, all) = c.finish_sends(data, &mut self.events);
            moved |= any;
            if all {
                c.tcp.socket().close();
                c.fin_given = true;
            }
        }
        if c.life.phase == Phase::Open {
            mind_keep_alive(&mut c.tcp, &self.config, now);
        }
        let (hop, port) = (c.life.hop, c.tcp.port);
        let budget = match crowded {
            // Headers without options, and one more for an acknowledgement.
            true => {
                let mtu = self.stack.of(port).caps.max_transmission_unit;
                CROWDED.div_ceil(mtu - 40) + 1
            }
            false => TX_BUDGET,
        };
        let Sending {
            sent,
            frames,
            again,
        } = self.send_segments(index, now, net, budget);
        if frames > 0 {
            moved = true;
            if let Some(hop) = hop {
                net.sent_to(hop, again, now);
            }
            self.expect_answer(index, now);
        }
        if self.table.at(index).is_some_and(|c| c.tcp.broken) {
            self.end_broken(index);
            return true;
        }
        moved |= self.report(index, now);
        self.schedule(index, now, sent);
        moved
    }

    /// Ends a connection whose socket cannot be used any more, without touching the socket.
    pub(super) fn end_broken(&mut self, index: usize) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let conn = c.life.id;
        match c.life.phase {
            Phase::Resolving | Phase::Requesting => {
                return self.fail_connect(index, Status::ConnectionReset);
            }
            Phase::Incoming(_) | Phase::Orphan | Phase::Ending => {}
            Phase::Open => {
                c.fail_all(c.life.end(0), &mut self.events);
                self.events.push_back(TransportEvent::Reset { conn });
                // The id stays until it is closed, without its socket.
                c.tcp.replace();
                c.life.phase = Phase::Dead;
                self.table.detach(index);
                return;
            }
            Phase::Dead | Phase::Closing => {
                let end = c.life.end(0);
                c.life.sends.fail_all(end, &mut self.events);
                self.events.push_back(TransportEvent::Reset { conn });
                self.events.push_back(TransportEvent::Closed { conn });
            }
        }
        self.reset_orphan(index);
    }

    fn expect_answer(&mut self, index: usize, now: NicTime) {
        if let Some(c) = self.table.at(index) {
            if c.expects_answer(&self.config) {
                c.timing.asked(now);
            }
        }
    }

    /// Continues a handshake, or abandons it.
    pub(super) fn establish(&mut self, index: usize, now: NicTime, net: &mut Network) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let late = c.life.deadline.is_some_and(|d| d <= now);
        match c.life.phase {
            Phase::Resolving => {
                let hop = match c.life.hop {
                    Some(hop) => hop,
                    None => match self.start_resolving(index, now, net) {
                        Ok(hop) => hop,
                        Err(status) => {
                            self.fail_connect(index, status);
                            return true;
                        }
                    },
                };
                if net.link(hop).is_none() {
                    if late {
                        self.fail_connect(index, Status::HostUnreachable);
                    }
                    return late;
                }
                let Some(c) = self.table.at(index) else {
                    return false;
                };
                let remote =
                    IpEndpoint::new(IpAddress::Ipv4(*c.life.peer.ip()), c.life.peer.port());
                let local = (IpAddress::Ipv4(*c.life.local.ip()), c.life.local.port());
                let isn = self.keys.initial(c.life.local, c.life.peer, now);
                c.tcp.first = isn.wrapping_add(1);
                let mut fresh = self.stack.interface_with(c.tcp.port, isn, now);
                let Some(c) = self.table.at(index) else {
                    return false;
                };
                if c.tcp
                    .socket()
                    .connect(fresh.context(), remote, local)
                    .is_err()
                {
                    self.fail_connect(index, Status::HostUnreachable);
                    return true;
                }
                c.life.phase = Phase::Requesting;
                true
            }
            Phase::Requesting => {
                let state = c.tcp.state();
                if is_synchronized(state) {
                    c.life.phase = Phase::Open;
                    c.life.deadline = None;
                    let conn = c.life.id;
                    self.events.push_back(TransportEvent::Connected { conn });
                } else if state == State::Closed {
                    self.fail_connect(index, Status::ConnectionRefused);
                } else if late {
                    self.fail_connect(index, Status::TimedOut);
                } else {
                    return false;
                }
                true
            }
            Phase::Incoming(id) => {
                let state = c.tcp.state();
                let listens = self.listeners.has(id);
                if listens && is_synchronized(state) {
                    c.life.phase = Phase::Open;
                    c.life.deadline = None;
                    self.events.push_back(TransportEvent::Incoming {
                        listener: id,
                        conn: c.life.id,
                        peer: c.life.peer,
                    });
                    self.listeners.handshake_over(id, true);
                } else if listens && state == State::SynReceived && !late {
                    return false;
                } else {
                    self.reset_orphan(index);
                }
                true
            }
            Phase::Orphan if late => {
                if c.tcp.state() == State::Closed {
                    // Even the reset found no room.
                    self.table.remove(index);
                } else {
                    c.tcp.socket().abort();
                    c.life.deadline = Some(now.plus(LINGER));
                }
                true
            }
            _ => false,
        }
    }

    /// Chooses the way to the peer of an outgoing connection.
    fn start_resolving(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
    ) -> Result<usize, Status> {
        self.table.release_hops(net, Protocol::Tcp);
        let c = self.table.at(index).ok_or(Status::NotConnected)?;
        let hop = net.hop_to(Protocol::Tcp, *c.life.peer.ip(), None, now)?;
        c.life.hop = Some(hop);
        c.tcp.port = net.port_of(hop);
        if net.link(hop).is_none() {
            net.wait(hop, waiter(index), now);
            if let Some(deadline) = c.life.deadline {
                self.timers.set(index, deadline);
            }
        }
        Ok(hop)
    }

    /// Lets smoltcp send what the windows allow.
    fn send_segments(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        budget: usize,
    ) -> Sending {
        let nothing = |sent| Sending {
            sent,
            frames: 0,
            again: false,
        };
        let Some(c) = self.table.at(index) else {
            return nothing(Sent::All);
        };
        let Some(to) = c.life.hop.and_then(|hop| net.link(hop)) else {
            return nothing(Sent::All);
        };
        if self.turns.full_way == c.life.hop {
            return nothing(Sent::Blocked);
        }
        let t = self.stack.instant(now);
        let PortInterface { caps, iface } = self.stack.of(c.tcp.port);
        let mut device = Egress {
            net,
            now,
            to,
            caps,
            blocked: false,
            written: 0,
            acknowledged: None,
            sent_bytes: 0,
            sent_end: c.tcp.recovery.end(),
            repeated: 0,
        };
        let (mut sent, mut frames, mut defects) = (Sent::More, 0, 0);
        for _ in 0..budget {
            // smoltcp drops a fast retransmission that finds no room, and the timer with it: it is
            // not asked before there is some.
            if !device.has_room() {
                let due = guarded(|| iface.poll_at(t, &c.tcp.sockets)).flatten();
                sent = match due {
                    Some(at) if at <= t => Sent::Blocked,
                    _ => Sent::All,
                };
                break;
            }
            let polled = guarded(|| iface.poll_egress(t, &mut device, &mut c.tcp.sockets));
            let Some(polled) = polled else {
                defects = 1;
                c.tcp.broken = true;
                break;
            };
            frames += u64::from(device.commit());
            if polled == PollResult::None {
                sent = if device.blocked {
                    Sent::Blocked
                } else {
                    Sent::All
                };
                break;
            }
        }
        if c.tcp.peer_base.is_none() {
            c.tcp.peer_base = device.acknowledged;
        }
        self.turns.ready.sent(index, device.sent_bytes);
        if let Some(end) = device.sent_end {
            c.tcp.recovery.sent(end, device.repeated);
        }
        // In a recovery the peer has said what it lacks.
        let again = device.repeated > 0 && !c.tcp.recovery.is_under_way();
        self.stack.defects += defects;
        Sending {
            sent,
            frames,
            again,
        }
    }

    /// Reports changes of TCP's state to the layer above.
    fn report(&mut self, index: usize, now: NicTime) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let state = c.tcp.state();
        let ended_in_order = c.ended_in_order();
        let closed = state == State::Closed;
        // In TIME-WAIT the peer's FIN may still lack its acknowledgement; after `Closed` the
        // program may drop the NIC.
        let acknowledged = state != State::TimeWait || {
            let poll_at = self.stack.poll_at(&c.tcp, now);
            poll_at.is_some_and(|at| at > now.plus(ACK_SOON))
        };
        let events = &mut self.events;
        let before = events.len();
        match c.life.phase {
            Phase::Open if closed && !ended_in_order => {
                c.life.phase = Phase::Dead;
                c.fail_all((Status::ConnectionReset, 0), events);
                events.push_back(TransportEvent::Reset { conn: c.life.id });
            }
            // The way in which it closed stays known for later looks.
            Phase::Open if closed => {}
            Phase::Open => c.last_state = state,
            Phase::Dead => {
                let end = c.life.end(0);
                c.life.recvs.fail_all(end, events);
            }
            Phase::Closing => {
                if closed && !ended_in_order {
                    c.life.sends.fail_all((Status::ConnectionReset, 0), events);
                    events.push_back(TransportEvent::Reset { conn: c.life.id });
                }
                let done = closed || matches!(state, State::FinWait2 | State::TimeWait);
                if done && acknowledged {
                    events.push_back(TransportEvent::Closed { conn: c.life.id });
                    c.life.phase = Phase::Orphan;
                    c.life.deadline = Some(now.plus(FIN_WAIT));
                }
                c.last_state = state;
            }
            _ => {}
        }
        let moved = events.len() != before;
        if c.life.phase == Phase::Orphan && closed && c.tcp.socket().remote_endpoint().is_none() {
            self.table.remove(index);
            return true;
        }
        if closed && matches!(c.life.phase, Phase::Open | Phase::Dead) {
            // The program may keep the id for long; the peer may connect again from the same port.
            self.table.detach(index);
        }
        moved
    }

    /// Decides when this connection is looked at again.
    fn schedule(&mut self, index: usize, now: NicTime, sent: Sent) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let reads_pending = c.life.sends.pending() > 0;
        let poll_at = self.stack.poll_at(&c.tcp, now);
        let wants_now = poll_at.is_some_and(|at| at <= now);
        let again = match sent {
            Sent::Blocked => {
                self.turns.blocked += 1;
                self.turns.full_way = c.life.hop;
                Some(now.plus(BLOCKED))
            }
            Sent::More if wants_now => Some(now),
            _ if reads_pending || c.life.pending => Some(now),
            _ => None,
        };
        c.tcp.recovery.restart_at = match lost_timer::is_forgotten(&c.tcp, poll_at.is_some()) {
            true => c
                .tcp
                .recovery
                .restart_at
                .or(Some(now.plus(self.config.rto_min))),
            false => None,
        };
        c.timing.timer = match poll_at {
            Some(_) if wants_now => Some(now.plus(RETRY)),
            at => at,
        };
        c.tcp.rest(now);
        if let Some(at) = c.wake_at(&self.config) {
            self.timers.set(index, at);
        }
        if let Some(at) = again {
            match sent {
                Sent::Blocked => self.turns.stopped.push(index),
                _ => self.turns.ready.queue(index),
            }
            self.call_again(at);
        }
    }
}
