//! Source of a card's GTLB entries: [`PageTableSource`], and the file that a card's kernel driver
//! serves.
//!
//! Only kernel code can get the bus addresses of a GPU's pages: a card's driver asks NVIDIA's for
//! them with `nvidia_p2p_get_pages`, which pins the pages and answers with a
//! `struct nvidia_p2p_page_table` (CUDA documentation, "GPUDirect RDMA"; FpgaNIC §2.3.2, Algorithm
//! 1 line 2). **No such driver ships with Ringbell.** This module is the small interface that one
//! has to serve, so that a card's own driver needs no change above it.
//!
//! # The file
//!
//! A driver's device node, or a plain file: one record behind the other, all numbers little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0–7 | `RBPAGES1` |
//! | 8–11 | version of the page table, as in `nvidia_p2p_page_table.version`: 0x0001_xxxx |
//! | 12–15 | page size, as in `nvidia_p2p_page_size_type`: 1 is 64 KiB, the only one there is room for in a GTLB |
//! | 16–23 | virtual address of the first page |
//! | 24–27 | number of pages |
//! | 28–31 | 0 |
//! | 32– | a physical address of 8 bytes for each page, in order of virtual address |
//!
//! The file comes from outside: nothing in it is believed. A wrong bus address would let the card
//! write over memory that is not the GPU's, and no check here can find that: who may write the file
//! decides over the whole machine.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ringbell_gtlb::{PageTable, PAGE_BYTES, VA_END};
use ringbell_nic_abi::GpuVa;

/// First bytes of a record.
const MARK: &[u8; 8] = b"RBPAGES1";
/// Bytes before the addresses.
const HEAD: usize = 32;
/// Upper half of `NVIDIA_P2P_PAGE_TABLE_VERSION`: the lower is the minor version, which may grow.
const VERSION: u32 = 1;
/// `NVIDIA_P2P_PAGE_SIZE_64KB`.
const SIZE_64K: u32 = 1;
/// Longest file that is read: the pages of 512 GiB.
const LONGEST: u64 = 64 << 20;
/// First physical address that no processor has (52 bits).
const BUS_END: u64 = 1 << 52;

/// A page table that cannot be read, or is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageSourceError {
    /// The file cannot be read.
    #[error("cannot read page tables from {}: {source}; a card's kernel driver serves them, and none ships with Ringbell", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is longer than any valid one.
    #[error("{} holds more than {LONGEST} bytes of page tables; is it another file?", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file ends inside a record.
    #[error("the page table at byte {at} needs {needed} bytes, but only {left} are left; was the file cut off?")]
    Truncated {
        /// Where the record begins.
        at: usize,
        /// Bytes that it needs by its own header.
        needed: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// The bytes there begin no record.
    #[error("no page table begins at byte {at}: it must read `RBPAGES1`")]
    NoMark {
        /// The position.
        at: usize,
    },
    /// An unknown version.
    #[error("the page table at byte {at} has version {version:#010x}; 0x0001xxxx is known here")]
    Version {
        /// Where the record begins.
        at: usize,
        /// Its version.
        version: u32,
    },
    /// Pages of another size.
    #[error("the page table at byte {at} has pages of kind {kind} (0: 4 KiB, 2: 128 KiB); a GTLB takes 64 KiB (kind 1)")]
    PageSize {
        /// Where the record begins.
        at: usize,
        /// Its kind of pages.
        kind: u32,
    },
    /// A record without pages, or with a reserved word that is not 0.
    #[error("the page table at byte {at} has no pages, or a reserved word that is not 0")]
    Malformed {
        /// Where the record begins.
        at: usize,
    },
    /// An address that is no page, or outside every address space.
    #[error("address {addr:#x} in the page table for {va} is no page of 64 KiB below the end of the address space")]
    BadAddress {
        /// The first page of the table.
        va: GpuVa,
        /// The address at fault, virtual or physical.
        addr: u64,
    },
    /// Two tables contain the same virtual page.
    #[error("{va} is in two page tables; the driver must forget a table when its memory is freed")]
    Overlap {
        /// The page.
        va: GpuVa,
    },
    /// Two pages have the same bus address.
    #[error("{first} and {second} both lie at bus address {bus:#x}")]
    Alias {
        /// One page.
        first: GpuVa,
        /// The other.
        second: GpuVa,
        /// The bus address of both.
        bus: u64,
    },
    /// A part of the requested range is in no table.
    #[error("{va} is in no page table; ask the card's kernel driver to pin the memory first")]
    NotThere {
        /// The first missing page.
        va: GpuVa,
    },
}

