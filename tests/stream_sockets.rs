//! Tests of stream-ordered sockets: the same steps by kernels, on the emulated GPU, and by the
//! stream itself, over the mock driver with and without stream memory operations.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;
#[cfg(feature = "cuda")]
use crate::mock_driver;

use communicators::{ranks, Ranks, PATIENCE};
use ringbell::abi::{GpuVa, Status};
use ringbell::gpu::{SocketContext, SocketError};
use ringbell::parts::cuda_kernels::{Outcome, Pending, Socket};
use ringbell::DeviceBuffer;

/// Bytes that differ from place to place and from message to message.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8)
        .collect()
}

fn ok(p: &Pending) -> Outcome {
    p.wait(PATIENCE).expect("it ends well")
}

fn holds(buffer: &DeviceBuffer, want: &[u8]) {
    let mut got = vec![0; want.len()];
    buffer.read(0, &mut got).expect("inside");
    assert!(got == want);
}

/// Two ends of a connection, each with its context.
struct Ends {
    ranks: Ranks,
    contexts: [SocketContext; 2],
    sockets: [Socket; 2],
}

/// Opens a connection; kernels do so on any GPU.
fn connected(name: &str) -> Ends {
    let r = ranks(name, 2);
    let [mut serving, mut sending] = [0, 1].map(|i: usize| {
        let context = r.nics[i].socket_context(6);
        context.expect("a queue and memory")
    });
    let mut listener = serving.socket().expect("a cell");
    let listening = serving
        .listen(&mut listener, 7001, 1)
        .expect("it is queued");
    assert!(!listening.needs_no_kernel());
    ok(&listening);
    let accepted = serving.accept(&mut listener).expect("it is queued");
    let mut socket = sending.socket().expect("a cell");
    let address = r.nics[0].ip().ip;
    ok(&sending
        .connect(&mut socket, address, 7001)
        .expect("it is queued"));
    let _ = accepted.wait(PATIENCE).expect("the client connects");
    Ends {
        ranks: r,
        contexts: [serving, sending],
        sockets: [accepted, socket],
    }
}

impl Ends {
    fn alloc(&self, end: usize, len: u64) -> DeviceBuffer {
        self.ranks.nics[end].alloc(len).expect("memory")
    }

    fn send(&mut self, end: usize, from: &DeviceBuffer) -> Pending {
        let sent = self.contexts[end].send(&mut self.sockets[end], from.va(), from.len());
        sent.expect("it is queued")
    }

    fn recv(&mut self, end: usize, to: &DeviceBuffer) -> Pending {
        let received = self.contexts[end].recv(&mut self.sockets[end], to.va(), to.len());
        received.expect("it is queued")
    }

    fn close(self) {
        let [serving, sending] = self.contexts;
        for (mut context, socket) in [serving, sending].into_iter().zip(self.sockets) {
            ok(&context.close(socket).expect("it is queued"));
        }
    }
}

/// Messages of many sizes in both directions, and more of them outstanding than a queue has slots.
fn messages(name: &str, words: bool) {
    let mut ends = connected(name);
    for (i, len) in [1_u64, 40, 41, 4_097, 300_003].into_iter().enumerate() {
        let (from, to) = (i % 2, 1 - i % 2);
        let (source, copy) = (ends.alloc(from, len), ends.alloc(to, len));
        source.write(0, &pattern(len, i as u64)).expect("inside");
        let (sent, received) = (ends.send(from, &source), ends.recv(to, &copy));
        assert_eq!(
            (sent.needs_no_kernel(), received.needs_no_kernel()),
            (words, words)
        );
        assert_eq!((ok(&sent).bytes, ok(&received).bytes), (len, len));
        assert_eq!(ok(&received).bytes, len, "asked again");
        holds(&copy, &pattern(len, i as u64));
    }
    // Where the stream posts, the last may be kernels: no slot is left.
    let count = 300_u64;
    let (source, copy) = (ends.alloc(1, count * 8), ends.alloc(0, count * 8));
    let data = pattern(count * 8, 99);
    source.write(0, &data).expect("inside");
    let at = |b: &DeviceBuffer, i: u64| GpuVa(b.va().0 + 8 * i);
    let mut both = Vec::new();
    for i in 0..count {
        let [serving, sending] = &mut ends.contexts;
        let [accepted, socket] = &mut ends.sockets;
        both.push(
            sending
                .send(socket, at(&source, i), 8)
                .expect("it is queued"),
        );
        both.push(
            serving
                .recv(accepted, at(&copy, i), 8)
                .expect("it is queued"),
        );
    }
    both.iter().for_each(|p| assert_eq!(ok(p).bytes, 8));
    let by_stream = both.iter().filter(|p| p.needs_no_kernel()).count();
    assert_eq!(by_stream > 0, words);
    holds(&copy, &data);
    let [_, sending] = &mut ends.contexts;
    let shut = sending
        .shutdown(&mut ends.sockets[1])
        .expect("it is queued");
    assert_eq!(shut.needs_no_kernel(), words);
    ok(&shut);
    let ended = ends.recv(0, &copy);
    assert!(matches!(
        ended.wait(PATIENCE),
        Err(SocketError::Nic {
            status: Status::EndOfStream,
            bytes: 0,
            ..
        })
    ));
    ends.close();
}

