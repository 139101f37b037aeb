//! [`Sender`]: the sending end of a connection.
//!
//! The receiver announces each group of receives by its tags. A message belongs to the first
//! receive of the oldest group that has its tag and no message yet; a message without one is not
//! taken, and the caller tries again. So a message never waits where none is received, and messages
//! of one group may come in any order.

use std::collections::VecDeque;

use crate::abi::{Code, REQUESTS};
use crate::failure::Failure;
use crate::link::{Event, Link, PIECE, RECORDS};
use crate::memory::Registered;
use crate::requests::Requests;
use crate::wire::{Record, GROUP, INSIDE};

/// Receives of the peer that were posted together.
#[derive(Debug)]
struct Group {
    number: u32,
    /// Of receives without a message yet.
    tags: Vec<Option<i32>>,
}

/// A message under way.
#[derive(Debug)]
struct Message {
    size: usize,
    is_sent: bool,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) link: Link,
    groups: VecDeque<Group>,
    messages: Requests<Message>,
}

/// A message to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) at: usize,
    pub(crate) size: usize,
    pub(crate) tag: i32,
    pub(crate) memory: Option<&'a Registered>,
    /// Its bytes, where they travel inside.
    pub(crate) inside: [u8; INSIDE],
}

impl Sender {
    /// The end of a connection that was just made.
    pub(crate) fn new(mut link: Link) -> Result<Sender, Failure> {
        for place in 0..RECORDS as u64 {
            link.receive_record(place)?;
        }
        Ok(Sender {
            link,
            groups: VecDeque::new(),
            messages: Requests::new(REQUESTS * GROUP),
        })
    }

    /// Takes what has come and gone; whether it was anything.
    fn progress(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(event) = self.link.poll()? {
            any = true;
            match event {
                Event::Sent(number) => {
                    if let Some(message) = self.messages.get_mut(number) {
                        message.is_sent = true;
                    }
                }
                Event::Record(record, place) => {
                    self.link.receive_record(place)?;
                    match record {
                        Record::Posted { group, tags } if self.groups.len() < REQUESTS => {
                            self.groups.push_back(Group {
                                number: group,
                                tags: tags.into_iter().map(Some).collect(),
                            });
                        }
                        Record::Ping => {}
                        _ => {
                            return Err(self.link.fail(Code::RemoteError, "it sent a wrong record"))
                        }
                    }
                }
                Event::Received(_) => {}
            }
        }
        Ok(any)
    }

    /// As [`Sender::progress`], with the NIC's work where nothing has happened without it.
    fn advance(&mut self) -> Result<(), Failure> {
        if !self.progress()? {
            self.link.step();
            self.progress()?;
        }
        Ok(())
    }

    /// Sends a message; `None` when no receive waits for it, or too much is under way.
    pub(crate) fn send(&mut self, m: &Outgoing<'_>) -> Result<Option<u64>, Failure> {
        self.progress()?;
        if self.groups.is_empty() {
            self.advance()?;
        }
        let Some(group) = self.groups.front_mut() else {
            self.link.ping()?;
            return Ok(None);
        };
        let index = group.tags.iter().position(|t| *t == Some(m.tag));
        let Some(index) = index.filter(|_| !self.messages.is_full()) else {
            self.advance()?;
            return Ok(None);
        };
        let is_inside = m.size <= INSIDE;
        let pieces = match (is_inside, m.memory) {
            (true, _) => Vec::new(),
            (false, Some(memory)) => memory.cut(m.at, m.size, PIECE)?,
            (false, None) => {
                let text =
                    "a message of more than 24 B needs registered memory; its handle is null";
                return Err(Failure::argument(text));
            }
        };
        if !self.link.has_room(1 + pieces.len()) {
            self.advance()?;
            return Ok(None);
        }
        let message = Message {
            size: m.size,
            is_sent: false,
        };
        let Some(number) = self.messages.insert(message) else {
            return Ok(None);
        };
        let header = Record::Message {
            group: group.number,
            index: index as u8,
            size: m.size as u64,
            inside: m.inside,
        };
        group.tags[index] = None;
        if group.tags.iter().all(Option::is_none) {
            self.groups.pop_front();
        }
        self.link.send_message(&header, &pieces, number)?;
        Ok(Some(number))
    }

    /// The bytes of a message that was sent: its memory is the caller's, and its request ends.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<usize>, Failure> {
        if self.messages.get_mut(number).is_none() {
            return Err(Requests::<Message>::unknown(number));
        }
        let is_sent = |all: &mut Requests<Message>| all.get_mut(number).is_some_and(|m| m.is_sent);
        if !is_sent(&mut self.messages) {
            self.advance()?;
        }
        if !is_sent(&mut self.messages) {
            self.link.ping()?;
            return Ok(None);
        }
        Ok(self.messages.remove(number).map(|m| m.size))
    }

    /// Closes it. Messages that were not tested are given up.
    pub(crate) fn close(&mut self) {
        self.link
            .close(self.messages.len() > 0 && !self.link.has_sent());
    }
}
