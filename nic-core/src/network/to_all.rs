//! Frames to all over the one port that copies them on their way, and frames that it adds to each
//! other: sent, and taken when they have come.

use ringbell_net::port::MacAddr;
use ringbell_net::sum::sum_to;
use ringbell_net::wire::ETHERNET_HEADER;

use super::copies::COPIES;
use super::Network;
use crate::types::NicTime;

impl Network {
    /// The port that copies frames to all, where the NIC has no other: what goes by it reaches all
    /// peers then.
    fn tree_port(&self) -> Option<usize> {
        match &self.ports[..] {
            [port] if port.reached_by_tree() > 0 => Some(0),
            _ => None,
        }
    }

    /// How many others a frame to all reaches over each wire once; 0 where it goes otherwise.
    pub(crate) fn reached_by_tree(&self) -> usize {
        self.tree_port()
            .map_or(0, |p| self.ports[p].reached_by_tree())
    }

    /// Sends a frame to all: `fill` writes it, and returns its length, or `None`: nothing leaves.
    /// Returns what `fill` did; `None`: there is no room.
    pub(crate) fn send_to_all<E>(
        &mut self,
        now: NicTime,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        self.send_by_tree(now, MacAddr::BROADCAST, fill)
    }

    /// The same of a frame that is added to others on its way to the root of a sum.
    pub(crate) fn send_to_sum<E>(
        &mut self,
        now: NicTime,
        root: MacAddr,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        self.send_by_tree(now, sum_to(root), fill)
    }

    fn send_by_tree<E>(
        &mut self,
        now: NicTime,
        to: MacAddr,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        let port = self.tree_port()?;
        let mac = self.media[port].mac();
        let room = self.ports[port].tx_frame(now, to)?;
        let (header, body) = room.split_at_mut(ETHERNET_HEADER);
        header[..6].copy_from_slice(&to.0);
        header[6..12].copy_from_slice(&mac.0);
        header[12..].copy_from_slice(&COPIES);
        let filled = fill(body);
        if let Ok(len) = filled {
            self.ports[port].tx_commit(now, ETHERNET_HEADER + len);
        }
        Some(filled)
    }

    /// The address by which this NIC is the root of sums, and the bytes of the largest IP packet
    /// there. `None` also while the routes in use have no tree, though all ranks have counted on
    /// it.
    pub(crate) fn sum_root(&self) -> Option<(MacAddr, usize)> {
        let port = self.tree_port().filter(|p| self.ports[*p].has_tree())?;
        Some((self.media[port].mac(), self.ports[port].capabilities().mtu))
    }

    /// The next frame of a reduction in transit that has come, without its Ethernet header.
    pub(crate) fn next_of_sums(&mut self) -> Option<Vec<u8>> {
        self.copies.sums.pop_front()
    }

    /// Whether there are any.
    pub(crate) fn has_sums(&self) -> bool {
        !self.copies.sums.is_empty()
    }

    /// Lets frames to all leave that were kept back.
    pub(crate) fn flush_to_all(&mut self, now: NicTime) {
        if let Some(port) = self.tree_port() {
            self.ports[port].flush(now);
        }
    }

    /// The next frame to all that has come, without its Ethernet header.
    #[inline]
    pub(crate) fn next_copy(&mut self) -> Option<Vec<u8>> {
        self.copies.waiting.pop_front()
    }

    /// It has been read.
    pub(crate) fn copy_is_read(&mut self, copy: Vec<u8>) {
        self.copies.free.push(copy);
    }

    /// Whether frames to all have come.
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.waiting.is_empty()
    }
}
