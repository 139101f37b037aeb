//! The neighbour table: which hardware address an IPv4 address has at a port (RFC 826), for all
//! connections.
//!
//! An address is asked for at most [`TRIES`] times, soon at first, since a request or its answer
//! may be lost; after a second its connections fail with `HostUnreachable`. An answer is accepted
//! after a request, or for an address in the table already (a host that moved announces its new MAC
//! address); unsolicited ones add no entry. An entry is asked for again when nothing has confirmed
//! it for long, and at once when packets over it are repeated without an answer.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::packet::{Link, Waiter};
use crate::types::NicTime;
use ringbell_net::port::MacAddr;
use ringbell_net::wire::control::Arp;

/// How often an address is asked for.
pub(super) const TRIES: u32 = 6;
/// Time between the first two requests: 1 ms. Four times as long after each other one.
const RETRY_NS: u64 = 1_000_000;
/// Longest time behind a request: 660 ms.
const RETRY_MAX_NS: u64 = 660_000_000;
/// When a request is tried again that found no room at its port: 20 us.
const FULL_NS: u64 = 20_000;
/// An entry that nothing has confirmed for this long is asked for again while it is used: 30 s.
const STALE_NS: u64 = 30_000_000_000;
/// Least time between two such requests: 1 s.
const REPROBE_NS: u64 = 1_000_000_000;
/// Most entries.
const ENTRIES_MAX: usize = 4096;

/// An IPv4 address behind a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) port: usize,
    pub(super) ip: Ipv4Addr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking { tries: u32, next: NicTime },
    Known(MacAddr),
}

#[derive(Debug)]
struct Entry {
    at: Place,
    state: State,
    /// The address is a setting: ARP neither finds nor changes it.
    fixed: bool,
    users: u32,
    confirmed: NicTime,
    probed: NicTime,
    /// Connections that wait for the answer.
    waiting: Vec<Waiter>,
}

/// The outcome for an address that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// The hop has its hardware address.
    Known,
    /// No host answers.
    Failed,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Neighbors {
    entries: Vec<Entry>,
    by_place: BTreeMap<Place, usize>,
    /// How many connections wait for an answer, so that an idle table costs nothing.
    waiting: usize,
}

impl Neighbors {
    /// The entry of an address, made if there is none, and one more user of it. `None` when the
    /// table is full of entries in use. A `hint` is the source of a frame from that address.
    pub(super) fn acquire(
        &mut self,
        at: Place,
        hint: Option<MacAddr>,
        now: NicTime,
        resolved: &mut Vec<(Waiter, Resolved)>,
    ) -> Option<usize> {
        let entry = match self.by_place.get(&at) {
            Some(&e) => e,
            None => self.make(at, now)?,
        };
        if let (State::Asking { .. }, Some(mac)) = (self.entries[entry].state, hint) {
            self.learn(entry, mac, now, resolved);
        }
        self.entries[entry].users += 1;
        Some(entry)
    }

    /// Gives an entry its hardware address for good.
    pub(super) fn fix(
        &mut self,
        entry: usize,
        mac: MacAddr,
        now: NicTime,
        resolved: &mut Vec<(Waiter, Resolved)>,
    ) {
        self.learn(entry, mac, now, resolved);
        self.entries[entry].fixed = true;
    }

    fn make(&mut self, at: Place, now: NicTime) -> Option<usize> {
        let fresh = Entry {
            at,
            fixed: false,
            state: State::Asking {
                tries: 0,
                next: now,
            },
            users: 0,
            confirmed: now,
            probed: now,
            waiting: Vec::new(),
        };
        let entry = if self.entries.len() < ENTRIES_MAX {
            self.entries.push(fresh);
            self.entries.len() - 1
        } else {
            let unused = self.entries.iter().position(|e| e.users == 0)?;
            self.by_place.remove(&self.entries[unused].at);
            self.entries[unused] = fresh;
            unused
        };
        self.by_place.insert(at, entry);
        Some(entry)
    }

    /// One user less; `who` no longer waits.
    pub(super) fn release(&mut self, entry: usize, who: Waiter) {
        let e = &mut self.entries[entry];
        let before = e.waiting.len();
        e.waiting.retain(|&w| w != who);
        self.waiting -= before - e.waiting.len();
        e.users = e.users.saturating_sub(1);
    }

    /// Where frames for it go, once that is known.
    pub(super) fn link(&self, entry: usize) -> Option<Link> {
        let e = &self.entries[entry];
        match e.state {
            State::Known(mac) => Some(Link {
                port: e.at.port,
                mac,
            }),
            State::Asking { .. } => None,
        }
    }

    /// The hardware address of an address, where it is known.
    pub(super) fn mac(&self, at: Place) -> Option<MacAddr> {
        let entry = self.by_place.get(&at)?;
        self.link(*entry).map(|link| link.mac)
    }

