//! Streams: operations in order, and waiting for them with a deadline.
#![allow(clippy::disallowed_methods)] // Host threads wait here, with deadlines.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::gpu::GpuInner;
use super::module::Kernel;
use super::pool::Job;
use crate::launch::{ArgBlock, Dim3, LaunchError};

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks can panic half-way through a change.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that ends once, with a result that many may wait for.
#[derive(Debug, Default)]
pub(super) struct Done {
    result: Mutex<Option<Result<(), LaunchError>>>,
    changed: Condvar,
}

impl Done {
    fn set(&self, r: Result<(), LaunchError>) {
        *lock(&self.result) = Some(r);
        self.changed.notify_all();
    }

    fn get(&self) -> Option<Result<(), LaunchError>> {
        lock(&self.result).clone()
    }

    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>> {
        let deadline = Instant::now().checked_add(timeout);
        let mut r = lock(&self.result);
        while r.is_none() {
            let left = match deadline {
                Some(d) => d.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if left.is_zero() {
                return None;
            }
            r = self
                .changed
                .wait_timeout(r, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        r.clone()
    }
}

/// A kernel on its way, with everything it needs.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) kernel: Kernel,
    pub(super) args: ArgBlock,
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    left: AtomicU64,
    error: Mutex<Option<String>>,
    done: Arc<Done>,
}

/// A kernel that was launched. Dropping it does not stop the kernel.
#[derive(Debug, Clone)]
#[must_use = "wait for the launch, or its failure goes unseen"]
pub struct Launch {
    kernel: Arc<str>,
    done: Arc<Done>,
}

impl Launch {
    /// Waits until the kernel has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`] when it still runs after `timeout` (it goes on running; wait again),
    /// or how it failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), LaunchError> {
        self.done.wait(timeout).unwrap_or_else(|| {
            Err(LaunchError::TimedOut {
                kernel: self.kernel.to_string(),
                waited_ms: timeout.as_millis() as u64,
            })
        })
    }

    /// The kernel's result if it has ended.
    pub fn poll(&self) -> Option<Result<(), LaunchError>> {
        self.done.get()
    }
}

enum Op {
    Kernel(Arc<Work>),
    Host(Box<dyn FnOnce() + Send>),
    Event(Arc<Done>, Arc<Mutex<Option<Instant>>>),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Op>,
    running: bool,
    failed: Option<LaunchError>,
}

/// Shared half of a stream: what a finished block needs to start the next operation.
pub(super) struct StreamInner {
    state: Mutex<State>,
}

/// Operations that run one after the other; streams run beside each other.
///
/// When a kernel fails, the operations queued behind it fail with [`LaunchError::StreamFailed`]
/// until [`Stream::clear_error`].
#[derive(Clone)]
pub struct Stream {
    gpu: Arc<GpuInner>,
    inner: Arc<StreamInner>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = lock(&self.inner.state);
        write!(
            f,
            "Stream({} queued, running: {})",
            s.queue.len(),
            s.running
        )
    }
}

/// A point in a stream.
#[derive(Debug, Clone)]
pub struct Event {
    done: Arc<Done>,
    at: Arc<Mutex<Option<Instant>>>,
}

impl Event {
    /// Waits until the stream has reached the event.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`], or the failure of an earlier operation.
    pub fn wait(&self, timeout: Duration) -> Result<(), LaunchError> {
        self.done.wait(timeout).unwrap_or_else(|| {
            Err(LaunchError::TimedOut {
                kernel: "event".to_owned(),
                waited_ms: timeout.as_millis() as u64,
            })
        })
    }

    /// Time between two reached events; `None` while one is not reached.
    pub fn elapsed_since(&self, earlier: &Event) -> Option<Duration> {
        let (a, b) = ((*lock(&earlier.at))?, (*lock(&self.at))?);
        Some(b.saturating_duration_since(a))
    }
}

impl Stream {
    pub(super) fn new(gpu: Arc<GpuInner>) -> Stream {
        Stream {
            gpu,
            inner: Arc::new(StreamInner {
                state: Mutex::new(State::default()),
            }),
        }
    }

