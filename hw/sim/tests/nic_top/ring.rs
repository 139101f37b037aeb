//! A ring of whole `nic_top`s: collectives by their block `ring`, beside sends and receives, under
//! back-pressure, with faults and resets.

use std::collections::VecDeque;

use super::host::{transfer, Host, BASE};
use super::stress::{hold, hold_ring};
use crate::programs::{Job, ALL_REDUCE, OPS, TYPES};
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::LARGE_PAGE_BYTES;
use ringbell_hw_sim::card::{Control, Event, Io};
use ringbell_hw_sim::figure;
use ringbell_hw_sim::ring::{Piece, Report, Step};
use ringbell_hw_sim::stream::BEAT;
use ringbell_nic_abi::{Algorithm, CollectiveKind, Completion, DataType, Opcode, ReduceOp, Status};

/// Cycles of GPU reads and of a link: 0.8 µs at 250 MHz.
const GPU: u64 = 200;
const LINK: u64 = 200;
/// Pieces that a receiver holds beside those on the wire: the 64 KiB of a connection of FpgaNIC's
/// transport (§2.4).
const ROOM: usize = 1024;
/// Bytes of GPU memory that are mapped.
const MAPPED: u64 = 2 * LARGE_PAGE_BYTES;

/// Hosts in a ring, and the links into each, with the cycle from which a piece can be taken.
struct Ring {
    hosts: Vec<Host>,
    links: Vec<VecDeque<(u64, Piece)>>,
    latency: u64,
    /// The link into this rank stands still.
    silent: Option<usize>,
    now: u64,
}

impl Ring {
    fn new(ranks: usize, gpu: u64, latency: u64) -> Ring {
        Ring {
            hosts: (0..ranks).map(|r| Host::with(r as u64 + 1, gpu)).collect(),
            links: vec![VecDeque::new(); ranks],
            latency,
            silent: None,
            now: 0,
        }
    }

    /// Of all cards, and of what lies between them.
    fn reset(&mut self) {
        self.hosts.iter_mut().for_each(Host::reset);
        self.links.iter_mut().for_each(VecDeque::clear);
    }

    /// Clears all blocks `ring`, and begins the links again.
    fn clear(&mut self) {
        for host in &mut self.hosts {
            host.card.ring_clear();
        }
        self.links.iter_mut().for_each(VecDeque::clear);
    }

    /// Lays some collectives into GPU memory, one behind the other, and gives each rank's steps.
    fn place(&mut self, jobs: &mut [Job], base: u64) -> Vec<Vec<Step>> {
        let place = |(rank, host): (usize, &mut Host)| {
            let mut gpu = Vec::new();
            let steps = |job: &mut Job| job.place(rank, &mut gpu, base);
            let steps = jobs.iter_mut().flat_map(steps).collect();
            host.set_gpu(base, &gpu);
            steps
        };
        self.hosts.iter_mut().enumerate().map(place).collect()
    }

    fn start(&mut self, jobs: &mut [Job], base: u64) {
        let steps = self.place(jobs, base);
        for (host, steps) in self.hosts.iter_mut().zip(&steps) {
            host.card.ring_start(steps, jobs[0].dtype.0, jobs[0].op);
        }
    }

    /// A cycle of all, of the links, and of a wire of bytes from each to the next for sends.
    fn cycle(&mut self) {
        let (now, ranks) = (self.now, self.hosts.len());
        for rank in 0..ranks {
            let (host, link) = (&mut self.hosts[rank], &mut self.links[rank]);
            let comes = link.front().is_some_and(|p| p.0 <= now) && self.silent != Some(rank);
            if comes && host.card.ring_backlog() == 0 {
                let (_, piece) = link.pop_front().expect("seen");
                host.card.ring_receive(piece);
            }
            host.cycle();
            let link = &mut self.links[(rank + 1) % ranks];
            if link.len() < ROOM + self.latency as usize {
                let sent = host.card.ring_sent();
                link.extend(sent.map(|piece| (now + self.latency, piece)));
            }
        }
        self.now += 1;
    }

