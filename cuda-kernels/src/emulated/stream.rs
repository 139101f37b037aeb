//! Streams of the emulated GPU: operations in order, and waiting for them with a deadline.
#![allow(clippy::disallowed_methods)] // Host threads wait here, with deadlines.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::device::Device;
use super::module::Kernel;
use super::pool::Job;
use crate::gpu::{Ending, Event, Launch, Order, Replay};
use crate::launch::{ArgBlock, Dim3, KernelArg, LaunchError};

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
}

impl Ending for Done {
    fn poll(&self) -> Option<Result<(), LaunchError>> {
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

/// A point in a stream, and when it was reached.
#[derive(Debug, Default)]
struct Point {
    done: Done,
    at: Mutex<Option<Instant>>,
}

impl Ending for Point {
    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>> {
        self.done.wait(timeout)
    }

    fn poll(&self) -> Option<Result<(), LaunchError>> {
        self.done.poll()
    }

    fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }
}

enum Op {
    Kernel(Arc<Work>),
    Host(Box<dyn FnOnce() + Send>),
    Event(Arc<Point>),
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
    captured: Mutex<Vec<Node>>,
}

/// A stream; the operations themselves are in what its blocks share.
#[derive(Clone)]
pub(super) struct EmulatedStream {
    gpu: Arc<Device>,
    inner: Arc<StreamInner>,
}

impl std::fmt::Debug for EmulatedStream {
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

impl Order for EmulatedStream {
    fn launch(
        &self,
        name: &str,
        grid: Dim3,
        block: Dim3,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let kernel = self.gpu.kernel(name)?;
        kernel.check(grid, block, args)?;
        let done = Arc::new(Done::default());
        let launch = Launch::of(kernel.name.clone(), done.clone());
        let node = Node {
            kernel,
            grid,
            block,
            args: args.to_vec(),
        };
        self.push(Op::Kernel(Arc::new(node.work(done))));
        Ok(launch)
    }

    fn host(&self, f: Box<dyn FnOnce() + Send>) {
        self.push(Op::Host(f));
    }

    fn record(&self) -> Event {
        let point = Arc::new(Point::default());
        self.push(Op::Event(point.clone()));
        Event::of(point)
    }

    fn clear_error(&self) {
        lock(&self.inner.state).failed = None;
    }

    fn begin_capture(&self) -> Result<(), LaunchError> {
        lock(&self.inner.captured).clear();
        Ok(())
    }

    fn capture(
        &self,
        name: &str,
        grid: Dim3,
        block: Dim3,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        let kernel = self.gpu.kernel(name)?;
        kernel.check(grid, block, args)?;
        lock(&self.inner.captured).push(Node {
            kernel,
            grid,
            block,
            args: args.to_vec(),
        });
        Ok(())
    }

    fn end_capture(&self) -> Result<Arc<dyn Replay>, LaunchError> {
        let nodes = std::mem::take(&mut *lock(&self.inner.captured));
        Ok(Arc::new(EmulatedGraph {
            gpu: self.gpu.clone(),
            nodes,
        }))
    }

    fn replay(&self, graph: &dyn Replay, before: Option<&Launch>) -> Result<Launch, LaunchError> {
        let graph = graph.as_any().downcast_ref::<EmulatedGraph>();
        let graph = graph.filter(|g| Arc::ptr_eq(&g.gpu, &self.gpu));
        let Some(graph) = graph else {
            let why = "the graph was captured on another GPU; launch it on a stream of that one";
            return Err(LaunchError::Capture { why });
        };
        if let Some(before) = before.filter(|b| b.poll().is_none()).cloned() {
            // Kernels end by their own deadlines.
            self.push(Op::Host(Box::new(move || {
                while before
                    .wait(Duration::from_secs(60))
                    .is_err_and(|e| matches!(e, LaunchError::TimedOut { .. }))
                {}
            })));
        }
        // Those before the last are waited for by it: it does not run when one of them fails.
        for node in &graph.nodes {
            self.push(Op::Kernel(Arc::new(node.work(Arc::default()))));
        }
        let point = Arc::new(Point::default());
        self.push(Op::Event(point.clone()));
        Ok(Launch::of("graph".into(), point))
    }
}

/// A captured kernel.
struct Node {
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    args: Vec<KernelArg>,
}

impl Node {
    /// The kernel, to be run once.
    fn work(&self, done: Arc<Done>) -> Work {
        Work {
            kernel: self.kernel.clone(),
            args: ArgBlock::new(&self.args),
            grid: self.grid,
            block: self.block,
            left: AtomicU64::new(self.grid.count()),
            error: Mutex::new(None),
            done,
        }
    }
}

/// Captured kernels, in order.
struct EmulatedGraph {
    gpu: Arc<Device>,
    nodes: Vec<Node>,
}

impl std::fmt::Debug for EmulatedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmulatedGraph({} kernels)", self.nodes.len())
    }
}

impl Replay for EmulatedGraph {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl EmulatedStream {
    pub(super) fn new(gpu: Arc<Device>) -> EmulatedStream {
        EmulatedStream {
            gpu,
            inner: Arc::new(StreamInner {
                state: Mutex::new(State::default()),
                captured: Mutex::default(),
            }),
        }
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
fn advance(gpu: &Arc<Device>, stream: &Arc<StreamInner>) {
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
            (Op::Event(point), earlier) => {
                *lock(&point.at) = Some(Instant::now());
                point.done.set(earlier.map_or(Ok(()), Err));
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
    gpu: &Arc<Device>,
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

fn finish(gpu: &Arc<Device>, stream: &Arc<StreamInner>, work: &Work) {
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
