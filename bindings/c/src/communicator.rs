//! Open communicators of the C API, and their windows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::handles::Table;
use ringbell::comm::SymmetricBuffer;
use ringbell::Communicator;

/// State of an `rb_communicator`.
pub(super) struct OpenComm {
    pub(super) owner: usize,
    pub(super) comm: Communicator,
    /// By address. They end with it.
    pub(super) windows: Mutex<BTreeMap<u64, SymmetricBuffer>>,
}

impl OpenComm {
    pub(super) fn new(owner: usize, comm: Communicator) -> OpenComm {
        OpenComm {
            owner,
            comm,
            windows: Mutex::default(),
        }
    }
}

pub(super) static COMMS: Table<OpenComm> = Table::new("communicator (rb_communicator)");

/// Takes the communicators of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<OpenComm>> {
    COMMS.remove_where(|c| c.owner == nic)
}
