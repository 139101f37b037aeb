//! Tests of messages between two NICs beside one GPU, over the mock driver: staged in NIC memory,
//! in one process and between two.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(unsafe_code)] // Memory of others is adopted.

use crate::mock_driver;
use crate::second_process;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mock_driver::under_mock;
use ringbell::abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell::gpu::GpuKind;
use ringbell::{DeviceBuffer, HostQueue, Nic};
use second_process::{read_bytes, read_to_end, role, say, Second};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u32 = 7100;

/// A NIC beside the GPU, and a queue of it.
struct End {
    nic: Nic,
    queue: HostQueue,
}

fn folder(name: &str) -> PathBuf {
    // The same in both processes of a test: its folder is named after the first.
    std::env::temp_dir().join(format!("cuda-local-{name}"))
}

impl End {
    fn open(folder: &Path, n: u8) -> End {
        let nic = Nic::builder().ip(format!("10.77.50.{n}/24"));
        let nic = nic.directory(folder).open().expect("a NIC beside the mock");
        assert_eq!(nic.gpu().kind(), GpuKind::Cuda);
        let queue = nic.create_queue().expect("a queue");
        End { nic, queue }
    }

    fn start(&self, d: &Descriptor) -> u32 {
        self.queue.try_post(d).expect("room")
    }

    fn wait(&self, ticket: u32) -> Completion {
        self.queue.wait(ticket, PATIENCE).expect("it ends")
    }

    fn call(&self, d: &Descriptor) -> u64 {
        let done = self.wait(self.start(d));
        assert_eq!(done.status, Status::Ok, "{:?}", d.opcode);
        done.detail
    }

    fn filled(&self, len: u64, seed: u64) -> DeviceBuffer {
        let buffer = self.nic.alloc::<u8>(len).expect("memory");
        buffer.write(0, &pattern(len, seed)).expect("inside");
        buffer
    }

    /// Listens; the session is accepted by [`End::accepted`].
    fn listen(&self) -> SessionId {
        let l = SessionId(self.call(&Descriptor::new(Opcode::Socket)) as u32);
        let mut d = Descriptor::new(Opcode::Listen);
        (d.session, d.imm) = (l, PORT | 4 << 16);
        self.call(&d);
        l
    }

    fn accepted(&self, listener: SessionId) -> SessionId {
        let mut d = Descriptor::new(Opcode::Accept);
        d.session = listener;
        SessionId(self.call(&d) as u32)
    }

    fn connect(&self, n: u8) -> SessionId {
        let s = SessionId(self.call(&Descriptor::new(Opcode::Socket)) as u32);
        let mut d = Descriptor::new(Opcode::Connect);
        (d.session, d.imm) = (s, PORT);
        d.operand = u32::from(Ipv4Addr::new(10, 77, 50, n)).into();
        self.call(&d);
        s
    }

    fn staged(&self) -> u64 {
        self.nic.counters().staged_bytes
    }
}

fn moving(op: Opcode, session: SessionId, va: GpuVa, len: u64) -> Descriptor {
    let mut d = Descriptor::new(op);
    (d.session, d.local_va, d.len) = (session, va, len as u32);
    d
}

/// Bytes that differ from place to place and from message to message.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8)
        .collect()
}

fn contents(buffer: &DeviceBuffer, at: u64, len: u64) -> Vec<u8> {
    let mut got = vec![0; len as usize];
    buffer.read(at, &mut got).expect("inside");
    got
}

/// A session between two NICs of this process.
fn pair(name: &str) -> (End, End, SessionId, SessionId) {
    let folder = folder(&format!("{name}-{}", std::process::id()));
    let (a, b) = (End::open(&folder, 1), End::open(&folder, 2));
    let listener = a.listen();
    let mut d = Descriptor::new(Opcode::Accept);
    d.session = listener;
    let accepting = a.start(&d);
    let sb = b.connect(1);
    let accepted = a.wait(accepting);
    assert_eq!(accepted.status, Status::Ok);
    let _ = std::fs::remove_dir_all(folder);
    (a, b, SessionId(accepted.detail as u32), sb)
}

const LENGTHS: [u64; 5] = [121, 4097, 65_537, 1_000_003, 5_000_001];

