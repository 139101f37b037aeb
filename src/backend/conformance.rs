//! The conformance suite of [`Backend`]: what the SDK relies on, through the SDK's own calls, for
//! any implementation.
//!
//! It runs for `soft`, and for a wrapper that notes which methods were called: the suite does not
//! depend on the concrete type, and reaches every method of the trait.
#![allow(clippy::disallowed_methods)] // Waits with a deadline.
#![allow(unsafe_code)] // Registers memory of the process.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringbell_cuda_kernels::Gpu;
use ringbell_gtlb::{
    Access, DeregisterError, MapError, MemoryRegion, PageTable, PdError, RegisterError, UnmapError,
};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::block::{
    header_offset, walk, BlockHeader, BlockKind, BLOCK_HARDWARE, BLOCK_KERNELS, HEADER_STRIDE,
};
use ringbell_nic_abi::{
    CollectiveKind, EngineId, Event, EventKind, GpuVa, Lkey, PdId, QueueId, SessionId,
};
use ringbell_nic_core::card::CardCounts;
use ringbell_nic_core::collective::{
    CancelError, CommError, CommInfo, CommStatus, CommunicatorConfig, ProgramError,
};
use ringbell_nic_core::engine::{EngineInfo, EngineUseError, Place};
use ringbell_nic_core::network::PortInfo;
use ringbell_nic_core::progress::ProgressStats;
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{
    BarError, Counters, EngineResult, HostBuffer, HostQueue, HostRegion, Inbox, MemoryError,
    NicBuffer, NicError, NotDelivered, PointerInfo, QueueConfig, SessionInfo, Window,
};
use ringbell_onc_engines::program::Program;
use ringbell_onc_engines::stream::StreamEngine;

use super::control_path::{control_path, Backend, EngineKind, EngineMaker};
#[cfg(feature = "rtl")]
use super::rtl;
use super::soft;
use crate::comm::{Found, MessageEvent, Wants};
use crate::engines::checksum::{Checksum, ChecksumEngine};
use crate::engines::{read_result, Direction, Return};
use crate::nic_kind::NicKind;
use crate::open_error::OpenError;
use crate::options::NicOptions;
use crate::{CommOptions, Communicator, Nic, Operation, ReduceOp, SessionError};

const PATIENCE: Duration = Duration::from_secs(60);

/// Rank 0 adds, and sends the sum back.
const PROGRAM: &str = "
ringbell program 1
collective all-reduce
ranks 2
order other
rank 0
1: net 1 + input[0] -> output[0], net 1
rank 1
0: input[0] -> net 0
2: net 0 -> output[0]
";

/// Opens NICs of one implementation.
type Factory<'a> = dyn Fn(&NicOptions, &Gpu) -> Result<Arc<dyn Backend>, OpenError> + 'a;

/// A discovery folder of one test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn nic(make: &Factory<'_>, folder: &Path, last: u8) -> Nic {
    let builder = Nic::builder().ip(format!("10.9.40.{last}/24"));
    let builder = builder.gpu("emulated").gpu_memory(16 << 20);
    let options = builder.directory(folder).options;
    Nic::with(options, NicKind::Soft, make).expect("a NIC")
}

fn checksum() -> Box<dyn StreamEngine> {
    Box::new(ChecksumEngine::new())
}

fn seen(result: &EngineResult) -> u64 {
    let read: Checksum = read_result(&result.bytes).expect("a checksum");
    read.bytes
}

/// All rules, for NICs of one factory.
fn check(name: &str, make: &Factory<'_>) {
    let folder = std::env::temp_dir().join(format!("rb-backend-{name}-{}", std::process::id()));
    let folder = Folder(folder);
    let (a, b) = (nic(make, &folder.0, 1), nic(make, &folder.0, 2));
    memory(&a);
    sessions(&a, &b);
    engines(&a, &b);
    collectives(&a, &b);
    reports(&a);
    end(&a, &b);
}

