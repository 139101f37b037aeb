//! Tests of the whole path by the CUDA backend, over the mock driver: kernels that `cuLaunchKernel`
//! starts send and receive through software NICs. Queues are pinned for the GPU, and only its copy
//! engine reaches the buffers.
#![allow(unsafe_code)] // Launches kernels.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;
use crate::mock_driver;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use mock_driver::{asked_for_cuda, on_any_driver, under_emulated_driver, under_mock};
use ringbell::abi::{Descriptor, Opcode, SessionId, Status};
use ringbell::gpu::{EmulatedGpuConfig, GpuChoice, GpuKind};
use ringbell::{Communicator, DeviceBuffer, HostQueue, KernelArg, Nic, ReduceOp};

const PATIENCE: Duration = Duration::from_secs(60);

/// Two NICs of one host in this process, each beside the driver's GPU.
struct Pair {
    nics: [Nic; 2],
    folder: PathBuf,
}

impl Pair {
    fn open(name: &str) -> Pair {
        let folder = std::env::temp_dir().join(format!("cuda-{name}-{}", std::process::id()));
        let nics = ["10.77.40.1/24", "10.77.40.2/24"].map(|ip| {
            let nic = Nic::builder().ip(ip).directory(&folder).open();
            let nic = nic.expect("a NIC beside the mock");
            assert_eq!(nic.gpu().kind(), GpuKind::Cuda);
            nic
        });
        Pair { nics, folder }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn call(queue: &HostQueue, d: &Descriptor) -> u64 {
    let done = queue.call(d).expect("the NIC answers");
    assert_eq!(done.status, Status::Ok, "{:?}", d.opcode);
    done.detail
}

/// Runs a kernel and reads its `gpu_result`: status, session, bytes, detail.
fn run(
    nic: &Nic,
    out: &DeviceBuffer,
    name: &str,
    lanes: u32,
    args: &[KernelArg],
) -> (Status, u64, u64) {
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { nic.gpu().launch(name, 1, lanes, args) }.expect("it starts");
    launch.wait(PATIENCE).expect("it ends");
    let mut r = [0; 24];
    out.read(0, &mut r).expect("inside");
    let word = |i: usize| u64::from_le_bytes(r[i..i + 8].try_into().expect("eight bytes"));
    let status = Status::from_code(r[0]).expect("a status");
    (status, word(8), word(16))
}

/// Bytes that differ from place to place and from message to message.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8)
        .collect()
}

fn messages() {
    let pair = Pair::open("messages");
    let [a, b] = &pair.nics;
    let (qa, qb) = (
        a.create_queue().expect("a queue"),
        b.create_queue().expect("a queue"),
    );
    let (oa, ob) = (
        a.alloc::<u8>(64).expect("memory"),
        b.alloc::<u8>(64).expect("memory"),
    );
    let listener = call(&qa, &Descriptor::new(Opcode::Socket)) as u32;
    let mut listen = Descriptor::new(Opcode::Listen);
    listen.session = SessionId(listener);
    listen.imm = 7001 | 4 << 16;
    call(&qa, &listen);

    // Accept and connect by kernels, at the same time.
    let timeout = KernelArg::U32(30_000_000);
    let accept_args = [
        qa.handle().into(),
        listener.into(),
        timeout.clone(),
        (&oa).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let accepting = unsafe { a.gpu().launch("rb_accept", 1, 1, &accept_args) }.expect("it starts");
    let (status, ..) = {
        let args = [qb.handle().into(), timeout.clone(), (&ob).into()];
        run(b, &ob, "rb_socket", 1, &args)
    };
    assert_eq!(status, Status::Ok);
    let session_of = |out: &DeviceBuffer| {
        let mut r = [0; 24];
        out.read(0, &mut r).expect("inside");
        u32::from_le_bytes(r[4..8].try_into().expect("four bytes"))
    };
    let sb = session_of(&ob);
    let ip = u32::from(Ipv4Addr::new(10, 77, 40, 1));
    let args = [
        qb.handle().into(),
        sb.into(),
        ip.into(),
        7001_u32.into(),
        timeout.clone(),
        (&ob).into(),
    ];
    assert_eq!(run(b, &ob, "rb_connect", 1, &args).0, Status::Ok);
    accepting.wait(PATIENCE).expect("it ends");
    let sa = session_of(&oa);

    for (i, len) in [1_u64, 8, 40, 41, 4_097, 65_537, 1_000_003]
        .into_iter()
        .enumerate()
    {
        let (from, to) = (
            b.alloc::<u8>(len).expect("memory"),
            a.alloc::<u8>(len).expect("memory"),
        );
        let sent = pattern(len, i as u64);
        from.write(0, &sent).expect("inside");
        let args = |q: &HostQueue, s: u32, buffer: &DeviceBuffer, out: &DeviceBuffer| {
            [
                q.handle().into(),
                s.into(),
                buffer.into(),
                len.into(),
                timeout.clone(),
                out.into(),
            ]
        };
        // The receiver waits first, or finds the bytes there.
        let receive = || {
            let args = args(&qa, sa, &to, &oa);
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { a.gpu().launch("rb_recv_all", 1, 32, &args) }.expect("it starts")
        };
        let early = (i % 2 == 0).then(receive);
        let (status, bytes, _) = run(b, &ob, "rb_send_all", 32, &args(&qb, sb, &from, &ob));
        assert_eq!((status, bytes), (Status::Ok, len), "send of {len}");
        early
            .unwrap_or_else(receive)
            .wait(PATIENCE)
            .expect("it ends");
        let mut got = vec![0; len as usize];
        to.read(0, &mut got).expect("inside");
        assert!(got == sent, "{len} bytes");
    }

    // The NIC refuses unregistered memory; nothing crashes.
    let wild = [
        qb.handle().into(),
        sb.into(),
        KernelArg::U64(0x7000_0000_0000),
        4096_u64.into(),
        timeout,
        (&ob).into(),
    ];
    let (status, _, detail) = run(b, &ob, "rb_send_all", 1, &wild);
    assert_eq!((status, detail), (Status::NotRegistered, 0x7000_0000_0000));
}

#[test]
fn kernels_send_and_receive() {
    on_any_driver("kernels_send_and_receive", "", messages);
}

#[test]
fn kernels_send_and_receive_through_mapped_memory() {
    under_mock("kernels_send_and_receive_through_mapped_memory", "", || {
        // The loader's search path, in this process that was started for the test.
        let folder = std::env::var_os("LD_LIBRARY_PATH").expect("the mock driver's folder");
        gdrcopy_sys::testing::build_mock(folder.as_ref(), &[]).expect("the mock compiles");
        std::env::set_var(ringbell::gpu::GPU_MEMORY_VARIABLE, "gdrcopy");
        let pair = Pair::open("mapped");
        let some = pair.nics[0].alloc::<u8>(64).expect("memory");
        let gpu = pair.nics[0].gpu().describe();
        assert!(
            gpu.contains("; memory: mapped for the CPU by GDRCopy"),
            "{gpu}"
        );
        drop((some, pair));
        messages();
    });
}

#[test]
fn kernels_send_and_receive_through_a_dma_buf() {
    let name = "kernels_send_and_receive_through_a_dma_buf";
    under_mock(name, "dmabuf,slow-writes", || {
        // The first choice is missing: GDRCopy, and the reason is reported.
        let pair = Pair::open("dmabuf");
        let buffer = pair.nics[0].alloc::<u8>(1 << 16).expect("memory");
        let gpu = pair.nics[0].gpu().describe();
        assert!(
            gpu.contains("mapped for the CPU by a dma-buf (GDRCopy: "),
            "{gpu}"
        );
        drop((buffer, pair));
        messages();
    });
}

#[test]
fn peers_update_words_of_memory_that_the_cpu_maps() {
    let name = "peers_update_words_of_memory_that_the_cpu_maps";
    under_mock(name, "dmabuf", || {
        let pair = Pair::open("words");
        let [a, b] = &pair.nics;
        let listener = b.listen(7).expect("a free port");
        let socket = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept().expect("it comes"));
            let socket = a.connect("10.77.40.2:7").expect("it listens");
            (socket, accepted.join().expect("no panic"))
        });
        let there = b.alloc_remote::<u64>(1 << 18).expect("room");
        let word = there.remote().at(8 * 1000);
        let update = |addend| socket.0.fetch_add(word, addend).expect("in memory");
        assert_eq!([update(5), update(7), update(0)], [0, 5, 12]);
        assert_eq!(socket.0.compare_swap(word, 12, 99).expect("equal"), 12);
        assert_eq!(socket.0.compare_swap(word, 12, 1).expect("done"), 99);
        let mut got = [0];
        there.read(1000, &mut got).expect("inside");
        assert_eq!(got, [99], "as the GPU has it");
        let unaligned = socket.0.fetch_add(there.remote().at(4), 1);
        let status = unaligned.expect_err("no word").status();
        assert_eq!(status, Some(Status::InvalidArgument));
    });
}

