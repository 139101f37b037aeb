//! What users see of a wire.

use crate::wire::{WireCounters, WireState};

/// A wire of a node, for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireReport {
    /// Its name: both ends.
    pub name: String,
    /// The node's port.
    pub port: u8,
    /// Node and port at the other end.
    pub to: String,
    /// What it is doing.
    pub state: WireState,
    /// It has not come up since it was opened, for longer than the grace.
    pub is_missed: bool,
    /// Packets that it takes now, over all channels: the credit that the other end has given.
    pub credit: u32,
    /// Why it went down last.
    pub reason: Option<String>,
    /// What went over it.
    pub counters: WireCounters,
}

impl std::fmt::Display for WireReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} -> {}: ", self.port, self.to)?;
        match &self.state {
            WireState::Up => write!(f, "up, credit for {} packets", self.credit)?,
            WireState::Greeting if self.is_missed => {
                write!(f, "no answer since it was opened (wire {})", self.name)?;
            }
            WireState::Greeting => f.write_str("no answer")?,
            WireState::Refused(why) => write!(f, "refused: {why}")?,
        }
        let c = &self.counters;
        write!(
            f,
            "; {} packets out ({} again), {} in",
            c.tx_packets, c.tx_again, c.rx_packets
        )?;
        match &self.reason {
            Some(why) => write!(f, "; went down {} times, last because {why}", c.resets),
            None => Ok(()),
        }
    }
}