/// Provides the bus addresses of GPU memory: the part of a card's kernel driver that Ringbell
/// needs.
pub trait PageTableSource: std::fmt::Debug {
    /// The 64 KiB pages around `len` bytes at `va`; all stay pinned while the table is in use.
    ///
    /// # Errors
    /// [`PageSourceError`].
    fn pages(&self, va: GpuVa, len: u64) -> Result<PageTable, PageSourceError>;
}

/// Page tables from a file, or a driver's device node, as of the time of reading.
#[derive(Debug, Clone, Default)]
pub struct FilePages {
    /// Bus address of each page, by virtual address.
    pages: BTreeMap<u64, u64>,
}

impl FilePages {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`PageSourceError`]: the error in it, and its position.
    pub fn open(path: &Path) -> Result<FilePages, PageSourceError> {
        let error = |source| PageSourceError::Read {
            path: path.into(),
            source,
        };
        let file = std::fs::File::open(path).map_err(error)?;
        let mut bytes = Vec::new();
        // One byte more, so that a file that is too long is detected.
        file.take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(error)?;
        if bytes.len() as u64 > LONGEST {
            return Err(PageSourceError::TooLong { path: path.into() });
        }
        FilePages::parse(&bytes)
    }

    /// Checks a file's content.
    ///
    /// # Errors
    /// [`PageSourceError`].
    pub fn parse(bytes: &[u8]) -> Result<FilePages, PageSourceError> {
        let mut pages = BTreeMap::new();
        let mut places = HashMap::new();
        let mut at = 0;
        while at < bytes.len() {
            let (table, len) = record(at, &bytes[at..])?;
            for (i, bus) in table.pages.iter().enumerate() {
                let va = table.base.0 + i as u64 * PAGE_BYTES;
                if pages.insert(va, *bus).is_some() {
                    return Err(PageSourceError::Overlap { va: GpuVa(va) });
                }
                if let Some(first) = places.insert(*bus, va) {
                    return Err(PageSourceError::Alias {
                        first: GpuVa(first),
                        second: GpuVa(va),
                        bus: *bus,
                    });
                }
            }
            at += len;
        }
        Ok(FilePages { pages })
    }

    /// A driver's file for these tables: the counterpart of [`FilePages::parse`].
    pub fn encode(tables: &[PageTable]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for t in tables {
            bytes.extend_from_slice(MARK);
            bytes.extend((VERSION << 16 | 2).to_le_bytes());
            bytes.extend(SIZE_64K.to_le_bytes());
            bytes.extend(t.base.0.to_le_bytes());
            bytes.extend((t.pages.len() as u32).to_le_bytes());
            bytes.extend([0; 4]);
            t.pages.iter().for_each(|p| bytes.extend(p.to_le_bytes()));
        }
        bytes
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// All pages, in runs of neighbouring virtual addresses.
    pub fn tables(&self) -> Vec<PageTable> {
        let mut tables: Vec<PageTable> = Vec::new();
        for (va, bus) in &self.pages {
            match tables.last_mut() {
                Some(t) if t.base.0 + t.pages.len() as u64 * PAGE_BYTES == *va => {
                    t.pages.push(*bus);
                }
                _ => tables.push(PageTable {
                    base: GpuVa(*va),
                    pages: vec![*bus],
                }),
            }
        }
        tables
    }
}