#[test]
fn two_nics_of_a_process_exchange_messages() {
    let name = "two_nics_of_a_process_exchange_messages";
    // Copies end late: an acknowledgement or a completion that did not wait would be seen.
    under_mock(name, "slow-writes", || {
        let (a, b, sa, sb) = pair(name);
        let from = b.filled(5_000_100, 1);
        let to = a.filled(5_000_100, 2);
        let mut staged = b.staged();
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let (at, into) = (13 * i as u64 + 1, 99 - 7 * i as u64);
            let expected = pattern(5_000_100, 1)[at as usize..][..len as usize].to_vec();
            let receive = moving(Opcode::Recv, sa, GpuVa(to.va().0 + into), len);
            let send = moving(Opcode::Send, sb, GpuVa(from.va().0 + at), len);
            let (tr, ts) = (a.start(&receive), b.start(&send));
            assert_eq!(
                (a.wait(tr).status, b.wait(ts).status),
                (Status::Ok, Status::Ok)
            );
            // The sender's buffer is free: bytes written there now are not in the message.
            from.write(at, &vec![0xee; len as usize]).expect("inside");
            assert!(contents(&to, into, len) == expected, "{len} bytes");
            from.write(0, &pattern(5_000_100, 1)).expect("inside");
            staged += if len > 120 { len } else { 0 };
            assert_eq!(b.staged(), staged, "{len}");
        }

        // Many at once, divided differently at the receiver.
        let n = 40_u64;
        let whole = pattern(5_000_100, 1);
        let sends: Vec<u32> = (0..n)
            .map(|i| {
                b.start(&moving(
                    Opcode::Send,
                    sb,
                    GpuVa(from.va().0 + i * 10_007),
                    10_007,
                ))
            })
            .collect();
        let part = n * 10_007 / 8;
        let receives: Vec<u32> = (0..8)
            .map(|i| a.start(&moving(Opcode::Recv, sa, GpuVa(to.va().0 + i * part), part)))
            .collect();
        for t in sends {
            assert_eq!(b.wait(t).status, Status::Ok);
        }
        for t in receives {
            assert_eq!(a.wait(t).status, Status::Ok);
        }
        assert!(contents(&to, 0, n * 10_007) == whole[..(n * 10_007) as usize]);

        // Freed and allocated again, it is other memory at what may be the same address.
        let old = from.va();
        drop(from);
        let again = b.filled(5_000_100, 3);
        let (tr, ts) = (
            a.start(&moving(Opcode::Recv, sa, to.va(), 300_001)),
            b.start(&moving(Opcode::Send, sb, again.va(), 300_001)),
        );
        assert_eq!(
            (a.wait(tr).status, b.wait(ts).status),
            (Status::Ok, Status::Ok)
        );
        assert!(
            contents(&to, 0, 300_001) == pattern(300_001, 3),
            "old: {old}"
        );

        // From the end of one allocation into the next: refused, not copied.
        let wild = moving(Opcode::Send, sb, GpuVa(again.va().0 + 5_000_000), 1 << 20);
        let status = b.wait(b.start(&wild)).status;
        assert!(
            matches!(status, Status::OutOfBounds | Status::NotRegistered),
            "{status:?}"
        );
    });
}

#[test]
fn pinned_memory_is_staged_and_received_into() {
    let name = "pinned_memory_is_staged_and_received_into";
    under_mock(name, "", || {
        let (a, b, sa, sb) = pair(name);
        let (on_gpu, on_host) = (
            b.filled(300_007, 1),
            a.nic.alloc_pinned::<u8>(300_007).expect("pinned"),
        );
        let (tr, ts) = (
            a.start(&moving(Opcode::Recv, sa, on_host.va(), 300_007)),
            b.start(&moving(Opcode::Send, sb, on_gpu.va(), 300_007)),
        );
        assert_eq!(
            (a.wait(tr).status, b.wait(ts).status),
            (Status::Ok, Status::Ok)
        );
        assert!(contents(&on_host, 0, 300_007) == pattern(300_007, 1));
        assert_eq!(b.staged(), 300_007);
        // The other way round.
        on_gpu.write(0, &vec![0; 300_007]).expect("inside");
        let (tr, ts) = (
            b.start(&moving(Opcode::Recv, sb, on_gpu.va(), 300_007)),
            a.start(&moving(Opcode::Send, sa, on_host.va(), 300_007)),
        );
        assert_eq!(
            (b.wait(tr).status, a.wait(ts).status),
            (Status::Ok, Status::Ok)
        );
        assert!(contents(&on_gpu, 0, 300_007) == pattern(300_007, 1));
        assert_eq!(a.staged(), 300_007);
    });
}