    /// Sends of each host reach the next one.
    fn deliver(&mut self) {
        for rank in 0..self.hosts.len() {
            let next = (rank + 1) % self.hosts.len();
            if let Ok([from, to]) = self.hosts.get_disjoint_mut([rank, next]) {
                to.deliver(from);
            }
        }
    }

    fn reports(&self) -> Vec<Option<Report>> {
        let report = |h: &Host| h.card.ring_report();
        self.hosts.iter().map(report).collect()
    }

    /// Until every rank has reported.
    fn run(&mut self) {
        let limit = self.now + 2_000_000;
        while self.reports().contains(&None) {
            self.cycle();
            assert!(self.now < limit, "no report: {:?}", self.states());
        }
        let all = vec![Some(Report::Done); self.hosts.len()];
        assert_eq!(self.reports(), all);
    }

    fn states(&self) -> Vec<[u64; 4]> {
        self.hosts.iter().map(|h| h.card.ring_state()).collect()
    }

    /// Every rank's destination is that of the Rust simulation, bit for bit.
    fn compare(&self, job: &Job, base: u64) {
        for (rank, (start, wanted)) in job.wanted().into_iter().enumerate() {
            let got = self.hosts[rank].gpu(base + start as u64, wanted.len() as u64);
            assert!(got == wanted, "rank {rank} has other bits");
        }
    }
}

fn all_reduce(rng: &mut Rng, ranks: usize, count: u64) -> Job {
    Job::new(
        rng,
        ALL_REDUCE,
        ranks as u32,
        count,
        TYPES[0],
        ReduceOp::Sum,
    )
}

#[test]
fn programs_of_rings_give_their_bits_under_any_back_pressure() {
    use Algorithm as A;
    use CollectiveKind as K;
    let kinds = [
        ALL_REDUCE,
        (K::ReduceScatter, A::Ring),
        (K::AllGather, A::Ring),
        (K::Broadcast, A::Chain),
    ];
    for ranks in 1..=5 {
        let mut rng = Rng::new(ranks as u64);
        let mut ring = Ring::new(ranks, 1 + rng.below(60), 1 + rng.below(60));
        for round in 0..8 {
            for host in &mut ring.hosts {
                let (seed, waits) = (rng.bits(), [0, 1, 3, 6][round % 4]);
                hold_ring(host, seed, waits);
            }
            // Mostly not of whole beats, at any address; the pages of the second group are
            // scattered.
            let count = [0, 1, 7, 100, 1_000, 9_000][rng.below(6) as usize] + rng.below(40);
            let (dtype, op) = (TYPES[round % 4], OPS[round / 2 % 3]);
            let kind = kinds[(ranks + round) % 4];
            let mut job = Job::new(&mut rng, kind, ranks as u32, count, dtype, op);
            let base = BASE + LARGE_PAGE_BYTES - rng.below(60_000);
            ring.start(std::slice::from_mut(&mut job), base);
            ring.run();
            ring.compare(&job, base);
            // The state table has come to its end.
            for (state, p) in ring.states().iter().zip(&job.programs) {
                assert_eq!(state[2..], [p.steps.len() as u64; 2]);
            }
        }
    }
}

/// A send from each host to the next, and its receive.
struct Transfer {
    from: usize,
    tickets: [u32; 2],
    done: [Option<Completion>; 2],
    to: u64,
    bytes: Vec<u8>,
}

