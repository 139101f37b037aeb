//! Sequences of verbs calls, decoded from bytes, against a model of what may complete and what may
//! be written.
//!
//! A record of 8 bytes is a call: kind, end and object, and arguments. Objects are made, changed
//! and destroyed in any order; posts name keys, addresses and lengths of any kind. The model knows
//! each request that was posted: it completes once, on its queue, with success only if all that it
//! names was there and granted. And it knows each byte that some request may write: no other one
//! changes, nor any byte of a region that is gone.
#![allow(dead_code, unreachable_pub)] // Each user has a part of it.
#![allow(unsafe_code)] // Registers memory of the test.
#![allow(clippy::disallowed_methods)] // Sockets are real.

#[path = "clock.rs"]
mod clock;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clock::Clock;
use ringbell_net::port::impair::{Faults, Impair};
use ringbell_roce::verbs::{
    Access, AddressHandle, Completion, CompletionQueue, Context, ContextConfig, Destination, Gid,
    Local, MemoryRegion, Modify, ProtectionDomain, QpAttributes, QpLimits, QueuePair,
    ReceiveRequest, Remote, Request, Rights, Rtr, Rts, SendFlags, SendRequest, Service, Sge,
    SharedReceiveQueue, State, Status, WorkKind,
};

const RECORD: usize = 8;
/// Objects of each kind at an end.
const PLACES: usize = 3;
/// Bytes of a buffer.
const BYTES: usize = 8 << 10;
/// Everything that was posted has ended so long after its queue pair has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const KEY: u32 = 0x1234_5678;

/// A call's arguments.
#[derive(Clone, Copy)]
struct Record([u8; RECORD]);

impl Record {
    fn place(&self, n: usize) -> usize {
        usize::from(self.0[n]) % PLACES
    }
    fn word(&self, n: usize) -> u32 {
        u32::from_le_bytes([self.0[n], self.0[n + 1], self.0[n + 2], self.0[n + 3]])
    }
}

/// Memory that is registered again and again, and never freed before the end.
struct Buffer {
    bytes: Box<[u8]>,
    /// Which of them a request may have written.
    may: Vec<bool>,
    /// What the others are.
    before: Vec<u8>,
    region: Option<Region>,
}

struct Region {
    handle: MemoryRegion,
    /// Where it begins in the buffer.
    from: usize,
    pd: u64,
    access: Access,
}

impl Buffer {
    fn new(seed: usize) -> Buffer {
        let bytes: Box<[u8]> = (0..BYTES).map(|i| (i * 7 + seed) as u8).collect();
        Buffer {
            before: bytes.to_vec(),
            may: vec![false; BYTES],
            bytes,
            region: None,
        }
    }

    /// The bytes, which a NIC may be writing.
    fn now(&self) -> Vec<u8> {
        let read = |at: &u8| {
            // SAFETY: a byte of the box; a volatile access may meet the NIC's.
            unsafe { std::ptr::from_ref(at).read_volatile() }
        };
        self.bytes.iter().map(read).collect()
    }

    /// No byte has changed that no request may write.
    fn check(&self) {
        let now = self.now();
        for (i, byte) in now.iter().enumerate() {
            let is_right = self.may[i] || *byte == self.before[i];
            assert!(is_right, "byte {i} was written by no request");
        }
    }

    /// Ends the region: from now on nothing changes.
    fn end(&mut self) {
        self.check();
        self.region = None;
        self.before = self.now();
        self.may.fill(false);
    }

    /// Where a piece is, when the region has all of it.
    fn place(&self, at: u64, len: u32) -> Option<std::ops::Range<usize>> {
        let region = self.region.as_ref()?;
        let start = at.checked_sub(region.handle.address())?;
        let end = start.checked_add(len.into())?;
        let from = region.from;
        (end <= region.handle.len()).then(|| from + start as usize..from + end as usize)
    }
}

struct Pair {
    qp: QueuePair,
    pd: u64,
    service: Service,
    cq: usize,
    shared: bool,
    /// End and number of the queue pair that it was connected to.
    peer: Option<(usize, u32)>,
}

/// What was posted and has not completed.
struct Work {
    number: u32,
    cq: usize,
    is_receive: bool,
    /// Whether its local memory is there, as far as a success has used it.
    valid: bool,
    /// It need not complete: its queue pair was reset or destroyed, or its queue is shared.
    lost: bool,
}

