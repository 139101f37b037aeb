//! The atomics of [`crate::completion_write`], so that a model checker's can take their place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
