"""Every collective against numpy as an independent model: random shapes, types, counts, roots, ranks as processes."""

import pytest
from conftest import Ranks

MODEL = """
import ml_dtypes
comm = ringbell.init(timeout=20)
rank, size = comm.rank, comm.size
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
choose = np.random.default_rng(SEED)  # The same on every rank.

def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)

def data(n, dtype, case):
    # Whole numbers so small that every order of a sum or product is exact, different on each rank.
    return [np.random.default_rng([case, r]).integers(1, 3, n).astype(dtype) for r in range(size)]

def reduced(all_, op):
    out = all_[0].copy()
    for other in all_[1:]:
        out = (OPS | BITS)[op](out, other).astype(out.dtype)
    return out

def place(values, how):
    # Plain memory, memory that NICs map, an interior part of an array, and several dimensions.
    if how == "plain":
        return values.copy()
    if how == "buffer":
        view = np.asarray(comm.nic.alloc_host(max(values.size, 1), name)).view(values.dtype)[: values.size]
        view[...] = values
        return view
    if how == "inside":
        whole = np.zeros(values.size + 5, values.dtype)
        whole[3 : 3 + values.size] = values
        return whole[3 : 3 + values.size]
    return values.copy().reshape(1, values.size, 1)

def same(got, want, what):
    got = np.asarray(got).reshape(-1)
    assert (got == want.reshape(-1)).all(), f"rank {rank}: {what}: {got[:8]} is not {want[:8]}"

KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter", "sendrecv"]
for case in range(CASES):
    kind = KINDS[case % len(KINDS)]
    name = TYPES[int(choose.integers(len(TYPES)))]
    ops = list(OPS if "float" in name else OPS | BITS)
    op = ops[int(choose.integers(len(ops)))]
    n = int(choose.choice([1, 2, 3, 7, 64, 255, 1000, 4097, 70001]))
    root = int(choose.integers(size))
    in_place = bool(choose.integers(2))
    how = ["plain", "buffer", "inside", "shaped"][int(choose.integers(4))]
    dtype = dtype_of(name)
    what = f"case {case}: {kind} {name} {op} n={n} root={root} in_place={in_place} {how}"
    empty = lambda m: place(np.zeros(m, dtype), how)
    if kind in ("all_reduce", "reduce"):
        all_ = data(n, dtype, case)
        src = place(all_[rank], how)
        dst = None if in_place else empty(n)
        if kind == "all_reduce":
            comm.all_reduce(src, dst, op)
        else:
            comm.reduce(src, dst, op, root)
        if kind == "all_reduce" or rank == root:
            same(src if in_place else dst, reduced(all_, op), what)
        if not in_place:
            same(src, all_[rank], what + " (source)")
    elif kind == "reduce_scatter":
        all_ = data(n * size, dtype, case)
        dst = empty(n)
        comm.reduce_scatter(place(all_[rank], how), dst, op)
        same(dst, reduced(all_, op)[rank * n : (rank + 1) * n], what)
    elif kind == "all_gather":
        all_ = data(n, dtype, case)
        dst = empty(n * size)
        if in_place:
            src = dst.reshape(-1)[rank * n : (rank + 1) * n]
            src[...] = all_[rank]
        else:
            src = place(all_[rank], how)
        comm.all_gather(src, dst)
        same(dst, np.concatenate(all_), what)
    elif kind == "broadcast":
        all_ = data(n, dtype, case)
        array = place(all_[rank], how)
        comm.broadcast(array, root)
        same(array, all_[root], what)
    elif kind == "all_to_all":
        all_ = data(n * size, dtype, case)
        dst = empty(n * size)
        comm.all_to_all(place(all_[rank], how), dst)
        same(dst, np.concatenate([a[rank * n : (rank + 1) * n] for a in all_]), what)
    elif kind == "gather":
        all_ = data(n, dtype, case)
        dst = empty(n * size) if rank == root else None
        comm.gather(place(all_[rank], how), dst, root)
        if rank == root:
            same(dst, np.concatenate(all_), what)
    elif kind == "scatter":
        all_ = data(n * size, dtype, case)
        dst = empty(n)
        comm.scatter(place(all_[root], how) if rank == root else None, dst, root)
        same(dst, all_[root][rank * n : (rank + 1) * n], what)
    else:
        all_ = data(n, dtype, case)
        dst = empty(n)
        got = comm.sendrecv(place(all_[rank], how), (rank + 1) % size, dst, (rank - 1) % size, tag=case)
        assert got == n * dtype.itemsize, what
        same(dst, all_[(rank - 1) % size], what)
comm.barrier()
if rank == 0:
    print("cases", case + 1)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_collective_gives_what_numpy_gives(ranks: Ranks, size: int) -> None:
    cases = 180
    done = ranks(f"SEED, CASES = {size}, {cases}\n" + MODEL, size)
    assert f"cases {cases}" in done.stdout


def test_requests_overlap_and_dropped_ones_go_on(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        other = 1 - comm.rank
        arrays = [np.full(5000, comm.rank * 10 + i, np.int32) for i in range(8)]
        got = [np.zeros(5000, np.int32) for _ in range(8)]
        requests = [comm.irecv(g, other, i) for i, g in enumerate(got)]
        for i in reversed(range(8)):
            comm.isend(arrays[i], other, i)  # The request is dropped.
        assert sum(r.wait() for r in requests) == 8 * 20000
        for i, g in enumerate(got):
            assert (g == other * 10 + i).all(), (i, g[:4])
        assert all(r.test() for r in requests) and requests[0].wait() == 20000
        comm.settle()
        """,
        2,
    )


