"""Native module of the package; `ringbell` exports its classes."""

import sys
from collections.abc import Generator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, final

__all__ = ["Bootstrap", "Comm", "DeviceBuffer", "Engine", "HostBuffer", "Job", "Listener", "Nic", "Registration", "Request", "Socket", "__version__"]

__version__: str

@final
class Nic:
    """A NIC with its GPU.

    ``ip`` is its address and network (``"10.0.0.1/24"``). ``job`` gives the settings of a rank; other arguments override them. ``new_rank_of``: the id of a
    running job, which this process joins as a new rank within ``join_timeout`` seconds; ``Comm.join`` comes next. ``transport``:
    ``auto``, ``local``, ``tcp`` or ``rdma``. ``port``: ``none``, ``udp[:BIND[,PEER...]]``, ``roce[...]``, ``tap:NAME`` or ``mesh:NETWORK``. ``gpu``: ``auto``, ``emulated`` or ``cuda:N``.
    ``progress``: ``waiter`` or ``dedicated``. ``max_queues``: 1 to 512, 64 if none is given; each communicator has one, and NIC
    memory, which grows with the number.

    Over port ``mesh:NETWORK``: ``node`` is the rank of the NIC's node (0, or the rank in the job), ``wires`` what its ports are wired to
    (``{0: "udp:10.0.0.1:4000,10.0.0.2:4001"}``), ``tables`` a file of ``ringbell routes NETWORK --json FILE``, ``wire_grace`` the seconds
    for which no wire may lead to a node before what is connected to it ends (1 if none is given), and ``wire_poll`` the packets that an output takes
    from one queue before it looks at the next (8).

    Raises:
        InvalidArgument: A setting cannot be read.
        HostError: A socket, memory or the GPU was refused.
    """

    def __new__(
        cls,
        ip: str | None = None,
        *,
        job: Job | None = None,
        new_rank_of: str | None = None,
        join_timeout: float = 30.0,
        transport: str | None = None,
        port: str | None = None,
        directory: str | None = None,
        gpu: str | None = None,
        gpu_memory: int | None = None,
        progress: str | None = None,
        max_queues: int | None = None,
        node: int | None = None,
        wires: Mapping[int, str] | None = None,
        tables: str | PathLike[str] | None = None,
        wire_grace: float | None = None,
        wire_poll: int | None = None,
    ) -> Nic: ...
    @property
    def ip(self) -> str: ...
    def describe(self) -> str:
        """Settings, transports, counters and sessions as text."""
    def alloc_host(self, shape: int | Sequence[int], dtype: object = ...) -> HostBuffer:
        """Zeroed host memory that NICs of this host map: one copy moves a message. A type is numpy's name or object, or PyTorch's; float32 if none is given. ``numpy.asarray`` makes an array of it, without a copy."""
    def alloc(self, shape: int | Sequence[int], dtype: object = ...) -> DeviceBuffer:
        """Memory of the GPU; types as for ``alloc_host``. Its contents are undefined."""
    def register(self, array: Any) -> Registration:
        """Registers an array's memory, so that operations on it, or on parts of it, need not."""
    def listen(self, port: int, backlog: int = 0) -> Listener:
        """Listens at a port of the NIC's address, on all its transports; ``backlog`` connections may wait to be accepted (0: 16)."""
    def connect(self, to: str, timeout: float | None = None) -> Socket:
        """Connects to ``address:port``; ``timeout`` is that of the socket's calls, as by ``settimeout``.

        Raises:
            NotConnected: No program listens there, or the peer cannot be reached.
            TimedOut: It did not answer in time.
        """
    def flush(self, timeout: float) -> bool:
        """Waits until nothing is under way; whether it was in time."""
    def replace_routes(self, file: str | PathLike[str], timeout: float = 10.0) -> None:
        """Has all NICs of its mesh forward by the tables of a file, as ``ringbell routes NETWORK --json FILE`` writes it, while they run. One NIC calls it: all change or none does.

        Raises:
            InvalidArgument: The NIC has no port ``mesh``.
            HostError: The file cannot be read, the tables' proof does not hold, or a node refuses or has not answered within ``timeout`` seconds.
        """
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
    @property
    def in_use(self) -> bool:
        """Whether arrays made of it, or other views by the buffer protocol, are in use."""
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
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where it lies, for CuPy, Numba and PyTorch. Raises ``AttributeError`` where the GPU is emulated."""
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
    @property
    def source(self) -> int | None:
        """Rank that sent the message of a receive; ``None`` before it has come, and of other operations."""
    @property
    def tag(self) -> int | None:
        """Tag of that message."""
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
class Listener:
    """A port at which the NIC listens; closed by ``close``, the end of a ``with``, or when it is dropped."""

    @property
    def port(self) -> int: ...
    def accept(self, timeout: float | None = None) -> Socket:
        """Waits for a connection; ``timeout`` as by ``settimeout``. Raises TimedOut when none came; the listener stays usable."""
    def settimeout(self, timeout: float) -> None:
        """Longest wait of ``accept`` in seconds, and the initial one of its sockets (10)."""
    def close(self) -> None: ...
    def __enter__(self) -> Listener: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Socket:
    """A stream of bytes to a peer, from and into arrays in place. Arrays are of any type and shape, contiguous; their bytes count.

    Calls raise TimedOut, PeerFailed (the peer is gone) or NotConnected. Ctrl-C closes the connection.
    """

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the other end."""
    def send(self, array: Any) -> None:
        """Sends all bytes of an array; it may be changed then."""
    def recv(self, array: Any, timeout: float | None = None) -> int:
        """Receives until the array is full or the peer has closed its side; returns the bytes. ``timeout``: seconds for this call. When some bytes had come by then, the stream has ended."""
    def recv_some(self, array: Any, timeout: float | None = None) -> int:
        """Receives at least one byte; returns how many, 0 when the peer has closed its side. ``timeout``: seconds for this call."""
    def shutdown(self) -> None:
        """Closes the sending side behind what was sent; receives go on."""
    def settimeout(self, timeout: float) -> None:
        """Longest time of each call in seconds (10)."""
    def attach_engine(self, engine: Any, direction: Literal["received", "sent"] = "received") -> Engine:
        """Puts an engine on the bytes that are received or sent from here on: a text (``"hll:p=14"``, ``"checksum"``), or an object (:class:`Engine`)."""
    def close(self) -> None: ...
    def __enter__(self) -> Socket: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Engine:
    """An engine on the path of bytes. It stays there when this object is dropped.

    An engine of the program is an object with ``process(data: bytes)``, ``result()`` and, if it wants, ``finish()`` for the end of a stream. It sees the
    bytes, and cannot change them. It runs when its result is asked for: until then at most 256 MiB wait for it, beyond which it fails.
    """

    @property
    def name(self) -> str: ...
    def result(self) -> Any:
        """The result so far: of an own engine what its ``result`` returns; else a dictionary with ``data`` (bytes in the engine's format), ``cut`` (bytes of an
        item that the end has cut off), and for ``hll`` ``estimate``, ``relative_error`` and ``items``, for ``checksum`` ``crc32c`` and ``bytes``."""
    def detach(self) -> Any:
        """Takes it off its path, and returns its last result."""

