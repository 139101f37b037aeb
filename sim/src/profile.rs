//! Costs of the hardware, by name.

/// What a link and a host cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// Bits a second of each link between a NIC and the switch, in each direction.
    pub link_gbps: f64,
    /// Delay of one link, in nanoseconds.
    pub link_delay_ns: u64,
    /// Bytes that wait at an output of the switch before it drops what comes.
    pub switch_queue: u64,
    /// Largest IP packet.
    pub mtu: usize,
    /// Where the numbers come from.
    pub source: &'static str,
}

impl Profile {
    /// All there are.
    pub const ALL: [Profile; 1] = [Profile {
        name: "ideal",
        link_gbps: 100.0,
        link_delay_ns: 1_000,
        switch_queue: 16 << 20,
        mtu: 9_000,
        source: "100 Gb/s as the papers' clusters; 1 us a link, 16 MiB a port and hosts that cost nothing are assumed",
    }];

    /// By its name.
    pub fn by_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|p| p.name == name)
    }

    /// Time that a frame occupies a link, in picoseconds.
    pub(crate) fn frame_ps(&self, frame: usize) -> u64 {
        ((frame + LINE_BYTES) as f64 * 8_000.0 / self.link_gbps).round() as u64
    }

    /// Bytes a second that are left for payload, in GB/s, when packets carry this much.
    pub fn payload_gbs(&self, payload: u64) -> f64 {
        let whole = payload as f64 + (HEADERS + LINE_BYTES) as f64;
        self.link_gbps / 8.0 * payload as f64 / whole
    }
}

/// Preamble, FCS and the gap between frames (IEEE 802.3).
const LINE_BYTES: usize = 24;
/// Ethernet, IPv4, UDP, BTH and ICRC of a packet of RoCEv2.
pub(crate) const HEADERS: usize = 14 + 20 + 8 + 12 + 4;
