//! Host memory that local peers map: announced while links are up, one copy, withdrawn before it is
//! freed, and never confused with later memory at its address or descriptor.

use crate::nic_support;

use std::time::Duration;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Descriptor, GpuVa, SessionId, Status};
use ringbell_nic_core::{FreeError, HostBuffer, HostQueue, ProgressMode};

const LIMIT: Duration = Duration::from_secs(60);

/// A NIC whose peers answer within a moment when the test steps them, and late on a busy machine
/// when a thread does.
fn host(dir: &TempDir, n: u8, progress: ProgressMode) -> Host {
    let patience = match progress {
        ProgressMode::Manual => Duration::from_millis(200),
        _ => LIMIT,
    };
    patient_host(dir, n, progress, patience)
}

fn patient_host(dir: &TempDir, n: u8, progress: ProgressMode, patience: Duration) -> Host {
    let mut setup = Setup::new(dir, n);
    setup.nic.progress = progress;
    setup.nic.deregister_timeout = patience;
    Host::new(&setup)
}

fn alloc(h: &Host, len: usize) -> HostBuffer {
    h.nic
        .alloc_host(h.pd, len, Access::LOCAL)
        .expect("host memory")
}

fn at(d: Descriptor, va: GpuVa, offset: u64) -> Descriptor {
    Descriptor {
        local_va: GpuVa(va.0 + offset),
        ..d
    }
}

/// Sends from a buffer of host 0 into GPU memory of host 1 and checks the bytes.
fn send_and_check(hosts: &[&Host], ends: (SessionId, SessionId), from: &HostBuffer, seed: u64) {
    let data = Rng::new(seed).bytes(from.len() as usize - 5);
    from.write(5, &data).expect("inside");
    let len = data.len() as u32;
    let tickets = [
        (1, hosts[1].post(&recv(ends.1, 9, len))),
        (0, hosts[0].post(&at(send(ends.0, 0, len), from.va(), 5))),
    ];
    for c in settle(hosts, &tickets) {
        assert_eq!((c.status, c.bytes), (Status::Ok, len.into()));
    }
    assert!(
        hosts[1].peek(9, data.len()) == data,
        "other bytes than were sent"
    );
}

#[test]
fn one_copy_whether_it_was_made_before_or_after_the_link() {
    let dir = TempDir::new();
    let (a, b) = (
        host(&dir, 1, ProgressMode::Manual),
        host(&dir, 2, ProgressMode::Manual),
    );
    let hosts = &[&a, &b];
    let before = [alloc(&a, 200_003), alloc(&a, 70_000)];
    let ends = connected(hosts, 0, 1, 7);
    let after = alloc(&a, 300_001);
    for (i, buffer) in before.iter().chain([&after]).enumerate() {
        let copied = hosts.map(|h| h.nic.counters().copied_bytes);
        send_and_check(hosts, ends, buffer, i as u64);
        let copied = [0, 1].map(|i| hosts[i].nic.counters().copied_bytes - copied[i]);
        assert_eq!(copied, [0, buffer.len() - 5], "the receiver copies, once");
    }
    // The called side announces its memory, too.
    let back = alloc(&b, 100_000);
    let swapped = [&b, &a];
    send_and_check(&swapped, (ends.1, ends.0), &back, 9);
    assert_eq!(
        b.nic.counters().staged_bytes + a.nic.counters().staged_bytes,
        0
    );
    let free = |h: &Host, other: &Host, buffers: Vec<HostBuffer>| {
        std::thread::scope(|s| {
            let freeing = s.spawn(|| buffers.into_iter().try_for_each(HostBuffer::free));
            while !freeing.is_finished() {
                h.nic.step();
                other.nic.step();
            }
            freeing.join().expect("no panic").expect("the peer answers");
        });
    };
    free(&a, &b, before.into_iter().chain([after]).collect());
    free(&b, &a, vec![back]);
}

#[test]
fn addresses_and_descriptors_that_are_used_again_name_the_new_memory() {
    let dir = TempDir::new();
    let (a, b) = (
        host(&dir, 1, ProgressMode::Waiter),
        host(&dir, 2, ProgressMode::Waiter),
    );
    let hosts = &[&a, &b];
    let ends = connected(hosts, 0, 1, 7);
    let fds = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let mut addresses = Vec::new();
    let mut open = 0;
    for i in 0..40 {
        // The kernel gives the address of what was unmapped last, and the lowest free descriptor.
        let buffer = alloc(&a, 150_000 + i as usize);
        send_and_check(hosts, ends, &buffer, i);
        addresses.push(buffer.va().0 >> 21);
        buffer.free().expect("the peer answers");
        if i == 4 {
            open = fds();
        }
    }
    assert_eq!(a.nic.counters().staged_bytes, 0, "all of it was mapped");
    let n = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert!(
        addresses.len() < n,
        "no address came twice: the test tests nothing"
    );
    // Other tests of this process open some, too, but not one for each of 35 rounds and two sides.
    assert!(
        fds() < open + 60,
        "descriptors leak: {open} became {}",
        fds()
    );
}

