//! A node's part in sums: what comes is added, and what is whole goes on.

use ringbell_net::port::MacAddr;
use ringbell_net::NicTime;
use ringbell_routes::topology::NodeId;

use super::{node_of, MeshPort};
use crate::buffers::Stored;
use crate::head::{Head, Kind, FLAG_SUM, MARK_SHIFT, UPWARD};
use crate::sums::{Sum, Taken};

impl MeshPort {
    /// The root of what is sent to the address of a sum.
    pub(super) fn sum_root(mac: MacAddr, nodes: usize) -> Option<NodeId> {
        let mut root = mac;
        root.0[0] &= !1;
        node_of(root, nodes).filter(|_| mac.0[0] & 1 == 1)
    }

    /// Takes new trees into use. Sums that were under way are over: parts of them went by others.
    pub(super) fn set_sums(&mut self, sums: [Vec<Option<Sum>>; 2]) {
        let before = std::mem::replace(&mut self.sums, sums);
        for (half, before) in before.into_iter().enumerate() {
            for (root, mut old) in before.into_iter().enumerate() {
                let Some(old) = &mut old else { continue };
                old.clear(&mut self.pool);
                if let Some(Some(new)) = self.sums[half].get_mut(root) {
                    new.refuse(old.id());
                }
            }
        }
        self.summed.clear();
    }

    /// The half of the channels by which this node sends.
    fn half_in_use(&self) -> usize {
        1 - self.network.spare()
    }

    /// Takes what this node's NIC gives to a sum. What is granted has a place, also that of a sum
    /// which begins again.
    pub(super) fn contribute(&mut self, root: NodeId, packet: Stored) {
        self.traffic.tx_frames += 1;
        self.traffic.tx_bytes += (packet.bytes().len() - crate::head::FRAME_AT) as u64;
        let half = self.half_in_use();
        if self.put(half, root.0, None, packet) != Taken::Yes {
            self.counters.late += 1;
        }
    }

    /// Takes a packet of a sum that has come by a wire, whose slot is free at once.
    pub(super) fn add(
        &mut self,
        now: NicTime,
        half: usize,
        (wire, channel): (usize, usize),
        packet: Stored,
    ) {
        self.wires[wire].release(now, channel);
        let root = packet.head().source.get();
        let queue = self.router.queue(None, channel);
        let sum = self.sums[half].get(usize::from(root));
        if !matches!(sum, Some(Some(s)) if s.queue == queue) {
            self.counters.bad += 1;
            return self.pool.give(packet);
        }
        match self.put(half, root, Some(wire), packet) {
            Taken::Yes => {}
            Taken::Late => self.counters.late += 1,
            Taken::Bad => self.counters.bad += 1,
        }
    }

    fn put(&mut self, half: usize, root: u16, wire: Option<usize>, packet: Stored) -> Taken {
        let Some(Some(sum)) = self.sums[half].get_mut(usize::from(root)) else {
            self.pool.give(packet);
            return Taken::Bad;
        };
        let taken = sum.take(wire, packet, &mut self.pool);
        if taken == Taken::Yes && sum.is_ready() && !self.summed.contains(&(half, root)) {
            self.summed.push_back((half, root));
        }
        taken
    }

    /// Combines what all inputs have given, as far as there is room for the results.
    pub(super) fn combine(&mut self, now: NicTime) {
        for _ in 0..self.summed.len() {
            let Some((half, root)) = self.summed.pop_front() else {
                return;
            };
            while let Some(Some(sum)) = self.sums[half].get_mut(usize::from(root)) {
                if !sum.is_ready() {
                    break;
                }
                let queue = sum.queue;
                if self.router.len(queue) >= self.config.depth {
                    // What stands in the queue is the reason to come back.
                    self.summed.push_back((half, root));
                    break;
                }
                match sum.next(&mut self.pool) {
                    Some(packet) => self.send_sum(now, half, (root, queue), packet),
                    None => self.counters.bad += 1,
                }
            }
        }
    }

    /// Sends a combined packet to the parent, or to this node's NIC at the root.
    fn send_sum(
        &mut self,
        now: NicTime,
        half: usize,
        (root, queue): (u16, usize),
        mut packet: Stored,
    ) {
        let me = self.config.node.0;
        let mut head = Head::new(Kind::Packet);
        head.channel = self.router.origin(queue).1 as u8;
        head.source.set(root);
        head.destination.set(if root == me { me } else { UPWARD });
        head.flags = FLAG_SUM | self.network.mark(half).unwrap_or_default() << MARK_SHIFT;
        head.write(packet.room());
        self.counters.combined += 1;
        self.replacing.filled(now, half);
        self.router.push(queue, packet, now);
    }
}
