"""Arrays of CUDA's memory that describe themselves by ``__cuda_array_interface__``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringbell
from ringbell import errors


class Described:
    """An object that says what a library of CUDA's would say."""

    def __init__(self, **fields: Any) -> None:
        whole = {"version": 3, "shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "strides": None, "stream": None}
        self.__cuda_array_interface__ = {name: value for name, value in (whole | fields).items() if value != "none at all"}


@pytest.fixture
def nic(tmp_path: Path) -> Iterator[ringbell.Nic]:
    nic = ringbell.Nic("10.9.71.1/24", directory=str(tmp_path), gpu="emulated", gpu_memory=16 << 20)
    yield nic
    nic.close()


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"version": 1}, TypeError, "version 1"),
        ({"version": 4}, TypeError, "version 4"),
        ({"version": "none at all"}, TypeError, "no `version`"),
        ({"data": "none at all"}, TypeError, "no `data`"),
        ({"data": (0, False)}, ValueError, "address 0"),
        ({"typestr": "<c8"}, TypeError, "`<c8` of 8 bytes"),
        ({"typestr": ">f4"}, TypeError, ">f4"),
        ({"typestr": "|b1"}, TypeError, "float16"),
        ({"typestr": "<V2"}, AttributeError, "dtype"),
        ({"mask": object()}, BufferError, "mask"),
        ({"strides": (8,)}, BufferError, "contiguous"),
        ({"strides": (-4,)}, BufferError, "contiguous"),
        ({"shape": (2, 3), "strides": (4, 8)}, BufferError, "contiguous"),
        ({"shape": (2, 3), "strides": (4,)}, BufferError, "contiguous"),
        ({"shape": (1 << 62, 16)}, ValueError, "more than memory"),
        ({"shape": (-1,)}, OverflowError, "negative"),
        ({"data": ((1 << 64) - 8, False)}, ValueError, "more than memory"),
        ({"stream": 0}, ValueError, "stream 0"),
        ({"stream": -1}, OverflowError, "negative"),
        ({"shape": (0,), "data": (0, False)}, errors.InvalidArgument, "no elements"),
        ({}, errors.InvalidArgument, "emulated"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(nic: ringbell.Nic, fields: dict[str, Any], kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        nic.register(Described(**fields))


def test_emulated_memory_is_described_to_none_but_taken_as_a_part(nic: ringbell.Nic) -> None:
    buffer = nic.alloc((4, 4), "int32")
    with pytest.raises(AttributeError, match="emulated"):
        buffer.__cuda_array_interface__  # noqa: B018
    assert not hasattr(buffer, "__cuda_array_interface__")
    nic.register(np.ones(3))


def under_mock(program: str, tmp_path: Path, faults: str = "") -> None:
    """Runs a program beside the mock driver with these faults, and with a library of CUDA's memory made of it."""
    mock = os.environ.get("RINGBELL_MOCK_LIBCUDA")
    if mock is None:
        pytest.skip("RINGBELL_MOCK_LIBCUDA does not name the mock driver; `cargo xtask test python` does")
    folder = tmp_path / "driver"
    folder.mkdir()
    for name in ("libcuda.so", "libcuda.so.1", "libnvrtc.so"):
        (folder / name).symlink_to(mock)
    begin = """
    import ctypes, sys, threading
    import numpy as np
    import ringbell
    from ringbell import errors
    cuda = ctypes.CDLL("libcuda.so.1")
    def ok(result):
        assert result == 0, result
    def stream():
        made = ctypes.c_void_p()
        ok(cuda.cuStreamCreate(ctypes.byref(made), 1))
        return made
    def copy(call, to, start, nbytes, on):
        ok(call(to, start, ctypes.c_size_t(nbytes), on))
    class Array:
        "As CuPy's: memory of the primary context, and its stream."
        def __init__(self, values, stream=None, **fields):
            values = np.ascontiguousarray(values)
            self.va = ctypes.c_uint64()
            ok(cuda.cuMemAlloc_v2(ctypes.byref(self.va), ctypes.c_size_t(max(values.nbytes, 1 << 16))))
            source = values.ctypes.data_as(ctypes.c_void_p)
            if stream:
                # Pinned, so that the copy ends later than the call.
                source = ctypes.c_void_p()
                ok(cuda.cuMemHostAlloc(ctypes.byref(source), ctypes.c_size_t(values.nbytes), 0))
                ctypes.memmove(source, values.ctypes.data_as(ctypes.c_void_p), values.nbytes)
            copy(cuda.cuMemcpyHtoDAsync_v2, self.va, source, values.nbytes, stream or default())
            self.__cuda_array_interface__ = {"version": 3, "shape": values.shape, "typestr": values.dtype.str,
                "data": (self.va.value, False), "strides": values.strides, "stream": stream.value if stream else None} | fields
            if not stream:
                ok(cuda.cuStreamSynchronize(default()))
            self.like = values
        def get(self):
            values = np.empty_like(self.like)
            copy(cuda.cuMemcpyDtoHAsync_v2, values.ctypes.data_as(ctypes.c_void_p), self.va, values.nbytes, default())
            ok(cuda.cuStreamSynchronize(default()))
            return values
        def free(self):
            ok(cuda.cuMemFree_v2(self.va))
    ok(cuda.cuInit(0))
    context = ctypes.c_void_p()
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cuda.cuCtxSetCurrent(context))
    of_thread = threading.local()
    def default():
        if not hasattr(of_thread, "stream"):
            of_thread.stream = stream()
        return of_thread.stream
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(begin) + textwrap.dedent(program))
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "RINGBELL_MOCK_CUDA": faults}
    done = subprocess.run([sys.executable, str(file), str(tmp_path)], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_arrays_of_another_library_take_part_in_collectives(tmp_path: Path) -> None:
    under_mock(
        """
        job = [ringbell.Nic(f"10.9.72.{i + 1}/24", directory=sys.argv[1], gpu="cuda", gpu_memory=16 << 20) for i in range(2)]
        from ringbell._ringbell import Bootstrap, Comm, Job
        server = Bootstrap(2, "127.0.0.1")
        out = [None, None]
        def rank(i):
            ok(cuda.cuCtxSetCurrent(context))
            comm = Comm.of_job(job[i], Job.of(server.id, i, 2), timeout=20.0, init_timeout=20.0)
            for dtype in ("f4", "f8", "i4", "u8", "f2"):
                for s in (None, stream()):
                    # The NIC waits for what the stream still writes.
                    a = Array(np.arange(5000).reshape(50, 100).astype(dtype) * (i + 1), s)
                    comm.post("all_reduce", a, a, "sum").wait()
                    assert (a.get() == np.arange(5000).reshape(50, 100).astype(dtype) * 3).all(), dtype
                    a.free()
            # Registered by hand: held, and a part of it is found. From numpy's memory to CUDA's.
            a, b = Array(np.zeros(200_000, "f4")), np.full(200_000, i + 1.0, np.float32)
            with job[i].register(a):
                for n in range(20):
                    comm.post("all_reduce", b, a, "max").wait()
                assert (a.get() == 2).all()
            whole = Array(np.full(20, i, "f4"))
            part = Array(np.zeros(1, "f4"), data=(whole.va.value + 40 * i, False), shape=(10,), strides=None)
            comm.post("all_gather", part, whole).wait()
            assert (whole.get() == np.repeat([0, 1], 10)).all(), whole.get()
            fixed = Array(np.zeros(4, "f4"), data=(a.va.value, True), shape=(4,), strides=None)
            try:
                comm.post("broadcast", fixed, fixed, None, 0)
                raise AssertionError("read-only")
            except BufferError:
                pass
            # Freed and allocated anew, many times.
            for n in range(20):
                x = Array(np.full(64 + n, i + 1, "i4"))
                comm.post("all_reduce", x, x, "sum").wait()
                assert (x.get() == 3).all()
                x.free()
            comm.finish(10.0)
            out[i] = True
        threads = [threading.Thread(target=rank, args=(i,), daemon=True) for i in range(2)]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert out == [True, True], out
        """,
        tmp_path,
        "slow-writes",
    )


def test_what_is_not_memory_of_the_gpu_is_refused_and_own_memory_is_described(tmp_path: Path) -> None:
    under_mock(
        """
        nic = ringbell.Nic("10.9.73.1/24", directory=sys.argv[1], gpu="cuda", gpu_memory=16 << 20)
        own = nic.alloc((3, 5), "float64")
        said = own.__cuda_array_interface__
        assert (said["version"], said["shape"], said["typestr"], said["strides"]) == (3, (3, 5), "<f8", None), said
        values = np.arange(15.0)
        copy(cuda.cuMemcpyHtoDAsync_v2, ctypes.c_uint64(said["data"][0]), values.ctypes.data_as(ctypes.c_void_p), 120, default())
        ok(cuda.cuStreamSynchronize(default()))
        assert own.read() == values.tobytes()
        class Same:
            __cuda_array_interface__ = said
        nic.register(Same()).end()
        own.free()
        try:
            own.__cuda_array_interface__
            raise AssertionError("freed")
        except ValueError:
            pass
        host = np.zeros(1 << 16)
        def refused(**fields):
            a = Array(np.zeros(4, "f4"), **fields)
            try:
                nic.register(a)
            except errors.HostError as error:
                return str(error)
            raise AssertionError(f"accepted {fields}")
        refused(data=(host.ctypes.data, False))
        refused(data=(0x7f0000000000, False))
        a = Array(np.zeros(1 << 14, "f4"))
        refused(data=(a.va.value, False), shape=(1 << 40,), strides=None)
        # Twice the same, then freed: no registration is left that would refuse it.
        first, again = nic.register(a), nic.register(a)
        first.end()
        again.end()
        a.free()
        for _ in range(300):
            x = Array(np.zeros(100, "f4"))
            nic.register(x).end()
            x.free()
        """,
        tmp_path,
    )
