//! One-sided operations of a connection: a second queue pair, for both directions.
//!
//! ```text
//! put               WRITE                                   get               READs of half a window
//! put with signal   note ─▶ WRITE with immediate data       fetch-add, swap   the standard's atomic operations
//! ```
//!
//! Its number is that of the stream's pair plus one, at both ends. So neither waits for the other's
//! window, and a refusal leaves the stream alone: the pair drops the refused operation and [goes
//! on](ringbell_roce::qp::QueuePair::resuming).
//!
//! **Signals.** The word is named by its number in the region of the put, whose address only the
//! target knows, and needs the right to write. A note names it ahead: the target checks memory and
//! word, so nothing is written when either is wrong. The immediate data of the WRITE's last packet
//! let it update the word, behind the bytes.
//!
//! **Refusals.** The wire has one reason for all accesses that are not allowed. The initiator asks
//! by a note, and gets the status and detail that `local` gives.
//!
//! **Copies.** None before the port's, which takes packets as spans of memory; READs are copied
//! into their packets. One from the packet into memory.

mod requests;

use std::collections::VecDeque;

use ringbell_gtlb::Need;
use ringbell_nic_abi::{GpuVa, NakCode, PdId, Rkey, Status};

use self::requests::Requests;
use crate::datapath::Datapath;
use crate::dma::{DmaAccess, ReadStatus, WordUpdate};
use crate::transport::one_sided::{Access, Granted, Landing, Note};
use crate::transport::{RemoteWork, TransportEvent};
use crate::types::{Buffer, ConnId, NicTime, WorkToken};
use ringbell_net::port::Batch;
use ringbell_net::wire::roce::{AtomicEth, Qpn};
use ringbell_roce::qp::{
    Atomic, Client, Part, QpCounters, QueuePair, Refusal, Remote, Right, State, Unavailable,
    WorkStatus,
};

/// READs and atomic operations in flight.
pub(super) const DEPTH: usize = 16;
/// Those of the peer that are kept for duplicates; half of them may be duplicates themselves.
pub(super) const RESOURCES: usize = 4 * DEPTH;

/// Number of the pair beside that of a stream.
pub(super) fn number(stream: Qpn) -> Qpn {
    Qpn::new(stream.value() | 1)
}

/// Number of the stream's pair beside a pair of either kind.
pub(super) fn stream(pair: Qpn) -> Qpn {
    Qpn::new(pair.value() & !1)
}

/// What peers have asked for.
#[derive(Debug, Default)]
struct Serving {
    granted: Granted,
    /// The put with a signal that was announced.
    announced: Option<Access>,
    /// The bytes of its puts.
    landing: Landing,
    /// The last packet has written its bytes, and comes again for its signal.
    again: bool,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct OneSided {
    qp: QueuePair,
    requests: Requests,
    serving: Serving,
}

impl Default for OneSided {
    fn default() -> OneSided {
        OneSided {
            qp: QueuePair::resuming(),
            requests: Requests::default(),
            serving: Serving::default(),
        }
    }
}

impl OneSided {
    /// The queue pair was started with packets of so many bytes, and so many in flight.
    pub(super) fn start(&mut self, mtu: u32, window: u32) {
        // Two READs fill the window, so that the next is asked for while one is answered.
        self.requests.read_max = mtu.saturating_mul((window / 2).max(1));
    }

    /// The queue pair with its client.
    pub(super) fn parts<'a, 'd>(
        &'a mut self,
        conn: ConnId,
        data: Option<&'a mut Datapath<'d>>,
        events: &'a mut VecDeque<TransportEvent>,
    ) -> (&'a mut QueuePair, Peer<'a, 'd>) {
        let peer = Peer {
            conn,
            requests: &mut self.requests,
            serving: &mut self.serving,
            data,
            events,
        };
        (&mut self.qp, peer)
    }

    pub(super) fn post(&mut self, work: RemoteWork) {
        self.requests.push(work);
    }

    /// Hands requests to the queue pair, as far as its window has room.
    pub(super) fn post_requests(&mut self) {
        while self.qp.room() > 0 {
            let Some(work) = self.requests.next_work() else {
                break;
            };
            let posted = self.qp.post(work);
            debug_assert!(posted, "a queue pair with room takes work");
        }
    }

