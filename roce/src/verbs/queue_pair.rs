//! Queue pairs and shared receive queues, as programs hold them.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::address::Destination;
use super::context::{CompletionQueue, Context, ProtectionDomain};
use super::datagram::Datagrams;
use super::endpoint::{Endpoint, Peer, Places, ReceiveQueue, Way};
use super::engine::{place, Engine, Tables, PACKETS};
use super::gid::{Features, Gid};
use super::service::Machine;
use super::types::{
    Local, QpLimits, ReceiveRequest, Rights, SendRequest, Service, VerbsError, DEPTH_MAX,
    MESSAGE_MAX, QPS_MAX, QP_LIMITS_MAX,
};
use crate::qp::{self, Change, Congestion, DcqcnConfig, PaceConfig, QpCounters, Request, State};
use ringbell_net::wire::roce::{Psn, Qpn};

/// Shortest time after which a packet counts as lost; a loaded host keeps a peer from its core for
/// milliseconds.
const LOST_AFTER_MIN: Duration = Duration::from_millis(8);
/// A time-out code of 0 waits without end; so long, at least.
const FOREVER: Duration = Duration::from_secs(1 << 32);
/// Bytes in flight between two contexts of ours, at most.
const IN_FLIGHT: u32 = 2 << 20;

/// What a queue pair needs to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rtr {
    /// Address of the peer's context.
    pub peer: Gid,
    /// Number of its queue pair.
    pub number: u32,
    /// Number of its first packet, below 2^24.
    pub expected: u32,
    /// Bytes of a full packet: 256, 512, 1,024, 2,048 or 4,096. Two contexts of ours on one host
    /// take 4,096 as "the longest that both accept".
    pub mtu: u32,
    /// READs and atomic operations of the peer in flight, at most.
    pub resources: u8,
    /// Code of the time that the peer waits when no receive is posted (IBTA vol. 1 table 45),
    /// below 32.
    pub rnr_timer: u8,
}

/// What a queue pair needs to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rts {
    /// Number of our first packet, below 2^24.
    pub first: u32,
    /// Our READs and atomic operations in flight, at most.
    pub depth: u8,
    /// Code of the time for an acknowledgement: 4.096 µs · 2^code; 0: without end.
    pub timeout: u8,
    /// Retries when nothing is acknowledged, 0 to 7. The peer is given up after the time-out of
    /// each try.
    pub retries: u8,
    /// Retries when the peer has no receive, 0 to 6; 7: without end.
    pub rnr_retries: u8,
}

/// A change of a queue pair's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modify {
    /// To RESET: everything is forgotten.
    Reset,
    /// To INIT.
    Init(Rights),
    /// To INIT, of the datagram service: with the key that datagrams must name.
    InitDatagram(u32),
    /// To RTR.
    Rtr(Rtr),
    /// To RTR, of the datagram service.
    RtrDatagram,
    /// From RTR to RTS.
    Rts(Rts),
    /// From RTR to RTS, of the datagram service: with the number of the first packet, below 2^24.
    RtsDatagram(u32),
    /// Back to RTS, with the attributes that it had.
    Resume,
    /// To SQD: requests that were not begun wait.
    Sqd,
    /// To ERR: everything that was posted is flushed.
    Err,
}

/// What a queue pair is made with.
#[derive(Debug)]
pub struct QpAttributes<'a> {
    /// What it promises.
    pub service: Service,
    /// Completions of requests.
    pub send_cq: &'a CompletionQueue,
    /// Completions of receives.
    pub receive_cq: &'a CompletionQueue,
    /// Receives that it shares with others.
    pub shared: Option<&'a SharedReceiveQueue>,
    /// Sizes.
    pub limits: QpLimits,
    /// All requests complete with an entry, not the signaled ones alone.
    pub signal_all: bool,
}

