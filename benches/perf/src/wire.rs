//! Messages between the two sides of a measurement, over the measured session.
//!
//! Before each run the client sends a [`Plan`], after it the server answers with a [`Verdict`];
//! both fit into one inline descriptor. So a measurement needs no second channel, and works the
//! same between threads, processes and machines.

use anyhow::{bail, Result};

/// Bytes of a plan and of a verdict: one inline payload.
pub const MESSAGE_BYTES: usize = 40;
const MAGIC: u32 = 0x3150_4252; // "RBP1"

/// The work of the server's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Answer a ping-pong.
    PingPong,
    /// Receive a windowed stream.
    Bandwidth,
    /// Receive a stream of 8-byte messages.
    Rate,
    /// Receive on many connections, which are accepted first: [`Plan::warmup`] times on all of them
    /// in turn, then as often on one of them.
    Many,
    /// Receive through slots.
    Slots,
    /// Answer puts with puts, with a signal each.
    PutPingPong,
    /// Take puts, and check the memory after them.
    Puts,
    /// Fill memory for gets.
    Gets,
    /// Have a word for atomics.
    Atomics,
    /// End of the measurement: close.
    End,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The kind of run.
    pub run: Run,
    /// Check every byte of every message.
    pub full: bool,
    /// [`Run::Puts`] and [`Run::Gets`]: the server does the same to the client's memory at the same
    /// time.
    pub both_ways: bool,
    /// Bytes of a message.
    pub len: u64,
    /// Messages in flight; [`Run::Many`]: the connections; [`Run::Slots`]: MiB of the exposed
    /// window.
    pub window: u16,
    /// [`Run::Slots`]: bytes of a slot.
    pub part: u32,
    /// Messages before the timed ones; for [`Run::Many`] how often the run is done.
    pub warmup: u32,
    /// Timed messages; [`Run::Many`]: on each connection.
    pub count: u32,
    /// Time-out of each operation, µs.
    pub timeout_us: u32,
    /// Seed of the data.
    pub seed: u64,
}

impl Plan {
    /// The end of the measurement.
    pub const END: Plan = Plan {
        run: Run::End,
        full: false,
        both_ways: false,
        len: 0,
        window: 0,
        part: 0,
        warmup: 0,
        count: 0,
        timeout_us: 0,
        seed: 0,
    };

    /// The message.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut m = [0; MESSAGE_BYTES];
        m[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        m[4] = match self.run {
            Run::PingPong => 1,
            Run::Bandwidth => 2,
            Run::Rate => 3,
            Run::Many => 4,
            Run::End => 5,
            Run::Slots => 6,
            Run::PutPingPong => 7,
            Run::Puts => 8,
            Run::Gets => 9,
            Run::Atomics => 10,
        };
        m[5] = u8::from(self.full) | u8::from(self.both_ways) << 1;
        m[6..8].copy_from_slice(&self.window.to_le_bytes());
        m[8..16].copy_from_slice(&self.len.to_le_bytes());
        m[16..20].copy_from_slice(&self.warmup.to_le_bytes());
        m[20..24].copy_from_slice(&self.count.to_le_bytes());
        m[24..28].copy_from_slice(&self.timeout_us.to_le_bytes());
        m[28..32].copy_from_slice(&self.part.to_le_bytes());
        m[32..40].copy_from_slice(&self.seed.to_le_bytes());
        m
    }

    /// # Errors
    /// When the peer is no `ringbell perf`, or another version of it.
    pub fn decode(m: &[u8; MESSAGE_BYTES]) -> Result<Plan> {
        if word32(m, 0) != MAGIC {
            bail!("the peer does not speak the protocol of `ringbell perf`; run the same version on both sides");
        }
        Ok(Plan {
            run: match m[4] {
                1 => Run::PingPong,
                2 => Run::Bandwidth,
                3 => Run::Rate,
                4 => Run::Many,
                5 => Run::End,
                6 => Run::Slots,
                7 => Run::PutPingPong,
                8 => Run::Puts,
                9 => Run::Gets,
                10 => Run::Atomics,
                other => bail!("the peer asks for run {other}, which this version does not know; run the same version on both sides"),
            },
            full: m[5] & 1 != 0,
            both_ways: m[5] & 2 != 0,
            window: u16::from_le_bytes([m[6], m[7]]),
            len: word64(m, 8),
            warmup: word32(m, 16),
            count: word32(m, 20),
            timeout_us: word32(m, 24),
            part: word32(m, 28),
            seed: word64(m, 32),
        })
    }
}

/// The server's result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Completion status code of the first failure, or 0.
    pub status: u32,
    /// Its detail; of a run both ways that succeeded the nanoseconds that the server's kernel took.
    pub detail: u64,
    /// Messages received.
    pub messages: u64,
    /// Wrong words found.
    pub wrong: u64,
}

impl Verdict {
    /// Sent when all of a run has arrived and the server begins the next; no verdict.
    pub const READY: Verdict = Verdict {
        status: 0,
        detail: 0x7265_6164_7921,
        messages: 0,
        wrong: 0,
    };

    /// The message.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut m = [0; MESSAGE_BYTES];
        m[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        m[4..8].copy_from_slice(&self.status.to_le_bytes());
        m[8..16].copy_from_slice(&self.detail.to_le_bytes());
        m[16..24].copy_from_slice(&self.messages.to_le_bytes());
        m[24..32].copy_from_slice(&self.wrong.to_le_bytes());
        m
    }

    /// # Errors
    /// When the message is none.
    pub fn decode(m: &[u8; MESSAGE_BYTES]) -> Result<Verdict> {
        if word32(m, 0) != MAGIC {
            bail!(
                "the peer answered with something else than a verdict; the stream is out of step"
            );
        }
        Ok(Verdict {
            status: word32(m, 4),
            detail: word64(m, 8),
            messages: word64(m, 16),
            wrong: word64(m, 24),
        })
    }
}

fn word32(m: &[u8; MESSAGE_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]])
}

fn word64(m: &[u8; MESSAGE_BYTES], at: usize) -> u64 {
    u64::from(word32(m, at)) | u64::from(word32(m, at + 4)) << 32
}

/// Distance between two messages in a buffer: whole pages, so that none shares one with another.
pub fn stride(len: u64) -> u64 {
    len.max(1).next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_malformed_bytes_are_refused() {
        for run in [
            Run::PingPong,
            Run::Bandwidth,
            Run::Rate,
            Run::Many,
            Run::Slots,
            Run::PutPingPong,
            Run::Puts,
            Run::Gets,
            Run::Atomics,
            Run::End,
        ] {
            let plan = Plan {
                run,
                full: true,
                both_ways: run == Run::Puts,
                len: u64::MAX - 3,
                window: 513,
                part: 1 << 30,
                warmup: 7,
                count: u32::MAX,
                timeout_us: 1 << 31,
                seed: 0x0123_4567_89ab_cdef,
            };
            assert_eq!(Plan::decode(&plan.encode()).ok(), Some(plan));
        }
        let verdict = Verdict {
            status: 7,
            detail: 1 << 63,
            messages: 9,
            wrong: u64::MAX,
        };
        assert_eq!(Verdict::decode(&verdict.encode()).ok(), Some(verdict));
        assert!(
            Plan::decode(&[0x47; MESSAGE_BYTES]).is_err()
                && Verdict::decode(&[0; MESSAGE_BYTES]).is_err()
        );
    }
}
