//! Messages of a rank to itself: one pass over its memory ends both operations.

use ringbell_nic_abi::Status;

use super::combine::Combine;
use super::executor;
use super::table::{State, Table};
use super::task::OwnCopy;
use crate::dma::ReadStatus;
use crate::link::{Io, Pieces};
use crate::message::Own;

/// Whether two messages share bytes.
fn overlap(a: &Pieces, b: &Pieces) -> bool {
    let meets = |x: &crate::types::Buffer, y: &crate::types::Buffer| {
        x.va.0 < y.va.0 + u64::from(y.len) && y.va.0 < x.va.0 + u64::from(x.len)
    };
    a.iter().any(|x| b.iter().any(|y| meets(x, y)))
}

impl Table {
    /// Starts the copy of a matched message.
    pub(super) fn begin_own(&mut self, own: Own) {
        let (sender, receiver) = (executor::op_of(own.send), executor::op_of(own.recv));
        let own = match self.begin_own_piece(sender, receiver, own) {
            Some(own) => own,
            None => return,
        };
        let len = own.from.len();
        let apart = !overlap(&own.from, &own.to);
        let copy = OwnCopy {
            pass: Combine::copy(own.from, own.to),
            sender,
            len,
            detail: u64::from(own.rank) << 32 | (own.tag & 0xffff_ffff),
        };
        if let Some(a) = self.ops.get_mut(sender) {
            a.state = State::ToItself(receiver);
        }
        let Some(a) = self.ops.get_mut(receiver) else {
            return;
        };
        let slot = a.comm;
        a.state = State::FromItself(Box::new(copy));
        match apart {
            true => self.wake(receiver),
            false => self.end_own(slot, receiver, sender, Status::InvalidArgument, 0),
        }
    }

    /// A message from one stream of this rank to another: its receiver copies it. Gives
    /// back what is none.
    fn begin_own_piece(&mut self, sender: u32, receiver: u32, own: Own) -> Option<Own> {
        let state = |id| self.ops.get(id).map(|a| (a.comm, &a.state));
        let (Some((slot, State::Channel(from))), Some((_, State::Channel(to)))) =
            (state(sender), state(receiver))
        else {
            return Some(own);
        };
        if !from.agrees(to) {
            self.end(slot, own.rank, Status::Mismatch);
            return None;
        }
        if let Some(State::Channel(c)) = self.ops.get_mut(receiver).map(|a| &mut a.state) {
            c.copy_own(own);
        }
        self.wake(receiver);
        None
    }

    /// Copies on.
    pub(super) fn run_own(&mut self, io: &mut Io<'_>, id: u32, budget: &mut u64) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        let slot = a.comm;
        let State::FromItself(copy) = &mut a.state else {
            return;
        };
        let (sender, len, detail) = (copy.sender, copy.len, copy.detail);
        match copy.pass.run(&mut io.dma(), budget) {
            Ok(ReadStatus::Pending) => self.wake(id),
            Ok(ReadStatus::Done) => {
                self.finish(slot, sender, Status::Ok, len, 0);
                self.complete(slot, id, len, detail);
            }
            Err(fault) => {
                let (status, detail) = fault.status();
                self.end_own(slot, id, sender, status, detail);
            }
        }
    }

    fn end_own(&mut self, slot: u32, receiver: u32, sender: u32, status: Status, detail: u64) {
        for id in [sender, receiver] {
            self.finish(slot, id, status, 0, detail);
        }
    }
}
