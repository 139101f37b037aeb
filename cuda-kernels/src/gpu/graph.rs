//! Graphs: kernels of a stream that were captured once and are replayed many times.
//!
//! ```no_run
//! # use ringbell_cuda_kernels::{Gpu, KernelArg};
//! # fn f(gpu: &Gpu, args: &[KernelArg]) -> Result<(), Box<dyn std::error::Error>> {
//! let stream = gpu.stream();
//! stream.begin_capture()?;
//! // SAFETY: the arguments are the kernels' own, and their memory outlives the graph. Captured, not run:
//! let _ = unsafe { stream.launch("first", 1, 32, args) }?;
//! let _ = unsafe { stream.launch("second", 1, 32, args) }?;
//! let graph = stream.end_capture()?;
//! for _ in 0..1000 {
//!     graph.launch(&stream)?.wait(std::time::Duration::from_secs(10))?;
//! }
//! # Ok(()) }
//! ```

use std::sync::{Arc, Mutex};

use super::ending::{DeferredDrop, Kept};
use super::{GraphBackend, Launch, StreamBackend};
use crate::launch::LaunchError;
use crate::locks::{exclusive, lock};

/// The state of a stream that captures.
#[derive(Default)]
pub(super) struct GraphCapture {
    pub(super) kept: Vec<Kept>,
    /// Why the capture has failed.
    pub(super) failed: Option<&'static str>,
}

impl std::fmt::Debug for GraphCapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "GraphCapture({} kept, {:?})",
            self.kept.len(),
            self.failed
        )
    }
}

/// The part of a stream that a graph needs to replay on it.
#[derive(Debug, Clone)]
pub(super) struct ReplayQueue {
    pub(super) order: Arc<dyn StreamBackend>,
    pub(super) deferred: Arc<DeferredDrop>,
}

/// Kernels in the order in which they were captured, with the arguments that they were given. A
/// handle: clones are the same graph.
///
/// Replays of one graph run one after the other, also on different streams. Each replay takes
/// tickets of queues and posts operations anew.
#[derive(Debug, Clone)]
pub struct Graph {
    inner: Arc<GraphInner>,
}

struct GraphInner {
    replay: Arc<dyn GraphBackend>,
    /// In a mutex only because its values need not be `Sync`.
    kept: Mutex<Vec<Kept>>,
    last: Mutex<Option<(ReplayQueue, Launch)>>,
}

impl std::fmt::Debug for GraphInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.replay)
    }
}

impl Graph {
    pub(super) fn of(replay: Arc<dyn GraphBackend>, capture: GraphCapture) -> Graph {
        Graph {
            inner: Arc::new(GraphInner {
                replay,
                kept: Mutex::new(capture.kept),
                last: Mutex::new(None),
            }),
        }
    }

    /// Replays it once on a stream, behind earlier replays.
    pub(super) fn replay(&self, queue: &ReplayQueue) -> Result<Launch, LaunchError> {
        // Under the lock: replays have one order.
        let mut last = lock(&self.inner.last);
        queue.deferred.release_ended();
        let before = last.as_ref().map(|(_, launch)| launch);
        let launch = queue.order.replay(&*self.inner.replay, before)?;
        *last = Some((queue.clone(), launch.clone()));
        Ok(launch)
    }
}

impl Drop for GraphInner {
    fn drop(&mut self) {
        let last = exclusive(&mut self.last);
        let Some((queue, launch)) = last.take() else {
            return;
        };
        if launch.poll().is_none() {
            let kept = exclusive(&mut self.kept);
            let rest = (self.replay.clone(), std::mem::take(kept));
            queue.deferred.hold(launch, Box::new(rest));
        }
    }
}
