//! What the network must do with batches of RoCEv2 packets over every port, of frames or of
//! datagrams.
#![allow(unsafe_code)] // Spans of memory: the tests' own buffers outlive their batches.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::{
    Datagrams, Headers, Network, Packet, Protocol, Refused, Resolved, Waiter,
};
use ringbell_nic_core::port::{Batch, Port, PortCounters};
use ringbell_nic_core::transport::{deliver, PacketTransport, Takers, Then};
use ringbell_nic_core::types::NicTime;

use super::{Link, PATIENCE};
use crate::transport_support::{MockDma, Rng};

/// A transport of RoCEv2 that keeps what it is given.
#[derive(Default)]
pub struct Taker {
    pub got: Vec<(SocketAddr, u8, Vec<u8>)>,
    pub refused: Vec<Refused>,
}

impl PacketTransport for Taker {
    fn receive(&mut self, _: NicTime, packet: &Packet<'_>, _: &mut Datapath<'_>) -> Then {
        if let Headers::Udp(d) = &packet.headers {
            assert_eq!(d.fragment, 0x0000_4000, "identification 0, DF");
            let bytes = packet.frame[d.payload_at..d.end].to_vec();
            self.got.push((d.src, d.ecn, bytes));
        }
        Then::Next
    }
    fn resolved(&mut self, _: usize, _: Resolved) {}
    fn refused(&mut self, _: NicTime, by: Refused, _: &Network) {
        self.refused.push(by);
    }
}

/// The addresses of two NICs.
const NAMES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// Two networks that reach each other, each with one port.
pub struct Wired {
    pub nets: [Network; 2],
    /// Where packets for each are sent to.
    pub at: [SocketAddr; 2],
    /// The hop from each to the other one.
    pub hops: [usize; 2],
    pub takers: [Taker; 2],
    pub now: NicTime,
    pub segmented: bool,
    /// A sender without room is told so.
    lossless: bool,
    _keep: Box<dyn std::any::Any>,
}

impl Wired {
    /// Over two ports of frames, once ARP has found the addresses.
    pub fn frames(link: Link) -> Wired {
        let at = NAMES.map(|ip| SocketAddr::from((ip, ROCE_UDP_PORT)));
        let mut wired = Wired::new(link.ports, at, link.keep);
        wired.lossless = link.lossless;
        wired
    }