fn memory(nic: &Nic) {
    let buffer = nic.alloc::<u64>(1000).expect("room");
    let inside = GpuVa(buffer.va().0 + 800);
    let info = nic.pointer_info(inside).expect("registered");
    assert_eq!((info.offset, info.region.len), (800, 8000));
    let va = buffer.va();
    drop(buffer);
    assert!(nic.pointer_info(va).is_none(), "a dropped buffer");
    let gone = nic.copy(crate::Span::of(va, 8), crate::Span::of(va, 8));
    assert!(gone.is_err(), "a copy of a dropped buffer");

    let host = nic.alloc_host(100).expect("memory");
    let own = nic.adopt_host(vec![7; 100]).expect("a limit");
    let there = nic.alloc_on_nic(100).expect("NIC memory");
    let mut program = vec![9_u8; 100];
    let start = NonNull::new(program.as_mut_ptr()).expect("a vector");
    // SAFETY: the vector outlives the region, and is not used meanwhile.
    let region = unsafe { nic.register_host(start, 100) }.expect("memory of the process");
    let mut got = [0; 100];
    nic.copy(&own, &host).expect("host to host");
    nic.copy(&host, &there).expect("host to NIC");
    there.read(0, &mut got).expect("inside");
    assert_eq!(got, [7; 100]);
    nic.copy(crate::Span::of(region.va(), 100), &host)
        .expect("in place");
    host.read(0, &mut got).expect("inside");
    assert_eq!(got, [9; 100]);
    drop(region);
    assert!(nic.pointer_info(GpuVa(start.as_ptr() as u64)).is_none());
}

fn sessions(a: &Nic, b: &Nic) {
    let listener = b.listen(70).expect("a free port");
    let taken = b.listen(70).expect_err("a port in use");
    assert!(taken.status().is_some(), "{taken}");
    let to = format!("{}:70", b.ip().ip);
    // Where datagrams for it would go: a NIC of the same host is reached as before.
    let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
    a.backend().know_host(b.ip().ip, nowhere);
    // Without a port of IPv6 there is no name of one.
    assert_eq!(a.backend().short_name(Ipv6Addr::LOCALHOST), None);
    let (client, server) = (
        a.connect(&*to).expect("there"),
        listener.accept().expect("it"),
    );
    for (nic, session) in [(a, client.session()), (b, server.session())] {
        assert!(nic
            .sessions()
            .iter()
            .any(|s| s.id == session && s.state == "established"));
    }
    let (out, into) = (
        a.alloc::<u32>(5000).expect("room"),
        b.alloc::<u32>(5000).expect("room"),
    );
    let data: Vec<u32> = (0..5000).collect();
    out.write(0, &data).expect("inside");
    client.send(&out).expect("sent");
    assert_eq!(server.recv(&into).expect("received"), 20_000);
    assert_eq!(into.to_vec().expect("a copy"), data);
    server.set_timeout(Duration::from_millis(20));
    let late: SessionError = server.recv(&into).expect_err("silence");
    assert_eq!(late.status(), Some(ringbell_nic_abi::Status::TimedOut));
    drop(client);
    server.set_timeout(PATIENCE);
    assert_eq!(server.recv(&into).expect("the end of the stream"), 0);
}

fn engines(a: &Nic, b: &Nic) {
    let listener = b.listen(71).expect("a free port");
    let to = format!("{}:71", b.ip().ip);
    let (client, server) = (
        a.connect(&*to).expect("there"),
        listener.accept().expect("it"),
    );
    let on_session = server
        .attach_engine(Direction::Receive, checksum())
        .expect("a place");
    assert!(
        server
            .attach_engine(Direction::Receive, checksum())
            .is_err(),
        "a second one"
    );
    server
        .return_engine(Return::Result)
        .expect("an engine is there");
    client
        .send(&a.alloc::<u8>(777).expect("room"))
        .expect("sent");
    client.shutdown().expect("connected");
    let answer = a.alloc::<Checksum>(1).expect("room");
    assert_eq!(client.recv(&answer).expect("the NIC answers"), 16);
    assert_eq!(answer.to_vec().expect("a copy")[0].bytes, 777);
    assert_eq!(seen(&b.engine_result(on_session).expect("a result")), 777);
    b.detach_engine(on_session).expect("it is there");
    assert!(b.engine_result(on_session).is_err(), "a detached engine");

    let queue = b.create_queue().expect("a queue");
    let together = b.attach_queue_engine(queue.id(), Direction::Receive, checksum(), 1);
    let apart = b.attach_queue_engines(queue.id(), Direction::Send, checksum);
    let (together, apart) = (together.expect("a place"), apart.expect("a place"));
    assert_eq!(b.engines().len(), 2);
    assert!(
        b.engine_result_of(apart, SessionId(1)).is_err(),
        "it has seen none"
    );
    for id in [together, apart] {
        b.detach_engine(id).expect("it is there");
    }
    b.register_engine_kind(9, |_| Some(checksum()))
        .expect("free");
    assert!(
        b.register_engine_kind(9, |_| None).is_err(),
        "a number in use"
    );
}

