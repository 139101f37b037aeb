//! A wire that can be cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_nic_core::port::{Arrived, Capabilities, MacAddr, Port, PortCounters};
use ringbell_nic_core::types::NicTime;

/// A port that carries nothing any more once it is cut.
pub(super) struct Severable {
    inner: Box<dyn Port>,
    cut: Arc<AtomicBool>,
    /// Where frames are written after the cut.
    nowhere: Vec<u8>,
}

impl Severable {
    /// The port, and what cuts it.
    pub(super) fn new(inner: Box<dyn Port>) -> (Severable, Arc<AtomicBool>) {
        let cut = Arc::new(AtomicBool::new(false));
        let nowhere = vec![0; inner.capabilities().mtu + 18];
        let port = Severable {
            inner,
            cut: cut.clone(),
            nowhere,
        };
        (port, cut)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

impl Port for Severable {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        if self.is_cut() {
            while self.inner.receive(now).is_some() {}
            return None;
        }
        self.inner.receive(now)
    }
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        match self.is_cut() {
            true => Some(&mut self.nowhere),
            false => self.inner.tx_frame(now, dst),
        }
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        if !self.is_cut() {
            self.inner.tx_commit(now, len);
        }
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
    fn flush(&mut self, now: NicTime) {
        self.inner.flush(now);
    }
    fn next_timer(&self) -> Option<NicTime> {
        self.inner.next_timer()
    }
}
