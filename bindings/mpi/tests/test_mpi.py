"""Programs of MPI over ``ringbell mpi``: in C and Fortran by Debian's MPICH and Open MPI, in Python by mpi4py
with PyPI's. Each runs alone and with Ringbell, and prints the same."""

from __future__ import annotations

import functools
import os
import shutil
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from processes import BUILT, RINGBELL, Ended, blocks, ended, passes

SOURCES = Path(__file__).parent
DEBIAN = ["mpich", "openmpi"]
#: Environments with a library of PyPI and mpi4py.
PYPI = [Path(folder) for folder in os.environ.get("RINGBELL_MPI", "").split(":") if folder]

#: Runs a rank, and stays until both survivors have written their files; a limit ends it when one does not.
STAYING = '"$0" "$@"; until [ -e "$SURVIVORS/rank-0" ] && [ -e "$SURVIVORS/rank-2" ]; do sleep 0.1; done'

#: Runs a rank of a line of NICs that forward for each other: its wires are named by its number, and ``ENDS``
#: has the sockets of all wires, two each.
WIRED = """set -- "$0" "$@"; rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; n=0; wires=
for end in $ENDS; do
  case $((n - 2 * rank)) in
  -2) left=$end ;;
  -1) wires="0=udp:$end,$left" ;;
  0) own=$end ;;
  1) wires="$wires${wires:+;}1=udp:$own,$end" ;;
  esac
  n=$((n + 1))
done
RINGBELL_WIRES=$wires exec "$@\""""


class Library(NamedTuple):
    name: str
    launcher: str

    @property
    def is_open_mpi(self) -> bool:
        return "openmpi" in self.name

    def launch(self, ranks: int) -> list[str]:
        """The launcher, for ranks that are more than cores."""
        more = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if self.is_open_mpi else []
        return [self.launcher, *more, "-n", str(ranks)]

    @functools.cache
    def compiled(self, source: str | Path, *flags: str) -> str:
        """The program of a source in C or Fortran."""
        source = SOURCES / source
        fortran = source.suffix == ".f90"
        compiler = shutil.which(f"{'mpif90' if fortran else 'mpicc'}.{self.name}")
        # gfortran warns of MPI's own calls, whose buffers are of any type.
        warnings = ["-cpp", "-w"] if fortran else ["-Wall", "-Wextra"]
        program = f"{FOLDER}/{source.stem}-{self.name}{''.join(flags)}"
        passes(compiler, *warnings, "-O1", *flags, "-o", program, source)
        return program


FOLDER = BUILT.parent / "mpi"
FOLDER.mkdir(exist_ok=True)
os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def debians(name: str) -> Library | None:
    programs = [shutil.which(f"{program}.{name}") for program in ["mpirun", "mpicc", "mpif90"]]
    return Library(name, programs[0]) if all(programs) else None


@pytest.fixture(params=DEBIAN)
def library(request: pytest.FixtureRequest) -> Library:
    """With compilers."""
    found = debians(request.param)
    if found is None:
        packages = "mpich libmpich-dev openmpi-bin libopenmpi-dev gfortran"
        pytest.skip(f"no {request.param} with its compilers. Debian: apt-get install {packages}")
    return found


def pypis(folder: Path) -> Library:
    return Library(folder.name, str(folder / "bin/mpiexec"))


def ringbell(way: str, launcher: list[str]) -> list[str]:
    """A launcher with the command behind it: what is taken is in the words of ``way``."""
    p2p = ["--p2p"] if "messages" in way else []
    return [*launcher, str(RINGBELL), "mpi", "--explain", "--timeout", "50", *p2p, "--"]


@functools.cache
def alone(library: Library, ranks: int, program: tuple[str, ...]) -> str:
    return passes(*library.launch(ranks), *program)


def driver() -> str:
    """A folder with the mock driver under the real one's name."""
    link = FOLDER / "driver/libcuda.so.1"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(BUILT / "libringbell_libcuda.so")
    return str(link.parent)


