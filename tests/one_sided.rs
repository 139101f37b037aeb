//! One-sided operations of kernels and of host threads: puts, gets, signals and atomics on a peer's
//! memory.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::test_gpu;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell::abi::Status;
use ringbell::memory::RemoteMemory;
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{CommOptions, Communicator, DeviceBuffer, GpuResult, HostQueue, Nic, Socket};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const PATIENCE: Duration = Duration::from_secs(60);
const TIMEOUT_US: u32 = 20_000_000;

/// A folder in which NICs find each other, until this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Folder {
    static N: AtomicU32 = AtomicU32::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    let name = format!("one-sided-{}-{n}", std::process::id());
    Folder(std::env::temp_dir().join(name))
}

/// Transport of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Via {
    Local,
    Rdma,
}

/// NICs of a subnet, from host number 1 on, which reach each other.
fn open(via: Via, subnet: &str, nics: u8, discovery: &Path) -> Vec<Nic> {
    let gpu = match test_gpu::on_cuda() {
        true => "cuda:0",
        false => "auto",
    };
    let switch = MemSwitch::private(16, 1500, Checksums::Software).expect("a switch");
    let switch = Arc::new(switch);
    let one = |n: u8| {
        let ip = format!("{subnet}.{n}/24");
        let nic = Nic::builder().ip(&*ip).directory(discovery);
        let nic = match via {
            Via::Local => nic,
            Via::Rdma => nic
                .switch(switch.clone(), usize::from(n) - 1)
                .port("mem")
                .transport("rdma"),
        };
        nic.gpu(gpu).gpu_memory(32 << 20).open().expect("a NIC")
    };
    (1..=nics).map(one).collect()
}

/// Tests of both transports, from functions of a [`Via`].
macro_rules! over_both {
    ($($name:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $name() { super::$name(super::Via::Local); })+
        }
        mod rdma {
            $(#[test] fn $name() { super::$name(super::Via::Rdma); })+
        }
    };
}

mod several;

over_both!(
    kernels_put_get_and_update_in_every_scope,
    a_wait_for_a_signal_ends_with_it_or_with_its_time,
    a_flush_returns_when_every_put_is_in_place,
    a_counter_counts_more_operations_than_the_queue_holds,
    a_counter_takes_requests_and_tells_how_many_have_ended,
    hosts_put_get_and_update_as_kernels_do,
    ranks_name_each_others_memory_by_window_and_offset,
    windows_refuse_what_they_do_not_have,
);

/// Two NICs and a connection between them.
struct Pair {
    client: Nic,
    server: Nic,
    socket: Socket,
    /// The server's end.
    peer: Socket,
    _folder: Folder,
}

fn pair(via: Via) -> Pair {
    let dir = folder();
    let mut nics = open(via, "10.77.5", 2, &dir.0);
    let (server, client) = (nics.pop().expect("two"), nics.pop().expect("two"));
    let listener = server.listen(7).expect("a free port");
    let socket = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().expect("it comes"));
        let socket = client.connect("10.77.5.2:7").expect("it listens");
        (socket, accepted.join().expect("no panic"))
    });
    Pair {
        client,
        server,
        socket: socket.0,
        peer: socket.1,
        _folder: dir,
    }
}

/// `call` of puts.cu.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Call {
    address: u64,
    target: u32,
    key: u32,
    flags: u32,
    reserved: u32,
    local: u64,
    len: u64,
    value: u64,
    second: u64,
    what: u32,
    word: u32,
    timeout_us: u32,
    asynchronous: u32,
}

const PUT: u32 = 0;
const PUT_SIGNAL: u32 = 1;
const SIGNAL: u32 = 2;
const GET: u32 = 3;
const ADD: u32 = 4;
const CAS: u32 = 5;
const WAIT: u32 = 6;
const ADD32: u32 = 7;
const CAS32: u32 = 8;
const PUT_ROWS: u32 = 9;
const GET_ROWS: u32 = 10;
const WAIT_ANY: u32 = 11;
const WAIT_ALL: u32 = 12;
const WAIT_SOME: u32 = 13;

/// A kernel's call.
struct Caller {
    nic: Nic,
    queue: HostQueue,
    args: DeviceBuffer<Call>,
    out: DeviceBuffer<GpuResult>,
}

