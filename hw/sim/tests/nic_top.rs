//! `nic_top.sv` as a NIC: descriptors of the contract in rings of host memory, two cards joined by
//! a wire of bytes, and memory whose every byte is compared with a model.

mod engine;
mod figures;
mod host;
mod ring;
mod stress;

use host::{complete, cycle, hosts, transfer, Host, BASE, DEPTH_LOG2, LATENCY, SQ};
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_hw_sim::card::{Control, Cycles, Event};
use ringbell_nic_abi::bar::{self, Reg};
use ringbell_nic_abi::descriptor::lap_bit;
use ringbell_nic_abi::{Descriptor, Flags, Opcode, Status, WorkQueueEntry};

#[test]
fn sends_and_receives_move_the_bytes_that_descriptors_name_and_no_others() {
    let (mut hosts, mut rng) = (hosts(), Rng::new(3));
    let all = 2 * LARGE_PAGE_BYTES;
    for round in 0..120 {
        let len = match round % 4 {
            0 => 1 + rng.below(40),
            1 => 1 + rng.below(700),
            2 => 1 + rng.below(9_000),
            _ => 1 + rng.below(3 * PAGE_BYTES),
        };
        let (from, to) = (
            BASE + rng.below(all - len),
            BASE + 64 + rng.below(all - len - 128),
        );
        let bytes = rng.bytes(len as usize);
        let sender = round % 2;
        hosts[sender].set_gpu(from, &bytes);
        let around = [
            hosts[1 - sender].gpu(to - 64, 64),
            hosts[1 - sender].gpu(to + len, 64),
        ];
        let conn = rng.below(4) as u32;
        let mut send = transfer(Opcode::Send, conn, from, len as u32);
        if len <= 40 && rng.below(2) == 0 {
            send.flags = Flags::INLINE;
            send.inline_len = len as u8;
            send.inline[..len as usize].copy_from_slice(&bytes);
        }
        let receive = transfer(Opcode::Recv, conn, to, len as u32);
        let sent = hosts[sender].post(&send);
        let received = hosts[1 - sender].post(&receive);
        let tickets = if sender == 0 {
            [sent, received]
        } else {
            [received, sent]
        };
        let mut ends = complete(&mut hosts, tickets);
        ends.swap(0, sender);
        for (end, d) in ends.iter().zip([&send, &receive]) {
            assert_eq!((end.status, end.bytes, end.detail), (Status::Ok, len, 0));
            assert_eq!((end.wr_id, end.opcode), (d.wr_id, d.opcode.code()));
        }
        let host = &hosts[1 - sender];
        assert!(
            host.gpu(to, len) == bytes,
            "round {round}: {len} bytes from {from:#x} to {to:#x}"
        );
        let now = [host.gpu(to - 64, 64), host.gpu(to + len, 64)];
        assert!(
            now == around,
            "round {round}: bytes beside the buffer have changed"
        );
    }
    for host in &hosts {
        let Cycles {
            strays, dropped, ..
        } = host.card.cycles();
        assert_eq!((strays, dropped, host.faults.len()), (0, 0, 0));
    }
}

