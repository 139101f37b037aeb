//! Messages of inboxes: whatever ranks send and receive, each message meets one receive, in order.

use std::collections::HashMap;

use crate::collective_support;

use collective_support::{Rng, Wire, World, BASE};
use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::collective::{
    CollectiveSettings, Found, MessageError, MessageEvent, MessageId, Wants, MAX_CONTEXTS,
};
use ringbell_nic_core::Inbox;

const RANKS: usize = 3;
/// Virtual time for everything to end.
const LIMIT: u64 = 60_000_000_000;

fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

/// An address in a rank's memory.
fn place(at: u64) -> GpuVa {
    GpuVa(BASE.0 + at)
}

fn inboxes(w: &World) -> Vec<Inbox> {
    let open = |r: usize| {
        let h = w.host(r);
        h.nic.open_inbox(h.pd, w.comms[r]).expect("it lives")
    };
    (0..w.ranks()).map(open).collect()
}

/// A message, by the order in which its sender sent it.
#[derive(Debug, Clone)]
struct Sent {
    from: u32,
    to: u32,
    context: u32,
    tag: u32,
    bytes: Vec<u8>,
    id: Option<MessageId>,
    ended: bool,
    /// Its receive at the receiver, by the order of posting.
    met: Option<usize>,
}

#[derive(Debug)]
struct Posted {
    at: usize,
    wants: Wants,
    id: MessageId,
    /// The message, once it is here.
    got: Option<usize>,
    fetched: bool,
    /// Where its bytes come to lie.
    memory: Option<(u64, Found)>,
    done: bool,
}

struct Run {
    w: World,
    inboxes: Vec<Inbox>,
    sent: Vec<Sent>,
    posted: Vec<Posted>,
    /// The next free byte of each rank's memory.
    free: [u64; RANKS],
    rng: Rng,
}

