//! Reading: entries of a fat binary, and their images unpacked.

use std::io::Read as _;

use crate::{ENTRY, FLAG_LZ4, FLAG_ZSTD, HEADER, KIND_CUBIN, KIND_PTX, MAGIC, MOST};

/// Why a fat binary cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FatbinError {
    /// Other bytes.
    #[error("these bytes are no fat binary")]
    NotOne,
    /// It ends too early, or an entry is longer than the whole.
    #[error("the fat binary is cut off or damaged at byte {at}")]
    Cut {
        /// Where, in bytes from its start.
        at: usize,
    },
    /// An image that cannot be unpacked.
    #[error("an image of the fat binary for sm_{arch} cannot be unpacked: {what}")]
    Packed {
        /// Its architecture.
        arch: u32,
        /// What is wrong.
        what: String,
    },
    /// Machine code alone.
    #[error("the fat binary has only SASS for {}: build with PTX (nvcc: `-gencode arch=compute_80,code=compute_80`)", list(.archs))]
    NoPtx {
        /// Architectures of its machine code.
        archs: Vec<u32>,
    },
    /// PTX for newer GPUs.
    #[error("the fat binary has PTX for sm_{least} and newer; this GPU is sm_{gpu}")]
    TooNew {
        /// The oldest architecture of which it has PTX.
        least: u32,
        /// That of the GPU.
        gpu: u32,
    },
}

fn list(archs: &[u32]) -> String {
    let names: Vec<String> = archs.iter().map(|a| format!("sm_{a}")).collect();
    match names.is_empty() {
        true => "no GPU".to_owned(),
        false => names.join(", "),
    }
}

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PTX text.
    Ptx,
    /// Machine code.
    Cubin,
    /// Something else, by its number.
    Other(u16),
}

/// An image with its architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is.
    pub kind: Kind,
    /// 80 for `sm_80`.
    pub arch: u32,
    flags: u64,
    unpacked: u64,
    image: &'a [u8],
}

/// A fat binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fatbin<'a> {
    /// Its images, in their order.
    pub entries: Vec<Entry<'a>>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field: [u8; N] = bytes.get(at..at + N)?.try_into().ok()?;
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&field);
    Some(u64::from_le_bytes(wide))
}

impl<'a> Fatbin<'a> {
    /// Bytes of the fat binary that begins with this header of 16 bytes.
    ///
    /// # Errors
    /// [`FatbinError::NotOne`].
    pub fn len_of(header: &[u8]) -> Result<u64, FatbinError> {
        let magic = number::<4>(header, 0) == Some(u64::from(MAGIC));
        let own = number::<2>(header, 6).filter(|n| magic && *n >= HEADER as u64);
        let entries = number::<8>(header, 8).filter(|n| *n <= MOST);
        match (own, entries) {
            (Some(own), Some(entries)) => Ok(own + entries),
            _ => Err(FatbinError::NotOne),
        }
    }

    /// Reads its entries. Bytes behind its end are left alone.
    ///
    /// # Errors
    /// [`FatbinError`].
    pub fn read(bytes: &'a [u8]) -> Result<Fatbin<'a>, FatbinError> {
        let end = Fatbin::len_of(bytes)? as usize;
        let bytes = bytes
            .get(..end)
            .ok_or(FatbinError::Cut { at: bytes.len() })?;
        let mut at = number::<2>(bytes, 6).unwrap_or(0) as usize;
        let mut entries = Vec::new();
        while at < bytes.len() {
            let (entry, next) = entry(bytes, at).ok_or(FatbinError::Cut { at })?;
            entries.push(entry);
            at = next;
        }
        Ok(Fatbin { entries })
    }

    /// The PTX for a GPU: the newest that is not newer than it.
    ///
    /// # Errors
    /// [`FatbinError`]: there is none, or it cannot be unpacked.
    pub fn ptx(&self, gpu: u32) -> Result<String, FatbinError> {
        let ptx = self.entries.iter().filter(|e| e.kind == Kind::Ptx);
        let fit = ptx.clone().filter(|e| e.arch <= gpu);
        if let Some(entry) = fit.max_by_key(|e| e.arch) {
            return entry.text();
        }
        if let Some(least) = ptx.map(|e| e.arch).min() {
            return Err(FatbinError::TooNew { least, gpu });
        }
        let cubins = self.entries.iter().filter(|e| e.kind == Kind::Cubin);
        let archs = cubins.map(|e| e.arch).collect();
        Err(FatbinError::NoPtx { archs })
    }
}

/// The entry at an offset, and where the next one begins.
fn entry(bytes: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let header = bytes.get(at..at.checked_add(ENTRY)?)?;
    let own = number::<4>(header, 4).filter(|n| *n >= ENTRY as u64)? as usize;
    let padded = usize::try_from(number::<8>(header, 8)?).ok()?;
    let first = at.checked_add(own)?;
    let next = first.checked_add(padded)?;
    let image = bytes.get(first..next)?;
    let flags = number::<8>(header, 40)?;
    let packed = number::<4>(header, 16)? as usize;
    let image = match flags & (FLAG_LZ4 | FLAG_ZSTD) {
        0 => image,
        _ => image.get(..packed)?,
    };
    let kind = match number::<2>(header, 0)? as u16 {
        KIND_PTX => Kind::Ptx,
        KIND_CUBIN => Kind::Cubin,
        other => Kind::Other(other),
    };
    let entry = Entry {
        kind,
        arch: number::<4>(header, 28)? as u32,
        flags,
        unpacked: number::<8>(header, 56)?,
        image,
    };
    Some((entry, next))
}

impl Entry<'_> {
    /// The image, unpacked.
    ///
    /// # Errors
    /// [`FatbinError::Packed`].
    pub fn unpack(&self) -> Result<Vec<u8>, FatbinError> {
        let refuse = |what: String| FatbinError::Packed {
            arch: self.arch,
            what,
        };
        if self.flags & (FLAG_LZ4 | FLAG_ZSTD) == 0 {
            return Ok(self.image.to_vec());
        }
        if self.unpacked > MOST {
            return Err(refuse(format!("it says it has {} bytes", self.unpacked)));
        }
        let len = self.unpacked as usize;
        if self.flags & FLAG_LZ4 != 0 {
            let unpacked = lz4_flex::block::decompress(self.image, len);
            return unpacked.map_err(|e| refuse(e.to_string()));
        }
        let stream = ruzstd::decoding::StreamingDecoder::new(self.image);
        let mut unpacked = Vec::new();
        let read = stream.map_err(|e| refuse(e.to_string()))?;
        // A byte more than it says shows that it has more.
        let read = read.take(self.unpacked + 1).read_to_end(&mut unpacked);
        read.map_err(|e| refuse(e.to_string()))?;
        if unpacked.len() != len {
            let what = format!("it has {} bytes and says {len}", unpacked.len());
            return Err(refuse(what));
        }
        Ok(unpacked)
    }

    /// The image as PTX text, without the zeros at its end.
    ///
    /// # Errors
    /// [`FatbinError::Packed`].
    pub fn text(&self) -> Result<String, FatbinError> {
        let mut bytes = self.unpack()?;
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        String::from_utf8(bytes).map_err(|e| FatbinError::Packed {
            arch: self.arch,
            what: e.to_string(),
        })
    }
}
