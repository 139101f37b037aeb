//! The BAR of a card, or of any file that keeps the register contract.
//!
//! Linux shows each BAR of a PCI device as `/sys/bus/pci/devices/ADDRESS/resourceN`; mapping that
//! file needs root, or rights on it, and no kernel driver. [`CardBar`] maps it and checks that it
//! is a NIC of this contract. A file serves as well: the BAR of a running software NIC
//! ([`Nic::bar_file`](ringbell_nic_core::Nic::bar_file)), or one that a test has written.
//!
//! In the order of use: [`CardBar`] maps the registers, [`Doorbells`] lets kernels ring in them,
//! [`pages`] reads the bus addresses of GPU pages and [`CardGtlb`] writes them to the card's GTLB.
//!
//! Not included: a card needs its own kernel driver to pin GPU pages and report their bus
//! addresses, and none ships with Ringbell; nor is there one for its queues. So this is a card's
//! registers, doorbells and GTLB, not yet a backend of [`Nic`](ringbell_nic_core::Nic).
//!
//! Untested on a card: none was available.
#![allow(unsafe_code)] // Maps a device, and reads and writes its registers.

mod doorbells;
mod gtlb;
pub mod pages;

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use ringbell_gtlb::{DmaMemory, Exposed};
use ringbell_nic_abi::bar::{doorbell_offset, Access, Reg, BAR_BYTES, MAGIC, MAX_QUEUES};
use ringbell_nic_abi::ABI_VERSION;

pub use doorbells::{DoorbellError, Doorbells};
pub use gtlb::{CardGtlb, CardGtlbError};

use ringbell_nic_core::bar::{target, BarError, Target};

/// Where Linux shows PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// Value that reads return when no device answers on the bus.
const NO_PROCESS: u32 = u32::MAX;

/// A card cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// There is no such device or file.
    #[error("there is no {}; give a PCI address as `lspci -D` shows it (0000:3b:00.0), or a file", .path.display())]
    NotFound {
        /// The missing file.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error("cannot open {}: {source}; it needs root, or rights on the file for this user", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The BAR is smaller than the contract's.
    #[error("{} has {len} bytes, a NIC's BAR {BAR_BYTES}; is it another BAR, or another device?", .path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: u64,
    },
    /// It cannot be mapped.
    #[error("cannot map {}: {source}; a kernel that is locked down (Secure Boot) allows it to no process", .path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Reads give ones only.
    #[error("nothing answers behind {}: the device's memory is off (echo 1 > enable beside it), or it has fallen off the bus", .path.display())]
    Silent {
        /// The file.
        path: PathBuf,
    },
    /// Another device.
    #[error("{} is no NIC of ours: register MAGIC reads {found:#010x}, not {MAGIC:#010x}", .path.display())]
    NoNic {
        /// The file.
        path: PathBuf,
        /// The register's value.
        found: u32,
    },
    /// Another version of the contract.
    #[error("{} speaks version {found} of the contract, this program {ABI_VERSION}; update the older of the two", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The card's version.
        found: u32,
    },
}

/// A mapped BAR.
///
/// Accesses are single loads and stores of 32 bits, as devices need them, and are checked against
/// the register map as [`Nic::bar_read32`](ringbell_nic_core::Nic::bar_read32) does.
#[derive(Debug)]
pub struct CardBar {
    path: PathBuf,
    map: memmap2::MmapRaw,
}

impl CardBar {
    /// Opens the NIC at a PCI address (`0000:3b:00.0`, or `3b:00.0` in domain 0; its first BAR), or
    /// in a file.
    ///
    /// # Errors
    /// [`CardError`]; also when the device does not keep the contract.
    pub fn open(at: &str) -> Result<CardBar, CardError> {
        let path = match pci_address(at) {
            Some(address) => {
                let path = Path::new(PCI).join(address);
                if !path.exists() {
                    return Err(CardError::NotFound { path });
                }
                path.join("resource0")
            }
            None => PathBuf::from(at),
        };
        let card = CardBar::open_file(path)?;
        card.check()?;
        Ok(card)
    }

