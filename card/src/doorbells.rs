//! [`Doorbells`]: the way from a kernel to the doorbells in a card's BAR.
//!
//! The fastest way is the BAR itself: the GPU's driver registers the mapping as I/O memory, and a kernel's store goes over PCIe
//! to the card (FpgaNIC §2.3.1). Not every GPU, driver and machine allows it. Then a kernel rings in pinned memory of the host,
//! and a thread of the host copies the value to the card: [`proxy`](super::proxy). A kernel differs only in the time: it is
//! compiled the same way, and only the addresses in its handle change.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ringbell_gtlb::{DmaMemory, Exposed};
use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::GpuVa;
use ringbell_nic_core::HostQueue;

use crate::proxy::{Proxy, ProxyPolicy, ProxyStats};
use crate::CardBar;

/// The way of kernels' doorbells, in the form of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellChoice {
    /// The BAR itself where the GPU accepts it as I/O memory, else the host's thread.
    #[default]
    Auto,
    /// The BAR itself, or an error.
    Direct,
    /// The host's thread.
    Proxy,
}

/// A word that names no way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way for doorbells; write auto, direct or proxy")]
pub struct DoorbellChoiceError(String);

impl FromStr for DoorbellChoice {
    type Err = DoorbellChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" | "" => Ok(DoorbellChoice::Auto),
            "direct" => Ok(DoorbellChoice::Direct),
            "proxy" => Ok(DoorbellChoice::Proxy),
            _ => Err(DoorbellChoiceError(text.into())),
        }
    }
}

/// Kernels cannot ring the card's doorbells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// The selected way is refused.
    #[error("the GPU does not take the BAR as I/O memory: {0}; `auto` lets a thread of the host ring instead")]
    Refused(#[source] std::io::Error),
    /// The system has no memory, or no thread.
    #[error("cannot let a thread of the host ring: the system refused {what}: {source}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The way of doorbells.
#[derive(Debug)]
enum Way {
    /// Registered as I/O memory.
    Direct(Exposed),
    /// By a thread of the host.
    Proxy(Proxy),
}

/// The doorbells of one card, reachable for the kernels of one GPU. Drop it only when no kernel holds a handle that went through
/// it.
pub struct Doorbells {
    // Dropped before the mapping that it refers to.
    way: Way,
    why: String,
    card: Arc<CardBar>,
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Doorbells({})", self.describe())
    }
}

impl Doorbells {
    /// Finds the way from the GPU of `memory` to the doorbells of `card`.
    ///
    /// # Errors
    /// [`DoorbellError`].
    pub fn open(
        card: Arc<CardBar>,
        memory: &dyn DmaMemory,
        choice: DoorbellChoice,
        policy: ProxyPolicy,
    ) -> Result<Doorbells, DoorbellError> {
        let why = match choice {
            DoorbellChoice::Proxy => "it was asked for".to_owned(),
            DoorbellChoice::Auto | DoorbellChoice::Direct => match card.expose(memory) {
                Ok(exposed) => {
                    return Ok(Doorbells {
                        way: Way::Direct(exposed),
                        why: "the GPU takes the BAR as I/O memory".into(),
                        card,
                    })
                }
                Err(e) if choice == DoorbellChoice::Direct => {
                    return Err(DoorbellError::Refused(e))
                }
                Err(e) => format!("the GPU does not take the BAR as I/O memory: {e}"),
            },
        };
        tracing::warn!(card = %card.path().display(), why, "a thread of the host rings for kernels");
        Ok(Doorbells {
            way: Way::Proxy(
                Proxy::start(card.clone(), memory, policy)
                    .map_err(|(what, source)| DoorbellError::System { what, source })?,
            ),
            why,
            card,
        })
    }

    /// The card.
    pub fn card(&self) -> &CardBar {
        &self.card
    }

    /// Whether a kernel's store goes to the card without a thread.
    pub fn is_direct(&self) -> bool {
        matches!(self.way, Way::Direct(_))
    }

    /// The way and its reason, in a line for people.
    pub fn describe(&self) -> String {
        match &self.way {
            Way::Direct(_) => format!("kernels ring in the card's BAR: {}", self.why),
            Way::Proxy(p) => format!(
                "a thread of the host rings for kernels (looks every {:?} while they ring, every {:?} when they \
                 rest): {}",
                p.policy().nap,
                p.policy().long_nap,
                self.why
            ),
        }
    }

    /// Counters of the host's thread; `None` when there is none.
    pub fn proxy_stats(&self) -> Option<ProxyStats> {
        match &self.way {
            Way::Direct(_) => None,
            Way::Proxy(p) => Some(p.stats()),
        }
    }

    /// A kernel's handle of `queue` that rings the doorbell in the card's BAR, by the way that was found: in the BAR itself, or
    /// through a thread of the host. Valid while both the queue and `self` live.
    pub fn handle(&self, queue: &HostQueue) -> QueueHandle {
        queue.handle_at(|number, rung| self.arm(number, rung))
    }

    /// Prepares the doorbell of a queue whose next ticket is `tail`; returns the address of the BAR for kernels.
    fn arm(&self, queue: u32, tail: u32) -> GpuVa {
        match &self.way {
            Way::Direct(exposed) => exposed.va(),
            Way::Proxy(proxy) => proxy.arm(queue, tail),
        }
    }
}
