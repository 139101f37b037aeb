//! One session: its bytes in both directions, what is known of the peer, and when it is asked.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::UdpConfig;
use crate::datapath::{Datapath, Filled, ReceivePath, SendPath, Sent};
use crate::engine::{Direction, EngineFailed};
use crate::port::Batch;
use crate::transport::connections::{index_of, Connection};
use crate::transport::ring::{Ring, Waiting};
use crate::transport::TransportEvent;
use crate::types::{ConnId, ListenerId, NicTime};
use crate::wire::accl::{Credit, End, Gap, Kind, Signature, Terms, SIGNATURE_BYTES};
use crate::wire::roce::icrc::Flow;
use crate::wire::udp::UNFRAGMENTED;

/// Time to the second request for a session, and to the first question for credit; both double.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(50);
const PROBE_AFTER: Duration = Duration::from_millis(10);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);

/// Phase of a session as reported to the layer above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the neighbour's hardware address.
    Resolving,
    /// The request is out.
    Requesting,
    /// A request came in for this listener; the answer is out.
    Incoming(ListenerId),
    /// Reported as established.
    Open,
    /// Reported as reset, because of these messages if they are known; the id stays until it is closed.
    Dead(Option<Gap>),
    /// `close` was called and not yet answered.
    Closing,
    /// The id was given back; the peer has not ended its direction.
    Orphan,
}

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

    /// Takes what the peer has got. Credit that is older than the last, or that was never due, changes nothing.
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

    /// Bytes of the longest message.
    pub(super) fn payload(&self) -> usize {
        self.terms.payload as usize
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        self.sent - self.confirmed
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
    pub(super) watched: bool,
    /// When the next question is due, and how long after the last one.
    pub(super) next: Option<NicTime>,
    after: Duration,
    /// The first question without an answer.
    since: Option<NicTime>,
    pub(super) due: bool,
    /// How often the peer's host has refused a packet since it last answered.
    pub(super) refused: u32,
}

/// A request or an answer to one, which is sent until the peer is heard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) next: NicTime,
    pub(super) after: Duration,
}

impl Ask {
    pub(super) fn at(now: NicTime) -> Ask {
        Ask {
            next: now,
            after: ASK_AGAIN,
        }
    }

    pub(super) fn tried(&mut self, now: NicTime) {
        self.next = now.plus(self.after);
        self.after = (self.after * 2).min(ASK_AGAIN_MAX);
    }
}

/// The peer's end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Far {
    /// As our messages name it, once it is known.
    pub(super) end: End,
    /// The addresses of our packets; the peer's come from where they go.
    pub(super) flow: Flow,
}

/// What was reported, and what is queued.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Waits to be served.
    pub(super) queued: bool,
    /// A packet of the peer has come.
    pub(super) heard: bool,
    /// `PeerClosed` was reported.
    pub(super) peer_closed: bool,
    /// The last bytes were stopped by memory that has not answered.
    pub(super) pending: bool,
}

/// One session.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) phase: Phase,
    pub(super) local: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    /// What messages to us carry.
    pub(super) tag: u32,
    pub(super) far: Far,
    pub(super) tx: Outgoing,
    pub(super) rx: Arriving,
    pub(super) sends: SendPath,
    pub(super) recvs: ReceivePath,
    /// Way to the peer.
    pub(super) hop: Option<usize>,
    pub(super) ask: Option<Ask>,
    /// End of an attempt to connect, or of an orphan.
    pub(super) deadline: Option<NicTime>,
    pub(super) probes: Probes,
    pub(super) seen: Seen,
}

impl Connection for Conn {
    type Key = u16;

    fn id(&self) -> ConnId {
        self.id
    }

    fn key(&self) -> u16 {
        // At most 65,536 sessions.
        index_of(self.id) as u16
    }

    fn hop(&self) -> Option<usize> {
        self.hop
    }

    fn listener(&self) -> Option<ListenerId> {
        match self.phase {
            Phase::Incoming(listener) => Some(listener),
            _ => None,
        }
    }