#[test]
fn a_peer_that_does_not_answer_costs_the_pages_not_the_program() {
    let dir = TempDir::new();
    let (a, b) = (
        host(&dir, 1, ProgressMode::Manual),
        host(&dir, 2, ProgressMode::Manual),
    );
    let hosts = &[&a, &b];
    let ends = connected(hosts, 0, 1, 7);
    let buffer = alloc(&a, 100_000);
    send_and_check(hosts, ends, &buffer, 1);
    // No thread steps the peer.
    let refused = buffer.free().expect_err("still mapped");
    assert!(
        matches!(refused, FreeError::Mapped { peers: 1, .. }),
        "{refused}"
    );
    // It wakes up, and everything goes on.
    quiesce(hosts);
    let buffer = alloc(&a, 100_000);
    send_and_check(hosts, ends, &buffer, 2);
    drop(b);
    buffer.free().expect("no peer is left to wait for");
}

#[test]
fn memory_that_goes_in_the_middle_of_a_send_is_not_delivered() {
    let dir = TempDir::new();
    let (a, b) = (
        // The peer has a thread that answers.
        patient_host(&dir, 1, ProgressMode::Manual, LIMIT),
        host(&dir, 2, ProgressMode::Waiter),
    );
    let hosts = &[&a, &b];
    for round in 0..4 {
        let ends = connected(hosts, 0, 1, 7 + round);
        let buffer = alloc(&a, 2 << 20);
        buffer.write(0, &vec![0x11; 2 << 20]).expect("inside");
        let ts = (0, a.post(&at(send(ends.0, 0, 2 << 20), buffer.va(), 0)));
        for _ in 0..3 {
            a.nic.step();
        }
        // References are on their way, no receive is posted: the peer has taken at most what it may
        // take early.
        buffer.free().expect("the peer answers");
        assert_eq!(settle(hosts, &[ts])[0].status, Status::RegionFreed);
        let next = alloc(&a, 2 << 20);
        next.write(0, &vec![0x22; 2 << 20]).expect("inside");
        let tr = (1, b.post(&recv(ends.1, 0, 2 << 20)));
        let c = settle(hosts, &[tr])[0];
        assert_eq!(c.status, Status::ConnectionReset, "round {round}");
        assert!(
            b.peek(0, 2 << 20).iter().all(|x| *x != 0x22),
            "the new buffer's bytes"
        );
        next.free().expect("the peer answers");
    }
}

fn ok(queue: &HostQueue, ticket: u32) {
    let c = queue.wait(ticket, LIMIT).expect("never hangs");
    assert_eq!(c.status, Status::Ok);
}

/// Runs in a child process, see the test below.
#[test]
fn child_that_maps_and_is_killed() {
    let Some(dir) = std::env::var_os("RB_TEST_MAPPING_CHILD") else {
        // Only a body for the child; the parent's test is the next one.
        return;
    };
    let shared = TempDir::new();
    let mut setup = Setup::new(&shared, 2);
    setup.local.directory = Some(dir.into());
    setup.nic.progress = ProgressMode::Waiter;
    let h = Host::new(&setup);
    let s = session_of(h.queue.call(&socket()).expect("socket"));
    let c = h
        .queue
        .call(&connect(s, std::net::Ipv4Addr::new(10, 0, 0, 1), 7));
    assert_eq!(c.expect("connect").status, Status::Ok);
    loop {
        let t = h.post(&recv(s, 0, 300_000));
        let _ = h.queue.wait(t, LIMIT);
    }
}

#[test]
fn a_killed_peer_does_not_hold_memory() {
    let dir = TempDir::new();
    let h = host(&dir, 1, ProgressMode::Waiter);
    let l = listener(&[&h], 0, 7);
    let exe = std::env::current_exe().expect("own path");
    let mut child = std::process::Command::new(exe)
        .args([
            "--exact",
            "shared_memory::child_that_maps_and_is_killed",
            "--nocapture",
        ])
        .env("RB_TEST_MAPPING_CHILD", dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("child");
    let s = session_of(h.queue.call(&accept(l)).expect("accept"));
    let buffer = alloc(&h, 300_000);
    for _ in 0..3 {
        ok(&h.queue, h.post(&at(send(s, 0, 300_000), buffer.va(), 0)));
    }
    assert_eq!(h.nic.counters().staged_bytes, 0, "the child has mapped it");
    // One more is under way when it dies.
    let last = h.post(&at(send(s, 0, 300_000), buffer.va(), 0));
    child.kill().expect("kill");
    child.wait().expect("reap");
    buffer.free().expect("a killed peer holds nothing");
    // Taken by the peer, ended by its death, or too late for a buffer that is gone: but ended.
    let c = h.queue.wait(last, LIMIT).expect("never hangs");
    let ends = [
        Status::Ok,
        Status::ConnectionReset,
        Status::RegionFreed,
        Status::NotRegistered,
    ];
    assert!(ends.contains(&c.status), "{c:?}");
}
