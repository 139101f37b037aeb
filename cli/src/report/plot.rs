//! Plot of a sweep as an SVG: one curve for each series, logarithmic from left to right.

use anyhow::{bail, Result};
use plotters::prelude::*;

use super::{size_text, Report, Row};

/// Content of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// Title.
    pub(crate) title: String,
    /// Left to right; always logarithmic.
    pub(crate) x: Axis,
    /// Upwards.
    pub(crate) y: Axis,
    /// Scale of `y`.
    pub(crate) y_scale: Scale,
}

/// A quantity of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Bytes of one message.
    Size,
    /// What was swept besides the size.
    Parameter,
    /// Median time.
    P50,
    /// `time_us` of the row: a mean, or the time at a percentile.
    Time,
    /// Payload over time.
    Bandwidth,
    /// Bytes on the wire over time: comparable between rank counts.
    BusBandwidth,
}

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero.
    Linear,
    /// Decades.
    Log,
}

impl Axis {
    fn of(self, row: &Row) -> Option<f64> {
        match self {
            Axis::Size => Some(row.size_bytes as f64),
            Axis::Parameter => row.parameter,
            Axis::P50 => Some(row.p50_us),
            Axis::Time => Some(row.time_us),
            Axis::Bandwidth => Some(row.algbw_gbs),
            Axis::BusBandwidth => Some(row.busbw_gbs),
        }
    }

    fn label(self, report: &Report) -> String {
        match self {
            Axis::Size => "message size (bytes)".into(),
            Axis::Parameter => report.meta.parameter.clone().unwrap_or_default(),
            Axis::P50 => "median time (µs)".into(),
            Axis::Time => "time (µs)".into(),
            Axis::Bandwidth => "bandwidth (GB/s)".into(),
            Axis::BusBandwidth => "bus bandwidth (GB/s)".into(),
        }
    }

    fn tick(self, v: f64) -> String {
        match self {
            Axis::Size => size_text(v.round() as u64),
            _ => {
                let text = format!("{v:.3}");
                text.trim_end_matches('0').trim_end_matches('.').to_string()
            }
        }
    }
}

/// A curve: its name and its points.
type Curve = (String, Vec<(f64, f64)>);

/// The curves of a report, in the order in which their first rows stand.
fn curves(report: &Report, plot: &Plot) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in &report.rows {
        let (Some(x), Some(y)) = (plot.x.of(row), plot.y.of(row)) else {
            continue;
        };
        // Neither zero bytes nor zero time has a place on a logarithmic axis.
        if x <= 0.0 || !y.is_finite() || (plot.y_scale == Scale::Log && y <= 0.0) {
            continue;
        }
        let name = row.series.clone().unwrap_or_default();
        match curves.iter_mut().find(|(n, _)| *n == name) {
            Some((_, points)) => points.push((x, y)),
            None => curves.push((name, vec![(x, y)])),
        }
    }
    curves
}

/// Draws the report.
///
/// # Errors
/// When no row can be drawn.
pub(crate) fn svg(report: &Report, plot: &Plot) -> Result<String> {
    let mut curves = curves(report, plot);
    if plot.x == Axis::Size && plot.y == Axis::Bandwidth {
        let limit = &report.meta.limits.memcpy_gbs_by_size;
        if !limit.is_empty() {
            let points = limit.iter().map(|(&s, &g)| (s as f64, g)).collect();
            curves.push(("memcpy, same run".into(), points));
        }
    }
    let points = || curves.iter().flat_map(|(_, p)| p.iter());
    let Some(&(x0, y0)) = points().next() else {
        bail!("no row has both {:?} and {:?}", plot.x, plot.y);
    };
    let (mut x, mut y) = ((x0, x0), (y0, y0));
    for &(px, py) in points() {
        x = (x.0.min(px), x.1.max(px));
        y = (y.0.min(py), y.1.max(py));
    }
    // A single size would be an axis without length.
    if x.0 == x.1 {
        x = (x.0 / 2.0, x.1 * 2.0);
    }
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, (900, 540)).into_drawing_area();
        area.fill(&WHITE)?;
        let caption = format!(
            "{} — {} nic, {} gpu",
            plot.title, report.meta.nic, report.meta.gpu
        );
        let mut chart = ChartBuilder::on(&area);
        chart
            .caption(caption, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(64);
        let xs = (x.0..x.1)
            .log_scale()
            .base(if plot.x == Axis::Size { 2.0 } else { 10.0 });
        // The two scales are different types, so the drawing below is a macro over the chart.
        macro_rules! draw {
            ($ys:expr) => {{
                let mut chart = chart.build_cartesian_2d(xs, $ys)?;
                chart
                    .configure_mesh()
                    .x_desc(plot.x.label(report))
                    .y_desc(plot.y.label(report))
                    .x_label_formatter(&|v| plot.x.tick(*v))
                    .y_label_formatter(&|v| plot.y.tick(*v))
                    .draw()?;
                for (i, (name, points)) in curves.iter().enumerate() {
                    let colour = Palette99::pick(i).to_rgba();
                    let line = chart.draw_series(
                        LineSeries::new(points.iter().copied(), colour.stroke_width(2))
                            .point_size(3),
                    )?;
                    if !name.is_empty() {
                        line.label(name.as_str()).legend(move |(x, y)| {
                            PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                        });
                    }
                }
                if curves.iter().any(|(name, _)| !name.is_empty()) {
                    chart
                        .configure_series_labels()
                        .background_style(WHITE.mix(0.8))
                        .border_style(BLACK)
                        .position(SeriesLabelPosition::UpperLeft)
                        .draw()?;
                }
            }};
        }
        match plot.y_scale {
            Scale::Linear => draw!(0.0..if y.1 > 0.0 { y.1 * 1.1 } else { 1.0 }),
            Scale::Log => draw!((y.0 / 1.5..y.1 * 1.5).log_scale()),
        }
        area.present()?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::machine;

    fn report(sizes: &[u64]) -> Report {
        let rows = sizes
            .iter()
            .map(|&s| Row {
                size_bytes: s,
                algbw_gbs: s as f64 / 100.0,
                p50_us: 1.0,
                ..Row::default()
            })
            .collect();
        Report {
            meta: machine::meta("test"),
            rows,
        }
    }

    fn plot(y: Axis, y_scale: Scale) -> Plot {
        Plot {
            title: "a & b".into(),
            x: Axis::Size,
            y,
            y_scale,
        }
    }

    #[test]
    fn draws_each_point_and_the_limit() {
        let mut r = report(&[0, 1024, 2048, 4096]);
        let alone = svg(&r, &plot(Axis::Bandwidth, Scale::Linear)).expect("drawn");
        assert!(alone.starts_with("<svg") && alone.trim_end().ends_with("</svg>"));
        assert_eq!(alone.matches("<circle").count(), 3, "size 0 has no place");
        assert!(alone.contains("a &amp; b") && !alone.contains("memcpy"));
        r.meta.limits.memcpy_gbs_by_size = [(1024, 9.0), (4096, 8.0)].into();
        let both = svg(&r, &plot(Axis::Bandwidth, Scale::Log)).expect("drawn");
        assert!(both.contains("memcpy"));
    }

    #[test]
    fn one_size_is_drawn_and_none_is_an_error() {
        assert!(svg(&report(&[8]), &plot(Axis::P50, Scale::Log)).is_ok());
        assert!(svg(&report(&[]), &plot(Axis::P50, Scale::Log)).is_err());
        assert!(svg(&report(&[0]), &plot(Axis::Time, Scale::Linear)).is_err());
    }
}
