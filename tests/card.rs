//! Tests of a card's doorbells, rung by kernels. The card is a software NIC behind a file: it reads
//! its own mapping of its BAR, and kernels ring in another one that a driver's handle opened and
//! registered for the GPU.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

#[cfg(feature = "cuda")]
use crate::mock_driver;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringbell::abi::bar::{doorbell_offset, Reg, MAX_QUEUES};
use ringbell::abi::queue::QueueHandle;
use ringbell::abi::{Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell::gpu::{EmulatedGpu, EmulatedGpuConfig, GpuChoice};
use ringbell::memory::Access;
use ringbell::nic::QueueConfig;
use ringbell::parts::card::pages::FilePages;
use ringbell::parts::card::{CardBar, CardGtlb, CardGtlbError, Doorbells};
use ringbell::parts::nic_core::{Nic as SoftNic, NicConfig};
use ringbell::{DeviceBuffer, HostQueue, KernelArg, Nic};

const PATIENCE: Duration = Duration::from_secs(60);
const TIMEOUT: KernelArg = KernelArg::U32(30_000_000);

fn folder(test: &str) -> PathBuf {
    let name = format!("card-{test}-{}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn nic(ip: &str, gpu: GpuChoice, folder: &Path) -> Nic {
    let nic = Nic::builder().ip(ip).gpu(gpu).gpu_memory(16 << 20);
    nic.directory(folder).open().expect("a NIC")
}

/// The doorbells of a software NIC, as of a card.
fn doorbells(nic: &Nic) -> Doorbells {
    let file = nic.backend().bar_file();
    let card = CardBar::open(file.to_str().expect("ASCII")).expect("it keeps the contract");
    nic.doorbells(card).expect("a way")
}

/// Runs a kernel and reads its `gpu_result`: status, session, bytes.
fn run(nic: &Nic, out: &DeviceBuffer, name: &str, args: &[KernelArg]) -> (Status, u32, u64) {
    // The calls that move bytes are a warp's, the others a lane's.
    let lanes = if name.ends_with("_all") { 32 } else { 1 };
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { nic.gpu().launch(name, 1, lanes, args) }.expect("it starts");
    launch.wait(PATIENCE).expect("it ends");
    let mut r = [0; 24];
    out.read(0, &mut r).expect("inside");
    let status = Status::from_code(r[0]).expect("a status");
    let session = u32::from_le_bytes(r[4..8].try_into().expect("four bytes"));
    (
        status,
        session,
        u64::from_le_bytes(r[8..16].try_into().expect("eight")),
    )
}

fn call(queue: &HostQueue, opcode: Opcode, change: impl FnOnce(&mut Descriptor)) -> u64 {
    let mut d = Descriptor::new(opcode);
    change(&mut d);
    let done = queue.call(&d).expect("the NIC answers");
    assert_eq!(done.status, Status::Ok, "{opcode:?}");
    done.detail
}

/// Kernels of `a` and `b` connect and exchange messages; every doorbell goes through the BARs'
/// files.
fn messages(test: &str, gpu: GpuChoice) {
    let folder = folder(test);
    let [a, b] = ["10.77.60.1/24", "10.77.60.2/24"].map(|ip| nic(ip, gpu, &folder));
    let [da, db] = [&a, &b].map(doorbells);
    let [qa, qb] = [&a, &b].map(|n| n.create_queue().expect("a queue"));
    let [ha, hb] = [da.handle(&qa), db.handle(&qb)];
    for (through, own) in [(ha, qa.handle()), (hb, qb.handle())] {
        assert_ne!(
            through.doorbell, own.doorbell,
            "another mapping than the NIC's own"
        );
        assert_eq!((through.sq, through.cq), (own.sq, own.cq));
    }
    let [oa, ob] = [&a, &b].map(|n| n.alloc::<u8>(64).expect("memory"));
    let listener = call(&qa, Opcode::Socket, |_| ()) as u32;
    call(&qa, Opcode::Listen, |d| {
        (d.session, d.imm) = (SessionId(listener), 7600 | 4 << 16)
    });
    let accept = [ha.into(), listener.into(), TIMEOUT, (&oa).into()];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let accepting = unsafe { a.gpu().launch("rb_accept", 1, 1, &accept) }.expect("it starts");
    let (status, sb, _) = run(&b, &ob, "rb_socket", &[hb.into(), TIMEOUT, (&ob).into()]);
    assert_eq!(status, Status::Ok);
    let ip = u32::from(Ipv4Addr::new(10, 77, 60, 1));
    let connect = [
        hb.into(),
        sb.into(),
        ip.into(),
        7600_u32.into(),
        TIMEOUT,
        (&ob).into(),
    ];
    assert_eq!(run(&b, &ob, "rb_connect", &connect).0, Status::Ok);
    accepting.wait(PATIENCE).expect("it ends");
    let mut r = [0; 4];
    oa.read(4, &mut r).expect("inside");
    let sa = u32::from_le_bytes(r);

    for (i, len) in [1_u64, 41, 4_097, 200_003].into_iter().enumerate() {
        let (from, to) = (
            b.alloc::<u8>(len).expect("memory"),
            a.alloc::<u8>(len).expect("memory"),
        );
        let sent: Vec<u8> = (0..len).map(|k| (k * 7 + 31 * i as u64) as u8).collect();
        from.write(0, &sent).expect("inside");
        let args = |h: QueueHandle, s: u32, buffer: &DeviceBuffer, out: &DeviceBuffer| {
            [
                h.into(),
                s.into(),
                buffer.into(),
                len.into(),
                TIMEOUT,
                out.into(),
            ]
        };
        let (status, bytes) = {
            let (s, _, n) = run(&b, &ob, "rb_send_all", &args(hb, sb, &from, &ob));
            (s, n)
        };
        assert_eq!((status, bytes), (Status::Ok, len));
        assert_eq!(
            run(&a, &oa, "rb_recv_all", &args(ha, sa, &to, &oa)).0,
            Status::Ok
        );
        let mut got = vec![0; len as usize];
        to.read(0, &mut got).expect("inside");
        assert!(got == sent, "{len} bytes");
    }
    // The kernels' doorbells are visible in the card's BAR, from any mapping.
    let rung = db
        .card()
        .read32(doorbell_offset(qb.id().0))
        .expect("a doorbell");
    assert!(rung >= 6, "two calls and four messages: {rung}");
    drop((da, db));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn kernels_ring_in_a_file_that_is_the_cards_bar() {
    messages("direct", GpuChoice::Emulated);
}

#[cfg(feature = "cuda")]
#[test]
fn a_bar_is_registered_as_io_memory() {
    mock_driver::under_mock("a_bar_is_registered_as_io_memory", "", || {
        messages("io", GpuChoice::Cuda(0));
    });
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_that_refuses_io_memory_is_reported_with_the_reason() {
    let name = "a_gpu_that_refuses_io_memory_is_reported_with_the_reason";
    mock_driver::under_mock(name, "no-io-memory", || {
        let nic = nic("10.77.60.3/24", GpuChoice::Cuda(0), &folder("refused"));
        let file = nic.backend().bar_file();
        let card = CardBar::open(file.to_str().expect("ASCII")).expect("a card");
        let refused = nic.doorbells(card).expect_err("no way").to_string();
        let why = "cuMemHostRegister failed with CUDA_ERROR_NOT_SUPPORTED";
        assert!(refused.contains(why), "{refused}");
    });
}

/// A card that is only a file.
fn silent_card(test: &str) -> (PathBuf, CardBar) {
    let path = std::env::temp_dir().join(format!("rb-{test}-{}", std::process::id()));
    let mut bytes = vec![0_u8; 64 << 10];
    for (reg, value) in [
        (Reg::Magic, ringbell::abi::bar::MAGIC),
        (Reg::AbiVersion, ringbell::abi::ABI_VERSION),
        (Reg::Heartbeat, 77),
    ] {
        bytes[reg.offset()..][..4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(&path, bytes).expect("a file");
    let card = CardBar::open(path.to_str().expect("ASCII")).expect("a card");
    (path, card)
}

#[test]
fn every_queue_has_its_doorbell_and_a_foreign_number_none() {
    let (path, card) = silent_card("numbers");
    for queue in [0, 1, MAX_QUEUES as u32 - 1] {
        card.ring(queue, queue + 5).expect("a doorbell");
        assert_eq!(card.read32(doorbell_offset(queue)), Ok(queue + 5));
    }
    assert!(card.ring(MAX_QUEUES as u32, 1).is_err());
    let _ = std::fs::remove_file(path);
}

/// The GTLB of a card is written through its registers, from page tables as a kernel driver would
/// serve them. Then the NIC's DMA finds the bytes, whose bus addresses differ from their virtual
/// ones.
#[test]
fn a_gtlb_that_was_written_from_a_drivers_page_tables_leads_dma() {
    let gpu = EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 16 << 20,
        ..EmulatedGpuConfig::default()
    })
    .expect("a GPU");
    let nic = SoftNic::builder(NicConfig::default(), gpu.memory())
        .build()
        .expect("a NIC");
    // Some groups in one piece, some scattered; the driver's tables cover all of them.
    let buffers = [5 << 20, 3 * 65_536, 65_536].map(|n| gpu.alloc(n).expect("memory"));
    let tables = buffers.each_ref().map(|b| {
        let table = gpu.page_table(b.va(), b.len());
        table.expect("a table")
    });
    let file = std::env::temp_dir().join(format!("rb-driver-{}", std::process::id()));
    std::fs::write(&file, FilePages::encode(&tables)).expect("a temporary file");
    let source = FilePages::open(&file).expect("nothing is wrong");
    std::fs::remove_file(file).expect("it was there");

    let first = buffers.iter().map(|b| b.va().0).min().expect("three");
    let window = GpuVa(first / (2 << 20) * (2 << 20));
    let mut gtlb = CardGtlb::new(&nic, 0, window).expect("an instance");
    let pd = nic.alloc_pd().expect("a domain");
    for b in &buffers {
        gtlb.map_from(&source, b.va(), b.len()).expect("room");
        nic.register(pd, b.va(), b.len(), Access::LOCAL)
            .expect("the registers have mapped it");
    }
    let queue = nic
        .create_queue(pd, QueueConfig::default())
        .expect("a queue");
    let sent: Vec<u8> = (0..3 * 65_536_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8)
        .collect();
    buffers[1].write(0, &sent).expect("inside");
    let copy = |from: u64, to: u64, len: u32| {
        let mut d = Descriptor::new(Opcode::Copy);
        (d.local_va, d.remote_va, d.len) = (GpuVa(from), GpuVa(to), len);
        queue.call(&d).expect("the NIC answers")
    };
    // Across the border of two groups.
    let to = buffers[0].va().0 + (2 << 20) - 777;
    let done = copy(buffers[1].va().0 + 3, to, 150_001);
    assert_eq!((done.status, done.bytes), (Status::Ok, 150_001));
    let mut got = vec![0; 150_001];
    buffers[0].read((2 << 20) - 777, &mut got).expect("inside");
    assert!(got == sent[3..150_004]);

    // An access to unmapped pages is a fault that names the address.
    gtlb.unmap(buffers[2].va(), 1).expect("it is there");
    let done = copy(buffers[2].va().0, to, 64);
    assert_eq!(
        (done.status, done.detail),
        (Status::NoTranslation, buffers[2].va().0)
    );
    gtlb.map(&tables[2]).expect("and back");
    assert_eq!(copy(buffers[2].va().0, to, 64).status, Status::Ok);
    let again = gtlb.map(&tables[2]).expect_err("it is there");
    assert!(matches!(again, CardGtlbError::Taken { .. }), "{again}");
}
