//! Windows of communicators whose ranks do not all have links: the first one-sided operation on a
//! rank's memory dials it.

use crate::collective_support;
use crate::nic_support;

use std::time::Duration;

use collective_support::{Ether, Rng, Wire, World};
use nic_support::BASE;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Descriptor, Flags, GpuVa, Opcode, Status, WindowPart};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::{RankMemory, Window};

/// Bytes of the window at each rank: its first page of memory.
const BYTES: u64 = 4096;
/// Where a rank keeps what it sends and gets, behind its window.
const OWN: u64 = 8192;
/// The word of the window that all ranks add to.
const SUM: u64 = 2048;

/// As other tests of few links; `iwarp` needs real time to meet.
fn lazy() -> CollectiveSettings {
    CollectiveSettings {
        connect_timeout: Duration::from_secs(30),
        ..collective_support::lazy()
    }
}

/// Ranks with a window, and its number. Each grants its memory before the others can know its key,
/// as the SDK does.
fn windows(ranks: usize, wire: Wire) -> (World, u16) {
    let ether = Ether {
        access: Access::REMOTE,
        ..Ether::default()
    };
    let mut w = World::on(ranks, wire, 1 << 20, |_, nic| nic, |_, port| port, ether);
    w.comms = w.communicator(7, &(0..ranks).collect::<Vec<_>>(), &lazy());
    let memory = |r| RankMemory {
        va: BASE,
        rkey: w.host(r).rkey(),
    };
    let of: Vec<_> = (0..ranks).map(memory).collect();
    let mut number = 0;
    for r in 0..ranks {
        let (nic, pd) = (&w.host(r).nic, w.host(r).pd);
        nic.grant_window(w.comms[r], pd).expect("known");
        let window = Window {
            pd,
            bytes: BYTES,
            ranks: of.clone(),
        };
        number = nic.create_window(w.comms[r], window).expect("room");
    }
    (w, number)
}

/// An operation of `from` on 8 bytes of the window at `to`, with its own memory at `own`.
fn symmetric(
    w: &World,
    (from, to): (usize, usize),
    number: u16,
    opcode: Opcode,
    (at, own): (u64, u64),
) -> Descriptor {
    let part = WindowPart {
        rank: to as u16,
        window: number,
    };
    let moves = matches!(opcode, Opcode::Put | Opcode::Get);
    Descriptor {
        session: w.comms[from].session(),
        rkey: part.rkey(),
        remote_va: GpuVa(at),
        local_va: if moves { GpuVa(BASE.0 + own) } else { GpuVa(0) },
        len: if moves { 8 } else { 0 },
        flags: Flags::SYMMETRIC,
        timeout_us: 5_000_000,
        ..Descriptor::new(opcode)
    }
}

fn word(w: &World, rank: usize, at: u64) -> u64 {
    u64::from_le_bytes(w.host(rank).peek(at, 8).try_into().expect("8 bytes"))
}

/// Puts, gets and sums between random ranks at once. Puts of a pair are executed in order, and
/// gets behind those before them, from the first one on, which dials.
#[test]
fn the_first_operation_dials_and_those_behind_it_stay_in_order() {
    for (wire, seeds) in [
        (Wire::Local, 0..20),
        (Wire::Rdma, 20..40),
        (Wire::LossyRdma(3, 9), 40..50),
        (Wire::Iwarp, 50..53),
    ] {
        for seed in seeds {
            let mut rng = Rng(seed);
            let ranks = 9 + (seed as usize % 5);
            let (mut w, number) = windows(ranks, wire);
            let mut tickets = Vec::new();
            // What each pair's word has had, the newest last.
            let mut puts = vec![vec![vec![0_u64]; ranks]; ranks];
            let mut sums = vec![0_u64; ranks];
            let mut gets = Vec::new();
            for n in 0..60 {
                let (from, to) = (rng.next() as usize % ranks, rng.next() as usize % ranks);
                // Each operation has memory of its own at its rank, and each pair a word there.
                let (own, at) = (OWN + 16 * n, 8 * from as u64);
                let of = |opcode, at| symmetric(&w, (from, to), number, opcode, (at, own));
                let ticket = match rng.next() % 3 {
                    0 => {
                        let value = rng.next() | 1;
                        puts[to][from].push(value);
                        w.host(from).poke(own, &value.to_le_bytes());
                        w.host(from).post(&of(Opcode::Put, at))
                    }
                    1 => {
                        sums[to] = sums[to].wrapping_add(n + 1);
                        w.host(from).post(&Descriptor {
                            operand: n + 1,
                            ..of(Opcode::FetchAdd, SUM)
                        })
                    }
                    _ => {
                        gets.push((from, to, own, puts[to][from].len() - 1));
                        w.host(from).post(&of(Opcode::Get, at))
                    }
                };
                tickets.push((from, ticket));
                for _ in 0..rng.next() % 20 {
                    w.step();
                }
            }
            for c in w.settle(&tickets) {
                assert_eq!(c.status, Status::Ok, "{wire:?}, seed {seed}: {c:?}");
            }
            for to in 0..ranks {
                assert_eq!(word(&w, to, SUM), sums[to], "{wire:?}, seed {seed}");
                for (from, puts) in puts[to].iter().enumerate() {
                    let has = word(&w, to, 8 * from as u64);
                    let newest = puts.last().copied();
                    assert_eq!(Some(has), newest, "{wire:?}, seed {seed}: {from} to {to}");
                }
            }
            // It may have more than what was put before, and never less.
            for (from, to, own, before) in gets {
                let got = word(&w, from, own);
                let is_known = puts[to][from][before..].contains(&got);
                assert!(is_known, "{wire:?}, seed {seed}: {from} has {got} of {to}");
            }
            for r in 0..ranks {
                let c = w.host(r).nic.counters();
                assert_eq!(c.accepted, c.retired, "{wire:?}, seed {seed}");
            }
        }
    }
}

