"""Native module of the package; `ringbell` exports its classes."""

import sys
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, final

__all__ = ["Bootstrap", "Comm", "DeviceBuffer", "HostBuffer", "Job", "Nic", "Registration", "Request", "__version__"]

__version__: str

@final
class Nic:
    """A NIC with its GPU.

    ``ip`` is its address and network (``"10.0.0.1/24"``). ``job`` gives the settings of a rank; other arguments override them. ``transport``:
    ``auto``, ``local``, ``tcp`` or ``rdma``. ``port``: ``none``, ``udp[:BIND[,PEER...]]``, ``roce[...]`` or ``tap:NAME``. ``gpu``: ``auto``, ``emulated`` or ``cuda:N``.
    ``progress``: ``waiter`` or ``dedicated``.

    Raises:
        InvalidArgument: A setting cannot be read.
        HostError: A socket, memory or the GPU was refused.
    """

    def __new__(
        cls,
        ip: str | None = None,
        *,
        job: Job | None = None,
        transport: str | None = None,
        port: str | None = None,
        directory: str | None = None,
        gpu: str | None = None,
        gpu_memory: int | None = None,
        progress: str | None = None,
    ) -> Nic: ...
    @property
    def ip(self) -> str: ...
    def describe(self) -> str:
        """Settings, transports, counters and sessions as text."""
    def alloc_host(self, shape: int | Sequence[int], dtype: str = "float32") -> HostBuffer:
        """Zeroed host memory that NICs of this host map: one copy moves a message. ``numpy.asarray`` makes an array of it, without a copy."""
    def alloc(self, shape: int | Sequence[int], dtype: str = "float32") -> DeviceBuffer:
        """Memory of the GPU. Its contents are undefined."""
    def register(self, array: Any) -> Registration:
        """Registers an array's memory, so that operations on it, or on parts of it, need not."""
    def flush(self, timeout: float) -> bool:
        """Waits until nothing is under way; whether it was in time."""
    def close(self) -> None:
        """Ends the NIC: what waits retires, what was sent is delivered if it can be."""

@final
class Job:
    """This process's place in a job."""

    @staticmethod
    def from_env() -> Job:
        """As ``ringbell run``, ``ringbell-run``, torchrun, mpirun, mpiexec or srun gives it in the environment."""
    @staticmethod
    def of(id: str, rank: int, size: int) -> Job:
        """A place that no launcher gave; ``id`` is that of a server of the job's bootstrap. Transport and port are the environment's."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int | None: ...
    @property
    def launcher(self) -> str: ...

@final
class Bootstrap:
    """The server by which the ranks of a job find each other, at an address of this host; ``ringbell.run`` holds one."""

    def __new__(cls, ranks: int, host: str = "127.0.0.1") -> Bootstrap: ...
    @property
    def id(self) -> str: ...
    @property
    def directory(self) -> Any: ...
    def rank_ended(self, rank: int, how: str) -> None: ...

@final
class HostBuffer:
    """Host memory on pages of its own, with the buffer protocol; ``bfloat16`` is exported as its 16 bits."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def free(self) -> None:
        """Frees it now. Raises ``BufferError`` while arrays of it exist."""
    # The interpreter shows the protocol's methods from 3.12 on.
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class DeviceBuffer:
    """Memory of the GPU; its bytes are copied in and out."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def write(self, source: Any, offset: int = 0) -> None:
        """Copies an array's bytes to ``offset`` bytes behind the start."""
    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Copies bytes out; all from ``offset`` on without ``nbytes``."""
    def free(self) -> None: ...

@final
class Registration:
    """A registration of an array's memory, until it is ended or dropped; a context manager."""

    def end(self) -> None:
        """Ends it; operations that use it keep it until they have ended."""
    def __enter__(self) -> Registration: ...
    def __exit__(self, *_args: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Request:
    """An outstanding operation. Its arrays belong to the NIC until it has ended; one that is dropped continues. ``await`` waits for it."""

    @property
    def patience(self) -> float:
        """Seconds after which ``wait`` without a time-out gives up: more than the operation's own time-out."""
    def test(self) -> bool:
        """Whether it has ended; never waits. Raises what the operation failed with."""
    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, and returns the bytes moved. Raises ``InProgress`` when ``timeout`` seconds were not enough. Ctrl-C ends the wait, not the operation."""
    def finish(self) -> int:
        """As ``wait``; Ctrl-C also ends the operation: it is cancelled, or the communicator aborted when other ranks depend on it."""
    def cancel(self) -> None:
        """Cancels it, if no other rank depends on it yet: a message that has met no partner."""
    def __await__(self) -> Generator[Any, None, int]: ...

@final
class Comm:
    """A communicator; ``ringbell.Communicator`` names its operations."""

    @staticmethod
    def of_job(
        nic: Nic,
        job: Job,
        *,
        timeout: float | None = None,
        init_timeout: float | None = None,
        algo: str | None = None,
        wire: str | None = None,
    ) -> Comm: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def job_ranks(self) -> list[int]: ...
    @property
    def timeout(self) -> float: ...
    @property
    def transports(self) -> list[str | None]: ...
    def post(
        self,
        kind: str,
        src: Any,
        dst: Any,
        op: str | None = None,
        root: int | None = None,
        tag: int | None = None,
        timeout: float | None = None,
        algo: str | None = None,
        wire: str | None = None,
    ) -> Request: ...
    def post_tensors(
        self,
        kind: str,
        dtype: str,
        src: tuple[Any, int, int] | None,
        dst: tuple[Any, int, int] | None,
        op: str | None,
        root: int | None,
        tag: int | None,
        timeout: float,
    ) -> Request:
        """As ``post``, on contiguous tensors of PyTorch, each with its address and bytes. Their storages stay registered."""
    def load_program(self, text: str) -> None: ...
    def split(self, colour: int | None, key: int = 0) -> Comm | None: ...
    def shrink(self, patience: float) -> Comm: ...
    def abort(self) -> None: ...
    def settle(self) -> None: ...
    def finish(self, patience: float) -> None: ...
