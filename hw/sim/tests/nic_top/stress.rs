//! `nic_top.sv` under random back-pressure at every port, and with resets at random cycles: the
//! bytes of memory are those of a model.

use super::host::{complete, cycle, hosts, transfer, Host, BASE};
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::LARGE_PAGE_BYTES;
use ringbell_hw_sim::card::{Control, Ended, Event, Io};
use ringbell_hw_sim::nic_top::Block;
use ringbell_nic_abi::{Opcode, Status};

/// Lets every port of a card wait in so many of eight cycles. What the card has offered must stay
/// until it is taken.
pub(crate) fn hold(host: &mut Host, seed: u64, waits: u64) {
    hold_with(host, seed, waits, |ports| offers(ports).into());
}

/// Whether an output is taken now, and what it offers.
type Offer = (bool, Option<Vec<u64>>);

/// Also those of the block `ring`, as long as no collective ends early.
pub(crate) fn hold_ring(host: &mut Host, seed: u64, waits: u64) {
    hold_with(host, seed, waits, |ports| {
        offers(ports)
            .into_iter()
            .chain(ring_offers(ports))
            .collect()
    });
}

fn hold_with(
    host: &mut Host,
    seed: u64,
    waits: u64,
    offers: impl Fn(&Block) -> Vec<Offer> + Send + 'static,
) {
    let mut rng = Rng::new(seed);
    host.card.hold(move || rng.below(8) >= waits);
    let mut before = None;
    host.card.watch(move |ports| {
        let now = offers(ports);
        for (was, is) in before.iter().flatten().zip(&now) {
            let (ready, offer): &Offer = was;
            let stays = *ready || offer.is_none() || *offer == is.1;
            assert!(stays, "{was:x?} became {is:x?}");
        }
        before = Some(now);
    });
}

fn offer(ready: u64, valid: u64, values: &[u64]) -> Offer {
    (ready == 1, (valid == 1).then(|| values.to_vec()))
}

/// Of the block `ring`.
fn ring_offers(p: &Block) -> [Offer; 7] {
    let words = |words: &[u32]| -> Vec<u64> { words.iter().map(|w| u64::from(*w)).collect() };
    let bit = |both: u64, port: u32| both >> port & 1;
    let line = |both: u64, port: u32| both >> (26 * port) & 0x3ff_ffff;
    let store = |port: u32| {
        let mut values = words(&p.ring_store_o()[16 * port as usize..][..16]);
        values.push(line(p.ring_store_line_o(), port));
        let (ready, valid) = (p.ring_store_ready_i_now(), p.ring_store_valid_o());
        offer(bit(ready, port), bit(valid, port), &values)
    };
    let load = |port: u32| {
        let (ready, valid) = (p.ring_load_ready_i_now(), p.ring_load_valid_o());
        let line = line(p.ring_load_line_o(), port);
        offer(bit(ready, port), bit(valid, port), &[line])
    };
    let mut tx = words(&p.ring_tx_data_o());
    tx.extend([p.ring_tx_keep_o(), p.ring_tx_last_o()]);
    [
        offer(p.ring_tx_ready_i_now(), p.ring_tx_valid_o(), &tx),
        offer(
            p.ring_tx_meta_ready_i_now(),
            p.ring_tx_meta_valid_o(),
            &[p.ring_tx_meta_len_o()],
        ),
        offer(
            p.ring_report_ready_i_now(),
            p.ring_report_valid_o(),
            &[p.ring_report_status_o()],
        ),
        store(0),
        store(1),
        load(0),
        load(1),
    ]
}

