//! Streamed collectives of one communicator on ports of their own: posted in another order on every
//! rank, and side by side.

use crate::collective_streamed::settings;
use crate::collective_support::{Call, Ring, Rng, Wire, World};

use ringbell_nic_abi::collective::{COMM_ENDED, RANK_ABSENT};
use ringbell_nic_abi::kernel_stream::STATE_AT;
use ringbell_nic_abi::{CollectiveKind as K, Completion, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::QueueConfig;

const RINGS: u64 = 12 << 20;

/// One collective, with what every rank pushes.
struct Channel {
    call: Call,
    pushed: Vec<Vec<u32>>,
}

impl Channel {
    fn new(kind: K, port: u32, root: usize, count: usize, ranks: usize, rng: &mut Rng) -> Channel {
        let call = Call::new(kind, count as u64).of(DataType::U32, ReduceOp::Sum);
        let mut numbers = |n: usize| (0..n).map(|_| rng.next() as u32).collect();
        let pushed = (0..ranks).map(|r| match (kind, r == root) {
            (K::Broadcast | K::Scatter, false) => Vec::new(),
            (K::Scatter, true) => numbers(count * ranks),
            _ => numbers(count),
        });
        Channel {
            pushed: pushed.collect(),
            call: call.root(root as u32).tag(port).streamed(),
        }
    }

    /// What a rank must get.
    fn wanted(&self, rank: usize) -> Vec<u32> {
        let (root, count) = (self.call.root as usize, self.call.count as usize);
        let sums = || {
            let mut sums = vec![0u32; count];
            for of in &self.pushed {
                sums.iter_mut()
                    .zip(of)
                    .for_each(|(s, x)| *s = s.wrapping_add(*x));
            }
            sums
        };
        match self.call.spec.kind {
            K::Broadcast => self.pushed[root].clone(),
            K::Scatter => self.pushed[root][rank * count..][..count].to_vec(),
            K::AllReduce => sums(),
            K::Reduce if rank == root => sums(),
            K::Gather if rank == root => self.pushed.concat(),
            _ => Vec::new(),
        }
    }
}

/// A kernel's two streams of one collective on one rank.
struct Ends {
    rank: usize,
    channel: usize,
    ticket: u32,
    from: Ring,
    to: Ring,
    push: Vec<u8>,
    at: usize,
    popped: Vec<u8>,
    done: Option<Completion>,
}

impl Ends {
    fn post(w: &World, rank: usize, channel: usize, c: &Channel, log2: u32) -> Ends {
        let at = RINGS + channel as u64 * 8192;
        let from = Ring::new(w, rank, at, log2, 0);
        let to = Ring::new(w, rank, at + 4096, log2, 0);
        Ends {
            rank,
            channel,
            ticket: w.post(rank, &c.call.of_ring(&from).to_ring(&to)),
            from,
            to,
            push: c.pushed[rank]
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect(),
            at: 0,
            popped: Vec::new(),
            done: None,
        }
    }

    /// Moves at most `most` bytes each way.
    fn play(&mut self, w: &World, most: usize) {
        let end = self.push.len().min(self.at + most);
        self.at += self.from.push(w, &self.push[self.at..end]);
        self.popped.extend(self.to.pop(w, most));
        self.done = self
            .done
            .or_else(|| w.host(self.rank).queue.poll(self.ticket));
    }

    fn is_right(&self, w: &World, c: &Channel) {
        let what = format!("{:?}, rank {}", c.call, self.rank);
        let status = self.done.map(|d| d.status);
        assert_eq!(status, Some(Status::Ok), "{what}: {:?}", self.done);
        let wanted: Vec<u8> = c
            .wanted(self.rank)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert!(self.popped == wanted, "{what}: other bytes");
        assert_eq!(
            (self.at, self.from.level(w)),
            (self.push.len(), 0),
            "{what}"
        );
    }
}

/// Kernels push and pop until all have ended.
fn play(w: &mut World, ends: &mut [Ends], rng: &mut Rng) {
    let end = w.now + 60_000_000_000;
    while ends.iter().any(|e| e.done.is_none()) {
        for e in ends.iter_mut() {
            e.play(w, rng.next() as usize % 100);
        }
        w.step();
        assert!(
            w.now < end,
            "hung: {:?}",
            ends.iter().map(|e| e.done).collect::<Vec<_>>()
        );
    }
    ends.iter_mut().for_each(|e| e.play(w, 1 << 20));
}

/// An order of posting, in which the channels of one port keep theirs.
fn order(channels: &[Channel], rng: &mut Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..channels.len()).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, rng.next() as usize % (i + 1));
    }
    let port = |i: usize| channels[i].call.tag;
    let mut sorted: Vec<usize> = (0..channels.len()).collect();
    sorted.sort_by_key(|i| (port(*i), *i));
    let mut taken = vec![0; 256];
    let nth = |i: &usize| {
        let first = sorted
            .iter()
            .position(|s| port(*s) == port(*i))
            .expect("itself");
        let n = &mut taken[port(*i) as usize];
        *n += 1;
        sorted[first + *n - 1]
    };
    all.iter().map(nth).collect()
}

