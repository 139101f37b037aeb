//! Tests of VFIO with an emulated kernel: a memfd is the device.

use std::cell::RefCell;
use std::os::fd::IntoRawFd;

use super::*;

/// Offsets of the emulated device's BAR 0 and configuration space.
const BAR_AT: u64 = 1 << 16;
const CONFIG_AT: u64 = 0;

/// Faults of the emulated device.
#[derive(Default)]
struct Played {
    no_group: bool,
    group_closed: bool,
    own_file: bool,
    version: i32,
    not_viable: bool,
    no_mmap: bool,
    size: Option<u64>,
    offset: Option<u64>,
    /// The list of capabilities behind the region's structure.
    caps: Option<Vec<u8>>,
    grows: bool,
    calls: RefCell<Vec<String>>,
}

fn memfd() -> OwnedFd {
    let fd = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, BAR_AT + (1 << 16)).expect("length");
    fd
}

fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Played {
    fn saw(&self, what: impl Into<String>) {
        self.calls.borrow_mut().push(what.into());
    }
}

impl Kernel for Played {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        self.saw(path.display().to_string());
        if self.group_closed && path == Path::new("/dev/vfio/17") {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(memfd())
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        assert_eq!(path, Path::new("/pci/0000:3b:00.0/iommu_group"));
        match self.no_group {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok("../../../../kernel/iommu_groups/17".into()),
        }
    }

