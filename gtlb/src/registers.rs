//! The GTLB block of the BAR: the registers by which a driver populates the GTLBs of a card.
//!
//! FpgaNIC §2.3.2: "via the control registers exposed by the control plane". Registers that carry
//! an entry are staged here, and a write to `GTLB_COMMAND` acts. A window set by `GTLB_BASE_HI` is
//! fixed: mapping memory does not move it.

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::translation::{
    GTLB_INVALIDATE, GTLB_WRITE_LARGE, GTLB_WRITE_PAGE, GTLB_WRITE_POINTER,
};
use ringbell_nic_abi::GpuVa;

use crate::bank::Bank;
use crate::gtlb::EntryError;
use crate::page_table::{GROUP_SHIFT, LARGE_PAGE_BYTES};

/// A register write that was refused; nothing was changed but the staged value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BarError {
    /// The register does not belong to the GTLB block, or is read only.
    #[error("{} is no writable register of the GTLB block", reg.name())]
    NotOurs {
        /// The register.
        reg: Reg,
    },
    /// There is no such instance.
    #[error("GTLB_SELECT = {select}, but there are {instances} instances")]
    NoSuchInstance {
        /// Value written.
        select: u32,
        /// Instances configured.
        instances: u32,
    },
    /// Not a command.
    #[error("{} = {value} is no command", reg.name())]
    BadCommand {
        /// The register.
        reg: Reg,
        /// Value written.
        value: u32,
    },
    /// The window's base is not a multiple of 2 MiB, another instance serves a part of the window,
    /// or mapped memory depends on the old one.
    #[error("GTLB {instance} cannot serve a window at {base}: use a multiple of 2 MiB, apart from other windows, on an instance without mapped memory")]
    BadWindow {
        /// The instance.
        instance: u32,
        /// Base asked for.
        base: GpuVa,
    },
    /// The address does not lie at that index of the window.
    #[error("{va} is not the address of main entry {index} in the window of GTLB {instance}; write GTLB_BASE first")]
    BadIndex {
        /// The instance.
        instance: u32,
        /// Address staged.
        va: GpuVa,
        /// Index staged.
        index: u32,
    },
    /// The entry itself is wrong.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// No translation for the missing address was written before the miss was acknowledged.
    #[error("{va} still has no entry; write it before GTLB_REFILL = 1")]
    StillMissing {
        /// Address of the miss.
        va: GpuVa,
    },
}

/// Staged values: written, and not yet used by a command.
#[derive(Debug, Default)]
pub(crate) struct RegisterBlock {
    select: u32,
    va: [u32; 2],
    pa: [u32; 2],
    index: u32,
    base_lo: u32,
}

fn join(halves: [u32; 2]) -> u64 {
    (halves[1] as u64) << 32 | halves[0] as u64
}

impl RegisterBlock {
    pub(crate) fn write(&mut self, bank: &mut Bank, reg: Reg, value: u32) -> Result<(), BarError> {
        match reg {
            Reg::GtlbSelect => {
                let instances = bank.instances.len() as u32;
                if value >= instances {
                    return Err(BarError::NoSuchInstance {
                        select: value,
                        instances,
                    });
                }
                self.select = value;
            }
            Reg::GtlbVaLo => self.va[0] = value,
            Reg::GtlbVaHi => self.va[1] = value,
            Reg::GtlbPaLo => self.pa[0] = value,
            Reg::GtlbPaHi => self.pa[1] = value,
            Reg::GtlbIndex => self.index = value,
            Reg::GtlbBaseLo => self.base_lo = value,
            Reg::GtlbBaseHi => return self.set_base(bank, join([self.base_lo, value])),
            Reg::GtlbCommand => return self.command(bank, value),
            Reg::GtlbRefill => return acknowledge(bank, value),
            _ => return Err(BarError::NotOurs { reg }),
        }
        Ok(())
    }

    pub(crate) fn read(&self, bank: &Bank, reg: Reg) -> Option<u32> {
        let select = self.select as usize;
        let config = bank.instances[select].config();
        let base = bank.windows[select].first << GROUP_SHIFT;
        let stats = bank.stats;
        Some(match reg {
            Reg::GtlbSelect => self.select,
            Reg::GtlbVaLo => self.va[0],
            Reg::GtlbVaHi => self.va[1],
            Reg::GtlbPaLo => self.pa[0],
            Reg::GtlbPaHi => self.pa[1],
            Reg::GtlbIndex => self.index,
            Reg::GtlbBaseLo => base as u32,
            Reg::GtlbBaseHi => (base >> 32) as u32,
            Reg::GtlbInstances => bank.instances.len() as u32,
            Reg::GtlbMainEntries => config.main_entries,
            Reg::GtlbComplementaryEntries => config.complementary_entries,
            Reg::GtlbMisses => stats.misses as u32,
            Reg::GtlbRefills => stats.refills as u32,
            Reg::GtlbMissVaLo => stats.last_miss.0 as u32,
            Reg::GtlbMissVaHi => (stats.last_miss.0 >> 32) as u32,
            _ => return None,
        })
    }

    fn set_base(&self, bank: &mut Bank, base: u64) -> Result<(), BarError> {
        let instance = self.select;
        if !base.is_multiple_of(LARGE_PAGE_BYTES)
            || !bank.set_window(instance as usize, base >> GROUP_SHIFT)
        {
            return Err(BarError::BadWindow {
                instance,
                base: GpuVa(base),
            });
        }
        Ok(())
    }

    fn command(&self, bank: &mut Bank, value: u32) -> Result<(), BarError> {
        let RegisterBlock { index, select, .. } = *self;
        let (va, pa) = (join(self.va), join(self.pa));
        let window = bank.windows[select as usize];
        let gtlb = &mut bank.instances[select as usize];
        if value == GTLB_WRITE_PAGE {
            return Ok(gtlb.write_page(index, pa)?);
        }
        let group = match value {
            GTLB_INVALIDATE => window.first.wrapping_add(index as u64),
            _ => va >> GROUP_SHIFT,
        };
        if !window.contains(group) || group - window.first != index as u64 {
            return Err(BarError::BadIndex {
                instance: select,
                va: GpuVa(va),
                index,
            });
        }
        match value {
            GTLB_WRITE_LARGE => gtlb.write_large(group, pa)?,
            GTLB_WRITE_POINTER => gtlb.write_pointer(group, pa as u32)?,
            GTLB_INVALIDATE => gtlb.invalidate(group),
            _ => {
                return Err(BarError::BadCommand {
                    reg: Reg::GtlbCommand,
                    value,
                })
            }
        }
        Ok(())
    }
}

fn acknowledge(bank: &mut Bank, value: u32) -> Result<(), BarError> {
    let va = bank.stats.last_miss;
    match value {
        1 if bank.peek(va.0).is_none() => return Err(BarError::StillMissing { va }),
        1 => bank.stats.refills += 1,
        2 => {}
        _ => {
            return Err(BarError::BadCommand {
                reg: Reg::GtlbRefill,
                value,
            })
        }
    }
    bank.stats.last_miss = GpuVa(0);
    Ok(())
}
