//! Stream-ordered sockets: the paper's host calls (FpgaNIC §A.1.1, Figure 10).
//!
//! Every call queues a step on one stream and returns at once; steps run in order, so that
//! `socket`, `connect`, `send`, `close` need no waiting in between, and the user chooses no launch
//! geometry. A step that fails makes the later steps of its socket fail with the same status.
//!
//! A step is a small kernel, because it may need the session that an earlier one finds. Once the
//! host sees that the kernels of a socket have ended well, the stream posts sends, receives,
//! shutdown and close by itself where it can ([`SocketContext::post_to`]), and no kernel runs while
//! the NIC works.
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
#![allow(unsafe_code)] // Launches the SDK's kernels.

use std::any::Any;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{Completion, Descriptor, Flags, GpuVa, Opcode, SessionId, Status};

use crate::{
    EntryQueue, Gpu, GpuError, KernelArg, Launch, LaunchError, Outcome, Posted, PostingStream,
    ResultCell, ResultCells, Stream,
};

/// Longest transfer of one descriptor; kernels split longer ones (`MAX_PIECE` of `ringbell.cuh`).
const MAX_PIECE: u64 = 0xffff_0000;

/// Why a stream-ordered call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Every cell for sockets or results is in use.
    #[error("all {limit} {what} of the socket context are in use; wait for or drop some, or create it for more connections")]
    Exhausted {
        /// `sockets` or `results`.
        what: &'static str,
        /// Number of cells.
        limit: usize,
    },
    /// The stream captures, and a graph would do it at each replay.
    #[error("{step} is done once, and a graph would do it at each replay: do it before the capture, which takes sends and receives")]
    Captured {
        /// The refused step.
        step: &'static str,
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

/// The result that a kernel has written.
fn outcome(cell: &ResultCell) -> Result<Outcome, SocketError> {
    ended_well(cell.read()?)
}

fn ended_well(o: Outcome) -> Result<Outcome, SocketError> {
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
    how: How,
}

/// How it is posted when the stream reaches it.
#[derive(Debug)]
enum How {
    /// The stream itself.
    Stream(Posted),
    /// A kernel, which writes how it ended to the cell.
    Kernel(Launch, Arc<ResultCell>),
}

impl Pending {
    /// Waits for the operation.
    ///
    /// # Errors
    /// [`SocketError::Launch`] with a time-out when it still runs after `timeout`, else how it
    /// failed.
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, SocketError> {
        if let How::Kernel(launch, _) = &self.how {
            launch.wait(timeout)?;
        }
        self.ended(timeout)
    }

    /// How the last replay of a captured operation ended, once that has been waited for.
    ///
    /// # Errors
    /// As for [`Pending::wait`].
    pub fn replayed(&self) -> Result<Outcome, SocketError> {
        self.ended(Duration::ZERO)
    }

    /// Whether the stream posts and waits by itself, so that no kernel runs meanwhile.
    pub fn needs_no_kernel(&self) -> bool {
        matches!(self.how, How::Stream(_))
    }

    fn ended(&self, timeout: Duration) -> Result<Outcome, SocketError> {
        match &self.how {
            How::Kernel(_, cell) => outcome(cell),
            How::Stream(posted) => {
                let Completion {
                    status,
                    bytes,
                    detail,
                    ..
                } = posted.wait(timeout)?;
                ended_well(Outcome {
                    status,
                    session: SessionId(0),
                    bytes,
                    detail,
                })
            }
        }
    }
}

/// A socket whose session is known to the GPU, and to the host once waited for.
#[derive(Debug)]
pub struct Socket {
    cell: Arc<ResultCell>,
    opened: Launch,
    /// The last kernel of it; `None` once it is known that all have ended well.
    kernel: Option<Launch>,
    /// Its session, when that is known to the host.
    session: SessionId,
}

impl Socket {
    fn new(cell: Arc<ResultCell>, opened: Launch) -> Socket {
        Socket {
            cell,
            kernel: Some(opened.clone()),
            opened,
            session: SessionId(0),
        }
    }

    /// The session, when all kernels of the socket have ended and none has failed; never waits.
    fn established(&mut self) -> Option<SessionId> {
        if let Some(kernel) = &self.kernel {
            let Some(Ok(())) = kernel.poll() else {
                return None;
            };
            self.session = outcome(&self.cell).ok()?.session;
            self.kernel = None;
        }
        Some(self.session)
    }

    /// Waits until the socket was opened or accepted and tells its session.
    ///
    /// # Errors
    /// As for [`Pending::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, SocketError> {
        self.opened.wait(timeout)?;
        outcome(&self.cell)
    }
}

