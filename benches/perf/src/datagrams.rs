//! What plain UDP sockets of this host reach over its loopback: the limit of RDMA over port `roce`.
//! Two pinned threads, with the kernel's segmentation offload and without headers, copies or
//! acknowledgements of ours.
#![allow(clippy::disallowed_methods)] // Measuring needs the clock.
#![allow(unsafe_code)] // setsockopt(2): the library's sockets have no UDP_SEGMENT.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{machine, Samples};

/// Memory that is sent from and received into, again and again.
const MEMORY: usize = 16 << 20;
const BYTES: usize = 128 << 20;
/// Most bytes under way: what the receiver has not confirmed.
const WINDOW: usize = 2 << 20;
/// Longest message that the kernel cuts.
const MESSAGE: usize = 65_507;
const BATCHES: usize = 5;
const ROUND_TRIPS: usize = 4_000;
/// A run on a machine with other work is given up.
const GIVE_UP: Duration = Duration::from_secs(3);
const BUFFER: libc::c_int = 32 << 20;

/// Two connected sockets, whose messages are cut into packets of `segment` bytes unless that is 0.
fn pair(segment: usize) -> io::Result<[UdpSocket; 2]> {
    let ends = [
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
    ];
    ends[0].connect(ends[1].local_addr()?)?;
    ends[1].connect(ends[0].local_addr()?)?;
    for s in &ends {
        s.set_nonblocking(true)?;
        // The forced one is for privileged processes, the others keep the kernel's limit.
        for buffer in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            let _ = set(s, libc::SOL_SOCKET, buffer, BUFFER);
        }
        set(s, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        if segment > 0 {
            set(s, libc::SOL_UDP, libc::UDP_SEGMENT, segment as libc::c_int)?;
        }
    }
    Ok(ends)
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value lives as long as the call, and is as long as said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls `f` until it gives something other than `WouldBlock`; `None` when the time is up or the
/// other side has stopped.
fn retry<T>(start: Instant, stop: &AtomicBool, mut f: impl FnMut() -> io::Result<T>) -> Option<T> {
    loop {
        match f() {
            Ok(done) => return Some(done),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => stop.store(true, Ordering::Relaxed),
        }
        if stop.load(Ordering::Relaxed) || start.elapsed() > GIVE_UP {
            stop.store(true, Ordering::Relaxed);
            return None;
        }
    }
}

/// Runs both sides on a core each; `None` when one of them has none, or has given up.
fn on_two_cores<T: Send>(
    far: impl FnOnce(&AtomicBool) -> Option<T> + Send,
    near: impl FnOnce(&AtomicBool) -> Option<T> + Send,
) -> Option<T> {
    let cores = machine::cores();
    let (&a, &b) = (cores.first()?, cores.get(1)?);
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = || std::thread::Builder::new();
        let far = move || machine::pin_to(b).then(|| far(stop)).flatten();
        let near = move || machine::pin_to(a).then(|| near(stop)).flatten();
        // One that waits for a thread that was refused gives up.
        let far = thread().spawn_scoped(scope, far).ok()?;
        let near = thread().spawn_scoped(scope, near).ok()?;
        let (far, near) = (far.join().ok()?, near.join().ok()?);
        far.and(near)
    })
}

/// What the sockets reach in packets of one size, in 10^9 bytes per second.
#[derive(Debug, Clone, Copy)]
pub struct Bandwidth {
    /// With segmentation offload, one way.
    pub one_way: f64,
    /// The same, both ways at once: each of them.
    pub each_way: f64,
    /// Without offload, one way: a call for each packet.
    pub by_packet: f64,
}

/// Medians of some runs in packets of `segment` bytes; `None` on one core, and where a run was
/// given up.
pub fn bandwidth(segment: usize) -> Option<Bandwidth> {
    let segment = segment.clamp(1, MESSAGE);
    // The kernel cuts a message into 64 packets at most.
    let cut = segment * (MESSAGE / segment).min(64);
    Some(Bandwidth {
        one_way: median_gbs(segment, cut, false)?,
        each_way: median_gbs(segment, cut, true)?,
        by_packet: median_gbs(0, segment, false)?,
    })
}