def ends(count: int) -> str:
    """So many free addresses of UDP on this host."""
    # All are bound at once, so that no two are the same.
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = " ".join("{}:{}".format(*each.getsockname()) for each in sockets)
    for each in sockets:
        each.close()
    return addresses


def compare(way: str, library: Library, ranks: int, kinds: int, *program: str | int) -> None:
    """Runs a program alone and with Ringbell: it prints the same, and so many kinds of calls were taken at least.

    ``way`` is ``collectives`` or ``messages``. With ``gpu`` the program's memory is the mock driver's, which ends a
    program that touches it from the host; with ``mesh`` each rank's NIC is a node of a line."""
    words = tuple(str(word) for word in program)
    launcher, environment, wires = library.launch(ranks), {}, 0
    if "gpu" in way:
        # The NIC stays on the emulated GPU, so that all copies are the layer's.
        environment = {"LD_LIBRARY_PATH": driver(), "RINGBELL_TEST_DRIVER": "libcuda.so.1"}
        environment |= {"RINGBELL_MOCK_CUDA": "guard", "RINGBELL_GPU": "emulated"}
    if "mesh" in way:
        wires = 2 * (ranks - 1)
        environment = {"RINGBELL_PORT": f"mesh:bus:{ranks}", "ENDS": ends(wires), "RINGBELL_DEBUG": "info"}
        launcher += ["sh", "-c", WIRED]
    ours = ended(*ringbell(way, launcher), *words, **environment)
    assert ours.code == 0, ours.text
    assert ours.out == alone(library, ranks, words), ours.errors
    copied = [f"copies {way} a GPU: " in ours.errors for way in ["from", "to"]]
    assert copied == ["gpu" in way] * 2, ours.errors
    assert ours.errors.count("a wire is up") == wires, ours.errors
    taken = sum(" taken, " in line for line in ours.errors.splitlines())
    assert taken >= kinds, f"{taken} kinds of calls were taken, not {kinds}: {ours.errors}"


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("folder", PYPI)
def test_mpi4py(folder: Path, ranks: int) -> None:
    python = str(folder / "bin/python3")
    compare("collectives", pypis(folder), ranks, 9, python, SOURCES / "program.py")
    compare("messages", pypis(folder), ranks, 10, python, SOURCES / "messages.py")


@pytest.mark.parametrize(("way", "name", "kinds"), [("collectives", "random", 10), ("messages", "messages", 8)])
@pytest.mark.parametrize("folder", PYPI)
def test_the_abi_of_mpi_5(folder: Path, way: str, name: str, kinds: int) -> None:
    """MPICH from 4.3 on has it beside its own."""
    compiler = folder / "bin/mpicc_abi"
    if not compiler.is_file():
        pytest.skip(f"{folder.name} has no MPI 5")
    program = FOLDER / f"{name}-abi"
    passes(compiler, "-Wall", "-Wextra", "-O1", f"-Wl,-rpath,{folder}/lib", "-o", program, SOURCES / f"{name}.c")
    compare(way, pypis(folder), 2, kinds, str(program), 1, 40)


def test_the_documented_program(library: Library) -> None:
    source = FOLDER / "first.c"
    source.write_text(blocks("mpi.md", "c")[0])
    compare("collectives", library, 2, 1, library.compiled(source))


@pytest.mark.parametrize(
    ("seed", "ranks", "longest"), [(1, 2, 3000), (2, 3, 3000), (3, 4, 3000), (4, 2, 60_000), (5, 3, 60_000)]
)
def test_random_collectives(library: Library, seed: int, ranks: int, longest: int) -> None:
    program = [library.compiled("random.c"), seed, 40, longest]
    compare("collectives", library, ranks, 11, *program)
    if seed < 3:
        compare("collectives gpu", library, ranks, 11, *program)


