//! Hosts that report that no process receives there, and peers that are merely stopped.

use crate::transport_support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::mem::{MemPort, MemSwitch};
use ringbell_nic_core::port::{
    Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters, RefusedBy,
};
use ringbell_nic_core::transport::{Transport as _, TransportEvent};
use ringbell_nic_core::types::NicTime;
use transport_support::*;

const SECOND: u64 = 1_000_000_000;

/// A port that reports every frame as refused, while `refuse` is set.
struct Refusing {
    port: MemPort,
    refuse: Arc<AtomicBool>,
    dst: MacAddr,
    refused: Option<RefusedBy>,
}

impl Port for Refusing {
    fn describe(&self) -> String {
        self.port.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.port.receive(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.dst = dst;
        self.port.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        if self.refuse.load(Ordering::Relaxed) {
            self.refused = Some(RefusedBy::Link(self.dst));
        }
        self.port.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.port.flush(now);
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.refused.take()
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

fn pair() -> (Pair, Arc<AtomicBool>) {
    let sw = MemSwitch::private(2, 1500, Checksums::Software).unwrap(); // numbers in range
    let refuse = Arc::new(AtomicBool::new(false));
    let a = Refusing {
        port: sw.port(0).unwrap(), // a free port
        refuse: refuse.clone(),
        dst: MacAddr::default(),
        refused: None,
    };
    let ports: (Box<dyn Port>, Box<dyn Port>) = (Box::new(a), Box::new(sw.port(1).unwrap())); // a free port
    let mut p = Pair::with(ports, config(IP_A), config(IP_B));
    p.listen(PORT);
    (p, refuse)
}

/// Steps a alone for this long, or until it reports a reset. Returns the time of that.
fn alone(p: &mut Pair, time: u64) -> Option<u64> {
    let start = p.now.0;
    while p.now.0 < start + time {
        p.a.step(p.now);
        if p.a
            .events
            .iter()
            .any(|e| matches!(e, TransportEvent::Reset { .. }))
        {
            return Some(p.now.0 - start);
        }
        p.now.0 += 10_000_000;
    }
    None
}

#[test]
fn an_idle_peer_that_has_ended_is_detected_within_three_seconds_if_watched() {
    let (mut p, refuse) = pair();
    let (a, _) = p.connect(PORT);
    p.a.transport.watch(a);
    let buf = p.a.dma.region(vec![0; 8]);
    p.a.recv(a, 1, buf, false);
    p.run(10 * SECOND);
    assert!(p.a.events.is_empty(), "a peer that lives answers");
    refuse.store(true, Ordering::Relaxed);
    let noticed = alone(&mut p, 100 * SECOND).expect("noticed");
    assert!(noticed <= 3 * SECOND, "{noticed} ns");
    assert_eq!(p.a.received(1), Some((Status::ConnectionReset, 0)));

    // One that is not watched is not probed.
    let (mut p, refuse) = pair();
    p.connect(PORT);
    refuse.store(true, Ordering::Relaxed);
    assert_eq!(alone(&mut p, 100 * SECOND), None);
}

#[test]
fn a_peer_that_is_only_stopped_is_not_given_up() {
    let (mut p, _) = pair();
    let (a, b) = p.connect(PORT);
    p.a.transport.watch(a);
    assert_eq!(alone(&mut p, 60 * SECOND), None);
    p.transfer((a, b), random(1, 10_000), 1, MINUTE);
}

#[test]
fn refusals_do_not_end_a_connection_whose_peer_answers() {
    let (mut p, refuse) = pair();
    let (a, b) = p.connect(PORT);
    p.a.transport.watch(a);
    refuse.store(true, Ordering::Relaxed);
    p.run(60 * SECOND);
    p.transfer((a, b), random(1, 1 << 20), 1, MINUTE);
    assert!(p.a.events.is_empty() && p.b.events.is_empty());
}
