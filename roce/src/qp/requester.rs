//! The requester of a queue pair: posted requests, their packets, and what their acknowledgements
//! say (IBTA vol. 1 §9.7.5.2, §9.9.2).

use std::collections::VecDeque;
use std::time::Duration;

use ringbell_nic_abi::{NakCode, RoceOpcode};

use super::attributes::{packets_of, QpCounters, RtsAttributes, Transmit};
use super::client::{Client, Remote, Request, Unavailable, Work, WorkStatus};
use super::flights::Flights;
use super::out::Out;
use super::pace::Pace;
use super::responder::RESUME;
use ringbell_net::wire::roce::aeth::RnrTimer;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{AtomicEth, Bth, Extended, Packet, Psn, Qpn, Reth, Syndrome};
use ringbell_net::NicTime;

/// Packets posted and not acknowledged, at most: a quarter of the numbers, so that old and new ones
/// never meet.
const POSTED_MAX: u32 = 1 << 22;

/// A request with the numbers of its packets; those of a READ are those of its answer (§9.7.3.1.1).
#[derive(Debug, Clone, Copy)]
struct Posted {
    work: Work,
    first: Psn,
    packets: u32,
    /// Packets of its answer that have arrived.
    answered: u32,
}

impl Posted {
    /// The number behind its last packet.
    fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Whether it ends with an answer of its own, not with an acknowledgement.
    fn fetches(&self) -> bool {
        matches!(
            self.work.request,
            Request::Read(_) | Request::FetchAdd(..) | Request::CompareSwap(..)
        )
    }

    /// How many packets of an answer are asked for from packet `k` on, in parts of `part` packets.
    fn asked(&self, k: u32, part: u32) -> u32 {
        (part - k % part).min(self.packets - k)
    }

    /// Headers of packet `k`, and how many numbers it stands for. READs ask for `part` packets at a
    /// time.
    fn head(&self, k: u32, mtu: u32, part: u32) -> (RoceOpcode, Extended, u32) {
        use RoceOpcode as Op;
        let (first, last) = (k == 0, k + 1 == self.packets);
        let reth = |at: Remote, skip: u32| Reth {
            address: at.address.wrapping_add(skip.into()),
            key: at.key,
            length: self.work.len - skip,
        };
        let atomic = |at: Remote, swap_or_add: u64, compare: u64| {
            Extended::Atomic(AtomicEth {
                address: at.address,
                key: at.key,
                swap_or_add,
                compare,
            })
        };
        match self.work.request {
            Request::Send(immediate) => match (first, last, immediate) {
                (true, true, None) => (Op::SendOnly, Extended::None, 1),
                (true, true, Some(n)) => (Op::SendOnlyImm, Extended::Immediate(n), 1),
                (true, false, _) => (Op::SendFirst, Extended::None, 1),
                (false, false, _) => (Op::SendMiddle, Extended::None, 1),
                (false, true, None) => (Op::SendLast, Extended::None, 1),
                (false, true, Some(n)) => (Op::SendLastImm, Extended::Immediate(n), 1),
            },
            Request::SendInvalidate(key) => match (first, last) {
                (true, true) => (Op::SendOnlyInvalidate, Extended::Invalidate(key), 1),
                (true, false) => (Op::SendFirst, Extended::None, 1),
                (false, false) => (Op::SendMiddle, Extended::None, 1),
                (false, true) => (Op::SendLastInvalidate, Extended::Invalidate(key), 1),
            },
            Request::Write(at, immediate) => match (first, last, immediate) {
                (true, true, None) => (Op::WriteOnly, Extended::Reth(reth(at, 0)), 1),
                (true, true, Some(n)) => {
                    (Op::WriteOnlyImm, Extended::RethImmediate(reth(at, 0), n), 1)
                }
                (true, false, _) => (Op::WriteFirst, Extended::Reth(reth(at, 0)), 1),
                (false, false, _) => (Op::WriteMiddle, Extended::None, 1),
                (false, true, None) => (Op::WriteLast, Extended::None, 1),
                (false, true, Some(n)) => (Op::WriteLastImm, Extended::Immediate(n), 1),
            },
            // A READ that is asked for again begins where its answer has stopped (§9.7.5.2.4).
            Request::Read(at) => {
                let numbers = self.asked(k, part);
                let rest = reth(at, k * mtu);
                let length = rest.length.min(numbers.saturating_mul(mtu));
                let asked = Extended::Reth(Reth { length, ..rest });
                (Op::ReadRequest, asked, numbers)
            }
            Request::FetchAdd(at, add) => (Op::FetchAdd, atomic(at, add, 0), 1),
            Request::CompareSwap(at, compare, swap) => {
                (Op::CompareSwap, atomic(at, swap, compare), 1)
            }
        }
    }

