//! Launches and events: operations of a stream that a host thread waits for, with a deadline.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::launch::LaunchError;
use crate::locks::{exclusive, lock};

/// An operation of a backend that ends once. Many threads may wait for it.
pub(crate) trait Ending: Debug + Send + Sync {
    /// The result, or `None` when it has not ended after `timeout`.
    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>>;
    /// The result if it has ended.
    fn poll(&self) -> Option<Result<(), LaunchError>>;
    /// Where threads stand and what they wait for, in lines.
    fn explain(&self) -> Option<String> {
        None
    }
    /// When it ended, where the host knows.
    fn at(&self) -> Option<Instant> {
        None
    }
    /// The backend's own handle of it; 0 without one.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    fn raw(&self) -> usize {
        0
    }
    /// Time since an earlier one of the same backend.
    fn since(&self, earlier: &dyn Ending) -> Option<Duration> {
        Some(self.at()?.saturating_duration_since(earlier.at()?))
    }
}

/// A kernel that was launched. Dropping it does not stop the kernel.
#[derive(Debug, Clone)]
#[must_use = "wait for the launch, or its failure goes unseen"]
pub struct Launch {
    kernel: Arc<str>,
    done: Arc<dyn Ending>,
}

/// A value that lives as long as a graph or a running kernel.
pub(super) type Kept = Box<dyn Any + Send>;

/// Deferred release: values of dropped graphs and launches, each until the replay or kernel that
/// uses it has ended.
#[derive(Default)]
pub(super) struct DeferredDrop {
    held: Mutex<Vec<(Launch, Kept)>>,
}

impl std::fmt::Debug for DeferredDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeferredDrop({})", self.held().len())
    }
}

impl DeferredDrop {
    fn held(&self) -> MutexGuard<'_, Vec<(Launch, Kept)>> {
        lock(&self.held)
    }

    pub(super) const fn new() -> DeferredDrop {
        DeferredDrop {
            held: Mutex::new(Vec::new()),
        }
    }

    /// Holds a value until a replay or kernel has ended.
    pub(super) fn hold(&self, launch: Launch, value: Kept) {
        self.held().push((launch, value));
    }

    /// Drops the values whose replays or kernels have ended.
    pub(super) fn release_ended(&self) {
        let mut held = self.held();
        let ended: Vec<_> = held
            .extract_if(.., |(launch, _)| launch.poll().is_some())
            .collect();
        drop(held);
        drop(ended);
    }
}

impl Drop for DeferredDrop {
    fn drop(&mut self) {
        self.release_ended();
        // A running kernel may still use the rest, so they are leaked.
        self.held().drain(..).for_each(std::mem::forget);
    }
}

/// What kernels use whose launches were dropped before they ended. Those that never end keep it for
/// good.
static LEFT: DeferredDrop = DeferredDrop::new();

/// The ending of a kernel, with what must live until then.
struct Keeping {
    kept: Mutex<Option<Kept>>,
    launch: Launch,
}

impl Debug for Keeping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, with what it uses", self.launch)
    }
}

impl Keeping {
    /// Drops what was kept, outside of the lock, when the kernel has ended.
    fn ended<T>(&self, end: Option<T>) -> Option<T> {
        if end.is_some() {
            let kept = lock(&self.kept).take();
            drop(kept);
        }
        end
    }
}

impl Ending for Keeping {
    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>> {
        self.ended(self.launch.done.wait(timeout))
    }

    fn poll(&self) -> Option<Result<(), LaunchError>> {
        self.ended(self.launch.done.poll())
    }

    fn explain(&self) -> Option<String> {
        self.launch.done.explain()
    }

    fn at(&self) -> Option<Instant> {
        self.launch.done.at()
    }

    fn raw(&self) -> usize {
        self.launch.done.raw()
    }

    fn since(&self, earlier: &dyn Ending) -> Option<Duration> {
        self.launch.done.since(earlier)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(kept) = exclusive(&mut self.kept).take() {
            LEFT.hold(self.launch.clone(), kept);
            LEFT.release_ended();
        }
    }
}

/// Waits shorter than this are those of callers that look in between, and get no explanation.
const EXPLAINED: Duration = Duration::from_millis(500);

fn late(kernel: &str, done: &dyn Ending, timeout: Duration) -> LaunchError {
    let lines = (timeout >= EXPLAINED).then(|| done.explain()).flatten();
    LaunchError::TimedOut {
        kernel: kernel.to_owned(),
        waited_ms: timeout.as_millis() as u64,
        threads: lines.map_or(String::new(), |l| format!("\n{l}")),
    }
}

impl Launch {
    pub(crate) fn of(kernel: Arc<str>, done: Arc<dyn Ending>) -> Launch {
        Launch { kernel, done }
    }

    /// Waits until the kernel has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`] when it still runs after `timeout` (it goes on running; wait
    /// again), or how it failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), LaunchError> {
        let late = || Err(late(&self.kernel, &*self.done, timeout));
        self.done.wait(timeout).unwrap_or_else(late)
    }

    /// Keeps a value until the kernel has ended, also when every handle of the launch is dropped
    /// before: memory that its arguments point to. It is dropped by the call that finds the kernel
    /// ended: a wait, a poll, or a later launch that keeps.
    pub fn keep(self, what: impl Any + Send) -> Launch {
        LEFT.release_ended();
        let done = Arc::new(Keeping {
            kept: Mutex::new(Some(Box::new(what))),
            launch: self.clone(),
        });
        Launch { done, ..self }
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
        let late = || Err(late("event", &*self.done, timeout));
        self.done.wait(timeout).unwrap_or_else(late)
    }

    /// Time between two reached events; `None` while one is not reached.
    pub fn elapsed_since(&self, earlier: &Event) -> Option<Duration> {
        self.done.since(&*earlier.done)
    }
}