@pytest.mark.parametrize(("seed", "ranks", "longest"), [(1, 2, 3000), (2, 3, 3000), (3, 2, 60_000), (4, 3, 60_000)])
def test_random_messages(library: Library, seed: int, ranks: int, longest: int) -> None:
    program = [library.compiled("messages.c"), seed, 40, longest]
    compare("collectives", library, ranks, 2, *program)
    compare("messages", library, ranks, 8, *program)
    if seed > 2:
        compare("messages gpu", library, ranks, 8, *program)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_nics_in_a_line(library: Library, ranks: int) -> None:
    """1, 2 and 4 hops from end to end."""
    if ranks > 2 and not library.is_open_mpi:
        pytest.skip("MPICH spins where ranks are more than cores")
    compare("collectives mesh", library, ranks, 9, library.compiled("random.c"), 7, 20, 3000)
    compare("messages mesh", library, ranks, 8, library.compiled("messages.c"), 7, 20, 3000)


@pytest.mark.parametrize("flags", [[], ["-DNEW"]])
@pytest.mark.parametrize("ranks", [2, 3])
def test_fortran(library: Library, ranks: int, flags: list[str]) -> None:
    # The module mpi_f08 of MPICH calls its library by internal names: handed on, so that programs of both kinds of
    # calls stay right.
    internal = bool(flags) and not library.is_open_mpi
    compare("collectives", library, ranks, 0 if internal else 10, library.compiled("fortran.f90", *flags))
    plain = ["plain"] if internal else []
    compare(
        "messages", library, ranks, 1 if internal else 15, library.compiled("messages.f90", *flags), ranks - 1, *plain
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_beside_those_taken(library: Library, ranks: int) -> None:
    if ranks > 2 and not library.is_open_mpi:
        pytest.skip("MPICH spins where ranks are more than cores")
    compare("collectives", library, ranks, 1, library.compiled("beside.c"))


def test_ranks_wait_inside_the_library_below(library: Library) -> None:
    if not library.is_open_mpi:
        pytest.skip("MPICH spins where ranks are more than cores")
    # Few rounds: on busy cores the library alone takes 27 ms for one.
    compare("messages", library, 4, 1, library.compiled("within.c"), 400)


def test_errors_of_requests(library: Library) -> None:
    """As MPI's standard has them. The libraries alone do not keep it in all cases, so nothing is compared."""
    said = passes(*ringbell("messages", library.launch(2)), library.compiled("errors.c"))
    assert "all errors as they should be" in said


@pytest.mark.parametrize(
    ("way", "second", "call"),
    [
        ("collectives", [], "MPI_Allreduce"),
        ("messages", ["messages"], "MPI_Recv"),
        ("messages", ["requests"], "MPI_Wait"),
    ],
)
def test_a_killed_rank_is_named(library: Library, tmp_path: Path, way: str, second: list[str], call: str) -> None:
    """One of three ranks is killed: the others get an error that names it, or their program ends.

    A launcher that notices the death may kill the others before they have got the error, even when told not to, and
    loses what they print. So a shell between it and each rank stays until the survivors have written their files."""
    keep_on = "--enable-recovery" if library.is_open_mpi else "-disable-auto-cleanup"
    program = library.compiled("fault.c")
    launcher = ringbell(way, [*library.launch(3), keep_on, "sh", "-c", STAYING])
    end: Ended = ended(*launcher, program, tmp_path, *second, SURVIVORS=str(tmp_path))
    for rank in [0, 2]:
        file = tmp_path / f"rank-{rank}"
        assert file.exists(), f"rank {rank} has got no error: {end.text}"
        assert file.read_text().startswith(f"MPI_ERR_PROC_FAILED: {call}: rank 1 "), (rank, file.read_text(), end.text)
    assert ended(*ringbell(way, library.launch(3)), program).code != 0, "a program whose rank was killed ended well"
