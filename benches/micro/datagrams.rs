//! A port of datagrams against a plain UDP socket with segmentation offload: one way with the
//! sender and the receiver on a core each and in turn on one core, and a ping-pong of 8 bytes. Runs
//! are interleaved and medians compared; every byte is verified.
//!
//! The plain sockets move bytes alone; the port's packets have a header of 12 bytes and a trailer
//! of 4 around a payload in memory, and its receiver copies each payload into place.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench datagrams [-- --one-core]`
#![allow(clippy::disallowed_methods)] // A benchmark reads the clock.
#![allow(unsafe_code)] // Spans of memory for batches.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use ringbell_nic_core::network::{Datagrams, Link, Network, Protocol};
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::{Batch, Destination, Port as _};
use ringbell_nic_core::types::NicTime;

mod datagrams {
    pub(crate) mod raw;
}
use datagrams::raw;

const ROUNDS: usize = 7;
const MEMORY: usize = 16 << 20;
const BYTES: usize = 256 << 20;
/// Bytes under way at most: what the receiver has not confirmed.
const WINDOW: usize = 2 << 20;
/// Bytes that are handed over at once.
const CALL: usize = 256 << 10;
const HEADER: usize = 12;
const AROUND: usize = HEADER + 4;
const SIZES: [usize; 4] = [1_024, 4_096, 8_192, 61_440];
const TRIPS: usize = 30_000;
/// No run takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // Best effort: a machine may have one core.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn content() -> Vec<u8> {
    let mut x = 1_u32;
    let words = std::iter::repeat_with(|| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x.to_le_bytes()
    });
    words.take(MEMORY / 4).flatten().collect()
}

/// How far the receiver is.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Runs both sides on a core each; gives GB/s of `BYTES` of payload.
fn one_way(
    send: impl FnOnce(&[u8]) + Send,
    receive: impl FnOnce(&mut [u8]) + Send,
    src: &[u8],
    dst: &mut [u8],
) -> f64 {
    dst.fill(0);
    TAKEN.store(0, Ordering::Release);
    let start = Clock::now();
    std::thread::scope(|s| {
        s.spawn(move || {
            pin(1);
            receive(dst);
        });
        s.spawn(move || {
            pin(0);
            send(src);
        });
    });
    let seconds = start.elapsed().as_secs_f64();
    BYTES as f64 / seconds / 1e9
}

/// Whether there is room in the window for what follows `sent` bytes.
fn has_window(sent: usize, start: Clock) -> bool {
    assert!(start.elapsed() < PATIENCE, "packets were lost at {sent}");
    sent < TAKEN.load(Ordering::Acquire) + WINDOW
}

fn send_raw(socket: &UdpSocket, src: &[u8], chunk: usize) {
    let (start, mut sent) = (Clock::now(), 0);
    while sent < BYTES {
        if !has_window(sent, start) {
            std::hint::spin_loop();
            continue;
        }
        let at = sent % MEMORY;
        let n = chunk.min(MEMORY - at).min(BYTES - sent);
        match socket.send(&src[at..at + n]) {
            Ok(n) => sent += n,
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}"),
        }
    }
}

fn receive_raw(socket: &UdpSocket, dst: &mut [u8]) {
    let (start, mut got) = (Clock::now(), 0);
    // Behind the end of the memory a message would be cut: it is taken aside.
    let mut aside = vec![0; 1 << 16];
    while got < BYTES {
        let at = got % MEMORY;
        let inside = MEMORY - at >= 1 << 16;
        let room = if inside {
            &mut dst[at..]
        } else {
            &mut aside[..]
        };
        match socket.recv(room) {
            Ok(n) => {
                if !inside {
                    let first = n.min(MEMORY - at);
                    dst[at..at + first].copy_from_slice(&aside[..first]);
                    dst[..n - first].copy_from_slice(&aside[first..n]);
                }
                got += n;
                TAKEN.store(got, Ordering::Release);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                assert!(start.elapsed() < PATIENCE, "packets were lost at {got}");
            }
        }
    }
}

fn port() -> RocePort {
    let bind = "127.0.0.1:0".parse().expect("an address");
    RocePort::open(&RoceConfig { bind, mtu: None }).expect("loopback has free ports")
}

/// Sends packets by a network with a port of datagrams.
struct Sender {
    net: Network,
    ip: Ipv4Addr,
    link: Link,
    how: Datagrams,
    batch: Batch,
}

