//! A NIC with all that happens to it alone.
//!
//! What an event at a NIC leads to depends on what came to it before, and on no other node. So
//! several NICs may run at once, each ahead of the others by less than anything takes from one to
//! the next. What they did is entered into the world afterwards, in the order of the events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringbell_nic_abi::Status;
use ringbell_nic_core::types::NicTime;

use crate::network::{Frame, LinkId, Sent, SharedAdapter};
use crate::node::Node;
use crate::steady::Moments;

/// Between two looks at a NIC whose link is paused.
const WHILE_PAUSED: Duration = Duration::from_micros(100);
/// The same of one whose links have room, and whose neighbours may have none.
const WITHOUT_CREDIT: Duration = Duration::from_micros(100);

/// What happens to a NIC.
#[derive(Debug)]
pub(crate) enum Happens {
    /// A frame has crossed its link.
    Crossed(LinkId, Box<Frame>),
    /// It has taken a frame that had crossed one of its links, by its place among them.
    Received(usize),
    /// A timer is due.
    Due,
}

/// How an event at a NIC begins.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// What enters the digest.
    pub(crate) note: Option<[u64; 3]>,
    /// When the NIC will have taken the frame, and by which of its links that came.
    pub(crate) later: Option<(u64, usize)>,
    /// The NIC has a frame.
    pub(crate) has_arrived: bool,
    /// The NIC is stepped.
    pub(crate) steps: bool,
}

/// What an event at a NIC has led to. Times are picoseconds.
#[derive(Debug)]
pub(crate) struct Handled {
    pub(crate) begun: Begun,
    pub(crate) sent: Vec<Sent>,
    /// When the NIC is to be stepped again.
    pub(crate) due: Option<u64>,
    /// How the operation has ended that the lane waits for.
    pub(crate) end: Option<(Status, u64)>,
}

/// An event of a window: its place there, its time, and what happens.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) place: usize,
    pub(crate) at: u64,
    pub(crate) what: Happens,
}

/// A rank's NIC.
pub(crate) struct Lane {
    rank: usize,
    node: Arc<Node>,
    /// By link: what is before it, and the frames that its processor has not given to the NIC yet.
    adapters: Vec<(SharedAdapter, VecDeque<Box<Frame>>)>,
    /// It forwards what others send.
    forwards: bool,
    /// When the earliest event of a timer is, in picoseconds.
    due: Option<u64>,
    /// The operation whose end is waited for.
    pub(crate) ticket: Option<u32>,
    /// How far its program was when, if that is asked for.
    pub(crate) moments: Option<Moments>,
    /// What it is to do in a window, and when it stops there.
    pub(crate) given: VecDeque<Given>,
    pub(crate) until: Option<u64>,
    /// Events that it has made itself and will have passed ahead.
    made: Vec<(u64, Happens)>,
    /// What it has done ahead.
    pub(crate) done: VecDeque<Handled>,
}

impl Lane {
    pub(crate) fn new(
        rank: usize,
        node: Arc<Node>,
        adapters: Vec<SharedAdapter>,
        forwards: bool,
    ) -> Lane {
        let adapters = adapters.into_iter().map(|a| (a, VecDeque::new()));
        Lane {
            rank,
            node,
            adapters: adapters.collect(),
            forwards,
            due: None,
            ticket: None,
            moments: None,
            given: VecDeque::new(),
            until: None,
            made: Vec::new(),
            done: VecDeque::new(),
        }
    }

    /// Begins with an event.
    pub(crate) fn begin(&mut self, at: u64, what: Happens) -> Begun {
        let rank = self.rank as u64;
        let mut begun = Begun {
            steps: true,
            ..Begun::default()
        };
        match what {
            Happens::Crossed(link, frame) => {
                begun.note = Some([link.index() as u64, 2, frame.len() as u64]);
                let place = self.place(link.back());
                let (adapter, taken) = &mut self.adapters[place];
                let done = adapter.lock().receives(at, &frame);
                if done > at {
                    begun.later = Some((done, place));
                    begun.steps = false;
                    taken.push_back(frame);
                } else {
                    begun.has_arrived = true;
                    adapter.lock().received(frame);
                }
            }
            Happens::Received(place) => {
                let (adapter, taken) = &mut self.adapters[place];
                let frame = taken.pop_front();
                let len = frame.as_ref().map_or(0, |f| f.len());
                begun.note = Some([rank, 3, len as u64]);
                begun.has_arrived = true;
                frame.into_iter().for_each(|f| adapter.lock().received(f));
            }
            // Otherwise an earlier one has taken its place.
            Happens::Due if self.due == Some(at) => {
                self.due = None;
                begun.note = Some([rank, 1, 0]);
            }
            Happens::Due => begun.steps = false,
        }
        begun
    }

    /// Steps the NIC until nothing moves. Returns whether anything has, and what it has sent.
    pub(crate) fn run(&mut self, at: u64) -> (bool, Vec<Sent>) {
        // NICs count nanoseconds; one that is stepped early would find its timer not due.
        let moved = self.node.nic.run_at(NicTime(at.div_ceil(1_000)));
        if let Some(moments) = &mut self.moments {
            if let Ok(Some(progress)) = self.node.nic.program_progress(self.node.comm) {
                moments.note(at, &progress);
            }
        }
        let sent = self.adapters.iter();
        (moved, sent.flat_map(|a| a.0.lock().take_sent()).collect())
    }

