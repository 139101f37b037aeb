"""Sockets and engines, in one process with two NICs."""

import json
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Ranks

import ringbell
from ringbell import errors

Pair = tuple[ringbell.Nic, ringbell.Nic]


@pytest.fixture
def nics(tmp_path: Path) -> Iterator[Pair]:
    nics = [ringbell.Nic(f"10.9.71.{i}/24", directory=str(tmp_path), gpu_memory=16 << 20) for i in (1, 2)]
    yield (nics[0], nics[1])
    for nic in nics:
        nic.close()


def connected(nics: Pair) -> tuple[ringbell.Socket, ringbell.Socket]:
    with nics[0].listen(7000) as listener:
        there = nics[1].connect("10.9.71.1:7000", timeout=5)
        return listener.accept(5), there


def test_streams_of_every_length_and_type(nics: Pair) -> None:
    here, there = connected(nics)
    assert there.peer == ("10.9.71.1", 7000)
    choose = np.random.default_rng(5)
    sent = [choose.integers(0, 256, int(n), np.uint8) for n in (1, 39, 40, 41, 4097, 100_000, 3 << 20)]
    errors_: list[BaseException] = []

    def send() -> None:
        try:
            for data in sent:
                there.send(data)
            there.send(np.zeros((2, 3), [("a", "<i4"), ("b", "<f8")]))
            there.send(b"")
            there.send(np.asarray(nics[1].alloc_host(1000, "float64")))
            there.shutdown()
        except BaseException as error:
            errors_.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    for data in sent:
        got = np.zeros_like(data)
        assert here.recv(got) == data.size
        assert (got == data).all()
    rest = bytearray(2 * 3 * 12 + 8000 + 5)
    assert here.recv(rest) == len(rest) - 5, "the peer has closed its side"
    assert here.recv(rest) == 0
    thread.join()
    assert not errors_
    # The other direction is open.
    here.send(b"answer")
    answer = bytearray(100)
    assert there.recv_some(answer) == 6 and answer[:6] == b"answer"


def test_calls_that_cannot_be(nics: Pair) -> None:
    with pytest.raises(errors.NotConnected):
        nics[1].connect("10.9.71.1:7009")
    with pytest.raises(errors.InvalidArgument, match="address"):
        nics[1].connect("nowhere")
    with pytest.raises(errors.HostError), nics[0].listen(7000), nics[0].listen(7000):
        pass
    with nics[0].listen(7001) as listener, pytest.raises(errors.TimedOut):
        listener.accept(0.05)
    here, there = connected(nics)
    # A time-out of one call, beside the socket's own.
    with pytest.raises(errors.TimedOut):
        here.recv(bytearray(1), timeout=0.05)
    with pytest.raises(errors.TimedOut):
        here.recv_some(bytearray(1), 0.05)
    with pytest.raises(ValueError, match="timeout"):
        here.recv(bytearray(1), timeout=0)
    threading.Timer(0.5, there.send, (b"later",)).start()
    assert here.recv(bytearray(5)) == 5
    here.settimeout(0.05)
    with pytest.raises(errors.TimedOut):
        here.recv(bytearray(1))
    with pytest.raises(BufferError, match="read-only"):
        here.recv(b"123")
    with pytest.raises(BufferError, match="contiguous"):
        here.send(np.ones((4, 4))[:, 1])
    with pytest.raises(ValueError, match="timeout"):
        here.settimeout(0)
    there.close()
    with pytest.raises(errors.NotConnected, match="closed"):
        there.send(b"1")


def test_engines_of_the_nic_and_of_the_program(nics: Pair) -> None:
    class Crc:
        """zlib's CRC-32 of each stream."""

        def __init__(self) -> None:
            self.now, self.streams = 0, list[int]()

        def process(self, data: bytes) -> None:
            self.now = zlib.crc32(data, self.now)

        def finish(self) -> None:
            self.streams.append(self.now)
            self.now = 0

        def result(self) -> tuple[int, list[int]]:
            return self.now, self.streams

    here, there = connected(nics)
    own = here.attach_engine(Crc())
    items = np.random.default_rng(9).integers(0, 3000, 50_000, np.uint32)
    hll = there.attach_engine("hll:p=14", "sent")
    there.send(items[:20_000])
    got = np.zeros_like(items)
    assert here.recv(got[:20_000]) == 80_000
    assert own.result() == (zlib.crc32(items[:20_000]), [])
    there.send(items[20_000:])
    there.shutdown()
    here.recv(got[20_000:])
    assert here.recv(bytearray(1)) == 0
    assert own.detach() == (0, [zlib.crc32(items)])
    seen = hll.result()
    distinct = len(np.unique(items))
    assert seen["items"] == items.size
    assert abs(seen["estimate"] - distinct) < 5 * seen["relative_error"] * distinct
    with pytest.raises(errors.InvalidArgument, match="hll"):
        here.attach_engine("hull")
    with pytest.raises(TypeError, match="process"):
        here.attach_engine(5)
    with pytest.raises(errors.InvalidArgument, match="direction"):
        here.attach_engine("checksum", "input")  # type: ignore[arg-type]


