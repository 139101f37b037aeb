//! Passing of an operation's source and result by the engines at its communicator (`taps`): before it begins, and before it
//! completes.

use ringbell_nic_abi::Status;

use super::table::{State, Table};
use super::taps::{Tap, Viewer};
use super::Io;
use crate::engine::Place;

/// Bytes that one operation passes before the NIC continues with other work.
const STEP: u64 = 256 << 10;
impl Table {
    /// Shows the source of an operation before it begins. `false`: there is more, later.
    pub(super) fn show_source(&mut self, io: &mut Io<'_>, slot: u32, id: u32) -> bool {
        let tap = self.ops.get_mut(id).and_then(|a| a.tap.as_mut());
        let Some((tap, engine)) = tap.and_then(|t| t.seen.input.map(|e| (t, e))) else {
            return true;
        };
        if tap.taken == tap.source.len() {
            return true;
        }
        let viewer = Viewer::new(slot, Place::Input, engine, id);
        match viewer.show(io, &tap.source, &mut tap.taken, STEP) {
            Ok(false) => false,
            Ok(true) => {
                viewer.end(io);
                true
            }
            // The operation itself finds and reports the fault.
            Err(_) => true,
        }
    }

    /// An operation has ended well: it completes when its result has passed the engine that is there.
    pub(super) fn complete(&mut self, slot: u32, id: u32, bytes: u64, detail: u64) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        let shows = |t: &&mut Box<Tap>| t.seen.output.is_some() && t.result.len() > 0;
        let Some(tap) = a.tap.as_mut().filter(shows) else {
            return self.finish(slot, id, Status::Ok, bytes, detail);
        };
        if a.seq.is_none() {
            // A message may be shorter than its receive.
            tap.result = tap.result.prefix(bytes);
        }
        let state = std::mem::replace(&mut a.state, State::Leaving { bytes, detail });
        if let (State::Running(op), Some(c)) = (state, self.comm_mut(slot)) {
            c.release(&op);
        }
        self.wake(id);
    }

    /// Shows the result of an operation that is otherwise done.
    pub(super) fn leave(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(a) = self.ops.get(id) else { return };
        let (slot, seq) = (a.comm, a.seq);
        // Results that come before it pass before it. Those of streams pass as they come.
        let before = |o: &&u32| {
            let Some((x, seq)) = self.ops.get(**o).zip(seq) else {
                return false;
            };
            let shows = x.tap.as_ref();
            let shows = shows.is_some_and(|t| t.seen.output.is_some() && t.result.len() > 0);
            shows && x.seq.is_some_and(|s| seq.wrapping_sub(s) as i32 > 0)
        };
        if self
            .comm(slot)
            .is_none_or(|c| c.active.iter().any(|o| before(&o)))
        {
            return;
        }
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        let State::Leaving { bytes, detail } = a.state else {
            return;
        };
        let Some((tap, engine)) = a.tap.as_mut().and_then(|t| t.seen.output.map(|e| (t, e))) else {
            return self.finish(slot, id, Status::Ok, bytes, detail);
        };
        let viewer = Viewer::new(slot, Place::Output, engine, id);
        match viewer.show(io, &tap.result, &mut tap.given, STEP) {
            Ok(false) => self.wake(id),
            Ok(true) => {
                viewer.end(io);
                self.finish(slot, id, Status::Ok, bytes, detail);
            }
            Err(fault) => {
                let (status, detail) = fault.status();
                self.finish(slot, id, status, 0, detail);
            }
        }
    }

    /// An operation is gone: others whose results came behind it may pass.
    pub(super) fn wake_leaving(&mut self, slot: u32) {
        let Some(c) = self.comm(slot) else { return };
        let leaves = |id: &&u32| {
            let a = self.ops.get(**id);
            a.is_some_and(|a| matches!(a.state, State::Leaving { .. }))
        };
        let ids: Vec<u32> = c.active.iter().filter(leaves).copied().collect();
        for id in ids {
            self.wake(id);
        }
    }
}
