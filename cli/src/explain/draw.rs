//! Drawing of the state table: a cell for each NIC and step, an arrow for each message.
//!
//! Columns that do not fit beside each other go on below, in another band. `routes` says where the
//! arrows run.

mod routes;

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use ringbell::parts::onc_engines::program::{pretty, Arrow, Cell, Table};

use self::routes::{Route, Routes};
use crate::report::COLOURS;

/// Width from which on columns go to the next band.
const WIDEST: i32 = 1400;
/// Characters of a line of a cell, unless one term is longer.
const CHARACTERS: usize = 26;
/// Width of a character of the cells' text.
const CHARACTER: i32 = 7;
/// Height of a line, and of a cell beyond its lines.
const LINE: i32 = 17;
const PADDING: i32 = 14;
/// Distance of two arrows that run beside each other.
const LANE: i32 = 7;
/// Free space beside the arrows of a column or a row.
const FREE: i32 = 9;
/// Height of the title, of the heads of the columns of a band, and of the explanation.
const TITLE: i32 = 40;
const HEAD: i32 = 24;
const FOOT: i32 = 28;
/// Width of the names of the rows.
const LEFT: i32 = 62;
const MARGIN: i32 = 8;
const EXPLANATION: &str = "Time flows to the right. A cell: input / output of a NIC in a step; G GPU memory, E network, M NIC memory, S stream; subscript: chunk, superscript: contributions. An arrow: a message";

/// A point of the picture.
type Point = (i32, i32);

/// Draws a table.
pub(super) fn svg(table: &Table, title: &str) -> Result<String> {
    let layout = Layout::new(table);
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, layout.size()).into_drawing_area();
        area.fill(&WHITE)?;
        let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let middle = style(13).pos(Pos::new(HPos::Center, VPos::Center));
        let at_left = style(13).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(title, &style(18), (MARGIN, MARGIN))?;
        let below = layout.size().1 as i32 - FOOT;
        area.draw_text(EXPLANATION, &style(12), (MARGIN, below))?;
        for band in &layout.bands {
            for t in band.columns.clone() {
                let x = layout.left[t] + layout.widths[t] / 2;
                let head = pretty(&format!("t_{{{t}}}"));
                area.draw_text(&head, &middle, (x, band.top + HEAD / 2))?;
            }
            for (rank, texts) in layout.texts.iter().enumerate() {
                let (top, height) = (band.tops[rank], band.heights[rank]);
                let name = format!("NIC {rank}");
                area.draw_text(&name, &at_left, (MARGIN, top + height / 2))?;
                for t in band.columns.clone() {
                    let lines = &texts[t];
                    let corner = (layout.left[t], top);
                    let end = (layout.left[t] + layout.widths[t], top + height);
                    let fill = match lines[0] == "-/-" {
                        true => RGBColor(245, 245, 245),
                        false => RGBColor(226, 238, 250),
                    };
                    area.draw(&Rectangle::new([corner, end], fill.filled()))?;
                    area.draw(&Rectangle::new([corner, end], BLACK.mix(0.4)))?;
                    let x = layout.left[t] + layout.widths[t] / 2;
                    let first = top + height / 2 - LINE * (lines.len() as i32 - 1) / 2;
                    for (i, line) in lines.iter().enumerate() {
                        area.draw_text(line, &middle, (x, first + LINE * i as i32))?;
                    }
                }
            }
        }
        for (arrow, path) in table.arrows.iter().zip(layout.paths(&table.arrows)) {
            let colour = COLOURS[arrow.from as usize % COLOURS.len()];
            area.draw(&Circle::new(path[0], 2, colour.filled()))?;
            if let Some(&(x, y)) = path.last() {
                let head = vec![(x, y), (x - 7, y - 3), (x - 7, y + 3)];
                area.draw(&Polygon::new(head, colour))?;
            }
            area.draw(&PathElement::new(path, colour.stroke_width(1)))?;
        }
        area.present()?;
    }
    Ok(out)
}

/// Columns that stand beside each other, with the rows of all NICs.
struct Band {
    columns: Range<usize>,
    top: i32,
    /// By rank: top and height of its cells.
    tops: Vec<i32>,
    heights: Vec<i32>,
}