struct End {
    handles: [Option<(u64, AddressHandle)>; PLACES],
    pairs: [Option<Pair>; PLACES],
    shared: [Option<(u64, SharedReceiveQueue)>; PLACES],
    buffers: [Buffer; PLACES],
    pds: [Option<(u64, ProtectionDomain)>; PLACES],
    cqs: [CompletionQueue; PLACES],
    context: Context,
}

impl End {
    fn new(context: Context) -> End {
        let cq = |_| context.create_cq(1 << 12, None).expect("entries");
        End {
            cqs: std::array::from_fn(cq),
            pds: Default::default(),
            buffers: std::array::from_fn(Buffer::new),
            pairs: Default::default(),
            shared: Default::default(),
            handles: Default::default(),
            context,
        }
    }

    /// Whether a request of a domain may use a piece. What it may write is noted.
    fn piece(&mut self, pd: u64, p: &Sge, writes: bool) -> bool {
        if p.len == 0 {
            return true;
        }
        for buffer in &mut self.buffers {
            let place = buffer.place(p.address, p.len);
            let region = buffer.region.as_ref();
            let region = region.filter(|r| r.handle.lkey() == p.lkey && r.pd == pd);
            let (Some(region), Some(place)) = (region, place) else {
                continue;
            };
            if writes && !region.access.local_write {
                return false;
            }
            if writes {
                buffer.may[place].fill(true);
            }
            return true;
        }
        false
    }

    /// Notes what a peer's request may write by a remote key.
    fn remote(&mut self, pd: u64, to: Remote, len: u32) {
        for buffer in &mut self.buffers {
            let place = buffer.place(to.address, len);
            let region = buffer.region.as_ref();
            let is_it =
                |r: &&Region| r.handle.rkey() == to.key && r.pd == pd && r.access.remote_write;
            if let (Some(_), Some(place)) = (region.filter(is_it), place) {
                buffer.may[place].fill(true);
            }
        }
    }
}

/// Both ends, and what is under way.
struct Rig {
    ends: [End; 2],
    next: u64,
    works: BTreeMap<(usize, u64), Work>,
    /// Of virtual time.
    clock: Option<Clock>,
}

/// How far time goes with each poll.
const TICK: Duration = Duration::from_micros(20);

/// Runs the calls that the bytes say. Each end begins with two connected queue pairs and memory
/// that peers may use.
pub fn run(bytes: &[u8]) {
    let config = ContextConfig::default();
    let open = || Context::open(&config).expect("a socket");
    run_between([open(), open()], None, bytes);
}

/// The same over bad cables, in virtual time: a run that can be repeated.
pub fn run_over(cables: [Faults; 2], bytes: &[u8]) {
    let clock = Clock::default();
    // Damage is found by the CRC alone.
    let config = ContextConfig {
        icrc: true,
        ..ContextConfig::default()
    };
    let contexts = cables.map(|faults| {
        let cable = |port| Impair::new(Box::new(port), faults).expect("faults that there are");
        clock.context(&config, cable)
    });
    run_between(contexts, Some(clock), bytes);
}

fn run_between(contexts: [Context; 2], clock: Option<Clock>, bytes: &[u8]) {
    let mut rig = Rig {
        ends: contexts.map(End::new),
        next: 1,
        works: BTreeMap::new(),
        clock,
    };
    for end in [0, 1] {
        rig.make_pd(end, 0);
        for at in [0, 1] {
            rig.register(end, at, Record([0, 0, 0, 2, 0, 255, 2, 0]));
            rig.make_pair(end, at, Record([0; RECORD]));
        }
    }
    for at in [0, 1] {
        rig.connect(0, at, Record([0, 0, at as u8, 1, 1, 0, 0, 0]));
    }
    for record in bytes.chunks_exact(RECORD) {
        let mut r = [0; RECORD];
        r.copy_from_slice(record);
        rig.call(Record(r));
    }
    rig.finish();
}

impl Rig {
    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn call(&mut self, r: Record) {
        let end = usize::from(r.0[1] & 1);
        let at = usize::from(r.0[1] >> 1) % PLACES;
        match r.0[0] % 20 {
            0 => self.make_pd(end, at),
            1 => self.register(end, at, r),
            2 => self.make_pair(end, at, r),
            3 => self.make_shared(end, at, r),
            4 => self.make_handle(end, at, r),
            5 => self.destroy(end, at, r),
            6 => self.connect(end, at, r),
            7 | 8 => self.change(end, at, r),
            9..=11 => self.receive(end, at, r),
            12..=17 => self.send(end, at, r),
            _ => self.poll(),
        }
    }

