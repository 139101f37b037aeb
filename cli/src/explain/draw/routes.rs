//! Routes of arrows between cells: each has a lane of its own beside the cells, so that none runs
//! on another.
//!
//! An arrow leaves a cell on its left, runs up or down in a lane on the left of the column, and
//! enters a cell of another row from the left. One that goes to another column runs there in a
//! track above the row that it goes to.

use std::collections::BTreeMap;

use ringbell::parts::onc_engines::program::Arrow;

/// A cell, by rank and column.
type Place = (usize, usize);
/// A place in an order from top to bottom, or from left to right: its row or column, and where in
/// it.
type At = (usize, usize);
/// First and last place that a piece of an arrow takes, and the arrow's index.
type Span = (At, At, usize);

/// The way of an arrow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Route {
    /// Which end of its cell, from above, of all arrows' ends there.
    pub(super) out_port: usize,
    pub(super) into_port: usize,
    /// Lanes, counted from the cells to the left; the same lane when the columns are the same.
    pub(super) out_lane: usize,
    pub(super) into_lane: usize,
    /// Track above the row, counted upwards; none when the columns are the same.
    pub(super) track: Option<usize>,
}

/// The ways of all arrows.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// In the order of the arrows.
    pub(super) all: Vec<Route>,
    ends: BTreeMap<Place, usize>,
    lanes: BTreeMap<usize, usize>,
    tracks: BTreeMap<usize, usize>,
}

impl Routes {
    pub(super) fn new(arrows: &[Arrow]) -> Routes {
        let mut routes = Routes {
            all: vec![Route::default(); arrows.len()],
            ..Routes::default()
        };
        routes.set_ports(arrows);
        routes.set_tracks(arrows);
        routes.set_lanes(arrows);
        routes
    }

    /// Ends of arrows at a cell.
    pub(super) fn ends(&self, rank: usize, column: usize) -> usize {
        self.ends.get(&(rank, column)).copied().unwrap_or(0)
    }

    /// Lanes on the left of a column.
    pub(super) fn lanes(&self, column: usize) -> usize {
        self.lanes.get(&column).copied().unwrap_or(0)
    }

    /// Tracks above a row.
    pub(super) fn tracks(&self, rank: usize) -> usize {
        self.tracks.get(&rank).copied().unwrap_or(0)
    }

    /// Ends of a cell stand in the order of the rows that the arrows lead to.
    fn set_ports(&mut self, arrows: &[Arrow]) {
        let mut ends: BTreeMap<Place, Vec<(u32, bool, usize)>> = BTreeMap::new();
        for (i, a) in arrows.iter().enumerate() {
            let out = (a.from as usize, a.out as usize);
            let into = (a.to as usize, a.into as usize);
            ends.entry(out).or_default().push((a.to, false, i));
            ends.entry(into).or_default().push((a.from, true, i));
        }
        for (place, mut here) in ends {
            here.sort_unstable();
            for (port, (_, is_into, i)) in here.iter().enumerate() {
                match is_into {
                    true => self.all[*i].into_port = port,
                    false => self.all[*i].out_port = port,
                }
            }
            self.ends.insert(place, here.len());
        }
    }

    /// An arrow that goes to another column has a track above the row of its end.
    fn set_tracks(&mut self, arrows: &[Arrow]) {
        let mut spans: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (i, a) in arrows.iter().enumerate().filter(|(_, a)| a.out != a.into) {
            let (left, right) = (a.out.min(a.into) as usize, a.out.max(a.into) as usize);
            let row = spans.entry(a.to as usize).or_default();
            row.push(((left, 0), (right, 0), i));
        }
        for (row, spans) in spans {
            let (tracks, count) = apart(&spans);
            for (span, track) in spans.iter().zip(tracks) {
                self.all[span.2].track = Some(track);
            }
            self.tracks.insert(row, count);
        }
    }

    /// The upright pieces: one for an arrow within a column, two for one between columns.
    fn set_lanes(&mut self, arrows: &[Arrow]) {
        // The tracks of a row are above the ends of its cells, the highest first.
        let end = |row: u32, port: usize| (row as usize, arrows.len() + port);
        let mut spans: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (i, (a, r)) in arrows.iter().zip(&self.all).enumerate() {
            let (out, into) = (end(a.from, r.out_port), end(a.to, r.into_port));
            let mut add = |column: u32, a: At, b: At| {
                let column = spans.entry(column as usize).or_default();
                column.push((a.min(b), a.max(b), i));
            };
            match r.track {
                None => add(a.out, out, into),
                Some(track) => {
                    let above = (a.to as usize, arrows.len() - 1 - track);
                    add(a.out, out, above);
                    add(a.into, above, into);
                }
            }
        }
        for (column, spans) in spans {
            let (lanes, count) = apart(&spans);
            for (span, lane) in spans.iter().zip(lanes) {
                let (arrow, route) = (&arrows[span.2], &mut self.all[span.2]);
                if arrow.out as usize == column {
                    route.out_lane = lane;
                }
                if arrow.into as usize == column {
                    route.into_lane = lane;
                }
            }
            self.lanes.insert(column, count);
        }
    }
}

/// A line for each span, and the number of lines. Spans of one line have no place in common; short
/// ones get the first lines.
fn apart(spans: &[Span]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|i| {
        let (start, end, _) = spans[*i];
        (end.0 - start.0, start)
    });
    let mut lines: Vec<Vec<(At, At)>> = Vec::new();
    let mut chosen = vec![0; spans.len()];
    for i in order {
        let (start, end, _) = spans[i];
        let free = |line: &Vec<(At, At)>| line.iter().all(|(s, e)| end < *s || *e < start);
        let at = lines.iter().position(free).unwrap_or_else(|| {
            lines.push(Vec::new());
            lines.len() - 1
        });
        lines[at].push((start, end));
        chosen[i] = at;
    }
    (chosen, lines.len())
}