impl Sender {
    fn new(port: RocePort, to: SocketAddr) -> Sender {
        let SocketAddr::V4(local) = port.local() else {
            panic!("an IPv4 address");
        };
        let ip = *local.ip();
        let mut net = Network::new(ip, 24, vec![Box::new(port)], &[]).expect("a host's address");
        net.know_host(ip, to);
        let hop = net.hop_to(Protocol::Roce, ip, None, NicTime(0));
        let link = net.link(hop.expect("a route"));
        Sender {
            ip,
            link: link.expect("the kernel finds it"),
            net,
            how: Datagrams {
                ecn: 0,
                segmented: true,
            },
            batch: Batch::new(),
        }
    }

    /// Fills the batch with the bytes from `posted` to `end`, in packets of `payload`.
    fn fill(&mut self, src: &[u8], mut posted: usize, end: usize, payload: usize) {
        self.batch.clear();
        while posted < end {
            let at = posted % MEMORY;
            let n = payload.min(MEMORY - at).min(end - posted);
            self.batch.put(&(posted as u64).to_le_bytes());
            self.batch.put(&[0; HEADER - 8]);
            // SAFETY: the memory outlives the batch.
            unsafe { self.batch.memory(src[at..].as_ptr(), n) };
            self.batch.put(&[0xcc; 4]);
            self.batch.end();
            posted += n;
        }
    }

    /// Sends the batch from packet `sent` on, as far as there is room.
    fn send(&mut self, sent: usize) -> usize {
        let Sender { net, batch, .. } = self;
        let flow = net.flow(self.link.port, 0, self.ip);
        net.send(NicTime(0), self.link, &flow, &self.how, batch, sent)
    }
}

fn send_packets(port: RocePort, to: SocketAddr, src: &[u8], payload: usize) {
    let mut sender = Sender::new(port, to);
    let (mut posted, mut sent) = (0, 0);
    let start = Clock::now();
    while posted < BYTES || sent < sender.batch.len() {
        if sent == sender.batch.len() {
            if !has_window(posted, start) {
                std::hint::spin_loop();
                continue;
            }
            let end = BYTES.min(posted + CALL);
            sender.fill(src, posted, end, payload);
            (posted, sent) = (end, 0);
        }
        sent += sender.send(sent);
    }
}

/// The time that this thread has had a processor: neighbours on a busy machine do not count.
fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// Sends and receives in turn on one core; processor seconds of both.
fn in_turn(
    mut send: impl FnMut(usize, usize),
    mut receive: impl FnMut(usize, usize),
) -> (f64, f64) {
    let (mut sending, mut receiving) = (0.0, 0.0);
    let mut at = 0;
    while at < BYTES {
        let end = at + CALL;
        let start = cpu_seconds();
        send(at, end);
        let sent = cpu_seconds();
        receive(at, end);
        sending += sent - start;
        receiving += cpu_seconds() - sent;
        at = end;
    }
    (sending, receiving)
}

fn raw_in_turn(payload: usize, src: &[u8], dst: &mut [u8]) -> (f64, f64) {
    let [a, b] = raw::pair(payload + AROUND);
    let chunk = raw_chunk(payload);
    in_turn(
        |at, end| {
            let (mut at, last) = (at % MEMORY, at % MEMORY + (end - at));
            while at < last {
                at += a
                    .send(&src[at..last.min(at + chunk)])
                    .expect("room for a window");
            }
        },
        |at, end| {
            let (mut got, start) = (at, Clock::now());
            // Behind the window's end there is room for a message, or it is cut there.
            while got < end {
                let at = got % MEMORY;
                let room = (end - got).min(MEMORY - at);
                match b.recv(&mut dst[at..at + room]) {
                    Ok(n) => got += n,
                    Err(_) => assert!(start.elapsed() < PATIENCE, "lost"),
                }
            }
        },
    )
}

fn port_in_turn(payload: usize, src: &[u8], dst: &mut [u8]) -> (f64, f64) {
    let mut receiver = port();
    let mut sender = Sender::new(port(), receiver.local());
    in_turn(
        |at, end| {
            sender.fill(src, at, end, payload);
            let mut sent = 0;
            while sent < sender.batch.len() {
                sent += sender.send(sent);
            }
        },
        |at, end| {
            let (mut got, start) = (at, Clock::now());
            while got < end {
                match receiver.receive(NicTime(0)) {
                    Some(d) => got += place(d.bytes(), got, dst),
                    None => assert!(start.elapsed() < PATIENCE, "lost"),
                }
            }
        },
    )
}