struct QpHandle {
    pd: ProtectionDomain,
    /// They live as long as the queue pair.
    _cqs: (CompletionQueue, CompletionQueue),
    _shared: Option<SharedReceiveQueue>,
    at: usize,
    number: Qpn,
    limits: QpLimits,
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        let context = self.pd.context();
        let mut engine = context.owner.shared.lock();
        // What was received is acknowledged.
        let now = context.owner.shared.now();
        engine.transmit(now);
        engine.tables.remove(self.at);
    }
}

/// A queue pair. It is destroyed when the handle goes.
pub struct QueuePair {
    handle: QpHandle,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.handle.number)
            .finish_non_exhaustive()
    }
}

/// Packets in flight between two contexts of ours, at most, and so those that come early.
fn packets_max(mtu: u32) -> u32 {
    (IN_FLIGHT / mtu.max(1)).clamp(PACKETS.0, PACKETS.1)
}

fn within(what: &'static str, value: u64, limit: u64) -> Result<(), VerbsError> {
    match value <= limit {
        true => Ok(()),
        false => Err(VerbsError::Range { what, value, limit }),
    }
}

fn check_limits(l: &QpLimits) -> Result<(), VerbsError> {
    let max = &QP_LIMITS_MAX;
    within("number of requests", l.sends.into(), max.sends.into())?;
    within("number of receives", l.receives.into(), max.receives.into())?;
    within(
        "number of a request's pieces",
        l.send_pieces.into(),
        max.send_pieces.into(),
    )?;
    within(
        "number of a receive's pieces",
        l.receive_pieces.into(),
        max.receive_pieces.into(),
    )?;
    within("number of inline bytes", l.inline.into(), max.inline.into())
}

const OTHER_SERVICE: VerbsError =
    VerbsError::Misuse("the queue pair was made for the other service");

/// Forgets what was posted to a queue pair that goes to RESET.
fn forget(tables: &mut Tables, at: usize) -> Result<(), VerbsError> {
    let pair = tables.pair(at)?;
    pair.end.reset();
    let receives = pair.end.at.receives;
    if let Some(q) = tables.receives[receives].as_mut().filter(|q| !q.is_shared) {
        q.clear();
    }
    Ok(())
}

/// Changes the state of a datagram queue pair.
fn change_datagram(d: &mut Datagrams, to: Modify) -> Result<(), VerbsError> {
    let next = match to {
        Modify::Reset => State::Reset,
        Modify::InitDatagram(_) => State::Init,
        Modify::RtrDatagram => State::Rtr,
        Modify::RtsDatagram(_) | Modify::Resume => State::Rts,
        Modify::Sqd => State::Sqd,
        Modify::Err => State::Err,
        Modify::Init(_) | Modify::Rtr(_) | Modify::Rts(_) => return Err(OTHER_SERVICE),
    };
    let next = d.state.change_to(next)?;
    match to {
        Modify::Reset => *d = Datagrams::new(),
        Modify::InitDatagram(key) => d.key = key,
        Modify::RtsDatagram(first) => d.next = Psn::new(first),
        _ => {}
    }
    d.state = next;
    Ok(())
}

impl ProtectionDomain {
    /// Makes a queue pair in RESET, with a number that cannot be guessed.
    ///
    /// # Errors
    /// [`VerbsError`]: a size is too large, or an object is of another context.
    pub fn create_qp(&self, a: &QpAttributes<'_>) -> Result<QueuePair, VerbsError> {
        check_limits(&a.limits)?;
        let owner = &self.context().owner;
        let is_ours = |c: &Context| Arc::ptr_eq(&c.owner, owner);
        let shared = a.shared.is_none_or(|s| is_ours(s.inner.pd.context()));
        if !is_ours(a.send_cq.context()) || !is_ours(a.receive_cq.context()) || !shared {
            return Err(VerbsError::Misuse("the objects are of several contexts"));
        }
        let mut engine = owner.shared.lock();
        let tables = &mut engine.tables;
        let qps = tables.pairs.iter().flatten().count();
        within("number of queue pairs", qps as u64 + 1, QPS_MAX as u64)?;
        let receives = match a.shared {
            Some(s) => s.inner.at,
            None => {
                let own = ReceiveQueue::new(self.id(), a.limits.receives, false);
                place(&mut tables.receives, own)
            }
        };
        let places = Places {
            number: tables.draw(),
            pd: self.id(),
            send_cq: a.send_cq.at(),
            receive_cq: a.receive_cq.at(),
            receives,
        };
        let at = tables.add(Endpoint::new(places, a.limits, a.signal_all), a.service);
        drop(engine);
        Ok(QueuePair {
            handle: QpHandle {
                pd: self.clone(),
                _cqs: (a.send_cq.clone(), a.receive_cq.clone()),
                _shared: a.shared.cloned(),
                at,
                number: places.number,
                limits: a.limits,
            },
        })
    }

