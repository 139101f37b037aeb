//! The block `ring` of a card as a NIC drives it: steps, whole messages, events.

use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_nic_core::card as nic;

use crate::card::Card;
use crate::ring::{Piece, Report, Step};
use crate::stream::beats;

/// Steps that the block keeps.
const STEPS: usize = 64;

impl nic::Ring for Card {
    fn most_steps(&self) -> usize {
        STEPS
    }

    fn start(&mut self, steps: &[nic::RingStep], dtype: DataType, op: ReduceOp) {
        let step = |s: &nic::RingStep| Step {
            net_in: s.receives,
            net_out: s.sends,
            read: s.read,
            write: s.write,
            bytes: s.bytes,
        };
        let steps: Vec<Step> = steps.iter().map(step).collect();
        self.ring.messages.by_nic = true;
        self.ring_start(&steps, dtype, op);
    }

    fn give(&mut self, message: Vec<u8>) {
        self.ring_receive(Piece::Message(message.len() as u32));
        for beat in beats(&message) {
            self.ring_receive(Piece::Beat(beat));
        }
        self.wake();
    }

    fn backlog(&self) -> usize {
        let last = |p: &&Piece| matches!(p, Piece::Beat(beat) if beat.last);
        self.ring.pieces_in.iter().filter(last).count()
    }

    fn grant(&mut self, messages: u32) {
        self.ring.messages.room += messages;
        self.wake();
    }

    fn event(&mut self) -> Option<nic::RingEvent> {
        let ring = &mut self.ring;
        ring.messages.take(&mut ring.pieces_out, ring.report);
        ring.messages.events.pop_front()
    }

    fn clear(&mut self) {
        let is_broken = self.ring.report.is_some_and(|r| r != Report::Done);
        if self.ring.running || is_broken {
            self.ring_clear();
        } else {
            self.ring.clear();
        }
    }
}