fn collectives(a: &Nic, b: &Nic) {
    let nics = [a.clone(), b.clone()];
    let comms = Communicator::init_all(&nics, &CommOptions::default()).expect("two ranks");
    let output = comms[0]
        .attach_engine(Place::Output, checksum(), 1)
        .expect("a place");
    let sent = comms[0]
        .attach_engines(Place::Sent, checksum)
        .expect("a place");
    let buffers = [a, b].map(|nic| nic.alloc::<u32>(3000).expect("room"));
    let sums: Vec<_> = (0..2)
        .map(|rank| {
            let x = &buffers[rank];
            x.write(0, &[rank as u32 + 1; 3000]).expect("inside");
            let sum = Operation::all_reduce::<u32>(x, x, 3000, ReduceOp::Sum);
            (&comms[rank], sum)
        })
        .collect();
    Communicator::group(&sums).expect("both ranks are here");
    for (x, comm) in buffers.iter().zip(&comms) {
        assert_eq!(x.to_vec().expect("a copy"), [3; 3000]);
        comm.settle().expect("nothing is left");
    }
    assert_eq!(seen(&a.engine_result(output).expect("a result")), 12_000);
    assert!(seen(&a.engine_result_of_rank(sent, 1).expect("a result")) > 0);
    assert!(a.engine_result_of_rank(sent, 5).is_err(), "no such rank");
    assert_eq!(comms[0].info().expect("it lives").ranks, 2);
    let program = PROGRAM;
    for comm in &comms {
        comm.load_program(program).expect("a right program");
    }
    let alloc = |comm: &Communicator| comm.alloc_symmetric::<u64>(512).expect("same sizes");
    let symmetric = std::thread::scope(|scope| {
        let second = std::thread::Builder::new()
            .spawn_scoped(scope, || alloc(&comms[1]))
            .expect("a thread");
        [alloc(&comms[0]), second.join().expect("no panic")]
    });
    assert_eq!(symmetric[0].window(), symmetric[1].window());
    drop(symmetric);
    inboxes(&comms);
    // No rank sends: the operation ends when it is cancelled or aborted.
    let x = b.alloc::<u32>(1).expect("room");
    let receive = Operation::recv::<u32>(&x, 1, Some(0), None).timeout(Duration::from_millis(50));
    assert!(comms[1].run(&receive).is_err());
    let queue = b.create_queue().expect("a queue");
    assert!(
        b.backend().cancel(queue.id(), 12).is_err(),
        "nothing was posted"
    );
    comms[1].abort();
    let after = comms[1].run(&Operation::barrier());
    assert!(
        after.is_err(),
        "{:?} of an aborted communicator",
        CollectiveKind::Barrier
    );
}

/// A message between inboxes.
fn inboxes(comms: &[Communicator]) {
    let [from, to] = [0, 1].map(|r: usize| comms[r].inbox().expect("it lives"));
    let wants = Wants {
        from: None,
        context: 3,
        tag: Some(9),
    };
    let id = to.receive(&wants).expect("a receive");
    from.send((1, 3, 9), b"few bytes", false).expect("a rank");
    let end = Instant::now() + PATIENCE;
    let here = loop {
        assert!(Instant::now() < end, "no message has come");
        from.poll().expect("it lives");
        if let Some(event) = to.poll().expect("it lives") {
            break event;
        }
    };
    let found = Found {
        from: 0,
        tag: 9,
        len: 9,
    };
    assert_eq!(
        here,
        MessageEvent::Met {
            id,
            found,
            here: true
        }
    );
    let mut bytes = [0; 9];
    assert_eq!(to.read(id, &mut bytes), Ok(9));
    assert_eq!(&bytes, b"few bytes");
}

fn reports(nic: &Nic) {
    assert!(nic.describe().contains(&nic.ip().ip.to_string()));
    assert_eq!(nic.backend().no_way(nic.ip().ip), None);
    assert!(nic.ports().iter().all(|p| !p.name.is_empty() && p.mtu > 0));
    let counters = nic.counters();
    assert!(counters.tx_bytes >= 20_000, "{counters:?}");
    if let Some(card) = nic.backend().card_counts() {
        assert!(
            card.tx_bytes >= 20_000 && card.cycles.fetched > 10,
            "{card:?}"
        );
    }
    let stats = nic.backend().progress_stats();
    assert!(format!("{stats:?}").contains(char::is_numeric));
    while nic.poll_event().is_some() {}
    assert!(nic.backend().bar_file().exists());
    let magic = nic
        .backend()
        .bar_read32(Reg::Magic.offset())
        .expect("a register");
    assert_ne!(magic, 0);
    assert!(
        nic.backend().bar_read32(usize::MAX - 3).is_err(),
        "no such register"
    );
    blocks(nic);
    mailbox(nic);
    let deadline = Instant::now() + PATIENCE;
    while !nic.flush(Duration::from_millis(100)) {
        assert!(Instant::now() < deadline, "something is always under way");
    }
}

