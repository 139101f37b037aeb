//! [`Engine`]: the messages of this rank, over a communicator of Ringbell.
//!
//! Every rank keeps receives for frames posted, from any rank, in memory that peers map. A short
//! message travels in its frame, and waits on the heap when it meets no receive. A long one stays
//! with its sender: the receiver posts its receive under a tag of its own, and says so.
//!
//! A thread of the layer advances the engine too, so that messages move while the program is inside
//! the library below. It must not call that library: what needs it (derived types, requests) is
//! left in `finished`.
#![allow(unsafe_code)] // The program's buffers, and slots in exported memory.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ringbell::abi::{CollectiveKind as K, GpuVa, Status};
use ringbell::{
    CollectiveError, Communicator, DataType, HostBuffer, Nic, Operation, ReduceOp, Request, Span,
};

use super::frame::{Frame, HEAD};
use super::matching::{Envelope, Queues, Wanted};
use super::operation::{Bytes, Fault, Finished, Op, Outcome, PEER_FAILED};
use crate::elements::Elements;
use crate::memory::{Memories, Place};

/// Most bytes of a short message: those of memory that is not registered ([`crate::memory`]).
pub(super) const SHORT: usize = 64 << 10;

/// Frames that may come, and that may leave, at once.
const SLOTS: usize = 16;

/// Bytes of a frame's slot.
const SLOT: usize = SHORT + HEAD;

/// Operations posted since a receive of a frame after which it is posted again: the communicator's
/// queue has 256 places, used in turn, and an operation under way keeps its place.
const AGE: u64 = 64;

/// Long messages that may move at once; more wait.
const TRANSFERS: usize = 16;

/// Most bytes of a piece of a long message: Ringbell's messages have less than 4 GiB.
const PIECE: u64 = 1 << 30;

/// Ringbell's tag of frames.
const FRAMES: u32 = 0;

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) op: Arc<Op>,
    pub(super) to: Elements,
    /// Bytes of its elements.
    pub(super) room: u64,
}

/// What a send sends.
#[derive(Debug)]
pub(super) enum Source {
    /// The program's memory, which it leaves alone until the send has ended.
    Program(*const u8),
    /// Packed, or a copy that the program's send does not wait for.
    Heap(Vec<u8>),
}

/// A send.
#[derive(Debug)]
pub(super) struct Send {
    /// `None`: the program has been told of its end.
    pub(super) op: Option<Arc<Op>>,
    pub(super) source: Source,
    pub(super) bytes: u64,
    pub(super) synchronous: bool,
}

/// A message that met no receive.
#[derive(Debug)]
pub(super) enum Message {
    /// Its bytes, and a synchronous send of this rank or another that waits.
    Short(Vec<u8>, Waits),
    Long(Announced),
}

/// A long message at its sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announced {
    /// Rank in `MPI_COMM_WORLD`.
    peer: u32,
    id: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(super) enum Waits {
    None,
    /// At a rank of `MPI_COMM_WORLD`, with its id.
    There(u32, u64),
    Here(Arc<Op>),
}

impl Message {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Message::Short(b, _) => b.len() as u64,
            Message::Long(m) => m.bytes,
        }
    }
}

/// A long message that moves.
#[derive(Debug)]
struct Transfer {
    requests: VecDeque<Request>,
    /// Exported memory with its bytes, where the program's has no place.
    scratch: Option<HostBuffer>,
    _place: Option<Place>,
    end: End,
}

