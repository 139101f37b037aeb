# mypy: disable-error-code=import-not-found, allow-subclassing-any, no-warn-return-any
"""Groups of ``torch.distributed`` whose members change: ``init_process_group("ringbell", enable_reconfigure=True)``.

PyTorch reads the rank and the size of a backend where Python cannot change them. So this is a process group, not a backend: it passes every call to the
backend of its current members.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ringbell._work import Work
from ringbell._world import host
from ringbell.torch import RingbellBackend

__all__ = ["ReconfigurableGroup"]

#: Calls that go to the backend. Both names of one call are here.
_CALLS = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "all_gather_single": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single_coalesced",
    "all_to_all_single": "all_to_all_single",
    "allgather": "allgather",
    "allocate_tensor": "allocate_tensor",
    "allgather_coalesced": "allgather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "alltoall": "alltoall",
    "alltoall_base": "all_to_all_single",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "monitored_barrier": "monitored_barrier",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "scatter": "scatter",
    "send": "send",
    "supports_tensor_alloc": "supports_tensor_alloc",
}


class ReconfigurableGroup(dist.ProcessGroup):
    """A group of those whose handles the last ``reconfigure`` gave. It has no members before the first call.

    A handle is the address of a store that its process serves. Members meet at the store of the first of them; the processes need no other store in common.
    """

    def __init__(self, rank: int, size: int, timeout: timedelta, deterministic: bool = False) -> None:
        super().__init__(rank, size)
        self._place, self._timeout, self._deterministic = (rank, size), timeout, deterministic
        self._backend: RingbellBackend | None = None
        self._uuids: set[int] = set()
        self._aborted = False
        address = host()
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        # The random part tells this process from another that has its port later.
        self._handle = f"{address}:{self._store.port}/{secrets.token_hex(8)}"
        self._store.set("ringbell/handle", self._handle)

    def _members(self) -> RingbellBackend:
        if self._backend is None:
            raise RuntimeError("the group has no members: call torch.distributed._reconfigure with their handles first")
        return self._backend

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    def name(self) -> str:
        return "ringbell"

    def getBackendName(self) -> str:
        return "ringbell"

    def _get_backend(self, _device: object) -> ReconfigurableGroup:
        return self

    @property
    def supports_reconfigure(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return False

    def get_reconfigure_handle(self) -> str:
        """Where other processes find this one; the same for the group's life."""
        return self._handle

    def reconfigure(self, opts: Any) -> Work:
        """Makes the group one of the processes of ``opts.handles``, which all call it; waits for them.

        What is under way among the old members then ends with an error. When it fails, the group has no members until the next one.

        Raises:
            RuntimeError: The number was used before, this process is not among the handles, or ranks have not come.
        """
        handles = list(opts.handles) if isinstance(opts.handles, list) else sorted(opts.handles)
        if opts.uuid in self._uuids:
            raise RuntimeError(f"reconfigure: uuid {opts.uuid} was already used by this group; give each reconfiguration a new one")
        if self._handle not in handles or len(set(handles)) != len(handles):
            raise RuntimeError("reconfigure: the handles are to have that of each member once, with this process's")
        self._uuids.add(opts.uuid)
        timeout = self._timeout if opts.timeout is None else opts.timeout
        rank = handles.index(self._handle)
        # Not aborted: a slower member may be in an operation that has ended here. It is freed when all have met.
        old, self._backend = self._backend, None
        self._backend = RingbellBackend.make(
            self._meeting(opts.uuid, handles, timeout), rank, len(handles), timeout, deterministic=self._deterministic
        )
        del old
        self._backend.set_timeout(self._timeout)
        self._place, self._aborted = (rank, len(handles)), False
        # What PyTorch keeps of the members of the default group.
        ranks = dist.distributed_c10d._world.pg_group_ranks
        if self in ranks:
            ranks[self] = {i: i for i in range(len(handles))}
        done = Work("reconfigure", [], [], [])
        done.wait()
        return done

    def _meeting(self, uuid: int, handles: list[str], timeout: timedelta) -> Any:
        """The part of the first member's store for these members."""
        if handles[0] == self._handle:
            store = self._store
            store.set_timeout(timeout)
        else:
            first, _, port = handles[0].partition("/")[0].rpartition(":")
            store = dist.TCPStore(first, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
            if store.get("ringbell/handle").decode() != handles[0]:
                raise RuntimeError(f"reconfigure: the process of handle {handles[0]} has ended; give those of processes that run")
        members = hashlib.sha256("\n".join(handles).encode()).hexdigest()
        return dist.PrefixStore(f"{uuid}/{members}", store)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        if self._backend is not None:
            self._backend.set_timeout(timeout)

    def abort(self) -> None:
        """Ends what is under way, on every member; the next reconfiguration starts anew."""
        self._aborted = True
        if self._backend is not None:
            self._backend.abort()

    def get_error(self) -> Any:
        return c10d.ErrorType.COMM_ERROR if self._aborted else c10d.ErrorType.SUCCESS

    def shutdown(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None and not self._aborted:
            backend.shutdown()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0 if self._backend is None else self._backend._get_sequence_number_for_group()


def _passed(call: str) -> Callable[..., Any]:
    def passed(self: ReconfigurableGroup, *args: Any, **named: Any) -> Any:
        return getattr(self._members(), call)(*args, **named)

    return passed


for _name, _call in _CALLS.items():
    setattr(ReconfigurableGroup, _name, _passed(_call))
