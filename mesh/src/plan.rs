//! Tables that replace those in use: all nodes change or none does.
//!
//! One node proposes tables under an [`Id`]. Word of it spreads as that of wires does, each node
//! fetches the text from the neighbour that told it, checks the proof, holds the tables on channels
//! that no packet is in, and votes. The proposer decides: it uses them when all others hold them,
//! which spreads as well, or votes against them when one refuses or time is up. Votes only grow, so
//! that they arrive in any order; a node that missed all of it, or starts again, fetches what is in
//! use.

use crc_fast::{checksum, CrcAlgorithm};
use ringbell_net::NicTime;
use ringbell_routes::route::Routes;
use ringbell_routes::topology::NodeId;

/// Time between two tellings of the same: 20 ms.
const AGAIN_NS: u64 = 20_000_000;
/// Longest reason that travels, in bytes.
const WHY_MAX: usize = 240;
/// Longest text of tables that is fetched, in bytes.
const TEXT_MAX: usize = 16 << 20;

/// Names tables: how many replacements came before, on which half of the channels they are used,
/// and who proposed them. Zero: those by which the network was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Id(pub(crate) u32);

impl Id {
    /// The next of a node after this one.
    fn after(self, half: usize, node: NodeId) -> Id {
        let round = (self.0 >> 17) + 1;
        Id(round << 17 | (half as u32 & 1) << 16 | u32::from(node.0))
    }

    /// The half of the channels.
    pub(crate) fn half(self) -> usize {
        (self.0 >> 16 & 1) as usize
    }

    /// What their packets bear: a packet that is left over from older tables has another mark.
    pub(crate) fn mark(self) -> u8 {
        (self.0 >> 17 & 0xf) as u8
    }

    /// The node that has proposed them.
    pub(crate) fn proposer(self) -> NodeId {
        NodeId(self.0 as u16)
    }
}

/// What a node has said about proposed tables.
const SILENT: u8 = 0;
const HELD: u8 = 1;
const REFUSED: u8 = 2;

/// What a node knows: compared with each neighbour until both know the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct State {
    used: Id,
    /// Proposed, by its id; zero: none.
    open: Id,
    /// By node.
    votes: Vec<u8>,
    /// Why it was refused.
    why: String,
}

impl State {
    /// Its text, behind the hash of what the reader has told.
    fn write(&self, heard: u32) -> Vec<u8> {
        let mut body = heard.to_be_bytes().to_vec();
        body.extend(self.used.0.to_be_bytes());
        body.extend(self.open.0.to_be_bytes());
        body.extend(&self.votes);
        body.extend(self.why.as_bytes());
        body
    }

    /// As [`State::write`] has it, for so many nodes.
    fn read(body: &[u8], nodes: usize) -> Option<(State, u32)> {
        let word = |at: usize| {
            let four = body.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(four))
        };
        let (used, open) = (Id(word(4)?), Id(word(8)?));
        let rest = body.get(12..)?;
        let (votes, why) = match open == Id(0) {
            true => (&rest[..0], &rest[..0]),
            false => (rest.get(..nodes)?, &rest[nodes..]),
        };
        let is_one = |id: Id| id == Id(0) || id.proposer().index() < nodes;
        let are_votes = votes.iter().all(|v| *v <= REFUSED);
        let why = &why[..why.len().min(WHY_MAX)];
        let state = State {
            used,
            open,
            votes: votes.to_vec(),
            // A frame may be padded.
            why: String::from_utf8_lossy(why)
                .trim_end_matches('\0')
                .replace(char::is_control, " "),
        };
        (is_one(used) && is_one(open) && are_votes).then_some((state, word(0)?))
    }

    fn hash(&self) -> u32 {
        checksum(CrcAlgorithm::Crc32Iscsi, &self.write(0)) as u32
    }

    /// Whether the proposer has given it up.
    fn is_over(&self) -> bool {
        let vote = self.votes.get(self.open.proposer().index());
        self.open == Id(0) || vote == Some(&REFUSED)
    }
}

