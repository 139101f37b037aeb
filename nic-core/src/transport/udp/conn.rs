//! One session: its bytes in both directions, what is known of the peer, and when it is asked.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::config::UdpConfig;
use crate::datapath::{Datapath, Filled, ReceivePath, Sent};
use crate::engine::{Direction, EngineFailed};
use crate::memory::lender::Lender;
use crate::network::{Datagrams, Link, Network};
use crate::transport::carried::{Addressed, Carried};
use crate::transport::connections::{index_of, Connection};
use crate::transport::life::{Ask, Life, Phase};
use crate::transport::ring::{Ring, Waiting};
use crate::transport::TransportEvent;
use crate::types::{ConnId, NicTime, WorkToken};
use ringbell_net::port::Batch;
use ringbell_net::wire::accl::{Credit, End, Gap, Kind, Signature, Terms, SIGNATURE_BYTES};
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::udp::UNFRAGMENTED;

/// Time to the first question for credit, which doubles.
const PROBE_AFTER: Duration = Duration::from_millis(10);
const PROBE_AFTER_MAX: Duration = Duration::from_millis(500);
/// What does not depend on the connection: no CRC of ours covers the identification of IPv4.
const HOW: Datagrams = Datagrams {
    ecn: 0,
    segmented: true,
};

/// How far the end of our direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fin {
    Open,
    /// It follows the posted sends.
    Wanted,
    Sent,
}

/// Our direction of the stream.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Sequence number of the next message.
    pub(super) next: u32,
    /// Bytes sent.
    pub(super) sent: u64,
    /// Positions behind the messages that the peer has not confirmed.
    unconfirmed: VecDeque<u64>,
    /// Bytes confirmed, and given to the peer's program.
    confirmed: u64,
    taken: u64,
    /// What the peer takes; the payload is the one that both ends do.
    terms: Terms,
    pub(super) fin: Fin,
}

impl Outgoing {
    /// Bytes of the next message that the peer has room for.
    fn room(&self) -> usize {
        if self.unconfirmed.len() >= usize::from(self.terms.buffers) {
            return 0;
        }
        let window = u64::from(self.terms.window) - (self.sent - self.taken);
        window.min(self.terms.payload.into()) as usize
    }

    fn left(&mut self, bytes: usize) -> u32 {
        self.sent += bytes as u64;
        self.unconfirmed.push_back(self.sent);
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        sequence
    }

    /// Takes what the peer has got. Credit that is older than the last, or that was never due,
    /// changes nothing.
    fn credited(&mut self, credit: &Credit) -> bool {
        let first = self.next.wrapping_sub(self.unconfirmed.len() as u32);
        let messages = credit.next.wrapping_sub(first) as usize;
        if messages > self.unconfirmed.len() {
            return false;
        }
        if let Some(last) = self.unconfirmed.drain(..messages).next_back() {
            self.confirmed = last;
        }
        let more = credit.taken.wrapping_sub(self.taken as u32);
        // No more than it has got.
        let is_new = u64::from(more) <= self.confirmed - self.taken;
        self.taken += if is_new { more.into() } else { 0 };
        messages > 0 || (is_new && more > 0)
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }
}

/// The peer's direction.
#[derive(Debug)]
pub(super) struct Arriving {
    /// Sequence number of the next message.
    pub(super) expected: u32,
    /// Bytes that wait for receives: the receive buffers.
    pub(super) ring: Ring,
    /// What was announced last: sequence number and bytes.
    announced: (u32, u64),
    /// What we take.
    pub(super) terms: Terms,
    /// The peer has asked for credit, or is to know that we have its answer.
    pub(super) answer: bool,
    pub(super) peer_fin: bool,
    /// Messages that are missing: the session ends.
    pub(super) gap: Option<Gap>,
    /// An engine on the path of arriving bytes has failed.
    pub(super) failed: Option<EngineFailed>,
}

impl Arriving {
    /// Whether so much was received or taken that the peer must hear of it.
    pub(super) fn must_announce(&self) -> bool {
        let messages = self.expected.wrapping_sub(self.announced.0);
        let bytes = self.ring.start() - self.announced.1;
        self.answer
            || messages > u32::from(self.terms.buffers / 4)
            || bytes > u64::from(self.terms.window / 4)
    }

    fn announce(&mut self) -> Credit {
        self.answer = false;
        self.announced = (self.expected, self.ring.start());
        Credit {
            next: self.expected,
            taken: self.ring.start() as u32,
        }
    }
}

