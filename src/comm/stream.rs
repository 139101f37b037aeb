//! Stream-ordered collectives: queued behind kernels, without the host waiting.

use std::time::Duration;

use ringbell_cuda_kernels::collective::CollectiveLaunch;
use ringbell_cuda_kernels::{GpuBuffer, Launch, Stream};
use ringbell_nic_abi::{CollectiveKind, Status};

use super::{CollectiveError, Communicator, Done, Operation};

/// Bytes of `gpu_result`.
const RESULT: u64 = 24;

/// An operation queued on a stream.
#[derive(Debug)]
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Enqueued {
    kind: CollectiveKind,
    rank: u32,
    launch: Launch,
    stream: Stream,
    /// Where the kernel writes how it ended; `None` only while dropping.
    out: Option<GpuBuffer>,
}

impl Drop for Enqueued {
    fn drop(&mut self) {
        if let (Some(out), false) = (self.out.take(), self.has_ended()) {
            // The kernel will write there, whether anybody waits or not.
            self.stream.host(move || drop(out));
        }
    }
}

impl Enqueued {
    /// Whether the stream has come to the operation and it has ended, well or badly; never waits.
    pub fn has_ended(&self) -> bool {
        self.launch.poll().is_some()
    }

    /// Waits until the stream has come to the operation, and it has ended.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`], or [`CollectiveError::Launch`] when the stream has not got there.
    pub fn wait(&self, timeout: Duration) -> Result<Done, CollectiveError> {
        self.launch.wait(timeout)?;
        let mut raw = [0; RESULT as usize];
        if let Some(out) = &self.out {
            out.read(0, &mut raw)?;
        }
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&raw[at..at + 8]);
            u64::from_ne_bytes(w)
        };
        // An unknown code cannot come from our own header; silent is the safe reading.
        match Status::from_code(word(0) as u32 as u8).unwrap_or(Status::NicSilent) {
            Status::Ok => Ok(Done {
                bytes: word(8),
                detail: word(16),
            }),
            status => Err(CollectiveError::Failed {
                kind: self.kind,
                rank: self.rank,
                status,
                detail: word(16),
            }),
        }
    }
}

impl Communicator {
    /// Queues an operation behind what a stream holds: it begins when the kernels before it have ended,
    /// and kernels behind it begin when it has. The order among operations is the stream's, so `after`
    /// and `fence` are not used.
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
        let out = self.nic().gpu().alloc(RESULT)?;
        let timeout = operation.timeout.unwrap_or(self.options().timeout);
        let call = CollectiveLaunch {
            spec: operation.spec,
            src: operation.src.va(),
            dst: operation.dst.va(),
            count: operation.count,
            root: operation.root,
            tag: operation.tag,
            timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX),
        };
        let launch = call.on(stream, self.handle(), out.va())?;
        Ok(Enqueued {
            kind: operation.spec.kind,
            rank: self.rank(),
            launch,
            stream: stream.clone(),
            out: Some(out),
        })
    }

    /// Queues operations that belong together behind what a stream holds, of this communicator or others,
    /// as [`Communicator::group`]: sends and receives among them cannot block each other. The host posts
    /// them when the stream gets there, and then tells `then` how they ended, before anything behind
    /// them begins. A stream that has failed before drops them, and `then` with them.
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
        stream.host(move || {
            let group: Vec<_> = operations.iter().map(|(c, o)| (c, *o)).collect();
            then(Communicator::group(&group));
        });
        Ok(())
    }
}
