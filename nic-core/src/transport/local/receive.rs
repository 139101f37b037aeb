//! What has arrived of a connection, as the source of its byte path.

use super::conn::Conn;
use super::io::{is_staged, Fill, In};
use super::link::Link;
use super::rx::{Rx, Seg};
use crate::datapath::{Datapath, Filled, ReceivePath, Run, Source};
use crate::engine::Direction;
use crate::types::Buffer;

/// Bytes that one step copies by reference before it looks at everything else again.
pub(super) const STEP_BYTES: u64 = 1 << 20;

/// See the module text.
struct Arrived<'a> {
    rx: &'a mut Rx,
    link: &'a Link,
    peer: u32,
    budget: &'a mut u64,
    /// No more by reference in this step.
    stop: bool,
    /// The next bytes lie in memory that the peer does not export.
    unmapped: bool,
}

impl Source for Arrived<'_> {
    fn next(&mut self) -> Run<'_> {
        match self.rx.segs.front() {
            None => Run::Empty,
            Some(Seg::Staged { len }) => {
                let run = self.rx.staging.front();
                Run::Own(&run[..run.len().min(*len as usize)])
            }
            Some(Seg::Early { bytes, at }) => Run::Own(&bytes[*at..]),
            Some(Seg::Ref { bus, len }) => {
                let n = u64::from(*len).min(*self.budget);
                if n == 0 || self.stop {
                    return Run::Later;
                }
                match self.link.resolve(*bus, n) {
                    Some(bytes) => Run::Peer(bytes),
                    None => {
                        self.unmapped = true;
                        Run::Later
                    }
                }
            }
        }
    }

    fn consume(&mut self, n: usize) {
        match self.rx.segs.front_mut() {
            Some(Seg::Staged { len }) => {
                self.rx.staging.consume(n);
                self.rx.inline_taken += n as u64;
                *len -= n as u32;
                if *len == 0 {
                    self.rx.segs.pop_front();
                }
            }
            Some(Seg::Early { bytes, at }) => {
                *at += n;
                if *at == bytes.len() {
                    self.rx.early_bytes -= bytes.len();
                    self.rx.segs.pop_front();
                }
            }
            Some(Seg::Ref { bus, .. }) => {
                *self.budget -= n as u64;
                let staged = is_staged(*bus);
                let before = self.rx.spans_taken;
                self.rx.consume_reference(0, n as u32);
                if staged && self.rx.spans_taken > before {
                    // The acknowledgement must not wait for the rest, because it makes the room
                    // that the rest needs.
                    self.rx.tell_now = true;
                    self.stop = true;
                }
            }
            None => {}
        }
    }

    fn ahead(&self) -> usize {
        let mut ahead = 0;
        for seg in &self.rx.segs {
            match seg {
                Seg::Ref { len, .. } if ahead < *self.budget => ahead += u64::from(*len),
                _ => break,
            }
        }
        // At most the budget, of a step.
        ahead.min(*self.budget) as usize
    }

    fn is_ended(&self) -> bool {
        self.rx.peer_fin && self.rx.segs.is_empty()
    }

    fn is_revoked(&self) -> bool {
        self.link.is_revoked(self.peer)
    }
}

/// Takes the payload of an inline packet: straight to the waiting receive, or to the staging
/// buffer. `false`: the peer has overrun its window.
#[inline]
pub(super) fn inline(c: &mut Conn, bytes: &[u8], window: usize, io: &mut In<'_, '_>) -> bool {
    let mut rest = bytes;
    // An engine takes them from the staging buffer.
    if c.rx.segs.is_empty() && !c.recvs.is_empty() && !io.data.on_path(c.id, Direction::Receive) {
        c.recvs.fill(&mut rest, io.data, io.events);
        c.rx.inline_taken += (bytes.len() - rest.len()) as u64;
    }
    if rest.is_empty() {
        return true;
    }
    if c.rx.staging.len() + rest.len() > window {
        return false;
    }
    c.rx.stage(rest);
    true
}

/// Fills a receive that is not queued from bytes that lie in the NIC, if there are enough for it.
pub(super) fn take_staged(
    c: &mut Conn,
    link: &Link,
    buffer: &Buffer,
    some: bool,
    data: &mut Datapath<'_>,
) -> Option<u32> {
    if data.on_path(c.id, Direction::Receive) {
        return None;
    }
    let mut arrived = Arrived {
        rx: &mut c.rx,
        link,
        peer: c.peer_id,
        budget: &mut 0,
        stop: false,
        unmapped: false,
    };
    ReceivePath::receive_now(&mut arrived, buffer, some, data.dma)
}

/// Fills waiting receives with the bytes that have arrived.
pub(super) fn fill(c: &mut Conn, io: &mut In<'_, '_>) -> Fill {
    let mut arrived = Arrived {
        rx: &mut c.rx,
        link: io.link,
        peer: c.peer_id,
        budget: io.budget,
        stop: false,
        unmapped: false,
    };
    let (moved, end) = c.recvs.fill(&mut arrived, io.data, io.events);
    let unmapped = arrived.unmapped;
    io.moved |= moved;
    match end {
        Filled::All => Fill::Done,
        Filled::Failed(failed) => {
            c.failed = Some(failed);
            Fill::Broken
        }
        // Or the peer has announced what it does not export.
        Filled::Later if !unmapped => Fill::Budget,
        Filled::Later | Filled::Revoked => Fill::Broken,
    }
}

/// Copies small payloads that wait without a receive, so that two sides that both send first do not
/// wait for each other. `false`: as [`Fill::Broken`].
pub(super) fn stage_early(c: &mut Conn, limit: usize, io: &mut In<'_, '_>) -> bool {
    for i in 0..c.rx.segs.len() {
        let Seg::Ref { bus, len } = c.rx.segs[i] else {
            continue;
        };
        if c.rx.early_bytes + len as usize > limit {
            return true;
        }
        let Some(src) = io.link.resolve(bus, len.into()) else {
            return false;
        };
        let mut bytes = vec![0u8; len as usize];
        src.copy_to(&mut bytes, io.data.dma);
        if io.link.is_revoked(c.peer_id) {
            return false;
        }
        c.rx.early_bytes += bytes.len();
        c.rx.segs[i] = Seg::Early { bytes, at: 0 };
        c.rx.refs_waiting -= 1;
        c.rx.spans_taken += 1;
        c.rx.tell_now |= is_staged(bus);
        io.moved = true;
    }
    true
}