    pub(super) fn push_kernel(
        &self,
        kernel: Kernel,
        args: ArgBlock,
        grid: Dim3,
        block: Dim3,
    ) -> Launch {
        let done = Arc::new(Done::default());
        let launch = Launch {
            kernel: kernel.name.clone(),
            done: done.clone(),
        };
        self.push(Op::Kernel(Arc::new(Work {
            kernel,
            args,
            grid,
            block,
            left: AtomicU64::new(grid.count()),
            error: Mutex::new(None),
            done,
        })));
        launch
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
        args: &[crate::KernelArg],
    ) -> Result<Launch, LaunchError> {
        let (grid, block) = (grid.into(), block.into());
        let kernel = self.gpu.kernel(name)?;
        kernel.check(grid, block, args)?;
        Ok(self.push_kernel(kernel, ArgBlock::new(args), grid, block))
    }

    /// Runs a host function in order with the kernels (`cudaLaunchHostFunc`). It must not wait for
    /// the same stream.
    pub fn host(&self, f: impl FnOnce() + Send + 'static) {
        self.push(Op::Host(Box::new(f)));
    }

    /// Marks the point that the stream has reached so far.
    pub fn record(&self) -> Event {
        let e = Event {
            done: Arc::new(Done::default()),
            at: Arc::new(Mutex::new(None)),
        };
        self.push(Op::Event(e.done.clone(), e.at.clone()));
        e
    }

    /// Waits until everything queued so far has ended.
    ///
    /// # Errors
    /// [`LaunchError::TimedOut`], or the failure of an operation.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), LaunchError> {
        self.record().wait(timeout)
    }

    /// Forgets an earlier failure, so that the stream accepts work again.
    pub fn clear_error(&self) {
        lock(&self.inner.state).failed = None;
    }

    fn push(&self, op: Op) {
        let mut s = lock(&self.inner.state);
        s.queue.push_back(op);
        if !s.running {
            s.running = true;
            drop(s);
            advance(&self.gpu, &self.inner);
        }
    }
}

/// Starts the next operation; called by whoever finished the last one.
fn advance(gpu: &Arc<GpuInner>, stream: &Arc<StreamInner>) {
    loop {
        let (op, failed) = {
            let mut s = lock(&stream.state);
            let Some(op) = s.queue.pop_front() else {
                s.running = false;
                return;
            };
            (op, s.failed.clone())
        };
        let earlier = failed.map(|cause| LaunchError::StreamFailed {
            cause: Box::new(cause),
        });
        match (op, earlier) {
            (Op::Event(done, at), earlier) => {
                *lock(&at) = Some(Instant::now());
                done.set(earlier.map_or(Ok(()), Err));
            }
            (Op::Host(_), Some(_)) => {}
            (Op::Kernel(work), Some(e)) => work.done.set(Err(e)),
            (Op::Host(f), None) => {
                let (g, s) = (gpu.clone(), stream.clone());
                let job: Job = Box::new(move || {
                    f();
                    advance(&g, &s);
                });
                match gpu.pool.submit([job]) {
                    Ok(()) => return,
                    Err(e) => lock(&stream.state).failed = Some(no_thread(&e)),
                }
            }
            (Op::Kernel(work), None) => match start(gpu, stream, &work) {
                Ok(()) => return,
                Err(e) => {
                    lock(&stream.state).failed = Some(e.clone());
                    work.done.set(Err(e));
                }
            },
        }
    }
}

fn no_thread(e: &std::io::Error) -> LaunchError {
    LaunchError::NoThread {
        reason: e.to_string(),
    }
}

/// Queues the blocks of a kernel.
fn start(
    gpu: &Arc<GpuInner>,
    stream: &Arc<StreamInner>,
    work: &Arc<Work>,
) -> Result<(), LaunchError> {
    let blocks = work.grid.count();
    let jobs = (0..blocks).map(|index| {
        let (gpu, stream, work) = (gpu.clone(), stream.clone(), work.clone());
        Box::new(move || {
            if let Err(reason) = work.kernel.run_block(
                &work.args,
                work.grid,
                work.block,
                index,
                gpu.lane_stack_bytes,
            ) {
                lock(&work.error).get_or_insert(reason);
            }
            // AcqRel: the last block's thread must see what the others stored, as whoever waits does.
            if work.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                finish(&gpu, &stream, &work);
            }
        }) as Job
    });
    gpu.pool.submit(jobs).map_err(|e| no_thread(&e))
}

fn finish(gpu: &Arc<GpuInner>, stream: &Arc<StreamInner>, work: &Work) {
    let result = match lock(&work.error).take() {
        None => Ok(()),
        Some(reason) => Err(LaunchError::Failed {
            kernel: work.kernel.name.to_string(),
            reason,
        }),
    };
    if let Err(e) = &result {
        lock(&stream.state).failed = Some(e.clone());
    }
    work.done.set(result);
    advance(gpu, stream);
}