#[derive(Debug)]
enum End {
    Sent(Option<Arc<Op>>, #[allow(dead_code)] Source),
    Received(Receive, Envelope, u64),
}

/// A long message that may begin.
#[derive(Debug)]
enum Ready {
    Send { to: u32, under: u32, send: Send },
    Receive(Receive, Envelope, Announced),
}

/// The messages of this rank.
#[derive(Debug)]
pub(super) struct Engine {
    nic: Nic,
    comm: Communicator,
    queues: Queues<Receive, Message>,
    slots: HostBuffer,
    /// Receives of frames, in the order of their posting, with their slots.
    inbox: VecDeque<(usize, Request)>,
    /// Operations posted, and how many there were when each receive of `inbox` was.
    posts: Cell<u64>,
    ages: VecDeque<u64>,
    /// Frames under way, in the order in which they left.
    leaving: VecDeque<(usize, Request)>,
    free: Vec<usize>,
    /// Frames that wait for a slot.
    outbox: VecDeque<(u32, Vec<u8>)>,
    /// Long and synchronous sends, by id.
    sends: HashMap<u64, Send>,
    transfers: Vec<Transfer>,
    ready: VecDeque<Ready>,
    pub(super) finished: Vec<Finished>,
    next_id: u64,
    next_tag: u32,
    /// Why no message moves any more.
    lost: Option<String>,
}

// SAFETY: the program's addresses in it are only used while the operation that they belong to is
// under way, by one thread at a time.
unsafe impl std::marker::Send for Engine {}

impl Engine {
    pub(super) fn new(nic: &Nic, comm: Communicator) -> Result<Engine, String> {
        let slots = nic.alloc_host(2 * SLOTS * SLOT);
        let slots = slots.map_err(|e| e.to_string())?;
        let mut engine = Engine {
            nic: nic.clone(),
            comm,
            queues: Queues::default(),
            slots,
            inbox: VecDeque::new(),
            posts: Cell::new(0),
            ages: VecDeque::new(),
            leaving: VecDeque::new(),
            free: (SLOTS..2 * SLOTS).collect(),
            outbox: VecDeque::new(),
            sends: HashMap::new(),
            transfers: Vec::new(),
            ready: VecDeque::new(),
            finished: Vec::new(),
            next_id: 0,
            next_tag: FRAMES,
            lost: None,
        };
        for slot in 0..SLOTS {
            engine.expect(slot).map_err(|e| e.to_string())?;
        }
        Ok(engine)
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        self.slots.as_ptr().wrapping_add(slot * SLOT)
    }

    /// Posts the receive of a frame.
    fn expect(&mut self, slot: usize) -> Result<(), CollectiveError> {
        let to = span(self.slot(slot), SLOT as u64);
        let o = Operation::recv::<u8>(to, SLOT as u64, None, Some(FRAMES));
        self.inbox.push_back((slot, self.post(&o)?));
        self.ages.push_back(self.posts.get());
        Ok(())
    }

    fn post(&self, o: &Operation) -> Result<Request, CollectiveError> {
        self.posts.set(self.posts.get() + 1);
        self.comm.post(o)
    }

    /// Posts old receives of frames again.
    fn renew(&mut self) -> Result<(), CollectiveError> {
        while let (Some(age), Some((slot, request))) = (self.ages.front(), self.inbox.front_mut()) {
            // One that has ended has a frame.
            if self.posts.get() - age < AGE || request.cancel().is_err() {
                break;
            }
            // Takes its end, which gives its place in the queue back.
            let _ = request.wait_to_end();
            let slot = *slot;
            self.forget_first();
            self.expect(slot)?;
        }
        Ok(())
    }

