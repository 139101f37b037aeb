"""Awaiting requests: a thread of the event loop's executor waits."""

import asyncio
import threading
import time

from ringbell._ringbell import Request
from ringbell.errors import InProgress, RingbellError

#: Longest time, in seconds, in which the thread does not notice that its task was cancelled.
_SLICE = 0.1


def _wait(request: Request, given_up: threading.Event) -> int:
    limit = time.monotonic() + request.patience
    while time.monotonic() < limit and not given_up.is_set():
        try:
            return request.wait(_SLICE)
        except InProgress:
            pass
    if not given_up.is_set():
        return request.wait(_SLICE)
    try:
        request.cancel()
    except RingbellError:
        pass  # It has begun: it ends by its own deadline, and keeps its arrays until then.
    return 0


async def until_done(request: Request) -> int:
    """Waits for a request, and returns the bytes moved. A task that is cancelled cancels the operation, if it has not begun."""
    if request.test():
        return request.wait()
    given_up = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(None, _wait, request, given_up)
    finally:
        given_up.set()