/// The record that begins at byte `at` of the file, and its bytes.
fn record(at: usize, bytes: &[u8]) -> Result<(PageTable, usize), PageSourceError> {
    let truncated = |needed| PageSourceError::Truncated {
        at,
        needed,
        left: bytes.len(),
    };
    let Some(head) = bytes.get(..HEAD) else {
        return Err(truncated(HEAD as u64));
    };
    if &head[..8] != MARK {
        return Err(PageSourceError::NoMark { at });
    }
    let u32_at = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
    let (version, kind, count, reserved) = (u32_at(8), u32_at(12), u32_at(24), u32_at(28));
    let base = u64::from(u32_at(20)) << 32 | u64::from(u32_at(16));
    if version >> 16 != VERSION {
        return Err(PageSourceError::Version { at, version });
    }
    if kind != SIZE_64K {
        return Err(PageSourceError::PageSize { at, kind });
    }
    if count == 0 || reserved != 0 {
        return Err(PageSourceError::Malformed { at });
    }
    let len = HEAD as u64 + u64::from(count) * 8;
    let Some(list) = bytes.get(HEAD..len as usize) else {
        return Err(truncated(len));
    };
    let bad = |addr| PageSourceError::BadAddress {
        va: GpuVa(base),
        addr,
    };
    let end = base.checked_add(u64::from(count) * PAGE_BYTES);
    if !base.is_multiple_of(PAGE_BYTES) || end.is_none_or(|end| end > VA_END) {
        return Err(bad(base));
    }
    let mut pages = Vec::with_capacity(count as usize);
    for word in list.chunks_exact(8) {
        let bus = u64::from_le_bytes(word.try_into().unwrap_or_default());
        if !bus.is_multiple_of(PAGE_BYTES) || bus >= BUS_END {
            return Err(bad(bus));
        }
        pages.push(bus);
    }
    let base = GpuVa(base);
    Ok((PageTable { base, pages }, len as usize))
}

