"""Programs that tests and measurements start: within limits, in process groups that end with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
#: Where cargo has put the command and the libraries.
BUILT = Path(os.environ["RINGBELL_BUILT"])
RINGBELL = BUILT / "ringbell"
#: Longest time of one program, in seconds.
LIMIT = 60


class Ended(NamedTuple):
    code: int
    out: str
    errors: str

    @property
    def text(self) -> str:
        return self.out + self.errors


class Running:
    """A program under way. What it leaves behind ends with this value's block, or with :meth:`end`."""

    def __init__(self, *command: str | Path, **environment: str) -> None:
        self.command = [str(word) for word in command]
        # Files, because a process that is left behind would hold a pipe open.
        self.printed = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        out, errors = self.printed
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
            env=os.environ | environment,
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def text(self) -> tuple[str, str]:
        for file in self.printed:
            file.seek(0)
        out, errors = (file.read() for file in self.printed)
        return out, errors

    def end(self, limit: float = LIMIT) -> Ended:
        """Waits for its end; a test whose program takes longer fails with what it has printed."""
        with self:
            try:
                return Ended(self.process.wait(limit), *self.text())
            except subprocess.TimeoutExpired:
                shown = " ".join(self.command)
                raise AssertionError(f"`{shown}` had not ended after {limit} s; it printed: {self.text()}") from None

    def until(self, ready: object, what: str) -> None:
        """Waits until ``ready()``; the program may not end before."""
        last = time.monotonic() + LIMIT
        while not ready():
            assert self.process.poll() is None, f"{what}: it has ended, and printed {self.text()}"
            assert time.monotonic() < last, f"{what}: not within {LIMIT} s; it printed {self.text()}"
            time.sleep(0.01)


def ended(*command: str | Path, **environment: str) -> Ended:
    return Running(*command, **environment).end()


def passes(*command: str | Path, limit: float = LIMIT, **environment: str) -> str:
    """What a program prints that ends well."""
    end = Running(*command, **environment).end(limit)
    assert end.code == 0, f"{command} ended with {end.code}: {end.text}"
    return end.out


def needs(program: str, package: str) -> str:
    """Where a program lies; a test without it is skipped."""
    found = shutil.which(program)
    if found is None:
        import pytest  # What only measures needs none.

        pytest.skip(f"no {program}. Debian: apt-get install {package}")
    return found


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code in this language on a page of docs/."""
    parts = (ROOT / "docs" / page).read_text().split(f"```{language}\n")[1:]
    return [part.split("\n```")[0] + "\n" for part in parts]


def code_of(*command: str | Path, limit: float, quiet: bool = False, **environment: str) -> int:
    """Runs a program whose output goes to ours, unless it is to be quiet; its exit code."""
    print("$", *command, flush=True)
    out = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out, env=os.environ | environment)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"`{command}` had not ended after {limit} s, and was stopped") from None


def at_once(most: int, items: Iterable[T], work: Callable[[T], object]) -> list:
    """Does the work for each item, so many at a time; all errors are told."""
    with ThreadPoolExecutor(most) as pool:
        futures = [pool.submit(work, item) for item in items]
    errors = [str(future.exception()) for future in futures if future.exception()]
    if errors:
        raise AssertionError("\n".join(errors))
    return [future.result() for future in futures]
