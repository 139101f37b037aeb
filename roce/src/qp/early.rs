//! Packets that have come before others, kept by a responder until those come: selective repeat.
//!
//! The standard lets a responder drop them (IBTA vol. 1 §9.7.5.2.8). One lost packet then costs all
//! that were in flight behind it. Two NICs of this kind agree to keep them. The report of what was
//! kept is a NAK for the missing packet, whose payload has a bit for each number behind it: a
//! reader of the standard sees a sequence error.

use ringbell_net::wire::roce::{Bth, Extended, Packet, Psn, REPORT_MAX};

#[derive(Debug, Clone, Copy)]
struct Slot {
    bth: Bth,
    extended: Extended,
    len: usize,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is kept; `gap`: packets before it are missing of which nothing was said yet.
    New { gap: bool },
    /// It had come before.
    Again,
    /// It lies beyond what can be kept.
    TooFar,
}

/// Packets by their numbers, in slots that are used in turn.
#[derive(Debug)]
pub(super) struct Early {
    /// How many slots there are: a power of two, which divides the number of packet numbers.
    count: usize,
    /// Empty until a packet comes early: most connections lose none. Empty again at rest.
    slots: Vec<Option<Slot>>,
    bytes: Vec<u8>,
    mtu: usize,
    /// The last number that is kept; `None`: all slots are free.
    last: Option<Psn>,
}

impl Early {
    /// Room for `packets`, rounded up to a power of two. Memory is allocated with the first that
    /// comes early.
    pub(super) fn new(packets: u32, mtu: u32) -> Early {
        Early {
            count: packets.next_power_of_two() as usize,
            slots: Vec::new(),
            bytes: Vec::new(),
            mtu: mtu as usize,
            last: None,
        }
    }

    /// Bytes of memory in which no packet lies.
    pub(super) fn spare(&self) -> usize {
        match self.last {
            None => self.bytes.capacity(),
            Some(_) => 0,
        }
    }

    /// Gives them back.
    pub(super) fn shrink(&mut self) {
        if self.last.is_none() {
            (self.slots, self.bytes) = (Vec::new(), Vec::new());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    fn index(&self, psn: Psn) -> usize {
        psn.value() as usize & (self.count - 1)
    }

    /// Keeps a packet that comes before the expected one.
    pub(super) fn keep(&mut self, expected: Psn, packet: &Packet<'_>) -> Kept {
        let (psn, len) = (packet.bth.psn, packet.payload.len());
        let ahead = psn.distance(expected);
        if ahead >= self.count as i32 || len > self.mtu {
            return Kept::TooFar;
        }
        if self.slots.is_empty() {
            self.slots = vec![None; self.count];
            self.bytes = vec![0; self.count * self.mtu];
        }
        let index = self.index(psn);
        if self.slots[index].is_some() {
            return Kept::Again;
        }
        self.bytes[index * self.mtu..][..len].copy_from_slice(packet.payload);
        self.slots[index] = Some(Slot {
            bth: packet.bth,
            extended: packet.extended,
            len,
        });
        let before = self.last.unwrap_or(expected.previous());
        let gap = psn.distance(before) > 1;
        if before.is_before(psn) {
            self.last = Some(psn);
        }
        Kept::New { gap }
    }

    /// The packet of this number, if it is kept.
    pub(super) fn get(&self, psn: Psn) -> Option<Packet<'_>> {
        let index = self.index(psn);
        let slot = self.slots.get(index)?.as_ref()?;
        Some(Packet {
            bth: slot.bth,
            extended: slot.extended,
            payload: &self.bytes[index * self.mtu..][..slot.len],
        })
    }

    /// Numbers from `from` up to `to` are done: what is kept of them is let go.
    pub(super) fn pass(&mut self, from: Psn, to: Psn) {
        let Some(last) = self.last else {
            return;
        };
        let n = to.distance(from).max(0).min(self.count as i32) as u32;
        for k in 0..n {
            let index = self.index(from.plus(k));
            self.slots[index] = None;
        }
        if last.is_before(to) {
            self.last = None;
        }
    }

    /// Sets a bit for each number behind `expected` that is kept, in at most `max` bytes. Returns
    /// how many bytes.
    pub(super) fn report(&self, expected: Psn, max: usize, to: &mut [u8; REPORT_MAX]) -> usize {
        let Some(last) = self.last else {
            return 0;
        };
        let room = REPORT_MAX.min(max & !3);
        let bits = last.distance(expected).max(0) as usize;
        let len = bits.div_ceil(32) * 4;
        let to = &mut to[..len.min(room)];
        to.fill(0);
        for bit in 0..bits.min(8 * to.len()) {
            if self.slots[self.index(expected.plus(1 + bit as u32))].is_some() {
                to[bit / 8] |= 1 << (bit % 8);
            }
        }
        to.len()
    }
}