/// Questions to a peer that owes an answer, or whose end is to be noticed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probes {
    /// When the next question is due, and how long after the last one.
    pub(super) next: Option<NicTime>,
    after: Duration,
    /// The first question without an answer.
    since: Option<NicTime>,
    pub(super) due: bool,
}

/// The peer's end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Far {
    /// As our messages name it, once it is known.
    pub(super) end: End,
    /// The addresses of our packets; the peer's come from where they go.
    pub(super) flow: Flow,
}

/// One session.
#[derive(Debug)]
pub(in crate::transport) struct Conn {
    pub(super) life: Life,
    /// What messages to us carry.
    pub(super) tag: u32,
    pub(super) far: Far,
    pub(super) tx: Outgoing,
    pub(super) rx: Arriving,
    ask: Option<Ask<Kind>>,
    pub(super) probes: Probes,
    /// The messages whose loss has ended the session.
    pub(super) ended_by: Option<Gap>,
}

impl Connection for Conn {
    type Key = u16;

    fn key(&self) -> u16 {
        // At most 65,536 sessions.
        index_of(self.life.id) as u16
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Carried for Conn {
    type End = End;
    type Message = Kind;

    fn end_of_peer(&self) -> End {
        self.far.end
    }

    fn ask(&mut self) -> &mut Option<Ask<Kind>> {
        &mut self.ask
    }

    fn say(&self, message: &Kind, now: NicTime, to: Link, net: &mut Network) -> bool {
        say(
            now,
            net,
            to,
            &self.far.flow,
            &self.signed(self.tx.next, *message),
        )
    }

    fn addressed(&self) -> Option<Addressed> {
        self.life.phase.is_up().then(|| Addressed {
            flow: self.far.flow,
            how: HOW,
            longest: SIGNATURE_BYTES + self.tx.terms.payload as usize,
        })
    }

    fn prepare(&mut self, _: usize, _: &mut Datapath<'_>) {}

    /// Bytes, the end of the stream, a question, or credit.
    fn append(
        &mut self,
        _: NicTime,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let is_open = matches!(self.life.phase, Phase::Open | Phase::Closing);
        if is_open && self.append_bytes(batch, data, events)? {
            return Ok(true);
        }
        let ends = is_open && self.tx.fin == Fin::Wanted && self.life.sends.unsent().is_none();
        let is_whole = ends && self.life.sends.finish(data)?;
        // What an engine has kept for the end: nothing else would have it sent.
        if ends && !is_whole && self.append_bytes(batch, data, events)? {
            return Ok(true);
        }
        let (sequence, kind) = if is_whole {
            self.tx.fin = Fin::Sent;
            (self.tx.left(0), Kind::End(self.rx.announce()))
        } else if std::mem::take(&mut self.probes.due) {
            (self.tx.next, Kind::Probe(self.rx.announce()))
        } else if self.rx.must_announce() {
            (self.tx.next, Kind::Credit(self.rx.announce()))
        } else {
            return Ok(false);
        };
        let signature = self.signed(sequence, kind);
        signature.emit(batch.room(SIGNATURE_BYTES));
        batch.end();
        Ok(true)
    }

    fn receiving(&mut self) -> (Waiting<'_>, &mut ReceivePath) {
        let waiting = Waiting {
            rx: &mut self.rx.ring,
            ended: self.life.peer_closed,
        };
        (waiting, &mut self.life.recvs)
    }

    fn failed(&mut self) -> &mut Option<EngineFailed> {
        &mut self.rx.failed
    }

    fn must_announce(&self) -> bool {
        self.rx.must_announce()
    }

    fn cancel(&mut self, token: WorkToken, _: &mut VecDeque<TransportEvent>) -> Option<u64> {
        if let Some(s) = self.life.sends.cancel(token) {
            return Some(s.bytes);
        }
        self.life.recvs.cancel(token)
    }

    fn undelivered(&self) -> u64 {
        self.tx.sent - self.tx.confirmed
    }

    fn reset_detail(&self) -> u64 {
        reset_by(self.gap()).1
    }

    fn refuses_sends(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some(self.life.end(reset_by(self.ended_by).1)),
            _ => (self.tx.fin != Fin::Open).then_some((Status::NotConnected, 0)),
        }
    }

    fn refuses_receives(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some(self.life.end(reset_by(self.ended_by).1)),
            Phase::Closing => Some((Status::NotConnected, 0)),
            _ => None,
        }
    }

    fn end_stream(&mut self) {
        self.tx.fin = self.tx.fin.max(Fin::Wanted);
    }

    fn stop_receiving(&mut self, events: &mut VecDeque<TransportEvent>) {
        self.life.recvs.fail_all((Status::NotConnected, 0), events);
    }

    fn is_over(&self) -> bool {
        false
    }

    fn fail_all(&mut self, status: (Status, u64), events: &mut VecDeque<TransportEvent>) {
        self.life.sends.fail_all(status, events);
        self.life.recvs.fail_all(status, events);
    }

    fn wake_at(&self) -> Option<NicTime> {
        NicTime::earliest([
            self.ask.map(|a| a.next),
            self.life.deadline,
            self.probes.next,
        ])
    }

    fn has_more(&mut self) -> bool {
        self.probes.due
    }
}

impl Conn {
    /// A session whose first message has the number `first`, and whose messages to us carry `tag`.
    pub(super) fn new(
        id: ConnId,
        (local, peer): (SocketAddrV4, SocketAddrV4),
        (tag, first): (u32, u32),
        phase: Phase,
        config: &UdpConfig,
        lender: &Lender,
    ) -> Conn {
        Conn {
            life: Life::new(id, (local, peer), phase),
            tag,
            far: Far {
                end: End::default(),
                flow: Flow {
                    from: local.into(),
                    to: peer.into(),
                    fragment: UNFRAGMENTED,
                },
            },
            tx: Outgoing {
                next: first,
                sent: 0,
                unconfirmed: VecDeque::new(),
                confirmed: 0,
                taken: 0,
                terms: Terms::default(),
                fin: Fin::Open,
            },
            rx: Arriving {
                expected: 0,
                ring: Ring::new(config.rx_buffer, lender),
                announced: (0, 0),
                terms: Terms::default(),
                answer: false,
                peer_fin: false,
                gap: None,
                failed: None,
            },
            ask: None,
            probes: Probes::default(),
            ended_by: None,
        }
    }