/// Steps queued behind a step that fails are not done, and report its status.
fn failures(name: &str) {
    // A deadline that passes, and an address without a NIC: neither ends the stream in the NIC.
    for late in [true, false] {
        let mut ends = connected(&format!("{name}-{late}"));
        let (source, copy) = (ends.alloc(1, 4096), ends.alloc(0, 4096));
        source.write(0, &pattern(4096, 5)).expect("inside");
        let before = vec![0xee; 4096];
        copy.write(0, &before).expect("inside");
        let outside = GpuVa(0x1000);
        let [serving, _] = &mut ends.contexts;
        let [accepted, _] = &mut ends.sockets;
        serving.set_timeout_us(20_000);
        let to = if late { copy.va() } else { outside };
        let first = serving.recv(accepted, to, 4096).expect("it is queued");
        serving.set_timeout_us(0);
        let behind = [
            serving
                .recv(accepted, copy.va(), 4096)
                .expect("it is queued"),
            serving
                .send(accepted, copy.va(), 4096)
                .expect("it is queued"),
            serving.shutdown(accepted).expect("it is queued"),
        ];
        let failed = first.wait(PATIENCE);
        let Err(SocketError::Nic {
            status,
            bytes: 0,
            detail,
        }) = failed
        else {
            panic!("{failed:?}");
        };
        let want = match late {
            true => (Status::TimedOut, 0),
            false => (Status::NotRegistered, outside.0),
        };
        assert_eq!((status, detail), want);
        let later = ends.recv(0, &copy);
        for step in behind.iter().chain([&later]) {
            match step.wait(PATIENCE) {
                Err(SocketError::Nic {
                    status,
                    bytes: 0,
                    detail,
                }) => {
                    assert_eq!((status, detail), want);
                }
                other => panic!("{other:?}"),
            }
        }
        holds(&copy, &before);
        // The other end works, and this one closes in order: its later sends were not done.
        let tail = ends.alloc(1, 16);
        let ended = ends.recv(1, &tail);
        let mut sockets = Vec::from(ends.sockets);
        let [mut serving, mut sending] = ends.contexts;
        ok(&serving.close(sockets.remove(0)).expect("it is queued"));
        assert!(matches!(
            ended.wait(PATIENCE),
            Err(SocketError::Nic {
                status: Status::EndOfStream,
                bytes: 0,
                ..
            })
        ));
        ok(&sending.close(sockets.remove(0)).expect("it is queued"));
    }
}

