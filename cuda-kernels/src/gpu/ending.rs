//! Launches and events: operations of a stream that a host thread waits for, with a deadline.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::launch::LaunchError;

/// An operation of a backend that ends once. Many threads may wait for it.
pub(crate) trait Ending: Debug + Send + Sync {
    /// The result, or `None` when it has not ended after `timeout`.
    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>>;
    /// The result if it has ended.
    fn poll(&self) -> Option<Result<(), LaunchError>>;
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
