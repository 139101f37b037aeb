"""All-reduce of float32 tensors by ringbell and by Gloo in turns, in one process group's ranks: a table with the ratios.

`mapped` are tensors of `ringbell.torch.empty`.

torchrun --standalone --nproc-per-node RANKS beside_gloo.py [ROUNDS]
"""

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import ringbell.torch

#: Bytes, and calls in a round.
SIZES = [(1 << 10, 200), (64 << 10, 100), (1 << 20, 20), (64 << 20, 1)]


def timed(calls: int, call: Callable[[], Any]) -> float:
    """Microseconds of a call, on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    took = torch.tensor([(time.perf_counter() - start) * 1e6 / calls], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took.item())


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    dist.init_process_group("ringbell", timeout=timedelta(seconds=100))
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    if rank == 0:
        print(f"all-reduce, {size} ranks, float32, median of {rounds} rounds\n{'bytes':>10} {'ringbell':>12} {'mapped':>12} {'gloo':>12}   gloo/ringbell, gloo/mapped")
    for nbytes, calls in SIZES:
        plain, mapped = torch.empty(nbytes // 4), ringbell.torch.empty(nbytes // 4)
        ways = {"ringbell": (plain, None), "mapped": (mapped, None), "gloo": (plain, gloo)}
        took: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(rounds + 1):
            for name, (x, group) in ways.items():
                x.fill_(rank + 1.0)
                dist.all_reduce(x, group=group)
                assert (x == size * (size + 1) / 2).all()
                x.zero_()
                us = timed(calls, lambda: dist.all_reduce(x, group=group))
                if i:
                    took[name].append(us)
        ours, direct, theirs = (statistics.median(took[name]) for name in ways)
        if rank == 0:
            print(f"{nbytes:>10} {ours:>9.1f} us {direct:>9.1f} us {theirs:>9.1f} us {theirs / ours:>6.1f}x {theirs / direct:>6.1f}x", flush=True)
    dist.destroy_process_group()


main()
