//! Plot of a sweep as an SVG: a curve for each series, the legend beside them, units and machine
//! below.
//!
//! The x axis is logarithmic. The y axis is too where the values span more than [`LINEAR`]. Series
//! whose names share the part before a comma share a colour: `mpi, in place` and
//! `mpi, out of place`. Limits of the machine are dashed and grey.

use std::ops::Range;

use anyhow::{bail, Result};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::{size_text, Meta, Report, Row};

/// Width and height of a picture.
const PICTURE: (u32, u32) = (980, 560);
/// Height of title and subtitle.
const HEAD: u32 = 62;
/// Height of the caption.
const FOOT: u32 = 44;
/// Width of the legend.
const LEGEND: u32 = 230;
/// Largest ratio of values that a linear axis shows.
const LINEAR: f64 = 20.0;
/// Labels on an axis.
const LABELS: usize = 9;
const GREY: RGBColor = RGBColor(110, 110, 110);
/// Okabe and Ito's palette, which colour-blind people can tell apart, without black and yellow.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Content of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// Title.
    pub(crate) title: String,
    /// Left to right.
    pub(crate) x: Axis,
    /// Upwards.
    pub(crate) y: Axis,
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

    fn label(self, meta: &Meta) -> String {
        match self {
            Axis::Size => "message size, bytes".into(),
            Axis::Parameter => meta.parameter.clone().unwrap_or_default(),
            Axis::P50 => "median time".into(),
            Axis::Time => "time".into(),
            Axis::Bandwidth => "bandwidth, GB/s".into(),
            Axis::BusBandwidth => "bus bandwidth, GB/s".into(),
        }
    }

    fn better(self) -> &'static str {
        match self {
            Axis::P50 | Axis::Time => "; lower is better",
            Axis::Bandwidth | Axis::BusBandwidth => "; higher is better",
            Axis::Size | Axis::Parameter => "",
        }
    }

    fn tick(self, v: f64) -> String {
        match self {
            Axis::Size => size_text(v.round() as u64),
            Axis::P50 | Axis::Time => time_text(v),
            _ => short(v),
        }
    }
}

/// Microseconds in the unit that fits.
fn time_text(us: f64) -> String {
    match us.abs() {
        0.0 => "0".into(),
        v if v < 0.9995 => format!("{} ns", short(us * 1e3)),
        v if v < 999.5 => format!("{} µs", short(us)),
        v if v < 999.5e3 => format!("{} ms", short(us / 1e3)),
        _ => format!("{} s", short(us / 1e6)),
    }
}

