//! Stream-ordered sockets: the paper's host calls (FpgaNIC §A.1.1, Figure 10).
//!
//! Every call queues a small kernel on one stream and returns at once; kernels run in order, so that
//! `socket`, `connect`, `send`, `close` need no waiting in between, and the user chooses no launch
//! geometry. A step that fails makes the later steps of its socket fail with the same status.
//!
//! ```no_run
//! # use ringbell_cuda_kernels::{Gpu, SocketContext};
//! # fn f(gpu: &Gpu, queue: ringbell_nic_abi::queue::QueueHandle, data: &ringbell_cuda_kernels::GpuBuffer)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let mut context = SocketContext::new(gpu, queue, 8)?;
//! let mut socket = context.socket()?;
//! let _ = context.connect(&mut socket, "10.0.0.2".parse()?, 4791)?;
//! let sent = context.send(&mut socket, data.va(), data.len())?;
//! sent.wait(std::time::Duration::from_secs(10))?;
//! # Ok(()) }
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{GpuVa, Status};

use crate::{
    Gpu, GpuError, KernelArg, Launch, LaunchError, Outcome, ResultCell, ResultCells, Stream,
};

/// Why a stream-ordered call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Every cell for sockets or results is in use.
    #[error("all {limit} {what} of the socket context are in use; wait for or drop some, or create it for more connections")]
    Exhausted {
        /// `sockets` or `results`.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// The kernel did not run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The NIC ended the operation with an error, after `bytes` bytes.
    #[error("{status} ({bytes} bytes moved, detail {detail:#x})")]
    Nic {
        /// Status.
        status: Status,
        /// Bytes moved.
        bytes: u64,
        /// Detail word.
        detail: u64,
    },
}

fn take(cells: &Arc<ResultCells>, what: &'static str) -> Result<Arc<ResultCell>, SocketError> {
    let limit = cells.count();
    let cell = cells.take();
    cell.map(Arc::new)
        .ok_or(SocketError::Exhausted { what, limit })
}

/// What a kernel has left in a cell.
fn outcome(cell: &ResultCell) -> Result<Outcome, SocketError> {
    let o = cell.read()?;
    match o.status {
        Status::Ok => Ok(o),
        status => Err(SocketError::Nic {
            status,
            bytes: o.bytes,
            detail: o.detail,
        }),
    }
}

/// An operation queued on the context's stream.
#[derive(Debug)]
#[must_use = "an operation that is not waited for fails unseen"]
pub struct Pending {
    cell: Arc<ResultCell>,
    launch: Launch,
}

impl Pending {
    /// Waits for the operation.
    ///
    /// # Errors
    /// [`SocketError::Launch`] with a time-out when it still runs after `timeout`, else how it failed.
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, SocketError> {
        self.launch.wait(timeout)?;
        outcome(&self.cell)
    }

    /// How the last replay of a captured operation ended, once that has been waited for.
    ///
    /// # Errors
    /// As for [`Pending::wait`].
    pub fn replayed(&self) -> Result<Outcome, SocketError> {
        outcome(&self.cell)
    }
}

/// A socket whose session is known to the GPU, and to the host once waited for.
#[derive(Debug)]
pub struct Socket {
    cell: Arc<ResultCell>,
    opened: Launch,
}

impl Socket {
    /// Waits until the socket was opened or accepted and tells its session.
    ///
    /// # Errors
    /// As for [`Pending::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, SocketError> {
        self.opened.wait(timeout)?;
        outcome(&self.cell)
    }
}

/// The context of the paper's `create_socket_context`: a stream, a queue, and room for sockets.
#[derive(Debug)]
pub struct SocketContext {
    stream: Stream,
    queue: QueueHandle,
    sockets: Arc<ResultCells>,
    results: Arc<ResultCells>,
    timeout_us: u32,
}

