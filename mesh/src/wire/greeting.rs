//! Life of a wire: who stands at its other end, by which rules, and since when.
//!
//! Each end has an *epoch*, a number that changes whenever its state begins anew, and repeats its
//! hello until the other end's hello names it. An end that hears another epoch than before begins
//! anew too: its peer has started again.

use std::time::Duration;

use ringbell_net::wire::MacAddr;
use ringbell_net::NicTime;
use zerocopy::FromBytes;

use crate::head::{Hello, VERSION};

/// Time between two hellos, at first: 1 ms. It doubles up to [`GAP_MAX_NS`].
const GAP_NS: u64 = 1_000_000;
/// Longest such time: 50 ms.
const GAP_MAX_NS: u64 = 50_000_000;

/// What a wire is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireState {
    /// The other end has not answered yet, or not since it was lost.
    Greeting,
    /// The ends disagree; the reason.
    Refused(String),
    /// It carries packets.
    Up,
}

/// What a hello changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeted {
    /// Nothing.
    Same,
    /// The wire is up.
    Up,
    /// The other end has begun anew, so this one does.
    Again,
    /// The ends disagree, for a new reason.
    Refused,
}

/// The other end's first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// It is waited for, since the first hello if there was one.
    Awaited(Option<NicTime>),
    /// It took too long, which was reported.
    Missed,
    /// The wire has been up, or is refused.
    Came,
}

/// One end's knowledge of the other.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// Ours; `heard` and `up` are set when it is said.
    own: Hello,
    /// Node and port that the network has at the other end.
    other: (u16, u8),
    epoch: u32,
    other_epoch: u32,
    state: WireState,
    first: First,
    mac: MacAddr,
    at: NicTime,
    gap_ns: u64,
    /// The other end is to be told why it is refused.
    refuses: bool,
}

impl Greeting {
    pub(crate) fn new(own: Hello, other: (u16, u8), epoch: u32) -> Greeting {
        Greeting {
            own,
            other,
            epoch: epoch.max(1),
            other_epoch: 0,
            state: WireState::Greeting,
            first: First::Awaited(None),
            mac: MacAddr::BROADCAST,
            at: NicTime(0),
            gap_ns: GAP_NS,
            refuses: false,
        }
    }

    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state == WireState::Up
    }

    pub(crate) fn state(&self) -> &WireState {
        &self.state
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Where the other end's frames come from.
    #[inline]
    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Whether a head of this epoch is the other end's, and the wire is up.
    #[inline]
    pub(crate) fn counts(&self, epoch: u32) -> bool {
        self.is_up() && epoch == self.other_epoch
    }

    /// Our hello, if it is time for one.
    pub(crate) fn due(&mut self, now: NicTime) -> Option<Hello> {
        if self.at > now {
            return None;
        }
        if self.first == First::Awaited(None) {
            self.first = First::Awaited(Some(now));
        }
        self.at = NicTime(match self.is_up() {
            true => u64::MAX,
            false => now.0 + self.gap_ns,
        });
        self.gap_ns = (2 * self.gap_ns).min(GAP_MAX_NS);
        let mut hello = self.own;
        hello.heard.set(self.other_epoch);
        hello.up = self.is_up().into();
        Some(hello)
    }

    /// Whether there was no answer for so long since the first hello; true once.
    pub(crate) fn misses_answer(&mut self, now: NicTime, grace: Duration) -> bool {
        match self.first {
            First::Awaited(Some(since)) if since.plus(grace) <= now => {
                self.first = First::Missed;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_missed(&self) -> bool {
        self.first == First::Missed
    }

    /// When the next one is due.
    pub(crate) fn timer(&self) -> Option<NicTime> {
        (self.at.0 != u64::MAX).then_some(self.at)
    }

    /// The state of this end is lost: it greets again, under another epoch.
    pub(crate) fn again(&mut self, now: NicTime) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.state = WireState::Greeting;
        (self.at, self.gap_ns) = (now, GAP_NS);
    }

    /// Why the other end's last hello is refused, once.
    pub(crate) fn refusal(&mut self) -> Option<String> {
        let refuses = std::mem::take(&mut self.refuses);
        match &self.state {
            WireState::Refused(why) if refuses => Some(why.clone()),
            _ => None,
        }
    }

    /// The other end refuses our hello.
    pub(crate) fn refused(&mut self, why: &str) {
        if !self.is_up() {
            self.first = First::Came;
            self.state = WireState::Refused(format!("the other end refuses: {why}"));
        }
    }

    /// The other end's hello has come.
    pub(crate) fn hello(&mut self, now: NicTime, mac: MacAddr, epoch: u32, body: &[u8]) -> Greeted {
        let Ok((hello, _)) = Hello::read_from_prefix(body) else {
            return Greeted::Same;
        };
        if let Some(why) = self.differs(&hello) {
            // A peer that is up has agreed before: what comes now is another's.
            if self.is_up() {
                return Greeted::Same;
            }
            self.refuses = true;
            self.first = First::Came;
            let refused = WireState::Refused(why);
            return match std::mem::replace(&mut self.state, refused.clone()) == refused {
                true => Greeted::Same,
                false => Greeted::Refused,
            };
        }
        self.mac = mac;
        let is_new = epoch != self.other_epoch;
        self.other_epoch = epoch;
        if is_new && self.is_up() {
            self.again(now);
            return Greeted::Again;
        }
        let knows_us = hello.heard.get() == self.epoch;
        // An end that is not up yet waits for our answer.
        if hello.up == 0 || is_new {
            self.at = now;
        }
        if !knows_us || self.is_up() {
            if !self.is_up() {
                self.state = WireState::Greeting;
            }
            return Greeted::Same;
        }
        (self.state, self.first) = (WireState::Up, First::Came);
        Greeted::Up
    }

    /// What the ends do not agree on.
    fn differs(&self, other: &Hello) -> Option<String> {
        let (node, port) = self.other;
        let own = &self.own;
        if other.version != VERSION {
            return Some(format!(
                "version {} of the wire's format there, {VERSION} here",
                other.version
            ));
        }
        if (other.node.get(), other.port) != (node, port) {
            return Some(format!(
                "the wire leads to port {} of node {}, and the network has port {port} of node {node} there",
                other.port, other.node
            ));
        }
        let numbers = [
            ("nodes", other.nodes.get().into(), own.nodes.get().into()),
            ("channels", other.channels.into(), own.channels.into()),
            (
                "slots of a channel",
                other.depth.get().into(),
                own.depth.get().into(),
            ),
            (
                "free slots to enter a ring",
                other.bubble.into(),
                own.bubble.into(),
            ),
            (
                "bytes of a packet",
                other.mtu.get().into(),
                own.mtu.get().into(),
            ),
        ];
        let differs = numbers.iter().find(|(_, a, b): &&(&str, u32, u32)| a != b);
        if let Some((what, there, here)) = differs {
            return Some(format!("{there} {what} there, {here} here"));
        }
        let (there, here) = (other.digest.get(), own.digest.get());
        (there != here).then(|| format!("tables {there:016x} there, {here:016x} here"))
    }
}
