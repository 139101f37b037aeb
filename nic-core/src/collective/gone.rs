//! Ranks that send nothing more.

use std::time::Duration;

use ringbell_nic_abi::Status;

use crate::types::NicTime;

/// How long operations that need nothing of a failed rank may go on with the others.
const WITHOUT: Duration = Duration::from_secs(1);

/// A rank that sends nothing more. Its earlier messages still count: the communicator ends
/// when an operation under way needs more than those, or goes on with other ranks for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) rank: u32,
    /// How the communicator then ends, and the rank that caused it.
    pub(crate) blame: u32,
    pub(crate) status: Status,
    /// It has freed the communicator in order, which does not affect idle ranks.
    pub(crate) left: bool,
    /// Until when operations that need nothing of it may go on with the others; `None`: that time
    /// is over.
    pub(crate) until: Option<NicTime>,
}

impl Gone {
    /// It has failed.
    pub(super) fn failed(now: NicTime, rank: u32, blame: u32) -> Gone {
        Gone {
            rank,
            blame,
            status: Status::PeerFailed,
            left: false,
            until: Some(now.plus(WITHOUT)),
        }
    }

    /// It has freed the communicator.
    pub(super) fn left(rank: u32) -> Gone {
        Gone {
            rank,
            blame: rank,
            status: Status::PeerFailed,
            left: true,
            until: None,
        }
    }
}
