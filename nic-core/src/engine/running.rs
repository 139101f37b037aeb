//! An attached engine: its calls, counts, and reports to the host.

use ringbell_onc_engines::stream::{EngineError, Hardware, StreamEngine};

use super::hardware::{Counter, InHardware};
use super::meter::Meter;

/// An engine and what it has done.
pub(super) struct Running {
    /// `None`: it is with the worker, and has failed unless it comes back.
    engine: Option<Box<dyn StreamEngine>>,
    pub(super) name: &'static str,
    pub(super) declared: f64,
    pub(super) is_tap: bool,
    pub(super) meter: Meter,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) cut: Option<usize>,
    /// It has panicked or reported a failure: it is never called again.
    pub(super) failed: bool,
    /// A card counts for it.
    hardware: Option<InHardware>,
}

impl Running {
    pub(super) fn new(engine: Box<dyn StreamEngine>) -> Running {
        Running {
            name: engine.name(),
            declared: engine.declared_rate(),
            is_tap: engine.is_tap(),
            engine: Some(engine),
            meter: Meter::default(),
            bytes_in: 0,
            bytes_out: 0,
            cut: None,
            failed: false,
            hardware: None,
        }
    }

    /// Lets a counter count from the next byte on.
    pub(super) fn count_in_hardware(&mut self, counter: Box<dyn Counter>) {
        let spec = self.guarded(|e| e.hardware()).flatten();
        self.hardware = spec.map(|spec| InHardware {
            counter,
            item: spec.item() as u64,
            offered: 0,
            ended: false,
        });
    }

    pub(super) fn is_in_hardware(&self) -> bool {
        self.hardware.is_some()
    }

    /// What the card could do for it.
    pub(super) fn could_be(&mut self) -> Option<Hardware> {
        self.guarded(|e| e.hardware()).flatten()
    }

    /// Adds what the card has counted to the engine's own state. Gives the beginning of an item.
    pub(super) fn absorb(&mut self) -> Vec<u8> {
        let Some(hardware) = &mut self.hardware else {
            return Vec::new();
        };
        let counted = hardware.counter.take();
        let rest = match counted {
            Some(counted) if counted.result.is_empty() => Some(counted.rest),
            Some(counted) => {
                let taken = self.guarded(|e| e.absorb(&counted.result));
                (taken == Some(true)).then_some(counted.rest)
            }
            None => None,
        };
        self.failed |= rest.is_none();
        rest.unwrap_or_default()
    }

    /// Goes on without the card. `unseen`: the bytes of the stream that have not reached it.
    pub(super) fn continue_in_software(&mut self, unseen: &[u8]) {
        let rest = self.absorb();
        let Some(hardware) = self.hardware.take() else {
            return;
        };
        let begun = if hardware.ended { &[][..] } else { &rest };
        self.guarded(|e| {
            e.process(begun, &mut Vec::new());
            e.process(unseen, &mut Vec::new());
        });
    }

    /// Takes it away, to another thread. What is left here has failed until it is replaced.
    pub(super) fn take(&mut self) -> Running {
        Running {
            engine: self.engine.take(),
            failed: std::mem::replace(&mut self.failed, true),
            hardware: self.hardware.take(),
            ..*self
        }
    }

    /// Calls the engine, which may be a user's: a panic must not end the NIC. `None` when it has
    /// failed.
    pub(super) fn guarded<R>(&mut self, f: impl FnOnce(&mut dyn StreamEngine) -> R) -> Option<R> {
        if self.failed {
            return None;
        }
        let engine = self.engine.as_deref_mut()?;
        let call = std::panic::AssertUnwindSafe(|| f(engine));
        // The state that a panic has left is never read again.
        let done = std::panic::catch_unwind(call).ok();
        self.failed = done.is_none();
        done
    }

    /// The next bytes. What leaves is appended to `out`; nothing does for a tap, or when it fails.
    pub(super) fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if let Some(hardware) = self.hardware.as_mut().filter(|_| !self.failed) {
            // The bytes reach it on their way to memory.
            hardware.offered += input.len() as u64;
            self.bytes_in += input.len() as u64;
            self.bytes_out += input.len() as u64;
            return;
        }
        let (before, mark) = (out.len(), self.meter.work(input.len()));
        let fed = self.guarded(|e| e.process(input, out));
        if fed.is_none() {
            // It may have appended a part.
            out.truncate(before);
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
        if let Some(hardware) = &mut self.hardware {
            hardware.ended = true;
            let left = (hardware.offered % hardware.item) as usize;
            if left > 0 {
                tracing::warn!(
                    left,
                    "the stream of an engine of the card ended inside an item"
                );
                self.cut = Some(left);
            }
            return;
        }
        let before = out.len();
        match self.guarded(|e| e.finish(out)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "an engine has lost the end of a stream");
                match error {
                    EngineError::CutItem { left, .. } => self.cut = Some(left),
                    _ => {
                        out.truncate(before);
                        self.failed = true;
                    }
                }
            }
            None => out.truncate(before),
        }
        self.bytes_out += (out.len() - before) as u64;
    }

    /// Passes bytes to a tap, items of `item` bytes whole; `begun` keeps the beginning of one.
    pub(super) fn tap(&mut self, begun: &mut Vec<u8>, item: usize, mut piece: &[u8]) {
        if item > 1 {
            if !begun.is_empty() {
                let (rest, after) = piece.split_at(piece.len().min(item - begun.len()));
                begun.extend_from_slice(rest);
                piece = after;
                if begun.len() < item {
                    return;
                }
                self.feed(begun, &mut Vec::new());
                begun.clear();
            }
            let (whole, cut) = piece.split_at(piece.len() - piece.len() % item);
            begun.extend_from_slice(cut);
            piece = whole;
        }
        if !piece.is_empty() {
            self.feed(piece, &mut Vec::new());
        }
    }
}

/// A report to the host about an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It has become slow, or was measured to be: bytes per second.
    Slow(u64),
    /// An item was cut.
    Cut(u64),
    /// It has panicked or failed.
    Failed,
}

/// The reports already made to the host about an engine.
#[derive(Debug, Default)]
pub(super) struct Told {
    slow: bool,
    failed: bool,
    cut: Option<usize>,
}

impl Told {
    /// The reports due now.
    pub(super) fn news(&mut self, r: &Running) -> Option<Notice> {
        if r.failed && !std::mem::replace(&mut self.failed, true) {
            return Some(Notice::Failed);
        }
        if r.cut != self.cut {
            self.cut = r.cut;
            return r.cut.map(|left| Notice::Cut(left as u64));
        }
        if self.slow {
            return None;
        }
        let rates = r.meter.rates(r.declared);
        self.slow = !rates.keeps_promise() || rates.is_bottleneck();
        let measured = rates.engine.filter(|_| self.slow);
        measured.map(|rate| Notice::Slow(rate as u64))
    }
}
