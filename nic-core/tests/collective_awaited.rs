//! Awaited messages: each goes to the oldest receive of its tag of which its sender was told, or
//! leaves before, and none overtakes another.

use std::collections::HashMap;

use crate::collective_support;

use collective_support::{Rng, Wire, World, BASE};
use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::collective::{CollectiveSettings, MessageError, MessageEvent, MessageId};
use ringbell_nic_core::Inbox;

const RANKS: usize = 3;
/// Virtual time for everything to end.
const LIMIT: u64 = 60_000_000_000;
/// Most bytes of a message.
const MOST: u64 = 9000;

fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

fn inboxes(w: &World) -> Vec<Inbox> {
    let open = |r: usize| {
        let h = w.host(r);
        h.nic.open_inbox(h.pd, w.comms[r]).expect("it lives")
    };
    (0..w.ranks()).map(open).collect()
}

/// Sender, receiver and tag.
type Way = (usize, usize, u32);

/// The next message or receive of a way, and how many have ended.
#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    posted: u64,
    left: u64,
    arrived: u64,
}

/// A message by its way and number: both ends derive its bytes.
fn bytes((from, to, tag): Way, number: u64) -> Vec<u8> {
    const LENS: [u64; 7] = [0, 1, 40, 256, 257, 3000, MOST];
    let mut rng = Rng(number * 64 + (from * 16 + to * 4) as u64 + u64::from(tag) + 1);
    let len = LENS[(rng.next() % LENS.len() as u64) as usize];
    (0..len).map(|_| rng.next() as u8).collect()
}

struct Run {
    w: World,
    inboxes: Vec<Inbox>,
    counts: HashMap<Way, Counts>,
    /// Operations by rank: way, number, and place in memory.
    sends: HashMap<(usize, MessageId), Way>,
    receives: HashMap<(usize, MessageId), (Way, u64, u64)>,
    /// The next free byte of each rank's memory.
    free: [u64; RANKS],
    rng: Rng,
    /// Messages that had to wait for their receive.
    waited: u64,
}

