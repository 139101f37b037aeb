//! The only door to atomics for the lock-free protocols ([`crate::slots`] and the link rings), so
//! that a model checker's atomics can take their place: `tests/loom_*.rs` include those modules with
//! a `sync` of their own.

pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
