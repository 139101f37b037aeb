//! Streams of a real GPU: launches, graphs, host functions and stream memory operations in order.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::copy_engine::PATIENCE;
use super::graph::{self, CudaGraph};
use super::handles::{RawEvent, RawStream};
use super::module::{KernelFunction, Kernels};
use super::stream_ops;
use crate::cuda_error::CudaError;
use crate::gpu::{Ending, Event, GraphBackend, Launch, StreamBackend, WordOp};
use crate::launch::{ArgBlock, Failure, KernelArg, LaunchError, LaunchShape};
use crate::locks::lock;

/// A stream, made when the first operation comes.
#[derive(Debug)]
pub(super) struct CudaStream {
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    stream: OnceLock<Result<RawStream, CudaError>>,
    marks: Mutex<Marks>,
}

/// Launches between two marks, and marks that may be ahead: fewer than 1,024 launches wait in a
/// stream, which is as many as drivers have taken so far (measured by others; NVIDIA does not say).
const MARK_EVERY: u32 = 128;
const MARKS: usize = 6;

/// Bytes of dynamic shared memory that a kernel has without being asked for more (CUDA C++
/// Programming Guide, "Shared Memory").
const UNASKED_SHARED: u32 = 48 << 10;

/// Events of a stream, which bound the number of its waiting launches.
#[derive(Debug, Default)]
struct Marks {
    since: u32,
    behind: VecDeque<Arc<RawEvent>>,
}

impl CudaStream {
    pub(super) fn new(context: Arc<Context>, kernels: Arc<Kernels>) -> CudaStream {
        CudaStream {
            context,
            kernels,
            stream: OnceLock::new(),
            marks: Mutex::default(),
        }
    }

    fn raw(&self) -> Result<&RawStream, CudaError> {
        let made = self
            .stream
            .get_or_init(|| RawStream::for_kernels(self.context.clone()));
        made.as_ref().map_err(Clone::clone)
    }

    fn start(
        &self,
        f: KernelFunction,
        shape: &LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), CudaError> {
        let LaunchShape { grid, block, .. } = *shape;
        let shared = shape.dynamic_shared.unwrap_or(0);
        let stream = self.raw()?;
        self.context.bind()?;
        if shared > UNASKED_SHARED {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a loaded module.
            let r = unsafe { sys::cuFuncSetAttribute(f.raw, which, shared as i32) };
            self.context.check("cuFuncSetAttribute", r)?;
        }
        let args = ArgBlock::new(args);
        let base = args.storage.as_ptr().cast::<u8>();
        let mut pointers: Vec<*mut c_void> = args
            .offsets
            .iter()
            .map(|offset| base.wrapping_add(*offset).cast_mut().cast())
            .collect();
        let _starting = self.context.deferred.begin_work();
        // SAFETY: a function of a loaded module; one pointer for each argument, whose sizes
        // `prepare` has checked for the SDK's kernels; the driver copies them before it returns.
        // What a kernel does with GPU addresses is the program's own responsibility.
        let (call, r) = unsafe {
            let (stream, pointers) = (stream.stream, pointers.as_mut_ptr());
            let (g, b) = (grid, block);
            match f.together {
                true => (
                    "cuLaunchCooperativeKernel",
                    sys::cuLaunchCooperativeKernel(
                        f.raw, g.x, g.y, g.z, b.x, b.y, b.z, shared, stream, pointers,
                    ),
                ),
                false => (
                    "cuLaunchKernel",
                    sys::cuLaunchKernel(
                        f.raw,
                        g.x,
                        g.y,
                        g.z,
                        b.x,
                        b.y,
                        b.z,
                        shared,
                        stream,
                        pointers,
                        std::ptr::null_mut(),
                    ),
                ),
            }
        };
        if r == CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE {
            let (blocks, lanes) = (grid.count(), block.count());
            return Err(CudaError::TooManyBlocks { blocks, lanes });
        }
        self.context.check(call, r)
    }

    /// An ending behind the stream's present work.
    fn ending(&self, kernel: Arc<str>) -> Result<Arc<dyn Ending>, CudaError> {
        let event = Arc::new(self.raw()?.record()?);
        self.note(&event);
        Ok(Arc::new(CudaEnding {
            kernel,
            event,
            ended: OnceLock::new(),
        }))
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        lock(&self.marks)
    }

    /// Counts a queued operation, with this event behind it.
    fn note(&self, event: &Arc<RawEvent>) {
        let mut marks = self.marks();
        marks.since += 1;
        if marks.since >= MARK_EVERY {
            marks.since = 0;
            marks.behind.push_back(event.clone());
        }
    }

    /// Waits until the stream holds fewer launches than the driver takes: the launch after that
    /// blocks inside the driver, with a lock that the NIC's copies need.
    fn make_room(&self) -> Result<(), CudaError> {
        let oldest = {
            let mut marks = self.marks();
            while marks
                .behind
                .front()
                .is_some_and(|e| !matches!(e.is_reached(), Ok(false)))
            {
                marks.behind.pop_front();
            }
            match marks.behind.len() < MARKS {
                true => return Ok(()),
                false => marks.behind.front().cloned(),
            }
        };
        match oldest.map(|e| e.wait(PATIENCE)) {
            None | Some(Ok(true)) => Ok(()),
            Some(Err(e)) => Err(e),
            Some(Ok(false)) => Err(CudaError::Stuck {
                what: "enough of the launches that wait in this stream",
                waited_ms: PATIENCE.as_millis() as u64,
            }),
        }
    }
}

/// A kernel, or a point in a stream, that is waited for by an event.
#[derive(Debug)]
struct CudaEnding {
    kernel: Arc<str>,
    event: Arc<RawEvent>,
    /// Known once: the event may be asked again when the context is lost to another kernel.
    ended: OnceLock<Result<(), LaunchError>>,
}

