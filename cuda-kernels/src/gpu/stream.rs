//! Streams: operations in order, and waiting for them with a deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::graph::{Capture, Limbo};
use super::{Ending, Graph, Order, Replay, WordOp};
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

/// How a captured kernel ends: not here.
#[derive(Debug)]
struct Captured(Arc<str>);

impl Ending for Captured {
    fn wait(&self, _timeout: Duration) -> Option<Result<(), LaunchError>> {
        self.poll()
    }

    fn poll(&self) -> Option<Result<(), LaunchError>> {
        let kernel = self.0.to_string();
        Some(Err(LaunchError::Captured { kernel }))
    }
}

/// Operations that run one after the other; streams run beside each other.
///
/// When a kernel fails, the operations queued behind it fail with [`LaunchError::StreamFailed`]
/// until [`Stream::clear_error`]. A real GPU that has failed takes no more work at all.
#[derive(Debug, Clone)]
pub struct Stream {
    order: Arc<dyn Order>,
    capture: Arc<Mutex<Option<Capture>>>,
    limbo: Arc<Limbo>,
}

impl Stream {
    pub(crate) fn of(order: Arc<dyn Order>) -> Stream {
        Stream {
            order,
            capture: Arc::default(),
            limbo: Arc::default(),
        }
    }

    fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    /// Launches a kernel behind what the stream already holds, or captures it.
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
        let (grid, block) = (grid.into(), block.into());
        let capture = self.capture();
        if capture.is_some() {
            self.order.capture(name, grid, block, args)?;
            let kernel: Arc<str> = name.into();
            return Ok(Launch::of(kernel.clone(), Arc::new(Captured(kernel))));
        }
        drop(capture);
        self.limbo.sweep();
        self.order.launch(name, grid, block, args)
    }

    /// Runs a host function in order with the kernels (`cudaLaunchHostFunc`). It must not wait for
    /// the same stream, nor call the GPU: freeing its memory is such a call. It runs once, so a stream that captures drops it, and
    /// the capture fails.
    pub fn host(&self, f: impl FnOnce() + Send + 'static) {
        if let Some(capture) = &mut *self.capture() {
            capture.spoiled =
                Some("a host function runs once, and no graph can hold it; launch kernels alone");
            return;
        }
        self.order.host(Box::new(f));
    }

    /// Marks the point that the stream has reached so far. In a stream that captures nothing is reached:
    /// the event says so.
    pub fn record(&self) -> Event {
        if self.is_capturing() {
            return Event::of(Arc::new(Captured("event".into())));
        }
        self.order.record()
    }

    /// From now on kernels are captured instead of run, until [`Stream::end_capture`]. Their memory
    /// must live as long as the graph ([`Stream::keep`]).
    ///
    /// # Errors
    /// [`LaunchError::Capture`] when it does so already, or what the driver says.
    pub fn begin_capture(&self) -> Result<(), LaunchError> {
        let mut capture = self.capture();
        if capture.is_some() {
            let why = "it captures already; end that capture first";
            return Err(LaunchError::Capture { why });
        }
        self.order.begin_capture()?;
        *capture = Some(Capture::default());
        Ok(())
    }

    /// What was captured. The stream runs its operations again, also after an error.
    ///
    /// # Errors
    /// [`LaunchError::Capture`] when nothing was begun, or something that no graph can hold was asked for
    /// meanwhile.
    pub fn end_capture(&self) -> Result<Graph, LaunchError> {
        let mut capture = self.capture();
        let Some(captured) = capture.take() else {
            let why = "none was begun";
            return Err(LaunchError::Capture { why });
        };
        let replay = self.order.end_capture()?;
        match captured.spoiled {
            Some(why) => Err(LaunchError::Capture { why }),
            None => Ok(Graph::of(replay, captured)),
        }
    }

    /// Whether kernels are captured instead of run.
    pub fn is_capturing(&self) -> bool {
        self.capture().is_some()
    }

    /// Keeps something alive as long as the graph that is being captured, and the replays that use it; drops it when
    /// none is.
    pub fn keep(&self, what: impl std::any::Any + Send) {
        if let Some(capture) = &mut *self.capture() {
            capture.kept.push(Box::new(what));
        }
    }

    pub(super) fn replay(
        &self,
        graph: &dyn Replay,
        before: Option<&Launch>,
    ) -> Result<Launch, LaunchError> {
        if self.is_capturing() {
            let why = "a graph holds no other graph; launch it on a stream that does not capture";
            return Err(LaunchError::Capture { why });
        }
        self.limbo.sweep();
        self.order.replay(graph, before)
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
        if self.is_capturing() {
            return Err(
                "the entry of a replay is another one each time, so a kernel writes it".into(),
            );
        }
        self.order.has_words()
    }

    /// Queues operations on words behind what the stream holds.
    ///
    /// # Errors
    /// [`LaunchError::Unsupported`] without [`Stream::has_words`], or what the driver says.
    pub fn words(&self, ops: &[WordOp]) -> Result<(), LaunchError> {
        if self.is_capturing() {
            let why = "operations on words are not captured; launch a kernel";
            return Err(LaunchError::Capture { why });
        }
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
