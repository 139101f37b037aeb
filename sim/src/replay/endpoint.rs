//! A rank's messages: operations of its host that its NIC has, and those that wait for it.
//!
//! The NIC matches them in an inbox, as those of MPI. A short message is copied, and its send has
//! ended when the NIC has the copy. A longer one leaves from the host's memory, and its send ends
//! when the receiver has it. Bytes that are at the receiver when it meets the message are read from
//! there; all others are given memory, to which they come from their sender.

use std::collections::{HashMap, VecDeque};

use ringbell_nic_abi::Status;
use ringbell_nic_core::collective::{Found, MessageError, MessageEvent, MessageId, Wants};
use ringbell_nic_core::Inbox;

use super::collectives::Collectives;
use super::contents::{source_at, Ledger, Over, Sent};
use super::room::Room;
use crate::goal::{Op, Work};
use crate::node::{Memory, Node};

/// The longest message that is copied.
pub(super) const SHORT: u64 = 64 << 10;

/// How the NIC's part of an operation goes on.
#[derive(Debug)]
enum Pending {
    /// Whether the host was told of its end already.
    Send { op: u32, is_told: bool },
    /// It has met no message.
    Receive(u32),
    /// It has met one whose bytes are at the sender.
    Met(u32, Found, Option<Sent>),
    /// They are coming to this place.
    Arriving(u32, Found, Option<Sent>, u64),
}

/// A rank's messages.
pub(super) struct Endpoint {
    rank: usize,
    seed: u64,
    inbox: Inbox,
    memory: Memory,
    room: Room,
    pub(super) collectives: Collectives,
    pending: HashMap<MessageId, Pending>,
    /// Operations that the NIC has had no room for, in their order.
    posts: VecDeque<u32>,
    /// Receives that have met a message for which there is no room.
    crowded: VecDeque<MessageId>,
    /// Receives that have met no message.
    unmet: usize,
    /// How many receives had to wait for room.
    pub(super) waited: u64,
    /// Receives that are shorter than their message, by operation, with its bytes and sender.
    pub(super) too_long: Vec<(u32, Sent, u32)>,
    /// Operations that have ended, until the host takes them.
    ended: Vec<u32>,
    /// By receive, until the host has seen its end: the message that it has met.
    met: HashMap<u32, (usize, Sent)>,
}

impl Endpoint {
    pub(super) fn new(
        (rank, seed): (usize, u64),
        inbox: Inbox,
        memory: Memory,
        room: Room,
        collectives: Collectives,
    ) -> Endpoint {
        Endpoint {
            rank,
            seed,
            inbox,
            memory,
            room,
            collectives,
            pending: HashMap::new(),
            posts: VecDeque::new(),
            crowded: VecDeque::new(),
            unmet: 0,
            waited: 0,
            too_long: Vec::new(),
            ended: Vec::new(),
            met: HashMap::new(),
        }
    }

    /// The message that a receive has met: its sender, and what was sent.
    pub(super) fn take_met(&mut self, op: u32) -> Option<(usize, Sent)> {
        self.met.remove(&op)
    }

    /// Takes what has ended.
    pub(super) fn ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// What is under way besides receives that have met no message.
    pub(super) fn moving(&self) -> usize {
        self.pending.len() - self.unmet + self.posts.len() + self.collectives.under_way()
    }

    /// Whether there is anything for [`advance`](Endpoint::advance).
    pub(super) fn has_news(&self) -> bool {
        self.inbox.has_news()
    }

    /// Gives the NIC an operation.
    pub(super) fn post(&mut self, op: u32) {
        self.posts.push_back(op);
    }

    /// Whether some operations have not been given to the NIC.
    pub(super) fn has_posts(&self) -> bool {
        !self.posts.is_empty()
    }

    /// Gives the NIC what it has room for.
    ///
    /// # Errors
    /// The communicator has ended.
    pub(super) fn give(
        &mut self,
        node: &Node,
        ops: &[Op],
        ledger: &mut Ledger,
    ) -> Result<(), Over> {
        while let Some(&op) = self.posts.front() {
            let begun = match ops[op as usize].work {
                Work::Send { to, bytes, tag } => self.send(op, (to, tag), bytes, ledger),
                Work::Recv { from, tag, .. } => self.receive(op, from, tag),
                Work::Calc { .. } => Ok(()),
                Work::Collective { kind, bytes } => {
                    let memory = (&self.memory, &mut self.room);
                    let posted = self.collectives.post(node, memory, op, (kind, bytes));
                    posted.then_some(()).ok_or(MessageError::Full)
                }
            };
            match begun {
                Ok(()) => {}
                Err(MessageError::Full) => return Ok(()),
                Err(error) => return Err(over(error)),
            }
            self.posts.pop_front();
        }
        Ok(())
    }

    fn send(
        &mut self,
        op: u32,
        (to, tag): (u32, u32),
        bytes: u64,
        ledger: &mut Ledger,
    ) -> Result<(), MessageError> {
        let at = source_at(self.seed, self.rank, op);
        let target = (to, 0, tag);
        let mut is_told = bytes <= SHORT;
        let copied = match is_told {
            true => self.inbox.send(target, &self.memory.read(at, bytes), false),
            false => Err(MessageError::Full),
        };
        let id = match copied {
            Err(MessageError::Full) => {
                is_told = false;
                let memory = (Memory::va(at), bytes);
                self.inbox.send_from(target, memory, false)?
            }
            copied => copied?,
        };
        ledger.sends((self.rank, to, tag), Sent { op, bytes });
        // One to the own rank is here already.
        if is_told || id.is_none() {
            self.ended.push(op);
            is_told = true;
        }
        if let Some(id) = id {
            self.pending.insert(id, Pending::Send { op, is_told });
        }
        Ok(())
    }

