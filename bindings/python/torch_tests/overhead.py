"""All-reduce by the C API, the Python package and torch.distributed in turns, in the same ranks: what each adds to C.

RINGBELL_LIBRARY=target/dist/libringbell.so torchrun --standalone --nproc-per-node 2 overhead.py [ROUNDS]

With one rank, which waits for none, it prints the time of the CPU: other programs on the machine change it little. It also prints the time to register a tensor again and what 10,000 tensors leave behind.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ringbell

#: Elements, of float32, and calls in a round.
SIZES = [(256, 2000), (16 << 10, 500), (256 << 10, 100)]
ROOT = Path(__file__).resolve().parents[3]


class C:
    """A communicator of the C API, whose calls a C function times."""

    def __init__(self, rank: int, size: int) -> None:
        library = Path(os.environ["RINGBELL_LIBRARY"]).resolve()
        self._made = tempfile.TemporaryDirectory()
        shared = f"{self._made.name}/overhead.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'cuda-kernels/include'}", str(source), "-o", shared, str(library), f"-Wl,-rpath,{library.parent}"],
            check=True,
        )
        self._lib = ctypes.CDLL(shared)
        self._lib.overhead_all_reduce.restype = ctypes.c_double
        self._lib.rb_last_error.restype = ctypes.c_char_p
        # As `rb_unique_id`.
        ident = ctypes.create_string_buffer(128)
        if rank == 0:
            self._ok(self._lib.rb_get_unique_id(ident))
        told = [ident.raw]
        dist.broadcast_object_list(told, 0)
        ident.raw = told[0]
        self._nic, self._comm = ctypes.c_void_p(), ctypes.c_void_p()
        self._ok(self._lib.rb_nic_open_rank(None, ident, ctypes.c_uint32(rank), ctypes.byref(self._nic)))
        self._ok(self._lib.rb_comm_init_rank(ctypes.byref(self._comm), self._nic, ctypes.c_uint32(size), ident, ctypes.c_uint32(rank), None))
        # Memory of its own: no byte is registered with two NICs.
        self.x = torch.ones(SIZES[-1][0])
        self._at = ctypes.c_void_p(self.x.data_ptr())
        self._ok(self._lib.rb_host_register(self._nic, self._at, ctypes.c_size_t(self.x.nbytes)))

    def _ok(self, result: int) -> None:
        if result:
            raise RuntimeError(self._lib.rb_last_error().decode())

    def timed(self, count: int, calls: int, cpu: bool) -> float:
        us: float = self._lib.overhead_all_reduce(self._comm, self._at, ctypes.c_uint64(count), calls, int(cpu))
        if us < 0:
            raise RuntimeError(self._lib.rb_last_error().decode())
        return us


def looped(calls: int, call: Callable[[], object], cpu: bool) -> float:
    clock = time.thread_time if cpu else time.perf_counter
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) * 1e6 / calls


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    dist.init_process_group("ringbell", timeout=timedelta(seconds=100))
    rank, size = dist.get_rank(), dist.get_world_size()
    alone = size == 1
    if rank == 0:
        recorder = "off" if os.environ.get("TORCH_FR_BUFFER_SIZE") == "0" else "on"
        print(f"all-reduce of float32 in place, {'time of the CPU of one rank' if alone else f'{size} ranks'}, median of {rounds} rounds; the flight recorder is {recorder}")
    c = C(rank, size)
    comm = ringbell.init()
    for count, times in SIZES:
        array, tensor = np.ones(count, np.float32), torch.ones(count)
        ways: dict[str, tuple[Any, Callable[[int], float]]] = {
            "C API": (c.x[:count], lambda n: c.timed(count, n, alone)),
            "Python": (torch.from_numpy(array), lambda n: looped(n, lambda: comm.all_reduce(array), alone)),
            "torch.distributed": (tensor, lambda n: looped(n, lambda: dist.all_reduce(tensor), alone)),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(rounds + 1):
            for name, (memory, call) in ways.items():
                memory.fill_(rank + 1.0)
                call(1)
                assert (memory == size * (size + 1) / 2).all(), name
                memory.zero_()
                dist.barrier()
                us = torch.tensor([call(times)], dtype=torch.float64)
                dist.all_reduce(us, op=dist.ReduceOp.MAX)
                if i:
                    took[name].append(float(us))
        if rank == 0:
            base = statistics.median(took["C API"])
            said = ", ".join(f"{name} {statistics.median(us):.2f} us ({statistics.median(us) - base:+.2f})" for name, us in took.items())
            print(f"{count * 4:>10} bytes: {said}", flush=True)
    # Registering again, and tensors that come and go.
    nic = comm.nic
    big = np.ones(1 << 20, np.float32)
    with nic.register(big):
        start = time.perf_counter()
        for _ in range(10_000):
            nic.register(big)
        again = (time.perf_counter() - start) * 1e6 / 10_000
    for i in range(500):
        dist.all_reduce(torch.ones(1000 + i % 50))
    before = resident()
    for i in range(10_000):
        dist.all_reduce(torch.ones(500 + 37 * (i % 400)))
    left = resident() - before
    if rank == 0:
        print(f"registering an array again: {again:.2f} us; 10,000 tensors left {left >> 10} KiB")
    dist.barrier()
    dist.destroy_process_group()


main()
