//! A mock of GPU memory behind the DMA seam.

use ringbell_gtlb::{BusSpan, Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};
use ringbell_nic_core::dma::{DmaAccess, PeerDma, ReadStatus, RemoteMemory, WordUpdate};
use ringbell_nic_core::types::Buffer;

/// GPU memory as plain vectors: region `r`, byte `va`.
#[derive(Default)]
pub struct MockDma {
    pub regions: Vec<Vec<u8>>,
    /// Answer every n-th read with `Pending` first.
    pub pending_every: u64,
    reads: u64,
    owed: Option<(Buffer, u64, usize)>,
    /// Refuse this region.
    pub faulty: Option<u32>,
}

impl MockDma {
    pub fn region(&mut self, bytes: Vec<u8>) -> Buffer {
        let len = bytes.len() as u32;
        self.regions.push(bytes);
        Buffer {
            region: self.regions.len() as u32 - 1,
            va: GpuVa(0),
            len,
        }
    }
    pub fn bytes(&self, b: Buffer) -> &[u8] {
        &self.regions[b.region as usize][b.va.0 as usize..][..b.len as usize]
    }
}

/// No region has a remote key, so none is ever held.
impl RemoteMemory for MockDma {
    fn remote(
        &mut self,
        _: &[PdId],
        rkey: Rkey,
        _: GpuVa,
        _: u32,
        _: Need,
    ) -> Result<Buffer, Fault> {
        Err(Fault::BadKey { key: rkey.0 })
    }
    fn remote_word(&mut self, _: &[PdId], rkey: Rkey, _: GpuVa, _: u32) -> Result<Buffer, Fault> {
        Err(Fault::BadKey { key: rkey.0 })
    }
    fn update_word(&mut self, word: &Buffer, _: WordUpdate) -> Result<u64, (Status, u64)> {
        unreachable!("{word:?} was never granted")
    }
    fn hold(&mut self, region: u32) {
        unreachable!("region {region} was never granted")
    }
    fn release(&mut self, region: u32) {
        unreachable!("region {region} was never held")
    }
}

impl DmaAccess for MockDma {
    fn read(&mut self, b: &Buffer, offset: u64, dst: &mut [u8]) -> Result<ReadStatus, Fault> {
        if self.faulty == Some(b.region) {
            return Err(Fault::NoTranslation {
                va: GpuVa(b.va.0 + offset),
            });
        }
        self.reads += 1;
        match self.owed.take() {
            Some(owed) => assert_eq!(
                owed,
                (*b, offset, dst.len()),
                "a pending read was not repeated"
            ),
            None if self.pending_every > 0 && self.reads.is_multiple_of(self.pending_every) => {
                self.owed = Some((*b, offset, dst.len()));
                return Ok(ReadStatus::Pending);
            }
            None => {}
        }
        assert!(
            offset + dst.len() as u64 <= u64::from(b.len),
            "read past the buffer"
        );
        let from = (b.va.0 + offset) as usize;
        dst.copy_from_slice(&self.regions[b.region as usize][from..from + dst.len()]);
        Ok(ReadStatus::Done)
    }
    fn write(&mut self, b: &Buffer, offset: u64, src: &[u8]) -> Result<(), Fault> {
        if self.faulty == Some(b.region) {
            return Err(Fault::NoTranslation {
                va: GpuVa(b.va.0 + offset),
            });
        }
        assert!(
            offset + src.len() as u64 <= u64::from(b.len),
            "write past the buffer"
        );
        let to = (b.va.0 + offset) as usize;
        self.regions[b.region as usize][to..to + src.len()].copy_from_slice(src);
        Ok(())
    }
    fn span(&mut self, b: &Buffer, offset: u64) -> Result<BusSpan, Fault> {
        Err(Fault::NoTranslation {
            va: GpuVa(b.va.0 + offset),
        })
    }
    fn direct(&self, _: BusSpan) -> Option<*mut u8> {
        None
    }
    fn count_copied(&mut self, _: u64) {}
    fn peers(&mut self) -> Option<&mut dyn PeerDma> {
        None
    }
}
