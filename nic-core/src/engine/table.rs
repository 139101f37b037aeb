//! The engines of a NIC, and the paths that they are on.

use std::collections::HashMap;

use ringbell_nic_abi::{EngineId, PdId, SessionId};
use ringbell_onc_engines::stream::StreamEngine;

use super::path::{Delivered, Passage, Path, Running};
use super::{Direction, EngineInfo};
use crate::transport::ConnId;

/// Engines that a NIC can have.
pub(crate) const MAX_ENGINES: usize = 4096;

/// Where a path lies: transport, connection, direction.
pub(crate) type PathKey = (usize, ConnId, Direction);

/// Makes an engine for a kernel that names its kind.
pub(crate) type Factory = dyn Fn(u64) -> Option<Box<dyn StreamEngine>> + Send;

/// What the host is told of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It has become slow, or was found to be: bytes per second.
    Slow(u64),
    /// An item was cut.
    Cut(u64),
    /// It has panicked.
    Failed,
}

struct Slot {
    generation: u16,
    entry: Option<Entry>,
}

struct Entry {
    pd: PdId,
    running: Running,
    told_slow: bool,
    told_failed: bool,
    told_cut: Option<usize>,
}

/// All engines of a NIC.
#[derive(Default)]
pub(crate) struct Engines {
    slots: Vec<Slot>,
    paths: HashMap<PathKey, Path>,
    kinds: HashMap<u16, Box<Factory>>,
    /// Something happened that the host is to be told.
    news: bool,
}