    fn make_pd(&mut self, end: usize, at: usize) {
        let name = self.name();
        let e = &mut self.ends[end];
        e.pds[at] = Some((name, e.context.alloc_pd().expect("a domain")));
    }

    fn register(&mut self, end: usize, at: usize, r: Record) {
        let e = &mut self.ends[end];
        let Some((pd, domain)) = &e.pds[r.place(2)] else {
            return;
        };
        let buffer = &mut e.buffers[at];
        buffer.end();
        let access = [Access::LOCAL_READ, Access::LOCAL, Access::REMOTE][r.place(3)];
        let from = usize::from(r.0[4]) * 8;
        let len = (usize::from(r.0[5]) * 40).min(BYTES - from);
        let memory = buffer.bytes.as_mut_ptr().wrapping_add(from);
        // Peers may know it by other addresses, some of them at the ends.
        let iova = match r.0[6] % 4 {
            0 => 0,
            1 => 0_u64.wrapping_sub(len as u64).wrapping_sub(1),
            _ => memory.addr() as u64,
        };
        // SAFETY: the box outlives the region, and meanwhile is read by volatile accesses alone.
        let made = unsafe { domain.register(memory, len, iova, access) };
        // One of no bytes is refused.
        if let Ok(handle) = made {
            let pd = *pd;
            buffer.region = Some(Region {
                handle,
                from,
                pd,
                access,
            });
        }
    }

    fn make_pair(&mut self, end: usize, at: usize, r: Record) {
        self.forget(end, at);
        let e = &mut self.ends[end];
        let Some((pd, domain)) = &e.pds[r.place(2)] else {
            return;
        };
        let is_datagram = r.0[3] % 4 == 3;
        let service = match is_datagram {
            true => Service::Datagram,
            false => Service::Connected,
        };
        let shared = e.shared[r.place(4)].as_ref().filter(|_| r.0[5] % 3 == 2);
        let made = domain.create_qp(&QpAttributes {
            service,
            send_cq: &e.cqs[at],
            receive_cq: &e.cqs[at],
            shared: shared.map(|s| &s.1),
            limits: QpLimits {
                sends: [64, 1, 0][r.place(6)],
                ..QpLimits::default()
            },
            signal_all: true,
        });
        e.pairs[at] = Some(Pair {
            qp: made.expect("within the limits"),
            pd: *pd,
            service,
            cq: at,
            shared: shared.is_some(),
            peer: None,
        });
    }

    fn make_shared(&mut self, end: usize, at: usize, r: Record) {
        let e = &mut self.ends[end];
        if let Some((pd, domain)) = &e.pds[r.place(2)] {
            let made = domain.create_srq([16, 1, 0][r.place(3)], 4);
            e.shared[at] = Some((*pd, made.expect("within the limits")));
        }
    }

    fn make_handle(&mut self, end: usize, at: usize, r: Record) {
        let gid = self.gid(r);
        let e = &mut self.ends[end];
        if let Some((pd, domain)) = &e.pds[r.place(2)] {
            // Of an address that no context has there is none.
            e.handles[at] = domain.create_ah(gid).ok().map(|ah| (*pd, ah));
        }
    }

    /// An end's address, seldom with a bit flipped.
    fn gid(&self, r: Record) -> Gid {
        let mut gid = self.ends[usize::from(r.0[3] & 1)].context.gid();
        if r.0[4] % 16 == 15 {
            gid.0[usize::from(r.0[5]) % 16] ^= 1 << (r.0[6] % 8);
        }
        gid
    }

    fn destroy(&mut self, end: usize, at: usize, r: Record) {
        match r.0[2] % 6 {
            0 => self.ends[end].pds[at] = None,
            1 | 2 => self.ends[end].buffers[at].end(),
            3 => self.forget(end, at),
            4 => self.ends[end].shared[at] = None,
            _ => self.ends[end].handles[at] = None,
        }
    }

    /// Destroys a queue pair.
    fn forget(&mut self, end: usize, at: usize) {
        if let Some(pair) = self.ends[end].pairs[at].take() {
            self.lose(end, pair.qp.number());
        }
    }

