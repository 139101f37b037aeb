"""New ranks: processes that join a running job, and jobs whose ranks die meanwhile."""

from __future__ import annotations

from conftest import Ranks


#: Starts a process that joins the job, and what it does as `comm`.
JOINER = """
        import subprocess
        def start(text, job_id=None):
            program = "import numpy as np, os, sys, ringbell\\nfrom ringbell import errors\\n" + text
            environment = os.environ | ({"RINGBELL_ID": job_id} if job_id else {})
            return subprocess.Popen([sys.executable, "-c", program], env=environment)
        JOIN = "comm = ringbell.join(init_timeout=30)\\n"
        SUM = "x = np.full(1000, comm.rank + 1.0); comm.all_reduce(x); assert (x == sum(range(1, comm.size + 1))).all(), x\\n"
        def ended(process):
            assert process.wait(40) == 0
"""


def test_a_killed_rank_is_replaced_while_the_others_run(ranks: Ranks) -> None:
    ranks(
        JOINER
        + """
        comm = ringbell.init(timeout=20)
        comm.barrier()
        if comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.barrier()
            raise AssertionError("rank 2 is gone")
        except errors.PeerFailed:
            pass
        comm = comm.shrink()
        new = start(JOIN + "assert comm.job_ranks == [0, 1, 3], comm.job_ranks\\n" + SUM) if comm.rank == 0 else None
        comm = comm.grow(3)
        exec(SUM)
        if new:
            ended(new)
        """,
        3,
        keep_going=True,
        code=137,
    )


def test_one_rank_grows_by_two_and_halves_merge(ranks: Ranks) -> None:
    ranks(
        JOINER
        + """
        comm = ringbell.init(timeout=20)
        halves = (
            "half = comm.split(comm.rank % 2)\\n"
            "others = [r for r in comm.job_ranks if r not in half.job_ranks]\\n"
            "comm = half.merge(others)\\nassert comm.job_ranks == [0, 2, 1], comm.job_ranks\\n"
        )
        # The request of the old communicator is under way meanwhile.
        early = comm.irecv(box := np.zeros(4), 0, 3)
        new = [start(JOIN + SUM + halves + SUM, comm.job_id) for _ in range(2)]
        old, comm = comm, comm.grow(3)
        exec(SUM + halves + SUM)
        old.send(np.ones(4), 0, 3)
        assert early.wait() == 32 and box[0] == 1
        [ended(p) for p in new]
        """,
        1,
    )


def test_outsiders_and_ranks_that_die_during_a_growth(ranks: Ranks) -> None:
    ranks(
        JOINER
        + """
        comm = ringbell.init(timeout=20)
        def refused(ranks, patience, word):
            try:
                comm.grow(ranks, patience)
            except errors.JobError as e:
                assert word in str(e), e
                return e
            raise AssertionError("it has grown")
        if comm.rank == 0:
            secret, at = comm.job_id[4:].split("@")
            lie = f"rb1-{secret[::-1]}@{at}"
            expect = "try:\\n    ringbell.join(init_timeout=5)\\n    sys.exit(1)\\nexcept errors.JobError as e:\\n    assert 'secret' in str(e), e\\n"
            ended(start(expect, lie))
        comm.barrier()
        refused(4, 0.5, "0 of 1 new rank(s)")
        exec(SUM)
        # One is admitted and killed before it joins; the growth takes the next one.
        if comm.rank == 0:
            dying = start("nic = ringbell.Nic(new_rank_of=os.environ['RINGBELL_ID'])\\nos.kill(os.getpid(), 9)")
            assert dying.wait(30) == -9
            new = start(JOIN + SUM)
        grown = comm.grow(4)
        assert grown.job_ranks == [0, 1, 2, 4], grown.job_ranks
        old, comm = comm, grown
        exec(SUM)
        if comm.rank == 0:
            ended(new)
        comm = old
        # A rank is killed while the others wait.
        if comm.rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        e = refused(4, 30, "have ended")
        assert e.peers == (1,), e.peers
        """,
        3,
        keep_going=True,
        code=137,
    )
