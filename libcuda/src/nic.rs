//! NICs of the SDK in the same process, which the threads of the GPU step while their kernels wait.

use ringbell_cuda_kernels::wait_hook::{accept, OfferedNic};
use ringbell_cuda_kernels::Gpu;

use crate::{gpu, strict};

/// Takes a NIC (`wait_hook::SYMBOL`). A test double takes none: kernels of a real GPU run by
/// themselves.
#[no_mangle]
pub unsafe extern "C" fn ringbell_wait_hook_1(nic: OfferedNic) {
    if !strict::is_on() {
        // SAFETY: the caller's contract.
        unsafe { accept(nic, &*Gpu::memory(gpu())) };
    }
}
