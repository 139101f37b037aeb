//! The end of a NIC, by its last handle or by name.
#![allow(clippy::disallowed_methods)] // It waits, with a deadline on the host's clock.

use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Inner;
use crate::command::Undelivered;
use crate::config::ProgressMode;

/// Most steps that a NIC makes to send its last packets.
const LAST_STEPS: u32 = 64;
/// Time between two steps that moved nothing, while peers are waited for.
const PAUSE: Duration = Duration::from_micros(50);

impl Inner {
    /// Ends the NIC; only the first call does.
    pub(super) fn end(&self) -> Vec<Undelivered> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *ended, true) {
            return Vec::new();
        }
        // Release: pairs with the Acquire loads in the thread bodies.
        self.progress.stop.store(true, Ordering::Release);
        self.progress.kick();
        if let Ok(mut thread) = self.thread.lock() {
            if let Some(t) = thread.take() {
                t.thread().unpark();
                let _ = t.join();
            }
        }
        // A program that steps the NIC itself may also step its peers: then waiting here could
        // never succeed.
        if self.config.progress != ProgressMode::Manual && !self.config.linger.is_zero() {
            let deadline = Instant::now() + self.config.linger;
            self.progress.with_core(|core| core.begin_end());
            while self.progress.with_core(|core| core.is_lingering()) && Instant::now() < deadline {
                if self.progress.try_step() != Some(true) {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        let lost = self.progress.with_core(|core| core.finish_end());
        // Peers learn of it by what these steps send (what is left to send, ends, resets), or by
        // the closed sockets.
        for _ in 0..LAST_STEPS {
            if self.progress.try_step() != Some(true) {
                break;
            }
        }
        // A queue may outlive the NIC (its descriptors retire with SHUTTING_DOWN); the addresses
        // and ports that the transports hold must not.
        self.progress.with_core(|core| {
            core.streams.transports.clear();
            core.streams.network.close();
        });
        lost
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What is lost was logged.
        self.end();
    }
}
