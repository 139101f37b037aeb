//! The neighbour table: which hardware address an IPv4 address has (RFC 826), for all connections.
//!
//! An address is asked for at most [`TRIES`] times, [`RETRY_NS`] apart; then its connections fail with
//! `HostUnreachable`. An answer is accepted after a request, or for an address in the table already (a
//! host that moved announces its new MAC address); unsolicited ones add no entry.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::port::MacAddr;
use crate::types::NicTime;
use crate::wire::control::Arp;

/// How often an address is asked for.
pub(super) const TRIES: u32 = 4;
/// Time between two requests: 250 ms.
pub(super) const RETRY_NS: u64 = 250_000_000;
/// An entry that nothing has confirmed for this long is asked for again while it is used: 30 s.
const STALE_NS: u64 = 30_000_000_000;
/// Least time between two such requests: 1 s.
const REPROBE_NS: u64 = 1_000_000_000;
/// Most entries.
const ENTRIES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking { tries: u32, next: NicTime },
    Known(MacAddr),
}

#[derive(Debug)]
struct Entry {
    ip: Ipv4Addr,
    state: State,
    users: u32,
    confirmed: NicTime,
    probed: NicTime,
    /// Connections that wait for the answer.
    waiting: Vec<usize>,
}

/// The outcome for an address that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    Known,
    Failed,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Neighbors {
    entries: Vec<Entry>,
    by_ip: HashMap<Ipv4Addr, usize>,
    /// How many connections wait for an answer, so that an idle table costs nothing.
    waiting: usize,
}

impl Neighbors {
    /// The entry of an address, made if there is none, and one more user of it. `None` when the
    /// table is full of entries in use. A `hint` is the source of a frame from that address.
    pub(super) fn acquire(
        &mut self,
        ip: Ipv4Addr,
        hint: Option<MacAddr>,
        now: NicTime,
    ) -> Option<usize> {
        let entry = match self.by_ip.get(&ip) {
            Some(&e) => e,
            None => self.make(ip, now)?,
        };
        if let (State::Asking { .. }, Some(mac)) = (self.entries[entry].state, hint) {
            self.learn(entry, mac, now);
        }
        self.entries[entry].users += 1;
        Some(entry)
    }

    fn make(&mut self, ip: Ipv4Addr, now: NicTime) -> Option<usize> {
        let fresh = Entry {
            ip,
            state: State::Asking {
                tries: 0,
                next: now,
            },
            users: 0,
            confirmed: now,
            probed: now,
            waiting: Vec::new(),
        };
        let at = if self.entries.len() < ENTRIES_MAX {
            self.entries.push(fresh);
            self.entries.len() - 1
        } else {
            let at = self.entries.iter().position(|e| e.users == 0)?;
            self.by_ip.remove(&self.entries[at].ip);
            self.entries[at] = fresh;
            at
        };
        self.by_ip.insert(ip, at);
        Some(at)
    }

    /// One user less; `conn` no longer waits.
    pub(super) fn release(&mut self, entry: usize, conn: usize) {
        let e = &mut self.entries[entry];
        let before = e.waiting.len();
        e.waiting.retain(|&c| c != conn);
        self.waiting -= before - e.waiting.len();
        e.users = e.users.saturating_sub(1);
    }

    pub(super) fn mac(&self, entry: usize) -> Option<MacAddr> {
        match self.entries[entry].state {
            State::Known(mac) => Some(mac),
            State::Asking { .. } => None,
        }
    }

    /// Reports `conn` as resolved, by [`Neighbors::heard`] or the step after its last try, when the answer is there
    /// or will not come.
    pub(super) fn wait(&mut self, entry: usize, conn: usize, now: NicTime) {
        let e = &mut self.entries[entry];
        if let State::Asking { tries, next } = &mut e.state {
            if *tries >= TRIES && *next <= now {
                // Given up earlier: a new connection asks again.
                (*tries, *next) = (0, now);
            }
        }
        e.waiting.push(conn);
        self.waiting += 1;
    }

    /// A valid segment came from there: the entry is alive.
    pub(super) fn confirm(&mut self, entry: usize, now: NicTime) {
        self.entries[entry].confirmed = now;
    }

    fn learn(&mut self, entry: usize, mac: MacAddr, now: NicTime) {
        let e = &mut self.entries[entry];
        e.state = State::Known(mac);
        e.confirmed = now;
    }

