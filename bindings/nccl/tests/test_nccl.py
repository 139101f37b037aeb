"""NCCL's network plug-in: C drivers that call its two interfaces as NCCL does, between processes; NCCL
itself as far as it goes without a GPU; and the program of docs/nccl.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from processes import BUILT, Ended, Running, blocks, needs, passes

PLUGIN = BUILT / "libnccl_net_ringbell.so"
#: Over the network, as between hosts.
RDMA = {"RINGBELL_NCCL_ADDR": "127.0.0.1", "RINGBELL_TRANSPORT": "rdma"}
#: A killed peer is given up within so many seconds.
KILLED = {"DRIVER_KILL_LIMIT": "20"}

#: Which version of the interface, and what the driver does. Over RDMA a process does not talk to itself.
SCENARIOS = [
    *[(v, s, {}) for v in ["12", "11"] for s in "loopback random threads overlaps close large killed wrong".split()],
    *[("10", s, {}) for s in ["loopback", "random"]],
    *[("12", s, RDMA | KILLED) for s in "random threads overlaps close large killed".split()],
]
#: The same of the driver of collectives, with numbers of ranks.
FEWER = RDMA | KILLED | {"DRIVER_CALLS": "40"}
COLLECTIVES = [
    *[("12", s, n, {}) for s, n in [("support", 3), ("random", 2), ("random", 3), ("random", 5), ("threads", 3)]],
    *[("12", s, n, {}) for s, n in [("overlaps", 4), ("close", 3), ("killed", 4), ("missing", 3), ("mismatch", 3)]],
    *[("12", s, 2, {}) for s in ["wrong", "many"]],
    *[("11", "random", 3, {}), ("11", "wrong", 2, {}), ("10", "random", 2, {})],
    *[("12", s, n, FEWER) for s, n in [("random", 3), ("threads", 2), ("overlaps", 2), ("close", 3), ("killed", 3)]],
]

Compile = Callable[[str], Path]

# Variables that a user may have set.
for name in ["PORT", "TRANSPORT", "NCCL_ADDR", "NCCL_SPEED", "NCCL_TIMEOUT", "NCCL_PEER_TIMEOUT"]:
    os.environ.pop(f"RINGBELL_{name}", None)


@pytest.fixture(scope="session")
def compile(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a program of this folder."""
    cc, folder = needs("cc", "gcc"), tmp_path_factory.mktemp("programs")

    def one(name: str) -> Path:
        source, program = Path(__file__).with_name(f"{name}.c"), folder / name
        if not program.exists():
            flags = "-std=gnu11 -O1 -g -Wall -Wextra -Werror".split()
            passes(cc, *flags, source, "-o", program, "-ldl", "-lpthread")
        return program

    return one


def start(
    compile: Compile, version: str, scenario: str, ranks: int, seed: int, env: dict[str, str]
) -> tuple[Running, str]:
    """A driver, of collectives with ranks, and the line that it must print."""
    if ranks == 0:
        line = f"{scenario} v{version}: as it should"
        return Running(compile("driver"), PLUGIN, version, scenario, str(seed), **env), line
    line = f"{scenario} of {ranks} ranks, v{version}: as it should"
    return Running(compile("collnet"), PLUGIN, version, scenario, str(ranks), str(seed), **env), line


def says(end: Ended, *lines: str) -> None:
    missing = [line for line in lines if line not in end.out]
    assert end.code == 0 and not missing, f"ended with {end.code}, and no line {missing} in {end.text}"


@pytest.fixture(scope="session", autouse=True)
def stopped(compile: Compile) -> Iterator[list[tuple[Running, str]]]:
    """A peer of RDMA that says nothing is given up after 30 s: beside the other tests."""
    running = [start(compile, "12", "stopped", ranks, 1, FEWER) for ranks in [0, 3]]
    yield running
    for process, _ in running:
        with process:
            pass


@pytest.mark.parametrize(("version", "scenario", "env"), SCENARIOS)
def test_a_driver(compile: Compile, version: str, scenario: str, env: dict[str, str]) -> None:
    driver, line = start(compile, version, scenario, 0, int(version) + len(env), env)
    says(driver.end(), line)


@pytest.mark.parametrize(("version", "scenario", "ranks", "env"), COLLECTIVES)
def test_collectives(compile: Compile, version: str, scenario: str, ranks: int, env: dict[str, str]) -> None:
    driver, line = start(compile, version, scenario, ranks, ranks + len(env), env)
    says(driver.end(), line)


def test_the_documented_program(compile: Compile, tmp_path: Path) -> None:
    """By the commands of the page."""
    (tmp_path / "devices.c").write_text(blocks("nccl.md", "c")[0])
    path = f"{BUILT}:{os.environ['PATH']}"
    commands = f"cd {tmp_path}\n" + blocks("nccl.md", "sh")[0]
    says(Running("sh", "-e", "-c", commands, PATH=path).end(), "ringbell0, 100000 Mb/s")


@pytest.mark.parametrize(("ranks", "env"), [(2, {}), (4, {}), (3, RDMA)])
def test_nccl_loads_both_tables(compile: Compile, ranks: int, env: dict[str, str]) -> None:
    """It gathers over one, and the other reduces."""
    library = os.environ.get("RINGBELL_NCCL")
    if library is None:
        pytest.skip("no NCCL to load the plug-in")
    # NCCL's bootstrap uses the network that was chosen, and its own monitoring is left out.
    settings = {
        "NCCL_NET_PLUGIN": str(PLUGIN),
        "NCCL_DEBUG": "INFO",
        "NCCL_OOB_NET_ENABLE": "1",
        "NCCL_RAS_ENABLE": "0",
    }
    says(
        Running(compile("nccl"), library, str(ranks), **settings, **env).end(),
        "NET/Plugin: Loaded net plugin Ringbell (v12)",
        "NET/Plugin: Loaded collnet plugin Ringbell (v12)",
        "Assigned NET plugin Ringbell to comm",
        *[f"round {n}: {ranks} ranks gathered over Ringbell, and reduced by Ringbell" for n in [0, 1]],
    )


def test_a_stopped_peer_is_given_up(stopped: list[tuple[Running, str]]) -> None:
    for driver, line in stopped:
        says(driver.end(), line)
