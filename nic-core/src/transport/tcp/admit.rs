//! Frames in: to their connection, to a listener, or answered by the transport itself.

use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;
use smoltcp::socket::tcp::State;
use smoltcp::wire::IpListenEndpoint;

use super::conn::{Conn, Phase};
use super::demux::Key;
use super::device::{Ingress, Reply};
use super::neighbor::Resolved;
use super::{TcpCounters, TcpTransport};
use crate::port::{MacAddr, Port};
use crate::transport::{NicTime, TransportEvent};
use crate::wire::control::{echo_reply, Arp};
use crate::wire::frame::{classify, set_sequence, Dropped, Frame, TcpFrame};
use crate::wire::{emit_ethernet, ETHERNET_HEADER, ETHERTYPE_IPV4};

/// Frames taken per step: enough to acknowledge many at once, few enough to serve others soon.
const RX_BUDGET: usize = 128;
/// A handshake that is not over after this long is forgotten: 10 s.
const HANDSHAKE_NS: u64 = 10_000_000_000;

/// What is left to do with a frame once the port has its buffer back.
enum After {
    Nothing,
    /// A SYN that may open a connection.
    Opens(TcpFrame, Vec<u8>),
    /// Answer with this many bytes of the scratch buffer, a whole frame.
    Answer(MacAddr, usize),
}

impl TcpTransport {
    /// Takes the frames that have arrived. Returns whether there were any.
    pub(super) fn ingress(&mut self, now: NicTime) -> bool {
        let t = self.clock.instant(now);
        for taken in 0..RX_BUDGET {
            let Some(frame) = self.port.rx_frame(now) else {
                return taken > 0;
            };
            self.reply.len = 0;
            let mut answer_to = MacAddr::default();
            let mut hole = None;
            let after = match classify(frame, self.mac, self.config.ip) {
                Ok(Frame::Tcp(seg)) => {
                    answer_to = seg.src_mac;
                    let found = self
                        .table
                        .find(Key::new(seg.src, seg.src_port, seg.dst_port));
                    let conn = found.and_then(|i| Some((i, self.table.at(i)?)));
                    let listening = seg.opens && self.listeners.contains_key(&seg.dst_port);
                    let reopens =
                        |c: &Conn| listening && c.is_orphan() && c.state() == State::TimeWait;
                    match conn {
                        Some((_, c)) if c.broken => After::Nothing,
                        Some((index, c)) if !reopens(c) => {
                            c.heard = true;
                            c.note_ack(&seg);
                            let mut packet = &frame[ETHERNET_HEADER..seg.end];
                            let mended = if seg.pure_ack {
                                c.mend_ack(seg.seq)
                            } else {
                                None
                            };
                            if let Some((seq, room)) = mended
                                .and_then(|s| Some((s, self.scratch.get_mut(..packet.len())?)))
                            {
                                room.copy_from_slice(packet);
                                set_sequence(&mut room[seg.tcp_at - ETHERNET_HEADER..], seq);
                                packet = room;
                            }
                            let mut device = Ingress {
                                packet: Some(packet),
                                reply: &mut self.reply,
                                caps: &self.caps,
                            };
                            let (iface, sockets) = (&mut self.iface, &mut c.sockets);
                            let took =
                                guarded(|| iface.poll_ingress_single(t, &mut device, sockets));
                            if took.is_none() {
                                self.counters.defects += 1;
                                c.broken = true;
                            }
                            if c.leaves_a_hole(&seg) {
                                hole = Some(index);
                            }
                            self.ready.resume(index);
                            After::Nothing
                        }
                        _ if listening => After::Opens(seg, frame[ETHERNET_HEADER..].to_vec()),
                        _ => {
                            let mut device = Ingress {
                                packet: Some(&frame[ETHERNET_HEADER..]),
                                reply: &mut self.reply,
                                caps: &self.caps,
                            };
                            self.iface
                                .poll_ingress_single(t, &mut device, &mut self.nobody);
                            self.counters.refused += u64::from(self.reply.len > 0);
                            After::Nothing
                        }
                    }
                }
                Ok(Frame::Arp) => match Arp::parse(frame) {
                    Some(arp) => {
                        self.neighbors.heard(&arp, now, &mut self.resolved);
                        if arp.request && arp.target_ip == self.config.ip {
                            let answer = Arp {
                                request: false,
                                sender_mac: self.mac,
                                sender_ip: self.config.ip,
                                target_mac: arp.sender_mac,
                                target_ip: arp.sender_ip,
                            };
                            After::Answer(arp.sender_mac, answer.emit(&mut self.scratch))
                        } else {
                            After::Nothing
                        }
                    }
                    None => {
                        self.counters.dropped += 1;
                        After::Nothing
                    }
                },
                Ok(Frame::Icmp { src_mac }) => match echo_reply(frame, self.mac, &mut self.scratch)
                {
                    Some(len) => After::Answer(src_mac, len),
                    None => After::Nothing,
                },
                Err(Dropped::NotOurs) => {
                    self.counters.not_ours += 1;
                    After::Nothing
                }
                Err(_) => {
                    self.counters.dropped += 1;
                    After::Nothing
                }
            };
            match after {
                After::Nothing => {}
                After::Opens(seg, packet) => self.open(now, seg, &packet),
                After::Answer(dst, len) => {
                    send_frame(
                        &mut *self.port,
                        &mut self.counters,
                        now,
                        dst,
                        &self.scratch[..len],
                    );
                }
            }
            if self.reply.len > 0 {
                self.send_reply(now, answer_to);
            }
            if let Some(index) = hole {
                self.mend(index, now);
            }
        }
        true
    }

