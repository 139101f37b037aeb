//! Binding of ranks to cores, by the affinity that a process inherits from the thread that starts
//! it.

use anyhow::{Context as _, Result};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use crate::{Exit, Problem};

/// What a rank is bound to, in the words of mpirun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BindTo {
    /// The system places its threads
    #[default]
    None,
    /// A core of its own, for all its threads
    Core,
}

/// The cores of the ranks of a job.
#[derive(Debug, Default)]
pub(crate) struct Binding {
    /// Of rank 0, 1, ...; none when ranks are not bound.
    cores: Vec<CpuSet>,
}

impl Binding {
    /// Takes a core for each rank, of those on which this process may run.
    pub(crate) fn new(to: BindTo, ranks: u32) -> Result<Binding> {
        if to == BindTo::None {
            return Ok(Binding::default());
        }
        let all = sched_getaffinity(None).context("cannot read the cores of this process")?;
        let core = |n| {
            let mut one = CpuSet::new();
            one.set(n);
            one
        };
        let allowed = (0..CpuSet::MAX_CPU).filter(|n| all.is_set(*n));
        let cores: Vec<CpuSet> = allowed.take(ranks as usize).map(core).collect();
        let found = cores.len();
        if found < ranks as usize {
            return Err(Problem::new(
                Exit::Usage,
                format!("--bind-to core needs a core for each of {ranks} ranks, and this process may run on {found}"),
                "start fewer ranks, or leave --bind-to away",
            )
            .into());
        }
        Ok(Binding { cores })
    }

    /// Binds the calling thread, and those that it starts from now on, to the core of a rank.
    pub(crate) fn bind(&self, rank: u32) -> Result<()> {
        let Some(core) = self.cores.get(rank as usize) else {
            return Ok(());
        };
        sched_setaffinity(None, core).with_context(|| format!("cannot bind rank {rank} to a core"))
    }

    /// Calls `start`, which starts a process, bound to the core of its rank.
    pub(crate) fn start<T>(&self, rank: u32, start: impl FnOnce() -> T) -> Result<T> {
        if self.cores.is_empty() {
            return Ok(start());
        }
        let before = sched_getaffinity(None).context("cannot read the cores of this process")?;
        self.bind(rank)?;
        let started = start();
        sched_setaffinity(None, &before).context("cannot go back to all cores")?;
        Ok(started)
    }
}
