//! The engines of a NIC, and the paths that they are on.

use std::sync::{Arc, Mutex};

use ringbell_nic_abi::{EngineId, PdId, QueueId, SessionId};
use ringbell_onc_engines::stream::{Hardware, StreamEngine};
use rustc_hash::FxHashMap;

use super::beside::Beside;
use super::hardware::Counter;
use super::meter::Rates;
use super::path::{Path, Stage};
use super::running::{Notice, Running, Told};
use super::watch::{Seen, Sharing, Watch, Watching};
use super::{Direction, EngineFailed, EngineInfo, Place};
use crate::config::EngineThread;
use crate::slab::Slab;
use crate::types::{CommId, ConnId, Owner};

/// Engines that a NIC can have.
pub(crate) const MAX_ENGINES: usize = 4096;

/// Where a path lies: transport, connection, direction.
pub(crate) type PathKey = (usize, ConnId, Direction);

/// Makes an engine for a kernel that names its kind.
pub(crate) type Factory = dyn Fn(u64) -> Option<Box<dyn StreamEngine>> + Send;

/// Calls a factory, which may be a user's. It is the NIC's alone, so no thread waits for the lock.
fn make(factory: &Mutex<Box<Factory>>, parameter: u64) -> Option<Box<dyn StreamEngine>> {
    factory.lock().ok()?(parameter)
}

/// State of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its result, and bytes of an item that was cut.
    Result(Vec<u8>, Option<usize>),
    /// It has failed, and has none.
    Failed,
}

/// By their ids, of which 0 is no engine's.
type Slots = Slab<Entry, 16, 1, 0xffff>;

struct Entry {
    pd: PdId,
    running: Running,
    told: Told,
}

/// All engines of a NIC.
pub(crate) struct Engines {
    slots: Slots,
    paths: FxHashMap<PathKey, Path>,
    /// Engines on queues and communicators.
    watches: FxHashMap<(Owner, Direction), Watch>,
    kinds: FxHashMap<u16, Arc<Mutex<Box<Factory>>>>,
    /// Bytes of a peer's memory, or of a send, while an engine reads them.
    piece: Vec<u8>,
    /// The thread of taps beside the copy.
    beside: Beside,
    /// An event happened that must be reported to the host.
    news: bool,
}

impl Engines {
    pub(crate) fn new(thread: EngineThread) -> Engines {
        Engines {
            slots: Slab::new(MAX_ENGINES),
            paths: FxHashMap::default(),
            watches: FxHashMap::default(),
            kinds: FxHashMap::default(),
            piece: Vec::new(),
            beside: Beside::new(thread),
            news: false,
        }
    }

