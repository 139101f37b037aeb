//! The engines of `nic_top.sv` on the path of received payloads, beside those of the software NIC.

use super::host::{complete, cycle, hosts, transfer, Host, BASE};
use super::stress::hold;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::LARGE_PAGE_BYTES;
use ringbell_hw_sim::card::{Control, Counted, Io};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::engine::{
    ENGINE_CRC32C, ENGINE_HLL14, ENGINE_HLL16, ENGINE_OFF, ENGINE_RESULT,
};
use ringbell_nic_abi::{Opcode, Status};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::hll::{HllConfig, HllEngine};
use ringbell_onc_engines::stream::StreamEngine;

/// An engine of the software NIC, and the engine of the card that is to have counted the same.
fn software(command: u32) -> Box<dyn StreamEngine> {
    let hll = |precision| {
        let config = HllConfig {
            precision,
            ..HllConfig::default()
        };
        Box::new(HllEngine::new(config).expect("in range"))
    };
    match command {
        ENGINE_HLL14 => hll(14),
        ENGINE_HLL16 => hll(16),
        _ => Box::new(ChecksumEngine::new()),
    }
}

/// What the card gives for bytes: the block's result, and the beginning of an item.
fn wanted(command: u32, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    if command == ENGINE_CRC32C {
        let mut engine = ChecksumEngine::new();
        engine.process(bytes, &mut Vec::new());
        let mut result = Vec::new();
        engine.result(&mut result);
        return (result, Vec::new());
    }
    let precision = if command == ENGINE_HLL14 { 14 } else { 16 };
    let config = HllConfig {
        precision,
        ..HllConfig::default()
    };
    let mut engine = HllEngine::new(config).expect("in range");
    let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
    engine.process(whole, &mut Vec::new());
    let mut result = engine.items().to_le_bytes().to_vec();
    result.push(precision);
    result.resize(64, 0);
    result.extend(engine.sketch().registers());
    (result, rest.to_vec())
}

fn command(host: &mut Host, command: u32) -> bool {
    host.card.bar_write(Reg::EngineCommand.offset(), command)
}

fn attach(host: &mut Host, conn: u32, engine: u32) {
    assert!(host.card.bar_write(Reg::EngineConn.offset(), conn));
    assert!(command(host, engine));
}

fn read_out(host: &mut Host) -> Counted {
    assert!(command(host, ENGINE_RESULT));
    for _ in 0..200_000 {
        host.cycle();
        if let Some(counted) = host.counted.take() {
            return counted;
        }
    }
    panic!("no result");
}

/// Moves bytes from the first host to the second on a connection.
fn send(hosts: &mut [Host; 2], rng: &mut Rng, conn: u32, bytes: &[u8]) {
    let len = bytes.len() as u32;
    let [from, to] = [(); 2].map(|()| BASE + rng.below(LARGE_PAGE_BYTES));
    hosts[0].set_gpu(from, bytes);
    let sent = hosts[0].post(&transfer(Opcode::Send, conn, from, len));
    let received = hosts[1].post(&transfer(Opcode::Recv, conn, to, len));
    for end in complete(hosts, [sent, received]) {
        assert_eq!((end.status, end.bytes), (Status::Ok, len.into()));
    }
    assert!(hosts[1].gpu(to, len.into()) == bytes, "{len} bytes differ");
}

#[test]
fn an_engine_counts_the_bytes_of_its_connection_and_of_no_other() {
    for (engine, waits) in [
        (ENGINE_CRC32C, 0),
        (ENGINE_CRC32C, 4),
        (ENGINE_HLL14, 0),
        (ENGINE_HLL16, 3),
    ] {
        let (mut hosts, mut rng) = (hosts(), Rng::new(engine.into()));
        if waits > 0 {
            hold(&mut hosts[1], 70 + u64::from(engine), waits);
        }
        attach(&mut hosts[1], 1, engine);
        let mut seen = Vec::new();
        for round in 0..14 {
            let most = [6, 70, 700, 9_000][round % 4];
            let len = 1 + rng.below(most) as usize;
            let bytes = rng.bytes(len);
            let conn = if round % 3 == 2 { 2 } else { 1 };
            send(&mut hosts, &mut rng, conn, &bytes);
            if conn == 1 {
                seen.extend(bytes);
            }
            // A read-out clears the engine, in the middle of an item too.
            if round == 5 || round == 13 {
                let counted = read_out(&mut hosts[1]);
                let (result, rest) = wanted(engine, &seen);
                assert!(!counted.failed && counted.rest == rest);
                assert!(
                    counted.result == result,
                    "engine {engine} after round {round}"
                );
                // It takes the form that the software's engine absorbs.
                let mut own = software(engine);
                assert!(own.absorb(&counted.result));
                seen = rest;
            }
        }
        assert_eq!(hosts[1].card.cycles().dropped, 0);
    }
}

