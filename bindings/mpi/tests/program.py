"""mpi4py with numpy: collectives of buffers and of objects, and memory of MPI_Alloc_mem. Prints a sum over everything received."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, world.rank)
total = 0.0
for comm in (world, half, world):
    rank, size = comm.rank, comm.size
    for dtype in "fdilLbB":
        for count in (1, 1000, 40_000):
            x = (np.arange(count * size) % 5 + rank).astype(dtype)
            y = np.zeros_like(x)
            for op in (MPI.SUM, MPI.MAX, MPI.MIN):
                comm.Allreduce(x, y, op)
                total += float(y.astype(float).sum())
            comm.Allreduce(MPI.IN_PLACE, y)
            total += float(y.astype(float).sum())
            comm.Bcast(y, root=size - 1)
            z = np.zeros((size, count * size), dtype)
            comm.Allgather(x, z)
            total += float(z.astype(float).sum())
            comm.Alltoall(x, y)
            total += float(y.astype(float).sum())
            part = np.zeros(count, dtype)
            comm.Reduce_scatter_block(x, part)
            total += float(part.astype(float).sum())
            comm.Scatter(x, part, root=0)
            comm.Gather(part, y, root=size - 1)
            total += float(y.astype(float).sum())
    # Objects go by lengths and bytes.
    said = comm.allgather({"rank": rank, "text": "x" * (10 * rank)})
    total += sum(len(s["text"]) for s in said) + sum(comm.allreduce([rank]))
    comm.barrier()
memory = MPI.Alloc_mem(1 << 20)
x = np.frombuffer(memory, np.float32)
x[:] = world.rank + 1
world.Allreduce(MPI.IN_PLACE, x)
total += float(x.sum(dtype=float))
del x
MPI.Free_mem(memory)
total = world.reduce(total)
if world.rank == 0:
    print(f"{total:.1f}")
