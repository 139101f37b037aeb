//! Queues of a communicator on which GPU streams post by themselves.

use std::sync::{Mutex, PoisonError};

use ringbell_cuda_kernels::{LaunchError, Posted, PostingStream, Stream};
use ringbell_nic_abi::Descriptor;

use crate::entries::Entries;
use crate::Nic;

/// Most such queues of a communicator; further streams use kernels.
const MOST: usize = 8;

/// One queue for each stream that uses the communicator.
#[derive(Debug, Default)]
pub(super) struct StreamQueues {
    all: Mutex<Vec<PostingStream>>,
}

impl StreamQueues {
    fn of(&self, nic: &Nic, stream: &Stream) -> Option<PostingStream> {
        // Nothing that holds the lock can panic half-way through a change.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|q| q.stream().is_same(stream)) {
            return Some(known.clone());
        }
        if all.len() >= MOST {
            return None;
        }
        let queue = nic.create_queue().ok()?;
        let made = PostingStream::new(stream, Box::new(Entries(queue)));
        all.push(made.clone());
        Some(made)
    }

    /// Queues a descriptor on a stream; `None` when a kernel must do it: the stream cannot, or no
    /// queue or slot is left.
    pub(super) fn post(
        &self,
        nic: &Nic,
        stream: &Stream,
        d: &Descriptor,
    ) -> Option<Result<Posted, LaunchError>> {
        stream.has_words().ok()?;
        self.of(nic, stream)?.post(d)
    }
}
