//! [`Receiver`]: the receiving end of a connection.
#![allow(unsafe_code)] // Copies short messages to the program's memory.

use std::collections::VecDeque;

use crate::abi::{Code, REQUESTS};
use crate::failure::Failure;
use crate::link::{Event, Link, PIECE};
use crate::memory::Registered;
use crate::requests::Requests;
use crate::wire::{Record, GROUP, INSIDE};

/// One receive of a group.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) at: *mut u8,
    pub(crate) room: usize,
    pub(crate) tag: i32,
    pub(crate) memory: Option<std::sync::Arc<Registered>>,
    /// Bytes of its message, when its header has come.
    size: Option<usize>,
}

// SAFETY: the program's memory is the plug-in's from the call on until the request has ended.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(crate) fn new(
        at: *mut u8,
        room: usize,
        tag: i32,
        memory: Option<std::sync::Arc<Registered>>,
    ) -> Incoming {
        Incoming {
            at,
            room,
            tag,
            memory,
            size: None,
        }
    }
}

/// Receives that were posted together.
#[derive(Debug)]
struct Group {
    receives: Vec<Incoming>,
    /// Messages that are not in place yet.
    missing: usize,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) link: Link,
    groups: Requests<Group>,
    /// Requests by the number that the sender knows, from `first` on.
    order: VecDeque<u64>,
    first: u32,
}

impl Receiver {
    /// The end of a connection whose first record was received.
    pub(crate) fn new(mut link: Link) -> Result<Receiver, Failure> {
        link.receive_record(0)?;
        Ok(Receiver {
            link,
            groups: Requests::new(REQUESTS),
            order: VecDeque::new(),
            first: 0,
        })
    }

    /// Posts receives; `None` when too many are under way.
    pub(crate) fn receive(&mut self, receives: Vec<Incoming>) -> Result<Option<u64>, Failure> {
        self.progress()?;
        debug_assert!((1..=GROUP).contains(&receives.len()));
        if self.groups.is_full() || !self.link.has_room(1) {
            self.advance()?;
            return Ok(None);
        }
        for r in &receives {
            if let (Some(memory), true) = (&r.memory, r.room > 0) {
                memory.cut(r.at.addr(), r.room, PIECE)?;
            }
        }
        let tags = receives.iter().map(|r| r.tag).collect();
        let missing = receives.len();
        let Some(number) = self.groups.insert(Group { receives, missing }) else {
            return Ok(None);
        };
        let group = self.first.wrapping_add(self.order.len() as u32);
        self.order.push_back(number);
        self.link.send(&Record::Posted { group, tags })?;
        Ok(Some(number))
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(event) = self.link.poll()? {
            any = true;
            match event {
                Event::Record(Record::Ping, place) => self.link.receive_record(place)?,
                Event::Record(
                    Record::Message {
                        group,
                        index,
                        size,
                        inside,
                    },
                    place,
                ) => {
                    self.begin(group, index, size, &inside)?;
                    self.link.receive_record(place)?;
                }
                Event::Record(..) => {
                    return Err(self.link.fail(Code::RemoteError, "it sent a wrong record"))
                }
                Event::Received(number) => self.arrived(number),
                Event::Sent(_) => {}
            }
        }
        Ok(any)
    }

    fn advance(&mut self) -> Result<(), Failure> {
        if !self.progress()? {
            self.link.step();
            self.progress()?;
        }
        Ok(())
    }

    /// A message's header has come.
    fn begin(
        &mut self,
        group: u32,
        index: u8,
        size: u64,
        inside: &[u8; INSIDE],
    ) -> Result<(), Failure> {
        let place = group.wrapping_sub(self.first) as usize;
        let number = self.order.get(place).copied();
        let found = number.and_then(|n| self.groups.get_mut(n));
        let found = found.and_then(|g| g.receives.get_mut(usize::from(index)));
        let (Some(number), Some(r)) = (number, found.filter(|r| r.size.is_none())) else {
            let text = "it sent a message for which no receive is posted";
            return Err(self.link.fail(Code::RemoteError, text));
        };
        if size > r.room as u64 {
            let text = format!(
                "it sent {size} B with tag {}, and the receive has room for {}",
                r.tag, r.room
            );
            return Err(self.link.fail(Code::InvalidUsage, &text));
        }
        let size = size as usize;
        r.size = Some(size);
        if size <= INSIDE {
            // SAFETY: the program's memory of at least so many bytes (checked), which is the
            // plug-in's until the request has ended.
            unsafe { r.at.copy_from_nonoverlapping(inside.as_ptr(), size) };
            self.arrived(number);
            return Ok(());
        }
        let Some(memory) = &r.memory else {
            let text = "a receive of more than 24 B needs registered memory; its handle is null";
            return Err(self.link.fail(Code::InvalidArgument, text));
        };
        let pieces = memory.cut(r.at.addr(), size, PIECE)?;
        self.link.receive(&pieces, number)
    }

    /// A message of a request is in place.
    fn arrived(&mut self, number: u64) {
        if let Some(group) = self.groups.get_mut(number) {
            group.missing -= 1;
        }
        // The sender fills the groups in their order, and names none that is full again.
        while let Some(number) = self.order.front() {
            let is_full = self
                .groups
                .get_mut(*number)
                .is_none_or(|g| g.receives.iter().all(|r| r.size.is_some()));
            if !is_full {
                break;
            }
            self.order.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// The bytes of each message of a group that is complete; its request ends.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<Vec<usize>>, Failure> {
        if self.groups.get_mut(number).is_none() {
            return Err(Requests::<Group>::unknown(number));
        }
        let is_done =
            |all: &mut Requests<Group>| all.get_mut(number).is_some_and(|g| g.missing == 0);
        if !is_done(&mut self.groups) {
            self.advance()?;
        }
        if !is_done(&mut self.groups) {
            self.link.ping()?;
            return Ok(None);
        }
        let group = self.groups.remove(number);
        Ok(group.map(|g| g.receives.iter().filter_map(|r| r.size).collect()))
    }

    /// Closes it. Receives that are not complete are given up.
    pub(crate) fn close(&mut self) {
        self.link.close(self.groups.len() > 0);
    }
}