    /// The first receive of a frame has ended.
    fn forget_first(&mut self) {
        self.inbox.pop_front();
        self.ages.pop_front();
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Begins a send to a rank of `MPI_COMM_WORLD`.
    pub(super) fn send(&mut self, to: u32, of: Envelope, send: Send) {
        if let Some(why) = self.lost.clone() {
            return self.sent(send.op, Some(why));
        }
        if to == self.comm.rank() {
            return self.send_to_self(of, send);
        }
        if send.bytes > SHORT as u64 {
            let (id, bytes) = (self.id(), send.bytes);
            let frame = Frame::Long { of, id, bytes };
            self.outbox.push_back((to, frame.encode().to_vec()));
            self.sends.insert(id, send);
            return;
        }
        let id = if send.synchronous { self.id() } else { 0 };
        let mut frame = Vec::with_capacity(HEAD + send.bytes as usize);
        frame.extend_from_slice(&Frame::Short { of, id }.encode());
        frame.extend_from_slice(send.source.bytes(send.bytes));
        self.outbox.push_back((to, frame));
        if send.synchronous {
            self.sends.insert(id, send);
        } else {
            self.sent(send.op, None);
        }
    }

    fn send_to_self(&mut self, envelope: Envelope, send: Send) {
        let bytes = send.source.bytes(send.bytes).to_vec();
        let waits = match send.op {
            Some(op) if send.synchronous => Waits::Here(op),
            op => {
                self.sent(op, None);
                Waits::None
            }
        };
        match self.queues.meet(&envelope) {
            Some(receive) => self.deliver(receive, envelope, Message::Short(bytes, waits)),
            None => self.queues.keep(envelope, Message::Short(bytes, waits)),
        }
    }

    /// A send has ended.
    pub(super) fn sent(&mut self, op: Option<Arc<Op>>, fault: Option<String>) {
        if let Some(op) = op {
            let fault = fault.map(Fault::Lost);
            let outcome = Outcome {
                fault,
                ..Outcome::default()
            };
            self.finished.push(Finished {
                op,
                outcome,
                unpack: None,
            });
        }
    }

    /// Begins a receive.
    pub(super) fn receive(&mut self, wanted: Wanted, receive: Receive) {
        match self.queues.take(&wanted) {
            Some((envelope, message)) => self.deliver(receive, envelope, message),
            None => match self.lost.clone() {
                Some(why) => self.failed(receive.op, why),
                None => self.queues.post(wanted, receive),
            },
        }
    }

    fn failed(&mut self, op: Arc<Op>, why: String) {
        self.sent(Some(op), Some(why));
    }

    /// The first message for a probe: where it is from, and its bytes.
    pub(super) fn look(&self, wanted: &Wanted) -> Option<(Envelope, u64)> {
        let found = self.queues.look(wanted);
        found.map(|(e, m)| (*e, m.bytes()))
    }

    /// Takes out the first message for a matched probe.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, Message)> {
        self.queues.take(wanted)
    }

    /// A message has met its receive.
    pub(super) fn deliver(&mut self, receive: Receive, e: Envelope, message: Message) {
        match message {
            Message::Short(bytes, waits) => {
                match waits {
                    Waits::None => {}
                    Waits::Here(op) => self.sent(Some(op), None),
                    Waits::There(peer, id) => self.tell(peer, Frame::Met { id }),
                }
                self.received(receive, e, bytes.len() as u64, Bytes::Heap(bytes));
            }
            Message::Long(m) => self.ready.push_back(Ready::Receive(receive, e, m)),
        }
    }

    fn tell(&mut self, to: u32, frame: Frame) {
        self.outbox.push_back((to, frame.encode().to_vec()));
    }

    /// The bytes of a receive are here.
    fn received(&mut self, receive: Receive, e: Envelope, bytes: u64, at: Bytes) {
        let taken = bytes.min(receive.room);
        let (from, at) = match at {
            Bytes::Heap(mut b) => {
                b.truncate(taken as usize);
                (b.as_ptr(), Bytes::Heap(b))
            }
            Bytes::Exported(b, _) => (b.as_ptr().cast_const(), Bytes::Exported(b, taken as usize)),
        };
        let unpack = match receive.to {
            Elements::Plain(to) => {
                // SAFETY: the program's buffer, of at least as many bytes, which it leaves alone
                // until the receive has ended.
                unsafe { to.copy_from_nonoverlapping(from, taken as usize) };
                None
            }
            to => Some((to, at)),
        };
        self.ended(receive.op, e, (bytes, taken), unpack);
    }

    fn ended(
        &mut self,
        op: Arc<Op>,
        e: Envelope,
        (bytes, taken): (u64, u64),
        unpack: Option<(Elements, Bytes)>,
    ) {
        let outcome = Outcome {
            source: Some(e.source),
            tag: e.tag,
            bytes: taken,
            fault: (bytes > taken).then_some(Fault::Truncated),
            ..Outcome::default()
        };
        self.finished.push(Finished {
            op,
            outcome,
            unpack,
        });
    }

