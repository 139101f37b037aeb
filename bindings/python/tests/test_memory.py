"""Buffers and registrations, in one process."""

import array
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ringbell
from ringbell import errors


@pytest.fixture
def nic(tmp_path: Path) -> Iterator[ringbell.Nic]:
    nic = ringbell.Nic("10.9.70.1/24", directory=str(tmp_path), gpu_memory=16 << 20)
    yield nic
    nic.close()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_a_host_buffer_is_an_array_without_a_copy(nic: ringbell.Nic, dtype: str) -> None:
    buffer = nic.alloc_host((3, 4, 5), dtype)
    a = np.asarray(buffer)
    assert (a.shape, a.dtype, a.flags.c_contiguous) == ((3, 4, 5), np.dtype(dtype), True)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 4, 5), dtype, a.nbytes)
    assert not a.any(), "it is zeroed"
    a[2, 3, 4] = 7
    assert np.asarray(buffer)[2, 3, 4] == 7
    assert memoryview(buffer).cast("B").nbytes == a.nbytes


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_types_are_named_as_numpy_names_them(nic: ringbell.Nic, dtype: object) -> None:
    assert nic.alloc_host(3, dtype).dtype == "float16"
    assert nic.alloc(3, dtype).dtype == "float16"


def test_views_keep_a_buffer_and_a_freed_one_is_refused(nic: ringbell.Nic) -> None:
    buffer = nic.alloc_host(100)
    a = np.asarray(buffer)[10:20]
    with pytest.raises(BufferError, match="view"):
        buffer.free()
    del a
    buffer.free()
    buffer.free()
    with pytest.raises(ValueError, match="freed"):
        np.frombuffer(buffer)
    kept = np.asarray(nic.alloc_host(100))
    gc.collect()
    kept[:] = 1
    assert kept.sum() == 100


def test_shapes_and_types_that_are_none(nic: ringbell.Nic) -> None:
    for shape in (0, (3, 0), (1 << 40, 1 << 40)):
        with pytest.raises(ValueError):
            nic.alloc_host(shape)
    with pytest.raises(TypeError, match="bfloat16"):
        nic.alloc_host(3, "complex64")
    with pytest.raises((TypeError, OverflowError)):
        nic.alloc_host(-1)


def test_device_memory_is_copied_in_and_out(nic: ringbell.Nic) -> None:
    buffer = nic.alloc((2, 8), "int32")
    values = np.arange(16, dtype=np.int32)
    buffer.write(values)
    assert np.frombuffer(buffer.read(), np.int32).tolist() == list(range(16))
    buffer.write(array.array("i", [99]), 4)
    assert np.frombuffer(buffer.read(4, 8), np.int32).tolist() == [99, 2]
    for wrong in (lambda: buffer.write(values, 4), lambda: buffer.read(60, 8), lambda: buffer.read(65)):
        with pytest.raises(errors.InvalidArgument):
            wrong()
    buffer.free()
    with pytest.raises(ValueError):
        buffer.read()


def test_ten_thousand_registrations_leave_nothing(nic: ringbell.Nic) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    a = np.ones(4096)
    with nic.register(a):
        pass
    before = resident()
    for _ in range(10_000):
        with nic.register(a):
            pass
    assert resident() - before < 16 << 20
    # Registered anew, ended by being dropped.
    for _ in range(1000):
        nic.register(np.ones(600))
    assert resident() - before < 32 << 20


def test_a_registration_again_is_the_same_and_an_overlap_is_refused(nic: ringbell.Nic) -> None:
    a = np.ones(100)
    first, again, part = nic.register(a), nic.register(a), nic.register(a[10:20])
    first.end()
    again.end()
    part.end()
    with nic.register(a[:50]):
        with pytest.raises(errors.HostError, match="overlap"):
            nic.register(a)
    nic.register(a).end()


def test_a_registered_array_cannot_be_resized_or_lost(nic: ringbell.Nic) -> None:
    data = bytearray(1000)
    registration = nic.register(data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    registration.end()
    data.extend(b"more")


def test_settings_that_cannot_be_read() -> None:
    with pytest.raises(errors.InvalidArgument, match="10.9"):
        ringbell.Nic("10.9")
    with pytest.raises(errors.InvalidArgument, match="progress"):
        ringbell.Nic("10.9.70.1", progress="never")
    with pytest.raises(errors.InvalidArgument, match="pigeon"):
        ringbell.Nic("10.9.70.1", transport="pigeon")