    /// The peer's end, its first sequence number and its terms are known.
    pub(super) fn start(&mut self, end: End, first: u32, theirs: &Terms) {
        self.far.end = end;
        self.rx.expected = first;
        self.rx.announced.0 = first;
        let payload = theirs.payload.min(self.rx.terms.payload);
        self.tx.terms = Terms { payload, ..*theirs };
    }

    /// The messages whose loss has ended the session, or is about to.
    pub(super) fn gap(&self) -> Option<Gap> {
        match self.life.phase {
            Phase::Dead => self.ended_by,
            _ => self.rx.gap,
        }
    }

    /// Our end, as messages to it name it.
    pub(super) fn end(&self) -> End {
        End {
            session: self.key(),
            tag: self.tag,
        }
    }

    /// A message to the peer.
    pub(super) fn signed(&self, sequence: u32, kind: Kind) -> Signature {
        Signature {
            to: self.far.end,
            from: self.end(),
            sequence,
            kind,
        }
    }

    /// The peer lives; whether it has `confirmed` anything.
    fn answered(&mut self, confirmed: bool) {
        (self.life.has_received, self.life.refused) = (true, 0);
        self.probes.since = None;
        if confirmed {
            (self.probes.next, self.probes.after) = (None, Duration::ZERO);
        }
    }

