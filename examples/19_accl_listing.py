"""ACCL's Listing 1 in Ringbell: buffers, a message, and two collectives, the second chained to the first.

ACCL (H2RC 2021), Listing 1, shows its three interfaces: set-up, primitives, collectives. This is the same program, line by line, between ranks that
a launcher has started. `after` is ACCL's `waitfor`: the NIC starts the all-gather when the all-reduce has ended, and the program waits once.

Run: `ringbell-run -R 2 examples/19_accl_listing.py`

Prints one line for each rank. Ends with an error when an element is wrong.
"""

import numpy as np

import ringbell

BS = 16384

# accl.setup_rx_buffers(nbufs=16, bufsize=bs); configure_communicator(ranks_dict, rank); open_port(); open_con()
comm = ringbell.init(eager_buffers=16, eager_max=4096)
rank, size = comm.rank, comm.size

# txb = allocate((bs,)); rxb = allocate((bs,)): memory that the NICs of this host map.
txb = np.asarray(comm.nic.alloc_host(BS, "float32"))
rxb = np.asarray(comm.nic.alloc_host(BS, "float32"))
txb[:] = np.arange(BS) + rank

# The primitives: rank 1 sends, rank 0 receives.
if rank == 0:
    comm.recv(rxb, 1, tag=1)
    assert (rxb == np.arange(BS) + 1).all()
elif rank == 1:
    comm.send(txb, 0, tag=1)

# The collectives: ch = accl.allreduce(txb, rxb, count=256, async=True); accl.allgather(..., count=256, waitfor=[ch])
gathered = np.zeros(256 * size, np.float32)
ch = comm.iall_reduce(txb[:256], rxb[:256])
comm.all_gather(rxb[:256], gathered, after=[ch])
total = size * np.arange(256) + sum(range(size))
assert (gathered.reshape(size, 256) == total).all()

# Beyond the listing, the primitives that its text names: copy, reduce (combine here), and a handle of both.
copied = np.zeros(256, np.float32)
done = comm.icopy(txb[:256], copied, after=[ch])
done = comm.icombine(rxb[:256], copied, op="max", after=[done])
comm.nop(after=[ch, done])
assert (copied == np.maximum(txb[:256], total)).all()

# accl.deinit()
comm.finish()
print(f"rank {rank} of {size}: one message, two collectives, {copied.size} elements combined")
