//! The NIC's memory management unit: the only way from a GPU address to a bus address.
//!
//! An operation first [*pins*](Mmu::pin) its buffer, which checks domain, region, bounds and rights
//! once, then asks for [*spans*](Mmu::span) as it moves bytes, and unpins when it retires. A region
//! is freed in two steps, so that operations in flight finish: [`Mmu::begin_deregister`] refuses
//! new pins, [`Mmu::finish_deregister`] succeeds when the last pin is gone, and then no entry is
//! left.

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::{GpuVa, Lkey, PdId, Rkey};

use crate::bank::{Bank, GtlbStats, MapError, VA_END};
use crate::bus::{BusAddr, BusSpan};
use crate::fault::Fault;
use crate::gtlb::{ConfigError, Gtlb, GtlbConfig};
use crate::page_table::{PageTable, GROUP_SHIFT};
use crate::pd::{DomainTable, PdError, MAX_DOMAINS};
use crate::region::{
    Access, MemoryRegion, Need, Region, RegionInfo, RegionState, RegionTable, RemoteKeys,
    MAX_REGIONS,
};
use crate::registers::{BarError, RegisterBlock};

/// Sizes of an [`Mmu`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmuConfig {
    /// One entry per GTLB; each serves a window of addresses.
    pub instances: Vec<GtlbConfig>,
    /// Whether a miss is refilled from the full page table. Without it, memory that does not fit is
    /// refused when it is mapped.
    pub refill: bool,
}

impl Default for MmuConfig {
    /// Three GTLBs of the paper's size (96 GiB), with refill.
    fn default() -> Self {
        MmuConfig {
            instances: vec![GtlbConfig::default(); 3],
            refill: true,
        }
    }
}

/// Proof that a range was checked and its region cannot go away. Hand it back to [`Mmu::unpin`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a region that stays pinned can never be freed"]
pub struct Pin {
    /// Handle of the region for [`Mmu::span`].
    pub region: u32,
}

/// A region that could not be registered; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No such protection domain.
    #[error(transparent)]
    Pd(#[from] PdError),
    /// A region has at least one byte.
    #[error("a memory region at {va} needs at least one byte")]
    Empty {
        /// First byte.
        va: GpuVa,
    },
    /// The range leaves the address space.
    #[error("{len} bytes at {va} leave the 57-bit virtual address space")]
    OutOfSpace {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
    },
    /// A part of the range has no page.
    #[error("{va} is not mapped; map the GPU memory before registering it, and check the length")]
    NotMapped {
        /// First byte without a page.
        va: GpuVa,
    },
    /// IBTA vol. 1 §10.6.3.1: remote write and remote atomic need local write.
    #[error("remote write or atomic access needs local write access")]
    RemoteWriteWithoutLocal,
    /// The region table is full.
    #[error("all {limit} memory regions are in use; deregister some, or register larger ranges")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The entries of the range do not fit in the GTLB, and refill is off.
    #[error(transparent)]
    Gtlb(#[from] MapError),
}

/// A region that could not be freed (yet).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// No such region.
    #[error("{lkey} names no memory region; it was never registered or has been freed")]
    BadKey {
        /// The key.
        lkey: Lkey,
    },
    /// It is being freed already.
    #[error("the region with {lkey} is already being freed")]
    AlreadyBegun {
        /// The key.
        lkey: Lkey,
    },
    /// [`Mmu::begin_deregister`] comes first.
    #[error("the region with {lkey} is still in use; begin to deregister it first")]
    NotBegun {
        /// The key.
        lkey: Lkey,
    },
    /// Operations are in flight.
    #[error("{pins} operations on the region with {lkey} are in flight; wait for them, or quarantine it")]
    Pinned {
        /// The key.
        lkey: Lkey,
        /// How many.
        pins: u32,
    },
}

/// Memory that could not be unmapped; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// A region still covers a part of it.
    #[error(
        "the region with {lkey} at {va} still covers a part of the range; deregister it first"
    )]
    InUse {
        /// Its key.
        lkey: Lkey,
        /// Its first byte.
        va: GpuVa,
    },
    /// The range is not what was mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Protection domains, regions and GTLBs of one NIC. See the module text.
