//! The responder of a queue pair: requests of the peer in order, and the answers to them (IBTA vol.
//! 1 §9.7.4, §9.7.5.1, §9.9.3).

use std::collections::VecDeque;
use std::time::Duration;

use ringbell_nic_abi::{NakCode, RoceOpcode};

use super::attributes::{packets_of, QpCounters, RtrAttributes};
use super::client::{Atomic, Client, Part, Refusal, Remote, Right};
use super::congestion::NOTIFY_EVERY;
use super::early::{Early, Kept};
use super::out::Out;

use ringbell_net::wire::roce::aeth::RnrTimer;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Aeth, Bth, Extended, Packet, Psn, Qpn, Reth, Syndrome, REPORT_MAX};
use ringbell_net::NicTime;

/// Largest message (§9.7.7.1.1).
const MESSAGE_MAX: u32 = 1 << 31;

/// Numbers that a peer may use next to the expected one; others say nothing about whether it lives.
const NEAR: i32 = 1 << 16;

/// Reserved bytes of a congestion notification.
const NOTIFICATION_BYTES: usize = 16;

/// Where the requests behind a refused one go on: so far behind its number that no packet of before
/// has that number.
pub(super) const RESUME: u32 = 1 << 19;

/// A message of which more packets are to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Send,
    /// Where the next packet goes, and how many bytes are missing.
    Write(Remote, u32),
}

/// An answer that waits to be sent.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Acknowledge(Psn, Syndrome),
    /// A range of memory, in packets from this number on; so many of them were sent.
    Read(Psn, Reth, u32),
    Atomic(Psn, u64),
}

#[derive(Debug)]
pub(super) struct Responder {
    /// The next number.
    expected: Psn,
    /// Messages executed, modulo 2^24.
    messages: u32,
    open: Option<Open>,
    /// The peer was told that it must go back to the expected packet.
    told: bool,
    answers: VecDeque<Answer>,
    /// Atomic operations executed, for duplicates.
    atomics: VecDeque<(Psn, u64)>,
    resources: usize,
    rnr_timer: RnrTimer,
    /// Why the expected packet was refused. Nothing behind it is executed.
    refused: Option<NakCode>,
    /// A request at another number shows that the peer knows of it
    /// ([`QueuePair::resuming`](super::QueuePair::resuming)).
    resumes: bool,
    failed: bool,
    /// Packets that have come before others, when the peer wants them kept.
    early: Option<Early>,
    /// When the peer was told of a marked packet, and whether it must be.
    notified: Option<NicTime>,
    notify: bool,
    owed: Owed,
}

/// An acknowledgement that waits for company.
#[derive(Debug, Default)]
struct Owed {
    /// How long that of short messages may wait for a packet of ours with which it leaves.
    patience: Duration,
    psn: Psn,
    /// `None`: none waits.
    due: Option<NicTime>,
    /// Requests that ask for one, and bytes of all requests, since the last.
    packets: u32,
    bytes: usize,
    /// Until then none waits: many bytes have come.
    hurries_until: NicTime,
}

/// What may wait at most.
const OWED_PACKETS: u32 = 4;
const OWED_BYTES: usize = 16 << 10;
/// What leaves with a packet of ours at least: fewer wait for more.
const OWED_WITH_COMPANY: u32 = 3;

/// Why a packet is not executed.
enum Stop {
    Refused(Refusal),
    /// Nothing to say.
    Drop,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

const INVALID: Stop = Stop::Refused(Refusal::Nak(NakCode::InvalidRequest));

impl Responder {
    /// Bytes of memory for more answers than there are, and for packets that may come early.
    pub(super) fn spare(&self) -> usize {
        let answers = self.answers.capacity() - self.answers.len();
        answers * size_of::<Answer>() + self.early.as_ref().map_or(0, Early::spare)
    }

    /// Gives them back.
    pub(super) fn shrink(&mut self) {
        self.answers.shrink_to_fit();
        self.atomics.shrink_to_fit();
        self.early.iter_mut().for_each(Early::shrink);
    }

