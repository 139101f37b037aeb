"""Exceptions by the NIC's status, with the ranks at fault."""

from collections.abc import Sequence


class RingbellError(RuntimeError):
    """An operation failed.

    ``status`` is the NIC's status by name (``PEER_FAILED``), or ``JOB``, ``HOST``, ``KERNEL`` or ``IN_PROGRESS``. ``rank`` is the own rank where an operation of a
    communicator failed, ``peers`` the ranks at fault, ``detail`` the status's detail.
    """

    def __init__(
        self,
        message: str,
        *,
        status: str = "",
        rank: int | None = None,
        peers: Sequence[int] = (),
        detail: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.rank = rank
        self.peers = tuple(peers)
        self.detail = detail


class InvalidArgument(RingbellError, ValueError):
    """A root, count, type, algorithm or array that the call cannot take."""


class TimedOut(RingbellError, TimeoutError):
    """The deadline passed; ``peers`` has the rank that had not come, where one is known."""


class InProgress(RingbellError, TimeoutError):
    """The wait was shorter than the operation, which continues: wait again, or cancel it."""


class PeerFailed(RingbellError, ConnectionError):
    """A rank has ended or cannot be reached; ``Communicator.shrink`` goes on without it."""


class NotConnected(RingbellError, ConnectionError):
    """No program listens there, the peer cannot be reached, or the socket is closed."""


class Aborted(RingbellError, ConnectionError):
    """The communicator was aborted, here or by the rank in ``peers``."""


class Mismatch(RingbellError, ValueError):
    """Ranks called different operations, counts, types, reductions or roots; ``peers`` has the first that differs."""


class Cancelled(RingbellError):
    """The operation was cancelled before it had begun."""


class JobError(RingbellError):
    """The ranks did not find each other, or the environment does not say which rank this is; ``peers`` has missing ranks of the job."""


class HostError(RingbellError, OSError):
    """The host, the GPU or the NIC refused memory, a file, a socket or a registration."""


_BY_STATUS: dict[str, type[RingbellError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "TIMED_OUT": TimedOut,
    "NIC_SILENT": TimedOut,
    "IN_PROGRESS": InProgress,
    "PEER_FAILED": PeerFailed,
    "CONNECTION_RESET": PeerFailed,
    "CONNECTION_REFUSED": NotConnected,
    "HOST_UNREACHABLE": NotConnected,
    "NOT_CONNECTED": NotConnected,
    "BAD_SESSION": NotConnected,
    "ADDRESS_IN_USE": HostError,
    "COMM_ABORTED": Aborted,
    "ABORTED": Aborted,
    "MISMATCH": Mismatch,
    "CANCELLED": Cancelled,
    "JOB": JobError,
    "HOST": HostError,
}


def of_status(
    message: str,
    *,
    status: str,
    rank: int | None = None,
    peers: Sequence[int] = (),
    detail: int | None = None,
) -> RingbellError:
    """The exception for a status; the native module calls it."""
    kind = _BY_STATUS.get(status, RingbellError)
    return kind(message, status=status, rank=rank, peers=peers, detail=detail)