    fn open_file(path: PathBuf) -> Result<CardBar, CardError> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path);
        let file = file.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CardError::NotFound { path: path.clone() },
            _ => CardError::Open {
                path: path.clone(),
                source,
            },
        })?;
        let len = file.metadata().map_or(0, |m| m.len());
        if len < BAR_BYTES as u64 {
            return Err(CardError::TooShort { path, len });
        }
        let map = memmap2::MmapOptions::new().len(BAR_BYTES).map_raw(&file);
        match map {
            Ok(map) => Ok(CardBar { path, map }),
            Err(source) => Err(CardError::Map { path, source }),
        }
    }

    /// Lets the GPU of `memory` reach the BAR, which must outlive the returned mapping.
    fn expose(&self, memory: &dyn DmaMemory) -> std::io::Result<Exposed> {
        let base = NonNull::new(self.map.as_mut_ptr()).ok_or(std::io::ErrorKind::InvalidInput)?;
        // Whole pages: a GPU maps nothing less.
        memory.expose_io(base, BAR_BYTES.next_multiple_of(4096))
    }

    /// Checks that a NIC of this contract answers.
    fn check(&self) -> Result<(), CardError> {
        let path = || self.path.clone();
        match self.read(Reg::Magic) {
            MAGIC => {}
            NO_PROCESS => return Err(CardError::Silent { path: path() }),
            found => {
                return Err(CardError::NoNic {
                    path: path(),
                    found,
                })
            }
        }
        match self.read(Reg::AbiVersion) {
            ABI_VERSION => Ok(()),
            found => Err(CardError::Version {
                path: path(),
                found,
            }),
        }
    }

    /// The mapped file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a register.
    pub fn read(&self, reg: Reg) -> u32 {
        self.load(reg.offset())
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`BarError`] when no register is there.
    pub fn read32(&self, offset: usize) -> Result<u32, BarError> {
        target(offset)?;
        Ok(self.load(offset))
    }

    /// Writes a register. A card acts at once; the BAR of a software NIC that is mapped from
    /// outside is memory, and that NIC reads only its doorbells.
    ///
    /// # Errors
    /// [`BarError::ReadOnly`].
    pub fn write(&self, reg: Reg, value: u32) -> Result<(), BarError> {
        match target(reg.offset())? {
            Target::Reg(reg, Access::Ro) => Err(BarError::ReadOnly { reg }),
            _ => {
                self.store(reg.offset(), value);
                Ok(())
            }
        }
    }

    /// Rings the doorbell of a queue: every entry before ticket `next` is written.
    ///
    /// # Errors
    /// [`BarError::BadOffset`] when there is no such queue.
    pub fn ring(&self, queue: u32, next: u32) -> Result<(), BarError> {
        let offset = doorbell_offset(queue);
        if queue as usize >= MAX_QUEUES {
            return Err(BarError::BadOffset { offset });
        }
        // Entries lie in host memory, the doorbell in the device's: the stores must not be
        // reordered.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.store(offset, next);
        Ok(())
    }

    fn load(&self, offset: usize) -> u32 {
        debug_assert!(offset + 4 <= BAR_BYTES);
        // SAFETY: `target`, or the register map, says that the word lies inside, and it is aligned:
        // the mapping begins a page. Device memory needs a volatile load of 32 bits.
        let word = unsafe { self.map.as_ptr().add(offset).cast::<u32>().read_volatile() };
        u32::from_le(word)
    }

    fn store(&self, offset: usize, value: u32) {
        debug_assert!(offset + 4 <= BAR_BYTES);
        // SAFETY: as for `load`.
        unsafe {
            let word = self.map.as_mut_ptr().add(offset).cast::<u32>();
            word.write_volatile(value.to_le());
        }
    }
}

