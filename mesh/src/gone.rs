//! Nodes to which no wire leads any more, and for how long: a wire that is back soon costs nothing.

use std::collections::VecDeque;
use std::time::Duration;

use ringbell_net::NicTime;
use ringbell_routes::topology::NodeId;

/// How a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Way,
    /// Not since then.
    Lost(NicTime),
    /// Not any more: it was reported.
    Gone,
}

/// How all nodes are reached.
#[derive(Debug)]
pub(crate) struct Gone {
    nodes: Vec<Reach>,
    grace: Duration,
    /// To be reported, each once.
    reports: VecDeque<NodeId>,
    /// The next that is gone, unless a wire comes back.
    next: Option<NicTime>,
}

impl Gone {
    pub(crate) fn new(nodes: usize, grace: Duration) -> Gone {
        Gone {
            nodes: vec![Reach::Way; nodes],
            grace,
            reports: VecDeque::new(),
            next: None,
        }
    }

    /// The routes have changed.
    pub(crate) fn update(&mut self, now: NicTime, has_way: impl Fn(NodeId) -> bool) {
        for (n, reach) in self.nodes.iter_mut().enumerate() {
            *reach = match (has_way(NodeId(n as u16)), *reach) {
                (true, _) => Reach::Way,
                (false, Reach::Way) => Reach::Lost(now),
                (false, before) => before,
            };
        }
        let nodes = &self.nodes;
        let is_gone = |node: &NodeId| nodes[node.index()] == Reach::Gone;
        self.reports.retain(is_gone);
        self.set_next();
    }

    fn set_next(&mut self) {
        let due = self.nodes.iter().filter_map(|reach| match reach {
            Reach::Lost(since) => Some(since.plus(self.grace)),
            Reach::Way | Reach::Gone => None,
        });
        self.next = due.min();
    }

    /// Nodes that are gone from now on.
    #[inline]
    pub(crate) fn step(&mut self, now: NicTime) -> Vec<NodeId> {
        match self.next {
            Some(next) if next <= now => self.expire(now),
            _ => Vec::new(),
        }
    }

    #[cold]
    fn expire(&mut self, now: NicTime) -> Vec<NodeId> {
        let mut gone = Vec::new();
        for (n, reach) in self.nodes.iter_mut().enumerate() {
            if matches!(reach, Reach::Lost(since) if since.plus(self.grace) <= now) {
                *reach = Reach::Gone;
                gone.push(NodeId(n as u16));
            }
        }
        self.reports.extend(&gone);
        self.set_next();
        gone
    }

    /// A packet to a node found no way: what began since its report must hear of it, too.
    pub(crate) fn dropped(&mut self, node: NodeId) {
        let is_gone = self.nodes.get(node.index()) == Some(&Reach::Gone);
        if is_gone && !self.reports.contains(&node) {
            self.reports.push_back(node);
        }
    }

    /// The next node to be reported.
    pub(crate) fn next_report(&mut self) -> Option<NodeId> {
        self.reports.pop_front()
    }

    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        self.next
    }

    /// All that are gone.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(n, reach)| (*reach == Reach::Gone).then_some(NodeId(n as u16)))
    }
}
