"""The backend of torch.distributed: against Gloo, or the definition; faults; the page. `cargo xtask torch` runs them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: What every rank's program begins with.
PREAMBLE = """
import datetime, faulthandler, os, signal, sys, time
faulthandler.dump_traceback_later(60, exit=True)
import torch, torch.distributed as dist
import ringbell.torch
from ringbell import errors
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("ringbell", timeout=datetime.timedelta(seconds=40))
def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"accepted, not {kind}")
"""

Ranks = Callable[..., str]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    def start(program: str, ranks: int, codes: list[int] | None = None, preamble: str = PREAMBLE) -> str:
        file = tmp_path / "program.py"
        file.write_text(preamble + textwrap.dedent(program))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        running = []
        for rank in range(ranks):
            environment = os.environ | {name: str(value) for name, value in (own | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            running.append(subprocess.Popen([sys.executable, str(file)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        try:
            texts = [process.communicate(timeout=180)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        assert [p.returncode for p in running] == (codes or [0] * ranks), "\n".join(texts)
        return "".join(texts)

    return start


def test_every_collective_on_every_type(ranks: Ranks) -> None:
    ranks(
        """
        exact = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8]
        def each(dtype, n):
            # Small integers: every order of a sum gives the same bits.
            return [((torch.arange(n) * 3 + 5 * r) % 7 + 1).to(dtype) for r in range(size)]
        for dtype in exact:
            for n in (1, 5, 1000, 70000):
                all = each(dtype, n)
                mine = all[rank]
                for op, want in (
                    (dist.ReduceOp.SUM, torch.stack(all).to(torch.float64).sum(0)),
                    (dist.ReduceOp.PRODUCT, torch.stack(all[:1] * 1).to(torch.float64)[0] * torch.stack(all[1:]).to(torch.float64).prod(0)),
                    (dist.ReduceOp.MIN, torch.stack(all).to(torch.float64).amin(0)),
                    (dist.ReduceOp.MAX, torch.stack(all).to(torch.float64).amax(0)),
                ):
                    x = mine.clone()
                    dist.all_reduce(x, op=op)
                    assert torch.equal(x, want.to(torch.int64).to(dtype)), (dtype, n, op)
                x = mine.clone()
                dist.broadcast(x, 1)
                assert torch.equal(x, all[1])
                x = mine.clone()
                dist.reduce(x, 1)
                assert rank != 1 or torch.equal(x, torch.stack(all).to(torch.float64).sum(0).to(dtype))
                outs = [torch.zeros(n, dtype=dtype) for _ in range(size)]
                dist.all_gather(outs, mine)
                assert torch.equal(torch.cat(outs), torch.cat(all))
                flat = torch.zeros(size * n, dtype=dtype)
                dist.all_gather_into_tensor(flat, mine)
                assert torch.equal(flat, torch.cat(all))
                outs = [torch.zeros(n, dtype=dtype) for _ in range(size)] if rank == 0 else None
                dist.gather(mine, outs, 0)
                assert rank or torch.equal(torch.cat(outs), torch.cat(all))
                x = torch.zeros(n, dtype=dtype)
                dist.scatter(x, all if rank == size - 1 else None, size - 1)
                assert torch.equal(x, mine)
                # Block b of rank r is all[r] + b.
                blocks = [mine + b for b in range(size)]
                want = torch.stack([a + rank for a in all]).to(torch.float64).sum(0).to(torch.int64).to(dtype)
                x = torch.zeros(n, dtype=dtype)
                dist.reduce_scatter(x, blocks)
                assert torch.equal(x, want)
                x.zero_()
                dist.reduce_scatter_tensor(x, torch.cat(blocks))
                assert torch.equal(x, want)
                x = torch.zeros(size * n, dtype=dtype)
                dist.all_to_all_single(x, torch.cat(blocks))
                assert torch.equal(x, torch.cat([a + rank for a in all]))
                outs = [torch.zeros(n, dtype=dtype) for _ in range(size)]
                dist.all_to_all(outs, blocks)
                assert torch.equal(torch.cat(outs), torch.cat([a + rank for a in all]))
        # Moved as bytes; truth values as logic; halves of a complex number.
        for dtype in (torch.int16, torch.bool, torch.complex64, torch.float8_e4m3fn):
            x = torch.ones(9).to(dtype) if rank == 0 else torch.zeros(9).to(dtype)
            dist.broadcast(x, 0)
            assert (x.to(torch.float32) == 1).all(), dtype
        x = torch.tensor([rank == 0, True, False])
        dist.all_reduce(x)
        assert x.tolist() == [True, True, False]
        x = torch.tensor([rank == 0, True, False])
        dist.all_reduce(x, op=dist.ReduceOp.BAND)
        assert x.tolist() == [False, True, False]
        x = torch.tensor([1 + 2j]) * (rank + 1)
        dist.all_reduce(x)
        assert x.item() == (1 + 2j) * size * (size + 1) / 2
        # Averages, scaled sums, memory that is not contiguous, no elements, splits.
        x = torch.full((7,), rank + 1.0)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert (x == (size + 1) / 2).all()
        x = torch.full((size * 3,), rank + 1.0)
        y = torch.zeros(3)
        dist.reduce_scatter_tensor(y, x, op=dist.ReduceOp.AVG)
        assert (y == (size + 1) / 2).all() and (x == rank + 1).all()
        x = torch.full((6, 4), rank + 1.0)
        dist.all_reduce(x[:, ::2])
        assert (x[:, ::2] == size * (size + 1) / 2).all() and (x[:, 1::2] == rank + 1).all()
        dist.all_reduce(torch.zeros(0))
        x = torch.arange(rank + 1.0)
        outs = torch.zeros(size * (size + 1) // 2 if rank == 0 else 0)
        ins = [rank + 1] + [0] * (size - 1)
        dist.all_to_all_single(outs, x, list(range(1, size + 1)) if rank == 0 else [0] * size, ins)
        assert rank or torch.equal(outs, torch.cat([torch.arange(r + 1.0) for r in range(size)]))
        dist.barrier()
        dist.monitored_barrier()
        dist.destroy_process_group()
        """,
        3,
    )


def test_messages_groups_objects_and_futures(ranks: Ranks) -> None:
    ranks(
        """
        peer = size - 1 - rank
        for n in (1, 3000, 1 << 18):
            got = torch.zeros(n)
            ops = [dist.P2POp(dist.isend, torch.full((n,), float(rank)), peer), dist.P2POp(dist.irecv, got, peer)]
            [w.wait() for w in dist.batch_isend_irecv(ops)]
            assert (got == peer).all()
        # Tags choose the message.
        a, b = torch.zeros(2), torch.zeros(2)
        works = [dist.isend(torch.ones(2), peer, tag=1), dist.isend(torch.ones(2) * 2, peer, tag=2), dist.irecv(b, peer, tag=2), dist.irecv(a, peer, tag=1)]
        [w.wait() for w in works]
        assert a.tolist() == [1, 1] and b.tolist() == [2, 2]
        w = dist.irecv(a, peer, tag=3)
        refused(errors.InProgress, "recv", lambda: w.wait(datetime.timedelta(milliseconds=50)))
        dist.barrier()
        dist.send(torch.ones(2) * 3, peer, tag=3)
        assert w.wait() and a.tolist() == [3, 3]

        everything = [None] * size
        dist.all_gather_object(everything, {"rank": rank, "text": "x" * (1000 * rank)})
        assert [e["rank"] for e in everything] == list(range(size))
        thing = [{"from": rank}]
        dist.broadcast_object_list(thing, 1)
        assert thing[0]["from"] == 1
        got = [None]
        dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
        assert got[0] == f"for {rank}"

        # Sub-groups with other members; a split; those of a mesh. In the end one that only its members make.
        evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, group=evens if rank % 2 == 0 else odds)
        assert x.item() == (4 if rank % 2 == 0 else 6)
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, group=half)
        assert x.item() == (3 if rank < 2 else 7)
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, group=mesh.get_group("dp"))
        assert x.item() == {0: 4, 1: 6, 2: 4, 3: 6}[rank]

        # Coalesced, asynchronous, by futures, out of order.
        xs = [torch.full((k + 1,), float(rank)) for k in range(20)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for x in xs:
                dist.all_reduce(x)
        manager.wait()
        assert all((x == sum(range(size))).all() for x in xs)
        outs = [torch.zeros(size * 4) for _ in range(3)]
        with dist._coalescing_manager():
            for out in outs:
                dist.all_gather_into_tensor(out, torch.full((4,), float(rank)))
        assert all(torch.equal(o, torch.arange(size).repeat_interleave(4).float()) for o in outs)
        xs = [torch.full((1000,), rank + 1.0) for _ in range(50)]
        works = [dist.all_reduce(x, async_op=True, op=dist.ReduceOp.AVG) for x in xs]
        futures = [w.get_future() for w in works[::2]]
        then = futures[0].then(lambda f: f.value()[0].sum().item())
        for w in reversed(works):
            w.wait()
        torch.futures.wait_all(futures)
        assert futures[0].done() and torch.equal(futures[0].value()[0], xs[0])
        assert then.wait() == 1000 * (size + 1) / 2
        assert all((x == (size + 1) / 2).all() for x in xs)
        # A future of a message that no rank sends yet does not hold up those behind it.
        box = torch.zeros(1)
        late = dist.irecv(box, peer, tag=9).get_future()
        x = torch.ones(1)
        dist.all_reduce(x, async_op=True).get_future().wait()
        assert not late.done()
        dist.barrier()
        dist.send(torch.ones(1), peer, tag=9)
        late.wait()
        assert box.item() == 1
        import torch.distributed._functional_collectives as functional
        y = functional.all_reduce(torch.full((3,), rank + 1.0), "sum", list(range(size)))
        assert (y == 10).all()
        if rank in (1, 2):
            pair = dist.new_group([1, 2], use_local_synchronization=True)
            x = torch.tensor([rank + 1.0])
            dist.all_reduce(x, group=pair)
            assert x.item() == 5
        dist.barrier()
        dist.destroy_process_group()
        """,
        4,
    )


def test_what_no_operation_takes_is_named(ranks: Ranks) -> None:
    ranks(
        """
        def mismatch(call):
            try:
                call()
                raise AssertionError("the ranks differ")
            except errors.Mismatch as error:
                assert error.peers in ((0,), (1,)) and "rank" in str(error), error
                return str(error)
        refused(TypeError, "int16", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)))
        refused(TypeError, "BXOR", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BXOR))
        refused((TypeError, RuntimeError), "", lambda: dist.all_reduce(torch.eye(3).to_sparse()))
        refused(ValueError, "for each rank", lambda: dist.all_gather([torch.ones(3), torch.ones(4)], torch.ones(3)))
        refused(ValueError, "9 elements", lambda: dist.all_gather_into_tensor(torch.ones(9), torch.ones(2)))
        refused(ValueError, "splits", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [2, 2]))
        # Nothing of that has reached another rank.
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [2, 2]
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            error = refused(errors.Mismatch, "12 bytes", lambda: dist.recv(torch.ones(5), 0))
            assert error.peers == (0,)
        groups = [dist.new_group() for _ in range(4)]
        assert "count" in mismatch(lambda: dist.all_reduce(torch.ones(8 + rank), group=groups[0]))
        assert "type" in mismatch(lambda: dist.all_reduce(torch.ones(8, dtype=torch.int32 if rank else torch.float32), group=groups[1]))
        mismatch(lambda: dist.broadcast(torch.ones(8), rank, group=groups[2]))
        mismatch(lambda: dist.barrier(group=groups[3]) if rank else dist.all_reduce(torch.ones(1), group=groups[3]))
        dist.all_reduce(x)
        assert x.tolist() == [4, 4]
        """,
        2,
    )


def test_a_killed_rank_is_named_and_the_others_go_on(ranks: Ranks) -> None:
    said = ranks(
        """
        x = torch.ones(1 << 18)
        dist.all_reduce(x)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(x, op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            assert isinstance(error, errors.PeerFailed) and error.peers == (1,) and "rank 1" in str(error), error
        # By the future too, as DDP sees it.
        try:
            dist.all_reduce(x, async_op=True).get_future().wait()
            raise AssertionError("rank 1 is dead")
        except RuntimeError as error:
            assert "rank 1" in str(error) or "abort" in str(error).lower(), error
        group = dist.shrink_group([1])
        y = torch.tensor([rank + 1.0])
        dist.all_reduce(y, group=group)
        assert y.item() == 4 and dist.get_world_size() == 2
        print("went on")
        os._exit(0)  # The store of the dead rank's job is no part of this.
        """,
        3,
        [0, -9, 0],
    )
    assert said.count("went on") == 2


def test_exit_fork_and_ctrl_c(ranks: Ranks) -> None:
    ranks(
        """
        import threading
        from torch.utils.data import DataLoader, TensorDataset
        x = torch.ones(100)
        dist.all_reduce(x)
        # Workers are forked, and end.
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=2)
        assert torch.cat([b[0] for b in loader]).sum() == 28
        child = os.fork()
        if child == 0:
            code = 1
            try:
                dist.all_reduce(x)
            except RuntimeError as error:
                code = 0 if "fork" in str(error) else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        dist.all_reduce(x)
        assert (x == 4).all()
        # Ctrl-C while a message is waited for; the group works on.
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        work = dist.irecv(x, 1 - rank, tag=4)
        try:
            work.wait()
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - start < 20
        dist.send(torch.ones(100), 1 - rank, tag=4)
        work.wait()
        dist.barrier()
        # Works, futures and a group that nothing ends.
        pending = [dist.irecv(torch.zeros(3), 1 - rank, tag=t) for t in range(5, 8)]
        pending[0].get_future()
        dist.barrier()
        """,
        2,
    )


def test_what_nothing_holds_any_more_stays_until_the_operation_has_ended(ranks: Ranks) -> None:
    ranks(
        """
        import gc
        from torch.utils.data import DataLoader, TensorDataset
        # Tensors and works are dropped while rank 0 keeps the others waiting; their memory is used by others meanwhile.
        if rank == 0:
            time.sleep(0.5)
        works = []
        for i in range(40):
            x = torch.full((50_000 + i,), rank + 1.0)
            work = dist.all_reduce(x, async_op=True)
            if i % 3 == 0:
                works.append((work, x))
            elif i % 3 == 1:
                works.append((work.get_future(), None))
            del x, work
            gc.collect()
            torch.full((50_000 + i,), -1.0)
        for work, x in works:
            work.wait()
            assert x is None or (x == 3).all()
        sums = [f.value()[0].sum().item() for f, x in works if x is None]
        assert sums == [3.0 * (50_000 + i) for i in range(40) if i % 3 == 1], sums
        # Resized while it is reduced: the storage that the NIC knows is kept.
        x = torch.ones(1000)
        work = dist.all_reduce(x, async_op=True)
        y = x
        x = x.new_zeros(5)
        work.wait()
        assert (y == 2).all()
        # Workers that live through the training, forked with the NIC open and operations under way.
        loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=4, num_workers=2, persistent_workers=True)
        total = torch.zeros(1)
        for epoch in range(3):
            for batch in loader:
                pending = dist.all_reduce(batch[0], async_op=True)
                total += batch[0].sum() * 0
                pending.wait()
                total += batch[0].sum()
        assert total.item() == 3 * 2 * 64 * 63 / 2
        dist.barrier()
        dist.destroy_process_group()
        """,
        2,
    )


def test_ctrl_c_and_an_exception_in_the_middle_are_told_to_the_others(ranks: Ranks) -> None:
    said = ranks(
        """
        import threading
        group = dist.new_group()
        if rank == 1:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            x = torch.ones(10)
            try:
                dist.all_reduce(x, group=group)
                raise AssertionError("rank 0 comes later")
            except KeyboardInterrupt:
                dist.barrier()
        else:
            dist.barrier()
            error = refused(errors.Aborted, "rank 1", lambda: dist.all_reduce(torch.ones(10), group=group))
            assert error.peers == (1,), error.peers
        x = torch.ones(3)
        dist.all_reduce(x)
        assert (x == 2).all()
        # A rank ends by an exception, without a word to the group.
        if rank == 1:
            raise RuntimeError("a defect of the program")
        error = refused(errors.PeerFailed, "rank 1", lambda: [dist.all_reduce(x) for _ in range(1000)])
        assert error.peers == (1,)
        print("named")
        os._exit(0)
        """,
        2,
        [0, 1],
    )
    assert "named" in said and "a defect of the program" in said


def test_tensors_in_memory_that_peers_map(ranks: Ranks) -> None:
    ranks(
        """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for n in (1, 1000, 300_000):
                x = ringbell.torch.empty(n, dtype=dtype)
                x.fill_(rank + 1)
                dist.all_reduce(x)
                assert (x == 3).all() and x.dtype is dtype and x.shape == (n,)
                flat = ringbell.torch.empty(2, n, dtype=dtype)
                dist.all_gather_into_tensor(flat, x + rank)
                assert (flat[0] == 3).all() and (flat[1] == 4).all()
        assert ringbell.torch.empty(0).numel() == 0
        # A freed tensor's memory is the next one's; one in use, by an operation too, is not.
        a = ringbell.torch.empty(5000)
        at = a.data_ptr()
        b = ringbell.torch.empty(5000)
        assert b.data_ptr() != at
        part = a[100:]
        del a
        assert ringbell.torch.empty(5000).data_ptr() != at
        del part
        assert ringbell.torch.empty(5000).data_ptr() == at
        if rank == 0:
            time.sleep(0.3)
        a = ringbell.torch.empty(5000)
        a.fill_(1)
        at, work = a.data_ptr(), dist.all_reduce(a, async_op=True)
        del a
        c = ringbell.torch.empty(5000)
        assert c.data_ptr() != at or rank == 0
        c.fill_(9)
        work.wait()
        del work, b, c
        before = resident()
        for i in range(2000):
            x = ringbell.torch.empty(100_000 + i % 300)
            x.fill_(1)
            if i % 100 == 0:
                dist.all_reduce(x)
                assert (x == 2).all()
        assert resident() - before < 400 << 20, resident() - before
        refused(TypeError, "gloo", lambda: ringbell.torch.empty(3, group=dist.new_group(backend="gloo")))
        refused(TypeError, "meta", lambda: dist.group.WORLD._get_backend(torch.device("cpu")).allocate_tensor(3, device=torch.device("meta")))
        dist.barrier()
        dist.destroy_process_group()
        """,
        2,
    )


def test_ten_thousand_tensors_leave_nothing(ranks: Ranks) -> None:
    ranks(
        """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for i in range(500):
            dist.all_reduce(torch.ones(1000 + i % 50))
        before = resident()
        for i in range(10000):
            x = torch.ones(500 + 37 * (i % 400))
            dist.all_reduce(x)
            assert x[0] == 2 and x[-1] == 2
        assert resident() - before < 64 << 20, resident() - before
        # Parts of one storage share a registration; memory comes back at the same place in other sizes.
        x = torch.ones(1 << 16)
        for part in x.split(1000):
            dist.all_reduce(part)
        assert (x == 2).all()
        """,
        2,
    )


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2 mapped"])
def test_losses_are_those_of_gloo(ranks: Ranks, kind: str) -> None:
    ranks(
        f"""
        kind = {kind!r}
        """
        + """
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        def train(mesh, group):
            torch.manual_seed(1)
            layer = lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            model = nn.Sequential(layer(), layer(), nn.Linear(32, 1))
            if kind == "ddp":
                model = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.02)
            else:
                from torch.distributed.fsdp import fully_shard
                for part in (*model, model):
                    fully_shard(part, mesh=mesh)
                    if kind == "fsdp2 mapped" and group is None:
                        part.set_allocate_memory_from_process_group_for_comm(True)
            optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
            draw = torch.Generator().manual_seed(7 + rank)
            losses = []
            for _ in range(8):
                x = torch.randn(4, 6, 32, generator=draw)
                loss = (model(x) - x.mean(-1, keepdim=True)).square().mean()
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                losses.append(loss.item())
            return losses
        ours = train(init_device_mesh("cpu", (size,)), None)
        group = dist.new_group(backend="gloo")
        from torch.distributed.device_mesh import DeviceMesh
        theirs = train(DeviceMesh.from_group(group, "cpu"), group)
        assert ours[-1] < ours[0]
        # Of two ranks every order of a sum is the same.
        assert ours == theirs, (ours, theirs)
        dist.destroy_process_group()
        """,
        2,
    )


def analysed(folder: Path, *options: str) -> str:
    """What PyTorch's analyser says of the dumps in a folder."""
    run = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), *options]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_flight_recorder_names_the_rank_that_misses(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dumps"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(folder / "trace_"))
    ranks(
        """
        import pathlib, pickle
        folder = pathlib.Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"]).parent
        signal.signal(signal.SIGUSR1, lambda *_: ringbell.torch.dump_flight_recorder(folder.parent / f"asked{rank}"))
        pair = dist.new_group([0, 1])
        x = torch.ones(10)
        for _ in range(3):
            dist.all_reduce(x)
        refused(TypeError, "int16", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)))
        dist.all_reduce(x, async_op=True).wait()
        if rank < 2:
            dist.broadcast(x, 0, group=pair)
        if rank == 0:
            dist.send(x, 1)
        if rank == 1:
            dist.recv(x, 0)
        # By the program's signal while it waits, on failure (once), and on demand.
        if rank != 2:
            import threading
            threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            pending = dist.all_reduce(x, async_op=True)
            work = dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(6), async_op=True)
            refused(errors.RingbellError, "", lambda: pending.wait())
            refused(errors.RingbellError, "", work.wait)
            refused(errors.RingbellError, "", dist.barrier)
            assert (folder.parent / f"asked{rank}").exists()
        else:
            time.sleep(6)
            assert ringbell.torch.dump_flight_recorder() == str(folder / "trace_2")
        dump = pickle.loads((folder / f"trace_{rank}").read_bytes())
        states = [e["state"] for e in dump["entries"] if e["process_group"][0] == "0" and not e["is_p2p"]]
        assert states == ["completed"] * 3 + ["scheduled"] + ["completed"] + ["scheduled"] * (2 if rank < 2 else 0), states
        assert [e["state"] for e in dump["entries"] if e["is_p2p"]] == ["completed"] * (rank < 2)
        assert [e["state"] for e in dump["entries"] if e["process_group"][0] != "0"] == ["completed"] * (rank < 2)
        os._exit(0)
        """,
        3,
        preamble=PREAMBLE.replace("seconds=40", "seconds=4"),
    )
    said = analysed(folder)
    assert "Not all ranks joining collective, sequence number: 6" in said, said
    assert "missing ranks: {2}" in said and "missing ranks: {1}" not in said and "missing ranks: {0}" not in said, said
    for name in (tmp_path / "asked").parent.glob("asked*"):
        name.rename(folder / f"trace_{name.name[-1]}")
    assert "missing ranks: {2}" in analysed(folder)
    # One rank's dump, as after a kill.
    (folder / "trace_2").unlink()
    assert "all_reduce" in analysed(folder, "--allow-incomplete-ranks")


def test_a_recorder_that_is_off_writes_nothing(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(tmp_path / "trace_"))
    program = """
        if rank == 0:
            refused(errors.TimedOut, "rank 1", lambda: dist.all_reduce(torch.ones(3)))
        else:
            time.sleep(3)
        os._exit(0)
        """
    short = PREAMBLE.replace("seconds=40", "seconds=1")
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    ranks(program, 2, preamble=short)
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")
    ranks(program, 2, preamble=short)
    assert not list(tmp_path.glob("trace_*"))
    monkeypatch.delenv("TORCH_NCCL_TRACE_BUFFER_SIZE")
    ranks(program, 2, preamble=short)
    assert [f.name for f in tmp_path.glob("trace_*")] == ["trace_0"]


def test_collectives_that_pytorch_checks_in_detail(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    ranks(
        """
        import gc
        def works(group=None, n=size):
            gc.collect()
            x = torch.full((100,), float(dist.get_rank(group)))
            dist.all_reduce(x, group=group)
            assert (x == sum(range(n))).all(), x
            all = [torch.zeros(3) for _ in range(n)]
            dist.all_gather(all, torch.full((3,), float(dist.get_rank(group))), group=group)
            assert [t[0].item() for t in all] == list(range(n))
            dist.broadcast(x, group_src=0, group=group)
            out = torch.zeros(2)
            dist.reduce_scatter_tensor(out, torch.ones(2 * n), group=group)
            assert (out == n).all()
            dist.barrier(group=group)
            work = dist.all_reduce(x, group=group, async_op=True)
            work.wait()
        works()
        for _ in range(3):
            half = dist.new_group([0, 1])
            if rank < 2:
                works(half, 2)
                dist.destroy_process_group(half)
        works()
        kept = ringbell.torch._wrapped
        dist.new_group(list(range(size)))
        assert len(kept) == 2, "destroyed groups are let go of"
        # What PyTorch checks before the call.
        if rank == 0:
            refused(RuntimeError, "mismatch", lambda: dist.all_reduce(torch.ones(3)))
        else:
            refused(RuntimeError, "mismatch", lambda: dist.all_reduce(torch.ones(4)))
        os._exit(0)
        """,
        3,
    )


def test_time_outs_have_the_words_that_pytorchs_tests_look_for(ranks: Ranks) -> None:
    ranks(
        """
        import re
        if rank == 0:
            work = dist.irecv(torch.ones(3), 1)
            waited = refused(errors.InProgress, "", lambda: work.wait(datetime.timedelta(milliseconds=50)))
            late = refused(errors.TimedOut, "rank 1", lambda: dist.barrier())
            for error in (waited, late):
                assert re.search(" (Timed out|closed|timeout) ", str(error)), error
        else:
            time.sleep(3)
        os._exit(0)
        """,
        2,
        preamble=PREAMBLE.replace("seconds=40", "seconds=1"),
    )


def test_a_process_has_as_many_groups_as_its_option_allows(ranks: Ranks) -> None:
    init = PREAMBLE.replace('init_process_group("ringbell"', 'init_process_group("ringbell", pg_options=ringbell.torch.Options(max_queues=QUEUES)')
    assert init != PREAMBLE
    ranks(
        """
        group = dist.new_group()
        dist.barrier(group)
        refused(errors.HostError, "all 2 queues are in use; raise the setting `max_queues`", lambda: dist.barrier(dist.new_group()))
        dist.barrier(group)
        os._exit(0)
        """,
        2,
        preamble=init.replace("QUEUES", "2"),
    )
    ranks(
        """
        groups = [dist.new_group() for _ in range(70)]
        for i, group in enumerate(groups):
            x = torch.full((3,), float(i + rank))
            dist.all_reduce(x, group=group)
            assert (x == 2 * i + 1).all(), (i, x)
        dist.destroy_process_group()
        """,
        2,
        preamble=init.replace("QUEUES", "80"),
    )


def test_works_say_whether_they_have_ended_and_who_sent(ranks: Ranks) -> None:
    ranks(
        """
        x = torch.zeros(4)
        if rank == 0:
            got = sorted(dist.recv(x, tag=7) for _ in range(size - 1))
            assert got == list(range(1, size)), got
            work = dist.irecv(x, tag=8)
            assert not work.is_completed()
            dist.barrier()
            work.wait()
            assert work.is_completed() and work.source_rank() == 2 and (x == 2).all()
            refused(errors.Mismatch, "16 bytes", lambda: dist.recv(torch.zeros(9), tag=9))
        else:
            dist.send(torch.full((4,), float(rank)), 0, tag=7)
            dist.barrier()
            if rank == 2:
                dist.send(torch.full((4,), float(rank)), 0, tag=8)
                dist.send(x, 0, tag=9)
        # It ends without a wait, and says so; Gloo's works and those that are not receives answer as ever.
        work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
        end = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < end
        work.wait()
        refused(RuntimeError, "received nothing", work.source_rank)
        # In a group the rank is the job's.
        odd = dist.new_group([1, 2])
        if rank == 1:
            assert dist.recv(x, group=odd) == 2
        if rank == 2:
            dist.send(x, 1, group=odd)
        gloo = dist.new_group(backend="gloo")
        theirs = dist.all_reduce(torch.ones(9), group=gloo, async_op=True)
        theirs.wait()
        assert theirs.is_completed()
        if rank == 0:
            assert dist.recv(x, group=gloo) == 1
        elif rank == 1:
            dist.send(x, 0, group=gloo)
        dist.barrier()
        dist.destroy_process_group()
        """,
        3,
    )


def test_sums_in_the_order_of_the_ranks(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        n = 30011
        every = [torch.randn(n, generator=torch.Generator().manual_seed(r)) * 10.0 ** (r - 1) for r in range(size)]
        want = every[0].clone()
        for x in every[1:]:
            want += x
        def summed(group, cut):
            x = every[rank].clone()
            for part in x.split(cut):
                dist.all_reduce(part, group=group)
            return x
        def holds(group):
            return all(torch.equal(summed(group, cut), want) for cut in (n, 1000, 17))
        plain = dist.new_group(pg_options=ringbell.torch.Options())
        strict = dist.new_group(pg_options=ringbell.torch.Options(deterministic=True))
        assert holds(strict) and not holds(plain)
        assert holds(None) == (os.environ.get("RINGBELL_DETERMINISTIC") == "1")
        half = dist.split_group(parent_pg=strict, split_ranks=[list(range(size))])
        assert holds(half)
        error = refused(errors.Mismatch, "`deterministic` at 1", lambda: dist.new_group(pg_options=ringbell.torch.Options(deterministic=rank == 2)))
        assert error.peers == (2,)
        dist.destroy_process_group()
        """
    ranks(program, 4)
    monkeypatch.setenv("RINGBELL_DETERMINISTIC", "1")
    ranks(program, 4)


def torchrun(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options, str(file)]
    return subprocess.run(run, capture_output=True, text=True, timeout=180, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_the_page_runs_as_written(tmp_path: Path) -> None:
    text = (ROOT / "docs/pytorch.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs and len(programs[0].strip().splitlines()) <= 10
    for i, program in enumerate(programs):
        file = tmp_path / f"program{i}.py"
        file.write_text(program)
        done = torchrun(file)
        assert done.returncode == 0, program + done.stdout + done.stderr
        if i == 0:
            assert "2 ranks, each element is 3" in done.stdout


def test_torchrun_restarts_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        textwrap.dedent(
            """
            import os, torch, torch.distributed as dist
            dist.init_process_group("cpu:ringbell")
            x = torch.ones(10)
            dist.all_reduce(x)
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(x)
            assert (x == 4).all()
            print("second time", flush=True)
            dist.destroy_process_group()
            """
        )
    )
    done = torchrun(file, "--max-restarts", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("second time") == 2, done.stdout