    pub(super) fn new(a: &RtrAttributes, resumes: bool) -> Responder {
        Responder {
            expected: a.expected,
            messages: 0,
            open: None,
            told: false,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            resources: a.resources,
            rnr_timer: RnrTimer::new(a.rnr_timer),
            refused: None,
            resumes,
            failed: false,
            early: (a.early > 0).then(|| Early::new(a.early, a.mtu)),
            notified: None,
            notify: false,
            owed: Owed::default(),
        }
    }

    /// A switch has marked a packet of the peer.
    pub(super) fn marked(&mut self, now: NicTime) {
        if self.notified.is_none_or(|at| at.plus(NOTIFY_EVERY) <= now) {
            (self.notified, self.notify) = (Some(now), true);
        }
    }

    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.owed.patience = patience;
    }

    /// Acknowledges a request, now or with a packet of ours.
    fn owe(&mut self, psn: Psn, opcode: RoceOpcode, now: NicTime) {
        let o = &mut self.owed;
        o.packets += 1;
        // The end of a long message follows closely. Its sender waits for the acknowledgement: the
        // memory is in use until then, or the window closed.
        if o.bytes >= OWED_BYTES {
            o.hurries_until = now.plus(o.patience);
        }
        // Bytes of streams alone: an operation on memory ends with its acknowledgement.
        let may_wait = opcode == RoceOpcode::SendOnly && !o.patience.is_zero();
        if !may_wait || o.packets >= OWED_PACKETS || now < o.hurries_until {
            return self.acknowledge(psn, Syndrome::ACK);
        }
        o.psn = psn;
        o.due.get_or_insert(now.plus(o.patience));
    }

    /// Queues what is owed, when it is due, or is enough and has company.
    pub(super) fn pay(&mut self, now: NicTime, has_company: bool) {
        let o = &self.owed;
        let has_enough = has_company && o.packets >= OWED_WITH_COMPANY;
        if o.due.is_some_and(|due| due <= now || has_enough) {
            self.acknowledge(o.psn, Syndrome::ACK);
        }
    }

    /// Whether nothing but acknowledgements waits to be sent.
    pub(super) fn only_acknowledges(&self) -> bool {
        let mut answers = self.answers.iter();
        answers.all(|a| matches!(a, Answer::Acknowledge(_, Syndrome::Ack { .. })))
    }

    /// Whether it sends nothing before a packet comes.
    pub(super) fn is_at_rest(&self) -> bool {
        self.answers.is_empty() && self.owed.due.is_none() && !self.notify
    }

    /// When an acknowledgement is due.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        self.owed.due
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn receive(
        &mut self,
        now: NicTime,
        packet: &Packet<'_>,
        mtu: u32,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) -> bool {
        let psn = packet.bth.psn;
        if let Some(code) = self.refused {
            if !self.resumes {
                return false;
            }
            if psn == self.expected.plus(RESUME) {
                (self.refused, self.open, self.told) = (None, None, false);
                self.expected = psn;
            } else if psn == self.expected {
                // The reason was lost, or the peer lacks the answer to an earlier request.
                self.acknowledge(psn, Syndrome::Nak(code));
                return true;
            }
        }
        let ahead = psn.distance(self.expected);
        if let (Some(early), true) = (&mut self.early, ahead > 0) {
            match early.keep(self.expected, packet) {
                Kept::New { gap } if gap || packet.bth.acknowledge => {
                    self.acknowledge(self.expected, Syndrome::Nak(NakCode::Sequence));
                }
                Kept::New { .. } => {}
                Kept::Again => {
                    counters.duplicates += 1;
                    // A probe asks what is missing.
                    if packet.bth.acknowledge {
                        self.acknowledge(self.expected, Syndrome::Nak(NakCode::Sequence));
                    }
                }
                Kept::TooFar => counters.out_of_order += 1,
            }
            return ahead < NEAR;
        }
        if ahead > 0 {
            counters.out_of_order += 1;
            // Once for each gap (§9.7.5.2.8).
            if self.refused.is_none() && !std::mem::replace(&mut self.told, true) {
                self.acknowledge(self.expected, Syndrome::Nak(NakCode::Sequence));
            }
            return ahead < NEAR;
        }
        if ahead < 0 {
            counters.duplicates += 1;
            self.repeat(packet, mtu);
            return ahead > -NEAR;
        }
        let mut goes_on = self.expect(now, packet, mtu, client, counters);
        // The packets that have waited for it. They are lent out, because their execution needs the
        // rest of the responder.
        if let Some(mut early) = self.early.take_if(|e| !e.is_empty()) {
            early.pass(psn, self.expected);
            while let Some(next) = early.get(self.expected).filter(|_| goes_on) {
                let at = self.expected;
                goes_on = self.expect(now, &next, mtu, client, counters);
                early.pass(at, self.expected);
            }
            let waits = goes_on && !early.is_empty();
            self.early = Some(early);
            if waits && packet.bth.acknowledge {
                self.acknowledge(self.expected, Syndrome::Nak(NakCode::Sequence));
            }
        }
        true
    }

