//! The atomics of [`crate::completion_write`], which a model checker replaces by its own.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
