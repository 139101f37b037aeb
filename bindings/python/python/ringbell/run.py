"""Starts the ranks of a job on this host: ``ringbell-run -R 4 program.py``, or ``python -m ringbell.run -R 4 program.py``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from ringbell._ringbell import Bootstrap

#: Seconds for ranks to end after a signal.
_GRACE = 5.0
#: Seconds between two checks of the ranks.
_LOOK = 0.01


def run(argv: Sequence[str], ranks: int, *, keep_going: bool = False, deadline: float | None = None) -> int:
    """Runs a program as so many ranks on this host, and returns the exit code of the first that failed, else 0.

    A rank that fails ends the others, unless ``keep_going`` is set: for programs that shrink their communicators. After ``deadline`` seconds all ranks are
    ended, and the result is 1.
    """
    server = Bootstrap(ranks)
    running: dict[int, subprocess.Popen[bytes]] = {}
    first = 0
    start = time.monotonic()
    ending: float | None = None
    try:
        for rank in range(ranks):
            place = {"RINGBELL_RANK": rank, "RINGBELL_SIZE": ranks, "RINGBELL_LOCAL_RANK": rank, "RINGBELL_ID": server.id}
            environment = os.environ | {name: str(value) for name, value in place.items()}
            running[rank] = subprocess.Popen(list(argv), env=environment)
        while running:
            for rank, process in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[rank]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                server.rank_ended(rank, f"rank {rank} {how}")
                if code == 0 or ending is not None:
                    continue
                print(f"ringbell: rank {rank} {how}", file=sys.stderr, flush=True)
                first = first or (128 - code if code < 0 else code)
                if not keep_going:
                    ending = _end(running, signal.SIGTERM)
            now = time.monotonic()
            if deadline is not None and ending is None and now - start > deadline:
                print(f"ringbell: rank(s) {sorted(running)} had not ended after {deadline} s", file=sys.stderr, flush=True)
                first = first or 1
                ending = _end(running, signal.SIGTERM)
            if ending is not None and now - ending > _GRACE:
                _end(running, signal.SIGKILL)
            time.sleep(_LOOK)
    except KeyboardInterrupt:
        first = 128 + signal.SIGINT
    finally:
        _end(running, signal.SIGTERM)
        limit = time.monotonic() + _GRACE
        for process in running.values():
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Killed ranks leave their sockets in it.
        shutil.rmtree(server.directory, ignore_errors=True)
    return first


def _end(running: dict[int, subprocess.Popen[bytes]], what: signal.Signals) -> float:
    for process in running.values():
        process.send_signal(what)
    return time.monotonic()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ringbell-run", description="Starts the ranks of a job on this host")
    parser.add_argument("-R", "--ranks", type=int, required=True, help="ranks to start")
    parser.add_argument("--deadline", type=float, help="end all ranks after so many seconds")
    parser.add_argument("--keep-going", action="store_true", help="let the others go on when a rank fails")
    parser.add_argument("program", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    args = parser.parse_args()
    if not 1 <= args.ranks <= 256:
        parser.error("--ranks: 1 to 256")
    argv = [sys.executable, args.program, *args.arguments]
    return run(argv, args.ranks, keep_going=args.keep_going, deadline=args.deadline)


if __name__ == "__main__":
    sys.exit(main())