#[test]
fn kernels_send_and_receive_through_slots() {
    on_any_driver("kernels_send_and_receive_through_slots", "", || {
        std::env::set_var(ringbell::gpu::GPU_MEMORY_VARIABLE, "slots");
        let pair = Pair::open("slots");
        let gpu = pair.nics[0].gpu().describe();
        assert!(gpu.contains("slots: pinned memory of the host"), "{gpu}");
        drop(pair);
        messages();
    });
}

#[test]
fn kernels_of_the_emulated_driver_step_the_nic_while_they_wait() {
    let name = "kernels_of_the_emulated_driver_step_the_nic_while_they_wait";
    under_emulated_driver(name, || {
        // One after the other: the second takes the place of the first.
        for n in 1..3 {
            let nic = Nic::builder().ip(format!("10.77.41.{n}/24"));
            // No thread of its own steps it, nor does this one.
            let nic = nic.progress(ringbell::nic::ProgressMode::Manual);
            let nic = nic.open().expect("a NIC beside the driver");
            assert_eq!(nic.gpu().kind(), GpuKind::Cuda);
            let (queue, out) = (nic.create_queue(), nic.alloc::<u8>(64));
            let (queue, out) = (queue.expect("a queue"), out.expect("memory"));
            let args = |count: u32| {
                let timeout = KernelArg::U32(20_000_000);
                [queue.handle().into(), count.into(), timeout, (&out).into()]
            };
            let (status, ..) = run(&nic, &out, "rb_nop", 1, &args(500));
            assert_eq!(status, Status::Ok);
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            let running = unsafe { nic.gpu().launch("rb_nop", 1, 1, &args(u32::MAX)) };
            let running = running.expect("it starts");
            nic.close().expect("nothing was sent");
            running.wait(PATIENCE).expect("it ends");
            let mut status = [0];
            out.read(0, &mut status).expect("inside");
            assert_eq!(Status::from_code(status[0]), Some(Status::ShuttingDown));
        }
    });
}

