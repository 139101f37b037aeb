//! A link over a stream: messages that wait to leave, those on the way, the one that arrives.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::{InlineSend, SessionId};

use super::{Pieces, HEAD};
use crate::memory::nic_memory::Block;
use crate::transport::{Payload, RecvWork, SendWork, Target, Transport, Work};
use crate::types::{ConnId, NicTime, Owner, WorkToken};

/// Tokens of operations that belong to links; the command layer's own never have this bit.
pub(crate) const LINK_TOKEN: u64 = 1 << 63;
/// Payload bytes handed to the transport at once: the rest stays here, where it can be withdrawn.
const HANDED_BYTES: u64 = 1 << 20;
/// Operations that are handed to it however long they are: a message, and the next one, so that the
/// link does not rest between them.
const HANDED_ANYHOW: usize = 4;
/// Operations handed to the transport at once.
const HANDED_WORKS: usize = 64;
/// Further bit of the tokens of exposed receives; the low 32 are a place of the layer above.
pub(crate) const EXPOSED_TOKEN: u64 = 1 << 62;

/// A message that waits to leave.
#[derive(Debug)]
pub(crate) struct Outgoing<K> {
    pub(crate) channel: u64,
    /// Owner of the payload.
    pub(crate) by: Owner,
    pub(crate) head: [u8; HEAD],
    pub(crate) payload: Pieces,
    /// Reported when the payload has left.
    pub(crate) key: Option<K>,
    /// The payload is written to the receive that the peer has exposed under this key, and no head
    /// is sent.
    pub(crate) to: Option<u32>,
    /// It leaves although its channel has ended.
    pub(crate) outlives: bool,
}

/// A work that the transport holds.
#[derive(Debug)]
struct Handed<K> {
    token: u64,
    channel: u64,
    bytes: u64,
    /// The last piece of its message.
    last: bool,
    key: Option<K>,
}

/// Where an arriving payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// To a place of the layer above.
    Place(u64),
    /// Nowhere.
    Nowhere,
}

/// What arrives at the moment.
#[derive(Debug)]
pub(super) enum Rx {
    /// No receive is posted.
    Idle,
    /// A head.
    Head(u64),
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

/// A head as a short cut takes it.
fn inline(head: &[u8; HEAD]) -> InlineSend {
    let mut words = [0; HEAD / 8];
    for (w, b) in words.iter_mut().zip(head.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(b);
        *w = u64::from_le_bytes(bytes);
    }
    InlineSend {
        session: SessionId(0),
        len: HEAD as u8,
        words,
    }
}

/// How far the link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// No connection: try again at that time.
    Down(NicTime),
    /// The transport with this index is connecting.
    Connecting,
    /// An unknown peer has connected; it must identify itself by this time.
    Unidentified(NicTime),
    /// Messages flow.
    Up,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Link<K> {
    pub(super) state: LinkState,
    pub(super) transport: usize,
    pub(super) conn: ConnId,
    pub(super) peer: Option<SocketAddrV4>,
    /// Where heads arrive.
    pub(super) head: Block,
    pub(super) rx: Rx,
    tx: VecDeque<Outgoing<K>>,
    handed: VecDeque<Handed<K>>,
    handed_bytes: u64,
    /// The peer takes nothing any more; what it has sent is still read.
    pub(super) mute: bool,
    pub(super) why: &'static str,
    /// The peer is authenticated: we have connected to its address, or the layer above says so.
    pub(super) proven: bool,
    /// It only asks the peer, whose address is the lower one, to dial this NIC.
    pub(super) asks: bool,
    /// How often it has.
    pub(super) asked: u8,
}

impl<K: Copy + PartialEq> Link<K> {
    pub(super) fn new(state: LinkState, peer: Option<SocketAddrV4>, head: Block) -> Link<K> {
        Link {
            state,
            transport: 0,
            conn: ConnId(u32::MAX),
            peer,
            head,
            rx: Rx::Idle,
            tx: VecDeque::new(),
            handed: VecDeque::new(),
            handed_bytes: 0,
            mute: false,
            why: "",
            proven: false,
            asks: false,
            asked: 0,
        }
    }

    /// Whether messages flow.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }

    /// Its transport and connection.
    pub(crate) fn session(&self) -> (usize, ConnId) {
        (self.transport, self.conn)
    }

    /// Why that transport was chosen, as text for users.
    pub(crate) fn why(&self) -> &'static str {
        self.why
    }

    /// Where the peer is dialled; none, while it has not said who it is.
    pub(crate) fn peer(&self) -> Option<SocketAddrV4> {
        self.peer
    }

    /// The peer has shown that it is the one that it claims to be.
    pub(crate) fn prove(&mut self) {
        self.proven = true;
    }

    /// Where the payload goes that is arriving.
    pub(crate) fn arriving(&self) -> Dest {
        match &self.rx {
            Rx::Payload { into, .. } => *into,
            _ => Dest::Nowhere,
        }
    }

    /// When it may be dialled again, if it is down.
    pub(crate) fn is_down_until(&self) -> Option<NicTime> {
        match self.state {
            LinkState::Down(at) => Some(at),
            _ => None,
        }
    }