#[test]
fn many_operations_under_way_end_in_order_on_each_connection() {
    let (mut hosts, mut rng) = (hosts(), Rng::new(4));
    for _ in 0..12 {
        // Two for each of four connections: what is sent in two pieces is received in others.
        let mut tickets = [Vec::new(), Vec::new()];
        let mut wanted = Vec::new();
        for conn in 0..4_u64 {
            // Two connections each way, so that look-ups of reads and writes meet.
            let sender = (conn / 2) as usize;
            let (from, to) = (
                BASE + conn * 300_000,
                BASE + LARGE_PAGE_BYTES + conn * 300_000 + 13,
            );
            let len = 2 + rng.below(100_000) as u32;
            let bytes = rng.bytes(len as usize);
            hosts[sender].set_gpu(from, &bytes);
            let cut = [
                1 + rng.below(u64::from(len) - 1) as u32,
                1 + rng.below(u64::from(len) - 1) as u32,
            ];
            for (i, (opcode, va)) in [(Opcode::Send, from), (Opcode::Recv, to)]
                .into_iter()
                .enumerate()
            {
                let (host, at) = (i ^ sender, va + u64::from(cut[i]));
                let first = transfer(opcode, conn as u32, va, cut[i]);
                let second = transfer(opcode, conn as u32, at, len - cut[i]);
                for d in [first, second] {
                    tickets[host].push(hosts[host].post(&d));
                }
            }
            wanted.push((1 - sender, to, bytes));
        }
        let mut left = 0;
        for _ in 0..200_000 {
            cycle(&mut hosts);
            left = 0;
            for (host, tickets) in hosts.iter_mut().zip(&mut tickets) {
                tickets.retain(|t| match host.completion(*t) {
                    Some(end) => {
                        assert_eq!(end.status, Status::Ok);
                        false
                    }
                    None => true,
                });
                left += tickets.len();
            }
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "operations that do not end");
        for (host, to, bytes) in wanted {
            assert!(hosts[host].gpu(to, bytes.len() as u64) == bytes);
        }
    }
}

#[test]
fn entries_are_judged_as_the_software_decoder_judges_them() {
    let (mut host, mut rng) = (Host::new(5), Rng::new(6));
    let (mut bad, mut good) = (0, 0);
    for n in 0..1_500_u32 {
        let mut d = Descriptor::new(Opcode::Nop);
        d.wr_id = rng.bits();
        d.flags = Flags((rng.bits() & rng.bits() & rng.bits()) as u8);
        d.inline_len = if rng.below(4) == 0 {
            rng.below(64) as u8
        } else {
            0
        };
        d.operand = rng.bits();
        d.timeout_us = rng.bits() as u32;
        let lap = lap_bit(host.next, DEPTH_LOG2);
        let mut entry = d.encode(lap);
        // Every opcode byte; not those that would be executed here.
        let opcode = match n % 2 {
            0 => (n / 2 % 256) as u8,
            _ => 1 + rng.below(19) as u8,
        };
        entry.0[0] = entry.0[0] & !0xff | u64::from(opcode);
        if [Opcode::Send, Opcode::Recv]
            .map(Opcode::code)
            .contains(&opcode)
        {
            entry.0[0] |= 1 << 8 | 63 << 16;
        }
        if rng.below(4) == 0 {
            entry.0[[0, 7][rng.below(2) as usize]] ^= 1 << (8 + rng.below(55));
        }
        let ticket = host.post_entry(entry);
        let end = (0..5_000).find_map(|_| {
            host.cycle();
            host.completion(ticket)
        });
        let end = end.unwrap_or_else(|| panic!("entry {n} {:x?} does not end", entry.0));
        assert_eq!((end.wr_id, end.opcode), (entry.wr_id(), opcode));
        let got = host.fetched.pop().expect("it was fetched");
        assert_eq!((got.queue, got.ticket), (3, ticket));
        match WorkQueueEntry(entry.0.map(|w| w & !(1 << 63) | lap)).decode() {
            Ok(_) => good += u32::from(got.bad.is_none()),
            Err(e) => bad += u32::from(got.bad == Some(e.word())),
        }
    }
    assert_eq!(bad + good, 1_500, "the card and the software differ");
    assert!(bad > 300 && good > 50, "{bad} bad, {good} good");
}

