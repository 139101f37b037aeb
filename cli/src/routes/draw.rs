//! Drawing of a network: nodes in the form of the network, wires by what they carry.

use std::f64::consts::TAU;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use ringbell_routes::topology::{NodeId, Role, Shape, Topology};

use super::input::Accepted;

/// Distance of neighbours in a grid.
const STEP: f64 = 110.0;
const MARGIN: f64 = 60.0;
const TITLE: f64 = 20.0;
/// Points of a curved wire.
const POINTS: usize = 16;
/// Wires up to which each has its numbers beside it.
const LABELLED: usize = 80;

type Point = (f64, f64);

/// Draws the network with its loads.
pub(super) fn svg(accepted: &Accepted) -> Result<String> {
    let t = &accepted.topology;
    let places = fitted(places(t));
    let right = places.iter().fold(0.0, |x: f64, p| x.max(p.0));
    let below = places.iter().fold(0.0, |y: f64, p| y.max(p.1));
    let size = ((right + MARGIN).max(520.0) as u32, (below + MARGIN) as u32);
    let most = f64::from(accepted.load.greatest().max(1));
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
        area.fill(&WHITE)?;
        let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let centred = |size: i32| style(size).pos(Pos::new(HPos::Center, VPos::Center));
        let title = format!(
            "{}: {:.2} hops on average, {} pairs on the busiest link, {} channels",
            t.name(),
            accepted.load.mean_hops(),
            accepted.load.greatest(),
            accepted.tables.channel_count()
        );
        area.draw_text(&title, &style(16), (8, 8))?;
        for (w, bend) in bends(t, &places).into_iter().enumerate() {
            let [a, b] = t.wires()[w].ends.map(|e| places[e.node.index()]);
            let pairs = [0, 1].map(|d| accepted.load.pairs[2 * w + d]);
            let share = f64::from(pairs[0].max(pairs[1])) / most;
            let line = curve(a, b, bend);
            // Not in the middle, where wires cross.
            let beside = line[POINTS / 3];
            let of_tree = accepted.tree.as_ref().map(|tree| tree.has(w));
            let colour = match of_tree {
                None => RGBColor(
                    (90.0 + 123.0 * share) as u8,
                    (160.0 - 66.0 * share) as u8,
                    (200.0 * (1.0 - share)) as u8,
                ),
                Some(true) => RGBColor(30, 130, 70),
                Some(false) => RGBColor(205, 205, 205),
            };
            let width = match of_tree {
                None => 1 + (3.0 * share).round() as u32,
                Some(is_in) => 1 + 2 * u32::from(is_in),
            };
            area.draw(&PathElement::new(line, colour.stroke_width(width)))?;
            if t.wires().len() <= LABELLED {
                let text = format!("{}/{}", pairs[0], pairs[1]);
                area.draw_text(&text, &centred(11), beside)?;
            }
        }
        for (node, at) in t.nodes().iter().zip(&places) {
            let at = (at.0 as i32, at.1 as i32);
            let fill = match node.role {
                Role::End => RGBColor(226, 238, 250),
                Role::Switch => RGBColor(235, 235, 235),
            };
            let half = (9 + 4 * node.name.chars().count() as i32, 12);
            let corners = [
                (at.0 - half.0, at.1 - half.1),
                (at.0 + half.0, at.1 + half.1),
            ];
            area.draw(&Rectangle::new(corners, fill.filled()))?;
            area.draw(&Rectangle::new(corners, BLACK.mix(0.5)))?;
            area.draw_text(&node.name, &centred(13), at)?;
        }
        area.present()?;
    }
    Ok(out)
}

/// Where each node stands, at any scale above 0.
fn places(t: &Topology) -> Vec<Point> {
    let n = t.nodes().len();
    let circle = |i: usize| {
        let angle = TAU * i as f64 / n as f64;
        let radius = (STEP * n as f64 / TAU).max(STEP);
        (radius * angle.sin(), -radius * angle.cos())
    };
    match t.shape() {
        Shape::Grid { sizes, wrapped } if !(*wrapped && sizes.len() == 1) => {
            (0..n).map(|i| in_grid(i, sizes)).collect()
        }
        _ if t.ids().any(|id| t.nodes()[id.index()].role == Role::Switch) => in_rows(t),
        _ => (0..n).map(circle).collect(),
    }
}