/// Of each output with a taker but those.
fn offers(p: &Block) -> [Offer; 5] {
    let line: Vec<u64> = [p.line_addr_o(), p.line_strobe_o(), p.line_done_o()]
        .into_iter()
        .chain(p.line_o().map(u64::from))
        .collect();
    let tx: Vec<u64> = [p.tx_keep_o(), p.tx_last_o(), p.tx_cut_o()]
        .into_iter()
        .chain(p.tx_data_o().map(u64::from))
        .collect();
    [
        offer(
            p.read_ready_i_now(),
            p.read_valid_o(),
            &[p.read_addr_o(), p.read_len_o(), p.read_entry_o()],
        ),
        offer(p.line_ready_i_now(), p.line_valid_o(), &line),
        offer(p.tx_ready_i_now(), p.tx_valid_o(), &tx),
        offer(
            p.tx_meta_ready_i_now(),
            p.tx_meta_valid_o(),
            &[p.tx_meta_conn_o(), p.tx_meta_len_o()],
        ),
        offer(
            p.want_ready_i_now(),
            p.want_valid_o(),
            &[p.want_conn_o(), p.want_len_o(), p.want_some_o()],
        ),
    ]
}

#[test]
fn bytes_arrive_under_any_back_pressure() {
    for (seed, waits) in [(1, 1), (2, 4), (3, 7)] {
        let (mut hosts, mut rng) = (hosts(), Rng::new(seed));
        for (i, host) in hosts.iter_mut().enumerate() {
            hold(host, 100 * seed + i as u64, waits);
        }
        for round in 0..24 {
            let most = [40, 700, 9_000, 70_000][round % 4];
            let len = 1 + rng.below(most);
            let (from, to) = (
                BASE + rng.below(LARGE_PAGE_BYTES),
                BASE + 64 + rng.below(LARGE_PAGE_BYTES),
            );
            let (sender, receiver) = (round % 2, 1 - round % 2);
            let bytes = rng.bytes(len as usize);
            hosts[sender].set_gpu(from, &bytes);
            let around = [
                hosts[receiver].gpu(to - 64, 64),
                hosts[receiver].gpu(to + len, 64),
            ];
            let conn = rng.below(4) as u32;
            let sent = hosts[sender].post(&transfer(Opcode::Send, conn, from, len as u32));
            let received = hosts[receiver].post(&transfer(Opcode::Recv, conn, to, len as u32));
            let mut tickets = [sent, received];
            tickets.swap(0, sender);
            for end in complete(&mut hosts, tickets) {
                assert_eq!((end.status, end.bytes), (Status::Ok, len), "round {round}");
            }
            let host = &hosts[receiver];
            assert!(
                host.gpu(to, len) == bytes,
                "round {round}: {len} bytes to {to:#x}"
            );
            let now = [host.gpu(to - 64, 64), host.gpu(to + len, 64)];
            assert!(
                now == around,
                "round {round}: bytes beside the buffer have changed"
            );
        }
        for host in &hosts {
            let cycles = host.card.cycles();
            assert_eq!(
                (cycles.strays, cycles.dropped, host.faults.len()),
                (0, 0, 0)
            );
        }
    }
}

#[test]
fn a_reset_at_any_cycle_leaves_a_card_that_works() {
    let (mut hosts, mut rng) = (hosts(), Rng::new(5));
    for round in 0..40 {
        for (i, host) in hosts.iter_mut().enumerate() {
            hold(host, 200 + 2 * round + i as u64, rng.below(6));
        }
        // Something of every kind is under way, and some of it over.
        for conn in 0..3 {
            let (from, to) = (BASE + rng.below(4_096), BASE + 100_000 + rng.below(4_096));
            let len = 1 + rng.below(30_000) as u32;
            let sender = rng.below(2) as usize;
            hosts[sender].post(&transfer(Opcode::Send, conn, from, len));
            hosts[1 - sender].post(&transfer(Opcode::Recv, conn, to, len));
        }
        for _ in 0..rng.below(2_500) {
            cycle(&mut hosts);
        }
        let one = rng.below(2) as usize;
        // A peer that is not reset gets no more bytes of these connections; here both are.
        for (i, host) in hosts.iter_mut().enumerate() {
            hold(host, 500 + 2 * round + i as u64, rng.below(6));
            host.reset();
        }
        let (len, to) = (1 + rng.below(3_000), BASE + 7 + rng.below(LARGE_PAGE_BYTES));
        let bytes = rng.bytes(len as usize);
        hosts[one].set_gpu(BASE + 3, &bytes);
        let mut tickets = [
            hosts[one].post(&transfer(Opcode::Send, 1, BASE + 3, len as u32)),
            hosts[1 - one].post(&transfer(Opcode::Recv, 1, to, len as u32)),
        ];
        tickets.swap(0, one);
        let ends = complete(&mut hosts, tickets);
        assert!(ends.iter().all(|e| e.status == Status::Ok), "round {round}");
        assert!(hosts[1 - one].gpu(to, len) == bytes, "round {round}");
        hosts.iter_mut().for_each(Host::reset);
    }
}