/// A captured send and receive, by kernels with any driver, and the calls that a capture refuses.
fn graphs(name: &str) {
    let mut ends = connected(name);
    let len = 5003;
    let (source, copy) = (ends.alloc(1, len), ends.alloc(0, len));
    for context in &ends.contexts {
        context.stream().begin_capture().expect("it captures");
    }
    let (sent, received) = (ends.send(1, &source), ends.recv(0, &copy));
    assert!(!sent.needs_no_kernel() && !received.needs_no_kernel());
    let refused = |e: SocketError, what: &str| {
        assert!(matches!(e, SocketError::Captured { .. }), "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    let graphs = {
        let [serving, sending] = &mut ends.contexts;
        let [accepted, socket] = &mut ends.sockets;
        refused(serving.socket().expect_err("once"), "opening a socket");
        refused(serving.accept(accepted).expect_err("once"), "an accept");
        refused(
            serving.listen(accepted, 1, 1).expect_err("once"),
            "a listen",
        );
        let missing = [10, 66, 0, 9].into();
        refused(
            sending.connect(socket, missing, 1).expect_err("once"),
            "a connect",
        );
        refused(sending.shutdown(socket).expect_err("once"), "a shutdown");
        [serving, sending].map(|c| c.stream().end_capture().expect("a graph"))
    };
    for round in 0..70 {
        let data = pattern(len, round);
        source.write(0, &data).expect("inside");
        let running = [0, 1].map(|i: usize| graphs[i].launch(ends.contexts[i].stream()));
        for launch in running {
            launch.expect("it starts").wait(PATIENCE).expect("it ends");
        }
        assert_eq!(sent.replayed().expect("it ends well").bytes, len);
        assert_eq!(received.replayed().expect("it ends well").bytes, len);
        holds(&copy, &data);
    }
    // The stream continues where the graph has stopped; and the other way round.
    let (sent_now, received_now) = (ends.send(1, &source), ends.recv(0, &copy));
    assert_eq!((ok(&sent_now).bytes, ok(&received_now).bytes), (len, len));
    // A receive that fails fails the replays behind it as well.
    let small = ends.alloc(0, 8);
    ends.contexts[0].set_timeout_us(10_000);
    let late = ends.recv(0, &small);
    assert!(late.wait(PATIENCE).is_err());
    let replay = graphs[0].launch(ends.contexts[0].stream());
    replay.expect("it starts").wait(PATIENCE).expect("it ends");
    assert!(matches!(
        received.replayed(),
        Err(SocketError::Nic {
            status: Status::TimedOut,
            bytes: 0,
            ..
        })
    ));
    drop(graphs);
    ends.close();
}

/// Steps that are queued before the host has the session's number.
fn queued_blind(name: &str) {
    let r = ranks(name, 2);
    let [mut serving, mut sending] = [0, 1].map(|i: usize| {
        let context = r.nics[i].socket_context(2);
        context.expect("a queue and memory")
    });
    let (source, copy) = (
        r.nics[1].alloc(70_001).expect("memory"),
        r.nics[0].alloc(70_001).expect("memory"),
    );
    source.write(0, &pattern(70_001, 3)).expect("inside");
    let mut listener = serving.socket().expect("a cell");
    ok(&serving
        .listen(&mut listener, 7001, 1)
        .expect("it is queued"));
    let mut accepted = serving.accept(&mut listener).expect("it is queued");
    let received = serving.recv(&mut accepted, copy.va(), copy.len());
    let received = received.expect("it is queued");
    assert!(!received.needs_no_kernel(), "no client has connected yet");
    let mut socket = sending.socket().expect("a cell");
    let address = r.nics[0].ip().ip;
    let _ = sending
        .connect(&mut socket, address, 7001)
        .expect("it is queued");
    let sent = sending.send(&mut socket, source.va(), source.len());
    ok(&sent.expect("it is queued"));
    ok(&received);
    holds(&copy, &pattern(70_001, 3));
    ok(&sending.close(socket).expect("it is queued"));
    ok(&serving.close(accepted).expect("it is queued"));
}

fn all(name: &str) -> bool {
    let words = {
        let r = ranks(&format!("{name}-asked"), 1);
        r.nics[0].gpu().stream().has_words().is_ok()
    };
    messages(&format!("{name}-messages"), words);
    failures(&format!("{name}-failures"));
    graphs(&format!("{name}-graphs"));
    queued_blind(&format!("{name}-blind"));
    words
}

#[test]
fn sockets_in_streams_work_on_the_gpu_that_is_there() {
    all("socket-streams");
}

#[cfg(feature = "cuda")]
#[test]
fn sockets_in_streams_need_no_kernel_where_the_driver_has_memory_operations() {
    let name = "sockets_in_streams_need_no_kernel_where_the_driver_has_memory_operations";
    mock_driver::under_mock(name, "", || assert!(all("socket-words")));
}

#[cfg(feature = "cuda")]
#[test]
fn sockets_in_streams_are_kernels_where_it_has_none() {
    let name = "sockets_in_streams_are_kernels_where_it_has_none";
    mock_driver::under_mock(name, "no-words", || assert!(!all("socket-no-words")));
}
