//! Copies from GPU to GPU memory between NICs of one machine: export and import of allocations.
//!
//! Within a process both NICs use the GPU's primary context, so an address is the same for both. Between processes an
//! [`ExportRecord`] carries the driver's IPC handle of the allocation ([`super::ipc`]), which the importer opens.
//! Opening or closing one may take milliseconds, and may wait for kernels and hold up other threads' calls (CUDA: "any
//! call may block or synchronize"). A kernel may itself wait for the message that is to be copied. So a separate thread
//! opens and closes while none of our kernels runs, and messages go through NIC memory until then.
#![allow(clippy::disallowed_methods)] // A separate thread sleeps until kernels have ended.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringbell_gtlb::export::TOKEN_BYTES;
use ringbell_gtlb::{BusSpan, ExportRecord, Import, ImportState, NotReached};
use ringbell_nic_abi::GpuVa;

use super::ipc;
use super::memory::CudaMemory;
use super::open_allocations::{self, OpenAllocation, OpenAllocations};
use crate::bytes::word;
use crate::cuda_error::CudaError;
use crate::gpu::SharedMemory;
use crate::locks::lock;

/// Environment variable for copies between GPU memories of one machine: `auto`, the default; `eager` opens memory of
/// other processes although kernels of ours run; `staged` turns them off.
pub const GPU_COPIES_VARIABLE: &str = "RINGBELL_GPU_COPIES";

/// How long the first copy may take. It makes the driver load its code for copies before a kernel waits for one: a later
/// load could wait for that kernel (microsoft/mscclpp#394).
const FIRST_COPY: Duration = Duration::from_secs(2);

/// First word behind the handle in a token.
const MAGIC: u64 = 0x4c44_5543_4c52_4221;

/// The contents of an [`ExportRecord`]'s token.
struct Token {
    shared: SharedMemory,
    context: u64,
    /// Why other processes cannot open it: a code of [`NotReached`], or 0.
    not_shared: u64,
}