    /// Over two ports of datagrams.
    pub fn datagrams<P: Port + 'static>(ports: [P; 2], keep: Box<dyn std::any::Any>) -> Wired {
        let ports = ports.map(|port| Box::new(port) as Box<dyn Port>);
        let at = ports.each_ref().map(|port| {
            let local = port.capabilities().medium.local();
            local.expect("a port of datagrams")
        });
        Wired::new(ports, at, keep)
    }

    fn new(ports: [Box<dyn Port>; 2], at: [SocketAddr; 2], keep: Box<dyn std::any::Any>) -> Wired {
        let mut n = 0;
        let nets = ports.map(|port| {
            n += 1;
            let net = Network::new(NAMES[n - 1], 24, vec![port], &[]);
            let mut net = net.expect("a host's address");
            net.know_host(NAMES[2 - n], at[2 - n]);
            net
        });
        let mut wired = Wired {
            nets,
            at,
            hops: [0; 2],
            takers: Default::default(),
            now: NicTime(1_000_000),
            segmented: true,
            lossless: false,
            _keep: keep,
        };
        let waiter = Waiter {
            protocol: Protocol::Roce,
            index: 0,
        };
        for from in [0, 1] {
            let (to, now) = (NAMES[1 - from], wired.now);
            let net = &mut wired.nets[from];
            let hop = net.hop_to(Protocol::Roce, to, None, now).expect("a route");
            if net.link(hop).is_none() {
                net.wait(hop, waiter, now);
            }
            wired.hops[from] = hop;
        }
        let end = Instant::now() + PATIENCE;
        while [0, 1]
            .iter()
            .any(|&i| wired.nets[i].link(wired.hops[i]).is_none())
        {
            assert!(Instant::now() < end, "no answer to ARP");
            wired.now.0 += 20_000_000;
            wired.step();
            std::thread::sleep(Duration::from_micros(200));
        }
        wired
    }

    /// Takes at both ends what has arrived, and sends what waits.
    pub fn step(&mut self) {
        self.now.0 += 1_000;
        for (net, taker) in self.nets.iter_mut().zip(&mut self.takers) {
            let takers: &mut Takers<'_> = &mut [None, Some(taker), None, None];
            let memory = &mut MockDma::default();
            deliver(
                self.now,
                net,
                takers,
                &mut Datapath::without_engines(memory),
            );
            net.flush(self.now);
        }
    }

    pub fn longest(&mut self, from: usize) -> usize {
        let net = &mut self.nets[from];
        let port = net.port_of(self.hops[from]);
        net.payload_to(port, NAMES[1 - from])
    }

    pub fn counters(&self, of: usize) -> PortCounters {
        self.nets[of].ports()[0].counters()
    }

    /// Sends what a batch still holds. Returns how much was taken.
    pub fn send(&mut self, from: usize, ecn: u8, batch: &Batch, at: usize) -> usize {
        let how = Datagrams {
            ecn,
            segmented: self.segmented,
        };
        self.now.0 += 1_000;
        let net = &mut self.nets[from];
        // Tests move it.
        net.know_host(NAMES[1 - from], self.at[1 - from]);
        let link = net.link(self.hops[from]).expect("a known link");
        let flow = net.flow(link.port, 50_000, NAMES[1 - from]);
        net.send(self.now, link, &flow, &how, batch, at)
    }

    /// Sends a batch whole, and gives what has arrived of `count` packets.
    #[track_caller]
    pub fn carry(&mut self, from: usize, ecn: u8, batch: &Batch, count: usize) -> Vec<Vec<u8>> {
        let end = Instant::now() + PATIENCE;
        let mut sent = 0;
        let taker = 1 - from;
        while sent < batch.len() || self.takers[taker].got.len() < count {
            sent += self.send(from, ecn, batch, sent);
            self.step();
            let got = self.takers[taker].got.len();
            assert!(Instant::now() < end, "{got} of {count}");
        }
        // Nothing comes twice.
        self.step();
        let net = &self.nets[from];
        let port = net.port_of(self.hops[from]);
        let source = net.flow(port, 50_000, NAMES[1 - from]).from;
        let got = std::mem::take(&mut self.takers[taker].got);
        assert_eq!(got.len(), count);
        let taken = got.into_iter().map(|(src, bits, bytes)| {
            assert_eq!((src, bits), (source, ecn), "source and ECN bits");
            bytes
        });
        taken.collect()
    }
}

/// A packet with this content, in random pieces of own bytes and of `memory`.
fn put(batch: &mut Batch, memory: &[u8], len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut whole = Vec::new();
    while whole.len() < len {
        let rest = len - whole.len();
        let n = match rng.below(4) {
            0 => 0,
            1 => rest,
            _ => rng.below(rest as u64 + 1) as usize,
        };
        let at = rng.below((memory.len() - n) as u64 + 1) as usize;
        let span = &memory[at..at + n];
        match rng.below(2) {
            0 => batch.put(span),
            // SAFETY: the memory outlives the batch.
            _ => unsafe { batch.memory(span.as_ptr(), n) },
        }
        whole.extend_from_slice(span);
    }
    batch.end();
    whole
}

fn memory() -> Vec<u8> {
    let mut memory = vec![0; 1 << 17];
    Rng(77).fill(&mut memory);
    memory
}

pub fn packets_of_any_pieces_arrive_whole_and_in_order(mut w: Wired) {
    let (memory, mut rng, mut batch) = (memory(), Rng(3), Batch::new());
    for round in 0..60 {
        let (from, longest) = (round % 2, w.longest(round % 2));
        batch.clear();
        let mut sent = Vec::new();
        // Runs of one size with a shorter last packet, as messages are cut, between packets of any
        // size.
        while batch.len() < 24 {
            let size = 1 + rng.below(longest as u64) as usize;
            for _ in 0..rng.below(6) {
                sent.push(put(&mut batch, &memory, size, &mut rng));
            }
            let last = 1 + rng.below(size as u64) as usize;
            sent.push(put(&mut batch, &memory, last, &mut rng));
        }
        // Few bytes at a time: a link that may lose packets loses none of these.
        let got = w.carry(from, 2, &batch, sent.len());
        assert!(got == sent, "round {round}");
    }
}