/// Messages of `message` bytes, which the kernel cuts into packets of `segment` bytes unless that
/// is 0.
fn median_gbs(segment: usize, message: usize, both_ways: bool) -> Option<f64> {
    let mut samples = Samples::with_capacity(BATCHES);
    let memory = || (vec![0x5a_u8; MEMORY], vec![0_u8; MEMORY + MESSAGE]);
    let (mut near, mut far) = (memory(), memory());
    for _ in 0..BATCHES {
        let ends = pair(segment).ok()?;
        let window = window(&ends[0]);
        let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let start = Instant::now();
        let side = |end: usize, (src, dst), sends| Side {
            socket: &ends[end],
            src,
            dst,
            message,
            window,
            sends,
            receives: both_ways || !sends,
            taken: &taken[end],
            taken_there: &taken[1 - end],
            start,
        };
        let far = side(1, (&far.0[..], &mut far.1[..]), both_ways);
        let near = side(0, (&near.0[..], &mut near.1[..]), true);
        on_two_cores(move |stop| far.run(stop), move |stop| near.run(stop))?;
        samples.push(BYTES as f64 / start.elapsed().as_nanos() as f64);
    }
    Some(samples.median())
}

/// Bytes that may be under way: what the receiving socket surely holds, whose kernel counts its own
/// structures too.
fn window(socket: &UdpSocket) -> usize {
    let buffer = rustix::net::sockopt::socket_recv_buffer_size(socket);
    (buffer.unwrap_or(0) / 4).clamp(MESSAGE, WINDOW)
}

/// One side of a transfer.
struct Side<'a> {
    socket: &'a UdpSocket,
    src: &'a [u8],
    dst: &'a mut [u8],
    message: usize,
    window: usize,
    sends: bool,
    receives: bool,
    /// Bytes received here, and by the other side.
    taken: &'a AtomicUsize,
    taken_there: &'a AtomicUsize,
    start: Instant,
}

impl Side<'_> {
    /// Sends and receives all bytes, as fast as the other side takes them.
    fn run(self, stop: &AtomicBool) -> Option<()> {
        let all = |does: bool| if does { 0 } else { BYTES };
        let (mut sent, mut got) = (all(self.sends), all(self.receives));
        while sent < BYTES || got < BYTES {
            if sent < BYTES && sent < self.taken_there.load(Ordering::Acquire) + self.window {
                let at = sent % MEMORY;
                let n = self.message.min(MEMORY - at);
                sent += done(self.socket.send(&self.src[at..at + n]), stop);
            }
            if got < BYTES {
                let at = got % MEMORY;
                got += done(self.socket.recv(&mut self.dst[at..at + MESSAGE]), stop);
                self.taken.store(got, Ordering::Release);
            }
            if stop.load(Ordering::Relaxed) || self.start.elapsed() > GIVE_UP {
                stop.store(true, Ordering::Relaxed);
                return None;
            }
        }
        Some(())
    }
}

/// Bytes of a call; 0 when it would block, and both sides stop when it failed.
fn done(result: io::Result<usize>, stop: &AtomicBool) -> usize {
    result.unwrap_or_else(|e| {
        if e.kind() != io::ErrorKind::WouldBlock {
            stop.store(true, Ordering::Relaxed);
        }
        0
    })
}

/// Half a round trip of 8 bytes, in nanoseconds; the median of some runs.
pub fn ping_pong_ns() -> Option<f64> {
    let ends = pair(0).ok()?;
    let mut samples = Samples::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let start = Instant::now();
        let trip = |socket: &UdpSocket, first: bool, stop: &AtomicBool| {
            let mut word = [0; 8];
            for _ in 0..ROUND_TRIPS {
                if first {
                    retry(start, stop, || socket.send(&word))?;
                }
                retry(start, stop, || socket.recv(&mut word))?;
                if !first {
                    retry(start, stop, || socket.send(&word))?;
                }
            }
            Some(())
        };
        let trip = &trip;
        let (a, b) = (&ends[0], &ends[1]);
        on_two_cores(
            move |stop| trip(b, false, stop),
            move |stop| trip(a, true, stop),
        )?;
        samples.push(start.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64);
    }
    Some(samples.median())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_are_measured_where_there_are_two_cores() {
        let two = machine::cores().len() > 1;
        for segment in [4_096, 61_440] {
            let gbs = bandwidth(segment);
            let all = |b: Bandwidth| b.one_way.min(b.each_way).min(b.by_packet);
            assert!(gbs.is_none_or(|b| all(b) > 0.0) && (two || gbs.is_none()));
        }
        let ns = ping_pong_ns();
        assert!(ns.is_none_or(|n| n > 100.0) && (two || ns.is_none()));
    }
}