/// Places of cells and arrows.
struct Layout {
    /// By rank and column: the lines of a cell.
    texts: Vec<Vec<Vec<String>>>,
    routes: Routes,
    /// By column: left end and width of its cells.
    left: Vec<i32>,
    widths: Vec<i32>,
    bands: Vec<Band>,
}

impl Layout {
    fn new(table: &Table) -> Layout {
        let rows = table.rows.iter();
        let texts: Vec<Vec<Vec<String>>> =
            rows.map(|row| row.iter().map(lines).collect()).collect();
        let routes = Routes::new(&table.arrows);
        let mut widths = Vec::new();
        for t in 0..table.columns() {
            let lines = texts.iter().flat_map(|row| &row[t]);
            let longest = lines.map(|line| line.chars().count()).max();
            widths.push(longest.unwrap_or(0) as i32 * CHARACTER + 2 * MARGIN);
        }
        let mut layout = Layout {
            texts,
            routes,
            left: Vec::new(),
            widths,
            bands: Vec::new(),
        };
        let mut top = TITLE;
        for columns in layout.bands_of(&table.arrows) {
            let band = layout.band(columns, top);
            top = band
                .tops
                .iter()
                .zip(&band.heights)
                .map(|(t, h)| t + h)
                .max()
                .unwrap_or(top);
            top += 2 * FREE;
            layout.bands.push(band);
        }
        layout
    }

    /// Width of the arrows on the left of a column.
    fn gutter(&self, column: usize) -> i32 {
        self.routes.lanes(column) as i32 * LANE + 2 * FREE
    }

    /// The columns of each band, and the places of all. An arrow from one column to another keeps
    /// both in one band.
    fn bands_of(&mut self, arrows: &[Arrow]) -> Vec<Range<usize>> {
        let mut bands = Vec::new();
        let (mut first, mut x) = (0, LEFT);
        for t in 0..self.widths.len() {
            let column = self.gutter(t) + self.widths[t];
            let crosses = |a: &Arrow| a.out.min(a.into) < t as u32 && a.out.max(a.into) >= t as u32;
            if x + column > WIDEST && t > first && !arrows.iter().any(crosses) {
                bands.push(first..t);
                (first, x) = (t, LEFT);
            }
            self.left.push(x + self.gutter(t));
            x += column;
        }
        bands.push(first..self.widths.len());
        bands
    }

    fn band(&self, columns: Range<usize>, top: i32) -> Band {
        let (mut tops, mut heights) = (Vec::new(), Vec::new());
        let mut y = top + HEAD;
        for (rank, texts) in self.texts.iter().enumerate() {
            y += self.routes.tracks(rank) as i32 * LANE + FREE;
            let lines = texts[columns.clone()].iter().map(Vec::len).max();
            let ends = columns.clone().map(|t| self.routes.ends(rank, t)).max();
            let height = (PADDING + LINE * lines.unwrap_or(1) as i32)
                .max((ends.unwrap_or(0) as i32 + 1) * LANE);
            tops.push(y);
            heights.push(height);
            y += height;
        }
        Band {
            columns,
            top,
            tops,
            heights,
        }
    }

    /// Width and height.
    fn size(&self) -> (u32, u32) {
        let right = self.left.iter().zip(&self.widths).map(|(l, w)| l + w).max();
        let ends = self
            .bands
            .iter()
            .flat_map(|b| b.tops.iter().zip(&b.heights));
        let below = ends.map(|(t, h)| t + h).max().unwrap_or(TITLE);
        let width = right.unwrap_or(LEFT).max(EXPLANATION.len() as i32 * 6);
        ((width + MARGIN) as u32, (below + MARGIN + FOOT) as u32)
    }