    /// What was posted to a queue pair need not complete.
    fn lose(&mut self, end: usize, number: u32) {
        for ((e, _), work) in &mut self.works {
            work.lost |= *e == end && work.number == number;
        }
    }

    /// Two queue pairs, or one alone, from RESET to RTS.
    fn connect(&mut self, end: usize, at: usize, r: Record) {
        let (peer_end, peer_at) = (usize::from(r.0[3] & 1), r.place(2));
        let gids = [0, 1].map(|n| self.ends[n].context.gid());
        let number = |rig: &Rig, e: usize, a: usize| {
            let pair = rig.ends[e].pairs[a].as_ref();
            pair.map(|p| p.qp.number())
        };
        let (Some(own), Some(peer)) = (number(self, end, at), number(self, peer_end, peer_at))
        else {
            return;
        };
        let sides = [(end, at, (peer_end, peer)), (peer_end, peer_at, (end, own))];
        let count = 1 + usize::from(r.0[4] & 3 != 0);
        for (e, a, peer) in sides.into_iter().take(count) {
            self.modify(e, a, Modify::Reset);
            self.modify(e, a, Modify::Init(Rights::ALL));
            let rtr = Rtr {
                peer: gids[peer.0],
                number: peer.1,
                expected: 7,
                mtu: 4096 >> (r.0[5] % 3),
                resources: 4,
                rnr_timer: 1,
            };
            if let (true, Some(pair)) = (
                self.modify(e, a, Modify::Rtr(rtr)),
                &mut self.ends[e].pairs[a],
            ) {
                pair.peer = Some(peer);
            }
            let rts = Rts {
                first: 7,
                depth: r.0[6] % 5,
                timeout: r.0[6] % 11,
                retries: r.0[6] % 4,
                rnr_retries: r.0[6] % 8,
            };
            self.modify(e, a, Modify::Rts(rts));
        }
    }

    /// One step, with arguments of any kind.
    fn change(&mut self, end: usize, at: usize, r: Record) {
        let (n, any) = (r.0[2], r.word(3));
        let to = match n % 11 {
            0 => Modify::Reset,
            1 => Modify::Init(Rights {
                read: any & 1 != 0,
                write: any & 2 != 0,
                atomic: any & 4 != 0,
            }),
            2 => Modify::InitDatagram(KEY),
            3 => Modify::Rtr(Rtr {
                peer: self.gid(r),
                number: any,
                expected: any >> 8,
                mtu: [256, 4096, any][r.place(7)],
                resources: any as u8,
                rnr_timer: (any >> 8) as u8,
            }),
            4 => Modify::RtrDatagram,
            5 => Modify::Rts(Rts {
                first: any,
                depth: any as u8,
                timeout: (any >> 8) as u8,
                retries: (any >> 16) as u8,
                rnr_retries: (any >> 24) as u8,
            }),
            6 => Modify::RtsDatagram(any),
            7 => Modify::Resume,
            8 => Modify::Sqd,
            _ => Modify::Err,
        };
        let is_done = self.modify(end, at, to);
        // A change that is refused leaves the peer as it was.
        if let (true, Modify::Rtr(a), Some(pair)) = (is_done, to, &mut self.ends[end].pairs[at]) {
            // By a guess it reaches none of ours.
            pair.peer = Some((usize::from(r.0[3] & 1), a.number));
        }
    }

    /// Whether it was done.
    fn modify(&mut self, end: usize, at: usize, to: Modify) -> bool {
        let Some(pair) = &self.ends[end].pairs[at] else {
            return false;
        };
        let (before, done, after) = (pair.qp.state(), pair.qp.modify(to), pair.qp.state());
        let number = pair.qp.number();
        // By itself it goes to an error alone.
        let has_failed = matches!(after, State::Err | State::Sqe);
        let target = match to {
            Modify::Reset => State::Reset,
            Modify::Init(_) | Modify::InitDatagram(_) => State::Init,
            Modify::Rtr(_) | Modify::RtrDatagram => State::Rtr,
            Modify::Rts(_) | Modify::RtsDatagram(_) | Modify::Resume => State::Rts,
            Modify::Sqd => State::Sqd,
            Modify::Err => State::Err,
        };
        match &done {
            Ok(()) => assert!(after == target || has_failed, "{to:?}: {before} to {after}"),
            Err(e) => assert!(after == before || has_failed, "{e}: {before} to {after}"),
        }
        if after == State::Reset {
            self.lose(end, number);
        }
        done.is_ok()
    }

