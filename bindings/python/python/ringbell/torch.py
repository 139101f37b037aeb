# mypy: disable-error-code=import-not-found, allow-subclassing-any, no-warn-return-any
"""Backend ``ringbell`` of ``torch.distributed``: collectives on tensors of the CPU, in place, and of a CUDA GPU.

An installed package needs no import: ``torch.distributed.init_process_group("ringbell")``, or ``"cpu:ringbell"`` beside another backend for GPUs, under
``torchrun``. Otherwise ``import ringbell.torch`` registers it. docs/pytorch.md describes it.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ringbell import _flight, errors
from ringbell._ringbell import Bootstrap, Comm, Job, Request
from ringbell._work import After, Work, pass_on
from ringbell._world import World, host

__all__ = ["Options", "RingbellBackend", "dump_flight_recorder", "empty", "register"]

#: Element types that the NIC reduces. Others are moved as bytes.
_TYPES = {
    getattr(torch, name): name
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64")
}
_SUM, _AVG, _PREMUL = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM
_OPS = {
    _SUM: "sum",
    _AVG: "sum",
    _PREMUL: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
#: Those that nothing follows on the rank.
_PLAIN = {op: kind for op, kind in _OPS.items() if op not in (_AVG, _PREMUL)}
#: As logic, which is what a sum of truth values means.
_LOGIC = {
    _SUM: "max",
    dist.ReduceOp.PRODUCT: "min",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "min",
    dist.ReduceOp.BOR: "max",
}
#: Longest time-out, in seconds, that a descriptor can hold.
_LONGEST = 4200.0
#: Tags of messages inside collectives; a program's are below.
_OWN_TAGS = 1 << 31
_DEFAULT_TIMEOUT = timedelta(minutes=30)

_STRIDED, _NONE = torch.strided, timedelta()

_Tensor: TypeAlias = "torch.Tensor"
#: As the NIC takes it: with its address, its bytes, and the stream of CUDA's whose work comes first.
_Operand: TypeAlias = "tuple[torch.Tensor, int, int, int | None]"


class Options(c10d.Backend.Options):
    """Settings of a group: ``init_process_group("ringbell", pg_options=Options(deterministic=True))``; also of ``new_group`` and ``split_group``.

    deterministic: Every reduction runs in the order of the ranks, so that its bits depend on nothing but the ranks' elements. Without options the
    variable ``RINGBELL_DETERMINISTIC`` (1 or 0) says it. The same on every rank.

    max_queues: Most groups at a time, 1 to 512 (63 if none is given): each has a queue of the process's NIC, and NIC memory, which grows with the number.
    Only the first group's counts, which opens the NIC.
    """

    def __init__(self, *, deterministic: bool = False, max_queues: int | None = None, timeout: timedelta = _DEFAULT_TIMEOUT) -> None:
        super().__init__("ringbell", timeout)
        self.deterministic = deterministic
        self.max_queues = max_queues


def _operand(tensor: _Tensor) -> _Operand:
    if tensor.is_cpu:
        return tensor, tensor.data_ptr(), tensor.nbytes, None
    # The driver's name of its default stream.
    return tensor, tensor.data_ptr(), tensor.nbytes, torch.cuda.current_stream(tensor.device).cuda_stream or 1


def _deterministic(options: Any, otherwise: bool) -> bool:
    return bool(getattr(options, "deterministic", otherwise))


def _by_variable() -> bool:
    value = os.environ.get("RINGBELL_DETERMINISTIC", "0")
    if value not in ("0", "1", ""):
        raise ValueError(f"RINGBELL_DETERMINISTIC is `{value}`; give 1 or 0")
    return value == "1"


_Collective = TypeVar("_Collective", bound=Callable[..., Any])


def _recorded(call: _Collective) -> _Collective:
    """Numbers a call of PyTorch's as its flight recorder does, and remembers how it ends."""
    message = call.__name__ in ("send", "recv", "recv_anysource")

    @functools.wraps(call)
    def recorded(self: RingbellBackend, *args: Any, **named: Any) -> Work | None:
        operations = self._operations
        if operations is None:
            return call(self, *args, **named)
        key = operations.begin(message)
        try:
            work: Work | None = call(self, *args, **named)
        except errors.RingbellError as error:
            self._is_over(key, error)
            raise
        if work is None:
            operations.left.discard(key)
        else:
            work._group, work._key = self, key
        return work

    return recorded  # type: ignore[return-value]