/// Collectives of every kind at once, posted in another order on every rank.
pub(crate) fn several(w: &mut World, rng: &mut Rng) {
    let kinds = [K::Broadcast, K::Reduce, K::Scatter, K::Gather, K::AllReduce];
    let ranks = w.ranks();
    let channels = 2 + rng.next() as usize % 6;
    let mut channel = |i: usize| {
        let kind = kinds[rng.next() as usize % kinds.len()];
        // The first two are of different ports.
        let port = [0, 255, 1, 77][if i < 2 { i } else { rng.next() as usize % 4 }];
        let root = match kind.has_root() {
            true => rng.next() as usize % ranks,
            false => 0,
        };
        let count = rng.next() as usize % 150;
        Channel::new(kind, port, root, count, ranks, rng)
    };
    let all: Vec<Channel> = (0..channels).map(&mut channel).collect();
    let mut ends = Vec::new();
    for rank in 0..ranks {
        for i in order(&all, rng) {
            ends.push(Ends::post(w, rank, i, &all[i], 6 + (rng.next() % 3) as u32));
        }
    }
    play(w, &mut ends, rng);
    ends.iter().for_each(|e| e.is_right(w, &all[e.channel]));
}

fn random(wire: Wire, seed: u64, worlds: usize) {
    let mut rng = Rng(seed);
    for _ in 0..worlds {
        let ranks = 1 + rng.next() as usize % 6;
        let mut w = World::new(ranks, wire, &settings());
        (0..3).for_each(|_| several(&mut w, &mut rng));
    }
}

#[test]
fn ports_in_another_order_on_every_rank_are_those_of_a_serial_model_on_one_host() {
    random(Wire::Local, 1, 16);
}

#[test]
fn ports_in_another_order_on_every_rank_are_those_of_a_serial_model_over_networks() {
    random(Wire::Tcp, 2, 5);
    random(Wire::Rdma, 3, 5);
    random(Wire::LossyRdma(2, 7), 4, 3);
}

#[test]
fn operations_of_one_port_are_many_more_than_a_tag_can_count() {
    let mut w = World::new(2, Wire::Local, &settings());
    let mut rng = Rng(5);
    // More than the 2^13 that tags distinguish, of a port; and those of port 0 between them.
    for round in 0..8_400u32 {
        let port = if round % 50 == 0 { 0 } else { 3 };
        let call = Call::new(K::Broadcast, 1).of(DataType::U32, ReduceOp::Sum);
        let call = call.root(round % 2).tag(port).streamed().at(64, 4 << 20);
        let x = rng.next() as u32;
        w.host((round % 2) as usize).poke(64, &x.to_le_bytes());
        w.run(&call);
        for rank in 0..2 {
            assert_eq!(w.host(rank).peek(4 << 20, 4), x.to_le_bytes(), "{round}");
        }
    }
}

#[test]
fn a_kernel_that_waits_holds_up_its_own_port_alone() {
    const RANKS: usize = 3;
    let mut w = World::new(RANKS, Wire::Local, &settings());
    let mut rng = Rng(6);
    let mut make = |kind, port| Channel::new(kind, port, 1, 90, RANKS, &mut rng);
    let all = [
        make(K::Reduce, 4),
        make(K::Broadcast, 4),
        make(K::Gather, 5),
        make(K::AllReduce, 0),
    ];
    let mut ends = Vec::new();
    for rank in 0..RANKS {
        for (i, c) in all.iter().enumerate() {
            ends.push(Ends::post(&w, rank, i, c, 6));
        }
    }
    // The kernels of the first do nothing at first.
    let (mut waits, mut others): (Vec<Ends>, Vec<Ends>) =
        ends.into_iter().partition(|e| e.channel == 0);
    play(&mut w, &mut others, &mut Rng(7));
    others.iter().for_each(|e| e.is_right(&w, &all[e.channel]));
    for e in &mut waits {
        assert!(
            w.host(e.rank).queue.poll(e.ticket).is_none(),
            "rank {}",
            e.rank
        );
    }
    play(&mut w, &mut waits, &mut Rng(8));
    waits.iter().for_each(|e| e.is_right(&w, &all[0]));
}

