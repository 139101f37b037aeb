//! Tests of engines that a kernel attaches to its own queue: a state for each session, and one for
//! all.
#![allow(unsafe_code)] // Launches kernels.

use crate::test_gpu;

use std::path::Path;
use std::time::Duration;

use ringbell::abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell::engines::checksum::ChecksumEngine;
use ringbell::engines::StreamEngine;
use ringbell::{HostQueue, Nic};

const LEN: usize = 50_001;
const ROOM: usize = 64;
const KIND: u16 = 9;

fn open(ip: &str, discovery: &Path) -> Nic {
    let gpu = match test_gpu::on_cuda() {
        true => "cuda:0",
        false => "auto",
    };
    // A folder of its own: other tests run at the same time, with the same addresses.
    let nic = Nic::builder().ip(ip).directory(discovery);
    nic.gpu(gpu).gpu_memory(16 << 20).open().expect("a NIC")
}

fn call(queue: &HostQueue, d: &Descriptor) -> Completion {
    let done = queue.call(d).expect("the NIC answers");
    assert_eq!(done.status, Status::Ok, "{:?}", d.opcode);
    done
}

fn on(session: SessionId, opcode: Opcode) -> Descriptor {
    Descriptor {
        session,
        ..Descriptor::new(opcode)
    }
}

/// A checksum engine's result for some bytes.
fn checksum(parts: &[&[u8]]) -> Vec<u8> {
    let mut engine = ChecksumEngine::new();
    for part in parts {
        engine.process(part, &mut Vec::new());
    }
    let mut result = Vec::new();
    engine.result(&mut result);
    result
}

#[test]
fn a_kernel_counts_the_bytes_of_its_queue_by_session_and_in_total() {
    let name = format!("engines-kernel-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    let (server, client) = (open("10.77.0.1/24", &dir), open("10.77.0.2/24", &dir));
    server
        .register_engine_kind(KIND, |_| Some(Box::new(ChecksumEngine::new())))
        .expect("free");
    test_gpu::load(server.gpu(), "count");
    let (host, far) = (
        server.create_queue().expect("a queue"),
        client.create_queue().expect("a queue"),
    );
    let listener = SessionId(call(&host, &Descriptor::new(Opcode::Socket)).detail as u32);
    let listen = Descriptor {
        imm: 7000,
        ..on(listener, Opcode::Listen)
    };
    call(&host, &listen);
    let memory = client.alloc::<u8>(4 * LEN as u64).expect("memory");
    let sessions = [1_u8, 2].map(|seed| {
        let session = SessionId(call(&far, &Descriptor::new(Opcode::Socket)).detail as u32);
        let connect = Descriptor {
            operand: 0x0a4d_0001,
            imm: 7000,
            ..on(session, Opcode::Connect)
        };
        call(&far, &connect);
        let peer = SessionId(call(&host, &on(listener, Opcode::Accept)).detail as u32);
        let bytes: Vec<u8> = (0..LEN)
            .map(|i| (i as u8).wrapping_mul(seed) ^ seed)
            .collect();
        (session, peer, bytes)
    });
    let mut under_way = Vec::new();
    for (i, (session, _, bytes)) in sessions.iter().enumerate() {
        let at = 2 * i * LEN;
        memory.write(at as u64, bytes).expect("written");
        for (opcode, at) in [(Opcode::Send, at), (Opcode::Recv, at + LEN)] {
            let d = Descriptor {
                local_va: GpuVa(memory.va().0 + at as u64),
                len: LEN as u32,
                ..on(*session, opcode)
            };
            under_way.push(far.try_post(&d).expect("room"));
        }
    }

    let queue = server.create_queue().expect("a queue");
    let alloc = |bytes: usize| server.alloc::<u8>(bytes as u64).expect("memory");
    let (data, results, end) = (alloc(LEN), alloc(3 * ROOM), alloc(24));
    let args = [
        queue.handle().into(),
        sessions[0].1 .0.into(),
        sessions[1].1 .0.into(),
        u32::from(KIND).into(),
        (&data).into(),
        (LEN as u64).into(),
        (&results).into(),
        (ROOM as u32).into(),
        (&end).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let kernel = unsafe { server.gpu().launch("count_each", 1, 32, &args) };
    let limit = Duration::from_secs(60);
    kernel.expect("launched").wait(limit).expect("it ends");
    for ticket in under_way {
        let done = far.wait(ticket, limit).expect("the NIC answers");
        assert_eq!((done.status, done.bytes), (Status::Ok, LEN as u64));
    }
    let mut ended = [0; 4];
    end.read(0, &mut ended).expect("read");
    assert_eq!(u32::from_le_bytes(ended), u32::from(Status::Ok.code()));
    let mut got = [0; 3 * ROOM];
    results.read(0, &mut got).expect("read");
    let [a, b] = [&sessions[0].2[..], &sessions[1].2];
    for (i, expected) in [checksum(&[a]), checksum(&[b]), checksum(&[a, b])]
        .iter()
        .enumerate()
    {
        assert_eq!(&got[i * ROOM..][..expected.len()], expected, "state {i}");
    }
    assert!(server.engines().is_empty());
    drop((server, client));
    let _ = std::fs::remove_dir_all(dir);
}
