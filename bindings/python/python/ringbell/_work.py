# mypy: disable-error-code=import-not-found, allow-subclassing-any, no-warn-return-any
"""Operations of the PyTorch backend under way: ``c10d.Work`` objects, and the thread that completes their futures."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch._C import _distributed_c10d as c10d

from ringbell import errors
from ringbell._ringbell import Request

__all__ = ["After", "Work", "pass_on"]

#: Time, in seconds, for which the thread that completes futures waits for one operation before it looks at the others.
_SLICE = 0.001
#: Longest time, in seconds, for which a stream of CUDA's is waited for: as the NIC waits for one.
_PATIENCE = 10.0

After: TypeAlias = Callable[[], object]


def _wait_for_stream(device: torch.device) -> None:
    """Waits for the present work of the thread's stream.

    Raises:
        TimedOut: It has not ended after ``_PATIENCE`` seconds.
    """
    end, limit = torch.cuda.current_stream(device).record_event(), time.monotonic() + _PATIENCE
    while not end.query():
        if time.monotonic() > limit:
            raise errors.TimedOut(
                f"the copies behind a collective have not ended on the stream of {device} after {_PATIENCE:.0f} s: look for a kernel that does not end",
                status="TIMED_OUT",
            )
        time.sleep(_SLICE / 10)


class Work(c10d.Work):
    """Operations under way, and what follows them on this rank: copies out of a buffer, the division of an average."""

    def __init__(self, name: str, requests: list[Request], after: list[After], result: list[torch.Tensor]) -> None:
        super().__init__()
        self._name, self._requests, self._after, self._result = name, requests, after, result
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._future: torch.futures.Future[None] | None = None
        self._ended = False
        #: Told of its end, with its number.
        self._group: Any = None
        self._key = 0
        #: Of a receive.
        self._source: int | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Waits for the end; at most ``timeout``, where one is given."""
        seconds = timeout.total_seconds()
        limit = time.monotonic() + seconds if seconds > 0 else None
        if not self._lock.acquire(timeout=seconds if limit else -1):
            raise self._late(seconds)
        try:
            if not self._finish(limit):
                raise self._late(seconds)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error
        return True

    def _late(self, seconds: float) -> errors.RingbellError:
        return errors.InProgress(f"{self._name}: Timed out after {seconds} s, and the operation goes on; wait again", status="IN_PROGRESS")

    def poll(self) -> bool:
        """Waits a moment, unless another thread waits; whether it has ended."""
        if not self._lock.acquire(blocking=False):
            time.sleep(_SLICE)
            return self._ended
        try:
            return self._finish(time.monotonic() + _SLICE)
        finally:
            self._lock.release()

    def is_completed(self) -> bool:
        """Whether it has ended; never waits."""
        if not self._lock.acquire(blocking=False):
            return self._ended
        try:
            return self._finish(time.monotonic())
        finally:
            self._lock.release()

    def _finish(self, limit: float | None) -> bool:
        if self._ended:
            return True
        try:
            while self._requests:
                left = None if limit is None else max(limit - time.monotonic(), 1e-6)
                self._requests[0].wait(left)
                self._source = self._requests.pop(0).source
            follows = bool(self._after)
            while self._after:
                # A step that raises is not run again.
                self._after.pop(0)()
            if follows and self._result and self._result[0].is_cuda:
                # This may be another thread than the one that uses the result, with another stream.
                _wait_for_stream(self._result[0].device)
        except errors.InProgress:
            return False
        except Exception as error:
            self._error = error
        self._ended = True
        self._after, self._requests = [], []
        if self._group is not None:
            self._group._is_over(self._key, self._error)
        if self._future is not None:
            self._future.set_result(None)
        return True

    def _source_rank(self) -> int:
        """Rank in the group that sent what a receive has got."""
        if self._source is None:
            raise RuntimeError(f"{self._name} has received nothing; wait for it first")
        return self._source

    source_rank = _source_rank

    def get_future(self) -> Any:
        """A future of the tensors; a thread completes it."""
        if getattr(_asked, "now", False):
            _asked.work = self
            return torch.futures.Future()
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._ended:
                    self._future.set_result(None)
                else:
                    _completer.add(self)
        # The function's exception becomes an error that C++ sees too, as that of a future itself would not.
        return self._future.then(self._outcome)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._result


_asked = threading.local()


def _inside(work: Any) -> Work | None:
    """The object of this module in the one that PyTorch gives a program instead of it.

    That one, PyWorkHolder in C++, passes on ``wait`` and ``get_future`` and nothing else, up to PyTorch 2.15. So its ``get_future`` is called to find what is inside.
    """
    if type(work) is not c10d.Work:
        return None
    _asked.now, _asked.work = True, None
    try:
        work.get_future()
    except RuntimeError:
        pass  # A work without futures.
    finally:
        _asked.now = False
    return _asked.work


def pass_on() -> None:
    """Lets ``is_completed`` and ``source_rank`` of such objects reach the works inside; those of other backends answer as before."""
    is_completed, source_rank = c10d.Work.is_completed, c10d.Work._source_rank

    def completed(work: Any) -> bool:
        if is_completed(work):
            return True
        own = _inside(work)
        return own is not None and own.is_completed()

    def source(work: Any) -> int:
        own = _inside(work)
        return source_rank(work) if own is None else own._source_rank()

    c10d.Work.is_completed, c10d.Work._source_rank, c10d.Work.source_rank = completed, source, source


class _Completer:
    """The thread that completes futures."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = 0

    def add(self, work: Work) -> None:
        if self._thread is None or self._process != os.getpid():
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="ringbell-torch", daemon=True)
            self._thread.start()
        self._new.put(work)

    def _run(self) -> None:
        waiting: list[Work] = []
        while True:
            if not waiting:
                waiting.append(self._new.get())
            while not self._new.empty():
                waiting.append(self._new.get())
            waiting = [work for work in waiting if not work.poll()]


_completer = _Completer()
