//! The byte path of a stream: between memory and a transport's wire, one body for each direction.
//!
//! ```text
//! transport's Source ─▶ [engine] ─▶ posted receives ─▶ memory      ReceivePath::fill
//! posted sends ◀─ memory ─▶ [engine] ─▶ transport's room           SendPath::fill
//! ```
//!
//! A transport keeps a `ReceivePath` and a `SendPath` for each connection and posts the operations
//! that it gets ([`RecvWork`], [`SendWork`]) there. When bytes can move it calls `fill`:
//!
//! - **Receiving.** The transport implements `Source`: the next run of the stream's bytes, in
//!   order, and whether the peer has ended the stream. A slice is a source, too: the payload of one
//!   packet. `ReceivePath::fill` takes the bytes that posted receives have room for. What is left
//!   stays with the source. The call retires receives that are full, that have `some` bytes and no
//!   more to come, that fault, and at the end of the stream.
//! - **Sending.** The transport passes `SendPath::fill` the room of one packet, segment or line,
//!   and gets bytes of one send at most (or an engine's output). A send retires when its last byte
//!   is in the room, unless it left by reference (`SendPath::refer`): then with the transport's
//!   acknowledgement. Bytes in the room are the transport's: it sends them again by itself.
//!
//! Engines are stages of the same bodies. Every byte passes an engine once and in order, so a
//! transport calls `fill` behind its reassembly and before its retransmission, and never hands over
//! a byte twice. [`Datapath`] is what a transport gets for one step: memory and the engines. A
//! transport looks at neither in between.
//!
//! The two types emit `RecvDone` and `SendDone`; the transport emits all other events. It reports
//! `PeerClosed` before its source says that the stream has ended. After `Filled::Failed`,
//! `Filled::Revoked` or `Sent::Failed` it ends the stream: `fail_all` on both paths, a reset to the
//! peer, and `Reset`.

mod receive;
mod send;
mod work;

use crate::dma::DmaAccess;
use crate::engine::{Direction, EngineFailed, Engines, Stage};
use crate::types::{ConnId, Owner};

pub(crate) use receive::{place, Filled, Mapped, ReceivePath, Run, Source};
pub(crate) use send::{SendPath, Sent};
pub use work::{Payload, RecvWork, SendWork, TransportEvent};

/// What moves the bytes of streams in one step: memory, and the engines on the paths of one
/// transport's connections.
pub struct Datapath<'a> {
    /// Memory through the GTLB.
    pub dma: &'a mut dyn DmaAccess,
    /// `None` while no engine is on any path.
    engines: Option<&'a mut Engines>,
    /// Index of the transport.
    transport: usize,
}

impl<'a> Datapath<'a> {
    /// Memory alone.
    pub fn without_engines(dma: &'a mut dyn DmaAccess) -> Datapath<'a> {
        Datapath {
            dma,
            engines: None,
            transport: 0,
        }
    }

    /// Memory and engines, for the transport of that index.
    #[inline]
    pub(crate) fn new(
        dma: &'a mut dyn DmaAccess,
        engines: &'a mut Engines,
        transport: usize,
    ) -> Datapath<'a> {
        Datapath {
            dma,
            engines: (!engines.is_idle()).then_some(engines),
            transport,
        }
    }

    /// Whether an engine, or what one has left, is on the path of a connection.
    #[inline]
    pub(crate) fn on_path(&self, conn: ConnId, direction: Direction) -> bool {
        let key = (self.transport, conn, direction);
        self.engines.as_ref().is_some_and(|e| e.is_on(key))
    }

    /// Whether what leaves a connection is changed: it is in no memory, so it cannot leave by
    /// reference.
    #[inline]
    pub(crate) fn transforms(&self, conn: ConnId) -> bool {
        let key = (self.transport, conn, Direction::Send);
        self.engines.as_ref().is_some_and(|e| e.transforms(key))
    }

    /// Bytes that have left an engine and went no further.
    #[inline]
    pub(crate) fn held(&self, conn: ConnId, direction: Direction) -> usize {
        let key = (self.transport, conn, direction);
        self.engines.as_ref().map_or(0, |e| e.held(key))
    }

    /// Memory, and the engines for the next bytes of an operation of `by`.
    #[inline]
    fn stage(
        &mut self,
        conn: ConnId,
        direction: Direction,
        by: Owner,
    ) -> (&mut dyn DmaAccess, Option<Stage<'_>>) {
        let key = (self.transport, conn, direction);
        let engines = self.engines.as_deref_mut();
        (self.dma, engines.and_then(|e| e.stage(key, by)))
    }

    /// The engine of a connection's received bytes goes on without the card that has counted for
    /// it. `unseen`: bytes that have not reached the card.
    #[cold]
    pub(crate) fn continue_in_software(&mut self, conn: ConnId, unseen: &[u8]) {
        let key = (self.transport, conn, Direction::Receive);
        if let Some(engines) = &mut self.engines {
            if let Some(id) = engines.on(key) {
                engines.continue_in_software(id, unseen);
            }
        }
    }

    /// A stream has ended: its engine gives what it has kept. Only the first call counts.
    fn end(&mut self, conn: ConnId, direction: Direction) -> Result<(), EngineFailed> {
        let key = (self.transport, conn, direction);
        self.engines.as_mut().map_or(Ok(()), |e| e.end(key))
    }
}
