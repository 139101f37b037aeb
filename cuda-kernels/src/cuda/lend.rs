//! Memory of a GPU that NICs of one machine lend to each other: copies from GPU to GPU memory, past the host.
//!
//! Within a process both NICs use the GPU's primary context, so an address is the same for both. Between
//! processes a loan carries the driver's IPC handle of the allocation ([`super::ipc`]), which the borrower opens. To
//! open or to close one may take milliseconds, and nobody promises that it does not wait for kernels (CUDA: "any call
//! may block or synchronize") and hold up other threads' calls meanwhile, while a kernel may wait for the very message
//! that is to be copied: so a thread of its own does both, when none of our kernels runs, and messages are staged until then.
#![allow(clippy::disallowed_methods)] // A thread of its own waits for kernels, in naps.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ringbell_gtlb::loan::TOKEN_BYTES;
use ringbell_gtlb::{Borrow, BorrowState, BusSpan, Loan, NotReached};
use ringbell_nic_abi::GpuVa;

use super::error::CudaError;
use super::ipc::{self, Import, Imports};
use super::memory::CudaMemory;
use crate::gpu::SharedMemory;

/// Environment variable for copies between GPU memories of one machine: `auto`, the default; `eager` opens memory of
/// other processes although kernels of ours run; `staged` turns them off.
pub const GPU_COPIES_VARIABLE: &str = "RINGBELL_GPU_COPIES";

/// How long the first copy may take. It makes the driver load what it copies with, before a kernel waits for a copy:
/// loaded later, it could wait for that kernel (microsoft/mscclpp#394).
const FIRST_COPY: Duration = Duration::from_secs(2);

/// First word behind the handle in a token.
const MAGIC: u64 = 0x4c44_5543_4c52_4221;

/// What a token holds besides [`SharedMemory`].
struct Token {
    shared: SharedMemory,
    context: u64,
    /// Why no other process can open it: a code of [`NotReached`], or 0.
    only_here: u64,
}

impl Token {
    fn encode(&self) -> [u8; TOKEN_BYTES] {
        let mut out = [0; TOKEN_BYTES];
        out[..SharedMemory::BYTES].copy_from_slice(&self.shared.to_bytes());
        let words = [MAGIC, self.context, self.only_here];
        let rest = out[SharedMemory::BYTES..].chunks_exact_mut(8);
        for (at, word) in rest.zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; TOKEN_BYTES]) -> Option<Token> {
        let (shared, rest) = bytes.split_at(SharedMemory::BYTES);
        let mut words = rest.chunks_exact(8).map(|b| {
            let mut w = [0; 8];
            w.copy_from_slice(b);
            u64::from_le_bytes(w)
        });
        if words.next()? != MAGIC {
            return None;
        }
        Some(Token {
            shared: SharedMemory::from_bytes(shared).ok()?,
            context: words.next()?,
            only_here: words.next()?,
        })
    }
}

impl From<&CudaError> for NotReached {
    fn from(e: &CudaError) -> NotReached {
        match e {
            CudaError::Stale { .. } | CudaError::NotGpuMemory { .. } => NotReached::Stale,
            CudaError::OtherGpu { .. } | CudaError::Foreign { .. } => NotReached::OtherGpu,
            CudaError::NotExportable { .. }
            | CudaError::HostMemory { .. }
            | CudaError::Managed { .. } => NotReached::NotExportable,
            CudaError::OutOfMemory { .. } | CudaError::Shared { .. } => NotReached::NoRoom,
            _ => NotReached::NoIpc,
        }
    }
}

/// Pause between two looks whether a kernel of ours runs.
const NAP: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce() + Send>;

/// What lending needs and copying does not.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// The memory itself and what it has open, for the thread.
    known: OnceLock<(Weak<CudaMemory>, Arc<Imports>)>,
    /// Whether copies inside the GPU work: a scratch of two pages, or why not.
    copies: OnceLock<Result<u64, NotReached>>,
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Lending {
    /// Called once, when the memory has its place.
    pub(super) fn belongs_to(&self, memory: &Arc<CudaMemory>, imports: &Arc<Imports>) {
        let _ = self.known.set((Arc::downgrade(memory), imports.clone()));
    }

    /// Memory for the first copy, to be freed with everything else.
    pub(super) fn scratch(&self) -> Option<u64> {
        self.copies.get().and_then(|r| r.ok())
    }

    /// Runs a job on the thread that opens and closes.
    fn later(&self, job: Job) -> bool {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*jobs {
            return sender.send(job).is_ok();
        }
        let (sender, receiver) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new().name("ringbell-ipc".into());
        let started = thread.spawn(move || receiver.into_iter().for_each(|job| job()));
        // Never joined: the driver may hold it for as long as a kernel runs.
        if started.is_err() || sender.send(job).is_err() {
            return false;
        }
        *jobs = Some(sender);
        true
    }
}

