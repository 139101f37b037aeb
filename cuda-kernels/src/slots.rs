//! Division of the exposed window into slots (FpgaNIC §A.1.2). The device's half is
//! `include/ringbell_slots.cuh`.

use ringbell_nic_abi::GpuVa;

use crate::KernelArg;

/// The window and the slots to divide it into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotsConfig {
    /// Bytes of the window; 220 MB in the paper.
    pub window_bytes: u64,
    /// Connections (N).
    pub connections: u32,
    /// Bytes of a slot (W); a multiple of 16.
    pub slot_bytes: u64,
    /// Share of the receive buffer after which consumed slots are granted again (Th), in percent.
    pub credit_percent: u32,
}

impl Default for SlotsConfig {
    /// The paper's: 220 MB, 8 connections, 64 KiB, threshold 0.5.
    fn default() -> SlotsConfig {
        SlotsConfig {
            window_bytes: 220_000_000,
            connections: 8,
            slot_bytes: 64 << 10,
            credit_percent: 50,
        }
    }
}

/// The window cannot be divided so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a window of {window_bytes} bytes has no room for a send and a receive slot of {slot_bytes} bytes for each of {connections} connections; enlarge the window or use smaller slots (a multiple of 16)")]
pub struct SlotsError {
    /// Bytes of the window.
    pub window_bytes: u64,
    /// Connections.
    pub connections: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

/// A divided window: 5/11 of it to send, 5/11 to receive, 1/11 reserved (100, 100 and 20 MB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    window: GpuVa,
    receive_offset: u64,
    buffer_bytes: u64,
    config: SlotsConfig,
}

impl Slots {
    /// Divides the window that begins at `window`, which must be registered with the NIC.
    ///
    /// # Errors
    /// [`SlotsError`] when a buffer has no room for one slot.
    pub fn new(window: GpuVa, config: SlotsConfig) -> Result<Slots, SlotsError> {
        let refuse = SlotsError {
            window_bytes: config.window_bytes,
            connections: config.connections,
            slot_bytes: config.slot_bytes,
        };
        if config.connections == 0
            || config.slot_bytes == 0
            || !config.slot_bytes.is_multiple_of(16)
        {
            return Err(refuse);
        }
        let half = config.window_bytes / 11 * 5;
        let share = half / u64::from(config.connections);
        let buffer_bytes = share / config.slot_bytes * config.slot_bytes;
        if buffer_bytes == 0 {
            return Err(refuse);
        }
        Ok(Slots {
            window,
            receive_offset: half.next_multiple_of(16),
            buffer_bytes,
            config,
        })
    }

    /// Bytes of each circular buffer (M).
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// Slots of each buffer (F).
    pub fn slots(&self) -> u64 {
        self.buffer_bytes / self.config.slot_bytes
    }
}

impl From<Slots> for KernelArg {
    /// `gpu_slots`.
    fn from(s: Slots) -> KernelArg {
        let mut b = Vec::with_capacity(40);
        for v in [
            s.window.0,
            s.receive_offset,
            s.buffer_bytes,
            s.config.slot_bytes,
        ] {
            b.extend_from_slice(&v.to_ne_bytes());
        }
        b.extend_from_slice(&s.config.connections.to_ne_bytes());
        b.extend_from_slice(&s.config.credit_percent.to_ne_bytes());
        KernelArg::Bytes(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_inside_the_window_and_do_not_overlap() {
        for (window_bytes, connections, slot_bytes) in [
            (220_000_000, 8, 64 << 10),
            (1 << 20, 3, 16),
            (100_000, 1, 32),
        ] {
            let config = SlotsConfig {
                window_bytes,
                connections,
                slot_bytes,
                credit_percent: 50,
            };
            let s = Slots::new(GpuVa(0), config).unwrap();
            let all = s.buffer_bytes * u64::from(connections);
            assert!(all <= s.receive_offset && s.receive_offset + all <= window_bytes);
            assert!(s.slots() >= 1 && s.buffer_bytes.is_multiple_of(slot_bytes));
        }
        let paper = Slots::new(GpuVa(0), SlotsConfig::default()).unwrap();
        assert!(
            paper.buffer_bytes() > 12_400_000 && paper.buffer_bytes() <= 12_500_000,
            "12.5 MB each"
        );
        for bad in [
            (100, 8, 16),
            (1 << 20, 0, 16),
            (1 << 20, 1, 0),
            (1 << 20, 1, 24),
        ] {
            let config = SlotsConfig {
                window_bytes: bad.0,
                connections: bad.1,
                slot_bytes: bad.2,
                credit_percent: 50,
            };
            assert!(Slots::new(GpuVa(0), config).is_err());
        }
    }
}
