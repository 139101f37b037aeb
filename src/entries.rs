//! Queues of the NIC whose entries GPU streams complete.

use std::time::Duration;

use ringbell_cuda_kernels::{EntryQueue, GpuError, SocketContext};
use ringbell_nic_abi::queue::PreparedEntry;
use ringbell_nic_abi::{Completion, Descriptor};
use ringbell_nic_core::NicError;

use crate::{HostQueue, Nic};

/// A queue whose entries a stream completes.
#[derive(Debug)]
pub(crate) struct Entries(pub(crate) HostQueue);

impl EntryQueue for Entries {
    fn prepare(&self, d: &Descriptor) -> Option<PreparedEntry> {
        self.0.prepare(d)
    }

    fn poll(&self, ticket: u32) -> Option<Completion> {
        self.0.poll(ticket)
    }

    fn is_published(&self, ticket: u32) -> bool {
        self.0.is_published(ticket)
    }

    fn limit(&self, timeout_us: u32) -> Duration {
        self.0.limit(timeout_us)
    }

    fn give_up(&self, ticket: u32) {
        self.0.give_up(ticket);
    }
}

/// Why [`Nic::socket_context`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketContextError {
    /// No queue is left.
    #[error("no queue for the socket context: {0}")]
    Queue(#[from] NicError),
    /// The GPU has no memory for what kernels report.
    #[error("no memory for the socket context's results: {0}")]
    Gpu(#[from] GpuError),
}

impl Nic {
    /// Stream-ordered sockets, up to `connections` at a time, with a stream and queues of their
    /// own. Sends and receives need no kernel where the stream posts by itself
    /// ([`ringbell_cuda_kernels::Stream::has_words`]). Usable as long as the NIC.
    ///
    /// # Errors
    /// [`SocketContextError`]: no queue or no memory.
    pub fn socket_context(&self, connections: usize) -> Result<SocketContext, SocketContextError> {
        let kernels = self.create_queue()?;
        let mut context = SocketContext::new(self.gpu(), kernels.handle(), connections)?;
        context.keep(kernels);
        if context.stream().has_words().is_ok() {
            context.post_to(Box::new(Entries(self.create_queue()?)));
        }
        Ok(context)
    }
}