/// Rank 6 of 12 has no link to rank 0 or 1.
const FAR: (usize, usize) = (0, 6);

#[test]
fn operations_on_a_rank_that_is_dead_name_it() {
    for wire in [Wire::Local, Wire::Rdma] {
        let (mut w, number) = windows(12, wire);
        w.hosts[FAR.1] = None;
        let tickets: Vec<_> = (0..5)
            .map(|n| {
                let d = symmetric(&w, FAR, number, Opcode::Put, (8 * n, OWN));
                // Longer than a rank may take that is dialled.
                let timeout_us = 30_000_000;
                (0, w.host(0).post(&Descriptor { timeout_us, ..d }))
            })
            .collect();
        for c in w.settle(&tickets) {
            let named = [Status::PeerFailed, Status::CommAborted].contains(&c.status);
            assert!(named && c.detail == FAR.1 as u64, "{wire:?}: {c:?}");
        }
        let c = w.host(0).nic.counters();
        assert_eq!(c.accepted, c.retired);
    }
}

/// The rank that is dialled does not answer: what waits ends by its own time, by the end of the
/// communicator, or by that of the NIC.
#[test]
fn operations_that_wait_for_a_link_can_end_before_it_is_there() {
    for how in 0..4 {
        let (mut w, number) = windows(12, Wire::Rdma);
        // It is there, but is not stepped.
        let sleeper = w.hosts[FAR.1].take();
        let ticket = |w: &World, us: u32| {
            let d = symmetric(w, FAR, number, Opcode::Get, (0, OWN));
            let timeout_us = us;
            w.host(0).post(&Descriptor { timeout_us, ..d })
        };
        let tickets = [
            (0, ticket(&w, 1000)),
            (0, ticket(&w, 500_000)),
            (0, ticket(&w, 500_000)),
        ];
        for _ in 0..4 {
            w.step();
        }
        let id = w.comms[0];
        let expected = match how {
            0 => (Status::TimedOut, 0),
            1 => {
                w.host(0).nic.abort_communicator(id).expect("known");
                (Status::CommAborted, 0)
            }
            2 => {
                w.host(0).nic.free_communicator(id).expect("known");
                (Status::BadCommunicator, u64::from(id.0))
            }
            _ => {
                let nothing = w.host(0).nic.close();
                assert!(nothing.is_ok(), "{nothing:?}");
                (Status::ShuttingDown, 0)
            }
        };
        let ends: Vec<_> = w.settle(&tickets);
        for c in ends {
            assert_eq!((c.status, c.detail), expected, "{how}: {c:?}");
        }
        let c = w.host(0).nic.counters();
        assert_eq!(c.accepted, c.retired, "{how}");
        drop(sleeper);
    }
}

/// A rank that is dialled for an operation, and was only late, has it executed.
#[test]
fn operations_reach_a_rank_that_was_late() {
    let (mut w, number) = windows(12, Wire::Rdma);
    let sleeper = w.hosts[FAR.1].take();
    w.host(0).poke(OWN, &77_u64.to_le_bytes());
    let put = symmetric(&w, FAR, number, Opcode::Put, (16, OWN));
    let ticket = w.host(0).post(&put);
    for _ in 0..50 {
        w.step();
    }
    assert!(
        w.host(0).queue.poll(ticket).is_none(),
        "rank 6 is not there"
    );
    w.hosts[FAR.1] = sleeper;
    let c = w.settle(&[(0, ticket)]);
    assert_eq!(c[0].status, Status::Ok, "{c:?}");
    assert_eq!(word(&w, FAR.1, 16), 77);
}
