//! All queue pairs of a context, and their packets: without a clock, and without threads.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ringbell_gtlb::{GtlbConfig, Mmu, MmuConfig};
use ringbell_nic_abi::roce::ROCE_PKEY_DEFAULT;
use rustc_hash::FxHashMap;

use super::completions::Cq;
use super::endpoint::{Endpoint, Incoming, Peer, ReceiveQueue, View};
use super::gid::{Features, Gid};
use super::outbox::Outbox;
use super::service::Machine;
use super::types::{Service, VerbsError};
use crate::qp::Transmit;
use ringbell_net::port::{Arrived, Datagram, Port};
use ringbell_net::random::Numbers;
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::roce::packet::open;
use ringbell_net::wire::roce::{Packet, Qpn, BTH_BYTES};
use ringbell_net::wire::udp::{headers_to, UNFRAGMENTED};
use ringbell_net::NicTime;

/// Bits of a partition key that name the partition (IBTA vol. 1 §10.9.1.1).
const PARTITION: u16 = 0x7fff;
/// Packets in flight to a peer, at least and at most.
pub(super) const PACKETS: (u32, u32) = (8, 256);
/// Datagrams of one step: then it is the turn of what is to be sent.
const STEP_DATAGRAMS: usize = 128;

/// A queue pair and its program's side.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: Machine,
    pub(super) end: Endpoint,
    is_ready: bool,
}

/// Everything but the port.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) memory: Mmu,
    pub(super) pairs: Vec<Option<Pair>>,
    pub(super) cqs: Vec<Option<Cq>>,
    pub(super) receives: Vec<Option<ReceiveQueue>>,
    by_number: FxHashMap<u32, usize>,
    /// Queue pairs that may have something to send.
    ready: VecDeque<usize>,
    /// No timer comes before.
    timer: Option<NicTime>,
    numbers: Numbers,
    gid: Gid,
    /// Packets that were malformed, or for no queue pair of ours.
    pub(super) ignored: u64,
}

/// A context's machinery.
pub(super) struct Engine {
    port: Box<dyn Port>,
    local: SocketAddr,
    pub(super) tables: Tables,
    outbox: Outbox,
    features: Features,
}

/// Takes the first free place of a table.
pub(super) fn place<T>(table: &mut Vec<Option<T>>, value: T) -> usize {
    match table.iter().position(Option::is_none) {
        Some(at) => {
            table[at] = Some(value);
            at
        }
        None => {
            table.push(Some(value));
            table.len() - 1
        }
    }
}

impl Tables {
    fn new(seed: u64, gid: Gid) -> Result<Tables, ringbell_gtlb::ConfigError> {
        // Host memory lies on the bus as it is, so no entry is used.
        let smallest = GtlbConfig {
            main_entries: 1,
            complementary_entries: 32,
        };
        let memory = Mmu::new(MmuConfig {
            instances: vec![smallest],
            refill: true,
        })?;
        Ok(Tables {
            memory,
            pairs: Vec::new(),
            cqs: Vec::new(),
            receives: Vec::new(),
            by_number: FxHashMap::default(),
            ready: VecDeque::new(),
            timer: None,
            numbers: Numbers::new(seed),
            gid,
            ignored: 0,
        })
    }

    /// A number that no queue pair has. 0 and 1 are the standard's own (IBTA vol. 1 §3.5.3.5).
    pub(super) fn draw(&mut self) -> Qpn {
        loop {
            let number = Qpn::new(self.numbers.draw() as u32);
            if number.value() > 1 && !self.by_number.contains_key(&number.value()) {
                return number;
            }
        }
    }

    pub(super) fn add(&mut self, end: Endpoint, service: Service) -> usize {
        let number = end.at.number.value();
        let at = place(
            &mut self.pairs,
            Pair {
                qp: Machine::new(service),
                end,
                is_ready: false,
            },
        );
        self.by_number.insert(number, at);
        at
    }