def test_a_request_that_has_no_partner_is_in_progress_and_can_be_cancelled(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        request = comm.irecv(bytearray(8), 0, 99)
        assert not request.test()
        try:
            request.wait(0.02)
            raise AssertionError("nothing was sent")
        except errors.InProgress as e:
            assert isinstance(e, TimeoutError) and e.status == "IN_PROGRESS"
        request.cancel()
        try:
            request.wait()
            raise AssertionError("it was cancelled")
        except errors.Cancelled:
            pass
        comm.barrier()
        """,
        2,
    )


def test_requests_are_awaited(ranks: Ranks) -> None:
    ranks(
        """
        import asyncio
        comm = ringbell.init(timeout=20)
        async def main():
            ticks = 0
            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.005)
            ticking = asyncio.create_task(tick())
            x = np.full(70000, comm.rank + 1, np.float64)
            if comm.rank == 1:
                await asyncio.sleep(0.2)
            await comm.iall_reduce(x)
            assert (x == 3).all()
            others = [comm.irecv(np.zeros(4, np.int8), 1 - comm.rank, t) for t in range(3)]
            for t in range(3):
                comm.send(np.ones(4, np.int8), 1 - comm.rank, t)
            assert await asyncio.gather(*others) == [4, 4, 4]
            # A task that is cancelled cancels its operation.
            lonely = asyncio.ensure_future(asyncio.wait_for(comm.irecv(bytearray(8), None, 77), 0.05))
            try:
                await lonely
                raise AssertionError("nothing was sent")
            except TimeoutError:
                pass
            ticking.cancel()
            assert ticks > 5, "the loop went on meanwhile"
            comm.barrier()
        start = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - start < 10, "no thread waits for the message that never comes"
        """,
        2,
    )


def test_splits_and_own_programs(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        part = comm.split(comm.rank % 2, -comm.rank)
        assert list(part.job_ranks) == ([2, 0] if comm.rank % 2 == 0 else [3, 1]), part.job_ranks
        x = np.array([comm.rank], np.int64)
        part.all_reduce(x)
        assert x[0] == (2 if comm.rank % 2 == 0 else 4)
        assert comm.split(0 if comm.rank == 0 else None) is None or comm.rank == 0
        assert comm.transports.count("local") == 3, comm.transports
        try:
            comm.load_program("no program")
            raise AssertionError("it was accepted")
        except errors.InvalidArgument as e:
            assert "line 1" in str(e), e
        comm.finish(10)
        """,
        4,
    )


def test_memory_that_is_freed_and_allocated_again(ranks: Ranks) -> None:
    program = """
    comm = ringbell.init(timeout=20)
    n = 1 << 20
    for _ in range(5):
        # Each of these lies where the one before was, as a rule.
        x = np.ones(n, np.float32); comm.all_reduce(x); assert (x == comm.size).all(); del x
        a = np.asarray(comm.nic.alloc_host(n, np.float32)); a[:] = 1; comm.all_reduce(a); assert (a == comm.size).all(); del a
        y = np.ones(n // 2 + 7); comm.all_reduce(y[5:]); comm.all_reduce(y)
        assert y[0] == comm.size and (y[5:] == comm.size ** 2).all(); del y
        o = np.zeros(comm.size * 1000); comm.all_gather(o[comm.rank * 1000 : (comm.rank + 1) * 1000], o)
        registration = comm.nic.register(o); comm.all_reduce(o[10:20]); registration.end(); del o, registration
        comm.all_reduce(bytearray(8000))
    """
    ranks(program, 2)
