//! Operations with kernels' streams: which of them may begin, and STREAM_SEND and STREAM_RECV from
//! their start to their end.

use ringbell_nic_abi::Status;

use super::channel::{Channel, ChannelSpec, End};
use super::communicator::Comm;
use super::kernel_stream;
use super::messages::MessagePath;
use super::params::fold;
use super::table::{Active, State, Table};
use super::task::Progress;
use super::{ChannelTask, Task};
use crate::link::Io;
use crate::message::{Messages, STREAM_TAG, USER_TAG};

/// Whether an operation under way needs a rank although it waits for no message: its kernel is
/// slow, or takes nothing more.
pub(super) fn streams_need(table: &Table, messages: &Messages, c: &Comm, rank: u32) -> bool {
    let needs = |id: &u32| match table.ops.get(*id).map(|a| &a.state) {
        Some(State::Channel(c)) => c.needs(messages, rank),
        _ => false,
    };
    c.active.iter().any(needs)
}

/// Whether another operation has a stream of this one, or is between the same two ranks with the
/// same tag: messages would mix.
pub(super) fn are_taken(table: &Table, slot: u32, id: u32) -> bool {
    let (Some(a), Some(c)) = (table.ops.get(id), table.comm(slot)) else {
        return false;
    };
    let mixes = |t: &ChannelTask, id: &u32| match table.ops.get(*id).map(|a| &a.state) {
        Some(State::Channel(c)) => c.is_between(t.sends, t.peer, tag_of(t.tag)),
        _ => false,
    };
    table.streams.are_taken(a.streams())
        || matches!(&a.task, Task::Channel(t) if c.active.iter().any(|id| mixes(t, id)))
}

impl MessagePath {
    pub(super) fn start_channel(
        &mut self,
        table: &mut Table,
        io: &mut Io<'_>,
        slot: u32,
        id: u32,
        t: ChannelTask,
    ) {
        let streams = table.ops.get(id).map_or([None; 2], Active::streams);
        let end = match kernel_stream::open(io, streams) {
            Ok([Some(end), _] | [None, Some(end)]) => End::Stream(end),
            Ok([None, None]) => End::Memory(t.side),
            Err((status, detail)) => return table.finish(slot, id, status, 0, detail),
        };
        table.streams.take(id, streams);
        let Some((c, a)) = table.both(slot, id) else {
            return;
        };
        let (dtype, count) = t.elements;
        let spec = ChannelSpec {
            sends: t.sends,
            ctx: c.ctx,
            peer: t.peer,
            own: t.peer == c.rank,
            tag: tag_of(t.tag),
            hash: fold([count, dtype.code().into()]).max(1),
            total: count * dtype.bytes(),
            piece: c.settings.stream_bytes,
        };
        a.bytes = spec.total;
        a.state = State::Channel(Box::new(Channel::new(spec, end)));
        c.active.push(id);
        table.wake(id);
    }

    pub(super) fn run_channel(&mut self, table: &mut Table, io: &mut Io<'_>, id: u32) {
        let Some(a) = table.ops.get_mut(id) else {
            return;
        };
        let State::Channel(c) = &mut a.state else {
            return;
        };
        let (slot, bytes) = (a.comm, a.bytes);
        let own = c.is_own();
        match c.run(id, &mut self.groups.messages, io) {
            Ok(Progress::Done) => table.finish(slot, id, Status::Ok, bytes, 0),
            Ok(Progress::More) => table.wake(id),
            Ok(Progress::Waits) => {
                if c.waits_for_kernel() {
                    table.streams.watch(id);
                }
            }
            Err((status, detail)) => self.channel_fails(table, id, status, detail),
        }
        if own {
            self.copy_own(table);
        }
    }

    /// A channel cannot proceed. When the peer may have seen it already, both ranks are notified.
    pub(super) fn channel_fails(
        &mut self,
        table: &mut Table,
        id: u32,
        status: Status,
        detail: u64,
    ) {
        let Some(a) = table.ops.get_mut(id) else {
            return;
        };
        let slot = a.comm;
        a.call.own_end = Some((status, detail));
        let State::Channel(c) = &mut a.state else {
            return;
        };
        if status != Status::Mismatch && c.take_back(id, &mut self.groups.messages) {
            return table.finish(slot, id, status, 0, detail);
        }
        let (rank, _) = table.shape_of(slot);
        match status {
            // The other rank is named, as far as this one can determine.
            Status::Mismatch => table.end(slot, detail as u32, status),
            _ => table.end(slot, rank, Status::CommAborted),
        }
    }
}

/// The tag of a stream's messages.
fn tag_of(tag: u32) -> u64 {
    USER_TAG | STREAM_TAG | u64::from(tag)
}
