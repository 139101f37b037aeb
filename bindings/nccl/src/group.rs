//! [`RankGroup`]: a communicator of `ncclCollNet`, and its requests.
//!
//! A call becomes one operation of the NIC's communicator, or, of a window, several. All ranks post
//! the same operations in the order of their calls; a request ends when its operations have.
#![allow(unsafe_code)] // The program's memory, by its pointers.
#![allow(clippy::disallowed_methods)] // A deadline on the host's clock, and threads that wait for other ranks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell::abi::collective::RANK_ABSENT;
use ringbell::abi::{CollectiveKind as K, GpuVa, Status};
use ringbell::job::BootstrapServer;
use ringbell::{
    CollectiveError, Communicator, DataType, HostBuffer, Operation, ReduceOp, Request, Span,
};

use crate::abi::{Code, REQUESTS};
use crate::device::{Device, DEPTH};
use crate::failure::Failure;
use crate::memory::Registered;
use crate::requests::Requests;
use crate::window::Part;
use crate::wire::{named_processes, Process};

/// Operations from the oldest that has not ended: fewer than the queue has slots.
const POSTED: u64 = DEPTH as u64 / 2;
/// Longest time until the operations of a closed communicator have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// Longest time for which a rank that has closed its communicator waits for the others, when its
/// device is to be closed.
const PART: Duration = Duration::from_secs(10);

/// Bytes of the program, with their registration.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
    /// `None` where there are no bytes.
    pub(crate) memory: Option<Arc<Registered>>,
}

// SAFETY: it is the program's memory, which is the communicator's until its request has ended.
unsafe impl Send for Side {}

impl Side {
    /// Memory of this communicator's own that stands for bytes which the NIC knows in several
    /// parts.
    fn copied(&self, device: &Device) -> Result<Option<HostBuffer>, Failure> {
        let parts = match &self.memory {
            Some(m) => m.cut(self.at.addr(), self.bytes)?.len(),
            None => 0,
        };
        if parts < 2 {
            return Ok(None);
        }
        let copy = device.nic.adopt_host(vec![0; self.bytes]);
        copy.map(Some)
            .map_err(|e| Failure::system("no memory for a copy", &e))
    }

    fn span(&self, copy: Option<&HostBuffer>) -> Span {
        let at = copy.map_or(GpuVa(self.at.addr() as u64), HostBuffer::va);
        Span::of(at, self.bytes as u64)
    }
}

/// A collective call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) parts: Vec<Part>,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) src: Side,
    pub(crate) dst: Side,
    /// What `test` says.
    pub(crate) bytes: usize,
}

/// A request.
#[derive(Debug)]
struct Pending {
    /// Operations that have not ended.
    left: usize,
    bytes: usize,
    dst: Side,
    _src_copy: Option<HostBuffer>,
    dst_copy: Option<HostBuffer>,
    _src: Option<Arc<Registered>>,
}

/// An operation in the NIC.
#[derive(Debug)]
struct Posted {
    number: u64,
    /// The request that it belongs to.
    owner: u64,
    request: Request,
}

/// A communicator.
#[derive(Debug)]
pub(crate) struct RankGroup {
    pub(crate) device: Arc<Device>,
    comm: Option<Communicator>,
    rank: u32,
    processes: Vec<Process>,
    server: Option<BootstrapServer>,
    /// Whether all ranks are reached through memory.
    is_near: bool,
    requests: Requests<Pending>,
    /// Not posted yet, with their requests.
    waiting: VecDeque<(u64, Operation)>,
    posted: VecDeque<Posted>,
    /// Operations that were posted.
    count: u64,
    /// How it ended.
    ended: Option<Failure>,
}

impl RankGroup {
    pub(crate) fn new(
        device: &Arc<Device>,
        comm: Communicator,
        processes: Vec<Process>,
        server: Option<BootstrapServer>,
    ) -> RankGroup {
        let peers = comm.info().map_or_else(|_| Vec::new(), |i| i.peers);
        let by_memory = |t: &str| t == "local";
        RankGroup {
            device: device.clone(),
            rank: comm.rank(),
            is_near: peers.iter().filter_map(|p| p.transport).all(by_memory),
            comm: Some(comm),
            processes,
            server,
            requests: Requests::new(REQUESTS),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            count: 0,
            ended: None,
        }
    }

