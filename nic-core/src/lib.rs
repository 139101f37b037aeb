//! The NIC. One module per step of a message, in this order:
//! `bar` → `queue` → `command` → `transport` → `port`, with `dma` beside them.

pub mod port;
pub mod transport;
pub mod wire;