#[test]
fn an_entry_that_lacks_a_word_is_taken_when_it_has_come() {
    let mut host = Host::new(7);
    for ticket in 0..40_u32 {
        let entry = Descriptor::new(Opcode::Nop).encode(lap_bit(ticket, DEPTH_LOG2));
        let slot = SQ + 64 * u64::from(ticket % (1 << DEPTH_LOG2));
        let late = u64::from(ticket % 8) * 8;
        let before = host.ram.peek(slot + late, 8);
        host.ram.poke(slot, &entry.0.map(u64::to_le_bytes).concat());
        host.ram.poke(slot + late, &before);
        // A slot of the first lap lacks it when the old bytes are of another lap, which zeros are.
        host.next += 1;
        assert!(host.card.bar_write(bar::doorbell_offset(3), host.next));
        (0..1_500).for_each(|_| host.cycle());
        assert!(
            host.completion(ticket).is_none(),
            "ticket {ticket} was taken without a word"
        );
        host.ram.poke(slot, &entry.0.map(u64::to_le_bytes).concat());
        let end = (0..1_500).find_map(|_| {
            host.cycle();
            host.completion(ticket)
        });
        assert!(end.is_some(), "ticket {ticket} was forgotten");
    }
}

#[test]
fn a_fault_ends_one_side_of_a_connection_with_the_bytes_before_it() {
    let mut hosts = hosts();
    let end = BASE + 2 * LARGE_PAGE_BYTES;
    for (side, opcode) in [(0, Opcode::Send), (1, Opcode::Recv)] {
        // 1,000 bytes of memory, and 500 behind its end.
        let va = end - 1_000;
        let bad = hosts[side].post(&transfer(opcode, 1, va, 1_500));
        if side == 1 {
            hosts[0].sent.insert(1, vec![7; 1_500]);
        }
        for _ in 0..3_000 {
            cycle(&mut hosts);
        }
        let host = &mut hosts[side];
        // At the burst in which it happens.
        assert_eq!(host.faults, [(side == 0, 1, end)]);
        assert!(host.completion(bad).is_none(), "it waits to be flushed");
        host.card
            .control(1, [Control::FlushSends, Control::FlushReceives][side]);
        let ended = (0..100).find_map(|_| {
            host.cycle();
            host.completion(bad)
        });
        assert_eq!(ended.map(|e| e.status), Some(Status::NoTranslation));
        if side == 1 {
            assert_eq!(host.gpu(va, 1_000), vec![7; 1_000]);
        } else {
            // Whole beats.
            assert_eq!(host.sent.remove(&1).map(|s| s.len()), Some(960));
        }
    }
    // The other connections, and this one, go on.
    for conn in [1, 2] {
        hosts.iter_mut().for_each(|h| h.wants.clear());
        hosts[0].set_gpu(BASE, &[9; 300]);
        let tickets = [
            hosts[0].post(&transfer(Opcode::Send, conn, BASE, 300)),
            hosts[1].post(&transfer(Opcode::Recv, conn, BASE + 5, 300)),
        ];
        let ends = complete(&mut hosts, tickets);
        assert!(ends.iter().all(|e| e.status == Status::Ok));
        assert_eq!(hosts[1].gpu(BASE + 5, 300), vec![9; 300]);
    }
}

#[test]
fn segments_that_lie_about_their_length_harm_no_other() {
    let mut host = Host::new(8);
    let receive = |host: &mut Host, len| host.post(&transfer(Opcode::Recv, 2, BASE + 3, len));
    let settle = |host: &mut Host| (0..1_000).for_each(|_| host.cycle());
    let first = receive(&mut host, 1_000);
    settle(&mut host);
    // Nothing wants them: no receive, too long, no such connection.
    host.card.receive(3, vec![1; 200]);
    host.card.receive(2, vec![2; 1_001]);
    host.card.receive(900, vec![3; 64]);
    settle(&mut host);
    assert_eq!(
        (host.card.cycles().dropped, host.completion(first)),
        (3, None)
    );
    // More beats than it states: those behind are dropped.
    host.card.receive_as(2, 600, vec![4; 5_000]);
    settle(&mut host);
    assert_eq!(host.gpu(BASE + 3, 601), [vec![4; 600], vec![0]].concat());
    // Fewer: the connection's receives wait for a flush.
    host.card.receive_as(2, 400, vec![5; 64]);
    settle(&mut host);
    assert_eq!(host.faults.len(), 1);
    assert_eq!(host.completion(first), None);
    host.card.control(2, Control::FlushReceives);
    settle(&mut host);
    assert!(host.completion(first).is_some());
    let second = receive(&mut host, 70);
    settle(&mut host);
    host.card.receive(2, vec![6; 70]);
    settle(&mut host);
    assert_eq!(host.completion(second).map(|e| e.status), Some(Status::Ok));
    assert_eq!(host.gpu(BASE + 3, 70), vec![6; 70]);
}