    /// Takes a message of an open session, and its bytes into posted receives.
    pub(super) fn take(
        &mut self,
        signature: &Signature,
        payload: &[u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Arrived {
        let (Kind::Data(credit) | Kind::End(credit) | Kind::Probe(credit) | Kind::Credit(credit)) =
            &signature.kind
        else {
            return Arrived::Rejected;
        };
        let confirmed = self.tx.credited(credit);
        self.answered(confirmed);
        if matches!(signature.kind, Kind::Credit(_)) {
            return Arrived::Taken;
        }
        let rx = &mut self.rx;
        let got = signature.sequence;
        match got.wrapping_sub(rx.expected) as i32 {
            0 => {}
            // What came before can only be a copy: a session does not go on behind a gap.
            ..0 => {
                rx.answer |= matches!(signature.kind, Kind::Probe(_));
                return Arrived::Again;
            }
            _ => {
                let expected = rx.expected;
                rx.gap.get_or_insert(Gap { expected, got });
                return Arrived::Taken;
            }
        }
        match signature.kind {
            Kind::Probe(_) => rx.answer = true,
            _ if rx.peer_fin || payload.len() > rx.ring.free() => return Arrived::Rejected,
            Kind::End(_) => {
                rx.expected = got.wrapping_add(1);
                (rx.peer_fin, rx.answer) = (true, true);
            }
            _ => {
                rx.expected = got.wrapping_add(1);
                self.put(payload, data, events);
            }
        }
        Arrived::Taken
    }

    /// Bytes go to posted receives, or wait for them.
    fn put(
        &mut self,
        mut bytes: &[u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let rx = &mut self.rx;
        if rx.ring.is_empty() && !self.life.recvs.is_empty() && rx.failed.is_none() {
            let len = bytes.len();
            let (_, end) = self.life.recvs.fill(&mut bytes, data, events);
            rx.ring.pass(len - bytes.len());
            if let Filled::Failed(failed) = end {
                rx.failed = Some(failed);
            }
        }
        rx.ring.push(bytes);
    }

    /// Adds a message with the next bytes. They are copied, so that their send retires.
    fn append_bytes(
        &mut self,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        self.life.pending = false;
        if self.life.sends.unsent().is_none() && !data.on_path(self.life.id, Direction::Send) {
            return Ok(false);
        }
        let most = self.tx.room();
        if most == 0 {
            return Ok(false);
        }
        let room = batch.room(SIGNATURE_BYTES + most);
        let mut n = 0;
        while n < most {
            match self
                .life
                .sends
                .fill(&mut room[SIGNATURE_BYTES + n..], data, events)
            {
                Sent::Bytes(0) => break,
                Sent::Bytes(more) => n += more,
                Sent::Pending => {
                    self.life.pending = true;
                    break;
                }
                Sent::Fault(_) => {}
                Sent::Failed(failed) => {
                    batch.cancel();
                    return Err(failed);
                }
            }
        }
        if n == 0 {
            batch.cancel();
            return Ok(false);
        }
        let credit = self.rx.announce();
        let sequence = self.tx.left(n);
        let signature = self.signed(sequence, Kind::Data(credit));
        signature.emit(&mut room[..SIGNATURE_BYTES + n]);
        batch.shorten(most - n);
        batch.end();
        Ok(true)
    }

    /// Decides whether the peer is asked, after all that could be sent was. `false`: it has not
    /// answered for `give_up`.
    pub(super) fn probe(
        &mut self,
        now: NicTime,
        (watch, give_up): (Option<Duration>, Duration),
    ) -> bool {
        let is_up = self.life.phase.is_up();
        // Output of an engine may be left when the sends have ended.
        let has_more = self.life.sends.unsent().is_some() || self.tx.fin == Fin::Wanted;
        let is_blocked = has_more && self.tx.room() == 0;
        let owes = is_up && (is_blocked || !self.tx.is_confirmed());
        let p = &mut self.probes;
        let every = match watch.filter(|_| self.life.watched && is_up) {
            _ if owes => PROBE_AFTER,
            Some(every) => every,
            None => {
                (p.next, p.since) = (None, None);
                return true;
            }
        };
        match p.next {
            Some(at) if at <= now => {
                let since = *p.since.get_or_insert(now);
                p.due = true;
                p.after = (p.after * 2).clamp(every, PROBE_AFTER_MAX.max(every));
                if now >= since.plus(give_up) {
                    return false;
                }
            }
            // What a watched peer owes now is asked for sooner.
            Some(at) if at <= now.plus(every) || p.since.is_some() => return true,
            _ => p.after = every,
        }
        p.next = Some(now.plus(p.after));
        true
    }
}

/// How operations of a session end that is reset, because of a gap if there is one.
pub(super) fn reset_by(gap: Option<Gap>) -> (Status, u64) {
    let detail = gap.map_or(0, |g| u64::from(g.expected) << 32 | u64::from(g.got));
    (Status::ConnectionReset, detail)
}

/// Sends one message. `false`: there was no room.
pub(super) fn say(
    now: NicTime,
    net: &mut Network,
    to: Link,
    flow: &Flow,
    signature: &Signature,
) -> bool {
    let mut batch = Batch::new();
    signature.emit(batch.room(SIGNATURE_BYTES));
    batch.end();
    net.send(now, to, flow, &HOW, &batch, 0) == 1
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    Taken,
    /// It had come before.
    Again,
    /// It breaks the peer's own word.
    Rejected,
}
