//! A link: the shared segment between two NICs, and the peer's memory as mapped here.
#![allow(unsafe_code)] // Pointer arithmetic inside mapped exports, and views that live as long as their mapping.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::packet::Packet;
use super::ready::Announcer;
use super::rendezvous::{ExportInfo, Hello};
use super::ring::{Consumer, Producer, WORDS};
use super::shared::Shared;
use crate::datapath::Mapped;
use crate::memory::nic_memory::HOST_BUS;
use crate::shmem::Mapping;
use crate::transport::PeerWindow;
use crate::types::NicTime;
use crate::wake::WakeCell;

/// Lines per direction: 32 KiB, which stays in a core's private cache.
const LINES: usize = 512;
const RING_BYTES: usize = LINES * 64;
const CREDIT: usize = 2 * RING_BYTES;
/// Tables of revoked connections, one word per connection slot, written by the sender of the bytes.
const REVOKED: usize = CREDIT + 4096;
const REVOKED_WORDS: usize = 1 << 16;
/// Bytes of a segment; untouched pages cost nothing.
const SEGMENT_BYTES: usize = REVOKED + 2 * REVOKED_WORDS * 4;

/// How many lines ahead of the producer ownership is asked for.
const PREFETCH_LINES: usize = 3;

/// Asks for a cache line in order to write it soon. A hint: changes nothing.
#[inline]
fn prefetch_for_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW is a hint for any address; CPUs without it treat it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Phase of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Accepted; waits for the hello.
    Called,
    /// Connected; waits for the answer.
    Calling,
    /// Packets flow.
    Up,
    /// The peer is gone; what it has left may still be read.
    Dead,
}

/// Lines of one direction.
type Lines = [AtomicU64; LINES * WORDS];

/// The two rings of a segment, as this side uses them.
#[derive(Debug)]
struct Rings {
    sent: &'static Lines,
    /// What the peer has read of them.
    sent_credit: &'static AtomicU32,
    received: &'static Lines,
    received_credit: &'static AtomicU32,
}

impl Rings {
    /// Views into a segment, computed once: every packet uses them.
    fn of(segment: &Mapping, side: usize) -> Option<Rings> {
        /// # Safety
        /// What is seen stays where it is until the last use of the answer.
        unsafe fn kept<T>(seen: &T) -> &'static T {
            // SAFETY: the caller's contract.
            unsafe { &*std::ptr::from_ref(seen) }
        }
        let lines = |side: usize| {
            let words = segment.words64(side * RING_BYTES, LINES * WORDS);
            // SAFETY: a mapping stays where it is until it is dropped. `Link` owns the segment,
            // never replaces one that has rings, and hands no view out.
            words.first_chunk().map(|lines| unsafe { kept(lines) })
        };
        let credit = |side: usize| {
            let word = segment.words32(CREDIT + side * 128, 1).first();
            // SAFETY: as above.
            word.map(|word| unsafe { kept(word) })
        };
        Some(Rings {
            sent: lines(side)?,
            sent_credit: credit(side)?,
            received: lines(1 - side)?,
            received_credit: credit(1 - side)?,
        })
    }
}

/// One link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: OwnedFd,
    pub(super) state: LinkState,
    pub(super) peer: Ipv4Addr,
    /// When a handshake gives up.
    pub(super) deadline: NicTime,
    /// Bytes of inline payload that the peer lets us have on the way, per connection.
    pub(super) peer_window: u64,
    /// Connections that use the link.
    pub(super) users: u32,
    /// Packets that belong to no living connection and wait for room.
    control: VecDeque<Packet>,
    side: usize,
    segment: Option<Mapping>,
    /// Those of the segment, while there are packets to send or to read.
    rings: Option<Rings>,
    exports: Vec<(ExportInfo, Mapping)>,
    /// Host memory, which comes and goes.
    pub(super) shared: Shared,
    pub(super) announcer: Announcer,
    tx: Producer,
    rx: Consumer,
}

impl Link {
    /// A link that starts with us: makes the segment.
    pub(super) fn calling(
        socket: OwnedFd,
        peer: Ipv4Addr,
        deadline: NicTime,
    ) -> std::io::Result<Link> {
        let segment = Mapping::memfd("ringbell-link", SEGMENT_BYTES)?;
        Ok(Link::new(
            socket,
            LinkState::Calling,
            peer,
            deadline,
            Some(segment),
        ))
    }

