//! Variables of other launchers, and the job id that their ranks compute from them.
//!
//! | launcher | rank, ranks, rank on the machine | where rank 0 serves | what distinguishes jobs |
//! |---|---|---|---|
//! | torchrun | RANK, WORLD_SIZE, LOCAL_RANK | MASTER_ADDR, a port beside MASTER_PORT | both, TORCHELASTIC_RUN_ID, _RESTART_COUNT |
//! | Open MPI | OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK | this machine | PMIX_NAMESPACE |
//! | MPICH (PMI) | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID | this machine | PMI_JOBID, or the process that started them |
//! | srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID | first of SLURM_STEP_NODELIST | SLURM_JOB_ID, SLURM_STEP_ID |
//!
//! Ranks on one machine meet on its loopback; RINGBELL_BOOTSTRAP gives another address.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use crate::id::{UniqueId, UniqueIdError};
use crate::variables;

/// Why the environment does not say which rank this is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// No launcher has started this process as a rank.
    #[error("this process is no rank of a job: none of RINGBELL_RANK, RANK (torchrun), SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK is set; start it with `ringbell run -R RANKS -- PROGRAM`")]
    None,
    /// A launcher was found, but one of its variables is missing.
    #[error("started by {found}, but {missing} is not set; {advice}")]
    Incomplete {
        /// The launcher.
        found: JobSource,
        /// What is missing.
        missing: &'static str,
        /// The remedy.
        advice: &'static str,
    },
    /// A variable's value is invalid.
    #[error("{name}={value}: {why}")]
    Invalid {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// RINGBELL_ID is invalid.
    #[error("RINGBELL_ID")]
    Id(#[from] UniqueIdError),
}

/// The launcher that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobSource {
    /// `ringbell run`, or a caller that set its variables.
    Ringbell,
    /// torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
    Torchrun,
    /// srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS.
    Slurm,
    /// Open MPI's mpirun: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE.
    OpenMpi,
    /// A PMI launcher, for example MPICH's mpiexec: PMI_RANK, PMI_SIZE.
    Pmi,
}

impl std::fmt::Display for JobSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JobSource::Ringbell => "ringbell run",
            JobSource::Torchrun => "torchrun",
            JobSource::Slurm => "Slurm",
            JobSource::OpenMpi => "Open MPI",
            JobSource::Pmi => "PMI",
        })
    }
}

/// Reads a variable; an empty one is none.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable that must be a number where it is set.
pub(super) fn number(env: Lookup<'_>, name: &'static str) -> Result<Option<u32>, JobError> {
    let Some(value) = env(name) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(JobError::Invalid {
            name,
            value,
            why: "it must be a number".into(),
        }),
    }
}

/// A launcher, and the names of its variables.
#[derive(Clone, Copy)]
pub(super) struct Launcher {
    pub(super) source: JobSource,
    pub(super) rank: &'static str,
    pub(super) size: &'static str,
    pub(super) local_rank: &'static str,
    /// Ranks on this machine, where the launcher gives it.
    local_size: Option<&'static str>,
    /// Variables with the same value on all ranks, and another one in other jobs.
    names: &'static [&'static str],
}

/// In the order of the search: one may run under another, and the inner one counts.
pub(super) const KNOWN: [Launcher; 5] = [
    Launcher {
        source: JobSource::Ringbell,
        rank: variables::RANK,
        size: variables::SIZE,
        local_rank: variables::LOCAL_RANK,
        local_size: None,
        names: &[variables::BOOTSTRAP],
    },
    Launcher {
        source: JobSource::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: Some("LOCAL_WORLD_SIZE"),
        // After a failure torchrun restarts all ranks: those that are left must not meet the new
        // ones.
        names: &[
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
        ],
    },
    Launcher {
        source: JobSource::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        names: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        source: JobSource::Pmi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: Some("MPI_LOCALNRANKS"),
        names: &["PMI_JOBID"],
    },
    Launcher {
        source: JobSource::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: None,
        names: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME"],
    },
];

