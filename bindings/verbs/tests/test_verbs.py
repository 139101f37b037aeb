"""Debian's programs of libibverbs over ``ringbell verbs``: ibverbs-utils, perftest, the suite of pyverbs,
and the layers above verbs: UCX, Open MPI over it, libfabric."""

from __future__ import annotations

import gzip
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import RINGBELL, ROOT, Running, needs, passes

HOST = "127.0.0.1"
#: Where Debian's python3-pyverbs has rdma-core's suite.
SUITE = Path("/usr/share/doc/rdma-core/tests")

#: Programs that run as a pair, with arguments for both ends. Lost datagrams stay lost, and a program
#: waits for all: of them no more than the receives that it posts first.
PAIRS = """
ibv_rc_pingpong -g 0
ibv_rc_pingpong -g 0 -e -s 65536 -n 200
ibv_srq_pingpong -g 0
ibv_ud_pingpong -g 0
ibv_ud_pingpong -g 0 -e -s 1000 -n 200
ib_write_bw -F -n 5000
ib_write_bw -F -n 1000 -b -q 8
ib_read_bw -F -n 5000
ib_send_bw -F -n 5000
ib_send_bw -F -n 1000 -s 8 -I 8
ib_send_bw -c UD -F -n 400 -s 1024
ib_atomic_bw -F -n 1000
ib_write_lat -F -n 1000
ib_read_lat -F -n 1000
ib_send_lat -F -n 1000
ib_send_lat -c UD -F -n 1000
ib_atomic_lat -F -n 1000
"""
PAIRS_OF_IPV6 = """
ibv_rc_pingpong -g 0
ibv_ud_pingpong -g 0 -e -s 1000 -n 200
ib_write_bw -F -n 5000
ib_read_lat -F -n 1000
ib_send_lat -F -n 1000
"""

#: UCX's two kinds of connections over verbs, as it names them; with no other, nothing of a program
#: passes by us.
UCX = ["rc_v", "ud_v"]
#: Of ``ucx_perftest``: test, bytes, iterations.
UCX_CASES = [
    "tag_lat 8 1000",
    "tag_bw 4096 1000",
    "ucp_am_bw 65536 100",
    "ucp_put_bw 8 1000",
    "ucp_get 4096 200",
    "ucp_fadd 8 200",
]


@pytest.fixture(params=[HOST, "::1"])
def addr(request: pytest.FixtureRequest) -> str:
    """The address of the NICs."""
    if ":" in request.param:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    return request.param


def over(addr: str, *words: str, faults: tuple[str, ...] = (), **environment: str) -> Running:
    """A program over ``ringbell verbs``."""
    return Running(RINGBELL, "verbs", "--addr", addr, *faults, "--", *words, **environment)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return server.getsockname()[1]


def listens(port: int) -> bool:
    """Whether a socket of either family does."""
    rows = [
        line.split()[1:4] for family in ["tcp", "tcp6"] for line in Path(f"/proc/net/{family}").read_text().splitlines()
    ]
    return any(local.endswith(f":{port:04X}") and state == "0A" for local, _, state in rows)


def server_of(start: Callable[[int], Running]) -> tuple[Running, int]:
    """A server that listens, and its port."""
    port = free_port()
    server = start(port)
    server.until(lambda: listens(port), "a server that listens")
    return server, port


def both(server: Running, client: Running) -> str:
    """Waits for two programs that must end well; what the client has printed."""
    with server:
        end = client.end()
        assert end.code == 0, f"the client: {end.text}"
        other = server.end()
        assert other.code == 0, f"the server: {other.text}"
    return end.text


def figures(text: str) -> None:
    """Prints the last row of figures that a program has printed: it begins with a number, or has a time."""
    rows = [line for line in text.splitlines() if "usec/iter" in line or re.match(r"\s*\d", line)]
    assert rows, f"no figure in: {text}"
    print(*rows[-1].split())


def pair(addr: str, line: str) -> None:
    program, *words = line.split()
    needs(program, "perftest ibverbs-utils")
    server, port = server_of(lambda port: over(addr, program, *words, "-p", str(port)))
    figures(both(server, over(addr, program, *words, "-p", str(port), HOST)))


def test_devinfo(addr: str) -> None:
    end = over(addr, needs("ibv_devinfo", "ibverbs-utils"), "-v").end()
    assert end.code == 0 and "ringbell0" in end.out and "PORT_ACTIVE" in end.out, end.text
    # The GID of IPv4 names it as a mapped one.
    gid = next(line for line in end.out.splitlines() if "GID[" in line)
    assert (":ffff:" in gid) == (addr == HOST), gid


@pytest.mark.parametrize("line", PAIRS.strip().splitlines())
def test_pair(line: str) -> None:
    pair(HOST, line)


@pytest.mark.parametrize("line", PAIRS_OF_IPV6.strip().splitlines())
@pytest.mark.parametrize("addr", ["::1"], indirect=True)
def test_pair_over_ipv6(addr: str, line: str) -> None:
    pair(addr, line)


def test_one_end_is_killed_and_the_other_gives_it_up() -> None:
    # Its writes are always outstanding: a program that only waits for messages would wait on, as with any card.
    words = [needs("ib_write_bw", "perftest"), "-F", "-D", "30", "-p"]
    server, port = server_of(lambda port: over(HOST, *words, str(port)))
    with server, over(HOST, *words, str(port), HOST) as client:
        time.sleep(1.5)
        server.process.kill()
        start = time.monotonic()
        end = client.end(40)
    # IBV_WC_RETRY_EXC_ERR.
    assert end.code != 0 and "Failed status 12" in end.text, end.text
    print(f"after {time.monotonic() - start:.1f} s")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("alloc_pd", "Couldn't allocate PD"),
        ("reg_mr", "Couldn't register MR"),
        ("create_cq", "Couldn't create CQ"),
        ("create_qp", "Couldn't create QP"),
        ("modify_qp", "Failed to modify QP to INIT"),
        # An unknown name.
        ("create_qc", "known are open_device"),
    ],
)
def test_a_call_fails_as_asked(call: str, expected: str) -> None:
    program = needs("ibv_rc_pingpong", "ibverbs-utils")
    end = over(HOST, program, "-g", "0", faults=("--fail", f"{call}@1")).end()
    assert end.code != 0 and expected in end.text, end.text


