//! Settings of a NIC: every limit is one, checked before the NIC is made.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// A setting that makes no sense: which one, why, and so what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting `{setting}`: {why}; change it and make the NIC again")]
pub struct ConfigError {
    /// Name of the setting as in [`NicConfig`].
    pub setting: &'static str,
    /// What is wrong with its value.
    pub why: String,
}

/// Which threads step the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgressMode {
    /// Threads that wait. When none does, a parked thread that wakes for timers, peers and at most
    /// once a millisecond for doorbells.
    #[default]
    Waiter,
    /// Besides these a thread that polls all the time: for a machine with a core to spare.
    Dedicated,
    /// None: the application calls `Nic::step` itself (virtual time, tests).
    Manual,
}

/// Where engines run that only look at long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineThread {
    /// Beside the copy, on a thread of the NIC, while that is faster: measured, and tried again at
    /// times. Only with more than one core.
    Auto,
    /// On the thread that steps the NIC.
    #[default]
    Off,
    /// Beside the copy, even on one core.
    Always,
}

impl EngineThread {
    /// `auto`, `off` or `always`.
    pub fn from_name(name: &str) -> Option<EngineThread> {
        match name {
            "auto" => Some(EngineThread::Auto),
            "off" => Some(EngineThread::Off),
            "always" => Some(EngineThread::Always),
            _ => None,
        }
    }
}

/// Settings of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicConfig {
    /// Own IPv4 address; `local` peers find the NIC by it.
    pub ip: Ipv4Addr,
    /// Own MAC address.
    pub mac: [u8; 6],
    /// Most queues, 1 to 512. Each communicator has one, and takes NIC memory, too:
    /// [`NicConfig::with_queues`] sets both.
    pub max_queues: usize,
    /// Most sessions, listeners included, 1 to 65,536.
    pub max_sessions: usize,
    /// Most unread events.
    pub event_capacity: usize,
    /// Descriptors taken from one queue in one step.
    pub batch: usize,
    /// How long a closed session may take to deliver what was sent before it is reset. When the
    /// last handle of the NIC goes, or [`Nic::close`](crate::Nic::close) is called, sessions that
    /// were closed or half-closed get as long before the NIC ends; 0 ends it at once. With
    /// [`ProgressMode::Manual`] nothing waits there: the program steps the NIC itself.
    pub linger: Duration,
    /// How long freeing memory waits for DMA in flight before it quarantines the region.
    pub deregister_timeout: Duration,
    /// Bytes of NIC memory, for engines: a multiple of 4096 from 1 MiB to 1 TiB. Pages that nothing
    /// uses cost nothing.
    pub nic_memory_bytes: u64,
    /// The thread that steps the NIC.
    pub progress: ProgressMode,
    /// Longest nap of the progress thread while a kernel may ring a doorbell unseen.
    pub idle_nap: Duration,
    /// The thread of taps on messages from 256 KiB on over `local`.
    pub engine_thread: EngineThread,
}

impl Default for NicConfig {
    fn default() -> NicConfig {
        NicConfig {
            ip: Ipv4Addr::new(10, 0, 0, 1),
            mac: [0x02, 0x52, 0x42, 0, 0, 1],
            max_queues: 64,
            max_sessions: 4096,
            event_capacity: 1024,
            batch: 32,
            linger: Duration::from_secs(5),
            deregister_timeout: Duration::from_secs(2),
            nic_memory_bytes: 1 << 30,
            progress: ProgressMode::Waiter,
            idle_nap: Duration::from_millis(2),
            engine_thread: EngineThread::default(),
        }
    }
}

fn within(setting: &'static str, v: usize, lo: usize, hi: usize) -> Result<(), ConfigError> {
    if (lo..=hi).contains(&v) {
        return Ok(());
    }
    let why = format!("{v} is not between {lo} and {hi}");
    Err(ConfigError { setting, why })
}

fn check_board_bytes(len: u64) -> Result<(), ConfigError> {
    if (1 << 20..=1 << 40).contains(&len) && len.is_multiple_of(4096) {
        return Ok(());
    }
    Err(ConfigError {
        setting: "nic_memory_bytes",
        why: format!("{len} is not a multiple of 4096 between 1 MiB and 1 TiB"),
    })
}

/// NIC memory of a communicator with the default settings: `scratch_bytes`, and what it stages and
/// receives into.
const COMMUNICATOR_BYTES: u64 = 17 << 20;

