"""Ranks as processes: a program's text is run once for each, by ``ringbell.run``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

#: What every rank's program begins with.
PREAMBLE = """
import os, signal, sys, time
import numpy as np
import ringbell
from ringbell import errors
# A shell starts programs in the background with the signal ignored, and their children inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

Ranks = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    def start(
        program: str, ranks: int, *, keep_going: bool = False, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(PREAMBLE + textwrap.dedent(program))
        options = ["--keep-going"] if keep_going else []
        command = [sys.executable, "-m", "ringbell.run", "-R", str(ranks), "--deadline", "50", *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start
