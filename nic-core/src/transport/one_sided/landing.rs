//! Bytes that a peer has written to memory which takes them late: answers, signals and atomic
//! operations follow them.

use crate::dma::DmaAccess;

/// See the module text.
#[derive(Debug, Default)]
pub(in crate::transport) struct Landing {
    /// Something was written that the mark does not cover.
    is_new: bool,
    /// A place in the memory's order, behind what was written before.
    mark: Option<u64>,
    /// The memory has none: bytes are in place as soon as they are written.
    is_direct: bool,
}

impl Landing {
    /// Bytes were handed to the memory.
    #[inline]
    pub(in crate::transport) fn wrote(&mut self) {
        self.is_new = true;
    }

    /// Whether all bytes are in place. If not, the caller asks again in a later step.
    #[inline]
    pub(in crate::transport) fn is_over(&mut self, dma: &mut dyn DmaAccess) -> bool {
        let is_idle = !self.is_new && self.mark.is_none();
        self.is_direct || is_idle || self.look(dma)
    }

    #[inline(never)]
    fn look(&mut self, dma: &mut dyn DmaAccess) -> bool {
        if std::mem::take(&mut self.is_new) {
            self.mark = dma.mark();
            self.is_direct = self.mark.is_none();
        }
        self.mark = self.mark.filter(|mark| !dma.has_landed(*mark));
        self.mark.is_none()
    }
}