    /// As [`Transport::cancel`](crate::transport::Transport::cancel).
    pub(super) fn cancel(
        &mut self,
        conn: ConnId,
        token: WorkToken,
        events: &mut VecDeque<TransportEvent>,
    ) -> Option<u64> {
        self.requests.cancel(conn, token, events)
    }

    pub(super) fn fail_all(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.requests.fail_all(conn, status, events);
    }

    /// Lets the peer name regions of a domain.
    pub(super) fn grant(&mut self, pd: PdId) {
        self.serving.granted.grant(pd);
    }

    /// Nothing is done for the peer any more.
    pub(super) fn revoke(&mut self) {
        self.serving.granted.revoke();
    }

    /// Whether the peer has asked for something since.
    pub(super) fn is_asked(&self) -> bool {
        self.serving.granted.is_asked()
    }

    /// Whether its packets are sent again, without an answer.
    pub(super) fn is_repeating(&self) -> bool {
        self.qp.is_repeating()
    }

    /// Whether every operation of this side has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_idle()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.qp.state() == State::Err
    }

    /// Why it has.
    pub(super) fn error(&self) -> Option<WorkStatus> {
        self.requests.error
    }

    /// Whether memory has not answered since the last call.
    pub(super) fn take_pending(&mut self) -> bool {
        std::mem::take(&mut self.requests.pending)
    }

    /// Whether its queue pair has nothing to send, and no timer.
    pub(super) fn is_at_rest(&self) -> bool {
        self.qp.is_at_rest()
    }

    /// Bytes of memory that are kept for more requests than there are.
    pub(super) fn spare(&self) -> usize {
        self.qp.spare()
    }

    /// Gives them back.
    pub(super) fn shrink(&mut self) {
        self.qp.shrink();
        self.requests.shrink();
    }

    pub(super) fn next_timer(&self) -> Option<NicTime> {
        self.qp.next_timer()
    }

    pub(super) fn counters(&self) -> QpCounters {
        self.qp.counters()
    }
}

/// Both sides of the operations, as the client of their queue pair.
pub(super) struct Peer<'a, 'd> {
    conn: ConnId,
    requests: &'a mut Requests,
    serving: &'a mut Serving,
    /// `None` where nothing is sent and nothing arrives.
    data: Option<&'a mut Datapath<'d>>,
    events: &'a mut VecDeque<TransportEvent>,
}

/// The reason that the wire has for a status.
fn nak((status, _): (Status, u64)) -> Refusal {
    Refusal::Nak(match status {
        Status::InvalidArgument | Status::Unsupported => NakCode::InvalidRequest,
        _ => NakCode::RemoteAccess,
    })
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest);

impl Peer<'_, '_> {
    /// Memory, and the domains that the peer may name.
    fn memory(&mut self) -> Result<(&mut dyn DmaAccess, &[PdId]), Refusal> {
        let domains = self.serving.granted.ask();
        let domains = domains.map_err(|_| Refusal::NotReady)?;
        let data = self.data.as_mut().ok_or(Refusal::NotReady)?;
        Ok((&mut *data.dma, domains))
    }

    fn remote(&mut self, at: Remote, len: u32, need: Need) -> Result<Buffer, Refusal> {
        let (dma, domains) = self.memory()?;
        let (key, va) = (Rkey(at.key), GpuVa(at.address));
        dma.remote(domains, key, va, len, need)
            .map_err(|fault| nak(fault.status()))
    }

    fn dma(&mut self) -> Result<&mut dyn DmaAccess, Refusal> {
        Ok(self.memory()?.0)
    }

    /// What updates a word comes behind the bytes that were put before.
    ///
    /// # Errors
    /// They are not in place: the peer asks again.
    fn follow(&mut self) -> Result<(), Refusal> {
        self.has_landed().then_some(()).ok_or(Refusal::NotReady)
    }