impl Transfer {
    fn post(ring: &mut Ring, rng: &mut Rng, from: usize, most: u64) -> Transfer {
        let next = (from + 1) % ring.hosts.len();
        let len = 1 + rng.below(most) as usize;
        let bytes = rng.bytes(len);
        let (len, conn) = (bytes.len() as u32, rng.below(4) as u32);
        // The last half a group is theirs: each host sends from its first part, and receives into
        // its second.
        let source = BASE + MAPPED - 900_000 + rng.below(100_000);
        let to = BASE + MAPPED - 400_000 + rng.below(100_000);
        ring.hosts[from].set_gpu(source, &bytes);
        let send = transfer(Opcode::Send, conn, source, len);
        let receive = transfer(Opcode::Recv, conn, to, len);
        let tickets = [
            ring.hosts[from].post(&send),
            ring.hosts[next].post(&receive),
        ];
        Transfer {
            from,
            tickets,
            done: [None; 2],
            to,
            bytes,
        }
    }

    /// Whether both have completed; then the bytes are compared.
    fn is_done(&mut self, ring: &mut Ring) -> bool {
        let next = (self.from + 1) % ring.hosts.len();
        for (i, rank) in [self.from, next].into_iter().enumerate() {
            if self.done[i].is_none() {
                self.done[i] = ring.hosts[rank].completion(self.tickets[i]);
            }
        }
        let [Some(sent), Some(received)] = self.done else {
            return false;
        };
        let len = self.bytes.len() as u64;
        for end in [sent, received] {
            assert_eq!((end.status, end.bytes), (Status::Ok, len));
        }
        assert!(ring.hosts[next].gpu(self.to, len) == self.bytes);
        true
    }
}

#[test]
fn sends_and_receives_run_beside_a_collective_and_harm_none() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut ring = Ring::new(3, GPU, LINK);
        for host in &mut ring.hosts {
            hold_ring(host, rng.bits(), seed % 4);
        }
        let mut job = all_reduce(&mut rng, 3, 40_000 + seed);
        ring.start(std::slice::from_mut(&mut job), BASE + 4 * seed);
        let (mut moved, mut under_way) = (0, Transfer::post(&mut ring, &mut rng, 0, 30_000));
        while ring.reports().contains(&None) {
            ring.cycle();
            ring.deliver();
            if under_way.is_done(&mut ring) {
                moved += 1;
                let from = rng.below(3) as usize;
                under_way = Transfer::post(&mut ring, &mut rng, from, 30_000);
            }
        }
        assert!(moved >= 3, "{moved} transfers beside the collective");
        let limit = ring.now + 400_000;
        while !under_way.is_done(&mut ring) {
            ring.cycle();
            ring.deliver();
            assert!(ring.now < limit, "a transfer does not end");
        }
        ring.compare(&job, BASE + 4 * seed);
        for host in &ring.hosts {
            let cycles = host.card.cycles();
            let faults = host.faults.len();
            assert_eq!((cycles.strays, cycles.dropped, faults), (0, 0, 0));
        }
    }
}

/// A NIC that waits for a neighbour, before or in a collective, holds neither its sends nor its
/// receives up.
#[test]
fn a_collective_that_waits_lets_sends_and_receives_pass() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut ring = Ring::new(3, GPU, LINK);
        let mut job = all_reduce(&mut rng, 3, 200_000);
        let steps = ring.place(std::slice::from_mut(&mut job), BASE);
        // The others begin later, or a link stops under way.
        let begin = |ring: &mut Ring, ranks: std::ops::Range<usize>| {
            for rank in ranks {
                let card = &mut ring.hosts[rank].card;
                card.ring_start(&steps[rank], TYPES[0].0, job.op);
            }
        };
        begin(&mut ring, 0..1);
        if seed != 0 {
            begin(&mut ring, 1..3);
            (0..rng.below(20_000)).for_each(|_| ring.cycle());
            ring.silent = Some(rng.below(3) as usize);
        }
        let mut before = Vec::new();
        while before != ring.states() {
            before = ring.states();
            (0..6_000).for_each(|_| ring.cycle());
        }
        assert!(ring.reports().contains(&None));
        for from in [0, 2, 1, 0, 2] {
            let mut one = Transfer::post(&mut ring, &mut rng, from, 100_000);
            let limit = ring.now + 100_000;
            while !one.is_done(&mut ring) {
                ring.cycle();
                ring.deliver();
                assert!(ring.now < limit, "a transfer from {from} does not end");
            }
        }
        ring.silent = None;
        if seed == 0 {
            begin(&mut ring, 1..3);
        }
        ring.run();
        ring.compare(&job, BASE);
    }
}

