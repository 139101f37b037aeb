//! A queue pair of the reliable connection service (IBTA vol. 1 §9.7), without I/O and clock.
//!
//! ```text
//!            post ─▶ requester ─▶ transmit ─▶ wire ─▶ receive ─▶ responder ─▶ Client
//!  Client ◀─ done ◀─ requester ◀─ receive  ◀─ wire ◀─ transmit ◀─ answers ◀─┘
//! ```
//!
//! The owner of a queue pair implements [`Client`]: it gives the bytes of requests, takes those
//! that arrive, and decides on accesses to memory. It calls [`QueuePair::receive`] for each packet
//! whose invariant CRC is right, [`QueuePair::transmit`] while there is room for packets, and
//! [`QueuePair::expire`] when [`QueuePair::next_timer`] has come.
//!
//! Lost packets are sent again from the first that is missing (go-back-N, §9.7.5.1.2), or alone,
//! when both ends keep what comes early (selective repeat: [`RtrAttributes::early`],
//! [`RtsAttributes::selective`]). A request is executed once: a duplicate is acknowledged again, a
//! READ is read again, an atomic operation is answered from the responder's resources (§9.7.5.1.5).

mod attributes;
mod client;
mod congestion;
mod early;
mod flights;
mod out;
mod pace;
mod reordering;
mod requester;
mod responder;
mod state;

use std::time::Duration;

use ringbell_nic_abi::RoceOpcode;

pub use self::attributes::{QpCounters, RtrAttributes, RtsAttributes, Transmit};
pub use self::client::{
    Atomic, Client, Part, Refusal, Remote, Request, Right, Unavailable, Work, WorkStatus,
};
pub use self::congestion::{
    Congestion, CongestionControl, DcqcnConfig, NoCongestionControl, NOTIFY_EVERY,
};
use self::out::Out;
pub use self::pace::PaceConfig;
use self::requester::Requester;
use self::responder::Responder;
pub use self::state::{BadTransition, State};
use ringbell_net::port::Batch;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Packet, Psn, Qpn};
use ringbell_net::NicTime;

/// Requests that leave before an acknowledgement: so few that it does not wait for long, and so
/// short.
const GO_FIRST: u32 = 8;
const GO_FIRST_BYTES: u32 = 1 << 10;

/// A change of a queue pair's state, with what the new state needs.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// To RESET: everything is forgotten.
    Reset,
    /// To INIT.
    Init,
    /// To RTR.
    Rtr(RtrAttributes),
    /// From RTR to RTS.
    Rts(RtsAttributes),
    /// From SQD back to RTS, with the attributes that it had.
    Resume,
    /// To SQD: requests that were not begun wait.
    Sqd,
    /// To ERR.
    Err,
}

impl Change {
    const fn state(&self) -> State {
        match self {
            Change::Reset => State::Reset,
            Change::Init => State::Init,
            Change::Rtr(_) => State::Rtr,
            Change::Rts(_) | Change::Resume => State::Rts,
            Change::Sqd => State::Sqd,
            Change::Err => State::Err,
        }
    }
}

/// A queue pair. See the module text.
#[derive(Debug)]
pub struct QueuePair {
    state: State,
    peer: Qpn,
    mtu: u32,
    requester: Option<Requester>,
    responder: Option<Responder>,
    /// A refusal ends one request.
    resumes: bool,
    /// Requests that were sent since an acknowledgement could leave behind them.
    company: u32,
    counters: QpCounters,
}

impl Default for QueuePair {
    fn default() -> QueuePair {
        QueuePair::new()
    }
}

impl QueuePair {
    /// A queue pair in RESET.
    pub fn new() -> QueuePair {
        QueuePair {
            state: State::Reset,
            peer: Qpn::default(),
            mtu: 0,
            requester: None,
            responder: None,
            resumes: false,
            company: 0,
            counters: QpCounters::default(),
        }
    }

