"""Groups whose members change, by PyTorch's reconfigure interface: our versions of the cases of its fault tolerance tests."""

from __future__ import annotations

from test_torch import PREAMBLE, Ranks, ranks  # noqa: F401

#: What every process begins with; `first` is a store for the handles, which the backend does not use.
BEGIN = PREAMBLE.replace('init_process_group("ringbell", ', 'init_process_group("ringbell", enable_reconfigure=True, ') + """
from datetime import timedelta
first = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) ^ 1, is_master=rank == size - 1, wait_for_workers=False)
pg = dist.group.WORLD
assert dist._supports_reconfigure()
def handles(name):
    first.set(f"{name}/{rank}", dist._get_reconfigure_handle())
    return [first.get(f"{name}/{r}").decode() for r in range(size)]
def meet(name):
    first.set(f"met {name}/{rank}", "")
    first.wait([f"met {name}/{r}" for r in range(size)])
    first.add(f"left {name}", 1)
    # It serves the store: it ends last.
    while rank == size - 1 and first.add(f"left {name}", 0) < size:
        time.sleep(0.01)
def change(uuid, members, seconds=30):
    dist._reconfigure(uuid, members, timeout=timedelta(seconds=seconds)).wait()
def total(members):
    assert dist.get_world_size() == members, dist.get_world_size()
    x = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    assert (x == sum(range(1, members + 1))).all(), x
"""


def test_all_come_and_every_call_reaches_the_members(ranks: Ranks) -> None:  # noqa: F811
    ranks(
        """
        refused(RuntimeError, "no members", lambda: dist.all_reduce(torch.ones(4)))
        change(1, handles("a"))
        assert dist.get_rank() == rank
        total(3)
        after, before = (rank + 1) % 3, (rank + 2) % 3
        got = torch.zeros(5)
        received = dist.irecv(got, before)
        dist.isend(torch.full((5,), rank + 1.0), after).wait()
        received.wait()
        assert (got == before + 1).all() and received.is_completed()
        rows = [torch.zeros(2) for _ in range(3)]
        dist.all_gather(rows, torch.full((2,), float(rank)))
        assert [r[0] for r in rows] == [0, 1, 2]
        flat = torch.zeros(6)
        dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
        assert flat.tolist() == [0, 0, 1, 1, 2, 2]
        mine = torch.zeros(2)
        dist.reduce_scatter_tensor(mine, torch.arange(6.0))
        assert mine.tolist() == [6.0 * rank, 6.0 * rank + 3]
        dist.all_to_all_single(flat, torch.full((6,), float(rank)))
        assert flat.tolist() == [0, 0, 1, 1, 2, 2]
        things = [None] * 3
        dist.all_gather_object(things, {"rank": rank})
        assert things[2] == {"rank": 2}
        x = torch.full((4,), float(rank))
        dist.broadcast(x, group_src=2)
        assert (x == 2).all()
        late = dist.all_reduce(torch.ones(3), async_op=True)
        assert late.get_future().wait()[0].tolist() == [3, 3, 3] and late.is_completed()
        dist.barrier()
        # The same members again; a set orders them itself, the same way everywhere.
        change(2, handles("b"))
        total(3)
        change(3, set(handles("c")))
        total(3)
        meet("done")
        """,
        3,
        preamble=BEGIN,
    )


def test_shrinking_by_the_last_and_by_the_middle_rank(ranks: Ranks) -> None:  # noqa: F811
    ranks(
        """
        for number, out in ((10, 2), (20, 1)):
            change(number, handles(f"{number}"))
            total(3)
            left = handles(f"{number} again")
            del left[out]
            if rank != out:
                change(number + 1, left)
                assert dist.get_rank() == (rank if rank < out else rank - 1)
                total(2)
            meet(f"{number} done")
        """,
        3,
        preamble=BEGIN,
    )


def test_scaling_joining_late_merging_and_splitting(ranks: Ranks) -> None:  # noqa: F811
    ranks(
        """
        own = [dist._get_reconfigure_handle()]
        # Each alone, all, each alone.
        change(10 + rank, own)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        total(1)
        change(20, handles("a"))
        total(3)
        change(30 + rank, own)
        total(1)
        # Two begin, and the third joins late.
        all = handles("b")
        if rank < 2:
            change(40, all[:2])
            total(2)
        change(41, all)
        total(3)
        # Two groups become one, and are divided again.
        change(50 if rank < 1 else 51, all[:1] if rank < 1 else all[1:])
        total(1 if rank < 1 else 2)
        change(52, all)
        total(3)
        change(53 if rank < 2 else 54, all[:2] if rank < 2 else all[2:])
        total(2 if rank < 2 else 1)
        # More than at the start of the process group's life, in another order.
        change(55, all[::-1])
        assert dist.get_rank() == 2 - rank
        total(3)
        meet("done")
        """,
        3,
        preamble=BEGIN,
    )


def test_after_an_abort_a_killed_rank_and_one_that_does_not_come(ranks: Ranks) -> None:  # noqa: F811
    ranks(
        """
        from torch._C._distributed_c10d import ErrorType
        all = handles("a")
        change(1, all)
        impl = dist.get_backend_impl(pg, torch.device("cpu"))
        assert impl.get_error() == ErrorType.SUCCESS
        waiting = dist.all_reduce(torch.ones(4), async_op=True) if rank else None
        meet("posted")
        pg.abort()
        if waiting:
            refused(RuntimeError, "", waiting.wait)
        assert impl.get_error() == ErrorType.COMM_ERROR
        change(2, all)
        assert impl.get_error() == ErrorType.SUCCESS
        total(3)
        # Numbers are used once, and this process is a member.
        refused(RuntimeError, "already used", lambda: change(2, all))
        others = [h for h in all if h != dist._get_reconfigure_handle()]
        refused(RuntimeError, "this process's", lambda: change(3, others))
        refused(RuntimeError, "once", lambda: change(3, all + all[:1]))
        total(3)
        # One does not come: an error in time, and another try.
        if rank < 2:
            start = time.monotonic()
            refused(RuntimeError, "", lambda: change(4, all, 2))
            assert time.monotonic() - start < 20
            refused(RuntimeError, "no members", lambda: dist.barrier())
        meet("late")
        change(5, all)
        total(3)
        # The leader is killed in the middle, and the others go on without it.
        meet("last")
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        refused(errors.PeerFailed, "rank 0", lambda: dist.all_reduce(torch.ones(4)))
        change(6, all[1:])
        total(2)
        refused(RuntimeError, "", lambda: change(7, all, 2))
        change(8, all[1:])
        total(2)
        dist.barrier()
        """,
        3,
        [-9, 0, 0],
        preamble=BEGIN,
    )