impl Run {
    fn new(wire: Wire, seed: u64) -> Run {
        let w = World::new(RANKS, wire, &small());
        Run {
            inboxes: inboxes(&w),
            w,
            counts: HashMap::new(),
            sends: HashMap::new(),
            receives: HashMap::new(),
            free: [0; RANKS],
            rng: Rng(seed + 1),
            waited: 0,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.rng.next() as usize % below
    }

    fn way(&mut self) -> Way {
        (self.draw(RANKS), self.draw(RANKS), self.draw(2) as u32)
    }

    fn room(&mut self, rank: usize, len: u64) -> u64 {
        let at = self.free[rank];
        self.free[rank] = (at + len).next_multiple_of(64);
        at
    }

    /// A range as one, or as two that adjoin nothing.
    fn spans(&mut self, rank: usize, len: u64) -> Vec<(u64, u64)> {
        match self.draw(3) {
            0 if len > 1 => {
                let first = 1 + self.draw(len as usize - 1) as u64;
                let at = self.room(rank, first + 64);
                vec![(at, first), (self.room(rank, len - first), len - first)]
            }
            _ => vec![(self.room(rank, len), len)],
        }
    }

    fn send(&mut self, way: Way) {
        let (from, to, tag) = way;
        let number = self.counts.entry(way).or_default().sent;
        let bytes = bytes(way, number);
        let target = (to as u32, tag);
        let sent = match self.draw(2) {
            0 => self.inboxes[from].send_awaited_bytes(target, &bytes),
            _ => {
                let spans = self.spans(from, bytes.len() as u64);
                let mut done = 0;
                for (at, len) in &spans {
                    let end = done + *len as usize;
                    self.w.host(from).poke(*at, &bytes[done..end]);
                    done = end;
                }
                self.inboxes[from].send_awaited(target, &places(&spans))
            }
        };
        match sent.expect("it lives") {
            Some(id) => {
                self.sends.insert((from, id), way);
                self.counts.entry(way).or_default().sent += 1;
            }
            None => self.waited += 1,
        }
    }

    fn receive(&mut self, way: Way) {
        let (from, to, tag) = way;
        let number = self.counts.entry(way).or_default().posted;
        let len = bytes(way, number).len() as u64;
        // Room for more than comes, now and then, in one range.
        let spans = match self.draw(2) {
            0 => vec![(self.room(to, len + 100), len + 100)],
            _ => vec![(self.room(to, len), len)],
        };
        let id = self.inboxes[to].await_from((from as u32, tag), &places(&spans));
        let id = id.expect("room for a receive");
        assert!(!self.inboxes[to].cancel(id), "its sender was told of it");
        self.receives.insert((to, id), (way, number, spans[0].0));
        self.counts.entry(way).or_default().posted += 1;
    }

    fn look(&mut self) {
        self.w.step();
        for rank in 0..RANKS {
            while let Some(e) = self.inboxes[rank].poll().expect("it lives") {
                let MessageEvent::Ended { id, status, detail } = e else {
                    panic!("no receive is a claim: {e:?}");
                };
                assert_eq!(status, Status::Ok);
                if let Some(way) = self.sends.remove(&(rank, id)) {
                    self.counts.entry(way).or_default().left += 1;
                    continue;
                }
                let known = self.receives.remove(&(rank, id));
                let (way, number, at) = known.expect("an operation of ours");
                let bytes = bytes(way, number);
                assert_eq!(detail, bytes.len() as u64, "{way:?} {number}");
                let got = self.w.host(rank).peek(at, bytes.len());
                assert!(got == bytes, "{way:?} {number} has other bytes");
                self.counts.entry(way).or_default().arrived += 1;
            }
        }
    }

    /// Does what is missing at one end of each way.
    fn end(mut self) -> u64 {
        let limit = self.w.now + LIMIT;
        loop {
            let ways: Vec<Way> = self.counts.keys().copied().collect();
            let mut open = 0;
            for way in ways {
                let c = &self.counts[&way];
                let (sent, posted) = (c.sent, c.posted);
                open += u64::from(sent != posted || c.left != sent || c.arrived != posted);
                match sent.cmp(&posted) {
                    std::cmp::Ordering::Less => self.send(way),
                    std::cmp::Ordering::Greater => self.receive(way),
                    std::cmp::Ordering::Equal => {}
                }
            }
            if open == 0 {
                return self.waited;
            }
            assert!(self.w.now < limit, "{open} ways hang: {:?}", self.counts);
            self.look();
        }
    }
}

fn places(spans: &[(u64, u64)]) -> Vec<(GpuVa, u64)> {
    let place = |(at, len): &(u64, u64)| (GpuVa(BASE.0 + at), *len);
    spans.iter().map(place).collect()
}

#[test]
fn random_awaited_messages_meet_their_receives_in_order() {
    for (wire, rounds) in [
        (Wire::Local, 12),
        (Wire::Tcp, 6),
        (Wire::Rdma, 6),
        (Wire::Iwarp, 2),
    ] {
        let mut waited = 0;
        for seed in 0..rounds {
            let mut run = Run::new(wire, seed);
            for _ in 0..150 {
                let way = run.way();
                match run.draw(5) {
                    0 | 1 => run.send(way),
                    2 | 3 => run.receive(way),
                    _ => run.look(),
                }
            }
            waited += run.end();
        }
        assert!(waited > 0, "all messages have left early over {wire:?}");
    }
}

/// Steps until nothing moves, and more often.
fn settle(w: &mut World) {
    for _ in 0..2000 {
        w.step();
    }
}

/// Steps until an inbox has an event.
fn next(w: &mut World, at: &Inbox) -> MessageEvent {
    let end = w.now + LIMIT;
    while w.now < end {
        if let Some(e) = at.poll().expect("it lives") {
            return e;
        }
        w.step();
    }
    panic!("nothing happens");
}

#[test]
fn a_message_that_is_longer_than_its_receive_ends_both_and_the_next_one_goes_on() {
    for (to, len) in [(1_u32, 200_u64), (1, 5000), (0, 200)] {
        for early in [true, false] {
            let mut w = World::new(2, Wire::Local, &small());
            let all = inboxes(&w);
            let (from, to_inbox) = (&all[0], &all[to as usize]);
            let source = places(&[(0, len)]);
            let is_early = early && to == 1 && len <= 256;
            let mut sent = None;
            if is_early {
                sent = from.send_awaited((to, 5), &source).expect("it lives");
                assert!(sent.is_some(), "it is short enough to leave");
                settle(&mut w);
            }
            let receive = |room| to_inbox.await_from((0, 5), &places(&[(8192, room)]));
            let short = receive(len - 1).expect("a receive");
            let fits = receive(len).expect("a receive");
            settle(&mut w);
            let sent = sent.or_else(|| from.send_awaited((to, 5), &source).expect("it lives"));
            let sent = sent.expect("a receive is known");
            let (status, detail) = (Status::MessageTooLarge, len);
            let mut ends = vec![next(&mut w, to_inbox), next(&mut w, from)];
            ends.sort_by_key(|e| matches!(e, MessageEvent::Ended { id, .. } if *id == sent));
            let id = short;
            assert_eq!(ends[0], MessageEvent::Ended { id, status, detail });
            // One that lay at its receiver before has been sent.
            let status = if is_early { Status::Ok } else { status };
            let end = matches!(ends[1], MessageEvent::Ended { id, status: s, .. } if (id, s) == (sent, status));
            assert!(end, "{ends:?}");
            let again = from.send_awaited((to, 5), &source).expect("it lives");
            assert!(again.is_some());
            let end = loop {
                match next(&mut w, to_inbox) {
                    MessageEvent::Ended { id, .. } if Some(id) == again && to == 0 => {}
                    end => break end,
                }
            };
            let (id, status) = (fits, Status::Ok);
            assert_eq!(end, MessageEvent::Ended { id, status, detail });
        }
    }
}

#[test]
fn a_sender_learns_that_its_receiver_has_left() {
    let mut w = World::new(2, Wire::Local, &small());
    let all = inboxes(&w);
    let long = places(&[(0, 5000)]);
    assert_eq!(all[0].send_awaited((1, 0), &long), Ok(None));
    let h = w.host(1);
    h.nic.free_communicator(w.comms[1]).expect("it is idle");
    settle(&mut w);
    let refused = all[0].send_awaited((1, 0), &long);
    let (status, detail) = (Status::PeerFailed, 1);
    assert_eq!(refused, Err(MessageError::Ended { status, detail }));
}

#[test]
fn memory_that_is_not_registered_and_ranks_that_do_not_exist_are_refused() {
    let w = World::new(2, Wire::Local, &small());
    let all = inboxes(&w);
    let good = (GpuVa(BASE.0), 8);
    let bad = (GpuVa(1 << 60), 8);
    for memory in [&[bad][..], &[good, bad]] {
        let refused = [
            all[0].send_awaited((1, 0), memory).map(|_| ()),
            all[0].await_from((1, 0), memory).map(|_| ()),
        ];
        for r in refused {
            assert!(matches!(r, Err(MessageError::Memory { .. })), "{r:?}");
        }
    }
    let range = all[0].await_from((2, 0), &[good]);
    assert!(
        matches!(range, Err(MessageError::Range { .. })),
        "{range:?}"
    );
}