impl Engines {
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
        let free = self.slots.iter().position(|s| s.entry.is_none());
        let slot = match free {
            Some(slot) => slot,
            None if self.slots.len() < MAX_ENGINES => {
                self.slots.push(Slot {
                    generation: 0,
                    entry: None,
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        let s = &mut self.slots[slot];
        // From 1 on: 0 is no engine.
        s.generation = s.generation.wrapping_add(1).max(1);
        s.entry = Some(Entry {
            pd,
            running: Running::new(engine),
            told_slow: false,
            told_failed: false,
            told_cut: None,
        });
        Some(EngineId(slot as u32 | u32::from(s.generation) << 16))
    }

    fn slot(&self, id: EngineId) -> Option<usize> {
        let slot = (id.0 & 0xffff) as usize;
        let s = self.slots.get(slot)?;
        (u32::from(s.generation) == id.0 >> 16 && s.entry.is_some()).then_some(slot)
    }

    fn id(&self, slot: usize) -> EngineId {
        EngineId(slot as u32 | u32::from(self.slots[slot].generation) << 16)
    }

    fn entry(&mut self, id: EngineId) -> Option<&mut Entry> {
        let slot = self.slot(id)?;
        self.slots[slot].entry.as_mut()
    }

    /// The domain, name and kind (whether a tap) of an engine.
    pub(crate) fn about(&self, id: EngineId) -> Option<(PdId, &'static str, bool)> {
        let e = self.slots[self.slot(id)?].entry.as_ref()?;
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

    /// Puts an engine on a path, from the next byte on. `item`: bytes of an item, for an engine that
    /// several streams share.
    pub(crate) fn put(&mut self, id: EngineId, key: PathKey, session: SessionId, item: usize) {
        let Some(slot) = self.slot(id) else { return };
        let new = Path::new(slot, session.0, item);
        match self.paths.get_mut(&key) {
            // What the engine before it has left stays in front.
            Some(path) => path.replace(new),
            None => {
                self.paths.insert(key, new);
            }
        }
    }

    /// Ends an engine. What it holds is still delivered. Returns its last result.
    pub(crate) fn remove(&mut self, id: EngineId) -> Option<(Vec<u8>, Option<usize>)> {
        let slot = self.slot(id)?;
        let mut entry = self.slots[slot].entry.take()?;
        for path in self.paths.values_mut().filter(|p| p.engine == Some(slot)) {
            // A record of which only the beginning has passed cannot be judged: it is cut off.
            path.end(Some(&mut entry.running));
            path.engine = None;
        }
        self.paths.retain(|_, p| p.engine.is_some() || p.held() > 0);
        let mut result = Vec::new();
        entry.running.guarded(|e| e.result(&mut result));
        Some((result, entry.running.cut))
    }

    /// The result so far, and bytes of a cut item; `None` when there is no such engine.
    pub(crate) fn result(&mut self, id: EngineId) -> Option<(Vec<u8>, Option<usize>)> {
        let entry = self.entry(id)?;
        let mut result = Vec::new();
        entry.running.guarded(|e| e.result(&mut result));
        Some((result, entry.running.cut))
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
    }

    fn running(slots: &mut [Slot], slot: Option<usize>) -> Option<&mut Running> {
        let entry = slots.get_mut(slot?)?.entry.as_mut()?;
        Some(&mut entry.running)
    }

    /// See [`Path::deliver`].
    pub(crate) fn deliver(
        &mut self,
        key: PathKey,
        room: usize,
        io: &mut impl Passage,
    ) -> Delivered {
        let Some(path) = self.paths.get_mut(&key) else {
            return Delivered::all(0);
        };
        self.news = true;
        let running = Engines::running(&mut self.slots, path.engine);
        path.deliver(running, room, io)
    }

    /// Whether bytes that leave do not leave as they came.
    #[inline]
    pub(crate) fn reshapes(&self, key: PathKey) -> bool {
        if self.is_idle() {
            return false;
        }
        let Some(path) = self.paths.get(&key) else {
            return false;
        };
        let entry = path.engine.and_then(|slot| self.slots[slot].entry.as_ref());
        path.held() > 0 || entry.is_some_and(|e| !e.running.is_tap)
    }

    /// Bytes that are to leave: see [`outgoing`](Engines::outgoing).
    pub(crate) fn reshape(&mut self, key: PathKey, bytes: &[u8]) {
        let Some(path) = self.paths.get_mut(&key) else {
            return;
        };
        self.news = true;
        let running = Engines::running(&mut self.slots, path.engine);
        path.reshape(running, bytes);
    }

    /// What an engine has made of bytes that leave.
    pub(crate) fn outgoing(&self, key: PathKey) -> &[u8] {
        self.paths.get(&key).map_or(&[], Path::outgoing)
    }

    /// The first `n` bytes of that have left.
    pub(crate) fn outgoing_gone(&mut self, key: PathKey, n: usize) {
        if let Some(path) = self.paths.get_mut(&key) {
            self.news = true;
            path.outgoing_gone(n);
        }
    }

    /// Bytes that pass without a stop.
    pub(crate) fn observe(&mut self, key: PathKey, bytes: &[u8]) {
        let Some(path) = self.paths.get_mut(&key) else {
            return;
        };
        self.news = true;
        if let Some(r) = Engines::running(&mut self.slots, path.engine) {
            path.observe(r, bytes);
        }
    }

    /// The stream of a path has ended.
    pub(crate) fn end(&mut self, key: PathKey) {
        if let Some(path) = self.paths.get_mut(&key) {
            self.news = true;
            let slot = path.engine;
            path.end(Engines::running(&mut self.slots, slot));
        }
    }

    /// What the host should be told, each thing once.
    pub(crate) fn poll_notice(&mut self) -> Option<(EngineId, Notice)> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        // What a detached engine has left is delivered: the stream is as any other again.
        self.paths.retain(|_, p| p.engine.is_some() || p.held() > 0);
        for slot in 0..self.slots.len() {
            let generation = u32::from(self.slots[slot].generation);
            let id = EngineId(slot as u32 | generation << 16);
            let Some(e) = &mut self.slots[slot].entry else {
                continue;
            };
            let notice = if e.running.failed && !std::mem::replace(&mut e.told_failed, true) {
                Some(Notice::Failed)
            } else if e.running.cut != e.told_cut {
                e.told_cut = e.running.cut;
                e.told_cut.map(|left| Notice::Cut(left as u64))
            } else if !e.told_slow {
                let rates = e.running.meter.rates(e.running.declared);
                e.told_slow = !rates.keeps_promise() || rates.is_bottleneck();
                let measured = rates.engine.filter(|_| e.told_slow);
                measured.map(|rate| Notice::Slow(rate as u64))
            } else {
                None
            };
            if let Some(notice) = notice {
                // There may be more.
                self.news = true;
                return Some((id, notice));
            }
        }
        None
    }

    /// Registers a kind. `false`: it is taken, or 0.
    pub(crate) fn add_kind(&mut self, kind: u16, factory: Box<Factory>) -> bool {
        if kind == 0 || self.kinds.contains_key(&kind) {
            return false;
        }
        self.kinds.insert(kind, factory);
        true
    }

    /// An engine of a kind; `None` when it is unknown, or refuses the parameter.
    pub(crate) fn make(&self, kind: u16, parameter: u64) -> Option<Box<dyn StreamEngine>> {
        self.kinds.get(&kind)?(parameter)
    }

    /// Every engine.
    pub(crate) fn infos(&self) -> Vec<EngineInfo> {
        let all = self.slots.iter().enumerate();
        let info = |(slot, s): (usize, &Slot)| {
            let e = s.entry.as_ref()?;
            let on = self.paths.iter().filter(|(_, p)| p.engine == Some(slot));
            let mut streams: Vec<_> = on
                .map(|((_, _, dir), p)| (SessionId(p.session), *dir))
                .collect();
            streams.sort_by_key(|(s, dir)| (s.0, *dir == Direction::Send));
            let r = &e.running;
            Some(EngineInfo {
                id: self.id(slot),
                name: r.name,
                streams,
                bytes_in: r.bytes_in,
                bytes_out: r.bytes_out,
                rates: r.meter.rates(r.declared),
                cut: r.cut,
                failed: r.failed,
            })
        };
        all.filter_map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use ringbell_onc_engines::stream::checksum::ChecksumEngine;

    use super::*;

    #[test]
    fn ids_of_ended_engines_are_refused() {
        let mut t = Engines::default();
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