/// A receive whose segment ends too early is cut in the shared DMA; the collective's writes behind
/// it keep their beats.
#[test]
fn segments_that_end_early_harm_no_collective() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let mut ring = Ring::new(3, GPU, LINK);
        let count = 40_000 + rng.below(100);
        let mut job = all_reduce(&mut rng, 3, count);
        ring.start(std::slice::from_mut(&mut job), BASE);
        let mut cuts = 0;
        while ring.reports().contains(&None) {
            let to = BASE + MAPPED - 400_000;
            let host = &mut ring.hosts[rng.below(3) as usize];
            host.card.post(Io {
                send: false,
                conn: 1,
                va: to,
                len: 9_000,
                some: false,
                tag: 7,
            });
            let (stated, bytes) = (3_000 + rng.below(6_000) as u32, 1 + rng.below(2_000));
            host.card.receive_as(1, stated, vec![0xee; bytes as usize]);
            // Its own events: no descriptor stands behind this receive.
            let faulted = (0..50_000).any(|_| {
                host.card.cycle();
                matches!(host.card.event(), Some(Event::Fault { .. }))
            });
            assert!(faulted, "a cut is reported");
            host.card.control(1, Control::FlushReceives);
            while host.card.event().is_some() {}
            cuts += 1;
            (0..rng.below(1_000)).for_each(|_| ring.cycle());
        }
        assert!(cuts >= 3, "{cuts} cuts beside the collective");
        ring.compare(&job, BASE);
    }
}

#[test]
fn an_address_that_faults_ends_the_collective_and_clearing_mends_it() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut ring = Ring::new(3, GPU, 1 + rng.below(300));
        for host in &mut ring.hosts {
            hold(host, rng.bits(), seed % 5);
        }
        let count = 9_000 + rng.below(9_000);
        let mut job = all_reduce(&mut rng, 3, count);
        let mut steps = ring.place(std::slice::from_mut(&mut job), BASE);
        // One read or write of rank 1 runs over the end of what is mapped.
        let inside = rng.below(4_000);
        let hit = |s: &&mut Step| {
            if seed % 2 == 0 {
                s.read.is_some()
            } else {
                s.write.is_some()
            }
        };
        let all: Vec<&mut Step> = steps[1].iter_mut().filter(hit).collect();
        let count = all.len() as u64;
        let step = all.into_iter().nth(rng.below(count) as usize);
        let step = step.expect("all-reduce reads and writes");
        let va = BASE + MAPPED - inside;
        match seed % 2 {
            0 => step.read = Some(va),
            _ => step.write = Some(va),
        }
        for (host, steps) in ring.hosts.iter_mut().zip(&steps) {
            host.card.ring_start(steps, TYPES[0].0, job.op);
        }
        let limit = ring.now + 400_000;
        while ring.reports()[1].is_none() {
            ring.cycle();
            assert!(ring.now < limit, "no report");
        }
        assert_eq!(ring.reports()[1], Some(Report::Fault(BASE + MAPPED)));
        // The direct model goes on beside the broken collective.
        let mut one = Transfer::post(&mut ring, &mut rng, 1, 20_000);
        let limit = ring.now + 400_000;
        while !one.is_done(&mut ring) {
            ring.cycle();
            ring.deliver();
            assert!(ring.now < limit, "a transfer does not end");
        }
        ring.clear();
        let mut again = all_reduce(&mut rng, 3, 3_000);
        ring.start(std::slice::from_mut(&mut again), BASE);
        ring.run();
        ring.compare(&again, BASE);
    }
}