    /// The number of the next packet, if it may begin a message and nothing waits behind it.
    pub(super) fn expects(&self) -> Option<Psn> {
        let is_plain = self.refused.is_none() && self.open.is_none();
        let has_early = self.early.as_ref().is_some_and(|e| !e.is_empty());
        (is_plain && !has_early).then_some(self.expected)
    }

    /// Takes a message of one packet whose payload is in its place already. `false`: it is not the
    /// expected one, and as if lost.
    pub(super) fn placed(
        &mut self,
        now: NicTime,
        head: &Head,
        len: u32,
        client: &mut dyn Client,
    ) -> bool {
        let bth = &head.bth;
        let write = match head.extended {
            Extended::Reth(r) => Some((r, None)),
            Extended::RethImmediate(r, n) => Some((r, Some(n))),
            _ => None,
        };
        let to = |r: Reth| Remote {
            address: r.address,
            key: r.key,
        };
        let write = write.map(|(r, immediate)| (to(r), immediate));
        if self.expects() != Some(bth.psn) || client.placed(len, write).is_err() {
            return false;
        }
        self.told = false;
        self.expected = bth.psn.plus(1);
        self.completed();
        self.owed.bytes += len as usize;
        if bth.acknowledge {
            self.owe(bth.psn, bth.opcode, now);
        }
        true
    }

    /// Executes the expected packet. `false`: the next must wait.
    fn expect(
        &mut self,
        now: NicTime,
        packet: &Packet<'_>,
        mtu: u32,
        client: &mut dyn Client,
        counters: &mut QpCounters,
    ) -> bool {
        let psn = packet.bth.psn;
        match self.execute(packet, mtu, client) {
            Ok(numbers) => {
                self.told = false;
                self.expected = psn.plus(numbers);
                let has_answer = matches!(
                    packet.bth.opcode,
                    RoceOpcode::ReadRequest | RoceOpcode::FetchAdd | RoceOpcode::CompareSwap
                );
                self.owed.bytes += packet.payload.len();
                if packet.bth.acknowledge && !has_answer {
                    self.owe(psn, packet.bth.opcode, now);
                }
                return true;
            }
            Err(Stop::Drop) => {}
            Err(Stop::Refused(Refusal::NotReady)) => {
                counters.not_ready += 1;
                // Packets behind it are dropped without a word.
                self.told = true;
                self.acknowledge(psn, Syndrome::ReceiverNotReady(self.rnr_timer));
            }
            Err(Stop::Refused(Refusal::Nak(code))) => {
                self.refused = Some(code);
                self.acknowledge(psn, Syndrome::Nak(code));
            }
        }
        false
    }

