//! [`Job`]: a process's rank and job, read from its environment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringbell_nic_core::scratch;

use crate::bootstrap::{BootstrapError, Member};
use crate::id::UniqueId;
use crate::launcher::{self, number, JobError, JobSource, Lookup};
use crate::variables;

/// A process's place in a job.
///
/// A NIC for it is opened by `NicBuilder::job`, of the crate `ringbell`.
#[derive(Debug, Clone)]
pub struct Job {
    rank: u32,
    size: u32,
    local_rank: Option<u32>,
    source: JobSource,
    id: UniqueId,
    /// Whether rank 0 serves, because the launcher does not.
    rank_0_serves: bool,
    transport: Option<String>,
    port: Option<String>,
    switch: Option<PathBuf>,
    wires: Option<String>,
    wire_poll: Option<String>,
    routes: Option<PathBuf>,
}

impl Job {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`JobError`] says what was found and what is missing.
    pub fn from_env() -> Result<Job, JobError> {
        Job::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads variables from another source: for ranks that are threads of one process.
    ///
    /// # Errors
    /// As [`Job::from_env`].
    pub fn from_variables(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Job, JobError> {
        let env: Lookup<'_> = &|name| lookup(name).filter(|v| !v.is_empty());
        let found = launcher::KNOWN.into_iter().find(|l| l.speaks(env));
        let launcher = found.ok_or(JobError::None)?;
        let (source, rank_name) = (launcher.source, launcher.rank);
        launcher.complete(env)?;
        let rank = number(env, rank_name)?.ok_or(JobError::None)?;
        let (size, size_name) = launcher.ranks(env)?;
        if rank >= size {
            return Err(JobError::Invalid {
                name: rank_name,
                value: rank.to_string(),
                why: format!("ranks count from 0 to below {size_name}, which is {size}"),
            });
        }
        let (id, rank_0_serves) = match env(variables::ID) {
            Some(text) => (text.parse()?, source != JobSource::Ringbell),
            None => (launcher.id(env, size)?, true),
        };
        Ok(Job {
            rank,
            size,
            local_rank: number(env, launcher.local_rank)?,
            source,
            id,
            rank_0_serves,
            transport: env(variables::TRANSPORT),
            port: env(variables::PORT),
            switch: env(variables::SWITCH).map(PathBuf::from),
            wires: env(variables::WIRES),
            wire_poll: env(variables::WIRE_POLL),
            routes: env(variables::ROUTES).map(PathBuf::from),
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

    /// Rank among those of this machine, where the launcher gives it: to choose a GPU.
    pub fn local_rank(&self) -> Option<u32> {
        self.local_rank
    }

    /// The launcher of this process.
    pub fn source(&self) -> JobSource {
        self.source
    }

    /// The job's id.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Whether this rank serves the job's bootstrap, because its launcher does not.
    pub fn serves(&self) -> bool {
        self.rank_0_serves && self.rank == 0
    }

    /// The launcher's transport for the NIC ([`variables::TRANSPORT`]), in the form of
    /// `--transport`.
    pub fn transport(&self) -> Option<&str> {
        self.transport.as_deref()
    }

    /// The launcher's port for the NIC ([`variables::PORT`]), in the form of `--port`.
    pub fn port(&self) -> Option<&str> {
        self.port.as_deref()
    }

    /// File of the launcher's in-memory switch ([`variables::SWITCH`]).
    pub fn switch(&self) -> Option<&Path> {
        self.switch.as_deref()
    }

    /// The launcher's wires for port `mesh` ([`variables::WIRES`]).
    pub fn wires(&self) -> Option<&str> {
        self.wires.as_deref()
    }

    /// Packets that an output of port `mesh` takes from one queue in a row
    /// ([`variables::WIRE_POLL`]).
    pub fn wire_poll(&self) -> Option<&str> {
        self.wire_poll.as_deref()
    }

    /// File of the tables for port `mesh` ([`variables::ROUTES`]).
    pub fn routes(&self) -> Option<&Path> {
        self.routes.as_deref()
    }

    /// Joins the job; rank 0 first serves its bootstrap when the launcher does not.
    ///
    /// # Errors
    /// [`BootstrapError`]: the address is taken, or no process serves there.
    pub fn join(&self, timeout: Duration) -> Result<Member, BootstrapError> {
        if self.serves() {
            self.id.serve(self.size)?;
        }
        Member::join(&self.id, self.rank, self.size, timeout)
    }
}

impl UniqueId {
    fn directory_name(&self) -> String {
        let bytes = self.derived("directory");
        let hex: String = bytes[..16].iter().map(|b| format!("{b:02x}")).collect();
        format!("ringbell-job-{hex}")
    }

    /// Directory of the `local` transport, where the job's NICs find each other on this machine.
    /// Its name does not reveal the secret.
    pub fn local_directory(&self) -> PathBuf {
        scratch::base().join(self.directory_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

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

    /// Variables of a task under srun with two nodes and two tasks each: those that we read and
    /// those that could mislead.
    fn srun(task: &'static str, job_id: &'static str) -> Vec<(&'static str, &'static str)> {
        vec![
            ("SLURM_JOB_ID", job_id),
            ("SLURM_JOBID", job_id),
            ("SLURM_CLUSTER_NAME", "ada"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEPID", "0"),
            ("SLURM_PROCID", task),
            (
                "SLURM_LOCALID",
                if matches!(task, "0" | "2") { "0" } else { "1" },
            ),
            (
                "SLURM_NODEID",
                if matches!(task, "0" | "1") { "0" } else { "1" },
            ),
            // Of the allocation: larger than the step.
            ("SLURM_NTASKS", "8"),
            ("SLURM_NNODES", "4"),
            ("SLURM_JOB_NODELIST", "10.1.0.[5-8]"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "10.1.0.[7-8]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_LAUNCH_NODE_IPADDR", "10.1.0.1"),
        ]
    }

    /// Variables under torchrun with two nodes and two processes each.
    fn torchrun(rank: &'static str, restarts: &'static str) -> Vec<(&'static str, &'static str)> {
        vec![
            ("RANK", rank),
            (
                "LOCAL_RANK",
                if matches!(rank, "0" | "2") { "0" } else { "1" },
            ),
            (
                "GROUP_RANK",
                if matches!(rank, "0" | "1") { "0" } else { "1" },
            ),
            ("ROLE_RANK", rank),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_WORLD_SIZE", "4"),
            ("ROLE_NAME", "default"),
            ("MASTER_ADDR", "10.1.0.7"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RESTART_COUNT", restarts),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("OMP_NUM_THREADS", "1"),
        ]
    }

    fn with<'a>(
        vars: &[(&'a str, &'a str)],
        name: &'a str,
        value: &'a str,
    ) -> Vec<(&'a str, &'a str)> {
        let others = vars.iter().copied().filter(|(n, _)| *n != name);
        others.chain([(name, value)]).collect()
    }

    #[test]
    fn tasks_of_srun_meet_on_the_first_node_of_their_step() {
        let j = job(&srun("3", "200505")).expect("complete");
        assert_eq!((j.rank(), j.size(), j.local_rank()), (3, 4, Some(1)));
        assert_eq!((j.source(), j.rank_0_serves), (JobSource::Slurm, true));
        assert_eq!(j.id().address().ip(), Ipv4Addr::new(10, 1, 0, 7));
        assert_eq!(j.id(), job(&srun("0", "200505")).expect("complete").id());
        // Another step of the job, and another job, count as other jobs.
        for other in [
            with(&srun("0", "200505"), "SLURM_STEP_ID", "1"),
            srun("0", "200506"),
        ] {
            let other = job(&other).expect("complete");
            assert_ne!(j.id().secret(), other.id().secret());
        }
        let one_node = with(&srun("0", "7"), "SLURM_STEP_NUM_NODES", "1");
        let at = job(&one_node).expect("complete").id().address().ip();
        assert_eq!(at, Ipv4Addr::LOCALHOST, "no other machine reaches it");
        // An older srun has no number of its own for the step's tasks.
        let old: Vec<_> = srun("3", "7");
        let old: Vec<_> = old
            .into_iter()
            .filter(|v| v.0 != "SLURM_STEP_NUM_TASKS")
            .collect();
        assert_eq!(job(&old).expect("complete").size(), 8);
    }

    #[test]
    fn a_batch_script_is_no_rank_and_inner_launchers_win() {
        let batch: Vec<_> = srun("0", "7");
        let batch: Vec<_> = batch
            .into_iter()
            .filter(|v| !v.0.starts_with("SLURM_STEP"))
            .collect();
        let e = job(&batch).expect_err("started without srun").to_string();
        assert!(e.contains("SLURM_STEP_ID") && e.contains("srun"), "{e}");
        // srun --mpi=pmi2 speaks PMI as well; Slurm's own variables say more.
        let pmi2 = [
            &srun("1", "7")[..],
            &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_JOBID", "7.0")],
        ]
        .concat();
        assert_eq!(job(&pmi2).expect("complete").source(), JobSource::Slurm);
        // Hydra starts a proxy on each node by srun, and the ranks inherit the proxy's variables.
        let hydra = [
            &srun("1", "7")[..],
            &[
                ("PMI_RANK", "3"),
                ("PMI_SIZE", "9"),
                ("MPI_LOCALNRANKS", "9"),
                ("MPI_LOCALRANKID", "3"),
            ],
        ]
        .concat();
        let j = job(&hydra).expect("complete");
        assert_eq!((j.rank(), j.size(), j.source()), (3, 9, JobSource::Pmi));
        // torchrun as the one task of each node.
        let torch = [&srun("1", "7")[..], &torchrun("2", "0")].concat();
        assert_eq!(job(&torch).expect("complete").source(), JobSource::Torchrun);
    }

    #[test]
    fn ranks_of_torchrun_meet_beside_its_store_and_not_those_of_before_a_restart() {
        let j = job(&torchrun("2", "0")).expect("complete");
        assert_eq!((j.rank(), j.size(), j.local_rank()), (2, 4, Some(0)));
        assert_eq!((j.source(), j.rank_0_serves), (JobSource::Torchrun, true));
        assert_eq!(j.id().address().ip(), Ipv4Addr::new(10, 1, 0, 7));
        assert_ne!(j.id().address().port(), 29500, "that is torch's own");
        assert_eq!(j.id(), job(&torchrun("0", "0")).expect("complete").id());
        assert_ne!(
            j.id().secret(),
            job(&torchrun("2", "1")).expect("complete").id().secret()
        );
        let standalone = with(&torchrun("2", "0"), "LOCAL_WORLD_SIZE", "4");
        let at = job(&standalone).expect("complete").id().address().ip();
        assert_eq!(at, Ipv4Addr::LOCALHOST, "no other machine reaches it");
    }

    #[test]
    fn ranks_agree_on_the_id_and_jobs_do_not() {
        let id = |rank, job_id| {
            job(&[
                ("SLURM_PROCID", rank),
                ("SLURM_NTASKS", "2"),
                ("SLURM_STEP_ID", "0"),
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
    fn missing_and_wrong_variables_are_named() {
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
}
