//! [`Owned`]: an object of the process that made it.
//!
//! A forked child (a worker of a data loader) has a copy of the NIC's memory and none of its
//! threads: a call would wait for ever, and dropping an object would release what the parent still
//! uses.
#![allow(unsafe_code)] // Drops by hand.

use std::mem::ManuallyDrop;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// A value that only its process uses and drops.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned {
            value: ManuallyDrop::new(value),
            process: std::process::id(),
        }
    }

    fn check(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this object belongs to process {}, which forked this one: a NIC and its threads do not survive a fork; open a NIC here, or start workers with the method `spawn`",
            self.process
        )))
    }

    pub(crate) fn get(&self) -> PyResult<&T> {
        self.check().map(|()| &*self.value)
    }

    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check().map(|()| &mut *self.value)
    }

    /// Gives the value out.
    pub(crate) fn take(self) -> PyResult<T> {
        self.check()?;
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: `kept` is never dropped, so the value is taken once.
        Ok(unsafe { ManuallyDrop::take(&mut kept.value) })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: dropped once, here; `take` forgets the whole.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
