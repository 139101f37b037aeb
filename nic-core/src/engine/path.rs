//! The path of one direction of one connection: bytes in, through the engine, bytes out.

use ringbell_nic_abi::{EngineId, Status};

use super::beside::{Beside, Run, Seat, Seats, BESIDE, SHORTEST};
use super::meter::Mark;
use super::running::Running;
use super::watch::Watching;
use super::{PIECE, TAPPED, TAPPED_AROUND};

/// The engine that changes a stream has panicked or failed, so the stream must end with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineFailed(
    /// The engine.
    pub EngineId,
);

impl EngineFailed {
    /// How operations on the stream end: status and detail.
    pub(crate) fn status(self) -> (Status, u64) {
        (Status::EngineFailed, self.0 .0.into())
    }
}

/// What one direction of one connection keeps.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// Slot of the engine; none when it was detached and `held` is still to be delivered.
    pub(super) engine: Option<usize>,
    /// Its id.
    engine_id: Option<EngineId>,
    /// Session, for messages to users.
    pub(super) session: u32,
    /// Output of the engine that has not reached memory.
    held: Vec<u8>,
    /// How much of `held` has.
    held_from: usize,
    /// Engines that several streams share get whole items of this many bytes; 1: no matter.
    pub(super) item: usize,
    /// The beginning of an item of such a stream.
    begun: Vec<u8>,
    ended: bool,
    /// The engine that changed the stream and has failed: nothing passes any more.
    pub(super) failed: Option<EngineFailed>,
}

impl Path {
    pub(super) fn new(engine: Option<(usize, EngineId)>, session: u32, item: usize) -> Path {
        Path {
            engine: engine.map(|(slot, _)| slot),
            engine_id: engine.map(|(_, id)| id),
            session,
            item: item.max(1),
            ..Path::default()
        }
    }

    /// Another engine takes this place, behind what is still held.
    pub(super) fn replace(&mut self, new: Path) {
        let (held, held_from) = (std::mem::take(&mut self.held), self.held_from);
        *self = Path {
            held,
            held_from,
            failed: self.failed,
            ..new
        };
    }

    /// Bytes held.
    pub(super) fn held(&self) -> usize {
        self.held.len() - self.held_from
    }

    /// An engine that changes the stream ends the stream when it fails.
    pub(super) fn note_failure(&mut self, running: &Running) {
        if running.failed && !running.is_tap && self.failed.is_none() {
            self.failed = self.engine_id.map(EngineFailed);
        }
    }

    /// Output of the engine that has not left the NIC.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.held[self.held_from..]
    }

    /// The first `n` bytes of that have left.
    pub(super) fn outgoing_gone(&mut self, n: usize) {
        self.held_from += n;
        if self.held() == 0 {
            self.held.clear();
            self.held_from = 0;
        }
    }

    /// Passes the stream's bytes to a tap.
    pub(super) fn observe(&mut self, running: &mut Running, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            running.tap(&mut self.begun, self.item, piece);
        }
    }

    /// The stream has ended. Only the first call counts.
    pub(super) fn end(&mut self, running: Option<&mut Running>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let Some(r) = running else { return };
        if self.item > 1 {
            // The engine has whole items of several streams: only this one's is cut.
            if !self.begun.is_empty() {
                r.cut = Some(self.begun.len());
                self.begun.clear();
            }
        } else {
            r.finish(&mut self.held);
            self.note_failure(r);
        }
    }
}

/// The engines for the next bytes in one direction of one connection: that on its path, and that of
/// the operation's owner.
pub(crate) struct Stage<'a> {
    path: &'a mut Path,
    running: Option<&'a mut Running>,
    watching: Option<Watching<'a>>,
    piece: &'a mut Vec<u8>,
    beside: &'a mut Beside,
    run: Option<Run>,
    news: &'a mut bool,
}

/// When a tap's bytes began to move; `None`: not timed.
pub(crate) struct Marks([Option<Mark>; 2]);

