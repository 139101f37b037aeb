//! FpgaNIC's Fig. 4 (throughput of DMA by size) and 5a (round trip by size) in cycles of the card,
//! and timing diagrams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::host::{Host, BASE};
use ringbell_gtlb::LARGE_PAGE_BYTES;
use ringbell_hw_sim::card::{Card, Control, Ended, Event, Io};
use ringbell_hw_sim::figure::{self, Signal, Wave};
use ringbell_hw_sim::nic_top::Block;
use ringbell_nic_abi::{Descriptor, Opcode};

/// Cycles until the GPU answers a read, and of a link with its switch: 0.8 µs at 250 MHz, as in the
/// ring of `sequencer`.
const GPU: u64 = 200;
const LINK: u64 = 200;
/// Connections, and operations of the card at a time: four slots of each.
const CONNS: u16 = 16;
const UNDER_WAY: u32 = 4 * CONNS as u32;

/// Cycles per operation of so many bytes, in a steady state of many. They end in the order in which
/// their places are free.
fn cycles_of_dma(send: bool, len: u32) -> (u64, u64) {
    let mut host = Host::with(1, GPU);
    let card = &mut host.card;
    for conn in 0..CONNS {
        card.control(conn, Control::Open);
        card.credit(conn, 1 << 20);
    }
    let count = (256 * 1024 / len).max(2 * UNDER_WAY);
    let (mut posted, mut ended, mut since) = (0, 0, 0);
    // Connections with a free place.
    let mut free: VecDeque<u16> = (0..4 * CONNS).map(|i| i % CONNS).collect();
    while ended < count {
        while let (true, Some(conn)) = (posted < count, free.front().copied()) {
            free.pop_front();
            let va = BASE + u64::from(posted) * u64::from(len) % LARGE_PAGE_BYTES;
            let some = false;
            let tag = conn;
            card.post(Io {
                send,
                conn,
                va,
                len,
                some,
                tag,
            });
            posted += 1;
        }
        card.cycle();
        while let Some(event) = card.event() {
            match event {
                Event::End {
                    tag, ended: how, ..
                } => {
                    assert_eq!(how, Ended::Done(len));
                    free.push_back(tag);
                    ended += 1;
                    if ended == UNDER_WAY / 2 {
                        since = card.cycles().cycles;
                    }
                }
                Event::Sent { conn, bytes, .. } => card.credit(conn, bytes.len() as u32),
                Event::Want { conn, len, .. } => card.receive(conn, vec![7; len as usize]),
                other => panic!("{other:?}"),
            }
        }
        assert!(
            card.cycles().cycles < 10_000_000,
            "an operation does not end"
        );
    }
    let counted = u64::from(count - UNDER_WAY / 2);
    (counted * u64::from(len), card.cycles().cycles - since)
}

#[test]
fn figure_4() {
    let mut rows = String::new();
    for size in (6..=16).map(|shift| 1_u32 << shift) {
        for (series, send) in [("read", true), ("write", false)] {
            let (bytes, cycles) = cycles_of_dma(send, size);
            assert!(cycles >= bytes / 64, "more than a beat a cycle");
            if size >= 4_096 {
                assert!(
                    cycles * 9 < bytes / 64 * 10,
                    "{series} of {size} bytes: {cycles} cycles for {bytes} bytes"
                );
            }
            rows.push_str(&format!("{size}\t{bytes}\t{cycles}\t{series}\n"));
        }
    }
    println!("{rows}");
    figure::record("fig4.tsv", &rows);
}