    /// A piece of memory, as hostile as its bytes say.
    fn sge(&self, end: usize, r: Record) -> Sge {
        let buffer = &self.ends[end].buffers[r.place(2)];
        let (address, len, lkey, rkey) = match &buffer.region {
            Some(r) => {
                let h = &r.handle;
                (h.address(), h.len() as u32, h.lkey(), h.rkey())
            }
            None => (buffer.bytes.as_ptr().addr() as u64, 64, 0, 0),
        };
        let n = r.0[3];
        let offset = u32::from(r.0[4]) * 16 % len.max(1);
        let at = address.wrapping_add(offset.into());
        let (address, len) = match n % 16 {
            0 => (at, len - offset + 1),
            1 => (address.wrapping_sub(1), 2),
            2 => (address.wrapping_add(len.into()), 1),
            3 => (u64::MAX - u64::from(n), 4096),
            4 => (at, u32::MAX),
            5 => (at, 0),
            _ => (at, (u32::from(r.0[5]) * 32 + 8).min(len - offset)),
        };
        let lkey = match n >> 4 {
            0 => 0,
            1 => rkey,
            2 => lkey.wrapping_add(1),
            3 => u32::MAX,
            _ => lkey,
        };
        Sge { address, len, lkey }
    }

    fn remote(&self, r: Record) -> Remote {
        let piece = self.sge(usize::from(r.0[6] & 1), r);
        let buffer = &self.ends[usize::from(r.0[6] & 1)].buffers[r.place(2)];
        let key = buffer.region.as_ref().map_or(0, |r| r.handle.rkey());
        Remote {
            address: piece.address,
            key: if r.0[7] % 8 == 7 { piece.lkey } else { key },
        }
    }

    fn receive(&mut self, end: usize, at: usize, r: Record) {
        let id = self.name();
        let pieces = [
            self.sge(end, r),
            self.sge(end, Record(r.0.map(|b| b.rotate_left(3)))),
        ];
        let local = &pieces[..usize::from(r.0[6]) % 3];
        let receive = ReceiveRequest { id, local };
        let e = &mut self.ends[end];
        let shared = e.shared[at].as_ref().filter(|_| r.0[7] % 4 == 3);
        let (done, pd, cq, number) = match (shared, &e.pairs[at]) {
            (Some((pd, queue)), _) => (queue.post_receive(&receive), *pd, None, 0),
            (None, Some(p)) => {
                let number = p.qp.number();
                (p.qp.post_receive(&receive), p.pd, Some(p.cq), number)
            }
            (None, None) => return,
        };
        let mut valid = true;
        // Whether or not it was taken: noting too much hides little.
        for (n, piece) in local.iter().enumerate() {
            let is_there = e.piece(pd, piece, true);
            valid &= is_there || local[..n].iter().any(|p| p.len > 0);
        }
        if done.is_ok() {
            let work = Work {
                number,
                cq: cq.unwrap_or(usize::MAX),
                is_receive: true,
                valid,
                lost: cq.is_none(),
            };
            self.works.insert((end, id), work);
        }
    }