/// A number without zeros at its end.
fn short(v: f64) -> String {
    let text = format!("{v:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// An axis: its range, and the values at which labels stand.
#[derive(Debug, Clone, PartialEq)]
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// Of positive values; sizes are labelled at powers of two, and their axis ends at labels.
    fn log(low: f64, high: f64, sizes: bool) -> Scale {
        // A single value would be an axis without length.
        let (mut low, mut high) = match low == high {
            true => (low / 2.0, high * 2.0),
            false => (low, high),
        };
        let ticks = if sizes {
            let ticks = powers_of_two(low, high);
            (low, high) = (ticks[0], ticks[ticks.len() - 1]);
            ticks
        } else {
            decades(low, high)
        };
        Scale {
            low,
            high,
            is_log: true,
            ticks,
        }
    }

    /// From zero.
    fn linear(high: f64) -> Scale {
        let high = if high > 0.0 { high * 1.05 } else { 1.0 };
        let rough = high / 6.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|s| s * unit);
        let step = *steps.iter().find(|s| **s >= rough).unwrap_or(&steps[3]);
        let count = (high / step) as u32;
        Scale {
            low: 0.0,
            high,
            is_log: false,
            ticks: (0..=count).map(|i| f64::from(i) * step).collect(),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        pixels.0 + (part * f64::from(pixels.1 - pixels.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// Powers of two, equally spaced, from the last one up to `low` to the first one from `high` on: at
/// least two.
fn powers_of_two(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log2().floor() as i32, high.log2().ceil() as i32);
    let range = (last - first).max(1) as usize;
    let step = (1..).find(|s| range.div_ceil(*s) < LABELS).unwrap_or(1);
    (0..=range.div_ceil(step))
        .map(|i| 2_f64.powi(first + (i * step) as i32))
        .collect()
}

/// Powers of ten in a range, with their doubles and fives where there are few.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let within = |steps: &[f64]| -> Vec<f64> {
        let all = (first..=last).flat_map(|e| steps.iter().map(move |s| s * 10_f64.powi(e)));
        // Rounding of logarithms may push an end just outside.
        all.filter(|v| (low * 0.999..=high * 1.001).contains(v))
            .collect()
    };
    let fine = within(&[1.0, 2.0, 5.0]);
    match fine.len() {
        n if n <= LABELS => fine,
        _ => within(&[1.0]),
    }
}

/// A series: its name and its points.
type Curve = (String, Vec<(f64, f64)>);

/// The curves of a report, in the order in which their first rows stand.
fn curves(report: &Report, plot: &Plot) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in &report.rows {
        let (Some(x), Some(y)) = (plot.x.of(row), plot.y.of(row)) else {
            continue;
        };
        // Zero bytes have no place on a logarithmic axis.
        if x <= 0.0 || !y.is_finite() {
            continue;
        }
        // The only curve of a benchmark has the benchmark's name.
        let name = row
            .series
            .as_ref()
            .unwrap_or(&report.meta.benchmark)
            .clone();
        match curves.iter_mut().find(|(n, _)| *n == name) {
            Some((_, points)) => points.push((x, y)),
            None => curves.push((name, vec![(x, y)])),
        }
    }
    curves
}

/// The machine's limit for what is plotted.
fn limit(report: &Report, plot: &Plot) -> Option<Curve> {
    let by_size = &report.meta.limits.memcpy_gbs_by_size;
    let fits = plot.x == Axis::Size && plot.y == Axis::Bandwidth && !by_size.is_empty();
    fits.then(|| {
        let points = by_size.iter().map(|(&s, &g)| (s as f64, g)).collect();
        ("memcpy, same run".into(), points)
    })
}

/// Colour of each curve, and whether it is the first of its colour.
fn styles(curves: &[Curve]) -> Vec<(RGBColor, bool)> {
    let mut families: Vec<&str> = Vec::new();
    curves
        .iter()
        .map(|(name, _)| {
            let family = name.split(", ").next().unwrap_or_default();
            let known = families.iter().position(|f| *f == family);
            let at = known.unwrap_or_else(|| {
                families.push(family);
                families.len() - 1
            });
            (COLOURS[at % COLOURS.len()], known.is_none())
        })
        .collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the report.
///
/// # Errors
/// When no row can be drawn.
pub(crate) fn svg(report: &Report, plot: &Plot) -> Result<String> {
    let curves = curves(report, plot);
    let limit = limit(report, plot);
    let points = || curves.iter().chain(&limit).flat_map(|(_, p)| p.iter());
    let range = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold(None, |r: Option<(f64, f64)>, v| {
            Some(r.map_or((v, v), |r| (r.0.min(v), r.1.max(v))))
        })
    };
    let (Some(x), Some(y)) = (range(|p| p.0), range(|p| p.1)) else {
        bail!("no row has both {:?} and {:?}", plot.x, plot.y);
    };
    let xs = Scale::log(x.0, x.1, plot.x == Axis::Size);
    let ys = if y.0 > 0.0 && y.1 / y.0 > LINEAR {
        Scale::log(y.0 / 1.3, y.1 * 1.3, false)
    } else {
        Scale::linear(y.1)
    };
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, PICTURE).into_drawing_area();
        area.fill(&WHITE)?;
        let (head, rest) = area.split_vertically(HEAD);
        let (middle, foot) = rest.split_vertically(PICTURE.1 - HEAD - FOOT);
        let (left, right) = middle.split_horizontally(PICTURE.0 - LEGEND);
        texts(&head, &foot, report, plot)?;
        let colours = styles(&curves);
        legend(&right, &curves, &colours, limit.as_ref())?;
        let mut chart = ChartBuilder::on(&left)
            .margin_left(18)
            .margin_right(10)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(xs, ys)?;
        chart
            .configure_mesh()
            .bold_line_style(BLACK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .axis_style(BLACK.mix(0.5))
            .label_style(("sans-serif", 13))
            .x_desc(plot.x.label(&report.meta))
            .x_label_formatter(&|v| plot.x.tick(*v))
            .y_label_formatter(&|v| plot.y.tick(*v))
            .draw()?;
        if let Some((_, points)) = &limit {
            let dashes = DashedLineSeries::new(points.iter().copied(), 6, 5, GREY.stroke_width(1));
            chart.draw_series(dashes)?;
        }
        for ((_, points), (colour, is_first)) in curves.iter().zip(&colours) {
            let line = colour.stroke_width(1 + u32::from(*is_first));
            chart.draw_series(LineSeries::new(points.iter().copied(), line))?;
            let marks = points.iter().flat_map(|p| marks(*p, *colour, *is_first));
            chart.draw_series(marks)?;
        }
        area.present()?;
    }
    Ok(out)
}

/// A point of a curve: filled for the first curve of a colour, else hollow.
fn marks<C>(at: C, colour: RGBColor, is_first: bool) -> [Circle<C, i32>; 2]
where
    C: Copy,
{
    let inside = if is_first { colour } else { WHITE };
    [
        Circle::new(at, 4, colour.filled()),
        Circle::new(at, 2, inside.filled()),
    ]
}

