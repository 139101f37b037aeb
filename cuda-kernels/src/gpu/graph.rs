//! Graphs: kernels of a stream that were captured once and are replayed many times.
//!
//! ```no_run
//! # use ringbell_cuda_kernels::{Gpu, KernelArg};
//! # fn f(gpu: &Gpu, args: &[KernelArg]) -> Result<(), Box<dyn std::error::Error>> {
//! let stream = gpu.stream();
//! stream.begin_capture()?;
//! let _ = stream.launch("first", 1, 32, args)?; // captured, not run
//! let _ = stream.launch("second", 1, 32, args)?;
//! let graph = stream.end_capture()?;
//! for _ in 0..1000 {
//!     graph.launch(&stream)?.wait(std::time::Duration::from_secs(10))?;
//! }
//! # Ok(()) }
//! ```

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Launch, Stream};
use crate::launch::LaunchError;

/// A captured graph, as its backend has it.
pub(crate) trait Replay: std::fmt::Debug + Send + Sync {
    /// For the backend to know its own.
    fn as_any(&self) -> &dyn Any;
}

/// What lives as long as a graph.
pub(super) type Kept = Box<dyn Any + Send>;

/// A stream that captures.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) kept: Vec<Kept>,
    /// Why the capture has failed.
    pub(super) spoiled: Option<&'static str>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Capture({} kept, {:?})", self.kept.len(), self.spoiled)
    }
}

/// Things that a replay may still use when its graph is gone.
#[derive(Default)]
pub(super) struct Limbo {
    held: Mutex<Vec<(Launch, Kept)>>,
}

impl std::fmt::Debug for Limbo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limbo({})", self.held().len())
    }
}

impl Limbo {
    fn held(&self) -> MutexGuard<'_, Vec<(Launch, Kept)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what nothing uses any more.
    pub(super) fn sweep(&self) {
        let mut held = self.held();
        let ended: Vec<_> = held
            .extract_if(.., |(launch, _)| launch.poll().is_some())
            .collect();
        drop(held);
        drop(ended);
    }
}

impl Drop for Limbo {
    fn drop(&mut self) {
        self.sweep();
        // A kernel may use the rest at any time later.
        self.held().drain(..).for_each(std::mem::forget);
    }
}

/// Kernels in the order in which they were captured, with the arguments that they were given. A handle: clones are the
/// same graph.
///
/// Replays of one graph run one after the other, on whichever streams. Everything that a kernel does when it runs it
/// does at each replay: tickets of queues are taken, and operations posted, anew.
#[derive(Debug, Clone)]
pub struct Graph {
    inner: Arc<Inner>,
}

struct Inner {
    replay: Arc<dyn Replay>,
    /// In a mutex only because what is kept need not be shared between threads.
    kept: Mutex<Vec<Kept>>,
    last: Mutex<Option<(Stream, Launch)>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.replay)
    }
}

impl Graph {
    pub(super) fn of(replay: Arc<dyn Replay>, capture: Capture) -> Graph {
        Graph {
            inner: Arc::new(Inner {
                replay,
                kept: Mutex::new(capture.kept),
                last: Mutex::new(None),
            }),
        }
    }

    /// Replays it once, behind what the stream holds and behind earlier replays.
    ///
    /// # Errors
    /// [`LaunchError`]: the GPU refuses, the graph is of another GPU, or the stream captures.
    pub fn launch(&self, stream: &Stream) -> Result<Launch, LaunchError> {
        // Under the lock: replays stand in one order.
        let mut last = self
            .inner
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = last.as_ref().map(|(_, launch)| launch);
        let launch = stream.replay(&*self.inner.replay, before)?;
        *last = Some((stream.clone(), launch.clone()));
        Ok(launch)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some((stream, launch)) = last.take() else {
            return;
        };
        if launch.poll().is_none() {
            let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            let rest = (self.replay.clone(), std::mem::take(kept));
            stream.limbo().held().push((launch, Box::new(rest)));
        }
    }
}
