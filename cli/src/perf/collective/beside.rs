//! Arguments of a peer that runs beside ours.

use std::path::PathBuf;

/// What runs beside ours.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BesideArgs {
    /// Run a peer too, ranks as threads on both sides, and print ratios; `nccl-if-found` says in
    /// the report why there is none
    #[arg(long, value_name = "nccl|nccl-if-found")]
    beside: Option<Which>,
    #[command(flatten)]
    pub(crate) nccl: NcclArgs,
}

/// The peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// NCCL, or an error
    Nccl,
    /// NCCL where it is
    NcclIfFound,
}

impl BesideArgs {
    pub(crate) fn peer(&self) -> Option<Which> {
        self.beside
    }
}

/// How NCCL is found and run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NcclArgs {
    /// NCCL's libnccl.so.2, or its folder [default: the dynamic loader's, then that of python3's
    /// packages]
    #[arg(long, env = "RINGBELL_NCCL", value_name = "PATH")]
    pub(crate) nccl: Option<PathBuf>,
    /// Longest that one sweep of one side may take, in seconds; it is ended then, and what it has
    /// done is kept
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) limit: u64,
}
