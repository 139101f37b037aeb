//! The handle by which a program replaces the tables of a mesh while its port is a NIC's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::ReplaceError;

/// What is asked of a port.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The tables, as JSON.
    pub(crate) text: String,
    /// How long the other nodes have.
    pub(crate) patience: Duration,
}

#[derive(Debug, Default)]
struct Desk {
    wanted: Option<Wanted>,
    outcome: Option<Result<(), ReplaceError>>,
}

/// A handle of a mesh's port; clones are of the same port. The port acts when it is stepped.
#[derive(Debug, Clone, Default)]
pub struct Control {
    desk: Arc<Mutex<Desk>>,
    /// A hint: the desk says what it is.
    is_asked: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
}

impl Control {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held by who asks, until the outcome is there.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for other tables, in the JSON form of
    /// [`Document`](ringbell_routes::document::Document); the other nodes have `patience` to hold
    /// them. One at a time: what was asked before and is not decided is forgotten.
    pub fn replace(&self, text: String, patience: Duration) {
        let wanted = Some(Wanted { text, patience });
        let outcome = None;
        *self.desk() = Desk { wanted, outcome };
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Whether the port is still there, and any other handle.
    pub fn has_port(&self) -> bool {
        Arc::strong_count(&self.desk) > 1
    }

    /// How that has ended, once: all nodes use the tables, or none does.
    pub fn outcome(&self) -> Option<Result<(), ReplaceError>> {
        self.desk().outcome.take()
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Option<Wanted> {
        self.is_asked.store(false, Ordering::Relaxed);
        self.desk().wanted.take()
    }

    pub(crate) fn end(&self, outcome: Result<(), ReplaceError>) {
        self.desk().outcome = Some(outcome);
    }
}
