//! A test memory whose operations finish late and out of order, as far as [`DmaMemory`] allows.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::host::check_length;
use super::{HostMemory, Rng};
use crate::bus::BusSpan;
use crate::completion_write::CompletionWrite;
use crate::memory::{BusError, DmaId, DmaMemory, DmaOp, Submitted};

/// Operations that may be pending before [`BusError::Busy`].
const MAX_PENDING: usize = 64;

/// Host memory whose operations finish late and out of order.
///
/// Nothing happens in `submit` or `publish`; each `poll` carries out none, one or two operations,
/// chosen by the seed. Kept in order are only: operations on the same bytes, a completion after
/// every write before it, and completions among themselves.
#[derive(Debug)]
pub struct DelayedMemory {
    host: Arc<HostMemory>,
    state: Mutex<DelayedState>,
    held: AtomicBool,
}

#[derive(Debug)]
struct DelayedState {
    rng: Rng,
    next: u64,
    pending: VecDeque<PendingOp>,
    finished: Vec<DmaId>,
    read: HashMap<DmaId, Vec<u8>>,
}

#[derive(Debug)]
enum PendingOp {
    Write {
        id: DmaId,
        bus: u64,
        bytes: Vec<u8>,
    },
    Read {
        id: DmaId,
        bus: u64,
        len: usize,
    },
    Copy {
        id: DmaId,
        from: BusSpan,
        to: BusSpan,
    },
    CompletionWrite {
        id: DmaId,
        completion: CompletionWrite,
    },
}

/// A range that is touched, none when it is empty.
type BusRange = (u64, u64);

fn meet((a, b): BusRange, (c, d): BusRange) -> bool {
    a < d && c < b
}

fn range(span: BusSpan) -> BusRange {
    (span.addr.value(), span.addr.value() + span.len)
}

impl PendingOp {
    /// What it reads, and what it writes.
    fn ranges(&self) -> (BusRange, BusRange) {
        match self {
            PendingOp::Write { bus, bytes, .. } => ((0, 0), (*bus, *bus + bytes.len() as u64)),
            PendingOp::Read { bus, len, .. } => ((*bus, *bus + *len as u64), (0, 0)),
            PendingOp::Copy { from, to, .. } => (range(*from), range(*to)),
            PendingOp::CompletionWrite { .. } => ((0, 0), (0, 0)),
        }
    }

    /// Whether `self` must wait for `earlier`.
    fn after(&self, earlier: &PendingOp) -> bool {
        let ((r, w), (er, ew)) = (self.ranges(), earlier.ranges());
        match (self, earlier) {
            (PendingOp::CompletionWrite { .. }, PendingOp::Read { .. }) => false,
            (PendingOp::CompletionWrite { .. }, _) => true,
            (_, PendingOp::CompletionWrite { .. }) => false,
            _ => meet(w, ew) || meet(r, ew) || meet(w, er),
        }
    }
}

impl DelayedMemory {
    /// Makes a memory of `len` bytes; `seed` decides when what happens.
    ///
    /// # Errors
    /// As [`HostMemory::new`].
    pub fn new(len: u64, seed: u64) -> io::Result<DelayedMemory> {
        Ok(DelayedMemory::over(Arc::new(HostMemory::new(len)?), seed))
    }

    /// The same over a memory that its owner also reads at once.
    pub fn over(host: Arc<HostMemory>, seed: u64) -> DelayedMemory {
        DelayedMemory {
            host,
            state: Mutex::new(DelayedState {
                rng: Rng::new(seed),
                next: 0,
                pending: VecDeque::new(),
                finished: Vec::new(),
                read: HashMap::new(),
            }),
            held: AtomicBool::new(false),
        }
    }

    /// Carries nothing out while held.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// The bytes as they are now: without what is still pending.
    pub fn host(&self) -> &HostMemory {
        &self.host
    }

    /// Operations and completions that have not happened yet.
    pub fn pending(&self) -> usize {
        self.lock().pending.len()
    }

    fn lock(&self) -> MutexGuard<'_, DelayedState> {
        // A test that panicked elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayedState {
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
            Some(PendingOp::Write { id, bus, bytes }) => {
                host.poke(bus, &bytes).expect("checked when submitted");
                self.finished.push(id);
            }
            Some(PendingOp::Read { id, bus, len }) => {
                let mut bytes = vec![0; len];
                host.peek(bus, &mut bytes).expect("checked when submitted");
                self.read.insert(id, bytes);
                self.finished.push(id);
            }
            Some(PendingOp::Copy { id, from, to }) => {
                host.copy(from, to).expect("checked when submitted");
                self.finished.push(id);
            }
            Some(PendingOp::CompletionWrite { completion, .. }) => completion.store(),
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
                PendingOp::Read {
                    id: state.id(),
                    bus: from.addr.value(),
                    len: into.len(),
                }
            }
            DmaOp::Write { to, from } => {
                check_length(to, from.len())?;
                self.host.peek(to.addr.value(), &mut vec![0; from.len()])?;
                PendingOp::Write {
                    id: state.id(),
                    bus: to.addr.value(),
                    bytes: from.to_vec(),
                }
            }
            DmaOp::Copy { from, to } => {
                check_length(from, to.len as usize)?;
                for span in [from, to] {
                    self.host
                        .peek(span.addr.value(), &mut vec![0; span.len as usize])?;
                }
                PendingOp::Copy {
                    id: state.id(),
                    from,
                    to,
                }
            }
        };
        let id = DmaId(state.next);
        state.pending.push_back(op);
        Ok(Submitted::Pending(id))
    }

    fn mark(&self) -> u64 {
        self.lock().next
    }

    fn has_landed(&self, mark: u64) -> bool {
        let state = self.lock();
        !state.pending.iter().any(|op| match op {
            PendingOp::Write { id, .. }
            | PendingOp::Copy { id, .. }
            | PendingOp::CompletionWrite { id, .. } => id.0 <= mark,
            PendingOp::Read { .. } => false,
        })
    }

    fn poll(&self) -> Option<DmaId> {
        let mut state = self.lock();
        let most = if self.held.load(Ordering::Relaxed) {
            1
        } else {
            3
        };
        for _ in 0..state.rng.below(most) {
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
        // A test double is strict: a caller takes once, and after `poll` has named the read.
        let bytes = bytes.unwrap_or_else(|| panic!("{id:?} is no finished read"));
        into.copy_from_slice(&bytes);
    }

    fn publish(&self, completion: CompletionWrite) {
        let mut state = self.lock();
        let id = state.id();
        state
            .pending
            .push_back(PendingOp::CompletionWrite { id, completion });
    }
}
