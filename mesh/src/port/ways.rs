//! From the network's routes to the router's ways: ports become wires, and trees sets of them.

use ringbell_routes::topology::NodeId;

use super::MeshPort;
use crate::buffers::{bit, Set};
use crate::network::Branch;
use crate::router::Way;
use crate::sums::Sum;

impl MeshPort {
    /// Takes the network's routes into use.
    pub(super) fn set_ways(&mut self) {
        let place = |port: u8| self.wires.iter().position(|w| w.number() == port);
        let nodes = self.network.topology().nodes().len();
        let way = |half: usize, node: usize| {
            let node = NodeId(node as u16);
            if node == self.config.node {
                return Way::Here;
            }
            let wire = self.network.next_in(half, node).and_then(place);
            wire.map_or(Way::Nowhere, |w| Way::Wire(w as u8))
        };
        let ways = [0, 1].map(|half| (0..nodes).map(|node| way(half, node)).collect());
        let inputs = || (0..self.wires.len()).map(Some).chain([None]);
        let entering = self.wires.iter().map(|to| {
            let mut set: Set = 0;
            for (from, channel) in
                inputs().flat_map(|f| (0..self.config.channels).map(move |c| (f, c)))
            {
                let port = from.map(|w| self.wires[w].number());
                if self.network.slots(port, to.number(), channel as u8) > 1 {
                    set |= bit(self.router.queue(from, channel));
                }
            }
            set
        });
        let entering = entering.collect();
        let branches = [0, 1].map(|half| {
            let branch = |node: usize| self.network.branch(half, NodeId(node as u16));
            (0..nodes).map(branch).collect::<Vec<_>>()
        });
        let outputs = |b: &Option<Branch>| {
            let b = b.as_ref()?;
            let down = b
                .down
                .iter()
                .filter_map(|p| Some(Way::Wire(place(*p)? as u8)));
            Some(down.chain(b.ends_here.then_some(Way::Here)).collect())
        };
        let outputs = branches.each_ref().map(|branches| {
            let outputs = branches.iter().map(|b| outputs(b).unwrap_or_default());
            outputs.collect()
        });
        let ups = branches.each_ref().map(|branches| {
            let up = |b: &Option<Branch>| b.as_ref().and_then(|b| place(b.up?));
            let way = |b| up(b).map(|w| Way::Wire(w as u8)).into_iter().collect();
            branches.iter().map(way).collect()
        });
        let sums = branches.each_ref().map(|branches| {
            let sum = |b: &Option<Branch>| {
                let b = b.as_ref()?;
                let is_root = b.up.is_none();
                let own = (is_root || b.ends_here).then_some(None);
                // In the order of the ports' numbers: the result is the same each time.
                let mut children = b.down.clone();
                children.sort_unstable();
                let children = children.into_iter().filter_map(place).map(Some);
                let queue = self.router.queue(None, b.channel.into());
                Some(Sum::new(queue, own.into_iter().chain(children)))
            };
            branches.iter().map(sum).collect::<Vec<_>>()
        });
        let comes = |b: &Branch| (b.up.and_then(place), usize::from(b.channel));
        let trees =
            branches.map(|branches| branches.iter().map(|b| b.as_ref().map(comes)).collect());
        let split = self.network.split();
        self.router.set_ways(ways, outputs, ups, split, entering);
        self.trees = trees;
        self.set_sums(sums);
    }
}
