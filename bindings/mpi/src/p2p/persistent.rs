//! Persistent requests. The program's handle is one of the library below, made for no rank;
//! started, it stands for a request of ours.
#![allow(unsafe_code)] // Calls the library below.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ranks::Context;
use super::transfer::Mode;
use crate::abi::Handle;
use crate::below::below;
use crate::collective::Buffer;
use crate::layer::Layer;

/// What a persistent request does when it is started.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Send(Mode),
    Receive,
}

/// A persistent request.
#[derive(Debug, Clone)]
pub(super) struct Persistent {
    pub(super) kind: Kind,
    pub(super) comm: Handle,
    pub(super) context: Arc<Context>,
    pub(super) buffer: Buffer,
    pub(super) peer: c_int,
    pub(super) tag: c_int,
    /// While it is active.
    pub(super) active: Option<Handle>,
}

// SAFETY: the program's address, which is used only while the program has started it.
unsafe impl Send for Persistent {}

/// All of them, by the program's handle.
#[derive(Debug, Default)]
pub(super) struct Persistents(Mutex<HashMap<Handle, Persistent>>);

impl Persistents {
    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Persistent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn get(&self, handle: Handle) -> Option<Persistent> {
        self.lock().get(&handle).cloned()
    }

    pub(super) fn set_active(&self, handle: Handle, active: Option<Handle>) {
        if let Some(p) = self.lock().get_mut(&handle) {
            p.active = active;
        }
    }

    pub(super) fn remove(&self, handle: Handle) -> Option<Persistent> {
        self.lock().remove(&handle)
    }

    /// Makes one, and gives its handle, or the code of the library below.
    pub(super) fn make(&self, layer: &Layer, made: Persistent) -> Result<Handle, c_int> {
        let no_rank = layer.tables.no_rank();
        let (byte, world) = (layer.tables.byte, layer.tables.world);
        let mut handle: Handle = 0;
        // SAFETY: the signature of MPI's standard; the buffer is empty.
        let code = unsafe {
            below!(
                "PMPI_Send_init",
                fn(usize, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int
            )(0, 0, byte, no_rank, 0, world, &raw mut handle)
        };
        if code != 0 {
            return Err(code);
        }
        let handle = layer.tables.handle(handle);
        self.lock().insert(handle, made);
        Ok(handle)
    }
}