#[test]
fn no_completion_overtakes_its_data() {
    // Every copy to the GPU takes five milliseconds, so that a completion which did not wait would
    // be seen.
    on_any_driver("no_completion_overtakes_its_data", "slow-writes", messages);
}

#[test]
fn a_gpu_that_cannot_pin_queues_is_an_error_or_replaced_by_the_emulated_one() {
    let name = "a_gpu_that_cannot_pin_queues_is_an_error_or_replaced_by_the_emulated_one";
    under_mock(name, "no-pinning", || {
        let asked = Nic::builder().gpu("cuda:0").open();
        let e = anyhow::Error::new(asked.expect_err("there is nothing to pin"));
        let text = format!("{e:#}");
        assert!(
            text.contains("cuda:0 was asked for") && text.contains("pinned host memory"),
            "{text}"
        );
        let chosen = GpuChoice::Auto
            .open(&EmulatedGpuConfig::default())
            .expect("the emulated one");
        assert_eq!(chosen.gpu.kind(), GpuKind::Emulated);
        assert!(chosen.instead_of.is_some());
    });
}

#[test]
fn memory_of_others_is_sent_from_and_pinned_memory_received_into() {
    let name = "memory_of_others_is_sent_from_and_pinned_memory_received_into";
    on_any_driver(name, "", || {
        let pair = Pair::open("foreign");
        let [a, b] = &pair.nics;
        let queues = [a, b].map(|n| n.create_queue().expect("a queue"));
        let listener = SessionId(call(&queues[0], &Descriptor::new(Opcode::Socket)) as u32);
        let mut d = Descriptor::new(Opcode::Listen);
        (d.session, d.imm) = (listener, 7002 | 4 << 16);
        call(&queues[0], &d);
        let mut accept = Descriptor::new(Opcode::Accept);
        accept.session = listener;
        let accepting = queues[0].try_post(&accept).expect("room");
        let sb = SessionId(call(&queues[1], &Descriptor::new(Opcode::Socket)) as u32);
        let mut d = Descriptor::new(Opcode::Connect);
        (d.session, d.imm) = (sb, 7002);
        d.operand = u32::from(Ipv4Addr::new(10, 77, 40, 1)).into();
        call(&queues[1], &d);
        let accepted = queues[0].wait(accepting, PATIENCE).expect("it ends");
        assert_eq!(accepted.status, Status::Ok);
        let sa = SessionId(accepted.detail as u32);

        // Two slices in the same page of 64 KiB; of each the NIC may reach only its own bytes.
        let cuda = b.cuda().expect("a GPU by CUDA");
        let stream = cuda.context().default_stream();
        let data = [pattern(3001, 1), pattern(5003, 2)];
        let [one, two] = data.each_ref().map(|bytes| {
            let slice = stream.clone_htod(bytes).expect("room");
            let adopted = cuda.adopt_slice(slice).expect("its own");
            b.register_foreign(adopted).expect("a region")
        });
        let together = one.va().0 / 65_536 == two.va().0 / 65_536;
        assert!(together || asked_for_cuda(), "the mock puts them together");
        let to = a.alloc_pinned::<u8>(5003).expect("pinned memory");
        for (from, bytes) in [(&one, &data[0]), (&two, &data[1])] {
            let mut d = Descriptor::new(Opcode::Recv);
            (d.session, d.local_va, d.len) = (sa, to.va(), bytes.len() as u32);
            let receiving = queues[0].try_post(&d).expect("room");
            let mut d = Descriptor::new(Opcode::Send);
            (d.session, d.local_va, d.len) = (sb, from.va(), bytes.len() as u32);
            call(&queues[1], &d);
            let received = queues[0].wait(receiving, PATIENCE).expect("it ends");
            assert_eq!(
                (received.status, received.bytes),
                (Status::Ok, bytes.len() as u64)
            );
            let mut got = vec![0; bytes.len()];
            to.read(0, &mut got).expect("inside");
            assert!(got == *bytes);
        }

        // The first ends: its bytes are out of reach, the page serves the second.
        let va = one.va();
        let slice = one.into_inner().expect("no DMA").into_inner();
        assert_eq!(stream.clone_dtoh(&slice).expect("still there"), data[0]);
        let mut d = Descriptor::new(Opcode::Send);
        (d.session, d.local_va, d.len) = (sb, va, 8);
        let refused = queues[1].call(&d).expect("the NIC answers");
        assert_eq!(refused.status, Status::NotRegistered);
        (d.local_va, d.len) = (two.va(), 16);
        call(&queues[1], &d);
    });
}

