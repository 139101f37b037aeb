//! Host memory that local peers map: told when it is made, taken back before it goes.
#![allow(clippy::disallowed_methods)] // The control path waits, with deadlines on the host's clock.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ringbell_gtlb::{Export, MemoryRegion};
use ringbell_nic_abi::GpuVa;

use super::FreeError;
use crate::board::HOST_BUS;
use crate::Nic;

/// The next export's number. Relaxed: only uniqueness matters, the NIC's lock orders the rest.
pub(super) static NEXT: AtomicU64 = AtomicU64::new(1);

impl Nic {
    /// Lets local peers map host memory. Returns the number that names it from now on.
    pub(super) fn share_host(
        &self,
        fd: BorrowedFd<'_>,
        region: &MemoryRegion,
    ) -> std::io::Result<u64> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.core(|c| {
            for t in &mut c.transports {
                t.share(
                    id,
                    &Export {
                        fd,
                        file_offset: 0,
                        bus: HOST_BUS + region.va.0,
                        len: region.len,
                    },
                )?;
            }
            Ok(id)
        })
    }

    /// Takes host memory back from peers, and waits until each has unmapped it or is gone.
    ///
    /// # Errors
    /// [`FreeError::Mapped`] when one has not after `deregister_timeout`.
    pub(super) fn withdraw_host(&self, id: u64, va: GpuVa) -> Result<(), FreeError> {
        let waited = self.config().deregister_timeout;
        let deadline = Instant::now() + waited;
        self.core(|c| c.transports.iter_mut().for_each(|t| t.withdraw(id)));
        loop {
            let peers = self.core(|c| c.transports.iter().map(|t| t.holders(id)).sum());
            if peers == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(FreeError::Mapped { va, peers, waited });
            }
            if !self.step() {
                std::thread::yield_now();
            }
        }
    }
}