    fn receive(
        &mut self,
        op: u32,
        from: Option<u32>,
        tag: Option<u32>,
    ) -> Result<(), MessageError> {
        let context = 0;
        let id = self.inbox.receive(&Wants { from, context, tag })?;
        self.unmet += 1;
        self.pending.insert(id, Pending::Receive(op));
        Ok(())
    }

    /// Takes what the NIC tells.
    ///
    /// # Errors
    /// The communicator has ended.
    pub(super) fn advance(
        &mut self,
        node: &Node,
        ops: &[Op],
        ledger: &mut Ledger,
    ) -> Result<(), Over> {
        let ended = (self.collectives).advance(node, (&self.memory, &mut self.room), ledger)?;
        if !ended.is_empty() {
            self.ended.extend(ended);
            self.collect()?;
        }
        while self.inbox.has_news() {
            match self.inbox.poll().map_err(over)? {
                Some(event) => self.on_event(ops, ledger, event)?,
                None => break,
            }
        }
        Ok(())
    }

    fn on_event(
        &mut self,
        ops: &[Op],
        ledger: &mut Ledger,
        event: MessageEvent,
    ) -> Result<(), Over> {
        let (MessageEvent::Met { id, .. } | MessageEvent::Ended { id, .. }) = event;
        let Some(pending) = self.pending.remove(&id) else {
            return Ok(());
        };
        match (event, pending) {
            (MessageEvent::Met { found, here, .. }, Pending::Receive(op)) => {
                self.unmet -= 1;
                let sent = ledger.met(self.rank, &found);
                if let Some(sent) = sent {
                    self.met.insert(op, (found.from as usize, sent));
                }
                if let (Work::Recv { bytes, .. }, Some(sent)) = (ops[op as usize].work, sent) {
                    if bytes < sent.bytes {
                        self.too_long.push((op, sent, found.from));
                    }
                }
                if here {
                    let mut got = vec![0; found.len as usize];
                    self.inbox.read(id, &mut got).map_err(over)?;
                    ledger.received(found.from, sent, &got);
                    self.ended.push(op);
                    return Ok(());
                }
                self.pending.insert(id, Pending::Met(op, found, sent));
                self.crowded.push_back(id);
                self.collect()?;
                self.waited += u64::from(self.crowded.back() == Some(&id));
            }
            (MessageEvent::Ended { status, detail, .. }, pending) => {
                if status != Status::Ok {
                    return Err((status, detail));
                }
                match pending {
                    Pending::Send { is_told: true, .. } => {}
                    Pending::Send { op, .. } => self.ended.push(op),
                    Pending::Receive(op) => {
                        self.unmet -= 1;
                        self.ended.push(op);
                    }
                    Pending::Met(op, ..) => self.ended.push(op),
                    Pending::Arriving(op, found, sent, at) => {
                        let got = self.memory.read(at, found.len);
                        ledger.received(found.from, sent, &got);
                        self.room.give_back(at, found.len);
                        self.ended.push(op);
                        self.collect()?;
                    }
                }
            }
            (MessageEvent::Met { .. }, pending) => {
                self.pending.insert(id, pending);
            }
        }
        Ok(())
    }

    /// Gives messages that were met memory, as far as there is room.
    fn collect(&mut self) -> Result<(), Over> {
        while let Some(&id) = self.crowded.front() {
            let Some(Pending::Met(op, found, sent)) = self.pending.get(&id) else {
                self.crowded.pop_front();
                continue;
            };
            let (op, found, sent) = (*op, *found, *sent);
            let Some(at) = self.room.take(found.len) else {
                return Ok(());
            };
            self.crowded.pop_front();
            let memory = (Memory::va(at), found.len);
            self.inbox.collect(id, memory).map_err(over)?;
            let arriving = Pending::Arriving(op, found, sent, at);
            self.pending.insert(id, arriving);
        }
        Ok(())
    }

    /// Whether a message is on its way that a receive here will meet. Its sender may be done with
    /// it: the NIC has a copy.
    pub(super) fn is_awaiting(&self, ops: &[Op], ledger: &Ledger) -> bool {
        self.pending.values().any(|p| match *p {
            Pending::Receive(op) => match ops[op as usize].work {
                Work::Recv { from, tag, .. } => ledger.is_coming(self.rank, from, tag),
                _ => false,
            },
            _ => false,
        })
    }

    /// Operations that the NIC has and that have not ended, and whether each is a receive without
    /// a message.
    pub(super) fn open(&self) -> Vec<(u32, bool)> {
        let of = |p: &Pending| match *p {
            Pending::Send { is_told: true, .. } => None,
            Pending::Send { op, .. } | Pending::Met(op, ..) | Pending::Arriving(op, ..) => {
                Some((op, false))
            }
            Pending::Receive(op) => Some((op, true)),
        };
        let mut all: Vec<_> = self.pending.values().filter_map(of).collect();
        all.extend(self.posts.iter().map(|op| (*op, false)));
        all.extend(self.collectives.open().map(|op| (op, false)));
        all.sort_unstable();
        all
    }
}

/// How an error ends a rank.
fn over(error: MessageError) -> Over {
    match error {
        MessageError::Ended { status, detail } => (status, detail),
        MessageError::Memory { status, .. } => (status, 0),
        MessageError::Room { .. } => (Status::MessageTooLarge, 0),
        _ => (Status::NoResources, 0),
    }
}
