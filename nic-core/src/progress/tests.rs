//! Wake-ups that come at the worst moment, and a waiter that stops while it leads.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc;

use ringbell_gtlb::testing::HostMemory;
use ringbell_gtlb::{Mmu, MmuConfig};
use ringbell_nic_abi::{Descriptor, Opcode, SessionId, Status};
use rustix::event::EventfdFlags;

use super::*;
use crate::config::NicConfig;
use crate::datapath::Datapath;
use crate::memory::nic_memory::NicMemory;
use crate::network::Network;
use crate::queue::QueueConfig;
use crate::transport::{Caps, Close, ConnState, Transport, TransportEvent, Work};
use crate::types::{ConnId, ListenerId};
use crate::{HostQueue, Nic};

const LIMIT: Duration = Duration::from_secs(30);

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A transport without connections, which does something when it is asked for its next timer: that
/// is between a leader's last step and its sleep.
struct Asked {
    hook: Hook,
    silent: OwnedFd,
}

impl Transport for Asked {
    fn caps(&self) -> Caps {
        Caps::streams("asked")
    }
    fn listen(&mut self, _: u16, _: usize) -> Result<ListenerId, Status> {
        Err(Status::NoResources)
    }
    fn unlisten(&mut self, _: ListenerId) {}
    fn connect(&mut self, _: NicTime, _: SocketAddrV4, _: NicTime) -> Result<ConnId, Status> {
        Err(Status::HostUnreachable)
    }
    fn post(&mut self, _: ConnId, _: Work) {}
    fn is_quiet(&self) -> bool {
        true
    }
    fn cancel(&mut self, _: ConnId, _: crate::types::WorkToken) -> Option<u64> {
        None
    }
    fn close(&mut self, _: ConnId, _: Close) {}
    fn step(&mut self, _: NicTime, _: &mut Network, _: &mut Datapath<'_>) -> bool {
        false
    }
    fn poll_event(&mut self) -> Option<TransportEvent> {
        None
    }
    fn next_timer(&self) -> Option<NicTime> {
        let hook = self.hook.lock().expect("no panic").take();
        hook.into_iter().for_each(|f| f());
        None
    }
    fn conn_state(&self, _: ConnId) -> Option<ConnState> {
        None
    }
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.silent.as_fd()]
    }
}

/// A NIC whose progress thread runs `f` at its next look before a sleep.
fn nic() -> (Nic, HostQueue, Hook) {
    let hook = Hook::default();
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let asked = Asked {
        hook: hook.clone(),
        silent: rustix::event::eventfd(0, flags).expect("a descriptor"),
    };
    let memory = Arc::new(HostMemory::new(1 << 16).expect("memory"));
    let nic = Nic::builder(NicConfig::default(), memory)
        .transport(Box::new(asked))
        .build()
        .expect("a NIC");
    let pd = nic.alloc_pd().expect("a domain");
    let queue = nic.create_queue(pd, QueueConfig::default());
    (nic, queue.expect("a queue"), hook)
}

/// Runs `f` between the last step and the sleep of a progress thread that was asleep.
fn before_sleep(nic: &Nic, hook: &Hook, f: impl FnOnce() + Send + 'static) {
    asleep(nic);
    *hook.lock().expect("no panic") = Some(Box::new(f));
    // The control path wakes it; it finds nothing to do, and goes to sleep again.
    let _ = nic.counters();
    until(|| hook.lock().expect("no panic").is_none());
}

fn asleep(nic: &Nic) {
    until(|| {
        let before = nic.progress_stats();
        std::thread::sleep(Duration::from_millis(20));
        nic.progress_stats() == before
    });
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_operation_posted_just_before_the_sleep_completes_for_every_opcode() {
    let (nic, queue, hook) = nic();
    for opcode in [Opcode::Listen, Opcode::Connect, Opcode::Close, Opcode::Nop] {
        let d = Descriptor {
            session: SessionId(7),
            ..Descriptor::new(opcode)
        };
        let (tell, told) = mpsc::channel();
        let q = queue.clone();
        before_sleep(&nic, &hook, move || {
            tell.send(q.try_post(&d)).expect("the test waits");
        });
        let ticket = told.recv().expect("posted").expect("room");
        // No thread waits: a look at the line steps nothing.
        let mut ended = None;
        until(|| {
            ended = queue.poll(ticket);
            ended.is_some()
        });
    }
}

#[test]
fn a_kernel_queue_made_just_before_the_sleep_is_polled() {
    let (nic, queue, hook) = nic();
    before_sleep(&nic, &hook, {
        let queue = queue.clone();
        move || {
            let _ = queue.handle();
        }
    });
    // Its doorbell wakes no thread, so the NIC looks again and again.
    let before = nic.progress_stats().parks;
    until(|| nic.progress_stats().parks >= before + 10);
}

#[test]
fn a_leading_waiter_that_stops_blocks_no_other() {
    let memory = Arc::new(HostMemory::new(1 << 16).expect("memory"));
    let core = Core::new(
        NicConfig::default(),
        Mmu::new(MmuConfig::default()).expect("a GTLB"),
        memory,
        NicMemory::new(1 << 20).expect("NIC memory"),
        Vec::new(),
        Network::new([10, 0, 0, 1].into(), 24, Vec::new(), &[]).expect("a host's address"),
    );
    let wake = WakeCell::new().expect("a descriptor");
    let nap = Duration::from_millis(2);
    let progress = Progress::new(core, wake, Vec::new(), nap, false, true);
    progress.has_queues.store(true, Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| progress.run_parked());
        let (stopped, stops) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let p = &progress;
        s.spawn(move || {
            let done = || {
                let leads = p.sleepers.leader.load(Ordering::Relaxed) == WAITER_LEADS;
                if leads && stopped.send(()).is_ok() {
                    let _ = goes.recv();
                }
                leads
            };
            // A caller that has waited for long.
            while p.wait_round(u32::MAX, &done) != Round::Moved {}
        });
        stops.recv().expect("it leads");
        let before = p.stats().thread_steps;
        let start = Instant::now();
        while p.stats().thread_steps <= before + 100 && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let steps = p.stats().thread_steps - before;
        // The threads end before anything is judged, or a failure would hang here.
        drop(stops);
        go.send(()).expect("it waits");
        p.stop.store(true, Ordering::Release);
        p.kick();
        assert!(
            steps > 100,
            "{steps} steps beside a waiter that has stopped"
        );
    });
}

/// No nap hides it here: nothing of the receiver runs.
#[test]
fn a_message_of_a_peer_wakes_a_nic_that_has_announced_its_sleep() {
    use crate::collective::peer_failure::support::nic::*;
    let dir = TempDir::new();
    let [a, b] = [1, 2].map(|n| Host::new(&Setup::new(&dir, n)));
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let wake = b.nic.wake_cell();
    for (message, len) in [(send_inline(s, b"inline"), 6), (send(s, 0, 100), 100)] {
        quiesce(&[&a, &b]);
        wake.drain();
        wake.parked().store(1, Ordering::Relaxed);
        let ticket = a.post(&message);
        for _ in 0..10 {
            a.nic.step();
        }
        assert_eq!(wake.parked().load(Ordering::Relaxed), 0, "it was not woken");
        let mut told = [PollFd::new(wake.event(), PollFlags::IN)];
        let now = timespec(Duration::ZERO);
        assert_eq!(
            rustix::event::poll(&mut told, Some(&now)),
            Ok(1),
            "its descriptor is not readable"
        );
        let taken = b.post(&recv(r, 200, len));
        settle(&[&a, &b], &[(0, ticket), (1, taken)]);
    }
}
