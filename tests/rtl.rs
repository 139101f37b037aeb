//! The NIC `rtl` through the public API: sockets, kernels and collectives whose descriptors and payloads pass simulated hardware.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringbell::nic::CardCounts;
use ringbell::{CommOptions, Communicator, Nic, Operation, ReduceOp};

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

#[test]
fn an_all_reduce_of_four_ranks_passes_their_hardware() {
    let folder = Folder::new();
    let nics: Vec<Nic> = (11..15).map(|last| nic(&folder, last)).collect();
    let options = CommOptions {
        timeout: Duration::from_secs(60),
        ..CommOptions::default()
    };
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
    }
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
