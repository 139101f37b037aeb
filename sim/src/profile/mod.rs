//! Costs of the hardware, by name or from a file.

mod file;

use crate::{HostCosts, Switches};

/// What a link and a host cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Name, or path of its file.
    pub name: String,
    /// Bits a second of each link in each direction.
    pub link_gbps: f64,
    /// Delay of one link, in nanoseconds.
    pub link_delay_ns: u64,
    /// What switches do with frames that wait.
    pub switches: Switches,
    /// Largest IP packet.
    pub mtu: usize,
    /// After which time a NIC first sends again what was not acknowledged, in microseconds.
    pub retry_us: u64,
    /// What NICs and hosts cost.
    pub host: HostCosts,
    /// Where the numbers come from.
    pub source: String,
}

/// Built-in profiles, which a test reads: names and files.
const BUILT_IN: [(&str, &str); 6] = [
    ("ideal", include_str!("../../profiles/ideal.toml")),
    ("fpganic", include_str!("../../profiles/fpganic.toml")),
    ("rtl", include_str!("../../profiles/rtl.toml")),
    ("accl", include_str!("../../profiles/accl.toml")),
    ("acclplus", include_str!("../../profiles/acclplus.toml")),
    ("smi", include_str!("../../profiles/smi.toml")),
];

impl Profile {
    /// Names of those that are built in.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.into_iter().map(|p| p.0)
    }

    /// A built-in profile as its file.
    pub fn text_of(name: &str) -> Option<&'static str> {
        BUILT_IN.into_iter().find(|p| p.0 == name).map(|p| p.1)
    }

    /// A built-in profile.
    pub fn by_name(name: &str) -> Option<Profile> {
        Profile::parse(name, Profile::text_of(name)?).ok()
    }
}

/// Share of a link that is left for payload in frames of this length, of which headers take so
/// much; and the preamble, FCS and gap.
pub(crate) fn payload_share(frame: usize, headers: usize) -> f64 {
    frame.saturating_sub(headers) as f64 / (frame.max(headers) + LINE_BYTES) as f64
}

/// Preamble, FCS and the gap between frames (IEEE 802.3).
pub(crate) const LINE_BYTES: usize = 24;
/// Ethernet, IPv4, UDP, BTH and ICRC of a packet of RoCEv2.
pub(crate) const HEADERS: usize = 14 + 20 + 8 + 12 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_a_right_file() {
        for (name, text) in BUILT_IN {
            let read = Profile::parse(name, text).expect("it is right");
            assert_eq!(Profile::by_name(name), Some(read));
            // Each number stands below the comment that says where it comes from.
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2).filter(|p| p[1].contains('=')) {
                assert!(pair[0].starts_with("# "), "{name}: {}", pair[1]);
            }
        }
    }
}