    /// The place of a link that leaves the NIC.
    fn place(&self, link: LinkId) -> usize {
        let place = self.adapters.iter().position(|a| a.0.link == link);
        place.unwrap_or(0)
    }

    /// What is before each link that leaves the NIC.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = &SharedAdapter> {
        self.adapters.iter().map(|a| &a.0)
    }

    /// What is before a link that leaves the NIC.
    pub(crate) fn adapter(&self, link: LinkId) -> &SharedAdapter {
        &self.adapters[self.place(link)].0
    }

    /// When what is due and has not happened may happen, in nanoseconds: when a link has room that
    /// has none.
    fn room_at(&self, now: u64) -> u64 {
        let rooms = self.adapters.iter().map(|a| a.0.lock().room_at());
        let rooms: Option<Vec<u64>> = rooms.collect();
        let Some(rooms) = rooms else {
            // That its link goes on is an event. Other timers are late by so much.
            return now + WHILE_PAUSED.as_nanos() as u64;
        };
        let rooms = rooms.into_iter().map(|at| at.div_ceil(1_000));
        let next = rooms.filter(|at| *at > now).min();
        next.unwrap_or(match self.forwards {
            // That credit comes from a neighbour is an event, too.
            true => now + WITHOUT_CREDIT.as_nanos() as u64,
            false => now + 1,
        })
    }

    /// When the NIC wants to be stepped again, if there is no event for it yet.
    pub(crate) fn timer(&mut self, at: u64) -> Option<u64> {
        let now = at.div_ceil(1_000);
        let timer = self.node.nic.next_timer()?;
        // What is due and has not happened waits for room at the port.
        let earliest = match timer.0 <= now {
            true => self.room_at(now),
            false => 0,
        };
        let next = timer.0.max(now + 1).max(earliest).saturating_mul(1_000);
        let is_new = self.due.is_none_or(|due| due > next || due <= at);
        is_new.then(|| {
            self.due = Some(next);
            next
        })
    }

    /// How the operation has ended that is waited for, once.
    pub(crate) fn end(&mut self) -> Option<(Status, u64)> {
        let done = self.node.queue.poll(self.ticket?)?;
        self.ticket = None;
        Some((done.status, done.detail))
    }

    /// Does what was given to it, and what follows from that before its time to stop. With
    /// `to_end` it stops when the operation has ended that is waited for.
    pub(crate) fn go_ahead(&mut self, to_end: bool) {
        while let Some((at, what)) = self.next() {
            let begun = self.begin(at, what);
            if self.goes_on(at, begun) && to_end {
                return;
            }
        }
    }

    /// Steps the NIC ahead after what was posted on it.
    pub(crate) fn posted(&mut self, at: u64) {
        let begun = Begun {
            steps: true,
            ..Begun::default()
        };
        self.goes_on(at, begun);
    }

    /// Goes on with an event ahead. Returns whether that ends the operation that is waited for.
    fn goes_on(&mut self, at: u64, begun: Begun) -> bool {
        let mut handled = Handled {
            sent: Vec::new(),
            due: None,
            end: None,
            begun,
        };
        if let Some(later) = handled.begun.later {
            let (at, place) = later;
            self.makes(at, Happens::Received(place));
        }
        if handled.begun.steps {
            handled.sent = self.run(at).1;
            handled.due = self.timer(at);
            handled.end = self.end();
        }
        if let Some(due) = handled.due {
            self.makes(due, Happens::Due);
        }
        let has_ended = handled.end.is_some();
        self.done.push_back(handled);
        has_ended
    }

    fn makes(&mut self, at: u64, what: Happens) {
        if self.until.is_some_and(|until| at < until) {
            self.made.push((at, what));
        }
    }

    /// What happens next: of one time what was given, as it was made before.
    fn next(&mut self) -> Option<(u64, Happens)> {
        let made = self.made.iter().enumerate().min_by_key(|(_, m)| m.0);
        let made = made.map(|(place, m)| (m.0, place));
        match (self.given.front(), made) {
            (Some(given), Some((at, _))) if given.at <= at => {}
            (_, Some((_, place))) => return Some(self.made.remove(place)),
            (_, None) => {}
        }
        self.given.pop_front().map(|g| (g.at, g.what))
    }

    /// Whether there is something left to do ahead.
    pub(crate) fn has_more(&self) -> bool {
        !self.given.is_empty() || !self.made.is_empty()
    }

    /// Ends a window. Returns what the lane was given and has not done; what it made is known.
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = Given> + '_ {
        self.until = None;
        self.made.clear();
        self.given.drain(..)
    }
}

/// Those of all ranks, for several threads.
pub(crate) struct Lanes(Vec<Mutex<Lane>>);

impl Lanes {
    pub(crate) fn new(lanes: impl Iterator<Item = Lane>) -> Lanes {
        Lanes(lanes.map(Mutex::new).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn lock(&self, rank: usize) -> MutexGuard<'_, Lane> {
        self.0[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self, rank: usize) -> &mut Lane {
        let lane = self.0[rank].get_mut();
        lane.unwrap_or_else(PoisonError::into_inner)
    }
}
