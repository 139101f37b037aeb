//! Fat binaries: the container in which CUDA compilers put a module's PTX and machine code.
//!
//! A fat binary is a header of 16 bytes and entries, each with a header of its own: the kind of its
//! image, the architecture, flags, and how the image is compressed. The format is not documented by
//! NVIDIA; its fields are as public tools read them. All numbers are little-endian.
//!
//! | offset | bytes | header of the fat binary |
//! |---|---|---|
//! | 0 | 4 | magic, [`MAGIC`] |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | bytes of this header, 16 |
//! | 8 | 8 | bytes of all entries |
//!
//! | offset | bytes | header of an entry |
//! |---|---|---|
//! | 0 | 2 | kind: 1 is PTX, 2 machine code (cubin) |
//! | 2 | 2 | version |
//! | 4 | 4 | bytes of this header, 64 or more |
//! | 8 | 8 | bytes of the image with its padding |
//! | 16 | 4 | bytes of the image where it is compressed |
//! | 28 | 4 | architecture: 80 for `sm_80` |
//! | 40 | 8 | flags: 0x2000 compressed by LZ4, 0x8000 by zstd |
//! | 56 | 8 | bytes of the image when it is unpacked |

mod read;
mod write;

pub use read::{Entry, Fatbin, FatbinError, Kind};
pub use write::of_ptx;

/// The first four bytes of a fat binary, as a number.
pub const MAGIC: u32 = 0xba55_ed50;

/// The first four bytes of the structure by which compiled host code refers to its fat binary:
/// magic, version, pointer.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// Bytes of the header of a fat binary.
const HEADER: usize = 16;
/// Bytes of an entry's header that are read.
const ENTRY: usize = 64;
/// Most bytes of an unpacked image.
const MOST: u64 = 256 << 20;

const KIND_PTX: u16 = 1;
const KIND_CUBIN: u16 = 2;
const FLAG_64_BIT: u64 = 1;
const FLAG_LINUX: u64 = 0x10;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