impl Caller {
    fn new(nic: &Nic) -> Caller {
        test_gpu::load(nic.gpu(), "puts");
        Caller {
            nic: nic.clone(),
            queue: nic.create_queue().expect("a queue"),
            args: nic.alloc(1).expect("room"),
            out: nic.alloc(4).expect("room"),
        }
    }

    fn call(&self, scope: u32, call: Call) -> GpuResult {
        self.args.write(0, &[call]).expect("fits");
        self.out.write(0, &[GpuResult::UNWRITTEN]).expect("fits");
        let args = (&self.queue, &self.args, scope, &self.out);
        let kernel = self.nic.kernel("one_call").expect("loaded");
        // SAFETY: the arguments have the types of the kernel's parameters.
        let launch = unsafe { kernel.launch(1, 64, args) }.expect("a launch");
        launch.wait(PATIENCE).expect("it ends");
        self.out.to_vec().expect("a copy")[0]
    }
}

fn on(pair: &Pair, at: RemoteMemory, what: u32) -> Call {
    Call {
        address: at.va().0,
        target: pair.socket.session().0,
        key: at.rkey().0,
        what,
        timeout_us: TIMEOUT_US,
        ..Call::default()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (x >> 40) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn kernels_put_get_and_update_in_every_scope(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let there = pair.server.alloc_remote::<u8>(1 << 20).expect("room");
    let here = pair.client.alloc::<u8>(1 << 20).expect("room");
    let mut model = vec![0; 1 << 20];
    let mut seed = 3;
    for scope in 0..3 {
        for asynchronous in 0..2 {
            for len in [0_usize, 1, 7, 8, 9, 32, 33, 4096, 100_001] {
                seed += 1;
                let (from, to) = (seed as usize * 13 % 997, 512 + seed as usize * 37 % 9973);
                let data = noise(seed, len);
                here.write(from as u64, &data).expect("fits");
                let call = Call {
                    local: here.va().0 + from as u64,
                    len: len as u64,
                    word: 5,
                    value: seed,
                    asynchronous,
                    ..on(&pair, there.remote().at(to as u64), PUT_SIGNAL)
                };
                let r = caller.call(scope, call);
                assert_eq!(r.check("put").expect("in place"), len as u64);
                model[to..to + len].copy_from_slice(&data);
                let before = u64::from_le_bytes(model[40..48].try_into().expect("8 bytes"));
                model[40..48].copy_from_slice(&(before + seed).to_le_bytes());
                assert!(there.to_vec().expect("a copy") == model, "put {len}");

                let back = 600_000 + from;
                let call = Call {
                    local: here.va().0 + back as u64,
                    len: len as u64,
                    asynchronous,
                    ..on(&pair, there.remote().at(to as u64), GET)
                };
                caller.call(scope, call).check("get").expect("it is there");
                let mut got = vec![0; len];
                here.read(back as u64, &mut got).expect("inside");
                assert!(got == data, "get {len}");
            }
            let word = there.remote().at(64);
            let value = |at: usize, model: &[u8]| {
                u64::from_le_bytes(model[at..at + 8].try_into().expect("8 bytes"))
            };
            let before = value(64, &model);
            let add = Call {
                value: 7,
                asynchronous,
                ..on(&pair, word, ADD)
            };
            let r = caller.call(scope, add);
            assert_eq!((r.status(), r.detail), (Some(Status::Ok), before));
            let swap = Call {
                value: before + 7,
                second: before + 9,
                asynchronous,
                ..on(&pair, word, CAS)
            };
            let r = caller.call(scope, swap);
            assert_eq!((r.status(), r.detail), (Some(Status::Ok), before + 7));
            model[64..72].copy_from_slice(&(before + 9).to_le_bytes());
            let signal = Call {
                word: 9,
                value: u64::MAX - seed,
                second: 1,
                asynchronous,
                ..on(&pair, there.remote(), SIGNAL)
            };
            caller.call(scope, signal).check("signal").expect("set");
            model[72..80].copy_from_slice(&(u64::MAX - seed).to_le_bytes());
            assert!(there.to_vec().expect("a copy") == model);
        }
    }
}

fn a_wait_for_a_signal_ends_with_it_or_with_its_time(via: Via) {
    let pair = pair(via);
    let (caller, waiter) = (Caller::new(&pair.client), Caller::new(&pair.server));
    let there = pair.server.alloc_remote::<u64>(8).expect("room");
    let wait = Call {
        local: there.va().0,
        value: 3,
        what: WAIT,
        timeout_us: 30_000,
        ..Call::default()
    };
    for scope in 0..3 {
        there.write(0, &[2]).expect("fits");
        let r = waiter.call(scope, wait);
        assert_eq!((r.status(), r.detail), (Some(Status::TimedOut), 2));
        let signal = Call {
            value: 2,
            ..on(&pair, there.remote().at(8), SIGNAL)
        };
        let patient = Call {
            timeout_us: TIMEOUT_US,
            ..wait
        };
        // The kernel that waits is there first, or comes later.
        let r = std::thread::scope(|scope_| {
            let waiting = scope_.spawn(|| waiter.call(scope, patient));
            caller.call(scope, signal).check("signal").expect("set");
            waiting.join().expect("no panic")
        });
        assert_eq!((r.status(), r.detail), (Some(Status::Ok), 4));
    }
}

fn a_flush_returns_when_every_put_is_in_place(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let (len, count) = (100_000_u64, 9_u32);
    let bytes = len * u64::from(count);
    let there = pair.server.alloc_remote::<u8>(bytes).expect("room");
    let here = pair.client.alloc::<u8>(bytes).expect("room");
    let kernel = caller.nic.kernel("flush_puts").expect("loaded");
    for round in 0..5 {
        let data = noise(round, bytes as usize);
        here.write(0, &data).expect("fits");
        let at = there.remote();
        let args = (
            &caller.queue,
            pair.socket.session().0,
            at.va(),
            at.rkey().0,
            &here,
            len,
            count,
            &caller.out,
        );
        // SAFETY: the arguments have the types of the kernel's parameters.
        let launch = unsafe { kernel.launch(1, 1, args) }.expect("a launch");
        launch.wait(PATIENCE).expect("it ends");
        assert!(there.to_vec().expect("a copy") == data, "round {round}");
        let out = caller.out.to_vec().expect("a copy");
        out[0].check("flush").expect("all in place");
        assert_eq!(out[1].bytes, u64::from(count), "requests that have ended");
    }
}

fn a_counter_counts_more_operations_than_the_queue_holds(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let (len, pieces) = (3_001_u64, 150_u32);
    let bytes = len * u64::from(pieces);
    let there = pair.server.alloc_remote::<u8>(bytes).expect("room");
    let from = pair.client.alloc::<u8>(bytes).expect("room");
    let to = pair.client.alloc::<u8>(bytes).expect("room");
    let kernel = caller.nic.kernel("count_puts").expect("loaded");
    let mut model = vec![0; bytes as usize];
    for scope in 0..3_u32 {
        // The second round loses piece 6.
        for refused in [u32::MAX, 6] {
            let data = noise(
                u64::from(scope) * 2 + u64::from(refused & 1),
                bytes as usize,
            );
            from.write(0, &data).expect("fits");
            // Word 0 counts the signals, so the first piece is compared behind it.
            there.write(0, &[0; 8]).expect("fits");
            let at = there.remote();
            let args = (
                &caller.queue,
                pair.socket.session().0,
                at.va(),
                at.rkey().0,
                &from,
                &to,
                len,
                pieces,
                refused,
                scope,
                &caller.out,
            );
            // SAFETY: the arguments have the types of the kernel's parameters.
            let launch = unsafe { kernel.launch(1, 64, args) }.expect("a launch");
            launch.wait(PATIENCE).expect("it ends");
            let lost = 6 * len as usize..7 * len as usize;
            let kept = model[lost.clone()].to_vec();
            model.copy_from_slice(&data);
            let out = caller.out.to_vec().expect("a copy");
            assert_eq!(out[0].status(), Some(Status::InvalidArgument));
            let all = u64::from(pieces) * 2;
            match refused {
                6 => {
                    model[lost].copy_from_slice(&kept);
                    for r in &out[1..] {
                        let failure = (r.status(), r.detail);
                        let key = u64::from(at.rkey().0 ^ 0x100);
                        assert_eq!(failure, (Some(Status::BadKey), key));
                    }
                    assert_eq!(out[3].bytes, 2 * bytes - len);
                }
                _ => {
                    assert_eq!(out[1].status(), Some(Status::Ok));
                    assert!((all / 2..=all).contains(&out[1].detail), "{:?}", out[1]);
                    for r in &out[2..] {
                        let end = (r.status(), r.detail, r.bytes);
                        assert_eq!(end, (Some(Status::Ok), all, 2 * bytes));
                    }
                }
            }
            let there = there.to_vec().expect("a copy");
            assert!(there[8..] == model[8..], "put in scope {scope}");
            assert!(to.to_vec().expect("a copy")[8..] == model[8..], "got");
        }
    }
}

fn a_counter_takes_requests_and_tells_how_many_have_ended(via: Via) {
    let pair = pair(via);
    let caller = Caller::new(&pair.client);
    let words = pair.server.alloc_remote::<u64>(2).expect("room");
    let into = pair.client.alloc::<u8>(1).expect("room");
    let at = words.remote();
    let kernel = caller.nic.kernel("count_requests").expect("loaded");
    let (id, short_us) = (pair.socket.session().0, 20_000_u32);
    let (va, key) = (at.va(), at.rkey().0);
    let args = (&caller.queue, id, va, key, &into, short_us, &caller.out);
    // SAFETY: the arguments have the types of the kernel's parameters.
    let launch = unsafe { kernel.launch(1, 1, args) }.expect("a launch");
    let start = std::time::Instant::now();
    while words.to_vec().expect("a copy")[1] == 0 {
        assert!(start.elapsed() < PATIENCE, "the kernel has not signalled");
        std::thread::yield_now();
    }
    let message = pair.server.alloc::<u8>(1).expect("room");
    message.write(0, &[7]).expect("fits");
    pair.peer.send(&message).expect("sent");
    launch.wait(PATIENCE).expect("it ends");
    let ends = caller.out.to_vec().expect("a copy");
    let ends: Vec<_> = ends.iter().map(|r| (r.status(), r.detail)).collect();
    let (ok, late) = (Some(Status::Ok), Some(Status::TimedOut));
    assert_eq!(ends[..3], [(ok, 1), (late, 1), (ok, 2)]);
    assert_eq!(ends[3].0, Some(Status::BadDescriptor));
    assert_eq!(into.to_vec().expect("a copy"), [7]);
    assert_eq!(words.to_vec().expect("a copy"), [1, 1]);
}

#[test]
fn updates_of_one_word_by_kernels_nics_and_hosts_add_up() {
    let pair = pair(Via::Local);
    let caller = Caller::new(&pair.client);
    test_gpu::load(pair.server.gpu(), "puts");
    let own_queue = pair.server.create_queue().expect("a queue");
    let word = pair.server.alloc_remote::<u64>(1).expect("room");
    let idle = pair.client.alloc::<u64>(1).expect("room");
    let server_out = pair.server.alloc::<GpuResult>(4).expect("room");
    // The server updates its own word by a connection to itself.
    let listener = pair.server.listen(9).expect("a free port");
    let (own, _accepted) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().expect("it comes"));
        let own = pair.server.connect("10.77.5.2:9").expect("it listens");
        (own, accepted.join().expect("no panic"))
    });
    let (rounds, blocks) = (300_u32, 3_u32);
    let at = word.remote();
    let remote =
        |queue: &HostQueue, nic: &Nic, session: u32, local, out: &DeviceBuffer<GpuResult>| {
            let kernel = nic.kernel("add_many").expect("loaded");
            let args = (queue, session, at.va(), at.rkey().0, rounds, local, out);
            // SAFETY: the arguments have the types of the kernel's parameters.
            unsafe { kernel.launch(blocks, 1, args) }.expect("a launch")
        };
    let far = remote(
        &caller.queue,
        &pair.client,
        pair.socket.session().0,
        idle.va(),
        &caller.out,
    );
    let near = remote(
        &own_queue,
        &pair.server,
        own.session().0,
        word.va(),
        &server_out,
    );
    for i in 0..u64::from(rounds) {
        let before = pair.socket.fetch_add(at, 1).expect("updated");
        assert!(before >= i, "{before} at {i}");
    }
    far.wait(PATIENCE).expect("it ends");
    near.wait(PATIENCE).expect("it ends");
    for out in [&caller.out, &server_out] {
        for r in &out.to_vec().expect("a copy")[..blocks as usize] {
            r.check("add").expect("updated");
        }
    }
    // Of the client's kernel, of the server's (by the NIC, and by itself), and of the host.
    let all = u64::from(rounds) * u64::from(blocks) * 3 + u64::from(rounds);
    assert_eq!(word.to_vec().expect("a copy"), [all]);
}

