//! Streams of the emulated GPU: operations in order, and waiting for them with a deadline.
#![allow(clippy::disallowed_methods)] // Host threads wait here, with deadlines.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::device::EmulatedDevice;
use super::drive::PtxLaunch;
use super::loaded::LoadedKernel;
use super::module::EmulatedKernel;
use super::pool::BlockJob;
use crate::gpu::KernelHandle;
use crate::gpu::{Ending, Event, GraphBackend, Launch, StreamBackend};
use crate::launch::{ArgBlock, Failure, KernelArg, LaunchError, LaunchShape};
use crate::locks::lock;

/// The ending of a kernel, with its result. Many threads may wait for it.
#[derive(Debug, Default)]
pub(super) struct KernelEnding {
    result: Mutex<Option<Result<(), LaunchError>>>,
    launch: std::sync::OnceLock<std::sync::Weak<super::drive::PtxLaunch>>,
    changed: Condvar,
}

impl KernelEnding {
    fn set(&self, r: Result<(), LaunchError>) {
        *lock(&self.result) = Some(r);
        self.changed.notify_all();
    }
}

impl Ending for KernelEnding {
    fn poll(&self) -> Option<Result<(), LaunchError>> {
        lock(&self.result).clone()
    }

    fn explain(&self) -> Option<String> {
        self.launch.get()?.upgrade()?.explain()
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

/// A kernel that is queued or runs.
#[derive(Debug)]
pub(super) struct KernelRun {
    pub(super) kernel: EmulatedKernel,
    pub(super) args: ArgBlock,
    pub(super) shape: LaunchShape,
    /// Jobs that have not ended.
    left: AtomicU64,
    error: Mutex<Option<(Failure, String)>>,
    done: Arc<KernelEnding>,
    /// Until it has ended.
    counted: Mutex<Option<Counted>>,
}

impl KernelRun {
    fn end(&self, result: Result<(), LaunchError>) {
        // First, so that the GPU runs nothing when the last kernel's waiter goes on.
        drop(lock(&self.counted).take());
        self.done.set(result);
    }
}

/// A kernel among those that have not ended.
#[derive(Debug)]
struct Counted(Arc<EmulatedDevice>);

impl Counted {
    fn new(gpu: &Arc<EmulatedDevice>) -> Counted {
        // Relaxed: who launches a kernel orders it before its own look.
        gpu.running.fetch_add(1, Ordering::Relaxed);
        Counted(gpu.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `EmulatedDevice::is_running`, after the kernel's last
        // access.
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

/// A point in a stream, and when it was reached.
#[derive(Debug, Default)]
struct EventEnding {
    done: KernelEnding,
    at: Mutex<Option<Instant>>,
}

impl Ending for EventEnding {
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

enum StreamOp {
    Kernel(Arc<KernelRun>),
    Host(Box<dyn FnOnce() + Send>),
    Event(Arc<EventEnding>),
}

#[derive(Default)]
struct StreamState {
    queue: VecDeque<StreamOp>,
    running: bool,
    failed: Option<LaunchError>,
}

/// Shared half of a stream, by which a finished block starts the next operation.
pub(super) struct StreamInner {
    state: Mutex<StreamState>,
    captured: Mutex<Vec<GraphNode>>,
}

/// A stream: a handle of the state that its blocks share.
#[derive(Clone)]
pub(super) struct EmulatedStream {
    gpu: Arc<EmulatedDevice>,
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

impl StreamBackend for EmulatedStream {
    fn launch(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let node = GraphNode::new(self.gpu.kernel(name)?, shape, args)?;
        Ok(self.run(&node))
    }

    fn launch_loaded(
        &self,
        kernel: &dyn KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        Ok(self.run(&GraphNode::loaded(kernel, shape, args)?))
    }

    fn capture_loaded(
        &self,
        kernel: &dyn KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        let node = GraphNode::loaded(kernel, shape, args)?;
        lock(&self.inner.captured).push(node);
        Ok(())
    }

    fn host(&self, f: Box<dyn FnOnce() + Send>) {
        self.push(StreamOp::Host(f));
    }

    fn record(&self) -> Event {
        let point = Arc::new(EventEnding::default());
        self.push(StreamOp::Event(point.clone()));
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
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        let node = GraphNode::new(self.gpu.kernel(name)?, shape, args)?;
        lock(&self.inner.captured).push(node);
        Ok(())
    }

    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>, LaunchError> {
        let nodes = std::mem::take(&mut *lock(&self.inner.captured));
        Ok(Arc::new(EmulatedGraph {
            gpu: self.gpu.clone(),
            nodes,
        }))
    }

    fn replay(
        &self,
        graph: &dyn GraphBackend,
        before: Option<&Launch>,
    ) -> Result<Launch, LaunchError> {
        let graph = graph.as_any().downcast_ref::<EmulatedGraph>();
        let graph = graph.filter(|g| Arc::ptr_eq(&g.gpu, &self.gpu));
        let Some(graph) = graph else {
            let why = "the graph was captured on another GPU; launch it on a stream of that one";
            return Err(LaunchError::Capture { why });
        };
        if let Some(before) = before.filter(|b| b.poll().is_none()).cloned() {
            // Kernels end by their own deadlines.
            self.push(StreamOp::Host(Box::new(move || {
                while before
                    .wait(Duration::from_secs(60))
                    .is_err_and(|e| matches!(e, LaunchError::TimedOut { .. }))
                {}
            })));
        }
        // The event behind them fails when one of them fails.
        for node in &graph.nodes {
            let work = node.work(&self.gpu, Arc::default());
            self.push(StreamOp::Kernel(Arc::new(work)));
        }
        let point = Arc::new(EventEnding::default());
        self.push(StreamOp::Event(point.clone()));
        Ok(Launch::of("graph".into(), point))
    }
}

/// A kernel with checked shape and arguments, to be run once or captured.
struct GraphNode {
    kernel: EmulatedKernel,
    shape: LaunchShape,
    args: Vec<KernelArg>,
}

impl GraphNode {
    fn new(
        kernel: EmulatedKernel,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<GraphNode, LaunchError> {
        kernel.check(&shape, args)?;
        Ok(GraphNode {
            kernel,
            shape,
            args: args.to_vec(),
        })
    }

    /// A kernel by its handle.
    fn loaded(
        kernel: &dyn KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<GraphNode, LaunchError> {
        let own = kernel.as_any().downcast_ref::<LoadedKernel>();
        let what = "kernels of another kind of GPU";
        let own = own.ok_or(LaunchError::Unsupported { what })?;
        GraphNode::new(own.kernel.clone(), shape, args)
    }

    /// The kernel, to be run once.
    fn work(&self, gpu: &Arc<EmulatedDevice>, done: Arc<KernelEnding>) -> KernelRun {
        KernelRun {
            kernel: self.kernel.clone(),
            args: ArgBlock::new(&self.args),
            shape: self.shape,
            left: AtomicU64::new(self.shape.grid.count()),
            error: Mutex::new(None),
            done,
            counted: Mutex::new(Some(Counted::new(gpu))),
        }
    }
}

/// Captured kernels, in order.
struct EmulatedGraph {
    gpu: Arc<EmulatedDevice>,
    nodes: Vec<GraphNode>,
}

impl std::fmt::Debug for EmulatedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmulatedGraph({} kernels)", self.nodes.len())
    }
}

impl GraphBackend for EmulatedGraph {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl EmulatedStream {
    pub(super) fn new(gpu: Arc<EmulatedDevice>) -> EmulatedStream {
        EmulatedStream {
            gpu,
            inner: Arc::new(StreamInner {
                state: Mutex::new(StreamState::default()),
                captured: Mutex::default(),
            }),
        }
    }

    /// Queues a kernel.
    fn run(&self, node: &GraphNode) -> Launch {
        let done = Arc::new(KernelEnding::default());
        let launch = Launch::of(node.kernel.name.clone(), done.clone());
        self.push(StreamOp::Kernel(Arc::new(node.work(&self.gpu, done))));
        launch
    }

    fn push(&self, op: StreamOp) {
        let mut s = lock(&self.inner.state);
        s.queue.push_back(op);
        if !s.running {
            s.running = true;
            drop(s);
            advance(&self.gpu, &self.inner);
        }
    }
}

/// Starts the next operation; called by the thread that finished the last one.
fn advance(gpu: &Arc<EmulatedDevice>, stream: &Arc<StreamInner>) {
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
            (StreamOp::Event(point), earlier) => {
                *lock(&point.at) = Some(Instant::now());
                point.done.set(earlier.map_or(Ok(()), Err));
            }
            (StreamOp::Host(_), Some(_)) => {}
            (StreamOp::Kernel(work), Some(e)) => work.end(Err(e)),
            (StreamOp::Host(f), None) => {
                let (g, s) = (gpu.clone(), stream.clone());
                let job: BlockJob = Box::new(move || {
                    f();
                    advance(&g, &s);
                });
                match gpu.pool.submit([job]) {
                    Ok(()) => return,
                    Err(e) => lock(&stream.state).failed = Some(no_thread(&e)),
                }
            }
            (StreamOp::Kernel(work), None) => match start(gpu, stream, &work) {
                Ok(()) => return,
                Err(e) => {
                    lock(&stream.state).failed = Some(e.clone());
                    work.end(Err(e));
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

/// Queues the jobs of a kernel: a few, which share its blocks.
fn start(
    gpu: &Arc<EmulatedDevice>,
    stream: &Arc<StreamInner>,
    work: &Arc<KernelRun>,
) -> Result<(), LaunchError> {
    let kernel = &work.kernel.code;
    let launch = PtxLaunch::of(kernel, &gpu.memory, work.shape, &work.args)?;
    let launch = Arc::new(launch);
    let _ = work.done.launch.set(Arc::downgrade(&launch));
    let count = launch.workers(gpu.pool.max_threads());
    work.left.store(count, Ordering::Relaxed);
    let jobs = (0..count).map(|_| {
        let (gpu, stream, work, launch) =
            (gpu.clone(), stream.clone(), work.clone(), launch.clone());
        Box::new(move || {
            let ran = launch.work().map_err(|e| (e.failure, e.reason));
            end_job(&gpu, &stream, &work, ran);
        }) as BlockJob
    });
    gpu.pool.submit(jobs).map_err(|e| no_thread(&e))
}

/// An error, and what checks have found in the launch.
fn with_findings(work: &KernelRun, error: Option<(Failure, String)>) -> Option<(Failure, String)> {
    let launch = work.done.launch.get().and_then(std::sync::Weak::upgrade);
    let found = launch.and_then(|l| l.findings());
    match (error, found) {
        (error, None) => error,
        (None, Some(found)) => Some((Failure::Other, found)),
        (Some((failure, reason)), Some(found)) => Some((failure, format!("{reason}\n{found}"))),
    }
}

fn end_job(
    gpu: &Arc<EmulatedDevice>,
    stream: &Arc<StreamInner>,
    work: &KernelRun,
    ran: Result<(), (Failure, String)>,
) {
    if let Err(error) = ran {
        lock(&work.error).get_or_insert(error);
    }
    // AcqRel: the last job's thread, and threads that wait, must see the other blocks' stores.
    if work.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        finish(gpu, stream, work);
    }
}

fn finish(gpu: &Arc<EmulatedDevice>, stream: &Arc<StreamInner>, work: &KernelRun) {
    let error = with_findings(work, lock(&work.error).take());
    let result = match error {
        None => Ok(()),
        Some((failure, reason)) => Err(LaunchError::Failed {
            kernel: work.kernel.name.to_string(),
            failure,
            reason,
        }),
    };
    if let Err(e) = &result {
        lock(&stream.state).failed = Some(e.clone());
    }
    work.end(result);
    advance(gpu, stream);
}
