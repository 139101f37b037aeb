"""Tensors of a CUDA GPU, over the mock driver: no GPU has run this. `cargo xtask torch` runs it.

PyTorch makes no CUDA tensors without a GPU. So these are tensors of the CPU that say they are CUDA's, and whose memory, in address and bytes, is the mock driver's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, os, sys, types
import torch, torch.distributed as dist
import ringbell.torch
cuda = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
ok(cuda.cuInit(0))
context = ctypes.c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
stream = ctypes.c_void_p()
ok(cuda.cuStreamCreate(ctypes.byref(stream), 1))
asked, events = [], []
def current_stream(device):
    asked.append(device)
    return types.SimpleNamespace(cuda_stream=stream.value, record_event=event)
def event():
    events.append(0)
    def query():
        events[-1] += 1
        return events[-1] > 3
    return types.SimpleNamespace(query=query)
torch.cuda.current_stream, torch.cuda.get_device_capability = current_stream, lambda device: (9, 0)
class Storage:
    def __init__(self, va, nbytes):
        self.data_ptr, self.nbytes = lambda: va, lambda: nbytes
class Cuda(torch.Tensor):
    "Its memory in the GPU holds its values; copied there on the stream from pinned memory, so that the copy ends later than the call."
    @staticmethod
    def of(values):
        made = values.clone().as_subclass(Cuda)
        made.pinned, made.va = ctypes.c_void_p(), ctypes.c_uint64()
        ok(cuda.cuMemHostAlloc(ctypes.byref(made.pinned), ctypes.c_size_t(values.nbytes), 0))
        ctypes.memmove(made.pinned, values.data_ptr(), values.nbytes)
        ok(cuda.cuMemAlloc_v2(ctypes.byref(made.va), ctypes.c_size_t(max(values.nbytes, 1 << 16))))
        ok(cuda.cuMemcpyHtoDAsync_v2(made.va, made.pinned, ctypes.c_size_t(values.nbytes), stream))
        return made
    def gpu(self):
        values = torch.empty(self.shape, dtype=self.dtype)
        ok(cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(values.data_ptr()), self.va, ctypes.c_size_t(values.nbytes), stream))
        ok(cuda.cuStreamSynchronize(stream))
        return values
    is_cpu, is_cuda, device = False, True, torch.device("cuda", 0)
    def data_ptr(self):
        return self.va.value
    def untyped_storage(self):
        return Storage(self.va.value, self.nbytes)
dist.init_process_group("ringbell")
rank = dist.get_rank()
def check():
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = Cuda.of((torch.arange(5000) % 100 + rank).to(dtype))
        dist.all_reduce(x)
        assert torch.equal(x.gpu(), (torch.arange(5000) % 100 * 2 + 1).to(dtype)), dtype
    x = Cuda.of(torch.full((300,), float(rank)))
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert (x.gpu() == 1).all()
    # The division follows on the stream, and is waited for.
    work = dist.all_reduce(Cuda.of(torch.ones(10)), op=dist.ReduceOp.AVG, async_op=True)
    assert not events
    work.wait()
    assert events == [4], events
    dist.broadcast(x, 0)
    y = Cuda.of(torch.zeros(600))
    dist.all_gather_into_tensor(y, Cuda.of(torch.full((300,), float(rank))))
    assert torch.equal(y.gpu(), torch.arange(2.0).repeat_interleave(300))
    part = Cuda.of(torch.zeros(300))
    dist.reduce_scatter_tensor(part, y)
    assert (part.gpu() == 2 * rank).all()
    a, b = Cuda.of(torch.full((7,), 3.0)), Cuda.of(torch.zeros(7))
    if rank == 0:
        dist.send(a, 1)
    else:
        dist.recv(b, 0)
        assert (b.gpu() == 3).all()
    # In the host's memory at one rank.
    z = torch.ones(100) if rank == 0 else Cuda.of(torch.ones(100))
    dist.all_reduce(z)
    assert ((z if rank == 0 else z.gpu()) == 2).all()
    assert asked and all(d == torch.device("cuda", 0) for d in asked)
def refused():
    x = Cuda.of(torch.ones(10))
    try:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    except ValueError as error:
        assert "RINGBELL_GPU=cuda" in str(error), error
    else:
        raise AssertionError("accepted by a NIC without CUDA")
    x = torch.ones(10)
    dist.all_reduce(x)
    assert (x == 2).all()
{check}()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("check", "gpu"), [("check", "cuda"), ("refused", "emulated")])
def test_tensors_of_a_gpu_are_reduced_where_they_lie(check: str, gpu: str, tmp_path: Path) -> None:
    mock = os.environ.get("RINGBELL_MOCK_LIBCUDA")
    if mock is None:
        pytest.skip("RINGBELL_MOCK_LIBCUDA does not name the mock driver; `cargo xtask torch` does")
    folder = tmp_path / "driver"
    folder.mkdir()
    for name in ("libcuda.so", "libcuda.so.1", "libnvrtc.so"):
        (folder / name).symlink_to(mock)
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM).replace("{check}", check))
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "RINGBELL_GPU": gpu,
        "RINGBELL_GPU_MEMORY": str(16 << 20),
        "RINGBELL_MOCK_CUDA": "slow-writes",
    }
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(file)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