    /// Queues a message.
    pub(crate) fn queue(&mut self, m: Outgoing<K>) {
        self.tx.push_back(m);
    }

    /// Whether messages wait to be handed over.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.tx.is_empty() && self.state == LinkState::Up && !self.mute
    }

    /// The messages that wait to be handed over.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Outgoing<K>> {
        self.tx.iter()
    }

    /// Whether something waits to leave, or its arrival is unconfirmed.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tx.is_empty() || !self.handed.is_empty()
    }

    /// Hands messages to the transport as far as it may hold them. Returns whether any were, and
    /// appends the keys of messages that need no event any more.
    pub(super) fn pump(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        done: &mut Vec<K>,
    ) -> bool {
        let mut moved = false;
        if self.state != LinkState::Up || self.mute {
            return false;
        }
        while self.handed.len() < HANDED_ANYHOW
            || (self.handed.len() < HANDED_WORKS && self.handed_bytes < HANDED_BYTES)
        {
            let Some(f) = self.tx.pop_front() else { break };
            moved = true;
            if let Some(key) = f.to {
                self.write(transport, next_token, &f, key);
                continue;
            }
            let push = f.payload.len() == 0;
            if !(self.handed.is_empty() && transport.send_now(self.conn, &inline(&f.head))) {
                let payload = Payload::Inline {
                    bytes: f.head,
                    len: HEAD as u8,
                };
                let token = self.hand(next_token, &f, 0, push);
                let work = SendWork {
                    token,
                    by: Owner::NIC,
                    payload,
                    push,
                };
                transport.post(self.conn, Work::Send(work));
            } else if push {
                done.extend(f.key);
            }
            let n = f.payload.iter().count();
            for (i, piece) in f.payload.iter().enumerate() {
                let token = self.hand(next_token, &f, piece.len.into(), i + 1 == n);
                let work = SendWork {
                    token,
                    by: f.by,
                    payload: Payload::Memory(*piece),
                    push: i + 1 == n && self.tx.is_empty(),
                };
                transport.post(self.conn, Work::Send(work));
            }
        }
        moved
    }

    /// Hands over the payload of a message that goes to its receive.
    fn write(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        f: &Outgoing<K>,
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
            transport.post(self.conn, Work::Write(work, to));
            offset += piece.len;
        }
    }

    fn hand(&mut self, next_token: &mut u64, f: &Outgoing<K>, bytes: u64, last: bool) -> WorkToken {
        *next_token += 1;
        self.handed_bytes += bytes;
        self.handed.push_back(Handed {
            token: *next_token,
            channel: f.channel,
            bytes,
            last,
            key: f.key,
        });
        WorkToken(LINK_TOKEN | *next_token)
    }

    /// An operation of this link has ended. `Some`: it was the last of its message, with its key.
    pub(super) fn sent(&mut self, token: WorkToken) -> Option<Option<K>> {
        let token = token.0 & !LINK_TOKEN;
        let i = self.handed.iter().position(|h| h.token == token)?;
        let h = self.handed.remove(i)?;
        self.handed_bytes -= h.bytes;
        h.last.then_some(h.key)
    }

    /// Whether the transport holds payload of a channel.
    pub(crate) fn holds(&self, channel: u64) -> bool {
        let is_of = |h: &Handed<K>| h.channel == channel && h.bytes > 0;
        self.handed.iter().any(is_of)
    }

    /// Drops the messages of a channel that has ended, except those that outlive it.
    pub(crate) fn drop_channel(&mut self, channel: u64) {
        self.tx.retain(|m| m.channel != channel || m.outlives);
    }

    /// Withdraws a message that has not been handed over. Returns whether it was there.
    pub(crate) fn take_back(&mut self, key: K) -> bool {
        let before = self.tx.len();
        self.tx.retain(|m| m.key != Some(key));
        self.tx.len() != before
    }

    /// Channels with messages whose departure is to be reported and is unconfirmed.
    pub(super) fn unsent(&self) -> Vec<u64> {
        let queued = self.tx.iter().map(|m| (m.channel, m.key));
        let handed = self.handed.iter().map(|h| (h.channel, h.key));
        let all = queued.chain(handed);
        all.filter(|(_, key)| key.is_some())
            .map(|(channel, _)| channel)
            .collect()
    }

    /// Everything on the way is lost.
    pub(super) fn reset(&mut self) {
        self.mute = false;
        self.tx.clear();
        self.handed.clear();
        self.handed_bytes = 0;
        self.rx = Rx::Idle;
    }

    /// Posts a receive for the next head.
    pub(super) fn await_head(
        &mut self,
        transport: &mut dyn Transport,
        next_token: &mut u64,
        buffer: crate::types::Buffer,
    ) {
        *next_token += 1;
        self.rx = Rx::Head(*next_token);
        let work = RecvWork {
            token: WorkToken(LINK_TOKEN | *next_token),
            by: Owner::NIC,
            buffer,
            some: false,
        };
        transport.post(self.conn, Work::Receive(work));
    }
}
