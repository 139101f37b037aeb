//! The in-memory switch: NICs of one host, in one process or several, without a kernel between.
//!
//! Between each pair of ports lie two single-producer single-consumer rings of frames; a sender
//! looks up the destination in its own address table and puts the frame into the ring of the port
//! that owns it, or into all of them when the table has no entry. There is no thread in between.
//!
//! A NIC that sleeps is woken through a descriptor (`bell.rs`); one that is awake polls its rings.
//!
//! A ring that is full pushes back ([`Port::tx_frame`] gives `None`), so that nothing is lost
//! between live NICs. When a ring's reader has not moved for [`STALLED_NS`] its NIC counts as gone
//! and frames to it are dropped, as on an unplugged cable.

mod bell;
mod ring;
mod segment;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use rustix::io::Errno;

use self::bell::Bell;
use self::ring::{Receiver, Sender};
use self::segment::{Segment, Shape, Slot};
pub use self::segment::{SwitchError, PORTS_MAX};
use super::{is_frame, Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// After this long without a movement of its reader, a full ring drops: 100 ms.
pub const STALLED_NS: u64 = 100_000_000;
/// Most MAC addresses in an address table: a peer that invents addresses must not grow it without
/// bound.
const STATIONS_MAX: usize = 1024;
/// Without a frame for this long a reader asks to be woken: 200 µs, more than most answers take,
/// because waking costs the sender a system call.
const ARM_AFTER_NS: u64 = 200_000;
/// How often a reader that asked looks whether it was woken for nothing.
const DRAIN_NS: u64 = 20_000;
/// Shortest nap between two polls of the rings, while no descriptor reports a frame.
const LOOK_SOON_NS: u64 = 20_000;
/// Without a bell: after this long without a frame the rings are polled as seldom as the NIC's own
/// naps allow, 20 ms.
const QUIET_NS: u64 = 20_000_000;
/// Frames that wait before the reader sees them without a flush.
const BATCH: u64 = 16;

/// A switch, from which NICs take their ports.
#[derive(Debug, Clone)]
pub struct MemSwitch {
    segment: Arc<Segment>,
}

impl MemSwitch {
    /// A switch for NICs of this process: frames are read and written in place.
    ///
    /// # Errors
    /// [`SwitchError`] when a number is out of range or memory is short.
    pub fn private(ports: usize, mtu: usize, checksums: Checksums) -> Result<Self, SwitchError> {
        let segment = Segment::private(Shape {
            ports,
            mtu,
            checksums,
        })?;
        Ok(MemSwitch {
            segment: Arc::new(segment),
        })
    }

    /// A switch that other processes may attach to with [`MemSwitch::attach`]. A frame is copied
    /// once more on each side, because a peer could change it while we read it.
    ///
    /// # Errors
    /// As [`MemSwitch::private`].
    pub fn shared(ports: usize, mtu: usize, checksums: Checksums) -> Result<Self, SwitchError> {
        let segment = Segment::shared(Shape {
            ports,
            mtu,
            checksums,
        })?;
        Ok(MemSwitch {
            segment: Arc::new(segment),
        })
    }

    /// Attaches to a shared switch. The descriptor may come from `fork`, `exec` or `SCM_RIGHTS`.
    ///
    /// # Errors
    /// [`SwitchError::NotASwitch`] when it is something else.
    pub fn attach(fd: OwnedFd) -> Result<Self, SwitchError> {
        let segment = Segment::attach(fd)?;
        Ok(MemSwitch {
            segment: Arc::new(segment),
        })
    }

    /// The descriptor of a shared switch, without close-on-exec, to be inherited by a child.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.segment.fd()
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.segment.shape().ports
    }

    /// Takes a port. It is free again when the [`MemPort`] is dropped.
    ///
    /// # Errors
    /// [`SwitchError::NoSuchPort`], [`SwitchError::Taken`].
    pub fn port(&self, port: usize) -> Result<MemPort, SwitchError> {
        let ports = self.ports();
        if port >= ports {
            return Err(SwitchError::NoSuchPort { port, ports });
        }
        self.claim(port)?;
        let peers = || (0..ports).filter(|&p| p != port);
        let Shape { mtu, checksums, .. } = self.segment.shape();
        let room = ETHERNET_HEADER + mtu;
        Ok(MemPort {
            me: port,
            capabilities: Capabilities::of_frames(mac_of(port), mtu, checksums),
            tx: peers()
                .map(|p| Sender::new(&self.segment, port, p))
                .collect(),
            rx: peers()
                .map(|p| Receiver::new(&self.segment, p, port))
                .collect(),
            bell: Bell::new(self.segment.id(), port, ports),
            armed: false,
            drained: NicTime(0),
            segment: Arc::clone(&self.segment),
            next_rx: 0,
            learned: Vec::new(),
            chosen: Target::None,
            scratch: vec![0; room].into(),
            inbox: vec![0; room].into(),
            times: Times::default(),
            stalled: vec![None; ports - 1],
            counters: PortCounters::default(),
        })
    }
}