/// What a neighbour has told, and what it has heard.
#[derive(Debug, Clone, Default)]
struct Neighbour {
    told: State,
    heard: u32,
    /// When it was told last.
    at: Option<NicTime>,
}

/// A text that is being fetched.
#[derive(Debug)]
struct Fetch {
    id: Id,
    wire: usize,
    text: Vec<u8>,
    asked: Option<NicTime>,
}

/// What a node says to a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// What it knows.
    State(Vec<u8>),
    /// That the text of these tables is wanted, from here on.
    Ask(Id, u32),
}

/// What a node knows of replacements.
#[derive(Debug)]
pub(crate) struct Plans {
    me: NodeId,
    nodes: usize,
    state: State,
    /// Of the tables in use, and of the proposed ones.
    texts: Vec<(Id, Vec<u8>)>,
    /// The proposed ones, once they were found to be sound.
    routes: Option<(Id, Routes)>,
    /// The proposed ones have their channels.
    is_held: bool,
    /// They are this node's proposal, until then.
    own: Option<NicTime>,
    fetch: Option<Fetch>,
    /// Tables that others use, and that this node finds wrong.
    unsound: Option<Id>,
    /// By wire.
    neighbours: Vec<Neighbour>,
}

impl Plans {
    pub(crate) fn new(me: NodeId, nodes: usize, wires: usize) -> Plans {
        Plans {
            me,
            nodes,
            state: State::default(),
            texts: Vec::new(),
            routes: None,
            is_held: false,
            own: None,
            fetch: None,
            unsound: None,
            neighbours: vec![Neighbour::default(); wires],
        }
    }

    /// Proposed tables about which nothing is decided.
    pub(crate) fn open(&self) -> Option<Id> {
        (!self.state.is_over()).then_some(self.state.open)
    }

    /// The longest word that a node says, in bytes.
    pub(crate) fn longest(nodes: usize) -> usize {
        12 + nodes + WHY_MAX
    }

    /// Proposes tables that were checked, as the next after all that are known.
    pub(crate) fn propose(&mut self, text: Vec<u8>, routes: Routes, half: usize, until: NicTime) {
        let last = self.state.used.max(self.state.open);
        let id = last.after(half, self.me);
        self.adopt(id, vec![SILENT; self.nodes]);
        self.texts.push((id, text));
        self.routes = Some((id, routes));
        self.own = Some(until);
    }

    fn adopt(&mut self, id: Id, votes: Vec<u8>) {
        let used = self.state.used;
        self.texts.retain(|(of, _)| *of == used);
        (self.state.open, self.state.votes) = (id, votes);
        self.state.why.clear();
        (self.routes, self.own, self.is_held) = (None, None, false);
    }

    /// A wire is up, or up again: what its other end knows is not known.
    pub(crate) fn up(&mut self, wire: usize) {
        self.neighbours[wire] = Neighbour::default();
        self.fetch = self.fetch.take().filter(|f| f.wire != wire);
    }

    /// A neighbour has told what it knows. `has_way`: whether a node is reached.
    pub(crate) fn told(&mut self, wire: usize, body: &[u8], has_way: impl Fn(NodeId) -> bool) {
        let Some((state, heard)) = State::read(body, self.nodes) else {
            return;
        };
        let own = &mut self.state;
        if state.open == own.open {
            for (own, other) in own.votes.iter_mut().zip(&state.votes) {
                *own = (*own).max(*other);
            }
            if own.why.is_empty() {
                own.why.clone_from(&state.why);
            }
        } else if state.open > own.open && state.open > own.used {
            // A vote stays until it is decided, or no way leads to the node that decides.
            let proposer = own.open.proposer();
            let may = own.is_over() || !self.is_held || !has_way(proposer);
            if may && self.own.is_none() {
                self.adopt(state.open, state.votes.clone());
                self.state.why.clone_from(&state.why);
            }
        }
        let neighbour = &mut self.neighbours[wire];
        (neighbour.told, neighbour.heard) = (state, heard);
    }