    /// Bytes of packet `k`.
    fn payload(&self, k: u32, mtu: u32) -> u32 {
        match self.fetches() {
            true => 0,
            false => (self.work.len - k * mtu).min(mtu),
        }
    }
}

#[derive(Debug)]
pub(super) struct Requester {
    works: VecDeque<Posted>,
    /// Index of the request of the next new packet.
    cursor: usize,
    flights: Flights,
    /// Behind the last number of all requests.
    end: Psn,
    /// Parts of READs, and atomic operations, that were sent and not answered.
    fetching: usize,
    /// Packets of an answer to ask for at once: no peer sends more than we have room for.
    part: u32,
    /// Packets since the last that asks for an acknowledgement.
    unasked: u32,
    /// The answer that went missing was asked for again: more of the same packets say nothing new.
    rewound: bool,
    /// How long the peer wants to be left alone, or the rate does not allow a packet.
    wait_until: Option<NicTime>,
    timer: Option<NicTime>,
    /// Since when nothing was acknowledged.
    silent_since: NicTime,
    tries: Tries,
    pace: Pace,
    /// The peer keeps packets that come early, and reports them.
    selective: bool,
    /// A refusal ends one request ([`QueuePair::resuming`](super::QueuePair::resuming)).
    resumes: bool,
    failed: bool,
}

/// Tries without progress, and their limits.
#[derive(Debug)]
struct Tries {
    depth: usize,
    retries: u32,
    rnr_retries: Option<u32>,
    give_up: Duration,
    lost: u32,
    not_ready: u32,
}

impl Requester {
    /// Bytes of memory for more requests than there are.
    pub(super) fn spare(&self) -> usize {
        let works = self.works.capacity() - self.works.len();
        works * size_of::<Posted>() + self.flights.spare()
    }

    /// Gives them back.
    pub(super) fn shrink(&mut self) {
        self.works.shrink_to_fit();
        self.flights.shrink();
    }

    pub(super) fn new(a: &RtsAttributes, resumes: bool) -> Requester {
        Requester {
            works: VecDeque::new(),
            cursor: 0,
            flights: Flights::new(a.first),
            end: a.first,
            fetching: 0,
            part: (a.pace.window / 2).max(1),
            unasked: 0,
            rewound: false,
            wait_until: None,
            timer: None,
            silent_since: NicTime(0),
            tries: Tries {
                depth: a.depth,
                retries: a.retries,
                rnr_retries: a.rnr_retries,
                give_up: a.give_up,
                lost: 0,
                not_ready: 0,
            },
            pace: Pace::new(&a.pace),
            selective: a.selective,
            resumes,
            failed: false,
        }
    }