/// A whole PCI address, from one with or without its domain; `None` when it is none.
fn pci_address(at: &str) -> Option<String> {
    let parts: Vec<&str> = at.split([':', '.']).collect();
    let hex = |text: &&str, digits: usize| {
        text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit())
    };
    match &parts[..] {
        [domain, bus, device, function] => {
            (hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
                .then(|| at.to_owned())
        }
        [bus, device, function] => {
            (hex(bus, 2) && hex(device, 2) && hex(function, 1)).then(|| format!("0000:{at}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// A file as long as a BAR with these registers.
    fn bar(test: &str, registers: &[(Reg, u32)]) -> PathBuf {
        let mut bytes = vec![0u8; BAR_BYTES];
        for (reg, value) in registers {
            bytes[reg.offset()..][..4].copy_from_slice(&value.to_le_bytes());
        }
        let path = std::env::temp_dir().join(format!("rb-card-{test}-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).expect("a temporary file");
        file.write_all(&bytes).expect("written");
        path
    }

    fn open(path: &Path) -> Result<CardBar, CardError> {
        let card = CardBar::open(path.to_str().expect("a name of ASCII"));
        std::fs::remove_file(path).expect("it was there");
        card
    }

    const GOOD: [(Reg, u32); 3] = [
        (Reg::Magic, MAGIC),
        (Reg::AbiVersion, ABI_VERSION),
        (Reg::Sessions, 7),
    ];

    #[test]
    fn registers_and_doorbells_follow_the_contract() {
        let card = open(&bar("good", &GOOD)).expect("it keeps the contract");
        assert_eq!(card.read(Reg::Sessions), 7);
        assert_eq!(card.read32(Reg::Sessions.offset()), Ok(7));
        card.write(Reg::GtlbSelect, 3).expect("may be written");
        assert_eq!(card.read(Reg::GtlbSelect), 3);
        let reg = Reg::Sessions;
        assert_eq!(card.write(reg, 1), Err(BarError::ReadOnly { reg }));
        assert_eq!(card.read(reg), 7);
        let last = MAX_QUEUES as u32 - 1;
        card.ring(last, 41).expect("the last doorbell");
        assert_eq!(card.read32(doorbell_offset(last)), Ok(41));
        for beyond in [last + 1, u32::MAX / 64] {
            assert!(card.ring(beyond, 1).is_err());
        }
        assert!(card.read32(BAR_BYTES).is_err() && card.read32(2).is_err());
        let offset = Reg::MacHi.offset() + 4;
        assert_eq!(card.read32(offset), Err(BarError::NoRegister { offset }));
    }

    #[test]
    fn files_that_are_no_card_are_refused_with_the_reason() {
        let ones = std::env::temp_dir().join(format!("rb-card-ones-{}", std::process::id()));
        std::fs::write(&ones, [0xff; BAR_BYTES]).expect("a temporary file");
        assert!(matches!(open(&ones), Err(CardError::Silent { .. })));
        let zeros = open(&bar("zeros", &[]));
        assert!(matches!(zeros, Err(CardError::NoNic { found: 0, .. })));
        let old = open(&bar("old", &[(Reg::Magic, MAGIC), (Reg::AbiVersion, 99)]));
        assert!(matches!(old, Err(CardError::Version { found: 99, .. })));
        let short = std::env::temp_dir().join(format!("rb-card-short-{}", std::process::id()));
        std::fs::write(&short, [0; 64]).expect("a temporary file");
        assert!(matches!(
            open(&short),
            Err(CardError::TooShort { len: 64, .. })
        ));
        let none = CardBar::open("ff:1f.7").expect_err("no such device");
        let text = none.to_string();
        assert!(
            text.contains("/0000:ff:1f.7") && text.contains("lspci"),
            "{text}"
        );
    }

    #[test]
    fn pci_addresses_are_distinguished_from_files() {
        for (at, whole) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("af:1d.3", "0000:af:1d.3"),
        ] {
            assert_eq!(pci_address(at).as_deref(), Some(whole));
        }
        for file in [
            "/proc/7/fd/9",
            "bar.bin",
            "x:y:z.0",
            "3b:0.0",
            "0:3b:00.0",
            "",
        ] {
            assert_eq!(pci_address(file), None, "{file}");
        }
    }
}