pub fn the_longest_and_the_shortest_packets_arrive_and_longer_ones_are_counted(mut w: Wired) {
    let (memory, mut rng, mut batch) = (memory(), Rng(4), Batch::new());
    let longest = w.longest(0);
    let before = w.counters(0);
    let mut sent = Vec::new();
    for len in [1, longest, 1, longest + 1, 70_000, longest, 12] {
        let bytes = put(&mut batch, &memory, len, &mut rng);
        if len <= longest {
            sent.push(bytes);
        }
    }
    assert!(w.carry(0, 0, &batch, sent.len()) == sent);
    let after = w.counters(0);
    assert_eq!(after.tx_dropped - before.tx_dropped, 2);
    assert_eq!(after.tx_frames - before.tx_frames, sent.len() as u64);
}

pub fn a_packet_in_more_pieces_than_the_kernel_takes_arrives(mut w: Wired) {
    let (memory, mut batch) = (memory(), Batch::new());
    let len = w.longest(0).min(3_000);
    let mut sent = Vec::new();
    for n in 0..4 {
        let mut whole = Vec::new();
        for i in 0..len {
            // Not side by side, or they would be one piece.
            let span = &memory[n + i * 2..][..1];
            // SAFETY: the memory outlives the batch.
            unsafe { batch.memory(span.as_ptr(), 1) };
            whole.extend_from_slice(span);
        }
        batch.end();
        sent.push(whole);
    }
    assert!(w.carry(0, 0, &batch, 4) == sent);
}

pub fn the_ecn_bits_arrive(mut w: Wired) {
    let mut batch = Batch::new();
    let mut rng = Rng(5);
    for ecn in [0, 1, 2, 3, 0] {
        batch.clear();
        let sent: Vec<_> = (0..3)
            .map(|_| put(&mut batch, &[9; 300], 300, &mut rng))
            .collect();
        assert!(w.carry(0, ecn, &batch, 3) == sent);
    }
}

pub fn a_batch_without_room_goes_on_where_it_stopped(mut w: Wired) {
    let mut batch = Batch::new();
    let mut total = 0_u32;
    let mut stopped = false;
    for _ in 0..20 {
        batch.clear();
        for _ in 0..100 {
            batch.put(&total.to_be_bytes());
            batch.put(&[0; 60]);
            batch.end();
            total += 1;
        }
        let mut sent = 0;
        while sent < batch.len() {
            let n = w.send(0, 0, &batch, sent);
            stopped |= sent + n < batch.len();
            sent += n;
            if sent < batch.len() || !w.lossless {
                w.step();
            }
        }
    }
    let end = Instant::now() + PATIENCE;
    while w.takers[1].got.len() < total as usize {
        assert!(Instant::now() < end, "{} of {total}", w.takers[1].got.len());
        w.step();
    }
    assert!(stopped || !w.lossless, "a ring is finite");
    let numbers = w.takers[1].got.iter().map(|g| {
        let b = &g.2;
        u32::from_be_bytes([b[0], b[1], b[2], b[3]])
    });
    assert!(numbers.eq(0..total));
}

/// A test for each rule and each pair of networks.
macro_rules! packet_conformance {
    ($($name:ident => $link:expr,)*) => { $(
        mod $name {
            packet_conformance! { @rules $link;
                packets_of_any_pieces_arrive_whole_and_in_order,
                the_longest_and_the_shortest_packets_arrive_and_longer_ones_are_counted,
                a_packet_in_more_pieces_than_the_kernel_takes_arrives,
                the_ecn_bits_arrive,
                a_batch_without_room_goes_on_where_it_stopped,
            }
        }
    )* };
    (@rules $link:expr; $($rule:ident,)*) => { $(
        #[test]
        fn $rule() {
            if let Some(wired) = $link() {
                crate::port_rules::packets::$rule(wired);
            }
        }
    )* };
}
