"""Compilation of the device code by nvcc, for real GPUs, and what each kernel takes of one by `ptxas -v`.

Any warning is an error. A stack or a spill is local memory: memory of the GPU, hundreds of cycles away, in place of a
register. Kernels that wait beside others or move every byte must have none; a table shows the rest."""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from processes import BUILT, ROOT, at_once, blocks, passes

#: Of the SDK's kernels: A100, A10, L4 and RTX 40, H100 and H200, B200.
ARCHITECTURES = [80, 86, 89, 90, 100]
#: Of examples and the tutorial: they only show that the headers work.
EXAMPLE_ARCHITECTURES = [80, 90]
#: Compilers at a time, and the longest time of one.
AT_ONCE, LIMIT = 2, 900

#: Kernels on the path of every byte, or of every measured operation: no stack, no spills.
HOT = """
rb_nop rb_send_all rb_recv_all rb_recv_some rb_stream_send rb_stream_recv rb_slots_send rb_slots_recv rb_perf_slots_send
rb_perf_slots_recv rb_perf_nop rb_perf_pingpong rb_perf_bw_send rb_collective rb_perf_collective rb_local_reduce_f16
rb_hll_count rb_hll_receive
""".split()

#: Programs of NVSHMEM and of NCCL's device API: the same files compile with our headers, and unchanged with NVIDIA's own,
#: of whose libraries nothing is linked or run.
SHMEM = ["examples/23_nvshmem", "cli/tests/shmem"]

INCLUDE = ROOT / "cuda-kernels/include"
OUT = BUILT.parent / "kernels"


@dataclass
class Use:
    """Of one kernel on one architecture, with the functions that it calls."""

    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0


Resources = dict[str, dict[str, Use]]


def number(line: str, unit: str) -> int:
    found = re.search(rf"(\d+) {unit}", line)
    return int(found[1]) if found else 0


def read(text: str) -> Resources:
    """ptxas's output for one file."""
    found: Resources = defaultdict(lambda: defaultdict(Use))
    use = Use()
    for line in text.splitlines():
        entry = re.search("Compiling entry function '(.*?)' for '(.*?)'", line)
        if entry:
            use = found[entry[1]][entry[2]]
        elif "bytes stack frame" in line:
            # Of the kernel or of a function that it calls.
            use.stack = max(use.stack, number(line, "bytes stack frame"))
            use.spills += number(line, "bytes spill stores") + number(line, "bytes spill loads")
        elif "Used " in line and "registers" in line:
            use.registers, use.shared = number(line, "registers"), number(line, "bytes smem")
            use.stack = max(use.stack, number(line, "bytes cumulative stack"))
    return found


def table(resources: Resources) -> str:
    """A row for each kernel: registers on each architecture, and the most of the rest."""
    names = {name for uses in resources.values() for name in uses}
    # sm_100 after sm_90.
    names = sorted(names, key=lambda name: (len(name), name))
    text = f"| kernel | registers: {' | '.join(names)} | shared bytes | stack | spills |\n|---|{'---|' * (len(names) + 3)}\n"
    for kernel, uses in sorted(resources.items()):
        registers = " | ".join(str(uses[name].registers) if name in uses else "-" for name in names)
        most = [max(getattr(use, what) for use in uses.values()) for what in ("shared", "stack", "spills")]
        text += f"| {kernel}{' *' if kernel in HOT else ''} | {registers} | {' | '.join(map(str, most))} |\n"
    return text


def faults(resources: Resources) -> list[str]:
    """Of the hot kernels."""
    out = [f"`{n}` is called hot in cuda-kernels/compile.py, but no source has it" for n in HOT if n not in resources]
    for name in filter(resources.__contains__, HOT):
        for arch, use in resources[name].items():
            if use.registers == 0:
                out.append(f"`{name}`: ptxas said nothing of its registers on {arch}")
            if use.stack or use.spills:
                out.append(
                    f"`{name}` uses local memory on {arch}: {use.stack} bytes of stack, {use.spills} of spills; keep arrays "
                    "in shared memory or index them by constants, and give blocks fewer lanes (__launch_bounds__)"
                )
    return out