fn hosts_put_get_and_update_as_kernels_do(via: Via) {
    let pair = pair(via);
    let there = pair.server.alloc_remote::<u8>(100_000).expect("room");
    let here = pair.client.alloc::<u8>(200_000).expect("room");
    let data = noise(1, 99_999);
    here.write(3, &data).expect("fits");
    let at = there.remote();
    pair.socket
        .put(here.slice(3..100_002), at.at(1))
        .expect("in place");
    assert!(there.to_vec().expect("a copy")[1..] == data);
    pair.socket
        .get(here.slice(100_100..), at)
        .expect("it is there");
    let mut got = vec![0; 99_900];
    here.read(100_100, &mut got).expect("inside");
    assert!(got[1..] == data[..99_899]);
    // Memory of the host goes through NIC memory where a peer cannot map it.
    let adopted = pair.client.adopt_host(data.clone()).expect("registered");
    pair.socket.put(&adopted, at).expect("staged");
    assert!(there.to_vec().expect("a copy")[..99_999] == data);
    assert_eq!(pair.socket.compare_swap(at.at(8), 5, 6).expect("done"), {
        u64::from_le_bytes(data[8..16].try_into().expect("8 bytes"))
    });
    // Without the right to read; past the end; unaligned; another key.
    let writable = pair.server.alloc::<u8>(64).expect("room");
    let denied = pair.socket.get(here.slice(..8), writable.remote());
    assert_eq!(
        denied.expect_err("no right").status(),
        Some(Status::AccessDenied)
    );
    pair.socket
        .put(here.slice(..8), writable.remote())
        .expect("it may");
    let past = pair.socket.put(here.slice(..8), at.at(99_993));
    let past = past.expect_err("past the end");
    assert_eq!(past.status(), Some(Status::OutOfBounds));
    assert_eq!(past.detail(), Some(at.va().0 + 100_000));
    let unaligned = pair.socket.fetch_add(at.at(4), 1).expect_err("unaligned");
    assert_eq!(unaligned.status(), Some(Status::InvalidArgument));
    drop(writable);
    let freed = pair.server.alloc_remote::<u8>(64).expect("room");
    assert_eq!(
        freed.to_vec().expect("a copy"),
        [0; 64],
        "of an earlier owner"
    );
    freed.write(0, &[3; 64]).expect("fits");
    let key = freed.remote();
    drop(freed);
    let gone = pair.socket.put(here.slice(..8), key).expect_err("freed");
    assert_eq!(gone.status(), Some(Status::RegionFreed));
    let again = pair.server.alloc_remote::<u8>(64).expect("room");
    assert_eq!(
        again.to_vec().expect("a copy"),
        [0; 64],
        "of an earlier owner"
    );
    // The session has survived all of that.
    pair.socket.put(here.slice(..8), at).expect("in place");
}

