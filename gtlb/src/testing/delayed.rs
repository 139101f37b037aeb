//! A memory that takes every liberty the contract of [`DmaMemory`] gives it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::host::check_length;
use super::{HostMemory, Rng};
use crate::memory::{Announce, BusError, DmaId, DmaMemory, DmaOp, Submitted};

/// Operations that may be pending before [`BusError::Busy`].
const MAX_PENDING: usize = 64;

/// Host memory whose operations finish late and out of order.
///
/// Nothing happens in `submit` or `publish`; each `poll` carries out none, one or two operations,
/// chosen by the seed. Kept in order are only: operations on the same bytes, an announcement after
/// every write before it, and announcements among themselves.
#[derive(Debug)]
pub struct DelayedMemory {
    host: HostMemory,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    next: u64,
    pending: VecDeque<Op>,
    finished: Vec<DmaId>,
    read: HashMap<DmaId, Vec<u8>>,
}

#[derive(Debug)]
enum Op {
    Write { id: DmaId, bus: u64, bytes: Vec<u8> },
    Read { id: DmaId, bus: u64, len: usize },
    Announce(Announce),
}

impl Op {
    fn range(&self) -> (u64, u64) {
        match self {
            Op::Write { bus, bytes, .. } => (*bus, *bus + bytes.len() as u64),
            Op::Read { bus, len, .. } => (*bus, *bus + *len as u64),
            Op::Announce(_) => (0, 0),
        }
    }

    /// Whether `self` must wait for `earlier`.
    fn after(&self, earlier: &Op) -> bool {
        let ((a, b), (c, d)) = (self.range(), earlier.range());
        match (self, earlier) {
            (Op::Announce(_), Op::Read { .. }) | (Op::Read { .. }, Op::Read { .. }) => false,
            (Op::Announce(_), _) => true,
            (_, Op::Announce(_)) => false,
            _ => a < d && c < b,
        }
    }
}

impl DelayedMemory {
    /// Makes a memory of `len` bytes; `seed` decides when what happens.
    ///
    /// # Errors
    /// As [`HostMemory::new`].
    pub fn new(len: u64, seed: u64) -> io::Result<DelayedMemory> {
        Ok(DelayedMemory {
            host: HostMemory::new(len)?,
            state: Mutex::new(State {
                rng: Rng::new(seed),
                next: 0,
                pending: VecDeque::new(),
                finished: Vec::new(),
                read: HashMap::new(),
            }),
        })
    }

    /// The bytes as they are now: without what is still pending.
    pub fn host(&self) -> &HostMemory {
        &self.host
    }

    /// Operations and announcements that have not happened yet.
    pub fn pending(&self) -> usize {
        self.lock().pending.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn id(&mut self) -> DmaId {
        self.next += 1;
        DmaId(self.next)
    }

    fn carry_out_one(&mut self, host: &HostMemory) {
        let ready: Vec<usize> = (0..self.pending.len())
            .filter(|i| {
                let op = &self.pending[*i];
                !self
                    .pending
                    .iter()
                    .take(*i)
                    .any(|earlier| op.after(earlier))
            })
            .collect();
        if ready.is_empty() {
            return;
        }
        let chosen = ready[self.rng.below(ready.len() as u64) as usize];
        // Both were checked by `submit`, so the host cannot refuse them.
        match self.pending.remove(chosen) {
            Some(Op::Write { id, bus, bytes }) => {
                host.poke(bus, &bytes).expect("checked when submitted");
                self.finished.push(id);
            }
            Some(Op::Read { id, bus, len }) => {
                let mut bytes = vec![0; len];
                host.peek(bus, &mut bytes).expect("checked when submitted");
                self.read.insert(id, bytes);
                self.finished.push(id);
            }
            Some(Op::Announce(announce)) => announce.store(),
            None => {}
        }
    }
}

impl DmaMemory for DelayedMemory {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        let mut state = self.lock();
        if state.pending.len() >= MAX_PENDING {
            return Err(BusError::Busy);
        }
        let op = match op {
            DmaOp::Read { from, into } => {
                check_length(from, into.len())?;
                // Also checks the range; what it reads now is thrown away.
                self.host
                    .peek(from.addr.value(), &mut vec![0; into.len()])?;
                Op::Read {
                    id: state.id(),
                    bus: from.addr.value(),
                    len: into.len(),
                }
            }
            DmaOp::Write { to, from } => {
                check_length(to, from.len())?;
                self.host.peek(to.addr.value(), &mut vec![0; from.len()])?;
                Op::Write {
                    id: state.id(),
                    bus: to.addr.value(),
                    bytes: from.to_vec(),
                }
            }
        };
        let id = DmaId(state.next);
        state.pending.push_back(op);
        Ok(Submitted::Pending(id))
    }

    fn poll(&self) -> Option<DmaId> {
        let mut state = self.lock();
        for _ in 0..state.rng.below(3) {
            state.carry_out_one(&self.host);
        }
        if state.finished.is_empty() {
            return None;
        }
        let n = state.finished.len() as u64;
        let chosen = state.rng.below(n) as usize;
        Some(state.finished.swap_remove(chosen))
    }

    fn take(&self, id: DmaId, into: &mut [u8]) {
        let bytes = self.lock().read.remove(&id);
        // A test double is strict: whoever takes twice, or before `poll` has named the read, is wrong.
        let bytes = bytes.unwrap_or_else(|| panic!("{id:?} is no finished read"));
        into.copy_from_slice(&bytes);
    }

    fn publish(&self, announce: Announce) {
        self.lock().pending.push_back(Op::Announce(announce));
    }
}
