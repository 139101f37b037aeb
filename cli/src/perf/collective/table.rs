//! Table in the form of nccl-tests: out of place beside in place.

use std::fmt::Write as _;

use crate::report::{Report, Row};

/// Series names, as peers have them.
pub(crate) const OUT_OF_PLACE: &str = "out of place";
pub(crate) const IN_PLACE: &str = "in place";

/// Columns beside the sizes.
pub(crate) struct Columns {
    pub(crate) dtype: String,
    pub(crate) redop: String,
    pub(crate) root: String,
}

/// The head, in comment lines.
pub(crate) fn head(report: &Report, notes: &[String]) -> String {
    let m = &report.meta;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# ringbell {} ({}, profile {}) {}",
        m.version, m.commit, m.profile, m.benchmark
    );
    let _ = writeln!(out, "# machine: {}; {} core(s)", m.machine, m.cores);
    for note in notes {
        let _ = writeln!(out, "# {note}");
    }
    out
}

/// The rows, and the closing line.
pub(crate) fn body(report: &Report, columns: &Columns) -> String {
    let mut out = String::new();
    let memcpy = !report.meta.limits.memcpy_gbs_by_size.is_empty();
    let _ = writeln!(out, "#\n#{:>51}{OUT_OF_PLACE:>40}{IN_PLACE:>37}", "");
    let _ = writeln!(
        out,
        "#{:>11} {:>11} {:>7} {:>7} {:>6} {} {}{}",
        "size",
        "elements",
        "type",
        "redop",
        "root",
        side_names(),
        side_names(),
        if memcpy { "   memcpy" } else { "" }
    );
    let _ = writeln!(
        out,
        "#{:>11} {:>11} {:>7} {:>7} {:>6} {} {}{}",
        "(B)",
        "",
        "",
        "",
        "",
        side_units(),
        side_units(),
        if memcpy { "   (GB/s)" } else { "" }
    );
    let mut sizes: Vec<u64> = report.rows.iter().map(|r| r.size_bytes).collect();
    sizes.dedup();
    for size in sizes {
        let elements = |size| {
            let mut rows = report.rows.iter().filter(|r| r.size_bytes == size);
            rows.find_map(|r| r.elements).unwrap_or(0)
        };
        let of = |series: &str| {
            let mut rows = report.rows.iter();
            rows.find(|r| r.size_bytes == size && r.series.as_deref() == Some(series))
        };
        let _ = write!(
            out,
            " {size:>11} {:>11} {:>7} {:>7} {:>6} {} {}",
            elements(size),
            columns.dtype,
            columns.redop,
            columns.root,
            side(of(OUT_OF_PLACE)),
            side(of(IN_PLACE)),
        );
        match report.meta.limits.memcpy_at(size) {
            Some(gbs) => {
                let _ = writeln!(out, " {gbs:>8.2}");
            }
            None => out.push('\n'),
        }
    }
    let checked = report.rows.iter().any(|r| r.wrong.is_some());
    let _ = match (checked, report.wrong()) {
        (false, _) => writeln!(out, "# data was not verified"),
        (true, 0) => writeln!(out, "# Out of bounds values : 0 OK"),
        (true, n) => writeln!(out, "# Out of bounds values : {n} FAILED"),
    };
    let bus: Vec<f64> = report.rows.iter().map(|r| r.busbw_gbs).collect();
    if !bus.is_empty() {
        let mean = bus.iter().sum::<f64>() / bus.len() as f64;
        let _ = writeln!(out, "# Avg bus bandwidth    : {mean:.3}");
    }
    out
}

fn side_names() -> String {
    format!(
        "{:>10} {:>8} {:>8} {:>7}",
        "time", "algbw", "busbw", "#wrong"
    )
}

fn side_units() -> String {
    format!("{:>10} {:>8} {:>8} {:>7}", "(us)", "(GB/s)", "(GB/s)", "")
}

fn side(row: Option<&Row>) -> String {
    let Some(r) = row else {
        return format!("{:>10} {:>8} {:>8} {:>7}", "N/A", "", "", "");
    };
    let wrong = r.wrong.map_or("N/A".to_string(), |w| w.to_string());
    format!(
        "{:>10} {:>8.2} {:>8.2} {wrong:>7}",
        time(r.p50_us),
        r.algbw_gbs,
        r.busbw_gbs
    )
}

/// Significant digits, as nccl-tests prints.
fn time(us: f64) -> String {
    match us {
        t if t >= 10_000.0 => format!("{t:.0}"),
        t if t >= 100.0 => format!("{t:.1}"),
        t => format!("{t:.2}"),
    }
}