    /// Takes an ARP packet; moves the connections that waited for it into `resolved`.
    pub(super) fn heard(&mut self, arp: &Arp, now: NicTime, resolved: &mut Vec<(usize, Resolved)>) {
        let Some(&entry) = self.by_ip.get(&arp.sender_ip) else {
            return;
        };
        self.learn(entry, arp.sender_mac, now);
        let waiting = self.entries[entry].waiting.drain(..);
        self.waiting -= waiting.len();
        resolved.extend(waiting.map(|c| (c, Resolved::Known)));
    }

    /// The address to ask for now because a used entry went stale.
    pub(super) fn stale(&mut self, entry: usize, now: NicTime) -> Option<Ipv4Addr> {
        let fresh = now.0.saturating_sub(self.entries[entry].confirmed.0) < STALE_NS;
        if fresh {
            return None;
        }
        self.probe(entry, now)
    }

    /// The address to ask for now because a frame came from another hardware address than the table holds:
    /// the host moved, or the frame was forged.
    pub(super) fn doubt(&mut self, entry: usize, seen: MacAddr, now: NicTime) -> Option<Ipv4Addr> {
        match self.mac(entry) {
            Some(known) if known != seen => self.probe(entry, now),
            _ => None,
        }
    }

    fn probe(&mut self, entry: usize, now: NicTime) -> Option<Ipv4Addr> {
        let e = &mut self.entries[entry];
        if now.0.saturating_sub(e.probed.0) < REPROBE_NS {
            return None;
        }
        e.probed = now;
        Some(e.ip)
    }

    /// Asks for what is due through `ask`, and gives up what was asked for too often.
    pub(super) fn step(
        &mut self,
        now: NicTime,
        resolved: &mut Vec<(usize, Resolved)>,
        mut ask: impl FnMut(Ipv4Addr),
    ) {
        if self.waiting == 0 {
            return;
        }
        for e in &mut self.entries {
            let State::Asking { tries, next } = &mut e.state else {
                continue;
            };
            if e.waiting.is_empty() || now < *next {
                continue;
            }
            if *tries < TRIES {
                ask(e.ip);
                *tries += 1;
                *next = NicTime(now.0 + RETRY_NS);
            } else {
                self.waiting -= e.waiting.len();
                resolved.extend(e.waiting.drain(..).map(|c| (c, Resolved::Failed)));
            }
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

    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

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
    fn asks_a_few_times_then_fails_and_asks_anew_for_the_next() {
        let mut n = Neighbors::default();
        let mut resolved = Vec::new();
        let e = n.acquire(IP, None, NicTime(0)).unwrap(); // an empty table has room
        for round in 0..2 {
            n.wait(
                e,
                7,
                n.next_timer().unwrap_or(NicTime(round * 10_000_000_000)),
            );
            let mut asked = 0;
            while let Some(t) = n.next_timer() {
                n.step(t, &mut resolved, |ip| {
                    assert_eq!(ip, IP);
                    asked += 1;
                });
            }
            assert_eq!(
                (asked, resolved.pop()),
                (TRIES, Some((7, Resolved::Failed)))
            );
        }
        n.wait(e, 8, NicTime(u64::MAX / 2));
        n.heard(&answer(MacAddr::local(2)), NicTime(0), &mut resolved);
        assert_eq!(resolved.pop(), Some((8, Resolved::Known)));
        assert_eq!((n.mac(e), n.next_timer()), (Some(MacAddr::local(2)), None));
        n.heard(&answer(MacAddr::local(3)), NicTime(0), &mut resolved);
        assert_eq!(n.mac(e), Some(MacAddr::local(3)));
    }

    #[test]
    fn unsolicited_answers_do_not_fill_the_table() {
        let mut n = Neighbors::default();
        n.heard(&answer(MacAddr::local(2)), NicTime(0), &mut Vec::new());
        assert!(n.entries.is_empty());
        for i in 0..ENTRIES_MAX as u32 {
            assert!(n.acquire(Ipv4Addr::from(i), None, NicTime(0)).is_some());
        }
        assert_eq!(n.acquire(IP, None, NicTime(0)), None);
        n.release(5, 0);
        assert_eq!(n.acquire(IP, None, NicTime(0)), Some(5));
    }
}