#[test]
fn ranks_reduce() {
    on_any_driver("ranks_reduce", "", || {
        let r = communicators::ranks("cuda-ranks", 3);
        assert!(r.nics.iter().all(|n| n.gpu().kind() == GpuKind::Cuda));
        let comms = Communicator::init_all(&r.nics, &communicators::options()).expect("all come");
        communicators::each(&comms, |c| {
            let rank = c.rank();
            for count in [1_u64, 1021, 40_003] {
                let value = |r: u32, i: u64| (r + 3) * 1_000_003 + i as u32 * 7919;
                let of = |r: u32| -> Vec<u8> {
                    (0..count).flat_map(|i| value(r, i).to_ne_bytes()).collect()
                };
                let src = c.nic().alloc::<u8>(count * 4).expect("memory");
                let dst = c.nic().alloc::<u8>(count * 4).expect("memory");
                src.write(0, &of(rank)).expect("inside");
                c.all_reduce::<u32>(&src, &dst, count, ReduceOp::Sum)
                    .unwrap_or_else(|e| panic!("rank {rank}, {count} elements: {e}"));
                let mut got = vec![0; count as usize * 4];
                dst.read(0, &mut got).expect("inside");
                let sum = |i| (0..3).fold(0_u32, |s, r| s.wrapping_add(value(r, i)));
                let want: Vec<u8> = (0..count).flat_map(|i| sum(i).to_ne_bytes()).collect();
                assert!(got == want, "rank {rank}, {count} elements");
            }
        });
    });
}

/// All-reduces queued on streams, several behind each other with kernels that no thread waits for;
/// returns whether no kernel ran for them.
fn queued_sums(name: &str) -> bool {
    let r = communicators::ranks(name, 3);
    let comms = Communicator::init_all(&r.nics, &communicators::options()).expect("all come");
    let without_kernels = std::sync::atomic::AtomicBool::new(true);
    communicators::each(&comms, |c| {
        let (rank, count, rounds) = (c.rank(), 1021_u64, 19_u32);
        let stream = c.nic().gpu().stream();
        let buffer = c.nic().alloc::<u8>(count * 4).expect("memory");
        let value = |r: u32, i: u64| (r + 3) * 1_000_003 + i as u32 * 7919;
        let own: Vec<u8> = (0..count)
            .flat_map(|i| value(rank, i).to_ne_bytes())
            .collect();
        buffer.write(0, &own).expect("inside");
        let sum = ringbell::Operation::all_reduce::<u32>(&buffer, &buffer, count, ReduceOp::Sum);
        // A dropped operation frees its slot when it has ended.
        let mut queued = Vec::new();
        for round in 0..rounds {
            let q = c.enqueue(&sum, &stream).expect("queued");
            without_kernels.fetch_and(q.needs_no_kernel(), std::sync::atomic::Ordering::Relaxed);
            if round % 3 == 0 {
                drop(q);
            } else {
                queued.push(q);
            }
            if queued.len() > 16 {
                for q in queued.drain(..) {
                    q.wait(PATIENCE)
                        .unwrap_or_else(|e| panic!("rank {rank}: {e}"));
                    assert!(q.has_ended());
                }
            }
        }
        for q in &queued {
            q.wait(PATIENCE)
                .unwrap_or_else(|e| panic!("rank {rank}: {e}"));
            q.wait(PATIENCE).expect("asked again");
        }
        stream.synchronize(PATIENCE).expect("all of it");
        let mut got = vec![0; count as usize * 4];
        buffer.read(0, &mut got).expect("inside");
        let first = |i| (0..3).fold(0_u32, |s, r| s.wrapping_add(value(r, i)));
        let times = (1..rounds).fold(1_u32, |t, _| t.wrapping_mul(3));
        let want: Vec<u8> = (0..count)
            .flat_map(|i| first(i).wrapping_mul(times).to_ne_bytes())
            .collect();
        assert!(got == want, "rank {rank}");
    });
    without_kernels.into_inner()
}

