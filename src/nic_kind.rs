//! [`NicKind`]: which implementation of a NIC a program gets.

use std::fmt;
use std::str::FromStr;

use crate::open_error::OpenError;
use crate::spec::SpecError;

/// Environment variable that selects the NIC where the program does not: see [`NicKind`].
pub const NIC_VARIABLE: &str = "RINGBELL_NIC";

/// The implementations of [`Backend`](crate::nic::Backend), by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum NicKind {
    /// `soft`: the software NIC, stepped by threads of this process.
    #[default]
    Soft,
    /// `rtl`: the software NIC with the hardware of hw/rtl as its data path, simulated. Needs the
    /// feature `rtl`.
    Rtl,
}

impl NicKind {
    /// All of them.
    pub const ALL: [NicKind; 2] = [NicKind::Soft, NicKind::Rtl];

    /// Its name in settings and tables.
    pub fn name(self) -> &'static str {
        match self {
            NicKind::Soft => "soft",
            NicKind::Rtl => "rtl",
        }
    }

    /// The value of [`NIC_VARIABLE`], else `soft`.
    pub(crate) fn from_env() -> Result<NicKind, OpenError> {
        match std::env::var(NIC_VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse().map_err(|why| OpenError::Setting {
                setting: NIC_VARIABLE,
                why,
            }),
            _ => Ok(NicKind::default()),
        }
    }
}

impl fmt::Display for NicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for NicKind {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let found = NicKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names = NicKind::ALL.map(NicKind::name).join(", ");
            SpecError::new(format!("`{text}` is not a NIC; there is {names}"))
        })
    }
}
