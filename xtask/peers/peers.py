"""All-reduce of Ringbell beside Open MPI and MPICH, on one machine in one run: over memory, over the network ports of
one host (`--network`), or between network namespaces on a bridge (`--hosts`).

Each peer is of PyPI, runs with the flags that make it fastest, and takes turns with the others. Each writes a report in
the schema of `ringbell perf --json`; `ringbell perf compare` prints the table and draws the curves."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import BUILT, RINGBELL, Running, passes

#: A sweep of one peer that takes longer hangs.
LIMIT = 180
HERE = Path(__file__).parent
#: The bridge's own address.
HUB = "10.60.0.254"
VERSIONS = {"openmpi": "Open MPI 5.0.11", "mpich": "MPICH 5.0.2"}


def size(text: str) -> int:
    """In bytes, of one element at least; K, M and G are powers of 1,024."""
    factor = 1024 ** (" KMG".index(text[-1].upper())) if not text[-1].isdigit() else 1
    value = int(text.rstrip("KMGkmg")) * factor
    if value < 4:
        raise argparse.ArgumentTypeError("an element has 4 bytes")
    return value


def number(least: int, most: int = 1 << 20) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return int(text)

    return read


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cargo xtask peers", description=__doc__)
    parser.add_argument(
        "-R", "--ranks", type=number(2, 64), default=2, metavar="N", help="ranks, all on this machine [2]"
    )
    parser.add_argument("-b", "--minbytes", type=size, default=size("1K"), metavar="SIZE", help="smallest size [1K]")
    parser.add_argument("-e", "--maxbytes", type=size, default=size("64M"), metavar="SIZE", help="largest size [64M]")
    parser.add_argument(
        "-f", "--stepfactor", type=number(2), default=4, metavar="F", help="factor between two sizes [4]"
    )
    parser.add_argument(
        "--turns",
        type=number(1),
        default=3,
        metavar="N",
        help="times that every peer takes its turn; medians over all count [3]",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--network",
        action="store_true",
        help="over the loopback instead of shared memory: Ringbell by RoCEv2 over plain UDP (`rdma`), by iWARP, and by TCP over its UDP port (`tcp`), peers over TCP with cubic",
    )
    where.add_argument(
        "--hosts",
        action="store_true",
        help="each rank in a network namespace of its own, joined by a bridge: Ringbell as `auto` has it, which is iWARP, and Open MPI over TCP. Needs root",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where the reports and the pictures go [results beside the peers]"
    )
    parser.add_argument("--peers", type=Path, default=BUILT.parent / "peers", help=argparse.SUPPRESS)
    parser.add_argument("--only-check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.minbytes > options.maxbytes:
        parser.error(f"-b {options.minbytes} is larger than -e {options.maxbytes}; give the smaller size to -b")
    if options.hosts and os.geteuid() != 0:
        parser.error(
            "network namespaces on a bridge need root here; run `sudo -E cargo xtask peers --hosts`, or leave --hosts away"
        )
    options.out = options.out or options.peers / "results"
    if options.only_check:
        raise SystemExit
    return options


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[list[str]]]:
    """Hosts: network namespaces joined by a bridge. The words that enter that of the bridge, and of each rank."""

    def net(process: int | str) -> str:
        return os.readlink(f"/proc/{process}/ns/net")

    with contextlib.ExitStack() as all_of_them:
        holders = [
            all_of_them.enter_context(Running("unshare", "-n", "sleep", "infinity")).process.pid
            for _ in range(count + 1)
        ]
        for _ in range(500):
            if all(net(pid) != net("self") for pid in holders):
                break
            subprocess.run(["sleep", "0.01"], check=True)
        else:
            raise SystemExit("`unshare -n` makes no network namespace here")
        enter = [["nsenter", "-t", str(pid), "-n", "--"] for pid in holders]

        def ip(host: int, words: str) -> None:
            passes(*enter[host], "ip", *words.split())

        for words in ["link set lo up", "link add hub type bridge", f"addr add {HUB}/24 dev hub", "link set hub up"]:
            ip(0, words)
        # As the preloaded library has it for the peers: the host's default may be bbr.
        cubic = ["sh", "-c", "echo cubic >/proc/sys/net/ipv4/tcp_congestion_control"]
        if any(subprocess.run([*of, *cubic], stderr=subprocess.DEVNULL, check=False).returncode for of in enter):
            default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
            print(
                f"Ringbell has this host's {default} and the peers cubic: add cubic to the sysctl "
                "net.ipv4.tcp_allowed_congestion_control, and namespaces may have it"
            )
        for n in range(1, count + 1):
            ip(0, f"link add port{n} type veth peer name cable netns {holders[n]}")
            ip(0, f"link set port{n} master hub up")
            for words in [f"addr add 10.60.0.{n}/24 dev cable", "link set cable up", "link set lo up"]:
                ip(n, words)
        yield enter


class Peers:
    def __init__(self, options: argparse.Namespace, hosts: list[list[str]]) -> None:
        self.options, self.hosts, self.folder = options, hosts, options.peers
        self.network = options.network or options.hosts
        self.crowded = options.ranks > len(os.sched_getaffinity(0))
        # The host's congestion control may be bbr, which throttles loopback to a third.
        self.cubic = self.folder / "cubic.so"
        passes("gcc", "-O2", "-shared", "-fPIC", "-o", self.cubic, HERE / "cubic.c", "-ldl")

    def ringbell(self, flags: str) -> dict:
        """Ringbell's own report of one turn."""
        report = self.folder / "turn.json"
        o = self.options
        words = [
            "perf",
            "all-reduce",
            "-b",
            str(o.minbytes),
            "-e",
            str(o.maxbytes),
            "-f",
            str(o.stepfactor),
            *flags.split(),
        ]
        if not self.hosts:
            passes(RINGBELL, *words, "-R", str(o.ranks), "--json", report, limit=LIMIT)
        else:
            # They meet at the first one's address and learn all else there.
            job = {
                "PMI_SIZE": str(o.ranks),
                "RINGBELL_BOOTSTRAP": "10.60.0.1:18600",
                "RINGBELL_SECRET": secrets.token_hex(16),
            }
            json_of = {0: ["--json", str(report)]}
            ranks = [
                Running(*enter, RINGBELL, *words, *json_of.get(n, []), PMI_RANK=str(n), **job)
                for n, enter in enumerate(self.hosts[1:])
            ]
            for end in [rank.end(LIMIT) for rank in ranks]:
                assert end.code == 0, end.text
        text = report.read_text()
        report.unlink()
        return json.loads(text)

    def sweep(self, peer: str, command: list[str], **environment: str) -> dict:
        """One sweep of a peer: its rows as a report."""
        program = self.folder / f"allreduce-{peer}"
        if not program.exists():
            passes(self.folder / peer / "bin/mpicc", "-O2", "-o", program, HERE / "allreduce.c")
        o = self.options
        words = [str(w) for w in [program, o.minbytes, o.maxbytes, o.stepfactor, 11]]
        text = passes(*command, *words, limit=LIMIT, **environment)
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert rows, f"{peer} printed no row; its output was:\n{text}"
        return {"rows": rows}

    # The flags of both peers are those of their manuals; the reason is beside each.

    def open_mpi(self) -> dict:
        before, after = [], []
        if self.hosts:
            # The launcher runs beside the bridge. Its ranks are told their number there, go to their namespaces by a
            # script, and reach it at the bridge's address, not on a loopback.
            script = self.folder / "enter.sh"
            ranks = "\n".join(f'{n}) exec {" ".join(enter)} "$@" ;;' for n, enter in enumerate(self.hosts[1:]))
            script.write_text(f"case $OMPI_COMM_WORLD_RANK in\n{ranks}\nesac\n")
            before = [*self.hosts[0], "env", "PMIX_MCA_ptl_base_if_include=hub"]
            after = [
                "--pmixmca",
                "ptl_base_if_include",
                "hub",
                "--mca",
                "btl_tcp_if_include",
                "cable",
                "sh",
                str(script),
            ]
        preload = ["-x", f"LD_PRELOAD={self.cubic}"] if self.network else []
        # Spinning ranks would starve those that have work.
        yields = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if self.crowded else []
        path = "self,tcp" if self.network else "self,sm"
        launcher = [
            str(self.folder / "openmpi/bin/mpirun"),
            "-n",
            str(self.options.ranks),
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            path,
        ]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return self.sweep("openmpi", [*before, *launcher, *preload, *yields, *after], **root)

    def mpich(self) -> dict:
        launcher = [str(self.folder / "mpich/bin/mpiexec"), "-n", str(self.options.ranks)]
        if not self.network:
            return self.sweep("mpich", launcher)
        over = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}
        return self.sweep("mpich", [*launcher, "-env", "LD_PRELOAD", str(self.cubic)], **over)

    def sides(self) -> Iterator[tuple[str, Callable[[], dict], dict]]:
        """What takes turns: the name of its report, its turn, and what the report says of it, of another than Ringbell.
        The first is compared with all others."""
        # Ranks of several hosts take the port by themselves, and the transport that `auto` has for them.
        own = {"ringbell": ""}
        if self.options.network:
            own = {
                "ringbell-rdma": "--port roce --transport rdma",
                "ringbell-iwarp": "--port roce --transport iwarp",
                "ringbell-tcp": "--port udp --transport tcp",
            }
        for name, flags in own.items():
            yield name, lambda flags=flags: self.ringbell(flags), {}
        none = {"gpu": "none", "port": "none", "progress": "none"}
        shared, over = ("tcp", "tcp{}, cubic") if self.network else ("shm", "shared memory")
        yield f"open-mpi-{shared}", self.open_mpi, none | {"nic": VERSIONS["openmpi"], "transport": over.format("")}
        if self.crowded:
            print("MPICH is left out: it does not yield, so more ranks than cores stand still")
        elif not self.hosts:
            yield f"mpich-{shared}", self.mpich, none | {"nic": VERSIONS["mpich"], "transport": over.format(" (ofi)")}


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    with namespaces(options.ranks) if options.hosts else contextlib.nullcontext([]) as hosts:
        sides = list(Peers(options, hosts).sides())
        reports: dict[str, dict] = {}
        for turn in range(1, options.turns + 1):
            print(f"\n==> turn {turn} of {options.turns}", flush=True)
            for name, take, _ in sides:
                report = take()
                report["rows"] = reports.get(name, {"rows": []})["rows"] + report["rows"]
                reports[name] = report
    own = reports[sides[0][0]]["meta"]
    files = []
    for name, _, about in sides:
        if about:
            reports[name]["meta"] = own | about
        files.append(options.out / f"{name}.json")
        files[-1].write_text(json.dumps(reports[name], indent=2) + "\n")
    print()
    for svg, extra in [("busbw.svg", []), ("time.svg", ["--latency"])]:
        table = passes(RINGBELL, "perf", "compare", *files, "--svg", options.out / svg, *extra)
        print(table if not extra else "", end="")
    print(f"reports and pictures are in {options.out}")


main()
