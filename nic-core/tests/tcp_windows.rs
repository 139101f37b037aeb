//! Windows that close and open, full ports, and the timers that smoltcp then loses.

use crate::transport_support;

use std::time::Duration;

use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::types::{Buffer, NicTime};
use transport_support::*;

/// A cable of 100 µs, so that bytes are under way when a window closes.
fn cable(sw: &MemSwitch, i: usize, loss: f64) -> Box<dyn Port> {
    let faults = Faults {
        delay: Duration::from_micros(100),
        loss,
        seed: i as u64 + 1,
        ..Faults::default()
    };
    Box::new(Impair::new(Box::new(sw.port(i).unwrap()), faults).unwrap()) // free ports, faults in range
}

fn sized(ip: std::net::Ipv4Addr, rx: usize, tx: usize) -> TcpConfig {
    let mut c = config(ip);
    (c.rx_buffer, c.tx_buffer) = (rx, tx);
    c
}

/// The last bytes that a sender has are those that the window's scaled edge moved back over: no
/// later byte shows the gap, and only a retransmission brings them.
fn last_bytes_over_the_edge(keep_alive: Option<Duration>) {
    for (capacity, starts) in [
        (100_000, 0..2),
        (128 << 10, 0..3),
        (256 << 10, 0..9),
        (1 << 20, 3..5),
    ] {
        for start in starts {
            let sw = MemSwitch::private(2, 1500, Checksums::Software).unwrap(); // numbers in range
            let end = |ip| {
                let mut c = sized(ip, capacity, 4 << 20);
                c.keep_alive = keep_alive;
                c
            };
            let ports = (cable(&sw, 0, 0.0), cable(&sw, 1, 0.0));
            let mut p = Pair::with(ports, end(IP_A), end(IP_B));
            p.listen(PORT);
            let (a, b) = p.connect(PORT);
            // An odd start makes the scaled steps of the window miss its edge.
            p.transfer((a, b), random(9, 1 + start), 9, MINUTE);
            for less in 0..9 {
                let n = capacity - less;
                let src = p.a.dma.region(random(less as u64, n));
                p.a.send(a, 1, src);
                // The window closes, or nearly.
                p.run(50_000_000);
                assert_eq!(p.a.sent(1), Some((Status::Ok, n as u64)));
                let dst = p.b.dma.region(vec![0; n]);
                p.b.recv(b, 2, dst, false);
                let got = p.until(2 * MINUTE, |p| p.b.received(2));
                assert_eq!(got, (Status::Ok, n as u64));
                assert!(p.b.dma.bytes(dst) == p.a.dma.bytes(src), "bytes differ");
                p.a.dma.regions[src.region as usize] = Vec::new();
                p.b.dma.regions[dst.region as usize] = Vec::new();
            }
        }
    }
}

#[test]
fn last_bytes_over_the_edge_of_a_shrunken_window_arrive() {
    last_bytes_over_the_edge(None);
}

/// A keep-alive probe carries a byte that is not the stream's: it must not be sent while bytes are
/// under way, whose place it would take.
#[test]
fn keep_alive_probes_take_no_byte_s_place() {
    last_bytes_over_the_edge(Some(Duration::from_millis(40)));
}

/// A port that has no room most of the time.
struct Full {
    port: Box<dyn Port>,
    rng: Rng,
    /// How often it refuses before it has room again.
    refuse: u64,
}

impl Port for Full {
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
        if self.refuse > 0 {
            self.refuse -= 1;
            return None;
        }
        self.port.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        self.refuse = self.rng.below(4);
        self.port.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.port.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// A retransmission that finds no room in the port is not forgotten. The receiver lags, so that the
/// window is full when bytes are lost, and no new segment would start a timer.
#[test]
fn retransmissions_wait_for_room_in_the_port() {
    for seed in 0..10 {
        let sw = MemSwitch::private(2, 1500, Checksums::Software).unwrap(); // numbers in range
        let full = |i| -> Box<dyn Port> {
            Box::new(Full {
                port: cable(&sw, i, 0.01),
                rng: Rng(seed * 2 + i as u64 + 1),
                refuse: 0,
            })
        };
        let ends = [IP_A, IP_B].map(|ip| sized(ip, 128 << 10, 128 << 10));
        let [a, b] = ends;
        let mut p = Pair::with((full(0), full(1)), a, b);
        p.listen(PORT);
        let (a, b) = p.connect(PORT);
        let n = 3 << 20;
        let src = p.a.dma.region(random(seed, n));
        let dst = p.b.dma.region(vec![0; n]);
        p.a.send(a, 1, src);
        let mut rng = Rng(seed);
        let mut at = 0;
        while at < n {
            let len = ((1 + rng.below(60_000)) as usize).min(n - at);
            let part = Buffer {
                va: GpuVa(at as u64),
                len: len as u32,
                ..dst
            };
            p.run(rng.below(2_000_000));
            p.b.recv(b, 2, part, false);
            let got = p.until(60 * MINUTE, |p| p.b.received(2));
            assert_eq!(got, (Status::Ok, len as u64), "seed {seed}, byte {at}");
            at += len;
        }
        assert!(p.b.dma.bytes(dst) == p.a.dma.bytes(src), "bytes differ");
        // Reminding is the remedy of another ill; here nothing is forgotten.
        assert_eq!(p.a.transport.counters().restarted, 0, "seed {seed}");
    }
}
