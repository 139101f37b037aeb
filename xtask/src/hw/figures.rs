//! FpgaNIC's Fig. 4, 5a and 7 and Table 2 for the blocks, beside the paper's values, and the timing
//! diagrams of docs/hardware.md.
//!
//! The simulations write what they measure, in cycles, to a folder. Cycles do not depend on the
//! machine, so the documents are compared with them exactly; `--update` writes what stands between
//! the documents' markers, and the reports of which the pictures are drawn.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use fs_err as fs;
use serde_json::{json, Value};

use crate::steps::{command, Words as _};
use crate::workspace;
use crate::workspace::{entries, root, target};

const FOLDER: &str = "docs/results/hw";
pub(super) const PAGE: &str = "docs/hardware.md";
const MEGAHERTZ: f64 = 250.0;

/// A figure of the paper.
struct Figure {
    /// Name of its file and its folder.
    name: &'static str,
    /// Times are drawn, not bandwidth.
    latency: bool,
    unit: &'static str,
    /// Bus bandwidth per bandwidth.
    factor: f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        name: "fig4",
        latency: false,
        unit: "GB/s",
        factor: 1.0,
    },
    Figure {
        name: "fig5a",
        latency: true,
        unit: "µs",
        factor: 1.0,
    },
    Figure {
        name: "fig7",
        latency: false,
        unit: "GB/s of bus bandwidth",
        factor: 2.0 * 7.0 / 8.0,
    },
];

/// A line that a simulation has written: bytes of an operation, bytes in all, cycles, and the
/// curve.
struct Row {
    size: u64,
    bytes: f64,
    cycles: f64,
    series: String,
}

impl Row {
    fn read(line: &str) -> Option<Row> {
        let mut cells = line.split('\t');
        Some(Row {
            size: cells.next()?.parse().ok()?,
            bytes: cells.next()?.parse().ok()?,
            cycles: cells.next()?.parse().ok()?,
            series: cells.next()?.to_string(),
        })
    }

    /// Cycles of one operation.
    fn each(&self) -> f64 {
        self.cycles * self.size as f64 / self.bytes
    }

    fn us(&self) -> f64 {
        self.each() / MEGAHERTZ
    }

    fn gbs(&self) -> f64 {
        self.bytes / self.cycles * MEGAHERTZ / 1e3
    }
}

/// Compares the documents with what the simulations measured, or writes them.
pub(super) fn compare(measured: &Path, update: bool) -> Result<()> {
    let page = |name: &str, block: &dyn Fn(&str, &str) -> Result<String>| {
        let file = root().join(name);
        let text = filled(&fs::read_to_string(&file)?, block);
        Ok::<_, anyhow::Error>((file, text.with_context(|| name.to_owned())?))
    };
    let mut texts = vec![
        page(PAGE, &|name, _| {
            let drawn = fs::read_to_string(measured.join(format!("{name}.txt")))?;
            Ok(format!("```text\n{drawn}```\n"))
        })?,
        page(&format!("{FOLDER}/README.md"), &|name, old| match name {
            "estimates" => estimates(old),
            _ => {
                let figure = FIGURES.iter().find(|f| f.name == name);
                match figure {
                    Some(figure) => Ok(figure.table(&figure.rows(measured)?)),
                    // A table that the simulation has written whole.
                    None => Ok(fs::read_to_string(measured.join(format!("{name}.md")))?),
                }
            }
        })?,
    ];
    for figure in &FIGURES {
        texts.extend(figure.reports(&figure.rows(measured)?)?);
    }
    texts.retain(|(file, text)| !std::fs::read_to_string(file).is_ok_and(|old| old == *text));
    if update {
        texts
            .iter()
            .try_for_each(|(file, text)| fs::write(file, text))?;
        return draw();
    }
    let stale: Vec<_> = texts.iter().map(|(f, _)| f.display().to_string()).collect();
    ensure!(
        stale.is_empty(),
        "the simulations differ from {}; `cargo xtask hw figures --update` writes them",
        stale.join(", ")
    );
    println!("the figures are those of the documents");
    Ok(())
}

/// A page with what `block` gives between each marker `<!-- measured: NAME -->` and the next `<!--
/// end -->`, for what stands there.
fn filled(text: &str, block: &dyn Fn(&str, &str) -> Result<String>) -> Result<String> {
    const BEGIN: &str = "<!-- measured: ";
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once(BEGIN) {
        let (name, behind) = behind.split_once(" -->\n").context("a marker's end")?;
        let Some((old, behind)) = behind.split_once("<!-- end -->") else {
            bail!("what is measured as {name} has no `<!-- end -->`");
        };
        let new = block(name, old)?;
        let _ = write!(out, "{before}{BEGIN}{name} -->\n{new}<!-- end -->");
        rest = behind;
    }
    ensure!(!out.is_empty(), "it has no marker `{BEGIN}NAME -->`");
    Ok(out + rest)
}

impl Figure {
    fn rows(&self, measured: &Path) -> Result<Vec<Row>> {
        let file = measured.join(format!("{}.tsv", self.name));
        let text = fs::read_to_string(&file)?;
        let rows: Option<Vec<Row>> = text.lines().map(Row::read).collect();
        let rows = rows.filter(|rows| !rows.is_empty());
        rows.with_context(|| format!("cannot read the rows of {}", file.display()))
    }

