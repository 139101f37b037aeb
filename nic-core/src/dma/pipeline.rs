//! The receive pipeline past an engine: from the NIC's memory or a peer's, to GPU memory.
#![allow(unsafe_code)] // Raw copies out of a peer's exported memory.

use ringbell_gtlb::Fault;

use super::{at, Dma};
use crate::copy;
use crate::dma::{DmaAccess, Foreign};
use crate::engine::{Pipeline, PIECE, TAPPED, TAPPED_AROUND};
use crate::types::Buffer;

/// Bytes in the NIC's own memory, which stay unchanged: the engine reads them where they lie.
pub(super) struct Own<'a, 'd> {
    pub(super) dma: &'a mut Dma<'d>,
    pub(super) buffer: &'a Buffer,
    pub(super) offset: u64,
    pub(super) streaming: bool,
    pub(super) src: &'a [u8],
}

impl Pipeline for Own<'_, '_> {
    fn len(&self) -> usize {
        self.src.len()
    }

    fn pass(&mut self, at: usize, n: usize, to: usize) -> Result<Option<&[u8]>, Fault> {
        let bytes = &self.src[at..at + n];
        self.store(to, bytes)?;
        Ok(Some(bytes))
    }

    fn take(&mut self, at: usize, n: usize) -> Option<&[u8]> {
        Some(&self.src[at..at + n])
    }

    fn store(&mut self, to: usize, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.offset + to as u64;
        self.dma.store(self.buffer, at, bytes, self.streaming)
    }
}

/// Bytes in a peer's memory.
pub(super) struct Peers<'a, 'd> {
    dma: &'a mut Dma<'d>,
    buffer: &'a Buffer,
    offset: u64,
    streaming: bool,
    src: &'a Foreign<'a>,
    piece: &'a mut Vec<u8>,
    /// Stores around the cache that nothing has ordered yet.
    unordered: bool,
}

impl<'a, 'd> Peers<'a, 'd> {
    pub(super) fn new(
        dma: &'a mut Dma<'d>,
        buffer: &'a Buffer,
        offset: u64,
        streaming: bool,
        src: &'a Foreign<'a>,
        piece: &'a mut Vec<u8>,
    ) -> Self {
        piece.resize(PIECE.max(TAPPED), 0);
        Peers {
            streaming: streaming && dma.is_direct(buffer),
            dma,
            buffer,
            offset,
            src,
            piece,
            unordered: false,
        }
    }
}

impl Drop for Peers<'_, '_> {
    fn drop(&mut self) {
        if self.unordered {
            copy::fence_streaming();
        }
    }
}

impl Pipeline for Peers<'_, '_> {
    fn len(&self) -> usize {
        self.src.len
    }

    fn pass(&mut self, from: usize, n: usize, to: usize) -> Result<Option<&[u8]>, Fault> {
        assert!(from + n <= self.src.len && n <= self.piece.len());
        let offset = self.offset + to as u64;
        let src = self.src.from.wrapping_add(from);
        if self.dma.is_direct(self.buffer) {
            let mut done = 0;
            while done < n {
                let span = self.dma.span(self.buffer, offset + done as u64)?;
                let span = span.prefix((n - done) as u64);
                let Some(dst) = self.dma.direct(span) else {
                    return Err(Fault::NoTranslation {
                        va: at(self.buffer, offset + done as u64)?,
                    });
                };
                // SAFETY: the source is mapped for its length (the maker's promise) and the destination
                // (checked by `direct`); the piece is ours and holds `n` bytes (checked above).
                unsafe {
                    let kept = self.piece.as_mut_ptr().add(done);
                    let len = span.len as usize;
                    copy::copy_twice(dst, kept, src.wrapping_add(done), len, self.streaming);
                }
                self.unordered |= self.streaming;
                done += span.len as usize;
            }
        } else {
            // SAFETY: as above.
            unsafe { copy::copy(self.piece.as_mut_ptr(), src, n) };
            self.dma.write(self.buffer, offset, &self.piece[..n])?;
            // `write` counts its own.
            self.dma.state.copied -= n as u64;
        }
        self.dma.state.copied += 2 * n as u64;
        // Before the engine sees them: revoked bytes are no part of the stream.
        Ok((!(self.src.is_revoked)()).then(|| &self.piece[..n]))
    }

    fn take(&mut self, at: usize, n: usize) -> Option<&[u8]> {
        assert!(at + n <= self.src.len && n <= self.piece.len());
        // SAFETY: the source is mapped for its length (the maker's promise), the piece is ours.
        unsafe { copy::copy(self.piece.as_mut_ptr(), self.src.from.wrapping_add(at), n) };
        self.dma.state.copied += n as u64;
        (!(self.src.is_revoked)()).then(|| &self.piece[..n])
    }

    fn most(&self) -> usize {
        if self.streaming {
            TAPPED_AROUND
        } else {
            TAPPED
        }
    }

    fn store(&mut self, to: usize, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.offset + to as u64;
        self.dma.store(self.buffer, at, bytes, self.streaming)
    }
}