@final
class Comm:
    """A communicator; ``ringbell.Communicator`` names its operations."""

    @staticmethod
    def of_job(nic: Nic, job: Job, **settings: Any) -> Comm: ...
    @staticmethod
    def join(nic: Nic, **settings: Any) -> Comm: ...
    def attach_engine(self, engine: Any, place: str, item: int = 1) -> Engine: ...
    @property
    def job_id(self) -> str: ...
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
        **options: Any,
    ) -> Request: ...
    def post_tensors(
        self,
        kind: str,
        dtype: str,
        src: tuple[Any, int, int, int | None] | None,
        dst: tuple[Any, int, int, int | None] | None,
        op: str | None,
        root: int | None,
        tag: int | None,
        timeout: float,
    ) -> Request:
        """As ``post``, on contiguous tensors of PyTorch, each with its address, bytes and, in CUDA's memory, the stream whose work it waits for.

        Storages in the host's memory stay registered.
        """
    def load_program(self, text: str) -> None: ...
    def split(self, colour: int | None, key: int = 0) -> Comm | None: ...
    def shrink(self, patience: float) -> Comm: ...
    def grow(self, ranks: int, patience: float) -> Comm: ...
    def merge(self, others: Sequence[int]) -> Comm: ...
    def abort(self) -> None: ...
    def settle(self) -> None: ...
    def finish(self, patience: float) -> None: ...