#[test]
fn segments_that_came_before_and_those_behind_the_detaching_are_not_counted() {
    let (mut hosts, mut rng) = (hosts(), Rng::new(9));
    attach(&mut hosts[1], 3, ENGINE_CRC32C);
    let first = rng.bytes(130);
    send(&mut hosts, &mut rng, 3, &first);
    // A segment that no receive waits for is dropped, and was seen.
    let dropped = rng.bytes(77);
    hosts[1].card.receive(3, dropped.clone());
    hosts[1].card.receive_again(3, dropped.clone());
    (0..300).for_each(|_| hosts[1].cycle());
    assert_eq!(hosts[1].card.cycles().dropped, 2);
    let counted = read_out(&mut hosts[1]);
    let all = [first, dropped].concat();
    assert!(counted.result == wanted(ENGINE_CRC32C, &all).0);
    assert!(command(&mut hosts[1], ENGINE_OFF));
    let more = rng.bytes(1_000);
    send(&mut hosts, &mut rng, 3, &more);
    let c = hosts[1].card.cycles();
    assert_eq!(c.engine_beats, 3 + 2);
    // Nothing is there to be read, and there is no engine 5.
    assert!(!command(&mut hosts[1], ENGINE_RESULT) && !command(&mut hosts[1], 5));
}

#[test]
fn a_reset_at_any_cycle_leaves_an_engine_that_works() {
    let (mut hosts, mut rng) = (hosts(), Rng::new(11));
    for round in 0..6 {
        attach(&mut hosts[1], 1, ENGINE_CRC32C);
        let bytes = rng.bytes(20_000);
        hosts[0].set_gpu(BASE, &bytes);
        hosts[0].post(&transfer(Opcode::Send, 1, BASE, 20_000));
        hosts[1].post(&transfer(Opcode::Recv, 1, BASE, 20_000));
        (0..500 + rng.below(400)).for_each(|_| cycle(&mut hosts));
        if round % 2 == 0 {
            assert!(command(&mut hosts[1], ENGINE_RESULT));
            (0..rng.below(12)).for_each(|_| cycle(&mut hosts));
        }
        hosts.iter_mut().for_each(Host::reset);
        let bytes = rng.bytes(3_001);
        attach(&mut hosts[1], 1, ENGINE_CRC32C);
        send(&mut hosts, &mut rng, 1, &bytes);
        let counted = read_out(&mut hosts[1]);
        assert!(
            counted.result == wanted(ENGINE_CRC32C, &bytes).0,
            "round {round}"
        );
    }
}

/// Cycles from the first to the last beat of a segment of 1 MiB that the transport has as a whole,
/// and those in which it waits.
fn beats_of(engine: u32) -> (u64, u64, u64) {
    let mut host = Host::with(7, 20);
    attach(&mut host, 1, engine);
    // HyperLogLog's registers are cleared meanwhile.
    (0..17_000).for_each(|_| host.cycle());
    let len = 1 << 20;
    host.card.control(1, Control::Open);
    host.card.post(Io {
        send: false,
        conn: 1,
        va: BASE,
        len,
        some: false,
        tag: 0,
    });
    (0..50).for_each(|_| host.card.cycle());
    let before = host.card.cycles();
    host.card.receive(1, Rng::new(8).bytes(len as usize));
    while host.card.cycles().rx_beats < before.rx_beats + u64::from(len / 64) {
        host.card.cycle();
    }
    let now = host.card.cycles();
    (
        now.cycles - before.cycles,
        now.stalls - before.stalls,
        now.engine_stalls,
    )
}

#[test]
fn a_beat_a_cycle_passes_an_engine() {
    for engine in [ENGINE_OFF, ENGINE_CRC32C, ENGINE_HLL16] {
        let (cycles, waits, stalls) = beats_of(engine);
        assert!(
            cycles < 16_384 + 16 && waits < 16 && stalls == 0,
            "engine {engine}: {cycles} cycles, {waits} waits, {stalls} stalls"
        );
    }
}