    /// Queues an acknowledgement. It takes the place of the one before it when both are positive,
    /// or reports.
    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        // It says what an older one would have said.
        (self.owed.due, self.owed.packets, self.owed.bytes) = (None, 0, 0);
        let is_state = |s: &Syndrome| match s {
            Syndrome::Ack { .. } => true,
            Syndrome::Nak(NakCode::Sequence) => self.early.is_some(),
            _ => false,
        };
        if let Some(Answer::Acknowledge(last, before)) = self.answers.back_mut() {
            if is_state(before) && is_state(&syndrome) {
                (*last, *before) = (psn, syndrome);
                return;
            }
        }
        // The reason for the end is queued always: nothing else tells the peer, and nothing comes
        // after it.
        let is_end = self.refused.is_some() && !self.resumes;
        if is_end || self.has_room() {
            self.answers.push_back(Answer::Acknowledge(psn, syndrome));
        }
    }

    /// Whether no more answers wait than a peer has reason to ask for.
    fn has_room(&self) -> bool {
        self.answers.len() < 4 * self.resources.max(16)
    }

    /// Whether as many READs and atomic operations wait to be answered as the peer may have in
    /// flight.
    fn is_busy(&self) -> bool {
        let waits = |a: &&Answer| !matches!(a, Answer::Acknowledge(..));
        self.answers.iter().filter(waits).count() >= self.resources
    }

    /// Answers a request again that was executed before (§9.7.5.1.5).
    fn repeat(&mut self, packet: &Packet<'_>, mtu: u32) {
        let psn = packet.bth.psn;
        // An answer that still waits is the one asked for; a READ goes back to that packet.
        for answer in &mut self.answers {
            match answer {
                Answer::Read(first, reth, next) => {
                    let packets = packets_of(reth.length, mtu);
                    match u32::try_from(psn.distance(*first)) {
                        Ok(n) if n < packets => return *next = n.min(*next),
                        _ => {}
                    }
                }
                Answer::Atomic(number, _) if *number == psn => return,
                Answer::Atomic(..) | Answer::Acknowledge(..) => {}
            }
        }
        let has_room = self.has_room();
        match (packet.bth.opcode, packet.extended) {
            (RoceOpcode::ReadRequest, Extended::Reth(reth)) => {
                // Longer than any READ that was executed. Its numbers could go once round and end
                // before the expected one.
                if reth.length > MESSAGE_MAX {
                    return;
                }
                let end = psn.plus(packets_of(reth.length, mtu));
                // No more than what was asked for.
                if has_room && end.distance(self.expected) <= 0 {
                    self.answers.push_back(Answer::Read(psn, reth, 0));
                }
            }
            (RoceOpcode::FetchAdd | RoceOpcode::CompareSwap, _) => {
                let old = self.atomics.iter().find(|(p, _)| *p == psn);
                if let (Some(&(psn, old)), true) = (old, has_room) {
                    self.answers.push_back(Answer::Atomic(psn, old));
                }
            }
            _ => self.acknowledge(self.expected.previous(), Syndrome::ACK),
        }
    }

    /// Executes the expected packet. Returns how many numbers it uses.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        mtu: u32,
        client: &mut dyn Client,
    ) -> Result<u32, Stop> {
        use RoceOpcode as Op;
        client.begins(packet);
        let (opcode, bytes) = (packet.bth.opcode, packet.payload);
        let is_full = bytes.len() == mtu as usize;
        let (first, last) = match opcode {
            Op::SendFirst | Op::WriteFirst => (true, false),
            Op::SendMiddle | Op::WriteMiddle => (false, false),
            Op::SendLast | Op::SendLastImm | Op::SendLastInvalidate => (false, true),
            Op::WriteLast | Op::WriteLastImm => (false, true),
            _ => (true, true),
        };
        // Order of operations, and lengths (§9.8.2.2.1, §9.7.4.1.5): full packets but for the last,
        // which has at least a byte.
        let fits = match (first, last) {
            (_, false) => is_full,
            (true, true) => bytes.len() <= mtu as usize,
            (false, true) => !bytes.is_empty() && bytes.len() <= mtu as usize,
        };
        if !fits || first != self.open.is_none() {
            return Err(INVALID);
        }
        match opcode {
            Op::SendFirst
            | Op::SendMiddle
            | Op::SendLast
            | Op::SendLastImm
            | Op::SendLastInvalidate
            | Op::SendOnly
            | Op::SendOnlyImm
            | Op::SendOnlyInvalidate => self.send(packet, first, last, client),
            Op::WriteFirst | Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm => {
                self.write(packet, first, last, client)
            }
            Op::WriteOnly | Op::WriteOnlyImm => self.write(packet, first, last, client),
            Op::ReadRequest => self.read(packet, mtu, client),
            Op::FetchAdd => self.atomic(packet, Atomic::FetchAdd, client),
            Op::CompareSwap => self.atomic(packet, Atomic::CompareSwap, client),
            // Of another service.
            _ => Err(Stop::Drop),
        }
    }

    fn completed(&mut self) {
        self.messages = self.messages.wrapping_add(1) & 0x00ff_ffff;
    }

    fn send(
        &mut self,
        packet: &Packet<'_>,
        first: bool,
        last: bool,
        client: &mut dyn Client,
    ) -> Result<u32, Stop> {
        if !first && self.open != Some(Open::Send) {
            return Err(INVALID);
        }
        let immediate = match packet.extended {
            Extended::Immediate(n) => Some(n),
            _ => None,
        };
        client.receive(Part {
            first,
            last,
            bytes: packet.payload,
            immediate,
        })?;
        if let Extended::Invalidate(key) = packet.extended {
            client.invalidate(key)?;
        }
        self.open = (!last).then_some(Open::Send);
        if last {
            self.completed();
        }
        Ok(1)
    }

    fn write(
        &mut self,
        packet: &Packet<'_>,
        first: bool,
        last: bool,
        client: &mut dyn Client,
    ) -> Result<u32, Stop> {
        // The payload is at most an MTU.
        let len = packet.payload.len() as u32;
        let (at, left) = match (packet.extended, self.open) {
            (Extended::Reth(r) | Extended::RethImmediate(r, _), None) if first => {
                if r.length > MESSAGE_MAX {
                    return Err(INVALID);
                }
                let at = Remote {
                    address: r.address,
                    key: r.key,
                };
                // A WRITE of nothing needs no key (§9.7.4.1.6).
                if r.length > 0 {
                    client.check(at, r.length, Right::Write)?;
                }
                (at, r.length)
            }
            (_, Some(Open::Write(at, left))) => (at, left),
            _ => return Err(INVALID),
        };
        // The packets carry what the first has announced, no more and no less.
        if len > left || (last != (len == left)) {
            return Err(INVALID);
        }
        let immediate = match packet.extended {
            Extended::Immediate(n) | Extended::RethImmediate(_, n) => Some(n),
            _ => None,
        };
        if len > 0 {
            client.write(at, packet.payload)?;
        }
        if immediate.is_some() {
            client.receive(Part {
                first: true,
                last: true,
                bytes: &[],
                immediate,
            })?;
        }
        let next = Remote {
            address: at.address.wrapping_add(len.into()),
            ..at
        };
        self.open = (!last).then_some(Open::Write(next, left - len));
        if last {
            self.completed();
        }
        Ok(1)
    }

    fn read(
        &mut self,
        packet: &Packet<'_>,
        mtu: u32,
        client: &mut dyn Client,
    ) -> Result<u32, Stop> {
        let Extended::Reth(reth) = packet.extended else {
            return Err(INVALID);
        };
        if self.is_busy() || reth.length > MESSAGE_MAX {
            return Err(INVALID);
        }
        let at = Remote {
            address: reth.address,
            key: reth.key,
        };
        if reth.length > 0 {
            client.check(at, reth.length, Right::Read)?;
        }
        self.answers
            .push_back(Answer::Read(packet.bth.psn, reth, 0));
        self.completed();
        Ok(packets_of(reth.length, mtu))
    }

    fn atomic(
        &mut self,
        packet: &Packet<'_>,
        operation: Atomic,
        client: &mut dyn Client,
    ) -> Result<u32, Stop> {
        let Extended::Atomic(operands) = packet.extended else {
            return Err(INVALID);
        };
        // An operand that is not aligned (§9.4.5.1).
        if operands.address % 8 != 0 || self.is_busy() {
            return Err(INVALID);
        }
        let old = client.atomic(operation, &operands)?;
        let psn = packet.bth.psn;
        if self.atomics.len() >= self.resources {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, old));
        self.answers.push_back(Answer::Atomic(psn, old));
        self.completed();
        Ok(1)
    }

    /// Writes a congestion notification, when one is due (annex A17 §A17.9.3).
    pub(super) fn notify(&mut self, peer: Qpn, out: &mut Out<'_>) -> Option<usize> {
        if !std::mem::take(&mut self.notify) {
            return None;
        }
        let mut bth = Bth::new(RoceOpcode::CongestionNotification, peer, Psn::default());
        bth.becn = true;
        let head = Head {
            bth,
            extended: Extended::None,
        };
        Some(out.own(&head, &[0; NOTIFICATION_BYTES]))
    }

    /// Writes the next answer.
    pub(super) fn transmit(
        &mut self,
        peer: Qpn,
        mtu: u32,
        out: &mut Out<'_>,
        client: &mut dyn Client,
    ) -> Option<usize> {
        if self.answers.is_empty() || !client.has_landed() {
            return None;
        }
        let answer = self.answers.pop_front()?;
        let msn = self.messages;
        let aeth = |syndrome| Aeth { syndrome, msn };
        let (mut payload, mut from) = (0, Remote { address: 0, key: 0 });
        let mut rest = None;
        let (opcode, psn, extended) = match answer {
            Answer::Acknowledge(psn, syndrome) => {
                let is_over = self.refused.is_some() && !self.resumes;
                self.failed |= is_over && self.answers.is_empty();
                if let (Some(early), Syndrome::Nak(NakCode::Sequence)) = (&self.early, syndrome) {
                    let mut bits = [0; REPORT_MAX];
                    let len = early.report(psn, mtu as usize, &mut bits);
                    let (psn, syndrome) = match len {
                        // The gap has closed meanwhile.
                        0 => (psn.previous(), Syndrome::ACK),
                        _ => (psn, syndrome),
                    };
                    let head = Head {
                        bth: Bth::new(RoceOpcode::Acknowledge, peer, psn),
                        extended: Extended::Aeth(aeth(syndrome)),
                    };
                    return Some(out.own(&head, &bits[..len]));
                }
                (RoceOpcode::Acknowledge, psn, Extended::Aeth(aeth(syndrome)))
            }
            Answer::Atomic(psn, old) => (
                RoceOpcode::AtomicAcknowledge,
                psn,
                Extended::AtomicAck(aeth(Syndrome::ACK), old),
            ),
            Answer::Read(first, reth, k) => {
                let packets = packets_of(reth.length, mtu);
                let done = k * mtu;
                payload = (reth.length - done).min(mtu) as usize;
                let (opcode, extended) = match (k == 0, k + 1 == packets) {
                    (true, true) => (
                        RoceOpcode::ReadResponseOnly,
                        Extended::Aeth(aeth(Syndrome::ACK)),
                    ),
                    (true, false) => (
                        RoceOpcode::ReadResponseFirst,
                        Extended::Aeth(aeth(Syndrome::ACK)),
                    ),
                    (false, false) => (RoceOpcode::ReadResponseMiddle, Extended::None),
                    (false, true) => (
                        RoceOpcode::ReadResponseLast,
                        Extended::Aeth(aeth(Syndrome::ACK)),
                    ),
                };
                from = Remote {
                    address: reth.address.wrapping_add(done.into()),
                    key: reth.key,
                };
                rest = (k + 1 < packets).then_some(Answer::Read(first, reth, k + 1));
                (opcode, first.plus(k), extended)
            }
        };
        let head = Head {
            bth: Bth::new(opcode, peer, psn),
            extended,
        };
        // The key may have gone since the request was checked, and a duplicate was not checked.
        match out.answer(&head, payload, from, client) {
            Ok(len) => {
                if let Some(rest) = rest {
                    self.answers.push_front(rest);
                }
                return Some(len);
            }
            Err(Refusal::NotReady) => {
                self.answers.push_front(answer);
                return None;
            }
            Err(Refusal::Nak(_)) => {}
        }
        let code = match self.resumes {
            // Requests behind it were executed: it fails alone.
            true => NakCode::RemoteOperation,
            false => {
                self.answers.clear();
                (self.refused, self.failed) = (Some(NakCode::RemoteAccess), true);
                NakCode::RemoteAccess
            }
        };
        let head = Head {
            bth: Bth::new(RoceOpcode::Acknowledge, peer, psn),
            extended: Extended::Aeth(aeth(Syndrome::Nak(code))),
        };
        out.answer(&head, 0, from, client).ok()
    }
}
