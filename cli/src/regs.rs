//! `ringbell regs`: the register map of the NIC, and its values and blocks in the NICs that run
//! here, in one of a kind, or in a card; and the nodes of meshes that run here.

mod blocks;
mod running;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ringbell::abi::bar::{self, Access, Reg};
use ringbell::abi::GpuVa;
use ringbell::gpu::EmulatedGpuConfig;
use ringbell::parts::card::pages::FilePages;
use ringbell::parts::card::{CardBar, CardGtlb, Doorbells};
use ringbell::parts::gtlb::LARGE_PAGE_BYTES;
use ringbell::Nic as OpenNic;
use serde::Serialize;

use super::{open as opened, stdio, Exit, Problem};
use blocks::Blocks;
use running::{RunningNic, RunningNode};

/// Arguments of `ringbell regs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show only registers whose name contains this text
    filter: Option<String>,
    /// Show the values of the NICs of this process only [default: of every process that may be
    /// looked into]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Show the values of a card: a PCI address (0000:3b:00.0), or a file that holds a BAR
    #[arg(long, value_name = "ADDRESS|FILE", conflicts_with = "pid")]
    bar: Option<String>,
    /// Write a register of the card first; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "bar", value_parser = setting)]
    set: Vec<(Reg, u32)>,
    /// Write the GPU pages that the card's kernel driver tells in this file to the card's GTLB
    /// first (instance 0)
    #[arg(long, value_name = "FILE", requires = "bar")]
    pages: Option<PathBuf>,
    /// Say how kernels of the GPU that is used would ring the card: in its BAR, or through a thread
    /// of the host
    #[arg(long, requires = "bar")]
    doorbells: bool,
    /// Write the map as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// The map.
#[derive(Serialize)]
struct Map {
    /// Version of the contract.
    abi_version: u32,
    /// Bytes of the whole BAR.
    bar_bytes: usize,
    /// Byte offset of the doorbell of queue 0.
    doorbell_base: usize,
    /// Bytes between two of them.
    doorbell_stride: usize,
    /// Number of them.
    doorbells: usize,
    /// The selected registers, by rising offset.
    registers: Vec<Register>,
    /// The NICs that run on this host.
    nics: Vec<Nic>,
    /// Nodes of meshes that run on this host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    meshes: Vec<RunningNode>,
    /// The card of the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<Card>,
}

/// One card.
#[derive(Serialize)]
struct Card {
    /// The file behind its BAR.
    path: PathBuf,
    /// Values now, by name of the register.
    values: BTreeMap<&'static str, u32>,
    /// What its BAR says of itself.
    blocks: Blocks,
    /// The way by which kernels ring it, and why, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    doorbells: Option<String>,
    /// The entries written to its GTLB, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<String>,
}

/// A register and its value, from the command line.
fn setting(text: &str) -> Result<(Reg, u32), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("give NAME=VALUE, such as GTLB_SELECT=1")?;
    let wanted = name.to_ascii_uppercase();
    let row = Reg::ALL.iter().find(|row| row.2 == wanted);
    let reg =
        row.ok_or_else(|| format!("no register is called {name}; `ringbell regs` lists them"))?;
    let number = match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => value.parse(),
    };
    let number = number.map_err(|e| format!("{value} is no value of 32 bits: {e}"))?;
    Ok((reg.0, number))
}

/// One NIC that runs.
#[derive(Serialize)]
struct Nic {
    /// The process that it runs in.
    pid: u32,
    /// Name of that process.
    process: String,
    /// Number of its BAR's descriptor there: a process may hold several NICs.
    fd: u32,
    /// Values now, by name of the register.
    values: BTreeMap<&'static str, u32>,
    /// What its BAR says of itself.
    blocks: Blocks,
    /// The same of the BAR of the hardware behind it, for a NIC that was opened to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    hardware: Option<Blocks>,
}

/// One register.
#[derive(Serialize)]
struct Register {
    /// Byte offset in the BAR.
    offset: usize,
    /// Index in the control window.
    index: u32,
    /// Name as in the C header, without `RB_REG_`.
    name: &'static str,
    /// `ro`, `wo`, `rw`.
    access: &'static str,
    /// The register's meaning.
    meaning: String,
}

/// Whether a register's name contains `filter`.
fn is_known(filter: &str) -> bool {
    let wanted = filter.to_ascii_uppercase();
    Reg::ALL.iter().any(|row| row.2.contains(&wanted))
}

