//! Whole messages to the next NIC in the place of pieces.

use std::collections::VecDeque;

use ringbell_nic_core::card as nic;

use crate::ring::{Piece, Report};

/// Messages to the next NIC, as a NIC takes them.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// A NIC drives the block: pieces are put together here. Else its user takes them one by one.
    pub(crate) by_nic: bool,
    /// Messages for which the NIC has room.
    pub(crate) room: u32,
    /// The message that leaves.
    leaving: Option<Vec<u8>>,
    pub(crate) events: VecDeque<nic::RingEvent>,
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