impl MemSwitch {
    /// The claim word holds the owner's process id, so that the port of a process that was killed
    /// can be taken over.
    fn claim(&self, port: usize) -> Result<(), SwitchError> {
        let word = self.segment.claimed(port);
        let own = rustix::process::getpid().as_raw_pid() as u32;
        loop {
            // Acquire: pairs with the Release in `MemPort::drop`: a former owner's ring writes are
            // seen.
            let Err(owner) = word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
            else {
                return Ok(());
            };
            let gone = owner != own
                && rustix::process::Pid::from_raw(owner as i32)
                    .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH));
            if !gone {
                return Err(SwitchError::Taken { port });
            }
            // The process that clears the word first retries the claim.
            let _ = word.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Where the frame that is being written goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    None,
    /// Into the slot of a ring, in place.
    Slot(usize),
    /// From the scratch buffer into a ring.
    Copy(usize),
    /// From the scratch buffer into all rings.
    Flood,
    /// Nowhere: the reader is gone.
    Drop,
}

/// When a frame came last, and when one was looked for.
#[derive(Debug, Default)]
struct Times {
    heard: NicTime,
    looked: NicTime,
}

/// One port of a [`MemSwitch`].
#[derive(Debug)]
pub struct MemPort {
    segment: Arc<Segment>,
    me: usize,
    capabilities: Capabilities,
    /// How we are woken; without it the rings are looked at in naps.
    bell: Option<Bell>,
    /// We have asked to be woken.
    armed: bool,
    /// When wake-up bytes were last read.
    drained: NicTime,
    /// To and from each other port, in order of port number.
    tx: Vec<Sender>,
    rx: Vec<Receiver>,
    next_rx: usize,
    /// Ring by MAC address, learnt from frames received. Few addresses: a scan is fastest.
    learned: Vec<(MacAddr, usize)>,
    chosen: Target,
    scratch: Box<[u8]>,
    inbox: Box<[u8]>,
    times: Times,
    /// Per ring: since when it is full, and what its reader had consumed then.
    stalled: Vec<Option<(NicTime, u64)>>,
    counters: PortCounters,
}

impl MemPort {
    fn ring_of(&self, dst: MacAddr) -> Option<usize> {
        match port_of(dst, self.segment.shape().ports) {
            Some(port) => (port != self.me).then(|| port - usize::from(port > self.me)),
            None => self
                .learned
                .iter()
                .find(|(m, _)| *m == dst)
                .map(|&(_, r)| r),
        }
    }

    fn learn(&mut self, src: MacAddr, ring: usize) {
        // A port's own address is where it is; no frame moves it elsewhere.
        if !src.is_unicast() || port_of(src, self.segment.shape().ports).is_some() {
            return;
        }
        if let Some((_, r)) = self.learned.iter_mut().find(|(m, _)| *m == src) {
            // The ring that it came through before must ask again when it comes back.
            self.rx[std::mem::replace(r, ring)].last_src = MacAddr::default();
            self.rx[ring].last_src = src;
        } else if self.learned.len() < STATIONS_MAX {
            self.learned.push((src, ring));
        }
    }

    /// Whether a full ring's reader is gone.
    fn is_stalled(&mut self, ring: usize, now: NicTime) -> bool {
        let consumed = self.tx[ring].consumed();
        match self.stalled[ring] {
            Some((since, seen)) if seen == consumed => now.0.saturating_sub(since.0) >= STALLED_NS,
            _ => {
                self.stalled[ring] = Some((now, consumed));
                false
            }
        }
    }