    /// Whether no stream has an engine: the common case, which must cost nothing.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.paths.is_empty()
    }

    /// Whether an engine, or what one has left, is on a path.
    #[inline]
    pub(crate) fn is_on(&self, key: PathKey) -> bool {
        !self.is_idle() && self.paths.contains_key(&key)
    }

    /// Bytes that have left an engine and reached no memory.
    #[inline]
    pub(crate) fn held(&self, key: PathKey) -> usize {
        if self.is_idle() {
            return 0;
        }
        self.paths.get(&key).map_or(0, Path::held)
    }

    /// Adds an engine, on no path yet; `None` at the limit.
    pub(crate) fn add(&mut self, pd: PdId, engine: Box<dyn StreamEngine>) -> Option<EngineId> {
        let entry = Entry {
            pd,
            running: Running::new(engine),
            told: Told::default(),
        };
        self.slots.insert(entry).map(EngineId)
    }

    fn slot(&self, id: EngineId) -> Option<usize> {
        self.slots.get(id.0).map(|_| Slots::index_of(id.0))
    }

    fn id(&self, slot: usize) -> EngineId {
        EngineId(self.slots.number_at(slot))
    }

    fn entry(&mut self, id: EngineId) -> Option<&mut Entry> {
        self.slots.get_mut(id.0)
    }

    /// The domain, name and kind (whether a tap) of an engine.
    pub(crate) fn about(&self, id: EngineId) -> Option<(PdId, &'static str, bool)> {
        let e = self.slots.get(id.0)?;
        Some((e.pd, e.running.name, e.running.is_tap))
    }

    /// The engine on a path.
    pub(crate) fn on(&self, key: PathKey) -> Option<EngineId> {
        self.paths.get(&key)?.engine.map(|slot| self.id(slot))
    }

    /// Paths that pass an engine.
    pub(crate) fn streams_of(&self, id: EngineId) -> usize {
        let slot = self.slot(id);
        let on = |p: &&Path| slot.is_some() && p.engine == slot;
        self.paths.values().filter(on).count()
    }

    /// Puts an engine on a path, from the next byte on. `item`: bytes of an item, for an engine
    /// that several streams share.
    pub(crate) fn put(&mut self, id: EngineId, key: PathKey, session: SessionId, item: usize) {
        let Some(slot) = self.slot(id) else { return };
        let new = Path::new(Some((slot, id)), session.0, item);
        match self.paths.get_mut(&key) {
            // What the engine before it has left stays in front.
            Some(path) => path.replace(new),
            None => {
                self.paths.insert(key, new);
            }
        }
    }

    /// The engine of a card that could count for an engine.
    pub(crate) fn could_be(&mut self, id: EngineId) -> Option<Hardware> {
        self.entry(id)?.running.could_be()
    }

    /// Lets a card count for an engine on one path, from the next byte on.
    pub(crate) fn count_in_hardware(&mut self, id: EngineId, counter: Box<dyn Counter>) {
        if let Some(entry) = self.entry(id) {
            entry.running.count_in_hardware(counter);
        }
    }

    /// The path of an engine for which a card counts; `None` when its stream has ended.
    pub(crate) fn path_of(&self, id: EngineId) -> Option<PathKey> {
        let slot = self.slot(id)?;
        let mut all = self.paths.iter();
        all.find(|(_, p)| p.engine == Some(slot))
            .map(|(key, _)| *key)
    }

    /// An engine goes on without the card. `unseen`: bytes of its stream that have not reached
    /// that.
    #[cold]
    pub(crate) fn continue_in_software(&mut self, id: EngineId, unseen: &[u8]) {
        self.news = true;
        if let Some(entry) = self.entry(id).filter(|e| e.running.is_in_hardware()) {
            entry.running.continue_in_software(unseen);
        }
    }

    /// Whether an engine watches what operations of that owner move.
    #[inline]
    pub(crate) fn is_watched(&self, by: Owner, direction: Direction) -> bool {
        !self.watches.is_empty() && self.watches.contains_key(&(by, direction))
    }

    /// The engine that watches a queue or communicator.
    pub(crate) fn watcher(&self, by: Owner, direction: Direction) -> Option<EngineId> {
        self.watches
            .get(&(by, direction))
            .map(|w| self.id(w.engine))
    }

    /// Lets an engine watch, from the next byte on of each stream that is [shown](Engines::show) to
    /// it. `of`: the owner's number for users.
    pub(crate) fn watch(
        &mut self,
        id: EngineId,
        (by, of): (Owner, u32),
        direction: Direction,
        how: Sharing,
    ) {
        if let Some(slot) = self.slot(id) {
            let watch = Watch::new(slot, of, how);
            self.watches.insert((by, direction), watch);
        }
    }

    /// A stream on which operations of a watched owner are posted. `label`: its session, or the
    /// peer's rank.
    pub(crate) fn show(&mut self, by: Owner, key: PathKey, label: u32) {
        let Some(watch) = self.watches.get_mut(&(by, key.2)) else {
            return;
        };
        watch.show((key.0, key.1), label);
        // Transports look for a path before they hand bytes over.
        let empty = || Path::new(None, label, 1);
        self.paths.entry(key).or_insert_with(empty);
    }

    /// Whether each stream of an engine has one of its own.
    pub(crate) fn is_apart(&self, id: EngineId) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        let mut of_it = self.watches.values().filter(|w| w.engine == slot);
        of_it.any(Watch::is_apart)
    }

    /// Nothing moves for that owner any more: its engines see nothing, but stay.
    pub(crate) fn unwatch(&mut self, by: Owner) {
        for direction in [Direction::Receive, Direction::Send] {
            if let Some(mut watch) = self.watches.remove(&(by, direction)) {
                if let Some(shared) = Engines::running(&mut self.slots, Some(watch.engine)) {
                    watch.end_all(shared);
                }
                self.news = true;
            }
        }
        self.drop_paths();
    }

    /// Whether any engine is beside the streams.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Bytes of memory that an operation of a communicator takes in or gives out.
    pub(crate) fn see(&mut self, by: Owner, direction: Direction, op: u32, bytes: &[u8]) {
        let Some(watch) = self.watches.get_mut(&(by, direction)) else {
            return;
        };
        self.news = true;
        let at = (usize::MAX, ConnId(op));
        watch.show(at, op);
        let shared = Engines::running(&mut self.slots, Some(watch.engine));
        if let Some(mut w) = watch.at(at, shared) {
            w.see(bytes);
        }
    }

    /// The operation has no more: an item that it has begun is cut.
    pub(crate) fn end_operation(&mut self, by: Owner, direction: Direction, op: u32) {
        if let Some(watch) = self.watches.get_mut(&(by, direction)) {
            self.news = true;
            let shared = Engines::running(&mut self.slots, Some(watch.engine));
            watch.forget((usize::MAX, ConnId(op)), shared);
        }
    }

    /// Removes paths without an engine.
    fn drop_paths(&mut self) {
        let watches = &self.watches;
        let watched = |key: &PathKey| {
            let mut there = watches.iter().filter(|((_, dir), _)| *dir == key.2);
            there.any(|(_, w)| w.has((key.0, key.1)))
        };
        self.paths.retain(|key, p| {
            p.engine.is_some() || p.held() > 0 || p.failed.is_some() || watched(key)
        });
    }

    /// The state of one stream of an engine that each has its own of; `None` when that stream never
    /// passed.
    pub(crate) fn result_of(&mut self, id: EngineId, label: u32) -> Option<Outcome> {
        let slot = self.slot(id)?;
        let of_it = self.watches.values_mut().filter(|w| w.engine == slot);
        let mut seen = of_it.flat_map(Watch::all_mut);
        let own = seen.find(|s| s.label == label)?.own.as_mut()?;
        let outcome = Engines::outcome(own);
        self.news = true;
        Some(outcome)
    }

    /// The engine of a path, and what watches the owner of an operation on it, which no engine is
    /// twice.
    fn both<'a>(
        slots: &'a mut Slots,
        watches: &'a mut FxHashMap<(Owner, Direction), Watch>,
        on_path: Option<usize>,
        by: Owner,
        key: PathKey,
    ) -> (Option<&'a mut Running>, Option<Watching<'a>>) {
        let watch = if watches.is_empty() {
            None
        } else {
            watches.get_mut(&(by, key.2))
        };
        let Some(watch) = watch.filter(|w| Some(w.engine) != on_path) else {
            return (Engines::running(slots, on_path), None);
        };
        let at = (key.0, key.1);
        let watcher = watch.engine;
        let Some(on_path) = on_path else {
            return (None, watch.at(at, Engines::running(slots, Some(watcher))));
        };
        let [a, b] = slots.both_at(on_path, watcher);
        let running = |e: &'a mut Entry| &mut e.running;
        (a.map(running), watch.at(at, b.map(running)))
    }

    /// An engine's description of itself.
    fn outcome(running: &mut Running) -> Outcome {
        running.absorb();
        let mut result = Vec::new();
        match running.guarded(|e| e.result(&mut result)) {
            Some(()) => Outcome::Result(result, running.cut),
            None => Outcome::Failed,
        }
    }

    /// Ends an engine. What it holds is still delivered. Returns its last result.
    pub(crate) fn remove(&mut self, id: EngineId) -> Option<Outcome> {
        let slot = self.slot(id)?;
        let mut entry = self.slots.remove(id.0)?;
        for path in self.paths.values_mut().filter(|p| p.engine == Some(slot)) {
            // An item that has passed only in part cannot be processed: it is cut off.
            path.end(Some(&mut entry.running));
            // Without it the stream would go on as it comes.
            path.note_failure(&entry.running);
            path.engine = None;
        }
        self.watches.retain(|_, w| {
            if w.engine == slot {
                w.end_all(&mut entry.running);
            }
            w.engine != slot
        });
        self.drop_paths();
        Some(Engines::outcome(&mut entry.running))
    }

    /// Ends the engines of a protection domain.
    pub(crate) fn remove_all_of(&mut self, pd: PdId) {
        for id in self.slots.ids(|e| e.pd == pd) {
            self.remove(EngineId(id));
        }
    }

    /// The result so far; `None` when there is no such engine.
    pub(crate) fn result(&mut self, id: EngineId) -> Option<Outcome> {
        let outcome = Engines::outcome(&mut self.entry(id)?.running);
        // The call may have been one too many.
        self.news = true;
        Some(outcome)
    }

    /// A connection has ended: nothing passes it any more in that direction.
    pub(crate) fn forget(&mut self, key: PathKey) {
        if self.is_idle() {
            return;
        }
        if let Some(mut path) = self.paths.remove(&key) {
            let slot = path.engine;
            path.end(Engines::running(&mut self.slots, slot));
            self.news = true;
        }
        for ((_, dir), w) in &mut self.watches {
            if *dir == key.2 {
                let shared = Engines::running(&mut self.slots, Some(w.engine));
                self.news |= w.forget((key.0, key.1), shared);
            }
        }
    }

    fn running(slots: &mut Slots, slot: Option<usize>) -> Option<&mut Running> {
        slots.at_mut(slot?).map(|entry| &mut entry.running)
    }

    /// The engines for the next bytes of an operation of `by`; `None` when there are none.
    pub(crate) fn stage(&mut self, key: PathKey, by: Owner) -> Option<Stage<'_>> {
        let path = self.paths.get_mut(&key)?;
        let both = Engines::both(&mut self.slots, &mut self.watches, path.engine, by, key);
        let piece = &mut self.piece;
        let stage = Stage::new(path, both, piece, &mut self.beside, &mut self.news);
        Some(stage)
    }

    /// Whether the engine changes outgoing bytes.
    #[inline]
    pub(crate) fn transforms(&self, key: PathKey) -> bool {
        if self.is_idle() {
            return false;
        }
        let Some(path) = self.paths.get(&key) else {
            return false;
        };
        let entry = path.engine.and_then(|slot| self.slots.at(slot));
        path.held() > 0 || path.failed.is_some() || entry.is_some_and(|e| !e.running.is_tap)
    }

    /// The engine whose failure has ended the stream of a connection.
    #[cold]
    pub(crate) fn failure_on(&self, transport: usize, conn: ConnId) -> Option<EngineFailed> {
        let mut both = [Direction::Receive, Direction::Send].into_iter();
        both.find_map(|d| self.paths.get(&(transport, conn, d))?.failed)
    }

    /// The stream of a path has ended.
    pub(crate) fn end(&mut self, key: PathKey) -> Result<(), EngineFailed> {
        let Some(path) = self.paths.get_mut(&key) else {
            return Ok(());
        };
        self.news = true;
        let slot = path.engine;
        path.end(Engines::running(&mut self.slots, slot));
        for ((_, dir), w) in &mut self.watches {
            if *dir == key.2 {
                let shared = Engines::running(&mut self.slots, Some(w.engine));
                w.end((key.0, key.1), shared);
            }
        }
        path.failed.map_or(Ok(()), Err)
    }

    /// Whether there may be reports for the host.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news
    }

    /// Reports for the host, each once.
    #[inline]
    pub(crate) fn poll_notice(&mut self) -> Option<(EngineId, Notice)> {
        match std::mem::take(&mut self.news) {
            true => self.find_notice(),
            false => None,
        }
    }

    #[inline(never)]
    fn find_notice(&mut self) -> Option<(EngineId, Notice)> {
        // What a detached engine has left is delivered: the stream is as any other again.
        self.drop_paths();
        for (id, e) in self.slots.iter_mut() {
            let slot = Slots::index_of(id);
            let mut notice = e.told.news(&e.running);
            let of_it = self.watches.values_mut().filter(|w| w.engine == slot);
            for seen in of_it.flat_map(Watch::all_mut) {
                if let (None, Some(own)) = (notice, &seen.own) {
                    notice = seen.told.news(own);
                }
            }
            if let Some(notice) = notice {
                // There may be more.
                self.news = true;
                return Some((EngineId(id), notice));
            }
        }
        None
    }

    /// Registers a kind. `false`: it is taken, or 0.
    pub(crate) fn add_kind(&mut self, kind: u16, factory: Box<Factory>) -> bool {
        if kind == 0 || self.kinds.contains_key(&kind) {
            return false;
        }
        self.kinds.insert(kind, Arc::new(Mutex::new(factory)));
        true
    }

    /// An engine of a kind; `None` when it is unknown, or refuses the parameter.
    pub(crate) fn make(&self, kind: u16, parameter: u64) -> Option<Box<dyn StreamEngine>> {
        make(self.kinds.get(&kind)?, parameter)
    }

    /// One for each stream.
    pub(crate) fn makes(&self, kind: u16, parameter: u64) -> Sharing {
        let factory = self.kinds.get(&kind).cloned();
        Sharing::Nothing(Box::new(move || make(factory.as_ref()?, parameter)))
    }

    /// Every engine.
    pub(crate) fn infos(&self) -> Vec<EngineInfo> {
        let info = |(id, e): (u32, &Entry)| {
            let slot = Slots::index_of(id);
            let on = self.paths.iter().filter(|(_, p)| p.engine == Some(slot));
            let mut streams: Vec<_> = on
                .map(|((_, _, dir), p)| (SessionId(p.session), *dir))
                .collect();
            let r = &e.running;
            let mut info = EngineInfo {
                id: EngineId(id),
                name: r.name,
                streams: Vec::new(),
                queues: Vec::new(),
                communicators: Vec::new(),
                bytes_in: r.bytes_in,
                bytes_out: r.bytes_out,
                rates: r.meter.rates(r.declared),
                cut: r.cut,
                failed: r.failed,
            };
            let watching = self.watches.iter().filter(|(_, w)| w.engine == slot);
            for ((by, dir), w) in watching {
                if let Some(queue) = by.as_queue() {
                    info.queues.push((QueueId(queue), *dir));
                    streams.extend(w.all().map(|s| (SessionId(s.label), *dir)));
                } else {
                    let place = Place::of(*dir, !by.is_operands());
                    info.communicators.push((CommId(w.of), place));
                }
                let own = |s: &Seen| {
                    s.own
                        .as_ref()
                        .map(|r| (r.meter, r.bytes_in, r.cut, r.failed))
                };
                let mut meter = r.meter;
                for (m, bytes, cut, failed) in w.all().filter_map(own) {
                    meter.add(&m);
                    info.bytes_in += bytes;
                    info.bytes_out += bytes;
                    info.cut = info.cut.or(cut);
                    info.failed |= failed;
                }
                let rates: Rates = meter.rates(r.declared);
                info.rates = rates;
            }
            streams.sort_by_key(|(s, dir)| (s.0, *dir == Direction::Send));
            streams.dedup();
            info.streams = streams;
            info.queues
                .sort_by_key(|(q, dir)| (q.0, *dir == Direction::Send));
            info
        };
        self.slots.iter().map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use ringbell_onc_engines::stream::checksum::ChecksumEngine;

    use super::*;

    #[test]
    fn ids_of_ended_engines_are_refused() {
        let mut t = Engines::new(EngineThread::Off);
        let a = t
            .add(PdId(1), Box::new(ChecksumEngine::new()))
            .expect("room");
        assert!(a.0 != 0 && t.about(a).is_some());
        assert!(t.remove(a).is_some() && t.remove(a).is_none());
        let b = t
            .add(PdId(1), Box::new(ChecksumEngine::new()))
            .expect("room");
        assert!(a != b && t.about(a).is_none() && t.result(b).is_some());
        assert!(t.add_kind(7, Box::new(|_| None)) && !t.add_kind(7, Box::new(|_| None)));
        assert!(!t.add_kind(0, Box::new(|_| None)));
    }
}
