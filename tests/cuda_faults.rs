//! Tests of faults around a real GPU, over the mock driver: queues left half written, processes
//! that are stopped or killed while kernels wait. Each must end with an error code, and the NIC
//! must stay usable.
#![allow(unsafe_code)] // Launches kernels.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::mock_driver;
use crate::second_process;
use crate::test_gpu;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mock_driver::under_mock;
use ringbell::abi::{Completion, Descriptor, Opcode, SessionId, Status};
use ringbell::gpu::GpuKind;
use ringbell::nic::QueueConfig;
use ringbell::{DeviceBuffer, HostQueue, KernelArg, Launch, Nic};
use rustix::process::{kill_process, Pid, Signal};
use second_process::{role, say, Second};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u32 = 7003;

/// Longest time past a deadline before a kernel calls the NIC silent.
const GRACE_US: u32 = 300_000;

fn open(last: u8, folder: &Path) -> Nic {
    let queue = QueueConfig {
        silent_grace_us: GRACE_US,
        ..QueueConfig::default()
    };
    let nic = Nic::builder().ip(format!("10.77.41.{last}/24"));
    let nic = nic.gpu("cuda:0").queue(queue).directory(folder);
    nic.open().expect("a NIC beside the mock")
}

fn call(queue: &HostQueue, d: &Descriptor) -> Completion {
    let done = queue.call(d).expect("the NIC answers");
    assert_eq!(done.status, Status::Ok, "{:?}", d.opcode);
    done
}

fn status_of(out: &DeviceBuffer) -> Status {
    let mut r = [0; 24];
    out.read(0, &mut r).expect("inside");
    Status::from_code(r[0]).expect("a status")
}

