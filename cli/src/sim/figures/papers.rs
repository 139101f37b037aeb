//! Figures of papers whose text states a number: what they measure, and what the text says.
//!
//! A point has a number of the paper where its text, a table or a label states one. Nothing is
//! read off a picture.

use ringbell::comm::CollectiveKind;
use ringbell::Algorithm;

/// A figure of a paper.
#[derive(Debug)]
pub(super) struct Figure {
    /// As the command line names it.
    pub(super) name: &'static str,
    /// Its paper.
    pub(super) paper: &'static str,
    /// Its number, and what it shows.
    pub(super) title: &'static str,
    /// The built-in profile of the paper's cluster.
    pub(super) profile: &'static str,
    /// What runs.
    pub(super) work: Work,
    /// From left to right.
    pub(super) points: &'static [Point],
    /// The paper's sentence with its section, and what is taken from it.
    pub(super) stated: &'static str,
    /// Why ours differs, where it does by more than [`WIDE`](super::measure::WIDE).
    pub(super) differs: &'static str,
}

/// What is measured at each point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Work {
    /// Bus bandwidth of a collective.
    Collective(CollectiveKind, Algorithm),
}

/// A point of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) ranks: usize,
    pub(super) bytes: u64,
    /// The paper's number there, in the unit of the figure's work.
    pub(super) paper: Option<f64>,
}

/// A figure that is not repeated.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
}

const fn ours(ranks: usize, bytes: u64) -> Point {
    Point {
        ranks,
        bytes,
        paper: None,
    }
}

const fn both(ranks: usize, bytes: u64, paper: f64) -> Point {
    Point {
        ranks,
        bytes,
        paper: Some(paper),
    }
}

const MIB: u64 = 1 << 20;

/// All that are repeated.
pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "fpganic-8",
    paper: "FpgaNIC (ATC 2022)",
    title: "Figure 8: all-reduce of 64 MB by the number of nodes",
    profile: "fpganic",
    work: Work::Collective(CollectiveKind::AllReduce, Algorithm::Ring),
    points: &[
        ours(2, 64 * MIB),
        ours(3, 64 * MIB),
        ours(4, 64 * MIB),
        ours(5, 64 * MIB),
        ours(6, 64 * MIB),
        ours(7, 64 * MIB),
        both(8, 64 * MIB, 12.5),
    ],
    stated: "§3.4: FpgaNIC and NCCL \"reach the theoretical bus bandwidth with an increasing number of nodes\"; taken as 100 Gb/s at 8 nodes",
    differs: "",
}];

/// Those that are not, and why.
pub(super) const LEFT: &[Left] = &[Left {
    name: "fpganic-3",
    why: "reads of registers over PCIe, which is no message of a network; the text says \"under 1 microsecond\" (§3.2.1)",
}];
