//! The echo server kernel of `kernels/echo.cu`: its arguments and its report.
#![allow(unsafe_code)] // Launches the SDK's kernels.

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{SessionId, Status};

use crate::{Gpu, GpuBuffer, GpuError, KernelArg, Launch, LaunchError};

/// Bytes of `echo_connection`.
const CONNECTION: u64 = 56;

/// The server's listener and limits.
#[derive(Debug, Clone, Copy)]
pub struct EchoConfig {
    /// The listening session.
    pub listener: SessionId,
    /// Most connections at a time.
    pub connections: u32,
    /// Ends after this many connections have ended.
    pub serve: u64,
    /// Bytes taken from a connection at once.
    pub chunk: u64,
    /// Time-out of a receive: how long a silent client may hold up those that share its queue. µs.
    pub poll_us: u32,
    /// Ends when nothing has happened for so long. µs.
    pub idle_limit_us: u64,
}

/// How the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoResult {
    /// `Ok`, `TimedOut` when idle for too long, or why accepting failed.
    pub status: Status,
    /// Connections that ended with an error.
    pub failed: u32,
    /// Connections that ended.
    pub served: u64,
    /// Bytes sent back.
    pub bytes: u64,
}

/// Why the server could not be started or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EchoError {
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The buffer is too small.
    #[error("the echo server needs {needed} bytes of buffer ({chunk} for each of {connections} connections), not {given}")]
    Buffer {
        /// Bytes needed.
        needed: u64,
        /// Bytes per connection.
        chunk: u64,
        /// Connections.
        connections: u32,
        /// Bytes given.
        given: u64,
    },
    /// There is no queue.
    #[error("the echo server needs at least one queue, better one more than connections")]
    NoQueue,
}

/// A running echo server.
#[derive(Debug)]
pub struct EchoServer {
    launch: Launch,
    out: GpuBuffer,
    /// Held for the kernel.
    _state: [GpuBuffer; 2],
}

impl EchoServer {
    /// Starts the server. `buffer` is registered memory of `chunk` bytes per connection and stays
    /// registered until [`EchoServer::wait`] has returned. The first queue accepts and closes; the
    /// others are shared out among the connections.
    ///
    /// # Errors
    /// [`EchoError`].
    pub fn start(
        gpu: &Gpu,
        queues: &[QueueHandle],
        buffer: &GpuBuffer,
        config: EchoConfig,
    ) -> Result<EchoServer, EchoError> {
        if queues.is_empty() {
            return Err(EchoError::NoQueue);
        }
        let needed = config.chunk * u64::from(config.connections);
        if config.chunk == 0 || buffer.len() < needed {
            return Err(EchoError::Buffer {
                needed: needed.max(1),
                chunk: config.chunk,
                connections: config.connections,
                given: buffer.len(),
            });
        }
        let mut bytes = Vec::new();
        for q in queues {
            KernelArg::Queue(*q).write_to(&mut bytes);
        }
        let handles = gpu.alloc(bytes.len() as u64)?;
        handles.write(0, &bytes)?;
        let connections = gpu.alloc((u64::from(config.connections) * CONNECTION).max(1))?;
        let out = gpu.alloc(64)?;
        let args: [KernelArg; 11] = [
            (&handles).into(),
            (queues.len() as u32).into(),
            config.listener.0.into(),
            buffer.into(),
            config.chunk.into(),
            (&connections).into(),
            config.connections.into(),
            config.serve.into(),
            config.poll_us.into(),
            config.idle_limit_us.into(),
            (&out).into(),
        ];
        // SAFETY: the kernel's own parameters; the server owns the memory or borrows it while it
        // runs.
        let launch = unsafe { gpu.launch("rb_echo_server", 1, 1, &args) }?;
        Ok(EchoServer {
            launch,
            out,
            _state: [handles, connections],
        })
    }

    /// Waits for the server to end.
    ///
    /// # Errors
    /// [`EchoError::Launch`] with a time-out while it still runs.
    pub fn wait(&self, timeout: std::time::Duration) -> Result<EchoResult, EchoError> {
        self.launch.wait(timeout)?;
        let status = u8::try_from(self.out.load_u32(0)?).ok();
        Ok(EchoResult {
            status: status
                .and_then(Status::from_code)
                .unwrap_or(Status::NicSilent),
            failed: self.out.load_u32(4)?,
            served: self.out.load_u64(8)?,
            bytes: self.out.load_u64(16)?,
        })
    }
}