/// The second process of most tests: executes the commands of the first. A command is a letter and
/// a number of eight bytes.
fn sender(name: &str, id: u64) {
    let end = End::open(&folder(&format!("{name}-{id}")), 2);
    let session = end.connect(1);
    let mut buffers: Vec<DeviceBuffer> = Vec::new();
    let mut asked: Vec<u32> = Vec::new();
    loop {
        let command = read_bytes(9);
        let n = u64::from_ne_bytes(command[1..].try_into().expect("eight bytes"));
        match command[0] {
            b'a' => buffers.push(end.filled(n, buffers.len() as u64 + 1)),
            b'f' => drop(buffers.remove(0)),
            b's' => {
                let last = buffers.last().expect("a buffer");
                let d = moving(Opcode::Send, session, GpuVa(last.va().0 + 5), n);
                asked.push(end.start(&d));
            }
            b'w' => {
                let ends = asked.drain(..).map(|t| end.wait(t).status);
                say(&format!("{:?}", ends.collect::<Vec<_>>()));
                continue;
            }
            b'c' => {
                say(&format!("staged {}", end.staged()));
                continue;
            }
            _ => break,
        }
        say("ok");
    }
}

/// The first process, and the second.
struct Two {
    end: End,
    session: SessionId,
    other: Second,
    folder: PathBuf,
}

impl Two {
    fn start(name: &str, faults: &str) -> Two {
        let id = u64::from(std::process::id());
        let folder = folder(&format!("{name}-{id}"));
        let end = End::open(&folder, 1);
        let listener = end.listen();
        let mut other = Second::start_with(name, "sender", faults);
        other.send(&id.to_ne_bytes());
        let session = end.accepted(listener);
        Two {
            end,
            session,
            other,
            folder,
        }
    }

    fn tell(&mut self, command: u8, n: u64) -> String {
        let mut bytes = vec![command];
        bytes.extend(n.to_ne_bytes());
        self.other.send(&bytes);
        self.other.hear()
    }

    fn receive(&self, to: &DeviceBuffer, len: u64) -> u32 {
        self.end
            .start(&moving(Opcode::Recv, self.session, to.va(), len))
    }

    fn end(mut self) {
        self.other.send(&[b'e'; 9]);
        self.other.end();
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether this is the second process, whose work is done then.
fn was_sender(name: &str) -> bool {
    if role() != Some("sender") {
        return false;
    }
    let id = u64::from_ne_bytes(read_bytes(8).try_into().expect("eight bytes"));
    sender(name, id);
    read_to_end();
    true
}

#[test]
fn two_processes_exchange_messages() {
    let name = "two_processes_exchange_messages";
    under_mock(name, "slow-writes", || {
        if was_sender(name) {
            return;
        }
        let mut two = Two::start(name, "");
        let to = two.end.filled(5_000_100, 9);
        two.tell(b'a', 5_000_100);
        let mut staged = 0;
        for len in LENGTHS {
            let ticket = two.receive(&to, len);
            two.tell(b's', len);
            let c = two.end.wait(ticket);
            assert_eq!((c.status, c.bytes), (Status::Ok, len));
            assert_eq!(two.tell(b'w', 0), "[Ok]");
            assert!(
                contents(&to, 0, len) == pattern(5_000_100, 1)[5..][..len as usize],
                "{len}"
            );
            staged += if len > 120 { len } else { 0 };
            assert_eq!(two.tell(b'c', 0), format!("staged {staged}"));
        }
        // Freed, and other memory in its place.
        assert_eq!(two.tell(b'f', 0), "ok");
        two.tell(b'a', 700_001);
        let ticket = two.receive(&to, 600_001);
        two.tell(b's', 600_001);
        assert_eq!(two.end.wait(ticket).status, Status::Ok);
        assert!(contents(&to, 0, 600_001) == pattern(700_001, 1)[5..][..600_001]);
        assert_eq!(two.tell(b'w', 0), "[Ok]");
        two.end();
    });
}

#[test]
fn a_killed_sender_ends_the_receive() {
    let name = "a_killed_sender_ends_the_receive";
    under_mock(name, "slow-writes", || {
        if was_sender(name) {
            return;
        }
        for round in 0..3_u64 {
            let mut two = Two::start(name, "");
            let to = two.end.filled(4_000_100, 9);
            two.tell(b'a', 4_000_100);
            let ticket = two.receive(&to, 4_000_001);
            two.other
                .send(&[&[b's'][..], &4_000_000_u64.to_ne_bytes()].concat());
            std::thread::sleep(Duration::from_millis(2 * round));
            let Two { end, other, .. } = &mut two;
            // Killed and waited for.
            other.kill();
            // One byte is missing, so it cannot succeed, however many bytes were copied.
            let c = end.wait(ticket);
            assert!(
                matches!(c.status, Status::ConnectionReset | Status::EndOfStream),
                "{:?}",
                c.status
            );
        }
    });
}