#[derive(Debug)]
pub struct Mmu {
    bank: Bank,
    registers: RegisterBlock,
    domains: DomainTable,
    regions: RegionTable,
    remote: RemoteKeys,
    /// Regions that began to be freed.
    deregistrations: u64,
}

impl Mmu {
    /// An empty MMU.
    ///
    /// # Errors
    /// [`ConfigError`] names a size that cannot be.
    pub fn new(config: MmuConfig) -> Result<Mmu, ConfigError> {
        if config.instances.is_empty() || config.instances.len() > 64 {
            return Err(ConfigError::Instances {
                instances: config.instances.len(),
            });
        }
        for instance in &config.instances {
            instance.check()?;
        }
        let instances = config.instances.iter().map(|c| Gtlb::new(*c));
        let instances = instances.collect::<Result<_, _>>()?;
        Ok(Mmu {
            bank: Bank::new(instances, config.refill),
            registers: RegisterBlock::default(),
            domains: DomainTable::default(),
            regions: RegionTable::default(),
            remote: RemoteKeys::random(),
            deregistrations: 0,
        })
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// [`PdError::TooMany`].
    pub fn alloc_pd(&mut self) -> Result<PdId, PdError> {
        self.domains
            .alloc()
            .ok_or(PdError::TooMany { limit: MAX_DOMAINS })
    }

    /// Frees an empty protection domain.
    ///
    /// # Errors
    /// [`PdError`]: unknown, or regions are left.
    pub fn free_pd(&mut self, pd: PdId) -> Result<(), PdError> {
        self.domains.free(pd)
    }

    /// Makes GPU memory known: keeps its pages and populates the GTLBs (FpgaNIC Algorithm 1).
    ///
    /// # Errors
    /// [`MapError`]; then nothing was changed. The two `Exhausted` errors exist only without
    /// refill.
    pub fn map(&mut self, table: &PageTable) -> Result<(), MapError> {
        self.bank.map(table)
    }

    /// Forgets whole pages, before the GPU frees them.
    ///
    /// # Errors
    /// [`UnmapError::InUse`] while a region (also a quarantined one) covers a part of the range.
    pub fn unmap(&mut self, va: GpuVa, len: u64) -> Result<(), UnmapError> {
        let end = va.0.saturating_add(len);
        if let Some(region) = self.regions.iter().find(|r| r.start < end && va.0 < r.end) {
            return Err(UnmapError::InUse {
                lkey: region.lkey,
                va: GpuVa(region.start),
            });
        }
        Ok(self.bank.unmap(va, len)?)
    }

    /// Registers `len` bytes at `va`, which must be mapped; regions may overlap.
    ///
    /// # Errors
    /// [`RegisterError`]; then nothing was changed.
    pub fn register(
        &mut self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.add_region(pd, va, len, access, None)
    }

    /// Registers a range that is contiguous on the bus and needs no entry of a GTLB: the card's own
    /// memory, or memory of the host at addresses that the card can reach as they are. The caller
    /// vouches that `bus` is backed for `len` bytes; no GPU memory may have the same addresses.
    ///
    /// # Errors
    /// [`RegisterError`]; then nothing was changed.
    pub fn register_flat(
        &mut self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        access: Access,
        bus: u64,
    ) -> Result<MemoryRegion, RegisterError> {
        self.add_region(pd, va, len, access, Some(bus))
    }

    /// Whether the pinned region is [flat](Mmu::register_flat).
    pub fn is_flat(&self, region: u32) -> bool {
        self.regions.find(region).is_some_and(|r| r.flat.is_some())
    }

    /// Whether the pinned region lets peers write.
    pub fn grants_remote_write(&self, region: u32) -> bool {
        self.regions
            .find(region)
            .is_some_and(|r| r.access.remote_write)
    }

    fn add_region(
        &mut self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        access: Access,
        flat: Option<u64>,
    ) -> Result<MemoryRegion, RegisterError> {
        let domain = self.domains.find_mut(pd).ok_or(PdError::NoSuchPd { pd })?;
        if len == 0 {
            return Err(RegisterError::Empty { va });
        }
        let end = match va.checked_add(len) {
            Some(end) if end.0 <= VA_END => end.0,
            _ => return Err(RegisterError::OutOfSpace { va, len }),
        };
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(RegisterError::RemoteWriteWithoutLocal);
        }
        if flat.is_none() {
            if let Some(hole) = self.bank.first_hole(va.0, len) {
                return Err(RegisterError::NotMapped { va: GpuVa(hole) });
            }
            // Entries may have gone when another region of the range was freed.
            self.bank.populate(va.0, len)?;
        }
        let lkey = self
            .regions
            .add(pd, va.0, end, access, flat)
            .ok_or(RegisterError::TooMany { limit: MAX_REGIONS })?;
        domain.add(va.0, end, lkey);
        Ok(MemoryRegion {
            lkey,
            rkey: self.remote.of(lkey),
            pd,
            va,
            len,
            access,
        })
    }