    /// Makes a queue of receives that several queue pairs share.
    ///
    /// # Errors
    /// [`VerbsError::Range`].
    pub fn create_srq(&self, receives: u32, pieces: u32) -> Result<SharedReceiveQueue, VerbsError> {
        check_limits(&QpLimits {
            receives,
            receive_pieces: pieces,
            ..QpLimits::default()
        })?;
        let mut engine = self.context().owner.shared.lock();
        let queue = ReceiveQueue::new(self.id(), receives, true);
        let at = place(&mut engine.tables.receives, queue);
        drop(engine);
        Ok(SharedReceiveQueue {
            inner: Arc::new(SrqHandle {
                pd: self.clone(),
                at,
                pieces,
            }),
        })
    }
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.handle.number.value()
    }

    /// Its sizes.
    pub fn limits(&self) -> QpLimits {
        self.handle.limits
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.handle.pd.context().owner.shared.lock()
    }

    /// Its state.
    pub fn state(&self) -> State {
        let mut engine = self.lock();
        engine
            .tables
            .pair(self.handle.at)
            .map_or(State::Reset, |p| p.qp.state())
    }

    /// What was counted.
    pub fn counters(&self) -> QpCounters {
        let mut engine = self.lock();
        let pair = engine.tables.pair(self.handle.at);
        pair.map_or_else(|_| QpCounters::default(), |p| p.qp.counters())
    }

    /// Sets what peers may do through it.
    pub fn set_rights(&self, rights: Rights) {
        if let Ok(pair) = self.lock().tables.pair(self.handle.at) {
            pair.end.rights = rights;
        }
    }

    /// Sets the key that datagrams to it must name.
    pub fn set_key(&self, key: u32) {
        if let Ok(pair) = self.lock().tables.pair(self.handle.at) {
            if let Machine::Datagram(d) = &mut pair.qp {
                d.key = key;
            }
        }
    }

    /// Changes its state.
    ///
    /// # Errors
    /// [`VerbsError::Transition`] names both states; [`VerbsError`] of an attribute. Nothing has
    /// changed then.
    pub fn modify(&self, to: Modify) -> Result<(), VerbsError> {
        let owner = &self.handle.pd.context().owner;
        let mut engine = owner.shared.lock();
        let at = self.handle.at;
        match &mut engine.tables.pair(at)?.qp {
            Machine::Datagram(d) => {
                change_datagram(d, to)?;
                if matches!(to, Modify::Reset) {
                    forget(&mut engine.tables, at)?;
                }
                engine.tables.with(at, |_, _| ());
            }
            Machine::Connected(_) => self.change_connected(&mut engine, to)?,
        }
        owner.shared.kick(&mut engine);
        Ok(())
    }

    fn change_connected(&self, engine: &mut Engine, to: Modify) -> Result<(), VerbsError> {
        let at = self.handle.at;
        let state = engine.tables.pair(at)?.qp.state();
        let change = match &to {
            Modify::Reset => Change::Reset,
            Modify::Init(_) => Change::Init,
            Modify::Rtr(a) => {
                state.change_to(State::Rtr)?;
                let (peer, mtu) = self.peer_of(engine, a)?;
                engine.tables.pair(at)?.end.peer = Some(peer);
                Change::Rtr(qp::RtrAttributes {
                    peer: Qpn::new(a.number),
                    expected: Psn::new(a.expected),
                    mtu,
                    resources: a.resources.into(),
                    rnr_timer: a.rnr_timer & 31,
                    early: if peer.selective { packets_max(mtu) } else { 0 },
                })
            }
            Modify::Rts(a) => {
                state.change_to(State::Rts)?;
                let pair = engine.tables.pair(at)?;
                let mtu = pair.qp.connected().map_or(0, |qp| qp.mtu());
                pair.end.depth = a.depth;
                let selective = pair.end.peer.is_some_and(|p| p.selective);
                Change::Rts(self.to_rts(engine, a, mtu, selective)?)
            }
            Modify::Resume => Change::Resume,
            Modify::Sqd => Change::Sqd,
            Modify::Err => Change::Err,
            Modify::InitDatagram(_) | Modify::RtrDatagram | Modify::RtsDatagram(_) => {
                return Err(OTHER_SERVICE)
            }
        };
        let tables = &mut engine.tables;
        if matches!(to, Modify::Reset) {
            state.change_to(State::Reset)?;
            forget(tables, at)?;
        }
        tables
            .with(at, |qp, view| {
                qp.connected().map(|qp| qp.modify(change, view))
            })
            .flatten()
            .unwrap_or(Ok(()))?;
        if let Modify::Init(rights) = to {
            tables.pair(at)?.end.rights = rights;
        }
        Ok(())
    }

    /// The peer, and the bytes of a full packet to it.
    fn peer_of(&self, engine: &mut Engine, a: &Rtr) -> Result<(Peer, u32), VerbsError> {
        within(
            "number of the peer's queue pair",
            a.number.into(),
            (1 << 24) - 1,
        )?;
        within("RNR timer", a.rnr_timer.into(), 31)?;
        within(
            "READs of the peer in flight",
            a.resources.into(),
            DEPTH_MAX.into(),
        )?;
        if !matches!(a.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(VerbsError::Misuse(
                "a path MTU is 256, 512, 1024, 2048 or 4096 bytes",
            ));
        }
        let local = engine.local();
        let (at, features) = super::address::reached_from(a.peer, local)?;
        let owner = &self.handle.pd.context().owner;
        let is_ours = a.peer.is_ours() && owner.gid.is_ours();
        let same_host = local.ip() == at.ip() || local.ip().is_loopback() && at.ip().is_loopback();
        let common = match is_ours {
            true => owner.features.common(features),
            false => Features::default(),
        };
        let peer = Peer {
            at,
            is_ours: a.peer.is_ours(),
            with_icrc: !(same_host && common.without_icrc),
            selective: common.selective,
        };
        let payload = engine.payload_to(&peer);
        let long = u32::from(common.payload_kib) << 10;
        let mtu = match a.mtu {
            4096 if same_host => a.mtu.max(long),
            mtu => mtu,
        };
        if mtu as usize > payload {
            return Err(VerbsError::Range {
                what: "path MTU, which does not fit the packets of the way to the peer,",
                value: mtu.into(),
                limit: payload as u64,
            });
        }
        Ok((peer, mtu))
    }

    fn to_rts(
        &self,
        engine: &Engine,
        a: &Rts,
        mtu: u32,
        selective: bool,
    ) -> Result<qp::RtsAttributes, VerbsError> {
        within("READs in flight", a.depth.into(), DEPTH_MAX.into())?;
        within("time-out", a.timeout.into(), 31)?;
        within("number of retries", a.retries.into(), 7)?;
        within("number of RNR retries", a.rnr_retries.into(), 7)?;
        let one_try = match a.timeout {
            0 => FOREVER,
            code => Duration::from_nanos(4096 << code),
        };
        let give_up = one_try.saturating_mul(u32::from(a.retries) + 1);
        Ok(qp::RtsAttributes {
            first: Psn::new(a.first),
            depth: a.depth.into(),
            retries: a.retries.into(),
            rnr_retries: (a.rnr_retries < 7).then_some(a.rnr_retries.into()),
            give_up,
            pace: PaceConfig {
                window: engine.window(mtu).min(packets_max(mtu)),
                timeout_min: LOST_AFTER_MIN,
                timeout_max: one_try.clamp(LOST_AFTER_MIN, Duration::from_secs(1)),
                congestion: match selective {
                    true => Congestion::Dcqcn(DcqcnConfig::default()),
                    false => Congestion::Window,
                },
            },
            selective,
        })
    }

    fn check_destination(
        &self,
        r: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), VerbsError> {
        within("number of a queue pair", to.number.into(), (1 << 24) - 1)?;
        if !matches!(r.request, Request::Send(_)) {
            return Err(VerbsError::Misuse("a datagram is a SEND"));
        }
        if !to.handle.pd.is(&self.handle.pd) {
            return Err(VerbsError::Misuse(
                "the address handle is of another protection domain",
            ));
        }
        Ok(())
    }

    /// Begins to post. What is posted leaves when the result is dropped.
    pub fn begin(&self) -> Posting<'_> {
        Posting {
            engine: self.lock(),
            pair: self,
        }
    }

    /// Posts a request.
    ///
    /// # Errors
    /// [`VerbsError`]: the state, a full queue, or a request that no queue pair can do.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        self.begin().send(request)
    }

    /// Posts a datagram.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send), and a message that is longer than a packet.
    pub fn post_send_to(
        &self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), VerbsError> {
        self.begin().send_to(request, to)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    pub fn post_receive(&self, receive: &ReceiveRequest<'_>) -> Result<(), VerbsError> {
        self.begin().receive(receive)
    }
}

