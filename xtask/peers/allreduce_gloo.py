"""All-reduce f32 sum with Gloo, through PyTorch: rows of the schema that `ringbell perf --json` keeps.

allreduce_gloo.py RANK RANKS PORT MIN_BYTES MAX_BYTES FACTOR ROUNDS
"""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

rank, ranks, port, smallest, largest, factor, rounds = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo",
    init_method=f"tcp://127.0.0.1:{port}",
    rank=rank,
    world_size=ranks,
    timeout=datetime.timedelta(seconds=60),
)


def value(n, r):
    # Small integers, so that every order of summation gives the same bits.
    return ((torch.arange(n) * 7 + r * 13) % 64).to(torch.float32)


size = smallest
while size <= largest:
    n = size // 4
    buffer = value(n, rank)
    dist.all_reduce(buffer)
    want = sum(value(n, r) for r in range(ranks))
    wrong = torch.tensor([int((buffer != want).sum())])
    dist.all_reduce(wrong)
    buffer.zero_()
    calls = 20 if size <= 64 << 10 else 5 if size <= 1 << 20 else 1
    for _ in range(2 * calls):
        dist.all_reduce(buffer)
    took = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buffer)
        took.append((time.perf_counter() - start) * 1e6 / calls)
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    took = sorted(slowest.tolist())
    us = took[len(took) // 2]
    if rank == 0:
        gbs = size / us / 1e3
        row = {
            "series": "in place",
            "size_bytes": size,
            "count": rounds * calls,
            "time_us": sum(took) / len(took),
            "p50_us": us,
            "p99_us": took[-1 - len(took) // 100],
            "algbw_gbs": gbs,
            "busbw_gbs": gbs * 2 * (ranks - 1) / ranks,
            "wrong": int(wrong.item()),
        }
        print(json.dumps(row), flush=True)
    size *= factor
dist.destroy_process_group()
