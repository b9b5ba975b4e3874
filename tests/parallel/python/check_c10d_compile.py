"""Every rank: torch.compile over the collectives of the backend "rueda"."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from c10d import run
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def check_functional_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    @torch.compile(fullgraph=True)
    def both(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD) * 3

    for step in range(3):
        x = torch.arange(4.0) + rank + step
        total = 2 * sum(torch.arange(4.0) + r + step for r in range(size))
        torch.testing.assert_close(both(x), torch.cat([(total + 1) * 3] * size))


def check_ddp() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    def make() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))

    single = make()
    model = torch.compile(DistributedDataParallel(make()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = torch.optim.SGD(single.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(50 + step)
        x, y = torch.randn(size * 4, 6), torch.randn(size * 4, 6)
        mine = slice(4 * rank, 4 * rank + 4)
        for module, own, rows in ((model, optimizer, mine), (single, alone, slice(None))):
            own.zero_grad()
            F.mse_loss(module(x[rows]), y[rows]).backward()
            own.step()
    for parameter, expected in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    run(globals())