    /// Sends the answer that smoltcp composed.
    fn send_reply(&mut self, now: NicTime, dst: MacAddr) {
        let Reply { bytes, len } = &self.reply;
        let total = ETHERNET_HEADER + len;
        match self
            .port
            .tx_frame(now, dst)
            .and_then(|b| b.get_mut(..total))
        {
            Some(frame) => {
                emit_ethernet(frame, dst, self.mac, ETHERTYPE_IPV4);
                frame[ETHERNET_HEADER..].copy_from_slice(&bytes[..*len]);
                self.port.tx_commit(now, total);
            }
            None => self.counters.replies_lost += 1,
        }
    }

    /// A SYN for a listener: makes the connection and hands it the SYN.
    fn open(&mut self, now: NicTime, seg: TcpFrame, packet: &[u8]) {
        let key = Key::new(seg.src, seg.src_port, seg.dst_port);
        // A TIME-WAIT connection of the same name gives way (RFC 9293 §3.10.7.4).
        if let Some(old) = self.table.find(key) {
            self.free(old);
        }
        self.make_room();
        let hop = self.next_hop(seg.src);
        let Some(listener) = self.listeners.get_mut(&seg.dst_port) else {
            return;
        };
        let has_room = listener.waiting < listener.backlog && self.table.has_room();
        // The SYN's source answers for its address until ARP says otherwise.
        let neighbor = hop
            .filter(|_| has_room)
            .and_then(|ip| self.neighbors.acquire(ip, Some(seg.src_mac), now));
        let Some(neighbor) = neighbor else {
            // No answer, as Linux: the peer tries again while the backlog drains.
            self.counters.overflowed += 1;
            return;
        };
        let doubted = self.neighbors.doubt(neighbor, seg.src_mac, now);
        if let Some(target) = doubted {
            let frame = request(self.mac, self.config.ip, target);
            send_frame(
                &mut *self.port,
                &mut self.counters,
                now,
                MacAddr::BROADCAST,
                &frame,
            );
        }
        let local = SocketAddrV4::new(self.config.ip, seg.dst_port);
        let peer = SocketAddrV4::new(seg.src, seg.src_port);
        let phase = Phase::Incoming(listener.id);
        let config = &self.config;
        let index = self.table.insert(key, |id| {
            let mut c = Conn::new(id, local, peer, phase, neighbor, config);
            c.deadline = Some(NicTime(now.0.saturating_add(HANDSHAKE_NS)));
            c
        });
        let Some((index, c)) = index.and_then(|i| Some((i, self.table.at(i)?))) else {
            self.neighbors.release(neighbor, usize::MAX);
            return;
        };
        listener.waiting += 1;
        let here = IpListenEndpoint {
            addr: Some(smoltcp::wire::IpAddress::Ipv4(*local.ip())),
            port: local.port(),
        };
        // A fresh socket and a port that is not zero: listening cannot fail.
        let listens = c.socket().listen(here).is_ok();
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let t = self.clock.instant(now);
        let (iface, sockets) = (&mut self.iface, &mut c.sockets);
        if guarded(|| iface.poll_ingress_single(t, &mut device, sockets)).is_none() {
            self.counters.defects += 1;
            c.broken = true;
        }
        if listens && !c.broken && c.state() == State::SynReceived {
            self.mark(index);
        } else {
            // A bad checksum or bad options: as if it had not come.
            self.counters.dropped += 1;
            self.reset_orphan(index);
        }
    }

