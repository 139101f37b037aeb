//! Registers of a device, as I/O memory of the GPU, and how a driver refuses them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{faults, Result, INVALID_VALUE, NOT_SUPPORTED};

const PORTABLE: u32 = 1;
const DEVICEMAP: u32 = 2;
pub(crate) const IOMEMORY: u32 = 4;

/// How often I/O memory was registered.
static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Whether host memory may be registered with these flags.
pub(crate) fn register(flags: u32) -> std::result::Result<(), Result> {
    if flags & !(PORTABLE | DEVICEMAP | IOMEMORY) != 0 {
        return Err(INVALID_VALUE);
    }
    if flags & IOMEMORY == 0 {
        return Ok(());
    }
    // Without DEVICEMAP a kernel has no address for it.
    if flags & DEVICEMAP == 0 {
        return Err(INVALID_VALUE);
    }
    if faults().no_io_memory {
        return Err(NOT_SUPPORTED);
    }
    REGISTERED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// For tests: how often I/O memory was registered.
#[no_mangle]
pub extern "C" fn mock_io_registrations() -> u32 {
    REGISTERED.load(Ordering::Relaxed)
}
