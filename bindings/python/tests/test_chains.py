"""Operations that the NIC starts after others, those of one rank alone, and settings by name."""

import subprocess
import sys
from pathlib import Path

from conftest import Ranks

LISTING = Path(__file__).parents[3] / "examples/19_accl_listing.py"


def test_the_listing_of_accl_runs() -> None:
    for ranks in (2, 3):
        command = [sys.executable, "-m", "ringbell.run", "-R", str(ranks), "--deadline", "50", str(LISTING)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("256 elements combined") == ranks


def test_operations_begin_after_others(ranks: Ranks) -> None:
    ranks(
        """
        import asyncio, threading
        comm = ringbell.init(timeout=20)
        other = 1 - comm.rank
        # Nothing begins before the message has come, which the peer sends only when it has seen that.
        box, x, kept = np.zeros(4), np.full(8, comm.rank + 1.0), np.zeros(8)
        first = comm.irecv(box, other, 7)
        second = comm.icopy(x, kept, after=first)
        third = comm.icombine(x, kept, "prod", after=[second])
        last = comm.inop(after=(first, second, third))
        time.sleep(0.2)
        assert not (second.test() or third.test() or last.test())
        assert (kept == 0).all()
        comm.barrier()
        comm.send(np.ones(4), other, 7)
        assert last.wait() == 0
        assert (kept == x * x).all()
        # One that has ended is nothing to wait for; one for which a thread waits is.
        comm.copy(kept, x, after=[first, second])
        late = comm.irecv(box, other, 8)
        waiting = threading.Thread(target=late.wait)
        waiting.start()
        time.sleep(0.1)
        behind = comm.inop(after=[late])
        assert not behind.test()
        comm.barrier()
        comm.send(np.ones(4), other, 8)
        behind.wait()
        waiting.join()
        # Chains of collectives, awaited.
        async def chain():
            y = np.full(1000, comm.rank + 1, np.float32)
            all = np.zeros(2000, np.float32)
            ch = comm.iall_reduce(y)
            await comm.iall_gather(y, all, after=[ch])
            assert (all == 3).all()
        asyncio.run(chain())
        """,
        2,
    )


def test_what_cannot_come_before_is_refused(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        half = comm.split(0)
        def refused(kind, call):
            try:
                call()
            except kind as e:
                return str(e)
            raise AssertionError(f"accepted, not {kind}")
        x = np.zeros(4)
        pending = half.irecv(x, comm.rank, 3)
        assert "another communicator" in refused(errors.InvalidArgument, lambda: comm.nop(after=[pending]))
        pending.cancel()
        refused(errors.Cancelled, pending.wait)
        assert "has failed" in refused(errors.RingbellError, lambda: half.nop(after=[pending]))
        for wrong in (3, [3], "first", [None]):
            assert "requests" in refused(TypeError, lambda: comm.nop(after=wrong))
        comm.nop(after=[])
        comm.nop(after=None)
        # Names of the call that was made, and not of an inner one.
        text = refused(TypeError, lambda: comm.all_reduce(x, timout=1))
        assert "all_reduce() has no argument `timout`" in text and "timeout" in text, text
        assert "recv()" in refused(TypeError, lambda: comm.recv(x, 0, timout=1))
        for given in ([1.0, 2.0], (1.0,), 3.5, "text", None):
            if given is None:
                continue
            text = refused(TypeError, lambda: comm.all_reduce(given))
            assert f"`{type(given).__name__}`" in text and "numpy.array(x" in text, text
        comm.barrier()
        """,
        2,
    )


def test_settings_by_name(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(
            timeout=20, algo="ring", wire="bf16", eager_max=2048, eager_buffers=4, segment_bytes=65536, direct=False, port=18700
        )
        x = np.full(1000, comm.rank + 1.0)
        comm.all_reduce(x)
        assert (x == 3).all()
        def refused(kind, word, **settings):
            try:
                ringbell.init(nic=comm.nic, **settings)
            except kind as e:
                assert word in str(e), e
                return
            raise AssertionError(f"accepted: {settings}")
        refused(TypeError, "no setting `eager`; there is", eager=1)
        refused(errors.InvalidArgument, "direct", direct=2)
        refused(errors.InvalidArgument, "algo", algo="pigeon")
        comm.finish()
        """,
        2,
    )
    ranks(
        """
        try:
            ringbell.init(timeout=20, segment_bytes=65536 << int(os.environ["RINGBELL_RANK"]))
            raise AssertionError("the settings differ")
        except errors.Mismatch as e:
            assert e.peers == (1,) and "segment_bytes" in str(e), e
        """,
        2,
    )


def test_a_mismatch_says_what_to_do(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        try:
            comm.all_reduce(np.ones(8 if comm.rank else 9))
            raise AssertionError("the counts differ")
        except errors.Mismatch as e:
            assert "shrink the communicator or make a new one" in str(e), e
        """,
        2,
        keep_going=True,
    )
