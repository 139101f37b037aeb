# mypy: disable-error-code=import-not-found, allow-subclassing-any, no-warn-return-any
"""The NIC of this process for PyTorch's groups, and memory for tensors that peers map."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist

from ringbell._ringbell import Job, Nic

__all__ = ["World", "host"]


class World:
    """The NIC of this process, for all groups whose processes share a store."""

    known: weakref.WeakValueDictionary[str, World] = weakref.WeakValueDictionary()

    def __init__(self, name: str, place: int, max_queues: int | None = None) -> None:
        self.host = name.partition("@")[2].rpartition(":")[0]
        job = Job.of(name, place, place + 1)
        far = not ipaddress.ip_address(self.host).is_loopback
        port = "roce" if far and "RINGBELL_PORT" not in os.environ else None
        # The GPU that the program has chosen. One that has not used CUDA yet gets the NIC's own choice.
        chosen = "RINGBELL_GPU" not in os.environ and torch.cuda.is_initialized()
        gpu = f"cuda:{torch.cuda.current_device()}" if chosen else None
        self.nic = Nic(job=job, port=port, gpu=gpu, max_queues=max_queues)
        self.memory = _Memory(self.nic)

    @classmethod
    def of(cls, store: Any, max_queues: int | None = None) -> World:
        base = store
        while isinstance(base, dist.PrefixStore):
            base = base.underlying_store
        name = f"rb1-{secrets.token_hex(16)}@{host()}:1"
        name = base.compare_set("ringbell/world", "", name).decode()
        world = cls.known.get(name)
        if world is None:
            # Places are never given twice: a process that comes later, or again, gets an address of its own.
            world = cls(name, base.add("ringbell/places", 1) - 1, max_queues)
            cls.known[name] = world
        return world


class _Memory:
    """Memory that peers map, for tensors: kept for the next tensor of its size when one is freed."""

    #: Most bytes kept that no tensor uses.
    KEPT = 256 << 20

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self._buffers: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    def tensor(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        nbytes = count * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        with self._lock:
            buffers = self._buffers.setdefault(nbytes, [])
            buffer: Any = next((b for b in buffers if not b.in_use), None)
            if buffer is None:
                self._trim()
                buffer = self._nic.alloc_host(nbytes, "uint8")
                self._buffers.setdefault(nbytes, []).append(buffer)
            # The tensor holds the view, and so tells when it is freed.
            return torch.frombuffer(memoryview(buffer), dtype=dtype, count=count)

    def _trim(self) -> None:
        unused = [(n, b) for n, all in self._buffers.items() for b in all if not b.in_use]
        if sum(n for n, _ in unused) <= self.KEPT:
            return
        for nbytes, buffer in unused:
            self._buffers[nbytes].remove(buffer)
            buffer.free()
        self._buffers = {n: all for n, all in self._buffers.items() if all}


def host() -> str:
    """The address at which other ranks reach this process: of the loopback, where all are on one host."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "-"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        # No packet is sent.
        way.connect((master, 9))
        return str(way.getsockname()[0])