    /// A queue pair in RESET that goes on when a request is refused, if the peer's does as well.
    ///
    /// The standard's ends: both pairs go to ERR, and what was executed of the requests in flight
    /// is unknown (§9.9.2). This one repeats the reason and the answers to earlier requests until
    /// the requester, which drops the refused request, goes on at a number that is 2^19 further. It
    /// is as if both had gone through RESET with that number, which both know. A READ that fails
    /// while it is answered fails alone, with the reason "remote operational error".
    pub fn resuming() -> QueuePair {
        QueuePair {
            resumes: true,
            ..QueuePair::new()
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes of a full packet; 0 before RTR.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// What was counted.
    pub fn counters(&self) -> QpCounters {
        self.counters
    }

    /// Changes the state. In ERR and RESET all posted requests are flushed.
    ///
    /// # Errors
    /// [`BadTransition`] names both states; nothing has changed.
    pub fn modify(&mut self, change: Change, client: &mut dyn Client) -> Result<(), BadTransition> {
        let to = self.state.change_to(change.state())?;
        let refused = BadTransition {
            from: self.state,
            to,
        };
        match change {
            Change::Rts(_) if self.state != State::Rtr => return Err(refused),
            Change::Resume if self.requester.is_none() => return Err(refused),
            Change::Rtr(a) => {
                (self.peer, self.mtu) = (a.peer, a.mtu);
                self.responder = Some(Responder::new(&a, self.resumes));
            }
            Change::Rts(a) => self.requester = Some(Requester::new(&a, self.resumes)),
            Change::Reset | Change::Err => self.flush(client),
            Change::Init | Change::Resume | Change::Sqd => {}
        }
        if to == State::Reset {
            (self.requester, self.responder) = (None, None);
        }
        self.state = to;
        Ok(())
    }

    /// Goes to ERR, from any state but RESET.
    pub fn fail(&mut self, client: &mut dyn Client) {
        // RESET has nothing to flush.
        let _ = self.modify(Change::Err, client);
    }

    fn flush(&mut self, client: &mut dyn Client) {
        if let Some(r) = &mut self.requester {
            r.flush(client);
        }
    }

    /// Posts a request. `false`: the queue pair does not send, or its queue is full.
    pub fn post(&mut self, work: Work) -> bool {
        let sends = self.state.requests();
        let mtu = self.mtu;
        let mut requester = self.requester.as_mut().filter(|_| sends);
        requester.as_mut().is_some_and(|r| r.post(work, mtu))
    }

    /// Packets that may be sent at once beside those that are posted.
    pub fn room(&self) -> u32 {
        match &self.requester {
            Some(r) if self.state == State::Rts => r.room(),
            _ => 0,
        }
    }

    /// Posted requests of which no packet was sent.
    pub fn waiting(&self) -> usize {
        self.requester.as_ref().map_or(0, Requester::waiting)
    }

    /// Whether all posted requests have ended.
    pub fn is_idle(&self) -> bool {
        self.requester.as_ref().is_none_or(Requester::is_idle)
    }

    /// Whether it sends nothing, and no timer of it is set, before a request is posted or a packet
    /// comes.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.requester.as_ref().is_none_or(Requester::is_at_rest)
            && self.responder.as_ref().is_none_or(Responder::is_at_rest)
    }

    /// Whether packets were sent again, and nothing was acknowledged since.
    #[inline]
    pub fn is_repeating(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::is_repeating)
    }

    /// Takes a packet for this queue pair. Returns whether it was of any use.
    pub fn receive(&mut self, now: NicTime, packet: &Packet<'_>, client: &mut dyn Client) -> bool {
        if !self.state.answers() {
            return false;
        }
        let counters = &mut self.counters;
        if packet.bth.opcode == RoceOpcode::CongestionNotification {
            if let Some(r) = &mut self.requester {
                r.marked(now);
            }
            return true;
        }
        if is_response(packet.bth.opcode) {
            let Some(r) = &mut self.requester else {
                counters.ignored += 1;
                return false;
            };
            let useful = r.receive(now, packet, self.mtu, client, counters);
            if r.has_failed() {
                self.fail(client);
            }
            return useful;
        }
        let Some(r) = &mut self.responder else {
            return false;
        };
        r.receive(now, packet, self.mtu, client, counters)
    }

    /// The number of the next packet of the peer, if its payload may be put into place before it is
    /// looked at.
    pub fn expects(&self) -> Option<Psn> {
        let responder = self.responder.as_ref().filter(|_| self.state.answers());
        responder.and_then(Responder::expects)
    }

    /// Takes a packet whose payload is in its place ([`Client::placed`]). Returns whether it was of
    /// any use.
    pub fn placed(&mut self, now: NicTime, head: &Head, len: u32, client: &mut dyn Client) -> bool {
        let answers = self.state.answers();
        let responder = self.responder.as_mut().filter(|_| answers);
        responder.is_some_and(|r| r.placed(now, head, len, client))
    }

    /// A switch has marked the packet that was received last (ECN): the peer is told.
    pub fn marked(&mut self, now: NicTime) {
        if let Some(r) = self.responder.as_mut().filter(|_| self.state.answers()) {
            r.marked(now);
        }
    }

