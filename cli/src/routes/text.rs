//! The routes as text.

use std::fmt::Write as _;

use ringbell_routes::proof::{Proof, BUBBLE_FORWARDING, BUBBLE_INJECTION};
use ringbell_routes::route::Algorithm;
use ringbell_routes::tables::{Channel, Class};

use super::input::Accepted;

/// What is printed; `all`: with the whole proof.
pub(super) fn text(accepted: &Accepted, available: usize, all: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{}\n", head(accepted));
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<9} {text}");
    };
    line("paths", paths(accepted.algorithm).into());
    line("hops", hops(accepted));
    line("channels", channels(accepted, available));
    line("load", load(accepted));
    if let Some((kept, pairs)) = accepted.kept {
        let text = format!("{kept} of {pairs} pairs have the same path as with all wires");
        line("without", text);
    }
    line("proof", proof(accepted));
    if let Some(tree) = &accepted.tree {
        line("tree", tree.summary(&accepted.topology));
        line("trees", tree.proof());
        line("sums", tree.sums());
    }
    line(
        "tables",
        format!("digest {:016x}", accepted.tables.digest()),
    );
    if all {
        let checked = &accepted.checked;
        line(
            "checked",
            format!(
                "{} pairs walked, {} hops at most; {} dependencies among {} channels",
                checked.pairs, checked.longest, checked.dependencies, checked.channels
            ),
        );
    }
    let _ = writeln!(out);
    match &accepted.tree {
        Some(tree) => tree.drawn(&accepted.topology, &mut out),
        None => links(accepted, &mut out),
    }
    if all {
        let _ = writeln!(out);
        certificate(accepted, &mut out);
    }
    out
}

/// `torus:2x4: 8 nodes, 16 wires, 4 at a node at most`
fn head(accepted: &Accepted) -> String {
    let t = &accepted.topology;
    let (nodes, ends) = (t.nodes().len(), t.ends().count());
    let switches = match nodes - ends {
        0 => String::new(),
        1 => " and 1 switch".into(),
        n => format!(" and {n} switches"),
    };
    format!(
        "{}: {ends} NICs{switches}, {} wires, {} at a node at most",
        t.name(),
        t.wires().len(),
        t.degree()
    )
}

fn paths(algorithm: Option<Algorithm>) -> &'static str {
    match algorithm {
        Some(Algorithm::Layered) => "layered: shortest and balanced, in layers without a circle (DFSSSP)",
        Some(Algorithm::Nue) => "nue: kept from closing circles in the layers that there are (Nue); some may be longer than the shortest",
        Some(Algorithm::Bubble) => "bubble: shortest, one dimension after the other, with bubble flow control",
        Some(Algorithm::Shortest) => "shortest: shortest and balanced, in one layer",
        None => "those of the file",
    }
}

fn hops(accepted: &Accepted) -> String {
    let load = &accepted.load;
    let each = load.hops.iter().enumerate().filter(|(_, n)| **n > 0);
    let each: Vec<_> = each.map(|(hops, n)| format!("{hops}: {n}")).collect();
    let slowest = load.slowest_ns;
    let delay = slowest.map_or(String::new(), |ns| format!("; wires delay {ns} ns at most"));
    format!(
        "{:.2} on average, {} at most (pairs by hops: {}){delay}",
        load.mean_hops(),
        load.longest(),
        each.join(", ")
    )
}

fn channels(accepted: &Accepted, available: usize) -> String {
    let list = |class| {
        let numbers = accepted.tables.channels(class).iter();
        let numbers: Vec<_> = numbers.map(u8::to_string).collect();
        numbers.join(", ")
    };
    format!(
        "{} of {available} a wire: requests {}; acknowledgements {}",
        accepted.tables.channel_count(),
        list(Class::Request),
        list(Class::Acknowledgement)
    )
}

fn load(accepted: &Accepted) -> String {
    let load = &accepted.load;
    let sum: usize = load.pairs.iter().map(|p| *p as usize).sum();
    let mean = sum as f64 / load.pairs.len().max(1) as f64;
    let busiest = load.busiest().first().copied();
    let busiest = busiest.map_or(String::new(), |l| {
        format!(" ({})", accepted.topology.link_text(l))
    });
    format!(
        "{} pairs on the busiest link{busiest}, {mean:.1} on average",
        load.greatest()
    )
}

fn proof(accepted: &Accepted) -> String {
    match &accepted.proof {
        Proof::Acyclic { order } => format!(
            "no circle: each of {} channels waits only for later ones of an order",
            order.len()
        ),
        Proof::Bubble { rings } => format!(
            "{} rings, of which each waits only for later ones; {BUBBLE_INJECTION} free slots to enter a ring, {BUBBLE_FORWARDING} to move on in it",
            rings.len()
        ),
    }
}

/// A line for each wire.
fn links(accepted: &Accepted, out: &mut String) {
    let t = &accepted.topology;
    let ends = t.wires().iter().map(|w| w.ends.map(|e| t.port_text(e)));
    let ends: Vec<[String; 2]> = ends.collect();
    let width = |i: usize| ends.iter().map(|e| e[i].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let rated = t.wires().iter().any(|w| w.gbps.is_some());
    let share = match rated {
        true => "  Gb/s  a pair's share",
        false => "",
    };
    let wire = format!("{:<first$} -- {:<second$}", "wire", "");
    let _ = writeln!(out, "  {wire}  pairs ->  pairs <-{share}");
    for (w, ends) in ends.iter().enumerate() {
        let pairs = [0, 1].map(|d| accepted.load.pairs[2 * w + d]);
        let share = match t.wires()[w].gbps {
            Some(gbps) => {
                let most = f64::from(pairs[0].max(pairs[1]).max(1));
                format!("  {gbps:>4}  {:>14.2}", gbps / most)
            }
            None => String::new(),
        };
        let wire = format!("{:<first$} -- {:<second$}", ends[0], ends[1]);
        let _ = writeln!(out, "  {wire}  {:>8}  {:>8}{share}", pairs[0], pairs[1]);
    }
}

/// The proof in full, so that it can be followed by hand.
fn certificate(accepted: &Accepted, out: &mut String) {
    let t = &accepted.topology;
    let texts = |channels: &[Channel]| {
        let texts: Vec<_> = channels.iter().map(|c| c.text(t)).collect();
        texts.join(" ")
    };
    let _ = match &accepted.proof {
        Proof::Acyclic { order } => writeln!(
            out,
            "  Order of the channels (NODE:PORT#CHANNEL of the link that leaves there):\n  {}",
            texts(order)
        ),
        Proof::Bubble { rings } => {
            let rings: Vec<_> = rings.iter().map(|r| format!("  {}", texts(r))).collect();
            writeln!(
                out,
                "  Rings in their order (NODE:PORT#CHANNEL of the link that leaves there):\n{}",
                rings.join("\n")
            )
        }
    };
}
