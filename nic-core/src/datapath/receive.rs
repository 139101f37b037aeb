//! The receiving direction of a stream: [`ReceivePath`], which moves the bytes of a [`Source`] to
//! posted receives.
#![allow(unsafe_code)] // Raw copies out of memory that a peer may write.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::{Datapath, RecvWork, TransportEvent};
use crate::dma::{each_mapped, DmaAccess};
use crate::engine::{Direction, EngineFailed, Stage, PIECE};
use crate::types::{Buffer, ConnId, WorkToken};
use ringbell_gtlb::copy;
use ringbell_net::port::Places;

/// Receives below this size stay in the cache, however many are posted: their waiter reads them
/// soon.
const STREAM_FROM: u32 = 256 << 10;

/// The next bytes of a stream.
pub(crate) enum Run<'a> {
    /// In the NIC's own memory, where they stay unchanged.
    Own(&'a [u8]),
    /// In memory of a peer, who may write it at any time.
    Peer(Mapped),
    /// They exist, but the transport must do something first: the call ends with [`Filled::Later`].
    Later,
    /// None has arrived.
    Empty,
}

/// Bytes of a peer that are mapped here.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    from: *const u8,
    len: usize,
}

impl Mapped {
    /// # Safety
    /// `from` is mapped for `len` bytes until the source that gives this is called again.
    pub(crate) unsafe fn new(from: *const u8, len: usize) -> Mapped {
        Mapped { from, len }
    }

    fn part(self, at: usize, len: usize) -> Mapped {
        assert!(at + len <= self.len);
        Mapped {
            from: self.from.wrapping_add(at),
            len,
        }
    }

    fn first(self, len: usize) -> Mapped {
        self.part(0, len)
    }

    /// Copies all to memory of the NIC's own.
    pub(crate) fn copy_to(self, to: &mut [u8], dma: &mut dyn DmaAccess) {
        assert_eq!(self.len, to.len());
        // SAFETY: mapped for its length (`new`, or a slice); the destination is ours.
        unsafe { copy::copy(to.as_mut_ptr(), self.from, self.len) };
        dma.count_copied(self.len as u64);
    }

    /// Copies all to a buffer, and what memory gets to `kept`, too, in one pass. `streaming`:
    /// around the cache; with `kept` unordered until [`copy::fence_streaming`].
    pub(crate) fn put(
        self,
        dma: &mut dyn DmaAccess,
        buffer: &Buffer,
        at: u64,
        mut kept: Option<&mut [u8]>,
        streaming: bool,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < self.len {
            let offset = at + done as u64;
            let span = dma.span(buffer, offset)?.prefix((self.len - done) as u64);
            let n = span.len as usize;
            let src = self.from.wrapping_add(done);
            let kept = kept.as_deref_mut().map(|k| &mut k[done..done + n]);
            match (dma.direct(span), kept) {
                (Some(to), None) => {
                    // SAFETY: the source is mapped for its length (`Mapped::new`), the destination
                    // as well (`direct`).
                    unsafe {
                        match streaming {
                            true => copy::copy_streaming(to, src, n),
                            false => copy::copy(to, src, n),
                        }
                    }
                    dma.count_copied(span.len);
                }
                (Some(to), Some(kept)) => {
                    // SAFETY: as above; `kept` is ours and holds `n` bytes.
                    unsafe { copy::copy_twice(to, kept.as_mut_ptr(), src, n, streaming) };
                    dma.count_copied(2 * span.len);
                }
                (None, kept) => {
                    let mut bounce = Vec::new();
                    let kept = kept.unwrap_or_else(|| {
                        bounce.resize(n, 0);
                        &mut bounce
                    });
                    self.part(done, n).copy_to(kept, dma);
                    dma.write(buffer, offset, kept)?;
                }
            }
            done += n;
        }
        Ok(())
    }
}

impl From<&[u8]> for Mapped {
    fn from(bytes: &[u8]) -> Mapped {
        Mapped {
            from: bytes.as_ptr(),
            len: bytes.len(),
        }
    }
}

