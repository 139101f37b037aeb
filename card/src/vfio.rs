//! The BAR of a card that is bound to `vfio-pci`: Linux's access to a device for a program without root (kernel documentation,
//! driver-api/vfio.rst).
//!
//! A device belongs to an IOMMU group, which is opened as a whole (`/dev/vfio/N`, after a container with a type of IOMMU);
//! kernels since 6.6 can also open the device alone (`/dev/vfio/devices/vfioN`, bound to an IOMMU descriptor). Either way the
//! device's descriptor then reports where in it each BAR can be mapped (`VFIO_DEVICE_GET_REGION_INFO`) and with which holes.
//!
//! Nothing is mapped for the card's own DMA: that is for a card's driver.
//!
//! Untested on a card and on a kernel with VFIO: none was available. Tests emulate the kernel.
#![allow(unsafe_code)] // ioctl.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ringbell_nic_abi::bar::BAR_BYTES;
use rustix::fs::{Mode, OFlags};
use vfio_bindings::bindings::vfio as sys;

/// A device cannot be opened through VFIO.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// It is in no IOMMU group.
    #[error("PCI device {address} is in no IOMMU group ({source}): turn the IOMMU on in the firmware and on the kernel's command line (intel_iommu=on), or map sysfs's resource0 as root, with the device bound to no driver")]
    NoGroup {
        /// The device.
        address: String,
        /// Why its group cannot be read.
        source: io::Error,
    },
    /// A file of VFIO cannot be opened.
    #[error("cannot open {}: {source}; load vfio-pci (modprobe vfio-pci), bind the device to it (driverctl set-override {address} vfio-pci), and give this user rights on the file", .path.display())]
    Open {
        /// The device.
        address: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another device of the group has a driver.
    #[error("{} is not viable: another device of the same IOMMU group as {address} is held by its driver; bind all of them to vfio-pci (or to none)", .path.display())]
    NotViable {
        /// The device.
        address: String,
        /// The group.
        path: PathBuf,
    },
    /// The kernel refused a call.
    #[error("{what} of PCI device {address} failed: {source}; `dmesg` may say why")]
    Call {
        /// The device.
        address: String,
        /// The call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel's interface has another version or type.
    #[error("VFIO of this kernel cannot be used: {what}")]
    Unknown {
        /// The difference.
        what: String,
    },
    /// BAR 0 is too short.
    #[error(
        "BAR 0 of PCI device {address} has {len} bytes, a NIC's {BAR_BYTES}; is it another device?"
    )]
    TooShort {
        /// The device.
        address: String,
        /// Bytes of its BAR 0.
        len: u64,
    },
    /// BAR 0 cannot be mapped where the NIC's registers are.
    #[error("BAR 0 of PCI device {address} cannot be mapped as a whole: {why}")]
    NotMappable {
        /// The device.
        address: String,
        /// The reason.
        why: String,
    },
}

/// The kernel's calls: a trait, so that tests can emulate them.
pub(super) trait Kernel {
    fn open(&self, path: &Path) -> io::Result<OwnedFd>;
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// The names in a folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// An ioctl that takes a number.
    fn number(&self, fd: BorrowedFd<'_>, request: u32, value: u64) -> io::Result<i32>;
    /// An ioctl that takes a structure and may change it.
    fn exchange(&self, fd: BorrowedFd<'_>, request: u32, data: &mut [u8]) -> io::Result<i32>;
}

/// The real kernel.
pub(super) struct Linux;

impl Kernel for Linux {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(
            path,
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(path)?.map(|e| Ok(e?.file_name().to_string_lossy().into()));
        names.collect()
    }

    fn number(&self, fd: BorrowedFd<'_>, request: u32, value: u64) -> io::Result<i32> {
        // SAFETY: these requests take a number, or a pointer to a descriptor's number that the caller keeps.
        let r = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), value) };
        if r < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(r)
    }

    fn exchange(&self, fd: BorrowedFd<'_>, request: u32, data: &mut [u8]) -> io::Result<i32> {
        // SAFETY: the structures of these requests begin with their length (`argsz`), beyond which the kernel
        // does not write, or are strings that it only reads; `data` is as long (`Info`, callers below).
        let r = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), data.as_mut_ptr()) };
        if r < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(r)
    }
}

