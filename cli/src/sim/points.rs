//! The points of a plan: a line of a table for each, JSON, and a picture.

use std::path::Path;

use anyhow::{Context as _, Result};
use ringbell_sim::{Measured, Report};
use serde_json::{json, Value};

use super::fault;
use super::refused::has_memory_of;
use super::sweep::{self, Point, LABELS};
use super::words::{self, joined};
use crate::report::{self, draw, size_text, Axis, Meta, Plot, Row};
use crate::{files, stdio, Exit};

/// A column of results: head, unit, width.
const COLUMNS: [(&str, &str, usize); 7] = [
    ("time", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("link", "(%)", 7),
    ("frames", "", 9),
    ("lost", "", 7),
    ("#wrong", "", 7),
];

/// What has come of a point.
type Outcome = Result<(Measured, Report), String>;

/// Where results go.
pub(super) struct Outputs<'a> {
    pub(super) json: Option<&'a Path>,
    pub(super) svg: Option<&'a Path>,
}

/// Runs all points of a plan, and goes on behind one that fails.
///
/// # Errors
/// The plan is wrong, or a file cannot be written.
pub(super) fn run(path: &Path, outputs: &Outputs<'_>) -> Result<Exit> {
    let points = sweep::read(path)?;
    let table = Table::of(&points);
    let prints = outputs.json.is_none();
    if prints {
        stdio::out(table.head(path, &points))?;
    }
    let mut outcomes = Vec::new();
    for point in &points {
        let outcome = outcome(point);
        if prints {
            stdio::line(table.line(point, &outcome))?;
        }
        outcomes.push(outcome);
    }
    if let Some(json) = outputs.json {
        let rows: Vec<_> = points.iter().zip(&outcomes).map(row_of_json).collect();
        let whole = json!({ "plan": path.display().to_string(), "points": rows });
        let text =
            serde_json::to_string_pretty(&whole).context("cannot express the points as JSON")?;
        files::write_json(json, text)?;
    }
    if let Some(svg) = outputs.svg {
        let picture = picture(&points, &outcomes, &table)?;
        files::write(svg, picture, "--svg")?;
    }
    let done = outcomes.iter().flatten();
    let wrong = done.map(|(m, _)| m.wrong).sum();
    match outcomes.iter().any(Result::is_err) {
        true if wrong == 0 => Ok(Exit::Failed),
        _ => Ok(Exit::of_data(wrong)),
    }
}

fn outcome(point: &Point) -> Outcome {
    has_memory_of(&point.plan).map_err(|e| e.to_string())?;
    let report = ringbell_sim::run(&point.plan).map_err(|e| e.to_string())?;
    match (&report.ended, report.sizes.first()) {
        (None, Some(size)) => Ok((*size, report)),
        (Some(ended), _) => Err(fault::problem(ended).to_string()),
        (None, None) => Err("it has no size".into()),
    }
}

/// Which labels differ between points: they are columns, the others stand in the head.
struct Table {
    /// Their places in [`LABELS`], and how wide they are.
    varied: Vec<(usize, usize)>,
}

impl Table {
    fn of(points: &[Point]) -> Table {
        let differs = |i: &usize| points.iter().any(|p| p.labels[*i] != points[0].labels[*i]);
        let width = |i: usize| {
            let texts = points.iter().map(|p| p.labels[i].chars().count());
            (i, texts.max().unwrap_or(0).max(LABELS[i].len()))
        };
        let varied = (0..LABELS.len()).filter(differs).map(width).collect();
        Table { varied }
    }

    fn is_varied(&self, label: usize) -> bool {
        self.varied.iter().any(|v| v.0 == label)
    }

    fn head(&self, path: &Path, points: &[Point]) -> String {
        let common = (0..LABELS.len()).filter(|i| !self.is_varied(*i));
        let common: Vec<_> = common
            .map(|i| format!("{} {}", LABELS[i], points[0].labels[i]))
            .collect();
        let mut out = format!(
            "# ringbell sim --plan {}, {} points\n",
            path.display(),
            points.len()
        );
        if !common.is_empty() {
            out += &format!("# {}\n", common.join(", "));
        }
        let names = self
            .varied
            .iter()
            .map(|&(i, w)| format!(" {:>w$}", LABELS[i]));
        let columns = COLUMNS.map(|(name, _, w)| format!(" {name:>w$}"));
        let names: String = names
            .chain([format!(" {:>9}", "size")])
            .chain(columns)
            .collect();
        let blanks = self.varied.iter().map(|&(_, w)| format!(" {:>w$}", ""));
        let units = COLUMNS.map(|(_, unit, w)| format!(" {unit:>w$}"));
        let units: String = blanks
            .chain([format!(" {:>9}", "(B)")])
            .chain(units)
            .collect();
        out + &format!("#{names}\n#{}\n", units.trim_end())
    }

