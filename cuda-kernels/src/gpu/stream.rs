//! Streams: operations in order, and waiting for them with a deadline.

use std::sync::Arc;
use std::time::Duration;

use super::{Ending, Order, WordOp};
use crate::launch::{Dim3, KernelArg, LaunchError};

/// A kernel that was launched. Dropping it does not stop the kernel.
#[derive(Debug, Clone)]
#[must_use = "wait for the launch, or its failure goes unseen"]
pub struct Launch {
    kernel: Arc<str>,
    done: Arc<dyn Ending>,
}

fn late(kernel: &str, timeout: Duration) -> LaunchError {
    LaunchError::TimedOut {
        kernel: kernel.to_owned(),
        waited_ms: timeout.as_millis() as u64,
    }
}

impl Launch {
    pub(crate) fn of(kernel: Arc<str>, done: Arc<dyn Ending>) -> Launch {
        Launch { kernel, done }
    }

    /// Waits until the kernel has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`] when it still runs after `timeout` (it goes on running; wait again),
    /// or how it failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), LaunchError> {
        let late = || Err(late(&self.kernel, timeout));
        self.done.wait(timeout).unwrap_or_else(late)
    }

    /// The kernel's result if it has ended.
    pub fn poll(&self) -> Option<Result<(), LaunchError>> {
        self.done.poll()
    }
}

/// A point in a stream.
#[derive(Debug, Clone)]
pub struct Event {
    done: Arc<dyn Ending>,
}

impl Event {
    pub(crate) fn of(done: Arc<dyn Ending>) -> Event {
        Event { done }
    }

    /// Waits until the stream has reached the event.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`], or the failure of an earlier operation.
    pub fn wait(&self, timeout: Duration) -> Result<(), LaunchError> {
        let late = || Err(late("event", timeout));
        self.done.wait(timeout).unwrap_or_else(late)
    }

    /// Time between two reached events; `None` while one is not reached.
    pub fn elapsed_since(&self, earlier: &Event) -> Option<Duration> {
        self.done.since(&*earlier.done)
    }
}

/// Operations that run one after the other; streams run beside each other.
///
/// When a kernel fails, the operations queued behind it fail with [`LaunchError::StreamFailed`]
/// until [`Stream::clear_error`]. A real GPU that has failed takes no more work at all.
#[derive(Debug, Clone)]
pub struct Stream {
    order: Arc<dyn Order>,
}

impl Stream {
    pub(crate) fn of(order: Arc<dyn Order>) -> Stream {
        Stream { order }
    }

    /// Launches a kernel behind what the stream already holds.
    ///
    /// # Errors
    /// Unknown kernel, wrong arguments or shape; how it ends is told by the [`Launch`].
    pub fn launch(
        &self,
        name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        self.order.launch(name, grid.into(), block.into(), args)
    }

    /// Runs a host function in order with the kernels (`cudaLaunchHostFunc`). It must not wait for
    /// the same stream, nor call the GPU.
    pub fn host(&self, f: impl FnOnce() + Send + 'static) {
        self.order.host(Box::new(f));
    }

    /// Marks the point that the stream has reached so far.
    pub fn record(&self) -> Event {
        self.order.record()
    }

    /// Waits until everything queued so far has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`], or the failure of an operation.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), LaunchError> {
        self.record().wait(timeout)
    }

    /// Whether the stream itself can store words and wait for them, or why not (a real GPU's driver: stream memory
    /// operations). Then no kernel need run while something is waited for.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn has_words(&self) -> Result<(), String> {
        self.order.has_words()
    }

    /// Queues operations on words behind what the stream holds.
    ///
    /// # Errors
    /// [`LaunchError::Unsupported`] without [`Stream::has_words`], or what the driver says.
    pub fn words(&self, ops: &[WordOp]) -> Result<(), LaunchError> {
        self.order.words(ops)
    }

    /// Whether both are handles of one stream.
    pub fn is_same(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.order, &other.order)
    }

    /// Forgets an earlier failure, so that the stream accepts work again.
    pub fn clear_error(&self) {
        self.order.clear_error();
    }
}