    /// Ranks.
    pub(crate) fn ranks(&self) -> u32 {
        self.processes.len() as u32
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Starts a call; the number of its request. `None`: as many as there may be are under way.
    pub(crate) fn start(&mut self, call: Call) -> Result<Option<u64>, Failure> {
        self.check()?;
        if self.requests.is_full() {
            return Ok(None);
        }
        let (src_copy, dst_copy) = (
            call.src.copied(&self.device)?,
            call.dst.copied(&self.device)?,
        );
        if let Some(copy) = &src_copy {
            // SAFETY: the program's bytes, within its registration.
            let bytes = unsafe { std::slice::from_raw_parts(call.src.at, call.src.bytes) };
            copy.write(0, bytes)
                .map_err(|e| Failure::system("cannot copy", &e))?;
        }
        let (src, dst) = (
            call.src.span(src_copy.as_ref()),
            call.dst.span(dst_copy.as_ref()),
        );
        let operation = |part: &Part| {
            let mine = part.root == self.rank;
            let own = |all: Span| if mine { all } else { Span::NONE };
            let place = |all: Span| all.slice(part.at as u64..(part.at + part.bytes) as u64);
            let (src, dst) = match part.kind {
                K::Broadcast => (own(src), place(dst)),
                K::Reduce => (place(src), own(dst)),
                _ => (src, dst),
            };
            let count = part.bytes as u64 / call.dtype.bytes();
            Operation::by_kind(part.kind, call.dtype, call.op, src, dst, count, part.root)
        };
        let operations: Vec<Operation> = call.parts.iter().map(operation).collect();
        let pending = Pending {
            left: operations.len(),
            bytes: call.bytes,
            dst: call.dst,
            _src_copy: src_copy,
            dst_copy,
            _src: call.src.memory,
        };
        let Some(request) = self.requests.insert(pending) else {
            return Ok(None);
        };
        self.waiting
            .extend(operations.into_iter().map(|o| (request, o)));
        self.post()?;
        Ok(Some(request))
    }

    /// Posts what waits, as far as there is room.
    fn post(&mut self) -> Result<(), Failure> {
        while let Some((owner, operation)) = self.waiting.front() {
            let oldest = self.posted.front().map_or(self.count, |p| p.number);
            let Some(comm) = self.comm.as_ref().filter(|_| self.count - oldest < POSTED) else {
                break;
            };
            let request = match comm.post(operation) {
                Ok(request) => request,
                Err(error) => return Err(self.fail(&error)),
            };
            self.posted.push_back(Posted {
                number: self.count,
                owner: *owner,
                request,
            });
            self.count += 1;
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// The bytes of a request that has ended. Lets the NIC work where it has not.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<usize>, Failure> {
        self.check()?;
        if self.requests.get_mut(number).is_none() {
            return Err(Requests::<Pending>::unknown(number));
        }
        let mut place = 0;
        while let Some(posted) = self.posted.get_mut(place) {
            // The oldest one, too: the slots behind it are not free before.
            if place > 0 && posted.owner != number {
                place += 1;
                continue;
            }
            match posted.request.test() {
                Ok(None) => place += 1,
                Ok(Some(_)) => {
                    let owner = posted.owner;
                    self.posted.remove(place);
                    if let Some(pending) = self.requests.get_mut(owner) {
                        pending.left -= 1;
                    }
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
        self.post()?;
        let ended = self.requests.get_mut(number).is_some_and(|p| p.left == 0);
        let Some(pending) = ended.then(|| self.requests.remove(number)).flatten() else {
            return Ok(None);
        };
        if let Some(copy) = &pending.dst_copy {
            // SAFETY: the program's bytes, within its registration.
            let to = unsafe { std::slice::from_raw_parts_mut(pending.dst.at, pending.dst.bytes) };
            copy.read(0, to)
                .map_err(|e| Failure::system("cannot copy", &e))?;
        }
        Ok(Some(pending.bytes))
    }

    /// The error of earlier calls.
    fn check(&self) -> Result<(), Failure> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Remembers how it ended, and gives the error of the call that finds out.
    fn fail(&mut self, error: &CollectiveError) -> Failure {
        let mut named = Vec::new();
        let code = match error {
            CollectiveError::Failed { status, detail, .. } => match status {
                Status::PeerFailed | Status::CommAborted => {
                    named.push(*detail as u32);
                    Code::RemoteError
                }
                Status::TimedOut => {
                    named.extend((detail & RANK_ABSENT != 0).then_some(*detail as u32));
                    Code::RemoteError
                }
                Status::Mismatch => {
                    named.push(*detail as u32);
                    Code::InvalidUsage
                }
                _ => Code::SystemError,
            },
            CollectiveError::Misuse { .. } | CollectiveError::Argument { .. } => {
                Code::InvalidArgument
            }
            _ => Code::SystemError,
        };
        // Later calls fail alike; the log has it once.
        self.ended.get_or_insert(Failure::new(code, ""));
        let failure = Failure::system("the communicator has ended", error);
        let processes: Vec<&Process> = self.processes.iter().collect();
        Failure {
            code,
            text: failure.text + &named_processes(&named, &processes),
        }
    }

    /// Ends it; what has not ended is aborted, on all ranks. Waits until the NIC uses no memory of
    /// it.
    pub(crate) fn close(&mut self) {
        let Some(comm) = self.comm.take() else {
            return;
        };
        let under_way = |p: &mut Posted| matches!(p.request.test(), Ok(None));
        self.posted.retain_mut(under_way);
        let was_under_way = !self.posted.is_empty() || !self.waiting.is_empty();
        if was_under_way {
            comm.abort();
        }
        self.waiting.clear();
        let start = Instant::now();
        while !self.posted.is_empty() && start.elapsed() < DRAIN {
            self.posted.retain_mut(under_way);
            std::thread::yield_now();
        }
        let requests = std::mem::replace(&mut self.requests, Requests::new(0));
        if self.posted.is_empty() {
            let server = self.server.take();
            let is_sound = !was_under_way && self.ended.is_none();
            if is_sound && self.is_near {
                drop(comm);
                return;
            }
            // A NIC that is gone sends no lost packet again, and tells no rank why the communicator
            // has ended. Ranks may close several in different orders, so this thread does not wait.
            let part = move || {
                // Those that do not come are not waited for longer.
                let _ = comm.finish(PART);
                drop(server);
            };
            let thread = std::thread::Builder::new().name("ringbell-part".into());
            if let Ok(thread) = thread.spawn(part) {
                self.device.part(thread);
            }
        } else {
            // The NIC may still use their memory and slots.
            std::mem::forget((requests, std::mem::take(&mut self.posted)));
        }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        self.close();
    }
}