    /// Whether connections use the entry of an address.
    pub(super) fn is_used(&self, at: Place) -> bool {
        let entry = self.by_place.get(&at);
        entry.is_some_and(|e| self.entries[*e].users > 0)
    }

    pub(super) fn place(&self, entry: usize) -> Place {
        self.entries[entry].at
    }

    /// Reports `who` as resolved, by [`Neighbors::heard`] or the step after its last try, when the
    /// answer is there or will not come.
    pub(super) fn wait(&mut self, entry: usize, who: Waiter, now: NicTime) {
        let e = &mut self.entries[entry];
        if let State::Asking { tries, next } = &mut e.state {
            if *tries >= TRIES && *next <= now {
                // Given up earlier: a new connection asks again.
                (*tries, *next) = (0, now);
            }
        }
        e.waiting.push(who);
        self.waiting += 1;
    }

    /// A valid segment came from there: the entry is alive.
    pub(super) fn confirm(&mut self, entry: usize, now: NicTime) {
        self.entries[entry].confirmed = now;
    }

    fn learn(
        &mut self,
        entry: usize,
        mac: MacAddr,
        now: NicTime,
        resolved: &mut Vec<(Waiter, Resolved)>,
    ) {
        let e = &mut self.entries[entry];
        e.state = State::Known(mac);
        e.confirmed = now;
        self.waiting -= e.waiting.len();
        resolved.extend(e.waiting.drain(..).map(|c| (c, Resolved::Known)));
    }

    /// Takes an ARP packet of a port; moves the connections that waited for it into `resolved`.
    pub(super) fn heard(
        &mut self,
        port: usize,
        arp: &Arp,
        now: NicTime,
        resolved: &mut Vec<(Waiter, Resolved)>,
    ) {
        let at = Place {
            port,
            ip: arp.sender_ip,
        };
        let Some(&entry) = self.by_place.get(&at) else {
            return;
        };
        if self.entries[entry].fixed {
            return;
        }
        self.learn(entry, arp.sender_mac, now, resolved);
    }

    /// The address to ask for now because a used entry went stale.
    pub(super) fn stale(&mut self, entry: usize, now: NicTime) -> Option<Place> {
        let fresh = now.0.saturating_sub(self.entries[entry].confirmed.0) < STALE_NS;
        if fresh {
            return None;
        }
        self.probe(entry, now)
    }

    /// The address to ask for now because a frame came from another hardware address than the table
    /// holds: the host moved, or the frame was forged.
    pub(super) fn doubt(&mut self, entry: usize, seen: MacAddr, now: NicTime) -> Option<Place> {
        match self.link(entry) {
            Some(known) if known.mac != seen => self.probe(entry, now),
            _ => None,
        }
    }

    /// The address to ask for now because packets there were not answered: its host may have been
    /// replaced, or the answer of ARP damaged. What comes from the peer proves nothing of our way
    /// to it, so that the entry can be confirmed all the time.
    pub(super) fn unanswered(&mut self, entry: usize, now: NicTime) -> Option<Place> {
        self.probe(entry, now)
    }

    fn probe(&mut self, entry: usize, now: NicTime) -> Option<Place> {
        let e = &mut self.entries[entry];
        if e.fixed || now.0.saturating_sub(e.probed.0) < REPROBE_NS {
            return None;
        }
        e.probed = now;
        Some(e.at)
    }

    /// Whether anything waits for an answer: a step has work only then.
    #[inline]
    pub(super) fn is_asking(&self) -> bool {
        self.waiting > 0
    }

    /// Asks for what is due through `ask`, and gives up what was asked for too often.
    pub(super) fn step(
        &mut self,
        now: NicTime,
        resolved: &mut Vec<(Waiter, Resolved)>,
        mut ask: impl FnMut(Place),
    ) {
        for e in &mut self.entries {
            let State::Asking { tries, next } = &mut e.state else {
                continue;
            };
            if e.waiting.is_empty() || now < *next {
                continue;
            }
            if *tries < TRIES {
                ask(e.at);
                let wait = (RETRY_NS << (2 * *tries)).min(RETRY_MAX_NS);
                *tries += 1;
                *next = NicTime(now.0 + wait);
            } else {
                self.waiting -= e.waiting.len();
                resolved.extend(e.waiting.drain(..).map(|c| (c, Resolved::Failed)));
            }
        }
    }

    /// The request for an address found no room at its port: it is sent soon, and not counted.
    pub(super) fn not_sent(&mut self, at: Place, now: NicTime) {
        let entry = self.by_place.get(&at);
        let state = entry.map(|e| &mut self.entries[*e].state);
        if let Some(State::Asking { tries, next }) = state {
            *tries = tries.saturating_sub(1);
            *next = NicTime(now.0 + FULL_NS);
        }
    }

