//! STREAM_SEND and STREAM_RECV: elements from a kernel's stream to a peer's, or between a stream
//! and memory, without a buffer of their own (ACCL+ §4.1, Listing 2).
//!
//! The elements travel in messages of at most `stream_bytes`, straight out of the one ring and into
//! the other. The sender chooses a message's length: the full one when the kernel is ahead, else
//! the available elements when no message is under way, so that a peer that waits for a single
//! element gets it. The receiver posts one receive at a time, as soon as its ring has room for the
//! longest message. The tag separates messages of one operation from others; a hash detects two
//! that disagree.

use std::collections::VecDeque;

use ringbell_nic_abi::{GpuVa, Status};

use super::combine::Combine;
use super::kernel_stream::{Refusal, StreamEnd};
use super::params::Side;
use super::task::Progress;
use crate::dma::{Dma, ReadStatus};
use crate::link::{Io, Pieces};
use crate::message::{Messages, Own, RecvRequest, SendRequest};
use crate::types::Buffer;

/// Messages of one operation that may be under way.
const IN_FLIGHT: usize = 8;

/// Where the elements are.
#[derive(Debug)]
pub(crate) enum End {
    Memory(Side),
    Stream(StreamEnd),
}

/// What an operation is, and what both ranks must agree on.
#[derive(Debug)]
pub(crate) struct ChannelSpec {
    pub(crate) sends: bool,
    pub(crate) ctx: u64,
    pub(crate) peer: u32,
    /// The peer is this rank.
    pub(crate) own: bool,
    /// The user's tag, with the bits that distinguish streams from messages.
    pub(crate) tag: u64,
    /// Of count and type.
    pub(crate) hash: u32,
    /// Bytes in all.
    pub(crate) total: u64,
    /// Longest message.
    pub(crate) piece: u64,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Channel {
    spec: ChannelSpec,
    end: End,
    /// Bytes that have left, or come.
    moved: u64,
    /// Messages under way: bytes, and whether the peer has them.
    sending: VecDeque<(u64, bool)>,
    /// Number of the oldest of them.
    oldest: u32,
    /// The receive that is posted.
    receiving: Option<u32>,
    /// The message of this rank's own that has met it.
    own: Option<OwnPiece>,
}

/// A message from one stream of this rank to another.
#[derive(Debug)]
struct OwnPiece {
    pass: Combine,
    len: u64,
    /// Of the sender's message.
    send: u64,
}

impl Channel {
    pub(crate) fn new(spec: ChannelSpec, end: End) -> Channel {
        Channel {
            spec,
            end,
            moved: 0,
            sending: VecDeque::new(),
            oldest: 0,
            receiving: None,
            own: None,
        }
    }

    /// Whether both ends are this rank's, which is the peer then.
    pub(crate) fn is_own(&self) -> bool {
        self.spec.own
    }

    /// Whether the other end is of as many elements, of the same type.
    pub(crate) fn agrees(&self, with: &Channel) -> bool {
        self.spec.hash == with.spec.hash
    }

    /// A message of this rank's own has met the receive: `run` copies it.
    pub(crate) fn copy_own(&mut self, own: Own) {
        self.own = Some(OwnPiece {
            len: own.from.len(),
            send: own.send,
            pass: Combine::copy(own.from, own.to),
        });
    }

    /// Copies on. `false`: memory is not ready.
    fn run_own(&mut self, messages: &mut Messages, io: &mut Io<'_>) -> Result<bool, Refusal> {
        let Some(own) = &mut self.own else {
            return Ok(true);
        };
        let mut all = own.len;
        match own.pass.run(&mut io.dma(), &mut all) {
            Ok(ReadStatus::Pending) => Ok(false),
            Ok(ReadStatus::Done) => {
                let (len, send) = (own.len, own.send);
                self.own = None;
                messages.own_is_copied(send);
                self.received(&mut io.dma(), len)?;
                Ok(true)
            }
            Err(fault) => Err(fault.status()),
        }
    }

    /// Whether its messages could be confused with another's.
    pub(crate) fn is_between(&self, sends: bool, peer: u32, tag: u64) -> bool {
        (self.spec.sends, self.spec.peer, self.spec.tag) == (sends, peer, tag)
    }

    /// Whether it cannot end without that rank. A receiver can, once all that it lacks has come
    /// before its receives.
    pub(crate) fn needs(&self, messages: &Messages, rank: u32) -> bool {
        let s = &self.spec;
        let here = || self.moved + messages.early_bytes(s.ctx, s.peer, s.tag);
        s.peer == rank && (s.sends || here() < s.total)
    }

    /// The kernel has moved since it was last asked.
    pub(crate) fn has_news(&self, dma: &mut Dma<'_>) -> bool {
        match &self.end {
            End::Memory(_) => false,
            End::Stream(s) => s.has_news(dma),
        }
    }

