"""mpi4py: messages of objects and of buffers between ranks, blocking, nonblocking, probed, persistent and cancelled, on several communicators. Prints a sum over everything received."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
right, left = (rank + 1) % size, (rank - 1) % size
total = 0.0
turned = world.Split(0, -rank)
ring = turned.Create_cart([size], [True])
down, up = ring.Shift(0, 1)
for other in (turned, ring):
    # The same ranks and tags on all.
    requests = [world.Isend(np.full(9, 1.0), right, 1), other.Isend(np.full(9, 2.0), (other.rank + 1) % size, 1)]
    x, y = np.zeros(9), np.zeros(9)
    requests += [other.Irecv(x, MPI.ANY_SOURCE, MPI.ANY_TAG), world.Irecv(y, MPI.ANY_SOURCE, MPI.ANY_TAG)]
    MPI.Request.Waitall(requests)
    total += 100 * x.sum() + y.sum()
    total += other.sendrecv([other.rank], (other.rank + 1) % size, source=(other.rank - 1) % size)[0] * rank
total += ring.sendrecv(rank, up, source=down)
turned.Free()
ring.Free()
for length in (1, 100, 30_000, 200_000):
    x = (np.arange(length) % 7 + rank).astype("d")
    y = np.zeros_like(x)
    world.Sendrecv(x, right, 1, y, left, 1)
    total += y.sum()
    requests = [world.Isend(x, to, 2) for to in range(size)]
    parts = np.zeros((size, length))
    requests += [world.Irecv(parts[of], of, 2) for of in range(size)]
    MPI.Request.Waitall(requests)
    total += parts.sum()
    status = MPI.Status()
    request = world.Issend(x, right, 3)
    world.Probe(MPI.ANY_SOURCE, 3, status)
    assert status.Get_count(MPI.DOUBLE) == length and status.source == left
    world.Recv(y, MPI.ANY_SOURCE, 3)
    request.Wait()
    total += y.sum()
    # Objects go by a matched probe.
    request = world.isend({"rank": rank, "list": list(range(length % 1000))}, right, 4)
    got = world.recv(source=left, tag=4)
    request.wait()
    total += got["rank"] + sum(got["list"])
    total += world.sendrecv(rank + 0.5, right, source=MPI.ANY_SOURCE)
    send, receive = world.Send_init(x, right, 5), world.Recv_init(y, left, 5)
    for again in range(3):
        x += 1
        MPI.Prequest.Startall([send, receive])
        MPI.Request.Waitall([send, receive])
        total += y.sum()
    send.Free()
    receive.Free()
request = world.Irecv(bytearray(8), left, 99)
request.Cancel()
request.Wait(status)
total += status.Is_cancelled()
total = world.reduce(total)
if rank == 0:
    print(f"{total:.1f}")
