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

/// Longest sleep between two looks at the port: 20 ms.
const NAP_NS: u64 = 20_000_000;

/// A thread that forwards for a node until this is dropped.
pub(crate) struct Forwarder {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Forwards by the wires of a node's port. What comes for the node itself is dropped.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(port: MeshPort) -> io::Result<Forwarder> {
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::Builder::new()
            .name("forward".into())
            .spawn(move || forward(port, &ends))?;
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

fn forward(mut port: MeshPort, end: &AtomicBool) {
    let start = Instant::now();
    while !end.load(Ordering::Relaxed) {
        // Time 0 is before anything has happened.
        let now = NicTime(start.elapsed().as_nanos() as u64 + 1);
        while port.receive(now).is_some() {}
        port.flush(now);
        if !port.is_quiet() {
            std::thread::yield_now();
            continue;
        }
        let timer = port.next_timer().map_or(u64::MAX, |t| t.0);
        let nap = timer.saturating_sub(now.0).min(NAP_NS);
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        port.poll_fds(&mut fds);
        let mut fds: Vec<PollFd<'_>> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let nap = Timespec {
            tv_sec: 0,
            tv_nsec: nap as i64,
        };
        // Interrupted or not, the port is looked at.
        let _ = poll(&mut fds, Some(&nap));
    }
}