/// The map of the registers whose name contains `filter`, with the values of `nics`.
fn map(filter: &str, nics: &[RunningNic], card: Option<&CardBar>) -> Map {
    let wanted = filter.to_ascii_uppercase();
    let rows = || {
        Reg::ALL
            .iter()
            .filter(|(_, _, name, _)| name.contains(&wanted))
    };
    let registers = rows()
        .map(|(reg, access, name, doc)| Register {
            offset: reg.offset(),
            index: *reg as u32,
            name,
            access: match access {
                Access::Ro => "ro",
                Access::Wo => "wo",
                Access::Rw => "rw",
            },
            meaning: doc.split_whitespace().collect::<Vec<_>>().join(" "),
        })
        .collect();
    let nics = nics
        .iter()
        .map(|nic| Nic {
            pid: nic.pid,
            process: nic.process.clone(),
            fd: nic.fd,
            values: rows()
                .filter_map(|&(reg, _, name, _)| Some((name, nic.read(reg)?)))
                .collect(),
            blocks: Blocks::read(|offset| nic.word(offset)),
            hardware: None,
        })
        .collect();
    let card = card.map(|card| Card {
        path: card.path().to_path_buf(),
        values: rows()
            .map(|&(reg, _, name, _)| (name, card.read(reg)))
            .collect(),
        blocks: Blocks::read(|offset| card.read32(offset).ok()),
        doorbells: None,
        pages: None,
    });
    Map {
        abi_version: ringbell::abi::ABI_VERSION,
        bar_bytes: bar::BAR_BYTES,
        doorbell_base: bar::DOORBELL_BASE,
        doorbell_stride: bar::DOORBELL_STRIDE,
        doorbells: bar::MAX_QUEUES,
        registers,
        nics,
        meshes: Vec::new(),
        card,
    }
}

/// Opens a NIC of the kind that was asked for, beside a small GPU.
fn own() -> Result<OpenNic> {
    opened::nic(OpenNic::builder().gpu_memory(2 << 20))
}

