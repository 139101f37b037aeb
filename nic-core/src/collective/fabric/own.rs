//! Messages of a rank to itself: matched like those of other ranks, but sent over no link.
//!
//! A message that has met its receive is reported with the memory of both; the engine copies it.

use ringbell_nic_abi::Status;

use super::group::{Early, EarlyKind, MAX_EARLY};
use super::{Fabric, FabricEvent, Pieces, SendRequest, Sending};

/// A message to this rank and the receive that it has met.
#[derive(Debug)]
pub(crate) struct Own {
    /// Keys of both.
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) from: Pieces,
    pub(crate) to: Pieces,
    pub(crate) rank: u32,
    pub(crate) tag: u64,
}

impl Fabric {
    /// The next message to this rank that is to be copied.
    pub(crate) fn take_own(&mut self) -> Option<Own> {
        self.own.pop_front()
    }

    /// Sends a user message to this rank itself.
    pub(crate) fn send_own(&mut self, r: SendRequest) {
        let Some(g) = self.groups.get_mut(&r.ctx) else {
            return;
        };
        let (from, len) = (g.rank, r.pieces.len());
        let sending = Sending {
            ctx: r.ctx,
            to: from,
            pieces: r.pieces,
            key: r.key,
            user: true,
            cleared: false,
            left: false,
            taken: false,
        };
        let Some(send) = self.sends.insert(sending) else {
            return self.full(r.key);
        };
        if let Some(recv) = g.take_posted(from, r.tag, true) {
            return self.meet_own(recv, send, from, r.tag);
        }
        let early = Early {
            ctx: r.ctx,
            from,
            tag: r.tag,
            len,
            hash: 0,
            send,
            kind: EarlyKind::Own,
            claimed: None,
        };
        let m = &mut g.members[from as usize];
        let room = m.early < MAX_EARLY;
        let Some(id) = room.then(|| self.earlies.insert(early)).flatten() else {
            self.sends.remove(send);
            return self.full(r.key);
        };
        m.early += 1;
        g.counts.unexpected += 1;
        g.user_early.push_back(id);
    }

    fn full(&mut self, key: u64) {
        self.events.push_back(FabricEvent::Sent {
            key,
            status: Status::NoResources,
            detail: 1 << 18,
        });
    }

    pub(super) fn meet_own(&mut self, recv: u32, send: u32, rank: u32, tag: u64) {
        let (Some(s), Some(r)) = (self.sends.remove(send), self.recvs.remove(recv)) else {
            return;
        };
        let (len, room) = (s.pieces.len(), r.pieces.len());
        if len <= room {
            return self.own.push_back(Own {
                send: s.key,
                recv: r.key,
                to: r.pieces.prefix(len),
                from: s.pieces,
                rank,
                tag,
            });
        }
        let status = Status::MessageTooLarge;
        self.events.push_back(FabricEvent::Received {
            key: r.key,
            status,
            from: rank,
            len: 0,
            detail: len,
        });
        self.events.push_back(FabricEvent::Sent {
            key: s.key,
            status,
            detail: len,
        });
    }

    /// Cancels a message to this rank that has met no receive.
    pub(super) fn cancel_own(&mut self, ctx: u64, send: u32) {
        let of = |e: &Early| e.ctx == ctx && e.kind == EarlyKind::Own && e.send == send;
        for id in self.earlies.ids(of) {
            self.earlies.remove(id);
            if let Some(g) = self.groups.get_mut(&ctx) {
                let rank = g.rank as usize;
                g.members[rank].early -= 1;
                g.user_early.retain(|e| *e != id);
            }
        }
        self.sends.remove(send);
    }
}
