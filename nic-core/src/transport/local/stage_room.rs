//! Room of one connection in NIC memory: the pieces of payloads that its peer copies out of there.

use std::collections::VecDeque;

use crate::dma::{DmaAccess, StageRoom};

/// A piece is not cut shorter than this because room is scarce: acknowledgements make more.
pub(super) const SHORTEST: u32 = 4096;

/// Rooms that wait for their next connection before the rest goes back to NIC memory.
const SPARE_ROOMS: usize = 8;

/// Room in NIC memory that no connection uses, and the numbers of reads that fill such room.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    pub(super) spare: Vec<StageRoom>,
    /// Last number given to a read.
    pub(super) tickets: u64,
}

impl Rooms {
    /// Gives back what is unlikely to be used soon.
    #[inline]
    pub(super) fn trim(&mut self, dma: &mut dyn DmaAccess) {
        while self.spare.len() > SPARE_ROOMS {
            if let (Some(dma), Some(room)) = (dma.peers(), self.spare.pop()) {
                dma.stage_give(room);
            }
        }
    }
}

/// A piece of a payload in NIC memory.
#[derive(Debug)]
pub(super) struct Piece {
    /// Where it lies in the room.
    pub(super) at: u32,
    pub(super) len: u32,
    /// Where it lies in the payload.
    pub(super) offset: u32,
    /// Names its read: a cancelled read of the same bytes must not answer for this one.
    pub(super) ticket: u64,
    pub(super) filled: bool,
    /// Its place among the spans of the connection, once it was announced.
    pub(super) span: Option<u64>,
}

/// What a connection has in NIC memory.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) room: StageRoom,
    /// Where the next piece goes.
    head: u32,
    used: u32,
    /// Oldest first; announced ones before those that are still being filled.
    pub(super) pieces: VecDeque<Piece>,
}

impl Stage {
    pub(super) fn new(room: StageRoom) -> Stage {
        Stage {
            room,
            head: 0,
            used: 0,
            pieces: VecDeque::new(),
        }
    }

    /// The room, for the next connection.
    pub(super) fn into_room(self) -> StageRoom {
        self.room
    }

    /// Gives up what was not announced: its send has ended.
    pub(super) fn drop_unsent(&mut self) {
        while self.pieces.back().is_some_and(|p| p.span.is_none()) {
            if let Some(p) = self.pieces.pop_back() {
                self.used -= p.len;
                self.head = p.at;
            }
        }
    }

    /// Recycles what the peer has taken. Returns whether nothing is left.
    pub(super) fn recycle(&mut self, acked: u64) -> bool {
        let taken = |p: &Piece| p.span.is_some_and(|span| span <= acked);
        while self.pieces.front().is_some_and(taken) {
            self.used -= self.pieces.pop_front().map_or(0, |p| p.len);
        }
        self.pieces.is_empty()
    }

    /// Finds room for up to `want` bytes from `offset` of a payload.
    pub(super) fn reserve(
        &mut self,
        offset: u32,
        want: u32,
        chunk: u32,
        tickets: &mut u64,
    ) -> Option<u32> {
        if self.used == 0 {
            // Warm lines first.
            self.head = 0;
        }
        let want = want.min(chunk);
        let free = self.room.len - self.used;
        if free == 0 || (free < want && free < SHORTEST) {
            return None;
        }
        let len = want.min(free).min(self.room.len - self.head);
        *tickets += 1;
        self.pieces.push_back(Piece {
            at: self.head,
            len,
            offset,
            ticket: *tickets,
            filled: false,
            span: None,
        });
        self.head = (self.head + len) % self.room.len;
        self.used += len;
        Some(len)
    }
}