    fn publish(&mut self, ring: usize) {
        if !self.tx[ring].publish(&self.segment) {
            return;
        }
        let to = ring + usize::from(ring >= self.me);
        let armed = self.segment.armed(to);
        // SeqCst: orders the frames' number before the look at the word; pairs with the fence in
        // `arm`. Either we see the word, or the reader sees the frames.
        fence(Ordering::SeqCst);
        if armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::Relaxed) != 0 {
            if let Some(bell) = &self.bell {
                bell.ring(ring);
            }
        }
    }

    /// The next frame: its ring, its slot and its length.
    fn find(&mut self) -> Option<(usize, Slot, usize)> {
        for _ in 0..self.rx.len() {
            let ring = self.next_rx;
            match self.rx[ring].next(&self.segment) {
                ring::Next::Empty => self.next_rx = (ring + 1) % self.rx.len(),
                ring::Next::Broken => self.counters.rx_malformed += 1,
                ring::Next::Frame(slot, len) => return Some((ring, slot, len)),
            }
        }
        None
    }

    /// All rings are empty: asks to be woken when they have been so for a while. Returns whether
    /// the rings must be looked at once more.
    fn arm(&mut self, now: NicTime) -> bool {
        if self.times.heard.0 == 0 {
            self.times.heard = now;
        }
        let Some(bell) = &self.bell else { return false };
        if now.0.saturating_sub(self.times.heard.0) < ARM_AFTER_NS {
            return false;
        }
        let word = self.segment.armed(self.me);
        if self.armed && word.load(Ordering::Relaxed) != 0 {
            // Woken for nothing: a byte left unread would keep us awake.
            if now.0.saturating_sub(self.drained.0) >= DRAIN_NS {
                self.drained = now;
                bell.drain();
            }
            return false;
        }
        // What has rung until now is seen by the look that follows.
        bell.drain();
        self.drained = now;
        self.armed = true;
        word.store(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `publish`.
        fence(Ordering::SeqCst);
        true
    }
}

impl MemPort {
    /// The next frame that has arrived: its ring, its slot and its length.
    fn arrived(&mut self, now: NicTime) -> Option<(usize, Slot, usize)> {
        self.times.looked = now;
        let found = match self.find() {
            Some(found) => Some(found),
            None if self.arm(now) => self.find(),
            None => None,
        };
        let (_, _, len) = found?;
        if self.armed {
            self.armed = false;
            self.segment.armed(self.me).store(0, Ordering::Relaxed);
        }
        self.times.heard = now;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        found
    }

    /// A frame of this address has come through a ring.
    #[inline]
    fn heard_from(&mut self, src: MacAddr, ring: usize) {
        if self.rx[ring].last_src != src {
            self.rx[ring].last_src = src;
            self.learn(src, ring);
        }
    }

    /// Where a frame to this address goes now.
    fn choose(&mut self, now: NicTime, dst: MacAddr) -> Target {
        // With two ports there is only one way.
        let ring = match self.tx.len() {
            1 => Some(0),
            _ => self.ring_of(dst),
        };
        let Some(ring) = ring else {
            return Target::Flood;
        };
        if self.tx[ring].is_full(&self.segment) {
            // It cannot take frames that it has not seen.
            self.publish(ring);
            return match self.is_stalled(ring, now) {
                true => Target::Drop,
                false => Target::None,
            };
        }
        match self.segment.is_private() {
            true => Target::Slot(ring),
            false => Target::Copy(ring),
        }
    }

    /// Copies a frame to where it goes, unless it has a length that none has.
    fn copy(&mut self, target: Target, frame: &[u8], len: usize) {
        let sent = match target {
            Target::None => return,
            _ if !is_frame(len, self.capabilities.mtu) => false,
            Target::Drop => false,
            Target::Slot(ring) | Target::Copy(ring) => {
                if self.tx[ring].push(&self.segment, frame) >= BATCH {
                    self.publish(ring);
                }
                true
            }
            Target::Flood => {
                let mut any = false;
                for ring in 0..self.tx.len() {
                    if !self.tx[ring].is_full(&self.segment) {
                        self.tx[ring].push(&self.segment, frame);
                        any = true;
                    }
                }
                any
            }
        };
        self.count(len, sent);
    }