    fn line(&self, point: &Point, outcome: &Outcome) -> String {
        let labels = self
            .varied
            .iter()
            .map(|&(i, w)| format!(" {:>w$}", point.labels[i]));
        let labels: String = labels.collect();
        let size = size_text(point.plan.sizes[0]);
        let cells = match outcome {
            Err(why) => format!(" failed: {why}"),
            Ok((m, report)) => {
                let cells = [
                    format!("{:.2}", m.time_ns as f64 / 1e3),
                    format!("{:.2}", m.algbw_gbs),
                    format!("{:.2}", m.busbw_gbs),
                    format!("{:.1}", 100.0 * m.busbw_gbs / report.best_gbs),
                    report.counts.packets.to_string(),
                    report.counts.lost.to_string(),
                    words::wrong(m),
                ];
                let cells = cells.iter().zip(COLUMNS);
                cells
                    .map(|(text, (_, _, w))| format!(" {text:>w$}"))
                    .collect()
            }
        };
        format!(" {labels} {size:>9}{cells}")
    }

    /// The varied labels of a point, but for one.
    fn series(&self, point: &Point, but: Option<usize>) -> String {
        let labels = self.varied.iter().filter(|v| Some(v.0) != but);
        let texts: Vec<_> = labels
            .map(|&(i, _)| match LABELS[i] {
                "collective" | "network" | "profile" | "algorithm" | "congestion" | "repeat" => {
                    point.labels[i].clone()
                }
                name => format!("{name} {}", point.labels[i]),
            })
            .collect();
        texts.join(", ")
    }
}

fn row_of_json((point, outcome): (&Point, &Outcome)) -> Value {
    let plan = &point.plan;
    let cluster = &plan.cluster;
    let row = json!({
        "collective": point.labels[0],
        "topology": cluster.network.topology.as_ref().map(|t| t.name()),
        "profile": cluster.profile.name,
        "ranks": cluster.ranks,
        "algorithm": point.labels[4],
        "spray": cluster.network.spray,
        "congestion": point.labels[6],
        "repeat": point.labels[7],
        "udp_ports": cluster.reaction.udp_ports,
        "loss": cluster.loss,
        "seed": cluster.seed,
        "size_bytes": plan.sizes[0],
    });
    let results = match outcome {
        Err(why) => json!({ "failed": why }),
        Ok((m, report)) => json!({
            "elements": m.count,
            "time_us": m.time_ns as f64 / 1e3,
            "algbw_gbs": m.algbw_gbs,
            "busbw_gbs": m.busbw_gbs,
            "link_share": m.busbw_gbs / report.best_gbs,
            "wrong": m.projection.is_none().then_some(m.wrong),
            "projection": m.projection.as_ref().map(words::json_of_projection),
            "frames": report.counts.packets,
            "frame_bytes": report.counts.bytes,
            "lost": report.counts.lost,
            "marked": report.counts.marked,
            "pauses": report.counts.pauses,
            "hash": format!("{:016x}", report.counts.hash),
        }),
    };
    joined(row, results)
}

/// Bus bandwidth by size, or by ranks where there is one size; a curve for what else differs.
fn picture(points: &[Point], outcomes: &[Outcome], table: &Table) -> Result<String> {
    const RANKS: usize = 3;
    let size = &points[0].plan.sizes;
    let by_ranks = table.is_varied(RANKS) && points.iter().all(|p| p.plan.sizes == *size);
    let mut meta = Meta::new("sim");
    meta.nic = "simulated".into();
    meta.transport = "rdma".into();
    meta.parameter = by_ranks.then(|| "ranks".into());
    let rows = points.iter().zip(outcomes).filter_map(|(point, outcome)| {
        let (m, _) = outcome.as_ref().ok()?;
        let series = table.series(point, by_ranks.then_some(RANKS));
        Some(Row {
            series: (!series.is_empty()).then_some(series),
            parameter: by_ranks.then_some(point.plan.cluster.ranks as f64),
            size_bytes: point.plan.sizes[0],
            time_us: m.time_ns as f64 / 1e3,
            algbw_gbs: m.algbw_gbs,
            busbw_gbs: m.busbw_gbs,
            ..Row::default()
        })
    });
    let rows = rows.collect();
    let plot = Plot {
        title: "Simulated collectives, virtual time".into(),
        x: if by_ranks {
            Axis::Parameter
        } else {
            Axis::Size
        },
        y: Axis::BusBandwidth,
    };
    draw(&report::Report { meta, rows }, &plot).context("cannot draw the points")
}