/// The last dimension to the right, the one before it down, the others aside.
fn in_grid(i: usize, sizes: &[usize]) -> Point {
    let (mut rest, mut at) = (i, (0.0, 0.0));
    let mut span = 1.0;
    for (d, size) in sizes.iter().rev().enumerate() {
        let c = (rest % size) as f64;
        rest /= size;
        match d {
            0 => at.0 += STEP * c,
            1 => at.1 += STEP * c,
            // A further dimension repeats the picture, a little lower.
            _ => {
                at.0 += c * STEP * (span + 0.6);
                at.1 += c * STEP * 0.25;
            }
        }
        if d != 1 {
            span *= *size as f64 + 0.6;
        }
    }
    at
}

/// Ends below, and each switch as high as the hops to the nearest end.
fn in_rows(t: &Topology) -> Vec<Point> {
    let mut height: Vec<Option<usize>> = vec![None; t.nodes().len()];
    let mut open: Vec<NodeId> = t.ends().collect();
    for end in &open {
        height[end.index()] = Some(0);
    }
    let mut done = 0;
    while let Some(node) = open.get(done).copied() {
        done += 1;
        for link in t.leaving(node) {
            let to = t.to(link).node;
            if height[to.index()].is_none() {
                height[to.index()] = height[node.index()].map(|h| h + 1);
                open.push(to);
            }
        }
    }
    let height: Vec<usize> = height.into_iter().map(|h| h.unwrap_or(0)).collect();
    let of_row = |row: usize| height.iter().filter(move |h| **h == row).count();
    let rows = height.iter().max().map_or(1, |h| h + 1);
    let widest = (0..rows).map(of_row).max().unwrap_or(1) as f64;
    let mut placed = vec![0; rows];
    let place = |h: &usize| {
        placed[*h] += 1;
        let share = (placed[*h] as f64 - 0.5) / of_row(*h) as f64;
        (
            share * widest * STEP * 0.7,
            (rows - 1 - h) as f64 * STEP * 1.3,
        )
    };
    height.iter().map(place).collect()
}

/// Moved so that everything is on the picture.
fn fitted(places: Vec<Point>) -> Vec<Point> {
    let left = places.iter().fold(f64::MAX, |x, p| x.min(p.0));
    let top = places.iter().fold(f64::MAX, |y, p| y.min(p.1));
    let moved = places.into_iter();
    moved
        .map(|(x, y)| (x - left + MARGIN, y - top + MARGIN + TITLE))
        .collect()
}

/// How far each wire bends aside: parallel wires from each other, and long ones around nodes.
fn bends(t: &Topology, places: &[Point]) -> Vec<f64> {
    let ends = |w: usize| {
        let [a, b] = t.wires()[w].ends.map(|e| e.node.index());
        (a.min(b), a.max(b))
    };
    let bend = |w: usize| {
        let (a, b) = ends(w);
        let (dx, dy) = (places[b].0 - places[a].0, places[b].1 - places[a].1);
        let length = dx.hypot(dy);
        let before = (0..w).filter(|v| ends(*v) == (a, b)).count();
        let long = match t.shape() {
            Shape::Grid { .. } if length > 1.5 * STEP => 0.3 * STEP,
            _ => 0.0,
        };
        // In turn to both sides, each further out.
        let side = if before % 2 == 0 { 1.0 } else { -1.0 };
        long + side * 30.0 * before.div_ceil(2) as f64
    };
    (0..t.wires().len()).map(bend).collect()
}

/// A line from one point to another whose middle stands aside, as points.
fn curve(a: Point, b: Point, bend: f64) -> Vec<(i32, i32)> {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let length = dx.hypot(dy).max(1.0);
    // Aside is to the same side in whichever direction the wire is given.
    let sign = if (dx, dy) < (0.0, 0.0) { -1.0 } else { 1.0 };
    let aside = (-dy / length * bend * sign, dx / length * bend * sign);
    let at = |i: usize| {
        let s = i as f64 / (POINTS - 1) as f64;
        let out = 4.0 * s * (1.0 - s);
        let (x, y) = (a.0 + dx * s + aside.0 * out, a.1 + dy * s + aside.1 * out);
        (x.round() as i32, y.round() as i32)
    };
    (0..POINTS).map(at).collect()
}