#[test]
fn faults_and_flushes_end_every_operation_once_under_back_pressure() {
    let mut rng = Rng::new(9);
    let end = BASE + 2 * LARGE_PAGE_BYTES;
    for round in 0..30 {
        let mut host = Host::new(round);
        hold(&mut host, 300 + round, rng.below(7));
        let send = round % 2 == 0;
        // Some bytes of memory, and some behind its end; and another operation behind it.
        let inside = 1 + rng.below(3_000) as u32;
        let beyond = 1 + rng.below(2_000) as u32;
        let io = |tag, va, len| Io {
            send,
            conn: 2,
            va,
            len,
            some: false,
            tag,
        };
        host.card
            .post(io(1, end - u64::from(inside), inside + beyond));
        host.card.post(io(2, BASE, 100));
        let (mut ended, mut faulted, mut flushed) = (Vec::new(), 0, false);
        for n in 0..60_000 {
            host.card.cycle();
            while let Some(event) = host.card.event() {
                match event {
                    Event::End {
                        tag, ended: how, ..
                    } => ended.push((tag, how)),
                    Event::Fault { va, .. } => {
                        assert_eq!(va, end);
                        faulted += 1;
                    }
                    Event::Want { conn, len, .. } => host.card.receive(conn, vec![3; len as usize]),
                    Event::Sent { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if faulted == 1 && !flushed && n > 4_000 {
                assert!(
                    ended.is_empty(),
                    "nothing ends before it is flushed: {ended:?}"
                );
                flushed = true;
                let side = [Control::FlushReceives, Control::FlushSends][usize::from(send)];
                host.card.control(2, side);
            }
            if ended.len() == 2 {
                break;
            }
        }
        let tags: Vec<u16> = ended.iter().map(|e| e.0).collect();
        assert_eq!((faulted, tags), (1, vec![1, 2]), "round {round}");
        for (tag, how) in ended {
            assert!(
                matches!(how, Ended::Flushed(_)),
                "round {round}: {tag} {how:?}"
            );
        }
    }
}

#[test]
fn short_long_and_truncated_segments_harm_no_other_connection_under_back_pressure() {
    let mut rng = Rng::new(11);
    for round in 0..30 {
        let mut host = Host::new(round);
        hold(&mut host, 400 + round, rng.below(7));
        let good = rng.bytes(5_000);
        let ticket = host.post(&transfer(Opcode::Recv, 0, BASE + 9, 5_000));
        host.post(&transfer(Opcode::Recv, 1, BASE + 100_000, 3_000));
        (0..20_000).for_each(|_| host.cycle());
        let mut at = 0;
        while at < good.len() {
            // Hostile segments between those of the good connection; what they may write is theirs.
            let conn = [1, 3, 77, 0xffff][rng.below(4) as usize];
            let (stated, bytes) = (rng.below(4_000) as u32, 1 + rng.below(4_000) as usize);
            host.card.receive_as(conn, stated, vec![0xee; bytes]);
            let n = (1 + rng.below(900) as usize).min(good.len() - at);
            host.card.receive(0, good[at..at + n].to_vec());
            at += n;
        }
        let ended = (0..80_000).find_map(|_| {
            host.cycle();
            host.completion(ticket)
        });
        let ended = ended.map(|e| (e.status, e.bytes));
        assert_eq!(ended, Some((Status::Ok, 5_000)), "round {round}");
        assert!(host.gpu(BASE + 9, 5_000) == good, "round {round}");
        let theirs = [
            host.gpu(BASE, 9),
            host.gpu(BASE + 5_009, 90_000),
            host.gpu(BASE + 103_000, 64),
        ];
        assert!(theirs.iter().flatten().all(|b| *b == 0), "round {round}");
    }
}