    pub(super) fn expect_overtaken(&mut self) {
        self.flights.expect_overtaken();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// Whether it sends nothing before a request is posted.
    pub(super) fn is_at_rest(&self) -> bool {
        self.works.is_empty() && self.next_timer().is_none()
    }

    pub(super) fn is_repeating(&self) -> bool {
        self.tries.lost > 0
    }

    pub(super) fn post(&mut self, work: Work, mtu: u32) -> bool {
        let packets = packets_of(work.len, mtu);
        let posted = self.end.distance(self.flights.first()).unsigned_abs();
        if packets > POSTED_MAX - posted.min(POSTED_MAX) {
            return false;
        }
        self.works.push_back(Posted {
            work,
            first: self.end,
            packets,
            answered: 0,
        });
        self.end = self.end.plus(packets);
        true
    }

    pub(super) fn room(&self) -> u32 {
        let posted = self.end.distance(self.flights.first()).unsigned_abs();
        self.pace.window().saturating_sub(posted)
    }

    /// Requests that were not begun.
    pub(super) fn waiting(&self) -> usize {
        self.works.len() - self.cursor
    }

    /// Whether there is a request that was not begun, of so many bytes at most.
    pub(super) fn next_is_at_most(&self, bytes: u32) -> bool {
        let next = self.works.get(self.cursor);
        next.is_some_and(|p| p.work.len <= bytes)
    }

    pub(super) fn flush(&mut self, client: &mut dyn Client) {
        for p in self.works.drain(..) {
            client.done(p.work.id, WorkStatus::Flushed);
        }
        (self.cursor, self.timer, self.wait_until) = (0, None, None);
    }

    /// The first request has failed, and with it the queue pair.
    fn fail(&mut self, status: WorkStatus, client: &mut dyn Client) {
        if let Some(p) = self.works.pop_front() {
            client.done(p.work.id, status);
        }
        self.cursor = 0;
        self.failed = true;
    }

    /// The next packet: the oldest that was lost, or the first that was never sent.
    fn next(&mut self, begins: bool) -> Option<(Posted, Psn)> {
        let window = self.pace.window();
        if let Some(psn) = self.flights.lost() {
            let at = self.works.partition_point(|p| !psn.is_before(p.end()));
            // The oldest needs no room: what the peer has kept moves with it.
            let is_open = psn == self.flights.first() || self.flights.on_the_way() < window;
            return self.works.get(at).filter(|_| is_open).map(|p| (*p, psn));
        }
        let p = *self.works.get(self.cursor)?;
        let psn = self.flights.end();
        // A drained queue finishes the message that it has begun.
        let may_begin = begins || psn != p.first;
        // Of a READ the packets of its answer are in flight.
        let (in_flight, k) = (self.flights.len(), psn.distance(p.first).unsigned_abs());
        let has_room = match p.fetches() {
            true => in_flight == 0 || in_flight + p.asked(k, self.part) <= window,
            false => in_flight < window,
        };
        let may_fetch = !p.fetches() || self.fetching < self.tries.depth;
        (has_room && may_begin && may_fetch).then_some((p, psn))
    }

    #[allow(clippy::too_many_arguments)] // The queue pair's fields, which are not this type's.
    pub(super) fn transmit(
        &mut self,
        now: NicTime,
        peer: Qpn,
        mtu: u32,
        begins: bool,
        out: &mut Out<'_>,
        client: &mut dyn Client,
    ) -> Transmit {
        if self.wait_until.is_some_and(|t| now < t) {
            return Transmit::Nothing;
        }
        self.wait_until = self.pace.wait(now);
        if self.wait_until.is_some() {
            return Transmit::Nothing;
        }
        let Some((p, psn)) = self.next(begins) else {
            return Transmit::Nothing;
        };
        let is_new = psn == self.flights.end();
        let k = psn.distance(p.first).unsigned_abs();
        let (opcode, extended, numbers) = p.head(k, mtu, self.part);
        let payload = p.payload(k, mtu) as usize;
        let (id, fetches) = (p.work.id, p.fetches());
        let after = psn.plus(numbers);
        let more = after != self.end
            && after.distance(self.flights.first()).unsigned_abs() < self.pace.window();
        let mut head = Head {
            bth: Bth::new(opcode, peer, psn),
            extended,
        };
        // What the peer says to a repeated packet tells which are missing still.
        let asks = !more || (self.selective && !is_new);
        head.bth.acknowledge = asks || self.unasked >= self.pace.window() / 4;
        let len = match out.request(&head, payload, (id, k * mtu), client) {
            Ok(len) => len,
            Err(Unavailable::Pending) => return Transmit::Pending,
            Err(Unavailable::Fault) => {
                // Requests before it have not ended; they are flushed.
                let index = self.works.partition_point(|w| w.first.is_before(p.first));
                self.works.rotate_left(index);
                self.fail(WorkStatus::LocalProtection, client);
                return Transmit::Nothing;
            }
        };
        self.unasked = match head.bth.acknowledge {
            true => 0,
            false => self.unasked + 1,
        };
        if is_new {
            self.fetching += usize::from(fetches);
            if head.bth.acknowledge {
                self.pace.sent(psn, now);
            }
            self.cursor += usize::from(after == p.end());
        }
        self.flights.leaves(psn, numbers, now);
        // One probe for each silence.
        if self.selective && self.tries.lost == 0 && !self.flights.is_probe(psn) {
            self.pace.expect_answer(now);
        }
        self.pace.leaves(len, now);
        if self.timer.is_none() {
            if self.tries.lost == 0 {
                self.silent_since = now;
            }
            self.timer = Some(now.plus(self.pace.timeout()));
        }
        Transmit::Packet(len)
    }

    /// Everything before `to` has arrived. Requests that are done end; one that still lacks its
    /// answer stays, and the answer is asked for again (§9.7.5.2.4).
    fn advance(
        &mut self,
        to: Psn,
        now: NicTime,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) {
        let before = self.flights.first();
        let mut reached = to;
        while let Some(p) = self.works.front() {
            if p.fetches() && p.first.plus(p.answered).is_before(to) && p.answered < p.packets {
                reached = p.first.plus(p.answered);
                break;
            }
            if to.is_before(p.end()) {
                break;
            }
            let id = p.work.id;
            self.works.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
            client.done(id, WorkStatus::Success(None));
        }
        if before.is_before(reached) {
            self.progress(reached, now);
        }
        if reached != to && !self.rewound {
            self.rewound = true;
            self.repeat(counters);
        }
    }

    /// Sends again from the oldest packet that is not acknowledged, or that one alone.
    fn repeat(&mut self, counters: &mut QpCounters) {
        self.flights.lose_first();
        if !self.selective {
            counters.repeated += self.flights.lose_all();
        }
        counters.repeated += 1;
    }

    /// The oldest number that is not acknowledged moves on.
    fn progress(&mut self, to: Psn, now: NicTime) {
        let packets = to.distance(self.flights.first()).unsigned_abs();
        self.flights.advance(to, now, self.pace.round_trip());
        self.pace.acknowledged(packets, to, now);
        (self.tries.lost, self.tries.not_ready, self.rewound) = (0, 0, false);
        self.silent_since = now;
        self.timer = (self.flights.len() > 0).then(|| now.plus(self.pace.timeout()));
        match self.timer {
            Some(_) if self.selective => self.pace.expect_answer(now),
            _ => self.pace.expect_none(),
        }
    }

    /// Takes an answer. Returns whether it says anything about a request in flight.
    pub(super) fn receive(
        &mut self,
        now: NicTime,
        packet: &Packet<'_>,
        mtu: u32,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) -> bool {
        let psn = packet.bth.psn;
        // Ghosts of older packets, and numbers that were never sent (§9.7.5.1.3).
        if psn.is_before(self.flights.first()) || !psn.is_before(self.flights.end()) {
            counters.ignored += 1;
            return false;
        }
        match (packet.bth.opcode, packet.extended) {
            (RoceOpcode::Acknowledge, Extended::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.advance(psn.plus(1), now, client, counters),
                Syndrome::ReceiverNotReady(timer) => {
                    self.advance(psn, now, client, counters);
                    self.not_ready(timer, now, client, counters);
                }
                Syndrome::Nak(code) => {
                    self.advance(psn, now, client, counters);
                    match code {
                        NakCode::Sequence if self.selective => {
                            self.reported(psn, packet.payload, now, counters);
                        }
                        NakCode::Sequence => self.gap(now, client, counters),
                        code if self.resumes => self.refused(psn, code, now, client),
                        code => self.fail(WorkStatus::Refused(code), client),
                    }
                }
            },
            (RoceOpcode::AtomicAcknowledge, Extended::AtomicAck(_, old)) => {
                self.answer(psn, Answered::Word(old), now, mtu, client, counters);
            }
            _ => self.answer(
                psn,
                Answered::Bytes(packet.payload),
                now,
                mtu,
                client,
                counters,
            ),
        }
        true
    }

    /// An answer to a READ or an atomic operation. It acknowledges everything before its request.
    fn answer(
        &mut self,
        psn: Psn,
        what: Answered<'_>,
        now: NicTime,
        mtu: u32,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) {
        let Some(at) = self.works.iter().position(|p| psn.is_before(p.end())) else {
            return;
        };
        let p = self.works[at];
        self.advance(p.first.plus(p.answered), now, client, counters);
        // Unless an earlier request lacks its answer, this one is the first now.
        let Some(p) = self.works.front_mut().filter(|f| f.first == p.first) else {
            return;
        };
        let k = psn.distance(p.first).unsigned_abs();
        if !p.fetches() || k < p.answered {
            counters.ignored += 1;
            return;
        }
        if k > p.answered {
            // A packet of the answer is missing.
            if !self.rewound {
                self.rewound = true;
                self.repeat(counters);
                self.pace.lost(1);
            }
            return;
        }
        let id = p.work.id;
        let status = match (what, p.work.request) {
            (Answered::Bytes(bytes), Request::Read(_)) => {
                let due = (p.work.len - k * mtu).min(mtu);
                if bytes.len() != due as usize {
                    Err(WorkStatus::BadResponse)
                } else {
                    match client.scatter(id, k * mtu, bytes) {
                        Ok(()) => Ok(None),
                        Err(_) => Err(WorkStatus::LocalProtection),
                    }
                }
            }
            (Answered::Word(old), Request::FetchAdd(..) | Request::CompareSwap(..)) => {
                Ok(Some(old))
            }
            _ => Err(WorkStatus::BadResponse),
        };
        match status {
            Err(status) => self.fail(status, client),
            Ok(old) => {
                p.answered += 1;
                let is_whole = p.answered == p.packets;
                if is_whole || p.answered % self.part == 0 {
                    self.fetching = self.fetching.saturating_sub(1);
                }
                if is_whole {
                    self.works.pop_front();
                    self.cursor = self.cursor.saturating_sub(1);
                    client.done(id, WorkStatus::Success(old));
                }
                self.progress(psn.plus(1), now);
            }
        }
    }

    /// The peer has refused a request. Those behind it go on: at another number, which tells the
    /// peer that we know of it; or as before, when the peer had begun to answer it, and so has
    /// executed others since.
    fn refused(&mut self, psn: Psn, code: NakCode, now: NicTime, client: &mut dyn Client) {
        // While an earlier request lacks its answer, this one is refused again later.
        let is_first = |p: &Posted| !psn.is_before(p.first) && psn.is_before(p.end());
        let Some(p) = self.works.front().copied().filter(is_first) else {
            return;
        };
        self.works.pop_front();
        self.cursor = self.cursor.saturating_sub(1);
        client.done(p.work.id, WorkStatus::Refused(code));
        if code == NakCode::RemoteOperation {
            self.fetching = self.fetching.saturating_sub(1);
            return self.progress(p.end(), now);
        }
        // None of them was executed.
        self.works.retain(|p| {
            let is_void = client.is_void(p.work.id);
            if is_void {
                client.done(p.work.id, WorkStatus::Flushed);
            }
            !is_void
        });
        let first = psn.plus(RESUME);
        self.end = first;
        for p in &mut self.works {
            p.first = self.end;
            self.end = p.end();
        }
        self.flights = Flights::new(first);
        (self.cursor, self.fetching, self.unasked) = (0, 0, 0);
        (self.tries.lost, self.tries.not_ready, self.rewound) = (0, 0, false);
        (self.timer, self.wait_until) = (None, None);
    }

    /// The peer misses the oldest packet.
    fn gap(&mut self, now: NicTime, client: &mut dyn Client, counters: &mut QpCounters) {
        self.pace.lost(1);
        self.tries.lost += 1;
        if self.is_exhausted(now) {
            return self.fail(WorkStatus::RetryExceeded, client);
        }
        self.repeat(counters);
        self.timer = Some(now.plus(self.pace.timeout()));
    }

    /// The peer waits for packet `expected`, and has those behind it whose bits are set.
    fn reported(&mut self, expected: Psn, bits: &[u8], now: NicTime, counters: &mut QpCounters) {
        let measured = self.pace.round_trip();
        for (i, byte) in (0_u32..).zip(bits) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                let psn = expected.plus(1 + 8 * i + bit);
                self.flights.arrived(psn, now, measured);
            }
        }
        self.find_lost(1 + 8 * bits.len(), now, counters);
    }

    /// Finds what is lost of the first so many packets.
    fn find_lost(&mut self, n: usize, now: NicTime, counters: &mut QpCounters) {
        let lost = self.flights.find_lost(n, now, self.pace.round_trip());
        if lost > 0 {
            counters.repeated += lost;
            // No more than were in flight.
            self.pace.lost(lost as u32);
        }
    }

    /// Lets the last packet leave once more. A request for an answer would bring that twice.
    fn probe(&mut self, counters: &mut QpCounters) {
        self.pace.expect_none();
        let Some(psn) = self.flights.last() else {
            return;
        };
        let at = self.works.partition_point(|p| !psn.is_before(p.end()));
        if self.works.get(at).is_some_and(|p| !p.fetches()) {
            self.flights.probe(psn);
            self.pace.leaves_again();
            counters.repeated += 1;
        }
    }

    /// A switch has marked a packet of ours.
    pub(super) fn marked(&mut self, now: NicTime) {
        self.pace.marked(now);
    }

    /// The peer has no receive for the oldest message.
    fn not_ready(
        &mut self,
        timer: RnrTimer,
        now: NicTime,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) {
        counters.not_ready += 1;
        self.tries.not_ready += 1;
        if self
            .tries
            .rnr_retries
            .is_some_and(|max| self.tries.not_ready > max)
        {
            return self.fail(WorkStatus::ReceiverNotReady, client);
        }
        // The peer lives.
        (self.silent_since, self.tries.lost) = (now, 0);
        self.repeat(counters);
        self.wait_until = Some(now.plus(timer.time()));
        self.timer = None;
        self.pace.expect_none();
    }

    fn is_exhausted(&self, now: NicTime) -> bool {
        self.tries.lost > self.tries.retries && now >= self.silent_since.plus(self.tries.give_up)
    }

    pub(super) fn expire(
        &mut self,
        now: NicTime,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) {
        if self.flights.overtaken().is_some_and(|t| t <= now) {
            self.find_lost(usize::MAX, now, counters);
        }
        if self.pace.probe().is_some_and(|t| t <= now) {
            self.probe(counters);
        }
        if self.timer.is_none_or(|t| now < t) {
            return;
        }
        counters.timeouts += 1;
        self.tries.lost += 1;
        self.pace.timed_out(self.flights.on_the_way());
        if self.is_exhausted(now) {
            return self.fail(WorkStatus::RetryExceeded, client);
        }
        // Which of them have arrived is known from reports alone.
        self.flights.lose_first();
        counters.repeated += 1 + self.flights.lose_all();
        self.rewound = false;
        self.timer = Some(now.plus(self.pace.timeout()));
    }

    pub(super) fn next_timer(&self) -> Option<NicTime> {
        let (probe, overtaken) = (self.pace.probe(), self.flights.overtaken());
        NicTime::earliest([self.timer, self.wait_until, probe, overtaken])
    }
}

/// What an answer brings.
enum Answered<'a> {
    Bytes(&'a [u8]),
    Word(u64),
}