#[test]
fn a_collective_can_be_cleared_or_reset_at_any_cycle() {
    let mut rng = Rng::new(21);
    let mut ring = Ring::new(3, 40, 30);
    for round in 0..24 {
        for host in &mut ring.hosts {
            hold(host, rng.bits(), rng.below(6));
        }
        let count = rng.below(12_000);
        let mut job = all_reduce(&mut rng, 3, count);
        if round % 6 == 5 {
            // A type that `reduce` does not have ends it as well.
            job.dtype.0 = DataType::F64;
        }
        ring.start(std::slice::from_mut(&mut job), BASE + rng.below(64));
        for _ in 0..rng.below(3_000) {
            ring.cycle();
        }
        for host in &mut ring.hosts {
            hold(host, rng.bits(), rng.below(6));
        }
        match round % 3 {
            0 => ring.reset(),
            _ => ring.clear(),
        }
        let count = 100 + rng.below(900);
        let mut again = all_reduce(&mut rng, 3, count);
        ring.start(std::slice::from_mut(&mut again), BASE + 3);
        ring.run();
        ring.compare(&again, BASE + 3);
    }
}

/// An all-reduce in parts of so many sixteenths, one behind the other. Its cycles, and those in
/// which a link at one beat a cycle carries its bytes.
fn timed(ring: &mut Ring, bytes: u64, parts: &[u64]) -> (u64, u64) {
    let mut rng = Rng::new(2);
    let ranks = ring.hosts.len();
    let job = |part: &u64| {
        let mut job = all_reduce(&mut rng, ranks, bytes / 4 * part / 16);
        // 4 MiB are all that is mapped.
        job.in_place = true;
        job
    };
    let mut jobs: Vec<Job> = parts.iter().map(job).collect();
    let steps = ring.place(&mut jobs, BASE);
    for (host, steps) in ring.hosts.iter_mut().zip(&steps) {
        host.card.ring_start(steps, TYPES[0].0, ReduceOp::Sum);
    }
    let start = ring.now;
    ring.run();
    jobs.iter().for_each(|job| ring.compare(job, BASE));
    let beats = bytes / ranks as u64 / BEAT as u64;
    (ring.now - start, 2 * (ranks as u64 - 1) * beats)
}

/// In one part Table 8 uses no network in two of its 2 N columns.
#[test]
fn a_ring_reaches_the_bandwidth_of_its_links() {
    for (ranks, sets) in [
        (4, [&[16][..], &[1, 2, 2, 2, 2, 2, 2, 2, 1]]),
        (8, [&[16], &[2, 6, 6, 2]]),
    ] {
        let mut ring = Ring::new(ranks, GPU, LINK);
        for (parts, least) in sets.into_iter().zip([74.0, 95.0]) {
            let (cycles, ideal) = timed(&mut ring, 1 << 20, parts);
            let share = 100.0 * ideal as f64 / cycles as f64;
            let count = parts.len();
            println!("all-reduce of 1 MiB by {ranks} in {count}: {cycles} cycles, {share:.1}% of the bus bandwidth");
            assert!(share >= least);
        }
    }
}

#[test]
fn figure_7() {
    let mut rows = String::new();
    let mut ring = Ring::new(8, GPU, LINK);
    let both = [("in one part", &[16][..]), ("in four parts", &[2, 6, 6, 2])];
    for kib in [16, 64, 256, 1_024, 4_096] {
        // The longest in one form: it takes a third of the test's time.
        for (series, parts) in both.into_iter().skip(usize::from(kib > 1_024)) {
            let (cycles, ideal) = timed(&mut ring, kib << 10, parts);
            assert!(cycles >= ideal, "more than the link carries");
            let size = kib << 10;
            rows.push_str(&format!("{size}\t{size}\t{cycles}\t{series}\n"));
        }
    }
    print!("{rows}");
    figure::record("fig7.tsv", &rows);
}