def test_engines_at_a_communicator(ranks: Ranks) -> None:
    program = """
    class Total:
        total = 0.0
        def process(self, data):
            self.total += np.frombuffer(data, np.float32).sum()
        def result(self):
            return self.total
    comm = ringbell.init(timeout=20)
    seen = comm.attach_engine(Total(), "input", item=4)
    out = comm.attach_engine("checksum", "output")
    for n in (4, 1000, 50_000):
        comm.all_reduce(np.full(n, comm.rank + 1, np.float32))
    assert seen.result() == 51_004 * (comm.rank + 1)
    assert out.detach()["bytes"] == 51_004 * 4
    """
    ranks(program, 2)


def test_nics_forward_for_each_other() -> None:
    free = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(6)]
    for s in free:
        s.bind(("127.0.0.1", 0))
    a, b, c, d, spare, peer = (f"127.0.0.1:{s.getsockname()[1]}" for s in free)
    for s in free:
        s.close()
    # n0:1 -- n1:0 and n1:1 -- n2:0, as `ringbell routes bus:3` prints them.
    wires = [{1: f"udp:{a},{b}"}, {0: f"udp:{b},{a}", 1: f"udp:{c},{d}"}, {0: f"udp:{d},{c}"}]

    def node(rank: int, **settings: object) -> ringbell.Nic:
        each: dict[str, object] = {"port": "mesh:bus:3", "transport": "tcp", "node": rank, "wires": wires[rank], "gpu_memory": 16 << 20}
        return ringbell.Nic(f"10.9.79.{rank + 1}/24", **(each | settings))  # type: ignore[arg-type]

    nics = [node(rank, wire_grace=0.5, wire_poll=2) for rank in range(3)]
    with nics[2].listen(7000) as listener:
        there = nics[0].connect("10.9.79.3:7000", timeout=10)
        here = listener.accept(10)
    sent = np.random.default_rng(9).integers(0, 256, 100_000, np.uint8)
    thread = threading.Thread(target=lambda: there.send(sent))
    thread.start()
    got = np.zeros_like(sent)
    assert here.recv(got) == sent.size and (got == sent).all()
    thread.join()
    with pytest.raises(errors.HostError, match="bus:3"):
        node(0, node=3, wires={1: f"udp:{spare},{peer}"})
    with pytest.raises(errors.InvalidArgument, match="wire_poll: 0 packets"):
        node(0, wire_poll=0)
    with pytest.raises(errors.InvalidArgument, match="wire"):
        node(0, wires={1: "elsewhere"})
    with pytest.raises(errors.HostError, match="/nowhere"):
        node(0, tables="/nowhere/tables.json")
    # The node on the way ends: what has no way names the wire.
    nics[1].close()
    with pytest.raises(errors.NotConnected, match="no way to n2: missing n0:1 -- n1:0"):
        there.recv(got)
    nics[0].close()
    nics[2].close()


# Of ring:3 without the wire between nodes 0 and 2, as `ringbell routes ring:3 --without n2:1 --json FILE` writes it.
LONG_WAY: dict[str, object] = {
    "algorithm": "layered",
    "topology": "ring:3 without n2:1",
    "nodes": ["n0", "n1", "n2"],
    "digest": "560eab13725c32d1",
    "channels": {"requests": [0], "acknowledgements": [1]},
    "next": [[None, 1, 1], [0, None, 1], [0, 0, None]],
    "layer": [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    "proof": {"acyclic": {"order": ["n0:1#0", "n2:0#0", "n1:1#0", "n1:0#0", "n2:0#1", "n0:1#1", "n1:0#1", "n1:1#1"]}},
}


def wires_of_a_ring() -> list[dict[int, str]]:
    """Port 1 of each of three nodes is wired to port 0 of the next one."""
    free = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(6)]
    for s in free:
        s.bind(("127.0.0.1", 0))
    a = [f"127.0.0.1:{s.getsockname()[1]}" for s in free]
    for s in free:
        s.close()
    return [{0: f"udp:{a[2 * r - 1]},{a[2 * r - 2]}", 1: f"udp:{a[2 * r]},{a[2 * r + 1]}"} for r in range(3)]


