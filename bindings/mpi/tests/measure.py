"""mpi4py's Allreduce of float32, out of place: microseconds by bytes. With the argument `exported`, in memory of MPI_Alloc_mem."""

import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
exported = sys.argv[1:] == ["exported"]


def array(count):
    if exported:
        return np.frombuffer(MPI.Alloc_mem(4 * count), np.float32)
    return np.zeros(count, np.float32)


for size in (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20):
    x, y = array(size // 4), array(size // 4)
    x[:] = world.rank + 1
    times = max(2, min(200, (8 << 20) // size))
    measured = []
    for batch in range(12):
        world.Barrier()
        start = MPI.Wtime()
        for _ in range(times):
            world.Allreduce(x, y)
        measured.append((MPI.Wtime() - start) / times)
    assert y[0] == y[-1] == world.size * (world.size + 1) / 2
    # The first batches touch the memory.
    slowest = world.allreduce(float(np.median(measured[2:])), MPI.MAX)
    if world.rank == 0:
        print(size, f"{slowest * 1e6:.1f}", flush=True)
