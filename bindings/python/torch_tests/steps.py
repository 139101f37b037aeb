"""Steps of a small transformer on CPUs by DistributedDataParallel, over ringbell and over Gloo in turns: time, and the share of it that is communication.

torchrun --standalone --nproc-per-node RANKS steps.py [ROUNDS]

The communication is what a step takes longer than the same step without it (`no_sync`). All models have the same parameters in the end, or the run fails.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

STEPS = 5


def model() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(256, 1))


class Training:
    def __init__(self, group: dist.ProcessGroup | None, rank: int) -> None:
        self.model = nn.parallel.DistributedDataParallel(model(), process_group=group)
        self.optimiser = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.draw = torch.Generator().manual_seed(7 + rank)

    def steps(self, together: bool) -> float:
        """Milliseconds of a step, on the slowest rank."""
        took = 0.0
        for _ in range(STEPS):
            x = torch.randn(4, 16, 256, generator=self.draw)
            dist.barrier()
            start = time.perf_counter()
            with contextlib.nullcontext() if together else self.model.no_sync():
                loss = (self.model(x) - x.mean(-1, keepdim=True)).square().mean()
                loss.backward()
            if together:
                self.optimiser.step()
            took += time.perf_counter() - start
            if not together:
                # The same work, but on copies that differ: their gradients are dropped.
                start = time.perf_counter()
                with torch.no_grad():
                    for p in self.model.parameters():
                        p.add_(p.grad, alpha=0.0)
                took += time.perf_counter() - start
            self.optimiser.zero_grad()
        slowest = torch.tensor([took * 1e3 / STEPS], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    dist.init_process_group("ringbell", timeout=timedelta(seconds=300))
    rank, size = dist.get_rank(), dist.get_world_size()
    trainings = {"ringbell": Training(None, rank), "gloo": Training(dist.new_group(backend="gloo"), rank)}
    took: dict[tuple[str, bool], list[float]] = {(name, t): [] for name in trainings for t in (True, False)}
    for i in range(rounds + 1):
        for (name, together), all_took in took.items():
            ms = trainings[name].steps(together)
            if i:
                all_took.append(ms)
    parameters = sum(p.numel() for p in trainings["gloo"].model.parameters())
    for ours, theirs in zip(trainings["ringbell"].model.parameters(), trainings["gloo"].model.parameters(), strict=True):
        if size == 2:
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    if rank == 0:
        print(f"DDP step, {size} ranks, {parameters} parameters, median of {rounds} rounds of {STEPS}; equal parameters afterwards")
        shares = {}
        for name in trainings:
            step, alone = (statistics.median(took[name, t]) for t in (True, False))
            shares[name] = max(step - alone, 0.0)
            print(f"{name:>10} {step:>8.1f} ms a step, {alone:>8.1f} ms without communication, {step - alone:>7.2f} ms of it")
        print(f"communication beside Gloo's: {shares['ringbell'] / shares['gloo'] if shares['gloo'] else float('nan'):.2f}x")
    dist.barrier()
    dist.destroy_process_group()


main()
