//! A mock of GPU memory behind the DMA seam.

use std::collections::BTreeMap;

use ringbell_gtlb::testing::span;
use ringbell_gtlb::{Access, BusSpan, Fault, Need};
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
    /// Memory is mapped, in runs of 5,000 bytes.
    pub mapped: bool,
    /// Refuse this region.
    pub faulty: Option<u32>,
    /// What peers may do to regions, by their remote keys, and to the regions of which domain.
    pub keys: BTreeMap<u32, (PdId, Buffer, Access)>,
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

/// Nothing holds a region.
impl RemoteMemory for MockDma {
    fn remote(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        va: GpuVa,
        len: u32,
        need: Need,
    ) -> Result<Buffer, Fault> {
        let known = self.keys.get(&rkey.0);
        let known = known.filter(|(pd, ..)| domains.contains(pd));
        let (_, whole, access) = known.ok_or(Fault::BadKey { key: rkey.0 })?;
        let end = u64::from(whole.len);
        if va.0.checked_add(len.into()).is_none_or(|e| e > end) {
            let end = GpuVa(end);
            return Err(Fault::OutOfBounds { va, end });
        }
        let may = match need {
            Need::RemoteRead => access.remote_read,
            Need::RemoteWrite => access.remote_write,
            _ => access.remote_atomic,
        };
        match may {
            true => Ok(Buffer { va, len, ..*whole }),
            false => Err(Fault::AccessDenied { va }),
        }
    }
    fn remote_word(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        _: GpuVa,
        index: u32,
    ) -> Result<Buffer, Fault> {
        let va = GpuVa(u64::from(index) * 8);
        self.remote(domains, rkey, va, 8, Need::RemoteWrite)
    }
    fn update_word(&mut self, word: &Buffer, update: WordUpdate) -> Result<u64, (Status, u64)> {
        if !word.va.0.is_multiple_of(8) {
            return Err((Status::InvalidArgument, word.va.0));
        }
        let at = word.va.0 as usize;
        let bytes = &mut self.regions[word.region as usize][at..at + 8];
        let old = u64::from_le_bytes((&*bytes).try_into().unwrap()); // 8 bytes
        let new = match update {
            WordUpdate::Add(n) => old.wrapping_add(n),
            WordUpdate::Set(n) => n,
            WordUpdate::CompareSwap { compare, swap } if old == compare => swap,
            WordUpdate::CompareSwap { .. } => old,
        };
        bytes.copy_from_slice(&new.to_le_bytes());
        Ok(old)
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
        let va = b.va.0 + offset;
        let len = 5_000 - va % 5_000;
        match self.mapped {
            true => Ok(span(
                u64::from(b.region) << 32 | va,
                len.min(u64::from(b.len) - offset),
            )),
            false => Err(Fault::NoTranslation { va: GpuVa(va) }),
        }
    }
    fn direct(&self, span: BusSpan) -> Option<*mut u8> {
        let (region, at) = (span.addr.value() >> 32, span.addr.value() as u32);
        let bytes = &self.regions[region as usize][at as usize..][..span.len as usize];
        Some(bytes.as_ptr().cast_mut())
    }
    fn is_immediate(&self) -> bool {
        false
    }
    fn count_copied(&mut self, _: u64) {}
    fn peers(&mut self) -> Option<&mut dyn PeerDma> {
        None
    }
}
