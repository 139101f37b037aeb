//! The block `ring` of a card for a NIC: whole messages to and from the neighbours in the place of
//! pieces.

use std::collections::VecDeque;

use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_nic_core::card as nic;

use crate::card::Card;
use crate::ring::{Piece, Report, Step};
use crate::stream::beats;

/// Steps that the block keeps.
const STEPS: usize = 64;

/// Messages to the next NIC, as a NIC takes them.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// A NIC drives the block: pieces are put together here. Else its user takes them one by one.
    by_nic: bool,
    /// Messages for which the NIC has room.
    room: u32,
    /// The message that leaves.
    leaving: Option<Vec<u8>>,
    events: VecDeque<nic::RingEvent>,
    /// The report is among the events.
    told: bool,
}

impl Messages {
    /// Steps are started.
    pub(crate) fn begin(&mut self) {
        self.told = false;
    }

    /// Puts the pieces that have left together, as far as there is room, and the report behind the
    /// last of them.
    pub(crate) fn take(&mut self, pieces: &mut VecDeque<Piece>, report: Option<Report>) {
        if !self.by_nic {
            return;
        }
        while let Some(piece) = pieces.front() {
            match (piece, &mut self.leaving) {
                (Piece::Message(len), None) if self.room > 0 => {
                    self.room -= 1;
                    self.leaving = Some(Vec::with_capacity(*len as usize));
                }
                (Piece::Beat(beat), Some(message)) => {
                    message.extend(beat.bytes());
                    if beat.last {
                        let message = self.leaving.take().unwrap_or_default();
                        self.events.push_back(nic::RingEvent::Sent(message));
                    }
                }
                _ => break,
            }
            pieces.pop_front();
        }
        let Some(report) = report.filter(|_| !self.told) else {
            return;
        };
        if report != Report::Done || pieces.is_empty() {
            self.told = true;
            self.events.push_back(nic::RingEvent::Ended(match report {
                Report::Done => nic::RingEnd::Done,
                Report::Late => nic::RingEnd::Late,
                Report::Length => nic::RingEnd::Length,
                Report::Type => nic::RingEnd::Type,
                Report::Fault(va) => nic::RingEnd::Fault(va),
            }));
        }
    }
}

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