#[test]
fn one_stream_on_two_ports_serves_one_after_the_other_and_no_third_waits() {
    const RANKS: usize = 2;
    let mut w = World::new(RANKS, Wire::Local, &settings());
    let mut rng = Rng(9);
    let shared = [1, 2].map(|port| Channel::new(K::AllReduce, port, 0, 70, RANKS, &mut rng));
    let other = Channel::new(K::AllReduce, 3, 0, 70, RANKS, &mut rng);
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..RANKS {
        first.push(Ends::post(&w, rank, 0, &shared[0], 6));
        let (from, to) = (first[rank].from, first[rank].to);
        second.push(w.post(rank, &shared[1].call.of_ring(&from).to_ring(&to)));
        third.push(Ends::post(&w, rank, 1, &other, 6));
    }
    play(&mut w, &mut third, &mut rng);
    third.iter().for_each(|e| e.is_right(&w, &other));
    play(&mut w, &mut first, &mut rng);
    for (rank, e) in first.iter_mut().enumerate() {
        e.is_right(&w, &shared[0]);
        (e.ticket, e.done, e.at) = (second[rank], None, 0);
        e.push = shared[1].pushed[rank]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        e.popped.clear();
    }
    play(&mut w, &mut first, &mut rng);
    first.iter().for_each(|e| e.is_right(&w, &shared[1]));
}

/// Where NIC memory is scarce, a stream leaves room for others, which it may wait for.
#[test]
fn a_port_has_nic_memory_while_another_waits() {
    const RANKS: usize = 3;
    let scarce = CollectiveSettings {
        segment_bytes: 64,
        scratch_bytes: 16 << 10,
        segments_in_flight: 64,
        ..settings()
    };
    let mut w = World::new(RANKS, Wire::Local, &scarce);
    let mut rng = Rng(10);
    let mut make = |port| Channel::new(K::AllReduce, port, 0, 2_000, RANKS, &mut rng);
    let all = [make(1), make(2)];
    let mut ends = Vec::new();
    for rank in 0..RANKS {
        for (i, c) in all.iter().enumerate() {
            ends.push(Ends::post(&w, rank, i, c, 11));
        }
    }
    // One rank does not take part in the first before it has ended the second.
    let (mut late, mut others): (Vec<Ends>, Vec<Ends>) = ends
        .into_iter()
        .partition(|e| e.channel == 0 && e.rank == 2);
    let end = w.now + 60_000_000_000;
    while others.iter().any(|e| e.channel == 1 && e.done.is_none()) {
        others.iter_mut().for_each(|e| e.play(&w, 200));
        w.step();
        assert!(w.now < end, "hung");
    }
    others.append(&mut late);
    play(&mut w, &mut others, &mut rng);
    others.iter().for_each(|e| e.is_right(&w, &all[e.channel]));
}

#[test]
fn a_rank_that_dies_ends_all_ports() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma] {
        dies(&mut World::new(4, wire, &settings()), &format!("{wire:?}"));
    }
}

/// Rank 2 of 4 ends in the middle of collectives on four ports: all kernels of the others hear of
/// it.
pub(crate) fn dies(w: &mut World, what: &str) {
    const RANKS: usize = 4;
    let mut rng = Rng(11);
    let mut make = |kind, port| Channel::new(kind, port, 1, 5_000, RANKS, &mut rng);
    let all = [
        make(K::Broadcast, 1),
        make(K::Reduce, 2),
        make(K::Scatter, 3),
        make(K::Gather, 4),
    ];
    let mut ends = Vec::new();
    for rank in 0..RANKS {
        for i in order(&all, &mut rng) {
            ends.push(Ends::post(w, rank, i, &all[i], 6));
        }
    }
    for _ in 0..300 {
        ends.iter_mut().for_each(|e| e.play(w, 8));
        w.step();
    }
    ends.retain(|e| e.rank != 2);
    w.hosts[2] = None;
    let end = w.now + 60_000_000_000;
    while ends.iter().any(|e| e.done.is_none()) {
        ends.iter_mut().for_each(|e| e.play(w, 8));
        w.step();
        assert!(w.now < end, "{what}: hung");
    }
    for e in &ends {
        let c = e.done.expect("all have ended");
        let call = all[e.channel].call;
        let what = format!("{what}, {call:?}, rank {}", e.rank);
        let told = matches!(c.status, Status::PeerFailed | Status::CommAborted);
        assert!(told && c.detail == 2, "{what}: {c:?}");
        for ring in [e.from, e.to] {
            let pushes = !all[e.channel].pushed[e.rank].is_empty();
            let pops = !all[e.channel].wanted(e.rank).is_empty();
            let is_side = if ring.at == e.from.at { pushes } else { pops };
            assert_eq!(ring.get(w, STATE_AT) != 0, is_side, "{what}");
        }
    }
}

