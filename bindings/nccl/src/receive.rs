//! [`Receiver`]: the receiving end of a connection.
#![allow(unsafe_code)] // Copies short messages to the program's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use ringbell::abi::Status;
use ringbell::comm::MessageId;
use ringbell::HostBuffer;

use crate::abi::{Code, REQUESTS};
use crate::failure::Failure;
use crate::memory::Registered;
use crate::peer::{Ended, Peer};
use crate::requests::Requests;
use crate::wire::INSIDE;

/// One receive of a group.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) at: *mut u8,
    pub(crate) room: usize,
    pub(crate) tag: i32,
    pub(crate) memory: Option<Arc<Registered>>,
    /// Where a short message comes to lie whose memory is not registered.
    short: Option<HostBuffer>,
    /// Bytes of its message, when it is in place.
    size: Option<usize>,
}

// SAFETY: the program's memory is the plug-in's from the call on until the request has ended.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(crate) fn new(
        at: *mut u8,
        room: usize,
        tag: i32,
        memory: Option<Arc<Registered>>,
    ) -> Incoming {
        Incoming {
            at,
            room,
            tag,
            memory,
            short: None,
            size: None,
        }
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) peer: Peer,
    /// Receives that were posted together.
    groups: Requests<Vec<Incoming>>,
    /// What the NIC has, oldest first: requests, and places in their groups.
    posted: VecDeque<(MessageId, u64, usize)>,
}

impl Receiver {
    /// The end of a connection that was just made.
    pub(crate) fn new(peer: Peer) -> Receiver {
        Receiver {
            peer,
            groups: Requests::new(REQUESTS),
            posted: VecDeque::new(),
        }
    }

    /// Posts receives; `None` when too many are under way.
    pub(crate) fn receive(&mut self, mut receives: Vec<Incoming>) -> Result<Option<u64>, Failure> {
        self.peer.check()?;
        if self.groups.is_full() {
            self.advance()?;
            return Ok(None);
        }
        // All of them, before any is posted.
        let mut spans = Vec::with_capacity(receives.len());
        for r in &mut receives {
            spans.push(match &r.memory {
                Some(memory) if r.room > 0 => memory.cut(r.at.addr(), r.room)?,
                _ if r.room == 0 => Vec::new(),
                _ => {
                    let bytes = r.room.min(INSIDE);
                    let made = self.peer.device.nic.adopt_host(vec![0; bytes]);
                    let made =
                        made.map_err(|e| Failure::system("no memory for a short message", &e))?;
                    let va = made.va();
                    r.short = Some(made);
                    vec![(va, bytes as u64)]
                }
            });
        }
        let tags: Vec<i32> = receives.iter().map(|r| r.tag).collect();
        let Some(number) = self.groups.insert(receives) else {
            return Ok(None);
        };
        for (place, (tag, spans)) in tags.into_iter().zip(&spans).enumerate() {
            let id = self.peer.receive(tag, spans)?;
            self.posted.push_back((id, number, place));
        }
        Ok(Some(number))
    }

    fn on_end(&mut self, ended: &Ended) -> Result<(), Failure> {
        let oldest = self.posted.iter().position(|(id, ..)| *id == ended.id);
        let Some((_, number, place)) = oldest.and_then(|p| self.posted.remove(p)) else {
            return Ok(());
        };
        let Some(r) = self.groups.get_mut(number).and_then(|g| g.get_mut(place)) else {
            return Ok(());
        };
        let size = ended.bytes as usize;
        match ended.status {
            Status::Ok => {}
            Status::MessageTooLarge => {
                let text = match r.short {
                    Some(_) if size <= r.room => {
                        "a receive of more than 24 B needs registered memory; its handle is null"
                            .to_owned()
                    }
                    _ => format!(
                        "it sent {size} B with tag {}, and the receive has room for {}",
                        r.tag, r.room
                    ),
                };
                return Err(self.peer.fail(Code::InvalidUsage, &text));
            }
            status => return Err(self.peer.failed("a receive", status)),
        }
        r.size = Some(size);
        if let Some(short) = &r.short {
            let mut bytes = [0; INSIDE];
            let read = short.read(0, &mut bytes[..size]);
            read.map_err(|e| Failure::system("cannot read a short message", &e))?;
            // SAFETY: the program's memory of at least so many bytes, which is the plug-in's until
            // the request has ended.
            unsafe { r.at.copy_from_nonoverlapping(bytes.as_ptr(), size) };
        }
        Ok(())
    }

    /// Takes what has come, with work of the NIC where nothing has without it.
    fn advance(&mut self) -> Result<(), Failure> {
        let mut next = self.peer.poll()?;
        while let Some(ended) = next {
            self.on_end(&ended)?;
            next = self.peer.look()?;
        }
        Ok(())
    }

    /// The bytes of each message of a group that is complete; its request ends.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<Vec<usize>>, Failure> {
        let is_done = |group: &Vec<Incoming>| group.iter().all(|r| r.size.is_some());
        let group = self.groups.get_mut(number);
        let group = group.ok_or_else(|| Requests::<Vec<Incoming>>::unknown(number))?;
        if !is_done(group) {
            self.advance()?;
        }
        if !self.groups.get_mut(number).is_some_and(|g| is_done(g)) {
            return Ok(None);
        }
        let group = self.groups.remove(number);
        Ok(group.map(|g| g.iter().filter_map(|r| r.size).collect()))
    }

    /// Closes it. Receives that are not complete are given up.
    pub(crate) fn close(&mut self) {
        if !self.peer.close(!self.posted.is_empty()) {
            // The NIC may still write there.
            std::mem::forget(std::mem::replace(&mut self.groups, Requests::new(0)));
        }
    }
}