/// Prints the map, and the values of the NICs that run, of a card, or with `open` of a NIC that it
/// opens.
pub(crate) fn run(args: &Args, open_own: bool) -> Result<Exit> {
    let own = (open_own && args.bar.is_none() && args.pid.is_none())
        .then(own)
        .transpose()?;
    let card = args
        .bar
        .as_deref()
        .map(|at| open(at, &args.set))
        .transpose()?;
    let pages = match (&card, &args.pages) {
        (Some(card), Some(file)) => Some(populate(card, file)?),
        _ => None,
    };
    let (nics, meshes) = match &card {
        Some(_) => (Vec::new(), Vec::new()),
        None => {
            let only = own.as_ref().map(|_| std::process::id()).or(args.pid);
            (running::nics(only), running::nodes(only))
        }
    };
    if let (Some(pid), true) = (args.pid, nics.is_empty() && meshes.is_empty()) {
        return Err(Problem::new(
            Exit::Environment,
            format!("process {pid} holds no NIC, or may not be looked into"),
            "start the program that opens the NIC first, and run this as its user or as root",
        )
        .into());
    }
    if let Some(filter) = args.filter.as_deref().filter(|f| !is_known(f)) {
        return Err(Problem::new(
            Exit::Usage,
            format!("no register's name contains `{filter}`"),
            "`ringbell regs` lists them all",
        )
        .into());
    }
    let mut map = map(args.filter.as_deref().unwrap_or(""), &nics, card.as_ref());
    map.meshes = meshes;
    if let (Some(shown), Some(card), true) = (&mut map.card, card, args.doorbells) {
        shown.doorbells = Some(doorbells(card)?);
    }
    if let Some(shown) = &mut map.card {
        shown.pages = pages;
    }
    if let (Some(nic), Some(shown)) = (&own, map.nics.first_mut()) {
        let backend = nic.backend();
        shown.hardware = backend
            .card_counts()
            .map(|_| Blocks::read(|offset| backend.card_read32(offset)));
    }
    match args.json.as_deref() {
        None => stdio::out(text(&map))?,
        Some(path) => {
            let json =
                serde_json::to_string_pretty(&map).context("cannot express the map as JSON")?;
            if path == Path::new("-") {
                stdio::line(json)?;
            } else {
                std::fs::write(path, json + "\n")
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Opens a card, and writes the registers that are to be written.
fn open(at: &str, set: &[(Reg, u32)]) -> Result<CardBar> {
    let problem =
        |exit, what: String, advice| anyhow::Error::from(Problem::new(exit, what, advice));
    let card = CardBar::open(at).map_err(|e| {
        let advice = "`ringbell regs` without --bar shows the software NICs that run here";
        problem(Exit::Environment, e.to_string(), advice)
    })?;
    for (reg, value) in set {
        let advice = "`ringbell regs` shows which registers may be written";
        card.write(*reg, *value)
            .map_err(|e| problem(Exit::Usage, e.to_string(), advice))?;
    }
    Ok(card)
}

/// Writes the pages in a file to the GTLB of a card; returns a summary in words.
fn populate(card: &CardBar, file: &Path) -> Result<String> {
    let problem = |e: &dyn std::fmt::Display, advice| {
        anyhow::Error::from(Problem::new(Exit::Environment, e.to_string(), advice))
    };
    let source = FilePages::open(file).map_err(|e| {
        let advice = "docs/real-gpu.md, \"a card's BAR\", says where such files come from";
        problem(&e, advice)
    })?;
    let tables = source.tables();
    let Some(first) = tables.first() else {
        return Ok(format!("{} tells of no pages", file.display()));
    };
    let window = GpuVa(first.base.0 / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES);
    let advice = "nothing of the file is in use; the card may have to be reset";
    let mut gtlb = CardGtlb::new(card, 0, window).map_err(|e| problem(&e, advice))?;
    let groups = gtlb.free_groups();
    for table in &tables {
        gtlb.map(table).map_err(|e| problem(&e, advice))?;
    }
    Ok(format!(
        "{} pages of 64 KiB in {} runs from {window}, {} groups of them scattered ({} more have room)",
        source.len(),
        tables.len(),
        groups - gtlb.free_groups(),
        gtlb.free_groups()
    ))
}

/// The way from the used GPU to the card's doorbells. Nothing is rung.
fn doorbells(card: CardBar) -> Result<String> {
    let chosen = opened::gpu(&EmulatedGpuConfig {
        memory_bytes: 2 << 20,
        ..EmulatedGpuConfig::default()
    })?;
    let memory = chosen.gpu.memory();
    let way = Doorbells::open(Arc::new(card), &*memory)?;
    Ok(format!("{}: {}", chosen.gpu.describe(), way.describe()))
}

fn text(map: &Map) -> String {
    let mut out = format!(
        "contract version {}, BAR of {} bytes\n\noffset  index  access  name                        meaning\n",
        map.abi_version, map.bar_bytes
    );
    for r in &map.registers {
        out.push_str(&format!(
            "{:#06x}  {:>5}  {:<6}  {:<26}  {}\n",
            r.offset, r.index, r.access, r.name, r.meaning
        ));
    }
    out.push_str(&format!(
        "{:#06x}         wo      doorbell of queue q at {:#x} + {} q, q < {}\n",
        map.doorbell_base, map.doorbell_base, map.doorbell_stride, map.doorbells
    ));
    let values = |out: &mut String, values: &BTreeMap<&'static str, u32>| {
        for r in &map.registers {
            if let Some(value) = values.get(r.name) {
                out.push_str(&format!("  {:<26}  {value:#010x}  {value}\n", r.name));
            }
        }
    };
    if let Some(card) = &map.card {
        out.push_str(&format!("\n{}:\n", card.path.display()));
        values(&mut out, &card.values);
        out.push_str(&card.blocks.text());
        if let Some(pages) = &card.pages {
            out.push_str(&format!("GTLB: {pages}\n"));
        }
        if let Some(way) = &card.doorbells {
            out.push_str(&format!("doorbells: {way}\n"));
        }
    } else if map.nics.is_empty() {
        out.push_str(
            "\nno NIC runs in a process that may be looked into, so there are no values\n",
        );
    }
    for nic in &map.nics {
        out.push_str(&format!(
            "\n{} (process {}, descriptor {}):\n",
            nic.process, nic.pid, nic.fd
        ));
        values(&mut out, &nic.values);
        out.push_str(&nic.blocks.text());
        if let Some(blocks) = &nic.hardware {
            out.push_str("its hardware:\n");
            out.push_str(&blocks.text());
        }
    }
    for mesh in &map.meshes {
        let RunningNode {
            pid, process, fd, ..
        } = mesh;
        out.push_str(&format!(
            "\n{process} (process {pid}, descriptor {fd}), {}:\n",
            mesh.node
        ));
        for line in &mesh.report {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_every_register_or_those_asked_for() {
        let all = map("", &[], None);
        assert_eq!(all.registers.len(), Reg::ALL.len());
        assert!(text(&all).contains("0x0800    512  ro      MAGIC"));
        let some = map("gtlb_miss", &[], None);
        assert!(some.registers.iter().all(|r| r.name.contains("GTLB_MISS")));
        assert_eq!(some.registers.len(), 3);
        assert!(map("no such register", &[], None).registers.is_empty());
    }
}
