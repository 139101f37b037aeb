//! Engines on queues and communicators: bytes that the operations of one queue, or the messages of
//! one communicator, move pass such an engine, on any stream.
//!
//! It is always a tap, and stands between memory and the engine that the stream may have itself: it
//! sees the bytes of the operations' buffers, those that their completions count. Several streams
//! meet here, so each has a place of its own: the beginning of an item when they share one state,
//! or a state of its own.

use ringbell_onc_engines::stream::StreamEngine;
use rustc_hash::FxHashMap;

use super::running::{Running, Told};
use crate::types::ConnId;

/// Makes the engine of one more stream.
pub(crate) type PerStream = dyn Fn() -> Option<Box<dyn StreamEngine>> + Send;

/// What the streams of a watched queue or communicator share.
pub(crate) enum Sharing {
    /// One state; items of so many bytes are never mixed.
    Items(usize),
    /// Nothing: each gets an engine.
    Nothing(Box<PerStream>),
}

/// One stream at a watching engine.
#[derive(Default)]
pub(super) struct Seen {
    /// Session or rank.
    pub(super) label: u32,
    /// The beginning of an item.
    begun: Vec<u8>,
    /// Its own engine.
    pub(super) own: Option<Running>,
    pub(super) told: Told,
    ended: bool,
}

impl Seen {
    /// The stream has ended. Only the first call counts.
    fn end(&mut self, shared: Option<&mut Running>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        match &mut self.own {
            Some(own) => own.finish(&mut Vec::new()),
            None if self.begun.is_empty() => {}
            None => {
                if let Some(r) = shared {
                    r.cut = Some(self.begun.len());
                }
                self.begun.clear();
            }
        }
    }
}

/// See the module text.
pub(super) struct Watch {
    /// Slot of the engine; of the one that is a pattern for others, when streams share nothing.
    pub(super) engine: usize,
    /// The number of the queue, or of the communicator, for users.
    pub(super) of: u32,
    sharing: Sharing,
    streams: FxHashMap<(usize, ConnId), Seen>,
    /// Streams that have ended and had an engine of their own, by the slot of their session: as
    /// many as there can be sessions.
    kept: FxHashMap<u32, Seen>,
}

impl Watch {
    pub(super) fn new(engine: usize, of: u32, sharing: Sharing) -> Watch {
        Watch {
            engine,
            of,
            sharing,
            streams: FxHashMap::default(),
            kept: FxHashMap::default(),
        }
    }

    /// Whether every stream has an engine of its own.
    pub(super) fn is_apart(&self) -> bool {
        matches!(self.sharing, Sharing::Nothing(_))
    }

    pub(super) fn has(&self, at: (usize, ConnId)) -> bool {
        self.streams.contains_key(&at)
    }

    /// A stream comes by, perhaps for the first time.
    pub(super) fn show(&mut self, at: (usize, ConnId), label: u32) {
        let sharing = &self.sharing;
        self.streams.entry(at).or_insert_with(|| Seen {
            label,
            own: match sharing {
                Sharing::Items(_) => None,
                Sharing::Nothing(make) => make().filter(|e| e.is_tap()).map(Running::new),
            },
            ..Seen::default()
        });
    }

    /// What sees the bytes of a stream.
    pub(super) fn at<'a>(
        &'a mut self,
        at: (usize, ConnId),
        shared: Option<&'a mut Running>,
    ) -> Option<Watching<'a>> {
        let item = match self.sharing {
            Sharing::Items(n) => n,
            Sharing::Nothing(_) => 1,
        };
        let seen = self.streams.get_mut(&at)?;
        let running = match self.sharing {
            Sharing::Items(_) => shared?,
            Sharing::Nothing(_) => seen.own.as_mut()?,
        };
        Some(Watching {
            running,
            begun: &mut seen.begun,
            item,
        })
    }

    /// A stream has ended, or all have.
    pub(super) fn end(&mut self, at: (usize, ConnId), shared: Option<&mut Running>) -> bool {
        let seen = self.streams.get_mut(&at);
        seen.map(|s| s.end(shared)).is_some()
    }

    /// A connection is no more.
    pub(super) fn forget(&mut self, at: (usize, ConnId), shared: Option<&mut Running>) -> bool {
        let Some(mut seen) = self.streams.remove(&at) else {
            return false;
        };
        seen.end(shared);
        if seen.own.is_some() {
            self.kept.insert(seen.label & 0xffff, seen);
        }
        true
    }

    /// All streams end here: the engine goes.
    pub(super) fn end_all(&mut self, shared: &mut Running) {
        for seen in self.streams.values_mut() {
            seen.end(Some(&mut *shared));
        }
    }

    /// Every stream that has passed and is still recorded.
    pub(super) fn all(&self) -> impl Iterator<Item = &Seen> {
        self.streams.values().chain(self.kept.values())
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Seen> {
        self.streams.values_mut().chain(self.kept.values_mut())
    }
}

/// A watching engine and its place in one stream.
pub(super) struct Watching<'a> {
    pub(super) running: &'a mut Running,
    pub(super) begun: &'a mut Vec<u8>,
    pub(super) item: usize,
}

impl Watching<'_> {
    /// Bytes that pass.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(super::PIECE) {
            self.running.tap(self.begun, self.item, piece);
        }
    }
}