impl Token {
    fn encode(&self) -> [u8; TOKEN_BYTES] {
        let mut out = [0; TOKEN_BYTES];
        out[..SharedMemory::BYTES].copy_from_slice(&self.shared.to_bytes());
        let words = [MAGIC, self.context, self.not_shared];
        let rest = out[SharedMemory::BYTES..].chunks_exact_mut(8);
        for (at, word) in rest.zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; TOKEN_BYTES]) -> Option<Token> {
        let (shared, rest) = bytes.split_at(SharedMemory::BYTES);
        let mut words = rest.chunks_exact(8).map(|b| word(b, 0));
        if words.next()? != MAGIC {
            return None;
        }
        Some(Token {
            shared: SharedMemory::from_bytes(shared).ok()?,
            context: words.next()?,
            not_shared: words.next()?,
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

/// Pause between two checks for running kernels of ours.
const POLL: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce() + Send>;

/// The thread that opens and closes memory of other processes, started by its first job.
#[derive(Debug, Default)]
struct IpcThread {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl IpcThread {
    /// Queues a job; false when there is no thread.
    fn run(&self, job: Job) -> bool {
        let mut jobs = lock(&self.jobs);
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

/// An import within this process, at the owner's address.
#[derive(Debug)]
struct SameProcess {
    base: u64,
    memory: Arc<CudaMemory>,
    closed: bool,
}

impl Import for SameProcess {
    fn state(&self) -> ImportState {
        match self.closed {
            true => ImportState::Closed,
            false => ImportState::Open { bus: self.base },
        }
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.memory.remove_imported(self.base);
        }
    }

    fn is_foreign(&self) -> bool {
        false
    }
}

impl Drop for SameProcess {
    fn drop(&mut self) {
        self.close();
    }
}

/// An import from another process, as the thread and the NIC share it.
#[derive(Debug)]
struct ImportProgress {
    state: ImportState,
    opened: Option<OpenAllocation>,
    /// Closed before it was open.
    unwanted: bool,
}

/// An import from another process, by its IPC handle.
#[derive(Debug)]
struct OtherProcess {
    progress: Arc<Mutex<ImportProgress>>,
    memory: Arc<CudaMemory>,
    thread: Arc<IpcThread>,
}

/// Closes an allocation that is open at `base`, and returns when it is closed: when the running kernels have ended.
fn close(memory: &CudaMemory, opened: OpenAllocation, base: u64) {
    drop(opened);
    let deferred = &memory.context().deferred;
    while deferred.has_opened(base) && deferred.lost().is_none() {
        deferred.release_pending();
        std::thread::sleep(POLL);
    }
}

impl OtherProcess {
    fn open(
        memory: Arc<CudaMemory>,
        all: Arc<OpenAllocations>,
        thread: Arc<IpcThread>,
        shared: SharedMemory,
    ) -> Option<OtherProcess> {
        let progress = Arc::new(Mutex::new(ImportProgress {
            state: ImportState::Opening,
            opened: None,
            unwanted: false,
        }));
        let (its, here) = (progress.clone(), memory.clone());
        let job = Box::new(move || {
            let deferred = &here.context().deferred;
            let eager = std::env::var(GPU_COPIES_VARIABLE).is_ok_and(|v| v == "eager");
            // No work of ours starts while the guard lives. Without a current context streams look idle.
            let idle = loop {
                let idle = here
                    .context()
                    .bind()
                    .ok()
                    .and_then(|()| deferred.try_idle());
                if idle.is_some() || eager || lock(&its).unwanted || deferred.lost().is_some() {
                    break idle;
                }
                std::thread::sleep(POLL);
            };
            if lock(&its).unwanted {
                lock(&its).state = ImportState::Closed;
                return;
            }
            let opened = open_allocations::open(here.context(), &here, &all, &shared);
            drop(idle);
            let mut progress = lock(&its);
            match opened {
                Ok((opened, base, _)) if !progress.unwanted => {
                    progress.state = ImportState::Open { bus: base };
                    progress.opened = Some(opened);
                }
                Ok((opened, base, _)) => {
                    drop(progress);
                    close(&here, opened, base);
                    lock(&its).state = ImportState::Closed;
                }
                Err(_) if progress.unwanted => progress.state = ImportState::Closed,
                Err(e) => progress.state = ImportState::Refused(NotReached::from(&e)),
            }
        });
        let started = thread.run(job);
        started.then_some(OtherProcess {
            progress,
            memory,
            thread,
        })
    }
}

impl Import for OtherProcess {
    fn state(&self) -> ImportState {
        lock(&self.progress).state
    }

    fn close(&mut self) {
        let mut progress = lock(&self.progress);
        match progress.state {
            ImportState::Opening => progress.unwanted = true,
            ImportState::Refused(_) => progress.state = ImportState::Closed,
            ImportState::Closed => {}
            ImportState::Open { bus } => {
                let Some(opened) = progress.opened.take() else {
                    return;
                };
                progress.state = ImportState::Opening;
                drop(progress);
                let (its, here) = (self.progress.clone(), self.memory.clone());
                // Without a thread the job is dropped; that closes the allocation once no kernel runs.
                let _ = self.thread.run(Box::new(move || {
                    close(&here, opened, bus);
                    lock(&its).state = ImportState::Closed;
                }));
            }
        }
    }

    fn is_foreign(&self) -> bool {
        true
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.close();
    }
}

/// Export and import of one GPU's allocations.
#[derive(Debug)]
pub(super) struct PeerCopies {
    memory: Arc<CudaMemory>,
    opened: Arc<OpenAllocations>,
    thread: Arc<IpcThread>,
    /// Whether copies inside the GPU work, or why not.
    usable: OnceLock<Result<(), NotReached>>,
}

impl PeerCopies {
    pub(super) fn new(memory: Arc<CudaMemory>, opened: Arc<OpenAllocations>) -> PeerCopies {
        PeerCopies {
            memory,
            opened,
            thread: Arc::default(),
            usable: OnceLock::new(),
        }
    }

    /// Whether allocations are exported at all. The first call makes a first copy inside the GPU.
    pub(super) fn usable(&self) -> Result<(), NotReached> {
        let first = || {
            if std::env::var(GPU_COPIES_VARIABLE).is_ok_and(|v| v == "staged") {
                return Err(NotReached::TurnedOff);
            }
            let copied = self.memory.first_copy(FIRST_COPY);
            copied.map_err(|e| NotReached::from(&e))
        };
        *self.usable.get_or_init(first)
    }

    /// How messages between NICs of this machine travel, for logs.
    pub(super) fn describe(&self) -> String {
        match self.usable.get() {
            None => "by the copy engine, GPU to GPU, where both ends allow it".into(),
            Some(Ok(())) => "by the copy engine, GPU to GPU".into(),
            Some(Err(why)) => format!("staged through NIC memory, because {why}"),
        }
    }

    /// Whether NICs of other processes can copy this memory too.
    pub(super) fn reach(&self, va: GpuVa, len: u64) -> Result<(), NotReached> {
        self.usable()?;
        let shared = ipc::share(self.memory.context(), va, len);
        shared.map(drop).map_err(|e| NotReached::from(&e))
    }

    pub(super) fn export(&self, span: BusSpan) -> Result<ExportRecord, NotReached> {
        if !self.memory.is_on_gpu(span.addr.value(), span.len) {
            return Err(NotReached::NotExportable);
        }
        self.usable()?;
        let context = self.memory.context();
        let va = GpuVa(span.addr.value());
        let known = ipc::identify(context, va, span.len).map_err(|e| NotReached::from(&e))?;
        let shared = ipc::share(context, va, span.len);
        let not_shared = match &shared {
            Ok(_) => 0,
            Err(e) => NotReached::from(e).code(),
        };
        let token = Token {
            shared: shared.unwrap_or(known.shared),
            context: context.cuda.cu_ctx() as u64,
            not_shared,
        };
        Ok(ExportRecord {
            key: token.shared.identity,
            bus: known.base,
            len: known.size,
            token: token.encode(),
        })
    }

    pub(super) fn import(&self, record: &ExportRecord) -> Result<Box<dyn Import>, NotReached> {
        let token = Token::decode(&record.token).ok_or(NotReached::OtherKind)?;
        self.usable()?;
        let (memory, context) = (self.memory.clone(), self.memory.context());
        let own = ipc::uuid(context);
        if token.shared.gpu != own && own != [0; 16] && token.shared.gpu != [0; 16] {
            return Err(NotReached::OtherGpu);
        }
        if token.shared.process == ipc::process() {
            if token.context != context.cuda.cu_ctx() as u64 {
                return Err(NotReached::OtherGpu);
            }
            memory.add_imported(record.bus, record.len);
            return Ok(Box::new(SameProcess {
                base: record.bus,
                memory,
                closed: false,
            }));
        }
        if let Some(why) = NotReached::from_code(token.not_shared) {
            return Err(why);
        }
        let (all, thread) = (self.opened.clone(), self.thread.clone());
        let opening = OtherProcess::open(memory, all, thread, token.shared);
        Ok(Box::new(opening.ok_or(NotReached::NoRoom)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_bytes_and_other_bytes_are_refused() {
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
            not_shared: NotReached::NotExportable.code(),
        };
        let bytes = token.encode();
        let again = Token::decode(&bytes).expect("it was one");
        assert_eq!(again.shared, token.shared);
        assert_eq!((again.context, again.not_shared), (16, 3));
        let mut wrong = bytes;
        wrong[SharedMemory::BYTES] ^= 1;
        assert!(Token::decode(&wrong).is_none());
        assert!(Token::decode(&[0; TOKEN_BYTES]).is_none());
    }
}