/// The block headers of the NIC, and of the hardware behind it.
fn blocks(nic: &Nic) {
    let backend = nic.backend();
    let read = |offset| backend.bar_read32(offset).ok();
    let word = |reg: Reg| read(reg.offset()).expect("a register");
    let own = chain(&read);
    let find = |kind| own.iter().find(|h| h.known() == Some(kind)).copied();
    let has = |kind| find(kind).unwrap_or_else(|| panic!("no block {}", kind.name()));
    assert_eq!(has(BlockKind::Identity).version, 1);
    assert_eq!(has(BlockKind::Network).units, word(Reg::Ports));
    let gtlb = has(BlockKind::Gtlb);
    let [instances, main, complementary] = [
        Reg::GtlbInstances,
        Reg::GtlbMainEntries,
        Reg::GtlbComplementaryEntries,
    ]
    .map(word);
    assert_eq!(
        (gtlb.units, gtlb.size, gtlb.more),
        (instances, main, complementary)
    );
    let queues = has(BlockKind::Queues);
    assert!(queues.units > word(Reg::Queues) && queues.size >= 256);
    has(BlockKind::Counters);

    // Headers are read-only, and their places hold nothing where a block is missing.
    let at = header_offset(BlockKind::Identity);
    assert!(
        backend.bar_read32(at + HEADER_STRIDE - 4).is_err(),
        "between two headers"
    );
    let direct = header_offset(BlockKind::Direct);
    assert_eq!(
        backend.bar_read32(direct).is_ok(),
        find(BlockKind::Direct).is_some()
    );

    let card = chain(&|offset| backend.card_read32(offset));
    let in_hardware = |chain: &[BlockHeader], kind: BlockKind| {
        let mut of = chain.iter().filter(|h| h.known() == Some(kind));
        of.any(|h| h.flags & BLOCK_HARDWARE != 0)
    };
    let kernels: Vec<_> = own
        .iter()
        .filter(|h| h.flags & BLOCK_KERNELS != 0)
        .collect();
    let kernels: Vec<_> = kernels.iter().filter_map(|h| h.known()).collect();
    assert_eq!(kernels, [BlockKind::Queues, BlockKind::Mailbox]);
    for kind in [
        BlockKind::Queues,
        BlockKind::Direct,
        BlockKind::Mailbox,
        BlockKind::Engines,
    ] {
        let hardware = backend.card_counts().is_some();
        assert_eq!(in_hardware(&own, kind), hardware, "{}", kind.name());
        assert_eq!(in_hardware(&card, kind), hardware, "{}", kind.name());
    }
}

/// Stores of kernels to the BAR: those to the mailbox arrive once each and in order, those to other
/// registers do nothing.
fn mailbox(nic: &Nic) {
    use std::os::unix::fs::FileExt as _;

    let backend = nic.backend();
    // As a kernel sees it: memory that the NIC shares.
    let mut options = std::fs::OpenOptions::new();
    let page = options.read(true).write(true).open(backend.bar_file());
    let page = page.expect("the BAR's memory");
    let store = |reg: Reg, value: u32| {
        let at = reg.offset() as u64;
        page.write_all_at(&value.to_le_bytes(), at).expect("inside");
    };
    let word = |reg: Reg| backend.bar_read32(reg.offset()).expect("a register");
    while nic.poll_event().is_some() {}
    let before = (word(Reg::Ipv4), nic.sessions().len());
    store(Reg::Reset, 1);
    store(Reg::Ipv4, 7);
    store(Reg::GtlbBaseHi, 0x7000);
    store(Reg::Magic, 0);
    store(Reg::MailboxTaken, 99);
    let first = word(Reg::MailboxTaken);
    assert_ne!(first, 99, "a status register is the NIC's");
    for i in 1..=20_u32 {
        let number = first.wrapping_add(i * i);
        store(Reg::MailboxData, i / 2);
        store(Reg::MailboxRing, number);
        let deadline = Instant::now() + PATIENCE;
        while word(Reg::MailboxTaken) != number {
            assert!(Instant::now() < deadline, "the mailbox is not emptied");
            backend.step();
        }
        let event = nic.poll_event().expect("an event");
        assert_eq!(event.kind, EventKind::Mailbox.code());
        assert_eq!((event.session, event.data), (number, u64::from(i / 2)));
    }
    assert_eq!(nic.poll_event(), None, "nothing arrives twice");
    assert_eq!((word(Reg::Ipv4), nic.sessions().len()), before);
    let buffer = nic.alloc::<u32>(100).expect("room");
    let other = nic.alloc::<u32>(100).expect("room");
    buffer.write(0, &[5; 100]).expect("inside");
    nic.copy(&buffer, &other)
        .expect("translations are as they were");
    assert_eq!(other.to_vec().expect("a copy"), [5; 100]);
}