#[test]
fn operations_in_a_stream_need_no_kernel_where_the_driver_has_memory_operations() {
    let name = "operations_in_a_stream_need_no_kernel_where_the_driver_has_memory_operations";
    on_any_driver(name, "", || {
        let without_kernels = queued_sums("cuda-words");
        communicators::defaults_in_streams("cuda-words-defaults");
        let text = GpuChoice::Auto
            .open(&EmulatedGpuConfig::default())
            .expect("a real GPU, or the mock's")
            .gpu
            .describe();
        let has = text.contains("by stream memory operations");
        assert_eq!(without_kernels, has, "{text}");
        assert!(has || asked_for_cuda(), "the mock has them: {text}");
    });
}

#[test]
fn operations_in_a_stream_are_kernels_where_it_has_none() {
    under_mock(
        "operations_in_a_stream_are_kernels_where_it_has_none",
        "no-words",
        || {
            assert!(!queued_sums("cuda-no-words"));
            communicators::defaults_in_streams("cuda-no-words-defaults");
            let text = GpuChoice::Auto
                .open(&EmulatedGpuConfig::default())
                .expect("the mock")
                .gpu
                .describe();
            assert!(
                text.contains("by kernels, because the GPU has no 64-bit stream memory"),
                "{text}"
            );
        },
    );
}

#[test]
fn a_group_in_a_stream_runs_beside_the_driver_s_host_function() {
    let name = "a_group_in_a_stream_runs_beside_the_driver_s_host_function";
    on_any_driver(name, "", || {
        let r = communicators::ranks("cuda-group", 3);
        let comms = Communicator::init_all(&r.nics, &communicators::options()).expect("all come");
        communicators::each(&comms, |c| {
            let (rank, count) = (c.rank(), 5003_u64);
            let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
            let (src, dst) = (
                c.nic().alloc::<u8>(count).expect("memory"),
                c.nic().alloc::<u8>(count).expect("memory"),
            );
            src.write(0, &pattern(count, rank.into())).expect("inside");
            let stream = c.nic().gpu().stream();
            let (tell, told) = std::sync::mpsc::channel();
            // Sends before receives on every rank: only a group does not block.
            let both = vec![
                (
                    c.clone(),
                    ringbell::Operation::send::<u8>(&src, count, next, 7),
                ),
                (
                    c.clone(),
                    ringbell::Operation::recv::<u8>(&dst, count, Some(previous), Some(7)),
                ),
            ];
            Communicator::enqueue_group(both, &stream, move |r| drop(tell.send(r.map(|_| ()))))
                .expect("queued");
            let ended = told.recv_timeout(PATIENCE).expect("the stream gets there");
            ended.unwrap_or_else(|e| panic!("rank {rank}: {e}"));
            let mut got = vec![0; count as usize];
            dst.read(0, &mut got).expect("inside");
            assert!(got == pattern(count, previous.into()), "rank {rank}");
        });
    });
}

#[test]
fn an_all_reduce_a_send_and_a_receive_are_captured_in_a_graph() {
    let name = "an_all_reduce_a_send_and_a_receive_are_captured_in_a_graph";
    on_any_driver(name, "", || {
        let r = communicators::ranks("cuda-graph", 3);
        assert!(r.nics.iter().all(|n| n.gpu().kind() == GpuKind::Cuda));
        let comms = Communicator::init_all(&r.nics, &communicators::options()).expect("all come");
        communicators::each(&comms, communicators::replays);
    });
}
