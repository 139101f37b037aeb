//! `ringbell perf compare`: reports of one benchmark side by side, with ratios.
//!
//! The first report is the subject; the others are its peers: those of other programs, if there are
//! any, so that a second way of Ringbell's own stands beside them without being the best peer. Rows
//! belong together when size and series are the same; of several rows for one place (interleaved
//! runs) the median counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::report::{draw, size_text, Axis, Plot, Report, Row};
use crate::{stdio, Exit, Problem};

/// Arguments of `ringbell perf compare`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Reports written with --json; the first is compared with all others. A file's name is the
    /// curve's name
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    reports: Vec<PathBuf>,
    /// Draw bandwidth by size, a curve for each report and series
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw median times instead of bandwidth
    #[arg(long, requires = "svg")]
    latency: bool,
}

/// A place in the table: size and series.
pub(super) type Key = (u64, String);

/// Medians of one report.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) rows: BTreeMap<Key, Row>,
}

/// Compares, prints and draws.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut reports = Vec::new();
    for path in &args.reports {
        reports.push(read(path)?);
    }
    let first = &reports[0];
    for (path, r) in args.reports.iter().zip(&reports) {
        if r.meta.benchmark != first.meta.benchmark {
            return Err(Problem::new(
                Exit::Usage,
                format!(
                    "{} is a report of {}, but {} is one of {}",
                    path.display(),
                    r.meta.benchmark,
                    args.reports[0].display(),
                    first.meta.benchmark
                ),
                "compare reports of the same benchmark",
            )
            .into());
        }
    }
    let columns: Vec<Column> = args
        .reports
        .iter()
        .zip(&reports)
        .map(|(path, r)| Column {
            name: path.file_stem().map_or_else(
                || path.display().to_string(),
                |s| s.to_string_lossy().into_owned(),
            ),
            rows: medians(&r.rows),
        })
        .collect();
    let common = columns[0].rows.keys();
    let common = common.filter(|k| columns[1..].iter().any(|c| c.rows.contains_key(*k)));
    if common.count() == 0 {
        return Err(Problem::new(
            Exit::Usage,
            "the reports have no size in common",
            "run both with the same -b, -e and -f",
        )
        .into());
    }
    stdio::out(table(&reports, &columns, false))?;
    if let Some(path) = &args.svg {
        let svg = draw(&together(first, &columns), &plot(first, args.latency))?;
        std::fs::write(path, svg)
            .with_context(|| format!("cannot write {}; check the path", path.display()))?;
    }
    let wrong = reports.iter().any(|r| r.wrong() > 0);
    Ok(if wrong { Exit::WrongData } else { Exit::Ok })
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| {
        let what = format!("cannot read {}", path.display());
        let advice = "give files that `ringbell perf ... --json FILE` has written";
        Problem::new(Exit::Usage, what, advice)
    })?;
    serde_json::from_str(&text).map_err(|e| {
        Problem::new(
            Exit::Usage,
            format!("{} is no report: {e}", path.display()),
            "give files that `ringbell perf ... --json FILE` has written",
        )
        .into()
    })
}

/// One row for each place: the one of median time.
pub(super) fn medians(rows: &[Row]) -> BTreeMap<Key, Row> {
    let mut places: BTreeMap<Key, Vec<Row>> = BTreeMap::new();
    for r in rows {
        let key = (r.size_bytes, r.series.clone().unwrap_or_default());
        places.entry(key).or_default().push(r.clone());
    }
    places
        .into_iter()
        .map(|(key, mut rows)| {
            rows.sort_by(|a, b| a.p50_us.total_cmp(&b.p50_us));
            let middle = (rows.len() - 1) / 2;
            (key, rows.swap_remove(middle))
        })
        .collect()
}

/// The header, a line for each place, and what the ratios mean. `lone`: also places that no peer
/// has.
pub(super) fn table(reports: &[Report], columns: &[Column], lone: bool) -> String {
    let m = &reports[0].meta;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "# {} on {}; {} core(s)",
        m.benchmark, m.machine, m.cores
    );
    for (c, r) in columns.iter().zip(reports) {
        let wrong = match (r.rows.iter().any(|r| r.wrong.is_some()), r.wrong()) {
            (false, _) => "data not verified".to_string(),
            (true, 0) => "no wrong values".to_string(),
            (true, n) => format!("{n} WRONG VALUES"),
        };
        let busy = r.meta.busy.as_ref().filter(|b| b.is_busy());
        let busy = busy.map_or(String::new(), |b| {
            let percent = (b.others + b.stolen) * 100.0;
            format!(", on a busy machine ({percent:.0}% of its cores for others)")
        });
        let _ = writeln!(
            out,
            "# {}: {}, transport {}, {wrong}{busy}",
            c.name, r.meta.nic, r.meta.transport
        );
    }
    let _ = write!(out, "# {:>8} {:>13}", "size", "series");
    for c in columns {
        let _ = write!(out, " {:>20}", c.name);
    }
    let _ = writeln!(out, " {:>8} {:>8}  best peer", "time", "busbw");
    let _ = write!(out, "# {:>8} {:>13}", "(B)", "");
    for _ in columns {
        let _ = write!(out, " {:>20}", "us (GB/s)");
    }
    let _ = writeln!(out, " {:>8} {:>8}", "ratio", "ratio");
    // Of another program, no NIC of ours makes progress.
    let is_other = |r: &Report| r.meta.progress == "none";
    let has_others = reports[1..].iter().any(is_other);
    let peers: Vec<_> = (columns.iter().zip(reports).skip(1))
        .filter(|(_, r)| !has_others || is_other(r))
        .map(|(c, _)| c)
        .collect();
    for (key, own) in &columns[0].rows {
        let best = peers
            .iter()
            .filter_map(|c| Some((c.name.as_str(), c.rows.get(key)?)))
            .min_by(|a, b| a.1.p50_us.total_cmp(&b.1.p50_us));
        if best.is_none() && !lone {
            continue;
        }
        let _ = write!(out, "  {:>8} {:>13}", size_text(key.0), key.1);
        for c in columns {
            let cell = c.rows.get(key).map_or_else(String::new, cell);
            let _ = write!(out, " {cell:>20}");
        }
        let _ = match best {
            Some((name, best)) => writeln!(
                out,
                " {:>7.2}x {:>7.2}x  {name}",
                own.p50_us / best.p50_us,
                best.p50_us / own.p50_us,
            ),
            None => writeln!(out, " {:>8} {:>8}  none", "", ""),
        };
    }
    let _ = writeln!(
        out,
        "# medians; time ratio = {0} / best peer (small is good), busbw ratio its inverse",
        columns[0].name
    );
    out
}