    /// Writes the next packet to `room`, from its base header on: answers first.
    pub fn transmit(&mut self, now: NicTime, room: &mut [u8], client: &mut dyn Client) -> Transmit {
        self.make(now, &mut Out::Room(room), client)
    }

    /// Adds the next packet to a batch, as [`QueuePair::transmit`]. It has not ended there: its
    /// invariant CRC is missing.
    pub fn append(&mut self, now: NicTime, batch: &mut Batch, client: &mut dyn Client) -> Transmit {
        self.make(now, &mut Out::Batch(batch), client)
    }

    fn make(&mut self, now: NicTime, out: &mut Out<'_>, client: &mut dyn Client) -> Transmit {
        if self.state.answers() {
            if let Some(r) = &mut self.responder {
                if let Some(len) = r.notify(self.peer, out) {
                    return Transmit::Packet(len);
                }
                // An acknowledgement lets short requests go first, and leaves in one message with
                // them. Behind long ones it would keep them from being received in place.
                let requester = self.requester.as_ref();
                let is_before = requester.is_some_and(|r| r.next_is_at_most(GO_FIRST_BYTES));
                let waits = is_before && self.company < GO_FIRST && r.only_acknowledges();
                if !waits {
                    if let Some(len) = r.transmit(self.peer, self.mtu, out, client) {
                        if r.has_failed() {
                            self.fail(client);
                        }
                        return Transmit::Packet(len);
                    }
                }
            }
        }
        let begins = self.state == State::Rts;
        let mut made = Transmit::Nothing;
        if let Some(r) = self.requester.as_mut().filter(|_| self.state.requests()) {
            made = r.transmit(now, self.peer, self.mtu, begins, out, client);
            if r.has_failed() {
                self.fail(client);
            }
            if let Transmit::Packet(_) = made {
                self.company += 1;
                return made;
            }
        }
        let has_company = std::mem::take(&mut self.company) > 0;
        let answers = self.state.answers();
        let responder = self.responder.as_mut().filter(|_| answers);
        let sent = responder.and_then(|r| {
            r.pay(now, has_company);
            r.transmit(self.peer, self.mtu, out, client)
        });
        sent.map_or(made, Transmit::Packet)
    }

    /// Lets the acknowledgement of short SENDs wait so long for a packet of ours with which it
    /// leaves. By default it does not wait.
    pub fn delay_acknowledgements(&mut self, patience: Duration) {
        if let Some(r) = &mut self.responder {
            r.set_patience(patience);
        }
    }

    /// Packets of this queue pair overtake each other, as they take several ways: with selective
    /// repeat none is taken for lost because others have arrived, before time says so. To be said
    /// in RTS, before a packet leaves.
    pub fn expect_overtaken(&mut self) {
        if let Some(r) = &mut self.requester {
            r.expect_overtaken();
        }
    }

    /// Acts on timers that have come.
    pub fn expire(&mut self, now: NicTime, client: &mut dyn Client) {
        if let Some(r) = &mut self.requester {
            r.expire(now, client, &mut self.counters);
            if r.has_failed() {
                self.fail(client);
            }
        }
    }

    /// Bytes of memory that it keeps for more than is under way.
    pub fn spare(&self) -> usize {
        self.requester.as_ref().map_or(0, Requester::spare)
            + self.responder.as_ref().map_or(0, Responder::spare)
    }

    /// Gives them back. What comes later allocates anew.
    pub fn shrink(&mut self) {
        self.requester.iter_mut().for_each(Requester::shrink);
        self.responder.iter_mut().for_each(Responder::shrink);
    }

    /// When [`QueuePair::expire`] or [`QueuePair::transmit`] must be called although nothing
    /// arrives.
    pub fn next_timer(&self) -> Option<NicTime> {
        let (sends, answers) = (self.state.requests(), self.state.answers());
        let requester = self.requester.as_ref().filter(|_| sends);
        let responder = self.responder.as_ref().filter(|_| answers);
        NicTime::earliest([
            requester.and_then(Requester::next_timer),
            responder.and_then(Responder::next_timer),
        ])
    }
}

/// Whether a packet answers a request of ours.
const fn is_response(opcode: RoceOpcode) -> bool {
    use RoceOpcode as Op;
    matches!(
        opcode,
        Op::ReadResponseFirst
            | Op::ReadResponseMiddle
            | Op::ReadResponseLast
            | Op::ReadResponseOnly
            | Op::Acknowledge
            | Op::AtomicAcknowledge
    )
}
