"""Times and rates of NCCL's network plug-in between two processes of this host, over memory and over RDMA."""

from __future__ import annotations

import os
import subprocess
import tempfile

from processes import ROOT, passes
from test_nccl import PLUGIN, RDMA

#: Times that each takes its turn.
TURNS = "7"
#: Longest time of all turns, in seconds.
LIMIT = 1800

with tempfile.TemporaryDirectory() as folder:
    program = f"{folder}/measure"
    passes("cc", "-std=gnu11", "-O1", ROOT / "bindings/nccl/tests/measure.c", "-o", program, "-ldl", "-lpthread")
    for over, env in [("memory", {}), ("RDMA", RDMA)]:
        print(f"\nover {over}, medians of {TURNS} turns", flush=True)
        subprocess.run([program, PLUGIN, "12", TURNS], env=os.environ | env, check=True, timeout=LIMIT)