/// The headers of a BAR whose chain is right; every register that a block names can be read.
fn chain(read: &dyn Fn(usize) -> Option<u32>) -> Vec<BlockHeader> {
    let headers: Vec<BlockHeader> = match read(Reg::Blocks.offset()) {
        Some(_) => walk(read)
            .map(|found| found.expect("a right chain").1)
            .collect(),
        None => Vec::new(),
    };
    for (reg, ..) in Reg::ALL.iter().filter(|_| !headers.is_empty()) {
        assert!(
            read(reg.offset()).is_some(),
            "{} cannot be read",
            reg.name()
        );
    }
    headers
}

fn end(a: &Nic, b: &Nic) {
    let queue = a.create_queue().expect("a queue");
    let buffer = a.alloc::<u8>(10).expect("room");
    a.close().expect("everything was delivered");
    a.close().expect("a second time");
    let nop = ringbell_nic_abi::Descriptor::new(ringbell_nic_abi::Opcode::Nop);
    let refused = queue.call(&nop).expect("an answer");
    assert_eq!(refused.status, ringbell_nic_abi::Status::ShuttingDown);
    // Memory of a NIC that has ended can still be read, and freed.
    buffer.to_vec().expect("the GPU has it");
    drop(buffer);
    b.close().expect("everything was delivered");
}

#[test]
fn soft_conforms() {
    check("soft", &soft::open);
}

#[cfg(feature = "rtl")]
#[test]
fn rtl_conforms() {
    check("rtl", &rtl::open);
}

#[cfg(not(feature = "rtl"))]
#[test]
fn a_build_without_hardware_says_what_it_lacks() {
    let e = Nic::builder().nic("rtl").open().expect_err("not built");
    assert!(e.to_string().contains("feature `rtl`"), "{e}");
}

/// Forwards every call, and notes its name.
#[derive(Debug)]
struct Noting(Arc<dyn Backend>, Arc<Mutex<BTreeSet<&'static str>>>);

impl Noting {
    fn note(&self, name: &'static str) {
        let mut called = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        called.insert(name);
    }
}

macro_rules! noting {
    ([] $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        /// Every method.
        const METHODS: &[&str] = &["register_host", $(stringify!($name)),*];

        impl Backend for Noting {
            $(fn $name(&self, $($arg: $ty),*) $(-> $out)? {
                self.note(stringify!($name));
                self.0.$name($($arg),*)
            })*

            unsafe fn register_host(
                &self,
                pd: PdId,
                ptr: NonNull<u8>,
                bytes: usize,
                access: Access,
            ) -> Result<HostRegion, MemoryError> {
                self.note("register_host");
                // SAFETY: the caller's contract.
                unsafe { self.0.register_host(pd, ptr, bytes, access) }
            }
        }
    };
}
control_path!(noting);

#[test]
fn another_implementation_conforms_and_the_suite_calls_every_method() {
    let called: Arc<Mutex<BTreeSet<&'static str>>> = Arc::default();
    check("noting", &|options, gpu| {
        Ok(Arc::new(Noting(soft::open(options, gpu)?, called.clone())))
    });
    let called = called.lock().unwrap_or_else(PoisonError::into_inner);
    let missing: Vec<_> = METHODS.iter().filter(|m| !called.contains(**m)).collect();
    assert!(missing.is_empty(), "not called by the suite: {missing:?}");
}

#[test]
fn an_unknown_nic_is_refused_with_the_names_that_there_are() {
    let e = Nic::builder()
        .nic("copper")
        .open()
        .expect_err("no such NIC");
    let text = e.to_string();
    assert!(
        text.contains("nic: `copper`") && text.contains("soft"),
        "{text}"
    );
    assert_eq!("soft".parse(), Ok(NicKind::Soft));
}