def test_output_and_faults() -> None:
    """Of ptxas, also for functions that a kernel calls. Runs each time: no GPU shows whether a fault is missed."""

    def said(kernel: str, arch: str, stack: int = 0, spills: int = 0) -> str:
        return (
            f"ptxas info    : Compiling entry function '{kernel}' for '{arch}'\n"
            f"ptxas info    : Function properties for {kernel}\n"
            "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Function properties for _Z6calleev\n"
            f"    {stack} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 104 registers, used 1 barriers, 64 bytes smem, 464 bytes cmem[0]\n"
        )

    both = read(said("a", "sm_90") + said("a", "sm_100", stack=8) + said("b", "sm_90", spills=12))
    assert both["a"]["sm_90"] == Use(104, 64) and both["b"]["sm_90"].spills == 12, both
    assert "| a | 104 | 104 | 64 | 8 | 0 |" in table(both), table(both)
    good = "".join(said(name, "sm_80") for name in HOT)
    assert faults(read(good + said("rb_echo_server", "sm_80", stack=64))) == []
    assert len(faults(read(good + said(HOT[0], "sm_80", stack=16) + said(HOT[1], "sm_90", spills=4)))) == 2
    assert len(faults({})) == len(HOT)


def compile_one(nvcc: Path, source: Path, ours: bool) -> Resources:
    flags = "--fatbin -std=c++17 -Werror all-warnings -Xptxas -v -Xfatbin=-compress-all".split()
    for arch in ARCHITECTURES if ours else EXAMPLE_ARCHITECTURES:
        # No source asks for what 8.6 and 8.9 have beyond 8.0: their PTX is compiled once.
        flags.append(f"-gencode=arch=compute_{80 if arch < 90 else arch},code=sm_{arch}")
    out = OUT / f"{source.stem}.fatbin"
    said = passes("sh", "-c", 'exec "$@" 2>&1', "sh", nvcc, *flags, "-I", INCLUDE, source, "-o", out, limit=LIMIT)
    return read(said) if ours else {}


def sources() -> list[tuple[Path, bool]]:
    """The SDK's kernels, those of the examples that need no headers but `ringbell.cuh`, the kernels of the tutorial, and
    the bare header of the contract; and whether they are in the report. The largest first, so that it is not left alone
    at the end."""
    ours = (ROOT / "cuda-kernels/kernels").glob("*.cu")
    examples = [path for path in (ROOT / "examples").glob("*/*.cu") if str(path.parent.relative_to(ROOT)) not in SHMEM]
    texts = {f"tutorial_{i}.cu": text for i, text in enumerate(blocks("tutorial.md", "cuda"))}
    kernel = "__global__ void abi(const char **text) { *text = rb_status_text(RB_STATUS_OK); }"
    texts["abi_header.cu"] = f'#include "ringbell_abi.h"\n{kernel}\n'
    for name, text in texts.items():
        (OUT / name).write_text(text)
    first = sorted(ours, key=lambda path: (path.name != "reduce.cu", path))
    return [
        *((path, True) for path in first),
        *((path, False) for path in [*sorted(examples), *(OUT / n for n in texts)]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nvcc", type=Path)
    parser.add_argument("theirs", nargs="*", help="folders of NVIDIA's headers of NVSHMEM and NCCL")
    options = parser.parse_args()
    test_output_and_faults()
    OUT.mkdir(exist_ok=True)
    files = sources()
    resources: Resources = {}
    for found in at_once(AT_ONCE, files, lambda file: compile_one(options.nvcc, *file)):
        resources |= found
    (OUT / "resources.md").write_text(table(resources))
    names = ", ".join(f"sm_{arch}" for arch in ARCHITECTURES)
    print(
        f"{table(resources)}\n* hot: no stack and no spills allowed\n{len(files)} files; the SDK's kernels for {names}"
    )
    wrong = faults(resources)
    if wrong:
        sys.exit("\n".join(wrong))
    programs = [path for folder in SHMEM for path in sorted((ROOT / folder).glob("*.cu"))]
    headers = {"our headers": [INCLUDE / "shmem", INCLUDE]}
    if options.theirs:
        headers["NVIDIA's headers"] = options.theirs
    for whose, folders in headers.items():
        flags = "--ptx -rdc=true -arch=sm_90 -std=c++17 -Werror all-warnings".split()
        flags += [word for folder in folders for word in ["-I", folder]]
        at_once(AT_ONCE, programs, lambda p: passes(options.nvcc, *flags, p, "-o", OUT / f"{p.stem}.ptx", limit=LIMIT))
        print(f"{len(programs)} programs of NVSHMEM and GIN compiled with {whose}")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as why:
        sys.exit(f"compile: {why}")