    /// A link accepted from a peer that is not authenticated yet.
    pub(super) fn called(socket: OwnedFd, deadline: NicTime) -> Link {
        let peer = Ipv4Addr::UNSPECIFIED;
        Link::new(socket, LinkState::Called, peer, deadline, None)
    }

    fn new(
        socket: OwnedFd,
        state: LinkState,
        peer: Ipv4Addr,
        deadline: NicTime,
        segment: Option<Mapping>,
    ) -> Link {
        let side = usize::from(segment.is_none());
        Link {
            socket,
            state,
            peer,
            deadline,
            peer_window: 0,
            users: 0,
            control: VecDeque::new(),
            side,
            segment,
            rings: None,
            exports: Vec::new(),
            shared: Shared::default(),
            announcer: Announcer::default(),
            tx: Producer::default(),
            rx: Consumer::default(),
        }
    }

    /// The segment's descriptor, on the side that made it.
    pub(super) fn segment_fd(&self) -> Option<BorrowedFd<'_>> {
        self.segment.as_ref()?.fd()
    }

    /// Maps what the peer's hello brought; the link is up afterwards.
    pub(super) fn establish(&mut self, hello: Hello) -> std::io::Result<()> {
        // A link keeps its socket and, across processes, the descriptor that wakes the peer: what
        // is mapped needs none, and with n NICs in a process there are n² links.
        if let Some(fd) = hello.segment {
            self.segment = Some(Mapping::of_peer(fd, 0, SEGMENT_BYTES, true)?);
        }
        if let Some(segment) = &mut self.segment {
            segment.forget_fd();
        }
        let mut exports = Vec::with_capacity(hello.exports.len());
        for (info, fd) in hello.exports.into_iter().zip(hello.export_fds) {
            // Writable, for one-sided operations. Streams only ever copy out of the sender's memory
            // (`resolve` gives a read-only pointer); writers go through `PeerWindow`, with
            // addresses that the peer's NIC itself has granted for that very write.
            let len = usize::try_from(info.len).unwrap_or(usize::MAX);
            let mut map = Mapping::of_peer(fd, info.file_offset, len, true)?;
            map.forget_fd();
            exports.push((info, map));
        }
        let segment = self.segment.as_ref();
        self.rings = segment.and_then(|segment| Rings::of(segment, self.side));
        let [page, event] = hello.wake;
        let wake = WakeCell::of_peer(page, event)?;
        self.announcer.establish(wake, hello.link);
        self.exports = exports;
        self.peer = hello.ip;
        self.peer_window = hello.inline_window;
        self.state = LinkState::Up;
        Ok(())
    }

    /// Whether the next packet can be sent.
    pub(super) fn has_room(&mut self) -> bool {
        let rings = self.rings.as_ref();
        let up = rings.filter(|_| self.state == LinkState::Up);
        up.is_some_and(|r| self.tx.has_room(LINES as u32, r.sent_credit))
    }

    /// Sends a packet unless the ring is full or the link is not up.
    #[inline]
    pub(super) fn push(&mut self, p: &Packet) -> bool {
        self.push_line(&p.encode())
    }

    /// Sends a line unless the ring is full or the link is not up.
    #[inline(always)]
    pub(super) fn push_line(&mut self, line: &[u64; WORDS]) -> bool {
        let Some(rings) = self.rings.as_ref().filter(|_| self.state == LinkState::Up) else {
            return false;
        };
        let done = self.tx.push(rings.sent, rings.sent_credit, line);
        // The lines ahead lie in the peer's cache since their last lap. Every locked instruction
        // drains the store buffer, so a store that misses costs a whole transfer: ask early.
        let ahead = (self.tx.position() as usize + PREFETCH_LINES) % LINES;
        prefetch_for_write(rings.sent[ahead * WORDS].as_ptr().cast_const().cast());
        if done {
            self.announcer.pushed();
        }
        done
    }

    /// The next packet's line, copied. After the peer's end, what it has left.
    #[inline]
    pub(super) fn peek(&self) -> Option<[u64; WORDS]> {
        self.rx.peek(self.rings.as_ref()?.received)
    }

    /// The next packet's header, and the words where one has its payload.
    #[inline(always)]
    pub(super) fn peek_payload(&self) -> Option<(u64, &[AtomicU64])> {
        self.rx.peek_payload(self.rings.as_ref()?.received)
    }

    /// Whether a packet can be read.
    #[inline]
    pub(super) fn has_packets(&self) -> bool {
        let rings = self.rings.as_ref();
        rings.is_some_and(|r| self.rx.is_there(r.received))
    }

    /// Whether there is nothing to read and nothing that waits to be written. Only the sockets
    /// advance a link that is not up, and those are polled by time.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        let Some(rings) = &self.rings else {
            return true;
        };
        !self.announcer.has_pushed() && self.control.is_empty() && !self.rx.is_there(rings.received)
    }

    /// Whether packets wait for room.
    #[inline]
    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Sends a packet of no living connection, now or when there is room.
    pub(super) fn push_or_queue(&mut self, p: Packet) {
        if !self.push(&p) {
            self.queue_control(p);
        }
    }

    /// Sends a packet of no living connection in the next step, or when there is room.
    pub(super) fn queue_control(&mut self, p: Packet) {
        self.control.push_back(p);
        self.announcer.has_to_send();
    }

    /// Sends packets that have waited for room. Returns whether any has left.
    #[inline(never)]
    pub(super) fn push_control(&mut self) -> bool {
        let mut moved = false;
        while let Some(p) = self.control.front().copied() {
            if !self.push(&p) {
                break;
            }
            self.control.pop_front();
            moved = true;
        }
        moved
    }

    /// Gives the line back that `peek` has shown.
    #[inline]
    pub(super) fn advance(&mut self) {
        if let Some(rings) = &self.rings {
            self.rx.advance(rings.received, rings.received_credit);
        }
    }

    /// Nothing is sent any more, and nothing read.
    pub(super) fn forget_rings(&mut self) {
        self.rings = None;
    }

    /// Announces to the peer what was sent since the last call, and wakes it if it sleeps.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.announcer.announce();
    }

    /// Where a span of the peer's memory lies here; `None` when the peer does not export it.
    #[inline]
    pub(super) fn resolve(&self, bus: u64, len: u64) -> Option<Mapped> {
        let from = self.locate(bus, len)?;
        // SAFETY: `locate` has found these bytes in a mapped export, which lives as long as the
        // link.
        Some(unsafe { Mapped::new(from, len as usize) })
    }

    #[inline]
    fn locate(&self, bus: u64, len: u64) -> Option<*mut u8> {
        if bus >= HOST_BUS {
            return self.shared.locate(bus, len);
        }
        for (info, map) in &self.exports {
            let Some(at) = bus.checked_sub(info.bus) else {
                continue;
            };
            if at.checked_add(len).is_some_and(|end| end <= info.len) {
                // SAFETY: `at` lies inside the export, of which all `info.len` bytes are mapped.
                return Some(unsafe { map.base().add(at as usize) });
            }
        }
        None
    }

    /// Sender: from now on the receiver must not deliver bytes that it copies from buffers of this
    /// connection. Works like the writer of a sequence lock.
    pub(super) fn revoke(&self, conn: u32) {
        if let Some(segment) = &self.segment {
            let table = segment.words32(REVOKED + self.side * REVOKED_WORDS * 4, REVOKED_WORDS);
            // SeqCst: ordered before any later store to the buffer; pairs with `is_revoked`.
            table[(conn & 0xffff) as usize].store((conn >> 16) + 1, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// Receiver, after copying: whether the sender has taken the buffer back meanwhile.
    #[inline]
    pub(super) fn is_revoked(&self, peer_conn: u32) -> bool {
        let Some(segment) = &self.segment else {
            return true;
        };
        // Acquire fence: the copy's loads come before the look at the table, as in the reader of a
        // sequence lock; pairs with the SeqCst store in `revoke`.
        std::sync::atomic::fence(Ordering::Acquire);
        let table = segment.words32(REVOKED + (1 - self.side) * REVOKED_WORDS * 4, REVOKED_WORDS);
        table[(peer_conn & 0xffff) as usize].load(Ordering::Relaxed) == (peer_conn >> 16) + 1
    }
}

impl PeerWindow for Link {
    fn at(&self, bus: u64, len: u64) -> Option<*mut u8> {
        if self.state != LinkState::Up {
            return None;
        }
        self.locate(bus, len)
    }

    fn wake(&self) {
        self.announcer.wake();
    }

    fn maps(&self, bus: u64, len: u64) -> Option<bool> {
        self.shared.maps(bus, len)
    }
}
