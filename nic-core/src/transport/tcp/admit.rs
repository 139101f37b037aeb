//! Frames in: to their connection, to a listener, or answered by the transport itself.

use ringbell_nic_abi::Status;
use smoltcp::socket::tcp::State;

use super::conn::Conn;
use super::demux::Key;
use super::device::{Ingress, Reply};
use super::neighbor::Resolved;
use super::smoltcp_gaps::acceptance::Verdict;
use super::smoltcp_gaps::guarded;
use super::smoltcp_gaps::partial_ack::is_before;
use super::{TcpCounters, TcpTransport};
use crate::port::{MacAddr, Port};
use crate::transport::TransportEvent;
use crate::types::NicTime;
use crate::wire::control::{echo_reply, Arp};
use crate::wire::frame::{classify, set_acknowledgement, set_sequence, Dropped, Frame, TcpFrame};
use crate::wire::{emit_ethernet, ETHERNET_HEADER, ETHERTYPE_IPV4};

/// Frames taken per step: enough to acknowledge many at once, few enough to serve others soon.
const RX_BUDGET: usize = 128;

/// What is left to do with a frame once the port has its buffer back.
enum After {
    Nothing,
    /// A SYN that may open a connection.
    Opens(TcpFrame, Vec<u8>),
    /// A segment that may complete a handshake by a cookie.
    Completes(TcpFrame, Vec<u8>),
    /// Answer this connection's peer with a challenge ACK.
    Challenge(usize),
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
            let (mut hole, mut known) = (None, None);
            let after = match classify(frame, self.mac, self.config.ip) {
                Ok(Frame::Tcp(seg)) => {
                    answer_to = seg.src_mac;
                    let found = self
                        .table
                        .find(Key::new(seg.src, seg.src_port, seg.dst_port));
                    let conn = found.and_then(|i| Some((i, self.table.at(i)?)));
                    let listening = seg.opens && self.listeners.contains_key(&seg.dst_port);
                    // A SYN of the old connection may still be under way (RFC 1122 §4.2.2.13).
                    let is_new =
                        |c: &Conn| c.next_expected().is_some_and(|n| !is_before(seg.seq, n));
                    let reopens = |c: &Conn| {
                        listening && c.is_orphan() && c.state() == State::TimeWait && is_new(c)
                    };
                    match conn {
                        Some((_, c)) if c.broken => After::Nothing,
                        Some((index, c)) if !reopens(c) => {
                            known = Some(c.neighbor);
                            let verdict = c.judge(&seg);
                            match verdict {
                                Verdict::Challenge => After::Challenge(index),
                                Verdict::Drop => After::Nothing,
                                Verdict::Take | Verdict::TakeWithoutAck => {
                                    c.heard = true;
                                    let resets = seg.rst && c.state() != State::Closed;
                                    let packet = &frame[ETHERNET_HEADER..seg.end];
                                    let packet =
                                        mended(c, verdict, &seg, packet, &mut self.scratch);
                                    let mut device = Ingress {
                                        packet: Some(packet),
                                        reply: &mut self.reply,
                                        caps: &self.caps,
                                    };
                                    let (iface, sockets) = (&mut self.iface, &mut c.sockets);
                                    let took = guarded(|| {
                                        iface.poll_ingress_single(t, &mut device, sockets)
                                    });
                                    if took.is_none() {
                                        self.counters.defects += 1;
                                        c.broken = true;
                                    }
                                    c.reset |= resets && c.state() == State::Closed;
                                    if c.leaves_a_hole(&seg) {
                                        hole = Some(index);
                                    }
                                    self.ready.resume(index);
                                    After::Nothing
                                }
                            }
                        }
                        _ if listening => After::Opens(seg, frame[ETHERNET_HEADER..].to_vec()),
                        _ if seg.ack.is_some() && !seg.syn && !seg.rst && {
                            let listener = self.listeners.get(&seg.dst_port);
                            listener.is_some_and(|l| l.expects_cookies(now))
                        } =>
                        {
                            After::Completes(seg, frame[ETHERNET_HEADER..seg.end].to_vec())
                        }
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
                After::Completes(seg, packet) => self.complete(now, seg, &packet),
                After::Challenge(index) => self.challenge(index, now),
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
                // Numbers of a connection go to its peer, not to the sender of the frame.
                let peer = known.and_then(|n| self.neighbors.mac(n));
                self.send_reply(now, peer.unwrap_or(answer_to));
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

/// The packet as the socket is to see it: as it came, or a copy with another number.
fn mended<'a>(
    c: &mut Conn,
    verdict: Verdict,
    seg: &TcpFrame,
    packet: &'a [u8],
    scratch: &'a mut [u8],
) -> &'a [u8] {
    let without_ack = verdict == Verdict::TakeWithoutAck;
    if seg.ack.is_some() && !without_ack {
        c.heard_window = seg.window;
    }
    let sequence = match seg.pure_ack && !without_ack {
        true => c.mend_ack(seg.seq),
        false => None,
    };
    if sequence.is_none() && !without_ack {
        return packet;
    }
    let Some(room) = scratch.get_mut(..packet.len()) else {
        return packet;
    };
    room.copy_from_slice(packet);
    let tcp = &mut room[seg.tcp_at - ETHERNET_HEADER..];
    match sequence {
        Some(seq) => set_sequence(tcp, seq),
        None => set_acknowledgement(tcp, c.unacknowledged(), c.heard_window),
    }
    room
}

pub(super) fn request(
    mac: MacAddr,
    ip: std::net::Ipv4Addr,
    target: std::net::Ipv4Addr,
) -> [u8; 42] {
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
pub(super) fn send_frame(
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
