//! One stream to a peer NIC: frames queued, frames on the way, the frame that is arriving.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::{InlineSend, SessionId};

use super::frame::{Frame, HEADER};
use super::pieces::Pieces;
use crate::memory::nic_memory::Block;
use crate::transport::{Payload, RecvWork, SendWork, Target, Transport};
use crate::types::{ConnId, NicTime, Owner, WorkToken};

/// Tokens of operations that belong to the fabric; the command layer's own never have this bit.
pub(crate) const FABRIC_TOKEN: u64 = 1 << 63;
/// Payload bytes handed to the transport at once: the rest stays here, where it can be withdrawn.
const HANDED_BYTES: u64 = 1 << 20;
/// Operations handed to the transport at once.
const HANDED_WORKS: usize = 64;
/// Further bit of the tokens of exposed receives; the low 32 are the number of the fabric's receive.
pub(super) const EXPOSED_TOKEN: u64 = 1 << 62;

/// Recipient of the event when a frame's payload has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxKey {
    /// No event.
    None,
    /// The engine.
    Engine(u64),
    /// The message with this number.
    Send(u32),
}

/// A frame that waits to leave.
#[derive(Debug)]
pub(crate) struct TxFrame {
    pub(crate) ctx: u64,
    /// Owner of the payload.
    pub(crate) by: Owner,
    pub(crate) frame: Frame,
    pub(crate) payload: Pieces,
    pub(crate) key: TxKey,
    /// The payload is written to the receive that the peer has exposed under this key, and no header is sent.
    pub(crate) to: Option<u32>,
}

/// A work that the transport holds.
#[derive(Debug)]
pub(crate) struct Handed {
    token: u64,
    pub(crate) ctx: u64,
    bytes: u64,
    /// The last piece of its frame.
    last: bool,
    key: TxKey,
}

/// Where an arriving payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// To a receive.
    Recv(u32),
    /// To a receive buffer.
    Early(u32),
    /// Nowhere.
    Drop,
}

/// What arrives at the moment.
#[derive(Debug)]
pub(crate) enum Rx {
    /// No receive is posted.
    Idle,
    /// A header.
    Header(u64),
    /// A payload, and what of it is not here yet.
    Payload {
        into: Dest,
        token: u64,
        /// The piece that the transport fills.
        piece: crate::types::Buffer,
        /// Pieces after that.
        rest: VecDeque<crate::types::Buffer>,
        /// Bytes to be dropped after the pieces.
        surplus: u64,
        /// Its owner, for engines.
        by: Owner,
    },
}

/// A header as a short cut takes it.
fn inline(header: &[u8; HEADER]) -> InlineSend {
    let mut words = [0; HEADER / 8];
    for (w, b) in words.iter_mut().zip(header.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(b);
        *w = u64::from_le_bytes(bytes);
    }
    InlineSend {
        session: SessionId(0),
        len: HEADER as u8,
        words,
    }
}

/// How far the link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// No connection: try again at that time.
    Down(NicTime),
    /// The transport with this index is connecting.
    Connecting,
    /// An unknown peer has connected; it must identify itself by this time.
    Unidentified(NicTime),
    /// Frames flow.
    Up,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) state: LinkState,
    pub(crate) transport: usize,
    pub(crate) conn: ConnId,
    pub(crate) peer: Option<SocketAddrV4>,
    pub(crate) header: Block,
    pub(crate) rx: Rx,
    tx: VecDeque<TxFrame>,
    handed: VecDeque<Handed>,
    handed_bytes: u64,
    /// The peer takes nothing any more; what it has sent is still read.
    pub(crate) mute: bool,
    pub(crate) why: &'static str,
    /// The peer is authenticated: we have connected to its address, or it has sent the number of a
    /// communicator.
    pub(crate) proven: bool,
    /// Its transport exposes receives: those of messages that are longer.
    pub(crate) exposes: Option<u64>,
}

impl Link {
    pub(crate) fn new(state: LinkState, peer: Option<SocketAddrV4>, header: Block) -> Link {
        Link {
            state,
            transport: 0,
            conn: ConnId(0),
            peer,
            header,
            rx: Rx::Idle,
            tx: VecDeque::new(),
            handed: VecDeque::new(),
            handed_bytes: 0,
            mute: false,
            why: "",
            proven: false,
            exposes: None,
        }
    }

    /// Queues a frame.
    pub(crate) fn queue(&mut self, f: TxFrame) {
        self.tx.push_back(f);
    }

    /// Whether frames wait to be handed over.
    pub(crate) fn has_queued(&self) -> bool {
        !self.tx.is_empty() && self.state == LinkState::Up && !self.mute
    }

    /// Whether an answer of a communicator waits to be handed over.
    pub(crate) fn answers(&self, of: u64) -> bool {
        let is = |f: &Frame| matches!(f, Frame::Here { ctx, .. } if *ctx == of);
        self.tx.iter().any(|f| is(&f.frame))
    }