/// Operations without elements need no buffer of a peer: their number alone limits the rank that is
/// ahead.
#[test]
fn a_rank_may_post_more_of_a_port_than_tags_can_tell_apart() {
    const CALLS: u32 = 9_000;
    let mut w = World::new(2, Wire::Local, &settings());
    let config = QueueConfig {
        depth: 16 << 10,
        ..QueueConfig::default()
    };
    let queues = [0, 1].map(|rank| {
        let nic = &w.host(rank).nic;
        let pd = nic.alloc_pd().expect("domain");
        nic.create_queue(pd, config).expect("queue")
    });
    let call = Call::new(K::Broadcast, 0).of(DataType::U32, ReduceOp::Sum);
    let call = call.tag(3).streamed();
    for (rank, queue) in queues.iter().enumerate() {
        for _ in 0..CALLS {
            queue
                .try_post(&call.descriptor(w.comms[rank]))
                .expect("room");
        }
        (0..200).for_each(|_| {
            w.step();
        });
    }
    w.until("end of all", 20_000_000_000, |_| {
        queues.iter().all(|q| q.poll(CALLS - 1).is_some())
    });
    for queue in &queues {
        for n in [0, CALLS / 2, CALLS - 1] {
            assert_eq!(queue.poll(n).map(|c| c.status), Some(Status::Ok));
        }
    }
}

#[test]
fn ranks_that_disagree_on_a_port_get_a_mismatch_and_one_alone_its_deadline() {
    let mut w = World::new(2, Wire::Local, &settings());
    let call = |port, count| {
        let call = Call::new(K::AllReduce, count).of(DataType::U32, ReduceOp::Sum);
        call.tag(port).streamed().at(64, 4 << 20)
    };
    let (a, b) = (w.post(0, &call(8, 20)), w.post(1, &call(8, 21)));
    for c in w.settle(&[(0, a), (1, b)]) {
        assert_eq!((c.status, c.detail), (Status::Mismatch, 1));
    }
    // Ports that differ are different operations.
    let mut w = World::new(2, Wire::Local, &settings());
    let a = w.post(0, &call(8, 20).within(400_000));
    let b = w.post(1, &call(9, 20).within(400_000));
    let ends = w.settle(&[(0, a), (1, b)]);
    let late =
        |c: &&Completion| (c.status, c.detail & COMM_ENDED) == (Status::TimedOut, COMM_ENDED);
    assert!(ends.iter().any(|c| late(&c)), "{ends:?}");
    // A port that there is not.
    let mut w = World::new(1, Wire::Local, &settings());
    let a = w.post(0, &call(256, 20));
    let c = w.settle(&[(0, a)])[0];
    assert_eq!((c.status, c.detail), (Status::InvalidArgument, 256));
}

/// One rank of three never posts the operation of a port, though it is ahead on others; several
/// ports wait at once, and each names its own.
#[test]
fn a_rank_that_never_opens_a_port_is_named_when_the_time_of_the_others_is_up() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma] {
        for absent in [0, 2] {
            let mut w = World::new(3, wire, &settings());
            let call = |port, at| {
                let call = Call::new(K::AllReduce, 20).of(DataType::U32, ReduceOp::Sum);
                call.tag(port).streamed().at(at, at + (1 << 20))
            };
            // Port 8 has had an operation, port 9 none.
            w.run(&call(8, 64));
            let others: Vec<usize> = (0..3).filter(|r| *r != absent).collect();
            let mut posted = Vec::new();
            for rank in &others {
                let late = |port, at| call(port, at).within(3_000_000);
                posted.push((*rank, w.post(*rank, &late(8, 4 << 20))));
            }
            let ahead = call(9, 8 << 20).within(6_000_000);
            posted.push((absent, w.post(absent, &ahead)));
            for (c, (rank, _)) in w.settle(&posted).iter().zip(&posted) {
                let what = format!("{wire:?}, without {absent}, rank {rank}: {c:?}");
                let named = COMM_ENDED | RANK_ABSENT | absent as u64;
                let is = (c.status, c.detail) == (Status::TimedOut, named);
                let told = c.status == Status::CommAborted || c.status == Status::TimedOut;
                assert!(if *rank == absent { told } else { is }, "{what}");
            }
        }
    }
}