impl Launcher {
    /// Whether the environment is this launcher's.
    pub(super) fn speaks(&self, env: Lookup<'_>) -> bool {
        let has = |name| env(name).is_some();
        match self.source {
            // RANK alone is too common a name to mean torchrun.
            JobSource::Torchrun => has(self.rank) && has(self.size),
            // Under Slurm: srun --mpi=pmi2 sets PMI_RANK too, and its own variables say more. But
            // Hydra starts its proxies by srun, and then Slurm's variables count proxies, not
            // ranks.
            JobSource::Pmi => {
                has(self.rank) && (self.local_size.is_some_and(has) || !has("SLURM_STEP_ID"))
            }
            _ => has(self.rank),
        }
    }

    /// Ranks of the job, and the variable that gives it.
    pub(super) fn ranks(&self, env: Lookup<'_>) -> Result<(u32, &'static str), JobError> {
        // Older versions of srun have only this one.
        let also = match self.source {
            JobSource::Slurm => "SLURM_NTASKS",
            _ => self.size,
        };
        for name in [self.size, also] {
            if let Some(n) = number(env, name)? {
                return Ok((n, name));
            }
        }
        Err(JobError::Incomplete {
            found: self.source,
            missing: self.size,
            advice: "set it to the number of ranks",
        })
    }

    /// Refuses an environment that looks like a rank's but is not.
    pub(super) fn complete(&self, env: Lookup<'_>) -> Result<(), JobError> {
        // A batch script itself has SLURM_PROCID=0 at every job size.
        if self.source == JobSource::Slurm && env("SLURM_STEP_ID").is_none() {
            return Err(JobError::Incomplete {
                found: self.source,
                missing: "SLURM_STEP_ID",
                advice: "a batch script is no rank: start the program in it with srun",
            });
        }
        Ok(())
    }

    /// The id that every rank of another launcher computes for itself.
    pub(super) fn id(&self, env: Lookup<'_>, size: u32) -> Result<UniqueId, JobError> {
        let mut known: Vec<String> = self.names.iter().filter_map(|n| env(n)).collect();
        if self.source == JobSource::Pmi && known.is_empty() {
            known.extend(starter(self.rank));
        }
        let hash = hash(&format!("{}/{}", self.source, known.join("/")));
        let secret = match env(variables::SECRET) {
            None => hash.to_le_bytes(),
            Some(value) => secret(&value)?,
        };
        let place = match env(variables::BOOTSTRAP) {
            Some(place) => place,
            None => self.place(env, size, 20_000 + (hash % 12_000) as u16)?,
        };
        let address = resolve(&place).ok_or_else(|| JobError::Invalid {
            name: variables::BOOTSTRAP,
            value: place.clone(),
            why: "no machine of that name is known; write HOST:PORT of rank 0's machine".into(),
        })?;
        Ok(UniqueId::new(address, secret))
    }

    /// Where rank 0 serves the bootstrap; `port` unless the launcher gives one.
    fn place(&self, env: Lookup<'_>, size: u32, port: u16) -> Result<String, JobError> {
        let missing = |missing, advice| JobError::Incomplete {
            found: self.source,
            missing,
            advice,
        };
        // One machine: no other machine needs to reach it.
        let alone = match self.source {
            JobSource::Slurm => number(env, "SLURM_STEP_NUM_NODES")? == Some(1),
            _ => match self.local_size {
                Some(name) => number(env, name)? == Some(size),
                None => false,
            },
        };
        let here = Ipv4Addr::LOCALHOST.to_string();
        match self.source {
            JobSource::Ringbell => Err(missing(
                variables::ID,
                "give every rank the text of the job's id, or RINGBELL_BOOTSTRAP=HOST:PORT of rank 0",
            )),
            JobSource::Torchrun => {
                const ADVICE: &str = "torchrun sets it; or set RINGBELL_BOOTSTRAP=HOST:PORT";
                let host = env("MASTER_ADDR").ok_or(missing("MASTER_ADDR", ADVICE))?;
                let base = number(env, "MASTER_PORT")?.ok_or(missing("MASTER_PORT", ADVICE))?;
                // MASTER_PORT itself is torch's own store.
                let port = 1024 + (base + 1) % 64_000;
                Ok(format!("{}:{port}", if alone { here } else { host }))
            }
            JobSource::Slurm => {
                let nodes = env("SLURM_STEP_NODELIST").or(env("SLURM_JOB_NODELIST"));
                let nodes = nodes.ok_or(missing(
                    "SLURM_STEP_NODELIST",
                    "srun sets it; or set RINGBELL_BOOTSTRAP=HOST:PORT",
                ))?;
                let first = first_node(&nodes);
                Ok(format!("{}:{port}", if alone { here } else { first }))
            }
            JobSource::OpenMpi | JobSource::Pmi if alone => Ok(format!("{here}:{port}")),
            JobSource::OpenMpi | JobSource::Pmi => Err(missing(
                variables::BOOTSTRAP,
                "the ranks are on several machines and the launcher names no address: pass RINGBELL_BOOTSTRAP=HOST:PORT of rank 0's machine to every rank",
            )),
        }
    }
}

