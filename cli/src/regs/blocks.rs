//! The blocks that a BAR describes, by its headers.

use ringbell::abi::block::{walk, BlockHeader, BLOCK_HARDWARE};
use serde::Serialize;

/// The headers of one BAR.
#[derive(Debug, Serialize)]
pub(super) struct Blocks {
    /// In the order of the chain.
    found: Vec<Shown>,
    /// Why the chain ends early.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One block.
#[derive(Debug, Serialize)]
struct Shown {
    /// Byte offset of the header.
    offset: usize,
    /// Its name, or the number of a kind that this version does not know.
    block: String,
    version: u32,
    /// Hardware does its work.
    hardware: bool,
    /// First byte and bytes of its control registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<(u32, u32)>,
    /// The same of its status registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<(u32, u32)>,
    units: u32,
    size: u32,
    more: u32,
}

impl Shown {
    fn new(offset: usize, h: &BlockHeader) -> Shown {
        let range = |first, bytes| (bytes > 0).then_some((first, bytes));
        Shown {
            offset,
            block: h
                .known()
                .map_or_else(|| h.kind.to_string(), |kind| kind.name().to_string()),
            version: h.version,
            hardware: h.flags & BLOCK_HARDWARE != 0,
            control: range(h.control, h.control_bytes),
            status: range(h.status, h.status_bytes),
            units: h.units,
            size: h.size,
            more: h.more,
        }
    }
}

impl Blocks {
    /// Walks the headers; `read` gives a word of the BAR.
    pub(super) fn read(read: impl FnMut(usize) -> Option<u32>) -> Blocks {
        let mut blocks = Blocks {
            found: Vec::new(),
            error: None,
        };
        for found in walk(read) {
            match found {
                Ok((offset, header)) => blocks.found.push(Shown::new(offset, &header)),
                Err(e) => blocks.error = Some(e.to_string()),
            }
        }
        blocks
    }

    /// A table, or a sentence where there are none.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if self.found.is_empty() && self.error.is_none() {
            out.push_str("  no block headers\n");
        }
        if !self.found.is_empty() {
            out.push_str("  header  block       version  in        control         status          units    size    more\n");
        }
        for b in &self.found {
            let range = |range: Option<(u32, u32)>| match range {
                Some((first, bytes)) => format!("{first:#06x}..{:#06x}", first + bytes),
                None => "-".to_string(),
            };
            let place = if b.hardware { "hardware" } else { "software" };
            out.push_str(&format!(
                "  {:#06x}  {:<10}  {:>7}  {place}  {:<14}  {:<14}  {:>5}  {:>6}  {:>6}\n",
                b.offset,
                b.block,
                b.version,
                range(b.control),
                range(b.status),
                b.units,
                b.size,
                b.more
            ));
        }
        if let Some(error) = &self.error {
            out.push_str(&format!("  broken: {error}\n"));
        }
        out
    }
}