def test_collectives_go_on_while_tables_of_a_mesh_are_replaced(tmp_path: Path, ranks: Ranks) -> None:
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps(LONG_WAY))
    done = ranks(
        f"""
        import threading
        wires, tables = {wires_of_a_ring()!r}, {str(tables)!r}
        rank = int(os.environ["RINGBELL_RANK"])
        nic = ringbell.Nic(f"10.9.81.{{rank + 1}}/24", port="mesh:ring:3", transport="rdma", node=rank, wires=wires[rank], gpu_memory=16 << 20)
        comm = ringbell.init(nic=nic, timeout=20)
        replaced = threading.Event()

        def replace():
            nic.replace_routes(tables, timeout=10)
            replaced.set()

        thread = threading.Thread(target=replace)
        data = [np.arange(20_000, dtype=np.uint32) * (r + 1) for r in range(3)]
        got, rounds, more = np.zeros(20_001, np.uint32), 0, 2
        # The last element says whether rank 1 has replaced the tables: all end in the same round.
        while more > 0:
            if (rank, rounds) == (1, 2):
                thread.start()
            comm.all_reduce(np.append(data[rank] + np.uint32(rounds), np.uint32(replaced.is_set())), got)
            assert (got[:-1] == sum(data) + np.uint32(3 * rounds)).all(), f"rank {{rank}}, round {{rounds}}"
            root = rounds % 3
            comm.reduce(data[rank], got[:-1], root=root)
            assert rank != root or (got[:-1] == sum(data)).all(), f"rank {{rank}}, round {{rounds}}"
            more -= int(got[-1])
            rounds += 1
        if rank == 1:
            thread.join()
        print(f"rank {{rank}}: {{rounds}} rounds")
        comm.finish()
        nic.close()
        """,
        3,
    )
    # Lines of several ranks may run into each other.
    assert done.stdout.count(" rounds") == 3, done.stdout


def test_tables_of_a_mesh_are_replaced_while_a_stream_goes_on(tmp_path: Path) -> None:
    wires = wires_of_a_ring()
    nics = [ringbell.Nic(f"10.9.80.{r + 1}/24", port="mesh:ring:3", transport="rdma", node=r, wires=wires[r], gpu_memory=16 << 20) for r in range(3)]
    with nics[2].listen(7000) as listener:
        there = nics[0].connect("10.9.80.3:7000", timeout=10)
        here = listener.accept(10)
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps(LONG_WAY))
    sent = np.random.default_rng(11).integers(0, 256, 100_000, np.uint8)
    replaced = threading.Event()
    rounds = 0

    def send() -> None:
        nonlocal rounds
        while rounds < 4 or not replaced.is_set():
            there.send(sent + np.uint8(rounds % 256))
            rounds += 1
        there.shutdown()

    def replace() -> None:
        try:
            nics[1].replace_routes(tables, timeout=10)
        finally:
            replaced.set()

    threads = [threading.Thread(target=send), threading.Thread(target=replace)]
    for thread in threads:
        thread.start()
    got = np.zeros_like(sent)
    seen = 0
    while here.recv(got) == got.size:
        assert (got == sent + np.uint8(seen % 256)).all()
        seen += 1
    for thread in threads:
        thread.join()
    assert seen == rounds
    wrong = tmp_path / "wrong.json"
    order = ["n1:1#1", *LONG_WAY["proof"]["acyclic"]["order"][:-1]]  # type: ignore[index]
    wrong.write_text(json.dumps(LONG_WAY | {"proof": {"acyclic": {"order": order}}}))
    with pytest.raises(errors.HostError, match="not replaced, at any node: the proof does not hold"):
        nics[0].replace_routes(wrong)
    with pytest.raises(errors.HostError, match="/nowhere"):
        nics[0].replace_routes("/nowhere/tables.json")
    with pytest.raises(ValueError, match="timeout"):
        nics[0].replace_routes(tables, timeout=0)
    for nic in nics:
        nic.close()
    alone = ringbell.Nic(gpu_memory=16 << 20)
    with pytest.raises(errors.InvalidArgument, match="no port `mesh`"):
        alone.replace_routes(tables)
    alone.close()