/// Where a transport has the bytes that have arrived, in order.
pub(crate) trait Source {
    /// The next of them. The same again until they are consumed.
    fn next(&mut self) -> Run<'_>;

    /// The first `n` bytes of the last run are taken.
    fn consume(&mut self, n: usize);

    /// How many bytes of a peer's memory come now, before any others.
    fn ahead(&self) -> usize {
        0
    }

    /// No byte is left, and the peer sends no more.
    fn is_ended(&self) -> bool;

    /// Whether the peer has taken the bytes of a [`Run::Peer`] back. Asked after they were copied.
    fn is_revoked(&self) -> bool {
        false
    }
}

/// Bytes of one packet. What is left in the slice was not taken.
impl Source for &[u8] {
    #[inline]
    fn next(&mut self) -> Run<'_> {
        match self.is_empty() {
            true => Run::Empty,
            false => Run::Own(self),
        }
    }

    #[inline]
    fn consume(&mut self, n: usize) {
        *self = &self[n..];
    }

    #[inline]
    fn is_ended(&self) -> bool {
        false
    }
}

/// How a call of [`ReceivePath::fill`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// No bytes or no receives are left.
    All,
    /// The source has said so.
    Later,
    /// The peer has revoked its bytes: the stream ends.
    Revoked,
    /// The engine that changes the stream has failed: the stream ends.
    Failed(EngineFailed),
}

/// Why bytes stopped moving to one receive.
enum Stop {
    Full,
    Empty,
    Later,
    Revoked,
    Failed(EngineFailed),
}

/// A receive that has not retired.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    work: RecvWork,
    /// Bytes in its buffer.
    done: u32,
}

/// The posted receives of a stream.
#[derive(Debug)]
pub(crate) struct ReceivePath {
    conn: ConnId,
    recvs: VecDeque<Receiving>,
    /// An engine holds bytes for the next receive.
    holds: bool,
}

impl ReceivePath {
    pub(crate) fn new(conn: ConnId) -> ReceivePath {
        ReceivePath {
            conn,
            recvs: VecDeque::new(),
            holds: false,
        }
    }

    /// Gives back memory for more receives than there are.
    pub(crate) fn shrink(&mut self) {
        self.recvs.shrink_to_fit();
    }

