//! Atomics of the lock-free protocols ([`crate::slots`] and the link rings), imported only from
//! here, so that a model checker's atomics can replace them: `tests/loom_*.rs` include those
//! modules with a `sync` of their own.

pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
