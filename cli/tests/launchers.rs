//! Tests of ranks under other launchers: `ringbell perf` under a real mpirun and mpiexec, and under
//! the environments of torchrun and srun, which are too large for a test to install.
//!
//! Open MPI and MPICH are those that `cargo xtask peers` puts below `target/peers/`, or those on
//! the path.
#![allow(clippy::disallowed_methods)] // Starts programs.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{run, text};

/// A sum of three ranks, checked.
const PERF: [&str; 8] = ["perf", "all-reduce", "-b", "4", "-e", "4k", "-n", "3"];

/// A launcher of `package`, if there is one: that of `cargo xtask peers`, or one on the path whose
/// version names `word`.
fn launcher(package: &str, program: &str, word: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let installed = target.join("peers").join(package).join("bin").join(program);
    // Debian has both beside each other by names of their own.
    let debians = PathBuf::from(format!("{program}.{package}"));
    for candidate in [installed, debians, PathBuf::from(program)] {
        let version = Command::new(&candidate).arg("--version").output();
        if version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains(word)) {
            return Some(candidate);
        }
    }
    eprintln!(
        "SKIPPED: no {program} of {package} on this machine; `cargo xtask peers` installs one"
    );
    None
}

/// Variables of `ringbell run` and others must not reach the ranks.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars() {
        let prefixes = ["RINGBELL_", "SLURM_", "OMPI_", "PMI", "TORCH", "MPI_"];
        if prefixes.iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    command
}

fn summed(said: &str) {
    assert!(said.contains("Out of bounds values : 0 OK"), "{said}");
    assert!(said.contains("# 3 rank(s), processes"), "{said}");
}

#[test]
fn ranks_of_a_real_mpirun_find_each_other() {
    let Some(mpirun) = launcher("openmpi", "mpirun", "Open MPI") else {
        return;
    };
    let mut command = Command::new(mpirun);
    // In a container every user is root, and there are fewer cores than ranks.
    let command = clean(&mut command)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .args(["--map-by", ":OVERSUBSCRIBE", "-n", "3"])
        .arg(env!("CARGO_BIN_EXE_ringbell"))
        .args(PERF);
    let out = run(command);
    assert!(out.status.success(), "{}", text(&out));
    summed(&text(&out));
}

#[test]
fn two_jobs_of_a_real_mpiexec_at_once_do_not_meet() {
    let Some(mpiexec) = launcher("mpich", "mpiexec", "HYDRA") else {
        return;
    };
    let outs = std::thread::scope(|s| {
        let job = || {
            let mut command = Command::new(&mpiexec);
            let command = clean(&mut command)
                // A shell between launcher and rank, as with wrappers that bind or trace.
                .args(["-n", "3", "sh", "-c", "\"$0\" \"$@\"; exit $?"])
                .arg(env!("CARGO_BIN_EXE_ringbell"))
                .args(PERF);
            run(command)
        };
        let both = [s.spawn(job), s.spawn(job)];
        both.map(|t| t.join().expect("no panic"))
    });
    for out in outs {
        assert!(out.status.success(), "{}", text(&out));
        summed(&text(&out));
    }
}

/// Starts three ranks with a launcher's variables for each, and returns their output.
fn by_hand(variables: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let start = |rank| -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        clean(&mut command)
            .args(PERF)
            .envs(variables(rank))
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts")
    };
    let ranks: Vec<Child> = (0..3).map(start).collect();
    // Each ends by its own deadlines.
    let mut said = String::new();
    for rank in ranks {
        let out = rank.wait_with_output().expect("our own child");
        assert!(out.status.success(), "{}", text(&out));
        said += &text(&out);
    }
    summed(&said);
}

#[test]
fn ranks_in_the_environment_of_torchrun_find_each_other() {
    let port = 20_000 + std::process::id() % 12_000;
    by_hand(|rank| {
        let set = |name, value: u32| (name, value.to_string());
        vec![
            set("RANK", rank),
            set("LOCAL_RANK", rank),
            set("GROUP_RANK", 0),
            set("WORLD_SIZE", 3),
            set("LOCAL_WORLD_SIZE", 3),
            ("MASTER_ADDR", "localhost".into()),
            set("MASTER_PORT", port),
            set("TORCHELASTIC_RESTART_COUNT", 0),
            ("TORCHELASTIC_RUN_ID", "none".into()),
        ]
    });
}

#[test]
fn ranks_in_the_environment_of_srun_find_each_other() {
    let job = std::process::id();
    by_hand(|rank| {
        let set = |name, value: u32| (name, value.to_string());
        vec![
            set("SLURM_JOB_ID", job),
            set("SLURM_STEP_ID", 0),
            set("SLURM_PROCID", rank),
            set("SLURM_LOCALID", rank),
            set("SLURM_NTASKS", 3),
            set("SLURM_STEP_NUM_TASKS", 3),
            set("SLURM_STEP_NUM_NODES", 1),
            ("SLURM_STEP_NODELIST", "localhost".into()),
        ]
    });
}

#[test]
fn a_requested_transport_is_kept_or_refused_under_a_launcher() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    clean(&mut command)
        .args(PERF)
        .args(["--no-limits", "--transport", "tcp"])
        .envs([("SLURM_JOB_ID", "1"), ("SLURM_STEP_ID", "0")])
        .envs([("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")])
        .envs([("SLURM_STEP_NUM_NODES", "1"), ("SLURM_STEP_NODELIST", "a")]);
    let said = text(&run(&mut command));
    assert!(said.contains("Slurm has started the ranks"), "{said}");
    assert!(said.contains("RINGBELL_PORT=udp:"), "{said}");
    let port = ["--port", "udp:127.0.0.1:0"];
    let said = text(&run(command.args(port)));
    assert!(said.contains("0 OK"), "{said}");
}
