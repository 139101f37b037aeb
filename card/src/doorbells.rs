//! [`Doorbells`]: the doorbells in a card's BAR, for kernels.
//!
//! The GPU's driver registers the mapping of the BAR as I/O memory, and a kernel's store goes over
//! PCIe to the card (FpgaNIC §2.3.1). Not every GPU, driver and machine allows it; one that refuses
//! is reported with the driver's reason.

use std::fmt;
use std::sync::Arc;

use ringbell_gtlb::{DmaMemory, Exposed};
use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_core::HostQueue;

use crate::CardBar;

/// Kernels cannot ring the card's doorbells, and the driver's reason.
#[derive(Debug, thiserror::Error)]
#[error("the GPU does not take the BAR as I/O memory: {0}; use a GPU, a driver and rights that allow it")]
pub struct DoorbellError(pub std::io::Error);

/// The doorbells of one card, reachable for the kernels of one GPU. Drop it only when no kernel
/// holds a handle of it.
pub struct Doorbells {
    // Dropped before the mapping that it refers to.
    exposed: Exposed,
    card: Arc<CardBar>,
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Doorbells({})", self.describe())
    }
}

impl Doorbells {
    /// Maps the doorbells of `card` for the GPU of `memory`.
    ///
    /// # Errors
    /// [`DoorbellError`]: the GPU's driver refuses.
    pub fn open(card: Arc<CardBar>, memory: &dyn DmaMemory) -> Result<Doorbells, DoorbellError> {
        let exposed = card.expose(memory).map_err(DoorbellError)?;
        Ok(Doorbells { exposed, card })
    }

    /// The card.
    pub fn card(&self) -> &CardBar {
        &self.card
    }

    /// How kernels ring, in a line for people.
    pub fn describe(&self) -> String {
        "kernels ring in the card's BAR: the GPU takes the BAR as I/O memory".into()
    }

    /// A kernel's handle of `queue` that rings the doorbell in the card's BAR. Valid while both the
    /// queue and `self` live.
    pub fn handle(&self, queue: &HostQueue) -> QueueHandle {
        queue.handle_at(self.exposed.va())
    }
}
