//! Hooks of kernels that are compiled with checks: which there are, and what they tell.
//!
//! - `access`: how an access is made;
//! - `layout`: variables in shared and local memory, with gaps between them.
#![allow(unsafe_code)] // Compiled code reads the map of a memory.

mod access;
mod layout;

use std::str::FromStr;

pub(crate) use access::How;
pub(crate) use layout::{grouped, marked, Layout};

/// Which checks a kernel is compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checks {
    /// Accesses outside of what is allocated: `memcheck`.
    pub memory: bool,
    /// Reads of shared and GPU memory that was never written: `initcheck`.
    pub initialised: bool,
    /// Accesses of the same bytes without an order between them: `racecheck`.
    pub races: bool,
    /// Barriers under divergence, wrong masks, values of lanes that give none: `synccheck`.
    pub sync: bool,
}

impl Checks {
    /// Every check.
    pub const ALL: Checks = Checks {
        memory: true,
        initialised: true,
        races: true,
        sync: true,
    };

    /// The checks of both.
    pub fn and(self, other: Checks) -> Checks {
        Checks {
            memory: self.memory || other.memory,
            initialised: self.initialised || other.initialised,
            races: self.races || other.races,
            sync: self.sync || other.sync,
        }
    }

    /// Whether accesses are traced.
    pub fn traced(self) -> bool {
        self.initialised || self.races
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
                "initcheck" => checks.initialised = true,
                "racecheck" => checks.races = true,
                "synccheck" => checks.sync = true,
                _ => {
                    let known = "memcheck, initcheck, racecheck, synccheck and all";
                    return Err(format!("there is no check `{name}`; there are {known}"));
                }
            }
        }
        Ok(checks)
    }
}
