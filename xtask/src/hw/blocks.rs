//! The blocks of hw/rtl, and faults that their proofs and simulations must notice.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::workspace::root;

/// A block: `hw/rtl/NAME.sv`, proved by `hw/formal/NAME_props.svh`.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) name: &'static str,
    /// Its simulation: the module TEST of `hw/sim/tests`.
    pub(super) test: &'static str,
    /// What that runs, as `hw/sim/build.rs` names it.
    pub(super) runs: &'static [&'static str],
    /// Steps of its k-induction; none without a proof.
    pub(super) depth: Option<u32>,
    /// Parameters and their values in the proof of every run.
    pub(super) narrow: &'static [(&'static str, u32)],
    /// Those in the proof of `exhaust`, which takes minutes; none at full size.
    pub(super) wide: &'static [(&'static str, u32)],
    /// The module whose resources are estimated: the block, or the part of which it has many; none
    /// where others contain it, or it is their sum.
    pub(super) estimated: Option<&'static str>,
    /// Its parameters there.
    pub(super) parameters: &'static [(&'static str, &'static str)],
}

/// The folder of the blocks.
pub(super) fn rtl() -> PathBuf {
    root().join("hw/rtl")
}

impl Block {
    /// Files below hw/rtl, the package first and the block last: `NAME.f` lists those of a block
    /// with parts.
    pub(super) fn files(&self) -> Vec<String> {
        let list = std::fs::read_to_string(rtl().join(format!("{}.f", self.name)));
        let list = list.unwrap_or_else(|_| format!("ringbell_abi_pkg.sv\n{}.sv\n", self.name));
        list.lines().map(str::to_owned).collect()
    }
}

const fn proved(name: &'static str, runs: &'static [&'static str], depth: u32) -> Block {
    Block {
        depth: Some(depth),
        ..simulated(name, runs)
    }
}

const fn simulated(name: &'static str, runs: &'static [&'static str]) -> Block {
    Block {
        name,
        test: name,
        runs,
        depth: None,
        narrow: &[],
        wide: &[],
        estimated: Some(name),
        parameters: &[],
    }
}

/// A block that is simulated as part of `nic_top`.
const fn part(name: &'static str) -> Block {
    Block {
        test: "nic_top",
        ..simulated(name, &["nic_top"])
    }
}

/// A router, or a part of it.
const fn router(name: &'static str) -> Block {
    Block {
        test: "router",
        ..simulated(name, &["router", "router_ring"])
    }
}

const HLL: &[&str] = &["hll", "hll_murmur3"];
pub(super) static BLOCKS: [Block; 28] = [
    proved("gtlb", &["gtlb"], 7),
    proved("regfile", &["regfile"], 6),
    proved("dma_split", &["dma_split"], 5),
    proved("onpath", &["onpath", "crc32c"], 4),
    simulated("crc32c", &["crc32c"]),
    Block {
        test: "hll",
        ..proved("hll_registers", HLL, 5)
    },
    // Each of its 16 lanes is such a hash, of the two the larger, and an instance of hll_registers.
    Block {
        estimated: Some("hll_hash"),
        parameters: &[("Murmur3", "1")],
        ..simulated("hll", HLL)
    },
    // Estimated with `reduce`.
    Block {
        estimated: None,
        ..simulated("float_add", &["float_add_f16"])
    },
    // Its 80 adders would take yosys minutes: one of f32 is estimated.
    Block {
        estimated: Some("float_add"),
        ..simulated("reduce", &["reduce"])
    },
    simulated("sequencer", &["sequencer", "reduce"]),
    Block {
        depth: Some(3),
        estimated: None,
        ..part("fifo")
    },
    // Of 64 bytes, and any length, it takes four minutes.
    Block {
        depth: Some(3),
        narrow: &[("Bytes", 8)],
        estimated: None,
        ..part("dma_align")
    },
    part("dma_read"),
    part("dma_write"),
    Block {
        depth: Some(3),
        ..part("desc")
    },
    Block {
        depth: Some(3),
        ..part("direct")
    },
    Block {
        estimated: None,
        ..part("pack")
    },
    // The sum of its parts.
    Block {
        estimated: None,
        ..part("engines")
    },
    Block {
        depth: Some(3),
        ..part("dma_share")
    },
    part("dma_whole"),
    // Estimated with `router_switch`.
    Block {
        depth: Some(2),
        estimated: None,
        ..router("router_arbiter")
    },
    Block {
        depth: Some(2),
        narrow: &[("Width", 4), ("Wires", 2)],
        ..router("router_switch")
    },
    // These two are estimated with `router_link`.
    Block {
        depth: Some(2),
        estimated: None,
        ..router("router_link_rx")
    },
    // Its steps are more than `Quiet`.
    Block {
        depth: Some(14),
        narrow: &[("Quiet", 8), ("Silence", 6)],
        wide: &[("Quiet", 8), ("Silence", 6)],
        estimated: None,
        ..router("router_link_life")
    },
    // A window of 64 packets does not end in an hour.
    Block {
        depth: Some(3),
        narrow: &[("Bytes", 8), ("Window", 2), ("Depth", 2)],
        wide: &[("Bytes", 8), ("Window", 4), ("Depth", 2)],
        ..router("router_link")
    },
    // The sum of its parts.
    Block {
        depth: Some(2),
        narrow: &[
            ("Wires", 2),
            ("Depth", 2),
            ("Window", 2),
            ("Again", 4),
            ("Quiet", 4),
            ("Silence", 6),
        ],
        estimated: None,
        ..router("router")
    },
    // The sum of its parts.
    Block {
        estimated: None,
        ..part("ring")
    },
    Block {
        estimated: None,
        ..part("nic_top")
    },
];

/// Which check must notice a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Proof,
    Simulation,
}

/// A fault: text that occurs once in a block's files, and what replaces it.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) block: &'static Block,
    pub(super) what: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) by: By,
}

/// The faults of `hw/formal/faults.txt`, whose head says how they are written.
pub(super) fn faults() -> Result<Vec<Fault>> {
    let text = include_str!("../../../hw/formal/faults.txt");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    let read = |three: &[&'static str]| {
        let &[head, from, to] = three else {
            return None;
        };
        let (block, (by, what)) = head
            .split_once(", ")
            .and_then(|(block, rest)| Some((block, rest.split_once(": ")?)))?;
        Some(Fault {
            block: BLOCKS.iter().find(|b| b.name == block)?,
            what,
            from: from.strip_prefix("- ")?,
            to: to.strip_prefix('+')?.trim_start(),
            by: match by {
                "proof" => By::Proof,
                "simulation" => By::Simulation,
                _ => return None,
            },
        })
    };
    let faults = lines.chunks(3).map(|three| {
        read(three).with_context(|| format!("hw/formal/faults.txt has no fault in {three:?}"))
    });
    faults.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_each_fault_stands_once_in_the_files_of_its_block() {
        for fault in faults().expect("faults") {
            let files = fault.block.files();
            let read = |f: &String| std::fs::read_to_string(rtl().join(f));
            let texts = files.iter().map(|f| read(f).expect("a source"));
            let found: usize = texts.map(|t| t.matches(fault.from).count()).sum();
            assert_eq!(found, 1, "{}: {}", fault.block.name, fault.what);
        }
    }
}
