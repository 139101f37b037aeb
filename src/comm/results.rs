//! Cells for the results of a communicator's kernels.

use std::sync::{Arc, Mutex, PoisonError};

use ringbell_cuda_kernels::{Gpu, ResultCell, ResultCells};

use super::CollectiveError;

/// Results for which memory is allocated at a time.
const CELLS: usize = 256;

/// Cells for the results of a communicator's kernels.
#[derive(Debug, Default)]
pub(super) struct Results {
    all: Mutex<Vec<Arc<ResultCells>>>,
}

impl Results {
    pub(super) fn take(&self, gpu: &Gpu) -> Result<ResultCell, CollectiveError> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = all.iter().rev().find_map(ResultCells::take) {
            return Ok(cell);
        }
        let more = ResultCells::new(gpu, CELLS)?;
        all.push(more.clone());
        Ok(more.take().expect("fresh cells"))
    }
}