    fn count(&mut self, len: usize, sent: bool) {
        if sent {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += len as u64;
        } else {
            self.counters.tx_dropped += 1;
        }
    }
}

/// The source address of a frame.
#[inline]
fn source(frame: &[u8]) -> MacAddr {
    let mut src = MacAddr::default();
    src.0.copy_from_slice(&frame[6..12]);
    src
}

/// The address of a port.
pub fn mac_of(port: usize) -> MacAddr {
    MacAddr::local(port as u32 + 1)
}

/// The port whose address this is.
fn port_of(mac: MacAddr, ports: usize) -> Option<usize> {
    let [.., hi, lo] = mac.0;
    let port = usize::from(u16::from_be_bytes([hi, lo])).checked_sub(1)?;
    (port < ports && mac_of(port) == mac).then_some(port)
}

impl Port for MemPort {
    fn describe(&self) -> String {
        let kind = if self.segment.is_private() {
            "private"
        } else {
            "shared"
        };
        format!("mem {} of {} ({kind})", self.me, self.segment.shape().ports)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        let (ring, slot, len) = self.arrived(now)?;
        if self.segment.is_private() {
            let frame = self.rx[ring].frame(&self.segment, slot, len);
            let src = source(frame);
            self.heard_from(src, ring);
            let frame = self.rx[ring].frame(&self.segment, slot, len);
            return Some(Arrived::Frame(frame));
        }
        slot.copy_out(&mut self.inbox[..len]);
        self.heard_from(source(&self.inbox), ring);
        Some(Arrived::Frame(&self.inbox[..len]))
    }

    fn receive_into(&mut self, now: NicTime, into: &mut [u8]) -> Option<usize> {
        let (ring, slot, len) = self.arrived(now)?;
        let len = len.min(into.len());
        slot.copy_out(&mut into[..len]);
        if len >= ETHERNET_HEADER {
            self.heard_from(source(into), ring);
        }
        Some(len)
    }

    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.chosen = self.choose(now, dst);
        match self.chosen {
            Target::None => None,
            Target::Slot(ring) => Some(self.tx[ring].room(&self.segment)),
            Target::Copy(_) | Target::Flood | Target::Drop => Some(&mut self.scratch),
        }
    }

    fn tx_commit(&mut self, _now: NicTime, len: usize) {
        let target = std::mem::replace(&mut self.chosen, Target::None);
        if let Target::Slot(ring) = target {
            if is_frame(len, self.capabilities.mtu) {
                if self.tx[ring].commit(&self.segment, len) >= BATCH {
                    self.publish(ring);
                }
                return self.count(len, true);
            }
        }
        let scratch = std::mem::take(&mut self.scratch);
        // What is longer than the room is no frame.
        self.copy(target, &scratch[..len.min(scratch.len())], len);
        self.scratch = scratch;
    }

    fn tx_copy(&mut self, now: NicTime, dst: MacAddr, frame: &[u8]) -> bool {
        let target = self.choose(now, dst);
        self.copy(target, frame, frame.len());
        target != Target::None
    }

    fn is_quiet(&self) -> bool {
        let published = self.tx.iter().all(Sender::is_published);
        published && self.rx.iter().all(|r| r.is_empty(&self.segment))
    }

    fn flush(&mut self, _now: NicTime) {
        for ring in 0..self.tx.len() {
            self.publish(ring);
        }
    }

    /// Without wake-ups the rings are polled. While frames come the next poll is soon, then ever
    /// later: the nap is half the pause so far.
    fn next_timer(&self) -> Option<NicTime> {
        let quiet = self.times.looked.0.saturating_sub(self.times.heard.0);
        let enough = match self.bell {
            Some(_) => self.armed,
            None => quiet > QUIET_NS,
        };
        if self.times.heard.0 == 0 || enough {
            return None;
        }
        Some(NicTime(self.times.looked.0 + LOOK_SOON_NS.max(quiet / 2)))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.bell.as_ref().map(Bell::fd));
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for MemPort {
    fn drop(&mut self) {
        for ring in 0..self.tx.len() {
            self.publish(ring);
        }
        self.segment.armed(self.me).store(0, Ordering::Relaxed);
        // The next owner binds the same name.
        self.bell = None;
        // Release: pairs with the Acquire in `MemSwitch::port`.
        self.segment.claimed(self.me).store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