#[test]
fn registers_are_the_gtlbs_or_the_command_layers() {
    let mut card = Host::new(10).card;
    assert_eq!(card.bar_read(Reg::Magic.offset()), Some(bar::MAGIC));
    assert_eq!(card.bar_read(bar::CONTROL_BYTES - 4), None);
    assert!(!card.bar_write(Reg::Magic.offset(), 1), "it is read only");
    // There is no command 9.
    assert!(!card.bar_write(Reg::GtlbCommand.offset(), 9));
    assert_eq!(card.event(), None);
    assert!(card.bar_write(Reg::Reset.offset(), 1));
    let (index, value) = (Reg::Reset as u32, 1);
    assert_eq!(card.event(), Some(Event::Register { index, value }));
}

#[test]
fn operations_without_a_connection_or_bytes_are_refused() {
    let mut host = Host::new(11);
    host.card.control(3, Control::Close);
    for (conn, len) in [(3, 10), (63, 10), (64, 10), (2, 0)] {
        for opcode in [Opcode::Send, Opcode::Recv] {
            let ticket = host.post(&transfer(opcode, conn, BASE, len));
            (0..1_000).for_each(|_| host.cycle());
            let end = host.completion(ticket).map(|e| (e.status, e.bytes));
            assert_eq!(end, Some((Status::NotConnected, 0)), "{conn}, {len} bytes");
        }
    }
}

#[test]
fn a_doorbell_is_followed_by_the_fetch_within_12_cycles() {
    let mut host = Host::new(9);
    // The permits of a new queue are cleared, one a cycle.
    (0..2_000).for_each(|_| host.cycle());
    let rung = host.card.cycles().cycles;
    let ticket = host.post(&Descriptor::new(Opcode::Nop));
    while host.card.cycles().last_read < rung {
        host.cycle();
        assert!(host.card.cycles().cycles < rung + 50, "nothing is fetched");
    }
    let fetched = host.card.cycles().last_read;
    println!("{} cycles from the doorbell to the fetch", fetched - rung);
    assert!((1..=12).contains(&(fetched - rung)));
    (0..2 * LATENCY).for_each(|_| host.cycle());
    assert!(host.completion(ticket).is_some());
}

#[test]
fn long_messages_move_a_beat_a_cycle() {
    let mut hosts = hosts();
    let len = 1 << 20;
    let tickets = [
        hosts[0].post(&transfer(Opcode::Send, 0, BASE, len)),
        hosts[1].post(&transfer(Opcode::Recv, 0, BASE + LARGE_PAGE_BYTES + 5, len)),
    ];
    let start = hosts[0].card.cycles();
    let ends = complete(&mut hosts, tickets);
    assert!(ends.iter().all(|e| e.status == Status::Ok));
    let now = hosts[0].card.cycles();
    let (cycles, beats) = (now.cycles - start.cycles, now.tx_beats - start.tx_beats);
    assert_eq!(beats, u64::from(len) / 64);
    // The wire passes whole chunks on, so the last one is received after it was sent.
    let slack = 2 * 1_024 + 4 * LATENCY + 200;
    println!("{beats} beats in {cycles} cycles, {} stalls", now.stalls);
    assert!(cycles < beats + slack, "{cycles} cycles for {beats} beats");
}
