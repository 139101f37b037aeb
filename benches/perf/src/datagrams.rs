//! What plain UDP sockets of this host reach over its loopback: the limit of RDMA over port `roce`. Two pinned threads, with the
//! kernel's segmentation offload and without headers, copies or acknowledgements of ours.
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
/// Bytes under way at most: what the receiver has not confirmed.
const WINDOW: usize = 2 << 20;
/// Longest message that the kernel cuts.
const MESSAGE: usize = 65_507;
const BATCHES: usize = 5;
const ROUND_TRIPS: usize = 4_000;
/// A run on a machine with other work is given up.
const GIVE_UP: Duration = Duration::from_secs(3);
const BUFFER: libc::c_int = 32 << 20;

/// Two connected sockets; those of the first are cut into packets of `segment` bytes.
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
    }
    if segment > 0 {
        set(
            &ends[0],
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            segment as libc::c_int,
        )?;
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

/// Calls `f` until it gives something other than `WouldBlock`; `None` when the time is up or the other side has stopped.
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

/// 10^9 bytes per second in packets of `segment` bytes; the median of some runs.
pub fn bandwidth_gbs(segment: usize) -> Option<f64> {
    let segment = segment.clamp(1, MESSAGE);
    // The kernel cuts a message into 64 packets at most.
    let message = segment * (MESSAGE / segment).min(64);
    let (src, mut dst) = (vec![0x5a_u8; MEMORY], vec![0_u8; MEMORY + MESSAGE]);
    let mut samples = Samples::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let ends = pair(segment).ok()?;
        let taken = AtomicUsize::new(0);
        let start = Instant::now();
        let (sender, receiver) = (&ends[0], &ends[1]);
        let (src, dst, taken) = (&src, &mut dst, &taken);
        on_two_cores(
            move |stop| {
                let mut got = 0;
                while got < BYTES {
                    let at = got % MEMORY;
                    got += retry(start, stop, || receiver.recv(&mut dst[at..at + MESSAGE]))?;
                    taken.store(got, Ordering::Release);
                }
                Some(())
            },
            move |stop| {
                let mut sent = 0;
                while sent < BYTES {
                    let at = sent % MEMORY;
                    let n = message.min(MEMORY - at);
                    sent += retry(start, stop, || {
                        match sent < taken.load(Ordering::Acquire) + WINDOW {
                            true => sender.send(&src[at..at + n]),
                            false => Err(io::ErrorKind::WouldBlock.into()),
                        }
                    })?;
                }
                Some(())
            },
        )?;
        samples.push(BYTES as f64 / start.elapsed().as_nanos() as f64);
    }
    Some(samples.median())
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
            let gbs = bandwidth_gbs(segment);
            assert!(gbs.is_none_or(|g| g > 0.0) && (two || gbs.is_none()));
        }
        let ns = ping_pong_ns();
        assert!(ns.is_none_or(|n| n > 100.0) && (two || ns.is_none()));
    }
}
