//! The NIC `rtl` through the public API: sockets, kernels and collectives whose descriptors and
//! payloads pass simulated hardware.

#[path = "rtl/hostile.rs"]
mod hostile;
#[path = "rtl/ring.rs"]
mod ring;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringbell::abi::EngineId;
use ringbell::engines::checksum::{Checksum, ChecksumEngine};
use ringbell::engines::hll::{HllConfig, HllEngine, HllSummary, Sketch};
use ringbell::engines::{read_result, Direction, StreamEngine};
use ringbell::nic::CardCounts;
use ringbell::{CommOptions, Communicator, Nic, Operation, ReduceOp, Socket};

/// A discovery folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Folder(std::env::temp_dir().join(format!("rb-rtl-{}-{n}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn nic(folder: &Folder, last: u8) -> Nic {
    let builder = Nic::builder().nic("rtl").gpu("emulated");
    let builder = builder.gpu_memory(64 << 20).directory(&folder.0);
    builder
        .ip(format!("10.9.60.{last}/24"))
        .open()
        .expect("a NIC")
}

fn counts(nic: &Nic) -> CardCounts {
    nic.backend().card_counts().expect("it has hardware")
}

#[test]
fn the_environment_selects_the_hardware() {
    let folder = Folder::new();
    let builder = Nic::builder().gpu("emulated").gpu_memory(4 << 20);
    let nic = builder.directory(&folder.0).open().expect("a NIC");
    let asked = std::env::var("RINGBELL_NIC").is_ok_and(|kind| kind == "rtl");
    assert_eq!(nic.backend().card_counts().is_some(), asked);
}

#[test]
fn payloads_of_sockets_pass_the_hardware() {
    let folder = Folder::new();
    let (a, b) = (nic(&folder, 1), nic(&folder, 2));
    let listener = b.listen(70).expect("a free port");
    let to = format!("{}:70", b.ip().ip);
    let client = a.connect(&*to).expect("there");
    let server = listener.accept().expect("it");
    client.set_timeout(Duration::from_secs(60));
    server.set_timeout(Duration::from_secs(60));
    let sizes = [1_u64, 40, 41, 5_000, 65_536, 300_000, 1 << 20];
    for (n, len) in (0..).zip(sizes) {
        let (out, into) = (
            a.alloc::<u8>(len).expect("room"),
            b.alloc::<u8>(len).expect("room"),
        );
        let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8 ^ n).collect();
        out.write(0, &data).expect("inside");
        let (sent, received) = (counts(&a), counts(&b));
        std::thread::scope(|s| {
            s.spawn(|| client.send(&out).expect("sent"));
            assert_eq!(server.recv(&into).expect("received"), len);
        });
        assert!(into.to_vec().expect("a copy") == data, "{len} bytes differ");
        let sent = counts(&a).tx_bytes - sent.tx_bytes;
        let received = counts(&b).rx_bytes - received.rx_bytes;
        assert_eq!((sent, received), (len, len));
    }
    let (a, b) = (counts(&a), counts(&b));
    assert_eq!((a.in_software, b.in_software), (0, 0));
    assert!(a.cycles.fetched >= 8 && b.cycles.completed >= 8);
    assert_eq!((a.faults, b.faults, a.cycles.strays), (0, 0, 0));
}

/// Two NICs, with a client at the first and a server at the second.
fn pair(folder: &Folder, last: u8) -> (Nic, Nic, Vec<(Socket, Socket)>) {
    let (a, b) = (nic(folder, last), nic(folder, last + 1));
    let listener = b.listen(70).expect("a free port");
    let to = format!("{}:70", b.ip().ip);
    let sockets = (0..2).map(|_| {
        let client = a.connect(&*to).expect("there");
        let server = listener.accept().expect("it");
        client.set_timeout(Duration::from_secs(60));
        server.set_timeout(Duration::from_secs(60));
        (client, server)
    });
    let sockets = sockets.collect();
    (a, b, sockets)
}

