//! What one end of a wire knows and does, without its port.

use ringbell_net::NicTime;

use super::event::{Event, WireCounters};
use super::greeting::{Greeted, Greeting, WireState};
use super::probing::Probing;
use super::receiving::{Order, Receiving};
use super::sending::Sending;
use crate::buffers::{Pool, Stored};
use crate::head::{self, Head, Hello, Kind, FLAG_MISSING, FLAG_PROBE, HEAD};

/// Longest text of a refusal that is taken, in bytes.
const REASON_MAX: usize = 300;

/// What a frame was.
enum Taken {
    /// A packet of a channel.
    Packet(usize),
    /// Something else, which is over.
    Other(Event),
}

/// The state of an end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) greeting: Greeting,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) probing: Probing,
    /// Why it went down last.
    pub(super) reason: Option<String>,
    pub(super) counters: WireCounters,
}

impl End {
    pub(super) fn new(hello: Hello, other: (u16, u8), epoch: u32, silence_ns: u64) -> End {
        let (channels, depth) = (hello.channels.into(), hello.depth.get().into());
        End {
            greeting: Greeting::new(hello, other, epoch),
            sending: Sending::new(channels, depth),
            receiving: Receiving::new(channels, depth),
            probing: Probing::new(silence_ns),
            reason: None,
            counters: WireCounters::default(),
        }
    }

    /// Takes a frame.
    pub(super) fn take(
        &mut self,
        now: NicTime,
        frame: Stored,
        sealed: bool,
        pool: &mut Pool,
    ) -> Event {
        match self.judged(now, frame.bytes(), sealed, pool) {
            Taken::Packet(channel) => Event::Packet(channel, frame),
            Taken::Other(event) => {
                pool.give(frame);
                event
            }
        }
    }

    /// What a frame is; a packet is taken.
    fn judged(&mut self, now: NicTime, frame: &[u8], sealed: bool, pool: &mut Pool) -> Taken {
        let read = Head::read(frame).filter(|_| !sealed || head::is_sound(frame));
        let Some((kind, head)) = read else {
            self.counters.rx_malformed += 1;
            return Taken::Other(Event::None);
        };
        let (epoch, body) = (head.epoch.get(), &frame[HEAD..]);
        match kind {
            Kind::Hello => return Taken::Other(self.hello(now, &head, body, pool)),
            Kind::Refuse => {
                let text = &body[..body.len().min(REASON_MAX)];
                let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
                self.greeting.refused(&text);
                return Taken::Other(Event::None);
            }
            _ => {}
        }
        if !self.greeting.counts(epoch) {
            self.counters.rx_stale += 1;
            return Taken::Other(Event::None);
        }
        self.probing.heard(now);
        let confirmed = self.sending.confirm(now, head.ack.get(), pool);
        let done = confirmed.and_then(|()| match kind {
            Kind::Packet => self.packet(now, &head, frame.len()),
            Kind::Credit => self.credit(&head, body).map(Taken::Other),
            Kind::State | Kind::Ask | Kind::Part => {
                let (number, body) = (head.number.get(), body.to_vec());
                Ok(Taken::Other(Event::Plan(kind, number, body)))
            }
            _ => {
                let event = Event::Network(head.number.get() as usize, words(body).collect());
                Ok(Taken::Other(event))
            }
        });
        done.unwrap_or_else(|why| Taken::Other(self.reset(now, format!("broken: {why}"), pool)))
    }

    fn hello(&mut self, now: NicTime, head: &Head, body: &[u8], pool: &mut Pool) -> Event {
        match self.greeting.hello(now, head.from, head.epoch.get(), body) {
            Greeted::Same => Event::None,
            Greeted::Refused => match self.greeting.state() {
                WireState::Refused(why) => Event::Refused(why.clone()),
                _ => Event::None,
            },
            Greeted::Up => {
                self.probing.heard(now);
                self.sending.clear(pool);
                self.receiving.clear();
                Event::Up
            }
            Greeted::Again => self.reset(now, "the other end has started again".into(), pool),
        }
    }

    fn packet(&mut self, now: NicTime, head: &Head, len: usize) -> Result<Taken, &'static str> {
        let channel = usize::from(head.channel);
        if channel >= self.receiving.channels() {
            return Err("it sends in a channel that no wire has");
        }
        if len < HEAD + 2 {
            return Err("it sends a packet of a length that none has");
        }
        self.sending.limit(channel, head.limit.get())?;
        match self.receiving.take(now, channel, head.number.get()) {
            Order::Next => {
                self.counters.rx_packets += 1;
                Ok(Taken::Packet(channel))
            }
            Order::Old | Order::Later => {
                self.counters.rx_out_of_order += 1;
                Ok(Taken::Other(Event::None))
            }
            Order::Overrun => Err("it sends more packets than it has credit for"),
        }
    }

    fn credit(&mut self, head: &Head, body: &[u8]) -> Result<Event, &'static str> {
        let mut words = words(body);
        let Some(knows) = words.next() else {
            return Err("it sends credits without a number");
        };
        for (channel, limit) in words.take(self.receiving.channels()).enumerate() {
            self.sending.limit(channel, limit)?;
        }
        if head.flags & FLAG_PROBE != 0 {
            self.receiving.answer();
        }
        if head.flags & FLAG_MISSING != 0 {
            self.counters.tx_again += self.sending.again() as u64;
        }
        Ok(Event::Knows(knows))
    }

    /// The state of this end is lost, or the other end's: it begins anew.
    fn reset(&mut self, now: NicTime, why: String, pool: &mut Pool) -> Event {
        self.reason = Some(why);
        self.counters.resets += 1;
        self.sending.clear(pool);
        self.receiving.clear();
        self.greeting.again(now);
        Event::Down
    }

    /// Packets that were not confirmed in time are sent again; `true`: the other end is gone.
    pub(super) fn is_lost(&mut self, now: NicTime, pool: &mut Pool) -> bool {
        if self.probing.is_lost(now) {
            let silence = self.probing.silence_ms();
            self.reset(
                now,
                format!("the other end was silent for {silence} ms"),
                pool,
            );
            return true;
        }
        if self.sending.is_late(now) {
            self.counters.tx_again += self.sending.again() as u64;
        }
        false
    }

    /// When to look again.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        let up = self.greeting.is_up();
        let timers = [
            self.greeting.timer(),
            self.sending.timer().filter(|_| up),
            self.receiving.timer().filter(|_| up),
            up.then(|| self.probing.timer()),
        ];
        timers.into_iter().flatten().min()
    }
}

/// The words of a body; what is left over is padding.
fn words(body: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = body.chunks_exact(4);
    words.map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]))
}