    /// Whether [`Engine::advance`] would move something. It does not step the NIC: beside a thread
    /// that does now and then, the NIC's own would not, and peers would wait for the next time.
    pub(super) fn has_news(&self) -> bool {
        let ended = |r: Option<&Request>| r.is_some_and(Request::has_ended);
        self.lost.is_none()
            && (ended(self.inbox.front().map(|(_, r)| r))
                || ended(self.leaving.front().map(|(_, r)| r))
                || self.transfers.iter().any(|t| ended(t.requests.front()))
                || !self.ready.is_empty() && self.transfers.len() < TRANSFERS
                || !self.outbox.is_empty() && !self.free.is_empty())
    }

    /// Moves what can move; never waits.
    pub(super) fn advance(&mut self, memories: &Memories) {
        if self.lost.is_some() {
            return;
        }
        if let Err(error) = self.step(memories) {
            self.lose(&error);
        }
    }

    fn step(&mut self, memories: &Memories) -> Result<(), CollectiveError> {
        loop {
            let mut moved = self.hear()?;
            self.renew()?;
            while let Some((_, request)) = self.leaving.front_mut() {
                if request.test()?.is_none() {
                    break;
                }
                let gone = self.leaving.pop_front();
                self.free.extend(gone.map(|(slot, _)| slot));
                moved = true;
            }
            moved |= self.move_long()?;
            moved |= self.begin(memories)?;
            while !self.outbox.is_empty() {
                let Some(slot) = self.free.pop() else {
                    break;
                };
                let Some((to, frame)) = self.outbox.pop_front() else {
                    break;
                };
                let at = self.slot(slot);
                // SAFETY: a slot of its own, which is long enough for every frame.
                unsafe { at.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
                let bytes = frame.len() as u64;
                let o = Operation::send::<u8>(span(at, bytes), bytes, to, FRAMES);
                self.leaving.push_back((slot, self.post(&o)?));
                moved = true;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Takes frames that have come.
    fn hear(&mut self) -> Result<bool, CollectiveError> {
        let mut heard = false;
        while let Some((slot, request)) = self.inbox.front_mut() {
            let slot = *slot;
            match request.test() {
                Ok(None) => break,
                Ok(Some(done)) => {
                    // SAFETY: the slot is ours until its receive is posted again.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(self.slot(slot), done.bytes as usize) };
                    self.forget_first();
                    if let Some((frame, rest)) = Frame::decode(bytes) {
                        self.on_frame(frame, rest, (done.detail >> 32) as u32);
                    }
                }
                // No frame came for as long as an operation may last.
                Err(CollectiveError::Failed {
                    status: Status::TimedOut,
                    ..
                }) => {
                    self.forget_first();
                }
                Err(error) => return Err(error),
            }
            self.expect(slot)?;
            heard = true;
        }
        Ok(heard)
    }

    /// A frame has come from a rank of `MPI_COMM_WORLD`.
    fn on_frame(&mut self, frame: Frame, rest: &[u8], peer: u32) {
        match frame {
            Frame::Short { of: e, id } => {
                let waits = if id == 0 {
                    Waits::None
                } else {
                    Waits::There(peer, id)
                };
                match self.queues.meet(&e) {
                    // Straight from the slot.
                    Some(receive) if matches!(receive.to, Elements::Plain(_)) => {
                        let taken = receive.room.min(rest.len() as u64);
                        if let Elements::Plain(to) = receive.to {
                            // SAFETY: as in `received`.
                            unsafe { to.copy_from_nonoverlapping(rest.as_ptr(), taken as usize) };
                        }
                        if id != 0 {
                            self.tell(peer, Frame::Met { id });
                        }
                        self.ended(receive.op, e, (rest.len() as u64, taken), None);
                    }
                    Some(receive) => {
                        self.deliver(receive, e, Message::Short(rest.to_vec(), waits));
                    }
                    None => self.queues.keep(e, Message::Short(rest.to_vec(), waits)),
                }
            }
            Frame::Long { of: e, id, bytes } => {
                let message = Message::Long(Announced { peer, id, bytes });
                match self.queues.meet(&e) {
                    Some(receive) => self.deliver(receive, e, message),
                    None => self.queues.keep(e, message),
                }
            }
            Frame::Clear { id, under } => {
                if let Some(send) = self.sends.remove(&id) {
                    let to = peer;
                    self.ready.push_back(Ready::Send { to, under, send });
                }
            }
            Frame::Met { id } => {
                if let Some(send) = self.sends.remove(&id) {
                    self.sent(send.op, None);
                }
            }
        }
    }

    /// Begins long messages, as many as may move at once.
    fn begin(&mut self, memories: &Memories) -> Result<bool, CollectiveError> {
        let mut begun = false;
        while self.transfers.len() < TRANSFERS {
            let Some(ready) = self.ready.pop_front() else {
                break;
            };
            begun = true;
            let transfer = match ready {
                Ready::Send { to, under, send } => self.begin_send(memories, to, under, send)?,
                Ready::Receive(r, e, m) => self.begin_receive(memories, r, e, m)?,
            };
            self.transfers.push(transfer);
        }
        Ok(begun)
    }

    fn begin_send(
        &mut self,
        memories: &Memories,
        to: u32,
        under: u32,
        send: Send,
    ) -> Result<Transfer, CollectiveError> {
        let from = send.source.bytes(send.bytes).as_ptr().cast_mut();
        let place = memories.place(&self.nic, from, send.bytes as usize);
        let mut scratch = None;
        let at = match place {
            Some(_) => from,
            None => {
                let copy = self.scratch(memories, send.bytes)?;
                let at = copy.as_ptr();
                // SAFETY: a copy to memory of our own; the program leaves its buffer alone while it
                // sends.
                unsafe { at.copy_from_nonoverlapping(from, send.bytes as usize) };
                scratch = Some(copy);
                at
            }
        };
        Ok(Transfer {
            requests: self.post_pieces(K::Send, at, send.bytes, to, under)?,
            scratch,
            _place: place,
            end: End::Sent(send.op, send.source),
        })
    }

    fn begin_receive(
        &mut self,
        memories: &Memories,
        receive: Receive,
        e: Envelope,
        Announced { peer, id, bytes }: Announced,
    ) -> Result<Transfer, CollectiveError> {
        let (mut place, mut scratch) = (None, None);
        let mut at = std::ptr::null_mut();
        if let Elements::Plain(to) = receive.to {
            if bytes <= receive.room {
                place = memories.place(&self.nic, to, bytes as usize);
                at = to;
            }
        }
        if place.is_none() {
            let copy = self.scratch(memories, bytes)?;
            at = copy.as_ptr();
            scratch = Some(copy);
        }
        // Any but that of frames, and that of any.
        self.next_tag = self.next_tag % (u32::MAX - 1) + 1;
        let under = self.next_tag;
        let requests = self.post_pieces(K::Recv, at, bytes, peer, under)?;
        self.tell(peer, Frame::Clear { id, under });
        Ok(Transfer {
            requests,
            scratch,
            _place: place,
            end: End::Received(receive, e, bytes),
        })
    }

    fn scratch(&self, memories: &Memories, bytes: u64) -> Result<HostBuffer, CollectiveError> {
        let made = memories.export(&self.nic, bytes as usize);
        made.map_err(|e| CollectiveError::Misuse {
            kind: K::Send,
            why: e.to_string(),
        })
    }

    fn post_pieces(
        &self,
        kind: K,
        at: *mut u8,
        bytes: u64,
        peer: u32,
        under: u32,
    ) -> Result<VecDeque<Request>, CollectiveError> {
        let mut requests = VecDeque::new();
        let mut start = 0;
        while start < bytes {
            let len = PIECE.min(bytes - start);
            let piece = span(at.wrapping_add(start as usize), len);
            let (src, dst) = match kind {
                K::Send => (piece, Span::NONE),
                _ => (Span::NONE, piece),
            };
            let o = Operation::by_kind(kind, DataType::U8, ReduceOp::Sum, src, dst, len, peer);
            requests.push_back(self.post(&o.tag(under))?);
            start += len;
        }
        Ok(requests)
    }

    /// Ends long messages that have moved.
    fn move_long(&mut self) -> Result<bool, CollectiveError> {
        let mut ended = false;
        let mut at = 0;
        while let Some(transfer) = self.transfers.get_mut(at) {
            while let Some(request) = transfer.requests.front_mut() {
                if request.test()?.is_none() {
                    break;
                }
                transfer.requests.pop_front();
            }
            if !transfer.requests.is_empty() {
                at += 1;
                continue;
            }
            ended = true;
            let done = self.transfers.swap_remove(at);
            match (done.end, done.scratch) {
                (End::Sent(op, _), _) => self.sent(op, None),
                (End::Received(receive, e, bytes), Some(scratch)) => {
                    self.received(receive, e, bytes, Bytes::Exported(scratch, bytes as usize));
                }
                (End::Received(receive, e, bytes), None) => {
                    self.ended(receive.op, e, (bytes, bytes), None);
                }
            }
        }
        Ok(ended)
    }

    /// Cancels receives that met no message.
    pub(super) fn cancel(&mut self) {
        for receive in self.queues.withdraw(|r| r.op.is_cancelled()) {
            let outcome = Outcome {
                cancelled: true,
                ..Outcome::default()
            };
            self.finished.push(Finished {
                op: receive.op,
                outcome,
                unpack: None,
            });
        }
    }

    /// Lets go of what is empty of communicators that are not in use.
    pub(super) fn prune(&mut self, in_use: impl Fn(u64) -> bool) {
        self.queues.prune(in_use);
    }

    /// Whether everything has left that the program was told is sent.
    pub(super) fn has_left(&self) -> bool {
        self.lost.is_some()
            || self.outbox.is_empty()
                && self.leaving.is_empty()
                && self.ready.is_empty()
                && self.transfers.is_empty()
                && self.sends.is_empty()
    }

    /// Waits until something may have moved, at most so long.
    pub(super) fn wait(&mut self, at_most: Duration) {
        let moving = self.transfers.first_mut();
        let request = match moving.and_then(|t| t.requests.front_mut()) {
            Some(request) => Some(request),
            None => self.inbox.front_mut().map(|(_, r)| r),
        };
        if let Some(request) = request.filter(|_| self.lost.is_none()) {
            // Its end is seen by the next step.
            let _ = request.wait_for(at_most);
        }
    }

    /// Why no message moves any more.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Ends the receives of frames.
    pub(super) fn close(&mut self) {
        self.lost = Some("MPI is finalized".into());
        for (_, mut request) in self.inbox.drain(..) {
            // One that has ended takes no memory either.
            let _ = request.cancel();
        }
    }

    /// The communicator has ended: so do all operations.
    fn lose(&mut self, error: &CollectiveError) {
        let why = match error {
            CollectiveError::Failed {
                status: Status::PeerFailed,
                detail,
                ..
            } => format!("{PEER_FAILED}rank {detail} has ended"),
            other => other.to_string(),
        };
        self.lost = Some(why.clone());
        self.outbox.clear();
        let transfers = std::mem::take(&mut self.transfers);
        let ready = std::mem::take(&mut self.ready);
        let sends = std::mem::take(&mut self.sends);
        for (_, send) in sends {
            self.sent(send.op, Some(why.clone()));
        }
        for ready in ready {
            match ready {
                Ready::Send { send, .. } => self.sent(send.op, Some(why.clone())),
                Ready::Receive(receive, ..) => self.failed(receive.op, why.clone()),
            }
        }
        for transfer in transfers {
            for mut request in transfer.requests {
                // The NIC must not touch the program's memory any more.
                let _ = request.wait_to_end();
            }
            match transfer.end {
                End::Sent(op, _) => self.sent(op, Some(why.clone())),
                End::Received(receive, ..) => self.failed(receive.op, why.clone()),
            }
        }
        for receive in self.queues.withdraw(|_| true) {
            self.failed(receive.op, why.clone());
        }
    }
}

impl Source {
    fn bytes(&self, bytes: u64) -> &[u8] {
        match self {
            Source::Heap(b) => b,
            Source::Program(_) if bytes == 0 => &[],
            // SAFETY: the program's buffer, which it leaves alone until the send has ended.
            Source::Program(at) => unsafe { std::slice::from_raw_parts(*at, bytes as usize) },
        }
    }
}

fn span(at: *mut u8, bytes: u64) -> Span {
    Span::of(GpuVa(at.expose_provenance() as u64), bytes)
}
