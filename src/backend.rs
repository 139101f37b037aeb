//! NICs behind one control path, [`Backend`]: `soft` is the software NIC of `ringbell-nic-core`,
//! `rtl` the same with simulated hardware as its data path.

#[cfg(test)]
mod conformance;
mod control_path;
mod rtl;
mod soft;

use std::sync::Arc;

pub use control_path::{Backend, EngineKind, EngineMaker};
use ringbell_cuda_kernels::Gpu;

use crate::nic_kind::NicKind;
use crate::open_error::OpenError;
use crate::options::NicOptions;

/// Opens a NIC beside a GPU.
type Open = fn(&NicOptions, &Gpu) -> Result<Arc<dyn Backend>, OpenError>;

/// How NICs of a kind are opened.
pub(crate) fn opener(kind: NicKind) -> Open {
    match kind {
        NicKind::Soft => soft::open,
        NicKind::Rtl => rtl::open,
    }
}
