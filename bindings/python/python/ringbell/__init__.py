"""Ringbell: collectives and messages between processes by a software NIC, on arrays in place.

A process is a rank of a job. ``ringbell.init()`` opens its NIC and makes the job's communicator::

    comm = ringbell.init()
    x = numpy.full(1000, comm.rank + 1.0)
    comm.all_reduce(x)

``ringbell-run -R 4 program.py`` starts four ranks of a program on this host; the environments of ``ringbell run``, ``torchrun``,
``mpirun``, ``mpiexec`` and ``srun`` are read as well.

Arrays are objects with the buffer protocol (numpy's arrays, ``bytearray``, ``array.array``, ``memoryview``), contiguous in C's order,
with elements of type float16, float32, float64, int8, int32, int64, uint8, uint32 or uint64; bfloat16 by ``ml_dtypes``. The NIC uses their memory in
place. While an operation is outstanding, its arrays belong to the NIC: do not change them, and do not read what it writes.

Errors are exceptions of ``ringbell.errors``, by the NIC's status, with the ranks at fault in ``peers``. Every wait has a deadline, releases the interpreter's
lock, and is ended by Ctrl-C.
"""

from ringbell import errors
from ringbell._ringbell import (
    DeviceBuffer,
    Engine,
    HostBuffer,
    Job,
    Listener,
    Nic,
    Registration,
    Request,
    Socket,
    __version__,
)
from ringbell.communicator import Communicator, init, join
from ringbell.errors import RingbellError

__all__ = [
    "Communicator",
    "DeviceBuffer",
    "Engine",
    "HostBuffer",
    "Job",
    "Listener",
    "Nic",
    "Registration",
    "Request",
    "RingbellError",
    "Socket",
    "__version__",
    "errors",
    "init",
    "join",
]