/// Communicators of NICs of this process.
fn communicators(via: Via, ranks: u8) -> Vec<Communicator> {
    let dir = folder();
    let nics = open(via, "10.77.6", ranks, &dir.0);
    Communicator::init_all(&nics, &CommOptions::default()).expect("all ranks")
}

/// What every rank does, on a thread each.
fn each<T: Send>(comms: &[Communicator], f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = comms.iter().map(|c| scope.spawn(move || f(c))).collect();
        let ends = threads.into_iter().map(|t| t.join().expect("no panic"));
        ends.collect()
    })
}

fn ranks_name_each_others_memory_by_window_and_offset(via: Via) {
    for ranks in [1, 2, 3] {
        let comms = communicators(via, ranks);
        let ends = each(&comms, |comm| {
            test_gpu::load(comm.nic().gpu(), "puts");
            // Two windows: the second is used.
            let first = comm.alloc_symmetric::<u8>(77).expect("same on all");
            let window = comm.alloc_symmetric::<u64>(4).expect("same on all");
            assert_ne!(first.window(), window.window());
            let out = comm.nic().alloc::<GpuResult>(1).expect("room");
            out.write(0, &[GpuResult::UNWRITTEN]).expect("fits");
            comm.barrier().expect("all come");
            let kernel = comm.nic().kernel("ring_of_puts").expect("loaded");
            let args = (comm.handle(), window.window(), &window, 200_u32, &out);
            // SAFETY: the arguments have the types of the kernel's parameters.
            let launch = unsafe { kernel.launch(1, 1, args) }.expect("a launch");
            launch.wait(PATIENCE).expect("it ends");
            comm.barrier().expect("all come");
            out.to_vec().expect("a copy")[0]
        });
        for (rank, r) in ends.iter().enumerate() {
            r.check("ring")
                .unwrap_or_else(|e| panic!("{ranks} ranks, {rank}: {e}"));
        }
    }
}