    /// Whether something waits to leave, or its arrival is unconfirmed.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tx.is_empty() || !self.handed.is_empty()
    }

    /// Hands frames to the transport as far as it may hold them. Returns whether any were, and
    /// appends the keys of frames that need no event any more.
    pub(crate) fn pump(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        done: &mut Vec<TxKey>,
    ) -> bool {
        let mut moved = false;
        if self.state != LinkState::Up || self.mute {
            return false;
        }
        while self.handed.len() < HANDED_WORKS && self.handed_bytes < HANDED_BYTES {
            let Some(f) = self.tx.pop_front() else { break };
            moved = true;
            if let Some(key) = f.to {
                self.write(transport, next_token, &f, key);
                continue;
            }
            let header = f.frame.encode();
            let push = f.payload.len() == 0;
            if !(self.handed.is_empty() && transport.send_now(self.conn, &inline(&header))) {
                let payload = Payload::Inline {
                    bytes: header,
                    len: HEADER as u8,
                };
                let token = self.hand(next_token, &f, 0, push);
                let work = SendWork {
                    token,
                    by: Owner::NIC,
                    payload,
                    push,
                };
                transport.post_send(self.conn, work);
            } else if push {
                done.push(f.key);
            }
            let n = f.payload.iter().count();
            for (i, piece) in f.payload.iter().enumerate() {
                let token = self.hand(next_token, &f, piece.len.into(), i + 1 == n);
                transport.post_send(
                    self.conn,
                    SendWork {
                        token,
                        by: f.by,
                        payload: Payload::Memory(*piece),
                        push: i + 1 == n && self.tx.is_empty(),
                    },
                );
            }
        }
        moved
    }

    /// Hands over the payload of a message that goes to its receive.
    fn write(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        f: &TxFrame,
        key: u32,
    ) {
        let n = f.payload.iter().count();
        let mut offset = 0;
        for (i, piece) in f.payload.iter().enumerate() {
            let last = i + 1 == n;
            let work = SendWork {
                token: self.hand(next_token, f, piece.len.into(), last),
                by: f.by,
                payload: Payload::Memory(*piece),
                push: last && self.tx.is_empty(),
            };
            let to = Target { key, offset, last };
            transport.post_write(self.conn, work, to);
            offset += piece.len;
        }
    }

    fn hand(&mut self, next_token: &mut u64, f: &TxFrame, bytes: u64, last: bool) -> WorkToken {
        *next_token += 1;
        self.handed_bytes += bytes;
        self.handed.push_back(Handed {
            token: *next_token,
            ctx: f.ctx,
            bytes,
            last,
            key: f.key,
        });
        WorkToken(FABRIC_TOKEN | *next_token)
    }

    /// An operation of this link has ended. The key when it was the last of its frame; `None` when the
    /// operation is unknown or not the last.
    pub(crate) fn sent(&mut self, token: WorkToken) -> Option<TxKey> {
        let token = token.0 & !FABRIC_TOKEN;
        let i = self.handed.iter().position(|h| h.token == token)?;
        let h = self.handed.remove(i)?;
        self.handed_bytes -= h.bytes;
        h.last.then_some(h.key)
    }

    /// Whether the transport holds payload of a communicator.
    pub(crate) fn holds(&self, ctx: u64) -> bool {
        self.handed.iter().any(|h| h.ctx == ctx && h.bytes > 0)
    }

    /// Drops the frames of a communicator that have not been handed over, except those that report
    /// its end.
    pub(crate) fn drop_frames(&mut self, ctx: u64) {
        self.tx.retain(|f| {
            f.ctx != ctx || matches!(f.frame, Frame::Abort { .. } | Frame::Params { .. })
        });
    }

    /// Withdraws a message that has not been handed over. Returns whether it was there.
    pub(crate) fn take_back(&mut self, send: u32) -> bool {
        let before = self.tx.len();
        self.tx.retain(|f| f.key != TxKey::Send(send));
        self.tx.len() != before
    }

    /// Communicators with messages of operations whose departure is unconfirmed.
    pub(crate) fn unsent(&self) -> Vec<u64> {
        let queued = self.tx.iter().map(|f| (f.ctx, f.key));
        let handed = self.handed.iter().map(|h| (h.ctx, h.key));
        let all = queued.chain(handed);
        all.filter(|(_, key)| *key != TxKey::None)
            .map(|(ctx, _)| ctx)
            .collect()
    }

    /// Everything on the way is lost.
    pub(crate) fn reset(&mut self) {
        self.mute = false;
        self.tx.clear();
        self.handed.clear();
        self.handed_bytes = 0;
        self.rx = Rx::Idle;
    }

    /// Posts a receive for the next header.
    pub(crate) fn await_header(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        buffer: crate::types::Buffer,
    ) {
        *next_token += 1;
        self.rx = Rx::Header(*next_token);
        transport.post_recv(
            self.conn,
            RecvWork {
                token: WorkToken(FABRIC_TOKEN | *next_token),
                by: Owner::NIC,
                buffer,
                some: false,
            },
        );
    }
}
