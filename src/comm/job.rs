//! [`Job`]: which rank of which job this process is, as its environment says.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_core::port::mem::MemSwitch;

use super::{BootstrapError, Member, UniqueId, UniqueIdError};
use crate::{Cidr, NicOptions, PortSpec, SpecError, TransportSpec};

/// Names of the variables that `ringbell run` sets.
pub mod variables {
    /// Own rank, from 0.
    pub const RANK: &str = "RINGBELL_RANK";
    /// Ranks of the job.
    pub const SIZE: &str = "RINGBELL_SIZE";
    /// The job's [`UniqueId`](crate::UniqueId); wins over what other launchers say about addresses.
    pub const ID: &str = "RINGBELL_ID";
    /// `HOST:PORT` at which rank 0 serves the bootstrap, for launchers that say none.
    pub const BOOTSTRAP: &str = "RINGBELL_BOOTSTRAP";
    /// Secret of the job, 32 hexadecimal digits, for launchers that have none.
    pub const SECRET: &str = "RINGBELL_SECRET";
    /// What carries the NIC's frames, as `--port` has it.
    pub const PORT: &str = "RINGBELL_PORT";
    /// `auto`, `local` or `tcp`.
    pub const TRANSPORT: &str = "RINGBELL_TRANSPORT";
    /// File of the in-memory switch of the launcher.
    pub const SWITCH: &str = "RINGBELL_SWITCH";
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobSource {
    /// `ringbell run`, or somebody who set its variables.
    Ringbell,
    /// torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
    Torchrun,
    /// srun: SLURM_PROCID, SLURM_NTASKS.
    Slurm,
    /// Open MPI's mpirun: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE.
    OpenMpi,
    /// A PMI launcher, such as MPICH's mpiexec: PMI_RANK, PMI_SIZE.
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

/// Why the environment does not say which rank this is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Nobody has started this process as a rank.
    #[error("this process is no rank of a job: none of RINGBELL_RANK, RANK (torchrun), SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK is set; start it with `ringbell run -n RANKS -- PROGRAM`")]
    None,
    /// A launcher was found, but a variable of its is missing.
    #[error("started by {found}, but {missing} is not set; {advice}")]
    Incomplete {
        /// Who.
        found: JobSource,
        /// What is missing.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A variable makes no sense.
    #[error("{name}={value}: {why}")]
    Invalid {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// RINGBELL_ID makes no sense.
    #[error("RINGBELL_ID")]
    Id(#[from] UniqueIdError),
    /// RINGBELL_PORT or RINGBELL_TRANSPORT makes no sense.
    #[error("RINGBELL_PORT or RINGBELL_TRANSPORT")]
    Spec(#[from] SpecError),
    /// The in-memory switch of the launcher.
    #[error("cannot attach to the launcher's switch at {path}: {why}")]
    Switch {
        /// RINGBELL_SWITCH.
        path: PathBuf,
        /// What happened.
        why: String,
    },
}

/// A process's place in a job.
///
/// ```no_run
/// use ringbell::{Job, Nic};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let job = Job::from_env()?;
/// let nic = Nic::open(job.nic_options()?)?;
/// println!("rank {} of {}, started by {}", job.rank(), job.size(), job.source());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Job {
    rank: u32,
    size: u32,
    source: JobSource,
    id: UniqueId,
    /// Whether rank 0 serves, because the launcher does not.
    rank_0_serves: bool,
    transport: TransportSpec,
    port: PortSpec,
    switch: Option<PathBuf>,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn number(env: Lookup<'_>, name: &'static str) -> Result<Option<u32>, JobError> {
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

impl Job {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`JobError`] says what was found and what is missing.
    pub fn from_env() -> Result<Job, JobError> {
        Job::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads variables from elsewhere: for ranks that are threads of one process.
    ///
    /// # Errors
    /// As [`Job::from_env`].
    pub fn from_variables(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Job, JobError> {
        let env: Lookup<'_> = &|name| lookup(name).filter(|v| !v.is_empty());
        const KNOWN: [(JobSource, &str, &str); 5] = [
            (JobSource::Ringbell, variables::RANK, variables::SIZE),
            // torchrun may itself run under Slurm: the inner launcher counts.
            (JobSource::Torchrun, "RANK", "WORLD_SIZE"),
            (
                JobSource::OpenMpi,
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
            ),
            (JobSource::Pmi, "PMI_RANK", "PMI_SIZE"),
            (JobSource::Slurm, "SLURM_PROCID", "SLURM_NTASKS"),
        ];
        let found = KNOWN.into_iter().find(|(source, rank, size)| {
            let both = env(rank).is_some() && env(size).is_some();
            // RANK alone is too common a name to mean torchrun.
            both || (*source != JobSource::Torchrun && env(rank).is_some())
        });
        let (source, rank_name, size_name) = found.ok_or(JobError::None)?;
        let rank = number(env, rank_name)?.ok_or(JobError::None)?;
        let size = number(env, size_name)?.ok_or(JobError::Incomplete {
            found: source,
            missing: size_name,
            advice: "set it to the number of ranks",
        })?;
        if rank >= size {
            return Err(JobError::Invalid {
                name: rank_name,
                value: rank.to_string(),
                why: format!("ranks count from 0 to below {size_name}, which is {size}"),
            });
        }
        let (id, rank_0_serves) = match env(variables::ID) {
            Some(text) => (text.parse()?, source != JobSource::Ringbell),
            None => (worked_out(env, source)?, true),
        };
        Ok(Job {
            rank,
            size,
            source,
            id,
            rank_0_serves,
            transport: env(variables::TRANSPORT).map_or(Ok(TransportSpec::Auto), |t| t.parse())?,
            port: env(variables::PORT).map_or(Ok(PortSpec::None), |t| t.parse())?,
            switch: env(variables::SWITCH).map(PathBuf::from),
        })
    }

    /// Own rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Who started this process.
    pub fn source(&self) -> JobSource {
        self.source
    }

    /// What admits to the job.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Address of a rank's NIC: 10.77.0.1 for rank 0, and so on.
    pub fn address_of(rank: u32) -> Cidr {
        let [_, _, c, d] = (rank + 1).to_be_bytes();
        Cidr {
            ip: Ipv4Addr::new(10, 77, c, d),
            prefix: 16,
        }
    }

    /// How to open this rank's NIC: an address by rank, and a directory, a network number and secrets of
    /// the job's own, so that two jobs on one machine never meet.
    ///
    /// # Errors
    /// [`JobError::Switch`] when the launcher's switch is gone.
    pub fn nic_options(&self) -> Result<NicOptions, JobError> {
        let mut options = options_of(&self.id, self.rank);
        options.transport = self.transport;
        options.port = self.port.clone();
        if let Some(path) = &self.switch {
            options.switch = Some((attach(path)?, self.rank as usize));
        }
        Ok(options)
    }

    /// Joins the job; rank 0 first serves its bootstrap when the launcher does not.
    ///
    /// # Errors
    /// [`BootstrapError`]: the address is taken, or nobody serves there.
    pub fn join(&self, timeout: Duration) -> Result<Member, BootstrapError> {
        if self.rank_0_serves && self.rank == 0 {
            self.id.serve(self.size)?;
        }
        Member::join(&self.id, self.rank, self.size, timeout)
    }
}

/// A NIC of a job that only its own ranks can meet.
pub(crate) fn options_of(id: &UniqueId, rank: u32) -> NicOptions {
    let tag = id.job_tag();
    let mut options = NicOptions {
        ip: Job::address_of(rank),
        vni: (tag >> 40) as u32 & 0xff_ffff,
        udp_secret: Some(tag),
        ..NicOptions::default()
    };
    options.local.directory = Some(id.local_directory());
    let (low, high) = options.local.secret.split_at_mut(16);
    low.copy_from_slice(id.secret());
    high.copy_from_slice(id.secret());
    options
}

impl UniqueId {
    /// Where the job's NICs find each other on this machine: the directory of the `local` transport. Its
    /// name does not tell the secret.
    pub fn local_directory(&self) -> PathBuf {
        std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
            .unwrap_or_else(std::env::temp_dir)
            .join(format!("ringbell-job-{:016x}", self.job_tag()))
    }
}

fn attach(path: &std::path::Path) -> Result<Arc<MemSwitch>, JobError> {
    let failed = |why: String| JobError::Switch {
        path: path.into(),
        why,
    };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| failed(e.to_string()))?;
    let switch = MemSwitch::attach(file.into()).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(switch))
}

/// The id that every rank of a foreign launcher works out for itself.
fn worked_out(env: Lookup<'_>, source: JobSource) -> Result<UniqueId, JobError> {
    // What all ranks see alike, and no other job of this launcher.
    let names: &[&str] = match source {
        JobSource::Torchrun => &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"],
        JobSource::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME"],
        JobSource::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        JobSource::Pmi => &["PMI_JOBID"],
        JobSource::Ringbell => &[variables::BOOTSTRAP],
    };
    let values: Vec<String> = names.iter().filter_map(|n| env(n)).collect();
    let name = values.join("/");
    let hash = hash(&format!("{source}/{name}"));
    let secret = match env(variables::SECRET) {
        None => hash.to_le_bytes(),
        Some(value) if value.len() == 32 => u128::from_str_radix(&value, 16)
            .map_err(|_| JobError::Invalid {
                name: variables::SECRET,
                value: "...".into(),
                why: "it must have 32 hexadecimal digits".into(),
            })?
            .to_be_bytes(),
        Some(_) => {
            return Err(JobError::Invalid {
                name: variables::SECRET,
                value: "...".into(),
                why: "it must have 32 hexadecimal digits".into(),
            })
        }
    };
    let port = 20_000 + (hash % 12_000) as u16;
    let place = match env(variables::BOOTSTRAP) {
        Some(place) => place,
        None => match source {
            JobSource::Ringbell => {
                return Err(JobError::Incomplete {
                    found: source,
                    missing: variables::ID,
                    advice: "give every rank the text of the job's id, or RINGBELL_BOOTSTRAP=HOST:PORT of rank 0",
                })
            }
            JobSource::Torchrun => {
                let missing = |missing| JobError::Incomplete {
                    found: source,
                    missing,
                    advice: "torchrun sets it; or set RINGBELL_BOOTSTRAP=HOST:PORT",
                };
                let host = env("MASTER_ADDR").ok_or(missing("MASTER_ADDR"))?;
                let base = number(env, "MASTER_PORT")?.ok_or(missing("MASTER_PORT"))?;
                // MASTER_PORT itself is torch's own store.
                format!("{host}:{}", 1024 + (base + 1) % 64_000)
            }
            JobSource::Slurm => {
                let nodes = env("SLURM_STEP_NODELIST").or(env("SLURM_JOB_NODELIST"));
                let nodes = nodes.ok_or(JobError::Incomplete {
                    found: source,
                    missing: "SLURM_STEP_NODELIST",
                    advice: "srun sets it; or set RINGBELL_BOOTSTRAP=HOST:PORT",
                })?;
                format!("{}:{port}", first_node(&nodes))
            }
            JobSource::OpenMpi | JobSource::Pmi => {
                let local = number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")?.or(number(env, "MPI_LOCALNRANKS")?);
                let all = number(env, "OMPI_COMM_WORLD_SIZE")?.or(number(env, "PMI_SIZE")?);
                if local.is_none() || local != all {
                    return Err(JobError::Incomplete {
                        found: source,
                        missing: variables::BOOTSTRAP,
                        advice: "the ranks are on several machines and the launcher names no address: pass RINGBELL_BOOTSTRAP=HOST:PORT of rank 0's machine to every rank",
                    });
                }
                format!("127.0.0.1:{port}")
            }
        },
    };
    let address = resolve(&place).ok_or_else(|| JobError::Invalid {
        name: variables::BOOTSTRAP,
        value: place.clone(),
        why: "no machine of that name is known; write HOST:PORT of rank 0's machine".into(),
    })?;
    Ok(UniqueId::new(address, secret))
}

fn resolve(place: &str) -> Option<SocketAddr> {
    let mut all = place.to_socket_addrs().ok()?.collect::<Vec<_>>();
    all.sort_by_key(|a| !a.is_ipv4());
    all.first().copied()
}

/// The first host of Slurm's list: `node[03-05,9],other` is node03.
fn first_node(list: &str) -> String {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    match rest.strip_prefix('[') {
        None => name.into(),
        Some(range) => {
            let digits = range.find(|c: char| !c.is_ascii_digit());
            format!("{name}{}", &range[..digits.unwrap_or(range.len())])
        }
    }
}

/// FNV-1a, 128 bits: tells jobs apart, and is no protection.
fn hash(text: &str) -> u128 {
    text.bytes()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |h, b| {
            (h ^ u128::from(b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(vars: &[(&str, &str)]) -> Result<Job, JobError> {
        Job::from_variables(&|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.to_string())
        })
    }

    const ID: &str = "rb1-000102030405060708090a0b0c0d0e0f@127.0.0.1:4711";

    #[test]
    fn each_launcher_is_recognised() {
        let j = job(&[
            ("RINGBELL_RANK", "1"),
            ("RINGBELL_SIZE", "3"),
            ("RINGBELL_ID", ID),
        ])
        .expect("complete");
        assert_eq!(
            (j.rank(), j.size(), j.source()),
            (1, 3, JobSource::Ringbell)
        );
        assert_eq!(j.id().to_string(), ID);
        assert!(!j.rank_0_serves);
        let torch = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let j = job(&torch).expect("complete");
        assert_eq!((j.rank(), j.source()), (2, JobSource::Torchrun));
        assert!(j.rank_0_serves && j.id().address().port() != 29500);
        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_NODELIST", "127.0.0.[1-2]"),
        ];
        let j = job(&slurm).expect("complete");
        assert_eq!(j.source(), JobSource::Slurm);
        assert_eq!(j.id().address().ip(), Ipv4Addr::LOCALHOST);
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-host-1234@1"),
        ];
        assert_eq!(job(&mpi).expect("complete").source(), JobSource::OpenMpi);
        let pmi = [
            ("PMI_RANK", "0"),
            ("PMI_SIZE", "2"),
            ("RINGBELL_BOOTSTRAP", "127.0.0.1:5000"),
        ];
        let j = job(&pmi).expect("complete");
        assert_eq!(
            (j.source(), j.id().address().port()),
            (JobSource::Pmi, 5000)
        );
    }

    #[test]
    fn ranks_agree_on_the_id_and_jobs_do_not() {
        let id = |rank, job_id| {
            job(&[
                ("SLURM_PROCID", rank),
                ("SLURM_NTASKS", "2"),
                ("SLURM_JOB_ID", job_id),
                ("SLURM_STEP_NODELIST", "127.0.0.1"),
            ])
            .expect("complete")
            .id
        };
        assert_eq!(id("0", "7"), id("1", "7"));
        assert_ne!(id("0", "7"), id("0", "8"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let says = |vars: &[(&str, &str)], words: &[&str]| {
            let e = job(vars).expect_err("not complete").to_string();
            for w in words {
                assert!(e.contains(w), "{e} lacks {w}");
            }
        };
        says(&[], &["no rank of a job", "ringbell run"]);
        says(&[("RANK", "0")], &["no rank of a job"]);
        says(&[("RINGBELL_RANK", "0")], &["RINGBELL_SIZE is not set"]);
        says(
            &[("RINGBELL_RANK", "0"), ("RINGBELL_SIZE", "2")],
            &["RINGBELL_ID is not set"],
        );
        says(
            &[("RINGBELL_RANK", "2"), ("RINGBELL_SIZE", "2")],
            &["RINGBELL_RANK=2", "from 0"],
        );
        says(
            &[("PMI_RANK", "x"), ("PMI_SIZE", "2")],
            &["PMI_RANK=x", "number"],
        );
        says(
            &[("PMI_RANK", "0"), ("PMI_SIZE", "2")],
            &["started by PMI", "RINGBELL_BOOTSTRAP"],
        );
        says(
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")],
            &["torchrun", "MASTER_PORT is not set"],
        );
    }

    #[test]
    fn addresses_and_directories_are_each_ranks_and_jobs_own() {
        assert_eq!(Job::address_of(0).to_string(), "10.77.0.1/16");
        assert_eq!(Job::address_of(255).to_string(), "10.77.1.0/16");
        let id: UniqueId = ID.parse().expect("sound");
        let other = UniqueId::new(id.address(), [3; 16]);
        assert_ne!(id.local_directory(), other.local_directory());
        let options = options_of(&id, 3);
        assert_eq!(options.ip.ip, Ipv4Addr::new(10, 77, 0, 4));
        assert!(!id
            .local_directory()
            .to_string_lossy()
            .contains("0001020304"));
    }

    #[test]
    fn slurm_lists() {
        for (list, first) in [
            ("node7", "node7"),
            ("a,b", "a"),
            ("node[03-05,9],other", "node03"),
            ("node[7,9]", "node7"),
        ] {
            assert_eq!(first_node(list), first);
        }
    }
}
