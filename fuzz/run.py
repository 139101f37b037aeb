"""Runs of the fuzz targets: guided by coverage where nightly and cargo-fuzz are, else blind.

Without them the targets are built on stable, and libFuzzer changes the committed seeds at random without feedback:
little, but each target runs. A crash leaves its input below `target/fuzz-run/`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from processes import BUILT, ROOT, at_once, code_of

WORK = BUILT.parent / "fuzz-run"
TARGETS = sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").iterdir())
#: libFuzzer's settings. One seed, so that two runs on one machine begin alike.
FLAGS = "-seed=1 -timeout=20 -rss_limit_mb=2048 -close_fd_mask=1 -print_final_stats=1".split()
#: Seconds for each target; of those without guidance in CI, where more of them find little more.
SECONDS, BLIND_SECONDS = 10, 5
#: Seconds by which a target may be late: libFuzzer's limit of one input, and its start.
OVERTIME = 120
#: Longest time of a build.
LIMIT = 3600
NIGHTLY = ["rustup", "run", "nightly", "cargo", "fuzz"]
INSTALL = "`cargo install cargo-fuzz --locked` and a nightly toolchain"


def is_guided() -> bool:
    # The variables of this cargo are of another toolchain.
    for name in "CARGO RUSTC RUSTUP_TOOLCHAIN RUSTFLAGS LD_LIBRARY_PATH".split():
        os.environ.pop(name, None)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return bool(shutil.which("rustup")) and subprocess.run([*NIGHTLY, "--version"], **quiet).returncode == 0


def build(guided: bool, level: dict[str, str]) -> Path:
    """Builds all targets once; the folder with their programs."""
    target = WORK / ("guided" if guided else "blind")
    if guided:
        code = code_of("env", "-C", ROOT, *NIGHTLY, "build", "--target-dir", target, limit=LIMIT, **level)
    else:
        flags = ["--release", "--locked", "--manifest-path", ROOT / "fuzz/Cargo.toml", "--target-dir", target]
        # As cargo-fuzz has them.
        level = {"CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true", **level}
        code = code_of("cargo", "build", *flags, limit=LIMIT, **level)
    # cargo-fuzz names the host's target, and cargo puts the programs below it.
    built = [path.parent for path in [*target.glob("release/wire"), *target.glob("*/release/wire")]]
    if code != 0 or not built:
        sys.exit(f"fuzz: the build has ended with {code}, and left {len(built)} programs `wire`")
    return built[0]


def one(name: str, programs: Path, options: argparse.Namespace) -> None:
    found = ROOT / "fuzz/corpus" / name if options.keep else WORK / "found" / name
    if not options.keep:
        shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "fuzz/seeds" / name
    assert any(seeds.glob("*")), f"{name}: no seed in {seeds}"
    log = WORK / f"{name}.log"
    where = [f"-max_total_time={options.seconds}", f"-artifact_prefix={WORK}/{name}-", found, seeds]
    with open(log, "w") as file:
        command = [programs / name, *FLAGS, *where]
        # It ends itself, unless it hangs where libFuzzer's own limits do not reach.
        limit = options.seconds + OVERTIME
        try:
            ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=file, timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} had not ended after {limit} s; its log is {log}") from None
    said = log.read_text(errors="replace")
    if ended.returncode != 0:
        tail = "\n".join(said.splitlines()[-40:])
        print(f"{name:<12} FAILED with {ended.returncode}{reason(said)}; {log} ends:\n{tail}", flush=True)
        raise AssertionError(f"{name} failed{reason(said)}")
    print(f"{name:<12} {summary(said)}", flush=True)


def reason(log: str) -> str:
    """What ended a target: a panic's place and text, else libFuzzer's line."""
    panic = re.search("^.*panicked at.*\n.*", log, re.MULTILINE)
    error = re.search("^.*ERROR: .*", log, re.MULTILINE)
    found = panic or error
    return ": " + found[0].replace("\n", " ") if found else ""


def summary(said: str) -> str:
    """The number of runs, and the covered part of the code."""
    done = re.findall(r"^Done (.*)", said, re.MULTILINE)
    assert done, "no closing line of libFuzzer"
    coverage = re.findall(r"cov: (\d+)", said)
    return f"{done[-1]}, {coverage[-1]} edges seen" if coverage else done[-1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="cargo xtask fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"by name [all]: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, help=f"for each target [{SECONDS}]")
    keep = "keep what a target has found beside its seeds in fuzz/corpus/, and begin with it the next time"
    parser.add_argument("--keep", action="store_true", help=keep)
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no fuzz target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    guided = is_guided()
    if not guided:
        print(f"without guidance: {INSTALL} give it")
    options.seconds = options.seconds or (SECONDS if guided or not options.step else BLIND_SECONDS)
    # Where targets run for seconds, the highest level of optimisation takes longer to compile than it saves.
    programs = build(guided, {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1"} if options.step else {})
    cores = len(os.sched_getaffinity(0))
    try:
        at_once(cores, options.targets or TARGETS, lambda name: one(name, programs, options))
    except AssertionError as why:
        sys.exit(f"fuzz: {why}; see {WORK}")
    # As in other test suites: something was missing.
    sys.exit(77 if options.step and not guided else 0)


if __name__ == "__main__":
    main()