fn windows_refuse_what_they_do_not_have(via: Via) {
    let comms = communicators(via, 2);
    let sizes = each(&comms, |comm| {
        comm.alloc_symmetric::<u8>(100 + u64::from(comm.rank()))
            .map(drop)
            .expect_err("different sizes")
            .to_string()
    });
    assert!(sizes[0].contains("rank 1 has 101 bytes"), "{sizes:?}");
    let windows = each(&comms, |comm| {
        comm.alloc_symmetric::<u64>(16).expect("same on all")
    });
    let caller = Caller::new(comms[0].nic());
    let handle = comms[0].handle();
    let window = windows[0].window();
    let data = 7_u64;
    let own = comms[0].nic().alloc::<u64>(1).expect("room");
    own.write(0, &[data]).expect("fits");
    let at = |rank: u32, window: u32, offset: u64| Call {
        address: offset,
        target: handle.comm,
        key: rank | window << 16,
        flags: u32::from(ringbell::abi::Flags::SYMMETRIC.0),
        what: PUT,
        local: own.va().0,
        len: 8,
        timeout_us: TIMEOUT_US,
        ..Call::default()
    };
    let cases = [
        (at(1, window, 120), Status::Ok),
        (at(0, window, 120), Status::Ok),
        (at(1, window, 121), Status::OutOfBounds),
        (at(0, window, 121), Status::OutOfBounds),
        (at(1, window, u64::MAX), Status::OutOfBounds),
        (at(2, window, 0), Status::InvalidArgument),
        (at(0xffff, window, 0), Status::InvalidArgument),
        (at(1, window + 1, 0), Status::BadKey),
        (at(1, 0, 0), Status::BadKey),
        (
            Call {
                target: handle.comm ^ 0x1_0000,
                ..at(1, window, 0)
            },
            Status::BadCommunicator,
        ),
    ];
    for (call, expected) in cases {
        let r = caller.call(0, call);
        assert_eq!(r.status(), Some(expected), "{:#x}", call.key);
    }
    for w in &windows {
        assert_eq!(w.to_vec().expect("a copy")[15], data);
    }
    // Own words, by the same calls.
    let add = Call {
        what: ADD,
        value: 5,
        ..at(0, window, 120)
    };
    let r = caller.call(0, add);
    assert_eq!((r.status(), r.detail), (Some(Status::Ok), 7));
    let got = caller.call(
        0,
        Call {
            what: GET,
            ..at(0, window, 120)
        },
    );
    got.check("get").expect("it is there");
    assert_eq!(own.to_vec().expect("a copy"), [12]);
    // The other rank's memory goes away.
    let mut windows = windows;
    drop(windows.pop());
    let r = caller.call(0, at(1, window, 0));
    assert_eq!(r.status(), Some(Status::RegionFreed));
    drop(windows);
    let r = caller.call(0, at(1, window, 0));
    assert_eq!(r.status(), Some(Status::BadKey));
    for comm in &comms {
        let going = comm.info().expect("it lives");
        assert_eq!(going.ranks, 2);
    }
}
