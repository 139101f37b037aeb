//! Files in memory, which tests read when a run has ended.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// A file in memory.
#[derive(Clone, Default)]
pub(crate) struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// What was written.
    pub(crate) fn all(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