impl PageTableSource for FilePages {
    fn pages(&self, va: GpuVa, len: u64) -> Result<PageTable, PageSourceError> {
        let bad = |addr| PageSourceError::BadAddress { va, addr };
        let end = va.0.checked_add(len.max(1)).ok_or_else(|| bad(va.0))?;
        if end > VA_END {
            return Err(bad(end));
        }
        let first = va.0 / PAGE_BYTES * PAGE_BYTES;
        let mut pages = Vec::new();
        let mut page = first;
        while page < end {
            let bus = self.pages.get(&page);
            pages.push(*bus.ok_or(PageSourceError::NotThere { va: GpuVa(page) })?);
            page += PAGE_BYTES;
        }
        Ok(PageTable {
            base: GpuVa(first),
            pages,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(base: u64, pages: &[u64]) -> PageTable {
        PageTable {
            base: GpuVa(base),
            pages: pages.iter().map(|p| p * PAGE_BYTES).collect(),
        }
    }

    /// Two tables that follow each other, and one apart.
    fn good() -> Vec<u8> {
        FilePages::encode(&[
            table(0x7000_0000_0000, &[9, 4]),
            table(0x7000_0002_0000, &[7]),
            table(0x7100_0000_0000, &[1, 2, 3]),
        ])
    }

    #[test]
    fn pages_of_a_file_are_found_across_tables() {
        let file = FilePages::parse(&good()).expect("nothing is wrong");
        assert_eq!(file.len(), 6);
        let whole = file.pages(GpuVa(0x7000_0000_0001), 3 * PAGE_BYTES - 1);
        assert_eq!(
            whole.expect("all three"),
            table(0x7000_0000_0000, &[9, 4, 7])
        );
        let one = file.pages(GpuVa(0x7100_0001_ffff), 1).expect("inside");
        assert_eq!(one, table(0x7100_0001_0000, &[2]));
        let beyond = file.pages(GpuVa(0x7000_0000_0000), 3 * PAGE_BYTES + 1);
        let text = beyond.expect_err("one page is not there").to_string();
        assert!(text.contains("0x700000030000"), "{text}");
        for (va, len) in [(u64::MAX, 1), (u64::MAX, 2), (VA_END - 1, 2), (5, u64::MAX)] {
            assert!(file.pages(GpuVa(va), len).is_err(), "{va:#x} + {len}");
        }
        let tables = file.tables();
        assert_eq!(tables.len(), 2);
        let again = FilePages::parse(&FilePages::encode(&tables)).expect("the same");
        assert_eq!(again.pages, file.pages);
        assert!(FilePages::parse(&[]).expect("no tables").is_empty());
    }

    #[test]
    fn every_fault_of_a_file_is_named() {
        let change = |at: usize, bytes: &[u8]| {
            let mut file = good();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            FilePages::parse(&file)
                .expect_err("it is refused")
                .to_string()
        };
        assert!(change(0, b"x").contains("byte 0"));
        // The second record begins behind the first's two pages.
        assert!(change(48, b"x").contains("byte 48"));
        assert!(change(10, &[2]).contains("version 0x00020002"));
        for kind in [0, 2, 77] {
            assert!(change(12, &[kind]).contains("64 KiB (kind 1)"));
        }
        assert!(change(24, &[0]).contains("no pages"));
        assert!(change(28, &[1]).contains("reserved"));
        assert!(change(24, &[0xff; 4]).contains("cut off"));
        assert!(change(16, &[1]).contains("0x700000000001"));
        assert!(change(16, &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]).contains("no page"));
        assert!(change(16, &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).contains("no page"));
        assert!(change(32, &[1]).contains("0x90001"));
        assert!(change(38, &[0x10]).contains("no page"), "beyond 52 bits");
        let file = FilePages::encode(&[table(0, &[1, 2]), table(PAGE_BYTES, &[3])]);
        let text = FilePages::parse(&file).expect_err("twice").to_string();
        assert!(text.contains("in two page tables"), "{text}");
        let file = FilePages::encode(&[table(0, &[1, 2]), table(2 * PAGE_BYTES, &[1])]);
        let text = FilePages::parse(&file).expect_err("aliased").to_string();
        assert!(text.contains("both lie at"), "{text}");
        for cut in 1..good().len() {
            let parsed = FilePages::parse(&good()[..cut]);
            // A cut between records leaves a valid file.
            assert_eq!(parsed.is_ok(), [48, 88].contains(&cut), "cut at {cut}");
        }
    }

    #[test]
    fn a_file_is_read_and_a_huge_one_is_not() {
        let path = std::env::temp_dir().join(format!("rb-pages-{}", std::process::id()));
        std::fs::write(&path, good()).expect("a temporary file");
        assert_eq!(FilePages::open(&path).expect("good").len(), 6);
        let file = std::fs::File::create(&path).expect("a temporary file");
        file.set_len(LONGEST + 1).expect("a hole");
        let text = FilePages::open(&path).expect_err("too long").to_string();
        assert!(text.contains("more than"), "{text}");
        std::fs::remove_file(&path).expect("it was there");
        let text = FilePages::open(&path).expect_err("gone").to_string();
        assert!(text.contains("none ships with Ringbell"), "{text}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        /// Damaged bytes give an error or pages that could be; never a panic.
        #[test]
        fn damaged_bytes_cause_no_panic(at in 0usize..good().len(), value: u8, cut in 0usize..200) {
            let mut file = good();
            file[at] = value;
            file.truncate(cut);
            if let Ok(file) = FilePages::parse(&file) {
                for (va, bus) in &file.pages {
                    prop_assert!(va % PAGE_BYTES == 0 && bus % PAGE_BYTES == 0 && *bus < BUS_END);
                }
            }
        }
    }
}