    fn note(&mut self, note: Note) -> Result<(), Refusal> {
        match note {
            Note::Announce(access) => {
                if access.len == 0 {
                    self.follow()?;
                }
                let (dma, domains) = self.memory()?;
                if access.len == 0 {
                    return access.set_signal(domains, dma).map_err(nak);
                }
                access.check(domains, dma).map_err(nak)?;
                self.serving.announced = Some(access);
                Ok(())
            }
            Note::Why(access) => {
                let (dma, domains) = self.memory()?;
                let now_allowed = (Status::AccessDenied, access.va.0);
                let why = access.check(domains, dma).err().unwrap_or(now_allowed);
                match self.requests.answer(why) {
                    true => Ok(()),
                    false => Err(INVALID),
                }
            }
            Note::Because(status, detail) => {
                let why = (status, detail);
                self.requests.because(self.conn, why, self.events);
                Ok(())
            }
        }
    }
}

impl Client for Peer<'_, '_> {
    fn gather(&mut self, id: u64, offset: u32, to: &mut [u8]) -> Result<(), Unavailable> {
        let data = self.data.as_deref_mut();
        self.requests.gather(id, offset, to, data)
    }

    fn refer(
        &mut self,
        id: u64,
        offset: u32,
        len: usize,
        batch: &mut Batch,
    ) -> Result<(), Unavailable> {
        let data = self.data.as_deref_mut();
        self.requests.refer(id, offset, len, batch, data)
    }

    fn scatter(&mut self, id: u64, offset: u32, bytes: &[u8]) -> Result<(), Unavailable> {
        let data = self.data.as_mut().ok_or(Unavailable::Fault)?;
        self.requests.scatter(id, offset, bytes, data.dma)
    }

    fn done(&mut self, id: u64, status: WorkStatus) {
        self.requests.done(self.conn, id, status, self.events);
    }

    fn is_void(&self, id: u64) -> bool {
        self.requests.is_void(id)
    }

    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        if part.immediate.is_some() && part.bytes.is_empty() {
            if let Err(later) = self.follow() {
                self.serving.again = true;
                return Err(later);
            }
            let announced = self.serving.announced.take().ok_or(INVALID)?;
            let (dma, domains) = self.memory()?;
            return announced.set_signal(domains, dma).map_err(nak);
        }
        let note = Note::read(part.bytes).filter(|_| part.first && part.last);
        self.note(note.ok_or(INVALID)?)
    }

    fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), Refusal> {
        let need = match right {
            Right::Read => Need::RemoteRead,
            Right::Write => Need::RemoteWrite,
        };
        self.remote(at, len, need).map(|_| ())
    }

    fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        if std::mem::take(&mut self.serving.again) {
            return Ok(());
        }
        // A packet is no longer than 64 KiB.
        let buffer = self.remote(at, bytes.len() as u32, Need::RemoteWrite)?;
        let written = self.dma()?.write(&buffer, 0, bytes);
        self.serving.landing.wrote();
        written.map_err(|fault| nak(fault.status()))
    }

    fn has_landed(&mut self) -> bool {
        let Some(data) = &mut self.data else {
            return true;
        };
        let has_landed = self.serving.landing.is_over(data.dma);
        self.requests.pending |= !has_landed;
        has_landed
    }

    fn read(&mut self, at: Remote, to: &mut [u8]) -> Result<(), Refusal> {
        let buffer = self.remote(at, to.len() as u32, Need::RemoteRead)?;
        match self.dma()?.read(&buffer, 0, to) {
            Ok(ReadStatus::Done) => Ok(()),
            Ok(ReadStatus::Pending) => {
                self.requests.pending = true;
                Err(Refusal::NotReady)
            }
            Err(fault) => Err(nak(fault.status())),
        }
    }

    fn atomic(&mut self, operation: Atomic, operands: &AtomicEth) -> Result<u64, Refusal> {
        let at = Remote {
            address: operands.address,
            key: operands.key,
        };
        self.follow()?;
        let word = self.remote(at, 8, Need::RemoteAtomic)?;
        let update = match operation {
            Atomic::FetchAdd => WordUpdate::Add(operands.swap_or_add),
            Atomic::CompareSwap => WordUpdate::CompareSwap {
                compare: operands.compare,
                swap: operands.swap_or_add,
            },
        };
        self.dma()?.update_word(&word, update).map_err(nak)
    }
}