@pytest.mark.parametrize(
    ("option", "fault", "expected"),
    [
        ("--fail", "create_qp@3", "Unable to create QP"),
        ("--fail", "post_send@300ms", "Couldn't post send"),
        ("--wc", "retry-exc:qp3@100", "Failed status 12"),
        ("--wc", "rem-op@300ms", "Failed status 11"),
    ],
)
def test_a_client_with_four_queue_pairs_meets_a_fault(option: str, fault: str, expected: str) -> None:
    words = [needs("ib_write_bw", "perftest"), "-F", "-D", "30", "-q", "4", "-p"]
    server, port = server_of(lambda port: over(HOST, *words, str(port)))
    with server:
        end = over(HOST, *words, str(port), HOST, faults=(option, fault)).end()
    assert end.code != 0 and expected in end.text, end.text


def test_an_event_is_told() -> None:
    watch = over(HOST, needs("ibv_asyncwatch", "ibverbs-utils"), faults=("--event", "port-err@200ms"))
    with watch:
        watch.until(lambda: "event_type" in watch.text()[0], "an event")
        assert "IBV_EVENT_PORT_ERR (10)" in watch.text()[0]


def ucx(addr: str, kind: str, case: str, *faults: str) -> tuple[Running, Running]:
    """A server of ``ucx_perftest``, and a client that meets these faults."""
    program = needs("ucx_perftest", "ucx-utils")
    test, size, iterations = case.split()
    settings = {"UCX_TLS": kind, "UCX_NET_DEVICES": "ringbell0:1"}
    server, port = server_of(lambda port: over(addr, program, "-p", str(port), **settings))
    words = ["-p", str(port), HOST, "-t", test, "-s", size, "-n", iterations, "-f"]
    return server, over(addr, program, *words, faults=faults, **settings)


@pytest.mark.parametrize("kind", UCX)
@pytest.mark.parametrize("case", UCX_CASES)
def test_ucx(addr: str, kind: str, case: str) -> None:
    figures(both(*ucx(addr, kind, case)))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        # Of whichever queue pair it has then.
        (",".join(f"qp-fatal:qp{n}@50" for n in range(1, 5)), "local work queue catastrophic error on QPN"),
        ("device-fatal@50", "local catastrophic error"),
    ],
)
def test_ucx_tells_events(fault: str, expected: str) -> None:
    assert expected in both(*ucx(HOST, UCX[0], UCX_CASES[0], "--event", fault))


@pytest.mark.parametrize("kind", UCX)
def test_open_mpi_over_ucx_computes_as_alone(kind: str, tmp_path: Path) -> None:
    """The random collectives of the tests of ``ringbell mpi``, whose hashes are compared."""
    launcher, compiler = needs("mpirun.openmpi", "openmpi-bin"), needs("mpicc.openmpi", "libopenmpi-dev")
    program = tmp_path / "random"
    passes(compiler, "-O1", "-o", program, ROOT / "bindings/mpi/tests/random.c")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []

    def hashes(settings: str, *through: str | Path) -> list[str]:
        # The ranks print in any order.
        command = [
            launcher,
            "--oversubscribe",
            "-n",
            "2",
            *settings.split(),
            *root,
            *through,
            program,
            "1",
            "40",
            "3000",
        ]
        return sorted(line for line in passes(*command).splitlines() if line.strip())

    ours = f"--mca pml ucx --mca osc ^ucx --mca btl self -x UCX_TLS={kind},self -x UCX_NET_DEVICES=ringbell0:1"
    alone = hashes("--mca pml ob1")
    assert alone and hashes(ours, RINGBELL, "verbs", "--addr", HOST, "--") == alone


def test_libfabric() -> None:
    """Its messages to any peer, over its datagrams of verbs."""
    words = [needs("fi_pingpong", "libfabric-bin"), "-p", "verbs;ofi_rxd", "-e", "rdm", "-I", "100", "-c"]
    server, port = server_of(lambda port: over(HOST, *words, "-B", str(port)))
    figures(both(server, over(HOST, *words, "-P", str(port), HOST)))


def test_the_suite_of_pyverbs(tmp_path: Path) -> None:
    if not SUITE.is_dir():
        pytest.skip(f"no {SUITE}. Debian: apt-get install python3-pyverbs")
    for packed in SUITE.iterdir():
        data = packed.read_bytes()
        name = packed.name.removesuffix(".gz")
        (tmp_path / name).write_bytes(gzip.decompress(data) if name != packed.name else data)
    # Debian's own Python, for which pyverbs was built.
    text = over(HOST, "/usr/bin/python3", str(tmp_path / "run_tests.py"), "-v").end(300).text
    skipped = Counter(re.findall(r"\.\.\. skipped (.*)", text))
    for why, count in skipped.items():
        print(f"{count:>3} skipped: {why}")
    assert not re.search("^(ERROR|FAIL): ", text, re.MULTILINE), text
    passed = len(re.findall(r"(?:^| \.\.\. )ok$", text, re.MULTILINE))
    assert passed >= 70, text
    print(f"{passed} passed, {skipped.total()} skipped")