/// Sends bytes from GPU to GPU.
fn stream((a, b): (&Nic, &Nic), (client, server): &(Socket, Socket), data: &[u8]) {
    let len = data.len() as u64;
    let out = a.alloc::<u8>(len).expect("room");
    let into = b.alloc::<u8>(len).expect("room");
    out.write(0, data).expect("inside");
    std::thread::scope(|s| {
        s.spawn(|| client.send(&out).expect("sent"));
        assert_eq!(server.recv(&into).expect("received"), len);
    });
    assert!(into.to_vec().expect("a copy") == data, "{len} bytes differ");
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Compares the sketch that a NIC gives with that of the software's engine over the same bytes.
fn compare(nic: &Nic, id: EngineId, own: &HllEngine) {
    let result = nic.engine_result(id).expect("a result").bytes;
    let summary = HllSummary::read(&result).expect("a summary");
    let sketch = Sketch::read(&result[HllSummary::BYTES..]).expect("a sketch");
    assert_eq!(summary.items, own.items());
    assert!(
        sketch.registers() == own.sketch().registers(),
        "registers differ"
    );
}

#[test]
fn hyperloglog_of_received_bytes_is_counted_by_the_hardware_bit_for_bit() {
    let folder = Folder::new();
    let (a, b, sockets) = pair(&folder, 31);
    let config = HllConfig {
        precision: 14,
        ..HllConfig::default()
    };
    let [engine, mut own] = [(); 2].map(|()| HllEngine::new(config).expect("in range"));
    let id = sockets[0]
        .1
        .attach_engine(Direction::Receive, Box::new(engine));
    let id = id.expect("a path");
    for (round, len) in (0..).zip([4_000, 3, 1, 70_001, 7, 300_000]) {
        let data = noise(round, len);
        stream((&a, &b), &sockets[0], &data);
        own.process(&data, &mut Vec::new());
        // Others pass by.
        stream((&a, &b), &sockets[1], &data);
        if round % 2 == 1 {
            compare(&b, id, &own);
        }
    }
    let c = counts(&b);
    assert_eq!((c.engines, c.in_software), (1, 0));
    assert!(c.cycles.engine_beats >= 374_000 / 64, "{c:?}");
    let info = b.engines().into_iter().find(|e| e.id == id).expect("it");
    assert_eq!((info.bytes_in, info.failed), (374_012, false));
}

#[test]
fn a_checksum_is_counted_by_the_hardware_and_the_next_by_the_software() {
    let folder = Folder::new();
    let (a, b, sockets) = pair(&folder, 41);
    let attach = |which: usize| {
        let engine = Box::new(ChecksumEngine::new());
        let id = sockets[which].1.attach_engine(Direction::Receive, engine);
        id.expect("a path")
    };
    let ids = [attach(0), attach(1)];
    // The card has one.
    assert_eq!(counts(&b).engines, 1);
    let mut own = ChecksumEngine::new();
    for (round, len) in (0..).zip([1, 64, 65, 5_000, 200_003]) {
        let data = noise(round, len);
        own.process(&data, &mut Vec::new());
        for pair in &sockets {
            stream((&a, &b), pair, &data);
        }
        for id in ids {
            let result = b.engine_result(id).expect("a result").bytes;
            let sum: Checksum = read_result(&result).expect("a checksum");
            assert_eq!(
                (sum.crc32c, sum.bytes),
                (own.checksum().into(), own.bytes())
            );
        }
    }
    let c = counts(&b);
    assert!(c.cycles.engine_beats > 3_000, "{c:?}");
    // What is detached leaves the engine to the next, and its result is complete.
    let result = b.detach_engine(ids[0]).expect("a result").bytes;
    assert_eq!(
        read_result::<Checksum>(&result).expect("one").bytes,
        own.bytes()
    );
    let again = attach(0);
    assert_eq!(counts(&b).engines, 2);
    stream((&a, &b), &sockets[0], b"123456789");
    let result = b.detach_engine(again).expect("a result").bytes;
    let sum: Checksum = read_result(&result).expect("a checksum");
    assert_eq!((sum.crc32c, sum.bytes), (0xe306_9283, 9));
}

#[test]
fn an_all_reduce_of_four_ranks_passes_their_hardware() {
    let folder = Folder::new();
    let nics: Vec<Nic> = (11..15).map(|last| nic(&folder, last)).collect();
    let mut options = CommOptions {
        timeout: Duration::from_secs(60),
        ..CommOptions::default()
    };
    // The steps in software, and its operands in the card's adders.
    options.settings.card = false;
    let comms = Communicator::init_all(&nics, &options).expect("four ranks");
    const COUNT: u64 = 10_007;
    let buffers: Vec<_> = (0..)
        .zip(&nics)
        .map(|(rank, nic)| {
            let x = nic.alloc::<u32>(COUNT).expect("room");
            let data: Vec<u32> = (0..COUNT as u32).map(|i| i * 3 + rank).collect();
            x.write(0, &data).expect("inside");
            x
        })
        .collect();
    let sums: Vec<_> = comms
        .iter()
        .zip(&buffers)
        .map(|(comm, x)| {
            let sum = Operation::all_reduce::<u32>(x, x, COUNT, ReduceOp::Sum);
            (comm, sum)
        })
        .collect();
    Communicator::group(&sums).expect("all ranks are here");
    let wanted: Vec<u32> = (0..COUNT as u32).map(|i| i * 12 + 6).collect();
    for (nic, x) in nics.iter().zip(&buffers) {
        assert!(x.to_vec().expect("a copy") == wanted);
        // At least half of the data leaves each rank, and comes to it.
        let c = counts(nic);
        assert!(c.tx_bytes >= 2 * COUNT && c.rx_bytes >= 2 * COUNT, "{c:?}");
        assert!(c.faults == 0 && c.cycles.fetched > 0, "{c:?}");
        // Three quarters of the data are reduced in each NIC, or all of it in one and half in
        // another.
        assert!(c.reductions > 0 && c.reductions_in_software == 0, "{c:?}");
    }
    let beats: u64 = nics.iter().map(|nic| counts(nic).cycles.reduce_beats).sum();
    assert!(beats >= 3 * COUNT * 4 / 64, "{beats} beats of reductions");
}

#[test]
fn a_trace_of_all_signals_is_written_for_each_nic() {
    let (folder, traces) = (Folder::new(), Folder::new());
    std::fs::create_dir_all(&traces.0).expect("a folder");
    let builder = Nic::builder()
        .nic("rtl")
        .gpu("emulated")
        .ip("10.9.60.21/24");
    let builder = builder.gpu_memory(16 << 20).directory(&folder.0);
    let nic = builder.vcd(traces.0.join("t.vcd")).open().expect("a NIC");
    let queue = nic.create_queue().expect("a queue");
    let nop = ringbell::abi::Descriptor::new(ringbell::abi::Opcode::Nop);
    queue.call(&nop).expect("completed");
    drop(queue);
    drop(nic);
    let trace = std::fs::read_to_string(traces.0.join("t-10.9.60.21.vcd")).expect("it is there");
    assert!(trace.contains("line_valid_o") && trace.contains("$enddefinitions"));
    assert!(trace.lines().filter(|l| l.starts_with('#')).count() > 1_000);
    let nowhere = Nic::builder().nic("rtl").vcd("/nowhere/t.vcd").open();
    let e = nowhere.expect_err("no such folder");
    assert!(e.to_string().contains("/nowhere/t-10.77.0.1.vcd"), "{e}");
}
