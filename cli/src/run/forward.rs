//! Nodes of a network for which this process forwards: switches, and ranks that have ended.
#![allow(clippy::disallowed_methods)] // The program: a thread with a clock.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use ringbell::parts::nic_core::port::Port as _;
use ringbell::parts::nic_core::types::NicTime;
use ringbell_mesh::MeshPort;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Longest sleep between two looks at the ports: 20 ms.
const NAP_NS: u64 = 20_000_000;
/// The thread gives the core away instead of sleeping for so long after a packet: 1 ms.
const AWAKE_NS: u64 = 1_000_000;

/// A thread that forwards for nodes until this is dropped.
pub(crate) struct Forwarder {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Forwards by the wires of nodes' ports. What comes for the nodes themselves is dropped.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(ports: Vec<MeshPort>) -> io::Result<Forwarder> {
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::Builder::new()
            .name("forward".into())
            .spawn(move || forward(ports, &ends))?;
        let thread = Some(thread);
        Ok(Forwarder { end, thread })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

fn forward(mut ports: Vec<MeshPort>, end: &AtomicBool) {
    let start = Instant::now();
    let (mut moved, mut last) = (0, 0);
    while !end.load(Ordering::Relaxed) {
        // Time 0 is before anything has happened.
        let now = NicTime(start.elapsed().as_nanos() as u64 + 1);
        for port in &mut ports {
            while port.receive(now).is_some() {}
            // Nothing is connected here; what is not taken keeps the port from being quiet.
            while port.next_refused().is_some() {}
            port.flush(now);
        }
        let forwarded = ports.iter().map(|p| p.forwarding().forwarded).sum();
        if std::mem::replace(&mut moved, forwarded) != forwarded {
            last = now.0;
        }
        if now.0 - last < AWAKE_NS || ports.iter().any(|p| !p.is_quiet()) {
            std::thread::yield_now();
            continue;
        }
        let timer = ports.iter().filter_map(|p| p.next_timer()).min();
        let nap = timer.map_or(NAP_NS, |t| t.0.saturating_sub(now.0).min(NAP_NS));
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        ports.iter().for_each(|p| p.poll_fds(&mut fds));
        let mut fds: Vec<PollFd<'_>> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let nap = Timespec {
            tv_sec: 0,
            tv_nsec: nap as i64,
        };
        // Interrupted or not, the ports are looked at.
        let _ = poll(&mut fds, Some(&nap));
    }
}