    /// Asks for hardware addresses that are due and goes on with connections that have theirs.
    pub(super) fn resolve(&mut self, now: NicTime) -> bool {
        let (port, counters) = (&mut *self.port, &mut self.counters);
        let (mac, ip) = (self.mac, self.config.ip);
        self.neighbors.step(now, &mut self.resolved, |target| {
            send_frame(
                port,
                counters,
                now,
                MacAddr::BROADCAST,
                &request(mac, ip, target),
            );
        });
        let moved = !self.resolved.is_empty();
        for (index, what) in std::mem::take(&mut self.resolved) {
            match what {
                Resolved::Known => self.mark(index),
                Resolved::Failed => self.fail_connect(index, Status::HostUnreachable),
            }
        }
        moved
    }

    /// Asks again for an address that nothing has confirmed for long.
    pub(super) fn probe_stale(&mut self, neighbor: usize, now: NicTime) {
        if let Some(target) = self.neighbors.stale(neighbor, now) {
            let frame = request(self.mac, self.config.ip, target);
            send_frame(
                &mut *self.port,
                &mut self.counters,
                now,
                MacAddr::BROADCAST,
                &frame,
            );
        }
    }

    /// An outgoing connection failed: its works retire, its id is free.
    pub(super) fn fail_connect(&mut self, index: usize, status: Status) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let conn = c.id;
        c.fail_sends(status, &mut self.events);
        c.fail_recvs(status, &mut self.events);
        self.events
            .push_back(TransportEvent::ConnectFailed { conn, status });
        self.reset_orphan(index);
    }

    /// Gives up a connection in TIME-WAIT when the table is full.
    pub(super) fn make_room(&mut self) {
        if self.table.has_room() {
            return;
        }
        let waiting = |c: &Conn| c.is_orphan() && c.state() == State::TimeWait;
        let victim = self.table.iter().find(|(_, c)| waiting(c)).map(|(i, _)| i);
        if let Some(index) = victim {
            self.free(index);
        }
    }
}

/// Runs smoltcp and keeps a panic of its assertions inside.
///
/// Fuzzing has found segments after which smoltcp's receive window is larger than its buffer, which
/// it asserts cannot be. One hostile peer must not end the NIC of all others: the connection ends.
pub(super) fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
    // The socket that was at work is never used again, except to be dropped; the interface holds no
    // state of a packet between two calls.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).ok()
}

fn request(mac: MacAddr, ip: std::net::Ipv4Addr, target: std::net::Ipv4Addr) -> [u8; 42] {
    let mut frame = [0; 42];
    let arp = Arp {
        request: true,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr::default(),
        target_ip: target,
    };
    arp.emit(&mut frame);
    frame
}

/// Sends a frame that the transport composed itself; it is lost when there is no room.
fn send_frame(
    port: &mut dyn Port,
    counters: &mut TcpCounters,
    now: NicTime,
    dst: MacAddr,
    frame: &[u8],
) {
    match port
        .tx_frame(now, dst)
        .and_then(|b| b.get_mut(..frame.len()))
    {
        Some(room) => {
            room.copy_from_slice(frame);
            port.tx_commit(now, frame.len());
        }
        None => counters.replies_lost += 1,
    }
}