fn secret(text: &str) -> Result<[u8; 16], JobError> {
    let number = u128::from_str_radix(text, 16);
    match (number, text.len()) {
        (Ok(n), 32) => Ok(n.to_be_bytes()),
        _ => Err(JobError::Invalid {
            name: variables::SECRET,
            value: "...".into(),
            why: "it must have 32 hexadecimal digits".into(),
        }),
    }
}

fn resolve(place: &str) -> Option<SocketAddr> {
    let mut all = place.to_socket_addrs().ok()?.collect::<Vec<_>>();
    all.sort_by_key(|a| !a.is_ipv4());
    all.first().copied()
}

/// The process that started the ranks of this machine, and when it was started itself: the nearest
/// ancestor that is no rank. Programs between it and us (a shell, a profiler) have inherited
/// `variable`.
fn starter(variable: &str) -> Option<String> {
    let has_rank = |pid: &str| -> Option<bool> {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut all = environ.split(|b| *b == 0);
        Some(all.any(|v| {
            v.strip_prefix(variable.as_bytes())
                .is_some_and(|r| r.first() == Some(&b'='))
        }))
    };
    let mut pid = "self".to_owned();
    loop {
        // The name, in parentheses, may hold anything; what follows it are numbers:
        // proc_pid_stat(5).
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, numbers) = stat.rsplit_once(')')?;
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        if pid != "self" && !has_rank(&pid)? {
            // Field 22: start time in ticks since boot.
            return Some(format!("{pid}@{}", numbers.get(19)?));
        }
        // Field 4: parent.
        pid = numbers.get(1).filter(|p| **p != "0")?.to_string();
    }
}

/// The first host of Slurm's list: `node[03-05,9],other` is node03.
fn first_node(list: &str) -> String {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    match rest.strip_prefix('[') {
        None => name.into(),
        Some(range) => {
            let digits = range.find(|c: char| !c.is_ascii_digit());
            let (first, after) = range.split_at(digits.unwrap_or(range.len()));
            // What follows the bracket belongs to the name, as in rack[1-3]-a.
            let tail = after.split_once(']').map_or("", |(_, t)| t);
            let tail = tail.split([',', '[']).next().unwrap_or("");
            format!("{name}{first}{tail}")
        }
    }
}

/// FNV-1a, 128 bits: distinguishes jobs, without protection.
fn hash(text: &str) -> u128 {
    text.bytes()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |h, b| {
            (h ^ u128::from(b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_lists() {
        for (list, first) in [
            ("node7", "node7"),
            ("a,b", "a"),
            ("node[03-05,9],other", "node03"),
            ("node[7,9]", "node7"),
            ("gnode[10,20,25,37]", "gnode10"),
            ("rack[1-3]-a,other", "rack1-a"),
        ] {
            assert_eq!(first_node(list), first);
        }
    }

    #[test]
    fn the_starter_is_the_nearest_ancestor_without_the_variable() {
        let parent = std::os::unix::process::parent_id();
        let found = starter("RB_NEVER_SET").expect("this process has a parent");
        assert!(found.starts_with(&format!("{parent}@")), "{found}");
        // Every ancestor has it, so none is left.
        assert_ne!(starter("PATH"), Some(found));
    }
}
