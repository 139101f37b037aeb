//! Hostile ranks and peers: false headers and frames end what is theirs and nothing else.

use crate::collective_faults::{small, MS};
use crate::collective_support::{self, Call, Rng, Wire, World};
use ringbell_nic_abi::{CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CommunicatorConfig;

/// A header, as an unknown peer would write it.
fn header(kind: u8, from: u16, a: u32, words: [u64; 4]) -> Vec<u8> {
    let head = u64::from(kind) | 3 << 8 | u64::from(from) << 16 | u64::from(a) << 32;
    std::iter::once(head)
        .chain(words)
        .flat_map(u64::to_le_bytes)
        .collect()
}

#[test]
fn a_hostile_peer_breaks_its_own_connection_and_nothing_else() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::unjoined(3, wire, 16 << 20);
        // Rank 0 is host 1, rank 1 is host 2; host 0 is the unknown peer, with the lowest address.
        let ids = w.communicator(7, &[1, 2], &small());
        let mine = u64::from(u32::from(*collective_support::address(0).ip()));
        let hello = header(1, 0, mine as u32, [7117, 0, 0, 0]);
        let mut rng = Rng(5);
        let mut junk: Vec<u8> = (0..400).map(|_| rng.next() as u8).collect();
        junk[0] = 77;
        let attacks: Vec<Vec<u8>> = vec![
            junk,
            // Any such peer has connected in the wrong direction.
            header(1, 0, mine as u32 + 1, [7117, 0, 0, 0]),
            // Twice.
            [hello.clone(), hello.clone()].concat(),
            // Messages of a communicator in which it has no part, for ranks that it is not.
            [hello.clone(), header(3, 1, 0, [7, 5, 100, 0]), vec![0; 100]].concat(),
            [hello.clone(), header(2, 1, 4, [7, 2, 256, 0])].concat(),
            [hello.clone(), header(12, 1, 26, [7, 1, 0, 0])].concat(),
            [hello.clone(), header(6, 0, 1, [7, 0, 1 << 20, 0])].concat(),
            // Endless announcements of communicators that no rank makes.
            [hello.clone(), header(2, 1, 4, [9, 2, 256, 0]).repeat(2000)].concat(),
            // Data for what has never been, then the end of the stream in the middle.
            [hello, header(3, 0, 0, [999, 1, 1 << 20, 0]), vec![1; 1000]].concat(),
            Vec::new(),
        ];
        for (i, bytes) in attacks.iter().enumerate() {
            use collective_support::nic;
            let s = w.host(0).post(&nic::socket());
            let s = nic::session_of(w.settle(&[(0, s)])[0]);
            let ip = w.host(1).nic.config().ip;
            let c = w.host(0).post(&nic::connect(s, ip, 7117));
            assert_eq!(w.settle(&[(0, c)])[0].status, Status::Ok);
            if !bytes.is_empty() {
                w.host(0).poke(0, bytes);
                let t = w.host(0).post(&nic::send(s, 0, bytes.len() as u32));
                // Refused in the middle, as a rule.
                w.settle(&[(0, t)]);
            }
            let call = Call::new(K::AllReduce, 2000)
                .of(DataType::U32, ReduceOp::Sum)
                .at(0, 1 << 20);
            let tickets: Vec<_> = [1usize, 2]
                .iter()
                .zip(&ids)
                .map(|(h, id)| (*h, w.host(*h).post(&call.descriptor(*id))))
                .collect();
            for c in w.settle(&tickets) {
                assert_eq!(c.status, Status::Ok, "attack {i}: {c:?}");
            }
            let t = w.host(0).post(&nic::close(s));
            w.settle(&[(0, t)]);
        }
    }
}

#[test]
fn a_rank_that_sends_false_frames_ends_its_communicator_and_no_other() {
    use collective_support::nic;
    let mut w = World::unjoined(3, Wire::Local, 16 << 20);
    let good = w.communicator(7, &[1, 2], &small());
    let mine = u32::from(*collective_support::address(0).ip());
    let peers: Vec<_> = (0..3).map(collective_support::address).collect();
    let mut rng = Rng(99);
    for round in 0..60u64 {
        let ctx = 1000 + round;
        let ids: Vec<_> = [1u32, 2]
            .iter()
            .map(|r| {
                let config = CommunicatorConfig {
                    ctx,
                    rank: *r,
                    peers: peers.clone(),
                    settings: small(),
                };
                w.host(*r as usize)
                    .nic
                    .create_communicator(&config)
                    .expect("made")
            })
            .collect();
        // Something is under way that the liar's messages can meet.
        for (h, id) in [1usize, 2].iter().zip(&ids) {
            let recv = Call::new(K::Recv, 300)
                .of(DataType::U8, ReduceOp::Sum)
                .root(0);
            w.host(*h).post(&recv.within(100_000).descriptor(*id));
            w.host(*h)
                .post(&Call::new(K::AllReduce, 500).within(100_000).descriptor(*id));
        }
        let s = w.host(0).post(&nic::socket());
        let s = nic::session_of(w.settle(&[(0, s)])[0]);
        let c = w
            .host(0)
            .post(&nic::connect(s, w.host(1).nic.config().ip, 7117));
        assert_eq!(w.settle(&[(0, c)])[0].status, Status::Ok);
        let mut bytes = header(1, 0, mine, [7117, 0, 0, 0]);
        bytes.extend(header(2, 0, 2, [ctx, 3, 256, 0]));
        for _ in 0..1 + rng.next() % 12 {
            let kind = 1 + (rng.next() % 13) as u8;
            let small = |rng: &mut Rng| match rng.next() % 4 {
                0 => rng.next() % 4,
                1 => rng.next() % 400,
                2 => (1 << 18) | (rng.next() % 4),
                _ => rng.next(),
            };
            let tag = match rng.next() % 3 {
                0 => 1 << 63,
                1 => ((rng.next() % 3) << 41) | (rng.next() % 4),
                _ => rng.next(),
            };
            let len = rng.next() % 600;
            let a = small(&mut rng) as u32;
            let last = small(&mut rng);
            bytes.extend(header(kind, 0, a, [ctx, tag, len, last]));
            if matches!(kind, 3 | 6) && !rng.next().is_multiple_of(4) {
                bytes.extend(vec![0x5a; len as usize]);
            }
        }
        w.host(0).poke(0, &bytes);
        let t = w.host(0).post(&nic::send(s, 0, bytes.len() as u32));
        w.settle(&[(0, t)]);
        for _ in 0..200 {
            w.step();
        }
        let call = Call::new(K::AllReduce, 2000)
            .of(DataType::U32, ReduceOp::Sum)
            .at(0, 1 << 20);
        let tickets: Vec<_> = [1usize, 2]
            .iter()
            .zip(&good)
            .map(|(h, id)| (*h, w.host(*h).post(&call.descriptor(*id))))
            .collect();
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok, "round {round}: {c:?}");
        }
        for (h, id) in [1usize, 2].iter().zip(&ids) {
            w.host(*h).nic.free_communicator(*id).expect("known");
        }
        let t = w.host(0).post(&nic::close(s));
        w.settle(&[(0, t)]);
        // Every operation ends, for any frames.
        w.until("retired operations", 2000 * MS, |w| {
            let c = |h: usize| w.host(h).nic.counters();
            [1, 2].iter().all(|h| c(*h).accepted == c(*h).retired)
        });
    }
}
