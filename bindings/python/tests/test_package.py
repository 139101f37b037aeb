"""The package as a whole: its types, its documentation, the launchers' environments."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Ranks

import ringbell

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(__file__).resolve().parents[1] / "python"


def test_the_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    allowed = tmp_path / "allowed"
    # stubtest takes aliases of Literal for a union of types; PyTorch is not installed.
    allowed.write_text("ringbell.communicator.Op\nringbell.communicator.Algo\nringbell.communicator.Wire\nringbell.torch\nringbell.reconfigure\nringbell._flight\nringbell._work\nringbell._world\n")
    run = [sys.executable, "-m", "mypy.stubtest", "ringbell", "--ignore-disjoint-bases", "--allowlist", str(allowed)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(PACKAGE)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    run = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "ringbell"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, cwd=PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


def programs() -> list[str]:
    text = (ROOT / "docs/python.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_programs_of_the_page_run_as_written(tmp_path: Path) -> None:
    found = programs()
    assert len(found) >= 2
    for i, program in enumerate(found):
        file = tmp_path / f"program{i}.py"
        file.write_text(program)
        run = [sys.executable, "-m", "ringbell.run", "-R", "2", "--deadline", "50", str(file)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, program + done.stdout + done.stderr
        if i == 0:
            assert len(program.strip().splitlines()) <= 10
            assert "2 ranks, each element is 3" in done.stdout


def test_every_public_call_has_a_text() -> None:
    for name in dir(ringbell.Communicator):
        if not name.startswith("_") and name not in ("rank", "size"):
            assert getattr(ringbell.Communicator, name).__doc__, name


@pytest.mark.parametrize("launcher", ["torchrun", "Open MPI"])
def test_environments_of_other_launchers(tmp_path: Path, launcher: str) -> None:
    program = "import numpy as np, ringbell\njob = ringbell.Job.from_env()\nx = np.array([job.rank + 1.0])\ncomm = ringbell.init(job=job)\ncomm.all_reduce(x)\nassert x[0] == 3\nprint(job.launcher, job.local_rank)\ncomm.finish()\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bootstrap = {"RINGBELL_BOOTSTRAP": f"127.0.0.1:{port}"}
    running = []
    for rank in range(2):
        if launcher == "torchrun":
            own = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        else:
            own = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "PMIX_NAMESPACE": f"test-{port}@1"}
        environment = os.environ | bootstrap | {k: str(v) for k, v in own.items()}
        running.append(subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for rank, process in enumerate(running):
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, f"{launcher} {rank}\n"), out


def test_a_failing_rank_ends_the_others(ranks: Ranks) -> None:
    done = ranks("if os.environ['RINGBELL_RANK'] == '1':\n    sys.exit(7)\ntime.sleep(40)\n", 3, code=7)
    assert "rank 1 ended with exit code 7" in done.stderr