/// Borrowed by the address that it has anyway.
#[derive(Debug)]
struct Near {
    base: u64,
    memory: Arc<CudaMemory>,
    closed: bool,
}

impl Borrow for Near {
    fn state(&self) -> BorrowState {
        match self.closed {
            true => BorrowState::Closed,
            false => BorrowState::Open { bus: self.base },
        }
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.memory.forget_near(self.base);
        }
    }

    fn is_foreign(&self) -> bool {
        false
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the thread and the NIC know of an allocation of another process.
#[derive(Debug)]
struct Slot {
    state: BorrowState,
    import: Option<Import>,
    /// Given back before it was open.
    unwanted: bool,
}

/// Borrowed by an IPC handle.
#[derive(Debug)]
struct Far {
    slot: Arc<Mutex<Slot>>,
    memory: Arc<CudaMemory>,
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes what was opened at `base`, and returns when it is closed: when the kernels that run have ended.
fn close(memory: &CudaMemory, import: Import, base: u64) {
    drop(import);
    let yard = &memory.context().yard;
    while yard.has_open(base) && yard.lost().is_none() {
        yard.sweep();
        std::thread::sleep(NAP);
    }
}

impl Far {
    fn open(memory: Arc<CudaMemory>, imports: Arc<Imports>, shared: SharedMemory) -> Option<Far> {
        let slot = Arc::new(Mutex::new(Slot {
            state: BorrowState::Opening,
            import: None,
            unwanted: false,
        }));
        let (its, here) = (slot.clone(), memory.clone());
        let job = Box::new(move || {
            let yard = &here.context().yard;
            let eager = std::env::var(GPU_COPIES_VARIABLE).is_ok_and(|v| v == "eager");
            // Nothing of ours starts while the guard lives. Without a current context streams look idle.
            let quiet = loop {
                let quiet = here.context().bind().ok().and_then(|()| yard.quiet());
                if quiet.is_some() || eager || lock(&its).unwanted || yard.lost().is_some() {
                    break quiet;
                }
                std::thread::sleep(NAP);
            };
            if lock(&its).unwanted {
                lock(&its).state = BorrowState::Closed;
                return;
            }
            let opened = ipc::import(here.context(), &here, &imports, &shared);
            drop(quiet);
            let mut slot = lock(&its);
            match opened {
                Ok((import, base, _)) if !slot.unwanted => {
                    slot.state = BorrowState::Open { bus: base };
                    slot.import = Some(import);
                }
                Ok((import, base, _)) => {
                    drop(slot);
                    close(&here, import, base);
                    lock(&its).state = BorrowState::Closed;
                }
                Err(_) if slot.unwanted => slot.state = BorrowState::Closed,
                Err(e) => slot.state = BorrowState::Refused(NotReached::from(&e)),
            }
        });
        let started = memory.lending().later(job);
        started.then_some(Far { slot, memory })
    }
}

impl Borrow for Far {
    fn state(&self) -> BorrowState {
        lock(&self.slot).state
    }

    fn close(&mut self) {
        let mut slot = lock(&self.slot);
        match slot.state {
            BorrowState::Opening => slot.unwanted = true,
            BorrowState::Refused(_) => slot.state = BorrowState::Closed,
            BorrowState::Closed => {}
            BorrowState::Open { bus } => {
                let Some(import) = slot.import.take() else {
                    return;
                };
                slot.state = BorrowState::Opening;
                drop(slot);
                let (its, here) = (self.slot.clone(), self.memory.clone());
                // A thread that cannot be had drops the job, and with it the import, which is closed some time.
                let _ = self.memory.lending().later(Box::new(move || {
                    close(&here, import, bus);
                    lock(&its).state = BorrowState::Closed;
                }));
            }
        }
    }

    fn is_foreign(&self) -> bool {
        true
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.close();
    }
}

impl CudaMemory {
    /// Whether memory is lent at all: a first copy inside the GPU is made, once, when the GPU is opened.
    pub(super) fn copies(&self) -> Result<(), NotReached> {
        let first = || {
            if std::env::var(GPU_COPIES_VARIABLE).is_ok_and(|v| v == "staged") {
                return Err(NotReached::TurnedOff);
            }
            self.first_copy(FIRST_COPY)
                .map_err(|e| NotReached::from(&e))
        };
        self.lending().copies.get_or_init(first).map(|_| ())
    }

    /// How messages between NICs of this machine travel, for people.
    pub(super) fn between_nics(&self) -> String {
        match self.lending().copies.get() {
            None => "by the copy engine, GPU to GPU, where both ends allow it".into(),
            Some(Ok(_)) => "by the copy engine, GPU to GPU".into(),
            Some(Err(why)) => format!("staged through NIC memory, because {why}"),
        }
    }

    pub(super) fn lend_around(&self, span: BusSpan) -> Result<Loan, NotReached> {
        if !self.is_on_gpu(span.addr.value(), span.len) {
            return Err(NotReached::NotExportable);
        }
        self.copies()?;
        let context = self.context();
        let va = GpuVa(span.addr.value());
        let known = ipc::name(context, va, span.len).map_err(|e| NotReached::from(&e))?;
        let shared = ipc::share(context, va, span.len);
        let only_here = match &shared {
            Ok(_) => 0,
            Err(e) => NotReached::from(e).code(),
        };
        let token = Token {
            shared: shared.unwrap_or(known.shared),
            context: context.cuda.cu_ctx() as u64,
            only_here,
        };
        Ok(Loan {
            key: token.shared.identity,
            bus: known.base,
            len: known.size,
            token: token.encode(),
        })
    }

    pub(super) fn borrow_from(&self, loan: &Loan) -> Result<Box<dyn Borrow>, NotReached> {
        let token = Token::decode(&loan.token).ok_or(NotReached::OtherKind)?;
        self.copies()?;
        let (memory, imports) = self.lending().known.get().ok_or(NotReached::OtherKind)?;
        let memory = memory.upgrade().ok_or(NotReached::OtherKind)?;
        let own = ipc::uuid(self.context());
        if token.shared.gpu != own && own != [0; 16] && token.shared.gpu != [0; 16] {
            return Err(NotReached::OtherGpu);
        }
        if token.shared.process == ipc::process() {
            if token.context != self.context().cuda.cu_ctx() as u64 {
                return Err(NotReached::OtherGpu);
            }
            self.note_near(loan.bus, loan.len);
            return Ok(Box::new(Near {
                base: loan.bus,
                memory,
                closed: false,
            }));
        }
        if let Some(why) = NotReached::from_code(token.only_here) {
            return Err(why);
        }
        let far = Far::open(memory, imports.clone(), token.shared);
        Ok(Box::new(far.ok_or(NotReached::NoRoom)?))
    }
}

impl super::gpu::CudaGpu {
    /// Whether NICs of one machine copy this memory from GPU to GPU, of two processes too.
    ///
    /// # Errors
    /// [`NotReached`]: why messages are staged, between processes at least.
    pub fn copies_between_nics(&self, va: GpuVa, len: u64) -> Result<(), NotReached> {
        let (context, memory) = self.parts();
        memory.copies()?;
        ipc::share(context, va, len)
            .map(|_| ())
            .map_err(|e| NotReached::from(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_bytes_and_nothing_else_is_one() {
        let token = Token {
            shared: SharedMemory {
                handle: [7; 64],
                gpu: [3; 16],
                pid: 11,
                process: 12,
                identity: 13,
                offset: 14,
                len: 15,
            },
            context: 16,
            only_here: NotReached::NotExportable.code(),
        };
        let bytes = token.encode();
        let again = Token::decode(&bytes).expect("it was one");
        assert_eq!(again.shared, token.shared);
        assert_eq!((again.context, again.only_here), (16, 3));
        let mut wrong = bytes;
        wrong[SharedMemory::BYTES] ^= 1;
        assert!(Token::decode(&wrong).is_none());
        assert!(Token::decode(&[0; TOKEN_BYTES]).is_none());
    }
}