    /// Checks that `len` bytes at `va` may be used by a queue of `pd`, and counts the operation in.
    ///
    /// Key 0 finds the region by address. A range of no bytes is checked like any other.
    ///
    /// # Errors
    /// The [`Fault`] that the completion reports.
    #[inline]
    pub fn pin(
        &mut self,
        pd: PdId,
        lkey: Lkey,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<Pin, Fault> {
        let region = self.checked(pd, lkey, va, len, need)?;
        region.pins += 1;
        Ok(Pin {
            region: region.lkey.0,
        })
    }

    /// Checks a range as [`pin`](Mmu::pin) does, and returns its region: for bytes that are moved
    /// before a region is freed, or until [`hold`](Mmu::hold) pins it.
    ///
    /// # Errors
    /// As for `pin`.
    #[inline]
    pub fn check(
        &mut self,
        pd: PdId,
        lkey: Lkey,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<u32, Fault> {
        let region = self.checked(pd, lkey, va, len, need)?;
        Ok(region.lkey.0)
    }

    /// Counts an operation in on a region that was just [checked](Mmu::check) for it.
    #[inline]
    pub fn hold(&mut self, region: u32) -> Option<Pin> {
        let row = self.regions.find_mut(region)?;
        row.pins += 1;
        Some(Pin { region })
    }

    /// Checks a range as [`pin`](Mmu::pin) does, and returns the [span](Mmu::span) that it begins
    /// with: for bytes that are read or written before the MMU is called again.
    ///
    /// # Errors
    /// As for both.
    #[inline(always)]
    pub fn span_once(
        &mut self,
        pd: PdId,
        lkey: Lkey,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<BusSpan, Fault> {
        let region = self.checked(pd, lkey, va, len, need)?;
        let (start, flat) = (region.start, region.flat);
        self.translate(start, flat, va, len)
    }

    /// Checks an access of a peer by the remote key, for bytes that are moved before the MMU is
    /// called again, or until [`hold`](Mmu::hold) pins the region: the region must be of one of
    /// these domains. Returns its handle and its first byte.
    ///
    /// # Errors
    /// The [`Fault`] that the peer's completion reports.
    pub fn check_remote(
        &self,
        domains: &[PdId],
        rkey: Rkey,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<(u32, GpuVa), Fault> {
        let lkey = self.remote.local(rkey).0;
        let found = self.regions.find(lkey);
        let region = found
            .filter(|r| domains.contains(&r.pd))
            .ok_or(Fault::BadKey { key: rkey.0 })?;
        check(region, va, va.0.saturating_add(len), need)?;
        Ok((lkey, GpuVa(region.start)))
    }

    /// The live region that a peer means by a remote key, of any domain.
    pub fn find_remote(&self, rkey: Rkey) -> Option<MemoryRegion> {
        let row = self.regions.find(self.remote.local(rkey).0)?;
        (row.state == RegionState::Live).then(|| MemoryRegion {
            lkey: row.lkey,
            rkey,
            pd: row.pd,
            va: GpuVa(row.start),
            len: row.end - row.start,
            access: row.access,
        })
    }

    #[inline(always)]
    fn checked(
        &mut self,
        pd: PdId,
        lkey: Lkey,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<&mut Region, Fault> {
        let end = va.0.saturating_add(len);
        let found = if lkey.0 == 0 {
            let domain = self
                .domains
                .find_mut(pd)
                .ok_or(Fault::NotRegistered { va })?;
            domain.find(&self.regions, va.0, end, need)?
        } else {
            lkey
        };
        let bad = Fault::BadKey { key: found.0 };
        let region = self
            .regions
            .find_mut(found.0)
            .filter(|r| r.pd == pd)
            .ok_or(bad)?;
        check(region, va, end, need)?;
        Ok(region)
    }

    /// Counts another operation in on a region that was pinned before, for a range and an access
    /// that were checked then; `None` when it is being freed. A key may come back after thousands
    /// of regions, so the caller makes sure by [`Mmu::deregistrations`] that none was freed since.
    #[inline]
    pub fn pin_again(&mut self, region: u32) -> Option<Pin> {
        let row = self.regions.find_mut(region)?;
        if row.state != RegionState::Live {
            return None;
        }
        row.pins += 1;
        Some(Pin { region })
    }

    /// How many regions ever began to be freed: while it is the same, what was found out about a
    /// region and its translation holds.
    #[inline]
    pub fn deregistrations(&self) -> u64 {
        self.deregistrations
    }

    /// Counts an operation out; from then on it must not touch the buffer.
    #[inline]
    pub fn unpin(&mut self, pin: Pin) {
        let region = self.regions.find_mut(pin.region);
        debug_assert!(
            region.as_ref().is_some_and(|r| r.pins > 0),
            "{pin:?} was not pinned"
        );
        if let Some(region) = region {
            region.pins = region.pins.saturating_sub(1);
        }
    }

    /// The contiguous run of bus addresses that `va` begins: at least one byte, at most `len`.
    ///
    /// `region` is the handle of a [`Pin`].
    ///
    /// # Errors
    /// [`Fault::NoTranslation`] on a miss without refill, [`Fault::OutOfBounds`] when the range
    /// leaves the region, [`Fault::RegionFreed`] when it was quarantined meanwhile.
    #[inline]
    pub fn span(&mut self, region: u32, va: GpuVa, len: u64) -> Result<BusSpan, Fault> {
        let row = self
            .regions
            .find(region)
            .ok_or(Fault::BadKey { key: region })?;
        if !matches!(row.state, RegionState::Live | RegionState::Freeing) {
            return Err(Fault::RegionFreed { va });
        }
        if !row.covers(va.0, va.0.saturating_add(len)) {
            return Err(Fault::OutOfBounds {
                va,
                end: GpuVa(row.end),
            });
        }
        let (start, flat) = (row.start, row.flat);
        self.translate(start, flat, va, len)
    }

    /// The span at an address of a region that begins at `start`.
    #[inline(always)]
    fn translate(
        &mut self,
        start: u64,
        flat: Option<u64>,
        va: GpuVa,
        len: u64,
    ) -> Result<BusSpan, Fault> {
        if let Some(bus) = flat {
            return Ok(BusSpan {
                addr: BusAddr::mint(bus + (va.0 - start)),
                len,
            });
        }
        let hit = self
            .bank
            .translate(va.0)
            .ok_or(Fault::NoTranslation { va })?;
        Ok(BusSpan {
            addr: BusAddr::mint(hit.bus),
            len: hit.left.min(len),
        })
    }

    /// Refuses new pins of a region; operations in flight go on.
    ///
    /// # Errors
    /// [`DeregisterError::BadKey`], [`DeregisterError::AlreadyBegun`].
    pub fn begin_deregister(&mut self, lkey: Lkey) -> Result<(), DeregisterError> {
        let region = self.region_mut(lkey)?;
        if region.state != RegionState::Live {
            return Err(DeregisterError::AlreadyBegun { lkey });
        }
        region.state = RegionState::Freeing;
        self.deregistrations += 1;
        Ok(())
    }

    /// Operations in flight on a region; 0 when it is gone.
    pub fn pins_of(&self, lkey: Lkey) -> u32 {
        match self.regions.find(lkey.0) {
            Some(region) if region.state != RegionState::Free => region.pins,
            _ => 0,
        }
    }

    /// Frees a region whose last operation has retired, and invalidates the entries that no other
    /// region needs.
    ///
    /// # Errors
    /// [`DeregisterError::Pinned`] while operations are in flight, [`DeregisterError::NotBegun`],
    /// [`DeregisterError::BadKey`].
    pub fn finish_deregister(&mut self, lkey: Lkey) -> Result<(), DeregisterError> {
        let region = *self.region_mut(lkey)?;
        if region.state == RegionState::Live {
            return Err(DeregisterError::NotBegun { lkey });
        }
        if region.pins > 0 {
            return Err(DeregisterError::Pinned {
                lkey,
                pins: region.pins,
            });
        }
        self.regions.remove(lkey);
        if let Some(domain) = self.domains.find_mut(region.pd) {
            domain.remove(lkey);
        }
        if region.flat.is_none() {
            self.invalidate_unused(region.start, region.end);
        }
        Ok(())
    }

    /// Takes a region that a peer does not let go out of service: from now on nothing of it is
    /// translated, and its memory stays mapped (hence is not reused) until its last pin is gone and
    /// [`Mmu::finish_deregister`] succeeds.
    ///
    /// # Errors
    /// [`DeregisterError::NotBegun`], [`DeregisterError::BadKey`].
    pub fn quarantine(&mut self, lkey: Lkey) -> Result<(), DeregisterError> {
        let region = self.region_mut(lkey)?;
        if region.state == RegionState::Live {
            return Err(DeregisterError::NotBegun { lkey });
        }
        region.state = RegionState::Quarantined;
        let (start, end, flat) = (region.start, region.end, region.flat);
        if flat.is_none() {
            self.invalidate_unused(start, end);
        }
        Ok(())
    }

    /// The regions of a domain that share a byte with `len` bytes at `va`, highest start first;
    /// those being freed, and quarantined ones, included.
    pub fn overlapping(
        &self,
        pd: PdId,
        va: GpuVa,
        len: u64,
    ) -> impl Iterator<Item = RegionInfo> + '_ {
        let end = va.0.saturating_add(len);
        let keys = self.domains.find(pd).into_iter();
        keys.flat_map(move |d| d.overlapping(va.0, end))
            .filter_map(|lkey| self.regions.find(lkey.0))
            .filter(|row| row.state != RegionState::Free)
            .map(|row| RegionInfo {
                region: MemoryRegion {
                    lkey: row.lkey,
                    rkey: self.remote.of(row.lkey),
                    pd: row.pd,
                    va: GpuVa(row.start),
                    len: row.end - row.start,
                    access: row.access,
                },
                flat: row.flat,
                pins: row.pins,
                live: row.state == RegionState::Live,
            })
    }

    /// Misses and refills since the MMU was made.
    pub fn stats(&self) -> GtlbStats {
        self.bank.stats
    }

    /// Writes a register of the GTLB block. Low halves come before high halves.
    ///
    /// # Errors
    /// [`BarError`] says which value is wrong.
    pub fn write_register(&mut self, reg: Reg, value: u32) -> Result<(), BarError> {
        self.registers.write(&mut self.bank, reg, value)
    }

    /// Reads a register of the GTLB block; `None` when it is not one. Entry registers read as
    /// staged.
    pub fn read_register(&self, reg: Reg) -> Option<u32> {
        self.registers.read(&self.bank, reg)
    }

    fn region_mut(&mut self, lkey: Lkey) -> Result<&mut Region, DeregisterError> {
        self.regions
            .find_mut(lkey.0)
            .filter(|r| r.state != RegionState::Free)
            .ok_or(DeregisterError::BadKey { lkey })
    }

    /// Invalidates the entries of a range, but for groups that a region in service still covers.
    fn invalidate_unused(&mut self, start: u64, end: u64) {
        let groups = |start: u64, end: u64| start >> GROUP_SHIFT..=(end - 1) >> GROUP_SHIFT;
        let range = groups(start, end);
        let kept: Vec<_> = self
            .regions
            .iter()
            .filter(|r| {
                matches!(r.state, RegionState::Live | RegionState::Freeing) && r.flat.is_none()
            })
            .map(|r| groups(r.start, r.end))
            .filter(|used| used.start() <= range.end() && range.start() <= used.end())
            .collect();
        self.bank
            .invalidate(range.filter(|group| !kept.iter().any(|used| used.contains(group))));
    }
}

/// Whether an operation of the region's domain may use `va..end` in this way.
#[inline]
fn check(region: &Region, va: GpuVa, end: u64, need: Need) -> Result<(), Fault> {
    if region.state != RegionState::Live {
        return Err(Fault::RegionFreed { va });
    }
    if !region.covers(va.0, end) {
        return Err(Fault::OutOfBounds {
            va,
            end: GpuVa(region.end),
        });
    }
    if !region.access.grants(need) {
        return Err(Fault::AccessDenied { va });
    }
    Ok(())
}