fn cell(r: &Row) -> String {
    format!("{:.1} ({:.2})", r.p50_us, r.busbw_gbs)
}

/// All columns as one report, whose series are the columns' names.
pub(super) fn together(first: &Report, columns: &[Column]) -> Report {
    let mut report = first.clone();
    report.rows.clear();
    for c in columns {
        for ((_, series), row) in &c.rows {
            let mut row = row.clone();
            row.series = Some(match series.as_str() {
                "" => c.name.clone(),
                s => format!("{}, {s}", c.name),
            });
            report.rows.push(row);
        }
    }
    report
}

pub(super) fn plot(first: &Report, latency: bool) -> Plot {
    Plot {
        title: match first.meta.ranks {
            Some(n) => format!("{}, {n} ranks", first.meta.benchmark),
            None => first.meta.benchmark.clone(),
        },
        x: Axis::Size,
        y: if latency {
            Axis::P50
        } else {
            Axis::BusBandwidth
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Meta;

    fn report(times: &[(u64, f64)]) -> Report {
        let rows = times.iter().map(|&(size_bytes, p50_us)| Row {
            size_bytes,
            p50_us,
            busbw_gbs: size_bytes as f64 / p50_us / 1e3,
            wrong: Some(0),
            ..Row::default()
        });
        Report {
            rows: rows.collect(),
            meta: Meta::new("all-reduce"),
        }
    }

    fn column(name: &str, r: &Report) -> Column {
        Column {
            name: name.into(),
            rows: medians(&r.rows),
        }
    }

    #[test]
    fn the_median_of_interleaved_runs_and_the_best_peer_count() {
        let own = report(&[(1024, 9.0), (1024, 1.0), (1024, 2.0), (64, 1.0)]);
        let slow = report(&[(1024, 8.0)]);
        let fast = report(&[(1024, 4.0)]);
        let columns = [
            column("own", &own),
            column("slow", &slow),
            column("fast", &fast),
        ];
        let reports = [own, slow, fast];
        let text = table(&reports, &columns, false);
        let line = text.lines().find(|l| l.contains("1K")).expect("a row");
        assert!(line.contains("0.50x") && line.contains("2.00x"), "{line}");
        assert!(line.ends_with("fast"), "{line}");
        assert!(!text.contains("  64 "), "no peer has that size: {text}");
        let text = table(&reports, &columns, true);
        let line = text.lines().find(|l| l.contains("  64 ")).expect("a row");
        assert!(line.ends_with("none"), "{line}");
    }

    #[test]
    fn another_way_of_our_own_is_no_peer_beside_other_programs() {
        let best_of = |reports: [Report; 3]| {
            let names = ["own", "way", "other"];
            let columns: Vec<_> = (names.iter().zip(&reports))
                .map(|(name, r)| column(name, r))
                .collect();
            let text = table(&reports, &columns, false);
            let line = text.lines().find(|l| l.contains("1K")).expect("a row");
            line.split(' ').next_back().map(str::to_owned)
        };
        let [own, way, mut other] = [9.0, 2.0, 4.0].map(|us| {
            let mut report = report(&[(1024, us)]);
            report.meta.progress = "waiter".into();
            report
        });
        let ours = [own.clone(), way.clone(), other.clone()];
        assert_eq!(best_of(ours).as_deref(), Some("way"));
        other.meta.progress = "none".into();
        assert_eq!(best_of([own, way, other]).as_deref(), Some("other"));
    }

    #[test]
    fn every_report_is_a_curve() {
        let (a, b) = (report(&[(1024, 2.0), (2048, 3.0)]), report(&[(1024, 4.0)]));
        let all = together(&a, &[column("a", &a), column("b", &b)]);
        let svg = draw(&all, &plot(&a, false)).expect("drawn");
        // Two circles for each of 3 points, and for each of 2 curves in the legend.
        assert_eq!(svg.matches("<circle").count(), 2 * (3 + 2));
        assert!(svg.contains("bus bandwidth"));
    }
}
