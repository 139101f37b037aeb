//! The argument that tables cannot deadlock, written down with them so that others can check it.
//!
//! A channel *depends* on another if a packet can hold a slot of the one and wait for a slot of the
//! other: on the next channel of a path, and of a request's last channel on the first one of its
//! acknowledgement. Without a circle of dependencies some packet can always move (Dally and Seitz,
//! 1987).

use crate::tables::{Channel, Class, Tables};
use crate::topology::{NodeId, Topology};

/// Free slots that a packet needs to enter a ring of a [`Proof::Bubble`].
pub const BUBBLE_INJECTION: u8 = 2;
/// Free slots that a packet needs to move on within such a ring.
pub const BUBBLE_FORWARDING: u8 = 1;

/// The argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Each channel depends only on later ones of this order.
    Acyclic {
        /// All channels that packets use.
        order: Vec<Channel>,
    },
    /// Each channel depends on the next of its ring, where forwarding needs
    /// [`BUBBLE_FORWARDING`] free slots, or on channels of later rings, which are entered by
    /// [`BUBBLE_INJECTION`].
    Bubble {
        /// All rings, in this order; the last channel of each leads to its first.
        rings: Vec<Vec<Channel>>,
    },
}

impl Proof {
    /// Slots that a channel needs at least.
    pub fn slots(&self) -> u8 {
        match self {
            Proof::Acyclic { .. } => 1,
            Proof::Bubble { .. } => BUBBLE_INJECTION,
        }
    }
}

/// Channels that depend on each other in a circle, each on the next and the last on the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle(pub Vec<Channel>);

impl Circle {
    /// `A -> B -> A`, with the channels as [`Channel::text`] has them.
    pub fn text(&self, topology: &Topology) -> String {
        let again = self.0.iter().chain(self.0.first());
        let texts: Vec<_> = again.map(|c| c.text(topology)).collect();
        texts.join(" -> ")
    }
}

/// The order of the channels, or a circle among them. The tables must have all routes.
pub(crate) fn order(topology: &Topology, tables: &Tables) -> Result<Proof, Circle> {
    let count = tables.channel_count();
    let index = |c: Channel| c.link.index() * count + usize::from(c.number);
    let graph = Dependencies::of(topology, tables, index);
    let mut before = vec![0usize; graph.from.len()];
    for to in graph.from.iter().flatten() {
        before[*to as usize] += 1;
    }
    let used = (0..graph.from.len()).filter(|c| graph.used[*c]);
    let mut order: Vec<usize> = used.clone().filter(|c| before[*c] == 0).collect();
    let mut done = 0;
    while let Some(channel) = order.get(done).copied() {
        done += 1;
        for to in &graph.from[channel] {
            let to = *to as usize;
            before[to] -= 1;
            if before[to] == 0 {
                order.push(to);
            }
        }
    }
    let channel = |i: usize| Channel {
        link: crate::topology::Link((i / count) as u32),
        number: (i % count) as u8,
    };
    let left: Vec<usize> = used.filter(|c| before[*c] > 0).collect();
    if let Some(start) = left.first() {
        let circle = graph.circle(*start, &before);
        return Err(Circle(circle.into_iter().map(channel).collect()));
    }
    let order = order.into_iter().map(channel).collect();
    Ok(Proof::Acyclic { order })
}

/// Which channel depends on which, by their numbers.
struct Dependencies {
    from: Vec<Vec<u32>>,
    used: Vec<bool>,
}

impl Dependencies {
    fn of(topology: &Topology, tables: &Tables, index: impl Fn(Channel) -> usize) -> Dependencies {
        let size = 2 * topology.wires().len() * tables.channel_count();
        let mut graph = Dependencies {
            from: vec![Vec::new(); size],
            used: vec![false; size],
        };
        let ends: Vec<NodeId> = topology.ends().collect();
        let channels = |class: Class, s: NodeId, d: NodeId| {
            let number = tables.channel(class, tables.layer(s, d));
            let links = tables.path(topology, s, d);
            links.filter_map(move |link| {
                Some(Channel {
                    link,
                    number: number?,
                })
            })
        };
        for s in &ends {
            for d in ends.iter().filter(|d| *d != s) {
                let answer = channels(Class::Acknowledgement, *d, *s).next();
                for class in Class::ALL {
                    let mut last = None;
                    for channel in channels(class, *s, *d).map(&index) {
                        graph.used[channel] = true;
                        if let Some(last) = last.replace(channel) {
                            graph.from[last].push(channel as u32);
                        }
                    }
                    if let (Class::Request, Some(last), Some(first)) = (class, last, answer) {
                        graph.from[last].push(index(first) as u32);
                    }
                }
            }
        }
        for to in &mut graph.from {
            to.sort_unstable();
            to.dedup();
        }
        graph
    }

    /// A circle among the channels that no order has, `before[c] > 0`, one of which is given.
    fn circle(&self, start: usize, before: &[usize]) -> Vec<usize> {
        // Each of them has one of them before it: backwards, a way comes upon itself.
        let mut from = vec![Vec::new(); self.from.len()];
        for (a, to) in self.from.iter().enumerate().filter(|(a, _)| before[*a] > 0) {
            for b in to {
                from[*b as usize].push(a);
            }
        }
        let mut way = vec![start];
        loop {
            let last = way[way.len() - 1];
            let Some(next) = from[last].first().copied() else {
                return way;
            };
            if let Some(begin) = way.iter().position(|c| *c == next) {
                way.drain(..begin);
                way.reverse();
                return way;
            }
            way.push(next);
        }
    }
}
