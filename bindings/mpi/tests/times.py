"""Times of programs of MPI: each library alone and with Ringbell, in turn.

``times.py collectives``: mpi4py's Allreduce on two ranks, also with memory of MPI_Alloc_mem. ``times.py messages``:
messages between two ranks in C, time of one way and rate of eight at once; then ranks that wait inside the library
below."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from processes import passes
from test_mpi import DEBIAN, PYPI, SOURCES, Library, debians, pypis, ringbell

#: Times that each takes its turn.
TURNS = 3
#: What takes turns.
WAYS = ["alone", "Ringbell", "MPI_Alloc_mem"]


def fastest(library: Library) -> list[str]:
    """Two ranks over the fastest path between two processes, as ``cargo xtask peers`` has it."""
    # Debian's version has the path's older name.
    shared = "self,vader" if library.name in DEBIAN else "self,sm"
    path = ["--mca", "pml", "ob1", "--mca", "btl", shared] if library.is_open_mpi else []
    return [library.launcher, "-n", "2", *path]


def in_turn(library: Library, ways: list[str], columns: dict[str, bool], run: Callable[[str], str]) -> None:
    """Prints the medians of what ``run`` gives for each way: lines of bytes and a value for each column, by its unit. A
    column is a time, or a rate."""
    values: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for way in ways * TURNS:
        for line in run(way).splitlines():
            size, *numbers = line.split()
            for unit, number in zip(columns, numbers, strict=True):
                values[unit, int(size), way].append(float(number))
    print(f"\n{library.name}, medians of {TURNS} turns")
    for unit, is_time in columns.items():
        print(f"{'bytes':>10}" + "".join(f" {way:>14}        " for way in ways) + f"  {unit}")
        for size in sorted({size for column, size, _ in values if column == unit}):
            medians = [statistics.median(values[unit, size, way]) for way in ways]
            ratios = [medians[0] / m if is_time else m / medians[0] for m in medians]
            print(f"{size:>10}" + "".join(f" {m:>14.2f} {r:>6.2f}x" for m, r in zip(medians, ratios)))


def collectives() -> None:
    for folder in PYPI:
        library = pypis(folder)

        def run(way: str) -> str:
            launcher = fastest(library)
            start = launcher if way == "alone" else ringbell("collectives", launcher)
            exported = ["exported"] if way == "MPI_Alloc_mem" else []
            return passes(*start, folder / "bin/python3", SOURCES / "measure.py", *exported)

        in_turn(library, WAYS, {"us": True}, run)


def messages() -> None:
    for library in filter(None, map(debians, DEBIAN)):
        pingpong, within, rounds = library.compiled("pingpong.c", "-O2"), library.compiled("within.c", "-O2"), 1000

        def start(way: str, launcher: list[str]) -> list[str]:
            return launcher if way == "alone" else ringbell("messages", launcher)

        def both(way: str) -> str:
            return passes(*start(way, fastest(library)), pingpong)

        in_turn(library, WAYS[:2], {"us one way": True, "GB/s of 8 at once": False}, both)
        if not library.is_open_mpi:
            continue

        def inside(way: str) -> str:
            begin = time.monotonic()
            passes(*start(way, library.launch(4)), within, str(rounds))
            return f"0 {(time.monotonic() - begin) * 1e6 / rounds}"

        print("\na communicator and its broadcast, 4 ranks")
        in_turn(library, WAYS[:2], {"us": True}, inside)


{"collectives": collectives, "messages": messages}[sys.argv[1]]()
