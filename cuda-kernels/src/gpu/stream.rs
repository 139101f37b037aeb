//! Streams: operations in order, and their capture as graphs.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::graph::{GraphCapture, ReplayQueue};
use super::{Ending, Event, Graph, Launch, StreamBackend, WordOp};
use crate::launch::{Dim3, KernelArg, LaunchError, LaunchShape};
use crate::locks::lock;

/// The ending of a captured kernel: an error, because it does not run here.
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
    queue: ReplayQueue,
    capture: Arc<Mutex<Option<GraphCapture>>>,
}

impl Graph {
    /// Replays it once, behind the stream's present work and behind earlier replays.
    ///
    /// # Errors
    /// [`LaunchError`]: the GPU refuses, the graph is of another GPU, or the stream captures.
    pub fn launch(&self, stream: &Stream) -> Result<Launch, LaunchError> {
        if stream.is_capturing() {
            let why = "a graph holds no other graph; launch it on a stream that does not capture";
            return Err(LaunchError::Capture { why });
        }
        self.replay(&stream.queue)
    }
}

impl Stream {
    pub(crate) fn of(order: Arc<dyn StreamBackend>) -> Stream {
        Stream {
            queue: ReplayQueue {
                order,
                deferred: Arc::default(),
            },
            capture: Arc::default(),
        }
    }

    fn capture(&self) -> MutexGuard<'_, Option<GraphCapture>> {
        lock(&self.capture)
    }

    /// Launches a kernel behind the stream's present work, or captures it.
    ///
    /// # Errors
    /// Unknown kernel, wrong arguments or shape. The [`Launch`] tells how it ends.
    ///
    /// # Safety
    /// It runs native code. Arguments have the types of the kernel's parameters, and the kernel
    /// stays within the memory that they point to. That memory lives until the kernel has ended,
    /// and while a graph that captured it can be replayed.
    pub unsafe fn launch(
        &self,
        name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_shape(name, LaunchShape::new(grid, block), args) }
    }

    /// As [`Stream::launch`], with so many bytes of dynamic shared memory as the shape says.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn launch_shape(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let capture = self.capture();
        if capture.is_some() {
            self.queue.order.capture(name, shape, args)?;
            let kernel: Arc<str> = name.into();
            return Ok(Launch::of(kernel.clone(), Arc::new(Captured(kernel))));
        }
        drop(capture);
        self.queue.deferred.release_ended();
        self.queue.order.launch(name, shape, args)
    }

    /// As [`Stream::launch`], of a kernel that is known by its handle. The caller has its contract.
    pub(crate) fn launch_loaded(
        &self,
        kernel: &dyn super::KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let capture = self.capture();
        if capture.is_some() {
            self.queue.order.capture_loaded(kernel, shape, args)?;
            let kernel: Arc<str> = kernel.name().into();
            return Ok(Launch::of(kernel.clone(), Arc::new(Captured(kernel))));
        }
        drop(capture);
        self.queue.deferred.release_ended();
        self.queue.order.launch_loaded(kernel, shape, args)
    }

    /// Runs a host function in order with the kernels (`cudaLaunchHostFunc`). It must not wait for
    /// the same stream, nor call the GPU: freeing its memory is such a call. It runs once, so a
    /// stream that captures drops it, and the capture fails.
    pub fn host(&self, f: impl FnOnce() + Send + 'static) {
        if let Some(capture) = &mut *self.capture() {
            capture.failed =
                Some("a host function runs once, and no graph can hold it; launch kernels alone");
            return;
        }
        self.queue.order.host(Box::new(f));
    }

    /// An event behind the stream's present work. A stream that captures reaches no event, and the
    /// event says so.
    pub fn record(&self) -> Event {
        if self.is_capturing() {
            return Event::of(Arc::new(Captured("event".into())));
        }
        self.queue.order.record()
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
        self.queue.order.begin_capture()?;
        *capture = Some(GraphCapture::default());
        Ok(())
    }

    /// Ends the capture. The stream runs its operations again, also after an error.
    ///
    /// # Errors
    /// [`LaunchError::Capture`] when none was begun, or an operation that no graph can hold was
    /// asked for.
    pub fn end_capture(&self) -> Result<Graph, LaunchError> {
        let mut capture = self.capture();
        let Some(captured) = capture.take() else {
            let why = "none was begun";
            return Err(LaunchError::Capture { why });
        };
        let replay = self.queue.order.end_capture()?;
        match captured.failed {
            Some(why) => Err(LaunchError::Capture { why }),
            None => Ok(Graph::of(replay, captured)),
        }
    }

    /// Whether kernels are captured instead of run.
    pub fn is_capturing(&self) -> bool {
        self.capture().is_some()
    }

    /// Keeps a value alive as long as the captured graph and the replays that use it. Without a
    /// capture it is dropped.
    pub fn keep(&self, what: impl std::any::Any + Send) {
        if let Some(capture) = &mut *self.capture() {
            capture.kept.push(Box::new(what));
        }
    }

    /// Waits until everything queued so far has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`], or the failure of an operation.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), LaunchError> {
        self.record().wait(timeout)
    }

    /// Whether the stream itself can store words and wait for them (a real GPU's driver: stream
    /// memory operations). Then no kernel need run during a wait.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn has_words(&self) -> Result<(), String> {
        if self.is_capturing() {
            return Err(
                "the entry of a replay is another one each time, so a kernel writes it".into(),
            );
        }
        self.queue.order.has_words()
    }

    /// Queues operations on words behind the stream's present work.
    ///
    /// # Errors
    /// [`LaunchError::Unsupported`] without [`Stream::has_words`], or what the driver says.
    pub fn words(&self, ops: &[WordOp]) -> Result<(), LaunchError> {
        if self.is_capturing() {
            let why = "operations on words are not captured; launch a kernel";
            return Err(LaunchError::Capture { why });
        }
        self.queue.order.words(ops)
    }

    /// Whether both are handles of one stream.
    pub fn is_same(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.queue.order, &other.queue.order)
    }

    /// Forgets an earlier failure, so that the stream accepts work again.
    pub fn clear_error(&self) {
        self.queue.order.clear_error();
    }
}
