//! Operations under way: each with its memory, and a communicator with those whose requests were dropped.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use ringbell::Communicator;

use crate::operand::{Operand, Registry};
use crate::process::Owned;

/// An operation that has not been waited for to its end.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Before its memory.
    request: Owned<ringbell::Request>,
    _operands: Vec<Operand>,
}

impl Posted {
    pub(crate) fn new(request: ringbell::Request, operands: Vec<Operand>) -> Posted {
        Posted {
            request: Owned::new(request),
            _operands: operands,
        }
    }

    pub(crate) fn request(&mut self) -> PyResult<&mut ringbell::Request> {
        self.request.get_mut()
    }

    /// Whether it has ended; steps the NIC.
    pub(crate) fn has_ended(&mut self) -> bool {
        // In a forked child nothing is left to be done.
        self.request()
            .map_or(true, |r| !matches!(r.test(), Ok(None)))
    }
}

/// A communicator, with what its requests leave behind.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Operations whose requests were dropped; their memory is the NIC's until they have ended.
    dropped: Mutex<Vec<Posted>>,
    pub(crate) comm: Owned<Communicator>,
    pub(crate) registry: Arc<Registry>,
    rank: u32,
}

impl Shared {
    pub(crate) fn new(comm: Communicator, registry: &Arc<Registry>) -> Arc<Shared> {
        Arc::new(Shared {
            dropped: Mutex::default(),
            rank: comm.rank(),
            comm: Owned::new(comm),
            registry: registry.clone(),
        })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Keeps an operation without a request until it has ended.
    pub(crate) fn adopt(&self, posted: Posted) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push(posted);
    }

    pub(crate) fn collect_dropped(&self) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.retain_mut(|p| !p.has_ended());
    }

    pub(crate) fn abort(&self) {
        if let Ok(comm) = self.comm.get() {
            comm.abort();
        }
    }
}