/// A handle that keeps a queue alive.
type Held = Arc<dyn Any + Send + Sync>;

/// The context of the paper's `create_socket_context`: a stream, a queue, and room for sockets.
#[derive(Debug)]
pub struct SocketContext {
    stream: Stream,
    /// Where kernels post.
    queue: QueueHandle,
    /// What the kernels' queue needs to live.
    held: Option<Held>,
    /// Where the stream posts.
    posting: Option<PostingStream>,
    sockets: Arc<ResultCells>,
    results: Arc<ResultCells>,
    timeout_us: u32,
}

impl SocketContext {
    /// A context for up to `connections` sockets at a time, and 64 operations not yet waited for
    /// per socket. The queue must serve nothing else while the context's kernels run.
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
            held: None,
            posting: None,
            sockets: ResultCells::new(gpu, connections.max(1))?,
            results: ResultCells::new(gpu, connections.max(1) * 64)?,
            timeout_us: 0,
        })
    }

    /// From now on the stream posts what it can by itself, to a queue of the same NIC and
    /// protection domain that serves nothing else; a stream that cannot ([`Stream::has_words`])
    /// goes on with kernels.
    pub fn post_to(&mut self, queue: Box<dyn EntryQueue>) {
        self.posting = Some(PostingStream::new(&self.stream, queue));
    }

    /// Keeps a value, such as the owner of the queue, for as long as the context and every kernel
    /// of it.
    pub fn keep(&mut self, what: impl Any + Send + Sync) {
        self.held = Some(Arc::new(what));
    }

    /// Time-out of the following operations in µs; 0 is the queue's default.
    pub fn set_timeout_us(&mut self, timeout_us: u32) {
        self.timeout_us = timeout_us;
    }

    /// The stream, to order other kernels with the sockets' operations, and to capture both
    /// ([`Stream::begin_capture`]): sends and receives of sockets that are open, which
    /// [`Pending::replayed`] tells of.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// [`SocketError::Exhausted`], [`SocketError::Launch`].
    pub fn socket(&mut self) -> Result<Socket, SocketError> {
        self.only_once("opening a socket")?;
        let cell = take(&self.sockets, "sockets")?;
        let args = [self.queue.into(), self.timeout_us.into(), cell.arg()];
        // SAFETY: the kernel's own parameters, in cells that live until it has ended.
        let opened = unsafe { self.stream.launch("rb_stream_socket", 1, 1, &args) }?;
        let opened = opened.keep(self.held.clone());
        cell.used_by(&opened);
        Ok(Socket::new(cell, opened))
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
        self.only_once("a listen")?;
        let args = [u32::from(port).into(), backlog.into()];
        self.queue_on("rb_stream_listen", socket, &args)
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn accept(&mut self, listener: &mut Socket) -> Result<Socket, SocketError> {
        self.only_once("an accept")?;
        let cell = take(&self.sockets, "sockets")?;
        let args = [
            self.queue.into(),
            listener.cell.arg(),
            self.timeout_us.into(),
            cell.arg(),
        ];
        // SAFETY: the kernel's own parameters, in cells that live until it has ended.
        let opened = unsafe { self.stream.launch("rb_stream_accept", 1, 1, &args) }?;
        let opened = opened.keep(self.held.clone());
        cell.used_by(&opened);
        listener.cell.used_by(&opened);
        Ok(Socket::new(cell, opened))
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
        self.only_once("a connect")?;
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
        match self.transfer(Opcode::Send, socket, va, len) {
            Some(posted) => posted,
            None => self.queue_on("rb_stream_send", socket, &[va.into(), len.into()]),
        }
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
        match self.transfer(Opcode::Recv, socket, va, len) {
            Some(posted) => posted,
            None => self.queue_on("rb_stream_recv", socket, &[va.into(), len.into()]),
        }
    }

    /// Half-closes: no more sends.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn shutdown(&mut self, socket: &mut Socket) -> Result<Pending, SocketError> {
        self.only_once("a shutdown")?;
        match self.post(socket, |session| control(Opcode::Shutdown, session)) {
            Some(posted) => posted,
            None => self.queue_on("rb_stream_shutdown", socket, &[]),
        }
    }

    /// Closes behind the queued steps, also when an earlier step failed. A stream that captures
    /// refuses it, and the socket is lost.
    ///
    /// # Errors
    /// As for [`SocketContext::socket`].
    pub fn close(&mut self, mut socket: Socket) -> Result<Pending, SocketError> {
        self.only_once("a close")?;
        match self.post(&mut socket, |session| control(Opcode::Close, session)) {
            Some(posted) => posted,
            None => self.queue_on("rb_stream_close", &mut socket, &[]),
        }
    }

    fn only_once(&self, step: &'static str) -> Result<(), SocketError> {
        match self.stream.is_capturing() {
            true => Err(SocketError::Captured { step }),
            false => Ok(()),
        }
    }

    /// Has the stream post a send or receive; `None` when a kernel must.
    fn transfer(
        &mut self,
        opcode: Opcode,
        socket: &mut Socket,
        va: GpuVa,
        len: u64,
    ) -> Option<Result<Pending, SocketError>> {
        let len = u32::try_from(len).ok();
        let len = len.filter(|len| u64::from(*len) <= MAX_PIECE)?;
        self.post(socket, |session| {
            let mut d = control(opcode, session);
            d.local_va = va;
            d.len = len;
            d
        })
    }

    /// Has the stream post a descriptor; `None` when a kernel must.
    fn post(
        &mut self,
        socket: &mut Socket,
        make: impl FnOnce(SessionId) -> Descriptor,
    ) -> Option<Result<Pending, SocketError>> {
        let posting = self.posting.as_ref()?;
        // A stream that captures has no words: each replay takes its ticket on the GPU.
        self.stream.has_words().ok()?;
        let mut d = make(socket.established()?);
        d.timeout_us = self.timeout_us;
        let posted = posting.post(&d)?;
        Some(posted.map_err(SocketError::from).map(|posted| Pending {
            how: How::Stream(posted),
        }))
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
        // SAFETY: the kernel's own parameters, in cells that live until it has ended. The NIC
        // checks buffers.
        let launch = unsafe { self.stream.launch(kernel, 1, 1, &args) }?;
        let launch = launch.keep(self.held.clone());
        cell.used_by(&launch);
        socket.cell.used_by(&launch);
        self.stream
            .keep((cell.clone(), socket.cell.clone(), self.held.clone()));
        if !self.stream.is_capturing() {
            socket.kernel = Some(launch.clone());
        }
        Ok(Pending {
            how: How::Kernel(launch, cell),
        })
    }
}

/// A step of an established socket. Kernels find an earlier failure in GPU memory; for chained
/// steps the NIC keeps it.
fn control(opcode: Opcode, session: SessionId) -> Descriptor {
    let mut d = Descriptor::new(opcode);
    d.session = session;
    d.flags = match opcode {
        Opcode::Send => Flags::CHAIN.union(Flags::PUSH),
        Opcode::Recv | Opcode::Shutdown => Flags::CHAIN,
        _ => Flags(0),
    };
    d
}