    pub(super) fn next_timer(&self) -> Option<NicTime> {
        if self.waiting == 0 {
            return None;
        }
        let due = |e: &Entry| match e.state {
            State::Asking { next, .. } if !e.waiting.is_empty() => Some(next),
            _ => None,
        };
        self.entries.iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Protocol;

    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const AT: Place = Place { port: 0, ip: IP };

    fn waiter(index: usize) -> Waiter {
        let protocol = Protocol::Tcp;
        Waiter { protocol, index }
    }

    fn answer(mac: MacAddr) -> Arp {
        Arp {
            request: false,
            sender_mac: mac,
            sender_ip: IP,
            target_mac: MacAddr::local(1),
            target_ip: Ipv4Addr::new(10, 0, 0, 1),
        }
    }

    #[test]
    fn a_lookup_fails_after_a_few_requests_and_the_next_starts_anew() {
        let mut n = Neighbors::default();
        let mut resolved = Vec::new();
        let e = n.acquire(AT, None, NicTime(0), &mut Vec::new()).unwrap(); // an empty table has room
        for round in 0..2 {
            n.wait(
                e,
                waiter(7),
                n.next_timer().unwrap_or(NicTime(round * 10_000_000_000)),
            );
            let mut asked = 0;
            while let Some(t) = n.next_timer() {
                n.step(t, &mut resolved, |at| {
                    assert_eq!(at, AT);
                    asked += 1;
                });
            }
            assert_eq!(
                (asked, resolved.pop()),
                (TRIES, Some((waiter(7), Resolved::Failed)))
            );
        }
        n.wait(e, waiter(8), NicTime(u64::MAX / 2));
        // A full port costs no try.
        for full in 0..100 {
            let t = n.next_timer().unwrap(); // it asks
            assert!(t.0 <= u64::MAX / 2 + full * FULL_NS);
            n.step(t, &mut resolved, |_| ());
            n.not_sent(AT, t);
        }
        assert!(resolved.is_empty());
        n.heard(0, &answer(MacAddr::local(2)), NicTime(0), &mut resolved);
        assert_eq!(resolved.pop(), Some((waiter(8), Resolved::Known)));
        assert_eq!((n.link(e), n.next_timer()), (link(0, 2), None));
        n.heard(0, &answer(MacAddr::local(3)), NicTime(0), &mut resolved);
        assert_eq!(n.link(e), link(0, 3));
    }

    fn link(port: usize, mac: u32) -> Option<Link> {
        let mac = MacAddr::local(mac);
        Some(Link { port, mac })
    }

    #[test]
    fn each_port_has_neighbours_of_its_own_and_arp_changes_no_setting() {
        let mut n = Neighbors::default();
        let far = Place { port: 1, ip: IP };
        let now = NicTime(0);
        let (a, b) = (
            n.acquire(AT, None, now, &mut Vec::new()),
            n.acquire(far, None, now, &mut Vec::new()),
        );
        let (a, b) = (a.unwrap(), b.unwrap()); // an empty table has room
        n.heard(1, &answer(MacAddr::local(2)), now, &mut Vec::new());
        assert_eq!((n.link(a), n.link(b)), (None, link(1, 2)));
        n.fix(a, MacAddr::local(7), now, &mut Vec::new());
        let late = NicTime(STALE_NS * 2);
        n.heard(0, &answer(MacAddr::local(2)), late, &mut Vec::new());
        assert_eq!(n.link(a), link(0, 7));
        assert_eq!((n.stale(a, late), n.stale(b, late)), (None, Some(far)));
    }

    #[test]
    fn packets_without_an_answer_ask_again_once_a_second() {
        let mut n = Neighbors::default();
        let e = n.acquire(AT, None, NicTime(0), &mut Vec::new()).unwrap(); // an empty table has room
        n.heard(0, &answer(MacAddr::local(3)), NicTime(1), &mut Vec::new());
        let asked = (0..4_000).filter(|ms| {
            let now = NicTime(ms * 1_000_000);
            // The peer is heard all the time.
            n.confirm(e, now);
            n.stale(e, now).is_some() || n.unanswered(e, now).is_some()
        });
        assert_eq!(asked.collect::<Vec<_>>(), [1_000, 2_000, 3_000]);
        n.fix(e, MacAddr::local(7), NicTime(0), &mut Vec::new());
        assert_eq!(n.unanswered(e, NicTime(u64::MAX)), None);
    }

    #[test]
    fn unsolicited_answers_do_not_fill_the_table() {
        let mut n = Neighbors::default();
        n.heard(0, &answer(MacAddr::local(2)), NicTime(0), &mut Vec::new());
        assert!(n.entries.is_empty());
        for i in 0..ENTRIES_MAX as u32 {
            let ip = Ipv4Addr::from(i);
            assert!(n
                .acquire(Place { port: 0, ip }, None, NicTime(0), &mut Vec::new())
                .is_some());
        }
        assert_eq!(n.acquire(AT, None, NicTime(0), &mut Vec::new()), None);
        n.release(5, waiter(0));
        assert_eq!(n.acquire(AT, None, NicTime(0), &mut Vec::new()), Some(5));
    }
}