    /// The path of each arrow, from the left end of one cell to that of another.
    fn paths(&self, arrows: &[Arrow]) -> Vec<Vec<Point>> {
        let place = |rank: u32, column: u32, port: usize| {
            let (rank, t) = (rank as usize, column as usize);
            let band = self.bands.iter().find(|b| b.columns.contains(&t));
            band.map_or(0, |band| {
                let ends = self.routes.ends(rank, t) as i32 + 1;
                band.tops[rank] + band.heights[rank] * (port as i32 + 1) / ends
            })
        };
        let lane =
            |column: u32, lane: usize| self.left[column as usize] - FREE - LANE * lane as i32;
        let path = |(a, r): (&Arrow, &Route)| {
            let y0 = place(a.from, a.out, r.out_port);
            let y1 = place(a.to, a.into, r.into_port);
            let (start, end) = (self.left[a.out as usize], self.left[a.into as usize]);
            let mut path = vec![(start, y0), (lane(a.out, r.out_lane), y0)];
            if let Some(track) = r.track {
                let band = self
                    .bands
                    .iter()
                    .find(|b| b.columns.contains(&(a.into as usize)));
                let top = band.map_or(0, |b| b.tops[a.to as usize]);
                let y = top - FREE / 2 - LANE * track as i32;
                path.extend([(lane(a.out, r.out_lane), y), (lane(a.into, r.into_lane), y)]);
            }
            path.extend([(lane(a.into, r.into_lane), y1), (end, y1)]);
            path
        };
        arrows.iter().zip(&self.routes.all).map(path).collect()
    }
}

/// A cell's text, broken at spaces; within a sum only where it is longer than a line.
fn lines(cell: &Cell) -> Vec<String> {
    let text = pretty(&cell.to_string());
    let length = |s: &str| s.chars().count();
    let mut parts: Vec<String> = Vec::new();
    let mut depth = 0;
    for word in text.split(' ') {
        match parts.last_mut() {
            Some(part) if depth > 0 && length(part) + 1 + length(word) <= CHARACTERS => {
                part.push(' ');
                part.push_str(word);
            }
            _ => parts.push(word.into()),
        }
        depth += word.matches('(').count();
        depth -= word.matches(')').count().min(depth);
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(&part) <= CHARACTERS => {
                line.push(' ');
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use ringbell::abi::{Algorithm, CollectiveKind};
    use ringbell::parts::onc_engines::program::{algorithms, generate_all, Limits};

    use super::*;

    fn table(kind: CollectiveKind, algo: Algorithm, ranks: u32) -> Table {
        let programs = generate_all(kind, algo, ranks, 0).expect("it exists");
        Table::new(&programs, &Limits::default()).expect("it is right")
    }

    /// Whether two straight lines, each upright or level, have more than a point in common.
    fn overlap((a, b): (Point, Point), (c, d): (Point, Point)) -> bool {
        let common =
            |a: i32, b: i32, c: i32, d: i32| a.min(b).max(c.min(d)) < a.max(b).min(c.max(d));
        let upright = a.0 == b.0 && c.0 == d.0 && a.0 == c.0;
        let level = a.1 == b.1 && c.1 == d.1 && a.1 == c.1;
        (upright && common(a.1, b.1, c.1, d.1)) || (level && common(a.0, b.0, c.0, d.0))
    }

    #[test]
    fn no_arrow_runs_on_another_and_no_text_is_cut() {
        for kind in CollectiveKind::ALL {
            for algo in algorithms(*kind) {
                for ranks in [2, 3, 5, 8] {
                    let table = table(*kind, *algo, ranks);
                    let layout = Layout::new(&table);
                    let paths = layout.paths(&table.arrows);
                    let parts: Vec<_> = paths.iter().flat_map(|p| p.windows(2)).collect();
                    for (i, p) in parts.iter().enumerate() {
                        for q in &parts[..i] {
                            let cross = overlap((p[0], p[1]), (q[0], q[1]));
                            assert!(!cross, "{kind:?} {algo:?} {ranks}: {p:?} {q:?}");
                        }
                    }
                    let shown: Vec<String> =
                        layout.texts.iter().flatten().map(|l| l.join(" ")).collect();
                    let whole = table.rows.iter().flatten().map(|c| pretty(&c.to_string()));
                    assert_eq!(shown, whole.collect::<Vec<_>>());
                    let (width, height) = layout.size();
                    // Columns that an arrow joins stay beside each other.
                    let is_long = |a: &Arrow| a.out.abs_diff(a.into) > 1;
                    let limit = WIDEST as u32 + 400;
                    let is_joined = table.arrows.iter().any(is_long);
                    assert!(
                        is_joined || width <= limit,
                        "{kind:?} {algo:?} {ranks}: {width}"
                    );
                    let inside =
                        |&(x, y): &Point| x > 0 && y > 0 && x < width as i32 && y < height as i32;
                    assert!(
                        paths.iter().flatten().all(inside),
                        "{kind:?} {algo:?} {ranks}"
                    );
                }
            }
        }
    }
}