    fn is_orphan(&self) -> bool {
        self.phase == Phase::Orphan
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
    ) -> Conn {
        Conn {
            id,
            phase,
            local,
            peer,
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
                ring: Ring::new(config.rx_buffer),
                announced: (0, 0),
                terms: Terms::default(),
                answer: false,
                peer_fin: false,
                gap: None,
                failed: None,
            },
            sends: SendPath::new(id),
            recvs: ReceivePath::new(id),
            hop: None,
            ask: None,
            deadline: None,
            probes: Probes::default(),
            seen: Seen::default(),
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
        match self.phase {
            Phase::Dead(gap) => gap,
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
    fn heard(&mut self, confirmed: bool) {
        self.seen.heard = true;
        self.probes.refused = 0;
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
        self.heard(confirmed);
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
        if rx.ring.is_empty() && !self.recvs.is_empty() && rx.failed.is_none() {
            let len = bytes.len();
            let (_, end) = self.recvs.fill(&mut bytes, data, events);
            rx.ring.pass(len - bytes.len());
            if let Filled::Failed(failed) = end {
                rx.failed = Some(failed);
            }
        }
        rx.ring.push(bytes);
    }

    /// Adds the next message to a batch: bytes, the end of the stream, a question, or credit. `false`: there is none.
    ///
    /// # Errors
    /// The engine on the path has failed.
    pub(super) fn append(
        &mut self,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let is_open = matches!(self.phase, Phase::Open | Phase::Closing);
        if is_open && self.append_bytes(batch, data, events)? {
            return Ok(true);
        }
        let ends = is_open && self.tx.fin == Fin::Wanted && self.sends.unsent().is_none();
        let (sequence, kind) = if ends && self.sends.finish(data)? {
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

    /// Adds a message with the next bytes. They are copied, so that their send retires.
    fn append_bytes(
        &mut self,
        batch: &mut Batch,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        self.seen.pending = false;
        if self.sends.unsent().is_none() && !data.on_path(self.id, Direction::Send) {
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
                .sends
                .fill(&mut room[SIGNATURE_BYTES + n..], data, events)
            {
                Sent::Bytes(0) => break,
                Sent::Bytes(more) => n += more,
                Sent::Pending => {
                    self.seen.pending = true;
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

    /// Fills posted receives from what waits for them. Returns whether anything moved.
    pub(super) fn pump_recvs(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        if self.recvs.is_empty() && !self.seen.peer_closed {
            return false;
        }
        let mut waiting = Waiting {
            rx: &mut self.rx.ring,
            ended: self.seen.peer_closed,
        };
        let (moved, end) = self.recvs.fill(&mut waiting, data, events);
        if let Filled::Failed(failed) = end {
            self.rx.failed = Some(failed);
        }
        moved
    }

    /// Decides whether the peer is asked, after all that could be sent was. `false`: it has not answered for `give_up`.
    pub(super) fn probe(
        &mut self,
        now: NicTime,
        (watch, give_up): (Option<Duration>, Duration),
    ) -> bool {
        let is_up = matches!(self.phase, Phase::Open | Phase::Closing | Phase::Orphan);
        let is_blocked = self.sends.unsent().is_some() && self.tx.room() == 0;
        let owes = is_up && (is_blocked || !self.tx.is_confirmed());
        let p = &mut self.probes;
        let every = match watch.filter(|_| p.watched && is_up) {
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
                p.after = (p.after * 2).clamp(every, ASK_AGAIN_MAX.max(every));
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

    /// Retires every operation with this status.
    pub(super) fn fail_all(
        &mut self,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.sends.fail_all(status, events);
        self.recvs.fail_all(status, events);
    }

    /// When this session must be served although no packet comes.
    pub(super) fn wake_at(&self) -> Option<NicTime> {
        let timers = [self.ask.map(|a| a.next), self.deadline, self.probes.next];
        timers.into_iter().flatten().min()
    }
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
