//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p ringbell --test sdk NAME` runs the tests
//! whose name contains NAME.

mod communicators;
#[path = "../nic-core/tests/nic_support/driven.rs"]
mod driven;
#[path = "../cuda-kernels/tests/common/mock_driver.rs"]
mod mock_driver;
#[path = "../cuda-kernels/tests/common/second_process.rs"]
mod second_process;
#[path = "../cuda-kernels/tests/common/test_gpu.rs"]
mod test_gpu;
#[macro_use]
#[path = "../nic-core/tests/transport_rules/mod.rs"]
mod transport_rules;

/// The part of nic-core's own tests that its rules of transports use.
mod nic_support {
    pub(crate) use crate::driven;
}

mod between_hosts;
#[cfg(feature = "card")]
mod card;
mod checked;
mod communicator;
mod communicator_memory;
mod communicator_queues;
mod cuda;
mod cuda_faults;
mod cuda_local;
mod engines_kernel;
mod growth;
mod mailbox;
mod meshes;
mod one_sided;
mod progress;
#[cfg(feature = "rtl")]
mod rtl;
mod sockets;
mod stream_sockets;
mod strict;
mod transports;