    /// A part of a text that was asked for. Returns the text when it is whole.
    pub(crate) fn part(&mut self, wire: usize, id: Id, body: &[u8]) -> Option<(Id, Vec<u8>)> {
        let fetch = self.fetch.as_mut()?;
        let (numbers, bytes) = body.split_first_chunk::<8>()?;
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| numbers[at + i])) as usize;
        let (offset, total) = (number(0), number(4));
        let is_next = (fetch.wire, fetch.id, fetch.text.len()) == (wire, id, offset);
        if !is_next || total > TEXT_MAX || bytes.is_empty() {
            return None;
        }
        let bytes = &bytes[..bytes.len().min(total.saturating_sub(offset))];
        fetch.text.extend(bytes);
        fetch.asked = None;
        if fetch.text.len() < total {
            return None;
        }
        let text = self.fetch.take()?.text;
        Some((id, text))
    }

    /// The answer to a neighbour that asks for a text: a part of at most `most` bytes.
    pub(crate) fn answer(&self, id: Id, body: &[u8], most: usize) -> Option<Vec<u8>> {
        let offset = u32::from_be_bytes(*body.first_chunk()?) as usize;
        let (_, text) = self.texts.iter().find(|(of, _)| *of == id)?;
        let rest = text.get(offset..)?;
        let mut part = (offset as u32).to_be_bytes().to_vec();
        part.extend((text.len() as u32).to_be_bytes());
        part.extend(&rest[..rest.len().min(most - 8)]);
        Some(part)
    }

    /// A fetched text was read and checked.
    pub(crate) fn fetched(&mut self, id: Id, text: Vec<u8>, routes: Result<Routes, String>) {
        match routes {
            Ok(routes) => {
                self.texts.push((id, text));
                self.routes = Some((id, routes));
            }
            Err(why) if id == self.state.open => self.refuse(why),
            Err(_) => self.unsound = Some(id),
        }
    }

    fn refuse(&mut self, mut why: String) {
        let end = why.char_indices().map(|(i, c)| i + c.len_utf8());
        let end = end.take_while(|end| *end <= WHY_MAX).last();
        why.truncate(end.unwrap_or(0));
        if let Some(vote) = self.state.votes.get_mut(self.me.index()) {
            *vote = REFUSED;
        }
        if self.state.why.is_empty() {
            self.state.why = why;
        }
    }

    /// Tables that neighbours use and this node does not, if it has them.
    pub(crate) fn behind(&self) -> Option<(Id, Routes)> {
        let newest = self.newest()?;
        self.routes.clone().filter(|(id, _)| *id == newest)
    }

    /// The newest that a neighbour uses, if it is newer than this node's.
    fn newest(&self) -> Option<Id> {
        let newest = self.neighbours.iter().map(|n| n.told.used).max()?;
        (newest > self.state.used && self.unsound != Some(newest)).then_some(newest)
    }

    /// These are used from now on.
    pub(crate) fn commit(&mut self, id: Id) {
        self.state.used = id;
        if self.state.open <= id {
            self.state.open = Id(0);
            self.state.votes.clear();
            self.state.why.clear();
            (self.own, self.is_held) = (None, false);
        }
        let open = self.state.open;
        self.texts.retain(|(of, _)| *of == id || *of == open);
        self.routes = self.routes.take().filter(|(of, _)| *of == open);
    }

    /// Sound tables that this node could hold now: not before it uses what others use.
    pub(crate) fn to_hold(&self) -> Option<(Id, &Routes)> {
        let is_wanted = self.open().is_some() && !self.is_held && self.newest().is_none();
        let (id, routes) = self.routes.as_ref().filter(|_| is_wanted)?;
        let votes = &self.state.votes;
        let may = *id == self.state.open && votes[self.me.index()] == SILENT;
        may.then_some((*id, routes))
    }

    /// They have their channels here, or cannot have them. The proposer decides later.
    pub(crate) fn held(&mut self, done: Result<(), String>) {
        match done {
            Ok(()) => {
                self.is_held = true;
                if self.own.is_none() {
                    self.state.votes[self.me.index()] = HELD;
                }
            }
            Err(why) => self.refuse(why),
        }
    }

    /// This node's proposal is decided: it is to be used, or it is refused with the reason. `name`
    /// is that of a node.
    pub(crate) fn decided(
        &mut self,
        now: NicTime,
        has_way: impl Fn(NodeId) -> bool,
        name: impl Fn(NodeId) -> String,
    ) -> Option<Result<Id, String>> {
        let me = self.me.index();
        if self.state.open.proposer() == self.me && self.own.is_none() && self.open().is_some() {
            // Of this node's life before.
            self.refuse("its node has started again".into());
            return None;
        }
        let until = self.own?;
        if self.state.votes.contains(&REFUSED) {
            self.own = None;
            self.state.votes[me] = REFUSED;
            return Some(Err(self.state.why.clone()));
        }
        let missing: Vec<NodeId> = (0..self.nodes as u16)
            .map(NodeId)
            .filter(|n| n.index() != me && has_way(*n))
            .filter(|n| self.state.votes[n.index()] != HELD)
            .collect();
        if missing.is_empty() && self.is_held {
            return Some(Ok(self.state.open));
        }
        if now < until {
            return None;
        }
        self.own = None;
        let names: Vec<String> = missing.into_iter().map(name).collect();
        let why = match names.is_empty() {
            true => "packets of older tables are still on their way; try again".to_owned(),
            false => format!("no answer in time from {}", names.join(", ")),
        };
        self.refuse(why.clone());
        Some(Err(why))
    }

    /// What to say to neighbours now, by wire; `is_up`: to which wires.
    pub(crate) fn say(&mut self, now: NicTime, is_up: impl Fn(usize) -> bool) -> Vec<(usize, Say)> {
        let mut all = Vec::new();
        let hash = self.state.hash();
        let is_time =
            |at: Option<NicTime>| at.is_none_or(|at| now.0.saturating_sub(at.0) >= AGAIN_NS);
        for (wire, n) in self.neighbours.iter_mut().enumerate() {
            let is_same =
                n.told == self.state && (n.heard == hash || self.state == State::default());
            if is_up(wire) && !is_same && is_time(n.at) {
                n.at = Some(now);
                all.push((wire, Say::State(self.state.write(n.told.hash()))));
            }
        }
        self.choose(&is_up);
        if let Some(fetch) = self.fetch.as_mut().filter(|f| is_time(f.asked)) {
            fetch.asked = Some(now);
            let from = fetch.text.len() as u32;
            all.push((fetch.wire, Say::Ask(fetch.id, from)));
        }
        all
    }

    /// Chooses a text to fetch, and from whom.
    fn choose(&mut self, is_up: impl Fn(usize) -> bool) {
        let has = |id: &Id| self.texts.iter().any(|(of, _)| of == id);
        let voted = self.state.votes.get(self.me.index()) != Some(&SILENT);
        let wanted = [self.newest(), self.open().filter(|_| !voted)];
        let wanted = wanted.into_iter().flatten().find(|id| !has(id));
        let is_good = |f: &Fetch| is_up(f.wire) && Some(f.id) == wanted;
        self.fetch = self.fetch.take().filter(is_good);
        let (Some(id), None) = (wanted, &self.fetch) else {
            return;
        };
        let knows = |n: &Neighbour| n.told.used == id || n.told.open == id;
        let mut from = self.neighbours.iter().enumerate();
        let wire = from.find(|(wire, n)| is_up(*wire) && knows(n));
        self.fetch = wire.map(|(wire, _)| Fetch {
            id,
            wire,
            text: Vec::new(),
            asked: None,
        });
    }

    /// Whether something is to be said or done: it is stepped soon then.
    pub(crate) fn is_busy(&self, is_up: impl Fn(usize) -> bool) -> bool {
        let hash = self.state.hash();
        let mut each = self.neighbours.iter().enumerate();
        let differs = each.any(|(wire, n)| {
            let is_same =
                n.told == self.state && (n.heard == hash || self.state == State::default());
            is_up(wire) && !is_same
        });
        differs || self.fetch.is_some() || self.own.is_some() || self.to_hold().is_some()
    }
}