impl Run {
    fn new(wire: Wire, seed: u64) -> Run {
        let w = World::new(RANKS, wire, &small());
        Run {
            inboxes: inboxes(&w),
            w,
            sent: Vec::new(),
            posted: Vec::new(),
            free: [0; RANKS],
            rng: Rng(seed),
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.rng.next() as usize % below
    }

    /// Room in a rank's memory.
    fn room(&mut self, rank: usize, len: u64) -> u64 {
        let at = self.free[rank];
        self.free[rank] = (at + len).next_multiple_of(64);
        at
    }

    fn send(&mut self) {
        const LENS: [usize; 6] = [0, 1, 255, 256, 257, 9000];
        let (from, to) = (self.draw(RANKS), self.draw(RANKS));
        let (context, tag) = (self.draw(2) as u32, self.draw(3) as u32);
        let len = LENS[self.draw(LENS.len())];
        // What makes it out among all others, where there is room.
        let mut bytes = vec![self.sent.len() as u8; len];
        bytes
            .iter_mut()
            .skip(1)
            .for_each(|b| *b = self.rng.next() as u8);
        let when_met = self.draw(3) == 0;
        let target = (to as u32, context, tag);
        let id = match self.draw(2) {
            0 => self.inboxes[from].send(target, &bytes, when_met),
            _ => {
                let at = self.room(from, len as u64);
                self.w.host(from).poke(at, &bytes);
                let memory = (place(at), len as u64);
                self.inboxes[from].send_from(target, memory, when_met)
            }
        };
        let id = id.expect("sent");
        self.sent.push(Sent {
            from: from as u32,
            to: to as u32,
            context,
            tag,
            bytes,
            ended: id.is_none(),
            id,
            met: None,
        });
    }

    fn wants(&mut self) -> Wants {
        let from = self.draw(RANKS + 1) as u32;
        let tag = self.draw(4) as u32;
        Wants {
            from: (from < RANKS as u32).then_some(from),
            context: self.draw(2) as u32,
            tag: (tag < 3).then_some(tag),
        }
    }

    fn receive(&mut self) {
        let (at, wants) = (self.draw(RANKS), self.wants());
        let begun = match self.draw(3) {
            0 => {
                let found = self.inboxes[at].probe(&wants).expect("it lives");
                let taken = self.inboxes[at].receive_now(&wants).expect("it lives");
                assert_eq!(found.is_some(), taken.is_some(), "{wants:?}");
                taken
            }
            _ => Some(self.inboxes[at].receive(&wants).expect("a receive")),
        };
        if let Some(id) = begun {
            self.posted.push(Posted {
                at,
                wants,
                id,
                got: None,
                fetched: false,
                memory: None,
                done: false,
            });
        }
    }

    /// Which message it is.
    fn which(&self, to: usize, context: u32, found: Found, bytes: &[u8]) -> usize {
        let same = |s: &Sent| {
            (s.from, s.to, s.context, s.tag) == (found.from, to as u32, context, found.tag)
                && s.met.is_none()
                && s.bytes == bytes
        };
        let i = self.sent.iter().position(same);
        i.unwrap_or_else(|| panic!("{found:?} was not sent to {to}, or came twice"))
    }

    fn look(&mut self) {
        self.w.step();
        for rank in 0..RANKS {
            while let Some(e) = self.inboxes[rank].poll().expect("it lives") {
                self.on_event(rank, e);
            }
        }
    }

    fn on_event(&mut self, rank: usize, e: MessageEvent) {
        match e {
            MessageEvent::Met { id, found, here } => {
                let is = |p: &Posted| p.at == rank && p.id == id && !p.done;
                let i = self.posted.iter().position(is).expect("a receive of ours");
                let wants = self.posted[i].wants;
                assert!(
                    wants.from.is_none_or(|f| f == found.from),
                    "{wants:?} {found:?}"
                );
                assert!(
                    wants.tag.is_none_or(|t| t == found.tag),
                    "{wants:?} {found:?}"
                );
                assert!(!self.inboxes[rank].cancel(id), "it has met a message");
                let fetched = here && self.posted[i].fetched;
                if here && (fetched || self.draw(2) == 0) {
                    let mut bytes = vec![0; found.len as usize];
                    let n = self.inboxes[rank].read(id, &mut bytes);
                    assert_eq!(n, Ok(found.len));
                    return self.arrived(i, found, &bytes);
                }
                if !here && self.draw(2) == 0 {
                    self.inboxes[rank].fetch(id).expect("room");
                    self.posted[i].fetched = true;
                    let again = self.inboxes[rank].fetch(id);
                    assert_eq!(again, Err(MessageError::NotHere { id }));
                    return;
                }
                let at = self.room(rank, found.len);
                if found.len > 0 {
                    let short = (place(at), found.len - 1);
                    let refused = self.inboxes[rank].collect(id, short);
                    assert!(matches!(refused, Err(MessageError::Room { .. })));
                }
                let memory = (place(at), found.len);
                self.inboxes[rank].collect(id, memory).expect("memory");
                self.posted[i].memory = Some((at, found));
            }
            MessageEvent::Ended { id, status, .. } => {
                assert_eq!(status, Status::Ok);
                let is = |p: &Posted| p.at == rank && p.id == id && !p.done;
                if let Some(i) = self.posted.iter().position(is) {
                    let (at, found) = self.posted[i].memory.expect("it was given memory");
                    let bytes = self.w.host(rank).peek(at, found.len as usize);
                    return self.arrived(i, found, &bytes);
                }
                let is = |s: &&mut Sent| s.from == rank as u32 && s.id == Some(id) && !s.ended;
                let s = self.sent.iter_mut().find(is).expect("a message of ours");
                s.ended = true;
            }
        }
    }

    fn arrived(&mut self, receive: usize, found: Found, bytes: &[u8]) {
        let (rank, context) = (self.posted[receive].at, self.posted[receive].wants.context);
        let i = self.which(rank, context, found, bytes);
        self.sent[i].met = Some(receive);
        self.posted[receive].got = Some(i);
        self.posted[receive].done = true;
    }

    /// Receives what is left, and checks the order.
    fn end(mut self) {
        let end = self.w.now + LIMIT;
        loop {
            self.look();
            let open = self
                .sent
                .iter()
                .filter(|s| s.met.is_none() || !s.ended)
                .count();
            if open == 0 {
                break;
            }
            assert!(self.w.now < end, "{open} of {} hang", self.sent.len());
            for at in 0..RANKS {
                for context in 0..2 {
                    let (from, tag) = (None, None);
                    let wants = Wants { from, context, tag };
                    if let Some(id) = self.inboxes[at].receive_now(&wants).expect("it lives") {
                        self.posted.push(Posted {
                            at,
                            wants,
                            id,
                            got: None,
                            fetched: false,
                            memory: None,
                            done: false,
                        });
                    }
                }
            }
        }
        let mut last: HashMap<(u32, usize, u32, u32), usize> = HashMap::new();
        for p in &self.posted {
            let Some(i) = p.got else {
                assert!(self.inboxes[p.at].cancel(p.id), "{p:?} waits for nothing");
                continue;
            };
            let s = &self.sent[i];
            // Messages that both could have met come in their order.
            let key = (s.from, p.at, s.context, s.tag);
            if let Some(before) = last.insert(key, i) {
                assert!(
                    before < i || self.sent[before].bytes == s.bytes,
                    "{before} overtook {i}"
                );
            }
        }
        for inbox in self.inboxes {
            assert_eq!(inbox.poll(), Ok(None));
        }
    }
}

#[test]
fn random_messages_meet_receives_in_order() {
    for (wire, rounds) in [
        (Wire::Local, 12),
        (Wire::Tcp, 6),
        (Wire::Rdma, 6),
        (Wire::Iwarp, 2),
    ] {
        for seed in 0..rounds {
            let mut run = Run::new(wire, seed);
            for _ in 0..150 {
                match run.draw(5) {
                    0 | 1 => run.send(),
                    2 | 3 => run.receive(),
                    _ => run.look(),
                }
            }
            run.end();
        }
    }
}

#[test]
fn a_message_that_waits_for_its_receive_ends_only_then() {
    for len in [0_usize, 5, 5000] {
        let mut w = World::new(2, Wire::Local, &small());
        let all = inboxes(&w);
        let bytes = vec![7; len];
        for to in [1, 0] {
            let id = all[0].send((to, 0, 0), &bytes, true).expect("sent");
            let id = id.expect("it is waited for");
            for _ in 0..2000 {
                w.step();
            }
            assert_eq!(all[0].poll(), Ok(None), "it was not received");
            let at = &all[to as usize];
            let wants = Wants {
                from: Some(0),
                context: 0,
                tag: None,
            };
            let found = at.probe(&wants).expect("it lives").expect("it is there");
            assert_eq!(found.len, len as u64);
            // Dropped by its receiver: the sender hears of it.
            let taken = at.receive_now(&wants).expect("it lives");
            taken.expect("the probed one");
            let again = at.probe(&wants);
            assert_eq!(again, Ok(None));
            let mut ends = Vec::new();
            for _ in 0..2000 {
                w.step();
                while let Some(e) = at.poll().expect("it lives") {
                    match e {
                        MessageEvent::Met { id, here: true, .. } => {
                            let n = at.read(id, &mut vec![0; len]);
                            assert_eq!(n, Ok(len as u64));
                        }
                        MessageEvent::Met { id, .. } => {
                            at.collect(id, (place(0), len as u64)).expect("memory");
                        }
                        MessageEvent::Ended { id, status, .. } => ends.push((id, status)),
                    }
                }
                while let Some(e) = all[0].poll().expect("it lives") {
                    if let MessageEvent::Ended { id, status, .. } = e {
                        ends.push((id, status));
                    }
                }
            }
            assert!(ends.contains(&(id, Status::Ok)), "{len} to {to}: {ends:?}");
        }
    }
}

#[test]
fn more_receives_wait_than_a_queue_has_places_and_the_last_meets_first() {
    let mut w = World::new(2, Wire::Local, &small());
    let all = inboxes(&w);
    let ids: Vec<_> = (0..5000)
        .map(|tag| {
            let wants = Wants {
                from: Some(0),
                context: 1,
                tag: Some(tag),
            };
            all[1].receive(&wants).expect("a receive")
        })
        .collect();
    for tag in (0..5000).rev() {
        all[0]
            .send((1, 1, tag), &tag.to_le_bytes(), false)
            .expect("sent");
    }
    let mut met = 0;
    for _ in 0..200_000 {
        w.step();
        while let Some(e) = all[1].poll().expect("it lives") {
            let MessageEvent::Met { id, found, here } = e else {
                continue;
            };
            met += 1;
            assert_eq!(id, ids[found.tag as usize]);
            match here {
                true => {
                    let mut bytes = [0; 4];
                    all[1].read(id, &mut bytes).expect("it is here");
                    assert_eq!(u32::from_le_bytes(bytes), found.tag);
                }
                false => all[1].collect(id, (place(0), 4)).expect("memory"),
            }
        }
        while all[0].poll().expect("it lives").is_some() {}
        if met == 5000 {
            return;
        }
    }
    panic!("{met} of 5000 have met");
}

#[test]
fn a_rank_that_ends_ends_what_waits_for_it() {
    let mut w = World::new(2, Wire::Local, &small());
    let all = inboxes(&w);
    let wants = Wants {
        from: None,
        context: 0,
        tag: None,
    };
    all[0].receive(&wants).expect("a receive");
    all[0].send((1, 0, 0), &[1; 2000], false).expect("sent");
    for _ in 0..1000 {
        w.step();
    }
    let mut all = all.into_iter();
    let first = all.next().expect("two");
    drop(all);
    w.host(1).nic.abort_communicator(w.comms[1]).expect("known");
    let mut over = first.poll();
    for _ in 0..100_000 {
        if over.is_err() {
            break;
        }
        w.step();
        over = first.poll();
    }
    let Err(MessageError::Ended { status, detail }) = over else {
        panic!("rank 0 has {over:?}");
    };
    assert_eq!((status, detail), (Status::CommAborted, 1));
    assert_eq!(
        first.receive(&wants),
        Err(MessageError::Ended { status, detail })
    );
}

#[test]
fn wrong_arguments_are_refused() {
    let w = World::new(2, Wire::Local, &small());
    let all = inboxes(&w);
    let send = |to, context| {
        all[0]
            .send((to, context, 0), &[], false)
            .expect_err("refused")
    };
    assert_eq!(
        send(2, 0),
        MessageError::Range {
            what: "rank",
            given: 2,
            limit: 2
        }
    );
    assert!(send(1, MAX_CONTEXTS)
        .to_string()
        .contains("context 536870912"));
    let nowhere = all[0].send_from((1, 0, 0), (GpuVa(1), 8), false);
    assert!(matches!(nowhere, Err(MessageError::Memory { .. })));
    let none = MessageId(77);
    assert_eq!(
        all[0].read(none, &mut []),
        Err(MessageError::NotHere { id: none })
    );
}