fn nop(nic: &Nic, queue: &HostQueue, out: &DeviceBuffer, timeout_us: u32) -> Status {
    let args = [
        queue.handle().into(),
        1_u32.into(),
        timeout_us.into(),
        out.into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { nic.gpu().launch("rb_nop", 1, 1, &args) }.expect("it starts");
    launch.wait(PATIENCE).expect("it ends by itself");
    status_of(out)
}

#[test]
fn a_half_written_queue_ends_in_an_error_and_no_other_queue_does() {
    let name = "a_half_written_queue_ends_in_an_error_and_no_other_queue_does";
    under_mock(name, "", || {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("cuda-half-{}", std::process::id()));
        let nic = open(1, &folder);
        let out = nic.alloc::<u8>(64).expect("memory");
        let [broken, whole] = [(); 2].map(|()| nic.create_queue().expect("a queue"));
        assert_eq!(nop(&nic, &broken, &out, 200_000), Status::Ok);
        // The queue after a host's stream that never stored the first word of an entry: the NIC
        // cannot go past the hole, and host threads get an error after their deadline and the
        // grace.
        let left = broken.prepare(&Descriptor::new(Opcode::Nop));
        assert!(left.is_some_and(|l| !broken.is_published(l.ticket)));
        let mut d = Descriptor::new(Opcode::Nop);
        d.timeout_us = 100_000;
        assert!(broken.call(&d).is_err());
        // Kernels have a ring of their own, and are not affected.
        assert_eq!(nop(&nic, &broken, &out, 200_000), Status::Ok);
        // The queue after a kernel that took a ticket and was killed.
        test_gpu::load(nic.gpu(), "selftest");
        let args = [broken.handle().into(), (&out).into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let killed = unsafe { nic.gpu().launch("t_half_written", 1, 1, &args) };
        killed.expect("it starts").wait(PATIENCE).expect("it ends");
        assert_eq!(nop(&nic, &broken, &out, 200_000), Status::NicSilent);
        // Other queues are not affected, and closing ends it all.
        assert_eq!(nop(&nic, &whole, &out, 200_000), Status::Ok);
        drop((broken, whole, out));
        drop(nic);
        let again = open(1, &folder);
        let (queue, out) = (again.create_queue(), again.alloc::<u8>(64).expect("memory"));
        assert_eq!(
            nop(&again, &queue.expect("a queue"), &out, 200_000),
            Status::Ok
        );
        let _ = std::fs::remove_dir_all(folder);
    });
}

/// A kernel that waits for bytes that do not come.
fn receive(
    nic: &Nic,
    queue: &HostQueue,
    s: SessionId,
    to: &DeviceBuffer,
    timeout_us: u32,
) -> Launch {
    let (data, len) = (KernelArg::from(to), 4096_u64);
    let out = KernelArg::Ptr(to.va().checked_add(8192).expect("inside"));
    let args = [
        queue.handle().into(),
        s.0.into(),
        data,
        len.into(),
        timeout_us.into(),
        out,
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { nic.gpu().launch("rb_recv_all", 1, 32, &args) }.expect("it starts")
}

fn received(buffer: &DeviceBuffer) -> Status {
    let mut r = [0; 1];
    buffer.read(8192, &mut r).expect("inside");
    Status::from_code(r[0]).expect("a status")
}

/// The process that is stopped, and then killed.
fn peer(folder: &Path) {
    let nic = open(2, folder);
    let queue = nic.create_queue().expect("a queue");
    let session = SessionId(call(&queue, &Descriptor::new(Opcode::Socket)).detail as u32);
    let mut d = Descriptor::new(Opcode::Connect);
    (d.session, d.imm) = (session, PORT);
    d.operand = u32::from(Ipv4Addr::new(10, 77, 41, 1)).into();
    call(&queue, &d);
    let buffer = nic.alloc::<u8>(16 << 10).expect("memory");
    let waiting = receive(&nic, &queue, session, &buffer, 1_000_000);
    say("waiting");
    // Stopped here. The deadline passes meanwhile; the kernel reports it as soon as it resumes.
    waiting.wait(PATIENCE).expect("it ends by itself");
    say(&(received(&buffer) as u8).to_string());
    // The GPU and the NIC are usable again: on a queue of its own, in case the NIC was silent.
    let other = nic.create_queue().expect("a queue");
    assert_eq!(nop(&nic, &other, &buffer, 1_000_000), Status::Ok);
    let _spins = receive(&nic, &other, session, &buffer, 60_000_000);
    say("spinning");
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_process_stopped_or_killed_while_kernels_wait_blocks_no_peer() {
    let name = "a_process_stopped_or_killed_while_kernels_wait_blocks_no_peer";
    under_mock(name, "", || {
        let of = role().map_or_else(std::process::id, |_| std::os::unix::process::parent_id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-stopped-{of}"));
        if role().is_some() {
            return peer(&folder);
        }
        let nic = open(1, &folder);
        assert_eq!(nic.gpu().kind(), GpuKind::Cuda);
        let queue = nic.create_queue().expect("a queue");
        let listener = SessionId(call(&queue, &Descriptor::new(Opcode::Socket)).detail as u32);
        let mut d = Descriptor::new(Opcode::Listen);
        (d.session, d.imm) = (listener, PORT | 4 << 16);
        call(&queue, &d);
        let mut accept = Descriptor::new(Opcode::Accept);
        (accept.session, accept.timeout_us) = (listener, 60_000_000);
        let accepting = queue.try_post(&accept).expect("room");
        let mut second = Second::start(name, "peer");
        let accepted = queue.wait(accepting, PATIENCE).expect("it ends");
        assert_eq!(accepted.status, Status::Ok);
        let session = SessionId(accepted.detail as u32);
        let buffer = nic.alloc::<u8>(16 << 10).expect("memory");
        let pid = Pid::from_raw(second.pid() as i32).expect("a process");

        second.expect("waiting");
        kill_process(pid, Signal::STOP).expect("our own child");
        // Our kernels keep their own deadlines while it is stopped, past its deadline.
        for _ in 0..3 {
            let waiting = receive(&nic, &queue, session, &buffer, 500_000);
            waiting.wait(PATIENCE).expect("it ends by itself");
            assert_eq!(received(&buffer), Status::TimedOut);
        }
        kill_process(pid, Signal::CONT).expect("our own child");
        let told = second.hear();
        let status = told.parse().ok().and_then(Status::from_code);
        // By the NIC, or by the kernel's own watchdog when that runs first.
        assert!(
            matches!(status, Some(Status::TimedOut | Status::NicSilent)),
            "{told}"
        );

        second.expect("spinning");
        let waiting = receive(&nic, &queue, session, &buffer, 60_000_000);
        kill_process(pid, Signal::KILL).expect("our own child");
        waiting.wait(PATIENCE).expect("it ends by itself");
        let status = received(&buffer);
        assert!(
            matches!(status, Status::ConnectionReset | Status::EndOfStream),
            "{status}"
        );
        assert_eq!(nop(&nic, &queue, &buffer, 1_000_000), Status::Ok);
        drop(second);
        let _ = std::fs::remove_dir_all(folder);
    });
}
