//! A wire: a port of frames with what SMI's boards have in hardware (SC'19 §4.2).
//!
//! Packets arrive in order and once: they have numbers, and all from a missing one on are sent
//! again (go-back-N). A sender has as much credit for a channel as the receiver has free slots, so
//! that none is dropped for want of room. Both ends compare their rules before the first packet.

mod end;
mod event;
mod greeting;
mod probing;
mod receiving;
mod sending;

use std::time::Duration;

use ringbell_net::port::{Checksums, Port};
use ringbell_net::NicTime;
use zerocopy::IntoBytes;

use self::end::End;
pub(crate) use self::event::Event;
pub use self::event::WireCounters;
pub use self::greeting::WireState;
use crate::buffers::{Pool, Stored, QUEUES_MAX};
use crate::head::{self, Head, Hello, Kind, FLAG_MISSING, FLAG_PROBE, HEAD};

/// Interval at which a port without room is asked again: 20 µs.
const ROOM_NS: u64 = 20_000;
/// One end of a wire, with its port.
pub(crate) struct Wire {
    port: Box<dyn Port>,
    number: u8,
    /// Frames carry a CRC.
    sealed: bool,
    /// The port had no room.
    is_full: bool,
    end: End,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Wire");
        f.field("port", &self.port.describe());
        f.field("end", &self.end).finish_non_exhaustive()
    }
}

impl Wire {
    /// The end at which `hello` is said, opposite of a node and port, under its first epoch.
    /// `silence_ns`: after so long without a sign of life it is down.
    pub(crate) fn new(
        port: Box<dyn Port>,
        hello: Hello,
        other: (u16, u8),
        epoch: u32,
        silence_ns: u64,
    ) -> Wire {
        Wire {
            sealed: port.capabilities().checksums != Checksums::Omitted,
            number: hello.port,
            port,
            is_full: false,
            end: End::new(hello, other, epoch, silence_ns),
        }
    }