    fn send(&mut self, end: usize, at: usize, r: Record) {
        let id = self.name();
        let other = Record(r.0.map(|b| b.rotate_left(5)));
        let to = self.remote(other);
        let word = u64::from(r.word(4));
        let request = match r.0[7] % 10 {
            0 | 1 => Request::Send(None),
            2 => Request::Send(Some(r.word(4))),
            3 => Request::SendInvalidate(to.key),
            4 | 5 => Request::Write(to, None),
            6 => Request::Write(to, Some(1)),
            7 => Request::Read(to),
            8 => Request::FetchAdd(to, word),
            _ => Request::CompareSwap(to, word, word ^ 1),
        };
        let is_atomic = matches!(request, Request::FetchAdd(..) | Request::CompareSwap(..));
        let mut pieces = [self.sge(end, r), self.sge(end, other)];
        if is_atomic && r.0[6] & 1 == 0 {
            pieces[0].len = 8;
        }
        let pieces = &pieces[..usize::from(r.0[6] >> 1) % 3];
        let inline = [&r.0[..], &r.0[..3]];
        let is_inline = r.0[6] >> 5 == 7;
        let request = SendRequest {
            id,
            request,
            local: match is_inline {
                true => Local::Inline(&inline),
                false => Local::Registered(pieces),
            },
            flags: SendFlags {
                signaled: r.0[5] & 1 != 0,
                solicited: r.0[5] & 2 != 0,
                fence: r.0[5] & 4 != 0,
            },
        };
        let Some(pair) = &self.ends[end].pairs[at] else {
            return;
        };
        let (pd, cq, number) = (pair.pd, pair.cq, pair.qp.number());
        let handle = self.ends[end].handles[r.place(5)].as_ref();
        let is_addressed = (pair.service == Service::Datagram) != (r.0[4] % 16 == 15);
        // Before it is posted, since it may be done at once.
        let done = |rig: &Rig| {
            let pair = rig.ends[end].pairs[at].as_ref().expect("as before");
            match handle.filter(|_| is_addressed) {
                Some((_, handle)) => pair.qp.post_send_to(
                    &request,
                    &Destination {
                        handle,
                        number: r.word(3),
                        key: KEY,
                    },
                ),
                None => pair.qp.post_send(&request),
            }
        };
        let taken = done(self).is_ok();
        let (peer, reads) = (pair.peer, matches!(request.request, Request::Read(_)));
        let len = match is_inline {
            true => 11,
            false => pieces.iter().fold(0_u32, |n, p| n.saturating_add(p.len)),
        };
        let mut valid = true;
        if !is_inline {
            for piece in pieces {
                valid &= self.ends[end].piece(pd, piece, reads || is_atomic);
            }
        }
        if let (Some((e, number)), Request::Write(..)) = (peer, request.request) {
            self.written(e, number, to, len);
        } else if let (Some((e, number)), true) = (peer, is_atomic) {
            self.written(e, number, to, 8);
        }
        if taken {
            let work = Work {
                number,
                cq,
                is_receive: false,
                valid,
                lost: false,
            };
            self.works.insert((end, id), work);
        }
    }

    /// Notes what a request to a queue pair may write.
    fn written(&mut self, end: usize, number: u32, to: Remote, len: u32) {
        let e = &mut self.ends[end];
        let pairs = e.pairs.iter().flatten();
        let pd = pairs
            .filter(|p| p.qp.number() == number)
            .map(|p| p.pd)
            .next();
        if let Some(pd) = pd {
            e.remote(pd, to, len);
        }
    }

    fn poll(&mut self) {
        if let Some(clock) = &self.clock {
            clock.advance(TICK);
        }
        for end in [0, 1] {
            for at in 0..PLACES {
                let mut out = [Completion::EMPTY; 8];
                let n = self.ends[end].cqs[at].poll(&mut out).expect("room for all");
                for c in &out[..n] {
                    self.completed(end, at, c);
                }
            }
        }
    }

    fn completed(&mut self, end: usize, cq: usize, c: &Completion) {
        let work = self.works.remove(&(end, c.id));
        let work = work.unwrap_or_else(|| panic!("{c:?} was not posted, or has completed"));
        assert!(
            work.cq == cq || work.cq == usize::MAX,
            "{c:?}: another queue"
        );
        if c.status != Status::Success {
            return;
        }
        let receives = matches!(c.kind, WorkKind::Receive | WorkKind::ReceiveWrite);
        assert_eq!(receives, work.is_receive, "{c:?}");
        // A WRITE with immediate data and an empty message take no memory of a receive.
        let uses = c.kind != WorkKind::ReceiveWrite && (!receives || c.len > 0);
        assert!(work.valid || !uses, "{c:?} without its memory");
    }

    /// Everything ends: what was posted to queue pairs that are there completes.
    fn finish(mut self) {
        for end in [0, 1] {
            for at in 0..PLACES {
                let state = self.ends[end].pairs[at].as_ref().map(|p| p.qp.state());
                if state.is_some_and(|s| s != State::Reset) {
                    self.modify(end, at, Modify::Err);
                }
            }
        }
        let until = Instant::now() + PATIENCE;
        while self.works.values().any(|w| !w.lost) {
            self.poll();
            let left = self.works.values().filter(|w| !w.lost).count();
            assert!(Instant::now() < until, "{left} requests never completed");
        }
        for end in &mut self.ends {
            end.pairs = Default::default();
            end.buffers.iter_mut().for_each(Buffer::end);
        }
        for end in &self.ends {
            end.buffers.iter().for_each(Buffer::check);
        }
    }
}