fn full(limit: u32) -> VerbsError {
    VerbsError::Full {
        what: "send queue",
        limit,
    }
}

/// Posts several requests, which leave together.
pub struct Posting<'a> {
    engine: MutexGuard<'a, Engine>,
    pair: &'a QueuePair,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        let shared = &self.pair.handle.pd.context().owner.shared;
        shared.kick(&mut self.engine);
    }
}

impl Posting<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn send(&mut self, r: &SendRequest<'_>) -> Result<(), VerbsError> {
        self.post(r, None)
    }

    /// Posts a datagram.
    ///
    /// # Errors
    /// As [`QueuePair::post_send_to`].
    pub fn send_to(&mut self, r: &SendRequest<'_>, to: &Destination<'_>) -> Result<(), VerbsError> {
        self.post(r, Some(to))
    }

    /// Checks that so many requests have room.
    ///
    /// # Errors
    /// [`VerbsError::Full`].
    pub fn reserve(&mut self, requests: usize) -> Result<(), VerbsError> {
        let limit = self.pair.handle.limits.sends;
        let pair = self.engine.tables.pair(self.pair.handle.at)?;
        match pair.end.queued() + requests <= limit as usize {
            true => Ok(()),
            false => Err(full(limit)),
        }
    }

    /// Checks a request as [`send`](Self::send) and [`send_to`](Self::send_to) do, but for room.
    ///
    /// # Errors
    /// As theirs.
    pub fn check(
        &mut self,
        r: &SendRequest<'_>,
        to: Option<&Destination<'_>>,
    ) -> Result<(), VerbsError> {
        self.examine(r, to).map(drop)
    }

    fn post(
        &mut self,
        r: &SendRequest<'_>,
        to: Option<&Destination<'_>>,
    ) -> Result<(), VerbsError> {
        let (len, way) = self.examine(r, to)?;
        let at = self.pair.handle.at;
        if !self.engine.tables.pair(at)?.end.post(r, len, way) {
            return Err(full(self.pair.handle.limits.sends));
        }
        self.engine.tables.with(at, |_, _| ());
        Ok(())
    }

    /// The bytes of a valid request, and where it goes.
    fn examine(
        &mut self,
        r: &SendRequest<'_>,
        to: Option<&Destination<'_>>,
    ) -> Result<(u32, Option<Way>), VerbsError> {
        let limits = &self.pair.handle.limits;
        let at = self.pair.handle.at;
        let pair = self.engine.tables.pair(at)?;
        let state = pair.qp.state();
        if matches!(state, State::Reset | State::Init | State::Rtr) {
            return Err(VerbsError::State {
                state,
                what: "request",
            });
        }
        let fetches = matches!(
            r.request,
            Request::Read(_) | Request::FetchAdd(..) | Request::CompareSwap(..)
        );
        let len = match r.local {
            Local::Registered(pieces) => {
                let most = limits.send_pieces.into();
                within("number of a request's pieces", pieces.len() as u64, most)?;
                pieces.iter().map(|p| u64::from(p.len)).sum()
            }
            Local::Inline(_) if fetches => {
                return Err(VerbsError::Misuse("an answer needs registered memory"));
            }
            Local::Inline(parts) => {
                let len = parts.iter().map(|p| p.len() as u64).sum();
                within("number of inline bytes", len, limits.inline.into())?;
                len
            }
        };
        let way = match to {
            Some(to) => {
                within(
                    "number of a datagram's bytes",
                    len,
                    to.handle.longest as u64,
                )?;
                self.pair.check_destination(r, to)?;
                Some(Way {
                    peer: to.handle.peer,
                    number: Qpn::new(to.number),
                    key: to.key,
                })
            }
            None => None,
        };
        if way.is_some() != matches!(pair.qp, Machine::Datagram(_)) {
            return Err(VerbsError::Misuse(
                "a datagram needs a destination, and no other request has one",
            ));
        }
        within("number of a message's bytes", len, MESSAGE_MAX.into())?;
        if fetches && pair.end.depth == 0 {
            return Err(VerbsError::Misuse(
                "the queue pair was made without READs and atomic operations in flight",
            ));
        }
        if matches!(r.request, Request::FetchAdd(..) | Request::CompareSwap(..)) && len != 8 {
            return Err(VerbsError::Misuse(
                "the answer of an atomic operation has 8 bytes",
            ));
        }
        Ok((len as u32, way))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`QueuePair::post_receive`].
    pub fn receive(&mut self, r: &ReceiveRequest<'_>) -> Result<(), VerbsError> {
        let limits = &self.pair.handle.limits;
        let at = self.pair.handle.at;
        let tables = &mut self.engine.tables;
        let pair = tables.pair(at)?;
        let (state, queue) = (pair.qp.state(), pair.end.at.receives);
        if state == State::Reset {
            return Err(VerbsError::State {
                state,
                what: "receive",
            });
        }
        let most = limits.receive_pieces.into();
        within("number of a receive's pieces", r.local.len() as u64, most)?;
        let queue = tables.receives[queue].as_mut().filter(|q| !q.is_shared);
        let queue = queue.ok_or(VerbsError::Misuse(
            "the queue pair shares its receives: post them to the shared queue",
        ))?;
        if !queue.post(r.id, r.local) {
            return Err(VerbsError::Full {
                what: "receive queue",
                limit: limits.receives,
            });
        }
        if state == State::Err {
            tables.with(at, |_, _| ());
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SrqHandle {
    pd: ProtectionDomain,
    at: usize,
    pieces: u32,
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        let mut engine = self.pd.context().owner.shared.lock();
        engine.tables.receives[self.at] = None;
    }
}

/// Receives that several queue pairs share. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqHandle>,
}

impl SharedReceiveQueue {
    /// How many queue pairs use it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`VerbsError::Range`], [`VerbsError::Full`].
    pub fn post_receive(&self, r: &ReceiveRequest<'_>) -> Result<(), VerbsError> {
        let most = self.inner.pieces.into();
        within("number of a receive's pieces", r.local.len() as u64, most)?;
        let mut engine = self.inner.pd.context().owner.shared.lock();
        let queue = engine.tables.receives[self.inner.at].as_mut();
        let queue = queue.ok_or(VerbsError::Misuse("the queue was destroyed"))?;
        match queue.post(r.id, r.local) {
            true => Ok(()),
            false => Err(VerbsError::Full {
                what: "shared receive queue",
                limit: queue.limit,
            }),
        }
    }
}