    /// Whether the next move is the kernel's.
    pub(crate) fn waits_for_kernel(&self) -> bool {
        let turn = match self.spec.sends {
            true => self.sending.len() < IN_FLIGHT,
            false => self.receiving.is_none(),
        };
        turn && matches!(self.end, End::Stream(_))
    }

    fn ready(&mut self, dma: &mut Dma<'_>) -> Result<u64, Refusal> {
        match &mut self.end {
            End::Memory(_) => Ok(self.spec.total - self.moved),
            End::Stream(s) => s.ready(dma),
        }
    }

    fn pieces(&self, skip: u64, len: u64) -> Pieces {
        match &self.end {
            End::Memory(side) => Pieces::one(Buffer {
                region: side.region,
                va: GpuVa(side.va + self.moved + skip),
                len: len as u32,
            }),
            End::Stream(s) => s.pieces(skip, len),
        }
    }

    fn advance(&mut self, dma: &mut Dma<'_>, len: u64) -> Result<(), Refusal> {
        self.moved += len;
        match &mut self.end {
            End::Memory(_) => Ok(()),
            End::Stream(s) => s.advance(dma, len),
        }
    }

    /// Proceeds as far as possible. `id` is the operation's number.
    pub(crate) fn run(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<Progress, Refusal> {
        if self.spec.sends {
            self.send(id, messages, io)
        } else {
            self.receive(id, messages, io)
        }
    }

    fn send(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<Progress, Refusal> {
        // Room is given back in the order of the ring.
        while let Some((len, true)) = self.sending.front().copied() {
            self.sending.pop_front();
            self.oldest = self.oldest.wrapping_add(1);
            self.advance(&mut io.dma(), len)?;
        }
        let ChannelSpec { total, piece, .. } = self.spec;
        while self.sending.len() < IN_FLIGHT {
            let under_way: u64 = self.sending.iter().map(|s| s.0).sum();
            let left = total - self.moved - under_way;
            let ready = self.ready(&mut io.dma())?.saturating_sub(under_way);
            let len = ready.min(left).min(piece);
            let whole = len == piece || len == left;
            if len == 0 || (!whole && under_way > 0) {
                break;
            }
            let number = self.oldest.wrapping_add(self.sending.len() as u32);
            let request = SendRequest {
                ctx: self.spec.ctx,
                to: self.spec.peer,
                tag: self.spec.tag,
                hash: self.spec.hash,
                pieces: self.pieces(under_way, len),
                when_met: false,
                key: key(id, number),
            };
            match self.spec.own {
                true => messages.send_own(request),
                false => messages.send(request),
            }
            self.sending.push_back((len, false));
        }
        Ok(if self.moved == total {
            Progress::Done
        } else {
            Progress::Waits
        })
    }

    fn receive(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<Progress, Refusal> {
        if !self.run_own(messages, io)? {
            return Ok(Progress::More);
        }
        if self.moved == self.spec.total {
            return Ok(Progress::Done);
        }
        let want = (self.spec.total - self.moved).min(self.spec.piece);
        if self.receiving.is_some() || self.ready(&mut io.dma())? < want {
            return Ok(Progress::Waits);
        }
        let request = RecvRequest {
            ctx: self.spec.ctx,
            from: Some(self.spec.peer),
            tag: Some(self.spec.tag),
            hash: self.spec.hash,
            pieces: self.pieces(0, want),
            in_use: false,
            key: key(id, 0),
        };
        self.receiving = messages.recv(io, request);
        match self.receiving {
            Some(_) => Ok(Progress::Waits),
            None => Err((Status::NoResources, 1 << 18)),
        }
    }

    /// The peer has a message.
    pub(crate) fn sent(&mut self, key: u64) {
        let number = (key as u32).wrapping_sub(self.oldest) as usize;
        if let Some(s) = self.sending.get_mut(number) {
            s.1 = true;
        }
    }

    /// A message is in the ring.
    pub(crate) fn received(&mut self, dma: &mut Dma<'_>, len: u64) -> Result<(), Refusal> {
        self.receiving = None;
        self.advance(dma, len)
    }

    /// Cancels it, if no message of it has passed in either direction.
    pub(crate) fn take_back(&mut self, id: u32, messages: &mut Messages) -> bool {
        if self.moved > 0 || self.own.is_some() {
            return false;
        }
        match (self.receiving, self.sending.len()) {
            (Some(recv), _) => messages.cancel_recv(recv),
            (None, 0) => true,
            (None, 1) => {
                let key = key(id, self.oldest);
                // One of this rank's own that has met its receive is being copied.
                let copied = self.spec.own && !messages.has_send(key);
                !self.sending[0].1 && !copied && messages.cancel_send(key)
            }
            _ => false,
        }
    }
}

/// The number that a message's event carries: operation and message.
fn key(op: u32, number: u32) -> u64 {
    u64::from(op) << 32 | u64::from(number)
}