impl SocketContext {
    /// A context for up to `connections` sockets at a time, and 64 operations not yet waited for per
    /// socket. The queue must serve nothing else while the context's kernels run.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn new(
        gpu: &Gpu,
        queue: QueueHandle,
        connections: usize,
    ) -> Result<SocketContext, GpuError> {
        Ok(SocketContext {
            stream: gpu.stream(),
            queue,
            sockets: ResultCells::new(gpu, connections.max(1))?,
            results: ResultCells::new(gpu, connections.max(1) * 64)?,
            timeout_us: 0,
        })
    }

    /// Time-out of the following operations in µs; 0 is the queue's default.
    pub fn set_timeout_us(&mut self, timeout_us: u32) {
        self.timeout_us = timeout_us;
    }

    /// The stream, to order other kernels with the sockets' operations, and to capture both
    /// ([`Stream::begin_capture`]): sends and receives of sockets that are open, which [`Pending::replayed`] tells of.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// [`SocketError::Exhausted`], [`SocketError::Launch`].
    pub fn socket(&mut self) -> Result<Socket, SocketError> {
        let cell = take(&self.sockets, "sockets")?;
        let args = [self.queue.into(), self.timeout_us.into(), cell.arg()];
        let opened = self.stream.launch("rb_stream_socket", 1, 1, &args)?;
        cell.used_by(&opened);
        self.stream.keep(cell.clone());
        Ok(Socket { cell, opened })
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn listen(
        &mut self,
        socket: &mut Socket,
        port: u16,
        backlog: u32,
    ) -> Result<Pending, SocketError> {
        let args = [u32::from(port).into(), backlog.into()];
        self.queue_on("rb_stream_listen", socket, &args)
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn accept(&mut self, listener: &mut Socket) -> Result<Socket, SocketError> {
        let cell = take(&self.sockets, "sockets")?;
        let args = [
            self.queue.into(),
            listener.cell.arg(),
            self.timeout_us.into(),
            cell.arg(),
        ];
        let opened = self.stream.launch("rb_stream_accept", 1, 1, &args)?;
        cell.used_by(&opened);
        listener.cell.used_by(&opened);
        Ok(Socket { cell, opened })
    }

    /// Connects.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn connect(
        &mut self,
        socket: &mut Socket,
        to: Ipv4Addr,
        port: u16,
    ) -> Result<Pending, SocketError> {
        let args = [u32::from(to).into(), u32::from(port).into()];
        self.queue_on("rb_stream_connect", socket, &args)
    }

    /// Sends `len` bytes of registered memory.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn send(
        &mut self,
        socket: &mut Socket,
        va: GpuVa,
        len: u64,
    ) -> Result<Pending, SocketError> {
        self.queue_on("rb_stream_send", socket, &[va.into(), len.into()])
    }

    /// Receives `len` bytes to registered memory.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn recv(
        &mut self,
        socket: &mut Socket,
        va: GpuVa,
        len: u64,
    ) -> Result<Pending, SocketError> {
        self.queue_on("rb_stream_recv", socket, &[va.into(), len.into()])
    }

    /// Half-closes: no more sends.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn shutdown(&mut self, socket: &mut Socket) -> Result<Pending, SocketError> {
        self.queue_on("rb_stream_shutdown", socket, &[])
    }

    /// Closes, after what is queued, also when an earlier step failed.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn close(&mut self, mut socket: Socket) -> Result<Pending, SocketError> {
        self.queue_on("rb_stream_close", &mut socket, &[])
    }

    fn queue_on(
        &mut self,
        kernel: &str,
        socket: &mut Socket,
        middle: &[KernelArg],
    ) -> Result<Pending, SocketError> {
        let cell = take(&self.results, "results")?;
        let mut args = vec![self.queue.into(), socket.cell.arg()];
        args.extend_from_slice(middle);
        args.extend([self.timeout_us.into(), cell.arg()]);
        let launch = self.stream.launch(kernel, 1, 1, &args)?;
        cell.used_by(&launch);
        socket.cell.used_by(&launch);
        self.stream.keep((cell.clone(), socket.cell.clone()));
        Ok(Pending { cell, launch })
    }
}