/// Cycles from a send of one card to the end of the receive of what the other sends back; between
/// GPU memories.
fn round_trip(len: u32) -> u64 {
    let mut cards: [Card; 2] = [1, 2].map(|seed| Host::with(seed, GPU).card);
    let io = |send, va| Io {
        send,
        conn: 0,
        va: BASE + va,
        len,
        some: false,
        tag: u16::from(send),
    };
    let mut wire: [VecDeque<(u64, Vec<u8>)>; 2] = Default::default();
    cards.iter_mut().for_each(|card| card.post(io(false, 64)));
    for _ in 0..1_000 {
        cards.iter_mut().for_each(Card::cycle);
    }
    let mut wanted = [true; 2];
    for card in &mut cards {
        let want = card.event();
        assert!(matches!(want, Some(Event::Want { .. })), "{want:?}");
    }
    cards[0].post(io(true, 0));
    for now in 0..1_000_000 {
        for (i, card) in cards.iter_mut().enumerate() {
            if wanted[i] && wire[i].front().is_some_and(|p| p.0 <= now) {
                wanted[i] = false;
                let (_, bytes) = wire[i].pop_front().expect("seen");
                card.receive(0, bytes);
            }
            card.cycle();
            while let Some(event) = card.event() {
                match event {
                    Event::Sent { bytes, .. } => wire[1 - i].push_back((now + LINK, bytes)),
                    Event::End { send: false, .. } if i == 0 => return now,
                    Event::End { send: false, .. } => card.post(io(true, 64)),
                    Event::End { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    panic!("{len} bytes do not come back");
}

#[test]
fn figure_5a() {
    let mut rows = String::new();
    let mut before = 0;
    for size in (6..=16).map(|shift| 1_u32 << shift) {
        let cycles = round_trip(size);
        assert!(
            cycles > before.max(2 * (GPU + LINK)),
            "a longer message is not sooner"
        );
        before = cycles;
        rows.push_str(&format!("{size}\t{size}\t{cycles}\tGPU to GPU and back\n"));
    }
    println!("{rows}");
    figure::record("fig5a.tsv", &rows);
}

/// Watches a card while `act` runs it.
fn watched(
    signals: &[Signal],
    look: impl Fn(&Block) -> Vec<Option<u64>> + Send + 'static,
    host: &mut Host,
    act: impl FnOnce(&mut Host),
) -> String {
    let wave = Arc::new(Mutex::new(Wave::new(signals)));
    let samples = wave.clone();
    host.card
        .watch(move |ports| samples.lock().expect("unpoisoned").sample(&look(ports)));
    act(host);
    let drawn = wave.lock().expect("unpoisoned").to_string();
    drawn
}

/// A word that means something while a bit is set.
fn with(valid: u64, value: u64) -> Option<u64> {
    (valid == 1).then_some(value)
}

#[test]
fn timing_of_a_doorbell() {
    use Signal::{Bit, Word};
    let mut host = Host::with(3, 20);
    (0..2_000).for_each(|_| host.cycle());
    let signals = [
        Bit("awvalid_i, wvalid_i"),
        Word("wdata_i"),
        Bit("bvalid_o"),
        Bit("read_valid_o"),
        Word("read_addr_o"),
        Bit("data_valid_i"),
        Bit("op_valid_o"),
        Word("op_ticket_o"),
        Bit("done_valid_i"),
        Bit("line_valid_o"),
        Word("line_addr_o"),
    ];
    let look = |p: &Block| {
        vec![
            Some(p.awvalid_i_now() & p.wvalid_i_now()),
            with(p.awvalid_i_now(), p.wdata_i_now()),
            Some(p.bvalid_o()),
            Some(p.read_valid_o()),
            with(p.read_valid_o(), p.read_addr_o()),
            Some(p.data_valid_i_now()),
            Some(p.op_valid_o()),
            with(p.op_valid_o(), p.op_ticket_o()),
            Some(p.done_valid_i_now()),
            Some(p.line_valid_o()),
            with(p.line_valid_o(), p.line_addr_o()),
        ]
    };
    let drawn = watched(&signals, look, &mut host, |host| {
        let ticket = host.post(&Descriptor::new(Opcode::Nop));
        let ended = (0..100).any(|_| {
            host.cycle();
            host.completion(ticket).is_some()
        });
        assert!(ended, "no completion");
        host.cycle();
    });
    println!("{drawn}");
    figure::record("doorbell.txt", &drawn);
}

#[test]
fn timing_of_a_send() {
    use Signal::{Bit, Word};
    let mut host = Host::with(3, 20);
    (0..2_000).for_each(|_| host.cycle());
    let signals = [
        Bit("io_valid_i"),
        Bit("read_valid_o"),
        Word("read_addr_o[15:0]"),
        Word("read_len_o"),
        Bit("data_valid_i"),
        Bit("tx_meta_valid_o"),
        Word("tx_meta_len_o"),
        Bit("tx_valid_o"),
        Word("bytes of tx_keep_o"),
        Bit("tx_last_o"),
        Bit("end_valid_o"),
    ];
    let look = |p: &Block| {
        vec![
            Some(p.io_valid_i_now()),
            Some(p.read_valid_o()),
            with(p.read_valid_o(), p.read_addr_o() & 0xffff),
            with(p.read_valid_o(), p.read_len_o()),
            Some(p.data_valid_i_now()),
            Some(p.tx_meta_valid_o()),
            with(p.tx_meta_valid_o(), p.tx_meta_len_o()),
            Some(p.tx_valid_o()),
            with(p.tx_valid_o(), p.tx_keep_o().count_ones().into()),
            Some(p.tx_valid_o() & p.tx_last_o()),
            Some(p.end_valid_o()),
        ]
    };
    let drawn = watched(&signals, look, &mut host, |host| {
        let (va, len) = (BASE + 500, 150);
        host.card.post(Io {
            send: true,
            conn: 0,
            va,
            len,
            some: false,
            tag: 0,
        });
        let ended = (0..100).any(|_| {
            host.card.cycle();
            matches!(host.card.event(), Some(Event::End { .. }))
        });
        assert!(ended, "the send does not end");
        host.card.cycle();
    });
    println!("{drawn}");
    figure::record("send.txt", &drawn);
}