/// Requests, as offsets from `VFIO_BASE` (linux/vfio.h).
mod request {
    use super::sys;
    const fn io(nr: u32) -> u32 {
        (sys::VFIO_TYPE as u32) << 8 | (sys::VFIO_BASE + nr)
    }
    pub(super) const GET_API_VERSION: u32 = io(0);
    pub(super) const CHECK_EXTENSION: u32 = io(1);
    pub(super) const SET_IOMMU: u32 = io(2);
    pub(super) const GROUP_GET_STATUS: u32 = io(3);
    pub(super) const GROUP_SET_CONTAINER: u32 = io(4);
    pub(super) const GROUP_GET_DEVICE_FD: u32 = io(6);
    pub(super) const DEVICE_GET_REGION_INFO: u32 = io(8);
    pub(super) const DEVICE_BIND_IOMMUFD: u32 = io(18);
}

/// An open device, and the offset of its BAR 0 in its descriptor.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) device: OwnedFd,
    pub(super) offset: u64,
    /// Other descriptors that must stay open.
    pub(super) _held: Vec<OwnedFd>,
}

/// A structure of the kernel's that begins with `argsz`, as bytes.
struct Info(Vec<u8>);

impl Info {
    fn new(len: usize) -> Info {
        let mut bytes = vec![0; len];
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        Info(bytes)
    }
    fn set(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    /// `None` past the end: the offset may come from the kernel.
    fn u16(&self, at: usize) -> Option<u16> {
        let b = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_ne_bytes(b.try_into().ok()?))
    }
    fn u32(&self, at: usize) -> Option<u32> {
        let b = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(b.try_into().ok()?))
    }
    fn u64(&self, at: usize) -> Option<u64> {
        let b = self.0.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(b.try_into().ok()?))
    }
}

/// Longest answer that is accepted.
const LONGEST: u32 = 64 << 10;

/// Opens a device and finds its BAR 0.
pub(super) fn open(kernel: &dyn Kernel, pci: &Path, address: &str) -> Result<Region, VfioError> {
    let device = Opening {
        kernel,
        address,
        pci: pci.join(address),
    };
    let (fd, held) = match device.group() {
        Ok(opened) => opened,
        // A kernel without groups (CONFIG_VFIO_GROUP off) has the device's own file.
        Err(e @ VfioError::Open { .. }) => device.alone()?.ok_or(e)?,
        Err(e) => return Err(e),
    };
    let offset = device.bar(fd.as_fd())?;
    device.enable(fd.as_fd())?;
    Ok(Region {
        device: fd,
        offset,
        _held: held,
    })
}

struct Opening<'a> {
    kernel: &'a dyn Kernel,
    address: &'a str,
    /// Its folder in sysfs.
    pci: PathBuf,
}

