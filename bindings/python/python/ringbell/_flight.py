# mypy: disable-error-code=import-not-found
"""Dumps of PyTorch's flight recorder, with the state of the operations of groups of this backend.

PyTorch records the calls of every group itself (``TORCH_FR_BUFFER_SIZE``), but learns from a backend in Python neither that an operation has ended nor that it
has failed. So a dump from here is PyTorch's, with ``state`` and ``retired`` set by what each group knows, and is written when an operation fails.
"""

from __future__ import annotations

import os
import pickle
import weakref
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d as c10d

#: Groups of this process by PyTorch's name of them.
_groups: weakref.WeakValueDictionary[str, Operations] = weakref.WeakValueDictionary()
#: Numbers of operations that are kept at least: as many as PyTorch's recorder holds if nothing is set.
_KEPT = 2000


class Operations:
    """The operations of a group, by the numbers that PyTorch's recorder gives them: collectives from 1 on, and messages from -1 on downwards."""

    def __init__(self, name: str | None) -> None:
        self.collectives = 0
        self.messages = 0
        #: Those that have not ended well: failed, refused, under way, or never waited for.
        self.left: set[int] = set()
        if name:
            _groups[name] = self

    def begin(self, message: bool = False) -> int:
        """A call; the group is told by ``left.discard`` when it has ended."""
        if message:
            number = self.messages = self.messages - 1
        else:
            number = self.collectives = self.collectives + 1
        left = self.left
        left.add(number)
        if len(left) > 4 * _KEPT:
            self.left = {n for n in left if self._is_recent(n)}
        return number

    def _is_recent(self, number: int) -> bool:
        return (self.collectives - number if number > 0 else number - self.messages) < _KEPT

    def is_done(self, number: int) -> bool:
        return number not in self.left and self._is_recent(number)


#: Of this process among all, as the first group says it.
_rank: int | None = None


def set_rank(rank: int) -> None:
    global _rank
    if _rank is None:
        _rank = rank


def _variable(names: list[str], default: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


def is_on() -> bool:
    """Whether PyTorch records."""
    return int(_variable(["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"], str(_KEPT))) > 0


def wanted() -> bool:
    """Whether a failure writes a dump."""
    return _variable(["TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"], "1").lower() not in ("0", "n", "no", "f", "false")


def trace() -> dict[str, Any]:
    """What PyTorch has recorded of this process's groups, oldest first, and how far each operation is."""
    dump: dict[str, Any] = pickle.loads(c10d._dump_fr_trace(backend="ringbell"))
    for entry in dump["entries"]:
        group = _groups.get(entry["process_group"][0])
        number = -entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
        if group is not None and group.is_done(number):
            entry["state"], entry["retired"] = "completed", True
    return dump


def write(path: str | os.PathLike[str] | None = None) -> str | None:
    """Writes a dump; ``None`` when PyTorch has recorded nothing. See ``ringbell.torch.dump_flight_recorder``."""
    dump = trace()
    if not dump["entries"]:
        return None
    if path is None:
        # As PyTorch's own.
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        default = str(cache / "torch" / "comm_lib_trace_rank_")
        path = _variable(["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"], default) + str(_rank)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A reader never sees half of it.
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_bytes(pickle.dumps(dump, protocol=2))
    part.replace(target)
    return str(target)