/// Bytes of one call of a plain socket: as many packets as a message holds.
fn raw_chunk(payload: usize) -> usize {
    let packet = payload + AROUND;
    (65_507 / packet).min(64) * packet
}

/// Copies the payload of the packet that is to come after `got` bytes into place. Returns its
/// length.
fn place(packet: &[u8], got: usize, dst: &mut [u8]) -> usize {
    let (header, rest) = packet.split_at(HEADER);
    let offset = u64::from_le_bytes(header[..8].try_into().expect("8 bytes"));
    assert_eq!(offset as usize, got, "in order");
    let payload = &rest[..rest.len() - 4];
    let at = got % MEMORY;
    dst[at..at + payload.len()].copy_from_slice(payload);
    payload.len()
}

/// Takes packets in order and copies their payload into place.
fn receive_packets(mut port: RocePort, dst: &mut [u8]) {
    let (start, mut got) = (Clock::now(), 0);
    while got < BYTES {
        let Some(d) = port.receive(NicTime(0)) else {
            TAKEN.store(got, Ordering::Release);
            assert!(start.elapsed() < PATIENCE, "packets were lost at {got}");
            continue;
        };
        let n = place(d.bytes(), got, dst);
        got += n;
        if got % CALL < n {
            TAKEN.store(got, Ordering::Release);
        }
    }
    TAKEN.store(BYTES, Ordering::Release);
}

/// Takes the packets of a port with a plain socket, and nothing more: the sender alone is the
/// port's.
fn receive_and_drop(socket: &UdpSocket, payload: usize) {
    let (start, mut got) = (Clock::now(), 0);
    let mut room = vec![0; 1 << 16];
    while got < BYTES {
        match socket.recv(&mut room) {
            // Whole packets, the last one shorter.
            Ok(n) => {
                let packets = n.div_ceil(payload + AROUND);
                got += n - packets * AROUND;
                TAKEN.store(got, Ordering::Release);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                assert!(start.elapsed() < PATIENCE, "packets were lost at {got}");
            }
        }
    }
}

/// Half round trips of 8 bytes in µs: the other side answers each with the number after it.
fn ping_pong(ping: impl Fn(u64) -> u64 + Send, pong: impl Fn(u64) + Send) -> f64 {
    let mut seconds = 0.0;
    std::thread::scope(|s| {
        s.spawn(move || {
            pin(1);
            (0..TRIPS as u64).for_each(pong);
        });
        let timed = s.spawn(move || {
            pin(0);
            let start = Clock::now();
            for n in 0..TRIPS as u64 {
                assert_eq!(ping(n), n + 1, "the answer");
            }
            start.elapsed().as_secs_f64()
        });
        seconds = timed.join().expect("it has ended");
    });
    seconds / TRIPS as f64 / 2.0 * 1e6
}

fn wait_raw(s: &UdpSocket, start: Clock) -> u64 {
    let mut b = [0; 8];
    loop {
        match s.recv(&mut b) {
            Ok(n) => assert_eq!(n, 8),
            Err(_) => {
                assert!(start.elapsed() < PATIENCE, "lost");
                continue;
            }
        }
        return u64::from_le_bytes(b);
    }
}

fn raw_trips() -> f64 {
    let [a, b] = raw::pair(0);
    let start = Clock::now();
    ping_pong(
        |n| {
            a.send(&n.to_le_bytes()).expect("loopback");
            wait_raw(&a, start)
        },
        |_| {
            let n = wait_raw(&b, start);
            b.send(&(n + 1).to_le_bytes()).expect("loopback");
        },
    )
}

/// One side of the ping-pong over a port.
struct Side {
    port: RocePort,
    batch: Batch,
    to: Destination,
}

impl Side {
    fn send(&mut self, n: u64) {
        self.batch.clear();
        self.batch.put(&n.to_le_bytes());
        self.batch.end();
        assert_eq!(self.port.send(NicTime(0), &self.to, &self.batch, 0), 1);
    }
    fn wait(&mut self, start: Clock) -> u64 {
        loop {
            if let Some(d) = self.port.receive(NicTime(0)) {
                return u64::from_le_bytes(d.bytes().try_into().expect("8 bytes"));
            }
            assert!(start.elapsed() < PATIENCE, "lost");
        }
    }
}