impl<'a> Stage<'a> {
    pub(super) fn new(
        path: &'a mut Path,
        (running, watching): (Option<&'a mut Running>, Option<Watching<'a>>),
        piece: &'a mut Vec<u8>,
        beside: &'a mut Beside,
        news: &'a mut bool,
    ) -> Stage<'a> {
        Stage {
            path,
            running,
            watching,
            piece,
            beside,
            run: None,
            news,
        }
    }

    /// A run of `ahead` bytes of a peer comes, for one receive: taps may see it on the worker.
    pub(crate) fn begin(&mut self, ahead: usize, streaming: bool) {
        if ahead < SHORTEST || self.transforms() || !self.held().is_empty() {
            return;
        }
        let mut beside = self.beside.is_chosen(streaming);
        if beside {
            let path = &mut *self.path;
            let watched = self.watching.as_mut().filter(|w| !w.running.failed);
            let tap = self.running.as_mut().filter(|r| !r.failed);
            let seats = Seats::new([
                watched.map(|w| Seat::take(w.running, w.begun, w.item)),
                tap.map(|r| Seat::take(r, &mut path.begun, path.item)),
            ]);
            if seats.iter().all(Option::is_none) {
                return;
            }
            if let Err(seats) = self.beside.begin(seats) {
                self.seat(seats);
                beside = false;
            }
        }
        self.run = Some(Run::new(beside, streaming));
    }

    /// Taps come back.
    fn seat(&mut self, seats: Seats) {
        let [watched, tap] = *seats;
        if let (Some(w), Some(seat)) = (&mut self.watching, watched) {
            (*w.running, *w.begun) = (seat.running, seat.begun);
        }
        if let (Some(r), Some(seat)) = (&mut self.running, tap) {
            (**r, self.path.begun) = (seat.running, seat.begun);
        }
    }

    /// Every tap has seen the bytes of the run when this returns, or has failed.
    fn end(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        if run.beside {
            if let Some(piece) = run.piece.take() {
                self.beside.put_back(piece);
            }
            match self.beside.end() {
                Some(seats) => self.seat(seats),
                None => return,
            }
        }
        self.beside.ran(&run);
    }

    fn is_beside(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.beside)
    }

    /// Most bytes that move at once past a tap; `from_peer`: from the peer's memory, around the
    /// cache or not.
    pub(crate) fn most(&self, from_peer: Option<bool>) -> usize {
        match from_peer {
            Some(_) if self.is_beside() => BESIDE,
            Some(true) => TAPPED_AROUND,
            _ => TAPPED,
        }
    }

    /// Whether the engine on the path changes the bytes: they are only [passed](Stage::pass), and
    /// go on as `held`.
    pub(crate) fn transforms(&self) -> bool {
        let running = self.running.as_deref();
        running.is_some_and(|r| !r.failed && !r.is_tap)
    }

    /// The engine that changed the stream and has failed: nothing passes any more, once all that is
    /// held has gone on.
    pub(crate) fn failed(&mut self) -> Option<EngineFailed> {
        if let Some(r) = &self.running {
            self.path.note_failure(r);
        }
        self.path.failed
    }

    /// Output of the engine that has not gone on.
    pub(crate) fn held(&self) -> &[u8] {
        self.path.outgoing()
    }

    /// The first `n` bytes of that have.
    pub(crate) fn release(&mut self, n: usize) {
        *self.news = true;
        self.path.outgoing_gone(n);
    }

    /// Memory has got them: so does the engine of the owner.
    pub(crate) fn received(&mut self, n: usize) {
        if let Some(w) = &mut self.watching {
            w.see(&self.path.outgoing()[..n]);
        }
        self.release(n);
    }

    /// Room for `n` bytes of the NIC's own.
    pub(crate) fn piece(&mut self, n: usize) -> &mut [u8] {
        let needs_one = |run: &&mut Run| run.beside && run.piece.is_none();
        if let Some(run) = self.run.as_mut().filter(needs_one) {
            run.piece = self.beside.piece();
            if run.piece.is_none() {
                // The worker hangs, with the taps: they have failed, and the bytes go on.
                self.run = None;
            }
        }
        if let Some(piece) = self.run.as_mut().and_then(|run| run.piece.as_mut()) {
            return &mut piece[..n];
        }
        if self.piece.len() < n {
            self.piece.resize(n.max(PIECE), 0);
        }
        &mut self.piece[..n]
    }

    /// Before bytes move that taps will see.
    pub(crate) fn moving(&mut self, n: usize) -> Marks {
        if self.is_beside() {
            return Marks([None, None]);
        }
        let tap = self.running.as_mut().and_then(|r| r.meter.moving(n));
        let watching = self.watching.as_mut();
        Marks([tap, watching.and_then(|w| w.running.meter.moving(n))])
    }

    /// The next bytes that arrive.
    pub(crate) fn pass(&mut self, bytes: &[u8], Marks([tap, watched]): Marks) {
        *self.news = true;
        if self.is_beside() {
            // They are not the peer's, as the run's are: behind those.
            self.end();
        }
        match &mut self.running {
            Some(r) if !r.failed && !r.is_tap => r.feed(bytes, &mut self.path.held),
            running => {
                if let Some(w) = &mut self.watching {
                    w.running.meter.moved(watched, bytes.len());
                    w.see(bytes);
                }
                if let Some(r) = running {
                    r.meter.moved(tap, bytes.len());
                    self.path.observe(r, bytes);
                }
            }
        }
    }

    /// As [`pass`](Stage::pass) for the first bytes of the [piece](Stage::piece).
    pub(crate) fn pass_piece(&mut self, n: usize, marks: Marks) {
        if let Some(run) = &mut self.run {
            run.bytes += n as u64;
            if let Some(piece) = run.piece.take() {
                *self.news = true;
                return self.beside.give(piece, n);
            }
        }
        let piece = std::mem::take(self.piece);
        self.pass(&piece[..n], marks);
        *self.piece = piece;
    }

    /// The next bytes that leave: the owner's engine sees them as they are in memory.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        *self.news = true;
        if let Some(w) = &mut self.watching {
            w.see(bytes);
        }
        match &mut self.running {
            Some(r) if !r.is_tap => r.feed(bytes, &mut self.path.held),
            Some(r) => self.path.observe(r, bytes),
            None => {}
        }
    }

    /// As [`send`](Stage::send) for the first bytes of the [piece](Stage::piece).
    pub(crate) fn send_piece(&mut self, n: usize) {
        let piece = std::mem::take(self.piece);
        self.send(&piece[..n]);
        *self.piece = piece;
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