class RingbellBackend(c10d.Backend):
    """A group of ranks: a communicator of the NIC."""

    def __init__(
        self, world: World, comm: Comm, timeout: timedelta, server: Bootstrap | None = None, *, name: str | None = None, deterministic: bool = False
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._deterministic, self._dumped = deterministic, False
        self._operations = _flight.Operations(name) if name and _flight.is_on() else None
        self._world, self._comm, self._server = world, comm, server
        self._rank, self._size = comm.rank, comm.size
        self._sequence = 0
        self._options = c10d.Backend.Options("ringbell", timeout)
        self.set_timeout(timeout)
        _alive.add(self)
        if name:
            _keep(name, self)

    @classmethod
    def make(
        cls,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        name: str | None = None,
        deterministic: bool = False,
        max_queues: int | None = None,
    ) -> RingbellBackend:
        """Makes the group of ``size`` ranks that share a store; all of them call it."""
        world = World.of(store, max_queues)
        server = None
        if rank == 0:
            server = Bootstrap(size, host() if world.host != "127.0.0.1" else "127.0.0.1")
            store.set("ringbell/id", server.id)
        try:
            job = store.get("ringbell/id").decode()
        except RuntimeError as error:
            raise errors.JobError(f"rank 0 of a group of {size} has not come: {error}", status="JOB", peers=(0,)) from error
        seconds = min(timeout.total_seconds(), _LONGEST)
        comm = Comm.of_job(world.nic, Job.of(job, rank, size), timeout=seconds, init_timeout=seconds, deterministic=deterministic)
        if rank == 0:
            # All have read it. A group that uses the store again must not.
            store.delete_key("ringbell/id")
        return cls(world, comm, timeout, server, name=name, deterministic=deterministic)

    def getBackendName(self) -> str:
        return "ringbell"

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Whether :meth:`allocate_tensor` serves a device: the CPU."""
        return not isinstance(device, torch.device) or device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> _Tensor:
        """A tensor of ``size`` elements in memory that peers map, which collectives copy once instead of twice. Its elements are arbitrary.

        FSDP2 asks for its buffers here after ``set_allocate_memory_from_process_group_for_comm(True)``.
        """
        if device is not None and torch.device(device).type != "cpu":
            raise TypeError(f"allocate_tensor: no memory on {device}; ringbell has tensors on the CPU")
        return self._world.memory.tensor(size, dtype)

    @property
    def options(self) -> Any:
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        """Of operations without a time-out of their own."""
        self._timeout = min(timeout.total_seconds(), _LONGEST)

    def _limit(self, options: Any) -> float:
        timeout: timedelta = options.timeout
        # Minus one millisecond stands for none.
        if timeout <= _NONE:
            return self._timeout
        seconds = timeout.total_seconds()
        return seconds if seconds < _LONGEST else _LONGEST

    def _is_over(self, key: int, error: BaseException | None) -> None:
        """An operation has ended; the first that fails writes a dump."""
        if self._operations is None:
            return
        if error is None:
            self._operations.left.discard(key)
        elif isinstance(error, errors.RingbellError) and not self._dumped and _flight.wanted():
            self._dumped = True
            try:
                _flight.write()
            except (OSError, RuntimeError) as why:
                warnings.warn(f"no dump of the flight recorder: {why}", RuntimeWarning, stacklevel=2)

    # Operations.

    def _end(self, name: str, options: Any, requests: list[Request], after: list[After], result: list[_Tensor]) -> Work | None:
        self._sequence += 1
        if options.asyncOp:
            return Work(name, requests, after, result)
        # The caller would wait at once. Without an object that waits it costs less.
        for request in requests:
            request.finish()
        for step in after:
            step()
        return None

    def _moved(self, name: str, tensor: _Tensor) -> str:
        """The element type of data that is only moved."""
        if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{name}: a tensor is {tensor.layout} on {tensor.device}; ringbell takes dense tensors on the CPU or a CUDA GPU")
        return _TYPES.get(tensor.dtype, "uint8")

    def _reduced(self, name: str, tensor: _Tensor, op: Any) -> tuple[str, str]:
        """The element type and the operation of a reduction."""
        self._moved(name, tensor)
        logic = tensor.dtype is torch.bool
        kind = (_LOGIC if logic else _OPS).get(op.op)
        if kind is None:
            raise TypeError(f"{name}: ringbell does not reduce {tensor.dtype} by {op.op.name}; it has {', '.join(o.name for o in _OPS)}")
        dtype = "uint8" if logic else _TYPES.get(tensor.dtype)
        if dtype is None:
            raise TypeError(f"{name}: ringbell does not reduce {tensor.dtype}; it has {', '.join(_TYPES.values())} and bool")
        return dtype, kind

    def _source(self, tensor: _Tensor, op: Any = None) -> _Tensor:
        """A tensor to be read: itself, where it is contiguous."""
        if op is not None and op.op == _PREMUL:
            return tensor.contiguous() * op.factor
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def _target(self, tensor: _Tensor, after: list[After], op: Any = None) -> _Tensor:
        """A tensor to be written: itself, or one that is copied to it in the end."""
        into = tensor if tensor.is_contiguous() else tensor.contiguous()
        if op is not None and op.op == _AVG:
            exact = into.is_floating_point() or into.is_complex()
            after.append(lambda: into.div_(self._size, rounding_mode=None if exact else "trunc"))
        if into is not tensor:
            after.append(lambda: tensor.copy_(into))
        return into

    def _post(
        self,
        kind: str,
        dtype: str,
        src: _Tensor | None,
        dst: _Tensor | None,
        limit: float,
        op: str | None = None,
        root: int | None = None,
        tag: int | None = None,
    ) -> Request:
        source = None if src is None else _operand(src)
        target = source if dst is src else None if dst is None else _operand(dst)
        return self._comm.post_tensors(kind, dtype, source, target, op, root, tag, limit)

    def allreduce(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        tensor = tensors[0]
        # The usual call without what the others need: each look at an object of C++ costs a part of a microsecond.
        dtype, kind = _TYPES.get(tensor.dtype), _PLAIN.get(opts.reduceOp.op)
        if (
            len(tensors) != 1
            or dtype is None
            or kind is None
            or opts.asyncOp
            or tensor.layout is not _STRIDED
            or not tensor.is_cpu
            or not tensor.is_contiguous()
        ):
            return self._any_all_reduce(tensors, opts)
        operations = self._operations
        number = 0 if operations is None else operations.begin()
        operand = (tensor, tensor.data_ptr(), tensor.nbytes, None)
        try:
            self._comm.post_tensors("all_reduce", dtype, operand, operand, kind, None, None, self._limit(opts)).finish()
        except errors.RingbellError as error:
            self._is_over(number, error)
            raise
        self._sequence += 1
        if operations is not None:
            operations.left.discard(number)
        return None

    @_recorded
    def _any_all_reduce(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, op, limit = [], opts.reduceOp, self._limit(opts)
        for tensor in tensors:
            dtype, kind = self._reduced("all_reduce", tensor, op)
            into = self._target(tensor, after, op)
            source = self._source(into, op) if op.op == _PREMUL else into
            requests.append(self._post("all_reduce", dtype, source, into, limit, kind))
        return self._end("all_reduce", opts, requests, after, tensors)

    @_recorded
    def allreduce_coalesced(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        return self._all_reduce(tensors, opts)

    @_recorded
    def broadcast(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, limit = [], self._limit(opts)
        for tensor in tensors:
            dtype = self._moved("broadcast", tensor)
            into = self._target(tensor, after)
            requests.append(self._post("broadcast", dtype, into, into, limit, None, opts.rootRank))
        return self._end("broadcast", opts, requests, after, tensors)

    @_recorded
    def reduce(self, tensors: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, op, limit = [], opts.reduceOp, self._limit(opts)
        for tensor in tensors:
            dtype, kind = self._reduced("reduce", tensor, op)
            mine = opts.rootRank == self._rank
            into = self._target(tensor, after, op) if mine else None
            source = self._source(tensor, op) if into is None or op.op == _PREMUL else into
            requests.append(self._post("reduce", dtype, source, into, limit, kind, opts.rootRank))
        return self._end("reduce", opts, requests, after, tensors)

    @_recorded
    def all_gather_single(self, output: _Tensor, input: _Tensor, opts: Any) -> Work | None:
        return self._all_gather([output], [input], opts)

    @_recorded
    def all_gather_single_coalesced(self, outputs: list[_Tensor], inputs: list[_Tensor], opts: Any) -> Work | None:
        return self._all_gather(outputs, inputs, opts)

    def _all_gather(self, outputs: list[_Tensor], inputs: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, limit = [], self._limit(opts)
        for output, input in zip(outputs, inputs, strict=True):
            dtype = self._alike("all_gather", [output, input])
            source, into = self._source(input), self._target(output, after)
            requests.append(self._post("all_gather", dtype, source, into, limit))
        return self._end("all_gather", opts, requests, after, outputs)

    def _alike(self, name: str, tensors: Sequence[_Tensor]) -> str:
        first = tensors[0]
        for tensor in tensors:
            if tensor.dtype is not first.dtype:
                raise TypeError(f"{name}: tensors of {first.dtype} and {tensor.dtype}; give all one type")
        return self._moved(name, first)

    def _blocks(self, name: str, tensors: Sequence[_Tensor], like: _Tensor) -> None:
        """Refuses a list that has not a block for each rank."""
        if len(tensors) != self._size or any(t.numel() != like.numel() for t in tensors):
            sizes = [t.numel() for t in tensors]
            raise ValueError(f"{name}: tensors of {sizes} elements, where {self._size} of {like.numel()} are needed, one for each rank")
        self._alike(name, [like, *tensors])

    def _gathered(self, outputs: Sequence[_Tensor], after: list[After]) -> _Tensor:
        """Memory for a block of each rank: the outputs themselves, where they lie in a row."""
        first = outputs[0]
        step, start = first.nbytes, first.data_ptr()
        in_row = all(t.is_contiguous() and t.data_ptr() == start + i * step for i, t in enumerate(outputs))
        if in_row and start + step * len(outputs) <= first.untyped_storage().data_ptr() + first.untyped_storage().nbytes():
            return first.as_strided((len(outputs) * first.numel(),), (1,))
        flat = torch.empty(len(outputs) * first.numel(), dtype=first.dtype, device=first.device)
        parts = flat.view(len(outputs), -1)

        def spread() -> None:
            for part, output in zip(parts, outputs, strict=True):
                output.copy_(part.view_as(output))

        after.append(spread)
        return flat

    @_recorded
    def allgather(self, outputs: list[list[_Tensor]], inputs: list[_Tensor], opts: Any) -> Work | None:
        return self._all_gather_lists(outputs, inputs, opts)

    def _all_gather_lists(self, outputs: list[list[_Tensor]], inputs: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, limit = [], self._limit(opts)
        for row, input in zip(outputs, inputs, strict=True):
            self._blocks("all_gather", row, input)
            dtype = self._moved("all_gather", input)
            requests.append(self._post("all_gather", dtype, self._source(input), self._gathered(row, after), limit))
        return self._end("all_gather", opts, requests, after, [t for row in outputs for t in row])

    @_recorded
    def allgather_coalesced(self, outputs: list[list[_Tensor]], inputs: list[_Tensor], opts: Any) -> Work | None:
        by_input = [[row[i] for row in outputs] for i in range(len(inputs))]
        return self._all_gather_lists(by_input, inputs, opts)

    @_recorded
    def gather(self, outputs: list[list[_Tensor]], inputs: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        (input,) = inputs
        dtype, into = self._moved("gather", input), None
        if opts.rootRank == self._rank:
            self._blocks("gather", outputs[0], input)
            into = self._gathered(outputs[0], after)
        request = self._post("gather", dtype, self._source(input), into, self._limit(opts), None, opts.rootRank)
        return self._end("gather", opts, [request], after, outputs[0] if into is not None else [])

    @_recorded
    def scatter(self, outputs: list[_Tensor], inputs: list[list[_Tensor]], opts: Any) -> Work | None:
        after: list[After] = []
        (output,) = outputs
        dtype, source = self._moved("scatter", output), None
        if opts.rootRank == self._rank:
            self._blocks("scatter", inputs[0], output)
            source = torch.cat([t.reshape(-1) for t in inputs[0]])
        into = self._target(output, after)
        request = self._post("scatter", dtype, source, into, self._limit(opts), None, opts.rootRank)
        return self._end("scatter", opts, [request], after, outputs)

    @_recorded
    def reduce_scatter(self, outputs: list[_Tensor], inputs: list[list[_Tensor]], opts: Any) -> Work | None:
        flat = []
        for output, row in zip(outputs, inputs, strict=True):
            self._blocks("reduce_scatter", row, output)
            flat.append(torch.cat([t.reshape(-1) for t in row]))
        return self._reduce_scatter(outputs, flat, opts)

    @_recorded
    def reduce_scatter_single(self, output: _Tensor, input: _Tensor, opts: Any) -> Work | None:
        return self._reduce_scatter([output], [input], opts)

    @_recorded
    def reduce_scatter_single_coalesced(self, outputs: list[_Tensor], inputs: list[_Tensor], opts: Any) -> Work | None:
        return self._reduce_scatter(outputs, inputs, opts)

    def _reduce_scatter(self, outputs: list[_Tensor], inputs: list[_Tensor], opts: Any) -> Work | None:
        after: list[After] = []
        requests, op, limit = [], opts.reduceOp, self._limit(opts)
        for output, input in zip(outputs, inputs, strict=True):
            self._alike("reduce_scatter", [output, input])
            dtype, kind = self._reduced("reduce_scatter", output, op)
            source, into = self._source(input, op), self._target(output, after, op)
            requests.append(self._post("reduce_scatter", dtype, source, into, limit, kind))
        return self._end("reduce_scatter", opts, requests, after, outputs)

    @_recorded
    def all_to_all_single(
        self, output: _Tensor, input: _Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Work | None:
        dtype = self._alike("all_to_all", [output, input])
        after: list[After] = []
        source, into = self._source(input), self._target(output, after)
        if not output_splits and not input_splits:
            request = self._post("all_to_all", dtype, source, into, self._limit(opts))
            return self._end("all_to_all", opts, [request], after, [output])
        parts = [self._split(t, s) for t, s in ((into, output_splits), (source, input_splits))]
        return self._exchange(parts[0], parts[1], opts, after, [output])

    def _split(self, tensor: _Tensor, sizes: list[int]) -> Sequence[_Tensor]:
        rows = tensor.shape[0] if tensor.dim() else 0
        sizes = sizes or [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise ValueError(f"all_to_all: splits {sizes} of a tensor of {rows} rows, among {self._size} ranks")
        return tensor.split(sizes)

    @_recorded
    def alltoall(self, outputs: list[_Tensor], inputs: list[_Tensor], opts: Any) -> Work | None:
        if len(outputs) != self._size or len(inputs) != self._size:
            raise ValueError(f"all_to_all: {len(outputs)} and {len(inputs)} tensors, where {self._size} are needed, one for each rank")
        self._alike("all_to_all", [*outputs, *inputs])
        after: list[After] = []
        targets = [self._target(t, after) for t in outputs]
        return self._exchange(targets, [self._source(t) for t in inputs], opts, after, outputs)

    def _exchange(
        self, outputs: Sequence[_Tensor], inputs: Sequence[_Tensor], opts: Any, after: list[After], result: list[_Tensor]
    ) -> Work | None:
        """A block of any size from each rank to each."""
        own, limit = self._rank, self._limit(opts)
        if outputs[own].numel() != inputs[own].numel():
            raise ValueError(f"all_to_all: {inputs[own].numel()} elements of this rank for itself, and room for {outputs[own].numel()}")
        tag = _OWN_TAGS + self._sequence % (1 << 30)
        requests = []
        for peer, output in enumerate(outputs):
            if peer != own and output.numel():
                requests.append(self._post("recv", "uint8", None, output, limit, None, peer, tag))
                after.append(_fills(requests[-1], output, peer))
        for peer, input in enumerate(inputs):
            if peer != own and input.numel():
                requests.append(self._post("send", "uint8", input, None, limit, None, peer, tag))
        outputs[own].copy_(inputs[own].view_as(outputs[own]))
        return self._end("all_to_all", opts, requests, after, result)

    @_recorded
    def barrier(self, opts: Any) -> Work | None:
        return self._end("barrier", opts, [self._post("barrier", "uint8", None, None, self._limit(opts))], [], [])

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """A barrier; its error names a rank that has not come."""
        self._post("barrier", "uint8", None, None, self._limit(opts)).finish()

    # Messages.

    @_recorded
    def send(self, tensors: list[_Tensor], dst: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        self._moved("send", tensor)
        request = self._post("send", "uint8", self._source(tensor), None, self._timeout, None, dst, tag)
        return Work("send", [request], [], tensors)

    @_recorded
    def recv(self, tensors: list[_Tensor], src: int | None, tag: int = 0) -> Work:
        return self._receive(tensors, src, tag)

    def _receive(self, tensors: list[_Tensor], src: int | None, tag: int) -> Work:
        (tensor,) = tensors
        after: list[After] = []
        self._moved("recv", tensor)
        into = self._target(tensor, after)
        request = self._post("recv", "uint8", None, into, self._timeout, None, src, tag)
        after.insert(0, _fills(request, into, src))
        return Work("recv", [request], after, tensors)

    @_recorded
    def recv_anysource(self, tensors: list[_Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    # The group itself.

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    @property
    def supports_splitting(self) -> bool:
        return True

    # PyTorch asks for those that are not overridden without an end.
    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def split(self, store: Any, ranks: list[int], opts: Any) -> RingbellBackend:
        """The group of some ranks of this one, which call it."""
        timeout = timedelta(seconds=self._timeout) if opts is None else opts._timeout
        strict = _deterministic(opts, self._deterministic)
        name = getattr(opts, "group_name", None)
        return RingbellBackend.make(store, ranks.index(self._rank), len(ranks), timeout, name=name, deterministic=strict)

    @property
    def supports_shrinking(self) -> bool:
        return True

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> RingbellBackend:
        """The group without some ranks, which have ended or do not call it."""
        timeout = timedelta(seconds=self._timeout) if opts_override is None else opts_override._timeout
        comm = self._comm.shrink(min(timeout.total_seconds(), 30.0))
        if comm.size != self._size - len(ranks_to_exclude):
            raise errors.JobError(
                f"{comm.size} ranks are left of {self._size}, which is not all but {ranks_to_exclude}; shrink again without those that have ended",
                status="JOB",
            )
        name = getattr(opts_override, "group_name", None)
        return RingbellBackend(self._world, comm, timeout, self._server, name=name, deterministic=self._deterministic)

    def abort(self) -> None:
        self._comm.abort()

    def shutdown(self) -> None:
        """Ends it; over a network, together with the other ranks."""
        if any(t not in (None, "local") for t in self._comm.transports):
            self._comm.finish(10.0)


def _fills(request: Request, tensor: _Tensor, source: int | None) -> After:
    """Checks that a message was as long as the tensor."""

    def check() -> None:
        got = request.wait()
        if got != tensor.nbytes:
            sender = "a rank" if source is None else f"rank {source}"
            peers = () if source is None else (source,)
            raise errors.Mismatch(
                f"the message of {sender} has {got} bytes, the tensor {tensor.nbytes}; give both ends one shape and type", status="MISMATCH", peers=peers
            )

    return check


#: Groups of this process, to be ended with it.
_alive: weakref.WeakSet[RingbellBackend] = weakref.WeakSet()
#: Groups that PyTorch wraps, by their names. Its wrapper keeps the part of C++ alone, which finds no method of Python's without this.
_wrapped: dict[str, RingbellBackend] = {}


def _keep(name: str, backend: RingbellBackend) -> None:
    """Keeps a group that PyTorch wraps (TORCH_DISTRIBUTED_DEBUG=DETAIL), and lets go of those that were destroyed."""
    known = set(dist.distributed_c10d._world.pg_names.values())
    for gone in [other for other in _wrapped if other not in known]:
        del _wrapped[gone]
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        _wrapped[name] = backend


@atexit.register
def _exit() -> None:
    # The interpreter ends before C++ drops its groups, which then could free nothing of Python's.
    for backend in list(_alive):
        try:
            backend.shutdown()
        except (errors.RingbellError, RuntimeError):
            pass  # Its ranks are gone, or it belongs to the process that forked this one.


def _create(options: Any, own: Any) -> Any:
    strict = _deterministic(own, _by_variable())
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    if options.enable_reconfigure:
        from ringbell.reconfigure import ReconfigurableGroup

        return ReconfigurableGroup(rank, size, timeout, strict)
    _flight.set_rank((options.global_ranks_in_group or range(size))[rank])
    queues = getattr(own, "max_queues", None)
    return RingbellBackend.make(options.store, rank, size, timeout, name=options.group_id, deterministic=strict, max_queues=queues)


def empty(*size: int, dtype: torch.dtype = torch.float32, group: Any = None) -> _Tensor:
    """A tensor with arbitrary elements in memory that the ranks of ``group`` (the default group) map: collectives on it are several times faster than on others.

    Its memory is the NIC's, and is kept for the next tensor of the same size when it is freed. 4 KiB at least.
    """
    pg = dist.group.WORLD if group is None else group
    backend = pg._get_backend(torch.device("cpu"))
    if backend.name() != "ringbell":
        raise TypeError(f"empty: the group's backend for the CPU is {backend.name()}, not ringbell")
    tensor: _Tensor = backend.allocate_tensor(math.prod(size), dtype=dtype)
    return tensor.view(size)


def dump_flight_recorder(path: str | os.PathLike[str] | None = None) -> str | None:
    """Writes what PyTorch has recorded of this process's groups of this backend, for ``torchfrtrace``; returns the file's name, and ``None`` when there is nothing.

    Without ``path`` the file is that of ``TORCH_FR_DUMP_TEMP_FILE`` (or ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``) with the process's rank behind it. It may be called
    in a signal's handler while an operation is waited for.
    """
    return _flight.write(path)


def register() -> None:
    """Makes the backend known to ``torch.distributed``; importing this module has done it already."""
    dist.Backend.register_backend("ringbell", _create, extended_api=True, devices=["cpu", "cuda"])


pass_on()
register()
