//! What is allocated in the emulated GPU's memory, for the errors of kernels and for checked ones.

use std::sync::{Mutex, OnceLock};

use ringbell_gpu::{Allocations, Checker, Checks};

use crate::locks::lock;

/// The environment's checks, which hold for every emulated GPU of the process.
const VARIABLE: &str = "RINGBELL_CHECK";

/// Allocations of one memory, and its checker if kernels are checked.
#[derive(Debug, Default)]
pub(super) struct Watched {
    allocations: Mutex<Allocations>,
    checker: OnceLock<Checker>,
}

/// `asked`, and what the environment asks for.
///
/// # Errors
/// The variable has the name of no check.
pub(super) fn with_environment(asked: Checks) -> Result<Checks, String> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let more: Checks = text.parse().map_err(|e| format!("{VARIABLE}: {e}"))?;
    Ok(asked.and(more))
}

impl Watched {
    /// Before anything is allocated.
    pub(super) fn check(&self, checks: Checks, base: u64, bytes: u64) {
        if checks.any() {
            self.checker
                .get_or_init(|| Checker::new(checks, base, bytes));
        }
    }

    pub(super) fn checker(&self) -> Option<&Checker> {
        self.checker.get()
    }

    pub(super) fn allocated(&self, address: u64, bytes: u64) {
        lock(&self.allocations).add(address, bytes);
        if let Some(c) = self.checker() {
            c.allocated(address, bytes);
        }
    }

    /// A module's variables in memory that was allocated at `owner` for them: address, bytes, name.
    pub(super) fn variables<'a>(
        &self,
        owner: u64,
        variables: impl Iterator<Item = (u64, u64, &'a str)>,
    ) {
        let whole = lock(&self.allocations).remove(owner);
        for (at, bytes) in whole {
            self.forget(at, bytes);
        }
        for (address, bytes, name) in variables {
            lock(&self.allocations).add_variable(owner, address, bytes, name);
            if let Some(c) = self.checker() {
                c.allocated(address, bytes);
            }
        }
    }

    pub(super) fn freed(&self, address: u64) {
        let parts = lock(&self.allocations).remove(address);
        for (at, bytes) in parts {
            self.forget(at, bytes);
        }
    }

    fn forget(&self, address: u64, bytes: u64) {
        if let Some(c) = self.checker() {
            c.freed(address, bytes);
        }
    }

    /// Bytes from an address to the end of its allocation.
    pub(super) fn rest(&self, address: u64) -> u64 {
        lock(&self.allocations).rest(address)
    }

    pub(super) fn nearest(&self, address: u64) -> Option<String> {
        lock(&self.allocations).nearest(address)
    }
}
