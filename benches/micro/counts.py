"""Instructions of the paths of small operations, compared with recorded counts.

Times on a shared machine vary by a third, instructions by a thousandth. `counts.rs` has the paths; each runs under
callgrind. A count above the recorded one by more than the tolerance fails; a lower one is for `--update` to record. Only
instructions count: the simulated caches and branches are no real machine's."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from processes import BUILT, ROOT, passes

RECORDED = "benches/micro/counts.json"
#: Tolerated growth of a count, in percent; the second when another compiler than the recorded one has built the program.
TOLERANCE, TOLERANCE_OTHER_COMPILER = 5.0, 15.0

#: Where the lists of files are that three paths cross, and what encloses each.
DOCUMENT = "docs/architecture.md"
LIST = re.compile(r"(<!-- files: (.*?) -->\n)(.*?)(<!-- end of files -->)", re.DOTALL)
#: Files by which the list of a path may differ from what is counted: builds of one source differ by a few.
FILES = 4
#: Parts of the names of functions that a step runs only with a reading of the clock: that depends on the machine's speed.
BY_TIME = ["Core::begin", "LocalTransport::step_sockets"]
#: Folders that belong to the benchmark.
DRIVERS = ("benches/", "nic-core/tests/", "gtlb/src/testing/")


class Counted(NamedTuple):
    instructions: float
    files: set[str]


def profile(program: Path, path: str) -> tuple[str, float]:
    """Runs a path under callgrind. Its profile, and the number of operations in that."""
    file = BUILT.parent / "counts" / (re.sub("[ ,]", "-", path) + ".callgrind")
    file.parent.mkdir(exist_ok=True)
    flags = ["--tool=callgrind", "--toggle-collect=counts::counted*", f"--callgrind-out-file={file}"]
    said = passes("valgrind", *flags, program, path, limit=600).strip()
    if not said.startswith(f"{path}: "):
        sys.exit(f"counts: {path} said {said!r} instead of a number")
    return file.read_text(), float(said[len(path) + 2 :])


def crossed(text: str, operations: float, root: Path = ROOT) -> set[str]:
    """The workspace's files to which at least one instruction of each operation belongs, by the file records of
    callgrind. The compiler decides to which file it attributes inlined instructions."""
    costs: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[str, set[str]] = defaultdict(set)
    names: dict[tuple[str, str], str] = {}
    file = function = ""
    is_call = False
    for line in text.splitlines():
        record = re.fullmatch(r"(fl|fi|fe|cfi|cfl|fn|cfn)=(\(\d+\))(?: (.*))?", line)
        if record:
            kind, number, name = record.groups()
            key = ("function" if kind.endswith("fn") else "file", number)
            # `(7)` alone is a name that was given before.
            named = names.setdefault(key, name or "")
            if kind in ("fl", "fi", "fe"):
                file = named
            elif kind == "fn":
                function = named
            elif kind == "cfn":
                calls[function].add(named)
        elif line.startswith("calls="):
            # The next line has the inclusive cost of the call.
            is_call = True
        elif line[:1] and line[0] in "0123456789+-*":
            if not is_call:
                costs[function, file] += float(line.split(" ")[1])
            is_call = False
    # Functions that run without those of BY_TIME.
    called = set().union(*calls.values())
    left = [f for f in {f for f, _ in costs} | set(calls) if f not in called]
    reached: set[str] = set()
    while left:
        function = left.pop()
        if function not in reached and not any(name in function for name in BY_TIME):
            reached.add(function)
            left.extend(calls.get(function, []))
    sums: dict[str, float] = defaultdict(float)
    for (function, file), cost in costs.items():
        if function in reached and file.startswith(f"{root}/"):
            sums[file[len(f"{root}/") :]] += cost
    return {file for file, cost in sums.items() if cost >= operations and not file.startswith(DRIVERS)}


def count(program: Path) -> dict[str, Counted]:
    counts = {}
    for path in passes(program, "--list").splitlines():
        text, operations = profile(program, path)
        total = re.search(r"^totals: *(\d+)", text, re.MULTILINE)
        if not total or total[1] == "0":
            sys.exit(f"counts: no instructions were counted of {path}")
        counts[path] = Counted(round(float(total[1]) / operations, 1), crossed(text, operations))
    return counts


def judge(recorded: dict[str, float], now: dict[str, Counted], tolerance: float) -> list[str]:
    """Prints the table; the counts that have become worse."""
    print(f"{'instructions of':<30} {'recorded':>10} {'now':>10}")
    worse = []
    for path, (n, _) in now.items():
        was = recorded.get(path)
        if was is None:
            print(f"{path:<30} {'-':>10} {n:>10.1f}")
            worse.append(f"{path} is not recorded")
            continue
        percent = (n / was - 1) * 100
        print(f"{path:<30} {was:>10.1f} {n:>10.1f} {percent:>+7.1f}%")
        if percent > tolerance:
            worse.append(f"{path} takes {percent:.1f} % more instructions")
    return worse + [f"{path} is recorded and no longer counted" for path in recorded.keys() - now.keys()]


def rendered(files: set[str]) -> str:
    """The number of files, and the files by folder."""
    folders = defaultdict(list)
    for file in sorted(files):
        folder, name = file.rsplit("/", 1)
        folders[folder].append(f"`{name}`")
    lines = [f"- `{folder}/`: {', '.join(names)}\n" for folder, names in sorted(folders.items())]
    return f"\n{len(files)} files:\n\n{''.join(lines)}\n"


def listed(text: str) -> set[str]:
    files = set()
    for line in text.splitlines():
        if line.startswith("- `"):
            folder, *names = re.findall("`(.*?)`", line)
            files |= {folder + name for name in names}
    return files


def compare_files(counts: dict[str, Counted]) -> list[str]:
    """What is wrong with the lists of the document; prints small differences."""
    wrong = []
    for _, path, text, _ in LIST.findall((ROOT / DOCUMENT).read_text()):
        if path not in counts:
            sys.exit(f"counts: {DOCUMENT} lists the files of `{path}`, which is no path of the counts")
        there, now = listed(text), counts[path].files
        wrong += [f"{path}: there is no {file}" for file in sorted(there) if not (ROOT / file).is_file()]
        found = [f"{path}: {file} is crossed and not listed" for file in sorted(now - there)]
        found += [f"{path}: {file} is listed and not crossed" for file in sorted(there - now)]
        if len(found) > FILES:
            wrong += found
        else:
            print("".join(f"{line}\n" for line in found), end="")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--files", metavar="PATH")
    options = parser.parse_args()
    if options.files:
        files = crossed(*profile(options.program, options.files))
        print("\n".join([*sorted(files), f"{len(files)} files"]))
        return
    recorded = json.loads((ROOT / RECORDED).read_text())
    compiler = passes(os.environ.get("RUSTC", "rustc"), "--version").strip()
    is_same = compiler == recorded["compiler"]
    if not is_same and not options.update:
        was = recorded["compiler"]
        print(
            f"counts were recorded with {was}, this is {compiler}: up to {TOLERANCE_OTHER_COMPILER} % more pass; record anew with --update"
        )
    counts = count(options.program)
    worse = judge(recorded["instructions"], counts, TOLERANCE if is_same else TOLERANCE_OTHER_COMPILER)
    if options.update:
        document = ROOT / DOCUMENT
        document.write_text(LIST.sub(lambda m: m[1] + rendered(counts[m[2]].files) + m[4], document.read_text()))
        instructions = {path: each.instructions for path, each in sorted(counts.items())}
        text = json.dumps({"compiler": compiler, "instructions": instructions}, indent=2)
        (ROOT / RECORDED).write_text(text + "\n")
        return
    if worse:
        more = "shorten the path, or say in the commit why it is worth it and record with `cargo xtask counts --update`"
        sys.exit(f"counts: {', '.join(worse)}; {more}")
    # Another compiler may inline another file's functions.
    wrong = compare_files(counts) if is_same else []
    if wrong:
        lines = "\n".join(wrong)
        sys.exit(
            f"counts: the lists of files in {DOCUMENT} are not those that were counted; `cargo xtask counts --update` writes them:\n{lines}"
        )


if __name__ == "__main__":
    main()