impl NicConfig {
    /// The default but for the number of queues, with NIC memory for a communicator of the default
    /// settings at each.
    pub fn with_queues(max_queues: usize) -> NicConfig {
        let default = NicConfig::default();
        let all = (max_queues as u64).saturating_mul(COMMUNICATOR_BYTES);
        NicConfig {
            max_queues,
            nic_memory_bytes: all.clamp(default.nic_memory_bytes, 1 << 40),
            ..default
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that is out of range, and what its range is.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within(
            "max_queues",
            self.max_queues,
            1,
            ringbell_nic_abi::bar::MAX_QUEUES,
        )?;
        within("max_sessions", self.max_sessions, 1, 65536)?;
        within("event_capacity", self.event_capacity, 1, 1 << 20)?;
        within("batch", self.batch, 1, 4096)?;
        check_board_bytes(self.nic_memory_bytes)?;
        if self.ip.is_unspecified() || self.ip.is_multicast() || self.ip.is_broadcast() {
            return Err(ConfigError {
                setting: "ip",
                why: format!("{} is not the address of one host", self.ip),
            });
        }
        if self.idle_nap.is_zero() {
            return Err(ConfigError {
                setting: "idle_nap",
                why: "0 would burn a core; ask for ProgressMode::Dedicated instead".into(),
            });
        }
        Ok(())
    }
}

/// How payloads go through NIC memory when the peer cannot reach them where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingConfig {
    /// Bytes of a piece, 4 KiB to 16 MiB: while the peer copies one out, the next is filled.
    pub chunk: u32,
    /// Pieces of NIC memory that a connection may use at once, 2 to 64.
    pub depth: u32,
}

impl Default for StagingConfig {
    fn default() -> StagingConfig {
        StagingConfig {
            chunk: 64 << 10,
            depth: 4,
        }
    }
}

impl StagingConfig {
    /// Most bytes of NIC memory that one connection takes.
    pub fn room(&self) -> u64 {
        u64::from(self.chunk) * u64::from(self.depth)
    }
}

/// Settings of the `local` transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalConfig {
    /// Directory in which NICs of this user find each other; created with mode 0700.
    /// `None`: `$XDG_RUNTIME_DIR/ringbell`, or `/tmp/ringbell-UID`.
    pub directory: Option<PathBuf>,
    /// Job secret: NICs with different secrets refuse each other.
    pub secret: [u8; 32],
    /// Number of the network that this NIC belongs to. NICs of different networks do not link,
    /// although they find each other in a shared directory: there the traffic belongs on the wire.
    /// `None`: the network namespace of the thread that makes the NIC.
    pub network: Option<u64>,
    /// Link NICs of other networks as well, when these allow it, too: for a program that asked for
    /// `local` by name.
    pub across_networks: bool,
    /// Most peers (links), 1 to 4,096.
    pub max_links: usize,
    /// Most connections, 1 to 65,535.
    pub max_conns: usize,
    /// Bytes of small messages that a connection may have on the way without a matching receive.
    pub inline_window: usize,
    /// Bytes that may be copied early into a connection's receive buffer when no receive matches.
    pub early_window: usize,
    /// How payloads in memory that a peer cannot map are sent.
    pub staging: StagingConfig,
    /// Time that an unknown peer has to identify itself.
    pub handshake_timeout: Duration,
}

impl Default for LocalConfig {
    fn default() -> LocalConfig {
        LocalConfig {
            directory: None,
            secret: [0; 32],
            network: None,
            across_networks: false,
            max_links: 1024,
            max_conns: 8192,
            inline_window: 64 << 10,
            early_window: 256 << 10,
            staging: StagingConfig::default(),
            handshake_timeout: Duration::from_millis(500),
        }
    }
}

impl LocalConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that is out of range, and what its range is.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("local.max_links", self.max_links, 1, 4096)?;
        within("local.max_conns", self.max_conns, 1, 65535)?;
        within("local.inline_window", self.inline_window, 1024, 1 << 24)?;
        within("local.early_window", self.early_window, 0, 1 << 30)?;
        let StagingConfig { chunk, depth } = self.staging;
        within("local.staging.chunk", chunk as usize, 4096, 16 << 20)?;
        within("local.staging.depth", depth as usize, 2, 64)
    }

    /// Checks what must fit the NIC's settings.
    ///
    /// # Errors
    /// The setting that does not fit.
    pub fn validate_with(&self, nic: &NicConfig) -> Result<(), ConfigError> {
        self.validate()?;
        let (room, nic_memory) = (self.staging.room(), nic.nic_memory_bytes);
        if room > nic_memory {
            return Err(ConfigError {
                setting: "local.staging",
                why: format!("{room} bytes (chunk times depth) of one connection exceed the {nic_memory} bytes of NIC memory (`nic_memory_bytes`)"),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_named() {
        assert_eq!(NicConfig::default().validate(), Ok(()));
        assert_eq!(LocalConfig::default().validate(), Ok(()));
        let c = NicConfig {
            max_queues: 513,
            ..NicConfig::default()
        };
        let mut l = LocalConfig::default();
        l.staging.chunk = 4095;
        let e = l.validate().expect_err("too small");
        assert_eq!(e.setting, "local.staging.chunk");
        let small = NicConfig {
            nic_memory_bytes: 1 << 20,
            ..NicConfig::default()
        };
        l.staging = StagingConfig {
            chunk: 1 << 20,
            depth: 2,
        };
        assert_eq!(l.validate(), Ok(()));
        let e = l.validate_with(&small).expect_err("does not fit");
        assert_eq!(e.setting, "local.staging");
        let e = c.validate().expect_err("too many");
        assert_eq!(e.setting, "max_queues");
        assert!(e.to_string().contains("between 1 and 512"), "{e}");
    }
}