/// Title and what is good above, machine and version below.
fn texts(head: &Area<'_>, foot: &Area<'_>, report: &Report, plot: &Plot) -> Result<()> {
    let meta = &report.meta;
    let style = |size: i32, colour: &RGBColor| ("sans-serif", size).into_font().color(colour);
    head.draw_text(&plot.title, &style(20, &BLACK), (18, 12))?;
    let what = format!("{}{}", plot.y.label(meta), plot.y.better());
    head.draw_text(&what, &style(14, &GREY), (18, 38))?;
    let ranks = meta.ranks.map_or(String::new(), |n| format!(", {n} ranks"));
    let lines = [
        format!("{}, {} core(s)", meta.machine, meta.cores),
        format!(
            "NIC {}, GPU {}, transport {}{ranks}; Ringbell {} ({})",
            meta.nic, meta.gpu, meta.transport, meta.version, meta.commit
        ),
    ];
    for (line, y) in lines.iter().zip([4, 22]) {
        foot.draw_text(line, &style(12, &GREY), (18, y))?;
    }
    Ok(())
}

/// A sample of each curve's line, and its name.
fn legend(
    area: &Area<'_>,
    curves: &[Curve],
    colours: &[(RGBColor, bool)],
    limit: Option<&Curve>,
) -> Result<()> {
    let style = ("sans-serif", 13).into_font().color(&BLACK);
    let mut y = 10;
    for ((name, _), (colour, is_first)) in curves.iter().zip(colours) {
        let line = colour.stroke_width(1 + u32::from(*is_first));
        area.draw(&PathElement::new([(8, y), (32, y)], line))?;
        for mark in marks((20, y), *colour, *is_first) {
            area.draw(&mark)?;
        }
        area.draw_text(name, &style, (40, y - 7))?;
        y += 22;
    }
    if let Some((name, _)) = limit {
        for x in [8, 19] {
            area.draw(&PathElement::new(
                [(x, y), (x + 6, y)],
                GREY.stroke_width(1),
            ))?;
        }
        area.draw_text(name, &style, (40, y - 7))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            meta: Meta::new("test"),
            rows,
        }
    }

    fn plot(y: Axis) -> Plot {
        Plot {
            title: "a & b".into(),
            x: Axis::Size,
            y,
        }
    }

    #[test]
    fn draws_each_point_and_the_limit() {
        let mut r = report(&[0, 1024, 2048, 4096]);
        let alone = svg(&r, &plot(Axis::Bandwidth)).expect("drawn");
        assert!(alone.starts_with("<svg") && alone.trim_end().ends_with("</svg>"));
        let points = 3; // Size 0 has no place.
                        // And one in the legend.
        assert_eq!(alone.matches("<circle").count(), 2 * (points + 1));
        assert!(alone.contains("a &amp; b") && !alone.contains("memcpy"));
        r.meta.limits.memcpy_gbs_by_size = [(1024, 9.0), (4096, 8.0)].into();
        let both = svg(&r, &plot(Axis::Bandwidth)).expect("drawn");
        assert!(both.contains("memcpy"));
        // Each line has its name.
        assert!(both.contains(">\ntest\n<"), "{both}");
    }

    #[test]
    fn one_size_is_drawn_and_none_is_an_error() {
        assert!(svg(&report(&[8]), &plot(Axis::P50)).is_ok());
        assert!(svg(&report(&[]), &plot(Axis::P50)).is_err());
        assert!(svg(&report(&[0]), &plot(Axis::Time)).is_err());
    }

    #[test]
    fn labels_stand_at_round_values_inside_the_range() {
        assert_eq!(powers_of_two(1024.0, 65536.0).len(), 7);
        // Nine steps: labels at every second one, and the axis goes on to the next label.
        let odd = Scale::log(f64::from(1 << 14), f64::from(1 << 23), true);
        assert_eq!((odd.ticks.len(), odd.high), (6, f64::from(1 << 24)));
        let between = Scale::log(1000.0, 5000.0, true);
        assert_eq!((between.low, between.high), (512.0, 8192.0));
        let one = Scale::log(8.0, 8.0, true);
        assert_eq!(one.ticks, [4.0, 8.0, 16.0]);
        let wide = powers_of_two(1024.0, f64::from(1 << 26));
        assert_eq!(
            (wide.len(), wide[0], wide[8]),
            (9, 1024.0, f64::from(1 << 26))
        );
        assert_eq!(decades(0.9, 60.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(decades(0.5, 5e4), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert_eq!(Scale::linear(64.0).ticks, [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(Axis::P50.tick(0.24), "240 ns");
        assert_eq!(Axis::P50.tick(1500.0), "1.5 ms");
    }

    #[test]
    fn curves_of_one_library_share_a_colour() {
        let named = |n: &str| (n.to_string(), Vec::new());
        let s = styles(&[named("a, in place"), named("b"), named("a, out of place")]);
        assert_eq!(s[0].0, s[2].0);
        assert_ne!(s[0].0, s[1].0);
        assert_eq!(
            s.iter().map(|s| s.1).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
}