    /// The node's port.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(crate) fn port(&self) -> &dyn Port {
        &*self.port
    }

    pub(crate) fn port_mut(&mut self) -> &mut dyn Port {
        &mut *self.port
    }

    pub(crate) fn state(&self) -> &WireState {
        self.end.greeting.state()
    }

    /// Why it went down last.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.end.reason.as_deref()
    }

    pub(crate) fn counters(&self) -> WireCounters {
        self.end.counters
    }

    /// Free slots of a channel at the other end.
    #[inline]
    pub(crate) fn free(&self, channel: usize) -> u32 {
        self.end.sending.free(channel)
    }

    /// Whether it takes a packet now.
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        self.end.greeting.is_up() && self.end.sending.takes()
    }

    /// Whether nothing has come and nothing waits for room, as far as a cheap look tells.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_full && self.port.is_quiet()
    }

    /// Whether something may have come, or waits for room.
    pub(crate) fn poll(&mut self) -> bool {
        self.is_full || self.port.poll()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.end.greeting.is_up()
    }

    /// Whether it has not come up for so long since it was opened; true once.
    pub(crate) fn misses_answer(&mut self, now: NicTime, grace: Duration) -> bool {
        self.end.greeting.misses_answer(now, grace)
    }

    /// Whether that was reported, and is still so.
    pub(crate) fn is_missed(&self) -> bool {
        self.end.greeting.is_missed()
    }

    /// A packet that came by this wire has left its channel.
    #[inline]
    pub(crate) fn release(&mut self, now: NicTime, channel: usize) {
        self.end.receiving.release(now, channel);
    }

    /// Sends a packet; [`takes`](Wire::takes) and [`free`](Wire::free) were asked before.
    #[inline]
    pub(crate) fn send(&mut self, now: NicTime, channel: usize, packet: Stored) {
        self.end.sending.push(now, channel, packet);
        self.end.counters.tx_packets += 1;
        self.put(now);
    }

    /// Puts packets on the wire that wait for it.
    fn put(&mut self, now: NicTime) {
        let mac = self.end.greeting.mac();
        let from = self.port.capabilities().medium.mac();
        let End {
            sending,
            receiving,
            greeting,
            ..
        } = &mut self.end;
        while let Some((packet, number)) = sending.pending() {
            let mut head = packet.head();
            let channel = usize::from(head.channel);
            (head.to, head.from) = (mac, from);
            head.epoch.set(greeting.epoch());
            head.number.set(number);
            head.ack.set(receiving.expected());
            head.limit.set(receiving.limit(channel));
            head.write(packet.room());
            if self.sealed {
                head::seal(packet.bytes_mut());
            }
            if !self.port.tx_copy(now, mac, packet.bytes()) {
                self.is_full = true;
                return;
            }
            receiving.told(channel);
            sending.sent();
        }
        self.is_full = false;
    }

    /// Writes a frame that is no packet. Returns whether there was room.
    fn frame(&mut self, now: NicTime, mut head: Head, body: &[u8]) -> bool {
        head.to = self.end.greeting.mac();
        head.from = self.port.capabilities().medium.mac();
        head.epoch.set(self.end.greeting.epoch());
        head.ack.set(self.end.receiving.expected());
        let Some(room) = self.port.tx_frame(now, head.to) else {
            self.is_full = true;
            return false;
        };
        let len = HEAD + body.len();
        head.write(room);
        room[HEAD..len].copy_from_slice(body);
        if self.sealed {
            head::seal(&mut room[..len]);
        }
        self.port.tx_commit(now, len);
        true
    }

    /// Tells the other end the states of the network's wires. Returns whether all were told.
    pub(crate) fn tell_network(&mut self, now: NicTime, states: &[u32]) -> bool {
        let most = (self.port.capabilities().mtu - HEAD) / 4;
        states.chunks(most).enumerate().all(|(n, part)| {
            let mut head = Head::new(Kind::Network);
            head.number.set((n * most) as u32);
            let body: Vec<u8> = part.iter().flat_map(|s| s.to_be_bytes()).collect();
            self.frame(now, head, &body)
        })
    }

    /// Says something of tables that replace others. It is lost where there is no room.
    pub(crate) fn tell_plan(&mut self, now: NicTime, kind: Kind, number: u32, body: &[u8]) {
        let mut head = Head::new(kind);
        head.number.set(number);
        self.frame(now, head, body);
    }

    /// Does what is due: hellos, credits, packets that are sent again. `knows` is what this node
    /// knows of the network; `starved`: a packet waits for credit. Returns whether the wire went
    /// down.
    pub(crate) fn serve(
        &mut self,
        now: NicTime,
        knows: u32,
        starved: bool,
        pool: &mut Pool,
    ) -> bool {
        self.is_full = false;
        if let Some(hello) = self.end.greeting.due(now) {
            self.frame(now, Head::new(Kind::Hello), hello.as_bytes());
        }
        if let Some(why) = self.end.greeting.refusal() {
            self.frame(now, Head::new(Kind::Refuse), why.as_bytes());
        }
        if !self.end.greeting.is_up() {
            return false;
        }
        if self.end.is_lost(now, pool) {
            return true;
        }
        self.put(now);
        let asks = self.end.probing.asks(now, starved);
        let receiving = &mut self.end.receiving;
        if asks || receiving.is_due(now) {
            let mut head = Head::new(Kind::Credit);
            if asks {
                head.flags = FLAG_PROBE;
            }
            if receiving.misses() {
                head.flags |= FLAG_MISSING;
            }
            let limits = (0..receiving.channels()).map(|c| receiving.limit(c));
            let words = std::iter::once(knows).chain(limits);
            let mut body = [0; 4 * (QUEUES_MAX + 1)];
            let mut len = 0;
            for (to, word) in body.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_be_bytes());
                len += 4;
            }
            if self.frame(now, head, &body[..len]) {
                self.end.receiving.told_all();
            }
        }
        false
    }

    /// Takes a frame from the port, if there is one.
    #[inline]
    pub(crate) fn receive(&mut self, now: NicTime, pool: &mut Pool) -> Option<Event> {
        let mut frame = pool.take();
        match self.port.receive_into(now, frame.room()) {
            Some(len) => {
                frame.set_len(len);
                Some(self.end.take(now, frame, self.sealed, pool))
            }
            None => {
                pool.give(frame);
                None
            }
        }
    }

    /// When to [`serve`](Wire::serve) it although nothing comes.
    pub(crate) fn next_timer(&self, now: NicTime) -> Option<NicTime> {
        let full = self.is_full.then_some(NicTime(now.0 + ROOM_NS));
        let timers = [full, self.end.next_timer(), self.port.next_timer()];
        timers.into_iter().flatten().min()
    }
}