impl CudaEnding {
    fn ended(&self, reached: Result<bool, CudaError>) -> Option<Result<(), LaunchError>> {
        let result = match reached {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(e @ CudaError::Lost { .. }) => Err(LaunchError::Failed {
                kernel: self.kernel.to_string(),
                failure: Failure::Other,
                reason: e.to_string(),
            }),
            Err(source) => Err(LaunchError::Device {
                kernel: self.kernel.to_string(),
                source,
            }),
        };
        self.event.release_pending();
        Some(self.ended.get_or_init(|| result).clone())
    }
}

impl Ending for CudaEnding {
    fn wait(&self, timeout: Duration) -> Option<Result<(), LaunchError>> {
        match self.ended.get() {
            Some(r) => Some(r.clone()),
            None => self.ended(self.event.wait(timeout)),
        }
    }

    fn poll(&self) -> Option<Result<(), LaunchError>> {
        match self.ended.get() {
            Some(r) => Some(r.clone()),
            None => self.ended(self.event.is_reached()),
        }
    }

    fn raw(&self) -> usize {
        self.event.raw()
    }

    fn since(&self, earlier: &dyn Ending) -> Option<Duration> {
        self.event.since(earlier.raw())
    }
}

/// The ending of an operation that could not be queued.
#[derive(Debug)]
struct RefusedLaunch(LaunchError);

impl Ending for RefusedLaunch {
    fn wait(&self, _timeout: Duration) -> Option<Result<(), LaunchError>> {
        self.poll()
    }

    fn poll(&self) -> Option<Result<(), LaunchError>> {
        Some(Err(self.0.clone()))
    }
}

fn of_graph(source: CudaError) -> LaunchError {
    LaunchError::Device {
        kernel: "graph".into(),
        source,
    }
}

type HostFunction = Box<dyn FnOnce() + Send>;

/// The driver's callback; `data` is a `Box<HostFunction>`.
unsafe extern "C" fn run_host(data: *mut c_void) {
    // SAFETY: `host` has made it from a box, and the driver calls once.
    let f = unsafe { Box::from_raw(data.cast::<HostFunction>()) };
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
}

impl StreamBackend for CudaStream {
    fn launch(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let device = |source| LaunchError::Device {
            kernel: name.to_owned(),
            source,
        };
        self.make_room().map_err(device)?;
        self.capture(name, shape, args)?;
        let kernel: Arc<str> = name.into();
        let ending = self.ending(kernel.clone()).map_err(device)?;
        Ok(Launch::of(kernel, ending))
    }

    fn begin_capture(&self) -> Result<(), LaunchError> {
        let begun = self.raw().and_then(|s| graph::begin(&self.context, s));
        begun.map_err(of_graph)
    }

    /// A launch, of which the driver knows whether it captures.
    fn capture(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        let device = |source| LaunchError::Device {
            kernel: name.to_owned(),
            source,
        };
        self.context.bind().map_err(device)?;
        let f = self.kernels.prepare(name, &shape, args)?;
        self.start(f, &shape, args).map_err(device)
    }

    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>, LaunchError> {
        let stream = self.raw().map_err(of_graph)?;
        let graph = graph::end(&self.context, stream, &self.kernels).map_err(of_graph)?;
        Ok(Arc::new(graph))
    }

    fn replay(
        &self,
        graph: &dyn GraphBackend,
        _before: Option<&Launch>,
    ) -> Result<Launch, LaunchError> {
        let launched = match graph.as_any().downcast_ref::<CudaGraph>() {
            Some(graph) => self
                .raw()
                .and_then(|stream| graph.launch(&self.context, stream))
                .map_err(of_graph)?,
            None => false,
        };
        if !launched {
            let why = "the graph was captured on another GPU; launch it on a stream of that one";
            return Err(LaunchError::Capture { why });
        }
        let kernel: Arc<str> = "graph".into();
        let ending = self.ending(kernel.clone()).map_err(of_graph)?;
        Ok(Launch::of(kernel, ending))
    }

    fn host(&self, f: HostFunction) {
        let (Ok(stream), Ok(())) = (self.raw(), self.context.bind()) else {
            return;
        };
        let data = Box::into_raw(Box::new(f));
        let _starting = self.context.deferred.begin_work();
        // SAFETY: a live stream; `run_host` takes the box over.
        let r = unsafe { sys::cuLaunchHostFunc(stream.stream, Some(run_host), data.cast()) };
        if self.context.check("cuLaunchHostFunc", r).is_err() {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(data) });
        }
    }

    fn record(&self) -> Event {
        match self.ending("event".into()) {
            Ok(ending) => Event::of(ending),
            Err(source) => Event::of(Arc::new(RefusedLaunch(LaunchError::Device {
                kernel: "event".into(),
                source,
            }))),
        }
    }

    fn has_words(&self) -> Result<(), String> {
        self.context.stream_ops.clone()
    }

    fn words(&self, ops: &[WordOp]) -> Result<(), LaunchError> {
        if self.context.stream_ops.is_err() {
            let what = "stream memory operations";
            return Err(LaunchError::Unsupported { what });
        }
        self.raw()
            .and_then(|stream| {
                self.context.bind()?;
                let _starting = self.context.deferred.begin_work();
                let check = |call, r| self.context.check(call, r);
                // SAFETY: a live stream of the current context.
                unsafe { stream_ops::queue(stream.stream, ops, check) }
            })
            .map_err(|source| LaunchError::Device {
                kernel: "a stream memory operation".into(),
                source,
            })
    }

    /// Nothing: an error that the driver keeps is the context's, and only a new process is rid of
    /// it.
    fn clear_error(&self) {}
}
