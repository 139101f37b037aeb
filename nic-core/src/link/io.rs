//! What a step lends to links and to the layers above.

use ringbell_gtlb::Mmu;

use crate::datapath::Datapath;
use crate::dma::{Dma, DmaState};
use crate::engine::Engines;
use crate::network::Network;
use crate::transport::Transport;
use crate::types::{Buffer, ConnId, NicTime};

/// What links and the layers above work with in one step.
pub(crate) struct Io<'a> {
    pub(crate) now: NicTime,
    pub(crate) transports: &'a mut [Box<dyn Transport>],
    /// What carries their packets.
    pub(crate) net: &'a mut Network,
    pub(crate) mmu: &'a mut Mmu,
    pub(crate) dma: &'a mut DmaState,
    pub(crate) engines: &'a mut Engines,
}

impl Io<'_> {
    /// DMA for a moment.
    pub(crate) fn dma(&mut self) -> Dma<'_> {
        Dma {
            mmu: self.mmu,
            state: self.dma,
        }
    }

    /// Fills a buffer from a connection, when no receive is queued there and all its bytes have
    /// arrived. `false`: nothing happened.
    pub(super) fn recv_now(&mut self, (t, conn): (usize, ConnId), buffer: &Buffer) -> bool {
        let mut dma = Dma {
            mmu: self.mmu,
            state: self.dma,
        };
        let mut data = Datapath::new(&mut dma, self.engines, t);
        let got = self.transports[t].recv_now(conn, buffer, false, &mut data);
        got == Some(buffer.len)
    }
}
