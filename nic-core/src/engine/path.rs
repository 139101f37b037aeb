//! The path of one direction of one connection: bytes in, through the engine, bytes out.

use ringbell_gtlb::Fault;
use ringbell_onc_engines::stream::{EngineError, StreamEngine};

use super::meter::{Mark, Meter};
use super::PIECE;

/// What became of bytes that a transport has handed over.
#[derive(Debug)]
pub struct Delivered {
    /// Bytes of the stream that are taken: never to be handed over again.
    pub taken: usize,
    /// Bytes that the buffer has got.
    pub written: usize,
    /// Why it went no further.
    pub fault: Option<Fault>,
}

impl Delivered {
    /// `n` bytes are where they belong.
    pub(crate) const fn all(n: usize) -> Delivered {
        Delivered {
            taken: n,
            written: n,
            fault: None,
        }
    }

    /// None is taken.
    pub(crate) const fn fault(fault: Fault) -> Delivered {
        Delivered {
            taken: 0,
            written: 0,
            fault: Some(fault),
        }
    }
}

/// An engine and what it has done.
pub(super) struct Running {
    pub(super) engine: Box<dyn StreamEngine>,
    pub(super) name: &'static str,
    pub(super) declared: f64,
    pub(super) is_tap: bool,
    pub(super) meter: Meter,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) cut: Option<usize>,
    pub(super) failed: bool,
}

impl Running {
    pub(super) fn new(engine: Box<dyn StreamEngine>) -> Running {
        Running {
            name: engine.name(),
            declared: engine.declared_rate(),
            is_tap: engine.is_tap(),
            engine,
            meter: Meter::default(),
            bytes_in: 0,
            bytes_out: 0,
            cut: None,
            failed: false,
        }
    }

    /// Calls the engine, which may be a user's: a panic must not end the NIC. `None` when it has failed.
    pub(super) fn guarded<R>(&mut self, f: impl FnOnce(&mut dyn StreamEngine) -> R) -> Option<R> {
        if self.failed {
            return None;
        }
        let engine = &mut *self.engine;
        let call = std::panic::AssertUnwindSafe(|| f(engine));
        // Whatever state a panic has left is never looked at again.
        let done = std::panic::catch_unwind(call).ok();
        self.failed = done.is_none();
        done
    }

    /// The next bytes. What leaves is appended to `out`; nothing does for a tap.
    pub(super) fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let (before, mark) = (out.len(), Mark::before(input.len()));
        let fed = self.guarded(|e| e.process(input, out));
        if fed.is_none() {
            // It may have appended a part: the stream goes on as it came.
            out.truncate(before);
            if !self.is_tap {
                out.extend_from_slice(input);
            }
            return;
        }
        self.meter.worked(mark, input.len());
        self.bytes_in += input.len() as u64;
        self.bytes_out += if self.is_tap {
            input.len()
        } else {
            out.len() - before
        } as u64;
    }

    /// The end of a stream.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        let before = out.len();
        match self.guarded(|e| e.finish(out)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "an engine has lost the end of a stream");
                self.cut = Some(match error {
                    EngineError::CutItem { left, .. } => left,
                    _ => 0,
                });
            }
            None => out.truncate(before),
        }
        self.bytes_out += (out.len() - before) as u64;
    }
}

/// What one direction of one connection keeps.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// Slot of the engine; none when it was detached and `held` is still to be delivered.
    pub(super) engine: Option<usize>,
    /// Session, for people.
    pub(super) session: u32,
    /// What has left the engine and not reached memory.
    held: Vec<u8>,
    /// How much of `held` has.
    held_from: usize,
    /// Engines that several streams share get whole items of this many bytes; 1: no matter.
    pub(super) item: usize,
    /// The beginning of an item of such a stream.
    begun: Vec<u8>,
    ended: bool,
}

impl Path {
    pub(super) fn new(engine: usize, session: u32, item: usize) -> Path {
        Path {
            engine: Some(engine),
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
            ..new
        };
    }

    /// Bytes held.
    pub(super) fn held(&self) -> usize {
        self.held.len() - self.held_from
    }

    /// Takes stream bytes for memory that has room for `room` more. `store(at, bytes)` puts bytes there.
    pub(super) fn deliver(
        &mut self,
        mut running: Option<&mut Running>,
        src: &[u8],
        room: usize,
        mut store: impl FnMut(usize, &[u8]) -> Result<(), Fault>,
    ) -> Delivered {
        let mut d = Delivered::all(0);
        loop {
            // What was made before goes first.
            let n = self.held().min(room - d.written);
            if n > 0 {
                let from = self.held_from;
                if let Err(fault) = store(d.written, &self.held[from..from + n]) {
                    d.fault = Some(fault);
                    return d;
                }
                d.written += n;
                self.held_from += n;
                if self.held() == 0 {
                    self.held.clear();
                    self.held_from = 0;
                }
            }
            if d.written == room || d.taken == src.len() {
                return d;
            }
            let rest = &src[d.taken..];
            let piece = &rest[..rest.len().min(PIECE)];
            match running.as_deref_mut().filter(|r| !r.failed) {
                Some(r) if !r.is_tap => {
                    r.feed(piece, &mut self.held);
                    d.taken += piece.len();
                }
                tap => {
                    let piece = &piece[..piece.len().min(room - d.written)];
                    // Memory first: what faults has not been taken, and must not be counted.
                    let mark = Mark::before(piece.len());
                    if let Err(fault) = store(d.written, piece) {
                        d.fault = Some(fault);
                        return d;
                    }
                    if let Some(r) = tap {
                        r.meter.moved(mark, piece.len());
                        Path::tap(&mut self.begun, self.item, r, piece);
                    }
                    d.taken += piece.len();
                    d.written += piece.len();
                }
            }
        }
    }

    /// Shows bytes that pass to a tap.
    pub(super) fn observe(&mut self, running: &mut Running, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            Path::tap(&mut self.begun, self.item, running, piece);
        }
    }

    fn tap(begun: &mut Vec<u8>, item: usize, running: &mut Running, mut piece: &[u8]) {
        if item > 1 {
            if !begun.is_empty() {
                let (rest, after) = piece.split_at(piece.len().min(item - begun.len()));
                begun.extend_from_slice(rest);
                piece = after;
                if begun.len() < item {
                    return;
                }
                running.feed(begun, &mut Vec::new());
                begun.clear();
            }
            let (whole, cut) = piece.split_at(piece.len() - piece.len() % item);
            begun.extend_from_slice(cut);
            piece = whole;
        }
        if !piece.is_empty() {
            running.feed(piece, &mut Vec::new());
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
        }
    }
}
