//! The arguments.

use std::path::PathBuf;

use ringbell_routes::route::{Algorithm, DEFAULT_CHANNELS, MAX_CHANNELS};

/// Arguments of `ringbell routes`.
#[derive(clap::Args)]
#[command(
    after_help = "A network by name: bus:N, ring:N, mesh:AxB, torus:AxB (and more dimensions), hypercube:DIMENSIONS, fat-tree:KxLEVELS, \
    dragonfly:AxH, rail:HxGxS and rack:HxGxS (hosts with G NICs each; @GBPS joins those of a host), random:NxDEGREE@SEED. docs/routes.md explains them, and the files."
)]
pub(crate) struct Args {
    /// A network by name, as `torus:2x4`, or a file: SMI's list of wires, or one with names, rates
    /// and delays
    pub(super) topology: String,
    /// Print what the checker went through, and the proof in full
    #[arg(long)]
    pub(super) check: bool,
    /// Draw the network, with the load of each wire, as an SVG
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Write tables, proof and loads as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
    /// Leave out the wire at this port, as if it were cut; may be given several times
    #[arg(long, value_name = "NODE:PORT")]
    pub(super) without: Vec<String>,
    /// Print the tree by which one packet of this node reaches all others, each wire once, and
    /// prove that the trees of all nodes cannot stop for ever
    #[arg(long, value_name = "NODE")]
    pub(super) tree: Option<String>,
    /// The nodes that the tree reaches, in place of all
    #[arg(
        long,
        value_name = "NODE,...",
        value_delimiter = ',',
        requires = "tree"
    )]
    pub(super) members: Vec<String>,
    /// Virtual channels that each wire has, for both classes of traffic
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHANNELS, value_parser = channels)]
    pub(super) channels: usize,
    /// How paths and channels are chosen: layered, nue, bubble or shortest [default: the first of
    /// layered, bubble and nue that fits]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    pub(super) algorithm: Option<Algorithm>,
    /// Check the tables and the proof of this file, which --json has written, instead of making
    /// some
    #[arg(long, value_name = "FILE", conflicts_with = "algorithm")]
    pub(super) table: Option<PathBuf>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let known = Algorithm::ALL.into_iter().find(|a| a.name() == name);
    known.ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::name);
        format!("the algorithms are {}", names.join(", "))
    })
}

fn channels(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|n| (1..=MAX_CHANNELS).contains(n));
    number.ok_or_else(|| format!("a number from 1 to {MAX_CHANNELS}"))
}