    /// Names of the curves, in the order of their first rows.
    fn series(rows: &[Row]) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in rows {
            if !names.contains(&row.series.as_str()) {
                names.push(&row.series);
            }
        }
        names
    }

    fn table(&self, rows: &[Row]) -> String {
        let names = Figure::series(rows);
        let heads = names
            .iter()
            .map(|n| format!(" {n}, cycles | {n}, {} |", self.unit));
        let columns = "---|---|".repeat(names.len());
        let mut out = format!("| bytes |{}\n|---|{columns}\n", heads.collect::<String>());
        let mut sizes: Vec<u64> = rows.iter().map(|r| r.size).collect();
        sizes.dedup();
        for size in sizes {
            let cells = names.iter().map(|name| {
                let row = rows.iter().find(|r| r.size == size && r.series == *name);
                row.map_or(" – | – |".to_string(), |r| {
                    let value = if self.latency {
                        r.us()
                    } else {
                        r.gbs() * self.factor
                    };
                    format!(" {:.1} | {value:.2} |", r.each())
                })
            });
            let cells: String = cells.collect();
            let _ = writeln!(out, "| {size} |{}", cells.replace(".0 |", " |"));
        }
        out
    }

    /// Reports in the form of `ringbell perf --json`, one for each curve, with new rows.
    fn reports(&self, rows: &[Row]) -> Result<Vec<(PathBuf, String)>> {
        let report = |name: &str| {
            let file = format!("{FOLDER}/{}/{}.json", self.name, name.replace(' ', "-"));
            let file = root().join(file);
            let mut report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
            let rows = rows.iter().filter(|r| r.series == name);
            let rows = rows.map(|r| {
                let (us, bus) = (r.us(), r.gbs() * self.factor);
                json!({
                    "size_bytes": r.size, "count": 1, "time_us": us, "p50_us": us, "p99_us": us,
                    "algbw_gbs": bus / self.factor, "busbw_gbs": bus,
                })
            });
            report["rows"] = rows.collect();
            Ok((file, format!("{report:#}\n")))
        };
        Figure::series(rows).into_iter().map(report).collect()
    }
}

/// Pictures of the reports, by the command that draws all reports.
fn draw() -> Result<()> {
    command(workspace::cargo().words("build --bin ringbell"))?;
    for figure in &FIGURES {
        let folder = root().join(FOLDER).join(figure.name);
        let mut files = entries(&folder)?;
        // The simulation's first.
        let is_papers = |f: &PathBuf| f.to_string_lossy().contains("fpganic-");
        files.sort_by_key(is_papers);
        let mut compare = Command::new(target().join("debug/ringbell"));
        compare.words("perf compare").args(files).arg("--svg");
        compare.arg(root().join(FOLDER).join(format!("{}.svg", figure.name)));
        command(compare.args(figure.latency.then_some("--latency")))?;
    }
    Ok(())
}

/// The rows of Table 2, those of the blocks with the sums of the recorded estimates: a row names
/// its modules, and how many there are.
fn estimates(table: &str) -> Result<String> {
    let text = fs::read_to_string(root().join(super::estimate::RECORD))?;
    let record: Value = serde_json::from_str(&text)?;
    let mut out = String::new();
    for line in table.lines() {
        let mut cells = line.split(" | ");
        let (part, contains) = (cells.next().unwrap_or_default(), cells.next());
        let Some(contains) = contains.filter(|_| part.ends_with(", here")) else {
            let _ = writeln!(out, "{line}");
            continue;
        };
        let times = contains
            .split_once(" × ")
            .map_or(1.0, |(n, _)| n.parse().unwrap_or(f64::NAN));
        let sum = |column: &str| -> Result<f64> {
            let modules = contains.split('`').skip(1).step_by(2);
            let of = modules.map(|module| {
                let value = record["blocks"][module][column].as_f64();
                value.with_context(|| format!("{module} has no estimate of {column}"))
            });
            Ok(times * of.sum::<Result<f64>>()?)
        };
        let (lut, ff, bram, dsp) = (sum("LUT")?, sum("FF")?, sum("BRAM")?, sum("DSP")?);
        let mb = bram * 36.0 / 1024.0;
        let _ = writeln!(
            out,
            "{part} | {contains} | {lut} | {ff} | {mb:.1} | {dsp} |"
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_markers_is_replaced_and_estimates_are_those_recorded() {
        let page = "a\n<!-- measured: x -->\nold\n<!-- end -->\nb";
        let new = filled(page, &|name, old| Ok(format!("{name} for {old}")));
        let want = "a\n<!-- measured: x -->\nx for old\n<!-- end -->\nb";
        assert_eq!(new.expect("a block"), want);
        assert!(filled("no marker", &|_, _| Ok(String::new())).is_err());
        let page = fs::read_to_string(root().join(FOLDER).join("README.md")).expect("a page");
        let same = filled(&page, &|name, old| match name {
            "estimates" => estimates(old),
            _ => Ok(old.to_owned()),
        });
        assert_eq!(same.expect("blocks"), page);
    }
}