impl Opening<'_> {
    fn open(&self, path: &Path) -> Result<OwnedFd, VfioError> {
        self.kernel.open(path).map_err(|source| VfioError::Open {
            address: self.address.into(),
            path: path.into(),
            source,
        })
    }

    fn call(&self, what: &'static str) -> impl FnOnce(io::Error) -> VfioError + '_ {
        move |source| VfioError::Call {
            address: self.address.into(),
            what,
            source,
        }
    }

    fn unusable(&self, why: impl Into<String>) -> VfioError {
        VfioError::NotMappable {
            address: self.address.into(),
            why: why.into(),
        }
    }

    /// By its group and a container.
    fn group(&self) -> Result<(OwnedFd, Vec<OwnedFd>), VfioError> {
        let link = self.kernel.read_link(&self.pci.join("iommu_group"));
        let link = link.map_err(|source| VfioError::NoGroup {
            address: self.address.into(),
            source,
        })?;
        let number = link.file_name().unwrap_or_default();
        let path = Path::new("/dev/vfio").join(number);
        let container = self.open(Path::new("/dev/vfio/vfio"))?;
        let version = self
            .kernel
            .number(container.as_fd(), request::GET_API_VERSION, 0);
        let version = version.map_err(self.call("VFIO_GET_API_VERSION"))?;
        let iommu = u64::from(sys::VFIO_TYPE1v2_IOMMU);
        let has = self
            .kernel
            .number(container.as_fd(), request::CHECK_EXTENSION, iommu);
        let has = has.map_err(self.call("VFIO_CHECK_EXTENSION"))?;
        if version != sys::VFIO_API_VERSION as i32 || has == 0 {
            let what = format!("version {version} of its interface, type-1 IOMMU {has}; version 0 with one is known here");
            return Err(VfioError::Unknown { what });
        }
        let group = self.open(&path)?;
        let mut status = Info::new(size_of::<sys::vfio_group_status>());
        let asked = self
            .kernel
            .exchange(group.as_fd(), request::GROUP_GET_STATUS, &mut status.0);
        asked.map_err(self.call("VFIO_GROUP_GET_STATUS"))?;
        let flags = status.u32(offset_of!(sys::vfio_group_status, flags));
        if flags.unwrap_or(0) & sys::VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(VfioError::NotViable {
                address: self.address.into(),
                path,
            });
        }
        let mut fd = container.as_raw_fd().to_ne_bytes();
        let set = self
            .kernel
            .exchange(group.as_fd(), request::GROUP_SET_CONTAINER, &mut fd);
        set.map_err(self.call("VFIO_GROUP_SET_CONTAINER"))?;
        let set = self
            .kernel
            .number(container.as_fd(), request::SET_IOMMU, iommu);
        set.map_err(self.call("VFIO_SET_IOMMU"))?;
        let mut name = [self.address.as_bytes(), &[0]].concat();
        let fd = self
            .kernel
            .exchange(group.as_fd(), request::GROUP_GET_DEVICE_FD, &mut name);
        let fd = fd.map_err(self.call("VFIO_GROUP_GET_DEVICE_FD"))?;
        Ok((owned(fd), vec![group, container]))
    }

    /// By its own file; `None` when the kernel shows none.
    fn alone(&self) -> Result<Option<(OwnedFd, Vec<OwnedFd>)>, VfioError> {
        let names = self
            .kernel
            .list(&self.pci.join("vfio-dev"))
            .unwrap_or_default();
        let Some(name) = names.into_iter().find(|n| n.starts_with("vfio")) else {
            return Ok(None);
        };
        let device = self.open(&Path::new("/dev/vfio/devices").join(name))?;
        let iommu = self.open(Path::new("/dev/iommu"))?;
        // Without the fields that later kernels have added: they are optional.
        let mut bind = Info::new(offset_of!(sys::vfio_device_bind_iommufd, out_devid) + 4);
        let at = offset_of!(sys::vfio_device_bind_iommufd, iommufd);
        bind.set(at, iommu.as_raw_fd() as u32);
        let bound = self
            .kernel
            .exchange(device.as_fd(), request::DEVICE_BIND_IOMMUFD, &mut bind.0);
        bound.map_err(self.call("VFIO_DEVICE_BIND_IOMMUFD"))?;
        Ok(Some((device, vec![iommu])))
    }

    /// The device's description of a region.
    fn region(&self, device: BorrowedFd<'_>, index: u32) -> Result<Info, VfioError> {
        let mut len = size_of::<sys::vfio_region_info>();
        // The first answer gives the length of the whole.
        for _ in 0..2 {
            let mut info = Info::new(len);
            info.set(offset_of!(sys::vfio_region_info, index), index);
            let asked = self
                .kernel
                .exchange(device, request::DEVICE_GET_REGION_INFO, &mut info.0);
            asked.map_err(self.call("VFIO_DEVICE_GET_REGION_INFO"))?;
            match info.u32(0) {
                Some(whole) if whole as usize > len && whole <= LONGEST => len = whole as usize,
                _ => return Ok(info),
            }
        }
        Err(self.unusable("the kernel's answer grows while it is asked"))
    }

    /// Offset of BAR 0 in the device's descriptor.
    fn bar(&self, device: BorrowedFd<'_>) -> Result<u64, VfioError> {
        let info = self.region(device, sys::VFIO_PCI_BAR0_REGION_INDEX)?;
        let field = |at| info.u64(at).unwrap_or(0);
        let len = field(offset_of!(sys::vfio_region_info, size));
        let offset = field(offset_of!(sys::vfio_region_info, offset));
        let flags = info
            .u32(offset_of!(sys::vfio_region_info, flags))
            .unwrap_or(0);
        if len < BAR_BYTES as u64 {
            return Err(VfioError::TooShort {
                address: self.address.into(),
                len,
            });
        }
        if flags & sys::VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(self.unusable(
                "the kernel does not let it be mapped (is the device bound to vfio-pci?)",
            ));
        }
        if !offset.is_multiple_of(4096) || offset.checked_add(BAR_BYTES as u64).is_none() {
            return Err(self.unusable(format!(
                "it is said to lie at {offset:#x}, which is no page"
            )));
        }
        if flags & sys::VFIO_REGION_INFO_FLAG_CAPS != 0 {
            self.check_holes(&info)?;
        }
        Ok(offset)
    }

    /// Whether the areas that may be mapped, when only some may, hold all registers (the table of MSI-X vectors is
    /// left out, and must lie behind them).
    fn check_holes(&self, info: &Info) -> Result<(), VfioError> {
        const ID: usize = offset_of!(sys::vfio_info_cap_header, id);
        const NEXT: usize = offset_of!(sys::vfio_info_cap_header, next);
        const COUNT: usize = offset_of!(sys::vfio_region_info_cap_sparse_mmap, nr_areas);
        const AREAS: usize = size_of::<sys::vfio_region_info_cap_sparse_mmap>();
        const AREA: usize = size_of::<sys::vfio_region_sparse_mmap_area>();
        let broken = || self.unusable("the kernel's list of what may be mapped is broken");
        let start = info.u32(offset_of!(sys::vfio_region_info, cap_offset));
        let mut at = start.unwrap_or(0) as usize;
        // A list cannot have more members than it has bytes; a cyclic one ends here.
        for _ in 0..info.0.len() / size_of::<sys::vfio_info_cap_header>() + 1 {
            if at == 0 {
                return Ok(());
            }
            let id = info.u16(at + ID).ok_or_else(broken)?;
            if u32::from(id) != sys::VFIO_REGION_INFO_CAP_SPARSE_MMAP {
                at = info.u32(at + NEXT).ok_or_else(broken)? as usize;
                continue;
            }
            let count = info.u32(at + COUNT).ok_or_else(broken)? as usize;
            let mut areas = Vec::new();
            for i in 0..count {
                let area = at + AREAS + i * AREA;
                let from = info.u64(area).ok_or_else(broken)?;
                let len = info.u64(area + 8).ok_or_else(broken)?;
                areas.push((from, from.saturating_add(len)));
            }
            areas.sort_unstable();
            let mut covered = 0;
            for (from, to) in areas {
                if from <= covered {
                    covered = covered.max(to);
                }
            }
            return match covered >= BAR_BYTES as u64 {
                true => Ok(()),
                false => Err(self.unusable(format!(
                    "bytes {covered:#x} and what follows may not be mapped (the MSI-X table?), but registers and doorbells need {BAR_BYTES:#x}"
                ))),
            };
        }
        Err(broken())
    }

    /// Lets the device answer to its BAR: bit 1 of the command register (PCI Local Bus Specification §6.2.2).
    fn enable(&self, device: BorrowedFd<'_>) -> Result<(), VfioError> {
        let info = self.region(device, sys::VFIO_PCI_CONFIG_REGION_INDEX)?;
        let config = info.u64(offset_of!(sys::vfio_region_info, offset));
        let at = config.and_then(|c| c.checked_add(4)).unwrap_or(u64::MAX);
        let mut command = [0; 2];
        let read = rustix::io::pread(device, &mut command, at).map_err(io::Error::from);
        read.map_err(self.call("reading the command register"))?;
        if command[0] & 2 == 0 {
            command[0] |= 2;
            let written = rustix::io::pwrite(device, &command, at).map_err(io::Error::from);
            written.map_err(self.call("writing the command register"))?;
        }
        Ok(())
    }
}

/// A descriptor that the kernel has made for this process.
fn owned(fd: i32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the answer to VFIO_GROUP_GET_DEVICE_FD is a fresh descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests;