    pub(super) fn remove(&mut self, at: usize) {
        let Some(pair) = self.pairs.get_mut(at).and_then(Option::take) else {
            return;
        };
        self.by_number.remove(&pair.end.at.number.value());
        self.ready.retain(|i| *i != at);
        for cq in [pair.end.at.send_cq, pair.end.at.receive_cq] {
            if let Some(cq) = &mut self.cqs[cq] {
                cq.forget(pair.end.at.number.value());
            }
        }
        let q = &mut self.receives[pair.end.at.receives];
        if q.as_ref().is_some_and(|q| !q.is_shared) {
            *q = None;
        }
    }

    pub(super) fn pair(&mut self, at: usize) -> Result<&mut Pair, VerbsError> {
        let pair = self.pairs.get_mut(at).and_then(Option::as_mut);
        pair.ok_or(VerbsError::Misuse("the queue pair was destroyed"))
    }

    pub(super) fn cq(&mut self, at: usize) -> Option<&mut Cq> {
        self.cqs.get_mut(at)?.as_mut()
    }

    /// Calls a queue pair with its view, and does what follows from it.
    pub(super) fn with<R>(
        &mut self,
        at: usize,
        call: impl FnOnce(&mut Machine, &mut View<'_>) -> R,
    ) -> Option<R> {
        let pair = self.pairs.get_mut(at)?.as_mut()?;
        let mut view = View {
            end: &mut pair.end,
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            receives: &mut self.receives,
            packet: Incoming::default(),
        };
        let result = call(&mut pair.qp, &mut view);
        pair.qp.settle(&mut view);
        if !std::mem::replace(&mut pair.is_ready, true) {
            self.ready.push_back(at);
        }
        if let Some(t) = pair.qp.next_timer() {
            self.timer = Some(self.timer.map_or(t, |now| now.min(t)));
        }
        Some(result)
    }

    /// Takes a datagram. Anything but a packet of a peer for its queue pair is dropped and counted.
    fn arrived(&mut self, now: NicTime, local: SocketAddr, d: &Datagram<'_>) {
        if self.accept(now, local, d).is_none() {
            self.ignored += 1;
        }
    }

    fn accept(&mut self, now: NicTime, local: SocketAddr, d: &Datagram<'_>) -> Option<()> {
        let head = d.bytes.first_chunk::<BTH_BYTES>()?;
        let number = Qpn::new(u32::from_be_bytes([0, head[5], head[6], head[7]]));
        let at = *self.by_number.get(&number.value())?;
        let pair = self.pairs.get(at)?.as_ref()?;
        let with_icrc = match pair.qp {
            Machine::Connected(_) => {
                let peer = pair.end.peer?;
                if peer.at.ip() != d.from.ip() || peer.is_ours && peer.at.port() != d.from.port() {
                    return None;
                }
                peer.with_icrc
            }
            Machine::Datagram(_) => true,
        };
        let flow = with_icrc.then_some(Flow {
            from: d.from,
            to: local,
            fragment: UNFRAGMENTED,
        });
        let packet = Packet::parse(open(d.bytes, flow.as_ref()).ok()?).ok()?;
        if packet.bth.partition & PARTITION != ROCE_PKEY_DEFAULT & PARTITION {
            return None;
        }
        let own = (local, self.gid);
        let was_taken = self.with(at, |qp, view| qp.receive(now, d, own, &packet, view));
        was_taken?.then_some(())
    }

    /// Acts on timers.
    fn expire(&mut self, now: NicTime) {
        if self.timer.is_none_or(|t| now < t) {
            return;
        }
        self.timer = None;
        for at in 0..self.pairs.len() {
            let next = self.pairs[at].as_ref().and_then(|p| p.qp.next_timer());
            match next {
                Some(t) if t <= now => {
                    self.with(at, |qp, view| {
                        // Datagrams have no timers.
                        qp.connected().map(|qp| qp.expire(now, view))
                    });
                }
                Some(t) => self.timer = Some(self.timer.map_or(t, |now| now.min(t))),
                None => {}
            }
        }
    }
}

impl Engine {
    pub(super) fn new(
        (port, local): (Box<dyn Port>, SocketAddr),
        features: Features,
        seed: u64,
    ) -> Result<Engine, ringbell_gtlb::ConfigError> {
        Ok(Engine {
            outbox: Outbox::new(),
            tables: Tables::new(seed, Gid::new(local, features))?,
            port,
            local,
            features,
        })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The context's address.
    pub(super) fn gid(&self) -> Gid {
        self.tables.gid
    }

    /// Payload that a packet to a peer can carry: a power of two up to 4,096 bytes, or more between
    /// two of ours.
    pub(super) fn payload_to(&mut self, peer: &Peer) -> usize {
        let headers = headers_to(peer.at.ip()) + super::outbox::HEADERS_MAX;
        self.port.mtu_to(peer.at.ip()).saturating_sub(headers)
    }

    /// Packets that may be in flight with this payload: half of what the kernel keeps for us, as
    /// the peer's will for it.
    pub(super) fn window(&self, mtu: u32) -> u32 {
        // The kernel's bookkeeping of a datagram.
        const OVERHEAD: usize = 768;
        let kept = self.port.capabilities().receive_buffer.unwrap_or(0);
        let packets = kept / 2 / (mtu as usize + OVERHEAD);
        (packets as u32).clamp(PACKETS.0, PACKETS.1)
    }

    /// Receives, acts on timers, and sends. Returns how many datagrams came.
    pub(super) fn step(&mut self, now: NicTime) -> usize {
        let mut count = 0;
        while let Some(Arrived::Datagram(d)) = self.port.receive(now) {
            self.tables.arrived(now, self.local, &d);
            count += 1;
            if count == STEP_DATAGRAMS {
                break;
            }
        }
        self.port.flush(now);
        self.tables.expire(now);
        self.transmit(now);
        count
    }

    /// Sends what may be sent, a batch for each queue pair in turn.
    pub(super) fn transmit(&mut self, now: NicTime) {
        for _ in 0..self.tables.ready.len() {
            // What found no room goes first.
            if !self.outbox.send(now, &mut *self.port) {
                return;
            }
            let Some(at) = self.tables.ready.pop_front() else {
                return;
            };
            let Some(pair) = self.tables.pairs[at].as_mut() else {
                continue;
            };
            pair.is_ready = false;
            let mut view = View {
                end: &mut pair.end,
                memory: &mut self.tables.memory,
                cqs: &mut self.tables.cqs,
                receives: &mut self.tables.receives,
                packet: Incoming::default(),
            };
            let Some(peer) = pair.qp.peer(&view) else {
                continue;
            };
            self.outbox.begin(self.local, &peer);
            let mut has_more = false;
            while let Some(room) = self.outbox.room() {
                let to = (&peer, self.features);
                has_more = match pair.qp.transmit(now, room, to, &mut view) {
                    Transmit::Packet(len) => {
                        let solicits = std::mem::take(&mut view.end.solicits);
                        self.outbox.add(len, solicits);
                        true
                    }
                    Transmit::Nothing | Transmit::Pending => false,
                };
                if !has_more {
                    break;
                }
            }
            has_more |= pair.qp.has_others(&view);
            pair.qp.settle(&mut view);
            if has_more {
                pair.is_ready = true;
                self.tables.ready.push_back(at);
            }
            if let Some(t) = pair.qp.next_timer() {
                let timer = &mut self.tables.timer;
                *timer = Some(timer.map_or(t, |now| now.min(t)));
            }
            self.outbox.send(now, &mut *self.port);
        }
    }

    /// Whether there is more to send than one step does.
    pub(super) fn has_more(&self) -> bool {
        !self.tables.ready.is_empty() && !self.is_blocked()
    }

    /// Whether the port had no room for all packets.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// When the next step must be, although nothing arrives.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        NicTime::earliest([self.tables.timer, self.port.next_timer()])
    }

    pub(super) fn descriptors(&self) -> std::io::Result<Vec<std::os::fd::OwnedFd>> {
        let mut fds = Vec::new();
        self.port.poll_fds(&mut fds);
        fds.iter().map(|fd| fd.try_clone_to_owned()).collect()
    }
}