    fn list(&self, _path: &Path) -> io::Result<Vec<String>> {
        match self.own_file {
            true => Ok(vec!["power".into(), "vfio4".into()]),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn number(&self, _fd: BorrowedFd<'_>, request: u32, value: u64) -> io::Result<i32> {
        match request {
            request::GET_API_VERSION => Ok(self.version),
            request::CHECK_EXTENSION => Ok(i32::from(value == 3)),
            request::SET_IOMMU => {
                self.saw(format!("iommu {value}"));
                Ok(0)
            }
            other => panic!("no request {other:#x} with a number"),
        }
    }

    fn exchange(&self, _fd: BorrowedFd<'_>, request: u32, data: &mut [u8]) -> io::Result<i32> {
        match request {
            request::GROUP_GET_STATUS => {
                put(data, 4, &u32::from(!self.not_viable).to_ne_bytes());
                Ok(0)
            }
            request::GROUP_SET_CONTAINER => {
                self.saw("container");
                Ok(0)
            }
            request::GROUP_GET_DEVICE_FD => {
                assert_eq!(data, b"0000:3b:00.0\0");
                self.saw("device");
                Ok(memfd().into_raw_fd())
            }
            request::DEVICE_BIND_IOMMUFD => {
                assert_eq!(data.len(), 16);
                self.saw("bound");
                Ok(0)
            }
            request::DEVICE_GET_REGION_INFO => self.region(data),
            other => panic!("no request {other:#x} with a structure"),
        }
    }
}

impl Played {
    fn region(&self, data: &mut [u8]) -> io::Result<i32> {
        let index = u32::from_ne_bytes(data[8..12].try_into().expect("four bytes"));
        let config = index == sys::VFIO_PCI_CONFIG_REGION_INDEX;
        let caps = self.caps.as_ref().filter(|_| !config);
        let whole = size_of::<sys::vfio_region_info>() + caps.map_or(0, Vec::len);
        let grown = if self.grows { data.len() + 8 } else { whole };
        put(data, 0, &(grown as u32).to_ne_bytes());
        let flags = 3 | if self.no_mmap { 0 } else { 4 } | if caps.is_some() { 8 } else { 0 };
        put(data, 4, &u32::to_ne_bytes(flags));
        let (size, offset) = match config {
            true => (256, CONFIG_AT),
            false => (self.size.unwrap_or(1 << 16), self.offset.unwrap_or(BAR_AT)),
        };
        put(data, 16, &size.to_ne_bytes());
        put(data, 24, &offset.to_ne_bytes());
        if let Some(caps) = caps.filter(|_| data.len() >= whole) {
            put(data, 12, &32u32.to_ne_bytes());
            put(data, 32, caps);
        }
        Ok(0)
    }
}

fn try_open(played: &Played) -> Result<Region, VfioError> {
    open(played, Path::new("/pci"), "0000:3b:00.0")
}

/// A capability: header, and for the list of areas their number and bounds.
fn cap(id: u16, next: u32, areas: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = [id.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
    bytes.extend(next.to_ne_bytes());
    bytes.extend((areas.len() as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    for (from, len) in areas {
        bytes.extend([from.to_ne_bytes(), len.to_ne_bytes()].concat());
    }
    bytes
}

#[test]
fn a_device_is_opened_by_its_group_and_memory_space_enabled() {
    let played = Played::default();
    let region = try_open(&played).expect("nothing is wrong");
    assert_eq!(region.offset, BAR_AT);
    let mut command = [0; 2];
    rustix::io::pread(&region.device, &mut command, CONFIG_AT + 4).expect("a file");
    assert_eq!(command, [2, 0], "memory space is on, and nothing else");
    let calls = played.calls.borrow();
    let order = [
        "/dev/vfio/vfio",
        "/dev/vfio/17",
        "container",
        "iommu 3",
        "device",
    ];
    assert_eq!(*calls, order);
}

#[test]
fn without_iommu_groups_the_device_is_opened_by_its_own_file() {
    let played = Played {
        group_closed: true,
        own_file: true,
        ..Played::default()
    };
    assert_eq!(try_open(&played).expect("its own file").offset, BAR_AT);
    let calls = played.calls.borrow();
    assert_eq!(
        calls[2..],
        ["/dev/vfio/devices/vfio4", "/dev/iommu", "bound"]
    );
}

#[test]
fn a_missing_part_is_named_with_a_remedy() {
    let text = |p: Played| try_open(&p).expect_err("something is wrong").to_string();
    let no_group = text(Played {
        no_group: true,
        ..Played::default()
    });
    assert!(no_group.contains("intel_iommu=on"), "{no_group}");
    let closed = text(Played {
        group_closed: true,
        ..Played::default()
    });
    assert!(
        closed.contains("/dev/vfio/17") && closed.contains("driverctl"),
        "{closed}"
    );
    let shared = text(Played {
        not_viable: true,
        ..Played::default()
    });
    assert!(shared.contains("same IOMMU group"), "{shared}");
    let later = text(Played {
        version: 1,
        ..Played::default()
    });
    assert!(later.contains("version 1"), "{later}");
}

#[test]
fn impossible_answers_of_the_kernel_are_refused() {
    let text = |p: Played| try_open(&p).expect_err("it is refused").to_string();
    let played = Played::default;
    let short = text(Played {
        size: Some(BAR_BYTES as u64 - 1),
        ..played()
    });
    assert!(short.contains("bytes, a NIC's"), "{short}");
    assert!(text(Played {
        no_mmap: true,
        ..played()
    })
    .contains("vfio-pci"));
    for offset in [1, u64::MAX, u64::MAX - 4095] {
        let t = text(Played {
            offset: Some(offset),
            ..played()
        });
        assert!(t.contains("no page"), "{t}");
    }
    assert!(text(Played {
        grows: true,
        ..played()
    })
    .contains("grows"));
}

#[test]
fn only_a_bar_without_holes_is_mapped() {
    let with = |caps: Vec<u8>| {
        try_open(&Played {
            caps: Some(caps),
            ..Played::default()
        })
    };
    let (bar, page) = (BAR_BYTES as u64, 4096);
    let good: [&[(u64, u64)]; 4] = [
        &[(0, bar)],
        &[(page, bar), (0, page)],
        &[(0, bar - page), (bar - page, page), (1 << 15, 1 << 20)],
        &[(0, u64::MAX)],
    ];
    for areas in good {
        with(cap(1, 0, areas)).unwrap_or_else(|e| panic!("{areas:?}: {e}"));
    }
    // Behind another capability, and with no list at all.
    let two = [cap(9, 48, &[]), cap(1, 0, &[(0, bar)])].concat();
    with(two).expect("the second is found");
    with(cap(9, 0, &[])).expect("no list: all of it may be mapped");

    let holes: [&[(u64, u64)]; 5] = [
        &[],
        &[(page, bar)],
        &[(0, bar - page)],
        &[(0, page), (2 * page, bar)],
        &[(u64::MAX, u64::MAX)],
    ];
    for areas in holes {
        let text = with(cap(1, 0, areas)).expect_err("a hole").to_string();
        assert!(text.contains("may not be mapped"), "{areas:?}: {text}");
    }
    // Chains that leave the answer, or never end; more areas than the answer holds.
    let mut long = cap(1, 0, &[(0, bar)]);
    put(&mut long, 8, &u32::MAX.to_ne_bytes());
    for broken in [
        cap(9, 1 << 20, &[]),
        cap(9, u32::MAX, &[]),
        cap(9, 32, &[]),
        long,
    ] {
        let text = with(broken).expect_err("broken").to_string();
        assert!(text.contains("broken"), "{text}");
    }
}
