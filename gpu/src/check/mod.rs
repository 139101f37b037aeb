//! Checks of kernels while they run: a second compilation of a kernel with hooks, and what the hooks ask.
//!
//! - `allocations`: which memory is allocated, which was freed, and what lies next to an address;
//! - `addressable`: the same as one byte for 8 bytes of memory, which compiled code reads;
//! - `watch`: a launch under checks, and what was found in it; `sync`: barriers and warp operations;
//! - `layout`: variables in shared and local memory, with gaps between them.
//!
//! The surroundings own a [`Checker`] for each memory, and answer it in [`Memory::checker`](crate::Memory::checker).
//! Code that was compiled without hooks does not know of it.
#![allow(unsafe_code)] // Compiled code reads the map of addressable memory.

mod addressable;
mod allocations;
mod layout;
mod sync;
mod watch;

use std::str::FromStr;

pub use allocations::Allocations;
pub(crate) use layout::{marked, Layout};
pub(crate) use sync::Place;
pub use watch::Watch;

use addressable::Addressable;

/// Which checks a kernel is compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checks {
    /// Accesses outside of what is allocated: `memcheck`.
    pub memory: bool,
    /// Barriers under divergence, wrong masks, values of lanes that give none: `synccheck`.
    pub sync: bool,
}

impl Checks {
    /// Every check.
    pub const ALL: Checks = Checks {
        memory: true,
        sync: true,
    };

    /// The checks of both.
    pub fn and(self, other: Checks) -> Checks {
        Checks {
            memory: self.memory || other.memory,
            sync: self.sync || other.sync,
        }
    }

    /// Whether there is one.
    pub fn any(self) -> bool {
        self != Checks::default()
    }
}

impl FromStr for Checks {
    type Err = String;

    /// Names between commas, or `all`.
    fn from_str(s: &str) -> Result<Checks, String> {
        let mut checks = Checks::default();
        for name in s.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match name {
                "all" => checks = Checks::ALL,
                "memcheck" => checks.memory = true,
                "synccheck" => checks.sync = true,
                _ => {
                    let known = "memcheck, synccheck and all";
                    return Err(format!("there is no check `{name}`; there are {known}"));
                }
            }
        }
        Ok(checks)
    }
}

/// What the checks of one GPU memory know.
#[derive(Debug)]
pub struct Checker {
    checks: Checks,
    addressable: Addressable,
}

impl Checker {
    /// Of `bytes` bytes of GPU memory from `base`, which is aligned to 64 KiB. Nothing is allocated yet.
    pub fn new(checks: Checks, base: u64, bytes: u64) -> Checker {
        Checker {
            checks,
            addressable: Addressable::new(base, bytes),
        }
    }

    /// The checks that kernels are to be compiled with.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// Memory was allocated; its address is a multiple of 16.
    pub fn allocated(&self, address: u64, bytes: u64) {
        self.addressable.set(address, bytes, true);
    }

    /// Memory was freed: its first byte and length, as it was allocated.
    pub fn freed(&self, address: u64, bytes: u64) {
        self.addressable.set(address, bytes, false);
    }

    /// For compiled code: a byte for each 8 bytes of GPU memory, 8 if all of them are allocated.
    pub(crate) fn map(&self) -> *const u8 {
        self.addressable.map()
    }
}