    /// Whether no receive is posted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.recvs.is_empty()
    }

    /// Whether bytes that are no more with the source wait for a receive, so that `fill` must be
    /// called when one comes.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    /// Queues a receive. It is filled by the next [`fill`](ReceivePath::fill).
    #[inline]
    pub(crate) fn post(&mut self, work: RecvWork) {
        self.recvs.push_back(Receiving { work, done: 0 });
    }

    /// The receive with this number: its buffer, and the bytes that it has.
    pub(crate) fn at(&self, number: usize) -> Option<(Buffer, u32)> {
        self.recvs.get(number).map(|r| (r.work.buffer, r.done))
    }

    /// The number of a receive.
    pub(crate) fn number_of(&self, token: WorkToken) -> Option<usize> {
        self.recvs.iter().position(|r| r.work.token == token)
    }

    /// Removes a receive; gives the bytes that it has. The path does not touch its buffer again.
    pub(crate) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let r = self.recvs.remove(self.number_of(token)?)?;
        Some(r.done.into())
    }

    /// Retires all receives with a status and its detail.
    pub(crate) fn fail_all(
        &mut self,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        while !self.recvs.is_empty() {
            self.retire((status, detail), events);
        }
    }

    /// Retires the first receive.
    fn retire(&mut self, (status, detail): (Status, u64), events: &mut VecDeque<TransportEvent>) {
        if let Some(r) = self.recvs.pop_front() {
            events.push_back(TransportEvent::RecvDone {
                conn: self.conn,
                token: r.work.token,
                status,
                bytes: r.done.into(),
                detail,
            });
        }
    }

    /// Moves bytes until the source has none or no receive is left. Returns whether anything moved,
    /// and how it ended.
    pub(crate) fn fill(
        &mut self,
        source: &mut impl Source,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> (bool, Filled) {
        if self.recvs.is_empty() && data.engines.is_none() && !source.is_ended() {
            self.holds = false;
            return (false, Filled::All);
        }
        let mut moved = false;
        let end = loop {
            let end = self.pass(source, data, events, &mut moved);
            if end != Filled::All || !source.is_ended() {
                break end;
            }
            // What the engine has kept for the end still belongs to the stream.
            if let Err(failed) = data.end(self.conn, Direction::Receive) {
                break Filled::Failed(failed);
            }
            if data.held(self.conn, Direction::Receive) == 0 {
                moved |= !self.recvs.is_empty();
                self.fail_all((Status::EndOfStream, 0), events);
            }
            if self.recvs.is_empty() {
                break end;
            }
        };
        self.holds = data.held(self.conn, Direction::Receive) > 0;
        (moved, end)
    }

    /// Moves the bytes that are there.
    fn pass(
        &mut self,
        source: &mut impl Source,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
        moved: &mut bool,
    ) -> Filled {
        loop {
            let streaming = self.wants_streaming();
            let Some(r) = self.recvs.front_mut() else {
                return Filled::All;
            };
            let (dma, stage) = data.stage(self.conn, Direction::Receive, r.work.by);
            let stop = r.advance(source, dma, stage, streaming, moved);
            if streaming {
                // Once for all pieces: a fence waits until the stores have reached memory, and an
                // engine works meanwhile.
                copy::fence_streaming();
            }
            let stop = match stop {
                Ok(stop) => stop,
                Err(fault) => {
                    self.retire(fault.status(), events);
                    *moved = true;
                    continue;
                }
            };
            let whole = r.done == r.work.buffer.len || (r.work.some && r.done > 0);
            match stop {
                Stop::Revoked => return Filled::Revoked,
                Stop::Failed(failed) => return Filled::Failed(failed),
                Stop::Full | Stop::Empty | Stop::Later if whole => {
                    self.retire((Status::Ok, 0), events);
                    *moved = true;
                }
                Stop::Empty => return Filled::All,
                Stop::Full | Stop::Later => {}
            }
            if matches!(stop, Stop::Later) {
                return Filled::Later;
            }
        }
    }

    /// Says where packets of so many bytes would go that came next: in the first receive alone, and
    /// only when it has begun.
    ///
    /// A packet may turn out to be another one. Until a receive begins, programs rely on what its
    /// memory holds: several receives may share one buffer, which then has the message before.
    pub(crate) fn places(&self, len: usize, places: &mut Places, dma: &mut dyn DmaAccess) {
        if let Some(r) = self.recvs.front().filter(|r| r.done > 0 && !r.work.some) {
            place(&r.work.buffer, r.done, (len, u32::MAX), places, dma);
        }
    }

    /// Whether bytes of the first receive are there, and others are not.
    pub(crate) fn has_begun(&self) -> bool {
        self.recvs.front().is_some_and(|r| r.done > 0)
    }

    /// So many bytes are in their place, in the first receive, which retires if that is enough for
    /// it.
    pub(crate) fn placed(&mut self, len: u32, events: &mut VecDeque<TransportEvent>) {
        let Some(r) = self.recvs.front_mut() else {
            return;
        };
        r.done += len;
        if r.work.some || r.done == r.work.buffer.len {
            self.retire((Status::Ok, 0), events);
        }
    }

    /// Fills a receive that is not queued, if the source has enough for it in one run. Nothing has
    /// happened otherwise.
    pub(crate) fn receive_now(
        source: &mut impl Source,
        buffer: &Buffer,
        some: bool,
        dma: &mut dyn DmaAccess,
    ) -> Option<u32> {
        let Run::Own(bytes) = source.next() else {
            return None;
        };
        let n = bytes.len().min(buffer.len as usize);
        if n < buffer.len as usize && !some {
            return None;
        }
        // A fault leaves the bytes where they are: the queued receive reports it.
        dma.write(buffer, 0, &bytes[..n]).ok()?;
        source.consume(n);
        // n <= buffer.len <= u32::MAX
        Some(n as u32)
    }

    /// Whether to write the first receive around the cache: the posted receives show how much is
    /// written before its bytes are likely to be read.
    #[inline]
    fn wants_streaming(&self) -> bool {
        let large = |r: &Receiving| r.work.buffer.len >= STREAM_FROM;
        self.recvs.front().is_some_and(large) && {
            let posted = self.recvs.iter().map(|r| u64::from(r.work.buffer.len));
            posted.sum::<u64>() >= copy::streaming_bytes()
        }
    }
}

