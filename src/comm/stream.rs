//! Stream-ordered collectives: queued behind kernels, without a wait of the host.
#![allow(unsafe_code)] // Launches kernels.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringbell_cuda_kernels::collective::CollectiveLaunch;
use ringbell_cuda_kernels::{GpuKind, Launch, Posted, ResultCell, Stream};
use ringbell_nic_abi::{CollectiveKind, Status};

use super::{CollectiveError, Communicator, Done, Operation};

/// An operation queued on a stream.
#[derive(Debug)]
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Enqueued {
    kind: CollectiveKind,
    rank: u32,
    how: How,
}

/// Callback with the result of a group.
type Then = Box<dyn FnOnce(Result<Vec<Done>, CollectiveError>) + Send>;
/// Operations that a stream queues together.
type Group = (Vec<(Communicator, Operation)>, Then);

/// The poster of a queued operation.
#[derive(Debug)]
enum How {
    /// The GPU stream itself.
    Stream(Posted),
    Kernel(Kernel),
}

/// A kernel that posts it and waits.
#[derive(Debug)]
struct Kernel {
    launch: Launch,
    /// Cell to which the kernel writes the result.
    out: Arc<ResultCell>,
}

impl Enqueued {
    /// Whether the stream has reached the operation and it has ended, well or badly; never waits.
    pub fn has_ended(&self) -> bool {
        match &self.how {
            How::Stream(posted) => posted.has_ended(),
            How::Kernel(kernel) => kernel.launch.poll().is_some(),
        }
    }

    /// Whether the stream posts and waits by itself, so that no kernel runs meanwhile.
    pub fn needs_no_kernel(&self) -> bool {
        matches!(self.how, How::Stream(_))
    }

    /// Waits until the stream has reached the operation, and it has ended.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`], or [`CollectiveError::Launch`] when the stream has not reached
    /// it.
    pub fn wait(&self, timeout: Duration) -> Result<Done, CollectiveError> {
        if let How::Kernel(kernel) = &self.how {
            kernel.launch.wait(timeout)?;
        }
        self.ended(timeout)
    }

    /// Result of a captured operation's replays since the last call, once they have been waited
    /// for: the first failure, else the last result.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`].
    pub fn replayed(&self) -> Result<Done, CollectiveError> {
        let ended = self.ended(Duration::ZERO);
        if let (Err(_), How::Kernel(kernel)) = (&ended, &self.how) {
            kernel.out.clear()?;
        }
        ended
    }

    fn ended(&self, timeout: Duration) -> Result<Done, CollectiveError> {
        let (status, done) = match &self.how {
            How::Stream(posted) => {
                let c = posted.wait(timeout)?;
                let done = Done {
                    bytes: c.bytes,
                    detail: c.detail,
                };
                (c.status, done)
            }
            How::Kernel(kernel) => {
                let o = kernel.out.read()?;
                let done = Done {
                    bytes: o.bytes,
                    detail: o.detail,
                };
                (o.status, done)
            }
        };
        match status {
            Status::Ok => Ok(done),
            status => Err(CollectiveError::Failed {
                kind: self.kind,
                rank: self.rank,
                status,
                detail: done.detail,
                why: None,
            }),
        }
    }
}

impl Communicator {
    /// Queues an operation behind the stream's earlier work: it begins when the kernels before it
    /// have ended, and kernels behind it begin when it has. The order among operations is the
    /// stream's, so `after` and `fence` are not used. Where the driver has stream memory operations
    /// ([`Stream::has_words`]) the stream posts and waits by itself; else a kernel of one lane
    /// does.
    ///
    /// # Errors
    /// As [`Communicator::post`], and when the GPU refuses the kernel that runs it.
    pub fn enqueue(
        &self,
        operation: &Operation,
        stream: &Stream,
    ) -> Result<Enqueued, CollectiveError> {
        operation.check(self.rank(), self.size())?;
        if operation.spec.streamed {
            let why = "a queued operation keeps kernels behind it from pushing and popping: post it, or call it in the kernel";
            return Err(CollectiveError::Misuse {
                kind: operation.spec.kind,
                why: why.to_string(),
            });
        }
        // A stream that captures has no words: each replay takes its ticket on the GPU.
        if let Some(posted) = self.post_by_stream(operation, stream) {
            return Ok(Enqueued {
                kind: operation.spec.kind,
                rank: self.rank(),
                how: How::Stream(posted?),
            });
        }
        let out = Arc::new(self.results().take(self.nic().gpu())?);
        let timeout = operation.timeout.unwrap_or(self.options().timeout);
        let call = CollectiveLaunch {
            spec: operation.spec,
            src: operation.src.va(),
            dst: operation.dst.va(),
            count: operation.count,
            root: operation.root,
            tag: operation.tag,
            // As Operation::descriptor: 0 would be the queue's default.
            timeout_us: u32::try_from(timeout.as_micros())
                .unwrap_or(u32::MAX)
                .max(1),
        };
        if stream.is_capturing() {
            out.clear()?;
        }
        // SAFETY: the communicator's own handle; the kept launch holds result and communicator.
        let launch = unsafe { call.on(stream, self.handle(), out.va()) }?;
        out.used_by(&launch);
        stream.keep((out.clone(), self.queue().clone()));
        Ok(Enqueued {
            kind: operation.spec.kind,
            rank: self.rank(),
            how: How::Kernel(Kernel { launch, out }),
        })
    }

    /// Queues operations that belong together behind the stream's earlier work, of this
    /// communicator or others. As in [`Communicator::group`], sends and receives among them cannot
    /// block each other. The host posts them when the stream gets there, and then calls `then` with
    /// the result, before anything behind them begins. A stream that has failed before drops them,
    /// and `then` with them.
    ///
    /// # Errors
    /// As [`Communicator::post`], before anything is queued.
    pub fn enqueue_group(
        operations: Vec<(Communicator, Operation)>,
        stream: &Stream,
        then: impl FnOnce(Result<Vec<Done>, CollectiveError>) + Send + 'static,
    ) -> Result<(), CollectiveError> {
        for (comm, operation) in &operations {
            operation.check(comm.rank(), comm.size())?;
        }
        if stream.is_capturing() {
            let kind = operations
                .first()
                .map_or(CollectiveKind::Nop, |(_, o)| o.spec.kind);
            let why = "a graph cannot hold a group, which the host posts; capture the operations one by one";
            return Err(CollectiveError::Misuse {
                kind,
                why: why.to_string(),
            });
        }
        let real = operations
            .iter()
            .any(|(c, _)| c.nic().gpu().kind() == GpuKind::Cuda);
        let run = |(operations, then): Group| {
            let group: Vec<_> = operations.iter().map(|(c, o)| (c, *o)).collect();
            then(Communicator::group(&group));
        };
        let then: Then = Box::new(then);
        match real {
            // The waiting thread steps the NIC, and so calls the driver, which a host function of a
            // stream must not do (`cuLaunchHostFunc`): another thread does.
            true => stream.host(move || {
                let group = Arc::new(Mutex::new(Some((operations, then))));
                let take = |group: &Mutex<Option<Group>>| {
                    let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
                    group.take()
                };
                let theirs = group.clone();
                let started = std::thread::Builder::new()
                    .name("ringbell-group".into())
                    .spawn(move || take(&theirs).map(run));
                match started {
                    Ok(thread) => drop(thread.join()),
                    Err(error) => {
                        if let Some((_, then)) = take(&group) {
                            then(Err(error.into()));
                        }
                    }
                }
            }),
            false => stream.host(move || run((operations, then))),
        }
        Ok(())
    }
}
