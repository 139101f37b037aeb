//! Goodput of a queue pair over a link that loses packets, in virtual time: go-back-N against
//! selective repeat.
//!
//! The link has 100 Gb/s, a round trip of 100 µs and no queue but the sender's; a packet carries
//! 1,024 bytes.

use crate::transport_support;

use std::collections::VecDeque;
use std::time::Duration;

use ringbell_nic_core::transport::rdma::qp::*;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::roce::{Packet, Psn, Qpn};
use transport_support::Rng;

const MTU: u32 = 1_024;
/// Ethernet, IPv4, UDP, ICRC, preamble and gap around a packet.
const AROUND: u64 = 14 + 20 + 8 + 4 + 4 + 8 + 12;
const BYTES_PER_US: u64 = 12_500;
const ONE_WAY: u64 = 50_000;
/// Packets of three round trips and a half: one for a packet, one for its copy, and
/// acknowledgements come a quarter of a window late.
const WINDOW: u32 = 4_096;
/// What the sender's port takes ahead of the wire, in nanoseconds.
const QUEUE: u64 = 5_000;
const MESSAGE: u32 = 1 << 20;

/// Sends the same bytes for ever; counts what arrives.
#[derive(Default)]
struct Bulk {
    received: u64,
    done: u64,
}

impl Client for Bulk {
    fn gather(&mut self, _: u64, _: u32, to: &mut [u8]) -> Result<(), Unavailable> {
        to.fill(0x5a);
        Ok(())
    }

    fn done(&mut self, _: u64, status: WorkStatus) {
        assert_eq!(status, WorkStatus::Success(None));
        self.done += 1;
    }

    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        assert!(part.bytes.iter().all(|&b| b == 0x5a));
        self.received += part.bytes.len() as u64;
        Ok(())
    }
}

fn connected(early: u32) -> [(QueuePair, Bulk); 2] {
    [0, 1].map(|i| {
        let (mut qp, mut bulk) = (QueuePair::new(), Bulk::default());
        let rtr = RtrAttributes {
            peer: Qpn::new(2 - i),
            expected: Psn::new(0xff_fff0),
            mtu: MTU,
            resources: 0,
            rnr_timer: 1,
            early,
        };
        let rts = RtsAttributes {
            first: Psn::new(0xff_fff0),
            depth: 0,
            retries: 7,
            rnr_retries: None,
            give_up: Duration::from_secs(1),
            pace: PaceConfig {
                window: WINDOW,
                timeout_min: Duration::from_millis(1),
                timeout_max: Duration::from_millis(10),
                congestion: Congestion::Fixed,
            },
            selective: early > 0,
        };
        for change in [Change::Init, Change::Rtr(rtr), Change::Rts(rts)] {
            qp.modify(change, &mut bulk).unwrap(); // the table's order
        }
        (qp, bulk)
    })
}

/// Bytes per second of virtual time that arrive in order, when of 10,000 packets so many are lost.
fn goodput(early: u32, lost: u64, time: Duration) -> f64 {
    let mut ends = connected(early);
    let mut rng = Rng(0x105e);
    let mut flying: [VecDeque<(u64, Vec<u8>)>; 2] = Default::default();
    let mut free = [0_u64; 2];
    let (mut now, end) = (0, time.as_nanos() as u64);
    let mut id = 0;
    while now < end {
        let mut next = end;
        for i in 0..2 {
            while flying[i].front().is_some_and(|(at, _)| *at <= now) {
                let (_, bytes) = flying[i].pop_front().expect("seen");
                let packet = Packet::parse(&bytes).expect("ours");
                let (qp, bulk) = &mut ends[i];
                qp.receive(NicTime(now), &packet, bulk);
            }
        }
        let (qp, _) = &mut ends[0];
        while qp.room() > 0 {
            let request = Request::Send(None);
            let len = MESSAGE;
            assert!(qp.post(Work { id, request, len }));
            id += 1;
        }
        for (i, (qp, bulk)) in ends.iter_mut().enumerate() {
            qp.expire(NicTime(now), bulk);
            let mut room = [0; 2048];
            while free[i] < now + QUEUE {
                let Transmit::Packet(len) = qp.transmit(NicTime(now), &mut room, bulk) else {
                    break;
                };
                free[i] = free[i].max(now) + (len as u64 + AROUND) * 1_000 / BYTES_PER_US;
                if rng.below(10_000) >= lost {
                    flying[1 - i].push_back((free[i] + ONE_WAY, room[..len].to_vec()));
                }
            }
            let arrival = flying[i].front().map(|f| f.0);
            let room = (free[i] >= now + QUEUE).then(|| free[i] - QUEUE + 1);
            let timer = qp.next_timer().map(|t| t.0.max(now + 1));
            next = [arrival, room, timer]
                .into_iter()
                .flatten()
                .fold(next, u64::min);
        }
        let arrivals = flying.iter().filter_map(|f| f.front()).map(|f| f.0);
        now = arrivals.fold(next, u64::min).max(now + 1);
    }
    for (qp, _) in &ends {
        assert_eq!(qp.state(), State::Rts);
    }
    ends[1].1.received as f64 / time.as_secs_f64()
}

#[test]
fn selective_repeat_keeps_the_link_full_where_go_back_n_does_not() {
    let time = Duration::from_millis(20);
    let wire = f64::from(MTU) / (f64::from(MTU) + 12.0 + AROUND as f64) * BYTES_PER_US as f64 * 1e6;
    println!(
        "of the wire's {:.2} GB/s: lost, go-back-N, selective repeat",
        wire / 1e9
    );
    for (lost, at_least, ratio) in [(0, 0.95, 0.99), (10, 0.9, 1.5), (100, 0.8, 5.0)] {
        let [back, selective] = [0, WINDOW].map(|early| goodput(early, lost, time));
        println!(
            "{:.1}% {:.3} {:.3}",
            lost as f64 / 100.0,
            back / wire,
            selective / wire
        );
        assert!(
            selective >= at_least * wire,
            "{lost}: {selective} of {wire}"
        );
        assert!(
            selective >= ratio * back,
            "{lost}: {selective} against {back}"
        );
    }
}