impl Receiving {
    /// Moves bytes to this receive until it is full or nothing is there.
    fn advance(
        &mut self,
        source: &mut impl Source,
        dma: &mut dyn DmaAccess,
        mut stage: Option<Stage<'_>>,
        streaming: bool,
        moved: &mut bool,
    ) -> Result<Stop, Fault> {
        let buffer = self.work.buffer;
        if let Some(s) = &mut stage {
            let room = (buffer.len - self.done) as usize;
            s.begin(source.ahead().min(room), streaming);
        }
        loop {
            let (at, room) = (u64::from(self.done), (buffer.len - self.done) as usize);
            if let Some(s) = &mut stage {
                // What an engine has made goes first.
                let n = s.held().len().min(room);
                if n > 0 {
                    let held = Mapped::from(&s.held()[..n]);
                    held.put(dma, &buffer, at, None, streaming)?;
                    s.received(n);
                    self.done += n as u32;
                    *moved = true;
                    continue;
                }
                if let Some(failed) = s.failed() {
                    return Ok(Stop::Failed(failed));
                }
            }
            if room == 0 {
                return Ok(Stop::Full);
            }
            let run = source.next();
            let len = match &run {
                Run::Own(bytes) => bytes.len(),
                Run::Peer(mapped) => mapped.len,
                Run::Later => return Ok(Stop::Later),
                Run::Empty => return Ok(Stop::Empty),
            };
            let (changed, most) = match &stage {
                None => (false, room),
                Some(s) if s.transforms() => (true, PIECE),
                Some(s) => (
                    false,
                    s.most(matches!(run, Run::Peer(_)).then_some(streaming)),
                ),
            };
            let n = if changed { len } else { len.min(room) }.min(most);
            let marks = stage.as_mut().map(|s| s.moving(n));
            // Memory first: bytes that fault belong to the stream, not to this buffer, and no
            // engine has counted them.
            match run {
                Run::Own(bytes) => {
                    let bytes = &bytes[..n];
                    if !changed {
                        dma.write(&buffer, at, bytes)?;
                    }
                    if let (Some(s), Some(marks)) = (&mut stage, marks) {
                        s.pass(bytes, marks);
                    }
                }
                Run::Peer(mapped) => {
                    let (mapped, kept) = (mapped.first(n), stage.as_mut().map(|s| s.piece(n)));
                    match kept {
                        Some(kept) if changed => mapped.copy_to(kept, dma),
                        kept => mapped.put(dma, &buffer, at, kept, streaming)?,
                    }
                    // After the copy, as the reader of a sequence lock: revoked bytes are no part
                    // of the stream.
                    if source.is_revoked() {
                        return Ok(Stop::Revoked);
                    }
                    if let (Some(s), Some(marks)) = (&mut stage, marks) {
                        s.pass_piece(n, marks);
                    }
                }
                Run::Later | Run::Empty => {}
            }
            source.consume(n);
            if !changed {
                // n <= room <= u32::MAX
                self.done += n as u32;
            }
            *moved = true;
        }
    }
}

/// Adds places for packets of so many bytes each, and as many of them at most, in a receive's
/// memory from `at` on.
#[allow(unsafe_code)] // As its callers.
pub(crate) fn place(
    buffer: &Buffer,
    at: u32,
    (len, most): (usize, u32),
    places: &mut Places,
    dma: &mut dyn DmaAccess,
) {
    let mut at = at as usize;
    for _ in 0..most {
        if buffer.len as usize - at < len {
            return;
        }
        let mapped = each_mapped(dma, buffer, at as u64, len, |to, n| {
            // SAFETY: mapped (`direct`). The receive is posted until the step's packets have been
            // taken.
            unsafe { places.add(to, n) };
        });
        if mapped < len {
            return places.cancel();
        }
        at += len;
        if !places.end() {
            return;
        }
    }
}