fn port_trips() -> f64 {
    let (a, b) = (port(), port());
    let at = [a.local(), b.local()];
    let side = |port, to| {
        let batch = Batch::new();
        let to = Destination::Socket {
            to,
            ecn: 0,
            segmented: true,
        };
        std::sync::Mutex::new(Side { port, batch, to })
    };
    let (a, b) = (side(a, at[1]), side(b, at[0]));
    let start = Clock::now();
    // Each lock is one thread's: it costs some nanoseconds.
    ping_pong(
        move |n| {
            let mut a = a.lock().expect("one thread has it");
            a.send(n);
            a.wait(start)
        },
        move |_| {
            let mut b = b.lock().expect("one thread has it");
            let n = b.wait(start);
            b.send(n + 1);
        },
    )
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let one_core = std::env::args().any(|a| a == "--one-core");
    let src = content();
    let mut dst = vec![0; MEMORY];
    let mut wrong = false;
    println!(
        "{:<34} {:>8} {:>8} {:>8}",
        "GB/s of payload, medians", "raw", "port", "ratio"
    );
    for payload in SIZES.into_iter().filter(|_| !one_core) {
        let (mut plain, mut sending, mut both) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let [a, b] = raw::pair(payload + AROUND);
            let most = 65_507 / (payload + AROUND) * (payload + AROUND);
            let chunk = most.min(64 * (payload + AROUND));
            let x = one_way(
                |s| send_raw(&a, s, chunk),
                |d| receive_raw(&b, d),
                &src,
                &mut dst,
            );
            wrong |= dst != src;

            let receiver = UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports");
            let sender = port();
            raw::connect(&receiver, sender.local(), 0);
            let to = receiver.local_addr().expect("it is bound");
            let y = one_way(
                |s| send_packets(sender, to, s, payload),
                |_| receive_and_drop(&receiver, payload),
                &src,
                &mut dst,
            );

            let (sender, receiver) = (port(), port());
            let to = receiver.local();
            let z = one_way(
                |s| send_packets(sender, to, s, payload),
                |d| receive_packets(receiver, d),
                &src,
                &mut dst,
            );
            wrong |= dst != src;
            // The first round warms up.
            if round > 0 {
                plain.push(x);
                sending.push(y);
                both.push(z);
            }
        }
        let (x, y, z) = (median(plain), median(sending), median(both));
        println!(
            "{:<34} {x:>8.2} {y:>8.2} {:>8.2}",
            format!("send path, {payload} B packets"),
            y / x
        );
        println!(
            "{:<34} {x:>8.2} {z:>8.2} {:>8.2}",
            format!("both, copied into place, {payload} B"),
            z / x
        );
    }
    println!("GB/s of payload by processor time, sender and receiver in turn on one core");
    for payload in SIZES {
        let mut all: [Vec<f64>; 4] = Default::default();
        for round in 0..=ROUNDS {
            dst.fill(0);
            let x = raw_in_turn(payload, &src, &mut dst);
            wrong |= dst != src;
            dst.fill(0);
            let y = port_in_turn(payload, &src, &mut dst);
            wrong |= dst != src;
            if round > 0 {
                for (v, seconds) in all.iter_mut().zip([x.0, y.0, x.1, y.1]) {
                    v.push(BYTES as f64 / seconds / 1e9);
                }
            }
        }
        let [raw_send, send, raw_receive, receive] = all.map(median);
        let line = |what: &str, raw: f64, ours: f64| {
            let what = format!("{what}, {payload} B packets");
            println!("{what:<34} {raw:>8.2} {ours:>8.2} {:>8.2}", ours / raw);
        };
        line("send", raw_send, send);
        line("receive into place", raw_receive, receive);
    }
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (x, y) = (raw_trips(), port_trips());
        if round > 0 {
            plain.push(x);
            ours.push(y);
        }
    }
    let (x, y) = (median(plain), median(ours));
    println!(
        "{:<34} {x:>8.2} {y:>8.2} {:>8.2}",
        "8 B half round trip, µs",
        y / x
    );
    assert!(!wrong, "wrong bytes");
}
