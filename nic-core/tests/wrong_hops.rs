//! Wrong hardware addresses, in virtual time: from one damaged answer of ARP, or from a forged
//! announcement. Sessions go on as soon as the address has been asked for again.

use crate::transport_support;

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use ringbell_nic_core::port::mem::mac_of;
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use ringbell_nic_core::transport::rdma::RdmaTransport;
use ringbell_nic_core::transport::tcp::TcpTransport;
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::TransportEvent;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::control::{Arp, ARP_FRAME};
use transport_support::{random, wire, Flow, Opened, PairOf, IP_A, IP_B, MINUTE, PORT};

const SECOND: u64 = 1_000_000_000;
/// Far less than the 30 s after which an address that nothing confirms is asked for again.
const SOON: u64 = 5 * SECOND;
/// Nobody's.
const WRONG: MacAddr = MacAddr([0x02, 0, 0, 0, 0xbe, 0xef]);

/// What is still to happen to one side's ARP.
#[derive(Debug, Default)]
struct Plan {
    /// Answers whose address is to be damaged.
    damage: AtomicU32,
    /// Announcements of the peer's address, as wrong, to be made up.
    forge: AtomicU32,
}

fn take(count: &AtomicU32) -> bool {
    let left = count.load(Ordering::Relaxed);
    count.store(left.saturating_sub(1), Ordering::Relaxed);
    left > 0
}

/// A port at which ARP says something wrong.
struct Misled {
    port: Box<dyn Port>,
    plan: Arc<Plan>,
    /// The frame in its place.
    frame: Vec<u8>,
}

impl Port for Misled {
    fn describe(&self) -> String {
        self.port.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        if take(&self.plan.forge) {
            let announced = Arp {
                request: false,
                sender_mac: WRONG,
                sender_ip: IP_B,
                target_mac: mac_of(0),
                target_ip: IP_A,
            };
            self.frame.resize(ARP_FRAME, 0);
            announced.emit(&mut self.frame);
            return Some(Arrived::Frame(&self.frame));
        }
        let Arrived::Frame(frame) = self.port.receive(now)? else {
            unreachable!("the port carries frames");
        };
        match Arp::parse(frame) {
            Some(arp) if !arp.request && take(&self.plan.damage) => {
                self.frame = frame.to_vec();
                let len = Arp {
                    sender_mac: WRONG,
                    ..arp
                }
                .emit(&mut self.frame);
                Some(Arrived::Frame(&self.frame[..len]))
            }
            _ => Some(Arrived::Frame(frame)),
        }
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.port.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        self.port.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.port.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Two NICs, and the plan of the first one's ARP.
fn pair<T: Opened>(config: fn(u64) -> T::Config) -> (PairOf<T>, Arc<Plan>) {
    let (port, b) = wire(1_500, Checksums::Software);
    let plan = Arc::new(Plan::default());
    let a = Misled {
        port,
        plan: plan.clone(),
        frame: Vec::new(),
    };
    let pair = PairOf::with((Box::new(a), b), config(1), config(2));
    (pair, plan)
}

/// The only answer to the first request gives an address that is nobody's.
fn connects_soon<T: Opened>(config: fn(u64) -> T::Config) {
    let (mut p, plan) = pair::<T>(config);
    plan.damage.store(1, Ordering::Relaxed);
    p.listen(PORT);
    let (to, deadline) = (SocketAddrV4::new(IP_B, PORT), NicTime(p.now.0 + MINUTE));
    let a = p.a.transport.connect(p.now, to, deadline);
    let a = a.unwrap(); // on the same network
    p.until(SOON, |p| p.a.has(TransportEvent::Connected { conn: a }));
    assert_eq!(plan.damage.load(Ordering::Relaxed), 0);
    let b = p.until(SECOND, |p| p.b.incoming());
    p.transfer((a, b), random(3, 50_000), 3, SOON);
}

/// The announcement comes in the middle of a stream from a (`back`: to a).
fn a_stream_goes_on<T: Opened>(config: fn(u64) -> T::Config, back: bool) {
    let (mut p, plan) = pair::<T>(config);
    let (a, b) = p.connect(PORT);
    let mut flow = match back {
        false => Flow::new(&mut p.a, &mut p.b, (a, b), 3_000_000, 5),
        true => Flow::new(&mut p.b, &mut p.a, (b, a), 3_000_000, 5),
    };
    let mut ticks = 0;
    p.until(SOON, |p| {
        ticks += 1;
        if ticks == 20 {
            plan.forge.store(1, Ordering::Relaxed);
        }
        let done = match back {
            false => flow.drive(&mut p.a, &mut p.b),
            true => flow.drive(&mut p.b, &mut p.a),
        };
        done.then_some(())
    });
    assert!(ticks > 20 && plan.forge.load(Ordering::Relaxed) == 0);
    match back {
        false => flow.check(&p.a, &p.b),
        true => flow.check(&p.b, &p.a),
    }
}

fn rdma(seed: u64) -> <RdmaTransport as Opened>::Config {
    transport_support::rdma::config(seed)
}

fn tcp(seed: u64) -> <TcpTransport as Opened>::Config {
    transport_support::config([IP_A, IP_B][seed as usize - 1])
}

fn udp(seed: u64) -> UdpConfig {
    UdpConfig {
        seed,
        ..UdpConfig::default()
    }
}

#[test]
fn a_connection_whose_first_answer_was_damaged_is_made_soon() {
    connects_soon::<RdmaTransport>(rdma);
    connects_soon::<TcpTransport>(tcp);
    connects_soon::<UdpTransport>(udp);
}

/// Transport `udp` repeats nothing: a lost message ends its session (ADR 49).
#[test]
fn a_stream_whose_peers_address_was_forged_goes_on() {
    for back in [false, true] {
        a_stream_goes_on::<RdmaTransport>(rdma, back);
        a_stream_goes_on::<TcpTransport>(tcp, back);
    }
}
