"""Communicators: groups of ranks that run collectives together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from ringbell._ringbell import Comm, Engine, Job, Nic, Request
from ringbell.errors import RingbellError

#: An object whose memory the NIC uses: a numpy array, a buffer of this package, any object with the buffer protocol.
Array: TypeAlias = Any
Op: TypeAlias = Literal["sum", "prod", "min", "max"]
Algo: TypeAlias = Literal[
    "auto", "direct", "ring", "recursive_doubling", "all_gather_reduce", "tree", "flat", "chain", "linear", "pairwise", "hierarchical", "user"
]
Wire: TypeAlias = Literal["same", "bf16", "f16"]


class Options(TypedDict, total=False):
    """Options of one operation, by name."""

    #: Seconds, instead of the communicator's.
    timeout: float | None
    algo: Algo | None
    #: Type of float32 elements between ranks.
    wire: Wire | None
    #: Requests of the same communicator that must have ended before it begins.
    after: Request | Sequence[Request] | None


class Settings(TypedDict, total=False):
    """Settings of a communicator, by name; docs/collectives.md describes them. Every rank gives the same."""

    algo: Algo | None
    wire: Wire | None
    #: Port of the NIC at which it serves collectives.
    port: int | None
    eager_max: int | None
    eager_buffers: int | None
    segment_bytes: int | None
    segments_in_flight: int | None
    scratch_bytes: int | None
    stream_bytes: int | None
    staging_bytes: int | None
    direct: bool | None
    direct_eager_bytes: int | None
    flat_ranks: int | None
    whole_sources: int | None
    all_reduce_ring: int | None
    broadcast_chain: int | None
    gather_tree: int | None
    all_gather_ring: int | None
    card: bool | None
    trees: bool | None
    host_ranks: int | Sequence[int] | None
    linked_ranks: int | None


def init(
    *,
    nic: Nic | None = None,
    job: Job | None = None,
    timeout: float | None = None,
    init_timeout: float | None = None,
    deterministic: bool = False,
    **settings: Unpack[Settings],
) -> Communicator:
    """The communicator of the job in which this process was started; opens a NIC for it unless one is given.

    Waits until all ranks have come, at most ``init_timeout`` seconds (30). Operations end after ``timeout`` seconds (30).
    With ``deterministic`` every reduction runs in the order of the ranks, and its bits depend on nothing but the ranks' elements. :class:`Settings` names the
    other settings: ``ringbell.init(algo="ring", eager_max=4096)``.

    Raises:
        JobError: No launcher has started this process, or ranks did not come; ``peers`` names them.
    """
    job = Job.from_env() if job is None else job
    nic = Nic(job=job) if nic is None else nic
    return Communicator(nic, job, timeout=timeout, init_timeout=init_timeout, deterministic=deterministic, **settings)


def join(
    job_id: str | None = None,
    *,
    timeout: float | None = None,
    init_timeout: float | None = None,
    deterministic: bool = False,
    **settings: Unpack[Settings],
) -> Communicator:
    """Joins a running job as a new rank, and returns the communicator that takes it in: its ranks call :meth:`Communicator.grow`.

    ``job_id`` is :attr:`Communicator.job_id` of any rank, or without it the variable RINGBELL_ID. Waits at most ``init_timeout`` seconds (30). The settings
    must be those of the other ranks.

    Raises:
        JobError: No process serves the job, or no communicator grew in time.
    """
    job_id = os.environ.get("RINGBELL_ID", "") if job_id is None else job_id
    nic = Nic(new_rank_of=job_id, join_timeout=30.0 if init_timeout is None else init_timeout)
    comm = Comm.join(nic, timeout=timeout, init_timeout=init_timeout, deterministic=deterministic, **settings)
    return Communicator.__new__(Communicator)._hold(nic, comm)


class Communicator:
    """A group of ranks that run collectives together. Every rank makes the same calls in the same order.

    Calls block until the operation has ended. Those that begin with ``i`` return a :class:`Request`, to be waited for or awaited, after
    which the arrays are the program's again. Options of every operation, by name:

    - ``timeout``: seconds, instead of the communicator's.
    - ``algo``: ``"auto"``, ``"direct"``, ``"ring"``, ``"recursive_doubling"``, ``"all_gather_reduce"``, ``"tree"``, ``"flat"``, ``"chain"``, ``"linear"``, ``"pairwise"``, ``"hierarchical"``, ``"user"``.
    - ``wire``: ``"bf16"`` or ``"f16"``, the type of float32 elements between ranks.
    - ``after``: a request or several of this communicator. The NIC begins the operation when they have ended, without the program; with several, when all
      that was posted before has.

    Shapes are free: an array counts as its elements in order. Where the text says *n* elements, any array of *n* elements serves.

    Raises (every operation):
        InvalidArgument: Arrays do not fit each other in size or type.
        TimedOut: A rank had not come in time; ``peers`` names it.
        PeerFailed: A rank has ended; ``peers`` names it.
        Mismatch: A rank has called something else; ``peers`` names it.
        Aborted: A rank has aborted the communicator.
        BufferError: An array is not contiguous, or a destination is read-only.
        TypeError: An element type that the NIC does not have.
    """

    __slots__ = ("_comm", "_nic", "rank", "size", "__weakref__")

    #: Own rank, from 0.
    rank: int
    #: Number of ranks.
    size: int

    def __init__(
        self,
        nic: Nic,
        job: Job,
        *,
        timeout: float | None = None,
        init_timeout: float | None = None,
        deterministic: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        """Makes the communicator of a job, together with its other ranks."""
        comm = Comm.of_job(nic, job, timeout=timeout, init_timeout=init_timeout, deterministic=deterministic, **settings)
        self._hold(nic, comm)

    def _hold(self, nic: Nic, comm: Comm) -> Communicator:
        self._nic, self._comm = nic, comm
        self.rank, self.size = comm.rank, comm.size
        return self

    def _of(self, comm: Comm) -> Communicator:
        return Communicator.__new__(Communicator)._hold(self._nic, comm)

    def __repr__(self) -> str:
        return f"<ringbell.Communicator rank {self.rank} of {self.size}>"

    @property
    def nic(self) -> Nic:
        """Its NIC."""
        return self._nic

    @property
    def timeout(self) -> float:
        """Seconds after which operations without a time-out of their own end."""
        return self._comm.timeout

    @property
    def job_ranks(self) -> Sequence[int]:
        """Rank in the job of each rank."""
        return self._comm.job_ranks

    @property
    def job_id(self) -> str:
        """The id by which a process may :func:`join` the job. It has the job's secret: keep it like a password.

        Ask for it shortly before: where the process that served the job has ended, another rank takes over, at another address."""
        return self._comm.job_id

    @property
    def transports(self) -> Sequence[str | None]:
        """Transport to each rank: ``"local"``, ``"tcp"``, ``"rdma"``, ``"udp"`` or ``"iwarp"``; ``None`` for the own one."""
        return self._comm.transports

    # Collectives: `iNAME` posts, `NAME` also waits.

    def attach_engine(self, engine: Any, place: Literal["input", "output", "sent", "received"], item: int = 1) -> Engine:
        """Puts an engine that sees the bytes of operations from here on: their sources, their results, or the messages that leave or come.

        ``engine`` is a text (``"hll:p=14"``, ``"checksum"``) or an object (:class:`Engine`). Items of ``item`` bytes are never mixed between peers.
        """
        return self._comm.attach_engine(engine, place, item)

    def iall_reduce(self, src: Array, dst: Array | None = None, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """As :meth:`all_reduce`, without waiting."""
        return self._comm.post("all_reduce", src, src if dst is None else dst, op, **options)

    def all_reduce(self, src: Array, dst: Array | None = None, op: Op = "sum", **options: Unpack[Options]) -> None:
        """Reduces every rank's *n* elements of ``src`` into *n* elements of ``dst``; in place without ``dst``."""
        self._comm.post("all_reduce", src, src if dst is None else dst, op, **options).finish()

    def ireduce_scatter(self, src: Array, dst: Array, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """As :meth:`reduce_scatter`, without waiting."""
        return self._comm.post("reduce_scatter", src, dst, op, **options)

    def reduce_scatter(self, src: Array, dst: Array, op: Op = "sum", **options: Unpack[Options]) -> None:
        """Reduces block *r* of every rank's ``src`` into rank *r*'s ``dst``: ``size`` × *n* elements into *n*."""
        self._comm.post("reduce_scatter", src, dst, op, **options).finish()

    def iall_gather(self, src: Array, dst: Array, **options: Unpack[Options]) -> Request:
        """As :meth:`all_gather`, without waiting."""
        return self._comm.post("all_gather", src, dst, **options)

    def all_gather(self, src: Array, dst: Array, **options: Unpack[Options]) -> None:
        """Copies rank *r*'s ``src`` to block *r* of every ``dst``: *n* elements to ``size`` × *n*."""
        self._comm.post("all_gather", src, dst, **options).finish()

    def ibroadcast(self, array: Array, root: int = 0, **options: Unpack[Options]) -> Request:
        """As :meth:`broadcast`, without waiting."""
        return self._comm.post("broadcast", array, array, None, root, **options)

    def broadcast(self, array: Array, root: int = 0, **options: Unpack[Options]) -> None:
        """Copies the root's *n* elements to every other rank's ``array``."""
        self._comm.post("broadcast", array, array, None, root, **options).finish()

    def ireduce(
        self, src: Array, dst: Array | None = None, op: Op = "sum", root: int = 0, **options: Unpack[Options]
    ) -> Request:
        """As :meth:`reduce`, without waiting."""
        return self._comm.post("reduce", src, src if dst is None else dst, op, root, **options)

    def reduce(
        self, src: Array, dst: Array | None = None, op: Op = "sum", root: int = 0, **options: Unpack[Options]
    ) -> None:
        """Reduces every rank's *n* elements into the root's ``dst``, or its ``src`` without one. Other ranks' ``dst`` is ignored."""
        self.ireduce(src, dst, op, root, **options).finish()

    def igather(self, src: Array, dst: Array | None = None, root: int = 0, **options: Unpack[Options]) -> Request:
        """As :meth:`gather`, without waiting."""
        return self._comm.post("gather", src, dst if self.rank == root else None, None, root, **options)

    def gather(self, src: Array, dst: Array | None = None, root: int = 0, **options: Unpack[Options]) -> None:
        """Copies rank *r*'s *n* elements to block *r* of the root's ``dst`` of ``size`` × *n*. Other ranks need no ``dst``."""
        self.igather(src, dst, root, **options).finish()

    def iscatter(self, src: Array | None, dst: Array, root: int = 0, **options: Unpack[Options]) -> Request:
        """As :meth:`scatter`, without waiting."""
        return self._comm.post("scatter", src if self.rank == root else None, dst, None, root, **options)

    def scatter(self, src: Array | None, dst: Array, root: int = 0, **options: Unpack[Options]) -> None:
        """Copies block *r* of the root's ``src`` of ``size`` × *n* elements to rank *r*'s ``dst``. Other ranks need no ``src``."""
        self.iscatter(src, dst, root, **options).finish()

    def iall_to_all(self, src: Array, dst: Array, **options: Unpack[Options]) -> Request:
        """As :meth:`all_to_all`, without waiting."""
        return self._comm.post("all_to_all", src, dst, **options)

    def all_to_all(self, src: Array, dst: Array, **options: Unpack[Options]) -> None:
        """Copies block *j* of rank *i*'s ``src`` to block *i* of rank *j*'s ``dst``; both have ``size`` × *n* elements."""
        self._comm.post("all_to_all", src, dst, **options).finish()

    def ibarrier(self, **options: Unpack[Options]) -> Request:
        """As :meth:`barrier`, without waiting."""
        return self._comm.post("barrier", None, None, **options)

    def barrier(self, **options: Unpack[Options]) -> None:
        """Returns when every rank has come."""
        self._comm.post("barrier", None, None, **options).finish()

    # Messages between two ranks.

    def isend(self, src: Array, to: int, tag: int = 0, **options: Unpack[Options]) -> Request:
        """As :meth:`send`, without waiting."""
        return self._comm.post("send", src, None, None, to, tag, **options)

    def send(self, src: Array, to: int, tag: int = 0, **options: Unpack[Options]) -> None:
        """Sends an array to rank ``to``; returns when the memory may be used again."""
        self._comm.post("send", src, None, None, to, tag, **options).finish()

    def irecv(self, dst: Array, source: int | None = None, tag: int | None = None, **options: Unpack[Options]) -> Request:
        """As :meth:`recv`, without waiting; the request gives the bytes received."""
        return self._comm.post("recv", None, dst, None, source, tag, **options)

    def recv(self, dst: Array, source: int | None = None, tag: int | None = None, **options: Unpack[Options]) -> int:
        """Receives at most as much as ``dst`` holds, from rank ``source`` (``None``: any) with a tag (``None``: any); returns the bytes received."""
        return self._comm.post("recv", None, dst, None, source, tag, **options).finish()

    def sendrecv(
        self, src: Array, to: int, dst: Array, source: int | None = None, tag: int = 0, **options: Unpack[Options]
    ) -> int:
        """Sends and receives at the same time, so that two ranks may call it with each other; returns the bytes received."""
        received = self.irecv(dst, source, tag, **options)
        try:
            self._comm.post("send", src, None, None, to, tag, **options).finish()
        except BaseException:
            # One that has begun ends by its own deadline.
            with contextlib.suppress(RingbellError):
                received.cancel()
            raise
        return received.finish()

    # Operations of this rank alone, by its NIC.

    def icopy(self, src: Array, dst: Array, **options: Unpack[Options]) -> Request:
        """As :meth:`copy`, without waiting."""
        return self._comm.post("copy", src, dst, **options)

    def copy(self, src: Array, dst: Array, **options: Unpack[Options]) -> None:
        """Copies *n* elements from ``src`` to ``dst``."""
        self._comm.post("copy", src, dst, **options).finish()

    def icombine(self, src: Array, dst: Array, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """As :meth:`combine`, without waiting."""
        return self._comm.post("combine", src, dst, op, **options)

    def combine(self, src: Array, dst: Array, op: Op = "sum", **options: Unpack[Options]) -> None:
        """Reduces *n* elements of ``src`` into those of ``dst``."""
        self._comm.post("combine", src, dst, op, **options).finish()

    def inop(self, **options: Unpack[Options]) -> Request:
        """As :meth:`nop`, without waiting: one request for all that are given as ``after``."""
        return self._comm.post("nop", None, None, **options)

    def nop(self, **options: Unpack[Options]) -> None:
        """Moves nothing: ends when what it comes ``after`` has ended."""
        self._comm.post("nop", None, None, **options).finish()

    # The group itself.

    def split(self, colour: int | None, key: int = 0) -> Communicator | None:
        """Divides the communicator: ranks of one colour form a new one, ordered by key, then by rank. ``None`` takes part in none.

        Every rank calls it."""
        comm = self._comm.split(colour, key)
        return None if comm is None else self._of(comm)

    def shrink(self, patience: float = 10.0) -> Communicator:
        """A new communicator of the ranks that are left and call this within ``patience`` seconds; this one is aborted.

        Raises:
            JobError: The others have gone on without this rank, or another rank has ended meanwhile (call it again).
        """
        return self._of(self._comm.shrink(patience))

    def grow(self, ranks: int, patience: float = 30.0) -> Communicator:
        """A new communicator of ``ranks`` ranks: these, and new ones that :func:`join` the job within ``patience`` seconds. Every rank calls it.

        This one, and operations under way, go on in any case.

        Raises:
            JobError: New ranks have not come, or ranks of this one have not called it: on all ranks.
        """
        return self._of(self._comm.grow(ranks, patience))

    def merge(self, others: Sequence[int]) -> Communicator:
        """One communicator of this one and another of the same job, whose :attr:`job_ranks` are ``others``. The ranks of both call it, and both go on."""
        return self._of(self._comm.merge(list(others)))

    def abort(self) -> None:
        """Ends all operations, on every rank, with :class:`Aborted`."""
        self._comm.abort()

    def settle(self) -> None:
        """Waits until none of its operations is outstanding, those whose requests were dropped included."""
        self._comm.settle()

    def finish(self, patience: float = 10.0) -> None:
        """Ends it together with the other ranks: returns when all that are left have called it too. Over a network, call it before the process ends."""
        self._comm.finish(patience)

    def load_program(self, text: str) -> None:
        """Verifies and loads a collective of one's own, for operations with ``algo="user"``; docs/collectives.md has the form."""
        self._comm.load_program(text)
